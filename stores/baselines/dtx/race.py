"""The `dtx-race` store: a split is a distributed transaction (rTX section 6, "DTX").

A baseline after DrTM+H (Wei et al., OSDI '18), as far as the paper compares itself with it, like
`dtx-sherman` (stores/baselines/dtx/sherman.py): the lock is in the object, whole values are in the
log, they are written in place, and a recovery stops all clients (recovery.py). Searches, inserts,
updates and deletes are RACE's own, which take no lock, as in `rtx-race`. A client that finds no
room, or a frozen slot, splits the subtable by one transaction:

    1. take memory for the halves, their images and the log; the log names all of it, and is in the
       client journal before step 2
    2. lock the entries (race/index.py) of the halves and of the subtable, by words that name the
       client that holds them (stores/transactions/locks.py); a locked entry is a conflict.
       Validate that the subtable is the one that was read
    3. freeze the subtable (race/splitter.py), so no slot of it changes; write the new halves to the
       log, and then the decision
    4. write each half in place, then its pointer; at last SPLIT over the pointer of the subtable.
       Unlock; free the subtable, the images and the log

Entries of the log (stores/baselines/dtx/log.py)
    0, 1    object 0; `new` is the memory of a half
    2, 3    entry of that half; `new` is its image
    4       entry of the subtable, which is `old`

SPLIT comes last, so the halves are whole when a pointer leads to them, and clients use them though
they are still locked. Hence readers never wait for a split; a client that wants to split the same
subtable waits.

A kill leaves behind: the log in the client journal, locked entries, frozen slots. The recovering
client stops the directory, and waits until no client is in it (stores/baselines/dtx/recovery.py).
If the split was decided and SPLIT is not there, it repeats step 4 from the images. If it was not
decided, it thaws the frozen slots, so that clients can write to them though there is no memory for
another split. Then it unlocks, and lets all clients go on.

The recovering client must be alone. Otherwise it could find SPLIT missing, and write the halves
after another one had done so and let all clients go on: it would overwrite their later changes.

Every get, put, insert, update and delete looks, when it is pinned, at the word that stops the
directory. A client that goes through all keys, checks or audits does not need to: a recovery links
the halves only when they are whole.

A split takes memory for five subtables, for a while.

Limits of the paper: a recovery waits for a client that has stopped, and so do all other clients,
until it is fenced or, in a pool with fence="wait", until it goes on. In a pool of several hosts, a
client of another host that was declared dead may still write in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.layout import EXACTLY, NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import ADDRESS_MASK, REPLICATED
from limpet.shm.errors import NodeFailed
from limpet.shm.parameters import CLIENTS_MAX, check_whole
from limpet.stores.baselines.dtx.log import ValueLog
from limpet.stores.baselines.dtx.recovery import Recovery, stop_size
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import Objects
from limpet.stores.core.status import AGAIN, ATTEMPTS_PER_CHECK, DONE, NO_MEMORY
from limpet.stores.race.check import Check
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Holds, Index, Place, is_frozen, is_valid
from limpet.stores.race.layout import FROZEN, FROZEN_VACANT, SPLIT
from limpet.stores.race.parameters import GrowingParameters
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter
from limpet.stores.race.store import attach, make_directories, unmake_directories
from limpet.stores.transactions.entry_log import LogEntry
from limpet.stores.transactions.layout import DOING
from limpet.stores.transactions.locks import ObjectLocks

if TYPE_CHECKING:
    from typing_extensions import Self

    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters


@dataclasses.dataclass(frozen=True)
class DtxRaceParameters(GrowingParameters):
    """Those of `race`; `clients`: slots of the pool, each of which has a word (dtx/recovery.py)."""

    clients: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("clients", self.clients, 1, CLIENTS_MAX)

    @classmethod
    def for_pool(cls, pool: PoolParameters, layout: NodeLayout, **others: Any) -> Self:
        """The parameters for a pool; `others` are those of every table that grows."""
        base = GrowingParameters.for_pool(pool, layout, **others)
        return cls(**dataclasses.asdict(base), clients=pool.clients)

    @property
    def stop_offset(self) -> int:
        """Offset, in a directory's region, of the words by which it is stopped."""
        return super().directory_size

    @property
    def directory_size(self) -> int:
        """Bytes of a directory, with these words."""
        return self.stop_offset + stop_size(self.clients)


STOPPED: Final = 1
"""`Place.busy` of an operation whose directory is stopped; otherwise it is the locked entry."""


class DtxRace(HashStore):
    """The `dtx-race` store. `DtxRaceParameters`."""

    Parameters: type[DtxRaceParameters] = DtxRaceParameters
    resolves = True
    stops = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = self.entry_number << 48 | REPLICATED
        self.locks = ObjectLocks(self)
        self.recovery = Recovery(self, self.locks)
        self.stop_offset = parameters.stop_offset
        objects = Objects(pool.heap, in_place=True)
        index = Index(pool, name, parameters, objects, attach(pool, name, parameters), Holds(name))
        splitter = LoggedSplitter(pool, index, parameters, self)
        self.hold_parts(index, Slots(index, pool.client), splitter, Check(pool, index))

    make = staticmethod(make_directories)
    unmake = staticmethod(unmake_directories)

    # ---- operations -----------------------------------------------------------------------------

    def search_once(self, place: Place, key: bytes) -> Any:
        if self.is_stopped(place, self.index.table_of(key)):
            return None
        return HashStore.search_once(self, place, key)

    def search_batch(self, place: Place, keys: list[bytes], found: list[bytes | None]) -> bool:
        stopped = False
        for key in keys:
            stopped = stopped or self.is_stopped(place, self.index.table_of(key))
        if stopped:
            found += [None] * len(keys)
            return False
        return HashStore.search_batch(self, place, keys, found)

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        if self.is_stopped(self.place, self.index.table_of(key)):
            return AGAIN
        return HashStore._change_once(self, key, value, size, mode, attempt, at, way)

    # ---- stopped --------------------------------------------------------------------------------

    def stop_words(self) -> list[int]:
        """Addresses of the words by which each directory is stopped (recovery.py)."""
        return [table + self.stop_offset for table in self.index.tables]

    def is_stopped(self, place: Place, table: int) -> bool:
        """Whether a directory is stopped; then the operation, which is pinned, ends, and waits."""
        scope = self.endpoint.background(True)
        try:
            if self.endpoint.load(self.index.tables[table] + self.stop_offset) == 0:
                return False
        finally:
            self.endpoint.background(scope)
        place.table = table
        place.busy = STOPPED
        return True

    def back_off(self, busy: int, table: int, attempt: int) -> None:
        if busy:
            self.await_holder(0, table, attempt)

    def await_holder(self, at: int, table: int, attempt: int) -> None:
        """Wait a little; check now and then the client that stops the directory or, unless that is
        0, holds this entry."""
        self.endpoint.pause(attempt)
        if attempt % ATTEMPTS_PER_CHECK == 0:
            self.pool.exclusively(functools.partial(self.recovery.look_for, table, at))

    # ---- recovery -------------------------------------------------------------------------------

    def value_log(self, reference: int) -> SplitLog:
        """The log there."""
        return SplitLog(self, reference)

    def is_log(self, link_address: int) -> bool:
        """Whether a pair of a client journal is a log of this store."""
        return bool(link_address == self.link)

    def resolved(self, reference: int, link_address: int) -> bool:
        return bool(self.recovery.resolved(reference))

    def listed(self, reference: int, link_address: int) -> list[int]:
        return list(self.recovery.listed(reference))

    def left_by(self, ident: int) -> set[str]:
        found = self.splitter.left_by(ident)
        if self.recovery.has_stopped(ident):
            found.add("stopped")
        slot = ident >> INCARNATION_BITS
        for log, entries in self.recovery.logs_in(slot, ident):
            with contextlib.suppress(NodeFailed):
                found |= shown_by(
                    log, entries, {each for each, _ in journal_of(self.endpoint, slot)}
                )
        return found


class LoggedSplitter(Splitter):
    """Splits each subtable by a transaction with a log of values."""

    def __init__(self, pool: Any, index: Index, parameters: Any, store: DtxRace) -> None:
        super().__init__(pool, index, parameters)
        self.store = store
        self.objects_needed = 5
        """Two halves, their images, and the log, which takes memory of the same size."""
        self.exactly = EXACTLY
        """The log of a split is on the node of the table that its recovery stops."""

    def wait(self, busy: int, table: int, attempt: int) -> None:
        self.store.await_holder(0 if busy == STOPPED else busy, table, attempt)

    def split(self, place: Place) -> int:
        if self.store.is_stopped(place, place.table):
            return AGAIN
        numbers = [2 * place.number, 2 * place.number + 1]
        halves = [self.index.entry(place.table, number) - POINTER for number in numbers]
        split = LoggedSplit(self, place.pointer, numbers, halves, place.entry - POINTER)
        outcome = split.run()
        place.busy = split.busy
        return outcome

    def halves_of(self, numbers: list[int]) -> list[Any]:
        """The contents of the halves with these numbers, of the subtable that is frozen."""
        halves = [array("Q", self.filled(number, 0)) for number in numbers]
        depth = numbers[0].bit_length() - 2
        for index in range(len(self.words)):
            word = self.words[index]
            if index & 7 and is_valid(word):
                half = self.half_of(word, depth)
                halves[half][index] = word & ~FROZEN
        return halves


class SplitLog(ValueLog):
    """The log of a split."""

    def __init__(self, store: Any, reference: int) -> None:
        super().__init__(store.locks, reference)
        self.subtable_size = int(store.index.subtable_size)
        self.word = array("Q", [0])

    def carry_out(self, locked: list[LogEntry]) -> None:
        *_, first, second, parent = self.entries()
        # After the split, other clients may have changed the halves.
        if self.endpoint.load(parent.at + POINTER) == parent.old:
            images = [half.new & ADDRESS_MASK for half in (first, second)]
            self.install([self.endpoint.read(image, self.subtable_size) for image in images])
            self.endpoint.wait()

    def undo(self, locked: list[LogEntry]) -> None:
        """Thaw the subtable, which only the client that holds its lock can have frozen."""
        for base in [entry.old & ADDRESS_MASK for entry in locked if entry.old]:
            for slot in range(base, base + self.subtable_size, 8):
                word = self.endpoint.load(slot) if slot - base & 0x38 else 0
                if is_frozen(word):
                    thawed = 0 if word == FROZEN_VACANT else word & ~FROZEN
                    self.endpoint.cas(slot, word, thawed)

    def install(self, values: list[Any]) -> None:
        """Post that the halves have these values, in place, and are linked in the directory."""
        entries = self.entries()
        for memory, half, value in zip(entries[:2], entries[2:4], values, strict=True):
            at = memory.new & ADDRESS_MASK
            self.endpoint.post_gather(at, self.word, 0, bytes(value), b"")
            # CRASH(half-written): decided; recovery writes both halves again.
            # ORDER: the half before its pointer, and both pointers before SPLIT, on one node.
            self.word[0] = memory.new
            self.endpoint.post_write(half.at + POINTER, self.word, 1)
        self.word[0] = SPLIT
        self.endpoint.post_write(entries[4].at + POINTER, self.word, 1)


def shown_by(log: ValueLog, entries: list[LogEntry], logged: set[int]) -> set[str]:
    """The crash points that the owner of a log shows, if it is dead and these references are in its
    client journal."""
    holders = {log.locks.holder(entry.at) for entry in entries if entry.at}
    locked = log.owner() in holders
    if log.state() != DOING:
        if any(entry.new in logged for entry in entries):
            return {"noted"}
        return {"entry-locked"} if locked else set()
    *_, first, _, parent = entries
    if log.endpoint.load(parent.at + POINTER) != parent.old:
        return {"split-locked" if locked else "split-unlocked"}
    written = log.endpoint.load(first.at + POINTER) != 0
    return {"half-written"} if written else {"split-decided"}


class LoggedSplit:
    """The transaction that splits the subtable `old`.

    `numbers`, `halves`: number and address of the entries of both halves; `parent`: of `old`.
    """

    def __init__(
        self, splitter: LoggedSplitter, old: int, numbers: list[int], halves: list[int], parent: int
    ) -> None:
        self.splitter = splitter
        self.store = splitter.store
        self.endpoint = splitter.endpoint
        self.old = old
        self.numbers = numbers
        self.halves = halves
        self.parent = parent
        self.images: list[int] = []
        self.held: list[int] = []
        """Entries that this transaction has locked."""
        self.busy = 0
        """The entry that another client had locked."""

    def run(self) -> int:
        """DONE, also if it is split by now; AGAIN, if there is a conflict; NO_MEMORY."""
        log = self._prepare()
        if log is None:
            return NO_MEMORY
        locked = self._lock_all()
        log.named()
        if not locked:
            self._unlock()
            log.close(False)
            return AGAIN if self.busy else DONE
        self.store.pool.membership.progress()
        self.splitter.freeze(self.old)
        # CRASH(entry-locked): not decided; recovery thaws and unlocks.
        values = self.splitter.halves_of(self.numbers)
        for image, value in zip(self.images, values, strict=True):
            at = image & ADDRESS_MASK
            self.endpoint.post_gather(at, log.word, 0, bytes(value), b"")
        log.decide()
        # CRASH(split-decided): recovery writes the halves in place.
        self.endpoint.wait()
        log.install(values)
        # CRASH(split-locked): all of it is there; recovery unlocks.
        self._unlock()
        self.endpoint.wait()
        # CRASH(split-unlocked): recovery frees the subtable, the images and the log.
        log.close(True)
        return DONE

    def _prepare(self) -> SplitLog | None:
        """Allocate all memory: the client journal names it, and then the log. None: some is not
        ready."""
        store, client = self.store, self.store.client
        allocator, place = self.splitter.allocator, client.held
        node = self.old >> NODE_SHIFT & 0xFF | EXACTLY
        new = [allocator.allocate(node, self.splitter.index.subtable_size, 1) for _ in range(5)]
        if not all(new):
            # Memory in the client journal without a link is freed when the operation ends.
            return None
        log = SplitLog(store, new[0])
        log.open(client.ident)
        self.endpoint.wait()
        log.take_up(place, store.link)
        self.images = new[3:]
        for half in new[1:3]:
            log.note(LogEntry(0, 0, half))
        for at, image in zip(self.halves, self.images, strict=True):
            log.note(LogEntry(at, 0, image))
        log.note(LogEntry(self.parent, self.old, 0))
        return log

    def _lock_all(self) -> bool:
        """A phase of its own: lock the entries, and look whether the subtable is the one that was
        read."""
        wanted = (*self.halves, self.parent)
        tickets = [self.store.locks.post_acquire(at) for at in wanted]
        pointer = self.endpoint.post_load(self.parent + POINTER)
        self.endpoint.wait()
        for at, ticket in zip(wanted, tickets, strict=True):
            if self.endpoint.result(ticket):
                self.busy = at
            else:
                self.held.append(at)
        return not self.busy and self.endpoint.result(pointer) == self.old

    def _unlock(self) -> None:
        for at in self.held:
            self.store.locks.post_release(at)
