"""A mapping of zict over a `pool.dict`: all processes share it.

    slow = Shared("shm://site/objects", node_size="4GiB")
    buffer = zict.Buffer({}, slow, n=100_000_000, weight=weight)

As of zict's other mappings, keys that it does not take raise TypeError when they are set, and are
not there otherwise. Values are pickled, unless `codec` is another one. `close` does nothing: other
mappings of the process may use the pool; it stays until `limpet destroy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from zict.common import ZictBase

import limpet
from limpet.adapters.pools import Shared as AtLocation

KT = TypeVar("KT")
VT = TypeVar("VT")


def _mapping(pool: limpet.Pool, name: str, options: dict[str, Any]) -> limpet.SharedDict[Any, Any]:
    return pool.dict(name, **options)


class Shared(ZictBase[KT, VT]):
    """`location`: of the mapping (pools.py). `options`: `codec` and `capacity` of the mapping, and
    those of a new pool."""

    def __init__(self, location: str, **options: Any) -> None:
        super().__init__()
        self.shared = AtLocation(_mapping, location, "zict", options, ("codec", "capacity"))

    def _is_key(self, key: object) -> bool:
        """Whether the codec takes it; if not, it is not there."""
        try:
            self.shared().codec.encode_key(key)
        except TypeError:
            return False
        return True

    def __getitem__(self, key: KT) -> VT:
        if not self._is_key(key):
            raise KeyError(key)
        value: VT = self.shared()[key]
        return value

    def __setitem__(self, key: KT, value: VT) -> None:
        self.shared()[key] = value

    def __delitem__(self, key: KT) -> None:
        if not self._is_key(key):
            raise KeyError(key)
        del self.shared()[key]

    def __contains__(self, key: object) -> bool:
        return self._is_key(key) and key in self.shared()

    def __iter__(self) -> Iterator[KT]:
        return iter(self.shared())

    def __len__(self) -> int:
        return len(self.shared())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shared!r}>"
