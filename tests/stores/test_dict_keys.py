"""Keys of `pool.dict()`: equal keys are one key, whatever their type; `in` takes every key."""

from __future__ import annotations

import datetime
import decimal
import enum
import io
import pickle
import subprocess
import sys
import uuid
from typing import Any

import numpy as np
import pytest

from limpet.stores.codecs import PROTOCOL, Codec


class Colour(enum.Enum):
    RED = "red"
    CRIMSON = "red"  # noqa: PIE796
    BLUE = ("b", 1)


class Level(enum.IntEnum):
    LOW = 1


class Name(str, enum.Enum):
    ANN = "ann"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


UTC = datetime.timezone.utc
EAST = datetime.timezone(datetime.timedelta(hours=2))
ID = uuid.UUID("12345678123456781234567812345678")

EQUAL = [
    (np.int64(7), 7),
    (np.uint8(7), 7),
    (np.int32(-1), -1),
    (np.bool_(True), 1),
    (np.float32(0.5), 0.5),
    (np.float64(2.0), 2),
    (np.str_("text"), "text"),
    (np.bytes_(b"raw"), b"raw"),
    (Level.LOW, 1),
    (Name.ANN, "ann"),
    (Colour.CRIMSON, Colour.RED),
    (decimal.Decimal("1.00"), 1),
    (decimal.Decimal("0.5"), 0.5),
    (decimal.Decimal("1E+400"), 10**400),
    (decimal.Decimal("0.10"), decimal.Decimal("0.1")),
    (decimal.Decimal("Infinity"), float("inf")),
    (datetime.datetime(2020, 1, 1, 12, tzinfo=UTC), datetime.datetime(2020, 1, 1, 14, tzinfo=EAST)),
    (datetime.datetime(2020, 1, 1, fold=1), datetime.datetime(2020, 1, 1)),
    (uuid.UUID(ID.hex, is_safe=uuid.SafeUUID.safe), ID),
    (frozenset({1, 2.0, "x"}), frozenset({True, "x", 2})),
    (frozenset({frozenset({1}), Colour.RED}), frozenset({Colour.RED, frozenset({1.0})})),
    ((1, np.int8(2), (Level.LOW,)), (1, 2, (1,))),
]
DIFFERENT = [
    1, "1", b"1", 1.5, None, (1,), (), "", b"", decimal.Decimal("0.1"), decimal.Decimal("0.2"),
    datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1),
    datetime.datetime(2020, 1, 1, tzinfo=UTC), ID, Colour.RED, Colour.BLUE, Rights.READ,
    Rights.READ | Rights.WRITE, frozenset(), frozenset({1}), frozenset({(1,)}),
    decimal.Decimal("1E+300000"), "red", ("b", 1),
]  # fmt: skip


def slowly(key: Any) -> bytes:
    """The bytes that pickle itself gives."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, PROTOCOL)
    pickler.fast = True
    pickler.dump(key)
    return buffer.getvalue()


@pytest.fixture
def shared(pools: Any) -> Any:
    return pools(nodes=1, node_size="8MiB").dict("d")


@pytest.mark.parametrize(("one", "other"), EQUAL, ids=repr)
def test_keys_that_are_equal_are_one_key(shared: Any, one: Any, other: Any) -> None:
    assert one == other
    shared[one] = "value"
    assert shared[other] == "value"
    assert other in shared
    assert list(shared) == [other]
    del shared[other]
    assert one not in shared


def test_keys_that_differ_are_several_keys(shared: Any) -> None:
    for number, key in enumerate(DIFFERENT):
        shared[key] = number
    assert dict(shared) == {key: number for number, key in enumerate(DIFFERENT)}
    assert {type(key) for key in shared} == {type(key) for key in DIFFERENT}


def test_short_keys_have_the_bytes_of_pickle() -> None:
    encode = Codec.named("pickle").encode_key
    numbers = [n + d for n in (0, 1 << 8, 1 << 16, 1 << 31, 1 << 32) for d in range(-2, 3)]
    texts = ["a" * size for size in (0, 1, 2, 254, 255, 256, 300)] + ["é", "\ud800", "\0"]
    for key in [*numbers, *texts]:
        assert encode(key) == slowly(key), key


def test_keys_have_the_same_bytes_in_every_process() -> None:
    keys = "[frozenset('abcdefgh'), frozenset(map(str, range(50))), (1, frozenset({'x', 2}))]"
    code = (
        "from limpet.stores.codecs import Codec; "
        f"print([Codec.named('pickle').encode_key(key) for key in {keys}])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True,
            text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(seen) == 1


@pytest.mark.parametrize("codec", ["pickle", "json", "bytes"])
def test_in_takes_every_hashable_key(pools: Any, codec: str) -> None:
    shared = pools(nodes=1, node_size="8MiB").dict("d", codec=codec)
    for key in (
        object(), print, 1 + 2j, "x" * 100_000, decimal.Decimal("NaN"), *DIFFERENT, (object(),),
        frozenset({object()}), "\ud800", 1 << 70,
    ):  # fmt: skip
        assert key not in shared
    with pytest.raises(TypeError):
        [] in shared  # noqa: B015
    with pytest.raises(TypeError):
        shared[object()] = 1


def test_a_key_whose_class_has_no_name_is_refused(shared: Any) -> None:
    local = enum.Enum("local", "ONE")
    with pytest.raises(TypeError, match="found by its name"):
        shared[local.ONE] = 1
    assert local.ONE not in shared
