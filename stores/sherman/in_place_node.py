"""A node that is changed in place, under a lock, while clients read it (Sherman, SIGMOD '22).

A page (stores/sherman/page.py) of 16 bytes less than the node, with other first words, and two more
behind it:

Words
    0     lock      id of the client that holds it, or 0; if locks are in nodes (in_place_locks.py)
    1     version   how often it was written: the front version, DTX's sequence
    2..   the page from its word 2 on
    -2    checksum  two CRC-32C of the words from 1 on, mixed with where the node is
    -1    version   again: the rear version

A copy is whole if both versions are the same and the checksum is right, or if it is a root that has
never been written. A client rejects a torn node as a whole and reads it again (R8). Sherman
compares the versions only. But if a writer overtakes a reader in the middle of the node, the reader
sees both versions new and old words between them. The checksum covers all words but the lock. So an
accepted copy is all of one version, the one that was there when its version word was read.

Clients remember addresses from one operation to the next. So the memory at an address may not be a
node any more: another store or an extent may have it. Then its checksum is not right for a node at
that address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.fabric import crc_pair
from limpet.stores.sherman.in_place_layout import LOCK, TRAILER, VERSION
from limpet.stores.sherman.page import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

MIX: Final = 0x9E37_79B9_7F4A_7C15
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Node(Page):
    """A copy of a node of a store's trees, of `size` bytes.

    `seed` of its checksum, `roots` of the trees; `idempotent`: as the store's parameter.
    """

    def __init__(
        self, endpoint: Any, size: int, seed: int, roots: Sequence[int], idempotent: bool
    ) -> None:
        Page.__init__(self, endpoint, size - TRAILER, more=TRAILER)
        self.seed = seed
        self.roots = roots
        self.idempotent = idempotent
        self.whole = False

    @property
    def version(self) -> int:
        """Its version, as it was read."""
        return int(self.words[VERSION])

    @property
    def lock(self) -> int:
        """Its lock word, as it was read."""
        return int(self.words[LOCK])

    def read(self, at: int) -> None:
        """Copy the node at this address; `is_whole` says whether it was one."""
        self.read_image(at, at)

    def read_image(self, image: int, at: int) -> None:
        """Copy the node at `image`, which is meant for the address `at`."""
        words = self.words
        count = (self.size + TRAILER) >> 3
        self.image.read(image, count)
        if words[VERSION] == words[count - 1] == words[count - 2] == 0 and self._is_root(at):
            self.whole = True
            self.reset(0, b"", None, 0)
        else:
            rear, sum_read = words[count - 1], words[count - 2]
            self.whole = words[VERSION] == rear and sum_read == self._checksum(at)
            if self.whole:
                self.parse(at)

    def advance(self, at: int, state: int) -> None:
        """Become the next version of the node there, with this lock word."""
        words = self.words
        count = (self.size + TRAILER) >> 3
        self.seal()
        words[LOCK] = state
        words[VERSION] += 1
        words[count - 1] = words[VERSION]
        words[count - 2] = self._checksum(at)

    def write(self, at: int, state: int) -> None:
        """Write it there, as the next version, with this lock word."""
        self.advance(at, state)
        self.put(at)

    def put(self, at: int) -> None:
        """Write it there as it is."""
        words = self.words
        version = words[VERSION]
        if not self.idempotent or version == 1:
            self.put_image(at)
        else:
            words[VERSION] = version - 1
            self.put_image(at)
            words[VERSION] = version
            self.endpoint.cas(at + 8 * VERSION, version - 1, version)

    def put_image(self, at: int) -> None:
        """Write all its words to this address, which need not be its own."""
        self.endpoint.write_words(at, self.words, (self.size + TRAILER) >> 3)

    def is_whole(self) -> bool:
        """Whether the copy is a node, and all of one version."""
        return self.whole

    def _is_root(self, at: int) -> bool:
        found = False
        for index in range(len(self.roots)):
            found = found or self.roots[index] == at
        return found

    def _checksum(self, at: int) -> int:
        mixed: int = (at ^ self.seed) * MIX & MASK
        mixed ^= crc_pair(self.words, VERSION, (self.size >> 3) - VERSION)
        return mixed
