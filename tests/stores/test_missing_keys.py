"""Absence is a read: what a transaction found missing, or deletes blindly, is missing at its
commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.stores import key_of, once
from kit.variants import vary

import limpet
from limpet.stores.transactions.commit import Commit

KINDS: Final = ("rtx-sherman", "rtx-race")
MANY: Final = 200


@pytest.fixture
def pool(pools: Any) -> limpet.Pool:
    """A pool of two memory nodes."""
    return pools(nodes=2)  # type: ignore[no-any-return]


@pytest.fixture(params=itertools.product(KINDS, KINDS), ids="-and-".join)
def two(request: pytest.FixtureRequest, pool: limpet.Pool) -> list[Any]:
    """Two stores, of the same kind or not."""
    return [pool.store(kind, name=f"test {number}") for number, kind in enumerate(request.param)]


@pytest.fixture
def others(pools: Any, pool: limpet.Pool, two: list[Any]) -> list[Any]:
    """The two stores, of another client."""
    again = pools.again(pool)
    return [again.store(store.kind, name=store.name) for store in two]


def at_the_commit(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Have a change happen once, when the next transaction has staged all that it writes, and
    locked none of it."""
    usual, late = Commit._lock_all, once(change)

    def lock_all(commit: Commit, *given: Any) -> Any:
        late()
        return usual(commit, *given)

    vary(monkeypatch, Commit, "_lock_all", lock_all)


def test_key_that_is_put_and_deleted_blindly_is_absent_at_the_commit(
    pool: limpet.Pool, two: list[Any], others: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written for it, and no client has read it: the insert of another client came
    between the transaction's look and its commit, saw nothing of it, and outlived it."""
    here, there = two
    key, beside = key_of(0), key_of(1)
    for store in two:
        store.put_many({b"m%03d" % number: bytes(60) for number in range(MANY)})
    seen: list[bytes | None] = []

    def work(tx: limpet.Transaction) -> None:
        tx.put(here, beside, b"1")
        tx.put(there, key, b"mine")
        tx.delete(there, key)

    def change() -> None:
        others[1].insert(key, b"theirs")
        seen.append(others[0].get(beside))

    at_the_commit(monkeypatch, change)
    pool.transaction(work)
    assert seen == [None], "the insert came before the transaction"
    assert beside in here
    assert key not in there


@pytest.mark.parametrize(
    ("way", "outcomes", "left"),
    [
        ("update", ["missing", "done"], b"mine"),
        ("delete", ["missing", "done"], None),
        ("insert", ["done", "there"], b"theirs"),
    ],
)
def test_key_that_was_found_missing_may_not_come_before_the_commit(
    pool: limpet.Pool,
    two: list[Any],
    others: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    outcomes: list[str],
    left: bytes | None,
) -> None:
    """Its update or delete was refused, or it was inserted."""
    here, there = two
    key, beside = key_of(0), key_of(1)
    found: list[str] = []

    def work(tx: limpet.Transaction) -> None:
        found.append("done")
        try:
            getattr(tx, way)(there, key, *([] if way == "delete" else [b"mine"]))
        except limpet.KeyExists:
            found[-1] = "there"
        except KeyError:
            found[-1] = "missing"
        tx.put(here, beside, b"1")

    at_the_commit(monkeypatch, lambda: others[1].insert(key, b"theirs"))
    pool.transaction(work)
    assert found == outcomes
    assert there.get(key) == left


def test_named_object_that_is_missing_is_read_as_well(pool: limpet.Pool, pools: Any) -> None:
    """When there is no store of them yet, too: of two that each look for the other's object and
    make their own, one comes first."""
    again = pools.again(pool)

    def make(mine: str, other: str) -> Callable[[limpet.Transaction], bool]:
        def work(tx: limpet.Transaction) -> bool:
            alone = other not in tx
            if alone:
                tx[mine] = b""
            return alone

        return work

    change = once(lambda: again.transaction(make("y", "x")))

    def work(tx: limpet.Transaction) -> bool:
        alone = "y" not in tx
        change()
        if alone:
            tx["x"] = b""
        return alone

    assert not pool.transaction(work)
    assert pool.transaction(lambda tx: ("x" in tx, "y" in tx)) == (False, True)


def test_first_named_object_is_looked_for_and_made_in_one_attempt(pool: limpet.Pool) -> None:
    """That the transaction makes the store itself is no conflict."""

    def work(tx: limpet.Transaction) -> None:
        assert "x" not in tx
        assert "y" not in tx
        tx["x"] = b"1"

    pool.transaction(work, attempts=1)
    assert pool.transaction(lambda tx: tx["x"]) == b"1"


def test_first_named_object_of_another_is_a_conflict_for_what_is_written_elsewhere(
    pool: limpet.Pool, two: list[Any], others: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = two[0], others[0]

    def work(tx: limpet.Transaction) -> None:
        tx.put(store, b"a", b"there" if "x" in tx else b"missing")

    at_the_commit(monkeypatch, lambda: other.pool.transaction(lambda tx: tx.__setitem__("x", b"1")))
    pool.transaction(work)
    assert store.get(b"a") == b"there"
