"""A write with its checksum: the same bytes and the same checksum as in two steps."""

from __future__ import annotations

import mmap
from array import array

import numpy as np
import pytest

from limpet.shm.endpoint.fabric import Endpoint, checksum, write_summed
from limpet.shm.errors import AddressError, NodeFailed

SIZE = 2 << 20
LONG = 256 << 10
"""From here on values go past the caches; a quarter of it is copied while it is summed, too."""
SIZES = (0, 1, 1023, 1025, *(at + more for at in (LONG >> 2, LONG) for more in (-1, 0, 1, 1000)))


@pytest.mark.parametrize("start", [64, 72, 4096 - 8])
@pytest.mark.parametrize("size", [*SIZES, 1 << 20])
def test_a_write_has_its_checksum(start: int, size: int) -> None:
    endpoint, mapping = Endpoint(), mmap.mmap(-1, SIZE)
    endpoint.attach(0, mapping, SIZE)
    value = np.random.default_rng(size).bytes(size)
    for key in (b"", b"key", b"eight by", b"k" * 100):
        mapping[:] = b"\xff" * SIZE
        words = array("Q", [5, 0])
        write_summed(endpoint, start, words, 2, key, value, 77)
        assert words[1] == checksum(value, 77)
        whole = words.tobytes() + key.ljust(-(-len(key) // 8) * 8, b"\0") + value
        assert mapping[start : start + len(whole)] == whole
        assert mapping[:start] == b"\xff" * start
        assert set(mapping[start + len(whole) : start + len(whole) + 200]) == {0xFF}
    assert endpoint.counters()["writes"] == 4
    assert endpoint.counters()["bytes_written"] > 4 * size
    endpoint.detach()


def test_a_write_that_cannot_be_is_refused() -> None:
    endpoint, mapping = Endpoint(), mmap.mmap(-1, SIZE)
    endpoint.attach(0, mapping, SIZE)
    words = array("Q", [5, 0])
    with pytest.raises(AddressError):
        write_summed(endpoint, SIZE - LONG, words, 2, b"", bytes(LONG), 0)
    with pytest.raises(AddressError):
        write_summed(endpoint, 4, words, 2, b"", bytes(LONG), 0)
    with pytest.raises((AddressError, NodeFailed)):
        write_summed(endpoint, 1 << 40, words, 2, b"", bytes(LONG), 0)
    endpoint.detach()
