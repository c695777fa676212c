"""A pool with its stores: `limpet.create` and `limpet.open` return a `Pool`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from limpet.shm.directory import READY
from limpet.shm.errors import ParameterError, PoolCorrupt, StoreMismatch
from limpet.shm.parameters import parse_size
from limpet.shm.pool import Memory, alive
from limpet.stores.codecs import Codec
from limpet.stores.fusee.links import Link
from limpet.stores.loco.array import Array
from limpet.stores.loco.barrier import Barrier
from limpet.stores.loco.condition import Condition
from limpet.stores.loco.counter import Counter
from limpet.stores.loco.event import Event
from limpet.stores.loco.lock import PLACES, Lock
from limpet.stores.loco.manager import Manager, opening
from limpet.stores.loco.queue_fields import ITEM_SIZE, MAXSIZE
from limpet.stores.loco.ring_buffer import RingBuffer
from limpet.stores.loco.ring_fields import BLOCK, SIZE
from limpet.stores.loco.shared_queue import SharedQueue
from limpet.stores.mapping import SharedDict
from limpet.stores.names import NAME_SIZE_MAX, is_name
from limpet.stores.registry import kind_named, store_class
from limpet.stores.rtx.parts import concerns
from limpet.stores.rtx.transaction import ATTEMPTS, Result, Transaction, run


class Pool(Memory):
    """A named set of memory nodes, opened by this process, and the stores in it.

    A handle may be used by several threads, survives `fork` (the child becomes a client of its
    own at its first operation), and pickles by name.
    """

    _manager: weakref.ref[Manager] | None = None
    _shared: dict[int, Any] | None = None
    """In a recovery, the handles by which it resolves, by the number of the store's entry."""

    def _wire(self, latency_ns: int) -> None:
        super()._wire(latency_ns)
        self.given_up: dict[str, int] = {}
        """Names of channels that were removed where nobody can tell whether something was lost, and
        the number of the directory that this counts for (stores/loco/memory.py)."""
        # What hangs on the pool must not keep it alive.
        self.heap.concerned = functools.partial(concerns, self.endpoint)
        linked, reconcile = weakref.WeakMethod(self._linked), weakref.WeakMethod(self._reconcile)
        self.heap.resolver = lambda reference, home: alive(linked)(reference, home)
        self.view.reconcile = lambda failed: alive(reconcile)(failed)
        restore, share = self.membership.restore, weakref.WeakMethod(self._share)

        def restored(slot: int, word: int) -> dict[str, int]:
            sharing = share()
            if sharing is None:
                return restore(slot, word)
            with sharing():
                return restore(slot, word)

        self.membership.restore = restored

    @contextlib.contextmanager
    def _share(self) -> Iterator[None]:
        """What is resolved meanwhile, one after another, is so by one handle of each store."""
        before, self._shared = self._shared, {}
        try:
            yield
        finally:
            # None is kept beyond that, as handles keep the pool alive.
            self._shared = before

    def _linked(self, reference: int, home: int) -> bool:
        """Whether the object is linked by a replicated link; what no store knows, is."""
        number = Link.of(home).entry
        shared = self._shared
        # Nobody else has it: to resolve may be to change the view, and that to resolve again.
        store = shared.pop(number, None) if shared is not None else None
        if store is None:
            store = self._store_of(number)
        if store is None:
            return True
        linked = bool(store.resolved(reference, home))
        if shared is not None:
            shared[number] = store
        return linked

    def _named_slots(self) -> dict[int, list[tuple[int, int]]]:
        """The pairs of hands with replicated links, by the number of the store's entry."""
        pairs: dict[int, list[tuple[int, int]]] = {}
        for reference, home in self.view.hands():
            pairs.setdefault(Link.of(home).entry, []).append((reference, home))
        return pairs

    def _reconcile(self, failed: list[int]) -> None:
        for number, some in self._named_slots().items():
            store = self._store_of(number)
            if store is not None and store.replicated:
                store.reconcile(some, failed)

    def refill(self, node: int) -> dict[str, int]:
        pairs = self._named_slots()
        found = dict.fromkeys(("objects", "blocks", "regions", "bytes"), 0)
        for number, _ in self._ready():
            store = self._store_of(number)
            if store is not None and store.replicated:
                for what, count in store.refill(node, pairs.get(number, [])).items():
                    found[what] += count
        return found

    def _store_of(self, number: int) -> Any:
        """A handle of the store with that entry in the catalogue, if it `resolves`; else None.

        Handles that are in use are in the midst of something; so it is another one. It remembers no
        keys: what it is for does not ask for them, and a cache takes longer to make than the rest.
        """
        for entry, (name, stored) in self._ready():
            if entry == number:
                cls = store_class(stored["kind"])
                if cls.resolves:
                    parameters = _parameters(cls, stored, name)
                    if hasattr(parameters, "cache_size"):
                        least = getattr(parameters, "CACHE_LEAST", 0)
                        parameters = dataclasses.replace(parameters, cache_size=least)
                    return cls(self, stored["kind"], name, parameters)
        return None

    def store(self, kind: str, name: str = "default", **parameters: Any) -> Any:
        """The store of that name: made if it is not there, else attached to.

        `parameters` are those of the kind, each with a default that suits the pool; a store that
        is there must have been made with the same kind and the same values of those given. Raises
        StoreMismatch, StoreFull (no room for its index), ParameterError, NodeFailed.
        """
        cls = store_class(kind)
        _check_name(name)
        try:
            made = cls.Parameters.for_pool(
                self.parameters, self.layout, **kind_named(kind).fixed, **parameters
            )
        except TypeError as error:
            raise ParameterError(_why_not(kind, cls.Parameters, parameters, error)) from error
        stored = self.exclusively(lambda: self._entry(kind, name, made))
        if stored["kind"] != kind:
            raise StoreMismatch(
                f"{self.url}: {name!r} is a {stored['kind']} store, not a {kind} store"
            )
        there = _parameters(cls, stored, f"{self.url}: store {name!r}")
        for field, value in parameters.items():
            if getattr(there, field, None) != value:
                raise StoreMismatch(
                    f"{self.url}: the store {name!r} was made with "
                    f"{field}={getattr(there, field, None)!r}, not {value!r}"
                )
        return self.exclusively(lambda: cls(self, kind, name, there))

    def close(self) -> None:
        super().close()
        for handle in list(self.handles):
            handle.let_go()

    def _entry(self, kind: str, name: str, made: Any) -> dict[str, Any]:
        def plan(index: int) -> bytes:
            return json.dumps(
                {"kind": kind, "parameters": dataclasses.asdict(made)}, sort_keys=True
            ).encode()

        def make(index: int, payload: bytes) -> None:
            stored = self._stored(payload, name)
            there = store_class(stored["kind"])
            parameters = _parameters(there, stored, name)
            while True:
                there.make(self, name, parameters)
                # ORDER: pinned before we look, until the entry is READY: a node that is replaced
                # is filled with the stores that are READY, when nobody is pinned any more.
                self.client.pin()
                self.view.steady()
                if there.complete(self, name, parameters):
                    return
                self.client.unpin()

        def undo(index: int, payload: bytes) -> None:
            stored = self._stored(payload, name)
            there = store_class(stored["kind"])
            self.client.unpin()
            there.unmake(self, name, _parameters(there, stored, name))

        try:
            entry, _ = self.catalogue.obtain(name.encode(), self.membership, plan, make, undo)
        finally:
            self.client.unpin()
        return self._stored(entry.payload, name)

    def _stored(self, payload: bytes, name: str) -> dict[str, Any]:
        try:
            stored = json.loads(payload)
            if isinstance(stored["kind"], str) and isinstance(stored["parameters"], dict):
                return stored
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise PoolCorrupt(f"{self.url}: the catalogue's entry of {name!r} is damaged")

    def stores(self) -> list[dict[str, Any]]:
        """The stores of the pool: name, kind, parameters."""
        return [{"name": name, **stored} for _, (name, stored) in self.exclusively(self._ready)]

    def _ready(self) -> list[tuple[int, tuple[str, dict[str, Any]]]]:
        """Number of the entry, name, kind and parameters of each store."""
        found = []
        for entry in self.catalogue:
            if entry.state == READY:
                try:
                    name = entry.name.decode()
                except UnicodeDecodeError as error:
                    raise PoolCorrupt(
                        f"{self.url}: the catalogue has an entry with the name {entry.name!r}; "
                        "destroy the pool"
                    ) from error
                found.append((entry.number, (name, self._stored(entry.payload, name))))
        return found

    def dict(
        self,
        name: str = "default",
        *,
        store: str = "race",
        codec: str = "pickle",
        **parameters: Any,
    ) -> SharedDict:
        """A MutableMapping of Python objects over the store of that name; see `SharedDict`.

        `codec`: "pickle", "msgpack", "json" or "bytes". Other parameters are the store's.
        """
        return SharedDict(self.store(store, name=name, **parameters), Codec.named(codec))

    def transaction(
        self, work: Callable[[Transaction], Result], attempts: int = ATTEMPTS
    ) -> Result:
        """Call `work(tx)` as one transaction over named objects and keys of `rtx-...` stores.

        All that it reads and writes by `tx` happens at one moment, or nothing does, whoever is
        killed when; it is called again after a conflict. Returns what it returned. Raises what it
        raised, TransactionConflict, StoreFull, NodeFailed: nothing has happened then.
        """
        return run(self, work, attempts)

    @property
    def channels(self) -> Manager:
        """The manager of this handle's channels: shared objects other than stores."""
        with opening():
            manager = self._manager() if self._manager is not None else None
            if manager is None:
                manager = Manager(self)
                self._manager = weakref.ref(manager)
        return manager

    def barrier(
        self,
        name: str,
        parties: int,
        action: Callable[[], object] | None = None,
        timeout: float | None = None,
        *,
        on_death: str = "break",
    ) -> Barrier:
        """The barrier of that name, as `threading.Barrier`, for threads of any processes.

        When a participant dies, the others get BrokenBarrierError with its pid; with
        on_death="continue" they go on without it.
        """
        return self.channels.open(
            Barrier, name, parties=parties, action=action, timeout=timeout, on_death=on_death
        )

    def event(self, name: str) -> Event:
        """The event of that name, as `threading.Event`, for threads of any processes."""
        return self.channels.open(Event, name)

    def counter(self, name: str) -> Counter:
        """The counter of that name, a signed number of 64 bits: 0 at first."""
        return self.channels.open(Counter, name)

    def array(self, name: str, length: int | None = None, typecode: str | None = None) -> Array:
        """The array of that name: zeros at first, each element of eight bytes atomic.

        `typecode`: "q" signed, the usual one, "Q" unsigned, "d" double. What is not given is as
        the array that is there has it; ParameterError: there is none, and no `length`.
        """
        found: Array = self.channels.attach(
            Array,
            name,
            {"length": length, "typecode": typecode},
            {"length": None, "typecode": "q"},
        )
        return found

    def lock(
        self,
        name: str,
        *,
        recursive: bool | None = None,
        places: int | None = None,
        overtaking: bool | None = None,
    ) -> Lock:
        """The lock of that name, free if it was not there; as threading.Lock, among processes.

        Parameters: see `Lock`. One that is not given is as the lock that is there has it. Raises
        StoreMismatch when one that is given is another than that.
        """
        found: Lock = self.channels.attach(
            Lock,
            name,
            {"recursive": recursive, "places": places, "overtaking": overtaking},
            {"recursive": False, "places": PLACES, "overtaking": True},
        )
        return found

    def condition(self, name: str) -> Condition:
        """The condition of that name, with a lock of its own, as `threading.Condition`, for threads
        of any processes."""
        return self.channels.open(Condition, name)

    def queue(
        self,
        name: str,
        maxsize: int | None = None,
        *,
        item_size: int | None = None,
        codec: str | None = None,
    ) -> SharedQueue:
        """The queue of that name: made if it is not there, else attached to. First in, first out.

        Parameters: see `SharedQueue`. One that is not given is as the queue that is there has it.
        Raises StoreMismatch when one that is given is another than that.
        """
        found: SharedQueue = self.channels.attach(
            SharedQueue,
            name,
            {"maxsize": maxsize, "item_size": item_size, "codec": codec},
            {"maxsize": MAXSIZE, "item_size": ITEM_SIZE, "codec": "pickle"},
        )
        return found

    def ring(
        self,
        name: str,
        size: int | str | None = None,
        *,
        overrun: str | None = None,
        codec: str | None = None,
    ) -> RingBuffer:
        """The ring buffer of that name: a broadcast from one process, who sends, to all that read.

        Parameters: see `RingBuffer`. One that is not given is as the ring that is there has it.
        Raises StoreMismatch when one that is given is another than that.
        """
        found: RingBuffer = self.channels.attach(
            RingBuffer,
            name,
            {
                "size": None if size is None else parse_size(size),
                "overrun": overrun,
                "codec": codec,
            },
            {"size": SIZE, "overrun": BLOCK, "codec": "pickle"},
        )
        return found

    def listed(self, reference: int, home: int) -> list[int]:
        store = self._store_of(Link.of(home).entry)
        return [] if store is None else list(store.listed(reference, home))

    def references(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        empty = np.empty(0, dtype=np.uint64)
        return np.concatenate([empty, *(store.references() for store in self.known_stores())])

    def known_stores(self) -> Iterator[Any]:
        """A new handle of each store of the pool. Called within `exclusively`."""
        return self._handles(lambda cls: True)

    def stopping_stores(self) -> Iterator[Any]:
        """Likewise, of those whose tables a recovery stops (stores/dtx/stop.py)."""
        return self._handles(lambda cls: cls.stops)

    def _handles(self, wanted: Callable[[Any], bool]) -> Iterator[Any]:
        for _, (name, stored) in self._ready():
            cls = store_class(stored["kind"])
            if wanted(cls):
                yield cls(self, stored["kind"], name, _parameters(cls, stored, name))


def _check_name(name: str) -> None:
    if not is_name(name):
        raise ParameterError(
            f"a store's name is text of 1 to {NAME_SIZE_MAX} bytes of UTF-8, not {name!r}"
        )


def _why_not(kind: str, cls: Any, given: dict[str, Any], error: TypeError) -> str:
    """Why a kind of store does not take the parameters that were given."""
    fixed = kind_named(kind).fixed
    known = {
        name
        for base in cls.__mro__
        if "for_pool" in vars(base)
        for name, found in inspect.signature(base.for_pool).parameters.items()
        if found.kind is inspect.Parameter.KEYWORD_ONLY and name not in fixed
    }
    if unknown := sorted(set(given) - known):
        return (
            f"a {kind} store has no parameter {', '.join(unknown)}; it has "
            f"{', '.join(sorted(known))}"
        )
    return f"a {kind} store does not take these parameters: {error}"


def _parameters(cls: Any, stored: dict[str, Any], where: str) -> Any:
    try:
        return cls.Parameters(**stored["parameters"])
    except (TypeError, ParameterError) as error:
        raise PoolCorrupt(f"{where}: its parameters are damaged: {error}") from error
