"""Known-bad variants of the `swarm` store, for the checkers to catch.

Each is the shipped source with some lines replaced, run uncompiled (source.py). Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from kit.mutants.race import GROWING
from kit.mutants.source import from_source
from limpet.fault.explore.explorer import Exploration
from limpet.fault.matrix.fault_profile import FAULT_PROFILES
from limpet.shm import pool as pool_module
from limpet.stores import pool as stores_pool
from limpet.stores.swarm.parameters import SwarmParameters

_INDEX: Final = ("log", "cache", "reconcile", "tables", "restoring", "check", "snapshot", "growth")
_REGISTERS: Final = (
    "words", "in_n_out", "recycling", "max_register", "write_back", "timestamp_lock",
    "safe_guess", "abd", "registers", "cache", "check", "store",
)  # fmt: skip
SOURCES: Final = (
    "shm/clients/unique_ids.py",
    "stores/records.py",
    *GROWING,
    *(f"stores/fusee/{name}.py" for name in _INDEX),
    *(f"stores/swarm/{name}.py" for name in _REGISTERS),
)
Change = tuple[str, str]
NODE_SIZE: Final = 1 << 20


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`changes` of the store's source, `clock` of that of the clock.

    `says`: the kinds of failure that show it. `exploration`: what it is explored with.
    """

    name: str
    says: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    clock: tuple[Change, ...] = ()
    exploration: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def parameters(self, schedules: int) -> Exploration:
        """Of an exploration that shows it."""
        chosen = {"crashes": 0, "stalls": 0, "value_size": 40, "nodes": 3, **self.exploration}
        clients = chosen["program"].count("|") + 1
        return Exploration(store="swarm", schedules=schedules, seed=1, clients=clients, **chosen)


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Have pools made meanwhile be the mutant's."""
    with pytest.MonkeyPatch.context() as patch:
        made = from_source(SOURCES, "Swarm", *mutant.changes)
        patch.setattr(stores_pool, "store_class", lambda kind: made)
        if mutant.clock:
            clock = from_source(("shm/clients/clock.py",), "Clock", *mutant.clock)
            patch.setattr(pool_module, "Clock", clock)
        with crowded():
            yield


@contextlib.contextmanager
def crowded() -> Iterator[None]:
    """Have new stores be one subtable, so that all keys meet; the explorer's nodes be larger."""
    for_pool = SwarmParameters.for_pool.__func__  # type: ignore[attr-defined]

    def one_subtable(cls: Any, *pool: Any, **parameters: Any) -> Any:
        made = for_pool(cls, *pool, **{"cache_size": 64, **parameters})
        return dataclasses.replace(made, subtables=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SwarmParameters, "for_pool", classmethod(one_subtable))
        sized = dataclasses.replace(FAULT_PROFILES["swarm"], explorer_node_size=NODE_SIZE)
        patch.setitem(FAULT_PROFILES, "swarm", sized)
        yield


SEEN_TWICE: Final = """                if self.try_lock(m, READ):
                    self._verify_read(m, value)
                    return DONE
                # Its lock was refused, so a majority has greater ones.
                self.wait_again(refused, m, "is the greatest, although its lock is taken")
                refused += 1
            elif before is not None:
"""
LITERAL: Final = SEEN_TWICE[: SEEN_TWICE.index("                # Its lock")]
BACK: Final = "self.write_back(self.top) if self.is_writer() else NO_MEMORY\n"
HASH: Final = (
    "        return value if hash64(value, seed) == self.front[at + 2] else None\n",
    "        return value\n",
)
HELD: Final = "        held = self.client.hold(reference, self.home() | OLD)\n"
PLACED: Final = "        copy = placed(word, self.writer, self.side)\n"
SAME_STAMP: Final = "            if stamp_of(self.tops[self.order[n]]) >= least:\n"
OURS: Final = "    return word >> STAMP_SHIFT - 1 << STAMP_SHIFT - 1 | row << ROW_SHIFT | side\n"
STALE: Final = "ua ua ga|ua ga|ga ga"
ABD: Final = {"guess": False, "in_place": False, "buffers": 1}
EXPLORED: Final = (
    Mutant(
        "s9-copy-is-said-to-be-in-the-writers-row", ("client 0", "client 1", "history", "check"),
        ((PLACED, "        copy = word\n"),), exploration={"program": STALE},
    ),
    Mutant(
        "s9-copy-does-not-carry-its-writer", ("client 0", "client 1", "history", "check", "no end"),
        (
            (
                OURS,
                "    row_bits = row << STAMP_SHIFT | row << ROW_SHIFT\n"
                "    return word >> TIME_SHIFT << TIME_SHIFT | word & VERIFIED | row_bits | side\n",
            ),
        ),
        exploration={"program": STALE},
    ),
    Mutant(
        "abd-timestamp-is-guessed", ("client 0", "client 1", "history", "check", "no end"),
        (("self.clock.after(time_of(self.top))", "self.clock.guess()"),),
        exploration={"program": STALE, "parameters": ABD},
    ),
    Mutant(
        "buffer-is-given-up-without-a-hand", ("leaked",),
        (
            (HELD, ""),
            ("else 0\n        self.client.release(held)\n",
             "else 0\n        self.heap.free(reference)\n"),
        ),
        exploration={"program": "ua ua|ga", "crashes": 1},
    ),
    Mutant(
        "kept-without-a-look-at-the-ident", ("leaked",),
        (
            ("            if not self._stands(self.order[n]):\n", "            if False:\n"),
        ),
        exploration={"program": "ua|da|ga"},
    ),
    Mutant(
        "register-is-given-up-with-its-ident", ("leaked",),
        (("                    self.endpoint.cas(self.bases[k], ident, 0)\n",
          "                    pass\n"),),
        exploration={"program": "ua ua|da ia|ga ga"},
    ),
)  # fmt: skip

LITERAL_ALGORITHM_3: Final = Mutant("s1-literal-algorithm-3", (), ((SEEN_TWICE, LITERAL),))
CLOCK_STARTS_ANEW: Final = Mutant(
    "s2-clock-is-not-that-of-the-slot",
    (),
    clock=(
        (
            "            self.last = self.endpoint.load(self.client.slot + CLOCK)\n",
            "            self.last = 0\n",
        ),
    ),
)
WHOLE_WORDS: Final = Mutant(
    "s5-whole-words-are-compared",
    (),
    ((SAME_STAMP, "            if self.tops[self.order[n]] == word:\n"),),
)
NOT_WRITTEN_BACK: Final = Mutant(
    "s8-reader-does-not-write-back",
    (),
    ((BACK, "DONE\n"),),
)
TORN_IN_PLACE: Final = Mutant("s8-torn-value-in-place-is-taken", (), (HASH,))
LAST_IS_TAKEN: Final = Mutant(
    "s3-what-is-read-last-is-taken",
    (),
    (("        self.top = max(self.top, top)\n", "        self.top = top\n"),),
)
REGISTER_IS_NOT_LOOKED_AT: Final = Mutant(
    "s6-remembered-register-is-not-looked-at",
    (),
    (("        if self.ident and self.front[at] == self.ident:\n", "        if self.ident:\n"),),
)
TOMBSTONE_WITHOUT_LOCK: Final = Mutant(
    "s4-guess-is-withdrawn-without-a-lock",
    (),
    (
        (
            "        return DELETED if self.try_lock(w, WRITE) else DONE\n",
            "        return DELETED\n",
        ),
    ),
)
WRITTEN_AGAIN_WITHOUT_LOCK: Final = Mutant(
    "guess-is-written-again-without-a-lock",
    (),
    (("        if self.try_lock(w, WRITE):\n", "        if True:\n"),),
)
GUESSED_AGAIN: Final = Mutant(
    "guess-is-guessed-again-when-its-tombstone-is-lost",
    (),
    (("            if self._confirm() == DONE:\n", "            if self._confirm() == GONE:\n"),),
)
TOMBSTONE_AT_A_MINORITY: Final = Mutant(
    "tombstone-at-a-minority-is-taken-for-one-at-a-majority",
    (),
    (
        (
            "                outcome = self._confirm()\n            elif",
            "                outcome = DELETED\n            elif",
        ),
    ),
)
NUMBER_IS_EMPTY: Final = Mutant(
    "s10-number-of-a-tombstone-is-taken-for-empty",
    (),
    (
        (
            "            left = left and self.front[at] == self.ident\n"
            "            right = right and self.front[at + 1] == self.ident\n",
            "            left = left and not self.named(k, self.writer, 0)\n"
            "            right = right and not self.named(k, self.writer, 1)\n",
        ),
        ("            self._drop_numbers()\n", ""),
    ),
)
NUMBER_IS_LEFT: Final = Mutant(
    "s10-number-without-a-tombstone-is-left-where-it-is",
    (),
    (("            self._drop_numbers()\n", ""),),
)
COPY_IS_REMEMBERED: Final = Mutant(
    "s11-copy-that-was-not-written-back-is-remembered",
    (),
    (
        (
            "            # Else it stays in hand: it is linked, or its node was lost just now.\n",
            "            self.copied = copy\n",
        ),
        (
            "            m = self.top\n            value = self.value_of(m)\n",
            "            m = self.top\n"
            "            if getattr(self, 'copied', 0):\n"
            "                self.recycle(self.copied)\n"
            "            value = self.value_of(m)\n",
        ),
    ),
)
"""Those from LITERAL_ALGORITHM_3 on are shown step by step: it takes many schedules, or lost nodes,
to come by them."""

UNCHANGED: Final = Mutant("unchanged", ())
