"""The recovery of dead clients by any process, for all others: once, or all the time."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from limpet.shm import growth
from limpet.shm.backends.location import parse_url
from limpet.shm.backends.probe import probe
from limpet.shm.clients import hosts
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.endpoint.slots import client_id
from limpet.shm.errors import LimpetError, NodeFailed, ParameterError, PoolIncomplete, PoolNotFound
from limpet.shm.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WATCH_INTERVAL_S: Final = 0.005
LOOK_INTERVAL_S: Final = 0.5
"""How often `watch` looks whether the pool is still there."""


def recover(pool: Any) -> dict[str, Any]:
    """Recover every dead client, and what creators of regions left: what `PoolCore.recover` says.

    Within `exclusively`.
    """
    found: dict[str, Any] = {"clients": [], "objects": 0, "blocks": 0, "stores": 0}
    for slot, word in list(pool.membership.occupied()):
        if not pool.membership.ours(slot) and pool.membership.dead(slot, word):
            counts = pool.membership.recover(slot, word)
            found["clients"].append(client_id(slot, word))
            found["objects"] += counts["objects"]
            found["blocks"] += counts["blocks"]
    growth.finish(pool)
    released, backing = pool.regions.sweep()
    if backing:
        released += pool.client.pinned(lambda: _sweep_backups(pool, backing))
    found["blocks"] += released
    return found


def _sweep_backups(pool: Any, nodes: list[int]) -> int:
    released = 0
    for node in nodes:
        with contextlib.suppress(NodeFailed):  # then its backups are gone with it
            released += pool.blocks.groups.sweep(node)
    return released


def require_there(pool: Any) -> None:
    """Raise PoolNotFound if the pool was destroyed: then only its mapped memory is left."""
    try:
        found = uninterrupted(
            lambda: probe(parse_url(pool.url), CONTROL_NODE, options=pool.options).uuid
        )
    except (PoolNotFound, PoolIncomplete):  # another one may be being made in its place
        found = b""
    except LimpetError:
        return  # it is not known now, as without a descriptor that is left
    if found != pool.uuid:
        raise PoolNotFound(f"{pool.url} was destroyed while it was watched")


def watch(
    pool: Any, interval_s: float, fence_command: Sequence[str], until_destroyed: bool
) -> Iterator[dict[str, Any]]:
    """Recover dead clients all the time: what `PoolCore.watch` says."""
    if fence_command and pool.parameters.fence != "command":
        raise ParameterError(
            f'{pool.url} has fence="{pool.parameters.fence}": its clients wait for no command '
            'when they give a host up; create the pool with fence="command"'
        )
    pool.membership.remote.fencer = hosts.fencer_of(fence_command) if fence_command else None
    due = time.monotonic()
    while True:
        if until_destroyed and time.monotonic() >= due:
            require_there(pool)
            due = time.monotonic() + LOOK_INTERVAL_S
        found = pool.recover()
        if found["clients"] or found["blocks"]:
            found["time_ns"] = time.time_ns()
            yield found
        time.sleep(interval_s)
