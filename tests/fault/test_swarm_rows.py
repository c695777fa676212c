"""A client's traces in its row of a register, and their repair by the next client there.

Traps S10 and S11: a tombstone that was cut in two, and copies that were not written back.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.scenes.swarm_rows import (
    PATIENCE_S,
    buffer_is_anothers,
    buffer_is_written_beside_a_reader,
    copy_is_not_written_back,
    delete_it,
    get_it,
    insert_it,
    number_without_a_tombstone,
    put_it,
    row_has_two_handles,
    step_of_a_client_given_up_lands_late,
    two_tombstones,
    update_it,
    value_is_written_and_not_put,
)

import limpet
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.operations import Broken
from limpet.fault.matrix.testbed import look_away, within
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"


# ---- a delete is killed, and the next client of its slot -----------------------------------------


OPERATIONS: Final[tuple[Callable[[Any], bytes | None], ...]] = (
    put_it,
    update_it,
    insert_it,
    delete_it,
    get_it,
)


def _heirs_of_killed_deletes(
    pools: Any, kind: str, replicas: int, operation: Callable[[Any], bytes | None]
) -> int:
    """Kill a delete at each of its steps, and run the operation in a new client of its slot.

    How many steps it has.
    """
    pool = pools(nodes=replicas)
    store = pool.store(kind, name="test", capacity=50, replicas=replicas)
    k = 0
    died = True
    while died:
        k += 1
        store.put(b"k", b"old")

        def victim(slot: int, incarnation: int, fuse: int = k) -> None:
            look_away(pool)
            store.update(b"k", b"old")  # its own row is in use
            pool.endpoint.fuse = fuse
            store.delete(b"k")
            pool.endpoint.fuse = 0
            os._exit(0)

        with within(PATIENCE_S, "the victim"), Workers(victim) as workers:
            ended = workers.reap(workers.start(0))
        assert ended.status in (0, -signal.SIGKILL), ended.traceback
        died = ended.status != 0
        pool.recover()
        heir = limpet.Pool.open(pool.url)
        try:
            heir.numbers.take(2)
            assert (pool.numbers.number, heir.numbers.number) == (0, 1), "the heir has another row"
            there = store.get(b"k")
            with within(PATIENCE_S, f"{operation.__name__} after a kill at step {k}"):
                left = operation(heir.store(kind, name="test"))
            assert there in (b"old", None)
            assert store.get(b"k") == left
        finally:
            heir.close()
        store.check()
        assert not pool.audit()["leaked"]
    return k - 1


HEIRS = [("swarm", 3, operation) for operation in OPERATIONS]
if COMPILED:
    HEIRS += [
        (kind, replicas, operation)
        for kind, replicas in (("swarm", 1), ("swarm", 5), ("dm-abd", 3))
        for operation in (put_it, delete_it)
    ]


@pytest.mark.exhaustive("every step", quick=["swarm-1-*", "swarm-3-get_it"])
@pytest.mark.parametrize(("kind", "replicas", "operation"), HEIRS)
def test_the_next_client_of_a_killed_deletes_slot_is_not_held_up(
    pools: Any, kind: str, replicas: int, operation: Callable[[Any], bytes | None]
) -> None:
    assert _heirs_of_killed_deletes(pools, kind, replicas, operation) > 8


# ---- step by step --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scenario",
    [
        number_without_a_tombstone,
        functools.partial(number_without_a_tombstone, where=1),
        two_tombstones,
        copy_is_not_written_back,
        buffer_is_anothers,
        step_of_a_client_given_up_lands_late,
        row_has_two_handles,
        value_is_written_and_not_put,
        buffer_is_written_beside_a_reader,
    ],
    ids=[
        "number",
        "number-beside-a-tombstone",
        "two-tombstones",
        "copy",
        "buffer-is-anothers",
        "late-step",
        "two-handles",
        "not-put",
        "reader",
    ],
)
def test_what_an_attempt_leaves_is_no_ones_harm(
    scenario: Callable[[Any], None], pools: Any
) -> None:
    """Variants for which it is: tests/fault/test_known_bad.py."""
    scenario(pools)


# ---- damaged memory ------------------------------------------------------------------------------


def _damaged(pools: Any, kind: str) -> tuple[Any, bytes]:
    """A store, and a key whose register is another one on two replicas of three, those that are
    read; the third is the one that says which register it is."""
    pool = pools(nodes=3)
    store = pool.store(kind, name="test", capacity=50, replicas=3)
    register = store.register.place
    for number in range(50):
        key = b"k-%d" % number
        store.put(key, b"old")
        store.get(key)
        if register.first == 1:
            break
    for k in (1, 2):
        pool.endpoint.store(register.address(k), register.ident + 1)
    return store, key


DAMAGE = [("swarm", "get"), ("swarm", "put"), ("swarm", "delete"), ("dm-abd", "delete")]


@pytest.mark.exhaustive("every operation", quick=["swarm-put"])
@pytest.mark.parametrize(("kind", "name"), DAMAGE)
def test_an_operation_on_a_damaged_register_ends_and_hears_signals(
    pools: Any, kind: str, name: str
) -> None:
    store, key = _damaged(pools, kind)
    operation = functools.partial(getattr(store, name), key, *[b"new"] * (name == "put"))
    with pytest.raises(Broken), within(0.3, name):
        operation()
    said = f"{store.pool.url}, store 'test': the key {key!r}: .*damaged"
    with within(30, name), pytest.raises(limpet.StoreCorrupt, match=said):
        operation()
