"""The location cache of SWARM-KV (SWARM sections 5.2 and 7.1): where a key's register is.

An entry also has the last words that the client wrote to the metadata array, so that the client can
write without reading them first. An entry is right or useless: a register is known by its ident.

A table of rows, at most half of which are in use. A key's row is one of a window that begins where
its hash says. To find the row costs one access to memory, and an adjacent one to compare the key;
the caller prefetches the register between the two (`look`, then `holds`). With three replicas a row
is two adjacent cache lines:

    0     hash of the key, with bit 0 set; 0: the row is empty; LEFT: it is again, and others follow
    1     reference to the register
    2     its ident
    3     bits 56-63 how often it was looked for; of the register (layout.py): bits 32-55 area, bits
          14-27 length of the value in place when it was seen last, bits 0-13 capacity
    4     the number under which the state of our row is known, and the side of the next WRITE
          (row.py); or 0: it is not known
    5, 6  the buffer that each of our two pointers names; 0: none
    then  our word of M on each replica
    last  KEY_WORDS: the key, and, in the last byte, its length; LONG: it is in `long_keys`

No row between a key's first one and its own is 0, so the search for one that is not there ends at
the first such row. To make room, a sweep over as many rows as a window has clears the least used
one and lowers the counts of the others; this approximates least frequently used.
"""

from __future__ import annotations

from typing import Final

from limpet.shm.endpoint.fabric import hash64, words_equal, words_prefetch, words_put
from limpet.shm.private_memory import zeroed_words
from limpet.stores.swarm.layout import FIXED, NOWHERE

WINDOW: Final = 8
HASH_SHIFT: Final = 20
"""The lower bits of the hash choose other things."""
LEFT: Final = 2
USES_SHIFT: Final = 56
USE: Final = 1 << 56
USES_MAX: Final = 255
KEY_WORDS: Final = 6
KEY_MAX: Final = 8 * KEY_WORDS - 1
LENGTH_SHIFT: Final = 56
LONG: Final = 255


class LocationCache:
    """The places of up to `size` keys of a store with that many replicas."""

    def __init__(self, size: int, replicas: int) -> None:
        self.size = size
        self.width = FIXED + replicas + KEY_WORDS + 7 & ~7
        self.mask = (1 << max(0, 2 * size - 1).bit_length()) - 1
        self.window = min(WINDOW, self.mask + 1)
        self.forget()

    def forget(self) -> None:
        """Know nothing."""
        self.words = zeroed_words(self.width * (self.mask + 1 if self.size else 1))
        self.long_keys: dict[int, bytes] = {}
        self.count = 0
        self.hand = 0

    def prefetch(self, key: bytes) -> int:
        """Prefetch the row of a key that is looked for soon; its hash, for `find`."""
        hashed = hash64(key) | 1
        at = (hashed >> HASH_SHIFT & self.mask) * self.width
        words_prefetch(self.words, at)
        words_prefetch(self.words, at + self.width - 1)
        return hashed

    def locate(self, key: bytes) -> int:
        """Where the key's entry may begin in `words`; `holds` confirms it. Or NOWHERE."""
        return self.find(hash64(key) | 1)

    def find(self, hashed: int) -> int:
        """`locate`, of a key with that hash."""
        if not self.size:
            return NOWHERE
        row = hashed >> HASH_SHIFT & self.mask
        for _ in range(self.window):
            found = self.words[row * self.width]
            if found == hashed:
                return row * self.width
            if not found:
                return NOWHERE
            row = row + 1 & self.mask
        return NOWHERE

    def holds(self, at: int, key: bytes) -> bool:
        """Whether the entry that `look` found is still there and is the key's; counts the use."""
        if not self.words[at] & 1:
            return False
        size = self.words[at + self.width - 1] >> LENGTH_SHIFT
        if size == LONG:
            if self.long_keys[at] != key:
                return False
        elif size != len(key) or not words_equal(
            self.words, 8 * (at + self.width - KEY_WORDS), key
        ):
            return False
        if self.words[at + 3] >> USES_SHIFT < USES_MAX:
            self.words[at + 3] += USE
        return True

    def add(self, key: bytes) -> int:
        """An entry for the key, to be filled in, or NOWHERE if none is kept."""
        if not self.size:
            return NOWHERE
        hashed = hash64(key) | 1
        at = self.find(hashed)
        if at >= 0:
            self._clear(at)
        else:
            at = self._room(hashed >> HASH_SHIFT & self.mask)
        self.count += 1
        for index in range(self.width):
            self.words[at + index] = 0
        self.words[at] = hashed
        size = len(key)
        if size <= KEY_MAX:
            words_put(self.words, 8 * (at + self.width - KEY_WORDS), key, size)
        else:
            self.long_keys[at] = key
            size = LONG
        self.words[at + self.width - 1] |= size << LENGTH_SHIFT
        return at

    def drop(self, key: bytes) -> None:
        """Forget the key."""
        at = self.locate(key)
        if at >= 0:
            self._clear(at)

    def _clear(self, at: int) -> None:
        following = (at // self.width + 1 & self.mask) * self.width
        self.words[at] = LEFT if self.words[following] else 0
        self.long_keys.pop(at, None)
        self.count -= 1

    def _room(self, first: int) -> int:
        """Where an empty row of the window from this row on begins; there are fewer than `size`."""
        while True:
            row = first
            for _ in range(self.window):
                if not self.words[row * self.width] & 1:
                    break
                row = row + 1 & self.mask
            else:
                self._evict(first)
                continue
            if self.count < self.size:
                return row * self.width
            self.hand = self._evict(self.hand)  # from anywhere: there may be no more

    def _evict(self, row: int) -> int:
        """Clear the least used of the next rows in use; where the next sweep begins.

        It looks at as many rows as a window has, so a full window gives up one of its own.
        """
        least, found, seen = USES_MAX + 1, -1, 0
        for _ in range(self.mask + 1):
            if seen == self.window or seen == self.count:
                break
            at = row * self.width
            row = row + 1 & self.mask
            if self.words[at] & 1:
                seen += 1
                uses = self.words[at + 3] >> USES_SHIFT
                self.words[at + 3] -= uses - (uses >> 1) << USES_SHIFT
                if uses < least:
                    least, found = uses, at
        if found >= 0:
            self._clear(found)
        else:
            self.count = 0  # no row is in use: a signal handler has raised between row and count
        return row
