"""Values in place: `store.view` and `store.reserve`, as context managers.

In its block, a program has the value's memory itself, as a `memoryview`. The client is in no
operation meanwhile: it keeps the one object by a record of its slot (shm/clients/holds.py), so that
the block may take as long as it likes, and its thread and others may use the handle.

A view's object is not used again before the end of the block, whether its key is given another
value, deleted, or dropped with its store. The object of a reservation is linked at the end of the
block; until then no client can find it. After an exception it is freed. The value of a store with
replicas is copied to all of them, so its reservation is memory of the process itself, which no lost
node takes along; the end of the block is a `put`.

The end of a block releases the memoryview: using it raises ValueError. If something else still has
its memory then (a numpy array on it, a slice of it), the object stays as it is for as long as that
has it, and the end of the block raises BufferError; what was reserved is not linked then.

A kill leaves behind: the record; recovery lets it go, with the object if that is not linked. A
process that stands still in a block keeps that object, of at most RECORDS_COUNT, until it goes on
or ends; no other memory waits for it, and it is never fenced for it. A child that was forked in a
block has neither of them: its memoryviews are released in the fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from limpet.shm.endpoint.fabric import checksum_buffer
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import CoherenceError, NodeFailed, StoreError


class PrivateMemory:
    """Memory of this process, as `Endpoint.lend` gives memory of an object."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)

    def memory(self) -> memoryview:
        return memoryview(self.data)

    def end(self) -> bool:
        """Whether nothing has it any longer."""
        try:
            self.data.clear()
        except BufferError:
            return False
        return True


class Block:
    """The common part of a view and a reservation: memory of one object, lent for a block."""

    def __init__(self, store: Any, key: bytes) -> None:
        self.store = store
        self.key = key
        self.ident = 0
        """The client that holds the object; 0: none does, or it is the client of the process that
        this one was forked from."""
        self.record = 0
        self.node = 0
        self.value: memoryview | None = None
        self.lent: Any = None
        """The memory that was lent, until nothing has it any longer."""

    def _require_new(self) -> None:
        """Before a block: let go what others left; StoreError: this object is in a block."""
        if self.value is not None:
            raise StoreError(
                f"{self.store.name}: this view or reservation of {self.key!r} is in a block "
                "already; make another one for each block"
            )
        if _late:
            settle_late(self.store.client)

    def _lend(self, record: int, address: int, size: int, writable: bool) -> memoryview:
        self.record = record
        self.node = address >> NODE_SHIFT
        return self._begin(lambda: self.store.endpoint.lend(address, size, writable))

    def _begin(self, lend: Callable[[], Any]) -> memoryview:
        self.ident = self.store.client.ident
        done = False
        try:
            self.lent = lend()
            value: memoryview = self.lent.memory()
            self.value = value
            _lent.add(self)
            done = True
            return value
        finally:
            if not done:
                self._let_go()

    def _take_back(self) -> bool:
        """Release the memory; False: something still has it."""
        value, self.value = self.value, None
        _lent.discard(self)
        if value is not None:
            try:
                value.release()
            except BufferError:
                return False
        return not self._in_use()

    def _in_use(self) -> bool:
        """Whether something has the memory that was lent."""
        if self.lent is None:
            return False
        if not self.lent.end():
            return True
        self.lent = None
        return False

    def _let_go(self) -> None:
        """Let the object go, unless this is another client by now."""
        ident, self.ident = self.ident, 0
        if self.record and ident and ident == self.store.client.ident:
            self.store.let_go_of(self.record)

    def _still_lent(self, what: str) -> BufferError:
        _late.append(self)
        return BufferError(
            f"{self.store.name}: the memory of {what} {self.key!r} is still in use after its "
            "block, by a slice of it or an array on it; copy what outlives the block"
        )


class View(Block):
    """`with store.view(key) as value`."""

    def __enter__(self) -> memoryview | None:
        self._require_new()
        found = self.store.hold(self.key)
        if found is None:
            return None
        record, address, size = found
        return self._lend(record, address, size, writable=False)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        free = self._take_back()
        if not self.ident:
            return
        if free:
            self._let_go()
        elif error is None:
            raise self._still_lent("the value of")
        else:
            _late.append(self)
        if error is None and self.store.endpoint.lost(self.node):
            raise NodeFailed(self.node, "it was lost while a value on it was viewed")


class Reservation(Block):
    """`with store.reserve(key, size) as buffer`."""

    def __init__(self, store: Any, key: bytes, size: int) -> None:
        Block.__init__(self, store, key)
        self.size = size
        self.reference = 0

    def __enter__(self) -> memoryview:
        self._require_new()
        if self.store.replicated:
            self.store.have_ready(self.key, self.size)
            return self._begin(lambda: PrivateMemory(self.size))
        record, self.reference, address = self.store.reserve_object(self.key, self.size)
        return self._lend(record, address, self.size, writable=True)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.value is None or not self.ident:
            self._take_back()
            return
        store = self.store
        if error is not None:
            if self._take_back():
                self._let_go()
            else:
                _late.append(self)
            return
        value, digest = b"", 0
        done = False
        try:
            if store.replicated:
                value = self.value.tobytes()
            else:
                digest = checksum_buffer(self.value, store.objects.seed(self.key, self.size))
            done = True
        finally:
            free = self._take_back()
            if not done and free:
                self._let_go()
        if not free:
            raise self._still_lent("what was reserved for")
        record, self.ident = self.record, 0
        if store.replicated:
            store.put(self.key, value)
        else:
            store.link_reserved(self.key, record, self.reference, self.size, digest)


def require_coherence(store: Any) -> None:
    """Raise CoherenceError if the pool's memory is not hardware-coherent."""
    if not store.pool.parameters.coherent:
        raise CoherenceError(
            f"{store.pool.url}: views and reservations need memory that is hardware-coherent; use "
            "get and put"
        )


def settle_late(client: Any) -> None:
    """Let go what something had after its block, and has no longer."""
    for block in [late for late in _late if late.store.client is client]:
        if not block._in_use():
            _late.remove(block)
            block._let_go()


_late: list[Any] = []
_lent: set[Any] = set()
"""The blocks in which this process is. Each has a record, so there are not many."""


def disown(block: Block) -> None:
    """Release the memory of a block of the process that this one was forked from."""
    block.ident = 0
    block._take_back()


def _disown_in_child() -> None:
    for block in list(_lent):
        disown(block)
    _late.clear()


os.register_at_fork(after_in_child=_disown_in_child)
