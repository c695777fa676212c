"""Changes of the view: the leader, waiting clients, and the traces of failures."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.endpoints import Interrupted, WatchedEndpoint, WatchedPool
from kit.processes import gather, start

import limpet
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.layout import LEADER, NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS, PARKED, PIN_SHIFT
from limpet.shm.endpoint.states import EXCLUDED, FAILED, IN_SERVICE, RESTORING
from limpet.shm.endpoint.words import REPLICATED
from limpet.shm.replicas.view import IDENT_MASK

NODES = 3


class Impatient(WatchedEndpoint):
    """Waits no longer than for so many pauses; then it is interrupted."""

    patience = 1 << 60

    def pause(self, attempt: int) -> int:
        self.patience -= 1
        if self.patience < 0:
            raise Interrupted
        return int(super().pause(attempt))


class ImpatientPool(WatchedPool):
    endpoint_class = Impatient
    endpoint: Impatient


@pytest.fixture
def pool(pools: Any) -> Any:
    return pools.keep(ImpatientPool.open(pools(nodes=NODES, lease=0.05).url))


@contextlib.contextmanager
def inside(pool: Any) -> Iterator[Any]:
    """In an operation."""
    pool.client.enter()
    try:
        yield pool.view
    finally:
        pool.client.leave()


def settle(pool: Any, lost: int | None = None) -> None:
    with inside(pool) as view:
        view.settle(lost)


def reaches(pool: Any, node: int) -> bool:
    """Whether the memory that the node has now is mapped."""
    try:
        pool.endpoint.load(pool.heap.table_word(node, 0))
    except limpet.NodeFailed:
        return False
    return True


def settled(pool: Any, *lost: int) -> None:
    """No client leads or waits, and nothing is counted on these nodes any more."""
    assert pool.view.states() == [EXCLUDED if node in lost else IN_SERVICE for node in range(NODES)]
    assert pool.endpoint.load(LEADER) == 0
    assert pool.endpoint.load(pool.client.slot + PARKED) == 0


# ---- one client ----------------------------------------------------------------------------------


def test_nothing_is_lost_at_first(pool: Any) -> None:
    assert pool.view.number() == 0
    assert pool.view.failed() == []
    settle(pool)
    assert pool.view.number() == 0
    settled(pool)


def test_what_was_replaced_is_mapped_before_anything_is_put_in_order(pool: Any, pools: Any) -> None:
    """Others may have lost and replaced a node while we were parked, and another is lost now."""
    other = pools.again(pool)
    seen: list[bool] = []
    pool.view.reconcile = lambda failed: seen.append(reaches(pool, 1))
    with inside(pool) as view:
        pool.endpoint.store(pool.client.slot + PARKED, 1)
        other.fail_node(1)
        other.replace_node(1)
        assert not reaches(pool, 1)
        other.fail_node(2)
        view.settle()
        assert seen == [True]
        pool.endpoint.store(pool.client.slot + PARKED, 1)
        other.replace_node(2)
        pool.endpoint.swap(pool.client.slot + PARKED, 0)
        assert not reaches(pool, 2)
        view.settle()
        assert reaches(pool, 2)


def test_who_meets_a_lost_node_changes_the_view(pool: Any) -> None:
    asked: list[tuple[list[int], list[int]]] = []
    pool.view.reconcile = lambda failed: asked.append((failed, pool.view.states()))
    pool.fail_node(1)
    assert pool.view.failed() == [1]
    assert pool.view.number() == 0
    settle(pool)
    assert asked == [([1], [IN_SERVICE, FAILED, IN_SERVICE])]
    assert pool.view.number() == 2
    settled(pool, 1)
    settle(pool)
    assert pool.view.number() == 2
    kinds = [(e["kind"], e["subject"]) for e in pool.events()]
    assert kinds == [("node failed", 1), ("node excluded", 1)]


def test_a_node_that_nobody_knew_to_be_lost(pool: Any) -> None:
    os.truncate(SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.2", 0)
    with inside(pool) as view:
        with pytest.raises(limpet.NodeFailed) as caught:
            pool.endpoint.load(2 << NODE_SHIFT)
        view.settle(caught.value.node)
    settled(pool, 2)


def test_several_nodes_at_once_and_one_after_another(pool: Any) -> None:
    asked: list[list[int]] = []
    pool.view.reconcile = asked.append
    pool.fail_node(0)
    pool.fail_node(2)
    settle(pool)
    settled(pool, 0, 2)
    pool.mark_failed(1)
    settle(pool)
    settled(pool, 0, 1, 2)
    assert asked == [[0, 2], [1]]


def test_another_node_is_lost_during_the_change(pool: Any, pools: Any) -> None:
    asked: list[list[int]] = []
    other = pools.again(pool)

    def reconcile(failed: list[int]) -> None:
        asked.append(failed)
        if len(asked) == 1:
            other.fail_node(2)
            pool.endpoint.load(2 << NODE_SHIFT)

    pool.view.reconcile = reconcile
    pool.fail_node(0)
    settle(pool)
    assert asked == [[0], [0, 2]]
    settled(pool, 0, 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt, limpet.StoreCorrupt])
def test_an_error_in_the_change_leaves_nobody_leading_or_parked(
    pool: Any, error: type[BaseException]
) -> None:
    def reconcile(failed: list[int]) -> None:
        raise error("on purpose")

    whole, pool.view.reconcile = pool.view.reconcile, reconcile
    pool.fail_node(1)
    with pytest.raises(error):
        settle(pool)
    assert pool.view.failed() == [1]
    assert pool.endpoint.load(LEADER) == 0
    assert pool.endpoint.load(pool.client.slot + PARKED) == 0
    pool.view.reconcile = whole
    settle(pool)
    settled(pool, 1)


# ---- several clients -----------------------------------------------------------------------------


def test_the_leader_waits_for_who_is_in_an_operation(pool: Any, pools: Any) -> None:
    other = pools.again(pool)
    pool.fail_node(1)
    pool.endpoint.patience = 3
    with inside(other):
        with pytest.raises(Interrupted):
            settle(pool)
        assert pool.view.failed() == [1]
        assert pool.endpoint.load(LEADER) == 0
    pool.endpoint.patience = 1 << 60
    settle(pool)
    settled(pool, 1)


def test_the_leader_waits_for_who_takes_over_the_pin_of_a_dead_client(
    pool: Any, pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own pin changes meanwhile; but it is in the midst of the recovery."""
    other = pools.again(pool)
    older = pool.grace.close_period() << PIN_SHIFT
    pool.fail_node(1)
    pool.endpoint.patience = 3
    laggards = pool.view.grace.laggards

    def overtaken(epoch: int) -> Any:
        found = laggards(epoch)
        other.client.share_pin(older + 1, 0)
        return found

    monkeypatch.setattr(pool.view.grace, "laggards", overtaken)
    with inside(other), pytest.raises(Interrupted):
        settle(pool)
    assert pool.view.failed() == [1]


@pytest.mark.parametrize("what", ["release", "adopt", "sweep"])
def test_groups_do_not_change_while_a_node_is_filled(pool: Any, pools: Any, what: str) -> None:
    leader = pools.again(pool)
    pool.allocator.replenish(0, 100, 2)
    pool.allocator.replenish(2, 100, 2)  # with its backups on node 0
    works = {
        "release": functools.partial(pool.allocator.relief.release_empty, {}),
        "adopt": pool.allocator.relief.adopt_abandoned,
        "sweep": pool.recover,
    }
    pool.fail_node(1)
    with inside(leader) as view:
        view.settle()
        assert view.lead()
        view.move(1, EXCLUDED, RESTORING)
        words = [pool.blocks.words(node).tolist() for node in (0, 2)]
        pool.endpoint.patience = 3
        with pytest.raises(Interrupted):
            works[what]()
        assert [leader.blocks.words(node).tolist() for node in (0, 2)] == words
        view.move(1, RESTORING, EXCLUDED)
        view.resign()
    pool.endpoint.patience = 1 << 60
    works[what]()
    settled(leader, 1)


@pytest.mark.parametrize("how", ["closed", "collected"])
def test_handle_that_goes_while_a_node_is_filled_waits_for_nobody(pools: Any, how: str) -> None:
    """The one that fills it may be its own thread. What the handle had is recovered later."""
    leader = pools(nodes=3)
    gone = limpet.open(leader.url)
    gone.allocator.replenish(0, 100, 2)
    ident = gone.client_id
    leader.fail_node(1)
    with inside(leader) as view:
        view.settle()
        assert view.lead()
        view.move(1, EXCLUDED, RESTORING)
        words = [leader.blocks.words(node).tolist() for node in (0, 2)]
        if how == "closed":
            gone.close()
        del gone
        gc.collect()
        assert [leader.blocks.words(node).tolist() for node in (0, 2)] == words
        view.move(1, RESTORING, EXCLUDED)
        view.resign()
    assert leader.recover()["clients"] == [ident]
    assert leader.audit()["leaked"] == 0


def test_the_leader_does_not_wait_for_the_parked(pool: Any, pools: Any) -> None:
    parked = pools.again(pool)
    pool.endpoint.patience = 1
    pool.fail_node(1)
    with inside(parked):
        parked.endpoint.store(parked.client.slot + PARKED, 1)
        settle(pool)
        parked.endpoint.store(parked.client.slot + PARKED, 0)
    settled(pool, 1)


def test_who_comes_later_is_not_waited_for_and_sees_the_new_view(pool: Any, pools: Any) -> None:
    later = pools.again(pool)
    seen: list[tuple[int, list[int]]] = []

    def reconcile(failed: list[int]) -> None:
        with inside(later) as view:
            seen.append((view.number(), view.failed()))

    pool.view.reconcile = reconcile
    pool.fail_node(1)
    settle(pool)
    assert seen == [(1, [1])]
    settled(pool, 1)


def test_two_that_meet_the_loss_agree_on_one_leader(pool: Any, pools: Any) -> None:
    other = pools.keep(ImpatientPool.open(pool.url))
    pool.fail_node(1)
    with inside(pool), inside(other):
        assert pool.view.lead()
        assert not other.view.lead()
        assert pool.view.lead()
        other.endpoint.patience = 3
        with pytest.raises(Interrupted):
            other.view.settle()
        assert pool.endpoint.load(LEADER) & IDENT_MASK == pool.client.ident
    other.endpoint.patience = 1 << 60
    settle(pool)
    settle(other)
    settled(pool, 1)


@pytest.mark.parametrize(
    "whose", ["ours", "of one at rest", "of one at other work", "of no client"]
)
def test_a_leader_that_leads_nothing_is_replaced(pools: Any, whose: str) -> None:
    """Its word is damaged, or left over from an interrupt; no client waits for it or kills it."""
    url = pools(nodes=NODES, lease=0.01, fence="wait").url
    pool = pools.keep(ImpatientPool.open(url))
    other = pools.again(pool)
    idents = {"ours": pool.client_id, "of no client": 77 << INCARNATION_BITS | 1}
    pool.endpoint.patience = 1
    pool.endpoint.store(LEADER, idents.get(whose, other.client_id))
    pool.fail_node(1)
    if whose == "of one at other work":
        with inside(other), inside(pool) as view:
            assert not view.lead()
    settle(pool)
    settled(pool, 1)
    assert [e["kind"] for e in pool.events()] == ["node failed", "node excluded"]


def test_a_leader_is_not_replaced_for_what_it_did_before(pool: Any, pools: Any) -> None:
    """It has ended the change that it was seen to lead, and leads another one."""
    other = pools.again(pool)
    with inside(other) as view:
        assert view.lead()
        view.resign()
    before = view.led
    with inside(other) as view:
        assert view.lead()
        assert pool.endpoint.cas(LEADER, before, pool.client_id) == view.led
        assert view.lead()
        view.resign()


def _lead(pool: Any, then: Callable[[], object]) -> Callable[[], None]:
    """A client that begins to change the view, and comes to `then` in the midst of it."""

    def child() -> None:
        pool.view.reconcile = lambda failed: then()
        pool.fail_node(1)
        settle(pool)

    return child


def test_a_leader_that_dies_is_followed_by_another(pool: Any) -> None:
    killed = _lead(pool, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(AssertionError, match="-9"):
        gather(killed)
    assert pool.endpoint.load(LEADER) != 0
    assert pool.view.failed() == [1]
    settle(pool)
    settled(pool, 1)
    assert len(pool.recover()["clients"]) == 1


def test_a_leader_that_stands_still_is_ended_after_a_lease(pool: Any) -> None:
    pid, out = start(_lead(pool, lambda: os.kill(os.getpid(), signal.SIGSTOP)))
    try:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        settle(pool)
        settled(pool, 1)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    finally:
        out.close()
    assert "fenced" in [event["kind"] for event in pool.events()]
    assert len(pool.recover()["clients"]) == 1


def test_where_nobody_may_be_ended_the_leader_is_named_and_waited_for(pools: Any) -> None:
    url = pools(nodes=NODES, lease=0.01, fence="wait").url
    pool = pools.keep(ImpatientPool.open(url))
    pid, out = start(_lead(pool, lambda: os.kill(os.getpid(), signal.SIGSTOP)))
    try:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        while "suspended" not in [event["kind"] for event in pool.events()]:
            pool.endpoint.patience = 50
            with pytest.raises(Interrupted):
                settle(pool)
        assert pool.view.failed() == [1]
        pool.endpoint.patience = 1 << 60
        os.kill(pid, signal.SIGCONT)
        settle(pool)
        # it resigns after the last node is settled: no client waits for that
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        settled(pool, 1)
    finally:
        out.close()


def test_hands_are_those_of_clients_in_operations(pool: Any, pools: Any) -> None:
    other = pools.again(pool)
    reference, link_address = 0x123450, 1 << 48 | 8 | REPLICATED
    assert pool.view.journals() == []
    with inside(other):
        other.client.log(reference, link_address)
        place = other.client.log(0x543210, 64)  # a link that is not replicated
        assert pool.view.journals() == [(reference, link_address)]
        other.client.drop(place)
        other.client.drop(0)
        assert pool.view.journals() == []
