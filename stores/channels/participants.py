"""The rows of a channel's participants (channel.py), as its parts see them."""

from __future__ import annotations

from typing import Any

from limpet.stores.channels.phases import load_alone


class Participants:
    """The words of `count` rows, from `address` on: client ids."""

    def __init__(self, pool: Any, address: int, count: int) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.membership = pool.membership
        self.address = address
        self.count = count

    def word(self, row: int) -> int:
        """The word of a row: the participant's client id, perhaps with CLAIMED; 0: it is free. 1
        round trip."""
        return load_alone(self.endpoint, self.address + 8 * row)

    def words(self, rows: list[int]) -> list[int]:
        """The words of these rows; 1 round trip."""
        tickets = [self.endpoint.post_load(self.address + 8 * row) for row in rows]
        self.endpoint.wait()
        return [self.endpoint.result(ticket) for ticket in tickets]

    def lives(self, ident: int) -> bool:
        """Whether that client lives, as far as this process knows. In an operation or not."""
        return ident == self.client.ident or bool(ident and self.membership.lives(ident))
