"""The works of the rack by processes of one machine; and that each of their verdicts can fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.processes import children, end, exit_codes, fork
from kit.waiting import until

pytest.importorskip("limpet.fault.rack", reason="no wheel has it")

from limpet.fault.check.recorder import NOTE, Operation, Result
from limpet.fault.check.self_check import identity
from limpet.fault.check.verify import FINAL
from limpet.fault.inject.counters import Counters
from limpet.fault.rack import record
from limpet.fault.rack.work import HISTORY, Work
from limpet.fault.rack.work_channels import (
    COUNTED,
    EVERY,
    EXCLUDED,
    GIVEN,
    INHERITED,
    TOGETHER,
)
from limpet.fault.rack.works import KINDS, work_of
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("the same lines on either build", but=["test_work_of*"])


@pytest.fixture
def made(tmp_path: Path) -> Iterator[record.Record]:
    with record.made(tmp_path / "record") as found:
        yield found


def clients_of(work: Work, pool: Any, path: Path, counters: Counters) -> list[Any]:
    """Four clients, in processes, on slots 0 to 3."""

    def client(slot: int) -> None:
        mine = pool.open(pool.url)
        work.work(mine, record.Record(path), slot, 1 + slot, counters.counter(slot))
        mine.close()

    return [lambda slot=slot: client(slot) for slot in range(4)]


@pytest.mark.exhaustive("seconds each", quick=["lock", "queue", "transactions-rtx-race"])
@pytest.mark.exhaustive_in_pure("seconds each", quick=["queue"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("swarm", "rcuckoo")])
def test_work_of_clients_of_which_one_is_killed_is_right(
    pools: Any, made: record.Record, tmp_path: Path, kind: str
) -> None:
    pool = pools(nodes=3, node_size=8 << 20)
    work = work_of(kind, 20)
    work.prepare(pool, made)
    counters = Counters(4)
    with children(clients_of(work, pool, tmp_path / "record", counters)) as started:
        until(lambda: min(made.count(slot) for slot in range(4)) >= 20)
        deaths = {1: made.ticket()}
        os.kill(started[0][0], signal.SIGKILL)
        before = made.count(1)
        until(lambda: made.count(1) >= before + 20)
        counters.stop()
        assert [os.waitpid(pid, 0)[1] for pid, _ in started] == [signal.SIGKILL, 0, 0, 0]
    wrong = work.read(pool, made, FINAL)
    pool.recover()
    wrong += work.read(pool, made, FINAL)
    work.check(pool)
    assert wrong == []
    judged = work.judge(made, deaths, work.found(pool))
    assert judged == {check: [] for check in work.checks}
    assert pool.audit()["leaked"] == 0


@pytest.mark.exhaustive_in_pure("seconds of processes")
def test_barrier_leaves_no_client_out_when_others_come_in_place_of_the_dead(
    pools: Any, made: record.Record, tmp_path: Path
) -> None:
    pool = pools(node_size=8 << 20)
    work = work_of("barrier", 1)
    work.prepare(pool, made)
    counters = Counters(4)

    def started(slot: int, incarnation: int) -> int:
        def client() -> None:
            with pool.open(pool.url) as mine:
                work.work(mine, record.Record(tmp_path / "record"), slot, incarnation,
                          counters.counter(slot))  # fmt: skip

        return fork(client)

    def at_work(slot: int, count: int) -> None:
        until(lambda: made.count(slot) >= count)

    pids = [started(slot, 1 + slot) for slot in range(4)]
    try:
        for slot in range(4):
            at_work(slot, 20)
        for number in range(6):
            slot = number % 4
            end(pids[slot])
            pids[slot] = started(slot, 10 + number)
            at_work(slot, made.count(slot) + 100)
        counters.stop()
        assert exit_codes(pids) == [0] * 4
    finally:
        for pid in pids:
            end(pid)
    assert work.judge(made, {}, work.found(pool)) == {check: [] for check in work.checks}


def test_work_that_there_is_none_of_is_named() -> None:
    with pytest.raises(ParameterError, match="no kind 'locks': name lock, queue, counter"):
        work_of("locks", 1)


# ---- verdicts ------------------------------------------------------------------------------------


class Noted:
    """A record in which these notes are: client, operation, result, value, read, call, return."""

    def __init__(self, *notes: tuple[int, Operation, Result, int, int, int, int]) -> None:
        self._notes = np.array(
            [(client, op, result, 0, *rest) for client, op, result, *rest in notes], NOTE
        )

    def notes(self) -> Any:
        return self._notes


def wrong(kind: str, notes: Any, found: dict[str, Any], deaths: Any = None) -> set[str]:
    """The checks that do not hold."""
    made: Any = Noted(*notes)
    return {check for check, words in work_of(kind, 1).judge(made, deaths or {}, found).items()
            if words}  # fmt: skip


TAKE, RELEASE, OK = Operation.INSERT, Operation.DELETE, Result.OK
TURN_1 = [(1, TAKE, OK, 0, 1, 1, 2), (1, RELEASE, OK, 1, 0, 5, 6)]
TURN_2 = [(2, TAKE, OK, 0, 1, 7, 8), (2, RELEASE, OK, 2, 0, 9, 10)]


def test_turns_of_a_lock_that_exclude_each_other_are_right() -> None:
    assert wrong("lock", [*TURN_1, *TURN_2], {"count": [2, 2]}) == set()
    cut = [(1, TAKE, OK, 0, 1, 1, 2), (2, TAKE, OK, 0, INHERITED, 7, 8), TURN_2[1]]
    assert wrong("lock", cut, {"count": [2, 2]}, {1: 3}) == set()


def test_lock_that_a_living_client_lost_is_caught() -> None:
    stolen = [TURN_1[0], (2, TAKE, OK, 0, 1, 3, 4), TURN_1[1]]
    assert wrong("lock", stolen, {"count": [1, 1]}) == {HISTORY}


def test_store_of_a_client_that_lost_the_lock_is_caught() -> None:
    """It woke up when another client had the lock, and set the count back."""
    late = [TURN_1[0], (2, TAKE, OK, 0, INHERITED, 7, 8), (2, RELEASE, OK, 1, 0, 9, 10),
            (2, TAKE, OK, 0, 1, 11, 12), (2, RELEASE, OK, 1, 0, 13, 14)]  # fmt: skip
    assert wrong("lock", late, {"count": [1, 1]}, {1: 3}) == {EXCLUDED}
    assert wrong("lock", [*TURN_1, *TURN_2], {"count": [1, 1]}) == {EXCLUDED}
    assert wrong("lock", [*TURN_1, *TURN_2], {"count": [3, 2]}) == {EXCLUDED}


def test_inherited_lock_of_which_no_client_was_told_is_caught() -> None:
    cut = [(1, TAKE, OK, 0, 1, 1, 2), *TURN_2]
    assert wrong("lock", cut, {"count": [2, 2]}, {1: 3}) == {HISTORY}


ONE, TWO = identity(1, 1), identity(1, 2)
PUT, GET = Operation.PUT, Operation.GET
PUTS = [(1, PUT, OK, ONE, 0, 1, 2), (1, PUT, OK, TWO, 0, 3, 4)]


def test_element_of_a_queue_that_came_late_twice_or_never_is_caught() -> None:
    gets = [(2, GET, OK, 0, ONE, 5, 6), (2, GET, OK, 0, TWO, 7, 8)]
    none: dict[str, Any] = {"lost": []}
    assert wrong("queue", [*PUTS, *gets], none) == set()
    backwards = [(2, GET, OK, 0, TWO, 5, 6), (2, GET, OK, 0, ONE, 7, 8)]
    assert wrong("queue", [*PUTS, *backwards], none) == {HISTORY}
    assert wrong("queue", [*PUTS, *gets, (2, GET, OK, 0, ONE, 9, 10)], none) == {HISTORY}
    cut = [*PUTS, (3, GET, Result.UNKNOWN, 0, 0, 5, 0), gets[1]]
    assert wrong("queue", cut, none) == {GIVEN}
    assert wrong("queue", cut, {"lost": [ONE]}) == set()
    assert wrong("queue", [*PUTS, gets[1]], {"lost": [ONE]}) == {HISTORY}


def test_addition_that_is_lost_or_made_twice_is_caught() -> None:
    adds = [(1, Operation.UPDATE, OK, 0, 1, 1, 2), (2, Operation.UPDATE, OK, 0, 2, 1, 2)]
    cut = (3, Operation.UPDATE, Result.UNKNOWN, 0, 0, 3, 0)
    assert wrong("counter", [*adds, cut], {"count": 3}) == set()
    assert wrong("counter", [*adds, cut], {"count": 2}) == set()
    assert wrong("counter", [*adds, cut], {"count": 4}) == {COUNTED}
    assert wrong("counter", [*adds, cut], {"count": 1}) == {COUNTED}
    assert wrong("counter", [adds[0], adds[0]], {"count": 2}) == {COUNTED}


def test_barrier_that_let_a_client_pass_alone_or_left_one_out_is_caught() -> None:
    def rounds(*passed: tuple[int, int, int, int]) -> list[Any]:
        """Of each: client, round, ticket of the call and of the return."""
        return [(client, Operation.UPDATE, OK, 0, number, call, back)
                for client, number, call, back in passed]  # fmt: skip

    whole: dict[str, Any] = {"broken": False}
    right = rounds((1, 0, 1, 3), (2, 0, 2, 4), (1, 1, 5, 7), (2, 1, 6, 8))
    cut = (3, Operation.UPDATE, Result.UNKNOWN, 0, 0, 3, 0)
    assert wrong("barrier", [*right, cut], whole) == set()
    assert wrong("barrier", right, {"broken": True}) == {EVERY}
    assert wrong("barrier", rounds((1, 0, 1, 2), (2, 0, 3, 4)), whole) == {TOGETHER}
    skipped = rounds((1, 0, 1, 3), (2, 0, 2, 4), (1, 1, 5, 6), (1, 2, 7, 9), (2, 2, 8, 10))
    assert wrong("barrier", skipped, whole) == {EVERY}
    assert wrong("barrier", rounds((1, 0, 1, 4), (1, 0, 2, 5)), whole) == {EVERY}
