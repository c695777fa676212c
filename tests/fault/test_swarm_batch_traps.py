"""Batches of `swarm` in the explorer; and each of their rules left out: it is seen."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from kit.mutants.steps import require_caught
from kit.mutants.swarm import UNCHANGED, Mutant, in_force
from kit.mutants.uncompiled import Change, replaced
from kit.puppets import ShiftedPool, verb_on
from kit.registers import Scene

from limpet.fault.explore.explorer import Exploration, explore
from limpet.fault.explore.sim_shrink import kind_of
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.swarm.layout import DONE

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
RUNS = 200 if COMPILED else 10
RUNS_OF_MUTANT = 4000
HOUR_US = 3_600_000_000
PROGRAMS = ("pa mab ga|pb mab gb|ga gb", "pa mab mab|pb mba ub|ga gb da", "pa mab xab|pb mdba|gb")
"""A batch is of keys that its client has met before."""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not list(SHM_DIR.glob(f"limpet.limpet-*{os.getpid()}*"))


@pytest.mark.exhaustive("all programs", quick=["0-pa mab ga*"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("failures", [0, 1])
def test_batches_of_registers_hold(failures: int, program: str) -> None:
    parameters = Exploration(
        store="swarm", program=program, value_size=40, schedules=RUNS, seed=5, crashes=2, stalls=1,
        nodes=3, node_failures=failures,
    )  # fmt: skip
    report = explore(parameters)
    assert report.failures == ()
    assert report.crashes > RUNS / 10


@pytest.mark.exhaustive("hundreds of runs")
def test_batches_of_registers_hold_when_nodes_are_replaced() -> None:
    parameters = Exploration(
        store="swarm", program=PROGRAMS[0] + " n", value_size=40, schedules=RUNS, seed=6, nodes=3,
        node_failures=1, replace=True,
    )  # fmt: skip
    assert explore(parameters).failures == ()


def reads_in_batches(get: Any) -> Any:
    """A get is a batch of one key; a key that is left is looked up singly."""

    def run(self: Any, key: bytes, default: Any = None) -> Any:
        if self.__dict__.get("left"):
            return get(self, key, default)
        self.left = True
        try:
            (found,) = self.get_many([key])
        finally:
            self.left = False
        return default if found is None else found

    return run


READS: Final = Change("swarm/store", "Swarm.get", reads_in_batches)


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.skipif(not COMPILED, reason="many runs")
@pytest.mark.parametrize("failures", [0, 1])
def test_reads_of_batches_hold(failures: int) -> None:
    mutant = Mutant("gets-in-batches", (), (READS,))
    parameters = Exploration(
        store="swarm", program="pa ga ua ga|pa ua ga|ga ga da ga", value_size=40, schedules=RUNS,
        seed=7, crashes=1, stalls=1, nodes=3, node_failures=failures,
    )  # fmt: skip
    with in_force(mutant):
        assert explore(parameters).failures == ()


# ---- known-bad variants --------------------------------------------------------------------------


def takes_what_it_sees(self: Any, register: Any) -> Any:
    """A batch returns the greatest tuple it has read, wherever that is."""
    quorum = register.quorum
    return quorum.value_of(quorum.top) if quorum.arrived() == DONE else None


def never_stale(self: Any, w: int, held: int, outcome: int, wrote: int) -> int:
    """A guess is taken for good, whatever was read beside it."""
    self._verify_own(w, held)
    return DONE


def refused_is_done(written: Any) -> Any:
    """A row that is not in order is taken for written."""

    def run(self: Any, word: int, buffer: Any) -> int:
        written(self, word, buffer)
        return DONE

    return run


def _minority_is_lost(pools: Any) -> None:
    """A value is read that only the first replica has, whose node is lost then."""
    scene = Scene(pools, 3)
    writer, reader, later = scene.clients
    writer.begin(functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", None, 3))
    (seen,) = reader.store.get_many([b"k"])
    scene.pool.fail_node(scene.nodes[0])
    (seen_later,) = later.store.get_many([b"k"])
    assert writer.go()
    assert seen == seen_later
    assert later.store.get_many([b"k"]) == [b"new"]


def _clock_is_behind(pools: Any) -> None:
    """The guesses of a batch are below values that another client has written."""
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=50)
    late_pool = pools.keep(ShiftedPool.open(pool.url))
    late_pool.endpoint.shift = -HOUR_US
    late = late_pool.store("swarm", name="test")
    late.put_many([(b"j", b"0"), (b"k", b"0")])
    late.get_many([b"j", b"k"])
    store.update(b"k", b"ahead")
    late.put_many([(b"j", b"late"), (b"k", b"late")])
    assert late.get_many([b"j", b"k"]) == store.get_many([b"j", b"k"]) == [b"late"] * 2


def _row_is_shared(pools: Any) -> None:
    """By two handles of one client; one of them remembers pointers that the other has used."""
    pool = pools(nodes=3)
    one, two = (pool.store("swarm", name="test", capacity=50) for _ in range(2))
    for handle in (one, two):
        for value in (b"0", b"1"):
            handle.put(b"j", value)
            handle.put(b"k", value)
    two.put(b"k", b"2")
    one.put(b"k", b"3")
    two.put_many([(b"j", b"4"), (b"k", b"4")])
    one.put_many([(b"j", b"5"), (b"k", b"5")])
    assert one.get_many([b"j", b"k"]) == two.get_many([b"j", b"k"]) == [b"5"] * 2


STEPS: Final = (
    (
        Mutant(
            "batch-reads-a-minority", (),
            (replaced("swarm/batch_reads", "BatchReads.value_of", takes_what_it_sees),),
        ),
        _minority_is_lost,
    ),
    (
        Mutant(
            "batch-takes-its-guesses-for-good", (),
            (replaced("swarm/safe_guess", "SafeGuess._conclude", never_stale),),
        ),
        _clock_is_behind,
    ),
    (
        Mutant(
            "batch-takes-refused-rows-for-written", (),
            (Change("swarm/replica", "Replica.written", refused_is_done),),
        ),
        _row_is_shared,
    ),
)  # fmt: skip


@pytest.mark.parametrize(("mutant", "scenario"), STEPS, ids=[mutant.name for mutant, _ in STEPS])
def test_known_bad_batches_are_caught_step_by_step(
    mutant: Mutant, scenario: Callable[[Any], None], pools: Any
) -> None:
    require_caught(in_force, UNCHANGED, mutant, scenario, pools)


def ends_at_the_first(post_all: Any) -> Any:
    """A batch goes on while verbs that were posted have not happened, if a node is lost."""

    def run(self: Any, batch: Any) -> bool:
        posted = self._posted(batch)
        if posted:
            self.endpoint.wait()
        return bool(posted)

    return run


EXPLORED: Final = (
    Mutant(
        "goes-on-before-all-has-happened", ("history", "node", "error", "check"),
        (Change("swarm/batch_writes", "BatchWrites._post_all", ends_at_the_first),),
        exploration={"program": "pa mab ga|pb mab gb|ga gb", "node_failures": 1},
    ),
)  # fmt: skip


@pytest.mark.exhaustive("thousands of runs")
@pytest.mark.skipif(not COMPILED, reason="caught by many runs")
@pytest.mark.parametrize("mutant", EXPLORED, ids=lambda mutant: mutant.name)
def test_known_bad_batches_are_caught_by_the_explorer(mutant: Mutant) -> None:
    with in_force(mutant):
        (failure,) = explore(mutant.parameters(RUNS_OF_MUTANT)).failures
    assert kind_of(failure.what) in mutant.says, failure.what


def test_a_batch_that_is_cut_off_leaves_each_key_old_or_new(pools: Any) -> None:
    """A client dies at each step of a batch of puts."""
    for step in range(1, 60, 1 if COMPILED else 9):
        scene = Scene(pools, 1)
        (writer,) = scene.clients
        writer.store.put(b"j", b"old")
        writer.store.put(b"j", b"old")
        pairs = [(b"j", b"new"), (b"k", b"new")]
        ended = writer.begin(
            functools.partial(writer.store.put_many, pairs), verb_on("cas", None, step)
        )
        if ended:
            assert step > 8
            break
        writer.abandon()
        for key in (b"j", b"k"):
            assert scene.store.get(key) in (b"old", b"new")
        scene.store.put_many([(b"j", b"last"), (b"k", b"last")])
        assert scene.store.get_many([b"j", b"k"]) == [b"last"] * 2
