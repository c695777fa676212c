"""Sleeping on a word, and being woken: between processes, on both fabrics."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import signal
import sys
import time
from typing import Any

import pytest
from kit.fabrics import BOTH, SIZE, endpoint_on
from kit.processes import exit_codes, fork

from limpet.shm.endpoint import portable
from limpet.shm.errors import AddressError

WORD = 64
READY = 128
LONG_US = 60_000_000
HIGH = 7 << 32
"""The upper half of a word does not concern clients that sleep on it."""


@pytest.fixture(params=BOTH)
def fabric(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_sleeper_of_another_process_is_woken(fabric: Any) -> None:
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        endpoint.store(WORD, HIGH | 5)

        def sleep() -> None:
            while endpoint.load(WORD) == HIGH | 5:
                assert endpoint.futex_wait(WORD, 5, LONG_US) == 1
            assert endpoint.futex_wait(WORD, 5, LONG_US) == 1

        children = [fork(sleep) for _ in range(2)]
        time.sleep(0.02)
        began = time.monotonic()
        endpoint.store(WORD, HIGH | 6)
        endpoint.futex_wake(WORD, 2)
        assert exit_codes(children) == [0, 0]
        assert time.monotonic() - began < LONG_US / 1e6


def test_as_many_are_woken_as_was_asked_for(fabric: Any) -> None:
    """Natively; in the portable fabric no client has to be woken."""
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:

        def sleep() -> None:
            endpoint.faa(READY, 1)
            endpoint.futex_wait(WORD, 0, LONG_US)

        children = [fork(sleep) for _ in range(3)]
        while endpoint.load(READY) < 3:
            endpoint.pause(50)
        woken = []
        end = time.monotonic() + 60
        while sum(woken) < 3 and time.monotonic() < end:
            woken.append(endpoint.futex_wake(WORD, 1))
            if fabric.__name__.endswith("portable"):
                endpoint.store(WORD, 1)
                break
            endpoint.pause(50)
        assert exit_codes(children) == [0, 0, 0]
        assert set(woken) <= {0, 1}
        assert endpoint.futex_wake(WORD, 1) == 0


def test_a_word_that_differs_lets_nobody_sleep(fabric: Any) -> None:
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        began = time.monotonic()
        assert endpoint.futex_wait(WORD, 1, LONG_US) == 1
        assert time.monotonic() - began < LONG_US / 1e6


def test_the_time_is_over(fabric: Any) -> None:
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        began = time.monotonic()
        assert endpoint.futex_wait(WORD, 0, 0) == 0
        assert endpoint.futex_wait(WORD, 0, 20_000) == 0
        assert 0.015 < time.monotonic() - began < LONG_US / 1e6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_other_threads_run_and_signal_handlers_raise(fabric: Any) -> None:
    """A signal may come while an object is being deleted, and is lost then; so there are some."""

    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        previous = signal.signal(signal.SIGALRM, ring)
        try:
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.5)
            with pytest.raises(Alarm):
                endpoint.futex_wait(WORD, 0, LONG_US)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert time.monotonic() - began < LONG_US / 1e6
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)


def test_a_node_that_is_let_go_of_during_the_sleep_is_no_crash(fabric: Any) -> None:
    endpoint = fabric.Endpoint()
    mapping = mmap.mmap(-1, SIZE)
    endpoint.attach(0, mapping, SIZE)

    def let_go(*_: object) -> None:
        endpoint.detach()
        mapping.close()

    previous = signal.signal(signal.SIGALRM, let_go)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(AddressError):
            endpoint.futex_wait(WORD, 0, LONG_US)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class LetGo:
    """A profiler that lets go of the memory at the `left`-th event, as a pool does."""

    def __init__(self, endpoint: Any, mapping: mmap.mmap, left: int) -> None:
        self.endpoint = endpoint
        self.mapping = mapping
        self.left = left

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            self.endpoint.detach()
            with contextlib.suppress(BufferError):
                self.mapping.close()


@pytest.mark.parametrize(
    ("verb", "more", "result"),
    [("load", (), 0), ("futex_wait", (1, 0), 1), ("futex_wake", (1,), 0), ("place_of", (), 0)],
)
def test_a_node_may_be_let_go_of_between_any_two_steps_of_a_portable_look(
    verb: str, more: tuple[int, ...], result: int
) -> None:
    """Signal handlers run between any two bytecodes: here at each call and return in turn."""
    outcomes = set()
    for step in itertools.count(1):
        mapping = mmap.mmap(-1, SIZE)
        with endpoint_on(portable, mapping) as endpoint:
            watch = LetGo(endpoint, mapping, step)
            sys.setprofile(watch)
            try:
                found = getattr(endpoint, verb)(WORD, *more)
            except AddressError:
                outcomes.add("detached")
            else:
                outcomes.add(found)
            finally:
                sys.setprofile(None)
        if watch.left > 0:
            break
    assert step > 5
    assert outcomes == {"detached", result}


def test_sleeping_costs_no_core(fabric: Any) -> None:
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        used = time.process_time()
        assert endpoint.futex_wait(WORD, 0, 200_000) == 0
        assert time.process_time() - used < 0.1


@pytest.mark.parametrize("expected", [-1, 1 << 32])
def test_what_is_no_half_of_a_word_is_refused(fabric: Any, expected: int) -> None:
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint, pytest.raises(OverflowError):
        endpoint.futex_wait(WORD, expected, 0)


def test_neither_is_counted_nor_a_step_of_the_fuse(fabric: Any) -> None:
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        before = endpoint.counters()
        endpoint.fuse = 1
        endpoint.futex_wait(WORD, 0, 0)
        endpoint.futex_wake(WORD, 1)
        assert (endpoint.fuse, endpoint.counters()) == (1, before)
        endpoint.fuse = 0
