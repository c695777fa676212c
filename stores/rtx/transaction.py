"""Transactions for users: `pool.transaction(fn)` (rTX section 4.3, figure 7).

The execution phase. A read finds the key, notes in the read set (reads.py) what says that it is as
it was - of a tree the version of the leaf's object, of a hash store the words that it was looked up
in - and looks whether all others that were read are still so: what a transaction has read was, at
every moment, true together, and a function never works on what cannot be. A write is kept by key
until the commit, which stages it in the nodes of trees (stores/sherman/write_set.py), or the slots
of hash stores (stores/rtx/hash_writes.py), and commits them (commit.py).

A transaction that wrote nothing is over with its last read: it does not write to memory, and takes
no lock, unless it meets conflicts again and again while it reads (cut.py).

Absence is a read as well as a value is (R10): of a key that is missing, of a range, of a key that
is put and deleted again and has no write in the end, and of the store of named objects.

A store that takes part, `transactional` in class Store, gives
    link                         how a client journal names the store (stores/fusee/links.py)
    locks, repair                lllock.py, repair.py
    refuse(key, value)           raise KeyTooLarge or ValueTooLarge
    at_key(key, work)            what `work` returns, called in an operation that has looked it up
    value_here()                 the value that was found
    note(reads, key, value)      note that look-up in the read set; False: it is not as it was
    staging(commit)              with stage(key, value): DONE, AGAIN or FULL
    make_room(key, subtable)     after FULL, for each key that is `crowded` in the commit
    busy_at()                    after AGAIN, what was in the way, as `Repair.look` takes it
    tidy(key)                    after the key was deleted
    at_leaf, range_here, recall, trees, leaf
                                 if it is `ordered` (stores/sherman/transactional.py)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from limpet.shm.errors import (
    KeyExists,
    ParameterError,
    StoreError,
    StoreFull,
    TransactionConflict,
)
from limpet.stores.base import as_bytes
from limpet.stores.rtx.commit import Commit
from limpet.stores.rtx.cut import Cut, Item, Look, Recalled
from limpet.stores.rtx.reads import ReadPlace, Reads
from limpet.stores.sherman.layout import SPARED_BLOCKS
from limpet.stores.status import AGAIN, DONE, FULL, NO_MEMORY

Result = TypeVar("Result")
ATTEMPTS: Final = 1000
OPTIMISTIC: Final = 4
"""After so many conflicts, what was read is read before the function is called again."""
OBJECTS: Final = ".objects"
"""Name of the store that has the named objects of a pool."""


class Conflict(BaseException):
    """What was read has been changed, so the transaction is to begin anew. No handler of errors
    may take it for one."""


class Transaction:
    """What the function of a transaction reads and writes by; for that one call.

    `tx[name]` is a named object of the pool: bytes, read, set and deleted like an entry of a dict.
    """

    def __init__(self, pool: Any, recalled: dict[Item, Recalled] | None = None) -> None:
        """`recalled`: what was read before the function is called, all at one moment (cut.py)."""
        self._pool = pool
        self._reads = Reads(pool.client)
        self._recalled = recalled or {}
        self._cut = {each.at: each.read for each in self._recalled.values()}
        self._at_cut = bool(recalled)
        """Whether all that was read until now was true at the moment of the cut."""
        self.reach = 0
        """How many reads it has come to."""
        self.looks: dict[Item, Look] = {}
        """What was read in trees, besides that."""
        self._stores: dict[int, Any] = {}
        self._writes: dict[int, dict[bytes, bytes | None]] = {}
        """By the link of the store, of which there may be several handles."""
        self._unfound: list[bytes] = []
        """Named objects that were looked for when there was no store of them."""
        self._doomed: ReadPlace | None = None
        """Where there was a conflict."""
        self._committing = False
        self._over = False

    # ---- keys of stores -------------------------------------------------------------------------

    def get(self, store: Any, key: Any, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        value = self._get(store, as_bytes("key", key))
        return default if value is None else value

    def put(self, store: Any, key: Any, value: Any) -> None:
        """Insert or update. Raises KeyTooLarge, ValueTooLarge."""
        key, value = as_bytes("key", key), as_bytes("value", value)
        written = self._written(store)
        store.refuse(key, value)
        written[key] = value

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
        self._written(store)[as_bytes("key", key)] = None

    def scan(self, store: Any, low: Any = None, high: Any = None) -> list[tuple[bytes, bytes]]:
        """The pairs with low <= key < high, in the order of keys, all of one moment.

        Raises StoreError if the store is not ordered.
        """
        written = self._written(store)
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
                ask = functools.partial(store.range_here, last)
                at_leaf = functools.partial(store.at_leaf, tree, start)
                item = (store.link, tree, start, last)
                pairs, start = self._read(store, start, ask, at_leaf, item)
                found.update(pairs)
        for key, value in written.items():
            if first <= key and (last is None or key < last):
                found.pop(key, None)
                if value is not None:
                    found[key] = value
        return sorted(found.items())

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
        self._written(self._made_objects())[_encoded(name)] = None

    def __contains__(self, name: str) -> bool:
        return self._named(_encoded(name)) is not None

    def _named(self, name: bytes) -> bytes | None:
        """The value of a named object, or None."""
        self._refuse_after_end()
        if not self._pool.exclusively(self._lacks_objects):
            return self._get(self._made_objects(), name)
        if self._doomed is not None:
            raise Conflict(self)
        self._unfound.append(name)
        return None

    def _lacks_objects(self) -> bool:
        """Whether there is no store with named objects; that is in the read set then."""
        find = functools.partial(self._pool.catalogue.find, OBJECTS.encode())
        if find() is not None:
            return False
        self._reads.missing = find
        self._at_cut = False
        if not self._pool.client.pinned(self._reads.hold):
            self._doomed = self._reads.changed
        return True

    def _made_objects(self) -> Any:
        """The store with the named objects, made if it is not there."""
        store = self._pool.store("rtx-sherman", name=OBJECTS)
        if self._reads.missing is not None:
            # What was looked for while there was no store is looked for in it.
            self._reads.missing = None
            for name in self._unfound:
                if self._get(store, name) is not None:
                    self._doomed = ReadPlace(store, name, 0)
                    raise Conflict(self)
        return store

    # ---- the read set ---------------------------------------------------------------------------

    def _written(self, store: Any) -> dict[bytes, bytes | None]:
        """What is to be written to a store."""
        self._refuse_after_end()
        if not getattr(store, "transactional", False):
            raise ParameterError(
                f"{store!r} takes part in no transactions; stores of the kinds rtx-sherman and "
                "rtx-race do"
            )
        if store.pool is not self._pool:
            raise ParameterError(
                f"{store!r} was opened by another pool handle than the transaction's"
            )
        self._stores.setdefault(store.link, store)
        return self._writes.setdefault(store.link, {})

    def _refuse_after_end(self) -> None:
        if self._over:
            raise StoreError("this transaction is over: its function has returned")

    def _get(self, store: Any, key: bytes) -> bytes | None:
        written = self._written(store)
        if key in written:
            return written[key]
        at_key = functools.partial(store.at_key, key)
        value: bytes | None = self._read(store, key, store.value_here, at_key, (store.link, key))
        return value

    def _read(
        self,
        store: Any,
        key: bytes,
        what: Callable[[], Any],
        look: Callable[[Any], Any],
        item: Item,
    ) -> Any:
        """What was found, by `what`, in an operation that looks a key up; it is in the read set
        then. `item`: names the look, of a range with its end."""
        if self._doomed is not None:
            raise Conflict(self)
        recalled = self._recalled.get(item)
        self.reach += 1
        if recalled is not None:
            if not self._reads.note_object(recalled.at, recalled.read) or not (
                self._at_cut or self._holds_in_operation()
            ):
                self._doomed = self._reads.changed
                raise Conflict(self)
            return recalled.found

        def read() -> Any:
            found = what()
            if store.ordered:
                end = item[3] if len(item) > 2 else None
                self.looks[item] = Look(
                    store, store.leaf.tree, key, store.leaf.at, what, len(item) > 2, end
                )
            if not self._holds(store, key, found):
                self._doomed = self._reads.changed
                raise Conflict(self)
            return found

        return look(read)

    def _holds(self, store: Any, key: bytes, found: Any) -> bool:
        """Note what was looked up last; whether all that was read is true at one moment."""
        if not store.note(self._reads, key, found):
            return False
        if self._at_cut and store.ordered:
            known = self._cut.get(store.leaf.at)
            if known is not None and known.is_as(self._reads.objects[store.leaf.at]):
                return True  # the leaf is as it was at the cut
        self._at_cut = False
        return self._reads.hold()

    def _holds_in_operation(self) -> bool:
        with self._pool.client:
            return self._reads.hold()

    # ---- the end --------------------------------------------------------------------------------

    def commit(self) -> bool:
        """Commit what was written; False: there was a conflict, and nothing has happened."""
        self._committing = self._doomed is None
        written = {link: pairs for link, pairs in self._writes.items() if pairs}
        if self._doomed is not None or not written:
            return self._doomed is None
        store = self._stores[next(iter(written))]
        commit = Commit(self._pool, store.locks)
        commit.reads = self._reads
        only_deletes = all(value is None for pairs in written.values() for value in pairs.values())
        while (outcome := self._commit_once(commit, written)) in (NO_MEMORY, FULL):
            if outcome == NO_MEMORY:
                commit.replenish(0 if only_deletes else SPARED_BLOCKS, only_deletes)
            else:
                for crowded, key, subtable in commit.crowded:
                    crowded.make_room(key, subtable)
        if outcome == AGAIN:
            self._doomed = commit.owners.get(commit.busy) or self._reads.changed
            if self._doomed is None:
                # Another client has aborted it, as its lease was over.
                self._doomed = ReadPlace(store, next(iter(written[store.link])), 0)
            return False
        for link, pairs in written.items():
            for key, value in pairs.items():
                if value is None:
                    self._stores[link].tidy(key)
        return True

    def _commit_once(self, commit: Commit, written: dict[int, dict[bytes, bytes | None]]) -> int:
        with self._pool.client:
            for store in self._stores.values():
                store.require_there()
            commit.begin(next(iter(written)))
            for link, pairs in written.items():
                outcome = self._stage(self._stores[link], commit, pairs)
                if outcome != DONE:
                    return outcome
            if commit.pages or commit.slots:
                return commit.run()
            return DONE if commit.validate() else AGAIN

    def _stage(self, store: Any, commit: Commit, pairs: dict[bytes, bytes | None]) -> int:
        """Stage what is written to one store: DONE, AGAIN or FULL."""
        staging = store.staging(commit)
        for count, key in enumerate(sorted(pairs), 1):
            if staging.stage(key, pairs[key]) == AGAIN:
                commit.busy = store.busy_at()
                commit.owners[commit.busy] = ReadPlace(store, key, commit.busy)
                return AGAIN
            commit.go_on(count)
        return FULL if commit.crowded else DONE

    def end(self) -> None:
        """From now on, it cannot be used."""
        self._over = True

    def recalls(self) -> bool:
        """Whether something was read before the function was called."""
        return bool(self._recalled)

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


def run(pool: Any, work: Callable[[Transaction], Result], attempts: int = ATTEMPTS) -> Result:
    """Call `work` with a transaction until it commits; what it returned.

    What it raises ends the transaction, and nothing has happened. Raises TransactionConflict after
    so many attempts, StoreFull, NodeFailed.
    """
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ParameterError(f"attempts must be a whole number above 0, not {attempts!r}")
    looks: dict[Item, Look] = {}
    counted = reach = 0
    reading = False
    while counted < attempts:
        recalled = _recall(pool, looks, counted) if reading and counted >= OPTIMISTIC else {}
        transaction = Transaction(pool, recalled)
        try:
            result = work(transaction)
            if transaction.commit():
                return result
        except Conflict as conflict:
            if conflict.args[0] is not transaction:
                raise  # that of another one, around this one
        except Exception:
            if not transaction.is_doomed():
                raise
        finally:
            transaction.end()
        # One that has got further than all before, by what was recalled, does not count: as often
        # as there is something to be read, at most.
        counted += not (transaction.recalls() and transaction.reach > reach)
        reach = max(reach, transaction.reach)
        looks.update(transaction.looks)
        reading = transaction.met_while_reading()
        transaction.stay(max(1, counted))
    raise TransactionConflict(
        f"{pool.url}: a transaction met conflicts in all of its {attempts} attempts, the last one "
        f"over {transaction.conflict()}; make it smaller, or allow more attempts"
    )


def _recall(pool: Any, looks: dict[Item, Look], attempt: int) -> dict[Item, Recalled]:
    """What an attempt is to find read already (cut.py); nothing if leaves are locked by others, or
    there is no memory."""
    if not looks:
        return {}
    cut = Cut(pool, looks)
    try:
        while True:
            with pool.client:
                outcome, found = cut.take()
            if outcome != NO_MEMORY:
                break
            cut.replenish(SPARED_BLOCKS)
    except StoreFull:
        return {}  # it can do without
    if outcome == AGAIN:
        cut.store.repair.stay(cut.busy, attempt, True)
    return found
