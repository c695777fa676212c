"""The simulated fabric: the shipped `Endpoint`, which hands over to a scheduler before each verb.

`SimulatedEndpoint` hooks the verbs of the fabric of this build (hooked.py), so the code that runs
on it is the code that ships, compiled or not. Before a verb it calls its `turn`; there, a scheduler
may let other clients go first (it switches greenlets), or decide that this client is dead. Then
`turn` raises Crashed, now and for every later verb, so that no `finally` of the dead client's code
can touch memory.

For a verb on several words, `turn` returns how many of them are done now; the rest is a step of its
own. So a crash or another client's verb can fall between any two words.

Posted verbs (verbs.pyx). Each is a step of its own. If the schedule says nothing, it is done where
it is posted. `turn` may instead return -K, only for a posted verb (`posting` is set): it is done
late, after K more verbs of its client, in its `wait` at the latest. So posted verbs are done in any
order across nodes, and later than words of the control segment that the client writes meanwhile. On
one node they keep their order: what is posted behind a late verb is late, too, and a verb that is
not posted has those on its node done first. Each late verb is a step at which the schedule may kill
the client; the verbs that were not done until then never are. (A NIC may still do them after the
process has died; so on a fabric, fencing a client must come before what relies on its death.)

Whenever a posted verb is done, its results come with `wait`. Until then a ticket is a word that
means nothing, `result` raises PhaseError, an image raises it for any look, and the words that are
read into have the value POISON. A protocol that looks at these too early goes wrong, and that is
found by what it does: PhaseError, if POISON or a ticket is an argument of a verb, and else by the
history.

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
from array import array
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from limpet.shm.clients.liveness import Watcher
from limpet.shm.endpoint import hooked
from limpet.shm.endpoint.fabric import words_tagged
from limpet.shm.endpoint.hooked import MUTATING, READS, HookedEndpoint
from limpet.shm.endpoint.slots import START_US
from limpet.shm.errors import AddressError, NodeFailed, PhaseError

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

POISON: Final = 0xBAD0_1EAF_0000_0000
"""The words of a buffer whose read is only posted; with a number in bits 0-31, a ticket."""
CONTROL_NODE: Final = 255

Turn = Callable[["SimulatedEndpoint", str, int, int], int]
"""Called with endpoint, verb, address (of PAUSE: the attempt) and words; returns how many of the
words to do now, at least 1; or, of a posted verb, -K: it is done late."""
Step = tuple[int, str, int, int, int]
"""Client, verb, address, outcome (an atomic: whether it changed the word; else words), value."""


class Crashed(BaseException):
    """This simulated client is dead. Not an `Exception`, so no handler of errors catches it."""


def _part(words: Any, count: int, start: int = 0) -> memoryview:
    """These words of a buffer. Raises AddressError, as the verbs do, if it has not so many."""
    size = len(memoryview(words))
    if count < 1 or start < 0 or count > size - start:
        raise AddressError(f"there are no {count} words from word {start} on in {size}")
    return memoryview(words)[start : start + count]


def at_once(endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
    """The turn of a client without a scheduler."""
    return words


def _drop(result: Any) -> None:
    """The part of `wait` for a verb without a result, or with a ticket."""


def _by_due(posted: Posted) -> int:
    return posted.due


class Late(BaseException):
    """The schedule has a posted verb done late. It does not leave this module."""


class Posted:
    """A posted verb: `work` does it and returns its result; `arrive` gets the result in `wait`."""

    def __init__(
        self, verb: str, addr: int, work: Callable[[], Any], arrive: Callable[[Any], None]
    ) -> None:
        self.verb = verb
        self.addr = addr
        self.node = addr >> 40
        self.work = work
        self.arrive = arrive
        self.due = 0
        self.done = False
        self.result: Any = None
        self.error: NodeFailed | None = None

    def __str__(self) -> str:
        return f"{self.verb} at {self.addr:#x}"


class SimulatedEndpoint(HookedEndpoint, verbs=(*READS, *MUTATING)):
    """One simulated client's view of the memory. `number` is the scheduler's name for it."""

    def __init__(self) -> None:
        self.number = 0
        self.posting = False
        """Whether the verb that comes now is posted, so that it may be late."""
        self._phase: list[Posted] = []
        """The posted verbs of this phase."""
        self._late: list[Posted] = []
        """Those of them that are not done."""
        self._results: dict[int, Posted] = {}
        """The posted verbs with a result, of this operation, by ticket."""
        self._open: set[int] = set()
        """The tickets of this phase."""
        self._tickets = 0
        self._verbs = 0
        """Verbs of this client so far."""
        self._verbs_late = 0
        """By how many verbs the verb is late that raises Late."""
        self._is_doing = False
        """Whether a late verb is being done."""
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
        if self._late and not self._is_doing:
            self._catch_up(addr >> 40)
        self._verbs += 1
        try:
            part = self.turn(self, KIND_OF.get(verb, verb), addr, words)
        except NodeFailed:
            self._do_late()
            raise
        self.posting = False
        if part < 0:
            self._verbs_late = -part
            raise Late
        return part

    def on_done(self, verb: str, addr: int, words: int, value: int) -> None:
        self.trace.append((self.number, KIND_OF.get(verb, verb), addr, words, value))

    # ---- posted verbs ---------------------------------------------------------------------------

    def _post(
        self, verb: str, addr: int, work: Callable[[], Any], arrive: Callable[[Any], None] = _drop
    ) -> Posted:
        """Post a verb: do it now, or note that it is late."""
        posted = Posted(verb, addr, work, arrive)
        before = [other for other in self._late if other.node == posted.node]
        if before:
            posted.due = before[-1].due
            self._late.append(posted)
            self._phase.append(posted)
            return posted
        self.posting = posted.node != CONTROL_NODE
        try:
            posted.result = work()
            posted.done = True
        except Late:
            posted.due = self._verbs + self._verbs_late
            self._late.append(posted)
        finally:
            self.posting = False
        # Here, as nothing arrives of a verb that has failed.
        self._phase.append(posted)
        return posted

    def _ticketed(self, verb: str, addr: int, work: Callable[[], int]) -> int:
        """Post a verb with a result; its ticket."""
        posted = self._post(verb, addr, work)
        self._tickets = self._tickets + 1 & 0xFFFF_FFFF
        ticket = POISON | self._tickets
        self._results[ticket] = posted
        self._open.add(ticket)
        return ticket

    def _require_sound(self, verb: str, *words: int) -> None:
        """Raise PhaseError if an argument of a verb was looked at too early."""
        for word in words:
            if word >> 32 << 32 == POISON:
                of = f" of {self._results[word]}" if word in self._results else ""
                raise PhaseError(
                    f"{verb} uses a result{of} that was looked at before `wait`, "
                    "or without `result`"
                )

    def _catch_up(self, node: int) -> None:
        """Do the late verbs that are due, and those on the node of the verb that comes now."""
        while self._late:
            due = [one for one in self._late if one.due <= self._verbs or one.node == node]
            if not due:
                return
            first = min(due, key=_by_due)
            self._do(next(one for one in self._late if one.node == first.node))

    def _do_late(self) -> None:
        """Do all late verbs."""
        while self._late:
            first = min(self._late, key=_by_due)
            self._do(next(one for one in self._late if one.node == first.node))

    def _do(self, posted: Posted) -> None:
        self._late.remove(posted)
        self._is_doing = True
        # a verb that is posted now may be late, and this one is so already
        posting, self.posting = self.posting, False
        try:
            posted.result = posted.work()
            posted.done = True
        except NodeFailed as error:
            posted.error = error
        finally:
            self._is_doing = False
            self.posting = posting

    def forget_posted(self) -> None:
        """Forget the posted verbs of the phase: their client is dead, or its run has ended."""
        self._phase, self._late, self._results, self._open = [], [], {}, set()
        self._tickets = self._verbs = 0

    def result(self, ticket: int) -> int:
        posted = self._results.get(ticket)
        if posted is None:
            raise PhaseError(f"{ticket:#x} is no ticket of this operation")
        if ticket in self._open:
            raise PhaseError(f"the result of {posted} was looked at before `wait`")
        found: int = posted.result
        return found

    def post_load(self, addr: int) -> int:
        self._require_sound("load", addr)
        post = super().post_load
        return self._ticketed("load", addr, lambda: post(addr))

    def post_swap(self, addr: int, value: int) -> int:
        self._require_sound("swap", addr, value)
        post = super().post_swap
        return self._ticketed("swap", addr, lambda: post(addr, value))

    def post_cas(self, addr: int, expected: int, desired: int) -> int:
        self._require_sound("cas", addr, expected, desired)
        post = super().post_cas
        return self._ticketed("cas", addr, lambda: post(addr, expected, desired))

    def post_cas_if(self, first: int, wanted: int, addr: int, expected: int, desired: int) -> int:
        self._require_sound("cas", wanted, addr, expected, desired)
        earlier = self._results.get(first)
        if earlier is None or first not in self._open or earlier.node != addr >> 40:
            raise PhaseError(
                f"cas at {addr:#x} depends on a verb that is not of its phase and node: {earlier}"
            )
        post = super().post_cas

        def work() -> int:
            # on one node, the earlier verb is done by now
            if earlier.result != wanted:
                return ~expected & 0xFFFF_FFFF_FFFF_FFFF
            return post(addr, expected, desired)

        return self._ticketed("cas", addr, work)

    def post_faa(self, addr: int, delta: int) -> int:
        self._require_sound("faa", addr, delta)
        post = super().post_faa
        return self._ticketed("faa", addr, lambda: post(addr, delta))

    def post_fetch_or(self, addr: int, bits: int) -> int:
        self._require_sound("fetch_or", addr, bits)
        post = super().post_fetch_or
        return self._ticketed("fetch_or", addr, lambda: post(addr, bits))

    def post_mcas(
        self, addr: int, compare: int, swap: int, compare_mask: int, swap_mask: int
    ) -> int:
        self._require_sound("mcas", addr, compare, swap)
        post = super().post_mcas
        return self._ticketed(
            "mcas", addr, lambda: post(addr, compare, swap, compare_mask, swap_mask)
        )

    def post_read(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        self._post_read(addr, _part(words, count, start))
        return 0

    def _post_read(self, addr: int, target: memoryview) -> None:
        """Post a read into the target, which has POISON until then."""
        self._require_sound("read", addr)
        found = array("Q", bytes(8 * len(target)))
        post = super().post_read

        def work() -> None:
            post(addr, found, len(found), 0)

        def arrive(_: Any) -> None:
            target[:] = memoryview(found)

        target[:] = memoryview(array("Q", [POISON] * len(target)))
        self._post("read", addr, work, arrive)

    def post_tagged(self, first: int, second: int, words: Any, start: int, tag: int) -> int:
        self.post_read(first, words, 16, start)
        self.post_read(second, words, 16, start + 16)
        ticket = self._ticketed_here(second)
        tagged = self._results[ticket]

        def arrive(_: Any) -> None:
            tagged.result = words_tagged(words, start, 32, tag)

        tagged.arrive = arrive
        return ticket

    def _ticketed_here(self, addr: int) -> int:
        """The ticket of what is worked out in `wait`, from words that were read."""
        self._tickets = self._tickets + 1 & 0xFFFF_FFFF
        ticket = POISON | self._tickets
        posted = Posted("read", addr, lambda: None, _drop)
        posted.done = True
        self._phase.append(posted)
        self._results[ticket] = posted
        self._open.add(ticket)
        return ticket

    def post_image(self, image: Any, addr: int, count: int) -> int:
        if not 0 < count <= len(image.words):
            return super().post_image(image, addr, count)  # which refuses it
        self._post_read(addr, memoryview(image.words)[:count])
        # in the order of the phase, so when the words are there
        opening = Posted("read", addr, lambda: None, lambda _: image.open())
        opening.done = True
        self._phase.append(opening)
        image.close()
        return 0

    def post_write(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        data = array("Q", _part(words, count, start))
        self._require_sound("write", addr, *data)
        post = super().post_write
        self._post("write", addr, lambda: post(addr, data, count, 0))
        return 0

    def post_gather(self, addr: int, words: Any, count: int, first: bytes, second: bytes) -> int:
        data = array("Q", _part(words, count) if count else b"")
        self._require_sound("write", addr, *data)
        post = super().post_gather
        self._post("write", addr, lambda: post(addr, data, count, first, second))
        return 0

    def end(self) -> int:
        if self._late:
            self._do_late()
        self._phase, self._results, self._open = [], {}, set()
        return super().end()

    # ---- time -----------------------------------------------------------------------------------

    def wait(self) -> int:
        self._do_late()
        phase, self._phase = self._phase, []
        self._open = set()
        error: NodeFailed | None = None
        for posted in phase:
            error = error or posted.error
            if posted.error is None:
                posted.arrive(posted.result)
        self.turn(self, WAIT, 0, 1)
        super().wait()
        if error is not None:
            raise error
        return 0

    def pause(self, attempt: int) -> int:
        self._do_late()
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
