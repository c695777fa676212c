"""LOCO's kvstore under the explorer."""

from __future__ import annotations

from typing import Any

import pytest
from kit.mutants.loco import (
    CROWDED,
    in_force,
)
from kit.parts import is_fair, runs_of
from kit.puppets import Testbed, verb_on_address

from limpet.fault.explore.explorer import Exploration, ExplorerReport, explore
from limpet.shm.endpoint.fabric import BUILD, hash64

pytestmark = pytest.mark.either_build(
    "the same lines on either build",
    but=["test_loco_holds_while_clients_die_and_stand_still[40-2]"],
)

COMPILED = BUILD == "compiled"
INLINE, LINKED = 40, 3400
"""Bytes of values."""

compiled_only = pytest.mark.skipif(not COMPILED, reason="takes many runs")


def explored(runs: int, **more: Any) -> ExplorerReport:
    chosen = {"value_size": INLINE, "crashes": 1, "stalls": 1, "seed": 7, **more}
    return explore(Exploration(store="loco", schedules=runs_of(runs), **chosen))


@pytest.mark.exhaustive("more clients", quick=["*-2"])
@pytest.mark.parametrize("clients", [2, 3, 4])
@pytest.mark.parametrize("size", [INLINE, LINKED])
def test_loco_holds_while_clients_die_and_stand_still(size: int, clients: int) -> None:
    report = explored(150, value_size=size, clients=clients, crashes=2, stalls=2)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)
    assert is_fair(report.stalls, report.schedules)


def test_loco_holds_while_messages_are_overtaken() -> None:
    assert explored(150, ops=4, parameters={"tracker": 2}).failures == ()


def test_loco_holds_while_parts_are_full() -> None:
    with in_force(CROWDED):
        assert explored(100, ops=4, parameters={"part": 1}).failures == ()


def test_loco_holds_where_nobody_may_be_fenced() -> None:
    assert explored(150, stalls=2, fence="wait").failures == ()


@compiled_only
def test_loco_holds_without_hardware_coherence() -> None:
    assert explored(100, value_size=LINKED, coherent=False).failures == ()


# ---- batches ----------------------------------------------------------------------------------

PROGRAMS = (
    "pa mab ga|pb mab gb|ga gb",
    "pa mab mab|pb mba ub|ga gb da",
    "mabcd mabcd|mdbc da|gb r",
)


@pytest.mark.exhaustive("all programs", quick=["0-pa mab ga*"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("failures", [0, 1])
def test_batches_of_updates_hold(failures: int, program: str) -> None:
    parameters = Exploration(
        store="loco", program=program, value_size=40, schedules=runs_of(200), seed=5, crashes=2,
        stalls=1, nodes=1 + failures, node_failures=failures,
    )  # fmt: skip
    report = explore(parameters)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)


# ---- an index that begins anew in a batch --------------------------------------------------------


class Readers(Testbed):
    kind = "loco"


def test_an_index_that_begins_anew_in_a_batch_misses_no_key(pools: Any) -> None:
    """The home of the first key is learned, then the ring goes round while the client stands."""
    bed = Readers(pools, 1, part=4, capacity=64, tracker=16, locks=1)
    index, (reader,) = bed.store.lookup.indexes[0], bed.puppets
    keys = [b"k%d" % number for number in range(12)]
    for key in keys:
        bed.store.put(key, b"v")
    homes = {index.home_of(hash64(key)): key for key in keys}
    assert len(homes) > 1
    wanted = list(homes.values())[:2]
    assert reader.store.get_many(keys) == [b"v"] * len(keys)
    at = reader.store.lookup.indexes[0].trackers.at(0)
    stopped = verb_on_address("load", at, 2)
    assert not reader.begin(lambda: reader.store.get_many(wanted), stopped)
    for _ in range(index.trackers.size):
        bed.store.put(b"other", b"x")
        bed.store.delete(b"other")
    assert reader.go()
    assert reader.result == [b"v", b"v"]
