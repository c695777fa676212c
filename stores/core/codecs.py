"""Codecs: Python objects to bytes and back, for mappings, caches, queues and rings.

A codec is an object with a name. The catalogue keeps the name, by which each process that opens the
store finds the codec in the registry: "pickle", "msgpack", "json", "bytes", those of codec_kinds.py
("str", "int", "numpy", "msgspec:MODULE:TYPE"), each also with compression ("pickle+zstd"), and what
a program has given to `register`.

Keys need more than values: equal keys must have equal bytes, in every process. So keys are str,
bytes, int, float, bool, None and tuples of these, and all objects that equal such a key, as in a
dict: True, 1 and 1.0 are read back as 1, a named tuple as a tuple (keys.py). With pickle, an Enum,
date, datetime, UUID, Decimal or frozenset of such is a key, too. Other keys raise TypeError (JSON:
all but str, numbers, bool and None; bytes: all but bytes-like). Values may be of any type that the
codec takes.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple

from limpet.shm.errors import ParameterError, StoreCorrupt
from limpet.stores.core.base import as_bytes
from limpet.stores.core.codec_kinds import (
    COMPRESSIONS,
    compressing,
    decode_array,
    decode_int,
    encode_array,
    encode_int,
    encode_str,
    needed,
    of_msgspec,
    view_array,
)
from limpet.stores.core.keys import FURTHER, PlainUnpickler, each_part, plain, written

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
SPLIT: Final = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
"""Two surrogates that are one character when they are read as JSON."""
SMALL_NUMBERS: Final = [b"\x80\x04K" + bytes([number]) + b"." for number in range(SHORT)]


class Codec(NamedTuple):
    """Functions to and from bytes, for keys and for values. Decoding may execute code: pickle."""

    name: str
    encode_key: Callable[[Any], bytes]
    decode_key: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    view: Callable[[memoryview], Any] | None = None
    """A value over the memory of its bytes, without a copy; None: it has to be decoded."""

    @classmethod
    def named(cls, name: str) -> Codec:
        """The codec of that name; ParameterError if it is unknown or not installed."""
        base, plus, compression = str(name).partition("+")
        kind, _, argument = base.partition(":")
        if base in _registered:
            codec = _registered[base]
        elif kind == "msgspec" and argument:
            codec = _with_json_keys(name, *of_msgspec(argument))
        elif base in _MAKERS:
            codec = _MAKERS[base](name)
        else:
            known = ", ".join([*_MAKERS, "msgspec:MODULE:TYPE", *_registered])
            raise ParameterError(
                f"there is no codec {name!r} in this process; there is {known}, each also with "
                f"{' or '.join('+' + one for one in COMPRESSIONS)}; "
                "limpet.Codec.register makes one known"
            )
        codec = codec._replace(name=name)
        if plus:
            encode, expand = compressing(name, compression, codec.encode)
            decode = codec.decode
            codec = codec._replace(
                encode=encode, decode=lambda data: decode(expand(data)), view=None
            )
        return codec._replace(
            decode_key=_guarded("key", name, codec.decode_key),
            decode=_guarded("value", name, codec.decode),
            view=codec.view and _guarded("value", name, codec.view),
        )

    def register(self) -> Codec:
        """Make this codec known by its name in this process and those that it forks; itself.

        Each process that opens a store with it has to do so. A decoder raises ValueError for bytes
        that it cannot read. ParameterError: the name is another codec's.
        """
        taken = self.name in _MAKERS or self.name.startswith("msgspec")
        if taken or set(self.name) & set("+:") or not self.name:
            raise ParameterError(f"a codec cannot be registered by the name {self.name!r}")
        if _registered.setdefault(self.name, self) != self:
            raise ParameterError(f"there is another codec {self.name!r} already")
        return self

    @property
    def base(self) -> str:
        """The name without the compression."""
        return self.name.partition("+")[0]


_registered: dict[str, Codec] = {}


def msgspec_codec(kind: type) -> Codec:
    """The codec of a type that msgspec encodes, by the name that other processes find it by."""
    return Codec.named(f"msgspec:{kind.__module__}:{kind.__qualname__}")


def codec_of_keys(name: str) -> Codec:
    """The codec of that name for keys only: it imports nothing and calls nothing that the name or a
    key brings; a key that needs that is StoreCorrupt."""
    if name.startswith("msgspec:"):
        return _json(name)
    codec = Codec.named(name)
    if codec.base != "pickle":
        return codec
    return codec._replace(
        decode_key=_guarded("key", name, lambda data: PlainUnpickler(io.BytesIO(data)).load())
    )


def name_of(codec: str | Codec | None) -> str | None:
    """The name of a codec that is given by name or as an object, and is known.

    ParameterError: it is not, or not installed.
    """
    if codec is None:
        return None
    name = codec.name if isinstance(codec, Codec) else codec
    Codec.named(name)
    return name


def _guarded(what: str, codec: str, decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`decode`, with StoreCorrupt for bytes that the codec cannot have written."""

    expected: tuple[type[Exception], ...] = (ValueError, EOFError, IndexError, RecursionError)
    # A TypeError of pickle comes from the class whose object it was reading.
    pickled = codec.partition("+")[0] == "pickle"
    expected += (pickle.UnpicklingError,) if pickled else (TypeError,)

    def guarded(data: bytes | memoryview) -> Any:
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
    if kind is bool or kind is float:
        if kind is float and not key.is_integer():
            return key if key == key else math.nan
        whole = int(key)
        return whole if integers is None or whole in integers else key
    if kind is tuple and tuple in atoms:
        return each_part(key, lambda part: canonical(part, atoms, codec, integers))
    if kind not in atoms:
        simple = plain(key)
        if simple is not key:
            return canonical(simple, atoms, codec, integers)
        if codec.partition("+")[0] == "pickle":
            found = written(key, lambda part: canonical(part, atoms, codec), pickled_key)
            if found is not None:
                return found
        known = {atom.__name__ for atom in atoms if atom is not type(None)} | {"bool"}
        if codec.partition("+")[0] == "pickle":
            known |= FURTHER
        names = ", ".join(sorted(known, key=str.lower))
        raise TypeError(
            f"a shared mapping with codec {codec!r} takes keys of type {names} or None, not "
            f"{kind.__name__}: equal keys must have equal bytes"
        )
    return key


def with_floats(form: Any, integers: range) -> Any:
    """The form of a key, with floats for those ints that the codec cannot write but equal one.

    Raises OverflowError: one is too large for a float, too.
    """
    if type(form) is tuple:
        return each_part(form, lambda part: with_floats(part, integers))
    if type(form) is int and form not in integers and float(form) == form:
        return float(form)
    return form


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


def _pickled(name: str) -> Codec:
    atoms = (str, bytes, int, float, tuple, type(None))

    def encode_key(key: Any) -> bytes:
        kind = type(key)
        if kind is str:
            return pickled_text(key)
        if kind is int:
            return pickled_whole(key)
        return pickled_key(canonical(key, atoms, name))

    dumps, protocol = pickle.dumps, pickle.HIGHEST_PROTOCOL

    def encode(value: Any) -> bytes:
        return dumps(value, protocol)

    return Codec(name, encode_key, pickle.loads, encode, pickle.loads)


def _json(name: str) -> Codec:
    atoms = (str, int, float, type(None))

    def encode_key(key: Any) -> bytes:
        if type(key) is str and key.isascii():
            return encode_basestring_ascii(key).encode()
        form = canonical(key, atoms, name)
        if type(form) is str and SPLIT.search(form):
            raise ValueError("a key has two surrogates that JSON reads as one character")
        return json.dumps(form).encode()

    def encode(value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()

    return Codec(name, encode_key, json.loads, encode, json.loads)


def _msgpack(name: str) -> Codec:
    msgpack = needed("msgpack", "msgpack")
    atoms = (str, bytes, int, float, tuple, type(None))

    integers = range(-(1 << 63), 1 << 64)

    def encode_key(key: Any) -> bytes:
        form = canonical(key, atoms, name, integers)
        try:
            return bytes(msgpack.packb(form))
        except OverflowError:
            return bytes(msgpack.packb(with_floats(form, integers)))

    def decode_key(data: bytes) -> Any:
        return msgpack.unpackb(data, use_list=False)

    def decode(data: bytes) -> Any:
        return msgpack.unpackb(data, strict_map_key=False)

    return Codec(name, encode_key, decode_key, msgpack.packb, decode)


def _bytes(name: str) -> Codec:
    def encode_key(key: Any) -> bytes:
        return as_bytes("key", key)

    def encode(value: Any) -> bytes:
        return as_bytes("value", value)

    return Codec(name, encode_key, bytes, encode, bytes, memoryview)


def _with_json_keys(
    name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> Codec:
    return _json(name)._replace(encode=encode, decode=decode)


_MAKERS: dict[str, Callable[[str], Codec]] = {
    "pickle": _pickled,
    "msgpack": _msgpack,
    "json": _json,
    "bytes": _bytes,
    "objects": _bytes,
    "str": lambda name: Codec(name, encode_str, bytes.decode, encode_str, bytes.decode),
    "int": lambda name: _with_json_keys(name, encode_int, decode_int),
    "numpy": lambda name: _with_json_keys(name, encode_array, decode_array)._replace(
        view=view_array
    ),
}
