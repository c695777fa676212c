"""The layout of memory: addresses, the control segment, a memory node. Pure arithmetic.

Address (64 bits)
    bits 40-47 node, bits 0-39 offset, rest 0. Node 255 is the control segment.

Memory node, offsets in bytes
    0            superblock (superblock.py)
    4096         region directory: an entry of 256 bytes for each 64 KiB of the node, at least 64
                 and at most 4096 (directory.py)
    then         block table: one word a block (words.py)
    then         used bitmaps: a bit for each 32 bytes of a block, in whole words; the first word of
                 a block that is cut into pages has a bit for each of them
    then         blocks, the first at a multiple of 4096; each has 33/32 of the block_size of the
                 pool's parameters, a power of two, so that a value of half of that or a quarter
                 fits into half a block or a quarter, with its header and key

Control segment, offsets in bytes
    0            superblock
    4096         epoch: word (epoch.py); its cache line has only this and the next three
    4104         pressure: word; counts takings of blocks from living owners (reclaim.py)
    4112         drops: word; bits 0-61 count drops of stores and of channels' regions
                 (stores/contents.py); bit 62: a store was watched (stores/core/feed.py); bit 63: a
                 remote client has joined once (lasting.py)
    4120         holds: word; which clients keep objects between operations (holds.py)
    4160         slots_used: word; no client slot at or above it was ever taken
    4224         event_count: word; events written so far
    4288         tickets: word; unique ids given out so far (unique_ids.py)
    4352         view: word; counts changes of which nodes are in service (view.py)
    4360         leader: word; the client that is changing the view, or 0 (view.py)
    4368         failing: word; the node that a user gave up last (failing.py)
    4416         power: word; the boot since which a durable pool is whole (mending.py)
    4424         pool_clock: word; from 1970 to the boot of the one host (pool_clock.py)
    4480         gate: word; the process that opens a durable pool of several hosts (mending.py)
    4488         gate_beat: word; goes up while that process lives
    4544         ledger: word; 0 here. In the ledger of a data server, which has this layout: its id
                 (net/ledger.py)
    4552         server: word; counts takings of the control segment by servers (net/etcd.py)
    4608         node places: 256 words; of a node on another host, the address of its server
    6656         writer numbers: 64 times two words (writer_numbers.py)
    8192         node states: 256 words (states.py)
    10240        node ledgers: 256 words; of a node on another host, the ledger beside it
    12288        rings: 256 words; nodes that were added to the pool (states.py)
    14336        event ring: 128 entries of 64 bytes (events.py)
    22528        client slots: 1408 bytes each (slots.py)
    then         catalogue: an entry of 1024 bytes for each 64 KiB of all nodes, at least 128 and at
                 most 4096 (directory.py); begins at a multiple of 4096
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from limpet.shm.parameters import PoolParameters

NODE_SHIFT: Final = 40
OFFSET_MASK: Final = (1 << NODE_SHIFT) - 1
CONTROL_NODE: Final = 255

EXACTLY: Final = 1 << 8
"""With the number of a node, in a request for memory: not on another node."""
SUPERBLOCK_SIZE: Final = 4096
PAGE: Final = 4096

BYTES_PER_ENTRY: Final = 1 << 16
"""Bytes of memory for which there is one entry of a directory."""
ENTRIES_MAX: Final = 4096
REGION_ENTRIES_MIN: Final = 64
REGION_ENTRY_SIZE: Final = 256
CATALOGUE_ENTRIES_MIN: Final = 128
CATALOGUE_ENTRY_SIZE: Final = 1024

EVENTS: Final = 128
EVENT_SIZE: Final = 64
SLOT_SIZE: Final = 1408

ROOM_SHARE: Final = 32
"""A block has a 32nd more bytes than `block_size` of the parameters."""
OBJECT_SIZE_MIN: Final = 32
SMALL_TO: Final = 128
"""Up to here, objects have the classes of all multiples of 16."""
FITTING: Final = (1088, 2112, 4224, 8448, 16896, 33792, 67584)
"""Classes of 1, 2, 4 ... 64 KiB with room for a header and a key: a 32nd, and at least 64 bytes."""
FITTING_BLOCK_MAX: Final = 9 << 20
"""Larger blocks, those of 16 MiB on, have no such classes: there are no numbers left for them."""
PAGES: Final = 64
"""Pages of a block that has objects of many sizes (alloc/slabs.py): the bits of one word."""
RUN_MAX: Final = 8 * PAGES
"""Pages of the largest object that is a run of pages; larger ones are spans of whole blocks."""
COARSE_RUNS: Final = (8, 11, 16, 22, 32, 46, 64)
"""Lengths of runs in blocks so large that most numbers of classes are of smaller objects."""
CLASSES_MAX: Final = 127
"""Size classes: stores keep a flag in the eighth bit of a class, and 127 with it is no class."""


def address(node: int, offset: int) -> int:
    return node << NODE_SHIFT | offset


EPOCH: Final = address(CONTROL_NODE, 4096)
PRESSURE: Final = address(CONTROL_NODE, 4104)
DROPS: Final = address(CONTROL_NODE, 4112)
HOLDS: Final = address(CONTROL_NODE, 4120)
REMOTES: Final = 1 << 63
"""The bit of DROPS that is set as soon as a remote client joins, and for ever."""
SLOTS_USED: Final = address(CONTROL_NODE, 4160)
EVENT_COUNT: Final = address(CONTROL_NODE, 4224)
TICKETS: Final = address(CONTROL_NODE, 4288)
VIEW: Final = address(CONTROL_NODE, 4352)
COPIED: Final = frozenset((EPOCH, PRESSURE, DROPS, HOLDS, VIEW))
"""Control words of which a remote client has copies (shm/clients/lasting.py)."""
LEADER: Final = address(CONTROL_NODE, 4360)
FAILING: Final = address(CONTROL_NODE, 4368)
POWER: Final = address(CONTROL_NODE, 4416)
POOL_CLOCK: Final = address(CONTROL_NODE, 4424)
GATE: Final = address(CONTROL_NODE, 4480)
GATE_BEAT: Final = address(CONTROL_NODE, 4488)
LEDGER: Final = address(CONTROL_NODE, 4544)
NODE_PLACES: Final = address(CONTROL_NODE, 4608)
WRITER_NUMBERS: Final = address(CONTROL_NODE, 6656)
WRITER_NUMBERS_COUNT: Final = 64
WRITER_NUMBER_SIZE: Final = 16
NODE_STATES: Final = address(CONTROL_NODE, 8192)
NODE_LEDGERS: Final = address(CONTROL_NODE, 10240)
RINGS: Final = address(CONTROL_NODE, 12288)
EVENT_RING: Final = address(CONTROL_NODE, 14336)
CLIENT_SLOTS: Final = address(CONTROL_NODE, 22528)

assert NODE_STATES + 8 * 256 == NODE_LEDGERS
assert NODE_LEDGERS + 8 * 256 == RINGS
assert RINGS + 8 * 256 == EVENT_RING
assert EVENT_RING + EVENTS * EVENT_SIZE == CLIENT_SLOTS


def slot_address(slot: int) -> int:
    """Address of a client's slot."""
    return CLIENT_SLOTS + slot * SLOT_SIZE


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def _entries(size: int, least: int) -> int:
    """How many entries a directory has for `size` bytes of memory."""
    return max(least, min(size // BYTES_PER_ENTRY, ENTRIES_MAX))


def catalogue_entries(memory: int) -> int:
    """Entries of the catalogue of a pool whose nodes have `memory` bytes: the most stores."""
    return _entries(memory, CATALOGUE_ENTRIES_MIN)


def catalogue_address(clients: int) -> int:
    """Address of the catalogue of a pool with so many client slots."""
    return _round_up(CLIENT_SLOTS + clients * SLOT_SIZE, PAGE)


def control_size(clients: int, memory: int) -> int:
    """Bytes of the control segment of a pool with so many client slots, and bytes of nodes."""
    catalogue = catalogue_address(clients) & OFFSET_MASK
    return _round_up(catalogue + catalogue_entries(memory) * CATALOGUE_ENTRY_SIZE, PAGE)


@dataclasses.dataclass(frozen=True)
class NodeLayout:
    """Offsets within every memory node of a pool, in bytes; the same for all of its nodes.
    `block_size`: of a block, with its additional room."""

    node_size: int
    block_size: int
    block_count: int
    region_directory: int
    region_entries: int
    block_table: int
    bitmaps: int
    bitmap_size: int
    blocks: int

    @classmethod
    def of(cls, parameters: PoolParameters) -> NodeLayout:
        """As many blocks as fit, with a table word and a bitmap for each."""
        block_size = parameters.block_size + parameters.block_size // ROOM_SHARE
        bitmap_size = -(-block_size // OBJECT_SIZE_MIN // 64) * 8
        entries = _entries(parameters.node_size, REGION_ENTRIES_MIN)
        table = SUPERBLOCK_SIZE + entries * REGION_ENTRY_SIZE
        count = (parameters.node_size - table) // (block_size + bitmap_size + 8)
        while True:
            bitmaps = table + _round_up(count * 8, 64)
            blocks = _round_up(bitmaps + count * bitmap_size, PAGE)
            if blocks + count * block_size <= parameters.node_size:
                return cls(
                    node_size=parameters.node_size,
                    block_size=block_size,
                    block_count=count,
                    region_directory=SUPERBLOCK_SIZE,
                    region_entries=entries,
                    block_table=table,
                    bitmaps=bitmaps,
                    bitmap_size=bitmap_size,
                    blocks=blocks,
                )
            count -= 1


def slab_sizes(block_size: int) -> tuple[int, ...]:
    """Bytes of an object of each size class of which a block has objects of one size (slabs.py), in
    blocks of `NodeLayout.block_size`; class 0 stands for spans of whole blocks.

    All are multiples of 16, so that the low four bits of an object's address are free:
        up to 128     every multiple of 16 from 32 on
        then          a block divided by a whole number, rounded down, to less than an eighth of it
    Larger objects are runs of pages.

    The classes above 128 follow from the largest to the smallest: each is as small as it can be
    while an object of one byte more, which needs the class above it, takes no more than 8/7 of its
    size, with its share of the rest at the end of the block. So the first ones are 1/9, 1/10, 1/11,
    1/12, 1/13, 1/14, 1/16, 1/18 of a block. Some classes come earlier, so that they are a power of
    two with room for a header and a key (FITTING).
    """
    fitting = FITTING if block_size <= FITTING_BLOCK_MAX else ()
    size = block_size // 8 // 16 * 16
    found: list[int] = []
    while True:
        below = _size_below(block_size, size)
        size = max([below, *[each for each in fitting if below < each < size]])
        if size <= SMALL_TO:
            return (0, *range(OBJECT_SIZE_MIN, SMALL_TO + 1, 16), *reversed(found))
        found.append(size)


def _size_below(block_size: int, size: int) -> int:
    """The smallest class that can be the next one below `size`; as large as it can be without a
    block of fewer objects."""
    least = -(-7 * block_size // (8 * (block_size // size))) - 1
    count = block_size // _round_up(least, 16)
    return block_size // count // 16 * 16


def run_lengths(block_size: int) -> tuple[int, ...]:
    """Pages of an object of each size class that follows those of `slab_sizes` (alloc/slabs.py).

    From an eighth of a block to eight blocks, each class is as long as it can be while it wastes at
    most an eighth; half a block, a block, two, four and eight are among them. In blocks of more
    than 16 MiB there are fewer, as there are numbers for 126 classes; the last is for one page.
    """
    lengths = [PAGES // 8]
    while lengths[-1] < RUN_MAX:
        doubled = 1 << lengths[-1].bit_length()
        lengths.append(min(max(lengths[-1] * 8 // 7, lengths[-1] + 1), doubled))
    room = CLASSES_MAX - len(slab_sizes(block_size)) - 1
    if lengths.index(PAGES) >= room:
        return COARSE_RUNS[:room]
    return tuple(lengths[:room])


def object_sizes(block_size: int) -> tuple[int, ...]:
    """Bytes of an object of each size class: those of `slab_sizes`, of `run_lengths`, and at the
    end one page, the class of a paged block.

    So an object of 65 bytes to eight blocks takes at most 8/7 of its size, with its share of the
    rest at the end of its block, but for the 15 bytes of rounding; a span of more blocks, too.
    In blocks of 32 to 128 MiB that holds up to the largest class, and in larger ones up to an
    eighth of a block.
    """
    runs = [page_offset(block_size, length) for length in run_lengths(block_size)]
    sizes = [*slab_sizes(block_size), *runs]
    assert sizes == sorted(set(sizes))
    assert len(sizes) < CLASSES_MAX
    return (*sizes, page_offset(block_size, 1))


def page_offset(block_size: int, page: Any) -> Any:
    """Bytes from the beginning of a block to a page of it, or of the blocks that follow; of an
    array of pages, too."""
    return page * block_size // PAGES // 16 * 16
