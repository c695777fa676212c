"""Known-bad variants of the `fusee` store and of the view below it, for the checkers to catch.

Each is the shipped store with some functions replaced, run uncompiled (uncompiled.py). Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from kit.mutants.race import ReusesAtOnce
from kit.mutants.uncompiled import FUSEE, Change, always, replaced, store_in_force
from limpet.fault.explore.explorer import Exploration
from limpet.fault.matrix.fault_profile import FAULT_PROFILES
from limpet.shm import pool as pool_module
from limpet.shm.endpoint.fabric import words_tagged
from limpet.shm.endpoint.layout import NODE_SHIFT, VIEW
from limpet.shm.replicas.view import View
from limpet.stores.core.records import vacant_word
from limpet.stores.core.status import AGAIN, DONE, FULL
from limpet.stores.fusee.links import (
    BIRTH,
    DELETING,
    FINISH,
    LOSE,
    OLD,
    RULE_1,
    RULE_2,
    RULE_3,
    UPDATED,
    UPDATING,
)
from limpet.stores.fusee.parameters import FuseeParameters
from limpet.stores.race.index import is_frozen, is_vacant, is_valid
from limpet.stores.race.layout import FROZEN, OBJECT_MASK

SMALL: Final = 256 << 10
"""Bytes of a node where memory is used again at once; no blocks for more than two replicas."""
LARGE: Final = 1 << 20


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`changes` of the store; `view`: methods of the pool's view; `grace` in place of the pool's.

    `says`: the kinds of failure that show it. `exploration`: what it is explored with.
    """

    name: str
    says: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    view: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grace: Any = None
    node_size: int = LARGE
    exploration: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def parameters(self, schedules: int) -> Exploration:
        """Of an exploration that shows it."""
        chosen = {
            "seed": 1, "crashes": 0, "stalls": 0, "value_size": 40, "schedules": schedules,
            **self.exploration,
        }  # fmt: skip
        clients = chosen["program"].count("|") + 1
        return Exploration(store="fusee", clients=clients, **chosen)


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Make the pools of this block the mutant's."""
    with (
        store_in_force(FUSEE, ("fusee/store", "Fusee"), mutant.changes),
        crowded(mutant.node_size),
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, method in mutant.view.items():
            patch.setattr(View, name, method)
        if mutant.grace:
            patch.setattr(pool_module, "Grace", mutant.grace)
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


def room_of(store: Any, key: bytes) -> int:
    """Which slot an insert of the key would choose now."""
    index, place = store.index, store.place
    index.look_up(place, key)
    return int(index.address(place, index.room(place)))


def backup_of(store: Any, slot: int, k: int) -> int:
    """Where that slot of the key that was looked up last is on backup `k`."""
    return int(store.tables.backup(slot, store.place.head, k))


# ---- writers of slots ----------------------------------------------------------------------------


def deletes_by_nothing(self: Any, place: Any, slot: int) -> int:
    word = place.word
    if word & FROZEN:
        return FULL
    self.slot.select(slot, place.head)
    self.round.begin(DELETING, self.slot.link_address, word, 0)
    old = self.client.log(word & OBJECT_MASK, self.slot.link_address | OLD)
    won = self.slot.write(word, 0)
    self.client.release(old)
    return DONE if won else AGAIN


def reports_success(outcome_of: Any) -> Any:
    def run(self: Any, *of: Any) -> int:
        outcome = outcome_of(self, *of)
        return DONE if outcome == AGAIN else int(outcome)

    return run


def losing_insert_reports_success(withdraw: Any) -> Any:
    def run(self: Any, desired: int, hurry: bool) -> int:
        return int(withdraw(self, desired, hurry)) if hurry else DONE

    return run


def decides_unchecked(self: Any, vacant: int, desired: int) -> bool:
    self.endpoint.cas(self.slot.address, vacant, desired)
    self.endpoint.wait()
    return True


def looks_at_the_primary_only(rival_found: Any) -> Any:
    def run(self: Any, place: Any, key: bytes, own: int, attempt: int) -> bool:
        self.index.read_row(place, 1)
        return bool(rival_found(self, place, key, own, attempt))

    return run


def replaces_without_a_hand(self: Any, place: Any, slot: int, desired: int) -> int:
    word = place.word
    if word & FROZEN:
        return FULL
    self.slot.select(slot, place.head)
    self.round.begin(UPDATING, self.slot.link_address, word, desired)
    self.client.retarget(0, self.slot.link_address)
    if self.slot.write(word, desired):
        self.client.drop(0)
    else:
        self.client.release(0)
    self.client.heap.free(word & OBJECT_MASK)
    return DONE


def announces_without_a_look(announce: Any) -> Any:
    def run(self: Any) -> None:
        self.agree = lambda: None
        announce(self)
        del self.agree

    return run


def announces_afterwards(swap: Any) -> Any:
    def run(self: Any, place: Any, slot: int, desired: int) -> int:
        outcome = int(swap(self, place, slot, desired))
        self.tables.swapped = True
        return outcome

    return run


def withdraws_and_keeps(self: Any, desired: int, hurry: bool) -> int:
    if self.slot.resolve(desired & OBJECT_MASK, self.round.link_address, hurry):
        self.client.drop(0)
        return DONE
    self.client.drop(0)
    self.spare = desired & OBJECT_MASK
    return AGAIN


def makes_it_of_the_same(make_object: Any) -> Any:
    def run(self: Any, place: Any, key: bytes, value: bytes, size: int, way: Any) -> int:
        reference = vars(self.writer).pop("spare", 0)
        if reference:
            self.client.log(reference, 0)
            return int(reference)
        return int(make_object(self, place, key, value, size, way))

    return run


# ---- SNAPSHOT ------------------------------------------------------------------------------------


def writes_by_value(self: Any, old: int, new: int) -> bool:
    """How a round has ended is said by what the primary has."""
    win = self.evaluate_rules(self.cas_backups(old, new), old, new)
    if win == FINISH:
        return bool(self.read() == new)
    if win == LOSE:
        self._await(old)
        return False
    if win != RULE_1:
        self.change_backups(new)
    self.endpoint.wait()
    self._mark_end(old, new)
    was = self.endpoint.cas(self.address, old, new)
    self.endpoint.wait()
    return was in (old, new)


def evaluates_without_a_look(self: Any, ours: bool, old: int, new: int) -> int:
    if ours:
        return RULE_1
    self.endpoint.wait()
    k = self._majority()
    if k:
        return RULE_2 if self.seen[k] == new else LOSE
    return RULE_3 if self._least() == new else LOSE


def helps_without_a_look(self: Any, old: int) -> None:
    if self._look_at_backups(old) and not (self.sequential and self.seen[1] == old):
        self._fill(old)
        winner = self._winner()
        self.change_backups(winner)
        self.endpoint.wait()
        self._mark_end(old, winner)
        self.endpoint.cas(self.address, old, winner)
        self.endpoint.wait()


def waits_without_help(self: Any, old: int) -> None:
    attempt = 0
    while self.read() == old:
        self.endpoint.wait()
        attempt += 1
        self.endpoint.pause(attempt)


def voids_the_first_backup_first(self: Any, vacant: int) -> None:
    ticket = self.tables.ticket()
    held = self.client.log(ticket, self.link_address)
    lost = self.endpoint.cas(self.address, vacant, ticket) != vacant
    self.endpoint.wait()
    if not lost:
        for k in range(1, self.backups + 1):
            self._clear(k, ticket)
    self.client.drop(held)


def keeps_undecided(values: list[int], birth: Any, number: Any) -> int:
    for value in values:
        if is_frozen(value):
            return value
    first = values[0]
    if all(value == first for value in values):
        return first
    for value in values:
        if not is_vacant(value) and birth(value) == UPDATED:
            return value
    for value in values:
        if is_vacant(value):
            return value
    return int(number())


# ---- log entries ---------------------------------------------------------------------------------


def born(birth: int) -> Any:
    """Every object is written with this mark."""

    def change(begin: Any) -> Any:
        def run(self: Any, *arguments: Any) -> None:
            self.birth = birth
            begin(self, *arguments)

        return run

    return change


def never_takes_it_back(mark: Any) -> Any:
    def run(self: Any, reference: int, offset: int, word: int) -> None:
        if offset != BIRTH or word:
            mark(self, reference, offset, word)

    return run


# ---- phases --------------------------------------------------------------------------------------


def searches(look: Any) -> Any:
    """`Fusee._search`, with a look at the buckets before their phase has ended."""

    def run(self: Any, place: Any, key: bytes) -> Any:
        index = self.index
        index.choose(place, key)
        index.post_row(place, 0)
        look(index, place)
        self.endpoint.wait()
        return self.objects.value() if index.match(place, key, 0, True) else None

    return run


def looks_at_a_ticket(index: Any, place: Any) -> None:
    index.row_arrived(place, 0)


def looks_at_words(index: Any, place: Any) -> None:
    index.tagged[0] = words_tagged(index.words, 0, 32, place.hash & 0xFF)


class LateWrite:
    """Writes an object in the phase of the first CAS of a slot that has it, before that CAS."""

    def __init__(self) -> None:
        self.write: Any = None

    def note(self, write_hashed: Any) -> Any:
        """In place of the write of an object: note it."""
        self.write = write_hashed

        def run(logged: Any, *arguments: Any) -> None:
            logged.__dict__["later"] = arguments

        return run

    def first(self, change: Any) -> Any:
        """The change of a slot, with the write of the noted object before it."""

        def run(owner: Any, *arguments: Any) -> Any:
            objects = owner.logged if hasattr(owner, "logged") else owner.objects
            later = objects.__dict__.pop("later", None)
            if later:
                self.write(objects, *later)
            return change(owner, *arguments)

        return run


IN_ONE_PHASE: Final = LateWrite()
IN_ONE_PHASE_OF_RACE: Final = LateWrite()
RACE_IN_ONE_PHASE: Final = (
    Change("core/records", "Objects.write_hashed", IN_ONE_PHASE_OF_RACE.note),
    Change("race/slots", "Slots.replace", IN_ONE_PHASE_OF_RACE.first),
    Change("race/slots", "Slots.insert", IN_ONE_PHASE_OF_RACE.first),
)
"""The same in `race`, where object and slot are on one node: it holds."""

# ---- the cache -----------------------------------------------------------------------------------


def guesses(object_first: bool = False, compares: bool = True) -> Any:
    """`Fusee._guess`, in another order, or without a look at the slot's word."""

    def run(self: Any, place: Any, key: bytes) -> int:
        at = self.cache.find(place.hash)
        if at < 0 or not self.cache.trusts(at):
            return 0
        guess = self.cache.word(at)
        if not is_valid(guess) or not place.base:
            return 0
        slot = self.index.address(place, self.cache.index(at))
        if object_first:
            self.objects.load(guess & OBJECT_MASK)
            self.endpoint.wait()
            word = self.endpoint.load(slot)
            self.endpoint.wait()
        else:
            word = self.endpoint.load(slot)
            if (slot ^ guess) >> NODE_SHIFT & 0xFF:
                self.endpoint.wait()
            self.objects.load(guess & OBJECT_MASK)
            self.endpoint.wait()
        self.cache.judge(at, word)
        if compares and word != guess:
            if not is_valid(word) or word >> 56 != place.hash & 0xFF:
                return 0
            self.objects.load(word & OBJECT_MASK)
            self.endpoint.wait()
        place.word = word
        return int(slot) if self.objects.key_is(key) else 0

    return run


# ---- the view ------------------------------------------------------------------------------------


def renews_at_once(self: Any) -> None:
    self.find_replicas()
    self.looked = self.glanced = True


def renews_with_what_it_finds(self: Any) -> None:
    self.find_replicas()
    while self.view.unsettled():
        self.view.settle()
        self.find_replicas()
    self.looked = self.glanced = True


def reads_as_others(self: Any) -> None:
    if not self.looked or self.endpoint.load(VIEW) != self.viewed:
        self.renew()


# ---- the variants --------------------------------------------------------------------------------

SLOT: Final = "fusee/snapshot"
WRITER: Final = "fusee/slots"
TABLES: Final = "fusee/tables"
THREE: Final[Mapping[str, Any]] = {"parameters": {"replicas": 3}, "nodes": 3}
DUPLICATE: Final = {"program": "ic|id dd|ic"}
"""Two inserts of one key may choose two slots."""
PINNED: Final = replaced("race/hash_store", "HashStore.glance_by", lambda self, glance: None)
"""Gets have pins, as where memory is not hardware-coherent. Variants of those without pins are in
tests/stores/test_glance.py."""
HASTY: Final = (replaced(SLOT, "PATIENCE", 2), replaced(WRITER, "PATIENCE", 2))
"""Rounds are completed, and made void, more often."""
_EXPLORED_TRAPS: Final = (
    Mutant(
        "f1-deletes-propose-nothing", ("history", "check"),
        (replaced(WRITER, "ReplicatedSlots.remove", deletes_by_nothing),),
        exploration={"program": "da|da"},
    ),
    Mutant(
        "f2-losing-insert-reports-success", ("history",),
        (Change(WRITER, "ReplicatedSlots._withdraw", losing_insert_reports_success),),
        exploration={"program": "ic|id"},
    ),
    Mutant(
        "f3-numbers-come-again", ("history", "check", "leaked", "no end"),
        (replaced(TABLES, "ReplicatedTables.ticket", lambda self: vacant_word(7)),),
        exploration={"program": "da|da"},
    ),
    Mutant(
        "f3-addresses-come-again", ("history", "check", "leaked", "no end", "client 0", "client 1"),
        grace=ReusesAtOnce, node_size=SMALL,
        exploration={"program": "ua ua|ub ga|ua", "value_size": 3400},
    ),
    Mutant(
        "f4-outcome-by-value", ("history", "check"),
        (replaced(SLOT, "ReplicatedSlot.write", writes_by_value),),
        exploration={"program": "da|ua ia|ga", "stalls": 1},
    ),
    Mutant(
        "f5-free-before-the-round-has-ended", ("history", "check", "client 0", "client 1"),
        (replaced(SLOT, "ReplicatedSlot._await", lambda self, old: None),),
        exploration={"program": "ua|ua|ga", "seed": 5},
    ),
    Mutant(
        "f6-slot-is-not-compared", ("history", "client 0"),
        (replaced("fusee/store", "Fusee._guess", guesses(compares=False)), PINNED),
        exploration={"program": "ga ga|ua"},
    ),
    Mutant(
        "f8-primary-cas-unchecked", ("history", "check"),
        (replaced(WRITER, "ReplicatedSlots._decide", decides_unchecked), *HASTY),
        # one run in thousands shows it
        exploration={"program": "ic|id", "stalls": 1, "seed": 4, "schedules": 40_000},
    ),
    Mutant(
        "f10-no-look-for-rivals", ("history", "check"),
        (replaced(WRITER, "ReplicatedSlots._rival_found", lambda *arguments: False),),
        exploration={**DUPLICATE, "seed": 18},
    ),
    Mutant(
        "f10-rivals-on-the-primary-only", ("history", "check"),
        (Change(WRITER, "ReplicatedSlots._rival_found", looks_at_the_primary_only),),
        exploration={**DUPLICATE, "seed": 7},
    ),
    Mutant(
        "f11-nobody-waits-for-who-is-in-the-old-view", ("history", "check", "client 0"),
        view={"_quiet": always},
        exploration={"program": "ua ga|ga ua|da", "node_failures": 1, **THREE},
    ),
)  # fmt: skip

OBJECT_BEFORE_SLOT: Final = Mutant(
    "f7-object-before-the-slot",
    (),
    (replaced("fusee/store", "Fusee._guess", guesses(object_first=True)), PINNED),
)
RULES_UNCHECKED: Final = Mutant(
    "f8-rules-without-a-look-at-the-primary",
    (),
    (replaced(SLOT, "ReplicatedSlot.evaluate_rules", evaluates_without_a_look),),
)
HELP_UNCHECKED: Final = Mutant(
    "help-without-a-look-at-the-primary",
    (),
    (replaced(SLOT, "ReplicatedSlot.help", helps_without_a_look),),
)
NEVER_VOIDS: Final = Mutant(
    "insert-waits-for-who-is-in-its-slot",
    (),
    (replaced(WRITER, "ReplicatedSlots._loses_patience", lambda self, attempt: False),),
)
UNDECIDED_KEPT: Final = Mutant(
    "undecided-inserts-are-kept", (), (replaced("fusee/restoring", "chosen", keeps_undecided),)
)
MARKED_AT_ONCE: Final = Mutant(
    "inserts-are-marked-at-once",
    (),
    (
        Change("fusee/log", "LoggedObjects._begin", born(UPDATED)),
        Change("fusee/log", "LoggedObjects.mark", never_takes_it_back),
    ),
)
SAME_OBJECT: Final = Mutant(
    "f9-insert-again-with-the-same-object",
    (),
    (
        Change("race/hash_store", "HashStore.make_object", makes_it_of_the_same),
        replaced(WRITER, "ReplicatedSlots._withdraw", withdraws_and_keeps),
    ),
)
INSERT_UNCHECKED: Final = Mutant(
    "insert-without-a-look-at-the-primary",
    (),
    (replaced(WRITER, "ReplicatedSlots._still_has", lambda self, vacant: True),),
)
VOIDS_FIRST_BACKUP_FIRST: Final = Mutant(
    "void-clears-the-first-backup-first",
    (),
    (replaced(SLOT, "ReplicatedSlot.void", voids_the_first_backup_first),),
)
ACTS_EARLY: Final = Mutant(
    "acts-before-others-have-left-the-old-view",
    (),
    (replaced(TABLES, "ReplicatedTables.renew", renews_at_once),),
)
NEVER_TOLD: Final = Mutant(
    "updates-that-lose-to-a-swap-have-happened",
    (),
    (replaced(TABLES, "ReplicatedTables.saw_swaps", lambda self, ticket: None),),
)
ANNOUNCED_LATE: Final = Mutant(
    "swaps-are-announced-when-they-are-done",
    (),
    (
        replaced(TABLES, "ReplicatedTables.announce_swaps", lambda self: None),
        Change(WRITER, "ReplicatedSlots.swap", announces_afterwards),
    ),
)
ANNOUNCED_IN_AN_OLD_VIEW: Final = Mutant(
    "swaps-are-announced-in-the-view-of-the-last-operation",
    (),
    (Change(TABLES, "ReplicatedTables.announce_swaps", announces_without_a_look),),
)
SWAPS_BLINDLY: Final = Mutant(
    "swap-that-loses-has-happened",
    (),
    (Change(WRITER, "ReplicatedSlots.swap", reports_success),),
)
WITHOUT: Final = Mutant(
    "goes-on-without-a-node-that-is-back",
    (),
    (replaced(TABLES, "ReplicatedTables.renew", renews_with_what_it_finds),),
)
READS_WAIT: Final = Mutant(
    "f14-reads-wait-for-every-change-of-the-view",
    (),
    (replaced(TABLES, "ReplicatedTables.agree_to_read", reads_as_others),),
)
READS_ANYTHING: Final = Mutant(
    "reads-go-by-a-primary-that-is-about-to-change",
    (),
    (replaced(TABLES, "ReplicatedTables._bar", lambda self, before, after: None),),
)
"""These are shown step by step: it takes many schedules to come by them."""

PROPOSED_UNWRITTEN: Final = Mutant(
    "object-and-proposals-in-one-phase",
    (),
    (
        Change("fusee/log", "LoggedObjects.write_hashed", IN_ONE_PHASE.note),
        Change(SLOT, "ReplicatedSlot.propose", IN_ONE_PHASE.first),
    ),
)
"""Shown by posted verbs that are late."""

OWN: Final = (
    Mutant(
        "a-ticket-is-looked-at-before-wait", ("client 0", "client 1"),
        (replaced("fusee/store", "Fusee._search", searches(looks_at_a_ticket)),),
        exploration={"program": "ga|ga"},
    ),
    Mutant(
        "words-are-looked-at-before-wait", ("history",),
        (replaced("fusee/store", "Fusee._search", searches(looks_at_words)),),
        exploration={"program": "ga|ga"},
    ),
    Mutant(
        "updates-are-not-marked", ("history", "check"),
        (Change("fusee/log", "LoggedObjects._begin", born(0)),),
        exploration={"program": "ua ga|ga", "node_failures": 1},
    ),
    Mutant(
        "loser-does-not-help", ("no end",),
        (replaced(SLOT, "ReplicatedSlot._await", waits_without_help),),
        exploration={"program": "ua|ua", "crashes": 1},
    ),
    Mutant(
        "losing-delete-reports-success", ("history",),
        (Change(WRITER, "ReplicatedSlots.remove", reports_success),),
        exploration={"program": "da|ua ga"},
    ),
    Mutant(
        "old-object-is-not-held", ("leaked",),
        (replaced(WRITER, "ReplicatedSlots.replace", replaces_without_a_hand),),
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
HASTE: Final = Mutant("hasty", (), HASTY)
