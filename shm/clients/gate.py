"""The gate of a durable pool of several hosts: one process at a time opens it (mending.py).

Locks of the kernel do not reach another host, so the gate is two words of the control segment:

    gate        a random number of the process that has it, or 0
    gate_beat   goes up four times a lease while it has it

A process takes the gate by a CAS from 0, or from another's number when neither word has changed
for a lease. A process that lost the gate that way may only have stood still. When it goes on, its
next step in the pool raises ClientError (`Endpoint.guard`). The word that is guarded is `gate`
while the process has no client slot, and the slot's state word while it has one:

    before it joins, or after it gave   the word `gate` is another's from the moment in which the
    its slot up                         next process takes it
    with a slot, in a pool that is      the process is a client, as others are: it may go on, or its
    whole                               lease is over and it is recovered
    with a slot, while it makes the     the next process frees the slot: the word `power` is 0, so
    pool whole                          it begins by making the pool whole anew (mending.py)

A kill leaves behind: the number of a dead process, for a lease. The words are not persistent; what
a power cut leaves of them is waited for likewise.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final

from limpet.shm.endpoint.layout import GATE, GATE_BEAT
from limpet.shm.endpoint.states import DISOWNED
from limpet.shm.errors import AddressError, ClientError, NodeFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

log: Final = logging.getLogger("limpet")

TOLD_S: Final = 2.0


class Wait:
    """A wait that is logged, once, when it lasts."""

    def __init__(self, what: str, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._now = now
        self._began = now()
        self._told = False

    def tell(self) -> None:
        """Log it, when it has lasted for `TOLD_S`."""
        if not self._told and self._now() - self._began > TOLD_S:
            self._told = True
            log.warning("%s", self._what)


class Gate:
    """A context manager: inside, this process has the gate of `membership`'s pool."""

    def __init__(self, membership: Any) -> None:
        self.membership = membership
        self._number = secrets.randbits(63) | 1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="limpet-gate", daemon=True)

    def __enter__(self) -> Gate:
        members, endpoint = self.membership, self.membership.endpoint
        wait = Wait(f"{members.pool}: waiting for another process that opens it", members.now)
        attempt = 0
        while not self._take():
            wait.tell()
            attempt += 1
            endpoint.pause(attempt)
        members.guard_gate(self._number)
        try:
            self._thread.start()
        except BaseException:
            self._leave()
            raise
        return self

    def _take(self) -> bool:
        endpoint = self.membership.endpoint
        found = endpoint.load(GATE)
        if found and not self.membership.overdue("gate", (found, endpoint.load(GATE_BEAT))):
            return False
        # After a kill here the others wait for a lease, and one of them takes it.
        return bool(endpoint.cas(GATE, found, self._number) == found)

    def __exit__(self, kind: object, error: object, *trace: object) -> None:
        self._over.set()
        self._thread.join()
        self._leave()
        if isinstance(error, ClientError) and error.args == (DISOWNED,):
            raise ClientError(
                f"{self.membership.pool}: while this process opened it, it stood still for a lease "
                "(or was too busy), so another process opened it first; open it again"
            ) from error

    def _leave(self) -> None:
        with contextlib.suppress(ClientError, NodeFailed):  # another process has it by now
            self.membership.endpoint.cas(GATE, self._number, 0)
        self.membership.guard_gate(0)

    def _beat(self) -> None:
        members = self.membership
        while not self._over.wait(members.lease_s / 4):
            try:
                members.endpoint.faa(GATE_BEAT, 1)
            except (ClientError, NodeFailed, AddressError, ValueError):
                return  # the next step of the process that opens the pool raises it, too
