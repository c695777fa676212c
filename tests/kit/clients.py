"""Shared parts of the tests of clients and of their memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.pool import Pool
from limpet.stores.race.parameters import GROUP_SIZE, GROUPS


def pair_references(pool: Any) -> list[int]:
    """References to the pairs of the pool's small `race` stores, without those to subtables."""
    subtable = pool.heap.size_class(GROUPS * GROUP_SIZE)
    return [each for each in pool.references().tolist() if each >> 48 & 0xFF != subtable]


@contextlib.contextmanager
def pinned(pool: Pool) -> Iterator[None]:
    """The pool's client is inside an operation."""
    pool.client.enter()
    try:
        yield
    finally:
        pool.client.leave()


def slot_of(ident: int) -> int:
    """The address of the slot of a client id."""
    return slot_address(ident >> INCARNATION_BITS)


def ids(pool: Pool) -> set[int]:
    return {client["client"] for client in pool.clients()}


def churn(pool: Pool, store: Any, size: int = 2000) -> None:
    """Write and delete twice as many bytes as the pool has."""
    for number in range(2 * pool.parameters.nodes * pool.parameters.node_size // size):
        store.put(b"churn", bytes(size))
        if number % 2:
            store.delete(b"churn")


def work(pool: Any, rounds: int = 3) -> None:
    """Real operations: pairs, objects of one and of several blocks, memory given back and taken."""
    store = pool.store("race", name="work", capacity=64)
    for number in range(rounds):
        for size in (10, 3000, 100_000):
            key = b"%d" % size
            store.put(key, bytes([number]) * size)
            assert store.get(key) == bytes([number]) * size
            store.delete(key)
            assert store.get(key) is None
    store.check()
    assert pool.audit()["leaked"] == 0
