"""Part of the portable fabric: a mapping, as bytes and as words."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from typing import Any, Final

import numpy as np

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


class View:
    """An atomic view of one word; it keeps the word mapped until its last user is done."""

    __slots__ = ("_context", "atomic")

    def __init__(self, context: Any) -> None:
        self._context = context
        self.atomic = context.__enter__()

    def __del__(self) -> None:
        self._context.__exit__(None, None, None)


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

    __slots__ = ("behind", "index", "lost", "mapping", "raw", "size", "state", "watched", "words")

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

    def gone(self) -> bool:
        """Whether the memory is lost, by the size of the file behind it."""
        if self.watched and not self.lost:
            size = file_size(self.behind)
            self.lost = size is not None and size < self.size
        return self.lost

    def copy_out(self, offset: int, size: int) -> bytes:
        if size > WORDWISE or offset & 7:
            return bytes(self.raw[offset : offset + size])
        end = offset + (size & ~7)
        # ORDER: one word after the other, as verbs.pyx promises of two.
        words = self.words[offset >> 3 : end >> 3].tolist()
        head = b"".join([word.to_bytes(8, "little") for word in words])
        return head + bytes(self.raw[end : offset + size])

    def copy_in(self, offset: int, data: bytes) -> None:
        if len(data) > WORDWISE or offset & 7:
            self.raw[offset : offset + len(data)] = data
            return
        whole = len(data) & ~7
        for at in range(0, whole, 8):
            self.words[(offset + at) >> 3] = int.from_bytes(data[at : at + 8], "little")
        self.raw[offset + whole : offset + len(data)] = data[whole:]
