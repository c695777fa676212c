"""`put_many` in the explorer, beside single operations; known-bad batches are caught."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.mutants.fusee import Mutant as FuseeMutant
from kit.mutants.fusee import in_force as fusee_in_force
from kit.mutants.race import Mutant, in_force, race_with
from kit.mutants.uncompiled import always, nothing, replaced

import limpet
from limpet.fault.explore.explorer import Exploration, explore
from limpet.fault.explore.sim_shrink import kind_of
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.slots import CLIENT_JOURNAL
from limpet.shm.endpoint.words import REFERENCE_MASK, TENTATIVE
from limpet.stores.race.batch import Batch
from limpet.stores.race.batch_puts import BatchPuts
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.slots import Slots
from limpet.stores.race.store import Race
from limpet.stores.status import LEFT, MADE, READY

pytestmark = pytest.mark.either_build(
    "the same lines on either build", but=["test_batches_hold[race-pa mabcd|pb mcad|gb gc-40]"]
)

COMPILED = BUILD == "compiled"
RUNS = 300 if COMPILED else 40
RUNS_OF_MUTANT = 2000
PROGRAMS = (
    "pa mabcd|pb mcad|gb gc",
    "pb mdc|pa mcd dc|ic da",
    "pa mcc mcd|mdc mcd|gc",
    "pa mab xabc|ga gb pb|xab ma",
)
"""The first put of a client has memory ready for its batch."""
VALUE = b"v" * 40


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not list(SHM_DIR.glob(f"limpet.limpet-*{os.getpid()}*"))


@pytest.mark.exhaustive("all programs", quick=["race-*-40"])
@pytest.mark.parametrize("value_size", [40, 3400])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", ["race", "rtx-race"])
def test_batches_hold(kind: str, program: str, value_size: int) -> None:
    """With values of 3400 bytes memory is scarce: most keys of a batch are put singly."""
    runs = RUNS if kind == "race" else RUNS // 4
    report = explore(
        Exploration(
            store=kind, program=program, value_size=value_size, schedules=runs, seed=5, crashes=2
        )
    )
    assert report.failures == ()
    assert report.crashes > runs / 8


@pytest.mark.exhaustive("a kind", quick=["race"])
@pytest.mark.parametrize("kind", ["race"])
def test_batches_hold_over_power_cuts(kind: str) -> None:
    parameters = Exploration(
        store=kind, program=PROGRAMS[0], value_size=40, schedules=RUNS // 2, seed=6,
        durable=True,
    )  # fmt: skip
    assert explore(parameters).failures == ()


@pytest.mark.exhaustive("all kinds and programs", quick=["fusee-pa*"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
def test_batches_of_rounds_hold(kind: str, program: str) -> None:
    runs = RUNS // 2
    parameters = Exploration(
        store=kind, program=program, value_size=40, schedules=runs, seed=5, crashes=2,
    )  # fmt: skip
    report = explore(parameters)
    assert report.failures == ()
    assert report.crashes > runs / 8


@pytest.mark.exhaustive("all programs", quick=["pa *gc-False"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_batches_of_rounds_hold_when_nodes_are_lost(program: str, replace: bool) -> None:
    parameters = Exploration(
        store="fusee", program=program + " n" * replace, value_size=40, schedules=RUNS // 2, seed=6,
        node_failures=1, replace=replace,
    )  # fmt: skip
    assert explore(parameters).failures == ()


@pytest.mark.exhaustive("transactions")
def test_batches_hold_beside_transactions() -> None:
    parameters = Exploration(
        store="rtx-race", program="pa mabcd|pb mdcba|tgaxbs gc", value_size=40, schedules=RUNS // 2,
        seed=7,
    )  # fmt: skip
    assert explore(parameters).failures == ()


BATCHED_ROUNDS = "fusee/batch_rounds"
ROUNDS = (
    FuseeMutant(
        "no-look-for-rivals", ("history", "check"),
        (replaced(BATCHED_ROUNDS, "BatchedSlots._find_rivals", nothing),),
        exploration={"program": "pa mcd gc|pb mdc gd|gc gd"},
    ),
    FuseeMutant(
        "goes-on-though-others-have-proposed", ("history", "check"),
        (replaced(BATCHED_ROUNDS, "BatchedSlots._all_ours", always),),
        exploration={"program": "pa mab|pb mba gb|ga gb", "seed": 5},
    ),
)  # fmt: skip


@pytest.mark.skipif(not COMPILED, reason="caught by many runs")
@pytest.mark.parametrize("mutant", ROUNDS, ids=lambda mutant: mutant.name)
def test_known_bad_rounds_of_batches_are_caught(mutant: FuseeMutant) -> None:
    with fusee_in_force(mutant):
        (failure,) = explore(mutant.parameters(RUNS_OF_MUTANT)).failures
    assert kind_of(failure.what) in mutant.says, failure.what


# ---- known-bad variants --------------------------------------------------------------------------


class NeverEnds(Batch):  # type: ignore[misc]
    """A batch does not end before a key that it has already."""

    def repeats(self, row: int) -> bool:
        return False


class EqualKeys(Race):  # type: ignore[misc]
    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.puts.batch = NeverEnds()


def batches_with(**phases: Any) -> Callable[[Any], int]:
    """A `batches_puts` with other phases."""
    made: Any = type("Puts", (BatchPuts,), phases)

    def batches_puts(self: Any) -> int:
        HashStore.batches_puts(self)
        own = self.puts
        self.puts = made(own.search, own.slots, own.allocator, own.client, own.replicas)
        return 0

    return batches_puts


def make_all(self: Any, batch: Any) -> int:
    """The client journal does not have the objects that are replaced."""
    self.allocator.begin_batch()
    count = 0
    for row in range(batch.count):
        if batch.states[row] == READY:
            reference = self.allocator.next_object(batch.nodes[row], batch.sizes[row], 1)
            if not reference:
                batch.states[row] = LEFT
                continue
            batch.places[row] = self.client.log(reference, batch.slots[row])
            batch.desired[row] = (batch.hashes[row] & 0xFF) << 56 | reference
            batch.references[count] = reference
            count += 1
    self.allocator.heap.take_all(batch.references, count)
    self.write_all(batch)
    return count


class FreesWithoutPlace(Slots):  # type: ignore[misc]
    """Frees what is replaced, and takes only the new object out of the client journal."""

    def _free_replaced(self, batch: Any) -> int:
        for row in range(batch.count):
            if batch.states[row] == MADE:
                if batch.updates[row]:
                    self.objects.heap.free(batch.words[row] & REFERENCE_MASK)
                self.client.drop(batch.places[row])
        return 0


class DecidesAtOnce(Slots):  # type: ignore[misc]
    """Inserts of a batch are decided without a look whether another slot has the key."""

    def _decide_all(self, search: Any, batch: Any) -> int:
        for row in range(batch.count):
            if batch.states[row] == READY:
                slot, desired = batch.slots[row], batch.desired[row]
                seen = self.endpoint.cas(slot, desired | TENTATIVE, desired)
                batch.states[row] = MADE if seen == desired | TENTATIVE else LEFT
        self.endpoint.wait()
        return 0


def log_all(self: Any, batch: Any) -> int:
    """The references of pairs are in the client journal before the addresses of their links."""
    journal = self.client.slot + CLIENT_JOURNAL + 16 * batch.first
    for index in range(batch.logged):
        self.endpoint.store(journal + 16 * index, batch.objects[index])
    return int(BatchPuts.log_all(self, batch))


class DropsAddressesFirst(Slots):  # type: ignore[misc]
    """The addresses of links leave the client journal before the references."""

    def _free_replaced(self, batch: Any) -> int:
        journal = self.client.slot + CLIENT_JOURNAL + 16 * batch.first
        for index in range(batch.logged):
            self.endpoint.store(journal + 16 * index + 8, 0)
        return int(Slots._free_replaced(self, batch))


MUTANTS = (
    Mutant("equal-keys", ("batch",), EqualKeys, program="pa mcc gc|pb pc|ga"),
    Mutant(
        "old-object-not-in-journal", ("leaked",),
        race_with(FreesWithoutPlace, batches_puts=batches_with(make_all=make_all)),
        program="pa mab|pb mab|ga",
    ),
    Mutant(
        "decides-at-once", ("history", "check"), race_with(DecidesAtOnce),
        program="pa mcd|pb mdc|ub gc da",
    ),
    Mutant(
        "references-before-addresses", ("check",),
        race_with(batches_puts=batches_with(log_all=log_all)), program="pa pb mab|ga gb|gc",
    ),
    Mutant(
        "addresses-leave-first", ("check",), race_with(DropsAddressesFirst),
        program="pa pb mab|ga gb|gc",
    ),
)  # fmt: skip  # fmt: skip


@pytest.mark.skipif(not COMPILED, reason="caught by many runs")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_known_bad_batches_are_caught(mutant: Mutant) -> None:
    parameters = Exploration(
        program=mutant.program, value_size=40, schedules=RUNS_OF_MUTANT, seed=2, processes=1
    )
    with in_force(mutant):
        (failure,) = explore(parameters).failures
    assert kind_of(failure.what) in mutant.says, failure.what


@pytest.mark.parametrize("lets_go", [False, True])
def test_a_batch_is_pinned_from_its_first_phase_to_its_last(lets_go: bool) -> None:
    """Between two phases another client replaces a key's object, and wants memory for many more.
    The batch has noted the old object; if that is used again, the batch frees another key's."""

    def find_all(self: Any, batch: Any) -> int:
        BatchPuts.find_all(self, batch)
        if lets_go:
            self.client.unpin()
        beside(self.client)
        if lets_go:
            self.client.pin()
        return 0

    def beside(client: Any) -> None:
        if client is pool.client and not done:
            done.append(True)
            other.put(b"a", VALUE)
            for number in range(2000):
                other.put(b"more %d" % number, VALUE)

    done: list[bool] = []
    mutant = Mutant(
        "not-pinned-between-phases", (), race_with(batches_puts=batches_with(find_all=find_all))
    )
    url = f"shm://limpet-batch-{os.getpid()}"
    with in_force(mutant), limpet.create(url, node_size="4MiB", block_size="16KiB") as pool:
        try:
            store = pool.store("race", name="store")
            with limpet.open(url) as beside_it:
                other = beside_it.store("race", name="store")
                for key in (b"a", b"b"):
                    other.put(key, VALUE)
                store.put(b"c", VALUE)
                store.put_many([(b"a", VALUE), (b"b", VALUE)])
                assert done
                if lets_go:
                    with pytest.raises(limpet.StoreCorrupt):
                        store.check()
                else:
                    store.check()
                    assert pool.audit()["leaked"] == 0
        finally:
            limpet.destroy(url)


def test_a_node_that_is_lost_in_a_phase_fails_its_own_keys_only() -> None:
    """It is lost when all slots are found and all objects written. The keys of the other node are
    put, once; then the first key of the lost one raises."""

    def write_all(self: Any, batch: Any) -> int:
        BatchPuts.write_all(self, batch)
        if batch.values[0] == VALUE:
            beside.fail_node(1)
        return 0

    mutant = Mutant("loses-a-node", (), race_with(batches_puts=batches_with(write_all=write_all)))
    url = f"shm://limpet-batch-{os.getpid()}"
    with in_force(mutant), limpet.create(url, nodes=2, node_size="4MiB") as pool:
        try:
            store = pool.store("race", name="store")
            keys = [b"%d" % number for number in range(8)]
            store.put_many([(key, bytes(40)) for key in keys])
            nodes = [store.index.node_of(store.index.table_of(key)) for key in keys]
            assert set(nodes) == {0, 1}
            with limpet.open(url) as beside, pytest.raises(limpet.NodeFailed):
                store.put_many([(key, VALUE) for key in keys])
            served = [key for key, node in zip(keys, nodes, strict=True) if node == 0]
            assert [store.get(key) for key in served] == [VALUE] * len(served)
            with pytest.raises(limpet.NodeFailed):
                store.get(keys[nodes.index(1)])
        finally:
            limpet.destroy(url)
