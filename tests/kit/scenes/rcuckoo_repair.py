"""Repair of RCuckoo's tables beside clients at work, traps G10, C12 and C14.

A client died in the one instruction in which no client can read whether it has a lock. The client
that repairs for it finds out, whatever others do meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kit.cuckoo import Clients
from kit.mutants.rcuckoo import ALL_QUIET, NO_PROGRESS, OFTEN, STARVED
from kit.puppets import PuppetPool, verb_on
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import SLOTS_USED
from limpet.stores.rcuckoo.layout import JOURNALS, STATE

NEW: Final = b"new"
GLANCES_MAX: Final = 500
"""So many looks at a word: the repair starves."""


class Starved(AssertionError):
    """A repair has looked at the word again and again."""


class Busy:
    """A client that repairs, and one at work under other locks, with keys of which it updates one
    at every step of the first that `hinders` it."""

    def __init__(self, clients: Clients, pools: Any) -> None:
        self.clients = clients
        (self.busy,) = clients.puppets
        self.elsewhere = clients.key(9)
        self.repairer = pools.keep(PuppetPool.open(clients.url))
        self.repairer.store("rcuckoo", name="test").get(self.elsewhere)
        self.glances = 0
        self.busy_for = GLANCES_MAX

    def journal(self, pool: Any) -> int:
        slot = pool.client_id >> slots.INCARNATION_BITS
        return int(self.clients.table + JOURNALS + slot * self.clients.store.lookup.journal_size)

    def recover(self, hinders: Callable[[str, int], bool]) -> None:
        """Recover the dead, while the other one is at work."""

        def work(verb: str, address: int) -> None:
            if verb == "load" and address == self.clients.locks:
                self.glances += 1
                if self.glances > GLANCES_MAX:
                    raise Starved
            if self.glances < self.busy_for and hinders(verb, address):
                self.busy.store.update(self.elsewhere, NEW)

        endpoint = self.repairer.endpoint
        endpoint.before = work
        try:
            self.repairer.recover()
        finally:
            endpoint.before = None


def die_unsure(clients: Clients, taken: bool) -> bytes:
    """A client dies with a journal that is unsure; `taken`: it has the locks. The key it meant."""
    key = clients.key(3)
    seen = [0]

    def there(verb: str, address: int) -> bool:
        seen[0] += verb == "mcas"
        return seen[0] == 1 and (verb == "store" if taken else verb == "mcas")

    clients.die(there, lambda store: store.update(key, NEW))
    assert bool(clients.locked()) == taken
    return key


def _beside_one_whose_state_changes_at_every_other_step(pools: Any) -> None:
    """It is as fast as this: only between two looks, one just after the other, does it not."""
    clients = Clients(pools, 1)
    busy = Busy(clients, pools)
    die_unsure(clients, True)
    theirs = busy.journal(busy.busy.pool) + STATE

    def other_journals(verb: str, address: int) -> bool:
        in_journals = clients.table < address < clients.locks
        return verb == "load" and in_journals and address != theirs

    busy.recover(other_journals)
    assert clients.locked() == 0
    clients.sound()


def _of_a_lock_that_is_clear(pools: Any) -> None:
    """It was never taken. The state of the one at work changes at every look."""
    clients = Clients(pools, 1)
    busy = Busy(clients, pools)
    die_unsure(clients, False)
    busy.recover(lambda verb, address: verb == "load" and address == clients.locks)
    assert busy.glances < 10
    clients.sound()


def _shows_that_it_gets_on(pools: Any) -> None:
    """It looks at the lock again and again; clients that wait for its lease do not suspect it."""
    clients = Clients(pools, 1)
    busy = Busy(clients, pools)
    die_unsure(clients, True)
    busy.busy_for = GLANCES_MAX - 100
    membership = clients.pool.membership
    now = [0.0]
    membership.now = lambda: now[0]
    ident = busy.repairer.client_id
    lease_s = membership.lease_s

    def at_the_word(verb: str, address: int) -> bool:
        if verb == "load" and address == clients.locks and busy.glances % 10 == 0:
            now[0] += lease_s / 5
            clients.pool.exclusively(lambda: membership.gone(ident, "the lease"))
        return verb == "load" and address == clients.locks

    busy.recover(at_the_word)
    assert now[0] > 5 * lease_s
    kinds = {event["kind"] for event in clients.pool.events()}
    assert kinds <= {"recovered"}, "a repairer at work is taken for one that stands still"
    clients.sound()


def _looks_cost_an_attempt_the_same_with_many_clients(pools: Any) -> None:
    for used in (8, 128):
        _words_are_read(pools, used)


def _words_are_read(pools: Any, used: int) -> None:
    """Few words of journals, an attempt, by one that waits for a lock."""
    clients = Clients(pools, 2)
    holder, waiter = clients.puppets
    key, beside = clients.key(3), clients.key(3, number=1)
    clients.pool.endpoint.store(SLOTS_USED, used)
    waiting = waiter.pool.store("rcuckoo", name="test")
    assert not holder.begin(lambda: holder.store.update(key, NEW), verb_on("write_words"))
    counts = {"attempts": 0, "words": 0}

    def tired(verb: str, address: int) -> bool:
        counts["attempts"] += verb == "load" and address == clients.locks
        counts["words"] += verb == "load" and clients.table < address < clients.locks
        return counts["attempts"] > 300

    assert not waiter.begin(lambda: waiting.update(beside, NEW), tired)
    assert holder.go()
    assert waiter.go()
    assert 0 < counts["words"] < 3 * counts["attempts"], counts
    clients.sound()


STEPS: Final = (
    (STARVED, _beside_one_whose_state_changes_at_every_other_step),
    (ALL_QUIET, _of_a_lock_that_is_clear),
    (NO_PROGRESS, _shows_that_it_gets_on),
    (OFTEN, _looks_cost_an_attempt_the_same_with_many_clients),
)
