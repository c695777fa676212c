"""Keys of `pool.dict()`: equal keys are one key, whatever their type; `in` takes every key."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import fractions
import http
import io
import math
import pickle
import re
import subprocess
import sys
import time
import uuid
from typing import Any, NamedTuple

import numpy as np
import pytest

from limpet.stores.core.codecs import PROTOCOL, Codec


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


class Day(datetime.date, enum.Enum):
    FIRST = 2020, 1, 1


class Flavour(str, enum.Enum):
    SWEET = "sweet", 1

    def __new__(cls, text: str, number: int) -> Any:
        made = str.__new__(cls, text)
        made._value_ = f"flavour {number}"
        return made


class Point(NamedTuple):
    x: Any
    y: Any


class Text(str):
    def __str__(self) -> str:
        return "other"


class Foldless(str):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


class Anybody(int):
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True


class Unhashable(str):
    def __eq__(self, other: object) -> bool:
        return False


def derived(base: type, *arguments: Any) -> Any:
    """An object of a subclass, which compares as its base does."""
    return type(f"Own{base.__name__}", (base,), {})(*arguments)


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
    (Point(1, (Text("a"), True)), (1, ("a", 1))),
    (frozenset({Point(1, 2)}), frozenset({(1, 2)})),
    (Text("text"), "text"),
    (Flavour.SWEET, "sweet"),
    (Day.FIRST, datetime.date(2020, 1, 1)),
    (derived(bytes, b"raw"), b"raw"),
    (derived(int, 7), 7),
    (derived(float, 2.0), 2),
    (derived(tuple, (1, 2)), (1, 2)),
    (derived(frozenset, {1}), frozenset({1})),
    (derived(decimal.Decimal, "0.1"), decimal.Decimal("0.1")),
    (
        derived(datetime.datetime, 2020, 1, 1, 12, 0, 0, 5),
        datetime.datetime(2020, 1, 1, 12, 0, 0, 5),
    ),
    (derived(uuid.UUID, ID.hex), ID),
    (fractions.Fraction(14, 2), 7),
    (fractions.Fraction(-3, 8), -0.375),
    (fractions.Fraction(1, 10), decimal.Decimal("0.1")),
    (derived(fractions.Fraction, 1, 2), 0.5),
    (1 + 0j, 1),
    (complex(0.5, -0.0), 0.5),
    (np.complex64(2), 2),
    (np.longdouble(0.5), 0.5),
    (-0.0, 0),
    (memoryview(b"raw"), b"raw"),
    (time.gmtime(0), (1970, 1, 1, 0, 0, 0, 3, 1, 0)),
]
DIFFERENT = [
    1, "1", b"1", 1.5, None, (1,), (), "", b"", decimal.Decimal("0.1"), decimal.Decimal("0.2"),
    datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1),
    datetime.datetime(2020, 1, 1, tzinfo=UTC), ID, Colour.RED, Colour.BLUE, Rights.READ,
    Rights.READ | Rights.WRITE, frozenset(), frozenset({1}), frozenset({(1,)}),
    decimal.Decimal("1E+300000"), "red", ("b", 1),
]  # fmt: skip


NUMBERS = [0, 1, -1, 0.5, 0.1, 1e300, 2.0**70, float("inf"), 10**16 + 1, -(2**63)]
LEAVES: list[Any] = [
    *NUMBERS, *map(fractions.Fraction, NUMBERS[:7]), *map(decimal.Decimal, NUMBERS),
    *map(complex, NUMBERS[:8]), *map(np.float64, NUMBERS), *map(np.float32, NUMBERS[:5]),
    *map(np.longdouble, NUMBERS), int(1e300), int(2.0**70), -0.0, complex(0.0, -0.0), 1 + 1j,
    fractions.Fraction(1, 10), fractions.Fraction(1, 3), fractions.Fraction(10**16 + 1, 5),
    decimal.Decimal("0.1"), np.longdouble(1) / 3, np.uint64(2**63), np.int8(1),
    np.timedelta64(1, "s"), True, False, None, "", "1", "a", "\0", "a\0", "\ud83d\ude00",
    "\U0001f600", "\ud800", b"", b"1", b"a", b"a\0", memoryview(b"a"), memoryview(b"\xff"),
    memoryview(b"\xff").cast("b"), np.str_("a"), np.str_("a\0"), np.bytes_(b"a"),
    np.bytes_(b"a\0"), Text("a"), Foldless("a"), Foldless("A"), Anybody(1), Level.LOW, Name.ANN,
    "ann", Flavour.SWEET, "sweet", 5, Day.FIRST, datetime.date(2020, 1, 1),
    datetime.datetime(2020, 1, 1), Colour.RED, Colour.BLUE, Rights.READ, ID, ID.hex, (),
    frozenset(), http.HTTPStatus.OK, 200, re.RegexFlag.I, 2,
]  # fmt: skip


OWN = {
    shape
    for key in (Foldless("a"), Foldless("A"), Anybody(1))
    for shape in (key, (key,), (key, 1), frozenset({key}), ((key, "x"), key))
}


def equal(one: Any, other: Any) -> bool:
    """Whether they are one key of a dict."""
    with contextlib.suppress(TypeError):  # numpy cannot compare all with a Fraction
        return {one: 1}.get(other) == 1
    return False


@pytest.mark.parametrize("codec", ["pickle", "msgpack", "json", "int"])
def test_two_keys_are_one_entry_just_if_a_dict_takes_them_for_one(codec: str) -> None:
    encode = Codec.named(codec).encode_key
    nested = [shape for leaf in LEAVES for shape in (leaf, (leaf,), Point(leaf, 1), (leaf, 1))]
    nested += [frozenset({leaf}) for leaf in LEAVES] + [(Point(leaf, "x"), leaf) for leaf in LEAVES]
    written: list[tuple[Any, bytes]] = []
    refused = []
    for key in nested:
        try:
            written.append((key, encode(key)))
        except (TypeError, ValueError, OverflowError):
            refused.append(key)
    assert len({data for _, data in written}) > 20
    for one, data in written:
        # Not "one and other": a number of numpy and a Fraction may differ though both equal an int.
        assert equal(Codec.named(codec).decode_key(data), one)
        assert {data} == {bytes_of_other for other, bytes_of_other in written if equal(one, other)}
    if codec == "pickle":
        # No key is refused that equals one that is taken, but for classes with ways of their own.
        assert {key for key in refused if any(equal(key, one) for one, _ in written)} <= OWN


@pytest.mark.parametrize("codec", ["pickle", "str", "json", "msgpack"])
def test_a_key_whose_class_compares_in_its_own_way_is_refused(pools: Any, codec: str) -> None:
    shared = pools(nodes=1, node_size="8MiB").dict("d", codec=codec)
    shared["a"] = "there"
    for call in (shared.get, shared.__getitem__, shared.pop, lambda key: shared.update({key: "x"})):
        with pytest.raises(TypeError, match="compares in a way of its own"):
            call(Foldless("a"))
    assert Foldless("a") not in shared
    with pytest.raises(TypeError):
        Unhashable("a") in shared  # noqa: B015
    assert shared[Text("a")] == "there"
    assert list(shared) == ["a"]


@pytest.mark.parametrize("codec", ["pickle", "msgpack", "json"])
def test_every_nan_is_one_key(codec: str) -> None:
    encode = Codec.named(codec).encode_key
    nan = float("nan")
    assert {encode(one) for one in (nan, -nan, np.float32("nan"), np.float64("-nan"))} == {
        encode(math.nan)
    }


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
        "from limpet.stores.core.codecs import Codec; "
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
