"""The pages of slabs, which are allocated in parts: how many at once, and never too few."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from kit.stores import checked

import limpet
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.words import (
    BACKED,
    BEGUN,
    FREE,
    LARGE_CLASS,
    OWNER_MASK,
    SLAB,
    class_of,
    replicas_of,
)
from limpet.shm.pages import PART_SIZE

PAGE = 4096
GROWING = ["race", "rtx-race", "fusee", "swarm", "rtx-sherman"]
KEYS = 12_000 if BUILD == "compiled" else 300


class Pages:
    """The pages of a pool's nodes that its clients have asked for."""

    def __init__(self, *pools: limpet.Pool) -> None:
        self.there: dict[int, set[int]] = defaultdict(set)
        self.requests: list[tuple[int, int, int]] = []
        self.refuse: Any = lambda node: False
        for pool in pools:
            self.watch(pool)

    def watch(self, pool: limpet.Pool) -> None:
        """Note what this handle asks for."""
        backing = pool.blocks.pages.backing

        def noted(node: int, offset: int, size: int) -> bool:
            if self.refuse(node):
                return False
            self.requests.append((node, offset, size))
            self.there[node].update(range(offset // PAGE, -(-(offset + size) // PAGE)))
            return backing(node, offset, size)

        pool.blocks.pages.backing = noted

    def taken(self) -> int:
        """Bytes that were asked for since the last call."""
        found = sum(size for _, _, size in self.requests)
        self.requests.clear()
        return found

    def missing(self, pool: limpet.Pool) -> list[tuple[int, int, int]]:
        """Node, block and number of the objects in use without pages."""
        heap, found = pool.heap, []
        for node in range(heap.placement.nodes):
            for block, word in enumerate(pool.blocks.words(node).tolist()):
                if word >> 60 != SLAB or not LARGE_CLASS < class_of(word) < heap.paged:
                    continue
                size = heap.sizes[class_of(word)]
                used = pool.blocks.used_bits(node, block, class_of(word))
                backups = pool.blocks.groups.backups(node, block, replicas_of(word))
                places = [(node, block), *backups]
                for there, at in places:
                    first = heap.blocks + at * heap.block_size
                    for index in range(used.bit_length()):
                        begin = first + index * size
                        pages = range(begin // PAGE, -(-(begin + size) // PAGE))
                        if used >> index & 1 and not self.there[there].issuperset(pages):
                            found.append((there, at, index))
        return found


def parameters(kind: str) -> dict[str, Any]:
    return {"replicas": {"fusee": 2, "swarm": 3}[kind]} if kind in ("fusee", "swarm") else {}


@pytest.mark.parametrize("kind", GROWING)
def test_an_insert_allocates_few_pages(pools: Any, kind: str) -> None:
    """At most a part, on each replica, for a key, its value, and a part of the index."""
    pool = pools(nodes=3, node_size="256MiB", block_size="1MiB", clients=4)
    pages = Pages(pool)
    store = pool.store(kind, name="grown", **parameters(kind))
    replicas = parameters(kind).get("replicas", 1)
    pages.taken()
    most = 0
    for number in range(KEYS):
        store.insert(b"key %d" % number, bytes(400))
        most = max(most, pages.taken())
    assert PART_SIZE <= most <= 3 * replicas * PART_SIZE
    assert pages.missing(pool) == []


def churn(stores: list[Any], steps: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(steps):
        store, key = rng.choice(stores), b"key %d" % rng.randrange(80)
        if rng.random() < 0.3:
            with contextlib.suppress(KeyError):
                store.delete(key)
        else:
            store.put(key, bytes(rng.choice((20, 60, 200, 900, 1900))))


@pytest.mark.exhaustive_in_pure("many steps of several clients")
@pytest.mark.parametrize("kind", ["race", "fusee", "swarm"])
def test_objects_in_use_have_pages(pools: Any, kind: str) -> None:
    """Also of clients that adopt the blocks of others, and take them from each other."""
    pool = pools(nodes=3, node_size="16MiB", block_size="64KiB", clients=8)
    pages = Pages(pool)
    pool.store(kind, name="store", **parameters(kind))
    for turn in range(3):
        others = [limpet.open(pool.url) for _ in range(2)]
        handles = [pool, *others]
        for handle in handles:
            handle.blocks.pages.part_size = 4096
        for handle in others:
            pages.watch(handle)
        churn([handle.store(kind, name="store") for handle in handles], 250, turn)
        assert pages.missing(pool) == []
        for handle in others:
            handle.close()
    kinds = [word for word in pool.blocks.words(0).tolist() if word >> 60 == FREE and word]
    assert all(word & (BACKED | BEGUN) for word in kinds)
    pool.store(kind, name="store").check()
    assert pool.audit()["leaked"] == 0


def test_known_bad_pages_that_are_not_asked_for_are_seen(pools: Any) -> None:
    pool = pools(nodes=1, node_size="4MiB", block_size="64KiB")
    pool.blocks.pages.part_size = 4096
    pages = Pages(pool)
    pool.blocks.pages.back_part = lambda node, block, replicas, begin, end: end
    store = pool.store("race", name="store")
    for number in range(100):
        store.put(b"key %d" % number, bytes(200))
    assert pages.missing(pool)


def put_some(store: Any, count: int) -> None:
    for number in range(count):
        store.put(b"key %d" % number, bytes(400))


def requests_within(pool: limpet.Pool, pages: Pages, block: int) -> list[int]:
    """Where in a block of node 0 pages were asked for."""
    begin = pool.heap.blocks + block * pool.heap.block_size
    within = range(begin, begin + pool.heap.block_size)
    return [offset - begin for node, offset, _ in pages.requests if not node and offset in within]


def test_adopted_block_is_known_to_have_pages_up_to_its_last_object(pools: Any) -> None:
    """Pages behind it are asked for again: the client that left may not have come so far."""
    pool = pools(nodes=1, node_size="4MiB", block_size="64KiB", clients=4)
    pool.blocks.pages.part_size = 4096
    store = pool.store("race", name="store")
    with limpet.open(pool.url) as other:
        other.blocks.pages.part_size = 4096
        put_some(other.store("race", name="store"), 30)
        ident = other.client.ident
        words = pool.blocks.words(0).tolist()
        owned = [at for at, word in enumerate(words) if word & OWNER_MASK == ident]
        block = max(owned, key=lambda at: pool.blocks.used_count(0, at, class_of(words[at])))
    size_class = class_of(words[block])
    end = pool.blocks.used_bits(0, block, size_class).bit_length() * pool.heap.sizes[size_class]
    pages = Pages(pool)
    for number in range(100):
        store.put(b"next %d" % number, bytes(400))
    asked = requests_within(pool, pages, block)
    assert asked
    assert min(asked) >= end


@pytest.mark.exhaustive_in_pure("fills a pool again and again")
@pytest.mark.parametrize("kind", ["race", "fusee", "swarm"])
def test_full_file_system_is_store_full(pools: Any, kind: str) -> None:
    """For each request for pages: the write raises StoreFull, or finds memory elsewhere."""
    at = 0
    while True:
        pool = pools(nodes=3, node_size="4MiB", block_size="64KiB", clients=4)
        pool.blocks.pages.part_size = 4096
        pages = Pages()
        store = pool.store(kind, name="store", **parameters(kind))
        pages.watch(pool)
        model: dict[bytes, bytes] = {}
        full: list[str] = []
        for number in range(60):
            if len(pages.requests) >= at:
                pages.refuse = lambda node: True
            key, value = b"key %d" % number, bytes([number]) * (100 + 20 * (number % 3))
            try:
                store.put(key, value)
                model[key] = value
            except limpet.StoreFull as error:
                full.append(str(error))
        assert all("file system" in message for message in full)
        assert dict(store.items()) == model
        if not full:
            break
        pages.refuse = lambda node: False
        for number in range(60):
            store.put(b"key %d" % number, bytes(300))
        assert len(store) == 60
        store.check()
        pool.close()
        at += 1 + at // 4
    assert at > 3


@pytest.mark.parametrize("kind", ["race", "fusee"])
def test_blocks_that_have_all_pages_are_used_when_others_are_refused(pools: Any, kind: str) -> None:
    """A block of which only the first part has pages was claimed, given back and claimed again."""
    nodes = parameters(kind).get("replicas", 1)
    pool = pools(nodes=nodes, node_size="4MiB", block_size="64KiB", clients=4)
    pool.blocks.pages.part_size = 4096
    store = pool.store(kind, name="store", capacity=200, **parameters(kind))
    for sizes in ([30_000] * 24, [200] * 8):  # each takes the last blocks that are free
        with limpet.open(pool.url) as other:
            other.blocks.pages.part_size = 4096
            theirs = other.store(kind, name="store")
            for number, size in enumerate(sizes):
                theirs.put(b"%d" % number, bytes(size))
            for number in range(len(sizes)):
                theirs.delete(b"%d" % number)
    words = pool.blocks.words(0).tolist()
    begun = [at for at, word in enumerate(words) if word >> 60 == FREE and word & BEGUN]
    backed = [at for at, word in enumerate(words) if word >> 60 == FREE and word & BACKED]
    assert max(begun) > max(backed)
    assert len(backed) > 4
    pages = Pages(pool)
    pages.refuse = lambda node: True
    for number in range(100):
        store.put(b"next %d" % number, bytes(3000))


def test_refused_backup_is_no_object(pools: Any) -> None:
    """An object whose backup cannot have pages is not used."""
    pool = pools(nodes=3, node_size="4MiB", block_size="64KiB", clients=4)
    pool.blocks.pages.part_size = 4096
    store = pool.store("fusee", name="store", replicas=3)
    store.put(b"first", bytes(200))
    pages = Pages(pool)
    pages.refuse = lambda node: node == 1
    with pytest.raises(limpet.StoreFull, match="file system"):
        put_some(store, 200)
    pages.refuse = lambda node: False
    put_some(store, 200)
    assert checked(store)["leaked"] == 0


def owned_blocks(pool: limpet.Pool) -> int:
    return int((pool.blocks.words(0) >> np.uint64(60) != FREE).sum())


def test_room_that_is_back_is_used(pools: Any) -> None:
    """By the client that was refused: it asks for the same pages again, not for other blocks."""
    same, pool = (pools(nodes=1, node_size="4MiB", block_size="64KiB", clients=4) for _ in "12")
    put_some(same.store("race", name="store"), 400)
    pool.blocks.pages.part_size = 4096
    store = pool.store("race", name="store")
    pages = Pages(pool)
    refused = 0
    for number in range(400):
        pages.refuse = lambda node: True
        try:
            store.put(b"key %d" % number, bytes(400))
        except limpet.StoreFull:
            pages.refuse = lambda node: False
            store.put(b"key %d" % number, bytes(400))
            refused += 1
    assert refused > 20
    assert owned_blocks(pool) <= owned_blocks(same) + 1
    assert checked(store)["leaked"] == 0
