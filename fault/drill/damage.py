"""The damage drill: bits, words, lines and pages of a pool are changed under clients that use it.

One case: a pool with contents; a client that has warmed up; damage, drawn from the seed and the
number of the case; then every operation on the pool, by this client and by one that opens the pool
only now (damage_work.py), with more damage in between. The drill demands
    - no signal, and no end of a client except its own
    - no hang: an operation that takes CPU_S seconds of CPU, or WALL_S by the clock, is ended, and
      its stacks are reported
    - no allocation without bound: a case is refused MEMORY bytes more than it has at the start
    - from each operation a right result, a documented error, or a LimpetError
    - a right value where a checksum covers the kind's values (fault_profile.py). Where none does,
      wrong values are counted; so are missing keys and old values, as no index here has a checksum
      of its words (docs/drills.md gives the reason)

The pool is made once, and put back as it was before each case, so a case does not depend on those
before it: `limpet drill damage KIND --seed S --case N` repeats it. Each case is a process of its
own. A process id in damaged memory must not cause a kill, hence fence="wait".
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import logging
import mmap
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import psutil

from limpet.fault.drill.damage_work import Subject, subject_of
from limpet.fault.inject.workers import Exit, Workers
from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.shm.backends.location import parse_url
from limpet.shm.destroying import destroy
from limpet.shm.errors import LimpetError
from limpet.stores.registry import KINDS, UNPROVED, UNRECOVERED

CPU_S: Final = 10.0
WALL_S: Final = 60.0
"""Limits of one operation."""
MEMORY: Final = 1 << 29
PARTS: Final = 3
"""The parts of a case; damage comes before each of them."""
LINE: Final = 64
FAILURES_MAX: Final = 20
OUTCOMES: Final = ("right", "refused", "missing", "stale", "wrong", "damaged")
"""Outcomes of a case, by its worst result: all was right; an operation was refused; a key was
missing, or had an older value; a call of a channel had a wrong effect; a value was one never
written."""


def kinds() -> list[str]:
    """Every kind of store and of channel."""
    return [*KINDS, *UNRECOVERED, *UNPROVED, *CHANNELS]


@dataclasses.dataclass(frozen=True)
class Damage:
    """Bytes that are written to a segment before a part of the case."""

    part: int
    segment: int
    offset: int
    data: bytes

    def __str__(self) -> str:
        shown = self.data.hex() if len(self.data) <= 8 else f"{len(self.data)} bytes"
        return f"part {self.part}: segment {self.segment} at {self.offset}: {shown}"


@dataclasses.dataclass(frozen=True)
class Case:
    """Outcome of a case. `failures`: forbidden errors. `wrong`: silent wrong results."""

    number: int
    damages: tuple[Damage, ...]
    outcome: str
    failures: tuple[str, ...]
    wrong: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class DamageReport:
    """The drill's result for one kind; `outcomes` counts cases."""

    kind: str
    seed: int
    cases: int
    seconds: float
    outcomes: dict[str, int]
    checksum: str
    failed: tuple[Case, ...]

    @property
    def verdict(self) -> str:
        return "FAILED" if self.failed or not self.cases else "ok"


class Image:
    """The segments of a pool, mapped, and a copy of their sound state."""

    def __init__(self, url: str, nodes: int) -> None:
        location = parse_url(url)
        self.maps = []
        for segment in range(nodes + 1):
            path = location.path(segment) if segment < nodes else location.path(CONTROL)
            with open(path, "r+b") as file:
                self.maps.append(mmap.mmap(file.fileno(), 0))
        self.sound = [bytes(data) for data in self.maps]
        self.lines = [
            [at for at in range(0, len(data), LINE) if data[at : at + LINE].strip(b"\0")]
            for data in self.sound
        ]

    def restore(self) -> None:
        for data, sound in zip(self.maps, self.sound, strict=True):
            data[:] = sound

    def apply(self, damage: Damage) -> None:
        data = self.maps[damage.segment]
        data[damage.offset : damage.offset + len(damage.data)] = damage.data

    def close(self) -> None:
        for data in self.maps:
            data.close()


CONTROL: Final = 255


class Draw:
    """Draws the damage of one case."""

    def __init__(self, image: Image, seed: int, kind: str, number: int) -> None:
        self.image = image
        self.random = random.Random(f"{seed} {kind} {number}")

    def all(self) -> tuple[Damage, ...]:
        count = self.random.choice((1, 1, 1, 2, 3, 6, 12))
        return tuple(sorted((self.one() for _ in range(count)), key=lambda one: one.part))

    def one(self) -> Damage:
        rng = self.random
        part, segment = rng.randrange(PARTS), self._segment()
        shape = rng.random()
        if shape < 0.04:
            at = rng.randrange(len(self.image.sound[segment]) // mmap.PAGESIZE) * mmap.PAGESIZE
            return Damage(part, segment, at, self._block(mmap.PAGESIZE))
        at = self._line(segment)
        if shape < 0.1:
            return Damage(part, segment, at, self._block(LINE))
        at += 8 * rng.randrange(LINE // 8)
        return Damage(part, segment, at, self._word(segment, at).to_bytes(8, "little"))

    def _segment(self) -> int:
        nodes = len(self.image.maps) - 1
        return nodes if self.random.random() < 0.3 else self.random.randrange(nodes)

    def _line(self, segment: int) -> int:
        """A line that is in use, mostly."""
        lines = self.image.lines[segment]
        if not lines or self.random.random() < 0.1:
            return self.random.randrange(len(self.image.sound[segment]) // LINE) * LINE
        return lines[int(self.random.random() * len(lines))]

    def _there(self, segment: int, at: int) -> int:
        return int.from_bytes(self.image.sound[segment][at : at + 8], "little")

    def _word(self, segment: int, at: int) -> int:
        rng, word = self.random, self._there(segment, at)
        shape = rng.random()
        if shape < 0.45:
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                word ^= 1 << rng.randrange(64)
            return word
        if shape < 0.6:
            return rng.getrandbits(64)
        if shape < 0.75:
            near = rng.choice((0, 1 << 16, 1 << 31, 1 << 32, 1 << 40, 1 << 63, 1 << 64))
            return near + rng.randrange(-3, 4) & (1 << 64) - 1
        other = self._segment()
        word = self._there(other, self._line(other) + 8 * rng.randrange(LINE // 8))
        return word + rng.choice((0, 0, 1, 8, 16, -16)) & (1 << 64) - 1

    def _block(self, size: int) -> bytes:
        shape = self.random.randrange(4)
        if shape == 0:
            return self.random.randbytes(size)
        if shape == 1:
            return bytes(size)
        if shape == 2:
            return b"\xff" * size
        other = self._segment()
        at = self._line(other) // size * size
        return self.image.sound[other][at : at + size].ljust(size, b"\0")


class Drill:
    """Runs cases of one kind. Only in the main thread; as a context manager it removes its pool."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.seed = seed
        self.subject: Subject = subject_of(kind)
        self.url = f"shm://limpet-damage-{os.getpid()}-{kind}"
        self._image: Image | None = None
        if not faulthandler.is_enabled():
            # ORDER: before the first pool is opened, which takes SIGBUS over and passes others on.
            faulthandler.enable()

    def __enter__(self) -> Drill:
        return self

    def __exit__(self, *exc: object) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._image is not None:
            self._image.restore()  # segments that do not look like a pool would not be removed
            self._image.close()
            self._image = None
        with contextlib.suppress(LimpetError):
            destroy(self.url)

    def _sound(self) -> Image:
        """The pool, as it is before every case."""
        if self._image is not None and not self.subject.fresh:
            self._image.restore()
        else:
            self._remove()
            nodes = self.subject.make(self.url)
            self._image = Image(self.url, nodes)
        return self._image

    def case(self, number: int) -> Case:
        """Run one case."""
        image = self._sound()
        damages = Draw(image, self.seed, self.kind, number).all()

        def strike(part: int) -> None:
            for damage in damages:
                if damage.part == part:
                    image.apply(damage)

        failures, found = _run(lambda tell: self.subject.exercise(self.url, strike, tell))
        wrong = list(found.get("wrong", []))
        failures += found.get("failures", [])
        worst = {one.split(":")[0] for one in wrong}
        failures += [one for one in wrong if self.subject.is_found(one)]
        outcome = next((one for one in reversed(OUTCOMES) if one in worst), "")
        if not outcome:
            outcome = "refused" if found.get("refused", 0) or failures else "right"
        return Case(number, damages, outcome, tuple(failures), tuple(wrong))


def _run(
    work: Callable[[Callable[[str], None]], dict[str, Any]],
) -> tuple[list[str], dict[str, Any]]:
    """Run a case in a child: its failures, and the counts of its results."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(os.fdopen(os.memfd_create(name), "w+")) for name in "tsr"]
        told, stacks, result = files

        def target(slot: int, incarnation: int) -> None:
            faulthandler.enable(stacks, all_threads=True)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGPROF, stacks, all_threads=True, chain=True)
            size = psutil.Process().memory_info().vms
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            logging.getLogger("limpet").setLevel(logging.CRITICAL)
            found = work(lambda what: _tell(told.fileno(), what))
            os.write(result.fileno(), json.dumps(found).encode())

        with Workers(target) as workers:
            ended, late = _ended(workers, workers.start(0), told.fileno())
        where = _text(told.fileno()).strip()
        if late or ended.status == -signal.SIGPROF:
            return [f"hang: in {where}\n{_text(stacks.fileno())}"], {}
        if ended.status < 0:
            name = signal.Signals(-ended.status).name
            return [f"{name}: in {where}\n{_text(stacks.fileno())}"], {}
        if ended.status:
            return [f"the client ended with {ended.status} in {where}: {ended.traceback}"], {}
        return [], json.loads(_text(result.fileno()))


def _ended(workers: Workers, pid: int, told: int) -> tuple[Exit, bool]:
    """How the child ended, and whether the parent had to end it."""
    before, since = "", time.monotonic()
    while not (gone := workers.wait(0.5)):
        if _text(told) != before:
            before, since = _text(told), time.monotonic()
        if time.monotonic() - since >= WALL_S:
            os.kill(pid, signal.SIGPROF)  # which writes its stacks
            return (workers.wait(5) or workers.end())[0], True
    return gone[0], False


def _tell(fd: int, what: str) -> None:
    """Note the next operation, and begin to count its time."""
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    os.pwrite(fd, what.encode(errors="replace").ljust(200)[:200], 0)


def _text(fd: int) -> str:
    return os.pread(fd, 1 << 24, 0).decode(errors="replace")


def run(
    kind: str,
    cases: int,
    seed: int,
    only: int | None = None,
    shown: Callable[[Case], None] = lambda case: None,
) -> DamageReport:
    """Run cases 0 to `cases` of a kind, or `only` one of them, until too many have failed."""
    start = time.monotonic()
    outcomes: Counter[str] = Counter()
    failed: list[Case] = []
    with Drill(kind, seed) as drill:
        for number in range(cases) if only is None else [only]:
            case = drill.case(number)
            outcomes[case.outcome] += 1
            shown(case)
            if case.failures:
                failed.append(case)
                if len(failed) >= FAILURES_MAX:
                    break
        return DamageReport(
            kind, seed, sum(outcomes.values()), time.monotonic() - start,
            {name: outcomes[name] for name in OUTCOMES}, drill.subject.checksum, tuple(failed),
        )  # fmt: skip
