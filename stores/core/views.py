"""Values in place: `store.view` and `store.reserve`, as context managers.

In its block, a program has the value's memory itself, as a `memoryview`. The client is in no
operation meanwhile: it keeps the one object by a record of its slot (shm/clients/holds.py), so that
the block may take as long as it likes, and its thread and others may use the handle. When half of
the records are taken, a keeper (keeper.py) has the objects of further views.

`ValueView.memory` gives a memoryview without a block, which keeps its object as long as anything
has it. A keeper has the record of that, and the client only until the keeper has it.

A view's object is not used again before the end of the block, whether its key is given another
value, deleted, or dropped with its store. The object of a reservation is linked at the end of the
block; until then no client can find it. After an exception it is freed. The value of a store with
replicas is copied to all of them, so its reservation is memory of the process itself, which no lost
node takes along; the end of the block is a `put`.

The end of a block releases the memoryview: using it raises ValueError. If something else still has
its memory then (a numpy array on it, a slice of it), the object stays as it is for as long as that
has it, and the end of the block raises BufferError; what was reserved is not linked then.

A signal handler that raises at the beginning or at the end of a block ends it. The memory is given
back at once, or, if a handler raises meanwhile, when the next block begins or the handle is closed.

A kill leaves behind: the record; recovery lets it go, with the object if that is not linked. A
process that stands still in a block keeps that object, of at most RECORDS_COUNT, until it goes on
or ends; no other memory waits for it, and it is never fenced for it. A child that was forked in a
block has neither of them: its memoryviews are released in the fork.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import ref

import numpy as np

from limpet.shm.endpoint.fabric import checksum_buffer
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.shm.endpoint.slots import RECORDS_COUNT
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import AddressError, CoherenceError, NodeFailed, PoolClosed, StoreError


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


class KeptMemory:
    """Memory that a keeper has, or a copy, for one block, as `Endpoint.lend` gives memory."""

    def __init__(self, value: memoryview) -> None:
        self._there = ref(value.obj)

    def end(self) -> bool:
        """Whether nothing has it any longer."""
        return self._there() is None


class Loan:
    """Memory of one object that is lent for one block; the client holds the object for it.

    It is noted in `_loans` before anything is taken, until all is given back. A signal handler may
    cut off any step: `end` can be repeated, and `settle_late` ends the loans of blocks that are
    gone.
    """

    def __init__(self, block: Block) -> None:
        self.store = block.store
        self.block = ref(block)
        self.over = False
        """Whether the block has ended, or is that of the process that this one was forked from."""
        self.node = 0
        """The memory node of a view."""
        self.value: memoryview | None = None
        self.lent: Any = None
        """The memory that was lent, until nothing has it any longer."""

    def begin(self, lent: Any) -> memoryview:
        self.lent = lent
        value: memoryview = lent.memory()
        self.value = value
        return value

    def take_back(self) -> bool:
        """Release the memory; False: something still has it."""
        if self.value is not None:
            try:
                self.value.release()
            except BufferError:
                return False
            self.value = None
        if self.lent is not None:
            if not self.lent.end():
                return False
            self.lent = None
        return True

    def end(self) -> bool:
        """End the block, and let the object go; False: something still has its memory."""
        self.over = True
        if not self.take_back():
            return False
        holds = self.store.client.holds
        if holds.record_of(self):
            self.store.let_go_of(self)
        _loans.discard(self)
        return True


class Block:
    """The common part of a view and a reservation: one loan for each block.

    `size`: the bytes of a reservation."""

    def __init__(self, store: Any, key: bytes, size: int = 0) -> None:
        self.store = store
        self.key = key
        self.size = size
        self.reference = 0
        """The object that is reserved."""
        self.loan: Loan | None = None
        """The loan of the last block."""

    def _require_new(self) -> None:
        """Before a block: StoreError: this object is in a block."""
        if self.loan is not None and not self.loan.over:
            raise StoreError(
                f"{self.store.name}: this view or reservation of {self.key!r} is in a block "
                "already; make another one for each block"
            )

    def __enter__(self) -> memoryview | None:
        self._require_new()
        entered = False
        try:
            if _loans:
                settle_late(self.store.client)
            self.loan = Loan(self)
            _loans.add(self.loan)
            value = self._begin(self.loan)
            entered = value is not None
            return value
        finally:
            if not entered and self.loan is not None:
                self.loan.end()

    def _begin(self, loan: Loan) -> memoryview | None:
        """Take memory for the block; None: there is none."""
        raise NotImplementedError

    def _still_lent(self, what: str) -> BufferError:
        return BufferError(
            f"{self.store.name}: the memory of {what} {self.key!r} is still in use after its "
            "block, by a slice of it or an array on it; copy what outlives the block"
        )


class ValueView(Block):
    """`with store.view(key) as value`, or `store.view(key).memory()`."""

    def memory(self) -> memoryview | None:
        """The value in place, a read-only memoryview; None: the key is missing.

        It keeps the value, whatever others do to the key, until it and all that is made of it
        (slices, arrays, buffers) are gone: also after the pool was closed, and in a forked child.
        If this handle has as many values in place as it may have (keeper.py), it is a copy.
        NodeFailed: the value was on a lost node. If its node is lost later, what is not a copy
        becomes memory of this process alone.
        """
        self._require_new()
        if _loans:
            settle_late(self.store.client)
        loan = self.loan = Loan(self)
        _loans.add(loan)
        try:
            return self._keep(loan)
        finally:
            loan.end()

    def _keep(self, loan: Loan) -> memoryview | None:
        """As `memory`. The loan may have a record, which is needed no longer."""
        store, endpoint = self.store, self.store.endpoint
        found = store.hold(self.key, loan)
        if found is None:
            return None
        address, size = found
        loan.node = address >> NODE_SHIFT
        store.client.enter()
        try:
            reference = endpoint.load(store.client.holds.record_of(loan)) & REFERENCE_MASK
        finally:
            store.client.leave()
        # ORDER: while the loan has the object, which may not be linked any more.
        kept = store.pool.keepers.memory(store.pool, reference, address, size)
        if kept is None:
            loan.node = CONTROL_NODE
            copied: Any = np.array(lend(store, address, size, False).memory())
            kept = memoryview(copied).toreadonly()
        return kept

    def _begin(self, loan: Loan) -> memoryview | None:
        if self.store.client.holds.count >= RECORDS_COUNT // 2:
            # Records are left for what is on its way to a keeper.
            try:
                loan.value = self._keep(loan)
            finally:
                self.store.let_go_of(loan)
            if loan.value is not None:
                loan.lent = KeptMemory(loan.value)
            return loan.value
        found = self.store.hold(self.key, loan)
        if found is None:
            return None
        address, size = found
        loan.node = address >> NODE_SHIFT
        return loan.begin(lend(self.store, address, size, False))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        loan = self.loan
        if loan is None or loan.over:
            return
        if not loan.end() and error is None:
            raise self._still_lent("the value of")
        if error is None and self.store.endpoint.lost(loan.node):
            raise NodeFailed(loan.node, "it was lost while a value on it was viewed")


class Reservation(Block):
    """`with store.reserve(key, size) as buffer`."""

    def _begin(self, loan: Loan) -> memoryview | None:
        if self.store.replicated:
            self.store.have_ready(self.key, self.size)
            return loan.begin(PrivateMemory(self.size))
        self.reference, address = self.store.reserve_object(self.key, self.size, loan)
        return loan.begin(lend(self.store, address, self.size, True))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        loan = self.loan
        if loan is None or loan.over:
            return
        try:
            if error is None:
                self._link(loan)
        finally:
            loan.end()

    def _link(self, loan: Loan) -> None:
        """Make what was filled the value of the key."""
        store = self.store
        value, digest = b"", 0
        if store.replicated:
            value = loan.value.tobytes()  # type: ignore[union-attr]
        else:
            digest = checksum_buffer(loan.value, store.objects.seed(self.key, self.size))
        if not loan.take_back():
            raise self._still_lent("what was reserved for")
        if store.replicated:
            store.put(self.key, value)
        else:
            store.link_reserved(self.key, loan, self.reference, self.size, digest)


def require_coherence(store: Any) -> None:
    """Raise CoherenceError if the pool's memory is not hardware-coherent."""
    if not store.pool.parameters.coherent:
        raise CoherenceError(
            f"{store.pool.url}: views and reservations need memory that is hardware-coherent; use "
            "get and put"
        )


def lend(store: Any, address: int, size: int, writable: bool) -> Any:
    """The memory of an object that is held. Outside of operations, so the pool may be closed."""
    try:
        return store.endpoint.lend(address, size, writable)
    except (AddressError, ValueError) as error:  # amid `detach`, the portable endpoint has either
        if not store.pool.closed:
            raise
        url = store.pool.url
        raise PoolClosed(f"{url}: this handle was closed; open the pool again") from error


def settle_late(client: Any) -> None:
    """End the loans whose blocks are over, if nothing has their memory any longer."""
    for loan in list(_loans):
        if loan.store.client is client and (loan.over or loan.block() is None):
            loan.end()


_loans: set[Any] = set()
"""The loans of this process. Most of them have a record, so there are not many."""


def disown(loan: Loan) -> None:
    """Release the memory of a block of the process that this one was forked from."""
    loan.over = True
    loan.take_back()


def _disown_in_child() -> None:
    for loan in list(_loans):
        disown(loan)
    _loans.clear()


os.register_at_fork(after_in_child=_disown_in_child)
