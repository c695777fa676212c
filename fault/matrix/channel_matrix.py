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
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.fault.matrix.crash_matrix import LIMIT, Sweep
from limpet.fault.matrix.matrix_result import MatrixResult
from limpet.fault.matrix.operations import Operation, demand
from limpet.fault.matrix.testbed import PATIENCE_S, PoolTestbed, look_away, within
from limpet.fault.matrix.watched import run_watched
from limpet.shm.endpoint.slots import INCARNATION_BITS
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


def calls_of(kind: str) -> list[str]:
    """The calls at whose steps a client of this kind of channel is killed."""
    return [*CHANNELS[kind].calls, *NAMES]


class ChannelTestbed(PoolTestbed):
    """A small pool with one channel, the survivor's handle of it, and victims."""

    def __init__(self, url: str, kind: str, fence: str = "kill") -> None:
        super().__init__(
            Pool.create(url, nodes=2, node_size=512 << 10, clients=16, lease=0.001, fence=fence),
            url,
        )
        self.channel = CHANNELS[kind]
        self.store = self.channel.open(self.pool, NAME)

    @contextlib.contextmanager
    def using(self, name: str = NAME) -> Iterator[Any]:
        """The survivor's handle."""
        handle = self.channel.open(self.pool, name)
        try:
            yield handle
        finally:
            self.channel.release(handle)

    def reset(self, call: Operation) -> None:
        """Set the state in which the call begins."""
        with self.using() as handle:
            self.channel.prepare(handle)
        if call.name == REMOVE:
            self.round(REMOVE)

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

    def victim(self, call: Operation, fuse: int) -> Callable[[int, int], None]:
        """The body of a victim. Words of `shared`: client id, steps that it took."""
        pool = self.pool
        self.shared[:] = bytes(64)

        def target(slot: int, incarnation: int) -> None:
            look_away(pool)
            self.tell(0, int(pool.client_id) and pool.membership.ident)
            handle = self.channel.open(pool, NAME)
            pool.endpoint.fuse = fuse
            call.run(pool, handle)
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
        self.account(1 + len(self.pool.keepers.all))
        self.pool.channels.catalogue.check()


class ChannelMatrix(Sweep):
    """Runs calls of one kind of channel through the dimensions."""

    def __init__(
        self,
        kind: str,
        limit: int | None = LIMIT,
        testbed: Callable[[str, str, str], ChannelTestbed] = ChannelTestbed,
        step: int | None = None,
    ) -> None:
        super().__init__(kind, limit, testbed, step)

    def call(self, name: str) -> Operation:
        """One call of the channel, or of the manager."""
        channel = CHANNELS[self.kind]
        run: Callable[[Pool, Any], object]
        if name == MAKE:
            run = lambda pool, handle: channel.open(pool, NAMES[MAKE])  # noqa: E731
        elif name == REMOVE:
            run = lambda pool, handle: pool.channels.remove(NAMES[REMOVE])  # noqa: E731
        else:
            run = lambda pool, handle: channel.calls[name](handle)  # noqa: E731
        return Operation(name, run, fresh=channel.fresh)

    def run(self, name: str, dimension: str) -> MatrixResult:
        """The call, killed at its steps, or at one of them only."""
        call = self.call(name)
        found = self._begin(call, dimension)
        if not found.failures:
            found.tried = self._sweep(
                found, call, "k=", self._swept(found.steps),
                lambda testbed, k, _: self._once(testbed, call, dimension, k),
            )  # fmt: skip
        return found.result()

    def _once(self, testbed: ChannelTestbed, call: Operation, dimension: str, k: int) -> bool:
        died = testbed.run(testbed.victim(call, k))
        with within(PATIENCE_S, "the survivor"):
            if dimension == "killed":
                testbed.judge(call.name)
                testbed.round(call.name)
            testbed.pool.recover()
            if dimension == "killed":
                testbed.inspect()
        testbed.succeed(call.name)
        with within(PATIENCE_S, "the survivor, after the successor"):
            testbed.round(call.name)
            testbed.tidy(call.name)
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
    matrix = ChannelMatrix(kind, limit, step=step)
    for call in calls or calls_of(kind):
        for dimension in DIMENSIONS if dimensions is None else dimensions:
            yield matrix.run(call, dimension)
