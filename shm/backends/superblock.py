"""The superblock: the first 4096 bytes of every segment of a pool.

    offset  bytes  field
         0      8  magic; word 0, the last word to be written
         8      4  number of the protocol (release.py)
        12      4  index: of the memory node, or 255 for the control segment
        16      8  size of the segment in bytes
        24     16  uuid of the pool
        40      8  created: ns since 1970
        48      4  uid of the creator
        52      4  length of the parameters in bytes
        56   4032  the pool's parameters as JSON, zeros after them
      4088      8  XXH64 of the bytes 8 to 4088

All numbers are little-endian. The magic and the number of the protocol keep their places for ever;
what follows them may change.

Word 0 is one of: zero (a new segment), CREATING (a process makes or removes it, or died), MAGIC
(complete), or anything else (not ours). A superblock is valid when word 0 is MAGIC, the protocol is
ours, the checksum holds and the fields agree with each other. It is written once, by the creator,
body first and MAGIC last with one aligned 8-byte store, and never changes afterwards; `destroy`
alone takes the magic of the control segment away, and on a device, whose segments cannot be
unlinked, that of all.

A kill of the creator, or of a process that destroys the pool, leaves zero or CREATING in word 0 of
the control segment, and the pool is refused as incomplete until it is removed (name.py). While a
creator has CREATING there, only the size is meaningful, and only on device DAX, where memory node 0
begins after the control segment.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, Final

import xxhash

from limpet.shm.endpoint.fabric import buffer_cas, buffer_load, buffer_store
from limpet.shm.endpoint.layout import CONTROL_NODE, SUPERBLOCK_SIZE
from limpet.shm.errors import (
    ParameterError,
    PoolCorrupt,
    PoolForeign,
    PoolIncomplete,
    PoolTruncated,
    PoolVersion,
)
from limpet.shm.parameters import NODE_SIZE_MAX, PoolParameters
from limpet.shm.release import PROTOCOL, RELEASE

MAGIC: Final = b"\x89limpet\n"
CREATING: Final = b"\x89limpet?"
ABSENT: Final = bytes(8)

PROTOCOL_OFFSET: Final = 8
SIZE_OFFSET: Final = 16
JSON_OFFSET: Final = 56
CHECKSUM_OFFSET: Final = 4088
JSON_SIZE_MAX: Final = CHECKSUM_OFFSET - JSON_OFFSET

_HEADER: Final = struct.Struct("<8sIIQ16sQII")
_CHECKSUM: Final = struct.Struct("<Q")
assert _HEADER.size == JSON_OFFSET
assert CHECKSUM_OFFSET + _CHECKSUM.size == SUPERBLOCK_SIZE
assert len(MAGIC) == len(CREATING) == len(ABSENT) == PROTOCOL_OFFSET


@dataclasses.dataclass(frozen=True)
class Superblock:
    """The fields of a valid superblock. `size` is in bytes; `index` 255: the control segment."""

    index: int
    size: int
    uuid: bytes
    created_ns: int
    uid: int
    parameters: PoolParameters


def pack(
    *, index: int, size: int, uuid: bytes, created_ns: int, uid: int, parameters: PoolParameters
) -> bytes:
    """The 4096 bytes of a superblock, MAGIC included."""
    text = parameters.to_json()
    if len(text) > JSON_SIZE_MAX:
        raise ParameterError(f"the pool parameters take {len(text)} bytes, over {JSON_SIZE_MAX}")
    header = _HEADER.pack(MAGIC, PROTOCOL, index, size, uuid, created_ns, uid, len(text))
    return seal((header + text).ljust(CHECKSUM_OFFSET, b"\0"))


def seal(body: bytes) -> bytes:
    """The first 4088 bytes of `body` with their checksum after them."""
    body = body[:CHECKSUM_OFFSET]
    return body + _CHECKSUM.pack(xxhash.xxh64_intdigest(body[PROTOCOL_OFFSET:]))


def unpack(data: bytes, where: str) -> Superblock:
    """The superblock in `data`, the first bytes of the segment that `where` names.

    Raises, in this order: PoolIncomplete (empty, zero or CREATING), PoolForeign (another magic),
    PoolVersion, PoolTruncated (fewer than 4096 bytes), PoolCorrupt (checksum, fields).
    """
    word = data[:PROTOCOL_OFFSET]
    if word in (b"", ABSENT, CREATING):
        raise PoolIncomplete(
            f"{where} is not complete: its creator has not finished, or died before it did; "
            "try again, or destroy the pool"
        )
    if word != MAGIC:
        raise PoolForeign(f"{where} is not a limpet segment: it begins with {word!r}")
    if len(data) < SUPERBLOCK_SIZE:
        raise PoolTruncated(f"{where} was truncated to {len(data)} bytes; destroy the pool")
    fields = _HEADER.unpack_from(data)
    _, protocol, index, size, uuid, created_ns, uid, json_size = fields
    if protocol != PROTOCOL:
        age = "newer" if protocol > PROTOCOL else "older"
        raise PoolVersion(
            f"{where} has protocol {protocol}, {age} than the {PROTOCOL} of this release of limpet "
            f"({RELEASE}); open it with a release of that protocol, or dump its stores there, "
            "destroy it, and load them here"
        )
    (checksum,) = _CHECKSUM.unpack_from(data, CHECKSUM_OFFSET)
    if checksum != xxhash.xxh64_intdigest(data[PROTOCOL_OFFSET:CHECKSUM_OFFSET]):
        raise PoolCorrupt(f"{where}: the superblock's checksum does not hold; destroy the pool")
    if json_size > JSON_SIZE_MAX:
        raise PoolCorrupt(f"{where}: the superblock claims {json_size} bytes of parameters")
    text = data[JSON_OFFSET : JSON_OFFSET + json_size]
    parameters = PoolParameters.from_json(text, where)
    if index > CONTROL_NODE:  # a node that was added has a number above `parameters.nodes`
        raise PoolCorrupt(f"{where} says it is node {index}")
    if not SUPERBLOCK_SIZE <= size <= NODE_SIZE_MAX:
        raise PoolCorrupt(f"{where} says that it has {size} bytes")
    if index != CONTROL_NODE and size != parameters.node_size:
        raise PoolCorrupt(
            f"{where} says that it has {size} bytes, and that nodes have {parameters.node_size}"
        )
    return Superblock(index, size, uuid, created_ns, uid, parameters)


def write(mapping: Any, data: bytes) -> None:
    """Write a superblock into a new segment, so that it is seen whole or not at all."""
    mapping[len(MAGIC) : SUPERBLOCK_SIZE] = data[len(MAGIC) : SUPERBLOCK_SIZE]
    # ORDER: MAGIC after everything else: a client that reads it must find the rest (release).
    write_word0(mapping, data[: len(MAGIC)])


def write_word0(mapping: Any, word: bytes) -> None:
    """Store word 0 with one atomic store."""
    buffer_store(mapping, 0, int.from_bytes(word, "little"))


def claim_word0(mapping: Any) -> bool:
    """Replace whatever stale bytes word 0 holds by CREATING; False if it is claimed already.

    For memory that is not zero-filled and cannot be created exclusively. Of any number of
    creators, one wins.
    """
    magic, creating = (int.from_bytes(word, "little") for word in (MAGIC, CREATING))
    found = buffer_load(mapping, 0)
    while found not in (magic, creating):
        expected, found = found, buffer_cas(mapping, 0, found, creating)
        if found == expected:
            return True
    return False
