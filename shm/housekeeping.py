"""The recovery of dead clients by any process, for all others: once, or all the time."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients import hosts
from limpet.shm.endpoint.slots import client_id
from limpet.shm.errors import NodeFailed, ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WATCH_INTERVAL_S: Final = 0.005


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
    found["blocks"] += pool.regions.sweep() + pool.client.pinned(lambda: _sweep_backups(pool))
    return found


def _sweep_backups(pool: Any) -> int:
    released = 0
    for node in range(pool.parameters.nodes):
        with contextlib.suppress(NodeFailed):  # then its backups are gone with it
            released += pool.blocks.groups.sweep(node)
    return released


def watch(pool: Any, interval_s: float, fence_command: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Recover dead clients all the time: what `PoolCore.watch` says."""
    if fence_command and pool.parameters.fence != "command":
        raise ParameterError(
            f'{pool.url} has fence="{pool.parameters.fence}": its clients wait for no command '
            'when they give a host up; create the pool with fence="command"'
        )
    pool.membership.remote.fencer = hosts.fencer_of(fence_command) if fence_command else None
    while True:
        found = pool.recover()
        if found["clients"] or found["blocks"]:
            found["time_ns"] = time.time_ns()
            yield found
        time.sleep(interval_s)
