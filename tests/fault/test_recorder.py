import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from limpet.fault.check import recorder as module
from limpet.fault.check.recorder import Operation, Recorder, Result
from limpet.fault.inject.workers import Workers

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder(2) as made:
        yield made


def test_recorder_keeps_what_was_called_and_what_came_back(recorder: Recorder) -> None:
    before = time.monotonic_ns()
    log = recorder.log(0, client=7)
    log.call(Operation.PUT, key=5, value=(7 << 32) + 1)
    log.returned(Result.OK)
    log.call(Operation.GET, key=6)
    log.returned(Result.OK, read=99)
    log.call(Operation.GET, key=8)
    log.returned(Result.MISSING)
    after = time.monotonic_ns()
    notes = recorder.notes()
    assert notes["client"].tolist() == [7, 7, 7]
    assert notes["op"].tolist() == [Operation.PUT, Operation.GET, Operation.GET]
    assert notes["result"].tolist() == [Result.OK, Result.OK, Result.MISSING]
    assert notes["key"].tolist() == [5, 6, 8]
    assert notes["value"].tolist() == [(7 << 32) + 1, 0, 0]
    assert notes["read"].tolist() == [0, 99, 0]
    times = np.stack([notes["call_ns"], notes["return_ns"]], axis=1).ravel().tolist()
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= after


def test_recorder_outlives_a_killed_writer(recorder: Recorder) -> None:
    read_fd, write_fd = os.pipe()

    def target(slot: int, incarnation: int) -> None:
        log = recorder.log(slot, incarnation)
        for key in range(3):
            log.call(Operation.PUT, key, incarnation << 32 | key + 1)
            if key < 2:
                log.returned(Result.OK)
        os.write(write_fd, b"x")
        signal.pause()

    try:
        with Workers(target) as workers:
            for _ in range(2):
                pid = workers.start(1)
                os.read(read_fd, 1)
                os.kill(pid, signal.SIGKILL)
                workers.reap(pid)
    finally:
        os.close(read_fd)
        os.close(write_fd)
    notes = recorder.notes()
    assert notes["client"].tolist() == [1, 1, 1, 2, 2, 2]
    assert notes["key"].tolist() == [0, 1, 2] * 2
    assert notes["result"].tolist() == [Result.OK, Result.OK, Result.UNKNOWN] * 2
    assert (notes["return_ns"] == 0).tolist() == [False, False, True] * 2


def test_recorder_loses_nothing_when_a_log_outgrows_a_chunk(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes_per_chunk = 256
    monkeypatch.setattr(module, "NOTES_PER_CHUNK", notes_per_chunk)
    monkeypatch.setattr(module, "CHUNK_SIZE", notes_per_chunk * module.NOTE.itemsize)
    count = 10 * notes_per_chunk + 3
    for client in (1, 2):
        log = recorder.log(0, client)
        for key in range(count):
            log.call(Operation.PUT, key, client << 32 | key + 1)
            log.returned(Result.OK)
    recorder.log(1, 3).call(Operation.GET, 1)
    notes = recorder.notes()
    assert len(notes) == 2 * count + 1
    assert notes["key"].tolist() == [*range(count), *range(count), 1]
    assert (notes["result"][:-1] == Result.OK).all()


def test_recorder_notes_stay_valid_after_close() -> None:
    with Recorder(1) as recorder:
        recorder.log(0, 1).call(Operation.GET, 4)
        notes = recorder.notes()
    assert notes["key"].tolist() == [4]


def test_recorder_without_notes_is_empty(recorder: Recorder) -> None:
    assert len(recorder.notes()) == 0
