"""Pools as processes use them: opened, passed on, forked, shared by threads, closed, destroyed."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit.processes import children, gather

import limpet
from limpet.__main__ import main
from limpet.shm.backends.posix import PosixShm

PURE = limpet.build == "pure"
METHODS = ("fork", "spawn", "forkserver")


@pytest.fixture
def pool(pools: Any) -> limpet.Pool:
    made: limpet.Pool = pools(nodes=2)
    return made


# ---- opening and closing ------------------------------------------------------------------------


def test_create_open_destroy(make_url: Callable[[], str]) -> None:
    url = make_url()
    with pytest.raises(limpet.PoolNotFound, match=url):
        limpet.open(url)
    with limpet.create(url, nodes=3, node_size="1MiB") as made:
        try:
            assert made.parameters.nodes == 3
            assert made.parameters.node_size == 1 << 20
            with pytest.raises(limpet.PoolExists, match=url):
                limpet.create(url)
            with limpet.open(url) as opened:
                assert opened.parameters == made.parameters
                assert opened.uuid == made.uuid
                assert repr(opened) == f"<Pool {url}>"
        finally:
            removed = limpet.destroy(url)
    assert len(removed) == 4
    with pytest.raises(limpet.PoolNotFound):
        limpet.open(url)
    with pytest.raises(limpet.PoolNotFound):
        limpet.destroy(url)


def test_blocks_are_as_large_as_the_nodes_have_room_for(
    pools: Any, make_url: Callable[[], str]
) -> None:
    made = pools(nodes=1, node_size="160MiB", block_size="16MiB")
    assert made.parameters.block_size == 16 << 20
    with pytest.raises(limpet.ParameterError, match=f"a node of {4 << 20} bytes"):
        limpet.create(make_url(), nodes=1, node_size="4MiB", block_size="16MiB")


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0}, {"nodes": 256}, {"nodes": "3"}, {"node_size": "lots"}, {"node_size": 1000},
        {"block_size": 1000}, {"clients": 1}, {"fence": "ask"}, {"latency": "fast"},
        {"latency": -1}, {"size_of_hat": 3}, {"coherent": None},
    ],
    ids=repr,
)  # fmt: skip
def test_parameters_that_cannot_be_leave_nothing(
    make_url: Callable[[], str], wrong: dict[str, Any]
) -> None:
    url = make_url()
    with pytest.raises(limpet.ParameterError):
        limpet.create(url, **wrong)
    with pytest.raises(limpet.PoolNotFound):
        limpet.destroy(url)


def _calls(pool: Any, store: Any, shared: Any) -> list[Callable[[], object]]:
    return [
        lambda: store.get(b"k"),
        lambda: store.get_many([b"k"]),
        lambda: store.put(b"k", b"v"),
        lambda: store.insert(b"k", b"v"),
        lambda: store.update(b"k", b"v"),
        lambda: store.delete(b"k"),
        lambda: b"k" in store,
        lambda: len(store),
        lambda: list(store),
        store.check,
        store.recover,
        lambda: shared["k"],
        lambda: shared.update(k=1),
        lambda: pool.store("race", name="s"),
        lambda: pool.store("race", name="new"),
        lambda: pool.dict("d"),
        pool.stores,
        pool.clients,
        pool.events,
        pool.audit,
        pool.recover,
        pool.nodes,
        lambda: pool.client_id,
        lambda: pool.fail_node(0),
        lambda: next(pool.watch()),
    ]


def test_a_closed_pool_raises_pool_closed(pool: limpet.Pool) -> None:
    store = pool.store("race", name="s", capacity=100)
    shared = pool.dict("d", capacity=100)
    assert not pool.closed
    pool.close()
    pool.close()
    assert pool.closed
    assert "closed" in repr(pool)
    for call in _calls(pool, store, shared):
        with pytest.raises(limpet.PoolClosed):
            call()


def test_closing_one_handle_leaves_the_others(pool: limpet.Pool, pools: Any) -> None:
    store = pool.store("race", name="s", capacity=100)
    other = pools.again(pool)
    theirs = other.store("race", name="s")
    theirs.put(b"k", b"v")
    assert len(pool.clients()) == 2
    other.close()
    assert len(pool.clients()) == 1
    assert store.get(b"k") == b"v"
    assert pool.recover()["clients"] == []
    audit = pool.audit()
    assert audit["leaked"] == audit["held"] == 0


def test_leaving_the_block_closes(make_url: Callable[[], str]) -> None:
    url = make_url()
    try:
        with pytest.raises(ZeroDivisionError), limpet.create(url, node_size="1MiB") as pool:
            _ = 1 / 0
        assert pool.closed
        with limpet.open(url) as pool:
            assert len(pool.clients()) == 1
    finally:
        limpet.destroy(url)


def test_a_handle_that_is_dropped_leaves(pool: limpet.Pool) -> None:
    limpet.open(pool.url).store("race", name="s", capacity=100).put(b"k", b"v")
    gc.collect()
    assert len(pool.clients()) == 1


def test_destroyed_under_a_client(pool: limpet.Pool) -> None:
    """A client that has it open goes on with what is mapped."""
    store = pool.store("race", name="s", capacity=100)
    limpet.destroy(pool.url)
    store.put(b"k", b"v")
    assert store.get(b"k") == b"v"
    store.check()


# ---- pickling -----------------------------------------------------------------------------------


def test_pickled_handles_are_by_name(pool: limpet.Pool) -> None:
    store = pool.store("race", name="s", capacity=100)
    shared = pool.dict("d", codec="json", capacity=100)
    store.put(b"k", b"v")
    shared["k"] = 1
    again, store_again, shared_again = pickle.loads(pickle.dumps((pool, store, shared)))
    assert again.uuid == pool.uuid
    assert store_again.get(b"k") == b"v"
    assert shared_again == {"k": 1}
    assert shared_again.codec.name == "json"
    assert store_again.parameters == store.parameters
    assert pickle.loads(pickle.dumps(store)).pool is again
    again.close()


def test_a_pickle_of_a_destroyed_pool(pools: Any) -> None:
    pool = pools()
    data = pickle.dumps(pool)
    pool.close()
    limpet.destroy(pool.url)
    with pytest.raises(limpet.PoolNotFound):
        pickle.loads(data)
    pools.keep(limpet.create(pool.url, node_size="1MiB"))
    with pytest.raises(limpet.PoolNotFound, match="another pool"):
        pickle.loads(data)


def _work(pool: limpet.Pool, store: Any, shared: Any, results: Any, number: int) -> None:
    """In another process: use each handle, and return our client ids."""
    assert store.get(b"from the parent") == b"v"
    store.put(b"from child %d" % number, b"v")
    shared[number] = os.getpid()
    idents = {pool.client_id, store.pool.client_id, shared.store.pool.client_id}
    results.put((os.getpid(), idents, [c["pid"] for c in pool.clients() if c["ours"]]))


@pytest.mark.parametrize("method", METHODS)
def test_handles_passed_to_processes(pool: limpet.Pool, method: str) -> None:
    store = pool.store("race", name="s", capacity=100)
    shared = pool.dict("d", capacity=100)
    store.put(b"from the parent", b"v")
    context: Any = multiprocessing.get_context(method)
    results = context.Queue()
    workers = [
        context.Process(target=_work, args=(pool, store, shared, results, number))
        for number in range(3)
    ]
    try:
        for worker in workers:
            worker.start()
        found = [results.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
                worker.join()
        results.close()
        results.join_thread()
    everyone = [pool.client_id]
    for pid, idents, ours in found:
        assert len(idents) == 1, "handles of one process are one client"
        assert ours == [pid]
        everyone += idents
    assert len(set(everyone)) == 4
    assert len(store) == 4
    assert sorted(shared.values()) == sorted(pid for pid, _, _ in found)
    pool.recover()
    assert [client["pid"] for client in pool.clients()] == [os.getpid()]
    assert pool.audit()["leaked"] == 0


# ---- fork ---------------------------------------------------------------------------------------


def test_a_forked_child_is_a_client_of_its_own(pool: limpet.Pool) -> None:
    store = pool.store("race", name="s", capacity=100)
    store.put(b"k", b"v")
    mine = pool.client_id

    def child() -> tuple[int, list[dict[str, Any]]]:
        assert store.get(b"k") == b"v"
        store.put(b"child", b"v")
        return pool.client_id, pool.clients()

    theirs, clients = gather(child)[0]
    assert theirs != mine
    assert {client["client"] for client in clients} == {mine, theirs}
    assert [client["client"] for client in clients if client["ours"]] == [theirs]
    assert pool.client_id == mine
    assert store.get(b"child") == b"v"
    store.put(b"parent", b"v")
    store.check()


def test_no_two_processes_share_a_client_id(pool: limpet.Pool) -> None:
    """Also when they fork at once, from children, and while the handle is in use."""
    store = pool.store("race", name="s", capacity=1000)

    def grandchild() -> list[int]:
        store.put(b"%d" % os.getpid(), b"v")
        return [pool.client_id]

    def child() -> list[int]:
        before = [] if os.getpid() % 2 else [pool.client_id]
        below = gather(grandchild, grandchild)
        return list({*before, pool.client_id}) + below[0] + below[1]

    idents = [ident for found in gather(*[child] * 8) for ident in found] + [pool.client_id]
    assert len(idents) == 25
    assert len(set(idents)) == 25
    pool.recover()
    assert len(pool.clients()) == 1


def test_a_child_that_never_uses_its_handle_takes_nothing(pool: limpet.Pool) -> None:
    store = pool.store("race", name="s", capacity=100)
    store.put(b"k", b"v")
    gather(lambda: None)
    assert len(pool.clients()) == 1
    assert pool.recover()["clients"] == []
    assert store.get(b"k") == b"v"


def test_a_child_that_closes_its_handle_leaves_the_parents(pool: limpet.Pool) -> None:
    store = pool.store("race", name="s", capacity=100)
    store.put(b"k", b"v")

    def unused() -> None:
        pool.close()
        with pytest.raises(limpet.PoolClosed):
            store.get(b"k")

    def used() -> None:
        store.put(b"k", b"w")
        pool.close()
        with pytest.raises(limpet.PoolClosed):
            store.get(b"k")

    gather(unused, used)
    assert store.get(b"k") == b"w"
    store.put(b"k", b"x")
    assert len(pool.clients()) == 1
    assert pool.audit()["leaked"] == 0


def test_a_forked_child_of_a_closed_pool(pool: limpet.Pool) -> None:
    store = pool.store("race", name="s", capacity=100)
    pool.close()

    def child() -> None:
        with pytest.raises(limpet.PoolClosed):
            store.get(b"k")

    gather(child)


# ---- threads ------------------------------------------------------------------------------------


def _run_threads(functions: list[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_threads_share_a_handle(pool: limpet.Pool) -> None:
    store = pool.store("race", name="s", capacity=2000)
    count = 50 if PURE else 500

    def work(number: int) -> None:
        for index in range(count):
            key = b"%d %d" % (number, index % 50)
            store.put(key, key * (1 + index % 400))
            assert store.get(key) == key * (1 + index % 400)
            if index % 7 == 0:
                store.delete(key)
                assert key not in store
        list(store.items())

    _run_threads([lambda n=n: work(n) for n in range(6)])
    assert len(pool.clients()) == 1
    store.check()
    assert pool.audit()["leaked"] == 0


def test_a_thread_that_is_inside_nearly_always_keeps_no_other_one_waiting(
    pool: limpet.Pool,
) -> None:
    """Python changed threads only when that one was inside, so the others met it there for ever."""
    store = pool.store("race", name="s", capacity=1000)
    most = 6000
    over = threading.Event()
    turns = [0]
    seen = []

    def stay_inside() -> None:
        while not over.is_set() and turns[0] < most:
            pool.exclusively(lambda: sum(range(20_000)))
            turns[0] += 1

    def work() -> None:
        try:
            for _ in range(10):
                time.sleep(0.001)
                store.put(b"k", b"v")
                seen.append(turns[0])
        finally:
            over.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 10)  # on a fast machine there are fewer turns between looks
    try:
        _run_threads([stay_inside, work])
    finally:
        sys.setswitchinterval(interval)
    assert seen[-1] < most // 2


@pytest.mark.exhaustive("seconds of processes")
def test_forks_while_threads_use_the_handle(pool: limpet.Pool) -> None:
    """A child may be forked in the middle of another thread's operation."""
    store = pool.store("race", name="s", capacity=1000)
    over = threading.Event()
    children_made = 4 if PURE else 20

    def work(number: int) -> None:
        index = 0
        while not over.is_set():
            index += 1
            store.put(b"%d" % number, b"%d" % index)

    def child() -> int:
        store.put(b"child", b"v")
        assert store.get(b"child") == b"v"
        store.get_many([b"0", b"1"])
        return pool.client_id

    def fork() -> None:
        try:
            idents = [gather(child)[0] for _ in range(children_made)]
            assert len({*idents, pool.client_id}) == children_made + 1
        finally:
            over.set()

    _run_threads([lambda: work(0), lambda: work(1), fork])
    pool.recover()
    store.check()
    audit = pool.audit()
    assert audit["leaked"] == audit["held"] == 0


def test_a_handle_used_inside_its_own_operation(pool: limpet.Pool) -> None:
    store = pool.store("race", name="s", capacity=100)
    store.put(b"k", b"v")
    for call in (lambda: store.get(b"k"), lambda: store.put(b"k", b"w"), pool.audit, pool.close):
        with pytest.raises(limpet.ReentrantUse):
            pool.exclusively(call)
    assert store.get(b"k") == b"v"
    assert not pool.closed


def test_a_handle_that_a_signal_threw_out_of_an_operation_leaves_when_it_is_collected(
    pool: limpet.Pool,
) -> None:
    thrown_out = limpet.open(pool.url)
    thrown_out.endpoint.begin()
    assert len(pool.clients()) == 2
    del thrown_out
    gc.collect()
    assert len(pool.clients()) == 1


# ---- client slots -------------------------------------------------------------------------------


def test_client_slots_run_out_and_are_used_again(pools: Any) -> None:
    pool = pools(clients=4)
    others = [pools.again(pool), pools.again(pool)]
    with pytest.raises(limpet.ClientError, match=r"3 client slots.*more clients"):
        limpet.open(pool.url)
    seen = {pool.client_id} | {other.client_id for other in others}
    for _ in range(20):
        others.pop().close()
        others.append(pools.again(pool))
        assert others[-1].client_id not in seen
        seen.add(others[-1].client_id)
    with pytest.raises(limpet.ClientError, match=r"made with clients=4, of which one is kept"):
        limpet.open(pool.url)
    assert len(pool.clients()) == 3


def test_slots_of_killed_processes_are_used_again(pools: Any) -> None:
    pool = pools(clients=4)
    store = pool.store("race", name="s", capacity=100)
    seen = {pool.client_id}

    def die() -> None:
        store.put(b"%d" % os.getpid(), b"v")
        os.kill(os.getpid(), signal.SIGKILL)

    for number in range(10):
        with children([die]) as running:
            assert os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1]) == -signal.SIGKILL
        assert len(store) == number + 1
    with limpet.open(pool.url) as other:
        assert other.client_id not in seen
    pool.recover()
    assert len(pool.clients()) == 1


def test_a_child_that_finds_no_slot(pools: Any) -> None:
    """It says so each time, and takes one as soon as there is one."""
    pool = pools(clients=3)
    store = pool.store("race", name="s", capacity=100)
    store.put(b"k", b"v")
    other = pools.again(pool)
    with contextlib.ExitStack() as stack:
        full, tell_full, free, tell_free = *os.pipe(), *os.pipe()
        for end in (full, free, tell_free):
            stack.callback(os.close, end)

        def child() -> bytes:
            for _ in range(2):
                with pytest.raises(limpet.ClientError):
                    store.get(b"k")
            os.write(tell_full, b"x")
            os.read(free, 1)
            return bytes(store.get(b"k"))

        (_, result), *_ = stack.enter_context(children([child]))
        os.close(tell_full)
        assert os.read(full, 1) == b"x"
        other.close()
        os.write(tell_free, b"x")
        assert pickle.loads(result.read()) == b"v"
    assert store.get(b"k") == b"v"


def test_watch_reports_the_dead(pool: limpet.Pool) -> None:
    store = pool.store("race", name="s", capacity=100)
    gather(lambda: store.put(b"k", b"v"))
    found = next(pool.watch())
    assert len(found["clients"]) == 1
    assert found["time_ns"] > 0
    assert store.get(b"k") == b"v"


# ---- names, sizes and users ----------------------------------------------------------------------


def test_a_bare_name_is_that_of_shared_memory_as_on_the_command_line(pools: Any) -> None:
    url = pools().url
    name = url.removeprefix("shm://")
    with limpet.open(name) as pool:
        assert pool.url == url
    assert limpet.destroy(name)
    with limpet.create(name, node_size="1MiB") as pool:
        assert pool.url == url
    with pytest.raises(limpet.PoolExists):
        limpet.create(name)
    with pytest.raises(limpet.ParameterError):
        limpet.open("no/name")


@pytest.mark.parametrize(("text", "size"), [("1MB", 999_424), ("1M", 999_424), ("1MiB", 1 << 20)])
def test_a_size_in_text_is_rounded_down_to_whole_pages(pools: Any, text: str, size: int) -> None:
    assert pools(node_size=text).parameters.node_size == size
    with pytest.raises(limpet.ParameterError, match="multiple of 4096"):
        pools(node_size=1_000_000)


def test_segments_have_the_mode_of_the_pool_and_so_has_a_node_that_is_replaced(pools: Any) -> None:
    pool = pools(nodes=2, mode=0o660, group=os.getgid())
    pool.fail_node(1)
    pool.replace_node(1)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in segments_of(pool)}
    assert modes == {0o660}
    assert {stat.S_IMODE(path.stat().st_mode) for path in segments_of(pools())} == {0o600}


def segments_of(pool: Any) -> list[Path]:
    return list(Path("/dev/shm").glob(f"limpet.{pool.url.removeprefix('shm://')}.*"))


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o777, 0, True, "660"])
def test_a_mode_lets_others_read_and_write_or_nothing(pools: Any, mode: Any) -> None:
    if mode == 0o600:
        pools(mode=mode)
    else:
        with pytest.raises(limpet.ParameterError, match="mode must be"):
            pools(mode=mode)
    with pytest.raises(limpet.ParameterError, match="no group 'no such group'"):
        pools(group="no such group")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the right to be another user")
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_another_user_of_the_group_opens_a_pool_that_was_made_for_it(pools: Any, mode: int) -> None:
    theirs, group = 54_321, 54_322
    pool = pools(mode=mode, group=group, fence="wait")
    pool.dict("d")["k"] = "root's"

    def other(any_owner: bool) -> Any:
        os.setgroups([])
        os.setgid(group)
        os.setuid(theirs)
        try:
            with limpet.open(pool.url, any_owner=any_owner) as mine:
                found = mine.dict("d")["k"]
                mine.dict("d")["k"] = "theirs"
                return found
        except limpet.PoolPermission:
            return "refused"

    def command() -> list[str]:
        os.setgroups([])
        os.setgid(group)
        os.setuid(theirs)
        runs = [
            CliRunner().invoke(main, ["inspect", pool.url, *more]) for more in ([], ["--any-owner"])
        ]
        assert "--any-owner" in runs[0].output
        return ["refused" if run.exit_code == 1 else "found" for run in runs]

    assert gather(lambda: other(False)) == ["refused"]
    if mode == 0o600:
        assert gather(lambda: other(True)) == ["refused"]
    else:
        assert gather(lambda: other(True)) == ["root's"]
        assert pool.dict("d")["k"] == "theirs"
        assert gather(command) == [["refused", "found"]]


def test_the_creator_of_a_pool_is_warned_once_it_is_made(
    make_url: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PosixShm, "warning", lambda self: "it will go away")
    url = make_url()
    try:
        limpet.create(url, node_size="1MiB").close()
        assert [one.getMessage() for one in caplog.records] == [f"{url}: it will go away"]
        caplog.clear()
        for arguments in ({}, {"clients": 1}):
            with pytest.raises((limpet.PoolExists, limpet.ParameterError)):
                limpet.create(url, **arguments)
        assert not caplog.records
    finally:
        limpet.destroy(url)


def test_open_with_create_makes_a_pool_once(make_url: Any) -> None:
    url = make_url()

    def use() -> Any:
        with limpet.open(url, create=True, node_size="2MiB", nodes=2, clients=16) as pool:
            return pool.parameters.nodes, pool.uuid

    try:
        assert len(set(gather(use, use, use, use))) == 1
        with limpet.open(url, create=True, nodes=1) as pool:  # it stays as it is
            assert pool.parameters.nodes == 2
    finally:
        limpet.destroy(url)


def test_open_without_create_takes_no_parameters_of_a_new_pool(make_url: Any) -> None:
    with pytest.raises(limpet.ParameterError, match="node_size: a pool that is there stays"):
        limpet.open(make_url(), node_size="2MiB")
    with pytest.raises(limpet.PoolNotFound):
        limpet.open(make_url())
