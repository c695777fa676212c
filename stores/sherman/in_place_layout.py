"""Words of a node that is changed in place; in_place_node.py gives their meaning.

The version counts in a whole word, modulo 2^64: 58,000 years of ten million a second. No other
field does: a lock is a client id.
"""

from __future__ import annotations

from typing import Final

LOCK: Final = 0
VERSION: Final = 1
"""Words of a node, at its front."""
META_WORDS: Final = 2
"""Both, which validation reads."""
TRAILER: Final = 16
"""Bytes at its rear: checksum, and the version again."""
NODE_PAIR: Final = 4
"""Bit of a link_address in a client journal: the pair is a node that is being linked, or was
unlinked."""
