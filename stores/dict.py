"""`pool.dict()`: a store as a MutableMapping of Python objects.

A value is encoded when it is set and decoded, afresh, each time it is read: `d[k].append(x)`
changes a copy. `d[k] = d[k] + [x]` is not atomic; `d.update_with(k, lambda v: v + [x])` is. With
codec "pickle", reading executes code that any process that may write to the pool can choose.

`setdefault` is atomic in every kind of store. `pop`, `popitem`, `compare_and_set` and `update_with`
are in the kinds race, rtx-race, rtx-sherman, fusee, rcuckoo and loco, which can compare a value and
replace it in one step. In the others the last two raise StoreError, and a value may be replaced
between the two steps of `pop` and `popitem`, which still give an entry to one process only. The
registers of swarm cannot: they are wait-free, and take part in no consensus. The other kinds are
baselines, and stay as in their papers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from limpet.shm.endpoint import forks
from limpet.shm.errors import KeyExists, KeyTooLarge, ParameterError, ReentrantUse

if TYPE_CHECKING:
    from limpet.stores.channels.changes import Changes
    from limpet.stores.core.base import Store
    from limpet.stores.core.codecs import Codec

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

MISSING: Final = object()


class SharedDict(MutableMapping[K, V]):
    """A mapping that lives in a pool. Iteration is as weakly consistent as the store's.

    `SharedDict[str, Config]` is for type checkers: the pool does not check what others set.
    """

    def __init__(self, store: Store, codec: Codec) -> None:
        self.store = store
        self.codec = codec
        if codec.name == "bytes":
            # The store takes such keys and gives such values itself: a third of the time.
            self.get = store.get  # type: ignore[method-assign]
        self._get, self._put = store.get, store.put
        self._key, self._encode, self._decode = codec.encode_key, codec.encode, codec.decode
        self._updating: set[tuple[int, int, bytes]] = set()
        """Of each `update_with` that runs: `forks.count`, thread and key."""

    def __getitem__(self, key: K) -> V:
        data = self._get(self._key(key))
        if data is None:
            raise KeyError(key)
        value: V = self._decode(data)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._put(self._key(key), self._encode(value))

    def __delitem__(self, key: K) -> None:
        try:
            self.store.delete(self.codec.encode_key(key))
        except KeyError:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        """Whether a key is there. False for one that cannot be; TypeError if it is not hashable."""
        try:
            return self._key(key) in self.store
        except (TypeError, ValueError, OverflowError, KeyTooLarge):
            if not is_hashable(key):
                raise
            return False

    def __iter__(self) -> Iterator[K]:
        return map(self.codec.decode_key, self.store)

    def __len__(self) -> int:
        return len(self.store)

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T) -> V | T: ...
    def get(self, key: K, default: object = None) -> object:
        data = self._get(self._key(key))
        return default if data is None else self._decode(data)

    def view(self, key: K, default: object = None) -> Any:
        """The value without a copy, over the shared memory, or `default`: with the codec "bytes" a
        read-only memoryview, with "numpy" a read-only ndarray. It stays what it is, whatever others
        do to the key, until it and all that is made of it are gone (`ValueView.memory`).

        Raises ParameterError: the codec is another one; StoreError: the kind of store has no views.
        """
        return viewed(self.store, self.codec, key, default)

    def changes(self) -> Changes:
        """The changes of keys from now on, as `Store.changes`, which says more. StoreError: this
        kind of store cannot."""
        found: Changes = self.store.changes()
        found.key_of = self.codec.decode_key
        return found

    # ---- in one step ------------------------------------------------------------------------

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: V | T) -> V | T: ...
    def pop(self, key: K, default: object = MISSING) -> object:
        """As for a dict: of several processes, only one gets the value."""
        data = self._take(self.codec.encode_key(key))
        if data is not None:
            return self.codec.decode(data)
        if default is MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[K, V]:
        """Take out some entry; KeyError when there is none. Only one process gets an entry."""
        for name in self.store:
            data = self._take(name)
            if data is not None:
                return self.codec.decode_key(name), self.codec.decode(data)
        raise KeyError("popitem(): the mapping is empty")

    def _take(self, name: bytes) -> bytes | None:
        """Delete a key; its value, or None: it is not there."""
        while True:
            data: bytes | None = self.store.get(name)
            if data is None:
                return None
            if not self.store.swaps:
                try:
                    self.store.delete(name)
                except KeyError:
                    return None
                return data
            if self.store.swap(name, data):
                return data

    @overload
    def setdefault(self: SharedDict[K, T | None], key: K, default: None = None) -> T | None: ...
    @overload
    def setdefault(self, key: K, default: V) -> V: ...
    def setdefault(self, key: K, default: Any = None) -> Any:
        """As for a dict, and atomic: of several processes, one sets the value that all get."""
        name = self.codec.encode_key(key)
        while True:
            data = self.store.get(name)
            if data is not None:
                return self.codec.decode(data)
            data = self.codec.encode(default)
            try:
                self.store.insert(name, data)
            except KeyExists:
                continue
            return self.codec.decode(data)

    def compare_and_set(self, key: K, expected: V, value: V) -> bool:
        """Set a key to `value` if its value equals `expected`; whether it did. Atomic.

        StoreError: this kind of store cannot. Raises as a set does.
        """
        name, data = self.codec.encode_key(key), self.codec.encode(value)
        while True:
            found = self.store.get(name)
            if found is None or self.codec.decode(found) != expected:
                return False
            if self.store.swap(name, found, data):
                return True

    @overload
    def update_with(self, key: K, function: Callable[[V], V]) -> V: ...
    @overload
    def update_with(self, key: K, function: Callable[[V | T], V], default: T) -> V: ...
    def update_with(self, key: K, function: Callable[[Any], Any], default: object = MISSING) -> Any:
        """Set a key to `function(its value)`; the new value. Atomic.

        If the key is not there, the function gets the `default`; without one, KeyError. It is
        called again when another process changed the value meanwhile, so it must have no other
        effects. StoreError: this kind of store cannot; ReentrantUse: the function calls it for the
        same key. Raises as a set does.
        """
        name = self.codec.encode_key(key)
        here = (forks.count, threading.get_ident(), name)
        if here in self._updating:
            raise ReentrantUse(
                f"update_with({key!r}) in the function of an update_with of this key would not end"
            )
        self._updating.add(here)
        try:
            return self._update(key, name, function, default)
        finally:
            self._updating.discard(here)

    def _update(
        self, key: K, name: bytes, function: Callable[[Any], Any], default: object
    ) -> object:
        """`update_with`, of the key with that name."""
        while True:
            found = self.store.get(name)
            if found is None and default is MISSING:
                raise KeyError(key)
            value = function(default if found is None else self.codec.decode(found))
            data = self.codec.encode(value)
            if found is not None:
                if self.store.swap(name, found, data):
                    return value
                continue
            with contextlib.suppress(KeyExists):
                self.store.insert(name, data)
                return value

    # ---- the whole mapping ------------------------------------------------------------------

    def clear(self) -> None:
        """Take out every entry that is there all the while: one pass over the keys.

        An entry that another process sets meanwhile may stay.
        """
        for key in self.store:
            with contextlib.suppress(KeyError):  # then another process was faster
                self.store.delete(key)

    def copy(self) -> dict[K, V]:
        """A dict with the entries of the mapping; not a snapshot while others write."""
        return dict(self)

    def __or__(self, other: Mapping[K2, V2]) -> dict[K | K2, V | V2]:
        return {**self, **other}  # type: ignore[dict-item]

    def __ror__(self, other: Mapping[K2, V2]) -> dict[K | K2, V | V2]:
        return {**other, **self}  # type: ignore[dict-item]

    def __ior__(self, other: Mapping[K, V]) -> SharedDict[K, V]:  # type: ignore[misc]
        self.update(other)
        return self

    def __repr__(self) -> str:
        """The entries as a dict shows them; of a pool that is closed, the store."""
        if self.store.pool.closed:
            return f"<{type(self).__name__} over {self.store!r}>"
        return f"{type(self).__name__}({dict(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self.store.pool, self.store.kind, self.store.name)


def viewed(store: Any, codec: Codec, key: Any, default: object) -> Any:
    """The value of a key over the shared memory, or `default`."""
    if codec.view is None:
        raise ParameterError(
            f"{store.name}: values of the codec {codec.name!r} are decoded, so none is there in "
            "place; those of 'bytes' and 'numpy' are"
        )
    found = store.view(codec.encode_key(key)).memory()
    return default if found is None else codec.view(found)


def is_hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _attached(pool: Any, kind: str, name: str) -> SharedDict[Any, Any]:
    from limpet.stores.core.codecs import Codec

    store, codec = pool.attached(kind, name)
    return SharedDict(store, Codec.named(codec))
