"""Pools that go away with their last client, and `limpet prune`."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit.processes import child, exit_code, fork

import limpet
from limpet.__main__ import main
from limpet.fault.drill.engine import steps
from limpet.fault.drill.names import Act, Names, NamesPool
from limpet.fault.matrix.operations import Broken, demand
from limpet.shm import ephemeral
from limpet.shm.backends import node
from limpet.shm.backends.location import SHM_DIR, parse_url
from limpet.shm.backends.name import held, take_back
from limpet.shm.backends.superblock import MAGIC
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import LimpetError, PoolIncomplete, PoolNotFound
from limpet.stores.pool import Pool

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

SIZES: dict[str, Any] = {"node_size": "1MiB", "clients": 8, "ephemeral": True}


@pytest.fixture
def url(make_url: Any) -> Iterator[str]:
    """Of a pool that is destroyed after the test, if it is there."""
    made = make_url()
    yield made
    with contextlib.suppress(PoolNotFound):
        destroy(made)


def is_there(url: str) -> bool:
    """Whether any segment of a pool in shared memory is there; looks at names alone."""
    return any(SHM_DIR.glob(f"limpet.{url.removeprefix('shm://')}.*"))


def left_by_a_killed_process(*urls: str) -> None:
    """Ephemeral pools whose only client was killed."""

    made: list[Any] = []

    def keep() -> None:
        made.extend(limpet.create(url, **SIZES) for url in urls)
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(fork(keep)) == -signal.SIGKILL
    assert all(map(is_there, urls))


# ---- its end -------------------------------------------------------------------------------------


def test_last_close_removes_the_pool(url: str) -> None:
    first = limpet.create(url, **SIZES)
    first.dict()["k"] = 1
    second = limpet.open(url)
    first.close()
    assert second.dict()["k"] == 1
    assert limpet.prune(url) == []
    second.close()
    assert not is_there(url)
    with pytest.raises(PoolNotFound):
        limpet.open(url)


def test_temporary_pool_is_removed_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), limpet.temporary(node_size="1MiB") as pool:
        pool.dict()["k"] = 1 / 0
    assert not is_there(pool.url)


def test_program_that_ends_by_an_exception_leaves_no_temporary_pool() -> None:
    code = "import limpet; pool = limpet.temporary(node_size='1MiB'); print(pool.url); 1 / 0"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "ZeroDivisionError" in done.stderr
    assert done.stdout.startswith("shm://temporary-")
    assert not is_there(done.stdout.strip())


@pytest.mark.parametrize("name", ["url", "ephemeral"])
def test_a_temporary_pool_has_a_name_of_its_own_and_always_ends(name: str) -> None:
    with pytest.raises(TypeError, match="takes no"):
        limpet.temporary(**{name: False})  # type: ignore[arg-type]


def test_children_by_url_or_by_pickle_keep_the_pool() -> None:
    pool = limpet.temporary(node_size="1MiB", clients=8)
    pool.dict()["k"] = 1
    word = pickle.dumps(pool.dict())
    opened: list[Any] = []
    with child(
        by_url=lambda: opened.append(limpet.open(pool.url)),
        by_pickle=lambda: opened.append(pickle.loads(word)),
        read=lambda: opened[-1].dict()["k"] if len(opened) == 1 else opened[-1]["k"],
        close=lambda: [opened[0].close(), opened.pop().store.pool.close()],
    ) as other:
        for way in ("by_url", "by_pickle"):
            other.do(way)
            assert other.do("read") == 1
        pool.close()
        assert other.do("read") == 1
        with limpet.open(pool.url) as again:
            assert again.dict()["k"] == 1
        other.do("close")
    assert limpet.prune(pool.url) == []
    assert not is_there(pool.url)


def test_forked_child_finds_that_the_pool_is_gone(url: str) -> None:
    pool = limpet.create(url, **SIZES)
    mapping = pool.dict()

    def get() -> str:
        try:
            return str(mapping.get("k"))
        except LimpetError as error:
            return type(error).__name__

    with child(get=get) as other:
        pool.close()
        assert other.do("get") == "PoolNotFound"


# ---- after a kill --------------------------------------------------------------------------------


def test_who_looks_next_removes_a_pool_whose_clients_were_killed(make_url: Any) -> None:
    opened, opened_or_made, created, listed, pruned = urls = [make_url() for _ in range(5)]
    before = f"shm://temporary-{os.getpid()}-0"
    left_by_a_killed_process(*urls, before)
    with pytest.raises(PoolNotFound, match="went away with its last client"):
        limpet.open(opened)
    assert not is_there(opened)
    with limpet.open(opened_or_made, create=True, **SIZES) as pool:
        assert pool.stores() == []
    with limpet.create(created, **SIZES) as pool:
        assert pool.stores() == []
    rows = json.loads(run("ls", listed, "--json", fails=True) or "[]")
    assert rows == []
    assert not is_there(listed)
    with limpet.temporary(node_size="1MiB"):
        assert not is_there(before)
    told = json.loads(run("prune", pruned, "--dry-run", "--json"))
    assert [(row["url"], row["what"]) for row in told["pools"]] == [(pruned, "ephemeral")]
    assert is_there(pruned)
    assert f"removed {pruned}: ephemeral, 1." in run("prune", pruned)
    assert not any(map(is_there, urls))
    assert run("prune", pruned) == "nothing to remove\n"


def run(*words: str, fails: bool = False) -> str:
    done = CliRunner().invoke(main, list(words))
    assert (done.exit_code != 0) == fails, done.output
    return done.stdout


def test_clients_that_stand_still_or_lost_their_locks_keep_the_pool(url: str) -> None:
    """A life lock that is not held is no death: a library may have closed all descriptors."""
    opened: list[Any] = []

    def close_all() -> None:
        for path in list(Path("/proc/self/fd").iterdir()):
            with contextlib.suppress(OSError):
                if "limpet" in str(path.readlink()):
                    os.close(int(path.name))

    with child(
        open=lambda: opened.append(limpet.create(url, **SIZES)),
        put=lambda: opened[0].dict().__setitem__("k", 1),
        close_all=close_all,
    ) as other:
        other.do("open")
        other.do("put")
        other.stop()
        assert limpet.prune(url) == []
        other.wake()
        other.do("close_all")
        assert limpet.prune(url) == []
        with limpet.open(url) as pool:
            assert pool.dict()["k"] == 1
        assert is_there(url)
    assert [row["what"] for row in limpet.prune(url)] == ["ephemeral"]


def left_by_another_container(url: str, lease: float) -> None:
    """An ephemeral pool whose only client died in another PID namespace."""
    container = ["unshare", "-pf", "--mount-proc"]
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"this user may not run {' '.join(container)}")
    code = (
        "import limpet, os, sys; pool = limpet.create(sys.argv[1], node_size='1MiB', "
        f"lease={lease}, multi_host=True, ephemeral=True); os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*container, sys.executable, "-c", code, url], env=environment, check=False
    )
    assert done.returncode == 9


def test_client_of_another_container_is_known_to_be_dead_by_its_lease(url: str) -> None:
    left_by_another_container(url, 0.2)
    run("ls", url)
    assert is_there(url)  # a look is no wait
    assert [row["what"] for row in limpet.prune(url)] == ["ephemeral"]
    assert not is_there(url)


def test_signal_handler_ends_the_wait_for_a_lease(url: str) -> None:
    left_by_another_container(url, 3600)

    def prune() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        limpet.prune(url)

    def interrupted() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            prune()

    assert exit_code(fork(interrupted, 30)) == 0
    assert is_there(url)


def test_prune_removes_what_a_killed_creator_has_left(url: str, pools: Any) -> None:
    location, stays = parse_url(url), pools()
    control = node.create(location, CONTROL_NODE, 1 << 20)
    assert limpet.prune(url) == []  # its creator is at work
    with contextlib.closing(control):
        pass
    assert [row["what"] for row in limpet.prune(url, dry_run=True)] == ["half-created"]
    assert is_there(url)
    assert limpet.prune(url) == [{"url": url, "what": "half-created", "bytes": 1 << 20}]
    assert not is_there(url)
    assert limpet.prune(stays.url) == []
    stays.close()
    assert limpet.prune(stays.url) == []
    assert is_there(stays.url)


# ---- refusals ------------------------------------------------------------------------------------


def test_pools_that_cannot_end_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(limpet.ParameterError, match="durable"):
        limpet.create(url, ephemeral=True, durable=True)
    with pytest.raises(limpet.ParameterError, match="stays until it is destroyed"):
        limpet.create(f"dax://{tmp_path}/dax0.0", ephemeral=True)
    with pytest.raises(limpet.ParameterError, match="ephemeral must be True or False"):
        limpet.create(url, ephemeral=1)


def test_another_users_pool_stays(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left_by_a_killed_process(url)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: 12345)
        assert limpet.prune(url) == []
        run("ls", url)
        assert is_there(url)
    assert limpet.prune(url) != []


# ---- races ---------------------------------------------------------------------------------------


def at_events(test: Any) -> Any:
    """Run it at every event of a call, and in `make test` at a share of them."""
    each = pytest.mark.parametrize("share", [4, 0], ids=["some", "every"])
    return pytest.mark.exhaustive("every event", quick=["*some*"])(each(test))


def _makes(url: str) -> Any:
    pool = NamesPool.create(url, **SIZES)
    pool.dict()["k"] = 1
    return pool


def _opens(url: str, begun: Any) -> None:
    with NamesPool.open(url, timeout_s=0.1) as pool:
        _demand_whole(url, pool)


def _demand_whole(url: str, pool: Any) -> None:
    """A client has a pool with its value, which the next process can open."""
    demand(pool.dict()["k"] == 1, "the value is gone")
    try:
        opened = Pool.open(url)
    except LimpetError as error:
        raise Broken(f"the pool of a client cannot be opened: {error}") from error
    with opened as other:
        demand(other.uuid == pool.uuid, "the name stands for another pool")
        demand(other.dict()["k"] == 1, "the value is gone")


class Ends(Names):
    """The end of an ephemeral pool, at each event of which another process acts on it."""

    def closes(self, k: int, way: str) -> bool:
        """The last client closes the pool, and another one opens it, or it is killed."""
        opened: list[Any] = []

        def other() -> None:
            with contextlib.suppress(PoolNotFound, PoolIncomplete):
                opened.append(Pool.open(self.url, timeout_s=0.01))

        act = Act(lambda url, pool: pool.close(), False, (), _makes)
        met, error = self._call(act, k, other, way)
        demand(not error, f"close raised {error}")
        for pool in opened:
            _demand_whole(self.url, pool)
            pool.close()
        limpet.prune(self.url)
        demand(not is_there(self.url), "segments are left")
        return met

    def opens(self, k: int) -> bool:
        """A client opens the pool, and the last one closes it meanwhile."""
        last = _makes(self.url)
        met, error = self._call(Act(_opens, True, ()), k, last.close, "closes")
        demand(error in ("", "PoolNotFound", "PoolIncomplete"), f"open raised {error}")
        if not met:
            last.close()
        demand(not is_there(self.url), "segments are left")
        return met


def each_event(once: Any, share: int = 0) -> int:
    """Do `once(k)` for each event k that there is, or, as drills do, for a share of them; the
    first that there is not."""
    return next(k for k in steps(share) if not once(k))


@pytest.fixture
def ends(url: str, monkeypatch: pytest.MonkeyPatch) -> Ends:
    monkeypatch.setattr(ephemeral, "PATIENCE_S", 0.05)
    return Ends(url)


@at_events
@pytest.mark.parametrize("way", ["opens", "killed, then open"])
def test_last_close_at_each_event_of_which_another_opens_the_pool(
    ends: Ends, way: str, share: int
) -> None:
    assert each_event(lambda k: ends.closes(k, way), share) > 10


@at_events
def test_open_at_each_event_of_which_the_last_client_closes_the_pool(
    ends: Ends, share: int
) -> None:
    assert each_event(ends.opens, share) > 10


def test_newcomer_waits_for_a_removal_that_sees_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, location, real = limpet.create(url, **SIZES), parse_url(url), ephemeral.require_there
    with contextlib.ExitStack() as holding:
        fd = holding.enter_context(held(location))

        def begun(*given: Any) -> None:
            take_back(location, fd)
            back = threading.Timer(0.02, location.place(CONTROL_NODE).mark, (fd, MAGIC))
            back.start()
            real(*given)
            back.join()

        monkeypatch.setattr(ephemeral, "require_there", begun)
        with limpet.open(url) as second:
            assert second.dict() == {}
    first.close()
    assert not is_there(url)


def test_removal_that_was_killed_before_it_saw_a_client_does_not_end_the_pool(url: str) -> None:
    first, location = limpet.create(url, **SIZES), parse_url(url)
    first.dict()["k"] = 1
    for look in (lambda: limpet.open(url).close(), lambda: limpet.prune(url)):
        with held(location) as fd:
            take_back(location, fd)
        look()
        with limpet.open(url) as second:
            assert second.dict()["k"] == 1
    with held(location) as fd:
        take_back(location, fd)
    with pytest.raises(limpet.PoolExists):
        limpet.create(url, **SIZES)
    first.close()
    assert not is_there(url)


@pytest.mark.parametrize("broken", ["second look", "newcomer's look"])
def test_known_bad_removal_is_caught_at_some_event(
    ends: Ends, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either look alone is not enough."""
    if broken == "second look":
        whole = ephemeral.unlink_all

        def at_once(*given: Any, leave: object, **named: Any) -> list[str]:
            return whole(*given, **named)

        monkeypatch.setattr(ephemeral, "unlink_all", at_once)
    else:
        monkeypatch.setattr(ephemeral, "require_there", lambda *given: None)
    with pytest.raises((Broken, LimpetError)):
        each_event(lambda k: ends.opens(k) | ends.closes(k, "opens"))
