"""Subtables that are split while clients die, stand still and work on: nothing is lost."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.growth import (
    SMALL,
    Crowded,
    crowded,
    fill,
)
from kit.known_bad import first_failure
from kit.mutants.race import race_with
from kit.puppets import Puppet, verb_on, verb_on_address

import limpet
from limpet.fault.explore.explorer import Exploration, explore
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.fault_profile import FAULT_PROFILES, FaultProfile, profile_of
from limpet.fault.matrix.matrix_result import MatrixResult
from limpet.fault.matrix.operations import KEY, NEW, Operation
from limpet.shm import pool as pool_module
from limpet.shm.alloc.allocator import Allocator
from limpet.shm.alloc.slabs import Slab
from limpet.shm.clients.epoch import NEVER
from limpet.shm.endpoint.fabric import BUILD, hash64
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import INCARNATION_BITS, PIN
from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK, TENTATIVE
from limpet.shm.errors import NodeFailed
from limpet.stores.baselines.dtx.race import DtxRace, LoggedSplitter
from limpet.stores.core.status import DONE, NO_MEMORY
from limpet.stores.fusee.batch_rounds import BatchedSlots
from limpet.stores.fusee.growth import ReplicatedSplitter
from limpet.stores.fusee.links import OLD
from limpet.stores.fusee.snapshot import ReplicatedSlot
from limpet.stores.fusee.store import Fusee
from limpet.stores.race.index import is_split, is_vacant
from limpet.stores.race.layout import OBJECT_MASK, SPLIT, UNSET
from limpet.stores.race.parameters import GROUP_SIZE, GROUP_WORDS
from limpet.stores.race.splitter import Splitter
from limpet.stores.registry import KINDS, Kind
from limpet.stores.rtx.race import RtxRace, TransactionSplitter
from limpet.stores.transactions.try_commit import carry_out

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
RUNS = 24
REPLICATED = ("fusee", "swarm")
GROWING = ("race", "rtx-race", "dtx-race", *REPLICATED)
compiled_only = pytest.mark.skipif(not COMPILED, reason="takes many runs")
growing = pytest.mark.parametrize("kind", GROWING)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in GROWING:
        parameters = {name: value for name, value in SMALL.items() if name != "capacity"}
        known = FAULT_PROFILES[kind]
        nodes = known.parameters.get("replicas", 2) if kind in REPLICATED else 1
        parameters = {**known.parameters, **parameters}
        profile = FaultProfile(
            parameters, matrix_nodes=nodes, matrix_capacity=1, sources=known.sources,
            waits_for_stopped=known.waits_for_stopped,
        )  # fmt: skip
        monkeypatch.setitem(FAULT_PROFILES, kind, profile)


def warm(pool: Any, store: Any) -> None:
    """Have memory at hand."""
    store.get(KEY)
    size = store.parameters.subtable_size
    for node in range(pool.parameters.nodes):
        pool.allocator.replenish_all(node, [size, size, size, 100, 1000], store.replicas)


INSERT = Operation("insert", lambda pool, kv: kv.insert(KEY, NEW), None, NEW, warm, fresh=True)


def sound(result: MatrixResult) -> None:
    assert result.failures == ()
    assert result.steps > 100
    assert result.tried > 2


@growing
def test_insert_splits_a_subtable(small: None, make_url: Callable[[], str], kind: str) -> None:
    url = make_url()
    scene = Crowded(url, kind)
    try:
        before = scene.store.index_size()
        scene.store.insert(KEY, NEW)
        assert scene.store.index_size() > before
        scene.store.check()
        assert sorted(scene.store) == sorted((KEY, *scene.bystanders))
        assert len(scene.store) == 1 + len(scene.bystanders)
    finally:
        scene.close()
        limpet.destroy(url)


@pytest.mark.exhaustive("every kind", quick=["rtx-race"])
@compiled_only
@growing
def test_who_is_killed_splitting_has_inserted_or_not(small: None, kind: str) -> None:
    """`race` at every step, and each of its named points is met; those of logs are met in trees."""
    result = Matrix(kind, 150 if kind == "race" else RUNS, Crowded).killed(INSERT)
    sound(result)
    assert kind != "race" or {"subtable-made", "freezing", "split"} <= set(result.seen)


@pytest.mark.exhaustive("every step of two clients")
@pytest.mark.soak("every step of two clients", cases=["dtx-race*", "fusee*"])
@compiled_only
@growing
def test_who_goes_on_splitting_may_be_killed_too(small: None, kind: str) -> None:
    result = Matrix(kind, RUNS, Crowded).killed_twice(INSERT)
    sound(result)
    assert result.next_tried > 2


@pytest.mark.exhaustive("every kind", quick=["wait-race"])
@compiled_only
@growing
@pytest.mark.parametrize("fence", ["wait", "kill"])
def test_who_stands_still_splitting_is_worked_around(small: None, kind: str, fence: str) -> None:
    sound(Matrix(kind, RUNS, Crowded).stopped(INSERT, fence))


# ---- schedules -----------------------------------------------------------------------------------


def explored(
    kind: str, runs: int, search: Callable[[Exploration], Any] = explore, **more: Any
) -> Any:
    chosen = {"value_size": 16, "crashes": 1, "stalls": 1, "seed": 3, "parameters": SMALL, **more}
    count = runs if COMPILED else max(3, runs // 40)
    if more.get("program"):
        chosen["clients"] = more["program"].count("|") + 1
    profile = profile_of(kind)
    if kind in REPLICATED:  # groups of blocks take more of a node than blocks
        profile = dataclasses.replace(profile, explorer_node_size=2 << 20)
    with crowded(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAULT_PROFILES, kind, profile)
        return search(Exploration(store=kind, schedules=count, **chosen))


@pytest.mark.exhaustive(
    "more programs and kinds", quick=["ic gc?ua ga?db gb-*race", "ic gc?ua ga?db gb-fusee"]
)
@growing
@pytest.mark.parametrize("program", ["", "ic gc|ua ga|db gb", "ic dc|ic|pa gc", "ic|id gc|id"])
def test_store_holds_while_subtables_are_split(kind: str, program: str) -> None:
    report = explored(kind, 200, program=program, crashes=2, stalls=2)
    assert report.failures == ()
    assert not COMPILED or report.crashes > report.schedules / 10


@pytest.mark.exhaustive("every kind", quick=["True-fusee"])
@pytest.mark.parametrize("kind", REPLICATED)
@pytest.mark.parametrize("replace", [False, True])
def test_store_holds_while_nodes_are_lost_in_a_split(kind: str, replace: bool) -> None:
    report = explored(kind, 150, program="ic gc|ua ga|db gb", node_failures=1, replace=replace)
    assert report.failures == ()


@pytest.mark.exhaustive("every kind", quick=["race", "fusee"])
@pytest.mark.parametrize("kind", [kind for kind in GROWING if kind != "dtx-race"])
def test_store_holds_while_subtables_are_split_where_nobody_may_be_fenced(kind: str) -> None:
    assert explored(kind, 200, program="ic ga|ua gc", stalls=2, fence="wait").failures == ()


@compiled_only
@pytest.mark.parametrize("kind", sorted(set(GROWING) - {"swarm"}))
def test_store_holds_while_subtables_are_split_without_hardware_coherence(kind: str) -> None:
    assert explored(kind, 60, program="ic gc|ua ga|db gb", coherent=False).failures == ()


def only_read(splitter: Any, pointer: int) -> int:
    """Have the words of a subtable as if it was frozen."""
    splitter.read_words(pointer & ADDRESS_MASK)
    return 0


class NeverFreezes(Splitter):  # type: ignore[misc]
    def freeze(self, pointer: int) -> int:
        return only_read(self, pointer)


class FreezesNotAll(Splitter):  # type: ignore[misc]
    """One group is left out, and one behind the subtable is frozen."""

    def freeze(self, pointer: int) -> int:
        held = int(super().freeze(pointer + GROUP_SIZE))
        return held or only_read(self, pointer)


class FillsAgain(Splitter):  # type: ignore[misc]
    """Slots of a new half are vacant, and are filled while they are."""

    def obtain(self, place: Any, number: int, word: int) -> int:
        return int(super().obtain(place, number, 0))

    def fill(self, slot: int, word: int) -> int:
        self.endpoint.cas(slot, 0, word)
        return 0


class SplitsBeforeMoved(Splitter):  # type: ignore[misc]
    def split(self, place: Any) -> int:
        old, found = place.pointer, []
        for number in (2 * place.number, 2 * place.number + 1):
            found.append(self.obtain(place, number, UNSET))
            if not found[-1]:
                return NO_MEMORY
        if self.endpoint.load(place.entry) != old:
            return DONE
        self.freeze(old)
        self.client.log(old & REFERENCE_MASK, place.entry)
        self.endpoint.cas(place.entry, old, SPLIT)
        first, second = (pointer & ADDRESS_MASK for pointer in found)
        self.fill_pairs(place.depth, first, second)
        return DONE


MUTANTS = {
    "not-frozen": NeverFreezes,
    "filled-again": FillsAgain,
    "split-before-moved": SplitsBeforeMoved,
    "split-unfrozen": FreezesNotAll,
}


class NeverFreezesDecided(TransactionSplitter):  # type: ignore[misc]
    def freeze(self, pointer: int) -> int:
        return only_read(self, pointer)


class SplitsAgain(TransactionSplitter):  # type: ignore[misc]
    def is_current(self, place: Any, pointer: int) -> bool:
        return True


class SplitsBeforeFilled(RtxRace):  # type: ignore[misc]
    def carry_out(self, log: Any) -> bool:
        if carry_out(log):
            for entry in log.entries():
                if is_split(entry.new):
                    halves = {other.at: other.new for other in log.entries()}
                    self.splitter.fill_halves(entry, halves)
        return bool(carry_out(log))


def rtx_with(splitter: type[TransactionSplitter]) -> type[RtxRace]:
    """An `rtx-race` store with this splitter."""

    class Made(RtxRace):  # type: ignore[misc]
        def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
            super().__init__(pool, kind, name, parameters)
            self.splitter = splitter(pool, self.index, parameters, self)

    return Made


class NeverFreezesLogged(LoggedSplitter):  # type: ignore[misc]
    def freeze(self, pointer: int) -> int:
        return only_read(self, pointer)


class NotFrozenLogged(DtxRace):  # type: ignore[misc]
    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.splitter = NeverFreezesLogged(pool, self.index, parameters, self)


RTX_MUTANTS = {
    "R7": ("ic gc|ua ga da|db ga", rtx_with(NeverFreezesDecided)),
    "split-before-filled": ("ic gc|ua ga da|db ga", SplitsBeforeFilled),
    "split-again": ("ic gc|id ic|ua ga", rtx_with(SplitsAgain)),
}
"""Program and store."""


class NotEvenedOut(ReplicatedSlot):  # type: ignore[misc]
    def even_out(self, word: int) -> int:
        return 0


class HelperFrees(ReplicatedSlot):  # type: ignore[misc]
    """Takes a pair for unlinked when its slot has been frozen."""

    def _help_out(self, word: int) -> int:
        held = self.client.log(word & OBJECT_MASK, self.link_address | OLD)
        self.help(word)
        linked = self.read() == word
        self.endpoint.wait()
        if linked:
            self.client.drop(held)
        else:
            self.client.release(held)
        return 0


class SeesNothingFrozen(ReplicatedSlot):  # type: ignore[misc]
    def is_frozen_at(self, word: int) -> bool:
        return False


class LoserReturns(BatchedSlots):  # type: ignore[misc]
    def replace(self, place: Any, slot: int, desired: int) -> int:
        seeing, self.slot = self.slot, SeesNothingFrozen(self.tables, self.logged)
        try:
            return int(super().replace(place, slot, desired))
        finally:
            self.slot = seeing


class NeverFreezesReplicas(ReplicatedSplitter):  # type: ignore[misc]
    def freeze(self, pointer: int) -> int:
        return only_read(self, self.index.base_of(pointer))


def fusee_with(change: Callable[[Any], None]) -> type[Fusee]:
    """A `fusee` store that is changed when it has been made."""

    class Made(Fusee):  # type: ignore[misc]
        def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
            super().__init__(pool, kind, name, parameters)
            change(self)

    return Made


def _not_frozen_on_all_replicas(store: Any) -> None:
    store.splitter.slot = NotEvenedOut(store.tables, store.logged)


def _not_frozen(store: Any) -> None:
    store.splitter = NeverFreezesReplicas(
        store.pool, store.index, store.parameters, store.tables, store.splitter.slot
    )


def _loser_returns(store: Any) -> None:
    store.writer = store.slots = LoserReturns(store.index, store.tables, store.logged)


def _helper_frees(store: Any) -> None:
    store.writer.slot = HelperFrees(store.tables, store.logged)
    store.writer.other = HelperFrees(store.tables, store.logged)


REPLICATED_MUTANTS = {
    "not-frozen-on-all-replicas": ("ic gc|ua ga da|db ga", _not_frozen_on_all_replicas),
    "not-frozen": ("ic gc|ua ga da|db ga", _not_frozen),
    "loser-returns": ("ic gc|ua ga da|db ga", _loser_returns),
    "helper-frees": ("ic|id gc|id", _helper_frees),
}
"""Program, and what is changed."""


def caught(
    monkeypatch: pytest.MonkeyPatch, mutated: Any, program: str, how: str = "", **more: Any
) -> None:
    monkeypatch.setitem(globals(), "Mutated", mutated)
    monkeypatch.setitem(KINDS, "mutated", Kind(__name__, "Mutated"))
    found = explored("mutated", 6000, first_failure, program=program, stalls=2, **more)
    assert found, "no run has shown it"
    # a write that is lost in a split leaves the object that it has linked
    assert found.startswith(how or ("history", "check", "leaked")), found


@compiled_only
@pytest.mark.parametrize("name", MUTANTS)
def test_known_bad_growth_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    caught(monkeypatch, race_with(splitter=MUTANTS[name]), "ic gc|ua ga da|db ga")


@compiled_only
@pytest.mark.parametrize("name", RTX_MUTANTS)
def test_known_bad_growth_by_transactions_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    program, made = RTX_MUTANTS[name]
    how = "client" if name == "split-again" else ""  # there is no subtable to be frozen any more
    caught(monkeypatch, made, program, how)


@compiled_only
def test_growth_with_a_value_log_that_does_not_freeze_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caught(monkeypatch, NotFrozenLogged, "ic gc|ua ga da|db ga")


@pytest.mark.exhaustive("more variants", quick=["not-frozen*", "loser-returns"])
@compiled_only
@pytest.mark.parametrize("name", REPLICATED_MUTANTS)
def test_known_bad_growth_of_replicas_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    program, change = REPLICATED_MUTANTS[name]
    monkeypatch.setitem(
        FAULT_PROFILES,
        "mutated",
        dataclasses.replace(FAULT_PROFILES["fusee"], explorer_node_size=2 << 20),
    )
    caught(monkeypatch, fusee_with(change), program, crashes=2)


def test_frozen_slots_are_nobodys_rivals(pools: Any) -> None:
    """Kicked out, one would be vacant, and what is inserted there is lost."""
    pool = pools()
    store = pool.store("race", name="s")
    key = next(b"%d" % n for n in range(10_000) if not hash64(b"%d" % n) & 0xFF)
    store.insert(key, b"v")
    place, index = store.place, store.index
    pool.client.enter()
    try:
        assert index.look_up(place, key)
        store.splitter.freeze(place.pointer)
        assert index.look_up(place, key)
        assert not store.slots.rival(place, key, place.first + 8, 100)
        assert index.any_frozen()
    finally:
        pool.client.leave()
    store.update(key, b"w")
    store.insert(b"other", b"v")
    assert store.get(key) == b"w"
    store.check()


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_delete_that_stands_still_through_a_split_frees_no_linked_register(
    pools: Any, replicas: int
) -> None:
    """It stops before each of its CASes in turn, and others split its subtable meanwhile."""
    ended, steps = False, 0
    while not ended:
        steps += 1
        left = steps

        def reached(verb: str, address: int) -> bool:
            nonlocal left
            left -= verb == "cas"
            return verb == "cas" and left == 0

        pool = pools(nodes=replicas, node_size="4MiB", lease=0.02)
        store = pool.store("swarm", name="s", replicas=replicas, **SMALL)
        store.insert(b"c", b"old")
        still = Puppet(pools, pool.url, "swarm", name="s")
        still.store.insert(b"other", b"v")
        ended = still.begin(functools.partial(still.store.delete, b"c"), reached)
        size = store.index_size()
        for number in range(24):
            store.put(b"k%03d" % number, b"v")
        assert store.index_size() > size
        if not ended:
            still.go()
        store.check()
        assert store.get(b"c") is None
        store.put(b"c", b"new")
        assert store.get(b"c") == b"new"
        pools.destroy()
    assert steps > 2


@pytest.mark.parametrize("operation", ["update", "delete"])
def test_who_meets_a_frozen_slot_splits_no_half_that_has_the_key(
    pools: Any, operation: str
) -> None:
    """The half had no room for another pair with that key's hash, so it was split, too."""
    pool = pools(nodes=1, node_size="4MiB")
    store = pool.store("race", name="s", **SMALL)
    store.insert(b"c", b"v")
    fill(store, b"c", b"v")
    late, splits = (Puppet(pools, pool.url, "race", name="s") for _ in range(2))
    for puppet in (late, splits):
        puppet.store.put(b"c", b"v")
        puppet.pool.allocator.replenish_all(0, [SUBTABLE, SUBTABLE])
    plain = store
    entry, _ = look(plain, b"c")
    keys = [b"x%d" % number for number in range(1000)]
    full = next(key for key in keys if look(plain, key) == (entry, False))
    insert = functools.partial(splits.store.insert, full, b"v")
    assert not splits.begin(insert, verb_on_address("cas", entry))
    arguments = (b"c", b"w") if operation == "update" else (b"c",)
    work = functools.partial(getattr(late.store, operation), *arguments)
    pin = slot_address(late.pool.client.ident >> INCARNATION_BITS) + PIN
    # It has met a frozen slot, and is about to see to that.
    assert not late.begin(work, verb_on_address("swap", pin, 2))
    splits.go()
    for key in keys:
        if look(plain, b"c")[1] and look(plain, key)[1]:
            store.put(key, b"v")
    assert not look(plain, b"c")[1]
    size = store.index_size()
    late.go()
    assert store.index_size() == size
    assert store.get(b"c") == (b"w" if operation == "update" else None)
    store.check()


def look(plain: Any, key: bytes) -> tuple[int, bool]:
    """The entry of a key's subtable, and whether there is room for it."""
    plain.client.enter()
    try:
        plain.index.look_up(plain.place, key)
        return plain.place.entry, plain.index.room(plain.place) >= 0
    finally:
        plain.client.leave()


def test_an_insert_that_gives_way_leaves_its_slot_vacant(pools: Any) -> None:
    """Another one is about to decide on the key meanwhile; so no client would kick the slot out."""
    pool = pools(nodes=1, node_size="4MiB", lease=0.02)
    store = pool.store("swarm", name="s", replicas=1, capacity=50)
    store.insert(b"other", b"v")
    (base,) = [pointer & ADDRESS_MASK for pointer in store.checker.linked(0)[1].tolist()]
    first, second = (Puppet(pools, pool.url, "swarm", name="s") for _ in range(2))
    gave_way = 0

    def changes_again(verb: str, address: int) -> bool:
        nonlocal left
        left -= verb == "cas" and 0 <= address - base < store.parameters.subtable_size
        return left == 0

    for number in range(24 if COMPILED else 8):
        key = b"%d" % number
        for client in (first, second):
            left = 2
            assert not client.begin(
                functools.partial(client.store.insert, key, b"v"), changes_again
            )
        assert first.go()
        assert second.go()
        gave_way += second.store.stats()["retries"] > 0
        words = store.index.slots_of(base)[:, :, 1:].ravel().tolist()
        assert not [word for word in words if word & TENTATIVE and not is_vacant(word)]
        assert store.get(key) == b"v"
    assert gave_way
    store.check()


SUBTABLE: Final = 8 * GROUP_WORDS * SMALL["groups"]


class ReusesSubtablesAtOnce(Allocator):  # type: ignore[misc]
    """Memory of subtables, but not of pairs, is used again though a client may be writing there."""

    def _find_freed(self, slabs: list[Slab]) -> None:
        super()._find_freed(slabs)
        for slab in slabs:
            if slab.size_class == self.heap.size_class(SUBTABLE):
                slab.ripen(NEVER)


def updated_while_subtables_come_again(pools: Any) -> list[bool]:
    """Whether its subtable was used again as one, for each CAS before which an update stands still.

    Raises what a check finds, or AssertionError.
    """
    again, ended = [], False
    while not ended:
        pool = pools(nodes=2, node_size="4MiB", lease=20)
        store = pool.store("fusee", name="s", replicas=2, **SMALL)
        assert store.parameters.subtable_size == SUBTABLE
        store.insert(b"c", b"old")
        still = Puppet(pools, pool.url, "fusee", name="s")
        at_first = linked(store)
        update = functools.partial(still.store.update, b"c", b"new")
        ended = still.begin(update, verb_on("cas", number=len(again) + 1))
        freed: set[int] = set()
        keys: list[bytes] = []
        while len(keys) < 200 and not freed & linked(store):
            keys.append(b"k%03d" % len(keys))
            store.put(keys[-1], b"v")
            freed |= at_first - linked(store)
        again.append(bool(freed & linked(store)))
        assert ended or still.go()
        store.check()
        assert store.get(b"c") == b"new"
        assert [store.get(key) for key in keys] == [b"v"] * len(keys)
        pools.destroy()
    return again


def linked(store: Any) -> set[int]:
    """Pointers to all subtables of a store."""
    tables = range(store.parameters.subtables)
    return {pointer for table in tables for pointer in store.checker.linked(table)[1].tolist()}


@compiled_only
def test_subtables_do_not_come_again_while_somebody_may_write_there(pools: Any) -> None:
    *stopped, ended = updated_while_subtables_come_again(pools)
    assert len(stopped) > 3
    assert not any(stopped)
    assert ended, "that they come again, was not tried"


@compiled_only
def test_known_bad_reuse_of_replicated_subtables_is_caught(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "Allocator", ReusesSubtablesAtOnce)
    with pytest.raises(limpet.StoreCorrupt, match="not in use"):
        updated_while_subtables_come_again(pools)


def test_a_replacement_says_that_a_subtable_is_lost(pools: Any) -> None:
    """Subtables made while a node was away have no replica beside their directory's."""
    pool = pools(nodes=3, node_size="4MiB", lease=0.02)
    store = pool.store("fusee", name="s", replicas=2, **SMALL)
    pool.fail_node(0)
    for number in range(60):
        store.put(b"k%03d" % number, b"v")
    pool.replace_node(0)
    pool.fail_node(1)
    store.get(b"k000")
    pool.fail_node(2)
    with pytest.raises(NodeFailed, match="lost"):
        pool.replace_node(2)


def test_pairs_are_not_lost_with_another_subtable_of_their_directory(pools: Any) -> None:
    pool = pools(nodes=3, node_size="4MiB", lease=0.02)
    store = pool.store("fusee", name="s", replicas=2, **SMALL)
    keys = [b"k%03d" % number for number in range(115)]
    for key in keys[:100]:
        store.put(key, b"v")
    pool.fail_node(0)
    for key in keys[100:]:
        store.put(key, b"v")
    pool.replace_node(0)
    pool.fail_node(1)
    store.get(keys[0])
    pool.fail_node(2)
    there, lost = 0, 0
    for key in keys:
        try:
            there += store.get(key) is not None
        except NodeFailed:
            lost += 1
    assert there
    assert lost
    assert len(store.checker.pairs()) >= there
