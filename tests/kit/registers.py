"""A register of the `swarm` store whose replicas, words and locks tests know."""

from __future__ import annotations

from typing import Any

from kit.puppets import Puppet
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS


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
        assert self.register.visit(self.reference)
        self.register.read_all()
        self.ident, self.capacity = self.register.word(0, 0), self.register.word(0, 1)
        first = self.register.first
        self.order = [(first + n) % replicas for n in range(replicas)]
        self.nodes = [self.register.address(k) >> NODE_SHIFT for k in self.order]
        self.directories = [
            range(region.address, region.address + self.store.parameters.directory_size)
            for node in range(replicas)
            for table in range(3)
            if (region := self.pool.regions.find(node, f"test/{table}")) is not None
        ]
        assert self.directories

    def base(self, place: int) -> int:
        """Where the register begins on the replica that is read as the one of that number."""
        assert self.register.visit(self.reference)
        return int(self.register.address(self.order[place]))

    def word(self, place: int, writer: Puppet) -> int:
        """Address of a writer's word of M there."""
        row = writer.pool.client.ident >> INCARNATION_BITS
        return self.base(place) + 8 * (2 + row % self.register.buffers)

    def lock(self, place: int, writer: Puppet) -> int:
        """Address of a writer's lock, on the replica that is read as the one of that number."""
        assert self.register.visit(self.reference)
        self.register.capacity = self.capacity
        return int(
            self.register.lock(self.order[place], writer.pool.client.ident >> INCARNATION_BITS)
        )
