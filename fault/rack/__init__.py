"""The virtual rack: virtual machines that share memory, with limpet clients in each of them.

image.py      the needs of the rack, and the small initial file system of a machine
machine.py    one virtual machine: start, ask, stop, kill, freeze, continue
record.py     the history of all clients, in memory that outlives their machine
agent.py      the program inside a machine: it starts clients and reports their ends
scenarios.py  the scenarios: a machine is killed, or frozen
verdicts.py   the verdicts on a scenario, and the report
"""
