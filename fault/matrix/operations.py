"""Operations of the victims in the crash matrix: of a store, and of the pool around it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Final

from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.catalogue.regions import PART, WITNESS
from limpet.shm.endpoint.states import IN_SERVICE
from limpet.shm.errors import StoreDropped, StoreFull, StoreMismatch, ValueTooLarge
from limpet.stores.pool import Pool
from limpet.stores.registry import store_class

KEY: Final = b"key"
BYSTANDER: Final = b"bystander"
OLD: Final = b"old value"
NEW: Final = b"new value, a little longer"
SAME: Final = OLD[::-1]
"""As long as OLD: some stores write such a value in place."""
RIVAL: Final = b"the rival's value"
LARGE: Final = b"L" * 20_000
"""Takes pages of two blocks of a small node."""


class Broken(AssertionError):
    """A promise that did not hold in one run."""


def demand(holds: bool, what: str) -> None:
    """Raise Broken unless it holds."""
    if not holds:
        raise Broken(what)


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation: the key's value before and after, the victim's call, and its warm-up.

    `warm` runs before the fuse is armed. `fresh`: needs a new pool each time. `prepare` runs in the
    survivor when the pool is new. `reads`: it only reads, so it may have no step at all.
    """

    name: str
    run: Callable[[Pool, Any], object]
    before: bytes | None = None
    after: bytes | None = None
    warm: Callable[[Pool, Any], object] = lambda pool, kv: pool.client_id
    fresh: bool = False
    reads: bool = False
    prepare: Callable[[Pool, Any], object] = lambda pool, kv: None
    set_up: Callable[[Pool, Any], object] | None = None
    """Gives the key, before each run, a state that is more than its value `before`."""
    finish: Callable[[Pool, Any], object] = lambda pool, kv: None
    """Further demands of the survivor, before it recovers."""


def _warm(pool: Pool, kv: Any) -> None:
    """Claim memory on every node, so that the operation itself needs no new block."""
    for number in range(8):
        kv.put(b"warm-%d" % number, NEW)
        kv.delete(b"warm-%d" % number)


def _made(pool: Pool, kv: Any) -> None:
    made = pool.store(kv.kind, name="made", **profile_of(kv.kind).matrix_parameters)
    made.put(KEY, NEW)
    demand(made.get(KEY) == NEW, "the store that was being made lost a value")
    made.check()
    names = [store["name"] for store in pool.stores()]
    demand(names.count("made") == 1, f"the catalogue has {names}")
    made.delete(KEY)


def _make(pool: Pool, kv: Any) -> None:
    pool.store(kv.kind, name="made", **profile_of(kv.kind).matrix_parameters)


def _make_in_vain(pool: Pool, kv: Any) -> None:
    profile = profile_of(kv.kind)
    with contextlib.suppress(StoreFull):
        pool.store(kv.kind, name="made", **profile.parameters, capacity=profile.capacity_never)
        demand(_spared(pool), "a store was made for which there is no room")


def _spared(pool: Pool) -> bool:
    """Whether the node that is full is lost, so that a store with replicas does without it."""
    return pool.view.states()[-1] != IN_SERVICE


def _fill_last_node(pool: Pool, kv: Any) -> None:
    node, spare = pool.parameters.nodes - 1, profile_of(kv.kind).matrix_spare

    def fill() -> None:
        for count in (16, 8, 4, 2, 1):
            with contextlib.suppress(StoreFull):
                while (free := pool.blocks.free_count(node)) >= count + spare:
                    size = count * pool.layout.block_size - WITNESS
                    pool.regions.obtain(node, f"{kv.name}{PART}filler, {free} free", size)

    pool.exclusively(fill)


def _hoard(pool: Pool, kv: Any) -> None:
    """Own all of the memory, with only the key in it."""
    kv.put(KEY, OLD)
    kept = []
    for blocks in (8, 4, 2, 1):
        for number in range(8):
            with contextlib.suppress(StoreFull, ValueTooLarge):
                key = b"%d of %d blocks" % (number, blocks)
                kv.put(key, bytes(blocks * pool.layout.block_size - 100))
                kept.append(key)
    for key in kept:
        kv.delete(key)


def _made_small(pool: Pool, kv: Any) -> None:
    profile = profile_of(kv.kind)
    # a plan of the victim is carried out first, and fails
    for _ in range(2):
        with contextlib.suppress(StoreFull, StoreMismatch):
            small = pool.store(
                kv.kind, name="made", **profile.parameters, capacity=profile.matrix_capacity // 2
            )
            small.put(KEY, NEW)
            small.delete(KEY)
            return
        if _spared(pool) and len(pool.stores()) > 1:
            return  # the large one has been made, by the plan
    raise Broken("a smaller store of the same name cannot be made")


def _make_to_drop(pool: Pool, kv: Any) -> None:
    made = pool.store(kv.kind, name="made", **profile_of(kv.kind).matrix_parameters)
    made.put(KEY, NEW)


def _dropped(pool: Pool, kv: Any) -> None:
    """Demand that the store is there with all its keys, or is gone without a trace."""
    names = [store["name"] for store in pool.stores()]
    demand(names in (["store"], ["store", "made"]), f"the catalogue has {names}")
    if "made" in names:
        _demand_whole(pool.store(kv.kind, name="made"))
        pool.drop("made")
    made = pool.store(kv.kind, name="made", **profile_of(kv.kind).matrix_parameters)
    demand(KEY not in made, "a new store has what a dropped one of its name had")
    made.put(KEY, NEW)
    demand(made.get(KEY) == NEW, "a store in place of a dropped one lost a value")
    made.check()
    pool.drop("made")
    demand(len(pool.stores()) == 1, f"there is still {pool.stores()}")


def _renamed(pool: Pool, kv: Any) -> None:
    """Demand that the store has one of the names, and all its keys, and that both can be used."""
    names = {store["name"] for store in pool.stores()} - {"store"}
    demand(names in ({"made"}, {"renamed"}), f"the catalogue has {names}")
    (name,) = names
    made = pool.store(kv.kind, name=name)
    _demand_whole(made)
    pool.rename(name, "again")
    other = pool.store(kv.kind, name="made", **profile_of(kv.kind).matrix_parameters)
    demand(KEY not in other, "a new store has what a renamed one of its first name has")
    other.put(KEY, OLD)
    demand(made.get(KEY) == NEW, "a new store changed a renamed one")
    made.check()
    pool.drop("made")
    pool.drop("again")


def _put_many(pool: Pool, kv: Any) -> None:
    """Put two keys in one batch; one of them has its value already."""
    kv.put_many([(BYSTANDER, OLD), (KEY, NEW)])


def _pipelined(pool: Pool, kv: Any) -> None:
    """Change two keys in one window, one of which has its value already, and read another."""
    with kv.pipeline() as window:
        window.put(KEY, NEW)
        window.update(BYSTANDER, OLD)
        window.get(b"none")


def _swap(expected: bytes, value: bytes | None) -> Callable[[Pool, Any], object]:
    def run(pool: Pool, kv: Any) -> None:
        if not kv.swap(KEY, expected, value):
            raise KeyError(KEY)  # so the matrix knows that it was refused

    return run


def _demand_whole(made: Any) -> None:
    try:
        demand(made.get(KEY) == NEW, "a store that was not dropped lost a value")
        made.check()
    except StoreDropped:
        return  # by the victim that stood still, just now


OPERATIONS: Final = {
    operation.name: operation
    for operation in (
        Operation("insert", lambda pool, kv: kv.insert(KEY, NEW), None, NEW, _warm),
        Operation("update", lambda pool, kv: kv.update(KEY, NEW), OLD, NEW, _warm),
        Operation("update, same size", lambda pool, kv: kv.update(KEY, SAME), OLD, SAME, _warm),
        Operation("put over", lambda pool, kv: kv.put(KEY, NEW), OLD, NEW, _warm),
        Operation("put many", _put_many, OLD, NEW, _warm),
        Operation("put many, new key", _put_many, None, NEW, _warm),
        Operation("pipeline", _pipelined, OLD, NEW, _warm),
        Operation("delete", lambda pool, kv: kv.delete(KEY), OLD, None, _warm),
        Operation("delete many", lambda pool, kv: kv.delete_many([KEY, b"none"]), OLD, None, _warm),
        Operation("insert, new block", lambda pool, kv: kv.insert(KEY, NEW), None, NEW),
        Operation(
            "put over, hoarded memory", lambda pool, kv: kv.put(KEY, NEW), OLD, NEW,
            fresh=True, prepare=_hoard,
        ),
        Operation("put large", lambda pool, kv: kv.put(KEY, LARGE), OLD, LARGE),
        Operation("shrink large", lambda pool, kv: kv.put(KEY, NEW), LARGE, NEW, _warm),
        Operation("get", lambda pool, kv: kv.get(KEY), OLD, OLD, _warm, reads=True),
        Operation(
            "join", lambda pool, kv: pool.client_id, OLD, OLD, warm=lambda pool, kv: None
        ),
        Operation("close", lambda pool, kv: pool.close(), OLD, OLD, _warm),
        Operation("make store", _make, OLD, OLD, fresh=True, finish=_made),
        Operation(
            "make in vain", _make_in_vain, OLD, OLD,
            fresh=True, prepare=_fill_last_node, finish=_made_small,
        ),
        Operation(
            "drop store", lambda pool, kv: pool.drop("made"), OLD, OLD,
            fresh=True, prepare=_make_to_drop, finish=_dropped,
        ),
        Operation(
            "rename store", lambda pool, kv: pool.rename("made", "renamed"), OLD, OLD,
            fresh=True, prepare=_make_to_drop, finish=_renamed,
        ),
    )
}  # fmt: skip

SWAPS: Final = {
    operation.name: operation
    for operation in (
        Operation("swap", _swap(OLD, NEW), OLD, NEW, _warm),
        Operation("swap away", _swap(OLD, None), OLD, None, _warm),
        Operation("swap large", _swap(OLD, LARGE), OLD, LARGE),
    )
}
"""Those of kinds that can compare a value and replace it."""


def operations_of(kind: str) -> dict[str, Operation]:
    """The operations of a kind of store."""
    return {**OPERATIONS, **SWAPS} if store_class(kind).swaps else dict(OPERATIONS)
