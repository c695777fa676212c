"""Find out whether an operation that a thread has entered is still on the thread's stack.

An operation ends in a `finally`, but a signal handler can raise where no `finally` of ours is in
force: between two bytecodes of Python that is not compiled. Compiled code has no such place. Python
that is not compiled enters only by `with client:`. The interpreter calls `__enter__` and enters the
block without a check for signals in between (CPython 3.11 and later; 3.10 has gaps of one
bytecode). In the pure build `enter` and `leave` themselves are Python, and can be cut.

So an operation that is entered from Python notes its frame. When the next operation finds a thread
inside, it checks whether that frame is still on the thread's stack. If it is not, no thread is
inside: the operation was cut off. Then the next operation resolves the client journal and takes the
pin back, as the end of the first one would have done, and goes on. There is nothing else to
restore: an operation may be killed between any two verbs, so it may be cut off there.

If the frame is on the stack, the operation still runs, and the caller is a signal handler, a
destructor or a callback during the operation: it must not use the handle (ReentrantUse).
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

ENTERING: Final = ("enter", "__enter__", "_enter", "_enter_with_lock", "_enter_held")
"""Names of functions that return while the operation that they have entered goes on."""


def is_over(thread: int, frame: Any) -> bool:
    """Whether `frame` is no longer on the stack of that thread."""
    current = sys._current_frames().get(thread)
    while current is not None:
        if current is frame:
            return False
        current = current.f_back
    return True


def calling_frame(files: tuple[str, ...]) -> FrameType | None:
    """The innermost frame to which the operation belongs: its code is in none of these files,
    and its function does not enter for its caller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename in files or frame.f_code.co_name in ENTERING
    ):
        frame = frame.f_back
    return frame
