import os

import numpy as np
import pytest

from limpet.fault.inject.counters import GETS, PUTS, Counters
from limpet.fault.inject.workers import Workers

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")


def test_counters_percentiles_are_exact_to_five_percent() -> None:
    counters = Counters(2)
    samples = (np.random.default_rng(3).lognormal(9, 2, 20_000)).astype(int) + 1
    counter = counters.counter(1)
    for ns in samples.tolist():
        counter.add(GETS, 10, ns)
    snapshot = counters.read()
    for percent in (1, 50, 90, 99, 99.9):
        expected = np.percentile(samples, percent, method="inverted_cdf")
        assert snapshot.percentile_ns(GETS, percent) == pytest.approx(expected, rel=0.05)
        assert snapshot.percentile_ns(GETS, percent, 1) == pytest.approx(expected, rel=0.05)
    assert snapshot.percentile_ns(PUTS, 50) is None
    assert snapshot.percentile_ns(GETS, 50, 0) is None
    assert snapshot.operations(GETS) == snapshot.operations(GETS, 1) == len(samples)
    assert snapshot.size(GETS) == 10 * len(samples)
    assert snapshot.operations(PUTS) == 0


@pytest.mark.parametrize("ns", [0, 1, 2, 10**9, 1 << 45, 1 << 62])
def test_counters_take_every_latency(ns: int) -> None:
    counters = Counters(1)
    counters.counter(0).add(PUTS, 1, ns)
    assert counters.read().percentile_ns(PUTS, 50) is not None


def test_counters_of_a_killed_worker_are_continued_by_its_replacement() -> None:
    counters = Counters(1)

    def target(slot: int, incarnation: int) -> None:
        counter = counters.counter(slot)
        counter.start(os.getpid(), incarnation)
        counter.add(PUTS, 5, 100)

    with Workers(target) as workers:
        for _ in range(2):
            pid = workers.start(0)
            workers.reap(pid)
    snapshot = counters.read()
    assert (snapshot.operations(PUTS, 0), snapshot.size(PUTS, 0)) == (2, 10)
    assert (snapshot.pid(0), snapshot.client(0)) == (pid, 2)


def test_counters_stop_reaches_the_workers() -> None:
    counters = Counters(2)
    counter = counters.counter(1)
    assert not counter.stopped
    counters.stop()
    assert counter.stopped
