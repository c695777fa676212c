"""How many instructions an operation takes: counted by valgrind's callgrind, not timed.

For each subject (a kind of store, or a channel) and each of its operations a child process under
callgrind makes a pool, and does the operation a few times. Then callgrind is told to count (by
`vgdb`), the child does the operation `ops` times, and callgrind is told to stop. The loop of Python
around the operation is counted alone, and taken off. Instructions depend on the compiler and on
Python's version, and not on how busy the machine is. A little chance is left: some steps of a
client depend on the clock.

An insert is of a new key, so it has its share of growth and splits; the keys that are deleted are
there before. An update is of a key that was updated twice before. An insert when full, of a cache,
evicts another entry. A transaction exchanges the values of two keys. A scan is of 100 pairs. A view
reads a byte of a value in place, a reserve fills a value of a key that is there.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import limpet
from limpet.shm.errors import LimpetError, ParameterError, PoolNotFound
from limpet.stores.core.status import WINDOW
from limpet.stores.registry import CACHES, KINDS, UNRECOVERED, store_class

KEYS: Final = 1000
VALUE: Final = b"v" * 64
SCAN: Final = 100
NODE_SIZE: Final = "64MiB"
NODES: Final = 3
FEW: Final = 200
"""Operations that are done before it is counted."""
PATIENCE_S: Final = 60.0
LOOP: Final = "loop"
UNCOUNTED: Final = frozenset({"clover"})
"""Part of its work is done by a process of its own, which cannot do without valgrind's files."""
CHANNELS: Final = {
    "lock": ("acquire and release",),
    "semaphore": ("acquire and release",),
    "rwlock": ("read and release", "write and release"),
    "queue": ("put and get",),
    "deque": ("append and popleft",),
    "topic": ("publish and get",),
    "jobs": ("put, get and ack",),
    "ring": ("send and receive",),
    "counter": ("add", "value", "set"),
    "array": ("get", "set", "add", "compare and swap"),
}
EVICTING: Final = "insert when full"
NOTED: Final = "update of a watched store"
MANY: Final = 64
SINGLY: Final = {
    "get_many": "gets", "put_many": "puts", "put_many, new keys": "puts, new keys",
    "pipeline of gets": "gets", "pipeline of puts": "puts",
}  # fmt: skip
"""Calls of batches.py with MANY keys each, and the loops over single operations beside them."""
_COLLECTED: Final = re.compile(r"Collected : (\d+)")
_SETTINGS: Final = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


class Cost(NamedTuple):
    """Instructions of one operation of a subject, without the loop around it."""

    subject: str
    operation: str
    instructions: float


def operations(subject: str) -> tuple[str, ...]:
    """The operations of a kind of store, or of a channel; ParameterError: it is neither."""
    if subject in CHANNELS:
        return CHANNELS[subject]
    if subject not in {*KINDS, *UNRECOVERED, *CACHES} or subject in UNCOUNTED:
        raise ParameterError(f"{subject!r} is not counted; {', '.join(subjects())} are")
    found = ["get", "update", "insert", "delete"]
    cls = store_class(subject)
    if cls.views:
        found += ["view"] if subject in CACHES else ["view", "reserve"]
    if cls.transactional:
        found.append("transaction")
    if cls.ordered:
        found.append("scan")
    if cls.watchable:
        found.append(NOTED)
    if subject in CACHES:
        found.append(EVICTING)
    return tuple(found)


def subjects() -> tuple[str, ...]:
    """All of them."""
    kinds = (kind for kind in (*KINDS, *UNRECOVERED) if kind not in UNCOUNTED)
    return (*kinds, *CACHES, *CHANNELS)


def missing() -> str:
    """Why nothing can be counted here; "": it can."""
    absent = [name for name in ("valgrind", "vgdb") if not shutil.which(name)]
    return f"{' and '.join(absent)} cannot be found; install valgrind" if absent else ""


def chosen(names: Sequence[str], only: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The subjects of these names, each with its operations; `only`: these operations, or all."""
    return [
        (name, operation)
        for name in names
        for operation in operations(name)
        if not only or operation in only
    ]


def of_a_key(subject: str, operation: str, calls: int) -> float:
    """Instructions of one key in an operation of SINGLY, or in the loop beside it, of so many calls
    with MANY keys. The loop over the keys is part of it."""
    spent = _counted(subject, operation, calls) - _counted(LOOP, "", calls)
    return spent / (calls * MANY)


def run(pairs: Sequence[tuple[str, str]], ops: int) -> Iterator[Cost]:
    """Count each of these subjects' operations."""
    loop = _counted(LOOP, "", ops)
    for subject, operation in pairs:
        yield Cost(subject, operation, (_counted(subject, operation, ops) - loop) / ops)


def _counted(subject: str, operation: str, ops: int) -> int:
    """Instructions of so many operations."""
    url = f"shm://limpet-instructions-{os.getpid()}"
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--instr-atstart=no",
        sys.executable, "-m", "limpet.bench.instructions", subject, operation, str(ops), url,
    ]  # fmt: skip
    pipe = subprocess.PIPE
    # With -m, a checkout that is the working directory would come before what is installed.
    with subprocess.Popen(
        command, cwd="/", env={**os.environ, **_SETTINGS}, text=True, stdin=pipe, stdout=pipe,
        stderr=pipe,
    ) as child:  # fmt: skip
        try:
            _answer(child, "ready")
            _tell(child, "on")
            _answer(child, "over")
            _tell(child, "off")
            _, said = child.communicate("\n", timeout=PATIENCE_S)
        finally:
            child.kill()
            with contextlib.suppress(PoolNotFound):
                limpet.destroy(url)
    found = _COLLECTED.search(said)
    if child.returncode or found is None:
        raise LimpetError(f"{subject}, {operation}: valgrind ended with: {said[-2000:]}")
    return int(found[1])


def _answer(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdout is not None
    assert child.stderr is not None
    if child.stdout.readline().strip() != word:
        raise LimpetError(f"the process that is counted has failed: {child.stderr.read()[-2000:]}")


def _tell(child: subprocess.Popen[str], switch: str) -> None:
    """Switch callgrind's counting on or off from here on, and let the child go on."""
    assert child.stdin is not None
    vgdb = ["vgdb", f"--pid={child.pid}", "--wait=10", "instrumentation", switch]
    done = subprocess.run(vgdb, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LimpetError(f"vgdb cannot talk to valgrind: {done.stderr.strip()}")
    child.stdin.write("\n")
    child.stdin.flush()


# ---- the process that is counted -----------------------------------------------------------------


def _nothing(*_: Any) -> None:
    pass


def work_of(pool: limpet.Pool, subject: str, operation: str, most: int) -> Callable[[int], Any]:
    """The operation, to be called with 0, 1, 2 ..."""
    if subject == LOOP:
        return _nothing
    if subject == "lock":
        lock = pool.lock("lock")

        def in_turn(number: int) -> None:
            lock.acquire()
            lock.release()

        return in_turn
    if subject in ("semaphore", "rwlock"):
        held: Any = pool.semaphore("semaphore", 4)
        if subject == "rwlock":
            rwlock = pool.rwlock("rwlock")
            held = rwlock.read() if operation.startswith("read") else rwlock.write()

        def held_in_turn(number: int) -> None:
            held.acquire()
            held.release()

        return held_in_turn
    if subject == "queue":
        queue = pool.queue("queue")

        def through(number: int) -> None:
            queue.put(VALUE)
            queue.get()

        return through
    if subject == "deque":
        deque = pool.deque("deque")

        def across(number: int) -> None:
            deque.append(VALUE)
            deque.popleft()

        return across
    if subject == "topic":
        topic = pool.topic("topic")
        reader = topic.subscribe()

        def told(number: int) -> None:
            topic.publish(VALUE)
            reader.get()

        return told
    if subject == "jobs":
        jobs = pool.queue("jobs", acks=True)

        def done(number: int) -> None:
            jobs.put(VALUE)
            jobs.get().ack()

        return done
    if subject == "ring":
        ring = pool.ring("ring")
        ring.subscribe()

        def around(number: int) -> None:
            ring.send(VALUE)
            ring.receive()

        return around
    if subject == "counter":
        return _on_counter(pool.counter("counter"), operation)
    if subject == "array":
        return _on_array(pool.array("array", KEYS), operation)
    counted = most * MANY if operation in SINGLY or operation in SINGLY.values() else most
    sizes = {} if store_class(subject).grows else {"capacity": 2 * (KEYS + counted)}
    if operation == EVICTING:
        sizes = {"max_items": KEYS}
    store = pool.store(subject, name="store", **sizes)
    keys = [b"key %016d" % number for number in range(KEYS)]
    for key in keys:
        store.put(key, VALUE)
    for _ in range(2):  # so that memory is ready, each key has its buffers, and the caches know it
        for key in keys:
            store.put(key, VALUE)
            store.get(key)
    if counted != most:
        return many(store, operation, keys, most)
    if operation == "get":
        return lambda number: store.get(keys[number % KEYS])
    if operation == NOTED:
        store.changes()
    if operation in ("update", NOTED):
        return lambda number: store.update(keys[number % KEYS], VALUE)
    if operation in ("insert", EVICTING):
        return lambda number: store.insert(b"new %016d" % number, VALUE)
    if operation == "delete":
        for number in range(most):
            store.put(b"new %016d" % number, VALUE)
        return lambda number: store.delete(b"new %016d" % number)
    if operation in ("view", "reserve"):
        return _in_place(store, operation, keys)
    if operation == "scan":
        return lambda number: list(store.scan(keys[number % (KEYS - SCAN)], limit=SCAN))

    def move(number: int) -> None:
        source, target = keys[number % KEYS], keys[(number + 1) % KEYS]

        def transfer(tx: Any) -> None:
            first, second = tx.get(store, source), tx.get(store, target)
            tx.put(store, source, second)
            tx.put(store, target, first)

        pool.transaction(transfer)

    return move


def _in_place(store: Any, operation: str, keys: list[bytes]) -> Callable[[int], Any]:
    def look(number: int) -> None:
        with store.view(keys[number % KEYS]) as value:
            value[-1]

    def fill(number: int) -> None:
        with store.reserve(keys[number % KEYS], len(VALUE)) as buffer:
            buffer[:] = VALUE

    return look if operation == "view" else fill


def _on_counter(counter: Any, operation: str) -> Callable[[int], Any]:
    if operation == "add":
        return lambda number: counter.add(1)
    if operation == "value":
        return lambda number: counter.value
    return lambda number: counter.set(number)


def _on_array(array: Any, operation: str) -> Callable[[int], Any]:
    """Of elements of 8 bytes."""
    if operation == "get":
        return lambda number: array[number % KEYS]
    if operation == "add":
        return lambda number: array.add(number % KEYS, 1)
    if operation == "compare and swap":
        return lambda number: array.compare_and_swap(number % KEYS, 0, 0)

    def put(number: int) -> None:
        array[number % KEYS] = number

    return put


def many(store: Any, operation: str, keys: list[bytes], most: int) -> Callable[[int], Any]:
    """An operation of SINGLY, or the loop beside it, on MANY keys; to be called with 0, 1, 2 ..."""
    chunks = []
    for first in range(0, most * MANY, MANY):
        some = [keys[each % len(keys)] for each in range(first, first + MANY)]
        if operation.endswith("new keys"):
            some = [b"new %016d" % each for each in range(first, first + MANY)]
        chunks.append([(key, VALUE) for key in some])
    names = [[key for key, _ in chunk] for chunk in chunks]
    get, put = store.get, store.put

    def gets(number: int) -> None:
        for key in names[number]:
            get(key)

    def puts(number: int) -> None:
        for key, value in chunks[number]:
            put(key, value)

    if operation == "get_many":
        return lambda number: store.get_many(names[number])
    if operation.startswith("pipeline"):
        gets_only = operation.endswith("gets")
        return lambda number: pipelined(store, names[number] if gets_only else chunks[number])
    if operation.startswith("put_many"):
        return lambda number: store.put_many(chunks[number])
    return gets if operation == "gets" else puts


def pipelined(store: Any, items: list[Any]) -> None:
    """Get these keys, or put these pairs, by a pipeline."""
    with store.pipeline(WINDOW) as pipeline:
        if type(items[0]) is bytes:
            for key in items:
                pipeline.get(key)
        else:
            for key, value in items:
                pipeline.put(key, value)


def main(subject: str, operation: str, ops: str, url: str) -> None:
    """Do the operation so often, on a pool of its own, when the parent says so."""
    with limpet.create(url, nodes=NODES, node_size=NODE_SIZE) as pool:
        try:
            work = work_of(pool, subject, operation, FEW + int(ops))
            for number in range(FEW):
                work(number)
            gc.collect()
            gc.disable()
            print("ready", flush=True)
            sys.stdin.readline()
            for number in range(FEW, FEW + int(ops)):
                work(number)
            print("over", flush=True)
            sys.stdin.readline()
        finally:
            limpet.destroy(url)


if __name__ == "__main__":
    main(*sys.argv[1:])
