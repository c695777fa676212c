"""`limpet bench cache`: hit ratios that can be compared, and repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench.figures import hit_ratios
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build("benchmarks are not compiled")
REQUESTS = 30_000 if BUILD == "compiled" else 2000


def ratios(*arguments: str) -> Any:
    asked = ["bench", "cache", "--requests", str(REQUESTS), *arguments, "--json"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["ratios"]
    return {(each["stream"], each["policy"]): each["ratio"] for each in found}


@pytest.mark.skipif(BUILD != "compiled", reason="tens of thousands of requests")
def test_clock_keeps_what_is_read_through_a_scan() -> None:
    found = ratios("--streams", "scan", "--items", "200")
    assert found["scan", "limpet clock"] > found["scan", "exact LRU"] + 0.03
    assert found["scan", "limpet clock"] > found["scan", "limpet fifo"] + 0.03


def test_streams_are_the_same_again() -> None:
    for name in hit_ratios.STREAMS:
        keys = hit_ratios.stream(name, 5000, 7)
        assert len(keys) == 5000
        assert keys == hit_ratios.stream(name, 5000, 7)
        assert keys != hit_ratios.stream(name, 5000, 8)


def test_unknown_stream_is_refused() -> None:
    done = CliRunner().invoke(main, ["bench", "cache", "--streams", "zipf 3"])
    assert done.exit_code == 2
    assert "zipf 0.8" in done.output
