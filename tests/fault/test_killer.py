import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from limpet.fault.killer import Kill, ProcessKiller

Children = list["subprocess.Popen[bytes]"]


@pytest.fixture
def sleepers() -> Iterator[Children]:
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()


def kill_all(killer: ProcessKiller) -> list[int]:
    killer.start(0)
    victims = []
    while killer.victims:
        assert killer.due_ns is not None
        kill = killer.step(killer.due_ns)
        assert kill is not None
        victims.append(kill.pid)
    return victims


def test_killer_kills_its_own_and_nothing_else(sleepers: Children) -> None:
    killer = ProcessKiller(rate=100, seed=1)
    for child in sleepers[:2]:
        killer.add(child.pid)
    assert set(kill_all(killer)) == {child.pid for child in sleepers[:2]}
    assert [child.wait() for child in sleepers[:2]] == [-signal.SIGKILL] * 2
    assert [child.poll() for child in sleepers[2:]] == [None, None]
    assert killer.due_ns is not None
    assert killer.step(killer.due_ns) is None
    with pytest.raises(KeyError):
        killer.kill(sleepers[2].pid)


def test_killer_leaves_a_discarded_victim_alone(sleepers: Children) -> None:
    killer = ProcessKiller(rate=100, seed=1)
    killer.add(sleepers[0].pid)
    killer.add(sleepers[1].pid)
    killer.discard(sleepers[0].pid)
    assert kill_all(killer) == [sleepers[1].pid]
    assert sleepers[0].poll() is None


def test_killer_refuses_a_pid_that_was_reused(sleepers: Children) -> None:
    killer = ProcessKiller(rate=1, seed=1)
    killer.add(sleepers[0].pid)
    process = killer._victims[sleepers[0].pid]
    process._ident = (process.pid, -1.0)
    with pytest.raises(psutil.NoSuchProcess):
        killer.kill(sleepers[0].pid)
    assert sleepers[0].poll() is None
    assert killer.kills == []


def test_killer_records_each_kill_and_calls_back(sleepers: Children) -> None:
    seen: list[Kill] = []
    killer = ProcessKiller(rate=100, seed=1, killed=seen.append)
    killer.add(sleepers[0].pid)
    before = time.monotonic_ns()
    killer.kill(sleepers[0].pid)
    after = time.monotonic_ns()
    assert seen == killer.kills
    assert [(kill.pid, kill.signal) for kill in seen] == [(sleepers[0].pid, signal.SIGKILL)]
    assert before <= seen[0].time_ns <= after


def test_killer_schedule_follows_from_the_seed_and_keeps_the_rate() -> None:
    def dues(seed: int) -> list[int]:
        killer = ProcessKiller(rate=5, seed=seed)
        killer.start(0)
        found = []
        for _ in range(1000):
            assert killer.due_ns is not None
            found.append(killer.due_ns)
            killer.step(killer.due_ns)
        return found

    assert dues(7) == dues(7) != dues(8)
    assert dues(7)[-1] == pytest.approx(1000 / 5 * 1e9, rel=0.05)
    gaps = [b - a for a, b in itertools.pairwise(dues(7))]
    assert 0.1e9 <= min(gaps) < 0.11e9
    assert 0.29e9 < max(gaps) <= 0.3e9


def test_killer_with_rate_zero_never_kills() -> None:
    killer = ProcessKiller(rate=0, seed=1)
    killer.add(os.getpid())
    killer.start(0)
    assert killer.due_ns is None
    assert killer.step(1 << 62) is None


def test_killer_is_not_early(sleepers: Children) -> None:
    killer = ProcessKiller(rate=1, seed=1)
    killer.add(sleepers[0].pid)
    killer.start(0)
    assert killer.due_ns is not None
    assert killer.step(killer.due_ns - 1) is None
    assert sleepers[0].poll() is None
