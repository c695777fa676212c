"""`task_done` and `join` of the shared queue, and what is known of elements that a dead one had."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import children, dies_at, gather, start
from kit.stores import nothing_leaked

import limpet


def test_all_is_done_when_nothing_was_put(pools: Any) -> None:
    q = pools().queue("q", 4)
    assert q.join()
    assert q.join(0)
    with pytest.raises(ValueError, match="too many"):
        q.task_done()


def test_join_waits_for_what_is_in_the_queue_and_for_what_was_got(pools: Any) -> None:
    q = pools().queue("q", 4)
    q.put_many([1, 2])
    for _ in range(2):
        assert not q.join(0)
        q.get()
    assert not q.join(0.01)
    q.task_done()
    assert not q.join(0)
    q.task_done()
    assert q.join()
    with pytest.raises(ValueError, match="too many"):
        q.task_done()


def test_what_is_got_in_a_batch_is_done_with_one_by_one(pools: Any) -> None:
    q = pools(node_size="4MiB").queue("q", 70)
    q.put_many([b"x" * size for size in range(0, 70_000, 1000)])
    assert len(q.get_many(100)) == 70
    for _ in range(69):
        q.task_done()
    assert not q.join(0)
    q.task_done()
    assert q.join()


@pytest.mark.exhaustive_in_pure("seconds of processes")
def test_join_is_woken_by_another_process(pools: Any) -> None:
    """Each element but the last makes another one before it is done with."""
    q = pools().queue("q", 8)
    done = q.pool.counter("done")

    def worker() -> None:
        while (item := q.get()) is not None:
            if item:
                q.put(item - 1)
            done.add(1)
            q.task_done()
        q.task_done()

    with children([worker] * 3, 60):
        for turn in range(1, 6):
            q.put(20)
            q.put(9)
            assert q.join(60)
            assert done.value == turn * 31
        q.put_many([None] * 3)
        assert q.join(60)


def test_only_who_got_an_element_says_that_it_is_done(pools: Any) -> None:
    q = pools().queue("q", 4)
    q.put(1)
    q.get()

    def other() -> str:
        with pytest.raises(ValueError, match="too many") as caught:
            q.task_done()
        return str(caught.value)

    assert "'q'" in gather(other)[0]
    worker = threading.Thread(target=q.task_done)
    worker.start()
    worker.join()
    assert q.join()


def test_a_handle_that_was_forgotten_leaves_its_tasks_to_the_next_of_its_process(
    pools: Any,
) -> None:
    pool = pools()
    pool.queue("q", 4).put_many([1, 2])
    assert pool.queue("q", 4).get() == 1
    gc.collect()
    assert not pool.queue("q", 4).join(0)
    gc.collect()
    q = pool.queue("q", 4)
    q.task_done()
    assert q.get() == 2
    assert not q.join(0)
    q.task_done()
    assert q.join()


# ---- processes that end without it --------------------------------------------------------------


def lose(q: Any, number: int, how: Callable[[], object]) -> None:
    """A process gets so many, and ends."""

    def life() -> None:
        for _ in range(number):
            q.get(timeout=10)
        how()

    pid, out = start(life)
    out.close()
    os.waitpid(pid, 0)


ENDS: dict[str, Callable[[Any], Callable[[], object]]] = {
    "killed between get and task_done": lambda q: lambda: os.kill(os.getpid(), signal.SIGKILL),
    "ended": lambda q: int,
    "closed its handle": lambda q: q.close,
}


@pytest.mark.either_build("the same lines")
@pytest.mark.exhaustive_in_pure("thousands of elements")
@pytest.mark.parametrize("how", ENDS)
def test_everybody_is_told_what_was_lost_until_it_is_forgotten(pools: Any, how: str) -> None:
    pool = pools()
    q = pool.queue("q", 8)
    q.put_many(range(5))
    lose(q, 2, ENDS[how](q))
    for handle in (q, pickle.loads(pickle.dumps(q))):
        with pytest.raises(limpet.TasksLost, match=r"2 elements of 'q'.* forget_lost") as caught:
            handle.join(60)
        assert caught.value.count == 2
        assert pickle.loads(pickle.dumps(caught.value)).count == 2
    handle.pool.close()
    assert q.forget_lost() == 2
    assert q.forget_lost() == 0
    assert not q.join(0)
    for _ in range(3):
        q.get()
        q.task_done()
    assert q.join()
    # Processes that take over the rows of the dead are not taken for them, nor forget them.
    q.put_many(range(2))
    lose(q, 1, ENDS[how](q))
    pool.recover()
    gather(lambda: (q.get(), q.task_done()), lambda: q.qsize())
    with pytest.raises(limpet.TasksLost) as caught:
        q.join()
    assert caught.value.count == q.forget_lost() == 1
    assert q.join()
    nothing_leaked(pool)


def test_who_waits_is_told_of_a_death(pools: Any) -> None:
    q = pools().queue("q", 4)
    got = q.pool.event("got")
    q.put(1)

    def stays() -> None:
        q.get()
        got.set()
        time.sleep(60)

    with children([stays]) as ((pid, _),):
        assert got.wait(60)
        timer = threading.Timer(0.1, lambda: os.kill(pid, signal.SIGKILL))
        timer.start()
        with pytest.raises(limpet.TasksLost):
            q.join(60)
        timer.join()


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.parametrize("large", [False, True])
def test_a_kill_at_any_step_of_get_and_task_done(pools: Any, large: bool) -> None:
    """The element is there for another, is lost, or is done with; and join says so."""
    pool = pools(node_size="1MiB")
    q = pool.queue("q", 3, codec="bytes")
    item = b"x" * (2000 if large else 1)
    seen: set[tuple[int, int]] = set()

    def work() -> None:
        q.get()
        q.task_done()

    fuse, running = 0, True
    while running:
        fuse += 1
        q.put(item)
        running = dies_at(pool, fuse, work)
        lost = 0
        try:
            there = int(not q.join(0))
        except limpet.TasksLost as error:
            lost, there = error.count, q.qsize()
            assert q.forget_lost() == lost
        seen.add((there, lost))
        if there:
            assert q.get() == item
            q.task_done()
        assert q.join()
        nothing_leaked(pool)
    # Killed before it; counted, and not taken yet; taken; done with.
    assert seen == {(1, 0), (1, 1), (0, 1), (0, 0)}


def test_a_row_is_taken_over_by_one_who_is_killed_in_that(pools: Any) -> None:
    """The open elements of its dead participants are counted once, at every step of the fold."""
    pool = pools(clients=3)
    q = pool.queue("q", 3)
    fuse, lost, running = 0, 0, True
    while running:
        fuse += 1
        q.put(0)
        lose(q, 1, ENDS["killed between get and task_done"](q))
        pool.recover()
        lost += 1
        running = dies_at(pool, fuse, q.qsize)
        with pytest.raises(limpet.TasksLost) as caught:
            q.join()
        assert caught.value.count == lost
        pool.recover()
        gather(q.qsize)
        with pytest.raises(limpet.TasksLost) as caught:
            q.join()
        assert caught.value.count == lost
    assert fuse > 5
    assert q.forget_lost() == lost
    assert q.join()


def test_a_stopped_consumer_is_waited_for(pools: Any) -> None:
    q = pools(fence="wait").queue("q", 4)
    q.put(1)

    def stops() -> None:
        q.get()
        os.kill(os.getpid(), signal.SIGSTOP)
        q.task_done()

    with children([stops]) as ((pid, _),):
        os.waitpid(pid, os.WUNTRACED)
        assert not q.join(0.05)
        os.kill(pid, signal.SIGCONT)
        assert q.join(60)


def test_a_consumer_that_is_done_just_before_it_ends_has_lost_nothing(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls task_done() after the joiner has read its count, and then ends."""
    q = pools().queue("q", 4)
    q.put(1)
    consumer = pools.keep(limpet.open(q.pool.url)).queue("q")
    consumer.get()
    done: list[int] = []

    def ends(ident: int) -> bool:
        if not done:
            done.append(ident)
            consumer.task_done()
        return False

    monkeypatch.setattr(q.pool.membership, "lives", ends)
    assert q.join(60)
    assert len(done) == 1


def test_elements_of_workers_killed_at_random_are_done_or_lost(pools: Any) -> None:
    q = pools(node_size="4MiB").queue("q", 16)
    number = 3000 if limpet.build == "compiled" else 300
    done = q.pool.array("done", number)
    rng = random.Random(3)

    def worker() -> None:
        while True:
            item = q.get()
            done.add(item, 1)
            q.task_done()

    def producer() -> None:
        for item in range(number):
            q.put(item)

    with children([producer] + [worker] * 6, 60) as started:
        for pid, _ in started[1:5]:
            time.sleep(rng.uniform(0.005, 0.03))
            os.kill(pid, signal.SIGKILL)
        os.waitpid(started[0][0], 0)
        try:
            finished, lost = q.join(60), 0
        except limpet.TasksLost:
            time.sleep(0.05)
            lost = q.forget_lost()
            finished = q.join(60)
        assert finished
    assert set(done) <= {0, 1}
    assert list(done).count(0) <= lost <= 4
    with pytest.raises(queue.Empty):
        q.get_nowait()
