"""Pools of segments for tests, on each backend, that are gone afterwards whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from limpet.shm.backends import dax, node, superblock
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_STATES, OFFSET_MASK, SUPERBLOCK_SIZE
from limpet.shm.parameters import PoolParameters

SCHEMES = ("shm", "file", "dax")
CONTROL_SIZE = 64 << 10
NODE_SIZE = 256 << 10
ALIGN = 64 << 10
DEVICE_SIZE = 1 << 20


def empty_device(size: int = DEVICE_SIZE) -> bytes:
    """A device without signatures, whose memory is not zero otherwise."""
    return bytes(SUPERBLOCK_SIZE) + b"\xa5" * (size - SUPERBLOCK_SIZE)


def make_device(folder: Path, name: str, size: int = DEVICE_SIZE, align: int = ALIGN) -> Path:
    """A file full of stale bytes that stands in for a device, and its entry in `folder`/sys."""
    entry = folder / "sys" / name
    entry.mkdir(parents=True)
    (entry / "size").write_text(f"{size}\n")
    (entry / "align").write_text(f"{align}\n")
    (folder / name).write_bytes(empty_device(size))
    return folder / name


@contextlib.contextmanager
def location_on(scheme: str) -> Iterator[node.Location]:
    """A place for a pool of two nodes; its segments are deleted as files, not by limpet."""
    folder = Path(tempfile.mkdtemp(prefix="limpet-test-"))
    name = f"test-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    try:
        if scheme == "shm":
            yield node.parse_url(f"shm://{name}")
        elif scheme == "file":
            yield node.parse_url(f"file://{folder}/pool")
        else:
            devices = [make_device(folder, f"dax{number}.0") for number in range(2)]
            with mock.patch.object(dax, "SYSFS", folder / "sys"):
                yield node.parse_url("dax://" + ",".join(map(str, devices)))
    finally:
        shutil.rmtree(folder)
        for left in SHM_DIR.glob(f"limpet.{name}.*"):
            if left.is_dir() and not left.is_symlink():
                left.rmdir()
            else:
                left.unlink()


def packed(segment: node.MemoryNode, pool: bytes, **changes: Any) -> bytes:
    """A superblock for this segment of a pool of two nodes."""
    fields: dict[str, Any] = {
        "index": segment.index,
        "size": segment.size,
        "uuid": pool,
        "created_ns": time.time_ns(),
        "uid": os.geteuid(),
        "parameters": PoolParameters(nodes=2, node_size=NODE_SIZE),
    }
    return superblock.pack(**{**fields, **changes})


def make(location: node.Location, options: node.NodeOptions | None = None, **changes: Any) -> bytes:
    """Create and publish a pool of two nodes, close it, and return its uuid."""
    pool = uuid.uuid4().bytes
    segments = [node.create(location, CONTROL_NODE, CONTROL_SIZE, options=options)]
    states = NODE_STATES & OFFSET_MASK
    segments[0].map[states : states + 2048] = bytes(2048)
    segments += [node.create(location, index, NODE_SIZE, options=options) for index in range(2)]
    for segment in reversed(segments):
        node.publish(segment, packed(segment, pool, **changes))
        segment.close()
    return pool


def open_fds() -> int:
    """How many descriptors of segments made here are open; others come and go with the gc."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += "limpet" in str(entry.readlink())
    return count


def patch(location: node.Location, index: int, offset: int, new: bytes) -> None:
    """Overwrite bytes of a segment, behind the library's back."""
    at = 0
    if location.scheme == "dax" and index == 0:
        at = CONTROL_SIZE
    with open(location.path(index), "r+b") as file:
        file.seek(at + offset)
        file.write(new)
