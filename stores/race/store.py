"""The `race` store: RACE hashing, lock-free and unreplicated, that grows (index.py, splitter.py).

Each memory node has a directory, a region; a key's subtable and its pair lie on the node of its
directory, and are lost with it.

Round trips without conflict: search 2 (1 when no fingerprint matches), update 3, delete 3, insert
3. slots.py and splitter.py say what a kill leaves behind.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import StoreFull
from limpet.stores import regions
from limpet.stores.race.check import Check
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Holds, Index
from limpet.stores.race.mending import Mending
from limpet.stores.race.parameters import GrowingParameters
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter
from limpet.stores.records import Objects


class Race(HashStore):
    """The `race` store. `GrowingParameters`."""

    durable = True
    Parameters: type[GrowingParameters] = GrowingParameters

    def __init__(
        self, pool: Any, kind: str, name: str, parameters: Any, objects: Any = None
    ) -> None:
        """`objects`: writes and reads pairs, if not `Objects`."""
        super().__init__(pool, kind, name, parameters)
        if objects is None:
            objects = Objects(pool.heap, in_place=True)
        index = Index(pool, name, parameters, objects, attach(pool, name, parameters), Holds(name))
        slots = Slots(index, pool.client)
        self.hold_parts(index, slots, Splitter(pool, index, parameters), Check(pool, index))

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
    regions.make(pool, name, parameters.subtables, parameters.directory_size)
    require_room(pool, name, parameters)


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
