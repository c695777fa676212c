"""What the catalogue says of a memory region. Plain, as compiled modules need it."""

from typing import NamedTuple


class Region(NamedTuple):
    """Where the memory of a region lies, the address of its mark, and the mark (catalogue.py)."""

    address: int
    size: int
    mark_address: int
    mark: int


class Links(NamedTuple):
    """Where the words of a region are that are 0 or a link to an object: `number` of them."""

    first: int
    stride: int
    number: int
