"""The shared queue under many schedules, with crashes and stalls; wrong ones are found out."""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter, deque
from typing import Any

import pytest
from kit.known_bad import first_failure
from kit.mutants.queue import MUTANTS
from kit.parts import is_fair

import limpet
from limpet.fault.check.channel_history import _queue_op, judge, judge_queue
from limpet.fault.check.history import Record
from limpet.fault.check.linearize import Timed
from limpet.fault.check.models import QueueModel
from limpet.fault.explore.explorer import Exploration, run_batch
from limpet.fault.explore.sim_subjects import CHANNELS

pytestmark = pytest.mark.either_build("the same lines on either build")

RUNS = 250 if limpet.build == "compiled" else 30


def exploration(maxsize: int, schedules: int) -> Exploration:
    return Exploration("queue", ops=3, schedules=schedules, parameters={"maxsize": maxsize})


@pytest.mark.parametrize("maxsize", [1, 2])
def test_queue_is_one_under_many_schedules(maxsize: int) -> None:
    tally = run_batch(exploration(maxsize, RUNS), range(RUNS))
    assert not tally.failed
    assert is_fair(tally.crashes, RUNS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_queue_is_found_out(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(CHANNELS["queue"], cls=mutant)
    monkeypatch.setitem(CHANNELS, "queue", row)
    assert first_failure(exploration(2, 30_000))


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


def test_monitor_gives_the_verdict_of_the_exhaustive_search() -> None:
    """On thousands of small histories: of queues, with some results exchanged."""
    found: Counter[str] = Counter()
    for number in range(4000):
        history = _drawn_history(random.Random(number))
        fault = judge_queue(history)
        sure = _searched(history)
        assert bool(fault) == bool(sure), (number, fault, sure, history)
        found[re.sub(r"b'.*?'|[0-9]+", "_", fault)] += 1
    kinds = ("finds nothing", "got first", "before it is put", "was not put", "twice", "lost")
    assert all(any(kind in fault for fault in found) for kind in kinds), found
    assert found[""] > 500
    assert len(found) > 5


def test_long_history_is_judged_without_a_search() -> None:
    """Of eight clients that are never all outside, where a search gives up."""
    history = _drawn_history(random.Random(1), clients=8, calls=20_000, wrong=False)
    assert judge_queue(history, budget=1) == ""


def _drawn_history(
    draw: random.Random, clients: int = 3, calls: int = 7, wrong: bool = True
) -> list[Record]:
    """Calls that take effect at a moment between call and return, and are cut now and then; then
    all values are got. `wrong`: some results are exchanged."""
    now = 0
    inside: deque[bytes] = deque()
    history: list[Record] = []
    open_: dict[int, list[Any]] = {}
    left, cuts = calls, draw.choice((0, 0, 1, 2)) if wrong else 0
    while left or open_:
        now += draw.randrange(2)
        client = draw.randrange(clients)
        if client not in open_:
            if left:
                left -= 1
                op = draw.choice(("put", "get"))
                value = b"%d" % left if op == "put" else None
                open_[client] = [op, value, now, None]
        elif open_[client][3] is None:
            op, value, _, _ = open_[client]
            if op == "put":
                inside.append(value)
                open_[client][3] = "ok", None
            else:
                read = inside.popleft() if inside else None
                open_[client][3] = ("missing" if read is None else "ok"), read
            if cuts and draw.random() < 0.3:
                cuts -= 1
                op, value, called, _ = open_.pop(client)
                history.append(Record(client, op, b"queue", value, "unknown", None, called, None))
        else:
            op, value, called, (result, read) = open_.pop(client)
            history.append(Record(client, op, b"queue", value, result, read, called, now))
    if wrong and draw.random() < 0.7:
        gets = [at for at, one in enumerate(history) if one.op == "get" and one.return_ns]
        if len(gets) > 1:
            one, other = draw.sample(gets, 2)
            first, second = history[one], history[other]
            history[one] = first._replace(result=second.result, read=second.read)
            if draw.random() < 0.8:
                history[other] = second._replace(result=first.result, read=first.read)
            elif first.read:
                history[one] = first._replace(read=b"never put")
    while inside:
        now += 2
        history.append(Record(9, "get", b"queue", None, "ok", inside.popleft(), now, now + 1))
    return [*history, Record(9, "get", b"queue", None, "missing", None, now + 3, now + 4)]


def _searched(history: list[Record]) -> str:
    """The fault by search alone, with nothing left out: an unknown call may have had no effect."""
    timed = [
        Timed(_queue_op(one), one.call_ns, one.return_ns) for one in history if one.result != "full"
    ]
    return judge(QueueModel(), timed, 2_000_000)
