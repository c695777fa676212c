"""`Store`, the base class of all stores; and how a store is made and found again.

A store kind is a module with a class derived from `Store` and a frozen dataclass of parameters
(`Parameters`), which `for_pool(pool, layout, *, capacity=None, ...)` makes: `capacity` is a number
of keys that surely fit, and every parameter has a default that suits the pool. registry.py names
the kinds, and takes those of programs (`register`); examples/own_store.py is one. A class provides
    make(pool, name, parameters)      static: make the regions, perhaps half made already; each has
                                      the store's name, or this, a zero byte (PART)
                                      and more, as its name
    unmake(pool, name, parameters)    static: give them back after `make` raised
    get, _write, delete, __len__, keys, references, check
    losses_survived, replicated       of a replicated store
    replaced(node)                    if it remembers addresses
and inherits everything else. Compiled classes may derive from it in turn.

The loop of an operation is here, once for reads (`get`, `get_many`) and once for changes
(`_change`): enter, check that the store is there, make an attempt, leave; then get memory, make
room or wait, and make another attempt. A facade whose operations run in these loops gives the steps
    get_once, get_batch     an attempt at a read
    _change_once            an attempt at a change, in a mode
    _note                   in the same operation, after an attempt without a result: keep what the
                            next attempt needs
    _go_on                  between two attempts, outside of operations
The loops hand each step what the steps before it have returned; `Attempt` is what an operation
keeps between attempts.
"""

from __future__ import annotations

import contextlib
from typing import Any

from limpet.shm.catalogue.regions import INTERNAL
from limpet.shm.endpoint.layout import ENTRIES_MAX
from limpet.shm.endpoint.slots import CHANGED, MISSED, ROW_SIZE, ROWS, ROWS_COUNT
from limpet.shm.errors import (
    KeyExists,
    LimpetError,
    NodeFailed,
    ParameterError,
    StoreDropped,
    StoreError,
    StoreFull,
)
from limpet.shm.late import late
from limpet.stores.core import feed_layout
from limpet.stores.core.feed import Feed
from limpet.stores.core.feed_layout import OPEN
from limpet.stores.core.names import a_store, shown
from limpet.stores.core.status import (
    AGAIN,
    AT_ONCE,
    BATCH,
    DELETE,
    DONE,
    EXISTS,
    INSERT,
    MISSING,
    PUT,
    READ,
    UNPROVEN,
    UPDATE,
    WINDOW,
)
from limpet.stores.core.views import Reservation, ValueView, require_coherence


def as_bytes(what: str, data: Any) -> bytes:
    """`data`, a bytes-like object, as bytes; TypeError, naming `what`, for anything else."""
    if isinstance(data, bytes):
        return bytes(data)
    try:
        return memoryview(data).tobytes()
    except TypeError:
        raise TypeError(
            f"a {what} is bytes, bytearray or another bytes-like object, not "
            f"{type(data).__name__}; pool.dict() stores Python objects"
        ) from None


def made_for(cls: Any, number: int, word: int, *given: Any) -> Any:
    """A handle of the class `cls` for the store with that entry in the catalogue."""
    made = cls.__new__(cls)
    made.entry_number, made.entry_word = number, word
    made.__init__(*given)
    return made


class Attempt:
    """The notes of one operation between its attempts, after one with an unusual result.

    A kind has a class of its own if later attempts use results of earlier ones.
    """

    def __init__(self) -> None:
        self.outcome = AT_ONCE
        """The result of a write outside of its attempts; DONE, EXISTS or MISSING end it."""
        self.expected: bytes | None = None
        """Of a swap: the value that is to be there."""


class Window:
    """Operations on different keys that a pipeline does at once: gets of `keys`, and `pairs` that
    are put, inserted or updated, as `modes` says. There are at most BATCH of both together.

    `Store.run_batch` reads the keys, and changes the pairs from `start` to `end`; it is called
    until all pairs had their turn. What it leaves is done singly.
    """

    def __init__(self, keys: list[bytes], pairs: list[Any], modes: bytes) -> None:
        self.keys = keys
        self.pairs = pairs
        self.modes = modes
        self.found: list[bytes | None] = []
        """The values of the keys, in their order."""
        self.unread: list[int] = []
        """The places in `found` of those to be looked up singly."""
        self.start = 0
        self.end = 0
        """`run_batch` sets it before it changes anything."""
        self.left: list[int] = []
        """The places of the pairs that are changed singly."""
        self.doubtful: list[int] = []
        """The places of those of which it is not known whether they were changed, and why."""
        self.error: LimpetError | None = None

    def reads(self) -> bool:
        """Whether there are keys that were not looked up yet."""
        return len(self.found) < len(self.keys)

    def leave(self) -> None:
        """Leave all pairs that had no turn."""
        self.left.extend(range(self.start, len(self.pairs)))
        self.end = len(self.pairs)

    def stop(self, error: LimpetError, reads: bool) -> None:
        """`run_batch` was cut off by this error. What it has not begun to change is left; so are
        all reads, if it had any."""
        self.error = error
        known = {*self.left, *self.doubtful}
        self.doubtful += [at for at in range(self.start, self.end) if at not in known]
        self.start = self.end
        self.leave()
        if reads:
            self.found = [None] * len(self.keys)
            self.unread = list(range(len(self.keys)))


class Store:
    """A key-value store in a pool: bytes to bytes, linearizable per key.

    A handle may be used by several threads (one operation at a time is inside), survives `fork`,
    and pickles by name. Any operation may also raise NodeFailed, PoolClosed and ReentrantUse.
    """

    ordered = False
    """Whether it has `scan`; limpet's own kinds by their `scans` (sherman/scans.py)."""
    scans: Any = None
    entries_max = ENTRIES_MAX
    """Its entry of the catalogue has a number below this."""
    grows = False
    """Whether it grows as long as there is memory."""
    replicated = False
    """Whether it has replicas of everything; then it `resolves`, and the class has `reconcile` and
    `refill`."""
    durable = False
    """Whether what it has returned survives a power cut in a durable pool; then it has `mend`."""
    resolves = False
    """Whether client journals name its links as stores/fusee/links.py says; then the class has
    `resolved`."""
    stops = False
    """Whether the recovery of a client stops its tables; then the class has `stop_words`
    (stores/baselines/dtx/recovery.py)."""
    transactional = False
    """Whether it takes part in transactions (stores/rtx/transaction.py)."""
    swaps = False
    """Whether it has `swap`."""
    majorities = False
    """Whether it survives the loss of a minority of the replicas only, and not of all but one."""
    views = False
    """Whether it has `view` and `reserve`, by `hold`, `let_go_of`, `reserve_object` and
    `link_reserved`; with replicas, by `have_ready` in place of the last two."""
    watchable = False
    """Whether it has `changes`: then each of its writes notes its keys in `feed` (feed.py)."""
    losses_survived = 0
    """Memory nodes that may be lost without any operation failing; for an instance, with its
    parameters. 0: keys on a lost node are lost, and operations on them raise NodeFailed."""

    entry_number: int
    entry_word: int
    """Number and state word of the store's entry in the catalogue: `made_for` gives them."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        self.pool = pool
        self.kind = kind
        self.name = name
        self.parameters = parameters
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.heap = pool.heap
        self.allocator = pool.allocator
        self.drops = self.client.drops
        self.feed: Feed | None = None
        """Where writers note their keys; None: nobody watches the store."""
        if self.watchable and not self._find_feed():
            self.drops ^= feed_layout.WATCHED  # the first operation looks again
        self.spares = not name.startswith(INTERNAL)
        """Whether its new entries leave memory for updates; limpet's own stores need little, and
        must work."""
        self.operations = 0
        self.row = ROWS + ROW_SIZE * (self.entry_number % ROWS_COUNT)
        """Where the figures of this client have the counts of the store."""
        self.retries = 0
        self.prefetches = False
        """Whether the store has a `_prefetch_keys` of its own, or `_prefetched`."""
        self.glances = False
        """Whether gets have no pin: there is a `glance_at`, and the pool lets it."""
        self.locks_first = False
        """Whether changes, and later attempts of gets, begin with `_enter`, which takes locks."""
        self.batches_gets = False
        """Whether `get_many` reads by `get_batch`."""
        self.lends = self.views and pool.is_in_place
        """Whether it has values in place: its kind has, and the pool lets it."""

    def require_there(self) -> None:
        """Raise StoreDropped if the store was dropped. In an operation, before any other step."""
        if self.client.drops != self.drops:
            self._after_a_drop()

    def glanced(self, key: bytes) -> Any:
        """The value of a key without a pin (race/glance.py, inline.py), None: it is missing, or
        UNPROVEN. Not in an operation."""
        client = self.client
        while self.endpoint.begin():
            client.rejoin()
        try:
            if client.ident:
                found = self.glance_at(key)
                # ORDER: after all reads, as in `unpin`: a client that was declared dead may have
                # read another pool.
                if not client.remotely_fenced or self.endpoint.load(client.slot) == client.word:
                    return found
        except LimpetError:
            pass  # perhaps of memory that was used again: the search with a pin says
        finally:
            self.endpoint.end()
        return UNPROVEN

    def glance_at(self, key: bytes) -> Any:
        """As `glanced`, while the other threads are kept out. A LimpetError means UNPROVEN, too."""
        return UNPROVEN

    def within(self, step: Any, *arguments: Any) -> Any:
        """Run a step as an operation of its own; its result. Raises StoreDropped."""
        self.client.enter()
        try:
            self.require_there()
            return step(*arguments)
        finally:
            self.client.leave()

    def while_there(self, look: Any, *arguments: Any) -> Any:
        """As `within`, where the other threads are kept out already: within `exclusively`.

        A client that waits looks at the store's memory only in here: between two looks the store
        may be dropped, and its memory be another's.
        """
        self.client.pin()
        try:
            self.require_there()
            return look(*arguments)
        finally:
            self.client.unpin()

    def proved(self, look: Any) -> Any:
        """A look at the whole store that reads without a pin, too; its result. Outside of
        operations.

        What is read of a store that is dropped meanwhile may be another's: then the look has no
        result, and its errors mean nothing. Raises StoreDropped, PoolClosed.
        """
        self.within(_nothing)
        try:
            found = look()
        except Exception:
            self.within(_nothing)
            raise
        self.within(_nothing)
        return found

    def show_progress(self, count: int) -> None:
        """Show progress of a long walk, pinned; `count` decides how often."""
        if not count & 0xFF:
            self.pool.membership.progress()
            self.client.go_on()

    def _after_a_drop(self) -> None:
        if not self.pool.catalogue.is_unchanged(self.entry_number, self.entry_word):
            self.let_go()
            raise StoreDropped(
                f"{self.pool.url}: the store {self.name!r} was dropped; pool.store(), "
                "pool.dict() or pool.cache() makes a new one of that name"
            )
        # ORDER: before the change of this operation: the client that made a feed waits for those
        # that were pinned before.
        if not self.watchable or self._find_feed():
            self.drops = self.client.drops

    def _find_feed(self) -> bool:
        """Find the feed, after DROPS has changed; False: its node has new memory that cannot be
        used now. Pinned, before any other step of an operation."""
        region = None
        if self.client.drops & feed_layout.WATCHED:
            try:
                self.pool.keep_up()
            except NodeFailed:
                self.feed = None
                return False
            with contextlib.suppress(NodeFailed):  # it is lost, and what was noted there
                region = self.pool.regions.find(feed_layout.NODE, self.name + feed_layout.NAME)
        if region is None:
            self.feed = None
        elif self.feed is None or self.feed.address != region.address:
            self.feed = late("limpet.stores.channels.changes").StoreFeed(self.pool, region)
        return True

    @staticmethod
    def complete(pool: Any, name: str, parameters: Any) -> bool:
        """Whether `make` is complete on all nodes in service. Pinned, while no node is filled."""
        return True

    # ---- the loops of operations ----------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. Round trips: in the docstring of the kind's module."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        self.operations += 1
        self.endpoint.figures[self.row] += 1
        if self.glances and not self.endpoint.durable:
            found = self.glanced(key)
            if found is UNPROVEN:
                found = self._get_pinned(key)
        else:
            found = self._get_pinned(key)
        if found is None:
            self.endpoint.figures[self.row + MISSED] += 1
            return default
        return found

    def _get_pinned(self, key: bytes) -> Any:
        """The value of `key`, or None, by attempts until one has a result."""
        attempt = 0
        way: Any = None
        held: Any = None
        while True:
            at = self._prefetched(key) if self.prefetches else 0
            if attempt and self.locks_first:
                held = self._enter(key, attempt, False)
            else:
                self.client.enter()
            try:
                if held is None and self.client.drops != self.drops:
                    self.require_there()
                found = self.get_once(key, attempt, at)
                if found is UNPROVEN:
                    way = self._note(AGAIN, way, key, 0)
            finally:
                if held is None:
                    self.client.leave()
                else:
                    self._leave(held)
            if found is not UNPROVEN:
                return found
            attempt += 1
            way = self._go_on(AGAIN, way, key, b"", 0, READ, attempt)

    def _change(self, key: bytes, value: bytes, size: int, mode: int, way: Any) -> int:
        """Change a key, by attempts until the result is DONE, EXISTS or MISSING. `size`: bytes of
        the object for the value; `way`: how it begins; None: in the usual way."""
        self.operations += 1
        self.endpoint.figures[self.row] += 1
        self.endpoint.figures[self.row + CHANGED] += 1
        attempt = 0
        held: Any = None
        while True:
            at = self._prefetched(key) if self.prefetches else 0
            if self.locks_first:
                held = self._enter(key, attempt, True)
            else:
                self.client.enter()
            try:
                if held is None and self.client.drops != self.drops:
                    self.require_there()
                if self.feed is None:
                    outcome = self._change_once(key, value, size, mode, attempt, at, way)
                else:
                    outcome = self._change_noted(key, value, size, mode, attempt, at, way)
                if outcome not in (DONE, EXISTS, MISSING):
                    way = self._note(outcome, way, key, size)
            finally:
                if held is None:
                    self.client.leave()
                else:
                    self._leave(held)
            if outcome in (DONE, EXISTS, MISSING):
                return outcome
            if outcome == AGAIN:
                attempt += 1
            way = self._go_on(outcome, way, key, value, size, mode, attempt)
            if way is not None and way.outcome != AT_ONCE:
                return way.outcome

    def get_many(self, keys: Any) -> list[bytes | None]:
        """The values of `keys`, in their order; None for each that is missing. The reads of 32 keys
        overlap in kinds that batch gets."""
        if not self.batches_gets:
            return self._get_each(keys)
        wanted = [key if type(key) is bytes else as_bytes("key", key) for key in keys]
        found: list[bytes | None] = []
        for start in range(0, len(wanted), BATCH):
            # one pin a batch: a long pin looks like a stopped process
            batch = wanted[start : start + BATCH]
            self.client.enter()
            try:
                self.require_there()
                left = self.get_batch(batch, found)
            finally:
                self.client.leave()
            self._count(len(batch) - len(left), 0)
            missed = -len(left)
            for value in found[start:]:  # `count` compares each with None
                if value is None:
                    missed += 1
            self.endpoint.figures[self.row + MISSED] += missed
            for place in left:
                found[place] = self.get(wanted[place])
        return found

    def _count(self, operations: int, changes: int) -> None:
        """Count operations, and how many of them are changes, in this handle and in the figures of
        this client (slots.py)."""
        self.operations += operations
        self.endpoint.figures[self.row] += operations
        self.endpoint.figures[self.row + CHANGED] += changes

    def _prefetched(self, key: bytes) -> int:
        """Prefetch what an operation on a key touches first; a number for its attempt."""
        return 0

    def _enter(self, key: bytes, attempt: int, writes: bool) -> Any:
        """If `locks_first`, begin a change, or a later attempt of a get: the locks for `_leave` to
        give back, after a look that the store is there. Or None: begin as any operation."""
        raise NotImplementedError

    def _leave(self, held: Any) -> int:
        """End that operation; 0."""
        raise NotImplementedError

    def get_once(self, key: bytes, attempt: int, at: int) -> Any:
        """The value of a key; None: it is missing; UNPROVEN: another client was in the way. `at`:
        as `_prefetched` has it."""
        raise NotImplementedError

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys; the places in `found` of those to be looked up
        one by one."""
        raise NotImplementedError

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        """Attempt a put, insert, update or delete: DONE, EXISTS, MISSING, AGAIN, or a status for
        `_go_on`. EXISTS if `way` has a value that is expected, and the value is another one."""
        raise NotImplementedError

    def _change_noted(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        """As `_change_once`, with a feed (feed.py)."""
        feed: Any = self.feed
        outcome = OPEN
        feed.open(key, mode)
        try:
            outcome = self._change_once(key, value, size, mode, attempt, at, way)
        finally:
            feed.close(outcome)
        return outcome

    def _note(self, outcome: int, way: Any, key: bytes, size: int) -> Any:
        """In the operation of an attempt without a result: keep what `_go_on` needs of it."""
        return way

    def _go_on(
        self, outcome: int, way: Any, key: bytes, value: bytes, size: int, mode: int, attempt: int
    ) -> Any:
        """Wait after AGAIN, or get what the attempt lacked. Outside of operations. `attempt`: how
        often the result was AGAIN. Raises StoreFull."""
        raise NotImplementedError

    def get_slice(self, key: Any, start: int | None = None, stop: int | None = None) -> Any:
        """`value[start:stop]` of the value of `key`; None: there is no value.

        A `race` store reads no more than that of a value of more than 4 KiB.
        """
        value = self.get(key)
        return None if value is None else value[start:stop]

    def size_of(self, key: Any) -> int | None:
        """Bytes of the value of `key`; None: there is no value."""
        value = self.get(key)
        return None if value is None else len(value)

    def sizes(self) -> tuple[int, int]:
        """The number of keys, and the bytes of all keys and values; looks at each."""
        keys = total = 0
        for key in self.keys():
            size = self.size_of(key)
            if size is not None:
                keys += 1
                total += len(key) + size
        return keys, total

    def put(self, key: Any, value: Any) -> None:
        """Insert or update. Raises KeyTooLarge, ValueTooLarge, StoreFull; then nothing changed."""
        self._write(key, value, PUT)

    def insert(self, key: Any, value: Any) -> None:
        """Insert; KeyExists if the key is there. Raises as `put` does."""
        if self._write(key, value, INSERT) == EXISTS:
            raise self._key_exists(key)

    def _key_exists(self, key: Any) -> KeyExists:
        return KeyExists(f"{self.name}: the key {shown(key)} is there already")

    def update(self, key: Any, value: Any) -> None:
        """Update; KeyError if the key is not there. Raises as `put` does."""
        if self._write(key, value, UPDATE) == MISSING:
            raise KeyError(key)

    def _write(self, key: Any, value: Any, mode: int) -> int:
        """Write in this mode (status.py): DONE, EXISTS or MISSING. Raises as `put` does."""
        raise NotImplementedError

    def view(self, key: Any) -> ValueView:
        """`with store.view(key) as value`: the value in place, a read-only memoryview; None:
        the key is missing. It stays what it is until the end of the block, whatever others do to
        the key. Using it later raises ValueError; the block ends with BufferError if something else
        still has its memory (views.py). Without a block, `store.view(key).memory()` is a memoryview
        that keeps the value as long as anything has it. StoreError: this kind has no views."""
        if not self.lends:
            self._require_views()
        return ValueView(self, key if type(key) is bytes else as_bytes("key", key))

    def view_many(self, keys: Any) -> list[memoryview | None]:
        """The values of `keys` in place, in their order, each as of `view(key).memory()`; None for
        each that is missing. Raises as `view`; not one atomic step."""
        return [self.view(key).memory() for key in keys]

    def reserve(self, key: Any, size: int) -> Reservation:
        """`with store.reserve(key, size) as buffer`: memory for a value of `size` bytes, a writable
        memoryview, with arbitrary contents; fill all of it. At the end of the block it becomes the
        value of `key` in one step, as by `put`; nothing changes if the block raises, or is killed.
        Raises as `put` does, most of it when the block begins."""
        if not self.lends:
            self._require_views()
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ParameterError(f"a value has a whole number of bytes, not {size!r}")
        return Reservation(self, key if type(key) is bytes else as_bytes("key", key), size)

    def _require_views(self) -> None:
        if not self.views:
            raise StoreError(
                f"{self.name}: {a_store(self.kind)} has no values in place; use get and put, or a "
                "store of kind race, rtx-race or fusee"
            )
        if self.pool.remote:
            raise StoreError(
                f"{self.name}: a remote client views nothing in place; use get and put"
            )
        require_coherence(self)

    def hold(self, key: bytes, owner: Any) -> tuple[int, int] | None:
        """Hold the object of a key for this owner (holds.py): address and size of the value; None:
        the key is missing."""
        raise NotImplementedError

    def let_go_of(self, owner: Any) -> None:
        """Let go what this client holds for the owner."""
        raise NotImplementedError

    def reserve_object(self, key: bytes, size: int, owner: Any) -> tuple[int, int]:
        """An object for this key and a value of `size` bytes, held for this owner: its reference
        and the address of the value."""
        raise NotImplementedError

    def link_reserved(self, key: bytes, owner: Any, reference: int, size: int, digest: int) -> int:
        """Make the value that is in a reserved object, with this checksum, the value of its key.
        After an exception the owner may still hold it."""
        raise NotImplementedError

    def changes(self, prefix: Any = b"") -> Any:
        """The changes of keys that begin with `prefix`, from now on: a `Changes`, with `get` and
        iteration. Each process may have as many as it likes.

        The first call for a store waits until all operations that run have ended. From then on each
        write of the store notes its keys. StoreError: this kind cannot.
        """
        if not self.watchable:
            raise StoreError(
                f"{self.name}: {a_store(self.kind)} tells nobody of its changes; race, rtx-race "
                "and rtx-sherman do"
            )
        return late("limpet.stores.channels.changes").watch(self, as_bytes("prefix", prefix))

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there."""
        raise NotImplementedError

    def swap(self, key: Any, expected: bytes, value: Any = None) -> bool:
        """Set a key to `value`, or delete it for None, if its value is `expected`; whether it was.

        One atomic step. Raises StoreError: this kind has none; and as `put` does.
        """
        if not self.transactional:
            raise StoreError(
                f"{self.pool.url}: {self.name!r} is {a_store(self.kind)}, which cannot compare a "
                "value and replace it in one step; race, rtx-race, rtx-sherman, fusee, rcuckoo and "
                "loco do"
            )
        name = as_bytes("key", key)

        def work(tx: Any) -> bool:
            if tx.get(self, name) != expected:
                return False
            if value is None:
                tx.delete(self, name)
            else:
                tx.update(self, name, value)
            return True

        return bool(self.pool.transaction(work))

    def __len__(self) -> int:
        """The number of keys; counts all of them."""
        raise NotImplementedError

    def keys(self) -> Any:
        """Every key, as weakly consistent as `iter`."""
        raise NotImplementedError

    def check(self) -> None:
        """Verify every invariant in memory; StoreCorrupt names the one that does not hold."""
        raise NotImplementedError

    def references(self) -> Any:
        """References to all objects that the store links to, as a uint64 array; for audits.

        Never raises NodeFailed: links on a lost node are left out. Called within `exclusively`,
        perhaps pinned: it does not pin.
        """
        raise NotImplementedError

    def mend(self) -> dict[int, int]:
        """Make the store whole after a power cut, with no other client there, and nothing of it in
        use but what it links to. By reference, the bytes of its objects that take blocks of their
        own. A kind that is `durable` has it."""
        raise NotImplementedError

    def index_size(self) -> int:
        """Bytes of the objects that are the index itself, and have no pair."""
        return 0

    def growth(self) -> dict[str, Any]:
        """How far the store has grown, as `pool.growth` has it; empty if that cannot be said."""
        return {}

    def listed(self, reference: int, link_address: int) -> list[int]:
        """References, besides its own, to objects that a pair of a client journal stands for; for
        audits."""
        return []

    def left_by(self, ident: int) -> set[str]:
        """The named crash points of this kind at which the dead client `ident` may have been.

        Called within `exclusively`; changes nothing.
        """
        return set()

    def _get_each(self, keys: Any) -> list[bytes | None]:
        """As `get_many`, one by one."""
        if not self.prefetches:
            return [self.get(key) for key in keys]
        wanted = list(keys)
        found: list[bytes | None] = []
        for start in range(0, len(wanted), BATCH):
            batch = wanted[start : start + BATCH]
            self._prefetch_batch([key for key in batch if type(key) is bytes])
            for key in batch:
                found.append(self.get(key))
        return found

    def put_many(self, pairs: Any) -> None:
        """`put` each (key, value) of `pairs`, a mapping or an iterable; not atomic as a whole.

        Raises as `put` does. A bad key or value (TypeError, KeyTooLarge, ValueTooLarge) is found
        when its turn comes: the pairs before it are put then, and perhaps some after it. After
        another error, each pair is put or not.

        The pairs of a list, a tuple or a dict are known beforehand, and take less time in some
        stores (`_prefetch_keys`) than pairs that another iterable gives one by one.
        """
        if self.prefetches and type(pairs) is dict:
            pairs = list(pairs.items())
        if self.prefetches and (type(pairs) is list or type(pairs) is tuple):
            for start in range(0, len(pairs), BATCH):
                batch = pairs[start : start + BATCH]
                self._prefetch_batch(
                    [
                        pair[0]
                        for pair in batch
                        if type(pair) is tuple and len(pair) > 0 and type(pair[0]) is bytes
                    ]
                )
                for key, value in batch:
                    self.put(key, value)
        else:
            # one by one: the next pair may depend on the puts before it
            for key, value in pairs.items() if hasattr(pairs, "items") else pairs:
                self.put(key, value)

    def pipeline(self, window: int = WINDOW) -> Any:
        """`with store.pipeline() as p`: operations, `window` of them at a time (pipeline.py). Their
        results come when `window` operations wait, or when they are asked for."""
        return late("limpet.stores.core.pipeline").Pipeline(self, window)

    def run_batch(self, window: Any) -> None:
        """In an operation: read the keys of a window of a pipeline, and change its next pairs, as
        far as this kind has batches of changes."""
        if window.reads():
            window.unread = self.get_batch(window.keys, window.found)
        window.leave()

    def delete_many(self, keys: Any) -> int:
        """Delete each of `keys` that is there; how many were. Not atomic as a whole. If one of them
        cannot be a key, none is deleted."""
        count = 0
        for key in [as_bytes("key", key) for key in keys]:
            try:
                self.delete(key)
            except KeyError:
                continue
            count += 1
        return count

    def _prefetch_batch(self, keys: list[bytes]) -> None:
        """Prefetch what operations on these `keys`, at most BATCH, touch first."""
        if self.endpoint.hints:
            self.client.begin()
            try:
                self._prefetch_keys(keys)
            finally:
                self.client.end()

    def _prefetch_keys(self, keys: list[bytes]) -> None:
        """Prefetch only: no verbs, and no state on which an operation relies, as it is not pinned.
        A store may leave it out."""

    def scan(
        self,
        low: Any = None,
        high: Any = None,
        *,
        prefix: Any = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Any:
        """The pairs with low <= key < high, in the order of keys; None: from the first, to the
        last.

        `prefix`: only keys that begin with it; `reverse`: in descending order; `limit`: at most so
        many. Each pair was there at some moment of the scan; to see all at one moment, scan in a
        transaction. StoreError: this store is not ordered.
        """
        if not self.ordered:
            raise StoreError(f"{a_store(self.kind)} is not ordered; scans need a tree store")
        return self.scans.scan(low, high, prefix, reverse, limit)

    def first(self, low: Any = None, high: Any = None, *, prefix: Any = None) -> Any:
        """The first pair of that range, as `scan` has it; None: it is empty."""
        return next(self.scan(low, high, prefix=prefix, limit=1), None)

    def last(self, low: Any = None, high: Any = None, *, prefix: Any = None) -> Any:
        """The last pair of that range; None: it is empty. StoreError, as of `scan`."""
        return next(self.scan(low, high, prefix=prefix, reverse=True, limit=1), None)

    def ceiling(self, key: Any) -> Any:
        """The pair with the least key that is not below `key`; None: there is none."""
        return self.first(key)

    def floor(self, key: Any) -> Any:
        """The pair with the greatest key that is not above `key`; None: there is none."""
        return self.last(high=as_bytes("key", key) + b"\0")

    def have_memory(self, key: Any, mode: int, *wanted: Any) -> Any:
        """Have memory ready for a write, by `find_memory(update, *wanted)`; its result.

        `update`: also from the memory that new entries leave for updates. A put counts as an update
        if the key is there; that is looked up only when there is no other memory. Outside of
        operations. Raises StoreFull, and KeyExists for an insert of a key that is there.
        """
        update = mode in (UPDATE, DELETE) or not self.spares
        if mode == PUT and not update and self.allocator.refused and key in self:
            update = True
        try:
            return self.find_memory(update, *wanted)
        except StoreFull:
            if mode == INSERT and key in self:
                raise self._key_exists(key) from None
            if update or mode != PUT or key not in self:
                raise
        return self.find_memory(True, *wanted)

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """Have memory ready for an object: `wanted` is its node and its size in bytes."""
        node, size = wanted
        return self.allocator.replenish(node, size, 1, 0, 0, update)

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Any:
        """Every key. One that is inserted or deleted meanwhile may be missing; one that is deleted
        and inserted again may be met twice; no other key is."""
        return iter(self.keys())

    def items(self) -> Any:
        """Every key with its value, as weakly consistent as `iter`; in order, if it is ordered."""
        return self.scan() if self.ordered else self._items()

    def _items(self) -> Any:
        for key in self.keys():
            value = self.get(key)
            if value is not None:
                yield key, value

    def replaced(self, node: int) -> None:
        """From now on, `node` has new memory: forget the addresses on it."""

    def forget(self) -> None:
        """Forget everything that this handle remembers outside of shared memory."""

    def let_go(self) -> None:
        """The pool's handle was closed, or the store dropped: free resources outside of memory."""

    def recover(self) -> dict[str, Any]:
        """Recover dead clients now, rather than when their traces are met: `pool.recover()`."""
        return self.pool.recover()

    def stats(self) -> dict[str, Any]:
        """Counts of this handle of the store (`ops`, `retries`), and of its pool handle's verbs:
        those of all stores, channels and threads that use that, since it was opened.

        `reads`, `writes`, `cas` (`cas_lost` of them failed), `atomics` (the other atomics),
        `bytes_read`, `bytes_written` and `round_trips` count the verbs of operations on memory
        nodes, `exchanges` how often a fabric would wait for answers to them (at most; exactly in
        `race` and `fusee`), `lines_flushed` and `fences` their write-backs; `background` has the
        same counts for housekeeping, with a message a node for what an operation leaves to be done;
        `control` for the control segment, and for the looks that a get has in place of a pin.
        """
        return {
            "kind": self.kind,
            "name": self.name,
            "ops": self.operations,
            "retries": self.retries,
            **self.endpoint.counters(),
            "background": self.endpoint.counters("background"),
            "control": self.endpoint.counters("control"),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self.pool, self.kind, self.name)

    def __repr__(self) -> str:
        return f"<{self.kind} store {self.name!r} of {self.pool.url}>"


def _nothing() -> None:
    """An operation that only looks whether the store is there."""


def _attached(pool: Any, kind: str, name: str) -> Any:
    return pool.attached(kind, name)[0]
