"""The fabric that this build uses: native (compiled verbs.pyx) or portable (pure Python).

`LIMPET_PURE=1` at build time leaves the compiled modules out; then, and only then, the portable
fabric is taken. A compiled build whose module does not load is an ImportError, not a fall back.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or find_spec("limpet.shm.endpoint.verbs") is not None:
    from limpet.shm.endpoint.verbs import (
        Endpoint,
        Image,
        Watched,
        bit,
        crc_pair,
        flush_features,
        hash64,
        lowest_bit,
        words_bytes,
        words_compare,
        words_equal,
        words_move,
        words_prefetch,
        words_put,
        words_tagged,
    )

else:
    from limpet.shm.endpoint.portable import (
        Endpoint,
        Image,
        Watched,
        bit,
        crc_pair,
        flush_features,
        hash64,
        lowest_bit,
        words_bytes,
        words_compare,
        words_equal,
        words_move,
        words_prefetch,
        words_put,
        words_tagged,
    )

BUILD = "compiled" if Endpoint.__module__ == "limpet.shm.endpoint.verbs" else "pure"

__all__ = [
    "BUILD",
    "Endpoint",
    "Image",
    "Watched",
    "bit",
    "crc_pair",
    "flush_features",
    "hash64",
    "lowest_bit",
    "words_bytes",
    "words_compare",
    "words_equal",
    "words_move",
    "words_prefetch",
    "words_put",
    "words_tagged",
]
