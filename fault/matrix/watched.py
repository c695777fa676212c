"""A watched child: it reports each step, and if it does not end, it is ended with its stacks.

Its crash fuse ends it after a number of memory steps, as in an endless loop of CASes. A timer ends
a child that neither ends nor makes steps, and writes the stacks of its threads. The timer works in
C, without the interpreter, so it also ends a compiled loop that no signal handler interrupts.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from typing import IO, Any

from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.operations import Broken, demand
from limpet.fault.matrix.testbed import PATIENCE_S, within


def run_watched(
    work: Callable[[Callable[[str], None]], object],
    describe: Callable[[str], str],
    steps_max: int,
) -> None:
    """Run `work(tell)` in a forked child, which calls `tell` before each step with its name.

    Raises Broken when it failed or did not end; `describe` turns its last message into its name and
    its place. `work` sets the fuse of its endpoint to `steps_max`.
    """
    with (
        os.fdopen(os.memfd_create("limpet-told"), "w+b", buffering=0) as told,
        os.fdopen(os.memfd_create("limpet-stacks"), "w+") as stacks,
    ):

        def tell(what: str) -> None:
            os.pwrite(told.fileno(), what.encode().ljust(120)[:120], 0)

        def target(slot: int, incarnation: int) -> None:
            end_after(PATIENCE_S, stacks)
            work(tell)

        name = describe("its beginning")
        try:
            with within(2 * PATIENCE_S, name), Workers(target) as workers:
                ended = workers.reap(workers.start(0))
        except Broken as error:
            raise Broken(f"{error}: {_text(told)}") from error
        name = describe(_text(told))
        demand(ended.status != -signal.SIGKILL, f"{name} did not end within {steps_max} steps")
        if ended.status:
            why = ended.traceback or _text(stacks)
            raise Broken(f"{name} failed with {ended.status}: {why}")


def end_after(seconds: float, stacks: IO[str]) -> None:
    """End this process by SIGALRM after so many seconds; it writes its stacks before.

    (Not by faulthandler's own timer, whose lock a forked child finds held by a thread that it does
    not have.)
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, file=stacks, all_threads=True, chain=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _text(file: Any) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace").strip()
