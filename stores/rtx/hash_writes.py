"""The changes that a transaction stages in slots of a hash store (hash_slots.py).

Within one operation, by `Commit` (stores/rtx/commit.py). A key that is there keeps its slot. If the
transaction has read it, and what that rests on still stands, it is not looked up again. A key that
is new gets a vacant one, which no other key of the transaction gets. If there is none, the
subtable is split by a transaction of its own before this one is tried again: growth is no conflict.
All keys are staged before that, so that all subtables are split that are crowded: else a
transaction would be tried again as often as it takes splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.stores.rtx.reads import Staging
from limpet.stores.status import AGAIN, DONE, FULL

if TYPE_CHECKING:
    from limpet.stores.rtx.commit import Commit
    from limpet.stores.rtx.hash_keys import HashKeys
    from limpet.stores.rtx.reads import KeyRead


class WriteSet(Staging):
    """The changes of one transaction to one store."""

    def __init__(self, keys: HashKeys, commit: Commit) -> None:
        self.keys = keys
        self.commit = commit

    def stage(self, key: bytes, value: bytes | None) -> int:
        """Stage one key's value, None to delete it: DONE, AGAIN or FULL."""
        keys, commit, reads = self.keys, self.commit, self.commit.reads
        read = None
        if reads is not None:
            read = reads.key_read(keys.link, key)
            if read is not None and commit.is_of_read_epoch() and keys.is_writable(read):
                self._write(read.slot, read.word, key, value, read, False, read.hash)
                return DONE
        # A key that is deleted needs no vacant slot, and what its look-up rests on stays as read.
        slot, word = keys.place_for(key, commit.taken() if value is not None else ())
        if keys.busy_at():
            return AGAIN
        found = keys.value_here()
        if read is not None and read.value != found:
            return AGAIN
        if value is None and found is None:
            # It was put by the transaction itself, which writes nothing for it; so nothing but its
            # read set can show that the key was absent when it committed.
            return DONE if reads is None or keys.note(reads, key, None) else AGAIN
        if not slot:
            commit.crowded.append((keys, key, keys.cramped))
            return FULL
        self._write(slot, word, key, value, read, found is None, keys.place.hash)
        return DONE

    def _write(
        self,
        slot: int,
        word: int,
        key: bytes,
        value: bytes | None,
        read: KeyRead | None,
        inserts: bool,
        hashed: int,
    ) -> None:
        """Stage the change of a slot that has this word."""
        write = self.commit.write_slot(slot, inserts, read is not None)
        write.stage(self.keys, slot, key, value, word, read, inserts, hashed)
