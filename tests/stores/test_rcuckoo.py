"""RCuckoo's parts: places of keys, search for paths, locks, journals, rows; and whose a lock is."""

from __future__ import annotations

from typing import Any

from puppets import verb_on
from rcuckoo_scenes import Clients, Ring

from limpet.fault.operations import OLD

NEW = b"new"

# ---- check() -------------------------------------------------------------------------------------


def test_check_leaves_out_what_a_client_that_stands_still_is_writing(pools: Any) -> None:
    """At each word-wise write of an insert that moves two entries, with its locks held."""
    clients = Clients(pools, 1, fence="wait")
    (still,) = clients.puppets
    clients.store.put(b"there", OLD)
    ring = Ring(clients.store, b"key", 2, there=b"there")
    met = 0
    for number in range(1, 20):
        ended = still.begin(
            lambda: still.store.insert(b"key", NEW), verb_on("write_words", number=number)
        )
        clients.store.check()
        if ended:
            break
        met += 1
        assert still.go()
        ring.put_back()
    assert met == 7  # the redo image; of three rows, the entry, version and CRC
    assert clients.store.get(b"key") == NEW
    clients.sound()
