"""Named things that are made once: regions on a node, stores in the catalogue.

A directory is an array of entries. An entry is
    0    state       bits 60-63 state, 48-59 hash of the name, 0-47 client at work, or serial of a
                     READY entry; by CAS only
    8    lengths     bits 0-15 of the name, 16-31 of the payload; 0 until the name is there
    16   checksum    XXH64 of name and payload
    24   link        reference of the object that the entry owns, or 0 (regions.py)
    32   name, then payload
    -288 where entries are renamed: two places for a later name, of 16-byte head and 128 bytes of
         name; the head is the length, 0 if there is none, and XXH64 of the name

States
    EMPTY     ends every search
    CLAIMED   a client is writing name and payload, the plan of what it will make
    PLANNED   name and payload are final; the client is making what they describe
    READY     it is made; the serial tells it from an earlier or later one of the same name
    DROPPING  the client is giving back what was made; 0: the next client that meets it goes on
    EMPTYING  likewise, and a part of it is gone already (stores/contents.py)
    VOID      nothing is made; any creator may claim the entry

The name in the text is the entry's *home* for good: what is made goes by it. Its name is that one
of home and the two places whose hash is in the state word. So `rename` writes the new name to the
place that is not in use, and changes the hash in the state word by one CAS; number and serial stay.
It has a claim of the new name meanwhile, so no creator takes it, and one of RENAMING, so that one
client renames at a time; a dead client's claims are given up as all are. Two names with the same 12
bits of hash cannot follow each other.

A creator looks through all entries up to the first EMPTY one. If none is of its name, it claims the
first VOID or EMPTY one, and then looks again, since another creator may have claimed another entry
for the same name meanwhile. Each of two such creators looks after its own claim, so at least one of
them sees the other; and a claim becomes a plan only when a look has found no other claim or plan.
The creator at the higher entry gives way at once. The one at the lower entry waits until the other
has given way, or has planned; then it gives way itself. A claim tells only 12 bits of the name's
hash, so a creator may give way to one of another name, and tries again.

After a power cut, `calm` takes the clients out of the entries: no claim is left, and the next
client goes on with plans and drops.

When a creator dies, the next one that wants the name gives its claim up, or carries its plan out.
The others wait for a creator that stands still, and fence it by the pool's policy, since it writes
plainly. The same holds for a client that drops.
"""

from __future__ import annotations

import itertools
import secrets
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import PoolCorrupt, StoreError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.shm.clients.membership import Membership
    from limpet.shm.endpoint.fabric import Endpoint

EMPTY: Final = 0
CLAIMED: Final = 1
PLANNED: Final = 2
READY: Final = 3
VOID: Final = 4
DROPPING: Final = 5
EMPTYING: Final = 6
AT_WORK: Final = (CLAIMED, PLANNED, DROPPING, EMPTYING)
"""States whose word has the client at work in it."""
NAMED: Final = (PLANNED, READY, DROPPING, EMPTYING)
"""States in which name and payload are there."""
LINKING: Final = (READY, DROPPING)
"""States of a store that links to objects, and has all of its regions."""

LENGTHS: Final = 8
CHECKSUM: Final = 16
LINK: Final = 24
HEAD: Final = 32
NAME_MAX: Final = 128
PLACE_HEAD: Final = 16
PLACE_SIZE: Final = PLACE_HEAD + NAME_MAX
PLACES_SIZE: Final = 2 * PLACE_SIZE
RENAMING: Final = b"\0renaming"
CLIENT_BITS: Final = 48
CLIENT_MASK: Final = (1 << CLIENT_BITS) - 1
HASH_MASK: Final = 0xFFF
PAGE_MIN: Final = 4
PAGE_MAX: Final = 32
"""Entries that a remote client reads at a time, by one message."""
_HEAD: Final = struct.Struct("<4Q")
_PLACE: Final = struct.Struct("<2Q")
READS_MAX: Final = 100
"""An entry that does not fit its state word in so many looks is damaged, and not changing."""


class Entry(NamedTuple):
    """Number, state, the client at work or 0, name and payload (b"" unless NAMED), the state word.

    A VOID entry may still have the name and payload of its earlier use.
    """

    number: int
    state: int
    client: int
    name: bytes
    payload: bytes
    word: int
    home: bytes = b""
    """The name by which what is made goes: the first that the entry had."""
    link: int = 0
    """The reference to the object that it owned when it was read, or 0."""


def _hash_bits(name: bytes) -> int:
    return (hash64(name) & HASH_MASK) << CLIENT_BITS


def _word(state: int, name: bytes, client: int = 0) -> int:
    return state << 60 | _hash_bits(name) | client


def _has_hash(word: int, name: bytes) -> bool:
    """Whether a state word has the hash of this name."""
    return (word ^ _hash_bits(name)) >> CLIENT_BITS & HASH_MASK == 0


def _decode(index: int, word: int, data: bytes, text_size: int) -> Entry | None:
    """The entry with these bytes, which have been read under that state word; None: they do not
    fit it, so they were changing meanwhile."""
    state = word >> 60
    if state > EMPTYING:
        return None
    client = word & CLIENT_MASK if state in AT_WORK else 0
    _, lengths, checksum, link = _HEAD.unpack_from(data)
    name_size, payload_size = lengths & 0xFFFF, lengths >> 16
    fits = name_size <= NAME_MAX and payload_size <= text_size - name_size
    if state in (EMPTY, CLAIMED) or not fits:
        return None if state in NAMED else Entry(index, state, client, b"", b"", word, b"", link)
    text = data[HEAD : HEAD + name_size + payload_size]
    home, payload = text[:name_size], text[name_size:]
    if state not in NAMED:
        return Entry(index, state, client, home, payload, word, home, link)
    if checksum != hash64(text):
        return None
    if _has_hash(word, home):  # nearly always
        return Entry(index, state, client, home, payload, word, home, link)
    for name in _later_names(data, text_size):
        if _has_hash(word, name):
            return Entry(index, state, client, name, payload, word, home, link)
    return None


def _later_names(data: bytes, text_size: int) -> list[bytes]:
    """The contents of an entry's two places for later names, b"" where there is none."""
    found = []
    for at in range(HEAD + text_size, len(data), PLACE_SIZE):
        size, checksum = _PLACE.unpack_from(data, at)
        name = data[at + PLACE_HEAD : at + PLACE_HEAD + size] if size <= NAME_MAX else b""
        found.append(name if name and checksum == hash64(name) else b"")
    return found


class Directory:
    """An array of entries at `base`, each of `entry_size` bytes. `where` names it in messages."""

    def __init__(
        self,
        endpoint: Endpoint,
        base: int,
        entries: int,
        entry_size: int,
        where: str,
        renames: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.base = base
        self.entries = entries
        self.entry_size = entry_size
        self.where = where
        self.renames = renames
        self.text_size = entry_size - HEAD - (PLACES_SIZE if renames else 0)
        """Bytes for name and payload."""

    def _at(self, index: int) -> int:
        return self.base + index * self.entry_size

    def link(self, index: int) -> int:
        """Address of the entry's link to an object that it owns."""
        return self._at(index) + LINK

    def _change(self, at: int, expected: int, desired: int) -> bool:
        """CAS an entry's state word. In a durable pool everything that the client did before it
        persists first, and then the new state: both are what the next steps stand on."""
        self.endpoint.persist()
        changed = self.endpoint.cas(at, expected, desired) == expected
        self.endpoint.persist()
        return changed

    def _read(self, index: int) -> Entry:
        at = self._at(index)
        for attempt in range(READS_MAX):
            # ORDER: the text before the word once more; a creator changes the word before the text.
            (word,), data, (again,) = self.endpoint.read_between((at,), self.entry_size)
            entry = _decode(index, word, data, self.text_size)
            # In a durable pool: the client that set this state may not have made it persistent yet.
            self.endpoint.dirty(at, 8)
            if entry is not None and again == word:
                return entry
            self.endpoint.pause(attempt)
        raise PoolCorrupt(f"{self.where}: entry {index} is damaged; destroy the pool")

    def _places(self, page: range) -> range:
        """Addresses of the state words of these entries."""
        return range(self._at(page.start), self._at(page.stop), self.entry_size)

    def _look(self, page: range) -> Iterator[Entry]:
        """These entries, in one exchange, and one more for each that is changing."""
        size = self.entry_size
        places = self._places(page)
        # ORDER: as in `_read`
        before, text, after = self.endpoint.read_between(places, len(page) * size)
        for number, index in enumerate(page):
            data = text[number * size : (number + 1) * size]
            entry = _decode(index, before[number], data, self.text_size)
            self.endpoint.dirty(places[number], 8)
            unchanged = entry is not None and after[number] == before[number]
            yield entry if entry is not None and unchanged else self._read(index)

    def _place(self, index: int, number: int) -> int:
        """Address of a place for a later name."""
        return self._at(index) + HEAD + self.text_size + number * PLACE_SIZE

    def _write_later_name(self, index: int, number: int, name: bytes) -> None:
        at = self._place(index, number)
        self.endpoint.store(at, 0)
        if name:
            self.endpoint.write(at + PLACE_HEAD, name)
            self.endpoint.store(at + 8, hash64(name))
            self.endpoint.store(at, len(name))

    def __iter__(self) -> Iterator[Entry]:
        """Every entry up to the first EMPTY one."""
        entries: Iterator[Entry] = map(self._read, range(self.entries))
        if self.endpoint.gathers:
            entries = itertools.chain.from_iterable(map(self._look, self._pages()))
        return itertools.takewhile(lambda entry: entry.state != EMPTY, entries)

    def _words(self) -> Iterator[tuple[int, int]]:
        """Number and state word of every entry, in order; read as they are asked for, or, where
        that is an exchange, in pages."""
        if not self.endpoint.gathers:
            return enumerate(map(self.endpoint.load, self._places(range(self.entries))))
        load_all = self.endpoint.load_all
        return itertools.chain.from_iterable(
            zip(page, load_all(self._places(page)), strict=True) for page in self._pages()
        )

    def _pages(self) -> Iterator[range]:
        """The numbers of all entries, in pages that get longer: most directories are short."""
        first, count = 0, PAGE_MIN
        while first < self.entries:
            page = range(first, min(first + count, self.entries))
            yield page
            first, count = page.stop, min(2 * count, PAGE_MAX)

    def find(self, name: bytes) -> Entry | None:
        """The READY entry of that name."""
        return next((entry for entry in self.named(name) if entry.state == READY), None)

    def named(self, name: bytes) -> list[Entry]:
        """The entries of that name, and claims that may be of it: with the same bits of hash."""
        return self._search(name)[0]

    def at(self, index: int) -> Entry:
        """The entry of that number."""
        return self._read(index)

    def is_unchanged(self, index: int, word: int) -> bool:
        """Whether that entry has this state word still, but for its name."""
        there = self.endpoint.load(self._at(index))
        return (there ^ word) & ~(HASH_MASK << CLIENT_BITS) == 0

    def at_home(self, home: bytes) -> Entry | None:
        """The entry whose home that is."""
        entries: list[Entry] = self.named(home)
        found = [entry for entry in entries if entry.home == home and entry.state in NAMED]
        if not found and self.renames:
            found = [entry for entry in self if entry.home == home and entry.state in NAMED]
        return found[0] if found else None

    def home_of(self, index: int) -> bytes:
        """The home of an entry that is NAMED."""
        return self._read(index).home

    def _new_home(self, name: bytes) -> bytes:
        """A home for a new entry of that name: the name, unless a renamed entry has it.

        Another home has other bits of hash than the name, or it would be taken for the name.
        """
        homes = {entry.home for entry in self if entry.state in NAMED} if self.renames else set()
        home = name
        while home in homes or (home != name and _hash_bits(home) == _hash_bits(name)):
            home = name[: NAME_MAX - 9] + b"~" + secrets.token_hex(4).encode()
        return home

    def rename(
        self,
        old: bytes,
        new: bytes,
        membership: Membership,
        drop: Callable[[Entry], object] | None = None,
    ) -> bool:
        """Give the READY entry named `old` another name; False: there is none of that name, or
        there is one of the new one. Raises StoreFull: no place for two claims; StoreError."""
        if _hash_bits(new) == _hash_bits(RENAMING):
            raise self._collide(new, RENAMING)  # it would wait for its own claim
        claims = []
        try:
            for name in (RENAMING, new):
                entry, _ = self._mine(name, membership, drop)
                if entry.state != CLAIMED:
                    return False
                claims.append(entry)
            return self._rename(old, new)
        finally:
            for claim in reversed(claims):
                self.give_up(claim)

    def _rename(self, old: bytes, new: bytes) -> bool:
        """`rename`, with both claims."""
        entry = self.find(old)
        if entry is None:
            return False
        later = _later_names(
            self.endpoint.read(self._at(entry.number), self.entry_size), self.text_size
        )
        same = [name for name in (old, entry.home) if _hash_bits(name) == _hash_bits(new)]
        if same and (old in same or new != entry.home):
            raise self._collide(new, same[0])
        if new != entry.home:
            # ORDER: the place that is not in use, and the whole name, before the state word.
            free = 1 if later[0] == old else 0
            if later[1 - free] != old:
                self._write_later_name(entry.number, 1 - free, b"")
            self._write_later_name(entry.number, free, new)
        # LINEARIZES: rename
        return self._change(
            self._at(entry.number), entry.word, _word(READY, new, entry.word & CLIENT_MASK)
        )

    def _search(self, name: bytes) -> tuple[list[Entry], int]:
        """The entries that are or may be of that name, and the first that may be claimed, or -1."""
        wanted = _hash_bits(name) >> CLIENT_BITS
        found: list[Entry] = []
        place = -1
        for index, word in self._words():
            state = word >> 60
            if state == EMPTY:
                return found, index if place < 0 else place
            if state == VOID:
                place = index if place < 0 else place
            elif word >> CLIENT_BITS & HASH_MASK == wanted:
                entry = self._read(index)
                if (entry.name == name and entry.state in NAMED) or entry.state == CLAIMED:
                    found.append(entry)
        return found, place

    def obtain(
        self,
        name: bytes,
        membership: Membership,
        plan: Callable[[int], bytes],
        make: Callable[[int, bytes], None],
        undo: Callable[[int, bytes], None],
        drop: Callable[[Entry], object] | None = None,
    ) -> tuple[Entry, bool]:
        """The READY entry of that name, made if it was not there; and whether we made it.

        `plan(index)` returns the payload; `make(index, payload)` makes what it describes, perhaps
        half made by a dead creator already; `undo(index, payload)` takes the work of a `make` back
        that has raised; `drop(entry)` completes the drop of a dead client. Raises StoreFull when
        the directory is full.
        """
        try:
            while True:
                entry, word = self._mine(name, membership, drop)
                if entry.state == READY:
                    return entry, False
                at = self._at(entry.number)
                if entry.state != PLANNED:
                    payload, home = plan(entry.number), self._new_home(name)
                    self._write_plan(entry.number, home, payload, name)
                    # CRASH(claimed-entry): no plan; the next creator gives the claim up.
                    planned = _word(PLANNED, name, membership.ident)
                    if not self._change(at, word, planned):
                        continue
                    word = planned
                    entry = entry._replace(name=name, payload=payload, home=home)
                # CRASH(planned-entry): the next creator carries the plan out.
                make(entry.number, entry.payload)
                ready = _word(READY, name, secrets.randbits(CLIENT_BITS))
                if self._change(at, word, ready):
                    # Not as it is now: another client may drop it already.
                    return entry._replace(state=READY, client=0, word=ready), True
        except BaseException:
            self._renounce(membership.ident, undo)
            raise

    def _renounce(self, client: int, undo: Callable[[int, bytes], None]) -> None:
        """Give up our claim or plan, so that no client waits for us, whatever else goes wrong."""
        for entry in self:
            if entry.client == client and entry.state in (CLAIMED, PLANNED):
                at = self._at(entry.number)
                word = self.endpoint.load(at)
                try:
                    if entry.state == PLANNED:
                        undo(entry.number, entry.payload)
                finally:
                    self._change(at, word, VOID << 60)

    def discard(self, name: bytes) -> Entry | None:
        """Make the READY entry of that name VOID; return it. The caller frees the memory."""
        entry = self.find(name)
        if entry is None:
            return None
        at = self._at(entry.number)
        return entry if self._change(at, entry.word, VOID << 60) else None

    def _collide(self, new: bytes, other: bytes) -> StoreError:
        return StoreError(
            f"{self.where}: {new.decode()!r} cannot follow {other.decode()!r}: they have the same "
            "12 bits of hash; take another name"
        )

    def take(self, entry: Entry, state: int, client: int) -> Entry | None:
        """Set an entry to `state`, with `client` at work; None: it has changed since `entry` was
        read.

        The client that was at work is `client`, or dead.
        """
        word = _word(state, entry.name, client)
        if not self._change(self._at(entry.number), entry.word, word):
            return None
        return entry._replace(state=state, client=client, word=word)

    def let_go(self, index: int, client: int) -> None:
        """If `client` is dropping the entry, end that; any other client may go on."""
        word = self.endpoint.load(self._at(index))
        if word >> 60 in (DROPPING, EMPTYING) and word & CLIENT_MASK == client:
            self._change(self._at(index), word, word & ~CLIENT_MASK)

    def claim_void(self, entry: Entry, client: int) -> Entry | None:
        """Claim a VOID entry for `client`, to clear it; None: it has changed."""
        word = CLAIMED << 60 | client
        if not self._change(self._at(entry.number), entry.word, word):
            return None
        return entry._replace(state=CLAIMED, client=client, word=word)

    def give_up(self, entry: Entry) -> None:
        """Make an entry VOID that was seen as CLAIMED."""
        self._change(self._at(entry.number), entry.word, VOID << 60)

    def calm(self, void: tuple[int, ...]) -> None:
        """After a power cut, with no client at work: end claims, take clients out of plans and
        drops, and make entries in these states VOID."""
        for index in range(self.entries):
            word = self.endpoint.load(self._at(index))
            state = word >> 60
            if state == CLAIMED or state in void:
                self._change(self._at(index), word, VOID << 60)
            elif state in AT_WORK and word & CLIENT_MASK:
                self._change(self._at(index), word, word & ~CLIENT_MASK)

    def _write_plan(self, index: int, home: bytes, payload: bytes, name: bytes) -> None:
        text = home + payload
        if len(name) > NAME_MAX or len(text) > self.text_size:
            raise StoreFull(f"{self.where}: name and parameters take more than an entry holds")
        at = self._at(index)
        if self.renames:
            self._write_later_name(index, 0, b"" if home == name else name)
            self._write_later_name(index, 1, b"")
        self.endpoint.write(at + HEAD, text)
        self.endpoint.store(at + CHECKSUM, hash64(text))
        self.endpoint.store(at + LENGTHS, len(home) | len(payload) << 16)

    def _mine(
        self, name: bytes, membership: Membership, drop: Callable[[Entry], object] | None
    ) -> tuple[Entry, int]:
        """The READY entry of that name, or one that we hold now, CLAIMED or PLANNED; its word."""
        claim = -1
        claimed = _word(CLAIMED, name, membership.ident)
        attempt = 0
        while True:
            found, place = self._search(name)
            others = [entry for entry in found if entry.number != claim]
            # A claim counts least: its client may not have seen what stands already.
            others.sort(key=lambda entry: (entry.state != READY, entry.state == CLAIMED))
            if not others and claim >= 0:
                return Entry(claim, CLAIMED, membership.ident, b"", b"", claimed), claimed
            if not others:
                if place < 0:
                    raise StoreFull(
                        f"{self.where}: all {self.entries} entries are taken; "
                        "drop a store or remove a channel"
                    )
                at = self._at(place)
                word = self.endpoint.load(at)
                # ORDER: before the entry is ours: it is not taken for an earlier hold of ours.
                membership.progress()
                if word >> 60 in (EMPTY, VOID) and self._change(at, word, claimed):
                    claim = place
                continue
            other = others[0]
            if claim >= 0 and not (other.state == CLAIMED and other.number > claim):
                self._change(self._at(claim), claimed, VOID << 60)
                claim = -1
            if other.state == READY:
                return other, other.word
            # We hold a claim while we wait: others must not take us for a client that stands still.
            membership.progress()
            what = f"entry {other.number} of {self.where}, {name!r}"
            if other.client == 0 or membership.gone(other.client, what):
                taken = self._take_over(other, name, membership.ident, drop)
                if taken is not None:
                    return taken, taken.word
                continue
            attempt += 1
            self.endpoint.pause(attempt)

    def _take_over(
        self, entry: Entry, name: bytes, client: int, drop: Callable[[Entry], object] | None
    ) -> Entry | None:
        """Go on with the work of a dead client: the plan that is ours now, or None: look again.

        Also for an entry that no client drops any longer.
        """
        if entry.state in (DROPPING, EMPTYING):
            if drop is None:
                raise PoolCorrupt(f"{self.where}: entry {entry.number} cannot be dropped")
            drop(entry)
            return None
        desired = VOID << 60
        if entry.state == PLANNED:
            # `progress` was called before: this is not taken for an earlier hold of ours.
            desired = _word(PLANNED, name, client)
        if not self._change(self._at(entry.number), entry.word, desired):
            return None
        return self._read(entry.number) if entry.state == PLANNED else None
