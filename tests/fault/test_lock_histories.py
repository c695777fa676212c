"""Histories of `pool.lock` by processes of which some are killed or stopped: those of a lock."""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from pathlib import Path
from typing import Any, Final

import pytest
from kit.processes import children

import limpet
from limpet.fault.check.channel_history import judge_lock
from limpet.fault.check.linearize import Timed
from limpet.fault.check.models import LockOp

COMPILED = limpet.build == "compiled"
TURNS: Final = 300 if COMPILED else 40
CALL, RETURN = 0, 1
NOTE: Final = struct.Struct("<QBBB")
"""Time, CALL or RETURN, whether of a release, and what was said: REFUSED, HAD or INHERITED."""
REFUSED, HAD, INHERITED = 0, 1, 2


def uses(lock: Any, file: Path, seed: int) -> None:
    """Take and release, in all the ways there are, and note it."""
    into = os.open(file, os.O_WRONLY)

    def note(kind: int, release: bool, said: int = 0) -> None:
        os.write(into, NOTE.pack(time.monotonic_ns(), kind, release, said))

    rng = random.Random(seed)
    for _ in range(TURNS):
        timeout = rng.choice((-1, 0.0005, 0))
        note(CALL, False)
        had = lock.acquire(timeout != 0, timeout or -1)
        note(RETURN, False, (INHERITED if lock.inherited else HAD) if had else REFUSED)
        if had:
            if rng.random() < 0.4:
                time.sleep(0.001)
            note(CALL, True)
            lock.release()
            note(RETURN, True)


def noted(who: int, data: bytes) -> list[Timed[LockOp]]:
    """The operations that a process has noted; its last may be cut."""
    found: list[Timed[LockOp]] = []
    called = 0
    open_: LockOp | None = None
    for at in range(0, len(data) // NOTE.size * NOTE.size, NOTE.size):
        ns, kind, release, said = NOTE.unpack_from(data, at)
        if kind == CALL:
            called, open_ = ns, LockOp("release" if release else "take", who)
            continue
        if release:
            found.append(Timed(LockOp("release", who), called, ns))
        elif said != REFUSED:
            found.append(Timed(LockOp("take", who, said == INHERITED), called, ns))
        open_ = None
    return [*found, Timed(open_, called, None)] if open_ is not None else found


def history_of(lock: Any, seed: int, files: list[Path]) -> list[Timed[LockOp]]:
    """Of five processes: the first two are killed, while the third stands still."""
    history: list[Timed[LockOp]] = []
    rng = random.Random(seed)
    works = [lambda n=n: uses(lock, files[n], 5 * seed + n) for n in range(5)]
    with children(works) as started:
        pids = [pid for pid, _ in started]
        for who in (0, 1):
            time.sleep(rng.uniform(0.01, 0.05))
            os.kill(pids[2], signal.SIGSTOP)
            history.append(Timed(LockOp("die", 1 + who), time.monotonic_ns(), None))
            os.kill(pids[who], signal.SIGKILL)
            os.waitpid(pids[who], 0)
            time.sleep(0.005)
            os.kill(pids[2], signal.SIGCONT)
        for pid in pids[2:]:
            assert os.waitpid(pid, 0)[1] == 0
    for who, file in enumerate(files):
        history += noted(1 + who, file.read_bytes())
    return history


@pytest.mark.parametrize("seed", range(4))
def test_histories_of_processes_that_are_killed_and_stopped_are_those_of_a_lock(
    pools: Any, tmp_path: Path, seed: int
) -> None:
    lock = pools().lock("lock", overtaking=seed % 2 == 0)
    files = [tmp_path / str(number) for number in range(5)]
    for file in files:
        file.touch()
    history = history_of(lock, seed, files)
    assert judge_lock(history) == ""
    assert sum(timed.op.kind == "take" for timed in history) > TURNS


def test_histories_that_no_lock_has_are_refused() -> None:
    def timed(kind: str, who: int, *times: int | None, inherited: bool = False) -> Timed[LockOp]:
        return Timed(LockOp(kind, who, inherited), times[0] or 0, times[1])

    take, release = timed("take", 1, 1, 2), timed("release", 1, 5, 6)
    assert judge_lock([take, release, timed("take", 2, 3, 7)]) == ""
    assert judge_lock([take, release, timed("take", 2, 3, 4)]) != ""
    died = timed("die", 1, 3, None)
    assert judge_lock([take, died, timed("take", 2, 4, 5, inherited=True)]) == ""
    assert judge_lock([take, died, timed("take", 2, 4, 5)]) != ""
    assert judge_lock([take, timed("take", 2, 4, 5, inherited=True)]) != ""
    assert judge_lock([take, died, timed("release", 1, 4, None), timed("take", 2, 5, 6)]) == ""
    assert judge_lock([take, timed("release", 2, 3, 4)]) != ""
