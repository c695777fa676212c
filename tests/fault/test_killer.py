import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest
from kit.waiting import until

from limpet.fault.inject.killer import Pace, ProcessKiller, ProcessStopper, Sent, Victims

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")

Children = list["subprocess.Popen[bytes]"]
MS = 1_000_000


@pytest.fixture
def sleepers() -> Iterator[Children]:
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.fixture
def victims() -> Iterator[Victims]:
    made = Victims()
    try:
        yield made
    finally:
        made.close()


def kill_all(victims: Victims, killer: ProcessKiller) -> list[int]:
    killer.start(0)
    killed = []
    while victims.pids:
        assert killer.due_ns is not None
        sent = killer.step(killer.due_ns)
        assert sent is not None
        killed.append(sent.pid)
    return killed


def stands_still(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def wait_until(pid: int, stopped: bool) -> None:
    until(lambda: stands_still(pid) == stopped, f"process {pid}: stopped is not {stopped}")


def test_killer_kills_its_own_and_nothing_else(sleepers: Children, victims: Victims) -> None:
    killer = ProcessKiller(victims, rate=100, seed=1)
    for child in sleepers[:2]:
        victims.add(child.pid)
    assert set(kill_all(victims, killer)) == {child.pid for child in sleepers[:2]}
    assert [child.wait() for child in sleepers[:2]] == [-signal.SIGKILL] * 2
    assert [child.poll() for child in sleepers[2:]] == [None, None]
    assert killer.due_ns is not None
    assert killer.step(killer.due_ns) is None
    with pytest.raises(KeyError):
        killer.kill(sleepers[2].pid)


def test_killer_leaves_a_discarded_victim_alone(sleepers: Children, victims: Victims) -> None:
    killer = ProcessKiller(victims, rate=100, seed=1)
    victims.add(sleepers[0].pid)
    victims.add(sleepers[1].pid)
    victims.discard(sleepers[0].pid)
    assert kill_all(victims, killer) == [sleepers[1].pid]
    assert sleepers[0].poll() is None


def test_killer_does_not_signal_a_pid_whose_process_is_gone(
    sleepers: Children, victims: Victims
) -> None:
    killer = ProcessKiller(victims, rate=1, seed=1)
    victims.add(sleepers[0].pid)
    sleepers[0].kill()
    sleepers[0].wait()
    with pytest.raises(ProcessLookupError):
        killer.kill(sleepers[0].pid)
    assert killer.sent == []


def test_killer_records_each_kill_and_calls_back(sleepers: Children, victims: Victims) -> None:
    seen: list[Sent] = []
    killer = ProcessKiller(victims, rate=100, seed=1, killed=seen.append)
    victims.add(sleepers[0].pid)
    before = time.monotonic_ns()
    killer.kill(sleepers[0].pid)
    after = time.monotonic_ns()
    assert seen == killer.sent
    assert [(sent.pid, sent.signal) for sent in seen] == [(sleepers[0].pid, signal.SIGKILL)]
    assert before <= seen[0].time_ns <= after


def test_pace_follows_from_the_seed_and_keeps_the_rate() -> None:
    def dues(seed: int) -> list[int]:
        pace = Pace(5, random.Random(seed))
        pace.start(0)
        found = []
        for _ in range(1000):
            assert pace.due_ns is not None
            found.append(pace.due_ns)
            assert not pace.take(pace.due_ns - 1)
            assert pace.take(pace.due_ns)
        return found

    assert dues(7) == dues(7) != dues(8)
    assert dues(7)[-1] == pytest.approx(1000 / 5 * 1e9, rel=0.05)
    gaps = [b - a for a, b in itertools.pairwise(dues(7))]
    assert 0.1e9 <= min(gaps) < 0.11e9
    assert 0.29e9 < max(gaps) <= 0.3e9


def test_killer_with_rate_zero_never_kills(victims: Victims) -> None:
    killer = ProcessKiller(victims, rate=0, seed=1)
    victims.add(os.getpid())
    killer.start(0)
    assert killer.due_ns is None
    assert killer.step(1 << 62) is None


def test_killer_is_not_early(sleepers: Children, victims: Victims) -> None:
    killer = ProcessKiller(victims, rate=1, seed=1)
    victims.add(sleepers[0].pid)
    killer.start(0)
    assert killer.due_ns is not None
    assert killer.step(killer.due_ns - 1) is None
    assert sleepers[0].poll() is None


def test_stopper_stops_and_lets_go_on_when_the_hold_is_over(
    sleepers: Children, victims: Victims
) -> None:
    stopper = ProcessStopper(victims, rate=10, seed=1, hold_ns=(20 * MS, 50 * MS))
    pid = sleepers[0].pid
    victims.add(pid)
    stopper.start(0)
    assert stopper.due_ns is not None
    before = time.monotonic_ns()
    stopper.step(stopper.due_ns)
    wait_until(pid, True)
    until = stopper.stopped[pid]
    assert before + 20 * MS <= until <= time.monotonic_ns() + 50 * MS
    assert stopper.has_stopped(pid)
    stopper.step(until - 1)
    assert stands_still(pid)
    stopper.wake_all()
    wait_until(pid, False)
    assert [sent.signal for sent in stopper.sent] == [signal.SIGSTOP, signal.SIGCONT]
    assert stopper.due_ns is None


def test_stopper_lets_one_go_on_at_its_time(sleepers: Children, victims: Victims) -> None:
    stopper = ProcessStopper(victims, rate=0, seed=1, hold_ns=(MS, MS))
    for child in sleepers[:2]:
        victims.add(child.pid)
        stopper.stop(child.pid)
        wait_until(child.pid, True)
    first, second = (child.pid for child in sleepers[:2])
    assert stopper.due_ns == stopper.stopped[first]
    stopper.stopped[second] = 1 << 62
    stopper.step(stopper.stopped[first])
    wait_until(first, False)
    assert stands_still(second)
    assert list(stopper.stopped) == [second]


def test_stopper_and_killer_share_their_victims(sleepers: Children, victims: Victims) -> None:
    """One that stands still can be killed, and is then left alone."""
    killer = ProcessKiller(victims, rate=1, seed=1)
    stopper = ProcessStopper(victims, rate=0, seed=1, hold_ns=(MS, MS))
    pid = sleepers[0].pid
    victims.add(pid)
    stopper.stop(pid)
    killer.kill(pid)
    assert sleepers[0].wait() == -signal.SIGKILL
    stopper.wake_all()
    assert [sent.signal for sent in stopper.sent] == [signal.SIGSTOP]
    stopper.discard(pid)
    assert not stopper.has_stopped(pid)


def test_a_negative_rate_is_refused(victims: Victims) -> None:
    with pytest.raises(ValueError, match="negative"):
        ProcessKiller(victims, rate=-1, seed=1)
