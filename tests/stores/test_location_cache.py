"""The location cache: bounded, never wrong about whose an entry is, and least used goes first."""

from __future__ import annotations

import random

import pytest

from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.swarm import cache as module
from limpet.stores.swarm.cache import LocationCache
from limpet.stores.swarm.layout import FIXED

NOWHERE = -1
REPLICAS = 3


def put(cache: LocationCache, key: bytes, value: int) -> None:
    at = cache.add(key)
    if at >= 0:
        cache.words[at + 1] = value


def got(cache: LocationCache, key: bytes) -> int | None:
    at = cache.locate(key)
    if at < 0 or not cache.holds(at, key):
        return None
    return int(cache.words[at + 1])


@pytest.mark.parametrize("size", [1, 2, 5, 8, 100, 1000])
def test_no_more_than_its_size_and_never_a_wrong_answer(size: int) -> None:
    cache = LocationCache(size, REPLICAS)
    model: dict[bytes, int] = {}
    source = random.Random(size)
    found = 0
    for number in range(4 * size + 500):
        key = b"%d" % source.randrange(2 * size)
        match source.randrange(4):
            case 0:
                put(cache, key, number)
                model[key] = number
            case 1:
                cache.drop(key)
                model.pop(key, None)
            case _:
                answer = got(cache, key)
                assert answer in (None, model.get(key))
                found += answer is not None
        assert cache.count <= size
    assert found > 0


def test_as_many_as_its_size_are_remembered() -> None:
    cache = LocationCache(1000, REPLICAS)
    for number in range(1000):
        put(cache, b"%d" % number, number)
    assert sum(got(cache, b"%d" % number) == number for number in range(1000)) > 980


def test_what_is_remembered_is_found_whatever_was_dropped_beside_it() -> None:
    """So few rows are in use that no window is full: nothing has to make room."""
    cache = LocationCache(1000, REPLICAS)
    model: dict[bytes, int] = {}
    source = random.Random(1)
    for number in range(20_000):
        key = b"%d" % source.randrange(600)
        if source.randrange(2):
            put(cache, key, number)
            model[key] = number
        else:
            cache.drop(key)
            model.pop(key, None)
        if number % 1000 == 999:
            assert {key: got(cache, key) for key in model} == model
            assert cache.count == len(model)


def test_what_is_used_often_stays() -> None:
    cache = LocationCache(200, REPLICAS)
    often = [b"often %d" % number for number in range(50)]
    for key in often:
        put(cache, key, 1)
    for number in range(5000):
        for turn in range(5):
            got(cache, often[(5 * number + turn) % 50])
        put(cache, b"%d" % number, 2)
    assert sum(got(cache, key) == 1 for key in often) > 40


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 255, 300])
def test_a_key_of_any_length_is_found_until_it_is_dropped(size: int) -> None:
    cache = LocationCache(10, REPLICAS)
    key = b"\0" * size
    put(cache, key, 1)
    assert got(cache, key) == 1
    put(cache, key, 2)
    assert got(cache, key) == 2
    assert cache.count == 1
    cache.drop(key)
    assert got(cache, key) is None
    assert cache.count == 0


@pytest.mark.skipif(BUILD == "compiled", reason="a compiled cache takes no other hash")
@pytest.mark.parametrize("other", [b"", b"k\0", b"k" * 63, b"k" * 64, b"k" * 255, b"k" * 256])
def test_keys_with_the_same_hash_and_of_other_lengths_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, other: bytes
) -> None:
    monkeypatch.setattr(module, "hash64", lambda key: 12345)
    cache = LocationCache(10, REPLICAS)
    for first, second in ((b"k", other), (other, b"k")):
        put(cache, first, 1)
        assert got(cache, second) is None
        put(cache, second, 2)
        assert got(cache, first) is None
        assert got(cache, second) == 2
        assert cache.count == 1


@pytest.mark.skipif(BUILD == "compiled", reason="a compiled cache takes no other hash")
def test_keys_with_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hash64", lambda key: 12345)
    cache = LocationCache(10, REPLICAS)
    put(cache, b"a", 1)
    assert got(cache, b"b") is None
    put(cache, b"b", 2)
    assert got(cache, b"a") is None
    assert got(cache, b"b") == 2
    assert cache.count == 1


def test_a_new_entry_knows_nothing_of_the_one_before() -> None:
    cache = LocationCache(1, REPLICAS)
    at = cache.add(b"a")
    for index in range(1, FIXED + REPLICAS):
        cache.words[at + index] = 7
    at = cache.add(b"b")
    assert [cache.words[at + index] for index in range(1, FIXED + REPLICAS)] == [0] * 9
    assert got(cache, b"a") is None


def test_a_cache_of_nothing() -> None:
    cache = LocationCache(0, REPLICAS)
    assert cache.add(b"a") == cache.locate(b"a") == NOWHERE
    cache.drop(b"a")
    cache.forget()
    assert cache.count == 0
