"""The simulated fabric: the shipped `Endpoint`, which hands over to a scheduler before each verb.

`SimulatedEndpoint` hooks the verbs of the fabric of this build (hooked.py), so the code that runs
on it is the code that ships, compiled or not. Before a verb it calls its `turn`; there, a scheduler
may let other clients go first (it switches greenlets), or decide that this client is dead. Then
`turn` raises Crashed, now and for every later verb, so that no `finally` of the dead client's code
can touch memory.

For a verb on several words, `turn` returns how many of them are done now; the rest is a step of its
own. So a crash or another client's verb can fall between any two words.

Many simulated clients live in one process. Membership asks `SimulatedProcesses` about processes
instead of the kernel, and a lease runs on the scheduler's clock (`Membership.watcher` and
`Membership.now`).

Memory without hardware coherence: `CachedEndpoint` gives each client a cache of its own for the
range that is not coherent. Its lines are there from the start and never leave, so they are as stale
as possible. Only the shipped verbs (`Endpoint.write_back`, `Endpoint.invalidate`) move a line of 64
bytes between cache and memory. The model has no line that leaves the cache by itself, as a real
line may at any time.

Power cuts: `PoweredEndpoint` tells `PersistentMemory` of every change and of every line that is
written back. That memory knows, for each line of 64 bytes, the contents that were surely persistent
last and each version since. A power cut leaves of each line one of these versions, or one that is
cut between two of its words. The caches of clients are coherent here: each sees the newest version.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence
from collections.abc import Set as AbstractSet
from typing import Final

from limpet.shm.clients.liveness import Watcher
from limpet.shm.endpoint import hooked
from limpet.shm.endpoint.hooked import MUTATING, READS, HookedEndpoint
from limpet.shm.endpoint.slots import START_US

READ: Final = "read"
WRITE: Final = "write"
LOAD: Final = "load"
STORE: Final = "store"
SWAP: Final = "swap"
CAS: Final = "cas"
FAA: Final = "faa"
FETCH_OR: Final = "fetch_or"
MCAS: Final = "mcas"
PAUSE: Final = "pause"
PERSIST: Final = "persist"
WAIT: Final = "wait"
ATOMICS: Final = frozenset(hooked.ATOMICS) - {STORE}
KIND_OF: Final = {
    **{verb: verb for verb in (LOAD, *hooked.ATOMICS)},
    **dict.fromkeys(hooked.COPIES, READ),
    **dict.fromkeys(hooked.WRITES, WRITE),
}
"""The scheduler's name of each verb."""

LINE: Final = 64
MAP_FIXED: Final = 0x10
"""Of Linux; the module mmap does not have it."""

PID_FIRST: Final = 1 << 23
"""Simulated processes have pids from here on: above what Linux gives out, within a state word."""

SIMULATED_US: Final = START_US + (1 << 40)
"""When simulated clocks begin."""

Turn = Callable[["SimulatedEndpoint", str, int, int], int]
"""Called with endpoint, verb, address (of PAUSE: the attempt) and words; returns how many of the
words to do now, at least 1."""
Step = tuple[int, str, int, int, int]
"""Client, verb, address, outcome (an atomic: whether it changed the word; else words), value."""


class Crashed(BaseException):
    """This simulated client is dead. Not an `Exception`, so no handler of errors catches it."""


def at_once(endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
    """The turn of a client without a scheduler."""
    return words


class SimulatedEndpoint(HookedEndpoint, verbs=(*READS, *MUTATING)):
    """One simulated client's view of the memory. `number` is the scheduler's name for it."""

    def __init__(self) -> None:
        self.number = 0
        self.turn: Turn = at_once
        self.trace: MutableSequence[Step] = deque(maxlen=0)
        """Called with a `Step` after each verb."""
        self.ticks = 0
        self.now_us: Callable[[], int] | None = None
        self.gone: AbstractSet[int] = frozenset()
        """Nodes whose memory a scheduler takes from us: its `turn` raises NodeFailed for them."""

    def lost(self, node: int) -> bool:
        return node in self.gone or super().lost(node)

    def microseconds(self) -> int:
        """A clock that advances with each look, or `now_us`."""
        self.ticks += 1
        return SIMULATED_US + (self.ticks if self.now_us is None else self.now_us())

    # ---- verbs ----------------------------------------------------------------------------------

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        return self.turn(self, KIND_OF.get(verb, verb), addr, words)

    def on_done(self, verb: str, addr: int, words: int, value: int) -> None:
        self.trace.append((self.number, KIND_OF.get(verb, verb), addr, words, value))

    # ---- time -----------------------------------------------------------------------------------

    def wait(self) -> int:
        self.turn(self, WAIT, 0, 1)
        return super().wait()

    def pause(self, attempt: int) -> int:
        self.turn(self, PAUSE, attempt, 1)
        self.trace.append((self.number, PAUSE, 0, 1, attempt))
        return 0

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        """A pause; the scheduler decides whether the wake comes in time."""
        self.pause(0)
        return super().futex_wait(addr, expected, 0)

    def futex_wake(self, addr: int, count: int) -> int:
        """Do nothing: no simulated client sleeps."""
        return 0


class CachedEndpoint(SimulatedEndpoint):
    """A simulated client with a cache of its own for memory that is not hardware-coherent."""

    def __init__(self) -> None:
        super().__init__()
        self._caches: dict[int, _Cache] = {}

    def cover(self, node: int, mine: mmap.mmap, memory: mmap.mmap, start: int) -> None:
        """Put a cache in front of `memory`, a mapping of the node, from byte `start` on.

        `mine` is the client's own mapping of the node; from `start` on it becomes the cache. The
        node must be attached, and `start` a multiple of the page size.
        """
        self._caches[node] = _Cache(mine, memory, start)

    def fill(self) -> None:
        """Begin with every line in the cache, with the present contents of memory."""
        for cache in self._caches.values():
            cache.fill()

    def write_back(self, addr: int, size: int) -> int:
        cache = self._caches.get(addr >> 40)
        if cache is not None:
            cache.write_back(addr & (1 << 40) - 1, size)
        return 0

    def invalidate(self, addr: int, size: int) -> int:
        cache = self._caches.get(addr >> 40)
        if cache is not None:
            cache.write_back(addr & (1 << 40) - 1, size)
            cache.fetch(addr & (1 << 40) - 1, size)
        return 0


class PersistentMemory:
    """The contents that a power cut would leave of some mappings: `segments`, by their nodes."""

    def __init__(self, segments: Mapping[int, mmap.mmap]) -> None:
        self.segments = segments
        self._last: dict[int, bytes] = {}
        self._versions: dict[tuple[int, int], list[bytes]] = {}
        """For a line, by node and offset: the versions since it was persistent, that one first."""
        self.begin()

    def begin(self) -> None:
        """Everything is persistent now, with its present contents."""
        self._last = {node: segment[:] for node, segment in self.segments.items()}
        self._versions = {}

    def changed(self, addr: int, size: int) -> None:
        """The lines of these bytes have new contents."""
        node = addr >> 40
        memory = self.segments[node]
        for line in _lines(addr, size):
            found = memory[line : line + LINE]
            versions = self._versions.setdefault(
                (node, line), [self._last[node][line : line + LINE]]
            )
            if found != versions[-1]:
                versions.append(found)

    def written_back(self, addr: int, size: int) -> None:
        """The lines of these bytes are persistent, with their present contents."""
        node = addr >> 40
        memory = self.segments[node]
        for line in _lines(addr, size):
            if (node, line) in self._versions:
                self._versions[node, line] = [memory[line : line + LINE]]

    @property
    def unflushed(self) -> int:
        """How many lines have a version that is not persistent."""
        return sum(len(versions) > 1 for versions in self._versions.values())

    def cut(self, choose: Callable[[int], int]) -> None:
        """Leave of each line one of its versions: `choose(n)` returns one of 0 to n - 1, 0 being
        the oldest. Everything is persistent afterwards."""
        for (node, line), versions in sorted(self._versions.items()):
            history = _by_words(versions)
            self.segments[node][line : line + LINE] = history[choose(len(history))]
        self.begin()


def _lines(addr: int, size: int) -> range:
    """The offsets of the lines of some bytes."""
    offset = addr & (1 << 40) - 1
    return range(offset & -LINE, offset + size, LINE)


def _by_words(versions: list[bytes]) -> list[bytes]:
    """The versions of a line, with those in between in which only the first changed words of a
    longer write are there."""
    found = versions[:1]
    for version in versions[1:]:
        now = bytearray(found[-1])
        for at in range(0, LINE, 8):
            if now[at : at + 8] != version[at : at + 8]:
                now[at : at + 8] = version[at : at + 8]
                found.append(bytes(now))
    return found


class PoweredEndpoint(SimulatedEndpoint):
    """A simulated client of a durable pool, whose memory may lose power."""

    memory: PersistentMemory | None = None
    """Set by the cluster; before that, nothing is lost."""

    def on_done(self, verb: str, addr: int, words: int, value: int) -> None:
        super().on_done(verb, addr, words, value)
        if self.memory is not None and verb in MUTATING:
            self.memory.changed(addr & ~7, 8 * words)

    def flush(self, addr: int, size: int) -> int:
        if self.memory is not None:
            self.memory.written_back(addr, size)
        return 0

    def persist(self) -> int:
        if self.noted:
            self.turn(self, PERSIST, 0, 1)
        return super().persist()


class _Cache:
    """The cache of one client for one node: `mine` is its contents, `clean` those as fetched."""

    def __init__(self, mine: mmap.mmap, memory: mmap.mmap, start: int) -> None:
        self.start = start
        _make_private(mine, start)
        self.mine = mine
        self.memory = memory
        self.clean = bytearray(len(mine))
        self.fill()

    def fill(self) -> None:
        self.fetch(self.start, len(self.mine) - self.start)

    def _lines(self, offset: int, size: int) -> tuple[int, int]:
        first = max(offset, self.start) & -LINE
        return first, max(first, min(offset + size + LINE - 1 & -LINE, len(self.mine)))

    def fetch(self, offset: int, size: int) -> None:
        """Take the lines of these bytes from memory."""
        first, end = self._lines(offset, size)
        self.mine[first:end] = self.clean[first:end] = self.memory[first:end]

    def write_back(self, offset: int, size: int) -> None:
        """Push those lines of these bytes to memory that were written to."""
        first, end = self._lines(offset, size)
        if self.mine[first:end] == self.clean[first:end]:
            return
        for line in range(first, end, LINE):
            held = self.mine[line : line + LINE]
            if held != self.clean[line : line + LINE]:
                self.memory[line : line + LINE] = self.clean[line : line + LINE] = held


def _make_private(mapping: mmap.mmap, start: int) -> None:
    """Put private, zero-filled pages in place of a shared mapping's, from byte `start` on."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    at = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + start
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
    made = libc.mmap(at, len(mapping) - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if made != at:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class SimulatedProcesses(Watcher):
    """The processes of one simulation: those in `gone` are dead, all others live.

    `end` kills the one with a pid; it is called by a client that fences another.
    """

    locks_tell = False

    def __init__(self, end: Callable[[int], None]) -> None:
        self.gone: set[int] = set()
        self.end = end

    def alive(self, pid: int, started: int) -> bool:
        return pid not in self.gone

    def kill(
        self,
        pid: int,
        started: int,
        timeout_ms: int = 10_000,
        sure: Callable[[], bool] = lambda: True,
    ) -> bool:
        self.end(pid)
        return True
