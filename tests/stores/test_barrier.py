"""The barrier: as threading's, for processes, and what the living get to know of the dead."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from kit.endpoints import NappingPool
from kit.processes import children, dies_at, gather, start
from kit.waiting import until

import limpet
from limpet.shm.endpoint.fabric import Endpoint
from limpet.stores.channels.barrier.barrier import Barrier
from limpet.stores.channels.barrier.layout import COME

COMPILED = limpet.build == "compiled"
try:
    from test import lock_tests
except ImportError:
    lock_tests = None

DOES_NOT_APPLY = {"test_repr": "a channel's repr is its name and pool"}

if lock_tests is not None:

    class TestAsThreading(lock_tests.BarrierTests):  # type: ignore[misc]
        """CPython's own tests of threading.Barrier."""

        defaultTimeout = 1.0  # noqa: N815 - theirs

        @pytest.fixture(autouse=True)
        def _pool(self, pools: Any) -> None:
            pool, numbers = pools(), itertools.count()
            self.barriertype = lambda parties, action=None, timeout=None: pool.barrier(
                f"b{next(numbers)}", parties, action, timeout
            )

    for name in DOES_NOT_APPLY:
        setattr(TestAsThreading, name, None)


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin `work` in a thread; returns what gives its result, or the error that it raised."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except limpet.LimpetError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(60)
        return found[0]

    return result


# ---- processes ----------------------------------------------------------------------------------


def test_threads_of_processes_pass_together(pools: Any) -> None:
    """Three processes, of which one comes with two threads."""
    barrier = pools().barrier("b", 4)
    come = barrier.pool.array("come", 100)
    rounds = 30

    def passes() -> list[int]:
        found = []
        for number in range(rounds):
            come.add(number)
            found.append(barrier.wait())
            assert come[number] == 4
        return found

    def two() -> list[list[int]]:
        other = in_thread(passes)
        return [passes(), other()]

    one, another, pair = gather(passes, passes, two)
    for indices in zip(one, another, *pair, strict=True):
        assert sorted(indices) == [0, 1, 2, 3]
    assert barrier.n_waiting == 0


def test_it_is_passed_by_as_many_as_it_is_for(pools: Any) -> None:
    """More threads come than there are parties."""
    barrier = pools().barrier("b", 2)
    waits = [in_thread(lambda: barrier.wait(60)) for _ in range(5)]
    until(lambda: barrier.n_waiting == 1)
    last = in_thread(barrier.wait)
    assert sorted(wait() for wait in [*waits, last]) == [0, 0, 0, 1, 1, 1]


def test_it_is_pickled_to_workers(pools: Any) -> None:
    barrier = pools().barrier("b", 3)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=barrier.wait) for _ in range(2)]
    for worker in workers:
        worker.start()
    barrier.wait(60)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0


def test_the_error_is_threadings_and_is_pickled(pools: Any) -> None:
    barrier = pools().barrier("b", 2)
    barrier.abort()
    with pytest.raises(threading.BrokenBarrierError, match="'b' was aborted") as caught:
        barrier.wait()
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.pids == []


def test_parameters_that_cannot_be_are_refused(pools: Any) -> None:
    pool = pools()
    for parties, options in ((0, {}), (256, {}), ("2", {}), (2, {"on_death": "die"})):
        with pytest.raises(limpet.ParameterError):
            pool.barrier("b", parties, **options)
    pool.barrier("b", 2)
    with pytest.raises(limpet.StoreMismatch):
        pools.again(pool).barrier("b", 3)


def test_an_action_that_fails_breaks_it(pools: Any) -> None:
    def fails() -> None:
        raise RuntimeError("no")

    barrier = pools().barrier("b", 2, fails)
    other = in_thread(barrier.wait)
    until(lambda: barrier.n_waiting == 1)
    with pytest.raises(RuntimeError, match="no"):
        barrier.wait()
    assert isinstance(other(), limpet.BrokenBarrierError)
    assert barrier.broken


def test_an_interrupted_wait_breaks_it(pools: Any) -> None:
    barrier = pools().barrier("b", 2)

    def interrupted() -> bool:
        def ring(_: int, frame: FrameType | None) -> None:
            while frame is not None:
                if frame.f_code.co_name == "__del__":
                    return  # Python drops what is raised in a destructor; the alarm rings again
                frame = frame.f_back
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

        assert barrier.n_waiting == 0  # the child joins the pool here, not while the alarm runs
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        try:
            barrier.wait()
        except KeyboardInterrupt:
            return bool(barrier.broken)
        return False

    assert gather(interrupted) == [True]


# ---- death --------------------------------------------------------------------------------------


def killed_after(barrier: Any, rounds: int) -> int:
    """Pid of a child that passes so often, together with us, and is killed then."""

    def child() -> None:
        for _ in range(rounds):
            barrier.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    pid, out = start(child)
    out.close()
    for _ in range(rounds):
        barrier.wait()
    return pid


def test_the_living_learn_after_10_ms_of_sleep_who_died(pools: Any) -> None:
    pool = pools.keep(NappingPool.open(pools().url))
    barrier = pool.barrier("b", 2)

    def child() -> None:
        barrier.wait()
        time.sleep(100)

    def learns() -> limpet.BrokenBarrierError:
        with pytest.raises(limpet.BrokenBarrierError) as caught:
            barrier.wait()
        return caught.value

    for _ in range(3):
        pid, out = start(child)
        out.close()
        barrier.wait()
        waits = in_thread(learns)
        until(lambda: barrier.n_waiting == 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        before = len(pool.endpoint.naps)
        error = waits()
        assert sum(pool.endpoint.naps[before:]) <= 10_000
        assert error.pids == [pid]
        assert f"process {pid}" in str(error)
        assert barrier.broken
        barrier.reset()


def test_who_died_before_anybody_met_it_is_not_missed(pools: Any) -> None:
    """Four workers after four that have ended, as a batch after the other has it."""
    barrier = pools().barrier("b", 3)
    for _ in range(3):
        assert sorted(gather(*[lambda: barrier.wait(60)] * 3)) == [0, 1, 2]


class LateBarrier(Barrier):
    """`before_looking` is called before a party that is counted looks for the dead."""

    before_looking: Callable[[], object] | None = None

    def check_participants(self, place: int) -> bool:
        if self.before_looking is not None and self.endpoint.load(self.address) & COME:
            call, self.before_looking = self.before_looking, None
            call()
        return super().check_participants(place)


def test_a_party_that_has_passed_does_not_break_the_next_round(pools: Any) -> None:
    """The other party came, passed and ended while it was about to look for the dead."""
    pool = pools()
    barrier = LateBarrier(pool.channels, "b", parties=2)
    let_go, go = os.pipe()
    codes = []

    def child() -> None:
        os.read(let_go, 1)
        barrier.wait(60)

    def let_it_come() -> None:
        os.write(go, b"!")
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    with children([child]) as ((pid, _),):
        barrier.before_looking = let_it_come
        assert barrier.wait(60) == 0
    os.close(go)
    os.close(let_go)
    assert codes == [0]
    assert not barrier.broken
    assert sorted(gather(*[lambda: barrier.wait(60)] * 2)) == [0, 1]


def test_who_resigned_is_not_missed(pools: Any) -> None:
    barrier = pools().barrier("b", 2)

    def once() -> None:
        barrier.wait()
        barrier.resign()

    pid, out = start(once)
    barrier.wait()
    assert os.waitpid(pid, 0)[1] == 0
    out.close()
    late = in_thread(barrier.wait)
    time.sleep(0.03)
    assert not barrier.broken
    assert sorted([barrier.wait(), late()]) == [0, 1]


@pytest.mark.parametrize("on_death", ["break", "continue"])
def test_a_stopped_participant_is_neither_missed_nor_left_behind(pools: Any, on_death: str) -> None:
    """It is stopped for longer than a lease: when it has come, and when it has not."""
    pool = pools(lease=0.05)
    barrier = pool.barrier("b", 3, on_death=on_death)
    told, go = pool.array("told", 3), pool.event("go")

    def child() -> None:
        for turn in range(3):
            if turn == 2:
                go.wait()
            told[turn] = 1 + barrier.wait()

    def both(timeout: float) -> list[Any]:
        """The results, or errors, of this thread and another one."""
        other = in_thread(lambda: barrier.wait(timeout))
        try:
            return [barrier.wait(timeout), other()]
        except limpet.BrokenBarrierError as error:
            return [error, other()]

    with children([child]) as ((pid, _),):

        def stop() -> None:
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)

        until(lambda: barrier.n_waiting == 1)
        stop()
        # It has come, so the others pass without it, and wait for it in the next round.
        assert sorted(both(20)) == [1, 2]
        late = in_thread(lambda: both(20))
        until(lambda: barrier.n_waiting == 2)
        time.sleep(0.2)
        assert barrier.n_waiting == 2
        assert list(told) == [0, 0, 0]
        os.kill(pid, signal.SIGCONT)
        assert sorted(late()) == [0, 1]
        until(lambda: told[1] == 3)
        stop()
        # It has not: a timeout breaks the barrier, without any client having died.
        go.set()
        errors = both(0.2)
        assert [error.pids for error in errors] == [[], []]
        assert barrier.parties == 3
        barrier.reset()
        os.kill(pid, signal.SIGCONT)
        until(lambda: barrier.n_waiting == 1)
        assert sorted(both(20)) == [1, 2]
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(told) == [1, 3, 1]


def test_with_continue_the_living_go_on(pools: Any) -> None:
    barrier = pools().barrier("b", 3, on_death="continue")
    other = in_thread(lambda: [barrier.wait() for _ in range(3)])
    pid = killed_after(barrier, 2)
    os.waitpid(pid, 0)
    barrier.wait()
    other()
    assert barrier.parties == 2
    anew = in_thread(barrier.wait)
    until(lambda: barrier.n_waiting == 1)
    newcomer, out = start(barrier.wait)
    until(lambda: barrier.parties == 3)
    barrier.wait()
    anew()
    assert os.waitpid(newcomer, 0)[1] == 0
    out.close()


# ---- when all registers are taken ---------------------------------------------------------------


def full(barrier: Any) -> Any:
    """All rows of the registers taken, those that were free by this process; the barrier."""
    at = barrier.sst.seats
    for row in range(barrier.sst.rows):
        barrier.endpoint.cas(at + 8 * row, 0, barrier.pool.client_id)
    return barrier


def died_after(barrier: Any, rounds: int) -> int:
    pid = killed_after(barrier, rounds)
    os.waitpid(pid, 0)
    return pid


def test_a_newcomer_does_not_hide_who_is_missed(pools: Any) -> None:
    pool = pools()
    barrier = pool.barrier("b", 2)
    died_after(barrier, 1)
    newcomer = pools.again(pool).barrier("b", 2)
    assert not barrier.broken
    newcomer.resign()
    newcomer = pools.again(full(barrier).pool).barrier("b", 2)
    assert barrier.broken
    with pytest.raises(limpet.BrokenBarrierError):
        barrier.wait(60)
    barrier.reset()
    other = in_thread(lambda: newcomer.wait(60))
    assert sorted([barrier.wait(60), other()]) == [0, 1]


def test_a_newcomer_takes_the_row_of_one_whom_nobody_misses(pools: Any) -> None:
    """There is a pid to tell then."""
    pool = pools()
    barrier = pool.barrier("b", 2)
    pid = died_after(barrier, 1)
    gather(lambda: barrier.sst.mine().name)
    pools.again(full(barrier).pool).barrier("b", 2)
    assert not barrier.broken
    with pytest.raises(limpet.BrokenBarrierError) as caught:
        barrier.wait(60)
    assert caught.value.pids == [pid]


def test_the_dead_whom_only_the_dead_would_miss_make_room(pools: Any) -> None:
    pool = pools()
    barrier = pool.barrier("b", 2)
    gather(*[lambda: barrier.wait(60)] * 2)
    full(barrier)
    two = [pools.again(pool).barrier("b", 2) for _ in range(2)]
    assert not barrier.broken
    other = in_thread(lambda: two[0].wait(60))
    assert sorted([two[1].wait(60), other()]) == [0, 1]


def test_one_who_had_come_does_not_count_for_who_has_its_row(pools: Any) -> None:
    pool = pools()
    barrier = pool.barrier("b", 2)
    pid, out = start(lambda: barrier.wait(60))
    until(lambda: barrier.n_waiting == 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    out.close()
    newcomer = pools.again(full(barrier).pool).barrier("b", 2)
    with pytest.raises(limpet.BrokenBarrierError):
        newcomer.wait(60)


def test_with_continue_a_newcomer_does_not_hide_the_dead(pools: Any) -> None:
    pool = pools()
    barrier = pool.barrier("b", 2, on_death="continue")
    died_after(barrier, 1)
    newcomer = pools.again(full(barrier).pool).barrier("b", 2, on_death="continue")
    assert barrier.parties == 1
    assert barrier.wait(60) == 0
    other = in_thread(lambda: newcomer.wait(60))
    until(lambda: barrier.parties == 2)
    assert sorted([barrier.wait(60), other()]) == [0, 1]


@pytest.mark.parametrize("on_death", ["break", "continue"])
def test_a_kill_at_any_step_of_taking_over_a_register(pools: Any, on_death: str) -> None:
    """No client waits for the dead one, nor for the next owner of its register."""
    pool = pools()
    fuse, running = 0, True
    while running:
        fuse += 1
        barrier = pool.barrier(f"b{fuse}", 2, on_death=on_death)
        died_after(barrier, 1)
        full(barrier)
        running = dies_at(pool, fuse, barrier.sst.mine)
        if on_death == "continue":
            assert barrier.wait(60) == 0
        else:
            with pytest.raises(limpet.BrokenBarrierError):
                barrier.wait(60)
            barrier.reset()
            other = in_thread(lambda barrier=barrier: barrier.wait(60))
            assert sorted([barrier.wait(60), other()]) == [0, 1]
        pool.channels.remove(f"b{fuse}")
    assert fuse > 3


# ---- resets and late parties ------------------------------------------------------------------


class LateEndpoint(Endpoint):
    """A sleeper on it wakes up when it may."""

    def __init__(self) -> None:
        self.asleep = threading.Event()
        self.may = threading.Event()

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        self.asleep.set()
        self.may.wait(60)
        return 1


class LatePool(limpet.Pool):
    """A pool with such an endpoint."""

    endpoint_class = LateEndpoint


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ("ar", False),
        ("arrprprrr", False),
        ("r", True),
        ("rppp", True),
        ("rprpr", True),
        ("rrrprrpprr", True),
        ("a" + 23 * "p" + "r", False),
    ],
)
def test_who_is_late_learns_of_its_own_round(pools: Any, steps: str, told: bool) -> None:
    """a: another one arrives, so it is passed; p: others pass a round, r: a round is reset."""
    pool = pools()
    late = pools.keep(LatePool.open(pool.url))
    sleeper, barrier = late.barrier("b", 2), pool.barrier("b", 2)
    waits = in_thread(sleeper.wait)
    until(late.endpoint.asleep.is_set)
    for number, step in enumerate(steps):
        if step == "a":
            assert barrier.wait(60) == 1
            continue
        theirs = in_thread(lambda: barrier.wait(60)) if number or step == "p" else None
        until(lambda: barrier.n_waiting == 1)
        if step == "p":
            assert barrier.wait(60) == 1
        else:
            barrier.reset()
        if theirs is not None:
            assert isinstance(theirs(), limpet.BrokenBarrierError) == (step == "r")
    late.endpoint.may.set()
    assert isinstance(waits(), limpet.BrokenBarrierError) == told


def regroupings(barrier: Any) -> int:
    return int(barrier.endpoint.load(barrier.address)) >> 16 & 0xFF


@pytest.mark.parametrize("on_death", ["break", "continue"])
def test_who_comes_in_place_of_the_dead_does_not_pass_with_it(pools: Any, on_death: str) -> None:
    """One of two comes, and is killed; before any client notices, another one takes its place."""
    pool = pools()
    barrier = pool.barrier("b", 2, on_death=on_death)
    newcomer = pools.again(pool).barrier("b", 2, on_death=on_death)

    def child() -> None:
        barrier.wait()
        barrier.wait()

    pid, out = start(child)
    out.close()
    barrier.wait()
    until(lambda: barrier.n_waiting == 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    theirs = in_thread(newcomer.wait)
    if on_death == "break":
        assert theirs().pids == [pid]
        assert barrier.broken
        return
    until(lambda: regroupings(barrier) == barrier.n_waiting == 1)
    assert sorted([barrier.wait(), theirs()]) == [0, 1]


def killed_in_a_wait(barrier: Any, fuse: int) -> bool:
    """Have a child die at its `fuse`-th step in the second round; whether it came so far."""
    pool, goes_on = barrier.pool, barrier.goes_on

    def doomed() -> None:
        barrier.wait()
        pool.endpoint.fuse = fuse
        barrier.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    pid, out = start(doomed)
    out.close()
    barrier.wait()
    if fuse % 2:
        time.sleep(0.005)
    told = None
    try:
        barrier.wait(60)
    except limpet.BrokenBarrierError as error:
        told = error.pids
    assert told in (None, [] if goes_on else [pid])
    assert not (told and goes_on)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if goes_on:
        assert barrier.wait(60) == 0
    barrier.reset()
    other = in_thread(lambda: barrier.wait(60))
    assert sorted([barrier.wait(60), other()]) == [0, 1]
    return code == -signal.SIGKILL


@pytest.mark.exhaustive("every step", quick=["int-break", "None-continue"])
@pytest.mark.parametrize("on_death", ["break", "continue"])
@pytest.mark.parametrize("action", [None, int])
def test_a_kill_at_any_step_of_a_wait(pools: Any, action: Any, on_death: str) -> None:
    """The other party passes, or learns of the death; then they go on."""
    pool = pools()
    fuse, running = 0, True
    while running:
        fuse += 1
        running = killed_in_a_wait(pool.barrier(f"b{fuse}", 2, action, on_death=on_death), fuse)
        pool.channels.remove(f"b{fuse}")
    assert fuse > 3
    pool.recover()
    assert pool.audit()["leaked"] == 0


def killed_in(barrier: Any, call: str, waits: bool, fuse: int) -> bool:
    """Have a child die at its `fuse`-th step of a call; whether it came so far."""
    if call == "reset" and not waits:
        barrier.abort()
    late = in_thread(lambda: barrier.wait(60)) if waits else None
    until(lambda: not waits or barrier.n_waiting == 1)

    came = dies_at(barrier.pool, fuse, getattr(barrier, call))
    barrier.reset()
    if late is not None:
        assert isinstance(late(), limpet.BrokenBarrierError)
    assert not barrier.broken
    assert barrier.n_waiting == 0
    return came


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("call", ["abort", "reset"])
def test_a_kill_at_any_step_of_abort_and_reset(pools: Any, call: str, waits: bool) -> None:
    barrier = pools().barrier("b", 2)
    fuse = 1
    while killed_in(barrier, call, waits, fuse):
        fuse += 1
    assert fuse > 2
    other = in_thread(lambda: barrier.wait(60))
    assert sorted([barrier.wait(60), other()]) == [0, 1]


def one_of_four_is_killed(barrier: Any, come: Any, delay_s: float) -> None:
    """Four processes meet time and again, until one is killed."""

    def meets() -> tuple[int, list[int]]:
        passed = 0
        while True:
            come.add(0)
            try:
                barrier.wait()
            except limpet.BrokenBarrierError as error:
                # One that ended before another had looked would be named as dead, too.
                come.add(1)
                until(lambda: come[1] == 3)
                return passed, error.pids
            passed += 1
            assert come[0] >= 4 * passed

    victim, ignored = start(meets)
    others = [start(meets) for _ in range(3)]
    until(lambda: come[0] > 40)
    time.sleep(delay_s)
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    ignored.close()
    found = []
    for pid, out in others:
        found.append(pickle.loads(out.read()))
        out.close()
        assert os.waitpid(pid, 0)[1] == 0
    assert {tuple(pids) for _, pids in found} == {(victim,)}
    assert len({passed for passed, _ in found}) == 1


def test_processes_killed_at_random_moments_at_a_barrier(pools: Any) -> None:
    """The others learn the pid, and all of them have passed equally often."""
    pool, rng = pools(), random.Random(4)
    for number in range(8 if COMPILED else 2):
        barrier, come = pool.barrier(f"b{number}", 4), pool.array(f"come{number}", 2)
        one_of_four_is_killed(barrier, come, rng.random() * 0.005)
