"""Whether the operation that a thread is said to be inside of is still on its stack.

An operation ends in a `finally`, but a signal handler can raise where no `finally` of ours is in
force: between two bytecodes of Python that is not compiled. Compiled code has no such place. Python
that is not compiled enters by `with client:` alone, which calls `__enter__` and is in force without
a look for signals in between (CPython 3.11 and later; 3.10 has places of one bytecode). In the pure
build `enter` and `leave` themselves are Python, and can be cut.

So an operation that is entered from Python notes the frame that it belongs to. When the next one
finds a thread inside, it looks whether that frame is still on the stack of the thread that it was
on. If it is not, no thread is inside: the operation was cut off. Then its client journal is settled
and its pin taken back, as its end would have done, and the next one goes on in its place. Nothing
else has to be restored: what an operation does between two verbs survives a kill, so it survives
this.

A frame that is on the stack is one that runs, however deep: of a signal handler, a destructor or a
callback in the midst of an operation, which must not use the handle (ReentrantUse).
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

ENTERING: Final = ("enter", "__enter__", "_enter", "_enter_with_lock", "_enter_held")
"""Names of functions that return while the operation that they have entered goes on."""


def is_over(thread: int, frame: Any) -> bool:
    """Whether `frame` is on the stack of that thread no more."""
    current = sys._current_frames().get(thread)
    while current is not None:
        if current is frame:
            return False
        current = current.f_back
    return True


def calling_frame(files: tuple[str, ...]) -> FrameType | None:
    """The innermost frame that the operation belongs to: its code is in none of these source files,
    and it is of no function that enters for its caller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename in files or frame.f_code.co_name in ENTERING
    ):
        frame = frame.f_back
    return frame
