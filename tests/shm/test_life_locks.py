"""Dead processes, wherever they lived: containers, time namespaces, exec, few descriptors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.clients import churn, ids, slot_of
from kit.processes import child, children, gather

import limpet
from limpet.shm.clients import liveness
from limpet.shm.clients.liveness import request
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import SLOTS_USED
from limpet.shm.endpoint.slots import INCARNATION_BITS

LEASE_S = 0.1
NAP = "import time; time.sleep(100)"


def into_another_container(pool: limpet.Pool, ident: int) -> None:
    """Let a client look as if it were in another PID namespace of this host."""
    at = slot_of(ident) + slots.NAMESPACE
    pool.endpoint.store(at, pool.endpoint.load(at) ^ 1)


def become_another_program() -> None:
    os.execv(sys.executable, [sys.executable, "-c", NAP])


def fork_and_become_another_program() -> None:
    """The child that it leaves has all descriptors of the parent, but for those of life locks."""
    me = os.getpid()
    if os.fork():
        become_another_program()
    while os.getppid() == me:
        time.sleep(0.02)
    os._exit(0)


def serving(pool: limpet.Pool, store: Any = None) -> Any:
    """A child that joins, pins, and works on request."""
    return child(
        join=lambda: pool.client_id,
        pin=lambda: pool.client.enter(),
        put=lambda: store.put(b"of the child", b"value"),
        lock=lambda: pool.lock("l").acquire(),
        exec=become_another_program,
        fork_and_exec=fork_and_become_another_program,
    )


def after_exec(other: Any, action: str = "exec") -> None:
    """Have the child become another program, and wait until it is one."""
    other.send(action)
    while NAP.encode() not in Path(f"/proc/{other.pid}/cmdline").read_bytes():
        time.sleep(0.002)


def run_python(prefix: list[str], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the namespaces that `prefix` makes; skips where this user may not make them."""
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"this user may not run {' '.join(prefix)}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [*prefix, sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


# ---- other containers ----------------------------------------------------------------------------


def test_dead_client_of_another_container_is_recovered_by_who_opens(pools: Any) -> None:
    pool = pools()
    with serving(pool) as other:
        ident = other.do("join")
        into_another_container(pool, ident)
        other.kill()
    with limpet.open(pool.url):
        assert ids(pool) == {pool.client_id, pool.clients()[1]["client"]}
        assert ident not in ids(pool)


def test_frozen_client_of_another_container_is_given_up_and_finds_out(pools: Any) -> None:
    """Its beat stands still, and keeps memory from all others: it stopped all writes."""
    pool = pools(multi_host=True, lease=LEASE_S)
    with serving(pool, pool.store("race", name="s", capacity=64)) as other:
        ident = other.do("join")
        into_another_container(pool, ident)
        other.stop()
        found: list[int] = []
        end = time.monotonic() + 60
        while not found and time.monotonic() < end:
            found = pool.recover()["clients"]
            time.sleep(LEASE_S / 10)
        assert found == [ident]
        other.wake()
        with pytest.raises(RuntimeError, match=r"ClientError.*its lease was over"):
            other.do("put")


def test_frozen_client_of_another_container_is_waited_for_where_nobody_may_end_it(
    pools: Any,
) -> None:
    pool = pools(multi_host=True, lease=LEASE_S, fence="wait")
    with serving(pool) as other:
        ident = other.do("join")
        other.do("pin")
        into_another_container(pool, ident)
        other.stop()
        end = time.monotonic() + 5 * LEASE_S
        while time.monotonic() < end:
            assert pool.recover()["clients"] == []
            time.sleep(LEASE_S / 10)
        assert pool.endpoint.load(slot_of(ident) + slots.FENCE) == 0
        other.kill()
        assert pool.recover()["clients"] == [ident]


def test_container_that_crashed_locks_nobody_out(pools: Any) -> None:
    pool = pools()
    code = "import limpet, os, sys; limpet.open(sys.argv[1]).dict()['k'] = 1; os._exit(9)"
    container = ["unshare", "-pf", "--mount-proc"]
    url = pool.url
    pool.dict()
    pool.close()
    assert run_python(container, code, url).returncode == 9
    again = "import limpet, sys; print(limpet.open(sys.argv[1]).dict()['k'])"
    shown = run_python(container, again, url)
    assert (shown.stdout, shown.stderr) == ("1\n", "")
    with limpet.open(url) as here:
        assert here.dict()["k"] == 1
        assert len(here.clients()) == 1
        assert here.audit()["leaked"] == 0


# ---- time namespaces -----------------------------------------------------------------------------


def test_client_whose_start_time_looks_shifted_is_alive(pools: Any) -> None:
    pool = pools()
    with serving(pool) as other:
        started = slot_of(other.do("join")) + slots.STARTED
        pool.endpoint.store(started, pool.endpoint.load(started) + 100_000_000)
        assert pool.recover()["clients"] == []


def test_start_time_is_the_same_in_a_time_namespace() -> None:
    code = """
import sys
from limpet.shm.clients.liveness import start_time
print(start_time(int(sys.argv[1])))
"""
    shifted = ["unshare", "-T", "--boottime", "1000000", "--monotonic", "1000000"]
    shown = run_python(shifted, code, str(os.getpid()))
    assert int(shown.stdout) == liveness.start_time(os.getpid()), shown.stderr


def test_process_of_unknown_start_time_is_taken_for_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher = liveness.Watcher()
    here = os.getpid()
    assert not watcher.alive(here, 1)
    assert watcher.alive(here, 0)
    monkeypatch.setattr(liveness, "_time_shift", lambda: None)
    assert watcher.alive(here, 1)


# ---- descriptors ---------------------------------------------------------------------------------


def descriptors(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@contextlib.contextmanager
def crowd(pool: limpet.Pool, count: int) -> Iterator[None]:
    """So many forked children that are clients of the pool, and do nothing."""

    def stay() -> None:
        pool.client_id  # noqa: B018
        time.sleep(100)

    with children([stay] * count):
        while len(ids(pool)) <= count:
            time.sleep(0.01)
        yield


def test_other_clients_cost_no_descriptors(pools: Any) -> None:
    pool = pools(clients=64)
    store = pool.store("race", capacity=64)
    before = descriptors()
    with crowd(pool, 24):
        pool.recover()
        pipes = 24  # of the children
        assert descriptors() == before + pipes

        def work() -> int:
            soft = descriptors() + 16
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
            store.put(b"k", b"v" * 100)
            assert store.get(b"k") == b"v" * 100
            with pool.lock("l"):
                pool.recover()
            limpet.open(pool.url).close()
            return descriptors()

        (held,) = gather(work)
        assert held < before + pipes + 16


def test_one_client_too_many_is_refused_at_once(pools: Any) -> None:
    """It does not look for the dead in the slot that is kept for that: no client is dead."""
    pool = pools(clients=4)
    others = [pools.again(pool), pools.again(pool)]
    with pytest.raises(limpet.ClientError, match="all 3 client slots"):
        limpet.open(pool.url)
    assert pool.endpoint.load(SLOTS_USED) == 3
    others[0].close()
    limpet.open(pool.url).close()


def test_process_without_a_descriptor_left_is_told_so(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)

    def work() -> str:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors(), hard))
        held = []
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        with pytest.raises(limpet.ClientError, match="cannot have a life lock"):
            store.put(b"k", b"v")
        for fd in held:
            os.close(fd)
        store.put(b"k", b"v")
        return "well"

    assert gather(work) == ["well"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EMFILE])
def test_pool_is_used_and_suspects_are_killed_without_pidfds(
    pools: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*arguments: int) -> int:
        raise OSError(number, os.strerror(number))

    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=64)
    monkeypatch.setattr(os, "pidfd_open", refused)
    limpet.open(pool.url).close()
    with serving(pool, store) as other:
        ident = other.do("join")
        other.do("pin")
        other.stop()
        churn(pool, store)
        assert other.reap() == -signal.SIGKILL
    assert [(e["kind"], e["subject"]) for e in pool.events()][:1] == [("fenced", ident)]


# ---- exec ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["exec", "fork_and_exec"])
def test_client_that_became_another_program_is_recovered_and_lives_on(
    pools: Any, action: str
) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    with serving(pool, store) as other:
        ident = other.do("join")
        other.do("put")
        other.do("lock")
        after_exec(other, action)
        assert pool.lock("l").acquire(timeout=20)
        pool.recover()
        assert ids(pool) == {pool.client_id}
        assert pool.audit()["leaked"] == 0
        os.kill(other.pid, 0)
        assert os.waitpid(other.pid, os.WNOHANG) == (0, 0)
    assert store.get(b"of the child") == b"value"
    assert [(e["kind"], e["subject"]) for e in pool.events()] == [("recovered", ident)]


def test_program_that_a_pinned_client_became_is_not_killed(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=64)
    with serving(pool, store) as other:
        other.do("join")
        other.do("pin")
        after_exec(other)
        churn(pool, store)
        assert os.waitpid(other.pid, os.WNOHANG) == (0, 0)
    assert [event["kind"] for event in pool.events()] == ["recovered"]


# ---- the process that a slot names ---------------------------------------------------------------


@pytest.fixture
def bystander() -> Iterator[int]:
    """The pid of a process that has never opened a pool."""
    process = subprocess.Popen([sys.executable, "-c", NAP])
    try:
        yield process.pid
        assert process.poll() is None, "it was killed"
    finally:
        process.kill()
        process.wait()


def test_process_that_has_not_mapped_the_pool_is_never_killed(pools: Any, bystander: int) -> None:
    """Or whoever may write to a pool could have any process of this user killed."""
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=64)
    with serving(pool, store) as other:
        at = slot_of(other.do("join"))
        other.do("pin")
        other.stop()
        word = pool.endpoint.load(at)
        pool.endpoint.store(at, word & ~(0xFFFFFF << INCARNATION_BITS) | bystander << 36)
        pool.endpoint.store(at + slots.STARTED, liveness.start_time(bystander) or 0)
        with pytest.raises(limpet.StoreFull, match=str(bystander)):
            churn(pool, store)
        assert [(e["kind"], e["pid"]) for e in pool.events()] == [("suspended", bystander)]


def test_client_is_named_and_not_killed_where_its_maps_cannot_be_read(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=64)
    monkeypatch.setattr(liveness, "_maps", lambda process: None)
    with serving(pool, store) as other:
        other.do("join")
        other.do("pin")
        other.stop()
        with pytest.raises(limpet.StoreFull, match=str(other.pid)):
            churn(pool, store)
        assert [(e["kind"], e["pid"]) for e in pool.events()] == [("suspended", other.pid)]


@pytest.fixture
def reader(pools: Any) -> Iterator[tuple[limpet.Pool, Callable[[int], None]]]:
    """A pool, and a process that may only read its file and locks what it is told."""
    pool = pools(clients=6)
    control = f"/dev/shm/limpet.{pool.url.removeprefix('shm://')}.control"
    fd = os.open(control, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield pool, lambda slot: request(fd, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, slot, 1)
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


def test_newcomer_is_told_of_a_reader_that_locks_all_slots(reader: Any) -> None:
    pool, lock = reader
    for slot in range(1, 5):
        with limpet.open(pool.url):  # one slot, or the reader's own, keeps nobody out
            pass
        lock(slot)
    with pytest.raises(limpet.ClientError, match=r"locked the 4 free client slots for reading"):
        limpet.open(pool.url)


def test_dead_client_whose_slot_a_reader_locks_is_recovered(reader: Any) -> None:
    pool, lock = reader
    with serving(pool) as other:
        ident = other.do("join")
        other.kill()
    lock(ident >> INCARNATION_BITS)
    assert pool.recover()["clients"] == [ident]
