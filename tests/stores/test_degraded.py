"""Operations of replicated stores while a memory node is lost and not yet replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import limpet
from limpet.stores.registry import KINDS, store_class

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

KEYS = [b"%d" % number for number in range(60)]


@pytest.fixture(params=[kind for kind in sorted(KINDS) if store_class(kind).replicated])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The nodes of all NodeFailed that are made, raised to the user or not."""
    nodes: list[int] = []
    made = limpet.NodeFailed.__init__

    def counted(self: limpet.NodeFailed, node: int, *reason: str) -> None:
        nodes.append(node)
        made(self, node, *reason)

    monkeypatch.setattr(limpet.NodeFailed, "__init__", counted)
    return nodes


@pytest.mark.parametrize("lost", [0, 2])
def test_operations_ask_before_they_access_a_lost_node(
    make_store: Callable[..., Any], kind: str, lost: int, raised: list[int]
) -> None:
    """To raise NodeFailed at each access, and to catch it, makes them ten times as slow."""
    store = make_store(pool_nodes=4, capacity=300, replicas=3)
    store.put_many((key, b"value") for key in KEYS)
    store.pool.fail_node(lost)
    fresh = store.pool.store(kind, name="test")
    for handle in (store, fresh):  # so that they know of the loss, and have memory at hand
        for key in KEYS:
            handle.put(key, b"old")
            handle.delete(key)
            handle.insert(key, b"older")
    del raised[:]
    for handle in (store, fresh):
        for key in KEYS:
            assert handle.get(key) == b"older"
            handle.update(key, b"new")
            assert handle.get_many([key, b"none"]) == [b"new", None]
            handle.delete(key)
            assert key not in handle
            handle.insert(key, b"older")
        assert sorted(iter(handle)) == sorted(KEYS)
    assert raised == []


def test_values_of_before_the_loss_are_read_without_errors(
    make_store: Callable[..., Any], kind: str, raised: list[int]
) -> None:
    store = make_store(pool_nodes=4, capacity=300, replicas=3)
    store.put_many((key, b"value") for key in KEYS)
    store.pool.fail_node(1)
    store.get(KEYS[0])
    del raised[:]
    for _ in range(3):
        for key in KEYS:
            assert store.get(key) == b"value"
            assert store.get_many([key]) == [b"value"]
    assert len(raised) <= 1  # the first that meets the loss
