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
