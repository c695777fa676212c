"""The table of known-bad variants: each is found, and what ships holds in the same searches."""

from __future__ import annotations

import functools
from typing import Any, Final

import pytest
from kit.cuckoo import SMALL_RING, crowded
from kit.known_bad import (
    TOLD,
    Kills,
    LateVerbs,
    Steps,
    Subject,
    Transactions,
    Variant,
    explored,
    scheduled,
    stepped,
)
from kit.mutants import (
    batches,
    channels,
    fusee,
    loco,
    race,
    rcuckoo,
    remote,
    rtx,
    rtx_race,
    swarm,
    uncompiled,
)
from kit.parts import runs_of
from kit.scenes import fusee as fusee_scenes
from kit.scenes import loco as loco_scenes
from kit.scenes import (
    loco_batches,
    rtx_reads,
    swarm_batches,
    swarm_rows,
)
from kit.scenes import rcuckoo as rcuckoo_scenes
from kit.scenes import rtx as rtx_scenes
from kit.scenes import swarm as swarm_scenes
from kit.transaction_runs import READERS
from kit.transaction_runs import explore as explore_transactions

from limpet.fault.explore.explorer import Exploration, explore
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.operations import OPERATIONS
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build("the same lines on either build")

RACE: Final = Subject("race", race.in_force, race.UNCHANGED)
FUSEE: Final = Subject("fusee", fusee.in_force, fusee.UNCHANGED)
SWARM: Final = Subject("swarm", swarm.in_force, swarm.UNCHANGED)
LOCO: Final = Subject("loco", loco.in_force, uncompiled.UNCHANGED)
RCUCKOO: Final = Subject("rcuckoo", rcuckoo.in_force, uncompiled.UNCHANGED)
RTX: Final = Subject("rtx-sherman", rtx.in_force, rtx.UNCHANGED)
REMOTE: Final = Subject("remote", remote.in_force, remote.UNCHANGED)
RTX_RACE: Final = Subject("rtx-race", rtx_race.in_force, None)
DEQUE, TOPIC, SEMAPHORE, RWLOCK, CONDITION, JOBS = (
    Subject(kind, functools.partial(channels.in_force, kind), uncompiled.UNCHANGED)
    for kind in ("deque", "topic", "semaphore", "rwlock", "condition", "jobs")
)

of_loco = functools.partial(scheduled, "loco")
of_paths = functools.partial(scheduled, "rcuckoo", around=crowded, parameters=SMALL_RING)
over_hash = functools.partial(Transactions, kind="rtx-race", crashes=1)
WRONG: Final = ("history", "check")
BATCHES_LATE: Final = LateVerbs("swarm", "pb mab|gb", 3, {}, operation=1, dies=range(1, 9))


def kills_of(store: str, operation: str) -> Kills:
    return Kills(lambda: Matrix(store).killed(OPERATIONS[operation]).failures)


# ---- the table -----------------------------------------------------------------------------------

TABLE: Final = [
    *explored(RACE, (*race.MUTANTS, *batches.BATCHES)),
    *explored(REMOTE, remote.EXPLORED),
    *explored(FUSEE, (*fusee.EXPLORED, *batches.ROUNDS)),
    *stepped(FUSEE, fusee_scenes.STEPS),
    Variant(FUSEE, fusee.PROPOSED_UNWRITTEN, LateVerbs("fusee", "ua|ua ga", 2, {}), WRONG),
    *explored(SWARM, (*swarm.EXPLORED, *swarm_batches.EXPLORED)),
    *stepped(SWARM, (*swarm_scenes.STEPS, *swarm_batches.STEPS, *swarm_rows.STEPS)),
    Variant(SWARM, swarm.NAMED_IN_PART, BATCHES_LATE, ("check",)),
    *stepped(LOCO, (*loco_scenes.STEPS, *loco_batches.STEPS)),
    Variant(LOCO, loco.NOT_UP_TO_DATE, of_loco("ga gc|ic"), WRONG),
    Variant(LOCO, loco.POSITION_LAST, of_loco("ic|gc gc"), WRONG),
    Variant(LOCO, loco.NO_REACH, of_loco("ic|gb gc", parameters={"part": 1}), WRONG),
    Variant(LOCO, loco.REACH_LATE, of_loco("ic id|gc gd", parameters={"part": 1}), WRONG),
    Variant(
        LOCO, loco.LAP_OVERLOOKED, of_loco("ga gc gd|ic id|da ia", parameters={"tracker": 2}),
        WRONG,
    ),
    Variant(LOCO, loco.NO_REPAIR, kills_of("loco", "update, same size")),
    Variant(LOCO, loco.BLESSED, kills_of("loco", "update, same size")),
    Variant(LOCO, loco.CLAIM_STAYS, kills_of("loco", "insert")),
    Variant(LOCO, loco.VALID_IN_CHECKSUM, kills_of("loco", "insert")),
    Variant(LOCO, loco.LINK_LAST, kills_of("loco", "update")),
    *stepped(RCUCKOO, rcuckoo_scenes.STEPS),
    Variant(
        RCUCKOO, rcuckoo.UNFENCED, of_paths("ua ga|ua ga"),
        (*WRONG, "client 0", "client 1", "no end"),
    ),
    Variant(RCUCKOO, rcuckoo.SPINS, of_paths("ua|ua|ub ga"), ("no end",)),
    Variant(RCUCKOO, rcuckoo.BLESSED, Kills(rcuckoo_scenes.of_update)),
    Variant(RCUCKOO, rcuckoo.GOOD_COPY_CLEARED, Kills(rcuckoo_scenes.of_path)),
    Variant(RCUCKOO, rcuckoo.LEASE_OF_THE_DEAD, Kills(rcuckoo_scenes.of_two_deaths)),
    *stepped(RTX, (*rtx_scenes.STEPS, *rtx_reads.STEPS)),
    Variant(
        RTX, rtx.CUT_WHATEVER_BECAME_OF_IT,
        Steps(rtx_reads.locks_are_released_in_a_cut, rtx.CUTS_AT_ONCE), TOLD,
    ),
    Variant(RTX, rtx.STARTS_AGAIN, Steps(rtx_reads.writer_is_never_done), ("TransactionConflict",)),
    Variant(
        RTX, rtx.MOVES_NOTHING_EMPTY, Steps(rtx_reads.entries_without_bytes), ("AddressError",)
    ),
    Variant(RTX, rtx.MILLISECOND, Transactions("")),
    Variant(RTX, rtx.NOT_VALIDATED, Transactions("cab|cba|"), ("order",)),
    Variant(RTX, rtx.READS_DECIDED, Transactions("mab mab|ga gb ga gb|")),
    Variant(RTX, rtx.READS_TORN, Transactions(""), ("order",)),
    Variant(RTX, rtx.RENEWED_UNSEEN, Transactions("cab|cba|"), ("order",)),
    Variant(RTX, rtx.COUNTED_LATE, Transactions("mab mab|s s|"), ("order",)),
    Variant(RTX, rtx.APPLIES_FIRST, Transactions("mab mab|mab mbc|mab")),
    Variant(RTX, rtx.USED_FIRST, Transactions("mab mab|mab mbc|mab"), ("leaked",)),
    Variant(RTX, rtx.FORGETS_FIRST, Transactions("mab mab|mab mbc|mab"), ("leaked",)),
    Variant(RTX, rtx.FREES_NEW, Transactions("mab mab|mab mbc|mab")),
    Variant(RTX, rtx.CUT_WITHOUT_LOCKS, Transactions(READERS)),
    Variant(RTX_RACE, rtx_race.NOT_VALIDATED, over_hash("cab|cba|"), ("order",)),
    Variant(RTX_RACE, rtx_race.ABSENT_NOT_VALIDATED, over_hash("fab|fba|"), ("order",)),
    Variant(RTX_RACE, rtx_race.LET_GO_BEFORE, over_hash("mab|mab|s gb ga")),
    Variant(RTX_RACE, rtx_race.NOT_HELD_AGAIN, over_hash("mab mab|s s|"), ("order",)),
    Variant(DEQUE, channels.NO_LOCK, scheduled("deque", "a q|b p|a l"), WRONG),
    Variant(
        DEQUE, channels.COPIES_ONCE,
        scheduled("deque", "a a a a|a a a a|l l l|l l l", stalls=2, parameters={"bounded": True}),
        WRONG,
    ),
    Variant(DEQUE, channels.ENDS_FIRST, scheduled("deque", "a aL|q q|l"), WRONG),
    Variant(
        TOPIC, channels.READS_ONCE,
        scheduled("topic", "p p p p p|g g g|g g g", stalls=2, parameters={"size": 1}), WRONG,
    ),
    Variant(TOPIC, channels.MISSES_UNSAID, scheduled("topic", "p p p|p|g g"), WRONG),
    Variant(TOPIC, channels.CELL_FIRST, scheduled("topic", "p p p|p|g g"), WRONG),
    Variant(SEMAPHORE, channels.BURIES_NONE, scheduled("semaphore", "aw|aw"), (*WRONG, "no end")),
    Variant(SEMAPHORE, channels.BLIND, scheduled("semaphore", "aw an|aw an"), WRONG),
    Variant(RWLOCK, channels.BURIES_NONE, scheduled("rwlock", "xw|sw"), ("held", "no end")),
    Variant(RWLOCK, channels.UNTOLD, scheduled("rwlock", "xw xw|xw"), WRONG),
    Variant(RWLOCK, channels.BESIDE, scheduled("rwlock", "sw|xw"), WRONG),
    Variant(CONDITION, channels.ONE_MORE, scheduled("condition", "w|w|1 1"), WRONG),
    Variant(CONDITION, channels.UNSEEN, scheduled("condition", "w|w|1 1"), WRONG),
    Variant(JOBS, channels.LOST_WITH_THE_DEAD, scheduled("jobs", "p a|a"), ("lost",)),
    Variant(JOBS, channels.FOR_EVER, scheduled("jobs", "p n n|n l"), WRONG),
    Variant(JOBS, channels.TWICE, scheduled("jobs", "pk|pk a"), WRONG),
    Variant(JOBS, channels.ONE_LINE, scheduled("jobs", "p0 p3|a a"), WRONG),
    Variant(JOBS, channels.NO_DELAY, scheduled("jobs", "pd pd|a a"), ("early",)),
    Variant(JOBS, channels.TAKES_TOO, scheduled("jobs", "p a|p a"), WRONG),
    Variant(JOBS, channels.UNCOUNTED, scheduled("jobs", "p a|p a"), ("lost",)),
    Variant(JOBS, channels.INDEX_AS_IT_IS, scheduled("jobs", "p a|p a|p"), ("lost",)),
]  # fmt: skip
RARE: Final = {
    "waits-for-the-dead", "f4-outcome-by-value",
    "f5-free-before-the-round-has-ended", "f8-primary-cas-unchecked", "f10-no-look-for-rivals",
    "f10-rivals-on-the-primary-only", "r11-cut-that-locks-nothing",
    "c1-of-two-copies-the-good-one-is-cleared", "buffer-is-given-up-without-a-journal",
    "goes-on-before-all-has-happened", "r8-reader-takes-what-may-be-decided",
    "s9-copy-is-said-to-be-in-the-writers-row",
}  # fmt: skip
"""Variants that take seconds to find."""
SCENES: Final = {
    str(row.search): (row.of, row.search) for row in TABLE if isinstance(row.search, Steps)
}
AS_SHIPPED: Final = {
    scene
    for module in (loco_scenes, rcuckoo_scenes, rtx_scenes, rtx_reads)
    for _, scene in module.STEPS
}


@pytest.mark.skipif(BUILD != "compiled", reason="takes many runs")
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=row.name(),
            marks=[pytest.mark.exhaustive("thousands of runs")] * (row.mutant.name in RARE),
        )
        for row in TABLE
    ],
)
def test_known_bad_variant_is_found(row: Variant, pools: Any) -> None:
    with row.of.in_force(row.mutant):
        found = row.search(pools, row.says)
    assert found, "the search has not shown it"
    assert not row.says or found.startswith(row.says), found


@pytest.mark.parametrize("name", SCENES)
def test_what_ships_holds_step_by_step(name: str, pools: Any) -> None:
    """As the variants are run, and as it ships, if the scene needs nothing else."""
    of, search = SCENES[name]
    if search.scene in AS_SHIPPED:
        search.scene(pools)
    with of.in_force(search.ships or of.unchanged):
        search.scene(pools)


@pytest.mark.exhaustive("hundreds of runs", quick=["fusee-1", "loco-0", "rcuckoo-0", "race-0"])
@pytest.mark.parametrize(
    ("of", "lost"),
    [(RACE, 0), (FUSEE, 1), (FUSEE, 2), (SWARM, 0), (SWARM, 1), (LOCO, 0), (RCUCKOO, 0)],
    ids=lambda of: getattr(of, "name", str(of)),
)
def test_what_the_variants_are_made_of_holds(of: Subject, lost: int) -> None:
    nodes = {"fusee": 3, "swarm": 3}.get(of.name, 0)
    parameters = Exploration(
        store=of.name, schedules=runs_of(150), seed=2, node_failures=lost, nodes=nodes,
        value_size=40, parameters={"replicas": lost + 1} if of is FUSEE else {},
    )  # fmt: skip
    with of.in_force(of.unchanged):
        assert explore(parameters).failures == ()


@pytest.mark.exhaustive("each verb of a batch")
def test_batches_of_registers_hold_when_verbs_are_late(pools: Any) -> None:
    assert BATCHES_LATE(pools) == ""


def test_what_the_variants_of_transactions_are_made_of_holds() -> None:
    with RTX.in_force(RTX.unchanged):
        assert explore_transactions(100).failure == ""
