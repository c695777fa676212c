"""The works of the rack by processes of one machine; and that each of their verdicts can fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.processes import children

from limpet.fault.check.verify import FINAL
from limpet.fault.drill.counters import Counters
from limpet.fault.rack import record
from limpet.fault.rack.work import Work
from limpet.fault.rack.works import KINDS, work_of
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("the same lines on either build", but=["test_work_of*"])


@pytest.fixture
def made(tmp_path: Path) -> Iterator[record.Record]:
    with record.made(tmp_path / "record") as found:
        yield found


def clients_of(work: Work, pool: Any, path: Path, counters: Counters) -> list[Any]:
    """Three clients, in processes, on slots 0 to 2."""

    def client(slot: int) -> None:
        mine = pool.open(pool.url)
        work.work(mine, record.Record(path), slot, 1 + slot, counters.counter(slot))
        mine.close()

    return [lambda slot=slot: client(slot) for slot in range(3)]


@pytest.mark.exhaustive("seconds each", quick=["lock", "queue", "transactions-rtx-race"])
@pytest.mark.exhaustive_in_pure("seconds each", quick=["queue"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("swarm", "rcuckoo")])
def test_work_of_clients_of_which_one_is_killed_is_right(
    pools: Any, made: record.Record, tmp_path: Path, kind: str
) -> None:
    pool = pools(nodes=3, node_size=8 << 20)
    work = work_of(kind, 20)
    work.prepare(pool, made)
    counters = Counters(3)
    with children(clients_of(work, pool, tmp_path / "record", counters)) as started:
        end = time.monotonic() + 20
        while min(made.count(slot) for slot in range(3)) < 20:
            assert time.monotonic() < end
            time.sleep(0.01)
        deaths = {1: made.ticket()}
        os.kill(started[0][0], signal.SIGKILL)
        before = made.count(1)
        while made.count(1) < before + 20:
            assert time.monotonic() < end
            time.sleep(0.01)
        counters.stop()
        assert [os.waitpid(pid, 0)[1] for pid, _ in started] == [signal.SIGKILL, 0, 0]
    wrong = work.read(pool, made, FINAL)
    pool.recover()
    wrong += work.read(pool, made, FINAL)
    work.check(pool)
    assert wrong == []
    judged = work.judge(made, deaths, work.found(pool))
    assert judged == {check: [] for check in work.checks}
    assert pool.audit()["leaked"] == 0


def test_work_that_there_is_none_of_is_named() -> None:
    with pytest.raises(ParameterError, match="no kind 'locks': name lock, queue, counter"):
        work_of("locks", 1)
