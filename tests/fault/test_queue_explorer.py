"""The shared queue under many schedules, with crashes and stalls; wrong ones are found out."""

from __future__ import annotations

from typing import Any

import pytest
from kit.mutants.queue import MUTANTS

import limpet
from limpet.fault.check.channel_history import judge_queue
from limpet.fault.check.history import Record
from limpet.fault.explore.sim_queue import QueueCluster, numbered_run

pytestmark = pytest.mark.either_build("the same lines on either build")

RUNS = 400 if limpet.build == "compiled" else 30


@pytest.mark.parametrize("maxsize", [1, 2])
def test_queue_is_one_under_many_schedules(maxsize: int) -> None:
    crashed = 0
    with QueueCluster(3, maxsize) as stage:
        for number in range(RUNS):
            run = numbered_run(stage, number)
            assert run.failure == "", (number, run.program, run.schedule)
            crashed += any(player.dead for player in run.clients)
    assert crashed > RUNS / 10


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_queue_is_found_out(mutant: Any) -> None:
    with QueueCluster(3, 2, mutant) as stage:
        assert any(numbered_run(stage, number).failure for number in range(3000))


def record(op: str, value: bytes, read: bytes | None, result: str, *times: int | None) -> Record:
    return Record(0, op, b"queue", value, result, read, times[0] or 0, times[1])


def test_histories_that_no_queue_has_are_refused() -> None:
    put_a = record("put", b"a", None, "ok", 1, 2)
    put_b = record("put", b"b", None, "ok", 3, 4)
    get_b = record("get", b"", b"b", "ok", 5, 6)
    get_a = record("get", b"", b"a", "ok", 7, 8)
    missing = record("get", b"", None, "missing", 5, 6)
    cut = record("get", b"", None, "unknown", 4, None)
    assert judge_queue([put_a, get_a]) == ""
    assert "history" in judge_queue([put_a, put_b, get_b, get_a])
    assert judge_queue([put_a, put_b, cut, get_b]) == ""
    assert "lost" in judge_queue([put_a, put_b, get_b])
    assert "twice" in judge_queue([put_a, get_a, get_a])
    assert "history" in judge_queue([put_a, missing, get_a])
