"""The placement of a mapping's pages: NUMA node, huge pages, all at once or when touched.

An option that the host does not offer is a ParameterError; none is left out silently. The NUMA
policy of tmpfs and hugetlbfs belongs to the file, so it is set once, by the creator, before the
first page is touched. `MADV_HUGEPAGE` belongs to the mapping, so every process sets it.

A NUMA node may be given by a name, for memory whose number is another one on each host:

    name            the NUMA node
    memory-only     the one that has memory and no processor, as Linux shows CXL memory, and an
                    NVDIMM or other device DAX that was made system RAM
    memory_tier4    the one of that memory tier (/sys/devices/virtual/memory_tiering, Linux 6.1)
    dax0.0          the one that has, or would have, the memory of that DAX device as system RAM
                    (`target_node` in sysfs, which `daxctl list` shows, too)
    node2           number 2

Numbers are looked up when they are needed, by the process that makes a segment. A name that stands
for no node, or for several, is a ParameterError that lists those that there are.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import grp
import mmap
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from limpet.shm.backends import numa
from limpet.shm.backends.mapping import advise
from limpet.shm.errors import ParameterError

SYSTEM: Path = Path("/sys/devices/system/node")
TIERS: Path = Path("/sys/devices/virtual/memory_tiering")
DAX: Path = Path("/sys/bus/dax/devices")

MEMORY_ONLY: Final = "memory-only"
_NODE: Final = re.compile(r"node(\d{1,4})")
_TIER: Final = re.compile(r"memory_tier\d+")
_DAX: Final = re.compile(r"dax\d+\.\d+")
NAMES: Final = f"{MEMORY_ONLY!r}, 'memory_tierN', 'daxN.M', 'nodeN'"


def is_name(text: str) -> bool:
    """Whether NUMA nodes can be named like this; there need not be one."""
    return text == MEMORY_ONLY or any(one.fullmatch(text) for one in (_NODE, _TIER, _DAX))


def number_of(name: str) -> int:
    """The number of the NUMA node of that name, which `is_name`. Raises ParameterError."""
    with_memory = _numbers(SYSTEM / "has_memory")
    if name == MEMORY_ONLY:
        found = with_memory - _numbers(SYSTEM / "has_cpu")
        return _only(name, found, lambda: f"the NUMA nodes with memory are {_text(with_memory)}")
    if _TIER.fullmatch(name):
        found = _numbers(TIERS / name / "nodelist") & with_memory
        tiers = sorted(path.name for path in TIERS.glob("memory_tier*"))
        return _only(name, found, lambda: f"this kernel shows {', '.join(tiers) or 'no tiers'}")
    if _DAX.fullmatch(name):
        return _of_device(name, with_memory)
    number = int(name.removeprefix("node"))
    found = {number} & with_memory
    return _only(name, found, lambda: f"the NUMA nodes with memory are {_text(with_memory)}")


def _of_device(name: str, with_memory: set[int]) -> int:
    path = DAX / name / "target_node"
    if not path.exists():
        there = ", ".join(sorted(one.name for one in DAX.glob("dax*")))
        raise ParameterError(
            f"numa_node={name!r}: there is no such DAX device; there are: {there or 'none'}"
        )
    number = int(path.read_text())
    driver = (DAX / name / "driver").resolve().name
    if driver != "kmem":
        raise ParameterError(
            f"numa_node={name!r}: the memory of that device is no NUMA node, it is bound to "
            f"{driver}; make it one (daxctl reconfigure-device --mode=system-ram {name}), or put "
            f"the pool on dax:///dev/{name}"
        )
    if number not in with_memory:
        raise ParameterError(
            f"numa_node={name!r}: NUMA node {number}, to which that device belongs, has no memory "
            f"that is online; see daxctl online-memory {name}"
        )
    return number


def _only(name: str, found: set[int], there: Callable[[], str]) -> int:
    if len(found) == 1:
        return found.pop()
    if not found:
        raise ParameterError(f"numa_node={name!r}: this host has no such node; {there()}")
    raise ParameterError(
        f"numa_node={name!r} stands for the nodes {_text(found)}: name one of them, or one for "
        "each memory node of the pool, as a tuple"
    )


def _numbers(path: Path) -> set[int]:
    """The numbers in a list of sysfs, such as `0,2-3`; none where there is no such file."""
    if not path.exists():
        return set()
    found: set[int] = set()
    for part in filter(None, path.read_text("ascii").strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _text(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"


HUGEPAGE_SETTINGS: Path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
MOUNTS: Path = Path("/proc/self/mountinfo")

MADV_POPULATE_WRITE: Final = 23
MPOL_BIND: Final = 2
NUMA_NODES_MAX: Final = 1024
_MBIND: Final = {"x86_64": 237, "aarch64": 235, "riscv64": 235, "ppc64le": 259, "s390x": 268}


NumaNode = int | str | tuple[int | str, ...] | None


@dataclasses.dataclass(frozen=True)
class NodeOptions:
    """Options for opening segments and for the placement of their pages.

    `numa_node`: the NUMA node to bind to, by its number or by a name, or one for
    each memory node (the control segment goes with the first); used by the creator only.
    `prefault`: touch every page now, so that a lack of memory shows now. `huge_pages`: on
    hugetlbfs, or on a tmpfs whose mount allows them.
    `any_owner`: also open or destroy segments of another user. `mode`: permissions of the files of
    the segments, for the owner and others who may read and write, as 0o660; `group`: name or number
    of the group that they are for, if not the creator's. Both are used by the creator only: a node
    that is replaced has those of the control segment. `overwrite`: new segments may be made on a
    device that holds other data. `durable`: new segments are of a durable pool.
    """

    numa_node: NumaNode = None
    prefault: bool = False
    huge_pages: bool = False
    any_owner: bool = False
    mode: int = 0o600
    group: int | str | None = None
    durable: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name in ("prefault", "huge_pages", "any_owner", "overwrite"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(f"{name} must be True or False, not {getattr(self, name)!r}")
        mode = self.mode
        if isinstance(mode, bool) or not isinstance(mode, int) or mode not in _MODES:
            raise ParameterError(
                "mode must be 0o600 or, for others, too, 0o660, 0o606 or 0o666, not "
                + (oct(mode) if type(mode) is int else repr(mode))
            )
        self.group_number()
        wanted = self.numa_node if isinstance(self.numa_node, tuple) else (self.numa_node,)
        for node in wanted or (-1,):
            if node is None and self.numa_node is None:
                continue
            if isinstance(node, str) and numa.is_name(node):
                continue
            if isinstance(node, bool) or not isinstance(node, int) or node not in _NUMA_RANGE:
                raise ParameterError(
                    "numa_node must be None, a whole number from 0 to 1023, a name "
                    f"({numa.NAMES}), or a tuple of them, not {self.numa_node!r}"
                )

    def group_number(self) -> int:
        """The number of the group that the segments are for; -1: the creator's."""
        group = self.group
        if group is None:
            return -1
        if isinstance(group, str):
            try:
                return grp.getgrnam(group).gr_gid
            except KeyError as error:
                raise ParameterError(f"there is no group {group!r}") from error
        if isinstance(group, bool) or not isinstance(group, int) or group < 0:
            raise ParameterError(f"group must be the name or the number of one, not {group!r}")
        return group

    def numa_node_of(self, index: int) -> int | None:
        """The NUMA node for memory node `index`; pass 0 for the control segment.

        A name is looked up. Raises ParameterError.
        """
        wanted = self.numa_node
        if isinstance(wanted, tuple):
            if index >= len(wanted):
                raise ParameterError(f"numa_node has no entry for memory node {index}")
            wanted = wanted[index]
        return numa.number_of(wanted) if isinstance(wanted, str) else wanted


_MODES: Final = (0o600, 0o660, 0o606, 0o666)
_NUMA_RANGE: Final = range(NUMA_NODES_MAX)


@dataclasses.dataclass(frozen=True)
class FileSystem:
    """The file system of a segment: its type, and the value of the mount option `huge`, if any."""

    kind: str
    huge: str
    page_size: int


def file_system(path: Path) -> FileSystem:
    """The file system of an existing file or folder. `page_size`: sizes are multiples of it."""
    status = path.stat()
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    kind, huge = "", ""
    for line in MOUNTS.read_text("utf-8", "surrogateescape").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == number:
            kind, _, options = source.partition(" ")
            named = dict(part.partition("=")[::2] for part in options.split(" ")[-1].split(","))
            huge = named.get("huge", "")
    page_size = os.statvfs(path).f_bsize if kind == "hugetlbfs" else mmap.PAGESIZE
    return FileSystem(kind, huge, max(page_size, mmap.PAGESIZE))


def require_huge_pages(found: FileSystem, where: str) -> None:
    """ParameterError unless a file there can have huge pages."""
    if found.kind == "hugetlbfs":
        return
    if found.kind != "tmpfs":
        raise ParameterError(
            f"{where}: huge pages need hugetlbfs or tmpfs, this is {found.kind or 'unknown'}"
        )
    setting = "never"
    if HUGEPAGE_SETTINGS.exists():
        setting = HUGEPAGE_SETTINGS.read_text("ascii").partition("[")[2].partition("]")[0]
    if setting == "force":
        return
    if setting == "deny" or not HUGEPAGE_SETTINGS.exists():
        raise ParameterError(f"{where}: this kernel denies huge pages; see {HUGEPAGE_SETTINGS}")
    if found.huge in ("", "never"):
        raise ParameterError(
            f"{where}: this tmpfs is mounted without huge pages; mount it again with the option "
            "huge=advise"
        )


def advise_huge_pages(mapping: memoryview, where: str) -> None:
    try:
        advise(mapping, mmap.MADV_HUGEPAGE)
    except OSError as error:
        raise ParameterError(f"{where}: the kernel refused huge pages: {error}") from error


def bind(mapping: memoryview, numa_node: int, found: FileSystem, where: str) -> None:
    """Bind pages that are not there yet to a NUMA node (mbind, MPOL_BIND)."""
    if found.kind not in ("tmpfs", "hugetlbfs"):
        raise ParameterError(
            f"{where}: cannot be bound to NUMA node {numa_node}; its file system "
            f"({found.kind or 'unknown'}) places its pages itself"
        )
    number = _MBIND.get(platform.machine())
    if number is None:
        raise ParameterError(f"{where}: limpet does not know mbind on {platform.machine()}")
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (NUMA_NODES_MAX // bits))()
    mask[numa_node // bits] = 1 << numa_node % bits
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = call(
        ctypes.c_long(number),
        ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapping))),
        ctypes.c_ulong(len(mapping)),
        ctypes.c_ulong(MPOL_BIND),
        mask,
        ctypes.c_ulong(NUMA_NODES_MAX + 1),
        ctypes.c_ulong(0),
    )
    if result == 0:
        return
    code = ctypes.get_errno()
    reason = {
        errno.EINVAL: "there is no such NUMA node with memory, or this process may not use it",
        errno.ENOSYS: "this kernel has no NUMA support",
        errno.EPERM: "this container or sandbox forbids mbind",
    }.get(code, os.strerror(code))
    raise ParameterError(f"{where}: cannot bind to NUMA node {numa_node}: {reason}")


def prefault(mapping: memoryview, where: str) -> None:
    """Map every page, writable, without changing it; a lack of memory is an error, not SIGBUS."""
    try:
        advise(mapping, MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ParameterError(f"{where}: prefault needs Linux 5.14 or newer") from error
        raise ParameterError(
            f"{where}: the {len(mapping)} bytes cannot all be allocated: {error.strerror}; "
            "is there enough free memory?"
        ) from error
