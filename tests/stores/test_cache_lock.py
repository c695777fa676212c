"""Steps of a cache that adapters need: a lock of a key, conditional deletes, prefixes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kit.processes import child, gather

import limpet

pytestmark = pytest.mark.exhaustive_in_pure("repetitions of the cache's own", quick=["test_lock*"])


@pytest.fixture
def cache(pools: Any) -> Any:
    return pools(node_size="2MiB", clients=16).cache("c", max_items=200)


def test_lock_lets_one_in_of_all_processes(cache: Any) -> None:
    cache["n"] = 0

    def work() -> Any:
        for _ in range(30):
            with cache.lock("k"):
                cache["n"] = cache["n"] + 1
        return True

    gather(work, work, work)
    assert cache["n"] == 90


def test_lock_of_a_dead_process_is_free(cache: Any) -> None:
    lock = cache.lock("k")
    with child(take=lambda: cache.lock("k").acquire()) as other:
        assert other.do("take")
        assert lock.locked()
        assert not lock.acquire(blocking=False)
        assert not lock.acquire(timeout=0.01)
        other.kill()
        assert not lock.locked()
        assert lock.acquire(blocking=False)
    lock.release()
    with pytest.raises(limpet.ParameterError, match="not held by this process"):
        lock.release()


def test_lock_is_over_after_its_ttl(cache: Any) -> None:
    first = cache.lock("k", ttl=0.02)
    assert first.acquire()
    time.sleep(0.03)
    assert not first.locked()
    assert cache.lock("k").acquire(blocking=False)


def test_lock_whose_time_is_over_frees_no_other_one(cache: Any) -> None:
    first, second = cache.lock("k", ttl=0.02), cache.lock("k")
    assert first.acquire()
    time.sleep(0.03)
    assert second.acquire(blocking=False)
    with pytest.raises(limpet.ParameterError, match=r"ttl of 0\.02 s may be over"):
        first.release()
    assert second.locked()
    second.release()


def test_thread_frees_its_own_lock_or_else_that_of_another_thread(cache: Any) -> None:
    lock = cache.lock("k", ttl=3.0)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lock.acquire).result()
        lock.release()
        assert not lock.locked()
        assert lock.acquire()
        time.sleep(3.01)
        assert other.submit(lock.acquire).result()
        assert not lock.end()
        assert lock.locked()
        other.submit(lock.release).result()
    assert not lock.locked()


def test_locks_are_no_entries_to_walk_over(cache: Any) -> None:
    with cache.lock("k") as lock:
        assert cache.delete_prefix("") == 0
        with pytest.raises(KeyError):
            cache.popitem()
        assert lock.locked()


def test_lock_is_no_entry(cache: Any) -> None:
    cache["k"] = 1
    with cache.lock("k"):
        assert list(cache) == ["k"]
        assert len(cache) == 1
        assert cache.get_or_compute("k", lambda: 2) == 1
    assert cache.stats()["items"] == 1
    cache.check()


def test_delete_with_a_token_takes_what_gets_found(cache: Any) -> None:
    cache["k"] = 1
    _, token = cache.gets("k")
    cache["k"] = 2
    assert not cache.delete("k", token)
    _, token = cache.gets("k")
    assert cache.delete("k", token)
    assert not cache.delete("k", token)


def test_cas_with_a_ttl_sets_the_deadline(cache: Any) -> None:
    cache.set("k", 1, ttl=1)
    _, token = cache.gets("k")
    assert cache.cas("k", 2, token, ttl=50)
    assert 40 < cache.expires_in("k") <= 50
    _, token = cache.gets("k")
    assert cache.cas("k", 3, token)
    assert 40 < cache.expires_in("k") <= 50


def test_delete_prefix_takes_text_or_bytes_that_begin_so(cache: Any) -> None:
    for key in ("a:1", "a:2", "b:1", b"a:1", 7):
        cache[key] = key
    assert cache.delete_prefix("a:") == 2
    assert set(cache) == {"b:1", b"a:1", 7}
    assert cache.delete_prefix(b"a:") == 1
    assert cache.delete_prefix("a:") == 0


def test_lock_of_a_parent_is_not_that_of_a_forked_child(cache: Any) -> None:
    """Also when the child has locks of its own, of that object."""
    lock, other = cache.lock("k"), cache.lock("k")

    def frees() -> bool:
        with pytest.raises(limpet.ParameterError, match="not held by this process"):
            lock.release()
        return bool(lock.locked() and not lock.end() and not lock.acquire(blocking=False))

    def unwinds() -> bool:
        with pytest.raises(limpet.ParameterError, match="not held by this process"):
            lock.__exit__(None, None, None)
        return bool(lock.locked())

    def has_it() -> bool:
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(lock.acquire, False).result()
        lock.release()
        return bool(not lock.locked())

    with lock:
        assert gather(frees, unwinds, lambda: None) == [True, True, None]
        assert lock.locked()
        assert not other.acquire(blocking=False)
    lock.acquire()
    cache.clear()  # frees it, but the lock does not know
    assert gather(has_it) == [True]
