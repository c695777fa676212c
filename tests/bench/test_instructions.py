"""Instructions are counted, not timed: the same count comes out twice."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench import instructions
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

needs_valgrind = pytest.mark.skipif(bool(instructions.missing()), reason="needs valgrind")
compiled = pytest.mark.skipif(BUILD != "compiled", reason="valgrind is slow, Python under it more")


@pytest.mark.soak("callgrind takes its time")
@needs_valgrind
@compiled
def test_counts_come_out_alike() -> None:
    arguments = ["bench", "instructions", "--subjects", "race", "--only", "get"]
    results = [CliRunner().invoke(main, [*arguments, "--ops", "300", "--json"]) for _ in range(2)]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    first, second = (json.loads(result.stdout)["costs"] for result in results)
    assert [cost["operation"] for cost in first] == ["get"]
    for one, other in zip(first, second, strict=True):
        assert one["instructions"] == pytest.approx(other["instructions"], rel=0.01)
        assert 500 < one["instructions"] < 50_000


def test_what_is_not_counted_is_named() -> None:
    assert instructions.operations("rtx-sherman")[-3:] == (
        "transaction",
        "scan",
        instructions.NOTED,
    )
    with pytest.raises(ParameterError, match="'nothing' is not counted; race, "):
        instructions.operations("nothing")
