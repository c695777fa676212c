"""Where a pool is: the three kinds of URL, and the name of each segment there.

    shm://NAME                      POSIX shared memory /limpet.NAME.0 ... and /limpet.NAME.control
    file:///DIR                     the files node.0 ... and control in DIR
    dax:///dev/dax0.0,/dev/dax1.0   node i on device i, the control segment on the first (dax.py)

NAME is up to 200 letters, digits, `_`, `-` and `.`, and does not begin with a dot: it cannot name
another folder, and as segment names end in a component without a dot, no two pools share one.
DIR is taken as it is written (no %-escapes), absolute and without `..`.

A node whose memory was replaced has a new segment, with the generation (states.py) behind a hyphen:
/limpet.NAME.0-1, node.0-1. On dax it is the same device.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Final

from limpet.shm.backends import dax
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import ParameterError
from limpet.shm.parameters import NODES_MAX

SHM_DIR: Path = Path("/dev/shm")
"""Where glibc's shm_open puts POSIX shared memory on Linux."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_SUFFIX: Final = re.compile(r"control|node\.(0|[1-9]\d{0,2})(?:-([1-9]\d{0,16}))?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Location:
    """A parsed URL. `name` is set for shm, `folder` for shm and file, `devices` for dax."""

    scheme: str
    name: str = ""
    folder: Path = Path()
    devices: tuple[Path, ...] = ()

    @property
    def url(self) -> str:
        """The canonical URL; `parse_url` of it gives this location again."""
        if self.scheme == "shm":
            return f"shm://{self.name}"
        if self.scheme == "file":
            return f"file://{self.folder}"
        return "dax://" + ",".join(map(str, self.devices))

    def __str__(self) -> str:
        return self.url

    def segment(self, index: int) -> str:
        """What messages call the segment of this index, e.g. `shm://demo node 0`."""
        return f"{self.url} {'control' if index == CONTROL_NODE else f'node {index}'}"

    def path(self, index: int, generation: int = 0) -> Path:
        """The file of the segment; for dax, the device that it is on."""
        life = f"-{generation}" if generation else ""
        if self.scheme == "dax":
            first = 0 if index == CONTROL_NODE else index
            if first >= len(self.devices):
                raise ParameterError(f"{self.url} has no device for node {index}")
            return self.devices[first]
        if self.scheme == "file":
            return self.folder / ("control" if index == CONTROL_NODE else f"node.{index}{life}")
        suffix = "control" if index == CONTROL_NODE else f"{index}{life}"
        return self.folder / f"limpet.{self.name}.{suffix}"


def full_url(url: str) -> str:
    """The same; a bare name stands for shm://NAME."""
    return f"shm://{url}" if isinstance(url, str) and _NAME.fullmatch(url) else url


def parse_url(url: str) -> Location:
    """The location that `url` names; ParameterError, saying what is wrong with it, if none."""
    if not isinstance(url, str):
        raise ParameterError(f"a pool's URL is text such as 'shm://demo', not {url!r}")
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "shm":
        if _NAME.fullmatch(rest) is None:
            raise ParameterError(
                f"{url!r}: a pool's name is 1 to 200 letters, digits, '_', '-' and '.', "
                "and does not begin with '.'"
            )
        return Location("shm", name=rest, folder=SHM_DIR)
    if separator and scheme == "file":
        return Location("file", folder=_absolute(url, rest))
    if separator and scheme == "dax":
        devices = tuple(_absolute(url, part) for part in rest.split(","))
        for device in devices:
            if dax.NAME.fullmatch(device.name) is None:
                raise ParameterError(f"{url!r}: {device} is not named like a DAX device, dax0.0")
        if len({device.name for device in devices}) != len(devices):
            raise ParameterError(f"{url!r} names a device twice")
        if len(devices) > NODES_MAX:
            raise ParameterError(f"{url!r} names more than {NODES_MAX} devices")
        return Location("dax", devices=devices)
    raise ParameterError(
        f"{url!r} is not a pool's URL; write shm://NAME, file:///DIR or dax:///dev/dax0.0"
    )


def segment_of_file(scheme: str, name: str) -> tuple[str, int, int] | None:
    """The pool's name ("" for file), index and generation that a file's name stands for, if any."""
    pool = ""
    if scheme == "shm":
        prefix, _, rest = name.partition(".")
        pool, _, suffix = rest.rpartition(".")
        if prefix != "limpet" or _NAME.fullmatch(pool) is None:
            return None
        name = suffix if suffix == "control" else f"node.{suffix}"
    match = _SUFFIX.fullmatch(name)
    if match is None:
        return None
    if match[1] is None:
        return pool, CONTROL_NODE, 0
    return (pool, int(match[1]), int(match[2] or 0)) if int(match[1]) < NODES_MAX else None


def _absolute(url: str, text: str) -> Path:
    path = Path(text)
    if not text.startswith("/") or path == Path("/") or ".." in path.parts:
        raise ParameterError(f"{url!r}: {text!r} is not an absolute path without '..'")
    if not text.isprintable():
        raise ParameterError(f"{url!r} has a character that cannot be printed")
    return Path("/", *path.parts[1:])
