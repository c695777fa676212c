"""Part of the portable fabric: a mapping, as bytes, as words, as atomic words; its changed lines.

The operations are the C functions of the package `atomics`, called on a fixed address: its own
views check and convert so much that they would take half of the time of every test.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from atomics import MemoryOrder
from atomics._impl.patomic import Patomic

LINE: Final = 64
DIRTY_MAX: Final = 32
"""Ranges of lines that a client notes before it writes them back."""


class DirtyLines:
    """Ranges of lines to be written back; `unfenced`: some were, and no fence has come since."""

    __slots__ = ("ranges", "unfenced")

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.unfenced = False

    def note(self, addr: int, size: int, flush: Callable[[int, int], object]) -> None:
        """Note the lines of these bytes; write all back with `flush` if there are too many."""
        first, end = addr & ~(LINE - 1), addr + size + LINE - 1 & ~(LINE - 1)
        for index in range(len(self.ranges) - 1, -1, -1):
            begins, ends = self.ranges[index]
            if first <= ends and end >= begins:
                self.ranges[index] = (min(first, begins), max(end, ends))
                return
        if len(self.ranges) == DIRTY_MAX:
            self.write_back(flush)
        self.ranges.append((first, end))

    def write_back(self, flush: Callable[[int, int], object]) -> None:
        """Write all back, without a fence."""
        while self.ranges:
            first, end = self.ranges[-1]
            flush(first, end - first)
            self.ranges.pop()
            self.unfenced = True


WORDWISE: Final = 512
"""Copies up to this size go word by word; larger ones are a memcpy."""


class Behind:
    """The file behind a mapping, by a descriptor whose number may become another file's."""

    __slots__ = ("fd", "file")

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self.fd = fd
        self.file = (status.st_dev, status.st_ino)

    def size(self) -> int | None:
        """Bytes of the file; None when the number is not its own any more."""
        try:
            status = os.fstat(self.fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return None
        return status.st_size if (status.st_dev, status.st_ino) == self.file else None


def file_size(mapping: object) -> int | None:
    """Bytes of the file behind `mapping`; None when it has no file, none with a size known, or
    another thread has unmapped it."""
    if isinstance(mapping, Behind):
        return mapping.size()
    if not isinstance(mapping, mmap.mmap):
        return None
    try:
        return mapping.size()
    except ValueError:  # made with trackfd=False, or closed
        return None
    except OSError as error:
        if error.errno != errno.EBADF:  # EBADF: an anonymous map, or one that is being closed
            raise
        return None


def _function(of: Any, result: Any, *arguments: Any) -> Any:
    """A C function, to be called without giving the GIL away: it takes some nanoseconds."""
    at: Any = ctypes.cast(of, ctypes.c_void_p).value
    return ctypes.PYFUNCTYPE(result, *arguments)(at)


_ORDER: Final = int(MemoryOrder.SEQ_CST)
_AT: Final = ctypes.c_void_p
_INT: Final = ctypes.c_int
_OPS: Final = Patomic.ops(8)
_LOAD: Final = _function(_OPS.fp_load, None, _AT, _INT, _AT)
_STORE: Final = _function(_OPS.fp_store, None, _AT, _AT, _INT)
_EXCHANGE: Final = _function(_OPS.xchg_ops.fp_exchange, None, _AT, _AT, _INT, _AT)
_CAS: Final = _function(_OPS.xchg_ops.fp_cmpxchg_strong, _INT, _AT, _AT, _AT, _INT, _INT)
_FETCH_ADD: Final = _function(_OPS.unsigned_ops.fp_fetch_add, None, _AT, _AT, _INT, _AT)
_FETCH_OR: Final = _function(_OPS.binary_ops.fp_fetch_or, None, _AT, _AT, _INT, _AT)
_Word: Final = ctypes.c_uint64

IN_ORDER: Final = platform.machine() == "x86_64"
"""Whether plain loads stay in order, plain stores too, and an atomic that changes a word is a full
barrier."""
_PRIVATE: Final = _Word()
_FOUND: Final = _Word()


def barrier() -> None:
    """No access moves across this. On ARMv8: what is before it comes before the store, which
    releases; the load comes after the store, as both are SEQ_CST; what follows comes after the
    load, which acquires."""
    if not IN_ORDER:
        _STORE(ctypes.addressof(_PRIVATE), ctypes.byref(_PRIVATE), _ORDER)
        _LOAD(ctypes.addressof(_PRIVATE), _ORDER, ctypes.byref(_FOUND))


class Word:
    """A word of a mapping, for atomic operations; keeps the mapping until its last user is done."""

    __slots__ = ("_at", "_held")

    def __init__(self, held: Any, at: int) -> None:
        self._held = held
        self._at = at

    def load(self) -> int:
        found = _Word()
        _LOAD(self._at, _ORDER, ctypes.byref(found))
        return found.value

    def store(self, value: int) -> None:
        _STORE(self._at, ctypes.byref(_Word(value)), _ORDER)

    def cas(self, expected: int, desired: int) -> int:
        """Compare and swap; the old word."""
        found = _Word(expected)
        barrier()
        _CAS(self._at, ctypes.byref(found), ctypes.byref(_Word(desired)), _ORDER, _ORDER)
        barrier()
        return found.value

    def _fetch(self, operation: Any, operand: int) -> int:
        found = _Word()
        barrier()
        operation(self._at, ctypes.byref(_Word(operand)), _ORDER, ctypes.byref(found))
        barrier()
        return found.value

    def exchange(self, value: int) -> int:
        return self._fetch(_EXCHANGE, value)

    def fetch_add(self, delta: int) -> int:
        return self._fetch(_FETCH_ADD, delta)

    def fetch_or(self, bits: int) -> int:
        return self._fetch(_FETCH_OR, bits)


class Lent:
    """`size` bytes of a mapping from `offset` on, lent to a caller until `end`."""

    __slots__ = ("_array", "_there")

    def __init__(self, mapping: Any, offset: int, size: int, writable: bool) -> None:
        self._array: Any = np.frombuffer(mapping, np.uint8, size, offset)
        self._array.flags.writeable = writable
        self._there = weakref.ref(self._array)

    def memory(self) -> memoryview:
        """The memory, as a memoryview."""
        return memoryview(self._array)

    def end(self) -> bool:
        """Give out no more buffers; whether nothing has one any longer."""
        self._array = None
        return self._there() is None


class Node:
    """One attached mapping, as bytes and as words."""

    __slots__ = (
        "_held", "behind", "index", "lost", "mapping", "raw", "size", "start", "state", "watched",
        "words",
    )  # fmt: skip

    def __init__(self, index: int, mapping: Any, size: int, state: int, fd: int = -1) -> None:
        whole = memoryview(mapping)
        self.index = index
        self.mapping = mapping
        self.raw = whole.cast("B")[:size]
        self.words = self.raw[: size & ~7].cast("Q")
        self.size = size
        self.state = state
        self.lost = False
        self.behind = Behind(fd) if fd >= 0 else mapping
        self.watched = bool(file_size(self.behind))
        held = ctypes.c_char.from_buffer(whole)
        self.start = ctypes.addressof(held)
        self._held: Any = held

    def word(self, offset: int) -> Word:
        """The word at `offset`; ValueError: the mapping was released."""
        held = self._held
        if held is None:
            raise ValueError("the mapping was released")
        return Word(held, self.start + offset)

    def release(self) -> None:
        """Let the memory be unmapped when nothing else uses it."""
        self._held = None
        self.words.release()
        self.raw.release()

    def gone(self) -> bool:
        """Whether the memory is lost, by the size of the file behind it."""
        if self.watched and not self.lost:
            size = file_size(self.behind)
            self.lost = size is not None and size < self.size
        return self.lost

    def copy_out(self, offset: int, size: int) -> bytes:
        if IN_ORDER:
            return self._copied(offset, size)
        # ORDER: two words before the others, as verbs.pyx promises, and all before what is next.
        first = [] if offset & 7 or size < 16 else [self.word(offset), self.word(offset + 8)]
        head = b"".join([word.load().to_bytes(8, "little") for word in first])
        found = head + self._copied(offset + len(head), size - len(head))
        barrier()
        return found

    def _copied(self, offset: int, size: int) -> bytes:
        """`copy_out`, where loads stay in order."""
        if offset & 7:
            return bytes(self.raw[offset : offset + size])
        if size > WORDWISE:
            # ORDER: two words before the others, as verbs.pyx promises; memcpy may begin at the
            # end.
            first = bytes(self.raw[offset : offset + 16])
            return first + bytes(self.raw[offset + 16 : offset + size])
        end = offset + (size & ~7)
        # ORDER: one word after the other, as verbs.pyx promises of two.
        words = self.words[offset >> 3 : end >> 3].tolist()
        head = b"".join([word.to_bytes(8, "little") for word in words])
        return head + bytes(self.raw[end : offset + size])

    def copy_in(self, offset: int, data: bytes) -> None:
        barrier()
        if len(data) > WORDWISE or offset & 7:
            self.raw[offset : offset + len(data)] = data
            return
        whole = len(data) & ~7
        for at in range(0, whole, 8):
            # ORDER: one word after the other, as verbs.pyx promises of the first and the last.
            word = int.from_bytes(data[at : at + 8], "little")
            if IN_ORDER:
                self.words[(offset + at) >> 3] = word
            else:
                self.word(offset + at).store(word)
        self.raw[offset + whole : offset + len(data)] = data[whole:]
