"""When memory is used again, at epochs beyond the bits that other words have of them.

These are a pin's (epoch.py) and a block word's (words.py). Tests of new pools are run again with
pools that have been in use for so long.
"""

from __future__ import annotations

from typing import Any

import pytest
import test_epoch
import test_pressure
import test_replicas
from kit.clients import work

import limpet
from limpet.shm.endpoint.layout import EPOCH
from limpet.shm.endpoint.slots import ERA_SHIFT

BEYOND_PIN = 1 << ERA_SHIFT
BEYOND_STAMP = 1 << 48
ENDS = [
    BEYOND_PIN - 1,
    BEYOND_PIN,
    3 * BEYOND_PIN - 2,
    BEYOND_STAMP - 3,
    BEYOND_STAMP - 1,
    5 * BEYOND_STAMP - 2,
]


@pytest.fixture(params=ENDS if limpet.build == "compiled" else ENDS[::4])
def pools(pools: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes pools that have been in use for long."""
    keep = pools.keep

    def keep_late(pool: limpet.Pool) -> limpet.Pool:
        if pool.url not in {one.url for one in pools.made}:
            pool.endpoint.store(EPOCH, request.param)
        return keep(pool)  # type: ignore[no-any-return]

    monkeypatch.setattr(pools, "keep", keep_late)
    return pools


OF_MEMORY = (
    test_epoch.test_block_given_back_by_recovery_is_not_claimed_before_its_epoch_has_passed,
    test_epoch.test_dead_pin_counts_until_recovery_and_not_after,
    test_epoch.test_horizon_is_the_oldest_pin_and_never_ahead_of_the_epoch,
    test_epoch.test_object_freed_is_not_used_again_while_another_client_is_pinned,
    test_epoch.test_object_is_used_again_when_nobody_is_pinned,
    test_epoch.test_objects_of_the_dead_are_adopted_only_after_the_grace_period,
    test_pressure.test_block_that_comes_back_to_its_owner_begins_anew,
    test_pressure.test_dead_taker_is_recovered,
    test_pressure.test_late_stamp_of_a_taker_is_refused,
    test_pressure.test_owner_in_an_operation_keeps_what_it_allocates_from_a_block_being_taken,
    test_pressure.test_room_in_blocks_of_others_is_used,
    test_pressure.test_taker_that_was_interrupted_keeps_nothing_back,
    test_replicas.test_memory_of_groups_is_given_to_others_when_memory_is_full,
    test_replicas.test_backups_without_a_head_wait_for_who_may_be_allocating,
)
"""They are run in this module, too, with its pools."""
globals().update({test.__name__: test for test in OF_MEMORY})


def test_stores_work_across_the_end(pools: Any) -> None:
    pool = pools(node_size="4MiB")
    before = pool.grace.now()
    for handle in (pool, pools.again(pool)):
        work(handle)
    assert pool.grace.now() > before
    assert pools.again(pool).store("race", name="work").get(b"10") is None
