"""Recording a history with the bytes of its keys and values, in memory that survives the client.

The notes are those of recorder.py, whose logs hold numbers; here each slot has an archive besides,
an anonymous file (`memfd`) of the byte strings that the numbers stand for. A string is appended to
the archive before the note that names it is made, so a kill leaves no note without its bytes;
strings that were appended and not named are skipped.

An archive, in bytes: 8 of zero, then strings one after the other, each

    offset   size   meaning
    0        8      length, in machine byte order
    8        length the bytes, then zero bytes up to the next multiple of 8

The number of a string is the offset of its length; 0 means that there is none. A string that was
cut by a kill is the last one, and the next writer begins after it, at the next multiple of 8.

Known limit: every value that is written or read is kept, so large values are better recorded as a
digest, by a recorder of numbers (`from_notes` takes those, too).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from limpet.fault.check.history import Record
from limpet.fault.check.recorder import Log, Notes, Operation, Recorder, Result
from limpet.shm.errors import KeyExists

CHUNK: Final = 65536
"""Notes that are turned into Python objects at a time."""
_LENGTH: Final = struct.Struct("=Q")
_OPS: Final = {operation.value: operation.name.lower() for operation in Operation}
_RESULTS: Final = {
    Result.UNKNOWN.value: "unknown",
    Result.OK.value: "ok",
    Result.MISSING.value: "missing",
    Result.EXISTS.value: "exists",
}


def from_notes(
    notes: Notes, key_of: Callable[[int], bytes], value_of: Callable[[int], bytes]
) -> Iterator[Record]:
    """The records of `notes`, in their order; the callables turn numbers into keys and values.

    Operations that found no room are left out, as they changed nothing. ValueError for a torn read:
    it is wrong by itself, and has no place in a history.
    """
    for start in range(0, len(notes), CHUNK):
        yield from _from_tuples(notes[start : start + CHUNK].tolist(), key_of, value_of)


def records_of(notes: Notes, archive: bytes) -> Iterator[Record]:
    """The records of one slot: its `notes`, and the archive of the strings that they name."""
    strings = _Strings(archive)
    return from_notes(notes, strings.at, strings.at)


def _from_tuples(
    notes: list[tuple[int, ...]], key_of: Callable[[int], bytes], value_of: Callable[[int], bytes]
) -> Iterator[Record]:
    for client, op, result, key, value, read, call_ns, return_ns in notes:
        if result == Result.FULL:
            continue
        if result == Result.TORN:
            raise ValueError(f"client {client} read torn bytes at {call_ns} ns; judge those first")
        name, came = _OPS[op], _RESULTS[result]
        yield Record(
            client,
            name,
            key_of(key),
            value_of(value) if name in ("insert", "update", "put") else None,
            came,
            value_of(read) if name == "get" and came == "ok" else None,
            call_ns,
            None if came == "unknown" else return_ns,
        )


class Archive(Protocol):
    """The writing end of an archive."""

    def append(self, data: bytes) -> int:
        """Keep a string; its number."""


class FileArchive:
    """The writing end of an archive that is a file of its own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = -(-os.fstat(fd).st_size // 8) * 8

    def append(self, data: bytes) -> int:
        """Keep a string; its number."""
        at, whole = self._end, packed(data)
        written = os.pwrite(self._fd, whole, at)
        while written < len(whole):
            written += os.pwrite(self._fd, whole[written:], at + written)
        self._end = at + len(whole)
        return at


def packed(data: bytes) -> bytes:
    """A string as it stands in an archive."""
    return _LENGTH.pack(len(data)) + data + bytes(-len(data) % 8)


class HistoryRecorder:
    """The logs and archives of a run. Make it before the fork; it is also a context manager."""

    def __init__(self, slots: int) -> None:
        self._recorder = Recorder(slots)
        self._archives = [os.memfd_create(f"limpet-archive-{slot}") for slot in range(slots)]
        for fd in self._archives:
            os.ftruncate(fd, _LENGTH.size)

    def log(self, slot: int, client: int) -> ClientLog:
        """The log of `slot`, to be continued by `client`. The slot's last writer must be dead."""
        return ClientLog(self._recorder.log(slot, client), FileArchive(self._archives[slot]))

    def records(self) -> list[Record]:
        """All records so far, slot after slot, each in the order of its calls."""
        found: list[Record] = []
        for slot, fd in enumerate(self._archives):
            # ORDER: the notes are copied before the strings, so that none of them is missing.
            notes = self._recorder.notes_of(slot)
            found.extend(records_of(notes, _read_all(fd)))
        return found

    def close(self) -> None:
        """Drop logs and archives. Records that were taken stay."""
        self._recorder.close()
        while self._archives:
            os.close(self._archives.pop())

    def __enter__(self) -> HistoryRecorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ClientLog:
    """The writing end of one slot, in the process that makes the calls."""

    def __init__(self, log: Log, archive: Archive) -> None:
        self._log = log
        self._archive = archive
        self._keys: dict[bytes, int] = {}

    def call(self, op: Operation, key: bytes, value: bytes | None = None) -> None:
        """Note that a call is about to be made. Costs a few us: a string is a system call."""
        number = self._keys.get(key)
        if number is None:
            number = self._keys[key] = self._archive.append(key)
        self._log.call(op, number, 0 if value is None else self._archive.append(value))

    def returned(self, result: Result, read: bytes | None = None) -> None:
        """Complete the last note."""
        self._log.returned(result, 0 if read is None else self._archive.append(read))


class Recorded:
    """A store's operations, each noted in `log`; results and errors are the store's own.

    An operation that raises anything but KeyExists or KeyError stays unknown in the history.
    """

    def __init__(self, store: Any, log: ClientLog) -> None:
        self.store = store
        self.log = log

    def get(self, key: bytes) -> bytes | None:
        self.log.call(Operation.GET, key)
        value: bytes | None = self.store.get(key)
        self.log.returned(Result.MISSING if value is None else Result.OK, value)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        self.log.call(Operation.PUT, key, value)
        self.store.put(key, value)
        self.log.returned(Result.OK)

    def insert(self, key: bytes, value: bytes) -> None:
        self.log.call(Operation.INSERT, key, value)
        try:
            self.store.insert(key, value)
        except KeyExists:
            self.log.returned(Result.EXISTS)
            raise
        self.log.returned(Result.OK)

    def update(self, key: bytes, value: bytes) -> None:
        self.log.call(Operation.UPDATE, key, value)
        try:
            self.store.update(key, value)
        except KeyError:
            self.log.returned(Result.MISSING)
            raise
        self.log.returned(Result.OK)

    def delete(self, key: bytes) -> None:
        self.log.call(Operation.DELETE, key)
        try:
            self.store.delete(key)
        except KeyError:
            self.log.returned(Result.MISSING)
            raise
        self.log.returned(Result.OK)


class _Strings:
    """The strings of one archive by their numbers; equal ones are the same object."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._same: dict[bytes, bytes] = {}

    def at(self, number: int) -> bytes:
        (length,) = _LENGTH.unpack_from(self._data, number)
        start = number + _LENGTH.size
        value = self._data[start : start + length]
        return self._same.setdefault(value, value)


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    parts, done = [], 0
    while done < size:
        part = os.pread(fd, size - done, done)
        if not part:
            raise EOFError(f"an archive of {size} bytes ends after {done}")
        parts.append(part)
        done += len(part)
    return b"".join(parts)
