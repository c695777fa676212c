"""RCuckoo: a cuckoo hash table that its clients lock and change themselves, with inline values.

Grant and Snoeren, "Cuckoo for Clients: Disaggregated Cuckoo Hashing". One table on
each memory node, chosen by the key's hash; the layout of a table is in layout.py. A key's entry is
in one of two rows (rows.py) of 8 entries (rows.py), under locks (locks.py) whose owners
are in journals (locks.py).

Get (section 3.2.1), without a pin if the value is in its row (inline.py): read both rows, by one
covering read if they are adjacent. An entry is valid if its row is whole. Before a key counts as
missing, the versions of both rows are read again: between the two reads it may have been moved from
the row that was read later to the one that was read first (C3). A long value is read from its
extent.

Update, delete (3.2.2): take the locks of both rows and read them; write the entry, version and CRC;
give the locks back. A long value is written to a new extent before.

Insert (3.2.3): the same if one of the key's rows has a vacant entry; else in the paper's phases,
which are in writer.py.

Linearization: a row has one value from CRC to CRC, and a key has its value in either row. A key in
both rows has the same value in both, as they are locked until it is in one.

A kill leaves behind: locks, perhaps a row that is not whole, perhaps entries in two rows; and
a journal that names them, which is in the client journal (client.py), so that the recovery of the
client repairs the table (repair.py), before another client can have its slot. An extent is in the
client journal from before it is in use until it is linked; the rows of its key decide whether it is
linked, also when the entry has moved since.

A client that waits for a lock, or for a row that is not whole, looks for the owner in the journals.
It recovers a dead owner at once, where the paper waits 100 ms. An owner that stands still for a
lease is killed first, or waited for, as the pool's `fence` says (docs/operations.md).

Limits that are the paper's: rows have a fixed size, the table does not grow; others wait for a
lease when a client stands still while it holds a lock; nothing is replicated.

Deviations, besides: an insert reads all rows under its locks only when it needs a path (the paper
always does); the table is checked for a path from both of the key's rows.

Round trips without conflict: get 1 (2 for a miss, and for an extent that is read at once, and one
more if the last value that was found was in its row), update, delete and insert 2, one more for
each group of locks after the first, and for a path.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from limpet.shm.endpoint.layout import SLOTS_USED
from limpet.shm.endpoint.words import REPLICATED
from limpet.shm.errors import StoreCorrupt, StoreFull
from limpet.stores.core import regions
from limpet.stores.core.inline import InlineStore
from limpet.stores.core.names import LARGER, shown
from limpet.stores.core.status import AT_ONCE, NO_MEMORY
from limpet.stores.rcuckoo.check import RcuckooCheck
from limpet.stores.rcuckoo.layout import LOOKS_MAX, LOST
from limpet.stores.rcuckoo.lookup import Lookup
from limpet.stores.rcuckoo.parameters import RcuckooParameters
from limpet.stores.rcuckoo.repair import Repair
from limpet.stores.rcuckoo.writer import Plan, Writer

LOST_MAX: Final = 1000
"""How often a path may be found and be gone when it is locked."""
PATIENCE: Final = 8
"""After so many attempts, or more where there are many clients, a client looks for the owner of the
lock; and again after twice as many, four times, eight times, and every eight times from then on."""
CLIENTS_PER_ATTEMPT: Final = 4
"""A look reads a word of every client's journal. It is made once in so many attempts that its cost
for each of them does not grow with the number of clients (trap C14)."""
SLOTS_PER_ATTEMPT: Final = 12
"""The same for slots without a client."""


class Rcuckoo(InlineStore):
    """The `rcuckoo` store. `RcuckooParameters`."""

    Parameters = RcuckooParameters
    resolves = True
    swaps = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: RcuckooParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = self.entry_number << 48 | REPLICATED
        self.index = self.lookup = Lookup(pool, name, parameters, self.objects)
        self.found = self.lookup.found
        self.glance()
        self.writer = Writer(pool, self.lookup, parameters, self.link)
        self._take_patience()

    @staticmethod
    def make(pool: Any, name: str, parameters: RcuckooParameters) -> None:
        """Make one region a table; zeros are an empty one."""
        size = parameters.table_size(pool.parameters.clients)
        regions.make(pool, name, parameters.tables, size)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: RcuckooParameters) -> None:
        regions.unmake(pool, name, parameters.tables)

    def replaced(self, node: int) -> None:
        self.lookup.replaced(node)
        self.forget()

    def forget(self) -> None:
        super().forget()
        self.writer.forget()

    # ---- steps of operations --------------------------------------------------------------------

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        self.lookup.choose(self.found, key)
        expected = None if way is None else way.expected
        plan = way if expected is None else None  # a swap inserts nothing
        return self.writer.change(self.found, key, value, size, mode, attempt, plan, expected)

    def _make_way(self, outcome: int, way: Any, key: bytes, size: int, mode: int) -> Any:
        if outcome == NO_MEMORY:
            self.have_memory(key, mode, self.lookup.node_of(key), size)
            return way
        plan: Any = Plan() if way is None else way
        if outcome == LOST:
            self.retries += 1
            plan.lost += 1
            plan.is_sought = True
        else:
            plan.full += 1
        if plan.full > 1 or plan.lost > LOST_MAX:
            raise StoreFull(self._why_full(key))
        plan.outcome = AT_ONCE
        return plan

    def _why_full(self, key: bytes) -> str:
        return (
            f"{self.name}: no room for the key {shown(key)}, by up to "
            f"{self.parameters.depth} moves; the store was made with capacity "
            f"{self.parameters.capacity}; {LARGER}"
        )

    # ---- waiting --------------------------------------------------------------------------------

    def await_holder(self, attempt: int, writes: bool) -> None:
        """Wait a little, and now and then look for the owner of the lock."""
        self.retries += 1
        self.endpoint.pause(attempt)
        if self._is_to_look(attempt):
            self.recover_owner()
        if attempt > LOOKS_MAX:
            self._refuse_stray()

    def _is_to_look(self, attempt: int) -> bool:
        """Whether it is time to look whom we wait for, after so many attempts."""
        turn = attempt // self.patience
        return attempt == turn * self.patience and (not turn & turn - 1 or not turn & 7)

    def _refuse_stray(self) -> None:
        """Raise StoreCorrupt when we wait for a lock that is set, and that no client has."""
        locks = self.lookup.locks
        word, bits = locks.busy, locks.busy_bits
        base = self._table_with(word)
        checker = self.checker()
        for attempt in range(LOOKS_MAX):
            if word == 0 or not checker.stray(base, word) & bits:
                break
            self.endpoint.pause(attempt)
        else:
            raise StoreCorrupt(
                f"{self.name}: locks {bits:#x} of the word at {word:#x} are set, and no client "
                "says that it has them: memory was damaged; destroy the pool"
            )

    def _table_with(self, word: int) -> int:
        """Address of the table that has this word of locks; for word 0, the key's table.

        Outside of operations. Another thread of the handle may be in an operation with a key of
        another table, so the word decides.
        """
        lookup = self.lookup
        for base in lookup.tables:
            if base + lookup.locks_at <= word < base + lookup.rows_at:
                return int(base)
        return int(lookup.tables[self.found.table])

    def _take_patience(self) -> None:
        """Set the number of attempts between looks by the present number of clients, and less by
        how many slots were ever used (trap G24): a look reads their journals, too."""
        clients = len(list(self.pool.membership.occupied()))
        used = self.endpoint.load(SLOTS_USED)
        self.patience = max(PATIENCE, clients // CLIENTS_PER_ATTEMPT, used // SLOTS_PER_ATTEMPT)

    def recover_owner(self) -> None:
        """Recover the owner of the lock we wait for, if it is dead or stands still for a lease."""
        self._take_patience()
        locks = self.lookup.locks
        word, bits = locks.busy, locks.busy_bits
        repair = Repair(self, self._table_with(word))
        self.pool.exclusively(functools.partial(repair.recover_owners, word, bits))

    def resolved(self, reference: int, link_address: int) -> bool:
        """Decide a pair of a client journal: repair for a dead client, or for ourselves
        (base.py)."""
        return bool(Repair.resolved(self, reference))

    def checker(self) -> RcuckooCheck:
        return RcuckooCheck(self)
