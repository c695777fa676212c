"""A memory node that is lost: what was on it raises NodeFailed, everything else is served.

So it is with the kinds that keep one copy of everything; of the others see test_fusee_loss.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.poison import PAGE, poison, poison_values
from kit.processes import exit_code, fork, gather

import limpet
from limpet.fault.drill.engine import steps
from limpet.fault.inject.stopping import StoppingPool
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.layout import NodeLayout, address
from limpet.stores.registry import KINDS, UNRECOVERED, store_class

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["race*"]
)

KEYS = [b"%d" % number for number in range(300)]
NODES = 3
LOST = 1


def truncate(pool: Any, segment: int | str, size: int = 0) -> None:
    os.truncate(SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.{segment}", size)


def mark(pool: Any, node: int) -> None:
    pool.fail_node(node)


LOSSES = pytest.mark.parametrize("lose", [truncate, mark], ids=["truncated", "marked failed"])


@pytest.fixture(
    params=[k for k in sorted({**KINDS, **UNRECOVERED}) if not store_class(k).replicated]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(make_store: Callable[..., Any]) -> Any:
    store = make_store(pool_nodes=NODES, capacity=1000)
    store.put_many((key, b"value of " + key) for key in KEYS)
    return store


def _served(store: Any, failed: int = LOST) -> set[bytes]:
    """The keys that are still served, each with its value; the others raise NodeFailed."""
    served, errors = set(), set()
    for key in KEYS:
        try:
            assert store.get(key) == b"value of " + key
            served.add(key)
        except limpet.NodeFailed as error:
            errors.add((error.node, f"node {failed}" in str(error)))
    assert errors <= {(failed, True)}
    return served


@pytest.mark.skipif(limpet.build != "compiled", reason="a pure build ends by SIGBUS")
def test_of_a_poisoned_page_the_rest_of_its_node_is_read(store: Any, kind: str) -> None:
    pool, path = store.pool, segment_path(store.pool, LOST)
    content = path.read_bytes()
    page = content.index(b"value of ") // PAGE * PAGE
    poison(pool.segments()[LOST].map, page)
    lost, near = (
        set(re.findall(rb"value of ([0-9]+)", content[page - more : page + PAGE + more]))
        for more in (0, 64)
    )
    served = _served(store)
    if kind == "race":  # the objects are apart from the index
        assert set(KEYS) - near <= served <= set(KEYS) - lost
    assert gather(lambda: _unserved_elsewhere(pool.url, kind, store.name)) == [[]]
    # Nothing that this process does now changes the node.
    before = path.read_bytes()
    audit = pool.audit()
    for key in KEYS:
        with contextlib.suppress(limpet.NodeFailed):
            store.put(key, b"new")
            assert store.get(key) == b"new"
    pool.recover()
    assert path.read_bytes() == before
    assert audit["failed"] > 0
    assert audit["leaked"] == 0
    assert sum(audit.values()) == 2 * audit["total"]
    assert "read only" in pool.nodes()[LOST]["state"]


@pytest.mark.skipif(limpet.build != "compiled", reason="a pure build ends by SIGBUS")
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_a_client_leaves_that_met_a_poisoned_page_is_whole(
    store: Any, kind: str, end: str
) -> None:
    pool = store.pool
    url, name = pool.url, store.name

    def client() -> None:
        with limpet.open(url) as mine:
            there = mine.store(kind, name=name)
            for key in KEYS[::3]:
                there.update(key, b"value of " + key)
            poison_values(mine, LOST)
            for number, key in enumerate(KEYS):
                with contextlib.suppress(limpet.NodeFailed):
                    there.update(key, b"value of " + key)
                with contextlib.suppress(limpet.NodeFailed):
                    there.insert(b"new %d" % number, b"value of new")
                with contextlib.suppress(limpet.NodeFailed):
                    there.delete(b"new %d" % number)
            if end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)

    exit_code(fork(client))
    pool.recover()
    assert _served(store) == set(KEYS)
    if kind in KINDS:  # the baselines do not recover
        store.check()
        assert pool.audit()["leaked"] == 0
        for key in KEYS:
            store.put(key, b"value of " + key)


@pytest.mark.exhaustive("every kind and change", quick=["race-insert", "rcuckoo-insert"])
@pytest.mark.soak("baselines", cases=["clover-*", "dtx-*", "fusee-??-*", "pdpm-*"])
@pytest.mark.skipif(limpet.build != "compiled", reason="a pure build ends by SIGBUS")
@pytest.mark.parametrize("change", ["insert", "update", "delete"])
# dm-abd frees the buffers of a former value when it closes, and can leave those on that node.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dm-abd"])
def test_a_client_that_meets_a_poisoned_page_amid_a_change_leaves_it_to_others(
    store: Any, kind: str, change: str
) -> None:
    """At each step of the change the page shows; the client lives on, and then closes its pool."""
    pool, name = store.pool, store.name
    keys = [key for key in KEYS if change != "insert"] or [b"new %d" % n for n in range(3)]
    resigned = 0

    def client(step: int) -> tuple[bool, bool]:
        """Whether there was that step, and the client had to resign."""
        with StoppingPool.open(pool.url) as mine:
            there = mine.store(kind, name=name)
            there.get(KEYS[0])
            last = mine.segments()[LOST].map

            def tear() -> None:
                poison(last, len(last) - PAGE)
                with contextlib.suppress(limpet.NodeFailed):
                    mine.endpoint.load(address(LOST, len(last) - 8))

            mine.endpoint.interrupt, mine.endpoint.stop_at = tear, step
            try:
                for key in keys[:3]:
                    with contextlib.suppress(limpet.NodeFailed, KeyError):
                        if change == "delete":
                            there.delete(key)
                        else:
                            getattr(there, change)(key, b"value of " + key)
            except limpet.ClientError as error:
                return True, "has left the pool" in str(error)
            return not mine.endpoint.stop_at, False

    def judge() -> list[bytes]:
        """The keys of others that are missing; the store and its memory are whole."""
        with limpet.open(pool.url) as mine:
            there = mine.store(kind, name=name)
            mine.recover()
            there.check()
            for key in keys[:3]:
                there.put(key, b"value of " + key)
            if change == "insert":
                for key in keys[:3]:
                    there.delete(key)
            there.check()
            assert mine.audit()["leaked"] == 0
            return [key for key in KEYS if there.get(key) != b"value of " + key]

    for step in steps(4):
        ((reached, has_resigned),) = gather(lambda step=step: client(step))
        resigned += has_resigned
        assert gather(judge) == [[]], step
        if "failed" in pool.nodes()[LOST]["state"]:  # by a client of a kind with replicas
            pool.replace_node(LOST)
        if not reached:
            break
    assert resigned or store.replicated


@pytest.mark.exhaustive("every kind", quick=["race", "rcuckoo"])
@pytest.mark.skipif(limpet.build != "compiled", reason="a pure build ends by SIGBUS")
def test_a_client_that_met_a_poisoned_page_leaves_the_dead_to_others(store: Any, kind: str) -> None:
    """It reads what they have left on that node, and cannot mend it."""
    if kind not in KINDS:
        pytest.skip("the baselines do not recover")
    pool = store.pool
    url, name = pool.url, store.name
    segment = pool.segments()[LOST]
    poison(segment.map, segment.size - PAGE)

    def judge() -> tuple[int, list[bytes]]:
        with limpet.open(url) as mine:
            there = mine.store(kind, name=name)
            mine.recover()
            there.check()
            there.put(b"new", b"value of new")
            return mine.audit()["leaked"], [key for key in KEYS if there.get(key) is None]

    for step in steps(4):

        def victim(step: int = step) -> None:
            with limpet.open(url) as mine:
                there = mine.store(kind, name=name)
                there.get(KEYS[0])
                mine.endpoint.fuse = step
                for key in (b"new", KEYS[1], KEYS[2]):
                    there.put(key, b"value of " + key)
                there.delete(b"new")
                mine.endpoint.fuse = 0

        done = exit_code(fork(victim)) == 0
        with contextlib.suppress(limpet.NodeFailed):
            pool.recover()
        assert gather(judge) == [(0, [])], step
        if done:
            break


def segment_path(pool: Any, segment: int) -> Path:
    return SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.{segment}"


def _unserved_elsewhere(url: str, kind: str, name: str) -> list[bytes]:
    """The keys that a process which has not met the page does not find."""
    with limpet.open(url) as pool:
        there = pool.store(kind, name=name)
        return [key for key in KEYS if there.get(key) != b"value of " + key]


@LOSSES
def test_the_rest_is_served_and_can_be_written(
    store: Any, lose: Callable[[Any, int], None]
) -> None:
    lose(store.pool, LOST)
    served = _served(store)
    assert len(KEYS) * 0.4 < len(served) < len(KEYS) * 0.9
    for key in KEYS:
        if key in served:
            store.put(key, b"new")
            store.update(key, b"newer")
            assert store.get(key) == b"newer"
            store.delete(key)
            store.insert(key, b"value of " + key)
            continue
        calls: list[Callable[[], object]] = [
            lambda k=key: store.put(k, b"new"),
            lambda k=key: store.insert(k, b"new"),
            lambda k=key: store.update(k, b"new"),
            lambda k=key: store.delete(k),
            lambda k=key: k in store,
            lambda k=key: store.get_many([k]),
        ]
        for call in calls:
            with pytest.raises(limpet.NodeFailed) as caught:
                call()
            assert caught.value.node == LOST
    assert _served(store) == served
    assert store.get_many(sorted(served)) == [b"value of " + key for key in sorted(served)]


@LOSSES
def test_what_needs_every_node_says_which_is_lost(
    store: Any, lose: Callable[[Any, int], None]
) -> None:
    """There is no telling how many keys were on the lost node: len, iter and check raise."""
    lose(store.pool, LOST)
    calls: list[Callable[[], object]] = [
        lambda: len(store),
        lambda: list(store),
        lambda: list(store.items()),
        store.check,
    ]
    for call in calls:
        with pytest.raises(limpet.NodeFailed) as caught:
            call()
        assert caught.value.node == LOST


@LOSSES
def test_the_audit_counts_the_lost_node_as_failed(
    store: Any, lose: Callable[[Any, int], None]
) -> None:
    for key in KEYS:
        store.put(key, bytes(200))
    before = store.pool.audit()
    lose(store.pool, LOST)
    audit = store.pool.audit()
    assert audit["failed"] == store.pool.parameters.node_size
    assert audit["total"] == before["total"] == sum(audit.values()) - audit["total"]
    assert audit["leaked"] == audit["held"] == 0
    assert 0 < audit["reachable"] < before["reachable"]


@LOSSES
def test_pools_say_which_node_is_lost_and_go_on(
    store: Any, lose: Callable[[Any, int], None]
) -> None:
    pool = store.pool
    lose(pool, LOST)
    _served(store)
    states = [node["state"] for node in pool.nodes()]
    assert states[:LOST] + states[LOST + 1 :] == ["in service"] * (NODES - 1)
    assert states[LOST] in ("failed", "lost")
    assert pool.recover() == {"clients": [], "objects": 0, "blocks": 0, "stores": 0}
    assert len(pool.clients()) == 1
    assert [entry["name"] for entry in pool.stores()] == ["test"]
    pool.close()


def test_a_marked_node_is_logged_once(store: Any) -> None:
    store.pool.fail_node(LOST)
    store.pool.fail_node(LOST)
    events = [event for event in store.pool.events() if event["kind"] == "node failed"]
    assert [event["subject"] for event in events] == [LOST]


@LOSSES
def test_other_processes_notice(store: Any, lose: Callable[[Any, int], None]) -> None:
    served = gather(lambda: (lose(store.pool, LOST), len(_served(store)))[1])[0]
    assert len(_served(store)) == served
    assert gather(lambda: len(_served(store)))[0] == served


@pytest.mark.either_build("the same lines")
@LOSSES
def test_a_client_with_objects_on_the_lost_node_dies_and_is_recovered(
    store: Any, lose: Callable[[Any, int], None]
) -> None:
    def child() -> None:
        for key in KEYS:
            store.put(key, b"value of " + key)

    gather(child)
    lose(store.pool, LOST)
    assert len(store.recover()["clients"]) == 1
    assert len(store.pool.clients()) == 1
    assert store.pool.audit()["leaked"] == 0
    served = _served(store)
    for _ in range(20):
        for key in served:
            store.put(key, b"value of " + key)


@LOSSES
def test_large_values_on_the_lost_node(
    make_store: Callable[..., Any], lose: Callable[[Any, int], None]
) -> None:
    store = make_store(pool_nodes=2, capacity=100, pool_node_size="4MiB")
    values = {b"%d" % number: os.urandom(100_000) for number in range(20)}
    store.put_many(values)
    lose(store.pool, 1)
    served = 0
    for _ in range(2):
        for key, value in values.items():
            try:
                assert store.get(key) == value
                store.put(key, value)
            except limpet.NodeFailed:
                continue
            served += 1
    assert 2 < served < 38
    assert store.pool.audit()["leaked"] == 0


def test_a_new_client_of_a_pool_with_a_failed_node(store: Any, pools: Any) -> None:
    """It attaches to a store that lost a part, and is served what is left."""
    store.pool.fail_node(LOST)
    served = _served(store)
    other = pools.again(store.pool).store(store.kind, name="test")
    assert _served(other) == served
    with pytest.raises(limpet.NodeFailed):
        len(other)
    assert other.pool.audit()["leaked"] == 0
    again = store.pool.store(store.kind, name="test")
    assert _served(again) == served


def test_a_new_store_without_replicas_needs_every_node(store: Any) -> None:
    store.pool.fail_node(LOST)
    for _ in range(2):
        with pytest.raises(limpet.NodeFailed):
            store.pool.store(store.kind, name="another", capacity=100)
    assert store.pool.audit()["leaked"] == 0


@pytest.mark.either_build("the same lines")
@pytest.mark.parametrize("node", [-1, 3, 255, "1", True, None, 1.0], ids=repr)
def test_a_node_that_is_not_there_cannot_fail(store: Any, node: Any) -> None:
    with pytest.raises(limpet.ParameterError):
        store.pool.fail_node(node)
    assert len(_served(store)) == len(KEYS)


def test_a_truncated_pool_cannot_be_opened(store: Any) -> None:
    truncate(store.pool, LOST, 8192)
    with pytest.raises(limpet.PoolTruncated):
        limpet.open(store.pool.url)
    truncate(store.pool, LOST)
    with pytest.raises(limpet.PoolIncomplete):
        limpet.open(store.pool.url, timeout_s=0.1)


def test_a_lost_control_segment(store: Any) -> None:
    """Nothing can be served any more; every call says so, and closing is still possible."""
    truncate(store.pool, "control")
    for call in (lambda: store.get(b"1"), lambda: store.put(b"1", b"v"), store.pool.audit):
        with pytest.raises(limpet.NodeFailed) as caught:
            call()
        assert caught.value.node == 255
    store.pool.close()
    with pytest.raises(limpet.PoolClosed):
        store.get(b"1")


# ---- what is behind a superblock -----------------------------------------------------------------

PARTS = ["region_directory", "block_table", "bitmaps", "blocks"]
"""Where the part of a node begins that is not what it was."""


@contextlib.contextmanager
def altered(folder: Path, kind: str, alter: Callable[[Path, NodeLayout], None]) -> Iterator[Any]:
    """A pool, opened again after `alter` has changed its files, with a store of that kind."""
    url = f"file://{folder}/pool"
    try:
        with limpet.create(url, nodes=NODES, node_size="8MiB") as pool:
            store = pool.store(kind, name="s", capacity=1000)
            store.put_many((key, b"value of " + key) for key in KEYS)
            layout = pool.layout
        alter(folder / "pool", layout)
        with limpet.open(url) as pool:
            yield pool
    finally:
        limpet.destroy(url)


def blank(folder: Path, layout: NodeLayout, part: str) -> None:
    file = folder / f"node.{LOST}"
    data = file.read_bytes()[: getattr(layout, part)]
    file.write_bytes(data.ljust(layout.node_size, b"\0"))


def exchange(folder: Path, layout: NodeLayout, part: str) -> None:
    files, begin = [folder / "node.0", folder / f"node.{LOST}"], getattr(layout, part)
    first, second = (file.read_bytes() for file in files)
    files[0].write_bytes(first[:begin] + second[begin:])
    files[1].write_bytes(second[:begin] + first[begin:])


def _values(store: Any) -> dict[bytes, bool]:
    """Whether each key is served, with its value; else it raises NodeFailed."""
    found = {}
    for key in KEYS:
        try:
            assert store.get(key) == b"value of " + key
            found[key] = True
        except limpet.NodeFailed:
            found[key] = False
    return found


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("alter", "lost"), [(blank, {LOST}), (exchange, {0, LOST})])
def test_what_a_node_has_no_more_is_not_taken_for_missing(
    tmp_path: Path, kind: str, alter: Any, lost: set[int], part: str, caplog: Any
) -> None:
    """Behind a superblock that is right, zeros were taken for an empty table."""
    with altered(tmp_path, kind, lambda *there: alter(*there, part)) as pool:
        store = pool.store(kind, name="s")
        for node in lost:
            assert f"memory node {node} has no region 's'" in caplog.text
        served = _values(store)
        assert len(set(served.values())) == 2
        for key, there in served.items():
            if there:
                store.put(key, b"new")
            else:
                with pytest.raises(limpet.NodeFailed):
                    store.put(key, b"new")
        with pytest.raises(limpet.NodeFailed):
            store.check()
        others = pool.store(kind, name="s")
        assert _values_after(others, served)
        for node in sorted(lost - {0}):
            pool.fail_node(node)
            pool.replace_node(node)
        assert _values_after(pool.store(kind, name="s"), served)


def _values_after(store: Any, served: dict[bytes, bool]) -> bool:
    """Whether the keys that were served have their new values, and the others raise NodeFailed."""
    for key, there in served.items():
        try:
            if store.get(key) != b"new":
                return False
        except limpet.NodeFailed:
            if there:
                return False
    return True


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("alter", [blank, exchange])
@pytest.mark.parametrize("replicated", ["fusee", "swarm", "dm-abd"])
def test_replicas_that_a_node_has_no_more_are_refused_until_it_is_marked(
    tmp_path: Path, replicated: str, alter: Any, part: str
) -> None:
    with altered(tmp_path, replicated, lambda *there: alter(*there, part)) as pool:
        for _ in range(2):
            with pytest.raises(limpet.PoolCorrupt, match=r"memory node [01] .*fail-node"):
                pool.store(replicated, name="s").get(KEYS[0])
        if alter is blank:
            pool.fail_node(LOST)
            assert all(_values(pool.store(replicated, name="s")).values())
            pool.replace_node(LOST)
            store = pool.store(replicated, name="s")
            assert all(_values(store).values())
            store.check()
            assert pool.audit()["leaked"] == 0


def test_a_channel_is_not_begun_anew_on_a_node_that_has_lost_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/pool"
    names = [f"channel {number}" for number in range(12)]
    try:
        with limpet.create(url, nodes=NODES, node_size="8MiB") as pool:
            for name in names:
                pool.counter(name).add(5)
            layout = pool.layout
        blank(tmp_path / "pool", layout, "region_directory")
        with limpet.open(url) as pool:
            found = []
            for name in names:
                try:
                    found.append(pool.counter(name).value)
                except limpet.NodeFailed:
                    found.append(None)
            assert set(found) == {5, None}
    finally:
        limpet.destroy(url)
