"""Where replicas lie: arithmetic only."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import NodeLayout
from limpet.shm.endpoint.words import REPLICAS_MAX, replica_bits
from limpet.shm.parameters import MIB, PoolParameters
from limpet.shm.replicas.replica_layout import REGION_SIZE, REGIONS_MAX, ReplicaLayout

EXAMPLES = 60 if BUILD == "compiled" else 15
PLACES = st.tuples(
    st.integers(1, 12), st.integers(7, 300), st.sampled_from([16 << 10, 256 << 10, 4 << 20])
)


def sets(placement: ReplicaLayout, nodes: int, replicas: int) -> list[list[tuple[int, int]]]:
    """Every replica set: the places of its replicas."""
    length = placement.region_blocks
    return [
        [(node, block), *(placement.backup(node, block, replicas, k) for k in range(1, replicas))]
        for node in range(nodes)
        for start in placement.starts(replicas)
        for block in range(start, start + length)
    ]


@settings(deadline=None, max_examples=EXAMPLES)
@given(PLACES, st.data())
def test_replicas_lie_on_different_nodes_and_no_block_is_in_two_groups(
    place: tuple[int, int, int], data: Any
) -> None:
    nodes, blocks, _ = place
    placement = ReplicaLayout(*place)
    replicas = data.draw(st.integers(1, placement.replicas_max))
    seen: set[tuple[int, int]] = set()
    for members in sets(placement, nodes, replicas):
        assert len({node for node, _ in members}) == replicas
        assert all(node < nodes and block < blocks for node, block in members)
        assert not seen.intersection(members)
        seen.update(members)
        for k, (node, block) in enumerate(members):
            assert placement.primary(node, block, replicas) == (*members[0], k)
            assert placement.part(block, replicas) == k
    for node in range(nodes):
        for block in set(range(blocks)) - {at for there, at in seen if there == node}:
            assert placement.primary(node, block, replicas) is None


@settings(deadline=None, max_examples=EXAMPLES)
@given(PLACES, st.data())
def test_every_node_has_as_many_heads_and_backups_and_little_is_left(
    place: tuple[int, int, int], data: Any
) -> None:
    nodes, blocks, _ = place
    placement = ReplicaLayout(*place)
    replicas = data.draw(st.integers(1, placement.replicas_max))
    loads = Counter(
        (node, k)
        for members in sets(placement, nodes, replicas)
        for k, (node, _) in enumerate(members)
    )
    assert len(loads) == nodes * replicas
    assert len(set(loads.values())) == 1
    idle = blocks - loads[0, 0] * replicas
    assert idle < replicas * placement.region_blocks


@given(PLACES)
def test_runs_of_a_region_are_runs_on_every_node(place: tuple[int, int, int]) -> None:
    nodes = place[0]
    placement = ReplicaLayout(*place)
    for replicas in range(2, placement.replicas_max + 1):
        for start in placement.starts(replicas):
            for k in range(1, replicas):
                run = [
                    placement.backup(nodes - 1, start + index, replicas, k)
                    for index in range(placement.region_blocks)
                ]
                assert all(b == (a[0], a[1] + 1) for a, b in pairwise(run))


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_objects_with_heads_on_one_node_share_all_of_their_nodes(replicas: int) -> None:
    placement = ReplicaLayout(6, 255, 256 << 10)
    for node in range(6):
        for start in placement.starts(replicas):
            places = [placement.backup(node, start, replicas, k)[0] for k in range(replicas)]
            assert places == [(node + k) % 6 for k in range(replicas)]


def test_places_are_the_same_in_every_build_and_version() -> None:
    """Pools of another version or build are opened with the same arithmetic."""
    placement = ReplicaLayout(5, 255, 256 << 10)
    assert (placement.regions, placement.region_blocks, placement.first) == (31, 8, 7)
    assert placement.backup(0, 100, 2, 1) == (1, 108)
    assert [placement.backup(node, 7, 3, 2) for node in range(5)] == [
        (2, 23), (3, 23), (4, 23), (0, 23), (1, 23),
    ]  # fmt: skip


@pytest.mark.parametrize("node_size", [64 * MIB, 256 * MIB, 1024 * MIB])
def test_largest_value_of_a_megabyte_fits_into_a_region(node_size: int) -> None:
    layout = NodeLayout.of(PoolParameters(nodes=3, node_size=node_size))
    placement = ReplicaLayout(3, layout.block_count, layout.block_size)
    assert placement.region_blocks * layout.block_size >= REGION_SIZE > MIB + 0x10000
    assert 2 * REPLICAS_MAX <= placement.regions <= REGIONS_MAX


def test_impossible_numbers_of_replicas_are_refused(pools: Any) -> None:
    pool = pools(nodes=3)
    for replicas in (0, 4, 8):
        with pytest.raises(limpet.ParameterError, match="1 to 3 replicas"):
            pool.allocator.replenish(0, 100, replicas)
        with pytest.raises(limpet.ParameterError, match="1 to 3 replicas"):
            pool.allocator.allocate(0, 100, replicas)
    with pytest.raises(limpet.ParameterError, match="1 to 7 replicas"):
        ReplicaLayout(9, 255, 16 << 10).check(8)


def test_impossible_references_are_not_followed(pools: Any) -> None:
    pool = pools(nodes=3)
    heap, placement = pool.heap, pool.heap.placement
    primary = placement.starts(3)[0]
    good = heap.reference(2, primary, 5, 1) | replica_bits(3)
    assert heap.plausible(good)
    bad = [
        good + (1 << 40),  # no such node
        good | replica_bits(4),
        heap.reference(2, primary + placement.region_blocks, 5, 1) | replica_bits(3),  # a backup
        heap.reference(2, pool.layout.block_count, 5, 1) | replica_bits(3),
        good | 1,
    ]
    assert not any(heap.plausible(reference) for reference in bad)
    for reference in (bad[0], bad[1], bad[3]):
        with pytest.raises(limpet.PoolCorrupt):
            heap.replica(reference, 1)


def test_address_of_a_replica_is_where_its_block_is(pools: Any) -> None:
    pool = pools(nodes=4)
    heap, placement = pool.heap, pool.heap.placement
    for replicas in range(1, 5):
        primary = placement.starts(replicas)[1] + 1
        for size_class in (1, 7, 0):
            index = heap.object_count(size_class) - 1
            reference = heap.reference(3, primary, size_class, index) | replica_bits(replicas)
            assert heap.replicas(reference) == replicas
            assert heap.index_of(reference) == index
            assert heap.block_of(reference) == primary
            for k in range(replicas):
                node, block = placement.backup(3, primary, replicas, k) if k else (3, primary)
                there = heap.reference(node, block, size_class, index)
                assert heap.replica(reference, k) == there & (1 << 48) - 1
