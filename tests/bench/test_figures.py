"""`limpet bench figures`: the verdicts, the page, and counts and orders of each entry, quickly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from limpet.__main__ import main
from limpet.bench.figures import entries, fusee_entries, rcuckoo_entries
from limpet.bench.figures.entries import Entry, Found, Point, Run, Scale
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

COMPILED = BUILD == "compiled"
OTHER_WAY_ROUND = {
    ("fusee", "2"): "clover, over 6",
    ("fusee", "10"): "(INSERT|UPDATE|SEARCH), median",
    ("fusee", "11"): "(INSERT|UPDATE|DELETE), over",
    ("fusee", "13"): "C, .*fusee and clover|A, 24",
    ("fusee", "15"): "(half|all), .*no cache and fusee",
    ("fusee", "19"): "DELETE, 1 replicas",
    ("fusee", "table 1"): "ms: (attach|objects) and",
    ("rcuckoo", "5"): "99th percentile: .*512 rows a lock",
    ("rcuckoo", "6"): "24 clients, over rcuckoo's",
    ("rcuckoo", "7"): "fusee and empty",
    ("rcuckoo", "8d"): "A, over",
    ("loco", "5"): "uniform A|2 threads",
}
"""Pairs that may be the other way round, by entry: it says why, or there are few operations."""


def judged(*points: Point, order: Any = ()) -> Found:
    entry = Entry("1", "title", "unit", "said", lambda scale: Run({}, points), order)
    return entries.judge("paper", entry, Scale())


def pair(low: float, high: float) -> tuple[Point, Point]:
    return Point("group", "low", low, 1.0), Point("group", "high", high, (3.0, 4.0))


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ((1.0, 3.5), "same order, within a factor of 1.00"),
        ((1.0, 6.0), "same order, within a factor of 1.50"),
        ((0.1, 3.0), "same order"),
        ((2.0, 2.0), "other way round"),
    ],
)
def test_verdicts(ours: tuple[float, float], verdict: str) -> None:
    assert judged(*pair(*ours)).verdict == verdict


def test_values_that_the_paper_has_no_numbers_for_have_an_order_at_most() -> None:
    points = (Point("group", "a", 2.0), Point("group", "b", 1.0), Point("other", "a", 0.0))
    assert judged(*points).verdict == "same order"
    found = judged(*points, order=(("a", "b"),))
    assert (found.verdict, found.wrong) == ("other way round", ["group: a and b"])


def test_nothing_where_the_paper_has_nothing_is_within_any_factor() -> None:
    assert Point("group", "a", 0.0, 0.0).factor == 1
    assert (
        Point("group", "a", 0.1, 0.0).factor == Point("group", "a", 0.0, 1.0).factor == float("inf")
    )


def test_the_page_keeps_the_other_papers() -> None:
    first = entries.with_section(
        "", "rtx", entries.section("rtx", [judged(*pair(1, 3))], ["a model"])
    )
    both = entries.with_section(first, "loco", entries.section("loco", [judged()], []))
    again = entries.with_section(both, "rtx", "## rtx\n\nnew\n")
    assert first.startswith("# The papers' figures")
    assert "within a factor of 1.00" in first
    assert both.index("## loco") < both.index("## rtx") < both.index("a model")
    assert "new" in again
    assert "a model" not in again
    assert again.count("## loco") == 1


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "figures", *arguments])


def quick(paper: str, *names: str) -> dict[str, Any]:
    done = call(paper, *names, "--quick", "--json")
    assert done.exit_code == 0, done.output
    return {one["name"]: one for one in json.loads(done.stdout)["entries"]}


def values(entry: Any) -> dict[tuple[str, str], float]:
    return {(point["group"], point["name"]): point["ours"] for point in entry["points"]}


def test_entries_of_rtx_have_the_papers_counts() -> None:
    found = quick("rtx", "table 2", "17")
    assert found == quick("rtx", "table 2", "17")
    assert found["table 2"]["verdict"].startswith("same order, within a factor of 1.0")
    steps = values(found["17"])
    assert steps["+Log", "after"] > 1.3
    assert steps["+Opt1", "after"] < 0.8


@pytest.mark.skipif(not COMPILED, reason="many clients")
def test_entries_of_rtx_have_the_papers_orders() -> None:
    found = quick("rtx", "11", "13", "18b")
    shares, locks = values(found["11"]), values(found["18b"])
    for drawn in ("uniform", "skewed"):
        assert shares[f"{drawn} A", "rTX"] < 1
        assert shares[f"{drawn} A", "DTX"] < shares[f"{drawn} A", "rTX"]
    assert values(found["13"])["uniform, 1 clients", "rTX"] > 1.03
    assert locks["80 objects", "fixed"] > locks["80 objects", "growing"]


def test_entries_of_loco_say_what_is_not_possible() -> None:
    found = quick("loco", "7", "fence")
    assert found["fence"]["verdict"] == "not possible here"
    assert found["7"]["verdict"] == "same order, within a factor of 1.00"
    assert "15 %" in call("loco", "fence").stdout


def test_entries_of_fusee_have_the_papers_counts() -> None:
    found = values(quick("fusee", "10")["10"])
    for operation, trips in (("INSERT", 4), ("UPDATE", 4), ("SEARCH", 1), ("DELETE", 4)):
        assert found[f"{operation}, round trips", "fusee"] == pytest.approx(trips, abs=0.2)


@pytest.mark.exhaustive("all entries", quick=["fusee-3", "rcuckoo-4c"])
@pytest.mark.skipif(not COMPILED, reason="many clients")
@pytest.mark.parametrize(
    ("paper", "name"),
    [
        (paper, entry.name)
        for paper, module in (("fusee", fusee_entries), ("rcuckoo", rcuckoo_entries))
        for entry in module.ENTRIES
        if entry.run
    ]
    + [("loco", "5")],
)
def test_entries_of_stores_have_the_papers_orders(paper: str, name: str) -> None:
    assert has_the_papers_order(paper, name)


@pytest.mark.exhaustive("processes are killed")
def test_entries_on_the_machines_clock_have_the_papers_orders() -> None:
    assert has_the_papers_order("rtx", "14")
    assert has_the_papers_order("rtx", "15")


def has_the_papers_order(paper: str, name: str) -> bool:
    """On the machine's clock, in one of some runs: other programs take time from any of them."""
    allowed = OTHER_WAY_ROUND.get((paper, name), "nothing")
    for _ in range(20):
        found = quick(paper, name)[name]
        assert found["points"]
        if all(re.search(allowed, pair) for pair in found["wrong"]):
            return True
        if found["clock"] != "machine":
            break
    return False


WRONG = [
    ["nonesuch"],
    ["rtx", "99"],
    ["rtx", "17", "--page", "x.md"],
    ["loco", "--quick", "--page", "x.md"],
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_makes_no_sense_is_refused(
    wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*wrong).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_entries_are_listed() -> None:
    assert "table 2: " in call("rtx", "--list").stdout


def test_a_number_without_its_word_is_understood() -> None:
    assert (
        "has no '2' here; did you mean 'table 2'? It has 'table 2', " in call("swarm", "2").output
    )
    assert "did you mean '18a' or '18b'?" in call("rtx", "18").output
    assert "has no '99' here. It has " in call("loco", "99").output
