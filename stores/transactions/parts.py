"""Part: the slots of a hash index that a transaction writes, as a participant of it.

A slot (race/index.py) is one word that single operations change by one CAS, without locks; it has
no lock word beside it. So a transaction that changes slots puts a word of its own into each of
them, as multi-word CAS does (Harris, Fraser and Pratt, "A practical multi-word compare-and-swap
operation", DISC '02). It leads to a *part* of the log (log.py): an object on the slot's memory
node, so that what the slot was is not lost with the node of the log. The part of the slots on the
log's own memory node is in the log itself, behind its entries.

    0     log      reference to the log, which says whether the transaction commits
    8     owner    lock state of the transaction, as in the log: else what is there is something
                   else, in memory that the log's node was given when it was replaced
    16    count    entries
    24    entries  24 bytes each: address of the slot, its word before, its word after

In the entry of the log that names it, `new` leads to the part, and `old` does if it is an object of
its own.

Held slot
    bits 56-63  fingerprint of the key that is written
    bits 4-55   as of a reference to the part
    bits 1-3    HELD, as which no reference has them (words.py)
    bit 0       0

The part is written whole before its first slot is held; the words after of large pairs are written
last, as these come late (log.py). It is over with the log, when none is held any more, and like it
has no used bit, unless it came late. So a client that meets a held slot, and was pinned before, may
read both, and no word of a held slot comes again meanwhile: CASes that expect it succeed once.

The meaning of a held slot: while the log is INIT, no client can say: the transaction may have
validated already, and what it has read be changed since. Once the log is DOING or DONE, the slot
means the word after, or the word before if the transaction was aborted, whether it is still held or
not. So a client that meets it

    to read               goes by the log if that is decided; else waits
    to write              waits until it is let go of
    to freeze             has it let go of at once, if the split is decided; else waits
    to settle a client journal   leaves the objects of both words to the transaction (`concerns`)

A client that waits sees to the log when the lease is over (repair.py). A slot that is held is not
frozen, so its subtable is not split meanwhile (rtx/race.py); and a frozen slot cannot be held, as
its word is another one.

A held slot whose log was lost with its memory node means the word before, once a waiting client has
seen it for a lease of the pool; its owner, if it lives and has committed, sets it before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, LINK_MASK, REFERENCE_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.core.records import is_vacant
from limpet.stores.transactions.layout import (
    AT_ONCE_MAX,
    COUNT_MAX,
    ENTRY_SIZE,
    LATE_SIZE,
    PART,
    PART_COUNT,
    PART_ENTRIES,
    PART_LOG,
    PART_OWNER,
    SLOT,
    WORDS,
)
from limpet.stores.transactions.participant import Participant, go_on
from limpet.stores.transactions.slot_writes import Change

if TYPE_CHECKING:
    from limpet.stores.transactions.log import Log
    from limpet.stores.transactions.slot_writes import SlotWrite

FINGERPRINT: Final = 0xFF << 56
HEADER: Final = PART_ENTRIES // 8
ENTRY: Final = ENTRY_SIZE // 8
"""Words of a part's header, and of an entry."""


def is_held(word: int) -> bool:
    """Whether a transaction holds the slot with this word."""
    return word & HELD_MASK == HELD


def held_word(part: int, change: Change) -> int:
    """The word of a slot while it is held, by the reference of the part."""
    valid = change.new if is_vacant(change.old) else change.old
    return valid & FINGERPRINT | part | HELD


def part_size(entries: int) -> int:
    """Bytes of a part of so many entries."""
    return PART_ENTRIES + ENTRY_SIZE * entries


class Part(Participant):
    """A part, by any client that works on it. `word`: a reference to it, or of a slot that it
    holds; 0: it is to be written."""

    def __init__(self, endpoint: Any, word: int) -> None:
        self.attach(endpoint, word)

    def attach(self, endpoint: Any, word: int) -> None:
        """Use this object for the part there. Constructors call it, as that is compiled."""
        reference = word & REFERENCE_MASK & ~HELD
        self.describe(PART, reference, reference)
        self.endpoint = endpoint
        self.reference = reference
        self.address = word & ADDRESS_MASK
        self.writes: list[SlotWrite] | None = None
        self.begin = 0
        self.end = 0
        """Of the writer: from `begin` to `end` in this list is what it writes to slots of that
        memory node."""
        self.written = 0
        """Of the writer: how many of these are in the part, so it parses no entry."""
        self.memory_node = 0
        self.size = 0
        """Bytes that it takes."""
        self.offset = 0
        """Of the writer: where it is in the log itself; 0: it is an object of its own."""
        self.membership: Any = None
        self.locks: Any = None

    # ---- by the client whose transaction it is ---------------------------------------------------

    def stage(
        self, node: int, writes: list[SlotWrite], begin: int, end: int, membership: Any
    ) -> None:
        """Prepare the part for these writes to slots of this memory node. The object may have been
        another transaction's before."""
        self.old = self.new = 0
        self.busy = 0
        self.written = 0
        self.memory_node = node
        self.writes = writes
        self.begin = begin
        self.end = end
        self.membership = membership

    def place_at(self, size: int, offset: int) -> None:
        """It takes `size` bytes, or is to be written in the log itself, which is on the same memory
        node, at this offset."""
        self.size = size
        self.offset = offset

    def node(self) -> int:
        return self.memory_node

    def sizes(self) -> list[int]:
        """Of the pairs: the part itself is coherent memory."""
        sizes = [write.size for write in (self.writes or ())[self.begin : self.end]]
        return [size for size in sizes if size]

    def reserve(self, log: Log, allocator: Any) -> bool:
        self.locks = log.locks
        if self.offset:
            self.old, self.new = 0, log.at + self.offset
            base = log.place_of(self.offset, HEADER + ENTRY * (self.end - self.begin))
            return self._name(log, allocator, base)
        if self.size > LATE_SIZE:
            return True
        self.new = allocator.coherent().next_object(self.memory_node, self.size, 1)
        self.old = self.new
        return self.new != 0 and self._name(log, allocator, WORDS)

    def _name(self, log: Log, allocator: Any, base: int) -> bool:
        """Write the part, with pairs that are not in use yet, and have the log name it; False:
        there is no memory ready. `base`: where in `log.locks.words` it begins; WORDS: it is not
        written with the log."""
        assert self.writes is not None
        self.reference = self.new
        self.address = self.new & ADDRESS_MASK
        locks = self.locks
        count = self.end - self.begin
        locks.words[base] = log.reference
        locks.words[base + 1] = log.lock_state
        locks.words[base + 2] = count
        place = base + HEADER
        written = 0
        for index in range(count):
            write = self.writes[self.begin + index]
            if not write.size:
                write.vacate()
            elif write.size <= LATE_SIZE:
                reference = allocator.next_object(self.memory_node, write.size, 1)
                if not reference:
                    return False
                write.take(reference)
            locks.words[place] = write.slot
            locks.words[place + 1] = write.old
            locks.words[place + 2] = write.new
            place += ENTRY
            if base == WORDS and (index + 1 == count or index + 1 - written == AT_ONCE_MAX):
                self._write_down(written, index + 1)
                written = index + 1
                place = base + HEADER
        self.written = count
        if log.is_there:
            # ORDER: the part before the log that names it, which may be on another memory node.
            # (A log that is not there yet counts when the phase has ended in which both are
            # written.)
            self.endpoint.wait()
        log.note(self)
        return True

    def _write_down(self, first: int, end: int) -> None:
        """Write entries that are in `locks.words` behind the header's place at WORDS; the header
        with the first."""
        endpoint, locks = self.endpoint, self.locks
        if first:
            at = self.address + PART_ENTRIES + ENTRY_SIZE * first
            endpoint.post_write(at, locks.words, ENTRY * (end - first), WORDS + HEADER)
        else:
            endpoint.post_write(self.address, locks.words, HEADER + ENTRY * end, WORDS)

    def write_new(self, log: Log) -> None:
        """Post the writes of the pairs for its slots."""
        assert self.writes is not None
        for index in range(self.begin, self.begin + self.written):
            write = self.writes[index]
            go_on(self.membership, index - self.begin + 1)
            if 0 < write.size <= LATE_SIZE:
                write.write_pair()

    def prepare(self, log: Log, allocator: Any) -> bool:
        assert self.writes is not None
        if not self.new:
            self.new = allocator.coherent().allocate(self.memory_node, self.size, 1)
            self.old = self.new
            if not self.new or not self._name(log, allocator, WORDS):
                return False
            self.write_new(log)
            log.named_late()
        for index in range(self.begin, self.end):
            write = self.writes[index]
            go_on(self.membership, index - self.begin + 1)
            if write.size > LATE_SIZE:
                if not self._write_late(log, allocator, write, index):
                    return False
            elif write.size:
                log.use(write.reference)
        return True

    def _write_late(self, log: Log, allocator: Any, write: SlotWrite, index: int) -> bool:
        """Write a large pair, and have its entry name it; False: there is no memory ready."""
        reference = allocator.allocate(self.memory_node, write.size, 1)
        if not reference:
            return False
        write.take(reference)
        write.write_pair()
        entry = self.address + PART_ENTRIES + ENTRY_SIZE * (index - self.begin)
        self.locks.word[0] = write.new
        self.endpoint.post_write(entry + 16, self.locks.word, 1)
        log.named_late()
        return True

    def post_lock(self, state: int) -> None:
        """Post the holds of the slots, in order, from the words that were read."""
        assert self.writes is not None
        for index in range(self.begin, self.begin + self.written):
            write = self.writes[index]
            write.ticket = self.post_hold(write)

    def has_locked(self) -> bool:
        assert self.writes is not None
        for index in range(self.begin, self.begin + self.written):
            write = self.writes[index]
            if self.endpoint.result(write.ticket) != write.old:
                self.busy = write.slot | SLOT
                return False
            # CRASH(locked): a client that meets the slot aborts it when the lease is over.
        return True

    def post_hold(self, change: Change) -> int:
        """Post the hold of a slot; the ticket of its result, another word than `old` if it has
        changed."""
        return self.endpoint.post_cas(change.slot, change.old, held_word(self.reference, change))

    def validate(self) -> bool:
        """Whether no other slot has a key that is inserted, now that all slots are held."""
        assert self.writes is not None
        for index in range(self.begin, self.end):
            write = self.writes[index]
            go_on(self.membership, index + 1)
            # ORDER: held before we look: a client that inserts the key looks after it has put it
            # down, too.
            if write.inserts and not write.is_alone():
                self.busy = write.slot | SLOT
                return False
        return True

    # ---- by any client ---------------------------------------------------------------------------

    def log(self) -> int:
        """Reference to the log."""
        return self.endpoint.load(self.address + PART_LOG)

    def owner(self) -> int:
        """Lock state of the transaction."""
        return self.endpoint.load(self.address + PART_OWNER)

    def changes(self) -> list[Change]:
        """All entries; their writer reads none. Raises StoreCorrupt if there cannot be as many."""
        if self.writes is not None:
            return list(self.writes[self.begin : self.begin + self.written])
        endpoint = self.endpoint
        count = endpoint.load(self.address + PART_COUNT)
        if count > COUNT_MAX:
            raise StoreCorrupt(
                f"the part of a log at {self.address:#x} is damaged: {count} entries"
            )
        found: list[Change] = []
        at = self.address + PART_ENTRIES
        for _ in range(count):
            found.append(Change(endpoint.load(at), endpoint.load(at + 8), endpoint.load(at + 16)))
            at += ENTRY_SIZE
        return found

    def release(self, state: int, committed: bool) -> None:
        """Let go of all slots, as the transaction was decided."""
        if self.writes is None:
            for change in self.changes():
                self.let_go_of(change, committed)
                # CRASH(releasing): some slots are let go of; the next one goes on.
        else:
            for index in range(self.begin, self.begin + self.written):
                write = self.writes[index]
                write.applied = False
                write.ticket = self.let_go_of(write, committed)
                write.applied = True

    def let_go_of(self, change: Change, committed: bool) -> int:
        """Post that one slot is let go of; the ticket of its result, the word of the held slot if
        no other client was first."""
        held = held_word(self.reference, change)
        return self.endpoint.post_cas(change.slot, held, change.new if committed else change.old)

    def has_applied(self) -> bool:
        assert self.writes is not None
        for index in range(self.begin, self.begin + self.written):
            write = self.writes[index]
            if not write.applied:
                return False
            if self.endpoint.result(write.ticket) != held_word(self.reference, write):
                return False
        return True

    def unlinked(self, committed: bool, found: list[int]) -> None:
        """The part, and the pairs that are not linked; these are lost if the part is."""
        pairs: list[int] = []
        try:
            self.endpoint.load(self.address + PART_COUNT)
            for change in self.changes():
                word = change.old if committed else change.new
                if not is_vacant(word):
                    pairs.append(word & REFERENCE_MASK)
        except NodeFailed:
            pairs = []
        found += pairs
        if self.old:
            found.append(self.reference)

    def free_unlinked(self, log: Log, committed: bool) -> None:
        assert self.writes is not None
        for index in range(self.begin, self.begin + self.written):
            write = self.writes[index]
            word = write.old if committed else write.new
            if not is_vacant(word):
                log.free(word & REFERENCE_MASK)
        if self.old and self.size > LATE_SIZE:
            log.free(self.reference)

    def named(self, committed: bool) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for change in self.changes():
            found.append((change.new, change.slot))
            if committed:
                found.append((change.old, change.slot))
        return [*found, (self.old, 0)]


def part_at(endpoint: Any, word: int) -> Part:
    """The part of this word. It takes less time than the constructor, when compiled."""
    made = Part.__new__(Part)
    made.attach(endpoint, word)
    return made


def concerns(endpoint: Any, word: int, slot: int, reference: int) -> bool:
    """Whether an object is named by the word before, or after, of a slot that is held by `word`."""
    part = part_at(endpoint, word)
    for change in part.changes():
        if change.slot == slot:
            for named in (change.old, change.new):
                if not is_vacant(named) and not (named ^ reference) & LINK_MASK:
                    return True
    return False
