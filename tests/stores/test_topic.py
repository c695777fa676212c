"""`pool.topic`: messages of many processes for many, also when publishers are killed."""

from __future__ import annotations

import os
import queue
import signal
import time
from typing import Any

import pytest
from kit.processes import children, dies_at, gather
from kit.stores import nothing_leaked

import limpet

PATIENCE_S = 60.0


def test_all_subscribers_get_all_messages_in_one_order(pools: Any) -> None:
    topic = pools().topic("t", 4096)
    rounds, publishers = 200, 3
    all_there = topic.pool.barrier("all", publishers + 2)

    def publishes(number: int) -> None:
        all_there.wait(PATIENCE_S)
        for turn in range(rounds):
            topic.publish((number, turn))

    def reads() -> list[Any]:
        reader = topic.subscribe()
        all_there.wait(PATIENCE_S)
        return [reader.get(timeout=PATIENCE_S) for _ in range(rounds * publishers)]

    work = [lambda n=n: publishes(n) for n in range(publishers)]  # type: ignore[misc]
    first, second, *_ = gather(reads, reads, *work)
    assert first == second
    for number in range(publishers):
        assert [turn for one, turn in first if one == number] == list(range(rounds))


def test_a_slow_subscriber_is_told_how_many_it_missed(pools: Any) -> None:
    pool = pools()
    topic = pool.topic("t", 10)
    slow = topic.subscribe()
    assert [topic.publish("L" * 500 + str(number)) for number in range(35)] == list(range(35))
    late = topic.subscribe(start="oldest")
    for reader, lost in ((slow, 25), (late, 0)):
        found = [reader.get_nowait().removeprefix("L" * 500) for _ in range(10)]
        assert found == [str(number) for number in range(25, 35)]
        assert reader.lost == lost
        with pytest.raises(queue.Empty):
            reader.get(timeout=0.001)
    assert topic.subscribe().position == topic.published() == 35
    with pytest.raises(limpet.ParameterError):
        topic.subscribe(start="never")
    nothing_leaked(pool)


def test_a_subscriber_beside_publishers_that_overtake_it_gets_whole_messages(pools: Any) -> None:
    topic = pools().topic("t", 3)

    def publishes() -> None:
        number = 0
        while True:
            number += 1
            topic.publish([number] * (number % 60))

    reader = topic.subscribe()
    with children([publishes, publishes]):
        found = [reader.get(timeout=PATIENCE_S) for _ in range(2000)]
    assert all(len(set(each)) <= 1 and (not each or len(each) == each[0] % 60) for each in found)
    assert reader.position == reader.lost + 2000


def test_a_kill_at_any_step_publishes_a_message_or_does_not(pools: Any) -> None:
    topic = pools().topic("t", 4, item_size=8, codec="str")
    fuse, running, published = 0, True, set()
    while running:
        fuse += 1
        reader = topic.subscribe()
        running = dies_at(topic.pool, fuse, lambda: topic.publish("an object of the pool"))
        topic.publish("next")
        found = [reader.get(timeout=PATIENCE_S)]
        if found != ["next"]:
            found.append(reader.get(timeout=PATIENCE_S))
        assert found in (["next"], ["an object of the pool", "next"])
        published.add(len(found))
    assert published == {1, 2}
    for _ in range(6):
        topic.publish("all cells are used")
    nothing_leaked(topic.pool)


def test_a_stopped_publisher_or_subscriber_does_not_stop_others(pools: Any) -> None:
    topic = pools(lease=0.05).topic("t", 8)

    def works() -> None:
        reader = topic.subscribe()
        while True:
            topic.publish(1)
            reader.get()

    with children([works]) as [(pid, _)]:
        for _ in range(5):
            time.sleep(0.005)
            os.kill(pid, signal.SIGSTOP)
            mine = topic.subscribe()
            topic.publish("ours")
            assert mine.get(timeout=PATIENCE_S) == "ours"
            os.kill(pid, signal.SIGCONT)
