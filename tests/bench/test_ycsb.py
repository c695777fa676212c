from __future__ import annotations

import collections

import numpy as np
import pytest

from limpet.bench.peers import ycsb
from limpet.bench.peers.ycsb import Workload
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("benchmarks are not compiled")


def shares(workload: Workload, count: int) -> np.ndarray:
    """Share of the operations that each record gets, hottest first."""
    drawn = np.bincount(ycsb.records_drawn(workload, 0, count), minlength=workload.records)
    return np.sort(drawn)[::-1] / count


def share_of_hottest(items: int, theta: float = 0.99) -> float:
    """Of a Zipfian over so many items."""
    exact = min(items, 1_000_000)
    total = (np.arange(1, exact + 1) ** -theta).sum()
    power = 1 - theta
    return 1 / (total + (items**power - exact**power) / power)


def test_trap_g7_hottest_key_gets_the_share_of_a_zipfian_over_n_records() -> None:
    hottest = shares(Workload(records=100_000), 1_000_000)[0]
    assert abs(hottest - share_of_hottest(100_000)) < 0.002
    # YCSB's Java generator draws from so many, and hashes them onto the records
    assert hottest > 2 * share_of_hottest(10**10)
    assert 0.037 < share_of_hottest(10**10) < 0.039


def test_frequencies_follow_rank_to_the_minus_theta() -> None:
    workload = Workload(records=1000, theta=0.5)
    weights = np.arange(1, 1001) ** -0.5
    expected = weights / weights.sum()
    assert np.allclose(shares(workload, 2_000_000)[:20], expected[:20], rtol=0.05)


def test_theta_zero_is_uniform() -> None:
    found = shares(Workload(records=100, theta=0.0), 1_000_000)
    assert found.min() > 0.009
    assert found.max() < 0.011


def test_hot_records_are_scattered() -> None:
    workload = Workload(records=10_000)
    drawn = np.bincount(ycsb.records_drawn(workload, 0, 500_000), minlength=10_000)
    hot = np.sort(np.argsort(drawn)[-20:])
    assert (np.diff(hot) > 1).all()
    assert hot.max() - hot.min() > 5000


@pytest.mark.parametrize(("mix", "share"), [("A", 0.5), ("B", 0.95), ("C", 1.0)])
def test_mix_has_its_share_of_reads(mix: str, share: float) -> None:
    operations = ycsb.mixed(Workload(records=1000), mix, 0, 200_000)
    reads = sum(value is None for _, value in operations) / len(operations)
    assert reads == pytest.approx(share, abs=0.005)
    assert (mix != "C") or reads == 1.0


def test_streams_are_determined_by_seed_and_number() -> None:
    def stream(seed: int, number: int) -> list[ycsb.Operation]:
        return ycsb.mixed(Workload(records=1000, seed=seed), "A", number, 1000)

    first = stream(1, 0)
    assert stream(1, 0) == first
    assert stream(1, 1) != first
    assert stream(2, 0) != first


def test_a_shorter_stream_is_the_beginning_of_a_longer_one() -> None:
    workload = Workload(records=1000)
    assert ycsb.gets(workload, 0, 1000)[:100] == ycsb.gets(workload, 0, 100)
    assert ycsb.updates(workload, 0, 1000)[:100] == ycsb.updates(workload, 0, 100)
    assert ycsb.mixed(workload, "A", 0, 1000)[:100] == ycsb.mixed(workload, "A", 0, 100)


@pytest.mark.parametrize(("key_bytes", "value_bytes"), [(24, 64), (8, 1), (64, 100)])
def test_keys_are_distinct_and_sizes_are_as_asked(key_bytes: int, value_bytes: int) -> None:
    workload = Workload(records=10_000, key_bytes=key_bytes, value_bytes=value_bytes)
    pairs = workload.pairs()
    assert len({key for key, _ in pairs}) == 10_000
    assert {len(key) for key, _ in pairs} == {key_bytes}
    assert {len(value) for _, value in pairs} == {value_bytes}


def test_operations_are_about_loaded_records_with_objects_of_their_own() -> None:
    workload = Workload(records=1000)
    operations = ycsb.updates(workload, 0, 5000)
    loaded = set(workload.keys())
    assert all(key in loaded and len(value) == 64 for key, value in operations)
    assert len({id(key) for key, _ in operations}) == 5000
    assert max(collections.Counter(key for key, _ in operations).values()) > 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"records": 0},
        {"operations": 0},
        {"value_bytes": 0},
        {"key_bytes": 0},
        {"records": 100_001, "key_bytes": 9},
        {"theta": -0.1},
        {"theta": float("nan")},
        {"seed": -1},
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        Workload(**wrong)  # type: ignore[arg-type]
