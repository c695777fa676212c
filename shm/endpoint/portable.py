"""The portable fabric: the `Endpoint` of verbs.pyx without C, on the package `atomics`.

It is always available, and slow (10 us an atomic verb). It is the oracle of the native fabric:
tests let both work on the same words. Verbs, promises, errors, accounting, crash fuse and thread
rules are those of verbs.pyx. The differences:

Lost memory
    Python code cannot survive SIGBUS. So before each access a verb compares the size of the file
    behind the mapping with the node's size, and raises NodeFailed for a truncated node; for this
    the mapping must begin at the file's first byte. A truncation between the check and the access
    still kills the process. So does an access to a page for which the file system has no memory;
    blocks get their pages before they are used. A mapping without a file of a size (anonymous, a
    device, `trackfd=False`) is not watched.
Memory without hardware coherence
    Python code cannot flush cache lines: `attach` refuses it.
Durability
    Python code cannot write cache lines back: `make_durable` refuses, except in a class that has a
    `flush` of its own (the simulator).
Order
    The CPU orders plain reads and writes on x86-64, where loads stay in order and stores stay in
    order. On another CPU each copy and each atomic has a `barrier` (portable_node.py).
Threads
    The GIL can go to another thread inside a verb, and a signal handler can raise between any two
    calls. So one call, `dict.setdefault`, notes the thread that is inside and its frame, or
    neither. The next operation takes over from one that was cut off (inside.py). Until then the
    client stays pinned: if a process is interrupted in the instant in which an operation begins or
    ends, and then idles, a client that needs its memory may fence it. The compiled fabric has no
    such instant. Only `load` and `futex_wait` may be called outside of operations, while another
    thread closes the pool.
Sleeping on a word
    `futex_wait` reads the word again and again, after sleeps of up to 1 ms; `futex_wake` does
    nothing.
Forks
    The fabric notices a fork by Python (`os.fork`, `multiprocessing`), but not a fork by C code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from limpet.shm.endpoint.inside import calling_frame
from limpet.shm.endpoint.layout import CONTROL_NODE, POOL_CLOCK
from limpet.shm.endpoint.portable_image import Image
from limpet.shm.endpoint.portable_node import DirtyLines, Lent, Node, Word, barrier
from limpet.shm.endpoint.portable_turns import Turns
from limpet.shm.endpoint.portable_words import *  # noqa: F403
from limpet.shm.endpoint.portable_words import (
    HALF_MAX,
    WORD_MAX,
    checksum,
    contiguous,
    plain_bytes,
    raw_words,
    ssize,
    u32,
    u64,
    words_tagged,
)
from limpet.shm.endpoint.slots import DYING, FIGURES_COUNT, ROWS, STATE_BELOW, STATE_SHIFT
from limpet.shm.endpoint.states import DISOWNED, FORKED, FORMER, FORMERLY, why_failed, why_gone
from limpet.shm.errors import (
    AddressError,
    ClientError,
    CoherenceError,
    NodeFailed,
)

NODES: Final = 256
OFFSET_MASK: Final = (1 << 40) - 1
POOL_CLOCK_MS: Final = (1 << 42) - 1

_SCOPES: Final = ("foreground", "background", "control")
_COUNTERS: Final = (
    "round_trips", "reads", "writes", "atomics", "cas", "cas_lost", "bytes_read", "bytes_written",
    "lines_flushed", "fences", "looks",
)  # fmt: skip

_OPERATING: Final = (
    __file__,
    str(Path(__file__).with_name("portable_turns.py")),
    str(Path(__file__).parents[1] / "clients/client.py"),
)
"""Source files whose frames are not the operation's."""


_boot_shift_us = 0


def shift_boot_clock(shift_us: int) -> None:
    """The clock since boot is so many us ahead in this process's time namespace (pool_clock.py)."""
    global _boot_shift_us
    _boot_shift_us = shift_us


def sleep_at(places: Any, values: Any, count: int, timeout_us: int) -> int:
    """-4: this build cannot sleep at several words."""
    return -4


def wake_at(place: int) -> int:
    """None is woken, as none sleeps by `sleep_at`."""
    return 0


SLEEP_WORDS: Final = 128


def flush_features() -> frozenset[str]:
    """Cache-line instructions that can be used: none from Python."""
    return frozenset()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    while True:  # another thread may have taken the signal; this one makes no further step
        signal.pause()


def flush_mapping(mapping: Any, size: int) -> None:
    """Write the lines of a mapping's first `size` bytes back: refused, as Python cannot."""
    raise CoherenceError(
        "this build is pure Python, which cannot flush cache lines: what it writes cannot be made "
        "persistent"
    )


def _word_of(mapping: Any, offset: int) -> Word:
    """The aligned word `offset` bytes into a writable mapping."""
    view = contiguous(mapping)
    if view.readonly or not 0 <= offset <= view.nbytes - 8 or offset % 8:
        raise AddressError(f"there is no word {offset} bytes into the mapping")
    held = ctypes.c_char.from_buffer(view, offset)
    return Word(held, ctypes.addressof(held))


def buffer_load(mapping: Any, offset: int) -> int:
    """The word `offset` bytes into a mapping, for code without an endpoint: `Endpoint.load`."""
    return _word_of(mapping, offset).load()


def buffer_store(mapping: Any, offset: int, word: int) -> None:
    """Likewise `Endpoint.store`."""
    _word_of(mapping, offset).store(u64(word))


def buffer_cas(mapping: Any, offset: int, expected: int, desired: int) -> int:
    """Likewise `Endpoint.cas`; the old word."""
    return _word_of(mapping, offset).cas(u64(expected), u64(desired))


Renewal: Any = None
"""The thread that renews a lease without the interpreter: there is none in this build."""


def Watched(mapping: Any, size: int, fd: int = -1) -> memoryview:  # noqa: N802
    """The mapping as a buffer. Python code cannot survive its loss, see "Lost memory"."""
    view = contiguous(mapping)
    if view.readonly or not 1 <= size <= view.nbytes:
        raise AddressError(f"{size} bytes are not within the mapping, or are read-only")
    return view.cast("B")[:size]


def write_summed(
    endpoint: Any, addr: int, words: Any, count: int, first: bytes, second: bytes, seed: int
) -> int:
    """`write_gather`; the last word of `words` becomes the `checksum` of `second` by this seed."""
    words[count - 1] = checksum(second, seed)
    found: int = endpoint.write_gather(addr, words, count, first, second)
    return found


def post_summed(
    endpoint: Any, addr: int, words: Any, count: int, first: bytes, second: bytes, seed: int
) -> int:
    """Post `write_summed`."""
    words[count - 1] = checksum(second, seed)
    found: int = endpoint.post_gather(addr, words, count, first, second)
    return found


class Endpoint:
    """One client's view of the pool's memory nodes. verbs.pyx lists the promises of a verb."""

    __slots__ = (
        "_background", "_before", "_counted", "_dirty", "_guard", "_nodes", "_operation",
        "_outside", "_scopes", "_sent", "_states", "_told", "_turns", "_volatile", "abandoned",
        "durable", "figures", "fuse", "latency_ns", "met_loss",
    )  # fmt: skip

    hints = False
    durable: bool
    fuse: int
    _dirty: DirtyLines
    _volatile: tuple[tuple[int, int], tuple[int, int]]
    _guard: tuple[Node, int, int] | None
    latency_ns: int
    _nodes: dict[int, Node]
    _states: tuple[Node, int] | None
    _scopes: tuple[dict[str, int], ...]
    figures: list[int]
    _counted: tuple[Node, int] | None
    _before: list[int]
    _told: list[int]
    _background: int
    _outside: int
    _sent: dict[int, int]
    _operation: int
    _turns: Turns
    abandoned: Any
    met_loss: int

    def __new__(cls, *args: Any, **options: Any) -> Endpoint:
        self = super().__new__(cls)
        self._nodes = {}
        self._states = None
        self._scopes = tuple(dict.fromkeys(_COUNTERS, 0) for _ in _SCOPES)
        self.figures = [0] * FIGURES_COUNT
        self._counted = None
        self._before = []
        self._told = [0] * FIGURES_COUNT
        self._background = self._outside = 0
        self._sent = {}
        self._operation = 1
        self._turns = Turns()
        self.abandoned = None
        self.met_loss = 0
        self.fuse = 0
        self._guard = None
        self.durable = False
        self._dirty = DirtyLines()
        self._volatile = ((0, 0), (0, 0))
        self.latency_ns = 0
        return self

    def __del__(self) -> None:
        Endpoint.detach(self)

    # ---- setting up -------------------------------------------------------------------------

    def attach(
        self,
        node: int,
        mapping: Any,
        size: int,
        coherent_bytes: int | None = None,
        state: int = 0,
        fd: int = -1,
    ) -> None:
        """Map `node` to the writable buffer `mapping`, of which `size` bytes are used.

        `coherent_bytes` must be None: the whole node is hardware-coherent. Raises CoherenceError
        otherwise. The mapping cannot be closed before `detach` or `release`. `state`: as `expect`
        sets it. `fd`: the file that is mapped, if its memory can run short.
        """
        state = u64(state)
        if not 0 <= node < NODES or node in self._nodes:
            raise AddressError(f"node {node} cannot be attached: out of range or attached already")
        if coherent_bytes is not None:
            raise CoherenceError(
                f"node {node} is not hardware-coherent and this build is pure Python, which cannot "
                "flush cache lines; plain stores would stay invisible to the other clients"
            )
        view = contiguous(mapping)
        if view.readonly:
            raise BufferError(f"node {node}: the mapping is read-only")
        if not 8 <= size <= view.nbytes or ctypes.addressof(ctypes.c_char.from_buffer(view)) % 64:
            raise AddressError(f"node {node}: the mapping is too small or misaligned")
        self._nodes[node] = Node(node, mapping, size, state, fd)

    def lend(self, addr: int, size: int, writable: bool) -> Lent:
        """`size` bytes at `addr` for use without verbs: `Lent`. NodeFailed, AddressError: as of a
        verb."""
        if not size:  # may be at the very end
            return Lent(bytearray(), 0, 0, writable)
        node, offset = self._at(addr, size)
        return Lent(node.mapping, offset, size, writable)

    def watch_states(self, addr: int) -> None:
        """Take the 256 words at `addr` for the nodes' states; a node may be used as long as its
        word is the one that it was attached with."""
        node, offset = self._aligned(addr, NODES * 8)
        self._states = (node, offset >> 3)

    def guard(self, addr: int, word: int) -> int:
        """From now on a mutating verb raises ClientError unless the word at `addr` is `word`;
        `addr` 0: no more. The word must stay mapped until then."""
        if addr == 0:
            self._guard = None
        else:
            node, offset = self._aligned(addr, 8)
            self._guard = node, offset >> 3, u64(word)
        return 0

    def give_up(self, slot: int, word: int) -> bool:
        """Have the client of this slot be DYING, if it has still this state word: LIVE; False: that
        is under way. All servers look at the word, so one CAS does it; see RemoteEndpoint."""
        self.cas(slot, word, DYING << STATE_SHIFT | word & STATE_BELOW)
        return True

    def see_states(self) -> None:
        """Nothing: each verb looks at the state of its node; see RemoteEndpoint."""

    def expect(self, node: int, state: int) -> None:
        """Use an attached node's mapping as long as its state word is `state`."""
        if node not in self._nodes:
            raise AddressError(f"node {node} is not attached")
        self._nodes[node].state = u64(state)

    def expected(self, node: int) -> int:
        """The state word under which `node` may be used; 0 when it is not attached."""
        return self._nodes[node].state if node in self._nodes else 0

    def release(self, node: int) -> None:
        """Forget the mapping of one node, if it is attached."""
        if node in self._nodes:
            with self._turns.undisturbed():
                self._nodes.pop(node).release()

    def detach(self) -> None:
        """Forget every mapping; verbs raise AddressError from now on. May be called twice."""
        with self._turns.undisturbed():
            self._states = None
            self._guard = None
            self.durable = False
            self._dirty = DirtyLines()
            for node in self._nodes.values():
                node.release()
            self._nodes = {}

    # ---- checks -----------------------------------------------------------------------------

    def _at(self, addr: int, size: int) -> tuple[Node, int]:
        addr = u64(addr)
        node, offset = self._nodes.get(addr >> 40), addr & OFFSET_MASK
        if FORMER <= addr < FORMER + (NODES - 1 << 40):
            raise NodeFailed(addr >> 40 & 255, FORMERLY)
        if node is None and (state := self._state(addr >> 40)):
            raise NodeFailed(addr >> 40, why_failed(state, -1))
        if node is None or offset >= node.size:
            raise AddressError(f"the address {addr:#x} is on no memory node of this pool")
        if not 0 <= size <= node.size - offset:
            raise AddressError(f"{size} bytes at {addr:#x} reach beyond the end of the memory node")
        self._settled(node)
        if node.gone():
            raise NodeFailed(node.index, why_gone(node.index, "a truncated segment"))
        return node, offset

    def _aligned(self, addr: int, size: int) -> tuple[Node, int]:
        node, offset = self._at(addr, size)
        if offset & 7:
            raise AddressError(f"the word at {addr:#x} is not aligned to 8 bytes")
        return node, offset

    def _word(self, addr: int) -> tuple[Node, Word]:
        """The node of the word at `addr`, and the word for atomic operations."""
        node, offset = self._aligned(addr, 8)
        return node, node.word(offset)

    def _mutable(self, addr: int) -> tuple[Node, Word]:
        found = self._word(addr)
        self._note_step(addr, 8)
        self._burn()
        return found

    def _state(self, node: int) -> int | None:
        """The node's state word; None when there are no state words."""
        if self._states is None or not 0 <= node < NODES:
            return None
        table, first = self._states
        return None if table.gone() else table.words[first + node]

    def _settled(self, node: Node) -> None:
        state = self._state(node.index)
        if state is not None and state != node.state:
            raise NodeFailed(node.index, why_failed(state, node.state))

    def lost(self, node: int) -> bool:
        """Whether this process has met a truncated `node`."""
        return node in self._nodes and self._nodes[node].lost

    def our_loss(self) -> int:
        """The first node that is in service and of which this process has lost pages; -1: none."""
        return -1

    def lost_pages(self, node: int) -> list[tuple[int, int]]:
        """Offset and size of lost pages: none are known, as a poisoned one ends the process."""
        return []

    def failed(self, addr: int) -> bool:
        """Not a verb: whether a verb on this address would find its node marked as failed."""
        node = u64(addr) >> 40
        state = self._state(node)
        known = self._nodes[node].state if node in self._nodes else 0
        return node < NODES - 1 and state is not None and state != known

    def _scope(self, node: Node) -> dict[str, int]:
        # a verb on the control segment is no verb on a memory node: never in the foreground
        return self._scopes[2 if node.index == NODES - 1 else self._background]

    def _scope_at(self, addr: int) -> dict[str, int]:
        return self._scopes[2 if u64(addr) >> 40 == NODES - 1 else self._background]

    def _message(self, addr: int) -> None:
        """Count the message of this operation to the node of `addr`, if it is not counted yet."""
        node = u64(addr) >> 40
        if self._sent.get(node) != self._operation:
            self._sent[node] = self._operation
            self._scopes[2 if node == NODES - 1 else 1]["looks"] += 1

    def _burn(self) -> None:
        if self._guard is not None:
            node, index, word = self._guard
            # ORDER: checked right before the step that it guards, and not remembered.
            if node.words[index] != word:
                raise ClientError(FORKED if self._turns.forked else DISOWNED)
        if self.fuse > 0:
            self.fuse -= 1
            if self.fuse == 0:
                _die()

    # ---- durability -------------------------------------------------------------------------

    def make_durable(
        self, node_from: int, node_end: int, control_from: int, control_end: int
    ) -> int:
        """From now on note the lines that mutating verbs change, for `persist`.

        But not those at these offsets of memory nodes, and of the control segment: what is there is
        made anew after a power cut. Raises CoherenceError unless the class can write lines back.
        """
        if type(self).flush is Endpoint.flush:
            raise CoherenceError(
                "this build is pure Python, which cannot flush cache lines: what it writes cannot "
                "be made persistent"
            )
        self._volatile = ((node_from, node_end), (control_from, control_end))
        self.durable = True
        return 0

    @property
    def noted(self) -> int:
        """How many ranges of lines `persist` has to write back."""
        return len(self._dirty.ranges) + self._dirty.unfenced

    def _note_step(self, addr: int, size: int) -> None:
        if self.durable:
            first, end = self._volatile[addr >> 40 == NODES - 1]
            if not first <= addr & OFFSET_MASK < end:
                self.dirty(addr, size)

    def dirty(self, addr: int, size: int) -> int:
        """Note lines that this client has read, and that their writer may not have written back.

        Of a durable pool: what this client returns, or builds on them, needs them after a cut.
        """
        addr, size = u64(addr), u64(size)
        node = self._nodes.get(addr >> 40)
        if not self.durable or node is None or not 0 < size <= node.size - (addr & OFFSET_MASK):
            return 0
        self._dirty.note(addr, size, self.flush)
        return 0

    def flush(self, addr: int, size: int) -> int:
        """Begin to write the lines of these bytes back. `persist` calls it, and waits for it."""
        return 0

    def persist(self) -> int:
        """Write back all lines that were noted; they survive a power cut when this returns."""
        self._dirty.write_back(self.flush)
        if self._dirty.unfenced:
            self._scopes[self._background]["fences"] += 1
            self._dirty.unfenced = False
        return 0

    # ---- verbs ------------------------------------------------------------------------------

    def _read(self, addr: int, size: int) -> bytes:
        node, offset = self._at(addr, size)
        data = node.copy_out(offset, size)
        self._settled(node)
        self._scope(node)["reads"] += 1
        self._scope(node)["bytes_read"] += size
        self._scope(node)["looks"] += 1
        return data

    def _write(self, addr: int, data: bytes) -> None:
        node, offset = self._at(addr, len(data))
        self._note_step(addr, len(data))
        if self.fuse > 0 or self._guard is not None:
            done = 0
            while done < len(data):
                self._burn()
                step = 8 - (offset + done & 7)
                node.copy_in(offset + done, data[done : done + step])
                done += step
        else:
            node.copy_in(offset, data)
        self._settled(node)
        self._scope(node)["writes"] += 1
        self._scope(node)["bytes_written"] += len(data)

    def read(self, addr: int, size: int) -> bytes:
        """`size` bytes from `addr`; aligned words of it are whole, the rest is not."""
        return self._read(addr, ssize(size))

    def read_into(self, addr: int, buffer: Any) -> int:
        """Fill the writable `buffer` from `addr`."""
        view = contiguous(buffer)
        if view.readonly:
            raise BufferError("the buffer is read-only")
        data = self._read(addr, view.nbytes)
        if data:
            view.cast("B")[:] = data
        return 0

    def read_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        """Fill `count` of `words`, from `start` on.

        Two aligned words are read in their order: the second one no earlier than the first."""
        addr, raw, count, start = u64(addr), raw_words(words), ssize(count), ssize(start)
        if count < 1 or start < 0 or count > (len(raw) >> 3) - start:
            raise AddressError(
                f"cannot read {count} words into a buffer of {len(raw) >> 3} from word {start} on"
            )
        raw[start * 8 : (start + count) * 8] = self._read(addr, count * 8)
        return 0

    def read_tagged(self, first: int, second: int, words: Any, start: int, tag: int) -> int:
        """Fill 32 of `words`, from `start` on: 16 from the address `first`, 16 from `second`; two
        `read_words`. Which of these 32 have `tag` in bits 56-63: as bits."""
        self._unlooked(first, self.read_words, first, words, 16, start)
        self.read_words(second, words, 16, start + 16)
        return words_tagged(words, start, 32, tag)

    def image(self, size: int, in_place: bool = False) -> Image:
        """A place for `size` bytes, a multiple of 8, that are read and looked at (see `Image`)."""
        return Image(self, size, in_place)

    def prefetch(self, addr: int, size: int, writes: bool = False) -> None:
        """A hint, not a verb; pure Python cannot prefetch."""

    def prefetch_target(self, addr: int, start: int, size: int) -> None:
        """A hint, not a verb, as `prefetch`."""

    def write(self, addr: int, data: Any) -> int:
        """Write the bytes-like `data` to `addr`; a kill can cut it between any two words."""
        self._write(addr, contiguous(data).tobytes())
        return 0

    def write_gather(self, addr: int, words: Any, count: int, first: bytes, second: bytes) -> int:
        """One write from a gather list: `count` words, then `first`, then `second`.

        `second` begins at the next 8-byte boundary after `first`; the gap is written as zeros.
        """
        addr, raw, count = u64(addr), raw_words(words), ssize(count)
        first, second = plain_bytes(first), plain_bytes(second)
        if not 0 <= count * 8 <= len(raw) or addr & 7:
            raise AddressError(f"cannot gather {count} words to {addr:#x}")
        gap = bytes(-len(first) & 7)
        self._write(addr, bytes(raw[: count * 8]) + first + gap + second)
        return 0

    def write_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        """Write `count` of `words`, from `start` on."""
        addr, raw, count, start = u64(addr), raw_words(words), ssize(count), ssize(start)
        if count < 1 or start < 0 or count > (len(raw) >> 3) - start or addr & 7:
            raise AddressError(
                f"cannot write {count} words, from word {start} on of {len(raw) >> 3}, to {addr:#x}"
            )
        self._write(addr, bytes(raw[start * 8 : (start + count) * 8]))
        return 0

    def write_back(self, addr: int, size: int) -> int:
        """Nothing to do: all memory of this fabric is hardware-coherent."""
        return 0

    def invalidate(self, addr: int, size: int) -> int:
        """Nothing to do: all memory of this fabric is hardware-coherent."""
        return 0

    def load(self, addr: int) -> int:
        """The word at `addr`."""
        node, value = self._seen(addr)
        self._scope(node)["reads"] += 1
        self._scope(node)["bytes_read"] += 8
        self._scope(node)["looks"] += 1
        return value

    def _seen(self, addr: int) -> tuple[Node, int]:
        """The node of the word at `addr`, and the word, for a thread that need not be in an
        operation: another one may detach the node at any time."""
        with self._turns.undisturbed():
            try:
                node, word = self._word(addr)
                value = word.load()
                self._settled(node)
            except ValueError:
                self._word(addr)  # raises if a signal handler has detached the node meanwhile
                raise
        return node, value

    @property
    def gathers(self) -> bool:
        """As of the compiled endpoint."""
        return False

    def load_all(self, addrs: Iterable[int]) -> list[int]:
        """As of the compiled endpoint."""
        return [self.load(addr) for addr in addrs]

    def read_between(self, places: Sequence[int], size: int) -> tuple[list[int], bytes, list[int]]:
        """As of the compiled endpoint."""
        before = self.load_all(places)
        data = self.read(places[0], size)
        return before, data, self.load_all(places)

    def store(self, addr: int, value: int) -> int:
        """Set the word at `addr`."""
        value = u64(value)
        node, word = self._mutable(addr)
        word.store(value)
        self._settled(node)
        self._scope(node)["writes"] += 1
        self._scope(node)["bytes_written"] += 8
        return 0

    def store_two(self, addr: int, value: int, then_addr: int, then_value: int) -> int:
        """Two `store`, in this order."""
        self.store(addr, value)
        return self.store(then_addr, then_value)

    def swap(self, addr: int, value: int) -> int:
        """Set the word at `addr`; its old value. A full barrier."""
        value = u64(value)
        node, word = self._mutable(addr)
        old = word.exchange(value)
        self._settled(node)
        self._scope(node)["atomics"] += 1
        self._scope(node)["looks"] += 1
        return old

    def pin(
        self, pin_at: int, pin: int, epoch_at: int, epoch: int, drops_at: int, drops: int
    ) -> bool:
        """If the word at `epoch_at` is `epoch`: set the word at `pin_at` to `pin`, by `swap`; then
        look whether the word at `drops_at` is `drops`. Whether both were so."""
        scope = self._scope_at(pin_at)
        looks = scope["looks"]
        same = self.load(epoch_at) == epoch
        if same:
            self.swap(pin_at, pin)
            same = self.load(drops_at) == drops
        scope["looks"] = looks + 1
        return same

    def glance(self, stamp_at: int, slot: int, word: int) -> int:
        """Counted with the control words: the word at `stamp_at`, if the one at `slot`, read after
        it, is `word`; else 0."""
        scope, self._background = self._background, 2
        looks = self._scopes[2]["looks"]
        try:
            stamp = self.load(stamp_at)
            stamp = stamp if self.load(slot) == word else 0
            self._scopes[2]["looks"] = looks + 1
            return stamp
        finally:
            self._background = scope

    def stands(
        self,
        slot: int,
        word: int,
        stamp_at: int,
        stamp: int,
        entry: int,
        pointer: int,
        drops_at: int,
        drops: int,
    ) -> bool:
        """Counted with the control words: whether the words at these four addresses, read in this
        order, are those."""
        scope, self._background = self._background, 2
        looks = self._scopes[2]["looks"]
        try:
            same = (
                self.load(slot) == word
                and self.load(stamp_at) == stamp
                and self.load(entry) == pointer
                and self.load(drops_at) == drops
            )
            self._scopes[2]["looks"] = looks + 1
            return same
        finally:
            self._background = scope

    def cas(self, addr: int, expected: int, desired: int) -> int:
        """Set the word at `addr` to `desired` if it is `expected`; its old value."""
        expected, desired = u64(expected), u64(desired)
        node, word = self._mutable(addr)
        old = word.cas(expected, desired)
        self._settled(node)
        self._scope(node)["cas"] += 1
        self._scope(node)["cas_lost"] += old != expected
        self._scope(node)["looks"] += 1
        return old

    def faa(self, addr: int, delta: int) -> int:
        """Add `delta`, modulo 2**64, to the word at `addr`; its old value."""
        delta = u64(delta)
        node, word = self._mutable(addr)
        old = word.fetch_add(delta)
        self._settled(node)
        self._scope(node)["atomics"] += 1
        self._scope(node)["looks"] += 1
        return old

    def fetch_or(self, addr: int, bits: int) -> int:
        """Set `bits` in the word at `addr`; its old value."""
        bits = u64(bits)
        node, word = self._mutable(addr)
        old = word.fetch_or(bits)
        self._settled(node)
        self._scope(node)["atomics"] += 1
        self._scope(node)["looks"] += 1
        return old

    def mcas(self, addr: int, compare: int, swap: int, compare_mask: int, swap_mask: int) -> int:
        """Masked CAS as RDMA NICs define it; the old value of the word.

        If the word equals `compare` in the bits of `compare_mask`, its bits in `swap_mask` are
        replaced by those of `swap`.
        """
        compare, swap = u64(compare), u64(swap)
        compare_mask, swap_mask = u64(compare_mask), u64(swap_mask)
        node, word = self._mutable(addr)
        old = word.load()
        while not (old ^ compare) & compare_mask:
            seen = word.cas(old, old & ~swap_mask & WORD_MAX | swap & swap_mask)
            if seen == old:
                break
            old = seen
        barrier()
        self._settled(node)
        self._scope(node)["cas"] += 1
        self._scope(node)["cas_lost"] += (old ^ compare) & compare_mask != 0
        self._scope(node)["looks"] += 1
        return old

    # ---- posted verbs -------------------------------------------------------------------------
    # Each is its verb, which is not counted as a look.

    def _unlooked(self, addr: int, verb: Any, *arguments: Any) -> Any:
        """Do a verb on `addr`, without counting a look."""
        scope = self._scope_at(addr)
        looks = scope["looks"]
        found = verb(*arguments)
        scope["looks"] = looks
        return found

    def post_read(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        """Post `read_words`."""
        self._unlooked(addr, self.read_words, addr, words, count, start)
        return 0

    def post_tagged(self, first: int, second: int, words: Any, start: int, tag: int) -> int:
        """Post `read_tagged`; the ticket of its result."""
        found: int = self._unlooked(first, self.read_tagged, first, second, words, start, tag)
        return found

    def post_image(self, image: Image, addr: int, count: int) -> int:
        """Post a read of `count` words into an image. `Image.post` calls it."""
        return self.post_read(addr, image.words, count)

    def post_write(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        """Post `write_words`. The words may be used for something else at once."""
        return self.write_words(addr, words, count, start)

    def post_gather(self, addr: int, words: Any, count: int, first: bytes, second: bytes) -> int:
        """Post `write_gather`. The words may be used for something else at once."""
        return self.write_gather(addr, words, count, first, second)

    def post_load(self, addr: int) -> int:
        """Post `load`; the ticket of its result."""
        found: int = self._unlooked(addr, self.load, addr)
        return found

    def post_swap(self, addr: int, value: int) -> int:
        """Post `swap`; the ticket of its result."""
        found: int = self._unlooked(addr, self.swap, addr, value)
        return found

    def post_cas(self, addr: int, expected: int, desired: int) -> int:
        """Post `cas`; the ticket of its result."""
        found: int = self._unlooked(addr, self.cas, addr, expected, desired)
        return found

    def post_cas_if(self, first: int, wanted: int, addr: int, expected: int, desired: int) -> int:
        """Post `cas`, to be done only if the verb with the ticket `first`, posted in this phase on
        the same node, has the result `wanted`; the ticket of its result.

        The result is another word than `expected` if it was not done.
        """
        if first != wanted:
            return ~u64(expected) & WORD_MAX
        return self.post_cas(addr, expected, desired)

    def post_gather_if(
        self, first: int, wanted: int, addr: int, words: Any, count: int, one: bytes, two: bytes
    ) -> int:
        """Post `write_gather`, to be done only if the verb with the ticket `first`, posted in this
        phase on the same node, has the result `wanted`."""
        return self.post_gather(addr, words, count, one, two) if first == wanted else 0

    def post_faa(self, addr: int, delta: int) -> int:
        """Post `faa`; the ticket of its result."""
        found: int = self._unlooked(addr, self.faa, addr, delta)
        return found

    def post_fetch_or(self, addr: int, bits: int) -> int:
        """Post `fetch_or`; the ticket of its result."""
        found: int = self._unlooked(addr, self.fetch_or, addr, bits)
        return found

    def post_mcas(
        self, addr: int, compare: int, swap: int, compare_mask: int, swap_mask: int
    ) -> int:
        """Post `mcas`; the ticket of its result."""
        found: int = self._unlooked(addr, self.mcas, addr, compare, swap, compare_mask, swap_mask)
        return found

    def post_set(self, addr: int, bits: int) -> int:
        """Post `fetch_or`, without a result. If the node is marked as failed, it raises here; if it
        is lost after that, `wait` does not tell."""
        self._unlooked(addr, self.fetch_or, addr, bits)
        return 0

    # ---- the background message of an operation -----------------------------------------------

    def _send(self, addr: int, verb: Any, *arguments: Any) -> int:
        """Do a verb on `addr`, counted as sent."""
        scope, self._background = self._background, 1
        try:
            self._unlooked(addr, verb, addr, *arguments)
        finally:
            self._background = scope
        self._message(addr)
        return 0

    def send_clear(self, addr: int, bits: int) -> int:
        """Send the clearing of these bits of a word."""
        return self._send(addr, self.mcas, 0, 0, 0, bits)

    def send_store(self, addr: int, value: int) -> int:
        """Send `store`."""
        return self._send(addr, self.store, value)

    def send_store_two(self, addr: int, value: int, then_addr: int, then_value: int) -> int:
        """Send two `store`, in this order."""
        self.send_store(addr, value)
        return self.send_store(then_addr, then_value)

    def send_words(self, addr: int, words: Any, count: int) -> int:
        """Send `write_words`. The words may be used for something else at once."""
        return self._send(addr, self.write_words, words, count)

    def result(self, ticket: int) -> int:
        """The result of a posted verb, after the `wait` of its phase."""
        return ticket

    def fetch(self, addr: int, size: int) -> bytes:
        """A phase of its own: `read`, and `wait`."""
        found: bytes = self._unlooked(addr, self.read, addr, size)
        self.wait()
        return found

    def wait(self) -> int:
        """End a phase: the verbs since the last `wait` were one round trip, FIFO per node."""
        self._scopes[self._background]["round_trips"] += 1
        if self.latency_ns and not self._background:
            end = time.perf_counter_ns() + self.latency_ns
            while time.perf_counter_ns() < end:
                pass
        return 0

    def pause(self, attempt: int) -> int:
        """Back off before try `attempt` (0, 1, 2...): yield, then sleep up to 1 ms.

        Lets other threads run, and lets a signal handler raise.
        """
        attempt = u64(attempt)
        time.sleep(0 if attempt < 24 else min((attempt - 23) * 20e-6, 1e-3))
        return 0

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        """Sleep while the low half of the word at `addr` is `expected`, at most `timeout_us`.

        1: it differs; 0: the time is over. To be called outside of an operation, since other
        threads run meanwhile.
        """
        expected, timeout_us = u32(expected), u64(timeout_us)
        end = time.monotonic_ns() + timeout_us * 1000
        attempt = 0
        while True:
            if self._seen(addr)[1] & HALF_MAX != expected:
                return 1
            left = end - time.monotonic_ns()
            if left <= 0:
                return 0
            attempt += 1
            time.sleep(min(left, attempt * 20_000, 1_000_000) / 1e9)

    def futex_wake(self, addr: int, count: int) -> int:
        """How many were woken: none, since no waiter sleeps for longer than 1 ms."""
        self._seen(addr)
        return 0

    def place_of(self, addr: int) -> int:
        """0: the words are to be looked at instead (`sleep_at`)."""
        self._seen(addr)
        return 0

    def microseconds(self) -> int:
        """The time of the pool's clock (pool_clock.py), in us since 1970."""
        control = self._nodes.get(CONTROL_NODE)
        at = (POOL_CLOCK & OFFSET_MASK) >> 3
        word = 0
        # ValueError: a signal handler has detached it meanwhile
        with contextlib.suppress(ValueError), self._turns.undisturbed():
            if control is not None and len(control.words) > at and not control.gone():
                word = control.words[at]
        if not word:
            return time.time_ns() // 1000
        since_us = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
        return (word & POOL_CLOCK_MS) * 1000 + since_us - _boot_shift_us

    # ---- one operation at a time --------------------------------------------------------------

    def begin(self) -> bool:
        """Enter an operation. True: this is a forked child that needs an identity of its own.

        Waits while another thread is inside; raises ReentrantUse when this thread is.
        """
        if self._turns.forked:
            return True
        claim = (threading.get_ident(), calling_frame(_OPERATING))
        self._turns.enter(claim, self._end_abandoned)
        self._outside = self._background
        self._operation += 1
        return False

    def _end_abandoned(self) -> None:
        """End the operation that was cut off, and the accounting scope that it has set."""
        if self.abandoned is not None:
            self.abandoned()
        self._background = self._outside

    @property
    def frame(self) -> Any:
        """The frame of the running operation; None: none runs."""
        return self._turns.frame

    @frame.setter
    def frame(self, frame: Any) -> None:
        """Do nothing: `begin` has noted the frame."""

    def end(self) -> int:
        """Leave the operation that `begin` entered, and the accounting scope that it has set."""
        self._background = self._outside
        try:
            if self._counted is not None:
                self._publish()
        finally:  # a signal handler may raise meanwhile
            self._turns.leave()
        return 0

    def begin_last(self) -> bool:
        """Enter an operation without waiting, to end the handle; False: another thread is inside.

        An operation of this thread that a signal handler has cut off is over.
        """
        return self._turns.enter_last((threading.get_ident(), calling_frame(_OPERATING)))

    def begin_idle(self) -> bool:
        """Enter an operation, if no thread is inside; whether none was."""
        return self._turns.enter_idle((threading.get_ident(), calling_frame(_OPERATING)))

    def adopted(self) -> None:
        """The forked child has an identity now: `begin` works again."""
        self._background = self._outside = 0
        self._turns.begin_anew()

    # ---- accounting ---------------------------------------------------------------------------

    def background(self, on: bool) -> bool:
        """Count the verbs from here on as background work, or not; the earlier setting."""
        before, self._background = self._background, int(bool(on))
        return before != 0

    def counters(self, scope: str = "foreground") -> dict[str, int]:
        """Counts since the endpoint was made: verbs, round trips, exchanges, bytes."""
        found = dict(self._scopes[_SCOPES.index(scope)])
        found["exchanges"] = found["round_trips"] + found.pop("looks")
        return found

    def reset_counters(self) -> None:
        """Set every count to 0."""
        held = self._counts()[:ROWS]
        for scope in self._scopes:
            scope.update(dict.fromkeys(_COUNTERS, 0))
        self._before[:ROWS] = [a + b for a, b in zip(self._before, held, strict=False)]
        self._told[:ROWS] = [a - b for a, b in zip(self._told, held, strict=False)]

    def count_at(self, addr: int) -> None:
        """From now on count on in the words at `addr`, as slots.py has them, whenever an operation
        ends; 0: in private memory. What `counters` says goes on. They are changed without verbs."""
        self._counted = None
        if addr:
            node, offset = self._aligned(addr, 8 * FIGURES_COUNT)
            there = node.words[offset >> 3 : (offset >> 3) + FIGURES_COUNT].tolist()
            self._before = [a - b for a, b in zip(there, self._told, strict=True)]
            self._counted = node, offset >> 3

    def _counts(self) -> list[int]:
        """Every count, in the order of slots.py."""
        verbs = [count for scope in self._scopes for count in scope.values()]
        return verbs + self.figures[ROWS:]

    def _publish(self) -> None:
        """Show the counts to others. Memory that is lost is left alone: the next verb says so."""
        if self._counted is None or self._counted[0].gone():
            return
        node, at = self._counted
        self._told = self._counts()
        counts = zip(self._before, self._told, strict=True)
        shown = array("Q", [before + count & WORD_MAX for before, count in counts])
        with contextlib.suppress(ValueError):  # a signal handler has detached it meanwhile
            node.words[at : at + FIGURES_COUNT] = memoryview(shown)
