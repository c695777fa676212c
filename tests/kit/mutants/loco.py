"""Known-bad variants of the `loco` store, for the checkers to catch.

Each is the shipped source, run uncompiled (source.py), with some functions, or some lines,
replaced. Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from kit.mutants.source import Mutant, store_in_force
from limpet.stores.loco.layout import CHECKSUM, LATE_MAX, NEAR, PHASE_MASK, TORN, VALID
from limpet.stores.status import AGAIN, DONE, FULL

_PARTS: Final = (
    "parameters", "tracker", "data_array", "local_index", "journal", "lookup", "writer", "repair",
    "check", "locking", "store",
)  # fmt: skip
SOURCES: Final = (
    "stores/records.py",
    "stores/inline.py",
    *(f"stores/loco/{name}.py" for name in _PARTS),
)


def in_force(mutant: Mutant) -> AbstractContextManager[None]:
    """Have pools made meanwhile be the mutant's."""
    return store_in_force(SOURCES, "Kvstore", mutant)


MADE_VALID: Final = (
    "        self.endpoint.store(entries.address(entry), state & ~PHASE_MASK | VALID)\n"
)
LINKED: Final = "            self.endpoint.store(self.link_address(entry), self.words[LINK])\n"
REST: Final = "        self.endpoint.write_words(at, self.words, count - CHECKSUM, CHECKSUM)\n"
LIFE: Final = "        life = self.words[STATE] >> ENTRY_SHIFT\n        return crc_pair"
COUNTED: Final = "state = counter + 1 << COUNTER_SHIFT | lock << LOCK_SHIFT | CLAIMED"


def _repair_nothing(names: dict[str, Any]) -> None:
    def begin(locking: Any, found: Any, attempt: int) -> bool:
        if attempt >= LATE_MAX:
            found.index.refresh()
        elif not found.index.refresh_near(NEAR << 2 * attempt):
            return False
        locking.writer.journal.intent()
        return True

    names["Locking"]._begin = begin


NO_REPAIR: Final = Mutant("l1-torn-value-is-not-repaired", replace=_repair_nothing)


def _bless(names: dict[str, Any]) -> None:
    def load(journal: Any, entries: Any) -> None:
        entries.words[CHECKSUM] = entries._checksum()

    names["Journal"].load = load


BLESSED: Final = Mutant("l1-torn-value-is-made-valid", replace=_bless)
CLAIM_STAYS: Final = Mutant(
    "l1-claim-of-the-dead-stays",
    (
        (
            "        if what == INSERTING and phase == CLAIMED:\n",
            "        if what == INSERTING and phase == CLAIMED and False:\n",
        ),
    ),
)
VALID_IN_CHECKSUM: Final = Mutant(
    "l2-valid-bit-is-in-the-checksum",
    (
        (LIFE, LIFE.replace("self.words[STATE] >> ENTRY_SHIFT", "self.words[STATE]")),
        (
            MADE_VALID,
            MADE_VALID
            + """        entries.compose(state & ~PHASE_MASK | VALID, key, value, reference)
        self.endpoint.store(entries.address(entry) + 8, entries.words[1])
""",
        ),
    ),
)


def _insert_in(*order: str) -> Callable[[dict[str, Any]], None]:
    """Inserts take these steps in this order."""

    def insert(writer: Any, found: Any, key: bytes, value: bytes, reference: int) -> int:
        entry, state = writer._claim(found)
        if entry < 0:
            return FULL
        entries, index = found.entries, found.index
        if reference:
            writer.client.retarget(0, entries.link_address(entry))
        count = entries.compose(state, key, value, reference)
        numbers = []
        valid = state & ~PHASE_MASK | VALID
        steps: dict[str, Callable[[], object]] = {
            "write": lambda: entries.write(entry, count, 0),
            "tell": lambda: numbers.append(index.tracker.append(entry)),
            "learn": lambda: index.learn(entry, found.hash, state, numbers[0]),
            "make valid": lambda: writer.endpoint.store(entries.address(entry), valid),
        }
        for step in order:
            steps[step]()
        writer.journal.end()
        return DONE

    def replace(names: dict[str, Any]) -> None:
        names["Writer"]._insert = insert

    return replace


VALID_FIRST: Final = Mutant(
    "l3-valid-before-it-is-told",
    replace=_insert_in("write", "make valid", "tell", "learn", "make valid"),
)


def _look_up_in_any_index(names: dict[str, Any]) -> None:
    def find_once(lookup: Any, key: bytes, attempt: int) -> int:
        found = lookup.found
        if not lookup.is_late(attempt):
            lookup.choose(found, key)
            if not found.index.known:
                found.index.refresh()
        outcome = lookup.look_up(found, key)
        lookup.endpoint.wait()
        return AGAIN if outcome == TORN else int(outcome)

    names["Lookup"].find_once = find_once


NOT_UP_TO_DATE: Final = Mutant("l3-index-is-not-brought-up-to-date", replace=_look_up_in_any_index)
COUNTER_WRAPS: Final = Mutant(
    "l3-counter-has-one-bit",
    ((COUNTED, COUNTED.replace("counter + 1 <<", "(counter + 1 & 1) <<")),),
)
POSITION_LAST: Final = Mutant(
    "l3-position-is-loaded-after-the-entries",
    (("        self.applied = position\n", "        self.applied = self.tracker.position()\n"),),
)
LAP_OVERLOOKED: Final = Mutant(
    "l3-overtaken-message-is-applied",
    (
        ("if position - self.applied <= self.tracker.size:", "if True:"),
        ("        if word >> ROW_BITS != self._lap(number):\n            return -1\n", ""),
    ),
)
SHORT_RING: Final = Mutant(
    "l4-ring-shorter-than-the-table",
    (("1 << (entries - 1).bit_length()", "1 << (entries // 4).bit_length()"),),
)


def _refresh_under_lock(names: dict[str, Any]) -> None:
    def begin(locking: Any, found: Any, attempt: int) -> bool:
        found.index.refresh()
        if locking.writer.journal.intent():
            names["repair"](locking.writer, found)
        return True

    names["Locking"]._begin = begin


ANEW_UNDER_LOCK: Final = Mutant("l4-index-is-made-anew-under-a-lock", replace=_refresh_under_lock)
TOLD_FIRST: Final = Mutant(
    "told-before-it-is-written", replace=_insert_in("tell", "write", "learn", "make valid")
)
KEY_TRUSTED: Final = Mutant("key-is-not-compared", ((" and entries.key_is(key):\n", ":\n"),))
COUNTER_NOT_IN_CHECKSUM: Final = Mutant(
    "counter-is-not-in-the-checksum",
    ((LIFE, LIFE.replace("self.words[STATE] >> ENTRY_SHIFT", "0")),),
)
LINK_LAST: Final = Mutant(
    "link-after-the-other-words",
    (
        (LINKED, "            pass\n"),
        (
            REST,
            """        link, self.words[LINK] = self.words[LINK], linked
        self.endpoint.write_words(at, self.words, count - CHECKSUM, CHECKSUM)
        self.endpoint.store(self.link_address(entry), link)
""",
        ),
    ),
)
CLAIM_WITHOUT_LOCK: Final = Mutant(
    "claim-does-not-name-the-lock",
    (
        (COUNTED, COUNTED.replace("lock << LOCK_SHIFT | ", "")),
        ("& (1 << LOCK_BITS) - 1 != hashed & store.locking.lock_count - 1:\n", "< 0:\n"),
    ),
)
