"""Batches of `loco` in the explorer; and each of their rules left out: it is seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from kit.mutants.loco import in_force
from kit.mutants.steps import require_caught
from kit.mutants.uncompiled import UNCHANGED, Mutant, never, replaced

from limpet.fault.explore.explorer import Exploration, explore
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
RUNS = 200 if COMPILED else 10
KEYS = [b"key %d" % number for number in range(6)]
OLD, NEW = b"old", b"new"
PROGRAMS = (
    "pa mab ga|pb mab gb|ga gb",
    "pa mab mab|pb mba ub|ga gb da",
    "mabcd mabcd|mdbc da|gb r",
)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not list(SHM_DIR.glob(f"limpet.limpet-*{os.getpid()}*"))


@pytest.mark.exhaustive("all programs", quick=["0-pa mab ga*"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("failures", [0, 1])
def test_batches_of_updates_hold(failures: int, program: str) -> None:
    parameters = Exploration(
        store="loco", program=program, value_size=40, schedules=RUNS, seed=5, crashes=2, stalls=1,
        nodes=1 + failures, node_failures=failures,
    )  # fmt: skip
    report = explore(parameters)
    assert report.failures == ()
    assert report.crashes > RUNS / 10


MODULE: Final = "loco/batch_updates"


def intent_is_not_looked_at(self: Any, row: int) -> bool:
    """An update writes over the intent that the last holder of the lock has left."""
    entries = self.entries[row]
    self.intents[row] = self.endpoint.result(self.intents[row])
    return bool(
        entries.is_valid()
        and entries.key_is(self.batch.keys[row])
        and entries.is_whole()
        and not entries.link()
    )


def entry_is_trusted(self: Any, row: int) -> bool:
    """The index is taken at its word, though it was not brought up to date."""
    self.intents[row] = self.endpoint.result(self.intents[row])
    return not self.journal.resume(self.journals[row], self.intents[row])


def _entry_has_another_key(pools: Any) -> None:
    """Another client has deleted a key, and its entry has the next one."""
    pool = pools(nodes=1)
    late = pool.store("loco", name="test", capacity=16)
    late.put_many([(key, OLD) for key in KEYS])
    other = pools.again(pool).store("loco", name="test")
    for key in KEYS[:-1]:
        other.delete(key)
    others = {b"other %d" % number: OLD for number in range(len(KEYS) - 1)}
    for key, value in others.items():
        other.insert(key, value)
    late.put_many([(key, NEW) for key in KEYS])
    assert dict(other.items()) == {**others, **dict.fromkeys(KEYS, NEW)}
    late.check()


def _intent_is_left(pools: Any) -> None:
    """An insert under the lock of a key ended with an error, when it had claimed an entry."""
    pool = pools(nodes=1)
    store = pool.store("loco", name="test", capacity=100, locks=4)
    store.put_many([(key, OLD) for key in KEYS])
    found = store.lookup.found
    for number in range(8):
        lock = store.locking.enter(store, found, b"new %d" % number)
        store.writer._claim(found)
        store.locking.leave(lock)
        store.put_many([(key, NEW) for key in KEYS])
    assert store.get_many(KEYS) == [NEW] * len(KEYS)
    store.check()


def _key_comes_again(pools: Any) -> None:
    """Its first value is too long for a batch, its second one is not."""
    store = pools(nodes=1).store("loco", name="test", capacity=100)
    store.put_many([(key, OLD) for key in KEYS])
    store.put_many([(KEYS[0], bytes(500)), (KEYS[1], NEW), (KEYS[2], NEW), (KEYS[0], NEW)])
    assert store.get_many(KEYS[:3]) == [NEW] * 3


STEPS: Final = (
    (
        Mutant("equal-keys-share-a-batch", (replaced("race/batch", "Batch.repeats", never),)),
        _key_comes_again,
    ),
    (
        Mutant(
            "entry-is-trusted", (replaced(MODULE, "BatchUpdates._may_update", entry_is_trusted),)
        ),
        _entry_has_another_key,
    ),
    (
        Mutant(
            "intent-is-not-looked-at",
            (replaced(MODULE, "BatchUpdates._may_update", intent_is_not_looked_at),),
        ),
        _intent_is_left,
    ),
)  # fmt: skip


@pytest.mark.parametrize(("mutant", "scenario"), STEPS, ids=[mutant.name for mutant, _ in STEPS])
def test_known_bad_updates_of_batches_are_caught(
    mutant: Mutant, scenario: Callable[[Any], None], pools: Any
) -> None:
    require_caught(in_force, UNCHANGED, mutant, scenario, pools)
