"""The memory layer: pools of memory that any client may leave at any instruction.

backends    where segments come from: POSIX shared memory, files, DAX devices
endpoint    verbs on memory, native and portable, hooks on them, and the layout of all words
alloc       blocks, size classes, the heap, and blocks that are taken from living owners
replicas    replica sets of blocks, the view of the nodes
clients     slots, pins, epochs, liveness, fencing
net         memory nodes over a network
catalogue   directories of names, and regions
pool.py     wires them; contents.py has its questions to stores; audit.py accounts for every byte;
            recovery.py recovers a dead client, replacement.py makes new memory for a lost node
"""
