"""Batches of updates of LOCO: the variants of their rules, and the scenes that show them."""

from __future__ import annotations

from typing import Any, Final

from kit.mutants.uncompiled import Mutant, never, replaced

KEYS: Final = [b"key %d" % number for number in range(6)]
OLD, NEW = b"old", b"new"
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
    return not self.journal.found(self.intents[row])


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
