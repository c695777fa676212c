"""The ticket lock under simulated schedules, and killed at every step in real processes."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit import processes
from kit.endpoints import Interrupted, NappingPool, WatchedPool
from kit.locks import PLACES, LockStage, Run

import limpet
from limpet.shm.errors import ChannelRemoved, ParameterError
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import SLEEP_US
from limpet.stores.channels.lock.ticket_layout import (
    BEHIND_MAX,
    HANDOFF,
    HEAD,
    HOLDER,
    INHERITED,
    QUEUED,
    TURN_S,
)
from limpet.stores.channels.lock.ticket_layout import PLACES as FIRST_PLACE
from limpet.stores.channels.lock.ticket_lock import TicketLock, ticket_lock_size
from limpet.stores.channels.lock.ticket_queue import TicketQueue

SCHEDULES = 40 if limpet.build == "compiled" else 15


def lock_of(pool: limpet.Pool, overtaking: bool = True) -> Any:
    channel = Channel(pool.channels, "lock", size=ticket_lock_size(PLACES), kind="test")
    return TicketLock(channel, channel.address, PLACES, overtaking)


def word_of(lock: Any, offset: int = 0) -> int:
    return int(lock.endpoint.load(lock.address + offset))


# ---- one process --------------------------------------------------------------------------------


def test_zeros_are_a_free_lock_and_a_free_lock_is_zeros(pools: Any) -> None:
    lock = lock_of(pools())
    assert not lock.locked()
    for _ in range(3 * PLACES):
        assert lock.acquire()
        assert lock.locked()
        assert lock.holder() == lock.client.ident
        assert not lock.inherited
        lock.release()
    assert not lock.locked()
    assert lock.endpoint.read(lock.address, lock.size) == bytes(lock.size)


def test_an_uncontended_lock_costs_two_atomics(pools: Any) -> None:
    lock = lock_of(pools())
    scopes = ("foreground", "background", "control")
    before = [lock.endpoint.counters(scope) for scope in scopes]
    lock.acquire()
    lock.release()
    after = [lock.endpoint.counters(scope) for scope in scopes]
    for verb, counts in (("cas", [1, 1, 0]), ("atomics", [0, 0, 2])):  # each operation sets its pin
        assert [two[verb] - one[verb] for one, two in zip(before, after, strict=True)] == counts


def test_what_nobody_holds_cannot_be_released(pools: Any) -> None:
    lock = lock_of(pools())
    with pytest.raises(RuntimeError):
        lock.release()
    lock.acquire()
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


@pytest.mark.parametrize("places", [0, 1, 3, 12])
def test_places_are_a_power_of_two(pools: Any, places: int) -> None:
    channel = Channel(pools().channels, "lock", size=1024, kind="test")
    with pytest.raises(ParameterError):
        TicketLock(channel, channel.address, places)
    with pytest.raises(ParameterError):
        channel.pool.lock("other", places=places)
    assert channel.pool.channels.names() == ["lock"]


def test_who_gives_up_keeps_the_ticket_for_the_next_time(pools: Any) -> None:
    """Else a client that tries again and again would soon have all the places."""
    lock = lock_of(pools())
    lock.acquire()
    first = TicketLock(lock.channel, lock.address, PLACES)
    lock.channel.enter()
    assert first.queue.draw() == 1
    lock.channel.leave()
    for _ in range(5 * PLACES):
        assert not lock.acquire(0.001)
    places = [word_of(lock, 16 + 8 * place) for place in range(PLACES)]
    assert sum(place != 0 for place in places) == 2
    lock.release()
    assert lock.acquire(0.001)
    lock.release()


def test_the_head_of_the_queue_that_gives_up_is_counted_up(pools: Any) -> None:
    lock = lock_of(pools())
    lock.acquire()
    for tried in range(3 * PLACES):
        assert not lock.acquire(0.001)
        assert word_of(lock, HEAD) == tried + 1
    lock.release()
    assert word_of(lock) & HOLDER == 0
    assert lock.acquire(0)
    lock.release()
    assert word_of(lock) == 0


def test_a_lock_of_a_channel_that_is_removed_says_so(pools: Any) -> None:
    pool = pools()
    lock = lock_of(pool)
    lock.acquire()
    pool.channels.remove("lock")
    for call in (lock.release, lock.acquire, lock.locked):
        with pytest.raises(ChannelRemoved):
            call()


# ---- simulated schedules ------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[True, False], ids=["overtaking", "strict"])
def stage(request: pytest.FixtureRequest) -> Iterator[LockStage]:
    with LockStage(3, overtaking=request.param) as made:
        yield made


def test_everybody_gets_the_lock_and_nobody_sleeps_in_vain(stage: LockStage) -> None:
    for seed in range(SCHEDULES):
        run = Run(stage, seed).go()
        assert not run.failure, (seed, run.failure)
        assert run.done == 9
        assert not run.in_vain, seed


class NotedQueue(TicketQueue):
    drawn = 0

    def draw(self) -> int:
        self.drawn = int(super().draw())
        return self.drawn


class Noted(TicketLock):
    """Notes the ticket that it has drawn last, for this time."""

    queue_class = NotedQueue

    def acquire(self, timeout: float = -1.0) -> bool:
        self.queue.drawn = 0  # type: ignore[attr-defined]
        return bool(super().acquire(timeout))

    @property
    def drawn(self) -> int:
        return self.queue.drawn  # type: ignore[attr-defined]


@pytest.mark.parametrize("overtaking", [True, False])
def test_tickets_are_served_in_order(overtaking: bool) -> None:
    with LockStage(4, Noted, overtaking) as stage:
        served = 0
        for seed in range(SCHEDULES):
            run = Run(stage, seed).go()
            assert not run.failure, (seed, run.failure)
            queued = [ticket for ticket in run.order if ticket]
            assert queued == sorted(queued), seed
            served += len(queued)
        assert served > SCHEDULES


def test_who_gives_up_is_passed_over(stage: LockStage) -> None:
    for seed in range(SCHEDULES):
        run = Run(stage, seed, timeout=4e-4).go()
        assert not run.failure, (seed, run.failure)
        assert run.done == 9
        assert not run.in_vain, seed


def test_the_dead_keep_nobody_waiting(stage: LockStage) -> None:
    inherited = 0
    for seed in range(3 * SCHEDULES):
        rng = random.Random(seed)
        crashes = {number: rng.randrange(1, 200) for number in range(rng.randrange(1, 3))}
        timeout = rng.choice((-1.0, 4e-4))
        run = Run(stage, seed, crashes=crashes, timeout=timeout).go()
        assert not run.failure, (seed, run.failure)
        inherited += run.holder is not None
    assert inherited


def test_who_stands_still_keeps_only_what_it_holds(stage: LockStage) -> None:
    for seed in range(SCHEDULES):
        rng = random.Random(seed)
        stalls = {0: (rng.randrange(1, 100), 3000)}
        crashes = {1: rng.randrange(1, 200)} if seed % 2 else {}
        run = Run(stage, seed, stalls=stalls, crashes=crashes).go()
        assert not run.failure, (seed, run.failure)


def test_more_clients_than_places() -> None:
    with LockStage(PLACES + 3) as stage:
        for seed in range(SCHEDULES // 4):
            run = Run(stage, seed, times=2).go()
            assert not run.failure, (seed, run.failure)
            crashes = {number: 20 + 7 * number + seed for number in range(PLACES)}
            run = Run(stage, seed, times=2, crashes=crashes).go()
            assert not run.failure, (seed, run.failure)


# ---- what must be caught ------------------------------------------------------------------------


class SaysNothing(TicketLock):
    """Frees the lock of a dead holder, and does not tell the next one."""

    def _bury(self) -> int:
        word = self.endpoint.load(self.address)
        if word & HOLDER and not self.channel.lives(word & HOLDER):
            self.endpoint.cas(self.address, word, word & ~HOLDER)
        return 0


class BuriesBlindly(TicketLock):
    """Frees the lock of a dead holder by a plain store."""

    def _bury(self) -> int:
        word = self.endpoint.load(self.address)
        if word & HOLDER and not self.channel.lives(word & HOLDER):
            self.endpoint.store(self.address, INHERITED)
        return 0


class TakesBlindly(TicketLock):
    """Takes the lock by a plain store, after a look."""

    def grab(self) -> bool:
        return bool(self._take(False))

    def _take(self, head: bool) -> bool:
        if self.endpoint.load(self.address) & HOLDER:
            return False
        self.endpoint.store(self.address, self.client.ident | QUEUED)
        return True


class NeverPassedOver(TicketQueue):
    def pass_over(self, head: int, idle: bool) -> bool:
        return False


class WaitsForTheDead(TicketLock):
    """Never passes a ticket over."""

    queue_class = NeverPassedOver


class WakesTooSoon(TicketLock):
    """Looks for sleepers before the lock is free."""

    def drop(self) -> int:
        self.queue.wake()
        word = self.endpoint.load(self.address)
        while self.endpoint.cas(self.address, word, word & ~HOLDER) != word:
            word = self.endpoint.load(self.address)
        return 0


@pytest.mark.exhaustive_in_pure("many runs")
@pytest.mark.parametrize(
    ("kind", "crashing", "hasty", "complaint"),
    [
        (SaysNothing, True, False, "no client is told"),
        (BuriesBlindly, True, True, "two clients|does not hold"),
        (TakesBlindly, False, False, "two clients|does not hold"),
        (WaitsForTheDead, True, False, "no end"),
        (WakesTooSoon, False, False, "in vain"),
    ],
)
def test_known_bad_variants_are_caught(
    kind: Any, crashing: bool, hasty: bool, complaint: str
) -> None:
    """`hasty`: clients give up soon, and one stands still on its way."""
    with LockStage(3, kind) as stage:
        for seed in range(30_000):
            rng = random.Random(seed)
            run = Run(
                stage,
                seed,
                crashes={0: rng.randrange(1, 60)} if crashing else {},
                stalls={1: (rng.randrange(80, 240), 400)} if hasty else {},
                timeout=4e-4 if hasty else -1.0,
            ).go()
            failure = run.failure or ("in vain" if run.in_vain and not crashing else "")
            if failure:
                assert re.search(complaint, failure)
                return
    pytest.fail(f"{seed + 1} runs have not shown it")


# ---- real processes -----------------------------------------------------------------------------


def shared_lock(pool: limpet.Pool) -> Any:
    """The lock, as another process of the pool sees it; the word that it protects lies behind."""
    size = ticket_lock_size(PLACES)
    channel = Channel(pool.channels, "lock", size=size + 64, kind="test")
    return TicketLock(channel, channel.address, PLACES)


def killed_at_every_step(pool: limpet.Pool, work: Callable[[Any], object]) -> Iterator[int]:
    """Children that do `work` with the lock and are killed at step 1, 2, ... until one is not.

    Yields after each kill; what is left then is for the caller to look at.
    """
    for fuse in range(1, 200):

        def child(fuse: int = fuse) -> None:
            mine = limpet.open(pool.url)
            lock = shared_lock(mine)
            lock.channel.enter()
            lock.channel.leave()
            lock.endpoint.fuse = fuse
            work(lock)
            lock.endpoint.fuse = 0
            mine.close()

        with processes.children([child]) as ((pid, out),):
            out.read()
            _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return
        assert code == -signal.SIGKILL
        yield fuse
    pytest.fail("the work never ends")


def take_and_release(lock: Any) -> None:
    lock.acquire()
    lock.release()


def give_up(lock: Any) -> None:
    assert not lock.acquire(0.002)


def test_killed_at_every_step_of_taking_and_releasing(pools: Any) -> None:
    pool = pools(lease=100)  # none is waited for
    lock = shared_lock(pool)
    kills = 0
    for _ in killed_at_every_step(pool, take_and_release):
        kills += 1
        held = lock.locked()
        assert lock.acquire(60)
        assert lock.inherited == held
        lock.release()
        assert lock.acquire(0)
        assert not lock.inherited
        lock.release()
    assert kills


@pytest.mark.parametrize("work", [take_and_release, give_up])
def test_killed_at_every_step_of_waiting(pools: Any, work: Callable[[Any], object]) -> None:
    """The lock is held for a moment, or for as long as the child lives."""
    pool = pools()
    lock = shared_lock(pool)
    if work is give_up:
        lock.acquire()
    else:
        lock.channel.enter()
        lock.endpoint.fetch_or(lock.address, HANDOFF)  # so that one has to queue
        lock.channel.leave()
    kills = 0
    for _ in killed_at_every_step(pool, work):
        kills += 1
        if work is give_up:
            assert lock.holder() == lock.client.ident
            lock.release()
        assert lock.acquire(60)
        if work is take_and_release:
            lock.release()
            lock.channel.enter()
            lock.endpoint.fetch_or(lock.address, HANDOFF)
            lock.channel.leave()
    assert kills
    if work is give_up:
        lock.release()
    assert lock.acquire(60)


@pytest.mark.exhaustive("every step")
def test_killed_at_every_step_of_helping(pools: Any) -> None:
    """Of passing over a dead waiter and freeing the lock of a dead holder."""
    pool = pools()
    lock = shared_lock(pool)

    def leave_a_corpse_in_the_lock_and_in_the_queue() -> None:
        def holder() -> None:
            lock = shared_lock(limpet.open(pool.url))
            lock.acquire()
            os.kill(os.getpid(), signal.SIGKILL)

        def waiter() -> None:
            lock = shared_lock(limpet.open(pool.url))
            lock.channel.enter()
            assert lock.queue.draw()
            os.kill(os.getpid(), signal.SIGKILL)

        for function in (holder, waiter):
            with processes.children([function]) as ((pid, out),):
                out.read()
                os.waitpid(pid, 0)

    leave_a_corpse_in_the_lock_and_in_the_queue()
    kills = 0
    for _ in killed_at_every_step(pool, take_and_release):
        kills += 1
        assert lock.acquire(60)
        lock.release()
        leave_a_corpse_in_the_lock_and_in_the_queue()
    assert kills
    assert lock.acquire(60)


def test_what_the_killed_have_done_is_counted(pools: Any) -> None:
    """Four processes count up a word that is no atomic one; one after another is killed."""
    pool = pools()
    lock = shared_lock(pool)
    counted, noted = lock.address + 64, lock.address + 72

    def worker() -> None:
        mine = shared_lock(limpet.open(pool.url))
        endpoint = mine.endpoint
        while True:
            mine.acquire()
            if mine.inherited:
                endpoint.store(counted, endpoint.load(noted))
            value = endpoint.load(counted) + 1
            endpoint.store(noted, value)
            endpoint.store(counted, value)
            mine.release()

    with processes.children([worker] * 4) as started:
        for pid, _ in started:
            before = lock.endpoint.load(counted)
            end = time.monotonic() + 60
            while lock.endpoint.load(counted) < before + 200:
                assert time.monotonic() < end, "no client gets on"
                time.sleep(0.002)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert lock.acquire(60)
    behind = lock.endpoint.load(noted) - lock.endpoint.load(counted)
    assert behind in ((0, 1) if lock.inherited else (0,))
    lock.release()


def test_a_death_is_noticed_after_ten_milliseconds_of_sleep(pools: Any) -> None:
    pool = pools.keep(NappingPool.open(pools().url))
    lock = shared_lock(pool)

    def holder() -> None:
        lock = shared_lock(limpet.open(pool.url))
        lock.acquire()
        signal.pause()

    for _ in range(3):
        with processes.children([holder]) as ((pid, _),):
            while not lock.locked():
                time.sleep(0.001)
            assert not lock.acquire(0.01)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            before = len(pool.endpoint.naps)
            assert lock.acquire(60)
            assert sum(pool.endpoint.naps[before:]) <= 10_000
            assert lock.inherited
            lock.release()


def test_a_stopped_waiter_keeps_nobody_waiting(pools: Any) -> None:
    pool = pools(lease=0.02)
    lock = shared_lock(pool)
    lock.acquire()

    def waiter() -> None:
        lock = shared_lock(limpet.open(pool.url))
        lock.acquire()
        lock.release()

    with processes.children([waiter, waiter]) as started:
        (stopped, _), (other, _) = started
        end = time.monotonic() + 60
        while word_of(lock) & QUEUED == 0 or word_of(lock, 24) == 0 or word_of(lock, 32) == 0:
            assert time.monotonic() < end
            time.sleep(0.001)
        os.kill(stopped, signal.SIGSTOP)
        lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0
        os.kill(stopped, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(os.waitpid(stopped, 0)[1]) == 0


@pytest.mark.parametrize("overtaking", [True, False])
@pytest.mark.parametrize("waiters", [1, 3])
def test_waiters_stopped_with_a_handover_delay_the_next_one_by_no_lease(
    pools: Any, overtaking: bool, waiters: int
) -> None:
    """The lock comes free, and only the head of the queue may take it, which is stopped."""
    pool = pools.keep(NappingPool.open(pools(lease=3_600).url))
    lock = lock_of(pool, overtaking=overtaking)
    assert lock.acquire()

    def waiter() -> None:
        assert lock_of(limpet.open(pool.url), overtaking=overtaking).acquire()
        signal.pause()

    with processes.children([waiter] * waiters) as started:
        places = [FIRST_PLACE + 8 * (ticket + 1) for ticket in range(waiters)]
        end = time.monotonic() + 20
        while not (word_of(lock) & HANDOFF and all(word_of(lock, at) for at in places)):
            assert time.monotonic() < end
            time.sleep(0.001)
        for pid, _ in started:
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
        lock.release()
        assert word_of(lock) == QUEUED | HANDOFF
        before = len(pool.endpoint.naps)
        assert lock.acquire(60)
        # A nap of one that is far from its turn is longer, and the last one begins in time.
        turns_us = (waiters + 1) * int(TURN_S * 1e6 + BEHIND_MAX * SLEEP_US)
        assert sum(pool.endpoint.naps[before:]) <= turns_us
        lock.release()


def test_waiter_stopped_before_it_is_handed_the_lock_delays_no_queue_by_a_lease(
    pools: Any,
) -> None:
    """Newcomers overtake it, again and again, and one that queues behind it is served."""
    pool = pools.keep(NappingPool.open(pools(lease=3_600).url))
    lock = lock_of(pool)
    newcomer = lock_of(pools.again(pool))
    assert newcomer.acquire()
    # The first ticket is that of a client which does nothing.
    other = pools.again(pool)
    stopped = lock_of(other)
    stopped.channel.enter()
    stopped.queue.draw()
    stopped.channel.leave()
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(60)))
    thread.start()
    end = time.monotonic() + 60
    while not taken and time.monotonic() < end:
        newcomer.release()
        time.sleep(0.002)
        while not taken and not newcomer.acquire(0.001):
            assert time.monotonic() < end
    assert taken == [True]
    thread.join()
    lock.release()


def test_who_was_taken_for_dead_does_not_release_the_lock_of_another(pools: Any) -> None:
    """It stands still in the midst of a release, until the next one has the lock."""
    lock = lock_of(pools.keep(WatchedPool.open(pools().url)))
    assert lock.acquire()
    lock.endpoint.fetch_or(lock.address, QUEUED)
    releases = [0]

    def pass_over(verb: str, address: int) -> None:
        if verb == "cas" and address == lock.address:
            releases[0] += 1
            if releases[0] == 2:
                lock.endpoint.store(lock.address, lock.client.ident + 1)

    lock.endpoint.before = pass_over
    with pytest.raises(RuntimeError):
        lock.release()
    assert word_of(lock) == lock.client.ident + 1


def test_an_error_at_the_mark_leaves_no_operation_open(pools: Any) -> None:
    lock = lock_of(pools.keep(WatchedPool.open(pools().url)))

    def interrupt(verb: str, address: int) -> None:
        if address == lock.channel.mark_address:
            raise Interrupted

    lock.endpoint.before = interrupt
    lock.channel.marked.doubt()
    with pytest.raises(Interrupted):
        lock.locked()
    lock.endpoint.before = None
    assert not lock.locked()
