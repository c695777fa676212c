"""Known-bad variants of the `loco` store, for the checkers to catch.

Each is the shipped store with some functions replaced, run uncompiled (uncompiled.py). Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from kit.mutants.uncompiled import (
    LOCO,
    Change,
    Mutant,
    always,
    replaced,
    store_in_force,
)
from limpet.stores.core.status import DONE, FULL
from limpet.stores.loco.layout import (
    CHECKSUM,
    CLAIMED,
    ENTRY_SHIFT,
    LINK,
    PHASE_MASK,
    ROW_MASK,
    STATE,
    VALID,
)
from limpet.stores.loco.parameters import TRACKER_MIN


def in_force(mutant: Mutant) -> AbstractContextManager[Any]:
    """Make the pools of this block the mutant's."""
    return store_in_force(LOCO, ("loco/store", "Kvstore"), mutant.changes)


# ---- repair --------------------------------------------------------------------------------------


def begins_without_repair(begin: Any) -> Any:
    def run(self: Any, found: Any, attempt: int) -> bool:
        self.writer.journal.intended = 0
        return bool(begin(self, found, attempt))

    return run


def sums_up_what_is_there(self: Any, entries: Any) -> None:
    entries.words[CHECKSUM] = entries._checksum()


def leaves_claims(vacate: Any) -> Any:
    def run(self: Any, found: Any, entry: int, state: int, linked: int) -> None:
        if state & PHASE_MASK != CLAIMED:
            vacate(self, found, entry, state, linked)

    return run


# ---- entries -------------------------------------------------------------------------------------


def with_life(life: Callable[[int], int]) -> Any:
    """`DataArray._checksum`, of another part of the state."""

    def change(checksum: Any) -> Any:
        mix, mask = checksum.__globals__["MIX"], checksum.__globals__["MASK"]

        def run(self: Any) -> int:
            state = int(self.words[STATE])
            lives = (state >> ENTRY_SHIFT) * mix ^ life(state) * mix
            return int(checksum(self)) ^ (lives & mask)

        return run

    return change


def links_last(self: Any, entry: int, count: int, linked: int) -> None:
    link, self.words[LINK] = self.words[LINK], linked
    self.endpoint.write_words(
        self.address(entry) + 8 * CHECKSUM, self.words, count - CHECKSUM, CHECKSUM
    )
    if link != linked:
        self.endpoint.store(self.link_address(entry), link)


def inserts_in(*order: str) -> Any:
    """Inserts take these steps in this order."""

    def insert(writer: Any, found: Any, key: bytes, value: bytes, reference: int) -> int:
        entry, state = writer._claim(found)
        if entry < 0:
            return FULL
        entries, index = found.entries, found.index
        if reference:
            writer.client.retarget(0, entries.link_address(entry))
        count = entries.compose(state, key, value, reference)
        valid = state & ~PHASE_MASK | VALID

        def sum_up() -> None:
            entries.compose(valid, key, value, reference)
            writer.endpoint.store(entries.address(entry) + 8 * CHECKSUM, entries.words[CHECKSUM])

        steps: dict[str, Callable[[], object]] = {
            "write": lambda: entries.write(entry, count, 0),
            "tell": lambda: index.announce(entry, found.hash, 0),
            "learn": lambda: index.note_change(entry, found.hash, state),
            "make valid": lambda: writer.endpoint.store(entries.address(entry), valid),
            "sum up": sum_up,
        }
        for step in order:
            steps[step]()
        writer.journal.end()
        return DONE

    return replaced("loco/writer", "Writer._insert", insert)


def counts_in_one_bit(claimed_state: Any) -> Any:
    return lambda lock, counter: claimed_state(lock, counter & 1)


def names_no_lock(claimed_state: Any) -> Any:
    return lambda lock, counter: claimed_state(0, counter)


# ---- the index -----------------------------------------------------------------------------------


def current_for_gets(find: Any) -> Any:
    """Gets take an index for current that is not."""

    def run(self: Any, key: bytes, attempt: int) -> int:
        index = type(self.found.index)
        is_current = index.is_current
        index.is_current = lambda self, lock, position: self.known
        try:
            return int(find(self, key, attempt))
        finally:
            index.is_current = is_current

    return run


def looks_into_another_tracker(post: Any) -> Any:
    return lambda self, lock: post(self, lock ^ 1)


def takes_the_entry_from_others(put: Any) -> Any:
    """An entry has one key in the index, that of the message that was applied last."""

    def run(self: Any, word: int) -> None:
        for other in [
            other for other in self.words if other and other & ROW_MASK == word & ROW_MASK
        ]:
            self._drop(other)
        put(self, word)

    return run


def loads_the_positions_last(learn: Any) -> Any:
    def run(self: Any, home: int) -> None:
        learn(self, home)
        for lock in range(self.locks + 1):
            self.applied[lock] = self.trackers.position(lock)

    return run


def has_a_short_ring(for_pool: Any) -> Any:
    def run(cls: Any, *pool: Any, tracker: int | None = None, **parameters: Any) -> Any:
        made = for_pool.__func__(cls, *pool, tracker=tracker, **parameters)
        if tracker is not None:
            return made
        size = max(TRACKER_MIN, 1 << (made.entries // 4 // made.locks).bit_length())
        return dataclasses.replace(made, tracker=size)

    return classmethod(run)


def refreshes_under_a_lock(begin: Any) -> Any:
    def run(self: Any, found: Any, attempt: int) -> bool:
        found.index.refresh(found.hash)
        found.position = found.index.applied[found.lock]
        return bool(begin(self, found, attempt))

    return run


def reaches_out_too_late(insert: Any) -> Any:
    """The reach is raised when the insert is done."""

    def run(self: Any, found: Any, *rest: Any) -> int:
        index = found.index
        reach_out = type(index)._reach_out
        type(index)._reach_out = lambda index: None
        try:
            outcome = insert(self, found, *rest)
        finally:
            type(index)._reach_out = reach_out
        if outcome == DONE:
            index._reach_out()
        return int(outcome)

    return run


# ---- the variants --------------------------------------------------------------------------------

NO_REPAIR: Final = Mutant(
    "l1-torn-value-is-not-repaired",
    (Change("loco/locking", "Locking._begin", begins_without_repair),),
)
BLESSED: Final = Mutant(
    "l1-torn-value-is-made-valid",
    (replaced("loco/data_array", "EntryJournal.load", sums_up_what_is_there),),
)
CLAIM_STAYS: Final = Mutant(
    "l1-claim-of-the-dead-stays", (Change("loco/writer", "Writer.vacate", leaves_claims),)
)
VALID_IN_CHECKSUM: Final = Mutant(
    "l2-valid-bit-is-in-the-checksum",
    (
        Change("loco/data_array", "DataArray._checksum", with_life(lambda state: state)),
        inserts_in("write", "tell", "learn", "make valid", "sum up"),
    ),
)
VALID_FIRST: Final = Mutant(
    "l3-valid-before-it-is-told", (inserts_in("write", "make valid", "tell", "learn"),)
)
NOT_UP_TO_DATE: Final = Mutant(
    "l3-index-is-not-brought-up-to-date",
    (Change("loco/lookup", "Lookup.find_once", current_for_gets),),
)
OTHER_TRACKER: Final = Mutant(
    "l3-tracker-of-another-lock",
    (Change("loco/local_index", "LocalIndex.post_position", looks_into_another_tracker),),
)
OUT_OF_ORDER: Final = Mutant(
    "l3-messages-of-other-keys-take-an-entry-away",
    (Change("loco/local_index", "LocalIndex._put", takes_the_entry_from_others),),
)
COUNTER_WRAPS: Final = Mutant(
    "l3-counter-has-one-bit", (Change("loco/writer", "claimed_state", counts_in_one_bit),)
)
POSITION_LAST: Final = Mutant(
    "l3-position-is-loaded-after-the-entries",
    (Change("loco/local_index", "LocalIndex._learn_home", loads_the_positions_last),),
)
ONE_HOME: Final = replaced("loco/local_index", "LocalIndex.home_of", lambda self, hashed: 0)
"""All keys have one home, so all but the first of its part are in other parts. No fault."""
CROWDED: Final = Mutant("all-keys-have-one-home", (ONE_HOME,))
REACH_LATE: Final = Mutant(
    "l3-reach-is-raised-after-the-insert",
    (ONE_HOME, Change("loco/writer", "Writer._insert", reaches_out_too_late)),
)
NO_REACH: Final = Mutant(
    "l3-reach-is-not-raised",
    (ONE_HOME, replaced("loco/local_index", "LocalIndex._reach_out", lambda self: None)),
)
LAP_OVERLOOKED: Final = Mutant(
    "l3-overtaken-message-is-applied",
    (replaced("loco/local_index", "Trackers.has", always),),
)
SHORT_RING: Final = Mutant(
    "l4-ring-shorter-than-the-table",
    (Change("loco/parameters", "LocoParameters.for_pool", has_a_short_ring),),
)
ANEW_UNDER_LOCK: Final = Mutant(
    "l4-index-is-made-anew-under-a-lock",
    (Change("loco/locking", "Locking._begin", refreshes_under_a_lock),),
)
TOLD_FIRST: Final = Mutant(
    "told-before-it-is-written", (inserts_in("tell", "write", "learn", "make valid"),)
)
KEY_TRUSTED: Final = Mutant(
    "key-is-not-compared", (replaced("loco/data_array", "DataArray.key_is", always),)
)
COUNTER_NOT_IN_CHECKSUM: Final = Mutant(
    "counter-is-not-in-the-checksum",
    (Change("loco/data_array", "DataArray._checksum", with_life(lambda state: 0)),),
)
LINK_LAST: Final = Mutant(
    "link-after-the-other-words", (replaced("loco/data_array", "DataArray.write", links_last),)
)
CLAIM_WITHOUT_LOCK: Final = Mutant(
    "claim-does-not-name-the-lock",
    (
        Change("loco/writer", "claimed_state", names_no_lock),
        replaced("loco/check", "LocoCheck._has_its_lock", always),
    ),
)
