"""What a transaction is going to do to slots of a hash store (hash_slots.py).

Within one operation, by `Commit` (stores/rtx/commit.py). A key that is there keeps its slot; one
that is new gets a vacant one, which no other key of the transaction gets. If there is none, the
subtable is split by a transaction of its own before this one is tried again: growth is no conflict.
All keys are staged before that, so that all subtables are split that are crowded: else a
transaction would be tried again as often as it takes splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.stores.rtx.commit import SlotWrite
from limpet.stores.rtx.layout import SLOT
from limpet.stores.rtx.reads import ReadPlace
from limpet.stores.status import AGAIN, DONE, FULL

if TYPE_CHECKING:
    from limpet.stores.rtx.commit import Commit


class WriteSet:
    """The changes of one transaction to one store."""

    def __init__(self, store: Any, commit: Commit) -> None:
        self.store = store
        self.commit = commit

    def stage(self, key: bytes, value: bytes | None) -> int:
        """Stage one key's value, None to delete it: DONE, AGAIN or FULL."""
        store, commit = self.store, self.commit
        # A key that is deleted needs no vacant slot, and what its look-up rests on stays as read.
        slot, word = store.place_for(key, commit.slots if value is not None else ())
        if store.busy:
            return AGAIN
        found = store.value_here()
        if commit.reads is not None and not commit.reads.agrees(store, key, found):
            return AGAIN
        if value is None and found is None:
            # It was put by the transaction itself, which writes nothing for it; so nothing but its
            # read set can show that the key was absent when it committed.
            return DONE if commit.reads is None or store.note(commit.reads, key, None) else AGAIN
        if not slot:
            commit.crowded.append((store, key, store.cramped))
            return FULL
        commit.owners[slot | SLOT] = ReadPlace(store, key, slot | SLOT)
        commit.write_slot(slot, SlotWrite(store, key, value, word, inserts=found is None))
        return DONE
