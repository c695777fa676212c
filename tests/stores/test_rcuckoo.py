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
