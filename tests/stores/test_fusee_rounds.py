"""Round trips of FUSEE's operations, alone and against each other, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.endpoints import WatchedPool
from kit.stores import sound

import limpet
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["fusee-*"]
)

COMPILED = limpet.build == "compiled"

NODES = 7
PATIENCE = 8
"""Looks at the primary before a loser helps; attempts before an insert voids what is in its way."""


def warm(store: Any) -> Any:
    """Have memory at hand on every node."""
    for number in range(24):
        store.put(b"warm-%d" % number, bytes(20))
        store.delete(b"warm-%d" % number)
        store.put(b"warm-%d" % number, bytes(120))
        store.delete(b"warm-%d" % number)
    return store


def round_trips(store: Any, work: Callable[[], object]) -> int:
    before = store.stats()
    work()
    after = store.stats()
    found = int(after["round_trips"] - before["round_trips"])
    # in phases: nothing is looked at before its phase has ended
    assert after["exchanges"] - before["exchanges"] == found
    return found


# ---- without conflict ----------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", range(2, 8))
@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
def test_round_trips_without_conflict(pools: Any, kind: str, replicas: int) -> None:
    """As the paper counts: 4 for each change, whatever the number of replicas; CR: one for each."""
    pool = pools(nodes=NODES)
    store = warm(pool.store(kind, name="test", capacity=300, replicas=replicas))
    cold = warm(pools.again(pool).store(kind, name="test"))
    more = replicas - 2 if kind == "fusee-cr" else 0
    cache = 0 if kind == "fusee-nc" else 1

    assert round_trips(store, lambda: store.get(b"k")) == 1  # a miss: no object is read
    assert round_trips(store, lambda: store.insert(b"k", b"1")) == 4 + more
    assert round_trips(store, lambda: store.get(b"k")) == 2 - cache
    assert round_trips(cold, lambda: cold.get(b"k")) == 2
    assert round_trips(cold, lambda: cold.get(b"k")) == 2 - cache
    assert round_trips(store, lambda: store.update(b"k", b"2")) == 5 - cache + more
    assert round_trips(store, lambda: store.put(b"k", b"3")) == 5 - cache + more
    assert round_trips(store, lambda: store.swap(b"k", b"3", b"4")) == 6 - cache + more
    assert round_trips(store, lambda: store.swap(b"k", b"4", b"5")) == 5 - cache + more
    assert round_trips(store, lambda: store.swap(b"k", b"4", b"6")) == 2 - cache
    assert round_trips(store, lambda: store.delete(b"k")) == 5 - cache + more

    store.insert(b"l", b"1")
    assert round_trips(cold, lambda: cold.update(b"l", b"2")) == 5 + more
    store.insert(b"m", b"1")
    assert round_trips(cold, lambda: cold.put(b"m", b"2")) == 5 + more
    store.insert(b"n", b"1")
    assert round_trips(cold, lambda: cold.delete(b"n")) == 5 + more
    assert store.stats()["cas_lost"] == cold.stats()["cas_lost"] == 0
    assert store.stats()["retries"] == cold.stats()["retries"] == 0


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
def test_round_trips_with_one_replica_of_the_index(pools: Any, kind: str, replicas: int) -> None:
    """No backups: as `race`, and the cache."""
    store = warm(
        pools(nodes=2).store(kind, name="test", capacity=300, replicas=replicas, index_replicas=1)
    )
    assert round_trips(store, lambda: store.insert(b"k", b"1")) <= 4
    assert round_trips(store, lambda: store.update(b"k", b"2")) <= 4
    assert round_trips(store, lambda: store.delete(b"k")) <= 4
    assert store.get(b"k") is None


def test_a_stale_guess_costs_one_round_trip_more(pools: Any) -> None:
    pool = pools(nodes=2)
    store = warm(pool.store("fusee", name="test", capacity=300))
    other = warm(pools.again(pool).store("fusee", name="test"))
    store.insert(b"k", b"1")
    for _ in range(4):
        assert round_trips(store, lambda: store.get(b"k")) == 1
    other.update(b"k", b"2")
    assert round_trips(store, lambda: store.get(b"k")) == 2
    assert round_trips(store, lambda: store.get(b"k")) == 1
    other.delete(b"k")
    assert round_trips(store, lambda: store.get(b"k")) == 2  # the slot; both buckets
    assert round_trips(store, lambda: store.get(b"k")) == 1  # both buckets


def test_of_a_key_that_others_write_the_slot_is_read_before_the_object(pools: Any) -> None:
    """The adaptive cache: with a threshold of 0.5, half of the answers may be invalid."""
    pool = pools(nodes=2)
    store = warm(pool.store("fusee", name="test", capacity=300))
    other = warm(pools.again(pool).store("fusee", name="test"))
    store.insert(b"k", b"0")
    bytes_read = []
    for number in range(6):
        other.update(b"k", b"%d" % number)
        before = store.stats()["bytes_read"]
        assert round_trips(store, lambda: store.get(b"k")) == 2
        bytes_read.append(store.stats()["bytes_read"] - before)
    buckets = 256
    assert max(bytes_read) < buckets
    costs = [round_trips(store, lambda: store.get(b"k")) for _ in range(20)]
    assert costs[0] == 2  # it is not trusted
    assert costs[-1] == 1  # and is again, once it would have been right


@pytest.mark.parametrize("kind", ["fusee", "fusee-cr"])
@pytest.mark.parametrize("work", ["update", "put", "delete"])
def test_a_key_is_trusted_again_by_a_client_that_only_writes(
    pools: Any, kind: str, work: str
) -> None:
    pool = pools(nodes=2)
    store = warm(pool.store(kind, name="test", capacity=300))
    other = warm(pools.again(pool).store(kind, name="test"))
    store.insert(b"k", b"0")
    for number in range(12):
        other.update(b"k", b"%d" % number)
        store.update(b"k", b"%d" % number)

    def write() -> None:
        if work == "delete":
            store.delete(b"k")
        else:
            getattr(store, work)(b"k", b"value")

    costs = []
    for _ in range(40):
        costs.append(round_trips(store, write))
        if work == "delete":
            store.insert(b"k", b"value")
    assert costs[0] == 5  # it is not trusted
    assert costs[-1] == 4


def test_a_client_that_only_writes_knows_the_slot_when_one_replica_is_left(pools: Any) -> None:
    store = warm(pools(nodes=2).store("fusee", name="test", capacity=300, replicas=2))
    store.insert(b"k", b"0")
    store.pool.fail_node(1)
    for _ in range(3):
        store.update(b"k", b"value")
    before = store.stats()["bytes_read"]
    store.update(b"k", b"value")
    slot_and_object = 8 + 128
    assert store.stats()["bytes_read"] - before <= slot_and_object


# ---- conflicts -----------------------------------------------------------------------------------


class Duel:
    """Two clients of one store; `other` does its operation in the midst of one of `store`."""

    def __init__(self, pools: Any, kind: str, replicas: int) -> None:
        self.pool = pools.keep(WatchedPool.open(pools(nodes=4).url))
        self.store = warm(self.pool.store(kind, name="test", capacity=300, replicas=replicas))
        self.other = warm(pools.again(self.pool).store(kind, name="test"))
        for store in (self.store, self.other):
            for value in (SMALL, BIG):  # so that memory of both sizes is ready
                store.put(b"warm", value)
        self.trips = 0

    def before_cas(self, number: int, work: Callable[[], object]) -> None:
        """Do the other's work before the CAS of that number (from 1 on) on a memory node."""
        left = [number]

        def count(verb: str, address: int) -> None:
            if verb == "cas" and address >> NODE_SHIFT != CONTROL_NODE:
                left[0] -= 1
                if left[0] == 0:
                    self.pool.endpoint.before = None
                    self.trips = round_trips(self.other, work)

        self.pool.endpoint.before = count


SMALL, BIG = b"small", b"B" * 100
"""The word of a bigger object is the greater one, so it loses by rule 3."""
WON_BY_RULES = 1 + 1 + 1 + 1 + 1 + 1
"""The object; the backups; is the primary unchanged; spread; log; the primary."""
LOST = 1 + 1 + 1 + 1
"""The object; the backups; the primary has changed; what does the log say."""
HELPED = 1 + 1 + 1 + (PATIENCE + 1) + (1 + 1 + 1 + 1 + 1 + 1) + 1
"""The object; the backups; the primary; looks at it; backups, fill, primary, spread, log, CAS; the
primary has changed."""


@pytest.mark.parametrize("kind", ["fusee", "fusee-nc"])
def test_rule_2_the_majority_wins(pools: Any, kind: str) -> None:
    cold = kind == "fusee-nc"
    duel = Duel(pools, kind, 4)
    duel.store.put(b"k", b"old")
    duel.other.get(b"k")
    # one backup of three has ours when the other comes
    duel.before_cas(2, lambda: duel.other.update(b"k", BIG))
    lost = round_trips(duel.store, lambda: duel.store.update(b"k", SMALL))
    assert duel.trips == WON_BY_RULES + cold
    assert lost == LOST + cold
    assert duel.store.get(b"k") == duel.other.get(b"k") == BIG
    sound(duel.store)


@pytest.mark.parametrize(("ours", "theirs"), [(BIG, SMALL), (SMALL, BIG)])
def test_rule_3_the_least_wins(pools: Any, ours: bytes, theirs: bytes) -> None:
    duel = Duel(pools, "fusee", 3)
    duel.store.put(b"k", b"old")
    duel.other.get(b"k")
    # one backup of two has ours
    duel.before_cas(2, lambda: duel.other.update(b"k", theirs))
    trips = round_trips(duel.store, lambda: duel.store.update(b"k", ours))
    if theirs is SMALL:
        assert (duel.trips, trips) == (WON_BY_RULES, LOST)
    else:
        # it has lost, and completes the round for this client, which stands still
        assert duel.trips == HELPED
        assert trips == LOST
    assert duel.store.get(b"k") == duel.other.get(b"k") == SMALL
    sound(duel.store)


@pytest.mark.parametrize("kind", ["fusee", "fusee-cr"])
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_who_has_all_backups_wins(pools: Any, kind: str, replicas: int) -> None:
    duel = Duel(pools, kind, replicas)
    duel.store.put(b"k", b"old")
    duel.other.get(b"k")
    duel.before_cas(replicas, lambda: duel.other.update(b"k", SMALL))
    trips = round_trips(duel.store, lambda: duel.store.update(b"k", BIG))
    assert duel.trips == HELPED
    assert trips == 4 + (replicas - 2 if kind == "fusee-cr" else 0)
    assert duel.store.get(b"k") == BIG
    sound(duel.store)


def test_cr_the_first_backup_decides(pools: Any) -> None:
    duel = Duel(pools, "fusee-cr", 4)
    duel.store.put(b"k", b"old")
    duel.other.get(b"k")
    duel.before_cas(2, lambda: duel.other.update(b"k", SMALL))
    duel.store.update(b"k", BIG)
    assert duel.trips == HELPED
    assert duel.store.get(b"k") == duel.other.get(b"k") == BIG
    sound(duel.store)


TRIPS_MAX = 80
RETRIES_MAX = 2 * PATIENCE


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step", quick=["update-*-2", "*-fusee-2"])
@pytest.mark.parametrize("replicas", [2, 3, 4] if COMPILED else [3])
@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("insert", "insert"), ("insert", "put"), ("update", "update"), ("update", "delete"),
        ("delete", "update"), ("delete", "delete"), ("put", "insert"), ("delete", "put"),
        ("insert", "delete"),
    ],
)  # fmt: skip
def test_conflicts_are_bounded_at_every_step(
    pools: Any, kind: str, replicas: int, first: str, second: str
) -> None:
    """One stands still before each of its CASes in turn; the other gets through in bounded time."""
    for number in range(1, replicas + 1):
        duel = Duel(pools, kind, replicas)
        there = first in ("update", "delete")
        if there:
            duel.store.put(b"k", b"old")
            duel.other.get(b"k")
        results: list[tuple[str, str]] = []
        duel.before_cas(number, lambda d=duel, r=results: r.append(_did(d.other, second)))  # type: ignore[misc]
        trips = round_trips(duel.store, lambda d=duel, r=results: r.append(_did(d.store, first)))  # type: ignore[misc]
        assert 0 < duel.trips <= TRIPS_MAX
        assert trips <= TRIPS_MAX
        assert duel.store.stats()["retries"] <= RETRIES_MAX
        assert duel.other.stats()["retries"] <= RETRIES_MAX
        assert len(results) == 2
        value = duel.store.get(b"k")
        assert duel.other.get(b"k") == value
        assert (value or b"") in {_in_order(there, o) for o in (results, results[::-1])}, results
        sound(duel.store)


def _did(store: Any, kind: str) -> tuple[str, str]:
    try:
        store.delete(b"k") if kind == "delete" else getattr(store, kind)(b"k", kind.encode())
    except KeyError:
        return kind, "refused"
    return kind, "done"


def _in_order(there: bool, order: list[tuple[str, str]]) -> bytes | None:
    """The value after these, b"" if there is none; None: they cannot end so in this order."""
    value = b"old" if there else b""
    for kind, result in order:
        refused = bool(value) if kind == "insert" else not value and kind != "put"
        if refused != (result == "refused"):
            return None
        if not refused:
            value = b"" if kind == "delete" else kind.encode()
    return value
