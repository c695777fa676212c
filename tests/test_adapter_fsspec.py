"""`limpet.adapters.fsspec`: fsspec's own abstract suites, and what processes share.

The suites are those of `fsspec.tests.abstract`, which the package has for authors of filesystems.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from kit.adapters import assert_sound, with_kills
from kit.processes import gather

import limpet

fsspec = pytest.importorskip(
    "fsspec", reason="fsspec is not installed: pip install 'limpet[fsspec]'"
)
from fsspec.tests import abstract

from limpet.adapters.fsspec import LimpetFileSystem

pytestmark = pytest.mark.exhaustive_in_pure("the adapter is not compiled", quick=[])


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, location: str) -> Iterator[Any]:
        return files_at(location)

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self) -> str:
        return ""


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


def files_at(location: str) -> Any:
    return LimpetFileSystem(f"{location}/files", node_size="4MiB", clients=16)


@pytest.fixture
def fs(location: str) -> Any:
    return files_at(location)


def test_files_and_directories(fs: Any) -> None:
    fs.mkdir("/a/b")
    fs.pipe("/a/x", b"0123456789")
    assert fs.ls("/a", detail=False) == ["/a/b", "/a/x"]
    assert fs.find("/") == ["/a/x"]
    assert fs.info("/a/x")["size"] == 10
    assert fs.isdir("/a/b")
    assert not fs.isfile("/a/b")
    assert fs.exists("")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("/a")
    fs.rm("/a", recursive=True)
    assert fs.ls("/", detail=False) == []
    with pytest.raises(FileNotFoundError):
        fs.ls("/a")
    with pytest.raises(FileNotFoundError):
        fs.rm("/a")


@pytest.mark.parametrize(("start", "end"), [(2, 5), (None, 3), (7, None), (-3, None), (1, -1)])
def test_parts_of_a_file(fs: Any, start: Any, end: Any) -> None:
    fs.pipe("/x", b"0123456789")
    assert fs.cat_file("/x", start, end) == b"0123456789"[start:end]


def test_part_of_a_large_file_is_all_that_is_read(fs: Any) -> None:
    fs.pipe("/x", bytes(1 << 20))
    kv = fs.paths.store
    before = kv.stats()["bytes_read"]
    assert fs.cat_file("/x", 500_001, 500_011) == bytes(10)
    assert kv.stats()["bytes_read"] - before < 10_000


def test_file_is_there_when_it_is_closed(fs: Any) -> None:
    fs.pipe("/x", b"old")
    with fs.open("/x", "wb") as file:
        file.write(b"ne")
        assert fs.cat("/x") == b"old"
        file.write(b"w")
    assert fs.cat("/x") == b"new"
    with fs.open("/x", "ab") as file:
        file.write(b"er")
    with fs.open("/x", "r") as file:
        assert file.read() == "newer"
    with pytest.raises(FileExistsError):
        fs.open("/x", "xb")
    assert fs.modified("/x") >= fs.created("/x")


def meanwhile(fs: Any, monkeypatch: Any, act: Any) -> None:
    """Have another process do something once, between two looks at a file."""
    size, acts = fs.paths.size, [act]

    def size_of(path: str) -> Any:
        if acts:
            acts.pop()()
        return size(path)

    monkeypatch.setattr(fs.paths, "size", size_of)


OLD, NEW = b"A" * 1000, [b"B" * 600, b"B" * 5000, b"B" * 50_000, None]


def replace(fs: Any, data: bytes | None) -> None:
    fs.rm_file("/x") if data is None else fs.pipe_file("/x", data)


@pytest.mark.parametrize("new", NEW, ids=["shorter", "longer", "large", "removed"])
def test_reader_sees_the_file_that_it_has_opened(fs: Any, new: bytes | None) -> None:
    fs.pipe_file("/x", OLD)
    with fs.open("/x", "rb") as file, fs.open("/x", "rb") as half:
        assert half.read(10) == OLD[:10]
        replace(fs, new)
        assert file.read() == OLD
        assert half.read() == OLD[10:]


@pytest.mark.parametrize("new", NEW, ids=["shorter", "longer", "large", "removed"])
def test_reader_of_a_large_file_that_is_replaced_is_told_so(
    fs: Any, monkeypatch: Any, new: bytes | None
) -> None:
    monkeypatch.setattr("limpet.adapters.fsspec.FIRST", 2000)
    old = b"A" * 90_000
    fs.pipe_file("/x", old)
    with fs.open("/x", "rb", block_size=100) as file:
        assert file.read(10_000) == old[:10_000]
        file.seek(1500)
        replace(fs, new)
        with pytest.raises(OSError, match="open it again"):
            file.read()
    fs.pipe_file("/x", old)
    meanwhile(fs, monkeypatch, lambda: replace(fs, new))
    if new is None:
        with pytest.raises(FileNotFoundError):
            fs.open("/x", "rb")
    else:
        with fs.open("/x", "rb") as file:
            assert file.read() in (old, new)


def test_size_and_times_are_of_one_file(fs: Any, monkeypatch: Any) -> None:
    fs.pipe_file("/x", OLD)
    before = fs.info("/x")
    meanwhile(fs, monkeypatch, lambda: replace(fs, NEW[0]))
    found = fs.info("/x")
    assert found["mtime"] > before["mtime"]
    assert found["size"] == 600


def test_transaction_makes_files_at_its_end(fs: Any) -> None:
    with fs.transaction:
        with fs.open("/x", "wb") as file:
            file.write(b"1")
        assert not fs.exists("/x")
    assert fs.cat("/x") == b"1"


def test_url_and_pickle_lead_to_the_same_files(fs: Any, location: str) -> None:
    fs.pipe("/x", b"1")
    with fsspec.open("limpet:///x", location=f"{location}/files") as file:
        assert file.read() == b"1"
    assert pickle.loads(pickle.dumps(fs)).cat("/x") == b"1"


def test_processes_share_files(fs: Any) -> None:
    fs.mkdir("/d")

    def write(name: str) -> Any:
        fs.pipe(f"/d/{name}", name.encode())

    gather(lambda: write("a"), lambda: write("b"))
    assert fs.cat(["/d/a", "/d/b"]) == {"/d/a": b"a", "/d/b": b"b"}


def test_full_pool_raises_and_keeps_what_it_has(fs: Any) -> None:
    fs.pipe("/x", b"kept")
    with pytest.raises(limpet.StoreFull):
        for number in range(100):
            fs.pipe(f"/{number}", bytes(200_000))
    assert fs.cat("/x") == b"kept"


def test_killed_processes_leave_whole_files(fs: Any, location: str) -> None:
    def work(number: int) -> None:
        fs.pipe(f"/k{number % 10}", bytes([number % 250]) * 9000)
        path = f"/k{(number + 3) % 10}"
        if fs.exists(path):
            found = fs.cat(path)
            assert found == found[:1] * 9000

    assert fs.ls("/") == []
    with_kills(work)
    assert_sound(location)
