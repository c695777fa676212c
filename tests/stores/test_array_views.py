"""`Array.numpy()`: what a view of the memory itself outlives."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.poison import PAGE, poison
from kit.puppets import PuppetPool

import limpet
from limpet.shm.endpoint.layout import OFFSET_MASK
from limpet.shm.endpoint.slots import PIN, RECORDS_COUNT
from limpet.stores.core import keeper
from limpet.stores.core.keeper import Keeper

SCRIPT = """
import gc, os, sys
import limpet
how, folder = sys.argv[1:]
pool = limpet.create(f"file://{folder}/pool", nodes=2, node_size="1MiB")
array = pool.array("a", 8)
view = array.numpy()
view[0] = 5
if "closed" in how:
    pool.close()
    del array, pool
    gc.collect()
if "cut" in how:
    for number in range(2):
        os.truncate(f"{folder}/pool/node.{number}", 0)
view[1] = 7
print(view[:2].tolist())
if how == "cut":
    print(sorted(node["state"] for node in pool.nodes()))
"""


@pytest.mark.parametrize("how", ["used", "closed", "cut", "closed, cut"])
def test_view_of_an_array_outlives_the_pool_and_the_memory(how: str, tmp_path: Path) -> None:
    if limpet.build == "pure" and "cut" in how:
        pytest.skip("Python code cannot survive SIGBUS")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how, tmp_path],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == ("[0, 7]" if "cut" in how else "[5, 7]")
    assert rest == (["['in service', 'lost']"] if how == "cut" else [])


@pytest.mark.skipif(limpet.build == "pure", reason="nothing is watched there")
def test_views_that_are_gone_are_watched_no_more(tmp_path: Path) -> None:
    """A process can watch so many mappings and no more, and each has a descriptor."""
    with limpet.create(f"file://{tmp_path}/pool", node_size="1MiB") as pool:
        array = pool.array("a", 8)
        array.numpy()  # the client that keeps its memory has descriptors, too
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(5_000):
            array.numpy()[0] = number
        assert array[0] == 4_999
        assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.skipif(limpet.build == "pure", reason="Python code cannot survive SIGBUS")
def test_a_node_with_a_poisoned_page_gives_no_view(pools: Any) -> None:
    """What is on the page would be zeros there, and a write would change the node."""
    pool = pools(nodes=1)
    array = pool.array("a", 2 * PAGE)
    array[...] = 7
    offset = array.address & OFFSET_MASK
    poison(pool.segments()[0].map, (offset + 8 * PAGE) // PAGE * PAGE)
    assert array[0] == 7
    for view in (array.numpy, lambda: list(array.parts())):
        with pytest.raises(limpet.NodeFailed):
            view()


# ---- memory that was given back -----------------------------------------------------------------

ROWS = 50_000


class Holder:
    """A forked process that does `work`, says so, waits until it is told, and does `then`."""

    def __init__(self, work: Callable[[], Any], then: Callable[[Any], object]) -> None:
        said, say = os.pipe()
        told, self.tell = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(self.tell)
                kept = work()
                os.write(say, b"x")
                os.read(told, 1)
                then(kept)
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        os.close(say)
        os.close(told)
        assert os.read(said, 1) == b"x"
        os.close(said)

    def go_on(self) -> None:
        os.close(self.tell)
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.tell)


def scribble(views: Any) -> None:
    for view in views:
        view[...] = 7


def fill(pool: limpet.Pool) -> dict[int, bytes]:
    """Fill all memory; what is there then."""
    pairs: dict[int, bytes] = {}
    mapping = pool.dict("others", codec="pickle")
    try:
        while True:
            value = bytes([len(pairs) % 251]) * 4000
            mapping[len(pairs)] = value
            pairs[len(pairs)] = value
    except limpet.StoreFull:
        return pairs


def unharmed(pool: limpet.Pool, pairs: dict[int, bytes]) -> None:
    mapping = pool.dict("others", codec="pickle")
    mapping.store.check()
    assert len(pairs) > 100
    assert dict(mapping.items()) == pairs
    pool.drop("others")


def held(pool: limpet.Pool) -> int:
    found = pool.audit()
    assert found["leaked"] == 0
    return found["held"]


def views_of(url: str) -> list[Any]:
    array = limpet.open(url).array("x", (ROWS, 2), "u1", stripes=2)
    return [view for _, view in array.parts()]


def test_a_removed_array_stays_as_long_as_a_process_has_its_ndarrays(pools: Any) -> None:
    pool = pools(nodes=2)
    holder = Holder(lambda: views_of(pool.url), scribble)
    mine = [view for _, view in pool.array("x").parts()]
    pool.channels.remove("x")
    pairs = fill(pool)
    assert held(pool) >= 2 * ROWS
    scribble(mine)
    del mine
    assert held(pool) >= 2 * ROWS
    holder.go_on()
    pool.recover()
    assert held(pool) == 0
    unharmed(pool, pairs)


def test_a_closed_pool_keeps_the_memory_of_ndarrays(pools: Any) -> None:
    pool = pools()
    mine = pools.again(pool)
    view = mine.array("x", ROWS, "u1").numpy()
    part = view[5:]
    del view
    mine.close()
    pool.channels.remove("x")
    pairs = fill(pool)
    part[:] = 7
    assert held(pool) >= ROWS
    del part
    assert held(pool) == 0
    unharmed(pool, pairs)


def test_a_killed_process_keeps_no_array(pools: Any) -> None:
    """Nor does the next client of its slot."""
    pool = pools(nodes=2)
    before = pool.audit()
    holder = Holder(lambda: views_of(pool.url), scribble)
    slots = {client["slot"] for client in pool.clients()}
    pool.channels.remove("x")
    assert held(pool) >= 2 * ROWS
    holder.kill()
    pool.recover()
    assert held(pool) == 0
    heirs = [pools.again(pool) for _ in slots]
    assert slots <= {client["slot"] for client in pool.clients()}
    views = [heir.array(f"y{n}", ROWS, "u1").numpy() for n, heir in enumerate(heirs)]
    for number in range(len(heirs)):
        pool.channels.remove(f"y{number}")
    assert held(pool) >= ROWS * len(heirs)
    del views
    assert held(pool) == 0
    after = pool.audit()
    assert after["reachable"] - before["reachable"] < 4096


@pytest.mark.parametrize("parent", ["drops", "is killed"])
def test_a_forked_child_keeps_the_arrays_of_its_parent(pools: Any, parent: str) -> None:
    pool = pools(nodes=2)
    url = pool.url
    said, say = os.pipe()
    told, tell = os.pipe()

    def fork() -> list[Any]:
        views = views_of(url)
        if not os.fork():
            os.close(tell)
            os.write(say, b"x")
            os.read(told, 1)
            scribble(views)
            os.write(say, b"y")
            os._exit(0)
        if parent == "drops":
            views.clear()
        return views

    holder = Holder(fork, lambda views: None)
    assert os.read(said, 1) == b"x"
    pool.channels.remove("x")
    if parent == "is killed":
        holder.kill()
        pool.recover()
    pairs = fill(pool)
    assert held(pool) >= 2 * ROWS
    os.write(tell, b"x")
    assert os.read(said, 1) == b"y"
    if parent == "drops":
        holder.go_on()
    for _ in range(1000):
        # The child may die between the two: what it had counts as leaked until the next look.
        pool.recover()
        audit = pool.audit()
        if not audit["held"] and not audit["leaked"]:
            break
    assert held(pool) == 0
    unharmed(pool, pairs)
    for end in (said, say, told, tell):
        os.close(end)


def test_a_daemon_keeps_the_arrays_of_the_processes_that_ended_in_their_forks(pools: Any) -> None:
    """A process that makes a daemon ends as soon as it has forked, twice."""
    pool = pools(nodes=2)
    said, say = os.pipe()
    told, tell = os.pipe()

    def daemon() -> None:
        views = views_of(pool.url)
        if os.fork() or os.fork():
            os._exit(0)
        os.close(tell)
        os.write(say, b"x")
        os.read(told, 1)
        scribble(views)
        os._exit(0)

    first = os.fork()
    if not first:
        daemon()
    os.close(say)
    os.close(told)
    assert os.waitpid(first, 0)[1] == 0
    assert os.read(said, 1) == b"x"
    pool.channels.remove("x")
    pool.recover()
    pairs = fill(pool)
    assert held(pool) >= 2 * ROWS
    os.close(tell)
    assert os.read(said, 1) == b""  # it has ended
    os.close(said)
    for _ in range(1000):
        # The child may die between the two: what it had counts as leaked until the next look.
        pool.recover()
        audit = pool.audit()
        if not audit["held"] and not audit["leaked"]:
            break
    assert held(pool) == 0
    unharmed(pool, pairs)


def test_a_fork_waits_for_no_child_that_gets_no_slot(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools(clients=4)  # one slot is kept; two are of this process, and its keeper
    views = pool.array("x", ROWS, "u1").numpy()
    others = [pools.again(pool)]
    monkeypatch.setattr(keeper, "FORK_MS", 100_000)
    began = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    assert time.monotonic() - began < 60
    os.close(read)
    del views
    pool.channels.remove("x")
    assert held(pool) >= ROWS  # of the child, which has no records
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(1000):
        if not held(pool):
            break
        time.sleep(0.01)
    assert held(pool) == 0
    del others


@pytest.mark.parametrize("parent", ["drops", "is killed"])
def test_a_child_that_is_stopped_in_the_fork(pools: Any, monkeypatch: Any, parent: str) -> None:
    """Until it has records of its own, its parent gives nothing back. If its parent is killed, and
    recovered, the memory may be another's: the child ends itself."""
    pool = pools(nodes=2)
    inherit = Keeper.inherit

    def stop(keeper: Keeper, theirs: dict[int, int]) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        inherit(keeper, theirs)

    read, write = os.pipe()

    def fork() -> tuple[list[Any], int]:
        views = views_of(pool.url)
        monkeypatch.setattr(Keeper, "inherit", stop)
        child = os.fork()
        if not child:
            scribble(views)
            os._exit(0)
        os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
        os.write(write, child.to_bytes(4, "little"))
        if parent == "drops":
            views.clear()
        return views, child

    def end(found: tuple[list[Any], int]) -> None:
        os.kill(found[1], signal.SIGCONT)
        assert os.waitpid(found[1], 0)[1] == 0

    holder = Holder(fork, end)
    child = int.from_bytes(os.read(read, 4), "little")
    pool.channels.remove("x")
    if parent == "is killed":
        holder.kill()
        pool.recover()
    pairs = fill(pool)
    assert (held(pool) >= 2 * ROWS) == (parent == "drops")
    if parent == "drops":
        holder.go_on()
    else:
        watched = os.pidfd_open(child)
        os.kill(child, signal.SIGCONT)
        select.select([watched], [], [])
        os.close(watched)
    pool.recover()
    assert held(pool) == 0
    unharmed(pool, pairs)
    os.close(read)
    os.close(write)


def test_a_child_without_a_slot_gives_back_nothing_of_its_parents(pools: Any) -> None:
    """Also later, when there is a slot for it, as it drops the ndarrays."""
    pool = pools(clients=4)
    more = pools.again(pool)
    view = pool.array("x", ROWS, "u1").numpy()
    read, write = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"x")
        os.read(told, 1)
        del view
        os.write(write, b"x")
        os.read(told, 1)
        os._exit(0)
    assert os.read(read, 1) == b"x"
    more.close()
    os.write(tell, b"x")
    assert os.read(read, 1) == b"x"
    pool.channels.remove("x")
    pairs = fill(pool)
    view[:] = 7
    assert held(pool) >= ROWS
    unharmed(pool, pairs)
    os.write(tell, b"x")
    assert os.waitpid(child, 0)[1] == 0
    del view
    for _ in range(1000):
        # The child may die between the two: what it had counts as leaked until the next look.
        pool.recover()
        audit = pool.audit()
        if not audit["held"] and not audit["leaked"]:
            break
    assert held(pool) == 0
    for end in (read, write, told, tell):
        os.close(end)


NO_DESCRIPTOR = """
import os, resource, sys
import limpet
pool = limpet.open(sys.argv[1])
view = pool.array("x", 4000, "u1").numpy()
told, tell = os.pipe()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
child = os.fork()
if not child:
    os.read(told, 1)
    view[:] = 7
    os._exit(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
del view
print("forked", flush=True)
input()
os.write(tell, b"x")
os.waitpid(child, 0)
"""


def test_a_fork_without_a_descriptor_left_keeps_the_memory_of_ndarrays(pools: Any) -> None:
    pool = pools()
    with subprocess.Popen(
        [sys.executable, "-c", NO_DESCRIPTOR, pool.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        pool.channels.remove("x")
        pairs = fill(pool)
        assert held(pool) >= 4000
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
    pool.recover()
    assert held(pool) == 0
    unharmed(pool, pairs)


def test_a_process_keeps_more_arrays_than_one_client_can(pools: Any) -> None:
    pool = pools()
    names = [f"x{number}" for number in range(2 * RECORDS_COUNT + 3)]
    views = [pool.array(name, 1000, "u1").numpy() for name in names]
    for name in names:
        pool.channels.remove(name)
    assert held(pool) >= 1000 * len(names)
    pairs = fill(pool)
    scribble(views)
    views.clear()
    assert held(pool) == 0
    unharmed(pool, pairs)


def test_an_array_that_is_removed_while_it_is_asked_for_its_memory(pools: Any) -> None:
    """At each verb of `numpy()`, another client removes the array and fills the pool."""
    pool = pools()
    other = pools.keep(PuppetPool.open(pool.url))
    number = found = 0
    while True:
        array = other.array("x", ROWS, "u1")
        number += 1
        left, pairs = [number], {}

        def remove(verb: str, address: int, left: Any = left, pairs: Any = pairs) -> None:
            left[0] -= 1
            if not left[0] and not other.endpoint.load(other.client.slot + PIN):
                pool.channels.remove("x")
                pairs.update(fill(pool))

        other.endpoint.before = remove
        try:
            view = array.numpy()
        except limpet.ChannelRemoved:
            view = None
        other.endpoint.before = None
        if pairs:
            found += 1
            if view is not None:
                view[:] = 7
            unharmed(pool, pairs)
        del view
        if left[0] > 0:
            break
        if not pairs:
            pool.channels.remove("x")
        assert held(pool) == 0
    assert found
