"""Scenes of what transactions of rTX read: its traps, which variants put back."""

from __future__ import annotations

from typing import Any, Final

from kit.mutants.rtx import (
    BLIND_DELETE,
    NOT_COUNTED,
)
from kit.puppets import verb_on_address
from kit.stores import come_and_go
from kit.transactions import LATER, NEW, OLD, Clients


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


def locks_are_released_in_a_cut(pools: Any) -> None:
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


def writer_is_never_done(pools: Any) -> None:
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


def entries_without_bytes(pools: Any) -> None:
    """R12"""
    come_and_go(pools().store("rtx-sherman", name="test", capacity=100), 1, 200)


STEPS: Final = (
    (BLIND_DELETE, _key_comes_before_the_commit),
    (NOT_COUNTED, _another_transaction_between_two_reads),
)
