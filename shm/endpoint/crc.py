"""`crc_pair` of the native fabric, in numpy: two CRC-32C of an array of words, in one word.

CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) starts from 0 here, with nothing inverted. So
it is linear: the CRC of n words is the XOR of the shares of all bytes. A share depends on the byte
and on the number of words after it. The CRC of zeros is 0.

The words at even places have one CRC, the words at odd places another. Their combination is the CRC
of one word, the odd places' CRC times 256, started from the even places' CRC. (Without that factor
equal changes of two words that are neighbours would cancel out.) Bits 0-31 of the result are the
combination for the words, bits 32-63 the combination for their products with an odd number: if one
of them misses a damage, the other finds it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

POLYNOMIAL: Final = 0x82F6_3B78
FACTOR: Final = np.uint64(0x9E37_79B1_85EB_CA87)
_PLACES: Final = np.arange(8)


def _of_bytes() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The share of byte `b` at place `j` of a word, if no word follows: shape (8, 256)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> 1 ^ (table & 1) * np.uint32(POLYNOMIAL)
    rows = [table]
    for _ in range(7):
        rows.append(rows[-1] >> 8 ^ table[rows[-1] & 0xFF])
    return np.stack(rows[::-1])


_after: list[np.ndarray[Any, np.dtype[np.uint32]]] = [_of_bytes()]
"""The same if 0, 1, 2... words follow."""
_tables = np.stack(_after)


def _step(crc: Any) -> Any:
    """The CRC after one more word, of zeros."""
    first = _after[0]
    return (
        first[0][crc & 0xFF]
        ^ first[1][crc >> 8 & 0xFF]
        ^ first[2][crc >> 16 & 0xFF]
        ^ first[3][crc >> 24]
    )


def _crc(words: np.ndarray[Any, np.dtype[np.uint64]]) -> int:
    """The CRC-32C of these words."""
    global _tables
    while len(_after) < len(words):
        _after.append(_step(_after[-1]))
    if len(_tables) < len(words):
        _tables = np.stack(_after)
    places = np.arange(len(words) - 1, -1, -1)[:, None]
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8)
    return int(np.bitwise_xor.reduce(_tables[places, _PLACES, octets], axis=None))


def _joined(words: np.ndarray[Any, np.dtype[np.uint64]]) -> int:
    """The CRC of one word, the odd places' CRC times 256, started from the even places' CRC."""
    odd = np.array([_crc(words[1::2]) << 8], dtype=np.uint64)
    return int(_step(np.uint32(_crc(words[::2])))) ^ _crc(odd)


def crc_pair(words: Any) -> int:
    """Two CRC-32C of an array of words, in one word."""
    array = np.asarray(words, dtype="<u8")
    return _joined(array * FACTOR) << 32 | _joined(array)
