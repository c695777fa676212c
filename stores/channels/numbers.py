"""Whole numbers as words: two's complement, as the CPU and numpy have them."""

from __future__ import annotations

import operator
from typing import Any, Final, SupportsIndex

from limpet.shm.endpoint.fabric import fits_word
from limpet.shm.errors import ParameterError
from limpet.stores.channels.layout import MASK

HALF: Final = 1 << 63


def signed_of(word: int) -> int:
    """The number from -2**63 to 2**63 - 1 that a word stands for."""
    if word >> 63:
        beyond = MASK - word
        return -1 - beyond
    return word


def wrapped(number: int) -> int:
    """The word of a whole number; numbers beyond it wrap around."""
    if fits_word(number):
        small = number
        return small & MASK
    return number & MASK


def signed_word(number: Any) -> int:
    """The word of a number from -2**63 to 2**63 - 1, of any type. Raises ParameterError."""
    if fits_word(number):
        small = number
        return small & MASK
    return word_within(number, -HALF, HALF - 1)


def delta_word(number: Any) -> int:
    """The word of a number from -2**63 to 2**64 - 1, to add or of bits. Raises ParameterError."""
    if fits_word(number):
        small = number
        return small & MASK
    return word_within(number, -HALF, 2 * HALF - 1)


def word_within(number: SupportsIndex, low: int, high: int) -> int:
    """The word that stands for a number; ParameterError if it is not within the bounds."""
    try:
        whole = operator.index(number)
    except TypeError:
        whole = high + 1
    if not low <= whole <= high:
        raise ParameterError(f"a whole number from {low} to {high} is needed, not {number!r}")
    return whole % (2 * HALF)
