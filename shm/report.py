"""The rows of `pool.clients()`, `pool.hosts()` and `pool.nodes()`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.backends.location import parse_url
from limpet.shm.clients.hosts import NAMED
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import (
    BEAT,
    BOOT,
    FENCE,
    MACHINE,
    NAME,
    NAMESPACE,
    PIN,
    RELEASE,
    STATES,
    client_id,
)
from limpet.shm.endpoint.states import IN_SERVICE, RESTORING, generation_of, state_of
from limpet.shm.endpoint.words import LARGE, OWNER_MASK, PENDING, SLAB
from limpet.shm.errors import NodeFailed
from limpet.shm.release import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LOOK_S: Final = 0.002


def clients(pool: Any) -> list[dict[str, Any]]:
    """A row for each client; called within `exclusively`, like `nodes`."""
    owned: dict[int, int] = {}
    for node in range(pool.view.nodes):
        try:
            words = pool.blocks.words(node).tolist()
        except NodeFailed:
            continue
        for block, word in enumerate(words):
            if word >> 60 in (SLAB, PENDING, LARGE):
                count = 1 + pool.blocks.groups.backups_in_service(node, block, word)
                owned[word & OWNER_MASK] = owned.get(word & OWNER_MASK, 0) + count
    found = []
    mine = pool.idents()
    for slot, word in pool.membership.occupied():
        ident = client_id(slot, word)
        dead = not pool.membership.ours(slot) and pool.membership.dead(slot, word)
        found.append(
            {
                "client": ident,
                "slot": slot,
                "pid": pool.membership.pid(word),
                "host": "local" if pool.membership.is_local(slot) else "other",
                "state": "dead" if dead else STATES[word >> 60],
                "pinned": pool.endpoint.load(slot_address(slot) + PIN) != 0,
                "blocks": owned.get(ident, 0),
                "release": text_of(pool.endpoint.load(slot_address(slot) + RELEASE)),
                "ours": ident in mine,
            }
        )
    return found


def hosts(pool: Any, exclusively: Callable[[Callable[[], Any]], Any]) -> list[dict[str, Any]]:
    """A row for each host that has clients; each look at their slots is made by `exclusively`.

    Leases are watched for half a lease, in which each of them is renewed.
    """
    first = exclusively(lambda: _by_host(pool))
    beats = {slot: beat for row in first.values() for slot, beat in row["beats"].items()}
    seen: dict[int, tuple[float, float]] = {}
    if pool.parameters.multi_host:
        end = time.monotonic() + pool.parameters.lease_us / 2e6
        while time.monotonic() < end and len(seen) < len(beats):
            for slot, beat in exclusively(lambda: _beats(pool, beats)).items():
                if slot not in seen and beat != beats[slot]:
                    seen[slot] = time.monotonic(), beat / 1e6 - time.time()
            time.sleep(LOOK_S)
    found = []
    for row in first.values():
        moved = [seen[slot] for slot in row.pop("beats") if slot in seen]
        latest = max(moved, default=None)
        row["renewed_s"] = None if latest is None else time.monotonic() - latest[0]
        row["clock_s"] = None if latest is None else latest[1]
        if pool.parameters.multi_host:
            silent = "asked to end" if row.pop("asked") else "silent"
            row["lease"] = silent if latest is None else "renewed"
        else:
            del row["asked"]
            row["lease"] = "none"
        found.append(row)
    return found


def _by_host(pool: Any) -> dict[tuple[int, int], dict[str, Any]]:
    load = pool.endpoint.load
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for slot, word in pool.membership.occupied():
        at = slot_address(slot)
        boot, namespace = load(at + BOOT), load(at + NAMESPACE)
        machine = load(at + MACHINE)
        row = found.setdefault(
            (boot, namespace),
            {
                "host": text_of(load(at + NAME)),
                "here": pool.membership.is_local(slot),
                "named": bool(machine & NAMED),
                "machine": f"{machine:016x}",
                "boot": f"{boot:016x}",
                "namespace": f"{namespace:016x}",
                "releases": [],
                "clients": [],
                "pids": [],
                "beats": {},
                "asked": False,
            },
        )
        row["clients"].append(client_id(slot, word))
        row["pids"].append(pool.membership.pid(word))
        row["releases"].append(text_of(load(at + RELEASE)))
        row["beats"][slot] = load(at + BEAT)
        row["asked"] = row["asked"] or load(at + FENCE) != 0
    return found


def _beats(pool: Any, slots: Iterable[int]) -> dict[int, int]:
    return {slot: pool.endpoint.load(slot_address(slot) + BEAT) for slot in slots}


def nodes(pool: Any) -> list[dict[str, Any]]:
    """A row for each memory node."""
    found = []
    location = parse_url(pool.url)
    for index in range(pool.view.nodes):
        word = pool.view.word(index)
        state = "lost" if pool.endpoint.lost(index) else "in service"
        if pages := pool.endpoint.lost_pages(index):
            state = f"to be read only: {sum(size for _, size in pages)} bytes of it are poisoned"
        if state_of(word) != IN_SERVICE:
            state = "being replaced" if state_of(word) == RESTORING else "failed"
        found.append(
            {
                "node": index,
                "segment": location.segment(index),
                "size": pool.parameters.node_size,
                "state": state,
                "generation": generation_of(word),
            }
        )
    return found
