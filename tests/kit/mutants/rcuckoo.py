"""Known-bad variants of the `rcuckoo` store, for the checkers to catch.

Each is the shipped store with some functions replaced, run uncompiled (uncompiled.py). Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from kit.mutants.sightings import sightings_for_ever
from kit.mutants.uncompiled import (
    RCUCKOO,
    Change,
    Instead,
    Mutant,
    always,
    never,
    nothing,
    replaced,
    store_in_force,
    uncompiled,
    with_part,
)
from limpet.shm.endpoint.fabric import lowest_bit
from limpet.stores.core.status import DONE, MISSING
from limpet.stores.rcuckoo.layout import SEQUENCE, STATE, SUM
from limpet.stores.rcuckoo.rows import Entry


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Make the pools of this block the mutant's.

    That a busy client is no suspect is also seen to by what its hold is (fencing.py): variants
    in which it is one are without either.
    """
    suspicious = mutant in (BUSY_IS_SUSPECT, LEASE_IS_SUSPECT)
    with contextlib.ExitStack() as stack:
        if suspicious:
            stack.enter_context(sightings_for_ever())
        stack.enter_context(store_in_force(RCUCKOO, ("rcuckoo/store", "Rcuckoo"), mutant.changes))
        yield


def places_of_variant(change: Change, rows: int, locality: float) -> Any:
    """The places of keys as a variant has them."""
    made = uncompiled(("stores/rcuckoo/rows",), change)
    return made["rcuckoo/rows"].DependentHash(rows, locality)


# ---- rows ----------------------------------------------------------------------------------------


def places_by_the_paper(place: Any) -> Any:
    """Without the lowest bit of the distance set."""
    names = place.__globals__

    def mixed(hashed: int, which: str) -> int:
        return int((hashed * names[which] & names["MASK"]) >> 32)

    def run(self: Any, hashed: int) -> None:
        self.first = mixed(hashed, "MIX_FIRST") * self.rows >> 32
        third = mixed(hashed, "MIX_THIRD")
        zeros = lowest_bit(third) if third else names["RANGES"]
        distance = mixed(hashed, "MIX_SECOND") % self.ranges[zeros]
        self.second = (self.first + distance) % self.rows

    return run


def bless(rows: Any, number: int, slot: int, sequence: int) -> None:
    """Make the entry valid that is in the row."""
    row, entry = rows.read(number), Entry(rows.parameters)
    entry.copy(row, slot)
    rows.post_entry(row, number, slot, sequence, entry)


def blesses_the_first_row(self: Any, look: Any) -> None:
    number, slot, sequence = look.path[0]
    bless(self.store.lookup.rows, number, slot, sequence + 2)


def blesses_what_came(self: Any, path: Any) -> None:
    """It clears the last entry, and puts no good copy back."""
    rows = self.store.lookup.rows
    for number, slot, sequence in path[1:-1]:
        bless(rows, number, slot, sequence + 4)
    number, slot, sequence = path[-1]
    rows.post_entry(rows.read(number), number, slot, sequence + 4, Entry(rows.parameters))


def is_torn_again(self: Any, row: Any, later: Any) -> bool:
    """`Rows.is_same`, which says only whether the second one is whole."""
    return not self.is_whole(later)


def is_torn_by_two_words(self: Any, row: Any, later: Any) -> bool:
    """`Rows.is_same`, which looks at the sequence and the sum only."""
    return bool(row.head[SEQUENCE] == later.head[SEQUENCE] and row.head[SUM] == later.head[SUM])


def first_sequences_are_even(self: Any, found: Any, both: bool) -> bool:
    """`Lookup.is_proven` without the sequences after the rows."""
    for row, number in ((found.one, found.first), (found.two, found.second)):
        if (both or row is found.row) and row.sequence() & 1:
            self.locks.wait_for(number)
            return False
    return True


def looks_once_if(is_meant: Callable[[bool], bool]) -> tuple[Change, ...]:
    """Changes: of some results, called with whether the key is missing, the sequences are not read
    again."""

    def is_proven(shipped: Any) -> Any:
        def run(self: Any, found: Any, both: bool) -> bool:
            chosen = first_sequences_are_even if is_meant(both) else shipped
            return bool(chosen(self, found, both))

        return run

    def proves(shipped: Any) -> Any:
        def run(self: Any, endpoint: Any, drops: int) -> bool:
            missing = self.found.slot < 0
            if is_meant(missing):
                return first_sequences_are_even(self, self.found, missing)
            return bool(shipped(self, endpoint, drops))

        return run

    return (
        Change("rcuckoo/lookup", "Lookup.is_proven", is_proven),
        Change("rcuckoo/lookup", "Lookup.proves", proves),
    )


def gets_unpinned(self: Any, key: bytes, default: Any = None) -> Any:
    attempt = 0
    while True:
        self.client.begin()
        try:
            self.require_there()
            outcome = self.index.find_once(key, attempt)
            if outcome == DONE:
                return self.index.value_found()
        finally:
            self.client.end()
        if outcome == MISSING:
            return default
        attempt += 1
        self.await_holder(attempt, False)


# ---- journals ------------------------------------------------------------------------------------


def leaves_the_path(post_held: Any) -> Any:
    """The path of the last operation stays in the state."""

    def run(self: Any, words: Any, count: int) -> None:
        steps = self.steps
        post_held(self, words, count)
        self.held[0] = self._state(steps)
        self.endpoint.post_write(self.at + STATE, self.held, 1)

    return run


# ---- locks ---------------------------------------------------------------------------------------


class Spinning(Instead):
    """An endpoint whose CAS that takes a lock is made until the lock is free."""

    def post_cas(self, at: int, expected: int, desired: int) -> int:
        if expected:
            return int(self.other.post_cas(at, expected, desired))
        while self.other.cas(at, expected, desired):
            self.other.pause(8)
        return 0

    def post_cas_if(self, first: int, wanted: int, at: int, *words: int) -> int:
        return self.post_cas(at, *words)

    def result(self, ticket: int) -> int:
        return int(self.other.result(ticket)) if ticket else 0


def spins(init: Any) -> Any:
    def run(self: Any, endpoint: Any, *arguments: Any) -> None:
        init(self, Spinning(endpoint), *arguments)

    return run


def plans_only_the_path(self: Any, found: Any, plan: Any) -> None:
    path = list(plan.rows[: plan.length]) if plan is not None else []
    self.locks.plan()
    for row in path or (found.first, found.second):
        self.locks.add(row)


# ---- repair --------------------------------------------------------------------------------------


def restores_locks_first(self: Any, look: Any) -> None:
    for word in look.held:
        self.endpoint.cas(word, look.owner, 0)
    if look.path and look.held == look.named:
        self._settle_path(look)


def takes_named_for_held(look: Any) -> Any:
    def run(self: Any, at: int) -> Any:
        found = look(self, at)
        return found._replace(held=found.named)

    return run


def gives_back_whosever(restore: Any) -> Any:
    def run(self: Any, look: Any) -> None:
        restore(self, look)
        for word in look.named:
            self.endpoint.store(word, 0)

    return run


# ---- the variants --------------------------------------------------------------------------------

REPAIR: Final = "rcuckoo/repair"
BY_THE_PAPER: Final = Change("rcuckoo/rows", "DependentHash.place", places_by_the_paper)
WITHOUT_PROGRESS: Final = with_part("membership", progress=nothing)

BLESSED: Final = Mutant(
    "c1-torn-row-is-made-valid", (replaced(REPAIR, "Repair._redo", blesses_the_first_row),)
)
GOOD_COPY_CLEARED: Final = Mutant(
    "c1-of-two-copies-the-good-one-is-cleared",
    (replaced(REPAIR, "Repair._undo", blesses_what_came),),
)
ONE_ROW: Final = Mutant("c2-both-rows-may-be-the-same", (BY_THE_PAPER,))
MISSED: Final = Mutant("c3-missing-without-a-second-look", looks_once_if(bool))
NOT_READ_AGAIN: Final = Mutant(
    "sequence-is-not-read-again-after-the-row", looks_once_if(lambda missing: not missing)
)

NO_SUM: Final = Mutant(
    "sum-is-not-compared",
    (replaced("rcuckoo/rows", "Rows.is_whole", lambda self, row: not row.sequence() & 1),),
)

VERSION_WRAPS: Final = Mutant(
    "c4-version-has-eight-bits", (replaced("rcuckoo/writer", "MASK", 0xFF),)
)
BUSY_IS_SUSPECT: Final = Mutant(
    "c4-any-lock-of-the-word-makes-suspect",
    (replaced(REPAIR, "Repair._of", lambda self, hold: (self.what, 0)),),
)
LEASE_IS_SUSPECT: Final = Mutant(
    "c4-all-repairs-by-one-client-are-one",
    (Change(REPAIR, "Repair._take_lease", WITHOUT_PROGRESS),),
)
ANYBODYS_LOCK: Final = Mutant(
    "c5-lock-is-cleared-whoever-has-it",
    (
        Change(REPAIR, "Repair.look", takes_named_for_held),
        Change(REPAIR, "Repair._restore", gives_back_whosever),
    ),
)
LEASE_OF_THE_DEAD: Final = Mutant(
    "c5-lease-of-a-dead-repairer-stands",
    (Change(REPAIR, "Repair._take_lease", with_part("membership", ended=never)),),
)
LOCKS_FIRST: Final = Mutant(
    "c6-locks-are-given-back-before-the-repair",
    (replaced(REPAIR, "Repair._restore", restores_locks_first),),
)
UNFENCED: Final = Mutant(
    "c7-who-stands-still-is-repaired-alive",
    (replaced(REPAIR, "Repair._gone", always), replaced(REPAIR, "Repair._is_over", always)),
)
PATH_WITHOUT_LOCKS: Final = Mutant(
    "c7-path-counts-when-its-locks-are-given-back",
    (Change(REPAIR, "Repair.look", takes_named_for_held),),
)
PATH_OF_BEFORE: Final = Mutant(
    "c7-path-counts-in-the-next-operation",
    (Change("rcuckoo/locks", "LockJournal.post_held", leaves_the_path),),
)
PATH_LOCKED: Final = Mutant(
    "c9-only-the-path-is-locked",
    (replaced("rcuckoo/writer", "Writer._plan_locks", plans_only_the_path),),
)
SPINS: Final = Mutant(
    "c10-waits-while-it-holds", (Change("rcuckoo/locks", "Locks.__init__", spins),)
)
UNPINNED: Final = Mutant(
    "c11-extent-is-read-without-a-pin", (replaced("rcuckoo/store", "Rcuckoo.get", gets_unpinned),)
)
TORN_ONCE: Final = Mutant(
    "c13-row-is-not-read-again-after-its-lock",
    (replaced("rcuckoo/rows", "Rows.is_same", is_torn_again),),
)
TORN_IN_HEADER: Final = Mutant(
    "c13-only-sequence-and-sum-are-compared",
    (replaced("rcuckoo/rows", "Rows.is_same", is_torn_by_two_words),),
)
TWICE_ONCE: Final = Mutant(
    "c13-copies-are-not-counted-again-after-their-locks",
    (replaced("rcuckoo/check", "RcuckooCheck._has_stayed", always),),
)
