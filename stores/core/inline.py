"""`InlineStore`: the facade of stores with pairs in their own table and long values in objects.

`rcuckoo`, `loco` and the tree stores derive from it, and hold their other parts. Their operations
run in the loops of every store (base.py). `key_size` and `value_size`, of the parameters, are the
bytes of the longest key, and of the longest value that is in the table itself.

A get without a pin, of a kind that `glances`. Its table proves what was read of it: an entry by its
checksum or by the sequence of its row, a missing key by words that are read again (a tree has
another proof: tx_trees.py). A pin
adds that the table is still one, and that objects stay. So a get reads the table without a pin, and
then looks at the word DROPS: if it is as when this handle last found its store, the store was not
dropped until then, and all that was read was of its table. If anything else was seen (a torn entry,
a change of the index that is to be applied first, an object, an error), the get begins again with a
pin. A handle that has met an object last begins with a pin: the value that it gets next is probably
long, too.

So a stopped reader keeps no memory from others, unless it has a pin: its handle has met an object
last, or it is in a `get_many`. Words that are read of memory which has become something else may be
anything; they are only compared, and copied as far as an entry goes. Pools whose memory is not
hardware-coherent have pins (race/glance.py), and none of these kinds is for durable pools.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import DROPS
from limpet.shm.errors import KeyTooLarge
from limpet.stores.core.base import Attempt, Store, as_bytes
from limpet.stores.core.names import shown
from limpet.stores.core.records import Objects
from limpet.stores.core.status import (
    AGAIN,
    DELETE,
    DONE,
    MISSING,
    READ,
    UNPROVEN,
    UPDATE,
)


class Step:
    """A look at a store that may take several attempts (`InlineStore.run`)."""

    def __init__(self) -> None:
        self.result: Any = None

    def once(self) -> int:
        """One attempt, in an operation: DONE, and there is a `result`; or AGAIN."""
        raise NotImplementedError


class InlineIndex:
    """The index of a store. All methods but `node_of` are called in operations of the store."""

    def find_once(self, key: bytes, attempt: int) -> int:
        """Look a key up: DONE, MISSING, or AGAIN."""
        raise NotImplementedError

    def glance(self, key: bytes) -> int:
        """`find_once` without a pin, of a value that is in the table itself: DONE, MISSING; or
        AGAIN, it needs a pin."""
        return AGAIN

    def proves(self, endpoint: Any, drops: int) -> bool:
        """After `glance`, and after all reads: whether what was read stood there meanwhile.

        `drops`: the word DROPS when the handle last found its store.
        """
        return endpoint.stands(DROPS, drops, DROPS, drops, DROPS, drops, DROPS, drops)

    def value_found(self) -> bytes:
        """After DONE, in the same operation: the value."""
        raise NotImplementedError

    def is_object(self) -> bool:
        """After DONE, in the same operation: whether the value is in an object."""
        return False

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys; the places in `found` of those to be looked
        up one by one."""
        raise NotImplementedError

    def node_of(self, key: bytes) -> int:
        """The memory node with the key's table, and with its object."""
        raise NotImplementedError


class InlineStore(Store):
    """A store with parameters `key_size` and `value_size`, and an `index`. A subclass gives

    _change_once(...)         with `size` 0 the value is in the table; only if it `swaps` and is not
                              transactional is there a value that is expected
    _make_way(...)            after any outcome but DONE, EXISTS, MISSING and AGAIN
    await_holder(...)         wait for the client that was in the way
    checker()                 the object that checks the whole store
    _enter, _leave            if it has `locks_first`
    """

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.key_size = parameters.key_size
        self.value_size = parameters.value_size
        self.objects = Objects(pool.heap)
        self.index: Any = None
        """Set by the class of the kind."""
        self.batches_gets = True
        self.unpinned = False
        """Whether gets have no pin unless the value found last is in an object; then `glances`."""

    def glance(self) -> None:
        """From now on a get has no pin if the pool lets it. Called when the store is made, if its
        index has `glance`."""
        self.glances = self.unpinned = self.pool.is_in_place

    def forget(self) -> None:
        self.glances = self.unpinned

    # ---- reading --------------------------------------------------------------------------------

    def get_once(self, key: bytes, attempt: int, at: int) -> Any:
        outcome = self.index.find_once(key, attempt)
        if outcome == DONE:
            self.glances = self.unpinned and not self.index.is_object()
            return self.index.value_found()
        return None if outcome == MISSING else UNPROVEN

    def glance_at(self, key: bytes) -> Any:
        outcome = self.index.glance(key)
        if outcome == AGAIN:
            return UNPROVEN
        found = self.index.value_found() if outcome == DONE else None
        # ORDER: after all reads.
        return found if self.index.proves(self.endpoint, self.drops) else UNPROVEN

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        return self.index.get_batch(keys, found)

    def run(self, step: Step) -> Any:
        """Attempt `step` in operations until it is done; its result."""
        attempt = 0
        while True:
            self.client.enter()
            try:
                self.require_there()
                if step.once() == DONE:
                    return step.result
            finally:
                self.client.leave()
            attempt += 1
            self.await_holder(attempt, False)

    # ---- changing -------------------------------------------------------------------------------

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there."""
        data = key if type(key) is bytes else as_bytes("key", key)
        if self._change(data, b"", 0, DELETE, self._first_way()) == MISSING:
            raise KeyError(key)

    def delete_many(self, keys: Any) -> int:
        count = 0
        for data in [key if type(key) is bytes else as_bytes("key", key) for key in keys]:
            count += self._change(data, b"", 0, DELETE, self._first_way()) == DONE
        return count

    def _write(self, key: Any, value: Any, mode: int) -> int:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        size = self.object_size(key, value)
        return self._change(key, value, size, mode, self._first_way())

    def swap(self, key: Any, expected: bytes, value: Any = None) -> bool:
        """As of every store; under the key's locks, or by a transaction."""
        if self.transactional or not self.swaps:
            return super().swap(key, expected, value)
        key, expected = as_bytes("key", key), as_bytes("value", expected)
        way = Attempt()
        way.expected = expected
        if value is None:
            return self._change(key, b"", 0, DELETE, way) == DONE
        value = as_bytes("value", value)
        return self._change(key, value, self.object_size(key, value), UPDATE, way) == DONE

    def object_size(self, key: bytes, value: bytes) -> int:
        """Bytes of the object for a value; 0: it is in the table. KeyTooLarge, ValueTooLarge."""
        if len(key) > self.key_size:
            raise KeyTooLarge(
                f"{self.name}: the key {shown(key)} has {len(key)} bytes; the store was made with "
                f"key_size={self.key_size}"
            )
        return 0 if len(value) <= self.value_size else self.objects.size_of(key, value)

    # ---- steps ----------------------------------------------------------------------------------

    def _first_way(self) -> Attempt | None:
        """The way in which a put, insert, update or delete begins; None: the usual one."""
        return None

    def _go_on(
        self, outcome: int, way: Any, key: bytes, value: bytes, size: int, mode: int, attempt: int
    ) -> Any:
        if outcome != AGAIN:
            return self._make_way(outcome, way, key, size, mode)
        self.await_holder(attempt, mode != READ)
        return way

    def _make_way(self, outcome: int, way: Any, key: bytes, size: int, mode: int) -> Any:
        """How a write goes on after this outcome, which is not AGAIN. Outside of operations. Raises
        StoreFull."""
        raise NotImplementedError

    def await_holder(self, attempt: int, writes: bool) -> None:
        """Wait a little for the client that was in the way, and check now and then whether it is
        alive. Outside of operations."""
        raise NotImplementedError

    # ---- the whole of it ------------------------------------------------------------------------

    def checker(self) -> Any:
        """The object that checks the whole store: count, keys, references, check, left_by."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(self.checker().count())

    def keys(self) -> Any:
        """Every key, as weakly consistent as `iter` says; in order, if the kind is ordered."""
        return self.scans.keys() if self.ordered else self.checker().keys()

    def references(self) -> Any:
        """References to all objects on nodes in service, as uint64; for audits."""
        return self.checker().references()

    def check(self) -> None:
        """Verify every invariant in memory; StoreCorrupt names the one that does not hold.

        Other clients may be at work. NodeFailed: a node is lost with its keys, and the rest is
        sound.
        """
        self.proved(self.checker().check)

    def left_by(self, ident: int) -> set[str]:
        found: set[str] = self.checker().left_by(ident)
        return found
