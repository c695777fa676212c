"""The adaptive index cache (FUSEE section 4.6): where a key's slot is, and what was in it.

An answer is no more than a guess: whoever uses it reads the slot, and counts whether it still had
what the cache says. A key whose invalid answers are more than a share of all is not asked for; all
that find its slot without the cache, be it to read, to update or to delete, go on counting whether
it would have been right, and old counts fade, so it may be asked for again (trap F13).

The paper marks objects as invalid when they are replaced; a crash between the two leaves stale
reads for ever (trap F6). Here the slot is compared, in the same round trip.

Places are chosen by the key's hash; of keys that share one, the last one met has it. A key's slot
is one of 32 words in two buckets that follow from its hash (stores/race/index.py), so a place takes
16 bytes:
    0     bits 24-63 those of the hash; bits 16-23 which of the 32 words; bits 8-15 how often it was
          asked; bits 0-7 how often the answer was invalid
    8     the slot's word, or 0
"""

from __future__ import annotations

from array import array
from typing import Final

NOWHERE: Final = -1
TAG_SHIFT: Final = 24
FADE: Final = 64
"""From so many answers on, the counts are halved."""


class IndexCache:
    """The places of up to `size` keys (rounded up); `threshold`: share of invalid answers."""

    def __init__(self, size: int, threshold: float) -> None:
        self.threshold = threshold
        self.size = 1 << max(0, size - 1).bit_length() if size else 0
        self.forget()

    def forget(self) -> None:
        self.words = array("Q", bytes(16 * self.size or 8))

    def find(self, hashed: int) -> int:
        """Where the key with this hash is noted, or NOWHERE."""
        if not self.size:
            return NOWHERE
        place = 2 * (hashed & self.size - 1)
        if self.words[place] >> TAG_SHIFT != hashed >> TAG_SHIFT or not self.words[place + 1]:
            return NOWHERE
        return place

    def index(self, place: int) -> int:
        """Which of the words of the key's buckets is its slot."""
        return self.words[place] >> 16 & 0xFF

    def word(self, place: int) -> int:
        """What was in the slot."""
        return self.words[place + 1]

    def trusts(self, place: int) -> bool:
        """Whether to use what is noted there."""
        meta = self.words[place]
        return (meta & 0xFF) <= self.threshold * (meta >> 8 & 0xFF)

    def judge(self, place: int, word: int) -> None:
        """Count an answer: the slot was seen to have `word`."""
        meta = self.words[place]
        asked = (meta >> 8 & 0xFF) + 1
        invalid = meta & 0xFF
        if asked > FADE:
            asked >>= 1
            invalid >>= 1
        if self.words[place + 1] != word:
            self.words[place + 1] = word
            invalid += 1
        self.words[place] = meta >> 16 << 16 | asked << 8 | invalid

    def remember(self, hashed: int, index: int, word: int) -> None:
        """Note where a key is, according to one who has read it there or put it there."""
        if self.size:
            place = 2 * (hashed & self.size - 1)
            meta = self.words[place]
            counts = meta & 0xFFFF if meta >> TAG_SHIFT == hashed >> TAG_SHIFT else 0
            self.words[place] = hashed >> TAG_SHIFT << TAG_SHIFT | index << 16 | counts
            self.words[place + 1] = word
