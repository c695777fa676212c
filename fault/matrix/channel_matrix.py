"""The crash matrix of channels: their calls, killed at every step, with survivor and successor.

A victim, forked from a warm parent, makes one call of a channel and dies at its k-th step. The
parent is the survivor. It demands, before any recovery or after it, that the call happened or did
not, and that a *round* of all calls of the channel has the right results. Then a new process takes
the victim's client slot, opens the channel and does such a round twice, and the survivor does one
again. In the end no byte may be leaked or held, no client dead, and the memory of channels has to
pass its check. Two more calls are those of the manager: to `make` a channel, and to `remove` one.

Dimensions              the victim is                                           runs for a step
    killed              met by the survivor first, then recovered and           1
                        succeeded
    succeeded           recovered, and succeeded before the survivor looks      1
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from limpet.fault.inject.watched import run_watched
from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.fault.matrix.crash_matrix import DISTANT, LATE_MAX, LIMIT, chosen
from limpet.fault.matrix.matrix_result import MatrixResult, ResultCollector
from limpet.fault.matrix.operations import demand
from limpet.fault.matrix.testbed import PATIENCE_S, PoolTestbed, look_away, within
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import LimpetError
from limpet.stores.pool import Pool

DIMENSIONS: Final = ("killed", "succeeded")
STEPS_MAX: Final = 100_000
"""The most memory steps of a successor: a hundred times as many as it takes."""
WAIT_S: Final = 5.0
"""The timeout of every call that waits; none should have to."""
NAME: Final = "channel"
MAKE: Final = "make"
REMOVE: Final = "remove"
NAMES: Final = {MAKE: "made", REMOVE: "removed"}
"""The names of the channels in calls of the manager."""
_count = itertools.count()


def calls_of(kind: str) -> list[str]:
    """The calls at whose steps a client of this kind of channel is killed."""
    return [*CHANNELS[kind].calls, *NAMES]


class ChannelTestbed(PoolTestbed):
    """A small pool with one channel, the survivor's handle of it, and victims."""

    def __init__(self, url: str, kind: str) -> None:
        super().__init__(
            Pool.create(url, nodes=2, node_size=512 << 10, clients=16, lease_us=1_000), url
        )
        self.channel = CHANNELS[kind]
        self.handle = self.channel.open(self.pool, NAME)

    @contextlib.contextmanager
    def using(self, name: str = NAME) -> Iterator[Any]:
        """The survivor's handle."""
        handle = self.channel.open(self.pool, name)
        try:
            yield handle
        finally:
            self.channel.release(handle)

    def prepare(self, call: str) -> None:
        with self.using() as handle:
            self.channel.prepare(handle)
        if call == REMOVE:
            self.round(call)

    def round(self, call: str) -> None:
        """A round of the channel on which the victim worked."""
        with self.using(NAMES.get(call, NAME)) as handle:
            self.channel.round(handle, WAIT_S)

    def judge(self, call: str) -> None:
        with self.using() as handle:
            if call not in NAMES:
                self.channel.judge(handle, WAIT_S)

    def tidy(self, call: str) -> None:
        """Remove the channel that was made for a call."""
        if call in NAMES:
            self.pool.channels.remove(NAMES[call])

    def victim(self, call: str, fuse: int) -> Callable[[int, int], None]:
        """The body of a victim. Words of `shared`: client id, steps that it took."""
        pool, channel = self.pool, self.channel
        self.shared[:] = bytes(64)

        def target(slot: int, incarnation: int) -> None:
            look_away(pool)
            self.tell(0, int(pool.client_id) and pool.membership.ident)
            handle = channel.open(pool, NAME)
            pool.endpoint.fuse = fuse
            if call == MAKE:
                channel.open(pool, NAMES[call])
            elif call == REMOVE:
                pool.channels.remove(NAMES[call])
            else:
                channel.calls[call](handle)
            self.tell(1, fuse - pool.endpoint.fuse)
            pool.endpoint.fuse = 0
            os._exit(0)

        return target

    def succeed(self, call: str) -> None:
        """Run a successor to its end, in the slot of the victim."""
        ident, channel = self.told(0), self.channel

        def work(tell: Callable[[str], None]) -> None:
            tell("opening the pool")
            pool = Pool.open(self.url)
            slot = pool.membership.ident >> INCARNATION_BITS
            demand(
                slot == ident >> INCARNATION_BITS,
                f"the successor has slot {slot}, the victim had {ident >> INCARNATION_BITS}",
            )
            pool.endpoint.fuse = STEPS_MAX
            for number in (1, 2):
                tell(f"round {number}")
                handle = channel.open(pool, NAMES.get(call, NAME))
                channel.round(handle, WAIT_S)
                channel.release(handle)
            tell("leaving")
            pool.close()

        run_watched(work, lambda what: f"the successor, in {what},", STEPS_MAX)

    def inspect(self) -> None:
        """Demand that no byte is leaked or held in the pool, and no client dead."""
        self.account(1 + len(self.pool.channels.keepers))
        self.pool.channels.catalogue.check()


class ChannelMatrix:
    """Runs calls of one kind of channel through the dimensions. In the main thread only.

    `limit`: about so many runs of one dimension of one call; None: every step.
    """

    def __init__(
        self,
        kind: str,
        limit: int | None = LIMIT,
        testbed: Callable[[str, str], ChannelTestbed] = ChannelTestbed,
    ) -> None:
        self.kind = kind
        self.limit = limit
        self._make_testbed = testbed

    @contextlib.contextmanager
    def testbed(self) -> Iterator[ChannelTestbed]:
        """A new pool, gone afterwards."""
        url = f"shm://limpet-matrix-{os.getpid()}-c{next(_count)}"
        made = None
        try:
            with within(PATIENCE_S, "the survivor, which prepares a pool"):
                made = self._make_testbed(url, self.kind)
            yield made
        finally:
            if made is not None:
                made.close()
            with contextlib.suppress(LimpetError):
                destroy(url)

    def steps(self, call: str) -> int:
        """Steps of the call without interference."""
        with self.testbed() as testbed:
            testbed.prepare(call)
            demand(not testbed.run(testbed.victim(call, DISTANT)), "the fuse was too short")
            return testbed.told(1)

    def run(self, call: str, dimension: str, step: int | None = None) -> MatrixResult:
        """The call, killed at its steps, or at one of them only."""
        found = ResultCollector(self.kind, call, dimension)
        found.steps = found.counted("undisturbed", lambda: self.steps(call)) or 0
        if not found.steps and not found.failures:
            found.failures.append("undisturbed: it has no step to be killed at")
        waiting = [*chosen(found.steps, self.limit), found.steps + 1] if step is None else [step]
        while waiting and not found.full and found.steps:
            found.at = f"k={waiting[0]}"
            with found.judging(), self.testbed() as testbed:
                alone = testbed.channel.fresh
                while waiting:
                    k = waiting.pop(0)
                    found.at = f"k={k}"
                    found.runs += 1
                    if self._once(testbed, call, dimension, k):
                        found.tried.add(k)
                        if not waiting and step is None:
                            demand(k < found.steps + LATE_MAX, f"{call} does not end")
                            waiting.append(k + 1)
                    if alone:
                        break
        return found.result()

    def _once(self, testbed: ChannelTestbed, call: str, dimension: str, k: int) -> bool:
        with within(PATIENCE_S, "the survivor, which prepares the channel"):
            testbed.prepare(call)
        died = testbed.run(testbed.victim(call, k))
        with within(PATIENCE_S, "the survivor"):
            if dimension == "killed":
                testbed.judge(call)
                testbed.round(call)
            testbed.pool.recover()
            if dimension == "killed":
                testbed.inspect()
        testbed.succeed(call)
        with within(PATIENCE_S, "the survivor, after the successor"):
            testbed.round(call)
            testbed.tidy(call)
            testbed.pool.recover()
            testbed.inspect()
        return died


def run(
    kind: str,
    calls: list[str] | None = None,
    limit: int | None = LIMIT,
    dimensions: Sequence[str] | None = None,
    step: int | None = None,
) -> Iterator[MatrixResult]:
    """A MatrixResult for every dimension of every call of a channel kind. As crash_matrix.run."""
    matrix = ChannelMatrix(kind, limit)
    for call in calls or calls_of(kind):
        for dimension in DIMENSIONS if dimensions is None else dimensions:
            yield matrix.run(call, dimension, step)
