"""Objects of a user's own: arrays and names, read and written by transactions."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet.shm.errors import ParameterError, StoreError, StoreMismatch


@pytest.fixture
def pool(pools: Any) -> limpet.Pool:
    return pools(nodes=2)  # type: ignore[no-any-return]


def test_object_begins_as_initial_and_is_what_was_written(pool: limpet.Pool) -> None:
    cells = pool.objects("cells", 1000, initial=b"?")
    assert len(cells) == 1000
    assert pool.transaction(lambda tx: tx.read(cells[999])) == b"?"
    pool.transaction(lambda tx: tx.write(cells[-1], b""))
    assert pool.transaction(lambda tx: tx.read(cells[999])) == b""
    assert pool.transaction(lambda tx: tx.read(cells[0])) == b"?"
    with pytest.raises(IndexError, match="no number 1000"):
        cells[1000]


def test_transaction_over_objects_is_whole(pool: limpet.Pool, pools: Any) -> None:
    cells = pool.objects("cells", 8, initial=b"100")
    again = pools.again(pool)
    others = again.objects("cells")
    calls: list[int] = []

    def pay(tx: limpet.Transaction) -> None:
        left = int(tx.read(cells[1]))
        calls.append(left)
        if len(calls) == 1:
            again.transaction(lambda other: other.write(others[1], b"50"))
        tx.write(cells[1], b"%d" % (left - 10))
        tx.write(cells[2], b"%d" % (int(tx.read(cells[2])) + 10))

    pool.transaction(pay)
    assert calls == [100, 50]
    found = again.transaction(lambda tx: [tx.read(others[number]) for number in (1, 2)])
    assert found == [b"40", b"110"]
    assert not pool.audit()["leaked"]


def test_array_is_attached_to_as_it_was_made(pool: limpet.Pool, pools: Any) -> None:
    with pytest.raises(ParameterError, match="say how many"):
        pool.objects("cells")
    pool.objects("cells", 10, initial=b"x")
    again = pools.again(pool)
    assert len(again.objects("cells")) == 10
    assert repr(again.objects("cells")) == f"<10 objects of <rtx-race store 'cells' of {pool.url}>>"
    with pytest.raises(StoreMismatch, match="the objects 'cells' are 10"):
        again.objects("cells", 11)
    with pytest.raises(StoreMismatch, match="begin as b'x'"):
        again.objects("cells", 10, initial=b"y")


def test_arrays_and_stores_of_a_user_are_not_taken_for_each_other(pool: limpet.Pool) -> None:
    mine = pool.store("rtx-race", name="accounts")
    for value in (b"100", b"12345678, as a number of objects"):
        mine.put(b"array", value)
        for count in (None, 10):
            with pytest.raises(StoreMismatch, match="an rtx-race store of your own, not an array"):
                pool.objects("accounts", count)
        assert dict(mine.items()) == {b"array": value}
    pool.objects("cells", 10)
    opens = (lambda: pool.store("rtx-race", "cells"), lambda: pool.dict("cells", store="rtx-race"))
    for open_it in opens:
        with pytest.raises(StoreMismatch, match=r"is an array of objects.*pool.objects\('cells'\)"):
            open_it()
    pool.rename("cells", "accounts2")
    assert len(pool.objects("accounts2")) == 10


@pytest.mark.parametrize("count", [0, -1, True, 1.5, 1 << 41])
def test_impossible_counts_are_refused(pool: limpet.Pool, count: Any) -> None:
    with pytest.raises(ParameterError, match="count must be"):
        pool.objects("cells", count)


def test_named_object_is_the_same_for_all(pool: limpet.Pool, pools: Any) -> None:
    head, other = pool.object("head", b"none"), pool.object("other")
    assert pool.transaction(lambda tx: (tx.read(head), tx.read(other))) == (b"none", b"")
    pool.transaction(lambda tx: tx.write(head, b"7"))
    again = pools.again(pool)
    assert again.transaction(lambda tx: tx.read(again.object("head"))) == b"7"
    with pytest.raises(ParameterError, match="name of an object"):
        pool.object("")


def test_object_is_not_read_after_its_transaction(pool: limpet.Pool) -> None:
    head = pool.object("head")
    kept: list[limpet.Transaction] = []
    pool.transaction(kept.append)
    with pytest.raises(StoreError, match="over"):
        kept[0].read(head)


@pytest.mark.parametrize("initial", [5, "text", [1, 2], 1.5])
def test_what_cannot_be_the_first_value_is_refused(pool: limpet.Pool, initial: Any) -> None:
    """A number gave as many zeros."""
    for make in (pool.object, lambda name, initial: pool.objects(name, 3, initial)):
        with pytest.raises(TypeError, match="a first value is bytes"):
            make("made", initial=initial)
    assert pool.objects("made", 3, initial=bytearray(b"x"))[0].initial == b"x"
