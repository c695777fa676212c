"""Replica sets: a client killed at any step, or a late one, loses and leaks nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from kit.endpoints import Interrupted, WatchedEndpoint
from kit.groups import (
    SIZE,
    STEPS_MAX,
    LinkedPool,
    Work,
    claims,
    claims_span,
    everything_is_free,
    hoard,
    leaves,
    puts,
    puts_span,
    roomy,
    settled,
    size_of,
    small,
    sound,
    strays,
)
from kit.processes import child, start

from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.words import (
    BACKUP,
    FREE,
    LARGE_CLASS,
    OWNER_MASK,
    PENDING,
    SLAB,
    TAIL_CLASS,
    block_word,
    recast,
)
from limpet.shm.replicas.replica_sets import ReplicaSets

COMPILED = BUILD == "compiled"


def killed(pool: LinkedPool, work: Work, replicas: int, fuse: int) -> bool:
    """A client does the work and is killed at that step of it, or after it; whether before."""

    def live() -> None:
        assert pool.client_id
        pool.endpoint.fuse = fuse
        work(pool, replicas)

    pid, out = start(live)
    with out:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step", quick=["claims-*"])
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("work", [claims, claims_span, puts, puts_span, leaves])
def test_client_may_be_killed_at_any_step(pools: Any, work: Work, replicas: int) -> None:
    pool = roomy(pools)
    kept = [pool.put(at, at % 3, SIZE, replicas) for at in range(8, 12)]
    for fuse in range(1, STEPS_MAX):
        again = killed(pool, work, replicas, fuse)
        settled(pool)
        assert sound(pool)["held"] == 0, fuse
        assert all(pool.serves(reference) == replicas for reference in kept)
        if not again:
            break
    assert 5 < fuse < STEPS_MAX - 1
    for at in (*range(1, 4), *range(8, 12)):
        pool.delete(at)
    everything_is_free(pool)


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step", quick=["slabs"])
@pytest.mark.parametrize("spans", [False, True], ids=["slabs", "spans"])
def test_recoverer_may_be_killed_at_any_step(pools: Any, spans: bool) -> None:
    pool = roomy(pools)

    def dies_holding(pool: LinkedPool, replicas: int) -> None:
        """Die with a linked object and an unlinked one in the client journal, and a replica set
        half given back."""
        size = size_of(pool, spans)
        pool.put(1, 0, size, replicas)
        pool.allocator.replenish(1, size, replicas)
        pool.client.enter()
        assert pool.allocator.allocate(1, size, replicas)
        os.kill(os.getpid(), signal.SIGKILL)

    def recovers(fuse: int) -> None:
        pool.endpoint.fuse = fuse
        settled(pool)
        os._exit(0)

    for fuse in range(1, STEPS_MAX):
        with child(join=lambda: pool.client_id, recover=lambda fuse=fuse: recovers(fuse)) as other:
            other.do("join")
            assert killed(pool, dies_holding, 3, 0)
            other.send("recover")
            again = other.reap() != 0
        settled(pool)
        assert sound(pool)["held"] == 0, fuse
        if not again:
            break
    assert 5 < fuse < STEPS_MAX - 1
    pool.delete(1)
    everything_is_free(pool)


@pytest.mark.exhaustive("every step", quick=["slabs"])
@pytest.mark.parametrize("spans", [False, True], ids=["slabs", "spans"])
def test_who_gives_back_groups_without_a_head_may_be_killed_at_any_step(
    pools: Any, spans: bool
) -> None:
    for fuse in range(1, STEPS_MAX):
        pool = roomy(pools)
        size = size_of(pool, spans)
        pool.put(1, 0, size, 3)
        living = pool.put(2, 0, size, 3)
        pool.fail_node(0)
        pool.delete(1)
        again = killed(pool, lambda pool, _: settled(pool), 3, fuse)
        settled(pool)
        assert sound(pool)["held"] == 0, fuse
        assert pool.serves(living) == 2
        assert strays(pool) > 0
        pool.delete(2)
        everything_is_free(pool)
        pools.destroy()
        if not again:
            break
    assert 3 < fuse < STEPS_MAX - 1


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step")
def test_who_takes_hoarded_groups_may_be_killed_at_any_step(pools: Any) -> None:
    pool = small(pools, nodes=2, lease=0.02)
    owner = pools.keep(LinkedPool.open(pool.url))

    def short_of(pool: LinkedPool, replicas: int) -> None:
        pool.allocator.replenish(0, SIZE, replicas)

    for fuse in range(1, STEPS_MAX, 1 if COMPILED else 4):
        hoard(owner, 2)
        again = killed(pool, short_of, 2, fuse)
        settled(pool)
        assert sound(pool)["held"] == 0, fuse
        if not again:
            break
    assert 5 < fuse < STEPS_MAX - 1
    owner.close()
    everything_is_free(pool)


class Stepping(WatchedEndpoint):
    """Calls `due` in front of the `step`-th CAS."""

    step = 0
    due: Callable[[], None] = staticmethod(lambda: None)

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if verb == "cas":
            self.step -= 1
            if self.step == 0:
                self.due()
        return super().on_verb(verb, addr, words)


class SteppingPool(LinkedPool):
    endpoint_class = Stepping
    endpoint: Stepping


@pytest.mark.exhaustive("every step", quick=["slabs"])
@pytest.mark.parametrize("spans", [False, True], ids=["slabs", "spans"])
def test_of_two_recoverers_one_may_be_killed_at_any_step_while_the_other_is_at_any(
    pools: Any, spans: bool
) -> None:
    pool = roomy(pools)
    one, two = (pools.keep(SteppingPool.open(pool.url)) for _ in range(2))

    def dies() -> None:
        pool.allocator.replenish(1, size_of(pool, spans), 3)
        os.kill(os.getpid(), signal.SIGKILL)

    def interrupted() -> None:
        raise Interrupted

    def meanwhile() -> None:
        with contextlib.suppress(Interrupted):
            one.recover()

    def over(step: int, other_step: int) -> tuple[bool, bool]:
        """Whether the recoverers were done before those steps of theirs."""
        with child(die=dies) as other:
            other.send("die")
            other.reap()
        one.endpoint.due, one.endpoint.step = interrupted, other_step
        two.endpoint.due, two.endpoint.step = meanwhile, step
        two.recover()
        found = two.endpoint.step > 0, one.endpoint.step > 0
        one.endpoint.step = 0
        settled(pool)
        assert sound(pool)["held"] == 0, (step, other_step)
        return found

    stride = 1 if COMPILED else 3
    for step in range(1, STEPS_MAX, stride):
        for other_step in range(1, STEPS_MAX, stride):
            done, other_done = over(step, other_step)
            if done or other_done:
                break
        if done:
            break
    assert 5 < step < STEPS_MAX - stride
    everything_is_free(pool)


# ---- late clients --------------------------------------------------------------------------------


def test_late_recoverer_leaves_the_backups_of_the_next_group_alone(pools: Any) -> None:
    """It stood still between its look at the dead client's primary and at the backups."""
    pool = small(pools, nodes=3, lease=0.02)
    late, next_owner = pools.again(pool), pools.keep(LinkedPool.open(pool.url))
    with child(claim=lambda: pool.allocator.replenish(0, SIZE, 3)) as other:
        other.do("claim")
        other.kill()
    (block,) = (b for b, word in enumerate(pool.blocks.words(0).tolist()) if word >> 60 == SLAB)
    word = pool.blocks.words(0).tolist()[block]
    early = pool.grace.close_period()
    release_backups = ReplicaSets._release_backups
    references = []

    def overtaken(replica_sets: ReplicaSets, *arguments: Any) -> None:
        if replica_sets is late.blocks.groups and not references:
            # By another recoverer, which had closed its period before the late one was pinned.
            pending = recast(word, PENDING, word & OWNER_MASK)
            assert pool.blocks.groups.release(0, block, pending, early, word & OWNER_MASK) == 1
            references.append(next_owner.put(0, 0, SIZE, 3))
        release_backups(replica_sets, *arguments)

    ReplicaSets._release_backups = overtaken  # type: ignore[method-assign]
    try:
        late.recover()
    finally:
        ReplicaSets._release_backups = release_backups  # type: ignore[method-assign]
    assert pool.heap.block_of(references[0]) == block
    assert pool.serves(references[0]) == 3
    sound(pool)


@pytest.mark.parametrize("size_class", [5, LARGE_CLASS, TAIL_CLASS])
@pytest.mark.parametrize("lost", [False, True], ids=["primary in service", "primary lost"])
def test_mirror_written_by_a_client_that_was_declared_dead_is_given_back(
    pools: Any, size_class: int, lost: bool
) -> None:
    """It was stopped within a claim, and its primary was given back before it went on."""
    pool = roomy(pools, nodes=3)
    start = pool.heap.placement.starts(2)[1]
    node, block = pool.heap.placement.backup(0, start + 1, 2, 1)
    at = pool.heap.table_word(node, block)
    astray = block_word(BACKUP, pool.grace.close_period(), size_class, 2)
    assert pool.endpoint.cas(at, 0, astray) == 0
    if lost:
        pool.fail_node(0)
    settled(pool)
    assert pool.endpoint.load(at) >> 60 == FREE
    everything_is_free(pool)
