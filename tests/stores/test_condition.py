"""Conditions: as those of threading, between the threads of several processes."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import unittest
from typing import Any

import pytest
from kit.processes import children, gather, start

import limpet
from limpet.shm.endpoint.fabric import Endpoint
from limpet.stores.channels import condition as conditions
from limpet.stores.channels.condition import PLACE, PLACES_AT, STATE, WAITING
from limpet.stores.channels.layout import MOMENT, MOMENTS
from limpet.stores.channels.lock.ticket_layout import QUEUED

WAITS_S = 60.0


def sleeps(pool: Any, condition: Any, number: int = 0) -> None:
    """Wait until a client sleeps there, at the place of this number."""
    end = time.monotonic() + WAITS_S
    at = condition.address + PLACES_AT + number * PLACE
    while pool.endpoint.load(at) & STATE != WAITING:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_processes_are_woken_by_another_one(pools: Any) -> None:
    pool = pools()
    condition, ready = pool.condition("c"), pool.counter("ready")

    def waiter() -> bool:
        with condition:
            return bool(condition.wait_for(lambda: ready.value, timeout=WAITS_S))

    def notifier() -> None:
        sleeps(pool, condition)
        with condition:
            ready.add(1)
            condition.notify(2)

    assert gather(waiter, waiter, notifier)[:2] == [True, True]
    assert not condition.lock.locked()


def test_what_is_notified_before_a_thread_sleeps_is_not_missed(pools: Any) -> None:
    """One gives the lock back, and the other notifies at once."""
    pool = pools()
    condition, turn = pool.condition("c"), pool.counter("turn")
    rounds = 200

    def player(mine: int) -> int:
        for _ in range(rounds):
            with condition:
                assert condition.wait_for(lambda: turn.value % 2 == mine, timeout=WAITS_S)
                turn.add(1)
                condition.notify_all()
        return turn.value

    gather(lambda: player(0), lambda: player(1))
    assert turn.value == 2 * rounds


def test_a_thread_that_was_notified_is_not_overtaken_by_a_newcomer(pools: Any) -> None:
    """A thread that took the lock again and again let others in only when it waited itself."""
    pool = pools()
    mine, waiters = pool.condition("c"), pools.again(pool).condition("c")
    order = []

    def wait() -> None:
        with waiters:
            waiters.wait()
            order.append("waiter")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    sleeps(pool, mine)
    mine.acquire()
    mine.notify_all()
    while not pool.endpoint.load(mine.lock.address) & QUEUED:
        time.sleep(0.001)
    mine.release()
    with mine:
        order.append("newcomer")
    thread.join(WAITS_S)
    assert order == ["waiter", "newcomer"]


class PausingEndpoint(Endpoint):
    """Notes its longer pauses."""

    def __init__(self) -> None:
        self.pauses: list[int] = []

    def pause(self, attempt: int) -> int:
        if attempt >= MOMENT:
            self.pauses.append(attempt)
        return super().pause(attempt)


class PausingPool(limpet.Pool):
    endpoint_class = PausingEndpoint


@pytest.mark.parametrize("loop", ["wait_for", "wait"])
def test_a_thread_that_waits_in_vain_does_not_come_to_the_lock_in_step_with_others(
    pools: Any, loop: str
) -> None:
    """It would find its condition false each time, though it is true in between."""
    pool = pools()
    mine, waiters = pool.condition("c"), pools.keep(PausingPool.open(pool.url)).condition("c")
    looks = []

    def is_true() -> bool:
        looks.append(len(waiters.endpoint.pauses))
        return len(looks) > 2 * MOMENTS

    def wait() -> None:
        with waiters:
            if loop == "wait_for":
                waiters.wait_for(is_true)
            else:
                while not is_true():
                    waiters.wait()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while thread.is_alive():
        with mine:
            mine.notify_all()
        time.sleep(0.001)
    assert looks[:2] == [0, 0], "a first wait ends as soon as it can"
    assert len(looks) == 2 * MOMENTS + 1
    assert set(waiters.endpoint.pauses) == set(range(MOMENT, MOMENT + MOMENTS))


def test_a_thread_that_waits_learns_that_the_lock_was_left_by_a_dead_process(pools: Any) -> None:
    pool = pools()
    condition = pool.condition("c")

    def waiter() -> tuple[bool, bool]:
        with condition:
            return condition.wait(timeout=WAITS_S), condition.inherited

    def victim() -> None:
        sleeps(pool, condition)
        condition.acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    with children([waiter]) as [(pid, out)]:
        dead, end = start(victim)
        end.close()
        os.waitpid(dead, 0)
        assert out.read()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_notify_wakes_as_many_threads_as_it_says_the_first_ones_first(pools: Any) -> None:
    """Also if there are few places: then it may wake more of those without one."""
    condition = pools().condition("c")
    order: list[int] = []

    def wait(number: int) -> None:
        with condition:
            order.append(number)
            assert condition.wait(WAITS_S)
            woken.append(number)

    woken: list[int] = []
    threads = [threading.Thread(target=wait, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()

    def notify(n: int, expected: int) -> None:
        with condition:
            condition.notify(n)
        end = time.monotonic() + WAITS_S
        while len(woken) < expected and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.03)
        with condition:
            assert sorted(woken) == sorted(order[:expected])

    while len(order) < 6:
        time.sleep(0.001)
    notify(1, 1)
    notify(2, 3)
    notify(9, 6)
    for thread in threads:
        thread.join()


def test_a_notify_of_a_process_that_died_of_it_goes_to_another_thread(pools: Any) -> None:
    """And one that waits no more, as its time was over, or it is dead, takes none."""
    pool = pools()
    condition = pool.condition("c")

    def waiter() -> bool:
        with condition:
            return condition.wait(timeout=WAITS_S)

    with condition:
        assert not condition.wait(0.01)
    with children([waiter]) as [(first, _)]:
        sleeps(pool, condition)
        with condition:
            pass  # it has given the lock back
        os.kill(first, signal.SIGSTOP)
        with children([waiter, waiter]) as second:
            sleeps(pool, condition, 2)
            with condition:
                condition.notify(1)  # the first one's, which is stopped
            os.kill(first, signal.SIGKILL)
            os.kill(second[1][0], signal.SIGKILL)
            os.waitpid(second[1][0], 0)
            assert second[0][1].read()
            assert os.waitpid(second[0][0], 0)[1] == 0
        with children([waiter]) as [(pid, out)]:
            sleeps(pool, condition)
            with condition:
                condition.notify(1)
            assert out.read()
            assert os.waitpid(pid, 0)[1] == 0


def test_a_thread_takes_one_notify_where_it_inherits_another(pools: Any) -> None:
    """That of a dead process; the second one goes to the next thread."""
    pool = pools()
    condition = pool.condition("c")

    def waiter() -> bool:
        with condition:
            return condition.wait(timeout=WAITS_S)

    with children([waiter]) as [(first, _)]:
        sleeps(pool, condition)
        with children([waiter]) as [(_, second)]:
            sleeps(pool, condition, 1)
            with children([waiter]) as [(_, third)]:
                sleeps(pool, condition, 2)
                with condition:
                    condition.notify(1)
                    os.kill(first, signal.SIGKILL)
                    os.waitpid(first, 0)
                    time.sleep(0.05)  # the second one has seen it by now, and waits for the lock
                    condition.notify(1)
                assert pickle.load(second)
                assert pickle.load(third)


def test_all_threads_learn_of_a_change_whose_process_died_before_its_notify(pools: Any) -> None:
    """Also those that do not run until another thread has had the lock."""
    pool = pools()
    condition, done = pool.condition("c"), pool.counter("done")

    def waiter() -> bool:
        with condition:
            return bool(condition.wait_for(lambda: done.value))

    def victim() -> None:
        condition.acquire()
        done.add(1)
        os.kill(os.getpid(), signal.SIGKILL)

    with children([waiter, waiter]) as both:
        sleeps(pool, condition, 1)
        with condition:
            pass  # they have given the lock back
        for pid, _ in both:
            os.kill(pid, signal.SIGSTOP)
        dead, end = start(victim)
        end.close()
        os.waitpid(dead, 0)
        with condition:
            assert condition.inherited
        for pid, _ in both:
            os.kill(pid, signal.SIGCONT)
        assert all(pickle.load(out) for _, out in both)


def test_wait_for_with_a_timeout_waits_at_one_place(pools: Any) -> None:
    """It lined up anew every 5 ms, as the last one."""
    condition = pools().condition("c")
    looks = []
    with condition:
        assert not condition.wait_for(lambda: looks.append(1), timeout=0.1)
    assert len(looks) == 2


def test_more_threads_than_places_are_woken(pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "PLACES", 2)
    condition = pools().condition("c")
    waiting: list[int] = []
    done: list[bool] = []

    def wait() -> None:
        with condition:
            waiting.append(1)
            done.append(condition.wait(WAITS_S))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(waiting) < 4:
        time.sleep(0.001)
    with condition:
        condition.notify(3)
    for thread in threads:
        thread.join()
    assert done == [True] * 4


@pytest.mark.exhaustive("they sleep a lot")
def test_the_standard_library_s_tests_pass(pools: Any) -> None:
    lock_tests = pytest.importorskip("test.lock_tests")
    pool, numbers = pools(), iter(range(1000))

    class Adapted(lock_tests.ConditionTests):  # type: ignore[misc,name-defined]
        def condtype(self, lock: Any = None) -> Any:
            if lock is not None:
                self.skipTest("it has a lock of its own")
            return pool.condition(f"c{next(numbers)}")

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Adapted).run(result)
    assert [trace for _, trace in result.failures + result.errors] == []
    assert result.testsRun >= 7


def test_a_condition_has_the_interface_of_threadings(pools: Any) -> None:
    pool = pools()
    condition = pool.condition("c")
    for work in (condition.wait, condition.notify, condition.notify_all, condition.release):
        with pytest.raises(RuntimeError):
            work()
    with condition, condition:
        assert not condition.wait(timeout=0.01)
        assert not condition.wait_for(lambda: False, timeout=0.01)
        assert condition.wait_for(lambda: 7) == 7
        condition.notify(0)
        condition.notify(3)
        condition.notify_all()
        assert not pools.again(pool).condition("c").acquire(blocking=False)
    assert condition.acquire(timeout=0)
    condition.release()
    assert pool.condition("c") is condition


def test_threads_of_one_process_use_one_condition(pools: Any) -> None:
    condition = pools().condition("c")
    found: list[int] = []

    def work(number: int) -> None:
        with condition:
            assert condition.wait_for(lambda: len(found) == number, timeout=WAITS_S)
            found.append(number)
            condition.notify_all()

    threads = [threading.Thread(target=work, args=(number,)) for number in reversed(range(4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == list(range(4))


def test_a_condition_that_is_removed_says_so(pools: Any) -> None:
    pool = pools()
    condition = pool.condition("c")
    pool.channels.remove("c")
    with pytest.raises(limpet.ChannelRemoved):
        condition.acquire()
    assert pool.audit()["leaked"] == 0


def test_a_forked_child_of_a_process_that_has_the_lock_has_it_not(pools: Any) -> None:
    """Also in its first operation."""
    condition = pools().condition("c")
    calls = (
        condition.notify,
        condition.notify_all,
        lambda: condition.notify(0),
        lambda: condition.wait(0.01),
        condition.release,
    )
    with condition:
        for call in calls:
            child = os.fork()
            if not child:
                try:
                    call()
                except RuntimeError:
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
        condition.notify()
