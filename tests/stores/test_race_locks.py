"""The baseline `race-locks`: no client takes over the lock of a subtable, and no client hangs for
it."""

from __future__ import annotations

from typing import Any

import pytest
from kit.endpoints import Interrupted, WatchedPool
from kit.processes import gather

import limpet

ENTRY = 16
KEYS = 200


@pytest.mark.exhaustive_in_pure("waits for what hangs")
def test_who_waits_for_a_dead_client_is_told(pools: Any) -> None:
    pool = pools()
    store = pool.store("race-locks", name="s", capacity=1, groups=2, bucket_size=1)
    (dead,) = gather(lambda: pool.client_id)
    store.put(b"0", b"v")
    directory = pool.regions.find(0, "s").address
    for number in range(store.parameters.directory_size // ENTRY):
        pool.endpoint.store(directory + ENTRY * number, dead)
    says = f"client {dead:#x} died splitting .*; race, rtx-race and dtx-race stores do"
    with pytest.raises(limpet.StoreStuck, match=says):
        store.put_many((b"%d" % number, b"v") for number in range(KEYS))
    done = list(store)
    assert 0 < len(done) < KEYS
    assert store.get_many(done) == [b"v"] * len(done)
    store.put(done[0], b"w")
    store.delete(done[1])
    assert pool.audit()["leaked"] == 0


@pytest.mark.exhaustive("waits for what hangs")
@pytest.mark.parametrize("whose", ["ours", "of one at other work"])
def test_locks_that_nobody_has_taken_keep_nobody_waiting(pools: Any, whose: str) -> None:
    """Damage, or an operation of ours that was cut off: a lock names a client that is not at it."""
    pool = pools()
    other = pools.again(pool)
    store = pool.store("race-locks", name="s", capacity=1, groups=2, bucket_size=1)
    store.put(b"0", b"v")
    directory = pool.regions.find(0, "s").address
    holder = pool.client_id if whose == "ours" else other.client_id
    for number in range(store.parameters.directory_size // ENTRY):
        pool.endpoint.store(directory + ENTRY * number, holder)
    if whose == "ours":
        store.put_many((b"%d" % number, b"v") for number in range(KEYS))
        assert len(store) == KEYS
    else:
        with pytest.raises(limpet.StoreCorrupt, match="is at other work"):
            store.put_many((b"%d" % number, b"v") for number in range(KEYS))
        assert store.get(b"0") == b"v"


def test_a_split_that_is_cut_off_leaves_no_lock(pools: Any) -> None:
    pool = pools.keep(WatchedPool.open(pools().url))
    store = pool.store("race-locks", name="s", capacity=1, groups=2, bucket_size=1)
    directory = pool.regions.find(0, "s").address
    cut = []

    def cuts(verb: str, address: int) -> None:
        locks = directory <= address < directory + store.parameters.directory_size
        if verb == "cas" and locks and not (address - directory) % ENTRY:
            cut.append(address)
        elif cut:
            pool.endpoint.before = None
            raise Interrupted

    pool.endpoint.before = cuts
    with pytest.raises(Interrupted):
        store.put_many((b"%d" % number, b"v") for number in range(KEYS))
    assert pool.endpoint.load(cut[0]) == 0
