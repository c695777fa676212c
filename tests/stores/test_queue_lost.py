"""Elements that dead consumers of the shared queue had: each is given back, and none twice."""

from __future__ import annotations

import gc
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import dies_at, gather, start
from kit.stores import nothing_leaked

import limpet
from limpet.stores.channels.queue.layout import KEPT_MAX, KIND, PENDING

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

SMALL, LARGE = 3, 2000
"""Bytes of an element that lies in its slot, and of one that takes an object."""


def item(number: int, size: int) -> bytes:
    return b"%03d" % number + b"." * (size - 3)


def lose(q: Any, work: Callable[[], object], how: str = "killed") -> None:
    """A process does `work`, and ends."""

    def life() -> None:
        work()
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "closed":
            q.close()

    pid, out = start(life)
    out.close()
    os.waitpid(pid, 0)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("how", ["killed", "closed", "ended"])
def test_what_a_consumer_had_is_given_back(pools: Any, how: str, size: int) -> None:
    pool = pools(node_size="1MiB")
    q = pool.queue("q", 8, codec="bytes")
    q.put_many([item(number, size) for number in range(4)])

    def work() -> None:
        q.get()
        q.get_many(2)
        q.task_done()

    lose(q, work, how)
    expected = [item(number, size) for number in (1, 2)]
    with pytest.raises(limpet.TasksLost, match=r"lost\(\) gives 2 of them back") as caught:
        q.join()
    assert caught.value.count == 2
    assert caught.value.elements == q.lost() == expected
    assert pickle.loads(pickle.dumps(caught.value)).elements == expected
    # No process that joins next takes them for its own.
    gather(*[q.qsize] * 3)
    pool.recover()
    assert q.lost() == expected
    for one in q.lost():
        q.put(one)
    assert q.forget_lost() == 2
    assert q.lost() == []
    for one in [item(3, size), *expected]:
        assert q.get() == one
        q.task_done()
    assert q.join()
    nothing_leaked(pool)


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step", quick=["3"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_element_is_in_the_queue_or_lost_wherever_its_consumer_is_killed(
    pools: Any, size: int
) -> None:
    """At each step of the second turn of get and task_done, in a queue whose cells have moved."""
    pool = pools(node_size="1MiB")
    q = pool.queue("q", 2, codec="bytes")
    seen: set[str] = set()

    def work() -> None:
        q.get()
        q.task_done()

    fuse, running = 0, True
    while running:
        fuse += 1
        q.put(item(fuse, size))
        running = dies_at(pool, fuse, work)
        # Half of them ask before the dead one is recovered.
        if fuse % 2:
            pool.recover()
        lost = q.lost()
        there = q.get_many(2) if q.qsize() else []
        assert len(lost) + len(there) <= 1, "given twice"
        assert {*lost, *there} <= {item(fuse, size)}
        # An element that is got from the queue meanwhile does not come again.
        assert q.lost() == lost
        for _ in there:
            q.task_done()
        assert q.lost() == lost
        try:
            finished, count = q.join(0), 0
        except limpet.TasksLost as error:
            finished, count, told = True, error.count, error.elements
        assert finished
        assert not count or told == lost
        assert len(lost) <= count <= 1
        done = not lost and not there
        assert not (done and count), "lost, and not given back"
        seen.add("lost" if lost else "there" if there else "done")
        assert q.forget_lost() == count
        assert q.lost() == []
        # Its slot is used again.
        for _ in range(2):
            q.put_many([b"a" * size, b"b" * size])
            assert q.get_many(2) == [b"a" * size, b"b" * size]
            q.task_done()
            q.task_done()
        assert q.join(0)
        nothing_leaked(pool)
    assert seen == {"lost", "there", "done"}


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step")
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_was_lost_survives_who_is_killed_in_taking_over_or_forgetting(
    pools: Any, size: int
) -> None:
    pool = pools(node_size="1MiB", clients=3)
    q = pool.queue("q", 4, codec="bytes")
    for work in (q.qsize, q.forget_lost, q.lost):
        fuse, running = 0, True
        while running:
            fuse += 1
            q.put(item(fuse, size))
            lose(q, q.get)
            pool.recover()
            running = dies_at(pool, fuse, work)
            pool.recover()
            lost = q.lost()
            assert lost in ([item(fuse, size)], [] if work == q.forget_lost else None)
            gather(q.qsize)
            assert q.lost() == lost
            q.forget_lost()
            assert q.lost() == []
            assert q.join(0)
            nothing_leaked(pool)
        assert fuse > 5


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_the_newest_are_kept_of_a_consumer_that_has_more(pools: Any, size: int) -> None:
    pool = pools(node_size="1MiB")
    q = pool.queue("q", 16, codec="bytes")
    number = KEPT_MAX + 3
    q.put_many([item(one, size) for one in range(number)])

    def work() -> None:
        assert len(q.get_many(number)) == number
        q.task_done()

    lose(q, work)
    with pytest.raises(limpet.TasksLost, match=f"{number - 1} .* gives {q.keep} ") as caught:
        q.join()
    assert caught.value.count == number - 1
    assert caught.value.elements == [item(one, size) for one in range(number - q.keep, number)]
    assert q.forget_lost() == number - 1
    # Those done with are the oldest.
    q.put_many([item(one, size) for one in range(number)])

    def most() -> None:
        q.get_many(number)
        for _ in range(number - 1):
            q.task_done()

    lose(q, most)
    assert q.lost() == [item(number - 1, size)]
    assert q.forget_lost() == 1
    nothing_leaked(pool)


def test_lost_elements_are_not_written_over_by_those_who_come_next(pools: Any) -> None:
    """Also not where all rows have some; then the newcomers' are counted only."""
    pool = pools(node_size="1MiB", clients=3)
    q = pool.queue("q", 64)
    lives = pool.parameters.clients * (KEPT_MAX + 1)
    for number in range(lives):
        q.put(number)
        lose(q, q.get, "killed" if number % 2 else "closed")
        pool.recover()
    with pytest.raises(limpet.TasksLost) as caught:
        q.join()
    assert caught.value.count == lives
    kept = caught.value.elements
    assert kept == sorted(set(kept))
    assert len(kept) >= (pool.parameters.clients - 1) * q.keep
    assert q.forget_lost() == lives
    q.put(-1)
    lose(q, q.get)
    assert q.lost() == [-1]


def test_what_is_lost_after_the_error_is_not_forgotten_with_it(pools: Any) -> None:
    q = pools().queue("q", 4)
    q.put_many(["a", "b"])
    lose(q, q.get)
    with pytest.raises(limpet.TasksLost) as caught:
        q.join()
    lose(q, q.get)
    assert q.forget_lost(pickle.loads(pickle.dumps(caught.value))) == 1
    assert q.lost() == ["b"]
    with pytest.raises(limpet.TasksLost) as caught:
        q.join()
    assert (caught.value.count, caught.value.elements) == (1, ["b"])
    assert q.forget_lost(caught.value) == 1
    assert q.forget_lost(caught.value) == 0
    assert q.join()


def test_a_living_consumers_are_not_lost(pools: Any) -> None:
    pool = pools()
    q = pool.queue("q", 4)
    q.put_many([1, 2])
    q.get()
    assert gather(q.lost) == [[]]
    del q
    gc.collect()
    q = pool.queue("q", 4)
    assert q.lost() == []
    q.task_done()
    assert q.get() == 2
    q.close()
    assert pool.queue("q", 4).lost() == [2]


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("lines", [1, 2])
def test_a_get_that_was_cut_in_a_living_process_is_done_with_or_there(
    pools: Any, size: int, lines: int
) -> None:
    """As by Ctrl-C: what the entry says counts, not what the handle believed."""
    pool = pools(node_size="1MiB")
    q = pool.queue("q", 4, codec="bytes")
    q.put_many([item(1, size), item(2, size)])
    with q.operation():
        q.notes.note(q.own_row, 0, item(1, size), 0)
        if lines > 1:
            more = q.tasks.more()
            ticket = q.tasks.post(more)
            q.endpoint.wait()
            assert q.tasks.is_done(ticket, more)
    assert q.endpoint.load(q.notes.entry(q.own_row, q.keep - 1)) & KIND == PENDING
    assert q.get() == item(1, size)
    q.task_done()
    assert q.get() == item(2, size)
    q.task_done()
    assert q.join(0)
    nothing_leaked(pool)


def test_elements_kept_go_with_their_queue(pools: Any) -> None:
    pool = pools(node_size="1MiB")
    q = pool.queue("q", 2, codec="bytes")
    for _ in range(3):
        q.put_many([item(1, LARGE), item(2, LARGE)])
        q.get_many(2)
    q.put(item(3, LARGE))
    lose(q, q.get)
    pool.channels.remove("q")
    nothing_leaked(pool)
