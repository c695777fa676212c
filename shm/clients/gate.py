"""The gate of a durable pool of several hosts: one process at a time opens it (mending.py).

Locks of the kernel do not reach another host, so the gate is two words of the control segment:

    gate        a random number of the process that has it, or 0
    gate_beat   goes up four times a lease while it has it

A process takes the gate by a CAS from 0, or from another's number when neither word has changed
for a lease. A process that lost the gate that way may only have stood still. When it goes on, it
makes no step in the pool any more, as a client that was declared dead (`Endpoint.guard`): the word
is `gate` until it joins, and its slot's state word from then on.

A kill leaves behind: the number of a dead process, for a lease. The words are not persistent; what
a power cut leaves of them is waited for likewise.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import TYPE_CHECKING

from limpet.shm.endpoint.layout import GATE, GATE_BEAT
from limpet.shm.errors import AddressError, ClientError, NodeFailed

if TYPE_CHECKING:
    from typing import Any


class Gate:
    """A context manager: inside, this process has the gate of `membership`'s pool."""

    def __init__(self, membership: Any) -> None:
        self.membership = membership
        self._number = secrets.randbits(63) | 1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="limpet-gate", daemon=True)

    def __enter__(self) -> Gate:
        members, endpoint = self.membership, self.membership.endpoint
        attempt = 0
        while not self._take():
            attempt += 1
            endpoint.pause(attempt)
        members.endpoint.guard(GATE, self._number)
        self._thread.start()
        return self

    def _take(self) -> bool:
        endpoint = self.membership.endpoint
        found = endpoint.load(GATE)
        if found and not self.membership.overdue("gate", (found, endpoint.load(GATE_BEAT))):
            return False
        # CRASH(gate): the others wait for a lease, and one of them takes it.
        return bool(endpoint.cas(GATE, found, self._number) == found)

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        endpoint = self.membership.endpoint
        with contextlib.suppress(ClientError, NodeFailed):  # another process has it by now
            endpoint.cas(GATE, self._number, 0)
        if not self.membership.ident:
            endpoint.guard(0, 0)

    def _beat(self) -> None:
        members = self.membership
        while not self._over.wait(members.lease_s / 4):
            try:
                members.endpoint.faa(GATE_BEAT, 1)
            except (ClientError, NodeFailed, AddressError, ValueError):
                return  # the next step of the process that opens the pool raises it, too
