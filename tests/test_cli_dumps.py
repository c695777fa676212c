"""`limpet keys`, `dump`, `load` and `cache`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

import limpet
from limpet.__main__ import main

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
    assert pool.dict("s")[b"a"] == b"b"
    done = run("load", pool.url, stdin=head.replace("bytes", "json"))
    assert done.exit_code == 1
    assert "codec" in done.output


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
    assert run(*where, "set", "k", "[1, 2]", "--ttl", "60000").exit_code == 0
    assert cache["k"] == [1, 2]
    assert 0 < (cache.expires_in("k") or 0) <= 60_000
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
    cache.set("a", 1, ttl=60_000, tags=["x", "y"])
    cache.set("b", 2, ttl=50_000, slide=True)
    cache.set("c", 3)
    cache.set("d", 4, ttl=40_000, stale=7000)
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
        assert abs(there - here) < 20_000
    assert other.expires_in("c") is None
    before, after = ({k: _slide_and_stale(one, k) for k in "abcd"} for one in (cache, other))
    assert before == after == {"a": (0, 0), "b": (50_000, 0), "c": (0, 0), "d": (0, 7000)}
    other.invalidate("y")
    assert "a" not in other
    assert "b" in other


def _slide_and_stale(cache: Any, key: str) -> tuple[int, int]:
    times = cache.store.entry(cache.codec.encode_key(key))[3]
    return times & 0xFFFF_FFFF, times >> 32


def test_dump_of_a_cache_is_loaded_into_another_kind(pools: Any) -> None:
    first, second = pools(), pools()
    first.cache("pages", codec="json").set("a", 1, ttl=60_000)
    dumped = run("dump", first.url, "--store", "pages")
    assert run("load", second.url, "--kind", "race", stdin=dumped.output).exit_code == 0
    assert dict(second.dict("pages")) == {"a": 1}


def test_entry_with_wrong_terms_is_refused_by_line(pools: Any) -> None:
    pool = pools()
    head = '{"limpet": 1, "store": "s", "kind": "cache", "codec": "bytes"}\n'
    for field in ('"tags": [1, 2, 3, 4, 5, 6]', '"tags": [0]', '"deadline_ms": "soon"'):
        done = run("load", pool.url, stdin=head + f'{{"key": "61", "value": "62", {field}}}\n')
        assert done.exit_code == 1, done.output
        assert "line 2 is no entry of a dump" in done.output


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
    first.dict("config")["b"] = b"\xff"
    refused = run("dump", first.url, "--store", "config", "--decoded")
    assert refused.exit_code == 1
    assert "'b' has no form in JSON" in refused.output
