"""`pool.dict()`: a store as a MutableMapping of Python objects.

A value is encoded when it is set and decoded, afresh, each time it is read: `d[k].append(x)`
changes a copy. Write `d[k] = d[k] + [x]`, which is not atomic. `setdefault` is; `pop` and `popitem`
give an entry to one process only, with a value that may be replaced before the entry is gone.
With codec "pickle", reading executes code that any process that may write to the pool can choose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.errors import KeyExists

if TYPE_CHECKING:
    from limpet.stores.codecs import Codec


MISSING: Final = object()


class SharedDict(MutableMapping[Any, Any]):
    """A mapping that lives in a pool. Iteration is as weakly consistent as the store's."""

    def __init__(self, store: Any, codec: Codec) -> None:
        self.store = store
        self.codec = codec

    def __getitem__(self, key: Any) -> Any:
        data = self.store.get(self.codec.encode_key(key))
        if data is None:
            raise KeyError(key)
        return self.codec.decode(data)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.store.put(self.codec.encode_key(key), self.codec.encode(value))

    def __delitem__(self, key: Any) -> None:
        try:
            self.store.delete(self.codec.encode_key(key))
        except KeyError:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        return self.codec.encode_key(key) in self.store

    def __iter__(self) -> Iterator[Any]:
        return map(self.codec.decode_key, self.store)

    def __len__(self) -> int:
        return len(self.store)

    def get(self, key: Any, default: Any = None) -> Any:
        data = self.store.get(self.codec.encode_key(key))
        return default if data is None else self.codec.decode(data)

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        """As for a dict: of several processes, only one gets the value."""
        try:
            value = self[key]
            del self[key]
        except KeyError:
            if default is MISSING:
                raise
            return default
        return value

    def popitem(self) -> tuple[Any, Any]:
        """Take out some entry; KeyError when there is none. Only one process gets an entry."""
        for key in self:
            with contextlib.suppress(KeyError):  # then another process was faster
                return key, self.pop(key)
        raise KeyError("popitem(): the mapping is empty")

    def clear(self) -> None:
        """Take out every entry that is there all the while: one pass over the keys.

        An entry that another process sets meanwhile may stay.
        """
        for key in self.store:
            with contextlib.suppress(KeyError):  # then another process was faster
                self.store.delete(key)

    def setdefault(self, key: Any, default: Any = None) -> Any:
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

    def copy(self) -> dict[Any, Any]:
        """A dict with the entries of the mapping; not a snapshot while others write."""
        return dict(self)

    def __or__(self, other: Any) -> dict[Any, Any]:
        return {**self, **other}

    def __ror__(self, other: Any) -> dict[Any, Any]:
        return {**other, **self}

    def __ior__(self, other: Any) -> SharedDict:
        self.update(other)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self.store.pool, self.store.kind, self.store.name)


def _attached(pool: Any, kind: str, name: str) -> SharedDict:
    from limpet.stores.codecs import Codec

    store, codec = pool.attached(kind, name)
    return SharedDict(store, Codec.named(codec))
