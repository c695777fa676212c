"""The shared queue in the simulator: many schedules of a few producers and consumers; some die.

The words of a program: `p` puts a value of its own, with the key L one that takes an object, and
`g` gets; neither waits. After a run, the survivor gets all values that are left; then
    - the history is that of a queue (models.QueueModel)
    - each value is got once at most, and once if its put returned and no get was cut
    - the missing values are those that dead clients had (`lost`), and none that was left in the
      queue
"""

from __future__ import annotations

import queue
from typing import Any

from limpet.fault.check.channel_history import judge_queue
from limpet.fault.check.history import Record
from limpet.fault.explore.sim_channels import ChannelRun, data_of, label_of
from limpet.fault.explore.sim_cluster import SimulatedClient


class QueueRun(ChannelRun):
    """One run of a program of puts and gets."""

    def act(self, channel: Any, client: SimulatedClient, kind: str, key: bytes) -> None:
        channel.patience = 2
        label = b"%d.%d" % (client.number, client.op)
        self.do(channel, client.number, kind, label, key)

    def do(self, channel: Any, client: int, kind: str, label: bytes = b"", key: bytes = b"") -> str:
        """A word; its result."""
        put = kind == "p"
        index = len(self.history)
        called = Record(
            client, "put" if put else "get", b"queue", label if put else None, "unknown", None,
            self._tick(), None,
        )  # fmt: skip
        self.history.append(called)
        read, result = None, "ok"
        try:
            if put:
                channel.put_nowait(data_of(label, key))
            else:
                read = label_of(channel.get_nowait())
        except queue.Full:
            result = "full"
        except queue.Empty:
            result = "missing"
        self.history[index] = called._replace(read=read, result=result, return_ns=self._tick())
        return result

    def finish(self, channel: Any) -> str:
        one = self.survivor
        while self.do(channel, one, "g") != "missing":
            pass
        self.cluster.setup_client.recover()
        self.do(channel, one, "p", b"last")
        while self.do(channel, one, "g") != "missing":
            pass
        given = {label_of(value) for value in channel.lost()}
        left = {record.read for record in self.history if record.client == one}
        if given & left:
            return f"in the queue, and lost: {given & left}"
        read = {record.read for record in self.history}
        gone = {
            record.value
            for record in self.history
            if record.op == "put" and record.result == "ok" and record.value not in read | given
        }
        return f"neither got nor given back: {gone}" if gone else ""

    def wrong(self) -> str:
        return judge_queue(self.history)
