"""`limpet keys`, `dump`, `load` and `cache`."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import limpet
from limpet.__main__ import main
from limpet.stores.core.codecs import pickled_key

pytestmark = pytest.mark.either_build("commands are not compiled")


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


@pytest.mark.parametrize(("kind", "other"), [("race", "rtx-sherman"), ("rtx-sherman", "race")])
def test_dump_is_loaded_into_another_pool_and_kind(pools: Any, kind: str, other: str) -> None:
    first, second = pools(), pools()
    config = first.dict("config", store=kind)
    config.update({number: {"a": [number, None]} for number in range(50)})
    dumped = run("dump", first.url, "--store", "config")
    assert dumped.exit_code == 0, dumped.output
    head = json.loads(dumped.output.splitlines()[0])
    assert head == {"limpet": 1, "store": "config", "kind": kind, "codec": "pickle"}
    loaded = run("load", second.url, "--kind", other, "--json", stdin=dumped.output)
    assert loaded.exit_code == 0, loaded.output
    assert json.loads(loaded.stdout)["entries"] == 50
    assert dict(second.dict("config", store=other)) == dict(config)


def test_wrong_dump_is_refused_by_line(pools: Any) -> None:
    pool = pools()
    assert "line 1" in run("load", pool.url, stdin="{}\n").output
    assert pool.stores() == []
    head = '{"limpet": 1, "store": "s", "kind": "race", "codec": "bytes"}\n'
    done = run("load", pool.url, stdin=head + '{"key": "61", "value": "62"}\n{"key": 1}\n')
    assert done.exit_code == 1
    assert "line 3" in done.output
    assert "the entries before it are loaded" in done.output
    assert pool.dict("s")[b"a"] == b"b"
    done = run("load", pool.url, stdin=head.replace("bytes", "json"))
    assert done.exit_code == 1
    assert "codec" in done.output


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether the module `hostile_module`, or the object `Hostile`, was let run since."""
    (tmp_path / "hostile_module.py").write_text(
        "import msgspec\nclass Kind(msgspec.Struct):\n    a: int\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ran.clear()

    def has_run() -> bool:
        return bool(ran) or sys.modules.pop("hostile_module", None) is not None

    return has_run


ran: list[int] = []


class Hostile:
    def __reduce__(self) -> Any:
        return ran.append, (1,)


def test_no_command_but_get_runs_what_a_store_brings(
    pools: Any, hostile: Callable[[], bool]
) -> None:
    pytest.importorskip("msgspec")
    pool = pools()
    codec = "msgspec:hostile_module:Kind"
    structs, _ = pool.bare("race", "structs", codec)
    structs.put(b'"k"', b"\x81\xa1a\x01")
    pickles = pool.dict("pickles").store
    brought = pickled_key(Hostile())
    pickles.put(brought, b"")
    pickles.put(pickled_key("k"), brought)
    for name in ("structs", "pickles"):
        dumped = run("dump", pool.url, "--store", name)
        shown = run("keys", pool.url, "--store", name)
        assert dumped.exit_code == shown.exit_code == 0, (dumped.output, shown.output)
        assert "k" in shown.output.split()
        assert run("load", pool.url, stdin=dumped.output).exit_code == 0
        assert run("delete", pool.url, "k", "--store", name).exit_code == 0
    assert not hostile()
    key = json.dumps({"$encoded": brought.hex()})
    assert run("keys", pool.url, "--store", "pickles").output.strip() == key
    assert run("delete", pool.url, key, "--store", "pickles").exit_code == 0
    assert not hostile()


def test_load_imports_the_module_of_a_codec_only_if_it_is_named(
    pools: Any, hostile: Callable[[], bool]
) -> None:
    pytest.importorskip("msgspec")
    pool = pools()
    codec = "msgspec:hostile_module:Kind"
    dump = json.dumps({"limpet": 1, "store": "s", "kind": "race", "codec": codec})
    dump += '\n{"key": "22", "value": "00"}\n'
    for arguments in ([], ["--codec", "json"]):
        done = run("load", pool.url, *arguments, stdin=dump)
        assert done.exit_code == 1
        assert "give it by --codec" in done.output
        assert pool.stores() == []
        assert not hostile()
    assert run("load", pool.url, "--codec", codec, stdin=dump).exit_code == 0
    assert hostile()
    assert [one["codec"] for one in pool.stores()] == [codec]


WRONG: list[Any] = [
    "",
    "channels",
    ".channels",
    "a:b",
    "x" * 200,
    "\ud800",
    None,
    7,
    -1,
    1e308,
    [],
    {"a": 1},
]


@pytest.mark.parametrize(
    "field", ["store", "kind", "codec", "max_bytes", "max_items", "ttl_ms", "policy"]
)
def test_wrong_head_of_a_dump_is_an_error_and_makes_nothing(pools: Any, field: str) -> None:
    pool = pools()
    pool.lock("l")
    for wrong in WRONG:
        head: dict[str, Any] = {"limpet": 1, "store": "s", "kind": "race", "codec": "bytes"}
        if field in head:
            head[field] = wrong
        else:
            head |= {"kind": "cache", "parameters": {field: wrong}}
        done = run("load", pool.url, stdin=json.dumps(head) + '\n{"key": 1}')
        assert done.exit_code in (1, 2), (wrong, done.output)
        assert isinstance(done.exception, SystemExit), (wrong, done.exception)
        assert pool.stores() == []
    with pytest.raises(limpet.ParameterError, match="limpet makes"):
        pool.dict(".channels", store="channels")
    with pytest.raises(limpet.ParameterError, match="limpet makes"):
        pool.store("channels", name="s")


def test_keys_are_shown_by_the_codec(pools: Any) -> None:
    pool = pools()
    pool.dict("j", codec="json").update({"a": 1, "b c": 2})
    pool.dict("b", codec="bytes")[b"\x00z"] = b""
    assert sorted(run("keys", pool.url, "--store", "j").output.split("\n")) == ["", "a", "b c"]
    shown = run("keys", pool.url, "--store", "j", "--json").output.splitlines()
    assert sorted(json.loads(line) for line in shown) == ["a", "b c"]
    assert run("keys", pool.url, "--store", "b").output == "007a\n"


def test_cache_is_looked_at_and_cleared(pools: Any) -> None:
    pool = pools()
    cache = pool.cache("pages", codec="json", max_items=100)
    where = ("cache", pool.url, "pages")
    assert run(*where, "set", "k", "[1, 2]", "--ttl", "60").exit_code == 0
    assert cache["k"] == [1, 2]
    assert 0 < (cache.expires_in("k") or 0) <= 60
    assert run(*where, "get", "k").output == "[1, 2]\n"
    stats = json.loads(run(*where, "stats", "--json").stdout)
    assert stats["items"] == 1
    assert stats["max_items"] == 100
    assert "hits" in run(*where, "stats").output
    assert run(*where, "clear").output == "freed 1 entries\n"
    done = run(*where, "get", "k")
    assert done.exit_code == 1
    assert "no key 'k'" in done.output
    assert run("cache", pool.url, "none", "stats").exit_code == 1
    assert run("dump", pool.url, "--store", "pages").exit_code == 0
    with pytest.raises(limpet.StoreMismatch):
        pool.dict("pages")


def test_dump_of_a_cache_keeps_deadlines_and_tags(pools: Any) -> None:
    first, second = pools(), pools()
    cache = first.cache("pages", codec="json")
    cache.set("a", 1, ttl=60, tags=["x", "y"])
    cache.set("b", 2, ttl=50, slide=True)
    cache.set("c", 3)
    cache.set("d", 4, ttl=40, stale=7)
    dumped = run("dump", first.url, "--store", "pages")
    assert dumped.exit_code == 0, dumped.output
    lines = dumped.output.splitlines()
    late = json.dumps({"key": b'"e"'.hex(), "value": b"5".hex(), "deadline_ms": 1})
    loaded = run("load", second.url, "--json", stdin="\n".join([*lines, late]) + "\n")
    assert loaded.exit_code == 0, loaded.output
    counts = json.loads(loaded.stdout)
    assert (counts["entries"], counts["expired"]) == (4, 1)
    other = second.cache("pages")
    assert dict(other) == {"a": 1, "b": 2, "c": 3, "d": 4}
    for key in "abd":
        there, here = cache.expires_in(key), other.expires_in(key)
        assert there is not None
        assert here is not None
        # the clock goes on between the two, and a sliding entry begins anew
        assert abs(there - here) < 20
    assert other.expires_in("c") is None
    before, after = ({k: _slide_and_stale(one, k) for k in "abcd"} for one in (cache, other))
    assert before == after == {"a": (0, 0), "b": (50_000, 0), "c": (0, 0), "d": (0, 7000)}
    other.invalidate("y")
    assert "a" not in other
    assert "b" in other


def test_entry_is_loaded_with_a_deadline_in_a_year(pools: Any) -> None:
    pool = pools()
    head = '{"limpet": 1, "store": "s", "kind": "cache", "codec": "bytes"}\n'
    for days in (400, 40_000):
        deadline = time.time_ns() // 1_000_000 + days * 86_400_000
        line = f'{{"key": "61", "value": "62", "deadline_ms": {deadline}}}\n'
        assert run("load", pool.url, stdin=head + line).exit_code == 0
        assert pool.cache("s").store.entry(b"a")[2] == pytest.approx(deadline * 1000, abs=60e6)
        assert pool.cache("s")[b"a"] == b"b"


def _slide_and_stale(cache: Any, key: str) -> tuple[int, int]:
    times = cache.store.entry(cache.codec.encode_key(key))[3]
    return times & 0xFFFF_FFFF, times >> 32


def test_dump_of_a_cache_is_loaded_into_another_kind(pools: Any) -> None:
    first, second = pools(), pools()
    first.cache("pages", codec="json").set("a", 1, ttl=60)
    dumped = run("dump", first.url, "--store", "pages")
    assert run("load", second.url, "--kind", "race", stdin=dumped.output).exit_code == 0
    assert dict(second.dict("pages")) == {"a": 1}


def test_entry_with_wrong_terms_is_refused_by_line(pools: Any) -> None:
    pool = pools()
    head = '{"limpet": 1, "store": "s", "kind": "cache", "codec": "bytes"}\n'
    for field in (
        '"tags": [1, 2, 3, 4, 5, 6]', '"tags": [0]', '"tags": ["x"]', '"tags": 5',
        '"deadline_ms": "soon"', '"deadline_ms": -1', '"deadline_ms": 1.5', '"deadline_ms": 1e30',
        '"slide_ms": -5', '"slide_ms": 4294967296', '"stale_ms": -1', '"stale_ms": true',
    ):  # fmt: skip
        done = run("load", pool.url, stdin=head + f'{{"key": "61", "value": "62", {field}}}\n')
        assert done.exit_code == 1, done.output
        assert "line 2 is no entry of a dump" in done.output
        assert pool.stores() == []


def test_cache_is_made_again_with_its_parameters(pools: Any) -> None:
    first, second = pools(), pools()
    cache = first.cache("pages", max_bytes="1MiB", max_items=500, ttl=60, policy="fifo")
    cache["a"] = 1
    dumped = run("dump", first.url, "--store", "pages").output
    assert run("load", second.url, stdin=dumped).exit_code == 0
    made = {one["name"]: one["parameters"] for one in second.stores()}
    there = cache.store.parameters
    for field in ("max_bytes", "max_items", "ttl_ms", "policy"):
        assert made["pages"][field] == getattr(there, field)
    second.cache("pages")["b"] = 2
    assert 0 < (second.cache("pages").expires_in("b") or 0) <= 60
    # a cache that is there stays as it is
    second.cache("other", max_items=7)
    assert run("load", second.url, "--store", "other", stdin=dumped).exit_code == 0
    assert second.cache("other").stats()["max_items"] == 7
    refused = run("load", second.url, "--store", "other", "--max-items", "9", stdin=dumped)
    assert "max_items=7, not 9" in refused.output


def test_load_gives_a_cache_other_bounds(pools: Any) -> None:
    first, second = pools(), pools()
    first.cache("pages", max_bytes="1MiB")["a"] = 1
    dumped = run("dump", first.url, "--store", "pages").output
    head, line = dumped.splitlines()
    large = head.replace(str(1 << 20), str(1 << 40)) + f"\n{line}\n"
    done = run("load", second.url, stdin=large)
    assert done.exit_code == 2
    assert "more than the pool's memory" in done.output
    assert "--max-bytes" in done.output
    assert second.stores() == []
    more = ("--max-bytes", "512KiB", "--max-items", "30")
    assert run("load", second.url, *more, stdin=large).exit_code == 0
    stats = second.cache("pages").stats()
    assert (stats["max_bytes"], stats["max_items"], stats["items"]) == (1 << 19, 30, 1)
    refused = run("load", second.url, *more, "--store", "s", "--kind", "race", stdin=dumped)
    assert (refused.exit_code, [one["name"] for one in second.stores()]) == (2, ["pages"])
    for old, new in (
        ('"max_items"', '"max_things"'), (str(1 << 20), "[]"), (str(1 << 20), "true"),
        ('"clock"', "5"), ('"ttl_ms": 0', '"ttl_ms": "x"'), ('{"max_bytes"', '5, "x": {"b"'),
    ):  # fmt: skip
        assert old in head
        wrong = head.replace(old, new)
        done = run("load", second.url, "--store", "s", stdin=f"{wrong}\n{line}\n")
        assert done.exit_code in (1, 2), (new, done.output)
        assert "Error: " in done.output


def test_entry_that_is_too_large_is_refused_by_line(pools: Any) -> None:
    first, second = pools(), pools()
    first.dict("s", codec="bytes")[b"k" * 100] = b"v"
    dumped = run("dump", first.url, "--store", "s").output
    done = run("load", second.url, "--kind", "loco", stdin=dumped)
    assert done.exit_code == 1
    assert "line 2: KeyTooLarge" in done.output
    assert second.stores() == []  # nothing was loaded
    head, line = dumped.splitlines()
    short = '{"key": "", "value": "00"}'
    done = run("load", second.url, "--kind", "loco", stdin=f"{head}\n{short}\n{line}\n")
    assert "line 3: KeyTooLarge" in done.output
    assert dict(second.dict("s", store="loco")) == {b"": b"\0"}
    again = run("load", second.url, stdin=dumped)
    assert "line 2: KeyTooLarge" in again.output
    assert len(second.dict("s", store="loco")) == 1


def test_decoded_dump_is_json_that_can_be_edited(pools: Any) -> None:
    first, second = pools(), pools()
    first.dict("config", codec="msgpack")["a"] = {"size": 1}
    dumped = run("dump", first.url, "--store", "config", "--decoded")
    head, line = dumped.output.splitlines()
    assert json.loads(line) == {"key": "a", "value": {"size": 1}}
    edited = line.replace('"size": 1', '"size": 2')
    loaded = run("load", second.url, stdin=f"{head}\n{edited}\n")
    assert loaded.exit_code == 0, loaded.output
    assert second.dict("config")["a"] == {"size": 2}


OBJECTS: dict[Any, Any] = {
    "a": {1: (2, 3), "x": [b"\xff", None, True]},
    (1, ("t", b"u")): {"$tuple": [1]},
    b"\x00": {"$bytes": {}},
    5: float("inf"),
    "5": {1, 2},
    datetime.date(2026, 1, 2): "\ud800",
    1.5: (),
    None: {"a": {(1, 2): 10**5000}},
}


@pytest.mark.parametrize("kind", ["race", "cache"])
def test_decoded_dump_keeps_types(pools: Any, kind: str) -> None:
    first, second = pools(), pools()
    there = first.cache("s") if kind == "cache" else first.dict("s")
    there.update(OBJECTS)
    dumped = run("dump", first.url, "--store", "s", "--decoded")
    assert dumped.exit_code == 0, dumped.output
    loaded = run("load", second.url, stdin=dumped.output)
    assert loaded.exit_code == 0, loaded.output
    other = second.cache("s") if kind == "cache" else second.dict("s")
    assert dict(other) == OBJECTS
    assert type(other["a"][1]) is tuple
    assert [type(part) for part in other["a"]["x"]] == [bytes, type(None), bool]


@pytest.mark.parametrize("codec", ["bytes", "msgpack", "str", "json", "pickle+zlib"])
def test_decoded_dump_of_each_codec_gives_the_same_bytes(pools: Any, codec: str) -> None:
    first, second = pools(), pools()
    there = first.dict("s", codec=codec)
    texts = {"a": "b", "17": '{"$bytes": "00"}', "\n": ""}
    there.update({k.encode(): v.encode() for k, v in texts.items()} if codec == "bytes" else texts)
    dumped = run("dump", first.url, "--store", "s", "--decoded")
    loaded = run("load", second.url, stdin=dumped.output)
    assert loaded.exit_code == 0, loaded.output
    assert dict(second.dict("s").store.items()) == dict(there.store.items())


def test_decoded_dump_has_the_bytes_of_what_cannot_be_decoded(pools: Any) -> None:
    first, second = pools(), pools()
    first.dict("s").store.put(b"\x00", b"\x80garbage")
    first.dict("s").store.put(b"K\x05.", b"")  # not as the codec writes 5
    dumped = run("dump", first.url, "--store", "s", "--decoded")
    assert dumped.exit_code == 0, dumped.output
    forms = [json.loads(line)["key"]["$encoded"] for line in dumped.output.splitlines()[1:]]
    assert sorted(forms) == ["00", "4b052e"]
    assert run("load", second.url, stdin=dumped.output).exit_code == 0
    there = second.dict("s").store
    assert dict(there.items()) == {b"\x00": b"\x80garbage", b"K\x05.": b""}


def test_wrong_forms_in_a_decoded_dump_are_refused_by_line(pools: Any) -> None:
    pool = pools()
    head = '{"limpet": 1, "store": "s", "kind": "race", "codec": "pickle", "decoded": true}\n'
    for value in (
        '{"$bytes": "xyz"}', '{"$bytes": 5}', '{"$dict": [1]}', '[{"$encoded": "00"}]',
        '{"$float": "many"}', '{"$tuple": 5}', '{"$encoded": null}', '{"$dict": [[[1], 2, 3]]}',
    ):  # fmt: skip
        done = run("load", pool.url, stdin=head + f'{{"key": "k", "value": {value}}}\n')
        assert done.exit_code == 1, value
        assert "line 2 is no entry of a dump" in done.output


@pytest.mark.parametrize("kind", ["race", "cache"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_each_key_that_keys_shows_is_found_by_get_and_delete(
    pools: Any, kind: str, more: tuple[str, ...]
) -> None:
    pool = pools()
    opened = pool.cache("s") if kind == "cache" else pool.dict("s")
    values = {
        key: number for number, key in enumerate([*OBJECTS, "null", '"5"', "a b", "\n", "[1"])
    }
    opened.update(values)
    shown = run("keys", pool.url, "--store", "s", *more).output.splitlines()
    assert len(shown) == len(values)
    found = [run("get", pool.url, key, "--store", "s").output for key in shown]
    assert sorted(map(int, found)) == sorted(values.values())
    if kind == "cache":
        assert [run("cache", pool.url, "s", "get", key).output for key in shown] == found
    for key in shown:
        assert run("delete", pool.url, key, "--store", "s").exit_code == 0
    assert dict(opened) == {}


def test_array_as_a_key_is_a_tuple(pools: Any) -> None:
    pool = pools()
    assert run("put", pool.url, '[1, "t"]', "v", "--codec", "pickle").exit_code == 0
    assert dict(pool.dict()) == {(1, "t"): "v"}
    assert run("cache", pool.url, "c", "stats").exit_code == 1
    cache = pool.cache("c")
    assert run("cache", pool.url, "c", "set", "[1]", '{"$tuple": [2]}').exit_code == 0
    assert dict(cache) == {(1,): (2,)}


def test_key_that_the_codec_does_not_take_is_a_usage_error(pools: Any) -> None:
    pool = pools()
    pool.dict("s")
    pool.cache("c")
    for command in ("get", "delete", "put"):
        done = run(command, pool.url, '{"a": 1}', "--store", "s")
        assert done.exit_code == 2
        assert "cannot write {'a': 1}" in done.output
    for command in (("get",), ("set", "--ttl", "5")):
        done = run("cache", pool.url, "c", command[0], '{"a": 1}', *["v"][: len(command) - 1])
        assert done.exit_code == 2
        assert "cannot write {'a': 1}" in done.output


def test_value_of_none_is_found(pools: Any) -> None:
    pool = pools()
    pool.cache("c")["n"] = None
    pool.dict("s")["n"] = None
    for done in (
        run("cache", pool.url, "c", "get", "n"),
        run("get", pool.url, "n", "--store", "s"),
    ):
        assert (done.exit_code, done.output) == (0, "null\n")
