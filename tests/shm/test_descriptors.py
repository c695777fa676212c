"""Few descriptors, none left, and descriptors that others close behind a client."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.clients import churn, ids
from kit.parts import IS_LONG
from kit.processes import child, children, gather

import limpet
from limpet.shm.endpoint.slots import INCARNATION_BITS

LIMIT = 256


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def close_all_but(kept: set[int]) -> None:
    """Close the pipes of other children, which a forked child has, too."""
    names = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    for descriptor in names - kept:
        with contextlib.suppress(OSError):
            os.close(descriptor)


# ---- hundreds of clients -------------------------------------------------------------------------


def use(pool: limpet.Pool, name: bytes) -> None:
    """A put, a get, a lock and a queue of one client."""
    store = pool.store("race", name="many")
    store.put(name, name * 3)
    assert store.get(name) == name * 3
    with pool.lock("many"):
        pool.counter("counted").add()
    jobs = pool.queue("jobs", 8)
    jobs.put(name, timeout=60)
    jobs.get(timeout=60)


@pytest.mark.exhaustive("hundreds of clients")
@pytest.mark.parametrize(
    ("processes", "handles"),
    [
        (16, 33) if limpet.build == "compiled" else (2, 16),  # where a verb takes 20 us
        pytest.param(
            600, 1, marks=pytest.mark.skipif(not IS_LONG, reason="takes long: LIMPET_TEST_LONG=1")
        ),
    ],
)
def test_hundreds_of_clients_do_with_256_descriptors_each(
    pools: Any, processes: int, handles: int
) -> None:
    """Each process has so many handles, its limit is 256, and each handle is a client."""
    count = processes * handles
    pool = pools(node_size="64MiB", block_size="16KiB", clients=count + 2)  # one: for recoveries
    pool.store("race", name="many", capacity=2 * count)
    kept = {0, 1, 2, *range(3, 3 + descriptors())}
    told, tell = os.pipe()

    def work(number: int) -> None:
        close_all_but(kept | {tell})
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        mine = [pool, *(limpet.open(pool.url) for _ in range(handles - 1))]
        for each, handle in enumerate(mine):
            use(handle, b"%d of %d" % (each, number))
        assert descriptors() < LIMIT
        os.write(tell, b"x")
        signal.pause()

    with children([lambda n=n: work(n) for n in range(processes)]):
        os.close(tell)
        assert sum(len(os.read(told, 1)) for _ in range(processes)) == processes
        assert len(ids(pool)) == count + 1
        began = time.process_time()
        with pytest.raises(limpet.ClientError, match=f"all {count + 1} client slots"):
            limpet.open(pool.url)
        assert time.process_time() - began < 5, "the refusal took long"
        use(pool, b"beside them")
    os.close(told)
    assert len(pool.recover()["clients"]) == count
    assert pool.audit()["leaked"] == 0
    assert pool.counter("counted").value == count + 1
    limpet.open(pool.url).close()


# ---- a process with no descriptor left -----------------------------------------------------------


@contextlib.contextmanager
def few_left(count: int) -> Iterator[None]:
    """Have so many descriptors left, and no more, until the end."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors() + 16, 32), limits[1]))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


def take_lock(pool: limpet.Pool) -> None:
    assert pool.lock("of the dead").acquire(timeout=60)
    pool.lock("of the dead").release()


def replace(pool: limpet.Pool) -> None:
    if all(node["state"] == "in service" for node in pool.nodes()):
        pool.fail_node(1)
    pool.replace_node(1)


def make(pool: limpet.Pool) -> None:
    with contextlib.suppress(limpet.PoolNotFound):
        limpet.destroy(f"{pool.url}-2")
    limpet.create(f"{pool.url}-2", node_size="1MiB", clients=4).close()
    limpet.destroy(f"{pool.url}-2")


Work = Callable[[limpet.Pool], object]
WORKS: dict[str, Work] = {
    "join": lambda pool: pool.client_id,
    "put": lambda pool: pool.store("race", name="small").put(b"k", b"v"),
    "get": lambda pool: pool.store("race", name="small").get(b"k"),
    "lock": take_lock,
    "queue": lambda pool: (pool.queue("q").put(1), pool.queue("q").get()),
    "clover": lambda pool: pool.store("clover", name="asked").put(os.urandom(2), b"v"),
    "recover": lambda pool: pool.recover(),
    "clients": lambda pool: pool.clients(),
    "fence": lambda pool: churn(pool, pool.store("race", name="small")),
    "open": lambda pool: limpet.open(pool.url).close(),
    "create": make,
}
if limpet.build == "pure":
    del WORKS["fence"]  # for its time
OF_NODES: dict[str, Work] = {
    "join": lambda pool: pool.client_id,
    "get": lambda pool: pool.store("fusee", name="safe").get(b"k"),
    "put": lambda pool: pool.store("fusee", name="safe").put(b"k", b"v"),
    "replace": replace,
}


def with_few(pool: limpet.Pool, works: dict[str, Work]) -> dict[str, list[int]]:
    """For each work, with how many descriptors it was refused by an error of limpet."""
    refused: dict[str, list[int]] = {name: [] for name in works}
    held = 0
    for count in range(12):
        for name, work in works.items():
            with few_left(count):
                try:
                    work(pool)
                except limpet.ClientError:
                    refused[name].append(count)
                except limpet.StoreFull as error:
                    # The one that stands still is not killed unless its maps can be read.
                    refused[name].append(count if "held back by processes" in str(error) else -1)
        gc.collect()
        if count == 7:
            held = descriptors()
    assert descriptors() == held, "descriptors are leaked"
    return refused


def judge(refused: dict[str, list[int]]) -> None:
    """Refused with none left, and done as soon as there are as many as are needed."""
    for name, counts in refused.items():
        assert counts == list(range(len(counts))), name
        assert 1 <= len(counts) < 8, name


@pytest.mark.exhaustive("every number of descriptors")
def test_process_with_no_descriptor_left_is_told_so_by_errors_of_limpet(pools: Any) -> None:
    """Beside a dead client that has a lock, and one that stands still and is in the way."""
    pool = pools(node_size="1MiB", lease=0.02, clients=16)
    pool.queue("q", 8)
    pool.store("clover", name="asked", capacity=64)
    store = pool.store("race", name="small", capacity=64)
    with (
        child(lock=lambda: pool.lock("of the dead").acquire() and None) as dead,
        child(pin=lambda: (store.put(b"x", b"y"), pool.client.enter())[1]) as stopped,
        child(work=lambda: with_few(pool, WORKS)) as poor,
    ):
        dead.do("lock")
        dead.kill()
        stopped.do("pin")
        stopped.stop()
        refused = poor.do("work")
    judge(refused)
    assert refused["open"] > refused["put"]


@pytest.mark.exhaustive("every number of descriptors")
def test_process_with_no_descriptor_left_is_told_so_when_a_node_is_replaced(pools: Any) -> None:
    pool = pools(nodes=2, node_size="1MiB", clients=16)
    pool.store("fusee", name="safe", capacity=16, replicas=2).put(b"k", b"v")
    with child(work=lambda: with_few(pool, OF_NODES)) as poor:
        pool.fail_node(1)
        pool.replace_node(1)
        refused = poor.do("work")
    judge(refused)


# ---- closed behind a client ----------------------------------------------------------------------

WAYS = ("closerange", "dup2")


def ours() -> list[int]:
    """The descriptors of this process that are of a pool's segments."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "/limpet." in str(path.readlink()):
                found.append(int(path.name))
    return found


def close_behind(way: str, other: str = os.devnull) -> list[int]:
    """Take all descriptors from the handles of this process, as others do; which these were."""
    closed = ours()
    for fd in closed:
        if way == "closerange":
            os.closerange(fd, fd + 1)
        else:
            file = os.open(other, os.O_RDWR)
            os.dup2(file, fd)
            os.close(file)
    return closed


def working(pool: limpet.Pool, store: Any, way: str, other: str = os.devnull) -> Any:
    def put(number: int = 0) -> None:
        for each in range(20):
            store.put(b"%d" % each, bytes([each]) * 20_000)

    return child(
        join=lambda: pool.client_id,
        put=put,
        acquire=lambda: pool.lock("of the child").acquire(),
        release=lambda: pool.lock("of the child").release(),
        pin=lambda: pool.client.enter(),
        unpin=lambda: pool.client.leave(),
        close_behind=lambda: len(close_behind(way, other)),
        recover=lambda: pool.recover(),
        fork=lambda: gather(lambda: store.put(b"of the grandchild", b"value")),
        close=lambda: pool.close(),
    )


@pytest.mark.parametrize("way", WAYS)
def test_client_whose_descriptors_were_closed_lives_and_works_on(
    pools: Any, way: str, tmp_path: Path
) -> None:
    pool = pools()
    store = pool.store("race", name="store", capacity=64)
    other = tmp_path / "other"
    other.write_bytes(b"of another program")
    with working(pool, store, way, str(other)) as client:
        ident = client.do("join")
        slot = ident >> INCARNATION_BITS
        client.do("acquire")
        client.do("pin")
        assert client.do("close_behind") > 2
        assert not pool.membership.locks.held(slot)
        assert pool.recover()["clients"] == []
        assert not pool.lock("of the child").acquire(timeout=0.02)
        client.do("unpin")
        client.do("put")
        assert pool.recover()["clients"] == []
        # A look at the others has it take its lock again.
        client.do("recover")
        assert pool.membership.locks.held(slot)
        client.do("release")
        client.do("fork")
        assert other.read_bytes() == b"of another program"
        client.do("put")
        client.kill()
        assert set(pool.recover()["clients"]) | {ident} >= ids(pool) - {pool.client_id}
        assert ids(pool) == {pool.client_id}
    assert store.get(b"of the grandchild") == b"value"
    store.check()
    assert pool.audit()["leaked"] == 0


def test_client_without_its_descriptors_is_known_to_be_dead_at_once(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", name="store", capacity=64)
    with working(pool, store, "closerange") as client:
        ident = client.do("join")
        client.do("put")
        client.do("pin")
        client.do("close_behind")
        client.kill()
        assert pool.recover()["clients"] == [ident]
    assert pool.audit()["leaked"] == 0


def test_handle_closes_no_file_that_has_its_numbers_by_now(pools: Any) -> None:
    pool = pools(nodes=2)

    def work() -> list[bool]:
        handle = limpet.open(pool.url)
        array = handle.array("array", 8, "int64")
        view = array.numpy()
        closed = close_behind("closerange")
        mine = {os.open(os.devnull, os.O_RDONLY): fd for fd in closed}
        assert set(mine) == set(closed)
        del view, array
        handle.close()
        again = limpet.open(pool.url)  # whose numbers are others
        del again, handle
        gc.collect()
        null = Path(os.devnull).stat()
        return [os.path.samestat(os.fstat(fd), null) for fd in mine]

    (still,) = gather(work)
    assert all(still)
    assert len(still) > 2


def test_handle_does_not_close_the_descriptors_of_another_one_of_its_pool(pools: Any) -> None:
    """They are of the same files, and have the numbers that were its own."""
    pool = pools()

    kept = []

    def work() -> int:
        first = limpet.open(pool.url)
        close_behind("closerange")
        second = limpet.open(pool.url)
        kept.append(second)
        slot = second.client_id >> INCARNATION_BITS
        first.close()
        del first
        gc.collect()
        second.store("race", name="store", capacity=64).put(b"key", bytes(50_000))
        return slot

    with child(work=work) as client:
        slot = client.do("work")
        assert pool.membership.locks.held(slot)


def test_client_that_cannot_open_its_files_again_is_told_so(pools: Any) -> None:
    """The pool was destroyed, or, as here, other files have its names."""
    pool = pools()
    store = pool.store("race", name="store", capacity=64)
    with working(pool, store, "closerange") as client:
        ident = client.do("join")
        client.do("put")
        names = [Path(f"/proc/self/fd/{fd}").readlink() for fd in ours()]
        for name in set(names):
            name.rename(name.with_name(f"{name.name}.away"))
        try:
            client.do("close_behind")
            with pytest.raises(RuntimeError, match="were closed behind it"):
                client.do("recover")
            assert pool.recover()["clients"] == []
            assert ident in ids(pool)
            client.do("close")
        finally:
            for name in set(names):
                name.with_name(f"{name.name}.away").rename(name)
    assert ids(pool) == {pool.client_id}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_client_that_has_changed_its_user_works_on_and_so_do_its_children(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", name="store", capacity=64)
    with working(pool, store, "closerange") as client:
        client.do("join")

    def work() -> int:
        assert pool.client_id
        os.setuid(65534)
        store.put(b"of another user", b"value")
        gather(lambda: store.put(b"of its child", bytes(20_000)))
        return len(pool.recover()["clients"])

    assert gather(work) == [1]  # its child
    pool.recover()
    assert store.get(b"of another user") == b"value"
    assert store.get(b"of its child") == bytes(20_000)
    assert ids(pool) == {pool.client_id}
    assert pool.audit()["leaked"] == 0


def test_program_that_inherited_the_descriptors_of_a_client_is_not_the_client(pools: Any) -> None:
    """Its life lock is held, by a program that has not mapped the pool."""
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", name="store", capacity=64)

    def become_another_program() -> None:
        for fd in ours():
            os.set_inheritable(fd, True)
        os.execv("/bin/sleep", ["sleep", "100"])

    with child(
        join=lambda: pool.client_id, pin=lambda: pool.client.enter(), exec=become_another_program
    ) as client:
        ident = client.do("join")
        client.do("pin")
        client.send("exec")
        while b"sleep" not in Path(f"/proc/{client.pid}/cmdline").read_bytes():
            time.sleep(0.002)
        assert pool.membership.locks.held(ident >> INCARNATION_BITS)
        churn(pool, store)
        assert os.waitpid(client.pid, os.WNOHANG) == (0, 0)
        assert ident not in ids(pool)
