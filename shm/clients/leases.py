"""The thread that renews a client's lease in a pool of several hosts (`multi_host`).

The thread sets the client's beat to the wall clock four times a lease (hosts.py). It also kills
clients of its own host when a client of another host asks for that (the fence word), because no
signal crosses hosts.

The thread refers to its client only while it looks, so a handle that the program has dropped is
collected, and the thread ends. `stop` is one call of a lock: a signal handler that raises cannot
cut it in two, and it does not wait.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING

from limpet.shm import uninterrupted as threads
from limpet.shm.clients import fencing
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.errors import AddressError, ClientError, NodeFailed

if TYPE_CHECKING:
    from limpet.shm.clients.fencing import Members

log = logging.getLogger("limpet")


class Heart:
    """The lease of one client while it has a slot."""

    def __init__(self) -> None:
        self._running: threading.Lock | None = None
        self._thread: threading.Thread | None = None

    def start(self, membership: Members) -> None:
        """Renew the lease from now on, until `stop`, or until the client has another slot."""
        running = threading.Lock()
        running.acquire()
        self._running = running
        target = (weakref.ref(membership), running, membership.client.slot, membership.client.word)
        # For an operation of an exit handler, the lease is long enough as it is.
        if not threads.ending:
            self._thread = threading.Thread(
                target=_beat, args=target, name="limpet-lease", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread, if there is one. May be called twice."""
        if self._running is not None:
            with contextlib.suppress(RuntimeError):  # it was stopped before
                self._running.release()

    def join(self) -> None:
        """Wait until the thread, which was stopped, has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _beat(client: weakref.ref[Members], running: threading.Lock, slot: int, word: int) -> None:
    while True:
        membership = client()
        if membership is None:
            return
        lease_s = membership.lease_s
        try:
            if membership.endpoint.load(slot) != word:
                return
            before = membership.endpoint.load(slot + slots.BEAT)
            beat = max(before + 1, membership.endpoint.microseconds())
            membership.endpoint.store(slot + slots.BEAT, beat)
            _end_who_must(membership)
        except ClientError:
            return  # the client was declared dead meanwhile; its next operation raises that
        except (NodeFailed, AddressError, ValueError):
            # ValueError: the portable fabric has unmapped the node during a verb
            if running.locked():
                log.exception("%s: the control segment is lost; the lease ends", membership.pool)
            return
        del membership
        if running.acquire(timeout=lease_s / 4):
            return


def _end_who_must(membership: Members) -> None:
    for slot, word in membership.occupied():
        fence = slot_address(slot) + slots.FENCE
        if membership.endpoint.load(fence) and membership.is_local(slot):
            fencing.kill(membership, slot, word, "what it keeps from another host")
