"""The stores and channels of a pool, a package for each design.

pool.py       a pool with its stores and channels; contents.py answers the memory layer about them
dict.py       `pool.dict`, a mapping of Python objects; registry.py, the kinds of stores by name
core          what all stores share: their base class, the loop of operations, records, codecs
transactions  what transactions on hash stores and on trees share
race fusee swarm rcuckoo loco sherman rtx    the systems of the papers
baselines     the stores that the papers measure against
channels      all shared objects that are no stores
"""
