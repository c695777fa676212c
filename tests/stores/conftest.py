"""Every store kind is a parameter of every test that takes `kind`.

In a pure build without those that are another kind with other parameters, that only grow in another
way, or that are another kind's engine without recovery: they run the same lines; and without the
baselines that are not compiled in any build. `race-locks` is in test_race_locks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.stores import OUT_OF_PLACE

import limpet
from limpet.stores.registry import KINDS, UNRECOVERED

ALIKE = {"rtx-race", "dtx-race", "clover", "pdpm", "dtx-sherman", *UNRECOVERED}
PROVED = [
    kind
    for kind, found in sorted({**KINDS, **UNRECOVERED}.items())
    if kind != "race-locks" and (limpet.build == "compiled" or not (found.fixed or kind in ALIKE))
]


@pytest.fixture(params=PROVED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recovered(kind: str) -> None:
    """For tests that kill clients in the midst of operations."""
    if kind in UNRECOVERED:
        pytest.skip(f"by its paper, {kind} does not recover from that")


@pytest.fixture
def make_store(pools: Any, kind: str) -> Callable[..., Any]:
    """Makes a store of the kind in a new pool; `pool_...` parameters are the pool's."""

    def make(**parameters: Any) -> Any:
        of_pool = {k[5:]: parameters.pop(k) for k in list(parameters) if k.startswith("pool_")}
        return pools(**of_pool).store(kind, name="test", **parameters)

    return make


@pytest.fixture
def store(make_store: Callable[..., Any]) -> Any:
    return make_store(pool_nodes=2, capacity=1000)


@pytest.fixture
def tight_store(make_store: Callable[..., Any], kind: str) -> Any:
    """A store in a pool with little memory, which its objects fill."""
    small = {"pool_node_size": "512KiB", "pool_clients": 16}
    return make_store(capacity=3000, **small, **OUT_OF_PLACE.get(kind, {}))
