"""Clients that are killed, or cut off, while others work: they are repaired, and nothing leaks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit.waiting import long_enough

import limpet
from limpet.bench.cli import bench
from limpet.bench.figures import kills
from limpet.bench.figures.kills import Kills, Setting
from limpet.fault.inject.cut_off import CutOffPool, Gone

pytestmark = pytest.mark.either_build("benchmarks are not compiled")


def no_pool_is_left() -> bool:
    return not list(Path("/dev/shm").glob(f"limpet.limpet-kills-{os.getpid()}.*"))


@pytest.mark.exhaustive("seconds of processes each")
@pytest.mark.parametrize("store", ["rcuckoo", "race"])
@pytest.mark.parametrize("emulate", [False, True])
def test_clients_die_and_nothing_is_lost(store: str, emulate: bool) -> None:
    def run(seconds: float) -> Kills:
        return kills.run(Setting(store, 2, 10.0, seconds, keys=50, emulate=emulate))

    found = long_enough(run, lambda found: found.repairs and found.operations_per_s, 1.5)
    assert 0 < found.repairs <= found.kills + 2
    assert found.operations_per_s > 0
    assert found.leaked == 0
    assert found.took_p50 is not None
    assert found.took_p50 <= (found.took_max or 0)
    assert (found.idle_per_s is None) == emulate
    assert no_pool_is_left()


def test_without_kills_nothing_is_repaired() -> None:
    found = kills.run(Setting("rcuckoo", 2, 0.0, 0.3, keys=50))
    assert (found.kills, found.repairs, found.took_p50, found.idle_per_s) == (0, 0, None, None)


def test_a_value_that_is_not_whole_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "value_of", lambda number, incarnation: b"x" * kills.VALUE_SIZE)
    with pytest.raises(limpet.LimpetError, match="StoreCorrupt"):
        kills.run(Setting("race", 2, 0.0, 60.0, keys=5))
    assert no_pool_is_left()


@pytest.mark.parametrize("store", ["rcuckoo", "race"])
def test_a_client_is_cut_off_at_each_step_of_an_update(store: str) -> None:
    """The next client of its own process repairs what it has left."""
    url = f"shm://limpet-remotely_fenced-{os.getpid()}"
    with CutOffPool.create(url, nodes=1, node_size="2MiB") as pool:
        limpet.destroy(url)
        made = pool.store(store, name="s", capacity=8)
        made.put(b"key", b"old")
        cut = 0
        while died(pool, made, cut + 1):
            cut += 1
            assert made.get(b"key") in (b"old", b"new")
            made.put(b"key", b"old")
        assert cut
        assert made.get(b"key") == b"new"
        made.check()
        assert pool.audit()["leaked"] == 0
        recovered = [event for event in pool.events() if event["kind"] == "recovered"]
        assert len(recovered) == cut


def died(pool: CutOffPool, store: Any, steps: int) -> bool:
    pool.endpoint.steps = steps
    try:
        store.update(b"key", b"new")
    except Gone:
        pool.reborn()
        return True
    finally:
        pool.endpoint.steps = 0
    return False


@pytest.mark.exhaustive("seconds of processes")
def test_command_prints_json_and_a_table() -> None:
    few = ["kills", "--rates", "30", "--processes", "2", "--seconds", "0.3", "--keys", "20"]
    result = CliRunner().invoke(bench, [*few, "--emulate", "--json"])
    assert result.exit_code == 0, result.output
    calm, busy = (Kills(**one) for one in json.loads(result.stdout))
    assert (calm.rate, busy.rate) == (0, 30)
    result = CliRunner().invoke(bench, few)
    assert result.exit_code == 0, result.output
    assert "processes are killed" in result.stdout


def test_command_refuses_a_negative_rate() -> None:
    result = CliRunner().invoke(bench, ["kills", "--rates", "-5"])
    assert result.exit_code == 2
    assert "negative" in result.output
