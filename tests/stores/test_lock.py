"""`pool.lock`: the standard library's tests of locks, threads, forks, and other processes."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
import unittest
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from kit import processes

import limpet
from limpet.shm.errors import ChannelRemoved, StoreMismatch
from limpet.stores.channels.atomic_var import AtomicVar

DOES_NOT_APPLY = {
    "test_repr": "what a channel shows is its name and pool",
    "test_locked_repr": "as above; to look takes a verb",
    "test_acquire_destroy": "the lock outlives its handle, as it is every client's: see below",
    "test_at_fork_reinit": "a forked child has an identity, and so a state, of its own",
}
"""Tests of test.lock_tests."""


@pytest.mark.exhaustive("they sleep a lot")
@pytest.mark.parametrize("suite", ["LockTests", "RLockTests"])
def test_the_standard_library_s_tests_pass(pools: Any, suite: str) -> None:
    lock_tests = pytest.importorskip("test.lock_tests")
    pool = pools()
    recursive = suite == "RLockTests"
    numbers = iter(range(1000))

    class Adapted(getattr(lock_tests, suite)):
        def locktype(self) -> Any:
            return pool.lock(f"lock {next(numbers)}", recursive=recursive)

    for name in DOES_NOT_APPLY:
        setattr(Adapted, name, None)
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Adapted)
    result = unittest.TestResult()
    tests.run(result)
    assert [trace for _, trace in result.failures + result.errors] == []
    assert result.testsRun >= 13


# ---- threads ------------------------------------------------------------------------------------


class SlowLine(deque):
    """A thread that takes another one out of it stands still for a moment before going on."""

    def popleft(self) -> Any:
        gate = super().popleft()
        time.sleep(0.3)
        return gate


@pytest.mark.skipif(limpet.build == "compiled", reason="no other thread runs at that place")
def test_who_is_out_of_time_as_the_lock_is_handed_over_has_it(pools: Any) -> None:
    lock = pools().lock("l")
    lock.acquire()
    lock.line = SlowLine()
    got: list[bool] = []
    waiter = threading.Thread(target=lambda: got.append(lock.acquire(timeout=0.2)))
    waiter.start()
    while not lock.line:
        time.sleep(0.001)
    lock.release()
    waiter.join()
    assert got == [True]
    lock.release()
    assert lock.acquire(timeout=60)
    lock.release()


def test_threads_exclude_each_other_and_other_processes(pools: Any) -> None:
    pool = pools()
    counter = AtomicVar(pool.channels, "counter")
    times = 300 if limpet.build == "compiled" else 60

    def work(lock: Any, counter: Any) -> None:
        for _ in range(times):
            with lock:
                counter.store(counter.load() + 1)

    def threads() -> None:
        mine = limpet.open(pool.url)
        lock = mine.lock("lock")
        counter = AtomicVar(mine.channels, "counter")
        running = [threading.Thread(target=work, args=(lock, counter)) for _ in range(3)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    processes.gather(threads, threads)
    assert counter.load() == 6 * times


def cas_of(lock: Any) -> int:
    """CASes of this process; a release is in the background."""
    return sum(lock.endpoint.counters(scope)["cas"] for scope in ("foreground", "background"))


def test_a_thread_hands_over_without_a_verb(pools: Any) -> None:
    lock = pools().lock("lock")
    lock.acquire()
    taken = []

    def wait() -> None:
        with lock:
            taken.append(cas_of(lock))

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    while len(lock.line) < 2:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert not lock.acquire(timeout=0.01)
    before = cas_of(lock)
    lock.release()
    for thread in threads:
        thread.join()
    assert taken == [before, before]
    assert cas_of(lock) == before + 1
    assert not lock.locked()


def test_threads_do_not_hand_over_for_ever(pools: Any) -> None:
    """Another process gets its turn while two threads of this one use the lock all the time."""
    pool = pools()
    lock = pool.lock("lock")
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            with lock:
                time.sleep(0)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()

    def other() -> bool:
        with limpet.open(pool.url) as mine:
            theirs = mine.lock("lock")
            for _ in range(5):
                if not theirs.acquire(timeout=20):
                    return False
                theirs.release()
        return True

    try:
        assert processes.gather(other) == [True]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_who_gives_up_in_line_leaves_nobody_behind(pools: Any) -> None:
    lock = pools().lock("lock")

    def impatient() -> None:
        for attempt in range(30):
            if lock.acquire(timeout=0.0005 * (attempt % 4)):
                time.sleep(0.0003)
                lock.release()

    threads = [threading.Thread(target=impatient) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lock.acquire(timeout=60)
    lock.release()
    assert not lock.line
    assert not lock.delegated


def test_ctrl_c_ends_the_wait(pools: Any) -> None:
    """Of a delegate, and of a thread in line."""

    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    pool = pools()
    lock = pool.lock("lock")
    other = pools.again(pool).lock("lock")
    previous = signal.signal(signal.SIGALRM, ring)
    try:
        for holder in (lock, other):
            holder.acquire()
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(Alarm):
                lock.acquire()
            holder.release()
            assert lock.acquire(timeout=60)
            lock.release()
            assert not lock.line
            assert not lock.delegated
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_ctrl_c_that_does_not_interrupt_the_sleep_ends_the_wait_in_line(pools: Any) -> None:
    """As the kernel let another thread have the signal, or it came between two sleeps."""

    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    lock = pools().lock("lock")
    over = threading.Event()

    def other() -> None:
        time.sleep(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGALRM)
        over.wait(60)
        lock.release()

    lock.acquire()
    thread = threading.Thread(target=other)
    previous = signal.signal(signal.SIGALRM, ring)
    try:
        thread.start()
        with pytest.raises(Alarm):
            lock.acquire()
    finally:
        signal.signal(signal.SIGALRM, previous)
        over.set()
        thread.join()
    assert lock.acquire(timeout=60)


def test_conditions_can_be_made_of_it(pools: Any) -> None:
    for recursive in (False, True):
        lock = pools().lock("lock", recursive=recursive)
        condition = threading.Condition(lock)
        ready = []

        def wait(condition: Any = condition, ready: Any = ready) -> None:
            with condition:
                assert condition.wait_for(lambda: ready, timeout=10)

        thread = threading.Thread(target=wait)
        thread.start()
        with condition:
            ready.append(1)
            condition.notify()
        thread.join()
        assert not lock.locked()


# ---- processes ----------------------------------------------------------------------------------


def test_a_forked_child_does_not_hold_what_its_parent_holds(pools: Any) -> None:
    lock = pools().lock("lock")
    lock.acquire()

    def child() -> tuple[bool, bool, str]:
        try:
            lock.release()
        except RuntimeError as error:
            said = str(error)
        return lock.locked(), lock.acquire(blocking=False), said

    assert processes.gather(child) == [(True, False, "release unlocked lock")]
    lock.release()
    assert processes.gather(lambda: lock.acquire(timeout=60)) == [True]
    assert lock.acquire(timeout=60)
    assert lock.inherited
    lock.release()


def test_who_dies_with_the_lock_leaves_it_to_the_others(pools: Any) -> None:
    pool = pools()
    lock = pool.lock("lock", recursive=True)

    def child() -> None:
        with limpet.open(pool.url) as mine:
            lock = mine.lock("lock", recursive=True)
            lock.acquire()
            lock.acquire()
            os.kill(os.getpid(), signal.SIGKILL)

    for blocking in (True, False):
        with processes.children([child]) as ((pid, out),):
            out.read()
            os.waitpid(pid, 0)
        assert lock.locked()
        assert lock.acquire(blocking)
        assert lock.inherited
        lock.release()
        assert lock.acquire()
        assert not lock.inherited
        lock.release()


def test_it_is_the_same_by_name_and_by_pickle(pools: Any) -> None:
    pool = pools()
    lock = pool.lock("lock")
    assert pool.lock("lock") is lock
    assert pickle.loads(pickle.dumps(lock)).parameters == lock.parameters
    lock.acquire()
    data = pickle.dumps(lock)
    assert processes.gather(lambda: pickle.loads(data).acquire(blocking=False)) == [False]
    lock.release()
    for handle in (pool, pools.again(pool)):
        with pytest.raises(StoreMismatch):
            handle.lock("lock", recursive=True)


def test_a_lock_outlives_its_handle(pools: Any) -> None:
    """And only a living client that has it can give it back."""
    pool = pools()
    other = pools.again(pool).lock("lock")
    pool.lock("lock").acquire()
    gc.collect()
    assert other.locked()
    assert not other.acquire(blocking=False)
    pool.close()
    assert other.acquire(timeout=5)
    assert other.inherited
    other.release()


def test_a_new_handle_gives_back_what_a_forgotten_one_took(pools: Any) -> None:
    pool = pools()
    other = pools.again(pool).lock("lock")
    pool.lock("lock").acquire()
    gc.collect()
    with pytest.raises(RuntimeError):
        other.release()
    pool.lock("lock").release()
    with pytest.raises(RuntimeError):
        pool.lock("lock").release()
    assert other.acquire(blocking=False)
    other.release()


def test_threads_in_line_are_told_that_the_channel_is_gone(pools: Any) -> None:
    pool = pools()
    lock = pool.lock("lock")
    lock.acquire()
    said = []

    def wait() -> None:
        try:
            lock.acquire()
        except ChannelRemoved:
            said.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    while not lock.line:
        time.sleep(0.001)
    pool.channels.remove("lock")
    thread.join(60)
    assert said == [True]


def test_arguments_are_those_of_threading(pools: Any) -> None:
    lock = pools().lock("lock")
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (ValueError, lambda: lock.acquire(False, 1)),
        (ValueError, lambda: lock.acquire(timeout=-2)),
        (ValueError, lambda: lock.acquire(timeout=float("nan"))),
        (OverflowError, lambda: lock.acquire(timeout=1e20)),
        (TypeError, lambda: lock.acquire(timeout="1")),
        (RuntimeError, lock.release),
    ]
    for error, call in calls:
        with pytest.raises(error):
            call()
    assert lock.acquire(timeout=0)
    assert not lock.acquire(timeout=0)
    lock.release()


def test_waiting_costs_no_core(pools: Any) -> None:
    pool = pools()
    lock = pool.lock("lock")
    assert pools.again(pool).lock("lock").acquire()
    used = time.process_time()
    assert not lock.acquire(timeout=0.4)
    assert time.process_time() - used < 0.2


def test_nobody_is_killed_for_holding_the_lock_for_long(pools: Any) -> None:
    """Longer than a lease, in which its process makes nothing that others could see."""
    pool = pools(lease=0.01, fence="kill")
    told, tell = os.pipe()

    def holder() -> bool:
        with limpet.open(pool.url) as mine:
            lock = mine.lock("lock")
            with lock:
                os.read(told, 1)
            return True

    lock = pool.lock("lock")
    with processes.children([holder]) as ((pid, out),):
        while not lock.locked():
            time.sleep(0.001)
        assert not lock.acquire(timeout=0.1)
        os.write(tell, b"x")
        assert lock.acquire(timeout=60)
        assert not lock.inherited
        assert pickle.loads(out.read()) is True
        os.waitpid(pid, 0)
    lock.release()
    os.close(told)
    os.close(tell)
