"""Listing pools, and removing one: sound, half-created or damaged.

Segments are removed in the order of their indices, the control segment last: it is the lock that
keeps a new pool of this name from being made while the old one is still being removed. A kill in
between leaves a pool that no process can open and that `unlink_all` removes. Mappings of live
processes stay. Two processes may destroy one pool at the same time; a process that destroys it
while another creates it anew may remove the new pool's nodes.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.backends.backend import Location, Usage
from limpet.shm.backends.explain import explained
from limpet.shm.backends.location import backends, parse_url
from limpet.shm.backends.probe import node_words, probe
from limpet.shm.backends.superblock import Superblock
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.endpoint.states import IN_SERVICE, generation_of, state_of
from limpet.shm.errors import LimpetError, PoolIncomplete, PoolNotFound
from limpet.shm.uninterrupted import uninterrupted


def unlink_all(location: Location, *, any_owner: bool = False) -> list[str]:
    """Remove every segment of the pool, in any state; the names of the removed ones.

    Nothing is removed if this raises PoolNotFound (there is none), PoolForeign (one of them is not
    limpet's, or belongs to another pool) or PoolPermission (another user's, unless `any_owner`).
    On dax, the contents of devices that are not claimed stay as they are.
    """
    found = location.removable(any_owner)
    for index, generation in found:
        with explained(location.segment(index), "removed"):
            location.place(index, generation).remove()
    return list(dict.fromkeys(location.segment(index) for index, _ in found))


def unlink_generations(location: Location, index: int) -> None:
    """Remove the segments of a node that memory of another generation replaces."""
    with explained(location.segment(index), "removed"):
        for generation in location.generations(index):
            location.place(index, generation).remove()


def list_pools(url: str = "") -> list[dict[str, Any]]:
    """The pools in /dev/shm, or the one at a URL, as far as this process can see them.

    A dict for each: url, nodes (their number), bytes (size of all segments), uid (the owner),
    status ("ok", or the name of the error that opening it would raise). Reads only.
    """
    return uninterrupted(lambda: _list_pools(url))


def _list_pools(url: str) -> list[dict[str, Any]]:
    if url:
        locations = [parse_url(url)]
    else:
        locations = [location for kind in backends() for location in kind.everywhere()]
    return [row for location in locations for row in _rows(location)]


def _rows(location: Location) -> list[dict[str, Any]]:
    """The row of a pool, or none if there is nothing."""
    usage = location.usage()
    status, control = _status(location)
    if usage is None and control is not None:
        size = control.size + control.parameters.nodes * control.parameters.node_size
        usage = Usage(control.parameters.nodes, size, control.uid)
    if usage is None:
        if status == "PoolNotFound":
            return []
        usage = Usage(0, 0, None)
    found = {"nodes": usage.nodes, "bytes": usage.bytes, "uid": usage.uid}
    return [{"url": location.url, **found, "status": status}]


def _status(location: Location) -> tuple[str, Superblock | None]:
    control = None
    try:
        control = probe(location, CONTROL_NODE)
        with explained(location.segment(CONTROL_NODE)):  # it may be gone by now
            words = node_words(location, control.parameters.nodes)
        for index, word in enumerate(words):
            if state_of(word) == IN_SERVICE:
                try:
                    probe(location, index, uuid=control.uuid, generation=generation_of(word))
                except PoolNotFound:
                    return PoolIncomplete.__name__, control
    except LimpetError as error:
        return type(error).__name__, control
    return "ok", control
