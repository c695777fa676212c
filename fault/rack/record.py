"""The history of all clients of a rack, in memory that outlives the machine of a client.

The clocks of two machines cannot be compared. So a call and a return are stamped with tickets: a
word that every client counts up by an atomic add, before it makes a call and after it has returned.
If one operation had returned before another was called, its ticket is the lower one; and if its
ticket is lower, then it had. That is all that linearizability asks of a clock.

The memory is one file of the host, which each machine has as the memory of a PCI device (ivshmem):

    offset              size    what
    0                   8       tickets given out
    64                  8       counted up by all machines at once, to see whether that is atomic
    4096 + i * PART     PART    slot i: its log (fault/check/recorder.py), then its archive

An archive (fault/check/recording.py) has the strings that notes name, where numbers are not enough.
Its first word is the offset at which the next string begins: the file is mapped, and has no end of
its own. A log has room for `NOTES_MAX` notes, and an archive for ARCHIVE_SIZE bytes. A client ends
when its log or archive is full. The one writer of a slot must have ended, or its machine, before
the next begins.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final

import numpy as np

from limpet.fault.check.history import Record as HistoryRecord
from limpet.fault.check.recorder import (
    CHUNK_SIZE,
    HEADER_SIZE,
    NOTE,
    NOTES_PER_CHUNK,
    Log,
    Notes,
    read_log,
)
from limpet.fault.check.recording import ClientLog, packed, records_of
from limpet.shm.endpoint.fabric import Endpoint

PAGE: Final = 4096
COUNTED: Final = 64
LOG_SIZE: Final = HEADER_SIZE + CHUNK_SIZE
ARCHIVE_SIZE: Final = 12 << 20
PART: Final = LOG_SIZE + ARCHIVE_SIZE
NOTES_MAX: Final = NOTES_PER_CHUNK
SLOTS: Final = 16
SIZE: Final = 256 << 20

assert PAGE + SLOTS * PART <= SIZE

VENDOR, DEVICE = "0x1af4", "0x1110"
"""Numbers of the PCI device, as sysfs has them."""


class RecordFull(Exception):
    """A slot's log or archive is full, so its client ends."""


def device(sysfs: Path = Path("/sys/bus/pci/devices")) -> Path:
    """The file of the device's memory, inside a machine."""
    for folder in sorted(sysfs.iterdir()):
        numbers = tuple((folder / name).read_text().strip() for name in ("vendor", "device"))
        if numbers == (VENDOR, DEVICE):
            return folder / "resource2"
    raise FileNotFoundError(f"{sysfs} has no ivshmem device: this machine is not in a rack")


def part(slot: int) -> int:
    """Where the log of a slot begins."""
    if not 0 <= slot < SLOTS:
        raise ValueError(f"a record has {SLOTS} slots, no slot {slot}")
    return PAGE + slot * PART


class MappedArchive:
    """The writing end of the archive of one slot."""

    def __init__(self, fd: int, slot: int) -> None:
        self._map = mmap.mmap(fd, ARCHIVE_SIZE, offset=part(slot) + LOG_SIZE)
        self._words = memoryview(self._map).cast("Q")

    def append(self, data: bytes) -> int:
        """Keep a string; its number. Raises RecordFull."""
        at, whole = self._words[0] or 8, packed(data)
        end = at + len(whole)
        if end > ARCHIVE_SIZE:
            raise RecordFull
        self._map[at:end] = whole
        # ORDER: the end goes last; a string that a kill cuts is written over by the next writer.
        self._words[0] = end
        return at


class Record:
    """The record's memory, in one process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._fd, PAGE)
        self._endpoint = Endpoint()
        self._endpoint.attach(0, self._map, PAGE)

    def ticket(self) -> int:
        """The next ticket, from 1 on."""
        return self._endpoint.faa(0, 1) + 1

    def count_up(self, times: int) -> None:
        """Add so many ones to the word that is there for that."""
        for _ in range(times):
            self._endpoint.faa(COUNTED, 1)

    @property
    def counted(self) -> int:
        """The sum."""
        return self._endpoint.load(COUNTED)

    def log(self, slot: int, client: int) -> Log:
        """The log of `slot`, to be continued by `client`."""
        return Log(self._fd, client, part(slot), self.ticket)

    def strings(self, slot: int, client: int) -> ClientLog:
        """The same with the slot's archive."""
        return ClientLog(self.log(slot, client), MappedArchive(self._fd, slot))

    def records(self, slots: Iterable[int]) -> list[HistoryRecord]:
        """The records of these slots, which have archives, slot after slot."""
        found: list[HistoryRecord] = []
        for slot in slots:
            start = part(slot) + LOG_SIZE
            end = int.from_bytes(os.pread(self._fd, 8, start), "little") or 8
            notes = read_log(self._fd, part(slot))
            found += records_of(notes, os.pread(self._fd, end, start))
        return found

    def notes(self) -> Notes:
        """A copy of all notes, slot after slot."""
        found = [read_log(self._fd, part(slot)) for slot in range(SLOTS)]
        return np.concatenate([np.empty(0, NOTE), *found])

    def count(self, slot: int) -> int:
        """How many notes the log of a slot has."""
        return int.from_bytes(os.pread(self._fd, 8, part(slot)), "little")

    def clear(self) -> None:
        """Forget all notes; no client may be at work."""
        for slot in range(SLOTS):
            os.pwrite(self._fd, bytes(8), part(slot))
            os.pwrite(self._fd, bytes(8), part(slot) + LOG_SIZE)

    def close(self) -> None:
        """Let go of the memory."""
        self._endpoint.detach()
        self._map.close()
        os.close(self._fd)


@contextlib.contextmanager
def made(path: Path) -> Generator[Record, None, None]:
    """A new record in the file `path`, on the host."""
    path.touch(mode=0o600)
    os.truncate(path, SIZE)
    record = Record(path)
    try:
        yield record
    finally:
        record.close()
