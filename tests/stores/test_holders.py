"""Semaphores and reader-writer locks: as those of threading, and whole when processes die."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import children, dies_at, exit_code, fork, gather

import limpet
from limpet.stores.channels.holders.layout import LINED_SHIFT, NUMBER_MASK, NUMBER_SHIFT

COMPILED = limpet.build == "compiled"
PATIENCE_S = 60.0

DOES_NOT_APPLY = {
    "test_acquire_destroy": "the channel outlives its handle, as it is every client's",
    "test_at_fork_reinit": "a forked child has an identity, and so a state, of its own",
    "test_different_thread": "the thread that got it to write gives it back",
    "test_locked_repr": "what is shown is name, pool and processes",
    "test_reacquire": "a thread that would wait for itself gets an error",
    "test_repr": "what is shown is name, pool and processes",
    "test_thread_leak": "counts threads of the process that have ended",
    "test_weakref_exists": "`write()` makes an object for each use",
    "test_weakref_deleted": "`write()` makes an object for each use",
}
"""Tests of test.lock_tests that cannot pass, and why."""
MAKERS: dict[str, Callable[[Any, str], Callable[..., Any]]] = {
    "SemaphoreTests": lambda pool, name: lambda value=1: pool.semaphore(name, value),
    "BoundedSemaphoreTests": lambda pool, name: lambda value=1: pool.bounded_semaphore(name, value),
    "LockTests": lambda pool, name: lambda: pool.rwlock(name).write(),
}


@pytest.mark.exhaustive("they sleep a lot")
@pytest.mark.parametrize("suite", MAKERS)
def test_the_standard_library_s_tests_pass(pools: Any, suite: str) -> None:
    lock_tests = pytest.importorskip("test.lock_tests")
    pool = pools()
    numbers = iter(range(1000))

    class Adapted(getattr(lock_tests, suite)):
        def semtype(self, *args: Any, **given: Any) -> Any:
            return MAKERS[suite](pool, f"c{next(numbers)}")(*args, **given)

        locktype = semtype

    for name in DOES_NOT_APPLY:
        setattr(Adapted, name, None)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Adapted).run(result)
    assert [trace for _, trace in result.failures + result.errors] == []
    assert result.testsRun >= (7 if suite == "LockTests" else 10)


def taken_and_killed(pool: Any, take: Callable[[], object]) -> None:
    """In a child, which dies then."""

    def doomed() -> None:
        take()
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(fork(doomed)) == -signal.SIGKILL


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def is_lined(lock: Any, line: int = 0) -> bool:
    """Whether clients wait in this line."""
    lock.enter()
    try:
        lock.row()
        lock.read_table()
        return bool(lock.state >> LINED_SHIFT + 13 * line & 0x1FFF)
    finally:
        lock.leave()


# ---- semaphores ---------------------------------------------------------------------------------


def test_permits_of_a_dead_process_go_to_those_that_wait(pools: Any) -> None:
    pool = pools(lease=100)  # none is waited for
    semaphore = pool.semaphore("s", 2)

    def holds() -> None:
        semaphore.acquire()
        semaphore.acquire()
        time.sleep(PATIENCE_S)

    with children([holds]) as [(pid, _)]:
        until(semaphore.locked)
        got: list[Any] = []

        def waits() -> None:
            got.append((semaphore.acquire(timeout=PATIENCE_S), semaphore.inherited))

        threads = [threading.Thread(target=waits) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: is_lined(semaphore))
        assert f"{pid} " in repr(semaphore)
        assert "waiting" in repr(semaphore)
        os.kill(pid, signal.SIGKILL)
        for thread in threads:
            thread.join(PATIENCE_S)
        assert got == [(True, True)] * 2
    semaphore.release(2)
    assert semaphore.acquire()
    assert not semaphore.inherited
    semaphore.release()
    assert semaphore.get_value() == 2


def test_a_signal_that_a_dead_process_took_is_not_given_again(pools: Any) -> None:
    pool = pools()
    semaphore = pool.semaphore("s", 0)
    semaphore.release(3)
    taken_and_killed(pool, semaphore.acquire)
    assert [semaphore.acquire(False) for _ in range(3)] == [True, True, False]


def test_a_process_may_release_what_another_one_acquired(pools: Any) -> None:
    pool = pools()
    mine, others = pool.semaphore("s", 2), pools.again(pool).semaphore("s")
    assert mine.acquire()
    assert mine.acquire()
    others.release(2)
    assert others.get_value() == 2
    mine.pool.close()
    assert [others.acquire(False) for _ in range(3)] == [True, True, False]
    bounded = others.pool.bounded_semaphore("b", 1)
    with pytest.raises(ValueError, match="too many times"):
        bounded.release()
    with pytest.raises(limpet.StoreMismatch):
        others.pool.semaphore("b")
    for wrong in (-1, 1 << 24, 1.5):
        with pytest.raises(limpet.ParameterError):
            others.pool.semaphore("wrong", wrong)


def test_a_forked_child_does_not_release_its_parents_permit(pools: Any) -> None:
    pool = pools()
    semaphore, lock = pool.semaphore("s", 1), pool.rwlock("rw")

    def ends_the_blocks() -> None:
        for held in (semaphore, written):
            with pytest.raises(RuntimeError):
                held.__exit__(None, None, None)

    with semaphore, lock.write() as written:
        assert exit_code(fork(ends_the_blocks)) == 0
        assert semaphore.locked()
        assert written.locked()
    assert semaphore.get_value() == 1


@pytest.mark.parametrize("kind", ["semaphore", "readers", "writers"])
def test_never_more_hold_than_may_while_processes_are_killed(pools: Any, kind: str) -> None:
    """Each holder marks a place of its own, with another mark each time: marks that are there in
    two looks were there together. A victim is stopped, and its mark is cleared, before it is
    killed: so no mark is there without its hold."""
    pool = pools()
    workers, most = 4, 2 if kind == "semaphore" else 1
    inside, wrong, rounds = pool.array("in", workers), pool.counter("wrong"), pool.counter("n")
    held: Any = pool.semaphore("s", most)
    if kind != "semaphore":
        lock = pool.rwlock("rw", prefer=kind)
        held = lock.write()

    def count() -> int:
        marks = [{*inside[:].tolist()} - {0} for _ in range(2)]
        return len(marks[0] & marks[1])

    def works(number: int) -> None:
        for mark in itertools.count(os.getpid() << 32):
            if kind != "semaphore" and number % 2:
                with lock.read():
                    if count():
                        wrong.add()
            else:
                with held:
                    inside[number] = mark
                    if count() > most:
                        wrong.add()
                    inside[number] = 0
            rounds.add()

    running: list[int] = []
    try:
        running = [fork(lambda n=n: works(n)) for n in range(workers)]  # type: ignore[misc]
        for turn in range(16 if COMPILED else 6):
            number = turn % workers
            before = rounds.value
            until(lambda before=before: rounds.value > before + 3)  # type: ignore[misc]
            os.kill(running[number], signal.SIGSTOP)
            os.waitpid(running[number], os.WUNTRACED)
            inside[number] = 0
            os.kill(running[number], signal.SIGKILL)
            os.waitpid(running[number], 0)
            running[number] = fork(lambda number=number: works(number))  # type: ignore[misc]
        # Before the marks of those that are killed next stay.
        assert wrong.value == 0
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert [held.acquire(timeout=PATIENCE_S) for _ in range(most)] == [True] * most
    assert not held.acquire(False)


def test_a_kill_at_any_step_loses_no_permit_and_makes_none(pools: Any) -> None:
    pool = pools(lease=100)  # none is waited for
    semaphore = pool.bounded_semaphore("s", 3)

    def works() -> None:
        semaphore.acquire()
        semaphore.acquire()
        semaphore.release()
        semaphore.release()

    fuse, running = 0, True
    while running:
        fuse += 1
        running = dies_at(pool, fuse, works)
        assert [semaphore.acquire(False) for _ in range(4)] == [True, True, True, False], fuse
        semaphore.release(3)
    assert fuse > 10


def test_numbers_of_changes_of_holders_wrap(pools: Any) -> None:
    pool = pools()
    semaphore = pool.semaphore("s", 2)
    for ahead in (NUMBER_MASK, (1 << 32) - 2):
        semaphore.resign()
        word = pool.endpoint.load(semaphore.address)
        low = word & (1 << NUMBER_SHIFT) - 1
        pool.endpoint.store(semaphore.address, ahead - 2 << NUMBER_SHIFT | low)
        other = pools.again(pool).semaphore("s")
        for _ in range(5):
            for one in (semaphore, other):
                assert one.acquire(False)
                assert other.get_value() == 1
                one.release()
        assert other.get_value() == 2
        other.pool.close()


def test_a_semaphore_is_passed_to_other_processes(pools: Any) -> None:
    semaphore = pools().semaphore("s", 1)
    again = pickle.loads(pickle.dumps(semaphore))
    try:
        with again:
            assert not semaphore.acquire(False)
    finally:
        again.pool.close()


# ---- reader-writer locks ------------------------------------------------------------------------


def test_readers_read_together_and_a_writer_writes_alone(pools: Any) -> None:
    pool = pools()
    lock, pair = pool.rwlock("rw"), pool.array("pair", 2)
    met, both_in = pool.barrier("met", 2), pool.event("both are in")

    def reads() -> None:
        with lock.read():
            met.wait(PATIENCE_S)
        both_in.set()
        for _ in range(200):
            with lock.read():
                assert pair[0] == pair[1]

    def writes() -> None:
        # A reader that comes after a waiting writer waits for it.
        assert both_in.wait(PATIENCE_S)
        for _ in range(200):
            with lock.write():
                pair[0] += 1
                pair[1] += 1

    gather(reads, reads, writes, writes)
    assert list(pair) == [400, 400]


@pytest.mark.parametrize("prefer", ["writers", "readers"])
def test_who_is_preferred_goes_first(pools: Any, prefer: str) -> None:
    """A newcomer of the other kind waits, unless its thread reads already."""
    pool = pools()
    lock, others = pool.rwlock("rw", prefer=prefer), pools.again(pool).rwlock("rw")
    first = others.write() if prefer == "writers" else others.read()
    held = lock.read() if prefer == "writers" else lock.write()
    held.acquire()

    def waits() -> None:
        with first:
            pass

    thread = threading.Thread(target=waits)
    thread.start()
    until(lambda: is_lined(lock, first.line))
    again = lock.read()
    assert again.acquire(False) == (prefer == "writers")
    if prefer == "writers":
        again.release()
        newcomer: list[bool] = []
        reader = threading.Thread(target=lambda: newcomer.append(lock.read().acquire(False)))
        reader.start()
        reader.join()
        assert newcomer == [False]
    held.release()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not is_lined(lock, first.line)


def test_the_death_of_a_writer_is_told_until_another_one_has_written(pools: Any) -> None:
    pool = pools(lease=100)  # none is waited for
    lock = pool.rwlock("rw")
    taken_and_killed(pool, lock.read().acquire)
    with lock.write(timeout=PATIENCE_S) as written:
        assert not written.inherited
    taken_and_killed(pool, lock.write().acquire)
    for side, told in (
        (lock.read(PATIENCE_S), True),
        (lock.read(PATIENCE_S), True),
        (lock.write(PATIENCE_S), True),
        (lock.write(PATIENCE_S), False),
        (lock.read(PATIENCE_S), False),
    ):
        with side:
            assert side.inherited == told


def test_a_stopped_waiter_keeps_others_from_a_free_lock_for_a_moment_only(pools: Any) -> None:
    pool = pools()
    lock = pool.rwlock("rw")
    held = lock.read()
    held.acquire()
    with children([lambda: lock.write().acquire(timeout=PATIENCE_S)]) as [(pid, _)]:
        until(lambda: is_lined(lock, 1))
        os.kill(pid, signal.SIGSTOP)
        held.release()
        for _ in range(3):
            began = time.monotonic()
            with lock.read(timeout=PATIENCE_S):
                assert time.monotonic() - began < 5
        os.kill(pid, signal.SIGCONT)
        until(lock.write().locked)


def test_a_thread_that_would_wait_for_itself_gets_an_error(pools: Any) -> None:
    lock = pools().rwlock("rw")
    with lock.read():
        with pytest.raises(RuntimeError, match="wait for itself"), lock.write():
            pass
        assert not lock.write().acquire(timeout=0.001)
        with pytest.raises(TimeoutError), lock.write(timeout=0.001):
            pass
    with lock.write(), pytest.raises(RuntimeError, match="wait for itself"), lock.read():
        pass
    for side in (lock.read(), lock.write()):
        assert not side.locked()
        with pytest.raises(RuntimeError, match="does not have"):
            side.release()
    with pytest.raises(limpet.ParameterError):
        lock.pool.rwlock("other", prefer="nobody")


def test_handlers_that_raise_leave_no_line_and_no_permit_too_many(pools: Any) -> None:
    """At many moments of waiting and taking."""

    class Rung(Exception):
        pass

    def ring(*_: object) -> None:
        raise Rung

    semaphore = pools().semaphore("s", 1)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        for turn in range(100):
            if turn % 2:
                semaphore.acquire()
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 * (turn + 1))
                semaphore.acquire(timeout=0.004)
                time.sleep(0.01)
            except Rung:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert not is_lined(semaphore)
            # It may have been raised when `acquire` had just returned.
            semaphore.resign()
            assert semaphore.get_value() == 1, turn
    finally:
        signal.signal(signal.SIGALRM, before)


def test_another_number_of_permits_or_preference_is_a_mismatch(pools: Any) -> None:
    """It looked again and again."""
    pool = pools()
    pool.semaphore("s", 2)
    pool.rwlock("rw", prefer="readers")
    with pytest.raises(limpet.StoreMismatch):
        pool.semaphore("s", 3)
    with pytest.raises(limpet.StoreMismatch):
        pool.bounded_semaphore("s", 2)
    with pytest.raises(limpet.StoreMismatch):
        pool.rwlock("rw", prefer="writers")
