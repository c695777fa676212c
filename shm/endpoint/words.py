"""The words that describe blocks and objects. (Used by heap.py, blocks.py and the stores.)

Block word
    bits 60-63  kind
    bits 52-59  size class (all but FREE, REGION and a TAIL); LARGE_CLASS for a span, and for a
                block being claimed for no class yet; TAIL_CLASS for a BACKUP of a TAIL
    bits 48-51  number of replicas - 1 (all but FREE, REGION); the block is the primary of its set,
                or, a BACKUP or a STRAY, one of its backups (replica_layout.py)
    bits 0-47   owner: a client id or 0 for no client (SLAB, LARGE, PENDING, TAKEN); the index of
                the first block in bits 0-25, and above it bits of the id of the span's maker
                (TAIL); the region's mark (REGION); the mark of the claim of its replica set
                (BACKUP); the low bits of the epoch in which the block was given back (FREE), taken
                from its owner (LIMBO), or seen to have lost its primary (STRAY): a stamp

    FREE     no owner; may be claimed once the epoch in it lies behind every pinned client. With
             BACKED, bit 48, all of its pages are allocated (file.py); with BEGUN, bit 49, its
             first part is, and perhaps more (shm/pages.py)
    SLAB     cut into objects of its class; of the last class, into pages (alloc/slabs.py)
    PENDING  claimed by a client that is making it a slab, span or region, or giving it back
    LARGE    first block of a span that holds one object
    TAIL     further block of a span or, for a moment, of a span being made
    REGION   part of a named region; free again when that is given back (catalogue/regions.py)
    TAKEN    a slab or a span that the client in it is taking from its owner (reclaim.py)
    LIMBO    a slab or span that was taken; its last owner may use it until the epoch in it lies
             behind every pinned client
    BACKUP   has replicas of the objects of another block, its primary
    STRAY    a backup whose primary's node is lost; no object is added once its epoch has passed

Stamps wrap after 2^48 closings of a period (epoch.py). A client reads the epoch after the stamp, so
the stamp is of no later epoch, and stands for the last epoch up to that one with these bits
(`age`). That is the epoch in which it was written, or one that is a multiple of 2^48 later. So a
block that has been free for that long may count as given back a moment ago, and waits once more for
pinned clients; it is never taken too early. The stamp 0 is of no period, and means long ago. A mark
of a BACKUP has an epoch's low bits, too; it only has to differ from the mark before it, so that the
CAS of a client that was stopped meanwhile fails.

Object reference (56 bits): bits 48-55 size class, bits 4-47 address of the first replica, bits 1-3
number of replicas - 1, bit 0 clear. Objects are 16-byte aligned.

Link: a word in a store that makes an object reachable. Bits 1-47 are those of the object's
reference; bit 0 marks it tentative, that is, not in force until cleared; the other bits are the
store's. With HELD in bits 1-3, a value that no reference has there, a protocol of the store holds
the link, and the word is no reference: `Contents.concerned` names the objects that the protocol
frees meanwhile.
"""

from typing import Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, WRAPS, Field

FREE: Final = 0
SLAB: Final = 1
PENDING: Final = 2
LARGE: Final = 3
TAIL: Final = 4
REGION: Final = 5
TAKEN: Final = 6
LIMBO: Final = 7
BACKUP: Final = 8
STRAY: Final = 9
KINDS: Final = (
    "free",
    "slab",
    "pending",
    "large",
    "tail",
    "region",
    "taken",
    "limbo",
    "backup",
    "stray",
)

OWNER_MASK: Final = (1 << 48) - 1
BACKED: Final = 1 << 48
BEGUN: Final = 1 << 49
SHAPE_MASK: Final = 0xFFF << 48
"""Class and number of replicas of a block word."""
ADDRESS_MASK: Final = (1 << 48) - 16
LINK_MASK: Final = ADDRESS_MASK
TENTATIVE: Final = 1
REPLICATED: Final = 1
"""In a link address in a client journal: it is not an address but a store's own name of a link,
such as one with replicas. `Contents.linked` judges it."""
REPLICAS_SHIFT: Final = 1
REPLICAS_BITS: Final = 0xE
REFERENCE_MASK: Final = (1 << 56) - 1
HELD: Final = 0xE
HELD_MASK: Final = 1 << 55 | HELD
"""A link that has HELD of these bits is held; a vacant one has the other bit."""
REPLICAS_MAX: Final = 7
VIEWED: Final = 1 << 56
OWES: Final = 1 << 57
"""In a record of a client slot, with an object reference (shm/clients/holds.py)."""
LARGE_CLASS: Final = 0
TAIL_CLASS: Final = 255
TAIL_FIRST_MASK: Final = (1 << 26) - 1

FIELDS: Final = (
    Field(
        "block word: stamp",
        1 << 48,
        A_SECOND_MAX,
        WRAPS,
        "stands for the last epoch with these bits (`age`): a block may wait too long, never too "
        "briefly; deceived is a CAS of a client that was stopped for 2^48 closings",
    ),
    Field(
        "block word: mark of a backup",
        1 << 48,
        A_SECOND_MAX,
        WRAPS,
        "deceived is a CAS of a client that was stopped for 2^48 closings",
    ),
    Field(
        "block word: maker of a tail",
        1 << 12,
        10_000,
        WRAPS,
        "only a span's owner, or its recoverer, moves its tails; the recoverer is pinned, so that "
        "the blocks are not used again meanwhile",
    ),
)


def block_word(kind: int, owner: int = 0, size_class: int = 0, replicas: int = 1) -> int:
    return kind << 60 | size_class << 52 | replicas - 1 << 48 | owner


def stamp(epoch: int) -> int:
    """The bits of an epoch in a block word."""
    return epoch & OWNER_MASK


def age(word: int, now: int) -> int:
    """How many periods have been closed since the stamp in a block word, at most: it was read
    before the epoch was `now`."""
    return now - word & OWNER_MASK


def free_word(epoch: int, whole: bool = True) -> int:
    """The word of a block that is given back, and may be claimed again after that epoch. `whole`:
    all of its pages are allocated."""
    return FREE << 60 | (BACKED if whole else BEGUN) | stamp(epoch)


def recast(word: int, kind: int, owner: int) -> int:
    """The word of the same block with another kind and owner, class and replicas as they are."""
    return kind << 60 | word & SHAPE_MASK | owner


def replica_bits(replicas: int) -> int:
    """The bits of a reference with the object's number of replicas."""
    return replicas - 1 << REPLICAS_SHIFT


def class_of(word: int) -> int:
    """The size class in a block word."""
    return word >> 52 & 0xFF


def replicas_of(word: int) -> int:
    """The number of replicas in a block word."""
    return (word >> 48 & 0xF) + 1


def tail_word(first: int, client: int, replicas: int = 1) -> int:
    """The word of a further block of a span that begins at block `first`.

    It carries the low 10 bits of the maker's slot and 12 of its incarnation, so that the tails of a
    later span at the same place differ.
    """
    maker = (client >> 36 & 0x3FF) << 12 | client & 0xFFF
    return block_word(TAIL, maker << 26 | first, 0, replicas)


def is_tail_of(word: int, first: int) -> bool:
    return word >> 60 == TAIL and word & TAIL_FIRST_MASK == first
