"""Stores with r replicas: any r - 1 memory nodes may be lost; with more, errors name the nodes."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from kit.poison import poison_values
from kit.processes import gather
from kit.stores import REPLICAS_APART, sound

import limpet
from limpet.shm.backends.location import SHM_DIR
from limpet.stores.fusee.parameters import FuseeParameters
from limpet.stores.registry import KINDS, store_class

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

COMPILED = limpet.build == "compiled"

KEYS = [b"%d" % number for number in range(120)]
NODES = 5
Lose = Callable[[Any, int], None]


def truncate(pool: Any, node: int) -> None:
    os.truncate(SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.{node}", 0)


def mark(pool: Any, node: int) -> None:
    pool.fail_node(node)


LOSSES = pytest.mark.parametrize("lose", [truncate, mark], ids=["truncated", "marked failed"])


@pytest.fixture(params=[k for k in sorted(KINDS) if store_class(k).Parameters is FuseeParameters])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def filled(make_store: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a store with the values of KEYS in it."""

    def make(replicas: int, nodes: int = NODES, **more: Any) -> Any:
        store = make_store(pool_nodes=nodes, capacity=300, replicas=replicas, **more)
        store.put_many((key, b"value of " + key) for key in KEYS)
        return store

    return make


def _read(store: Any, key: bytes) -> tuple[bytes | None, int | None]:
    """The value of a key, or the lost node that it is on."""
    try:
        return store.get(key), None
    except limpet.NodeFailed as error:
        return None, error.node


def _all_there(store: Any) -> None:
    assert [store.get(key) for key in KEYS] == [b"value of " + key for key in KEYS]
    assert store.get_many(KEYS) == [b"value of " + key for key in KEYS]
    assert dict(store.items()) == {key: b"value of " + key for key in KEYS}
    assert len(store) == len(KEYS)


def _writable(store: Any) -> None:
    """Every operation on every key; the values are as before afterwards."""
    for key in KEYS:
        store.put(key, b"new")
        store.update(key, b"newer")
        with pytest.raises(limpet.KeyExists):
            store.insert(key, b"other")
        assert store.get(key) == b"newer"
        store.delete(key)
        with pytest.raises(KeyError):
            store.delete(key)
        with pytest.raises(KeyError):
            store.update(key, b"other")
        assert store.get(key) is None
        store.insert(key, b"value of " + key)


@LOSSES
@pytest.mark.parametrize("replicas", [2, 3, 5] if COMPILED else [3])
def test_all_but_one_replica_may_be_lost(
    filled: Callable[..., Any], lose: Lose, replicas: int
) -> None:
    store = filled(replicas)
    for node in range(1, replicas):
        lose(store.pool, node)
        _all_there(store)
        _writable(store)
    _all_there(store)
    sound(store)
    audit = store.pool.audit()
    assert audit["failed"] == (replicas - 1) * store.pool.parameters.node_size


@LOSSES
@pytest.mark.parametrize(("index_replicas", "replicas"), [(3, 2), (2, 3)])
def test_the_smaller_number_of_replicas_says_how_many_may_be_lost(
    filled: Callable[..., Any], lose: Lose, index_replicas: int, replicas: int
) -> None:
    store = filled(replicas, nodes=4, index_replicas=index_replicas)
    for node in range(4):
        lose(store.pool, node)
        _all_there(store)
        _writable(store)
        sound(store)
        done = store.pool.replace_node(node)
        assert done["regions"] == index_replicas
        _all_there(store)
        sound(store)


def test_with_one_replica_of_the_index_its_keys_are_lost_with_it(
    filled: Callable[..., Any],
) -> None:
    """However many replicas their objects have. All other keys are served and changed, also those
    that have a replica of their objects on the lost node."""
    store = filled(2, nodes=3, index_replicas=1)
    pool = store.pool
    places = {key: store.index.table_of(key) for key in KEYS}
    pool.fail_node(1)
    assert pool.audit()["leaked"] > 0  # what is left of the objects of lost keys
    for again in range(2):
        for key in KEYS:
            assert _read(store, key) == (
                (None, 1) if places[key] == 1 else (b"value of " + key, None)
            )
            if places[key] != 1:
                store.update(key, b"other")
                store.delete(key)
                store.insert(key, b"value of " + key)
        if not again:
            pool.replace_node(1)
    assert pool.audit()["leaked"] == 0
    pool.fail_node(0)
    for key in KEYS:
        if places[key] == 2:
            assert store.get(key) == b"value of " + key


def test_a_node_whose_index_had_no_keys_leaves_nothing_behind(filled: Callable[..., Any]) -> None:
    store = filled(2, nodes=3, index_replicas=1)
    kept = [key for key in KEYS if store.index.table_of(key) != 1]
    for key in set(KEYS) - set(kept):
        store.delete(key)
    store.pool.fail_node(1)
    for key in kept:
        store.update(key, b"other")
    assert store.pool.audit()["leaked"] == 0
    store.pool.replace_node(1)
    for key in kept:
        assert store.get(key) == b"other"
        store.delete(key)
    audit = store.pool.audit()
    assert audit["leaked"] == audit["held"] == 0


def test_with_one_replica_of_objects_a_node_that_had_some_is_not_replaced(
    filled: Callable[..., Any],
) -> None:
    """Their slots are left, so no key is taken for missing."""
    store = filled(1, nodes=3, index_replicas=2)
    pool = store.pool
    pool.fail_node(1)
    found = [_read(store, key) for key in KEYS]
    lost = found.count((None, 1))
    assert 0 < lost < len(KEYS)
    assert all(node == 1 or value == b"value of " + key
               for key, (value, node) in zip(KEYS, found, strict=True))  # fmt: skip
    with pytest.raises(limpet.NodeFailed, match=f"{lost} entries .*1 of each entry, 2 of the"):
        pool.replace_node(1)
    assert [_read(store, key) for key in KEYS] == found
    for key, (value, _) in zip(KEYS, found, strict=True):
        if value is not None:
            store.update(key, b"other")
            store.delete(key)
    with pytest.raises(limpet.NodeFailed):
        pool.replace_node(1)


def test_a_node_without_objects_is_replaced_where_these_have_one_replica(
    filled: Callable[..., Any],
) -> None:
    store = filled(1, nodes=3, index_replicas=2)
    for key in KEYS:
        store.delete(key)
    store.pool.fail_node(1)
    store.pool.replace_node(1)
    store.put_many((key, b"value of " + key) for key in KEYS)
    _all_there(store)
    _writable(store)
    sound(store)


@pytest.mark.parametrize(
    ("index_replicas", "replicas"), [pair for pair in REPLICAS_APART if pair[0] > 1]
)
def test_check_names_a_damaged_slot_on_any_replica(
    filled: Callable[..., Any], index_replicas: int, replicas: int
) -> None:
    store = filled(replicas, nodes=3, index_replicas=index_replicas)
    tables = store.tables
    for key in KEYS[:4]:
        slot, head = store.index.look_up(store.place, key), store.place.head
        for k in range(1, index_replicas):
            replica = tables.backup(slot, head, k)
            word = store.endpoint.swap(replica, 0)
            assert word == store.endpoint.load(slot)
            with pytest.raises(limpet.StoreCorrupt, match=f"{slot:#x}.*no client is changing"):
                store.check()
            store.endpoint.store(replica, word)
            store.check()


@LOSSES
def test_several_nodes_may_be_lost_at_once(filled: Callable[..., Any], lose: Lose) -> None:
    for lost in itertools.combinations(range(4), 2) if COMPILED else [(0, 2), (1, 2)]:
        store = filled(3, nodes=4)
        for node in lost:
            lose(store.pool, node)
        _writable(store)
        _all_there(store)
        sound(store)


@pytest.mark.skipif(not COMPILED, reason="a pure build ends by SIGBUS")
def test_a_node_with_a_poisoned_page_is_given_up_by_all(filled: Callable[..., Any]) -> None:
    store = filled(2)
    poison_values(store.pool, 1)
    _all_there(store)
    _writable(store)
    _all_there(store)
    assert store.pool.nodes()[1]["state"] == "failed"
    sound(store)


@LOSSES
def test_a_reader_alone_outlives_the_loss(filled: Callable[..., Any], lose: Lose) -> None:
    store = filled(2)
    lose(store.pool, 3)
    _all_there(store)
    states = [node["state"] for node in store.pool.nodes()]
    assert [node for node, state in enumerate(states) if state != "in service"] == [3]
    store.check()


@LOSSES
@pytest.mark.parametrize("work", ["get_many", "keys", "len", "check", "audit"])
def test_the_first_to_notice_may_do_anything(
    filled: Callable[..., Any], lose: Lose, work: str
) -> None:
    store = filled(2)
    calls: dict[str, Callable[[], object]] = {
        "get_many": lambda: store.get_many(KEYS),
        "keys": lambda: sorted(store),
        "len": lambda: len(store),
        "check": store.check,
        "audit": lambda: store.pool.audit()["leaked"],
    }
    before = calls[work]()
    lose(store.pool, 0)
    assert calls[work]() == before
    _writable(store)
    _all_there(store)


@LOSSES
def test_with_more_lost_than_is_survived_the_errors_name_the_node(
    filled: Callable[..., Any], lose: Lose
) -> None:
    store = filled(2)
    lost = (1, 2)
    for node in lost:
        lose(store.pool, node)
    served = set()
    for key in KEYS:
        calls: list[Callable[[], object]] = [
            lambda k=key: store.put(k, b"new"),  # type: ignore[misc]
            lambda k=key: store.insert(k, b"new"),  # type: ignore[misc]
            lambda k=key: store.update(k, b"new"),  # type: ignore[misc]
            lambda k=key: store.delete(k),  # type: ignore[misc]
            lambda k=key: k in store,  # type: ignore[misc]
            lambda k=key: store.get_many([k]),  # type: ignore[misc]
        ]
        found, _ = _read(store, key)
        if found is not None:
            assert found == b"value of " + key
            served.add(key)
            continue
        for call in calls:
            with pytest.raises(limpet.NodeFailed) as caught:
                call()
            assert caught.value.node in lost
            assert f"node {caught.value.node}" in str(caught.value)
    assert 0 < len(KEYS) - len(served) < len(KEYS) / 2
    for key in served:
        store.put(key, b"new")
        store.delete(key)
        store.insert(key, b"value of " + key)
        assert store.get(key) == b"value of " + key
    for call in (lambda: len(store), lambda: list(store), store.check):
        with pytest.raises(limpet.NodeFailed) as caught:
            call()
        assert caught.value.node in lost
    audit = store.pool.audit()
    assert audit["leaked"] == audit["held"] == 0


@LOSSES
def test_other_processes_notice_and_new_clients_are_served(
    filled: Callable[..., Any], lose: Lose, pools: Any
) -> None:
    store = filled(2)

    def first() -> None:
        lose(store.pool, 2)
        _all_there(store)

    gather(first)
    _all_there(store)
    gather(lambda: _writable(store))
    if lose is mark:  # a pool with a truncated segment is not opened
        other = pools.again(store.pool).store(store.kind, name="test")
        _writable(other)
        _all_there(other)
    sound(store)


@LOSSES
def test_a_client_and_a_node_are_lost_together(filled: Callable[..., Any], lose: Lose) -> None:
    """A client dies with objects on a node that is lost before it is recovered."""
    store = filled(2)

    def child() -> None:
        for key in KEYS:
            store.put(key, b"value of " + key)

    def killed() -> None:
        child()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(AssertionError, match="-9"):
        gather(killed)
    lose(store.pool, 1)
    assert len(store.recover()["clients"]) == 1
    _all_there(store)
    _writable(store)
    sound(store)


@LOSSES
def test_large_values_outlive_the_loss(make_store: Callable[..., Any], lose: Lose) -> None:
    store = make_store(pool_nodes=3, capacity=100, replicas=2, pool_node_size="8MiB")
    values = {b"%d" % number: os.urandom(100_000) for number in range(12)}
    store.put_many(values)
    lose(store.pool, 1)
    assert {key: store.get(key) for key in values} == values
    for key, value in values.items():
        store.put(key, value[::-1])
    assert {key: store.get(key) for key in values} == {k: v[::-1] for k, v in values.items()}
    sound(store)


def test_the_change_of_the_view_is_logged_once(filled: Callable[..., Any]) -> None:
    store = filled(3)
    for node in (1, 2):
        store.pool.fail_node(node)
        store.put(b"1", b"value of 1")
        store.get(b"2")
    events = store.pool.events()
    for kind in ("node failed", "node excluded"):
        assert [event["subject"] for event in events if event["kind"] == kind] == [1, 2]


def test_a_new_store_is_made_without_the_lost_node(filled: Callable[..., Any]) -> None:
    """It gets its replicas there when the node is replaced; then another may be lost."""
    store = filled(2)
    pool = store.pool
    pool.fail_node(1)
    another = pool.store(store.kind, name="another", capacity=100, replicas=2)
    another.put_many((key, b"another " + key) for key in KEYS[:60])
    sound(another)
    pool.replace_node(1)
    for lost in (0, 2):
        pool.fail_node(lost)
        assert [another.get(key) for key in KEYS[:60]] == [b"another " + key for key in KEYS[:60]]
        _writable(store)
        pool.replace_node(lost)
    assert pool.audit()["leaked"] == 0


def test_a_new_store_needs_a_node_for_every_subtable(filled: Callable[..., Any]) -> None:
    store = filled(3)
    for node in (1, 2):
        store.pool.fail_node(node)
    for _ in range(2):
        with pytest.raises(limpet.NodeFailed):
            store.pool.store(store.kind, name="another", capacity=100, replicas=2)
    _writable(store)
    assert store.pool.audit()["leaked"] == 0


def test_a_store_that_survives_beside_one_that_does_not(filled: Callable[..., Any]) -> None:
    """A client of both waits for the new view in one of them only."""
    store = filled(2)
    other = store.pool.store("race", name="race", capacity=300)
    other.put_many((key, b"other " + key) for key in KEYS)
    store.pool.fail_node(1)
    lost = set()
    for key in KEYS:
        found, node = _read(other, key)
        assert (found, node) in ((b"other " + key, None), (None, 1))
        if found is None:
            lost.add(key)
        else:
            other.update(key, found)
        assert store.get(key) == b"value of " + key
        store.update(key, b"value of " + key)
    assert 0 < len(lost) < len(KEYS) / 2
    _all_there(store)
    audit = store.pool.audit()
    assert audit["leaked"] == audit["held"] == 0


@pytest.mark.parametrize("kind", ["fusee", "swarm", "dm-abd"])
def test_a_store_without_replicas_serves_its_other_nodes_after_a_replacement(
    pools: Any, kind: str
) -> None:
    pool = pools(nodes=2)
    store = pool.store(kind, name="test", replicas=1)
    pool.fail_node(0)
    pool.replace_node(0)
    again = pools.again(pool)
    for handle in (store, again.store(kind, name="test")):
        lost, served = set(), 0
        for number in range(20):
            key = b"%d" % number
            try:
                handle.put(key, b"value")
            except limpet.NodeFailed as error:
                lost.add(error.node)
                continue
            served += handle.get(key) == b"value"
        assert lost == {0}
        assert served
    pool.drop("test")
    assert pool.audit()["leaked"] == 0


def test_a_lost_node_that_cannot_say_whether_clients_swap_is_not_asked_for_good(
    filled: Callable[..., Any],
) -> None:
    """Only until the view changes."""
    store = filled(2)
    tables = store.tables

    def look() -> bool:
        ticket = tables.post_swaps()
        store.endpoint.wait()
        tables.saw_swaps(ticket)
        return bool(tables.swapped)

    assert not store.within(look)
    truncate(store.pool, 0)  # the first directory has its primary there
    with pytest.raises(limpet.NodeFailed):
        store.within(look)
    store.within(lambda: tables.saw_swaps(0))  # as if the node was lost after the look was posted
    assert tables.swapped
    store.pool.fail_node(0)
    _all_there(store)
    assert not store.within(look)
    assert store.swap(KEYS[0], b"value of " + KEYS[0], b"another")
    assert store.within(look)
