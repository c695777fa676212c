"""Recovery of a dead client's memory; and audits that can fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from kit.clients import churn, ids, slot_of
from kit.processes import child, gather

import limpet
from limpet.shm.endpoint.slots import CLIENT_JOURNAL, INCARNATION_BITS, PIN
from limpet.shm.endpoint.words import LARGE, PENDING, REGION, SLAB, TAIL, block_word, class_of


def free_blocks(pool: limpet.Pool) -> list[int]:
    return [block for block, word in enumerate(pool.blocks.words(0).tolist()) if word == 0]


def test_report_names_who_was_recovered_and_what_was_given_back(pools: Any) -> None:
    pool = pools(lease=0.02)
    store = pool.store("race", capacity=64)

    def die_holding() -> int:
        store.put(b"k", b"v")
        store.delete(b"k")
        pool.client.enter()
        assert pool.allocator.allocate(0, 40)
        return pool.membership.ident

    with child(die=die_holding) as other:
        ident = other.do("die")
        assert pool.audit()["held"] > 0
        other.kill()
    assert pool.audit()["leaked"] > 0
    assert pool.recover() == {"clients": [ident], "objects": 1, "blocks": 1, "stores": 0}
    assert pool.recover() == {"clients": [], "objects": 0, "blocks": 0, "stores": 0}
    assert pool.audit()["leaked"] == 0


def test_several_recoverers_at_once_do_it_once(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    for _ in range(5):
        with child(put=lambda: store.put(b"k", b"v"), id=lambda: pool.client_id) as other:
            other.do("put")
            dead = other.do("id")
            with (
                child(join=lambda: pool.client_id, recover=pool.recover) as one,
                child(join=lambda: pool.client_id, recover=pool.recover) as two,
            ):
                one.do("join")
                two.do("join")
                other.kill()
                one.send("recover")
                two.send("recover")
                pool.recover()
                one.answer()
                two.answer()
            assert dead not in ids(pool)
    pool.recover()
    recovered = [e["subject"] for e in pool.events() if e["kind"] == "recovered"]
    assert len(recovered) == len(set(recovered))
    store.check()
    assert pool.audit()["leaked"] == 0


def lose(pool: limpet.Pool, node: int) -> None:
    """Have this handle, and no other client, be unable to use what a node has."""
    shipped = pool.blocks.words

    def words(at: int) -> Any:
        if at == node:
            raise limpet.NodeFailed(node, "lost to this process only")
        return shipped(at)

    pool.blocks.words = words  # type: ignore[method-assign]


def test_client_that_cannot_give_back_its_blocks_leaves_them_to_the_next(pools: Any) -> None:
    pool = pools(nodes=2)
    store = pool.store("race", capacity=64)
    leaver, helper = limpet.open(pool.url), limpet.open(pool.url)
    ident = leaver.client_id
    for number in range(20):
        leaver.store("race").put(b"%d" % number, bytes(100))
    lose(leaver, 1)
    leaver.close()
    lose(helper, 1)
    helper.recover()
    assert [found["state"] for found in pool.clients()] == ["live", "dead", "live"]
    assert pool.recover()["clients"] == [ident]
    assert len(pool.clients()) == 2
    for number in range(20):
        store.delete(b"%d" % number)
    assert pool.audit()["leaked"] == 0
    helper.close()
    pool.recover()
    assert len(pool.clients()) == 1


def test_client_whose_node_is_cut_off_leaves_nothing_behind(pools: Any, tmp_path: Any) -> None:
    with limpet.create(f"file://{tmp_path}/pool", nodes=2, node_size="1MiB") as pool:
        with limpet.open(pool.url) as leaver:
            for number in range(20):
                leaver.store("race").put(b"%d" % number, bytes(100))
            os.truncate(tmp_path / "pool" / "node.1", 0)
        assert len(pool.clients()) == 1


def test_abandoned_span_is_given_back_when_its_object_goes(pools: Any) -> None:
    pool = pools(node_size="512KiB")
    store = pool.store("race", capacity=64)
    large = bytes(10 * pool.layout.block_size)
    with child(put=lambda: store.put(b"large", large)) as other:
        other.do("put")
        other.kill()
    pool.recover()
    assert store.get(b"large") == large
    store.delete(b"large")
    # two of these fit only in place of the dead one's
    store.put(b"a", large)
    store.put(b"b", large)
    assert pool.audit()["leaked"] == 0


# ---- audits that can fail ------------------------------------------------------------------------


def leak_used_bit(pool: limpet.Pool) -> None:
    pool.store("race").put(b"k", b"v")
    words = pool.blocks.words(0).tolist()
    slabs = [b for b, word in enumerate(words) if word >> 60 == SLAB]
    block = min(slabs, key=lambda b: class_of(words[b]))
    pool.heap.take(pool.heap.reference(0, block, class_of(words[block]), 5))


def leak_block(word: int) -> Any:
    def leak(pool: limpet.Pool) -> None:
        pool.endpoint.store(pool.heap.table_word(0, free_blocks(pool)[3]), word)

    return leak


def leak_in_free_journal(pool: limpet.Pool) -> None:
    """An object in the client journal of a free slot is in no client's journal."""
    leak_used_bit(pool)
    slot = slot_of(9 << 36)
    pool.endpoint.store(slot + CLIENT_JOURNAL, 1 << 48)
    pool.endpoint.store(slot + PIN, 1)


def lose_link(pool: limpet.Pool) -> None:
    store = pool.store("race")
    store.put(b"k", b"v")
    for region, count, _ in pool.regions.extents(0):
        start = pool.layout.blocks + region * pool.layout.block_size
        for at in range(start, start + count * pool.layout.block_size, 8):
            if at % 64 and pool.endpoint.load(at) >> 48 and (at - start) % 64:
                pool.endpoint.store(at, 0)
                return
    raise AssertionError("no link found")


@pytest.mark.parametrize(
    "leak",
    [
        pytest.param(leak_used_bit, id="object in use that nothing links to"),
        pytest.param(lose_link, id="object that lost its link"),
        pytest.param(leak_block(block_word(PENDING, 7 << 36 | 5)), id="PENDING of no client"),
        pytest.param(leak_block(block_word(SLAB, 7 << 36 | 5, 3)), id="SLAB of a dead id"),
        pytest.param(leak_block(block_word(LARGE, 7 << 36 | 5)), id="LARGE of a dead id"),
        pytest.param(leak_block(block_word(TAIL, 1)), id="TAIL of no span"),
        pytest.param(leak_block(block_word(REGION, 12345)), id="REGION of no entry"),
        pytest.param(leak_in_free_journal, id="journal of a free slot"),
    ],
)
def test_audit_reports_an_injected_leak(pools: Any, leak: Any) -> None:
    pool = pools()
    pool.store("race", capacity=64).put(b"there", b"v")
    before = pool.audit()
    assert before["leaked"] == 0
    leak(pool)
    after = pool.audit()
    assert after["leaked"] > 0
    assert sum(value for key, value in after.items() if key != "total") == after["total"]


def test_audit_adds_up(pools: Any) -> None:
    pool = pools(nodes=3)
    store = pool.store("race", capacity=300)
    for number in range(200):
        store.put(b"%d" % number, bytes(number * 20))
    store.put(b"large", bytes(2 * pool.layout.block_size))
    audit = pool.audit()
    assert audit["total"] == 3 * pool.parameters.node_size
    assert sum(value for key, value in audit.items() if key != "total") == audit["total"]
    assert audit["reachable"] > sum(number * 20 for number in range(200))
    assert audit["leaked"] == audit["held"] == audit["failed"] == 0


# ---- damaged words -------------------------------------------------------------------------------

NO_OBJECT = 0x99 << 40 | 1 << 48 | 0x4E78B6B0
"""A reference that damage has changed: no pool has a node of that number."""


@pytest.mark.parametrize("fence", ["kill", "wait"])
def test_client_whose_journal_cannot_be_settled_leaves_and_keeps_nothing(
    pools: Any, fence: str
) -> None:
    pool = pools(node_size="2MiB", lease=0.02, fence=fence)
    store = pool.store("race", name="store", capacity=64)
    pool.store("race", name="another", capacity=64)

    def end_an_operation() -> None:
        store.put(b"key", b"value")
        pool.client.enter()
        pool.client.log(NO_OBJECT, 0)
        pool.client.leave()

    def use(call: Callable[[], object]) -> Callable[[], str]:
        def tried() -> str:
            with pytest.raises(limpet.ClientError, match="has left the pool") as raised:
                call()
            return str(raised.value)

        return tried

    calls = {
        "put": lambda: store.put(b"key", b"another"),
        "get": lambda: store.get(b"key"),
        "recover": pool.recover,
        "drop": lambda: pool.drop("another"),
    }
    with child(
        join=lambda: pool.client_id,
        damage=use(end_an_operation),
        close=pool.close,
        **{name: use(call) for name, call in calls.items()},
    ) as client:
        ident = client.do("join")
        client.do("damage")
        for name in calls:
            client.do(name)
        assert pool.recover()["clients"] == [ident]
        churn(pool, store)
        pool.drop("another")
        newcomer = pools.again(pool)
        assert newcomer.client_id >> INCARNATION_BITS == ident >> INCARNATION_BITS
        client.do("close")
        assert ids(pool) == {pool.client_id, newcomer.client_id}
    assert "fenced" not in {event["kind"] for event in pool.events()}
    assert store.get(b"key") == b"value"
    assert pool.audit()["leaked"] == 0


def test_handle_with_a_damaged_journal_can_be_closed_at_once(pools: Any) -> None:
    pool = pools(node_size="2MiB")
    other = pools.again(pool)
    other.client.enter()
    other.client.log(NO_OBJECT, 0)
    with pytest.raises(limpet.ClientError, match="has left the pool"):
        other.client.leave()
    other.close()
    assert len(ids(pool)) == 2  # DYING, until it is recovered
    pool.recover()
    assert ids(pool) == {pool.client_id}


@pytest.mark.parametrize("own", [True, False], ids=["its-own", "another-handle"])
def test_drop_does_not_wait_for_a_pin_of_a_handle_of_its_process_in_no_operation(
    pools: Any, own: bool
) -> None:
    """A damaged word: no operation runs, so no client would ever take the pin back."""
    pool = pools(node_size="2MiB", fence="wait", lease=0.02)
    pool.store("race", name="store", capacity=64)

    def drop() -> None:
        assert pool.client_id
        with limpet.open(pool.url) as other:
            pinned = pool if own else other
            pool.endpoint.store(pinned.client.slot + PIN, 1)
            pool.drop("store")
            assert pool.endpoint.load(pinned.client.slot + PIN) == 0

    gather(drop, lifetime_s=20)
    assert pool.stores() == []


def test_pin_of_a_handle_of_this_process_stays_while_its_operation_runs(pools: Any) -> None:
    pool = pools(node_size="2MiB", fence="wait", lease=0.02)
    other = pools.again(pool)
    other.client.enter()
    (laggard,) = pool.grace.laggards(pool.grace.close_period())
    assert not pool.membership.hurry(laggard)
    other.client.leave()
    assert pool.grace.laggards(pool.grace.close_period()) == []
