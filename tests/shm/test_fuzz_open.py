"""Whatever a segment holds, opening it opens it or raises a LimpetError, and never writes to it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kit.segments import (
    CONTROL_SIZE,
    DEVICE_SIZE,
    NODE_SIZE,
    SCHEMES,
    location_on,
    make,
    open_fds,
    patch,
)

from limpet.shm.backends import dax, node, superblock
from limpet.shm.backends.location import Location
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import LimpetError
from limpet.shm.parameters import PoolParameters

INDICES = (CONTROL_NODE, 0, 1)
fuzzed = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

words = st.sampled_from([superblock.MAGIC, superblock.MAGIC, superblock.CREATING, bytes(8)])
numbers = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 4096, NODE_SIZE, CONTROL_SIZE, 2**40, 2**63, 2**64 - 1]),
)
json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from([0, 2, 255, NODE_SIZE, 2**40, "kill", "wait"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(), inner)),
    max_leaves=4,
)
NAMES = sorted(json.loads(PoolParameters().to_json()))
texts = st.one_of(
    st.dictionaries(st.sampled_from(NAMES), json_values).map(lambda d: json.dumps(d).encode()),
    st.binary(max_size=64),
    st.sampled_from([b"[" * 4032, b'{"nodes":' * 300, b"9" * 4032, b'{"nodes": NaN}']),
    st.just(PoolParameters(nodes=2, node_size=NODE_SIZE).to_json()),
)


@pytest.fixture(params=SCHEMES)
def location(request: pytest.FixtureRequest) -> Iterator[Location]:
    with location_on(request.param) as place:
        make(place)
        yield place


def state(location: Location) -> list[tuple[bytes, int, int, int]]:
    paths: set[Path] = {location.path(index) for index in INDICES}
    stats = [(path, path.stat()) for path in sorted(paths)]
    return [(path.read_bytes(), s.st_mtime_ns, s.st_ctime_ns, s.st_size) for path, s in stats]


def try_to_open(location: Location) -> None:
    """Every way in, on every segment."""
    before = state(location)
    fds = open_fds()
    for index in INDICES:
        try:
            opened, found = node.open_(location, index)
        except LimpetError as error:
            message = str(error)
            names = (location.url, location.path(index).name)
            assert any(name in message for name in names)
        else:
            assert found.index == opened.index == index
            assert len(opened.map) == opened.size == found.size <= opened.stat_size()
            opened.close()
    node.list_pools(location.url)
    assert open_fds() == fds
    assert state(location) == before


def heal(location: Location) -> None:
    """A sound pool again, whatever the last example did to it."""
    for index, size in zip(INDICES, (CONTROL_SIZE, NODE_SIZE, NODE_SIZE), strict=True):
        size = DEVICE_SIZE if location.scheme == "dax" else size
        os.truncate(location.path(index), size)
    sizes = dict(zip(INDICES, (CONTROL_SIZE, NODE_SIZE, NODE_SIZE), strict=True))
    for index in INDICES:
        data = superblock.pack(
            index=index,
            size=sizes[index],
            uuid=bytes(range(16)),
            created_ns=0,
            uid=os.geteuid(),
            parameters=PoolParameters(nodes=2, node_size=NODE_SIZE),
        )
        patch(location, index, 0, data)


@fuzzed
@given(index=st.sampled_from(INDICES), word=words, data=st.binary(max_size=200))
def test_random_bytes(location: Location, index: int, word: bytes, data: bytes) -> None:
    heal(location)
    patch(location, index, 0, word + data)
    try_to_open(location)


@fuzzed
@given(data=st.binary(min_size=1, max_size=64))
def test_random_bytes_without_a_magic(location: Location, data: bytes) -> None:
    heal(location)
    patch(location, CONTROL_NODE, 0, data)
    try_to_open(location)


@fuzzed
@given(
    index=st.sampled_from(INDICES),
    bits=st.sets(st.integers(0, 8 * 4096 - 1), min_size=1, max_size=8),
)
def test_flipped_bits_are_always_noticed(location: Location, index: int, bits: set[int]) -> None:
    heal(location)
    uuid = node.probe(location, index).uuid
    data = bytearray(
        superblock.pack(
            index=index,
            size=CONTROL_SIZE if index == CONTROL_NODE else NODE_SIZE,
            uuid=uuid,
            created_ns=0,
            uid=os.geteuid(),
            parameters=PoolParameters(nodes=2, node_size=NODE_SIZE),
        )
    )
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    patch(location, index, 0, bytes(data))
    with pytest.raises(LimpetError):
        node.open_(location, index)
    try_to_open(location)


HEADER = struct.Struct("<8sIIQ16sQII")


@fuzzed
@given(
    index=st.sampled_from(INDICES),
    version=st.sampled_from([1, 1, 1, 0, 2, 2**32 - 1]),
    says=st.one_of(st.sampled_from([0, 1, 2, CONTROL_NODE]), st.integers(0, 2**32 - 1)),
    size=numbers,
    uuid=st.binary(min_size=16, max_size=16),
    created_ns=numbers,
    uid=st.one_of(st.just(os.geteuid()), st.integers(0, 2**32 - 1)),
    text=texts,
    claimed=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
)
@example(1, 1, 1, 2**64 - 1, bytes(16), 0, os.geteuid(), b"{}", None)
@example(0, 1, 0, NODE_SIZE, bytes(16), 0, os.geteuid(), b'{"nodes": 0}', None)
@example(0, 1, 0, NODE_SIZE, bytes(16), 0, os.geteuid(), b'{"nodes": true}', None)
@example(255, 1, 255, 2**40, bytes(16), 0, os.geteuid(), b"{}", 2**32 - 1)
@example(255, 1, 255, 4097, bytes(16), 0, os.geteuid(), b"{}", None)
def test_hostile_fields_with_a_checksum_that_holds(
    location: Location,
    index: int,
    version: int,
    says: int,
    size: int,
    uuid: bytes,
    created_ns: int,
    uid: int,
    text: bytes,
    claimed: int | None,
) -> None:
    heal(location)
    length = len(text) if claimed is None else claimed
    header = HEADER.pack(superblock.MAGIC, version, says, size, uuid, created_ns, uid, length)
    body = (header + text).ljust(superblock.CHECKSUM_OFFSET, b"\0")
    patch(location, index, 0, superblock.seal(body))
    try_to_open(location)


@fuzzed
@given(
    sizes=st.dictionaries(
        st.sampled_from(INDICES),
        st.one_of(st.integers(0, 8192), st.integers(0, 2 * DEVICE_SIZE)),
        min_size=1,
    )
)
def test_sizes_of_the_files(location: Location, sizes: dict[int, int]) -> None:
    heal(location)
    for index, size in sizes.items():
        os.truncate(location.path(index), size)
    try_to_open(location)


@fuzzed
@given(
    attribute=st.sampled_from(["size", "align", "target_node"]),
    text=st.one_of(
        st.integers().map(str), st.binary(max_size=12), st.sampled_from(["", "0x", "\n"])
    ),
)
def test_what_sysfs_says_of_a_device(attribute: str, text: Any) -> None:
    with location_on("dax") as location:
        make(location)
        data = text if isinstance(text, bytes) else text.encode()
        (dax.SYSFS / "dax0.0" / attribute).write_bytes(data)
        try_to_open(location)


@fuzzed
@given(st.one_of(st.text(max_size=40), st.text(max_size=40).map(lambda rest: "shm://" + rest),
                 st.text(max_size=40).map(lambda rest: "file:///" + rest),
                 st.text(max_size=40).map(lambda rest: "dax:///" + rest)))  # fmt: skip
def test_urls(url: str) -> None:
    try:
        location = node.parse_url(url)
    except LimpetError:
        return
    assert node.parse_url(location.url) == location
    with pytest.raises(LimpetError):
        node.probe(location, CONTROL_NODE)
