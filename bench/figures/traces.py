"""Traces of requests that a user brings to `limpet bench cache --trace FILE`.

Two formats, each as it is or compressed by gzip or zstd (for which Python 3.14 or the package
zstandard is needed). The format is found by looking: text in UTF-8, with or without a byte order
mark, is CSV.

    CSV            a request a line. If the first line has the name of a column for the key, such as
                   key, id, obj_id or lbn, it is a header. Else there is the key alone, or time, key
                   and size (as of libCacheSim), or the seven columns of Twitter's traces: time,
                   key, key size, value size, client, operation, ttl. `columns` names others.
    oracleGeneral  records of 24 bytes, little-endian: u32 time, u64 key, u32 size, i64 next access.
                   The next access is the number of a later request, or -1 or the largest number:
                   there is none. A file in which this is not so is no trace

Requests are taken in the order of the file, times are not looked at. The size of an object is that
of its first request. Each request is one for the object, also where Twitter's are sets.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Final, NamedTuple

import numpy as np

from limpet.shm.errors import ParameterError

KEY: Final = frozenset({"key", "id", "obj_id", "object_id", "obj", "object", "lbn", "lba", "block"})
SIZE: Final = frozenset({"size", "obj_size", "object_size", "length", "bytes", "value_size"})
BARE: Final = {1: ("key",), 3: ("time", "key", "size"),
               7: ("time", "key", "", "size", "", "", "")}  # fmt: skip
"""The columns of a file without a header, by their number."""
RECORD: Final = np.dtype([("time", "<u4"), ("key", "<u8"), ("size", "<u4"), ("next", "<i8")])
ZSTD: Final = b"\x28\xb5\x2f\xfd"
GZIP: Final = b"\x1f\x8b"
LOOKED_AT: Final = 4096
"""Bytes that show whether a file is text."""
REQUESTS_MAX: Final = 1 << 48
NEVER: Final = (-1, (1 << 63) - 1)
CUT: Final = "it is cut off, or damaged"


class Requests(NamedTuple):
    """Requests by the numbers of their keys, from 0 on, and the bytes of each one's object."""

    name: str
    keys: list[int]
    sizes: Sequence[int] | None = None
    """None: all objects are of one size."""


def read(path: pathlib.Path, columns: Sequence[str] = (), most: int | None = None) -> Requests:
    """The first requests of a trace, at most so many. ParameterError: it cannot be read."""
    data = _decompressed(path)
    if not data:
        raise ParameterError(f"{path} has no requests")
    if columns or _is_text(data[:LOOKED_AT]):
        found = _of_csv(path, data.decode("utf-8-sig", errors="surrogateescape"), columns)
    else:
        found = _of_oracle_general(path, data)
    return _numbered(path.name, found, most)


def _is_text(data: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data)
    except UnicodeDecodeError:
        return False
    return all(one.isprintable() or one in "\t\n\r" for one in text)


def _numbered(name: str, found: Iterable[tuple[object, int]], most: int | None) -> Requests:
    numbers: dict[object, int] = {}
    first: list[int] = []
    keys: list[int] = []
    for key, size in found:
        if len(keys) == most:
            break
        number = numbers.setdefault(key, len(numbers))
        if number == len(first):
            first.append(max(1, size))
        keys.append(number)
    if not keys:
        raise ParameterError(f"{name} has no requests")
    sizes = [first[key] for key in keys]
    return Requests(name, keys, sizes if len(set(sizes)) > 1 else None)


def _decompressed(path: pathlib.Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ParameterError(f"{path} cannot be read: {error}") from error
    try:
        if data.startswith(GZIP):
            return gzip.decompress(data)
        return _of_zstd(path, data) if data.startswith(ZSTD) else data
    except (EOFError, OSError, zlib.error) as error:
        raise ParameterError(f"{path} cannot be decompressed: {CUT} ({error})") from error


def _of_zstd(path: pathlib.Path, data: bytes) -> bytes:
    try:
        zstd = import_module("compression.zstd")
    except ImportError:
        pass
    else:
        try:
            return bytes(zstd.decompress(data))
        except zstd.ZstdError as error:
            raise EOFError(str(error)) from error
    try:
        zstandard = import_module("zstandard")
    except ImportError as error:
        raise ParameterError(
            f"{path} is compressed by zstd: pip install zstandard, or decompress it by `zstd -d`"
        ) from error
    parts = []
    while data:  # a frame
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            parts.append(frame.decompress(data))
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
        if not frame.eof:
            raise EOFError("a frame has no end")
        data = frame.unused_data
    return b"".join(parts)


def _of_oracle_general(path: pathlib.Path, data: bytes) -> Iterator[tuple[object, int]]:
    if len(data) % RECORD.itemsize:
        raise ParameterError(
            f"{path} is neither text nor oracleGeneral: its {len(data)} bytes are no whole number "
            f"of records of {RECORD.itemsize}"
        )
    records = np.frombuffer(data, RECORD)
    following = records["next"]
    later = (following > np.arange(len(records))) & (following < REQUESTS_MAX)
    wrong = np.flatnonzero(~(later | np.isin(following, NEVER)))
    if len(wrong):
        raise ParameterError(
            f"{path} is neither text nor oracleGeneral: the next access after record {wrong[0]} is "
            f"said to be request {following[wrong[0]]}"
        )
    return zip(records["key"].tolist(), records["size"].tolist(), strict=True)


def _of_csv(path: pathlib.Path, text: str, columns: Sequence[str]) -> Iterator[tuple[object, int]]:
    first = text.partition("\n")[0]
    delimiter = next((one for one in ",;\t " if one in first), ",")
    rows = csv.reader(io.StringIO(text), delimiter=delimiter)
    names = [cell.strip().lower() for cell in next(csv.reader([first], delimiter=delimiter), [])]
    headed = bool(KEY & set(names))
    if headed:
        next(rows)
    if columns or not headed:
        names = list(columns or BARE.get(len(names), ()))
    keys = [place for place, name in enumerate(names) if name in KEY]
    if not keys:
        raise ParameterError(
            f"{path}: which of the columns is the key? Name them, such as --columns time,key,size"
        )
    sizes = [place for place, name in enumerate(names) if name in SIZE]
    for number, row in enumerate(rows, 1 + headed):
        if not row:
            continue
        try:
            yield row[keys[0]].strip(), int(float(row[sizes[0]])) if sizes else 1
        except (ValueError, IndexError, OverflowError) as error:
            raise ParameterError(f"{path}: line {number} is no request: {row}") from error
