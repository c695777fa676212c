"""Memory of a process's own: large tables that begin as zeros."""

from __future__ import annotations

import mmap
from typing import Any


def zeroed_words(count: int) -> Any:
    """A writable view of `count` words, all 0.

    Its pages are there when they are touched first, so making it takes as long for many words as
    for few. It is aligned to pages, and a forked process gets a copy.
    """
    memory = mmap.mmap(-1, max(8, 8 * count), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(memory).cast("Q")
