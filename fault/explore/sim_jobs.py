"""The queue with acks in the simulator (JobsModel).

A word is a letter and what it is about. The first letter puts, or gets a job and does with it:
    p       put: 0, 3 with this priority; L an element that takes an object; k, m with this key; d
            with a delay of DELAY_S
    a, t    get a job, at once or within TIMEOUT_S, and acknowledge it
    n, d    get a job at once, and give it back, at once or after DELAY_S
    o       get a job at once, and drop the delivery
    l, m    get a dead letter: acknowledge it, or make it a job again
In the end the survivor waits until all jobs are ready that are delayed, gets and acknowledges all
jobs, and all dead letters: then all places are free, and `join` has no job to wait for.
"""

from __future__ import annotations

import queue
from typing import Any, Final

from limpet.fault.check.channel_history import judge
from limpet.fault.check.channel_models import JobOp, JobsModel
from limpet.fault.explore.sim_channels import LARGE, TIMEOUT_S, ChannelRun, data_of, label_of
from limpet.fault.explore.sim_cluster import SimulatedClient

DELAY_S: Final = 2.0**-13
KEYS: Final = (b"k", b"m")
LATER_S: Final = 1.0
"""Later than all that clients have delayed."""


class JobsRun(ChannelRun):
    """One run of a program on a queue with acks."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.early = ""
        """A job that was got before its delay was over."""
        self.due: dict[bytes, float] = {}
        """When a job that was put, or given back, is ready, at the earliest."""

    def death(self, client: int) -> JobOp:
        return JobOp("die", client)

    def act(self, channel: Any, client: SimulatedClient, kind: str, key: bytes) -> None:
        if kind == "p":
            self.put(channel, client.number, b"%d.%d" % (client.number, client.op), key)
        elif kind in "lm":
            self.settle(channel, self.letter(channel, client.number), client.number, kind)
        else:
            timeout = TIMEOUT_S if kind == "t" else 0.0
            self.settle(channel, self.get(channel, client.number, timeout), client.number, kind)

    def put(self, channel: Any, client: int, label: bytes, flavour: bytes) -> None:
        level = int(flavour) if flavour.isdigit() else 0
        key = flavour if flavour in KEYS else b""
        delay = DELAY_S if flavour == b"d" else 0.0
        op = JobOp("put", client, label, level, key, delay > 0)
        due = self.delayed(label) if delay else 0.0

        def work() -> JobOp:
            try:
                data = data_of(label, flavour if flavour == LARGE else b"")
                put = channel.put(data, False, delay=delay, priority=level, key=key or None)
            except queue.Full:
                return op._replace(kind="full")
            if not put:
                return op._replace(kind="exists")
            self.due[label] = due
            return op

        self.note(op, work)

    def delayed(self, label: bytes) -> float:
        """A job is being delayed, and becomes ready by itself; when, at the earliest."""
        self.begin(JobOp("due", value=label))
        return self.cluster.clock + DELAY_S

    def get(self, channel: Any, client: int, timeout: float) -> Any:
        """Get a job; its delivery, or None."""
        op = JobOp("get", client)
        found = []

        def work() -> JobOp:
            try:
                found.append(channel.get(timeout=timeout))
            except queue.Empty:
                return op._replace(kind="none")
            label = label_of(found[0].value)
            if self.cluster.clock < self.due.get(label, 0.0) - 1e-6:
                self.early = self.early or f"early: {label!r} was got before its delay was over"
            return op._replace(value=label, deliveries=found[0].deliveries)

        self.note(op, work)
        return found[0] if found else None

    def letter(self, channel: Any, client: int) -> Any:
        """Get a dead letter; its delivery, or None."""
        op = JobOp("letter", client)
        found = []

        def work() -> JobOp:
            try:
                found.append(channel.dead_letters.get_nowait())
            except queue.Empty:
                return op._replace(kind="no letter")
            return op._replace(value=label_of(found[0].value))

        self.note(op, work)
        return found[0] if found else None

    def settle(self, channel: Any, delivery: Any, client: int, kind: str) -> None:
        """Acknowledge a job, or give it back."""
        if delivery is None:
            return
        label = label_of(delivery.value)
        delayed = kind == "d"
        name = {"n": "nack", "d": "nack", "o": "nack", "m": "retry"}.get(kind, "ack")
        op = JobOp(name, client, label, delayed=delayed)
        due = self.delayed(label) if delayed else 0.0

        def work() -> JobOp:
            if kind == "o":
                delivery.__del__()
            elif delayed:
                delivery.nack(DELAY_S)
            else:
                getattr(delivery, name)()
            # after its last delivery it is a dead letter, whatever the delay
            if delivery.deliveries < channel.table.max_deliveries:
                self.due[label] = due
            return op

        self.note(op, work)

    def finish(self, channel: Any) -> str:
        self.cluster.setup_client.recover()
        channel.give_back()
        self.overdue("die")
        self.cluster.clock += LATER_S
        self.overdue("due")
        while (delivery := self.get(channel, self.survivor, 0.0)) is not None:
            self.settle(channel, delivery, self.survivor, "a")
        while (delivery := self.letter(channel, self.survivor)) is not None:
            self.settle(channel, delivery, self.survivor, "l")
        counts = channel.counts()
        if counts["free"] != channel.maxsize:
            return f"lost: not all places are free: {counts}"
        return "" if channel.join(0.0) else "lost: no job is left, and `join` waits for some"

    def wrong(self) -> str:
        given = self.cluster.given
        model = JobsModel(given["maxsize"], given["max_deliveries"])
        return self.early or judge(model, self.history)
