"""A shared mapping of a file as a memoryview, which keeps no descriptor.

`mmap.mmap` keeps a copy of the descriptor and closes that number at its end, whatever file the
number is by then: a library that closes all descriptors (`os.closerange`) gives it to another file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any, Final

_FAILED: Final = ctypes.c_void_p(-1).value
_libc: Final = ctypes.CDLL(None, use_errno=True)
_map: Final = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_unmap: Final = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_advise: Final = _libc.madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_file(fd: int, size: int, offset: int, flags: int = mmap.MAP_SHARED) -> memoryview:
    """Map `size` bytes of a file, readable and writable, until no buffer of it is left.

    Raises ValueError if the file is shorter, OSError if the kernel refuses it.
    """
    status = os.fstat(fd)
    if status.st_size and status.st_size < offset + size:
        raise ValueError(f"the file has {status.st_size} bytes, not {offset + size}")
    at = _map(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
    if at == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    try:
        memory: Any = (ctypes.c_ubyte * size).from_address(at)
        weakref.finalize(memory, _unmap, at, size).atexit = False  # threads may use it till the end
    except BaseException:
        _unmap(at, size)
        raise
    return memoryview(memory).cast("B")


def advise(mapping: Any, advice: int) -> None:
    """madvise(2) of a whole mapping. Raises OSError."""
    at = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    if _advise(at, len(mapping), advice):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
