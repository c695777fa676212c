"""Queues with acks: a job is delivered until a consumer acknowledges it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import children, dies_at, end, exit_code, fork, gather
from kit.stores import nothing_leaked

import limpet
from limpet.stores.channels.jobs.job_queue import JobQueue
from limpet.stores.channels.jobs.table import JobTable
from limpet.stores.channels.waiting import Waiting

PATIENCE_S = 60.0
WHEN_NOT_SOON_S = 3600.0


def values(deliveries: list[Any]) -> list[Any]:
    """The elements; each job is acknowledged."""
    found = []
    for delivery in deliveries:
        with delivery:
            found.append(delivery.value)
    return found


def die_with(work: Callable[[], object]) -> None:
    """A process does `work`, and is killed while it has what that returned."""

    def life() -> None:
        found = work()
        os.kill(os.getpid(), signal.SIGKILL)
        assert found

    assert exit_code(fork(life)) == -signal.SIGKILL


def test_jobs_come_in_order_within_a_priority_and_the_highest_first(pools: Any) -> None:
    jobs = pools().queue("q", acks=True)
    for number in range(30):
        jobs.put(number, priority=number % 3)
    expected = [number for level in (2, 1, 0) for number in range(level, 30, 3)]
    assert values(jobs.get_many(30)) == expected
    with pytest.raises(limpet.ParameterError, match="priority"):
        jobs.put(1, priority=8)


def test_a_block_that_ends_acknowledges_and_one_that_raises_gives_back(pools: Any) -> None:
    jobs = pools().queue("q", acks=True)
    jobs.put_many("ab")
    with pytest.raises(KeyError), jobs.get() as first:
        raise KeyError("no")
    with pytest.raises(ValueError, match="before"):
        first.ack()
    with jobs.get() as again:
        assert (again.value, again.deliveries, again.reason) == ("a", 2, "KeyError: 'no'")
    with jobs.get() as other:
        assert (other.value, other.deliveries, other.reason) == ("b", 1, "")
    assert jobs.empty()
    assert jobs.join(0)
    with pytest.raises(queue.Empty):
        jobs.get_nowait()


@pytest.mark.parametrize("how", ["nack", "dies"])
def test_a_job_is_a_dead_letter_after_its_last_delivery(pools: Any, how: str) -> None:
    pool = pools()
    jobs = pool.queue("q", acks=True, max_deliveries=3)
    jobs.put("poison")
    jobs.put("good")
    for number in (1, 2, 3):
        assert jobs.counts()["dead"] == 0
        if how == "nack":
            delivery = jobs.get()
            assert delivery.deliveries == number
            delivery.nack(reason="bad")
        else:
            die_with(jobs.get)
            assert jobs.give_back() == 1
    assert values([jobs.get()]) == ["good"]
    assert jobs.join(0)
    assert jobs.dead_letters.qsize() == 1
    for _ in range(4):  # a look takes no letter away
        letter = jobs.dead_letters.get_nowait()
        assert (letter.value, letter.deliveries) == ("poison", 3)
        assert letter.reason == ("bad" if how == "nack" else "its consumer died")
        letter.nack()
    jobs.dead_letters.get().retry()
    with jobs.get() as delivery:
        assert (delivery.value, delivery.deliveries) == ("poison", 1)
    assert jobs.counts()["free"] == jobs.maxsize


def test_what_a_dead_consumer_had_is_delivered_to_one_that_waits(pools: Any) -> None:
    """All of it, also what it had prefetched; without a supervisor, and in the old order."""
    pool = pools()
    jobs = pool.queue("q", 64, acks=True)
    jobs.put_many(range(16))
    out, into = os.pipe()

    def hoard() -> None:
        found = jobs.get_many(16)
        os.write(into, b"%d" % len(found))
        signal.pause()

    pid = fork(hoard)
    try:
        assert os.read(out, 9) == b"16"
        with pytest.raises(queue.Empty):
            jobs.get_nowait()
        with children([lambda: values([jobs.get(timeout=PATIENCE_S)])]) as [(waiting, pipe)]:
            end(pid)
            assert pipe.read()
            assert exit_code(waiting) == 0
        assert values(jobs.get_many(16, timeout=PATIENCE_S)) == list(range(1, 16))
    finally:
        end(pid)
        os.close(out)
        os.close(into)


def test_delays(pools: Any) -> None:
    jobs = pools().queue("q", acks=True)
    jobs.put("late", delay=WHEN_NOT_SOON_S)
    jobs.put("second", delay=0.02)
    jobs.put("first", delay=0.01)
    assert jobs.counts()["delayed"] == 3
    assert values([jobs.get(timeout=PATIENCE_S) for _ in range(2)]) in (
        ["first", "second"],
        ["second", "first"],  # both were due at the first look
    )
    jobs.put("again")
    jobs.get().nack(delay=0.01)
    assert values([jobs.get(timeout=PATIENCE_S)]) == ["again"]
    jobs.put("again")
    jobs.get().nack(delay=WHEN_NOT_SOON_S)
    with pytest.raises(queue.Empty):
        jobs.get_nowait()
    assert jobs.qsize() == 2
    with pytest.raises(limpet.ParameterError, match="delay"):
        jobs.put("x", delay=-1)


def test_a_key_is_in_the_queue_once(pools: Any) -> None:
    jobs = pools().queue("q", 8, acks=True, max_deliveries=1)
    names = [f"key {number}" for number in range(8)]
    for name in names:
        assert jobs.put(name, key=name)
    assert not any(jobs.put(name, key=name) for name in names)
    held = jobs.get()
    assert not jobs.put("again", key=held.value)
    held.ack()
    assert jobs.put(held.value, key=held.value)
    for _ in names:
        jobs.get().nack()
    assert jobs.dead_letters.qsize() == 8
    with pytest.raises(queue.Full):
        jobs.put("letters take places", False)
    with jobs.dead_letters.get() as letter:
        name = letter.value
    assert jobs.put(name, key=names[0] if name != names[0] else names[1])


def test_large_jobs_give_their_memory_back(pools: Any) -> None:
    pool = pools(node_size="1MiB")
    jobs = pool.queue("q", 8, acks=True, max_deliveries=2)
    for _ in range(20):
        jobs.put_many([bytes(60_000), b"small", bytes(3_000)])
        assert [len(value) for value in values(jobs.get_many(3))] == [60_000, 5, 3_000]
    jobs.put(bytes(60_000))
    die_with(jobs.get)
    assert len(jobs.get(timeout=PATIENCE_S).value) == 60_000
    with pytest.raises(limpet.ValueTooLarge):
        jobs.put(bytes(2 << 20))
    with pytest.raises(limpet.StoreFull):
        jobs.put_many([bytes(400_000)] * 8)
    pool.channels.remove("q")
    pool.recover()
    nothing_leaked(pool)


def test_an_element_that_is_too_large_begins_no_change(pools: Any) -> None:
    made = []

    class Table(JobTable):
        def rebuild(self) -> Any:
            made.append(True)
            return super().rebuild()

    class Queue(JobQueue):
        table_class = Table

    jobs = pools(node_size="1MiB").channels.open(Queue, "q", maxsize=4)
    made.clear()
    with pytest.raises(limpet.ValueTooLarge):
        jobs.put_many([b"small", bytes(2 << 20)])
    assert not made
    assert values(jobs.get_many(4)) == [b"small"]


def test_put_many_waits_longer_than_one_sleep(pools: Any) -> None:
    sleeps = 0

    class Counted(Waiting):
        def sleep(self, token: int, timeout_us: int) -> Any:
            nonlocal sleeps
            sleeps += 1
            if sleeps == 3:
                held.ack()
            return super().sleep(token, timeout_us)

    class Queue(JobQueue):
        waiting_class = Counted

    jobs = pools().channels.open(Queue, "q", maxsize=1)
    jobs.put(0)
    held = jobs.get()
    jobs.put_many([1], timeout=PATIENCE_S)
    assert sleeps >= 3
    assert values([jobs.get()]) == [1]


def test_a_full_queue_waits_for_an_ack(pools: Any) -> None:
    pool = pools()
    jobs = pool.queue("q", 2, acks=True)
    jobs.put_many([0, 1])
    assert jobs.full()
    with pytest.raises(queue.Full):
        jobs.put(2, timeout=0.01)
    held = jobs.get()
    with pytest.raises(queue.Full):
        jobs.put(2, False)

    def put() -> None:
        jobs.put_many([2, 3], timeout=PATIENCE_S)

    thread = threading.Thread(target=put)
    thread.start()
    held.ack()
    jobs.get().ack()
    thread.join(PATIENCE_S)
    assert values(jobs.get_many(2)) == [2, 3]


def test_a_job_is_taken_from_a_consumer_whose_time_is_over(pools: Any) -> None:
    jobs = pools().queue("q", acks=True, visibility_timeout=0.02)
    jobs.put("slow")
    held = jobs.get()
    held.extend(WHEN_NOT_SOON_S)
    time.sleep(0.03)
    with pytest.raises(queue.Empty):
        jobs.get_nowait()
    held.extend(0.001)
    with jobs.get(timeout=PATIENCE_S) as again:
        assert (again.deliveries, again.reason) == (2, "its time was over")
        with pytest.raises(limpet.DeliveryLost):
            held.ack()
        with pytest.raises(ValueError, match="lost before"):
            held.ack()
        again.extend(WHEN_NOT_SOON_S)
    assert jobs.join(0)


@pytest.mark.parametrize("how", ["ack", "drop"])
def test_an_old_delivery_leaves_the_job_to_the_one_that_has_it(pools: Any, how: str) -> None:
    jobs = pools().queue("q", acks=True, visibility_timeout=WHEN_NOT_SOON_S)
    jobs.put("a")
    old = jobs.get()
    old.extend(0)
    held = jobs.get()
    if how == "ack":
        with pytest.raises(limpet.DeliveryLost):
            old.ack()
    else:
        del old
    assert jobs.give_back() == 0
    with pytest.raises(queue.Empty):
        jobs.get_nowait()
    held.ack()
    assert jobs.join(0)


def test_an_old_delivery_settles_no_dead_letter_and_no_job_that_was_retried(pools: Any) -> None:
    """Their words are those of the old delivery."""
    jobs = pools().queue("q", acks=True, max_deliveries=1, visibility_timeout=WHEN_NOT_SOON_S)
    jobs.put("a")
    job = jobs.get()
    job.extend(0)
    letter = jobs.dead_letters.get()
    letter.extend(0)
    held = jobs.dead_letters.get()
    for late in (letter.extend, letter.ack):
        with pytest.raises(limpet.DeliveryLost):
            late()
    held.retry()
    retried = jobs.get()
    with pytest.raises(limpet.DeliveryLost):
        job.extend()
    with pytest.raises(limpet.DeliveryLost):
        job.ack()
    retried.ack()
    assert jobs.join(0)


def test_only_a_queue_with_a_visibility_timeout_extends(pools: Any) -> None:
    jobs = pools().queue("q", acks=True)
    jobs.put(1)
    with jobs.get() as held, pytest.raises(limpet.ParameterError, match="visibility"):
        held.extend(1)


def test_a_delivery_that_is_dropped_gives_its_job_back(pools: Any) -> None:
    jobs = pools().queue("q", acks=True)
    jobs.put("a")
    assert jobs.get().value == "a"
    with jobs.get() as again:
        assert (again.deliveries, again.reason[:16]) == (2, "its delivery was")


def test_deliveries_that_are_dropped_within_an_operation_come_back_too(pools: Any) -> None:
    pool = pools()
    jobs = pool.queue("q", acks=True)
    jobs.put_many("ab")
    first, second = jobs.get_many(2)
    with jobs.operation():
        del first, second
    assert values(jobs.get_many(2)) == ["a", "b"]


def test_the_error_of_a_block_goes_on_if_the_queue_is_gone(pools: Any) -> None:
    pool = pools()
    jobs = pool.queue("q", acks=True)
    jobs.put("a")

    def work() -> None:
        with jobs.get():
            pool.channels.remove("q")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_arguments_of_a_wrong_type(pools: Any) -> None:
    jobs = pools().queue("q", acks=True)
    wrong: Any
    for wrong in ({"key": 7}, {"delay": "1"}, {"delay": None}, {"priority": None}):
        with pytest.raises(limpet.ParameterError, match=next(iter(wrong))):
            jobs.put("a", **wrong)
    jobs.put("a")
    held = jobs.get()
    for wrong in ({"reason": None}, {"reason": b"no"}, {"delay": "1"}):
        with pytest.raises(limpet.ParameterError, match=next(iter(wrong))):
            held.nack(**wrong)
    with pytest.raises(limpet.ParameterError, match="no dead letter"):
        held.retry()
    held.ack()
    assert jobs.join(0)
    assert "'q'" in repr(jobs.dead_letters)


def test_a_forked_child_does_not_hold_its_parents_jobs(pools: Any) -> None:
    jobs = pools().queue("q", acks=True)
    jobs.put("a")
    held = jobs.get()

    def child() -> str:
        try:
            held.ack()
        except limpet.DeliveryLost as error:
            return type(error).__name__
        return ""

    assert gather(child) == ["DeliveryLost"]
    held.ack()
    assert jobs.join(0)


def test_a_job_that_cannot_be_decoded_is_no_more_than_its_own_error(pools: Any) -> None:
    pool = pools()
    jobs = pool.queue("q", acks=True, max_deliveries=1)
    jobs.put(Unloadable())
    jobs.put("next")
    with pytest.raises(ZeroDivisionError), jobs.get() as delivery:
        assert delivery.value
    assert values([jobs.get()]) == ["next"]
    assert jobs.dead_letters.qsize() == 1


class Unloadable:
    """Raises when it is read."""

    def __reduce__(self) -> Any:
        return divmod, (1, 0)


def test_plain_queues_and_queues_with_acks_are_told_apart(pools: Any) -> None:
    pool = pools()
    pool.queue("plain")
    pool.queue("acks", acks=True)
    with pytest.raises(limpet.StoreMismatch):
        pool.queue("plain", acks=True)
    with pytest.raises(limpet.StoreMismatch):
        pool.queue("acks", acks=False)
    with pytest.raises(limpet.StoreMismatch):
        pool.queue("acks", codec="json")
    with pytest.raises(limpet.ParameterError, match="acks=True"):
        pool.queue("other", max_deliveries=1)
    # A call that does not say which opens the one that is there.
    for opened in (pool, pools.again(pool)):
        assert [type(opened.queue(name)).__name__ for name in ("plain", "acks")] == [
            "SharedQueue", "JobQueue",
        ]  # fmt: skip
    made = pools.again(pool).queue("acks", acks=True)
    assert made.parameters == pool.queue("acks", acks=True).parameters


@pytest.mark.exhaustive_in_pure("the same lines as compiled, and much slower")
def test_the_lists_are_made_anew_after_a_kill_within_a_change(pools: Any) -> None:
    """At each step of a put, a get and an ack, beside jobs of each kind."""
    pool = pools(clients=16)
    jobs = pool.queue("q", 16, acks=True, max_deliveries=1)
    jobs.put("letter")
    jobs.get().nack()
    jobs.put("late", delay=WHEN_NOT_SOON_S, key="late")
    jobs.put("mine")
    mine = jobs.get()

    def work() -> None:
        jobs.put(b"x" * 500)
        jobs.get().ack()

    fuse = 0
    while dies_at(pool, fuse := fuse + 1, work):
        jobs.give_back()
        for source in (jobs, jobs.dead_letters):
            found = []
            with contextlib.suppress(queue.Empty):
                while True:
                    found.append(source.get_nowait())
            for delivery in found:
                if delivery.value == "letter":
                    delivery.nack()
                else:
                    delivery.ack()
        counts = jobs.counts()
        assert (counts["delayed"], counts["held"], counts["dead"]) == (1, 1, 1), fuse
        assert counts["free"] == 13, fuse
        assert not jobs.put("late", key="late")
    assert fuse > 30
    mine.ack()


def test_every_job_is_done_by_workers_that_are_killed(pools: Any) -> None:
    pool = pools(clients=32)
    jobs, done = pool.queue("q", 512, acks=True, max_deliveries=100), pool.dict("done")
    count, kills = 300, 8
    jobs.put_many(range(count))

    def work() -> None:
        while True:
            for delivery in jobs.get_many(4):
                with delivery:
                    time.sleep(0.001)
                    done[delivery.value] = os.getpid()

    workers = [fork(work) for _ in range(4)]
    try:
        for number in range(kills):
            left = jobs.counts()["ready"]
            while jobs.counts()["ready"] == left > 0:
                time.sleep(0.001)  # until some were got
            end(workers[number % 4])
            workers[number % 4] = fork(work)
        assert jobs.join(PATIENCE_S)
    finally:
        for pid in workers:
            end(pid)
    assert sorted(done) == list(range(count))
    assert jobs.counts()["free"] == 512


def test_a_result_comes_to_the_process_that_submitted_the_job(pools: Any) -> None:
    """Also when the first consumer is killed; and a job that fails has its reason."""
    pool = pools()
    jobs = pool.queue("q", acks=True, max_deliveries=2)
    job, poison = jobs.submit(6), jobs.submit("x", keep_s=60)
    with pytest.raises(TimeoutError):
        job.result(0.01)
    die_with(jobs.get)

    def work() -> None:
        with jobs.get() as delivery:
            delivery.ack(delivery.value * 7 * "ab")
        for _ in range(2):
            with contextlib.suppress(TypeError), jobs.get() as delivery:
                delivery.ack(delivery.value / 2)

    with children([work]):
        assert jobs.job(job.id).result(PATIENCE_S) == 42 * "ab"
        with pytest.raises(limpet.JobFailed, match="dead letter: TypeError: unsupported"):
            poison.result(PATIENCE_S)
    assert job.done()
    assert job.result(0) == 42 * "ab"  # as often as one likes
    jobs.dead_letters.get().retry()
    assert not poison.done()
    jobs.get().ack()
    assert poison.result() is None
    assert jobs.join(0)
    with pytest.raises(limpet.ParameterError, match="no `id`"):
        jobs.job("a job")


def test_results_are_forgotten_and_give_their_places_and_memory_back(pools: Any) -> None:
    pool = pools()
    jobs = pool.queue("q", 4, acks=True, item_size=64)
    for _ in range(3):
        handles = [jobs.submit("x" * 500, True, PATIENCE_S, keep_s=0.05) for _ in range(4)]
        for delivery in jobs.get_many(4):
            delivery.ack("y" * 5000)
        assert jobs.qsize() == 0
    time.sleep(0.06)
    for job in handles:
        with pytest.raises(limpet.ResultExpired):
            job.result()
    with pytest.raises(queue.Empty):
        jobs.get_nowait()
    assert jobs.counts() == {
        "ready": 0, "delayed": 0, "held": 0, "dead": 0, "kept": 0, "free": 4,
    }  # fmt: skip
    nothing_leaked(pool)


def test_a_key_gives_the_handle_of_the_job_that_is_there(pools: Any) -> None:
    jobs = pools().queue("q", acks=True)
    first, again = jobs.submit("a", key="k"), jobs.submit("b", key="k")
    assert first.id == again.id
    assert jobs.qsize() == 1
    jobs.get().ack(1)
    assert again.result() == 1
    later = jobs.submit("c", key="k")
    assert later.id != first.id
    jobs.get().ack(2)
    assert (first.result(), later.result()) == (1, 2)
    jobs.put("d", key="k")
    plain = jobs.submit("e", key="k")
    jobs.get().ack(3)
    with pytest.raises(limpet.ResultExpired):
        plain.result()


def test_an_ack_without_memory_for_its_result_leaves_the_job_to_the_process(pools: Any) -> None:
    jobs = pools().queue("q", acks=True)
    job = jobs.submit("a")
    delivery = jobs.get()
    with pytest.raises(limpet.ValueTooLarge, match="the result takes"):
        delivery.ack(bytes(jobs.largest))
    delivery.ack("small")
    assert job.result() == "small"
