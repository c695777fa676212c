"""The read set of a transaction, and whether all of it is still true at one moment.

The data of an object (a node of a tree) is as it was when its lock and its pointer are: lock states
never come again (lllock.py). So a second look at all of them shows that all was true when the last
one was read for the first time. A leaf has many keys, and a change of another key is no conflict:
if the object is another one, the keys that were read are looked for in the node that it has now
(`_renew`). If each has the value that it had, the read set has the new lock and pointer from then
on, and all is looked at once more. A range is read again likewise. An absence that was
only noted at the commit, and what was read before the function was called, are not.

A key of a hash store has no version, and its slot's word can come again: when the pair was freed
and its memory used for another one. So what a look-up rests on, its *witness*, counts for as long
as no memory can have been used again since: as long as the epoch is the one in which it was read
(epoch.py; vacant slots have words of their own, transactions/hash_keys.py). It is the epoch itself
that tells, and not our pin: a client that stands still before it sets its pin pins one that was
over long ago. Else the keys are looked up again, and must have the values that they had; then their
new witnesses are looked at once more, in the same operation, so all was true in between. It does
not matter then whether a subtable was split.

Each look costs as much as there is to look at, and there is one with every read, unless no client
has changed anything since the last one, or since before the first read (changes.py). Reads from
before that, which are recalled (cut.py), take a look. So a transaction of n reads takes O(n) looks
while no client writes to the stores of transactions, and beside writers n * n / 2 at most.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final

from limpet.shm.endpoint.layout import EPOCH
from limpet.stores.core.status import BATCH
from limpet.stores.transactions.changes import changes
from limpet.stores.transactions.layout import KEPT, LOCKED, LOGGED, UNKNOWN
from limpet.stores.transactions.staged import Borrowed

FIRST_MAX: Final = 4
"""Changes of so many clients are added up before the first look-up."""
ROUNDS_MAX: Final = 8
"""How often all is looked at in one operation while others write beside it."""
LOOKS: Final = BATCH
"""So many reads are looked at again in a phase."""
FILLED: Final = 7
"""A list that has fewer entries gives back its memory when it is emptied, and takes it again."""
FEW: Final = 8
"""So many keys are compared one by one; more are found by a dict for each store."""
SAME: Final = 0
RENEWED: Final = 1
GONE: Final = 2
"""All reads are as they were; were read again, with the same values; or one has another value."""
CHANGED: Final = object()
"""The result of a read after which what was read is not true at one moment any more."""


class ObjectRead:
    """An object's lock and pointer, and for which key of which store it was read."""

    def note(self, at: int, lock: int, pointer: int, store: Any, key: bytes) -> None:
        """Note the read of an object: its lock and its pointer."""
        self.at = at
        self.lock = lock
        self.pointer = pointer
        self.store = store
        self.key = key
        self.held = False
        """Whether the transaction that commits has locked it."""
        self.fixed = False
        """Whether something was read there of which there is no `Visitor`."""
        self.last: Visitor | None = None
        """The last look into it; the others are `earlier`."""
        self.copy: Borrowed | None = None
        """A copy of its data, with the lock `copied`."""
        self.copied = 0

    def is_as(self, other: ObjectRead) -> bool:
        """Whether an object was the same when it was read another time."""
        return self.lock == other.lock and self.pointer == other.pointer

    def is_at(self, lock: int, pointer: int) -> bool:
        """Whether it was read with this lock and this pointer."""
        return self.lock == lock and self.pointer == pointer

    def forget(self) -> None:
        """Keep none of the store and the key, as their transaction is over."""
        self.store = self.last = None
        self.key = b""
        if self.copy is not None:
            copy, self.copy = self.copy, None
            copy.give_back()


class KeyRead:
    """A key's value, or None, and the witness of its look-up; `keys`: of which store."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.key = b""
        self.value: bytes | None = None
        self.held = False
        """Whether the transaction that commits holds the slot of the key."""
        self.hash = 0
        """Of the key. From here on, all is as `attest` found it."""
        self.entry = 0
        self.pointer = 0
        """Of the directory: the address of the entry's pointer, and that."""
        self.slot = 0
        self.word = 0
        """Of a key that is there: its slot, and the word of that."""
        self.first = 0
        self.second = 0
        self.words: bytes | None = None
        """Of a key that is not: the addresses of both combined buckets, and all words there; None:
        there was no subtable."""
        self.ticket = self.entry_ticket = 0
        """Of the look at the slot, and at the entry."""

    def describe(self, keys: TxKeys, key: bytes, value: bytes | None) -> None:
        """Note the read of that key; `attest` adds its witness."""
        self.keys = keys
        self.key = key
        self.value = value
        self.held = False

    def forget(self) -> None:
        """Keep none of the key, the value and the words, as their transaction is over."""
        self.key = b""
        self.value = self.words = None


class ReadPlace:
    """Where something was in the way: `at` as `Repair.repair_if_held` takes it. `store` is None for
    a store that was missing and has been made."""

    def __init__(self, store: Any, key: bytes, at: int) -> None:
        self.note(store, key, at)

    def note(self, store: Any, key: bytes, at: int) -> None:
        """Note that place."""
        self.store = store
        self.key = key
        self.at = at


class Staging:
    """The changes of a transaction to one store, as they are staged in its commit."""

    def stage(self, key: bytes, value: bytes | None) -> int:
        """Stage one key's value, None to delete it: DONE, AGAIN or FULL."""
        raise NotImplementedError


class Visitor:
    """A look into a leaf of a tree: it works in the operation that does it."""

    def __init__(self) -> None:
        self.at = 0
        """The object of the leaf."""
        self.earlier: Visitor | None = None
        """The look before this one into the same object."""

    def before(self) -> None:
        """In the operation, before it looks the key up."""

    def visit(self) -> Any:
        """Do it; what it returns is what `at_key` returns."""
        raise NotImplementedError

    def __call__(self) -> Any:
        return self.visit()

    def is_still(self, lock: int, pointer: int) -> bool:
        """Whether its result is the same in the node that the object has now, with this lock and
        pointer. In the operation that has read these."""
        raise NotImplementedError

    def repeats(self, other: Visitor) -> bool:
        """Whether another look, into the same object, is at the same."""
        return False


class TxKeys:
    """The keys of a store, as transactions read and write them: a store that takes part has one.

    Of a hash store: transactions/hash_keys.py. Of trees: sherman/tree_keys.py.
    """

    def __init__(self, store: Any, link: int) -> None:
        """`link`: how a client journal names the store (stores/fusee/links.py)."""
        self.store = store
        self.link = link
        self.locks: Any = store.locks
        self.ordered: bool = store.ordered
        self.spare_uses: list[Any] = [None] * FILLED
        """Notes of transactions on this store that no transaction uses (uses.py), behind FILLED
        times None."""

    def take_use(self, kind: type) -> Any:
        """Notes of this class that no transaction uses; None: there are none."""
        return _spare(self.spare_uses, kind)

    def give_use(self, use: Any) -> None:
        """A transaction is over that used these notes."""
        self.spare_uses.append(use)

    def read(self, reads: Reads, key: bytes) -> Any:
        """Of a store that is not ordered: the value of a key, None: it has none, or CHANGED; it is
        in the read set then. An operation of its own."""
        raise NotImplementedError

    def at_key(self, key: bytes, visitor: Visitor) -> Any:
        """Of a store that is ordered: have `visitor` work before and after the key is looked up, in
        one operation; what it returns."""
        raise NotImplementedError

    def copied(self) -> Borrowed:
        """Of a store that is ordered: a copy of the leaf that was read last, which is not looked at
        any more."""
        raise NotImplementedError

    def value_here(self) -> bytes | None:
        """The value of the key that was looked up last; None: it has none."""
        raise NotImplementedError

    def note(self, reads: Reads, key: bytes, value: Any) -> bool:
        """Note the last look-up in the read set; False: the key is not as it was."""
        raise NotImplementedError

    def refuse(self, key: bytes, value: bytes) -> None:
        """Raise KeyTooLarge or ValueTooLarge if the pair is."""
        raise NotImplementedError

    def busy_at(self) -> int:
        """The object or slot in the way of the last look-up, for `Repair.repair_if_held`; or 0."""
        raise NotImplementedError

    def tree_here(self) -> int:
        """Of a store that is ordered: the tree in which the last look-up was."""
        raise NotImplementedError

    def make_room(self, key: bytes, subtable: int) -> None:
        """After FULL, for each key that is `crowded` in the commit. Raises StoreFull."""

    def tidy(self, key: bytes) -> None:
        """After the key was deleted."""

    # ---- keys without a version (hash stores) ----------------------------------------------------

    def look_up(self, key: bytes) -> bytes | None:
        """The value of a key, or None, which counts if nothing is busy. Within an operation."""
        raise NotImplementedError

    def attest(self, read: KeyRead) -> None:
        """Note in `read` the words that the last look-up rests on."""
        raise NotImplementedError

    def post_stands(self, read: KeyRead, row: int) -> None:
        """Post the look at what a look-up rests on; `row`: its number in the phase, below LOOKS."""
        raise NotImplementedError

    def stands(self, read: KeyRead, row: int) -> bool:
        """After the `wait` of `post_stands`: whether that is as it was."""
        raise NotImplementedError


def _spare(spares: list[Any], kind: type) -> Any:
    """Take an object of this class from the end of a list; None: there is none."""
    try:
        spare = spares.pop()
    except IndexError:  # other threads were faster, and have not put back what they found
        return None
    if spare is None:
        spares.append(None)
    return spare if type(spare) is kind else None


class StoreReads:
    """The keys of one store that a transaction has read; `link`: of the store."""

    def __init__(self, link: int) -> None:
        self.link = link
        self.keys: dict[bytes, KeyRead] = {}


class Reads:
    """The read set of a transaction."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.endpoint = client.endpoint
        self.objects: list[ObjectRead] = []
        """The objects; those after the first `objects_count` are of earlier transactions, to be
        used again."""
        self.objects_count = 0
        self.places: dict[int, ObjectRead] | None = None
        """The objects by address, if they are more than a few."""
        self.looks: list[Visitor] = []
        """The looks into objects, in their order."""
        self.keys: list[KeyRead] = []
        """The keys; those after the first `count` are of earlier transactions, to be used again."""
        self.count = 0
        self.stores: list[StoreReads] | None = None
        """The keys by store, if they are more than a few."""
        self.epoch = 0
        """As long as it lasts, nothing is used again that the witnesses name."""
        self.counted = UNKNOWN
        """The sum of all changes when all was seen to be true (`hold_again`), or before the first
        look-up (`count_first`): unless it has gone up since, all is true."""
        self.copies_taken = 0
        """So many copies of objects were taken for what is written there."""
        self.drops = 0
        """The word DROPS, as we knew it when no store was dropped in which something was read."""
        self.missing: Callable[[], Any] | None = None
        """Looks for a store that was found missing, and with it every key that it could have."""
        self.renewed: ObjectRead | None = None
        """The last object that was read again in a look at all."""
        self.changed: Any = None
        """The place where something was found to have changed."""
        self.pairs = array("Q", bytes(16 * LOOKS))
        """Lock and pointer of each object that is looked at again in a phase."""

    def clear(self) -> None:
        """Forget all: be the read set of another transaction."""
        for index in range(self.objects_count):
            noted = self.objects[index]
            noted.forget()
        # ORDER: counts before lists: a signal handler that raises leaves none beyond its list.
        self.objects_count = 0
        if len(self.objects) > KEPT:
            del self.objects[KEPT:]
        self.places = None
        if self.looks:
            self.looks = []
        for index in range(self.count):
            read = self.keys[index]
            read.forget()
        self.count = 0
        if len(self.keys) > KEPT:
            del self.keys[KEPT:]
        self.stores = None
        self.epoch = 0
        self.counted = UNKNOWN
        self.copies_taken = 0
        self.missing = None
        self.renewed = None
        self.changed = None

    def object_at(self, at: int) -> ObjectRead | None:
        """How an object was read; None: it was not."""
        if self.places is not None:
            return self.places.get(at)
        for index in range(self.objects_count):
            read = self.objects[index]
            if read.at == at:
                return read
        return None

    def has_no_object_but(self, at: int) -> bool:
        """Whether no object was read, or this one alone."""
        if self.objects_count > 1:
            return False
        return not self.objects_count or self.object_at(at) is not None

    def note_object(self, at: int, lock: int, pointer: int, store: Any, key: bytes) -> bool:
        """Note an object; False: it was read before, and has changed. Within an operation."""
        before = self.object_at(at)
        if before is not None:
            if before.lock == lock and before.pointer == pointer:
                return True
            if self._renew(before, lock, pointer):
                return True
            self.changed = ReadPlace(store, key, at)
            return False
        if self.objects_count == len(self.objects):
            self.objects.append(ObjectRead())
        read = self.objects[self.objects_count]
        read.note(at, lock, pointer, store, key)
        self.objects_count += 1
        if self.places is not None:
            self.places[at] = read
        elif self.objects_count > FEW:
            self.places = {}
            for index in range(self.objects_count):
                read = self.objects[index]
                self.places[read.at] = read
        return True

    def keep(self, at: int, lock: int, keys: TxKeys) -> None:
        """Keep a copy of the data of an object that was noted with this lock, if there is none."""
        noted = self.object_at(at)
        assert noted is not None
        if noted.copy is None:
            noted.copied = lock
            noted.copy = keys.copied()

    def take_copy(self, at: int) -> Borrowed | None:
        """The copy of the data of an object, as the transaction has read it, for the caller to give
        back; None: there is none."""
        noted = self.object_at(at)
        if noted is None or noted.copy is None or noted.copied != noted.lock:
            return None
        # ORDER: a signal handler that raises has no copy be given back twice.
        copy, noted.copy = noted.copy, None
        self.copies_taken += 1
        return copy

    def note_recalled(self, at: int, read: ObjectRead) -> bool:
        """As `note_object`, for an object that was read before the function was called (cut.py)."""
        # It may have changed before the changes were added up.
        self.counted = UNKNOWN
        before = self.object_at(at)
        if before is not None and not before.is_as(read):
            # it was read anew, and its old node may be in use elsewhere by now
            self.changed = ReadPlace(read.store, read.key, at)
            return False
        return self.note_fixed(at, read.lock, read.pointer, read.store, read.key)

    def note_fixed(self, at: int, lock: int, pointer: int, store: Any, key: bytes) -> bool:
        """As `note_object`, for a read that has no `Visitor` in `looks`."""
        if not self.note_object(at, lock, pointer, store, key):
            return False
        noted = self.object_at(at)
        assert noted is not None
        noted.fixed = True
        return True

    def renew(self, at: int, lock: int) -> bool:
        """Whether an object that was read has this lock now, and what was read there is the same
        as in the node that it has. Within an operation."""
        read = self.object_at(at)
        assert read is not None
        # ORDER: the lock before the pointer.
        self.endpoint.post_read(at, self.pairs, 2)
        self.endpoint.wait()
        return self.pairs[0] == lock and self._renew(read, lock, self.pairs[1])

    def _renew(self, read: ObjectRead, lock: int, pointer: int) -> bool:
        """Note this lock and pointer as the object's, if what was read there is the same in the
        node that the object has now. Within an operation."""
        if read.fixed or (lock & LOCKED and lock & LOGGED):
            return False
        # what was there is the store's as long as that was not dropped when we were pinned
        read.store.require_there()
        look = read.last
        while look is not None:
            if not look.is_still(lock, pointer):
                return False
            look = look.earlier
        read.lock = lock
        read.pointer = pointer
        return True

    def note_look(self, look: Visitor) -> None:
        """Note a look into an object that was noted, so that it can be done again; unless it
        repeats one of the last FEW."""
        read = self.object_at(look.at)
        assert read is not None
        other = read.last
        compared = 0
        while other is not None and compared < FEW and not look.repeats(other):
            other = other.earlier
            compared += 1
        if other is None or compared == FEW:
            look.earlier = read.last
            read.last = look
            self.looks.append(look)

    def next_key(self) -> KeyRead:
        """One that is described, and noted then."""
        if self.count == len(self.keys):
            self.keys.append(KeyRead())
        return self.keys[self.count]

    def note_key(self, key: bytes, read: KeyRead) -> bool:
        """Note a key that `next_key` gave; False: it was read before, and has changed."""
        before = None
        if self.count:
            before = self.key_read(read.keys.link, key)
        elif not self.epoch:
            self.epoch = self._pinned()
        if before is None:
            self.count += 1
            if self.stores is not None:
                self._of_store(read.keys.link).keys[key] = read
            elif self.count > FEW:
                self._sort_by_store()
        else:
            same, store = before.value == read.value, read.keys.store
            read.forget()  # only those that count are forgotten when the transaction is over
            if not same:
                self.changed = ReadPlace(store, key, 0)
                return False
        return True

    def key_read(self, link: int, key: bytes) -> KeyRead | None:
        """How a key of that store was read; None: it was not."""
        if self.stores is not None:
            for store in self.stores:
                if store.link == link:
                    return store.keys.get(key)
            return None
        for index in range(self.count):
            read = self.keys[index]
            if (read.key is key or read.key == key) and read.keys.link == link:
                return read
        return None

    def _sort_by_store(self) -> None:
        self.stores = []
        for index in range(self.count):
            read = self.keys[index]
            self._of_store(read.keys.link).keys[read.key] = read

    def _of_store(self, link: int) -> StoreReads:
        assert self.stores is not None
        for store in self.stores:
            if store.link == link:
                return store
        made = StoreReads(link)
        self.stores.append(made)
        return made

    def is_of_this_epoch(self) -> bool:
        """Whether nothing that the witnesses name can have been used again. Within an operation."""
        # ORDER: the epoch after our pin, which may be older: nothing is used again from here on.
        return self.endpoint.load(EPOCH) == self.epoch

    def _pinned(self) -> int:
        """The epoch that we pin."""
        return int(self.client.epoch)

    def hold(self) -> bool:
        """Whether all that was read is true, at some moment of this call. Within an operation.

        Objects that the transaction has locked need no look; nor do keys whose slots it holds.
        Raises StoreDropped.
        """
        if self.client.drops != self.drops:
            self._require_there()
        pinned = False
        for _ in range(ROUNDS_MAX):
            # A round in which nothing had to be read again shows that all was true when it began:
            # what was read before it is as it was when the round came to it.
            if not self._still_missing():
                return False
            keys = self._look_at_keys(pinned)
            if keys == GONE:
                return False
            objects = self._look_at_objects()
            if objects == GONE:
                return False
            if keys == SAME and objects == SAME:
                return True
            pinned = pinned or keys == RENEWED
        if self.renewed is not None:
            self.changed = ReadPlace(self.renewed.store, self.renewed.key, self.renewed.at)
        return False

    def _require_there(self) -> None:
        """Raise StoreDropped if a store was dropped in which something was read: its memory may be
        as it was."""
        for index in range(self.objects_count):
            noted = self.objects[index]
            noted.store.require_there()
        for index in range(self.count):
            read = self.keys[index]
            read.keys.store.require_there()
        self.drops = self.client.drops

    def count_first(self) -> None:
        """Before the first look-up: add up the changes, if there is little to add up."""
        if not self.count:
            # ORDER: before the first key is looked up: what it names is not used again from here on
            # until the epoch is another one, whether we are pinned or not.
            self.epoch = self.endpoint.load(EPOCH)
            if not self.objects_count:
                self.drops = self.client.drops
                self.counted = changes(self.client, FIRST_MAX)

    def hold_unpinned(self) -> bool:
        """As `hold_again`, for a client that is not pinned, while the other threads are kept out.
        It has a pin only if there is something to look at."""
        count = self.count + self.objects_count
        if self.missing is None:
            if count == 1:
                return True
            # ORDER: as in `hold_again`
            if self.counted != UNKNOWN and changes(self.client, 2 * count) == self.counted:
                return True
        try:
            self.client.pin()
            return self.hold_again()
        finally:
            self.client.unpin()

    def hold_again(self) -> bool:
        """As `hold`, after each read. Nothing is read again as long as no client has changed
        anything since the last time, or since before the first look-up (changes.py)."""
        count = self.count + self.objects_count
        if self.missing is not None:
            return self.hold()
        if count == 1:
            return True  # what was just read was true then
        # ORDER: what was read last, before the sum; and the sum before the looks.
        now = changes(self.client, 2 * count)
        if now != UNKNOWN and now == self.counted:
            return True
        self.counted = UNKNOWN
        if not self.hold():
            return False
        self.counted = now
        return True

    def _still_missing(self) -> bool:
        """Whether a store that was found missing has not been made since."""
        if self.missing is None:
            return True
        scope = self.endpoint.background(True)
        try:
            made = self.missing()
        finally:
            self.endpoint.background(scope)
        if made is not None:
            self.changed = ReadPlace(None, b"", 0)
        return made is None

    def _look_at_objects(self) -> int:
        """Look at the objects, LOOKS in a phase: SAME, RENEWED or GONE."""
        endpoint = self.endpoint
        self.renewed = None
        first = 0
        while first < self.objects_count:
            end = min(first + LOOKS, self.objects_count)
            waits = False
            for index in range(first, end):
                read = self.objects[index]
                if not read.held:
                    # ORDER: the lock before the pointer.
                    endpoint.post_read(read.at, self.pairs, 2, 2 * (index - first))
                    waits = True
            if waits:
                endpoint.wait()
            for index in range(first, end):
                read = self.objects[index]
                place = 2 * (index - first)
                if read.held or read.is_at(self.pairs[place], self.pairs[place + 1]):
                    continue
                if not self._renew(read, self.pairs[place], self.pairs[place + 1]):
                    self.changed = ReadPlace(read.store, read.key, read.at)
                    return GONE
                self.renewed = read
            first = end
        return SAME if self.renewed is None else RENEWED

    def _look_at_keys(self, pinned: bool) -> int:
        """Look at the keys: SAME, RENEWED or GONE. `pinned`: they were looked up since our pin."""
        if not self.count or self._are_held():
            return SAME
        if (pinned or self.is_of_this_epoch()) and self._stand():
            return SAME
        if not self._look_again():
            return GONE
        self.epoch = self._pinned()
        return RENEWED

    def _are_held(self) -> bool:
        """Whether the transaction that commits holds the slots of all keys."""
        for index in range(self.count):
            read = self.keys[index]
            if not read.held:
                return False
        return True

    def _stand(self) -> bool:
        """Whether what the look-ups of the keys rest on is as it was; LOOKS keys in a phase."""
        first = 0
        while first < self.count:
            end = min(first + LOOKS, self.count)
            waits = False
            for index in range(first, end):
                read = self.keys[index]
                if not read.held:
                    read.keys.post_stands(read, index - first)
                    waits = True
            if waits:
                self.endpoint.wait()
            for index in range(first, end):
                read = self.keys[index]
                if not read.held and not read.keys.stands(read, index - first):
                    self.changed = ReadPlace(read.keys.store, read.key, 0)
                    return False
            first = end
        return True

    def _look_again(self) -> bool:
        """Look all keys up; whether they have the values that they had."""
        for index in range(self.count):
            read = self.keys[index]
            if read.held:
                continue
            # its memory is the store's as long as that was not dropped when we were pinned
            read.keys.store.require_there()
            value = read.keys.look_up(read.key)
            busy = read.keys.busy_at()
            if busy or value != read.value:
                self.changed = ReadPlace(read.keys.store, read.key, busy)
                return False
            read.keys.attest(read)
        return True
