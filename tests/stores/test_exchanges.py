"""A fabric waits as often as there are round trips: `race` and `fusee` are written in phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NODES = 4
SCOPES = ("background", "control")


def warm(store: Any) -> Any:
    """Have memory at hand on every node, and every subtable known."""
    for number in range(24):
        for size in (20, 120, 9000):
            store.put(b"warm-%d" % number, bytes(size))
            store.delete(b"warm-%d" % number)
    return store


def costs(store: Any, work: Callable[[], object]) -> tuple[int, int]:
    """Round trips and exchanges."""
    before = store.stats()
    work()
    after = store.stats()
    found = tuple(int(after[name] - before[name]) for name in ("round_trips", "exchanges"))
    return found[0], found[1]


@pytest.mark.parametrize("value", [b"value", b"v" * 8000])
def test_exchanges_of_race_are_its_round_trips(pools: Any, value: bytes) -> None:
    store = warm(pools(nodes=2).store("race", name="test", capacity=300))
    large = len(value) > 4096
    assert costs(store, lambda: store.get(b"k")) == (1, 1)
    assert costs(store, lambda: store.insert(b"k", value)) == (3, 3)
    assert costs(store, lambda: store.get(b"k")) == (2 + large, 2 + large)
    assert costs(store, lambda: store.get_slice(b"k", 1, 3)) == (2 + large, 2 + large)
    assert costs(store, lambda: store.update(b"k", value)) == (3, 3)
    assert costs(store, lambda: store.put(b"k", value)) == (3, 3)
    assert costs(store, lambda: store.delete(b"k")) == (3, 3)


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
def test_exchanges_of_fusee_are_its_round_trips(pools: Any, kind: str, replicas: int) -> None:
    store = warm(pools(nodes=NODES).store(kind, name="test", capacity=300, replicas=replicas))
    more = replicas - 2 if kind == "fusee-cr" else 0
    searches = 2 if kind == "fusee-nc" else 1
    insert, change = 4 + more, 3 + searches + more
    assert costs(store, lambda: store.get(b"k")) == (1, 1)
    assert costs(store, lambda: store.insert(b"k", b"1")) == (insert, insert)
    assert costs(store, lambda: store.get(b"k")) == (searches, searches)
    assert costs(store, lambda: store.update(b"k", b"2")) == (change, change)
    assert costs(store, lambda: store.put(b"k", b"3")) == (change, change)
    assert costs(store, lambda: store.delete(b"k")) == (change, change)


def test_a_handle_that_knows_nothing_reads_the_entry_first(pools: Any) -> None:
    store = warm(pools(nodes=NODES).store("race", name="test", capacity=300))
    store.put(b"k", b"v")
    store.forget()
    assert costs(store, lambda: store.get(b"k")) == (3, 3)


@pytest.mark.parametrize(
    ("kind", "messages", "words"),
    [
        ("race", (0, 0, 1, 1), (3, 2, 4, 3)),
        ("rtx-race", (0, 0, 1, 1), (5, 2, 6, 5)),
        ("fusee", (0, 0, 2, 2), (4, 4, 5, 4)),
    ],
)
def test_the_background_of_an_operation_is_one_message_to_each_node(
    pools: Any, kind: str, messages: tuple[int, ...], words: tuple[int, ...]
) -> None:
    """Of an insert, a get, an update, a delete. What the control segment costs is counted apart:
    the two looks of a get, or the pin; then the pressure, HOLDS, and what the operation leaves."""
    store = warm(pools(nodes=2).store(kind, name="test", capacity=300))
    store.put(b"k", b"v")
    store.delete(b"k")
    found = []
    for work in (
        lambda: store.insert(b"k", b"w"),
        lambda: store.get(b"k"),
        lambda: store.update(b"k", b"w"),
        lambda: store.delete(b"k"),
    ):
        before = store.stats()
        work()
        after = store.stats()
        found.append(tuple(after[of]["exchanges"] - before[of]["exchanges"] for of in SCOPES))
    assert tuple(zip(*found, strict=True)) == (messages, words)


@pytest.mark.parametrize("kind", ["race", "rtx-race", "race-locks"])
def test_a_batch_is_one_exchange_for_each_phase(pools: Any, kind: str) -> None:
    """Whatever the number of keys and nodes; a batch has 22 new keys, or 11 that are there."""
    store = warm(pools(nodes=2).store(kind, name="test", groups=512))
    store.put_many([(b"old %02d" % number, b"0" * 99) for number in range(64)])
    keys = [b"key %02d" % number for number in range(64)]
    assert costs(store, lambda: store.get_many(keys)) == (2, 2)
    assert costs(store, lambda: store.put_many([(key, b"1" * 99) for key in keys])) == (9, 9)
    assert costs(store, lambda: store.get_many(keys)) == (4, 4)
    assert costs(store, lambda: store.put_many([(key, b"2" * 99) for key in keys])) == (18, 18)
    assert store.get_many(keys) == [b"2" * 99] * 64
    assert costs(store, lambda: store.delete_many(keys)) == (9, 9)
    assert costs(store, lambda: store.delete_many(keys)) == (3, 3)


@pytest.mark.exhaustive("as race", quick=["race", "race-locks"])
@pytest.mark.parametrize("kind", ["race", "rtx-race", "race-locks"])
def test_split_moves_many_pairs_in_a_phase(pools: Any, kind: str) -> None:
    """`race-locks` moves one after another, as RACE's own paper has it: two exchanges for each."""
    store = pools(nodes=1).store(kind, name="test", groups=16)
    number = 0
    while store.growth()["depth"][1] == store.parameters.depth:
        before = store.stats()["background"]["exchanges"]
        store.insert(b"%d" % number, b"v")
        number += 1
    exchanges = store.stats()["background"]["exchanges"] - before
    slots = store.growth()["slots"] / store.growth()["subtables"]
    assert exchanges > slots if kind == "race-locks" else exchanges < slots / 4


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
def test_rounds_of_a_batch_share_their_exchanges(pools: Any, kind: str, replicas: int) -> None:
    store = warm(pools(nodes=NODES).store(kind, name="test", groups=128, replicas=replicas))
    store.put_many([(b"old %02d" % number, b"0" * 99) for number in range(64)])
    keys = [b"key %02d" % number for number in range(63)]
    more = replicas - 2 if kind == "fusee-cr" else 0
    assert costs(store, lambda: store.get_many(keys)) == (2, 2)
    # a batch has 19 new keys, or 9 that are there
    inserts, updates = 4 * (5 + more), 7 * (6 + more)
    assert costs(store, lambda: store.put_many([(key, b"1" * 99) for key in keys])) == (
        inserts, inserts,
    )  # fmt: skip
    assert costs(store, lambda: store.get_many(keys)) == (4, 4)
    assert costs(store, lambda: store.put_many([(key, b"2" * 99) for key in keys])) == (
        updates, updates,
    )  # fmt: skip
    assert store.get_many(keys) == [b"2" * 99] * 63
