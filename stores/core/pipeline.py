"""`store.pipeline()`: operations on one store that are done several at a time (SWARM section 7.2).

A program issues operations, and gets a handle for each (`Operation`). They wait until `window` of
them do, or until a result is asked for; then all are done at once. Those on different keys are
independent: they take effect in any order, and as many as a batch has rows share their phases
(`Store.run_batch`). So a window of them is the round trips of one operation, and on mapped memory
it prefetches what it touches. Operations on one key keep their order: the later one is done after
the earlier one. Gets of one key with no change between them are one read.

    race, rtx-race, fusee   gets, puts, inserts and updates of a window share phases (race/batch.py)
    swarm, dm-abd           gets, puts and updates of keys whose place is remembered do
    rcuckoo, loco, trees    gets do
    others                  no two operations share a phase

Each operation is as it is alone: linearizable, done or not, with an error of its own. Of a change
in a batch that lost a node it may not be known whether it was made: its error says so, and it is
not made again. In a KeyboardInterrupt, or another exception of a signal handler, operations that
were not done by then have an error, too.

A kill leaves behind: each operation whole or not at all, as a batch leaves it (race/batch.py).
Operations that wait are in the memory of the process only.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any

from limpet.shm.endpoint.slots import MISSED
from limpet.shm.errors import LimpetError, ParameterError, ReentrantUse, StoreError
from limpet.stores.core.base import Store, Window, as_bytes
from limpet.stores.core.names import shown
from limpet.stores.core.status import BATCH, DELETE, INSERT, PUT, READ, UPDATE, WINDOW_MAX

CALLS = ("put", "insert", "update", "delete", "get")
"""By mode (status.py)."""


class Operation:
    """An operation of a pipeline, which makes it: the handle of its result."""

    pipeline: Any
    """The pipeline in which it waits; None: it is over."""
    mode: int
    key: bytes
    value: bytes
    found: Any
    """Of a get: the value, or None."""
    default: Any
    error: Exception | None
    is_seen: bool
    """Whether its error was asked for."""
    turn: int
    """The number of the batch that it is in; 0: it is done singly."""
    twin: Operation | None
    """The earlier get whose value is that of this one, too."""
    ended: int
    """Its number in the order of completion."""

    @property
    def call(self) -> str:
        """The name of the call: get, put, insert, update or delete."""
        return CALLS[self.mode]

    def done(self) -> bool:
        """Whether it is over."""
        return self.pipeline is None

    def result(self) -> Any:
        """The value of a get, or its default; None of the others. Raises what the call would. If it
        waits, all that wait are done first."""
        self._finish()
        if self.error is not None:
            raise self.error
        return self.default if self.found is None else self.found

    def exception(self) -> Exception | None:
        """What `result` would raise, or None."""
        self._finish()
        return self.error

    def _finish(self) -> None:
        if self.pipeline is not None:
            self.pipeline.flush()
            if self.pipeline is not None:
                raise ReentrantUse(f"{self!r}: it is being done")
        self.is_seen = True

    def __repr__(self) -> str:
        over = self.pipeline is None
        state = "waits" if not over else "failed" if self.error is not None else "done"
        return f"<{self.call} of {shown(self.key)}: {state}>"


class Pipeline:
    """Operations on a store, `window` of them at a time. Of one thread, and of one process.

    `for operation in pipeline` gives the gets in the order in which they were issued, and with them
    the changes that failed; `as_completed` in the order in which they were done. Each is given
    once, and kept until then; not if its result was asked for before. A change that was made has no
    result, and is not kept.

    At the end of a `with` block all that wait are done; the first error is raised that no one has
    asked for. If the block raises, those that wait are never done.
    """

    def __init__(self, store: Store, window: int) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ParameterError(f"a window is a number of operations from 1 on, not {window!r}")
        if window > WINDOW_MAX:
            raise ParameterError(f"a window has at most {WINDOW_MAX} operations, not {window}")
        self.store = store
        self.window = window
        self.process = os.getpid()
        self.forks = _forks
        self.waiting: list[Operation] = []
        self.ready: deque[Operation] = deque()
        """Those that are over and were not given, in the order in which they were issued."""
        self.failed: list[Operation] = []
        """Those that were given with an error, which no one may have asked for yet."""
        self.is_running = False
        self.is_closed = False
        self.turn = 0
        self.ended = 0

    # ---- issuing --------------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Operation:
        """As `store.get`."""
        return self._issue(READ, key, b"", default)

    def put(self, key: Any, value: Any) -> Operation:
        """As `store.put`."""
        return self._issue(PUT, key, value, None)

    def insert(self, key: Any, value: Any) -> Operation:
        """As `store.insert`."""
        return self._issue(INSERT, key, value, None)

    def update(self, key: Any, value: Any) -> Operation:
        """As `store.update`."""
        return self._issue(UPDATE, key, value, None)

    def delete(self, key: Any) -> Operation:
        """As `store.delete`."""
        return self._issue(DELETE, key, b"", None)

    def _issue(self, mode: int, key: Any, value: Any, default: Any) -> Operation:
        """Have an operation wait. TypeError: key or value is not bytes-like; it is not issued."""
        if self.is_running or self.forks != _forks:
            self._require_usable()
        if self.is_closed:
            raise StoreError(f"{self.store.name}: the pipeline is closed; make another one")
        # All is set here: a call of `__init__` would take as long as the rest.
        operation = Operation.__new__(Operation)
        operation.mode = mode
        operation.key = key if type(key) is bytes else as_bytes("key", key)
        operation.value = value if type(value) is bytes else as_bytes("value", value)
        operation.default = default
        operation.found = operation.error = operation.twin = None
        operation.is_seen = False
        operation.turn = operation.ended = 0
        operation.pipeline = self
        self.waiting.append(operation)
        if len(self.waiting) >= self.window:
            self._run()
        return operation

    # ---- results --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Operation]:
        while self._has_ready():
            yield self._given(self.ready.popleft())

    def as_completed(self) -> Iterator[Operation]:
        """As iteration, in the order in which the operations were done."""
        while self._has_ready():
            # The first one is not seen.
            operation = min((each for each in self.ready if not _seen(each)), key=_ended)
            self.ready.remove(operation)
            yield self._given(operation)

    def _has_ready(self) -> bool:
        self._drop_seen()
        if not self.ready:
            self.flush()
        return bool(self.ready)

    def _given(self, operation: Operation) -> Operation:
        if operation.error is not None:
            self.failed.append(operation)
        return operation

    def _drop_seen(self) -> None:
        """Forget those whose results were asked for, up to the first other one."""
        while self.ready:
            operation = self.ready[0]
            if not operation.is_seen:
                break
            self.ready.popleft()

    def close(self) -> None:
        """Take no more operations. Those that wait are never done."""
        self.is_closed = True
        waiting, self.waiting = self.waiting, []
        for operation in waiting:
            self._fail(operation, StoreError(f"{operation!r} was not done: the pipeline is closed"))

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None and os.getpid() == self.process:
                self.flush()
        finally:
            self.close()
        unseen = self._unseen() if kind is None else None
        if unseen is not None:
            raise unseen

    def _unseen(self) -> Any:
        """The first error that no one has asked for, or None."""
        for operation in (*self.failed, *self.ready):
            if operation.error is not None and not operation.is_seen:
                return operation.error
        return None

    # ---- doing ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Do all operations that wait. Their errors are theirs."""
        if self.waiting:
            self._run()

    def _require_usable(self) -> None:
        if self.is_running:
            raise ReentrantUse(f"{self.store.name}: a pipeline is used by one thread at a time")
        if os.getpid() != self.process:
            raise StoreError(
                f"{self.store.name}: the pipeline is that of process {self.process}, from which "
                "this one was forked; make another one"
            )

    def _run(self) -> None:
        self._require_usable()
        self._drop_seen()
        waiting = self.waiting
        try:
            self.is_running = True
            self.waiting = []
            self._do_all(waiting)
        finally:
            over: list[Operation] = []
            for operation in waiting:
                if operation.pipeline is not None:
                    self._fail(operation, StoreError(f"{operation!r}: it was cut off; {UNKNOWN}"))
                if operation.mode == READ or operation.error is not None:
                    over.append(operation)
            self.ready.extend(over)
            self.is_running = False

    def _do_all(self, waiting: list[Operation]) -> None:
        """Do them in batches of operations on different keys."""
        while waiting:
            self.turn += 1
            if len({operation.key for operation in waiting}) == len(waiting):
                for operation in waiting:
                    operation.turn = self.turn
                self._do_apart(waiting)
                break
            batch: list[Operation] = []
            twins: list[Operation] = []
            later: list[Operation] = []
            last: dict[bytes, Operation] = {}
            for operation in waiting:
                before: Any = last.get(operation.key)
                if before is None:
                    operation.turn = self.turn
                    batch.append(operation)
                elif before.turn == self.turn and before.mode == operation.mode == READ:
                    operation.twin = before
                    twins.append(operation)
                    continue
                else:
                    # ORDER: after those on its key that come before it.
                    later.append(operation)
                last[operation.key] = operation
            self._do_apart(batch)
            for operation in twins:
                before = operation.twin
                if before.error is not None:
                    self._fail(operation, before.error)
                else:
                    self._end(operation, before.found)
            waiting = later

    def _do_apart(self, batch: list[Operation]) -> None:
        """Do operations on different keys."""
        if len(batch) <= BATCH:
            self._do(batch)
        else:
            for start in range(0, len(batch), BATCH):
                self._do(batch[start : start + BATCH])

    def _do(self, batch: list[Operation]) -> None:
        """Do at most BATCH operations on different keys."""
        store = self.store
        singles: list[Operation] = batch
        if len(batch) > 1 and store.batches_gets:
            singles = []
            gets: list[Operation] = []
            changes: list[Operation] = []
            for operation in batch:
                if operation.mode == READ:
                    gets.append(operation)
                elif operation.mode == DELETE:
                    singles.append(operation)
                else:
                    changes.append(operation)
            if len(gets) + len(changes) > 1:
                self._do_window(gets, changes, singles)
            else:
                singles = batch
        if len(singles) > 1 and store.prefetches:
            store._prefetch_batch([operation.key for operation in singles])
        for operation in singles:
            self._do_singly(operation)

    def _do_window(
        self, gets: list[Operation], changes: list[Operation], singles: list[Operation]
    ) -> None:
        """Do these by batches; append those that a batch leaves to `singles`."""
        store = self.store
        window = Window(
            [operation.key for operation in gets],
            [(operation.key, operation.value) for operation in changes],
            bytes([operation.mode for operation in changes]),
        )
        while window.reads() or window.start < len(changes):
            reads = window.reads()
            try:
                store.client.enter()
                try:
                    store.require_there()
                    store.run_batch(window)
                finally:
                    store.client.leave()
            except LimpetError as error:
                # those that were not begun meet it again, each in its own turn
                window.stop(error, reads)
            window.start = window.end
        self._end_window(window, gets, changes, singles)

    def _end_window(
        self,
        window: Window,
        gets: list[Operation],
        changes: list[Operation],
        singles: list[Operation],
    ) -> None:
        """End the operations of a window that was done, but for those that were left."""
        for at in window.doubtful:
            operation = changes[at]
            self._fail(operation, _in_doubt(operation, window.error))
        for at in window.unread:
            operation = gets[at]
            operation.turn = 0
            singles.append(operation)
        for at in window.left:
            operation = changes[at]
            operation.turn = 0
            singles.append(operation)
        missed = 0
        for at in range(len(gets)):
            operation = gets[at]
            if operation.turn:
                found = window.found[at]
                missed += found is None
                self._end(operation, found)
        for operation in changes:
            if operation.turn and operation.pipeline is not None:
                self._end(operation, None)
        made = len(changes) - len(window.left)
        store = self.store
        store._count(len(gets) - len(window.unread) + made, made)
        store.endpoint.figures[store.row + MISSED] += missed

    def _do_singly(self, operation: Operation) -> None:
        store = self.store
        found = None
        try:
            if operation.mode == READ:
                found = store.get(operation.key)
            elif operation.mode == PUT:
                store.put(operation.key, operation.value)
            elif operation.mode == INSERT:
                store.insert(operation.key, operation.value)
            elif operation.mode == UPDATE:
                store.update(operation.key, operation.value)
            else:
                store.delete(operation.key)
        except (LimpetError, KeyError) as error:
            self._fail(operation, error)
        else:
            self._end(operation, found)

    def _end(self, operation: Operation, found: Any) -> None:
        operation.found = found
        self.ended += 1
        operation.ended = self.ended
        operation.pipeline = None

    def _fail(self, operation: Operation, error: Any) -> None:
        operation.error = error
        self._end(operation, None)


_forks = 0
"""How many forks lie between this process and the first one of its program: os.getpid() takes as
long as issuing an operation."""


def _on_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_on_fork)

UNKNOWN = "it is not known whether it was done"


def _ended(operation: Operation) -> int:
    return operation.ended


def _in_doubt(operation: Operation, error: Any) -> Any:
    """The error of a change that a batch may have made or not."""
    made = StoreError(f"{operation!r}: {error}; {UNKNOWN}")
    made.__cause__ = error
    return made


def _seen(operation: Operation) -> bool:
    """Whether its result was asked for."""
    return operation.is_seen
