"""The simulated fabric: the shipped `Endpoint`, which hands over to a scheduler before each verb.

`SimulatedEndpoint` hooks the verbs of the fabric of this build (hooked.py), so the code that runs
on it is the code that ships, compiled or not. Before a verb it calls its `turn`; there, a scheduler
may let other clients go first (it switches greenlets), or decide that this client is dead. Then
`turn` raises Crashed, now and for every later verb, so that no `finally` of the dead client's code
can touch memory.

For a verb on several words, `turn` returns how many of them are done now; the rest is a step of its
own. So a crash or another client's verb can fall between any two words.

Posted verbs may be done late, and so may verbs that were sent (verbs.pyx): simulated_memory.py.
`turn` returns -K for one that it has done late, after K more verbs of its client.

Many simulated clients live in one process. Membership asks `SimulatedProcesses` about processes
instead of the kernel, and a lease runs on the scheduler's clock (`Membership.watcher` and
`Membership.now`).

A remote client: `RemoteEndpoint` has copies of control words. Memory without hardware coherence:
`CachedEndpoint` gives each client a cache of its own for the range that is not coherent. Only the
shipped verbs (`Endpoint.write_back`, `Endpoint.invalidate`) move a line of 64 bytes between cache
and memory. Power cuts: `PoweredEndpoint` tells the memory of
every change and of every line that is written back. The models are in simulated_memory.py.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, MutableSequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from limpet.shm.endpoint import hooked
from limpet.shm.endpoint.fabric import words_tagged
from limpet.shm.endpoint.hooked import MUTATING, READS, HookedEndpoint
from limpet.shm.endpoint.layout import COPIED
from limpet.shm.endpoint.simulated_memory import POISON, PersistentMemory, Phase, PrivateCache
from limpet.shm.endpoint.slots import START_US
from limpet.shm.errors import AddressError, NodeFailed

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

PID_FIRST: Final = 1 << 23
"""Simulated processes have pids from here on: above what Linux gives out, within a state word."""

SIMULATED_US: Final = START_US + (1 << 40)
"""When simulated clocks begin."""

Turn = Callable[["SimulatedEndpoint", str, int, int], int]
"""Called with endpoint, verb, address (of PAUSE: the attempt) and words; returns how many of the
words to do now, at least 1; or, of a posted or sent verb, -K: it is done late."""
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


class SimulatedEndpoint(HookedEndpoint, verbs=(*READS, *MUTATING)):
    """One simulated client's view of the memory. `number` is the scheduler's name for it."""

    def __init__(self) -> None:
        self.number = 0
        self.phase = Phase()
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
        self.phase.before_verb(addr >> 40)
        try:
            part = self.turn(self, KIND_OF.get(verb, verb), addr, words)
        except NodeFailed:
            self.phase.do_late()
            raise
        self.phase.posting = False
        if part < 0:
            self.phase.delay(-part)
        return part

    def on_done(self, verb: str, addr: int, words: int, value: int) -> None:
        self.trace.append((self.number, KIND_OF.get(verb, verb), addr, words, value))

    # ---- posted verbs ---------------------------------------------------------------------------

    def _ticketed(self, verb: str, post: Callable[..., int], addr: int, *words: int) -> int:
        """Post a verb on one word; the ticket of its result."""
        self.phase.require_sound(verb, addr, *words)
        return self.phase.ticket_of(self.phase.post(verb, addr, lambda: post(addr, *words)))

    def result(self, ticket: int) -> int:
        return self.phase.result(ticket)

    def post_load(self, addr: int) -> int:
        return self._ticketed(LOAD, super().post_load, addr)

    def post_swap(self, addr: int, value: int) -> int:
        return self._ticketed(SWAP, super().post_swap, addr, value)

    def post_cas(self, addr: int, expected: int, desired: int) -> int:
        return self._ticketed(CAS, super().post_cas, addr, expected, desired)

    def post_cas_if(self, first: int, wanted: int, addr: int, expected: int, desired: int) -> int:
        self.phase.require_sound(CAS, wanted)
        earlier = self.phase.earlier(first, addr)
        cas = super().post_cas

        def post(addr: int, expected: int, desired: int) -> int:
            # on one node, the earlier verb is done by now
            if earlier.result != wanted:
                return ~expected & 0xFFFF_FFFF_FFFF_FFFF
            return cas(addr, expected, desired)

        return self._ticketed(CAS, post, addr, expected, desired)

    def post_gather_if(
        self, first: int, wanted: int, addr: int, words: Any, count: int, one: bytes, two: bytes
    ) -> int:
        data = array("Q", _part(words, count) if count else b"")
        self.phase.require_sound(WRITE, addr, wanted, *data)
        earlier = self.phase.earlier(first, addr)
        gather = super().post_gather

        def post() -> int:
            # on one node, the earlier verb is done by now
            return gather(addr, data, count, one, two) if earlier.result == wanted else 0

        self.phase.post(WRITE, addr, post)
        return 0

    def post_faa(self, addr: int, delta: int) -> int:
        return self._ticketed(FAA, super().post_faa, addr, delta)

    def post_fetch_or(self, addr: int, bits: int) -> int:
        return self._ticketed(FETCH_OR, super().post_fetch_or, addr, bits)

    def post_mcas(
        self, addr: int, compare: int, swap: int, compare_mask: int, swap_mask: int
    ) -> int:
        return self._ticketed(MCAS, super().post_mcas, addr, compare, swap, compare_mask, swap_mask)

    def post_read(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        self._post_read(addr, _part(words, count, start))
        return 0

    def _post_read(self, addr: int, target: memoryview) -> None:
        """Post a read into the target, which has POISON until then."""
        self.phase.require_sound(READ, addr)
        found = array("Q", bytes(8 * len(target)))
        post = super().post_read

        def work() -> None:
            post(addr, found, len(found), 0)

        def arrive(_: Any) -> None:
            target[:] = memoryview(found)

        target[:] = memoryview(array("Q", [POISON] * len(target)))
        self.phase.post(READ, addr, work, arrive)

    def post_tagged(self, first: int, second: int, words: Any, start: int, tag: int) -> int:
        self.post_read(first, words, 16, start)
        self.post_read(second, words, 16, start + 16)
        tagged = self.phase.then(second, lambda: words_tagged(words, start, 32, tag))
        return self.phase.ticket_of(tagged)

    def post_image(self, image: Any, addr: int, count: int) -> int:
        if not 0 < count <= len(image.words):
            return super().post_image(image, addr, count)  # which refuses it
        self._post_read(addr, memoryview(image.words)[:count])
        self.phase.then(addr, image.open)
        image.close()
        return 0

    def post_write(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        data = array("Q", _part(words, count, start))
        self.phase.require_sound(WRITE, addr, *data)
        post = super().post_write
        self.phase.post(WRITE, addr, lambda: post(addr, data, count, 0))
        return 0

    def post_gather(self, addr: int, words: Any, count: int, first: bytes, second: bytes) -> int:
        data = array("Q", _part(words, count) if count else b"")
        self.phase.require_sound(WRITE, addr, *data)
        post = super().post_gather
        self.phase.post(WRITE, addr, lambda: post(addr, data, count, first, second))
        return 0

    def post_set(self, addr: int, bits: int) -> int:
        self.phase.require_sound(FETCH_OR, addr, bits)
        post = super().post_set
        if self.failed(addr):
            return post(addr, bits)  # which raises NodeFailed
        self.phase.post(FETCH_OR, addr, lambda: post(addr, bits), dispensable=True)
        return 0

    # ---- the background message of an operation -------------------------------------------------

    def _gather(self, verb: str, send: Callable[..., int], addr: int, *words: int) -> int:
        self.phase.require_sound(verb, addr, *words)
        self.phase.send(verb, addr, lambda: send(addr, *words))
        return 0

    def send_clear(self, addr: int, bits: int) -> int:
        return self._gather(MCAS, super().send_clear, addr, bits)

    def send_store(self, addr: int, value: int) -> int:
        return self._gather(STORE, super().send_store, addr, value)

    def send_store_two(self, addr: int, value: int, then_addr: int, then_value: int) -> int:
        self.send_store(addr, value)
        return self.send_store(then_addr, then_value)

    def send_words(self, addr: int, words: Any, count: int) -> int:
        data = array("Q", _part(words, count))
        self.phase.require_sound(WRITE, addr, *data)
        send = super().send_words
        self.phase.send(WRITE, addr, lambda: send(addr, data, count))
        return 0

    def end(self) -> int:
        try:
            self.phase.end_operation()
        finally:
            super().end()
        return 0

    # ---- time -----------------------------------------------------------------------------------

    def wait(self) -> int:
        error = self.phase.arrive()
        self.turn(self, WAIT, 0, 1)
        super().wait()
        if error is not None:
            raise error
        return 0

    def pause(self, attempt: int) -> int:
        self.phase.do_late()
        self.phase.do_sent()
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


class RemoteEndpoint(SimulatedEndpoint):
    """A simulated client that has copies of control words: `copies`, by address. None: it reads
    them, as a client does that is mapped or in no operation.

    It forgets the copies where it waits, or changes such a word, and has none in the background.
    """

    copies: dict[int, int] | None = None
    behind = False

    def load(self, addr: int) -> int:
        if self.copies is None or self.behind or addr not in COPIED:
            return super().load(addr)
        if addr not in self.copies:
            self.copies[addr] = super().load(addr)
        return self.copies[addr]

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if addr in COPIED and verb != LOAD:
            self._forget()
        return super().on_verb(verb, addr, words)

    def background(self, on: bool) -> bool:
        self._forget()
        self.behind = on
        return super().background(on)

    def pause(self, attempt: int) -> int:
        self._forget()
        return super().pause(attempt)

    def _forget(self) -> None:
        if self.copies is not None:
            self.copies.clear()


class CachedEndpoint(SimulatedEndpoint):
    """A simulated client with a cache of its own for memory that is not hardware-coherent."""

    def __init__(self) -> None:
        super().__init__()
        self._caches: dict[int, PrivateCache] = {}

    def cover(self, node: int, mine: memoryview, memory: memoryview, start: int) -> None:
        """Put a cache in front of `memory`, a mapping of the node, from byte `start` on.

        `mine` is the client's own mapping of the node; from `start` on it becomes the cache. The
        node must be attached, and `start` a multiple of the page size.
        """
        self._caches[node] = PrivateCache(mine, memory, start)

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
