"""The shared state table: one owned variable for each participant (LOCO section 5.1.2).

Rows are composed of OwnedVars, "sst/ov0", "sst/ov1", ..., made by the callback that runs when a
participant joins; their memory is the table's, a cache line each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from limpet.shm.errors import ParameterError
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE, WORD
from limpet.stores.channels.owned_var import OwnedVar, owned_size


class SST(Channel):
    """An array of registers: each is written by one participant, and read by all."""

    variable_class = OwnedVar
    """The class of its registers."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        participants: int,
        size: int = WORD,
        join: bool = True,
    ) -> None:
        """`participants`: their number at one time, at most. `size`: bytes of a value, as in
        OwnedVar.

        `join` False: only look at the others, until `row()` is called.
        """
        stride = -(-owned_size(size) // LINE) * LINE
        super().__init__(
            manager,
            name,
            parent,
            size=participants * stride,
            kind="sst",
            participants=participants,
            of=size,
        )
        self.stride = stride
        self.of = size
        self.vars: dict[int, OwnedVar] = {}
        self.open_rows(participants)
        if join:
            self.take_part(participants)

    def __getitem__(self, row: int) -> OwnedVar:
        """The variable of a row."""
        if row not in self.vars:
            if not 0 <= row < self.rows:
                raise ParameterError(f"{self.name!r} has rows 0 to {self.rows - 1}, no row {row}")
            at = self.address + row * self.stride
            self.vars[row] = self.variable_class(
                self.manager, f"ov{row}", self, size=self.of, at=at
            )
        return self.vars[row]

    def on_join(self, row: int, ident: int) -> None:
        self[row]

    def joined(self) -> None:
        self[self.own_row].clear()

    def store_mine(self, value: int | bytes) -> None:
        """Set our own value; others see it after `push_broadcast`."""
        self.mine().store(value)

    def push_broadcast(self) -> Any:
        """Publish our own value; an AckKey."""
        return self.mine().push()

    def mine(self) -> OwnedVar:
        """Our own variable."""
        with self.operation():
            return self[self.row()]

    def __iter__(self) -> Iterator[Any]:
        """The variables of all participants: OwnedVars, of words or of bytes."""
        return iter([self[row] for row in self.refresh()])
