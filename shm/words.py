"""The words that describe blocks and objects. (Used by heap.py, blocks.py and the stores.)

Block word
    bits 60-63  kind
    bits 52-59  size class (SLAB, TAKEN, LIMBO); LARGE_CLASS for a span
    bits 0-47   owner: a client id or 0 for nobody (SLAB, LARGE, PENDING, TAKEN); the index of the
                first block in bits 0-25, and above it bits of the id of the span's maker
                (TAIL); the region's mark (REGION); the epoch in which the block was given back
                (FREE) or taken from its owner (LIMBO)

    FREE     nobody's; may be claimed once the epoch in it lies behind every pinned client
    SLAB     cut into objects of its class
    PENDING  claimed by a client that is still arranging what it will be
    LARGE    first block of a span that holds one object
    TAIL     further block of a span or, for a moment, of a span being made
    REGION   part of a named region; never given back
    TAKEN    a slab or a span that the client in it is taking from its owner (pressure.py)
    LIMBO    one that was taken; its last owner may use it until the epoch in it lies behind

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
TAKEN: Final = 6
LIMBO: Final = 7
KINDS: Final = ("free", "slab", "pending", "large", "tail", "region", "taken", "limbo")

OWNER_MASK: Final = (1 << 48) - 1
LINK_MASK: Final = (1 << 48) - 16
TENTATIVE: Final = 1
REFERENCE_MASK: Final = (1 << 56) - 1
ADDRESS_MASK: Final = (1 << 48) - 1
LARGE_CLASS: Final = 0
TAIL_FIRST_MASK: Final = (1 << 26) - 1


def block_word(kind: int, owner: int = 0, size_class: int = 0) -> int:
    return kind << 60 | size_class << 52 | owner


def tail_word(first: int, client: int) -> int:
    """The word of a further block of a span that begins at block `first`.

    It carries the low 10 bits of the maker's slot and 12 of its incarnation, so that the tails of a
    later span at the same place differ.
    """
    maker = (client >> 36 & 0x3FF) << 12 | client & 0xFFF
    return block_word(TAIL, maker << 26 | first)


def is_tail_of(word: int, first: int) -> bool:
    return word >> 60 == TAIL and word & TAIL_FIRST_MASK == first
