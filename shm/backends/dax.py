"""`dax:///dev/dax0.0,/dev/dax1.0`: node i on device i, and the control segment on the first.

Differences from files and POSIX shared memory:

- The size, the alignment and the NUMA node of a device come from sysfs; fstat and statvfs of the
  character device do not have them. A device is known by its name, and its number must agree with
  sysfs.
- read(2), write(2), ftruncate and O_EXCL do not work on it. It is mapped, shared, and every offset
  and length of a mapping is a multiple of the alignment (4 KiB, 2 MiB or 1 GiB).
- Its memory is never assumed to be zero. Old contents may look like anything, also like a finished
  initialisation, so a creator claims word 0 by compare-and-swap. It refuses a device that seems to
  hold data of other programs (device_contents.py), unless it is told to overwrite it.
- Segments cannot be made or unlinked. Their place is fixed: the control segment is at the front of
  the first device, memory node 0 begins where it ends, and memory node i > 0 is at the front of
  device i. The control segment's length is read from its superblock.
- The file's permissions decide which processes may open the device. The uid in the superblock says
  which user owns the pool on it.
- `msync` does not flush it. Where hosts are not hardware-coherent, the endpoint must.

A regular file of the device's size may stand in for the device; sysfs must know its name all the
same. `SYSFS` can point at a made-up tree for that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import mmap
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from limpet.shm.backends.backend import (
    Location,
    Plan,
    SegmentPlace,
    absolute_path,
    check_owner,
    check_size,
)
from limpet.shm.backends.device_contents import LOOK_SIZE, contents_of
from limpet.shm.backends.explain import explained
from limpet.shm.backends.name import hold, let_go
from limpet.shm.backends.superblock import (
    ABSENT,
    CREATING,
    MAGIC,
    SIZE_OFFSET,
    Superblock,
    claim_word0,
    unpack,
    write_word0,
)
from limpet.shm.endpoint.layout import CONTROL_NODE, SUPERBLOCK_SIZE
from limpet.shm.errors import (
    DeviceNotEmpty,
    ParameterError,
    PoolCorrupt,
    PoolError,
    PoolExists,
    PoolForeign,
    PoolIncomplete,
    PoolNotFound,
    PoolTruncated,
)
from limpet.shm.parameters import NODE_SIZE_MAX, NODES_MAX

if TYPE_CHECKING:
    from limpet.shm.backends.numa import NodeOptions

SYSFS: Path = Path("/sys/bus/dax/devices")
NAME: Final = re.compile(r"dax\d{1,6}\.\d{1,6}", re.ASCII)
ALIGN_MIN: Final = 4096
_FLOCK: Final = struct.Struct("hh4xqqi4x")
"""`struct flock` of 64-bit Linux, as in liveness.py."""


@dataclasses.dataclass(frozen=True)
class Device:
    """One DAX device: `size` and `align` in bytes, `numa_node` -1 if sysfs has none."""

    path: Path
    size: int
    align: int
    numa_node: int

    def round_up(self, size: int) -> int:
        return -(-size // self.align) * self.align


def device(path: Path) -> Device:
    """The device at `path` as sysfs describes it.

    Raises PoolNotFound if sysfs has no such device, PoolForeign if its entries are impossible.
    """
    folder = SYSFS / path.name
    if NAME.fullmatch(path.name) is None or not folder.is_dir():
        raise PoolNotFound(f"{path}: there is no DAX device {path.name} in {SYSFS}")
    size = _number(folder / "size")
    align = _number(folder / "align")
    if align < ALIGN_MIN or align & (align - 1):
        raise PoolForeign(f"{path}: {folder / 'align'} says {align}, which is not an alignment")
    if size < 2 * align:
        raise PoolForeign(f"{path}: a DAX device of {size} bytes is too small for a pool")
    numa = folder / "target_node"
    return Device(path, size, align, _number(numa) if numa.exists() else -1)


def check_identity(found: Device, fd: int) -> None:
    """Refuse a file that is neither this device nor a stand-in of its size (PoolForeign)."""
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        if status.st_size < found.size:
            raise PoolTruncated(
                f"{found.path} stands in for a device of {found.size} bytes "
                f"and has only {status.st_size}"
            )
        return
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    expected = _text(SYSFS / found.path.name / "dev")
    if not stat.S_ISCHR(status.st_mode) or number != expected:
        raise PoolForeign(
            f"{found.path} is not the DAX device of that name: it has the device number {number}, "
            f"sysfs says {expected}"
        )


def size_now(path: Path, fd: int) -> int:
    """Bytes that can be accessed now, 0 if the device is gone; for detecting truncation."""
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    try:
        return device(path).size
    except (PoolNotFound, PoolForeign):
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PoolForeign(f"{path} cannot be read: {error}") from error


def _number(path: Path) -> int:
    text = _text(path)
    try:
        return int(text, 0)
    except ValueError as error:
        raise PoolForeign(f"{path} says {text!r}, which is not a number") from error


@dataclasses.dataclass(frozen=True)
class DevicePlace(SegmentPlace):
    """A segment in a device, whose memory is there before and after the pool."""

    zeroed: ClassVar[bool] = False
    can_shrink: ClassVar[bool] = False

    path: Path
    offset: int
    device: Device

    def size(self, fd: int) -> int:
        return max(0, size_now(self.path, fd) - self.offset)

    def read(self, fd: int, size: int, offset: int = 0) -> bytes:
        check_identity(self.device, fd)
        whole = self.device.round_up(offset + size)
        with mmap.mmap(fd, whole, mmap.MAP_SHARED, mmap.PROT_READ, offset=self.offset) as mapping:
            # ORDER: word 0 first; if it is MAGIC then what follows it is complete.
            word = mapping[offset : offset + 8]
            return (word + mapping[offset + 8 : offset + size])[:size]

    def owner(self, fd: int, where: str) -> None:
        return None

    def refuse_nothing(self, data: bytes, where: str) -> None:
        """Zero in word 0 is a new segment in a file; on a device, the trace of `destroy`."""
        if data.startswith(ABSENT):
            raise PoolNotFound(f"{where}: there is no pool on {self.path}")

    def check(self, found: Superblock, fd: int, where: str) -> None:
        if found.size % self.device.align:
            raise PoolCorrupt(f"{where}: {found.size} bytes are no multiple of {self.device.align}")

    def back(self, fd: int, offset: int, size: int) -> bool:
        return True

    def arrange(self, mapping: memoryview, where: str, numa_node: int | None, huge: bool) -> None:
        if numa_node not in (None, self.device.numa_node):
            raise ParameterError(
                f"{where}: {self.device.path} is on NUMA node {self.device.numa_node} and cannot "
                f"be bound to {numa_node}"
            )

    def mark(self, fd: int, word: bytes) -> None:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            with self.front(own) as mapping:
                write_word0(mapping, word)
        finally:
            os.close(own)

    def remove(self, fd: int) -> None:
        if self.same(fd):
            self.mark(fd, ABSENT)

    @contextlib.contextmanager
    def front(self, fd: int) -> Iterator[mmap.mmap]:
        """The beginning of the segment, writable."""
        with mmap.mmap(fd, self.device.align, offset=self.offset) as mapping:
            yield mapping

    def first_bytes(self, size: int = SUPERBLOCK_SIZE) -> bytes:
        fd = self.open()
        try:
            return self.read(fd, size)
        finally:
            os.close(fd)


@dataclasses.dataclass(frozen=True)
class Devices(Location):
    """The devices of one pool."""

    scheme: ClassVar[str] = "dax"
    example: ClassVar[str] = "dax:///dev/dax0.0"
    several_hosts: ClassVar[bool] = True
    reuses_memory: ClassVar[bool] = True
    takes_nodes: ClassVar[bool] = False

    devices: tuple[Path, ...]

    @classmethod
    def parse(cls, url: str, rest: str) -> Location:
        devices = tuple(absolute_path(url, part) for part in rest.split(","))
        for one in devices:
            if NAME.fullmatch(one.name) is None:
                raise ParameterError(f"{url!r}: {one} is not named like a DAX device, dax0.0")
        if len({one.name for one in devices}) != len(devices):
            raise ParameterError(f"{url!r} names a device twice")
        if len(devices) > NODES_MAX:
            raise ParameterError(f"{url!r} names more than {NODES_MAX} devices")
        return cls(devices)

    @property
    def url(self) -> str:
        return "dax://" + ",".join(map(str, self.devices))

    def path(self, index: int, generation: int = 0) -> Path:
        """The device that the segment is on."""
        first = 0 if index == CONTROL_NODE else index
        if first >= len(self.devices):
            raise ParameterError(f"{self.url} has no device for node {index}")
        return self.devices[first]

    def place(self, index: int, generation: int = 0) -> DevicePlace:
        """The place of the segment. For node 0, the control segment must have been claimed."""
        found = device(self.path(index))
        offset = self._control_size(found) if index == 0 else 0
        return DevicePlace(found.path, offset, found)

    def _control_size(self, first: Device) -> int:
        where = self.segment(CONTROL_NODE)
        at = DevicePlace(first.path, 0, first)
        data = at.first_bytes()
        at.refuse_nothing(data, where)
        if not data.startswith((MAGIC, CREATING)):
            unpack(data, where)
        (size,) = struct.unpack_from("<Q", data, SIZE_OFFSET)
        if size == 0 or size % first.align or size >= first.size:
            raise PoolCorrupt(
                f"{where} says that it has {size} bytes, which {first.path} cannot hold"
            )
        return int(size)

    def plan(
        self, nodes: int | None, node_size: int | None, control_size: Callable[[int], int]
    ) -> Plan:
        """A node for every device, by default as large as every device allows."""
        found = [device(path) for path in self.devices]
        if nodes not in (None, len(found)):
            raise ParameterError(
                f"{self} has {len(found)} devices, so {len(found)} nodes and not {nodes}; "
                "name the devices that the pool shall use"
            )
        align = max(one.align for one in found)
        whole = sum(one.size for one in found)
        memory = whole if node_size is None else min(whole, len(found) * node_size)
        control = found[0].round_up(control_size(memory))
        room = min([found[0].size - control, *(one.size for one in found[1:])])
        room = min(room // align * align, NODE_SIZE_MAX)
        size = room if node_size is None else node_size
        if room <= 0 or size > room:
            raise ParameterError(f"{self}: a node of {size} bytes does not fit; {room} bytes would")
        check_size(size, align, f"{self}: node_size")
        return Plan(len(found), size, control)

    # ---- creating -----------------------------------------------------------------------------

    def create(
        self, index: int, size: int, options: NodeOptions, generation: int = 0
    ) -> tuple[SegmentPlace, int]:
        where = self.segment(index)
        at = self.place(index)
        check_size(size, at.device.align, f"{where}: its size")
        if at.offset + size > at.device.size:
            raise ParameterError(
                f"{where}: {size} bytes do not fit behind the first {at.offset} of {at.device}"
            )
        fd = os.open(at.path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            check_identity(at.device, fd)
            if index == CONTROL_NODE:
                if not hold(fd):
                    raise _claimed(where, at)
                _refuse_mapped(where, at, fd)
                self._refuse_used(options.overwrite)
            self._claim(at, fd, index, size, generation)
        except BaseException:
            let_go(fd)
            raise
        return at, fd

    def _claim(self, at: DevicePlace, fd: int, index: int, size: int, generation: int) -> None:
        where = self.segment(index)
        with at.front(fd) as front:
            if generation:
                # the device was this node's before, and no client of its pool uses it now
                write_word0(front, CREATING)
            elif index == 0:
                if self.place(CONTROL_NODE).first_bytes()[: len(MAGIC)] != CREATING:
                    raise PoolIncomplete(f"{where}: its control segment must be created first")
                # the client that claimed the control segment owns the rest of this device
                write_word0(front, CREATING)
            elif not claim_word0(front):
                raise _claimed(where, at)
            # A superblock of an earlier pool is not taken for this one's.
            front[len(CREATING) : SUPERBLOCK_SIZE] = bytes(SUPERBLOCK_SIZE - len(CREATING))
            struct.pack_into("<Q", front, SIZE_OFFSET, size)

    def _refuse_used(self, overwrite: bool) -> None:
        """Check every device before the first is claimed, so that no write is in vain."""
        for index in (CONTROL_NODE, *range(1, len(self.devices))):
            at = self.place(index)
            data = at.first_bytes(min(LOOK_SIZE, at.device.size))
            if data[: len(MAGIC)] in (MAGIC, CREATING):
                raise _claimed(self.segment(index), at)
            found = "" if overwrite else contents_of(data)
            if found:
                raise DeviceNotEmpty(
                    f"{self.segment(index)}: {at.path} holds {found}; use another device, or have "
                    "it overwritten by `limpet create --overwrite`, limpet.create(overwrite=True)"
                )

    # ---- removing -----------------------------------------------------------------------------

    def removable(self, any_owner: bool) -> list[tuple[int, int]]:
        """The segments whose word 0 is this pool's; other bytes there stay as they are."""
        where = self.segment(CONTROL_NODE)
        with explained(where):
            word, control = self._found(CONTROL_NODE)
        if word not in (MAGIC, CREATING):
            raise PoolNotFound(f"{self}: there is no such pool")
        if control is not None:
            check_owner(where, control.uid, any_owner)
            if control.index != CONTROL_NODE:
                path = self.path(CONTROL_NODE)
                raise PoolForeign(f"{where}: {path} is node {control.index} of another pool")
        claimed = []
        for index in range(len(self.devices)):
            with explained(self.segment(index)):
                try:
                    self.place(index)
                except PoolError:
                    continue  # the device is gone, or the beginning of node 0 is not known
                word, node = self._found(index)
            anothers = node is not None and (
                node.index != index
                or node.parameters.nodes != len(self.devices)
                or (control is not None and node.uuid != control.uuid)
            )
            if word in (MAGIC, CREATING) and not anothers:
                claimed.append((index, 0))
        return [*claimed, (CONTROL_NODE, 0)]

    def _found(self, index: int) -> tuple[bytes, Superblock | None]:
        """Word 0 of a segment, and its superblock if that is sound, also amid its removal."""
        data = self.place(index).first_bytes()
        word = data[: len(MAGIC)]
        try:
            return word, unpack(MAGIC + data[len(MAGIC) :], self.segment(index))
        except PoolError:
            return word, None


def _refuse_mapped(where: str, at: DevicePlace, fd: int) -> None:
    """PoolExists while a client of an earlier pool here lives: its life lock is held."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
        return
    if kind != fcntl.F_UNLCK:
        raise PoolExists(
            f"{where}: a process still has an earlier pool on {at.path} open, and would write into "
            "the new one; end the processes that use the device (`fuser`, `lsof`)"
        )


def _claimed(where: str, at: DevicePlace) -> PoolExists:
    return PoolExists(
        f"{where}: {at.path} holds a pool already, or one is being created there; open that one, "
        "or destroy it first"
    )
