"""Gets that are met on the way: what happens between two steps of a reader."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final

import pytest

import limpet
from kit.processes import child
from limpet.shm.endpoint.hooked import READS, HookedEndpoint
from limpet.shm.endpoint.slots import INCARNATION_BITS

KEY: Final = b"k"
CAPACITY: Final = 16
PIECE: Final = 40
"""Words of a read that are one step."""


class ReadingEndpoint(HookedEndpoint, verbs=READS):
    """Calls `visit` before each step of a get."""

    def __init__(self) -> None:
        self.visit: Callable[[int], object] | None = None
        self.steps = 0
        self.looks = 0

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if self.visit is not None:
            visit, self.visit = self.visit, None
            self.steps += 1
            visit(addr)
            self.visit = visit
        return min(words, PIECE)


class DropsAreNotRead(ReadingEndpoint):
    """Known-bad: nobody looks whether the store was dropped."""

    def stands(self, *rest: int) -> bool:
        return super().stands(*rest[:6], *rest[4:6])


class KeyTable:
    """A store with a key, a reader whose gets are met on the way, and a writer that is another
    client."""

    def __init__(
        self, writing: Any, kind: str, pools: Any, endpoint: type[ReadingEndpoint]
    ) -> None:
        self.kind = kind
        self.writing = writing
        self.pool_class: Any = type("ReadingPool", (limpet.Pool,), {"endpoint_class": endpoint})
        self.reading = pools.keep(self.pool_class.open(writing.url))
        self.writer = writing.store(kind, name="s", capacity=CAPACITY)
        self.reader = self.reading.store(kind, name="s")
        self.number = 0
        self.had: set[bytes | None] = set()
        """The values of the key since the get began."""

    def value(self) -> bytes:
        """The value that the key has now."""
        raise NotImplementedError

    def put(self) -> None:
        self.number += 1
        self.writer.put(KEY, self.value())
        self.had.add(self.value())

    def delete(self) -> None:
        self.writer.delete(KEY)
        self.had.add(None)

    def insert_anew(self) -> None:
        self.delete()
        self.put()

    def disturbed(self, step: int, disturb: Callable[[], object]) -> Any:
        """The result of a get that is disturbed before this step."""
        endpoint = self.reading.endpoint
        endpoint.steps = endpoint.looks = 0
        self.had = {self.value()}

        def visit(addr: int) -> None:
            if endpoint.steps == step:
                disturb()

        endpoint.visit = visit
        try:
            return self.reader.get(KEY)
        finally:
            endpoint.visit = None

    def stopped(self, step: int, write: Callable[[], object]) -> bytes:
        """The result of a get of another process, which is stopped before this step while `write`
        is called, and then goes on where it was."""

        def read() -> bytes:
            pool = self.pool_class.open(self.writing.url)
            store = pool.store(self.kind, name="s")
            endpoint = pool.endpoint
            store.get(KEY)  # with replicas, the first get looks at the view, with a pin
            endpoint.visit = lambda addr: (
                endpoint.steps == step and os.kill(os.getpid(), signal.SIGSTOP)
            )
            found = bytes(store.get(KEY))
            endpoint.visit = None
            pool.close()
            return found

        with child(read=read) as reader:
            reader.send("read")
            assert os.WIFSTOPPED(os.waitpid(reader.pid, os.WUNTRACED)[1])
            write()
            os.kill(reader.pid, signal.SIGCONT)
            return bytes(reader.answer())


def is_told_that_it_was_declared_dead(pools: Any, kind: str) -> None:
    """A client whose gets have no pin."""
    pool = pools(multi_host=True)
    other = pools.again(pool)
    store = other.store(kind, name="s", capacity=CAPACITY)
    store.put(KEY, b"v")
    assert store.get(KEY) == b"v"
    pool.membership.recover(other.client_id >> INCARNATION_BITS, other.client.word)
    for key in (KEY, b"none"):
        with pytest.raises(limpet.ClientError):
            store.get(key)


def has_pins_without_coherence(pools: Any, kind: str) -> None:
    """A get of a store in memory that is not hardware-coherent."""
    store = pools(coherent=False, coherent_bytes=1 << 20).store(kind, name="s", capacity=CAPACITY)
    store.put(KEY, b"v")
    before = store.endpoint.counters("control")["atomics"]
    assert store.get(KEY) == b"v"
    assert store.endpoint.counters("control")["atomics"] > before
