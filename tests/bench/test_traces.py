"""`limpet bench cache --trace FILE`: traces that a user brings."""

from __future__ import annotations

import gzip
import json
import pathlib
import random
import struct
from typing import Any

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench.figures import policies, traces
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

WANTED = [(1, 7, 10), (2, 8, 30), (3, 7, 10), (4, 9, 10)]
"""Time, key, size."""


def oracle_general(*following: int) -> bytes:
    rows = zip(WANTED, following or [-1] * 4, strict=True)
    return b"".join(struct.pack("<IQIq", *row, one) for row, one in rows)


def picture() -> bytes:
    """Noise behind the beginning of a PNG, as many bytes as some records have."""
    return b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(24 * 40 - 8)


def lines(*columns: int, header: str = "") -> bytes:
    rows = [",".join(str(row[column]) for column in columns) for row in WANTED]
    return "\n".join([header, *rows] if header else rows).encode() + b"\n"


@pytest.mark.parametrize(
    "data",
    [
        lines(0, 1, 2),
        lines(2, 0, 1, header="obj_size,timestamp,obj_id"),
        lines(0, 1, 2).replace(b",", b"\t"),
        b"".join(b"%d,%d,2,%d,5,get,0\n" % row for row in WANTED),
        oracle_general(),
        gzip.compress(oracle_general(), mtime=0),
        b"\xef\xbb\xbf" + lines(2, 0, 1, header="obj_size,timestamp,obj_id"),
        b"\xef\xbb\xbf" + lines(0, 1, 2),
        lines(0, 1, 2).replace(b",7,", ",schl\u00fcssel,".encode()),
        oracle_general(4, (1 << 63) - 1, 4, (1 << 63) - 1),
    ],
    ids=[
        "csv",
        "header",
        "tabs",
        "twitter",
        "oracleGeneral",
        "gzip",
        "mark",
        "bare-mark",
        "utf-8",
        "next",
    ],
)
def test_formats_are_found_by_looking(data: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    found = traces.read(path)
    assert found == ("trace", [0, 1, 0, 2], [10, 30, 10, 10])
    assert traces.read(path, most=2).keys == [0, 1]


def test_zstd_is_decompressed_where_it_is_installed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.zst"
    path.write_bytes(traces.ZSTD + b"...")
    monkeypatch.setattr(traces, "import_module", _nothing)
    with pytest.raises(ParameterError, match="pip install zstandard"):
        traces.read(path)
    monkeypatch.undo()
    zstandard = pytest.importorskip("zstandard")
    path.write_bytes(zstandard.ZstdCompressor().compress(oracle_general()))
    assert traces.read(path).keys == [0, 1, 0, 2]
    whole = path.read_bytes()
    path.write_bytes(whole + zstandard.ZstdCompressor().compress(oracle_general()))
    assert traces.read(path).keys == [0, 1, 0, 2] * 2
    for wrong in (whole[:-5], whole[:8] + bytes(20)):
        path.write_bytes(wrong)
        with pytest.raises(ParameterError, match="cut off, or damaged"):
            traces.read(path)


def _nothing(name: str) -> Any:
    raise ImportError(name)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no requests"),
        (b"1,2\n", "which of the columns is the key"),
        (b"1,2,3\n1,2,x\n", "line 2 is no request"),
        (oracle_general()[:-1], "no whole number of records of 24"),
        (picture(), "neither text nor oracleGeneral"),
        (oracle_general(-1, -1, 2, -1), "the next access after record 2 is said to be request 2"),
        (lines(0, 1, 2).decode().encode("utf-16"), "neither text nor oracleGeneral"),
        (gzip.compress(oracle_general(), mtime=0)[:-9], "cut off, or damaged"),
        (gzip.compress(oracle_general(), mtime=0)[:20] + bytes(20), "cut off, or damaged"),
        (b"\x1f\x8b", "cut off, or damaged"),
    ],
)
def test_what_cannot_be_read_is_an_error(data: bytes, message: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    done = CliRunner().invoke(main, ["bench", "cache", "--trace", str(path)])
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_hits_of_a_trace_are_counted_in_requests_and_bytes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(lines(1, 2))
    asked = ["bench", "cache", "--trace", str(path), "--columns", "key,size", "--items", "2"]
    done = CliRunner().invoke(main, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["requests"] == {"trace": 4}
    by = {ratio["policy"]: ratio for ratio in found["ratios"]}
    assert {"limpet clock", "limpet fifo", "exact S3-FIFO", "Redis LFU"} <= set(by)
    for ratio in by.values():
        assert ratio["ratio"] == pytest.approx(1 / 4)
        assert ratio["byte_ratio"] == pytest.approx(10 / 60)
    shown = CliRunner().invoke(main, asked)
    assert "bytes of hits in 100 bytes" in shown.stdout


def test_s3_fifo_lets_a_scan_pass() -> None:
    request = policies.S3Fifo(20)
    for key in range(10):
        for _ in range(3):
            request(key)
    assert not any(request(key) for key in range(100, 200))
    assert all(request(key) for key in range(10))
    assert len(request.reads) == 20


@pytest.mark.parametrize("policy", [policies.RedisLru, policies.RedisLfu])
def test_redis_keeps_to_the_bound_and_what_is_read(policy: Any) -> None:
    request = policy(20)
    for number in range(3000):
        request(number % 5)
        request(1000 + number)
        assert len(request.sampled.keys) <= 20
    assert sum(request(key) for key in range(5)) >= 4
