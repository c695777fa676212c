"""A store that a transaction uses: `Used`; and its reads there, if that is ordered: `Reading`.

Private to one client. A store keeps the notes of transactions that are over, with their read sets
and commits, for the next ones (`TxKeys.take_use`).

A read of a hash store is one call (`TxKeys.read`). A read of trees is a `Visitor` of the operation
that looks the key up, as it goes into the read set there, and is looked at again when another
client has changed its leaf (reads.py), or when it is read anew for the next attempt (cut.py).

`PendingWrites` has the writes of a transaction to one store, by key, until its commit stages them
(execution.py). Few keys are compared one by one, and more are found by a dict: most transactions
write a few. The next transaction uses the objects that held the writes again.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from limpet.stores.rtx.cut import Item, Recheck
from limpet.stores.transactions.layout import KEPT
from limpet.stores.transactions.reads import CHANGED, ObjectRead, Reads, TxKeys, Visitor

FEW: Final = 8
"""So many keys are compared one by one."""
NOT_WRITTEN: Final = -1


class PendingWrite:
    """A key, and the value that is written for it; None: it is deleted."""

    def __init__(self) -> None:
        self.key = b""
        self.value: bytes | None = None


class PendingWrites:
    """The writes of a transaction to a store."""

    def __init__(self) -> None:
        self.count = 0
        self.writes: list[PendingWrite] = []
        """The writes; those after the first `count` are of earlier transactions, to be used
        again."""
        self.places: dict[bytes, int] | None = None
        """Where keys are in the list, if they are more than a few."""

    def place_of(self, key: bytes) -> int:
        """Where the write of a key is in the list, or NOT_WRITTEN."""
        if self.places is not None:
            return self.places.get(key, NOT_WRITTEN)
        for place in range(self.count):
            other = self.writes[place]
            if other.key is key or other.key == key:
                return place
        return NOT_WRITTEN

    def write(self, key: bytes, value: bytes | None) -> None:
        """Stage this value for a key, in place of one that is staged already; None: delete the
        key."""
        place = self.place_of(key) if self.count else NOT_WRITTEN
        if place >= 0:
            write = self.writes[place]
            write.value = value
        else:
            if self.count == len(self.writes):
                self.writes.append(PendingWrite())
            write = self.writes[self.count]
            write.key = key
            write.value = value
            # ORDER: a signal handler that raises leaves no places that lack one: all are looked at.
            places, self.places = self.places, None
            self.count += 1
            if places is not None:
                places[key] = self.count - 1
                self.places = places
            elif self.count > FEW:
                self._find_places()

    def _find_places(self) -> None:
        places = {}
        for place in range(self.count):
            write = self.writes[place]
            places[write.key] = place
        self.places = places

    def sort(self) -> None:
        """Put them in the order of keys, when all are written."""
        if self.count > FEW:
            self.writes[: self.count] = sorted(self.writes[: self.count], key=key_of)
            self._find_places()
        else:
            for last in range(1, self.count):
                self._sort_in(last)

    def _sort_in(self, last: int) -> None:
        """Put the write at `last` among those before it, which are in order.

        Keys and values move, and not what holds them: a signal handler that raises here, in the
        pure build, must not leave a write in two places of the next transaction's list.
        """
        write = self.writes[last]
        key, value = write.key, write.value
        while last:
            other = self.writes[last - 1]
            if other.key <= key:
                break
            write.key = other.key
            write.value = other.value
            write = other
            last -= 1
        write.key = key
        write.value = value

    def puts(self) -> int:
        """How many keys are written, and not deleted."""
        count = 0
        for place in range(self.count):
            write = self.writes[place]
            count += write.value is not None
        return count

    def clear(self) -> None:
        """Forget all."""
        for place in range(self.count):
            write = self.writes[place]
            write.key = b""
            write.value = None
        self.places = None
        # ORDER: before the list, as in `Reads.clear`.
        self.count = 0
        if len(self.writes) > KEPT:
            del self.writes[KEPT:]


def key_of(write: PendingWrite) -> bytes:
    """The key, by which writes are sorted."""
    return write.key


class Used:
    """A store that a transaction uses."""

    def __init__(self, keys: TxKeys) -> None:
        self.keys = keys
        self.ordered = keys.ordered
        self.written = PendingWrites()
        """The writes that are to be staged there."""
        self.readings: list[Reading] = []
        """Of one that is ordered: its reads of keys; those after the first `count` are of earlier
        transactions, to be used again."""
        self.count = 0
        self.deletes = False
        """Whether a key may be deleted there."""
        self.store: Any = None
        self.following: Used | None = None
        """The store that the same transaction has used first after this one."""
        self.others: list[Any] | None = None
        """Other handles of the same store that it uses."""
        self.reads: Any = None
        self.commit: Any = None
        """A read set and a commit, for a transaction that uses this store first."""

    def begin(self, store: Any) -> None:
        """Begin the notes of a transaction that uses this handle of the store."""
        self.store = store
        self.following = None

    def end(self) -> None:
        """Forget all of a transaction that is over."""
        for index in range(self.count):
            reading = self.readings[index]
            reading.forget()
        # ORDER: before the list, as in `Reads.clear`.
        self.count = 0
        if len(self.readings) > KEPT:
            del self.readings[KEPT:]
        if self.written.count:
            self.written.clear()
        self.deletes = False
        self.store = self.others = self.following = None
        self.keys.give_use(self)

    def next_reading(self) -> Reading:
        """A read of a key, which it keeps until the end (`looks`)."""
        if self.count == len(self.readings):
            self.readings.append(Reading())
        self.count += 1
        return self.readings[self.count - 1]

    def has(self, store: Any) -> bool:
        """Whether this is a handle of it that was met before."""
        if self.store is store:
            return True
        if self.others is not None:
            for other in self.others:
                if other is store:
                    return True
        return False


class Reading(Visitor):
    """A read of a key, in the operation that looks it up: what was found, in the read set."""

    def assign(
        self, reads: Reads, used: Used, key: bytes, cut: dict[int, ObjectRead] | None
    ) -> None:
        """Use this object for the read of that key. `cut`: how objects were at one moment before
        the function was called, if all that was read before was true then (cut.py); else None."""
        self.reads: Any = reads
        self.used: Any = used
        self.key = key
        self.cut = cut
        """As above; None after a look-up that is not of that moment."""
        self.tree = 0
        """The tree in which it was looked up."""
        self.at = 0
        self.earlier = None
        self.found: Any = None
        """Its result."""

    def forget(self) -> None:
        """Keep nothing of a read that is over."""
        self.reads = self.used = self.cut = self.earlier = self.found = None
        self.key = b""

    def begin(self) -> Any:
        """Look the key up; what was found, or CHANGED."""
        return self.used.keys.at_key(self.key, self)

    def find(self) -> Any:
        """The result of the look-up."""
        return self.used.keys.value_here()

    def item(self) -> Item:
        """The name of the look."""
        return (self.used.keys.link, self.key)

    def to_recheck(self) -> Recheck:
        """How to look again, in the leaf in which it was."""
        keys = self.used.keys
        return Recheck(self.used.store, self.tree, self.key, self.at, keys.value_here, False, None)

    def is_still(self, lock: int, pointer: int) -> bool:
        keys = self.used.keys
        if not keys.recall(self.tree, self.at, lock, pointer, self.key):
            return False
        return bool(self.find() == self.found)

    def repeats(self, other: Visitor) -> bool:
        if type(self) is not Reading or type(other) is not Reading:
            return False
        return bool(other.used is self.used and other.key == self.key)

    def before(self) -> None:
        self.reads.count_first()

    def visit(self) -> Any:
        keys, found = self.used.keys, self.find()
        self.tree = keys.tree_here()
        self.at = keys.busy_at()
        self.found = found
        there = keys.note(self.reads, self.key, found)
        # ORDER: after the note, which is of the node that was read; before what looks at it again.
        self.reads.note_look(self)
        if not there:
            return CHANGED
        return found if self._was_at_cut() or self.reads.hold_again() else CHANGED

    def _was_at_cut(self) -> bool:
        """Whether the leaf is as it was at the cut, at which all was true that was read before."""
        if self.cut is not None:
            known = self.cut.get(self.at)
            noted = self.reads.object_at(self.at)
            if known is not None and noted is not None and known.is_as(noted):
                return True
            self.cut = None
        return False


class RangeReading(Reading):
    """A read of the pairs of a range that are in the leaf with a key, and where the next begins."""

    def __init__(self, tree: int, end: bytes | None) -> None:
        self.number = tree
        self.end = end

    def begin(self) -> Any:
        return self.used.store.tx_keys.at_leaf(self.number, self.key, self)

    def find(self) -> Any:
        return self.used.store.tx_keys.range_here(self.end)

    def item(self) -> Item:
        return (self.used.keys.link, self.number, self.key, self.end)

    def repeats(self, other: Visitor) -> bool:
        if type(other) is not RangeReading:
            return False
        return bool(other.used is self.used and other.item() == self.item())

    def to_recheck(self) -> Recheck:
        find = functools.partial(self.used.store.tx_keys.range_here, self.end)
        return Recheck(self.used.store, self.tree, self.key, self.at, find, True, self.end)
