"""A split that was killed, in a pool that is full then: keys can be deleted, and updated (R13)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from kit.growth import SMALL, fill
from kit.processes import children

import limpet
from limpet.fault.matrix.operations import KEY
from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.rtx.race import Split

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED: Final = BUILD == "compiled"
VALUE: Final = b"v" * 8
GROWING: Final = ("race", "rtx-race", "dtx-race", "fusee", "swarm")
"""Those that recover what is killed; a killed split of `race-locks` is StoreStuck. Trees freeze
nothing."""
STRIDE: Final = 29 if COMPILED else 101
"""Steps from one kill to the next."""


def crowded(pool: Any, kind: str) -> tuple[Any, list[bytes]]:
    """A store in which the next insert of KEY splits a subtable, and its keys."""
    replicas = {"replicas": 1} if kind in ("fusee", "swarm") else {}
    store = pool.store(kind, name="s", **SMALL, **replicas)
    return store, list(fill(store, KEY, VALUE))


def dies_inserting(store: Any, step: int) -> bool:
    """Have another client insert KEY until its step of this number; whether it died there."""

    def insert() -> None:
        with limpet.open(store.pool.url) as pool:
            victim = pool.store(store.kind, name=store.name)
            assert victim.get(KEY) is None
            pool.endpoint.fuse = step
            victim.insert(KEY, VALUE)
            pool.endpoint.fuse = 0

    with children([insert]) as running:
        code = os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def use_up(pool: Any) -> None:
    """Fill all memory with what is of no use to the store."""
    other = pool.store("race", name="other", groups=78)
    overhead = int(other.objects.size_of(b"f0000", b""))
    number = 0
    for size in sorted(filter(None, pool.heap.sizes), reverse=True):
        with contextlib.suppress(limpet.StoreFull):
            while size >= overhead:
                other.put(b"f%04d" % number, bytes(size - overhead))
                number += 1


def refused(pools: Any, kind: str, step: int) -> list[str] | None:
    """The refused writes after a kill at this step, in full memory; None: no client died."""
    pool = pools(nodes=1, node_size="512KiB", block_size=16 << 10)
    store, keys = crowded(pool, kind)
    if not dies_inserting(store, step):
        return None
    use_up(pool)
    pool.recover()
    found = [*_refused(store.delete, keys[:1])]
    found += _refused(lambda key: store.update(key, VALUE), keys[1:])
    found += _refused(store.delete, keys[1:])
    store.check()
    return found


def _refused(work: Callable[[bytes], object], keys: list[bytes]) -> Iterator[str]:
    for key in keys:
        try:
            work(key)
        except limpet.StoreFull as error:
            yield f"{key!r}: {error}"


def refused_at_any_step(pools: Any, kind: str) -> list[str]:
    """The refused writes after a kill at some step of the split."""
    step = 1
    while (found := refused(pools, kind, step)) is not None:
        if found:
            return [f"step {step}", *found]
        pools.destroy()
        step += STRIDE
    assert step > 2 * STRIDE
    return []


@pytest.mark.exhaustive("every kind", quick=["race", "fusee"])
@pytest.mark.parametrize("kind", GROWING)
def test_keys_of_a_killed_split_are_changed_in_a_full_pool(pools: Any, kind: str) -> None:
    assert refused_at_any_step(pools, kind) == []


def freezes_first(split: Any) -> bool:
    """As it was, and as the paper has it: what is frozen is not decided yet."""
    if split.splitter.first_held(split.old):
        return False
    split.splitter.freeze(split.old)
    return True


@pytest.mark.skipif(not COMPILED, reason="takes many runs")
def test_split_that_freezes_before_it_is_decided_is_caught(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Split, "complete", freezes_first)
    assert "has no room" in refused_at_any_step(pools, "rtx-race")[-1]
