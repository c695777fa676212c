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
nodes of trees (sherman/write_set.py), or the slots of hash stores (race.py). Line 8 is at
the commit, too (commit.py).

A transaction that wrote nothing is over with its last read: it does not write to memory, and takes
no lock, unless it meets conflicts again and again while it reads (cut.py).

Absence is a read as well as a value is (R10): of a key that is missing, of a range, of a key that
is put and deleted again and has no write in the end, and of the store of named objects.

uses.py has the notes of a transaction on each store.

A store that takes part is `transactional` (class Store). It has `tx_keys` (reads.py), `locks` and
`repair` (lllock.py, repair.py), and `staging(commit)`, with `stage(key, value)`, which is DONE,
AGAIN or FULL. The `tx_keys` of a store that is `ordered` are those of sherman/tree_keys.py.

A kill leaves behind nothing: all of this is private to the client until the commit.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.errors import KeyExists, ParameterError, StoreError
from limpet.stores.core.base import Store, as_bytes
from limpet.stores.core.feed import Feed
from limpet.stores.core.feed_layout import OPEN
from limpet.stores.core.names import shown
from limpet.stores.core.status import AGAIN, DELETE, DONE, FULL, NO_MEMORY, PUT
from limpet.stores.rtx.cut import Item, Recalled, Recheck
from limpet.stores.rtx.uses import RangeReading, Reading, Used
from limpet.stores.transactions.commit import Commit
from limpet.stores.transactions.layout import SPARED_BLOCKS
from limpet.stores.transactions.participant import go_on
from limpet.stores.transactions.reads import CHANGED, ReadPlace, Reads, Staging, TxKeys

if TYPE_CHECKING:
    from limpet.stores.transactions.reads import ObjectRead

OBJECTS: Final = ".objects"
"""Name of the store that has the named objects of a pool."""


class Conflict(BaseException):
    """Another client has changed what was read, so the transaction begins anew. No handler of
    errors may take it for one."""


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
        self.returned = False
        """Whether the function has returned."""
        self.reach = 0
        """How many reads it has come to."""
        self._read_in_trees: list[Any] | None = None
        """After a conflict: what it has read in trees."""
        self._handle: Any = None
        self._last: Used | None = None
        """The handle of a store that it has used last, and the meaning of it."""
        self._used: Used | None = None
        """The first of the stores that it uses; each names the `following` one."""
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
            key = self._bytes_for(store, "key", key)
        value = self._get(store, key)
        return default if value is None else value

    def put(self, store: Any, key: Any, value: Any) -> None:
        """Insert or update. Raises KeyTooLarge, ValueTooLarge."""
        if type(key) is not bytes:
            key = self._bytes_for(store, "key", key)
        if type(value) is not bytes:
            value = self._bytes_for(store, "value", value)
        used = self._last
        if used is None or self._handle is not store:
            used = self._use(store)
        used.keys.refuse(key, value)
        used.written.write(key, value)

    def insert(self, store: Any, key: Any, value: Any) -> None:
        """Insert; KeyExists if the key is there."""
        if self.get(store, key) is not None:
            raise KeyExists(f"{store.name}: the key {shown(key)} is there already")
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
                reading = RangeReading(tree, last)
                reading.assign(self._reads, used, start, self._present_cut())
                pairs, start = self._read(reading)
                found.update(pairs)
        written = used.written
        for place in range(written.count):
            write = written.writes[place]
            key, value = write.key, write.value
            if first <= key and (last is None or key < last):
                found.pop(key, None)
                if value is not None:
                    found[key] = value
        return sorted(found.items())

    # ---- objects of a user's own ----------------------------------------------------------------

    def read(self, obj: Any) -> bytes:
        """The value of an object (user_objects.py)."""
        if not hasattr(obj, "read_by"):
            self._refuse_object(obj)
        value: bytes = obj.read_by(self)
        return value

    def write(self, obj: Any, value: Any) -> None:
        """Write an object. Raises ValueTooLarge."""
        if not hasattr(obj, "write_by"):
            self._refuse_object(obj)
        obj.write_by(self, value)

    def _refuse_object(self, obj: Any) -> None:
        raise TypeError(
            f"{self._pool.url}: a transaction reads and writes what pool.object(name) and "
            f"pool.objects(name, count) make, not {type(obj).__name__}"
        )

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
        used = self._used
        while used is not None:
            if used.has(store):
                self._handle, self._last = store, used
                return used
            used = used.following
        return self._first_use(store)

    def _bytes_for(self, store: Any, what: str, data: Any) -> bytes:
        """A key or a value for a store as bytes. Raises ParameterError first if the store takes
        part in no transactions."""
        if not isinstance(getattr(store, "tx_keys", None), TxKeys):
            self._first_use(store)
        return bytes(as_bytes(what, data))

    def _first_use(self, store: Any) -> Used:
        known: Any = getattr(store, "tx_keys", None)
        if not isinstance(known, TxKeys):
            named = repr(store) if isinstance(store, Store) else f"a {type(store).__name__}"
            more = ""
            if isinstance(getattr(getattr(store, "store", None), "tx_keys", None), TxKeys):
                more = (
                    "; the store of a mapping d is d.store, its keys are "
                    "d.codec.encode_key(key), and its values d.codec.encode(value)"
                )
            raise ParameterError(
                f"{self._pool.url}: {named} takes part in no transactions; stores of the kinds "
                f"rtx-sherman and rtx-race do: pool.store(kind, name=name) opens them{more}"
            )
        keys = known
        opened = keys.store
        if opened.pool is not self._pool:
            raise ParameterError(
                f"{store!r} was opened by another pool handle than the transaction's"
            )
        found = last = None
        used = self._used
        while used is not None:
            if used.keys.link == keys.link:
                found = used
            last = used
            used = used.following
        if found is None:
            found = keys.take_use(Used)
            if found is None:
                found = Used(keys)
            found.begin(store)
            if last is None:
                self._used = found
            else:
                last.following = found
        elif found.others is None:
            found.others = [store]
        else:
            found.others.append(store)
        if self._reads is None:
            if type(found.reads) is not Reads:
                found.reads = Reads(self._pool.client)
            self._reads = found.reads
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
                write = used.written.writes[place]
                return write.value  # line 1
        # lines 2-5
        if used.ordered:
            reading = used.next_reading()
            reading.assign(self._reads, used, key, self._present_cut())
            return self._read(reading)
        if self._doomed is not None:
            raise Conflict(self)
        self.reach += 1
        self._at_cut = False
        found = used.keys.read(self._reads, key)
        if found is CHANGED:
            self._doomed = self._reads.changed
            raise Conflict(self)
        return found

    def _read(self, reading: Reading) -> Any:
        """Read in an operation that looks a key up; the result is in the read set then."""
        if self._doomed is not None:
            raise Conflict(self)
        self.reach += 1
        if self._recalled is not None:
            recalled = self._recalled.get(reading.item())
            if recalled is not None:
                return self._recall(recalled)
        found = reading.begin()
        if reading.cut is None:
            self._at_cut = False
        if found is CHANGED:
            self._doomed = self._reads.changed
            raise Conflict(self)
        return found

    def _present_cut(self) -> dict[int, ObjectRead] | None:
        """The objects of the cut, if all that was read until now was true at its moment."""
        return self._cut if self._at_cut else None

    def _recall(self, recalled: Recalled) -> Any:
        """The result of a read from before the function was called."""
        if not self._reads.note_recalled(recalled.at, recalled.read) or not (
            self._at_cut or self._holds_in_operation()
        ):
            self._doomed = self._reads.changed
            raise Conflict(self)
        return recalled.found

    def holds(self) -> bool:
        """Whether all that was read is true at one moment. Within an operation, or pinned."""
        return self._reads.hold()

    def _holds_in_operation(self) -> bool:
        with self._pool.client:
            return self._reads.hold_again()

    # ---- the end --------------------------------------------------------------------------------

    def commit(self) -> bool:
        """Commit what was written; False: there was a conflict, and nothing has happened. For
        `run`: the function itself cannot commit."""
        if not self.returned:
            raise TypeError(
                f"{self._pool.url}: a transaction is committed when its function returns; the "
                "function cannot call commit() itself"
            )
        if self._over:
            raise TypeError(
                f"{self._pool.url}: a transaction was over when its function returned, as the "
                "function called end(); nothing is committed"
            )
        self._committing = self._doomed is None
        if self._doomed is not None:
            return False
        first = self._first_written()
        if first is None:
            return True
        owner = self._used
        assert owner is not None
        if type(owner.commit) is not Commit:
            owner.commit = Commit(self._pool, first.keys.locks)
        # It is there for the next transaction only if no error ends this one in the midst of it.
        commit, owner.commit = owner.commit, None
        commit.serve(first.keys.locks, self._reads)
        while True:
            outcome = self._commit_once(commit, first)
            if outcome == NO_MEMORY:
                only_deletes = _deletes_only(first)
                commit.replenish(0 if only_deletes else SPARED_BLOCKS, only_deletes)
            elif outcome == FULL:
                for crowded, key, subtable in commit.crowded:
                    crowded.make_room(key, subtable)
            elif outcome == AGAIN and self._reads.copies_taken:
                # A leaf has changed since it was copied, perhaps for another key. Without a copy it
                # is read again, and so is what was read there.
                self._reads.copies_taken = 0
            else:
                break
        if outcome == AGAIN:
            self._doomed = commit.place_of(commit.busy) or self._reads.changed
            if self._doomed is None:
                # Another client has aborted it, as its lease was over.
                self._doomed = ReadPlace(first.store, first.written.writes[0].key, 0)
        commit.rest()
        owner.commit = commit
        if outcome == AGAIN:
            return False
        used: Used | None = owner
        while used is not None:
            if used.deletes:
                written = used.written
                for place in range(written.count):
                    write = written.writes[place]
                    if write.value is None:
                        used.keys.tidy(write.key)
            used = used.following
        return True

    def _first_written(self) -> Used | None:
        """The first store to which something is written; None: there is none."""
        used = self._used
        while used is not None and not used.written.count:
            used = used.following
        return used

    def _commit_once(self, commit: Commit, first: Used) -> int:
        client = first.store.client
        client.enter()
        try:
            noted = False
            used = self._used
            while used is not None:
                used.store.require_there()
                noted = noted or used.store.feed is not None
                used = used.following
            commit.begin(first.keys.link)
            used = first
            while used is not None:
                if used.written.count:
                    outcome = self._stage(used, commit)
                    if outcome != DONE:
                        return outcome
                used = used.following
            if noted:
                return self._run_noted(commit, first)
            return _run(commit)
        finally:
            client.leave()

    def _run_noted(self, commit: Commit, first: Used) -> int:
        """As `_run`, where the stores from this one on that have a feed note their keys there."""
        feeds: dict[int, Feed] = {}
        outcome = OPEN
        used: Used | None = first
        while used is not None:
            if used.store.feed is not None and used.written.count:
                feed = feeds.get(used.store.feed.address)
                if feed is None:
                    feed = feeds[used.store.feed.address] = used.store.feed
                    feed.begin()
                for place in range(used.written.count):
                    write = used.written.writes[place]
                    feed.note(write.key, DELETE if write.value is None else PUT)
            used = used.following
        try:
            for feed in feeds.values():
                feed.announce()
            outcome = _run(commit)
        finally:
            for feed in feeds.values():
                feed.close(outcome)
        return outcome

    def _stage(self, used: Used, commit: Commit) -> int:
        """Stage what is written to one store: DONE, AGAIN or FULL."""
        staging: Staging = commit.staging_of(used.store)
        written = used.written
        # In a tree, keys that are neighbours are in the same leaf.
        if used.ordered and written.count > 1:
            written.sort()
        for place in range(written.count):
            write = written.writes[place]
            if staging.stage(write.key, write.value) == AGAIN:
                commit.meet(used.store, write.key, used.keys.busy_at())
                return AGAIN
            go_on(commit.membership, place + 1)
        return FULL if commit.crowded else DONE

    def end(self) -> None:
        """From now on, it cannot be used."""
        self._over = True
        self._handle = self._last = None
        if self._reads is not None:
            if self._doomed is not None:
                self._read_in_trees = list(self._reads.looks)
            self._reads.clear()
            self._reads = None
        used = self._used
        self._used = None
        while used is not None:
            following = used.following
            # After a conflict the reads of a tree say how to look again (`looks`).
            if self._doomed is None or not used.ordered:
                used.end()
            used = following

    def looks(self) -> dict[Item, Recheck]:
        """How to read again what was read in trees."""
        return {reading.item(): reading.to_recheck() for reading in self._read_in_trees or ()}

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
        return f"the key {shown(self._doomed.key)} of the store {self._doomed.store.name!r}"

    def await_holder(self, attempt: int) -> None:
        """After a conflict, wait a little, and look now and then at the client that we wait for."""
        if self._doomed is not None and self._doomed.store is not None:
            self._doomed.store.retries += 1
            self._doomed.store.repair.await_holder(self._doomed.at, attempt, True)


def _run(commit: Commit) -> int:
    """Commit what is staged."""
    if commit.is_single():
        return commit.run_alone()
    if commit.changed or commit.count:
        return commit.run()
    return DONE if commit.validate() else AGAIN


def _encoded(name: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"the name of an object is text, not {type(name).__name__}")
    return name.encode()


def _deletes_only(first: Used) -> bool:
    """Whether nothing but deletes is written. `first`: the first store that is written to."""
    used: Used | None = first
    while used is not None:
        if used.written.puts():
            return False
        used = used.following
    return True
