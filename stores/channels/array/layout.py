"""Constants of arrays. Plain, as compiled modules need them."""

from typing import Final

SIGNED: Final = 0
UNSIGNED: Final = 1
DOUBLE: Final = 2
FLOAT: Final = 3
BOOL: Final = 4
OTHER: Final = 5
"""An element that is a word, or a part of one, and goes by way of numpy."""
WIDE: Final = 6
"""An element that is no part of one word."""

ADD: Final = 0
AND: Final = 1
OR: Final = 2
XOR: Final = 3
NATIVE: Final = {"i": SIGNED, "u": UNSIGNED, "b": BOOL, "f8": DOUBLE, "f4": FLOAT}

MAKING: Final = 0
READY: Final = 1
GIVEN_UP: Final = 2
"""States of the stripes (array.py)."""
STRIPES_MAX: Final = 4096
PIECE: Final = 1 << 20
"""Bytes that one operation reads or writes at most; other threads go on in between."""
DTYPE: Final = "<i8"
"""The dtype of an array that is made without one."""
