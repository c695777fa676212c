"""The owned variable: a register with one writer and many readers (LOCO section 5.1).

One word: the value, as it is. Larger: two copies, each of them
    0     sequence    how often the owner has pushed; the copies take turns
    8     checksum    XXH64 of the value, seeded with the sequence
    16    value
Of the copies whose checksum holds, a reader takes that with the higher sequence. The owner writes
over the older copy only; so if it is killed in the midst of that, the last value is still there,
where the paper's single copy would never match its checksum again (trap L1).
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import ParameterError
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import MASK, WORD

HEAD: Final = struct.Struct("<QQ")


def owned_size(size: int) -> int:
    """Bytes that an owned variable of this size takes."""
    return WORD if size <= WORD else 2 * (HEAD.size + (size + 7 & ~7))


class OwnedVar(Channel):
    """A register with one writer and many readers; values are int (one word) or bytes (larger)."""

    def __init__(
        self, manager: Any, name: str, parent: Any = None, *, size: int = WORD, at: int = 0
    ) -> None:
        """`size`: bytes of a value. `at`: its address, in memory of the parent."""
        if size < 1:
            raise ParameterError(f"a variable has at least one byte, not {size}")
        own = 0 if at else owned_size(size)
        super().__init__(manager, name, parent, size=own, kind="owned_var")
        self.size = size
        self.at = at or self.address
        self.value: int | bytes = 0 if size <= WORD else bytes(size)
        """The owner's copy, which `push` publishes."""

    def store(self, value: int | bytes) -> None:
        """Set the owner's copy; others see it after `push`. For the owner only."""
        if self.size <= WORD:
            fits = isinstance(value, int) and 0 <= value <= MASK
        else:
            fits = isinstance(value, bytes) and len(value) == self.size
        if not fits:
            kind = "an int of 64 bits" if self.size <= WORD else f"{self.size} bytes"
            raise ParameterError(f"{self.name!r} takes {kind}, not {value!r}")
        self.value = value

    def push(self) -> Any:
        """Publish the owner's copy; an AckKey. For the owner only."""
        self.enter()
        try:
            self.place()
            return self.manager.issue()
        finally:
            self.leave()

    def place(self) -> None:
        """As `push`, within an operation, without a key."""
        if isinstance(self.value, int):
            self.endpoint.store(self.at, self.value)
            return
        copies = self._copies()
        sequence = 1 + max(copy[0] for copy in copies)
        second = self.is_second_older(copies)
        step = HEAD.size + (self.size + 7 & ~7)
        head = HEAD.pack(sequence, hash64(self.value, sequence))
        # CRASH(pushing): this copy's checksum does not hold; the other one is the value.
        self.endpoint.write(self.at + second * step, head + self.value)

    def _copies(self) -> list[tuple[int, bytes]]:
        """Sequence and value of both copies; sequence 0: the copy is torn. 1 round trip."""
        found = []
        step = HEAD.size + (self.size + 7 & ~7)
        words = array("Q", bytes(2 * step))
        for copy in range(2):
            # ORDER: the first copy is read before the second, on the same node.
            self.endpoint.post_read(self.at + copy * step, words, step >> 3, copy * (step >> 3))
        self.endpoint.wait()
        both = words.tobytes()
        for copy in range(2):
            sequence, checksum = HEAD.unpack_from(both, copy * step)
            value = both[copy * step + HEAD.size :][: self.size]
            whole = self.is_whole(sequence, checksum, value)
            found.append((sequence if whole else 0, value if whole else bytes(self.size)))
        return found

    def is_second_older(self, copies: list[tuple[int, bytes]]) -> bool:
        """Whether the second copy is the older one, which is written over next."""
        return copies[0][0] > copies[1][0]

    def is_whole(self, sequence: int, checksum: int, value: bytes) -> bool:
        """Whether the checksum of a copy holds."""
        return sequence > 0 and checksum == hash64(value, sequence)

    def load(self) -> int | bytes:
        """The value that was pushed last."""
        self.enter()
        try:
            return self.peek()
        finally:
            self.leave()

    def peek(self) -> int | bytes:
        """As `load`, within an operation. 1 round trip, and one more for each copy that was being
        written."""
        if self.size <= WORD:
            ticket = self.endpoint.post_load(self.at)
            self.endpoint.wait()
            return int(self.endpoint.result(ticket))
        attempt = 0
        while True:
            copies = self._copies()
            # If the second is whole, the newer copy was the value at some time since we began: the
            # owner writes the other one next. If it is not, the first must not have changed, or it
            # may be older than our call.
            if copies[1][0] or self._copies() == copies:
                return max(copies)[1]
            attempt += 1
            self.endpoint.pause(attempt)

    def clear(self) -> None:
        """Make it as it was at first; in an operation, by a client that is about to own it."""
        self.value = 0 if self.size <= WORD else bytes(self.size)
        self.place()
