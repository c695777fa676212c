"""Keys of `pool.dict()` that are not written as they are: the one form of all equal keys.

A key is the plain object that equals it, if there is one: a member of an Enum that is a number or
text, a named tuple, any other object of a subclass, a number or text of numpy, a Fraction or a
Decimal that equals an int or a float, a complex number without an imaginary part, a memoryview of
bytes. A subclass with an `__eq__` or `__hash__` of its own is refused: its objects may equal others
than the plain object does. NaN equals no number; all NaNs are one key. The codec "pickle" takes
some types more; one of them that can be written in several ways has one here:

    Enum         by the names of class and member; Flag: by its value
    datetime     aware: in UTC; else its `fold` is left out
    UUID         by its digits
    Decimal      without zeros at its end; a Fraction that equals it is that
    frozenset    by its elements, in the order of their bytes

A date, and a datetime without a time zone, has only one.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pickle
import uuid
from collections.abc import Callable
from typing import Any, Final

import numpy as np

DIGITS_MAX: Final = 200_000
"""A Decimal with an exponent beyond this equals no int or float that is short enough for a key."""
NUMPY: Final = {
    kind
    for kind in np.sctypeDict.values()
    if issubclass(kind, (np.number, np.bool_)) and kind is not np.timedelta64
}
FURTHER: Final = frozenset({"date", "datetime", "Decimal", "Enum", "frozenset", "UUID"})
"""The names of the further types that the codec "pickle" takes."""


class PlainUnpickler(pickle.Unpickler):
    """Reads keys of plain types, and calls nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the key is made by {module}.{name}, which is not called")


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
    """The object of a plain type, or of a further one, that equals a key of another type, if there
    is one; else the key. TypeError: the key's class does not compare as the type that it derives
    from."""
    kind = type(key)
    if kind in WRITTEN:
        return key
    for base in kind.__mro__:
        if base in FORMS:
            if kind.__eq__ is not base.__eq__ or kind.__hash__ is not base.__hash__:
                raise TypeError(
                    f"{kind.__name__} compares in a way of its own, so its objects may equal other "
                    f"keys than its {base.__name__} does; make the key with {base.__name__}()"
                )
            return FORMS[base](key)
    return key


def _plain_decimal(key: decimal.Decimal) -> Any:
    if key.is_nan():
        raise TypeError("a Decimal that is no number equals no key, not even itself")
    if key.is_infinite():
        return float(key)
    if abs(key.adjusted()) <= DIGITS_MAX:
        whole, parts = key.as_integer_ratio()
        if parts == 1:
            return whole
        near = float(key)
        if near == key:
            return near
    return decimal.Decimal(key)


def _plain_fraction(key: fractions.Fraction) -> Any:
    """The int, float or Decimal that equals a Fraction; else the Fraction."""
    digits = key.denominator.bit_length() - 1
    if digits > DIGITS_MAX:
        return key
    # If the denominator has no prime factors but 2 and 5, it divides this power of ten.
    whole, rest = divmod(key.numerator * 10**digits, key.denominator)
    if rest:
        return key
    sign, parts, _ = decimal.Decimal(whole).as_tuple()
    return _plain_decimal(decimal.Decimal((sign, parts, -digits)))


def _plain_complex(key: complex) -> Any:
    return key if key.imag else key.real


def _plain_view(key: memoryview) -> Any:
    """The bytes that equal a view. Raises ValueError, as a dict does: it may be written to."""
    hash(key)
    data = key.tobytes()
    return data if data == key else key


def _plain_numpy(key: Any) -> Any:
    """The plain number that equals one of numpy, if there is one."""
    found = key.item()
    if isinstance(found, np.inexact):  # it is longer than Python's numbers
        near = complex(found)
        return near if near == found else key
    return found


WRITTEN: Final = (frozenset, datetime.datetime, datetime.date, uuid.UUID)
"""Types that `written` takes as they are."""
FORMS: Final[dict[type, Callable[[Any], Any]]] = {
    **dict.fromkeys(NUMPY, _plain_numpy),
    np.str_: str.__str__,
    np.bytes_: lambda key: bytes.__getitem__(key, slice(None)),
    str: str.__str__,
    bytes: lambda key: bytes.__getitem__(key, slice(None)),
    int: int.__int__,
    float: float.__float__,
    tuple: lambda key: tuple.__getitem__(key, slice(None)),
    complex: _plain_complex,
    fractions.Fraction: _plain_fraction,
    decimal.Decimal: _plain_decimal,
    memoryview: _plain_view,
    frozenset: frozenset,
    datetime.datetime: lambda key: datetime.datetime.combine(key, key.timetz()),
    datetime.date: lambda key: datetime.date.fromordinal(key.toordinal()),
    uuid.UUID: lambda key: uuid.UUID(int=key.int),
}
"""For a type: how to make the plain object that equals one of the type, or of a subclass."""


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
