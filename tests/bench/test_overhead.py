"""`limpet bench overhead`: the designs of an index side by side, repeatable, beside the paper."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench.figures import overhead
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

COMPILED = BUILD == "compiled"
SMALL = ["--clients", "2", "--ops", "6", "--keys", "60"]


def figures(*arguments: str) -> Any:
    done = CliRunner().invoke(main, ["bench", "overhead", *SMALL, *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def rows(index: str, mixes: str, clients: int, ops: int, keys: int) -> dict[Any, overhead.Row]:
    steps: list[str] = []
    asked = ((index,), tuple(mixes), (0.0,), clients)
    found = list(overhead.run(*asked, ops, keys, "rdma", 1, steps.append))
    assert len(steps) == 3 * len(found) == 3 * len(overhead.cells(*asked))
    return {(row.mix, row.clients): row for row in found}


@pytest.mark.exhaustive("two runs")
def test_equal_arguments_give_equal_figures() -> None:
    arguments = ["--index", "tree", "--mix", "D,E", "--theta", "0.99"]
    found = figures(*arguments)
    assert found == figures(*arguments)
    assert found != figures(*arguments, "--seed", "2")


@pytest.mark.exhaustive("every mix")
def test_every_design_runs_every_mix_that_it_can() -> None:
    found = figures("--theta", "0")
    assert [(row["index"], row["mix"], row["clients"]) for row in found] == [
        *(("tree", mix, clients) for mix in "ABCDE" for clients in (1, 2)),
        *(("hash", mix, clients) for mix in "ABCD" for clients in (1, 2)),
    ]
    for row in found:
        kinds = {design: report["workload"]["store"] for design, report in row["reports"].items()}
        assert kinds == overhead.INDEXES[row["index"]].kinds
        for design, report in row["reports"].items():
            assert sum(kind["count"] for kind in report["kinds"]) == 2 * 6
            assert row["share"][design] == row["throughput"][design] / row["throughput"]["Optimal"]
            assert row["times"][design] == row["latency_ns"][design] / row["latency_ns"]["Optimal"]
        assert row["share"]["Optimal"] == row["times"]["Optimal"] == 1
        assert all(value > 0 for value in row["share"].values())


@pytest.mark.exhaustive("every mix")
def test_the_mixes_are_those_of_the_paper() -> None:
    ops = 400 if COMPILED else 100
    found = rows("tree", "ABCDE", 1, ops, 60)
    expected = {
        "A": {"get": 0.5, "update": 0.5},
        "B": {"get": 0.9, "update": 0.1},
        "C": {"get": 1.0},
        "D": {"get": 0.95, "insert": 0.05},
        "E": {"scan": 0.95, "insert": 0.05},
    }
    for mix, shares in expected.items():
        for report in found[mix, 1].reports.values():
            counts = {kind.kind: kind.count / ops for kind in report.kinds}
            assert counts == pytest.approx(shares, abs=0.08)


def test_one_client_pays_for_what_a_design_adds() -> None:
    """Of a read from a tree, rTX's metadata, in the round trip of the node, as a client that is
    alone guesses its pointer right; of RACE's operations, a word that counts changes."""
    trees = rows("tree", "CA", 1, 20, 200)
    gets = {design: report.kinds[0] for design, report in trees["C", 1].reports.items()}
    assert gets["Optimal"].round_trips == gets["DTX"].round_trips == 1
    assert gets["rTX"].round_trips == 1
    assert gets["rTX"].bytes_read == gets["Optimal"].bytes_read + 16
    assert trees["C", 1].times["rTX"] == pytest.approx(1.01, abs=0.01)
    assert trees["C", 1].paper.share == 0.92
    assert trees["A", 1].paper == overhead.Paper(0.87)
    assert trees["A", 1].paper_latency == "1.6-2"
    assert 1.05 < trees["A", 1].times["rTX"] < 1.3
    (hashed,) = rows("hash", "A", 1, 20, 200).values()
    assert hashed.share["rTX"] == pytest.approx(1, abs=0.005)
    assert hashed.share["DTX"] < 1


@pytest.mark.exhaustive("many clients")
def test_figure_13_has_clients_in_between() -> None:
    found = rows("tree", "A", 16, 4, 200)
    assert list(found) == [("A", 1), ("A", 4), ("A", 16)]
    for design in overhead.DESIGNS:
        throughput = [row.throughput[design] for row in found.values()]
        assert throughput == sorted(throughput)
    assert [row.paper_latency for row in found.values()] == ["1.6-2", None, None]


def test_the_command_prints_its_tables() -> None:
    command = ["bench", "overhead", *SMALL, "--mix", "A"]
    shown = CliRunner().invoke(main, command, env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    for text in ("figures 11 and 12", "figure 13", "one client", "87%", "58%", "1.2-2", "1.6-2"):
        assert text in shown.stdout
    assert "Not modelled" in shown.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ["--mix", "Q"], ["--index", "list"], ["--clients", "0"], ["--theta", "11"],
        ["--index", "hash", "--mix", "E"],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong: list[str]) -> None:
    assert CliRunner().invoke(main, ["bench", "overhead", *SMALL, *wrong]).exit_code == 2


def test_a_hash_table_has_no_scans() -> None:
    with pytest.raises(ParameterError, match="no mix E"):
        overhead.cells(("hash",), ("E",), (0.0,), 4)
