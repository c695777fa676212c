"""How a recovery looks at replicated stores: what it takes does not depend on what handles keep."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from kit.processes import gather

from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores import pool as stores_pool
from limpet.stores.registry import KINDS, store_class


@pytest.fixture(params=[kind for kind in sorted(KINDS) if store_class(kind).replicated])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The parameters of all handles that are made."""
    made: list[Any] = []

    def counting(kind: str) -> Any:
        class Counted(store_class(kind)):  # type: ignore[misc]  # of any kind
            def __init__(self, *given: Any) -> None:
                made.append(given[3])
                super().__init__(*given)

        return Counted

    monkeypatch.setattr(stores_pool, "store_class", counting)
    return made


@pytest.mark.exhaustive("every kind", quick=["swarm"])
def test_a_recovery_makes_one_handle_without_a_cache(
    pools: Any, kind: str, handles: list[Any]
) -> None:
    # In a pool of several hosts an insert of every kind has two objects for an instant.
    pool = pools(nodes=3, node_size="4MiB", multi_host=True)
    store = pool.store(kind, name="test", capacity=300)
    store.put(b"k", b"value")

    def killed(fuse: int) -> None:
        other = store.pool.store(kind, name="test")
        other.update(b"k", b"w")
        other.pool.endpoint.fuse = fuse
        for _ in range(9):
            other.update(b"k", b"x")
            other.delete(b"k")
            other.insert(b"k", b"y")
        os.kill(os.getpid(), signal.SIGKILL)

    seen = set()
    for fuse in (step for first in range(1, 8) for step in range(first, 274, 7)):
        if fuse < 8 and len(seen) > 2:
            break
        with pytest.raises(AssertionError, match="-9"):
            gather(lambda fuse=fuse: killed(fuse))
        (dead,) = [
            client["client"] for client in pool.clients() if client["client"] != pool.client_id
        ]
        pairs = len(pool.view.journal(dead >> INCARNATION_BITS))
        seen.add(pairs)
        del handles[:]
        assert pool.recover()["clients"] == [dead]
        assert len(handles) <= (pairs > 0)
        assert all(parameters.cache_size == 0 for parameters in handles)
        store.put(b"k", b"value")
    assert max(seen) > 1
