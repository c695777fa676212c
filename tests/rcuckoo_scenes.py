"""Tables of RCuckoo of known shape: keys by their rows, inserts that need a path of known length.

With a locality of 1.01 every key's second row is the one after its first, so a table is a ring of
rows. In one that is full but for one entry, an insert moves an entry of each row on the way there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from limpet.fault.operations import BYSTANDER, KEY, OLD
from limpet.fault.scene import Scene
from limpet.shm.fabric import hash64
from limpet.stores.rcuckoo.dependent_hash import DependentHash
from limpet.stores.rcuckoo.fields import SLOTS

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


class PathScene(Scene):
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
