"""Nodes that are added to a pool in use: other clients take memory there, also after kills."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest
from kit.groups import WHOLE, LinkedPool, fill, roomy, settled, small, sound
from kit.processes import child, start

import limpet
from limpet.fault.inject.stopping import StoppingEndpoint
from limpet.shm.backends import node as nodes
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.layout import DROPS, NODE_SHIFT, REMOTES, RINGS
from limpet.shm.endpoint.states import Ring

NODES = 2


class StoppingLinkedPool(LinkedPool):
    endpoint_class = StoppingEndpoint
    endpoint: StoppingEndpoint


def files(pool: Any) -> set[str]:
    """The suffixes of the names of the pool's segments."""
    prefix = f"limpet.{pool.url.removeprefix('shm://')}."
    return {
        path.name.removeprefix(prefix) for path in SHM_DIR.iterdir() if path.name.startswith(prefix)
    }


def node_of(reference: int) -> int:
    return reference >> NODE_SHIFT & 0xFF


def all_there(pool: LinkedPool, objects: dict[int, int]) -> None:
    for reference in objects.values():
        found = pool.exclusively(lambda r=reference: pool.serves(r))
        assert found == pool.heap.replicas(reference)


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_has_no_room_where_it_belongs_lies_on_added_nodes(pools: Any, replicas: int) -> None:
    pool = small(pools, NODES)
    idle = pools.keep(LinkedPool.open(pool.url))
    at = fill(pool, 0, WHOLE, replicas)

    def put() -> int:
        return idle.put(at, 0, WHOLE, replicas)

    with child(put=put) as other:
        with pytest.raises(RuntimeError, match="StoreFull"):
            other.do("put")
        if replicas > 1:
            pool.add_node()  # a ring of one has no room for two replicas
            with pytest.raises(RuntimeError, match="StoreFull"):
                other.do("put")
        added = pool.add_node(count=replicas)["nodes"]
        objects = {at: other.do("put")}
        assert node_of(objects[at]) in added
        objects |= {link: pool.put(link, 0, WHOLE, replicas) for link in range(at + 1, at + 5)}
        all_there(idle, objects)
    settled(pool)
    sound(pool)
    with LinkedPool.open(pool.url) as later:
        all_there(later, objects)
        assert [node["state"] for node in later.nodes()] == ["in service"] * later.view.nodes
    for link in objects:
        idle.delete(link)
    assert node_of(pool.put(at, 1, WHOLE, 1)) == 1  # where there is room, nothing has changed


def test_size_is_reached_with_whole_nodes(pools: Any) -> None:
    pool = small(pools, NODES)
    done = pool.add_node("1MiB", count=2)
    assert (done["nodes"], done["bytes"]) == ([2, 3, 4, 5], 4 * pool.parameters.node_size)
    assert [ring.count for ring in pool.heap.placement.rings] == [2, 2, 2]
    assert pool.audit()["total"] == 6 * pool.parameters.node_size
    for size, count in ((0, 0), ("1KiB", 300), ("200MiB", 1)):
        with pytest.raises(limpet.ParameterError):
            pool.add_node(size, count)
    pool.endpoint.fetch_or(DROPS, REMOTES)
    with pytest.raises(limpet.ParameterError, match="remote clients"):
        pool.add_node()
    assert files(pool) == {"control", *map(str, range(6))}


def test_a_damaged_ring_word_is_told(pools: Any) -> None:
    pool = small(pools, NODES)
    pool.endpoint.store(RINGS, Ring(5, 1, True).word)
    with pytest.raises(limpet.PoolCorrupt, match="added nodes"):
        LinkedPool.open(pool.url, timeout_s=0)
    pool.endpoint.store(RINGS, 0)


# ---- kills while nodes are added -----------------------------------------------------------------


def _killed(pool: LinkedPool, fuse: int, segments: int = 0) -> bool:
    """A client adds two nodes, and is killed at that step, or when it has made so many segments;
    whether before it was done."""

    def live() -> None:
        assert pool.client_id
        finish, left = nodes.finish, [segments]

        def counted(*arguments: Any) -> None:
            finish(*arguments)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        nodes.finish = counted
        pool.endpoint.fuse = fuse
        pool.add_node(count=2)
        pool.endpoint.fuse = 0
        os.kill(os.getpid(), signal.SIGTERM)

    pid, out = start(live)
    with out:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (-signal.SIGTERM, -signal.SIGKILL)
    return status == -signal.SIGKILL


@pytest.mark.exhaustive("every step", quick=["recover"])
@pytest.mark.parametrize("after", ["recover", "add"])
def test_the_client_that_adds_nodes_is_killed_at_any_step(pools: Any, after: str) -> None:
    pool = small(pools, NODES)
    at = fill(pool, 0, WHOLE, 2)
    seen = set()
    fuse, before = 0, True
    while before:
        fuse += 1 if after == "add" or fuse < 2 else 3
        known = pool.view.nodes
        # Segments are made without a step of the endpoint; so these kills are counted apart.
        before = _killed(pool, fuse) if fuse > 2 else _killed(pool, 0, fuse)
        word = pool.endpoint.load(RINGS + 8 * (len(pool.heap.placement.rings) - 1))
        seen.add((before, Ring.of(word).is_open if word else None))
        sound(pool)  # also before anything is recovered
        if after == "add":
            pool.add_node(count=2)
        pool.recover()
        assert all(ring.is_open for ring in pool.heap.placement.rings)
        assert files(pool) >= {"control", *map(str, range(pool.view.nodes))}
        if after == "add" or word:
            assert pool.view.nodes > known
            assert node_of(pool.put(at, 0, WHOLE, 2)) >= NODES
            pool.delete(at)
        sound(pool)
        if pool.view.nodes > 30:
            limpet.destroy(pool.url)
            pool = small(pools, NODES)
            at = fill(pool, 0, WHOLE, 2)
    assert {(True, None), (True, False), (True, True), (False, True)} <= seen
    pool.add_node()
    assert files(pool) == {"control", *map(str, range(pool.view.nodes))}


@pytest.mark.exhaustive("every step", quick=["1"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_client_stands_still_while_nodes_are_added(pools: Any, replicas: int) -> None:
    """Inside of an operation it is ended; else it wakes up, and maps the new nodes."""
    pool = roomy(pools, NODES, lease=0.02)
    seen = set()
    for step in range(1, 60):

        def live(step: int = step) -> None:
            with StoppingLinkedPool.open(pool.url) as mine:
                mine.endpoint.stop_at = step
                mine.put(100, 1, WHOLE, replicas)

        pid, out = start(live)
        with out:
            stopped = os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
            if step % 8 == 1:
                pool.add_node(count=2)
            if stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                seen.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if not stopped:
            break
    assert not stopped
    assert 0 in seen
    settled(pool)
    sound(pool)


def test_an_idle_handle_closes_without_mapping_what_came(pools: Any) -> None:
    """It has nothing there; and a handle that the garbage collector closes cannot map."""
    pool = small(pools, NODES)
    gone = LinkedPool.open(pool.url)
    gone.put(1, 0, WHOLE, 1)
    pool.add_node()
    del gone
    settled(pool)
    assert len(pool.clients()) == 1
    sound(pool)


# ---- losses --------------------------------------------------------------------------------------


def test_an_added_node_is_lost_and_replaced(pools: Any) -> None:
    pool = small(pools, NODES)
    at = fill(pool, 0, WHOLE, 1, fill(pool, 0, WHOLE, 2))
    first, second = pool.add_node(count=2)["nodes"]
    objects = {link: pool.put(link, 0, WHOLE, 2) for link in range(at, at + 4)}
    single = pool.put(at + 4, 0, WHOLE, 1)
    assert {node_of(reference) for reference in objects.values()} <= {first, second}
    lost = node_of(single)
    assert lost in (first, second)
    other = pools.keep(LinkedPool.open(pool.url))
    pool.fail_node(lost)
    assert [node["state"] for node in other.nodes()].count("failed") == 1
    assert pool.put(at + 5, 1, 3000, 1)  # the rest serves
    with LinkedPool.open(pool.url) as opened:
        assert opened.exclusively(lambda: opened.serves(objects[at])) == 1
    with pytest.raises(limpet.ParameterError, match="still link"):
        other.replace_node(lost)
    sound(pool)
    pool.delete(at + 4)
    assert other.replace_node(lost)["generation"] == 1
    settled(pool)
    all_there(pool, objects)
    sound(pool)


def test_nodes_are_refused_where_none_can_be_mapped(pools: Any) -> None:
    pool = small(pools, NODES)
    other = pools.keep(LinkedPool.open(pool.url))
    pool.add_node()
    (SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.2").unlink()
    with pytest.raises(limpet.NodeFailed, match="cannot be used") as failure:
        other.put(0, 0, 100, 1)
    assert failure.value.node == 2
    assert pool.put(0, 0, 100, 1)  # it has the node mapped
    with pytest.raises(limpet.PoolIncomplete, match="fail-node"):
        LinkedPool.open(pool.url, timeout_s=0)
    pool.fail_node(2)
    assert other.put(1, 0, 100, 1)
    assert pool.replace_node(2)["generation"] == 1
    assert other.nodes()[2]["state"] == "in service"
    sound(other)
