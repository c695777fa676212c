"""A signal handler raises between two lines of a client's notes on its blocks (alloc/slabs.py), in
Python that is not compiled: no object is handed out twice, and no block with one is given back."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from kit.clients import pinned
from kit.cuts import Lines
from kit.mutants import notes

import limpet
from limpet.shm.alloc.slabs import Runs, Slab, find_freed
from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import ADDRESS_MASK

pytestmark = pytest.mark.skipif(
    BUILD == "compiled", reason="no handler comes between two lines of what is compiled"
)
BLOCK = 16 << 10
SIZES = (700, BLOCK // 3, 700, BLOCK * 5 // 4, 1500, 700)
TURNS = 16
CUTS = 40


class Client:
    """Takes and frees objects of some sizes, and knows which it has."""

    def __init__(self, pool: limpet.Pool) -> None:
        self.pool = pool
        self.live: dict[int, int] = {}

    def churn(self) -> None:
        allocator, heap = self.pool.allocator, self.pool.heap
        for turn in range(TURNS):
            size = SIZES[turn % len(SIZES)]
            allocator.replenish_all(0, [size, size], 1, 0, 0, True)
            for _ in range(2):
                reference = allocator.next_object(0, size, 1)
                if reference:
                    heap.take(reference)
                    self.live[reference] = size
            self.check()
            for reference in list(self.live)[:: 3 if turn % 8 else 1]:
                del self.live[reference]
                heap.free(reference)
            if turn % 4 == 3:
                allocator.relief.make_room(1, 0, {})
            self.check()

    def check(self) -> None:
        """No two objects overlap, and all lie in blocks of this client's."""
        heap, claims = self.pool.heap, self.pool.allocator.claims
        places = sorted((each & ADDRESS_MASK, size) for each, size in self.live.items())
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(places))
        for reference in self.live:
            word = claims.slab_word(heap.block_class(reference >> 48 & 0xFF), 1)
            for block in range(heap.block_of(reference), heap.last_block_of(reference) + 1):
                assert claims.owns(0, block, word)
            assert heap.used(reference)


@contextlib.contextmanager
def client(pools: Any) -> Iterator[Client]:
    with pools(nodes=1, node_size="2MiB", block_size=BLOCK) as pool:
        yield Client(pool)


def cut_everywhere(pools: Any, file: str = "alloc/slabs.py") -> None:
    count = Lines(file, 1 << 30)
    with client(pools) as whole, count.watched():
        whole.churn()
    lines = (1 << 30) - count.left
    for number in range(1, lines, max(1, lines // CUTS)):
        with client(pools) as one:
            cut = Lines(file, number)
            with cut.watched():
                one.churn()
            assert cut.cut
            one.check()
            one.churn()


def test_no_cut_hands_an_object_out_twice(pools: Any) -> None:
    cut_everywhere(pools)


def test_a_block_that_seems_to_be_empty_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slab, "take_pages", notes.take_pages_before_the_count)
    with pytest.raises((AssertionError, limpet.LimpetError)):
        cut_everywhere(pools, "mutants/notes.py")


def cut_fit(pools: Any, file: str) -> list[bool]:
    """Look whether runs fit, with pages that wait for another client, and cut that at each line of
    the file. Whether the ready pages are the same each time."""
    found = []
    with client(pools) as one, pools.again(one.pool) as other, pinned(other):
        heap, allocator = one.pool.heap, one.pool.allocator
        allocator.replenish_all(0, [BLOCK, BLOCK], 1, 0, 0, True)
        reference = allocator.next_object(0, BLOCK, 1)
        heap.take(reference)
        heap.free(reference)
        runs = allocator.slabs.runs_of(0, 1)
        find_freed(runs.slabs, one.pool.grace)
        assert any(slab.pending[0] for slab in runs.slabs)
        before = runs.ready_pages()
        for number in itertools.count(1):
            cut = Lines(file, number)
            with cut.watched():
                runs.fit([64, 64], pending=True)
            if not cut.cut:
                return found
            runs.clear_aside()
            found.append(runs.ready_pages() == before)
    raise AssertionError


def test_pages_that_are_pending_are_never_ready(pools: Any) -> None:
    assert all(cut_fit(pools, "alloc/slabs.py"))


def test_pages_that_are_ready_for_a_while_are_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runs, "fit", notes.fit_by_swapping)
    assert not all(cut_fit(pools, "mutants/notes.py"))


def test_the_client_journal_is_settled_whatever_was_cut_off(pools: Any) -> None:
    """A pair stayed in shared memory, and named an object that another client had later."""
    pool = pools()
    client, allocator = pool.client, pool.allocator
    for number in itertools.count(1):
        allocator.replenish(0, 100, 1, 0, 0, True)
        lines = Lines("clients/client.py", number)
        client.enter()
        try:
            reference = allocator.next_object(0, 100, 1)
            assert reference
            with lines.watched():
                client.log(reference, 0)
        finally:
            client.leave()
        assert journal_of(pool.endpoint, client.ident >> INCARNATION_BITS) == []
        if not lines.cut:
            assert number > 5, "no line was met"
            break
