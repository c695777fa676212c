"""Single operations of a hash store beside transactions over its keys (rTX sections 4.3, 4.5).

RACE's own operations change a slot by one CAS and lock nothing (Opt2: concurrency control is
delegated to them). A transaction holds each slot that it writes by a CAS, too
(stores/rtx/parts.py), so a single operation that expected another word fails and looks again. Of a
held slot

    get                reads by the log what is decided, and waits for what is not
    put, update, delete, insert of its key
                       wait until it is let go of
    a split            waits likewise until it is decided; then it has the slot let go of at once,
                       and never moves a held one

A key that is not there has no slot; one that a transaction inserts is put into a vacant slot that
it holds, and single inserts put theirs into another one, tentatively (race/table.py). Each of them
looks at all slots of the key after it has put down its own word, so at least one sees the other: a
transaction kicks out the tentative one, whose last CAS fails then; an insert that sees a held slot
with its key withdraws, and waits. Of two transactions at least one gives way.

Reads of a transaction leave nothing in memory, so they are looked at again (stores/rtx/reads.py):
the slot of the key, and that its subtable was not split, as what is in that stands still then. That
a key was absent all the while is seen by all slots in which it could be having the same words; so a
slot whose pair is deleted gets a word that none ever had (stores/vacant.py), in place of RACE's 0.
A slot that was vacant, or had a tentative word, and is so with the same word, had no pair
meanwhile: a tentative word becomes 0 or valid, and what is valid never becomes 0.

A kill leaves behind: as in table.py and growth.py; of a transaction, stores/rtx/commit.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import (
    ADDRESS_MASK,
    HELD,
    HELD_MASK,
    LINK_MASK,
    REPLICATED,
    TENTATIVE,
)
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.base import as_bytes
from limpet.stores.race.old.index import Index, is_valid
from limpet.stores.race.layout import FROZEN, FROZEN_VACANT, OBJECT_MASK
from limpet.stores.race.old.store import Growing
from limpet.stores.race.old.table import Race
from limpet.stores.rtx.hash_writes import Staging
from limpet.stores.rtx.layout import (
    ABORT,
    COMMITTED,
    DOING,
    ENTRY_SIZE,
    INIT,
    OWNER,
    PART_COUNT,
    PART_ENTRIES,
    PART_LOG,
    PART_OWNER,
    SLOT,
    STATE,
    STATE_MASK,
)
from limpet.stores.rtx.lllock import LLLocks
from limpet.stores.rtx.parts import COUNT_MAX
from limpet.stores.rtx.reads import KeyRead
from limpet.stores.rtx.repair import Repair
from limpet.stores.status import AGAIN, MISSING


class Transactional(Growing):
    """A table that grows, whose keys take part in transactions."""

    resolves = True
    transactional = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = pool.entry_of(name)[0] << 48 | REPLICATED
        self.locks = LLLocks(pool, parameters.drift_us, parameters.each_us)
        self.repair = Repair(self, self.locks)
        self.busy = 0
        """The object that was in the way, or slot, with SLOT; 0: nothing was."""
        self.place = 0
        """The slot of the key that was looked up last, and its value."""
        self.value: bytes | None = None
        self.met = 0
        """How often a slot was met whose key nobody could say."""

    def forget(self) -> None:
        Growing.forget(self)
        self.locks.forget()

    def resolved(self, reference: int, home: int) -> bool:
        """Decide a pair of a hand: for a dead client, or for ourselves (base.py)."""
        return bool(self.repair.resolved(reference, home))

    def listed(self, reference: int, home: int) -> list[int]:
        return list(self.repair.listed(reference, home))

    def stats(self) -> dict[str, Any]:
        """As of every store; `repairs`: transactions that this handle has found at the end of their
        lease, and seen to."""
        return {**super().stats(), "repairs": self.repair.repairs}

    # ---- operations -----------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 2 round trips; 1 when no fingerprint matches.

        Waits for a transaction that is about to write the key.
        """
        if type(key) is not bytes:
            key = as_bytes("key", key)
        self.operations += 1
        attempt = 0
        while True:
            self.client.enter()
            try:
                self.require_there()
                self._choose(key)
                if self._find(key):
                    return self.objects.value()
                if not self.busy:
                    return default
            finally:
                self.client.leave()
            attempt += 1
            self.retries += 1
            self._give_way(attempt)

    def get_many(self, keys: Any) -> list[bytes | None]:
        """The values of `keys`, in their order; None for each that is missing."""
        wanted = [key if type(key) is bytes else as_bytes("key", key) for key in keys]
        met = self.met
        found: list[bytes | None] = super().get_many(wanted)
        if self.met != met:
            for row, value in enumerate(found):
                if value is None:
                    found[row] = self.get(wanted[row])
        return found

    def _give_way(self, attempt: int) -> None:
        if self.busy:
            self.repair.stay(self.busy, attempt, True)

    def _write_once(self, key: bytes, value: bytes, size: int, mode: int, attempt: int) -> int:
        outcome = Growing._write_once(self, key, value, size, mode, attempt)
        return AGAIN if outcome == MISSING and self.busy else outcome

    def _delete_once(self, key: bytes) -> int:
        outcome = Growing._delete_once(self, key)
        return AGAIN if outcome == MISSING and self.busy else outcome

    def _replace(self, slot: int, word: int, desired: int) -> int:
        if word & HELD_MASK == HELD:
            self.busy = slot | SLOT
            return AGAIN
        return Growing._replace(self, slot, word, desired)

    def _remove(self, slot: int, word: int) -> int:
        if word & HELD_MASK == HELD:
            self.busy = slot | SLOT
            return AGAIN
        return Growing._remove(self, slot, word)

    def _insert(self, key: bytes, desired: int, attempt: int) -> int:
        return AGAIN if self.busy else Race._insert(self, key, desired, attempt)

    def _rival(self, key: bytes, slot: int, attempt: int) -> bool:
        return self.busy != 0 or Race._rival(self, key, slot, attempt)

    def _vacant(self, word: int) -> int:
        while True:
            vacant = self.locks.vacated()
            # A client that has the pair in hand is to see that it is not linked (heap.py).
            if (vacant ^ word) & LINK_MASK:
                return vacant

    # ---- held slots -----------------------------------------------------------------------------

    def _match(self, key: bytes, row: int, phases: bool) -> int:
        self.busy = 0
        slot = Index._match(self, key, row, phases)
        if slot:
            self.busy = 0
        return slot

    def _held(self, slot: int, word: int, key: bytes) -> int:
        part = word & ADDRESS_MASK
        entry = self._entry_of(part, slot)
        if not entry:
            raise StoreCorrupt(f"{self.name}: no log has the slot at {slot:#x}: {word:#x}")
        decided = self._decision(part)
        old = self.endpoint.load(entry + 8)
        new = self.endpoint.load(entry + 16)
        if decided == INIT:
            if self._has(old, key) or self._has(new, key):
                self.busy = slot | SLOT
                self.met += 1
            return 0
        final = new if decided == COMMITTED else old
        return final & OBJECT_MASK if is_valid(final) else 0

    def _entry_of(self, part: int, slot: int) -> int:
        """Address of a part's entry for a slot; 0: it has none."""
        count = self.endpoint.load(part + PART_COUNT)
        if count <= COUNT_MAX:
            for index in range(count):
                entry = part + PART_ENTRIES + ENTRY_SIZE * index
                if self.endpoint.load(entry) == slot:
                    return entry
        return 0

    def _decision(self, part: int) -> int:
        """What the log of a part says: COMMITTED, ABORT, or INIT, if nobody can say."""
        log = self.endpoint.load(part + PART_LOG)
        if not self.heap.plausible(log):
            return INIT
        log &= ADDRESS_MASK
        try:
            state = self.endpoint.load(log + STATE)
            if self.endpoint.load(log + OWNER) != self.endpoint.load(part + PART_OWNER):
                return INIT
        except NodeFailed:
            return INIT
        if state & STATE_MASK == INIT:
            return INIT
        return COMMITTED if state & STATE_MASK == DOING or state & COMMITTED else ABORT

    def _has(self, word: int, key: bytes) -> bool:
        """Whether the pair of a slot with this word, which nobody holds, has the key."""
        if not is_valid(word):
            return False
        self.objects.load(word & OBJECT_MASK)
        return self.objects.key_is(key)

    def _settled(self, slot: int, word: int) -> int:
        while word & HELD_MASK == HELD:
            part = word & ADDRESS_MASK
            entry = self._entry_of(part, slot)
            committed = entry and self._decision(part) == COMMITTED
            final = self.endpoint.load(entry + (16 if committed else 8)) if entry else 0
            # ORDER: after the part: it was one, if its slot is held still.
            held, word = word, self.endpoint.load(slot)
            if word == held:
                return final
        return word

    # ---- for transactions -----------------------------------------------------------------------

    def look_up(self, key: bytes) -> bytes | None:
        """The value of a key, or None, which counts if nobody is `busy`. Within an operation."""
        self._choose(key)
        self.place = self._find(key)
        self.value = self.objects.value() if self.place else None
        return self.value

    def witness(self) -> tuple[Any, ...]:
        """What the last look-up rests on: the pointer of the directory's entry, and the slot with
        the key, or all slots in which it could be."""
        if self.place:
            return self.entry, self.pointer, self.place, self.word
        if not self.base:
            return self.entry, self.pointer
        return self.entry, self.pointer, self.at[0], self.at[1], bytes(self.slots[:32])

    def stands(self, witness: tuple[Any, ...]) -> bool:
        """Whether what a look-up rests on is as it was (stores/rtx/reads.py)."""
        if len(witness) == 4 and self.endpoint.load(witness[2]) != witness[3]:
            return False
        if len(witness) == 5:
            self.at[0] = witness[2]
            self.at[1] = witness[3]
            Index._read_row(self, 0)
            if bytes(self.slots[:32]) != witness[4]:
                return False
        # ORDER: after the words: of a subtable that is split they stand still, whatever is written.
        return self.endpoint.load(witness[0]) == witness[1]

    def at_key(self, key: bytes, work: Callable[[], Any]) -> Any:
        """What `work` returns, called in an operation that has looked the key up."""
        attempt = 0
        while True:
            self.client.enter()
            try:
                self.require_there()
                self.look_up(key)
                if not self.busy:
                    return work()
            finally:
                self.client.leave()
            attempt += 1
            self.retries += 1
            self._give_way(attempt)

    def value_here(self) -> bytes | None:
        """The value of the key that was looked up last; None: it has none."""
        return self.value

    def note(self, reads: Any, key: bytes, value: bytes | None) -> bool:
        """Note the last look-up in a transaction's read set."""
        return bool(reads.note_key(key, KeyRead(value, self.witness(), self)))

    def busy_at(self) -> int:
        """What was in the way."""
        return self.busy

    def refuse(self, key: bytes, value: bytes) -> None:
        """Raise KeyTooLarge or ValueTooLarge if the pair is."""
        self.objects.size_of(key, value)

    def staging(self, commit: Any) -> Staging:
        """What the transaction of a commit changes here."""
        return Staging(self, commit)

    def place_for(self, key: bytes, taken: Any) -> tuple[int, int]:
        """The slot in which a key is, or can be put, but none of those `taken`; and its word.

        0, 0: there is none, or somebody is `busy` with it. Within an operation.
        """
        self.look_up(key)
        if self.place and self.word & HELD_MASK == HELD:
            self.busy = self.place | SLOT
        if self.busy:
            return 0, 0
        if self.place and not self.word & FROZEN:
            return self.place, self.word
        for index in range(32):
            if index & 7 and self._address(index) in taken:
                self.slots[index] = TENTATIVE
        index = -1 if self.place else self._room()
        if index < 0:
            self.cramped = self.pointer
            return 0, 0
        return self._address(index), self.slots[index]

    def make_room(self, key: bytes, subtable: int) -> None:
        """Split the subtable in which there was no place for a key, if the key still belongs there;
        `subtable`: its pointer. Raises StoreFull."""
        self.cramped = subtable
        try:
            self._make_room(key, False)
        finally:
            self.cramped = 0

    def pair_for(self, key: bytes, value: bytes | None, old: int) -> int:
        """The word of a slot with a new pair, in hand; of one whose pair is deleted, which had the
        word `old`, if `value` is None. 0: there is no memory ready."""
        if value is None:
            return self._vacant(old)
        self._choose(key)
        node = self.tables[self.table] >> NODE_SHIFT & 0xFF
        reference = self.allocator.allocate(node, self.objects.size_of(key, value), 1)
        if not reference:
            return 0
        self.objects.write(reference, key, value)
        return (hash64(key) & 0xFF) << 56 | reference

    def is_alone(self, key: bytes, slot: int) -> bool:
        """Whether no slot but this one, which we hold, has the key; who is about to put it into
        another one is kicked out."""
        self._choose(key)
        self._read_buckets()
        fingerprint = self.hash & 0xFF
        for index in range(32):
            word = self.slots[index]
            other = self._address(index)
            if not index & 7 or word >> 56 != fingerprint or other == slot:
                continue
            if word == FROZEN_VACANT:
                continue  # a frozen one with a pair counts: a split may have been given up
            if word & TENTATIVE:
                # CRASH(kicked): whose object it is frees it, or whoever recovers that client.
                if self._has(word & ~TENTATIVE, key) and self.endpoint.cas(other, word, 0) != word:
                    return False
            elif word & HELD_MASK == HELD:
                self.busy = 0
                reference = self._held(other, word, key)
                if self.busy or (reference and self._has(reference, key)):
                    return False
            elif self._has(word, key):
                return False
        return True

    def tidy(self, key: bytes) -> None:
        """After a transaction has deleted a key: subtables are not merged."""
