"""Killing the process of a client of this host, and no other process.

Only a process that has the pool's control segment mapped is killed: the words of a slot do not
suffice, or whoever may write to the pool could have any process of this user killed. Where /proc
does not show what a process has mapped (there is none, or the process hides from us), nothing is
killed, and the client is named instead, as with `fence="wait"`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from limpet.shm.endpoint.layout import CLIENT_SLOTS, SLOT_SIZE
from limpet.shm.endpoint.slots import STARTED

if TYPE_CHECKING:
    from limpet.shm.clients.membership import Membership

log = logging.getLogger("limpet")


def kill(membership: Membership, slot: int, word: int, what: str) -> bool:
    """Kill the client of a slot, and wait until it is dead; False when that cannot be done."""
    endpoint, locks, pid = membership.endpoint, membership.locks, membership.pid(word)
    at = CLIENT_SLOTS + slot * SLOT_SIZE

    def sure() -> bool:
        # ORDER: asked when the pid cannot become another process's any more. The state word and the
        # lock say then that the client lives; so that process is the client.
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
