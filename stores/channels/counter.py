"""A counter: one atomic variable, "NAME/value", as a signed number.

A kill leaves behind: the number before, or after.
"""

from __future__ import annotations

from typing import Any

from limpet.stores.channels.atomic_var import AtomicVar
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import MASK
from limpet.stores.channels.numbers import signed_of, signed_word


class Counter(Channel):
    """A number of 64 bits, with its sign, that many processes count in; it wraps around."""

    variable_class = AtomicVar
    """The class of its variable."""

    def __init__(self, manager: Any, name: str, parent: Any = None) -> None:
        super().__init__(manager, name, parent, kind="counter")
        self.variable = self.variable_class(manager, "value", self)

    @property
    def value(self) -> int:
        """The number."""
        return signed_of(self.variable.load())

    def add(self, delta: int = 1) -> int:
        """Add to the number; the new one."""
        word = signed_word(delta)
        return signed_of(self.variable.faa(word) + word & MASK)

    def set(self, value: int) -> None:
        """Set the number."""
        self.variable.swap(signed_word(value))
