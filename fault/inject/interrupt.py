"""Ctrl-C, termination and hang-up as a flag that a loop checks, so that clean-up is not cut off."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The run was asked to end by `signal`."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"interrupted by {number.name}")
        self.signal = number


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Callable[[], None]]:
    """While entered (main thread), SIGNALS raise Interrupted at once: `finally` is carried out.

    The function that it yields raises it once more, and so does the end of the body: Python drops
    an exception that is raised while a destructor runs. A signal that the process ignores (nohup)
    stays ignored.
    """
    came: list[signal.Signals] = []

    def check() -> None:
        if came:
            raise Interrupted(came[0])

    def arrived(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        check()

    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    taken = {n: h for n, h in handlers.items() if h is not None and h != signal.SIG_IGN}
    for number in taken:
        signal.signal(number, arrived)
    try:
        yield check
        check()
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


class Interrupt:
    """While entered (main thread), the first of SIGNALS sets a flag; a second Ctrl-C raises.

    A signal that the process ignores (nohup) stays ignored.
    `fd` becomes readable when a signal arrives, for a loop that waits on descriptors.
    """

    def __init__(self) -> None:
        self.fd = -1
        self._signal: signal.Signals | None = None
        self._write_fd = -1
        self._handlers: dict[signal.Signals, Any] = {}
        self._wakeup_fd = -1

    def check(self) -> None:
        """Raises Interrupted if a signal has arrived."""
        if self._signal is not None:
            raise Interrupted(self._signal)

    def __enter__(self) -> Interrupt:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None and handler != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_fd)
        os.close(self.fd)
        os.close(self._write_fd)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number)
