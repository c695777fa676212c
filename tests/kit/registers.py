"""A register of the `swarm` store whose replicas, words and locks tests know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.puppets import Puppet, Where
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.stores.fusee.tables import region_name
from limpet.stores.swarm.register import stamp_of


class Scene:
    """A store with one key, k, whose place and row all clients remember.

    `before`: how many others there were. By that number another replica is the first to be read.
    """

    def __init__(
        self, pools: Any, clients: int, before: int = 0, replicas: int = 3, kind: str = "swarm"
    ) -> None:
        self.pool = pools(nodes=replicas)
        self.store = self.pool.store(kind, name="test", capacity=50, replicas=replicas)
        for _ in range(before):
            self.store.put(b"j", b"")
            self.store.delete(b"j")
        self.store.put(b"k", b"old")
        self.clients = [Puppet(pools, self.pool.url, kind) for _ in range(clients)]
        for client in self.clients:
            for _ in range(2):
                client.store.update(b"k", b"old")
                client.store.get(b"k")
        self.store.update(b"k", b"old")
        self.store.get(b"k")
        for client in self.clients:
            client.store.get(b"k")
        (self.reference,) = self.store.slots_taken()
        self.register = self.store.register
        self.place = self.register.place
        self.look()
        replica = self.replicas[0]
        self.ident, self.capacity = replica.word(0), replica.word(1)
        first = self.place.first
        self.order = [(first + n) % replicas for n in range(replicas)]
        self.nodes = [self.place.address(k) >> NODE_SHIFT for k in self.order]
        self.directories = [
            range(region.address, region.address + self.store.parameters.directory_size)
            for node in range(replicas)
            for table in range(3)
            if (region := self.pool.regions.find(node, region_name("test", table))) is not None
        ]
        assert self.directories

    @property
    def replicas(self) -> Any:
        """The replicas of the register, as `look` has read them."""
        return self.register.quorum.replicas

    def visit(self) -> None:
        """Select the register."""
        assert self.register.recycling.visit(self.reference)

    def look(self) -> None:
        """Read all of the register."""
        self.visit()
        self.register.quorum.read_all()

    def base(self, place: int) -> int:
        """Where the register begins on the replica that is read as the one of that number."""
        self.visit()
        return int(self.place.address(self.order[place]))

    def word(self, place: int, writer: Puppet) -> int:
        """Address of a writer's word of M there."""
        row = writer.pool.numbers.number
        assert row >= 0
        return self.base(place) + 8 * (2 + row % self.place.buffers)

    def stamp(self, place: int, writer: Puppet) -> int:
        """The stamp of a writer's word of M there."""
        return stamp_of(self.pool.endpoint.load(self.word(place, writer)))

    def reads_when(self, place: int, writer: Puppet, stamped: Callable[[int], bool]) -> Where:
        """The next read of that replica when the writer's word of M on the last one has such a
        stamp."""
        base, word = self.base(place), self.word(len(self.order) - 1, writer)

        def there(verb: str, address: int) -> bool:
            if verb != "read_words" or address != base:
                return False
            return stamped(stamp_of(self.pool.endpoint.load(word)))

        return there

    def lock(self, place: int, writer: Puppet) -> int:
        """Address of a writer's lock, on the replica that is read as the one of that number."""
        self.visit()
        self.place.capacity = self.capacity
        return int(self.place.lock(self.order[place], writer.pool.numbers.number))
