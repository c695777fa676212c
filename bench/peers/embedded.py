"""Peers that are libraries: every process works on the same files or shared memory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import os
import secrets
import sqlite3
from typing import Any

from limpet.bench.peers.drivers import (
    LOCK_WAIT_S,
    SCAN_LENGTH,
    SHARED_MEMORY,
    Connection,
    Directory,
    Driver,
    Pairs,
    package_missing,
)
from limpet.bench.peers.ycsb import Workload


class LmdbDriver(Driver):
    """LMDB on tmpfs: no sync, a writable map, one transaction an operation.

    A reader sees others' writes only in a transaction begun after them, so each get begins one;
    py-lmdb has no call to renew a transaction, but keeps a spare one to reuse (`max_spare_txns`).
    Begin, get and abort is the fastest of the ways to spell it; values are copied out as bytes
    (buffers=False), except by a view (buffers=True). A scan is a cursor's, in a transaction of its
    own. A batch is one transaction, and so is atomic: its gets one by one, which is faster than
    `getmulti`, its puts by `putmulti`.
    """

    name = "lmdb"
    ordered = True
    directory: Directory | None = None

    def missing(self) -> str | None:
        return package_missing("lmdb")

    def version(self) -> str:
        import lmdb

        library = ".".join(map(str, lmdb.version()))
        return f"{importlib.metadata.version('lmdb')} (LMDB {library})"

    def _open(self) -> Any:
        import lmdb

        assert self.directory is not None
        return lmdb.open(
            str(self.directory.path),
            map_size=self.map_size,
            sync=False,
            metasync=False,
            writemap=True,
            map_async=True,
            readahead=False,
            meminit=False,
            max_spare_txns=1,
        )

    def start(self, workload: Workload) -> None:
        self.map_size = (64 << 20) + 16 * workload.records * (
            workload.key_bytes + workload.value_bytes + 16
        )
        self.directory = Directory()

    def load(self, pairs: Pairs) -> None:
        # LMDB forbids an environment that stays open over a fork.
        with self._open() as environment, environment.begin(write=True) as transaction:
            for key, value in pairs:
                transaction.put(key, value)

    def attach(self) -> Connection:
        environment = self._open()
        begin = environment.begin

        def get(key: bytes) -> bytes | None:
            transaction = begin()
            value: bytes | None = transaction.get(key)
            transaction.abort()
            return value

        def put(key: bytes, value: bytes) -> None:
            transaction = begin(None, None, True)
            transaction.put(key, value)
            transaction.commit()

        def scan(key: bytes) -> list[tuple[bytes, bytes]]:
            transaction = begin()
            cursor = transaction.cursor()
            there = cursor.set_range(key)
            found = list(itertools.islice(cursor.iternext(), SCAN_LENGTH if there else 0))
            cursor.close()
            transaction.abort()
            return found

        def get_many(keys: list[bytes]) -> list[bytes | None]:
            transaction = begin()
            get = transaction.get
            found = [get(key) for key in keys]
            transaction.abort()
            return found

        def put_many(pairs: list[tuple[bytes, bytes]]) -> None:
            transaction = begin(None, None, True)
            cursor = transaction.cursor()
            cursor.putmulti(pairs)
            cursor.close()
            transaction.commit()

        def view(key: bytes) -> int:
            transaction = begin(None, None, False, True)
            last = transaction.get(key)[-1]
            transaction.abort()
            return int(last)

        return Connection(get, put, environment.close, scan, get_many, put_many, view=view)

    def stop(self) -> None:
        if self.directory is not None:
            self.directory.remove()
            self.directory = None


class SqliteDriver(Driver):
    """SQLite on tmpfs: write-ahead log, synchronous off, memory-mapped, a table without row ids.

    A batch is one transaction.
    """

    name = "sqlite"
    ordered = True
    directory: Directory | None = None

    def missing(self) -> None:
        return None

    def version(self) -> str:
        return sqlite3.sqlite_version

    def _open(self) -> sqlite3.Connection:
        assert self.directory is not None
        database = sqlite3.connect(
            self.directory.path / "database", timeout=LOCK_WAIT_S, isolation_level=None
        )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")
        database.execute(f"PRAGMA mmap_size = {1 << 30}")
        database.execute(f"PRAGMA cache_size = -{64 << 10}")
        return database

    def start(self, workload: Workload) -> None:
        self.directory = Directory()
        with contextlib.closing(self._open()) as database:
            database.execute("CREATE TABLE kv (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def load(self, pairs: Pairs) -> None:
        with contextlib.closing(self._open()) as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany("INSERT INTO kv VALUES (?, ?)", pairs)
            database.execute("COMMIT")

    def attach(self) -> Connection:
        database = self._open()
        execute = database.execute
        select = "SELECT value FROM kv WHERE key = ?"
        scanned = f"SELECT key, value FROM kv WHERE key >= ? ORDER BY key LIMIT {SCAN_LENGTH}"
        upsert = (
            "INSERT INTO kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )

        def get(key: bytes) -> bytes | None:
            row = execute(select, (key,)).fetchone()
            return row[0] if row else None

        def put(key: bytes, value: bytes) -> None:
            execute(upsert, (key, value))

        def scan(key: bytes) -> list[tuple[bytes, bytes]]:
            return execute(scanned, (key,)).fetchall()

        def get_many(keys: list[bytes]) -> list[bytes | None]:
            execute("BEGIN")
            found = [get(key) for key in keys]
            execute("COMMIT")
            return found

        def put_many(pairs: list[tuple[bytes, bytes]]) -> None:
            execute("BEGIN IMMEDIATE")
            database.executemany(upsert, pairs)
            execute("COMMIT")

        return Connection(get, put, database.close, scan, get_many, put_many)

    def stop(self) -> None:
        if self.directory is not None:
            self.directory.remove()
            self.directory = None


class DiskcacheDriver(Driver):
    """diskcache on tmpfs: no eviction, no statistics, synchronous off, every value in its table."""

    name = "diskcache"
    directory: Directory | None = None

    def missing(self) -> str | None:
        return package_missing("diskcache")

    def version(self) -> str:
        return importlib.metadata.version("diskcache")

    def _open(self) -> Any:
        import diskcache

        assert self.directory is not None
        return diskcache.Cache(
            str(self.directory.path),
            timeout=LOCK_WAIT_S,
            eviction_policy="none",
            size_limit=1 << 40,
            cull_limit=0,
            disk_min_file_size=1 << 30,
            sqlite_synchronous=0,
            sqlite_mmap_size=1 << 30,
        )

    def start(self, workload: Workload) -> None:
        self.directory = Directory()

    def load(self, pairs: Pairs) -> None:
        with self._open() as cache, cache.transact():
            for key, value in pairs:
                cache.set(key, value)

    def attach(self) -> Connection:
        cache = self._open()

        def put_many(pairs: list[tuple[bytes, bytes]]) -> None:
            with cache.transact():
                for key, value in pairs:
                    cache.set(key, value)

        return Connection(cache.get, cache.set, cache.close, put_many=put_many, delete=cache.delete)

    def stop(self) -> None:
        if self.directory is not None:
            self.directory.remove()
            self.directory = None


class UltraDictDriver(Driver):
    """UltraDict: a dict in every process, and a stream of updates in shared memory between them.

    Workers inherit the parent's object by fork, so that its multiprocessing.RLock excludes them
    from each other; the lock in shared memory (shared_lock=True), which processes that attach by
    name need, makes a put several times slower. A stream of 32 MiB: full dumps, which it makes when
    the stream is full, stay rare.

    It leaks its segments when a process is killed. Dump segments have random names, so they get a
    prefix of ours, and `stop` removes the segments with it. Importing it stops multiprocessing's
    resource tracker from watching shared memory in this process.
    """

    name = "ultradict"
    shared_name: str | None = None
    dictionary: Any = None

    def missing(self) -> str | None:
        return package_missing("UltraDict")

    def version(self) -> str:
        return importlib.metadata.version("UltraDict")

    def start(self, workload: Workload) -> None:
        from multiprocessing import shared_memory

        from UltraDict import UltraDict

        token = secrets.token_hex(3)
        self.shared_name = f"limpet-bench-{os.getpid()}-{token}"
        self.default_prefix = shared_memory._SHM_NAME_PREFIX  # type: ignore[attr-defined]
        self.prefix = f"/lb{token}"  # with at most 10 characters 4 random ones follow
        shared_memory._SHM_NAME_PREFIX = self.prefix  # type: ignore[attr-defined]
        self.dictionary = UltraDict(
            name=self.shared_name, create=True, auto_unlink=False, buffer_size=32 << 20
        )

    def load(self, pairs: Pairs) -> None:
        self.dictionary.update(pairs)

    def attach(self) -> Connection:
        return Connection(self.dictionary.get, self.dictionary.__setitem__)

    def stop(self) -> None:
        from multiprocessing import shared_memory

        if self.shared_name is None:
            return
        shared_memory._SHM_NAME_PREFIX = self.default_prefix  # type: ignore[attr-defined]
        if self.dictionary is not None:
            self.dictionary.close(unlink=False)
            self.dictionary = None
        for pattern in (f"{self.shared_name}*", f"{self.prefix[1:]}????"):
            for segment in SHARED_MEMORY.glob(pattern):
                segment.unlink()
        self.shared_name = None
