"""Memory nodes: making, publishing and opening the segments of a pool, on any backend.

A segment is one shared, writable mapping. backend.py has the part of a backend in this. The life of
a pool's segments:

    create(control)     exclusive, and locked (name.py): PoolExists for all other creators
    create(node i)      for each memory node
    publish(node i)     for each, when its contents are ready
    publish(control)    last: the pool can be opened from here on
    release(control)    another process may destroy it from here on

A creator that dies leaves segments that `open_` refuses as incomplete and `unlink_all` removes.
`open_` only reads a segment that it refuses, through a read-only descriptor (probe.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
import weakref
from collections.abc import Callable

from limpet.shm.backends import numa as placement
from limpet.shm.backends.backend import Location, Plan, SegmentPlace
from limpet.shm.backends.explain import explained
from limpet.shm.backends.inventory import list_pools, unlink_all
from limpet.shm.backends.location import full_url, parse_url
from limpet.shm.backends.logind import remove_ipc_warning
from limpet.shm.backends.name import release
from limpet.shm.backends.numa import NodeOptions
from limpet.shm.backends.probe import check, probe
from limpet.shm.backends.superblock import MAGIC, Superblock, pack, write
from limpet.shm.descriptors import Descriptor
from limpet.shm.endpoint.layout import CONTROL_NODE, SUPERBLOCK_SIZE
from limpet.shm.errors import ParameterError, PoolTruncated
from limpet.shm.parameters import PoolParameters

__all__ = [
    "Location",
    "MemoryNode",
    "NodeOptions",
    "Plan",
    "back",
    "create",
    "discard",
    "finish",
    "full_url",
    "list_pools",
    "open_",
    "parse_url",
    "plan",
    "probe",
    "publish",
    "remove_ipc_warning",
    "unlink_all",
    "warn_if_larger",
]


class MemoryNode:
    """One mapped segment.

    `index` (255: control segment), `generation` (states.py), `size` in bytes, `name` for messages,
    `map` the mapping, `address` where it begins in this process, `descriptor` and `fd` its
    descriptor, `watched_fd` the same where pages can go from under the mapping, or -1. `zeroed`: a
    new segment of this backend is all zeros. Code that uses `address` keeps a buffer of `map`, so
    that `close` cannot unmap it meanwhile. `remote`: not of this class, but of net/link.py.
    """

    remote = False

    def __init__(
        self,
        name: str,
        index: int,
        size: int,
        at: SegmentPlace,
        fd: int,
        generation: int = 0,
        durable: bool = False,
    ) -> None:
        """Map the segment that `fd`, which this object closes from now on, refers to."""
        self.descriptor = Descriptor(fd, at.path)
        self._close_fd = weakref.finalize(self, _let_go, self.descriptor)
        self._close_fd.atexit = False  # an exit handler may use the pool after that of `weakref`
        self.name = name
        self.index = index
        self.generation = generation
        self.size = size
        self.place = at
        self.zeroed = at.zeroed
        self.map = at.map(fd, size, durable)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def __repr__(self) -> str:
        return f"<MemoryNode {self.name}: {self.size} bytes>"

    @property
    def fd(self) -> int:
        """Its descriptor. ClientError: it was closed behind us, and cannot be opened again."""
        return self.descriptor.number()

    @property
    def watched_fd(self) -> int:
        return self.fd if self.place.can_shrink else -1

    def stat_size(self) -> int:
        """Bytes behind the mapping now; fewer than `size` when the segment was truncated."""
        return self.place.size(self.fd)

    def back(self, offset: int, size: int) -> bool:
        """Allocate the pages of `size` bytes from `offset` on; False: there is no room for them."""
        return self.place.back(self.fd, offset, size)

    def close(self) -> None:
        """Unmap, or if buffers of `map` are still in use, leave that to the last of them."""
        self._close_fd()
        with contextlib.suppress(BufferError):
            self.map.release()


def _let_go(descriptor: Descriptor) -> None:
    """Unlock the name, if it is held through it (name.py), and close it."""
    if descriptor.is_open():
        release(descriptor.fd)
    descriptor.close()


def plan(
    location: Location,
    *,
    nodes: int | None,
    node_size: int | None,
    control_size: Callable[[int], int],
) -> Plan:
    """Fit a pool to its backend; None means the default. `control_size`: of the control segment,
    for so many bytes of nodes."""
    return location.plan(nodes, node_size, control_size)


def create(
    location: Location,
    index: int,
    size: int,
    *,
    options: NodeOptions | None = None,
    generation: int = 0,
) -> MemoryNode:
    """Make and map a segment of `size` bytes, without a superblock yet. The control segment first.

    With a `generation`, it replaces the memory of a lost node.

    Raises PoolExists if it is there in any state, PoolPermission, and ParameterError if there is no
    room or the host does not offer an option; then nothing is left behind. On dax, the contents of
    the new segment are arbitrary (`zeroed` is False).
    """
    options = options or NodeOptions()
    where = location.segment(index)
    with explained(where):
        at, fd = location.create(index, size, options, generation)
        node = None
        try:
            node = _map(where, index, size, at, fd, generation, options.durable)
            _apply(node, options, created=True)
        except BaseException:
            at.remove(fd)  # it is open: the node, or the error, which has the node, keeps it
            if node is not None:
                node.close()
            raise
        return node


def back(node: MemoryNode, size: int) -> None:
    """Allocate the pages of the first `size` bytes of a segment. Raises ParameterError."""
    with explained(node.name):
        if not node.back(0, size):
            raise ParameterError(
                f"{node.name} does not fit: its file system has no room for the {size} bytes that "
                "are used at once"
            )


def warn_if_larger(location: Location, size: int) -> str:
    """The warning for the creator of a pool of `size` bytes in all; "": none."""
    room = location.room()
    if room is None or size <= room[1]:
        return ""
    return (
        f"the pool may take {size} bytes and {room[0]} has {room[1]} free; when they are used up, "
        "writes raise StoreFull. Make the nodes smaller, or the file system larger (of /dev/shm in "
        "a container: --shm-size)"
    )


def publish(node: MemoryNode, superblock: bytes) -> None:
    """Write the superblock (`superblock.pack`): all but word 0, then word 0 in one store."""
    if len(superblock) != SUPERBLOCK_SIZE or not superblock.startswith(MAGIC):
        raise ParameterError(f"{node.name}: {len(superblock)} bytes that are no superblock")
    write(node.map, superblock)


def finish(node: MemoryNode, parameters: PoolParameters, uuid: bytes) -> None:
    """Publish a segment of this process's user that is ready."""
    superblock = pack(
        index=node.index,
        size=node.size,
        uuid=uuid,
        created_ns=time.time_ns(),
        uid=os.geteuid(),
        parameters=parameters,
    )
    publish(node, superblock)


def discard(node: MemoryNode) -> None:
    """Remove a segment that this process has created, without a trace."""
    with explained(node.name):
        node.place.remove(node.fd)
    node.close()


def open_(
    location: Location,
    index: int,
    *,
    uuid: bytes | None = None,
    size: int | None = None,
    options: NodeOptions | None = None,
    generation: int = 0,
) -> tuple[MemoryNode, Superblock]:
    """Map an existing segment, after a check by a descriptor that cannot write.

    `uuid` and `size`: those in the control segment, for memory nodes. Raises PoolNotFound,
    PoolPermission (another user's, unless `options.any_owner`), PoolForeign (not limpet's, not a
    plain file, another pool's), PoolIncomplete, PoolVersion, PoolTruncated or PoolCorrupt, and
    ParameterError if the host does not offer an option.
    """
    options = options or NodeOptions()
    where = location.segment(index)
    with explained(where):
        at = location.place(index, generation)
        fd = at.open()
        try:
            found = check(at, fd, location, index, uuid=uuid, size=size, options=options)
            # the same file, whatever the path names by now
            writable = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(fd)
        durable = found.parameters.durable
        node = _map(where, index, found.size, at, writable, generation, durable)
        try:
            _apply(node, options, created=False)
        except BaseException:
            node.close()
            raise
        return node, found


def _map(
    where: str, index: int, size: int, at: SegmentPlace, fd: int, generation: int, durable: bool
) -> MemoryNode:
    try:
        return MemoryNode(where, index, size, at, fd, generation, durable)
    except ValueError as error:
        raise PoolTruncated(f"{where} was truncated while it was being mapped ({error})") from error


def _apply(node: MemoryNode, options: NodeOptions, *, created: bool) -> None:
    """Apply the options to a new mapping, the NUMA node before the first page is touched."""
    index = 0 if node.index == CONTROL_NODE else node.index
    numa_node = options.numa_node_of(index) if created else None
    node.place.arrange(node.map, node.name, numa_node, options.huge_pages)
    if options.prefault:
        placement.prefault(node.map, node.name)
