"""Values in place: views stay what they are; what is reserved is linked, or is nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kit.stores import checked, key_of, sound

import limpet
from limpet.shm.alloc.heap import Heap
from limpet.shm.endpoint.layout import HOLDS, NODE_SHIFT
from limpet.shm.endpoint.slots import RECORDS_COUNT
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


def test_a_handle_holds_only_so_many(store: Any) -> None:
    store.put(b"k", b"v" * 100)
    blocks = [store.view(b"k") for _ in range(RECORDS_COUNT)]
    for block in blocks:
        assert block.__enter__() == b"v" * 100
    with pytest.raises(limpet.ClientError, match="viewed or reserved"), store.view(b"k"):
        pass
    with pytest.raises(limpet.ClientError, match="end those blocks"):
        store.pool.close()
    for block in blocks:
        block.__exit__(None, None, None)
    checked(store)


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
