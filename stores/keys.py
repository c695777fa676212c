"""Keys of `pool.dict()` that are not written as they are: the one form of all equal keys.

A number, text or bytes of numpy, and a member of an Enum that is a number or text as well, is the
plain object that equals it. A Decimal that equals an int or a float is that. The codec "pickle"
takes some types more; one of them that can be written in several ways has one here:

    Enum         by the names of class and member; Flag: by its value
    datetime     aware: in UTC; its `fold` is left out
    UUID         by its digits
    Decimal      without zeros at its end
    frozenset    by its elements, in the order of their bytes

A date, and a datetime without a time zone, has only one.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Callable
from typing import Any, Final

import numpy as np

DIGITS_MAX: Final = 200_000
"""A Decimal with an exponent beyond this equals no int or float that is short enough for a key."""
NUMPY: Final = (np.integer, np.bool_, np.str_, np.bytes_, np.float16, np.float32, np.float64)


FURTHER: Final = frozenset({"date", "datetime", "Decimal", "Enum", "frozenset", "UUID"})
"""The names of the further types that the codec "pickle" takes."""


class Written:
    """An object that is pickled as a call, with arguments that are in their one form."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call = call
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


def each_part(key: tuple[Any, ...], canonical: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The forms of the parts of a key.

    This module is not compiled: here the interpreter counts how deep a key is nested, and raises
    RecursionError. Compiled functions that call each other end at the end of the stack.
    """
    return tuple([canonical(part) for part in key])


def plain(key: Any) -> Any:
    """The int, float, text or bytes that equals a key of another type, if there is one; else the
    key."""
    if isinstance(key, NUMPY):
        return key.item()
    if isinstance(key, enum.Enum):
        for base in (int, float, str):
            if isinstance(key, base):
                return base(key.value)
    if type(key) is decimal.Decimal:
        return _plain_decimal(key)
    return key


def _plain_decimal(key: decimal.Decimal) -> Any:
    if key.is_nan():
        raise TypeError("a Decimal that is no number equals no key, not even itself")
    if key.is_infinite():
        return float(key)
    if abs(key.adjusted()) > DIGITS_MAX:
        return key
    whole, parts = key.as_integer_ratio()
    if parts == 1:
        return whole
    near = float(key)
    return near if near == key else key


def written(key: Any, canonical: Callable[[Any], Any], encode: Callable[[Any], bytes]) -> Any:
    """The object to pickle for a key of one of the further types; None for other types.

    `canonical` gives the form of an element, `encode` the bytes of that.
    """
    kind = type(key)
    if kind is frozenset:
        return Written(frozenset, tuple(sorted((canonical(each) for each in key), key=encode)))
    if kind is datetime.datetime:
        if key.utcoffset() is not None:
            key = key.astimezone(datetime.timezone.utc)
        return key.replace(fold=0)
    if kind is datetime.date:
        return key
    if kind is uuid.UUID:
        return Written(uuid.UUID, key.hex)
    if kind is decimal.Decimal:
        return Written(decimal.Decimal, _shortest(key))
    if isinstance(key, enum.Flag):
        return Written(kind, key.value)
    if isinstance(key, enum.Enum):
        return Written(getattr, kind, key.name)
    return None


def _shortest(key: decimal.Decimal) -> str:
    """The number without zeros at its end, whatever precision the context has."""
    sign, digits, exponent = key.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    bare = text.rstrip("0") or "0"
    return f"{'-' * sign}{bare}E{exponent + len(text) - len(bare)}"
