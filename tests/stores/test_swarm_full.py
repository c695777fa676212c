"""A pool that inserts have filled: keys have no buffers there, and each can be updated for ever.

Also when clients have been killed there, and with values of several sizes.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from typing import Any, Final

import pytest
from kit.mutants.uncompiled import SWARM, Change, replaced, store_in_force
from kit.parts import stride
from kit.processes import dies_at, exit_code, fork
from kit.stores import sound

import limpet

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

COMPILED: Final = limpet.build == "compiled"
SIZE: Final = 1024
"""Bytes of a value: with its register, a tenth of a block."""
STEP: Final = stride(7)
TURNS: Final = 3 if COMPILED else 1
FUSE: Final = 2_000
"""The step at which a client is killed: in the midst of its updates."""
SIZES: Final = (60, 300, 1024)
LENT: Final = 8
"""Buffers that a client lends without waiting for others."""
KILLED: Final = 40
"""Clients: more than there are buffers in the blocks of a node that inserts leave."""
IN_A_LOAN: Final = 120
"""A step of an update at which its buffer is in use, and not returned yet."""


def value_of(number: int, turn: int, size: int = SIZE) -> bytes:
    return (b"%d of %d " % (turn, number) * size)[:size]


def full(
    pools: Any, replicas: int, *sizes: int, node_size: str = "1MiB", kind: str = "swarm"
) -> tuple[Any, Any, list[bytes]]:
    """A pool, a store, and the keys with which it is full, of values of these sizes by turns."""
    pool = pools(nodes=replicas, node_size=node_size, block_size="16KiB", clients=16)
    store = pool.store(kind, name="test", capacity=100, replicas=replicas)
    keys: list[bytes] = []
    with contextlib.suppress(limpet.StoreFull):
        while True:
            size = (sizes or (SIZE,))[len(keys) % len(sizes or (SIZE,))]
            store.insert(b"%d" % len(keys), value_of(len(keys), 0, size))
            keys.append(b"%d" % len(keys))
    return pool, store, keys


def update_all(store: Any, keys: list[bytes], turn: int) -> None:
    for number, key in enumerate(keys):
        store.update(key, value_of(number, turn))


def hold(store: Any, keys: list[bytes], turns: list[int]) -> None:
    """Each key has a value that one of these turns has written."""
    for number, key in enumerate(keys):
        assert store.get(key) in [value_of(number, turn) for turn in turns]
    sound(store)


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_updates_go_on_in_a_pool_where_inserts_are_refused(pools: Any, replicas: int) -> None:
    pool, store, keys = full(pools, replicas)
    before = pool.audit()["reachable"]
    for turn in range(1, TURNS + 1):
        update_all(store, keys, turn)
        hold(store, keys, [turn])
    assert pool.audit()["reachable"] < before + (1 << 16)
    added = 0
    with contextlib.suppress(limpet.StoreFull):
        while added < len(keys):
            store.insert(b"new %d" % added, value_of(added, 0))
            added += 1
    assert added < 40
    update_all(store, keys, 9)
    hold(store, keys, [9])


@pytest.mark.parametrize("kind", ["swarm", "dm-abd"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_updates_go_on_where_one_of_twenty_blocks_is_none(
    pools: Any, replicas: int, kind: str
) -> None:
    pool, store, keys = full(pools, replicas, node_size="256KiB", kind=kind)
    assert pool.allocator.table.reserve == 0
    for turn in range(1, TURNS + 1):
        update_all(store, keys, turn)
        hold(store, keys, [turn])


@pytest.mark.exhaustive("more replicas", quick=["1"])
@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_updates_go_on_beside_others(pools: Any, replicas: int) -> None:
    """Four clients update every key; one of them is killed, and the next has its slot."""
    pool, store, keys = full(pools, replicas)

    def work(turn: int, fuse: int = 0) -> None:
        pool.endpoint.fuse = fuse
        update_all(store, keys, turn)
        pool.endpoint.fuse = 0

    victim = fork(lambda: work(1, FUSE))
    others = [fork(functools.partial(work, turn)) for turn in (2, 3, 4)]
    assert exit_code(victim) == -signal.SIGKILL
    others.append(fork(lambda: work(5)))
    assert [exit_code(pid) for pid in others] == [0, 0, 0, 0]
    hold(store, keys, [1, 2, 3, 4, 5])
    update_all(store, keys, 6)
    hold(store, keys, [6])


@pytest.mark.exhaustive("more replicas", quick=["1"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_an_update_may_be_killed_at_each_step_of_a_loan(pools: Any, replicas: int) -> None:
    """The next client of the slot finds the row, and every key has its old or its new value."""
    pool, store, keys = full(pools, replicas, 40)
    ours = keys[:: len(keys) // 4][:4]
    old, new = value_of(0, 1, 40), value_of(0, 2, 40)

    def work() -> None:
        for key in ours:
            store.update(key, new)

    def succeed() -> None:
        for key in ours:
            assert store.get(key) in (old, new)
            store.update(key, old)
            assert store.get(key) == old
        if fuse % 20 == 0:
            store.delete(ours[0])
            store.insert(ours[0], old)

    for key in ours:
        store.update(key, old)
    fuse = 1
    while dies_at(pool, fuse, work):
        assert exit_code(fork(succeed)) == 0
        assert [store.get(key) for key in ours] == [old] * 4
        if fuse % 60 == 1:
            sound(store)
        fuse += STEP
    assert fuse > 100
    assert None not in store.get_many(keys)
    sound(store)


def kill_in_loans(pool: Any, store: Any, keys: list[bytes]) -> None:
    """Kill clients of one slot of a full pool, one after the other, each in the loan of a buffer
    for a key of its own. We update all the time."""
    for number in range(KILLED):
        update = functools.partial(store.update, keys[number], value_of(number, 1, 500))
        assert dies_at(pool, IN_A_LOAN, update)
        store.update(keys[-1], value_of(number, 2))


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("heir", [False, True])
def test_buffers_of_killed_clients_come_back(pools: Any, replicas: int, heir: bool) -> None:
    """To a client of another slot, and to the next one of theirs."""
    pool, store, keys = full(pools, replicas)
    kill_in_loans(pool, store, keys)
    if heir:
        assert exit_code(fork(functools.partial(update_all, store, keys, 3))) == 0
    else:
        update_all(store, keys, 3)
    hold(store, keys, [3])
    if replicas > 1:
        pool.fail_node(1)
        assert store.get_many(keys) == [value_of(number, 3) for number in range(len(keys))]


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_client_that_returns_anothers_buffers_may_be_killed_at_each_step(
    pools: Any, replicas: int
) -> None:
    pool, store, keys = full(pools, replicas)
    before = pool.audit()["reachable"]
    ours = keys[:: len(keys) // 4][:4]

    def refused() -> None:
        with contextlib.suppress(limpet.StoreFull):
            store.find_memory(True, (0, 1 << 30, replicas, 0, 0), 1, 0)

    fuse, died = 1, True
    while died:
        key, old = ours[fuse % 4], store.get_many(ours)
        new = value_of(0, fuse)
        dies_at(pool, IN_A_LOAN + fuse % 60 - 30, functools.partial(store.update, key, new))
        died = dies_at(pool, fuse, refused)
        assert store.get(key) in (old[fuse % 4], new)
        old[fuse % 4] = store.get(key)
        assert store.get_many(ours) == old
        if fuse % 20 == 0:
            sound(store)
        fuse += STEP
    assert fuse > 30
    refused()
    assert pool.audit()["reachable"] == before
    sound(store)


def update_in_view(pool: Any, store: Any, keys: list[bytes]) -> None:
    """Update some keys while another client keeps us from returning their buffers."""
    with limpet.open(pool.url) as other:
        other.client.enter()
        try:
            for number, key in enumerate(keys[:LENT]):
                store.update(key, value_of(number, 1, SIZES[number % 3]))
        finally:
            other.client.leave()


def test_values_of_several_sizes_share_the_blocks_that_are_reserved(pools: Any) -> None:
    pool, store, keys = full(pools, 3, *SIZES)
    update_in_view(pool, store, keys)
    sound(store)


def test_values_of_several_sizes_can_be_updated_beside_others(pools: Any) -> None:
    _, store, keys = full(pools, 3, *SIZES)
    some = list(enumerate(keys))[:: 2 if COMPILED else 25]

    def work(turn: int) -> None:
        for number, key in some:
            store.update(key, value_of(number, turn, SIZES[number % 3]))

    clients = [fork(functools.partial(work, turn)) for turn in (1, 2, 3)]
    assert [exit_code(pid) for pid in clients] == [0, 0, 0]
    for number, key in some:
        size = SIZES[number % 3]
        assert store.get(key) in [value_of(number, turn, size) for turn in (1, 2, 3)]
    sound(store)


def test_a_block_for_each_size_is_caught(pools: Any) -> None:
    pool, _, keys = full(pools, 3, *SIZES)
    change = replaced("swarm/row", "Row._is_loan", lambda row, size: False)
    with store_in_force(SWARM, ("swarm/store", "Swarm"), [change]), limpet.open(pool.url) as ours:
        store = ours.store("swarm", name="test")
        with pytest.raises(limpet.StoreFull):
            update_in_view(ours, store, keys)


LEAVES = replaced("swarm/store", "Swarm._find_idle", lambda store: False)


@pytest.mark.parametrize(
    "changes",
    [[LEAVES], [LEAVES, replaced("swarm/row", "Row.lend", lambda row, buffer: False)]],
    ids=["leaves-those-of-the-dead", "keeps-its-own"],
)
def test_buffers_that_do_not_come_back_are_caught(pools: Any, changes: list[Change]) -> None:
    pool, _, keys = full(pools, 3)
    with store_in_force(SWARM, ("swarm/store", "Swarm"), changes), limpet.open(pool.url) as other:
        store = other.store("swarm", name="test")

        def update() -> None:
            kill_in_loans(other, store, keys)
            update_all(store, keys, 3)

        with pytest.raises((limpet.StoreFull, AssertionError)):  # ours, or that of a child
            update()


def test_buffers_that_come_back_before_their_values_are_in_place_are_caught(pools: Any) -> None:
    pool, _, keys = full(pools, 3)
    change = replaced("swarm/row", "Row._missing_in_place", lambda row, own: 0)
    with store_in_force(SWARM, ("swarm/store", "Swarm"), [change]), limpet.open(pool.url) as other:
        store = other.store("swarm", name="test")
        update_all(store, keys[:40], 1)
        other.fail_node(1)
        with pytest.raises(limpet.StoreCorrupt):
            store.get_many(keys[:40])
