"""Objects that are runs of pages: they share blocks, cross them, and survive kills at each step."""

from __future__ import annotations

import contextlib
import os
import signal
from random import Random
from typing import Any

import numpy as np
import pytest
from kit.processes import child, children
from kit.stores import checked

import limpet
from limpet.shm.alloc import reclaim
from limpet.shm.alloc.blocks import BlockTable
from limpet.shm.alloc.heap import Heap
from limpet.shm.alloc.slabs import Runs
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.words import OWNER_MASK, SLAB, class_of
from limpet.shm.pages import ALL_PAGES, best_run

KEY = b"key"
BLOCK = 16 << 10
SIZES = [BLOCK * part // 8 for part in (2, 3, 5, 7, 9, 12, 19, 26)]
"""Bytes of values from a quarter of a block to more than three blocks."""
FUSE = 1 << 30
uncompiled_only = pytest.mark.skipif(
    BUILD == "compiled", reason="replaces a method, which is called directly if it is compiled"
)


def value(number: int, size: int) -> bytes:
    """A value that no other number has, in no page of it."""
    return b"%08d" % number * (size // 8)


def paged(pool: limpet.Pool, node: int = 0) -> list[int]:
    """The blocks of a node that are cut into pages."""
    words = pool.blocks.words(node).tolist()
    return [
        block
        for block, word in enumerate(words)
        if word >> 60 == SLAB and class_of(word) == pool.heap.page_class
    ]


def size_of(pages: int) -> int:
    """Bytes of a value that is a run of so many pages, with its key and header."""
    return BLOCK * pages // 64 - 200


def fill(store: Any, size: int) -> list[bytes]:
    """Insert values of that size until there is no memory; their keys."""
    keys: list[bytes] = []
    with contextlib.suppress(limpet.StoreFull):
        while True:
            store.insert(b"%d" % len(keys), value(len(keys), size))
            keys.append(b"%d" % len(keys))
    return keys


def used_pages(pool: limpet.Pool, node: int = 0) -> int:
    return sum(
        pool.blocks.used_count(node, block, pool.heap.page_class) for block in paged(pool, node)
    )


def fill_and_churn(store: Any, turns: int) -> None:
    """Put values of many sizes over others, and look whether any has changed another."""
    expected: dict[bytes, bytes] = {}
    for turn in range(turns):
        key = b"%d" % (turn * 7 % 11)
        expected[key] = value(turn, SIZES[turn % len(SIZES)])
        store.put(key, expected[key])
        if turn % 3 == 2:
            gone = b"%d" % (turn % 11)
            if expected.pop(gone, None) is not None:
                store.delete(gone)
        for each, wanted in expected.items():
            assert store.get(each) == wanted


@pytest.mark.parametrize("kind", ["race", "fusee"])
def test_objects_of_many_sizes_share_blocks_and_overlap_nowhere(pools: Any, kind: str) -> None:
    pool = pools(nodes=2, node_size="4MiB", block_size=BLOCK)
    store = pool.store(kind, capacity=64)
    fill_and_churn(store, 66)
    checked(store)
    for node in range(2):
        assert used_pages(pool, node) <= 64 * len(paged(pool, node))


def test_runs_use_what_is_left_in_the_block_above_a_new_one(pools: Any) -> None:
    """Each block had one run, since a new block was taken for that of the run before."""
    pool = pools(nodes=1, node_size="512KiB", clients=16)
    store = pool.store("race", name="s", capacity=3000)
    for key in fill(store, 40_000):
        store.delete(key)
    fill(store, 9000)
    blocks = paged(pool)
    assert len(blocks) >= 20
    assert used_pages(pool) > 0.85 * 64 * len(blocks)


def test_one_block_serves_all_sizes_that_have_room_in_it(pools: Any) -> None:
    pool = pools(nodes=1, block_size=256 << 10)
    store = pool.store("race", capacity=64)
    for number, parts in enumerate((8, 7, 6, 5, 5)):
        store.put(b"%d" % number, bytes((256 << 10) // parts))
    assert len(paged(pool)) == 1
    checked(store)


@pytest.mark.parametrize("kind", ["race", "fusee"])
def test_a_kill_at_each_step_leaves_all_pages_of_an_object_or_none(pools: Any, kind: str) -> None:
    pool = pools(nodes=2, node_size="2MiB", block_size=BLOCK)
    store = pool.store(kind, capacity=64)
    values = [value(number, BLOCK * 3 // 2) for number in range(2)]
    store.put(KEY, values[0])
    in_use = [used_pages(pool, node) for node in range(2)]
    pool.endpoint.fuse = FUSE
    store.put(KEY, values[1])
    count = FUSE - pool.endpoint.fuse
    pool.endpoint.fuse = 0
    # few of the steps that write the value
    for step in (*range(1, 12), *range(12, count - 30, 83), *range(count - 30, count + 9)):
        before = values.index(store.get(KEY))
        after = values[1 - before]

        def put(after: bytes = after, step: int = step) -> None:
            with limpet.open(pool.url) as mine:
                victim = mine.store(kind)
                victim.put(b"other", bytes(BLOCK // 3))
                mine.endpoint.fuse = step
                victim.put(KEY, after)
                mine.endpoint.fuse = 0

        with children([put]) as running:
            code = os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1])
        assert code in (0, -signal.SIGKILL)
        pool.recover()
        assert pool.audit()["leaked"] == 0, step
        assert store.get(KEY) in values
        store.delete(b"other")
        assert [used_pages(pool, node) for node in range(2)] == in_use, step
    assert code == 0
    checked(store)


def test_a_client_that_had_blocks_on_a_lost_node_fills_it(pools: Any) -> None:
    """It took them for its own in the new memory, too, and found no room for a directory."""
    pool = pools(nodes=2, node_size="1MiB", clients=16)
    store = pool.store("fusee", name="safe", capacity=16, replicas=2)
    store.put(b"k", b"v")
    pool.fail_node(1)
    pool.replace_node(1)
    assert store.get(b"k") == b"v"


def test_pages_come_with_a_replaced_node(pools: Any) -> None:
    pool = pools(nodes=3, node_size="4MiB", block_size=BLOCK)
    store = pool.store("fusee", capacity=64, replicas=2)
    for number, size in enumerate(SIZES):
        store.put(b"%d" % number, value(number, size))
    for node in range(3):
        pool.fail_node(node)
        for number, size in enumerate(SIZES):
            assert store.get(b"%d" % number) == value(number, size)
        pool.replace_node(node)
    for number, size in enumerate(SIZES):
        assert store.get(b"%d" % number) == value(number, size)
        store.put(b"%d" % number, value(number + 1, size))
    checked(store)
    assert pool.audit()["leaked"] == 0


@pytest.mark.parametrize("pages", [22, 46])
def test_runs_that_are_no_part_of_a_block_leave_no_rest_in_each(pools: Any, pages: int) -> None:
    pool = pools(nodes=1, node_size="4MiB", block_size=BLOCK)
    store = pool.store("race", capacity=1024)
    count = len(fill(store, size_of(pages)))
    assert count * pages >= 0.9 * 64 * len(paged(pool))
    checked(store)


@pytest.mark.parametrize("pages", [22, 46, 91, 300])
def test_gaps_that_cross_blocks_of_a_client_that_left_are_used(pools: Any, pages: int) -> None:
    pool = pools(nodes=1, node_size="4MiB", block_size=BLOCK)
    store = pool.store("race", capacity=1024)
    size = size_of(pages)

    def leaver() -> None:
        with limpet.open(pool.url) as mine:
            fill(mine.store("race"), size)

    with children([leaver]) as running:
        assert os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1]) == 0
    count = len(store)
    for number in range(0, count, 2):
        store.delete(b"%d" % number)
    for number in range(0, count, 2):
        store.put(b"%d" % number, value(number, size))
    for number in range(count):
        assert store.get(b"%d" % number) == value(number, size)
    checked(store)


def put_again(pools: Any, pages: int, share: str, owner: str) -> tuple[int, int]:
    """An idle client has filled the memory; another one deletes this share of the values, and puts
    as many of their size: how many it deletes, and how many there is room for."""
    pool = pools(nodes=1, node_size="2MiB", block_size=BLOCK)
    store = pool.store("race", capacity=1024)
    size = size_of(pages)
    with contextlib.ExitStack() as until:
        if owner == "handle":
            count = len(fill(pools.again(pool).store("race"), size))
        else:
            idle = until.enter_context(child(fill=lambda: len(fill(store, size))))
            count = idle.do("fill")
        gone = [n for n in range(count) if (n % 2 == 0 if share == "a half" else n % 3)]
        for number in gone:
            store.delete(b"%d" % number)
        again: list[int] = []
        with contextlib.suppress(limpet.StoreFull):
            for number in gone:
                store.put(b"%d" % number, value(number, size))
                again.append(number)
        for number in {*range(count)} - {*gone} | {*again}:
            assert store.get(b"%d" % number) == value(number, size)
        checked(store)
    return len(gone), len(again)


@pytest.mark.parametrize("owner", ["handle", "process"])
@pytest.mark.parametrize("pages", [22, 39, 46, 80])
@pytest.mark.parametrize("share", ["a half", "two thirds"])
def test_gaps_in_blocks_of_an_idle_client_are_used(
    pools: Any, pages: int, share: str, owner: str
) -> None:
    """A run was put into the middle of a gap when only the block there was empty. Gaps of several
    runs may still be split, as they lie in blocks of two clients."""
    gone, again = put_again(pools, pages, share, owner)
    assert again >= gone - (share == "two thirds")


def test_all_gaps_in_blocks_of_our_own_are_used(pools: Any) -> None:
    """The search began in the middle of a gap, and left parts of it that were too short."""
    pool = pools(nodes=1, node_size="2MiB", block_size=BLOCK)
    store = pool.store("race", capacity=1024)
    size = pool.heap.block_size * 22 // 64 - 200
    count = len(fill(store, size))
    later = range(count // 2 + 1, count)
    for number in later:
        store.delete(b"%d" % number)
    for number in later:
        store.put(b"%d" % number, value(number, size))
    checked(store)


def test_no_more_is_claimed_for_a_run_that_is_ready(pools: Any) -> None:
    """The longest run was asked for again, until all were ready, and there was no room for it."""
    pool = pools(nodes=1, node_size="2MiB", block_size=BLOCK)
    allocator, sizes = pool.allocator, [size_of(128), size_of(9)]
    free = pool.blocks.free_count(0)

    def make_ready(group: list[int]) -> bool:
        return bool(allocator.make_all_ready(0, group, 1, True, free - 3))

    assert pool.client.exclusively(lambda: make_ready(sizes))
    assert pool.blocks.free_count(0) == free - 3


@pytest.mark.parametrize("pages", [0, 22], ids=["objects", "runs"])
def test_no_more_blocks_are_adopted_while_those_that_were_are_pending(
    pools: Any, pages: int
) -> None:
    """A client took all blocks without an owner for one value, as none had an object yet."""
    pool = pools(nodes=1, node_size="2MiB", block_size=BLOCK, fence="wait")
    store = pool.store("race", capacity=1024)
    size = size_of(pages) if pages else 1000
    leaver, reader = pools.again(pool), pools.again(pool)
    for number in range(200 if pages else 600):
        leaver.store("race").put(b"%d" % number, value(number, size))
    leaver.close()
    for number in range(0, 200 if pages else 600, 2):
        store.delete(b"%d" % number)

    def mine() -> int:
        owners = pool.blocks.words(0) & np.uint64(OWNER_MASK)
        return int((owners == pool.client_id).sum())

    before = mine()
    reader.client.enter()
    try:
        for number in range(4):
            store.put(b"more %d" % number, value(number, size))
        assert mine() - before <= 4
    finally:
        reader.client.leave()
    checked(store)


def test_a_page_that_nothing_links_is_found_and_freed(pools: Any) -> None:
    """One page of a run stays behind, and a whole run: the audit counts their bytes."""
    pool = pools(nodes=1, block_size=BLOCK)
    store = pool.store("race", capacity=64)
    store.put(KEY, value(0, BLOCK * 5 // 4))
    size = BLOCK * 9 // 8
    size_class = pool.heap.size_class(size)
    pool.allocator.replenish(0, size)
    reference = pool.allocator.next_object(0, size, 1)
    pool.heap.take(reference)
    leaked = pool.audit()["leaked"]
    assert abs(leaked - pool.heap.sizes[size_class]) <= 8 * pool.heap.runs[size_class]
    pool.heap.free(reference)
    assert pool.audit()["leaked"] == 0
    assert store.get(KEY) == value(0, BLOCK * 5 // 4)


def test_runs_of_pages_have_places_of_their_own(pools: Any) -> None:
    pool = pools(nodes=1, block_size=BLOCK)
    heap = pool.heap
    for size_class in range(heap.paged, heap.page_class):
        size = heap.sizes[size_class]
        pages = heap.runs[size_class]
        for page in range(0, 64, 9):
            reference = heap.reference(0, 2, size_class, page)
            assert heap.plausible(reference)
            assert heap.index_of(reference) == page
            assert heap.last_block_of(reference) == 2 + (page + pages - 1) // 64
            after = heap.reference(
                0, 2 + (page + pages) // 64, heap.page_class, (page + pages) % 64
            )
            assert (after & ~(0xFF << 48)) - (reference & ~(0xFF << 48)) >= size
        last = heap.reference(0, heap.block_count - 1, size_class, 57)
        assert heap.plausible(last) == (pages <= 7)


def has_run(usable: list[int], free: list[bool], pages: int, most: int) -> bool:
    """Whether there is a run of so many of these pages (a word a block) in at most `most` free
    blocks."""
    bits = [word >> page & 1 for word in usable for page in range(64)]
    return any(
        all(bits[start : start + pages])
        and sum(free[start // 64 : (start + pages - 1) // 64 + 1]) <= most
        for start in range(len(bits) - pages + 1)
    )


def test_a_run_is_found_where_there_is_one_with_few_free_blocks() -> None:
    """One that ends before a free block was missed, as free blocks count as known."""
    random = Random(1)
    found = 0
    for _ in range(800):
        count, pages = random.randint(2, 6), random.choice((20, 64, 80, 130))
        kinds = random.choices(["free", "other", "own", "used"], k=count)
        free = [kind == "free" for kind in kinds]
        most = random.randint(1, 2)
        parts = (ALL_PAGES, ALL_PAGES << random.randint(1, 40) & ALL_PAGES, ALL_PAGES >> 20)
        words = [
            ALL_PAGES if kind == "free" else 0 if kind == "used" else random.choice(parts)
            for kind in kinds
        ]
        ours = [0 if kind == "other" else word for kind, word in zip(kinds, words, strict=True)]
        flags = np.array(free)
        run = best_run(
            np.array(words, np.uint64), np.array(ours, np.uint64), pages, flags, flags, most
        )
        found += bool(run)
        # A client whose own blocks and free ones have a run is not short of memory.
        if has_run(words, free, pages, most) and not has_run(ours, free, pages, most):
            assert run, (kinds, words, pages, most)
    assert found > 50


# ---- known-bad variants -----------------------------------------------------------------------


@uncompiled_only
def test_a_run_whose_bits_are_set_in_one_block_only_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_word(self: Any, reference: int, found: int, take: bool) -> None:
        at, first = found & (1 << 48) - 1, found >> 48
        count = min(64 - first, self.runs[reference >> 48 & 0xFF])
        step = self._take_word if take else self._clear_word
        step(reference, at, (1 << count) - 1 << first)

    monkeypatch.setattr(Heap, "_change_run", first_word)
    with pytest.raises((AssertionError, limpet.LimpetError)):
        test_objects_of_many_sizes_share_blocks_and_overlap_nowhere(pools, "race")


@uncompiled_only
def test_a_run_whose_bits_are_cleared_in_one_block_only_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = Heap._change_run

    def first_word(self: Any, reference: int, found: int, take: bool) -> None:
        if take:
            change(self, reference, found, True)
        else:
            first = found >> 48
            count = min(64 - first, self.runs[reference >> 48 & 0xFF])
            self._clear_word(reference, found & (1 << 48) - 1, (1 << count) - 1 << first)

    monkeypatch.setattr(Heap, "_change_run", first_word)
    with pytest.raises(AssertionError):
        test_a_kill_at_each_step_leaves_all_pages_of_an_object_or_none(pools, "race")


@uncompiled_only
def test_a_run_that_overlaps_another_is_seen(pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Runs._take

    def all_but_one(self: Any, index: int, page: int, left: int) -> None:
        if page < 63:
            take(self, index, page + 1, left - 1)

    monkeypatch.setattr(Runs, "_take", all_but_one)
    with pytest.raises((AssertionError, limpet.LimpetError)):
        test_objects_of_many_sizes_share_blocks_and_overlap_nowhere(pools, "race")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("around", lambda clear, blocks: set()),
        ("best_run", lambda *_: range(0)),
    ],
    ids=["empty-blocks-only", "empty-or-none"],
)
def test_a_client_that_looks_at_parts_of_a_gap_finds_no_memory(
    name: str, wrong: Any, pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = 46 if name == "around" else 22
    gone, again = put_again(pools, pages, "a half", "handle")
    assert again == gone
    monkeypatch.setattr(reclaim, name, wrong)
    gone, again = put_again(pools, pages, "a half", "handle")
    assert again < gone


def claim_at_once(pools: Any, claim: Any, patch: pytest.MonkeyPatch) -> None:
    """Two clients choose the same blocks; one claims them between the other's look and its step."""
    pool = pools(nodes=1, node_size="2MiB", block_size=BLOCK)
    other = pools.again(pool)
    store, others = pool.store("race", capacity=64), other.store("race")
    met = []

    def meet(block: int) -> None:
        if not met:
            met.append(block)
            others.put(b"theirs", value(1, size_of(90)))

    def claim_paged(self: Any, node: int, block: int, *rest: Any) -> bool:
        if self is pool.blocks:
            meet(block)
        return bool(claim(self, node, block, *rest))

    with patch.context() as patched:
        patched.setattr(BlockTable, "_claim_paged", claim_paged)
        store.put(b"ours", value(2, size_of(90)))
    assert met
    assert store.get(b"theirs") == value(1, size_of(90))
    assert store.get(b"ours") == value(2, size_of(90))
    checked(store)


def test_blocks_that_another_client_claims_meanwhile_are_its_own(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = BlockTable._claim_paged
    claim_at_once(pools, usual, monkeypatch)

    def claim(*wanted: Any) -> bool:
        usual(*wanted)
        return True

    with pytest.raises((AssertionError, limpet.StoreCorrupt)):
        claim_at_once(pools, claim, monkeypatch)


def test_a_claim_of_blocks_that_are_to_stay_free_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New entries leave a reserve for updates."""

    def left() -> bool:
        pool = pools(nodes=1, node_size="2MiB", block_size=BLOCK)
        store = pool.store("race", capacity=1024)
        fill(store, size_of(46))
        return bool(pool.blocks.free_count(0) >= pool.blocks.reserve > 0)

    assert left()
    usual = BlockTable.claim_pages

    def claim(self: Any, *wanted: Any, most: int, **more: Any) -> list[tuple[int, bool]]:
        return usual(self, *wanted, most=self.count, **more)

    monkeypatch.setattr(BlockTable, "claim_pages", claim)
    assert not left()
