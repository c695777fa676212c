"""Codecs of one type, compression, and the registry."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from kit.processes import gather

import limpet
from limpet.__main__ import main
from limpet.stores.core import codec_kinds, codecs
from limpet.stores.core.codecs import Codec

pytestmark = pytest.mark.either_build("codecs are the same", but=["test_deeply*"])


VALUES: dict[str, list[Any]] = {
    "str": ["", "naïve", "x" * 5000],
    "int": [0, -1, 127, 128, -128, -129, 2**63, -(2**200)],
    "numpy": [np.arange(6).reshape(2, 3), np.array(1.5), np.zeros((0, 3), "u1")],
    "json": [{"a": [1, None]}],
    "bytes": [b"", bytes(3000), random.Random(1).randbytes(3000)],
    "pickle": [{1, 2}],
}


@pytest.mark.parametrize("compression", ["", "+zlib", "+zstd", "+lz4"])
@pytest.mark.parametrize("base", VALUES)
def test_values_are_read_as_they_were_set(base: str, compression: str, pools: Any) -> None:
    name = base + compression
    package = {"+zstd": "zstandard", "+lz4": "lz4"}.get(compression)
    if package:
        pytest.importorskip(package)
    pool = pools(node_size="4MiB")
    key: Any = b"k" if base == "bytes" else "k"
    for number, value in enumerate(VALUES[base]):
        mapping = pool.dict(f"d{number}", codec=name)
        mapping[key] = value
        # another handle finds the codec by its name in the catalogue
        found = pool.dict(f"d{number}")[key]
        assert type(found) is type(value)
        if base == "numpy":
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(found, value)
        else:
            assert found == value
        assert list(mapping) == [key]
    assert {store["codec"] for store in pool.stores()} == {name}


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    made: Any = ()
    for _ in range(depth):
        made = wrap(made)
    return made


@pytest.mark.parametrize("name", codecs._MAKERS)
def test_deeply_nested_keys_and_values_are_refused(name: str, pools: Any) -> None:
    """In a child: compiled code that calls itself without a limit ends it by a signal."""
    if name == "msgpack":
        pytest.importorskip("msgpack")
    mapping = pools(node_size="4MiB").dict("d", codec=name)

    def look() -> int:
        """How many of them were refused."""
        refused = 0
        deep = [nested(20_000, wrap) for wrap in (lambda each: (each,), lambda each: (1, each))]
        deep.append(nested(20_000, lambda each: frozenset([each])))
        for key in deep:
            for call in (mapping.get, mapping.__contains__, mapping.codec.encode_key):
                try:
                    refused += call(key) is False
                except (RecursionError, TypeError):
                    refused += 1
        try:
            mapping["k" if name != "bytes" else b"k"] = nested(20_000, lambda each: [each])
        except (RecursionError, TypeError, ValueError):
            refused += 1
        return refused

    assert gather(look) == [10]


def test_whole_numbers_take_as_few_bytes_as_they_need() -> None:
    sizes = [len(codec_kinds.encode_int(value)) for value in (0, 127, 128, -128, -129, 1 << 63)]
    assert sizes == [1, 1, 2, 1, 2, 9]


def test_compression_makes_values_smaller_or_leaves_them() -> None:
    codec = Codec.named("bytes+zlib")
    assert len(codec.encode(bytes(1000))) < 50
    noise = random.Random(1).randbytes(1000)
    assert codec.encode(noise) == b"\0" + noise
    assert codec.encode_key(bytes(1000)) == bytes(1000)


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        ("bytes+zlib", b"\1zz"),
        ("bytes+zlib", b"\2"),
        ("bytes+zlib", b""),
        ("pickle", b"garbage"),
        ("pickle+zlib", b"\0garbage"),
        ("int", b""),
        ("str", b"\xff"),
        ("numpy", b"no array"),
    ],
)
def test_damaged_values_are_named(codec: str, data: bytes) -> None:
    with pytest.raises(limpet.StoreCorrupt, match=f"codec {codec!r}".replace("+", r"\+")):
        Codec.named(codec).decode(data)


def test_each_thread_has_a_compressor_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of zstandard crash when two threads use one at a time."""

    class Coder:
        def __init__(self) -> None:
            self.owner = threading.get_ident()

        def compress(self, data: bytes) -> bytes:
            assert self.owner == threading.get_ident()
            return data[:1]

        def decompress(self, data: bytes) -> bytes:
            assert self.owner == threading.get_ident()
            return data * 100

    zstandard = SimpleNamespace(ZstdCompressor=Coder, ZstdDecompressor=Coder, ZstdError=ValueError)

    def found(name: str) -> Any:
        if name == "zstandard":
            return zstandard
        raise ImportError(name)

    monkeypatch.setattr(codec_kinds, "import_module", found)
    codec = Codec.named("bytes+zstd")
    with ThreadPoolExecutor(1) as other:
        for run in (lambda call: call(), lambda call: other.submit(call).result()):
            assert run(lambda: codec.decode(codec.encode(bytes(100)))) == bytes(100)


@pytest.mark.parametrize("compression", ["zlib", "zstd", "lz4"])
def test_threads_share_a_mapping_that_compresses(compression: str, pools: Any) -> None:
    package = {"zstd": "zstandard", "lz4": "lz4"}.get(compression)
    if package:
        pytest.importorskip(package)
    mapping = pools(node_size="8MiB").dict("d", codec=f"pickle+{compression}")

    def work(number: int) -> bool:
        value = [f"{number}:{i}" for i in range(8000)]
        for _ in range(10):
            mapping[number] = value
            assert mapping[number] == value
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


class Refusing:
    """An object whose class does not take what it was pickled with."""

    def __reduce__(self) -> Any:
        return Refusing, (1,)


@pytest.mark.parametrize("codec", ["pickle", "pickle+zlib"])
def test_error_of_a_users_class_is_its_own(codec: str) -> None:
    made = Codec.named(codec)
    with pytest.raises(TypeError, match="Refusing"):
        made.decode(made.encode(Refusing()))


@pytest.mark.parametrize(
    ("codec", "value"),
    [("str", 1), ("int", True), ("int", 1.0), ("numpy", [1]), ("numpy", np.array([{}]))],
)
def test_values_of_other_types_are_refused(codec: str, value: Any, pools: Any) -> None:
    mapping = pools(node_size="4MiB").dict("d", codec=codec)
    with pytest.raises(TypeError, match=codec):
        mapping["k"] = value
    assert len(mapping) == 0


def test_structs_of_msgspec_are_found_by_the_name_of_their_type(pools: Any) -> None:
    msgspec = pytest.importorskip("msgspec")
    pool = pools(node_size="4MiB")
    made = msgspec.defstruct("Made", [("x", int), ("name", str)], module=__name__)
    globals()["Made"] = made
    try:
        codec = limpet.msgspec_codec(made)
        mapping = pool.dict("d", codec=codec)
        mapping["k"] = made(1, "one")
        assert gather(lambda: pool.dict("d")["k"].name) == ["one"]
        assert pool.stores()[0]["codec"] == f"msgspec:{__name__}:Made"
        wrong = pool.dict("e", codec="msgpack")
        wrong["k"] = {"x": "no number"}
        with pytest.raises(limpet.StoreCorrupt, match="x"):
            codec.decode(wrong.store.get(wrong.codec.encode_key("k")))
    finally:
        del globals()["Made"]
    with pytest.raises(limpet.ParameterError, match="cannot be imported here"):
        pool.dict("d")


@pytest.mark.parametrize(
    ("codec", "package"),
    [("json+zstd", "zstandard"), ("json+lz4", "lz4"), ("msgpack", "msgpack"),
     ("msgspec:a:B", "msgspec")],
)  # fmt: skip
def test_codec_that_is_not_installed_says_what_to_install(
    codec: str, package: str, pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    pool = pools(node_size="4MiB")
    # as if a process that has it had made the store
    pool._open_store("race", "d", codec, {})
    monkeypatch.setattr(codec_kinds, "import_module", absent)
    with pytest.raises(limpet.ParameterError, match=f"pip install {package}"):
        pool.dict("d")
    done = CliRunner().invoke(main, ["get", pool.url, "k", "--store", "d"])
    assert done.exit_code == 2
    assert f"pip install {package}" in " ".join(done.output.split())


def test_program_registers_a_codec_of_its_own(pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_registered", {})
    upper = Codec("upper", str.encode, bytes.decode, lambda v: v.upper().encode(), bytes.decode)
    pool = pools(node_size="4MiB")
    with pytest.raises(limpet.ParameterError, match="no codec 'upper' in this process"):
        pool.dict("d", codec=upper)
    assert upper.register() is upper
    upper.register()
    pool.dict("d", codec=upper)["k"] = "value"
    assert pool.dict("d", codec="upper")["k"] == "VALUE"
    assert pool.cache("c", codec="upper+zlib").get("k") is None
    with pytest.raises(limpet.ParameterError, match="another codec 'upper'"):
        upper._replace(decode=str).register()
    for name in ("pickle", "a+zlib", "msgspec:a:B", ""):
        with pytest.raises(limpet.ParameterError, match="cannot be registered"):
            upper._replace(name=name).register()


def test_unknown_codec_lists_the_known(pools: Any) -> None:
    pool = pools(node_size="4MiB")
    with pytest.raises(limpet.ParameterError, match=r"'yaml'.*pickle.*msgspec:MODULE:TYPE.*\+zlib"):
        pool.dict("d", codec="yaml")
    with pytest.raises(limpet.ParameterError, match="no compression 'gz'"):
        pool.dict("d", codec="json+gz")
    assert pool.stores() == []


def test_commands_take_text_and_compressed_stores(pools: Any) -> None:
    pool = pools(node_size="4MiB")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, [arguments[0], pool.url, *arguments[1:]])

    assert run("put", "k", "5", "--store", "t", "--codec", "str+zlib").exit_code == 0
    assert pool.dict("t")["k"] == "5"
    assert json.loads(run("get", "k", "--store", "t").output) == "5"
    assert run("put", "k", "v", "--store", "b", "--codec", "bytes+zlib").exit_code == 0
    assert run("get", "k", "--store", "b").output == "v"
    refused = run("put", "k", "five", "--store", "i", "--codec", "int")
    assert refused.exit_code == 2
    assert "takes int" in refused.output
