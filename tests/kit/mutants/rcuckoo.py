"""Known-bad variants of the `rcuckoo` store, for the checkers to catch.

Each is the shipped source with some lines replaced, run uncompiled (source.py). Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from kit.mutants.source import Change, Mutant, from_source, sightings_for_ever, store_in_force

_PARTS: Final = (
    "layout", "dependent_hash", "rows", "journal", "locks", "search", "repair", "check", "lookup",
    "store",
)  # fmt: skip
SOURCES: Final = (
    "stores/records.py",
    "stores/inline.py",
    *(f"stores/rcuckoo/{name}.py" for name in _PARTS),
)
HASH: Final = ("stores/rcuckoo/dependent_hash.py",)


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Have pools made meanwhile be the mutant's.

    That a busy client is no suspect is also seen to by what its hold is (sightings.py): variants
    in which it is one are without either.
    """
    suspicious = mutant in (BUSY_IS_SUSPECT, LEASE_IS_SUSPECT)
    with contextlib.ExitStack() as stack:
        if suspicious:
            stack.enter_context(sightings_for_ever())
        stack.enter_context(store_in_force(SOURCES, "Rcuckoo", mutant))
        yield


def places_of_variant(change: Change, rows: int, locality: float) -> Any:
    """The places of keys as a variant has them."""
    return from_source(HASH, "DependentHash", change)(rows, locality)


ODD: Final = ("% self.ranges[zeros] | 1\n", "% self.ranges[zeros]\n")
REPAIRED: Final = """            if look.state >> PATH_SHIFT & PATH_MASK:
                self._settle_path(look)
            self._give_back(look)
"""
GIVEN_BACK: Final = """            self._give_back(look)
            if look.state >> PATH_SHIFT & PATH_MASK:
                self._settle_path(look)
                self.endpoint.store(look.at + STATE, look.state & REST_MASK)
"""
STRANDED: Final = "self.endpoint.mcas(word, 0, 0, 0, self._stranded(look, word, bits))\n"
BIT_BY_BIT: Final = """            for place in range(64):
                one = bits & 1 << place
                if one:
                    self.endpoint.mcas(word, one, 0, one, one)
        self.endpoint.store(look.at + STATE, look.state & REST_MASK)
"""
ALL_AT_ONCE: Final = """            self.endpoint.mcas(word, 0, 0, 0, bits)
        self.endpoint.store(look.at + STATE, look.state & REST_MASK)
"""
BOTH: Final = """        locks.add(self.first)
        locks.add(self.second)
        for index in range(self.planned):
"""
PATH_ONLY: Final = """        if not self.planned:
            locks.add(self.first)
            locks.add(self.second)
        for index in range(self.planned):
"""
REFUSED: Final = """            if endpoint.mcas(self.words[index], 0, bits, bits, bits) & bits:
                journal.say(index, 0, 0)
                self.busy = self.words[index]
                self.busy_bits = bits
                endpoint.wait()
                self.release(index)
                return False
"""
SPIN: Final = """            while endpoint.mcas(self.words[index], 0, bits, bits, bits) & bits:
                endpoint.pause(8)
"""
GET: Final = """            self.client.enter()
            try:
                self.require_there()
                outcome = self._get_once(key)
                if outcome == DONE:
                    return self._value()
                if attempt > LOOKS_MAX and self.is_damaged():
                    raise self._damaged()
            finally:
                self.client.leave()
"""
SETTLED: Final = "return first == rows.version(self.at_first) and"
SAY: Final = """        self.sequence = self.sequence + 1 & SEQUENCE_MASK
        self.endpoint.store(
            self.at + STATE,
"""
PUBLISHED: Final = "        self.sequence = endpoint.load(self.at + STATE) >> SEQUENCE_SHIFT\n"
LOOKED_AFTER: Final = (
    "look.may_have(word) & bits and self.membership.gone(look.owner, *self._of(look)):\n"
)
REDO: Final = "            rows.load_entry(0, slot, look.at + REDO)\n"

BLESSED: Final = Mutant("c1-torn-row-is-made-valid", ((REDO, ""),))
GOOD_COPY_CLEARED: Final = Mutant(
    "c1-of-two-copies-the-good-one-is-cleared",
    (("                rows.copy(0, slot, 1, path[index + 1][1])\n", "                pass\n"),),
)
ONE_ROW: Final = Mutant("c2-both-rows-may-be-the-same", (ODD,))
MISSED: Final = Mutant("c3-missing-without-a-second-look", ((SETTLED, "return True or"),))
VERSION_WRAPS: Final = Mutant(
    "c4-version-has-eight-bits",
    (
        ("rows.write(self.place, row, self.slot, version + 1 & MASK)",
         "rows.write(self.place, row, self.slot, version + 1 & 0xFF)"),
        ("rows.write(at, row, slot, rows.version(at) + 1 & MASK)",
         "rows.write(at, row, slot, rows.version(at) + 1 & 0xFF)"),
    ),
)  # fmt: skip
BUSY_IS_SUSPECT: Final = Mutant(
    "c4-any-lock-of-the-word-makes-suspect",
    (("        return self.what, look.state\n", "        return self.what, 0\n"),),
)
LEASE_IS_SUSPECT: Final = Mutant(
    "c4-all-repairs-by-one-client-are-one",
    (
        (
            "repair for the last one.\n        self.membership.progress()\n",
            "repair for the last one.\n",
        ),
    ),
)
ANYBODYS_BIT: Final = Mutant(
    "c5-lock-is-cleared-whoever-has-it",
    ((STRANDED, "self.endpoint.mcas(word, 0, 0, 0, bits)\n"),),
)
NO_SECOND_LOOK: Final = Mutant(
    "c5-states-are-not-looked-at-again",
    (
        (
            "            if endpoint.load(at + STATE) != state:\n                surely = 0\n",
            "            if False:\n                surely = 0\n",
        ),
    ),
)
STATE_COMES_AGAIN: Final = Mutant(
    "c5-state-comes-again",
    (
        (SAY, SAY.replace("self.sequence = self.sequence + 1 & SEQUENCE_MASK", "pass")),
        (PUBLISHED, PUBLISHED[:-1] + " + 1\n"),
    ),
)
LEASE_OF_THE_DEAD: Final = Mutant(
    "c5-lease-of-a-dead-repairer-stands",
    (("            ended = self.membership.ended(holder, what)\n", "            ended = False\n"),),
)
STARVED: Final = Mutant(
    "c12-busy-journals-are-looked-at-in-any-order",
    (("sorted(others, key=changes.__getitem__)", "others"),),
)
ALL_QUIET: Final = Mutant(
    "c12-bit-that-is-clear-is-asked-about-until-all-is-quiet",
    (
        ("            if not bits or (\n", "            if (\n"),
        ("strict=True) if some & bits]\n", "strict=True) if some == ANY]\n"),
    ),
)
NO_PROGRESS: Final = Mutant(
    "g10-repairer-that-looks-again-shows-no-progress",
    (
        (
            "                self.membership.progress()\n                self.endpoint.pause(",
            "                self.endpoint.pause(",
        ),
    ),
)
TORN_ONCE: Final = Mutant(
    "c13-row-is-not-read-again-after-its-lock",
    (("        return rows.is_same(SPARE, SPARE + 1)\n",
      "        return not rows.is_whole(SPARE + 1)\n"),),
)  # fmt: skip
TWICE_ONCE: Final = Mutant(
    "c13-copies-are-not-counted-again-after-their-locks",
    (("if not locked and self._copies(key) == (both, rows, versions):", "if not locked:"),),
)
OFTEN: Final = Mutant(
    "c14-everybody-looks-at-everybody-every-eighth-attempt",
    (
        ("self.patience = max(PATIENCE, used // CLIENTS_PER_ATTEMPT)", "self.patience = PATIENCE"),
        (
            "if attempt == turn * self.patience and (not turn & turn - 1 or not turn & 7):",
            "if attempt % PATIENCE == 0:",
        ),
    ),
)
LOCKS_FIRST: Final = Mutant("c6-locks-are-given-back-before-the-repair", ((REPAIRED, GIVEN_BACK),))
UNFENCED: Final = Mutant(
    "c7-who-stands-still-is-repaired-alive",
    (
        (LOOKED_AFTER, "look.may_have(word) & bits:\n"),
        ("if look is None or not self._is_over(look.owner):", "if look is None:"),
    ),
)
COMPARED: Final = Mutant(
    "c8-locks-are-given-back-if-all-are-there",
    ((ALL_AT_ONCE, BIT_BY_BIT), (STRANDED, "self.endpoint.mcas(word, bits, 0, bits, bits)\n")),
)
PATH_LOCKED: Final = Mutant("c9-only-the-path-is-locked", ((BOTH, PATH_ONLY),))
SPINS: Final = Mutant("c10-waits-while-it-holds", ((REFUSED, SPIN),))
UNPINNED: Final = Mutant(
    "c11-extent-is-read-without-a-pin",
    ((GET, GET.replace("client.enter()", "client.begin()").replace("leave()", "end()")),),
)
