"""The ring buffer: its interface, slow and dead readers, dead writers."""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kit.endpoints import WatchedPool
from kit.processes import children, dies_at, gather, start
from kit.stores import nothing_leaked
from kit.waiting import until

import limpet
from limpet.shm.endpoint.fabric import Endpoint
from limpet.stores.channels.layout import SLEEPERS
from limpet.stores.channels.ring.layout import DATA, END, NUMBER, OLDEST, ROOM
from limpet.stores.channels.ring.messages import Writer
from limpet.stores.channels.ring.ring_buffer import RingBuffer

COMPILED = limpet.build == "compiled"


class LeftEndpoint(Endpoint):
    """Calls `left` after each operation, and `slept(address, expected)` before each sleep."""

    left: Callable[[], None] | None = None
    slept: Callable[[int, int], None] | None = None

    def end(self) -> int:
        super().end()
        if self.left is not None:
            self.left()
        return 0

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        if self.slept is not None:
            self.slept(addr, expected)
        return int(super().futex_wait(addr, expected, timeout_us))


class LeftPool(limpet.Pool):
    """A pool with such an endpoint."""

    endpoint_class = LeftEndpoint


def everything(ring: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append(ring.receive_nowait())
        except queue.Empty:
            return found


def send_many(ring: Any, numbers: Iterable[int] = range(100)) -> None:
    for number in numbers:
        ring.send(number, timeout=0.05)


@pytest.fixture
def pair(pools: Any) -> Any:
    """Makes two handles of a ring: one to send, one that receives from now on."""

    def make(size: int = 1024, **parameters: Any) -> Any:
        pool = pools()
        sender = pool.ring("r", size, **parameters)
        reader = pools.again(pool).ring("r", size, **parameters)
        reader.subscribe()
        return sender, reader

    return make


def test_messages_of_all_sizes_come_in_order_round_and_round(pair: Any) -> None:
    sender, reader = pair(codec="bytes")
    sizes = [0, 1, 7, 8, 9, 100, 333, 500, 1008, 24]
    for number in range(400):
        message = bytes([number % 256]) * sizes[number % len(sizes)]
        sender.send(message)
        assert reader.receive() == message
    with pytest.raises(limpet.ValueTooLarge, match="1024"):
        sender.send(bytes(1009))


def test_the_writer_waits_for_a_slow_reader(pair: Any) -> None:
    sender, reader = pair()
    numbers = itertools.count()
    with pytest.raises(queue.Full):
        send_many(sender, numbers)
    sent = next(numbers) - 1
    began = time.monotonic()
    with pytest.raises(queue.Full):
        sender.send("late", timeout=0.05)
    assert time.monotonic() - began >= 0.05
    timer = threading.Timer(0.05, reader.receive)
    timer.start()
    sender.send("last", timeout=30)
    timer.join()
    assert everything(reader) == [*range(1, sent), "last"]
    with pytest.raises(queue.Empty):
        reader.receive(timeout=0.01)


def test_a_thread_that_is_woken_before_it_sleeps_does_not_sleep_for_another_ones_sake(
    pools: Any,
) -> None:
    """Threads that sent by one handle had one token: what the last one of them was to sleep on."""
    pool = pools()
    reader = pool.ring("r", 256, codec="bytes")
    reader.subscribe()
    watched = pools.keep(LeftPool.open(pool.url))
    sender = watched.ring("r", 256, codec="bytes")
    for _ in range(8):
        sender.send(bytes(16))
    room = sender.address + ROOM
    fell_asleep = []

    def other() -> None:
        with pytest.raises(queue.Full):
            sender.send(bytes(240), timeout=0.01)

    def slept(address: int, expected: int) -> None:
        if threading.current_thread() is threading.main_thread():
            fell_asleep.append((address, expected == pool.endpoint.load(room)))

    def left() -> None:
        if pool.endpoint.load(room) & SLEEPERS:
            watched.endpoint.left = None
            reader.receive()
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    watched.endpoint.slept = slept
    watched.endpoint.left = left
    sender.send(bytes(16), timeout=30)
    assert fell_asleep == [(room, False)]


def test_a_reader_begins_now_or_at_the_oldest_message(pools: Any) -> None:
    pool = pools()
    sender = pool.ring("r", 256)
    for number in range(100):
        sender.send(number)
    now, old = (pools.again(pool).ring("r", 256) for _ in range(2))
    with pytest.raises(queue.Empty):
        now.receive_nowait()
    old.subscribe("oldest")
    kept = everything(old)
    assert kept == list(range(kept[0], 100))
    sender.send(100)
    assert now.receive() == old.receive() == 100
    assert 5 < len(kept) < 12
    with pytest.raises(limpet.ParameterError, match="start"):
        old.subscribe("then")


def test_a_reader_that_was_overtaken_does_not_keep_the_next_writer_waiting(pools: Any) -> None:
    """A writer that had not seen the reader's row yet was killed when it had moved `oldest`."""
    pool = pools()
    sender, reader = (pools.again(pool).ring("r", 256, codec="bytes") for _ in range(2))
    sender.send(bytes(80))
    reader.subscribe("oldest")
    end = pool.endpoint.load(reader.address + END)
    pool.endpoint.store(reader.address + NUMBER, 1)
    pool.endpoint.store(reader.address + OLDEST, end)
    with pytest.raises(queue.Empty):
        reader.receive_nowait()
    sender.send_nowait(bytes(200))
    assert reader.receive() == bytes(200)


def test_a_reader_that_is_overtaken_counts_what_it_lost(pair: Any) -> None:
    sender, reader = pair(overrun="skip")
    for number in range(500):
        sender.send_nowait(number)
    found = everything(reader)
    assert found == list(range(500 - len(found), 500))
    assert reader.lost == 500 - len(found) > 0
    sender.send("x")
    assert reader.receive() == "x"
    for number in range(1000):
        sender.send_nowait(number)
    assert reader.lost + len(found) == 500
    assert len(everything(reader)) + reader.lost == 1000 + 500 - len(found)


def test_a_newcomer_that_is_overtaken_while_it_begins_has_lost_nothing_from_before(
    pools: Any,
) -> None:
    """It took the number of a message far behind where it began for that of the one before."""
    pool = pools()
    sender = pool.ring("r", 256, overrun="skip")
    watched = pools.keep(WatchedPool.open(pool.url))
    reader = watched.ring("r", 256, overrun="skip")
    send_many(sender, range(1000))
    looks = itertools.count(1)

    def overtake(verb: str, address: int) -> None:
        if (verb, address) == ("load", reader.address + END) and next(looks) == 2:
            send_many(sender, range(1000, 1050))

    watched.endpoint.after = overtake
    reader.subscribe()
    watched.endpoint.after = None
    assert next(looks) > 2
    sender.send(1050)
    found = everything(reader)
    assert found[-1] == 1050
    assert reader.lost <= found[0] - 1000


def test_a_newcomer_that_is_overtaken_while_it_begins_begins_at_the_oldest_message(
    pools: Any,
) -> None:
    """It took a ring for damaged whose oldest message was beyond the end that it had seen."""
    pool = pools()
    sender = pool.ring("r", 256, overrun="skip")
    watched = pools.keep(WatchedPool.open(pool.url))
    reader = watched.ring("r", 256, overrun="skip")
    send_many(sender, range(10))

    def overtake(verb: str, address: int) -> None:
        if (verb, address) == ("load", reader.address + OLDEST):
            watched.endpoint.before = None
            send_many(sender, range(10, 100))

    watched.endpoint.before = overtake
    reader.subscribe("oldest")
    assert watched.endpoint.before is None
    found = everything(reader)
    assert found == list(range(found[0], 100))


def test_messages_that_are_overtaken_while_they_are_read_are_whole(pools: Any) -> None:
    pool = pools()
    rounds = 20_000 if COMPILED else 500

    def sender() -> None:
        ring = pool.ring("r", 512, overrun="skip", codec="bytes")
        rng = random.Random(1)
        for number in range(rounds):
            ring.send(bytes([number % 251]) * rng.randint(1, 200))
        ring.send(b"end")

    def reader() -> int:
        ring = pool.ring("r", 512, overrun="skip", codec="bytes")
        ring.subscribe("oldest")
        count = 0
        while (message := ring.receive(timeout=20)) != b"end":
            assert message == message[:1] * len(message)
            count += 1
        return count

    assert gather(sender, reader, reader)[0] is None


def test_a_reader_that_was_overtaken_computes_with_no_word_of_a_payload(pools: Any) -> None:
    """They are all ones: the sum with the size of a head wraps."""
    pool = pools()
    sender = pool.ring("r", 512, overrun="skip", codec="bytes")
    watched = pools.keep(WatchedPool.open(pool.url))
    reader = watched.ring("r", 512, overrun="skip", codec="bytes")
    reader.subscribe()
    start = reader.address + DATA
    for number in range(24):
        sender.send(b"seen")
        at = start + reader.reader.position % 512

        def overtake(verb: str, address: int, at: int = at, number: int = number) -> None:
            if address == at:
                watched.endpoint.before = None
                for size in (200, 240 + 8 * (number % 25), 240):
                    sender.send(b"\xff" * size)

        watched.endpoint.before = overtake
        message = reader.receive(timeout=0)
        assert message == b"\xff" * len(message)
        everything(reader)
    assert reader.lost > 0


BEYOND = [(1 << 64) - 1, (1 << 64) - 8, (1 << 64) - 16, 1 << 63, 1 << 40, 1000]
DAMAGES = [("size", word) for word in BEYOND] + [
    (place, word) for place in ("end", "oldest", "number") for word in [*BEYOND, 0, 64]
]


@pytest.mark.either_build("thousands of words")
@pytest.mark.exhaustive_in_pure("thousands of words")
@pytest.mark.parametrize("overrun", ["block", "skip"])
@pytest.mark.parametrize(("place", "word"), DAMAGES)
def test_a_damaged_ring_is_an_error_and_ends(
    pools: Any, place: str, word: int, overrun: str
) -> None:
    """It is never a wrong message, nor a reader or a writer that does not end."""
    parameters = {"size": 512, "overrun": overrun, "codec": "bytes"}
    pool = pools()
    sender = pool.ring("r", **parameters)
    readers = [pools.again(pool).ring("r", **parameters) for _ in range(2)]
    readers[0].subscribe()
    for _ in range(5):
        sender.send(b"right")
    where = {"size": DATA, "end": END, "oldest": OLDEST, "number": DATA + 8}[place]
    pool.endpoint.store(sender.address + where, word)
    found, errors = [], 0
    for reader in readers:
        try:
            reader.subscribe("oldest")
            found += everything(reader)
        except limpet.StoreCorrupt:
            errors += 1
    assert set(found) <= {b"right"}
    if place == "size":
        assert errors == 2
    sender.close()
    successor = pools.again(pool).ring("r", **parameters)
    try:
        for _ in range(40):
            successor.send(b"right", timeout=0)
    except queue.Full:
        assert overrun == "block"
    except limpet.StoreCorrupt:
        errors += 1
    assert errors or place == "number" or word <= 64


def test_one_process_sends_until_it_closes_or_dies(pools: Any) -> None:
    pool = pools()
    first, second = (pools.again(pool).ring("r", 512) for _ in range(2))
    reader = pool.ring("r", 512)
    reader.subscribe()
    first.send(1)
    with pytest.raises(limpet.ChannelFull, match="writer"):
        second.send(2)
    first.close()
    second.send(2)
    with pytest.raises(ValueError, match="closed"):
        first.send(3)
    with pytest.raises(ValueError, match="closed"):
        first.receive_nowait()
    assert everything(reader) == [1, 2]


@pytest.mark.parametrize("bad", [{"size": 60}, {"size": 100}, {"overrun": "wait"}, {"codec": "?"}])
def test_impossible_parameters_are_refused(pools: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(limpet.ParameterError):
        pools().ring("r", **bad)


def test_a_ring_is_pickled_by_name_and_iterated_over(pair: Any) -> None:
    sender, reader = pair()
    again = pickle.loads(pickle.dumps(sender))
    assert type(again) is RingBuffer
    again.send("a")
    again.send("b")
    messages = iter(reader)
    assert [next(messages), next(messages)] == ["a", "b"]
    again.pool.close()


# ---- kills --------------------------------------------------------------------------------------


@pytest.mark.exhaustive("longer messages", quick=["5"])
@pytest.mark.parametrize("size", [5, 150])
def test_a_writer_killed_at_any_step_leaves_a_message_or_none(pools: Any, size: int) -> None:
    """With small messages, and with such that wrap around and overwrite others."""
    pool = pools()
    reader = pools.again(pool).ring("r", 256, codec="bytes")
    reader.subscribe()
    fuse, running, seen = 0, True, set()
    while running:
        fuse += 1 if COMPILED else 5

        def work() -> None:
            pool.ring("r", 256, codec="bytes").send(b"d" * size)

        running = dies_at(pool, fuse, work)
        found = everything(reader)
        assert found in ([], [b"d" * size])
        seen.add(len(found))
        successor = pools.again(pool)
        successor.ring("r", 256, codec="bytes").send(b"s" * (fuse % 100))
        assert everything(reader) == [b"s" * (fuse % 100)]
        late = successor.ring("r", 256, codec="bytes")
        late.subscribe("oldest")
        assert everything(late)[-1] == b"s" * (fuse % 100)
        successor.close()
        nothing_leaked(pool)
    assert seen == {0, 1}


def test_a_successor_numbers_messages_as_the_dead_writer_would_have(pools: Any) -> None:
    pool = pools()
    ring = pool.ring("r", 256, overrun="skip", codec="bytes")
    for fuse in range(1, 60, 3 if COMPILED else 17):
        reader = pools.again(pool).ring("r", 256, overrun="skip", codec="bytes")
        reader.subscribe()
        dies_at(pool, fuse, lambda: ring.send(bytes(240)))
        gather(lambda: [ring.send(b"%d" % number) for number in range(30)])
        arrived = everything(reader)
        assert arrived[-1] == b"29"
        assert len(arrived) + reader.lost - 30 in (0, 1)
        reader.pool.close()


def test_a_reader_killed_at_any_step_stalls_nobody(pools: Any) -> None:
    pool = pools()
    sender = pool.ring("r", 256, codec="bytes")
    fuse, running = 0, True
    while running:
        fuse += 1 if COMPILED else 5

        def work() -> None:
            ring = pool.ring("r", 256, codec="bytes")
            ring.subscribe("oldest")
            ring.receive_nowait()

        sender.send(b"first")
        running = dies_at(pool, fuse, work)
        for number in range(20):
            sender.send(b"%d" % number * 20, timeout=5)
    nothing_leaked(pool)


def stopped_reader(pool: Any) -> int:
    def work() -> None:
        pool.ring("r", 256).subscribe()
        os.kill(os.getpid(), signal.SIGSTOP)

    pid, out = start(work)
    out.close()
    os.waitpid(pid, os.WUNTRACED)
    return pid


def test_a_stopped_reader_is_waited_for_until_it_is_dead(pools: Any) -> None:
    pool = pools(lease=0.01)
    sender = pool.ring("r", 256)
    pid = stopped_reader(pool)
    try:
        with pytest.raises(queue.Full):
            send_many(sender)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    send_many(sender)


class CountsAll(Writer):
    def counts(self, word: int) -> bool:
        return True


class WaitsForTheDead(RingBuffer):
    """The row of a dead reader counts."""

    writer_class = CountsAll


def test_a_ring_that_waits_for_dead_readers_is_found_out(pools: Any) -> None:
    pool = pools()
    sender = pool.channels.open(WaitsForTheDead, "r", size=256)
    gather(lambda: pool.ring("r", 256).subscribe())
    with pytest.raises(queue.Full):
        send_many(sender)


def test_all_readers_get_all_messages_while_some_are_killed(pools: Any) -> None:
    pool = pools()
    rounds = 5000 if COMPILED else 300

    def reader() -> list[int]:
        ring = pool.ring("r", 4096)
        ring.subscribe()
        pool.counter("ready").add(1)
        found = []
        while not found or found[-1] >= 0:
            found.append(ring.receive(timeout=20))
        return found

    def doomed() -> None:
        for _ in pool.ring("r", 4096):
            pass

    with children([doomed, doomed, reader, reader]) as started:
        until(lambda: pool.counter("ready").value >= 2)
        ring = pool.ring("r", 4096)
        for number in range(rounds):
            ring.send(number, timeout=20)
            if number in (rounds // 3, rounds // 2):
                os.kill(started[number == rounds // 2][0], signal.SIGKILL)
        ring.send(-1, timeout=20)
        for _, out in started[2:]:
            found = pickle.loads(out.read())
            assert found == [*range(rounds), -1]
    nothing_leaked(pool)
