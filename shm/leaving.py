"""The end of a pool's handle, and functions for objects that outlive it: none keeps it alive.

At the end of the interpreter, other exit handlers and destructors may still use a pool: handlers
that were registered before limpet was imported, and the `__del__` of what modules have. So at exit
a handle gives up its client, as `close` does, but keeps its memory mapped. The next operation joins
again (`PoolCore._rejoin`), without the blocks that the first client had, and that client is left to
the handle's own end or, if it has none, to other clients, which recover it. Locks that the handle
has are given up at exit. A handle with views or reservations keeps its client, since the program
may still use that memory.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any

from limpet.shm import uninterrupted as threads
from limpet.shm.endpoint.layout import NODE_STATES
from limpet.shm.endpoint.states import IN_SERVICE, state_of
from limpet.shm.errors import NodeFailed, PoolClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.shm.backends.node import MemoryNode
    from limpet.shm.clients.client import Client
    from limpet.shm.clients.membership import Membership
    from limpet.shm.endpoint.fabric import Endpoint


def back(segments: list[MemoryNode], node: int, offset: int, size: int) -> bool:
    """Allocate the pages of these bytes of a node; False: there is no room."""
    for segment in segments:
        if segment.index == node:
            return segment.back(offset, size)
    return True  # it is lost, as the next verb on it finds


def vanished(endpoint: Endpoint, segments: list[MemoryNode], node: int) -> bool:
    """Whether the memory of a lost node is gone for all clients: marked, or truncated."""
    if state_of(endpoint.load(NODE_STATES + 8 * node)) != IN_SERVICE:
        return True
    mapped = [segment for segment in segments if segment.index == node]
    return all(segment.stat_size() < segment.size for segment in mapped)


def alive(method: weakref.WeakMethod[Callable[..., Any]]) -> Callable[..., Any]:
    """The method, of a pool handle that is still there."""
    bound = method()
    if bound is None:
        raise PoolClosed("the pool's handle is gone")
    return bound


class Leaving:
    """How a handle is to be closed."""

    waits = False
    """Whether to wait for other threads of this process inside operations: only in `close`."""
    remove: Callable[..., object] | None = None
    """Of an ephemeral pool: removes it, if no client lives (ephemeral.py)."""

    def over(self) -> None:
        """The client is gone."""
        if self.remove is not None:
            # The garbage collector may have called us in a thread that holds the name.
            self.remove(**({} if self.waits or threads.ending else {"timeout_s": 0}))


def close_handle(
    client: Client,
    membership: Membership,
    endpoint: Endpoint,
    segments: list[MemoryNode],
    pid: int,
    leaving: Leaving,
) -> None:
    """The end of a handle: give up its place in the pool, and unmap.

    The garbage collector calls it at any moment: also while this very thread fills a node through
    another handle. So it waits for no thread, unless `close` asks for that. Memory that cannot be
    given back at once is left to other clients, which find a dead client: its life lock is gone.
    When the process ends with a thread inside, only the life lock goes.
    """
    ours = pid == os.getpid()
    # `begin` is true, and has entered nothing, of a remote client that has lost the control server.
    if ours and not (leaving.waits and not endpoint.begin()) and not endpoint.begin_last():
        return
    try:
        if ours:
            depart(client, membership, endpoint)
    finally:
        try:
            endpoint.detach()
            for segment in segments:
                segment.close()
        finally:
            # ORDER: the life lock last, when we can touch nothing any more.
            membership.close()
            if ours:
                leaving.over()


def depart(client: Client, membership: Membership, endpoint: Endpoint) -> None:
    """Give up the client's place, inside an operation, and end that."""
    try:
        with contextlib.suppress(NodeFailed):  # the control segment is gone, and our slot with it
            membership.depart()
    finally:
        client.assume(0, 0, 0)
        # Of a remote client a server may be lost, and something was still to be sent.
        with contextlib.suppress(NodeFailed):
            endpoint.end()


_handles: weakref.WeakSet[Any] = weakref.WeakSet()
_registered = 0
"""The process that has registered `_at_exit`."""


def depart_at_exit(pool: Any) -> None:
    """Give up the client of this handle when the interpreter ends."""
    _handles.add(pool)
    if _registered != os.getpid():
        _register()  # a child of `multiprocessing` has dropped the handlers of its parent


def _register() -> None:
    global _registered
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    _registered = os.getpid()


def _at_exit() -> None:
    threads.ending = True
    with contextlib.ExitStack() as each:
        for pool in _handles:
            each.callback(pool.depart_at_exit)


# As early as it can be: handlers run in the reverse order.
_register()
