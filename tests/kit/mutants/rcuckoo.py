"""Known-bad variants of the `rcuckoo` store, for the checkers to catch.

Each is the shipped store with some functions replaced, run uncompiled (uncompiled.py). Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
from limpet.stores.rcuckoo.layout import (
    ANY,
    PATH_MASK,
    PATH_SHIFT,
    SEQUENCE_MASK,
    STATE,
)
from limpet.stores.rcuckoo.repair import REST_MASK


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


def copies_nothing_to_the_first_place(copy: Any) -> Any:
    """That is where an undo puts the good copy of an entry."""

    def run(self: Any, place: int, *source: int) -> None:
        if place:
            copy(self, place, *source)

    return run


def is_torn_again(self: Any, place: int, other: int) -> bool:
    """`Rows.is_same`, which says only whether the second one is whole."""
    return not self.is_whole(other)


def looks_once(self: Any, found: Any) -> bool:
    for place in range(2):
        if not self.rows.is_whole(place):
            self.locks.wait_for(self.row_at(found, place))
            return False
    return True


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


def says_one_number(say: Any) -> Any:
    """All states of an operation have the number of its first one."""

    def run(self: Any, held: int, unsure: int, path: int) -> None:
        if not self.publishes:
            self.sequence = self.sequence - 1 & SEQUENCE_MASK
        say(self, held, unsure, path)

    return run


def begins_with_a_number(publish: Any) -> Any:
    def run(self: Any, words: Any, bits: Any, count: int) -> None:
        self.publishes = True
        try:
            publish(self, words, bits, count)
        finally:
            self.publishes = False

    return run


# ---- locks ---------------------------------------------------------------------------------------


class Spinning(Instead):
    """An endpoint whose masked CAS is made until the bits are clear that it compares."""

    def mcas(self, at: int, compare: int, swap: int, compare_mask: int, swap_mask: int) -> int:
        while True:
            found = int(self.other.mcas(at, compare, swap, compare_mask, swap_mask))
            if not found & compare_mask:
                return found
            self.other.pause(8)


def spins(init: Any) -> Any:
    def run(self: Any, endpoint: Any, *arguments: Any) -> None:
        init(self, Spinning(endpoint), *arguments)

    return run


def plans_only_the_path(self: Any, found: Any, plan: Any) -> None:
    path = list(plan.rows[: plan.length]) if plan is not None else []
    self.locks.plan()
    for row in path or (found.first, found.second):
        self.locks.add(row)


def gives_back_if_all_are_there(self: Any, look: Any, word: int, bits: int) -> None:
    self.endpoint.mcas(word, bits, 0, bits, bits)


def gives_back_one_by_one(self: Any, word: int, bits: int) -> None:
    for place in range(64):
        one = bits & 1 << place
        if one:
            self.endpoint.mcas(word, one, 0, one, one)


# ---- repair --------------------------------------------------------------------------------------


def restores_locks_first(self: Any, look: Any) -> None:
    self._give_back(look)
    if look.state >> PATH_SHIFT & PATH_MASK:
        self._settle_path(look)
        self.endpoint.store(look.at + STATE, look.state & REST_MASK)


def takes_others_in_any_order(self: Any, but: int, changes: Any) -> list[int]:
    return [at for at in self._journals() if at != but]


def asks_until_all_is_quiet(self: Any, word: int, bits: int, journals: Any, may_have: Any) -> bool:
    busy = [at for at, some in zip(journals, may_have, strict=True) if some == ANY]
    return len(self._journals()) == len(journals) + 1 and all(
        self._is_over_in(at, word, bits) for at in busy
    )


def looks_every_time(is_to_look: Any) -> Any:
    patience = is_to_look.__globals__["PATIENCE"]
    return lambda self, attempt: not attempt % patience


# ---- the variants --------------------------------------------------------------------------------

REPAIR: Final = "rcuckoo/repair"
BY_THE_PAPER: Final = Change("rcuckoo/rows", "DependentHash.place", places_by_the_paper)
WITHOUT_PROGRESS: Final = with_part("membership", progress=nothing)

BLESSED: Final = Mutant(
    "c1-torn-row-is-made-valid", (replaced("rcuckoo/rows", "Rows.load_entry", nothing),)
)
GOOD_COPY_CLEARED: Final = Mutant(
    "c1-of-two-copies-the-good-one-is-cleared",
    (Change("rcuckoo/rows", "Rows.copy", copies_nothing_to_the_first_place),),
)
ONE_ROW: Final = Mutant("c2-both-rows-may-be-the-same", (BY_THE_PAPER,))
MISSED: Final = Mutant(
    "c3-missing-without-a-second-look",
    (replaced("rcuckoo/lookup", "Lookup.are_settled", looks_once),),
)
VERSION_WRAPS: Final = Mutant(
    "c4-version-has-eight-bits", (replaced("rcuckoo/writer", "MASK", 0xFF),)
)
BUSY_IS_SUSPECT: Final = Mutant(
    "c4-any-lock-of-the-word-makes-suspect",
    (replaced(REPAIR, "Repair._of", lambda self, look: (self.what, 0)),),
)
LEASE_IS_SUSPECT: Final = Mutant(
    "c4-all-repairs-by-one-client-are-one",
    (Change(REPAIR, "Repair._take_lease", WITHOUT_PROGRESS),),
)
ANYBODYS_BIT: Final = Mutant(
    "c5-lock-is-cleared-whoever-has-it",
    (replaced(REPAIR, "Repair._stranded", lambda self, mine, word, bits: bits),),
)
NO_SECOND_LOOK: Final = Mutant(
    "c5-states-are-not-looked-at-again",
    (replaced("rcuckoo/locks", "LockJournal._is_still", always),),
)
STATE_COMES_AGAIN: Final = Mutant(
    "c5-state-comes-again",
    (
        Change("rcuckoo/locks", "LockJournal.say", says_one_number),
        Change("rcuckoo/locks", "LockJournal.publish", begins_with_a_number),
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
COMPARED: Final = Mutant(
    "c8-locks-are-given-back-if-all-are-there",
    (
        replaced(REPAIR, "Repair._give_back_unsure", gives_back_if_all_are_there),
        replaced(REPAIR, "Repair._give_back_bits", gives_back_one_by_one),
    ),
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
STARVED: Final = Mutant(
    "c12-busy-journals-are-looked-at-in-any-order",
    (replaced(REPAIR, "Repair._others", takes_others_in_any_order),),
)
ALL_QUIET: Final = Mutant(
    "c12-bit-that-is-clear-is-asked-about-until-all-is-quiet",
    (replaced(REPAIR, "Repair._is_settled", asks_until_all_is_quiet),),
)
NO_PROGRESS: Final = Mutant(
    "g10-repairer-that-looks-again-shows-no-progress",
    (Change(REPAIR, "Repair._stranded", WITHOUT_PROGRESS),),
)
TORN_ONCE: Final = Mutant(
    "c13-row-is-not-read-again-after-its-lock",
    (replaced("rcuckoo/rows", "Rows.is_same", is_torn_again),),
)
TWICE_ONCE: Final = Mutant(
    "c13-copies-are-not-counted-again-after-their-locks",
    (replaced("rcuckoo/check", "RcuckooCheck._has_stayed", always),),
)
OFTEN: Final = Mutant(
    "c14-everybody-looks-at-everybody-every-eighth-attempt",
    (Change("rcuckoo/store", "Rcuckoo._is_to_look", looks_every_time),),
)
