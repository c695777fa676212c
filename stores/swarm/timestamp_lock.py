"""Timestamp locks TSL (SWARM section 3.3 and appendix B, algorithm 9).

Each replica of a register has a word for each writer, a fallible CAS object. TRYLOCK(ts, mode)
races for a majority of the words of the writer of `ts`; READ and WRITE of the same timestamp never
both succeed. Locks are never unlocked, and locked again at higher timestamps.

A lock with a higher timestamp than its writer's would make the writer believe that a reader has
confirmed its guess (trap S2). So the timestamps of a writer's number only ever rise, even when
another client takes the number over: shm/clients/unique_ids.py.
"""

from __future__ import annotations

from array import array

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import NodeFailed
from limpet.stores.swarm.layout import ATTEMPTS_MAX, READ, REPLICAS_ROW, STAMP_SHIFT, WRITE
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.words import stamp_of, writer_of


class TimestampLock:
    """The timestamp locks of the current register."""

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.register = self.quorum.register
        self.endpoint = self.quorum.endpoint
        self.found = array("Q", bytes(8 * REPLICAS_ROW))
        """`read` of the algorithm."""

    def try_lock(self, word: int, mode: int) -> bool:
        """TRYLOCK the timestamp of the tuple `word`. Raises NodeFailed without a majority."""
        quorum = self.quorum
        if writer_of(word) >= self.register.writers:
            quorum.wait_again(ATTEMPTS_MAX + 1, word, "is of a writer that there is not")
        locked = stamp_of(word) << STAMP_SHIFT | mode
        completed = 0
        for k in range(quorum.count):
            self.found[k] = 0  # line 4
        refused = False
        k = self.register.first
        rounds = 0
        lost = -1
        for _ in range(quorum.count):  # line 5
            if self.endpoint.failed(self.register.bases[k]):
                lost = self.register.bases[k] >> NODE_SHIFT
                k = k + 1 if k + 1 < quorum.count else 0
                continue
            try:
                rounds = max(rounds, self._race(k, writer_of(word), locked))
            except NodeFailed as error:
                lost = error.node
                quorum.view.fail_if_lost(lost)
            else:
                completed += 1
                if stamp_of(self.found[k]) > stamp_of(locked):  # line 11
                    refused = True
                if self.found[k] & (READ | WRITE) & ~mode:  # line 12
                    refused = True
            if completed == quorum.majority:  # line 10
                break
            k = k + 1 if k + 1 < quorum.count else 0
        for _ in range(rounds):
            self.endpoint.wait()
        if completed < quorum.majority:
            raise NodeFailed(lost, "a majority of the replicas of the key is lost")
        return not refused

    def _race(self, k: int, writer: int, locked: int) -> int:
        """Lines 6 to 9, on one replica; how many iterations. All replicas run at the same time."""
        at = self.register.lock(k, writer)
        iterations = 0
        while stamp_of(self.found[k]) < stamp_of(locked):
            expected = self.found[k]
            self.found[k] = self.endpoint.cas(at, expected, locked)
            iterations += 1
            if self.found[k] == expected:
                self.found[k] = locked
        return iterations
