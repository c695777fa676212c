"""The adaptive index cache (fusee.txt section 4.6): where a key's slot is, and what was in it.

An answer is no more than a guess: whoever uses it reads the slot, and counts whether it still had what
the cache says. A key whose invalid answers are more than a share of all is not asked for; searches go
on counting whether it would have been right, and old counts fade, so it may be asked for again.

The paper marks objects as invalid when they are replaced; a crash between the two leaves stale reads
for ever (trap F6). Here the slot is compared, in the same round trip.
"""

from __future__ import annotations

from typing import Any, Final

FADE: Final = 64
"""From so many answers on, the counts are halved."""


class Place:
    """Where a key is: the slot's link, its word; and how often that was asked, and invalid."""

    def __init__(self, home: int, word: int) -> None:
        self.home = home
        self.word = word
        self.asked = 0
        self.invalid = 0


class IndexCache:
    """The places of about `size` keys, of those last met; `threshold`: share of invalid answers."""

    def __init__(self, size: int, threshold: float) -> None:
        self.half = size // 2
        self.threshold = threshold
        self.forget()

    def forget(self) -> None:
        self.young: dict[bytes, Any] = {}
        self.old: dict[bytes, Any] = {}

    def find(self, key: bytes) -> Any:
        """The key's Place, or None."""
        place = self.young.get(key)
        if place is None:
            place = self.old.get(key)
            if place is not None:
                self._add(key, place)
        return place

    def trusts(self, place: Any) -> bool:
        """Whether to use what the cache says of a key."""
        return bool(place.invalid <= self.threshold * place.asked)

    def judge(self, place: Any, word: int) -> None:
        """Count an answer: the slot was seen to have `word`."""
        if place.asked >= FADE:
            place.asked >>= 1
            place.invalid >>= 1
        place.asked += 1
        if place.word != word:
            place.invalid += 1
            place.word = word

    def remember(self, key: bytes, home: int, word: int) -> None:
        """Note where the key is, according to one who has read it there or put it there."""
        place = self.find(key)
        if place is None:
            if self.half:
                self._add(key, Place(home, word))
        elif place.home != home or place.word != word:
            place.home = home
            place.word = word

    def _add(self, key: bytes, place: Any) -> None:
        if len(self.young) >= self.half:
            self.old = self.young
            self.young = {}
        self.young[key] = place
