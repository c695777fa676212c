"""The demo: workers rewrite the standard library in shared memory while they are being killed.

A pool of three nodes is filled with every file of a directory (path -> content). Workers then get
and rewrite files with Zipfian keys. A killer ends a random worker at a given rate, and a new one
takes its place. It is a drill as any other (drill_base.py), on a store that has real contents. A
rewrite gets a value, checks it and puts its content back with a new trailer (`reseal`), so a
damaged value stays damaged and is found. Every get and put is in a history that survives its worker
(`recorder`). In the end the demo verifies all of it (`verify`): each read during the run and after
it, the set of keys, `check()`, and `audit()` after `recover()`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sysconfig
import time
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

import limpet
from limpet.fault.check.recorder import NOTE, Notes, Operation, Recorder
from limpet.fault.check.self_check import Original
from limpet.fault.check.verify import FINAL, Verdict, verify
from limpet.fault.drill.drill_base import (
    AUDIT,
    MOVING,
    WORKERS,
    DrillBase,
    Observer,
    RunParameters,
    RunReport,
)
from limpet.fault.drill.workload import DemoWorker, Entry, ZipfWorkload, gets_and_puts, judge
from limpet.fault.inject.counters import Counters
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.supervisor import BLOCKED_S
from limpet.shm.backends.location import parse_url
from limpet.shm.errors import (
    KeyTooLarge,
    LimpetError,
    ParameterError,
    PoolError,
    ValueTooLarge,
)
from limpet.shm.parameters import KIB, MIB, PoolParameters
from limpet.stores.core.parameters import KEY_SIZE_MAX
from limpet.stores.registry import parameters_of
from limpet.stores.swarm.parameters import REPLICAS

READS: Final = "every read gave a whole value that some write or the load wrote, and no stale one"
KEYS: Final = "no key is missing, none is extra"
INVARIANTS: Final = "check(): the invariants of the store"
CHECKS: Final = (WORKERS, MOVING, READS, KEYS, INVARIANTS, AUDIT)


def standard_library() -> Path:
    """The directory of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


@dataclasses.dataclass(frozen=True)
class DemoParameters(RunParameters):
    """Parameters of a demo. `write_share` is the share of rewrites.

    Keys are drawn from Zipf(theta) over all files.
    """

    kill_rate: float = 2.0
    stop_rate: float = 0.0
    watch: bool = False
    lease_ms: int = PoolParameters.lease_us // 1000
    blocked_s: float = BLOCKED_S
    data: Path = dataclasses.field(default_factory=standard_library)
    write_share: float = 0.2
    theta: float = 0.99

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "data": str(self.data)}


class DemoObserver(Observer, Protocol):
    """Receives the demo's progress, to show it."""

    def loading(self, done: int, total: int) -> None:
        """`done` of `total` bytes of files are in the pool."""


@dataclasses.dataclass(frozen=True)
class DemoReport(RunReport):
    """The result of a demo: the files, and the faults of their reads."""

    parameters: DemoParameters
    files: int
    size: int
    skipped: list[str]
    verdict: Verdict


BLOCK_SIZE: Final = 256 * KIB
BLOCK_SIZE_SMALL: Final = 16 * KIB
"""The block size of a pool that would not fit otherwise."""
FILES_MIN: Final = 100
"""If there is room for fewer files than this, and more exist, the demo does not begin."""


def find_files(directory: Path) -> dict[Path, int]:
    """The files below `directory` without site packages, and their sizes."""
    files: dict[Path, int] = {}
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(set(folders) - {"site-packages", "dist-packages"})
        for path in (Path(folder, name) for name in sorted(names)):
            if path.is_file() and not path.is_symlink():
                files[path] = path.stat().st_size
    return files


def node_size(
    parameters: DemoParameters, size: int, largest: int, block_size: int = BLOCK_SIZE
) -> int:
    """Bytes of a node: its share of the files thrice over, copies of the largest, clients' blocks.

    A store with replicas has each file as often: no kind has more than REPLICAS by itself.

    A client has blocks of its own for each of some 50 size classes, and may have a copy of the
    largest file in the client journal.
    """
    copies = 1
    if "replicas" in parameters_of(parameters.store):
        copies = parameters.parameters.get("replicas") or min(REPLICAS, parameters.nodes)
    own = (parameters.clients + 1) * (largest + 64 * block_size)
    return -(-(3 * copies * size // parameters.nodes + own) // MIB) * MIB


def run(parameters: DemoParameters, observer: DemoObserver) -> DemoReport:
    """Run the demo; call it from the main thread.

    Raises Interrupted on Ctrl-C, SIGTERM and SIGHUP, LimpetError when the pool cannot be made or
    filled. Whatever ends it, the workers have ended then and the pool is gone.
    """
    found = find_files(parameters.data)
    if not found:
        raise ParameterError(f"there are no files in {parameters.data}; name another directory")
    files, each, block_size = fit(found, parameters)
    size = sum(found[path] for path in files)
    with contextlib.ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        nodes = parameters.nodes
        pool = limpet.create(
            parameters.url, nodes=nodes, node_size=each, block_size=block_size,
            fence=parameters.fence, lease=parameters.lease_ms / 1000,
        )  # fmt: skip
        stack.callback(limpet.destroy, parameters.url)
        stack.callback(pool.close)
        recorder = stack.enter_context(Recorder(parameters.clients))
        store = pool.store(parameters.store, name="files", **store_parameters(files, parameters))
        demo = _Demo(parameters, observer, interrupt, pool, store, recorder)
        if len(files) < len(found):
            demo.skipped.append(
                f"{len(found) - len(files)} of {len(found)} files, for which there is no room"
            )
        demo.load(files, size)
        demo.work()
        return demo.verify()


def fit(found: dict[Path, int], parameters: DemoParameters) -> tuple[list[Path], int, int]:
    """The files to load, of those that were found; bytes of a node, and of a block.

    All files; or, in smaller blocks, as many as the file system has room for, without files larger
    than a 256th of it. Raises PoolError if these are too few, before the demo begins.
    """
    url, nodes = parameters.url, parameters.nodes
    location = parse_url(url)
    size, largest = sum(found.values()), max(found.values())
    each = node_size(parameters, size, largest)
    room = location.room()
    if room is None or nodes * each <= room[1]:
        return list(found), each, BLOCK_SIZE
    folder, free = room
    files: list[Path] = []
    size = largest = 0
    for path, bytes_ in found.items():
        with_it = node_size(parameters, size + bytes_, max(largest, bytes_), BLOCK_SIZE_SMALL)
        if bytes_ <= free // 256 and nodes * with_it + 2 * MIB <= free:  # 2 MiB: all else of a pool
            files.append(path)
            size, largest = size + bytes_, max(largest, bytes_)
    if len(files) < min(len(found), FILES_MIN):
        raise PoolError(
            f"{url}: the demo needs up to {nodes * each // MIB} MiB, or less for fewer files; "
            f"{folder} has {free // MIB} MiB free; make room, load less (--data DIR) or use "
            "another place (--url file:///DIR)"
        )
    return files, node_size(parameters, size, largest, BLOCK_SIZE_SMALL), BLOCK_SIZE_SMALL


def store_parameters(files: list[Path], parameters: DemoParameters) -> dict[str, Any]:
    """The parameters of the store: room for twice as many files, and for the longest key."""
    found: dict[str, Any] = {"capacity": 2 * len(files)}
    if "key_size" in parameters_of(parameters.store):
        longest = max(len(key_of(path, parameters.data)) for path in files)
        found["key_size"] = min(longest, KEY_SIZE_MAX)
    return {**found, **parameters.parameters}


def key_of(path: Path, data: Path) -> bytes:
    """The key of a file of the directory `data`."""
    return os.fsencode(path.relative_to(data))


class _Demo(DrillBase[DemoParameters]):
    observer: DemoObserver

    def __init__(
        self,
        parameters: DemoParameters,
        observer: DemoObserver,
        interrupt: Interrupt,
        pool: limpet.Pool,
        store: Any,
        recorder: Recorder,
    ) -> None:
        super().__init__(parameters, observer, interrupt, pool, CHECKS)
        self.store = store
        self.recorder = recorder
        self.entries: list[Entry] = []
        self.skipped: list[str] = []

    def load(self, files: list[Path], total: int) -> None:
        """Put every file into the store.

        A file that cannot be read, or is too large for the kind, is skipped, and reported. A
        separate client does this and leaves, so that the workers inherit its blocks.
        """
        large: list[str] = []
        with self.timed("load"), limpet.open(self.parameters.url) as loader:
            store = loader.store(self.store.kind, name=self.store.name)
            done = 0
            for path in files:
                self.interrupt.check()
                try:
                    content = path.read_bytes()
                except OSError as error:
                    self.skipped.append(f"{path}: {error.strerror}")
                    continue
                key = key_of(path, self.parameters.data)
                try:
                    store.insert(key, content)
                except (KeyTooLarge, ValueTooLarge) as error:
                    large.append(f"{path} ({len(content)} bytes): {error}")
                    continue
                self.entries.append(Entry(key, Original.of(content)))
                done += len(content)
                self.observer.loading(done, total)
        if large:
            more = f"; and {len(large) - 1} more that are too large" if len(large) > 1 else ""
            self.skipped.append(large[0] + more)
        if not self.entries:
            raise PoolError(
                f"{self.parameters.url}: no file of {self.parameters.data} could be loaded "
                f"({self.skipped[-1]}); name another directory or store"
            )

    def work(self) -> None:
        """Let the workers work for the given time, kill some meanwhile, and let the rest end."""
        parameters = self.parameters
        shares = gets_and_puts(parameters.write_share)
        counters = Counters(parameters.clients)
        mix = ZipfWorkload(len(self.entries), parameters.theta, shares, parameters.seed)

        def worker(slot: int, incarnation: int) -> None:
            log = self.recorder.log(slot, incarnation)
            counter = counters.counter(slot)
            counter.start(os.getpid(), self.pool.client_id)
            DemoWorker(self.store, self.entries, incarnation, log, counter).work(
                mix.draw(incarnation)
            )

        self.run_clients(worker, counters)

    def verify(self) -> DemoReport:
        """Judge everything."""
        before = after = np.zeros(0, NOTE)
        with self.timed("verify"), self.unblocked():
            before = self._read_all("reading every key")
            self.recover()
            after = self._read_all("reading every key again")
            self.look("checking the store's invariants", INVARIANTS, self.store.check)
            self.account()
            self.observer.verifying("verifying every read")
        notes = np.concatenate([self.recorder.notes(), before, after])
        verdict = verify(notes, [os.fsdecode(entry.key) for entry in self.entries])
        for kind, count in verdict.wrong.items():
            self.checks[READS].append(f"{kind}: {count} of {verdict.reads} reads")
        self.checks[READS] += verdict.examples
        return DemoReport(
            **self.outcome(),
            files=len(self.entries),
            size=sum(entry.original.size for entry in self.entries),
            skipped=self.skipped,
            verdict=verdict,
        )

    def _read_all(self, what: str) -> Notes:
        """Read every key, and the set of keys; returns the reads as notes."""
        self.observer.verifying(what)
        notes = np.zeros(len(self.entries), NOTE)
        for number, entry in enumerate(self.entries):
            self.interrupt.check()
            call_ns = time.monotonic_ns()
            try:
                value = self.store.get(entry.key)
            except LimpetError as error:
                self.checks[READS].append(f"{entry.key!r}: {type(error).__name__}: {error}")
                return notes[:number]
            return_ns = time.monotonic_ns()
            result, read = judge(value, entry.original, number)
            notes[number] = (FINAL, Operation.GET, result, number, 0, read, call_ns, return_ns)
        self.look("listing the keys", KEYS, self._check_keys)
        return notes

    def _check_keys(self) -> None:
        found = list(self.store)
        expected = {entry.key for entry in self.entries}
        if len(found) != len(self.store) or len(found) != len(set(found)):
            raise limpet.StoreCorrupt(
                f"iteration gives {len(found)} keys, {len(set(found))} of them different; "
                f"len() says {len(self.store)}"
            )
        if set(found) != expected:
            missing, extra = sorted(expected - set(found)), sorted(set(found) - expected)
            raise limpet.StoreCorrupt(
                f"{len(missing)} keys are missing {missing[:3]}, {len(extra)} too many {extra[:3]}"
            )
