"""Tables of RCuckoo of known shape: keys by their rows, inserts that need a path of known length.

With a locality of 1.01 every key's second row is the one after its first, so a table is a ring of
rows. In one that is full but for one entry, an insert moves an entry of each row on the way there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from kit.puppets import Testbed, Where
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_program import ABSENT
from limpet.fault.matrix import crash_evidence
from limpet.fault.matrix.operations import BYSTANDER, KEY, OLD
from limpet.fault.matrix.testbed import StoreTestbed
from limpet.shm.endpoint.fabric import hash64
from limpet.stores.rcuckoo.layout import SLOTS, STATE
from limpet.stores.rcuckoo.rows import DependentHash

RING: Final[Mapping[str, Any]] = {
    "capacity": 64, "key_size": 15, "value_size": 32, "locality": 1.01, "rows_per_lock": 1,
}  # fmt: skip
ROWS: Final = 16
"""Of such a table."""


def places_of(store: Any, key: bytes) -> tuple[int, int]:
    """The rows of a key, in a store with one table."""
    places = DependentHash(store.parameters.rows, store.parameters.locality)
    places.place(hash64(key))
    return places.first, places.second


def keys_in(
    store: Any, first: int, second: int | None = None, prefix: bytes = b"x"
) -> Iterator[bytes]:
    """Keys with these rows."""
    for number in itertools.count():
        key = b"%s%d" % (prefix, number)
        found = places_of(store, key)
        if found[0] == first and second in (None, found[1]):
            yield key


def some(store: Any, count: int, first: int, second: int | None = None) -> list[bytes]:
    """So many keys with these rows."""
    return list(itertools.islice(keys_in(store, first, second), count))


class Ring:
    """The keys, by rows, that leave one empty entry in a ring: `moves` moves away from `key`."""

    def __init__(self, store: Any, key: bytes, moves: int, there: bytes = BYSTANDER) -> None:
        """`there`: a key that the store has already."""
        assert store.parameters.rows == ROWS
        self.store = store
        self.key = key
        self.first, self.second = places_of(store, key)
        self.vacant = (self.second + moves) % ROWS
        self.way = [(self.second + step) % ROWS for step in range(moves + 1)]
        self.keys = {row: some(store, SLOTS - (row == self.vacant), row) for row in range(ROWS)}
        self.keys[places_of(store, there)[0]][0] = there
        for row in range(ROWS):
            self.put(row)

    def put(self, row: int) -> None:
        """Put the keys of a row, which all go there if it has room."""
        for key in self.keys[row]:
            self.store.put(key, OLD)

    def put_back(self) -> None:
        """Have all keys be in their first rows again, and the key not be there."""
        if self.key in self.store:
            self.store.delete(self.key)
        for row in self.way:
            for key in self.keys[row]:
                self.store.delete(key)
        for row in self.way:
            self.put(row)

    @property
    def others(self) -> tuple[bytes, ...]:
        """All keys but the one to be inserted."""
        return tuple(itertools.chain.from_iterable(self.keys.values()))


class PathScene(StoreTestbed):
    """A pool of the crash matrix whose table is such a ring: inserts of KEY move entries."""

    moves = 1

    def __init__(self, url: str, kind: str, fence: str = "kill") -> None:
        super().__init__(url, kind, fence)
        self.ring = Ring(self.store, KEY, self.moves)
        self.bystanders = self.ring.others

    def reset(self, operation: Any) -> None:
        super().reset(operation)
        self.ring.put_back()

    def aftermath(self, operation: Any, possible: set[bytes | None], first: str) -> None:
        """At once, before any recovery, every other key has its value."""
        for key in self.bystanders:
            assert self.store.get(key) == OLD, f"another key was damaged at once: {key!r}"
        super().aftermath(operation, possible, first)


def path_scene(count: int) -> type[PathScene]:
    """Such scenes with so many moves."""

    class Scene(PathScene):
        moves = count

    return Scene


class Clients(Testbed):
    """A store with a ring of rows, puppets of it, and clients that die where they are told to."""

    kind = "rcuckoo"
    dies = True

    def __init__(self, pools: Any, puppets: int, fence: str = "kill", **parameters: Any) -> None:
        super().__init__(pools, puppets, {"fence": fence}, **{**RING, **parameters})
        self.table = int(self.store.lookup.tables[0])
        self.locks = range(
            self.table + self.store.lookup.locks_at,
            self.table + self.store.lookup.locks_at + 8 * self.store.parameters.locks,
            8,
        )
        """Addresses of the rows' locks."""

    def key(self, row: int, value: bytes = OLD, other: int | None = None, number: int = 0) -> bytes:
        """A key with that first row (and that second one), which is put if it is not there."""
        key = some(self.store, number + 1, row, other)[-1]
        if key not in self.store:
            self.store.put(key, value)
        return key

    def looks(self) -> Where:
        """A look at a lock."""
        return lambda verb, address: verb == "load" and address in self.locks

    def tries(self, number: int = 1) -> Where:
        """Before a client notes the locks that it will take, for that time: so it has been refused
        one time less."""
        left = [number]

        def there(verb: str, address: int) -> bool:
            left[0] -= verb == "write_words" and 0 <= self._in_journal(address) < STATE
            return left[0] == 0

        return there

    def holds(self) -> Where:
        """With all of its locks, before a client notes what it will write."""
        return lambda verb, address: verb == "write_words" and self._in_journal(address) > STATE

    def _in_journal(self, address: int) -> int:
        """The offset in a journal; -1: it is elsewhere."""
        if self.table <= address < self.locks.start:
            return (address - self.table) % int(self.store.lookup.journal_size)
        return -1

    def writes(self, number: int = 1) -> Where:
        """The write of that number to rows: of the header line, of the entry, of the sequence, and
        so on; of rows with sums, of the entry, of the header, and so on."""
        left = [number]

        def there(verb: str, address: int) -> bool:
            left[0] -= verb == "write_words" and address >= self.locks.stop
            return left[0] == 0

        return there

    def takes(self, number: int = 1) -> Where:
        """The CAS of that number on a lock: one that takes it, or gives it back."""
        left = [number]

        def there(verb: str, address: int) -> bool:
            left[0] -= verb == "cas" and address in self.locks
            return left[0] == 0

        return there

    def locked(self) -> int:
        """A bit for each row whose lock is taken."""
        return sum(1 << row for row, word in enumerate(self.locks) if self.load(word))

    def points(self) -> set[str]:
        """The crash points that the dead show."""

        def look() -> set[str]:
            membership = self.pool.membership
            there = [each for each in membership.occupied() if membership.dead(*each)]
            return set().union(*(crash_evidence.seen(self.pool, *each) for each in there))

        return set(self.pool.exclusively(look))

    def sound(self) -> None:
        """Nothing is wrong, leaked or locked."""
        super().sound()
        assert self.locked() == 0


# ---- the explorer's ------------------------------------------------------------------------------

SMALL_RING: Final[Mapping[str, Any]] = {
    "capacity": 16, "locality": 1.01, "rows_per_lock": 1, "depth": 6, "value_size": 64,
}  # fmt: skip
SPARE: Final = 4
"""Empty entries that are left in it."""


@contextlib.contextmanager
def crowded() -> Iterator[None]:
    """Have the explorer's stages be rings with empty entries in one row, far from absent keys'."""
    prepare = SimulatedCluster._prepare

    def prepared(stage: SimulatedCluster) -> None:
        prepare(stage)
        fill_but_one(stage.store)
        stage.image = stage.setup_client.image()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedCluster, "_prepare", prepared)
        yield


def fill_but_one(store: Any) -> None:
    """Fill all rows of a ring but one, which is in reach of paths only."""
    rows = range(store.parameters.rows)
    places = [places_of(store, key) for key in ABSENT]
    near = set(itertools.chain.from_iterable(places))

    def moves(row: int) -> int:
        return min((row - second) % len(rows) for _, second in places)

    spare = max(set(rows) - near, key=moves)
    for row in rows:
        keys = keys_in(store, row, prefix=b"more ")
        left = SPARE if row == spare else 0
        while vacancies(store, row) > left:
            store.put(next(keys), b"")


def vacancies(store: Any, row: int) -> int:
    """Empty entries of a row, in a store with one table."""

    def count() -> int:
        store.lookup.enter_table(store.lookup.tables[0])
        found = store.lookup.rows.read(row)
        return sum(not found.size(slot) for slot in range(SLOTS))

    return int(store.pool.exclusively(count))
