"""Transactions over keys of hash stores, and of both kinds, under schedules with kills and
stops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from kit.parts import is_fair, runs_of
from kit.puppets import verb_on_address
from kit.transaction_runs import (
    BOTH,
    TxRun,
    TxStage,
    explore,
    faulty,
    logged,
    stage,
    steps_of,
)
from kit.transactions import (
    LATER,
    NEW,
    OLD,
    Actor,
    StillEndpoint,
    StillPool,
    StillTestbed,
    deciding,
    put_all,
)
from kit.variants import vary

import limpet
from limpet.fault.explore.schedule import CRASH, STALL
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.slots import PIN
from limpet.stores.race.layout import FROZEN, FROZEN_VACANT
from limpet.stores.transactions.commit import Commit
from limpet.stores.transactions.layout import DRIFT_US, EACH_US
from limpet.stores.transactions.parts import Part, is_held
from limpet.stores.transactions.reads import Reads
from limpet.stores.transactions.slot_writes import Change

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED: Final = BUILD == "compiled"
HASH: Final = "rtx-race"
SHORT_LEASE: Final = {"drift_us": 0, "each_us": 20}
"""Others take it to be over while its owner is only slow."""

compiled_only = pytest.mark.skipif(not COMPILED, reason="takes many runs")
kinds = pytest.mark.parametrize("kind", [HASH, BOTH])


@pytest.mark.either_build("schedules of the same lines")
@pytest.mark.exhaustive("more clients", quick=["*-2-*"])
@kinds
@pytest.mark.parametrize("clients", [2, 3])
@pytest.mark.parametrize("parameters", [{}, SHORT_LEASE], ids=["usual", "short"])
def test_transactions_hold_while_clients_die_and_stand_still(
    kind: str, parameters: dict[str, Any], clients: int
) -> None:
    runs = runs_of(60)
    found = explore(runs, clients, crashes=2, stalls=2, kind=kind, **parameters)
    assert found.failure == ""
    assert found.runs == runs
    assert is_fair(found.crashes, found.runs)
    assert is_fair(found.stalls, found.runs)


@pytest.fixture(params=[HASH, BOTH])
def made(request: pytest.FixtureRequest) -> Iterator[TxStage]:
    with stage(3, request.param) as there:
        yield there


PROGRAMS: Final = ("mab|mab|s gb", "t|p fab d|fba t", "fab i|fba|s gb")
"""The first client's first operation is a transaction: it changes two keys, inserts and splits."""


@pytest.mark.either_build("schedules of the same lines")
@pytest.mark.exhaustive("every step", quick=["both-fab i*"])
@pytest.mark.parametrize("kind", [STALL, CRASH], ids=["stops", "dies"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_owner_may_stop_at_each_step(program: str, kind: str, made: TxStage) -> None:
    """Others change the same keys meanwhile; the stopped client goes on when they are done."""
    runs: list[TxRun] = []
    last = steps_of(made, program)
    for step in (*range(1, last, 3 if COMPILED else 40), last):
        assert faulty(made, program, (0, 0, step, kind), runs=runs) == ""
    assert logged(made, runs[-1], 0)


@pytest.mark.either_build("schedules of the same lines")
@pytest.mark.exhaustive("every step", quick=["rtx-race-dies"])
@pytest.mark.parametrize("kind", [STALL, CRASH], ids=["stops", "dies"])
def test_repairer_may_stop_at_each_step(kind: str, made: TxStage) -> None:
    """While the owner stands still with slots that it holds, decided or not; or is dead."""
    program = "mab|mab|s gb"
    owner = range(1, steps_of(made, "mab||") + 1)
    for step in owner[-len(owner) // 2 :: 23 if COMPILED else 60]:
        for repairer in range(1, 200, 29 if COMPILED else 90):
            for first in (STALL, CRASH):
                faults = (0, 0, step, first), (1, 0, repairer, kind)
                assert faulty(made, program, *faults) == ""


# ---- scenes --------------------------------------------------------------------------------------


class Scene(StillTestbed):
    """Two puppets of a hash store with two keys, and a client that looks on."""

    kind = HASH

    def __init__(self, pools: Any) -> None:
        super().__init__(pools, 2)
        self.owner, self.other = self.puppets
        self.slot = self.slot_of(b"k")

    def prepare(self) -> None:
        self.store.put_many({b"k": OLD, b"l": OLD})

    def slot_of(self, key: bytes, store: Any = None) -> int:
        """Asked by way of that handle, or ours."""
        store = store or self.store
        store.client.enter()
        try:
            return int(store.tx_keys.place_for(key, ())[0])
        finally:
            store.client.leave()

    def hold(self, key: bytes = b"k", slot: int = 0) -> None:
        """The owner stands still with both slots held, of that key and of "l"; nothing decided."""
        self.owner.begin(lambda: put_all(self.owner, NEW, key, b"l"), self.decides(self.owner))
        assert is_held(int(self.store.endpoint.load(slot or self.slot)))


def test_what_is_decided_is_read_from_held_slots(pools: Any) -> None:
    scene = Scene(pools)
    slots = {scene.slot_of(b"k"), scene.slot_of(b"l")}
    scene.hold()
    scene.owner.go(lambda verb, address: verb == "cas" and address in slots)
    assert is_held(int(scene.store.endpoint.load(scene.slot)))
    assert scene.store.get(b"k") == NEW
    assert scene.store.get_many([b"k", b"x", b"l"]) == [NEW, None, NEW]
    assert dict(scene.store.items()) == {b"k": NEW, b"l": NEW}
    assert len(scene.store) == 2
    scene.store.check()
    assert StillEndpoint.pauses == 0
    assert scene.owner.go()
    scene.sound()


@pytest.mark.parametrize("look", ["get", "get_many", "transaction"])
def test_who_reads_what_is_not_decided_waits_for_the_lease_and_aborts_it(
    pools: Any, look: str
) -> None:
    scene = Scene(pools)
    scene.hold()
    assert len(scene.store) == len(list(scene.store)) == 2
    read = {
        "get": lambda: scene.store.get(b"k"),
        "get_many": lambda: scene.store.get_many([b"x", b"k"])[1],
        "transaction": lambda: scene.pool.transaction(lambda tx: tx.get(scene.store, b"k")),
    }
    assert read[look]() == OLD
    assert StillEndpoint.pauses > 0
    assert scene.store.stats()["repairs"] == 1
    assert not is_held(int(scene.store.endpoint.load(scene.slot)))
    assert scene.owner.go()
    assert scene.store.get_many([b"k", b"l"]) == [NEW, NEW]
    scene.sound()


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize(
    ("write", "left"),
    [("put", LATER), ("update", LATER), ("insert", None), ("delete", None)],
)
def test_who_writes_a_held_slot_waits_until_it_is_let_go_of(
    pools: Any, write: str, left: bytes | None, decided: bool
) -> None:
    scene = Scene(pools)
    slots = {scene.slot_of(b"k"), scene.slot_of(b"l")}
    scene.hold()
    if decided:
        scene.owner.go(lambda verb, address: verb == "cas" and address in slots)
    kept = NEW if decided else OLD
    if write == "insert":
        with pytest.raises(limpet.KeyExists):
            scene.store.insert(b"k", LATER)
        left = kept
    elif write == "delete":
        scene.store.delete(b"k")
    else:
        getattr(scene.store, write)(b"k", LATER)
    assert scene.store.get_many([b"k", b"l"]) == [left, kept]
    assert scene.owner.go()
    scene.sound()


@pytest.mark.parametrize("asks", [True, False])
def test_object_of_a_held_slot_is_left_to_the_transaction(
    pools: Any, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """The client that put it there settles it while the slot is held: the transaction aborts."""
    if not asks:
        monkeypatch.setattr("limpet.stores.transactions.parts.concerns", lambda *given: False)
    scene = Scene(pools)
    put = scene.other
    scene.store.put(b"m", OLD)
    slot = scene.slot_of(b"m")
    scene.store.delete(b"m")
    # The second CAS decides the insert. An exception comes before the client takes its object out
    # of its journal, so it looks at the end whether the object is linked.
    assert not put.begin(lambda: put.store.insert(b"m", LATER), verb_on_address("cas", slot, 2))
    assert not put.go(lambda verb, address: verb != "cas")
    scene.hold(b"m", slot)
    looks: list[tuple[str, int]] = []
    put.pool.endpoint.before = lambda *verb: looks.append(verb)
    put.abandon()
    assert ("load", slot) in looks
    assert scene.store.get(b"m") == LATER
    if asks:
        scene.store.check()
    else:
        with pytest.raises(limpet.StoreCorrupt, match="not in use"):
            scene.store.check()
    assert scene.owner.go()
    scene.sound()


@pytest.mark.parametrize("looks", [True, False])
def test_key_that_comes_into_another_slot_meanwhile_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """One that a transaction is about to insert, too; without the look it is there twice."""
    scene = Scene(pools)
    hold, late = Part.post_hold, [True]

    def hold_late(part: Part, change: Change) -> int:
        if late.pop() if late else False:
            scene.store.endpoint.store(change.slot, FROZEN_VACANT)
            scene.other.store.insert(b"new", LATER)
            scene.store.endpoint.store(change.slot, change.old)
        return hold(part, change)

    vary(monkeypatch, Part, "post_hold", hold_late)
    if not looks:
        # No client looks whether the key has come into another slot.
        vary(monkeypatch, Commit, "_is_alone", lambda commit: True)
    seen: list[bytes | None] = []

    def work(tx: limpet.Transaction) -> None:
        seen.append(tx.get(scene.store, b"new"))
        tx.put(scene.store, b"new", NEW)

    scene.pool.transaction(work)
    if looks:
        assert seen == [None, LATER]
        assert scene.store.get(b"new") == NEW
        scene.sound()
    else:
        with pytest.raises(limpet.StoreCorrupt, match="also in the slot"):
            scene.store.check()


def test_key_that_comes_into_a_slot_which_is_frozen_then_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a split that goes on, or was given up. It was passed over, and the key was there twice."""
    scene = Scene(pools)
    endpoint = scene.store.endpoint
    hold, late = Part.post_hold, [True]

    def hold_late(part: Part, change: Change) -> int:
        if late.pop() if late else False:
            endpoint.store(change.slot, FROZEN_VACANT)
            scene.other.store.insert(b"new", LATER)
            endpoint.store(change.slot, change.old)
            there = scene.slot_of(b"new", scene.other.store)
            endpoint.store(there, endpoint.load(there) | FROZEN)
        return hold(part, change)

    vary(monkeypatch, Part, "post_hold", hold_late)
    scene.pool.transaction(lambda tx: tx.put(scene.store, b"new", NEW))
    assert scene.store.get(b"new") == NEW
    scene.sound()


@pytest.mark.parametrize("tentative", [True, False])
def test_transaction_and_insert_of_one_key(pools: Any, tentative: bool) -> None:
    """The insert stands still with its tentative word: it is kicked out. Or it comes later: it
    waits, and then updates."""
    scene = Scene(pools)
    put = scene.other
    vacant = scene.slot_of(b"new")
    if tentative:
        put.begin(lambda: put.store.put(b"new", LATER), verb_on_address("cas", vacant))
        put.go(verb_on_address("cas", vacant))
        scene.pool.transaction(lambda tx: tx.put(scene.store, b"new", NEW))
        assert scene.store.get(b"new") == NEW
        assert put.go()
    else:
        scene.owner.begin(
            lambda: put_all(scene.owner, NEW, b"new", b"l"), scene.decides(scene.owner)
        )
        put.store.put(b"new", LATER)
        assert scene.store.get(b"l") == OLD
    assert scene.store.get(b"new") == LATER
    if not tentative:
        assert scene.owner.go()
        assert scene.store.get_many([b"new", b"l"]) == [NEW, NEW]
    scene.sound()


def test_held_slot_is_not_frozen_and_its_subtable_not_split(pools: Any) -> None:
    """A client that wants to split waits for the lease; the holder finds its key in a half."""
    pool = pools()
    url = pool.url
    table = pools.keep(StillPool.open(url)).store(
        HASH, name="small", groups=2, bucket_size=1, capacity=1
    )
    owner = Actor(pools, url, HASH, "small")
    StillEndpoint.pauses = 0
    table.put(b"k", OLD)

    owner.begin(lambda: put_all(owner, NEW, b"k", b"l"), deciding(table, owner.pool))
    for number in range(30):
        table.put(b"%d" % number, LATER)
    assert table.get(b"k") == OLD
    assert owner.go()
    assert table.get_many([b"k", b"l"]) == [NEW, NEW]
    assert len(table) == 32
    table.check()
    pool.recover()
    assert pool.audit()["leaked"] == 0


@pytest.mark.parametrize("decided", [False, True])
def test_slot_that_is_held_when_a_split_is_decided_is_let_go_of_at_once(
    pools: Any, decided: bool
) -> None:
    """The split waits for no client, whether the transaction that holds it is decided or not."""
    pool = pools()
    table = pools.keep(StillPool.open(pool.url)).store(
        HASH, name="small", groups=2, bucket_size=1, capacity=1
    )
    owner, splits = (Actor(pools, pool.url, HASH, "small") for _ in range(2))
    StillEndpoint.pauses = 0
    table.put_many({b"k": OLD, b"l": OLD})
    with table.client:
        slot = int(table.tx_keys.place_for(b"k", ())[0])
    keys = [b"%d" % number for number in range(40)]

    def is_met(verb: str, address: int) -> bool:
        return verb == "cas" and address == slot

    # It has decided to split the subtable, and is about to freeze the slot of k.
    assert not splits.begin(lambda: splits.store.put_many(dict.fromkeys(keys, LATER)), is_met)

    assert not owner.begin(lambda: put_all(owner, NEW, b"k", b"l"), deciding(table, owner.pool))
    if decided:
        owner.go(is_met)
    waited = StillEndpoint.pauses
    assert splits.go()
    assert StillEndpoint.pauses == waited
    assert table.get_many([b"k", b"l"]) == [NEW if decided else OLD] * 2
    assert owner.go()
    assert table.get_many([b"k", b"l"]) == [NEW, NEW]
    assert table.get_many(keys) == [LATER] * len(keys)
    table.check()
    pool.recover()
    assert pool.audit()["leaked"] == 0


def _stands_still_before_its_next_read(pins: bool, pools: Any) -> None:
    """The slot has the same word: the pair was freed, and its memory used again, as the client was
    not pinned, or the epoch that was about to be pinned was over. An old value was read beside a
    new one."""
    scene = Scene(pools)
    owner, store = scene.owner, scene.store
    if pins:
        owner.store.glances = False
    old, new = b"o" * 60_000, b"n" * 60_000
    store.put(b"k", old)
    word = store.endpoint.load(scene.slot)

    def read() -> tuple[bytes, bytes]:
        return owner.pool.transaction(  # type: ignore[no-any-return]
            lambda tx: (tx.get(owner.store, b"k"), tx.get(owner.store, b"l"))
        )

    if pins:
        before = verb_on_address("swap", int(owner.pool.client.slot) + PIN, 2)
    else:
        with store.client:
            assert store.tx_keys.look_up(b"l") is not None
            before = verb_on_address("load", store.tx_keys.place.entry)
    owner.begin(read, before)
    store.put(b"l", NEW)
    for _ in range(50):
        store.put(b"k", new)
        if store.endpoint.load(scene.slot) == word:
            break
    assert store.endpoint.load(scene.slot) == word
    assert owner.go()
    assert owner.result == (new, NEW)
    scene.sound()


with_and_without_pins = pytest.mark.parametrize("pins", [True, False], ids=["pins", "none"])


@with_and_without_pins
def test_a_new_pair_is_not_taken_for_the_one_that_was_read(pins: bool, pools: Any) -> None:
    _stands_still_before_its_next_read(pins, pools)


@with_and_without_pins
def test_a_pair_that_is_told_by_its_word_alone_is_caught(
    pins: bool, pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vary(monkeypatch, Reads, "is_of_this_epoch", lambda reads: True)
    with pytest.raises(AssertionError):
        _stands_still_before_its_next_read(pins, pools)


def test_lease_is_longer_for_each_key_that_is_written(pools: Any) -> None:
    """It was that of none, so large transactions were aborted while their owners were at work."""
    scene = Scene(pools)
    keys = [b"%d" % number for number in range(100)]
    scene.owner.begin(lambda: put_all(scene.owner, NEW, b"k", *keys), scene.decides(scene.owner))
    began = StillEndpoint.now_us
    assert scene.store.get(b"k") == OLD
    assert StillEndpoint.now_us - began > DRIFT_US + 100 * EACH_US
    assert scene.owner.go()
    assert scene.store.get(b"k") == NEW
    scene.sound()
