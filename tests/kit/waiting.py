"""Waiting for what another process does: with a limit, and with a word on what did not happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")


def until(condition: Callable[[], object], otherwise: str = "", within_s: float = 60) -> None:
    """Return when the condition holds; fail, saying `otherwise`, when it does not in that time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.001)


def long_enough(run: Callable[[float], T], enough: Callable[[T], object], seconds: float) -> T:
    """The result of a run of so many seconds, or of four times as many, and so on up to a minute:
    until it is enough. On a busy machine, processes may do nearly nothing in a second."""
    while True:
        found = run(seconds)
        if enough(found) or seconds > 15:
            return found
        seconds *= 4


def ended(process: psutil.Process) -> bool:
    """Whether a process is gone, or a zombie: no process may reap those whose parent has died."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
