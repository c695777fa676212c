"""A client that dies in the midst of an operation, while its process lives on as another client.

The RCuckoo paper emulates failures in this way: an operation is cut off at a random verb (RCuckoo
5.4). No new process is needed, so far more clients can die in a second.

`CutOffPool.endpoint.steps = k` cuts off before the k-th step from there on: as for `Endpoint.fuse`,
each mutating verb is a step, and so is each word of a write. `Gone` is raised then, and by every
later mutating verb: no `finally` of the dead client can touch memory. `reborn` makes its slot one
of a provably dead process, without a life lock and with a start time that no process has, and joins
again.
"""

from __future__ import annotations

from typing import Final

from limpet.shm.endpoint import slots
from limpet.shm.endpoint.hooked import MUTATING, HookedEndpoint
from limpet.shm.endpoint.layout import slot_address
from limpet.stores.pool import Pool

NEVER_STARTED: Final = 1
"""A start time, in ticks since boot, that only processes of the kernel have."""


class Gone(BaseException):
    """This client is dead. A BaseException, so that no handler of errors catches it."""


class CutOffEndpoint(HookedEndpoint, verbs=MUTATING):
    """An Endpoint that cuts off its client's verbs at step `steps` (0: never)."""

    def __init__(self) -> None:
        self.steps = 0
        self.gone = False

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if self.gone or self.steps == 1:
            self.gone, self.steps = True, 0
            raise Gone
        if words < self.steps:
            self.steps -= words
        elif self.steps:  # the words before that step
            words, self.steps = self.steps - 1, 1
        return words


class CutOffPool(Pool):
    """A pool handle whose client can die alone."""

    endpoint_class = CutOffEndpoint
    endpoint: CutOffEndpoint

    def reborn(self) -> None:
        """Make the client that was cut off provably dead, and join as another client, which
        recovers it."""
        self.die()
        self.membership.join()

    def die(self) -> None:
        """Make the client that was cut off provably dead. Its process is no client any more."""
        endpoint = self.endpoint
        endpoint.gone = False
        slot = self.client.ident >> slots.INCARNATION_BITS
        endpoint.store(slot_address(slot) + slots.STARTED, NEVER_STARTED)
        if self.membership.locks is not None:
            self.membership.locks.drop(slot)
        self.allocator.forget()
        self.clock.forget()
        self.numbers.forget()
        self.membership.forget()
        self.client.assume(0, 0, 0)
        endpoint.background(False)
