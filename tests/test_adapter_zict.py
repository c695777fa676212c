"""`limpet.adapters.zict`: the checks of mappings in zict's package, and what processes share.

The checks are those of `zict.tests.utils_test`, by which zict tests its own mappings.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from kit.adapters import assert_sound, with_kills
from kit.processes import gather

import limpet

zict = pytest.importorskip("zict", reason="zict is not installed: pip install 'limpet[zict]'")
from zict.tests import utils_test as checks

pytestmark = pytest.mark.exhaustive_in_pure("the adapter is not compiled", quick=[])


@pytest.fixture
def mapping(location: str) -> Any:
    from limpet.adapters.zict import Shared

    return Shared(f"{location}/objects", node_size="4MiB", clients=16)


def of_bytes(mapping: Any) -> Any:
    """Another mapping of the pool, which takes bytes only as values."""
    from limpet.adapters.zict import Shared

    return Shared(f"{mapping.shared.url}/raw", codec="bytes")


def test_check_mapping(mapping: Any) -> None:
    checks.check_mapping(mapping)


def test_check_different_keys_threadsafe(mapping: Any) -> None:
    checks.check_different_keys_threadsafe(mapping)


def test_check_same_key_threadsafe(mapping: Any) -> None:
    checks.check_same_key_threadsafe(mapping)


def test_check_bad_key_types(mapping: Any) -> None:
    checks.check_bad_key_types(mapping)


def test_check_bad_value_types(mapping: Any) -> None:
    mapping["opened"] = 1
    other = of_bytes(mapping)
    with pytest.raises(TypeError):
        other[b"x"] = object()
    with pytest.raises(TypeError):
        other.update({b"x": object()})
    assert object() not in other.values()
    assert (b"x", object()) not in other.items()


def test_check_closing(mapping: Any) -> None:
    checks.check_closing(mapping)
    mapping["k"] = 1
    assert mapping["k"] == 1


def test_check_mapping_that_is_slow_side_of_a_buffer(mapping: Any) -> None:
    buffer = zict.Buffer({}, mapping, n=2)
    checks.check_mapping(buffer)
    checks.check_closing(buffer)


def test_func_over_it(mapping: Any) -> None:
    func = zict.Func(bytes.hex, bytes.fromhex, mapping)
    func["k"] = b"\x01\xff"
    assert mapping["k"] == "01ff"
    assert func["k"] == b"\x01\xff"


def test_it_is_pickled_by_its_location(mapping: Any) -> None:
    mapping["k"] = [1]
    again = pickle.loads(pickle.dumps(mapping))
    again["l"] = 2
    assert dict(mapping) == {"k": [1], "l": 2}
    again.discard("k")
    again.discard("k")
    assert "k" not in mapping


def test_buffers_of_processes_share_what_is_slow(mapping: Any) -> None:
    mapping["opened"] = 1

    def fill(first: int) -> Any:
        buffer = zict.Buffer({}, mapping, n=5)
        for number in range(first, first + 50):
            buffer[f"k{number}"] = number
        return len(buffer)

    gather(lambda: fill(0), lambda: fill(1000))
    keys = set(mapping)
    assert {f"k{number}" for number in range(45)} <= keys
    assert {f"k{number}" for number in range(1000, 1045)} <= keys


def test_full_pool_raises_and_keeps_what_it_has(mapping: Any) -> None:
    mapping["k"] = b"kept"
    with pytest.raises(limpet.StoreFull):
        for number in range(100):
            mapping[f"k{number}"] = bytes(100_000)
    assert mapping["k"] == b"kept"


def test_killed_processes_leave_whole_values(mapping: Any, location: str) -> None:
    def work(number: int) -> None:
        mapping[f"k{number % 20}"] = [number] * 200
        found = mapping.get(f"k{(number + 7) % 20}")
        assert found is None or found == [found[0]] * 200

    mapping["opened"] = 1
    with_kills(work)
    assert_sound(location)
