"""The queues of results: one for each program that has an executor in the pool, read by it alone.

A queue has the client id of its program in its name. Client ids are not used again, so a queue
whose client does not live any more is read by no program, and any program may remove it (`sweep`).

    executor-results-IDENT   pool.queue

    there -> removed    by its program, when that ends; by another program that opens an executor,
                        ends, or has a result for it: its program is dead

A kill leaves behind: the queue of a dead program, with results in it, until one of these happens.
The pool has all of it as a channel; nothing of it is leaked.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final

from limpet.shm.errors import ChannelRemoved, ParameterError
from limpet.stores.channels.queue.shared_queue import SharedQueue

NAME: Final = "executor-results-"
BYTES: Final = "bytes"


class Replies:
    """The queues of results of a pool's programs, seen from one client of it."""

    def __init__(self, pool: Any, own: int) -> None:
        """`own`: the client id of this process's program, which is not asked whether it lives."""
        self.pool = pool
        self.own = own
        self.queues: dict[int, SharedQueue | None] = {}
        """By the client ids of programs; None: it is dead."""

    def make(self, places: int) -> SharedQueue:
        """The queue of this process's program."""
        made: SharedQueue = self.pool.queue(f"{NAME}{self.own}", places, codec=BYTES)
        return made

    def of(self, ident: int) -> SharedQueue | None:
        """The queue of a program that is there; None: the program has ended, or is about to."""
        if ident != self.own and not self.pool.membership.lives(ident):
            if self.queues.get(ident, ident) is not None:
                self.queues[ident] = None
                self.sweep()
            return None
        found = self.queues.get(ident)
        if found is None:
            parameters = dict.fromkeys(("maxsize", "item_size", "codec"))
            # One that is not there has no usual parameters, and is not made.
            with contextlib.suppress(ParameterError):
                found = self.pool.channels.attach(
                    SharedQueue, f"{NAME}{ident}", parameters, parameters
                )
                self.queues[ident] = found
        return found

    def put(self, ident: int, data: bytes) -> bool:
        """Put a result for a program, without waiting; False: the program has ended, and the result
        is dropped. Raises queue.Full, StoreFull, ValueTooLarge."""
        while (found := self.of(ident)) is not None:
            try:
                found.put(data, False)
                return True
            except ChannelRemoved:
                del self.queues[ident]
        return False

    def remove(self, ident: int) -> None:
        """Remove the queue of a program that has ended, or is about to."""
        with contextlib.suppress(KeyError):  # another program has done it
            self.pool.channels.remove(f"{NAME}{ident}")

    def sweep(self) -> None:
        """Remove the queues of dead programs, also those that a killed client has begun to."""
        found = {re.match(rb"%b(\d+)" % NAME.encode(), key) for key in self.pool.channels.catalogue}
        for ident in {int(match[1]) for match in found if match is not None}:
            if ident != self.own and not self.pool.membership.lives(ident):
                self.remove(ident)
