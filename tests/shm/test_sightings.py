"""Since when a client has been seen in the way: what counts as one hold, and what does not."""

from __future__ import annotations

from typing import Any

from limpet.shm.clients.fencing import SIGHTINGS_MAX, Sightings


def test_sighting_lasts_as_long_as_the_hold_is_the_same() -> None:
    seen = Sightings()
    assert [seen.lasted("lock", 7, now) for now in (10.0, 10.5, 14.0)] == [0.0, 0.5, 4.0]


def test_sighting_begins_anew_with_another_hold_though_an_earlier_one_comes_again() -> None:
    seen = Sightings()
    holds = ((7, 0.0), (8, 1.0), (7, 2.0), (7, 3.5))
    assert [seen.lasted("lock", hold, now) for hold, now in holds] == [0.0, 0.0, 0.0, 1.5]


def test_sighting_of_one_resource_says_nothing_of_another() -> None:
    seen = Sightings()
    assert seen.lasted("lock", 7, 0.0) == 0.0
    assert seen.lasted("lease", 7, 5.0) == 0.0
    assert seen.lasted("lock", 7, 5.0) == 5.0


def test_sighting_is_forgotten_when_nobody_looks_for_a_gap() -> None:
    seen = Sightings()
    times = (0.0, 1.0, 2.0, 3.5, 4.0)
    assert [seen.lasted("lock", 7, now, 1.0) for now in times] == [0.0, 1.0, 2.0, 0.0, 0.5]


def test_sightings_of_what_is_looked_at_are_kept_however_many_there_were() -> None:
    seen = Sightings()
    seen.lasted("lock", 7, 0.0)
    for number in range(3 * SIGHTINGS_MAX):
        seen.lasted(number, 0, number)
        lasted = seen.lasted("lock", 7, number)
    assert lasted == 3 * SIGHTINGS_MAX - 1


def test_client_in_two_operations_that_look_alike_is_not_taken_for_one_that_stands_still(
    pools: Any,
) -> None:
    """It is met in the same place each time, for longer than a lease in all."""
    pool = pools(lease=0.1)
    other = pools.again(pool)
    ident = other.client_id
    now = [0.0]
    pool.membership.now = lambda: now[0]
    for _ in range(20):
        with other.client:
            assert not pool.exclusively(lambda: pool.membership.gone(ident, "a lock"))
        now[0] += 0.05
    assert pool.events() == []


def test_client_in_one_operation_is_taken_for_one_that_stands_still_after_a_lease(
    pools: Any,
) -> None:
    pool = pools(lease=0.1)
    other = pools.again(pool)
    ident = other.client_id
    now = [0.0]
    pool.membership.now = lambda: now[0]
    with other.client:
        for _ in range(4):
            assert pool.events() == [] or now[0] >= 0.1
            pool.exclusively(lambda: pool.membership.gone(ident, "a lock"))
            now[0] += 0.05
    assert [event["kind"] for event in pool.events()] == ["suspended"]  # of its own process
