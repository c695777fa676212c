"""Self-check values: each names its writer and proves that it is whole.

A loaded value is the content of a file, known by its length and digest. A rewritten one is the same
content and a trailer of 40 bytes, little-endian:

    offset   size   meaning
    0        8      MAGIC
    8        8      incarnation of the writer, from 1
    16       8      sequence of the write within the incarnation, from 1
    24       8      the caller's number for the key
    32       8      XXH64 of everything before

A value is whole for a key when it is the loaded content, or that content with a trailer that names
the key and has the right digest. Without a load (`seal`), any content with such a trailer is whole.
Its identity is incarnation << 32 | sequence, and LOADED for the load.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Final

import xxhash

MAGIC: Final = b"limpet-w"
LOADED: Final = 0
_HEAD: Final = struct.Struct("<8sQQQ")
_DIGEST: Final = struct.Struct("<Q")
TRAILER_SIZE: Final = _HEAD.size + _DIGEST.size

assert TRAILER_SIZE == 40


@dataclasses.dataclass(frozen=True)
class Original:
    """Size and digest of the content that a key was loaded with."""

    size: int
    digest: int

    @classmethod
    def of(cls, content: bytes) -> Original:
        return cls(len(content), xxhash.xxh64_intdigest(content))


def identity(incarnation: int, sequence: int) -> int:
    """The number of a write, unique in a run."""
    if not (0 < incarnation < 1 << 31 and 0 < sequence < 1 << 32):
        raise OverflowError(f"no identity for write {sequence} of incarnation {incarnation}")
    return incarnation << 32 | sequence


def describe(number: int) -> str:
    """An identity in words."""
    if number == LOADED:
        return "the load"
    return f"write {number & 0xFFFFFFFF} of incarnation {number >> 32}"


def seal(content: bytes | memoryview, key: int, incarnation: int, sequence: int) -> bytes:
    """`content` with a trailer: a value of `key` that no other write of the run makes."""
    head = _HEAD.pack(MAGIC, incarnation, sequence, key)
    digest = xxhash.xxh64(content)
    digest.update(head)
    return b"".join((content, head, _DIGEST.pack(digest.intdigest())))


def unseal(value: bytes, key: int) -> int | None:
    """The identity of a value that `seal` made for `key`; None if it is not whole."""
    if len(value) < TRAILER_SIZE:
        return None
    whole = memoryview(value)
    return _identity_in(whole[-TRAILER_SIZE:], xxhash.xxh64(whole[:-TRAILER_SIZE]), key)


def reseal(value: bytes, original: Original, key: int, incarnation: int, sequence: int) -> bytes:
    """The next value of `key`: the content of its whole `value` with a new trailer."""
    return seal(memoryview(value)[: original.size], key, incarnation, sequence)


def identify(value: bytes, original: Original, key: int) -> int | None:
    """The identity of a value that is whole for `key`; None if it is not whole."""
    if len(value) not in (original.size, original.size + TRAILER_SIZE):
        return None
    whole = memoryview(value)
    digest = xxhash.xxh64(whole[: original.size])
    if digest.intdigest() != original.digest:
        return None
    if len(value) == original.size:
        return LOADED
    return _identity_in(whole[original.size :], digest, key)


def _identity_in(trailer: memoryview, digest: xxhash.xxh64, key: int) -> int | None:
    """The identity in a trailer, if it is right for content of this digest; None if it is not."""
    magic, incarnation, sequence, named = _HEAD.unpack_from(trailer)
    digest.update(trailer[: _HEAD.size])
    (expected,) = _DIGEST.unpack_from(trailer, _HEAD.size)
    if magic != MAGIC or named != key or digest.intdigest() != expected:
        return None
    if not (0 < incarnation < 1 << 31 and 0 < sequence < 1 << 32):
        return None
    return identity(incarnation, sequence)
