"""The steps from Sherman to rTX: counted, repeatable, and in the paper's order."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench.figures import factors
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

COMPILED = BUILD == "compiled"


def test_steps_add_what_the_paper_says() -> None:
    """One client's inserts, few of which split a node."""
    ops = 12 if COMPILED else 4
    found = {one.step.name: one for one in factors.run(3, ops, 200, "rdma", 1)}
    alone = {name: one.alone for name, one in found.items()}
    assert alone["Optimal"].bytes_read == 1024
    assert alone["Optimal"].bytes_written == 1024 + 8
    assert alone["Optimal"].atomics == 1
    assert alone["+OCC"].bytes_read == 1024 + 16
    assert alone["+OCC"].bytes_written == 1024 + 8
    assert alone["+ICommit"].atomics == 3
    assert alone["+ICommit"].bytes_written == 1024
    assert alone["+Log"].bytes_written > 2 * 1024
    assert alone["+Log"].mean_ns > 1.3 * alone["+ICommit"].mean_ns
    assert alone["DTX"].atomics == 1
    assert alone["+Separate"].bytes_written < alone["+Log"].bytes_written - 700
    assert alone["+Opt1"].atomics < alone["+Separate"].atomics
    assert alone["+Opt1"].mean_ns < 0.8 * alone["+Separate"].mean_ns
    assert found["+Opt1"].throughput > 1.15 * found["+Separate"].throughput
    assert all(one.clients == 3 and one.throughput > 0 for one in found.values())


@pytest.mark.skipif(not COMPILED, reason="twice all steps")
def test_the_command_prints_them() -> None:
    arguments = ["bench", "factors", "--clients", "2", "--ops", "2", "--keys", "20"]
    shown = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    for step in (*factors.STEPS, factors.DTX):
        assert step.name in shown.output
    found = CliRunner().invoke(main, [*arguments, "--json"])
    assert [one["step"]["name"] for one in json.loads(found.output)] == [
        step.name for step in (*factors.STEPS, factors.DTX)
    ]
