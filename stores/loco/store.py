"""LOCO's kvstore: values in arrays of the memory nodes, an index of all keys in every process.

"LOCO: Rethinking Objects for Network Memory", section 6 and appendix C. One table on
each memory node, chosen by the key's hash; its layout is in layout.py. A table has a data array
(data_array.py) with a place for every key, locks with a journal each (journal.py), and a tracker
(tracker.py) that tells which entries have changed. Every process has its own index of the table
(local_index.py), key -> entry, which the tracker keeps up to date.

Get takes no lock: bring the index up to date, which costs one load if nothing has changed; look the
key up; read the entry. Valid, of the life that the index names, whole: that is the value. Torn:
again, and after some tries holding the lock (so gets end). Else it is missing.

Insert, update and delete hold the lock of the key, hash mod number of locks. Index up to date; the
journal says what is going to be done; then
    insert   claim a vacant entry, by a CAS that counts its counter up; write the pair and the
             checksum; append a message; set it valid
    update   the new words to the journal; then over the entry, which stays valid
    delete   set it deleted; append a message; have it be vacant
and the journal says that nothing is being done. A value too long for an entry is in an object that
was written before; the entry links to it.

Linearization points: insert and delete by the store of the state word, update by the last word of
the entry. A get that returns a value: by the read of the entry. A get that finds nothing, when it
loaded the position of the tracker, or when the entry changed since (local_index.py proves it: the
message of an insert is announced before it is valid, that of a delete after it is not). All changes
of a key are made under its lock, one after the other (lemma C.1).

A kill leaves behind: a lock, which who waits for it passes over; a journal that says what was
going on, which the next holder of the lock completes or takes back (repair.py); in the hand of the
client (client.py) the objects that were going to be linked, and were linked; and a message that is
not announced. Nobody waits for anybody but for who holds a lock.

Where we deviate from the paper
    - nobody is waited for to apply a message (L1): who looks up applies them (local_index.py)
    - one tracker for each memory node's table, to which all append, where the paper has one for
      each node that inserts; messages name the entry, and not the key
    - the entry of a key is on the node of its hash, where the paper takes an entry of the node that
      inserts: so a lost node takes with it all that there was of its keys, and nothing of others
    - any client may claim any vacant entry; the valid bit is a phase, so that one that is going to
      be valid is told from one that was
    - locks skip dead holders; there are journals, and repair
    - a value may be longer than an entry; then it is in an object

Limits that are the paper's: every process has all keys in its own memory; the data array has a
fixed size; a client that stands still while it holds a lock is waited for by who writes its keys,
for a lease, and is killed then (docs/operations.md), or waited for, if the pool says so; nothing is
replicated.

Round trips without conflict: get 1 (and 1 or 2 for an object), insert 5, update 2, delete 4.
"""

from __future__ import annotations

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import StoreFull
from limpet.stores.loco.layout import (
    CLAIMED,
    COUNTER_MAX,
    COUNTER_SHIFT,
    DELETED,
    DELETING,
    INSERTING,
    LOCK_SHIFT,
    PHASE_MASK,
    TORN,
    UPDATING,
    VACANT,
    VALID,
)
from limpet.stores.loco.lookup import Lookup
from limpet.stores.status import (
    DELETE,
    DONE,
    EXISTS,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    UPDATE,
)


class Kvstore(Lookup):
    """The `loco` store. `LocoParameters`."""

    def _change(self, key: bytes, value: bytes, size: int, mode: int) -> int:
        """Change a key, holding its lock; `size`: bytes of the object for the value, if any."""
        self.operations += 1
        swept = False
        while True:
            lock = self.enter_locked(key)
            try:
                outcome = self._change_once(key, value, size, mode)
            finally:
                self.leave_locked(lock)
            if outcome == NO_MEMORY:
                self.have_memory(key, mode, self.node_of(key), size)
            elif outcome == FULL:
                if swept:
                    raise StoreFull(self._why_full(key))
                swept = True
                self.recover()  # what dead clients claimed is room
            else:
                return outcome

    def _why_full(self, key: bytes) -> str:
        return (
            f"{self.name}: no room for the key {key!r}: all {self.parameters.entries} entries of "
            f"its node are taken; the store was made with capacity {self.parameters.capacity}"
        )

    def node_of(self, key: bytes) -> int:
        """The node with the key's table, and with its object."""
        return self.tables[self.table_of(key)] >> NODE_SHIFT & 0xFF

    def _change_once(self, key: bytes, value: bytes, size: int, mode: int) -> int:
        outcome = self._look_up(key)
        self.endpoint.wait()
        if outcome == TORN:
            raise self.damaged(self.entry)
        entry = self.entry
        if entry < 0 and mode in (UPDATE, DELETE):
            return MISSING
        if entry >= 0 and mode == INSERT:
            return EXISTS
        if mode == DELETE:
            self._delete(entry)
            return DONE
        reference = 0
        if size:
            node = self.entries.base >> NODE_SHIFT & 0xFF
            reference = self.allocator.allocate(node, size, 1)
            if not reference:
                return NO_MEMORY
            self.objects.write(reference, key, value)
        if entry >= 0:
            self._update(entry, key, value, reference)
            return DONE
        return self._insert(key, value, reference)

    def _update(self, entry: int, key: bytes, value: bytes, reference: int) -> None:
        entries = self.entries
        state, linked = entries.state(), entries.link()
        if reference:
            self.client.aim(0, entries.link_address(entry))
        if linked:
            self.client.hold(linked, entries.link_address(entry))
        count = entries.compose(state, key, value, reference)
        self.journal.keep(entries, count)
        self.journal.declare(UPDATING, entry, state)
        # CRASH(committed): the entry is whole, and stays as it is.
        entries.write(entry, count, linked)
        # ORDER: the whole entry before the journal, and that before the lock.
        self.journal.end()

    def _insert(self, key: bytes, value: bytes, reference: int) -> int:
        entry, state = self._claim()
        if entry < 0:
            return FULL
        entries = self.entries
        if reference:
            self.client.aim(0, entries.link_address(entry))
        count = entries.compose(state, key, value, reference)
        # CRASH(claimed): never valid; who gets the lock next makes it vacant.
        entries.write(entry, count, 0)
        # ORDER: written before it is told, and told before it is valid (L3).
        number = self.index.tracker.append(entry)
        self.index.learn(entry, self.hash, state, number)
        # LINEARIZES: insert
        self.endpoint.store(entries.address(entry), state & ~PHASE_MASK | VALID)
        # CRASH(inserted): who gets the lock next finds it valid, and leaves it so.
        self.journal.end()
        return DONE

    def _claim(self) -> tuple[int, int]:
        """Claim a vacant entry; it and its state, or -1: there is none."""
        endpoint, index = self.endpoint, self.index
        lock = self.hash & self.lock_count - 1
        index.search(self.client.ident)
        while True:
            entry = index.candidate()
            if entry < 0:
                return -1, 0
            address = self.entries.address(entry)
            there = endpoint.load(address)
            index.see(entry, there)
            counter = there >> COUNTER_SHIFT
            if there & PHASE_MASK != VACANT or counter == COUNTER_MAX:
                continue
            state = counter + 1 << COUNTER_SHIFT | lock << LOCK_SHIFT | CLAIMED
            # ORDER: said before it is done, or nobody could tell whose the entry is.
            self.journal.declare(INSERTING, entry, state)
            if endpoint.cas(address, there, state) == there:
                endpoint.wait()
                return entry, state
            self.journal.end()

    def _delete(self, entry: int) -> None:
        state = self.entries.state()
        self.journal.declare(DELETING, entry, state)
        # LINEARIZES: delete
        self.endpoint.store(self.entries.address(entry), state & ~PHASE_MASK | DELETED)
        # CRASH(deleted): who gets the lock next has it be vacant.
        self.vacate(entry, state)
        self.journal.end()
