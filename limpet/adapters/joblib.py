"""A store backend of joblib's Memory: all processes share what one of them has computed.

    import limpet.adapters.joblib
    memory = joblib.Memory("shm://site/results", backend="limpet",
                           backend_options={"max_bytes": "2GiB", "node_size": "4GiB"})

Importing this module registers the name "limpet". Results lie in a `pool.cache`: it is bounded, and
evicts results that are not asked for when it is full, so `reduce_size` is not needed. joblib calls
a function again whose result was evicted. joblib names functions, and does not tell two closures of
one source apart. The location is that of the cache (pools.py).
`backend_options`: those of the cache, those of a new pool, joblib's `compress`, and `pool`: the
location of the cache, if the location that joblib is given is to be a directory in it.

An item is a value of a cache of bytes, by its path: the time when it was stored, 8 bytes, then what
joblib wrote.
"""

from __future__ import annotations

import datetime
import io
import re
import struct
import time
import warnings
from collections.abc import Mapping
from typing import Any, Final

from joblib import register_store_backend
from joblib._store_backends import CacheItemInfo, StoreBackendBase, StoreBackendMixin

from limpet.adapters.pools import CACHE_OPTIONS, Shared, bytes_cache

STAMP: Final = struct.Struct("d")
FILES: Final = ("output.pkl", "metadata.json", "func_code.py")
"""The names of files in joblib's directories; any other path is a directory."""
HASH: Final = re.compile("[a-f0-9]{32}")


class _Item(io.BytesIO):
    """A new item, which is stored when it is closed, unless an error ended its `with`."""

    def __init__(self, backend: LimpetStoreBackend, path: str) -> None:
        super().__init__()
        self.backend = backend
        self.path = path
        self.wanted = True

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        self.wanted = kind is None
        super().__exit__(kind, error, where)

    def close(self) -> None:
        if not self.closed and self.wanted:
            self.backend.put(self.path, self.getvalue())
        super().close()


class LimpetStoreBackend(StoreBackendBase, StoreBackendMixin):
    """Directories are not stored: every directory is there."""

    def configure(
        self,
        location: str,
        verbose: int = 1,
        backend_options: Mapping[str, Any] | None = None,
    ) -> None:
        options = dict(backend_options or {})
        self.location = location
        self.verbose = verbose
        self.compress = options.pop("compress", False)
        if options.pop("mmap_mode", None) is not None:
            warnings.warn(
                "limpet copies results out of shared memory: mmap_mode is ignored", stacklevel=2
            )
        # Memory has added a directory of its own to the location.
        pool = options.pop("pool", location.removesuffix("/joblib"))
        self.shared = Shared(bytes_cache, pool, "joblib", options, CACHE_OPTIONS)

    def put(self, path: str, data: bytes) -> None:
        """Store an item. Raises ValueTooLarge, StoreFull."""
        self.shared().set(path.encode(), STAMP.pack(time.time()) + data)

    def _open_item(self, path: str, mode: str) -> io.BytesIO:
        if mode == "wb":
            return _Item(self, path)
        data = self.shared().get(path.encode())
        if data is None:
            raise FileNotFoundError(f"{path}: it was cleared, or evicted from the full cache")
        return io.BytesIO(data[STAMP.size :])

    def _item_exists(self, location: str) -> bool:
        if location.rpartition("/")[2] not in FILES:
            return True
        return location.encode() in self.shared()

    def _move_item(self, source: str, target: str) -> None:
        data = self.shared().pop(source.encode(), None)
        if data is None:
            raise FileNotFoundError(f"{source}: it was evicted from the full cache")
        self.shared().set(target.encode(), data)

    def create_location(self, location: str) -> None:
        """Nothing: every directory is there."""

    def clear_location(self, location: str) -> None:
        """Remove what is in a directory; walks over all items."""
        self.shared().delete_prefix(location.rstrip("/").encode() + b"/")

    def get_items(self) -> list[CacheItemInfo]:
        """The results: directory, size, and when each was stored. Reads all of them."""
        found: dict[str, list[int]] = {}
        stored: dict[str, float] = {}
        prefix = self.location.rstrip("/").encode() + b"/"
        for name in self.shared():
            directory, _, file = name.decode().rpartition("/")
            if not name.startswith(prefix) or not HASH.match(directory.rpartition("/")[2]):
                continue
            data = self.shared().gets(name)[0]
            if data is not None:
                found.setdefault(directory, []).append(len(data) - STAMP.size)
                if file == FILES[0]:
                    stored[directory] = STAMP.unpack_from(data)[0]
        return [
            CacheItemInfo(path, sum(found[path]), datetime.datetime.fromtimestamp(when))
            for path, when in stored.items()
        ]


register_store_backend("limpet", LimpetStoreBackend)
