"""`limpet.destroy`: removing a pool, also where its memory is used again.

A segment that is a file is unlinked, and the processes that have it mapped go on with memory that
no pool has any more. The memory of a device is used again (`Location.reuses_memory`): what an old
client writes there, it writes into the next pool. So such a pool is destroyed when no other client
is there. Steps:

    open it                 as one more client
    hold the name           (name.py) and make the control segment incomplete
    look at the clients     any that lives is a reason to make the control segment complete again,
                            and to refuse; or, with `force`, it is ended first
    leave, and remove

A process that found the control segment complete takes a client slot, and looks once more then
(`PoolCore`): either it is seen, or it sees that the pool is being destroyed. The same holds for a
forked child that becomes a client. A pool that cannot be opened has no clients that could be
looked at; `Location.create` refuses memory on which life locks are held.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.backends.inventory import unlink_all
from limpet.shm.backends.location import full_url, parse_url
from limpet.shm.backends.name import PATIENCE_S
from limpet.shm.clients import fencing
from limpet.shm.endpoint.slots import JOINING, STATE_SHIFT
from limpet.shm.errors import ClientError, LimpetError
from limpet.shm.pool import PoolCore
from limpet.shm.times import Seconds, seconds_of
from limpet.shm.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from limpet.shm.backends.backend import Location

LOOKS: Final = 20
"""Looks in a lease at clients of which only their leases tell whether they live."""
LEASES: Final = 3
"""For so many leases such clients are looked at: two, in which they are given up, and one more."""


def destroy(
    url: str, *, any_owner: bool = False, force: bool = False, timeout_s: Seconds = PATIENCE_S
) -> list[str]:
    """Remove a pool, also a half-created or damaged one; the names of the removed segments.

    Processes that have it open go on with the memory that they have mapped; no process can open it
    any more. On memory that is used again (device DAX) that would be the next pool's, so there
    ClientError names the other clients that live, and nothing is removed; `force` ends them first
    (SIGKILL; those of other hosts by their leases). Another process that creates or removes the
    pool is waited for, up to `timeout_s`; then PoolIncomplete names it. Raises PoolNotFound,
    PoolPermission, and PoolForeign for segments that are not limpet's.
    """
    location = parse_url(full_url(url))
    patience_s = seconds_of("timeout_s", timeout_s)
    pool = _opened(location, any_owner) if location.reuses_memory else None

    def leave() -> None:
        if pool is not None:
            _require_alone(pool, force)
            pool.close()

    try:
        return uninterrupted(
            lambda: unlink_all(location, any_owner=any_owner, timeout_s=patience_s, leave=leave)
        )
    finally:
        if pool is not None:
            pool.close()


def _opened(location: Location, any_owner: bool) -> PoolCore | None:
    """A handle of the pool, or None if it cannot be opened."""
    try:
        return PoolCore.open(location.url, any_owner=any_owner, timeout_s=0)
    except LimpetError:
        return None


def _require_alone(pool: Any, force: bool) -> None:
    """Raise ClientError while another client lives. With `force`, end it."""
    members = pool.membership
    until = time.monotonic() + LEASES * members.lease_s
    while True:
        # ORDER: before the look: to end a process may take long, and it is gone at the next look.
        is_late = time.monotonic() >= until
        others = pool.exclusively(lambda: _others(members, force))
        if not others:
            return
        # A newcomer has its first steps to make; if it died in them, a lease tells that.
        certain = [
            slot
            for slot, word in others
            if members.is_provable(slot) and word >> STATE_SHIFT != JOINING
        ]
        if is_late or (certain and not force):
            named = ", ".join(members.process(*other) for other in others)
            raise ClientError(
                f"{pool.url} is in use, and its memory will be another pool's: end process {named} "
                "first, or have it ended by `limpet destroy --force`, limpet.destroy(force=True)"
            )
        time.sleep(members.lease_s / LOOKS)


def _others(members: Any, force: bool) -> list[tuple[int, int]]:
    """Slot and state word of each other client that lives."""
    found = [
        (slot, word)
        for slot, word in members.occupied()
        if not members.ours(slot) and not members.dead(slot, word, waiting=force)
    ]
    if force:
        for slot, word in found:
            if members.is_local(slot) and members.pid(word) != os.getpid():
                fencing.kill(members, slot, word, "the memory of the pool, which is destroyed")
    return found
