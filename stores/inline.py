"""`InlineStore`: what has pairs in its own table, and long values in objects of their own.

`key_size` and `value_size`, of the parameters, are the bytes of the longest key, and of the longest
value that is in the table itself. Such a store is looked at as a whole by a survey of its kind.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import KeyTooLarge
from limpet.stores.base import Store, as_bytes
from limpet.stores.records import Objects
from limpet.stores.status import BATCH, DELETE, MISSING


class InlineStore(Store):
    """A store with parameters `key_size` and `value_size`. A subclass gives

    _change(key, value, size, mode)     `_write`, and `delete`, as a mode; `size`: bytes of the
                                        object for the value, or 0: it is in the table
    _get_batch(keys, found)             append the values of at most BATCH keys; the places in
                                        `found` of those that are to be looked up one by one
    survey()                            looks at the whole of it
    """

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.key_size = parameters.key_size
        self.value_size = parameters.value_size
        self.objects = Objects(pool.heap)

    # ---- operations -----------------------------------------------------------------------------

    def get_many(self, keys: Any) -> list[bytes | None]:
        """The values of `keys`, in their order; None for each that is missing. The reads of 32 keys
        overlap."""
        wanted = [key if type(key) is bytes else as_bytes("key", key) for key in keys]
        found: list[bytes | None] = []
        for start in range(0, len(wanted), BATCH):
            # one pin a batch: a pin held for long looks like a process that stands still
            batch = wanted[start : start + BATCH]
            self.client.enter()
            try:
                self.require_there()
                left = self._get_batch(batch, found)
            finally:
                self.client.leave()
            self.operations += len(batch) - len(left)
            for place in left:
                found[place] = self.get(wanted[place])
        return found

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there."""
        if self._change(as_bytes("key", key), b"", 0, DELETE) == MISSING:
            raise KeyError(key)

    def _write(self, key: Any, value: Any, mode: int) -> int:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        return self._change(key, value, self.object_size(key, value), mode)

    def object_size(self, key: bytes, value: bytes) -> int:
        """Bytes of the object for a value; 0: it is in the table. KeyTooLarge, ValueTooLarge."""
        if len(key) > self.key_size:
            raise KeyTooLarge(
                f"{self.name}: the key has {len(key)} bytes; the store was made with "
                f"key_size={self.key_size}"
            )
        return 0 if len(value) <= self.value_size else self.objects.size_of(key, value)

    def _get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        raise NotImplementedError

    def _change(self, key: bytes, value: bytes, size: int, mode: int) -> int:
        raise NotImplementedError

    # ---- the whole of it ------------------------------------------------------------------------

    def survey(self) -> Any:
        """Looks at the whole of it: count, keys, references, check, left_by."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(self.survey().count())

    def keys(self) -> Any:
        """Every key, as weakly consistent as `iter` says."""
        return self.survey().keys()

    def references(self) -> Any:
        """References to all objects on nodes in service, as uint64; for audits."""
        return self.survey().references()

    def check(self) -> None:
        """Verify every invariant in memory; StoreCorrupt says what does not hold.

        Other clients may be at work. NodeFailed: what was on a node is lost with it, and nothing is
        wrong with the rest.
        """
        self.survey().check()

    def left_by(self, ident: int) -> set[str]:
        found: set[str] = self.survey().left_by(ident)
        return found
