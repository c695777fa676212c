"""SWARM-KV with lost nodes: f of 2f + 1 replicas may be lost; replaced ones are of any majority."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from kit.poison import poison_values
from kit.processes import dies_at
from kit.puppets import Puppet, verb_on
from kit.stores import sound

import limpet
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.stores.swarm.layout import READ, STAMP_SHIFT, WRITE

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["test_any_one_node_may_be_lost"]
)

COMPILED = limpet.build == "compiled"

KEYS = [b"%d" % number for number in range(60)]
NODES = 5
Lose = Callable[[Any, int], None]
LOST_OF_3 = range(NODES) if COMPILED else [1]
LOST_OF_5 = list(itertools.combinations(range(NODES), 2)) if COMPILED else [(0, 1), (1, 3)]


def truncate(pool: Any, node: int) -> None:
    os.truncate(SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.{node}", 0)


def mark(pool: Any, node: int) -> None:
    pool.fail_node(node)


LOSSES = pytest.mark.parametrize("lose", [truncate, mark], ids=["truncated", "marked failed"])


def value(key: bytes, round_: int) -> bytes:
    """Of some keys so large that it is never in place."""
    return b"%s in round %d, " % (key, round_) * (800 if int(key) % 10 == 0 else 1 + int(key) % 10)


def fill(pools: Any, replicas: int, nodes: int = NODES, **parameters: Any) -> Any:
    """A store with KEYS, of round 0, which were written twice: last at a mere majority."""
    pool = pools(nodes=nodes, node_size="4MiB")
    store = pool.store("swarm", name="test", capacity=200, replicas=replicas, **parameters)
    for key in KEYS:
        store.put(key, b"first of " + key)
    rewrite(store, 0)
    return store


def rewrite(store: Any, round_: int) -> None:
    for key in KEYS:
        store.update(key, value(key, round_))


def there(store: Any, round_: int) -> None:
    """Twice: what the first get writes back, the next one reads."""
    for _ in range(2):
        assert [store.get(key) for key in KEYS] == [value(key, round_) for key in KEYS]
    assert dict(store.items()) == {key: value(key, round_) for key in KEYS}
    assert len(store) == len(KEYS)


def writable(store: Any, round_: int) -> None:
    """Every operation on every key; then they have the values of that round."""
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
        store.insert(key, value(key, round_))


def read(store: Any, key: bytes, lost: tuple[int, ...]) -> bytes | None:
    """The value of a key; None if that is lost with these nodes."""
    try:
        found: bytes = store.get(key)
    except limpet.NodeFailed as failed:
        named = failed.node, str(failed)
    else:
        return found
    assert named[0] in lost
    assert f"node {named[0]}" in named[1]
    return None


# ---- as many as it survives ----------------------------------------------------------------------


@pytest.mark.skipif(not COMPILED, reason="a pure build ends by SIGBUS")
def test_a_node_with_a_poisoned_page_is_given_up_when_it_is_met(pools: Any) -> None:
    store = fill(pools, 3)
    poison_values(store.pool, 1, b" in round 0, ")
    there(store, 0)
    rewrite(store, 1)
    there(store, 1)


@LOSSES
@pytest.mark.parametrize("node", LOST_OF_3)
def test_any_one_node_may_be_lost(pools: Any, lose: Lose, node: int) -> None:
    store = fill(pools, 3)
    other = pools.again(store.pool).store("swarm", name="test")
    there(other, 0)
    lose(store.pool, node)
    there(store, 0)
    there(other, 0)
    rewrite(other, 1)
    there(store, 1)
    writable(store, 2)
    there(other, 2)
    writable(other, 3)
    there(store, 3)
    sound(store)


@pytest.mark.either_build("the same lines")
@LOSSES
@pytest.mark.parametrize("lost", LOST_OF_5)
def test_any_two_nodes_of_five_may_be_lost(pools: Any, lose: Lose, lost: tuple[int, ...]) -> None:
    store = fill(pools, 5)
    for round_, node in enumerate(lost):
        lose(store.pool, node)
        there(store, round_)
        rewrite(store, round_ + 1)
    writable(store, 3)
    there(store, 3)
    sound(store)


@pytest.mark.either_build("the same lines")
@pytest.mark.parametrize("write_first", [False, True])
@pytest.mark.parametrize("buffers", [1, 8])
def test_two_lost_at_once(pools: Any, buffers: int, write_first: bool) -> None:
    store = fill(pools, 5, buffers=buffers)
    other = pools.again(store.pool).store("swarm", name="test")
    for key in KEYS:
        other.update(key, value(key, 1))
    for node in (1, 2):
        store.pool.fail_node(node)
    if write_first:
        rewrite(store, 2)
    there(other, 2 if write_first else 1)
    writable(other, 3)
    there(store, 3)
    sound(store)


@pytest.mark.either_build("the same lines")
@LOSSES
@pytest.mark.parametrize("work", ["get_many", "keys", "len", "check", "audit", "put", "delete"])
def test_the_first_to_notice_may_do_anything(pools: Any, lose: Lose, work: str) -> None:
    store = fill(pools, 3)

    def all_again() -> None:
        for key in KEYS:
            store.delete(key)
            store.insert(key, value(key, 0))

    calls: dict[str, Callable[[], object]] = {
        "get_many": lambda: store.get_many(KEYS),
        "keys": lambda: sorted(store),
        "len": lambda: len(store),
        "check": store.check,
        "audit": lambda: store.pool.audit()["leaked"],
        "put": lambda: [store.put(key, value(key, 0)) for key in KEYS],
        "delete": all_again,
    }
    before = calls[work]()
    lose(store.pool, 0)
    assert calls[work]() == before
    there(store, 0)
    writable(store, 1)
    there(store, 1)
    sound(store)


def test_round_trips_with_a_node_lost(pools: Any) -> None:
    """Where the value in place was lost, it is in place elsewhere after the next get."""
    store = fill(pools, 3)

    def most(work: Callable[[bytes], object]) -> int:
        found = 0
        for key in KEYS:
            if len(value(key, 0)) < 64:
                before = store.stats()["round_trips"]
                work(key)
                found = max(found, store.stats()["round_trips"] - before)
        return found

    there(store, 0)
    store.pool.fail_node(1)
    # read, pointer, value, and the write-back; value
    assert most(store.get) <= 6
    assert most(store.get) == 1
    assert most(lambda key: store.update(key, b"short")) <= 3
    assert most(lambda key: store.update(key, b"brief")) == 1
    assert most(store.get) == 1


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_node_is_lost_in_the_midst_of_an_update(pools: Any, lost: int, number: int) -> None:
    """A writer stands still before a CAS, and a node is lost; others read and write meanwhile."""
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=100)
    writer = Puppet(pools, pool.url, "swarm")
    for key in KEYS[:4]:
        store.put(key, b"old")
        for client in (writer.store, store):
            client.get(key)
            client.update(key, b"older")
            client.update(key, b"old")
        update = functools.partial(writer.store.update, key, b"new")
        writer.begin(update, verb_on("cas", None, number))
        if key == KEYS[0]:
            pool.fail_node(lost)
        seen = store.get(key)
        assert seen in (b"old", b"new")
        assert store.get(key) == seen
        store.update(key, b"last")
        assert store.get(key) == b"last"
        assert writer._at is None or writer.go()
        assert store.get(key) == writer.store.get(key)
        assert seen == b"old" or store.get(key) == b"last"
    pool.replace_node(lost)
    pool.fail_node((lost + 1) % 3)
    for key in KEYS[:4]:
        assert store.get(key) == writer.store.get(key)
        assert store.get(key) in (b"new", b"last")
    sound(store)


# ---- more than it survives -----------------------------------------------------------------------


@LOSSES
@pytest.mark.parametrize(("replicas", "lost"), [(1, (2,)), (3, (1, 2)), (5, (0, 2, 3))])
def test_with_more_lost_the_errors_name_a_node(
    pools: Any, lose: Lose, replicas: int, lost: tuple[int, ...]
) -> None:
    """Keys with a majority left are served, others fail; nothing is called missing."""
    store = fill(pools, replicas)
    for node in lost:
        lose(store.pool, node)
    served = {key for key in KEYS if read(store, key, lost) == value(key, 0)}
    assert len(served) < len(KEYS)
    assert bool(served) == (replicas < NODES)
    for key in set(KEYS) - served:
        calls: list[Callable[[], object]] = [
            functools.partial(store.put, key, b"new"),
            functools.partial(store.update, key, b"new"),
            functools.partial(store.insert, key, b"new"),
            functools.partial(store.delete, key),
            functools.partial(store.get_many, [key]),
        ]
        for call in calls:
            with pytest.raises(limpet.NodeFailed) as caught:
                call()
            assert caught.value.node in lost
    for key in served:
        store.put(key, b"new")
        store.delete(key)
        store.insert(key, value(key, 0))
        assert store.get(key) == value(key, 0)
    # buffers that only lost replicas named count as leaked
    assert store.pool.audit()["held"] == 0


# ---- replaced nodes ------------------------------------------------------------------------------


@pytest.mark.either_build("the same lines")
@pytest.mark.parametrize("nodes", [3, NODES])
def test_every_node_is_replaced_in_turn_and_then_another_is_lost(pools: Any, nodes: int) -> None:
    """A value on a bare majority with the lost node is on a majority of the nodes that are left."""
    store = fill(pools, 3, nodes)
    other = pools.again(store.pool).store("swarm", name="test")
    round_ = 0
    for node, step in itertools.product(range(nodes), (1, 2)):
        other_node = (node + step) % nodes
        store.pool.fail_node(node)
        store.pool.replace_node(node)  # no client has read or written anything meanwhile
        sound(store)
        store.pool.fail_node(other_node)
        there(other, round_)
        there(store, round_)
        store.pool.replace_node(other_node)
        sound(store)
        round_ += 1
        rewrite(store if round_ % 2 else other, round_)
    there(store, round_)
    sound(store)


@LOSSES
@pytest.mark.parametrize("lost", [(0, 1), (1, 2), (2, 0)])
@pytest.mark.parametrize("nodes", [3, NODES])
def test_no_node_is_replaced_when_a_majority_of_a_key_is_lost(
    pools: Any, lose: Lose, lost: tuple[int, int], nodes: int
) -> None:
    """Its last value may have been on those alone: what is left must not be taken for it."""
    store = fill(pools, 3, nodes)
    other = pools.again(store.pool).store("swarm", name="test")
    for node in lost:
        lose(store.pool, node)
    served = [key for key in KEYS if read(store, key, lost) == value(key, 0)]
    assert len(served) < len(KEYS)
    for node in lost:
        with pytest.raises(limpet.NodeFailed, match="majority"):
            store.pool.replace_node(node)
    for client in (store, other):
        assert [read(client, key, lost) for key in KEYS] == [
            value(key, 0) if key in served else None for key in KEYS
        ]


@pytest.mark.exhaustive("both ways", quick=["truncated"])
@LOSSES
def test_another_node_is_lost_while_one_is_filled(pools: Any, lose: Lose) -> None:
    """At a step of that. Then no value is there, or the last one."""
    met = 0
    for step in itertools.count(1, 97 if COMPILED else 800):
        store = fill(pools, 3, 3, buffers=1)
        store.pool.fail_node(2)
        filler = Puppet(pools, store.pool.url, "swarm")
        left = [step]

        def reached(verb: str, address: int, left: list[int] = left) -> bool:
            left[0] -= address >> NODE_SHIFT < 3
            return left[0] == 0

        ended = filler.begin(functools.partial(filler.pool.replace_node, 2), reached)
        if ended:
            break
        lose(store.pool, 0)
        with contextlib.suppress(limpet.NodeFailed):
            filler.go()
        for key in KEYS[:12]:
            assert read(store, key, (0, 2)) in (None, value(key, 0))
        pools.destroy()
        met += 1
    assert met


@pytest.mark.either_build("the same lines")
@pytest.mark.parametrize("first", [(0, 1), (1, 3), (2, 3)])
def test_two_of_five_are_replaced_and_then_two_others_are_lost(
    pools: Any, first: tuple[int, int]
) -> None:
    store = fill(pools, 5)
    for node in first:
        store.pool.fail_node(node)
    for node in first:
        store.pool.replace_node(node)
    others = [node for node in range(NODES) if node not in first][:2]
    for node in others:
        store.pool.fail_node(node)
    there(store, 0)
    rewrite(store, 1)
    for node in others:
        store.pool.replace_node(node)
    for node in first:
        store.pool.fail_node(node)
    there(store, 1)
    for node in first:
        store.pool.replace_node(node)
    sound(store)


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step of a write")
@pytest.mark.soak("every step of a write", cases=["1-*", "3-*"])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("lost", range(4))
def test_a_write_cut_off_while_a_node_is_lost_outlives_its_return_and_another_loss(
    pools: Any, lost: int, step: int
) -> None:
    """A buffer of that time has no replica beside that of its register on the node. So a tuple that
    one other had was at a majority when the node was back, with one copy of its value."""
    store = pools(nodes=4, node_size="1MiB").store("swarm", name="test", capacity=50, replicas=3)
    pool, other = store.pool, (lost + step) % 4
    key = next(key for key in KEYS if _node_of(store, key) == lost)
    before = b"0" * 40
    store.put(key, before)
    fuse, killed = 0, True
    while killed:
        fuse += 1 if COMPILED else 5
        new = b"%d" % (fuse % 10) * 40
        pool.fail_node(lost)
        killed = dies_at(pool, fuse, functools.partial(store.put, key, new))
        pool.recover()
        pool.replace_node(lost)
        pool.fail_node(other)
        found = store.get(key)
        assert found in ((before, new) if killed else (new,))
        pool.replace_node(other)
        assert store.get(key) == found
        sound(store)
        before = found
    assert fuse > 10


@pytest.mark.exhaustive("every step of a write")
@pytest.mark.soak("every step of a write", cases=["1"])
@pytest.mark.parametrize("node", range(3))
def test_a_write_cut_off_leaves_nothing_when_its_only_node_is_replaced(
    pools: Any, node: int
) -> None:
    store = pools(nodes=3, node_size="1MiB").store("swarm", name="test", capacity=50, replicas=3)
    store.put(b"k", b"before")
    fuse, killed = 0, True
    while killed:
        fuse += 1 if COMPILED else 5
        killed = dies_at(store.pool, fuse, functools.partial(store.put, b"k", b"%d" % fuse * 40))
        store.pool.recover()
        store.pool.fail_node(node)
        store.pool.replace_node(node)
        assert store.pool.audit()["leaked"] == 0
    assert fuse > 10
    assert store.get(b"k") == b"%d" % fuse * 40
    sound(store)


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step of a write", quick=["lost4-1"])
@pytest.mark.parametrize(
    ("lost", "buffers"), [((0,), 8), ((1,), 1), ((2,), 8), ((0, 1), 8), ((2, 4), 1)]
)
def test_a_guess_that_is_cut_off_as_it_is_written_again_is_covered_by_what_is_above_it(
    pools: Any, lost: tuple[int, ...], buffers: int
) -> None:
    """A stale guess is written again to its own buffer, under a later stamp: of a writer that is
    killed before its word says so, the guess has no value there. But a majority has more."""
    nodes = 2 * len(lost) + 1
    store = pools(nodes=nodes, node_size="1MiB").store(
        "swarm", name="test", capacity=50, replicas=nodes, buffers=buffers
    )
    pool = store.pool
    store.put(b"k", b"old")
    pool.numbers.clock.after(pool.numbers.clock.guess() + (1 << 40))

    def write_all_buffers() -> None:
        for _ in range(3):
            store.update(b"k", b"before")

    fuse = again = ended = 0
    while not (ended and again):
        assert ended < 9
        fuse += len(lost)
        ahead, new = b"ahead %d" % fuse, b"new %d" % fuse * 4
        # its row is in order and has both buffers, so each write takes the same steps
        assert not dies_at(pool, 10_000, write_all_buffers)
        pool.recover()
        store.update(b"k", ahead)
        killed = dies_at(pool, fuse, functools.partial(store.update, b"k", new))
        for node in lost:
            pool.fail_node(node)
        found = store.get(b"k")
        assert found in ((ahead, new) if killed else (new,))
        again += killed and found == new
        assert store.get(b"k") == found
        for node in lost:
            pool.replace_node(node)
        assert store.get(b"k") == found
        pool.recover()
        assert pool.audit()["leaked"] == 0
        if not killed:
            ended += 1
            fuse -= 4 * len(lost)  # the last steps once more: not every write takes as many
    assert fuse > 20
    sound(store)


def _node_of(store: Any, key: bytes) -> int:
    """The first node of a new key's register; the key is there no more."""
    store.put(key, b"")
    (node,) = {int(reference) >> NODE_SHIFT & 0xFF for reference in store.slots_taken()}
    store.delete(key)
    return node


@pytest.mark.either_build("the same lines")
@pytest.mark.exhaustive("more clients", quick=["3-*"])
@LOSSES
@pytest.mark.parametrize("buffers", [1, 3, 8])
def test_clients_work_on_while_nodes_come_and_go(pools: Any, lose: Lose, buffers: int) -> None:
    """With inserts and deletes while the node is lost, and values that several clients wrote."""
    store = fill(pools, 3, buffers=buffers)
    clients = [store, *(pools.again(store.pool).store("swarm", name="test") for _ in range(2))]
    round_ = 0
    for node in range(NODES):
        lose(store.pool, node)
        for round_ in range(3 * node + 1, 3 * node + 4):
            for number, key in enumerate(KEYS):
                client = clients[(number + round_) % 3]
                if (number + round_) % 5 == 0:
                    client.delete(key)
                client.put(key, value(key, round_))
        store.pool.replace_node(node)
        for client in clients:
            there(client, round_)
        sound(store)


def test_locks_are_kept_when_a_node_is_replaced(pools: Any) -> None:
    """A confirmed guess stays so, and one that was ruled out, whatever two nodes are lost later."""
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=100)
    store.put(b"k", b"v")
    store.update(b"k", b"w")
    (reference,) = store.slots_taken()
    register = store.register

    def locks(writer: int) -> list[int]:
        assert register.recycling.visit(reference)
        register.quorum.read_all()
        there = next(replica for replica in register.quorum.replicas if replica.word(0))
        register.place.capacity = there.word(1)
        return [register.place.lock(k, writer) for k in range(3)]

    older, newer = 100 << STAMP_SHIFT, 101 << STAMP_SHIFT
    for lost in range(3):
        left = [k for k in range(3) if locks(0)[k] >> NODE_SHIFT != lost]
        (new,) = {0, 1, 2} - set(left)
        cases = [
            ((newer | READ, newer | READ), newer | READ),
            ((newer | WRITE, older | READ), newer | WRITE),
            ((older | READ, newer | WRITE), newer | WRITE),
            ((newer | READ, newer | WRITE), newer | READ | WRITE),
            ((0, newer | READ), newer | READ),
            ((0, 0), 0),
        ]
        for writer, (words, _) in enumerate(cases):
            for k, word in zip(left, words, strict=True):
                pool.endpoint.store(locks(writer)[k], word)
        pool.fail_node(lost)
        pool.replace_node(lost)
        for writer, (_, expected) in enumerate(cases):
            assert pool.endpoint.load(locks(writer)[new]) == expected
            for address in locks(writer):
                pool.endpoint.store(address, 0)
    assert store.get(b"k") == b"w"
    sound(store)


def test_what_a_minority_had_when_it_was_lost(pools: Any) -> None:
    """A writer is stopped with its tuple at one replica; that node is lost, and is replaced."""
    for number in (2, 3, 4):
        for lost in range(3):
            pool = pools(nodes=3)
            store = pool.store("swarm", name="test", capacity=100)
            writer = Puppet(pools, pool.url, "swarm")
            store.put(b"k", b"old")
            writer.store.update(b"k", b"older")
            store.update(b"k", b"old")
            update = functools.partial(writer.store.update, b"k", b"new")
            assert not writer.begin(update, verb_on("cas", None, number))
            pool.fail_node(lost)
            seen = store.get(b"k")
            assert seen in (b"old", b"new")
            assert writer.go()
            assert store.get(b"k") == b"new"
            pool.replace_node(lost)
            for other in range(3):
                pool.fail_node(other)
                assert store.get(b"k") == writer.store.get(b"k") == b"new"
                pool.replace_node(other)
            sound(store)
            pools.destroy()


def test_check_that_fails_is_not_in_the_background_afterwards(pools: Any) -> None:
    """The verbs of later operations were counted as housekeeping."""
    pool = pools(nodes=3, node_size="8MiB")
    store, other = pool.store("swarm", name="w"), pool.store("race", name="r")
    for number in range(30):
        store.put(b"%d" % number, b"v")
        other.put(b"%d" % number, b"v")
    pool.fail_node(1)
    pool.fail_node(2)
    with pytest.raises(limpet.NodeFailed):
        store.check()
    before = other.stats()
    for number in range(30):
        with contextlib.suppress(limpet.NodeFailed):
            other.get(b"%d" % number)
    after = other.stats()
    assert after["round_trips"] > before["round_trips"]
    assert after["background"]["round_trips"] == before["background"]["round_trips"]
