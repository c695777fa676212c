"""Numbers of vacant slots: no client ever has one twice."""

from __future__ import annotations

from typing import Any

import pytest
from kit.processes import gather

import limpet
from limpet.shm.clients.unique_ids import RANGE, TICKETS_MAX, Tickets
from limpet.shm.endpoint.layout import TICKETS


def test_numbers_are_counted_up_from_a_range_of_ones_own(pools: Any) -> None:
    pool = pools()
    tickets = Tickets(pool.client)
    first = tickets.take()
    assert [tickets.take() for _ in range(RANGE - 1)] == list(range(first + 1, first + RANGE))
    assert pool.endpoint.load(TICKETS) == first + RANGE
    assert tickets.take() >= first + RANGE


def test_no_two_clients_have_the_same_number(pools: Any) -> None:
    pool = pools()
    makers = [Tickets(p.client) for p in (pool, pool, pools.again(pool))]
    taken = [maker.take() for _ in range(2 * RANGE) for maker in makers]
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize("taken", [TICKETS_MAX - RANGE + 1, 2**63, 2**64 - RANGE, 2**64 - 1])
def test_there_are_no_numbers_beyond_what_a_slot_has_room_for(pools: Any, taken: int) -> None:
    """A number that does not fit would be taken for a reference, or not fit into a word at all."""
    pool = pools(nodes=2)
    store = pool.store("fusee", name="test", capacity=100)
    store.put(b"k", b"v")
    pool.endpoint.store(TICKETS, TICKETS_MAX - RANGE)
    tickets = Tickets(pool.client)
    assert [tickets.take() for _ in range(RANGE)][-1] == TICKETS_MAX - 1
    pool.endpoint.store(TICKETS, taken)
    with pytest.raises(limpet.PoolCorrupt, match="numbers of vacant slots"):
        tickets.take()
    with pytest.raises(limpet.PoolCorrupt, match="numbers of vacant slots"):
        store.delete(b"k")
    assert store.get(b"k") == b"v"
    store.check()


def test_the_greatest_numbers_are_those_of_vacant_slots(pools: Any) -> None:
    pool = pools(nodes=2)
    store = pool.store("fusee", name="test", capacity=100)
    # the range before the last one is for the stamps of the objects
    pool.endpoint.store(TICKETS, TICKETS_MAX - 2 * RANGE)
    for number in range(RANGE // 2):
        store.insert(b"k", b"%d" % number)
        store.delete(b"k")
    assert pool.endpoint.load(TICKETS) == TICKETS_MAX
    assert store.get(b"k") is None
    store.check()


def test_forked_children_take_numbers_of_their_own(pools: Any) -> None:
    pool = pools()
    tickets = Tickets(pool.client)
    mine = [tickets.take() for _ in range(10)]

    def child() -> list[int]:
        return [pool.exclusively(tickets.take) for _ in range(RANGE + 10)]

    theirs = gather(child, child)
    mine += [tickets.take() for _ in range(RANGE)]
    every = [*mine, *theirs[0], *theirs[1]]
    assert len(set(every)) == len(every)


def test_what_is_left_of_a_range_that_was_forgotten_is_never_used(pools: Any) -> None:
    pool = pools()
    tickets = Tickets(pool.client)
    taken = []
    for _ in range(5):
        taken += [tickets.take() for _ in range(3)]
        tickets.forget()
    assert len(set(taken)) == len(taken)
    assert pool.endpoint.load(TICKETS) == 5 * RANGE


def test_numbers_cost_no_round_trips_and_are_housekeeping(pools: Any) -> None:
    pool = pools()
    tickets = Tickets(pool.client)
    pool.endpoint.reset_counters()
    for _ in range(2 * RANGE):
        tickets.take()
    assert pool.endpoint.counters()["atomics"] == 0
    assert pool.endpoint.counters("control")["atomics"] == 2
    assert pool.endpoint.counters()["round_trips"] == 0
