"""RCuckoo: a cuckoo hash table that its clients lock and change themselves, with inline values.

Grant and Snoeren, "Cuckoo for Clients: Disaggregated Cuckoo Hashing". One table on each memory
node, chosen by the key's hash; the layout of a table is in layout.py. A key's entry is in one of
two rows of 8 entries (rows.py), under locks that name their holders (locks.py).

Get (section 3.2.1; lookup.py), without a pin if the value is in its row (inline.py): read both
rows. These are proven by their sequences, which are read again, or by their sums (rows.py).

Update, delete (3.2.2): in one phase take the locks of both rows and read them; in another one write
the entry and the row's sequence, and give the locks back. A long value is written to a new extent
in the first one.

Insert (3.2.3): the same if one of the key's rows has a vacant entry; else in the paper's phases,
which are in writer.py.

Linearization: a row has one value from an even sequence to the next one, and a key has its value in
either row. A key in both rows has the same value in both, as they are locked until it is in one.

A kill leaves behind: locks, perhaps a row that is not whole, perhaps entries in two rows; and
a journal that names them, which is in the client journal (client.py), so that the recovery of the
client repairs the table (repair.py), before another client can have its slot. An extent is in the
client journal from before it is in use until it is linked; the rows of its key decide whether it is
linked, also when the entry has moved since.

A client that waits for a lock, or for a row that is not whole, reads the holder in the lock. It
recovers a dead one at once, where the paper waits 100 ms. One that stands still for a lease is
killed first, or waited for, as the pool's `fence` says (docs/operations.md).

Limits that are the paper's: rows have a fixed size, the table does not grow; others wait for a
lease when a client stands still while it holds a lock; nothing is replicated.

Deviations, besides: an insert reads all rows under its locks only when it needs a path (the paper
always does); the table is checked for a path from both of the key's rows.

Round trips without conflict: get 1 (2 for an extent that is read at once, and one more if the last
value that was found was in its row; with sums 2 for a missing key, of a client that is not remote),
update, delete and insert 2, and more for a path that the cache does not have. All operations are in
posted form: exchanges are the round trips (verbs.pyx).
"""

from __future__ import annotations

import functools
from typing import Any, Final

from limpet.shm.endpoint.words import REPLICATED
from limpet.shm.errors import StoreFull
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
"""After so many attempts a client looks after the holder of the lock; and again after twice as
many, four times, eight times, and every eight times from then on."""


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
        self.objects.posts = True
        self.writer = Writer(pool, self.lookup, parameters, self.link)

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
        """Wait a little, and now and then look after the holder of the lock."""
        self.retries += 1
        self.endpoint.pause(attempt)
        if self._is_to_look(attempt):
            self.recover_holder()
        if attempt > LOOKS_MAX:
            self._refuse_stray()

    def _is_to_look(self, attempt: int) -> bool:
        """Whether it is time to look after the client that we wait for, after so many attempts."""
        turn = attempt // PATIENCE
        return attempt == turn * PATIENCE and (not turn & turn - 1 or not turn & 7)

    def _refuse_stray(self) -> None:
        """Raise StoreCorrupt when we wait for a lock that no client has, and that is not free."""
        word = self.lookup.locks.busy
        base = self._table_with(word)
        checker = self.checker()
        for attempt in range(LOOKS_MAX):
            if word == 0 or not (holder := checker.stray(base, word)):
                break
            self.endpoint.pause(attempt)
        else:
            raise checker.of_nobody(word, holder)

    def _table_with(self, word: int) -> int:
        """Address of the table that has this lock; for word 0, the key's table.

        Outside of operations. Another thread of the handle may be in an operation with a key of
        another table, so the word decides.
        """
        lookup = self.lookup
        for base in lookup.tables:
            if base + lookup.locks_at <= word < base + lookup.rows_at:
                return int(base)
        return int(lookup.tables[self.found.table])

    def recover_holder(self) -> None:
        """Recover the holder of the lock we wait for, if it is dead or stands still for a lease."""
        word = self.lookup.locks.busy
        if word:
            repair = Repair(self, self._table_with(word))
            self.pool.exclusively(functools.partial(repair.recover_holder, word))

    def resolved(self, reference: int, link_address: int) -> bool:
        """Decide a pair of a client journal: repair for a dead client, or for ourselves
        (base.py)."""
        return bool(Repair.resolved(self, reference))

    def checker(self) -> RcuckooCheck:
        return RcuckooCheck(self)
