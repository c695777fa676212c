"""Ends of SWARM's timestamps, and values that are nowhere."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from kit.puppets import ShiftedPool, verb_on
from kit.registers import Scene

import limpet
from limpet.fault.matrix.testbed import within
from limpet.stores.swarm import layout as fields
from limpet.stores.swarm.register import is_tombstone, time_of, tuple_word

pytestmark = pytest.mark.either_build("the same lines on either build")

HOUR_US = 3_600_000_000


def test_timestamps_last_for_thirty_years_from_2026() -> None:
    """Trap S7: in a word with the writer, its row, and what the value is."""
    year_us = 366 * 24 * 3600 * 1_000_000
    assert fields.TIME_MAX + 1 == 1 << 64 - fields.TIME_SHIFT
    assert (2026 - 2025 + 30) * year_us < fields.TIME_MAX
    word = tuple_word(fields.TIME_MAX - 1, 63, fields.VERIFIED, 63, 1)
    assert word < 1 << 64
    assert time_of(word) == fields.TIME_MAX - 1
    assert not is_tombstone(word)


@pytest.mark.parametrize("year", [2061, 2100])
def test_a_clock_at_the_end_of_time_is_an_error_and_no_tombstone(pools: Any, year: int) -> None:
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=50)
    store.put(b"k", b"v")
    late = pools.keep(ShiftedPool.open(pool.url))
    late.endpoint.shift = (year - 2025) * 366 * 24 * HOUR_US
    other = late.store("swarm", name="test")
    for write in (other.put, other.update):
        with pytest.raises(limpet.ClientError, match="clock"):
            write(b"k", b"w")
    assert other.get(b"k") == store.get(b"k") == b"v"
    store.update(b"k", b"w")
    assert other.get(b"k") == b"w"
    store.check()
    assert pool.audit()["leaked"] == 0


def test_a_get_of_a_value_that_is_nowhere_ends(pools: Any) -> None:
    """Damaged memory: of a tuple that is at one replica the value is gone."""
    scene = Scene(pools, 1)
    (writer,) = scene.clients
    assert not writer.begin(
        functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", scene.nodes[1])
    )
    scene.look()
    k, row = scene.order[0], writer.pool.numbers.number
    for side in range(2):
        reference = scene.replicas[k].named(row, side)
        for other in range(3 if reference else 0):
            scene.pool.endpoint.write(scene.place.beside(reference, other), bytes(8))
    with within(60, "the get"), pytest.raises(limpet.StoreCorrupt):
        scene.store.get(b"k")
    assert writer.go()
