"""The steps of a simulated run as text that a person can follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import (
    CLIENT_SLOTS,
    CONTROL_NODE,
    EPOCH,
    EVENT_COUNT,
    EVENT_RING,
    NODE_SHIFT,
    NODE_STATES,
    OFFSET_MASK,
    PRESSURE,
    SLOT_SIZE,
    SLOTS_USED,
    catalogue_address,
)
from limpet.shm.endpoint.simulated import ATOMICS, CAS, LOAD, MCAS, PAUSE, STORE, SWAP, Step

_WORDS: Final = {
    EPOCH: "epoch", PRESSURE: "pressure", SLOTS_USED: "slots used", EVENT_COUNT: "event count",
}  # fmt: skip
_FIELDS: Final = {
    0: "state", slots.STARTED: "started", slots.BOOT: "boot", slots.NAMESPACE: "namespace",
    slots.LOCKED: "locked", slots.BEAT: "beat", slots.FENCE: "fence", slots.PIN: "pin",
    slots.CHANGES: "changes",
}  # fmt: skip


def place(cluster: SimulatedCluster, addr: int) -> str:
    """Names the object at an address of the cluster's pool."""
    node, offset = addr >> NODE_SHIFT, addr & OFFSET_MASK
    if node == CONTROL_NODE:
        return _control_place(cluster, addr)
    layout = cluster.setup_client.layout
    if offset < layout.block_table:
        return f"node {node}, directory + {offset - layout.region_directory}"
    if offset < layout.bitmaps:
        return f"node {node}, block {(offset - layout.block_table) // 8}: its word"
    if offset < layout.blocks:
        block, within = divmod(offset - layout.bitmaps, layout.bitmap_size)
        return f"node {node}, block {block}: used bits + {within}"
    block, within = divmod(offset - layout.blocks, layout.block_size)
    return f"node {node}, block {block} + {within}"


def _control_place(cluster: SimulatedCluster, addr: int) -> str:
    if addr in _WORDS:
        return _WORDS[addr]
    if addr < CLIENT_SLOTS:
        if NODE_STATES <= addr < NODE_STATES + 2048:
            return f"state of node {(addr - NODE_STATES) // 8}"
        return "event ring" if addr >= EVENT_RING else f"control segment + {addr & OFFSET_MASK}"
    catalogue = catalogue_address(cluster.setup_client.parameters.clients)
    if addr >= catalogue:
        return f"catalogue + {addr - catalogue}"
    field = (addr - CLIENT_SLOTS) % SLOT_SIZE
    owner = next((p.number for p in cluster.clients if p.identity[1] == addr - field), None)
    whose = "setup client" if owner is None else f"client {owner}"
    if field >= slots.CLIENT_JOURNAL:
        index, word = divmod(field - slots.CLIENT_JOURNAL, 16)
        return f"{whose}: journal[{index}] {'link' if word else 'object'}"
    return f"{whose}: {_FIELDS.get(field, f'slot + {field}')}"


def trace_lines(cluster: SimulatedCluster, trace: Iterable[Step]) -> list[str]:
    """A line for each step: client, verb, the object there, and the outcome."""
    lines = []
    for client, verb, addr, outcome, value in trace:
        text = f"client {client}: {verb:8} "
        if verb != PAUSE:
            text += place(cluster, addr)
        if verb == LOAD:
            text += f" is {value:#x}"
        elif verb in (STORE, SWAP):
            text += f" := {value:#x}"
        elif verb in (CAS, MCAS):
            text += f" -> {value:#x}: {'done' if outcome else 'refused'}"
        elif verb in ATOMICS:
            text += f" by {value:#x}"
        elif verb != PAUSE:
            text += f", {outcome} words"
        lines.append(text)
    return lines
