"""The semaphore, the reader-writer lock and the condition in the simulator.

Semaphore (HoldersModel); the second letter says how long it waits: w for ever, t TIMEOUT_S, n not
    a       acquire a permit, and release it; of a semaphore with 0 permits: without the release,
            and where it would wait for ever, only for TIMEOUT_S
    b       acquire a permit in any time, one more as the letter says, and release both
    s       release a permit, which another client may hold, or none
In the end the survivor gives back what the dead held, and takes all permits that are free.

Reader-writer lock (HoldersModel)
    s, x    read, or write
    d       read, and read again in that
A client that does not wait is refused, too, where clients that it prefers are waiting. In the end
the survivor gives back what the dead held, reads, and writes.

Condition (notify_history.py), each with its lock
    w       wait for TIMEOUT_S
    1, 2, 3 notify so many; 0: all
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from limpet.fault.check.channel_history import judge
from limpet.fault.check.channel_models import HoldersModel, HoldOp
from limpet.fault.check.linearize import NEVER, Timed
from limpet.fault.check.notify_history import NotifyOp, judge_notifies
from limpet.fault.explore.sim_channels import (
    AT_ONCE,
    FOR_SOME_TIME,
    TIMEOUT_S,
    WAIT,
    ChannelRun,
)
from limpet.fault.explore.sim_cluster import SimulatedClient
from limpet.stores.channels.holders.layout import KEPT_S

MANY: Final = 99
"""More than all clients that wait."""


def take(
    run: ChannelRun, channel: Any, client: int, exclusive: bool, get: Callable[[], bool]
) -> bool:
    """Take a hold by `get`; whether it did."""
    op = HoldOp("take", client, exclusive)

    def work() -> HoldOp:
        if get():
            return op._replace(inherited=channel.inherited)
        return op._replace(kind="refused")

    return bool(run.note(op, work).kind == "take")


def give(run: ChannelRun, client: int, exclusive: bool, release: Callable[[], object]) -> None:
    """Give a hold back by `release`."""
    op = HoldOp("release", client, exclusive)

    def work() -> HoldOp:
        try:
            release()
        except ValueError:
            return op._replace(kind="over")
        return op

    run.note(op, work)


def bury(run: ChannelRun, channel: Any) -> None:
    """Give back, as the survivor, what the dead hold."""
    with channel.operation():
        channel.row()
        channel.bury()
    run.overdue("die")


def use(client: SimulatedClient) -> None:
    """Work with what is held, so that others meet it."""
    client.endpoint.pause(0)


class SemaphoreRun(ChannelRun):
    """One run of a program on a semaphore."""

    def death(self, client: int) -> HoldOp:
        return HoldOp("die", client)

    def act(self, channel: Any, client: SimulatedClient, kind: str, key: bytes) -> None:
        number = client.number
        if kind == "s":
            give(self, number, False, channel.release)
            return
        had = 0
        for way in (key,) if kind == "a" else (WAIT, key):
            if way == WAIT and (had or not channel.limit):
                way = FOR_SOME_TIME  # else clients may wait for each other, or for a signal
            if not self.acquire(channel, number, way):
                break
            had += 1
            use(client)
        for _ in range(had if channel.limit else 0):
            give(self, number, False, channel.release)

    def acquire(self, channel: Any, client: int, way: bytes) -> bool:
        if way == AT_ONCE:
            return take(self, channel, client, False, lambda: channel.acquire(False))
        timeout = None if way == WAIT else TIMEOUT_S
        return take(self, channel, client, False, lambda: channel.acquire(True, timeout))

    def finish(self, channel: Any) -> str:
        bury(self, channel)
        while self.acquire(channel, self.survivor, AT_ONCE):
            pass
        return ""

    def wrong(self) -> str:
        given = self.cluster.given
        return judge(
            HoldersModel(self.survivor + 1, given["value"], given["bounded"]), self.history
        )


class RwLockRun(ChannelRun):
    """One run of a program on a reader-writer lock."""

    patience_s = 1.5 * KEPT_S
    """So those that are let go first, and stand still, are passed over."""

    def death(self, client: int) -> HoldOp:
        return HoldOp("die", client)

    def act(self, channel: Any, client: SimulatedClient, kind: str, key: bytes) -> None:
        side = channel.write() if kind == "x" else channel.read()
        if not self.hold(channel, client.number, side, key):
            return
        use(client)
        if kind == "d" and self.hold(channel, client.number, channel.read(), WAIT):
            use(client)
            give(self, client.number, False, side.release)
        give(self, client.number, kind == "x", side.release)

    def hold(self, channel: Any, client: int, side: Any, way: bytes) -> bool:
        """Take it for a use."""

        def get() -> bool:
            if way == AT_ONCE:
                return bool(side.acquire(False))
            return bool(side.acquire(True, -1 if way == WAIT else TIMEOUT_S))

        return take(self, channel, client, bool(side.line), get)

    def finish(self, channel: Any) -> str:
        bury(self, channel)
        for side in (channel.read(), channel.write()):
            if not self.hold(channel, self.survivor, side, AT_ONCE):
                return f"held: by no client, and the survivor cannot take {side!r}"
            give(self, self.survivor, bool(side.line), side.release)
        return ""

    def wrong(self) -> str:
        preferred = self.cluster.given["prefer"] == "writers"
        history = [one for one in self.history if not _gives_way(one, self.history, preferred)]
        return judge(HoldersModel(self.survivor + 1, None), history)


def _gives_way(refused: Timed[HoldOp], history: Sequence[Timed[HoldOp]], writers: bool) -> bool:
    """Whether a client was perhaps refused as others waited that go first: `writers`, or readers.
    These are clients that were in a call meanwhile; a dead one is in its last call."""
    if refused.op.kind != "refused" or refused.op.exclusive == writers:
        return False
    return any(
        one.op.kind in ("take", "refused")
        and one.op.exclusive == writers
        and one.call_ns < (refused.return_ns or NEVER)
        and refused.call_ns < (one.return_ns or NEVER)
        for one in history
    )


class ConditionRun(ChannelRun):
    """One run of a program on a condition."""

    def death(self, client: int) -> NotifyOp:
        return NotifyOp("die", client)

    def act(self, channel: Any, client: SimulatedClient, kind: str, key: bytes) -> None:
        with channel:
            if kind == "w":
                op = NotifyOp("wait", client.number)
                self.note(op, lambda: op._replace(told=channel.wait(TIMEOUT_S)))
            else:
                op = NotifyOp("notify", client.number, int(kind) or MANY)
                self.note(op, lambda: channel.notify(op.most) or op)
            use(client)

    def finish(self, channel: Any) -> str:
        self.cluster.setup_client.recover()
        if not channel.acquire(True, TIMEOUT_S):
            return "held: the lock, by no client"
        channel.release()
        return ""

    def wrong(self) -> str:
        wrong = judge_notifies(self.history)
        return wrong and f"history: {wrong}"
