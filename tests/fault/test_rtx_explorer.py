"""Trees and transactions under the explorer, and transactions stopped and killed at each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kit.known_bad import first_failure
from kit.mutants.rtx import (
    ALL_LATE,
    KEEPS_OLD,
    NAMED_FIRST,
    NOT_BEGUN,
    UNCHANGED,
    Mutant,
    in_force,
)
from kit.parts import is_fair, runs_of
from kit.transaction_runs import (
    BOTH,
    LARGE,
    READERS,
    TxRun,
    TxStage,
    faulty,
    logged,
    parse,
    stage,
    steps_of,
)
from kit.transaction_runs import explore as explore_transactions
from kit.variants import vary

from limpet.fault.explore.explorer import Exploration, ExplorerReport, explore
from limpet.fault.explore.schedule import CRASH, STALL, Replay
from limpet.fault.explore.sim_pools import SimulatedPool
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.errors import StoreFull
from limpet.stores.rtx import transaction
from limpet.stores.rtx.cut import Cut
from limpet.stores.transactions.reads import Reads

pytestmark = pytest.mark.either_build(
    "the same lines on either build",
    but=["test_tree_holds_while_clients_die_and_stand_still[40-2]"],
)

COMPILED = BUILD == "compiled"
INLINE, EXTENTS = 40, 3400
"""Bytes of values."""
SHORT_LEASE = {"drift_us": 0, "each_us": 20}
"""Others take it to be over while its owner is only slow."""

compiled_only = pytest.mark.skipif(not COMPILED, reason="takes many runs")


def explored(runs: int, **more: Any) -> ExplorerReport:
    chosen = {"value_size": INLINE, "crashes": 1, "stalls": 1, "seed": 7, **more}
    return explore(Exploration(store="rtx-sherman", schedules=runs_of(runs), **chosen))


# ---- single operations ---------------------------------------------------------------------------


@pytest.mark.exhaustive("more clients", quick=["*-2"])
@pytest.mark.parametrize("clients", [2, 3, 4])
@pytest.mark.parametrize("size", [INLINE, EXTENTS])
def test_tree_holds_while_clients_die_and_stand_still(size: int, clients: int) -> None:
    lease = {"drift_us": 0, "each_us": 5}
    report = explored(200, value_size=size, clients=clients, crashes=2, stalls=2, parameters=lease)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)
    assert is_fair(report.stalls, report.schedules)


@compiled_only
def test_tree_holds_without_hardware_coherence() -> None:
    assert explored(400, value_size=40, crashes=2, stalls=2, coherent=False).failures == ()


# ---- transactions --------------------------------------------------------------------------------


@pytest.mark.exhaustive("more clients", quick=["*-2"])
@pytest.mark.parametrize("clients", [2, 3, 4])
@pytest.mark.parametrize("parameters", [{}, SHORT_LEASE, LARGE], ids=["usual", "short", "large"])
def test_transactions_hold_while_clients_die_and_stand_still(
    parameters: dict[str, Any], clients: int
) -> None:
    runs = runs_of(120)
    found = explore_transactions(runs, clients, crashes=2, stalls=2, **parameters)
    assert found.failure == ""
    assert found.runs == runs
    assert is_fair(found.crashes, found.runs)
    assert is_fair(found.stalls, found.runs)


@pytest.mark.exhaustive("more programs", quick=["short-rtx-sherman"])
@pytest.mark.parametrize("kind", ["rtx-sherman", BOTH])
@pytest.mark.parametrize("parameters", [{}, SHORT_LEASE], ids=["usual", "short"])
def test_what_is_read_under_locks_holds_while_clients_die_and_stand_still(
    parameters: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first conflict already (stores/rtx/cut.py); no client waits in a circle."""
    cuts, usual = [0], Cut.take

    def take(cut: Cut) -> Any:
        cuts[0] += 1
        return usual(cut)

    monkeypatch.setattr(Cut, "take", take)
    monkeypatch.setattr(transaction, "OPTIMISTIC", 0)
    runs = runs_of(150)
    found = explore_transactions(
        runs, crashes=2, stalls=2, program=READERS, kind=kind, **parameters
    )
    assert found.failure == ""
    assert found.runs == runs
    assert cuts[0] > runs / 10


def refuse_some(patch: pytest.MonkeyPatch, *, done_first: bool) -> dict[str, int]:
    """Count the transactions that find memory, and those that do not. `done_first`: every fourth
    one that does is refused after it has happened."""
    counts = {"done": 0, "full": 0}
    usual = SimulatedPool.transaction

    def run(pool: Any, work: Any, attempts: int) -> Any:
        try:
            result = usual(pool, work, attempts)
        except StoreFull:
            counts["full"] += 1
            raise
        counts["done"] += 1
        if done_first and not counts["done"] % 4:
            raise StoreFull("too late")
        return result

    patch.setattr(SimulatedPool, "transaction", run)
    return counts


@pytest.mark.parametrize("kind", ["rtx-race", "rtx-sherman"])
def test_a_transaction_that_finds_no_memory_is_refused_and_changes_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = refuse_some(monkeypatch, done_first=False)
    runs = runs_of(200)
    chosen = Exploration(store=kind, schedules=runs, seed=2, transactions=True, scarce=True)
    assert explore(chosen).failures == ()
    assert counts["done"] > runs / 2
    assert counts["full"] > 0 or not COMPILED


def test_a_transaction_that_is_refused_and_has_happened_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_some(monkeypatch, done_first=True)
    (found,) = explore(
        Exploration(store="rtx-race", schedules=100, seed=1, transactions=True, scarce=True)
    ).failures
    assert found.what.startswith("history"), found


@pytest.fixture(scope="module")
def made() -> Iterator[TxStage]:
    """A stage with the accounts in leaves of their own."""
    with stage(3) as there:
        assert there.leaves == 3
        yield there


def _steps(made: TxStage, program: str) -> range:
    return range(1, steps_of(made, program) + 1, 1 if COMPILED else 9)


PROGRAMS = (("mab|mab|s gb", 0), ("i i i i i|i mba|mbc s", 4), ("cab|mba o|n", 0))
"""The first client's operation of that number has a log: a transfer, a split, reads and writes."""


@pytest.mark.exhaustive("every step", quick=["cab?mba o?n-0-dies"])
@pytest.mark.parametrize("kind", [STALL, CRASH], ids=["stops", "dies"])
@pytest.mark.parametrize(("program", "op"), PROGRAMS)
def test_owner_may_stop_at_each_step(program: str, op: int, kind: str, made: TxStage) -> None:
    """Others change the same keys meanwhile; the stopped client goes on when they are done."""
    runs: list[TxRun] = []
    for step in _steps(made, program):
        assert faulty(made, program, (0, op, step, kind), runs=runs) == ""
    assert logged(made, runs[-1], 0)


@pytest.mark.exhaustive("every step")
@pytest.mark.parametrize("kind", [STALL, CRASH], ids=["stops", "dies"])
@pytest.mark.parametrize(("program", "op"), PROGRAMS[:2])
def test_repairer_may_stop_at_each_step(program: str, op: int, kind: str, made: TxStage) -> None:
    """While the owner stands still with its locks, decided or not; or is dead."""
    owner = _steps(made, program.split("|")[0] + "||")
    for step in owner[-len(owner) // 3 :: 9 if COMPILED else 5]:
        for repairer in range(1, 300, 9 if COMPILED else 60):
            for first in (STALL, CRASH):
                faults = (0, op, step, first), (1, 0, repairer, kind)
                assert faulty(made, program, *faults) == ""


# ---- what must be caught -------------------------------------------------------------------------


@compiled_only
def test_all_new_data_may_come_late() -> None:
    with in_force(ALL_LATE):
        found = explore_transactions(300, crashes=2, stalls=2, program="mab mab|mab mbc|mab")
    assert not found.failure


@pytest.mark.exhaustive("many runs")
@compiled_only
def test_what_was_recalled_before_the_changes_were_added_up_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def note(reads: Any, at: int, read: Any) -> bool:
        return bool(reads.note_object(at, read.lock, read.pointer, read.store, read.key))

    vary(monkeypatch, Reads, "note_recalled", note)
    monkeypatch.setattr(transaction, "OPTIMISTIC", 0)
    found = explore_transactions(30_000, crashes=2, stalls=2, program=READERS, kind=BOTH, seed=8)
    assert found.failure.startswith("order"), found


@compiled_only
@pytest.mark.parametrize("mutant", [UNCHANGED, NAMED_FIRST], ids=lambda mutant: mutant.name)
def test_memory_of_an_earlier_log_is_not_taken_for_one(mutant: Mutant) -> None:
    """A client is killed when it begins a log in memory that had one before, whose old data is in
    use again."""
    with in_force(mutant), stage(2) as there:
        steps = range(1, steps_of(there, "mab|") + 1)
        program = " ".join(["mab"] * 20) + "|ga"
        found = [faulty(there, program, (0, 19, step, CRASH)) for step in steps]
    assert any(found) == (mutant is NAMED_FIRST), found


@compiled_only
def test_lock_that_the_hand_does_not_know_is_noticed() -> None:
    with in_force(NOT_BEGUN):
        found = first_failure(
            Exploration("rtx-sherman", schedules=30_000, crashes=2, value_size=INLINE)
        )
    assert "locked by no client" in found


@compiled_only
def test_memory_that_is_not_given_back_is_noticed() -> None:
    with in_force(KEEPS_OLD), stage(3) as there, pytest.raises(AssertionError, match="leaked"):
        steps_of(there, "mab||")


def test_a_run_is_the_same_whatever_was_run_before() -> None:
    """A handle went on to look for vacant objects where it had found one in the last run."""
    program = parse("fba mca i|i mba|i i")
    with stage(3) as made:
        digests = {TxRun(made, program, Replay({})).go().digest() for _ in range(3)}
    assert len(digests) == 1
