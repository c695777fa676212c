"""How many forks of Python lie between this process and the first one of its program: `count`.

A forked child has a copy of all that its parent has noted: which of its threads is inside a
function, and what they hold. None of it is the child's, and the child's threads get the idents of
the parent's again. So a note of what a thread does or holds has this count beside the thread's
ident. A fork by C code is not counted.
"""

from __future__ import annotations

import os

count = 0


def _on_fork() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_on_fork)
