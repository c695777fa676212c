"""RCuckoo's parts: places of keys, search for paths, locks, journals, rows; and whose a lock is."""

from __future__ import annotations

from typing import Any

from puppets import verb_on, verb_on_address
from rcuckoo_scenes import Clients, Ring

from limpet.fault.operations import OLD

NEW = b"new"

# ---- whose a lock is -----------------------------------------------------------------------------


def test_a_lock_that_was_taken_and_given_back_meanwhile_is_not_a_dead_clients(pools: Any) -> None:
    """The one who had it was in the same state when who repairs looked before and after."""
    clients = Clients(pools, 4, locks_per_message=1)
    holder, repairer, next_one, last = clients.puppets
    held, *_, beside = [clients.key(3, number=number) for number in range(9)]
    watched = clients.key(4)  # in one row with `beside`, for which its first one has no room
    clients.die(verb_on("mcas"), lambda store: store.update(watched, NEW))
    holder.begin(lambda: holder.store.update(held, NEW), verb_on("mcas"))
    repairer.begin(repairer.pool.recover, verb_on_address("load", clients.locks))
    holder.go(verb_on("mcas", number=2))
    repairer.go(verb_on("load"))
    holder.go(verb_on("mcas"))
    repairer.go(verb_on("mcas"))
    next_one.begin(lambda: next_one.store.update(watched, NEW), verb_on("write_words"))
    assert repairer.go()
    assert holder.go()
    ended = last.begin(lambda: last.store.update(beside, NEW), clients.looks())
    assert not ended, "two clients have one lock"
    assert next_one.go()
    assert last.go()
    assert {clients.store.get(key) for key in (held, watched, beside)} == {NEW}
    clients.sound()


def test_a_client_that_repairs_one_after_the_other_does_not_stand_still(pools: Any) -> None:
    """Who looked at the lease now and then took all repairs for a single one that took so long."""
    clients = Clients(pools, 1)
    (repairer,) = clients.puppets
    key, other = clients.key(3), clients.key(8)
    now = [0.0]
    clients.pool.membership.now = lambda: now[0]
    for _ in range(2):
        clients.die(verb_on("write_words"), lambda store: store.update(key, NEW))
        given_back = verb_on_address("cas", clients.table, 2)
        assert not repairer.begin(repairer.pool.recover, given_back)
        clients.store.locks.wait_for(8)
        clients.store.look_after()
        assert repairer.go()
        now[0] += 3600
    assert [e["kind"] for e in clients.pool.events() if e["kind"] != "recovered"] == []
    assert clients.store.get(other) == OLD
    clients.sound()


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
