"""Lines of memory are counted, not timed: an operation touches no more than these."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench import lines

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

MOST = {
    ("race", "get"): (10, 0),
    ("race", "update"): (16, 8),
    ("race", "insert"): (13, 7),
    ("fusee", "get"): (7, 0),
    ("fusee", "update"): (18, 14),
    ("loco", "get"): (5, 1),
    ("loco", "update"): (9, 7),
}
"""Lines touched, and those of them that are changed, rounded up."""


@pytest.mark.parametrize(("subject", "operation"), MOST)
def test_operations_touch_few_lines(subject: str, operation: str) -> None:
    (found,) = lines.run([(subject, operation)], 200)
    touched, changed = MOST[subject, operation]
    assert touched - 2 < found.lines <= touched
    assert changed - 2 < found.changed <= changed
    assert 1 <= found.control < found.lines


def test_lines_of_several_words_are_counted_once() -> None:
    endpoint = lines.LinesEndpoint()
    for verb, addr, words in (("load", 64, 1), ("read", 120, 9), ("store", 127, 1)):
        assert endpoint.on_verb(verb, addr, words) == words
    assert endpoint.touched == {1, 2}
    assert endpoint.changed == {1}


def test_command_prints_what_was_counted() -> None:
    arguments = ["bench", "lines", "--subjects", "counter", "--only", "add", "--ops", "10"]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["lines"]
    assert found["lines"] >= found["changed"] > 0
    assert "add" in CliRunner().invoke(main, arguments).output
    assert CliRunner().invoke(main, ["bench", "lines", "--subjects", "nothing"]).exit_code == 2
