"""A store of zarr 3: all processes share the arrays.

    store = LimpetStore("shm://site/arrays", node_size="8GiB")
    array = zarr.create_array(store, shape=(10_000, 10_000), chunks=(1000, 1000), dtype="f4")

A chunk is a value of a `race` store, which is not bounded as a cache is: nothing is evicted, and a
full pool raises StoreFull and keeps what it has. A chunk has at most as many bytes as a memory
node. Writing one is atomic: a reader gets the old chunk or the new one, whichever process is killed
and when. Parts of chunks, as shards ask for them, are read without the rest.

Operations take microseconds and wait for no server, so they run in zarr's event loop, or without
it, by the synchronous calls that zarr makes where a store has them. Two stores of one location are
equal, and a store is pickled by its location.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from limpet.adapters.paths import Paths, open_paths
from limpet.adapters.pools import Shared


class LimpetStore(Store):
    """`location`: of the store (pools.py). `options`: `capacity`, the number of chunks that surely
    fit, and those of a new pool. One that is `read_only` makes nothing: it raises PoolNotFound, or
    StoreError, where there is no pool, or no store."""

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(self, location: str, *, read_only: bool = False, **options: Any) -> None:
        super().__init__(read_only=read_only)
        self.location = location
        self.options = options
        self.shared = Shared(open_paths, location, "zarr", options, ("capacity",), not read_only)

    def with_read_only(self, read_only: bool = False) -> LimpetStore:
        return type(self)(self.location, read_only=read_only, **self.options)

    def _paths(self) -> Paths:
        self._is_open = True
        return self.shared()

    def _writable(self) -> Paths:
        self._check_writable()
        return self._paths()

    # ---- without an event loop --------------------------------------------------------------

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        start, stop = _slice_of(byte_range)
        found = self._paths().read(key, start, stop)
        made = prototype or default_buffer_prototype()
        return None if found is None else made.buffer.from_bytes(found)

    def set_sync(self, key: str, value: Buffer) -> None:
        self._writable().write(key, _bytes_of(value))

    def delete_sync(self, key: str) -> None:
        self._writable().remove(key)

    # ---- the same, and more, with one -------------------------------------------------------

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        return self.get_sync(key, prototype=prototype, byte_range=byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [
            self.get_sync(key, prototype=prototype, byte_range=byte_range)
            for key, byte_range in key_ranges
        ]

    async def exists(self, key: str) -> bool:
        return key in self._paths()

    async def getsize(self, key: str) -> int:
        size = self._paths().size(key)
        if size is None:
            raise FileNotFoundError(key)
        return size

    async def set(self, key: str, value: Buffer) -> None:
        self.set_sync(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._writable().add(key, _bytes_of(value))

    async def delete(self, key: str) -> None:
        self.delete_sync(key)

    async def delete_dir(self, prefix: str) -> None:
        self._writable().clear(_directory(prefix))

    async def clear(self) -> None:
        self._writable().clear()

    async def list(self) -> AsyncIterator[str]:
        for path in self._paths().all():
            yield path

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for path in self._paths().all(prefix):
            yield path

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in self._paths().children(_directory(prefix)):
            yield name

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, type(self))
            and self.shared == other.shared
            and self.read_only == other.read_only
        )

    def __hash__(self) -> int:
        return hash((self.shared, self.read_only))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.shared)!r})"

    def __str__(self) -> str:
        return str(self.shared)


def _directory(prefix: str) -> str:
    """The beginning of all paths in a directory."""
    bare = prefix.rstrip("/")
    return f"{bare}/" if bare else ""


def _slice_of(byte_range: ByteRequest | None) -> tuple[int | None, int | None]:
    match byte_range:
        case None:
            return None, None
        case RangeByteRequest(start, end):
            return start, end
        case OffsetByteRequest(offset):
            return offset, None
        case SuffixByteRequest(suffix):
            return (-suffix, None) if suffix else (0, 0)
        case _:
            raise ValueError(f"Unexpected byte_range, got {byte_range}.")


def _bytes_of(value: Buffer) -> bytes:
    if not isinstance(value, Buffer):
        raise TypeError(
            f"LimpetStore.set(): `value` must be a Buffer instance. Got an instance of "
            f"{type(value)} instead."
        )
    return bytes(value.to_bytes())
