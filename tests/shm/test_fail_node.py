"""A pool whose memory node is missing when it is opened: `limpet fail-node`."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from kit.segments import make_device

import limpet
from limpet.__main__ import main
from limpet.shm.backends import dax
from limpet.shm.backends.explain import explained
from limpet.shm.backends.segments import fail_node
from limpet.shm.endpoint import failing
from limpet.shm.endpoint.layout import FAILING, NODE_STATES
from limpet.shm.endpoint.states import generation_of


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A pool of three nodes, of which node 1 is missing."""
    url = f"file://{tmp_path}/pool"
    (tmp_path / "pool").mkdir()
    with limpet.create(url, nodes=3, node_size=4 << 20, clients=8, multi_host=True) as pool:
        pool.store("fusee", name="s", replicas=2, capacity=100).put(b"k", b"v")
    (tmp_path / "pool" / "node.1").rename(tmp_path / "away")
    yield url
    limpet.destroy(url)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_error_names_the_command_that_makes_the_pool_open_again(url: str) -> None:
    with pytest.raises(limpet.PoolIncomplete, match=f"limpet fail-node {url} 1"):
        limpet.open(url, timeout_s=0)
    assert run("fail-node", url, "1").output == "node 1 is marked as failed\n"
    with limpet.open(url) as pool:
        (event,) = pool.events()
        assert (event["kind"], event["subject"]) == ("node failed", 1)
        store = pool.store("fusee", name="s")
        assert store.get(b"k") == b"v"
        store.put(b"l", b"w")
        store.check()
        assert pool.nodes()[1]["state"] != "in service"
    assert json.loads(run("fail-node", url, "1", "--json").stdout) == {"node": 1, "marked": False}


def test_pool_whose_device_is_gone_opens_without_it(tmp_path: Path) -> None:
    devices = [make_device(tmp_path, f"dax{number}.0", 4 << 20) for number in range(3)]
    url = "dax://" + ",".join(map(str, devices))
    with mock.patch.object(dax, "SYSFS", tmp_path / "sys"):
        with limpet.create(url, clients=8) as pool:
            pool.store("fusee", name="s", replicas=2, capacity=100).put(b"k", b"v")
        devices[1].unlink()
        shutil.rmtree(tmp_path / "sys" / "dax1.0")
        with pytest.raises(limpet.PoolIncomplete, match=f"limpet fail-node {url} 1"):
            limpet.open(url, timeout_s=0)
        assert fail_node(url, 1)
        with limpet.open(url) as pool:
            assert pool.store("fusee", name="s").get(b"k") == b"v"
        limpet.destroy(url)


def test_clients_that_have_it_open_go_on_without_the_node(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/pool"
    (tmp_path / "pool").mkdir()
    with limpet.create(url, nodes=3, node_size=4 << 20, clients=8) as pool:
        store = pool.store("fusee", name="s", replicas=2, capacity=100)
        store.put_many({b"%d" % number: b"value" for number in range(50)})
        assert fail_node(url, 2)
        assert all(store.get(b"%d" % number) == b"value" for number in range(50))
        store.put(b"k", b"v")
        store.check()
        pool.replace_node(2)
        assert pool.nodes()[2]["state"] == "in service"
    limpet.destroy(url)


def test_node_that_is_not_there_is_refused(url: str) -> None:
    with pytest.raises(limpet.ParameterError, match="no node 3"):
        fail_node(url, 3)
    with pytest.raises(limpet.PoolNotFound):
        fail_node(url + "2", 0)


@pytest.mark.parametrize(
    ("size", "error"), [(0, limpet.PoolIncomplete), (819_200, limpet.PoolTruncated)]
)
def test_pool_whose_node_was_cut_off_opens_without_it(
    url: str, tmp_path: Path, size: int, error: type[limpet.LimpetError]
) -> None:
    """The error said to destroy the pool, all of whose keys another node had."""
    cut = tmp_path / "pool" / "node.1"
    (tmp_path / "away").rename(cut)
    os.truncate(cut, size)
    with pytest.raises(error, match=f"limpet fail-node {url} 1") as raised:
        limpet.open(url, timeout_s=0)
    said = str(raised.value)
    assert "destroy the pool" not in said  # the node may only be away
    assert "If the memory node is away, bring it back" in said
    assert "creator" not in said
    assert fail_node(url, 1)
    with limpet.open(url) as pool:
        assert pool.store("fusee", name="s").get(b"k") == b"v"


def test_last_node_in_service_is_not_marked(tmp_path: Path) -> None:
    """It was marked; then no node could be replaced, though nothing was lost."""
    url = f"file://{tmp_path}/pool"
    with limpet.create(url, nodes=2, node_size=4 << 20, clients=8) as pool:
        store = pool.store("fusee", name="s", replicas=2, capacity=100)
        store.put(b"k", b"v")
        pool.fail_node(1)
        with pytest.raises(limpet.ParameterError, match="replace node 1 first"):
            pool.fail_node(0)
        with pytest.raises(limpet.ParameterError, match="replace node 1 first"):
            fail_node(url, 0)
        pool.fail_node(1)  # once more: nothing happens
        refused = run("fail-node", url, "0")
        assert refused.exit_code == 2
        assert f"limpet replace-node {url} 1" in " ".join(refused.output.split())
        assert store.get(b"k") == b"v"
        pool.replace_node(1)
        pool.fail_node(0)
        assert store.get(b"k") == b"v"
    limpet.destroy(url)


def test_last_node_is_not_marked_by_a_client_that_has_not_mapped_it_yet(tmp_path: Path) -> None:
    """It took memory that was newer than its own for lost memory."""
    url = f"file://{tmp_path}/pool"
    with (
        limpet.create(url, nodes=2, node_size=4 << 20, clients=8) as pool,
        limpet.open(url) as idle,
    ):
        store = pool.store("fusee", name="s", replicas=2, capacity=100)
        store.put(b"k", b"v")
        pool.fail_node(1)
        pool.replace_node(1)
        pool.fail_node(0)
        with pytest.raises(limpet.ParameterError, match="replace node 0 first"):
            idle.fail_node(1)
        assert store.get(b"k") == b"v"
    limpet.destroy(url)


def test_the_only_node_is_marked_when_its_memory_is_gone(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/pool"
    with limpet.create(url, node_size=4 << 20, clients=8) as pool:
        with pytest.raises(limpet.ParameterError, match="is the only one"):
            pool.fail_node(0)
        os.truncate(tmp_path / "pool" / "node.0", 0)
        pool.fail_node(0)
        assert pool.nodes()[0]["state"] == "failed"
    limpet.destroy(url)
    limpet.create(url, node_size=4 << 20, clients=8).close()
    with pytest.raises(limpet.ParameterError, match="is the only one"):
        fail_node(url, 0)
    (tmp_path / "pool" / "node.0").unlink()
    assert fail_node(url, 0)
    limpet.destroy(url)


VERBS_MAX = 12
"""More than one call of `failing.fail` makes, if no other call comes between."""


class Killed(BaseException):
    """The process ends here."""


def fail_with_another(url: str, step: int, how: str, undecided: bool = False) -> tuple[int, bool]:
    """Give node 0 of two up, and at its verb of that number, from 0, node 1. How many nodes are in
    service then, and whether there was such a verb. `how`: by another client, by the command, or
    by another client after ours was killed. `undecided`: no word orders the two calls."""
    count = itertools.count()
    with limpet.open(url) as pool, limpet.open(url) as other:
        met = []

        def meet() -> None:
            if next(count) == step:
                met.append(step)
                with contextlib.suppress(limpet.ParameterError):
                    if how == "command":
                        fail_node(url, 1)
                    elif how == "client":
                        other.fail_node(1)
                if how == "killed":
                    raise Killed

        def load(at: int) -> int:
            meet()
            return pool.endpoint.load(at)

        def cas(at: int, expected: int, desired: int) -> int:
            meet()
            return expected if undecided else pool.endpoint.cas(at, expected, desired)

        def mark(node: int, generation: int) -> bool:
            meet()
            return pool.membership.fail_node(node, generation)

        with contextlib.suppress(limpet.ParameterError, Killed):
            failing.fail(0, 2, load, cas, mark, lambda states: pool._refuse_last(0, states))
        if how == "killed":
            with contextlib.suppress(limpet.ParameterError):
                other.fail_node(1)
        states = [each["state"] for each in other.nodes()]
        return states.count("in service"), bool(met)


@pytest.mark.parametrize("how", ["client", "command", "killed"])
def test_of_two_calls_at_once_one_is_refused(tmp_path: Path, how: str) -> None:
    """Each call found the other's node in service, and the pool had no node left."""
    url = f"file://{tmp_path}/pool"
    for step in range(VERBS_MAX):
        with limpet.create(url, nodes=2, node_size=4 << 20, clients=8):
            in_service, met = fail_with_another(url, step, how)
        limpet.destroy(url)
        assert in_service == 1, step
        if not met:
            break
    assert 4 < step < VERBS_MAX - 1


def test_two_calls_that_no_word_orders_are_seen(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/pool"
    left = set()
    for step in range(VERBS_MAX):
        with limpet.create(url, nodes=2, node_size=4 << 20, clients=8):
            left.add(fail_with_another(url, step, "client", undecided=True)[0])
        limpet.destroy(url)
    assert 0 in left


def test_a_decision_that_was_not_carried_out_does_not_mark_the_last_node(tmp_path: Path) -> None:
    """A client decided on node 0 and died before it marked it; then node 1 was lost, and given
    up."""
    url = f"file://{tmp_path}/pool"
    with limpet.create(url, nodes=2, node_size=4 << 20, clients=8) as pool:
        store = pool.store("fusee", name="s", replicas=2, capacity=100)
        store.put(b"k", b"v")
        generation = generation_of(pool.endpoint.load(NODE_STATES))
        pool.endpoint.store(FAILING, generation << 8 | 1)
        pool.mark_failed(1)
        assert not fail_node(url, 1)
        pool.fail_node(1)
        assert [node["state"] for node in pool.nodes()] == ["in service", "failed"]
        with pytest.raises(limpet.ParameterError, match="replace node 1 first"):
            pool.fail_node(0)
        pool.replace_node(1)
        assert store.get(b"k") == b"v"
    limpet.destroy(url)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device file")
def test_device_that_does_not_answer_is_away_and_not_foreign(tmp_path: Path) -> None:
    path = tmp_path / "dax0.0"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(4095, 4095))
    with (
        pytest.raises(limpet.PoolIncomplete, match=r"does not answer .*; bring it back"),
        explained("dax:///dev/dax0.0/control"),
    ):
        os.open(path, os.O_RDONLY)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(limpet.PoolForeign, match="is not a plain file"), explained("a pipe"):
        os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)


def test_lost_control_segment_is_never_a_reason_to_destroy(url: str, tmp_path: Path) -> None:
    (tmp_path / "away").rename(tmp_path / "pool" / "node.1")
    with limpet.open(url) as pool:
        # It looks at the segment now and then; a pure build would end by SIGBUS amid such a look.
        pool.membership.heart.stop()
        pool.membership.heart.join()
        os.truncate(tmp_path / "pool" / "control", 0)
        with pytest.raises(
            limpet.NodeFailed, match="no client can go on without it; bring"
        ) as lost:
            pool.store("race", name="other")
        assert "destroy" not in str(lost.value)
