"""The protocol of a backend: everything that limpet needs from a kind of memory.

A backend is a subclass of `Location`, registered under the scheme of its URLs. An object of it is
the place of one pool. Its segments are one for each memory node and the control segment, and a
`SegmentPlace` says where one of them begins.

    Location   parse      the place that a URL names
               plan       how many nodes, of which size
               create     make a new segment; one of several creators wins
               place      the place of a segment, which may be there or not
               removable  the segments that are there, if this process may remove them
               usage      number and sizes of the segments, as far as the backend sees them
    SegmentPlace  open, size, read, owner, back, same, mark, remove: one segment

node.py, probe.py, superblock.py, segments.py and inventory.py are written with these and know no
backend. `tests/shm/test_backends.py` is the suite that every backend passes.

The promises that a backend makes:

- `create` succeeds for one of any number of creators, and raises PoolExists for all others, until
  the segment is removed. Word 0 of a new segment is 0 or `superblock.CREATING`.
- The descriptor that `create` returns for a control segment holds the name (name.py), and the name
  led to that segment when it was locked.
- Nothing is removed but the segment that a descriptor has: `remove` compares.
- A descriptor of `open` cannot write. `read` never faults: it returns fewer bytes where some are
  gone.
- A segment is mapped through its descriptor, at `offset`, by any number of processes of one host.
- Mapped memory stays until the last mapping is gone, also when the segment is removed meanwhile.
"""

from __future__ import annotations

import abc
import dataclasses
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from limpet.shm.backends.mapping import map_file
from limpet.shm.endpoint.fabric import flush_mapping
from limpet.shm.endpoint.layout import CONTROL_NODE, SUPERBLOCK_SIZE
from limpet.shm.errors import ParameterError, PoolPermission
from limpet.shm.parameters import NODE_SIZE_MAX, NODES_MAX, PoolParameters, check_whole

if TYPE_CHECKING:
    from limpet.shm.backends.numa import NodeOptions
    from limpet.shm.backends.superblock import Superblock

READ_ONLY: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many memory nodes, and how large the segments will be, in bytes."""

    nodes: int
    node_size: int
    control_size: int


@dataclasses.dataclass(frozen=True)
class Usage:
    """A pool as its backend sees it: memory nodes, bytes of all segments, uid of the owner."""

    nodes: int
    bytes: int
    uid: int | None


class SegmentPlace(abc.ABC):
    """The place of a segment: it begins `offset` bytes into the file or device at `path`.

    `zeroed`: new memory there is all zeros. `can_shrink`: pages can go from under the mapping, as
    those of a file that is truncated; then `size` is asked when an access faults.
    """

    path: Path
    offset: int
    zeroed: ClassVar[bool] = True
    can_shrink: ClassVar[bool] = True

    def open(self) -> int:
        """A descriptor that cannot write. Raises OSError."""
        return os.open(self.path, READ_ONLY)

    def map(self, fd: int, size: int, durable: bool) -> memoryview:
        """A shared, writable mapping of the segment. `durable`: what is written back to it survives
        a power cut; ParameterError if that is not so here."""
        return map_file(fd, size, self.offset)

    def persist(self, mapping: memoryview, size: int) -> None:
        """Write the first bytes of a durable mapping back. CoherenceError: it cannot be done."""
        flush_mapping(mapping, size)

    @abc.abstractmethod
    def size(self, fd: int) -> int:
        """Bytes behind the segment now."""

    @abc.abstractmethod
    def read(self, fd: int, size: int, offset: int = 0) -> bytes:
        """Bytes of the segment, fewer if it is shorter; word 0 is read before the rest."""

    @abc.abstractmethod
    def owner(self, fd: int, where: str) -> int | None:
        """The uid that owns the segment; None: the superblock has it. PoolForeign if `path` cannot
        be a segment."""

    @abc.abstractmethod
    def check(self, found: Superblock, fd: int, where: str) -> None:
        """PoolCorrupt if a segment of this size cannot be here. It is known to be whole."""

    @abc.abstractmethod
    def back(self, fd: int, offset: int, size: int) -> bool:
        """Allocate the pages of `size` bytes of the segment; False: there is no room for them."""

    @abc.abstractmethod
    def arrange(self, mapping: memoryview, where: str, numa_node: int | None, huge: bool) -> None:
        """Bind the pages of a mapping to a NUMA node, use huge ones. ParameterError if impossible.

        `numa_node` is None except for the creator, before the first page is touched.
        """

    def same(self, fd: int) -> bool:
        """Whether the segment that is here now is the one that `fd` has open."""
        try:
            there = self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(there, os.fstat(fd))

    @abc.abstractmethod
    def mark(self, fd: int, word: bytes) -> None:
        """Store word 0 of the segment that `fd`, which need not be able to write, has open."""

    @abc.abstractmethod
    def remove(self, fd: int) -> None:
        """Take the segment away, if it is the one that `fd` has open. The name is held."""

    def refuse_nothing(self, data: bytes, where: str) -> None:  # noqa: B027
        """Raise PoolNotFound if these first bytes show that there is no segment."""


class Location(abc.ABC):
    """The place of a pool. `url` is canonical: `parse_url(url)` gives this location again."""

    scheme: ClassVar[str]
    example: ClassVar[str]
    """A URL, for the message that refuses one."""
    several_hosts: ClassVar[bool] = False
    """Whether another host may have the same memory, so that `multi_host` is the default there."""
    takes_nodes: ClassVar[bool] = True
    """Whether nodes can be added to a pool that is there."""
    reuses_memory: ClassVar[bool] = False
    """The new memory of a lost node is its old memory: no other process may have it mapped."""
    endpoint_class: ClassVar[Any] = None
    """The endpoint of clients that do not map the memory: net/backend.py. None: they map it."""
    heart_class: ClassVar[Any] = None
    """What keeps the lease of such a client."""

    @classmethod
    @abc.abstractmethod
    def parse(cls, url: str, rest: str) -> Location:
        """The location of `url`, which has `rest` behind its scheme. Raises ParameterError."""

    def open_remote(self) -> tuple[list[Any], PoolParameters, bytes]:
        """If it has an `endpoint_class`: what stands for the nodes in service and, last, for the
        control segment; parameters and uuid."""
        raise NotImplementedError

    @classmethod
    def everywhere(cls) -> list[Location]:
        """The pools of this backend that can be found without a URL."""
        return []

    @property
    @abc.abstractmethod
    def url(self) -> str: ...

    def __str__(self) -> str:
        return self.url

    def segment(self, index: int) -> str:
        """The segment's name in messages, e.g. `shm://demo node 0`."""
        return f"{self.url} {'control' if index == CONTROL_NODE else f'node {index}'}"

    @abc.abstractmethod
    def path(self, index: int, generation: int = 0) -> Path:
        """The file or device of the segment."""

    @abc.abstractmethod
    def place(self, index: int, generation: int = 0) -> SegmentPlace:
        """The place of the segment. `generation`: of the node's memory (states.py)."""

    @abc.abstractmethod
    def create(
        self, index: int, size: int, options: NodeOptions, generation: int = 0
    ) -> tuple[SegmentPlace, int]:
        """Make a segment of `size` bytes; its place, and a descriptor that may write.

        The control segment is the first of a pool. With a `generation`, the segment replaces lost
        memory. Raises PoolExists, PoolPermission, ParameterError, OSError; then nothing is left
        behind. The name of the pool is held, or becomes held when this makes the control segment.
        """

    @abc.abstractmethod
    def removable(self, any_owner: bool) -> list[tuple[int, int]]:
        """Index and generation of each segment that is there, in order, the control segment last.

        Raises PoolNotFound (there is none), PoolForeign (one of them is not limpet's, or another
        pool's) or PoolPermission (another user's, unless `any_owner`).
        """

    def generations(self, index: int) -> list[int]:
        """The generations of a node of which there is a segment, where each has its own."""
        return []

    def usage(self) -> Usage | None:
        """The pool as the backend sees it; None: there is none, or only the superblock shows it."""
        return None

    def plan(
        self, nodes: int | None, node_size: int | None, control_size: Callable[[int], int]
    ) -> Plan:
        """Fit a pool to the backend; None means the default. `control_size`: of the control
        segment, for so many bytes of nodes.

        The control size is rounded up to the page size of the backend, a given node size is not.
        """
        page = self.page_size()
        count = PoolParameters.nodes if nodes is None else nodes
        size = PoolParameters.node_size if node_size is None else node_size
        if node_size is None:
            size = -(-size // page) * page
        check_whole("nodes", count, 1, NODES_MAX)
        check_size(size, page, f"{self}: node_size")
        return Plan(count, size, -(-control_size(count * size) // page) * page)

    def page_size(self) -> int:
        """Sizes of segments are multiples of it."""
        return mmap.PAGESIZE

    def room(self) -> tuple[Path, int] | None:
        """A folder and the bytes that are free for segments there; None: not known."""
        return None

    def check_folder(self, any_owner: bool) -> None:  # noqa: B027
        """PoolPermission if another user could put other segments in the place of these."""

    def missing_folders(self) -> list[Path]:
        """The folders that `create` would make, the innermost first."""
        return []

    def warning(self) -> str | None:
        """A warning for the creator of a pool on this host, if there is one."""
        return None


def check_size(size: int, page: int, what: str) -> None:
    if not SUPERBLOCK_SIZE <= size <= NODE_SIZE_MAX or size % page:
        raise ParameterError(f"{what} must be a multiple of {page} up to 1 TiB, not {size}")


def check_owner(where: str, uid: int, any_owner: bool) -> None:
    if uid != os.geteuid() and not any_owner:
        raise PoolPermission(
            f"{where} is owned by uid {uid}, and this process runs as {os.geteuid()}; "
            "pass any_owner=True, or --any-owner to a command, if that is meant"
        )


def absolute_path(url: str, text: str) -> Path:
    """The path that a part of a URL names, which has to be absolute and without `..`."""
    path = Path(text)
    if not text.startswith("/") or path == Path("/") or ".." in path.parts:
        raise ParameterError(f"{url!r}: {text!r} is not an absolute path without '..'")
    if not text.isprintable():
        raise ParameterError(f"{url!r} has a character that cannot be printed")
    return Path("/", *path.parts[1:])
