"""Figures and tables of the papers as entries: the paper's values, ours, and a verdict.

An entry runs with its parameters and gives points, each with a value of the paper, if its text has
one. Points of one group are compared with each other: two of them are in order if the larger one in
the paper is the larger one here. The verdicts are

    same order, within a factor   each value is within FACTOR of the paper's
    same order                    some value is farther away
    other way round               two values are in the other order, which are named
    not possible here             and the reason
"""

from __future__ import annotations

import dataclasses
import difflib
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from limpet.shm.errors import ParameterError

FACTOR: Final = 2.0
APART: Final = 1.05
"""Values of the paper whose ratio is less than this are not told apart."""
Value: TypeAlias = "float | tuple[float, float] | None"
Clock: TypeAlias = Literal["virtual", "machine"]


@dataclasses.dataclass(frozen=True)
class Point:
    """One value. `paper`: what its text has: a number, its bounds, or nothing."""

    group: str
    name: str
    ours: float
    paper: Value = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The paper's value, from and to."""
        paper = self.paper
        return (paper, paper) if isinstance(paper, float | int) else paper

    @property
    def factor(self) -> float | None:
        """How many times ours is above the paper's upper bound, or below its lower bound."""
        if self.bounds is None:
            return None
        low, high = self.bounds
        if self.ours > high:
            return self.ours / high if high else float("inf")
        if self.ours < low:
            return low / self.ours if self.ours else float("inf")
        return 1.0


@dataclasses.dataclass(frozen=True)
class Scale:
    """`quick`: few clients and operations, for counts and orders."""

    quick: bool = False
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Run:
    """`parameters` with which the points were found."""

    parameters: Mapping[str, Any]
    points: Sequence[Point]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A figure or table. `unit`: of its values; `said`: where the paper's values come from.

    `order`: names of points, of which the text says that the first is the smaller one. `clock`:
    in virtual time, equal arguments give equal figures. `reason`: why ours differ, or are not
    possible here (`run` is None).
    """

    name: str
    title: str
    unit: str
    said: str
    run: Callable[[Scale], Run] | None
    order: Sequence[tuple[str, str]] = ()
    clock: Clock = "virtual"
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of an entry; `wrong`: pairs that are in the other order than in the paper."""

    paper: str
    name: str
    title: str
    unit: str
    said: str
    clock: Clock
    reason: str
    verdict: str
    parameters: Mapping[str, Any]
    points: Sequence[Point]
    wrong: Sequence[str]


def judge(paper: str, entry: Entry, scale: Scale) -> Found:
    """Run an entry."""
    try:
        run = entry.run(scale) if entry.run else None
    except Impossible as error:
        run, entry = None, dataclasses.replace(entry, reason=str(error))
    points = run.points if run else ()
    wrong = list(_wrong(entry, points))
    return Found(
        paper, entry.name, entry.title, entry.unit, entry.said, entry.clock, entry.reason,
        _verdict(points, wrong) if run else "not possible here",
        run.parameters if run else {}, points, wrong,
    )  # fmt: skip


class Impossible(Exception):
    """An entry cannot be run on this machine."""


def _verdict(points: Sequence[Point], wrong: Sequence[str]) -> str:
    if wrong:
        return "other way round"
    factors = [
        point.factor
        for point in points
        if point.factor is not None and not point.ours == point.paper == 1  # the base of shares
    ]
    worst = max(factors, default=float("inf"))
    return f"same order, within a factor of {worst:.2f}" if worst <= FACTOR else "same order"


def _wrong(entry: Entry, points: Iterable[Point]) -> Iterator[str]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    for group, members in groups.items():
        for low in members:
            for high in members:
                below = low.bounds and high.bounds and low.bounds[1] * APART < high.bounds[0]
                said = (low.name, high.name) in entry.order
                if (below or said) and low.ours >= high.ours > 0:
                    yield f"{group}: {low.name} and {high.name}"


def run(
    paper: str,
    entries: Sequence[Entry],
    names: Sequence[str],
    scale: Scale,
    advance: Callable[[str], None],
) -> Iterator[Found]:
    """Run the entries with these names, or all. Raises ParameterError."""
    known = {entry.name: entry for entry in entries}
    if wrong := set(names) - set(known):
        missing = min(wrong)
        meant = [name for name in known if missing in name.split()]
        meant = meant or sorted(difflib.get_close_matches(missing, known))
        hint = f"; did you mean {' or '.join(map(repr, meant))}?" if meant else "."
        raise ParameterError(
            f"{paper} has no {missing!r} here{hint} It has {', '.join(map(repr, known))}"
        )
    for name in names or known:
        yield judge(paper, known[name], scale)
        advance(f"{paper} {name}")


# ---- reports -------------------------------------------------------------------------------------


def number(value: Value) -> str:
    """A value, or its bounds."""
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return " to ".join(number(bound) for bound in value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def in_groups(points: Sequence[Point]) -> list[Point]:
    """The points, those of a group together."""
    groups = list(dict.fromkeys(point.group for point in points))
    return sorted(points, key=lambda point: groups.index(point.group))


def rows(found: Found) -> Iterator[tuple[str, ...]]:
    """A row for each point, those of a group together: group, name, paper, ours, factor."""
    for point in in_groups(found.points):
        factor = "-" if point.factor is None else f"{point.factor:.2f}"
        yield point.group, point.name, number(point.paper), number(point.ours), factor


def markdown(found: Found) -> Iterator[str]:
    """The lines of an entry on the page."""
    yield from (f"### {found.name}: {found.title}", "", f"**{found.verdict}**")
    if found.wrong:
        yield f"({'; '.join(found.wrong)})"
    yield from ("", f"Paper: {found.said}")
    if found.reason:
        yield f"Here: {found.reason}"
    if found.points:
        parameters = ", ".join(f"{name} {value}" for name, value in found.parameters.items())
        yield from ("", f"{found.unit}; {parameters}; {_CLOCKS[found.clock]}.", "")
        yield "| | | paper | here | factor |"
        yield "| --- | --- | --- | --- | --- |"
        yield from (f"| {' | '.join(row)} |" for row in rows(found))
    yield ""


_CLOCKS: Final[Mapping[Clock, str]] = {
    "virtual": "in virtual time",
    "machine": "on the clock of the machine",
}
PAGE: Final = """# The papers' figures

Made by `limpet bench figures PAPER --page docs/figures.md`. Each entry has the paper's values, as
far as its text has them (pictures without numbers are not read off), ours, and a verdict: *same
order, within a factor* (the worst of all values, two at most), *same order*, *other way round*, or
*not possible here*. Values of one group are compared with each other. The latency model is `rdma`
([explorer.md](explorer.md#virtual-time)), of FUSEE's figures with the 56 Gb/s of its testbed.
"""


def section(paper: str, found: Sequence[Found], model: Sequence[str]) -> str:
    """A paper's part of the page."""
    lines = [f"## {paper}", "", "| entry | | verdict |", "| --- | --- | --- |"]
    lines += [f"| {one.name} | {one.title} | {one.verdict} |" for one in found]
    lines += ["", *(line for one in found for line in markdown(one))]
    lines += ["The model:", "", *(f"- {line}" for line in model), ""]
    return "\n".join(lines)


def with_section(page: str, paper: str, text: str) -> str:
    """The page with a paper's part put in, in place of the one that it has."""
    head, *parts = (page or PAGE).split("\n## ")
    kept = {part.partition("\n")[0]: part for part in parts}
    kept[paper] = text.removeprefix("## ")
    return "\n## ".join(
        part.rstrip("\n") + "\n" for part in (head, *(kept[name] for name in sorted(kept)))
    )


def save_picture(found: Sequence[Found], path: pathlib.Path) -> None:
    """A PNG: a panel for each entry that has points; ours as bars, the paper's values as marks with
    their bounds. Needs matplotlib."""
    from matplotlib.figure import Figure

    drawn = [one for one in found if one.points]
    heights = [1.2 + 0.18 * len(one.points) for one in drawn]
    figure = Figure(figsize=(10, sum(heights) or 1), layout="constrained")
    panels = figure.subplots(len(drawn) or 1, 1, squeeze=False, height_ratios=heights or [1])
    for (axes,), one in zip(panels, drawn, strict=False):
        points = list(in_groups(one.points))
        axes.barh(range(len(points)), [point.ours for point in points], color="#7da7ca")
        for at, point in enumerate(points):
            if point.bounds is not None:
                low, high = point.bounds
                axes.plot([low, high], [at, at], marker="|", markersize=9, color="#b03a2e")
        names = [f"{point.group}: {point.name}" for point in points]
        axes.set_yticks(range(len(points)), names, fontsize=7)
        axes.invert_yaxis()
        axes.grid(axis="x", linewidth=0.3)
        title = f"{one.paper} {one.name}: {one.title}\n{one.verdict}; bars: here, marks: the paper"
        axes.set_title(title, fontsize=8, loc="left")
        axes.set_xlabel(one.unit, fontsize=8)
    figure.savefig(path, format="png", dpi=100)
