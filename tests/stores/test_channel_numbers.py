"""Events, counters and arrays: as in threading and array, and whole under kills."""

from __future__ import annotations

import inspect
import itertools
import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.processes import dies_at, gather, start

import limpet
from limpet.stores.channels.rendezvous import Rendezvous

COMPILED = limpet.build == "compiled"
try:
    from test import lock_tests
except ImportError:
    lock_tests = None

DOES_NOT_APPLY = {
    "test_at_fork_reinit": "there is no lock inside that a fork could leave held",
    "test_repr": "a channel's repr is its name and pool",
}

if lock_tests is not None:

    class TestAsThreading(lock_tests.EventTests):  # type: ignore[misc]
        """CPython's own tests of threading.Event."""

        @pytest.fixture(autouse=True)
        def _pool(self, pools: Any) -> None:
            pool, numbers = pools(), itertools.count()
            self.eventtype = lambda: pool.event(f"e{next(numbers)}")

    for name in DOES_NOT_APPLY:
        setattr(TestAsThreading, name, None)


# ---- events -------------------------------------------------------------------------------------


def test_processes_wait_for_an_event(pools: Any) -> None:
    event = pools().event("go")
    begun = event.pool.counter("begun")

    def waits() -> bool:
        begun.add()
        return bool(event.wait(20))

    def sets() -> None:
        while begun.value < 3:
            time.sleep(0.001)
        time.sleep(0.02)
        event.set()
        event.clear()

    assert gather(waits, waits, waits, sets)[:3] == [True] * 3
    assert not event.wait(0.01)


def test_a_kill_at_any_step_of_set_loses_nobody(pools: Any) -> None:
    event = pools().event("go")
    fuse, running = 0, True
    while running:
        fuse += 1
        event.clear()
        woken: list[bool] = []
        thread = threading.Thread(target=lambda into=woken: into.append(event.wait(20)))
        thread.start()
        time.sleep(0.01)
        running = dies_at(event.pool, fuse, event.set)
        if not event.is_set():
            event.set()
        thread.join(20)
        assert woken == [True]
    assert fuse > 2


# ---- counters -----------------------------------------------------------------------------------


def test_a_counter_has_a_sign_and_wraps_around(pools: Any) -> None:
    counter = pools().counter("n")
    assert counter.add(-3) == -3
    assert counter.value == -3
    counter.set(2**63 - 1)
    assert counter.add() == -(2**63)
    for wrong in (2**63, 0.5, "1"):
        with pytest.raises(limpet.ParameterError):
            counter.add(wrong)
    again = pickle.loads(pickle.dumps(counter))
    try:
        assert again.value == counter.value
    finally:
        again.pool.close()


def test_counts_of_killed_processes_are_linearizable(pools: Any) -> None:
    """Each number is given once, in the order of time; a killed one's last may be missing."""
    pool = pools()
    counter, last = pool.counter("n"), pool.array("last", 4)
    rounds = 300

    def counts(number: int) -> list[tuple[int, int, int]]:
        found = []
        for _ in range(rounds):
            called = time.monotonic_ns()
            value = counter.add()
            found.append((called, value, time.monotonic_ns()))
            last[number] = value
        return found

    def doomed(number: int) -> None:
        while True:
            last[number] = counter.add()

    victims = [start(lambda number=number: doomed(number)) for number in (2, 3)]
    threads = threading.Timer(0.01, lambda: [os.kill(pid, signal.SIGKILL) for pid, _ in victims])
    threads.start()
    histories = gather(lambda: counts(0), lambda: counts(1))
    threads.join()
    for pid, out in victims:
        out.close()
        os.waitpid(pid, 0)
    calls = sorted(call for history in histories for call in history)
    values = [value for _, value, _ in calls]
    assert len(set(values)) == 2 * rounds
    assert counter.value >= max(*values, *last)
    highest = 0
    ends = sorted((end, value) for _, value, end in calls)
    place = 0
    for called, value, _ in calls:
        while place < len(ends) and ends[place][0] < called:
            highest = max(highest, ends[place][1])
            place += 1
        assert value > highest


def test_a_kill_in_an_addition_adds_all_or_nothing(pools: Any) -> None:
    counter = pools().counter("n")
    fuse, running, seen = 0, True, set()
    while running:
        fuse += 1
        before = counter.value
        running = dies_at(counter.pool, fuse, lambda: counter.add(10**12 + 1))
        seen.add(counter.value - before)
    assert seen == {0, 10**12 + 1}


# ---- arrays -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("q", -(2**63), 2**63 - 1), ("Q", 0, 2**64 - 1), ("d", -1e300, 1.5e-300)],
)
def test_an_array_is_as_a_list_of_its_length(pools: Any, dtype: str, low: Any, high: Any) -> None:
    array = pools().array("a", 9, dtype)
    assert list(array) == [0] * 9
    assert len(array) == 9
    like: list[Any] = [0] * 9
    for index, value in ((0, low), (-1, high), (4, 7)):
        array[index] = like[index] = value
    for part in (slice(1, 4), slice(None, None, -2), slice(6, 2, -1), slice(5, 5)):
        assert array[part].tolist() == like[part]
        values = list(range(len(like[part])))
        array[part] = like[part] = values
    assert list(array) == like
    assert array.add(3, 5) == like[3] + 5
    assert array[3] == like[3] + 5
    for wrong in (9, -10):
        with pytest.raises(IndexError):
            array[wrong]
    with pytest.raises(ValueError, match="2 elements"):
        array[:2] = [1, 2, 3]
    assert np.array_equal(array.numpy(), list(array))
    array.numpy()[2] = np.int64(98)
    array.add(2, np.int8(1))
    assert array[2] == 99


def test_arrays_that_cannot_be_are_refused(pools: Any) -> None:
    pool = pools()
    for shape, dtype in ((-1, "q"), (2.5, "q"), ((2, "3"), "q"), (3, "z"), (3, object), (3, "S")):
        with pytest.raises(limpet.ParameterError):
            pool.array("a", shape, dtype)
    pool.array("a", 3)
    with pytest.raises(limpet.StoreMismatch):
        pools.again(pool).array("a", 4)
    with pytest.raises(limpet.ParameterError):
        pool.array("u", 3, "Q")[0] = -1
    for bad in ("1", None, 10**400):
        with pytest.raises(limpet.ParameterError, match="a double"):
            pool.array("d", 3, "d")[0] = bad


def test_additions_of_processes_to_doubles_are_all_there(pools: Any) -> None:
    array = pools().array("a", 2, "d")

    def adds() -> None:
        for _ in range(500):
            array.add(1, 0.5)

    gather(adds, adds)
    assert list(array) == [0, 500]


def test_a_kill_at_any_step_leaves_each_element_whole(pools: Any) -> None:
    array = pools().array("a", 4)
    fuse, running = 0, True
    while running:
        fuse += 1
        array[:] = [-1] * 4
        running = dies_at(array.pool, fuse, lambda: array.__setitem__(slice(None), [2**40] * 4))
        done = list(array).count(2**40)
        assert list(array) == [2**40] * done + [-1] * (4 - done)
    assert done == 4
    assert fuse > 4


def test_an_array_on_a_lost_node_says_so(pools: Any) -> None:
    pool = pools()
    array = pool.array("a", 4)
    pool.mark_failed(0)
    for use in (lambda: array[0], array.numpy, lambda: array.add(1)):
        with pytest.raises(limpet.NodeFailed):
            use()


@pytest.mark.skipif(not COMPILED, reason="a pure build cannot flush cache lines")
def test_no_view_of_memory_that_is_not_coherent(pools: Any) -> None:
    array = pools(coherent=False, coherent_bytes="1MiB").array("a", 4)
    array[1] = 5
    assert array[:2].tolist() == [0, 5]
    with pytest.raises(limpet.CoherenceError):
        array.numpy()


# ---- a channel of one's own ---------------------------------------------------------------------


def test_a_channel_of_ones_own(pools: Any) -> None:
    pool = pools()
    come = pool.counter("come")

    def meets() -> bool:
        meeting = pool.channels.open(Rendezvous, "start", nodes=3)
        for number in range(1, 20):
            come.add()
            meeting.waiting()
            assert come.value >= 3 * number
        return True

    assert gather(meets, meets, meets) == [True] * 3
    assert {"start", "come"} <= set(pool.channels.names())


def test_docs_show_the_channel_as_it_is() -> None:
    docs = (Path(__file__).parents[2] / "docs/channels.md").read_text()
    shown = docs.split("class Rendezvous(Channel):\n")[1].split("```")[0]
    source = inspect.getsource(Rendezvous).splitlines()
    code = [line for line in source[1:] if line and '"""' not in line]
    assert [line for line in shown.splitlines() if line] == code
    assert len(code) <= 13
