"""The parts of the suite, and which tests belong to each of them.

| part | run by | has |
| --- | --- | --- |
| quick | `make test` | what shows each fault at least once |
| rest | `make test-rest` | repetitions, compiled: more kinds, steps, seeds, longer runs |
| soak | `make soak` (LIMPET_TEST_LONG=1) | what takes minutes; repetitions on the pure build |

A soak runs all parts, and all runs and steps of tests that make some of them otherwise (`runs_of`,
`stride`). A marker beside the test says where it belongs, and why:

- `exhaustive(reason, quick=[...])`: in the rest on the compiled build and in the soak on the pure
  one, but for the cases that `quick` names: on the pure build each case takes several times as
  long, and runs the same lines of the protocols;
- `exhaustive_in_pure(reason, quick=[...])`: quick on the compiled build, in the soak on the pure
  one, but for the cases that `quick` names. One of the markers of a test or its module is enough;
- `either_build(reason, but=[...])`: does not depend on the build. The compiled build runs it in its
  parts; the pure build runs only the cases that `but` names;
- `soak(reason, cases=[...])`: for the soak, or the cases are that it names.

Cases are patterns of `fnmatch`: for the parameters of a test ("race-*") or, in a marker of a
module, for its name ("test_get*", "test_get[race-*]"). A pattern that fits no test is an error.
`pytest` without `--part` runs all that it is given, but for what only a soak does.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import limpet

PARTS: Final = ("quick", "rest")
OTHER_BUILD: Final = "other build"
SOAK: Final = "soak"
PATTERNS: Final = {
    "exhaustive": "quick",
    "exhaustive_in_pure": "quick",
    "either_build": "but",
    "soak": "cases",
}
"""The markers, and the argument of each that has patterns."""
COMPILED: Final = limpet.build == "compiled"
IS_LONG: Final = os.environ.get("LIMPET_TEST_LONG") == "1"
HELP: Final = (
    "exhaustive(reason, quick=[]): in `make test-rest` (pure: soak), but for the cases in `quick`",
    "exhaustive_in_pure(reason, quick=[]): in the soak on the pure build, but for `quick`",
    "either_build(reason, but=[]): on the compiled build, and the cases in `but` on the pure one",
    "soak(reason, cases=[]): with LIMPET_TEST_LONG=1 only",
)


def runs_of(count: int) -> int:
    """How many of so many random runs a test makes: a third, all in a soak; a few, if not
    compiled."""
    if not COMPILED:
        return max(5, count // 25)
    return count if IS_LONG else max(40, count // 3)


def is_fair(faults: int, runs: int) -> bool:
    """Whether so many faults in so many simulated runs are a fair share; of a few runs nothing is
    said. No machine decides it: the schedules of a seed are the same on all."""
    return runs < 40 or faults > runs // 20


def stride(pure: int) -> int:
    """From one step that a client is stopped at to the next: every third, each in a soak; `pure`,
    if not compiled."""
    if not COMPILED:
        return pure
    return 1 if IS_LONG else 3


def steps(end: int, pure: int, case: int) -> range:
    """The steps before `end` that a client is stopped at, `stride` apart. Each case begins at
    another one, so that a few together meet them all."""
    apart = stride(pure)
    return range(1 + case % apart, end, apart)


def fits(item: Any, pattern: str) -> bool:
    """Whether a pattern is for a test: for its case, or as "test_name" or "test_name[case]"."""
    name, case = "*", pattern
    if pattern.startswith("test_"):
        name, bracket, case = pattern.partition("[")
        case = case.removesuffix("]") if bracket else ""
    found = getattr(item, "callspec", None)
    return fnmatch.fnmatchcase(getattr(item, "originalname", item.name), name) and (
        not case or (found is not None and fnmatch.fnmatchcase(found.id, case))
    )


def patterns_of(mark: Any) -> Sequence[str]:
    return mark.kwargs.get(PATTERNS[mark.name], ())


def _names(mark: Any, item: Any) -> bool:
    return any(fits(item, pattern) for pattern in patterns_of(mark))


def part_of(item: Any, build: str) -> str:
    """The part of the suite that a test belongs to on a build."""

    def all_name(*markers: str) -> bool:
        return all(_names(mark, item) for name in markers for mark in item.iter_markers(name))

    soaks = item.iter_markers(SOAK)
    if any(not patterns_of(mark) or _names(mark, item) for mark in soaks):
        return SOAK
    if build == "pure" and not all_name("either_build"):
        return OTHER_BUILD
    in_pure = ("exhaustive_in_pure",) if build == "pure" else ()
    if all_name("exhaustive", *in_pure):
        return "quick"
    return SOAK if build == "pure" else "rest"


def complaints(items: Iterable[Any], build: str) -> list[str]:
    """Markers that give no reason, have arguments that there are not, or name no test.

    Parameters may depend on the build: a marker of one build is looked at there.
    """
    unfit: dict[tuple[int, str], str] = {}
    fit: set[tuple[int, str]] = set()
    wrong = []
    for item in items:
        for mark in item.iter_markers():
            if mark.name not in PATTERNS:
                continue
            where = f"{item.nodeid}: {mark.name}"
            if len(mark.args) != 1 or not str(mark.args[0]).strip():
                wrong.append(f"{where} gives no reason")
            if mark.kwargs.keys() - {PATTERNS[mark.name]} or isinstance(patterns_of(mark), str):
                wrong.append(f"{where} has wrong arguments: {mark.kwargs}")
            if (mark.name == "exhaustive_in_pure") != (build == "pure"):
                continue
            for pattern in patterns_of(mark):
                key = (id(mark), pattern)
                if fits(item, pattern):
                    fit.add(key)
                else:
                    unfit.setdefault(key, f"{where}: no test is {pattern!r}")
    return wrong + [said for key, said in unfit.items() if key not in fit]
