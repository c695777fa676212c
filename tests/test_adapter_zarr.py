"""`limpet.adapters.zarr`: zarr's own suite of stores, its state machines, and what processes share.

The suites are `zarr.testing.store.StoreTests` and the machines of `zarr.testing.stateful`, which
the package has for authors of stores.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kit.adapters import assert_sound, with_kills, without_loop
from kit.processes import gather

import limpet
from limpet.adapters.pools import close_pool

zarr = pytest.importorskip("zarr", reason="zarr 3 is not installed: pip install 'limpet[zarr]'")
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from zarr.core.buffer import Buffer, cpu
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

from limpet.adapters.zarr import LimpetStore

pytestmark = [
    pytest.mark.exhaustive_in_pure("the adapter is not compiled", quick=[]),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

OPTIONS = {"node_size": "4MiB", "clients": 16}


@without_loop
class TestStore(StoreTests[LimpetStore, cpu.Buffer]):
    store_cls = LimpetStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, location: str) -> dict[str, Any]:
        return {"location": f"{location}/arrays", **OPTIONS}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> LimpetStore:
        import asyncio

        return asyncio.run(LimpetStore.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> LimpetStore:
        return LimpetStore(**store_kwargs)

    async def set(self, store: LimpetStore, key: str, value: Buffer) -> None:
        store.shared().store.put(key.encode(), value.to_bytes())

    async def get(self, store: LimpetStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(store.shared().store.get(key.encode()))

    def test_store_repr(self, store: LimpetStore) -> None:
        assert repr(store) == f"LimpetStore('{store.location}')"

    def test_store_supports_writes(self, store: LimpetStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: LimpetStore) -> None:
        assert store.supports_listing


@pytest.fixture
def store(location: str) -> LimpetStore:
    return LimpetStore(f"{location}/arrays", **OPTIONS)


@pytest.mark.exhaustive("groups and arrays take seconds", quick=["ZarrStore*"])
@pytest.mark.parametrize("machine", [ZarrHierarchyStateMachine, ZarrStoreStateMachine])
def test_state_machine(location: str, machine: Any) -> None:
    store = LimpetStore(f"{location}/arrays", node_size="64MiB", clients=16)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: machine(store),
        settings=settings(
            max_examples=8,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def filled(store: LimpetStore) -> Iterator[Any]:
    array = zarr.create_array(store, shape=(64, 64), chunks=(16, 16), dtype="i4")
    array[:] = np.arange(64 * 64).reshape(64, 64)
    return array


def test_array_is_there_for_other_processes(filled: Any, store: LimpetStore) -> None:
    def read() -> Any:
        return int(zarr.open_array(store, mode="r")[:].sum())

    assert gather(read, read) == [64 * 64 * (64 * 64 - 1) // 2] * 2


def test_array_is_there_by_location_in_a_new_handle(filled: Any, location: str) -> None:
    close_pool(location)
    again = pickle.loads(pickle.dumps(filled.store))
    assert zarr.open_array(again, mode="r")[63, 63] == 64 * 64 - 1


def test_shards_are_read_in_part(store: LimpetStore, monkeypatch: Any) -> None:
    array = zarr.create_array(
        store, shape=(256, 256), chunks=(16, 16), shards=(256, 256), dtype="f8", compressors=None
    )
    array[:] = np.arange(256 * 256).reshape(256, 256)
    kv = store.shared().store
    before = kv.stats()["bytes_read"]
    assert array[0, 5] == 5
    assert kv.stats()["bytes_read"] - before < 60_000 < kv.size_of(b"c/0/0")


def test_processes_write_chunks_of_one_array(filled: Any, store: LimpetStore) -> None:
    def write(row: int) -> Any:
        zarr.open_array(store, mode="r+")[16 * row : 16 * row + 16] = row

    gather(*(lambda row=row: write(row) for row in range(4)))
    assert (filled[:] == np.repeat(np.arange(4), 16)[:, None]).all()


def test_full_pool_raises_and_keeps_what_it_has(filled: Any, store: LimpetStore) -> None:
    before = filled[:]
    with pytest.raises(limpet.StoreFull):
        for number in range(100):
            store.set_sync(f"large/c/{number}", cpu.Buffer.from_bytes(bytes(200_000)))
    assert (filled[:] == before).all()


def test_chunk_that_no_node_holds_is_refused(store: LimpetStore) -> None:
    with pytest.raises(limpet.ValueTooLarge, match="an object has room for"):
        store.set_sync("c/0", cpu.Buffer.from_bytes(bytes(8 << 20)))


def test_killed_processes_leave_whole_chunks(store: LimpetStore, location: str) -> None:
    def work(number: int) -> None:
        store.set_sync(f"c/{number % 10}", cpu.Buffer.from_bytes(bytes([number % 250]) * 9000))
        found = store.get_sync(f"c/{(number + 3) % 10}")
        assert found is None or found.to_bytes() == found.to_bytes()[:1] * 9000

    store.get_sync("opened")
    with_kills(work)
    assert_sound(location)


def test_a_store_that_is_read_only_makes_nothing(location: str) -> None:
    """It made a pool of 64 MiB for a location that was misspelt."""
    reading = LimpetStore(f"{location}/arrays", read_only=True)
    with pytest.raises(limpet.PoolNotFound):
        zarr.open_group(reading, mode="r")
    with pytest.raises(limpet.PoolNotFound):
        limpet.open(location)
    with limpet.create(location, **OPTIONS) as pool:
        with pytest.raises(limpet.StoreError, match="no store 'arrays'"):
            zarr.open_group(reading, mode="r")
        assert pool.stores() == []
        zarr.create_group(LimpetStore(f"{location}/arrays"), attributes={"one": 1})
        assert zarr.open_group(reading, mode="r").attrs["one"] == 1
