"""The execution phase of a transaction (rTX section 4.3, figure 7): what its function works with.

The text of the paper that we have lacks the figure. It is rebuilt here from section 4.3, which
names lines 3-5 and 7-8:

    read(ptr):
     1    if ptr is in the write set: return that data
     2    if ptr is in the read set: return that data
     3    read ptr.LLLock and ptr.pointer
     4    read the data
     5    note them in the read set; return the data
    write(ptr, data):
     6    if ptr is not in the write set: put it there
     7    the data of ptr in the write set = data
     8    the log's entry of ptr = (ptr, old pointer, pointer to data)

Here a transaction reads and writes keys of stores. A read (lines 1-5) finds the key, and notes in
the read set (reads.py) what says that it is as it was: of a tree the version of the leaf's object,
of a hash store the words that it was looked up in. It also looks whether all others that were read
are still so: what a transaction has read was, at every moment, true together, and a function never
works on what cannot be. A write (lines 6-7) is kept by key until the commit, which stages it in the
nodes of trees (sherman/write_set.py), or the slots of hash stores (hash_writes.py). Line 8 is at
the commit, too (commit.py).

A transaction that wrote nothing is over with its last read: it does not write to memory, and takes
no lock, unless it meets conflicts again and again while it reads (cut.py).

Absence is a read as well as a value is (R10): of a key that is missing, of a range, of a key that
is put and deleted again and has no write in the end, and of the store of named objects.

A store that takes part is `transactional` (class Store). It has `tx_keys` (reads.py), `locks` and
`repair` (lllock.py, repair.py), and `staging(commit)`, with `stage(key, value)`, which is DONE,
AGAIN or FULL. The `tx_keys` of a store that is `ordered` are those of sherman/tree_keys.py.

A kill leaves behind nothing: all of this is private to the client until the commit.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from limpet.shm.errors import KeyExists, ParameterError, StoreError
from limpet.stores.base import as_bytes
from limpet.stores.rtx.commit import Commit
from limpet.stores.rtx.cut import Item, Look, Recalled
from limpet.stores.rtx.participant import go_on
from limpet.stores.rtx.pending import PendingWrites
from limpet.stores.rtx.reads import ReadPlace, Reads, Staging, TxKeys, Visitor
from limpet.stores.sherman.layout import SPARED_BLOCKS
from limpet.stores.status import AGAIN, DONE, FULL, NO_MEMORY

FEW: Final = 8
"""So many reads of keys are kept for the next transaction."""
OBJECTS: Final = ".objects"
"""Name of the store that has the named objects of a pool."""


class Conflict(BaseException):
    """Another client has changed what was read, so the transaction begins anew. No handler of
    errors may take it for one."""


class Used:
    """A store that a transaction uses."""

    def __init__(self, keys: TxKeys) -> None:
        self.keys = keys
        self.ordered = keys.ordered
        self.written = PendingWrites()
        """The writes that are to be staged there."""
        self.reading = Reading()
        """Of a store that is not ordered: its reads, one after the other."""
        self.readings: list[Reading] = []
        """Of one that is ordered: its reads of keys; those after the first `count` are of earlier
        transactions, to be used again."""
        self.count = 0
        self.deletes = False
        """Whether a key may be deleted there."""
        self.store: Any = None
        self.others: list[Any] | None = None
        """Other handles of the same store that it uses."""

    def begin(self, transaction: Transaction, store: Any) -> None:
        """Be the notes of this transaction, which uses this handle of the store."""
        self.store = store
        self.reading.be(transaction, self, b"")

    def end(self) -> None:
        """Forget all of a transaction that is over."""
        self.reading.forget()
        for index in range(self.count):
            reading = self.readings[index]
            reading.forget()
        if self.count > FEW:
            del self.readings[FEW:]
        self.count = 0
        if self.written.count:
            self.written.clear()
        self.deletes = False
        self.store = self.others = None
        self.keys.give_use(self)

    def next_reading(self) -> Reading:
        """A read of a key, which it keeps until the end (`looks`)."""
        if self.count == len(self.readings):
            self.readings.append(Reading())
        self.count += 1
        return self.readings[self.count - 1]

    def has(self, store: Any) -> bool:
        """Whether this is a handle of it that was met before."""
        if self.store is store:
            return True
        if self.others is not None:
            for other in self.others:
                if other is store:
                    return True
        return False


class Reading(Visitor):
    """A read of a key, in the operation that looks it up: what was found, in the read set."""

    def be(self, transaction: Transaction, used: Used, key: bytes) -> None:
        """Be the read of that key."""
        self.transaction: Any = transaction
        self.used: Any = used
        self.key = key

        self.tree = 0
        self.at = 0
        """The tree and the leaf in which it was looked up, of a store that is ordered."""

    def forget(self) -> None:
        """Be no read."""
        self.transaction = self.used = None
        self.key = b""

    def begin(self) -> Any:
        """Look the key up; what was found."""
        return self.used.keys.at_key(self.key, self)

    def find(self) -> Any:
        """The result of the look-up."""
        return self.used.keys.value_here()

    def item(self) -> Item:
        """The name of the look."""
        return (self.used.keys.link, self.key)

    def look(self) -> Look:
        """How to look again, in the leaf in which it was."""
        keys = self.used.keys
        return Look(self.used.store, self.tree, self.key, self.at, keys.value_here, False, None)

    def before(self) -> None:
        self.transaction.count_first()

    def visit(self) -> Any:
        if self.used.ordered:
            found = self.find()
            self.transaction.check(self, found)
        else:
            found = self.used.keys.value_here()
            self.transaction.check_key(self, found)
        return found


class RangeReading(Reading):
    """A read of the pairs of a range that are in the leaf with a key, and where the next begins."""

    def __init__(
        self, transaction: Transaction, used: Used, key: bytes, tree: int, end: bytes | None
    ) -> None:
        self.be(transaction, used, key)
        self.number = tree
        self.end = end

    def begin(self) -> Any:
        return self.used.store.tx_keys.at_leaf(self.number, self.key, self)

    def find(self) -> Any:
        return self.used.store.tx_keys.range_here(self.end)

    def item(self) -> Item:
        return (self.used.keys.link, self.number, self.key, self.end)

    def look(self) -> Look:
        find = functools.partial(self.used.store.tx_keys.range_here, self.end)
        return Look(self.used.store, self.tree, self.key, self.at, find, True, self.end)


class Transaction:
    """The transaction that its function reads and writes by, for that one call.

    `tx[name]` is a named object of the pool: bytes, read, set and deleted like an entry of a dict.
    """

    def __init__(self, pool: Any, recalled: dict[Item, Recalled] | None = None) -> None:
        """`recalled`: what was read before the function is called, all at one moment (cut.py)."""
        self._pool = pool
        self._reads: Any = None
        """The read set, from the first store on that it uses."""
        self._recalled = recalled or None
        self._cut = {each.at: each.read for each in recalled.values()} if recalled else None
        self._at_cut = bool(recalled)
        """Whether all that was read until now was true at the moment of the cut."""
        self.reach = 0
        """How many reads it has come to."""
        self._read_in_trees: list[Reading] | None = None
        self._handle: Any = None
        self._last: Used | None = None
        """The handle of a store that it has used last, and the meaning of it."""
        self._stores: list[Used] = []
        """All stores that it uses."""
        self._unfound: list[bytes] | None = None
        """Named objects that were looked for when there was no store of them."""
        self._doomed: ReadPlace | None = None
        """Where there was a conflict."""
        self._committing = False
        self._over = False

    # ---- keys of stores -------------------------------------------------------------------------

    def get(self, store: Any, key: Any, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        value = self._get(store, key)
        return default if value is None else value

    def put(self, store: Any, key: Any, value: Any) -> None:
        """Insert or update. Raises KeyTooLarge, ValueTooLarge."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        used = self._last
        if used is None or self._handle is not store:
            used = self._use(store)
        used.keys.refuse(key, value)
        used.written.write(key, value)

    def insert(self, store: Any, key: Any, value: Any) -> None:
        """Insert; KeyExists if the key is there."""
        if self.get(store, key) is not None:
            raise KeyExists(f"{store.name}: the key {key!r} is there already")
        self.put(store, key, value)

    def update(self, store: Any, key: Any, value: Any) -> None:
        """Update; KeyError if the key is not there."""
        if self.get(store, key) is None:
            raise KeyError(key)
        self.put(store, key, value)

    def delete(self, store: Any, key: Any) -> None:
        """Delete; KeyError if the key is not there."""
        if self.get(store, key) is None:
            raise KeyError(key)
        used = self._use(store)
        used.written.write(as_bytes("key", key), None)
        used.deletes = True

    def scan(self, store: Any, low: Any = None, high: Any = None) -> list[tuple[bytes, bytes]]:
        """The pairs with low <= key < high, in the order of keys, all of one moment.

        Raises StoreError if the store is not ordered.
        """
        used = self._use(store)
        if not store.ordered:
            raise StoreError(
                f"{store!r} is not ordered: a transaction gets its keys, and scans none"
            )
        first = b"" if low is None else as_bytes("key", low)
        last = None if high is None else as_bytes("key", high)
        found: dict[bytes, bytes] = {}
        for tree in range(len(store.trees.roots)):
            start: bytes | None = first
            while start is not None and (last is None or start < last):
                reading = RangeReading(self, used, start, tree, last)
                pairs, start = self._read(reading)
                found.update(pairs)
        written = used.written
        for place in range(written.count):
            key, value = written.keys[place], written.values[place]
            if first <= key and (last is None or key < last):
                found.pop(key, None)
                if value is not None:
                    found[key] = value
        return sorted(found.items())

    # ---- objects of a user's own ----------------------------------------------------------------

    def read(self, obj: Any) -> bytes:
        """The value of an object (user_objects.py)."""
        value: bytes = obj.read_by(self)
        return value

    def write(self, obj: Any, value: Any) -> None:
        """Write an object. Raises ValueTooLarge."""
        obj.write_by(self, value)

    # ---- named objects --------------------------------------------------------------------------

    def __getitem__(self, name: str) -> bytes:
        value = self._named(_encoded(name))
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.put(self._made_objects(), _encoded(name), value)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.delete(self._made_objects(), _encoded(name))

    def __contains__(self, name: str) -> bool:
        return self._named(_encoded(name)) is not None

    def _named(self, name: bytes) -> bytes | None:
        """The value of a named object, or None."""
        self._refuse_after_end()
        if not self._pool.exclusively(self._lacks_objects):
            return self._get(self._made_objects(), name)
        if self._doomed is not None:
            raise Conflict(self)
        if self._unfound is None:
            self._unfound = []
        self._unfound.append(name)
        return None

    def _lacks_objects(self) -> bool:
        """Whether there is no store with named objects; that is in the read set then."""
        find = functools.partial(self._pool.catalogue.find, OBJECTS.encode())
        if find() is not None:
            return False
        if self._reads is None:
            self._reads = Reads(self._pool.client)
        self._reads.missing = find
        self._at_cut = False
        if not self._pool.client.pinned(self.holds):
            self._doomed = self._reads.changed
        return True

    def _made_objects(self) -> Any:
        """The store with the named objects, made if it is not there."""
        store = self._pool.store("rtx-sherman", name=OBJECTS)
        if self._reads is not None and self._reads.missing is not None:
            # A name that was looked for while there was no store is looked for in it.
            self._reads.missing = None
            for name in self._unfound or ():
                if self._get(store, name) is not None:
                    self._doomed = ReadPlace(store, name, 0)
                    raise Conflict(self)
        return store

    # ---- the read set ---------------------------------------------------------------------------

    def _use(self, store: Any) -> Used:
        """A store, and what is to be written to it."""
        if self._over:
            self._refuse_after_end()
        for used in self._stores:
            if used.has(store):
                self._handle, self._last = store, used
                return used
        return self._first_use(store)

    def _first_use(self, store: Any) -> Used:
        if not getattr(store, "transactional", False):
            raise ParameterError(
                f"{store!r} takes part in no transactions; stores of the kinds rtx-sherman and "
                "rtx-race do"
            )
        keys: TxKeys = store.tx_keys
        if keys.store.pool is not self._pool:
            raise ParameterError(
                f"{store!r} was opened by another pool handle than the transaction's"
            )
        found = None
        for used in self._stores:
            if used.keys.link == keys.link:
                found = used
        if found is None:
            found = keys.take_use(Used)
            if found is None:
                found = Used(keys)
            found.begin(self, store)
            self._stores.append(found)
        elif found.others is None:
            found.others = [store]
        else:
            found.others.append(store)
        if self._reads is None:
            self._reads = found.keys.take_reads(Reads)
            if self._reads is None:
                self._reads = Reads(self._pool.client)
        self._handle, self._last = store, found
        return found

    def _refuse_after_end(self) -> None:
        if self._over:
            raise StoreError("this transaction is over: its function has returned")

    def _get(self, store: Any, key: bytes) -> bytes | None:
        used = self._last
        if used is None or self._handle is not store:
            used = self._use(store)
        if used.written.count:
            place = used.written.place_of(key)
            if place >= 0:
                return used.written.values[place]  # line 1
        # lines 2-5
        if used.ordered:
            reading = used.next_reading()
            reading.be(self, used, key)
            return self._read(reading)
        used.reading.key = key
        if self._doomed is not None or self._recalled is not None:
            return self._read(used.reading)
        self.reach += 1
        return used.keys.at_key(key, used.reading)

    def _read(self, reading: Reading) -> Any:
        """Read in an operation that looks a key up; the result is in the read set then."""
        if self._doomed is not None:
            raise Conflict(self)
        self.reach += 1
        if self._recalled is not None:
            recalled = self._recalled.get(reading.item())
            if recalled is not None:
                return self._recall(recalled)
        return reading.begin()

    def _recall(self, recalled: Recalled) -> Any:
        """The result of a read from before the function was called."""
        if not self._reads.note_recalled(recalled.at, recalled.read) or not (
            self._at_cut or self._holds_in_operation()
        ):
            self._doomed = self._reads.changed
            raise Conflict(self)
        return recalled.found

    def count_first(self) -> None:
        """Before a look-up, in the operation that does it."""
        self._reads.count_first()

    def check(self, reading: Reading, found: Any) -> None:
        """Note what was looked up last in a tree, in the operation that found it; raises
        Conflict."""
        reading.tree = reading.used.keys.tree_here()
        reading.at = reading.used.keys.busy_at()
        if self._read_in_trees is None:
            self._read_in_trees = []
        self._read_in_trees.append(reading)
        self.check_key(reading, found)

    def check_key(self, reading: Reading, found: Any) -> None:
        """The same, of a key in a hash store."""
        if not self._holds(reading.used, reading.key, found):
            self._doomed = self._reads.changed
            raise Conflict(self)

    def _holds(self, used: Used, key: bytes, found: Any) -> bool:
        """Note what was looked up last; whether all that was read is true at one moment."""
        if not used.keys.note(self._reads, key, found):
            return False
        if self._at_cut and used.ordered and self._cut is not None:
            leaf = used.store.leaf
            known = self._cut.get(leaf.at)
            if known is not None and known.is_as(self._reads.objects[leaf.at]):
                return True  # the leaf is as it was at the cut
        self._at_cut = False
        return self._reads.hold_again()

    def holds(self) -> bool:
        """Whether all that was read is true at one moment. Within an operation, or pinned."""
        return self._reads.hold()

    def _holds_in_operation(self) -> bool:
        with self._pool.client:
            return self._reads.hold_again()

    # ---- the end --------------------------------------------------------------------------------

    def commit(self) -> bool:
        """Commit what was written; False: there was a conflict, and nothing has happened."""
        self._committing = self._doomed is None
        if self._doomed is not None:
            return False
        first = self._first_written()
        if first is None:
            return True
        commit = first.keys.take_commit(Commit)
        if commit is None:
            commit = Commit(self._pool, first.keys.locks)
        commit.serve(first.keys.locks, self._reads)
        while True:
            outcome = self._commit_once(commit, first)
            if outcome == NO_MEMORY:
                only_deletes = _deletes_only(self._stores)
                commit.replenish(0 if only_deletes else SPARED_BLOCKS, only_deletes)
            elif outcome == FULL:
                for crowded, key, subtable in commit.crowded:
                    crowded.make_room(key, subtable)
            else:
                break
        if outcome == AGAIN:
            self._doomed = commit.place_of(commit.busy) or self._reads.changed
            if self._doomed is None:
                # Another client has aborted it, as its lease was over.
                self._doomed = ReadPlace(first.store, first.written.keys[0], 0)
        commit.rest()
        first.keys.give_commit(commit)
        if outcome == AGAIN:
            return False
        for used in self._stores:
            if used.deletes:
                written = used.written
                for place in range(written.count):
                    if written.values[place] is None:
                        used.keys.tidy(written.keys[place])
        return True

    def _first_written(self) -> Used | None:
        """The first store to which something is written; None: there is none."""
        for used in self._stores:
            if used.written.count:
                return used
        return None

    def _commit_once(self, commit: Commit, first: Used) -> int:
        client = first.store.client
        client.enter()
        try:
            for used in self._stores:
                used.store.require_there()
            commit.begin(first.keys.link)
            for used in self._stores:
                if used.written.count:
                    outcome = self._stage(used, commit)
                    if outcome != DONE:
                        return outcome
            if commit.is_single():
                return commit.run_alone()
            if commit.pages or commit.count:
                return commit.run()
            return DONE if commit.validate() else AGAIN
        finally:
            client.leave()

    def _stage(self, used: Used, commit: Commit) -> int:
        """Stage what is written to one store: DONE, AGAIN or FULL."""
        staging: Staging = commit.staging_of(used.store)
        written = used.written
        # In a tree, keys that are neighbours are in the same leaf.
        if used.ordered and written.count > 1:
            written.sort()
        for place in range(written.count):
            key = written.keys[place]
            if staging.stage(key, written.values[place]) == AGAIN:
                commit.busy = used.keys.busy_at()
                commit.owners[commit.busy] = ReadPlace(used.store, key, commit.busy)
                return AGAIN
            go_on(commit.membership, place + 1)
        return FULL if commit.crowded else DONE

    def end(self) -> None:
        """From now on, it cannot be used."""
        self._over = True
        self._handle = self._last = None
        if self._reads is not None and self._stores:
            first = self._stores[0]
            first.keys.give_reads(self._reads)
            self._reads = None
        for used in self._stores:
            if self._doomed is None:
                used.end()
            else:
                used.reading.forget()  # the others say how to look again (`looks`)

    def looks(self) -> dict[Item, Look]:
        """How to read again what was read in trees."""
        return {reading.item(): reading.look() for reading in self._read_in_trees or ()}

    def recalls(self) -> bool:
        """Whether something was read before the function was called."""
        return self._recalled is not None

    def met_while_reading(self) -> bool:
        """Whether there was a conflict before the function had read all that it wanted."""
        return self._doomed is not None and not self._committing

    def is_doomed(self) -> bool:
        """Whether there was a conflict."""
        return self._doomed is not None

    def conflict(self) -> str:
        """Over what there was one."""
        if self._doomed is None:
            return "nothing"
        if self._doomed.store is None:
            return "the first named object of the pool, which was made meanwhile"
        return f"the key {self._doomed.key!r} of the store {self._doomed.store.name!r}"

    def stay(self, attempt: int) -> None:
        """After a conflict, wait a little, and look now and then whom we wait for."""
        if self._doomed is not None and self._doomed.store is not None:
            self._doomed.store.retries += 1
            self._doomed.store.repair.stay(self._doomed.at, attempt, True)


def _encoded(name: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"the name of an object is text, not {type(name).__name__}")
    return name.encode()


def _deletes_only(written: list[Used]) -> bool:
    """Whether nothing but deletes is written."""
    puts = 0
    for used in written:
        puts += used.written.puts()
    return puts == 0
