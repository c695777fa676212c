"""pDPM-Direct: one-sided clients, a remote lock for each key, values written in place.

Tsai, Shan, Zhang: "Disaggregating persistent memory and controlling them remotely", ATC '20, as far
as FUSEE compares itself with it (section 6): the index and all memory are managed by the
clients; conflicting writers wait for each other's locks; a value is written twice, as a redo copy
and then in place; readers take no lock, and check by a checksum whether a pair is whole. A
baseline, as small as is faithful.

The index is a hash table of a fixed size, cut into tables, one on each memory node, chosen by the
key's hash. A table is an array of buckets of 128 bytes:

    0     lock    0, or the id of the client that holds it
    8     redo    0, or the reference of a redo copy (records.py) that is committed
    16    14 slots: bits 56-63 8 bits of the key's hash, bits 0-55 reference of the pair; or 0

None of these words counts up.

A key may be in any slot of two buckets; the first of them, its home, has its lock. (Keys with the
same home share a lock.) The pair of a key is an object on the same node.

Update, holding the lock
    1. write the redo copy, a new object; link it in `redo`: the update is committed
    2. write sizes, checksum, key and value over the old pair
    3. clear `redo`, then the lock; free the redo copy
If the new pair needs an object of another size, or of more than 4 KiB, which is not read by one
verb, the client writes nothing in place: it changes the slot from the old object to the new one.
Insert and delete change the slot from or to 0, also holding the lock.

Reader: read both buckets, then the object. If `redo` is not 0 or the checksum does not hold, an
update is under way, and the reader starts again.

Why that is linearizable: only the holder of the lock changes the key's value, and every change
takes effect at one word, `redo` or the slot. A client that has read `redo` as 0 and then a whole
pair has read the value at one of these moments, or in between.

Invariants: of all slots, at most one holds a given key. A pair whose checksum does not hold has a
redo copy at its home, of the same size class and with the same key.

A kill leaves behind: a lock, perhaps a redo copy, and objects in the client journal (client.py),
each with the address, slot or redo, that was to link it. The paper has no recovery: a client that
waits for the lock of a dead client waits for ever. Here the lock names its holder. A waiting client
asks the membership whether the holder is dead, recovers it, takes its lock over by a CAS, finishes
an update whose redo copy is linked, and unlocks. Any client may do this, and may be killed at it.

Limits of the paper
    - a client that stands still while it holds a lock makes every writer of the key wait, and
      during step 2 every reader too: until its lease is over and it is killed
      (docs/operations.md), or, in a pool with fence="wait", until it goes on
    - nothing is replicated: the redo copy, on the same node, is for kills, not for a lost node
    - clients of one key take turns; there is no order in which they get the lock

Deviations: the redo copy is taken from the allocator for the time of the update, where the paper
keeps two spaces for each value; there is no cache of the places of keys, and no log for inserts.

Round trips without conflict: get 2 (1 when no fingerprint matches), update 4 (3 when not in place),
insert 2, delete 3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from limpet.shm.endpoint.words import LARGE_CLASS, REFERENCE_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt, StoreFull
from limpet.stores.baselines.pdpm.buckets import REDO, BucketPair, Buckets
from limpet.stores.baselines.pdpm.parameters import BUCKET_SIZE, PdpmParameters
from limpet.stores.core.base import as_bytes
from limpet.stores.core.names import LARGER, shown
from limpet.stores.core.status import (
    AGAIN,
    DONE,
    EXISTS,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    UPDATE,
)

IN_PLACE_MAX: Final = 4096
"""Bytes of the largest object that is written in place; one verb reads such an object."""


class Change(NamedTuple):
    """The outcome of a change under the lock. If it has posted a CAS, with this `ticket`, it holds
    only if that finds the word `expected`.

    `new`, `old`: places in the client journal, of the object that it links, and of the one that it
    unlinks.
    """

    outcome: int
    ticket: tuple[int, ...] = ()
    expected: int = 0
    new: int = -1
    old: int = -1


class Pdpm(Buckets):
    """The `pdpm` store. `PdpmParameters`."""

    Parameters = PdpmParameters

    # ---- operations -----------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 2 round trips; 1 when no fingerprint matches."""
        data = as_bytes("key", key)
        place = self._place(data)
        value = self._run(place, lambda: self._get_once(place, data))
        return default if value is None else value

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there. 3 round trips."""
        data = as_bytes("key", key)
        place = self._place(data)
        if self._run(place, lambda: self._delete_once(place, data)) == MISSING:
            raise KeyError(key)

    def recover(self) -> dict[str, Any]:
        """Recover dead clients, and finish and unlock the keys they had locked in this store."""
        found: dict[str, Any] = self.pool.recover()
        for table in range(self.parameters.tables):
            with contextlib.suppress(NodeFailed):  # its locks are gone with it
                for bucket in np.flatnonzero(self._table(table)[:, 0]).tolist():
                    self._look_after(self.tables[table] + bucket * BUCKET_SIZE)
        return found

    def _write(self, key: Any, value: Any, mode: int) -> int:
        key, value = as_bytes("key", key), as_bytes("value", value)
        size = self.objects.size_of(key, value)
        place = self._place(key)

        def once() -> int:
            return self._locked(place, lambda: self._change_locked(place, key, value, size, mode))

        outcome = self._run(place, once, key, size, mode)
        if outcome == FULL:
            raise StoreFull(
                f"{self.name}: no free slot for the key {shown(key)} among its 28; the store was "
                f"made with capacity {self.parameters.capacity}; {LARGER}"
            )
        return int(outcome)

    def _run(
        self,
        place: BucketPair,
        once: Callable[[], Any],
        key: bytes = b"",
        size: int = 0,
        mode: int = INSERT,
    ) -> Any:
        """Make attempts at an operation until one has a result; that result."""
        self._count(1, size > 0)
        attempt = 0
        while True:
            with self.client:
                self.require_there()
                outcome = once()
            if outcome == NO_MEMORY:
                self.have_memory(key, mode, place.node, size)
            elif outcome == AGAIN:
                attempt += 1
                self.retries += 1
                self._look_after(place.home)
                self.endpoint.pause(attempt)
            else:
                return outcome

    def _get_once(self, place: BucketPair, key: bytes) -> Any:
        self._read(place)
        redo = self.words[1]
        slot, word = self._match(place, key)
        if not slot:
            return None
        if redo:
            self._require_lock(place, redo)
            return AGAIN
        if self._is_torn(word):
            self._require_whole(place, slot, word, key)
            return AGAIN
        return self.objects.value()

    def _is_torn(self, word: int) -> bool:
        """Whether the object that was read, and to which this word leads, is being overwritten."""
        return self._is_overwritten(word) and not self.objects.intact()

    def _require_lock(self, place: BucketPair, redo: int) -> None:
        """Raise StoreCorrupt if no client has the lock under which there is this redo copy.

        While we are pinned, no other redo copy has the same address.
        """
        held = self.endpoint.post_load(place.home)
        # ORDER: the redo copy after the lock, on the same node.
        copy = self.endpoint.post_load(place.home + REDO)
        self.endpoint.wait()
        if not self.endpoint.result(held) and self.endpoint.result(copy) == redo:
            raise StoreCorrupt(
                f"{self.name}: the bucket at {place.home:#x} has a redo copy and no lock; save "
                "what is left, and make the store again"
            )

    def _require_whole(self, place: BucketPair, slot: int, word: int, key: bytes) -> None:
        """Raise StoreCorrupt if a pair's checksum does not hold, and no client is writing it."""
        if not self._settled(word & REFERENCE_MASK, place.home) and (
            self.endpoint.load(slot) == word
        ):
            raise StoreCorrupt(
                f"{self.name}: the checksum of the pair of {shown(key)} does not hold; put the key "
                "anew"
            )

    # ---- changing -------------------------------------------------------------------------------

    def _locked(self, place: BucketPair, work: Callable[[], Change]) -> int:
        """The result of `work`, with the lock held and the buckets read; AGAIN: it was locked, or
        another client has changed the slot."""
        try:
            ticket = self._post_lock(place.home)
            # ORDER: after the lock, on the same node.
            self._read(place)
            if self.endpoint.result(ticket):
                return AGAIN
            # CRASH(locked): a client that wants the lock finds its holder dead, and takes it over.
            self.membership.progress()
            change = work()
        except BaseException:
            if self.endpoint.load(place.home) == self.client.ident:
                self._finish(place.home)
            raise
        # ORDER: after the change of the slot, on the same node.
        self.endpoint.store(place.home, 0)
        self.endpoint.wait()
        won = not change.ticket or self.endpoint.result(change.ticket[0]) == change.expected
        if not self.endpoint.durable:
            self._settle(change, won)
        return change.outcome if won else AGAIN

    def _settle(self, change: Change, won: bool) -> None:
        """Free what is not linked any more, without a look at the links."""
        if won:
            if change.new >= 0:
                self.client.drop(change.new)
            if change.old >= 0:
                self.client.release(change.old)
        else:
            if change.old >= 0:
                self.client.drop(change.old)  # the client that has unlinked it frees it
            if change.new >= 0:
                self.client.retarget(change.new, 0)

    def _post_lock(self, home: int) -> int:
        """Post the CAS that takes a lock, which finds 0 if it does; its ticket."""
        return int(self.endpoint.post_cas(home, 0, self.client.ident))

    def _change_locked(
        self, place: BucketPair, key: bytes, value: bytes, size: int, mode: int
    ) -> Change:
        slot, word = self._match(place, key)
        if slot and mode == INSERT:
            return Change(EXISTS)
        if not slot and mode == UPDATE:
            return Change(MISSING)
        vacant = self._vacant(place)
        if not (slot or vacant):
            return Change(FULL)
        reference = self.allocator.allocate(place.node, size)
        if not reference:
            return Change(NO_MEMORY)
        self.objects.write(reference, key, value)
        if slot and not (word ^ reference) >> 48 & 0xFF and self._is_overwritten(word):
            self._overwrite(place, word & REFERENCE_MASK, key, value, reference)
            return Change(DONE, old=0)
        self.client.retarget(0, slot or vacant)
        old = self.client.log(word & REFERENCE_MASK, slot) if slot else -1
        # LINEARIZES: insert, and update with a pair of another size. A vacant slot may have gone to
        # a key with another home.
        new = place.fingerprint << 56 | reference
        # CRASH(updated): the old object is in the client journal and no longer linked.
        ticket = self.endpoint.post_cas(slot or vacant, word, new)
        return Change(DONE, (ticket,), word, 0, old)

    def _is_overwritten(self, word: int) -> bool:
        """Whether an object of this size is overwritten in place."""
        size_class = word >> 48 & 0xFF
        return size_class != LARGE_CLASS and self.heap.sizes[size_class] <= IN_PLACE_MAX

    def _overwrite(
        self, place: BucketPair, old: int, key: bytes, value: bytes, reference: int
    ) -> None:
        redo = place.home + REDO
        self._commit(redo, reference)
        # CRASH(committed): the client that takes the lock over writes the value in place.
        self.endpoint.wait()
        self._put_in_place(redo, old, key, value)

    def _commit(self, redo: int, reference: int) -> None:
        """Make an object of the client journal the redo copy."""
        self.client.retarget(0, redo)
        # LINEARIZES: update
        self.endpoint.store(redo, reference)

    def _put_in_place(self, redo: int, old: int, key: bytes, value: bytes) -> None:
        """Overwrite the old object from the redo copy, and give up the redo copy."""
        self.objects.write(old, key, value)
        # ORDER: write the whole value in place, then give up the redo copy, then the lock.
        self.endpoint.store(redo, 0)

    def _delete_once(self, place: BucketPair, key: bytes) -> int:
        return self._locked(place, lambda: self._remove(place, key))

    def _remove(self, place: BucketPair, key: bytes) -> Change:
        slot, word = self._match(place, key)
        if not slot:
            return Change(MISSING)
        old = self.client.log(word & REFERENCE_MASK, slot)
        # LINEARIZES: delete
        # CRASH(deleted): the old object is in the client journal and no longer linked.
        return Change(DONE, (self.endpoint.post_cas(slot, word, 0),), word, old=old)

    # ---- locks of dead clients ------------------------------------------------------------------

    def _look_after(self, home: int) -> None:
        """Finish for the lock's holder if it is gone, or was fenced by the pool's policy."""
        self.pool.exclusively(lambda: self._take_over(home))

    def _take_over(self, home: int) -> None:
        holder = self.while_there(self.endpoint.load, home)
        if holder and self._is_gone(holder):
            self.while_there(self._take_from, home, holder)

    def _take_from(self, home: int, holder: int) -> None:
        if self.endpoint.cas(home, holder, self.client.ident) == holder:
            # CRASH(locked): the next one takes it over from us.
            self._finish(home)

    def _is_gone(self, holder: int) -> bool:
        return bool(self.membership.gone(holder, f"a lock of {self.name!r}"))

    def _finish(self, home: int) -> None:
        """Write the value committed under this lock, which we hold, in place, and unlock.

        A redo copy was whole when it was linked. If its checksum does not hold, its memory was
        damaged, and it is given up: written in place it would get a checksum of its own. Its update
        has not returned, and no reader has seen its value. The old pair is whole, or its readers
        find that it is not.
        """
        redo = home + REDO
        reference = self.endpoint.load(redo)
        if reference:
            self.objects.load(reference)
            if self.objects.fits(reference) and self.objects.intact():
                key, value = self.objects.key(), self.objects.value()
                place = self._place(key)
                self._read(place)
                slot, word = self._match(place, key)
                if not slot:
                    raise StoreCorrupt(
                        f"{self.name}: a redo copy of {shown(key)}, which is not there"
                    )
                self.client.log(reference, redo)
                self._put_in_place(redo, word & REFERENCE_MASK, key, value)
            else:
                self.client.log(reference, redo)
                self.endpoint.store(redo, 0)
        self.endpoint.store(home, 0)
        self.endpoint.wait()
