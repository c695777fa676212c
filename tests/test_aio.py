"""`limpet.aio`: tasks of asyncio and trio wait for shared objects."""

from __future__ import annotations

import asyncio
import os
import pickle
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kit.processes import children, exit_code, fork, gather

import limpet
from limpet.stores.channels import task_waits, watcher

anyio = pytest.importorskip("anyio")

from limpet import aio  # noqa: E402

PATIENCE_S = 60.0
Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function by each library."""
    pytest.importorskip(request.param)

    async def bounded(main: Callable[[], Awaitable[Any]]) -> Any:
        with anyio.fail_after(PATIENCE_S):
            return await main()

    return lambda main: anyio.run(bounded, main, backend=request.param)


@pytest.fixture
def pool(pools: Any) -> limpet.Pool:
    made: limpet.Pool = pools(node_size="32MiB")
    return made


@pytest.fixture(params=["kernel", "looks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher sleeps in the kernel, if that can, or looks."""
    monkeypatch.setattr(watcher, "_watchers", [])
    if request.param == "looks":
        monkeypatch.setattr(watcher, "sleep_at", lambda *_: watcher.NO_CALL)


async def soon(condition: Callable[[], object]) -> None:
    while not condition():
        await anyio.sleep(0.001)


async def noted(into: list[Any], wait: Awaitable[Any]) -> None:
    into.append(await wait)


@pytest.mark.usefixtures("way")
def test_a_thousand_tasks_wait_while_the_loop_goes_on(pool: limpet.Pool, run: Run) -> None:
    """At a queue, in order; and at more words than the kernel takes for one thread."""
    shared, count = pool.queue("q"), 1000
    events = [pool.event(f"e{number}") for number in range(150)]
    found: list[int] = []
    passed: list[bool] = []

    def work() -> None:
        for number in range(count):
            shared.put(number)
        for event in events:
            event.set()
            event.clear()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(noted, found, aio.wrap(shared).get())
            for event in events:
                tasks.start_soon(noted, passed, aio.wrap(event).wait())
            await soon(lambda: sum(len(each.words) for each in watcher._watchers) > len(events))
            assert not found
            assert not passed
            with children([work]):
                await soon(lambda: len(found) == count and len(passed) == len(events))

    run(main)
    assert found == list(range(count))
    assert all(passed)


@pytest.mark.parametrize("acks", [False, True])
def test_a_storm_of_cancellations_eats_no_element(pool: limpet.Pool, run: Run, acks: bool) -> None:
    """Each element is got, or still there; the consumers of another process get theirs, too."""
    made: Any = pool.queue("q", 16, acks=acks)
    shared, count = aio.wrap(made), 400
    found: list[int] = []

    def take() -> list[int]:
        taken: list[int] = []
        while not taken or taken[-1] >= 0:
            one = made.get()
            taken.append(one.value if acks else one)
            if acks:
                one.ack()
        return taken[:-1]

    async def consume() -> None:
        while True:
            with anyio.move_on_after(random.choice([0, 1e-5, 1e-4, 1e-3, 1])):
                one = await shared.get()
                found.append(one.value if acks else one)
                if acks:
                    one.ack()

    async def produce() -> None:
        for number in range(count):
            done = False
            while not done:
                with anyio.move_on_after(random.choice([0, 1e-4, 1])):
                    await shared.put(number)
                    done = True

    async def main() -> list[int]:
        with children([take]) as started:
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(consume)
                await produce()
                tasks.cancel_scope.cancel()
            made.put(-1)
            out = started[0][1]
            theirs: list[int] = pickle.loads(await anyio.to_thread.run_sync(out.read))
        return theirs

    theirs = run(main)
    rest = []
    while not made.empty():
        one = made.get_nowait()
        rest.append(one.value if acks else one)
    everything = sorted([*theirs, *found, *(number for number in rest if number >= 0)])
    assert everything == list(range(count))


def test_tasks_threads_and_processes_exclude_each_other(pool: limpet.Pool, run: Run) -> None:
    """Under cancellations; and at last the lock is free."""
    lock, counter, rounds = pool.lock("l"), pool.counter("n"), 60
    inside: list[str] = []
    done: list[str] = []

    def count() -> None:
        before = counter.value
        counter.set(before + 1)

    def work() -> None:
        for _ in range(rounds):
            with lock:
                inside.append("thread")
                count()
                assert inside == ["thread"]
                inside.clear()
        done.append("thread")

    async def task() -> None:
        shared = aio.wrap(lock)
        for _ in range(rounds):
            taken = False
            while not taken:
                with anyio.move_on_after(random.choice([0, 1e-4, 1e-3, 1])):
                    async with shared:
                        inside.append("task")
                        try:
                            await anyio.lowlevel.checkpoint()
                            count()
                            taken = True
                        finally:
                            assert inside == ["task"]
                            inside.clear()
        done.append("task")

    async def main() -> None:
        thread = threading.Thread(target=work)
        with children([work]) as started:
            thread.start()
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(task)
            await anyio.to_thread.run_sync(thread.join)
            await anyio.to_thread.run_sync(started[0][1].read)

    run(main)
    assert sorted(done) == [*["task"] * 5, "thread"]
    assert counter.value == 7 * rounds
    assert not lock.locked()


def test_permits_and_reader_writer_locks_under_cancellations(pool: limpet.Pool, run: Run) -> None:
    """No more than two tasks and processes have a permit, none writes beside others, and at
    last all is free."""
    permits, lock, turns = pool.semaphore("s", 2), pool.rwlock("w"), 40
    inside, writing, reading, done = (pool.counter(name) for name in "abcd")

    def enter() -> None:
        inside.add(1)
        assert 1 <= inside.value <= 2

    def work() -> None:
        for _ in range(turns):
            with permits:
                enter()
                inside.add(-1)
            with lock.write():
                writing.add(1)
                assert (writing.value, reading.value) == (1, 0)
                writing.add(-1)
        done.add(1)

    async def task(number: int) -> None:
        mine, both = aio.wrap(permits), aio.wrap(lock)
        count, side = (reading, both.read()) if number % 2 else (writing, both.write())
        passed = 0
        while passed < turns:
            with anyio.move_on_after(random.choice([0, 1e-4, 1e-3, 1])):
                async with mine:
                    enter()
                    try:
                        await anyio.lowlevel.checkpoint()
                    finally:
                        inside.add(-1)
                async with side:
                    count.add(1)
                    try:
                        await anyio.lowlevel.checkpoint()
                        assert writing.value == 0 or (writing.value, reading.value) == (1, 0)
                    finally:
                        count.add(-1)
                passed += 1
        done.add(1)

    async def main() -> None:
        thread = threading.Thread(target=work)
        with children([work]) as started:
            thread.start()
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(task, number)
            await anyio.to_thread.run_sync(thread.join)
            await anyio.to_thread.run_sync(started[0][1].read)
        async with aio.wrap(lock).read():
            with pytest.raises(RuntimeError, match="wait for itself"):
                await aio.wrap(lock).write().acquire()

    run(main)
    assert done.value == 8
    assert permits.get_value() == 2
    with lock.write(10):
        pass


def test_a_permit_of_a_killed_process_comes_to_all_tasks_and_a_message_to_one(
    pool: limpet.Pool, run: Run
) -> None:
    permits, topic = pool.semaphore("s", 1), aio.wrap(pool.topic("t"))
    order: list[int] = []

    def hold() -> None:
        permits.acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    async def one(number: int) -> None:
        async with aio.wrap(permits):
            order.append(number)

    async def main() -> None:
        subscription = topic.subscribe()
        found: list[Any] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(noted, found, subscription.get())
            fork(hold)
            while not permits.locked():
                await anyio.sleep(0.001)
            for number in range(10):
                tasks.start_soon(one, number)
            topic.publish("news")
        assert found == ["news"]
        with pytest.raises(queue.Empty):
            await subscription.get(0.001)

    run(main)
    assert sorted(order) == list(range(10))
    assert permits.get_value() == 1


def test_a_recursive_lock_is_a_tasks(pool: limpet.Pool, run: Run) -> None:
    shared = aio.wrap(pool.lock("l", recursive=True))

    async def main() -> None:
        async with anyio.create_task_group() as tasks, shared, shared:
            tasks.start_soon(other)
            await anyio.sleep(0.01)

    async def other() -> None:
        assert not await shared.acquire(0)
        with pytest.raises(RuntimeError):
            shared.release()
        assert await shared.acquire()
        shared.release()

    run(main)
    assert not shared.locked()


def test_a_lock_of_a_dead_process_comes_to_a_task(pool: limpet.Pool, run: Run) -> None:
    lock = pool.lock("l")

    def die() -> None:
        lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    async def main() -> None:
        with children([die]):
            await soon(lock.locked)
            async with aio.wrap(lock):
                assert lock.inherited

    run(main)


def test_a_lock_is_not_handed_to_a_task_whose_loop_was_closed(pool: limpet.Pool) -> None:
    lock = pool.lock("l")
    lock.acquire()
    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(aio.wrap(lock).acquire())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    lock.release()
    assert lock.acquire(timeout=PATIENCE_S / 10)
    lock.release()
    task._log_destroy_pending = False


def test_a_condition_notifies_tasks(pool: limpet.Pool, run: Run) -> None:
    """A wait that is cancelled ends with the lock."""
    shared = aio.wrap(pool.condition("c"))
    ready: list[int] = []
    found: list[bool] = []

    async def wait() -> None:
        async with shared:
            found.append(await shared.wait_for(lambda: bool(ready)))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(wait)
            async with shared:
                assert not await shared.wait(0.01)
                with anyio.move_on_after(0.01):
                    await shared.wait()
                    ready.append(0)
                assert not ready
                ready.append(1)
                shared.notify_all()

    run(main)
    assert found == [True] * 5
    assert not shared.lock.locked()


def test_tasks_and_processes_are_parties_of_a_barrier(pool: limpet.Pool, run: Run) -> None:
    shared = aio.wrap(pool.barrier("b", 4))
    numbers: list[int] = []

    async def main() -> None:
        with children([shared.handle.wait]):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(noted, numbers, shared.wait())
        with pytest.raises(limpet.BrokenBarrierError):
            await shared.wait(0.01)
        assert shared.broken

    run(main)
    assert len({*numbers}) == 3


def test_a_party_whose_round_is_regrouped_at_its_timeout_has_not_passed(
    pools: Any, pool: limpet.Pool, run: Run
) -> None:
    barrier = pool.barrier("b", 4, on_death="continue")
    other = pools.again(pool).barrier("b", 4, on_death="continue")
    wait_s = 2.0

    async def main() -> None:
        with children([barrier.wait, barrier.wait]) as [(dies, _), (lives, _)]:
            await soon(lambda: barrier.n_waiting == 2)
            os.kill(lives, signal.SIGSTOP)

            async def regroup() -> None:
                await soon(lambda: barrier.n_waiting == 3)
                os.kill(dies, signal.SIGKILL)
                os.waitpid(dies, 0)
                with other.operation():
                    other.regroup()
                # The party does not run until its time is over.
                time.sleep(max(0, over + 0.1 - time.monotonic()))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(regroup)
                over = time.monotonic() + wait_s
                with pytest.raises(limpet.BrokenBarrierError):
                    await aio.wrap(barrier).wait(wait_s)

    run(main)


def test_a_ring_and_a_join_and_dead_letters_are_awaited(pool: limpet.Pool, run: Run) -> None:
    ring, plain = aio.wrap(pool.ring("r", 1024)), aio.wrap(pool.queue("q"))
    jobs = aio.wrap(pool.queue("j", acks=True, max_deliveries=1))

    async def read() -> list[int]:
        found = []
        async for number in ring:
            found.append(number)
            if number == 99:
                break
        return found

    async def main() -> None:
        ring.subscribe()
        found: list[Any] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(noted, found, read())
            for number in range(100):
                await ring.send(number)
            await plain.put(1)
            await jobs.put("letter")
            assert not await plain.join(0.01)
            tasks.start_soon(noted, found, plain.join())
            tasks.start_soon(noted, found, jobs.join())
            tasks.start_soon(noted, found, jobs.dead_letters.get())
            await anyio.sleep(0.01)
            await plain.get()
            plain.task_done()
            (await jobs.get()).nack()
        async with anyio.create_task_group() as tasks:
            job = await jobs.submit("work")
            tasks.start_soon(noted, found, job.result())
            with pytest.raises(TimeoutError):
                await jobs.job(job.id).result(0.01)
            (await jobs.get()).ack("its result")
        assert found[-1] == "its result"
        assert list(range(100)) in found
        assert found.count(True) == 2
        with pytest.raises(queue.Empty):
            await plain.get(0)

    run(main)


def test_changes_of_a_store_are_awaited(pool: limpet.Pool, run: Run) -> None:
    store = pool.store("race", "watched")

    async def works() -> None:
        changes = aio.wrap(store.changes())
        with pytest.raises(queue.Empty):
            await changes.get(timeout=0.001)
        pid = fork(lambda: store.put(b"key", b"1"))
        async for change in changes:
            assert change == (b"key", "put")
            break
        assert exit_code(pid) == 0

    run(works)


def test_a_task_gets_the_job_of_a_killed_process(pool: limpet.Pool, run: Run) -> None:
    jobs = pool.queue("j", acks=True)

    def die() -> None:
        held = jobs.get()
        os.kill(os.getpid(), signal.SIGKILL)
        held.ack()

    async def main() -> None:
        with children([die]):
            jobs.put("job")
            await soon(jobs.empty)
            with await aio.wrap(jobs).get() as delivery:
                assert delivery.deliveries == 2

    run(main)


def test_one_task_computes_and_the_others_are_woken(pool: limpet.Pool, run: Run) -> None:
    cache = aio.wrap(pool.cache("c"))
    calls: list[int] = []
    found: list[int] = []

    async def compute() -> int:
        calls.append(1)
        await anyio.sleep(0.02)
        return 7

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(noted, found, cache.get_or_compute("k", compute))

    run(main)
    assert (len(calls), found) == (1, [7] * 20)


def square(number: int) -> int:
    return number * number


def test_an_executor_is_awaited(run: Run) -> None:
    async def main() -> None:
        async with aio.wrap(limpet.Executor(2, memory="16MiB")) as executor:
            assert await executor.run(square, 3) == 9
            assert [n async for n in executor.map(square, range(9), chunksize=2)] == [
                n * n for n in range(9)
            ]
            with pytest.raises(ZeroDivisionError):
                await executor.run(divmod, 1, 0)

    run(main)


def test_a_pool_that_is_closed_ends_the_waits(pools: Any, run: Run) -> None:
    pool = pools()
    shared, event = aio.wrap(pool.queue("q")), aio.wrap(pool.event("e"))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for wait in (shared.get, event.wait):
                tasks.start_soon(fails, wait)
            await anyio.sleep(0.02)
            pool.close()

    async def fails(wait: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises(limpet.PoolClosed):
            await wait()

    run(main)


@pytest.mark.parametrize("kind", ["queue", "ring"])
def test_an_element_that_was_taken_goes_out_though_the_pool_is_closed(
    pools: Any, run: Run, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is closed before the task, which has taken it, has woken the next one that waits."""
    pool, took = pools(), []
    shared = aio.wrap(getattr(pool, kind)("c"))
    wake, sleep = task_waits._wake_others, task_waits.sleep

    async def in_vain(*given: Any) -> bool:
        await sleep(*given)
        return True  # as if no client had woken it

    def closed(*given: Any) -> None:
        pool.close()
        wake(*given)

    monkeypatch.setattr(task_waits, "sleep", in_vain)
    monkeypatch.setattr(task_waits, "_wake_others", closed)
    wait, give = (shared.get, shared.put) if kind == "queue" else (shared.receive, shared.send)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(noted, took, wait())
            await anyio.wait_all_tasks_blocked()
            await give("element")
        assert pool.closed
        assert took == ["element"]
        with pytest.raises(limpet.PoolClosed):
            await wait()

    run(main)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("fails", ["start", "sleep"])
def test_a_watcher_that_fails_leaves_no_task_waiting(
    pool: limpet.Pool, run: Run, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The system gives no thread, or an error ends the one that there is: once, for two tasks."""
    failed: list[Exception] = []
    place = (threading.Thread, "start") if fails == "start" else (watcher, "sleep_at")
    given: Callable[..., Any] = getattr(*place)

    def fail(*arguments: Any) -> Any:
        if not failed and (fails == "sleep" or arguments[0].name == "limpet-watcher"):
            failed.append(RuntimeError("can't start new thread"))
            raise failed[0]
        return given(*arguments)

    monkeypatch.setattr(*place, fail)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    event = aio.wrap(pool.event("e"))
    refused: list[Exception] = []

    async def wait() -> None:
        try:
            await event.wait()
        except RuntimeError as error:
            refused.append(error)
            await event.wait()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(wait)
            await soon(lambda: failed)
            event.set()

    run(main)
    assert refused == (failed if fails == "start" else [])


def test_a_forked_child_has_a_watcher_of_its_own(pool: limpet.Pool) -> None:
    shared = aio.wrap(pool.queue("q"))

    def take() -> Any:
        return anyio.run(get)

    async def get() -> Any:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later)
            return await shared.get()

    async def later() -> None:
        await anyio.sleep(0.01)
        shared.handle.put(1)

    assert take() == 1
    assert gather(take) == [1]


def test_what_has_no_coroutines_is_refused(pool: limpet.Pool) -> None:
    with pytest.raises(limpet.ParameterError, match="no coroutines for"):
        aio.wrap(pool.counter("n"))  # type: ignore[call-overload]


def test_without_anyio_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anyio", None)
    monkeypatch.delitem(sys.modules, "limpet.aio")
    with pytest.raises(ImportError, match="pip install 'limpet\\[aio\\]'"):
        __import__("limpet.aio")
