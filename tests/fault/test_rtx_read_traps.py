"""The traps of what transactions read put back: each variant fails, what ships does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.mutants.rtx import (
    AT_ONCE,
    BLIND_DELETE,
    CUT_WHATEVER_BECAME_OF_IT,
    MOVES_NOTHING_EMPTY,
    NOT_COUNTED,
    STARTS_AGAIN,
    UNCHANGED,
    Mutant,
    in_force,
)
from kit.puppets import verb_on_address
from kit.stores import come_and_go
from kit.transactions import LATER, NEW, OLD, Clients

import limpet

pytestmark = pytest.mark.either_build("the same lines on either build")

Scenario = Callable[[Any], None]


def _key_comes_before_the_commit(pools: Any) -> None:
    """R10: of a key that the transaction puts and deletes blindly; it is inserted just before a
    leaf is locked. The inserter sees nothing of the transaction, so it comes first."""
    clients = Clients(pools, 1)
    (owner,) = clients.puppets
    absent = clients.kz[:1] + b"absent"

    def work(tx: Any) -> None:
        tx.put(owner.store, clients.kx, NEW)
        tx.put(owner.store, absent, NEW)
        tx.delete(owner.store, absent)
        tx.put(owner.store, clients.ky, NEW)

    owner.begin(lambda: owner.pool.transaction(work), verb_on_address("cas", clients.x))
    clients.store.insert(absent, LATER)
    assert clients.value(clients.kx) == OLD
    assert owner.go()
    assert clients.value(clients.kx) == NEW
    assert clients.value(absent) is None, "the insert came first, and outlived the transaction"
    clients.sound()


def _locks_are_released_in_a_cut(pools: Any) -> None:
    """R11: the reader stands still between two leaves for longer than its lease."""
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    calls = 0

    def work(tx: Any) -> tuple[Any, Any]:
        nonlocal calls
        calls += 1
        x = tx.get(reader.store, clients.kx)
        if calls == 1:
            clients.store.put(clients.kx, NEW)
        return x, tx.get(reader.store, clients.ky)

    at_y = verb_on_address("cas", clients.y)
    assert not reader.begin(lambda: reader.pool.transaction(work), at_y)
    clients.pass_lease()
    for key in (clients.kx, clients.ky):
        clients.store.put(key, LATER)
    assert reader.go()
    assert reader.result == (LATER, LATER)
    clients.sound()


def _writer_is_never_done(pools: Any) -> None:
    """R11: what was read is changed before anything else is read."""
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    keys = clients.kx, clients.ky, clients.kz
    count = 0

    def work(tx: Any) -> list[Any]:
        nonlocal count
        found = []
        for key in keys:
            found.append(tx.get(reader.store, key))
            count += 1
            clients.store.put(key, b"%d" % count)
        return found

    reader.pool.transaction(work, attempts=20)
    clients.sound()


def _another_transaction_between_two_reads(pools: Any) -> None:
    """Values of two moments: y is read after another transaction has changed x and y."""
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    seen: list[tuple[Any, Any]] = []
    calls = 0

    def change(tx: Any) -> None:
        tx.put(clients.store, clients.kx, NEW)
        tx.put(clients.store, clients.ky, NEW)

    def work(tx: Any) -> None:
        nonlocal calls
        calls += 1
        x = tx.get(reader.store, clients.kx)
        tx.get(reader.store, clients.kz)
        if calls == 1:
            clients.pool.transaction(change)
        seen.append((x, tx.get(reader.store, clients.ky)))

    reader.pool.transaction(work)
    assert seen == [(NEW, NEW)]
    clients.sound()


def _entries_without_bytes(pools: Any) -> None:
    """R12"""
    come_and_go(pools().store("rtx-sherman", name="test", capacity=100), 1, 200)


TRAPS: Final[dict[str, tuple[Mutant, Mutant, Scenario, type[Exception]]]] = {
    "R10": (BLIND_DELETE, UNCHANGED, _key_comes_before_the_commit, AssertionError),
    "R11-cut": (
        CUT_WHATEVER_BECAME_OF_IT, Mutant("cuts-at-once", (AT_ONCE,)), _locks_are_released_in_a_cut,
        AssertionError,
    ),
    "R11": (STARTS_AGAIN, UNCHANGED, _writer_is_never_done, limpet.TransactionConflict),
    "counts": (
        NOT_COUNTED, UNCHANGED, _another_transaction_between_two_reads, AssertionError,
    ),
    "R12": (MOVES_NOTHING_EMPTY, UNCHANGED, _entries_without_bytes, limpet.LimpetError),
}  # fmt: skip
"""The variant, what it differs from, the scene, and how it fails there."""


@pytest.mark.parametrize("name", TRAPS)
def test_trap_is_none_for_what_ships(name: str, pools: Any) -> None:
    _, ships, scenario, _ = TRAPS[name]
    with in_force(ships):
        scenario(pools)


@pytest.mark.parametrize("name", TRAPS)
def test_variant_that_falls_into_the_trap_is_caught(name: str, pools: Any) -> None:
    mutant, _, scenario, error = TRAPS[name]
    with in_force(mutant), pytest.raises(error):
        scenario(pools)
