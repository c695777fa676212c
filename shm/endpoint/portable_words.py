"""Part of the portable fabric: words that are in private buffers, and C's types of arguments."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from typing import Any, Final

import xxhash

from limpet.shm.endpoint import crc
from limpet.shm.errors import AddressError

WORD_MAX: Final = (1 << 64) - 1
HALF_MAX: Final = (1 << 32) - 1
SSIZE_MAX: Final = (1 << 63) - 1


def hash64(data: bytes, seed: int = 0) -> int:
    """XXH64 of `data`."""
    return int(xxhash.xxh64_intdigest(plain_bytes(data), u64(seed)))


def checksum(data: bytes, seed: int = 0) -> int:
    """XXH64 of `data`, or from 1 KiB on XXH3, which is several times as fast there."""
    if len(plain_bytes(data)) < 1024:
        return hash64(data, seed)
    return int(xxhash.xxh3_64_intdigest(data, u64(seed)))


def checksum_buffer(buffer: Any, seed: int = 0) -> int:
    """The same of a bytes-like object, which stays as it is meanwhile."""
    found = xxhash.xxh64_intdigest if len(buffer) < 1024 else xxhash.xxh3_64_intdigest
    return int(found(buffer, u64(seed)))


def crc_pair(words: Any, start: int, count: int, hardware: bool = True) -> int:
    """Two CRC-32C, in one word, of `count` words from `start` on; 0 for zeros. See crc.py."""
    raw, start, count = raw_words(words), ssize(start), ssize(count)
    if start < 0 or not 0 <= count <= len(raw) // 8 - start:
        raise AddressError(f"{count} words from word {start} on are outside of the buffer")
    return crc.crc_pair(raw[8 * start : 8 * (start + count)].cast("Q")) if count else 0


def bit(index: int) -> int:
    """The word with only bit `index` (0 to 63) set."""
    return 1 << index


def lowest_bit(word: int) -> int:
    """Index of the lowest set bit; `word` must not be 0."""
    return (word & -word).bit_length() - 1


def fits_word(number: object) -> bool:
    """Whether this is an int (no other type) from -2**63 to 2**63 - 1."""
    return type(number) is int and -(1 << 63) <= number < 1 << 63


def words_equal(words: Any, offset: int, data: bytes) -> bool:
    """Whether the bytes of `words` from byte `offset` on begin with `data`."""
    raw, offset, data = raw_words(words), ssize(offset), plain_bytes(data)
    return 0 <= offset <= len(raw) - len(data) and raw[offset : offset + len(data)] == data


def words_bytes(words: Any, offset: int, size: int) -> bytes:
    """`size` bytes of `words` from byte `offset` on."""
    raw, offset, size = raw_words(words), ssize(offset), ssize(size)
    if offset < 0 or not 0 <= size <= len(raw) - offset:
        raise AddressError(f"{size} bytes from byte {offset} on are outside of the buffer")
    return bytes(raw[offset : offset + size])


def words_put(words: Any, offset: int, data: bytes, size: int) -> int:
    """Put `data` into `words`, at byte `offset`, and zeros after it up to `size` bytes."""
    raw, offset, data, size = raw_words(words), ssize(offset), plain_bytes(data), ssize(size)
    if not len(data) <= size <= len(raw) - offset or offset < 0:
        raise AddressError(f"{size} bytes at byte {offset} are outside of the buffer, or too few")
    raw[offset : offset + size] = data.ljust(size, b"\0")
    return 0


def words_compare(words: Any, offset: int, size: int, data: bytes) -> int:
    """-1, 0 or 1: those `size` bytes of `words` sort before `data`, are it, or sort after it."""
    data, found = plain_bytes(data), words_bytes(words, offset, size)
    return (found > data) - (found < data)


def keys_below(keys: list[bytes], key: bytes, with_it: bool) -> int:
    """How many of `keys`, bytes in ascending order, are below `key`; `with_it`: or are it."""
    return bisect_right(keys, key) if with_it else bisect_left(keys, key)


def words_move(words: Any, target: int, start: int, size: int) -> int:
    """Move `size` bytes of `words` from byte `start` to byte `target`; they may overlap."""
    raw, target, start, size = raw_words(words), ssize(target), ssize(start), ssize(size)
    room = len(raw) - size
    if size < 0 or not 0 <= target <= room or not 0 <= start <= room:
        raise AddressError(f"{size} bytes from byte {start} to {target} are outside of the buffer")
    raw[target : target + size] = bytes(raw[start : start + size])
    return 0


def words_tagged(words: Any, start: int, count: int, tag: int) -> int:
    """Which of `count` words, at most 64, from `start` on have `tag` in bits 56-63: as bits."""
    raw, start, count, tag = raw_words(words), ssize(start), ssize(count), u64(tag) & 0xFF
    if not 0 <= count <= 64 or start < 0 or count > (len(raw) >> 3) - start:
        raise AddressError(f"{count} words from word {start} on leave the buffer, or are over 64")
    last = raw[8 * start + 7 : 8 * (start + count) : 8]
    return sum(1 << index for index, byte in enumerate(last) if byte == tag)


def words_prefetch(words: Any, index: int) -> None:
    """A hint; pure Python cannot prefetch."""


def u64(value: int) -> int:
    value = operator.index(value)
    if not 0 <= value <= WORD_MAX:
        raise OverflowError(f"{value} does not fit an unsigned 64-bit word")
    return value


def u32(value: int) -> int:
    if u64(value) > HALF_MAX:
        raise OverflowError(f"{value} does not fit an unsigned 32-bit word")
    return value


def ssize(value: int) -> int:
    value = operator.index(value)
    if not -SSIZE_MAX - 1 <= value <= SSIZE_MAX:
        raise OverflowError(f"{value} does not fit a size")
    return value


def plain_bytes(value: object) -> bytes:
    if type(value) is not bytes:
        raise TypeError(f"expected bytes, not {type(value).__name__}")
    return value


def raw_words(words: Any) -> memoryview:
    """The writable buffer of 64-bit words `words` as bytes."""
    view = memoryview(words)
    if view.format not in ("Q", "L") or view.ndim != 1 or not view.c_contiguous or view.readonly:
        raise ValueError("expected a writable contiguous buffer of unsigned 64-bit words")
    return view.cast("B") if view.nbytes else memoryview(b"")


def contiguous(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous")
    return view
