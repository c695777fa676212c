"""Sizes in an out-of-place object (records.py), and its pointer. Plain constants."""

from typing import Final

HEADER: Final = 16
"""Bytes before the key: sizes and checksum."""
KEY_MAX: Final = 0xFFFF
IMAGE_SIZE: Final = 4096
"""Objects up to this size are read in one go; of larger ones, this much and then the value."""
POINTER: Final = 8
"""Offset of the pointer to an object's data; the lock is the first word before it (RACE's directory
entries, TXObj)."""
