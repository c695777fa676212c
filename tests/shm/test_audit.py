"""Audits beside clients at work: what is on its way is not leaked, and what is leaked is told."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from typing import Any

import pytest
from kit.clients import pair_references, pinned
from kit.processes import children

import limpet
from limpet.fault.inject.workers import Workers
from limpet.shm import pool as pool_module
from limpet.shm.audit import Audit
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import SLAB, block_word

BUSY_S = 2.0
SIZE = 1800


class ConfirmsAll(Audit):
    """Objects that one look found nowhere are not looked for again."""

    def _confirmed(self, suspects: set[tuple[int, int]]) -> set[tuple[int, int]]:
        return suspects


class NeverPins(Audit):
    """Memory that is freed during its look may be in use again before it has looked there."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.client = Unpinned(self.client.slot)  # type: ignore[assignment]


class Unpinned:
    def __init__(self, slot: int) -> None:
        self.slot = slot

    def pin(self) -> None:
        pass

    unpin = go_on = pin


def audit_that_is_overtaken(pools: Any) -> dict[str, int]:
    """An audit in every look of which the same object is unlinked.

    It is linked again before the next look, and if possible already before the end of that one.
    """
    pool = pools()
    other = pools.again(pool)
    store = other.store("race", capacity=64)
    pool.store("race")
    store.put(b"k", bytes(SIZE))
    (linked,) = pair_references(pool)
    references, close_period = pool.references, pool.grace.close_period

    def link_again() -> None:
        for _ in range(40):
            if linked in references().tolist():
                break
            store.update(b"k", bytes(SIZE))

    def overtaken() -> Any:
        store.update(b"k", bytes(SIZE))
        found = references()
        link_again()
        return found

    def between_looks() -> Any:
        link_again()
        return close_period()

    pool.references = overtaken
    pool.grace.close_period = between_looks
    return dict(pool.audit())


def test_object_that_always_moves_on_is_not_leaked(pools: Any) -> None:
    """An object that was freed and used again between looks was taken for a leak in all of them."""
    audit = audit_that_is_overtaken(pools)
    assert audit["leaked"] == 0
    assert sum(audit[name] for name in audit if name != "total") == audit["total"]


@pytest.mark.parametrize("mutant", [ConfirmsAll, NeverPins])
def test_worse_audit_sees_a_leak_where_there_is_none(
    pools: Any, monkeypatch: pytest.MonkeyPatch, mutant: Any
) -> None:
    monkeypatch.setattr(pool_module, "Audit", mutant)
    assert audit_that_is_overtaken(pools)["leaked"] > 0


def test_auditor_is_not_pinned_afterwards(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    store.put(b"k", b"v")
    leak(pool)
    assert pool.audit()["leaked"] > 0
    assert pool.grace.pinned() == []
    store.put(b"k", b"w")
    assert store.get(b"k") == b"w"


def test_where_a_leak_is_is_logged(pools: Any, caplog: pytest.LogCaptureFixture) -> None:
    pool = pools()
    size = leak(pool)
    word = block_word(SLAB, 4 << INCARNATION_BITS | 1, 3)  # no client has that id
    pool.endpoint.store(pool.heap.table_word(0, 5), word)
    assert pool.audit()["leaked"] == size + pool.layout.block_size
    (told,) = (record.getMessage() for record in caplog.records)
    assert f"{size + pool.layout.block_size} bytes leaked: " in told
    assert re.search(rf"\b{size} at node 0, block \d+ \(0x[0-9a-f]+\), object \d+, replica 0", told)
    assert f"{pool.layout.block_size} at node 0, block 5 ({word:#018x})" in told
    assert "dead" not in told


def test_leaks_of_dead_clients_are_one_line_that_says_how_to_recover_them(
    pools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pools()

    def dies(slot: int, incarnation: int) -> None:
        with limpet.open(pool.url) as opened:
            for size in (8, 800, 8000):
                opened.store("race", capacity=64).put(b"k", bytes(size))
            os.kill(os.getpid(), signal.SIGKILL)

    with Workers(dies) as workers:
        workers.reap(workers.start(0))
    leaked = pool.audit()["leaked"]
    assert leaked > 0
    (told,) = (record.getMessage() for record in caplog.records)
    assert f"{leaked} bytes leaked: " in told
    assert "pool.recover()" in told
    assert "`limpet watch`" in told
    assert "dead clients (1 here)" in told
    pool.recover()
    caplog.clear()
    assert pool.audit()["leaked"] == 0
    assert not caplog.records


def leak(pool: limpet.Pool) -> int:
    """Have an object in use that no client has in the client journal and nothing links to; its
    size."""
    pool.allocator.replenish(0, SIZE)
    with pinned(pool):
        reference = pool.allocator.allocate(0, SIZE)
    assert reference
    pool.heap.take(reference)
    return int(pool.heap.sizes[reference >> 48])


@pytest.mark.exhaustive("seconds of processes")
def test_leak_beside_busy_writers_is_told_exactly(pools: Any) -> None:
    """With values from tiny to spans, and so little memory that blocks change hands."""
    pool = pools(node_size="2MiB", clients=16)
    store = pool.store("race", capacity=64)

    def work(seed: int) -> None:
        source = random.Random(seed)
        while True:
            store.put(b"%d" % source.randrange(6), bytes(source.choice((20, 900, 3000, 40_000))))

    with children([lambda s=s: work(s) for s in range(6)]) as writers:
        leaked = 0
        for _ in range(2):
            audits, deadline = 0, time.monotonic() + BUSY_S / 2
            while audits < 3 or time.monotonic() < deadline:
                audit = pool.audit()
                assert audit["leaked"] == leaked
                assert sum(audit[name] for name in audit if name != "total") == audit["total"]
                audits += 1
            leaked = leaked or leak(pool)
        for pid, _ in writers:
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "a writer ended"
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    pool.recover()
    assert pool.audit()["leaked"] == leaked
    store.check()
