"""The drill of full memory: a file system that is full at each allocation, then has room again.

For each kind of store, and for channels: a small pool, and a program of writes of many sizes that
asks for pages again and again (`limpet.shm.endpoint.backing`). There is a run for each request:
from that one on, all are refused. The demands on each run:

    - a write that finds no memory raises StoreFull and no other error, and has changed nothing
    - meanwhile all keys can be read: by the client that was refused, by another client, by one that
      opens the pool only now; and no node is marked as failed
    - when there is room again, the refused write succeeds, and all others
    - afterwards `check()` holds, iteration gives the keys that are there, and `audit()` finds no
      leak

A gate in the place of the pool's own `backing` refuses requests; it needs no privileges. With a
folder that is a small file system of its own (a tmpfs), the drill fills that up for real instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from limpet.fault.matrix.channel_kinds import CHANNELS, Channels
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.operations import Broken, demand
from limpet.shm.destroying import destroy
from limpet.shm.errors import LimpetError, ParameterError, StoreFull
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS, UNRECOVERED

OF_CHANNELS: Final = "channels"
SIZES: Final = (10, 900, 2_500, 90, 5_000, 300, 20_000, 1_400)
"""Bytes of the values that are put, in turn: of many size classes, and one takes two blocks."""
ROUNDS: Final = 3
CHUNKS: Final = (1 << 20, 1 << 16, 1 << 12)
CLIENTS: Final = 16
PATIENCE_S: Final = 5.0
NODE_SIZE: Final = 2 << 20
BLOCK_SIZE: Final = 16 << 10

Step = tuple[str, Callable[[], Any], Callable[[], Any]]
"""A step's name, its action, and the note made when it is done."""


def kinds() -> tuple[str, ...]:
    """The subjects of the drill: kinds of stores, and channels."""
    return (*KINDS, *UNRECOVERED, OF_CHANNELS)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result for a kind: runs; writes that were refused; reads of values meanwhile."""

    kind: str
    runs: int
    refused: int
    reads: int


class Gate:
    """Refuses pages from one request on until it is opened; with `folder`, by filling that up."""

    def __init__(self, pool: Pool, at: int, folder: Path | None) -> None:
        self.requests = 0
        self.shut = False
        self._at = at
        self._filler = None if folder is None else folder / "filler"
        self._backing = pool.blocks.pages.backing
        pool.blocks.pages.backing = self

    def __call__(self, node: int, offset: int, size: int) -> bool:
        self.requests += 1
        if self.requests == self._at:
            self.shut = True
            self._fill()
        if self.shut and self._filler is None:
            return False
        return self._backing(node, offset, size)

    def _fill(self) -> None:
        if self._filler is None:
            return
        with self._filler.open("wb", buffering=0) as filler:
            for size in CHUNKS:
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(size))

    def open(self) -> None:
        """Make room again, for good."""
        self.shut = False
        if self._filler is not None:
            self._filler.unlink(missing_ok=True)


class Run:
    """One run: pages are refused from request number `at` on."""

    def __init__(self, url: str, kind: str, at: int, folder: Path | None) -> None:
        self.url = url
        self.kind = kind
        self.model: dict[bytes, bytes] = {}
        self.refused = self.reads = 0
        self.nodes = max(2, profile_of(kind).matrix_nodes)
        self.pool = Pool.create(
            url, nodes=self.nodes, node_size=NODE_SIZE, block_size=BLOCK_SIZE, clients=CLIENTS
        )
        self.other = Pool.open(url)
        self.gate = Gate(self.pool, at, folder)

    def close(self) -> None:
        self.gate.open()
        for pool in (self.pool, self.other):
            pool.close()

    def work(self) -> None:
        """Do all steps; repeat each refused one when there is room."""
        for name, step, note in self.program():
            try:
                step()
            except StoreFull as error:
                demand(self.gate.shut, f"{name}: StoreFull while there was room: {error}")
                self.refused += 1
                self.look(f"{name} was refused")
                self.go_on()
                self.gate.open()
                step()
            note()
        self.gate.open()
        self.look("at the end")
        self.judge()

    def program(self) -> Iterator[Step]:
        raise NotImplementedError

    def contents(self, pool: Pool) -> dict[bytes, bytes | None]:
        """The expected contents, as `pool` finds them."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Demand the operations that must work while memory is full."""

    def check(self) -> None:
        """Further demands on the structure."""

    def look(self, when: str) -> None:
        """Demand that every client can read everything."""
        states = {node["state"] for node in self.other.nodes()}
        demand(states == {"in service"}, f"{when}: nodes are {states}")
        with Pool.open(self.url, timeout_s=0) as newcomer:
            for reader, pool in (("it", self.pool), ("another", self.other), ("a third", newcomer)):
                found = self.contents(pool)
                wrong = sorted(key for key in self.model if found.get(key) != self.model[key])
                demand(not wrong, f"{when}: {reader} does not find {wrong[:4]} as they were")
                self.reads += len(self.model)

    def judge(self) -> None:
        """Demand that everything is as if there had always been room."""
        self.check()
        self.pool.recover()
        leaked = self.pool.audit()["leaked"]
        demand(not leaked, f"{leaked} bytes leaked")
        held = [client["pid"] for client in self.pool.clients() if client["pinned"]]
        demand(not held, f"clients {held} are still inside an operation")


class StoreRun(Run):
    """A run on a store."""

    def __init__(self, url: str, kind: str, at: int, folder: Path | None) -> None:
        super().__init__(url, kind, at, folder)
        self.stores: dict[int, Any] = {}

    def program(self) -> Iterator[Step]:
        yield "make the store", lambda: self.store(self.pool), lambda: None
        for number in range(ROUNDS * len(SIZES)):
            key = b"key %d" % number
            value = b"%d " % number * SIZES[number % len(SIZES)]
            value = value[: SIZES[number % len(SIZES)]]
            yield self.put(f"insert {number}", key, value)
            if number % 3 == 2:
                yield self.put(f"update {number}", key, value[::-1])
            gone = b"key %d" % (number - 2)
            if number % 5 == 4 and gone in self.model:
                yield self.delete(gone)

    def store(self, pool: Pool) -> Any:
        """The store's handle of our pool, or a new handle of another pool."""
        if id(pool) in self.stores:
            return self.stores[id(pool)]
        made = pool.store(self.kind, name="store", **profile_of(self.kind).matrix_parameters)
        if pool in (self.pool, self.other):
            self.stores[id(pool)] = made
        return made

    def go_on(self) -> None:
        """Demand that keys can be deleted."""
        for key in sorted(self.model)[-2:]:
            self.store(self.pool).delete(key)
            self.model.pop(key)

    def put(self, name: str, key: bytes, value: bytes) -> Step:
        return (
            name,
            lambda: self.store(self.pool).put(key, value),
            lambda: self.model.update({key: value}),
        )

    def delete(self, key: bytes) -> Step:
        return (
            f"delete {key!r}",
            lambda: self.store(self.pool).delete(key),
            lambda: self.model.pop(key),
        )

    def contents(self, pool: Pool) -> dict[bytes, bytes | None]:
        if not self.model:
            return {}  # the store may not be there yet
        store = self.store(pool)
        return {key: store.get(key) for key in self.model}

    def check(self) -> None:
        store = self.store(self.pool)
        store.check()
        demand(sorted(store) == sorted(self.model), "iteration gives other keys")


class ChannelRun(Run):
    """A run on channels, each of which is made and used while memory may run out."""

    def program(self) -> Iterator[Step]:
        for number in range(2):
            for kind in CHANNELS:
                yield self.use(f"{kind} {number}")

    def use(self, name: str) -> Step:
        """Make a channel and bring it into its state; the step may be done twice."""

        def use() -> None:
            channel, handle = self.opened(self.pool, name)
            channel.round(handle, PATIENCE_S)
            channel.prepare(handle)
            channel.release(handle)

        return f"use {name}", use, lambda: self.model.update({name.encode(): b""})

    def opened(self, pool: Pool, name: str) -> tuple[Channels, Any]:
        channel = CHANNELS[name.partition(" ")[0]]
        return channel, (channel.large or channel.open)(pool, name)

    def contents(self, pool: Pool) -> dict[bytes, bytes | None]:
        names = {name.encode() for name in pool.channels.names()}
        for name in self.model:
            channel, handle = self.opened(pool, name.decode())
            channel.judge(handle, PATIENCE_S)
            channel.release(handle)
        return {name: b"" if name in names else None for name in self.model}


def run(
    kind: str,
    url: str,
    *,
    folder: Path | None = None,
    first: int = 1,
    step: int = 1,
    progress: Callable[[int, int], None] = lambda run, runs: None,
) -> Result:
    """All runs for a kind: at request `first`, and every `step`-th after it, until none is left.

    The pool is made at `url` for each and destroyed. `folder`: a small file system of its own, with
    the pool on it, that is filled up for real. Raises `Broken`, naming the run.
    """
    if kind not in kinds():
        raise ParameterError(f"there is no kind {kind!r} to drill; there is {', '.join(kinds())}")
    requests = _one(kind, url, 0, folder)[0]
    refused = reads = runs = 0
    for at in range(first, requests + 1, step):
        progress(at, requests)
        _, denied, read = _one(kind, url, at, folder)
        runs, refused, reads = runs + 1, refused + denied, reads + read
    demand(refused > 0, f"{kind}: of {runs} runs with full memory none has refused a write")
    return Result(kind, runs, refused, reads)


def _one(kind: str, url: str, at: int, folder: Path | None) -> tuple[int, int, int]:
    """One run: the number of requests for pages, of refused writes, and of values read."""
    cls = ChannelRun if kind == OF_CHANNELS else StoreRun
    made = cls(url, kind, at, folder)
    try:
        made.work()
        return made.gate.requests, made.refused, made.reads
    except (Broken, LimpetError) as error:
        what = f"{type(error).__name__}: {error}" if isinstance(error, LimpetError) else str(error)
        raise Broken(f"{kind}, memory full at request {at}: {what}") from error
    finally:
        made.close()
        destroy(url)


def require_small(folder: Path, size_max: int = 1 << 28) -> None:
    """ParameterError unless the folder is on a file system that may be filled up."""
    status = os.statvfs(folder)
    size = status.f_blocks * status.f_frsize
    if not os.path.ismount(folder) or not 0 < size <= size_max:
        raise ParameterError(
            f"{folder} is to be filled up, so it must be a file system of its own, of at most "
            f"{size_max} bytes: mount -t tmpfs -o size=32m tmpfs {folder}"
        )
