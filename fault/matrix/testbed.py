"""One pool of the crash matrix: victims forked from a warm parent, and the survivor's steps."""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from limpet.fault.inject.stopping import StoppingPool
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix import crash_evidence
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.operations import (
    BYSTANDER,
    KEY,
    OLD,
    Broken,
    Operation,
    demand,
)
from limpet.shm.destroying import destroy
from limpet.shm.errors import LimpetError
from limpet.stores.pool import Pool

PATIENCE_S: Final = 10.0
"""Seconds that the survivor may take for one look; after that it counts as blocked."""


class PoolTestbed:
    """A small pool, the survivor's handle of it, and memory that it shares with its victims."""

    def __init__(self, pool: Pool, url: str) -> None:
        self.url = url
        self.pool = pool
        self.handles: list[Pool] = [pool]
        self.shared = mmap.mmap(-1, 64)

    def close(self) -> None:
        for pool in self.handles:
            pool.close()

    def tell(self, word: int, value: int) -> None:
        """Set a word of `shared`."""
        self.shared[8 * word : 8 * word + 8] = struct.pack("<Q", value)

    def told(self, word: int) -> int:
        return int(struct.unpack_from("<Q", self.shared, 8 * word)[0])

    def run(self, target: Callable[[int, int], None]) -> bool:
        """Run a victim to its end; whether the fuse killed it. Broken when it failed otherwise."""
        with within(PATIENCE_S, "the victim"), Workers(target) as workers:
            pid = workers.start(0)
            ended = workers.reap(pid)
        demand(ended.status in (0, -signal.SIGKILL), f"the victim failed: {ended.traceback}")
        return ended.status != 0

    def account(self, clients: int) -> None:
        """Demand that no byte is leaked or held in the pool, and no client dead."""
        audit = self.pool.audit()
        demand(not audit["leaked"], f"{audit['leaked']} bytes are leaked: {audit}")
        demand(not audit["held"], f"{audit['held']} bytes are held: {audit}")
        there = self.pool.clients()
        demand(len(there) == clients, f"there are {len(there)} clients, not {clients}: {there}")


Testbed = TypeVar("Testbed", bound=PoolTestbed)
_numbers: Final = itertools.count()


@contextlib.contextmanager
def in_new_pool(make: Callable[[str], Testbed]) -> Iterator[Testbed]:
    """A testbed that is made with the URL of a new pool, which is gone afterwards."""
    url = f"shm://limpet-matrix-{os.getpid()}-{next(_numbers)}"
    testbed = None
    try:
        with within(PATIENCE_S, "the survivor, which prepares a pool"):
            testbed = make(url)
        yield testbed
    finally:
        if testbed is not None:
            testbed.close()
        with contextlib.suppress(LimpetError):
            destroy(url)


class StoreTestbed(PoolTestbed):
    """A small pool with one store, the survivor's handles of it, and victims forked from them."""

    def __init__(self, url: str, kind: str, fence: str = "kill") -> None:
        self.kind = kind
        profile = profile_of(kind)
        pool = Pool.create(
            url, nodes=profile.matrix_nodes, node_size=profile.matrix_node_size, clients=16,
            lease=0.001, fence=fence,
        )  # fmt: skip
        super().__init__(pool, url)
        self.store = self.pool.store(kind, name="store", **profile.matrix_parameters)
        self.bystanders: tuple[bytes, ...] = (BYSTANDER,)
        """Keys that no operation may touch, with the value OLD."""
        self.store.put(BYSTANDER, OLD)

    @functools.cached_property
    def stopping(self) -> tuple[StoppingPool, Any]:
        """A second handle of pool and store, whose endpoint can stop the process."""
        pool = StoppingPool.open(self.url)
        self.handles.append(pool)
        return pool, pool.store(self.kind, name="store")

    def reset(self, operation: Operation) -> None:
        """Give the key the value that it has before the operation."""
        if operation.set_up is not None:
            operation.set_up(self.pool, self.store)
        elif operation.before is not None:
            self.store.put(KEY, operation.before)
        elif KEY in self.store:
            self.store.delete(KEY)

    def victim(
        self, operation: Operation, fuse: int, pool: Any = None, store: Any = None
    ) -> Callable[[int, int], None]:
        """The body of a victim. Words of `shared`: client id, steps that it took, how it ended."""
        pool = self.pool if pool is None else pool
        store = self.store if store is None else store
        self.shared[:] = bytes(64)

        def target(slot: int, incarnation: int) -> None:
            endpoint = pool.endpoint
            look_away(pool)
            operation.warm(pool, store)
            self.tell(0, pool.membership.ident)
            if isinstance(pool, StoppingPool):
                endpoint.stop_at = fuse
            else:
                endpoint.fuse = fuse
            outcome = 1
            try:
                operation.run(pool, store)
            except KeyError:
                outcome = 2
            if not isinstance(pool, StoppingPool):
                self.tell(1, fuse - endpoint.fuse)
            self.tell(2, outcome)
            endpoint.fuse = 0
            os._exit(0)

        return target

    def recoverer(self, fuse: int) -> Callable[[int, int], None]:
        """The body of a client that joins and dies at a step of its first recovery."""
        self.shared[:] = bytes(64)

        def target(slot: int, incarnation: int) -> None:
            pool = self.pool
            restore = pool.membership.restore

            def armed(slot: int, word: int) -> dict[str, int]:
                pool.membership.restore = restore
                pool.endpoint.fuse = fuse
                return restore(slot, word)

            pool.membership.restore = armed
            pool.recover()
            self.tell(1, fuse - pool.endpoint.fuse if pool.endpoint.fuse else 0)
            pool.endpoint.fuse = 0
            os._exit(0)

        return target

    # ---- the survivor ---------------------------------------------------------------------------

    def dead(self) -> list[tuple[int, int]]:
        """Slot and state word of every dead client."""
        membership = self.pool.membership
        return [(slot, word) for slot, word in membership.occupied() if membership.dead(slot, word)]

    def seen(self, dead: list[tuple[int, int]] | None = None) -> set[str]:
        """The crash points that dead clients show: those of these slots and state words, or all."""

        def look() -> set[str]:
            there = self.dead() if dead is None else dead
            return set().union(
                *(crash_evidence.seen(self.pool, slot, word) for slot, word in there)
            )

        return set(self.pool.exclusively(look))

    def work(self, possible: set[bytes | None]) -> bytes | None:
        """Read, write and delete the key, as if nothing had happened; the value first read."""
        try:
            return self._work(possible)
        except KeyError as error:
            raise Broken(f"a write was refused: {type(error).__name__}: {error}") from error

    def _work(self, possible: set[bytes | None]) -> bytes | None:
        kv = self.store
        first = kv.get(KEY)
        demand(first in possible, f"the key has {short(first)}")
        demand(kv.get(KEY) == first, "two reads differ")
        kv.put(KEY, b"survivor 1")
        if kv.get(KEY) != b"survivor 1" and self.came_late(kv.get(KEY), first, possible):
            kv.put(KEY, b"survivor 1")
        demand(kv.get(KEY) == b"survivor 1", "the survivor's put was lost")
        kv.delete(KEY)
        demand(kv.get(KEY) is None, "the survivor's delete was lost")
        kv.insert(KEY, b"survivor 2")
        kv.update(KEY, b"survivor 3")
        demand(kv.get(KEY) == b"survivor 3", "the survivor's update was lost")
        return first  # type: ignore[no-any-return]

    def came_late(
        self, value: bytes | None, before: bytes | None, possible: set[bytes | None]
    ) -> bool:
        """Whether the key has the value of a dead client's operation that others completed.

        Such an operation may take effect at any time after the death, once, and overwrite theirs.
        """
        return bool(self.store.replicated) and value in possible - {before}

    def inspect(self, clients: int) -> None:
        """Demand that the store is sound, no byte is leaked or held, and no client dead."""
        self.store.check()
        self.account(clients)
        for key in self.bystanders:
            demand(self.store.get(key) == OLD, f"another key was damaged: {key!r}")
        there = len(self.bystanders) + (self.store.get(KEY) is not None)
        demand(len(self.store) == there, "len() is wrong")

    def aftermath(self, operation: Operation, possible: set[bytes | None], first: str) -> None:
        """The demands after a death: recovery or the survivor's work first."""
        with within(PATIENCE_S, "the survivor"):
            if first == "recover":
                value = self.store.get(KEY)
                demand(value in possible, f"before recovery the key has {short(value)}")
                operation.finish(self.pool, self.store)
                self.pool.recover()
                now = self.store.get(KEY)
                demand(
                    now == value or self.came_late(now, value, possible),
                    "recovery changed the key's value",
                )
                self.inspect(len(self.handles))
                self.work(possible)
            else:
                self.work(possible)
                operation.finish(self.pool, self.store)
                self.pool.recover()
                demand(self.store.get(KEY) == b"survivor 3", "recovery undid the survivor's work")
            self.inspect(len(self.handles))


def look_away(pool: Any) -> None:
    """Keep this process from recovering clients: the survivor recovers the earlier victims."""
    pool.membership.sweep = list


def short(value: bytes | None) -> str:
    return repr(value) if value is None or len(value) < 40 else f"{len(value)} bytes"


@contextlib.contextmanager
def within(seconds: float, name: str) -> Iterator[None]:
    """Raise Broken when the body takes longer. Main thread only; its timer goes on after.

    The signal is repeated: Python drops an exception that is raised while a destructor runs.
    """

    def late(number: int, frame: object) -> None:
        raise Broken(f"{name} was blocked for {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    start = time.monotonic()
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            left = max(0.001, left - (time.monotonic() - start))
            signal.setitimer(signal.ITIMER_REAL, left, again)
