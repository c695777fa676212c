"""Sizes in an out-of-place object (records.py). Plain constants."""

from typing import Final

HEADER: Final = 16
"""Bytes before the key: sizes and checksum."""
KEY_MAX: Final = 0xFFFF
IMAGE_SIZE: Final = 4096
"""Objects up to this size are read in one go; of larger ones, this much and then the value."""
