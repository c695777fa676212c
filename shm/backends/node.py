"""Memory nodes: making, publishing and opening the segments of a pool, on three backends.

A segment is one shared, writable mapping: a POSIX shared memory object, a file, or a part of a
DAX device (location.py says where). The life of a pool's segments:

    create(control)     exclusive; this is the lock, PoolExists for everyone else
    create(node i)      for each memory node
    publish(node i)     for each, when its contents are ready
    publish(control)    last: the pool can be opened from here on

A creator that dies leaves segments that `open_` refuses as incomplete and `unlink_all` removes.
What `open_` refuses it has only looked at, through a read-only descriptor (probe.py).

POSIX shared memory is made with `posix_ipc`, which does not register it with `multiprocessing`'s
resource tracker; that tracker would unlink a live pool when any one process that opened it ends.
Segments have mode 0600. Their room is looked at when they are made, and taken when it is needed
(backing.py), all at once with `prefault`.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import mmap
import os
import stat
import struct
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import posix_ipc

from limpet.shm.backends import dax
from limpet.shm.backends import numa as placement
from limpet.shm.backends.inventory import list_pools, unlink_all
from limpet.shm.backends.location import Location, full_url, parse_url
from limpet.shm.backends.logind import remove_ipc_warning
from limpet.shm.backends.numa import NodeOptions
from limpet.shm.backends.probe import (
    READ_ONLY,
    Place,
    check,
    check_folder,
    explained,
    place,
    probe,
    read_first_bytes,
)
from limpet.shm.backends.superblock import (
    ABSENT,
    CREATING,
    MAGIC,
    SIZE_OFFSET,
    Superblock,
    claim_word0,
    pack,
    write,
    write_word0,
)
from limpet.shm.endpoint import backing
from limpet.shm.endpoint.layout import CONTROL_NODE, SUPERBLOCK_SIZE
from limpet.shm.errors import (
    ParameterError,
    PoolError,
    PoolExists,
    PoolIncomplete,
    PoolPermission,
    PoolTruncated,
)
from limpet.shm.parameters import NODE_SIZE_MAX, NODES_MAX, PoolParameters, check_whole

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

_READ_WRITE = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class MemoryNode:
    """One mapped segment.

    `index` (255: control segment), `generation` (states.py), `size` in bytes, `name` for messages,
    `map` the mapping, `address` where it begins in this process, `fd` its descriptor. `zeroed`: a
    new segment of this backend is all zeros. Code that uses `address` keeps a buffer of `map`, so
    that `close` cannot unmap it meanwhile.
    """

    def __init__(
        self, name: str, index: int, size: int, at: Place, fd: int, generation: int = 0
    ) -> None:
        """Map the segment that `fd`, which this object closes from now on, refers to."""
        self._close_fd = weakref.finalize(self, os.close, fd)
        self.name = name
        self.index = index
        self.generation = generation
        self.size = size
        self.fd = fd
        self.place = at
        self.zeroed = at.device is None
        self.map = mmap.mmap(fd, size, mmap.MAP_SHARED, offset=at.offset)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def __repr__(self) -> str:
        return f"<MemoryNode {self.name}: {self.size} bytes>"

    def stat_size(self) -> int:
        """Bytes behind the mapping now; fewer than `size` when the segment was truncated."""
        return self.place.size(self.fd)

    def back(self, offset: int, size: int) -> bool:
        """Have pages behind `size` bytes from `offset` on; False: there is no room for them."""
        return self.place.device is not None or backing.back(self.fd, offset, size)

    def close(self) -> None:
        """Unmap, or if buffers of `map` are still in use, leave that to the last of them."""
        self._close_fd()
        with contextlib.suppress(BufferError):
            self.map.close()


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many memory nodes, and how large the segments will be, in bytes."""

    nodes: int
    node_size: int
    control_size: int


def plan(
    location: Location,
    *,
    nodes: int | None,
    node_size: int | None,
    control_size: Callable[[int], int],
) -> Plan:
    """Fit a pool to its backend; None means the default. `control_size`: of the control segment,
    for so many bytes of nodes.

    The control size is rounded up to the page size of the backend, a given node size is not. On
    dax there is a node for every device, and by default it is as large as every device allows.
    """
    if location.scheme != "dax":
        page = _page_size(location)
        count = PoolParameters.nodes if nodes is None else nodes
        size = PoolParameters.node_size if node_size is None else node_size
        if node_size is None:
            size = -(-size // page) * page
        check_whole("nodes", count, 1, NODES_MAX)
        _check_size(size, page, f"{location}: node_size")
        return Plan(count, size, -(-control_size(count * size) // page) * page)
    devices = [dax.device(path) for path in location.devices]
    if nodes not in (None, len(devices)):
        raise ParameterError(
            f"{location} has {len(devices)} devices, so {len(devices)} nodes and not {nodes}; "
            "name the devices that the pool shall use"
        )
    align = max(device.align for device in devices)
    whole = sum(device.size for device in devices)
    memory = whole if node_size is None else min(whole, len(devices) * node_size)
    control = devices[0].round_up(control_size(memory))
    room = min([devices[0].size - control, *(device.size for device in devices[1:])])
    room = min(room // align * align, NODE_SIZE_MAX)
    size = room if node_size is None else node_size
    if room <= 0 or size > room:
        raise ParameterError(f"{location}: a node of {size} bytes does not fit; {room} bytes would")
    _check_size(size, align, f"{location}: node_size")
    return Plan(len(devices), size, control)


def create(
    location: Location,
    index: int,
    size: int,
    *,
    options: NodeOptions | None = None,
    generation: int = 0,
) -> MemoryNode:
    """Make and map a segment of `size` bytes, without a superblock yet. The control segment first.

    With a `generation`, it is to replace the memory of a node that is lost.

    Raises PoolExists if it is there in any state, PoolPermission, and ParameterError if there is no
    room or an option cannot be had; then nothing is left behind. On dax, the contents of the new
    segment are arbitrary (`zeroed` is False).
    """
    options = options or NodeOptions()
    where = location.segment(index)
    with explained(where), contextlib.ExitStack() as undo:
        if location.scheme == "dax":
            node = _create_on_device(location, index, size, generation)
        else:
            node = _create_file(location, index, size, generation, options)
        undo.callback(discard, node)
        _settle(node, options, created=True)
        undo.pop_all()
        return node


def back(node: MemoryNode, size: int) -> None:
    """Have pages behind the first `size` bytes of a segment. Raises ParameterError."""
    with explained(node.name):
        if not node.back(0, size):
            raise ParameterError(
                f"{node.name} does not fit: its file system has no room for the {size} bytes that "
                "are used at once"
            )


def warn_if_larger(location: Location, size: int) -> str:
    """What to tell the creator of a pool of `size` bytes, all segments together; "": nothing."""
    if location.scheme == "dax":
        return ""
    folder = next(path for path in (location.folder, *location.folder.parents) if path.exists())
    room = backing.room(folder)
    if room is None or size <= room:
        return ""
    return (
        f"the pool may take {size} bytes and {folder} has {room} free; when they are used up, "
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
    """Take back a segment that this process created, so that it is as if it had not."""
    with explained(node.name):
        if node.place.device is None:
            node.place.path.unlink(missing_ok=True)
        else:
            write_word0(node.map, ABSENT)
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
    """Map a segment that is there, after checking it without being able to write to it.

    `uuid` and `size`: what the control segment says, for memory nodes. Raises PoolNotFound,
    PoolPermission (another user's, unless `options.any_owner`), PoolForeign (not limpet's, not a
    plain file, another pool's), PoolIncomplete, PoolVersion, PoolTruncated or PoolCorrupt, and
    ParameterError if an option cannot be had.
    """
    options = options or NodeOptions()
    where = location.segment(index)
    with explained(where):
        at = place(location, index, generation)
        fd = os.open(at.path, READ_ONLY)
        try:
            found = check(at, fd, location, index, uuid=uuid, size=size, options=options)
            # the same file, whatever the path names by now
            writable = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(fd)
        node = _map(where, index, found.size, at, writable, generation)
        try:
            _settle(node, options, created=False)
        except BaseException:
            node.close()
            raise
        return node, found


def _map(where: str, index: int, size: int, at: Place, fd: int, generation: int) -> MemoryNode:
    try:
        return MemoryNode(where, index, size, at, fd, generation)
    except ValueError as error:
        raise PoolTruncated(f"{where} was truncated while it was being opened ({error})") from error


def _page_size(location: Location) -> int:
    folder = location.folder
    with explained(str(location)):
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            raise ParameterError(f"{location}: {folder} is not a folder")
        return placement.file_system(folder).page_size


def _check_size(size: int, page: int, what: str) -> None:
    if not SUPERBLOCK_SIZE <= size <= NODE_SIZE_MAX or size % page:
        raise ParameterError(f"{what} must be a multiple of {page} up to 1 TiB, not {size}")


def _create_file(
    location: Location, index: int, size: int, generation: int, options: NodeOptions
) -> MemoryNode:
    where = location.segment(index)
    _check_size(size, _page_size(location), f"{where}: its size")
    location.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(location, options.any_owner)
    whole = backing.capacity(location.folder)
    if whole is not None and size > whole:
        raise ParameterError(
            f"{where}: {size} bytes do not fit into {location.folder}, which has {whole} bytes, "
            f"{backing.room(location.folder)} bytes free"
        )
    path = location.path(index, generation)
    fd = _create_exclusive(location, path, where)
    with contextlib.ExitStack() as undo:
        undo.callback(path.unlink, missing_ok=True)
        try:
            os.ftruncate(fd, size)
            _share(location, index, fd, options)
        except OSError:
            os.close(fd)
            raise
        node = MemoryNode(where, index, size, Place(path), fd, generation)
        undo.pop_all()
        return node


def _share(location: Location, index: int, fd: int, options: NodeOptions) -> None:
    """Give a new file the mode and the group that the pool has."""
    if index == CONTROL_NODE:
        mode, group = options.mode, options.group_number()
    else:
        control = location.path(CONTROL_NODE).stat()
        mode, group = stat.S_IMODE(control.st_mode), control.st_gid
    made = os.fstat(fd)
    if group not in (-1, made.st_gid):
        os.fchown(fd, -1, group)
    if stat.S_IMODE(made.st_mode) != mode:
        os.fchmod(fd, mode)


def _create_exclusive(location: Location, path: Path, where: str) -> int:
    if location.scheme == "file":
        return os.open(path, _READ_WRITE | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        return int(posix_ipc.SharedMemory(f"/{path.name}", posix_ipc.O_CREX, 0o600).fd)
    except posix_ipc.ExistentialError as error:
        raise PoolExists(f"{where} is there already; open the pool, or destroy it") from error
    except posix_ipc.PermissionsError as error:
        raise PoolPermission(f"{where} may not be created by this user") from error


def _create_on_device(location: Location, index: int, size: int, generation: int) -> MemoryNode:
    where = location.segment(index)
    if index == CONTROL_NODE:
        _refuse_claimed_devices(location)
    at = place(location, index)
    assert at.device is not None
    _check_size(size, at.device.align, f"{where}: its size")
    if at.offset + size > at.device.size:
        raise ParameterError(
            f"{where}: {size} bytes do not fit behind the first {at.offset} of {at.device}"
        )
    fd = os.open(at.path, _READ_WRITE)
    try:
        dax.check_identity(at.device, fd)
    except PoolError:
        os.close(fd)
        raise
    node = MemoryNode(where, index, size, at, fd, generation)
    if generation:
        # the device was this node's before, and its pool says that nobody uses it now
        write_word0(node.map, CREATING)
    elif index == 0:
        if read_first_bytes(place(location, CONTROL_NODE))[: len(MAGIC)] != CREATING:
            node.close()
            raise PoolIncomplete(f"{where}: its control segment must be created first")
        # whoever claimed the control segment owns the rest of this device; no one else is here
        write_word0(node.map, CREATING)
    elif not claim_word0(node.map):
        node.close()
        raise _claimed(where, at)
    struct.pack_into("<Q", node.map, SIZE_OFFSET, size)
    return node


def _refuse_claimed_devices(location: Location) -> None:
    """Look at every device before the first is claimed, so that nothing is written in vain."""
    for index in (CONTROL_NODE, *range(1, len(location.devices))):
        at = place(location, index)
        if read_first_bytes(at)[: len(MAGIC)] in (MAGIC, CREATING):
            raise _claimed(location.segment(index), at)


def _claimed(where: str, at: Place) -> PoolExists:
    return PoolExists(
        f"{where}: {at.path} holds a pool already, or one is being created there; open that one, "
        "or destroy it first"
    )


def _settle(node: MemoryNode, options: NodeOptions, *, created: bool) -> None:
    """Apply the options to a new mapping, the NUMA node before the first page is touched."""
    where, device = node.name, node.place.device
    index = 0 if node.index == CONTROL_NODE else node.index
    numa_node = options.numa_node_of(index) if created else None
    if device is not None:
        if numa_node not in (None, device.numa_node):
            raise ParameterError(
                f"{where}: {device.path} is on NUMA node {device.numa_node} and cannot be bound "
                f"to {numa_node}"
            )
    elif numa_node is not None or options.huge_pages:
        found = placement.file_system(node.place.path)
        if options.huge_pages:
            placement.require_huge_pages(found, where)
            if found.kind == "tmpfs":
                placement.advise_huge_pages(node.map, where)
        if numa_node is not None:
            placement.bind(node.address, node.size, numa_node, found, where)
    if options.prefault:
        placement.prefault(node.map, where)
