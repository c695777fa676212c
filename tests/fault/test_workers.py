import mmap
import os
import signal
import time

import psutil
import pytest
from kit.waiting import ended, until

from limpet.fault.inject import workers as module
from limpet.fault.inject.interrupt import Interrupted
from limpet.fault.inject.workers import Workers

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")


def forever(slot: int, incarnation: int) -> None:
    signal.pause()


def test_workers_return_status_and_traceback() -> None:
    def target(slot: int, incarnation: int) -> None:
        if slot:
            raise ValueError(f"slot {slot} incarnation {incarnation} is unhappy")

    with Workers(target) as workers:
        pids = {slot: workers.start(slot) for slot in (0, 1)}
        assert workers.pids == pids
        ends = []
        while workers.pids:
            ends += workers.wait(60)
        good, bad = sorted(ends, key=lambda end: end.slot)
    assert (good.pid, good.status, good.traceback) == (pids[0], 0, "")
    assert (bad.pid, bad.incarnation, bad.status) == (pids[1], 2, 1)
    assert "ValueError: slot 1 incarnation 2 is unhappy" in bad.traceback


def test_workers_slot_is_reused_after_the_worker_ended() -> None:
    with Workers(forever) as workers:
        pid = workers.start(0)
        with pytest.raises(ValueError, match="slot 0"):
            workers.start(0)
        os.kill(pid, signal.SIGKILL)
        assert workers.reap(pid).status == -signal.SIGKILL
        replacement = workers.start(0)
        assert workers.slot(replacement) == 0
        assert workers.started == 2
        with pytest.raises(KeyError):
            workers.slot(pid)


def test_workers_are_ended_and_reaped_on_the_way_out() -> None:
    with Workers(forever) as workers:
        pids = [workers.start(slot) for slot in range(3)]
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("call", ["waitid", "waitpid"])
def test_an_interrupt_when_a_worker_has_just_ended_is_what_is_raised(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    wait = getattr(os, call)

    def interrupted(*args: int) -> None:
        wait(*args)
        monkeypatch.undo()
        raise Interrupted(signal.SIGINT)

    with Workers(lambda slot, incarnation: None) as workers:
        pid = workers.start(0)
        monkeypatch.setattr(os, call, interrupted)
        with pytest.raises(Interrupted):
            workers.reap(pid)
    assert not psutil.pid_exists(pid)


def test_worker_ends_with_its_parent_from_before_anybody_can_stop_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bind = module.end_with_parent
    bound = mmap.mmap(-1, 1)

    def slowly(parent: int) -> None:
        time.sleep(0.2)
        bind(parent)
        bound[0] = 1

    monkeypatch.setattr(module, "end_with_parent", slowly)
    with Workers(forever) as workers:
        workers.start(0)
        assert bound[0] == 1


def test_workers_wait_returns_when_time_is_over_or_a_descriptor_is_ready() -> None:
    read_fd, write_fd = os.pipe()
    try:
        with Workers(forever) as workers:
            workers.start(0)
            assert workers.wait(0) == []
            os.write(write_fd, b"x")
            assert workers.wait(None, [read_fd]) == []
    finally:
        os.close(read_fd)
        os.close(write_fd)


def test_workers_ignore_interrupts() -> None:
    read_fd, write_fd = os.pipe()

    def target(slot: int, incarnation: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        os.write(write_fd, b"alive")

    try:
        with Workers(target) as workers:
            pid = workers.start(0)
            assert os.read(read_fd, 5) == b"alive"
            assert workers.reap(pid).status == 0
    finally:
        os.close(read_fd)
        os.close(write_fd)


def test_workers_end_when_their_parent_is_killed() -> None:
    read_fd, write_fd = os.pipe()

    def parent(slot: int, incarnation: int) -> None:
        with Workers(forever) as children:
            for number in range(3):
                os.write(write_fd, f"{children.start(number)} ".encode())
            os.write(write_fd, b"\n")
            signal.pause()

    try:
        with Workers(parent) as workers:
            pid = workers.start(0)
            text = b""
            while not text.endswith(b"\n"):
                text += os.read(read_fd, 1)
            grandchildren = [psutil.Process(int(word)) for word in text.split()]
            os.kill(pid, signal.SIGKILL)
            workers.reap(pid)
            until(lambda: all(map(ended, grandchildren)), "the workers outlived their parent")
    finally:
        os.close(read_fd)
        os.close(write_fd)
