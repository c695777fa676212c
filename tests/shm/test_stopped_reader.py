"""A reader that is stopped inside a get keeps memory from being used again, and no client waiting
as long as there is other memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from kit.clients import pinned
from kit.processes import Child, child

import limpet
from limpet.shm.endpoint.fabric import BUILD, Endpoint

LEASE_S: Final = 2.0
UPDATE_S: Final = 2.0**-6
"""The time that an update takes, by the writer's clock."""
PAUSE_S: Final = 2.0**-5
PAUSES_MAX: Final = 2000
KINDS: Final = ("rtx-sherman", "rtx-race", "race")
VALUE_SIZE: Final = 900
"""So that a pair of a hash store takes as much memory as a node of a tree."""


class CountingEndpoint(Endpoint):
    """Its pauses take no time but that of the writer's clock."""

    pauses = 0
    clock_s = 0.0
    paused: Callable[[], object] = staticmethod(lambda: None)

    def pause(self, attempt: int) -> int:
        CountingEndpoint.pauses += 1
        assert CountingEndpoint.pauses < PAUSES_MAX, "it waits for ever"
        CountingEndpoint.clock_s += PAUSE_S
        CountingEndpoint.paused()
        return 0


class CountingPool(limpet.Pool):
    endpoint_class = CountingEndpoint


class Writer:
    """A client with a clock of its own that updates a key again and again."""

    def __init__(self, pools: Any, kind: str, fence: str, node_size: str = "2MiB") -> None:
        CountingEndpoint.pauses, CountingEndpoint.clock_s = 0, 0.0
        CountingEndpoint.paused = staticmethod(lambda: None)
        self.other = pools(node_size=node_size, fence=fence)
        self.pool = pools.keep(CountingPool.open(self.other.url))
        self.pool.membership.now = lambda: CountingEndpoint.clock_s
        self.store = self.pool.store(kind, name="s", capacity=16)
        self.size = 40 if kind == "rtx-sherman" else VALUE_SIZE
        self.store.put(b"k", bytes(self.size))
        self.updates = 0

    def update(self) -> None:
        self.store.update(b"k", bytes(self.size))
        CountingEndpoint.clock_s += UPDATE_S
        self.updates += 1

    def use_up_memory(self) -> None:
        """Update until that raises StoreFull."""
        with pytest.raises(limpet.StoreFull, match="memory may be held back by processes inside"):
            self._update_for_ever()

    def _update_for_ever(self) -> None:
        while True:
            self.update()


@pytest.fixture(params=KINDS if BUILD == "compiled" else KINDS[:2])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_writer_does_not_wait_for_a_stopped_reader(pools: Any, kind: str) -> None:
    """Not while there is memory; and when it has run out, the reader has stood still for long."""
    writer = Writer(pools, kind, "wait")
    with pinned(writer.other):
        writer.use_up_memory()
        assert writer.updates * UPDATE_S > 3 * LEASE_S
        assert CountingEndpoint.pauses == 0
    writer.update()
    assert CountingEndpoint.pauses == 0


def test_writer_waits_for_what_is_left_of_the_lease(pools: Any, kind: str) -> None:
    writer = Writer(pools, kind, "wait", "512KiB")
    writer.pool.membership.lease_s = 16 * LEASE_S
    with pinned(writer.other):
        writer.use_up_memory()
    used_up = writer.updates * UPDATE_S
    assert LEASE_S < used_up < 16 * LEASE_S
    waited = CountingEndpoint.pauses * PAUSE_S
    assert waited <= 16 * LEASE_S - used_up + LEASE_S


@pytest.fixture
def reader() -> Iterator[Callable[[Any], Child]]:
    """Makes a process that is stopped inside an operation."""
    made: list[Any] = []

    def stopped(pool: Any) -> Child:
        def stop() -> None:
            pool.client.enter()
            os.kill(os.getpid(), signal.SIGSTOP)

        context = child(stop=stop)
        found = context.__enter__()
        made.append(context)
        found.send("stop")
        assert os.WIFSTOPPED(os.waitpid(found.pid, os.WUNTRACED)[1])
        return found

    yield stopped
    for context in made:
        context.__exit__(None, None, None)


def test_reader_that_stood_still_for_a_lease_is_ended_when_memory_has_run_out(
    pools: Any, kind: str, reader: Callable[[Any], Child]
) -> None:
    """And not before; no client waits for it."""
    writer = Writer(pools, kind, "kill")
    stopped = reader(writer.other)
    writer.pool.recover()

    def fenced() -> bool:
        return "fenced" in [event["kind"] for event in writer.pool.events()]

    while not fenced():
        writer.update()
    assert writer.updates * UPDATE_S > 3 * LEASE_S
    assert CountingEndpoint.pauses == 0
    assert stopped.reap() == -signal.SIGKILL
    for _ in range(100):
        writer.update()
    assert CountingEndpoint.pauses == 0


def test_memory_that_turns_up_is_used_at_once(pools: Any, kind: str) -> None:
    """While a writer waits for the reader, another client gives back a block."""
    writer = Writer(pools, kind, "wait", "512KiB")
    hoarder = pools.again(writer.other)
    size = 1024 if kind == "rtx-sherman" else writer.store.objects.size_of(b"k", bytes(writer.size))
    hoarder.allocator.replenish(0, size)
    with pinned(writer.other):
        gave: list[int] = []

        def give() -> None:
            if not gave:
                gave.append(writer.updates)
                assert hoarder.exclusively(lambda: hoarder.allocator.relief.release_empty({}))

        CountingEndpoint.paused = staticmethod(give)
        writer.pool.membership.lease_s = 1e9
        while not gave or writer.updates == gave[0]:
            writer.update()
        assert CountingEndpoint.pauses == 1
        CountingEndpoint.paused = staticmethod(lambda: None)
