"""The cache under many schedules, with crashes and stalls; wrong caches are found out."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from kit.mutants import cache as mutants
from kit.parts import is_fair

import limpet
from limpet.__main__ import main
from limpet.fault.explore.explorer import Exploration, cluster_of, explore, numbered_run
from limpet.fault.explore.sim_cache import CacheCluster
from limpet.fault.explore.sim_program import parse_program
from limpet.fault.explore.sim_run import replay
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = limpet.build == "compiled"
RUNS = 100 if COMPILED else 10
MOST = 30_000
SIX = {"max_items": 6}
"""Two clients fill it."""


def test_cache_keeps_its_promises_under_many_schedules() -> None:
    report = explore(Exploration("cache", schedules=RUNS, seed=11, crashes=1, stalls=1))
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)


def test_run_is_the_same_again() -> None:
    with CacheCluster("cache", 3) as cluster:
        program = parse_program("ea fc|fc ga|ka v")
        assert len({replay(cluster, program, {}).digest() for _ in range(3)}) == 1


@pytest.mark.parametrize("letter", [*"iupgdesfk", "v", "b"])
def test_every_call_of_a_cache_can_be_in_a_program(letter: str) -> None:
    text = letter if letter in "vb" else letter + "a"
    with CacheCluster("cache", 3) as cluster:
        assert replay(cluster, parse_program(f"{text}|{text}|ga"), {}).failure == ""


def found_out(parameters: Exploration, spoil: Any) -> str:
    """The first failure in runs on a cluster that `spoil` makes wrong."""
    with cluster_of(parameters) as cluster:
        for client in cluster.clients:
            spoil(client)
        for number in range(MOST):
            failure = numbered_run(cluster, parameters, number).failure
            if failure:
                return failure
    return f"{MOST} runs have not shown it"


def spoilt(method: str, wrong: Any) -> Any:
    def spoil(client: Any) -> None:
        client.store = mutants.Wrong(client.store, method, wrong)

    return spoil


@pytest.mark.skipif(not COMPILED, reason="thousands of runs")
@pytest.mark.parametrize(
    ("spoil", "program", "name"),
    [
        (lambda client: mutants.with_ledger(client.store, mutants.Late), "pc|pd", "bounds"),
        (lambda client: mutants.with_ledger(client.store, mutants.Unbounded), "pc|pd", "bounds"),
        (lambda client: mutants.with_ledger(client.store, mutants.Unaware), "b pc|pd", "bounds"),
        (spoilt("begin_flight", mutants.computed_by_all), "fc|fc", "computed twice"),
        (spoilt("get", mutants.served_for_ever), "ea|ga pb pb ga", "deadline"),
    ],
    ids=[
        "counts late",
        "counts and admits all",
        "knows no resize",
        "takes living flights",
        "heeds no deadline",
    ],
)
def test_wrong_cache_is_found_out(spoil: Any, program: str, name: str) -> None:
    parameters = Exploration("cache", clients=2, program=program, crashes=0, seed=3, parameters=SIX)
    assert found_out(parameters, spoil).startswith(name)


def test_calls_of_a_cache_are_refused_elsewhere() -> None:
    with pytest.raises(ParameterError, match="race has no compute"):
        Exploration("race", clients=1, program="fa")
    done = CliRunner().invoke(
        main, ["drill", "explore", "cache", "--program", "fa|fa ea|v", "--schedule", ""]
    )
    assert done.exit_code == 0, done.output
    assert "everything held" in done.output
