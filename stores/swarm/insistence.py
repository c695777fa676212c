"""WRITE although our row is not in order: it is repaired until the tuple is written.

For a tuple that other clients may have seen at a minority already, so it cannot be given up.
"""

from __future__ import annotations

from limpet.stores.swarm.layout import DONE
from limpet.stores.swarm.max_register import MaxRegister
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.row import Row
from limpet.stores.swarm.words import is_tombstone, placed


class Insistence:
    """Of a WRITE to the current register."""

    def __init__(self, max_register: MaxRegister, quorum: Quorum, row: Row) -> None:
        self.max_register = max_register
        self.quorum = quorum
        self.row = row

    def write(self, word: int, outcome: int) -> int:
        """WRITE the tuple that is prepared in our row's buffer. DONE, DELETED, or GONE.

        `outcome`: of the last `gather`. Raises StoreCorrupt when the row cannot be put in order.
        """
        quorum, row = self.quorum, self.row
        attempt = 0
        while outcome == DONE:
            row.repair()
            outcome = quorum.gather(False, quorum.majority)
            quorum.endpoint.wait()
            if is_tombstone(quorum.top):
                outcome = self.max_register.confirm()
            elif outcome == DONE and row.learn():
                placed_word = placed(word, row.writer, row.side)
                if self.max_register.write(placed_word, row.buffer) == DONE:
                    break
            if outcome == DONE:
                quorum.wait_again(attempt, word, "cannot be written, as the row is not in order")
                attempt += 1
        row.side = -1
        return outcome
