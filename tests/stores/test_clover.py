"""Clover: chains of versions, and the metadata process that knows where they begin."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest
from kit.known_bad import first_failure
from kit.parts import runs_of
from kit.processes import children, gather
from kit.stores import sound
from kit.waiting import until

import limpet
from limpet.fault.explore.explorer import Exploration, cluster_of, explore, numbered_run
from limpet.stores.baselines.clover import chains, server
from limpet.stores.baselines.clover.chains import DELETED, newer_of
from limpet.stores.baselines.clover.remote import Remote
from limpet.stores.baselines.clover.server import DUE, LOOKUP, NOTICE, Metadata
from limpet.stores.baselines.clover.store import Chain, Clover
from limpet.stores.core.status import AGAIN, DONE, MISSING

COMPILED = limpet.build == "compiled"


@pytest.fixture
def store(pools: Any) -> Any:
    return pools().store("clover", name="test", capacity=100)


def again(pools: Any, store: Any) -> Any:
    """A handle of another client."""
    return pools.again(store.pool).store(store.kind, name="test")


def await_end(pid: int) -> None:
    until(lambda: not psutil.pid_exists(pid), f"the metadata process {pid} goes on")


def trips(store: Any, work: Callable[[], object]) -> int:
    before = store.stats()["round_trips"]
    work()
    return int(store.stats()["round_trips"] - before)


# ---- the metadata process ------------------------------------------------------------------------


def test_a_request_ends_when_two_threads_close_the_pool(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were about to close it when the request began. The first one waits for it; the second
    one finds that, and lets the store go."""
    pool, receive, closing = store.pool, Remote._receive, []
    store.put(b"k", b"v")

    def closed(remote: Remote, connection: socket.socket) -> bytes:
        pool._leaving.waits = True
        closing.append(threading.Thread(target=pool._finalizer))
        closing[0].start()
        until(lambda: pool.closed)
        store.let_go()
        return receive(remote, connection)

    monkeypatch.setattr(Remote, "_receive", closed)
    with pytest.raises(limpet.PoolClosed):
        pool.exclusively(lambda: store.remote.ask(server.LOOKUP, b"k"))
    monkeypatch.undo()
    closing[0].join()


@pytest.mark.exhaustive("seconds of processes")
def test_it_is_started_by_who_needs_it_and_ends_with_its_last_client(
    store: Any, pools: Any
) -> None:
    assert not store.remote.connected
    assert store.get(b"k") is None
    pid = store.remote.pid
    other = again(pools, store)
    other.put(b"k", b"v")
    assert other.remote.pid == pid != os.getpid()
    assert len(store.pool.clients()) == 2  # it is no client of the pool
    store.pool.close()
    assert other.get(b"j") is None
    assert psutil.pid_exists(pid)
    other.pool.close()
    await_end(pid)


@pytest.mark.exhaustive("seconds of processes")
def test_it_ends_when_the_handle_is_forgotten(pools: Any) -> None:
    pool = pools()
    store = pool.store("clover", capacity=10)
    store.put(b"k", b"v")
    pid = store.remote.pid
    del store
    await_end(pid)


@pytest.mark.exhaustive("seconds of processes")
def test_it_outlives_who_started_it(store: Any) -> None:
    def work() -> None:
        store.put(b"k", b"v")
        os.kill(os.getpid(), signal.SIGKILL)

    with children([lambda: (store.get(b"j"), signal.pause())]) as keeping:
        other = limpet.open(store.pool.url).store("clover", name="test")
        with children([work]) as running:
            os.waitpid(running[0][0], 0)
        assert other.get(b"k") == b"v"
        pid = other.remote.pid
        os.kill(keeping[0][0], signal.SIGKILL)
        os.waitpid(keeping[0][0], 0)
        assert other.insert(b"more", b"v") is None
        assert other.remote.pid == pid
        other.pool.close()
    await_end(pid)


def test_clients_that_begin_at_once_have_one(store: Any) -> None:
    def work() -> tuple[int, int]:
        mine = 0
        for number in range(50):
            try:
                store.insert(b"%d" % number, b"v")
                mine += 1
            except limpet.KeyExists:
                continue
        return mine, store.remote.pid

    found = gather(*[work] * 6)
    assert sum(mine for mine, _ in found) == 50
    assert len(store) == 50
    sound(store)


@pytest.mark.exhaustive("seconds of processes")
def test_nobody_waits_for_the_end_of_its_output(store: Any) -> None:
    """It was forked by a process whose output another one reads to the end."""
    code = (
        "import limpet, sys; pool = limpet.open(sys.argv[1])\n"
        "store = pool.store('clover', name='test'); store.put(b'k', b'v'); print(store.remote.pid)"
    )
    with children([lambda: (time.sleep(0.3), store.get(b"k"), signal.pause())]):
        done = subprocess.run(
            [sys.executable, "-c", code, store.pool.url],
            capture_output=True, timeout=60, check=True, cwd=Path(limpet.__file__).parent.parent,
        )  # fmt: skip
    assert int(done.stdout) > 0
    await_end(int(done.stdout))


# ---- when it is killed ---------------------------------------------------------------------------


def kill_metadata(store: Any) -> int:
    store.remote.ask(server.LOOKUP, b"")
    pid = int(store.remote.pid)
    os.kill(pid, signal.SIGKILL)
    await_end(pid)
    return pid


@pytest.mark.exhaustive("seconds of processes")
def test_when_it_is_killed_the_log_says_so_and_the_next_one_knows_all(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = {b"%d" % number: b"v" * number for number in range(60)}
    store.put_many(pairs)
    store.update(b"7", b"newer")
    store.delete(b"8")
    killed = kill_metadata(store)
    store.cache.clear()
    with caplog.at_level(logging.WARNING, "limpet"):
        assert store.get(b"7") == b"newer"
    assert f"the metadata process {killed} of 'test' has ended" in caplog.text
    assert store.remote.pid != killed
    assert store.get(b"8") is None
    with pytest.raises(limpet.KeyExists):
        store.insert(b"9", b"")
    store.insert(b"8", b"again")
    kill_metadata(store)
    assert dict(store.items()) == {**pairs, b"7": b"newer", b"8": b"again"}
    sound(store)


@pytest.mark.exhaustive("seconds of processes")
def test_it_may_be_killed_at_any_time(store: Any) -> None:
    keys = [b"%d" % number for number in range(20)]
    kills = 30 if COMPILED else 10
    over = mmap.mmap(-1, 1)

    def work(seed: int) -> int:
        source = random.Random(seed)
        done = 0
        while not over[0] or done <= 20:
            key = source.choice(keys)
            if source.random() < 0.3:
                try:
                    store.delete(key)
                except KeyError:
                    done += 1
            else:
                store.put(key, key * source.randrange(1, 200))
            value = store.get(key)
            assert value is None or value == key * (len(value) // len(key))
            done += 1
        return done

    def kill() -> None:
        try:
            for _ in range(kills):
                store.remote.ask(server.LOOKUP, b"")
                os.kill(store.remote.pid, signal.SIGKILL)
                time.sleep(0.05)
        finally:
            over[0] = 1

    gather(*[lambda s=s: work(s) for s in range(3)], kill)
    assert sum(key in store for key in keys) == len(store)
    sound(store)


def test_one_that_stands_still_is_killed_when_others_need_it(
    store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(b"k", b"v")
    monkeypatch.setattr(store.remote, "patience_s", 0.1)
    store.remote.close()
    assert store.get(b"j") is None
    pid = store.remote.pid
    os.kill(pid, signal.SIGSTOP)
    assert store.get(b"k") == b"v"  # it is cached
    with caplog.at_level(logging.WARNING, "limpet"):
        assert store.get(b"i") is None
    assert f"killing the metadata process {pid}" in caplog.text
    assert store.remote.pid != pid
    sound(store)


def test_with_fence_wait_everybody_waits_for_one_that_stands_still(
    pools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = pools(fence="wait").store("clover", name="test", capacity=100)
    store.put(b"k", b"v")
    pid = store.remote.pid
    os.kill(pid, signal.SIGSTOP)
    store.remote.socket.settimeout(0.05)

    def wake() -> None:
        store.remote.socket.settimeout(60)  # on a busy machine a later answer takes its time
        os.kill(pid, signal.SIGCONT)

    class Wakes(logging.Filter):
        """It goes on a while after it was named."""

        def filter(self, record: logging.LogRecord) -> bool:
            threading.Timer(0.3, wake).start()
            return True

    wakes = Wakes()
    caplog.handler.addFilter(wakes)
    try:
        with caplog.at_level(logging.WARNING, "limpet"):
            assert store.get(b"j") is None
    finally:
        caplog.handler.removeFilter(wakes)
    assert store.remote.pid == pid
    assert caplog.text.count(f"everyone waits for the metadata process {pid}") == 1


NOBODY = 65534


def squat(address: str, uid: int, ready: int) -> None:
    """Be a process of that user which listens at the name, and never answers."""
    os.setuid(uid)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(16)
        os.write(ready, b"x")
        signal.pause()


@pytest.mark.exhaustive("seconds of processes")
@pytest.mark.parametrize("user", ["the same", "another"])
def test_process_that_binds_the_name_of_one_that_ended_does_no_harm(store: Any, user: str) -> None:
    """Abstract sockets have no owner: each user of the host may bind any name that is free."""
    if user == "another" and os.getuid():
        pytest.skip("only root can be another user")
    store.put(b"k", b"v")
    address = store.remote.address
    kill_metadata(store)
    uid = NOBODY if user == "another" else os.getuid()
    out, into = os.pipe()
    with children([lambda: squat(address, uid, into)]) as squatters:
        assert os.read(out, 1) == b"x"
        os.close(out)
        os.close(into)
        store.cache.clear()
        assert store.get(b"k") == b"v"
        store.insert(b"j", b"w")
        assert store.remote.address != address
        assert os.waitpid(squatters[0][0], os.WNOHANG) == (0, 0)
    sound(store)


def test_metadata_process_that_is_interrupted_as_it_begins_is_no_copy_of_its_parent(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is for it, too; here it comes between the fork and the first statement of it."""
    store.put(b"k", b"v")
    kill_metadata(store)
    live, parent, remote = server._live, os.getpid(), store.remote

    def interrupted(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        live(*given)

    monkeypatch.setattr(server, "_live", interrupted)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        assert server.start(remote.pool, remote.place, remote.tables, remote.heads) == ""
    finally:
        if os.getpid() != parent:
            os._exit(1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert remote.place.holder()[0]
    sound(store)


def test_answer_to_a_request_that_was_cut_off_is_not_taken_for_another_one(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two signal handlers: while it waits, and where it begins to close the connection."""
    store.put(b"k", b"v")

    def cut_off(remote: Remote, *_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "_receive", cut_off)
        patch.setattr(Remote, "close", cut_off)
        with pytest.raises(KeyboardInterrupt):
            store.remote.state(LOOKUP, b"none")
    assert store.remote.state(LOOKUP, b"k")[0]
    sound(store)


def test_client_of_another_network_namespace_starts_no_second_one(store: Any) -> None:
    """Two that assign heads would give one head to two keys."""
    isolated = ["unshare", "-n"]
    if subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make network namespaces")
    store.put(b"k", b"v")
    code = (
        "import limpet, sys\n"
        "store = limpet.open(sys.argv[1]).store('clover', name='test')\n"
        "store.remote.patience_s = 0.1\n"
        "try: store.get(b'k')\n"
        "except limpet.StoreError as error: print(error)"
    )
    done = subprocess.run(
        [*isolated, sys.executable, "-c", code, store.pool.url],
        capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert "another network namespace" in done.stdout
    store.cache.clear()
    assert store.get(b"k") == b"v"


@pytest.mark.exhaustive("seconds of processes", quick=["True"])
@pytest.mark.parametrize("ends", [True, False])
def test_one_that_reads_its_index_has_more_time(
    store: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: bool
) -> None:
    """It is not killed before it can answer; one that stands still there is."""

    class SlowAtFirst(server.Metadata):
        def rebuild(self) -> None:
            with contextlib.suppress(FileExistsError):
                (tmp_path / "met").touch(exist_ok=False)
                time.sleep(0.8 if ends else 100)
            super().rebuild()

    monkeypatch.setattr(server, "Metadata", SlowAtFirst)
    store.remote.patience_s = 0.4 if ends else 0.1
    with children([lambda: (store.put(b"k", b"v"), signal.pause())]):
        while not store.remote.place.holder()[0]:
            time.sleep(0.001)
        first, ready = store.remote.place.holder()
        assert not ready
        assert store.get(b"j") is None
        assert (store.remote.place.holder() == (first, True)) == ends


def test_what_is_due_is_told_after_the_notices_of_all(pools: Any) -> None:
    """However many it finds at once, and whichever of their senders it finds first."""
    store = pools(fence="wait").store("clover", name="test", capacity=100)
    other = again(pools, store)
    other.put(b"k0", b"v")
    for number in range(6):
        store.put(b"k%d" % number, b"v")
    store.remote.ask(DUE)
    pid = store.remote.pid
    os.kill(pid, signal.SIGSTOP)
    for number in range(6):
        (store if number else other).remote.tell(NOTICE, b"k%d" % number)

    def wake() -> None:
        time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)

    with children([wake]):
        due = np.frombuffer(other.remote.ask(DUE), "<u8").tolist()
    assert store.remote.pid == pid
    assert due == sorted(store.remote.state(LOOKUP, b"k%d" % number)[0] for number in range(6))


def test_pools_that_it_cannot_serve_are_refused(pools: Any) -> None:
    with pytest.raises(limpet.ParameterError, match="multi_host"):
        pools(multi_host=True).store("clover")


# ---- chains --------------------------------------------------------------------------------------


def test_readers_follow_the_chain_and_remember_its_end(
    store: Any, pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(b"k", b"0")
    other = again(pools, store)
    other.put(b"warm", b"0")  # memory is at hand
    sound(store)
    assert trips(other, lambda: other.get(b"k")) == 2
    with monkeypatch.context() as patch:
        patch.setattr(Clover, "_linked", Clover._remember)  # killed before it moves the shortcut
        for number in range(1, 6):
            store.update(b"k", b"%d" % number)
    assert len(store.references()) == 7
    values: list[bytes] = []
    assert trips(other, lambda: values.append(other.get(b"k"))) == 6
    assert trips(other, lambda: values.append(other.get(b"k"))) == 1
    assert values == [b"5", b"5"]
    for number in range(6, 9):
        store.update(b"k", b"%d" % number)
    assert trips(other, lambda: values.append(other.get(b"k"))) == 2
    assert values[-1] == b"8"
    assert trips(other, lambda: other.update(b"k", b"7")) == 2
    assert store.get(b"k") == other.get(b"k") == b"7"


def test_what_is_remembered_counts_for_a_period(store: Any, pools: Any) -> None:
    """The version that a handle remembers is collected, and its memory used for another key."""
    store.put(b"k", b"before")
    other = again(pools, store)
    assert other.get(b"k") == b"before"
    collect_and_reuse(store, *store.references().tolist())
    assert trips(other, lambda: other.get(b"k")) == 3
    assert other.get(b"k") == b"after"


def test_period_is_of_one_chain(store: Any, pools: Any) -> None:
    """Versions of other keys are collected, and k is remembered all the same."""
    store.put_many({b"%d" % number: b"v" for number in range(9)})
    other = again(pools, store)
    assert other.get(b"7") == b"v"
    for number in range(3):
        store.update(b"%d" % number, b"w")
    store.recover()
    assert trips(other, lambda: other.get(b"7")) == 1


def test_handle_that_remembers_nothing_asks_each_time(pools: Any) -> None:
    store = pools().store("clover", name="test", capacity=100, cache_size=0)
    store.put(b"k", b"v")
    for _ in range(2):
        assert trips(store, lambda: store.get(b"k")) == 2
        assert trips(store, lambda: store.update(b"k", b"w")) == 2
    sound(store)


def collect_and_reuse(store: Any, before: int) -> None:
    """Have k's value be `after`, and the object that it was in before be used for j."""
    store.update(b"k", b"after")
    for number in range(2000):
        store.put(b"j", b"other%d" % (number % 10))
        if number % server.DUE_MAX == 0:
            store.recover()
        if number > 100 and before in store.references().tolist():
            return
    pytest.fail("the memory is not used again")


def test_every_sixty_fourth_change_collects(store: Any) -> None:
    for number in range(1000):
        store.put(b"%d" % (number % 5), b"v")
    assert 5 <= len(store.references()) < 5 + 2 * server.DUE_MAX
    assert sound(store)["reachable"] == 5 * 48


def test_heads_of_keys_that_are_gone_are_used_again(store: Any) -> None:
    for number in range(1000 if COMPILED else 300):
        store.insert(b"%d" % number, b"v")
        if number >= 90:
            store.delete(b"%d" % (number - 90))
    assert len(store) == 90
    sound(store)


def test_a_row_is_not_given_away_while_a_client_may_begin_a_chain_there(
    store: Any, pools: Any
) -> None:
    """A client that remembers its row does not ask for it. It was seen vacant before; but since
    then, and since the client's pin, the row had a chain."""
    metadata = Metadata(store.endpoint, store.tables, store.parameters.heads)
    store.put(b"key", b"1")
    metadata.rebuild()
    store.delete(b"key")
    store.recover()
    metadata._reap()
    store.put(b"key", b"2")
    other = again(pools, store)
    with other.client:
        store.delete(b"key")
        store.recover()
        metadata._reap()
        metadata._reap()
        assert b"key" in metadata.index
    metadata._reap()
    metadata._reap()
    assert b"key" not in metadata.index


def test_a_key_that_was_deleted_begins_a_new_chain(store: Any, pools: Any) -> None:
    other = again(pools, store)
    for number in range(20):
        store.insert(b"k", b"%d" % number)
        assert other.get(b"k") == b"%d" % number
        with pytest.raises(limpet.KeyExists):
            other.insert(b"k", b"")
        other.delete(b"k")
        assert store.get(b"k") is None
        with pytest.raises(KeyError):
            store.update(b"k", b"")
        with pytest.raises(KeyError):
            store.delete(b"k")
        store.put(b"k", b"put")
        other.delete(b"k")
    assert sound(store)["reachable"] == 0


def test_check_sees_damage(store: Any) -> None:
    store.put(b"k", b"v")
    store.put(b"j", b"v")
    store.check()
    (first, second) = (head for head in store._heads())
    version = store.endpoint.load(second)
    at = version & (1 << 48) - 1
    store.endpoint.store(second, store.endpoint.load(first))
    with pytest.raises(limpet.StoreCorrupt, match="also has the head"):
        store.check()
    store.endpoint.store(second, version)
    store.endpoint.store(at + chains.NEWER, store.endpoint.load(first))
    with pytest.raises(limpet.StoreCorrupt, match="has the keys"):
        store.check()
    store.endpoint.store(at + chains.NEWER, 0)
    store.endpoint.write(at + 40, b"damaged!")
    with pytest.raises(limpet.StoreCorrupt, match="checksum"):
        store.check()


# ---- explorer ------------------------------------------------------------------------------------


@pytest.mark.exhaustive("more faults", quick=["40-{}"])
@pytest.mark.soak("large values of a slow kind", cases=["3400*"])
@pytest.mark.parametrize("changes", [{}, {"fence": "wait"}, {"node_failures": 1}], ids=str)
@pytest.mark.parametrize("value_size", [40, 3400])
def test_explorer(changes: dict[str, Any], value_size: int) -> None:
    explored = Exploration(
        store="clover", schedules=runs_of(400), seed=7, crashes=2, value_size=value_size, **changes
    )
    assert explore(explored).failures == ()


def test_runs_are_repeated_though_the_metadata_process_is_another_process() -> None:
    explored = Exploration(store="clover", seed=5, crashes=2)
    with cluster_of(explored) as stage:
        for number in range(20 if COMPILED else 4):
            first = numbered_run(stage, explored, number).digest()
            assert numbered_run(stage, explored, number).digest() == first


# ---- known-bad variants --------------------------------------------------------------------------


def trusts_the_cache(self: Clover, key: bytes, kind: int) -> tuple[Chain, int]:
    row, period, version = self.cache.get(key, (0, 0, 0))
    chain = Chain(row, period, version, 0) if row else self._asked(key, kind)
    return chain, self._follow(chain.start) if chain.start else 0


def appends(link: Callable[[Clover, int, int], int], notices_the_end: bool = True) -> Any:
    """`Clover._append` that links a version in another way."""

    def run(self: Clover, key: bytes, chain: Chain, version: int) -> int:
        start = chain.start
        while newer := link(self, newer_of(start), version):
            self.endpoint.wait()
            if newer == DELETED and notices_the_end:
                return MISSING
            start = newer
        self.endpoint.wait()
        self._linked(key, chain, version)
        return DONE

    return run


def links_as_shipped(self: Clover, at: int, version: int) -> int:
    self.client.retarget(0, at)
    return int(self.endpoint.cas(at, 0, version))


def links_by_a_store(self: Clover, at: int, version: int) -> int:
    self.client.retarget(0, at)
    return int(self.endpoint.load(at) or self.endpoint.store(at, version))


def links_without_aim(self: Clover, at: int, version: int) -> int:
    return int(self.endpoint.cas(at, 0, version))


def empties_the_head(self: Clover, key: bytes) -> int:
    row, version, *_ = self.remote.state(LOOKUP, key)
    self.cache.pop(key, None)
    if version in (0, DELETED):
        return MISSING
    self.endpoint.store(row, 0)
    self.endpoint.wait()
    return DONE


def begins_unchecked(self: Clover, key: bytes, chain: Chain, version: int) -> int:
    if BEGIN(self, key, chain, version) == AGAIN:
        self._remember(key, chain, version)
    return DONE


def leaves_the_shortcut(self: Clover, row: int, version: int, further: int) -> None:
    """It may lead to a version that is taken off its chain."""


BEGIN: Final = Clover._begin
EXPLORED: Final = {
    "version-linked-by-a-store": ("_append", appends(links_by_a_store)),
    "delete-empties-the-head": ("_delete_once", empties_the_head),
    "version-not-aimed": ("_append", appends(links_without_aim)),
    "insert-does-not-look-at-its-cas": ("_begin", begins_unchecked),
    "ended-chain-not-noticed": ("_append", appends(links_as_shipped, notices_the_end=False)),
}
"""A method, and what is there instead."""


def test_mutant_that_leaves_the_shortcut_reads_what_was_freed(
    pools: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clover, "_move_shortcut", leaves_the_shortcut)
    store.put(b"k", b"first")
    store.update(b"k", b"before")
    (_, before) = store.references().tolist()
    monkeypatch.setattr(Clover, "_linked", Clover._remember)  # killed before the shortcut
    collect_and_reuse(store, before)
    assert again(pools, store).get(b"k") != b"after"


@pytest.mark.skipif(not COMPILED, reason="caught by many runs")
@pytest.mark.exhaustive("thousands of runs")
@pytest.mark.parametrize("mutant", EXPLORED)
def test_mutant_is_caught_by_the_explorer(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clover, *EXPLORED[mutant])
    assert first_failure(Exploration(store="clover", schedules=30_000, value_size=40))


def test_mutant_with_a_cache_without_periods_reads_what_was_freed(
    pools: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clover, "_newest", trusts_the_cache)
    store.put(b"k", b"before")
    other = again(pools, store)
    assert other.get(b"k") == b"before"
    collect_and_reuse(store, *store.references().tolist())
    assert other.get(b"k") != b"after"


def test_interrupt_right_after_connecting_leaves_a_handle_that_works(
    pools: Any, monkeypatch: Any
) -> None:
    """The connection was in use already when it was closed; the next request got EBADF."""
    store = pools().store("clover", name="test", capacity=20)
    store.put(b"k", b"v")
    store.remote.close()
    used = Remote._use

    def interrupted(self: Remote, connection: socket.socket, pid: int) -> None:
        used(self, connection, pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(Remote, "_use", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.remote.tell(NOTICE, b"k")
    monkeypatch.undo()
    store.put(b"new", b"v")
    assert store.get(b"new") == b"v"
