"""Keys and values as JSON that gives back the same objects: for `keys`, `get` and decoded dumps.

An object whose type JSON has is written as that. Another one is written under a single name:

    {"$bytes": "00ff"}           bytes, in hexadecimal
    {"$tuple": [2, 3]}           a tuple; in a key it is an array, since no key is a list
    {"$dict": [[1, "a"]]}        a dict with keys other than text, or that looks like one of these
    {"$float": "nan"}            a float that is infinite or not a number
    {"$encoded": "80054b012e"}   a whole key or value of any other type: its bytes in the store

`$encoded` is also the form of bytes that cannot be decoded in this process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

from limpet.shm.errors import ParameterError
from limpet.stores.core.codecs import Codec

ENCODED: Final = "$encoded"
DICT: Final = "$dict"
INT_BITS_MAX: Final = 14_000
"""Python reads no larger number from text."""


def key_form(data: bytes, codec: Codec) -> Any:
    """The JSON form of a key, from its bytes in the store, which it gives back exactly."""
    try:
        form = form_of(codec.decode_key(data), True)
        if codec.encode_key(object_of(form, True)) == data:
            return form
    except Exception:  # a pickle may raise anything, also that its class is not found here
        pass
    return {ENCODED: data.hex()}


def value_form(data: bytes, codec: Codec) -> Any:
    """The JSON form of a value, from its bytes in the store."""
    try:
        return form_of(codec.decode(data))
    except Exception:  # as above
        return {ENCODED: data.hex()}


def key_bytes(form: Any, codec: Codec) -> bytes:
    """The bytes of a key in the store. ParameterError: the codec takes no such key."""
    return _bytes(form, codec, codec.encode_key, True)


def value_bytes(form: Any, codec: Codec) -> bytes:
    """The bytes of a value in the store. ParameterError: the codec takes no such value."""
    return _bytes(form, codec, codec.encode, False)


def _bytes(form: Any, codec: Codec, encode: Callable[[Any], bytes], in_key: bool) -> bytes:
    try:
        if type(form) is dict and list(form) == [ENCODED]:
            return bytes.fromhex(form[ENCODED])
        return encode(object_of(form, in_key))
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ParameterError(f"the codec {codec.name!r} cannot write {form!r}: {error}") from error


def form_of(value: Any, in_key: bool = False) -> Any:
    """The JSON form of an object. Raises TypeError, ValueError: it has only its bytes."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        value.encode()  # else no stream can write it
        return value
    if kind is int and value.bit_length() < INT_BITS_MAX:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind is tuple:
        parts = [form_of(part, in_key) for part in value]
        return parts if in_key else {"$tuple": parts}
    if kind is list and not in_key:
        return [form_of(part) for part in value]
    if kind is dict and not in_key:
        pairs = [[form_of(part) for part in pair] for pair in value.items()]
        if all(type(name) is str for name in value) and not _is_marked(value):
            return dict(pairs)
        return {DICT: pairs}
    raise TypeError(f"a {kind.__name__} has no form in JSON")


def object_of(form: Any, in_key: bool = False) -> Any:
    """The object with that JSON form. Raises TypeError, ValueError: there is none."""
    if type(form) is list:
        parts = [object_of(part, in_key) for part in form]
        return tuple(parts) if in_key else parts
    if type(form) is not dict:
        return form
    if not _is_marked(form):
        return {name: object_of(part, in_key) for name, part in form.items()}
    [(mark, inner)] = form.items()
    return MARKS[mark](inner, in_key)


def _is_marked(form: dict[Any, Any]) -> bool:
    return len(form) == 1 and next(iter(form)) in MARKS


def _is_no_part(inner: Any, in_key: bool) -> Any:
    raise ValueError(f"{ENCODED} stands for a whole key or value")


MARKS: Final[dict[str, Callable[[Any, bool], Any]]] = {
    "$bytes": lambda inner, in_key: bytes.fromhex(inner),
    "$tuple": lambda inner, in_key: tuple(object_of(part, in_key) for part in inner),
    DICT: lambda inner, in_key: {
        object_of(name, True): object_of(part, in_key) for name, part in inner
    },
    "$float": lambda inner, in_key: float(inner),
    ENCODED: _is_no_part,
}


def text_of(form: Any) -> str:
    """A JSON form as text."""
    return json.dumps(form, ensure_ascii=False)
