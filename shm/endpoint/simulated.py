"""The simulated fabric: the shipped `Endpoint`, which hands over to a scheduler before each verb.

`SimulatedEndpoint` derives from the fabric of this build and overrides its verbs, so what runs on
it is the very code that ships, compiled or not. Before a verb it calls its `turn`; a scheduler that
sits there may let others go first (it switches greenlets), or decide that this client is dead, in
which case `turn` raises Crashed, and does so for every verb from then on: no `finally` of the dead
client's code can touch memory.

A verb on several words is not atomic. `turn` says how many of its words are done now; what is left
is a step of its own. So a crash or another client's verb can fall between any two words.

Many simulated clients live in one process. What Membership asks the kernel about processes it asks
`SimulatedProcesses` instead, and a lease runs on the scheduler's clock (`Membership.watcher` and
`Membership.now`).

Memory without hardware coherence: `CachedEndpoint` gives each client a cache of its own for the
range that is not coherent. Its lines are there from the start and never leave, so what it holds is
as stale as it can be, and only what the shipped verbs do about it (`Endpoint.write_back`,
`Endpoint.invalidate`) moves a line of 64 bytes between cache and memory. Not modelled: a line that
leaves the cache by itself, which a real one may at any time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from collections.abc import Callable, MutableSequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from limpet.shm.clients.liveness import Watcher
from limpet.shm.endpoint.fabric import Endpoint
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
WAIT: Final = "wait"
ATOMICS: Final = frozenset((SWAP, CAS, FAA, FETCH_OR, MCAS))

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
    """This simulated client is dead. No handler of errors may take it for one."""


def at_once(endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
    """The turn of a client that nobody schedules."""
    return words


class SimulatedEndpoint(Endpoint):
    """One simulated client's view of the memory. `number` is the scheduler's name for it."""

    def __init__(self) -> None:
        self.number = 0
        self.turn: Turn = at_once
        self.trace: MutableSequence[Step] = deque(maxlen=0)
        """Takes a `Step` for each verb, when it has been done."""
        self.ticks = 0
        self.now_us: Callable[[], int] | None = None
        self.gone: AbstractSet[int] = frozenset()
        """Nodes whose memory a scheduler takes from us: its `turn` raises NodeFailed for them."""

    def lost(self, node: int) -> bool:
        return node in self.gone or super().lost(node)

    def microseconds(self) -> int:
        """A clock that goes by how often it is looked at, or as `now_us` says."""
        self.ticks += 1
        return SIMULATED_US + (self.ticks if self.now_us is None else self.now_us())

    # ---- words ----------------------------------------------------------------------------------

    def load(self, addr: int) -> int:
        self.turn(self, LOAD, addr, 1)
        value = super().load(addr)
        self.trace.append((self.number, LOAD, addr, 1, value))
        return value

    def store(self, addr: int, value: int) -> int:
        self.turn(self, STORE, addr, 1)
        super().store(addr, value)
        self.trace.append((self.number, STORE, addr, 1, value))
        return 0

    def swap(self, addr: int, value: int) -> int:
        self.turn(self, SWAP, addr, 1)
        old = super().swap(addr, value)
        self.trace.append((self.number, SWAP, addr, 1, value))
        return old

    def cas(self, addr: int, expected: int, desired: int) -> int:
        self.turn(self, CAS, addr, 1)
        old = super().cas(addr, expected, desired)
        self.trace.append((self.number, CAS, addr, old == expected, desired))
        return old

    def faa(self, addr: int, delta: int) -> int:
        self.turn(self, FAA, addr, 1)
        old = super().faa(addr, delta)
        self.trace.append((self.number, FAA, addr, 1, delta))
        return old

    def fetch_or(self, addr: int, bits: int) -> int:
        self.turn(self, FETCH_OR, addr, 1)
        old = super().fetch_or(addr, bits)
        self.trace.append((self.number, FETCH_OR, addr, 1, bits))
        return old

    def mcas(self, addr: int, compare: int, swap: int, compare_mask: int, swap_mask: int) -> int:
        self.turn(self, MCAS, addr, 1)
        old = super().mcas(addr, compare, swap, compare_mask, swap_mask)
        changed = (old ^ compare) & compare_mask == 0
        self.trace.append((self.number, MCAS, addr, changed, swap_mask))
        return old

    # ---- several words --------------------------------------------------------------------------

    def read(self, addr: int, size: int) -> bytes:
        data = b""
        while True:
            left = size - len(data)
            at = addr + len(data)
            words = words_of(at, left)
            part = self.turn(self, READ, at, words)
            self.trace.append((self.number, READ, at, part, 0))
            if part >= words:
                rest = super().read(at, left)
                return data + rest if data else rest
            data += super().read(at, size_of(at, part))

    def read_into(self, addr: int, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        target[:] = self.read(addr, len(target))
        return 0

    def read_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        while True:
            part = self.turn(self, READ, addr, count)
            self.trace.append((self.number, READ, addr, part, 0))
            if part >= count:
                return super().read_words(addr, words, count, start)
            super().read_words(addr, words, part, start)
            addr, count, start = addr + 8 * part, count - part, start + part

    def write(self, addr: int, data: Any) -> int:
        return self._write_steps(addr, memoryview(data).cast("B"), 0)

    def write_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        part = self.turn(self, WRITE, addr, count)
        while part < count:
            self.trace.append((self.number, WRITE, addr, part, 0))
            super().write_words(addr, words, part, start)
            addr, count, start = addr + 8 * part, count - part, start + part
            part = self.turn(self, WRITE, addr, count)
        self.trace.append((self.number, WRITE, addr, part, 0))
        return super().write_words(addr, words, count, start)

    def write_gather(self, addr: int, words: Any, count: int, first: bytes, second: bytes) -> int:
        total = words_of(addr, 8 * count + len(first) + (-len(first) & 7) + len(second))
        part = self.turn(self, WRITE, addr, total)
        if part >= total:
            self.trace.append((self.number, WRITE, addr, part, 0))
            return super().write_gather(addr, words, count, first, second)
        head = bytes(memoryview(words).cast("B")[: 8 * count])
        whole = head + first + bytes(-len(first) & 7) + second
        return self._write_steps(addr, memoryview(whole), part)

    def _write_steps(self, addr: int, data: memoryview, part: int) -> int:
        """Write, the first `part` words at once; 0: this is yet to be asked."""
        while True:
            words = words_of(addr, len(data))
            part = part or self.turn(self, WRITE, addr, words)
            self.trace.append((self.number, WRITE, addr, part, 0))
            if part >= words:
                return super().write(addr, data)
            size = size_of(addr, part)
            super().write(addr, data[:size])
            addr, data, part = addr + size, data[size:], 0

    # ---- time -----------------------------------------------------------------------------------

    def wait(self) -> int:
        self.turn(self, WAIT, 0, 1)
        return super().wait()

    def pause(self, attempt: int) -> int:
        self.turn(self, PAUSE, attempt, 1)
        self.trace.append((self.number, PAUSE, 0, 1, attempt))
        return 0

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        """A pause; what comes in time is up to the scheduler."""
        self.pause(0)
        return super().futex_wait(addr, expected, 0)

    def futex_wake(self, addr: int, count: int) -> int:
        """Nobody sleeps: there is nothing to hand over for."""
        return 0


def words_of(addr: int, size: int) -> int:
    """How many aligned words the `size` bytes at `addr` touch; at least 1."""
    return max(1, (addr + size + 7 >> 3) - (addr >> 3))


def size_of(addr: int, words: int) -> int:
    """Bytes from `addr` to the end of the aligned word `words - 1` after its own."""
    return 8 * words - (addr & 7)


class CachedEndpoint(SimulatedEndpoint):
    """A simulated client with a cache of its own for memory that is not hardware-coherent."""

    def __init__(self) -> None:
        super().__init__()
        self._caches: dict[int, _Cache] = {}

    def cover(self, node: int, mine: mmap.mmap, memory: mmap.mmap, start: int) -> None:
        """Have a cache in front of `memory`, a mapping of the node, from byte `start` on.

        `mine` is the client's own mapping of the node; from `start` on it becomes the cache. The
        node must be attached, and `start` a multiple of the page size.
        """
        self._caches[node] = _Cache(mine, memory, start)

    def fill(self) -> None:
        """Begin with every line in the cache, as memory is now."""
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


class _Cache:
    """The cache of one client for one node: `mine` is what it holds, `clean` what it fetched."""

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
