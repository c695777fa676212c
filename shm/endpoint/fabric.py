"""The fabric that this build uses: native (compiled verbs.pyx) or portable (pure Python).

`LIMPET_PURE=1` at build time leaves the compiled modules out; then, and only then, the portable
fabric is taken. A compiled build whose module does not load is an ImportError, not a fall back.

Each verb's signature is in verbs.pyx and, as Cython wants it, in verbs.pxd; in portable.py, which
type checkers read for both; and in hooked.py, for all classes that override verbs. Tests compare
them: `tests/shm/test_verbs.py`, `tests/shm/test_hooked.py`.
"""

# ruff: noqa: F403, F405

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

__all__ = [
    "BUILD",
    "SLEEP_WORDS",
    "Endpoint",
    "Image",
    "Renewal",
    "Watched",
    "bit",
    "buffer_cas",
    "buffer_load",
    "buffer_store",
    "checksum",
    "checksum_buffer",
    "crc_pair",
    "fits_word",
    "flush_features",
    "flush_mapping",
    "hash64",
    "keys_below",
    "lowest_bit",
    "post_summed",
    "shift_boot_clock",
    "sleep_at",
    "wake_at",
    "words_bytes",
    "words_compare",
    "words_equal",
    "words_move",
    "words_prefetch",
    "words_put",
    "words_tagged",
    "write_summed",
]

BUILD = "compiled" if find_spec("limpet.shm.endpoint.verbs") is not None else "pure"

if TYPE_CHECKING:
    from limpet.shm.endpoint.portable import *
else:
    _fabric = import_module(f"limpet.shm.endpoint.{'verbs' if BUILD == 'compiled' else 'portable'}")
    globals().update({name: getattr(_fabric, name) for name in __all__ if name != "BUILD"})
