"""A signal handler that raises between two lines of Python, at one place after the other."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Cut(BaseException):
    """The exception of the handler, as that of Ctrl-C raises one."""


class Lines:
    """Raises Cut at the line of that number, of those that this thread runs of these source files.

    `cut`: whether it has. There are fewer lines if it has not.
    """

    def __init__(self, files: str | tuple[str, ...], number: int) -> None:
        self.files = files
        self.left = number
        self.cut = False

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        if event == "line" and not self.cut:
            self.left -= 1
            if self.left == 0:
                self.cut = True
                raise Cut
        return self._trace

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Where lines count; Cut does not get out of it."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        except Cut:
            pass
        finally:
            sys.settrace(before)
