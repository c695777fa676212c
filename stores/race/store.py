"""The `race` store: RACE hashing, lock-free and unreplicated, that grows (index.py, splitter.py).

Each memory node has a directory, a region; a key's subtable and its pair lie on the node of its
directory, and are lost with it.

A get has no pin if memory is hardware-coherent (glance.py).

Round trips without conflict: search 2 (1 when no fingerprint matches), update 3, delete 3, insert
3. slots.py and splitter.py say what a kill leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.shm.errors import StoreFull
from limpet.stores.core import regions
from limpet.stores.core.base import as_bytes
from limpet.stores.core.records import StampedObjects
from limpet.stores.core.status import DELETE, EXISTS, MISSING, NO_MEMORY
from limpet.stores.race.check import Check, Mending
from limpet.stores.race.glance import Glance
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Holds, Index
from limpet.stores.race.parameters import GrowingParameters
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter


class Race(HashStore):
    """The `race` store. `GrowingParameters`."""

    durable = True
    watchable = True
    Parameters: type[GrowingParameters] = GrowingParameters
    swaps = True
    views = True

    def __init__(
        self, pool: Any, kind: str, name: str, parameters: Any, objects: Any = None
    ) -> None:
        """`objects`: writes and reads pairs, if not `Objects`."""
        super().__init__(pool, kind, name, parameters)
        stamped = objects is None
        if stamped:
            objects = StampedObjects(pool.heap, pool.client)
            objects.posts = True
        index = Index(pool, name, parameters, objects, attach(pool, name, parameters), Holds(name))
        slots = Slots(index, pool.client)
        self.hold_parts(index, slots, Splitter(pool, index, parameters), Check(pool, index))
        if stamped:
            self.glance_by(Glance(index))
        self.batches_puts()

    def get_slice(self, key: Any, start: int | None = None, stop: int | None = None) -> Any:
        return self._of_value(key, lambda: self.objects.part(start, stop))

    def size_of(self, key: Any) -> Any:
        return self._of_value(key, lambda: self.objects.length())

    def _of_value(self, key: Any, take: Callable[[], Any]) -> Any:
        """The result of `take`, with the object of `key` in the image; None: there is none."""
        self._count(1, 0)
        return self.within(self._take_once, as_bytes("key", key), take)

    def _take_once(self, key: bytes, take: Callable[[], Any]) -> Any:
        self.index.post_choose(self.place, key)
        slot = self.index.find(self.place, key)
        if self.endpoint.durable:
            self.index.depend(self.place, slot)
        return take() if slot else None

    def _swap_once(self, key: bytes, expected: bytes, value: bytes, size: int, mode: int) -> int:
        place = self.place
        self.index.post_choose(place, key)
        slot = self.index.find(place, key)
        if self.endpoint.durable:
            self.index.depend(place, slot)
        if not slot:
            return MISSING
        # ORDER: the value is read after the slot's word. The CAS of that word, while the client is
        # pinned, shows that the slot had this object all the while.
        if self.objects.value() != expected:
            return EXISTS
        if mode == DELETE:
            return self.slots.remove(place, slot)
        reference = self.make_object(place, key, value, size, None)
        if not reference:
            return NO_MEMORY
        return self.slots.replace(place, slot, (place.hash & 0xFF) << 56 | reference)

    def mend(self) -> dict[int, int]:
        found: dict[int, int] = Mending(self.index).run()
        return found

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        """Make the directories; zeros are an empty table.

        Raises StoreFull when there cannot be room for the keys that are asked for.
        """
        make_directories(pool, name, parameters)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        unmake_directories(pool, name, parameters)


def attach(pool: Any, name: str, parameters: Any) -> list[int]:
    """Addresses of the directories; that of a lost one raises NodeFailed."""
    found: list[int] = regions.attach(pool, name, parameters.subtables, parameters.directory_size)
    return found


def make_directories(pool: Any, name: str, parameters: Any) -> None:
    """Make the directories. Raises StoreFull as `require_room`."""
    require_room(pool, name, parameters)
    regions.make(pool, name, parameters.subtables, parameters.directory_size)


def unmake_directories(pool: Any, name: str, parameters: Any) -> None:
    """Give the directories back."""
    regions.unmake(pool, name, parameters.subtables)


def require_room(pool: Any, name: str, parameters: Any, replicas: int = 1) -> None:
    """Raise StoreFull when there cannot be room for the keys that are asked for."""
    wanted = 1 << parameters.depth
    room = pool.blocks.objects_max(parameters.subtable_size, replicas)
    if wanted > room:
        raise StoreFull(
            f"{pool.url}: node 0 has no room for the index of {name!r}: for "
            f"{parameters.capacity} keys it takes {wanted} subtables of "
            f"{parameters.subtable_size} bytes on each node (replicas: {replicas}), where at "
            f"most {room} fit; ask for a smaller capacity, as it grows, or create the pool "
            "with larger nodes"
        )
