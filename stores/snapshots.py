"""`pool.snapshot` and `limpet.restore`: a whole pool as a file, and a pool from such a file.

The file, lines of JSON
    {"limpet_snapshot": 1, "pool": URL, "nodes": how many, with those that were added,
        "node_size": of each, "release": ..., "made_ms": since 1970, "parameters": {...}}; a restore
        makes the nodes of `parameters`
    then for each store the lines of its dump: the head, and an entry a line (dumps.py). Of a store
        that is no cache the head has `parameters`, too: those of PARAMETERS that it was made with
    then for each channel {"channel": NAME, "kind": ..., "parameters": {...}}, and lines of its
        state: {"value": number}; {"item": hex}, an element of a queue or deque; {"job": hex, ...};
        {"rows": first, "bytes": hex} of an array, {"bytes": hex} of one without axes
    {"dropped": true}, after lines of a store or channel that was dropped while it was written
    {"lines": how many are before this one, "bytes": of keys and values, "sha256": of all before}

Keys, values and elements are the encoded bytes, so nothing is decoded, and no codec's module is
imported, but for channels: their handles look up the codec when they are made. The file depends on
no size, layout or build.

What holds of the snapshot of a pool in use: each key is as it was at one moment, of different keys
not the same one; so are each element of an array of up to 8 bytes, each job, and the elements of a
deque together. A key, element or job that is there all the time is in it, once. Stores are read
one after the other.

Kept of channels (`KEPT`): the number of a counter, whether an event is set, arrays, the elements of
queues and deques; of queues with acks the jobs, with priority, key, delay, deliveries and reason,
and dead letters. A job that is held waits again, as if it had not been delivered. An element of a
plain queue that a process has got is that process's. Locks, semaphores, reader-writer locks,
conditions and barriers are made anew, free; rings and topics without messages; results of jobs are
not kept. Other kinds of channels, which programs open by `pool.channels`, are left out
(`Snapshot.left_out`).

Steps of a snapshot: write FILE.part, which is locked meanwhile, and for its owner alone to read;
make it persist; rename it to FILE, or to what FILE links to. It has to be a regular file.
A kill leaves FILE as it was, and perhaps FILE.part, which the next snapshot to FILE replaces.

Steps of a restore: read the whole file, and compare the checksum; make the pool with an incomplete
control segment, whose name is held (shm/backends/name.py); fill it; complete it. A kill before that
leaves what a killed creator leaves: no process opens it, the next creator of the name, `limpet
destroy` or `limpet prune` removes it. An error removes it at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np

from limpet.shm.errors import (
    ChannelFull,
    ChannelRemoved,
    LimpetError,
    ParameterError,
    SnapshotDamaged,
    StoreDropped,
    StoreFull,
    ValueTooLarge,
)
from limpet.shm.late import late
from limpet.shm.parameters import MIB
from limpet.shm.release import RELEASE
from limpet.stores.channels.jobs.table import JobCopy
from limpet.stores.core.status import PUT
from limpet.stores.dumps import fields_of, head_of, terms_of, wall_shift_us
from limpet.stores.registry import CACHES, parameters_of

FORMAT: Final = 1
PARAMETERS: Final = (
    "capacity", "key_size", "value_size", "replicas", "index_replicas", "limit", "locality", "sums",
)  # fmt: skip
"""Of a store that is no cache, what a snapshot has; each kind has some of them."""
POOL_PARAMETERS: Final = ("nodes", "node_size", "clients", "lease_us", "fence", "multi_host",
                          "durable")  # fmt: skip
"""What a restored pool has from the pool of the snapshot, unless it is told otherwise."""
HERE: Final = "limpet.stores.channels."
CLASSES: Final = {
    "counter": ("counter", "Counter"),
    "event": ("event", "Event"),
    "array": ("array.array", "Array"),
    "queue": ("queue.shared_queue", "SharedQueue"),
    "jobs": ("jobs.job_queue", "JobQueue"),
    "deque": ("deque", "Deque"),
    "lock": ("lock.lock", "Lock"),
    "semaphore": ("holders.semaphore", "Semaphore"),
    "rwlock": ("holders.rwlock", "RwLock"),
    "condition": ("condition", "Condition"),
    "barrier": ("barrier.barrier", "Barrier"),
    "ring": ("ring.ring_buffer", "RingBuffer"),
    "topic": ("topic", "Topic"),
}
"""Module and class of the kinds of channels that are in a snapshot."""
KEPT: Final = frozenset(("counter", "event", "array", "queue", "jobs", "deque"))
"""Kinds of channels of which the state is."""
PIECE: Final = 1 << 18
"""Bytes of an array in one line."""
BATCH: Final = 256
"""Elements that are put at a time."""


class Snapshot(NamedTuple):
    """What a snapshot has, or a restore has put into a pool. `size`: bytes of keys and values, and
    of the state of channels. `left_out`: names of channels of other kinds; `expired`: entries of
    caches that were too old to be restored."""

    stores: int
    channels: int
    lines: int
    size: int
    left_out: tuple[str, ...] = ()
    expired: int = 0


# ---- writing -------------------------------------------------------------------------------------


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.lines = 0
        self.size = 0

    def write(self, what: dict[str, Any], size: int = 0) -> None:
        data = json.dumps(what).encode() + b"\n"
        self.file.write(data)
        self.digest.update(data)
        self.lines += 1
        self.size += size

    def end(self) -> None:
        self.write({"lines": self.lines, "bytes": self.size, "sha256": self.digest.hexdigest()})


def write(pool: Any, file: str | os.PathLike[str]) -> Snapshot:
    """See `Pool.snapshot`."""
    path = Path(os.path.realpath(file))
    if path.exists() and not path.is_file():
        raise ParameterError(f"{path} is no regular file: a snapshot is not written to it")
    part = path.with_name(path.name + ".part")
    with _locked_part(part, path) as opened:
        found = _write(pool, _Writer(opened))
        opened.flush()
        os.fsync(opened.fileno())
        # A kill here: FILE is as it was, and FILE.part is whole.
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return found


@contextlib.contextmanager
def _locked_part(part: Path, path: Path) -> Iterator[IO[bytes]]:
    """The file that is written, emptied and locked, which its owner alone may read; removed after
    an error."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with os.fdopen(os.open(part, flags, 0o600), "ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another snapshot may have ended since it was opened: then it is FILE now.
            ours = os.path.samestat(os.fstat(opened.fileno()), os.lstat(part))
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours:
            raise ParameterError(f"another process is writing a snapshot to {path}")
        opened.truncate(0)
        try:
            yield opened
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _write(pool: Any, out: _Writer) -> Snapshot:
    parameters = {name: getattr(pool.parameters, name) for name in POOL_PARAMETERS}
    # Of a pool with added nodes, the memory of all, in as many nodes as it was made with.
    parameters["node_size"] *= -(-pool.view.nodes // pool.parameters.nodes)
    out.write(
        {
            "limpet_snapshot": FORMAT,
            "pool": pool.url,
            "nodes": pool.view.nodes,
            "node_size": pool.parameters.node_size,
            "release": RELEASE,
            "made_ms": time.time_ns() // 1_000_000,
            "parameters": parameters,
        }
    )
    stores = channels = 0
    for listed in pool.stores():
        stores += _written(out, lambda listed=listed: _write_store(pool, out, listed))
    left_out = []
    listed_channels = [] if pool.parameters.durable else pool.channels.list()
    for listed in listed_channels:
        if listed["kind"] in CLASSES:
            channels += _written(out, lambda listed=listed: _write_channel(pool, out, listed))
        else:
            left_out.append(listed["name"])
    size, lines = out.size, out.lines
    out.end()
    return Snapshot(stores, channels, lines, size, tuple(left_out))


def _written(out: _Writer, write: Any) -> bool:
    """Write a store or channel; False: it was dropped meanwhile."""
    lines = out.lines
    try:
        write()
    except (StoreDropped, ChannelRemoved):
        if out.lines > lines:
            out.write({"dropped": True})
        return False
    return True


def _write_store(pool: Any, out: _Writer, listed: dict[str, Any]) -> None:
    name, kind = listed["name"], listed["kind"]
    store, codec = pool.attached(kind, name)
    head = head_of(store, name, codec)
    if kind not in CACHES:
        known = parameters_of(kind).intersection(PARAMETERS)
        made = listed["parameters"]
        head["parameters"] = {field: made[field] for field in sorted(known) if field in made}
    out.write(head)
    for key in store:
        found = fields_of(store, key)
        if found is not None:
            value = found.pop("value")
            size = len(key) + len(value)
            out.write({"key": key.hex(), "value": value.hex(), **found}, size)


def _write_channel(pool: Any, out: _Writer, listed: dict[str, Any]) -> None:
    name, kind = listed["name"], listed["kind"]
    parameters = listed["parameters"] or {}
    head = {"channel": name, "kind": kind, "parameters": parameters}
    if kind not in KEPT:
        out.write(head)
        return
    channel = _opened(pool, name, kind, parameters)
    if kind == "array":
        out.write(head)
        _write_array(out, channel)
        return
    state: list[tuple[dict[str, Any], int]]
    if kind == "counter":
        state = [({"value": channel.value}, 8)]
    elif kind == "event":
        state = [({"value": int(channel.is_set())}, 8)]
    elif kind == "jobs":
        shift = wall_shift_us(channel)
        state = [(_job(job, shift), len(job.data)) for job in channel.copies()]
    else:
        state = [({"item": data.hex()}, len(data)) for data in channel.copies()]
    out.write(head)
    for line, size in state:
        out.write(line, size)


def _write_array(out: _Writer, array: Any) -> None:
    if not array.shape:
        data = np.ascontiguousarray(array[()]).tobytes()
        out.write({"bytes": data.hex()}, len(data))
        return
    row = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    step = max(1, PIECE // max(1, row))
    for first in range(0, array.shape[0], step):
        data = np.ascontiguousarray(array[first : first + step]).tobytes()
        if data.strip(b"\0"):  # it is made of zeros
            out.write({"rows": first, "bytes": data.hex()}, len(data))


def _job(job: JobCopy, shift: int) -> dict[str, Any]:
    due = job.due + shift if job.due else 0
    more = {
        "level": job.level,
        "due_us": due,
        "hash": job.key,
        "deliveries": job.deliveries,
        "letter": job.letter,
        "reason": job.reason.hex(),
    }
    return {"job": job.data.hex(), **{name: one for name, one in more.items() if one}}


def _opened(pool: Any, name: str, kind: str, parameters: dict[str, Any]) -> Any:
    module, cls = CLASSES[kind]
    return pool.channels.open(getattr(late(HERE + module), cls), name, **parameters)


# ---- reading -------------------------------------------------------------------------------------


class Reader:
    """A snapshot in an open file, which is whole. SnapshotDamaged: it is not."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self.file = file
        """The same one all the time, whatever the path names by then."""
        self.size = self.lines = 0
        self.head = self._verified()

    def _verified(self) -> dict[str, Any]:
        """The first line, once all of the file was looked at."""
        digest = hashlib.sha256()
        first, last, lines = b"", b"", 0
        for line in self.file:
            digest.update(last)
            first, last, lines = first or line, line, lines + 1
        try:
            head = json.loads(first)
            if not isinstance(head, dict) or "limpet_snapshot" not in head:
                raise ValueError("no head")
        except (ValueError, RecursionError) as error:
            raise SnapshotDamaged(
                f"{self.path} is no snapshot of a pool; `limpet snapshot` writes one, and `limpet "
                "load` reads the dump of a store"
            ) from error
        if head["limpet_snapshot"] != FORMAT:
            raise SnapshotDamaged(
                f"{self.path} is a snapshot of format {head['limpet_snapshot']!r}; this release of "
                f"limpet ({RELEASE}) reads format {FORMAT}"
            )
        try:
            end = json.loads(last) if last.endswith(b"\n") else {}
            whole = isinstance(end, dict) and end.get("lines") == lines - 1
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            raise SnapshotDamaged(
                f"{self.path} was cut short: it has {lines} lines, and the last one does not end a "
                "snapshot; take another one"
            )
        if end.get("sha256") != digest.hexdigest():
            raise SnapshotDamaged(
                f"{self.path} was damaged: its checksum does not hold; take another snapshot"
            )
        self.size, self.lines = end["bytes"], end["lines"]
        return head

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The lines between the first and the last."""
        self.file.seek(0)
        for number, line in enumerate(self.file):
            if 0 < number < self.lines:
                yield json.loads(line)


class _Filling:
    """Puts what a snapshot has into a new pool."""

    def __init__(self, pool: Any, reader: Reader) -> None:
        self.pool = pool
        self.reader = reader
        self.done = self.expired = self.stores = self.channels = 0
        self.target: Any = None
        """The store, or channel, that the next lines are of, and"""
        self.kind = self.name = ""
        self.waiting: list[Any] = []
        """its elements that are not put yet."""

    def fill(self) -> Snapshot:
        try:
            for line in self.reader:
                self._take(line)
            self._flush()
        except (StoreFull, ChannelFull, ValueTooLarge) as error:
            raise self._too_small(error) from error
        except LimpetError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise SnapshotDamaged(
                f"{self.reader.path} has a line that no snapshot has, at {self.name!r}; it was "
                "changed, or written by another program"
            ) from error
        return Snapshot(self.stores, self.channels, self.reader.lines, self.done, (), self.expired)

    def _too_small(self, error: LimpetError) -> StoreFull:
        parameters = self.pool.parameters
        nodes, node_size = parameters.nodes, parameters.node_size
        known = self.reader.head.get("parameters", {})
        before = known.get("nodes", 1), known.get("node_size", 0)
        needed = -(-node_size * self.reader.size // max(1, self.done))
        whole = -(-before[0] * before[1] // nodes)  # surely enough
        if whole > node_size:
            needed = min(needed, whole)
        had = f"nodes={before[0]} of node_size={before[1]}"
        made = self.reader.head.get("nodes", before[0]), self.reader.head.get("node_size", 0)
        if made[0] != before[0]:
            had = (
                f"{made[0]} nodes of {made[1] / MIB:g}MiB; a restore makes {before[0]} of "
                f"{before[1] / MIB:g}MiB"
            )
        return StoreFull(
            f"{self.pool.url}: {self.reader.path} does not fit into nodes={nodes} of "
            f"node_size={node_size}: of {self.reader.size} bytes of keys and values {self.done} "
            f"had room. By that it takes nodes={nodes} of about "
            f"node_size='{-(-needed // MIB)}MiB', with the pool's own words; the pool of the "
            f"snapshot had {had} (at {self.name!r}: {error})"
        )

    def _take(self, line: dict[str, Any]) -> None:
        if "key" in line:
            self._put(line)
        elif "store" in line:
            self._flush()
            self._begin_store(line)
        elif "channel" in line:
            self._flush()
            self.name, self.kind = line["channel"], line["kind"]
            self.channels += 1
            self.target = _opened(self.pool, self.name, self.kind, line["parameters"])
        elif "dropped" in line:
            self.waiting = []
            if self.kind in CLASSES:
                self.pool.channels.remove(self.name)
                self.channels -= 1
            else:
                self.pool.drop(self.name)
                self.stores -= 1
        else:
            self._take_state(line)

    def _begin_store(self, head: dict[str, Any]) -> None:
        self.name, self.kind = head["store"], head["kind"]
        given = dict(head["parameters"])
        parameters = self.pool.parameters
        if given.get("replicas", 0) > parameters.nodes:
            del given["replicas"]  # as many as the pool has room for
        if given.get("index_replicas", 0) > parameters.nodes:
            given["index_replicas"] = parameters.nodes
        if not given.get("limit", 1):
            del given["limit"]
        if self.kind in CACHES:
            memory = parameters.nodes * self.pool.layout.block_count * self.pool.layout.block_size
            given["max_bytes"] = min(given["max_bytes"], memory)
        self.target = self.pool.bare(self.kind, self.name, head["codec"], **given)[0]
        self.stores += 1

    def _put(self, line: dict[str, Any]) -> None:
        key, value = bytes.fromhex(line["key"]), bytes.fromhex(line["value"])
        if self.kind in CACHES:
            terms = terms_of(line)
            if terms is None:
                self.expired += 1
            else:
                self.target.write(key, value, PUT, terms)
        else:
            self.target.put(key, value)
        self.done += len(key) + len(value)

    def _take_state(self, line: dict[str, Any]) -> None:
        if self.kind == "counter":
            self.target.set(line["value"])
            self.done += 8
        elif self.kind == "event":
            if line["value"]:
                self.target.set()
            self.done += 8
        elif self.kind == "array":
            self._put_rows(line)
        else:
            self.waiting.append(self._element(line))
            if len(self.waiting) >= BATCH and self.kind != "jobs":
                self._flush()

    def _put_rows(self, line: dict[str, Any]) -> None:
        data = bytes.fromhex(line["bytes"])
        values = np.frombuffer(data, self.target.dtype)
        if "rows" in line:
            values = values.reshape(-1, *self.target.shape[1:])
            self.target[line["rows"] : line["rows"] + len(values)] = values
        else:
            self.target[()] = values[0]
        self.done += len(data)

    def _element(self, line: dict[str, Any]) -> Any:
        if self.kind != "jobs":
            return bytes.fromhex(line["item"])
        due = line.get("due_us", 0)
        now = self.pool.endpoint.microseconds()
        return JobCopy(
            0,
            bytes.fromhex(line["job"]),
            line.get("level", 0),
            max(now, due - wall_shift_us(self.pool)) if due else 0,
            line.get("hash", 0),
            line.get("deliveries", 0),
            line.get("letter", False),
            bytes.fromhex(line.get("reason", "")),
        )

    def _flush(self) -> None:
        """Put the elements that are waiting."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        try:
            self.target.put_copies(waiting)
        except queue.Full as error:
            raise ParameterError(
                f"{self.reader.path}: {self.kind} {self.name!r} has more elements than places"
            ) from error
        size = [len(one.data if self.kind == "jobs" else one) for one in waiting]
        self.done += sum(size)


def restored(
    cls: Any, file: str | os.PathLike[str], url: str, given: dict[str, Any]
) -> tuple[Any, Snapshot]:
    """See `Pool.restored`."""
    path = Path(file)
    with path.open("rb") as opened:
        reader = Reader(path, opened)
        known = reader.head.get("parameters", {})
        made = {name: known[name] for name in POOL_PARAMETERS if name in known}
        if not made.get("multi_host"):
            made.pop("multi_host", None)  # as the backend has it: on a device hosts may join
        lease_us = made.pop("lease_us", None)
        options = {**made, **{name: one for name, one in given.items() if one is not None}}
        if lease_us is not None:
            options.setdefault("lease", lease_us / 1e6)
        if options.get("ephemeral"):
            raise ParameterError(
                f"{url}: a restored pool stays until it is destroyed: no ephemeral"
            )
        return cls.create_filled(url, lambda pool: _Filling(pool, reader).fill(), **options)
