"""The interface of a register's protocol to its store: READ and WRITE."""

from __future__ import annotations

from typing import Any

from limpet.stores.swarm.max_register import MaxRegister
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.row import Row


class Protocol:
    """READ and WRITE of an atomic register; safe_guess.py and abd.py have one each."""

    def __init__(self, max_register: MaxRegister, quorum: Quorum, row: Row, clock: Any) -> None:
        self.max_register = max_register
        self.quorum = quorum
        self.row = row
        self.register = self.quorum.register
        self.endpoint = self.quorum.endpoint
        self.clock = clock
        self.result = b""
        """The value that the last READ has found."""

    def read(self) -> int:
        """READ. DONE: `result` is the value; DELETED; GONE."""
        raise NotImplementedError

    def write(self, value: bytes) -> int:
        """WRITE. DONE; or nothing was done: GONE, DELETED, NO_MEMORY, AGAIN."""
        raise NotImplementedError
