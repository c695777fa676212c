"""The hooked fabric: the `Endpoint` of this build with a hook before and after each verb.

Stopping a client at a step, cutting it off, killing it at a crash point and simulating it have the
same form: an action before a verb. So each is a few lines in a class that names the verbs that it
hooks:

    class CountingEndpoint(HookedEndpoint, verbs=MUTATING):
        def on_verb(self, verb, addr, words):
            self.count += 1
            return words

Only these verbs are overridden; the others are the fabric's own, at their full speed. The code that
runs is the code that ships, compiled or not.

A verb on several words is not atomic: a kill, or another client's verb, can fall between any two of
them. So `on_verb` returns how many of them to do at once, and is called again for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from limpet.shm.endpoint.fabric import Endpoint

ATOMICS: Final = ("store", "swap", "cas", "faa", "fetch_or", "mcas")
"""Verbs that change one word."""
WRITES: Final = ("write", "write_words", "write_gather")
"""Verbs that change several words."""
COPIES: Final = ("read", "read_into", "read_words")
"""Verbs that read several words."""
READS: Final = ("load", *COPIES)
MUTATING: Final = (*ATOMICS, *WRITES)
"""The verbs whose words are the steps of `Endpoint.fuse`."""
WAITS: Final = ("wait", "futex_wait", "futex_wake")


class HookedEndpoint(Endpoint):
    """An Endpoint whose subclasses hook the verbs that they name. Only subclasses are used."""

    def __init_subclass__(cls, *, verbs: Iterable[str] = (), **options: Any) -> None:
        super().__init_subclass__(**options)
        for verb in verbs:
            setattr(cls, verb, vars(_Verbs)[verb])

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        """Called before a verb on so many words; how many of them to do now, at least 1.

        An exception that it raises comes out of the verb.
        """
        return words

    def on_done(self, verb: str, addr: int, words: int, value: int) -> None:
        """Called after the verb, with the number of words done or, for a compare-and-swap, whether
        it changed the word. `value`: the word that was read or written; 0 for several words."""


def words_of(addr: int, size: int) -> int:
    """How many aligned words the `size` bytes at `addr` touch; at least 1."""
    return max(1, (addr + size + 7 >> 3) - (addr >> 3))


def size_of(addr: int, words: int) -> int:
    """Bytes from `addr` to the end of the aligned word `words - 1` after its own."""
    return 8 * words - (addr & 7)


class _Verbs(HookedEndpoint):
    """Each verb with its hooks, from which `HookedEndpoint` takes the methods."""

    # ---- one word -------------------------------------------------------------------------------

    def load(self, addr: int) -> int:
        self.on_verb("load", addr, 1)
        value = Endpoint.load(self, addr)
        self.on_done("load", addr, 1, value)
        return value

    def store(self, addr: int, value: int) -> int:
        self.on_verb("store", addr, 1)
        Endpoint.store(self, addr, value)
        self.on_done("store", addr, 1, value)
        return 0

    def swap(self, addr: int, value: int) -> int:
        self.on_verb("swap", addr, 1)
        old = Endpoint.swap(self, addr, value)
        self.on_done("swap", addr, 1, value)
        return old

    def cas(self, addr: int, expected: int, desired: int) -> int:
        self.on_verb("cas", addr, 1)
        old = Endpoint.cas(self, addr, expected, desired)
        self.on_done("cas", addr, old == expected, desired)
        return old

    def faa(self, addr: int, delta: int) -> int:
        self.on_verb("faa", addr, 1)
        old = Endpoint.faa(self, addr, delta)
        self.on_done("faa", addr, 1, delta)
        return old

    def fetch_or(self, addr: int, bits: int) -> int:
        self.on_verb("fetch_or", addr, 1)
        old = Endpoint.fetch_or(self, addr, bits)
        self.on_done("fetch_or", addr, 1, bits)
        return old

    def mcas(self, addr: int, compare: int, swap: int, compare_mask: int, swap_mask: int) -> int:
        self.on_verb("mcas", addr, 1)
        old = Endpoint.mcas(self, addr, compare, swap, compare_mask, swap_mask)
        self.on_done("mcas", addr, (old ^ compare) & compare_mask == 0, swap_mask)
        return old

    # ---- several words --------------------------------------------------------------------------

    def read(self, addr: int, size: int) -> bytes:
        data = b""
        while True:
            left = size - len(data)
            at = addr + len(data)
            words = words_of(at, left)
            part = self.on_verb("read", at, words)
            rest = Endpoint.read(self, at, left if part >= words else size_of(at, part))
            self.on_done("read", at, part, 0)
            data = data + rest if data else rest
            if part >= words:
                return data

    def read_into(self, addr: int, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        done = 0
        while True:
            at, left = addr + done, len(target) - done
            words = words_of(at, left)
            part = self.on_verb("read_into", at, words)
            size = left if part >= words else size_of(at, part)
            Endpoint.read_into(self, at, target[done : done + size])
            self.on_done("read_into", at, part, 0)
            done += size
            if part >= words:
                return 0

    def read_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        while True:
            part = self.on_verb("read_words", addr, count)
            Endpoint.read_words(self, addr, words, min(part, count), start)
            self.on_done("read_words", addr, part, 0)
            if part >= count:
                return 0
            addr, count, start = addr + 8 * part, count - part, start + part

    def write(self, addr: int, data: Any) -> int:
        view = memoryview(data).cast("B")
        return _write(
            self, "write", addr, view, self.on_verb("write", addr, words_of(addr, len(view)))
        )

    def write_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        while True:
            part = self.on_verb("write_words", addr, count)
            Endpoint.write_words(self, addr, words, min(part, count), start)
            self.on_done("write_words", addr, part, 0)
            if part >= count:
                return 0
            addr, count, start = addr + 8 * part, count - part, start + part

    def write_gather(self, addr: int, words: Any, count: int, first: bytes, second: bytes) -> int:
        total = words_of(addr, 8 * count + len(first) + (-len(first) & 7) + len(second))
        part = self.on_verb("write_gather", addr, total)
        if part >= total:
            Endpoint.write_gather(self, addr, words, count, first, second)
            self.on_done("write_gather", addr, part, 0)
            return 0
        head = bytes(memoryview(words).cast("B")[: 8 * count])
        whole = head + first + bytes(-len(first) & 7) + second
        return _write(self, "write_gather", addr, memoryview(whole), part)

    # ---- time -----------------------------------------------------------------------------------

    def wait(self) -> int:
        self.on_verb("wait", 0, 1)
        Endpoint.wait(self)
        self.on_done("wait", 0, 1, 0)
        return 0

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        self.on_verb("futex_wait", addr, 1)
        found = Endpoint.futex_wait(self, addr, expected, timeout_us)
        self.on_done("futex_wait", addr, 1, found)
        return found

    def futex_wake(self, addr: int, count: int) -> int:
        self.on_verb("futex_wake", addr, 1)
        woken = Endpoint.futex_wake(self, addr, count)
        self.on_done("futex_wake", addr, 1, woken)
        return woken


def _write(endpoint: HookedEndpoint, verb: str, addr: int, data: memoryview, part: int) -> int:
    """Write, the first `part` words at once, and ask before the others."""
    while True:
        words = words_of(addr, len(data))
        size = len(data) if part >= words else size_of(addr, part)
        Endpoint.write(endpoint, addr, data[:size])
        endpoint.on_done(verb, addr, part, 0)
        if part >= words:
            return 0
        addr, data = addr + size, data[size:]
        part = endpoint.on_verb(verb, addr, words_of(addr, len(data)))
