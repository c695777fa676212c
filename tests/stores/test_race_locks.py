"""The baseline `race-locks`: nobody takes over the lock of a subtable, and nobody hangs for it."""

from __future__ import annotations

from typing import Any

import pytest
from process_tools import gather

import limpet

ENTRY = 16
KEYS = 200


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
