"""`limpet bench net`: a small run, its rows, and what is missing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from limpet.bench.cli import bench
from limpet.bench.peers import net

pytestmark = pytest.mark.skipif(bool(net.refused()), reason=net.refused() or "-")


def test_rows_have_messages_and_ratios_to_tcp_of_the_same_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net.RedisDriver, "missing", lambda self: "it is not installed")
    arguments = ["net", "--rounds", "1", "--seconds", "0.002", "--kills", "1", "--json"]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert "missing: redis: it is not installed" in result.stderr
    rows = {row["subject"]: row for row in found["rows"]}
    assert rows[net.TCP]["ratio"] == 1
    assert rows[net.TCP]["messages"] is None
    assert {name: rows[name]["messages"] for name in ("race get", "swarm 16 gets in a window")} == {
        "race get": 2,
        "swarm 16 gets in a window": 1,
    }
    assert all(row["least_us"] > 0 for row in rows.values())
    assert [one["clients"] for one in found["crowds"]] == 4 * [1, 2, 3, 4]
    assert all(one["a_second"] > 0 for one in found["crowds"])
    assert [one["kills"] for one in found["losses"]] == [1, 1]
    assert not list(Path("/dev/shm").glob(f"limpet.bench-{os.getpid()}-net*"))
