"""A kind of store of one's own, made of the pieces that limpet's stores are made of.

The store `tiny` is a hash table of fixed size for keys and values of up to 7 bytes, so each is one
word of shared memory. That makes it simple: a key's slot is claimed by one compare-and-swap and
stays its own; a put is a compare-and-swap of the value's word, a delete a swap to 0. A process that
is killed has made that step, or not; there is nothing to repair.

Then writers use it while they are killed, and its values are compared with those that they noted.

    python examples/own_store.py --seconds 3
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import limpet
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.states import former
from limpet.shm.parameters import check_whole
from limpet.stores.core.base import Store, as_bytes
from limpet.stores.core.status import DONE, EXISTS, INSERT, MISSING, UPDATE
from limpet.stores.registry import register

LENGTH_MAX = 7
WORD = 8
SLOT = 2 * WORD  # the word of the key, then that of its value; 0: there is none
WRITERS = 3


@dataclasses.dataclass(frozen=True)
class TinyParameters:
    """The store's parameters in the pool's catalogue. `capacity`: keys that it ever has."""

    capacity: int

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity, 1, 1 << 20)

    @classmethod
    def for_pool(cls, pool: Any, layout: Any, *, capacity: int = 1000) -> TinyParameters:
        return cls(capacity)


class Tiny(Store):
    """The store, in a region of memory node 0 with the store's name."""

    Parameters = TinyParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: TinyParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.slots = parameters.capacity
        self.table = pool.regions.attach(0, name, parameters.capacity * SLOT)

    @staticmethod
    def make(pool: Any, name: str, parameters: TinyParameters) -> None:
        pool.regions.obtain(0, name, parameters.capacity * SLOT)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: TinyParameters) -> None:
        with contextlib.suppress(limpet.NodeFailed):  # then the region is gone with its node
            pool.regions.discard(0, name)

    def replaced(self, node: int) -> None:
        self.table = former(self.table, node)  # from now on it raises NodeFailed

    def _find(self, key: int, claim: bool) -> int:
        """Address of the word of the key's value; 0: the key has no slot. In an operation."""
        first = hash64(key.to_bytes(WORD, "little"))
        for number in range(self.slots):
            at = self.table + (first + number) % self.slots * SLOT
            there = self.endpoint.load(at)
            self.endpoint.wait()  # the end of a round trip: the next step depends on it
            if not there and claim:
                there = self.endpoint.cas(at, 0, key) or key
                self.endpoint.wait()
            if there == key or not there:
                return at + WORD if there else 0
        if claim:
            raise limpet.StoreFull(f"{self.name}: all {self.slots} slots have keys")
        return 0

    def get(self, key: Any, default: Any = None) -> Any:
        word = word_of("key", key, limpet.KeyTooLarge)
        self.operations += 1
        with self.client:
            self.require_there()
            at = self._find(word, False)
            value = self.endpoint.load(at) if at else 0
            self.endpoint.wait()
        return bytes_of(value) if value else default

    def _write(self, key: Any, value: Any, mode: int) -> int:
        word = word_of("key", key, limpet.KeyTooLarge)
        desired = word_of("value", value, limpet.ValueTooLarge)
        self.operations += 1
        with self.client:
            self.require_there()
            at = self._find(word, mode != UPDATE)
            before = self.endpoint.load(at) if at else 0
            self.endpoint.wait()
            while True:
                if mode == INSERT and before:
                    return EXISTS
                if mode == UPDATE and not before:
                    return MISSING
                seen = self.endpoint.cas(at, before, desired)
                self.endpoint.wait()
                if seen == before:
                    return DONE
                before = seen
                self.retries += 1

    def delete(self, key: Any) -> None:
        word = word_of("key", key, limpet.KeyTooLarge)
        self.operations += 1
        with self.client:
            self.require_there()
            at = self._find(word, False)
            before = self.endpoint.swap(at, 0) if at else 0
            self.endpoint.wait()
        if not before:
            raise KeyError(key)

    def keys(self) -> Iterator[bytes]:
        return (bytes_of(key) for key, value in self._table() if key and value)

    def __len__(self) -> int:
        return sum(1 for _ in self.keys())

    def references(self) -> Any:
        return np.empty(0, np.uint64)  # it links to no objects: all words are in the region

    def check(self) -> None:
        for key, value in self._table():
            lengths = [(word >> 56) - 1 for word in (key, value) if word]
            if not all(length in range(LENGTH_MAX + 1) for length in lengths):
                raise limpet.StoreCorrupt(f"{self.name}: {key:#x} with {value:#x} is no pair")
            if value and not key:
                raise limpet.StoreCorrupt(f"{self.name}: a value {value:#x} has no key")
            with self.client:
                if key and not self._find(key, False):
                    raise limpet.StoreCorrupt(f"{self.name}: the key {key:#x} cannot be found")

    def _table(self) -> list[list[int]]:
        with self.client:
            self.require_there()
            data = self.endpoint.read(self.table, self.slots * SLOT)
            self.endpoint.wait()
        pairs: list[list[int]] = np.frombuffer(data, np.uint64).reshape(-1, 2).tolist()
        return pairs


def word_of(what: str, data: Any, too_large: type[Exception]) -> int:
    """The word that stands for a key or a value; never 0."""
    data = as_bytes(what, data)
    if len(data) > LENGTH_MAX:
        raise too_large(f"a tiny store's {what} has at most {LENGTH_MAX} bytes, not {len(data)}")
    return len(data) + 1 << 56 | int.from_bytes(data, "little")


def bytes_of(word: int) -> bytes:
    return word.to_bytes(WORD, "little")[: (word >> 56) - 1]


register("tiny", Tiny)


# ---- the store in use ------------------------------------------------------------------------


ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal.

    The handler itself does not raise: Python drops exceptions of handlers while it forks.
    """
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


def write(store: Any, noted: Any, number: int, deadline: float) -> None:
    """Put 1, 2, 3 ... for this writer's key, and note each when it is done."""
    key = b"w%d" % number
    step = int(store.get(key, b"0"))
    while time.monotonic() < deadline:
        step += 1
        store.put(key, b"%d" % step)
        noted[number] = step


def run(pool: limpet.Pool, seconds: float) -> bool:
    store = pool.store("tiny", name="steps", capacity=100)
    noted = pool.array("noted", WRITERS, "q")
    deadline = time.monotonic() + seconds

    def start(number: int) -> multiprocessing.Process:
        arguments = (store, noted, number, deadline)
        process = multiprocessing.Process(target=write, args=arguments, daemon=True)
        process.start()
        return process

    kills = wrong = 0
    begun = [0] * WRITERS
    writers = [start(number) for number in range(WRITERS)]
    try:
        while goes_on(deadline):
            time.sleep(0.05)
            victim = kills % WRITERS
            if noted[victim] == begun[victim]:
                continue  # it has hardly started
            writers[victim].kill()
            writers[victim].join()
            kills += 1
            there = int(store.get(b"w%d" % victim, b"0"))
            # The noted value is there, or the next one: the writer was perhaps killed before its
            # note.
            wrong += there - noted[victim] not in (0, 1)
            begun[victim] = noted[victim]
            writers[victim] = start(victim)
        for writer in writers:
            writer.join(30)
        well = all(writer.exitcode == 0 for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
    store.check()
    print(f"{kills} writers were killed; in the store: {dict(store.items())}")
    print(f"values that are not what their writer had noted: {wrong}")
    pool.recover()
    pool.drop("steps")
    leaked = pool.audit()["leaked"]
    print(f"dropped; {leaked} bytes leaked")
    return kills > 0 and wrong == 0 and well and leaked == 0 and sum(noted) > 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A kind of store of one's own, and kills.")
    parser.add_argument("--seconds", type=float, default=5)
    seconds = parser.parse_args().seconds
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="4MiB") as pool:
        return 0 if run(pool, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
