"""`get_or_compute` and `memoize`: one process computes, also after kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kit.clocks import clocked
from kit.cuts import Lines
from kit.processes import end, fork, gather, start
from kit.stores import sound

import limpet
from limpet.stores.cache.flight import earliness
from limpet.stores.cache.layout import EARLY_SHIFT, LANDED, MINE, OTHERS, UNDECIDED, VOID, pilot_of
from limpet.stores.cache.store import CacheStore
from limpet.stores.cache.validity import Terms


def noted(path: Path, value: Any, pause_s: float = 0.05) -> Any:
    """A function that takes a while, and notes each call in a file."""

    def compute() -> Any:
        with path.open("a") as file:
            file.write("x")
        time.sleep(pause_s)
        return value

    return compute


def calls(path: Path) -> int:
    return len(path.read_text()) if path.exists() else 0


def test_eight_callers_compute_once(pools: Any, tmp_path: Path) -> None:
    pool, log = pools(clients=16), tmp_path / "calls"
    pool.cache("test")

    def call() -> Any:
        with limpet.open(pool.url) as mine:
            return mine.cache("test").get_or_compute("k", noted(log, [1, 2], 0.3))

    assert gather(*[call] * 8) == [[1, 2]] * 8
    assert calls(log) == 1
    assert pool.cache("test").stats()["computations"] == 1


def test_threads_of_a_process_compute_once(pools: Any, tmp_path: Path) -> None:
    cache, log = pools().cache("test"), tmp_path / "calls"
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get_or_compute("k", noted(log, 1, 0.1))))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 5
    assert calls(log) == 1


def test_killed_computer_is_taken_over_at_once(pools: Any, tmp_path: Path) -> None:
    pool, log = pools(clients=16, lease=100), tmp_path / "calls"
    cache = pool.cache("test")

    def hang() -> None:
        with limpet.open(pool.url) as mine:
            mine.cache("test").get_or_compute("k", noted(log, "never", 60), patience=100)

    pid = fork(hang)
    try:
        deadline = time.monotonic() + 60
        while not calls(log) and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        began = time.monotonic()
        assert cache.get_or_compute("k", lambda: "mine", patience=100) == "mine"
        assert time.monotonic() - began < 60  # neither a lease nor `patience` is waited for
    finally:
        end(pid)
    sound(cache.store)


def test_waiter_takes_over_while_it_waits(pools: Any, tmp_path: Path) -> None:
    pool, log = pools(clients=16), tmp_path / "calls"
    cache = pool.cache("test")

    def hang() -> None:
        with limpet.open(pool.url) as mine:
            mine.cache("test").get_or_compute("k", noted(log, "never", 60))

    pid = fork(hang)
    try:
        deadline = time.monotonic() + 30
        while not calls(log) and time.monotonic() < deadline:
            time.sleep(0.005)
        timer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
        timer.start()
        reaper = threading.Thread(target=os.waitpid, args=(pid, 0))
        reaper.start()
        assert cache.get_or_compute("k", lambda: "mine") == "mine"
        timer.join()
        reaper.join()
    finally:
        end(pid)


def test_a_flight_that_is_not_the_own_is_not_taken_over(pools: Any) -> None:
    """The known-bad variant: a caller that believes the other client dead computes twice."""
    pool = pools(clients=16)
    other = pools.again(pool).cache("test").store
    mine = pool.cache("test").store
    how, _, _, late = other.begin_flight(b"k", 0, 1000)
    assert (how, pilot_of(late)) == (MINE, other.client.ident)
    assert mine.begin_flight(b"k", 0, 1000) == (OTHERS, None, 0, late)
    how, _, _, flight = mine.begin_flight(b"k", late, 1000)  # what a wrong verdict would do
    assert how == MINE
    assert not other.finish_flight(b"k", b"late", Terms(flight=late))
    assert mine.finish_flight(b"k", b"value", Terms(flight=flight))
    assert mine.get(b"k") == b"value"


class Paused:
    """`get_or_compute` of "k" in a thread, which stands within its computation until it ends."""

    def __init__(self, cache: Any, value: str, error: type[Exception] | None = None) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.error = error
        self.thread = threading.Thread(target=self._call, args=(cache, value))
        self.thread.start()
        assert self.begun.wait(30)

    def _call(self, cache: Any, value: str) -> None:
        with contextlib.suppress(ZeroDivisionError):
            cache.get_or_compute("k", lambda: self._compute(value))

    def _compute(self, value: str) -> str:
        self.begun.set()
        assert self.may_end.wait(30)
        if self.error:
            raise self.error
        return value

    def end(self) -> None:
        self.may_end.set()
        self.thread.join()


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_thread_whose_flight_was_cancelled_leaves_that_of_another(
    pools: Any, error: type[Exception] | None
) -> None:
    cache = pools(clients=8).cache("test")
    first = Paused(cache, "old", error)
    cache.delete("k")
    second = Paused(cache, "new")
    first.end()
    assert cache.get("k") is None
    assert cache.store.flight_of(cache.codec.encode_key("k"))
    second.end()
    assert cache["k"] == "new"
    sound(cache.store)


def test_task_whose_flight_was_cancelled_leaves_that_of_another(pools: Any) -> None:
    cache = pools(clients=8).cache("test")

    async def main() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def old() -> str:
            begun.set()
            await may_end.wait()
            return "old"

        async def new() -> str:
            may_end.set()
            await first
            return "new"

        first = asyncio.ensure_future(cache.get_or_compute_async("k", old))
        await begun.wait()
        cache.delete("k")
        assert await cache.get_or_compute_async("k", new) == "new"

    asyncio.run(main())
    assert cache["k"] == "new"


def test_exception_goes_to_the_caller_and_the_next_one_computes(pools: Any) -> None:
    cache = pools().cache("test")

    def fails() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.get_or_compute("k", fails)
    assert "k" not in cache
    assert cache.get_or_compute("k", lambda: 7) == 7
    assert cache.stats()["items"] == 1


def test_stale_value_is_served_while_another_is_computed(pools: Any) -> None:
    pool = clocked(pools, clients=8)
    cache = pool.cache("test")
    assert cache.get_or_compute("k", lambda: "old", ttl=1, stale=5) == "old"
    pool.sleep_ms(1500)
    assert cache.get("k") is None
    seen = []

    def compute() -> str:
        seen.append(cache.get_or_compute("k", lambda: "not called"))
        return "new"

    assert cache.get_or_compute("k", compute, ttl=1) == "new"
    assert seen == ["old"]
    assert cache["k"] == "new"


@pytest.mark.parametrize("how", ["delete", "pop", "prefix"])
def test_stale_value_that_was_deleted_is_not_served(pools: Any, how: str) -> None:
    pool = clocked(pools, clients=8)
    cache = pool.cache("test")
    cache.set("k", "old", ttl=1, stale=100)
    pool.sleep_ms(1500)
    if how == "delete":
        assert not cache.delete("k")
    elif how == "pop":
        assert cache.pop("k", None) is None
    else:
        assert cache.delete_prefix("k") == 0
    assert cache.store.begin_flight(cache.codec.encode_key("k"), 0, 1000)[:2] == (MINE, None)


def test_value_that_is_too_stale_is_computed(pools: Any) -> None:
    pool = clocked(pools)
    cache = pool.cache("test")
    cache.get_or_compute("k", lambda: "old", ttl=1, stale=0.5)
    pool.sleep_ms(1500)
    assert cache.get_or_compute("k", lambda: "new") == "new"


def test_none_is_kept_for_as_long_as_it_is_told(pools: Any) -> None:
    pool = clocked(pools)
    cache, made = pool.cache("test"), []

    def nothing() -> None:
        made.append(1)

    for _ in range(3):
        assert cache.get_or_compute("k", nothing, ttl=10, none_ttl=0.1) is None
    assert len(made) == 1
    pool.sleep_ms(100)
    cache.get_or_compute("k", nothing, none_ttl=0)
    cache.get_or_compute("k", nothing, none_ttl=0)
    assert len(made) == 3
    assert cache.stats()["items"] == 0


@pytest.mark.parametrize("how", ["set", "delete", "pop", "prefix", "clear", "tag"])
def test_value_that_was_overtaken_is_not_kept(pools: Any, how: str) -> None:
    cache = pools().cache("test")

    def compute() -> str:
        if how == "set":
            cache["k"] = "set"
        elif how == "delete":
            cache.set("k", "there")
            del cache["k"]
        elif how == "pop":
            assert cache.pop("k", "none") == "none"
        elif how == "prefix":
            assert cache.delete_prefix("k") == 0
        elif how == "clear":
            cache.clear()
        else:
            cache.invalidate("tag")
        return "old"

    assert cache.get_or_compute("k", compute, tags=["tag"]) == "old"
    assert cache.get("k") == ("set" if how == "set" else None)
    sound(cache.store)


def test_caller_that_has_waited_long_computes_for_itself(pools: Any) -> None:
    pool = pools(clients=8)
    other = pools.again(pool).cache("test").store
    cache = pool.cache("test")
    name = cache.codec.encode_key("k")
    how, _, _, flight = other.begin_flight(name, 0, 60_000)
    assert how == MINE
    assert cache.get_or_compute("k", lambda: "mine", patience=0.05) == "mine"
    assert other.abandon_flight(name, flight)
    assert cache.get_or_compute("k", lambda: "now") == "now"


def test_memoized_function_is_called_once_for_its_arguments(pools: Any) -> None:
    cache, made = pools().cache("test"), []

    @cache.memoize(ttl=10)
    def add(a: int, b: int = 0) -> int:
        made.append((a, b))
        return a + b

    assert [add(1), add(1), add(1, b=2), add(1, b=2)] == [1, 1, 3, 3]
    assert made == [(1, 0), (1, 2)]
    assert add.forget(1)  # type: ignore[attr-defined]
    assert add(1) == 1
    assert len(made) == 3
    assert add.__name__ == "add"


def test_memoize_takes_a_key_function(pools: Any) -> None:
    cache, made = pools().cache("test", codec="json"), []

    @cache.memoize(key=lambda user: f"user:{user['id']}")
    def name(user: dict[str, Any]) -> str:
        made.append(1)
        return str(user["name"])

    assert name({"id": 1, "name": "a"}) == name({"id": 1, "name": "b"}) == "a"
    assert cache["user:1"] == "a"


class Scaled:
    """An object that is called, and has a method."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, n: int) -> int:
        return self.factor * n

    def twice(self, n: int) -> int:
        return 2 * self.factor * n


@pytest.mark.parametrize("codec", ["pickle", "json"])
def test_memoize_says_when_it_needs_a_key_function(pools: Any, codec: str) -> None:
    cache = pools().cache("test", codec=codec)
    with pytest.raises(limpet.ParameterError, match="give memoize a key="):
        cache.memoize()(Scaled(3))
    called = cache.memoize(key=lambda n: f"three:{n}")(Scaled(3))
    assert [called(2), called(2)] == [6, 6]
    twice: Any = cache.memoize()(Scaled.twice)
    with pytest.raises(TypeError, match=r"Scaled.twice make no key: .*Give memoize a key="):
        twice(Scaled(3), 2)
    keyed: Any = cache.memoize(key=lambda self, n: f"{self.factor}:{n}")(Scaled.twice)
    assert [keyed(Scaled(3), 2), keyed(Scaled(4), 2)] == [12, 16]


def test_memoize_refuses_a_key_that_is_no_function(pools: Any) -> None:
    key: Any = "report"
    with pytest.raises(TypeError, match="is a function that makes a key of the arguments"):
        pools().cache("test").memoize(key=key)


def test_memoize_leaves_a_type_error_of_the_function(pools: Any) -> None:
    @pools().cache("test").memoize()
    def fails(n: int) -> int:
        raise TypeError("its own")

    with pytest.raises(TypeError, match=r"^its own$"):
        fails(1)


def test_coroutines_compute_once_and_do_not_block(pools: Any) -> None:
    cache, made, ticks = pools().cache("test"), [], []

    @cache.memoize(ttl=10)
    async def slow(n: int) -> int:
        made.append(n)
        await asyncio.sleep(0.1)
        return 2 * n

    async def tick() -> None:
        for _ in range(10):
            ticks.append(1)
            await asyncio.sleep(0.005)

    async def main() -> list[Any]:
        return await asyncio.gather(*(slow(4) for _ in range(6)), tick())

    assert asyncio.run(main())[:6] == [8] * 6
    assert made == [4]
    assert len(ticks) == 10

    async def fails() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(cache.get_or_compute_async("e", fails))
    assert "e" not in cache


def test_placeholder_is_no_entry(pools: Any) -> None:
    cache = pools(clients=8).cache("test")
    store: CacheStore = cache.store
    name = cache.codec.encode_key("k")
    store.begin_flight(name, 0, 60_000)
    assert "k" not in cache
    assert len(cache) == 0
    assert not cache.delete("k")
    flight = store.begin_flight(name, 0, 60_000)[3]
    assert cache.add("k", 1)
    assert not store.finish_flight(name, cache.codec.encode(2), Terms(flight=flight))
    assert not store.finish_flight(name, cache.codec.encode(2), store.usual)
    assert cache["k"] == 1


def test_reader_that_is_late_does_not_take_a_placeholder_for_a_value(pools: Any) -> None:
    """It has found the placeholder, which is replaced before it looks whether it counts."""
    pool = pools(clients=8)
    store = pools.again(pool).cache("test").store
    reader = pool.cache("test").store
    flight = store.begin_flight(b"k", 0, 60_000)[3]
    reader.client.enter()
    try:
        assert reader.index.look_up(reader.place, b"k")
        assert store.finish_flight(b"k", b"value", Terms(flight=flight))
        assert reader.entries.state() == UNDECIDED
    finally:
        reader.client.leave()
    assert reader.get(b"k") == b"value"


def test_reader_that_is_late_heeds_the_tags_of_what_was_replaced(pools: Any) -> None:
    pool = pools(clients=8)
    cache = pools.again(pool).cache("test", codec="bytes")
    reader = pool.cache("test").store
    cache.set(b"k", b"old", tags=["tag"])
    reader.client.enter()
    try:
        assert reader.index.look_up(reader.place, b"k")
        cache.invalidate("tag")
        cache.set(b"k", b"new")
        assert reader.entries.state() == VOID
    finally:
        reader.client.leave()


def test_flight_of_a_stale_value_outlives_it(pools: Any) -> None:
    """While one client computes, the old value's time is over, and the cache is full of others."""
    pool = clocked(pools, clients=8)
    cache = pool.cache("test", max_items=20)
    name = cache.codec.encode_key("k")
    cache.set("k", "old", ttl=1, stale=1)
    pool.sleep_ms(1500)
    how, _, _, flight = cache.store.begin_flight(name, 0, 1000)
    assert how == MINE
    for number in range(100):
        cache[number] = number
    assert cache.store.begin_flight(name, 0, 1000)[:2] == (OTHERS, cache.codec.encode("old"))
    pool.sleep_ms(1000)
    for number in range(100):
        cache[number] = number
    assert cache.store.begin_flight(name, 0, 1000)[:2] == (OTHERS, None)
    assert cache.store.finish_flight(name, cache.codec.encode("new"), Terms(flight=flight))
    assert cache["k"] == "new"


def entry_that_took(cache: Any, pool: Any, ms: int) -> bytes:
    """The name of an entry with a deadline in 1 s, whose value took so long to compute."""
    name: bytes = cache.codec.encode_key("k")
    how, _, _, flight = cache.store.begin_flight(name, 0, 1000)
    assert how == MINE
    terms = Terms(1000, took=ms, flight=flight)
    assert cache.store.finish_flight(name, cache.codec.encode("old"), terms)
    return name


def test_one_caller_computes_before_the_deadline_and_others_have_the_value(pools: Any) -> None:
    pool = clocked(pools, clients=8)
    cache = pool.cache("test")
    name = entry_that_took(cache, pool, 100)
    early = 2 << EARLY_SHIFT  # twice the time of a computation
    pool.sleep_ms(700)
    assert cache.store.begin_flight(name, 0, 1000, early)[0] == LANDED
    pool.sleep_ms(200)
    assert cache.store.begin_flight(name, 0, 1000)[0] == LANDED
    how, _, _, flight = cache.store.begin_flight(name, 0, 1000, early)
    assert how == MINE
    assert cache.store.begin_flight(name, 0, 1000, early)[0] == LANDED
    assert cache["k"] == "old"
    assert cache.store.finish_flight(name, cache.codec.encode("new"), Terms(flight=flight))
    assert cache["k"] == "new"
    sound(cache.store)


def test_early_computation_that_is_given_up_or_killed_leaves_the_value(pools: Any) -> None:
    pool = clocked(pools, clients=8)
    cache = pool.cache("test")
    name = entry_that_took(cache, pool, 500)
    pool.sleep_ms(900)

    def fails() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.get_or_compute("k", fails, early=100.0)
    assert cache["k"] == "old"

    def die() -> None:
        cache.store.begin_flight(name, 0, 1000, 1 << 20)
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(fork(die), 0)
    assert cache.get_or_compute("k", fails, early=100.0) == "old"
    pool.sleep_ms(200)
    assert cache.get_or_compute("k", lambda: "new", early=1.0) == "new"
    sound(cache.store)


def test_early_is_drawn_with_the_mean_that_was_asked_for() -> None:
    assert earliness(0) == 0
    drawn = [earliness(2.0) / (1 << EARLY_SHIFT) for _ in range(20_000)]
    assert 1.9 < sum(drawn) / len(drawn) < 2.1


def test_value_that_is_larger_than_the_cache_is_returned_and_not_kept(pools: Any) -> None:
    cache = pools(clients=8).cache("test", max_bytes="64KiB")
    large = "x" * 100_000
    assert cache.get_or_compute("k", lambda: large) == large

    async def compute() -> str:
        return large

    assert asyncio.run(cache.get_or_compute_async("k", compute)) == large
    assert "k" not in cache
    assert cache.stats()["items"] == 0
    assert cache.get_or_compute("k", lambda: "small") == "small"


@pytest.mark.parametrize("how", [{"ttl": -1}, {"tags": "user"}, {"none_ttl": -1}, {"stale": "x"}])
def test_terms_that_are_wrong_are_refused_before_the_computation(pools: Any, how: Any) -> None:
    cache, made = pools(clients=8).cache("test"), []
    with pytest.raises(limpet.ParameterError):
        cache.get_or_compute("k", lambda: made.append(1), **how)
    assert not made
    assert cache.get_or_compute("k", lambda: 1) == 1


def test_early_must_not_be_negative(pools: Any) -> None:
    with pytest.raises(limpet.ParameterError):
        pools().cache("test").get_or_compute("k", lambda: 1, early=-1.0)


# ---- forks, handlers that raise, own keys --------------------------------------------------------


@pytest.mark.parametrize("ends", ["returns", "raises", "exits"])
def test_computation_of_a_parent_goes_on_beside_a_child_forked_in_it(pools: Any, ends: str) -> None:
    pool = pools(clients=16)
    cache = pool.cache("test")
    other = pools.again(pool).cache("test").store
    name = cache.codec.encode_key("k")

    def compute() -> str:
        pid = os.fork()
        if pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert other.begin_flight(name, 0, 60_000)[0] == OTHERS
            return "the parent's"
        if ends == "exits":
            os._exit(7)
        if ends == "raises":
            raise ZeroDivisionError
        return "the child's"

    me = os.getpid()
    found: Any = None
    try:
        found = cache.get_or_compute("k", compute)
    except ZeroDivisionError:
        assert os.getpid() != me
    finally:
        if os.getpid() != me:
            os._exit(7 if found in (None, "the child's") else 1)
    assert found == cache["k"] == "the parent's"


def test_child_that_is_forked_in_a_computation_waits_for_its_parents(pools: Any) -> None:
    """It is no computation of its own that it asks for."""
    cache = pools(clients=16).cache("test")
    asked: list[tuple[int, Any]] = []

    def compute() -> int:
        asked.append(start(lambda: cache.get_or_compute("k", lambda: 2)))
        return 1

    assert cache.get_or_compute("k", compute) == 1
    ((pid, out),) = asked
    with out:
        assert pickle.loads(out.read()) == 1
    assert os.waitpid(pid, 0)[1] == 0


def test_computation_that_asks_for_its_own_key_is_told_at_once(pools: Any) -> None:
    cache = pools().cache("test")
    again = cache.store.pool.cache("test")

    def own() -> Any:
        return again.get_or_compute("k", own)

    def around() -> Any:
        return cache.get_or_compute("other", own)

    for compute in (own, around):
        with pytest.raises(limpet.ReentrantUse, match="computation of 'k' asks the cache 'test'"):
            cache.get_or_compute("k", compute)
    assert cache.get_or_compute("k", lambda: cache.get_or_compute("other", lambda: 1)) == 1

    @cache.memoize()
    def sums(number: int) -> int:
        return number and number + sums(number - (number != 3))

    assert sums(2) == 3
    with pytest.raises(limpet.ReentrantUse, match="sums"):
        sums(4)
    assert not cache.store.flight_of(cache.codec.encode_key("k"))


def test_coroutine_that_asks_for_its_own_key_is_told_at_once(pools: Any) -> None:
    """Also from a task that it has started; one that is left behind may ask afterwards."""
    cache = pools().cache("test")
    left: list[asyncio.Task[Any]] = []

    async def own() -> Any:
        return await asyncio.wait_for(cache.get_or_compute_async("k", own), 50)

    async def one() -> int:
        return 1

    async def later(ended: asyncio.Event) -> Any:
        await ended.wait()
        flight = cache.store.begin_flight(cache.codec.encode_key("k"), 0, 200)
        assert flight[0] == MINE
        return await cache.get_or_compute_async("k", one, patience=0.001)

    async def leave(ended: asyncio.Event) -> int:
        left.append(asyncio.ensure_future(later(ended)))
        return 2

    async def ask() -> None:
        with pytest.raises(limpet.ReentrantUse, match="computation of 'k'"):
            await cache.get_or_compute_async("k", own)
        ended = asyncio.Event()
        assert await cache.get_or_compute_async("k", lambda: leave(ended)) == 2
        cache.delete("k")
        ended.set()
        assert await left[0] == 1

    asyncio.run(ask())


def test_handler_that_raises_leaves_no_computation_to_the_living(pools: Any) -> None:
    """At each line of Python between the caller and the word of the flight."""
    cache = pools().cache("test")
    name = cache.codec.encode_key("k")
    number, cut = 0, True
    while cut:
        number += 1
        lines = Lines(("stores/cache/flight.py", "stores/cache/cache.py"), number)
        cache.delete("k")
        with lines.watched():
            cache.get_or_compute("k", lambda: 1)
        cut = lines.cut
        assert not cache.store.flight_of(name), f"line {number}"
    assert number > 20
    assert cache.get_or_compute("k", lambda: 2) == 1


@pytest.mark.parametrize("gone", ["class", "module"])
def test_value_whose_class_is_gone_is_computed(
    pools: Any, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """Also one that is stale, while another caller computes: it is waited for."""
    pool = clocked(pools)
    cache = pool.cache("test")
    module = ModuleType("module_of_an_earlier_version")
    kind = module.Kind = type("Kind", (), {"__module__": module.__name__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cache.set("k", kind())
    cache.set("stale", kind(), ttl=1, stale=60)
    if gone == "class":
        del module.Kind  # type: ignore[attr-defined]
    else:
        monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises((AttributeError, ImportError)):
        cache.get("k")
    assert cache.get_or_compute("k", lambda: 1) == cache["k"] == 1
    pool.sleep_ms(2000)
    name = cache.codec.encode_key("stale")
    how, _, _, flight = cache.store.begin_flight(name, 0, 1000)
    assert how == MINE
    assert cache.get_or_compute("stale", lambda: 2, patience=0.02) == 2
    assert cache.store.finish_flight(name, cache.codec.encode(3), Terms(flight=flight))
    assert asyncio.run(cache.get_or_compute_async("stale", asyncio.sleep)) == 3  # type: ignore[arg-type]
