"""Changes in place with a value log: a recovery stops all clients; splits of `dtx-race`."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import children
from kit.puppets import Puppet, Where, verb_on_address
from kit.stores import sound

from limpet.fault.inject.doomed import Doom, DoomedPool
from limpet.fault.matrix.testbed import look_away
from limpet.shm.clients.membership import Membership
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_STATES
from limpet.shm.endpoint.slots import INCARNATION_BITS, PIN, client_id
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreCorrupt, StoreFull
from limpet.stores.baselines.dtx.race import LoggedSplit, SplitLog
from limpet.stores.baselines.dtx.recovery import Recovery, Stop

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

OLD, NEW = b"12345678", b"87654321"
KEYS = [b"%04d" % number for number in range(40)]
SMALL: dict[str, Any] = {"groups": 2, "bucket_size": 1, "capacity": 1}
"""Subtables of six slots, of which a key may be in four."""
PARAMETERS: dict[str, dict[str, Any]] = {"dtx-sherman": {"capacity": 1000}, "dtx-race": SMALL}
both = pytest.mark.parametrize("kind", PARAMETERS)


def grown(pools: Any, kind: str) -> Any:
    """A store with all KEYS."""
    store = pools().store(kind, name="test", **PARAMETERS[kind])
    for key in KEYS:
        store.put(key, OLD)
    return store


def die(store: Any, point: str, work: Callable[[Any, int], object]) -> int:
    """Have another client do this work, by a handle of its own and a number, one after another,
    until it dies where it shows that crash point; how often it had done it."""
    done = mmap.mmap(-1, 4096)

    def doomed() -> None:
        with DoomedPool.open(store.pool.url) as pool:
            victim = pool.store(store.kind, name=store.name)
            doom = Doom(victim, store, point, lambda: None)
            for number in range(200):
                doom.comes(lambda number=number: work(victim, number))
                done[0] = number + 1

    with children([doomed]) as running:
        assert os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1]) == -signal.SIGKILL
    return done[0]


def die_splitting(store: Any, point: str) -> list[bytes]:
    """Likewise, inserting new keys until a subtable is split; which ones."""
    return [b"new %d" % n for n in range(die(store, point, insert))]


def insert(store: Any, number: int) -> None:
    store.insert(b"new %d" % number, NEW)


def take_stop(store: Any) -> None:
    store.client.exclusively(lambda: store.client.pinned(lambda: Stop(store, 0).take()))


# ---- stopping all clients ------------------------------------------------------------------------


@both
def test_a_recovery_waits_until_nobody_is_inside(pools: Any, kind: str) -> None:
    store = grown(pools, kind)
    said = mmap.mmap(-1, 4096)

    def stay_inside() -> None:
        store.client.enter()
        said[0] = 1
        while not said[2]:
            time.sleep(0.001)
        time.sleep(0.2)
        said[1] = 1
        store.client.leave()

    with children([stay_inside]):
        while not said[0]:
            time.sleep(0.001)
        if kind == "dtx-race":
            die_splitting(store, "split-decided")
        else:
            die(store, "node-written", lambda store, _: store.update(KEYS[0], NEW))
        said[2] = 1
        store.recover()
        assert said[1]
    assert store.get(KEYS[0]) == (NEW if kind == "dtx-sherman" else OLD)
    sound(store)


@both
def test_nobody_begins_while_a_table_is_stopped(pools: Any, kind: str) -> None:
    store = grown(pools, kind)
    said = mmap.mmap(-1, 4096)

    def stop_table() -> None:
        take_stop(store)
        said[0] = 1
        time.sleep(0.2)
        said[1] = 1
        Stop(store, 0).give_back()
        signal.pause()

    with children([stop_table]):
        while not said[0]:
            time.sleep(0.001)
        store.update(KEYS[0], NEW)
        assert said[1]
        assert store.get(KEYS[0]) == NEW


@both
def test_every_operation_waits_while_a_table_is_stopped(
    pools: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store = grown(pools, kind)
    other = pools.again(store.pool).store(kind, name="test")
    waits: list[int] = []

    def look_for(recovery: Recovery, table: int, at: int) -> bool:
        waits.append(table)
        Stop(other, 0).give_back()
        return True

    monkeypatch.setattr(Recovery, "look_for", look_for)
    works: list[Callable[[], object]] = [
        lambda: store.get(KEYS[0]) == OLD,
        lambda: store.get_many(KEYS) == [OLD] * len(KEYS),
        lambda: store.put(KEYS[0], NEW) is None,
        lambda: store.update(KEYS[0], NEW) is None,
        lambda: store.insert(b"new", NEW) is None,
        lambda: store.delete(b"new") is None,
    ]
    for count, work in enumerate(works, 1):
        take_stop(other)
        assert work()
        assert waits == [0] * count


@both
def test_a_table_goes_on_when_who_has_stopped_it_is_dead(pools: Any, kind: str) -> None:
    store = grown(pools, kind)

    def stop_table() -> None:
        take_stop(store)
        os.kill(os.getpid(), signal.SIGKILL)

    with children([stop_table]) as running:
        os.waitpid(running[0][0], 0)
    store.update(KEYS[0], NEW)
    assert store.get(KEYS[0]) == NEW
    sound(store)


POINT_OF = {"dtx-sherman": "node-written", "dtx-race": "split-decided"}
"""Decided, and locked."""


def die_decided(store: Any, keys: list[bytes]) -> tuple[int, int]:
    """Have another client put these keys until it dies in one; its slot and state word."""
    before = set(store.pool.membership.occupied())
    die(store, POINT_OF[store.kind], lambda store, number: store.put(keys[number], NEW))
    (found,) = (
        (slot, word)
        for slot, word in set(store.pool.membership.occupied()) - before
        if POINT_OF[store.kind] in store.left_by(client_id(slot, word))
    )
    return found


def waits_for(pool: Any) -> Where:
    """It has been looked for the 20th time whether the client of this pool is out."""
    return verb_on_address("load", pool.client.slot + PIN, 20)


def keys_on(node: int) -> list[bytes]:
    """Keys of the table on that one of two memory nodes."""
    return [key for n in range(400) if hash64(key := b"%d" % n) >> 63 == node]


@pytest.mark.parametrize("elsewhere", ["on another node", "in another store"])
def test_who_recovers_does_not_wait_for_who_recovers_elsewhere(
    pools: Any, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    """Two clients died in changes of two tables, and two others recover one each."""
    monkeypatch.setattr(Membership, "sweep", lambda membership: [])
    pool = pools(nodes=2)
    store = other = pool.store("dtx-race", name="test", **SMALL)
    if elsewhere == "in another store":
        other = pool.store("dtx-sherman", name="other", capacity=1000)
    _, dead = (die_decided(each, keys_on(node)) for node, each in enumerate((store, other)))
    first, second = (Puppet(pools, pool.url, "dtx-race") for _ in range(2))
    recover = second.pool.membership.recover
    assert not second.begin(
        lambda: second.pool.exclusively(lambda: recover(*dead)),
        until=verb_on_address("cas", Stop(other, 1).at),
    )
    assert first.begin(first.pool.recover, until=waits_for(second.pool))
    assert second.go()
    for each in (store, other):
        sound(each)


@both
@pytest.mark.parametrize("verb", ["cas", "store"])
def test_a_table_goes_on_when_a_signal_handler_raises_in_a_recovery(
    pools: Any, kind: str, verb: str
) -> None:
    """Just when it is stopped, or goes on."""
    store = grown(pools, kind)
    first = Puppet(pools, store.pool.url, kind)
    stop = Stop(store, 0).at
    mine = stop + 8 + 8 * (first.pool.client_id >> INCARNATION_BITS)
    for number in (1, 2):
        die_decided(store, [b"%d %d" % (number, n) for n in range(200)])
        where = verb_on_address(verb, stop if verb == "cas" else mine, number)
        assert not first.begin(first.pool.recover, until=where)
        first.abandon()
        assert not store.endpoint.load(stop)
        assert not store.endpoint.load(mine)
        sound(store)


def test_who_recovers_and_who_replaces_a_node_do_not_wait_for_each_other(pools: Any) -> None:
    pool = pools(nodes=2)
    store = pool.store("dtx-race", name="test", **SMALL)
    first, second = (Puppet(pools, pool.url, "dtx-race") for _ in range(2))
    pool.fail_node(1)
    restoring = verb_on_address("cas", NODE_STATES + 8, 2)
    assert not second.begin(lambda: second.pool.replace_node(1), until=restoring)
    die_decided(store, keys_on(0))
    assert first.begin(first.pool.recover, until=waits_for(second.pool))
    assert second.go()
    assert pool.nodes()[1]["state"] == "in service"


@both
def test_who_waits_in_a_recovery_does_not_stand_still(pools: Any, kind: str) -> None:
    store = grown(pools, kind)
    look_away(store.pool)
    clock = [0.0]
    store.pool.membership.now = lambda: clock[0]
    inside = pools.again(store.pool)
    first = Puppet(pools, store.pool.url, kind)
    die_decided(store, [b"new %d" % n for n in range(200)])
    inside.client.enter()
    assert not first.begin(first.pool.recover, until=waits_for(inside))
    for _ in range(3):
        assert store.pool.exclusively(lambda: store.recovery.look_for(0, 0))
        clock[0] += store.pool.membership.lease_s
        assert not first.go(until=waits_for(inside))
    inside.client.leave()
    assert first.go()
    assert {event["kind"] for event in store.pool.events()} == {"recovered"}
    sound(store)


# ---- nodes in place ------------------------------------------------------------------------------


def test_a_torn_node_is_looked_up_in_the_log_of_who_wrote_it(pools: Any) -> None:
    """And not in that of another client, which has not locked it; else its pairs seem leaked."""
    store = pools().store("dtx-sherman", name="test", capacity=1000)
    store.put_many((key, OLD * 200) for key in KEYS)
    store.get(KEYS[0])
    leaf = store.leaf.at
    other = Puppet(pools, store.pool.url, "dtx-sherman")
    locks = verb_on_address("cas", leaf)
    assert not other.begin(lambda: other.store.update(KEYS[0], NEW * 200), until=locks)
    look_away(store.pool)
    die(store, "node-written", lambda store, _: store.update(KEYS[1], NEW * 200))
    linked = set(store.references())
    word = leaf + store.parameters.node_size // 2
    store.endpoint.store(word, store.endpoint.load(word) ^ 1)
    assert set(store.references()) == linked
    other.abandon()
    sound(store)


# ---- splits --------------------------------------------------------------------------------------

POINTS = ("entry-locked", "split-decided", "half-written", "split-locked", "split-unlocked")


@pytest.mark.parametrize("point", POINTS)
def test_who_dies_splitting_loses_nothing(pools: Any, point: str) -> None:
    store = grown(pools, "dtx-race")
    others = die_splitting(store, point)
    for key in KEYS:
        store.update(key, NEW)
    assert len(store) == len(KEYS) + len(others)
    sound(store)
    assert store.get_many([*KEYS, *others]) == [NEW] * (len(KEYS) + len(others))
    store.insert(b"new %d" % len(others), NEW)


def test_readers_do_not_wait_for_who_died_splitting(pools: Any) -> None:
    """A client that wants to split the same subtable does wait, and recovers the dead."""
    store = grown(pools, "dtx-race")
    look_away(store.pool)
    others = die_splitting(store, "split-decided")
    assert sorted(store) == sorted([*KEYS, *others])
    assert store.get_many(KEYS) == [OLD] * len(KEYS)
    kinds = [event["kind"] for event in store.pool.events()]
    assert "recovered" not in kinds
    store.insert(b"new %d" % len(others), NEW)
    kinds = [event["kind"] for event in store.pool.events()]
    assert "recovered" in kinds
    sound(store)


@pytest.mark.parametrize("naive", [False, True])
def test_what_is_split_is_not_written_again(
    pools: Any, monkeypatch: pytest.MonkeyPatch, naive: bool
) -> None:
    """Others go on in the halves, before any client recovers the one that died with their locks."""
    if naive:
        monkeypatch.setattr(SplitLog, "carry_out", write_again)
    store = grown(pools, "dtx-race")
    look_away(store.pool)
    die_splitting(store, "split-locked")
    for key in KEYS:
        store.update(key, NEW)
    store.recover()
    lost = [key for key in KEYS if store.get(key) != NEW]
    assert bool(lost) == naive


def write_again(log: Any, locked: Any) -> None:
    images = [entry.new & ADDRESS_MASK for entry in log.entries()[2:4]]
    log.install([log.endpoint.read(image, log.subtable_size) for image in images])


@pytest.mark.parametrize("naive", [False, True])
def test_it_is_decided_before_anything_is_written(
    pools: Any, monkeypatch: pytest.MonkeyPatch, naive: bool
) -> None:
    """Else recovery frees halves that the directory leads to."""
    store = grown(pools, "dtx-race")

    def insert_all() -> None:
        if naive:
            monkeypatch.setattr(SplitLog, "decide", lambda log: None)
        monkeypatch.setattr(LoggedSplit, "_unlock", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        for number in range(200):
            insert(store, number)

    with children([insert_all]) as running:
        assert os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1]) == -signal.SIGKILL
    store.recover()
    with pytest.raises(StoreCorrupt, match="no subtable") if naive else contextlib.nullcontext():
        store.check()


@pytest.mark.parametrize("thaws", [True, False])
def test_slots_that_the_dead_froze_can_be_changed_though_memory_is_full(
    pools: Any, monkeypatch: pytest.MonkeyPatch, thaws: bool
) -> None:
    if not thaws:
        monkeypatch.setattr(SplitLog, "undo", lambda log, locked: None)
    pool = pools(node_size="512KiB", clients=4)
    store = pool.store("dtx-race", name="test", capacity=1, groups=32)
    other = pool.store("race", name="other", capacity=1, groups=2)
    other.put(b"0", OLD)

    def insert_all() -> None:
        monkeypatch.setattr(SplitLog, "decide", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        for number in range(5000):
            insert(store, number)

    with children([insert_all]) as running:
        assert os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1]) == -signal.SIGKILL
    store.recover()
    with pytest.raises(StoreFull):
        other.put_many((b"%d" % number, bytes(5000)) for number in range(1000))
    keys = list(store)
    with contextlib.nullcontext() if thaws else pytest.raises(StoreFull):
        for key in keys:
            store.delete(key)
    sound(store)


@pytest.mark.parametrize("stops", [True, False])
def test_recoveries_are_one_at_a_time(
    pools: Any, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    """Without the word, the slower one writes halves over what others have put there since."""
    if not stops:
        monkeypatch.setattr(Recovery, "_recover", Recovery._carry_out)
    store = grown(pools, "dtx-race")
    url, stop = store.pool.url, Stop(store, 0).at
    first, second = (Puppet(pools, url, "dtx-race") for _ in range(2))
    die_splitting(store, "split-decided")
    (image,) = (
        entries[2].new & ADDRESS_MASK
        for slot, _ in store.pool.membership.occupied()
        for _, entries in store.recovery.logs_in(slot)
    )
    assert not first.begin(first.pool.recover, until=verb_on_address("read", image))
    ended = second.begin(second.pool.recover, until=verb_on_address("cas", stop, 3))
    assert ended != stops
    if not stops:
        for key in KEYS:
            second.store.update(key, NEW)
    assert first.go()
    if stops:
        assert second.go()
        for key in KEYS:
            second.store.update(key, NEW)
    lost = [key for key in KEYS if store.get(key) != NEW]
    assert bool(lost) != stops
    if stops:
        sound(store)


def test_a_split_writes_the_halves_twice(pools: Any) -> None:
    """And fills no slot by itself: compare-and-swaps freeze slots, take locks, and free memory."""
    store = pools().store("dtx-race", name="test", capacity=1, groups=4)
    slots = 4 * 21
    number, size = 0, store.index_size()
    while store.index_size() == size or not size:
        size = store.index_size()
        store.allocator.replenish_all(0, [store.parameters.subtable_size] * 5)
        before = store.stats()["background"]
        store.put(b"%d" % number, OLD)
        number += 1
    spent = {name: count - before[name] for name, count in store.stats()["background"].items()}
    assert 4 <= spent["bytes_written"] / store.parameters.subtable_size < 5
    assert slots + 3 <= spent["cas"] < 1.2 * slots
