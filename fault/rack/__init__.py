"""The virtual rack: virtual machines that share memory, with limpet clients in each of them.

image.py           the needs of the rack, and the small initial file system of a machine
machine.py         one virtual machine: start, ask, stop, kill, freeze, continue
record.py          the history of all clients, in memory that outlives their machine
work.py            what clients work on: a store (work_store.py), a channel (work_channels.py),
                   transactions (work_bank.py); works.py has them by name
agent.py           the program inside a machine: it starts clients and reports their ends
rack.py            two machines, and the memory that they share
scenarios.py       the scenarios of machines: one is killed or frozen, the power of both is cut
memory.py          those of the pool's memory: a device is withdrawn, a page poisoned, a pool
                   destroyed under its clients, a client of another release
cxl.py             the scenario of one machine with CXL memory
verdicts.py        the verdicts on a scenario, and the report
"""
