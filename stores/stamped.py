"""Objects that begin with a stamp, so that they can be read without a pin (race/glance.py).

Layout, in bytes from the object's address
    0     stamp     of stamps.py
    8     the object, as of records.py
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import post_summed, write_summed
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.records import Objects
from limpet.stores.stamps import STAMP_SIZE, Stamps

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class StampedObjects(Objects):
    """Objects with a stamp."""

    def __init__(self, heap: Any, client: Any) -> None:
        super().__init__(heap, in_place=True)
        self.prefix = STAMP_SIZE
        self.header = array("Q", [0, 0, 0])
        self.stamps = Stamps(client)

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """Write stamp and pair to the object; one write."""
        sizes = len(key) | len(value) << 16
        self.header[0] = self.stamps.take()  # type: ignore[union-attr]
        self.header[1] = sizes
        seed = (hashed + sizes) & MASK
        if self.posts:
            post_summed(self.endpoint, reference & ADDRESS_MASK, self.header, 3, key, value, seed)
        else:
            write_summed(self.endpoint, reference & ADDRESS_MASK, self.header, 3, key, value, seed)

    def write_head(self, reference: int, key: bytes, size: int, digest: int) -> None:
        self.header[0] = self.stamps.take()  # type: ignore[union-attr]
        self.header[1] = len(key) | size << 16
        self.header[2] = digest
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.header, 3, key, b"")
