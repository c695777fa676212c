"""RAW, the lower bound: what it does for one client at a time, and that it does nothing more."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import gather

import limpet
from limpet.stores.registry import KINDS, UNPROVED

ROOM = 200


@pytest.fixture
def store(pools: Any) -> Any:
    return pools().store("raw", name="test", capacity=100, room=ROOM)


def cost(store: Any, work: Callable[[], object]) -> tuple[int, int, int]:
    """Round trips, bytes read, bytes written."""
    before = store.stats()
    work()
    after = store.stats()
    names = ("round_trips", "bytes_read", "bytes_written")
    return tuple(after[name] - before[name] for name in names)  # type: ignore[return-value]


def test_it_is_no_kind_that_is_proved() -> None:
    assert set(UNPROVED) == {"raw"}
    assert not UNPROVED.keys() & KINDS.keys()


def test_round_trips_and_bytes(store: Any) -> None:
    for _ in range(3):
        store.put(b"warm", b"")
        store.delete(b"warm")
    before = store.stats()["background"]["round_trips"]
    assert cost(store, lambda: store.get(b"k")) == (1, 8 + 256, 0)
    assert cost(store, lambda: store.insert(b"k", b"1234"))[0] == 3
    size = 16 + 8 + 4
    whole = size + 7 & ~7
    assert cost(store, lambda: store.get(b"k")) == (1, whole, 0)
    other = store.pool.store("raw", name="test")
    assert other.get(b"none") is None
    assert cost(other, lambda: other.get(b"k"))[0] == 2
    assert cost(other, lambda: other.get(b"k")) == (1, whole, 0)
    for write in (store.put, store.update):
        assert cost(store, lambda write=write: write(b"k", b"5678")) == (1, 8, size)
    store.put(b"k", b"12345678")
    assert cost(other, lambda: other.get(b"k"))[0] == 2  # it has grown
    assert cost(other, lambda: other.get(b"k")) == (1, whole, 0)
    assert cost(store, lambda: store.delete(b"k")) == (2, 8, 8)
    assert cost(store, lambda: store.get(b"k")) == (1, whole, 0)
    assert store.stats()["background"]["round_trips"] == before


@pytest.mark.parametrize("cache_size", [0, 3, 100])
def test_clients_in_turn_do_what_a_dict_does(pools: Any, cache_size: int) -> None:
    pool = pools()
    first = pool.store("raw", name="test", capacity=100, room=ROOM, cache_size=cache_size)
    handles = [first, pools.again(pool).store("raw", name="test")]
    model: dict[bytes, bytes] = {}
    source = random.Random(cache_size)
    for _ in range(3000):
        store, key = source.choice(handles), b"%d" % source.randrange(10)
        value = source.randbytes(source.choice((0, 1, 7, 8, 100, ROOM)))
        match source.randrange(5):
            case 0:
                store.put(key, value)
                model[key] = value
            case 1 if key in model:
                store.delete(key)
                del model[key]
            case 1:
                with pytest.raises(KeyError):
                    store.delete(key)
            case 2 if key in model:
                store.update(key, value)
                model[key] = value
            case 2:
                with pytest.raises(KeyError):
                    store.update(key, value)
            case 3 if key in model:
                with pytest.raises(limpet.KeyExists):
                    store.insert(key, value)
            case 3:
                store.insert(key, value)
                model[key] = value
        assert store.get(key) == model.get(key)
    for store in handles:
        assert dict(store.items()) == model
        assert len(store) == len(model)
        assert store.get_many(list(model)) == list(model.values())
    first.check()
    assert pool.audit()["leaked"] == 0


def test_sizes(store: Any) -> None:
    store.put(bytes(60_000), b"v" * ROOM)
    assert store.get(bytes(60_000)) == b"v" * ROOM
    with pytest.raises(limpet.ValueTooLarge, match="room=200"):
        store.put(b"k", bytes(ROOM + 1))
    with pytest.raises(limpet.KeyTooLarge):
        store.put(bytes(1 << 16), b"")
    with pytest.raises(limpet.ParameterError):
        store.pool.store("raw", name="other", room=-1)
    store.check()


def test_a_value_of_more_than_one_page(pools: Any) -> None:
    store = pools().store("raw", name="test", capacity=10, room=20_000)
    for size in (20_000, 5, 0, 4097):
        store.put(b"k", b"%d" % (size % 10) * size)
        assert store.get(b"k") == b"%d" % (size % 10) * size
    store.check()


def test_nothing_mends_a_half_written_value(store: Any) -> None:
    """Torn values, which `raw` does not prevent, do happen; other kinds are tested for none."""
    store.put(b"k", b"o" * 160)

    def put_and_die() -> None:
        assert store.get(b"k") == b"o" * 160
        store.endpoint.fuse = 10
        store.put(b"k", b"n" * 160)

    with pytest.raises(AssertionError, match="-9"):
        gather(put_and_die)
    store.recover()
    assert set(store.get(b"k")) == set(b"on")
    store.put(b"k", b"n" * 160)
    assert store.get(b"k") == b"n" * 160
