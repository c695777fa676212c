"""RACE hashing: a lock-free, one-sided hash index (Zuo et al., ATC '21; fusee.txt section 4.2).

The index is cut into subtables, one on each memory node, chosen by the key's hash; a pair's object
lies on the node of its subtable. A subtable is an array of groups of 192 bytes:

    0     main bucket 0
    64    overflow bucket, shared by both
    128   main bucket 1

A bucket is 64 bytes: a header word (subtable number << 32 | group number, for `check`) and 7
slots. A key has two choices; each is a combined bucket, a main bucket with the overflow bucket
beside it, read as 128 adjacent bytes. So a key's pair is in one of 28 slots, and stays in the one
it was put into.

Slot word
    bits 56-63  fingerprint: 8 bits of the key's hash
    bits 48-55  size class of the object: how much to read, in place of the paper's length
    bits 4-47   address of the object (objects.py)
    bit 0       tentative: written by an insert that is not yet decided; readers pass over it
    0           empty

A slot is valid when it is not 0 and not tentative. Invariant: of all valid slots, at most one holds
a given key.

Search, update and delete are the paper's: read both combined buckets, read the objects whose
fingerprint matches, CAS the slot. The paper's insert writes the slot and then looks for a
duplicate, removing the later of two; a reader can have seen that one already, which is not
linearizable. Ours is decided by one CAS:

    1. CAS an empty slot to the object, tentative; read both combined buckets again (one round trip)
    2. a valid slot holds the key: withdraw. Another tentative one does: the one at the lower
       address goes first, the other withdraws, or, met again and again, is kicked out by a CAS to 0
    3. CAS the own slot to not tentative

Of two inserts of one key, each reads the slots after its own step 1, so at least one sees the
other; it goes on to step 3 only if it saw the other's slot empty again, by the other's hand or its
own, and then the other's step 3 fails. A dead or stopped client's tentative slot is kicked out in
the same way.

Round trips without conflict: search 2 (1 when no fingerprint matches), update 3, delete 3, insert
3.

What a kill leaves behind: the client's hand (client.py) names the new object and the slot that it
was meant for, the old object and the slot that it was in. Before the deciding CAS the new one is
not validly linked and is freed; after it, the old one is not, and is freed.
"""

from __future__ import annotations

import contextlib
from array import array
from typing import Any, Final

import numpy as np

from limpet.shm.errors import KeyExists, NodeFailed, StoreCorrupt, StoreFull, StoreMismatch
from limpet.shm.fabric import hash64
from limpet.shm.layout import NODE_SHIFT
from limpet.shm.words import ADDRESS_MASK, LINK_MASK, REFERENCE_MASK, TENTATIVE
from limpet.stores.contract import Store, as_bytes
from limpet.stores.objects import Objects
from limpet.stores.race.parameters import GROUP_SIZE, GROUP_WORDS, RaceParameters

MIX_FIRST: Final = 0x9E37_79B9_7F4A_7C15
MIX_SECOND: Final = 0xD1B5_4A32_D192_ED03
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
PATIENCE: Final = 8
"""How often an insert gives way to another one of the same key before it kicks it out."""
BATCH: Final = 32
"""Keys whose reads `get_many` overlaps, in two round trips."""
PREFETCH_SIZE: Final = 192

PUT: Final = 0
INSERT: Final = 1
UPDATE: Final = 2

DONE: Final = 0
AGAIN: Final = 1
NO_MEMORY: Final = 2
EXISTS: Final = 3
MISSING: Final = 4
FULL: Final = 5


class Race(Store):
    """The `race` store: unreplicated RACE hashing of a fixed capacity. `RaceParameters`."""

    Parameters = RaceParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: RaceParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.objects = Objects(pool.heap)
        self.groups = parameters.groups
        self.subtables = parameters.subtables
        self.tables = array("Q", _attach(pool, name, parameters))
        self.slots = memoryview(bytearray(256 * BATCH)).cast("Q")
        self.hashes = array("Q", bytes(8 * BATCH))
        self.at = array("Q", [0, 0])
        self.word = 0
        self.hash = 0
        self.table = 0

    @staticmethod
    def make(pool: Any, name: str, parameters: RaceParameters) -> None:
        """Make one region a subtable, with the bucket headers written."""
        if parameters.subtables % pool.parameters.nodes and parameters.subtables != 1:
            raise StoreMismatch(f"{name}: {parameters.subtables} subtables do not fit the nodes")
        for subtable in range(parameters.subtables):
            _region(pool, name, parameters, subtable)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: RaceParameters) -> None:
        for subtable in range(parameters.subtables):
            with contextlib.suppress(NodeFailed):  # then its region is gone with the node
                pool.regions.discard(subtable % pool.parameters.nodes, _region_name(name, subtable))

    # ---- operations -------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 2 round trips; 1 when no fingerprint matches."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        self.operations += 1
        self.client.enter()
        try:
            self._choose(key)
            if self._find(key):
                return self.objects.value()
            return default
        finally:
            self.client.leave()

    def get_many(self, keys: Any) -> list[bytes | None]:
        """The values of `keys`, in their order; None for each that is missing."""
        wanted = [key if type(key) is bytes else as_bytes("key", key) for key in keys]
        found: list[bytes | None] = []
        self.operations += len(wanted)
        for start in range(0, len(wanted), BATCH):
            # one pin a batch: a pin held for long looks like a process that stands still
            self.client.enter()
            try:
                self._get_batch(wanted[start : start + BATCH], found)
            finally:
                self.client.leave()
        return found

    def _get_batch(self, keys: list[bytes], found: list[bytes | None]) -> None:
        """Append the values of at most BATCH keys: the reads of a phase overlap."""
        for row, key in enumerate(keys):
            self.hashes[row] = hash64(key)
            self._place(self.hashes[row])
            self.endpoint.prefetch(self.at[0], 128)
            self.endpoint.prefetch(self.at[1], 128)
        for row in range(len(keys)):
            self._place(self.hashes[row])
            self._read_row(row)
            for index in range(32 * row, 32 * row + 32):
                word = self.slots[index]
                if index & 7 and word and word >> 56 == self.hash & 0xFF:
                    self.endpoint.prefetch(word & LINK_MASK, PREFETCH_SIZE)
        self.endpoint.wait()
        for row, key in enumerate(keys):
            self._place(self.hashes[row])
            found.append(self.objects.value() if self._match(key, row, False) else None)
        self.endpoint.wait()

    def put(self, key: Any, value: Any) -> None:
        """Insert or update. 3 round trips. Raises KeyTooLarge, ValueTooLarge, StoreFull."""
        self._write(key, value, PUT)

    def insert(self, key: Any, value: Any) -> None:
        """Insert; KeyExists if the key is there. 3 round trips. Raises as `put` does."""
        if self._write(key, value, INSERT) == EXISTS:
            raise KeyExists(f"{self.name}: the key {key!r} is there already")

    def update(self, key: Any, value: Any) -> None:
        """Update; KeyError if the key is not there. 3 round trips. Raises as `put` does."""
        if self._write(key, value, UPDATE) == MISSING:
            raise KeyError(key)

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there. 3 round trips."""
        data = as_bytes("key", key)
        self.operations += 1
        while True:
            self.client.enter()
            try:
                outcome = self._delete(data)
            finally:
                self.client.leave()
            if outcome == MISSING:
                raise KeyError(key)
            if outcome == DONE:
                return
            self.retries += 1

    # ---- finding ----------------------------------------------------------------------------

    def _choose(self, key: bytes) -> None:
        """Work out a key's hash, subtable and the addresses of its two combined buckets."""
        self._place(hash64(key))

    def _place(self, hashed: int) -> None:
        self.hash = hashed
        self.table = (self.hash >> 32) * self.subtables >> 32
        combined = 2 * self.groups
        first = ((self.hash * MIX_FIRST & MASK) >> 32) * combined >> 32
        second = ((self.hash * MIX_SECOND & MASK) >> 32) * combined >> 32
        if first >> 1 == second >> 1:
            # one group would give the key 14 slots instead of 28
            second = (second + 2) % combined
        base = self.tables[self.table]
        self.at[0] = base + (first >> 1) * GROUP_SIZE + (first & 1) * 64
        self.at[1] = base + (second >> 1) * GROUP_SIZE + (second & 1) * 64

    def _read_buckets(self) -> None:
        """Read both combined buckets into row 0 of `slots`."""
        self._read_row(0)
        self.endpoint.wait()

    def _read_row(self, row: int) -> None:
        """A row of `slots`: words 0-15 the first combined bucket, 16-31 the second."""
        self.endpoint.read_words(self.at[0], self.slots, 16, 32 * row)
        self.endpoint.read_words(self.at[1], self.slots, 16, 32 * row + 16)

    def _find(self, key: bytes) -> int:
        """Read the buckets; address of the valid slot with this key, or 0.

        The image then has its pair.
        """
        self._read_buckets()
        return self._match(key, 0, True)

    def _match(self, key: bytes, row: int, phases: bool) -> int:
        """Of the slots in a row, the address of the valid one with this key, or 0.

        With `phases`, each object read is a round trip of its own.
        """
        fingerprint = self.hash & 0xFF
        for index in range(32):
            word = self.slots[32 * row + index]
            if word >> 56 == fingerprint and index & 7 and word and not word & TENTATIVE:
                self.objects.load(word & REFERENCE_MASK)
                if phases:
                    self.endpoint.wait()
                if self.objects.key_is(key):
                    self.word = word
                    return self._address(index)
        return 0

    def _address(self, index: int) -> int:
        """Address of the slot at this place of `slots`."""
        return self.at[index >> 4] + (index & 15) * 8

    # ---- changing ---------------------------------------------------------------------------

    def _write(self, key: Any, value: Any, mode: int) -> int:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        size = self.objects.size_of(key, value)
        self.operations += 1
        attempt = 0
        swept = False
        while True:
            self.client.enter()
            try:
                outcome = self._write_once(key, value, size, mode, attempt)
            finally:
                self.client.leave()
            if outcome == NO_MEMORY:
                self.allocator.replenish(self.tables[self.table] >> NODE_SHIFT, size)
            elif outcome == AGAIN:
                attempt += 1
                self.retries += 1
                self.endpoint.pause(attempt)
            elif outcome == FULL and not swept:
                # a dead client's tentative slots are room
                self.pool.recover()
                swept = True
            elif outcome == FULL:
                raise StoreFull(
                    f"{self.name}: no free slot for the key {key!r} among its 28; the store was "
                    f"made with capacity {self.parameters.capacity}"
                )
            else:
                return outcome

    def _write_once(self, key: bytes, value: bytes, size: int, mode: int, attempt: int) -> int:
        self._choose(key)
        reference = self.allocator.allocate(self.tables[self.table] >> NODE_SHIFT, size)
        if not reference:
            return NO_MEMORY
        self.objects.write(reference, key, value)
        desired = (self.hash & 0xFF) << 56 | reference
        slot = self._find(key)
        if slot:
            if mode == INSERT:
                return EXISTS
            self.client.aim(0, slot)
            self.client.hold(self.word & REFERENCE_MASK, slot)
            # LINEARIZES: update
            lost = self.endpoint.cas(slot, self.word, desired) != self.word
            # CRASH(updated): the old object is in the hand and no longer linked.
            self.endpoint.wait()
            return AGAIN if lost else DONE
        if mode == UPDATE:
            return MISSING
        return self._insert(key, desired, attempt)

    def _insert(self, key: bytes, desired: int, attempt: int) -> int:
        index = self._room()
        if index < 0:
            return FULL
        slot = self._address(index)
        tentative = desired | TENTATIVE
        self.client.aim(0, slot)
        if self.endpoint.cas(slot, 0, tentative):
            self.endpoint.wait()
            return AGAIN
        # CRASH(inserting): readers pass over the tentative slot; others may kick it out.
        self._read_buckets()
        if self._match(key, 0, True) or self._rival(key, slot, attempt):
            return AGAIN
        # LINEARIZES: insert
        lost = self.endpoint.cas(slot, tentative, desired) != tentative
        self.endpoint.wait()
        return AGAIN if lost else DONE

    def _room(self) -> int:
        """Place in `slots` of an empty slot, in the emptier main bucket if there is one; or -1."""
        best = -1
        most = 0
        for side in range(2):
            # the main bucket is the second half of a combined bucket if its group's second one
            main = 16 * side + (8 if self._is_second(side) else 0)
            empty = 0
            last = -1
            for index in range(main + 1, main + 8):
                if not self.slots[index]:
                    empty += 1
                    last = index
            if empty > most:
                most = empty
                best = last
        if best < 0:
            for index in range(32):
                if index & 7 and not self.slots[index]:
                    return index
        return best

    def _is_second(self, side: int) -> bool:
        """Whether combined bucket `side` is the overflow bucket and then main bucket 1."""
        return bool((self.at[side] - self.tables[self.table]) % GROUP_SIZE)

    def _rival(self, key: bytes, slot: int, attempt: int) -> bool:
        """Whether an undecided insert of the same key stands in our way; kick it out if it may."""
        fingerprint = self.hash & 0xFF
        for index in range(32):
            word = self.slots[index]
            if not (word & TENTATIVE and index & 7 and word >> 56 == fingerprint):
                continue
            theirs = self._address(index)
            if theirs == slot:
                continue
            self.objects.load(word & REFERENCE_MASK & ~TENTATIVE)
            if not self.objects.key_is(key):
                continue
            if theirs < slot and attempt < PATIENCE:
                return True
            # CRASH(kicked): whose object it is frees it, or whoever recovers that client.
            if self.endpoint.cas(theirs, word, 0) != word:
                return True
        return False

    def _delete(self, key: bytes) -> int:
        self._choose(key)
        slot = self._find(key)
        if not slot:
            return MISSING
        self.client.hold(self.word & REFERENCE_MASK, slot)
        # LINEARIZES: delete
        lost = self.endpoint.cas(slot, self.word, 0) != self.word
        # CRASH(deleted): the old object is in the hand and no longer linked.
        self.endpoint.wait()
        return AGAIN if lost else DONE

    # ---- the whole table --------------------------------------------------------------------

    def __len__(self) -> int:
        return self.pool.exclusively(
            lambda: sum(len(self._references(subtable)) for subtable in range(self.subtables))
        )

    def _slots_of(self, subtable: int) -> Any:
        """A copy of a subtable as an array of shape (groups, 3 buckets, 8 words)."""
        raw = self.endpoint.read(self.tables[subtable], self.groups * GROUP_SIZE)
        return np.frombuffer(raw, dtype="<u8").reshape(self.groups, 3, 8)

    def references(self) -> Any:
        """References to all validly linked objects on nodes in service, as uint64; for audits."""
        found = [np.empty(0, dtype=np.uint64)]
        for subtable in range(self.subtables):
            with contextlib.suppress(NodeFailed):  # what it links to is on the same node
                found.append(self._references(subtable))
        return np.concatenate(found)

    def _references(self, subtable: int) -> Any:
        words = self._slots_of(subtable)[:, :, 1:].ravel()
        words = words[(words != 0) & (words & np.uint64(TENTATIVE) == 0)]
        return words & np.uint64(REFERENCE_MASK)

    def keys(self) -> Any:
        """Every key, a group at a time; as weakly consistent as `iter` says."""
        for subtable in range(self.subtables):
            for group in range(self.groups):
                yield from self._keys_of(self.tables[subtable] + group * GROUP_SIZE)

    def _keys_of(self, group: int) -> list[bytes]:
        found = []
        self.client.enter()
        try:
            self.endpoint.read_words(group, self.slots, GROUP_WORDS)
            for index in range(GROUP_WORDS):
                word = self.slots[index]
                if index & 7 and word and not word & TENTATIVE:
                    self.objects.load(word & REFERENCE_MASK)
                    found.append(self.objects.key())
        finally:
            self.client.leave()
        return found

    def check(self) -> None:
        """Verify every invariant of the table in memory; StoreCorrupt says what does not hold.

        Other clients may be at work. Nothing dead may be left unrecovered. NodeFailed: a subtable
        is lost with its node, and nothing is wrong with the others.
        """
        seen: dict[bytes, int] = {}
        lost = None
        for subtable in range(self.subtables):
            try:
                for group in range(self.groups):
                    self._check_group(subtable, group, seen)
            except NodeFailed as error:
                lost = error
        if lost is not None:
            raise lost

    def _check_group(self, subtable: int, group: int, seen: dict[bytes, int]) -> None:
        start = self.tables[subtable] + group * GROUP_SIZE
        self.client.enter()
        try:
            words = np.frombuffer(self.endpoint.read(start, GROUP_SIZE), dtype="<u8").tolist()
            for index in range(GROUP_WORDS):
                word = words[index]
                where = f"{self.name}: subtable {subtable}, group {group}, word {index} = {word:#x}"
                if index & 7 == 0:
                    if word != subtable << 32 | group:
                        raise StoreCorrupt(f"{where}: not the bucket's header")
                elif word and not word & TENTATIVE:
                    self._check_slot(start, start + 8 * index, word, where, seen)
        finally:
            self.client.leave()

    def _check_slot(
        self, group: int, slot: int, word: int, where: str, seen: dict[bytes, int]
    ) -> None:
        wrong = self._wrong_with(group, slot, word, seen)
        # Another client may have replaced what the slot held since we read it.
        if wrong and self.endpoint.load(slot) == word:
            raise StoreCorrupt(f"{where}: {wrong}")

    def _wrong_with(self, group: int, slot: int, word: int, seen: dict[bytes, int]) -> str:
        """What is wrong with a slot, or "" if nothing is."""
        reference = word & REFERENCE_MASK
        if not self.heap.plausible(reference):
            return "points to no object"
        if not self.heap.used(reference):
            return "points to an object that is not in use"
        self.objects.load(reference)
        if not self.objects.fits(reference) or not self.objects.intact():
            return "the object's sizes or checksum do not hold"
        key = self.objects.key()
        self._choose(key)
        if word >> 56 != self.hash & 0xFF:
            return f"the fingerprint is not that of {key!r}"
        if slot not in [self._address(index) for index in range(32)]:
            return f"{key!r} does not belong into group {group:#x}"
        # A key that went and came again while we looked is met twice; its first slot has changed.
        if key in seen and self._holds(seen[key], key):
            return f"{key!r} is also in the slot at {seen[key]:#x}"
        seen[key] = slot
        return ""

    def _holds(self, slot: int, key: bytes) -> bool:
        word = self.endpoint.load(slot)
        if not word or word & TENTATIVE:
            return False
        self.objects.load(word & REFERENCE_MASK)
        return self.objects.key_is(key)


def _region_name(name: str, subtable: int) -> str:
    return f"{name}/{subtable}"


def _region(pool: Any, name: str, parameters: RaceParameters, subtable: int) -> Any:
    """The region of a subtable, made if it is not there."""

    def fill(region: Any) -> None:
        headers = np.zeros((parameters.groups, 3, 8), dtype="<u8")
        headers[:, :, 0] = (np.arange(parameters.groups) | subtable << 32)[:, None]
        pool.endpoint.write(region.address, headers)

    return pool.regions.obtain(
        subtable % pool.parameters.nodes,
        _region_name(name, subtable),
        parameters.groups * GROUP_SIZE,
        fill,
    )


def _attach(pool: Any, name: str, parameters: RaceParameters) -> list[int]:
    """Addresses of the subtables; of one on a lost node, some address there."""
    found = []
    for subtable in range(parameters.subtables):
        try:
            found.append(_region(pool, name, parameters, subtable).address)
        except NodeFailed:
            found.append(subtable % pool.parameters.nodes << NODE_SHIFT)
    return found


assert ADDRESS_MASK >> NODE_SHIFT == 0xFF
