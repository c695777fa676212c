"""Random transactions that insert and delete what they found missing, or there: serializable, for
both kinds, whatever clients are killed or stopped when."""

from __future__ import annotations

from typing import Any, Final

import pytest
from kit.mutants.rtx import BLIND_DELETE, UNCHANGED, in_force
from kit.parts import is_fair, runs_of

from limpet.fault.check.linearize import Timed
from limpet.fault.check.transaction_model import PRESENT, step_of, wrong_order
from limpet.fault.explore.explorer import (
    Exploration,
    ExplorerReport,
    cluster_of,
    explore,
    numbered_run,
)
from limpet.fault.explore.sim_program import ABSENT, parse_program, program_text
from limpet.fault.explore.sim_program import PRESENT as PRESENT_KEYS
from limpet.fault.explore.sim_shrink import kind_of
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.errors import ParameterError
from limpet.stores import pool as stores_pool
from limpet.stores.rtx import transaction
from limpet.stores.rtx.race import RtxRace, SlotWriteSet

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED: Final = BUILD == "compiled"
KINDS: Final = ("rtx-sherman", "rtx-race")
SHORT_LEASE: Final = {"drift_us": 0, "each_us": 20}
"""Others take it to be over while its owner is only slow."""
compiled_only = pytest.mark.skipif(not COMPILED, reason="takes many runs")
kinds = pytest.mark.parametrize("kind", KINDS)


def explored(kind: str, runs: int, **more: Any) -> ExplorerReport:
    chosen = {"value_size": 40, "crashes": 2, "stalls": 2, "seed": 5, "transactions": True, **more}
    if more.get("program"):
        chosen["clients"] = more["program"].count("|") + 1
    return explore(Exploration(store=kind, schedules=runs_of(runs), **chosen))


@pytest.mark.exhaustive("larger values", quick=["short-*"])
@kinds
@pytest.mark.parametrize("parameters", [{}, SHORT_LEASE], ids=["usual", "short"])
def test_random_transactions_hold_while_clients_die_and_stand_still(
    kind: str, parameters: dict[str, Any]
) -> None:
    report = explored(kind, 150, parameters=parameters)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)
    assert is_fair(report.stalls, report.schedules)


@kinds
def test_random_transactions_hold_when_reads_are_recalled_at_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "OPTIMISTIC", 0)
    assert explored(kind, 100, seed=6, ops=3).failures == ()


@kinds
def test_random_transactions_hold_where_memory_is_scarce(kind: str) -> None:
    assert explored(kind, 60, value_size=3400, parameters={}).failures == ()


# ---- what must be caught -------------------------------------------------------------------------


def _without_reads(staging: SlotWriteSet, key: bytes, value: bytes | None) -> int:
    """R10: what is found missing when a delete is staged is not noted."""
    reads = staging.commit.reads
    staging.commit.reads = None if value is None else reads
    try:
        return STAGE(staging, key, value)
    finally:
        staging.commit.reads = reads


STAGE: Final = SlotWriteSet.stage


@pytest.mark.exhaustive("many runs", quick=["txcpa*"])
@compiled_only
@pytest.mark.parametrize("program", ["txcpa|ic ga|txcpa", "txcpa|ic ga"])
def test_absence_that_is_not_validated_is_caught_in_trees(program: str) -> None:
    with in_force(BLIND_DELETE):
        report = explored("rtx-sherman", 6000, program=program)
    _is_caught(report)


@pytest.mark.exhaustive("many runs", quick=["txcpa*"])
@compiled_only
@pytest.mark.parametrize(("program", "seed"), [("txcpa|ic ga|txcpa", 3), ("txcpa|ic ga", 5)])
def test_absence_that_is_not_validated_is_caught_in_hash_tables(
    program: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiled classes cannot be changed, so classes that derive from them are used.
    variant = type("WriteSet", (SlotWriteSet,), {"stage": _without_reads})
    own = {"staging": lambda store, commit: variant(store.tx_keys, commit)}
    store = type("RtxRace", (RtxRace,), own)
    monkeypatch.setattr(stores_pool, "store_class", lambda kind: store)
    _is_caught(explored("rtx-race", 100_000, program=program, seed=seed))


def _is_caught(report: ExplorerReport) -> None:
    assert report.failures, f"{report.schedules} runs did not show it"
    (failure,) = report.failures
    assert kind_of(failure.what) == "history", failure.what
    assert failure.repeatable
    assert "t" in failure.program


@compiled_only
def test_what_the_variant_of_trees_is_made_of_holds() -> None:
    with in_force(UNCHANGED):
        assert explored("rtx-sherman", 60).failures == ()


def test_keys_of_programs_are_in_leaves_of_their_own() -> None:
    with cluster_of(Exploration(store="rtx-sherman", transactions=True, value_size=40)) as stage:
        found = set()
        for key in (*PRESENT_KEYS, *ABSENT):
            stage.store.get(key)
            found.add(int(stage.store.leaf.at))
    assert len(found) == 4


@kinds
@pytest.mark.parametrize("transactions", [False, True])
def test_runs_are_the_same_in_whatever_order_they_are_run(kind: str, transactions: bool) -> None:
    """A client's knowledge of its last pin was kept from one run to the next."""
    explored = Exploration(store=kind, value_size=40, seed=5, transactions=transactions)
    numbers = range(12 if COMPILED else 3)
    with cluster_of(explored) as stage:
        first = [numbered_run(stage, explored, number).digest() for number in numbers]
        again = [numbered_run(stage, explored, number).digest() for number in numbers[::-1]]
    assert first == again[::-1]


# ---- programs, and the judge ---------------------------------------------------------------------


def test_transactions_of_a_program_are_read_and_written() -> None:
    text = "tgaxbs ua|tpcicucdcgd|r"
    assert program_text(parse_program(text)) == text
    for wrong in ("t", "tg", "tge", "tra", "tgas z", "tsa"):
        with pytest.raises(ParameterError, match="is no operation"):
            parse_program(wrong)
    with pytest.raises(ParameterError, match="take part in no transactions"):
        Exploration(store="race", transactions=True)


def _timed(called: int, returned: int | None, reads: Any, writes: Any = ()) -> Timed[Any]:
    return Timed(step_of(dict(reads), dict(writes)), called, returned)


A, B = b"a", b"b"
START: Final = {A: b"0"}
HISTORIES: Final[dict[str, tuple[list[Timed[Any]], bool]]] = {
    "one after the other": (
        [_timed(1, 2, {A: b"0", B: None}, {B: b"1"}), _timed(3, 4, {B: b"1"}, {B: None}),
         _timed(5, 6, {B: None, A: PRESENT})],
        True,
    ),
    "absence comes again": (
        [_timed(1, 9, {B: None}, {A: b"2"}), _timed(2, 3, {}, {B: b"1"}),
         _timed(4, 5, {B: PRESENT}, {B: None})],
        True,
    ),
    "write skew over missing keys": (
        [_timed(1, 9, {B: None}, {A: None}), _timed(2, 8, {A: PRESENT}, {B: b"1"}),
         _timed(10, 11, {A: None, B: b"1"})],
        False,
    ),
    "each has not seen the other": (
        [_timed(1, 9, {B: None}, {A: None}), _timed(2, 8, {A: b"0"}, {B: b"1"}),
         _timed(3, 7, {B: None}, {A: b"3"}), _timed(10, 11, {A: b"0"})],
        False,
    ),
    "a blind delete is overtaken": (
        [_timed(1, 9, {}, {A: b"1", B: None}), _timed(2, 3, {B: None}, {B: b"2"}),
         _timed(4, 5, {A: b"0"}), _timed(10, 11, {A: b"1", B: b"2"})],
        False,
    ),
    "a dead one took effect": (
        [_timed(1, None, {A: b"0"}, {A: None, B: b"1"}), _timed(5, 6, {A: None, B: b"1"})], True,
    ),
    "a dead one took effect in part": (
        [_timed(1, None, {A: b"0"}, {A: None, B: b"1"}), _timed(5, 6, {A: None, B: None})], False,
    ),
    "in real time": ([_timed(1, 2, {}, {A: b"1"}), _timed(3, 4, {A: b"0"})], False),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_histories_in_which_keys_come_and_go_are_judged(name: str) -> None:
    history, right = HISTORIES[name]
    found = wrong_order(history, START)
    assert (found == "") == right, found
    assert right or "nothing explains" in found
