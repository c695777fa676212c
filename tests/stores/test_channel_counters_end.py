"""Counters of channels, started just below their end: nothing is lost, and no client is blocked."""

from __future__ import annotations

import functools
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import children, dies_at, gather, start
from kit.waiting import until

import limpet
from limpet.shm.endpoint.layout import slot_address
from limpet.stores.channels.layout import LINE, WAKE
from limpet.stores.channels.lock import ticket_layout as ticket_fields
from limpet.stores.channels.queue import layout as queues
from limpet.stores.channels.ring.layout import END, NUMBER, OLDEST, POSITION_MAX
from limpet.stores.loco import layout as kvstores

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

COMPILED = limpet.build == "compiled"
LARGE = 3000
"""Bytes of an element that lies in an object."""
COUNT_MASK = (1 << queues.COUNT_BITS) - 1
COUNT_MAX = COUNT_MASK >> 1
TURN_MASK = (1 << 64 - queues.COUNT_BITS) - 1
ROUNDS = 1 << 31
"""Of a barrier: in bits 33-63 of its word, and of the word behind it, that tells of resets."""
ROUND_SHIFT = 33
RESETS_AT = 8
LATER = ROUNDS >> 1
AGAIN = 0xFFFF << 16


# ---- waiting, locks -----------------------------------------------------------------------------


def test_the_count_of_wakes_wraps(pools: Any) -> None:
    event = pools().event("go")
    at = event.address + LINE
    event.pool.endpoint.store(at, (1 << 32) - WAKE)

    def waits() -> bool:
        return bool(event.wait(60))

    with children([waits, waits]) as waiting:
        until(lambda: event.pool.endpoint.load(at) & 1)
        event.set()
        for pid, out in waiting:
            out.read()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert event.pool.endpoint.load(at) < 1 << 31
    event.clear()
    assert not event.wait(0.01)
    event.set()
    assert event.wait(60)


def late_lock(pool: Any, places: int, left: int) -> Any:
    """A lock whose rounds wrap after `left` tickets."""
    lock = pool.lock("lock", places=places, overtaking=False)
    over = ticket_fields.ROUND_MASK * places - left
    pool.endpoint.store(lock.address + ticket_fields.HEAD, over - 1)
    for ticket in range(over - places, over):
        word = (ticket // places + 1 & ticket_fields.ROUND_MASK) << ticket_fields.ROUND_SHIFT
        at = lock.address + ticket_fields.PLACES + 8 * (ticket % places)
        pool.endpoint.store(at, word | ticket_fields.GIVEN_BACK)
    return lock


def test_rounds_of_a_ticket_lock_wrap(pools: Any) -> None:
    pool = pools()
    lock = late_lock(pool, 2, 3)
    head = lock.address + ticket_fields.HEAD
    before = pool.endpoint.load(head)
    other = pools.again(pool).lock("lock", places=2, overtaking=False)
    places = [lock.address + ticket_fields.PLACES + 8 * number for number in range(2)]
    for _ in range(8):
        assert lock.acquire(timeout=5)
        passed = pool.endpoint.load(head)
        thread = threading.Thread(target=other.acquire)
        thread.start()
        until(lambda: any(pool.endpoint.load(at) & 7 in (1, 2) for at in places))
        lock.release()
        thread.join(60)
        assert not thread.is_alive()
        assert pool.endpoint.load(head) == passed + 1
        other.release()
        for at in places:  # what was passed over is not waiting any more
            word = pool.endpoint.load(at)
            pool.endpoint.store(at, word & ~7 | ticket_fields.GIVEN_BACK)
    assert pool.endpoint.load(head) >= before + 8
    assert not lock.locked()


def test_processes_exclude_each_other_while_rounds_wrap(pools: Any) -> None:
    pool = pools()
    lock = late_lock(pool, 4, 20)
    count = pool.array("count", 1)

    def counts() -> None:
        for _ in range(60):
            with lock:
                count[0] = count[0] + 1

    gather(counts, counts, counts)
    assert count[0] == 180


def test_a_dead_owners_ticket_that_looks_like_a_living_ones_is_passed_over(pools: Any) -> None:
    """The client of its slot has the same low bits of its incarnation."""
    pool = pools()
    lock = pool.lock("lock", overtaking=False)
    lock.acquire()
    other = limpet.open(pool.url)
    slot, life = other.client_id >> 36, other.client_id & (1 << 36) - 1
    other.close()
    at = slot_address(slot)
    pool.endpoint.store(at, life)

    def waits() -> None:
        mine = limpet.open(pool.url)
        assert mine.client_id == slot << 36 | life + 1
        mine.lock("lock", overtaking=False).acquire()

    pid, out = start(waits)
    place = lock.address + ticket_fields.PLACES + 8
    until(lambda: pool.endpoint.load(place) & 7 == ticket_fields.SLEEPING)
    os.kill(pid, signal.SIGKILL)
    out.close()
    os.waitpid(pid, 0)
    pool.recover()
    pool.endpoint.store(at, life + (1 << 20))
    late = pools.again(pool)
    assert late.client_id == slot << 36 | life + 1 + (1 << 20)
    third = pools.again(pool).lock("lock", overtaking=False)
    lock.release()
    assert third.acquire(timeout=10)
    third.release()


# ---- queues -------------------------------------------------------------------------------------


def late_queue(pool: Any, maxsize: int, ticket: int, name: str = "jobs") -> Any:
    """An empty queue whose next ticket is `ticket`."""
    jobs = pool.queue(name, maxsize)
    for number in range(ticket, ticket + maxsize):
        word = (number // maxsize & queues.ROUND_MASK) << queues.ROUND_SHIFT
        pool.endpoint.store(jobs.ring.slots.slot(number % maxsize), word)
    pool.endpoint.store(jobs.ring.tail, ticket)
    pool.endpoint.store(jobs.ring.head, ticket)
    return jobs


@pytest.mark.parametrize("maxsize", [1, 3, 8] if COMPILED else [1, 3])
@pytest.mark.parametrize("end", [queues.ROUND_MASK + 1, 2 * (queues.ROUND_MASK + 1)])
def test_rounds_of_a_queue_wrap(pools: Any, maxsize: int, end: int) -> None:
    pool = pools(node_size="4MiB")
    jobs = late_queue(pool, maxsize, end * maxsize - 2 * maxsize - 1)
    consumer = pools.again(pool).queue("jobs", maxsize)
    for number in range(5 * maxsize):
        sizes = [10, LARGE] if maxsize > 1 else [LARGE if number % 2 else 10]
        for size in sizes:
            jobs.put(bytes([number]) * size, timeout=60)
        assert jobs.qsize() == len(sizes)
        for size in sizes:
            assert consumer.get(timeout=60) == bytes([number]) * size
            consumer.task_done()
        with pytest.raises(queue.Empty):
            consumer.get_nowait()
        assert jobs.join(timeout=60)
    for number in range(maxsize):
        jobs.put(number)
    with pytest.raises(queue.Full):
        jobs.put_nowait("more")
    assert consumer.get_many(maxsize) == list(range(maxsize))


@pytest.mark.parametrize("large", [False, True])
def test_an_element_of_a_consumer_killed_at_any_step_is_there_as_rounds_wrap(
    pools: Any, large: bool
) -> None:
    item = b"x" * (LARGE if large else 10)
    pool = pools(node_size="8MiB")
    for fuse in range(1, 60, 1 if COMPILED else 5):
        name = f"jobs{fuse}"
        jobs = late_queue(pool, 1, queues.ROUND_MASK, name)
        jobs.put(item)
        died = dies_at(pool, fuse, functools.partial(jobs.get, timeout=5))
        pool.recover()
        jobs.put(item, timeout=5) if jobs.empty() else None
        lost = jobs.lost()
        assert jobs.get(timeout=5) == item
        assert lost in ([], [item])
        jobs.task_done()
        jobs.forget_lost()
        assert jobs.join(timeout=5)
        if not died:
            break


@pytest.mark.parametrize("ticket", [queues.TAG_MASK - 3, (1 << 61) - 3 - (1 << 10)])
def test_tags_of_cells_wrap(pools: Any, ticket: int) -> None:
    pool = pools(node_size="4MiB")
    jobs = late_queue(pool, 2, ticket)
    for number in range(12):
        jobs.put(bytes([number]) * LARGE)
        assert jobs.get(timeout=60) == bytes([number]) * LARGE
        if number % 3:
            jobs.task_done()
    for _ in range(4):
        jobs.task_done()
    assert jobs.join(timeout=60)
    assert pool.audit()["leaked"] == 0


def row_of(jobs: Any) -> int:
    return int(jobs.tasks.address + jobs.row() * LINE)


def set_counts(jobs: Any, at: int, turn: int, opened: int, lost: int) -> None:
    endpoint = jobs.pool.endpoint
    endpoint.store(at, turn << queues.COUNT_BITS | opened)
    endpoint.store(at + 8, turn << queues.COUNT_BITS | lost)


def entered(jobs: Any, work: Callable[[], Any]) -> Any:
    jobs.enter()
    try:
        return work()
    finally:
        jobs.leave()


def test_the_count_of_open_elements_stays_at_its_end(pools: Any) -> None:
    """It does not carry into the turn, and what was lost stays lost."""
    pool = pools()
    jobs = pool.queue("jobs", 8)
    consumer = pools.again(pool).queue("jobs", 8)
    jobs.put(0)
    consumer.get()
    at = entered(consumer, lambda: row_of(consumer))
    set_counts(consumer, at, 5, COUNT_MAX - 2, 0)
    entered(consumer, lambda: consumer.notes.reload(consumer.own_row))
    for number in range(6):
        jobs.put(number)
        assert consumer.get(timeout=60) == number
    word = pool.endpoint.load(at)
    assert (word >> queues.COUNT_BITS, word & COUNT_MASK) == (5, COUNT_MAX)
    for _ in range(3):
        consumer.task_done()
    assert not jobs.join(timeout=0)
    consumer.close()
    with pytest.raises(limpet.TasksLost):
        jobs.join(timeout=0)
    assert jobs.forget_lost() == COUNT_MAX
    jobs.put(1)
    assert jobs.get() == 1
    jobs.task_done()
    assert jobs.join(timeout=60)


@pytest.mark.parametrize(("turn", "lost"), [(0, COUNT_MASK), (TURN_MASK, 7)])
def test_counts_of_lost_elements_and_turns_wrap(pools: Any, turn: int, lost: int) -> None:
    pool = pools()
    jobs = pool.queue("jobs", 8)
    consumer = pools.again(pool).queue("jobs", 8)
    at = entered(consumer, lambda: row_of(consumer))
    set_counts(consumer, at, turn, 0, lost)
    pool.endpoint.store(jobs.address + queues.FORGOTTEN, lost)
    entered(consumer, lambda: consumer.notes.reload(consumer.own_row))
    assert jobs.join(timeout=60)
    for each in ("a", "b"):
        jobs.put(each)
        assert consumer.get() == each
    consumer.close()
    for _ in range(2):
        with pytest.raises(limpet.TasksLost) as raised:
            jobs.join(timeout=60)
        assert raised.value.elements == ["a", "b"]
    assert jobs.forget_lost(raised.value) == 2
    assert jobs.join(timeout=60)
    assert pool.endpoint.load(at) >> queues.COUNT_BITS == turn + 1 & TURN_MASK


# ---- rings, barriers ----------------------------------------------------------------------------


@pytest.mark.parametrize("overrun", ["block", "skip"])
def test_a_ring_says_that_its_positions_are_at_their_end(pools: Any, overrun: str) -> None:
    pool = pools()
    ring = pool.ring("ring", 512, overrun=overrun)
    for offset in (END, OLDEST):
        pool.endpoint.store(ring.address + offset, POSITION_MAX - 2048)
    pool.endpoint.store(ring.address + NUMBER, 1000)
    reader = pools.again(pool).ring("ring", 512, overrun=overrun)
    reader.subscribe()

    def sends_on() -> None:
        for number in range(1000):
            ring.send(number)
            assert reader.receive(timeout=60) == number

    with pytest.raises(limpet.StoreCorrupt, match="make it anew"):
        sends_on()
    assert POSITION_MAX - 64 < pool.endpoint.load(ring.address + END) <= POSITION_MAX
    with pytest.raises(queue.Empty):
        reader.receive_nowait()


def late_barrier(pool: Any, number: int, resets: int = 0, **parameters: Any) -> Any:
    """A barrier in that round."""
    barrier = pool.barrier("barrier", **parameters)
    pool.endpoint.store(barrier.address, number << ROUND_SHIFT)
    pool.endpoint.store(barrier.address + RESETS_AT, resets << ROUND_SHIFT)
    return barrier


def test_rounds_of_a_barrier_wrap(pools: Any) -> None:
    pool = pools()
    barrier = late_barrier(pool, ROUNDS - 3, ROUNDS - (1 << 28), parties=3)

    def comes() -> list[int]:
        mine = pool.barrier("barrier", parties=3)
        return [mine.wait(20) for _ in range(8)]

    for found in zip(*gather(comes, comes, comes), strict=True):
        assert sorted(found) == [0, 1, 2]
    assert pool.endpoint.load(barrier.address) >> ROUND_SHIFT == 5


@pytest.mark.parametrize("before", [1, 2, 0])
def test_a_round_that_is_reset_where_rounds_wrap_is_broken(pools: Any, before: int) -> None:
    """A party that waits in it is told so, also if later rounds have passed by then."""
    pool = pools()
    barrier = late_barrier(pool, (ROUNDS - before) % ROUNDS, ROUNDS - (1 << 28), parties=2)
    found: list[object] = []

    def waits() -> None:
        try:
            found.append(pool.barrier("barrier", parties=2).wait(20))
        except limpet.BrokenBarrierError as error:
            found.append(error)

    place = pool.endpoint.load(barrier.address)
    thread = threading.Thread(target=waits)
    thread.start()
    until(lambda: barrier.n_waiting == 1)
    barrier.reset()
    thread.join(60)
    assert isinstance(found[0], limpet.BrokenBarrierError)
    assert entered(barrier, lambda: was_reset(barrier, place))

    def comes() -> list[int]:
        return [pool.barrier("barrier", parties=2).wait(20) for _ in range(4)]

    assert all(sorted(pair) == [0, 1] for pair in zip(*gather(comes, comes), strict=True))
    assert entered(barrier, lambda: was_reset(barrier, place))


def was_reset(barrier: Any, place: int) -> bool:
    """The result of a party that was counted in that round, and looks now."""
    resets = barrier.endpoint.load(barrier.address + RESETS_AT)
    ago = (resets >> ROUND_SHIFT) - (place >> ROUND_SHIFT) - 1
    ago &= ROUNDS - 1
    return bool(ago < LATER and (ago >= ROUND_SHIFT or resets >> ago & 1))


@pytest.mark.parametrize("number", [1 << 28, 5 << 28, 0])
def test_what_is_told_of_resets_does_not_become_later_than_it_is(pools: Any, number: int) -> None:
    """Rounds that follow half a turn later would all be taken for ones that were reset."""
    pool = pools()
    barrier = late_barrier(pool, (number - 1) % ROUNDS, (number - 1000) % ROUNDS, parties=2)

    def comes() -> list[int]:
        return [pool.barrier("barrier", parties=2).wait(20) for _ in range(3)]

    gather(comes, comes)
    there = pool.endpoint.load(barrier.address + RESETS_AT)
    assert there == number << ROUND_SHIFT


def test_who_died_a_turn_of_rounds_ago_is_not_missed(pools: Any) -> None:
    pool = pools()
    barrier = pool.barrier("barrier", parties=2)

    def comes_and_dies() -> None:
        pool.barrier("barrier", parties=2).wait(20)
        os.kill(os.getpid(), signal.SIGKILL)

    pid, out = start(comes_and_dies)
    assert barrier.wait(20) in (0, 1)
    out.read()
    out.close()
    os.waitpid(pid, 0)
    assert len(barrier.sst.participants()) == 2
    pool.endpoint.store(barrier.address, (1 << 29) + 1 << ROUND_SHIFT)
    pool.endpoint.store(barrier.address + RESETS_AT, 1 << 29 << ROUND_SHIFT)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(barrier.wait(20)))
    thread.start()
    until(lambda: len(barrier.sst.participants()) == 1)
    found.append(pools.again(pool).barrier("barrier", parties=2).wait(20))
    thread.join(60)
    assert sorted(found) == [0, 1]


def test_regroupings_of_a_round_wrap(pools: Any) -> None:
    pool = pools()
    barrier = pool.barrier("barrier", parties=3, on_death="continue")
    pool.endpoint.store(barrier.address, AGAIN)

    def comes() -> int:
        return int(pool.barrier("barrier", parties=3, on_death="continue").wait(20))

    with children([comes]) as (one,):
        until(lambda: barrier.n_waiting == 1)
        pid, out = start(comes)
        until(lambda: barrier.n_waiting == 2)
        os.kill(pid, signal.SIGKILL)
        out.close()
        os.waitpid(pid, 0)
        assert barrier.wait(20) in (0, 1)
        one[1].read()
        assert os.waitstatus_to_exitcode(os.waitpid(one[0], 0)[1]) == 0
    assert barrier.parties < 3
    assert not barrier.broken


# ---- kvstore ------------------------------------------------------------------------------------


def test_sequences_of_journals_wrap(pools: Any) -> None:
    pool = pools(node_size="4MiB")
    store = pool.store("loco", name="kv", capacity=64)
    base, parameters = store.lookup.tables[0], store.parameters
    for lock in range(store.parameters.locks):
        at = base + parameters.locks_at + lock * parameters.record_size + parameters.journal_at
        pool.endpoint.store(at + kvstores.INTENT, 0xFFFF_FFFF << 32)
    other = pools.again(pool).store("loco", name="kv")
    for each in range(20):
        store.put(b"%d" % each, b"v%d" % each)
        assert other.get(b"%d" % each) == b"v%d" % each
        if each % 3 == 0:
            other.delete(b"%d" % each)
            assert store.get(b"%d" % each) is None
    store.check()
