"""Splits, merges and transactions of a tree, killed and stopped at their steps: all or nothing.

They are transactions with a log. The crash matrix has them in trees of small nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.trees import LeafSplit, Merge, RootSplit, nodes

import limpet
from limpet.fault.matrix import crash_points
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.fault_profile import FAULT_PROFILES, FaultProfile, profile_of
from limpet.fault.matrix.matrix_result import MatrixResult
from limpet.fault.matrix.operations import KEY, NEW, OLD, Operation, demand
from limpet.fault.matrix.testbed import StoreTestbed
from limpet.shm.endpoint.fabric import BUILD

COMPILED: Final = BUILD == "compiled"
SMALL: Final = {"node_size": 320, "key_size": 16, "value_size": 32}
RUNS: Final = 24
OTHER: Final = b"other"
COUNTED: Final = (b"none yet", b"counted")
"""Values of the other key of the transaction, before and after."""

compiled_only = pytest.mark.skipif(not COMPILED, reason="many runs")


class Pair(StoreTestbed):
    """Beside KEY there is another key that the transaction changes with it."""

    def __init__(self, url: str, kind: str, fence: str = "kill") -> None:
        super().__init__(url, kind, fence)
        self.store.put(OTHER, COUNTED[0])
        for number in range(40):
            self.store.put(b"m%02d" % number, OLD)
        self.bystanders = tuple(key for key in self.store if key not in (KEY, OTHER))

    def reset(self, operation: Any) -> None:
        super().reset(operation)
        self.store.put(OTHER, COUNTED[0])

    def inspect(self, clients: int) -> None:
        self.store.check()
        self.account(clients)
        for key in self.bystanders:
            demand(self.store.get(key) == OLD, f"another key was damaged: {key!r}")
        demand(self.store.get(OTHER) in COUNTED, "the other key has a value that no client wrote")


def both_or_none(pool: Any, store: Any) -> None:
    """Demand that the transaction happened to both keys, or to none, before others change one."""
    found = pool.transaction(lambda tx: (tx.get(store, KEY), tx.get(store, OTHER)))
    if found[0] in (OLD, NEW):
        demand((found[0] == NEW) == (found[1] == COUNTED[1]), f"half of it happened: {found}")


def change_both(pool: Any, store: Any) -> None:
    def work(tx: Any) -> None:
        tx.update(store, KEY, NEW)
        tx.update(store, OTHER, COUNTED[1])

    pool.transaction(work)


def warm(pool: Any, store: Any) -> None:
    """Have memory at hand, and the route to the leaf."""
    store.get(KEY)
    pool.allocator.replenish_all(0, [store.leaf.page.size] * 5)


INSERT: Final = Operation("insert", lambda pool, kv: kv.insert(KEY, NEW), None, NEW, warm)
CASES: Final = {
    "root split": (RootSplit, INSERT),
    "leaf split": (LeafSplit, INSERT),
    "merge": (Merge, Operation("delete", lambda pool, kv: kv.delete(KEY), OLD, None, warm)),
    "transaction": (
        Pair, Operation("transaction", change_both, OLD, NEW, warm, finish=both_or_none),
    ),
}  # fmt: skip
Make = Callable[[str], tuple[Matrix, Operation]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes matrices of a case, and its operation; a new pool for each run."""
    profile = FaultProfile(SMALL, matrix_nodes=1, sources=profile_of("rtx-sherman").sources)
    monkeypatch.setitem(FAULT_PROFILES, "rtx-sherman", profile)

    def matrix(case: str) -> tuple[Matrix, Operation]:
        scene, operation = CASES[case]
        return Matrix("rtx-sherman", RUNS, scene), dataclasses.replace(operation, fresh=True)

    return matrix


cases = pytest.mark.parametrize("case", CASES)


def sound(result: MatrixResult) -> None:
    assert result.failures == ()
    assert result.steps > 60
    assert result.tried > 2


@pytest.mark.parametrize(
    ("scene", "before", "after"), [(RootSplit, 1, 3), (LeafSplit, 4, 5), (Merge, 3, 1)]
)
def test_the_operations_change_so_many_nodes(
    make: Make, make_url: Callable[[], str], scene: Any, before: int, after: int
) -> None:
    url = make_url()
    made = scene(url, "rtx-sherman")
    try:
        assert nodes(made.store) == before
        if scene is Merge:
            made.store.delete(KEY)
        else:
            made.store.insert(KEY, NEW)
        assert nodes(made.store) == after
        made.store.check()
    finally:
        made.close()
        limpet.destroy(url)


@pytest.mark.exhaustive("every step", quick=["leaf split", "transaction"])
@compiled_only
@cases
def test_who_is_killed_has_done_all_or_nothing(make: Make, case: str) -> None:
    matrix, operation = make(case)
    sound(matrix.killed(operation))


@pytest.mark.exhaustive("every step of two clients")
@compiled_only
@cases
def test_who_repairs_may_be_killed_at_it(make: Make, case: str) -> None:
    matrix, operation = make(case)
    result = matrix.killed_twice(operation)
    sound(result)
    assert result.next_tried > 20


@pytest.mark.exhaustive("every step", quick=["wait-leaf split"])
@compiled_only
@cases
@pytest.mark.parametrize("fence", ["wait", "kill"])
def test_who_stands_still_is_worked_around(make: Make, case: str, fence: str) -> None:
    matrix, operation = make(case)
    sound(matrix.stopped(operation, fence))


@pytest.mark.soak("a whole matrix")
@compiled_only
def test_points_of_logged_transactions_are_met(make: Make) -> None:
    """All but those of a client that meets another at work (tests/kit/scenes/rtx.py), and of
    data that comes late (tests/fault/test_rtx_explorer.py)."""
    seen: set[str] = set()
    for case in ("leaf split", "transaction"):
        matrix, operation = make(case)
        matrix.limit = 160
        seen |= set(matrix.killed(operation).seen)
    defined = {
        name for name, path in crash_points.defined("rtx-sherman").items() if "stores/rtx/" in path
    }
    assert {"written", "noted", "published", "locked", "decided", "over"} <= defined
    assert defined - seen <= {"taken-over", "copied", "aborted", "noted"}
