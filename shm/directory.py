"""Named things that are made once: regions on a node, stores in the catalogue.

A directory is an array of entries. An entry is
    0    state       bits 60-63 state, 48-59 hash of the name, 0-47 client at work; by CAS only
    8    lengths     bits 0-15 of the name, 16-31 of the payload; 0 until the name is there
    16   checksum    XXH64 of name and payload
    24   name, then payload

States
    EMPTY    ends every search
    CLAIMED  a client is writing name and payload, the plan of what it will make
    PLANNED  name and payload are final; the client is making what they describe
    READY    it is made; the entry never changes again
    VOID     making it failed; only a creator of the same name takes it up again

Names are looked for from entry 0 on, up to the first EMPTY one, which is the one a creator claims:
so two creators of one name meet at the same word. A creator that dies is taken over by the next one
that wants the name: from CLAIMED with a plan of its own, from PLANNED with the plan that is there.
A creator that stands still is waited for, and fenced by the pool's policy, since it writes plainly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from limpet.shm.errors import PoolCorrupt, StoreFull
from limpet.shm.fabric import hash64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.shm.fabric import Endpoint
    from limpet.shm.membership import Membership

EMPTY: Final = 0
CLAIMED: Final = 1
PLANNED: Final = 2
READY: Final = 3
VOID: Final = 4

HEAD: Final = 24
NAME_MAX: Final = 128
CLIENT_MASK: Final = (1 << 48) - 1


class Entry(NamedTuple):
    """Number, state, the client at work, what it says (b"" until PLANNED), the state word."""

    number: int
    state: int
    client: int
    name: bytes
    payload: bytes
    word: int


def _word(state: int, name: bytes, client: int = 0) -> int:
    return state << 60 | (hash64(name) & 0xFFF) << 48 | client


class Directory:
    """An array of entries at `base`, each of `entry_size` bytes. `where` names it in messages."""

    def __init__(
        self, endpoint: Endpoint, base: int, entries: int, entry_size: int, where: str
    ) -> None:
        self.endpoint = endpoint
        self.base = base
        self.entries = entries
        self.entry_size = entry_size
        self.where = where

    def _at(self, index: int) -> int:
        return self.base + index * self.entry_size

    def _read(self, index: int) -> Entry:
        while True:
            word = self.endpoint.load(self._at(index))
            entry = self._decode(index, word)
            if self.endpoint.load(self._at(index)) != word:
                continue
            if entry is None:
                raise PoolCorrupt(f"{self.where}: entry {index} is damaged; destroy the pool")
            return entry

    def _decode(self, index: int, word: int) -> Entry | None:
        """The entry, if what it says fits its state word; it may be changing meanwhile."""
        at = self._at(index)
        state = word >> 60
        name = payload = b""
        lengths = self.endpoint.load(at + 8)
        name_size, payload_size = lengths & 0xFFFF, lengths >> 16
        if state > VOID or HEAD + name_size + payload_size > self.entry_size:
            return None
        if lengths:
            text = self.endpoint.read(at + HEAD, name_size + payload_size)
            name, payload = text[:name_size], text[name_size:]
        if state in (PLANNED, READY) and (
            self.endpoint.load(at + 16) != hash64(name + payload)
            or word != _word(state, name, word & CLIENT_MASK)
        ):
            return None
        return Entry(index, state, word & CLIENT_MASK, name, payload, word)

    def __iter__(self) -> Iterator[Entry]:
        """Every entry up to the first EMPTY one."""
        for index in range(self.entries):
            entry = self._read(index)
            if entry.state == EMPTY:
                return
            yield entry

    def find(self, name: bytes) -> Entry | None:
        """The READY entry of that name."""
        for entry in self:
            if entry.state == READY and entry.name == name:
                return entry
        return None

    def obtain(
        self,
        name: bytes,
        membership: Membership,
        plan: Callable[[int], bytes],
        make: Callable[[int, bytes], None],
        undo: Callable[[int, bytes], None],
    ) -> tuple[Entry, bool]:
        """The READY entry of that name, made if it was not there; and whether we made it.

        `plan(index)` returns the payload; `make(index, payload)` makes what it describes and may
        find it half made by a dead creator; `undo(index, payload)` takes back what `make` did
        before it raised. Raises StoreFull when the directory is full.
        """
        try:
            while True:
                entry, word = self._mine(name, membership)
                if entry.state == READY:
                    return entry, False
                at = self._at(entry.number)
                if entry.state != PLANNED:
                    payload = plan(entry.number)
                    self._write_plan(at, name, payload)
                    # CRASH(claimed-entry): no plan; the next creator makes one of its own.
                    planned = _word(PLANNED, name, membership.ident)
                    if self.endpoint.cas(at, word, planned) != word:
                        continue
                    word, entry = planned, entry._replace(payload=payload)
                # CRASH(planned-entry): the next creator carries the plan out.
                make(entry.number, entry.payload)
                if self.endpoint.cas(at, word, _word(READY, name)) == word:
                    return self._read(entry.number), True
        except BaseException:
            self._renounce(membership.ident, undo)
            raise

    def _renounce(self, client: int, undo: Callable[[int, bytes], None]) -> None:
        """Give up what we were making; nobody must wait for us, whatever else goes wrong."""
        for entry in self:
            if entry.client == client and entry.state in (CLAIMED, PLANNED):
                at = self._at(entry.number)
                word = self.endpoint.load(at)
                try:
                    if entry.state == PLANNED:
                        undo(entry.number, entry.payload)
                finally:
                    self.endpoint.cas(at, word, word & (0xFFF << 48) | VOID << 60)

    def discard(self, name: bytes) -> Entry | None:
        """Make the READY entry of that name VOID; what it was. The rest is the caller's to do."""
        entry = self.find(name)
        if entry is None:
            return None
        ready = _word(READY, name)
        return (
            entry
            if self.endpoint.cas(self._at(entry.number), ready, _word(VOID, name)) == ready
            else None
        )

    def _write_plan(self, at: int, name: bytes, payload: bytes) -> None:
        text = name + payload
        if len(name) > NAME_MAX or HEAD + len(text) > self.entry_size:
            raise StoreFull(f"{self.where}: name and parameters take more than an entry holds")
        self.endpoint.write(at + HEAD, text)
        self.endpoint.store(at + 16, hash64(text))
        self.endpoint.store(at + 8, len(name) | len(payload) << 16)

    def _mine(self, name: bytes, membership: Membership) -> tuple[Entry, int]:
        """The READY entry of that name, or one that we hold now, and its word."""
        attempt = 0
        index = 0
        while index < self.entries:
            at = self._at(index)
            entry = self._read(index)
            word = entry.word
            if entry.state == EMPTY:
                claimed = _word(CLAIMED, name, membership.ident)
                if self.endpoint.cas(at, word, claimed) == word:
                    return entry, claimed
                continue
            if (word ^ _word(0, name)) >> 48 & 0xFFF or (entry.name and entry.name != name):
                index += 1
                continue
            if entry.state == READY:
                return entry, word
            if entry.state == VOID or membership.gone(
                entry.client, f"entry {index} of {self.where}, {name!r}"
            ):
                state = PLANNED if entry.state == PLANNED else CLAIMED
                taken = _word(state, name, membership.ident)
                if self.endpoint.cas(at, word, taken) == word:
                    return self._read(index), taken
            attempt += 1
            self.endpoint.pause(attempt)
        raise StoreFull(f"{self.where}: all {self.entries} entries are taken")
