"""`pool.rename`: a store gets another name in one step, and stays what it is."""

from __future__ import annotations

import pickle
import secrets
from typing import Any

import pytest
from click.testing import CliRunner
from kit.processes import gather

import limpet
from limpet.__main__ import main
from limpet.shm.catalogue.directory import CLAIMED, HASH_MASK, RENAMING
from limpet.shm.endpoint.fabric import hash64
from limpet.stores.registry import KINDS

pytestmark = pytest.mark.exhaustive_in_pure("each kind runs the same lines", quick=["*race*"])


@pytest.fixture
def pool(pools: Any) -> Any:
    return pools(nodes=3, node_size="4MiB", clients=16)


@pytest.mark.parametrize("kind", KINDS)
def test_store_of_every_kind_keeps_its_contents(kind: str, pool: Any) -> None:
    store = pool.store(kind, name="old", capacity=1000)
    store.put(b"k", b"v")
    pool.rename("old", "new")
    assert [one["name"] for one in pool.stores()] == ["new"]
    store.put(b"l", b"w")
    assert pool.store(kind, name="new").get(b"l") == b"w"
    assert pickle.loads(pickle.dumps(store)).get(b"k") == b"v"
    # the old name is free, and what it makes is another store
    other = pool.store(kind, name="old", capacity=1000)
    assert other.get(b"k") is None
    other.put(b"k", b"other")
    assert store.get(b"k") == b"v"
    assert gather(lambda: pool.store(kind, name="old").get(b"k")) == [b"other"]
    pool.rename("old", "third")
    pool.rename("new", "old")
    assert pool.store(kind, name="old").get(b"k") == b"v"
    assert pool.store(kind, name="third").get(b"k") == b"other"
    pool.drop("third")
    assert store.get(b"k") == b"v"
    store.check()
    pool.drop("old")
    with pytest.raises(limpet.StoreDropped):
        store.get(b"k")
    pool.recover()
    assert pool.audit()["leaked"] == 0
    assert not [entry for entry in pool.catalogue if entry.state == CLAIMED]


def test_store_is_renamed_often(pool: Any) -> None:
    mapping = pool.dict("name-0")
    mapping["k"] = 1
    for number in range(40):
        pool.rename(f"name-{number}", f"name-{number + 1}")
        assert pool.dict(f"name-{number + 1}")["k"] == 1
    assert [one["name"] for one in pool.stores(count=True)] == ["name-40"]
    assert len(list(pool.catalogue)) < 10


def test_cache_and_its_entries_are_renamed(pool: Any) -> None:
    cache = pool.cache("pages", ttl=60)
    cache["a"] = 1
    pool.rename("pages", "renamed")
    assert pool.cache("renamed")["a"] == 1
    assert cache.get_or_compute("b", lambda: 2) == 2
    assert pool.stores(count=True)[0]["keys"] == 2


def test_what_cannot_be_renamed_is_refused(pool: Any) -> None:
    pool.dict("a")["k"] = 1
    pool.dict("b")
    pool.counter("n")
    for old, new, message in (
        ("a", "b", "has a store 'b' already"),
        ("none", "c", "no store 'none' to rename"),
        ("n", "c", "channels cannot be renamed"),
    ):
        with pytest.raises(limpet.StoreError, match=message):
            pool.rename(old, new)
    with pytest.raises(limpet.ParameterError):
        pool.rename("a", "")
    pool.rename("a", "a")
    same = next(
        name
        for name in map(str, range(100_000))
        if (hash64(name.encode()) ^ hash64(b"a")) & HASH_MASK == 0
    )
    with pytest.raises(limpet.StoreError, match="bits of hash"):
        pool.rename("a", same)
    waits = next(
        name
        for name in map(str, range(100_000))
        if (hash64(name.encode()) ^ hash64(RENAMING)) & HASH_MASK == 0
    )
    with pytest.raises(limpet.StoreError, match="bits of hash"):
        pool.rename("a", waits)
    assert pool.dict("a")["k"] == 1
    assert not [entry for entry in pool.catalogue if entry.state == CLAIMED]


def test_store_that_is_gone_since_it_was_looked_at_is_named(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.dict("a")
    pool.dict("b")
    listed = [one for one in pool.stores() if one["name"] == "a"]
    monkeypatch.setattr(pool, "stores", lambda: listed)
    for change in (lambda: None, lambda: pool.drop("a")):  # "b" was made since; "a" was dropped
        change()
        with pytest.raises(limpet.StoreError, match="'a' was not renamed: meanwhile another"):
            pool.rename("a", "b")


def test_store_gets_a_name_with_the_hash_bits_of_a_third_store(pool: Any) -> None:
    pool.dict("a")["k"] = 1
    pool.dict("b")["k"] = 2
    alike = next(
        name
        for name in map(str, range(100_000))
        if (hash64(name.encode()) ^ hash64(b"b")) & HASH_MASK == 0
    )
    pool.rename("a", alike)
    assert (pool.dict(alike)["k"], pool.dict("b")["k"]) == (1, 2)


def test_store_under_a_name_that_was_freed_is_found_whatever_its_home_is(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home with the bits of hash of the name was taken for the name, one time in 4,096."""
    pool.dict("a")["k"] = 1
    pool.rename("a", "b")
    alike = next(
        ending
        for ending in (f"{number:08x}" for number in range(100_000))
        if (hash64(b"a~" + ending.encode()) ^ hash64(b"a")) & HASH_MASK == 0
    )
    endings = iter([alike, "01234567"])
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(endings))
    pool.dict("a")["k"] = 2
    assert sorted(one["name"] for one in pool.stores()) == ["a", "b"]
    assert (pool.dict("a")["k"], pool.dict("b")["k"]) == (2, 1)
    pool.drop("a")
    assert pool.dict("b")["k"] == 1


def test_of_several_processes_one_gets_the_name(pool: Any) -> None:
    for number in range(3):
        pool.dict(f"s{number}")["k"] = number

    def rename(number: int) -> Any:
        try:
            pool.rename(f"s{number}", "name")
        except limpet.StoreError:
            return None
        return number

    (winner,) = [
        one for one in gather(*(lambda n=n: rename(n) for n in range(3))) if one is not None
    ]
    assert pool.dict("name")["k"] == winner
    assert sorted(one["name"] for one in pool.stores()) == sorted(
        ["name", *(f"s{n}" for n in range(3) if n != winner)]
    )


def test_command_renames(pool: Any) -> None:
    pool.dict("old")["k"] = 1
    done = CliRunner().invoke(main, ["rename", pool.url, "old", "new"])
    assert done.exit_code == 0, done.output
    assert pool.dict("new")["k"] == 1
    assert CliRunner().invoke(main, ["rename", pool.url, "old", "new"]).exit_code == 1
