"""One operation at a time, and none for ever: what a signal handler cuts off is over."""

from __future__ import annotations

import ast
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.shm.endpoint.slots import PIN

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("shm", "stores", "fault", "bench", "limpet/cli")
    for path in (ROOT / folder).rglob("*.py")
)
OUTSIDE = {"shm/leaving.py"}
"""`close_handle` enters where no signal handler runs, or for good."""


class Cut(BaseException):
    """Raised by a signal handler."""


def is_call(node: ast.AST, *names: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
        and not node.args
    )


def enters(node: ast.AST) -> bool:
    """Whether that is a call which begins an operation."""
    if is_call(node, "enter"):
        return True
    return is_call(node, "begin") and ast.unparse(node).endswith(
        ("client.begin()", "endpoint.begin()")
    )


def test_no_python_that_is_not_compiled_enters_but_by_a_context_manager() -> None:
    """Between the call and the `try` after it a signal handler can raise."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        if not path.with_suffix(".pxd").exists()  # else it is compiled
        if str(path.relative_to(ROOT)) not in OUTSIDE
        for node in ast.walk(ast.parse(path.read_text()))
        if enters(node)
    ]
    assert found == []


def test_source_that_enters_by_a_call_is_found() -> None:
    bad = "self.client.enter()\ntry:\n    pass\nfinally:\n    self.client.leave()"
    assert any(enters(node) for node in ast.walk(ast.parse(bad)))
    assert not any(enters(node) for node in ast.walk(ast.parse("with self.client:\n    pass")))


def cut_off(pool: Any) -> None:
    """Leave an operation as a signal handler does that raises between two bytecodes."""
    with pytest.raises(Cut):
        _enter_and_raise(pool)


def _enter_and_raise(pool: Any) -> None:
    pool.client.__enter__()
    raise Cut


def pin_of(pool: Any) -> int:
    return int(pool.endpoint.load(pool.client.slot + PIN))


def test_operation_that_was_cut_off_is_over_for_the_next_one(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    cut_off(pool)
    assert pin_of(pool) != 0
    store.put(b"k", b"v")
    assert pin_of(pool) == 0
    assert store.get(b"k") == b"v"
    cut_off(pool)
    assert pool.audit()["leaked"] == 0


def test_operation_that_was_cut_off_is_over_for_other_threads(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    cut_off(pool)
    thread = threading.Thread(target=lambda: store.put(b"k", b"v"), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert store.get(b"k") == b"v"
    assert pin_of(pool) == 0


def test_what_was_in_hand_when_an_operation_was_cut_off_is_settled(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    store.put(b"k", b"v")
    free = pool.audit()["free"]

    def work() -> None:
        pool.client.__enter__()
        pool.allocator.allocate(0, 100)
        raise Cut

    pool.allocator.replenish(0, 100)
    with pytest.raises(Cut):
        work()
    assert store.get(b"k") == b"v"
    pool.audit()
    assert pool.audit()["leaked"] == 0
    assert pool.audit()["free"] <= free


def test_handle_is_not_used_from_inside_its_own_operation(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    with pool.client, pytest.raises(limpet.ReentrantUse):
        store.put(b"k", b"v")
    store.put(b"k", b"v")
    assert store.get(b"k") == b"v"


def test_signal_handler_in_an_operation_cannot_use_the_handle(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    told = []

    def handler(number: int, frame: object) -> None:
        with pytest.raises(limpet.ReentrantUse) as raised:
            store.get(b"k")
        told.append(raised.value)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pool.client:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(told) == 1
    store.put(b"k", b"v")


def test_handle_that_was_cut_off_can_be_closed(pools: Any) -> None:
    pool = pools()
    with limpet.open(pool.url) as other:
        cut_off(other)
    assert [client["client"] for client in pool.clients()] == [pool.client_id]
    assert pool.audit()["leaked"] == 0


def test_operation_that_a_function_entered_for_its_caller_is_not_over(pools: Any) -> None:
    """In the pure build an operation belongs to the frame that it was entered from."""
    pool = pools()
    store = pool.store("loco", name="s", capacity=100)
    store.put(b"k", b"v")
    counter = pool.counter("c")
    other = threading.Thread(target=store.get, args=(b"k",))
    counter.enter()
    other.start()
    other.join(0.1)
    assert other.is_alive(), "another thread took the operation over"
    counter.leave()
    other.join()


def test_a_child_that_is_forked_in_an_operation_does_not_go_on_with_it(pools: Any) -> None:
    """It becomes no client in the midst of it: as one, it would do its parent's steps again."""
    pool = pools()
    read, write = os.pipe()

    def work() -> None:
        child = os.fork()
        if not child:
            for use in (pool.clients, lambda: pool.endpoint.store(pool.client.slot + PIN, 0)):
                try:
                    use()
                except limpet.LimpetError as error:
                    os.write(write, type(error).__name__.encode() + b" ")
            raise SystemExit
        os.waitpid(child, 0)

    parent = os.getpid()
    try:
        pool.exclusively(work)
    except SystemExit:
        os.write(write, b"left %d" % len(pool.clients()))
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert os.read(read, 100) == b"ReentrantUse ClientError left 2"
    os.close(read)
    os.close(write)
