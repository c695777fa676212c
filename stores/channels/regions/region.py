"""A memory region as the catalogue has it. Plain classes, as compiled modules need them."""

from typing import Final, NamedTuple

DESCRIPTION_MAX: Final = 4096
"""An upper bound of the bytes of a region besides its memory."""


class Region(NamedTuple):
    """The address of a region's memory, the address of its mark, and the mark (catalogue.py)."""

    address: int
    size: int
    mark_address: int
    mark: int


class Links(NamedTuple):
    """The places of the words of a region that are 0 or a link to an object: `number` of them."""

    first: int
    stride: int
    number: int
