"""Objects with replicas: nodes lost at any step, 1 to 7 replicas, full memory, damaged memory."""

from __future__ import annotations

import contextlib
import os
import random
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kit.clients import pinned
from kit.endpoints import WatchedEndpoint
from kit.groups import (
    SIZE,
    STEPS_MAX,
    WHOLE,
    LinkedPool,
    Work,
    claims,
    claims_span,
    everything_is_free,
    fill,
    free_blocks,
    give_back,
    hoard,
    large,
    puts,
    puts_span,
    roomy,
    settled,
    size_of,
    small,
    sound,
    strays,
)
from kit.processes import gather

import limpet
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import (
    FREE,
    REGION,
    block_word,
)

COMPILED = BUILD == "compiled"
ROUNDS = 1500 if COMPILED else 150


class LosingEndpoint(WatchedEndpoint, verbs=("fetch_or",)):
    """Counts what changes memory, and calls `due` in front of the step `step`."""

    step = 0
    due: Callable[[], None] | None = None

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if self.step and verb in ("cas", "mcas", "fetch_or"):
            self.step -= 1
            if not self.step and self.due is not None:
                self.due()
        return super().on_verb(verb, addr, words)


class LosingPool(LinkedPool):
    """A pool with such an endpoint."""

    endpoint_class = LosingEndpoint


@pytest.mark.exhaustive("every node", quick=["*-node 0"])
@pytest.mark.parametrize("lost", [0, 1, 2], ids=["node 0", "node 1", "node 2"])
@pytest.mark.parametrize("work", [claims, claims_span, puts, puts_span])
def test_node_may_be_lost_at_any_step(pools: Any, work: Work, lost: int) -> None:
    step = 0
    for step in range(1, STEPS_MAX, 1 if COMPILED else 3):
        pool = roomy(pools)
        kept = [pool.put(at, node, SIZE, 3) for at, node in enumerate((0, 1, 2, 3), 8)]
        client = pools.keep(LosingPool.open(pool.url))
        assert client.client_id
        client.endpoint.due = lambda pool=pool: pool.fail_node(lost)
        client.endpoint.step = step
        # One that meets the loss gives up; one that does not has done all of it.
        with contextlib.suppress(limpet.NodeFailed):
            work(client, 3)
        over = client.endpoint.step > 0
        client.endpoint.step = 0
        settled(pool)
        assert sound(pool)["held"] == 0, step
        for reference in kept:
            assert pool.serves(reference) >= 3 - (not over)
        for node in set(range(4)) - {lost}:
            client.put(node, node, SIZE, 3)
            client.put(4 + node, node, large(pool), 3)
        for at in range(12):
            pool.delete(at)
        client.close()
        everything_is_free(pool)
        pools.destroy()
        if over:
            break
    assert 3 < step < STEPS_MAX - 3


def test_claim_fails_when_only_this_process_has_lost_the_backups_node(pools: Any) -> None:
    """Others would not leave the backup out."""
    pool = small(pools, nodes=2)
    os.truncate(SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.0", 0)
    with pytest.raises(limpet.NodeFailed):
        pool.allocator.replenish(1, SIZE, 2)
    assert free_blocks(pool) == pool.layout.block_count - 1
    pool.fail_node(0)
    reference = pool.put(1, 1, SIZE, 2)
    assert pool.serves(reference) == 1
    sound(pool)


@pytest.mark.parametrize("spans", [False, True], ids=["slabs", "spans"])
def test_claim_is_undone_when_only_this_process_loses_a_node_meanwhile(
    pools: Any, spans: bool
) -> None:
    failures = 0
    for step in range(1, 20):
        pool = roomy(pools, nodes=3)
        client = pools.keep(LosingPool.open(pool.url))
        assert client.client_id
        path = SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.1"
        client.endpoint.due = lambda path=path: os.truncate(path, 0)
        client.endpoint.step = step
        try:
            client.allocator.replenish(0, size_of(pool, spans), 3)
        except limpet.NodeFailed:
            failures += 1
            words = [*pool.blocks.words(0).tolist(), *pool.blocks.words(2).tolist()]
            assert {word >> 60 for word in words} == {FREE, REGION}, step
        pools.destroy()
        if client.endpoint.step:
            break
    assert failures >= 2


@pytest.mark.exhaustive("every step")
def test_claim_is_undone_when_others_take_the_blocks_of_the_backups_meanwhile(pools: Any) -> None:
    pool = small(pools, nodes=3)
    client = pools.keep(LosingPool.open(pool.url))
    assert client.client_id

    def take_all() -> None:
        last = 0
        for node in (1, 2):
            last = fill(pool, node, WHOLE, 1, last)

    client.endpoint.due = take_all
    client.endpoint.step = 1
    with pytest.raises(limpet.StoreFull):
        client.allocator.replenish(0, SIZE, 2)
    assert {word >> 60 for word in pool.blocks.words(0).tolist()} == {FREE}
    sound(pool)


def test_owner_forgets_what_had_its_head_on_a_lost_node(pools: Any) -> None:
    pool = small(pools)
    lost, whole = pool.put(0, 0, SIZE, 3), pool.put(1, 1, SIZE, 3)
    pool.fail_node(0)
    with pytest.raises(limpet.NodeFailed):
        pool.put(2, 0, SIZE, 3)
    give_back(pool)
    assert {slab.node for slab in pool.allocator.slabs.all()} == {1}
    assert pool.serves(lost) == 2
    assert pool.serves(whole) >= 2
    settled(pool)
    assert sound(pool)["failed"] == pool.parameters.node_size


def test_backups_without_a_head_wait_for_who_may_be_allocating(pools: Any) -> None:
    """An operation that began before the loss was seen may still set used bits on the backups."""
    pool = small(pools)
    slow = pools.keep(LinkedPool.open(pool.url))
    pool.put(0, 0, SIZE, 3)
    with pinned(slow):
        pool.fail_node(0)
        pool.delete(0)
        settled(pool)
        assert strays(pool) == 2
    settled(pool)
    assert strays(pool) == 0
    everything_is_free(pool)


# ---- numbers of replicas -------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", range(1, 8))
def test_loss_of_all_nodes_but_one_leaves_a_replica(pools: Any, replicas: int) -> None:
    pool = small(pools, nodes=8)
    made = [pool.put(node, node, SIZE, replicas) for node in range(8)]
    for reference in made:
        nodes = [pool.heap.replica(reference, k) >> NODE_SHIFT for k in range(replicas)]
        assert len(set(nodes)) == pool.serves(reference) == replicas
    lost = random.Random(replicas).sample(range(7), replicas - 1)
    for count, node in enumerate(lost, 1):
        pool.fail_node(node)
        for reference in made:
            assert pool.serves(reference) >= replicas - count
            assert pool.heap.used(reference)
        settled(pool)
        sound(pool)
    for at in range(8):
        pool.delete(at)
    everything_is_free(pool)


def test_stores_with_different_numbers_of_replicas_share_a_pool(pools: Any) -> None:
    pool = roomy(pools, nodes=7)
    store = pool.store("race", name="plain", capacity=200)
    source = random.Random(7)
    living: dict[int, tuple[int, int]] = {}
    for turn in range(ROUNDS):
        at, replicas = source.randrange(60), source.randint(1, 7)
        if source.random() < 0.3:
            pool.delete(at)
            living.pop(at, None)
        else:
            size = source.choice((40, 700, SIZE))
            living[at] = pool.put(at, source.randrange(7), size, replicas), replicas
        store.put(b"%d" % (turn % 50), bytes(turn % 3000))
    for reference, replicas in living.values():
        assert pool.serves(reference) == replicas
    sound(pool)
    for at in range(60):
        pool.delete(at)
    give_back(pool)
    settled(pool)
    assert sound(pool)["held"] == 0


def test_memory_of_groups_is_given_to_others_when_memory_is_full(pools: Any) -> None:
    pool = small(pools, nodes=3)
    first = fill(pool, 0, WHOLE, 3)
    for replicas in (1, 2, 3):
        last = fill(pool, 0, WHOLE, replicas, first)
        with pytest.raises(limpet.StoreFull, match="node 0 has no room"):
            pool.allocator.replenish(0, WHOLE, replicas)
        for at in range(last):
            pool.delete(at)
        first = 0
    everything_is_free(pool)


def test_full_memory_holds_as_many_groups_after_as_before_the_loss_of_another_node(
    pools: Any,
) -> None:
    """Two nodes, two replicas: the one that is left goes on alone."""
    pool = small(pools, nodes=2)
    count = fill(pool, 1, WHOLE, 2)
    for at in range(count):
        pool.delete(at)
    give_back(pool)
    pool.fail_node(0)
    settled(pool)
    assert fill(pool, 1, WHOLE, 2) == count
    sound(pool)


def test_largest_object_with_replicas_fills_a_region(pools: Any) -> None:
    pool = roomy(pools)
    largest = pool.heap.value_max(2)
    assert largest == pool.heap.placement.region_blocks * pool.layout.block_size
    reference = pool.put(0, 2, largest, 2)
    assert pool.serves(reference) == 2
    sound(pool)
    with pytest.raises(limpet.StoreFull):
        pool.put(1, 2, largest + 1, 2)
    pool.delete(0)
    everything_is_free(pool)


def test_living_clients_take_each_others_hoarded_groups(pools: Any) -> None:
    pool = small(pools, nodes=3, lease=0.02)
    owner = pools.keep(LinkedPool.open(pool.url))
    hoard(owner, 3)
    for at in range(6):
        pool.put(at, at % 3, SIZE, 1 + at % 3)
    sound(pool)
    for at in range(6):
        pool.delete(at)
    owner.put(7, 0, WHOLE, 3)
    sound(pool)
    owner.delete(7)
    owner.close()
    everything_is_free(pool)


# ---- damage --------------------------------------------------------------------------------------

WORDS = st.builds(
    block_word,
    st.integers(0, 15),
    st.sampled_from([0, 1, 1 << 36 | 1, 2 << 36 | 1, 0xFFFF_FFFF_FFFF]) | st.integers(0, 40),
    st.sampled_from([0, 1, 5, 30, 200, 255]),
    st.integers(1, 16),
)


@pytest.mark.exhaustive("thousands of words")
@settings(
    deadline=None,
    max_examples=100 if COMPILED else 12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), WORDS), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, (1 << 64) - 1)), max_size=3),
    st.sampled_from([None, 0, 1]),
)
@example(damage=[(0, 0, 0)], links=[(0, 51758)], lost=None)  # more replicas than there can be
@example(damage=[(2, 0, 0)], links=[(0, 0)], lost=None)  # the block of the links themselves
def test_damaged_words_of_groups_end_in_errors_of_limpet(
    pools: Any, damage: Any, links: Any, lost: int | None
) -> None:
    pool = small(pools, nodes=3, lease=0.001, fence="wait")
    for at in range(12):
        pool.put(at, at % 3, (SIZE, 20_000)[at % 2], 1 + at % 3)
    words = [
        (pool.link_address(at), word) for at, word in links
    ]  # found before its block is damaged
    for node, block, word in damage:
        pool.endpoint.store(pool.heap.table_word(node, block % pool.layout.block_count), word)
    for address, word in words:
        pool.endpoint.store(address, word)

    def exercise() -> list[str]:
        problems: list[str] = []
        attempts: list[Callable[[], object]] = [pool.audit, pool.clients, pool.recover]
        if lost is not None:
            attempts.append(lambda: pool.fail_node(lost))
        for at in range(24):
            attempts.append(lambda at=at: pool.put(at, at % 3, (SIZE, 20_000)[at % 2], 1 + at % 3))
            attempts.append(lambda at=at: pool.delete(at))
        for attempt in [*attempts, pool.recover, pool.audit, pool.close]:
            try:
                attempt()
            except limpet.LimpetError:
                continue
            except Exception:
                problems.append(traceback.format_exc())
        return problems

    (problems,) = gather(exercise, lifetime_s=60)
    assert problems == []
    pools.destroy()
