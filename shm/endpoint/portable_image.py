"""Part of the portable fabric: words that were read from memory, as callers look at them."""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.portable_words import (
    ssize,
    words_bytes,
    words_compare,
    words_equal,
    words_move,
    words_put,
)
from limpet.shm.errors import AddressError, PhaseError


class Image:
    """Words that were read from memory. Always a copy here."""

    def __init__(self, endpoint: Any, size: int, in_place: bool = False) -> None:
        if size < 8 or size & 7:
            raise AddressError(f"an image cannot have {size} bytes")
        self.endpoint = endpoint
        self.words = memoryview(bytearray(size)).cast("Q")
        self.head = 0
        self._closed = False

    def read(self, addr: int, count: int) -> int:
        """Read the `count` words from `addr` on into the image."""
        self.endpoint.read_words(addr, self.words, count)
        self.head = self.words[0]
        return 0

    def read_keyed(self, addr: int, count: int, offset: int, data: bytes) -> bool:
        """`read`; then, whether bits 0-15 of the first word are the size of `data`, which is what
        begins at byte `offset`."""
        self.read(addr, count)
        return self.head & 0xFFFF == len(data) and self.equal(offset, data)

    def pair(self, addr: int, count: int, offset: int, key: bytes) -> bytes | None:
        """A phase of its own: `read_keyed`; if the key is there, what follows it, padded to a
        multiple of 8: as many bytes as bits 16-63 of the first word say. None: it is not there."""
        self.post_keyed(addr, count, offset, key)
        self.endpoint.wait()
        if not self.matched(offset, key):
            return None
        return self.cut(offset + (len(key) + 7 & ~7), self.head >> 16)

    def post(self, addr: int, count: int) -> int:
        """Post `read`."""
        self.endpoint.post_image(self, addr, count)
        self.head = self.words[0]
        return 0

    def post_keyed(self, addr: int, count: int, offset: int, data: bytes) -> int:
        """Post `read`; then `matched` says, with the same arguments, what `read_keyed` returns."""
        return self.post(addr, count)

    def matched(self, offset: int, data: bytes) -> bool:
        """After `post_keyed` and `wait`: whether bits 0-15 of the first word are the size of
        `data`, which is what begins at byte `offset`."""
        return self.word(0) & 0xFFFF == len(data) and self.equal(offset, data)

    def close(self) -> int:
        """The image was posted: until `open`, any look at it raises PhaseError."""
        self._closed = True
        return 0

    def open(self) -> int:
        """Its phase has ended: `words` are the image now."""
        self._closed = False
        self.head = self.words[0]
        return 0

    def _require_read(self) -> None:
        if self._closed:
            raise PhaseError("an object was looked at before `wait`: its read is only posted")

    def word(self, index: int) -> int:
        """A word of it."""
        self._require_read()
        if not 0 <= index < len(self.words):
            raise AddressError(f"8 bytes from byte {8 * index} on are outside of the image")
        return self.words[index]

    def number(self, offset: int) -> int:
        """The 8 bytes of it from byte `offset` on, as a number."""
        return int.from_bytes(self.cut(offset, 8), "little")

    def equal(self, offset: int, data: bytes) -> bool:
        """Whether its bytes from byte `offset` on begin with `data`."""
        self._require_read()
        return words_equal(self.words, offset, data)

    def cut(self, offset: int, size: int) -> bytes:
        """`size` bytes of it from byte `offset` on."""
        self._require_read()
        return words_bytes(self.words, offset, size)

    def compare(self, offset: int, size: int, data: bytes) -> int:
        """-1, 0 or 1: those `size` bytes of it sort before `data`, are it, or sort after it."""
        self._require_read()
        return words_compare(self.words, offset, size, data)

    def search(self, first: int, count: int, data: bytes) -> int:
        """The place of `data` among `count` pieces in ascending order; if it is not there, ~ the
        place where it would be.

        Each word from `first` on names a piece: bits 0-15 its first byte, bits 16-31 its size.
        """
        low, high = 0, ssize(count)
        while low < high:
            middle = (low + high) >> 1
            slot = self.word(first + middle)
            order = self.compare(slot & 0xFFFF, slot >> 16 & 0xFFFF, data)
            if order == 0:
                return middle
            low, high = (middle + 1, high) if order < 0 else (low, middle)
        return ~low

    def named(self, index: int, data: bytes) -> int:
        """The word `index`, if the first piece that it names is `data`; else 0. As in `pairs`."""
        slot = self.word(index)
        at, size = slot & 0xFFFF, slot >> 16 & 0xFFFF
        return slot if size == len(data) and self.cut(at, size) == data else 0

    def pairs(self, first: int, count: int, found: list[tuple[bytes, bytes]]) -> int:
        """Append both pieces that each word from `first` on names, up to `count` times, or to a
        word with any of the bits from 48 on; how many were appended.

        A word: bits 0-15 byte of the first piece, 16-31 its size, 32-47 that of the second one,
        which follows it.
        """
        for index in range(ssize(count)):
            slot = self.word(first + index)
            if slot >> 48:
                return index
            at, size = slot & 0xFFFF, slot >> 16 & 0xFFFF
            found.append((self.cut(at, size), self.cut(at + size, slot >> 32)))
        return max(count, 0)

    def copy_pieces(self, first: int, count: int, words: Any, place: int, end: int) -> int:
        """Copy both pieces that each of `count` words from `first` on names to `words`: those of
        the first one before byte `end`, the others before these; and such words for them, from word
        `place` on. The byte at which the copies begin; 0: there is no room for the next one.

        Bits 48 and up are copied, too.
        """
        for index in range(count):
            slot = self.word(first + index)
            size = (slot >> 16 & 0xFFFF) + (slot >> 32 & 0xFFFF)
            end -= size
            if end < 8 * (place + count):
                return 0
            words_put(words, end, self.cut(slot & 0xFFFF, size), size)
            words[place + index] = slot & ~0xFFFF | end
        return end

    def insert_pieces(
        self, first: int, count: int, index: int, heap: int, key: bytes, value: bytes, flags: int
    ) -> int:
        """Insert two pieces, and the word that names them, with these flags, as number `index` of
        the `count` from `first` on; their byte, which is just before `heap`. The image is a copy
        from then on."""
        self.own()
        words = self.words
        size = len(key) + len(value)
        if not 0 <= index <= count or first < 0 or heap - size < 8 * (first + count + 1):
            raise AddressError(f"{size} bytes before byte {heap} are outside of the image")
        heap -= size
        words_put(words, heap, key + value, size)
        at = 8 * (first + index)
        words_move(words, at + 8, at, 8 * (count - index))
        words[first + index] = heap | len(key) << 16 | len(value) << 32 | flags
        return heap

    def remove_pieces(self, first: int, count: int, index: int, heap: int) -> int:
        """Remove both pieces that word `index` of the `count` from `first` on names, and the word;
        close the gaps. `heap`: the byte at which the lowest piece begins; where it does now. The
        image is a copy from then on."""
        self.own()
        words = self.words
        if not 0 <= index < count or first < 0 or heap < 8 * (first + count):
            raise AddressError(f"word {index} of {count} is outside of the image")
        slot = words[first + index]
        offset = slot & 0xFFFF
        size = (slot >> 16 & 0xFFFF) + (slot >> 32 & 0xFFFF)
        words_move(words, heap + size, heap, offset - heap)
        at = 8 * (first + index)
        words_move(words, at, at + 8, 8 * (count - index - 1))
        for place in range(first, first + count - 1):
            # Pieces without any bytes may begin where the removed ones do, and move, too (R12).
            if words[place] & 0xFFFF <= offset:
                words[place] += size
        return heap + size

    def own(self) -> int:
        """Copy the image into `words`, which may be changed from now on and is the image then."""
        return 0

    def forget(self) -> int:
        """Make `words`, as they are, the image."""
        return 0
