"""The memory node with a transaction's log is lost, while it holds slots and locks on another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest
from kit.parts import is_fair, runs_of
from kit.processes import gather
from kit.puppets import Where, kills_at
from kit.stores import accounted, key_of
from kit.transaction_runs import BOTH, explore
from kit.transactions import (
    LATER,
    NEW,
    OLD,
    StillEndpoint,
    StillPool,
    StillTestbed,
    deciding,
    put_all,
)
from kit.variants import vary

import limpet
from limpet.fault.matrix.testbed import look_away
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.stores.transactions.commit import Commit

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED: Final = BUILD == "compiled"
KINDS: Final = ("rtx-sherman", "rtx-race")
LONG: Final = bytes(300)
"""A value that is in an extent, in a tree."""


LOST, KEPT = key_of(0), key_of(1)


class Scene(StillTestbed):
    """An owner whose transaction writes a key on each of two nodes, its log on the first."""

    def __init__(self, pools: Any, kind: str, old: bytes = OLD) -> None:
        self.kind = kind
        self.old = old
        super().__init__(pools, 1, {"nodes": 2})
        (self.owner,) = self.puppets

    def prepare(self) -> None:
        self.store.put_many({LOST: self.old, KEPT: self.old})

    def begin(self, where: Where, value: bytes = NEW) -> None:
        """The owner begins, and stands still there."""

        def work() -> str:
            try:
                put_all(self.owner, value, LOST, KEPT)
            except limpet.NodeFailed:
                return "failed"
            return "done"

        self.owner.begin(work, where)

    def holds(self, value: bytes) -> None:
        """The key has this value, at once, and can be changed; and nothing is leaked."""
        pauses = StillEndpoint.pauses
        assert self.store.get(KEPT) == value
        with pytest.raises(limpet.NodeFailed):
            self.store.check()  # of the node that is left, nothing is wrong
        self.store.put(KEPT, LATER)
        assert StillEndpoint.pauses == pauses
        assert self.store.get(KEPT) == LATER
        self.pool.recover()
        accounted(self.pool)


def die_holding(scene: Scene) -> None:
    """Another process has locked, or holds, what it writes on both nodes, and is killed."""

    def client() -> None:
        with StillPool.open(scene.pool.url) as pool:
            look_away(pool)
            store = pool.store(scene.store.kind, name="test")
            pool.endpoint.before = kills_at(deciding(scene.store, pool))
            put_all(SimpleNamespace(pool=pool, store=store), NEW, LOST, KEPT)

    with pytest.raises(AssertionError, match="ended with -9"):
        gather(client)


@pytest.mark.parametrize("kind", KINDS)
def test_new_memory_of_a_node_is_not_taken_for_a_log(pools: Any, kind: str) -> None:
    """Where a dead client's log was, others have what they like, or zeros: a log that is not
    decided, and names nothing. So what it held was held for ever."""
    scene = Scene(pools, kind)
    die_holding(scene)
    scene.pool.fail_node(0)
    scene.pool.recover()
    scene.pool.replace_node(0)
    scene.pool.membership.lease_s = 0.0
    assert scene.store.get(KEPT) == OLD
    scene.store.put(KEPT, NEW)
    assert scene.store.get(KEPT) == NEW


def on_second(verb: str, number: int) -> Where:
    """That verb on the second node."""
    left = [number]

    def there(name: str, address: int) -> bool:
        left[0] -= name == verb and address >> NODE_SHIFT == 1
        return left[0] == 0

    return there


@pytest.mark.parametrize("value", [NEW, LONG], ids=["short", "long"])
@pytest.mark.parametrize("kind", KINDS)
def test_who_lives_undoes_what_was_not_decided(pools: Any, kind: str, value: bytes) -> None:
    """No client could see that it was over, for a lease of the pool; and its new data was
    leaked."""
    scene = Scene(pools, kind, LONG)
    scene.begin(scene.decides(scene.owner), value)
    scene.pool.fail_node(0)
    assert scene.owner.go()
    assert scene.owner.result == "failed"
    scene.holds(LONG)


@pytest.mark.parametrize("kind", KINDS)
def test_who_lives_carries_out_what_was_decided(pools: Any, kind: str) -> None:
    scene = Scene(pools, kind, LONG)
    scene.begin(scene.decides(scene.owner), LONG + NEW)
    scene.owner.go(on_second("cas", 1))
    scene.pool.fail_node(0)
    assert scene.owner.go()
    assert scene.owner.result == "done"
    scene.holds(LONG + NEW)


@pytest.mark.parametrize("then", ["nothing", "put"])
@pytest.mark.parametrize("kind", KINDS)
def test_who_wakes_when_others_have_let_go_frees_nothing_that_is_linked(
    pools: Any, kind: str, then: str
) -> None:
    """It had decided; a waiting client took that for undone, and found its pair freed."""
    scene = Scene(pools, kind, LONG)
    scene.begin(scene.decides(scene.owner), LONG + NEW)
    scene.owner.go(on_second("cas", 1))
    scene.pool.fail_node(0)
    scene.pool.membership.lease_s = 0.0
    assert scene.store.get(KEPT) == LONG
    if then == "put":
        scene.store.put(KEPT, LONG + LATER)
    assert scene.owner.go()
    assert scene.owner.result == "done"
    left = scene.store.get(KEPT)
    assert left in ((LONG + LATER,) if then == "put" else (LONG, LONG + NEW))
    scene.holds(left)


# ---- under the explorer --------------------------------------------------------------------------


@pytest.mark.exhaustive("more seeds", quick=["1"])
@pytest.mark.parametrize("crashes", [0, 1])
def test_transactions_on_two_nodes_of_which_one_is_lost(crashes: int) -> None:
    runs = runs_of(120)
    found = explore(runs, crashes=crashes, stalls=2, kind=BOTH, lost=1)
    assert found.failure == ""
    assert is_fair(found.losses, found.runs)


@pytest.mark.skipif(not COMPILED, reason="takes many runs")
def test_variant_that_leaves_all_to_others_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    vary(monkeypatch, Commit, "_end_without", lambda commit, state, committed: 0)
    found = explore(30_000, crashes=0, stalls=2, kind=BOTH, lost=1, seed=3)
    assert "leaked" in found.failure
