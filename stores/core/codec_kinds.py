"""Codecs of one type of value, and compression of values as a wrapper around any codec.

    "str"                   text; keys, too
    "int"                   whole numbers of any size, in as few bytes as they need
    "numpy"                 arrays, in NumPy's own format, without objects; read into an own copy
    "msgspec:MODULE:TYPE"   structs, or whatever msgspec encodes, as MessagePack, checked when read;
                            opening the store imports the module. `msgspec_codec(Type)` names it
    NAME+zlib, +zstd, +lz4  values of that codec, compressed where that makes them smaller: the
                            first byte is 1 then, else 0

Keys of "int", "numpy" and "msgspec" are those of "json"; keys are never compressed, since equal
keys must have equal bytes whatever the version of a library. zlib is always there; zstd is Python's
own from 3.14 on, else of the package zstandard.
"""

from __future__ import annotations

import io
import math
import threading
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np

from limpet.shm.errors import ParameterError
from limpet.stores.core.keys import plain

PLAIN: Final = b"\0"
COMPRESSED: Final = b"\1"
LEAST: Final = 64
"""Bytes from which on a value is worth a try."""
HEAD_MAX: Final = 1 << 17
Pair = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


def needed(module: str, codec: str, package: str = "") -> Any:
    """The module that a codec needs. ParameterError: it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ParameterError(
            f"the codec {codec!r} needs the package {package or module}, which is not installed: "
            f"pip install {package or module}"
        ) from error


# ---- types ---------------------------------------------------------------------------------------


def encode_str(value: str) -> bytes:
    if type(value) is str:
        return value.encode()
    text = plain(value)
    if type(text) is not str:
        raise TypeError(f"the codec 'str' takes str, not {type(value).__name__}")
    return text.encode()


def encode_int(value: int) -> bytes:
    if type(value) is not int:
        raise TypeError(f"the codec 'int' takes int, not {type(value).__name__}")
    return value.to_bytes((8 + (value + (value < 0)).bit_length()) // 8, "little", signed=True)


def decode_int(data: bytes) -> int:
    if not data:
        raise ValueError("no bytes")
    return int.from_bytes(data, "little", signed=True)


def encode_array(value: np.ndarray[Any, Any]) -> bytes:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"the codec 'numpy' takes arrays, not {type(value).__name__}")
    if value.dtype.hasobject:
        raise TypeError("the codec 'numpy' takes no arrays of Python objects")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, value, allow_pickle=False)
    return buffer.getvalue()


def decode_array(data: bytes) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


def view_array(data: memoryview) -> np.ndarray[Any, Any]:
    """The array over the memory of its bytes."""
    # The header of an array takes no more, but for a dtype of very many fields.
    head = io.BytesIO(bytes(data[:HEAD_MAX]))
    version = np.lib.format.read_magic(head)
    if version > (2, 0):  # with names of fields in UTF-8, for which numpy has no public reader
        return decode_array(bytes(data))
    read = np.lib.format.read_array_header_1_0
    if version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    shape, in_columns, dtype = read(head)
    count = math.prod(shape)
    if not count or not dtype.itemsize:
        return np.empty(shape, dtype)
    array = np.frombuffer(data, dtype, count, head.tell())
    return array.reshape(shape, order="F" if in_columns else "C")


def of_msgspec(argument: str) -> Pair:
    """To and from bytes, for the type that is MODULE:TYPE."""
    codec = f"msgspec:{argument}"
    msgspec = needed("msgspec", codec)
    module, _, path = argument.partition(":")
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ParameterError(
            f"the codec {codec!r} is of a type that cannot be imported here: {error}"
        ) from error
    decoder = msgspec.msgpack.Decoder(found)
    encode: Callable[[bytes], bytes] = msgspec.msgpack.Encoder().encode
    return encode, with_value_error(decoder.decode, msgspec.MsgspecError)


def with_value_error(
    function: Callable[[bytes], Any], *kinds: type[Exception]
) -> Callable[[bytes], Any]:
    """The function, with ValueError for errors of these kinds."""

    def guarded(data: bytes) -> Any:
        try:
            return function(data)
        except kinds as error:
            raise ValueError(str(error)) from error

    return guarded


# ---- compression ---------------------------------------------------------------------------------


def _zlib(codec: str) -> Pair:
    return zlib.compress, with_value_error(zlib.decompress, zlib.error)


def _own_of_thread(zstandard: Any) -> Any:
    """A compressor and a decompressor for each thread: two threads that use one crash."""

    class OwnOfThread(threading.local):
        def __init__(self) -> None:
            self.compressor = zstandard.ZstdCompressor()
            self.decompressor = zstandard.ZstdDecompressor()

    return OwnOfThread()


def _zstd(codec: str) -> Pair:
    try:
        own = import_module("compression.zstd")
    except ImportError:
        found = needed("zstandard", codec)
        own_of_thread = _own_of_thread(found)
        return (
            lambda data: own_of_thread.compressor.compress(data),
            with_value_error(
                lambda data: own_of_thread.decompressor.decompress(data), found.ZstdError
            ),
        )
    return own.compress, with_value_error(own.decompress, own.ZstdError)


def _lz4(codec: str) -> Pair:
    found = needed("lz4.frame", codec, "lz4")
    return found.compress, with_value_error(found.decompress, RuntimeError)


COMPRESSIONS: Final[dict[str, Callable[[str], Pair]]] = {"zlib": _zlib, "zstd": _zstd, "lz4": _lz4}


def compressing(codec: str, compression: str, encode: Callable[[Any], bytes]) -> Any:
    """`encode` with compression, and the function that undoes the compression."""
    if compression not in COMPRESSIONS:
        raise ParameterError(
            f"there is no compression {compression!r}; there is {', '.join(COMPRESSIONS)}"
        )
    compress, decompress = COMPRESSIONS[compression](codec)

    def encode_smaller(value: Any) -> bytes:
        data = encode(value)
        smaller = compress(data) if len(data) >= LEAST else data
        return COMPRESSED + smaller if len(smaller) < len(data) else PLAIN + data

    def expand(data: bytes) -> bytes:
        first, rest = data[:1], data[1:]
        if first == COMPRESSED:
            return decompress(rest)
        if first == PLAIN:
            return rest
        raise ValueError(f"a value that begins with {first!r} is not of a codec that compresses")

    return encode_smaller, expand
