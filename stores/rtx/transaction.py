"""Transactions for users: `pool.transaction(fn)` (rtx.txt section 4.3, figure 7).

The execution phase. A read finds the leaf with its key, notes the version of the leaf's object in
the read set, and looks whether all others that were read have still theirs: so what a transaction
has read was, at every moment, true together, and a function never works on what cannot be. A write
is kept by key until the commit, which stages it in the nodes of trees (stores/sherman/staging.py)
and commits them (commit.py).

A transaction that wrote nothing is over with its last read: it never writes to memory, and takes no
lock. A key that is missing, and a range, are read as well as a key: the leaf is in the read set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from limpet.shm.errors import KeyExists, ParameterError, StoreError, TransactionConflict
from limpet.stores.contract import as_bytes
from limpet.stores.outcomes import AGAIN, DONE, NO_MEMORY
from limpet.stores.rtx.commit import Commit
from limpet.stores.rtx.fields import POINTER
from limpet.stores.sherman.fields import SPARED_BLOCKS

Result = TypeVar("Result")
ATTEMPTS: Final = 1000
OBJECTS: Final = ".objects"
"""Name of the store that has the named objects of a pool."""


class Conflict(BaseException):
    """What was read has been changed, so the transaction is to begin anew. No handler of errors
    may take it for one."""


class Transaction:
    """What the function of a transaction reads and writes by; for that one call.

    `tx[name]` is a named object of the pool: bytes, read, set and deleted like an entry of a dict.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._reads: dict[int, tuple[int, int]] = {}
        self._stores: dict[int, Any] = {}
        self._writes: dict[int, dict[bytes, bytes | None]] = {}
        """By the link of the store, of which there may be several handles."""
        self._doomed: Any = None
        """The store in which there was a conflict."""
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
        """The pairs with low <= key < high, in the order of keys, all of one moment."""
        written = self._written(store)
        first = b"" if low is None else as_bytes("key", low)
        last = None if high is None else as_bytes("key", high)
        found: dict[bytes, bytes] = {}
        for tree in range(len(store.roots)):
            start: bytes | None = first
            while start is not None and (last is None or start < last):
                ask = functools.partial(store.range_here, start, last)
                pairs, start = self._read(store, ask, tree, start)
                found.update(pairs)
        for key, value in written.items():
            if first <= key and (last is None or key < last):
                found.pop(key, None)
                if value is not None:
                    found[key] = value
        return sorted(found.items())

    # ---- named objects --------------------------------------------------------------------------

    def __getitem__(self, name: str) -> bytes:
        store = self._objects(False)
        value = self._get(store, _encoded(name)) if store else None
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.put(self._objects(True), _encoded(name), value)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._written(self._objects(True))[_encoded(name)] = None

    def __contains__(self, name: str) -> bool:
        store = self._objects(False)
        return store is not None and self._get(store, _encoded(name)) is not None

    def _objects(self, make: bool) -> Any:
        """The store with the named objects; None if there is none and it is not to be made."""
        if make or self._pool.exclusively(lambda: self._pool.catalogue.find(OBJECTS.encode())):
            return self._pool.store("rtx-sherman", name=OBJECTS)
        return None

    # ---- the read set ---------------------------------------------------------------------------

    def _written(self, store: Any) -> dict[bytes, bytes | None]:
        """What is to be written to a store."""
        if self._over:
            raise StoreError("this transaction is over: its function has returned")
        if not getattr(store, "transactional", False):
            raise ParameterError(
                f"{store!r} takes part in no transactions; a store of kind rtx-sherman does"
            )
        if store.pool is not self._pool:
            raise ParameterError(
                f"{store!r} was opened by another pool handle than the transaction's"
            )
        self._stores.setdefault(store.link, store)
        return self._writes.setdefault(store.link, {})

    def _get(self, store: Any, key: bytes) -> bytes | None:
        written = self._written(store)
        if key in written:
            return written[key]
        ask = functools.partial(store.value_here, key)
        value: bytes | None = self._read(store, ask, store.tree_of(key), key)
        return value

    def _read(self, store: Any, what: Callable[[], Any], tree: int, key: bytes) -> Any:
        """What the leaf of a key says; the leaf is in the read set then."""
        if self._doomed is not None:
            raise Conflict(self)

        def read() -> Any:
            found = what()
            if not self._holds(store):
                self._doomed = store
                raise Conflict(self)
            return found

        return store.at_leaf(tree, key, read)

    def _holds(self, store: Any) -> bool:
        """Note the leaf that was read last; whether all that was read is as it was."""
        found = (store.lock, store.pointer)
        if self._reads.setdefault(store.at, found) != found:
            return False
        load = store.endpoint.load
        return all(
            load(at) == lock and load(at + POINTER) == pointer
            for at, (lock, pointer) in self._reads.items()
        )

    # ---- the end --------------------------------------------------------------------------------

    def commit(self) -> bool:
        """Commit what was written; False: there was a conflict, and nothing has happened."""
        written = {link: pairs for link, pairs in self._writes.items() if pairs}
        if self._doomed is not None or not written:
            return self._doomed is None
        store = self._stores[next(iter(written))]
        commit = Commit(self._pool, store.locks)
        commit.reads = self._reads
        only_deletes = all(value is None for pairs in written.values() for value in pairs.values())
        while (outcome := self._commit_once(commit, written)) == NO_MEMORY:
            commit.replenish(0 if only_deletes else SPARED_BLOCKS)
        if outcome == AGAIN:
            self._doomed = store
            store.at = commit.busy or store.at
            return False
        for link, pairs in written.items():
            for key, value in pairs.items():
                if value is None:
                    self._stores[link].tidy(key)
        return True

    def _commit_once(self, commit: Commit, written: dict[int, dict[bytes, bytes | None]]) -> int:
        self._pool.client.enter()
        try:
            commit.begin(next(iter(written)))
            for link, pairs in written.items():
                staging = self._stores[link].staging(commit)
                for key in sorted(pairs):
                    if staging.stage(key, pairs[key]) == AGAIN:
                        commit.busy = self._stores[link].at
                        return AGAIN
            if commit.pages:
                return commit.run()
            return DONE if commit.validate() else AGAIN
        finally:
            self._pool.client.leave()

    def end(self) -> None:
        """From now on, it cannot be used."""
        self._over = True

    def is_doomed(self) -> bool:
        """Whether there was a conflict."""
        return self._doomed is not None

    def stay(self, attempt: int) -> None:
        """After a conflict, wait a little, and look now and then whom we wait for."""
        if self._doomed is not None:
            self._doomed.stay(attempt, True)


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
    for attempt in range(1, attempts + 1):
        transaction = Transaction(pool)
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
        transaction.stay(attempt)
    raise TransactionConflict(
        f"{pool.url}: a transaction met conflicts in all of its {attempts} attempts; make it "
        "smaller, or allow more attempts"
    )
