"""Batches of `swarm` in the explorer, and cut off at each step."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any, Final

import pytest
from kit.mutants.swarm import Mutant, in_force
from kit.mutants.uncompiled import Change
from kit.parts import is_fair, runs_of, stride
from kit.puppets import verb_on
from kit.registers import Scene

from limpet.fault.explore.explorer import Exploration, explore
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
RUNS = runs_of(200)
PROGRAMS = ("pa mab ga|pb mab gb|ga gb", "pa mab mab|pb mba ub|ga gb da", "pa mab xab|pb mdba|gb")
"""A batch is of keys that its client has met before."""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not list(SHM_DIR.glob(f"limpet.limpet-*{os.getpid()}*"))


@pytest.mark.exhaustive("all programs", quick=["swarm-0-pa mab ga*"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize("kind", ["swarm", "dm-abd"])
def test_batches_of_registers_hold(kind: str, failures: int, program: str) -> None:
    parameters = Exploration(
        store=kind, program=program, value_size=40, schedules=RUNS, seed=5, crashes=2, stalls=1,
        nodes=3, node_failures=failures,
    )  # fmt: skip
    report = explore(parameters)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)


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


def test_a_batch_that_is_cut_off_leaves_each_key_old_or_new(pools: Any) -> None:
    """A client dies at each step of a batch of puts."""
    for step in range(1, 60, stride(9)):
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
