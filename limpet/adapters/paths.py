"""Files by path in a `race` store: what the adapters for zarr and fsspec have in common.

A path is text whose parts are divided by "/". The store has no order, so whatever lists paths walks
over all of them. Each call on one file is atomic, and none on several files is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import limpet

KIND: Final = "race"


class Paths:
    """The files of a store of bytes."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        """Those bytes of a file, as of a slice; no others are read. None: it is not there."""
        if start is None and stop is None:
            found: bytes | None = self.store.get(path.encode())
        else:
            found = self.store.get_slice(path.encode(), start, stop)
        return found

    def write(self, path: str, data: Any) -> None:
        """Make or replace a file. Raises ValueTooLarge, StoreFull; then nothing has changed."""
        self.store.put(path.encode(), data)

    def add(self, path: str, data: Any) -> bool:
        """Make a file, if it is not there; whether it was not."""
        try:
            self.store.insert(path.encode(), data)
        except limpet.KeyExists:
            return False
        return True

    def remove(self, path: str) -> bool:
        """Remove a file; whether it was there."""
        try:
            self.store.delete(path.encode())
        except KeyError:
            return False
        return True

    def size(self, path: str) -> int | None:
        """Bytes of a file; None: it is not there."""
        found: int | None = self.store.size_of(path.encode())
        return found

    def __contains__(self, path: str) -> bool:
        return self.size(path) is not None

    def all(self, prefix: str = "") -> Iterator[str]:
        """The paths that begin so."""
        start = prefix.encode()
        for name in self.store:
            if name.startswith(start):
                yield name.decode()

    def children(self, directory: str) -> set[str]:
        """The names of the files and directories in a directory, which ends with "/" or is ""."""
        skip = len(directory)
        return {path[skip:].partition("/")[0] for path in self.all(directory)}

    def clear(self, prefix: str = "") -> None:
        """Remove the files whose paths begin so; one that is made meanwhile may stay."""
        for path in self.all(prefix):
            self.remove(path)


def open_paths(pool: limpet.Pool, name: str, options: dict[str, Any]) -> Paths:
    """The files in the store of that name; `options`: `capacity`, how many surely fit."""
    return Paths(pool.store(KIND, name, **options))
