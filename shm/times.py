"""Times of the public API: seconds, as an int, a float or a timedelta. They are converted here.

A time has at most a hundred years, or less where memory has less room for it. A part of the unit
that memory has counts as a whole one, so that a time above 0 never becomes 0.

Inside, and in memory, a name says its unit: `ttl_ms`, `lease_us`, `took_ns`, `interval_s`.
"""

from __future__ import annotations

import datetime
import math
from typing import Any, Final

from limpet.shm.errors import ParameterError

Seconds = int | float | datetime.timedelta
"""A time of the public API."""

LONGEST_S: Final = 100 * 366 * 86_400
"""A hundred years."""
MS: Final = 1000
US: Final = 1_000_000
NS: Final = 1_000_000_000
"""Units in a second."""


def seconds_of(name: str, time: Seconds) -> float:
    """A time as a number of seconds, which may be negative or infinite.

    TypeError: it is none of these types, or a bool. ParameterError: it is NaN.
    """
    if isinstance(time, datetime.timedelta):
        return time.total_seconds()
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise TypeError(f"{name} is a time in seconds, an int, float or timedelta, not {time!r}")
    if time != time:
        raise ParameterError(f"{name} is a time in seconds, not {time!r}")
    return time


def units_of(name: str, time: Any, per_second: int, most: int, least: int = 0) -> int:
    """A time as a whole number of units, of which a second has `per_second`.

    `least`, `most`: bounds in units. ParameterError: it is no time, NaN, negative, or out of them.
    """
    if type(time) is int and least <= time * per_second <= most:
        return time * per_second  # the usual time, at once
    try:
        seconds = seconds_of(name, time)
    except TypeError as error:
        raise ParameterError(str(error)) from None
    if seconds < 0:
        raise ParameterError(f"{name} is a time in seconds, and cannot be negative: {time!r}")
    if seconds > most / per_second:
        raise ParameterError(f"{name} is at most {_text(most, per_second)}, not {time!r}")
    if isinstance(time, datetime.timedelta):
        found = -(-(time // datetime.timedelta(microseconds=1)) * per_second // US)
    else:
        # Rounded: the float nearest to 1.1 is a little more than that, and no reason for a unit.
        found = max(math.ceil(round(seconds * per_second, 3)), int(seconds > 0))
    if found < least:
        raise ParameterError(f"{name} is at least {_text(least, per_second)}, not {time!r}")
    return found


def _text(units: int, per_second: int) -> str:
    """A bound in words: in days, if it is long."""
    seconds = units / per_second
    days = int(seconds // 86_400)
    return f"{seconds:.9g} s ({days:,} days)" if days else f"{seconds:.9g} s"
