"""Processes that make and remove pools of one name at once; `limpet drill names` has more."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import limpet
from limpet.cli import drill_ends
from limpet.fault.drill.names import ACTS, PLACES, SIZES, WAYS, Names
from limpet.fault.inject.workers import Workers
from limpet.shm.backends import inventory
from limpet.shm.backends.file import FilePlace
from limpet.shm.backends.location import SHM_DIR, backends
from limpet.shm.backends.name import held
from limpet.shm.backends.posix import PosixShm
from limpet.shm.endpoint.layout import CONTROL_NODE

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

assert drill_ends.names.name == "names"
ROWS = [(scheme, act, way) for scheme in PLACES for act in ACTS for way in WAYS]


@pytest.mark.exhaustive("every way", quick=["*makes anew", "shm-*killed, then open"])
@pytest.mark.parametrize(("scheme", "act", "way"), ROWS)
def test_another_process_acts_on_the_name_at_each_event(scheme: str, act: str, way: str) -> None:
    with PLACES[scheme]() as url:
        result = Names(url, share=1).run(act, way)
    assert result.ok, result.failure
    assert result.runs > 1


def test_every_backend_has_a_place_in_the_drill() -> None:
    own = [kind for kind in backends() if kind.__module__.startswith("limpet.shm.")]
    assert set(PLACES) == {kind.scheme for kind in own}


@pytest.mark.parametrize(
    ("act", "broken"), [("create", "flock"), ("destroy", "flock"), ("create", "same")]
)
def test_trap_name_that_is_taken_for_an_identity_is_caught_by_the_drill(
    act: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock of the name; or a lock, and no look whether the name still leads to what it locks."""
    if broken == "flock":
        monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)
    else:
        monkeypatch.setattr(FilePlace, "same", lambda self, fd: True)
    with PLACES["shm"]() as url:
        results = [Names(url, share=0).run(act, way) for way in ("destroys", "makes anew")]
    assert not all(result.ok for result in results)


def test_trap_removal_that_does_not_say_so_first_is_caught_by_the_drill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A killed destroyer leaves what looks like a pool that has lost a node."""
    monkeypatch.setattr(inventory, "take_back", lambda location, fd: None)
    with PLACES["shm"]() as url:
        result = Names(url, share=0).run("destroy", "killed, then open")
    assert not result.ok


def test_file_in_the_place_of_a_node_ends_no_call_in_a_loop(make_url: Callable[[], str]) -> None:
    url = make_url()
    place = PosixShm.parse(url, url.removeprefix("shm://"))
    path = place.path(0)
    path.touch(0o600)  # nothing: it is removed
    limpet.open(url, create=True, **SIZES).close()
    place.path(CONTROL_NODE).unlink()  # what is left is not known to be anybody's garbage
    with pytest.raises(limpet.PoolExists, match="without the control segment"):
        limpet.open(url, create=True, timeout_s=0.05, **SIZES)
    assert limpet.destroy(url) == [place.segment(index) for index in range(3)]
    path.write_bytes(b"a text of another program")
    with pytest.raises(limpet.PoolExists, match="not a pool's"):
        limpet.open(url, create=True, timeout_s=0.05, **SIZES)
    assert path.read_bytes() == b"a text of another program"
    assert not place.path(CONTROL_NODE).exists()
    path.unlink()


def test_name_that_a_stopped_process_holds_is_an_error_that_names_it(
    make_url: Callable[[], str],
) -> None:
    url = make_url()
    limpet.create(url, **SIZES).close()

    def target(slot: int, incarnation: int) -> None:
        with held(PosixShm.parse(url, url.removeprefix("shm://"))):
            os.kill(os.getpid(), signal.SIGSTOP)

    with Workers(target) as workers:
        pid = workers.start(0)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(limpet.PoolIncomplete, match=f"another process.*pid {pid}"):
            limpet.destroy(url, timeout_s=0.05)
        with pytest.raises(limpet.PoolExists):
            limpet.create(url, **SIZES)
        limpet.open(url).close()
    limpet.destroy(url)


def test_forked_child_does_not_keep_the_name_of_its_parent(make_url: Callable[[], str]) -> None:
    """The parent dies, while its child lives on."""
    url = make_url()
    limpet.create(url, **SIZES).close()
    there, tell = os.pipe()

    def target(slot: int, incarnation: int) -> None:
        with held(PosixShm.parse(url, url.removeprefix("shm://"))):
            if os.fork() == 0:
                os.write(tell, b"%d\n" % os.getpid())
                signal.pause()
            signal.pause()

    with Workers(target) as workers:
        workers.start(0)
        child = int(os.read(there, 20))
        workers.end()
        try:
            limpet.destroy(url, timeout_s=5)
        finally:
            os.kill(child, signal.SIGKILL)
    os.close(there)
    os.close(tell)


def test_processes_that_make_and_destroy_one_pool_come_to_an_end(
    make_url: Callable[[], str],
) -> None:
    url = make_url()

    def target(slot: int, incarnation: int) -> None:
        for turn in range(20):
            with limpet.open(url, create=True, timeout_s=30, **SIZES) as pool:
                pool.dict("d")[b"%d" % slot] = turn
            if turn % 5 == slot % 5:
                with contextlib.suppress(limpet.PoolNotFound):
                    limpet.destroy(url, timeout_s=30)

    with Workers(target) as workers:
        for slot in range(6):
            workers.start(slot)
        end = time.monotonic() + 60
        ended = []
        while len(ended) < 6 and time.monotonic() < end:
            ended += workers.wait(1)
        assert [one.traceback for one in ended] == [""] * 6
    limpet.open(url, create=True, **SIZES).close()
    limpet.destroy(url)
    assert not list(Path(SHM_DIR).glob(f"limpet.{url.removeprefix('shm://')}.*"))
