"""A pool with a few links to replicated objects, which stand for a store that has some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import limpet
from limpet.shm.endpoint.words import (
    BACKUP,
    FREE,
    LARGE,
    LIMBO,
    SLAB,
    STRAY,
    TAIL,
    TAKEN,
    replicas_of,
)
from limpet.shm.errors import NodeFailed

LINKS = 256
SIZE = 3000
WHOLE = 12_000
"""Of this size, a block holds one."""
SPAN = 9
"""Blocks of a large object."""
STEPS_MAX = 2000
SETTLED = (SLAB, LARGE, TAIL, TAKEN, LIMBO)
"""Kinds of primaries that no client is claiming or giving back."""


class LinkedPool(limpet.Pool):
    """Its links are in a region of the last node, which the tests leave in service."""

    def link_address(self, at: int) -> int:
        """Address of link `at`."""
        node = self.parameters.nodes - 1
        return int(self.regions.obtain(node, ".links", LINKS * 8, whole=True).address) + 8 * at

    def references(self) -> Any:
        words = np.frombuffer(self.endpoint.read(self.link_address(0), LINKS * 8), dtype="<u8")
        return np.concatenate((words[words != 0], super().references()))

    def put(self, at: int, node: int, size: int, replicas: int) -> int:
        """Link a new object in place of what is linked there, as a store does; its reference."""
        while True:
            self.client.enter()
            try:
                link_address = self.link_address(at)
                new = self.allocator.allocate(node, size, replicas)
                if new:
                    for k in range(replicas):
                        self._stamp(new, k)
                    self.client.retarget(0, link_address)
                    self._relink(link_address, new)
                    return int(new)
            finally:
                self.client.leave()
            self.allocator.replenish(node, size, replicas)

    def delete(self, at: int) -> None:
        """Unlink and free what is linked there."""
        self.client.enter()
        try:
            self._relink(self.link_address(at), 0)
        finally:
            self.client.leave()

    def _relink(self, link_address: int, new: int) -> None:
        old = self.endpoint.load(link_address)
        if old:
            self.client.log(old, link_address)
        assert self.endpoint.cas(link_address, old, new) == old

    def _stamp(self, reference: int, k: int) -> None:
        try:
            self.endpoint.store(self.heap.replica(reference, k), reference)
        except NodeFailed:
            if k == 0:
                raise

    def serves(self, reference: int) -> int:
        """How many replicas of the object are in service, in use and have what was written."""
        found = 0
        for k in range(self.heap.replicas(reference)):
            try:
                stamp = self.endpoint.load(self.heap.replica(reference, k))
                assert self.heap.used_at(reference, k)
                assert stamp == reference
                found += 1
            except NodeFailed:
                continue
        return found


def linked(pools: Any, **parameters: Any) -> LinkedPool:
    """A pool with links; the region for them has been made."""
    made: LinkedPool = pools.keep(LinkedPool.create(pools.url(), **parameters))
    made.exclusively(lambda: made.link_address(0))
    return made


def settled(pool: Any) -> None:
    """Have everything done that others, or a period that is over, allow to be done."""
    for _ in range(3):
        pool.recover()


def sound(pool: Any) -> dict[str, int]:
    """Nothing has leaked, no primary is without its backups, nor the other way round; the audit."""
    audit: dict[str, int] = pool.audit()
    assert audit["leaked"] == 0
    assert sum(value for key, value in audit.items() if key != "total") == audit["total"]
    pool.exclusively(lambda: _whole(pool))
    return audit


def _whole(pool: Any) -> None:
    replica_sets = pool.blocks.groups
    backups = set()
    for node, words in _tables(pool).items():
        for block, word in enumerate(words):
            if word >> 60 in SETTLED and replicas_of(word) > 1:
                for there, at in replica_sets.backups(node, block, replicas_of(word)):
                    if not replica_sets.failed(there):
                        backup = pool.endpoint.load(pool.heap.table_word(there, at))
                        assert backup >> 60 == BACKUP, (node, block, there, at)
                        assert replicas_of(backup) == replicas_of(word)
                        backups.add((there, at))
    for node, words in _tables(pool).items():
        for block, word in enumerate(words):
            if word >> 60 == BACKUP and (node, block) not in backups:
                primary = pool.heap.placement.primary(node, block, replicas_of(word))
                assert primary is not None
                assert replica_sets.failed(primary[0]), (node, block, hex(word))


def _tables(pool: Any) -> dict[int, list[int]]:
    found = {}
    for node in range(pool.view.nodes):
        try:
            found[node] = pool.blocks.words(node).tolist()
        except NodeFailed:
            continue
    return found


def strays(pool: Any) -> int:
    """How many blocks are backups without a primary."""
    return sum(word >> 60 == STRAY for words in _tables(pool).values() for word in words)


def free_blocks(pool: Any) -> int:
    """How many blocks are no client's and have no mark but, perhaps, an epoch."""
    return sum(word >> 60 == FREE for words in _tables(pool).values() for word in words)


def small(pools: Any, nodes: int = 4, **parameters: Any) -> LinkedPool:
    return linked(pools, nodes=nodes, node_size="512KiB", **{"clients": 16, **parameters})


def roomy(pools: Any, nodes: int = 4, **parameters: Any) -> LinkedPool:
    """Its regions are long enough for spans."""
    return linked(
        pools, nodes=nodes, node_size="4MiB", block_size="16KiB", clients=16, **parameters
    )


def large(pool: Any) -> int:
    return SPAN * int(pool.layout.block_size)


def size_of(pool: Any, spans: bool) -> int:
    return large(pool) if spans else SIZE


def give_back(pool: Any) -> None:
    pool.exclusively(lambda: pool.allocator.relief.release_empty({}))


def fill(pool: LinkedPool, node: int, size: int, replicas: int, at: int = 0) -> int:
    """Link objects from link `at` on until the node is full; the first link without one."""
    while True:
        try:
            pool.put(at, node, size, replicas)
        except limpet.StoreFull:
            return at
        at += 1


def hoard(pool: LinkedPool, replicas: int) -> None:
    """Own all memory that replica sets can have, with nothing in it."""
    last = 0
    for node in range(pool.parameters.nodes):
        last = fill(pool, node, WHOLE, replicas, last)
    assert last > pool.layout.block_count // 2
    for at in range(last):
        pool.delete(at)


def everything_is_free(pool: LinkedPool) -> None:
    """All memory that is not reserved is free once no client has any."""
    for _ in range(3):
        settled(pool)
        give_back(pool)
        pool.exclusively(pool.allocator.relief.adopt_abandoned)
    audit = sound(pool)
    assert audit["reachable"] == audit["held"] == 0
    (links,) = pool.exclusively(lambda: pool.regions.extents(pool.parameters.nodes - 1))
    in_service = sum(node["state"] == "in service" for node in pool.nodes())
    assert free_blocks(pool) == in_service * pool.layout.block_count - links[1]


# ---- what a client may be at when it is killed or a node is lost -------------------------------

Work = Callable[[LinkedPool, int], None]


def claims(pool: LinkedPool, replicas: int) -> None:
    pool.allocator.replenish(0, SIZE, replicas)
    give_back(pool)


def claims_span(pool: LinkedPool, replicas: int) -> None:
    pool.allocator.replenish(1, large(pool), replicas)
    give_back(pool)


def puts(pool: LinkedPool, replicas: int) -> None:
    pool.put(3, 0, SIZE, replicas)
    pool.put(3, 1, SIZE, replicas)
    pool.delete(3)


def puts_span(pool: LinkedPool, replicas: int) -> None:
    pool.put(3, 0, large(pool), replicas)
    pool.delete(3)
    settled(pool)
    give_back(pool)


def leaves(pool: LinkedPool, replicas: int) -> None:
    pool.put(1, 0, SIZE, replicas)
    pool.allocator.replenish(2, SIZE, replicas)
    pool.close()
