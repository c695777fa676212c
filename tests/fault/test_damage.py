"""Damaged memory: no signal, no hang, no memory without bound, and documented errors; known-bad
variants that the drill has to see."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kit.parts import IS_LONG

import limpet
from limpet.fault.drill import damage, damage_work
from limpet.fault.drill.damage import OUTCOMES, Draw, Drill, kinds, run
from limpet.fault.drill.damage_work import Findings, StoreSubject
from limpet.fault.matrix.fault_profile import Checksum, profile_of
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.clients.writer_numbers import number_address
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import CLOCK
from limpet.stores.registry import KINDS, UNPROVED, UNRECOVERED

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

COMPILED = BUILD == "compiled"
CASES = 9 if IS_LONG else 4 if COMPILED else 2
SEED = 1


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(damage_work, "CASE_S", 0.7)
    yield
    assert not list(SHM_DIR.glob(f"limpet.limpet-damage-{os.getpid()}-*"))


# ---- what ships ---------------------------------------------------------------------------------


@pytest.mark.either_build("thousands of words", but=["race", "queue"])
@pytest.mark.exhaustive("every kind", quick=["race", "swarm", "queue", "lock"])
@pytest.mark.parametrize("kind", kinds())
def test_damaged_memory_is_borne(kind: str) -> None:
    """Cases of all kinds; thousands in `make soak`."""
    report = run(kind, CASES, SEED)
    assert [(case.number, case.failures) for case in report.failed] == []
    assert report.verdict == "ok"
    assert report.cases == sum(report.outcomes.values()) == CASES
    assert tuple(report.outcomes) == OUTCOMES


def test_all_kinds_are_damaged() -> None:
    assert set(kinds()) >= {*KINDS, *UNRECOVERED, *UNPROVED}


def test_a_case_is_drawn_from_seed_kind_and_number_alone() -> None:
    """And not from what is in memory: pids, times and marks differ from run to run."""
    drawn = []
    for _ in range(2):
        with Drill("race", SEED) as drill:
            image = drill._sound()
            drawn.append([Draw(image, SEED, "race", number).all() for number in range(50)])
    places = [[[(d.part, d.segment, len(d.data)) for d in case] for case in run_] for run_ in drawn]
    assert places[0] == places[1]
    same = sum(one == other for one, other in zip(*drawn, strict=True))
    assert same > 40  # others copy a word, and that may be a pid or a time


def test_every_kind_says_what_is_under_a_checksum() -> None:
    for kind in (*KINDS, *UNRECOVERED, *UNPROVED):
        assert profile_of(kind).checksum.text
    with Drill("queue", SEED) as drill:
        assert drill.subject.checksum.startswith("none: ")


@pytest.mark.parametrize("kind", ["rtx-sherman", "swarm"])
def test_a_damaged_clock_is_refused(pools: Any, kind: str) -> None:
    """A timestamp above all ones would be 0, which compiled code took for an exception's: a signal
    (SIGSEGV)."""
    pool = pools(nodes=3, node_size="4MiB")
    pool.store(kind, name="store", **profile_of(kind).matrix_parameters).put(b"key", b"value")
    pools.again(pool).close()
    for clock in ((1 << 64) - 1, 1 << 50):
        swarm = kind == "swarm"  # whose writers have numbers
        at = number_address(1) + 8 if swarm else slot_address(1) + CLOCK
        pool.endpoint.store(at, clock)
        store = pools.again(pool).store(kind, name="store")
        for _ in range(2):
            with pytest.raises(limpet.PoolCorrupt, match="clock"):
                store.put(b"key", b"another")
        assert store.get(b"key") == b"value"
        store.pool.close()


def test_a_cache_counts_in_the_line_of_its_slot_whatever_the_slots_word_is(pools: Any) -> None:
    """A damaged word made it look for another client's line: TypeError."""
    pool = pools(node_size="8MiB")
    cache = pool.cache("cache")
    word = pool.endpoint.load(pool.client.slot)
    pool.endpoint.store(pool.client.slot, word ^ 1)
    cache["key"] = "value"
    assert cache["key"] == "value"
    pool.endpoint.store(pool.client.slot, word)
    assert cache.stats()["hits"] == 1


# ---- known-bad variants -------------------------------------------------------------------------


def drill_with(monkeypatch: pytest.MonkeyPatch, worse: Any, cases: int = 1) -> damage.Report:
    """The drill's report of `race` when a case also does this, once there is damage."""

    def look_around(found: Findings, pool: Any) -> None:
        found.attempt("what is worse", lambda: worse(pool))

    monkeypatch.setattr(damage_work, "look_around", look_around)
    monkeypatch.setattr(damage_work, "CASE_S", 60.0)
    report = run("race", cases, SEED)
    assert report.verdict == "FAILED"
    assert report.failed[0].damages
    return report


def test_an_end_by_a_signal_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    report = drill_with(monkeypatch, lambda pool: os.kill(os.getpid(), signal.SIGSEGV))
    failure = report.failed[0].failures[0]
    assert failure.startswith("SIGSEGV: in what is worse\n")
    assert "Segmentation fault" in failure
    assert "test_damage.py" in failure


def test_a_loop_without_end_is_seen_with_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "CPU_S", 0.3)

    def spin(pool: Any) -> None:
        while True:
            pass

    failure = drill_with(monkeypatch, spin).failed[0].failures[0]
    assert failure.startswith("hang: in what is worse\n")
    assert "in spin" in failure


@pytest.mark.exhaustive("waits for what hangs")
def test_a_wait_without_end_is_seen_with_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "WALL_S", 2.0)

    def wait(pool: Any) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        time.sleep(1000)

    failure = drill_with(monkeypatch, wait).failed[0].failures[0]
    assert failure.startswith("hang: in what is worse\n")
    assert "in wait" in failure


def test_memory_without_bound_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = drill_with(monkeypatch, lambda pool: bytes(1 << 40)).failed[0].failures[0]
    assert failure.startswith("error: what is worse: ")
    assert "MemoryError" in failure


def test_an_error_that_is_not_documented_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = drill_with(monkeypatch, lambda pool: b"\xff".decode()).failed[0].failures[0]
    assert "UnicodeDecodeError" in failure


@pytest.mark.exhaustive("many runs")
def test_a_damaged_value_is_a_failure_where_there_is_a_checksum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`race` has none: as one that says it had, it is caught; as it is, its cases are counted."""
    assert any(run("race", 12, seed).outcomes["damaged"] for seed in range(50))
    made = StoreSubject.__init__

    def boasting(self: StoreSubject, kind: str) -> None:
        made(self, kind)
        self.profile = dataclasses.replace(
            self.profile, checksum=Checksum(1 << 40, "of everything")
        )

    monkeypatch.setattr(StoreSubject, "__init__", boasting)
    failed = next(filter(None, (run("race", 12, seed).failed for seed in range(50))))
    assert failed[0].failures[0].startswith("damaged: ")
