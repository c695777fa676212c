"""Whether a device seems to hold data of other programs: the first bytes of it are looked at.

A device counts as empty if its first 4 KiB are zero and none of the signatures below is there; or
if a pool of limpet was on it and was destroyed, which leaves its superblock without the magic. Data
that begins later, and has no signature, is not seen.
"""

from __future__ import annotations

from typing import Final

from limpet.shm.backends.superblock import ABSENT, MAGIC, SIZE_OFFSET, unpack
from limpet.shm.endpoint.layout import SUPERBLOCK_SIZE
from limpet.shm.errors import PoolError

SIGNATURES: Final = (
    (0, b"XFSB", "an XFS file system"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (510, b"\x55\xaa", "a partition table"),
    (512, b"EFI PART", "a partition table"),
    (536, b"LVM2 001", "a physical volume of LVM"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a RAID (md)"),
    (32769, b"CD001", "an ISO 9660 file system"),
    (65600, b"_BHRfS_M", "a btrfs file system"),
)
"""Offset, bytes, and the name of what has them there."""
LOOK_SIZE: Final = 128 << 10
assert all(offset + len(magic) <= LOOK_SIZE for offset, magic, _ in SIGNATURES)


def contents_of(data: bytes) -> str:
    """In words, what is on a device that begins with these bytes; "": nothing that counts."""
    first = data[:SUPERBLOCK_SIZE]
    if _was_destroyed(first):
        return ""
    for offset, magic, name in SIGNATURES:
        if data[offset : offset + len(magic)] == magic:
            return name
    # A creator writes the size first, and `destroy` leaves it.
    if any(first[:SIZE_OFFSET]) or any(first[SIZE_OFFSET + 8 :]):
        return "data (its first 4 KiB are not zero)"
    return ""


def _was_destroyed(first: bytes) -> bool:
    """Whether this is a superblock without its magic."""
    if not first.startswith(ABSENT):
        return False
    try:
        unpack(MAGIC + first[len(MAGIC) :], "")
    except PoolError:
        return False
    return True
