"""The stores and channels of a pool, a package for each design.

base.py       the base class of stores; registry.py has the kinds by name
pool.py       a pool with its stores and channels; contents.py answers the memory layer about them
dict.py       `pool.dict`, a mapping of Python objects
records.py    objects of keys and values; inline.py, rows; codecs.py, how Python objects are written
race fusee swarm rcuckoo loco sherman rtx    the systems of the papers
baselines     the stores that the papers measure against
channels      all shared objects that are no stores
"""
