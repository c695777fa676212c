"""The read set of a transaction, and whether all of it is still true at one moment.

The data of an object (a node of a tree) is as it was when its lock and its pointer are: lock states
never come again (lllock.py). So a second look at all of them shows that all was true when the last
one was read for the first time.

A key of a hash store has no version, and its slot's word can come again: when the pair was freed
and its memory used for another one. So what a look-up rests on, its *witness*, counts for as long
as no memory can have been used again since: as long as it is the epoch in which it was read
(epoch.py; vacant slots have words of their own, rtx/hash_slots.py). It is the epoch itself that
tells, and not our pin: a client that stands still before it sets its pin pins one that was over
long ago. Else the keys are looked up again, and must have the values that they had; then their new
witnesses are looked at once more, in the same operation, so all was true in between. It does not
matter then whether a subtable was split.

Known limits: each look costs as much as there is to look at, and there is one with every read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from limpet.shm.endpoint.layout import EPOCH
from limpet.stores.rtx.layout import POINTER

ROUNDS_MAX: Final = 8
"""How often keys are looked up again in one operation while others write beside them."""


class ObjectRead:
    """An object's lock and pointer, and for which key of which store it was read."""

    def __init__(self, lock: int, pointer: int, store: Any, key: bytes) -> None:
        self.lock = lock
        self.pointer = pointer
        self.store = store
        self.key = key

    def is_as(self, other: ObjectRead) -> bool:
        """Whether an object was the same when it was read another time."""
        return self.lock == other.lock and self.pointer == other.pointer


class KeyRead:
    """A key's value, or None, and what that rests on; `keys`: of which store."""

    def __init__(self, value: bytes | None, witness: tuple[Any, ...], keys: TxKeys) -> None:
        self.value = value
        self.witness = witness
        self.keys = keys


class ReadPlace:
    """Where something was in the way: `at` as `Repair.look` takes it. `store` is None for a store
    that was missing and has been made."""

    def __init__(self, store: Any, key: bytes, at: int) -> None:
        self.store = store
        self.key = key
        self.at = at


class Visitor:
    """Work in the operation that has looked a key up."""

    def visit(self) -> Any:
        """Do it; what it returns is what `at_key` returns."""
        raise NotImplementedError

    def __call__(self) -> Any:
        return self.visit()


class TxKeys:
    """The keys of a store, as transactions read and write them: a store that takes part has one.

    Of a hash store: rtx/hash_keys.py. Of trees: sherman/tree_keys.py.
    """

    def __init__(self, store: Any, link: int) -> None:
        """`link`: how a client journal names the store (stores/fusee/links.py)."""
        self.store = store
        self.link = link

    def at_key(self, key: bytes, visitor: Visitor) -> Any:
        """Look the key up, then call `visitor` in the same operation; its result."""
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
        """The object or slot in the way of the last look-up, as `Repair.look` takes it; or 0."""
        raise NotImplementedError

    def make_room(self, key: bytes, subtable: int) -> None:
        """After FULL, for each key that is `crowded` in the commit. Raises StoreFull."""

    def tidy(self, key: bytes) -> None:
        """After the key was deleted."""

    # ---- keys without a version (hash stores) ----------------------------------------------------

    def look_up(self, key: bytes) -> bytes | None:
        """The value of a key, or None, which counts if nothing is busy. Within an operation."""
        raise NotImplementedError

    def witness(self) -> tuple[Any, ...]:
        """The words that the last look-up rests on."""
        raise NotImplementedError

    def stands(self, witness: tuple[Any, ...]) -> bool:
        """Whether what a look-up rests on is as it was."""
        raise NotImplementedError


class Reads:
    """The read set of a transaction."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.endpoint = client.endpoint
        self.objects: dict[int, ObjectRead] = {}
        self.keys: dict[tuple[int, bytes], KeyRead] = {}
        """By the link of the store, and the key."""
        self.epoch = 0
        """As long as it lasts, nothing is used again that the witnesses name."""
        self.missing: Callable[[], Any] | None = None
        """Looks for a store that was found missing, and with it every key that it could have."""
        self.changed: Any = None
        """The place where something was found to have changed."""

    def lock_of(self, at: int, otherwise: int) -> int:
        """The lock of an object as it was read; `otherwise`: it was not."""
        read = self.objects.get(at)
        return otherwise if read is None else read.lock

    def note_object(self, at: int, read: ObjectRead) -> bool:
        """Note an object; False: it was read before, and has changed."""
        before = self.objects.setdefault(at, read)
        if not before.is_as(read):
            self.changed = ReadPlace(read.store, read.key, at)
            return False
        return True

    def note_key(self, key: bytes, read: KeyRead) -> bool:
        """Note a key; False: it was read before, and has changed."""
        if not self.keys:
            self.epoch = self._pinned()
        before = self.keys.setdefault((read.keys.link, key), read)
        if before.value != read.value:
            self.changed = ReadPlace(read.keys.store, key, 0)
            return False
        return True

    def agrees(self, link: int, key: bytes, value: bytes | None) -> bool:
        """Whether a key of that store has the value that was read, if it was."""
        read = self.keys.get((link, key))
        return read is None or read.value == value

    def _pinned(self) -> int:
        """The epoch that we pin."""
        return int(self.client.epoch)

    def hold(self, objects: Collection[int] = (), keys: Collection[tuple[int, bytes]] = ()) -> bool:
        """Whether all that was read is true, at some moment of this call. Within an operation.

        `objects`, `keys`: those that need no look, as the transaction has locked them.
        """
        # ORDER: keys before objects: if keys are looked up again, objects are seen to be as they
        # were after that. A store that is missing has no keys, whenever it is made.
        return self._still_missing() and self._keys_hold(keys) and self._objects_hold(objects)

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

    def _objects_hold(self, without: Collection[int]) -> bool:
        endpoint = self.endpoint
        for at, read in self.objects.items():
            if at in without:
                continue
            if endpoint.load(at) != read.lock or endpoint.load(at + POINTER) != read.pointer:
                self.changed = ReadPlace(read.store, read.key, at)
                return False
        return True

    def _keys_hold(self, without: Collection[tuple[int, bytes]]) -> bool:
        if not self.keys:
            return True
        looked_at = [named for named in self.keys if named not in without]
        if not looked_at:
            return True
        # ORDER: the epoch after our pin, which may be older: nothing is used again from here on.
        rounds, used_again = 0, int(self.endpoint.load(EPOCH)) != self.epoch
        while used_again or not self._stand(looked_at):
            rounds += 1
            if rounds > ROUNDS_MAX or not self._look_again(looked_at):
                return False
            self.epoch, used_again = self._pinned(), False
        return True

    def _stand(self, keys: list[tuple[int, bytes]]) -> bool:
        """Whether what the look-ups of these keys rest on is as it was."""
        for named in keys:
            read = self.keys[named]
            if not read.keys.stands(read.witness):
                self.changed = ReadPlace(read.keys.store, named[1], 0)
                return False
        return True

    def _look_again(self, keys: list[tuple[int, bytes]]) -> bool:
        """Look all these keys up; whether they have the values that they had."""
        for named in keys:
            read = self.keys[named]
            key = named[1]
            value = read.keys.look_up(key)
            busy = read.keys.busy_at()
            if busy or value != read.value:
                self.changed = ReadPlace(read.keys.store, key, busy)
                return False
            read.witness = read.keys.witness()
        return True
