"""`limpet.adapters.joblib`: joblib's own tests of Memory on it, and what processes share.

joblib's package has tests of Memory (`joblib.test.test_memory`), which run here with this backend
in place of joblib's, except for those that look at files and directories on disk: `NOT_OURS`.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kit.adapters import assert_sound, with_kills
from kit.processes import gather

joblib = pytest.importorskip(
    "joblib", reason="joblib is not installed: pip install 'limpet[joblib]'"
)
from joblib.externals.loky import get_reusable_executor
from joblib.memory import MemorizedFunc, Memory
from joblib.test import test_memory as suite

from limpet.adapters.joblib import LimpetStoreBackend

pytestmark = [
    pytest.mark.exhaustive_in_pure("the adapter is not compiled", quick=[]),
    pytest.mark.filterwarnings("ignore:limpet copies results:UserWarning"),
    pytest.mark.filterwarnings("ignore:Compressed results cannot be memmapped:UserWarning"),
]

ON_DISK = "looks at the files and directories of joblib's own backend"
NOT_OURS = {
    "test_parallel_call_cached_function_defined_in_jupyter": ON_DISK,
    "test_func_dir": ON_DISK,
    "test_persistence": ON_DISK,
    "test_call_and_shelve_lazily_load_stored_result": ON_DISK,
    "test__get_items": ON_DISK,
    "test_memory_clear": ON_DISK,
    "TestAutoGitignore": ON_DISK,
    "test_memory_numpy_check_mmap_mode": "values are copied out of the pool, and never mapped",
    "test_memorized_result_forwards_mmap_mode": "values are copied out of the pool",
}
"""Tests of joblib that do not run here, and why. Those below that clear, list and pickle take their
place."""
SLOW = (
    "test_cached_function_race_condition_when_persisting_output",
    "test_cached_function_race_condition_when_persisting_output_2",
    "test_cached_jupyter_function_persists_across_sessions",
    "test_memory_file_modification",
    "test_memory_reduce_size_age_limit",
)


def _options() -> dict[str, Any]:
    return {"pool": os.environ["LIMPET_TEST_LOCATION"], "node_size": "16MiB", "clients": 16}


class MemoryOnLimpet(Memory):
    """Memory, by default with this backend. The location is a directory in the cache."""

    def __init__(self, location: Any = None, backend: str = "limpet", **arguments: Any) -> None:
        if backend == "limpet" and location is not None:
            given = arguments.get("backend_options") or {}
            given.pop("parameter", None)  # a test gives it; this backend refuses unknown options
            arguments["backend_options"] = {**given, **_options()}
        super().__init__(location, backend, **arguments)


MemoryOnLimpet.__name__ = "Memory"  # as its representation begins


class FuncOnLimpet(MemorizedFunc):
    def __init__(self, func: Any, location: Any, backend: str = "limpet", **arguments: Any) -> None:
        if backend == "limpet" and isinstance(location, str):
            location = backend_at(location)
        super().__init__(func, location, backend, **arguments)


def backend_at(location: str) -> LimpetStoreBackend:
    made = LimpetStoreBackend()
    made.configure(location, 0, _options())
    return made


@pytest.fixture(autouse=True)
def on_limpet(location: str, monkeypatch: Any) -> Iterator[None]:
    monkeypatch.setenv("LIMPET_TEST_LOCATION", f"{location}/results")
    monkeypatch.setattr(suite, "Memory", MemoryOnLimpet)
    monkeypatch.setattr(suite, "MemorizedFunc", FuncOnLimpet)
    monkeypatch.setattr(suite, "corrupt_single_cache_item", corrupt)
    return


def corrupt(memory: Any) -> None:
    (item,) = memory.store_backend.get_items()
    memory.store_backend.put(f"{item.path}/output.pkl", b"garbage")


@pytest.fixture(scope="module", autouse=True)
def no_worker_stays() -> Iterator[None]:
    yield
    get_reusable_executor().shutdown(wait=True, kill_workers=True)


for _name, _test in vars(suite).copy().items():
    if _name.startswith(("test_", "Test")) and _name not in NOT_OURS:
        if _name in SLOW:
            _test = pytest.mark.exhaustive("joblib's own; takes seconds", quick=[])(_test)
        globals()[_name] = _test


@pytest.fixture
def memory() -> Memory:
    return Memory(
        os.environ["LIMPET_TEST_LOCATION"],
        backend="limpet",
        verbose=0,
        backend_options={"node_size": "16MiB", "clients": 16},
    )


def slow_square(x: int) -> tuple[int, int]:
    return x * x, os.getpid()


def test_it_names_what_it_leaves_out() -> None:
    assert set(NOT_OURS) | set(SLOW) <= set(vars(suite))


def test_processes_share_results(memory: Memory) -> None:
    cached = memory.cache(slow_square)
    assert cached(3) == (9, os.getpid())
    assert gather(lambda: cached(3), lambda: cached(3)) == [(9, os.getpid())] * 2


def test_results_of_other_processes_are_found(memory: Memory) -> None:
    cached = memory.cache(slow_square)
    (theirs,) = gather(lambda: cached(4))
    assert cached(4) == theirs
    assert theirs[1] != os.getpid()


def test_clear_takes_the_results_of_one_function(memory: Memory) -> None:
    square, negative = memory.cache(slow_square), memory.cache(np.negative)
    square(2)
    negative(np.ones(3))
    square.clear(warn=False)
    assert not square.check_call_in_cache(2)
    assert negative.check_call_in_cache(np.ones(3))
    memory.clear(warn=False)
    assert not negative.check_call_in_cache(np.ones(3))
    assert memory.store_backend.get_items() == []


def test_items_have_size_and_time(memory: Memory) -> None:
    before = time.time()
    memory.cache(np.negative)(np.zeros(1000))
    (item,) = memory.store_backend.get_items()
    assert 8000 < item.size < 20_000
    assert before <= item.last_access.timestamp() <= time.time()


def test_arrays_come_back_compressed_too(location: str) -> None:
    memory = Memory(
        f"{location}/small",
        backend="limpet",
        verbose=0,
        compress=True,
        backend_options={"node_size": "16MiB", "clients": 16},
    )
    cached = memory.cache(np.negative)
    cached(np.zeros(100_000))
    assert (cached(np.zeros(100_000)) == 0).all()
    assert memory.store_backend.get_items()[0].size < 10_000


def test_result_without_room_is_computed_each_time(memory: Memory) -> None:
    cached = memory.cache(np.zeros)
    with pytest.warns(joblib._store_backends.CacheWarning, match="Unable to cache"):
        assert len(cached(4 << 20)) == 4 << 20
    assert not cached.check_call_in_cache(4 << 20)


def test_full_cache_evicts_results(location: str) -> None:
    memory = Memory(
        f"{location}/small",
        backend="limpet",
        verbose=0,
        backend_options={"node_size": "16MiB", "clients": 16, "max_bytes": "1MiB"},
    )
    cached = memory.cache(np.full)
    for number in range(30):
        assert cached(10_000, number)[0] == number
    assert 5 < len(memory.store_backend.get_items()) < 14


def test_backend_is_pickled_by_its_location(memory: Memory) -> None:
    memory.cache(slow_square)(5)
    again = pickle.loads(pickle.dumps(memory))
    assert again.cache(slow_square).check_call_in_cache(5)


def test_killed_processes_leave_whole_results(memory: Memory, location: str) -> None:
    cached = memory.cache(np.full)

    def work(number: int) -> None:
        assert (cached(2000, number % 20) == number % 20).all()

    cached(2000, 0)
    with_kills(work, calls=60)
    assert_sound(location)
