"""The atomic variable: a word with many writers (LOCO section 5.1).

A kill leaves behind: the value before, or after.
"""

from __future__ import annotations

from typing import Any

from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import WORD
from limpet.stores.channels.numbers import wrapped


class AtomicVar(Channel):
    """A word with many writers. Values are 64 bits, and wrap around."""

    def __init__(
        self, manager: Any, name: str, parent: Any = None, *, node: int | None = None
    ) -> None:
        super().__init__(manager, name, parent, size=WORD, node=node, kind="atomic_var")

    def load(self) -> int:
        """The value. One round trip, and no fewer, as for the other methods."""
        self.enter()
        try:
            ticket = self.endpoint.post_load(self.address)
            self.endpoint.wait()
            return self.endpoint.result(ticket)
        finally:
            self.leave()

    def store(self, value: int) -> None:
        """Set the value."""
        self.swap(value)

    def swap(self, value: int) -> int:
        """Set the value; the old one."""
        self.enter()
        try:
            ticket = self.endpoint.post_swap(self.address, wrapped(value))
            self.endpoint.wait()
            return self.endpoint.result(ticket)
        finally:
            self.leave()

    def faa(self, delta: int) -> int:
        """Add to the value; the old one."""
        self.enter()
        try:
            ticket = self.endpoint.post_faa(self.address, wrapped(delta))
            self.endpoint.wait()
            return self.endpoint.result(ticket)
        finally:
            self.leave()

    def cas(self, expected: int, desired: int) -> int:
        """Change the value if it is `expected`; the old one."""
        self.enter()
        try:
            ticket = self.endpoint.post_cas(self.address, wrapped(expected), wrapped(desired))
            self.endpoint.wait()
            return self.endpoint.result(ticket)
        finally:
            self.leave()
