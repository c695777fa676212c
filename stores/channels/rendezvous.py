"""The barrier of the paper's figure 1, all of it: a dozen lines over a state table.

Each participant counts its arrivals, publishes the count in its register, and waits until no count
is lower. It is an example of a channel; docs/channels.md goes through it.

A kill leaves behind: a register that is never raised, so the others wait for ever, as in the
paper. barrier.py, which is `pool.barrier`, raises an error then; and it has timeouts, threads and
sleep.
"""

from __future__ import annotations

import time
from typing import Any

from limpet.stores.channels.channel import Channel
from limpet.stores.channels.sst import SST


class Rendezvous(Channel):
    """A barrier for `nodes` processes."""

    def __init__(self, manager: Any, name: str, parent: Any = None, *, nodes: int) -> None:
        super().__init__(manager, name, parent, kind="rendezvous", nodes=nodes)
        self.count, self.nodes = 0, nodes
        self.sst = SST(manager, "sst", self, participants=nodes)

    def waiting(self) -> None:
        """Arrive, and wait for the others."""
        self.manager.fence()
        self.count += 1
        self.sst.store_mine(self.count)
        self.sst.push_broadcast()
        while sum(row.load() >= self.count for row in self.sst) < self.nodes:
            time.sleep(0)
