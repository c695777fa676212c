"""Listing pools, and removing one: sound, half-created or damaged.

The name is held meanwhile (name.py): of processes that destroy and create pools of one name, each
has it for itself. The control segment is made incomplete first, and removed last. A kill in between
leaves what `is_leftover` recognises, no process can open, and the next `unlink_all` or creator
removes. Mappings of live processes stay.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, Final

from limpet.shm.backends.backend import Location, Usage
from limpet.shm.backends.explain import explained
from limpet.shm.backends.location import backends, parse_url
from limpet.shm.backends.name import PATIENCE_S, held, is_leftover, let_go, require_ours, take_back
from limpet.shm.backends.numa import NodeOptions
from limpet.shm.backends.probe import node_words, nodes_in, probe
from limpet.shm.backends.superblock import MAGIC, Superblock, unpack
from limpet.shm.clients.liveness import is_locked
from limpet.shm.endpoint.layout import CONTROL_NODE, SUPERBLOCK_SIZE
from limpet.shm.endpoint.states import IN_SERVICE, generation_of, state_of
from limpet.shm.errors import (
    LimpetError,
    PoolCorrupt,
    PoolExists,
    PoolForeign,
    PoolIncomplete,
    PoolNotFound,
)
from limpet.shm.uninterrupted import uninterrupted

SETTLE_S: Final = 0.02
"""How long a creator may have made a control segment, and not hold its name yet."""


def unlink_all(
    location: Location,
    *,
    any_owner: bool = False,
    uuid: bytes | None = None,
    timeout_s: float = PATIENCE_S,
    leave: Callable[[], None] = lambda: None,
) -> list[str]:
    """Remove every segment of the pool, in any state; the names of the removed ones.

    Nothing is removed if this raises PoolNotFound (there is none, or not the one of this `uuid`),
    PoolForeign (one of them is not limpet's, or belongs to another pool), PoolPermission (another
    user's, unless `any_owner`), or PoolIncomplete (after `timeout_s`, another process still creates
    or removes it). On dax, the contents of devices that are not claimed stay as they are. `leave`
    is called when no process can open the pool any more; if it raises, the pool is as before.
    """
    found = location.removable(any_owner)  # before anything is made or locked
    made = uuid is None and not _has_control(found)
    if made:
        _make_control(location)
    with held(location, timeout_s) as fd:
        if uuid is not None:
            require_ours(location, fd, uuid)
        removed = _remove_all(location, fd, any_owner, leave)
    return removed[:-1] if made else removed


def _has_control(found: list[tuple[int, int]]) -> bool:
    return any(index == CONTROL_NODE for index, _ in found)


def _make_control(location: Location) -> None:
    """Make a control segment, where there are nodes without one, so that the name can be held."""
    with contextlib.suppress(PoolExists), explained(location.segment(CONTROL_NODE)):
        options = NodeOptions(any_owner=True)
        let_go(location.create(CONTROL_NODE, location.page_size(), options)[1])


def _remove_all(
    location: Location, fd: int, any_owner: bool, leave: Callable[[], None] = lambda: None
) -> list[str]:
    """Remove every segment of the pool whose name is held by its control segment `fd`."""
    found = location.removable(any_owner)
    control = location.place(CONTROL_NODE)
    with explained(location.segment(CONTROL_NODE), "removed"):
        was_complete = take_back(location, fd)
    try:
        leave()
    except BaseException:
        if was_complete:
            control.mark(fd, MAGIC)
        raise
    for index, generation in found:
        with explained(location.segment(index), "removed"):
            if not control.same(fd):
                raise PoolNotFound(f"{location}: its control segment was taken away meanwhile")
            _remove(location, index, generation)
    return list(dict.fromkeys(location.segment(index) for index, _ in found))


def _remove(location: Location, index: int, generation: int) -> None:
    at = location.place(index, generation)
    try:
        fd = at.open()
    except FileNotFoundError:
        return
    try:
        at.remove(fd)
    finally:
        os.close(fd)


def unlink_generations(location: Location, index: int) -> None:
    """Remove the segments of a node that other memory replaces. The name is held."""
    with explained(location.segment(index), "removed"):
        for generation in location.generations(index):
            _remove(location, index, generation)


def remove_leftovers(location: Location) -> bool:
    """Remove what a killed creator or destroyer has left; whether the name is free then.

    False: there is a complete pool, or what is there is not this user's or not limpet's, or another
    process has the name. On memory that other hosts may have, nothing counts as left.
    """
    if location.several_hosts:
        return False
    try:
        if not _has_control(location.removable(any_owner=False)):
            return False
        with held(location, timeout_s=0) as fd:
            if not is_leftover(location, fd) or _revived(location, fd):
                return False
            _remove_all(location, fd, any_owner=False)
    except (PoolForeign, PoolIncomplete):
        return False
    except PoolNotFound:
        pass
    return True


def _revived(location: Location, fd: int) -> bool:
    """Complete an ephemeral pool again whose removal was cut short by a kill before it has seen a
    client that lives (ephemeral.py); whether it is one. The name is held by `fd`."""
    if not _is_in_use(location, fd):
        return False
    location.place(CONTROL_NODE).mark(fd, MAGIC)
    return True


def _is_in_use(location: Location, fd: int) -> bool:
    """Whether an incomplete control segment is that of an ephemeral pool, whole but for that, with
    a client that lives."""
    data = MAGIC + location.place(CONTROL_NODE).read(fd, SUPERBLOCK_SIZE)[len(MAGIC) :]
    try:
        parameters = unpack(data, location.segment(CONTROL_NODE)).parameters
    except LimpetError:
        return False  # its creator has not come so far
    if not parameters.ephemeral or not is_locked(fd, parameters.clients):
        return False
    # If nodes are gone, no client was there: those that are there now are about to find that out.
    try:
        nodes = nodes_in(location.place(CONTROL_NODE), fd, parameters.nodes)
    except PoolCorrupt:
        return False
    return len({index for index, _ in location.removable(any_owner=False)}) > nodes


def revive(location: Location) -> bool:
    """`_revived`, for a process that opens the pool."""
    with contextlib.suppress(LimpetError):
        if not location.several_hosts and _looks(location, _is_in_use):
            with held(location, timeout_s=0) as fd:
                return is_leftover(location, fd) and _revived(location, fd)
    return False


def _looks(location: Location, judge: Callable[[Location, int], bool]) -> bool:
    """The answer of `judge` about the control segment. The name, for creators, is not held."""
    with explained(location.segment(CONTROL_NODE)):
        fd = location.place(CONTROL_NODE).open()
    try:
        return judge(location, fd)
    finally:
        os.close(fd)


def has_leftovers(location: Location) -> bool:
    """Whether `remove_leftovers` would remove something, of a process that did not begin just now:
    a creator holds the name a moment after it has made the control segment."""
    if location.several_hosts:
        return False
    try:
        if not _has_control(location.removable(any_owner=False)):
            return False
        if not _looks(location, is_leftover):
            return False
        time.sleep(SETTLE_S)
        with held(location, timeout_s=0) as fd:
            return is_leftover(location, fd) and not _revived(location, fd)
    except (PoolForeign, PoolIncomplete, PoolNotFound):
        return False


def remove_stray_nodes(location: Location) -> None:
    """Remove incomplete segments of nodes beside a control segment that this process has just made.

    Raises PoolExists for a complete one: its pool has lost its control segment, by no act of
    limpet's. A segment that is not limpet's stays.
    """
    if location.several_hosts:
        return
    try:
        found = location.removable(any_owner=False)
    except PoolForeign:
        return  # where it is in the way, the creation of that node says so
    for index, generation in found:
        if index == CONTROL_NODE:
            continue
        where, at = location.segment(index), location.place(index, generation)
        with explained(where, "removed"):
            fd = at.open()
            try:
                if at.read(fd, len(MAGIC)) == MAGIC:
                    raise PoolExists(
                        f"{where} is there, and complete, without the control segment of its pool; "
                        "destroy what is left of that pool, or take another name"
                    )
                at.remove(fd)
            finally:
                os.close(fd)


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
                    if not control.parameters.away:  # else it may be on another host
                        return PoolIncomplete.__name__, control
    except LimpetError as error:
        return type(error).__name__, control
    return "ok", control
