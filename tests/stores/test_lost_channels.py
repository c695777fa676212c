"""Channels of which something was lost with its memory node: what is left, and what can be anew."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kit.processes import dies_at
from kit.stores import accounted

import limpet
from limpet.shm.endpoint.fabric import Endpoint
from limpet.stores.channels.array.array import Array
from limpet.stores.channels.atomic_var import AtomicVar
from limpet.stores.channels.owned_var import OwnedVar
from limpet.stores.channels.shared_region import SharedRegion
from limpet.stores.channels.sst import SST

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

COMPILED = limpet.build == "compiled"
LARGE = b"L" * 3000


def fill(pool: Any, name: str) -> None:
    """Make a channel of the kind that the name begins with, and have something in it."""
    channels = pool.channels
    match name.rstrip("0123456789"):
        case "counter":
            pool.counter(name).set(7)
        case "lock":
            assert pool.lock(name).acquire(timeout=0)
        case "barrier":
            assert pool.barrier(name, 1).wait() == 0
        case "queue":
            pool.queue(name, 4, codec="bytes").put_many([b"1", LARGE, b"3"])
        case "ring":
            pool.ring(name, 1024).send("kept")
        case "region":
            region = channels.open(SharedRegion, name, size=8, participants=4)
            for row in range(4):
                region.write(row, 0, b"12345678")
        case "variable":
            variable = channels.open(OwnedVar, name, size=40)
            variable.store(b"v" * 40)
            variable.push()
        case "array":
            channels.open(Array, name, shape=9, node=int(name[-1]) % 2)[8] = 5


def is_new(pool: Any, name: str) -> bool:
    """Whether there is nothing in it. Raises NodeFailed."""
    channels = pool.channels
    match name.rstrip("0123456789"):
        case "counter":
            return bool(pool.counter(name).value == 0)
        case "lock":
            return not pool.lock(name).locked()
        case "barrier":
            return int(pool.endpoint.load(pool.barrier(name, 1).address)) == 0
        case "queue":
            return bool(pool.queue(name, 4, codec="bytes").empty())
        case "ring":
            ring = pool.ring(name, 1024)
            ring.subscribe("oldest")
            try:
                return bool(ring.receive_nowait() != "kept")
            except queue.Empty:
                return True
        case "region":
            region = channels.open(SharedRegion, name, size=8, participants=4)
            return all(region.read(row, 0, 8) == bytes(8) for row in range(4))
        case "variable":
            return bool(channels.open(OwnedVar, name, size=40).load() == bytes(40))
    return bool(channels.open(Array, name, shape=9, node=int(name[-1]) % 2)[8] == 0)


KINDS = ("counter", "lock", "barrier", "queue", "ring", "region", "variable", "array")
NAMES = [f"{kind}{number}" for kind in KINDS for number in range(4 if COMPILED else 2)]


def no_leaks(pool: Any) -> None:
    pool.recover()
    accounted(pool)


def lose(pool: Any, node: int) -> None:
    pool.mark_failed(node)
    pool.replace_node(node)


@pytest.mark.parametrize("lost", [0, 1, 2] if COMPILED else [1])
def test_what_is_left_is_listed_and_removed_and_can_be_made_anew(pools: Any, lost: int) -> None:
    pool = pools(nodes=3, node_size="4MiB", clients=8)
    before = pools.again(pool)
    for name in NAMES:
        fill(pool, name)
    assert set(before.channels.names()) == set(NAMES)
    lose(pool, lost)
    after = pools.again(pool)
    no_leaks(pool)
    whole = set()
    for one in (pool, before, after):
        listed = {entry["name"]: entry["kind"] for entry in one.channels.list()}
        assert set(listed) == set(NAMES)
        assert "lost" in listed.values()
        for name in NAMES:
            with contextlib.suppress(limpet.NodeFailed):
                assert not is_new(one, name), "what was lost has begun anew"
                whole.add(name)
                assert listed[name] != "lost"
    assert 0 < len(whole) < len(NAMES)
    for name, one in zip(NAMES, itertools.cycle((pool, before, after)), strict=False):
        one.channels.remove(name)
        with pytest.raises(KeyError):
            one.channels.remove(name)
    for one in (pool, before, after):
        assert one.channels.list() == []
        assert list(one.channels.catalogue) == []
    no_leaks(pool)
    for name, one in zip(NAMES, itertools.cycle((after, pool, before)), strict=False):
        assert is_new(one, name)
        fill(one, name)
    for name, one in zip(NAMES, itertools.cycle((before, after, pool)), strict=False):
        assert not is_new(one, name)
    pool.channels.catalogue.check()
    for name in NAMES:
        pool.channels.remove(name)
    no_leaks(pool)


def test_a_channel_is_removed_while_its_node_is_not_replaced_yet(pools: Any) -> None:
    pool = pools(nodes=2, node_size="4MiB", clients=8)
    for name in NAMES:
        fill(pool, name)
    pool.fail_node(1)
    assert set(pool.channels.names()) == set(NAMES)
    for name in NAMES:
        pool.channels.remove(name)
    assert pool.channels.list() == []
    no_leaks(pool)
    pool.replace_node(1)
    assert all(is_new(pool, name) for name in NAMES)
    no_leaks(pool)


def test_a_new_name_needs_nothing_of_a_node_that_was_lost(pools: Any) -> None:
    """And lies where it is to lie, also on a node that was replaced."""
    pool = pools(nodes=3)
    other = pools.again(pool)
    pool.counter("before")
    lose(pool, 1)
    for number in range(20):
        node = number % 3
        variable = other.channels.open(AtomicVar, f"new{number}", node=node)
        assert variable.address >> 40 == node
        assert variable.faa(1) == 0
        assert pool.channels.open(AtomicVar, f"new{number}").faa(1) == 1
    catalogue = pool.channels.catalogue
    assert all(pool.heap.used(int(one)) for one in pool.exclusively(catalogue.references))
    no_leaks(pool)


def on_node(pool: Any, node: int, kind: str = "counter") -> str:
    """A name whose own region lies on that node."""
    belongs = pool.channels.catalogue.node_of
    names = (f"{kind}{number}" for number in itertools.count())
    return next(name for name in names if belongs(name.encode()) == node)


def test_a_channel_that_lost_nothing_but_its_witness_has_it_again(pools: Any) -> None:
    """Else its name would begin anew when its own node is lost, too."""
    pool = pools(nodes=3)
    name = on_node(pool, 0, "lock")
    fill(pool, name)
    lose(pool, 1)
    assert not is_new(pool, name)
    lose(pool, 0)
    with pytest.raises(limpet.NodeFailed, match="remove the channel"):
        is_new(pool, name)
    pool.channels.remove(name)
    assert is_new(pool, name)


def test_a_channel_that_lost_nothing_has_new_parts_on_a_node_replaced_before(pools: Any) -> None:
    """The first directory there was made after another loss, so the part counted as lost, too."""
    pool = pools(nodes=3)
    pool.counter(on_node(pool, 0))
    lose(pool, 2)
    variable = pool.channels.open(AtomicVar, on_node(pool, 0, "variable"))
    lose(pool, 1)
    assert variable.region("part", 8, 2) >> 40 == 2


@pytest.mark.parametrize("nodes", [1, 2])
def test_where_all_was_lost_a_name_is_anew_for_who_removes_it(pools: Any, nodes: int) -> None:
    pool = pools(nodes=nodes)
    other = pools.again(pool)
    for name in NAMES[:8]:
        fill(pool, name)
    for node in range(nodes):
        lose(pool, node)
    for name in NAMES[:8]:
        for one in (pool, other):
            with pytest.raises(limpet.NodeFailed, match="remove the channel"):
                is_new(one, name)
        pool.channels.remove(name)
        assert is_new(pool, name)
        fill(pool, name)
        assert not is_new(other, name)
    lose(pool, 0)
    for one, name in itertools.product((pool, other), NAMES[:8]):
        with contextlib.suppress(limpet.NodeFailed):
            assert not is_new(one, name), "it was removed before it was lost a second time"
    no_leaks(pool)


@pytest.mark.parametrize(
    "lost", list(itertools.permutations(range(3), 2)) if COMPILED else [(1, 0)]
)
def test_no_name_begins_anew_when_its_trace_is_lost_too(pools: Any, lost: tuple[int, int]) -> None:
    """Nor, where no client can tell, for other processes than the one that has removed it."""
    pool = pools(nodes=3, node_size="4MiB", clients=8)
    other = pools.again(pool)
    for name in NAMES:
        fill(pool, name)
    for node in lost:
        lose(pool, node)
    for one in (other, pools.again(pool), pool):
        for name in NAMES:
            with contextlib.suppress(limpet.NodeFailed):
                assert not is_new(one, name)
    first = next(node for node in lost if (node + 1) % 3 in lost)
    names = [on_node(pool, first, kind) for kind in ("counter", "lock", "queue")]
    for name in names:
        with pytest.raises(limpet.NodeFailed, match="remove the channel"):
            is_new(pool, name)
        pool.channels.remove(name)
        with pytest.raises(limpet.NodeFailed, match="remove the channel"):
            is_new(other, name)
        assert is_new(pool, name)
        fill(pool, name)
        assert not is_new(other, name)
    no_leaks(pool)


def test_who_still_has_the_lost_one_gets_the_new_one(pools: Any) -> None:
    pool = pools(nodes=2)
    other = pools.again(pool)
    name = on_node(pool, 1)
    theirs = other.counter(name)
    theirs.set(7)
    lose(pool, 1)
    with pytest.raises(limpet.NodeFailed):
        other.counter(name)
    pool.channels.remove(name)
    pool.counter(name).add(1)
    with pytest.raises(limpet.NodeFailed):
        theirs.add(1)
    assert other.counter(name).value == 1


@pytest.mark.parametrize("how", ["removed", "lost"])
def test_a_handle_of_what_is_no_more_is_closed_all_the_same(pools: Any, how: str) -> None:
    pool = pools(nodes=2)
    handles = [pool.queue(on_node(pool, 1, "queue")), pool.ring(on_node(pool, 1, "ring"), 1024)]
    handles[1].subscribe()
    handles[1].send(1)
    if how == "lost":
        lose(pool, 1)
    else:
        for handle in handles:
            pool.channels.remove(handle.name)
    for handle in handles:
        handle.close()
        assert handle.closed


@pytest.mark.exhaustive("every step")
def test_a_kill_in_a_removal_or_a_new_beginning_leaves_nothing(pools: Any) -> None:
    """Clients of channels with losses; the first of them need a new directory."""
    pool = pools(nodes=2)
    fuses = [*range(1, 40, 1 if COMPILED else 7), *range(40, 400, 11 if COMPILED else 90)]
    names = [f"table{fuse}" for fuse in fuses]

    def make(name: str) -> Any:
        return pool.channels.open(SST, name, participants=4)

    for name in names:
        make(name)
    lose(pool, 1)
    for name, fuse in zip(names, fuses, strict=True):

        def remove(name: str = name) -> None:
            pool.channels.remove(name)

        dies_at(pool, fuse, remove)
        with contextlib.suppress(KeyError):
            remove()
        dies_at(pool, fuse, lambda name=name: make(name))
        assert make(name).refresh()
        pool.channels.remove(name)
    assert list(pool.channels.catalogue) == []
    no_leaks(pool)
    pool.channels.catalogue.check()


def test_threads_that_make_regions_on_different_nodes_do_not_mix_them_up(pools: Any) -> None:
    pool = pools(nodes=3)
    region = pool.channels.open(SharedRegion, "shared", size=8, participants=1)
    start, found = threading.Barrier(3), {}

    def make(node: int) -> None:
        start.wait()
        for number in range(40):
            found[node, number] = region.region(f"of{node}and{number}", 8, node) >> 40

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(make, range(3)))
    assert all(at == node for (node, _), at in found.items())
    with pytest.raises(limpet.ParameterError, match="node 3"):
        region.region("beyond", 8, 3)


class BetweenEndpoint(Endpoint):
    """Does what another thread may do between two operations."""

    between: Callable[[], object] | None = None

    def end(self) -> int:
        ended = super().end()
        if BetweenEndpoint.between is not None:
            work, BetweenEndpoint.between = BetweenEndpoint.between, None
            work()
        return ended


class BetweenPool(limpet.Pool):
    """A pool with such an endpoint."""

    endpoint_class = BetweenEndpoint


def test_a_full_node_does_not_concern_a_thread_that_needs_another(pools: Any) -> None:
    """Another thread looks up something there, while this one is about to fetch memory."""
    pool = pools.keep(BetweenPool.open(pools(nodes=2, node_size="1MiB").url))
    region = pool.channels.open(SharedRegion, "shared", size=8, participants=1)

    def fill_up() -> None:
        for number in itertools.count():
            region.region(f"filler{number}", 10_000, 1)

    with pytest.raises(limpet.StoreFull):
        fill_up()
    catalogue = pool.channels.catalogue
    there = catalogue.key_of("shared.filler0", region.mark, 1)

    def look() -> None:
        assert catalogue.describe(there)
        BetweenEndpoint.between = again[0] if again else None
        del again[:1]

    again = [look] * 30
    BetweenEndpoint.between = look
    at = region.region("large", 50_000, 0)
    BetweenEndpoint.between = None
    assert at >> 40 == 0
    assert len(again) < 30


def test_a_new_channel_that_needs_a_lost_node_is_refused_until_the_node_is_replaced(
    pools: Any,
) -> None:
    pool = pools(nodes=3)
    pool.counter("before")
    pool.fail_node(1)

    def refusal(name: str) -> str:
        try:
            pool.counter(name)
        except limpet.NodeFailed as error:
            return str(error)
        return ""

    refused = {name: why for name in (f"c{n}" for n in range(20)) if (why := refusal(name))}
    assert 0 < len(refused) < 20
    for name, why in refused.items():
        assert f"the channel '{name}' cannot be opened: memory node 1 has failed" in why
        assert "pool.replace_node(1)" in why
    pool.replace_node(1)
    for name in refused:
        if refusal(name):
            pool.channels.remove(name)
        assert pool.counter(name).add(1) == 1
