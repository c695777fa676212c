"""Signal handlers that raise, at every verb and at random bytecodes, must leave nothing behind.

Ctrl-C, and any other exception of a program's signal handlers, can end any statement of the main
thread. The drill repeats each work of a subject (cut_works.py) and cuts it off in three ways:

    at a verb     a signal is raised at the k-th side (before or after) of a verb that it makes on
                  memory, for k = 1, 2, 3 ... until it ends uncut (or `verbs_max`)
    at a call     at the k-th place where the interpreter looks for signals: it enters a function of
                  Python, or a function of C has returned to one. Compiled code looks nowhere else,
                  so in that build these are all the places, but for loops and waits
    in a storm    a timer sends a signal, at a random time of those that the work takes

After each cut the handle must work, its client must not be pinned, and the promises of the work
must hold: after a drop that was cut off, the next drop frees everything. In the end, after
`recover`, no other client is there, `audit` finds no leaked memory, every lock can be taken, and
this process has as many descriptors, and the pool's folder as many segments, as before.

It cuts nothing off inside Python's logging: before Python 3.13, a handler that raises there leaves
the lock of that module taken for good, and with it every later fork of the process waits.

In the pure build a cut can leave the client pinned until its next operation (portable.py). So the
drill makes one more operation before it looks at the pin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import random
import re
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from limpet.fault.drill.cut_works import SUBJECTS, TOLERATED, Prepared, Work, Works, after_cuts
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.hooked import MUTATING, READS, WAITS, HookedEndpoint
from limpet.shm.endpoint.slots import PIN
from limpet.shm.errors import LimpetError, ReentrantUse
from limpet.stores.pool import Pool

SIGNAL: Final = signal.SIGUSR1
TIMER: Final = signal.SIGALRM
OWN: Final = ("fault/drill/cuts.py", "fault/drill/cut_works.py", "/random.py")
"""Whose calls are none of limpet's."""


AGAIN_S: Final = 1e-4
"""After this time a timer that met logging sends its signal again."""


class Cut(BaseException):
    """Raised by the signal handler."""


def is_logging(frame: FrameType | None) -> bool:
    """Whether this frame, or one that it was called from, is of Python's logging."""
    while frame is not None and frame.f_code.co_filename != logging.__file__:
        frame = frame.f_back
    return frame is not None


class CutEndpoint(HookedEndpoint, verbs=(*READS, *MUTATING, *WAITS)):
    """An Endpoint that raises a signal at the `cut_at`-th side of a verb from now on (0: never)."""

    cut_at = 0

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        self.meet()
        return words

    def on_done(self, verb: str, addr: int, words: int, value: int) -> None:
        self.meet()

    def meet(self) -> None:
        if self.cut_at:
            self.cut_at -= 1
            if not self.cut_at:
                signal.raise_signal(SIGNAL)


class CutPool(Pool):
    """A pool handle with such an endpoint."""

    endpoint_class = CutEndpoint
    endpoint: CutEndpoint


@dataclasses.dataclass(frozen=True)
class CutParameters:
    """`subject` of cut_works.py; `seconds` of storm; `verbs_max`: the most sides of verbs, and of
    calls, at which each work is cut; `stride`: only every so many; `seed` of random choices."""

    subject: str
    seconds: float = 2.0
    verbs_max: int = 400
    stride: int = 1
    seed: int = 1


@dataclasses.dataclass
class CutReport:
    """The counts of a drill, and the promises that did not hold."""

    subject: str
    works: int = 0
    at_verbs: int = 0
    at_calls: int = 0
    in_storm: int = 0
    uncut: int = 0
    dropped: int = 0
    """Of these cuts, those that Python dropped in a destructor: the work went on."""
    failures: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


class Drill:
    """One drill of one subject. In the main thread."""

    def __init__(self, parameters: CutParameters) -> None:
        self.parameters = parameters
        self.report = CutReport(parameters.subject)
        self.draw = random.Random(parameters.seed)
        self.url = f"shm://limpet-cuts-{os.getpid()}-{parameters.subject}"
        self.pid = os.getpid()
        self.armed = False
        self.cut = False
        self.took: dict[Work, float] = {}
        """How many seconds each work takes that is not cut off."""

    def run(self) -> CutReport:
        """Do it, in a pool of its own that is gone afterwards."""
        began = time.monotonic()
        _destroy(self.url)
        before = {each: signal.signal(each, self._on_signal) for each in (SIGNAL, TIMER)}
        hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        try:
            # `wait`: no process is killed because of a cut's leftovers, so that they are seen.
            pool = CutPool.create(
                self.url, nodes=3, node_size="8MiB", clients=16, lease=0.3, fence="wait"
            )
            try:
                self._all_works(pool)
            finally:
                with contextlib.suppress(ReentrantUse):  # the failures have it
                    pool.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            sys.unraisablehook = hook
            for url in (self.url, f"{self.url}-other"):
                _destroy(url)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _all_works(self, pool: CutPool) -> None:
        works = SUBJECTS[self.parameters.subject](pool, self.draw)
        self.report.works = len(works)
        for name, work in works.items():
            self._once(pool, f"{name}, uncut", work)
        held = self._held(pool)
        for name, work in works.items():
            self._at_verbs(pool, name, work)
            self._at_calls(pool, name, work)
        self._storm(pool, works)
        for name, work in works.items():
            for change, count in work.reached().items() if isinstance(work, Prepared) else ():
                self._note(name, "" if count else f"it came by no {change}")
        try:
            self._judge(pool, held)
        except ReentrantUse as error:
            self.report.failures.append(f"in the end: {error}")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.armed and os.getpid() == self.pid:  # a store may fork a process of its own
            if is_logging(frame):
                signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
                return
            self.armed = False
            self.cut = True
            raise Cut

    def _on_unraisable(self, lost: Any) -> None:
        """Count exceptions that Python drops because they were raised in a destructor."""
        if isinstance(lost.exc_value, Cut):
            self.report.dropped += 1
        elif not isinstance(lost.exc_value, ResourceWarning) and not (
            # A coroutine that was cut off before it began.
            isinstance(lost.exc_value, RuntimeWarning)
            and str(lost.exc_value).endswith("was never awaited")
        ):
            self.report.failures.append(f"in a destructor: {lost.exc_value!r}")

    def _try(self, work: Work) -> str:
        """Do a work once, armed or not; the forbidden error that it raised."""
        try:
            work()
        except Cut:
            pass
        except TOLERATED:
            pass
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _armed(self, work: Work, call: int, delay_s: float) -> str:
        """Do a work once with the handler armed; `cut` says whether it was cut off. `call`: at
        which call a signal is raised; `delay_s`: when the timer sends one; 0: never."""
        self.cut = False
        left = call

        def meet(frame: FrameType, event: str, _: object) -> None:
            nonlocal left
            if event in ("call", "c_return") and not frame.f_code.co_filename.endswith(OWN):
                left -= 1
                if left <= 0 and not is_logging(frame):
                    sys.setprofile(None)
                    signal.raise_signal(SIGNAL)

        try:
            try:
                self.armed = True
                if delay_s:
                    signal.setitimer(signal.ITIMER_REAL, delay_s)
                if call:
                    sys.setprofile(meet)
                return self._try(work)
            finally:
                self.armed = False
                if call:
                    sys.setprofile(None)
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Cut:  # when `_try` was over
            return ""

    def _once(
        self, pool: CutPool, when: str, work: Work | Prepared, verb: int = 0, call: int = 0,
        delay_s: float = 0,
    ) -> None:  # fmt: skip
        """Do a work once with the handler armed, and inspect the state after it. `verb`: at which
        side of a verb it is cut off; `call` and `delay_s` as of `_armed`."""
        if isinstance(work, Prepared):
            try:
                work.prepare()
                self._once(pool, when, work.work, verb, call, delay_s)
                self._note(when, work.judge())
            except LimpetError as error:
                self._note(when, f"before or afterwards {type(error).__name__}: {error}")
            return
        pool.endpoint.cut_at = verb
        began = time.monotonic()
        wrong = self._armed(work, call, delay_s)
        if not self.cut:
            self.took[work] = time.monotonic() - began
        pool.endpoint.cut_at = 0
        self._look(pool, when, wrong)

    def _at_verbs(self, pool: CutPool, name: str, work: Work | Prepared) -> None:
        for count in range(1, self.parameters.verbs_max + 1, self.parameters.stride):
            self._once(pool, f"{name}, cut at side {count} of a verb", work, verb=count)
            self.report.at_verbs += self.cut
            if not self.cut:
                return

    def _at_calls(self, pool: CutPool, name: str, work: Work | Prepared) -> None:
        for count in range(1, self.parameters.verbs_max + 1, self.parameters.stride):
            self._once(pool, f"{name}, cut at call {count}", work, call=count)
            self.report.at_calls += self.cut
            if not self.cut:
                return

    def _storm(self, pool: CutPool, works: Works) -> None:
        end = time.monotonic() + self.parameters.seconds
        names = list(works)
        growing = [name for name in names if isinstance(works[name], Prepared)]
        while time.monotonic() < end:
            name = self.draw.choice(self.draw.choice((names, growing or names)))
            work = works[name]
            took = self.took[work.work if isinstance(work, Prepared) else work]
            # now and then later than the work ends
            delay_s = 1e-6 + 1.1 * self.draw.random() * took
            self._once(pool, f"{name}, in a storm", work, delay_s=delay_s)
            self.report.in_storm += self.cut
            self.report.uncut += not self.cut

    # ---- demands --------------------------------------------------------------------------------

    def _look(self, pool: CutPool, when: str, wrong: str) -> None:
        self._note(when, wrong)
        try:
            if BUILD == "compiled":
                self._look_at_pin(pool, when)
            pool.nodes()
            self._look_at_pin(pool, when)
        except LimpetError as error:
            self.report.failures.append(f"{when}: afterwards {type(error).__name__}: {error}")

    def _note(self, when: str, wrong: str) -> None:
        if wrong:
            self.report.failures.append(f"{when}: {wrong}")

    def _look_at_pin(self, pool: CutPool, when: str) -> None:
        if pool.endpoint.load(pool.client.slot + PIN):
            self.report.failures.append(f"{when}: the client is left pinned")

    def _held(self, pool: CutPool) -> tuple[int, list[str]]:
        """Descriptors of this process, and segments of the pool."""
        gc.collect()
        name = pool.url.removeprefix("shm://")
        found = SHM_DIR.glob(f"limpet.{name}.*")
        segments = {re.sub(r"-\d+$", "", path.name) for path in found}  # of any generation
        return len(list(Path("/proc/self/fd").iterdir())), sorted(segments)

    def _judge(self, pool: CutPool, held: tuple[int, list[str]]) -> None:
        failures = self.report.failures
        with contextlib.suppress(LimpetError):
            for found in pool.nodes():
                if found["state"] != "in service":
                    pool.replace_node(found["node"])
        pool.recover()
        others = [client for client in pool.clients() if not client["ours"]]
        if others:
            failures.append(f"clients are left: {others}")
        leaked = pool.audit()["leaked"]
        if leaked:
            failures.append(f"{leaked} bytes are leaked")
        now = self._held(pool)
        if now[0] > held[0]:
            failures.append(f"{now[0] - held[0]} descriptors are leaked")
        if now[1] != held[1]:
            failures.append(f"segments were {held[1]} and are {now[1]}")
        if self.parameters.subject == "channels":
            with Pool.open(pool.url) as other:
                failures += after_cuts(pool, other)


def _destroy(url: str) -> None:
    with contextlib.suppress(LimpetError):
        destroy(url)


def drill(parameters: CutParameters) -> CutReport:
    """Cut off the works of one subject. In the main thread."""
    return Drill(parameters).run()
