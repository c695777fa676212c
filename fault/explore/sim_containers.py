"""The deque and the topic in the simulator: their words, and what their histories must be.

Deque (DequeModel)
    a, b    append at the right end, or the left one; aL, bL: an element that takes an object
    p, q    pop from the right end, or the left one
    c       clear
    l       all elements of one moment
In the end the survivor takes all elements, before and after the recovery of the dead.

Topic (TopicModel)
    p       publish; pL: a message that takes an object
    n, o    subscribe from now on, or from the oldest message on
    g, w    get the next message of the client's subscription, at once or within TIMEOUT_S; a
            client's first one begins with the oldest
In the end the survivor reads all messages that are kept, and the living go on where they are.
"""

from __future__ import annotations

import queue
from typing import Any

from limpet.fault.check.channel_history import judge
from limpet.fault.check.channel_models import DequeModel, DequeOp, TopicModel, TopicOp
from limpet.fault.explore.sim_channels import TIMEOUT_S, ChannelRun, data_of, label_of
from limpet.fault.explore.sim_cluster import SimulatedClient
from limpet.stores.channels.topic import NOW, OLDEST


class DequeRun(ChannelRun):
    """One run of a program on a deque."""

    def act(self, channel: Any, client: SimulatedClient, kind: str, key: bytes) -> None:
        label = b"%d.%d" % (client.number, client.op)
        self.do(channel, kind, label, data_of(label, key))

    def do(self, channel: Any, kind: str, label: bytes = b"", data: bytes = b"") -> bool:
        """A word; whether it found what it needs."""
        name = {"a": "append", "b": "appendleft", "p": "pop", "q": "popleft", "c": "clear",
                "l": "list"}[kind]  # fmt: skip
        op = DequeOp(name, label if kind in "ab" else None)

        def work() -> DequeOp:
            if kind == "l":
                return op._replace(found=tuple(map(label_of, channel)))
            try:
                if kind in "ab":
                    getattr(channel, name)(data)
                elif kind == "c":
                    channel.clear()
                else:
                    return op._replace(value=label_of(getattr(channel, name)()))
            except queue.Full:
                return DequeOp("full")
            except IndexError:
                return DequeOp("empty")
            return op

        return bool(self.note(op, work).kind != "empty")

    def finish(self, channel: Any) -> str:
        self.do(channel, "l")
        self.cluster.setup_client.recover()
        self.do(channel, "l")
        self.do(channel, "a" if len(channel) < channel.size else "q", b"last", b"last")
        while self.do(channel, "q"):
            pass
        return ""

    def wrong(self) -> str:
        given = self.cluster.given
        return judge(DequeModel(given["size"], given["bounded"]), self.history)


class TopicRun(ChannelRun):
    """One run of a program on a topic."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.readers: dict[int, Any] = {}
        """The subscription of each client."""

    def act(self, channel: Any, client: SimulatedClient, kind: str, key: bytes) -> None:
        label = b"%d.%d" % (client.number, client.op)
        if kind == "p":
            self.publish(channel, label, data_of(label, key))
        elif kind in "no":
            self.subscribe(channel, client.number, NOW if kind == "n" else OLDEST)
        else:
            self.get(channel, client.number, TIMEOUT_S if kind == "w" else 0.0)

    def publish(self, channel: Any, label: bytes, data: bytes) -> None:
        op = TopicOp("publish", label)
        self.note(op, lambda: op._replace(number=channel.publish(data)))

    def subscribe(self, channel: Any, client: int, start: str) -> None:
        op = TopicOp(start)

        def work() -> TopicOp:
            self.readers[client] = reader = channel.subscribe(start)
            return op._replace(position=reader.position)

        self.note(op, work)

    def get(self, channel: Any, client: int, timeout: float) -> bool:
        """Get a message; whether there was one."""
        if client not in self.readers:
            self.subscribe(channel, client, OLDEST)
        reader = self.readers[client]
        position, lost = reader.position, reader.lost
        op = TopicOp("get", position=position)

        def work() -> TopicOp:
            try:
                label = label_of(reader.get(timeout=timeout))
            except queue.Empty:
                return TopicOp("none", position=reader.position)
            return op._replace(value=label, number=reader.position - 1, missed=reader.lost - lost)

        return bool(self.note(op, work).kind == "get")

    def finish(self, channel: Any) -> str:
        self.cluster.setup_client.recover()
        self.publish(channel, b"last", b"last")
        op = TopicOp("published")
        self.note(op, lambda: op._replace(number=channel.published()))
        self.subscribe(channel, self.survivor, OLDEST)
        gone = self.cluster.processes.gone
        for client in [self.survivor, *(one.number for one in self.clients if one.pid not in gone)]:
            while client in self.readers and self.get(channel, client, 0.0):
                pass
        self.rest()
        return ""

    def wrong(self) -> str:
        return judge(TopicModel(self.cluster.given["size"]), self.history)
