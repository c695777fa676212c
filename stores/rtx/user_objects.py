"""Objects of a user's own, which transactions read and write (rTX section 3: TXObj).

    accounts = pool.objects("accounts", 1_000_000, initial=b"100")
    pool.transaction(lambda tx: tx.write(accounts[7], b"%d" % (int(tx.read(accounts[7])) - 1)))

`pool.objects` is an array of them, `pool.object` one with a name. An object is bytes, from 0 bytes
on; a program builds indexes on them, where one object names others by their numbers
(examples/linked_list.py).

The paper wraps an object in a lock and a pointer, at an address that stays its own. Here an object
is a key of an `rtx-race` store: its slot is the word that leads to the data, and that a transaction
holds (parts.py). So objects are as fine as can be: two transactions meet only at the same object.
One that was never written takes no memory, and reads as `initial`. A transaction that reads and
writes one object commits by one compare-and-swap (commit.py), and a killed client leaves behind
what that of any key of the store does.

An array is a store of its name, with a codec of its own in the catalogue: `pool.objects` opens no
store of the user's, and `pool.store` and `pool.dict` no array. Its keys are the numbers of the
objects, 8 bytes; the key `array` has how many there are, and `initial`. Objects with a name are in
the store `.object`, by name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.errors import ParameterError, StoreCorrupt, StoreMismatch
from limpet.stores.core.base import as_bytes

if TYPE_CHECKING:
    from limpet.stores.rtx.execution import Transaction

KIND: Final = "rtx-race"
NAMED: Final = ".object"
"""Name of the store with the objects that have a name."""
META: Final = b"array"
"""Not as long as the key of an object."""
_NUMBER: Final = struct.Struct(">Q")
COUNT_MAX: Final = 1 << 40


class TxObject:
    """An object that transactions read and write: `tx.read(obj)`, `tx.write(obj, value)`.

    It belongs to the pool handle that it was made by, as that handle's stores do.
    """

    __slots__ = ("initial", "key", "store")

    def __init__(self, store: Any, key: bytes, initial: bytes) -> None:
        self.store = store
        self.key = key
        self.initial = initial

    def read_by(self, tx: Transaction) -> bytes:
        """`tx.read(obj)`."""
        value: bytes = tx.get(self.store, self.key, self.initial)
        return value

    def write_by(self, tx: Transaction, value: Any) -> None:
        """`tx.write(obj, value)`."""
        tx.put(self.store, self.key, value)

    def __repr__(self) -> str:
        return f"<object {self.key!r} of {self.store!r}>"


class TxObjects:
    """An array of objects: `objects[number]`, `len(objects)`."""

    def __init__(self, store: Any, count: int, initial: bytes) -> None:
        self.store = store
        self.count = count
        self.initial = initial

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> TxObject:
        if not isinstance(number, int):
            raise TypeError(
                f"objects of {self.store!r} go by whole numbers, not by a {type(number).__name__}"
            )
        if not -self.count <= number < self.count:
            raise IndexError(f"{self.store!r} has {self.count} objects, and no number {number}")
        return TxObject(self.store, _NUMBER.pack(number % self.count), self.initial)

    def __iter__(self) -> Iterator[TxObject]:
        return (self[number] for number in range(self.count))

    def __repr__(self) -> str:
        return f"<{self.count} objects of {self.store!r}>"


def named_object(pool: Any, name: str, initial: bytes) -> TxObject:
    """The object of that name."""
    if not isinstance(name, str) or not name:
        raise ParameterError(f"the name of an object is text, and not empty: {name!r}")
    return TxObject(pool.store(KIND, name=NAMED), name.encode(), as_bytes("first value", initial))


def object_array(pool: Any, name: str, count: int | None, initial: bytes | None) -> TxObjects:
    """The array of that name: made if it is not there, else attached to.

    Raises ParameterError: there is none, and `count` is not given; StoreMismatch: it has another
    count, or other initial bytes, than those given; as `pool.store` does.
    """
    if count is not None and (
        isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= COUNT_MAX
    ):
        raise ParameterError(f"count must be a whole number from 1 to 2^40, not {count!r}")
    lacking = f"{pool.url} has no objects {name!r}: say how many, to make them"
    if count is None and all(each["name"] != name for each in pool.stores()):
        raise ParameterError(lacking)
    begins = None if initial is None else as_bytes("first value", initial)
    store = pool.objects_store(KIND, name)

    def meta(tx: Transaction) -> bytes | None:
        found: bytes | None = tx.get(store, META)
        if found is None and count is not None:
            found = _NUMBER.pack(count) + (begins or b"")
            tx.put(store, META, found)
        return found

    there = pool.transaction(meta)
    if there is None:
        raise ParameterError(lacking)  # its maker was killed before it said how many
    if len(there) < _NUMBER.size:
        raise StoreCorrupt(f"{pool.url}: the number of the objects {name!r} is damaged")
    (number,) = _NUMBER.unpack_from(there)
    stored = there[_NUMBER.size :]
    differs = [] if count in (None, number) else [f"are {number}, not {count}"]
    if begins not in (None, stored):
        differs.append(f"begin as {stored!r}, not as {begins!r}")
    if differs:
        raise StoreMismatch(
            f"{pool.url}: the objects {name!r} {', and '.join(differs)}; their name alone opens "
            "them"
        )
    return TxObjects(store, number, stored)
