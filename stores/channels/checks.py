"""Numbers that channels are made with."""

from __future__ import annotations

import operator
from typing import Any

from limpet.shm.errors import ParameterError


def whole(what: str, number: Any, low: int, high: int) -> int:
    """A whole number, of any type, as an int; ParameterError if it is not from `low` to `high`."""
    try:
        found = operator.index(number)
    except TypeError:
        found = low - 1
    if not low <= found <= high:
        raise ParameterError(f"{what} is a whole number from {low} to {high}, not {number!r}")
    return found
