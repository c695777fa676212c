"""`pool.deque`: as collections.deque, for the processes of a pool."""

from __future__ import annotations

import collections
import os
import pickle
import queue
import random
import signal
import time
from typing import Any

import pytest
from kit.processes import children, dies_at, gather
from kit.stores import nothing_leaked

import limpet

LARGE = "L" * 5000


@pytest.mark.parametrize("maxlen", [None, 3])
def test_it_does_what_collections_does(pools: Any, maxlen: int | None) -> None:
    """Any calls, in any order, with small and large elements."""
    pool = pools()
    ours, theirs = pool.deque("d", maxlen), collections.deque(maxlen=maxlen)
    draw = random.Random(7)
    for number in range(600):
        item = number if draw.random() < 0.8 else LARGE + str(number)
        name = draw.choice(["append", "appendleft", "pop", "popleft", "extend", "extendleft"])
        if name.startswith("pop"):
            results = []
            for one in (ours, theirs):
                try:
                    results.append(getattr(one, name)())
                except IndexError as error:
                    results.append(str(error))
            assert results[0] == results[1]
        elif name.startswith("extend"):
            for one in (ours, theirs):
                getattr(one, name)([number, item])
        else:
            for one in (ours, theirs):
                getattr(one, name)(item)
        assert len(ours) == len(theirs)
    assert list(ours) == list(theirs)
    assert [ours[i] for i in range(-len(theirs), len(theirs))] == [*theirs, *theirs]
    assert ours.maxlen == theirs.maxlen
    with pytest.raises(IndexError):
        ours[len(theirs)]
    ours.clear()
    assert not ours
    nothing_leaked(pool)


def test_what_has_no_room_is_refused(pools: Any) -> None:
    pool = pools()
    d = pool.deque("d", size=2)
    d.extend("ab")
    for add in (d.append, d.appendleft):
        with pytest.raises(queue.Full):
            add("c")
    assert list(d) == ["a", "b"]
    with pytest.raises(limpet.StoreMismatch):
        pool.deque("d", 2)
    with pytest.raises(limpet.ParameterError):
        pool.deque("other", 2, size=3)
    again = pickle.loads(pickle.dumps(d))
    try:
        assert again.pop() == "b"
    finally:
        again.pool.close()


def test_each_element_is_taken_once_by_many_processes(pools: Any) -> None:
    d = pools().deque("d", size=4096)
    rounds = 150

    def works(number: int) -> list[Any]:
        found = []
        for turn in range(rounds):
            (d.append if turn % 2 else d.appendleft)((number, turn))
            found.append(d.pop() if turn % 3 else d.popleft())
        return found

    results = gather(*(lambda n=n: works(n) for n in range(3)))  # type: ignore[misc]
    found = [item for each in results for item in each]
    assert sorted(found) == [(number, turn) for number in range(3) for turn in range(rounds)]
    assert len(d) == 0


def test_a_kill_at_any_step_leaves_all_of_a_change_or_none(pools: Any) -> None:
    pool = pools()
    d = pool.deque("d", 2, item_size=8, codec="str")

    def works() -> None:
        d.append(large + "new")
        d.popleft()

    large = "an object of the pool "
    fuse, running = 0, True
    while running:
        fuse += 1
        d.clear()
        d.extend([large, "b"])
        running = dies_at(pool, fuse, works)
        assert list(d) in ([large, "b"], ["b", large + "new"], [large + "new"]), fuse
    assert fuse > 10
    d.clear()
    for _ in range(3):
        d.append("all places are used")
    nothing_leaked(pool)


def test_a_process_that_is_stopped_with_the_lock_does_not_stop_others(pools: Any) -> None:
    pool = pools(lease=0.05)
    d = pool.deque("d")

    def works() -> None:
        while True:
            d.append(1)
            d.pop()

    with children([works]) as [(pid, _)]:
        d.append("ours")
        for _ in range(5):
            time.sleep(0.005)
            os.kill(pid, signal.SIGSTOP)
            d.appendleft("ours")
            os.kill(pid, signal.SIGCONT)
    assert len(d) >= 6
