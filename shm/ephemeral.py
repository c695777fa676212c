"""Ephemeral pools: a pool with `ephemeral=True` goes away with its last client.

The last `close` removes it, and so does the end of the last process, if Python ends it in order. A
process that is killed removes nothing. Then the next process that looks does it: `limpet.open` and
`create` of that name, `limpet ls` and `limpet prune`. `limpet.temporary` also looks at the other
pools that it has made.

A pool is over when none of its clients lives. A process that is no client finds that out
(`Onlooker`), as its own client would keep the pool. It reads the control segment, and asks the
kernel for life locks (clients/liveness.py). Any lock that is held is a client. Without one, each
slot is judged as a client would judge it (clients/membership.py). A client of another PID namespace
counts as one of another host: in a pool of several hosts it is given up by its lease alone, also
when its lock is gone. `prune` waits for leases; all others take such a client for a living one.

Steps of a removal
    look at the clients             one that lives ends it, and nothing has changed
    hold the name (name.py)         and make the control segment incomplete
    look again                      one that lives ends it: the control segment is complete again
    remove the segments             the control segment last

A client that opens the pool meanwhile maps the segments, takes a slot and its lock, and then looks
at the control segment (`require_there`). If that is complete, the client was seen by each removal
that begins later. If not, either the second look has seen the client, and makes it complete again,
or the segments are removed. So the client waits for one of these, and has a living pool or
PoolNotFound. A creator holds the name until it is a client.

A kill between the steps leaves an incomplete control segment, whose name is free: what a killed
creator leaves (`is_leftover`). The next creator of that name removes it, or `prune`. But if all
segments are there, and a client holds its life lock, the removal was killed before its second look:
then the process that would remove it, or opens it, completes it again (`revive`).

Only the owner of the segments removes them. A device has no ephemeral pools: there, memory that is
given up is used again, and other hosts may have the pool.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.backends import node as nodes
from limpet.shm.backends.inventory import has_leftovers, list_pools, remove_leftovers, unlink_all
from limpet.shm.backends.location import backends, full_url, parse_url
from limpet.shm.backends.name import PATIENCE_S, is_there
from limpet.shm.backends.node import NodeOptions
from limpet.shm.clients.liveness import LifeLocks, is_locked
from limpet.shm.clients.membership import Membership
from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.endpoint.slots import LIVE, STATE_SHIFT
from limpet.shm.errors import LimpetError, PoolExists, PoolNotFound
from limpet.shm.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.shm.backends.backend import Location
    from limpet.shm.backends.superblock import Superblock

TEMPORARY: Final = "temporary-"
"""The names of pools that `limpet.temporary` makes begin so."""
LEASES: Final = 3
"""For so many leases `prune` looks at clients of which only their leases tell whether they live."""
LOOKS: Final = 20
"""Looks in a lease."""
PAUSE_S: Final = 0.001


class _InUseError(Exception):
    """A client lives."""


class Onlooker:
    """The clients of a pool, seen by a process that is none of them."""

    def __init__(self, url: str, control: nodes.MemoryNode, block: Superblock) -> None:
        parameters = block.parameters
        self.control = control
        self.uuid = block.uuid
        self.parameters = parameters
        self.endpoint = Endpoint()
        self.endpoint.attach(CONTROL_NODE, control.map, control.size, None, 0, control.watched_fd)
        nobody: Any = SimpleNamespace(ident=0, slot=0, word=0)
        self.members = Membership(self.endpoint, nobody, parameters, url)
        self.members.locks = LifeLocks(control.descriptor, control.address)

    def anybody(self) -> bool:
        """Whether a client lives, as far as can be told now."""
        return is_locked(self.control.fd, self.parameters.clients) or any(
            self._may_live(slot, word) for slot, word in self.members.occupied()
        )

    def _may_live(self, slot: int, word: int) -> bool:
        members = self.members
        if not members.dead(slot, word):
            return True
        host, here = members.host_of(slot), members.here
        by_lease = self.parameters.multi_host and host.boot == here.boot and host != here
        return by_lease and word >> STATE_SHIFT == LIVE and not members.remote.lost(slot, word)

    def wait(self) -> None:
        """Look until no client lives, or its leases would be over; not for one that lives."""
        for _ in range(LEASES * LOOKS):
            if self._is_certain() or not self.anybody():
                break
            time.sleep(self.members.lease_s / LOOKS)

    def _is_certain(self) -> bool:
        """Whether a client lives, by its lock, or by its process in this PID namespace."""
        return is_locked(self.control.fd, self.parameters.clients) or any(
            word >> STATE_SHIFT == LIVE
            and self.members.is_local(slot)
            and not self.members.dead(slot, word)
            for slot, word in self.members.occupied()
        )

    def require_nobody(self) -> None:
        if self.anybody():
            raise _InUseError

    def remove(
        self, location: Location, timeout_s: float = PATIENCE_S, dry_run: bool = False
    ) -> bool:
        """Remove the pool if it is over, or only look; whether it was."""
        try:
            self.require_nobody()
            if not dry_run:
                unlink_all(location, uuid=self.uuid, timeout_s=timeout_s, leave=self.require_nobody)
        except (_InUseError, LimpetError, OSError):
            return False
        return True

    def close(self) -> None:
        self.endpoint.detach()
        self.members.close()
        self.control.close()


def remove(location: Location, uuid: bytes | None = None, *, timeout_s: float = PATIENCE_S) -> bool:
    """Remove the ephemeral pool at a location if it is over; whether it was.

    `uuid`: of the pool, if it must be that one. `timeout_s`: for the name, while another process
    holds it. False for all other pools, those of other users, and where there is none.
    """
    onlooker = _onlooker_at(location, uuid)
    if onlooker is None:
        return False
    try:
        return onlooker.remove(location, timeout_s)
    finally:
        onlooker.close()


def _removed(location: Location, dry_run: bool) -> bool:
    """`remove`, after a wait for leases, which a signal handler can end."""
    onlooker = uninterrupted(lambda: _onlooker_at(location), _forget)
    if onlooker is None:
        return False
    try:
        onlooker.wait()
        return uninterrupted(lambda: onlooker.remove(location, dry_run=dry_run))
    except (LimpetError, OSError):
        return False
    finally:
        uninterrupted(onlooker.close)


def _onlooker_at(location: Location, uuid: bytes | None = None) -> Onlooker | None:
    """Of the ephemeral pool at a location, if there is one."""
    if location.reuses_memory:
        return None
    try:
        control, block = nodes.open_(location, CONTROL_NODE, options=NodeOptions())
    except (LimpetError, OSError):
        return None
    if not block.parameters.ephemeral or uuid not in (None, block.uuid):
        control.close()
        return None
    try:
        return Onlooker(location.url, control, block)
    except (LimpetError, OSError):
        control.close()
        return None


def _forget(onlooker: Onlooker | None) -> None:
    if onlooker is not None:
        onlooker.close()


def require_there(url: str, control: nodes.MemoryNode, uuid: bytes) -> None:
    """For a new client of an ephemeral pool: PoolNotFound if its segments are being removed."""
    location = parse_url(url)
    end = time.monotonic() + PATIENCE_S
    while not is_there(location, control.fd, uuid):
        if not control.place.same(control.fd) or time.monotonic() >= end:
            raise over(url)
        time.sleep(PAUSE_S)  # a process that removes it is about to see us, or to be done


def over(url: str) -> PoolNotFound:
    """The error about a pool that is over."""
    return PoolNotFound(f"{url} was ephemeral, and went away with its last client")


def prune(url: str = "", *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Remove what killed processes have left in shared memory, or of the pool at a URL.

    That is ephemeral pools without a living client, and half-created or half-removed ones of which
    the process is dead. A pool of another user stays. A client in another container, or on another
    host, is waited for as long as its lease lasts. Returns a dict for each: url, bytes, and `what`
    it was, "ephemeral" or "half-created". `dry_run`: only look.
    """
    return [row for at in _locations(url) for row in _pruned(at, dry_run)]


def sweep(url: str = "", prefix: str = "") -> None:
    """Remove the ephemeral pools in shared memory that are over, or the one at a URL; without a
    wait. `prefix`: only those whose names begin so."""

    def look() -> None:
        for location in _locations(url):
            if location.url.startswith(f"{location.scheme}://{prefix}"):
                remove(location, timeout_s=0)

    uninterrupted(look)


def _locations(url: str) -> list[Location]:
    if url:
        return [parse_url(full_url(url))]
    return [location for kind in backends() for location in kind.everywhere()]


def _pruned(location: Location, dry_run: bool) -> list[dict[str, Any]]:
    size = sum(row["bytes"] for row in list_pools(location.url))
    if _removed(location, dry_run):
        what = "ephemeral"
    elif uninterrupted(lambda: has_leftovers(location) and (dry_run or remove_leftovers(location))):
        what = "half-created"
    else:
        return []
    return [{"url": location.url, "what": what, "bytes": size}]


def in_place_of(location: Location, make: Callable[[], Any]) -> Any:
    """`make` a pool; if there is one that is over, after it was removed. Raises PoolExists."""
    try:
        return make()
    except PoolExists:
        if not remove(location):
            raise
        return make()
