"""The virtual rack: virtual machines that share memory, with limpet clients in each of them.

image.py      what the rack needs, and the small initial file system that a machine boots from
machine.py    one virtual machine: start, ask, stop, kill, freeze, continue
record.py     the history of all clients, in memory that outlives their machine
agent.py      the program inside a machine: it starts clients and says how they ended
scenarios.py  what happens in the rack: a machine is killed, or frozen
verdicts.py   whether what happened was right, and the report
"""
