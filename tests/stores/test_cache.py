"""`pool.cache`: a MutableMapping whose entries expire, are invalidated and are evicted."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
from kit.clocks import clocked
from kit.processes import gather
from kit.stores import sound

import limpet
from limpet.stores.cache.cache import tag_number, tags_word
from limpet.stores.cache.flight import Computation
from limpet.stores.cache.layout import LANDED

mapping_tests: Any = pytest.importorskip(
    "test.mapping_tests",
    reason="this Python has no test package (python3-test or libpython3-testsuite)",
)


@pytest.fixture
def cache(pools: Any) -> Any:
    return clocked(pools).cache("test", max_items=1000)


def wait(cache: Any, ms: float) -> None:
    cache.store.pool.sleep_ms(ms)


def mapping_case(make: Callable[[], Any]) -> Any:
    """The standard library's tests of a mapping on what `make` makes."""

    class OnACache(mapping_tests.BasicTestMappingProtocol):  # type: ignore[misc]
        type2test = staticmethod(make)

        def _reference(self) -> dict[Any, Any]:
            return {"1": "2", "key1": "value1", "key2": (1, 2, 3)}

    return OnACache


MAPPING_TESTS = [
    name for name in dir(mapping_tests.BasicTestMappingProtocol) if name.startswith("test_")
]


@pytest.mark.parametrize("test", MAPPING_TESTS)
def test_cache_is_a_mapping_as_the_standard_library_has_it(pools: Any, test: str) -> None:
    pool, made = pools(), []

    def make(*given: Any, **named: Any) -> Any:
        made.append(pool.cache(f"mapping {len(made)}", max_items=100))
        made[-1].update(*given, **named)
        return made[-1]

    case = mapping_case(make)(test)
    getattr(case, test)()


def test_values_come_back(cache: Any) -> None:
    cache["a"] = [1, 2]
    cache.set("b", "x" * 100_000)
    assert cache["a"] == [1, 2]
    assert cache.get("b") == "x" * 100_000
    assert cache.get("c", "none") == "none"
    assert sorted(cache) == ["a", "b"]
    assert len(cache) == 2
    del cache["a"]
    with pytest.raises(KeyError):
        cache["a"]
    sound(cache.store)


def test_second_process_opens_with_the_name_only(pools: Any) -> None:
    pool = pools()
    pool.cache("shared", max_items=10, ttl=5, codec="json").set("k", [1])

    def other() -> Any:
        with limpet.open(pool.url) as mine:
            found = mine.cache("shared")
            return found["k"], found.stats()["max_items"], found.codec.name

    assert gather(other) == [([1], 10, "json")]
    with pytest.raises(limpet.StoreMismatch, match="max_items=10"):
        pool.cache("shared", max_items=11)


def test_handle_pickles_by_name(cache: Any) -> None:
    cache["k"] = 1
    assert pickle.loads(pickle.dumps(cache))["k"] == 1


def test_entry_expires_after_its_ttl(cache: Any) -> None:
    cache.set("short", 1, ttl=1)
    cache.set("ever", 2)
    wait(cache, 999)
    assert cache["short"] == 1
    assert cache.expires_in("short") == 0.001
    assert cache.expires_in("ever") is None
    wait(cache, 1)
    assert cache.get("short") is None
    assert "short" not in cache
    assert len(cache) == 1
    assert list(cache) == ["ever"]
    assert cache.stats()["items"] == 2
    assert cache.expire() == 1
    assert cache.stats()["items"] == 1
    assert cache.stats()["expirations"] == 1


def test_ttl_of_the_cache_is_the_default(pools: Any) -> None:
    cache = clocked(pools).cache("test", ttl=1)
    cache["k"] = 1
    cache.set("ever", 1, ttl=0)
    wait(cache, 1000)
    assert list(cache) == ["ever"]


def test_touch_gives_another_deadline(cache: Any) -> None:
    cache.set("k", 1, ttl=1)
    assert cache.touch("k", 5)
    wait(cache, 4999)
    assert cache["k"] == 1
    assert cache.touch("k", 0)
    wait(cache, 1_000_000)
    assert cache["k"] == 1
    assert not cache.touch("other", 0.01)
    cache.touch("k", 1, slide=True)
    for _ in range(5):
        wait(cache, 900)
        assert cache["k"] == 1
    wait(cache, 1000)
    assert "k" not in cache


def test_sliding_entry_lives_while_it_is_read(cache: Any) -> None:
    cache.set("k", 1, ttl=1, slide=True)
    for _ in range(10):
        wait(cache, 800)
        assert cache["k"] == 1
    wait(cache, 1001)
    assert cache.get("k") is None


def test_a_hit_writes_no_more_than_thrice(cache: Any) -> None:
    """Words that all processes read stay in their caches: a hit writes its own counter only."""
    cache.set("k", 1, ttl=10, slide=True)
    for _ in range(5):
        assert cache["k"] == 1
    head = _head(cache, "k")
    before = cache.store.endpoint.read(head, 48)
    stats = cache.store.stats()
    for _ in range(100):
        wait(cache, 1)
        assert cache["k"] == 1
    after = cache.store.stats()
    assert cache.store.endpoint.read(head, 48) == before
    assert after["cas"] == stats["cas"]


def _head(cache: Any, key: str) -> int:
    """Address of the head of an entry, which is the cache's only one."""
    linked, _ = cache.store.checker.linked_all()
    assert len(linked) == 1
    return int(linked[0]) & ((1 << 48) - 16)


def test_add_and_replace(cache: Any) -> None:
    assert cache.add("k", 1, ttl=1)
    assert not cache.add("k", 2)
    assert cache.replace("k", 3)
    assert cache["k"] == 3
    assert not cache.replace("other", 1)
    cache.set("k", 4, ttl=0.01)
    wait(cache, 10)
    assert not cache.replace("k", 5)
    assert cache.add("k", 6)
    assert cache["k"] == 6
    sound(cache.store)


def test_incr_keeps_the_deadline(cache: Any) -> None:
    assert cache.incr("n", initial=10, ttl=1) == 11
    assert cache.incr("n", 5) == 16
    assert cache.decr("n") == 15
    wait(cache, 1000)
    with pytest.raises(KeyError):
        cache.incr("n")
    cache["s"] = "text"
    with pytest.raises(TypeError, match="no whole number"):
        cache.incr("s")


def test_cas_sets_what_was_not_changed(cache: Any) -> None:
    assert cache.gets("k")[0] is None
    assert cache.cas("k", 1, cache.gets("k")[1])
    value, token = cache.gets("k")
    assert value == 1
    cache["k"] = 2
    assert not cache.cas("k", 3, token)
    assert cache.cas("k", 4, cache.gets("k")[1])
    assert cache["k"] == 4


def test_counters_of_processes_lose_nothing(pools: Any) -> None:
    pool = pools(clients=16)
    pool.cache("test")["n"] = 0
    per = 300 if limpet.build == "compiled" else 20

    def add() -> None:
        with limpet.open(pool.url) as mine:
            cache = mine.cache("test")
            for _ in range(per):
                cache.incr("n")

    gather(add, add, add)
    assert pool.cache("test")["n"] == 3 * per


def test_pop_gives_an_entry_to_one(pools: Any) -> None:
    pool = pools(clients=16)
    cache = pool.cache("test")
    keys = range(300 if limpet.build == "compiled" else 30)
    cache.set_many({key: key for key in keys})

    def take() -> list[int]:
        with limpet.open(pool.url) as mine:
            shared = mine.cache("test")
            return [key for key in keys if shared.pop(key, None) is not None]

    taken = gather(take, take, take)
    assert sorted(key for some in taken for key in some) == list(keys)
    assert len(cache) == 0
    assert cache.pop("k", 7) == 7
    with pytest.raises(KeyError):
        cache.pop("k")


def test_many_at_once(cache: Any) -> None:
    cache.set_many({key: -key for key in range(100)}, ttl=1)
    assert cache.get_many(range(50, 150)) == {key: -key for key in range(50, 100)}
    assert cache.delete_many(range(90, 110)) == 10
    assert len(cache) == 90
    wait(cache, 1000)
    assert cache.get_many(range(100)) == {}


def test_tags_are_invalidated_at_once(cache: Any) -> None:
    cache.set("a", 1, tags=["user:1", "pages"])
    cache.set("b", 2, tags=["user:2", "pages"])
    cache.set("c", 3)
    cache.invalidate("user:1")
    assert sorted(cache) == ["b", "c"]
    cache.set("a", 4, tags=["user:1"])
    assert cache["a"] == 4
    cache.invalidate("pages")
    assert sorted(cache) == ["a", "c"]
    cache.clear()
    assert len(cache) == 0
    assert not cache
    assert cache.stats()["items"] == 3
    cache["c"] = 5
    assert dict(cache) == {"c": 5}
    assert cache.expire() == 2
    sound(cache.store)


@pytest.mark.parametrize("tags", ["user", b"user", [7], ["a", None]])
def test_tags_that_are_no_list_of_texts_are_refused(cache: Any, tags: Any) -> None:
    with pytest.raises(limpet.ParameterError, match="tag"):
        cache.set("k", 1, tags=tags)
    assert "k" not in cache
    with pytest.raises(limpet.ParameterError, match="tag"):
        cache.invalidate(["user"])


def test_memoize_refuses_a_text_as_tags(cache: Any) -> None:
    with pytest.raises(limpet.ParameterError, match=r"such as \['user'\]"):
        cache.memoize(tags="user")


def test_entry_may_live_for_years_unless_it_slides(cache: Any) -> None:
    year = 365 * 86_400
    cache.set("k", 1, ttl=year)
    assert year - 10 < cache.expires_in("k") <= year
    assert cache["k"] == 1
    for how in ({"ttl": 101 * 366 * 86_400}, {"ttl": year, "slide": True}, {"stale": year}):
        with pytest.raises(limpet.ParameterError, match="is at most"):
            cache.set("k", 2, **how)


def test_touch_without_a_time_is_refused_by_a_cache_that_has_none(pools: Any) -> None:
    pool = pools(node_size="8MiB")
    cache = pool.cache("c")
    cache.set("k", 1, ttl=1)
    with pytest.raises(limpet.ParameterError, match="give touch one"):
        cache.touch("k")
    assert cache.expires_in("k") <= 1
    assert cache.touch("k", 0)
    assert cache.expires_in("k") is None
    usual = pool.cache("usual", ttl=5)
    usual.set("k", 1, ttl=0.01)
    assert usual.touch("k")
    assert 4 < usual.expires_in("k") <= 5


def test_cas_with_a_ttl_keeps_tags_staleness_and_sliding(pools: Any) -> None:
    pool = clocked(pools)
    cache = pool.cache("c")
    for slide in (False, True):
        cache.set("k", 1, ttl=1, slide=slide, stale=3, tags=["a"])
        assert cache.cas("k", 2, cache.gets("k")[1], ttl=8)
        assert 7 < cache.expires_in("k") <= 8
        pool.sleep_ms(5000)
        assert cache["k"] == 2
        assert cache.expires_in("k") <= (8 if slide else 3)
        assert (cache.expires_in("k") > 7) == slide
        pool.sleep_ms(9000 if slide else 4000)
        assert cache.get("k") is None
        assert cache.get_or_compute("k", lambda: cache.get_or_compute("k", lambda: 0)) == 2
        cache.set("k", 1, ttl=1, slide=slide, tags=["a"])
        assert cache.cas("k", 2, cache.gets("k")[1], ttl=0)
        assert cache.expires_in("k") is None
        pool.sleep_ms(5000)
        assert cache["k"] == 2
        assert cache.expires_in("k") is None
        cache.invalidate("a")
        assert "k" not in cache


def test_numbers_and_tokens_that_are_wrong_are_refused(cache: Any) -> None:
    cache["i"] = 1
    with pytest.raises(TypeError, match="float"):
        cache.incr("i", 1.5)
    with pytest.raises(TypeError, match="float"):
        cache.incr("new", initial=1.5)
    assert cache.incr("i") == 2
    for token in (None, -5, 1 << 64, "t"):
        with pytest.raises(limpet.ParameterError, match="token must be a whole number"):
            cache.cas("i", 3, token)
    for token in (-5, "t"):
        with pytest.raises(limpet.ParameterError, match="token must be a whole number"):
            cache.delete("i", token)
    assert not cache.delete("i", cache.gets("missing")[1])
    assert cache["i"] == 2


def test_key_that_cannot_be_there_is_not(cache: Any) -> None:
    cache["k"] = 1
    for key in (object(), "x" * 100_000, ("k", object())):
        assert key not in cache
    with pytest.raises(TypeError):
        [] in cache  # noqa: B015


def test_tags_that_are_too_many_are_refused(cache: Any) -> None:
    with pytest.raises(limpet.ParameterError, match="5 tags"):
        cache.set("k", 1, tags=[f"t{n}" for n in range(6)])
    assert tags_word(["a"]) == tag_number("a") > 0


def test_value_larger_than_the_cache_is_refused(pools: Any) -> None:
    cache = pools().cache("test", max_bytes=100_000)
    cache["k"] = b"1"
    with pytest.raises(limpet.ValueTooLarge, match="max_bytes=100000"):
        cache["k"] = bytes(100_000)
    assert cache["k"] == b"1"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_items": 0}, "max_items"),
        ({"max_bytes": 10}, "max_bytes"),
        ({"max_bytes": "1GiB"}, "more than the pool's memory"),
        ({"ttl": -1}, "ttl is a time in seconds, and cannot be negative"),
        ({"policy": "best"}, "clock, fifo"),
    ],
)
def test_parameters_that_cannot_be(pools: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(limpet.ParameterError, match=says):
        pools().cache("test", **given)


@pytest.mark.either_build("thousands of evictions by the same lines")
def test_what_is_read_stays_and_a_scan_goes(pools: Any) -> None:
    cache = pools().cache("test", max_items=200)
    hot = range(100)
    for key in hot:
        cache[key] = key
    for number in range(1000, 3000):
        cache[number] = number
        for key in random.Random(number).sample(hot, 3):
            cache.get(key)
    assert len(cache.get_many(hot)) >= 90


def test_a_fifo_counts_no_hits(pools: Any) -> None:
    cache = pools().cache("test", max_items=200, policy="fifo")
    cache["k"] = 1
    before = cache.store.stats()["cas"]
    for _ in range(10):
        assert cache["k"] == 1
    assert cache.store.stats()["cas"] == before


def test_counts_are_of_all_processes(pools: Any) -> None:
    pool = pools(clients=8)
    cache = pool.cache("test", max_items=10)
    cache["k"] = 1

    def use() -> dict[str, int]:
        with limpet.open(pool.url) as mine:
            other = mine.cache("test")
            other.get("k")
            other.get("no")
            return dict(other.stats(own=True))

    own = gather(use)[0]
    assert (own["hits"], own["misses"]) == (1, 1)
    cache.get("k")
    stats = cache.stats()
    assert (stats["hits"], stats["misses"], stats["sets"]) == (2, 1, 1)
    assert stats["items"] == 1


def test_dropped_cache_says_so(pools: Any) -> None:
    pool = pools()
    cache = pool.cache("test")
    cache["k"] = 1
    pool.drop("test")
    with pytest.raises(limpet.StoreDropped):
        cache.get("k")
    assert pool.audit()["leaked"] == 0


def test_stats_count_what_was_asked_of_the_cache(pools: Any) -> None:
    """Each request is a hit or a miss; a value that is stored is a set."""
    pool = clocked(pools)
    cache = pool.cache("test")

    def counts() -> tuple[int, ...]:
        found = cache.stats()
        return tuple(found[name] for name in ("hits", "misses", "sets", "computations", "deletes"))

    @cache.memoize(ttl=1, stale=1)
    def square(number: int) -> int:
        return number * number

    for number in range(120):
        assert square(number % 2) in (0, 1)
    assert counts() == (118, 2, 2, 2, 0)
    with cache.lock("lock"):
        assert cache.get_or_compute("k", lambda: 1, none_ttl=0) == 1
        assert cache.get("k") == 1
    assert counts() == (119, 3, 3, 3, 0)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_compute("other", lambda: 1 // 0)
    del cache["k"]
    assert counts() == (119, 4, 3, 3, 1)
    pool.sleep_ms(1500)
    key = next(iter(cache.store))
    flight = cache.store.begin_flight(key, 0, 1000)
    assert flight[0] != LANDED
    call = Computation(cache.store, key, key, 1000)
    assert cache.flights.board(call).value is not None  # a stale one, as another caller computes
    assert counts()[:2] == (120, 4)
    cache.store.abandon_flight(key, flight[3])


def test_stats_have_the_age_of_evicted_entries(pools: Any) -> None:
    pool = clocked(pools)
    cache = pool.cache("test", max_items=10)
    for number in range(10):
        cache[number] = number
    assert cache.stats()["evicted_age_s"] == 0
    pool.sleep_ms(5000)
    for number in range(10, 20):
        cache[number] = number
    assert cache.stats()["evicted_age_s"] == 5
