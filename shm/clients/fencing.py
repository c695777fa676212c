"""Killing the process of a client of this host, and no other process.

A client kills only a process that has the pool's control segment mapped. The words of a slot do not
suffice: otherwise a process that may write to the pool could cause a kill of any process of this
user. If /proc does not show the mappings of a process (there is no /proc, or the process hides from
us), the process is not killed, and the log names the client instead, as with `fence="wait"`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import STARTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.shm.clients.client import Client
    from limpet.shm.clients.life_locks import LifeLocks
    from limpet.shm.clients.liveness import Watcher
    from limpet.shm.endpoint.fabric import Endpoint
    from limpet.shm.parameters import PoolParameters

log = logging.getLogger("limpet")


class Members(Protocol):
    """The clients of a pool (membership.py), as fencing and leases (leases.py) see them."""

    endpoint: Endpoint
    client: Client
    pool: str
    lease_s: float
    parameters: PoolParameters
    locks: LifeLocks | None
    watcher: Watcher

    def occupied(self) -> Iterator[tuple[int, int]]: ...
    def is_local(self, slot: int) -> bool: ...
    def dead(self, slot: int, word: int) -> bool: ...
    def suspend(self, slot: int, word: int, what: str) -> None: ...
    @staticmethod
    def pid(word: int) -> int: ...


def kill(membership: Members, slot: int, word: int, what: str) -> bool:
    """Kill the client of a slot, and wait until it is dead; False when this is not possible."""
    endpoint, locks, pid = membership.endpoint, membership.locks, membership.pid(word)
    at = slot_address(slot)

    def sure() -> bool:
        # ORDER: called when the pid cannot become another process's any more. If the state word and
        # the lock then show that the client lives, that process is the client.
        if endpoint.load(at) != word or membership.dead(slot, word):
            return False
        if locks is not None and not locks.mapped_by(pid):
            return False
        log.warning(
            "%s: killing process %d: it stood still for %.3f s and others wait for %s",
            membership.pool, pid, membership.lease_s, what,
        )  # fmt: skip
        return True

    try:
        return membership.watcher.kill(pid, endpoint.load(at + STARTED), sure=sure)
    except PermissionError:  # another user's
        return False
