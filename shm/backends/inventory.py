"""What pools there are, and taking one away: sound, half-created or damaged.

Segments are removed in the order of their indices, the control segment last: it is the lock that
keeps a new pool of this name from being made while the old one is still being removed. A kill
in between leaves a pool that no one can open and that `unlink_all` removes. Mappings that live
processes hold are not taken from them. Two processes that destroy one pool at the same time are
safe; one that destroys it while another creates it anew may take the new one's nodes away.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Any

from limpet.shm.backends.location import SHM_DIR, Location, parse_url, segment_of_file
from limpet.shm.backends.probe import (
    READ_ONLY,
    Place,
    check_owner,
    explained,
    node_words,
    place,
    probe,
    read_first_bytes,
)
from limpet.shm.backends.superblock import ABSENT, CREATING, MAGIC, Superblock, unpack, write_word0
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.endpoint.states import IN_SERVICE, generation_of, state_of
from limpet.shm.errors import LimpetError, PoolError, PoolForeign, PoolNotFound
from limpet.shm.uninterrupted import uninterrupted


def unlink_all(location: Location, *, any_owner: bool = False) -> list[str]:
    """Remove every segment of the pool, whatever state it is in; the names of those removed.

    Nothing is removed if this raises PoolNotFound (there is none), PoolForeign (one of them is not
    limpet's, or belongs to another pool) or PoolPermission (another user's, unless `any_owner`).
    On dax, what a device holds without being claimed is left as it is.
    """
    if location.scheme == "dax":
        claimed = _claimed_on_devices(location, any_owner)
        for index, at in claimed:
            with explained(location.segment(index)):
                _unclaim(at)
        return [location.segment(index) for index, _ in claimed]
    with explained(str(location)):
        found = [named[1:3] for named in _files(location) if named[0] == location.name]
    if not found:
        raise PoolNotFound(f"{location}: there is no such pool")
    for index, generation in found:
        with explained(location.segment(index)):
            _check_removable(location, index, generation, any_owner)
    for index, generation in found:
        with explained(location.segment(index)):
            location.path(index, generation).unlink(missing_ok=True)
    return list(dict.fromkeys(location.segment(index) for index, _ in found))


def unlink_generations(location: Location, index: int, keep: int | None = None) -> None:
    """Remove the segments of a node that memory of another generation replaces; not on dax."""
    if location.scheme == "dax":
        return
    with explained(location.segment(index)):
        for pool, found, generation, _ in _files(location):
            if (pool, found) == (location.name, index) and generation != keep:
                location.path(index, generation).unlink(missing_ok=True)


def list_pools(url: str = "") -> list[dict[str, Any]]:
    """The pools in /dev/shm, or the one at a `file:` or `dax:` URL, as far as they can be seen.

    A dict for each: url, nodes (how many were found), bytes (size of all its segments), uid (the
    owner), status ("ok", or the name of the error that opening it would raise). Reads only.
    """
    return uninterrupted(lambda: _list_pools(url))


def _list_pools(url: str) -> list[dict[str, Any]]:
    location = parse_url(url) if url else Location("shm", folder=SHM_DIR)
    if location.scheme == "dax":
        return _list_devices(location)
    pools: dict[str, dict[str, Any]] = {}
    with explained(str(location)):
        for pool, index, _, status in _files(location):
            row = pools.setdefault(pool, {"nodes": set(), "bytes": 0, "uid": status.st_uid})
            row["nodes"] |= {index} - {CONTROL_NODE}
            row["bytes"] += status.st_size
    rows = []
    for pool, row in sorted(pools.items()):
        found = parse_url(f"shm://{pool}") if location.scheme == "shm" else location
        if url and found.url != location.url:
            continue
        row["nodes"] = len(row["nodes"])
        rows.append({"url": found.url, **row, "status": _status(found)[0]})
    return rows


def _list_devices(location: Location) -> list[dict[str, Any]]:
    status, control = _status(location)
    if status == "PoolNotFound" and control is None:
        return []
    if control is None:
        return [{"url": location.url, "nodes": 0, "bytes": 0, "uid": None, "status": status}]
    size = control.size + control.parameters.nodes * control.parameters.node_size
    row = {"nodes": control.parameters.nodes, "bytes": size, "uid": control.uid}
    return [{"url": location.url, **row, "status": status}]


def _status(location: Location) -> tuple[str, Superblock | None]:
    control = None
    try:
        control = probe(location, CONTROL_NODE)
        with explained(location.segment(CONTROL_NODE)):  # it may be gone by now
            words = node_words(location, control.parameters.nodes)
        for index, word in enumerate(words):
            if state_of(word) == IN_SERVICE:
                probe(location, index, uuid=control.uuid, generation=generation_of(word))
    except LimpetError as error:
        return type(error).__name__, control
    return "ok", control


def _files(location: Location) -> list[tuple[str, int, int, os.stat_result]]:
    """Pool name, index, generation and status of every file that is named like a segment."""
    if not location.folder.is_dir():
        return []
    found = []
    with os.scandir(location.folder) as entries:
        for entry in entries:
            named = segment_of_file(location.scheme, entry.name)
            if named is not None and (status := _status_of(Path(entry.path))) is not None:
                found.append((*named, status))
    return sorted(found, key=lambda item: item[:3])


def _status_of(path: Path) -> os.stat_result | None:
    """None if another process has just removed it."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _check_removable(location: Location, index: int, generation: int, any_owner: bool) -> None:
    where, path = location.segment(index), location.path(index, generation)
    try:
        fd = os.open(path, READ_ONLY)
    except FileNotFoundError:
        return
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise PoolForeign(f"{where}: {path} is not a plain file; left alone")
        check_owner(where, status.st_uid, any_owner)
        word = os.pread(fd, len(MAGIC), 0)
    finally:
        os.close(fd)
    if any(word) and not MAGIC.startswith(word) and word != CREATING:
        raise PoolForeign(f"{where} is not a limpet segment: it begins with {word!r}; left alone")


def _claimed_on_devices(location: Location, any_owner: bool) -> list[tuple[int, Place]]:
    """The segments whose word 0 is this pool's, the control segment last."""
    where = location.segment(CONTROL_NODE)
    with explained(where):
        control_at = place(location, CONTROL_NODE)
        word, control = _claim_on_device(control_at, where)
    if word not in (MAGIC, CREATING):
        raise PoolNotFound(f"{location}: there is no such pool")
    if control is not None:
        check_owner(where, control.uid, any_owner)
        if control.index != CONTROL_NODE:
            raise PoolForeign(f"{where}: {control_at.path} is node {control.index} of another pool")
    claimed = []
    for index in range(len(location.devices)):
        where = location.segment(index)
        with explained(where):
            try:
                at = place(location, index)
            except PoolError:
                continue  # a device that is gone, or no one can tell where node 0 would begin
            word, node = _claim_on_device(at, where)
        anothers = node is not None and (
            node.index != index
            or node.parameters.nodes != len(location.devices)
            or (control is not None and node.uuid != control.uuid)
        )
        if word in (MAGIC, CREATING) and not anothers:
            claimed.append((index, at))
    return [*claimed, (CONTROL_NODE, control_at)]


def _claim_on_device(at: Place, where: str) -> tuple[bytes, Superblock | None]:
    """Word 0, and the superblock if it is sound."""
    data = read_first_bytes(at)
    try:
        return data[: len(MAGIC)], unpack(data, where)
    except PoolError:
        return data[: len(MAGIC)], None


def _unclaim(at: Place) -> None:
    assert at.device is not None
    fd = os.open(at.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with mmap.mmap(fd, at.device.align, offset=at.offset) as mapping:
            write_word0(mapping, ABSENT)
    finally:
        os.close(fd)
