"""Durable pools: a power cut at any step, of which any lines that were not written back are lost.

Afterwards what had returned is there, and the pool is whole. Variants that leave a write-back out
are caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from kit.growth import SMALL, crowded
from kit.mutants.power import (
    HALVES_LATER,
    INSERT_BEFORE_CONTENTS,
    INSERT_BESIDE_DELETE,
    POWER_MUTANTS,
    HalvesLater,
)
from kit.mutants.race import Mutant, in_force
from kit.parts import is_fair, runs_of

from limpet.fault.explore import sim_run
from limpet.fault.explore.explorer import Exploration, cluster_of, explore
from limpet.fault.explore.schedule import (
    NEWEST,
    OLDEST,
    POWER,
    SWITCH,
    Action,
    Longest,
    Point,
    Schedule,
)
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_power import STEPS, Interruption, look_after_cut
from limpet.fault.explore.sim_program import parse_program
from limpet.fault.explore.sim_run import Run, replay
from limpet.fault.explore.sim_shrink import kind_of
from limpet.shm import mending
from limpet.shm.endpoint import layout
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.simulated import Crashed
from limpet.shm.endpoint.simulated_memory import PersistentMemory

COMPILED = BUILD == "compiled"
pytestmark = pytest.mark.either_build("the same lines on either build", but=["test_line_*"])
SUBSETS = (OLDEST, NEWEST, 2, 3, 4)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    with cluster_of(Exploration(clients=2, durable=True)) as made:
        yield made


def cut_at(cluster: SimulatedCluster, program: str, step: int, subset: int) -> Run:
    schedule = {Point(0, 0, step): (Action(POWER, subset),)}
    return replay(cluster, parse_program(program), schedule)


@pytest.mark.exhaustive("every operation", quick=["ua", "ga", "da", "ia"])
@pytest.mark.parametrize("program", ["ua", "ga", "da", "ic", "pa", "pc", "gc", "dc", "uc", "ia"])
def test_power_is_cut_before_each_step_of_an_operation(
    cluster: SimulatedCluster, program: str
) -> None:
    step = 1
    while True:
        for subset in SUBSETS:
            run = cut_at(cluster, program, step, subset)
            assert run.failure == "", (step, subset)
        if run.cut is None:
            break
        step += 1
    assert step > 5


def test_operation_that_returned_survives_though_nothing_else_does(
    cluster: SimulatedCluster,
) -> None:
    for program in ("ua ga", "da ga", "ic gc"):
        schedule = {Point(0, 1, 1): (Action(POWER, OLDEST),)}
        run = replay(cluster, parse_program(program), schedule)
        assert run.failure == ""
        assert run.cut == OLDEST
        assert run.history[0].result == "ok"


def test_many_schedules_with_a_cut_hold() -> None:
    report = explore(Exploration(durable=True, schedules=runs_of(400), seed=1))
    assert report.ok, report.failures
    assert is_fair(report.power_cuts, report.schedules)


@pytest.mark.skipif(not COMPILED, reason="the variants are caught by many runs")
@pytest.mark.parametrize("mutant", POWER_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    program = parse_program(mutant.program)
    with in_force(mutant), cluster_of(Exploration(clients=2, durable=True)) as made:
        found = (replay(made, program, one).failure for one in schedules(made, mutant.program))
        failure = next(filter(None, found), "")
    assert kind_of(failure) in mutant.says, failure
    with cluster_of(Exploration(clients=2, durable=True)) as made:
        for schedule in list(schedules(made, mutant.program))[::9]:
            assert replay(made, program, schedule).failure == ""


def mended_with(
    cluster: SimulatedCluster, program: str, step: int, interruption: Interruption
) -> str:
    """The fault of a run that is cut before that step, after which mending is interrupted."""

    def look(run: Run, seed: int) -> str:
        return look_after_cut(run, seed, [interruption])

    with mock.patch.object(sim_run, "look_after_cut", look):
        return cut_at(cluster, program, step, 3).failure


@pytest.mark.skipif(not COMPILED, reason="a hundred runs of many steps")
@pytest.mark.parametrize(("program", "at"), [("ua", 9), ("ic", 14), ("da", 6)])
def test_mending_is_cut_or_killed_at_many_steps(
    cluster: SimulatedCluster, program: str, at: int
) -> None:
    for number, step in enumerate((*range(1, 30, 3), *range(30, STEPS, 67))):
        cut = (None, OLDEST, NEWEST, 2 + number)[number % 4]
        assert mended_with(cluster, program, at, Interruption(step, cut)) == "", (step, cut)


def test_pool_that_counts_as_whole_too_early_is_caught(cluster: SimulatedCluster) -> None:
    """The client that makes it whole is killed between the two steps."""
    mend = mending._mend_memory
    killed = []

    def early(pool: Any) -> tuple[int, int]:
        endpoint = pool.endpoint
        mending._set_power(pool, endpoint.load(layout.POWER), pool.membership.here.boot)
        if not killed:
            killed.append(pool)
            raise Crashed
        return mend(pool)

    with mock.patch.object(mending, "_mend_memory", early):
        assert mended_with(cluster, "ua", 9, Interruption(STEPS, None))
    assert killed


def test_steps_are_more_than_it_takes_to_make_a_pool_whole(cluster: SimulatedCluster) -> None:
    mended = []
    mend = mending._mend_memory

    def noted(pool: Any) -> tuple[int, int]:
        found = mend(pool)
        mended.append(pool)
        return found

    with mock.patch.object(mending, "_mend_memory", noted):
        assert mended_with(cluster, "ua", 9, Interruption(STEPS, None)) == ""
    assert len(mended) == 1  # by the first client, which was not killed


def steps_of(cluster: SimulatedCluster, program: str, op: int) -> int:
    """How many steps this operation of client 0 takes, when client 0 is alone."""
    step = 1
    alone = parse_program(program.split("|")[0])
    while replay(cluster, alone, {Point(0, op, step): (Action(POWER, NEWEST),)}).cut is not None:
        step += 1
    return step - 1


def caught(mutant: Mutant, schedules: Callable[[SimulatedCluster], Iterator[Schedule]],
           **more: Any) -> None:  # fmt: skip
    """See that one of the schedules shows the variant, and none of them the store as it is."""
    program = parse_program(mutant.program)
    clients = mutant.program.count("|") + 1
    with in_force(mutant), cluster_of(Exploration(clients=clients, durable=True, **more)) as made:
        tried = list(schedules(made))
        failures = (replay(made, program, one).failure for one in tried)
        number, failure = next((n, found) for n, found in enumerate(failures) if found)
    assert kind_of(failure) in mutant.says, failure
    with cluster_of(Exploration(clients=clients, durable=True, **more)) as made:
        for schedule in tried[max(0, number - 5) : number + 5]:
            assert replay(made, program, schedule).failure == ""


@pytest.mark.skipif(not COMPILED, reason="the variants are caught by many runs")
def test_insert_that_links_before_its_contents_are_persistent_is_caught() -> None:
    def schedules(made: SimulatedCluster) -> Iterator[Schedule]:
        last = steps_of(made, INSERT_BEFORE_CONTENTS.program, 1)
        for step in range(last, max(0, last - 40), -1):
            for subset in range(2, 14):
                yield {Point(0, 1, step): (Action(POWER, subset),)}

    caught(INSERT_BEFORE_CONTENTS, schedules)


@pytest.mark.skipif(not COMPILED, reason="the variants are caught by many runs")
def test_insert_beside_a_delete_that_is_not_persistent_is_caught() -> None:
    def schedules(made: SimulatedCluster) -> Iterator[Schedule]:
        last = steps_of(made, INSERT_BESIDE_DELETE.program, 1)
        for step in range(last, 0, -1):
            after = (Action(POWER, OLDEST),)
            yield {Point(0, 1, step): (Action(SWITCH, 1),), Point(1, 1, 1): after}

    caught(INSERT_BESIDE_DELETE, schedules)


@pytest.mark.skipif(not COMPILED, reason="the variants are caught by many runs")
def test_split_whose_halves_are_not_persistent_is_caught() -> None:
    def schedules(made: SimulatedCluster) -> Iterator[Schedule]:
        split: list[int] = []
        watch = Longest({})

        def note(self: Any, place: Any, first: int, second: int) -> int:
            split.append(watch.steps)
            return 0

        with mock.patch.object(HalvesLater, "persist_halves", note):
            Run(made, parse_program("ic"), watch).go()
        for step in range(split[0], split[0] + 8):
            for subset in (OLDEST, *range(2, 8)):
                yield {Point(0, 0, step): (Action(POWER, subset),)}

    with crowded():
        caught(HALVES_LATER, schedules, parameters=SMALL)


def schedules(cluster: SimulatedCluster, program: str) -> Iterator[Schedule]:
    """Schedules with a power cut: late in the operation of client 0, or after its return; or, with
    a client 1 that does its operation late in that of client 0, after the return of client 1."""
    watch = Longest({})
    Run(cluster, parse_program(program.split()[0].split("|")[0]), watch).go()
    oldest = (Action(POWER, OLDEST),)
    yield {Point(0, 1, 1): oldest}
    for step in range(watch.steps, watch.steps - 12, -1):
        if "|" in program:
            yield {Point(0, 0, step): (Action(SWITCH, 1),), Point(1, 1, 1): oldest}
        else:
            for subset in range(2, 22):
                yield {Point(0, 0, step): (Action(POWER, subset),)}


# ---- the memory that loses power -----------------------------------------------------------------


def line_memory() -> tuple[PersistentMemory, bytearray]:
    contents = bytearray(256)
    return PersistentMemory({0: contents}), contents  # type: ignore[dict-item]


def test_line_that_was_written_back_stays() -> None:
    memory, contents = line_memory()
    contents[0:8] = b"a" * 8
    memory.changed(0, 8)
    memory.written_back(0, 8)
    contents[8:16] = b"b" * 8
    memory.changed(8, 8)
    memory.cut(lambda count: 0)
    assert contents[0:16] == b"a" * 8 + bytes(8)


def test_line_is_left_with_the_first_of_its_changes_only() -> None:
    found = set()
    for choice in range(4):
        memory, contents = line_memory()
        contents[64:88] = b"a" * 8 + b"b" * 8 + b"c" * 8
        memory.changed(64, 24)
        memory.cut(lambda count, choice=choice: choice)  # type: ignore[misc]
        found.add(bytes(contents[64:88]).rstrip(b"\0"))
    assert found == {b"", b"a" * 8, b"a" * 8 + b"b" * 8, b"a" * 8 + b"b" * 8 + b"c" * 8}


def test_line_that_is_not_written_back_may_be_there_all_the_same() -> None:
    memory, contents = line_memory()
    contents[128:136] = b"a" * 8
    memory.changed(128, 8)
    assert memory.unflushed == 1
    memory.cut(lambda count: count - 1)
    assert contents[128:136] == b"a" * 8
    assert memory.unflushed == 0
