"""Each client's calls and results, recorded in memory that survives the client.

A client notes an operation before it makes the call and completes the note after the return;
a process that kills it in between finds the call with an unknown outcome. Each client slot has one
log: an anonymous file (`memfd`) that the parent makes before it forks and that grows by a chunk
whenever it is full, so no run outgrows it, nothing of it is in a file system, and it is gone with
the last process.

A log, in bytes:

    offset          size   what
    0               8      count of notes; written after the note it makes valid
    8               4088   zero
    4096 + 48 * i   48     note i, in machine byte order:
         +0         4      client: a number that no two incarnations share
         +4         2      operation, see `Operation`
         +6         2      result, see `Result`; 0 until the call has returned
         +8         8      key: the caller's number for it
         +16        8      value: the caller's number for the value that is written, 0 if none
         +24        8      read: the caller's number for the value that was read, 0 if none
         +32        8      call_ns, CLOCK_MONOTONIC
         +40        8      return_ns, 0 until the call has returned

Note i is valid when count > i. Its call is complete when its result is not 0; the result is written
last. One process at a time writes a log (the next incarnation starts when the last one is dead) and
every store is of 8 aligned bytes, in program order, so a kill leaves a valid log after each of
them.

Known limit: every operation costs 48 bytes for as long as the run lasts.
"""

from __future__ import annotations

import enum
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

HEADER_SIZE: Final = 4096
NOTES_PER_CHUNK: Final = 65536

NOTE: Final = np.dtype(
    [
        ("client", np.uint32),
        ("op", np.uint16),
        ("result", np.uint16),
        ("key", np.int64),
        ("value", np.uint64),
        ("read", np.uint64),
        ("call_ns", np.int64),
        ("return_ns", np.int64),
    ]
)
NOTE_WORDS: Final = NOTE.itemsize // 8
CHUNK_SIZE: Final = NOTES_PER_CHUNK * NOTE.itemsize

assert NOTE.itemsize == 48
assert [field[1] for field in (NOTE.fields or {}).values()] == [0, 4, 6, 8, 16, 24, 32, 40]
assert CHUNK_SIZE % mmap.ALLOCATIONGRANULARITY == 0 == HEADER_SIZE % mmap.ALLOCATIONGRANULARITY

Notes = npt.NDArray[np.void]


class Operation(enum.IntEnum):
    """The operation that was called."""

    INSERT = 1
    UPDATE = 2
    PUT = 3
    GET = 4
    DELETE = 5


class Result(enum.IntEnum):
    """Its result. UNKNOWN: it did not return, or raised an error that leaves its effect open.

    TORN: a get returned bytes that no client wrote. FULL: there was no room, and nothing changed.
    """

    UNKNOWN = 0
    OK = 1
    MISSING = 2
    EXISTS = 3
    TORN = 4
    FULL = 5


class Log:
    """The writing end of one slot's log, in the process that makes the calls."""

    def __init__(
        self, fd: int, client: int, start: int = 0, now: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`start`: the offset of the log in the file, a multiple of a page. `now`: the clock of
        calls and returns; all clients of a history must use the same."""
        self._fd = fd
        self._client = client
        self._start = start
        self._now = now
        self._header = memoryview(mmap.mmap(fd, HEADER_SIZE, offset=start)).cast("Q")
        self._count = self._header[0]
        self._chunk = -1
        self._words = self._header

    @property
    def count(self) -> int:
        """How many notes it has."""
        return self._count

    def call(self, op: Operation, key: int, value: int = 0) -> None:
        """Note that a call is about to be made. Costs about 1 us."""
        chunk, index = divmod(self._count, NOTES_PER_CHUNK)
        if chunk != self._chunk:
            self._map(chunk)
        words, at = self._words, index * NOTE_WORDS
        words[at] = self._client | op << 32
        words[at + 1] = key
        words[at + 2] = value
        words[at + 3] = 0
        words[at + 5] = 0
        words[at + 4] = self._now()
        self._count += 1
        # ORDER: the count goes last; before it, the call has not been made.
        self._header[0] = self._count

    def returned(self, result: Result, read: int = 0) -> None:
        """Complete the last note."""
        now = self._now()
        words, at = self._words, (self._count - 1) % NOTES_PER_CHUNK * NOTE_WORDS
        words[at + 3] = read
        words[at + 5] = now
        # ORDER: the result goes last; it makes the other two valid.
        words[at] |= result << 48

    def _map(self, chunk: int) -> None:
        end = self._start + HEADER_SIZE + (chunk + 1) * CHUNK_SIZE
        if os.fstat(self._fd).st_size < end:
            os.ftruncate(self._fd, end)
        start = self._start + HEADER_SIZE + chunk * CHUNK_SIZE
        self._words = memoryview(mmap.mmap(self._fd, CHUNK_SIZE, offset=start)).cast("Q")
        self._chunk = chunk


class Recorder:
    """The logs of a run. Make it before the fork; it is also a context manager."""

    def __init__(self, slots: int) -> None:
        self._fds = [os.memfd_create(f"limpet-history-{slot}") for slot in range(slots)]
        for fd in self._fds:
            os.ftruncate(fd, HEADER_SIZE)

    def log(self, slot: int, client: int) -> Log:
        """The log of `slot`, to be continued by `client`. The slot's last writer must be dead."""
        return Log(self._fds[slot], client)

    def notes(self) -> Notes:
        """A copy of all notes, slot after slot, each in the order of its calls."""
        return np.concatenate([read_log(fd) for fd in self._fds] or [np.empty(0, NOTE)])

    def notes_of(self, slot: int) -> Notes:
        """A copy of the notes of one slot, in the order of its calls."""
        return read_log(self._fds[slot])

    def close(self) -> None:
        """Drop the logs. Notes that were copied stay valid."""
        while self._fds:
            os.close(self._fds.pop())

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_log(fd: int, start: int = 0) -> Notes:
    """A copy of the notes of the log that begins at byte `start` of a file."""
    count = int.from_bytes(os.pread(fd, 8, start), sys.byteorder)
    data = bytearray(count * NOTE.itemsize)
    view = memoryview(data)
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], start + HEADER_SIZE + done)
        if got == 0:
            raise EOFError(f"the log says {count} notes but ends after {done} bytes")
        done += got
    return np.frombuffer(data, NOTE)
