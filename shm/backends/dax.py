"""Everything that depends on device DAX: what is different from files and POSIX shared memory.

- The size, the alignment and the NUMA node of a device come from sysfs; fstat and statvfs of the
  character device say nothing. A device is known by its name, and its number must agree with sysfs.
- read(2), write(2), ftruncate and O_EXCL do not work on it. It is mapped, shared, and every offset
  and length of a mapping is a multiple of the alignment (4 KiB, 2 MiB or 1 GiB).
- Its memory is never assumed to be zero. What an earlier life left there looks like anything, also
  like a finished initialisation, so a creator claims word 0 by compare-and-swap.
- Segments cannot be made or unlinked. Their place is fixed: the control segment is at the front of
  the first device, memory node 0 begins where it ends, and memory node i > 0 is at the front of
  device i. The control segment's length is read from its superblock.
- The file's permissions decide which processes may open the device. The uid in the superblock says
  which user owns the pool on it.
- `msync` does not flush it. Where hosts are not hardware-coherent, the endpoint must.

A regular file of the device's size may stand in for the device; sysfs must know its name all the
same. `SYSFS` can point at a made-up tree for that.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from pathlib import Path
from typing import Final

from limpet.shm.errors import PoolForeign, PoolNotFound, PoolTruncated

SYSFS: Path = Path("/sys/bus/dax/devices")
NAME: Final = re.compile(r"dax\d{1,6}\.\d{1,6}", re.ASCII)
ALIGN_MIN: Final = 4096


@dataclasses.dataclass(frozen=True)
class Device:
    """One DAX device: `size` and `align` in bytes, `numa_node` -1 if sysfs does not say."""

    path: Path
    size: int
    align: int
    numa_node: int

    def round_up(self, size: int) -> int:
        return -(-size // self.align) * self.align

    def round_down(self, size: int) -> int:
        return size // self.align * self.align


def device(path: Path) -> Device:
    """The device at `path` as sysfs describes it.

    Raises PoolNotFound if sysfs has no such device, PoolForeign if what it says cannot be.
    """
    folder = SYSFS / path.name
    if NAME.fullmatch(path.name) is None or not folder.is_dir():
        raise PoolNotFound(f"{path}: there is no DAX device {path.name} in {SYSFS}")
    size = _number(folder / "size")
    align = _number(folder / "align")
    if align < ALIGN_MIN or align & (align - 1):
        raise PoolForeign(f"{path}: {folder / 'align'} says {align}, which is not an alignment")
    if size < 2 * align:
        raise PoolForeign(f"{path}: a DAX device of {size} bytes is too small for a pool")
    numa = folder / "target_node"
    return Device(path, size, align, _number(numa) if numa.exists() else -1)


def check_identity(found: Device, fd: int) -> None:
    """Refuse a file that is neither this device nor a stand-in of its size (PoolForeign)."""
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        if status.st_size < found.size:
            raise PoolTruncated(
                f"{found.path} stands in for a device of {found.size} bytes "
                f"and has only {status.st_size}"
            )
        return
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    expected = _text(SYSFS / found.path.name / "dev")
    if not stat.S_ISCHR(status.st_mode) or number != expected:
        raise PoolForeign(
            f"{found.path} is not the DAX device of that name: it has the device number {number}, "
            f"sysfs says {expected}"
        )


def size_now(path: Path, fd: int) -> int:
    """Bytes that can be accessed now, 0 if the device is gone; for detecting truncation."""
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    try:
        return device(path).size
    except (PoolNotFound, PoolForeign):
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PoolForeign(f"{path} cannot be read: {error}") from error


def _number(path: Path) -> int:
    text = _text(path)
    try:
        return int(text, 0)
    except ValueError as error:
        raise PoolForeign(f"{path} says {text!r}, which is not a number") from error
