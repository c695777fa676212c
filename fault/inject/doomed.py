"""A client that is killed when it shows a named crash point, or in the midst of an operation.

A store's `left_by` tells from memory which crash point a dead client shows. A `Doom` asks it before
each atomic verb of the client that is to die, by another handle of the same process; when memory
shows the point, the process ends by SIGKILL. So it dies at the point after any sequence of steps,
and no steps have to be counted beforehand.

Without a point, it dies half-way through, or in an operation that is far longer than the one
before it, such as one that grows an index. Half-way is counted in steps: each atomic verb on a
memory node, also a plain store, or a write of one word, is one. So an operation that locks, writes
and unlocks one node has locked it, and written.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final

from limpet.shm.endpoint.hooked import ATOMICS, HookedEndpoint
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.stores.pool import Pool

LONG: Final = 10
"""An operation with so many times the steps of the one before it is a long one."""


class DoomedEndpoint(HookedEndpoint, verbs=(*ATOMICS, "write_words")):
    """An Endpoint that calls `watch`, if there is one, before each atomic verb on a memory node.
    A write of one word, as protocols post it, is one, too."""

    def __init__(self) -> None:
        self.watch: Callable[[], None] | None = None

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        is_atomic = verb != "write_words" or words == 1
        if self.watch is not None and is_atomic and addr >> NODE_SHIFT != CONTROL_NODE:
            self.watch()
        return words


class DoomedPool(Pool):
    """A pool handle whose process can be killed by a `Doom`."""

    endpoint_class = DoomedEndpoint
    endpoint: DoomedEndpoint


class Doom:
    """Ends this process by SIGKILL in an operation on `store`, a handle of a `DoomedPool`.

    `point`: the crash point at which to die, as `observer` sees it, a handle of the store by
    another pool handle; None: half-way through, or, if `in_long`, in a long operation. `last_words`
    is called before the end.
    """

    def __init__(
        self,
        store: Any,
        observer: Any,
        point: str | None,
        last_words: Callable[[], None],
        in_long: bool = False,
    ) -> None:
        self.store = store
        self.observer = observer
        self.point = point
        self.last_words = last_words
        self.steps = 0
        self.in_long = in_long
        self.usual = 0
        """Steps of the last operation."""
        self.ident = store.pool.client_id

    def comes(self, operation: Callable[[], object]) -> None:
        """Run an operation in which we may die; if we do not, the caller calls this again."""
        self.steps = 0
        self.store.endpoint.watch = self._watch
        try:
            operation()
        finally:
            self.store.endpoint.watch = None
            self.usual = self.steps

    def _watch(self) -> None:
        self.steps += 1
        if self._is_due():
            self.last_words()
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_due(self) -> bool:
        if self.point is not None:
            return self.point in self.observer.pool.exclusively(self._shown)
        if self.in_long:
            return self.steps > LONG * self.usual > 0
        return self.steps == self.usual // 2 + 1 > 1

    def _shown(self) -> set[str]:
        found: set[str] = self.observer.left_by(self.ident)
        return found
