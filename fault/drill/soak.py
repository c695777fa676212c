"""The soak: every drill and the tests, by turns, until the time is over or one of them fails.

A round takes each row of ROUND once for each subject that the row names. A drill that takes all
subjects by itself has no list here, so a kind or a channel that is registered is in the soak. What
has begun is ended, also when the time is over. tests/fault/test_soak.py fails for a drill or a
subject that no row has.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.matrix import encounter
from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.shm.endpoint.fabric import flush_features
from limpet.shm.errors import LimpetError
from limpet.stores.registry import CACHES, KINDS

PROGRAM: Final = (sys.executable, "-m", "limpet")
TRANSACTIONAL: Final = ("rtx-race", "rtx-sherman")
CLIENTS: Final = ("fusee", "swarm", "rcuckoo", "rtx-race", "dtx-race", "rtx-sherman", "dtx-sherman")
"""Kinds whose clients are killed and stopped at random, besides race."""
REPLACED: Final = ("race", "fusee", "swarm", "rcuckoo", "loco")
OPERATIONS: Final = ("insert", "update", "delete", "get", "join", "close")


class SoakFailed(LimpetError):
    """A command of the soak did not end with exit status 0."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A command of limpet, for each of `subjects` in the place of {}. `when`: whether this machine
    and user can run it."""

    command: str
    subjects: Iterable[Any] = ("",)
    when: Callable[[], bool] = lambda: True

    def commands(self) -> list[str]:
        return [self.command.format(subject) for subject in self.subjects]


ROUND: Final = (
    Row("demo --seconds 60 --kill-rate 10"),
    Row("drill race --seconds 60 --kill-rate 50 --stop-rate 5"),
    Row(
        "drill race --seconds 20 --lease-ms 50 --stop-rate 20 --nodes 1 --node-size 2MiB "
        "--keys 100 --value-size 1000:4000"
    ),
    Row("drill race --seconds 20 --kill-rate 50 --fail-node 10"),
    Row("drill explore sherman --schedules 20000 --crashes 0 --stalls 0"),
    Row("drill {} --seconds 30 --kill-rate 50 --stop-rate 5", CLIENTS),
    Row("drill explore {} --schedules 10000 --crashes 2 --stalls 2 --value-size 40", CLIENTS),
    Row(
        "drill explore {} --transactions --schedules 10000 --crashes 2 --stalls 2 --value-size 40",
        TRANSACTIONAL,
    ),
    Row("drill bank --seconds 30 --kill-rate 50 --stop-rate 5"),
    Row("drill cache --seconds 60 --kill-rate 50"),
    Row("drill explore cache --schedules 10000 --crashes 2 --stalls 2"),
    Row("drill cuts --seconds 10"),
    Row("drill throttle --seconds 60 --lease-ms {}", (200, 2000)),
    Row("drill throttle --seconds 20 --lease-ms {} --kill-rate 4 --busy", (200, 2000)),
    Row("drill beside --every"),
    Row("drill ends --every"),
    Row("drill forks"),
    Row("drill names --every"),
    Row("drill looks"),
    Row("drill containers --every", when=lambda: os.geteuid() == 0),
    Row("drill explore race --names --schedules 5000 --crashes 2"),
    Row("drill explore race --schedules 20000 --crashes 2"),
    Row("drill explore race --schedules 20000 --crashes 2 --node-failures 1"),
    Row(
        "drill explore {} --schedules 5000 --crashes 1 --stalls 1 --node-failures 1 --replace "
        "--value-size 40",
        REPLACED,
    ),
    Row("drill explore race --schedules 20000 --crashes 2 --scarce --ops 3"),
    Row(
        "drill explore race --schedules 20000 --crashes 2 --incoherent",
        when=lambda: "clflushopt" in flush_features(),
    ),
    Row(
        "drill explore race --clients 2 --program 'ic|dc' --strategy exhaustive --bound 1 "
        "--schedules 100000"
    ),
    Row("drill matrix {}", ("race", *CACHES)),
    Row("drill damage --cases 10000"),
    Row("drill matrix {} --only succeeded", KINDS),
    Row(
        "drill matrix {} --only succeeded --every "
        + " ".join(f"--op {operation}" for operation in OPERATIONS),
        KINDS,
    ),
    Row("drill matrix {} --every", CHANNELS),
    Row("drill matrix {} --encounters 1 --limit 100", encounter.kinds()),
    Row("drill matrix {} --encounters 2 --limit 50", encounter.kinds()),
    Row("drill matrix fusee --encounters 1 --every"),
    Row("drill full"),
)


@dataclasses.dataclass(frozen=True)
class Suite:
    """The tests of one build, in a checkout: with all cases, and other random choices each time."""

    build: str
    pytest: tuple[str, ...]
    folder: str
    arguments: tuple[str, ...]

    def run(self) -> int:
        given = ("-q", "-p", "no:cacheprovider", f"--hypothesis-seed={int(time.time())}")
        environment = {"LIMPET_TEST_LONG": "1", "LIMPET_EXPECT_BUILD": self.build}
        return _ended(
            [*self.pytest, *self.arguments, *given],
            cwd=self.folder, env={**os.environ, **environment},
        )  # fmt: skip


SUITES: Final = (
    Suite("compiled", (sys.executable, "-m", "pytest"), ".", ("--ignore=tests/test_packaging.py",)),
    Suite(
        "pure", ("../.venv-pure/bin/pytest",), "tests",
        ("-c", "../pyproject.toml", "--rootdir=..", "--ignore=test_packaging.py"),
    ),
)  # fmt: skip


def commands() -> Iterator[list[str]]:
    """The words of each command of a round that can be run here."""
    for row in ROUND:
        if row.when():
            yield from map(shlex.split, row.commands())


def run(minutes: float, demo: Sequence[str], tests: bool, tell: Callable[[str], object]) -> None:
    """Run rounds for so many minutes; SoakFailed at the first command that fails.

    `demo`: further arguments of the demo. `tests`: also the suites, from the root of a checkout.
    Raises Interrupted when what has begun has ended.
    """
    if tests and not Path("tests/conftest.py").is_file():
        raise SoakFailed(f"there are no tests in {Path.cwd()}")
    end = time.monotonic() + 60 * minutes
    steps: list[tuple[str, Callable[[], int]]] = []
    for words in commands():
        given = [*words, *demo] if words[0] == "demo" else words
        steps.append((f"limpet {shlex.join(given)}", functools.partial(_ended, [*PROGRAM, *given])))
    if tests:
        steps += [(f"the tests on the {suite.build} build", suite.run) for suite in SUITES]
    with Interrupt() as interrupt:
        for name, step in itertools.cycle(steps):
            if time.monotonic() >= end:
                return
            tell(name)
            status = step()
            interrupt.check()
            if status:
                raise SoakFailed(f"{name} ended with {status}")


def _ended(command: Sequence[str], **given: Any) -> int:
    return subprocess.run(command, check=False, **given).returncode
