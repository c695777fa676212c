"""What `pool.clients()` and `pool.nodes()` tell."""

from __future__ import annotations

from typing import Any

from limpet.shm.backends.location import parse_url
from limpet.shm.clients.membership import slot_address
from limpet.shm.endpoint.slots import PIN, STATES, client_id
from limpet.shm.endpoint.states import IN_SERVICE, RESTORING, generation_of, state_of
from limpet.shm.endpoint.words import LARGE, OWNER_MASK, PENDING, SLAB
from limpet.shm.errors import NodeFailed


def clients(pool: Any) -> list[dict[str, Any]]:
    """A row for each client; called within `exclusively`, like `nodes`."""
    owned: dict[int, int] = {}
    for node in range(pool.parameters.nodes):
        try:
            words = pool.blocks.words(node).tolist()
        except NodeFailed:
            continue
        for block, word in enumerate(words):
            if word >> 60 in (SLAB, PENDING, LARGE):
                count = 1 + pool.blocks.groups.backups_in_service(node, block, word)
                owned[word & OWNER_MASK] = owned.get(word & OWNER_MASK, 0) + count
    found = []
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
                "ours": ident == pool.membership.ident,
            }
        )
    return found


def nodes(pool: Any) -> list[dict[str, Any]]:
    """A row for each memory node."""
    found = []
    location = parse_url(pool.url)
    for index in range(pool.parameters.nodes):
        word = pool.view.word(index)
        state = "lost" if pool.endpoint.lost(index) else "in service"
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
