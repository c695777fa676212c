"""Codecs: Python objects to bytes and back, for `pool.dict()`.

Keys need more than values: equal keys must have equal bytes, in every process. So keys are str,
bytes, int, float, bool, None and tuples of these, and numbers that are equal are one key, as in a
dict: True, 1 and 1.0 are read back as 1. Numbers and strings of numpy are keys, too, and, with
pickle, an Enum, date, datetime, UUID, Decimal or frozenset of such (keys.py). Other keys raise
TypeError (JSON: all but str, numbers, bool and None; bytes: all but bytes-like). Values may be of
any type that the codec takes.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from limpet.shm.errors import ParameterError, StoreCorrupt
from limpet.stores.base import as_bytes
from limpet.stores.keys import plain, written

PROTOCOL = 4
"""The protocol of pickled keys: fixed, so that every Python version writes a key alike."""

SHORT: Final = 256
"""A text with fewer bytes, and a number below, is pickled with one byte for it."""
FRAME: Final = b"\x80\x04\x95"
"""How a pickle of this protocol begins; then the bytes that follow, in eight."""
TEXT_BEGINNINGS: Final = [
    FRAME + (size + 3).to_bytes(8, "little") + b"\x8c" + bytes([size]) for size in range(SHORT)
]
TWO_BYTES: Final = FRAME + (4).to_bytes(8, "little") + b"M"
FOUR_BYTES: Final = FRAME + (6).to_bytes(8, "little") + b"J"
SMALL_NUMBERS: Final = [b"\x80\x04K" + bytes([number]) + b"." for number in range(SHORT)]


class Codec(NamedTuple):
    """Functions to and from bytes, for keys and for values. Decoding may execute code: pickle."""

    name: str
    encode_key: Callable[[Any], bytes]
    decode_key: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    @classmethod
    def named(cls, name: str) -> Codec:
        """The codec of that name; ParameterError if it is unknown or not installed."""
        if name not in _MAKERS:
            raise ParameterError(f"there is no codec {name!r}; there is {', '.join(_MAKERS)}")
        codec = _MAKERS[name]()
        return codec._replace(
            decode_key=_guarded("key", name, codec.decode_key),
            decode=_guarded("value", name, codec.decode),
        )


def _guarded(what: str, codec: str, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """`decode`, with StoreCorrupt for bytes that the codec cannot have written."""

    expected: tuple[type[Exception], ...] = (ValueError, EOFError, IndexError, RecursionError)
    # A TypeError of pickle comes from the class whose object it was reading.
    expected += (pickle.UnpicklingError,) if codec == "pickle" else (TypeError,)

    def guarded(data: bytes) -> Any:
        try:
            return decode(data)
        except expected as error:
            raise StoreCorrupt(
                f"a {what} of {len(data)} bytes cannot be read with the codec {codec!r}: it was "
                f"written with another one, or is damaged ({type(error).__name__}: {error})"
            ) from error

    return guarded


def canonical(key: Any, atoms: tuple[type, ...], codec: str, integers: range | None = None) -> Any:
    """The form in which all keys equal to this one are stored. Raises TypeError for other types.

    `integers`: those that the codec can write, if not all; floats that equal another one stay.
    """
    kind = type(key)
    if kind is bool or (kind is float and key.is_integer()):
        whole = int(key)
        return whole if integers is None or whole in integers else key
    if kind is tuple and tuple in atoms:
        return tuple(canonical(part, atoms, codec, integers) for part in key)
    if kind not in atoms:
        simple = plain(key)
        if simple is not key:
            return canonical(simple, atoms, codec, integers)
        if codec == "pickle":
            found = written(key, lambda part: canonical(part, atoms, codec), pickled_key)
            if found is not None:
                return found
        names = ", ".join(sorted(atom.__name__ for atom in atoms if atom is not type(None)))
        raise TypeError(
            f"a shared mapping with codec {codec!r} takes keys of type {names} or None, not "
            f"{kind.__name__}: equal keys must have equal bytes"
        )
    return key


def pickled_key(form: Any) -> bytes:
    """The bytes of a key in its one form."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, PROTOCOL)
    # No memo: the bytes must not depend on whether two equal parts of a tuple are one object.
    pickler.fast = True
    try:
        pickler.dump(form)
    except (pickle.PicklingError, AttributeError) as error:
        raise TypeError(f"a key's class must be found by its name: {error}") from error
    return buffer.getvalue()


def pickled_text(key: str) -> bytes:
    """`pickled_key` of a text."""
    if key.isascii() and 0 < len(key) < SHORT:
        return TEXT_BEGINNINGS[len(key)] + key.encode() + b"."
    return pickled_key(key)


def pickled_whole(key: int) -> bytes:
    """`pickled_key` of an int."""
    if 0 <= key < SHORT:
        return SMALL_NUMBERS[key]
    if SHORT <= key < 1 << 16:
        return TWO_BYTES + key.to_bytes(2, "little") + b"."
    if 1 << 16 <= key < 1 << 31:
        return FOUR_BYTES + key.to_bytes(4, "little") + b"."
    return pickled_key(key)


def _pickled() -> Codec:
    atoms = (str, bytes, int, float, tuple, type(None))

    def encode_key(key: Any) -> bytes:
        kind = type(key)
        if kind is str:
            return pickled_text(key)
        if kind is int:
            return pickled_whole(key)
        return pickled_key(canonical(key, atoms, "pickle"))

    dumps, protocol = pickle.dumps, pickle.HIGHEST_PROTOCOL

    def encode(value: Any) -> bytes:
        return dumps(value, protocol)

    return Codec("pickle", encode_key, pickle.loads, encode, pickle.loads)


def _json() -> Codec:
    atoms = (str, int, float, type(None))

    def encode_key(key: Any) -> bytes:
        return json.dumps(canonical(key, atoms, "json")).encode()

    def encode(value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()

    return Codec("json", encode_key, json.loads, encode, json.loads)


def _msgpack() -> Codec:
    try:
        import msgpack
    except ImportError as error:
        raise ParameterError(
            "the codec 'msgpack' needs the package msgpack: pip install 'limpet[msgpack]'"
        ) from error
    atoms = (str, bytes, int, float, tuple, type(None))

    integers = range(-(1 << 63), 1 << 64)

    def encode_key(key: Any) -> bytes:
        return bytes(msgpack.packb(canonical(key, atoms, "msgpack", integers)))

    def decode_key(data: bytes) -> Any:
        return msgpack.unpackb(data, use_list=False)

    def decode(data: bytes) -> Any:
        return msgpack.unpackb(data, strict_map_key=False)

    return Codec("msgpack", encode_key, decode_key, msgpack.packb, decode)


def _bytes() -> Codec:
    def encode_key(key: Any) -> bytes:
        return as_bytes("key", key)

    def encode(value: Any) -> bytes:
        return as_bytes("value", value)

    return Codec("bytes", encode_key, bytes, encode, bytes)


_MAKERS: dict[str, Callable[[], Codec]] = {
    "pickle": _pickled,
    "msgpack": _msgpack,
    "json": _json,
    "bytes": _bytes,
}
