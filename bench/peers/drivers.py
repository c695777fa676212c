"""Drivers: one small adapter for each store that is measured, without any measuring.

Life of a driver: in the parent `missing`, `start`, `load`; in each worker process, forked after
that, `attach`; in the parent again `stop`, which also clears up after workers that were killed.

Every peer runs with the fastest settings under which processes that share it still see each other's
writes at once; each driver's docstring has its settings. None of them writes to a disk.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Final

from limpet.bench.peers.ycsb import Workload
from limpet.shm.errors import ParameterError
from limpet.stores.registry import store_class

PEERS_EXTRA: Final = "pip install 'limpet[peers]'"
LOCK_WAIT_S: Final = 60
"""How long a peer may wait for a lock of its own before it gives up."""

SHARED_MEMORY: Final = pathlib.Path("/dev/shm")
Pairs = Sequence[tuple[bytes, bytes]]


class DriverError(Exception):
    """A driver could not be started, or did not run to its end."""


Get = Callable[[bytes], bytes | None]
View = Callable[[bytes], object]
Put = Callable[[bytes, bytes], object]
Scan = Callable[[bytes], list[tuple[bytes, bytes]]]
GetMany = Callable[[list[bytes]], Sequence[bytes | None]]
PutMany = Callable[[list[tuple[bytes, bytes]]], object]
Delete = Callable[[bytes], object]
Compute = Callable[[bytes, Callable[[], bytes]], object]

SCAN_LENGTH: Final = 100
"""Pairs that a scan asks for."""


@dataclasses.dataclass(frozen=True)
class Connection:
    """One process's way to a store: `get(key)`, `put(key, value)` (insert or update), `close()`.

    Of an ordered store also `scan(key)`: the SCAN_LENGTH pairs from the key on. Where a store has a
    way that is faster than one by one, also `get_many(keys)`, with values of some time since the
    call, and `put_many(pairs)`; and `view(key)`, which reads the last byte of a value in place.
    `delete(key)`, of a key that is there, or that a cache has evicted. `compute(key, function)`: a
    get that calls the function, and puts its value, if the key is not there.
    """

    get: Get
    put: Put
    close: Callable[[], object] = lambda: None
    scan: Scan | None = None
    get_many: GetMany | None = None
    put_many: PutMany | None = None
    delete: Delete | None = None
    compute: Compute | None = None
    view: View | None = None

    def gets(self) -> GetMany:
        """The fastest way to get many keys."""
        get = self.get
        return self.get_many or (lambda keys: [get(key) for key in keys])

    def puts(self) -> PutMany:
        """The fastest way to put many pairs."""
        put = self.put

        def one_by_one(pairs: list[tuple[bytes, bytes]]) -> None:
            for key, value in pairs:
                put(key, value)

        return self.put_many or one_by_one

    def computes(self) -> Compute:
        """Its own way to get or compute; else a get and, after a miss, a put, in two steps."""
        get, put = self.get, self.put

        def in_steps(key: bytes, function: Callable[[], bytes]) -> bytes:
            value = get(key)
            if value is None:
                value = function()
                put(key, value)
            return value

        return self.compute or in_steps


class Driver(abc.ABC):
    """A store under test."""

    name: str
    shared = True
    """Whether processes see each other's writes."""
    ordered = False
    """Whether it scans."""
    alone = False
    """Whether it is measured with one process only."""

    @abc.abstractmethod
    def missing(self) -> str | None:
        """Why the store cannot be run here and how to get it; None if it can."""

    @abc.abstractmethod
    def version(self) -> str:
        """Version of the store that is measured."""

    @abc.abstractmethod
    def start(self, workload: Workload) -> None:
        """Make the empty store. `stop` is called even if this fails half-way."""

    @abc.abstractmethod
    def load(self, pairs: Pairs) -> None:
        """Put the records in, as fast as the store can."""

    @abc.abstractmethod
    def attach(self) -> Connection:
        """A connection of this worker process's own."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End everything that `start` made; nothing is left in memory, in files or running."""


def package_missing(name: str) -> str | None:
    """Why the Python package `name` is missing, or None."""
    if importlib.util.find_spec(name) is None:
        return f"the Python package {name} is not installed: {PEERS_EXTRA}"
    return None


class Directory:
    """A temporary directory in memory (tmpfs) where there is one."""

    def __init__(self) -> None:
        memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        prefix = f"limpet-bench-{os.getpid()}-"
        self.path = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=memory))

    def remove(self) -> None:
        shutil.rmtree(self.path)


class DictDriver(Driver):
    """A plain dict, the floor. It is not shared: each process works on a dict of its own."""

    name = "dict"
    shared = False
    workload: Workload

    def missing(self) -> None:
        return None

    def version(self) -> str:
        return "built in"

    def start(self, workload: Workload) -> None:
        self.workload = workload

    def load(self, pairs: Pairs) -> None:
        """Nothing: an inherited dict would pay for copying pages, so each worker makes its own."""

    def attach(self) -> Connection:
        records = dict(self.workload.pairs())
        return Connection(records.get, records.__setitem__, put_many=records.update)

    def stop(self) -> None:
        """Nothing is kept."""


class LimpetDriver(Driver):
    """A store of limpet in POSIX shared memory: on one node, or as many as it has replicas.

    `name`: its kind; of a replicated kind also KIND:REPLICAS, by default as many as survive the
    loss of one. Raises ParameterError.
    """

    def __init__(self, name: str) -> None:
        self.kind, _, replicas = name.partition(":")
        store = store_class(self.kind)
        replicated = store.replicated
        self.ordered = store.ordered
        if replicas and not (replicated and replicas.isdecimal() and int(replicas)):
            raise ParameterError(
                f"{name!r} is no kind of store, nor a replicated one with a number"
            )
        self.name = name
        self.nodes = int(replicas or (3 if store.majorities else 2)) if replicated else 1
        self.parameters = {"replicas": self.nodes} if replicated else {}
        self.url = f"shm://bench-{os.getpid()}-{secrets.token_hex(4)}"
        self.pool: Any = None
        self.begun = False
        """Whether there may be a pool of that name, though we have no handle of it."""

    def missing(self) -> None:
        return None

    def version(self) -> str:
        import limpet

        return f"{limpet.__version__} ({limpet.build})"

    def start(self, workload: Workload) -> None:
        import limpet

        self.workload = workload
        record = workload.key_bytes + workload.value_bytes + 64
        size = max(64 << 20, 1 << (8 * workload.records * record).bit_length())
        # ORDER: a signal handler may raise when the pool is there, and is not assigned yet.
        self.begun = True
        self.pool = limpet.create(self.url, nodes=self.nodes, node_size=size)

    def _store(self, pool: Any) -> Any:
        parameters: dict[str, Any] = {"capacity": self.workload.records, **self.parameters}
        if self.kind == "raw":
            parameters["room"] = self.workload.value_bytes
        return pool.store(self.kind, name="bench", **parameters)

    def load(self, pairs: Pairs) -> None:
        self._store(self.pool).put_many(pairs)

    def attach(self) -> Connection:
        import limpet

        pool = limpet.open(self.url)
        store = self._store(pool)

        def scan(key: bytes) -> list[tuple[bytes, bytes]]:
            return list(store.scan(key, limit=SCAN_LENGTH))

        def view(key: bytes) -> int:
            with store.view(key) as value:
                return int(value[-1])

        scans = scan if self.ordered else None
        views = view if store.views else None
        return Connection(
            store.get,
            store.put,
            pool.close,
            scans,
            store.get_many,
            store.put_many,
            store.delete,
            view=views,
        )

    def stop(self) -> None:
        import limpet

        if not self.begun:
            return
        try:
            if self.pool is not None:
                self.pool.close()
        finally:
            self.pool = None
            with contextlib.suppress(limpet.PoolNotFound):
                limpet.destroy(self.url)
            self.begun = False
