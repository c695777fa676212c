"""The gate of a durable pool of several hosts; processes that stand still while they open it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from kit.durable_hosts import Host, durable_pool, mended
from kit.processes import Child, child

from limpet.shm import mending
from limpet.shm.clients import joining
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import GATE
from limpet.shm.endpoint.slots import LOCKED, NAMESPACE
from limpet.shm.errors import ClientError
from limpet.shm.mending import SEVERAL

pytestmark = pytest.mark.skipif(BUILD != "compiled", reason="a durable pool needs clwb")

PLACES: dict[str, tuple[Any, str]] = {
    "joining": (joining, "start_time"),
    "joined": (mending, "_mend_memory"),
    "tables": (mending._Tables, "write"),
}
"""A process of `Opener` stops before this function is called first."""
FIRST = "opened it first"


class Opener(Host):
    """A host's process that stands still, or looks around, while it opens the pool."""

    def stop_at(self, place: str) -> list[str]:
        """Open the pool, and stop before that place."""
        return self._open_with(*PLACES[place], _stop)

    def wake_first(self, pid: int) -> list[str]:
        """Open the pool, and wake that process before we make the pool whole."""

        def wake() -> None:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.1)

        return self._open_with(mending, "_forget_clients", wake)

    def _open_with(self, owner: Any, name: str, first: Callable[[], None]) -> list[str]:
        real, seen = getattr(owner, name), []

        def called(*arguments: Any) -> Any:
            if not seen:
                seen.append(True)
                first()
            return real(*arguments)

        with mock.patch.object(owner, name, called):
            return self.open()

    def last_slot(self) -> str:
        """Open the pool by way of the last slot, and lose the gate after that was given up: the
        next step's error."""
        real, calls = joining._take, []

        def take(members: Any, candidates: range) -> bool:
            calls.append(candidates)
            if len(calls) == 1:
                return False  # as if all slots were taken
            if len(calls) == 3:
                members.endpoint.swap(GATE, 1)
            return real(members, candidates)

        with (
            mock.patch.object(joining, "_take", take),
            mock.patch.object(joining, "_all_live", return_value=False),
        ):
            try:
                self.open()
            except ClientError as error:
                return str(error)
        return ""

    def no_thread(self) -> str:
        """Open the pool while no thread can be started; the error."""
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name == "limpet-gate":
                raise RuntimeError("can't start new thread")
            start(thread)

        with mock.patch.object(threading.Thread, "start", refuse):
            try:
                self.open()
            except RuntimeError as error:
                return str(error)
        return ""

    def open_impatiently(self) -> list[str]:
        with mock.patch.object(mending, "TOLD_S", 0.05):
            return self.open()

    def hide(self) -> None:
        """Have our slot look as if we were of another PID namespace, our life lock on a file that
        others do not see."""
        endpoint, slot = self.pool.endpoint, self.pool.client.slot
        endpoint.store(slot + LOCKED, 1)
        endpoint.store(slot + NAMESPACE, 1)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.1)  # another thread may have got the signal: until it stops this one, too


@contextlib.contextmanager
def opener(url: str, name: str, other: int = 0) -> Iterator[Child]:
    """`other`: the pid that it wakes when it is told to `wake`."""
    host = Opener(url, name)
    with child(
        open=host.open, put=host.put, keys=host.keys, power=host.power, hide=host.hide,
        joining=lambda: host.stop_at("joining"), joined=lambda: host.stop_at("joined"),
        tables=lambda: host.stop_at("tables"), wake=lambda: host.wake_first(other),
        last=host.last_slot, no_thread=host.no_thread, impatient=host.open_impatiently,
        close=lambda: host.pool.close(),
    ) as made:  # fmt: skip
        yield made


def stopped(process: Child, place: str) -> None:
    process.send(place)
    os.waitpid(process.pid, os.WUNTRACED)


@pytest.fixture
def url() -> Iterator[str]:
    with durable_pool() as name:
        yield name


@pytest.mark.parametrize("name", ["a2", "b2"])
@pytest.mark.parametrize("place", ["joined", "tables"])
def test_half_mended_pool_is_made_whole_anew_while_its_mender_stands_still(
    url: str, place: str, name: str
) -> None:
    with opener(url, "a2") as a, opener(url, name) as b:
        stopped(a, place)
        assert mended(b.do("open")), "a half-mended pool was joined"
        b.do("put")
        a.wake()
        with pytest.raises(RuntimeError, match=FIRST):
            a.answer()
        assert b.do("keys") == [name.encode(), b"first"]
        assert b.do("power") > SEVERAL


@pytest.mark.parametrize("name", ["a2", "b2"])
@pytest.mark.parametrize("place", ["joined", "tables"])
def test_mender_that_goes_on_as_the_next_one_begins_does_not_end_its_work(
    url: str, place: str, name: str
) -> None:
    """It stands still for less than two leases, and its slot is still its own when it goes on."""
    with opener(url, "a2") as a, opener(url, name, a.pid) as b:
        stopped(a, place)
        assert mended(b.do("wake")), "a half-mended pool was joined"
        with pytest.raises(RuntimeError, match="open it again"):
            a.answer()
        b.do("put")
        assert mended(a.do("open")) is False
        a.do("close")
        assert b.do("keys") == [name.encode(), b"first"]


def test_pool_whose_mender_was_killed_is_made_whole_anew(url: str) -> None:
    with opener(url, "a2") as a, opener(url, "a2") as b:
        stopped(a, "tables")
        a.kill()
        assert mended(b.do("open"))
        assert b.do("keys") == [b"first"]


@pytest.mark.parametrize("name", ["a2", "b2"])
def test_newcomer_that_stands_still_blocks_no_other(url: str, name: str) -> None:
    with opener(url, "a2") as a, opener(url, name) as b:
        stopped(a, "joining")
        said = b.do("open")
        assert mended(said)
        a.wake()
        with pytest.raises(RuntimeError, match=FIRST):
            a.answer()
        assert b.do("keys") == [b"first"]


def test_newcomer_that_stands_still_is_named_where_no_client_lives(url: str) -> None:
    with opener(url, "a2") as a, opener(url, "b2") as b, opener(url, "a2") as c:
        b.do("open")
        a.do("open")
        a.do("close")
        stopped(a, "joining")  # b lives, so it does not make the pool whole
        b.kill()
        said = c.do("open")
        assert mended(said)
        assert any(f"process {a.pid} " in line and "stands still" in line for line in said)


def test_process_that_gave_the_last_slot_up_makes_no_step_without_the_gate(url: str) -> None:
    with opener(url, "a2") as a:
        assert FIRST in a.do("last")


def test_dead_client_whose_lock_is_not_seen_does_not_count_as_living(url: str) -> None:
    with opener(url, "a2") as a, opener(url, "b2") as b, opener(url, "a2") as c:
        a.do("open")
        b.do("open")
        b.do("close")
        assert a.do("power") == SEVERAL
        a.do("hide")
        a.kill()
        assert mended(c.do("open"))


def test_wait_for_the_gate_is_logged(url: str) -> None:
    with opener(url, "a2") as a, opener(url, "b2") as b:
        stopped(a, "joined")
        assert any("another process that opens it" in line for line in b.do("impatient"))


def test_gate_is_open_again_when_no_thread_can_be_started(url: str) -> None:
    with opener(url, "a2") as a, opener(url, "b2") as b:
        assert "new thread" in a.do("no_thread")
        assert not any("another process" in line for line in b.do("impatient"))
        b.do("put")
