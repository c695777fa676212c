"""The superblock's bytes: what is written, in which order, and what is refused."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import pytest

from limpet.shm.backends import superblock
from limpet.shm.errors import (
    ParameterError,
    PoolCorrupt,
    PoolForeign,
    PoolIncomplete,
    PoolTruncated,
    PoolVersion,
)
from limpet.shm.parameters import NODE_SIZE_MAX, PoolParameters
from limpet.shm.release import PROTOCOL

PARAMETERS = PoolParameters(nodes=3, node_size=1 << 20)
UUID = bytes(range(16))


def packed(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "index": 1,
        "size": 1 << 20,
        "uuid": UUID,
        "created_ns": 1_700_000_000_000_000_000,
        "uid": 1000,
        "parameters": PARAMETERS,
    }
    return superblock.pack(**{**fields, **changes})


def patched(offset: int, new: bytes) -> bytes:
    """A superblock with these bytes changed and a checksum that holds."""
    data = packed()
    return superblock.seal(data[:offset] + new + data[offset + len(new) :])


def test_unpack_gives_what_was_packed() -> None:
    found = superblock.unpack(packed(), "here")
    assert found == superblock.Superblock(
        index=1,
        size=1 << 20,
        uuid=UUID,
        created_ns=1_700_000_000_000_000_000,
        uid=1000,
        parameters=PARAMETERS,
    )


def test_layout_is_the_documented_one() -> None:
    data = packed()
    assert len(data) == 4096
    assert data[:8] == b"\x89limpet\n"
    assert struct.unpack_from("<IIQ16sQII", data, 8) == (
        PROTOCOL, 1, 1 << 20, UUID, 1_700_000_000_000_000_000, 1000, len(PARAMETERS.to_json()),
    )  # fmt: skip
    assert data[56:4088].rstrip(b"\0") == PARAMETERS.to_json()


def test_largest_parameters_fit() -> None:
    largest = PoolParameters(
        nodes=255,
        node_size=NODE_SIZE_MAX,
        block_size=1 << 30,
        clients=4096,
        lease_us=3_600_000_000,
        coherent=False,
        coherent_bytes=NODE_SIZE_MAX,
        multi_host=True,
    )
    data = packed(index=254, size=NODE_SIZE_MAX, parameters=largest)
    assert superblock.unpack(data, "here").parameters == largest


def test_pack_refuses_parameters_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoolParameters, "to_json", lambda self: bytes(superblock.JSON_SIZE_MAX + 1))
    with pytest.raises(ParameterError, match="4033 bytes"):
        packed()


@pytest.mark.parametrize("word", [b"", superblock.ABSENT, superblock.CREATING])
def test_unfinished_is_incomplete_whatever_follows(word: bytes) -> None:
    with pytest.raises(PoolIncomplete, match=r"^here is not complete"):
        superblock.unpack(word + packed()[8:] if word else b"", "here")


@pytest.mark.parametrize("data", [b"\x7fELF", b"SQLite format 3\0", b"\x01" * 4096, bytes(7)])
def test_another_magic_is_foreign(data: bytes) -> None:
    with pytest.raises(PoolForeign, match="not a limpet segment"):
        superblock.unpack(data, "here")


@pytest.mark.parametrize(
    ("version", "age"), [(1, "older"), (PROTOCOL + 1, "newer"), (2**32 - 1, "newer")]
)
def test_another_version_is_refused_before_its_layout_is_read(version: int, age: str) -> None:
    data = superblock.MAGIC + struct.pack("<I", version) + b"\xee" * 4084
    with pytest.raises(PoolVersion, match=rf"protocol {version}, {age}"):
        superblock.unpack(data, "here")


@pytest.mark.parametrize("size", [8, 56, 4095])
def test_fewer_bytes_than_a_superblock_are_truncated(size: int) -> None:
    with pytest.raises(PoolTruncated, match=f"truncated to {size} bytes"):
        superblock.unpack(packed()[:size], "here")


@pytest.mark.parametrize("offset", [12, 16, 24, 40, 48, 52, 56, 100, 4087, 4088, 4095])
def test_every_field_is_under_the_checksum(offset: int) -> None:
    data = bytearray(packed())
    data[offset] ^= 1
    with pytest.raises(PoolCorrupt, match="checksum"):
        superblock.unpack(bytes(data), "here")


@pytest.mark.parametrize(
    ("offset", "new", "says"),
    [
        (12, struct.pack("<I", 256), "node 256"),
        (12, struct.pack("<I", 2**32 - 1), "node 4294967295"),
        (16, struct.pack("<Q", 0), "has 0 bytes"),
        (16, struct.pack("<Q", 2**64 - 1), "has 18446744073709551615 bytes"),
        (16, struct.pack("<Q", 2 << 20), "nodes have 1048576"),
        (52, struct.pack("<I", 4033), "4033 bytes of parameters"),
        (52, struct.pack("<I", 0), "parameters are damaged"),
        (52, struct.pack("<I", 10), "parameters are damaged"),
        (56, b"[" * 4032, "parameters are damaged"),
    ],
)
def test_impossible_fields_are_corrupt_although_the_checksum_holds(
    offset: int, new: bytes, says: str
) -> None:
    with pytest.raises(PoolCorrupt, match=says):
        superblock.unpack(patched(offset, new), "here")


class WatchedMapping(mmap.mmap):
    """Notes word 0 and the rest after each assignment; the atomic store is not one of them."""

    seen: list[tuple[bytes, bytes]]

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.seen.append((self[:8], self[8:4096]))


def test_write_leaves_word_0_for_last() -> None:
    with WatchedMapping(-1, 4096) as mapping:
        mapping.seen = []
        superblock.write(mapping, packed())
        assert mapping.seen == [(superblock.ABSENT, packed()[8:])]
        assert mapping[:4096] == packed()


def test_claim_is_won_once() -> None:
    with mmap.mmap(-1, 4096) as mapping:
        mapping[:8] = b"leftover"
        assert superblock.claim_word0(mapping)
        assert not superblock.claim_word0(mapping)
        superblock.write(mapping, packed())
        assert not superblock.claim_word0(mapping)
        superblock.write_word0(mapping, superblock.ABSENT)
        assert superblock.claim_word0(mapping)
