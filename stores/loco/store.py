"""LOCO's kvstore: values in arrays of the memory nodes, an index of all keys in every process.

"LOCO: Rethinking Objects for Network Memory", section 6 and appendix C. One table on each memory
node, chosen by the key's hash; its layout is in layout.py. A table has a data array (data_array.py)
with a place for every key, locks (key_locks.py) with a journal each (data_array.py), and for the
keys of each lock a tracker (local_index.py), whose messages tell which entry has which key. Every
process has its own index of the table (local_index.py), key -> entry, which the trackers keep up to
date.

Get takes no lock, and no pin if the value is in the entry (inline.py): look the key up; load the
position of the tracker, and read the entry after it; if there are new messages, bring the index up
to date, and begin again. If the entry is valid
and whole, and of the life in the index, it has the value. If it is torn, the get begins again,
after some tries with the lock, or with the redo image of its holder (lookup.py; so gets end). Else
the key is missing.

Insert, update and delete take the lock of the key, and read the lock's journal, the position of its
tracker and the entry in the same phase. Bring the index up to date; note the intent in the journal;
then
    insert   claim a vacant entry, by a CAS that counts its counter up; write the pair and the
             checksum; append a message; set it valid
    update   the new words to the journal; then over the entry, which stays valid
    delete   set it deleted; append a message; make it vacant
clear the intent, and release the lock, in one phase with the writes. A value too long for an entry
is in an object that was written before; the entry links to it.

Linearization points: insert and delete by the store of the state word, update by the last word of
the entry, or its first one, if a get has met the entry torn. A get that returns a value: by the
read of the entry. A get that finds nothing, when it loaded the position of the tracker, or when the
entry changed since (local_index.py proves it: the message of an insert is announced before it is
valid, that of a delete after it is not). All changes of a key are made under its lock, one after
the other (lemma C.1).

A kill leaves behind: a lock, which waiting clients pass over; an intent in its journal, which the
next holder of the lock completes or takes back (repair.py); in the client journal (client.py) the
objects that were to be linked, or had been. A client waits only for a client that holds a lock.

Where we deviate from the paper
    - no client waits until another has applied a message (L1): a lookup applies them
      (local_index.py)
    - a tracker for the keys of each lock, where the paper has one for each node that inserts; its
      messages have bits of the key's hash, and not the key
    - the entry of a key is on the node of its hash, where the paper takes an entry of the node that
      inserts: so a lost node takes everything of its keys with it, and nothing of others
    - any client may claim any vacant entry; the valid bit is a phase, so that an entry that will be
      valid differs from one that was
    - locks skip dead holders; there are journals, and repair
    - a value may be longer than an entry; then it is in an object

Limits that are the paper's: every process comes to have all keys in its own memory; the data array
has a fixed size; when a client stands still while it holds a lock, writers of its keys wait for a
lease, and then kill it (docs/operations.md), or go on waiting, as the pool's `fence` says; nothing
is replicated.

Round trips without conflict: get 1 (and 1 or 2 for an object, and 1 if the last one that was found
was in its entry), insert 3, update 2, delete 2; one more after others' inserts and deletes of keys
with that lock; 32 updates in one `put_many` 2 (batch_updates.py).
"""

from __future__ import annotations

import contextlib
from typing import Any

from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.core import regions
from limpet.stores.core.base import Attempt, Store
from limpet.stores.core.inline import InlineStore
from limpet.stores.core.names import LARGER
from limpet.stores.core.status import NO_MEMORY
from limpet.stores.loco.batch_updates import BatchUpdates
from limpet.stores.loco.check import LocoCheck
from limpet.stores.loco.locking import Locking
from limpet.stores.loco.lookup import Lookup
from limpet.stores.loco.parameters import LocoParameters
from limpet.stores.loco.writer import Writer


class Kvstore(InlineStore):
    """The `loco` store. `LocoParameters`."""

    Parameters = LocoParameters
    swaps = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: LocoParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.prefetches = True
        self.locks_first = True
        self.glance()
        self.index = self.lookup = Lookup(pool, name, parameters, self.objects)
        self.found = self.lookup.found
        self.writer = Writer(pool, self.lookup)
        self.locking = Locking(self, self.lookup, self.writer, parameters)
        self.updates = BatchUpdates(self.client, self.lookup, self.locking, parameters)

    @staticmethod
    def make(pool: Any, name: str, parameters: LocoParameters) -> None:
        """Make one region a table; zeros are an empty one."""
        regions.make(pool, name, parameters.tables, parameters.table_size)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: LocoParameters) -> None:
        regions.unmake(pool, name, parameters.tables)

    def replaced(self, node: int) -> None:
        self.lookup.replaced(node)
        self.locking.replaced(node)

    def forget(self) -> None:
        super().forget()
        self.lookup.forget()
        self.locking.forget()

    def stats(self) -> dict[str, Any]:
        """Counts of this handle: as of every store, and the `repairs` that it has made."""
        return {**super().stats(), "repairs": self.locking.repairs}

    def put_many(self, pairs: Any) -> None:
        """As of every store. 32 pairs of a list, a tuple or a dict whose keys are there are put in
        2 round trips; those of which two keys have one lock, and new keys, one by one. After
        NodeFailed each pair is put or not."""
        if type(pairs) is dict:
            pairs = list(pairs.items())
        if type(pairs) is not list and type(pairs) is not tuple:
            Store.put_many(self, pairs)
            return
        start = 0
        while start < len(pairs):
            start = self._put_some(pairs, start)

    def run_batch(self, window: Any) -> None:
        if window.reads():
            window.unread = self.get_batch(window.keys, window.found)
        if window.start < len(window.pairs):
            self.updates.put(window.pairs, window.start, window.left, window)

    def _put_some(self, pairs: Any, start: int) -> int:
        """Put the pairs from `start` on that make a batch; which pair comes next."""
        left: list[int] = []
        self.client.enter()
        try:
            self.require_there()
            end = self.updates.put(pairs, start, left, None)
        finally:
            self.client.leave()
        self._count(end - start - len(left), end - start - len(left))
        for at in left:
            key, value = pairs[at]
            self.put(key, value)
        return end

    # ---- steps of operations --------------------------------------------------------------------

    def _enter(self, key: bytes, attempt: int, writes: bool) -> Any:
        if writes or self.lookup.is_late(attempt):
            return self.locking.enter(self, self.found, key)
        self.client.enter()
        return None

    def _leave(self, held: Any) -> int:
        self.locking.leave(held)
        return 0

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        return self.writer.change(self.found, key, value, size, mode, way.expected if way else None)

    def _make_way(self, outcome: int, way: Any, key: bytes, size: int, mode: int) -> Any:
        if outcome == NO_MEMORY:
            self.have_memory(key, mode, self.lookup.node_of(key), size)
            return way
        if way is not None:
            raise StoreFull(self._why_full(key))
        self.recover()  # entries that dead clients had claimed become vacant
        # And those become known that others have made vacant under locks that we do not use.
        self.within(self._refresh_all, key)
        return Attempt()

    def _refresh_all(self, key: bytes) -> None:
        self.lookup.indexes[self.lookup.table_of(key)].refresh_all()

    def _why_full(self, key: bytes) -> str:
        return (
            f"{self.name}: no room for the key {key!r}: all {self.parameters.entries} entries of "
            f"its node are taken; the store was made with capacity {self.parameters.capacity}; "
            f"{LARGER}"
        )

    def _prefetch_keys(self, keys: list[bytes]) -> None:
        self.lookup.expect_keys(keys)

    def await_holder(self, attempt: int, writes: bool) -> None:
        """Wait a little for a client that is writing; an attempt that holds the lock does not."""
        self.retries += 1
        if not self.lookup.is_late(attempt):
            self.endpoint.pause(attempt)

    # ---- recovery -------------------------------------------------------------------------------

    def recover(self) -> dict[str, Any]:
        """Recover dead clients, and repair their traces under the locks of this store."""
        found = super().recover()
        for table in range(len(self.lookup.tables)):
            with contextlib.suppress(NodeFailed):  # its table is gone with it
                self.locking.mend(self, table)
        return found

    def checker(self) -> LocoCheck:
        return LocoCheck(self)
