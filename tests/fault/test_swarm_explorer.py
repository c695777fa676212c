"""SWARM-KV under the explorer, and that its gets wait for no client."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from kit.mutants.swarm import crowded
from kit.parts import is_fair, runs_of, steps, stride
from kit.puppets import Puppet

import limpet
from limpet.fault.explore import sim_run
from limpet.fault.explore.explorer import (
    Exploration,
    ExplorerReport,
    cluster_of,
    explore,
    numbered_run,
)
from limpet.fault.explore.schedule import parse_schedule
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_program import parse_program
from limpet.fault.explore.sim_run import replay
from limpet.fault.matrix.fault_profile import FAULT_PROFILES
from limpet.fault.matrix.testbed import within
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build(
    "the same lines on either build",
    but=["test_swarm_holds_while_clients_die_and_stand_still[1]"],
)

COMPILED = BUILD == "compiled"


def explored(runs: int, replicas: int, lost: int, **more: Any) -> ExplorerReport:
    """Explore with so many replicas and lost nodes; all keys are in one subtable."""
    chosen = {"value_size": 40, "crashes": 1, "stalls": 1, "seed": 7, **more}
    parameters = {"replicas": replicas, **chosen.pop("parameters", {})}
    with crowded():
        return explore(
            Exploration(
                store=chosen.pop("store", "swarm"),
                schedules=runs_of(runs),
                nodes=max(3, replicas), node_failures=lost, parameters=parameters, **chosen,
            )
        )  # fmt: skip


@pytest.mark.exhaustive("more writers", quick=["1"])
@pytest.mark.parametrize("buffers", [1, 8])
def test_swarm_holds_while_clients_die_and_stand_still(buffers: int) -> None:
    report = explored(300, 3, 0, parameters={"buffers": buffers}, stalls=2)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)


@pytest.mark.exhaustive("hundreds of runs")
def test_swarm_holds_with_one_of_three_nodes_lost() -> None:
    report = explored(500, 3, 1)
    assert report.failures == ()
    assert is_fair(report.node_failures, report.schedules)


@pytest.mark.exhaustive("hundreds of runs")
def test_swarm_holds_with_two_of_five_nodes_lost() -> None:
    assert explored(150, 5, 2).failures == ()


@pytest.mark.exhaustive("hundreds of runs")
def test_swarm_holds_with_one_replica() -> None:
    assert explored(300, 1, 0).failures == ()


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.parametrize("seed", [902, 907])
def test_dm_abd_holds_while_clients_die_and_nodes_are_lost(seed: int) -> None:
    report = explored(400, 3, 1, store="dm-abd", seed=seed)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.parametrize("size", [40, 200])
def test_dm_abd_holds_where_memory_is_scarce(size: int) -> None:
    """A register and a buffer are of different sizes; either may be what there is no room for."""
    assert explored(300, 3, 0, store="dm-abd", value_size=size, scarce=True).failures == ()


def test_swarm_holds_where_nobody_may_be_fenced() -> None:
    assert explored(150, 3, 1, stalls=2, fence="wait").failures == ()


@pytest.mark.exhaustive("every step")
def test_an_update_that_meets_the_loss_of_a_node_in_all_of_its_steps() -> None:
    """The client that wrote it reads it afterwards, and so does one that has never met it."""
    met = 0
    with crowded(), SimulatedCluster("swarm", 2, nodes=3, value_size=40) as made:
        for case, moment in enumerate(("f0", "f1", "f2", "m0", "m1", "m2")):
            for step in steps(400, 23, case):
                schedule = parse_schedule(f"0.0.{step}{moment}")
                run = replay(made, parse_program("ua ga ua|ga"), schedule)
                assert run.failure == "", (step, moment, run.failure)
                if run.schedule != schedule:
                    break
                met += 1
    assert met


def test_no_room_for_a_register_and_a_buffer_is_an_error() -> None:
    """There was room for one or the other, made ready by turns, and an insert never ended."""
    with (
        contextlib.suppress(limpet.StoreFull),
        SimulatedCluster("swarm", 1, nodes=3, value_size=40) as made,
    ):
        assert replay(made, parse_program("ua ga"), {}).failure == ""


def test_clients_that_take_memory_from_each_other_come_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two that each need a register and a buffer took the last blocks by turns, without end. In the
    smallest nodes that have room for the pairs which are there at first."""
    monkeypatch.setattr(sim_run, "STEPS_MAX", 100_000)
    parameters = Exploration(store="dm-abd", ops=4, seed=9)
    for size in itertools.count(96 << 10, 16 << 10):
        profile = dataclasses.replace(FAULT_PROFILES["dm-abd"], explorer_node_size=size)
        monkeypatch.setitem(FAULT_PROFILES, "dm-abd", profile)
        with cluster_of(parameters) as made:
            if made.pools[0].parameters.node_size > size:
                continue
            failures = [numbered_run(made, parameters, number).failure for number in range(40)]
            break
    assert all("StoreFull" in failure for failure in failures if failure)


# ---- wait-freedom --------------------------------------------------------------------------------

GET_TRIPS_MAX = 9
"""An attempt without a pin, or the index, if the place of the key is not known. Read; our row; the
pointer of the value, in place no more, the value, and a copy of it written back; the value; the
same tuple is read again; TRYLOCK. The client that stands still changes nothing meanwhile, so
nothing is read more often than that."""
STEPS = 400


@pytest.mark.either_build("schedules of the same lines")
@pytest.mark.exhaustive("more replicas", quick=["True-3"])
@pytest.mark.parametrize("replicas", [3, 5])
@pytest.mark.parametrize("behind", [False, True])
def test_gets_take_a_bounded_time_whoever_stands_still(
    pools: Any, replicas: int, behind: bool
) -> None:
    """At each memory step of an update in turn, with a clock that is behind or not."""
    steps = _steps(pools, replicas, "update", behind)
    assert steps > 10


@pytest.mark.either_build("schedules of the same lines")
@pytest.mark.exhaustive("an insert has many steps", quick=["get", "delete"])
@pytest.mark.parametrize("operation", ["insert", "delete", "get"])
def test_gets_take_a_bounded_time_whatever_the_other_does(pools: Any, operation: str) -> None:
    assert _steps(pools, 3, operation, False) > 3


UPDATE_TRIPS_MAX = 4
"""WRITE; what is greater is looked for everywhere; TRYLOCK; WRITE."""


@pytest.mark.either_build("schedules of the same lines")
@pytest.mark.exhaustive("more replicas", quick=["False-3"])
@pytest.mark.parametrize("replicas", [3, 5])
@pytest.mark.parametrize("behind", [False, True])
def test_updates_take_a_bounded_time_whoever_stands_still(
    pools: Any, replicas: int, behind: bool
) -> None:
    """At each memory step of an update in turn. Each of the others writes twice, in both orders.

    An update that goes by a clock ahead of theirs takes effect when a client reads it first.
    """
    for case, order in enumerate(((0, 1, 0, 1), (1, 1, 0, 0))):
        met = 0
        for step in steps(STEPS, 5, case):
            pool = pools(nodes=replicas)
            store = pool.store("swarm", name="test", capacity=50, replicas=replicas)
            others = [store, pools.again(pool).store("swarm", name="test")]
            still = Puppet(pools, pool.url, "swarm")
            for client in (still.store, *others, still.store):
                client.put(b"k", b"old")
            still.store.put(b"j", b"")
            if behind:
                still.pool.numbers.clock.after(still.pool.numbers.clock.guess() + (1 << 40))
            ended = still.begin(functools.partial(still.store.update, b"k", b"new"), _step(step))
            for number, index in enumerate(order):
                before = others[index].stats()["round_trips"]
                others[index].update(b"k", b"%d" % number)
                assert others[index].stats()["round_trips"] - before <= UPDATE_TRIPS_MAX, step
                seen = others[1 - index].get(b"k")
                assert seen == b"%d" % number or (behind and seen == b"new")
                assert others[index].get(b"k") == seen
            assert ended or still.go()
            assert store.get(b"k") == others[1].get(b"k") in (b"3", b"new")
            store.check()
            pools.destroy()
            if ended:
                break
            met += 1
        assert met


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.parametrize("kind", ["swarm", "dm-abd"])
def test_nobody_waits_for_memory(pools: Any, kind: str) -> None:
    """At every memory step of an update, with no block of the pool free."""
    met = 0
    for step in range(1, STEPS, stride(5)):
        pool = pools(nodes=3, node_size="1MiB")
        known = pool.store(kind, name="test", capacity=20)
        still = Puppet(pools, pool.url, kind)
        cold = pools.again(pool).store(kind, name="test")
        others = pool.store("fusee", name="others", capacity=20, replicas=3)
        for client in (still.store, known, still.store):
            client.put(b"k", b"old")
        _fill(others)
        ended = still.begin(functools.partial(still.store.update, b"k", b"new"), _step(step))
        values = [reader.get(b"k") for reader in (known, cold, known, cold)]
        assert values in [[b"old"] * n + [b"new"] * (4 - n) for n in range(5)]
        with pytest.raises(limpet.KeyExists):
            known.insert(b"k", b"other")
        if step == 1 and kind == "swarm":
            cold.update(b"k", b"other")  # in a buffer that is lent
        elif step == 1:
            with pytest.raises(limpet.StoreFull):
                cold.update(b"k", b"other")
        assert list(cold) == [b"k"]
        if step % 2:
            known.delete(b"k")
        assert cold.get(b"k") == (None if step % 2 else values[-1])
        assert ended or still.go()
        last = known.get(b"k")
        assert last == cold.get(b"k")
        assert last in ((None,) if step % 2 else (b"old", b"new"))
        known.check()
        pools.destroy()
        if ended:
            break
        met += 1
    assert met


@pytest.mark.exhaustive("more replicas", quick=["3-1-*"])
@pytest.mark.parametrize("kind", ["swarm", "dm-abd"])
@pytest.mark.parametrize(("replicas", "lost"), [(3, 1), (5, 1), (5, 2)])
def test_who_may_only_read_reads_while_nodes_are_lost(
    pools: Any, kind: str, replicas: int, lost: int
) -> None:
    """An update stands still at a step, and may have been complete on what is lost."""
    met = 0
    for step in steps(STEPS, 5, replicas * lost):
        pool = pools(nodes=replicas)
        store = pool.store(kind, name="test", capacity=20, replicas=replicas, writers=2)
        still = Puppet(pools, pool.url, kind)
        readers = [pools.again(pool).store(kind, name="test") for _ in range(2)]
        for client in (still.store, store, still.store):
            client.put(b"k", b"old")
        for reader in readers:
            assert reader.get(b"k") == b"old"
        ended = still.begin(functools.partial(still.store.update, b"k", b"new"), _step(step))
        for number in range(lost):
            pool.fail_node((step + number) % replicas)
        values = [reader.get(b"k") for reader in [*readers, *readers, store, *readers]]
        assert values in [[b"old"] * n + [b"new"] * (7 - n) for n in range(8)]
        assert ended or still.go()
        assert {reader.get(b"k") for reader in [*readers, store]} == {b"new"}
        readers[0].check()
        pools.destroy()
        if ended:
            break
        met += 1
    assert met


@pytest.mark.exhaustive("every kind", quick=["swarm"])
@pytest.mark.parametrize("kind", ["swarm", "dm-abd"])
def test_a_put_that_meets_half_a_delete_ends_with_one_free_block(pools: Any, kind: str) -> None:
    """The deleter has given up at a step. The put's first buffer is for the key that is gone."""
    for step in range(1, STEPS, 3 if COMPILED else 20):
        pool = pools(nodes=3, node_size="1MiB")
        store = pool.store(kind, name="test", capacity=20)
        others = pool.store("fusee", name="others", capacity=20, replicas=3)
        deleter = Puppet(pools, pool.url, kind)
        store.put(b"k", bytes(3000))
        assert store.get(b"k") == deleter.store.get(b"k")
        _fill(others)
        others.delete(b"3000 0")
        done = deleter.begin(functools.partial(deleter.store.delete, b"k"), _step(step))
        if not done:
            deleter.abandon()
        with within(60, "the put"), contextlib.suppress(limpet.StoreFull):
            store.put(b"k", bytes(2999))
        assert store.get(b"k") in (None, bytes(2999), bytes(3000))
        assert deleter.store.get(b"k") == store.get(b"k")
        store.check()
        pools.destroy()
        if done:
            break
    assert done


def _fill(store: limpet.Store) -> None:
    """Insert values of many sizes until there is no memory for any, nor for updates."""
    store.pool.blocks.reserve = 0
    for size in (3000, 400, 100, 40, 0):
        with contextlib.suppress(limpet.StoreFull):
            for number in itertools.count():
                store.insert(b"%d %d" % (size, number), bytes(size))


def _step(number: int) -> Callable[[str, int], bool]:
    """Whether a verb is the one of this number."""
    left = [number]

    def reached(verb: str, address: int) -> bool:
        left[0] -= 1
        return left[0] == 0

    return reached


def _steps(pools: Any, replicas: int, operation: str, behind: bool) -> int:
    """How many steps the operation has, at which (or at some of which) a client stood still."""
    stride = 1 if COMPILED else 3
    for step in range(1, STEPS, stride):
        pool = pools(nodes=replicas)
        store = pool.store("swarm", name="test", capacity=50, replicas=replicas)
        known = pools.again(pool).store("swarm", name="test")
        still = Puppet(pools, pool.url, "swarm")
        if operation != "insert":
            for client in (still.store, known, store, still.store):
                client.put(b"k", b"old")
                client.put(b"k", b"old")
        else:  # its subtable is made
            still.store.insert(b"k", b"")
            still.store.delete(b"k")
        still.store.put(b"j", b"")
        if behind:
            pool.numbers.clock.after(pool.numbers.clock.guess() + (1 << 40))
            store.update(b"k", b"old")
        arguments = (b"k",) if operation in ("get", "delete") else (b"k", b"new")
        work = functools.partial(getattr(still.store, operation), *arguments)
        ended = still.begin(work, _step(step))
        seen = None if operation == "insert" else b"old"
        cold = pools.again(pool).store("swarm", name="test")
        values = []
        for reader in (known, cold, known, cold):
            before = reader.stats()["round_trips"]
            values.append(reader.get(b"k"))
            trips = reader.stats()["round_trips"] - before
            assert trips <= GET_TRIPS_MAX, (operation, step)
        allowed = {seen, b"new" if len(arguments) > 1 else None if operation == "delete" else seen}
        assert set(values) <= allowed
        # what has been read once is not gone
        assert values == sorted(values, key=lambda value: value != values[0])
        assert ended or still.go()
        store.check()
        pools.destroy()
        if ended:
            return step - 1
    raise AssertionError(f"{operation} takes more than {STEPS} steps")
