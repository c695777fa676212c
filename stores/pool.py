"""A pool with its stores: `limpet.create` and `limpet.open` return a `Pool`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import secrets
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from limpet.shm import ephemeral
from limpet.shm.catalogue.directory import LINKING, READY, Entry
from limpet.shm.contents import Contents
from limpet.shm.errors import (
    ClientError,
    LimpetError,
    NodeFailed,
    ParameterError,
    PoolClosed,
    PoolCorrupt,
    StoreDropped,
    StoreError,
    StoreFull,
    StoreMismatch,
)
from limpet.shm.late import late
from limpet.shm.parameters import parse_size
from limpet.shm.pool import PoolCore
from limpet.shm.times import LONGEST_S, MS, Seconds, units_of
from limpet.stores import contents
from limpet.stores.channels.of_pool import ChannelCalls
from limpet.stores.core.base import made_for
from limpet.stores.core.codecs import Codec, name_of
from limpet.stores.core.keeper import Keepers
from limpet.stores.core.names import NAME_SIZE_MAX, a_store, is_name
from limpet.stores.core.views import settle_late
from limpet.stores.dict import SharedDict
from limpet.stores.registry import (
    CACHES,
    CHANNELS,
    INTERNAL,
    kind_named,
    parameters_of,
    store_class,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from limpet.shm.parameters import PoolOptions, TemporaryOptions
    from limpet.stores.cache.cache import Cache
    from limpet.stores.channels.manager import Manager
    from limpet.stores.rtx.execution import Transaction
    from limpet.stores.rtx.user_objects import TxObject, TxObjects
    from limpet.stores.snapshots import Snapshot

Result = TypeVar("Result")

ATTEMPTS: Final = 1000
"""Of a transaction, unless it is told otherwise."""

_transactions: Any = None
"""rtx/transaction.py, once it is imported: `late` would take 4 % of a small transaction."""
BOUNDS: Final = ("max_bytes", "max_items")
"""Parameters that a cache has got from a resize, or as it was made (cache/bounds.py)."""
RESIZE_WAYS: Final = ("refuse", "keep", "newest")
RAW: Final = "bytes"
"""The codec of a store that `Pool.store` makes."""
OBJECTS: Final = "objects"
"""The codec of an array of objects, which `Pool.objects` makes."""
MAPPED: Final = "race"
"""The kind of store of a new mapping, unless another one is asked for."""
PICKLE: Final = "pickle"
"""The codec of a mapping, unless another one is asked for."""


class Pool(PoolCore, ChannelCalls):
    """A named set of memory nodes, opened by this process, and the stores in it.

    A handle may be used by several threads, survives `fork` (the child becomes a client of its
    own at its first operation), and pickles by name.
    """

    _manager: weakref.ref[Manager] | None = None

    @classmethod
    def temporary(
        cls,
        *,
        nodes: int | None = None,
        node_size: int | str | None = None,
        **parameters: Unpack[TemporaryOptions],
    ) -> Self:
        """A new pool in shared memory that goes away with its last client, under a name that no
        other pool has: for scripts, tests and notebooks.

            with limpet.temporary() as pool:
                ...

        It is removed at the end of the block, also after an exception, or, without a block, when
        the handle or the program ends. Other processes may open its `url`, or get the handle, and
        keep it as long as they have it open. If all of them are killed, the next call of
        `temporary`, `limpet ls` or `limpet prune` removes it. Parameters and errors as of `create`.
        """
        for name in ("url", "ephemeral"):
            if name in parameters:
                raise TypeError(f"temporary() takes no {name!r}: limpet.create does")
        ephemeral.sweep(prefix=ephemeral.TEMPORARY)
        name = f"{ephemeral.TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"
        return cls.create(
            f"shm://{name}", nodes=nodes, node_size=node_size, ephemeral=True, **parameters
        )

    def snapshot(self, file: str | os.PathLike[str]) -> Snapshot:
        """Write all stores, mappings, caches and channels to a file, for `limpet.restore`; what it
        has. Others may use the pool meanwhile.

        Each key is as it was at one moment, but not all at the same one. Of channels: numbers,
        events, arrays, the elements of queues and deques, and jobs, of which those that are held
        wait again (docs/operations.md). The file is written beside `file`, made to persist, and
        renamed: at each moment `file` is the old one or the new one. Raises OSError, NodeFailed (a
        store is lost), ParameterError (another process writes a snapshot to that file).
        """
        found: Snapshot = late("limpet.stores.snapshots").write(self, file)
        return found

    @classmethod
    def restored(
        cls,
        file: str | os.PathLike[str],
        url: str,
        *,
        nodes: int | None = None,
        node_size: int | str | None = None,
        mode: int = 0o600,
        group: int | str | None = None,
        **parameters: Unpack[PoolOptions],
    ) -> Self:
        """A new pool with all that a snapshot has, opened.

        Other parameters as of `create`; by default those of the pool that the snapshot is of. No
        process can open the pool before it is whole. If this process is killed before that, it is
        a half-created pool, which the next one that makes a pool of the name, `limpet destroy` or
        `limpet prune` removes; after an error it is gone. Only channels look up their codecs:
        restore no file that you do not trust. Raises SnapshotDamaged: the file is no snapshot, was
        damaged or cut short; StoreFull: it does not fit, and how much is missing; as `create`.
        """
        given = {"nodes": nodes, "node_size": node_size, "mode": mode, "group": group}
        made: tuple[Self, Any] = late("limpet.stores.snapshots").restored(
            cls, file, url, {**given, **parameters}
        )
        return made[0]

    @functools.cached_property
    def keepers(self) -> Keepers:
        """Clients of this process that keep memory for ndarrays and memoryviews."""
        return Keepers()

    def idents(self) -> set[int]:
        return super().idents() | {keeper.pool.membership.ident for keeper in self.keepers.all}

    def make_contents(self) -> Contents:
        return contents.StoreContents(self)

    def handle_of(self, entry: Entry, remembers: bool = True) -> Any:
        """A new handle of the store with that entry; with its cache, if it has one, only if it
        `remembers`. Within `exclusively`, under the pin under which the entry was seen as READY:
        the store keeps its regions, and its objects are not used again, before the caller unpins.
        """
        name = _name_of(self.url, entry.home)
        stored = self.stored(entry.payload, name)
        parameters = self.parameters_of(stored, name)
        if not remembers and hasattr(parameters, "cache_size"):
            least = getattr(parameters, "CACHE_LEAST", 0)
            parameters = dataclasses.replace(parameters, cache_size=least)
        cls = store_class(stored["kind"])
        given = (self, stored["kind"], name, parameters)
        handle = made_for(cls, entry.number, entry.word, *given)
        # Only now: one whose making is cut off must not be told of replaced nodes.
        self.handles.add(handle)
        return handle

    def handle_at(
        self,
        number: int,
        wanted: Callable[[Any], bool] = lambda cls: True,
        remembers: bool = True,
    ) -> Any:
        """As `handle_of`, of the store with that entry in the catalogue, which a client may be
        dropping; None: there is none, or its class is not `wanted`. Pinned.

        A client that was dropping it before we pinned does not wait for us, but neither is what it
        gives back used again. Each later drop of a store at that entry waits.
        """
        failed = None
        while number < self.catalogue.entries:
            entry = self.catalogue.at(number)
            if entry.state not in LINKING or not wanted(
                store_class(self.stored(entry.payload, _name_of(self.url, entry.home))["kind"])
            ):
                break
            try:
                handle = self.handle_of(entry, remembers)
            except LimpetError:
                # Once: its regions were given back. A later store there, also of the same name and
                # dropped by the same client, stays until we unpin.
                if entry.state == READY or entry == failed:
                    raise
                failed = entry
                continue
            # ORDER: after it was made: it may have found regions of a later store.
            if entry.state == READY or self.catalogue.at(number) == entry:
                return handle
            handle.let_go()
        return None

    def of_stores(
        self, work: Callable[[Any], Any], wanted: Callable[[Any], bool] = lambda cls: True
    ) -> list[Any]:
        """The results of `work` for a new handle of each store, if its class is `wanted`; pinned.
        Called within `exclusively`."""
        found = []

        def look(number: int) -> None:
            handle = self.handle_at(number, wanted)
            if handle is not None:
                found.append(work(handle))

        for entry in self.linking():
            self.client.within_pin(functools.partial(look, entry.number))
        return found

    def parameters_of(self, stored: dict[str, Any], name: str = "") -> Any:
        """The parameters of a store, from its entry in the catalogue."""
        return _parameters(store_class(stored["kind"]), stored, f"{self.url}: store {name!r}")

    def store(self, kind: str, name: str = "default", **parameters: Any) -> Any:
        """The store of that name, of bytes: made if it is not there, else attached to.

        `parameters` are those of the kind, each with a default that suits the pool; a store that
        is there must have been made with the same kind and the same values of those given. Raises
        StoreMismatch (also when `dict` made it, with a codec), StoreFull (no room for its index),
        ParameterError, NodeFailed.
        """
        return self._open_store(kind, name, RAW, parameters)[0]

    def bare(
        self, kind: str, name: str, codec: str | None = None, **parameters: Any
    ) -> tuple[Any, str]:
        """The store of that name, of bytes whatever its codec, and the name of its codec, which is
        not looked up: so nothing is imported that it names. Else as `dict`."""
        _refuse_internal(kind)
        return self._open_store(kind, name, codec, parameters)

    def attached(self, kind: str, name: str) -> tuple[Any, str]:
        """The store of that kind and home, the name of its handles, of bytes, and its codec.
        StoreDropped: there is none."""
        while True:
            entry = self.exclusively(lambda: self.catalogue.at_home(name.encode()))
            if entry is None or entry.state != READY:
                raise StoreDropped(f"{self.url} has no store {name!r} any more; it was dropped")
            stored = self.stored(entry.payload, name)
            self._compare(name, stored, kind, None, {})
            handle = self._attach_to(entry)
            if handle is not None:
                return handle, str(stored["codec"])

    def _open_store(
        self,
        kind: str,
        name: str,
        codec: str | None,
        parameters: dict[str, Any],
        resize: str = "refuse",
    ) -> tuple[Any, str]:
        """The store of that name, and its codec; `codec`: it must be this one, if not None.
        `resize`: of a cache, see `cache`."""
        cls = store_class(kind)
        self._require_durable(a_store(kind), cls.durable)
        if kind == "clover" and self.mapped.segments[-1].remote:
            raise ParameterError(
                f"{self.url}: {a_store(kind)} has a metadata process, to which a remote client has "
                "no way; use it on the host of its memory"
            )
        _check_name(name)
        if name == CHANNELS and kind not in INTERNAL:
            raise ParameterError(
                f"{self.url}: {name!r} is the store of channels; take another name"
            )
        if name != CHANNELS:
            _refuse_internal(kind)
        try:
            made = cls.Parameters.for_pool(
                self.parameters, self.layout, **kind_named(kind).fixed, **parameters
            )
        except TypeError as error:
            raise ParameterError(_why_not(kind, parameters, error)) from error
        while True:
            entry = self.exclusively(lambda: self._entry(kind, name, made, codec or PICKLE))
            stored = self.stored(entry.payload, name)
            # No mapping takes an array of objects for its own.
            wanted = PICKLE if codec is None and stored["codec"] == OBJECTS else codec
            self._compare(name, stored, kind, wanted, parameters)
            handle = self._attach_to(entry)
            if handle is not None:
                if kind in CACHES:
                    handle.accept_bounds(parameters, resize)
                return handle, str(stored["codec"])

    def objects_store(self, kind: str, name: str) -> Any:
        """The store of an array of objects, made if it is not there. Raises as `store` does."""
        return self._open_store(kind, name, OBJECTS, {})[0]

    def _require_durable(self, what: str, durable: bool = False) -> None:
        """In a durable pool, refuse what a power cut would leave in pieces."""
        if self.parameters.durable and not durable:
            raise ParameterError(
                f"{self.url} is durable, and {what} would not survive a power cut: of all kinds of "
                "stores and channels only race stores do, and mappings on them; make the rest in a "
                "pool without durable"
            )

    def _attach_to(self, entry: Entry) -> Any:
        """A handle of the store; None: it has been dropped since its entry was seen as READY."""

        def attach() -> Any:
            # ORDER: pinned before we look: a client that drops the store from now on waits for us,
            # and the handle, which has the word of READY, looks again at its first operation.
            there = self.catalogue.is_unchanged(entry.number, entry.word)
            return self.handle_of(entry) if there else None

        return self.exclusively(lambda: self.client.within_pin(attach))

    def _compare(
        self,
        name: str,
        stored: dict[str, Any],
        kind: str,
        codec: str | None,
        parameters: dict[str, Any],
    ) -> None:
        """Raise StoreMismatch if the store is of another kind or codec, or has other parameters."""
        if stored["kind"] != kind:
            raise StoreMismatch(
                f"{self.url}: {name!r} is {a_store(stored['kind'])}, not {a_store(kind)}; "
                f"{_way_to(name, stored)}take another name"
            )
        if codec is not None and stored["codec"] != codec:
            if OBJECTS in (codec, stored["codec"]):
                there, wanted = (
                    "an array of objects" if found == OBJECTS else f"{a_store(kind)} of your own"
                    for found in (stored["codec"], codec)
                )
                raise StoreMismatch(
                    f"{self.url}: {name!r} is {there}, not {wanted}; "
                    f"{_way_to(name, stored)}take another name"
                )
            raise StoreMismatch(
                f"{self.url}: the keys and values of {name!r} are written with the codec "
                f"{stored['codec']!r}, not {codec!r}; {_way_to(name, stored)}take another name"
            )
        made = self.parameters_of(stored, name)
        for field, value in parameters.items():
            kept: Any = getattr(made, field, None)
            # The bounds of a cache change: its handle compares them.
            if kept != value and not (kind in CACHES and field in BOUNDS):
                said = f"{field}={kept!r}, not {value!r}"
                if field == "ttl_ms":
                    said = f"ttl={kept / MS:g}, not {value / MS:g}"
                raise StoreMismatch(f"{self.url}: the store {name!r} was made with {said}")

    def close(self) -> None:
        with contextlib.suppress(PoolClosed):  # another thread has closed it
            settle_late(self.client)
        if self.client.holds.count and self._pid == os.getpid() and not self.closed:
            raise ClientError(
                f"{self.url}: {self.client.holds.count} of its values are viewed or reserved by "
                "this handle; end those blocks before it is closed, and delete the arrays and "
                "slices that are still made of them"
            )
        super().close()
        self.keepers.let_go()
        for handle in list(self.handles):
            handle.let_go()

    def _entry(self, kind: str, name: str, made: Any, codec: str) -> Entry:
        """The READY entry of the store of that name, made if it is not there."""

        def plan(index: int) -> bytes:
            most = store_class(kind).entries_max
            if index >= most:
                raise StoreFull(
                    f"{self.url}: no room for {name!r}: {a_store(kind)} takes one of the first "
                    f"{most} places for stores, and they are taken; drop one of the stores there"
                )
            return json.dumps(
                {"kind": kind, "codec": codec, "parameters": dataclasses.asdict(made)},
                sort_keys=True,
            ).encode()

        def make(index: int, payload: bytes) -> None:
            name = _name_of(self.url, self.catalogue.home_of(index))
            stored = self.stored(payload, name)
            there = store_class(stored["kind"])
            parameters = self.parameters_of(stored, name)
            while True:
                there.make(self, name, parameters)
                # ORDER: pinned before we look, until the entry is READY: a node that is replaced
                # is filled with the stores that are READY, when no client is pinned any more.
                self.client.pin()
                self.view.wait_stable()
                if there.complete(self, name, parameters):
                    return
                self.client.unpin()

        def undo(index: int, payload: bytes) -> None:
            name = _name_of(self.url, self.catalogue.home_of(index))
            stored = self.stored(payload, name)
            self.client.unpin()
            store_class(stored["kind"]).unmake(self, name, self.parameters_of(stored, name))

        try:
            entry, _ = self.catalogue.obtain(
                name.encode(),
                self.membership,
                plan,
                make,
                undo,
                functools.partial(contents.finish, self),
            )
        finally:
            self.client.unpin()
        return entry

    def stored(self, payload: bytes, name: str) -> dict[str, Any]:
        """A store's entry in the catalogue: kind, codec and parameters."""
        try:
            stored = json.loads(payload)
            texts = isinstance(stored["kind"], str) and isinstance(stored["codec"], str)
            if texts and isinstance(stored["parameters"], dict):
                return stored
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise PoolCorrupt(f"{self.url}: the catalogue's entry of {name!r} is damaged")

    def stores(self, count: bool = False) -> list[dict[str, Any]]:
        """The stores of the pool: name, kind, codec, and the parameters that each was made with;
        the bounds of a cache may be others by now (`Cache.resize`), which `Cache.stats` has.

        With `count` also `keys`, and the `bytes` of all keys and values, which takes a look at each
        key, and is no snapshot while others write; of a cache, what it counts towards its bounds,
        which takes none. Of a store that is lost with a node, also in part, both are None, and
        `lost` says why.
        """
        if not count:
            return [found for _, found in self._stores()]
        counted = []
        for found, sizes in self._look_at_each(lambda store: store.sizes()):
            lost = {"lost": sizes} if isinstance(sizes, str) else {}
            keys, size = (None, None) if lost else sizes
            counted.append({**found, "keys": keys, "bytes": size, **lost})
        return counted

    def growth(self) -> list[dict[str, Any]]:
        """How far the hash tables of the pool have grown: a row for each `race`, `rtx-race`,
        `fusee` and `swarm` store, with its `name`, `kind`, `subtables`, `depth` (the least and the
        greatest number of splits behind one), `slots`, `pairs`, and `splits`, those under way.

        It reads all their subtables, each at a moment of its own. Trees have no row: a split of
        theirs is one transaction. A store that is lost with a node, also in part, has `name`,
        `kind`, and `lost`, which says why.
        """
        found = []
        for listed, grown in self._look_at_each(lambda store: store.growth(), lambda c: c.grows):
            if grown:
                grown = {"lost": grown} if isinstance(grown, str) else grown
                found.append({"name": listed["name"], "kind": listed["kind"], **grown})
        return found

    def _look_at_each(
        self, look: Callable[[Any], Any], wanted: Callable[[Any], bool] = lambda cls: True
    ) -> Iterator[tuple[dict[str, Any], Any]]:
        """Of each store whose class is `wanted`: what `stores` says of it, and the result of `look`
        or the text of its NodeFailed. A store that is dropped meanwhile is passed over."""
        for entry, listed in self._stores():
            if wanted(store_class(listed["kind"])):
                try:
                    store = self._attach_to(entry)
                    found = None if store is None else look(store)
                except StoreDropped:
                    continue
                except NodeFailed as error:
                    found = str(error)
                if found is not None:
                    yield listed, found

    def _stores(self) -> list[tuple[Entry, dict[str, Any]]]:
        """The entry of each store that is not limpet's own, and what `stores` says of it."""
        listed = self.exclusively(
            lambda: [
                (entry, {"name": name, **self.stored(entry.payload, name)})
                for entry in self.linking()
                if entry.state == READY and (name := _name_of(self.url, entry.name))
            ]
        )
        return [(entry, found) for entry, found in listed if found["kind"] not in INTERNAL]

    def rename(self, old: str, new: str) -> None:
        """Give the store, mapping or cache `old` the name `new`, in one step; its contents stay.

        Handles that are open, in all processes, go on with the store, and can be pickled; they show
        the name that it had first. `old` is free afterwards. If the client is killed, the store has
        one name or the other. Raises StoreError: there is no store `old`, or there is one of the
        name `new`, or the names happen to have the same 12 bits of hash; StoreFull.
        """
        _check_name(new)
        finish = functools.partial(contents.finish, self)
        there = {found["name"] for found in self.stores()}
        if old not in there:
            raise StoreError(
                f"{self.url} has no store {old!r} to rename; channels cannot be renamed"
            )
        if old == new:
            return
        if new in there or new == CHANNELS:
            raise StoreError(
                f"{self.url} has a store {new!r} already; take another name, or drop that store"
            )
        if not self.exclusively(
            lambda: self.catalogue.rename(old.encode(), new.encode(), self.membership, finish)
        ):
            raise StoreError(
                f"{self.url}: {old!r} was not renamed: meanwhile another client has renamed or "
                f"dropped it, or taken the name {new!r}; pool.stores() lists the stores"
            )

    def linking(self) -> list[Entry]:
        """The entries of all stores that link to objects."""
        return [entry for entry in self.catalogue if entry.state in LINKING]

    def drop(self, name: str) -> None:
        """Give back the store or mapping of that name, with all its memory, also on lost nodes.

        Others may use it meanwhile: their operations raise StoreDropped from now on. Waits for
        running operations; a client that stands still in one is fenced by the pool's policy.
        Afterwards the name is free. If the client is killed in the midst of it, the next one that
        wants the name, or `recover()`, goes on (stores/contents.py). Takes a walk over all objects
        of the store. Raises StoreError: there is no store of that name.
        """
        _check_name(name)
        self.exclusively(lambda: contents.drop(self, name))

    def _recover(self) -> dict[str, Any]:
        found = super()._recover()
        found["stores"] = contents.finish_all(self)
        return found

    def dict(
        self,
        name: str = "default",
        *,
        store: str | None = None,
        codec: str | Codec | None = None,
        **parameters: Any,
    ) -> SharedDict[Any, Any]:
        """A MutableMapping of Python objects over the store of that name; see `SharedDict`.

        `store`: its kind; by default that of the store that is there, or race for a new one.
        `codec`: "pickle", "msgpack", "json", "bytes", "str", "int", "numpy", a name such as
        "json+zstd", or a `limpet.Codec`; its name is kept with the store. By default that
        of the mapping that is there, or pickle for a new one. Other parameters are the store's.
        Raises StoreMismatch for another codec than the one that is there, and as `store` does.
        """
        while True:
            kind = store or self._mapped_kind(name)
            try:
                handle, found = self.bare(kind, name, name_of(codec), **parameters)
            except StoreMismatch:
                # Another process may have made it since we looked.
                if store or self._mapped_kind(name) == kind:
                    raise
            else:
                return SharedDict(handle, Codec.named(found))

    def _mapped_kind(self, name: str) -> str:
        """The kind of the store of that name; MAPPED if there is none that can be a mapping."""
        _check_name(name)
        entry = self.exclusively(lambda: self.catalogue.find(name.encode()))
        kind = MAPPED if entry is None else str(self.stored(entry.payload, name)["kind"])
        return MAPPED if kind in INTERNAL or kind in CACHES else kind

    def cache(
        self,
        name: str = "cache",
        *,
        max_bytes: int | str | None = None,
        max_items: int | None = None,
        ttl: Seconds | None = None,
        policy: str | None = None,
        codec: str | Codec | None = None,
        resize: str = "refuse",
    ) -> Cache[Any, Any]:
        """The cache of that name: made if it is not there, else attached to; see `Cache`.

        `max_bytes` (a number, or text such as "64MiB") and `max_items`: its bounds; by default half
        of the pool's memory, and as many as fit. An entry counts as the bytes of its key and value,
        encoded, and 64 more. `ttl`: seconds that an entry lives unless it has a time of its own; 0,
        the default: until it is evicted. `policy`: "clock", which keeps entries that are read, or
        "fifo". `codec` as for `dict`. A parameter that is not given is that of the cache that is
        there. Raises StoreMismatch when one that is given differs from it, StoreFull,
        ParameterError.

        `resize`, when the cache has other bounds than those given: "refuse" raises StoreMismatch;
        "keep" uses it as it is; "newest" resizes it (`Cache.resize`), unless a living process has
        opened it so with the same bounds before: while a new deployment replaces an old one, the
        settings of the new one win, also when an old process starts again.
        """
        module = late("limpet.stores.cache.cache")
        if resize not in RESIZE_WAYS:
            raise ParameterError(f"resize must be one of {', '.join(RESIZE_WAYS)}, not {resize!r}")
        given = {
            "max_bytes": None if max_bytes is None else parse_size(max_bytes),
            "max_items": max_items,
            "ttl_ms": None if ttl is None else units_of("ttl", ttl, MS, LONGEST_S * MS),
            "policy": policy,
        }
        parameters = {key: value for key, value in given.items() if value is not None}
        handle, found = self._open_store("cache", name, name_of(codec), parameters, resize)
        made: Cache[Any, Any] = module.Cache(handle, Codec.named(found))
        return made

    def transaction(
        self, work: Callable[[Transaction], Result], attempts: int = ATTEMPTS
    ) -> Result:
        """Call `work(tx)` as one transaction over keys of `rtx-...` stores and objects.

        The objects are `tx["name"]`, `pool.object("name")` and those of `pool.objects("name")`.

        All its reads and writes by `tx` happen at one moment, or none does, whichever process is
        killed and when. It is called again after a conflict. Returns its result. Raises its
        exception, TransactionConflict, StoreFull, NodeFailed: nothing has happened then.
        """
        global _transactions
        if _transactions is None:
            _transactions = late("limpet.stores.rtx.transaction")
        result: Result = _transactions.run(self, work, attempts)
        return result

    def object(self, name: str, initial: bytes = b"") -> TxObject:
        """The object of that name, for `tx.read` and `tx.write`; `initial`: what it is until it is
        written, as this handle sees it. `tx[name]` is another one."""
        found: TxObject = late("limpet.stores.rtx.user_objects").named_object(self, name, initial)
        return found

    def objects(
        self, name: str, count: int | None = None, initial: bytes | None = None
    ) -> TxObjects:
        """The array of objects of that name, for `tx.read` and `tx.write`: made if it is not there,
        with `count` objects that begin as `initial` (no bytes), else attached to. It is a store of
        its name, for `drop` and `stores`. Raises ParameterError, StoreMismatch, StoreFull."""
        module = late("limpet.stores.rtx.user_objects")
        found: TxObjects = module.object_array(self, name, count, initial)
        return found

    @property
    def channels(self) -> Manager:
        """The manager of this handle's channels: shared objects other than stores."""
        self._require_durable("a channel, or an object of transactions,")
        module = late("limpet.stores.channels.manager")
        with module.opening():
            manager = self._manager() if self._manager is not None else None
            if manager is None:
                manager = module.Manager(self)
                self._manager = weakref.ref(manager)
        return manager

    def references(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        stores = self.of_stores(lambda store: store.references())
        return np.concatenate([np.empty(0, np.uint64), self.regions.references(), *stores])


def _refuse_internal(kind: str) -> None:
    if kind in INTERNAL:
        raise ParameterError(f"limpet makes the store of kind {kind!r} itself; take another kind")


def _check_name(name: str) -> None:
    if not is_name(name):
        raise ParameterError(
            f"a store's name is text of 1 to {NAME_SIZE_MAX} bytes of UTF-8 without zero bytes, "
            f"not {name!r}"
        )


def _way_to(name: str, stored: dict[str, Any]) -> str:
    """The part of a message that says how a store is opened that is there; empty for no store of
    the user's."""
    kind = stored["kind"]
    if kind in INTERNAL:
        return ""
    if kind in CACHES:
        call = f"cache({name!r})"
    elif stored["codec"] == OBJECTS:
        call = f"objects({name!r})"
    elif stored["codec"] == RAW:
        call = f"store({kind!r}, {name!r})"
    else:
        call = f"dict({name!r}, store={kind!r})"
    return f"open it with pool.{call}, or "


def _why_not(kind: str, given: dict[str, Any], error: TypeError) -> str:
    """The message for parameters that a kind of store does not take."""
    known = parameters_of(kind)
    if unknown := sorted(set(given) - known):
        return (
            f"{a_store(kind)} has no parameter {', '.join(unknown)}; it has "
            f"{', '.join(sorted(known))}"
        )
    return f"{a_store(kind)} does not take these parameters: {error}"


def _name_of(url: str, name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise PoolCorrupt(
            f"{url}: the catalogue has an entry with the name {name!r}; destroy the pool"
        ) from error


def _parameters(cls: Any, stored: dict[str, Any], where: str) -> Any:
    try:
        return cls.Parameters(**stored["parameters"])
    except (TypeError, ParameterError) as error:
        raise PoolCorrupt(f"{where}: its parameters are damaged: {error}") from error
