"""Values in place: views stay what they are; what is reserved is linked, or is nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit.stores import checked, key_of, sound

import limpet
from limpet.shm.alloc.heap import Heap
from limpet.shm.endpoint.layout import HOLDS, NODE_SHIFT
from limpet.shm.endpoint.slots import RECORDS_COUNT
from limpet.shm.pool import PoolCore
from limpet.stores import pool as pools_of_stores
from limpet.stores.core import keeper as keepers
from limpet.stores.core import views
from limpet.stores.core.keeper import Keeper
from limpet.stores.registry import KINDS, store_class

ROUNDS = 40 if limpet.build == "compiled" else 8
GROWING = 3000 if limpet.build == "compiled" else 100
VIEWING = ["race", "rtx-race", "fusee"]
SIZES = [0, 100, 5000, 300_000] if limpet.build == "compiled" else [0, 5000]


@pytest.fixture(params=VIEWING)
def store(request: pytest.FixtureRequest, pools: Any) -> Any:
    pool = pools(nodes=2, node_size="8MiB")
    return pool.store(request.param, name="v", capacity=200)


@pytest.fixture
def other(store: Any, pools: Any) -> Any:
    """The same store, of another client."""
    return pools.again(store.pool).store(store.kind, name="v")


def value_of(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def churn(store: Any, size: int, rounds: int = ROUNDS) -> None:
    """Use memory of that size again and again."""
    for number in range(rounds):
        store.put(b"churn%d" % (number % 4), value_of(size, number))
    for number in range(min(rounds, 4)):
        store.delete(b"churn%d" % number)


@pytest.mark.parametrize("size", SIZES)
def test_a_view_is_the_value(store: Any, size: int) -> None:
    value = value_of(size)
    store.put(b"k", value)
    with store.view(b"k") as seen:
        assert seen.readonly
        assert seen.format == "B"
        assert seen == value
        with store.view(bytearray(b"k")) as again:
            assert again == value
    with pytest.raises(ValueError, match="released"):
        seen[0:1]
    with store.view(b"missing") as nothing:
        assert nothing is None
    checked(store)
    assert store.pool.endpoint.load(HOLDS) == 0


@pytest.mark.parametrize("size", [SIZES[1], SIZES[-1]])
@pytest.mark.parametrize("change", ["update", "delete", "drop"])
def test_a_view_stays_whatever_others_do(
    store: Any, other: Any, pools: Any, size: int, change: str
) -> None:
    value = value_of(size)
    store.put(b"k", value)
    with store.view(b"k") as seen, store.view(b"k") as twice:
        if change == "update":
            other.update(b"k", value_of(size, 2))
        elif change == "delete":
            other.delete(b"k")
            churn(store, size)
        else:
            other.pool.drop("v")
            other = other.pool.store(other.kind, name="w", capacity=200)
        churn(other, size)
        if change == "update":
            assert store.get(b"k") == value_of(size, 2)
            store.put(b"k", value_of(size, 3))
            churn(store, size)
        assert seen == value
        assert twice == value
        assert other.pool.audit()["leaked"] == 0
    churn(other, size)
    checked(other)


def test_a_free_that_looks_at_no_record_is_caught(
    store: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limpet.build == "compiled":
        pytest.skip("the methods of compiled classes call each other directly")
    monkeypatch.setattr(Heap, "_held", lambda self, reference: False)
    value = value_of(5000)
    store.put(b"k", value)
    with store.view(b"k") as seen:
        other.delete(b"k")
        churn(store, 5000)  # whose block it was
        assert seen != value


def test_the_last_of_several_viewers_frees(store: Any, other: Any, pools: Any) -> None:
    third = pools.again(store.pool).store(store.kind, name="v")
    value = value_of(70_000)
    store.put(b"k", value)
    store.delete(b"k")
    before = checked(store)["reachable"]
    store.put(b"k", value)
    first, second = other.view(b"k"), third.view(b"k")
    one, two = first.__enter__(), second.__enter__()
    store.delete(b"k")
    assert store.pool.audit()["held"] > 0
    first.__exit__(None, None, None)
    churn(store, 70_000)
    assert two == value
    assert store.pool.audit()["held"] > 0
    second.__exit__(None, None, None)
    assert checked(store)["reachable"] == before
    with pytest.raises(ValueError, match="released"):
        bytes(one)


def test_other_threads_use_the_handle_inside(store: Any) -> None:
    store.put(b"k", b"v" * 5000)
    done = []

    def work() -> None:
        for number in range(50):
            store.put(b"k", b"%d" % number * 1000)
            with store.view(b"k") as mine:
                assert bytes(mine[:1]).isdigit()
        done.append(True)

    with store.view(b"k") as seen:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert seen == b"v" * 5000
    assert done
    checked(store)


def test_memory_that_outlives_its_block_is_an_error_and_stays(store: Any, other: Any) -> None:
    value = value_of(5000)
    store.put(b"k", value)
    with pytest.raises(BufferError, match="still in use"), store.view(b"k") as seen:
        slice_of_it = seen[10:20]
    other.delete(b"k")
    churn(other, 5000)
    assert slice_of_it == value[10:20]
    assert store.pool.audit()["held"] > 0
    del seen
    slice_of_it.release()
    del slice_of_it
    with store.view(b"k") as nothing:
        assert nothing is None
    checked(store)
    kept = []
    with pytest.raises(BufferError, match="still in use"), store.reserve(b"k", 100) as buffer:
        kept.append(np.frombuffer(buffer, np.uint8))
    assert store.get(b"k") is None
    kept.clear()
    del buffer
    with store.view(b"k"):
        pass
    checked(store)


@pytest.mark.skipif(limpet.build == "pure", reason="there the owner of the memory is an array")
def test_memory_that_was_taken_back_gives_no_buffer(store: Any) -> None:
    store.put(b"k", b"v" * 100)
    with store.view(b"k") as seen:
        owner = seen.obj
    with pytest.raises(ValueError, match="released"):
        seen[0]
    with pytest.raises(BufferError, match="taken back"):
        memoryview(owner)
    del seen, owner
    checked(store)


def test_a_view_is_for_one_block_at_a_time(store: Any) -> None:
    store.put(b"k", b"v" * 100)
    view = store.view(b"k")
    with view as seen:
        with pytest.raises(limpet.StoreError, match="in a block already"), view:
            pass
        assert bytes(seen) == b"v" * 100
    with view as seen:
        assert bytes(seen) == b"v" * 100
    assert store.pool.audit()["held"] == 0
    checked(store)


def test_a_handle_has_as_many_views_as_are_asked_for(store: Any, other: Any) -> None:
    keys = [b"%d" % number for number in range(2 * RECORDS_COUNT + 3)]
    for key in keys:
        store.put(key, key * 50)
    blocks = [store.view(key) for key in keys]
    seen = [block.__enter__() for block in blocks]
    for key in keys:
        other.update(key, b"new" * 50)
    churn(other, 150)
    assert seen == [key * 50 for key in keys]
    with pytest.raises(BufferError, match="still in use"), store.view(keys[0]) as last:
        kept = last[1:]
    assert kept == b"ew" + b"new" * 49
    kept.release()
    for block in blocks:
        block.__exit__(None, None, None)
    with pytest.raises(ValueError, match="released"):
        seen[-1][0]
    del seen, last, kept, blocks
    assert store.pool.audit()["held"] == 0
    checked(store)


def test_a_handle_reserves_only_so_many(store: Any) -> None:
    if store.replicas > 1:
        pytest.skip("what it reserves is memory of the process")
    blocks = [store.reserve(b"k", 10) for _ in range(RECORDS_COUNT)]
    for block in blocks:
        block.__enter__()
    with pytest.raises(limpet.ClientError, match="viewed or reserved"), store.reserve(b"k", 10):
        pass
    with pytest.raises(limpet.ClientError, match="end those blocks"):
        store.pool.close()
    for block in blocks:
        block.__exit__(None, None, None)
    checked(store)


# ---- views without a block -----------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", ["update", "delete", "drop"])
def test_a_memoryview_keeps_its_value_until_it_is_collected(
    store: Any, other: Any, size: int, change: str
) -> None:
    value = value_of(size)
    store.put(b"k", value)
    seen, nothing, again = store.view_many([b"k", b"missing", bytearray(b"k")])
    assert nothing is None
    assert seen.readonly
    assert seen.format == "B"
    if change == "drop":
        other.pool.drop("v")
        other = other.pool.store(other.kind, name="w", capacity=200)
    else:
        other.put(b"k", value_of(size, 2)) if change == "update" else other.delete(b"k")
    churn(other, size)
    assert seen == again == value
    array = np.frombuffer(seen[size // 3 :], np.uint8) if size else None
    seen.release()
    del seen, again
    churn(other, size)
    if array is not None:
        assert bytes(array) == value[size // 3 :]
        assert other.pool.audit()["held"] > 0
    del array
    assert other.pool.audit()["held"] == 0
    checked(other)


def test_a_memoryview_outlives_the_handle_of_its_pool(store: Any, other: Any) -> None:
    store.put(b"k", b"v" * 5000)
    seen = store.view(b"k").memory()
    store.pool.close()
    other.update(b"k", b"w")
    churn(other, 5000)
    assert seen == b"v" * 5000
    del seen
    assert other.pool.audit()["held"] == 0
    sound(other)


@pytest.mark.parametrize("bad", [False, True])
def test_a_value_that_is_replaced_before_a_keeper_has_it_is_kept(
    store: Any, other: Any, monkeypatch: pytest.MonkeyPatch, bad: bool
) -> None:
    """With `bad`, no keeper takes a record."""
    hold = Keeper.hold

    def late(self: Keeper, reference: int) -> None:
        other.update(b"k", b"new" * 700)
        churn(other, 2100)
        if not bad:
            hold(self, reference)

    def drop(self: Keeper, reference: int) -> None:
        pass

    monkeypatch.setattr(Keeper, "hold", late)
    if bad:
        monkeypatch.setattr(Keeper, "drop", drop)
    store.put(b"k", b"old" * 700)
    seen = store.view(b"k").memory()
    churn(store, 2100)
    churn(other, 2100)
    assert (other.pool.audit()["held"] > 0) is not bad
    assert bad or seen == b"old" * 700
    del seen
    assert other.pool.audit()["held"] == 0


def test_more_values_than_keepers_can_have_are_copies(
    store: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "CLIENTS_SHARE", 1 << 20)
    keys = [b"%d" % number for number in range(2 * RECORDS_COUNT)]
    for key in keys:
        store.put(key, key * 50)
    seen = store.view_many(keys)
    assert len(store.pool.keepers.all) == 1
    # The keeper is a client of the handle that views.
    assert sum(client["ours"] for client in store.pool.clients()) == 2
    assert sum(client["ours"] for client in other.pool.clients()) == 1
    with store.view(keys[0]) as first:
        assert first == keys[0] * 50
    for key in keys:
        other.update(key, b"new" * 50)
    churn(other, 150)
    assert seen == [key * 50 for key in keys]
    del seen, first
    checked(store)


def test_a_pool_without_a_slot_for_a_keeper_gives_copies(pools: Any) -> None:
    pool = pools(node_size="8MiB", clients=2)  # one slot is kept
    store = pool.store("race", name="v", capacity=20)
    store.put(b"k", b"v" * 100)
    assert store.view(b"k").memory() == b"v" * 100
    checked(store)


def test_a_forked_child_has_the_memoryviews_of_its_parent_by_records_of_its_own(
    store: Any, other: Any
) -> None:
    value = value_of(5000)
    store.put(b"k", value)
    seen = store.view(b"k").memory()
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(ready[0])
            os.close(go[1])
            os.close(ready[1])
            os.read(go[0], 1)
            status = 0 if seen == value else 2
        finally:
            os._exit(status)
    os.close(ready[1])
    os.read(ready[0], 1)
    del seen
    other.update(b"k", b"new")
    churn(other, 5000)
    assert other.pool.audit()["held"] > 0
    for end in (go[1], go[0], ready[0]):
        os.close(end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.recover()
    sound(store)


@pytest.mark.exhaustive_in_pure("every step", quick=["race-kee*"])
@pytest.mark.parametrize("whose", ["handle", "keeper"])
def test_a_process_that_is_killed_at_any_step_of_a_memoryview_leaves_nothing(
    store: Any, whose: str
) -> None:
    url, step, value = store.pool.url, 0, b"old" * 700

    def work() -> None:
        with limpet.open(url) as pool:
            mine = pool.store(store.kind, name="v")
            del mine.view_many([b"k"])[:]  # opens the keeper
            fused = pool if whose == "handle" else pool.keepers.all[0].pool
            fused.endpoint.fuse = step
            seen = mine.view(b"k").memory()
            mine.update(b"k", b"new" * 700)
            if seen != value:
                os._exit(5)
            del seen
            fused.endpoint.fuse = 0

    while True:
        step += 1
        store.put(b"k", value)
        ended = in_child(work)
        assert ended in (0, -signal.SIGKILL)
        store.recover()
        audit = store.pool.audit()
        assert audit["leaked"] == audit["held"] == 0, (step, audit)
        store.check()
        if ended == 0:
            break
        if step > 60:
            step += 12  # words of the value
        assert step < 3000
    assert step > 4


def test_a_process_that_stands_still_with_memoryviews_keeps_these_alone(
    store: Any, other: Any
) -> None:
    value = value_of(70_000)
    store.put(b"k", value)
    child = os.fork()
    if child == 0:
        try:
            mine = limpet.open(store.pool.url).store(store.kind, name="v")
            seen = mine.view(b"k").memory()
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0 if seen == value else 2)
        finally:
            os._exit(1)
    os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
    other.update(b"k", b"new")
    churn(other, 70_000)
    os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.recover()
    assert sound(store)["held"] == 0


def test_values_of_mappings_are_arrays_and_memoryviews_in_place(pools: Any) -> None:
    pool = pools(nodes=2, node_size="8MiB")
    arrays = pool.dict("arrays", codec="numpy")
    for array in (
        np.arange(24.0).reshape(4, 6),
        np.asfortranarray(np.arange(6, dtype="<i2").reshape(2, 3)),
        np.array([(1, 2.5)], dtype=[("a", "u1"), ("b", "f8")]),
        np.zeros((0, 3), "f4"),
        np.array(7),
    ):
        arrays["k"] = array
        seen = arrays.view("k")
        arrays["k"] = np.ones(1000)
        assert (seen.dtype, seen.shape) == (array.dtype, array.shape)
        assert seen.flags.f_contiguous == array.flags.f_contiguous
        assert np.array_equal(seen, array)
        assert array.size == 0 or not seen.flags.writeable
        del seen
    assert arrays.view("none") is None
    assert arrays.view("none", 5) == 5
    arrays.store.put(arrays.codec.encode_key("bad"), b"no array")
    with pytest.raises(limpet.StoreCorrupt, match="numpy"):
        arrays.view("bad")
    texts = pool.dict("texts", codec="bytes")
    texts[b"k"] = b"v" * 5000
    seen = texts.view(b"k")
    del texts[b"k"]
    assert seen == b"v" * 5000
    del seen
    assert pool.audit()["held"] == 0
    for codec in ("pickle", "str", "numpy+zlib"):
        with pytest.raises(limpet.ParameterError, match="are decoded, so none is there in place"):
            pool.dict(codec, codec=codec).view("k")
    pool.dict("trees", store="rtx-sherman", codec="bytes")
    with pytest.raises(limpet.StoreError, match="no values in place"):
        pool.dict("trees", codec="bytes", store="rtx-sherman").view(b"k")


def test_a_view_of_a_cache_is_a_hit_and_stays_when_the_entry_goes(pools: Any) -> None:
    pool = pools(node_size="8MiB")
    cache = pool.cache("c", max_items=10, max_bytes="1MiB", codec="bytes", policy="fifo")
    cache.set(b"k", b"v" * 5000)
    seen = cache.view(b"k")
    assert seen == b"v" * 5000
    assert cache.view(b"none") is None
    assert cache.view(b"none", 3) == 3
    stats = cache.stats()
    assert (stats["hits"], stats["misses"]) == (1, 2)
    for number in range(200):
        cache.set(b"%d" % number, bytes([number]) * 5000)
    assert b"k" not in cache
    assert cache.view(b"k") is None
    assert seen == b"v" * 5000
    cache.set(b"short", b"lives" * 10)
    short = cache.view(b"short")
    cache.touch(b"short", 0.01)
    time.sleep(0.02)
    assert cache.view(b"short") is None
    assert short == b"lives" * 10
    cache.set(b"tagged", b"t" * 100, tags=["t"])
    cache.invalidate("t")
    assert cache.view(b"tagged") is None
    with pytest.raises(limpet.StoreError, match="reserves no memory"):
        cache.store.reserve(b"k", 10)
    del seen, short
    assert pool.audit()["held"] == 0
    cache.check()
    sound(cache.store)


def test_arrow_buffers_are_made_of_memoryviews_without_a_copy(store: Any, other: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    sink = arrow.BufferOutputStream()
    table = arrow.table({"n": list(range(1000)), "text": [f"{n}" for n in range(1000)]})
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    store.put(b"k", sink.getvalue().to_pybytes())
    buffer = arrow.py_buffer(store.view(b"k").memory())
    found = arrow.ipc.open_stream(buffer).read_all()
    other.delete(b"k")
    churn(other, buffer.size)
    assert found.equals(table)
    assert buffer.address <= found["n"].chunk(0).buffers()[1].address < buffer.address + buffer.size
    del buffer, found
    assert other.pool.audit()["held"] == 0


# ---- reservations --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_what_is_reserved_becomes_the_value_at_the_end(store: Any, other: Any, size: int) -> None:
    for number in range(3):
        value = value_of(size, number)
        with store.reserve(b"k", size) as buffer:
            assert not buffer.readonly
            buffer[:] = value
            assert other.get(b"k") == (value_of(size, number - 1) if number else None)
            store.put(b"else", b"inside")
        assert other.get(b"k") == value
        with pytest.raises(ValueError, match="released"):
            len(buffer[0:1])
    with pytest.raises(KeyError, match="on purpose"), store.reserve(b"k", size) as buffer:
        raise KeyError("on purpose")
    assert other.get(b"k") == value
    checked(store)
    other.delete(b"k")
    checked(other)


def test_reserve_refuses_what_cannot_be(store: Any) -> None:
    with pytest.raises(limpet.ValueTooLarge), store.reserve(b"k", 1 << 40):
        pass
    with pytest.raises(limpet.KeyTooLarge), store.reserve(bytes(70_000), 10):
        pass
    for size in (-1, True, 1.5, "7"):
        with pytest.raises(limpet.ParameterError):
            store.reserve(b"k", size)
    with pytest.raises(TypeError, match="bytes-like"):
        store.view("text")
    sound(store)


def test_a_full_pool_refuses_a_reservation_and_keeps_the_others(pools: Any) -> None:
    store = pools(nodes=1, node_size="8MiB").store("race", name="v", capacity=200)
    with store.reserve(b"k", 5 << 20) as buffer:
        buffer[:4] = b"kept"
        with pytest.raises(limpet.StoreFull), store.reserve(b"l", 5 << 20):
            pass
    assert store.get(b"k")[:4] == b"kept"
    assert store.get(b"l") is None
    sound(store)


def test_reservations_of_many_keys_while_the_index_grows(pools: Any) -> None:
    pool = pools(nodes=2, node_size="8MiB")
    store = pool.store("race", name="g", capacity=10)
    for number in range(GROWING):
        with store.reserve(b"k%d" % number, 8) as buffer:
            buffer[:] = b"%08d" % number
    assert all(store.get(b"k%d" % number) == b"%08d" % number for number in range(GROWING))
    checked(store)


def test_kinds_without_values_in_place_say_so(pools: Any) -> None:
    pool = pools(nodes=3, node_size="8MiB")
    for kind in KINDS:
        if not store_class(kind).views:
            store = pool.store(kind, name=f"no-{kind}", capacity=10)
            with pytest.raises(limpet.StoreError, match="no values in place"):
                store.view(b"k")
            with pytest.raises(limpet.StoreError, match="no values in place"):
                store.reserve(b"k", 10)
            pool.drop(f"no-{kind}")


def test_a_child_that_is_forked_in_a_block_has_none_of_it(store: Any, other: Any) -> None:
    value = value_of(5000)
    store.put(b"k", value)
    with store.view(b"k") as seen, store.reserve(b"r", 10) as buffer:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for lent in (seen, buffer):
                    try:
                        lent[0:1]
                    except ValueError:
                        status = 0
                    else:
                        status = 2
                        break
                if status == 0:
                    with store.view(b"k") as own:
                        status = 0 if own == value else 3
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        other.update(b"k", b"new")
        churn(other, 5000)
        assert seen == value
        buffer[:] = b"0123456789"
    assert store.get(b"r") == b"0123456789"
    sound(store)


def in_child(work: Callable[[], None]) -> int:
    """How a forked child ends that does this."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.exhaustive_in_pure("every step", quick=["race-view"])
@pytest.mark.parametrize("what", ["view", "reserve"])
def test_a_client_that_is_killed_at_any_step_leaves_nothing(store: Any, what: str) -> None:
    """The value is the old or the new one, and after recovery nothing is held or leaked."""
    store.put(b"k", b"old" * 700)
    store.put(b"other", b"-" * 2100)
    new = b"new" * 700
    url, step, outcomes = store.pool.url, 0, set()

    def work() -> None:
        with limpet.open(url) as pool:
            mine = pool.store(store.kind, name="v")
            pool.endpoint.fuse = step
            if what == "view":
                with mine.view(b"k"):
                    store_again = pool.store(store.kind, name="v")
                    store_again.update(b"k", new)
            else:
                with mine.reserve(b"k", len(new)) as buffer:
                    buffer[:] = new
            pool.endpoint.fuse = 0

    while True:
        step += 1
        ended = in_child(work)
        assert ended in (0, -signal.SIGKILL)
        store.recover()
        found = store.get(b"k")
        assert found in (b"old" * 700, new)
        outcomes.add(found)
        audit = store.pool.audit()
        assert audit["leaked"] == audit["held"] == 0, (step, audit)
        store.check()
        store.put(b"k", b"old" * 700)
        if ended == 0:
            break
        assert step < 3000
        if step > 100:
            step += 12  # words of the value
    assert outcomes == {b"old" * 700, new}
    assert step > 20


def test_a_killed_viewer_keeps_nothing(store: Any, other: Any) -> None:
    value = value_of(70_000)
    store.put(b"k", value)
    before = sound(store)["reachable"]

    def work() -> None:
        with other.view(b"k"):
            store_of_child = other
            store_of_child.delete(b"k")
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    assert sound(store)["reachable"] < before


@pytest.mark.parametrize("losing", ["race", "fusee"])
def test_a_node_that_is_lost_under_a_view(pools: Any, losing: str) -> None:
    pool = pools(nodes=2, node_size="8MiB")
    store = pool.store(losing, name="v", capacity=200)
    key = key_of(0)
    store.put(key, b"v" * 5000)
    with store.view(key) as seen:
        assert seen == b"v" * 5000
        pool.fail_node(0)
        assert seen == b"v" * 5000  # the mapping stays
        if losing == "fusee":
            assert store.get(key) == b"v" * 5000
            with store.view(key) as beside:
                assert beside == b"v" * 5000
    if losing == "race":
        with pytest.raises(limpet.NodeFailed), store.view(key):
            pass
    store.recover()
    assert pool.audit()["leaked"] == 0


def test_views_of_a_writer_and_a_process_that_replaces_are_whole(store: Any) -> None:
    """A second process gives the key other values all the time; each view is of one of them."""
    size = 9000
    store.put(b"k", bytes([1]) * size)
    url, kind = store.pool.url, store.kind
    child = os.fork()
    if child == 0:
        try:
            with limpet.open(url) as pool:
                mine = pool.store(kind, name="v")
                for number in range(2000 if limpet.build == "compiled" else 60):
                    mine.put(b"k", bytes([number % 250 + 1]) * size)
        finally:
            os._exit(0)
    views = 0
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        with store.view(b"k") as seen:
            first = bytes(seen)
            assert len(set(first)) == 1
            assert seen == first
        views += 1
    assert views > 3
    sound(store)


def test_the_exception_of_a_block_goes_on_though_an_array_keeps_the_pool_open(
    store: Any, pools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(b"k", b"v" * 100)
    url, kind = store.pool.url, store.kind
    kept = []
    pool = limpet.open(url)

    def fail_in_a_block() -> None:
        with pool, pool.store(kind, name=store.name).view(b"k") as value:
            kept.append(value[1:])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_a_block()
    assert not pool.closed
    assert "1 of its values are viewed" in caplog.text
    kept.clear()
    pool.close()


@pytest.mark.parametrize("copied", [False, True])
def test_a_view_is_refused_when_the_pool_is_closed_before_it_is_kept(
    store: Any, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """By a thread that has looked before whether there are views."""
    store.put(b"key", b"value")
    keep = store.pool.keepers.memory

    def closed(*given: Any) -> Any:
        PoolCore.close(store.pool)
        return None if copied else keep(*given)

    monkeypatch.setattr(store.pool.keepers, "memory", closed)
    with pytest.raises(limpet.PoolClosed):
        store.view(b"key").memory()
    assert not store.pool.keepers.all


def test_a_lending_that_meets_the_end_of_the_mapping_says_that_the_pool_was_closed() -> None:
    """The portable endpoint is amid its `detach`."""
    mapping = memoryview(b"")
    mapping.release()
    pool = SimpleNamespace(closed=True, url="shm://p")
    endpoint = SimpleNamespace(lend=lambda *_: mapping[0])
    with pytest.raises(limpet.PoolClosed, match="shm://p: this handle was closed"):
        views.lend(SimpleNamespace(pool=pool, endpoint=endpoint), 0, 1, False)


def test_two_threads_close_a_pool_while_the_object_of_a_view_is_given_back(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has closed it when this one is to enter the operation for that."""

    def settle(client: Any) -> None:
        PoolCore.close(store.pool)
        with client:
            pass

    monkeypatch.setattr(pools_of_stores, "settle_late", settle)
    store.pool.close()
    assert store.pool.closed


def test_a_handle_that_has_resigned_in_a_block_can_be_closed(store: Any, other: Any) -> None:
    store.put(b"key", b"value")
    nowhere = 9 << NODE_SHIFT | 4096

    def cut_off() -> None:
        with store.client:
            store.client.log(nowhere, 0)
            raise RuntimeError

    with store.view(b"key"), pytest.raises(limpet.ClientError, match="close the pool"):
        cut_off()
    store.pool.close()
    other.pool.recover()
    assert other.pool.audit()["held"] == 0
    assert other.get(b"key") == b"value"
