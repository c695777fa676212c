"""Known-bad variants of the `fusee` store and of the view below it, for the checkers to catch.

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

from kit.mutants.race import GROWING, ReusesAtOnce
from kit.mutants.source import from_source
from limpet.fault.explore.explorer import Exploration
from limpet.fault.matrix.fault_profile import FAULT_PROFILES
from limpet.shm import pool as pool_module
from limpet.stores import pool as stores_pool
from limpet.stores.fusee.parameters import FuseeParameters

_PACKAGE: Final = (
    "log",
    "cache",
    "reconcile",
    "tables",
    "restoring",
    "check",
    "snapshot",
    "growth",
    "store",
)
SOURCES: Final = (
    "shm/clients/unique_ids.py",
    "stores/records.py",
    *GROWING,
    *(f"stores/fusee/{name}.py" for name in _PACKAGE),
)
Change = tuple[str, str]
SMALL: Final = 256 << 10
"""Bytes of a node where memory is used again at once; no blocks for more than two replicas."""
LARGE: Final = 1 << 20


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`changes` of the store's source, `view` of that of the view; `grace` in place of the pool's.

    `says`: the kinds of failure that show it. `exploration`: what it is explored with.
    """

    name: str
    says: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    view: tuple[Change, ...] = ()
    grace: Any = None
    node_size: int = LARGE
    exploration: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def parameters(self, schedules: int) -> Exploration:
        """Of an exploration that shows it."""
        chosen = {"seed": 1, "crashes": 0, "stalls": 0, "value_size": 40, **self.exploration}
        clients = chosen["program"].count("|") + 1
        return Exploration(store="fusee", schedules=schedules, clients=clients, **chosen)


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Have pools made meanwhile be the mutant's."""
    with pytest.MonkeyPatch.context() as patch:
        made = from_source(SOURCES, "Fusee", *mutant.changes)
        patch.setattr(stores_pool, "store_class", lambda kind: made)
        if mutant.view:
            view = from_source(("shm/replicas/view.py",), "View", *mutant.view)
            patch.setattr(pool_module, "View", view)
        if mutant.grace:
            patch.setattr(pool_module, "Grace", mutant.grace)
        with crowded(mutant.node_size):
            yield


@contextlib.contextmanager
def crowded(node_size: int) -> Iterator[None]:
    """Have new stores be one subtable, so that all keys meet; the explorer's nodes of this size.

    With several nodes, the explorer's four keys and their slots would be on different ones.
    """
    for_pool = FuseeParameters.for_pool.__func__  # type: ignore[attr-defined]

    def one_subtable(cls: Any, *pool: Any, **parameters: Any) -> Any:
        made = for_pool(cls, *pool, **{"cache_size": 64, "groups": 2, **parameters})
        return dataclasses.replace(made, subtables=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FuseeParameters, "for_pool", classmethod(one_subtable))
        for kind in ("fusee", "fusee-cr", "fusee-nc"):
            sized = dataclasses.replace(FAULT_PROFILES[kind], explorer_node_size=node_size)
            patch.setitem(FAULT_PROFILES, kind, sized)
        yield


THREE: Final[Mapping[str, Any]] = {"parameters": {"replicas": 3}, "nodes": 3}
DUPLICATE: Final = {"program": "ic|id dd|ic"}
"""Two inserts of one key may choose two slots."""
HASTY: Final = (
    'PATIENCE: Final = 8\n"""How often a loser looks',
    'PATIENCE: Final = 2\n"""How often a loser looks',
)
"""Rounds are completed, and made void, more often."""

REMOVE: Final = """        ticket = self._ticket()
        self._begin(DELETING, slot, word, ticket)
"""
LOST: Final = "            return self._withdraw(desired, False)\n"
LATER_LOOK: Final = """            still = self.endpoint.load(slot) == old
            self.endpoint.wait()
            if not still:
                return self._has_won(old, new)
"""
AWAIT: Final = """                self._await(slot, old)
                return False
"""
OUTCOME: Final = "        return was in (old, new) or self._has_won(old, new)\n"
HAS_WON: Final = """        won: bool = self.logged.death(old & OBJECT_MASK) == new
        self.endpoint.wait()
        return won
"""
GUESS: Final = """        self.word = self.endpoint.load(slot)
        # ORDER: the object after the slot. On another node, that takes a round trip of its own.
        if (slot ^ guess) >> NODE_SHIFT & 0xFF:
            self.endpoint.wait()
        self.objects.load(guess & OBJECT_MASK)
        self.endpoint.wait()
"""
OBJECT_FIRST: Final = """        self.objects.load(guess & OBJECT_MASK)
        self.endpoint.wait()
        self.word = self.endpoint.load(slot)
        self.endpoint.wait()
"""
WON: Final = "        if not won:\n            return self._withdraw(desired, True)\n"
MAKE: Final = """        reference = self._make(key, value, size)
        if not reference:
            return NO_MEMORY
        desired = (self.hash & 0xFF) << 56 | reference
        slot = self._guess(key) if known else 0
"""
KEPT: Final = """        reference = self.__dict__.pop("spare", 0)
        if reference:
            self.client.hold(reference, 0)
"""
GIVE_UP: Final = """        self.client.aim(0, 0)
        return AGAIN

    def _rival_found("""
KEEP: Final = """        self.client.keep(0)
        self.spare = desired & OBJECT_MASK
        return AGAIN

    def _rival_found("""
RIVAL: Final = """        if self._rival_found(key, index, attempt):
            return self._withdraw(desired, True)
"""
STILL_HELPING: Final = """            still = self.endpoint.load(slot) == old
            self.endpoint.wait()
            if still:
                # ORDER"""
RENEW: Final = """        while not self._look() or self.view.unsettled():
            self.view.settle()
"""
GLANCE: Final = """        if not self.glanced or self.endpoint.load(VIEW) != self.viewed:
            self._glance()
"""
NUMBER: Final = "vacant_word(self.tickets.take())"
BIRTH: Final = "self.logged.birth = UPDATED if updates else 0"
HELP: Final = "            if attempt > PATIENCE:\n                self._help(slot, old)\n"
HOLD: Final = """        old = self.client.hold(word & OBJECT_MASK, self.at_home | OLD)
        if self._round"""
RELEASE: Final = """        self.client.release(old)
        return DONE
"""
_EXPLORED_TRAPS: Final = (
    Mutant(
        "f1-deletes-propose-nothing", ("history", "check"),
        ((REMOVE, REMOVE.replace("self._ticket()", "0")),),
        exploration={"program": "da|da"},
    ),
    Mutant(
        "f2-losing-insert-reports-success", ("history",),
        ((LOST, LOST.replace("self._withdraw(desired, False)", "DONE")),),
        exploration={"program": "ic|id"},
    ),
    Mutant(
        "f3-numbers-come-again", ("history", "check", "leaked", "no end"),
        ((NUMBER, "vacant_word(7)"),),
        exploration={"program": "da|da"},
    ),
    Mutant(
        "f3-addresses-come-again", ("history", "check", "leaked", "no end", "client 0", "client 1"),
        grace=ReusesAtOnce, node_size=SMALL,
        exploration={"program": "ua ua|ub ga|ua", "value_size": 3400},
    ),
    Mutant(
        "f4-outcome-by-value", ("history", "check"),
        (
            (HAS_WON, "        return self.endpoint.load(self._go_to(self.at_home)) == new\n"),
            (OUTCOME, "        return was in (old, new)\n"),
        ),
        exploration={"program": "da|ua ia|ga", "stalls": 1},
    ),
    Mutant(
        "f5-free-before-the-round-has-ended", ("history", "check", "client 0", "client 1"),
        ((AWAIT, AWAIT.replace("self._await(slot, old)", "pass")),),
        exploration={"program": "ua|ua|ga", "seed": 5},
    ),
    Mutant(
        "f6-slot-is-not-compared", ("history", "client 0"),
        (("        if self.word != guess:\n", "        if False:\n"),),
        exploration={"program": "ga ga|ua"},
    ),
    Mutant(
        "f8-primary-cas-unchecked", ("history", "check"),
        ((WON, WON.replace("not won", "False")), HASTY),
        exploration={"program": "ic|id", "stalls": 1},
    ),
    Mutant(
        "f10-no-look-for-rivals", ("history", "check"), ((RIVAL, ""),), exploration=DUPLICATE
    ),
    Mutant(
        "f10-rivals-on-the-primary-only", ("history", "check"),
        (
            (
                "        if self._rival_found(",
                "        self._read_row(1)\n        if self._rival_found(",
            ),
        ),
        exploration=DUPLICATE,
    ),
    Mutant(
        "f11-nobody-waits-for-who-is-in-the-old-view", ("history", "check", "client 0"),
        view=(("while any(not self._quiet", "while False and any(not self._quiet"),),
        exploration={"program": "ua ga|ga ua|da", "node_failures": 1, **THREE},
    ),
)  # fmt: skip

OBJECT_BEFORE_SLOT: Final = Mutant("f7-object-before-the-slot", (), ((GUESS, OBJECT_FIRST),))
RULES_UNCHECKED: Final = Mutant("f8-rules-without-a-look-at-the-primary", (), ((LATER_LOOK, ""),))
HELP_UNCHECKED: Final = Mutant(
    "help-without-a-look-at-the-primary",
    (),
    ((STILL_HELPING, "            if True:\n                # ORDER"),),
)
NEVER_VOIDS: Final = Mutant(
    "insert-waits-for-who-is-in-its-slot",
    (),
    (("            if attempt % PATIENCE == PATIENCE - 1:\n", "            if False:\n"),),
)
UNDECIDED_KEPT: Final = Mutant(
    "undecided-inserts-are-kept", (), (("(is_vacant(first) or birth(first))", "True"),)
)
MARKED_AT_ONCE: Final = Mutant(
    "inserts-are-marked-at-once",
    (),
    (
        (BIRTH, "self.logged.birth = UPDATED"),
        ("            if updates and self.backups:\n", "            if False:\n"),
    ),
)
SAME_OBJECT: Final = Mutant(
    "f9-insert-again-with-the-same-object",
    (),
    ((MAKE, f"{KEPT}        else:\n    {MAKE}"), (GIVE_UP, KEEP)),
)
INSERT_UNCHECKED: Final = Mutant(
    "insert-without-a-look-at-the-primary", (), ((" or not still:", ":"),)
)
VOIDS_FIRST_BACKUP_FIRST: Final = Mutant(
    "void-clears-the-first-backup-first",
    (),
    (("for k in range(self.backups, 0, -1):", "for k in range(1, self.backups + 1):"),),
)
ACTS_EARLY: Final = Mutant(
    "acts-before-others-have-left-the-old-view", (), ((RENEW, "        self._look()\n"),)
)
WITHOUT: Final = Mutant(
    "goes-on-without-a-node-that-is-back",
    (),
    ((RENEW, RENEW.replace("not self._look()", "self._look() is None")),),
)
READS_WAIT: Final = Mutant(
    "f14-reads-wait-for-every-change-of-the-view",
    (),
    ((GLANCE, GLANCE.replace("not self.glanced", "not self.looked").replace("_glance", "_renew")),),
)
READS_ANYTHING: Final = Mutant(
    "reads-go-by-a-primary-that-is-about-to-change",
    (),
    (("            self._bar(before, self.view.states())\n", "            pass\n"),),
)
"""These are shown step by step: it takes many schedules to come by them."""

OWN: Final = (
    Mutant(
        "updates-are-not-marked", ("history", "check"), ((BIRTH, "self.logged.birth = 0"),),
        exploration={"program": "ua ga|ga", "node_failures": 1},
    ),
    Mutant(
        "loser-does-not-help", ("no end",), ((HELP, HELP.replace("attempt > PATIENCE", "False")),),
        exploration={"program": "ua|ua", "crashes": 1},
    ),
    Mutant(
        "losing-delete-reports-success", ("history",),
        (("        return DONE if won else AGAIN\n", "        return DONE\n"),),
        exploration={"program": "da|ua ga"},
    ),
    Mutant(
        "old-object-is-not-held", ("leaked",),
        (
            (HOLD, "        if self._round"),
            (RELEASE, RELEASE.replace("client.release(old)", "heap.free(word & OBJECT_MASK)")),
        ),
        exploration={"program": "ua|ga", "crashes": 1},
    ),
)  # fmt: skip
"""Steps of our own, left out."""

EXPLORED: Final = (*_EXPLORED_TRAPS, *OWN)
TRAPS: Final = (
    *_EXPLORED_TRAPS, OBJECT_BEFORE_SLOT, RULES_UNCHECKED, SAME_OBJECT, READS_WAIT,
)  # fmt: skip
"""Those that put a trap of FUSEE back in."""
UNCHANGED: Final = Mutant("unchanged", ())
HASTE: Final = Mutant("hasty", (), (HASTY,))
