"""The words that describe blocks and objects. (Used by heap.py, blocks.py and the stores.)

Block word
    bits 60-63  kind
    bits 52-59  size class (SLAB)
    bits 0-47   owner: a client id or 0 for nobody (SLAB, LARGE, PENDING); the index of the first
                block (TAIL); the region's mark (REGION); the epoch in which the block was given
                back (FREE)

    FREE     nobody's; may be claimed once the epoch in it lies behind every pinned client
    SLAB     cut into objects of its class
    PENDING  claimed by a client that is still arranging what it will be
    LARGE    first block of a span that holds one object
    TAIL     further block of a span or, for a moment, of a span being made
    REGION   part of a named region; never given back

Object reference (56 bits): bits 48-55 size class, bits 0-47 address. Objects are 16-byte aligned.

Link: a word in a store that makes an object reachable. Bits 4-47 are the object's address; bit 0
marks it tentative, that is, not in force until cleared; the other bits are the store's.
"""

from typing import Final

FREE: Final = 0
SLAB: Final = 1
PENDING: Final = 2
LARGE: Final = 3
TAIL: Final = 4
REGION: Final = 5
KINDS: Final = ("free", "slab", "pending", "large", "tail", "region")

OWNER_MASK: Final = (1 << 48) - 1
LINK_MASK: Final = (1 << 48) - 16
TENTATIVE: Final = 1
REFERENCE_MASK: Final = (1 << 56) - 1
ADDRESS_MASK: Final = (1 << 48) - 1
LARGE_CLASS: Final = 0


def block_word(kind: int, owner: int = 0, size_class: int = 0) -> int:
    return kind << 60 | size_class << 52 | owner
