"""Every operation of every registered store, killed and stopped at its steps; mutants caught."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.parts import IS_LONG

from limpet.fault.inject.stopping import StoppingEndpoint
from limpet.fault.matrix import crash_points, testbed
from limpet.fault.matrix.crash_matrix import DIMENSIONS, Matrix, uncovered
from limpet.fault.matrix.matrix_result import MatrixResult
from limpet.fault.matrix.operations import KEY, NEW, OLD, OPERATIONS, Operation, operations_of
from limpet.fault.matrix.testbed import StoreTestbed
from limpet.shm import pool as pool_module
from limpet.shm.alloc.blocks import BlockTable
from limpet.shm.alloc.heap import Heap
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.clients.client import Client
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import CLIENT_JOURNAL, CLIENT_JOURNAL_SIZE, DYING, state_word
from limpet.shm.endpoint.words import OWNER_MASK, PENDING, TENTATIVE
from limpet.shm.recovery import recover_client
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS

pytestmark = pytest.mark.either_build(
    "the same lines on either build",
    but=[
        "test_operation_happens_as_a_whole_or_not_at_all[race-update-killed]",
        "test_operation_happens_as_a_whole_or_not_at_all[race-insert-killed]",
    ],
)

LIMIT = 4 if BUILD == "compiled" else 3
VARIANTS = {kind for kind, found in KINDS.items() if found.fixed} | {"rtx-race"}
"""Kinds that are another one with other parameters, or that only grow in another way."""
BASELINES = {"clover", "dtx-race", "dtx-sherman", "pdpm"}
OWN_POINTS = {"loco", "rcuckoo", "rtx-sherman"}
TAKES_LONG = {"race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco"}
LONG = pytest.mark.skipif(not IS_LONG, reason="takes a minute: LIMPET_TEST_LONG=1")
PART = ("insert", "update", "delete")
"""Of variants and baselines, a part of the matrix will do."""
FEW = ("killed", "stopped, wait")
COSTLY = {"killed twice", "stopped, killed", "node lost", "succeeded"}
"""Those of an update will do; of `race`, of operations that differ in what they leave."""
THOROUGH = {"insert", "update", "delete", "put many, new key", "insert, new block", "make store"}
ROWS = [
    (kind, name, dimension)
    for kind in KINDS
    for name in operations_of(kind)
    for dimension in (
        DIMENSIONS if BUILD == "compiled" and kind not in VARIANTS | BASELINES else FEW
    )
    if (kind not in VARIANTS | BASELINES or name in PART)
    and (BUILD == "compiled" or kind == "race" or (kind == "fusee" and name in PART))
    and (
        IS_LONG
        or dimension not in COSTLY
        or name == "update"
        or (kind == "race" and name in THOROUGH)
    )
]
"""`make soak` takes all rows; `limpet drill matrix KIND` takes those of a kind, and more of the
steps."""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not list(SHM_DIR.glob(f"limpet.limpet-matrix-{os.getpid()}-*"))


def run_of(matrix: Matrix, operation: Operation, dimension: str) -> MatrixResult:
    return matrix.run(operation, dimension)


@functools.cache
def result_of(kind: str, name: str, dimension: str) -> MatrixResult:
    return run_of(Matrix(kind, LIMIT), operations_of(kind)[name], dimension)


@functools.cache
def past_the_dead(kind: str) -> MatrixResult:
    matrix = Matrix(kind, LIMIT)
    steps = matrix.steps(OPERATIONS["insert"])
    return matrix.past_the_dead([steps - 3, steps - 2, steps - 1])


@pytest.mark.exhaustive(
    "every operation of every kind", quick=["*-update-killed", "race-*-killed", "race-update-*"]
)
@pytest.mark.parametrize(("kind", "name", "dimension"), ROWS)
def test_operation_happens_as_a_whole_or_not_at_all(kind: str, name: str, dimension: str) -> None:
    result = result_of(kind, name, dimension)
    assert result.failures == ()
    assert result.verdict == "ok"
    assert result.tried >= min(result.steps, 2)
    assert result.steps > 0 or operations_of(kind)[name].reads
    assert result.next_tried > 0 or dimension != "killed twice"


@pytest.mark.exhaustive("every kind", quick=["race"])
@pytest.mark.parametrize("kind", KINDS if BUILD == "compiled" else ["race", "fusee"])
def test_insert_goes_past_a_dead_one_of_the_same_key(kind: str) -> None:
    assert past_the_dead(kind).failures == ()


@pytest.mark.skipif(BUILD != "compiled", reason="a pure build takes only some of the steps")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=LONG if kind in TAKES_LONG else ())
        for kind in sorted(KINDS.keys() - VARIANTS - BASELINES)
    ],
)
def test_every_named_crash_point_is_covered(kind: str) -> None:
    """Of a kind whose memory is that of `race`, those in its own packages."""
    points = crash_points.defined(kind)
    assert len(points) >= 12
    names = {
        name
        for name, path in points.items()
        if kind not in OWN_POINTS or any(f"stores/{part}/" in path for part in kind.split("-"))
    }
    dimensions = ("killed", "killed twice")
    results = [past_the_dead(kind)]
    results += [result_of(kind, name, one) for one in dimensions for name in OPERATIONS]
    # some points are few among the steps
    more = [(name, "killed") for name in ("insert", "delete") if kind == "loco"]
    more += [(name, "killed") for name in ("update", "make in vain", "put large")]
    more += [("insert, new block", "killed twice"), ("put large", "killed twice")]
    more += [(name, "killed") for name in OPERATIONS]
    for name, one in more:
        if uncovered(results) & names:
            results.append(run_of(Matrix(kind, 250), OPERATIONS[name], one))
    assert names
    assert uncovered(results) & names == set()


def test_report_names_the_run_that_failed() -> None:
    def unlucky(url: str, kind: str, fence: str) -> StoreTestbed:
        made = StoreTestbed(url, kind, fence)
        made.inspect = lambda clients: testbed.demand(False, "nothing is right")  # type: ignore[method-assign]
        return made

    result = Matrix("race", 4, unlucky).killed(OPERATIONS["get"])
    assert result.verdict == "FAILED"
    assert result.failures[0] == "k=1, recovery first: Broken: nothing is right"


@pytest.mark.parametrize("where", ["prepare", "reset", "finish"])
def test_a_survivor_that_raises_is_a_verdict(where: str) -> None:
    """Whatever it is: another than the store's errors is told with its place."""

    def refuse(*_: Any) -> None:
        raise KeyError("not there")

    def made(url: str, kind: str, fence: str) -> StoreTestbed:
        scene = StoreTestbed(url, kind, fence)
        if where == "reset" and fence == "wait":
            scene.reset = refuse  # type: ignore[method-assign]
        return scene

    changes = {} if where == "reset" else {where: refuse}
    operation = dataclasses.replace(OPERATIONS["delete"], **changes)
    result = Matrix("race", 4, made).stopped(operation, "wait")
    assert result.verdict == "FAILED"
    at = "undisturbed" if where == "prepare" else "k=1"
    assert result.failures[0].startswith(f"{at}: KeyError: 'not there' ({__file__}:")
    assert result.failures[0].endswith("in refuse)")
    assert len(result.failures) == (1 if where == "prepare" else 5)


def without_steps(name: str) -> Operation:
    """It does nothing, to a key which is as it is to be."""
    return dataclasses.replace(
        OPERATIONS[name], run=lambda pool, kv: None, before=OLD, after=OLD
    )  # fmt: skip


@pytest.mark.exhaustive("every dimension", quick=["killed", "stopped*"])
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_a_read_may_have_no_step(dimension: str) -> None:
    result = run_of(Matrix("race", 60), without_steps("get"), dimension)
    assert (result.failures, result.verdict) == ((), "ok")
    assert (result.steps, result.tried) == (0, 0)
    assert result.runs > 0
    assert result.complete


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_what_changes_something_has_a_step(dimension: str) -> None:
    result = run_of(Matrix("race", 9), without_steps("update"), dimension)
    assert result.verdict == "FAILED"
    assert result.failures == ("undisturbed: it has no step to be killed at",)


def test_a_fault_that_never_takes_place_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the code that ships does not look at the fuse that stops."""
    monkeypatch.setattr(StoppingEndpoint, "on_verb", lambda self, verb, addr, words: words)
    result = Matrix("race", 9).stopped(OPERATIONS["delete"], "wait")
    assert result.failures == ("the fault took place at none of 7 steps",)


@pytest.mark.exhaustive("every dimension", quick=["killed", "stopped*"])
@pytest.mark.soak("every step of two clients", cases=["killed twice"])
@pytest.mark.skipif(BUILD != "compiled", reason="hundreds of runs")
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_without_a_limit_every_step_is_taken(dimension: str) -> None:
    """Also those of a recoverer, which are more than once as many."""
    result = run_of(Matrix("race", None), OPERATIONS["delete"], dimension)
    assert (result.failures, result.complete) == ((), True)
    assert result.tried == result.steps == 7
    if dimension == "killed twice":
        assert result.next_tried == result.next_steps > 7 * 12
    assert result_of("race", "make in vain", dimension).complete is False


@pytest.mark.parametrize("limit", [2, 9, 40, 400])
def test_a_limit_is_of_runs(limit: int) -> None:
    matrix = Matrix("race", limit)
    for cost in (1, 2, 12):
        for steps in (0, 1, 5, 100, 1000):
            assert len(matrix.chosen(steps, cost)) == min(steps, max(3, limit // cost))


# ---- mutants: known-bad variants, each of which the matrix must see -----------------------------


class Mutant:
    """A change to one of the pool's classes or functions, and the run that must fail for it."""

    def __init__(
        self,
        name: str,
        replaced: str,
        by: Any,
        operation: str,
        dimension: str = "killed",
        says: str = "leaked",
    ) -> None:
        self.name = name
        self.replaced = replaced
        self.by = by
        self.operation = operation
        self.dimension = dimension
        self.says = says


class ForgetsWhatItHolds(Client):
    """The client journal is only in private memory."""

    def log(self, reference: int, link_address: int) -> int:
        index = super().log(reference, link_address)
        self.endpoint.store(self.slot + CLIENT_JOURNAL + 16 * index, 0)
        return index


class ForgetsTheOldObject(Client):
    """The client journal has the new object only: "update" is one CAS, what could go wrong?"""

    def log(self, reference: int, link_address: int) -> int:
        index = super().log(reference, link_address)
        if link_address:
            self.endpoint.store(self.slot + CLIENT_JOURNAL + 16 * index, 0)
        return index


class FreesTheLinked(Heap):
    """Recovery frees what was in the dead client's journal, linked or not."""

    def settle(self, reference: int, link_address: int) -> bool:
        self.free(reference)
        return True


class TakesTentativeForLinked(Heap):
    def settle(self, reference: int, link_address: int) -> bool:
        if link_address and self.endpoint.load(link_address) & TENTATIVE:
            return False
        return super().settle(reference, link_address)


class OverlooksPending(BlockTable):
    def recover(self, node: int, client: int, grace: Any, region_of: Any) -> int:
        for word in self.words(node).tolist():
            if word >> 60 == PENDING and word & OWNER_MASK == client:
                return 0
        return super().recover(node, client, grace, region_of)


class GivesSpansBackFrontFirst(BlockTable):
    def release_span(self, node: int, first: int, word: int, stamp: int) -> int:
        words = self.words(node)
        released = int(self.move(node, first, word, stamp))
        for block in range(first + 1, first + self.tails(words, first) + 1):
            released += self.move(node, block, int(words[block]), stamp)
        return released


def recover_slot_first(
    client: Any, blocks: Any, regions: Any, grace: Any, slot: int, word: int
) -> dict[str, int]:
    """The slot is FREE, and its pin and journal count for nothing, before the blocks are
    returned."""
    endpoint, at = client.endpoint, slot_address(slot)
    pid, incarnation = word >> 36 & 0xFFFFFF, word & (1 << 36) - 1
    journal = [
        endpoint.load(at + CLIENT_JOURNAL + 8 * index) for index in range(2 * CLIENT_JOURNAL_SIZE)
    ]
    endpoint.cas(at, word, state_word(DYING, pid, incarnation))
    endpoint.cas(at, state_word(DYING, pid, incarnation), incarnation)
    for reference, link_address in zip(journal[::2], journal[1::2], strict=True):
        if reference:
            client.heap.settle(reference, link_address)
    for node in range(regions.nodes):
        blocks.recover(node, slot << 36 | incarnation, grace, regions.region_of)
    return {"clients": 1, "objects": 0, "blocks": 0}


def recover_blocks_only(
    client: Any, blocks: Any, regions: Any, grace: Any, slot: int, word: int
) -> dict[str, int]:
    """The client journal is not looked at."""
    for index in range(24):
        client.endpoint.store(slot_address(slot) + CLIENT_JOURNAL + 16 * index, 0)
    return recover_client(client, blocks, regions, grace, slot, word)


SPAN = b"S" * (9 << 14)
"""Takes a span of whole blocks."""
PUT_SPAN = Operation("put span", lambda pool, kv: kv.put(KEY, SPAN), OLD, SPAN)
MUTANTS = [
    Mutant("journal-not-shared", "Client", ForgetsWhatItHolds, "insert"),
    Mutant("old-object-not-held", "Client", ForgetsTheOldObject, "update"),
    Mutant("recovery-frees-linked", "Heap", FreesTheLinked, "insert", says="in use"),
    Mutant("tentative-taken-for-linked", "Heap", TakesTentativeForLinked, "insert"),
    Mutant("pending-overlooked", "BlockTable", OverlooksPending, "put span"),
    Mutant("slot-freed-first", "recover_client", recover_slot_first, "update", "killed twice"),
    Mutant("journal-not-recovered", "recover_client", recover_blocks_only, "delete"),
    Mutant("span-front-first", "BlockTable", GivesSpansBackFrontFirst, "put span", "killed twice"),
]


@pytest.mark.either_build("a mutant of the protocol")
@pytest.mark.exhaustive("killed twice", quick=["journal*", "old*", "recovery*", "tentative*"])
@pytest.mark.soak("a span's every step", cases=["pending-overlooked", "span-front-first"])
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, mutant.replaced, mutant.by)
    operation = {**OPERATIONS, PUT_SPAN.name: PUT_SPAN}[mutant.operation]
    limit = 300 if BUILD == "compiled" else 100
    result = run_of(Matrix("race", limit), operation, mutant.dimension)
    assert result.verdict == "FAILED"
    assert any(mutant.says in failure for failure in result.failures), result.failures


class Wrapped:
    """A store whose operations are made worse, one by one."""

    def __init__(self, store: Any, **worse: Callable[..., Any]) -> None:
        self.__dict__.update(store=store, worse=worse)

    def __getattr__(self, name: str) -> Any:
        if name in self.worse:
            return functools.partial(self.worse[name], self.store)
        return getattr(self.store, name)

    def __contains__(self, key: bytes) -> bool:
        return key in self.store

    def __len__(self) -> int:
        return len(self.store)


def worse_scene(**worse: Callable[..., Any]) -> Callable[[str, str, str], StoreTestbed]:
    def make(url: str, kind: str, fence: str) -> StoreTestbed:
        made = StoreTestbed(url, kind, fence)
        made.store = Wrapped(made.store, **worse)
        return made

    return make


def test_mutant_update_in_two_operations_is_caught() -> None:
    def update(store: Any, key: bytes, value: bytes) -> None:
        store.delete(key)
        store.insert(key, value)

    result = Matrix("race", 100, worse_scene(update=update)).killed(OPERATIONS["update"])
    assert any("the key has None" in failure for failure in result.failures)


def test_mutant_lock_that_dies_with_its_holder_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "PATIENCE_S", 0.2)

    def update(store: Any, key: bytes, value: bytes) -> None:
        pool = store.pool
        lock = pool.exclusively(lambda: pool.regions.obtain(0, f"{store.name}\0lock", 64)).address
        attempt = 0
        while pool.endpoint.cas(lock, 0, 1):
            attempt += 1
            pool.endpoint.pause(attempt)
        store.update(key, value)
        pool.endpoint.store(lock, 0)

    warmed = Operation(
        "update",
        OPERATIONS["update"].run,
        OLD,
        NEW,
        lambda pool, kv: kv.update(b"bystander", OLD),
    )
    result = Matrix("race", 9, worse_scene(update=update)).killed(warmed)
    assert any("blocked" in failure for failure in result.failures)


def test_mutant_redo_of_what_is_done_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def recover(pool: Pool) -> dict[str, Any]:
        found = exact(pool)
        if found["clients"]:
            pool.store("race", name="store").put(b"key", NEW)
        return found

    exact = Pool.recover
    monkeypatch.setattr(Pool, "recover", recover)
    result = Matrix("race", 30).killed(OPERATIONS["update"])
    assert any("recovery" in failure for failure in result.failures)


@pytest.mark.parametrize("limit", [1, 2, 3, 9, 40])
def test_chosen_steps_have_the_first_and_the_last(limit: int) -> None:
    for steps in range(1, 60):
        ks = Matrix("race", limit).chosen(steps)
        assert {ks[0], ks[-1]} == {1, steps}
        assert ks == sorted(set(ks))


@pytest.mark.parametrize("kind", ["race", "rcuckoo"])
def test_steps_are_counted_alike_by_fuse_and_stop(kind: str) -> None:
    """A process that is to stop one step past the end of an operation does not stop."""
    matrix = Matrix(kind)
    for name in ("insert", "update", "delete"):
        operation = OPERATIONS[name]
        steps = matrix.steps(operation)
        with matrix.testbed(operation) as made:
            pool, store = made.stopping
            for k, stops in ((steps, True), (steps + 1, False)):
                made.reset(operation)
                stopped = _stops(made, made.victim(operation, k, pool, store))
                assert stopped == stops, (name, k)


def _stops(made: StoreTestbed, target: Callable[[int, int], None]) -> bool:
    from limpet.fault.inject.workers import Workers

    with Workers(target) as workers:
        pid = workers.start(0)
        state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert state is not None
        stopped = state.si_code == os.CLD_STOPPED
    made.pool.recover()
    return stopped


@pytest.mark.exhaustive("many runs")
def test_one_run_takes_milliseconds() -> None:
    """Of the CPU, in this process and its children."""
    matrix = Matrix("race")
    before = sum(os.times()[:4])
    result = matrix.killed(OPERATIONS["update"])
    assert (sum(os.times()[:4]) - before) / result.runs < (0.2 if BUILD == "compiled" else 2)


def test_names_of_crash_points_are_in_their_files() -> None:
    root = Path(crash_points.__file__).resolve().parents[2]
    for name, path in crash_points.defined("race").items():
        assert f"# CRASH({name}):" in (root / path).read_text()
