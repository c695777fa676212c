"""Reading a segment without being able to write to it: its place, and whether it is sound.

Every open begins here, with a read-only descriptor. A segment that is refused was not written to,
and a file that is truncated meanwhile gives a short read, not SIGBUS.
"""

from __future__ import annotations

import os
import struct

from limpet.shm.backends.backend import Location, SegmentPlace, check_owner
from limpet.shm.backends.explain import explained
from limpet.shm.backends.numa import NodeOptions
from limpet.shm.backends.superblock import MAGIC, Superblock, unpack
from limpet.shm.endpoint.layout import (
    CONTROL_NODE,
    NODE_STATES,
    OFFSET_MASK,
    RINGS,
    SUPERBLOCK_SIZE,
)
from limpet.shm.endpoint.states import count_nodes
from limpet.shm.errors import PoolCorrupt, PoolForeign, PoolTruncated
from limpet.shm.parameters import NODES_MAX


def node_words(location: Location, first: int) -> list[int]:
    """The state words of the nodes, as the control segment has them; see states.py. `first`: how
    many nodes the pool was made with."""
    at = location.place(CONTROL_NODE)
    fd = at.open()
    try:
        count = nodes_in(at, fd, first) if location.takes_nodes else first
        return _words(at, fd, NODE_STATES)[:count]
    finally:
        os.close(fd)


def nodes_in(at: SegmentPlace, fd: int, first: int) -> int:
    """How many nodes a pool has with this control segment that was made with `first`. PoolCorrupt:
    that is damaged."""
    found = count_nodes(first, _words(at, fd, RINGS))
    if not found:
        raise PoolCorrupt(f"{at.path}: a word of the added nodes is damaged; destroy the pool")
    return found


def _words(at: SegmentPlace, fd: int, address: int) -> list[int]:
    data = at.read(fd, 8 * NODES_MAX, address & OFFSET_MASK)
    return [word for (word,) in struct.iter_unpack("<Q", data[: len(data) & ~7])]


def check(
    at: SegmentPlace,
    fd: int,
    location: Location,
    index: int,
    *,
    uuid: bytes | None,
    size: int | None,
    options: NodeOptions,
) -> Superblock:
    """The superblock of an open segment, after every check that `open_` promises."""
    where = location.segment(index)
    location.check_folder(options.any_owner)
    owner = at.owner(fd, where)
    if owner is not None:
        check_owner(where, owner, options.any_owner)
    data = at.read(fd, SUPERBLOCK_SIZE)
    at.refuse_nothing(data, where)
    if data.startswith(MAGIC):
        # ORDER: the rest once more, after word 0, as one copy takes its bytes in any order.
        data = at.read(fd, SUPERBLOCK_SIZE)
    found = unpack(data, where)
    if owner is None:
        check_owner(where, found.uid, options.any_owner)
    if found.index != index:
        says = "the control segment" if found.index == CONTROL_NODE else f"node {found.index}"
        raise PoolForeign(f"{where}: {at.path} says that it is {says} of a pool, not this segment")
    if uuid is not None and found.uuid != uuid:
        raise PoolForeign(
            f"{where} belongs to another pool: its uuid is {found.uuid.hex()}, not {uuid.hex()}"
        )
    actual = at.size(fd)
    if actual < found.size:
        raise PoolTruncated(
            f"{where} was truncated: {actual} bytes are left of {found.size}; destroy the pool"
        )
    at.check(found, fd, where)
    if size is not None and found.size != size:
        raise PoolCorrupt(f"{where} has {found.size} bytes, its pool expects {size}")
    return found


def probe(
    location: Location,
    index: int,
    *,
    uuid: bytes | None = None,
    size: int | None = None,
    options: NodeOptions | None = None,
    generation: int = 0,
) -> Superblock:
    """The superblock of a sound segment, read-only; raises what `open_` raises."""
    with explained(location.segment(index)):
        at = location.place(index, generation)
        fd = at.open()
        try:
            options = options or NodeOptions()
            return check(at, fd, location, index, uuid=uuid, size=size, options=options)
        finally:
            os.close(fd)
