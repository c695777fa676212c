"""The adaptive index cache (FUSEE section 4.6): the place of a key's slot, and its last word.

An answer is a guess: the operation that uses it reads the slot, and counts whether it still had the
word in the cache. An answer is not trusted if the key's share of invalid ones is too large: then
the slot is read first, its 8 bytes in place of two buckets, and the object of its word. (The paper
reads the buckets.) Each operation counts whether the answer was right, and old counts fade, so the
key may be trusted again (trap F13).

The paper marks objects as invalid when they are replaced; a crash between the two leaves stale
reads for ever (trap F6). Here the slot is compared, in the same round trip.

A key's hash chooses its place; of keys that share one, the last key has it. A key's slot
is one of 32 words in two buckets that follow from its hash (stores/race/index.py), so a place takes
16 bytes:
    0     bits 24-63 of the hash; bits 16-23 which of the 32 words; bits 8-15 answers; bits 0-7
          invalid answers
    8     the slot's word, or 0
"""

from __future__ import annotations

from typing import Final

from limpet.shm.private_memory import zeroed_words

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
        self.words = zeroed_words(2 * self.size)

    def find(self, hashed: int) -> int:
        """The place of the key with this hash, or NOWHERE."""
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
        """The slot's word as it is noted."""
        return self.words[place + 1]

    def trusts(self, place: int) -> bool:
        """Whether to use the answer that is noted there."""
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
        """Note the slot of a key that was read there or put there."""
        if self.size:
            place = 2 * (hashed & self.size - 1)
            meta = self.words[place]
            counts = meta & 0xFFFF if meta >> TAG_SHIFT == hashed >> TAG_SHIFT else 0
            self.words[place] = hashed >> TAG_SHIFT << TAG_SHIFT | index << 16 | counts
            self.words[place + 1] = word
