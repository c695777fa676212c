"""The shared queue: its interface, and what kills and stops leave."""

from __future__ import annotations

import os
import pickle
import queue
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kit.endpoints import Interrupted, WatchedPool
from kit.processes import children, dies_at, gather, start
from kit.stores import nothing_leaked

import limpet
from limpet.stores.channels.atomic_var import AtomicVar
from limpet.stores.channels.layout import CLAIMED, SLEEPERS
from limpet.stores.channels.queue.layout import OWNER_SHIFT, SIZE, SKIPPED, STATE_MASK, WRITING
from limpet.stores.channels.shared_region import SharedRegion

COMPILED = limpet.build == "compiled"


def everything(q: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append(q.get_nowait())
        except queue.Empty:
            return found


# ---- the interface ------------------------------------------------------------------------------


def test_elements_of_all_sizes_come_in_order(pools: Any) -> None:
    pool = pools(nodes=2, node_size="4MiB")
    q = pool.queue("q", 8)
    items = [b"x" * size for size in (0, 1, 50, 90, 91, 92, 100, 5000, 300_000, 3)]
    for item in items[:8]:
        q.put(item)
    assert q.full()
    for place, item in enumerate(items):
        assert q.get() == item
        q.put(items[(place + 8) % len(items)])
    assert q.qsize() == 8
    assert len(everything(q)) == 8
    nothing_leaked(pool)


def test_one_that_is_too_large_or_finds_no_memory_is_refused(pools: Any) -> None:
    q = pools(node_size="2MiB").queue("q", 4)
    q.put("first")
    with pytest.raises(limpet.ValueTooLarge, match="bytes"):
        q.put(bytes(4 << 20))
    q.put(bytes(900_000))
    with pytest.raises(limpet.StoreFull):
        q.put_many([bytes(900_000), bytes(900_000)])
    assert q.get() == "first"
    assert all(len(item) == 900_000 for item in everything(q))


def test_error_of_a_full_pool_names_the_queue_and_what_is_kept(pools: Any) -> None:
    pool = pools(node_size="1MiB")
    store = pool.store("race", name="s", capacity=10)
    with pytest.raises(limpet.StoreFull, match="all for updates"):
        store.put_many([(b"%d" % number, bytes(2000)) for number in range(1000)])
    with pytest.raises(
        limpet.StoreFull, match="no memory for the channel 'jobs': node 0 has"
    ) as it:
        pool.queue("jobs", maxsize=200)
    assert pool.url in str(it.value)
    assert str(it.value).count(pool.url) == 1


def test_error_of_a_full_pool_says_who_has_each_block(pools: Any) -> None:
    """And speaks of what is kept only where something is."""
    pool = pools(nodes=3, node_size="256KiB")  # 12 blocks

    def fill(kind: str) -> None:
        for number in range(100):
            if kind == "array":
                pool.array(f"{number}", 30_000, "u1")
            elif kind == "queue":
                pool.queue("q").put(bytes(8000))
            else:
                pool.store(kind, name="s", capacity=10).put(b"%d" % number, bytes(8000))

    for kind, kept in (("swarm", True), ("race", False), ("queue", False), ("array", False)):
        with pytest.raises(limpet.StoreFull) as caught:
            fill(kind)
        said = str(caught.value)
        assert ("for updates, deletes and channels only" in said) is kept
        total = re.search(r"(\d+) of its (\d+) blocks of \d+ bytes are free(.*?)[.;]", said)
        assert total is not None
        others = re.findall(r"(\d+) (?:has|have|is|are) ", total[3])
        assert int(total[1]) + sum(map(int, others)) == int(total[2]) == pool.layout.block_count
        if kind in ("swarm", "race"):
            pool.drop("s")


def test_one_that_does_not_fit_into_the_pool_is_not_made_in_part(pools: Any) -> None:
    pool = pools(node_size="2MiB")
    with pytest.raises(limpet.ValueTooLarge, match="shorter"):
        pool.queue("q", 1_000_000)
    q = pool.queue("q", 10)
    q.put(1)
    assert q.get() == 1


@pytest.mark.parametrize(("codec", "item"), [("bytes", b"b"), ("json", {"a": [1]}), ("pickle", 1j)])
def test_codecs(pools: Any, codec: str, item: Any) -> None:
    pool = pools()
    q = pool.queue("q", codec=codec)
    q.put(item)
    assert q.get() == item
    with pytest.raises(limpet.StoreMismatch):
        pools.again(pool).queue("q", codec="bytes" if codec == "json" else "json")
    with pytest.raises(limpet.ParameterError):
        pool.queue("other", codec="none")


@pytest.mark.parametrize("bad", [{"maxsize": 0}, {"maxsize": -1}, {"item_size": 0}])
def test_impossible_parameters_are_refused(pools: Any, bad: dict[str, int]) -> None:
    with pytest.raises(limpet.ParameterError, match="a queue's"):
        pools().queue("q", **bad)


def test_batches(pools: Any) -> None:
    pool = pools()
    q = pool.queue("q", 150)
    q.put_many(range(150))
    with pytest.raises(queue.Full):
        q.put_many([1], timeout=0.01)
    assert q.get_many(100) == list(range(100))
    assert q.get_many(100) == list(range(100, 150))
    with pytest.raises(queue.Empty):
        q.get_many(5, block=False)
    with pytest.raises(limpet.ParameterError, match="limit"):
        q.get_many(0)


def test_a_queue_is_pickled_by_name(pools: Any) -> None:
    pool = pools()
    q = pool.queue("q", 4)
    q.put(7)
    other = pickle.loads(pickle.dumps(q))
    assert other.get() == 7
    other.pool.close()


def test_a_closed_handle_says_so_and_leaves_the_queue_as_it_is(pools: Any) -> None:
    pool = pools()
    q = pool.queue("q", 4)
    q.put(7)
    q.close()
    q.close()
    q.cancel_join_thread()
    q.join_thread()
    for call in (q.get, q.qsize, lambda: q.put(1)):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert pool.queue("q", 4).get() == 7


def test_removal_frees_large_elements_and_is_noticed(pools: Any) -> None:
    pool = pools(node_size="4MiB")
    q = pool.queue("q", 8)
    free = pool.audit()["reachable"]
    for _ in range(5):
        q.put(bytes(10_000))
    assert pool.audit()["reachable"] > free + 50_000
    pool.channels.remove("q")
    assert pool.audit()["reachable"] < free
    nothing_leaked(pool)
    with pytest.raises(limpet.ChannelRemoved):
        q.get()


def test_a_large_element_that_is_freed_by_a_removal_is_not_got(pools: Any) -> None:
    """The consumer has begun before the queue was removed."""
    pool = pools(node_size="4MiB")
    pool.queue("q", 2).put(bytes(10_000))
    q = pools.keep(WatchedPool.open(pool.url)).queue("q", 2)
    size = q.ring.slots.slot(0) + SIZE

    def remove(verb: str, address: int) -> None:
        if address == size:
            q.endpoint.after = None
            pool.channels.remove("q")

    q.endpoint.after = remove
    with pytest.raises(limpet.ChannelRemoved):
        q.get_nowait()
    nothing_leaked(pool)


def test_sleepers_are_woken(pools: Any) -> None:
    q = pools().queue("q", 1)

    def worker() -> list[int]:
        return [q.get() for _ in range(50)]

    def feeder() -> float:
        began = time.monotonic()
        for number in range(100):
            q.put(number)
        return time.monotonic() - began

    first, second, _ = gather(worker, worker, feeder)
    assert sorted(first + second) == list(range(100))
    assert first == sorted(first)
    assert second == sorted(second)


# ---- kills --------------------------------------------------------------------------------------


@pytest.mark.either_build("every step of the same lines", but=["0-*"])
@pytest.mark.exhaustive_in_pure("every step")
@pytest.mark.exhaustive("every step", quick=["0-*"])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_producer_killed_at_any_step(pools: Any, before: int, large: bool) -> None:
    """The queue is empty, in use, and such that the ring wraps and is full after it."""
    pool = pools(node_size="1MiB")
    q = pool.queue("q", 4, codec="bytes")
    word = b"doomed" * (300 if large else 1)
    fuse, running, seen = 0, True, set()
    while running:
        fuse += 7 if large else 1
        there = [b"%d" % number for number in range(before)]
        for item in there:
            q.put(item)
        running = dies_at(pool, fuse, lambda: q.put(word))
        if before == 3:
            assert q.get() == there.pop(0)
        q.put_nowait(b"next")
        found = everything(q)
        assert found in ([*there, b"next"], [*there, word, b"next"])
        seen.add(len(found) - len(there))
        q.put_many([word, b"1", b"2", word])
        assert everything(q) == [word, b"1", b"2", word]
        nothing_leaked(pool)
    assert seen == {1, 2}


@pytest.mark.exhaustive_in_pure("every step")
@pytest.mark.parametrize("large", [False, True])
def test_a_consumer_killed_at_any_step(pools: Any, large: bool) -> None:
    pool = pools(node_size="1MiB")
    q = pool.queue("q", 3, codec="bytes")
    there = [b"%d" % number * (2000 if large else 1) for number in range(3)]
    fuse, running, seen = 0, True, set()
    while running:
        fuse += 3 if large else 1
        q.put_many(there)
        running = dies_at(pool, fuse, q.get)
        found = everything(q)
        assert found in (there, there[1:])
        seen.add(len(found))
        q.put_many(there)
        assert everything(q) == there
        nothing_leaked(pool)
    assert seen == {2, 3}


def test_the_only_place_is_used_again_after_its_producer_was_killed(pools: Any) -> None:
    pool = pools()
    q = pool.queue("q", 1, codec="bytes")
    fuse = 0
    while dies_at(pool, fuse + 1, lambda: q.put(b"doomed")):
        fuse += 1
        if not q.empty():
            assert q.get() == b"doomed"
        q.put(b"next", timeout=5)
        assert q.get() == b"next"
    assert fuse > 3


def slots(q: Any) -> list[int]:
    return [q.endpoint.load(q.ring.slots.slot(number)) & STATE_MASK for number in range(q.maxsize)]


def hold_in_writing(pool: Any, q: Any, large: bytes) -> int:
    """Stop a child in the midst of a put: it puts time and again until it is met there."""

    def child() -> None:
        while True:
            q.put(large)
            q.get()

    pid, out = start(child, 60)
    out.close()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        if WRITING in slots(q):
            return pid
        os.kill(pid, signal.SIGCONT)
        time.sleep(random.random() * 1e-3)
    raise AssertionError("never met in the midst of a put")


@pytest.mark.skipif(not COMPILED, reason="the windows are hit by chance")
def test_nobody_waits_for_a_stopped_producer_and_it_goes_on_later(pools: Any) -> None:
    pool = pools(node_size="8MiB", fence="wait")
    q = pool.queue("q", 4, item_size=400_000, codec="bytes")
    pid = hold_in_writing(pool, q, b"L" * 400_000)
    try:
        before = len(everything(q))
        assert before <= 1
        for number in range(20):
            q.put(b"%d" % number, timeout=5)
            assert q.get(timeout=5) == b"%d" % number
        q.put_many([b"1", b"2", b"3"], timeout=5)
        with pytest.raises(queue.Full):
            q.put_nowait(b"4")
        assert everything(q) == [b"1", b"2", b"3"]
        os.kill(pid, signal.SIGCONT)
        for _ in range(100):
            q.put(b"5" * 400_000)
            assert set(q.get(timeout=5)) in (set(b"5"), set(b"L"))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert set(map(len, everything(q))) <= {400_000}
    q.put_many([b"1", b"2", b"3", b"4"], timeout=5)
    assert everything(q) == [b"1", b"2", b"3", b"4"]
    nothing_leaked(pool)


def test_producers_and_consumers_killed_at_random(pools: Any) -> None:
    """Every element whose put returned is got once; but one that a killed consumer had."""
    pool = pools(node_size="16MiB")
    size = 100_000
    q = pool.queue("q", 16)
    put = pool.channels.open(SharedRegion, "put", size=8 * size, participants=6)
    done = [put.part(row) for row in range(6)]
    over = pool.channels.open(AtomicVar, "over")

    def producer(who: int) -> Callable[[], None]:
        def work() -> None:
            for number in range(size):
                q.put((who, number, "L" * (500 if number % 50 == 0 else 1)))
                pool.endpoint.store(done[who], number + 1)

        return work

    def consumer(who: int) -> Callable[[], None]:
        def work() -> None:
            at = done[who]
            number = 0
            while number < size - 1:
                try:
                    name, item, _ = q.get(timeout=0.05)
                except queue.Empty:
                    if over.load():
                        return
                    continue
                number += 1
                pool.endpoint.store(at + 8 * number, 1 << 63 | name << 32 | item)
                pool.endpoint.store(at, number)

        return work

    works = [producer(who) for who in range(3)] + [consumer(3 + who) for who in range(3)]
    rng = random.Random(5)
    with children(works, 60) as started:
        while not all(pool.endpoint.load(at) for at in done):
            time.sleep(0.001)
        for victim in (0, 3, 1, 4):
            time.sleep(rng.uniform(0.02, 0.1))
            os.kill(started[victim][0], signal.SIGKILL)
            os.waitpid(started[victim][0], 0)
        time.sleep(0.05)
        os.kill(started[2][0], signal.SIGKILL)
        os.waitpid(started[2][0], 0)
        over.swap(1)
        assert os.waitstatus_to_exitcode(os.waitpid(started[5][0], 0)[1]) == 0
    got: list[tuple[int, int]] = []
    for who in (3, 4, 5):
        # A consumer notes an element, and then that it has.
        count = pool.endpoint.load(done[who]) + 1
        words = [pool.endpoint.load(done[who] + 8 * n) for n in range(1, count + 1)]
        mine = [(word >> 32 & 0xFF, word & 0xFFFF_FFFF) for word in words if word]
        for name in range(3):
            of_one = [number for other, number in mine if other == name]
            assert of_one == sorted(of_one)
        got += mine
    got += [(name, number) for name, number, _ in everything(q)]
    assert len(got) == len(set(got))
    missing = 0
    for name in range(3):
        returned = pool.endpoint.load(done[name])
        numbers = {number for other, number in got if other == name}
        assert numbers <= set(range(returned + 1))
        missing += len(set(range(returned)) - numbers)
    assert missing <= 2
    nothing_leaked(pool)


def test_who_claims_the_row_of_a_laggard_is_not_taken_for_it(pools: Any) -> None:
    """The last place is a stopped producer's, which dies, and is succeeded, while we look."""
    pool = pools()
    other = pools.again(pool)
    ident = other.client_id
    theirs = other.queue("q", 1)
    q = pools.keep(WatchedPool.open(pool.url)).queue("q", 1)
    q.put(1)
    q.get()
    theirs.endpoint.store(theirs.ring.slots.slot(0), theirs.own_row + 1 << OWNER_SHIFT | SKIPPED)
    seat = theirs.seats + 8 * theirs.own_row
    looks = []

    def claim(verb: str, address: int) -> None:
        """After the second of three looks, before it sleeps."""
        if address == seat:
            looks.append(verb)
            if len(looks) % 3 == 2 and pool.endpoint.load(q.room.address) & SLEEPERS:
                pool.endpoint.store(seat, ident | CLAIMED)

    q.endpoint.after = claim
    with other.client:
        q.put(2, timeout=5)
    assert q.get() == 2
    assert len(looks) > 3


def test_place_of_a_put_that_ended_with_an_error_is_used_though_its_process_does_nothing(
    pools: Any,
) -> None:
    """A signal handler has raised while the only place was written to."""
    pool = pools()
    theirs = pools.keep(WatchedPool.open(pool.url)).queue("q", 1)
    q = pool.queue("q", 1)
    theirs.put(0)
    assert q.get() == 0

    def interrupt(verb: str, address: int) -> None:
        if verb == "cas" and slots(q) == [WRITING]:
            raise Interrupted

    theirs.endpoint.before = interrupt
    with pytest.raises(Interrupted):
        theirs.put(1)
    theirs.endpoint.before = None
    assert slots(q) == [WRITING]
    q.put(2, timeout=0)
    assert q.get() == 2
    assert pool.events() == []
    theirs.put(3)
    assert q.get() == 3
    nothing_leaked(pool)


def test_threads_share_a_handle_and_a_forked_child_has_its_own_row(pools: Any) -> None:
    q = pools().queue("q", 8)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(q.get() for _ in range(300)))
    reader.start()
    gather(lambda: [q.put(number) for number in range(300)])
    reader.join()
    assert found == list(range(300))
