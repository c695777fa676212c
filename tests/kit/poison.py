"""A poisoned page, as the kernel tells a process of it: a signal that this process sends itself."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import threading
from typing import Any, Final

BUS_MCEERR_AR: Final = 4
RT_TGSIGQUEUEINFO: Final = {"x86_64": 297, "aarch64": 240}
PAGE: Final = 4096
PAGE_SHIFT: Final = 12


def poison(mapping: Any, offset: int, shift: int = PAGE_SHIFT) -> None:
    """This process is told that it has touched a poisoned page at `offset` of the mapping, and that
    2**`shift` bytes are lost there. For other processes nothing changes."""
    at = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + offset
    info = bytearray(128)
    struct.pack_into("iii4xQh", info, 0, signal.SIGBUS, 0, BUS_MCEERR_AR, at, shift)
    libc = ctypes.CDLL(None, use_errno=True)
    number = RT_TGSIGQUEUEINFO[platform.machine()]
    buffer = (ctypes.c_char * 128).from_buffer(info)
    if libc.syscall(number, os.getpid(), threading.get_native_id(), int(signal.SIGBUS), buffer):
        raise OSError(ctypes.get_errno(), "rt_tgsigqueueinfo")


def poison_values(pool: Any, node: int, text: bytes = b"value of ") -> None:
    """The same of the first page of a node that has this text."""
    (mapping,) = (each.map for each in pool.segments() if each.index == node)
    poison(mapping, bytes(mapping).index(text) // PAGE * PAGE)
