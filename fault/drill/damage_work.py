"""Operations of clients on a damaged pool, and their verdicts, for every kind (damage.py)."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.operations import Broken
from limpet.shm.errors import KeyExists, LimpetError, StoreCorrupt
from limpet.stores.pool import Pool

KEYS: Final = 40
SIZES: Final = (0, 5, 16, 40, 100, 700, 3000)
WAIT_S: Final = 0.02
"""The timeout of every call of a channel that waits."""
CASE_S: Final = 2.0
"""After this time, further operations are left out of a case: an operation that meets damage may
take a second until it is sure of it."""
LEASE_US: Final = 1_000
PROBLEMS_MAX: Final = 5

Strike = Callable[[int], None]
Tell = Callable[[str], None]


class Findings:
    """Results of the operations of one case."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.until = 0.0
        self.refused = 0
        self.wrong: list[str] = []
        self.failures: list[str] = []

    def attempt(
        self, what: str, call: Callable[[], Any], *expected: type[BaseException]
    ) -> tuple[str, Any]:
        """Make a call; ("ok", its result), ("refused", the error), or ("failed", the error).

        `expected`: errors that the call is documented to raise, besides those of limpet.
        """
        if self.until and time.monotonic() > self.until:
            return "skipped", None
        self.tell(what)
        try:
            return "ok", call()
        except Broken as error:
            self.note(f"wrong: {what}: {error}")
            return "refused", error
        except expected as error:
            return "expected", error
        except LimpetError as error:
            self.refused += 1
            return "refused", error
        except Exception as error:
            if len(self.failures) < PROBLEMS_MAX:
                self.failures.append(f"error: {what}: {traceback.format_exc()}")
            return "failed", error

    def begin(self) -> None:
        """Note that there is damage from now on, and that CASE_S of time are left."""
        self.until = time.monotonic() + CASE_S

    def note(self, what: str) -> None:
        self.wrong.append(what[:300])

    def result(self) -> dict[str, Any]:
        return {"refused": self.refused, "wrong": self.wrong[:20], "failures": self.failures}


class Subject:
    """One kind: how its pool is made, and all operations on it.

    `checksum`: the data under a checksum, and why no more is. `fresh`: a case needs a new pool.
    """

    checksum = ""
    fresh = False

    def is_found(self, wrong: str) -> bool:
        """Whether such a result is a failure, because its data is under a checksum."""
        return False

    def make(self, url: str) -> int:
        """Make the pool and its contents, and leave; the number of its nodes."""
        raise NotImplementedError

    def exercise(self, url: str, strike: Strike, tell: Tell) -> dict[str, Any]:
        """Do all operations; their results. `strike(n)` does the damage that precedes part n."""
        raise NotImplementedError


def subject_of(kind: str) -> Subject:
    """The subject of a kind of store or channel."""
    return ChannelSubject(kind) if kind in CHANNELS else StoreSubject(kind)


def look_around(found: Findings, pool: Pool) -> None:
    """Call the read-only methods that every pool has."""
    for call in (pool.stores, pool.clients, pool.nodes, pool.events, pool.recover, pool.audit):
        found.attempt(f"pool.{call.__name__}", call)


# ---- stores -----------------------------------------------------------------------------------


def key_of(number: int) -> bytes:
    return b"key-%d" % number


def value_of(number: int, version: int, size: int | None = None) -> bytes:
    """A value that names its key; sizes go from 0 to several blocks."""
    if size is None:
        size = SIZES[(number + 3 * version) % len(SIZES)]
    text = b"%d.%d," % (number, version)
    return (text * (size // len(text) + 1))[:size]


class StoreSubject(Subject):
    """A store of some kind, in a pool of the crash matrix' size."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.profile = profile_of(kind)
        self.checksum = self.profile.checksum.text
        self.fresh = self.profile.metadata_process

    def is_found(self, wrong: str) -> bool:
        what, _, rest = wrong.partition(": ")
        return what == "damaged" and int(rest.split()[0]) <= self.profile.checksum.size_max

    def make(self, url: str) -> int:
        profile = self.profile
        nodes = profile.matrix_nodes
        with Pool.create(
            url, nodes=nodes, node_size=2 * profile.matrix_node_size, clients=6,
            lease=LEASE_US / 1e6, fence="wait",
        ) as pool:  # fmt: skip
            store = pool.store(self.kind, name="store", **profile.damage_parameters)
            for number in range(KEYS):
                store.put(key_of(number), value_of(number, 0))
            store.delete(key_of(KEYS - 1))
        return nodes

    def exercise(self, url: str, strike: Strike, tell: Tell) -> dict[str, Any]:
        found = Findings(tell)
        pool = Pool.open(url)
        store = pool.store(self.kind, name="store")
        work = _StoreWork(found, store)
        work.read(range(0, KEYS, 2))
        work.write(KEYS + 1)
        work.settle()
        found.begin()
        strike(0)
        work.all("warm")
        strike(1)
        state, other = found.attempt("opening the pool", lambda: Pool.open(url, timeout_s=0))
        if state == "ok":
            state, fresh = found.attempt(
                "opening the store", lambda: other.store(self.kind, name="store")
            )
            if state == "ok":
                work.store = fresh
                work.all("fresh")
        work.store = store
        strike(2)
        look_around(found, pool)
        found.attempt("a new store", lambda: pool.store("race", name="new", capacity=8))
        work.all("warm again")
        for one in (pool, other):
            if isinstance(one, Pool):
                found.attempt("closing the pool", one.close)
        return found.result()


class _StoreWork:
    """Operations on a store, and the values that each key ever had, and its right one."""

    def __init__(self, found: Findings, store: Any) -> None:
        self.found = found
        self.store = store
        self.written = {number: {value_of(number, 0)} for number in range(KEYS)}
        self.last: dict[int, bytes | None] = {n: value_of(n, 0) for n in range(KEYS - 1)}
        self.last[KEYS - 1] = None
        self.unknown: set[int] = set()
        """Keys whose last write was refused: it may have happened or not."""
        self.version = 0

    def settle(self) -> None:
        """Demand that no result is wrong before there is any damage."""
        if self.found.refused or self.found.wrong or self.found.failures:
            raise Broken(f"without damage: {self.found.result()}")

    def all(self, client: str) -> None:
        """Do every operation of a handle."""
        store, found = self.store, self.found
        self.read(range(KEYS))
        found.attempt(
            f"{client}: get_many", lambda: store.get_many([key_of(n) for n in range(KEYS)])
        )
        found.attempt(f"{client}: iteration", lambda: sum(1 for _ in store))
        found.attempt(f"{client}: items", lambda: sum(len(value) for _, value in store.items()))
        found.attempt(f"{client}: len", lambda: len(store))
        found.attempt(f"{client}: check", store.check)
        for number in range(self.version % 3, KEYS + 4, 3):
            self.write(number)
        self.read(range(0, KEYS + 4, 2))
        if store.ordered:
            found.attempt(f"{client}: scan", lambda: list(store.scan(b"key-1", b"key-3")))
        if store.transactional:
            found.attempt(f"{client}: transaction", lambda: self._transact(store))
        found.attempt(f"{client}: check", store.check)

    def _transact(self, store: Any) -> None:
        def work(tx: Any) -> None:
            tx.put(store, key_of(100), tx.get(store, key_of(3), b"nothing"))
            tx.put(store, key_of(101), b"something")
            tx["object"] = b"something else"

        store.pool.transaction(work, attempts=5)

    def read(self, numbers: Iterable[int]) -> None:
        """Get these keys, and judge their values."""
        for number in numbers:
            call = functools.partial(self.store.get, key_of(number))
            state, value = self.found.attempt(f"get {number}", call)
            if state == "ok":
                self._judge(number, value)

    def _judge(self, number: int, value: bytes | None) -> None:
        if value is not None and value not in self.written.get(number, ()):
            known = max(map(len, self.written.get(number, {b""})))
            self.found.note(
                f"damaged: {max(len(value), known)} bytes: get {number}: {value[:60]!r}"
            )
        elif number not in self.unknown and value != self.last.get(number):
            what = "missing" if value is None else "stale"
            self.found.note(f"{what}: get {number}")

    def write(self, number: int) -> None:
        """One write of a key: an insert, a put, an update or a delete, by turns."""
        self.version += 1
        key, value = key_of(number), value_of(number, self.version)
        call = ("put", "update", "insert", "put", "delete")[self.version % 5]
        method = getattr(self.store, call)
        work = (lambda: method(key)) if call == "delete" else (lambda: method(key, value))
        self.written.setdefault(number, set()).add(value)
        state, _ = self.found.attempt(f"{call} {number}", work, KeyError, KeyExists)
        if state == "ok":
            self.last[number] = None if call == "delete" else value
            self.unknown.discard(number)
        elif state == "refused":
            self.unknown.add(number)


# ---- channels ---------------------------------------------------------------------------------


class ChannelSubject(Subject):
    """A channel of some kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.channel = CHANNELS[kind]
        self.checksum = self.channel.checksum

    def make(self, url: str) -> int:
        with Pool.create(
            url, nodes=2, node_size=512 << 10, clients=6, lease=LEASE_US / 1e6, fence="wait"
        ) as pool:
            handle = self.channel.open(pool, "channel")
            self.channel.prepare(handle)
            self.channel.release(handle)
        return 2

    def exercise(self, url: str, strike: Strike, tell: Tell) -> dict[str, Any]:
        found = Findings(tell)
        pool = Pool.open(url)
        handle = self.channel.open(pool, "channel")
        self.channel.round(handle, 1.0)
        self.channel.release(handle)
        handle = self.channel.open(pool, "channel")
        found.begin()
        strike(0)
        for _ in range(2):
            self._use(found, "warm", handle)
        strike(1)
        state, other = found.attempt("opening the pool", lambda: Pool.open(url, timeout_s=0))
        if state == "ok":
            self._fresh(found, "fresh", other, "channel")
        strike(2)
        look_around(found, pool)
        self._use(found, "warm again", handle)
        self._fresh(found, "another", pool, "another")
        for call in (pool.channels.list, pool.channels.names):
            found.attempt(f"channels.{call.__name__}", call)
        found.attempt("channels.catalogue.check", lambda: pool.channels.catalogue.check())
        for name in ("channel", "another"):
            found.attempt(f"remove {name}", functools.partial(pool.channels.remove, name), KeyError)
        self._fresh(found, "anew", pool, "channel")
        for one in (pool, other):
            if isinstance(one, Pool):
                found.attempt("closing the pool", one.close)
        return found.result()

    def _fresh(self, found: Findings, client: str, pool: Pool, name: str) -> None:
        state, handle = found.attempt(f"{client}: open", lambda: self.channel.open(pool, name))
        if state == "ok":
            self._use(found, client, handle)

    def _use(self, found: Findings, client: str, handle: Any) -> None:
        channel = self.channel
        calls: list[tuple[str, Callable[[], Any]]] = [
            ("prepare", lambda: channel.prepare(handle)),
            ("judge", lambda: channel.judge(handle, WAIT_S)),
            ("round", lambda: channel.round(handle, WAIT_S)),
            ("release", lambda: channel.release(handle)),
        ]
        for name, call in calls:
            with _bounded() if channel.waits_for_ever else contextlib.nullcontext():
                found.attempt(f"{client}: {name}", call, *channel.expected)


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """End a wait that has no timeout, as a user's Ctrl-C does."""

    def late(number: int, frame: object) -> None:
        raise StoreCorrupt("it waits for a missing participant")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 10 * WAIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
