"""Timeouts of operations that wait, as threading and queue take them."""

from __future__ import annotations

import time

from limpet.stores.channels.layout import SLEEP_US


def deadline_of(block: bool, timeout: float | None) -> float | None:
    """The end of the wait, by the monotonic clock; None: none. Arguments as of queue.Queue."""
    if block and timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return deadline_after(timeout if block else 0.0)


def deadline_after(timeout: float | None) -> float | None:
    """The same for a timeout as threading's objects take it."""
    if timeout is None:
        return None
    return time.monotonic() + timeout if timeout > 0 else 0.0


def still_us(deadline: float | None) -> int:
    """Microseconds until the deadline; 0: it is over."""
    if deadline is None:
        return SLEEP_US
    left = deadline - time.monotonic() if deadline else 0.0
    return int(min(left * 1e6, SLEEP_US)) + 1 if left > 0 else 0


def left_us(deadline: float | None, error: type[Exception]) -> int:
    """As `still_us`; raises `error` when the time is over."""
    left = still_us(deadline)
    if not left:
        raise error
    return left
