"""Known-bad variants of the `loco` store, for the checkers to catch.

Each is the shipped source with some lines replaced, run uncompiled (source.py). Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from kit.mutants.source import Mutant, store_in_force

_PARTS: Final = (
    "parameters", "tracker", "data_array", "local_index", "journal", "repair", "check", "lookup",
    "store",
)  # fmt: skip
SOURCES: Final = tuple(f"stores/loco/{name}.py" for name in _PARTS)


def in_force(mutant: Mutant) -> AbstractContextManager[None]:
    """Have pools made meanwhile be the mutant's."""
    return store_in_force(SOURCES, "Kvstore", mutant)


BEGIN: Final = """        if self.journal.intent():
            self.repairs += 1
            repair(self)
"""
TOLD: Final = "        number = self.index.tracker.append(entry)\n"
LEARNT: Final = "        self.index.learn(entry, self.hash, state, number)\n"
MADE_VALID: Final = (
    "        self.endpoint.store(entries.address(entry), state & ~PHASE_MASK | VALID)\n"
)
WRITTEN: Final = "        entries.write(entry, count, 0)\n"
INSERT_ORDER: Final = (
    "        # ORDER: written before it is told, and told before it is valid (L3).\n"
)
LINKED: Final = "            self.endpoint.store(self.link_address(entry), self.words[LINK])\n"
REST: Final = "        self.endpoint.write_words(at, self.words, count - CHECKSUM, CHECKSUM)\n"
LIFE: Final = "        life = self.words[STATE] >> ENTRY_SHIFT\n        return crc_pair"
COUNTED: Final = "state = counter + 1 << COUNTER_SHIFT | lock << LOCK_SHIFT | CLAIMED"

NO_REPAIR: Final = Mutant(
    "l1-torn-value-is-not-repaired", ((BEGIN, "        self.journal.intent()\n"),)
)
BLESSED: Final = Mutant(
    "l1-torn-value-is-made-valid",
    (
        (
            "    store.journal.load(entries)\n",
            "    entries.words[CHECKSUM] = entries._checksum()\n",
        ),
    ),
)
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
VALID_FIRST: Final = Mutant(
    "l3-valid-before-it-is-told",
    (
        (
            TOLD + LEARNT,
            MADE_VALID.replace("entries.address", "self.entries.address") + TOLD + LEARNT,
        ),
    ),
)
NOT_UP_TO_DATE: Final = Mutant(
    "l3-index-is-not-brought-up-to-date",
    (
        (
            """        self.index.refresh()
        outcome = self._look_up""",
            """        if not self.index.known:
            self.index.refresh()
        outcome = self._look_up""",
        ),
    ),
)
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
ANEW_UNDER_LOCK: Final = Mutant(
    "l4-index-is-made-anew-under-a-lock",
    (
        (
            """        elif not self.index.refresh_near(NEAR << 2 * attempt):
            return False
""",
            """        self.index.refresh()
""",
        ),
    ),
)
TOLD_FIRST: Final = Mutant(
    "told-before-it-is-written",
    ((WRITTEN + INSERT_ORDER + TOLD, TOLD + WRITTEN),),
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
        ("& (1 << LOCK_BITS) - 1 != hashed & store.lock_count - 1:\n", "< 0:\n"),
    ),
)
