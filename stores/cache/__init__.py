"""The shared cache, `pool.cache`: a hash store that forgets, bounded in items and bytes.

A cache is a `race` store (stores/race/) whose objects have a head in front of the pair: when it
expires, how often it was read, which invalidations it has survived, and which client computes it.
So an entry is found, linked, replaced, freed and recovered as any pair of `race`. This package adds
only the parts that a cache has besides:

    layout.py      the words: the head of an object, and the cache's own words behind a directory
    validity.py    whether an entry may be served; times, tags and condition of a write
    entries.py     objects with a head, and the steps on one entry: read, judge, touch, unlink;
                   which client computes its value
    ledger.py      how many items and bytes there are, so that a kill does no lasting harm; counters
                   of hits, misses, and so on
    room.py        making room when the cache, the pool or a bucket is full: a hand that evicts
    store.py       the operations, bytes to bytes: the kind `cache`
    cache.py       `Cache`, the user's view: Python objects, as a MutableMapping
    flight.py      `get_or_compute` and `memoize`: one process computes, the others wait for it

The policy is a generalised CLOCK (Smith, "Sequentiality and prefetching in database systems", TODS
1978) whose hand sees a window of the table at a time. An entry has a count of at most 3 hits. The
hand evicts the oldest entry of the window whose count is 0; if there is none, it lowers every count
by one. LRU, SIEVE and S3-FIFO need a list; this policy does not. A list in shared memory is a word
that each writer changes, and a killed client leaves it half changed. A slot's place follows from
the hash, so a window is a sample. docs/cache.md has hit ratios beside exact LRU, LFU and W-TinyLFU.

A hit writes nothing, or one word of the object itself: the count, until it is 3, and the deadline
of an entry with sliding expiry, once in 1/16 of its time. So an entry that all processes read stays
in the caches of all CPUs.
"""
