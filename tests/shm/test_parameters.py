"""Pool parameters: checked when made, and the same after a trip through a superblock."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.shm.errors import ParameterError, PoolCorrupt
from limpet.shm.parameters import (
    BLOCK_SIZE_MAX,
    BLOCK_SIZE_MIN,
    CLIENTS_MAX,
    GIB,
    KIB,
    MIB,
    NODE_SIZE_MAX,
    NODE_SIZE_MIN,
    NODES_MAX,
    PoolParameters,
    default_block_size,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("4096b", 4096),
        ("64MiB", 64 * MIB),
        ("64 mib", 64 * MIB),
        (" 1.5 GiB ", 3 * GIB // 2),
        ("2k", 2000),
        ("2kB", 2000),
        ("0.5KiB", 512),
    ],
)
def test_parse_size_reads(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-1", -1, "1e3", "0x10", "1,5GiB", "1.1KiB", "1 MiB 2", "1.", True, 1.5, None],
)
def test_parse_size_refuses(text: Any) -> None:
    with pytest.raises(ParameterError):
        parse_size(text)


@given(st.one_of(st.text(max_size=20), st.integers(), st.floats(), st.booleans(), st.none()))
def test_parse_size_gives_bytes_or_a_parameter_error(text: Any) -> None:
    try:
        size = parse_size(text)
    except ParameterError:
        return
    assert isinstance(size, int)
    assert size >= 0


@pytest.mark.parametrize("node_size", [NODE_SIZE_MIN, 64 * MIB, 10 * GIB, NODE_SIZE_MAX])
def test_default_block_size_is_valid_for_its_node(node_size: int) -> None:
    block = PoolParameters(node_size=node_size).block_size
    assert block == default_block_size(node_size)
    assert block & (block - 1) == 0
    assert BLOCK_SIZE_MIN <= block <= node_size // 8


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": NODES_MAX + 1}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"nodes": 1.0}, "nodes"),
        ({"nodes": "3"}, "nodes"),
        ({"node_size": NODE_SIZE_MIN - 4096}, "node_size"),
        ({"node_size": NODE_SIZE_MAX + 4096}, "node_size"),
        ({"node_size": MIB + 1}, "multiple of 4096"),
        ({"block_size": -1}, "block_size"),
        ({"block_size": BLOCK_SIZE_MIN // 2}, "block_size"),
        ({"block_size": BLOCK_SIZE_MAX * 2}, "block_size"),
        ({"block_size": 3 * BLOCK_SIZE_MIN}, "power of two"),
        ({"node_size": 256 * KIB, "block_size": 64 * KIB}, "no room for 8 blocks"),
        ({"clients": 1}, "clients"),
        ({"clients": CLIENTS_MAX + 1}, "clients"),
        ({"lease_us": 0}, "lease_us"),
        ({"lease_us": float("nan")}, "lease_us"),
        ({"fence": "never"}, "fence"),
        ({"fence": None}, "fence"),
        ({"multi_host": 1}, "multi_host"),
        ({"coherent": 0}, "coherent"),
        ({"coherent_bytes": MIB}, "coherent=False"),
        ({"coherent": False}, "coherent_bytes"),
        ({"coherent": False, "node_size": MIB, "coherent_bytes": 2 * MIB}, "coherent_bytes"),
    ],
)
def test_parameters_out_of_range_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        PoolParameters(**fields)


@st.composite
def parameters(draw: st.DrawFn) -> PoolParameters:
    node_size = draw(st.integers(NODE_SIZE_MIN // 4096, 1 << 20)) * 4096
    coherent = draw(st.booleans())
    low = NODE_SIZE_MIN // 2
    return PoolParameters(
        nodes=draw(st.integers(1, NODES_MAX)),
        node_size=node_size,
        clients=draw(st.integers(2, CLIENTS_MAX)),
        lease_us=draw(st.integers(1_000, 3_600_000_000)),
        fence=draw(st.sampled_from(["kill", "wait"])),
        multi_host=draw(st.booleans()),
        coherent=coherent,
        coherent_bytes=0 if coherent else draw(st.integers(low, node_size)),
    )


@given(parameters())
def test_json_gives_the_same_parameters_and_bytes_back(made: PoolParameters) -> None:
    text = made.to_json()
    again = PoolParameters.from_json(text, "here")
    assert again == made
    assert again.to_json() == text


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"3",
        b'{"nodes": NaN}',
        b'{"nodes": Infinity}',
        b'{"nodes": 1e999}',
        b'{"nodes": true}',
        b'{"nodes": {}}',
        b'{"unknown": 1}',
        b'{"\\ud800": 1}',
        b'{"nodes": 99999999999999999999999}',
        b"[" * 4000,
        b'{"nodes":' * 400 + b"1" + b"}" * 400,
    ],
)
def test_damaged_json_is_corrupt_and_says_where(text: bytes) -> None:
    with pytest.raises(PoolCorrupt, match=r"^shm://demo node 0: the pool parameters are damaged"):
        PoolParameters.from_json(text, "shm://demo node 0")


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)
NAMES = sorted(json.loads(PoolParameters().to_json()))


@given(st.dictionaries(st.sampled_from(NAMES), json_values))
def test_hostile_json_gives_valid_parameters_or_corrupt(fields: dict[str, Any]) -> None:
    try:
        made = PoolParameters.from_json(json.dumps(fields).encode(), "here")
    except PoolCorrupt:
        return
    assert PoolParameters.from_json(made.to_json(), "here") == made
