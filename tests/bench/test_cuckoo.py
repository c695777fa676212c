"""The figures of the RCuckoo paper: counted, repeatable, and near the paper's."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from limpet.bench.figures import cuckoo, cuckoo_tables
from limpet.bench.figures.cuckoo_tables import INDEPENDENT, VALUE, Filling, table_of
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import Workload, run_timed
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.errors import ParameterError, StoreFull
from limpet.stores.rcuckoo.parameters import LOCALITY

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

COMPILED = BUILD == "compiled"
ROWS = 4000 if COMPILED else 200


def first_failure(rows: int, **parameters: Any) -> float:
    with table_of(rows, **parameters) as store:
        count = 0
        with contextlib.suppress(StoreFull):
            for key in cuckoo_tables.keys_of(1, 0):
                store.insert(key, VALUE)
                count += 1
        store.check()
        return count / (8 * rows)


def test_a_small_cache_of_rows_costs_round_trips_and_no_room() -> None:
    """Rows of one place in the cache, which a search needs both, drove out each other for ever."""
    rows = 1000 if COMPILED else 100
    whole = first_failure(rows, cache_rows=rows)
    for cache_rows in (1, 8):
        assert first_failure(rows, cache_rows=cache_rows) > whole - 0.04 > 0.9


def test_distances_are_odd_and_as_often_within_five_as_by_the_formula() -> None:
    found = {one.locality: one for one in cuckoo.distances(10_000, 20_000, seed=1)}
    usual = found[LOCALITY]
    assert usual.counted[1] == usual.counted[2]
    assert usual.counted[5] == pytest.approx(usual.printed[5], abs=0.015)
    assert usual.printed[5] == pytest.approx(0.627, abs=0.001)
    assert usual.same == pytest.approx(0.105, abs=0.001)
    shares = [found[locality].counted[5] for locality in sorted(found)]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.skipif(not COMPILED, reason="a hundred thousand inserts")
def test_fill_before_the_first_failure() -> None:
    found = {one.locality: one for one in cuckoo.fills(2000, 2, seed=1)}
    assert found[LOCALITY].mean > 0.95
    assert found[INDEPENDENT].least > 0.99
    means = [found[locality].mean for locality in cuckoo_tables.LOCALITIES]
    assert means == sorted(means)


@pytest.mark.skipif(not COMPILED, reason="tens of thousands of inserts")
def test_paths_are_short_with_dependent_hashing() -> None:
    found = cuckoo.fill_up(ROWS, LOCALITY, seed=1)
    last = cuckoo.spans(ROWS, LOCALITY, found, 0.85)
    assert 0.45 < last.no_path < 0.65
    assert last.within[32] > 0.85
    assert last.within[256] > 0.95
    assert last.one_mcas > 0.94
    assert last.one_window >= last.one_mcas
    whole = cuckoo.spans(ROWS, LOCALITY, found)
    assert whole.inserts == int(0.95 * 8 * ROWS)
    assert whole.no_path > 0.9
    far = cuckoo.spans(ROWS, INDEPENDENT, cuckoo.fill_up(ROWS, INDEPENDENT, seed=1), 0.85)
    assert far.path_median > ROWS / 5 > 10 * last.path_median


def test_what_inserts_cost_as_the_table_fills() -> None:
    found = list(cuckoo.buckets(cuckoo.fill_up(ROWS, LOCALITY, seed=1)))
    first, last = found[0], found[-1]
    assert (first.round_trips_p50, first.no_path, first.bytes_factor) == (2, 1, 1)
    assert first.one_mcas > 0.95
    # two rows, of adjacent ones with the words between them
    assert 2 * 176 <= first.bytes_read < 2 * 176 + 16
    assert 2 < last.round_trips < 2 * first.round_trips
    assert last.bytes_factor > 2 > last.locked_factor
    assert last.messages_factor < 2
    assert sum(one.full for one in found) <= 5


def test_equal_arguments_give_equal_figures() -> None:
    rows = 200
    first, second, other = (
        [{**vars(one), "per_second": 0} for one in cuckoo.buckets(cuckoo.fill_up(rows, 2.3, seed))]
        for seed in (3, 3, 4)
    )
    assert first == second != other
    if COMPILED:
        assert cuckoo.contended(32, 16, 1) == cuckoo.contended(32, 16, 1)


def test_the_span_of_a_path_goes_round_the_table() -> None:
    with table_of(100) as store:
        filling = Filling(store, 1)
        assert filling._span([]) == 0
        assert filling._span([3, 10]) == 7
        assert filling._span([1, 2, 98]) == 4
        with pytest.raises(ParameterError, match="even number"):
            cuckoo_tables.capacity_for(store.pool, 101)


@pytest.mark.exhaustive("many clients")
@pytest.mark.skipif(not COMPILED, reason="tens of thousands of inserts")
def test_eight_clients_fill_a_small_table() -> None:
    """Few locks are shared for nothing, many take one message: between the two it is best. A client
    that is refused one lock for all pauses, so of few clients it is the mean that tells."""
    found = {
        (rows, locks): cuckoo.contended(rows, locks, 1)
        for rows, locks in ((1, 1), (8, 64), (512, 1), (512, 64))
    }
    best, shared = found[8, 64], found[512, 64]
    assert found[512, 1].round_trips == shared.round_trips > 1.2 * best.round_trips
    assert found[1, 1].round_trips_p99 > 2 * best.round_trips_p99


@pytest.mark.skipif(not COMPILED, reason="tens of thousands of inserts")
def test_dependent_hashing_saves_round_trips_when_the_table_is_nearly_full() -> None:
    near, far = (cuckoo.grain(ROWS, 16, locality, 1) for locality in (LOCALITY, INDEPENDENT))
    assert near.round_trips_p50 == 2 < far.round_trips_p50
    assert near.round_trips_p99 < far.round_trips_p99
    assert 1.5 * near.round_trips < far.round_trips
    assert near.one_mcas > 0.9 > 0.5 > far.one_mcas


def test_a_key_is_not_inserted_for_which_there_is_no_room() -> None:
    """In virtual time, too: it is counted apart, and the others go on."""
    workload = Workload(
        "rcuckoo", 2, ops=40, keys=1, key_size=12, value_size=8, warm_up=0, write_share=1.0,
        fresh=True,        parameters={"capacity": 8, "key_size": 15, "value_size": 8},
    )  # fmt: skip
    kinds = {kind.kind: kind.count for kind in run_timed(workload, PRESETS["rdma"]).kinds}
    assert kinds["insert"] + kinds["full"] == 80
    assert 32 < kinds["insert"] < 48
