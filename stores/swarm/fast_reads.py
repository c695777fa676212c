"""READs that are over with one phase: the fast path of algorithm 10 (SWARM sections 3.2 and 4.3).

It is for a key whose place the cache has, with a value in place when the key was read last. The
phase reads ident and M of a majority, and the value in place with its hash of the first replica.
`register.py` has the rules that judge these words, for this path as for every other one:

    greatest          the replica is the register's (its ident), and its greatest tuple
    is_final          line 17: that tuple is VERIFIED, at all that were read, and no tombstone
    value_in_place    what is in place is that tuple's value: stamp, length and hash

If one of them says no, nothing was changed, and the READ goes on as safe_guess.py has it: a single
one begins again with a pin, one of a batch goes on with the words that were read (`hand_over`).

A single READ has no pin. It saves the pin's barrier, and a stopped reader keeps no memory from
other clients. Instead it looks again, when all is read, at four things:

    ident, on each replica    the register is not given up
    VIEW                      as when this handle last attended to it (finder.py)
    DROPS                     as when this handle last found its store

Why the value is the key's at a moment of the operation:
    - an ident is cleared on every replica before the register's memory is freed, and no register
      has it again. So between the two looks at an ident, each word that was read was the register's
    - the first client that reads what is not at a majority writes it back, and one that deletes the
      key has a tombstone at a majority before it clears an ident. A majority was read, so neither
      is missed; this is the argument of a pinned READ, too, and there is nothing in it that a pin
      gives, but for memory that stays
    - memory of a store that is dropped is freed without clearing idents: hence DROPS. A node is
      filled, or used again, only after VIEW was counted, and after all clients pinned in the view
      before have ended: hence VIEW, as in stores/fusee/glance.py. A verb that meets a node which is
      not in service says so
A word of another object that happens to be the ident proves nothing; then M, stamp and hash would
have to agree by chance, too. A pinned READ has the same limit (replica.py).

What the next WRITE wants to know of our row, a READ with a pin finds out and notes (finder.py). So
there is no fast path until that is noted, for a client that writes.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import DROPS, VIEW
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.core.status import UNPROVEN
from limpet.stores.swarm.finder import Finder
from limpet.stores.swarm.layout import (
    AREA_SHIFT,
    CAPACITY_MASK,
    IN_PLACE_WORDS,
    PLACED_SHIFT,
    REPLICAS_ROW,
)
from limpet.stores.swarm.register import (
    first_of,
    greatest,
    is_final,
    is_tombstone,
    stamp_of,
    value_in_place,
    words_to_read,
)
from limpet.stores.swarm.replica import Quorum, Replica

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class FastReads:
    """Up to `rows` READs that share a phase, of registers with at most `most` bytes in place."""

    def __init__(self, client: Any, finder: Finder, rows: int, most: int) -> None:
        self.finder = finder
        self.cache = finder.cache
        self.endpoint = finder.endpoint
        self.heap = finder.register.place.heap
        self.client = client
        self.turns = finder.register.row.turns
        self.numbers = self.turns.numbers
        quorum = finder.register.quorum
        self.replicas = quorum.count
        self.majority = quorum.majority
        self.width = quorum.register.width
        self.writers = quorum.register.writers
        self.most = most
        self.whole = self.width + IN_PLACE_WORDS + most // 8
        self.room = self.whole + self.width * (self.majority - 1)
        self.words = array("Q", bytes(8 * rows * self.room))
        """Of each row: the words of the first replica, with the value, and of the others."""
        self.bases = array("Q", bytes(8 * rows * REPLICAS_ROW))
        """Of each row: where the words of the replicas begin that are read."""
        self.order = array("Q", bytes(8 * rows * REPLICAS_ROW))
        """Of each row: which replicas these are."""
        self.at = array("q", bytes(8 * rows))
        """Of each row: its entry of the cache."""
        self.counts = array("q", bytes(8 * rows))
        """Of each row: the words that are read of the first replica."""

    # ---- a single READ --------------------------------------------------------------------------

    def read(self, key: bytes, drops: int) -> Any:
        """The value of `key`, without a pin, or UNPROVEN. 1 round trip.

        `drops`: the word DROPS when this handle last found its store. The caller keeps the other
        threads out. A LimpetError means UNPROVEN, too.
        """
        if not self.select(0, key, self.cache.locate(key)):
            return UNPROVEN
        self.post(0)
        self.endpoint.wait()
        value = self.value(0)
        if value is None:
            if self._is_gone():
                self.cache.drop(key)  # the READ with a pin need not find it out again
            return UNPROVEN
        # ORDER: after the value and all that was read before.
        return value if self._stands(drops) else UNPROVEN

    def _is_gone(self) -> bool:
        """Whether the register was given up, or its key deleted."""
        top = greatest(self.words, 0, self.cache.words[self.at[0] + 2], self.width)
        return top == 0 or is_tombstone(top)

    def _stands(self, drops: int) -> bool:
        """Whether the register was in use, and its nodes in service, until now."""
        ident = self.cache.words[self.at[0] + 2]
        last = self.bases[self.majority - 1]
        view = self.finder.seen_view
        n = 0
        while self.endpoint.stands(self.bases[n], ident, last, ident, VIEW, view, DROPS, drops):
            n += 1
            if n >= self.majority - 1:
                return True
        return False

    # ---- the steps of each ----------------------------------------------------------------------

    def select(self, row: int, key: bytes, at: int) -> bool:
        """Choose the replicas that the READ of this key reads, and prefetch them; False: it takes
        another path. `at`: where the cache may have its entry (`locate`)."""
        if at < 0 or not self._is_placed(at):
            return False
        entry = self.cache.words
        reference = entry[at + 1]
        shape = entry[at + 3]
        area = shape >> AREA_SHIFT & 0xFF_FFFF
        length = shape >> PLACED_SHIFT & CAPACITY_MASK
        head = reference & ADDRESS_MASK
        steps = self.heap.row(reference) if self.replicas > 1 else 0
        k = first_of(reference, self.replicas)
        own = REPLICAS_ROW * row
        size = 8 * (self.width + IN_PLACE_WORDS) + length
        read = 0
        for _ in range(self.replicas):
            base = (head + self.heap.steps[steps + k] & MASK) + area
            if not self.endpoint.failed(base):
                # the key is compared meanwhile
                self.endpoint.prefetch(base, size)
                size = 8 * self.width
                self.bases[own + read] = base
                self.order[own + read] = k
                read += 1
                if read == self.majority:
                    break
            k = k + 1 if k + 1 < self.replicas else 0
        if read < self.majority or not self.cache.holds(at, key):
            return False
        self.at[row] = at
        self.counts[row] = words_to_read(self.bases[own], self.width, length, shape & CAPACITY_MASK)
        return True

    def _is_placed(self, at: int) -> bool:
        """Whether the value was in place when it was seen last, and what a WRITE wants to know of
        our row is noted."""
        shape = self.cache.words[at + 3]
        if not shape >> PLACED_SHIFT & CAPACITY_MASK or shape & CAPACITY_MASK > self.most:
            return False
        if not self.finder.guesses or not 0 <= self.numbers.number < self.writers:
            return True
        return not self.finder.shared and self.turns.knows(self.cache.words[at + 4])

    def post(self, row: int) -> None:
        """Post the phase of this READ."""
        own = REPLICAS_ROW * row
        start = self.room * row
        self.endpoint.post_read(self.bases[own], self.words, self.counts[row], start)
        start += self.whole
        for n in range(1, self.majority):
            self.endpoint.post_read(self.bases[own + n], self.words, self.width, start)
            start += self.width

    def value(self, row: int) -> Any:
        """After the `wait` for that phase: the value, or None: the READ is not over."""
        at = self.at[row]
        ident = self.cache.words[at + 2]
        start = self.room * row
        top = least = greatest(self.words, start, ident, self.width)
        other = start + self.whole
        for _ in range(1, self.majority):
            word = greatest(self.words, other, ident, self.width)
            top, least = max(top, word), min(least, word)
            other += self.width
        if not is_final(top, least):
            return None
        place = start + self.width
        length = self.words[place + 1]
        shape = self.cache.words[at + 3]
        if length <= shape & CAPACITY_MASK:
            self.finder.note_length(length, at)  # the next READ, also of this value, reads as much
        return value_in_place(
            self.words, place, start + self.counts[row] - place, stamp_of(top), ident
        )

    def hand_over(self, row: int, quorum: Quorum) -> None:
        """Have the words that were read in this quorum, whose register was recalled, as if it had
        elected and posted. `value` was None."""
        start = self.room * row
        count = self.counts[row]
        quorum.read = self.majority
        for n in range(self.majority):
            k = self.order[REPLICAS_ROW * row + n]
            quorum.order[n] = k
            replica: Replica = quorum.replicas[k]
            replica.take(self.words, start, count)
            start += self.width if n else self.whole
            count = self.width
