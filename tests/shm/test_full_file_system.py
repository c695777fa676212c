"""A full file system: every page that is there is used, none that is not, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Any

import numpy as np
import pytest
from kit.disk import Disk
from kit.processes import children
from kit.stores import checked

import limpet
from limpet.shm.alloc.blocks import BlockTable
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.words import BACKED, BEGUN, FREE, OWNER_MASK, SLAB, class_of
from limpet.shm.pages import BlockPages
from limpet.shm.replacement import Filling

BLOCK = 128 << 10
PART = 4096
STEPS = (1, 3, 5, 8, 13, 40, 200, 1500, 3000) if BUILD == "compiled" else (1, 8, 200, 1500)


def make(pools: Any, nodes: int = 1, node_size: str = "8MiB", **more: Any) -> tuple[Any, Disk]:
    """A pool whose blocks get their pages in small parts, on a disk with room."""
    pool = pools(nodes=nodes, node_size=node_size, block_size=BLOCK, clients=16, **more)
    pool.blocks.pages.part_size = PART
    return pool, Disk(pool)


def again(pools: Any, pool: Any, disk: Disk) -> Any:
    """Another handle."""
    other = disk.watch(pools.again(pool))
    other.blocks.pages.part_size = PART
    return other


def kinds(pool: Any, node: int, bit: int) -> list[int]:
    """The free blocks of a node whose words have this bit."""
    words = pool.blocks.words(node).tolist()
    return [block for block, word in enumerate(words) if word >> 60 == FREE and word & bit]


def leave_slabs(pools: Any, pool: Any, disk: Disk, store: Any, count: int, **made: Any) -> None:
    """Two clients have slabs, free all of it and leave: free blocks of which the last ones in
    memory have few pages, and others have all, though their words do not say so."""
    with again(pools, pool, disk) as few, again(pools, pool, disk) as other:
        for number, size in enumerate((300, 600, 1200, 2400)):
            few.store(store.kind, name=store.name, **made).put(b"%d" % number, bytes(size))
        theirs = other.store(store.kind, name=store.name, **made)
        for number in range(count):
            theirs.put(b"%d" % number, bytes(1800))
        for number in range(count):
            theirs.delete(b"%d" % number)
        few.close()
        pool.recover()
    for node in range(pool.parameters.nodes):
        assert len(kinds(pool, node, BEGUN)) >= 10


def put_run(pool: Any, store: Any, number: int) -> None:
    store.put(b"run %d" % number, bytes(BLOCK - 4000))


def put_span(pool: Any, store: Any, number: int) -> None:
    store.put(b"span %d" % number, bytes(BLOCK * 9))


def make_region(pool: Any, store: Any, number: int) -> None:
    pool.regions.obtain(0, f".region {number}", BLOCK * 5 // 4)


@pytest.mark.parametrize(
    ("kind", "step", "least"),
    [
        ("race", put_run, 8),
        ("race", put_span, 1),
        ("race", make_region, 4),
        ("fusee", put_run, 4),
    ],
    ids=["runs", "spans", "regions", "replicated-runs"],
)
def test_given_back_slabs_with_all_pages_serve_what_needs_whole_blocks(
    pools: Any, kind: str, step: Any, least: int
) -> None:
    """Their words say that some pages are there, and no client asked whether all are."""
    made = {"replicas": 2} if kind == "fusee" else {}
    pool, disk = make(pools, nodes=2 if made else 1)
    store = pool.store(kind, name="store", capacity=64, **made)
    if step is make_region:
        pool.regions.obtain(0, ".before", 10)
    leave_slabs(pools, pool, disk, store, 900, **made)
    for number in range(2):  # objects of the store's own that its index needs
        store.put(b"small %d" % number, b"value")
    disk.room = 0
    done = 0
    with contextlib.suppress(limpet.StoreFull):
        while True:
            step(pool, store, done)
            done += 1
    assert done >= least
    assert disk.touched(pool) == []
    assert checked(store)["leaked"] == 0


def test_known_bad_client_that_does_not_ask_again_for_former_slabs_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockPages, "_note_begun", lambda self: None)
    with pytest.raises(AssertionError):
        test_given_back_slabs_with_all_pages_serve_what_needs_whole_blocks(
            pools, "race", put_run, 8
        )


def test_large_objects_of_slabs_find_the_block_that_has_their_pages(pools: Any) -> None:
    """Only the first part of most blocks is there, and an object is larger than a part."""
    pool, disk = make(pools)
    store = pool.store("race", name="store", capacity=64)
    leave_slabs(pools, pool, disk, store, 900)
    ask = pool.blocks.pages.ask
    whole = sum(ask(0, block, 0, pool.heap.block_size) for block in kinds(pool, 0, BEGUN)[-3:])
    assert whole == 3
    store.put(b"first", b"value")
    disk.room = 0
    for number in range(12):
        store.put(b"large %d" % number, bytes(9000))
    assert disk.touched(pool) == []


def orphan(pools: Any, pool: Any, disk: Disk, name: str, delete: bool = False) -> None:
    """A client that leaves a block with objects in use up to its last page, and room behind it."""
    with again(pools, pool, disk) as other:
        store = other.store("race", name="store")
        for number in range(4):
            store.put(b"%s %d" % (name.encode(), number), bytes(900))
        if delete:
            store.delete(b"%s 1" % name.encode())


def ownerless(pool: Any) -> int:
    words = pool.blocks.words(0)
    return int(((words >> np.uint64(60) == SLAB) & (words & np.uint64(OWNER_MASK) == 0)).sum())


def room_in_orphans(pools: Any) -> tuple[Any, int]:
    """A pool without room for pages, and blocks without an owner; only in the last one that a
    client looks at is there room that has pages. The pool and the number of such blocks."""
    pool, disk = make(pools)
    pool.store("race", name="store", capacity=64)
    orphan(pools, pool, disk, "useful", delete=True)
    for number in range(6):
        with again(pools, pool, disk) as other:  # keeps the block of the one before it in use
            other.blocks.pages.begin_claim()
            claim_anew(other)
            orphan_of(other, f"vain {number}")
    pool.recover()
    left = ownerless(pool)
    assert left >= 7
    disk.room = 0
    return pool, left


def claim_anew(pool: Any) -> None:
    """Have a handle adopt no blocks."""
    usual = pool.blocks.claim_slab
    pool.blocks.claim_slab = lambda *wanted, adopt, **more: usual(*wanted, adopt=False, **more)


def orphan_of(pool: Any, name: str) -> None:
    store = pool.store("race", name="store")
    for number in range(4):
        store.put(b"%s %d" % (name.encode(), number), bytes(900))


def test_room_without_pages_in_blocks_without_an_owner_is_passed_over(pools: Any) -> None:
    """Such blocks were adopted one an attempt, before the one with pages."""
    pool, left = room_in_orphans(pools)
    store = pool.store("race", name="store")
    store.put(b"new", bytes(900))
    assert ownerless(pool) == left - 1
    with pytest.raises(limpet.StoreFull, match="file system is full"):
        fill(store)
    assert ownerless(pool) == left - 1
    checked(store)


def fill(store: Any, count: int = 64, size: int = 900) -> None:
    for number in range(count):
        store.put(b"more %d" % number, bytes(size))


def test_known_bad_adoption_that_does_not_ask_for_pages_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_bits(self: Any, node: int, block: int, word: int) -> int:
        used = self.used_bits(node, block, class_of(word))
        roomy = used.bit_count() < self.heap.object_count(class_of(word))
        return used.bit_length() * self.heap.sizes[class_of(word)] if roomy else 0

    pool, left = room_in_orphans(pools)
    monkeypatch.setattr(BlockTable, "reach_room", by_bits)
    with contextlib.suppress(limpet.StoreFull):
        pool.store("race", name="store").put(b"new", bytes(900))
    assert ownerless(pool) < left - 1


def test_blocks_of_living_clients_without_pages_behind_them_stay_theirs(pools: Any) -> None:
    """A client in need took them, and had no use for them."""
    pool, disk = make(pools)
    store = pool.store("race", name="store", capacity=64)
    others = [again(pools, pool, disk) for _ in range(4)]
    for number, other in enumerate(others):
        orphan_of(other, f"theirs {number}")
    disk.room = 0
    before = pool.blocks.words(0).tolist()
    vain = [
        block
        for block, word in enumerate(before)
        if word >> 60 == SLAB and word & OWNER_MASK != pool.client_id
        for used in [pool.blocks.used_bits(0, block, class_of(word))]
        if used & (used + 1) == 0 and used.bit_count() > 1
    ]
    assert len(vain) == 3
    with pytest.raises(limpet.StoreFull, match="file system is full"):
        fill(store)
    after = pool.blocks.words(0).tolist()
    assert [after[block] for block in vain] == [before[block] for block in vain]


# ---- the message -------------------------------------------------------------------------------


def test_the_file_system_is_named_only_while_it_is_the_cause(pools: Any) -> None:
    """It was full once; then there is room again, and the node is too small."""
    pool, disk = make(pools, node_size="2MiB")
    store = pool.store("race", name="store", capacity=64)
    fill(store, 2)
    disk.room = 0
    with pytest.raises(limpet.StoreFull, match="file system is full"):
        fill(store, 1000)
    disk.room = 1 << 20
    with pytest.raises(limpet.StoreFull, match="add_node") as caught:
        store.put(b"span", bytes(BLOCK * 14))
    assert "file system" not in str(caught.value)
    said = re.search(r"(\d+) of its (\d+) blocks of \d+ bytes are free", str(caught.value))
    assert said is not None
    assert 0 < int(said[1]) < int(said[2]) == pool.layout.block_count


def test_the_node_is_named_whose_file_system_is_full(pools: Any) -> None:
    pool, _ = make(pools, nodes=2)
    store = pool.store("fusee", name="store", capacity=64, replicas=2)
    ask = pool.blocks.pages.backing
    pool.blocks.pages.backing = lambda node, *part: node == 0 and ask(node, *part)
    with pytest.raises(limpet.StoreFull, match=r"the file system of node 1.*is full|its file"):
        fill(store)
    pages = pool.blocks.pages
    assert pages.refused == 1
    message = pool.allocator.relief.why_full([0], 900, pages.refused, 0, 1)
    assert "node 0 has no room" in message
    assert "the file system of node 1" in message


# ---- a replaced node ---------------------------------------------------------------------------


def replicated(pools: Any) -> tuple[Any, Disk, Any]:
    pool, disk = make(pools, nodes=2, node_size="16MiB")
    store = pool.store("fusee", name="store", capacity=256, replicas=2)
    for number in range(60):
        store.put(b"%d" % number, bytes((100, 900, 2500, 7000)[number % 4]))
    return pool, disk, store


def test_a_node_is_replaced_where_there_is_room_for_what_it_had(pools: Any) -> None:
    """The new memory took whole blocks, and reading those of the other replica allocated the pages
    that were missing there."""
    pool, disk, store = replicated(pools)
    before = disk.asked(pool)
    disk.room = before // 2 + 32  # half of it is the other node's
    pool.fail_node(1)
    pool.replace_node(1)
    assert disk.touched(pool) == []
    assert disk.asked(pool) <= before + 32
    for number in range(60):
        assert len(store.get(b"%d" % number)) == (100, 900, 2500, 7000)[number % 4]
    pool.fail_node(0)
    for number in range(60):
        assert len(store.get(b"%d" % number)) == (100, 900, 2500, 7000)[number % 4]
    assert disk.touched(pool) == []


def test_known_bad_copy_of_whole_blocks_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Filling, "_size_of", lambda self, replica_set: self.heap.block_size)
    pool, disk, _ = replicated(pools)
    pool.fail_node(1)
    pool.replace_node(1)
    assert {node for node, _ in disk.touched(pool)} == {0}


def go_on(pools: Any, forget: bool) -> list[tuple[int, int]]:
    """The pages that were not asked for when the owner of the slabs, and other clients, go on after
    a replacement; with `forget`, as is shipped."""
    pool, disk, store = replicated(pools)
    other = again(pools, pool, disk)
    theirs = other.store("fusee", name="store")
    for number in range(20):
        theirs.put(b"theirs %d" % number, bytes(900))
    for turn in range(4):  # pages behind the last object in use are not filled in
        for number in range(5, 60):
            store.delete(b"%d" % number)
        if turn < 3:  # so that the owner has met what it has freed
            for number in range(5, 60):
                store.put(b"%d" % number, bytes((100, 900, 2500, 7000)[number % 4]))
    for number in range(5, 20):
        theirs.delete(b"theirs %d" % number)
    if not forget:
        pool.mapped.replaced = other.mapped.replaced = lambda node: None
    again(pools, pool, disk).fail_node(1)
    again(pools, pool, disk).replace_node(1)
    for handle, name in ((store, b"ours"), (theirs, b"theirs")):
        for number in range(60):
            handle.put(b"%s %d" % (name, number), bytes((100, 900, 2500, 7000)[number % 4]))
    assert len(store) == 125
    checked(store)
    return disk.touched(pool)


def test_owners_ask_again_for_pages_on_a_replaced_node(pools: Any) -> None:
    assert go_on(pools, True) == []


def test_known_bad_owner_that_asks_only_for_pages_behind_is_seen(pools: Any) -> None:
    assert go_on(pools, False) != []


def test_a_node_that_does_not_fit_stays_lost_until_there_is_room(pools: Any) -> None:
    pool, disk, store = replicated(pools)
    disk.room = 4
    pool.fail_node(1)
    with pytest.raises(limpet.StoreFull, match="file system of node 1"):
        pool.replace_node(1)
    assert len(store.get(b"1")) == 900
    with contextlib.suppress(limpet.StoreFull):
        store.put(b"new", bytes(100))
    disk.room = 1 << 20
    pool.replace_node(1)
    assert [node["state"] for node in pool.nodes()] == ["in service", "in service"]
    checked(store)
    assert disk.touched(pool) == []


# ---- pages that no client has asked for ----------------------------------------------------------


def parameters(kind: str) -> dict[str, Any]:
    return {"replicas": 2} if kind == "fusee" else {"replicas": 3} if kind == "swarm" else {}


@pytest.mark.exhaustive_in_pure("the same lines as compiled, and much slower", quick=["race"])
@pytest.mark.parametrize("kind", ["race", "fusee", "swarm", "rtx-race"])
def test_no_client_touches_a_page_that_was_not_asked_for(pools: Any, kind: str) -> None:
    """Recovery of a client that was killed at any step, adoption of its blocks, relief, blocks
    taken from a living client: all with a file system that is full from the kill on."""
    pool, disk = make(pools, nodes=3, node_size="16MiB")
    store = pool.store(kind, name="store", capacity=256, **parameters(kind))
    idle = again(pools, pool, disk)
    idle.store(kind, name="store").put(b"idle", bytes(900))
    killed = 0
    for step in STEPS:
        disk.room = 1 << 30

        def work(step: int = step) -> None:
            with again(pools, pool, disk) as mine:
                theirs = mine.store(kind, name="store")
                theirs.put(b"begun %d" % step, bytes(900))
                mine.endpoint.fuse = step
                for number in range(40):
                    theirs.put(b"%d" % number, bytes((100, 900, 2500, 7000)[number % 4]))
                    if number % 3 == 2:
                        theirs.delete(b"%d" % (number - 1))
                mine.endpoint.fuse = 0

        with children([work]) as running:
            code = os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1])
        killed += code == -signal.SIGKILL
        disk.room = 0
        pool.recover()
        for number in range(100):
            with contextlib.suppress(limpet.StoreFull):
                store.put(b"after %d" % (number % 30), bytes((100, 900, 2500, 7000)[number % 4]))
        assert disk.touched(pool) == []
        assert dict(store.items())
        for key in list(store):
            store.delete(key)
        assert disk.touched(pool) == []
    assert killed
    disk.room = 1 << 30
    assert checked(store)["leaked"] == 0


def test_known_bad_page_that_was_not_asked_for_is_seen(pools: Any) -> None:
    pool, disk = make(pools)
    block = kinds_free(pool)[0]
    pool.endpoint.load(pool.heap.reference(0, block, 0, 0) & ~7)
    assert disk.touched(pool)


def kinds_free(pool: Any) -> list[int]:
    words = pool.blocks.words(0).tolist()
    return [block for block, word in enumerate(words) if word >> 60 == FREE and not word & BACKED]


@pytest.mark.parametrize("kind", ["fusee", "swarm"])
def test_what_a_handle_remembers_of_a_lost_node_is_not_read_in_its_new_memory(
    pools: Any, kind: str
) -> None:
    """Objects that are free by then have no pages there."""
    pool, disk = make(pools, nodes=3, node_size="16MiB")
    store = pool.store(kind, name="store", capacity=256, **parameters(kind))
    other = again(pools, pool, disk)
    theirs = other.store(kind, name="store")
    for number in range(60):
        store.put(b"%d" % number, bytes((100, 900, 2500, 7000)[number % 4]))
    for _ in range(2):
        assert all(theirs.get(b"%d" % number) is not None for number in range(60))
    for number in range(60):
        store.delete(b"%d" % number)
    for node in range(3):
        pool.fail_node(node)
        pool.replace_node(node)
    assert [theirs.get(b"%d" % number) for number in range(60)] == [None] * 60
    assert disk.touched(other) == []
