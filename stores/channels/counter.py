"""A counter: one atomic variable, "NAME/value", as a signed number.

A kill leaves behind: the number before, or after.
"""

from __future__ import annotations

import operator
from typing import Any, Final, SupportsIndex

from limpet.shm.errors import ParameterError
from limpet.stores.channels.atomic_var import AtomicVar
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import MASK

HALF: Final = 1 << 63
SMALLEST: Final = -(1 << 60)
LARGEST: Final = 1 << 60
"""Between these, numbers need no check."""


def signed_of(word: int) -> int:
    """The number from -2**63 to 2**63 - 1 that a word stands for."""
    if word >> 63:
        beyond = MASK - word
        return -1 - beyond
    return word


def small_word(number: int) -> int:
    """The word of a number between SMALLEST and LARGEST."""
    small = number
    return small & MASK


def unsigned(number: SupportsIndex, low: int = -HALF, high: int = HALF - 1) -> int:
    """The word that stands for a number; ParameterError if it is not within the bounds."""
    try:
        whole = operator.index(number)
    except TypeError:
        whole = high + 1
    if not low <= whole <= high:
        raise ParameterError(f"a whole number from {low} to {high} is needed, not {number!r}")
    return whole % (2 * HALF)


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
        if type(delta) is int and SMALLEST < delta < LARGEST:
            word = small_word(delta)
        else:
            word = unsigned(delta)
        return signed_of(self.variable.faa(word) + word & MASK)

    def set(self, value: int) -> None:
        """Set the number."""
        self.variable.store(unsigned(value))
