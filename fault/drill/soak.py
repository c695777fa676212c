"""The soak: every drill and the tests, by turns, until the time is over or one of them fails.

A round has each line of ROUND once, or once for each of the set that it names. A drill that takes
all subjects by itself names none, so a kind or a channel that is registered is in the soak. A drill
that has begun runs to its end, also when the time is over, unless a signal ends it.
tests/fault/test_soak.py fails for a drill or a subject that no line has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from limpet.fault.inject.containers import why_not
from limpet.fault.inject.interrupt import Interrupt, Interrupted
from limpet.fault.matrix import encounter
from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.shm.endpoint.fabric import flush_features
from limpet.shm.errors import LimpetError
from limpet.stores.registry import KINDS

WAIT_S: Final = 0.2
PROGRAM: Final = (sys.executable, "-m", "limpet")
SETS: Final[Mapping[str, Iterable[Any]]] = {
    "kind": KINDS,
    "channel": CHANNELS,
    "simulated": ("queue", "deque", "topic", "semaphore", "rwlock", "condition", "jobs"),
    "replicated": encounter.kinds(),
    "replaced": ("race", "fusee", "swarm", "rcuckoo", "loco"),
    "transactional": ("rtx-race", "rtx-sherman"),
    "killed": ("fusee", "swarm", "rcuckoo", "rtx-race", "dtx-race", "rtx-sherman", "dtx-sherman"),
    "lease": ("0.2", "2"),
}
"""A command is run with each of the set that it names."""
ROUND: Final = """
demo --seconds 60 --kill-rate 10
drill race --seconds 60 --kill-rate 50 --stop-rate 5
drill race --seconds 20 --lease 0.05 --stop-rate 20 --nodes 1 --node-size 2MiB --keys 100 \
    --value-size 1000:4000
drill race --seconds 20 --kill-rate 50 --fail-node 10
drill explore sherman --schedules 20000 --crashes 0 --stalls 0
drill {killed} --seconds 30 --kill-rate 50 --stop-rate 5
drill explore {killed} --schedules 10000 --crashes 2 --stalls 2 --value-size 40
drill explore {transactional} --transactions --schedules 10000 --crashes 2 --stalls 2 \
    --value-size 40
drill bank --seconds 30 --kill-rate 50 --stop-rate 5
drill cache --seconds 60 --kill-rate 50
drill explore cache --schedules 10000 --crashes 2 --stalls 2
drill matrix cache
drill cuts --seconds 10
drill throttle --seconds 60 --lease {lease}
drill throttle --seconds 20 --lease {lease} --kill-rate 4 --busy
drill beside --every
drill ends --every
drill forks
drill names --every
drill looks
drill containers --every
drill explore {simulated} --ops 3 --schedules 5000 --crashes 2 --stalls 2
drill explore {simulated} --ops 3 --schedules 2000 --remote
drill explore race --names --schedules 5000 --crashes 2
drill explore race --schedules 20000 --crashes 2
drill explore race --schedules 20000 --crashes 2 --node-failures 1
drill explore {replaced} --schedules 5000 --crashes 1 --stalls 1 --node-failures 1 --replace \
    --value-size 40
drill explore race --schedules 20000 --crashes 2 --scarce --ops 3
drill explore fusee --schedules 5000 --add-nodes --scarce --node-failures 1 --replace
drill explore fusee --schedules 5000 --nodes 3 --node-failures 1 --replace --value-size 40 \
    --parameter index_replicas=3 --parameter replicas=2
drill explore fusee --schedules 5000 --nodes 3 --node-failures 1 --replace --value-size 40 \
    --parameter index_replicas=1 --parameter replicas=2
drill explore race --schedules 20000 --crashes 2 --incoherent
drill explore race --clients 2 --program ic|dc --strategy exhaustive --bound 1 --schedules 100000
drill matrix race
drill damage --cases 10000
drill matrix {kind} --only succeeded
drill matrix {kind} --only succeeded --every --op insert --op update --op delete --op get \
    --op join --op close
drill matrix {channel} --every
drill matrix {replicated} --encounters 1 --limit 100
drill matrix {replicated} --encounters 2 --limit 50
drill matrix fusee --encounters 1 --every
drill full
"""


class SoakFailed(LimpetError):
    """A command of the soak did not end with exit status 0."""


@dataclasses.dataclass(frozen=True)
class Suite:
    """The tests of one build, in a checkout: with all cases, and other random choices each time."""

    build: str
    pytest: tuple[str, ...]
    folder: str
    arguments: tuple[str, ...]

    def run(self, interrupt: Interrupt) -> int:
        given = ("-q", "-p", "no:cacheprovider", f"--hypothesis-seed={int(time.time())}")
        environment = {"LIMPET_TEST_LONG": "1", "LIMPET_EXPECT_BUILD": self.build}
        return _ended(
            [*self.pytest, *self.arguments, *given], interrupt,
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
    """The words of each command of a round."""
    for line in ROUND.replace("\\\n", "").strip().splitlines():
        of = SETS[line.partition("{")[2].partition("}")[0]] if "{" in line else [""]
        for one in of:
            yield re.sub(r"{\w+}", str(one), line).split()


def _can_run(words: list[str]) -> bool:
    """Whether this process can make containers, and this CPU can flush."""
    if "containers" in words:
        return not why_not()
    return "--incoherent" not in words or "clflushopt" in flush_features()


def run(minutes: float, demo: Sequence[str], tests: bool, tell: Callable[[str], object]) -> None:
    """Run rounds for so many minutes; SoakFailed at the first command that fails.

    `demo`: further arguments of the demo. `tests`: also the suites, from the root of a checkout.
    Raises Interrupted after a signal, when what has begun has ended because of it.
    """
    if tests and not Path("tests/conftest.py").is_file():
        raise SoakFailed(f"there are no tests in {Path.cwd()}")
    end = time.monotonic() + 60 * minutes
    steps: list[tuple[str, Callable[[Interrupt], int]]] = []
    for words in filter(_can_run, commands()):
        given = [*words, *demo] if words[0] == "demo" else words
        steps.append((f"limpet {shlex.join(given)}", functools.partial(_ended, [*PROGRAM, *given])))
    if tests:
        steps += [(f"the tests on the {suite.build} build", suite.run) for suite in SUITES]
    with Interrupt() as interrupt:
        for name, step in itertools.cycle(steps):
            if time.monotonic() >= end:
                return
            tell(name)
            status = step(interrupt)
            interrupt.check()
            if status:
                raise SoakFailed(f"{name} ended with {status}")


def _ended(command: Sequence[str], interrupt: Interrupt, **given: Any) -> int:
    """Run a command to its end, which a signal to this process asks for."""
    with subprocess.Popen(command, **given) as child:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(WAIT_S)
            try:
                interrupt.check()
            except Interrupted:
                child.terminate()
                return child.wait()
