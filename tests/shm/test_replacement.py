"""A replaced memory node: objects with replicas are there again, also after kills meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest
from kit.groups import (
    LINKS,
    SIZE,
    WHOLE,
    LinkedPool,
    everything_is_free,
    large,
    roomy,
    settled,
    small,
    sound,
)
from kit.processes import child, start

import limpet
from limpet.fault.inject.stopping import StoppingEndpoint
from limpet.shm.backends.inventory import list_pools
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import LEADER, address
from limpet.shm.endpoint.states import EXCLUDED, IN_SERVICE, RESTORING, generation_of, state_of
from limpet.shm.endpoint.words import FREE
from limpet.shm.replicas.replica_sets import ReplicaSets

COMPILED = BUILD == "compiled"
LAST = 3
"""The node with the links."""
LATER = 4
"""Links of what is there before a node is lost; the others come afterwards."""


class StoppingLinkedPool(LinkedPool):
    endpoint_class = StoppingEndpoint
    endpoint: StoppingEndpoint


def files(pool: Any) -> set[str]:
    """The suffixes of the names of the pool's segments."""
    prefix = f"limpet.{pool.url.removeprefix('shm://')}."
    return {
        path.name.removeprefix(prefix) for path in SHM_DIR.iterdir() if path.name.startswith(prefix)
    }


def put_some(pool: LinkedPool, replicas: int, at: int = 0) -> dict[int, int]:
    """Objects of several classes on all nodes in service; references by link."""
    found = {}
    for node in range(pool.parameters.nodes):
        if pool.nodes()[node]["state"] != "in service":
            continue
        for size in (100, SIZE, SIZE, WHOLE, large(pool)):
            found[at] = pool.put(at, node, size, replicas)
            at += 1
    return found


def all_replicated(pool: LinkedPool, objects: dict[int, int]) -> None:
    for reference in objects.values():
        assert pool.exclusively(lambda r=reference: pool.serves(r)) == pool.heap.replicas(reference)


def some_served(pool: LinkedPool, objects: dict[int, int]) -> None:
    for reference in objects.values():
        assert pool.exclusively(lambda r=reference: pool.serves(r)) > 0


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("lost", [0, 2])
def test_what_has_replicas_is_replicated_again(pools: Any, replicas: int, lost: int) -> None:
    pool = roomy(pools)
    objects = put_some(pool, replicas)
    pool.fail_node(lost)
    later = put_some(pool, replicas, 100)
    for at in range(0, 20, 4):
        pool.delete(at)
        del objects[at]
    done = pool.replace_node(lost)
    assert done["objects"] > 0
    assert done["bytes"] > 0
    settled(pool)
    all_replicated(pool, {**objects, **later})
    sound(pool)
    for node in range(LAST):  # the replicas that were there before may go now
        if node != lost and replicas > 1:
            pool.fail_node(node)
            break
    some_served(pool, {**objects, **later})
    assert pool.audit()["leaked"] == 0


def test_every_node_is_replaced_in_turn_and_memory_comes_back(pools: Any) -> None:
    pool = roomy(pools)
    objects = put_some(pool, 2) | put_some(pool, 3, 40)
    for _ in range(2):
        for node in range(LAST):
            pool.fail_node(node)
            pool.replace_node(node)
            settled(pool)
            all_replicated(pool, objects)
            sound(pool)
    assert files(pool) == {"control", "3", "0-2", "1-2", "2-2"}
    for at in objects:
        pool.delete(at)
    everything_is_free(pool)


def test_groups_are_never_promised_one_place(pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A primary is lost with its node; later sets must not have their backups in its place."""
    pool = small(pools)
    objects = {at: pool.put(at, 0, WHOLE, 3) for at in range(LATER)}
    pool.fail_node(0)
    promised = ReplicaSets._promised
    refused = []

    def counted(self: ReplicaSets, node: int, block: int, replicas: int) -> bool:
        found = promised(self, node, block, replicas)
        refused.append(found)
        return found

    monkeypatch.setattr(ReplicaSets, "_promised", counted)
    with contextlib.suppress(limpet.StoreFull):
        for at in range(LATER, LINKS):
            objects[at] = pool.put(at, 1 + at % 3, WHOLE, 2 + at // 3 % 2)
    assert True in refused
    pool.replace_node(0)
    settled(pool)
    all_replicated(pool, objects)
    sound(pool)


def test_a_node_in_service_is_not_replaced(pools: Any) -> None:
    pool = roomy(pools)
    with pytest.raises(limpet.ParameterError, match="node 1 is in service"):
        pool.replace_node(1)
    for node in (4, -1, "1", True):
        with pytest.raises(limpet.ParameterError):
            pool.replace_node(node)
    put_some(pool, 3)
    assert {node["generation"] for node in pool.nodes()} == {0}


# ---- kills and losses while it is done ---------------------------------------------------------


def _killed(pool: LinkedPool, node: int, fuse: int) -> bool:
    """A client replaces the node, and is killed at that step or afterwards; whether before."""

    def live() -> None:
        assert pool.client_id
        pool.endpoint.fuse = fuse
        pool.replace_node(node)
        pool.endpoint.fuse = 0
        os.kill(os.getpid(), signal.SIGTERM)

    pid, out = start(live)
    with out:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (-signal.SIGTERM, -signal.SIGKILL)
    return status == -signal.SIGKILL


def _fuses() -> list[int]:
    """Every step at first, then some: most steps copy contents."""
    return [*range(1, 120 if COMPILED else 30), *range(131, 20_000, 397 if COMPILED else 3989)]


@pytest.mark.exhaustive("every step")
@pytest.mark.parametrize("replicas", [2, 3])
def test_the_leader_is_killed_at_any_step(pools: Any, replicas: int) -> None:
    pool = roomy(pools)
    objects = {at: pool.put(at, at % 4, SIZE, replicas) for at in range(12)}
    objects |= {at: pool.put(at, at % 3, large(pool), replicas) for at in (12, 13)}
    seen = set()
    for fuse in _fuses():
        pool.fail_node(0)
        before = _killed(pool, 0, fuse)
        seen.add((before, state_of(pool.view.word(0))))
        if state_of(pool.view.word(0)) == IN_SERVICE:
            pool.recover()
            all_replicated(pool, objects)
        some_served(pool, objects)
        objects[0] = pool.put(0, 1, SIZE, replicas)  # claims wait for no client that is dead
        pool.recover()
        assert state_of(pool.view.word(0)) != RESTORING
        sound(pool)
        if not before:
            break
    assert not before
    assert {(True, EXCLUDED), (True, RESTORING), (False, IN_SERVICE)} <= seen
    if state_of(pool.view.word(0)) != IN_SERVICE:
        pool.replace_node(0)
    settled(pool)
    all_replicated(pool, objects)
    sound(pool)
    assert len(files(pool)) == 5


@pytest.mark.parametrize("step", [60, 300, 3000])
def test_the_new_memory_is_lost_while_it_is_filled(pools: Any, step: int) -> None:
    pool = roomy(pools)
    objects = put_some(pool, 2)
    other = pools.keep(StoppingLinkedPool.open(pool.url))
    other.fail_node(0)

    def lose() -> None:
        (name,) = files(pool) - {"1", "2", "3", "control"}
        os.truncate(SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.{name}", 0)

    other.endpoint.interrupt = lose
    other.endpoint.stop_at = step
    with pytest.raises(limpet.NodeFailed) as failure:
        other.replace_node(0)
    assert failure.value.node == 0
    assert files(pool) == {"1", "2", "3", "control"}
    assert pool.nodes()[0]["state"] == "failed"
    objects[0] = pool.put(0, 1, SIZE, 2)
    pool.replace_node(0)
    settled(pool)
    all_replicated(pool, objects)
    sound(pool)


@pytest.mark.parametrize("step", [5, 60, 300, 3000])
def test_another_node_is_lost_while_it_is_filled(pools: Any, step: int) -> None:
    pool = roomy(pools)
    objects = put_some(pool, 3)
    other = pools.keep(StoppingLinkedPool.open(pool.url))
    other.fail_node(0)
    other.endpoint.interrupt = lambda: pool.endpoint.cas(address(255, 8192 + 8 * 1), 0, 1)
    other.endpoint.stop_at = step
    assert other.replace_node(0)["node"] == 0
    assert [node["state"] for node in pool.nodes()[:2]] == ["in service", "failed"]
    some_served(pool, objects)
    pool.replace_node(1)
    settled(pool)
    all_replicated(pool, objects)
    sound(pool)
    pool.fail_node(0)
    pool.fail_node(2)
    some_served(pool, objects)


def test_dead_clients_are_recovered_before(pools: Any) -> None:
    """One that dies with objects in the client journal, of which some replicas were on the lost
    node."""
    pool = roomy(pools)
    put_some(pool, 2)
    for fuse in range(1, 60, 3):
        pool.fail_node(0)

        def live(fuse: int = fuse) -> None:
            assert pool.client_id
            pool.endpoint.fuse = fuse
            pool.put(5, 1, SIZE, 2)
            pool.put(6, 2, SIZE, 2)

        pid, out = start(live)
        with out:
            os.waitpid(pid, 0)
        pool.replace_node(0)
        settled(pool)
        sound(pool)


# ---- generations -------------------------------------------------------------------------------


def test_old_memory_is_not_used_again(pools: Any) -> None:
    pool = roomy(pools)
    objects = put_some(pool, 2)
    stale = pools.keep(LinkedPool.open(pool.url))
    at = stale.heap.table_word(0, 0)
    stale.endpoint.load(at)
    pool.fail_node(0)
    pool.replace_node(0)
    for verb, arguments in (
        ("load", ()), ("store", (1,)), ("cas", (0, 1)), ("faa", (1,)), ("swap", (1,)),
        ("fetch_or", (1,)), ("mcas", (0, 1, 1, 1)), ("read", (64,)), ("write", (b"12345678",)),
    ):  # fmt: skip
        with pytest.raises(limpet.NodeFailed, match="was replaced"):
            getattr(stale.endpoint, verb)(at, *arguments)
    stale.fail_node(1)  # a claim of it goes on without it, and node 0 is as others have it
    all_nodes = [node["state"] for node in stale.nodes()]
    assert all_nodes == ["in service", "failed", "in service", "in service"]
    assert stale.nodes()[0]["generation"] == 1
    some_served(stale, objects)
    stale.put(200, 0, SIZE, 2)
    settled(stale)
    sound(stale)
    sound(pool)


def test_who_meets_old_memory_does_not_fail_the_new(pools: Any) -> None:
    pool = roomy(pools)
    stale = pools.keep(LinkedPool.open(pool.url))
    pool.fail_node(0)
    pool.replace_node(0)

    def meet() -> None:
        stale.client.enter()
        try:
            stale.view.settle(0)
        finally:
            stale.client.leave()

    meet()
    assert pool.nodes()[0]["state"] == "in service"


def test_pools_with_new_memory_are_opened_listed_and_destroyed(pools: Any) -> None:
    pool = roomy(pools)
    objects = put_some(pool, 2)
    pool.fail_node(2)
    pool.replace_node(2)
    later = pools.keep(LinkedPool.open(pool.url))
    all_replicated(later, objects)
    assert later.nodes()[2]["generation"] == 1
    (row,) = [row for row in list_pools() if row["url"] == pool.url]
    assert (row["nodes"], row["status"]) == (4, "ok")
    assert len(limpet.destroy(pool.url)) == 5
    assert not files(pool)


@pytest.mark.parametrize("kind", ["fusee", "swarm"])
def test_the_client_that_fills_a_node_forgets_what_it_had_there(pools: Any, kind: str) -> None:
    """It had ready objects in a block of the lost memory, and made directories there, in a block
    that was free in the new one: the next claim wrote over them."""
    pool = pools(nodes=3, node_size="16MiB", block_size="1MiB")
    store = pool.store(kind, name="s", replicas=2 if kind == "fusee" else 3, capacity=100)
    store.put(b"k", b"v")
    pool.fail_node(1)
    pool.replace_node(1)
    table = pool.regions.directories[1]
    links = [pool.endpoint.load(table.link(number)) for number in range(64)]
    words = pool.blocks.words(1)
    owners = [int(words[pool.heap.block_of(link)]) >> 60 for link in links if link]
    assert owners
    assert FREE not in owners
    store.check()
    assert pool.audit()["leaked"] == 0


@pytest.mark.skipif(BUILD != "compiled", reason="the pure build opens only memory that is coherent")
def test_a_client_knows_nothing_of_the_pages_of_new_memory(pools: Any) -> None:
    """Neither where it allocates anywhere, nor where only in the hardware-coherent range."""
    pool = pools(nodes=3, node_size="16MiB", coherent=False, coherent_bytes=8 << 20)
    store = pool.store("fusee", name="s", replicas=2, capacity=100)
    for number in range(2000):
        store.put(b"%d" % number, bytes(100))
    allocators = [pool.allocator, pool.allocator.coherent()]
    slabs = [slab for each in allocators for slab in each.slabs.all() if slab.replicas > 1]
    assert len({slab.size_class for slab in slabs}) > 1
    pool.fail_node(1)
    pool.replace_node(1)
    assert [slab.backed for slab in slabs] == [0] * len(slabs)


def test_file_pools_have_nodes_replaced(tmp_path: Any) -> None:
    with limpet.create(f"file://{tmp_path}/pool", nodes=3, node_size="4MiB") as pool:
        store = pool.store("fusee", replicas=2, capacity=100)
        store.put(b"key", b"value")
        for node in range(3):
            pool.fail_node(node)
            pool.replace_node(node)
            assert store.get(b"key") == b"value"
        store.check()
    limpet.destroy(pool.url)
    assert not list((tmp_path / "pool").iterdir())


# ---- clients that stand still --------------------------------------------------------------------


@pytest.mark.exhaustive("every step", quick=["1"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_client_stands_still_while_it_claims(pools: Any, replicas: int) -> None:
    """Inside of an operation it is ended; else it wakes up, and goes on with what is there now."""
    pool = roomy(pools, lease=0.02)
    objects = put_some(pool, 2)
    seen = set()
    for step in range(1, 60):
        pool.fail_node(0)

        def live(step: int = step) -> None:
            with StoppingLinkedPool.open(pool.url) as mine:
                mine.endpoint.stop_at = step
                mine.put(100, 1, WHOLE, replicas)

        pid, out = start(live)
        with out:
            stopped = os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
            pool.replace_node(0)
            if stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                seen.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        settled(pool)
        all_replicated(pool, objects)
        sound(pool)
        if not stopped:
            break
    assert not stopped
    assert seen == {0, -signal.SIGKILL}


def test_a_client_stops_before_and_wakes_up_after(pools: Any) -> None:
    """Its mapping, and its knowledge of its blocks, are of the memory that was lost."""
    pool = roomy(pools)
    objects = put_some(pool, 2)
    mine = pools.keep(LinkedPool.open(pool.url))

    def put() -> int:
        return mine.put(100, 0, SIZE, 2)

    with child(put=put) as other:
        other.do("put")
        other.stop()
        pool.fail_node(0)
        pool.replace_node(0)
        objects |= {at: pool.put(at, 0, SIZE, 2) for at in range(150, 180)}
        other.wake()
        for _ in range(20):
            objects[100] = other.do("put")
    settled(pool)
    all_replicated(pool, objects)
    sound(pool)


def test_leadership_ends_with_every_outcome(pools: Any) -> None:
    pool = roomy(pools)
    pool.fail_node(1)
    pool.replace_node(1)
    assert pool.endpoint.load(LEADER) == 0
    with pytest.raises(limpet.ParameterError):
        pool.replace_node(1)
    assert pool.endpoint.load(LEADER) == 0
    assert generation_of(pool.view.word(1)) == 1
