"""The drill of names: at each event of a call another process acts on the same name, or it dies.

A process makes a call that finds, makes or removes segments by name: `create`, `open`,
`open(create=True)`, `destroy`, `replace_node`. Its events are those that CPython's audit hooks
report of files (opened, locked, truncated, mapped, removed ...), and the verbs that change memory.
At event k, for k = 1, 2, 3 ... until the call has no such event, it stands still, and then

    destroys     another process destroys the pool
    creates      another process creates a pool
    makes anew   another process destroys the pool, and creates its own
    truncates    another process makes the control segment, or node 0, empty (not on devices)
    is killed    the process dies; another one then opens with create=True, creates, or destroys

Each time the call must end, and with an error only if the other process has given it reason; a pool
that the other process has made is whole unless the call was to destroy it; there is no segment that
belongs to no pool; and the name can be used. The segments of a backend that is registered are made
where `PLACES` says; a place of its own can be given by a URL.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest import mock

from limpet.fault.drill.engine import SHARE, Result, steps
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.operations import Broken, demand
from limpet.shm.backends import dax
from limpet.shm.backends.location import parse_url
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.hooked import MUTATING, HookedEndpoint
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import (
    ClientError,
    LimpetError,
    PoolExists,
    PoolIncomplete,
    PoolNotFound,
)
from limpet.stores.pool import Pool

FILE_EVENTS: Final = frozenset(
    ("open", "mmap.__new__", "fcntl.flock", "os.truncate", "os.remove", "os.rename", "os.chmod",
     "os.chown", "os.mkdir", "os.rmdir", "os.scandir")
)  # fmt: skip
NODES: Final = 3
SIZES: Final[dict[str, Any]] = {
    "nodes": NODES, "node_size": "2MiB", "clients": 8, "lease": 0.2,
}  # fmt: skip
DEVICE_SIZE: Final = 4 << 20
PATIENCE_S: Final = 30.0
HURRY_S: Final = 0.02
"""How long the other process waits for a name that the one that stands still holds."""
OLD, NEW = 1, 2
"""The values in the pool that was there first, and in the pool of the other process."""


@contextlib.contextmanager
def _shm() -> Iterator[str]:
    url = f"shm://drill-names-{os.getpid()}"
    try:
        yield url
    finally:
        with contextlib.suppress(PoolNotFound):
            destroy(url)


@contextlib.contextmanager
def _file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="limpet-drill-") as folder:
        yield f"file://{folder}/outer/pool"


@contextlib.contextmanager
def _dax() -> Iterator[str]:
    """Files that stand in for devices."""
    with tempfile.TemporaryDirectory(prefix="limpet-drill-") as folder:
        devices = []
        for number in range(NODES):
            entry = Path(folder, "sys", f"dax{number}.0")
            entry.mkdir(parents=True)
            (entry / "size").write_text(f"{DEVICE_SIZE}\n")
            (entry / "align").write_text("65536\n")
            devices.append(Path(folder, entry.name))
            devices[-1].write_bytes(bytes(DEVICE_SIZE))
        with mock.patch.object(dax, "SYSFS", Path(folder, "sys")):
            yield "dax://" + ",".join(map(str, devices))


PLACES: Final[dict[str, Callable[[], contextlib.AbstractContextManager[str]]]] = {
    "shm": _shm,
    "file": _file,
    "dax": _dax,
}
"""For each backend: a URL where nothing is, and nothing is left afterwards."""


class Events:
    """Counts the events of a call, in the process that makes it, and stops it at one of them."""

    armed: ClassVar[Events | None] = None
    audited: ClassVar[bool] = False

    def __init__(self, k: int, meet: Callable[[], None]) -> None:
        self.left = k
        self.meet = meet

    def __enter__(self) -> None:
        if not Events.audited:
            sys.addaudithook(Events.audit)
            Events.audited = True
        Events.armed = self

    def __exit__(self, *error: object) -> None:
        Events.armed = None

    @classmethod
    def audit(cls, name: str, given: object) -> None:
        if name in FILE_EVENTS:
            cls.count()

    @classmethod
    def count(cls) -> None:
        events = cls.armed
        if events is not None:
            events.left -= 1
            if not events.left:
                cls.armed = None
                events.meet()


class NamesEndpoint(HookedEndpoint, verbs=MUTATING):
    """An Endpoint whose verbs that change memory are events."""

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        Events.count()
        return words


class NamesPool(Pool):
    """A pool handle with such an endpoint."""

    endpoint_class = NamesEndpoint


@dataclasses.dataclass(frozen=True)
class Act:
    """A call. `refusals`: the errors that it may raise when another process destroys or creates;
    `prepared`: whether a pool is there; `begun`: its handle, opened before the first event."""

    call: Callable[[str, Any], Any]
    prepared: bool
    refusals: tuple[type[LimpetError], ...]
    begun: Callable[[str], Any] = lambda url: None


def _degraded(url: str) -> Any:
    pool = NamesPool.open(url)
    pool.fail_node(1)
    pool.view.settle()
    return pool


ACTS: Final[Mapping[str, Act]] = {
    "create": Act(lambda url, _: NamesPool.create(url, **SIZES).close(), False, (PoolExists,)),
    "open": Act(lambda url, _: NamesPool.open(url).close(), True, (PoolNotFound,)),
    "open or create": Act(
        lambda url, _: NamesPool.open(url, create=True, **SIZES).close(), False, ()
    ),
    "destroy": Act(lambda url, _: destroy(url), True, (PoolNotFound,)),
    "replace": Act(lambda url, pool: pool.replace_node(1), True, (PoolNotFound,), _degraded),
}


def _make(url: str, value: int) -> None:
    with Pool.create(url, **SIZES) as pool:
        pool.store("fusee", replicas=2, capacity=16).put(b"key", b"%d" % value)


class Rival:
    """The other process: what it does while the call stands still. `made`: whether it has a pool
    there; `truncated`: whether it has damaged one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.location = parse_url(url)
        self.made = False
        self.truncated = False

    def destroys(self) -> None:
        # On a device it is refused while the caller is a client.
        refusals = (ClientError,) if self.location.reuses_memory else ()
        with contextlib.suppress(PoolNotFound, PoolIncomplete, *refusals):
            destroy(self.url, timeout_s=HURRY_S)

    def creates(self) -> None:
        with contextlib.suppress(PoolExists):
            _make(self.url, NEW)
            self.made = True

    def makes_anew(self) -> None:
        self.destroys()
        self.creates()

    def truncates_control(self) -> None:
        self._truncate(CONTROL_NODE)

    def truncates_node(self) -> None:
        self._truncate(0)

    def _truncate(self, index: int) -> None:
        if not self.location.reuses_memory:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(self.location.path(index), 0)
                self.truncated = True


RIVALS: Final[Mapping[str, Callable[[Rival], None]]] = {
    "destroys": Rival.destroys,
    "creates": Rival.creates,
    "makes anew": Rival.makes_anew,
    "truncates control": Rival.truncates_control,
    "truncates node": Rival.truncates_node,
}
SUCCESSORS: Final[Mapping[str, Callable[[str], object]]] = {
    "killed, then open": lambda url: Pool.open(url, create=True, **SIZES).close(),
    "killed, then create": lambda url: Pool.create(url, **SIZES).close(),
    "killed, then destroy": lambda url: destroy(url),
}
WAYS: Final = (*RIVALS, *SUCCESSORS)


class Names:
    """Runs the ways for the acts at one place. In the main thread only.

    `share`: of the events behind event k, one in k / share is taken; 0: every event.
    """

    def __init__(self, url: str, share: int = SHARE) -> None:
        self.url = url
        self.location = parse_url(url)
        self.share = share

    def run(self, act: str, way: str) -> Result:
        """Run one way for one act; its result."""
        k = runs = 0
        failure = ""
        try:
            for k in steps(self.share):
                runs += 1
                if not self._once(ACTS[act], way, k):
                    break
        except (Broken, LimpetError) as error:
            failure = f"event {k}: {type(error).__name__}: {error}"
        finally:
            self._clear()
        return Result({"backend": self.location.scheme, "act": act, "way": way}, runs, failure)

    def _clear(self) -> None:
        with contextlib.suppress(PoolNotFound):
            destroy(self.url)

    def _once(self, act: Act, way: str, k: int) -> bool:
        """One call that stands still, or dies, at event k; False: it has no such event."""
        self._clear()
        if act.prepared:
            _make(self.url, OLD)
        rival = Rival(self.url)
        met, error = self._call(act, k, lambda: RIVALS[way](rival) if way in RIVALS else None, way)
        if error and not rival.truncated:
            allowed = [kind.__name__ for kind in act.refusals]
            if self.location.reuses_memory:
                # The memory itself is another pool's by now, and a client that is none finds that;
                # so does a creator whose pool was destroyed before it was a client.
                allowed += [ClientError.__name__, PoolNotFound.__name__]
            demand(met and error in allowed, f"the call raised {error}")
        if met and way in SUCCESSORS:
            self._succeed(way)
        if not rival.truncated:
            self._judge(rival, act, way)
        self._use(rival)
        return met

    def _call(self, act: Act, k: int, other: Callable[[], None], way: str) -> tuple[bool, str]:
        """Make the call in a process of its own; whether it came to event k, and its error."""
        asked, ask = os.pipe()
        answered, answer = os.pipe()

        def meet() -> None:
            os.write(ask, b"at\n")
            if way in SUCCESSORS:
                os.kill(os.getpid(), signal.SIGKILL)
            os.read(answered, 1)

        def target(slot: int, incarnation: int) -> None:
            handle = act.begun(self.url)
            try:
                with Events(k, meet):
                    act.call(self.url, handle)
            except LimpetError as error:
                os.write(ask, type(error).__name__.encode() + b"\n")
            if handle is not None:
                handle.close()

        try:
            with Workers(target) as workers:
                pid = workers.start(0)
                os.close(ask)
                ask = -1
                said: list[str] = []
                while select.select([asked], [], [], PATIENCE_S)[0]:
                    lines = os.read(asked, 4096).decode().split()
                    if not lines:
                        break
                    said += lines
                    if "at" in lines:
                        other()
                        os.write(answer, b"x")
                else:
                    raise Broken("the call does not end")
                ended = workers.reap(pid)
        finally:
            for fd in (asked, ask, answered, answer):
                if fd >= 0:
                    os.close(fd)
        expected = (0, -signal.SIGKILL) if way in SUCCESSORS else (0,)
        demand(ended.status in expected, f"it ended with {ended.status}: {ended.traceback}")
        return "at" in said, "".join(line for line in said if line != "at")

    # ---- demands --------------------------------------------------------------------------------

    def _succeed(self, way: str) -> None:
        """The call of a killed process's successor. Where another host may still be at work, only
        `destroy` takes away what the killed process has left."""
        refusals: tuple[type[LimpetError], ...] = (PoolExists, PoolNotFound)
        if way == "killed, then open":
            refusals = ()
        if self.location.several_hosts:
            refusals = (PoolExists, PoolNotFound, PoolIncomplete)
        with contextlib.suppress(*refusals):
            SUCCESSORS[way](self.url)

    def _segments(self) -> list[int]:
        try:
            return [index for index, _ in self.location.removable(any_owner=False)]
        except PoolNotFound:
            return []

    def _judge(self, rival: Rival, act: Act, way: str) -> None:
        """The pool that is there is whole, or there is none."""
        try:
            pool = Pool.open(self.url, timeout_s=HURRY_S)
        except PoolNotFound:
            demand(not self._segments(), f"segments without a pool: {self._segments()}")
            demand(not rival.made or act is ACTS["destroy"], "the other's pool is gone")
            return
        except PoolIncomplete:
            demand(way in SUCCESSORS and self.location.several_hosts, "a pool is in part there")
            return
        with pool:
            found = {one["name"]: one for one in pool.stores()}
            if rival.made:
                value = pool.store("fusee").get(b"key") if found else None
                demand(value == b"%d" % NEW, f"the other's pool has {value!r}")
            elif found and pool.nodes()[1]["state"] == "in service":
                demand(pool.store("fusee").get(b"key") == b"%d" % OLD, "the value is gone")
            if way in SUCCESSORS and act is ACTS["replace"]:
                self._replace_again(pool)
            demand(not pool.audit()["leaked"], "memory is leaked")
        expected = [*range(NODES), CONTROL_NODE]
        demand(self._segments() == expected, f"segments are {self._segments()}")

    def _replace_again(self, pool: Any) -> None:
        pool.recover()
        if found := {one["node"] for one in pool.nodes() if one["state"] != "in service"}:
            demand(found == {1}, f"nodes {found} are lost")
            pool.replace_node(1)
        demand(pool.store("fusee").get(b"key") == b"%d" % OLD, "the value is gone")

    def _use(self, rival: Rival) -> None:
        """The name can be used. A pool that was damaged, or may be another host's, is destroyed."""
        try:
            Pool.open(self.url, create=True, timeout_s=HURRY_S, **SIZES).close()
        except LimpetError:
            demand(rival.truncated or self.location.several_hosts, "the name cannot be used")
            destroy(self.url)
            Pool.create(self.url, **SIZES).close()
