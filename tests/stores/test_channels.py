"""The base of channels: named memory, participants, variables, what a kill or a removal leaves."""

from __future__ import annotations

import contextlib
import gc
import mmap
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from kit.endpoints import WatchedPool
from kit.processes import dies_at, gather
from kit.stores import nothing_leaked

import limpet
from limpet.shm.backends.location import SHM_DIR
from limpet.stores.channels import manager as managers
from limpet.stores.channels.atomic_var import AtomicVar
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import SLEEPERS, WOKEN
from limpet.stores.channels.manager import GLOBAL, PAIR, THREAD
from limpet.stores.channels.owned_var import OwnedVar
from limpet.stores.channels.shared_region import SharedRegion
from limpet.stores.channels.sst import SST
from limpet.stores.channels.waiting import Waiting

COMPILED = limpet.build == "compiled"


# ---- names and memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "other"),
    [(b"damaged", b"dam\xffged"), (b'"size": ', b'"siz\xff": '), (b'"size": ', b'"bulk": ')],
)
def test_damaged_names_and_descriptions_are_named(pools: Any, text: bytes, other: bytes) -> None:
    pool = pools()
    array = pool.array("damaged", 4)
    with open(SHM_DIR / f"limpet.{pool.url.removeprefix('shm://')}.0", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
        at = memory.find(text)
        assert at > 0
        while at >= 0:
            memory[at : at + len(text)] = other
            at = memory.find(text)
        memory.close()
    with pytest.raises((limpet.StoreCorrupt, limpet.PoolCorrupt)):
        pool.channels.list()
    array[1] = 5
    assert array[1] == 5


def test_a_channel_is_the_same_for_all_who_name_it(pools: Any) -> None:
    pool = pools(nodes=2)
    other = pools.again(pool)
    mine, theirs = (p.channels.open(AtomicVar, "count") for p in (pool, other))
    mine.faa(40)
    theirs.faa(2)
    assert mine.load() == theirs.load() == 42
    assert pool.channels.open(AtomicVar, "count") is mine
    assert pool.channels.list() == [
        {"name": "count", "kind": "atomic_var", "parameters": {}, "size": 8}
    ]


def test_asking_for_channels_makes_nothing(pools: Any) -> None:
    pool = pools()
    assert pool.channels.names() == []
    with pytest.raises(KeyError):
        pool.channels.remove("none")
    assert pool.stores() == []


def test_a_channel_of_another_kind_or_other_parameters_is_refused(pools: Any) -> None:
    pool = pools()
    other = pools.again(pool)
    pool.channels.open(SST, "table", participants=4)
    with pytest.raises(limpet.StoreMismatch, match="'table' is a sst, not an atomic_var"):
        other.channels.open(AtomicVar, "table")
    with pytest.raises(limpet.StoreMismatch, match="participants"):
        other.channels.open(SST, "table", participants=5)
    for bad in ("", "a/b", "a.b", "a@b", 7, "n" * 101, "\ud800"):
        with pytest.raises(limpet.ParameterError, match="name"):
            pool.channels.open(AtomicVar, bad)


def test_whole_numbers_of_any_type_will_do(pools: Any) -> None:
    """They are the same for all processes, whichever was first."""
    pool = pools()
    other = pools.again(pool)
    three, one = np.int64(3), True
    assert pool.barrier("b", one).parties == other.barrier("b", 1).parties == 1
    assert pool.array("a", three)[2] == other.array("a", 3)[2] == 0
    pool.queue("q", three, item_size=np.uint8(64)).put("x")
    assert other.queue("q", 3, item_size=64).get() == "x"


def test_they_are_listed_with_what_they_were_made_with(pools: Any) -> None:
    pool = pools()
    made = {
        "a": pool.array("a", 3, "d"),
        "b": pool.barrier("b", 4, on_death="continue"),
        "l": pool.lock("l", places=8),
        "q": pool.queue("q", 5, item_size=64),
        "r": pool.ring("r", 4096),
        "s": pool.channels.open(SharedRegion, "s", size=24, participants=2),
    }
    listed = {one["name"]: one["parameters"] for one in pool.channels.list()}
    assert listed == {
        "a": {"shape": [3], "dtype": "<f8", "stripes": 1},
        "b": {"parties": 4, "on_death": "continue"},
        "l": {"recursive": False, "places": 8, "overtaking": True},
        "q": {"maxsize": 5, "item_size": 64, "codec": "pickle"},
        "r": {"size": 4096, "overrun": "block", "codec": "pickle"},
        "s": {"size": 24, "participants": 2},
    }
    assert sorted(made) == pool.channels.names()


def test_threads_that_open_a_channel_at_once_get_one_endpoint(pools: Any) -> None:
    pool = pools()
    start = threading.Barrier(4)

    def opened() -> Any:
        start.wait()
        return pool.channels.open(SST, "table", participants=2)

    with ThreadPoolExecutor(4) as threads:
        found = [one.result() for one in [threads.submit(opened) for _ in range(4)]]
    assert len({id(one) for one in found}) == 1
    assert len(found[0].refresh()) == 1
    with pytest.raises(limpet.StoreMismatch, match="has opened 'table' with"):
        pool.channels.open(SST, "table", participants=3)


def test_a_process_that_forgot_its_endpoint_has_its_row_again(pools: Any) -> None:
    pool = pools()
    for _ in range(3):
        gc.collect()
        assert len(pool.channels.open(SST, "table", participants=2).refresh()) == 1


def test_channels_are_pickled_by_name(pools: Any) -> None:
    pool = pools()
    table = pool.channels.open(SST, "table", participants=2)
    again = pickle.loads(pickle.dumps(table))
    try:
        assert again.name == "table"
        assert again.parameters == {"participants": 2}
        assert len(table.refresh()) == 2
        with pytest.raises(TypeError, match="pickle 'table'"):
            pickle.dumps(table.mine())
    finally:
        again.pool.close()


def test_a_removed_channel_says_so_and_its_name_begins_anew(pools: Any) -> None:
    pool = pools()
    other = pools.again(pool)
    table = pool.channels.open(SST, "table", participants=2)
    table.store_mine(7)
    table.push_broadcast().wait()
    theirs = other.channels.open(SST, "table", participants=2)
    pool.channels.remove("table")
    for handle in (table, theirs):
        with pytest.raises(limpet.ChannelRemoved, match="'table'"):
            handle.refresh()
    anew = pool.channels.open(SST, "table", participants=2)
    assert [var.load() for var in anew] == [0]
    with pytest.raises(limpet.ChannelRemoved):
        theirs.push_broadcast()
    with pytest.raises(KeyError):
        pool.channels.remove("other")
    pool.channels.remove("table")
    assert pool.channels.names() == []
    nothing_leaked(pool)


def test_a_part_of_a_channel_is_not_removed_by_its_name(pools: Any) -> None:
    pool = pools()
    table = pool.channels.open(SST, "table", participants=2)
    there = sorted(pool.channels.catalogue)
    for name in ("table/ov0", "table.participants", f"table.participants@{table.mark:x}", b"table"):
        with pytest.raises(KeyError):
            pool.channels.remove(name)
    assert sorted(pool.channels.catalogue) == there
    assert len(table.refresh()) == 1


def test_no_part_is_made_of_a_channel_that_was_removed(pools: Any) -> None:
    pool = pools()
    region = pools.again(pool).channels.open(SharedRegion, "shared", size=64, participants=2)
    pool.channels.remove("shared")
    with pytest.raises(limpet.ChannelRemoved, match="'shared'"):
        region.read(0, 0, 4)
    assert list(pool.channels.catalogue) == []
    nothing_leaked(pool)


def test_what_a_removed_channel_had_is_not_taken_for_a_part_of_the_next(pools: Any) -> None:
    """A client makes a part of the old one after its removal, and is killed before it notices."""
    pool = pools()
    old = Roll(pool.channels, "c")
    pool.channels.remove("c")
    late = pool.channels.region("c.part", 64, of=old.mark)
    pool.endpoint.store(late.address, 1)
    new = Roll(pool.channels, "c")
    assert pool.endpoint.load(new.region("part", 64)) == 0
    pool.channels.remove("c")
    assert list(pool.channels.catalogue) == []


def test_a_part_whose_remover_was_killed_in_the_midst_of_it_keeps_nobody_waiting(
    pools: Any,
) -> None:
    pool = pools(nodes=2)
    roll = Roll(pool.channels, "c")
    for node in (None, 0, 1):
        half = pool.channels.region("c.part", 64, of=roll.mark, node=node)
        pool.endpoint.store(half.address, 1)
        pool.endpoint.store(half.mark_address, 0)
        again = pool.channels.region("c.part", 64, of=roll.mark, node=node)
        assert pool.endpoint.load(again.address) == 0


def test_a_channel_that_is_made_while_its_namesake_is_removed_keeps_its_parts(pools: Any) -> None:
    pool = pools()
    watched = pools.keep(WatchedPool.open(pool.url))
    made: list[Roll] = []
    Roll(pool.channels, "c")
    assert watched.channels.names() == ["c"]

    def make_another(verb: str, address: int) -> None:
        if not made and not pool.channels.names():
            made.append(Roll(pool.channels, "c"))

    watched.endpoint.after = make_another
    watched.channels.remove("c")
    watched.endpoint.after = None
    assert made[0].refresh()
    assert len(list(pool.channels.catalogue)) == 2
    pool.channels.remove("c")
    assert list(pool.channels.catalogue) == []
    nothing_leaked(pool)


def test_who_opens_a_channel_that_others_have_made_anew_gets_that_one(pools: Any) -> None:
    pool = pools()
    others = pools.again(pool).channels
    old = pool.channels.open(AtomicVar, "a")
    others.remove("a")
    others.open(AtomicVar, "a").store(5)
    with pytest.raises(limpet.ChannelRemoved):
        old.load()
    assert pool.channels.open(AtomicVar, "a").load() == 5


def test_a_region_that_no_node_has_room_for_is_refused_before_it_is_written(pools: Any) -> None:
    with pytest.raises(limpet.ParameterError, match="a memory node has room for"):
        pools().array("a", 1 << 24)
    with pytest.raises(limpet.ValueTooLarge, match="one region"):
        pools().channels.open(SharedRegion, "r", size=1 << 27, participants=1).part(0)


def test_who_waits_is_told_that_the_pool_was_closed(pools: Any) -> None:
    pool = pools()
    event = pool.event("e")
    told = []

    def waits() -> None:
        with pytest.raises(limpet.PoolClosed):
            event.wait()
        told.append(True)

    thread = threading.Thread(target=waits)
    thread.start()
    time.sleep(0.02)
    pool.close()
    thread.join(30)
    assert told


def test_the_pool_is_closed_at_any_moment_of_waiting(pools: Any) -> None:
    """In a pure build, memory was unmapped while a thread looked at it: the process died."""
    url = pools().url
    held = limpet.open(url)
    lock = held.lock("l")
    lock.acquire()
    for attempt in range(30):
        pool = limpet.open(url)
        waits = (pool.queue("q", 4).get, pool.event("e").wait, pool.lock("l").acquire)
        with ThreadPoolExecutor() as threads:
            ended = [threads.submit(wait) for wait in waits]
            time.sleep(0.002 + attempt % 10 * 0.0003)
            pool.close()
        for future in ended:
            assert isinstance(future.exception(), limpet.PoolClosed)
    lock.release()
    held.close()


class OneWord:
    """An endpoint with one word; a hook runs after each `futex_wake`."""

    def __init__(self) -> None:
        self.word = self.asleep = 0
        self.hook: Callable[[], None] = lambda: None

    def load(self, addr: int) -> int:
        return self.word

    post_load = load

    def result(self, ticket: int) -> int:
        return ticket

    def wait(self) -> int:
        return 0

    def background(self, on: bool) -> bool:
        return False

    def cas(self, addr: int, expected: int, desired: int) -> int:
        before = self.word
        if before == expected:
            self.word = desired
        return before

    post_cas = cas

    def futex_wake(self, addr: int, count: int) -> int:
        woken = min(count, self.asleep)
        self.asleep -= woken
        self.hook()
        return woken


@pytest.mark.skipif(COMPILED, reason="a compiled one takes no other endpoint")
def test_who_falls_asleep_while_the_bits_are_cleared_is_woken_the_next_time() -> None:
    """It has looked since the change that no client was woken for."""
    endpoint = OneWord()
    waiting = Waiting(endpoint, 0, False)
    waiting.prepare()  # of a client that found an element and did not sleep

    def falls_asleep() -> None:
        endpoint.hook = lambda: None
        assert waiting.prepare() == endpoint.word
        endpoint.asleep += 1

    endpoint.hook = falls_asleep
    waiting.wake_one()
    assert endpoint.asleep == 1
    waiting.wake_one()
    assert endpoint.asleep == 0
    assert endpoint.word & WOKEN
    waiting.wake_one()
    assert waiting.prepare() == endpoint.word
    waiting.wake_one()
    assert not endpoint.word & (SLEEPERS | WOKEN)


@pytest.mark.exhaustive("every step")
def test_a_kill_while_a_channel_is_made_or_removed_leaves_nothing(pools: Any) -> None:
    pool = pools(nodes=1)
    pool.channels.open(AtomicVar, "first")
    fuse, running = 0, True

    def remove() -> None:
        with contextlib.suppress(KeyError):  # the one that made it died before it had its name
            pool.channels.remove("table")

    while running:
        fuse += 3 if COMPILED else 17
        made = dies_at(pool, fuse, lambda: pool.channels.open(SST, "table", participants=2))
        removed = dies_at(pool, fuse, remove)
        running = made or removed
        table = pool.channels.open(SST, "table", participants=2)
        assert table.refresh()
        nothing_leaked(pool)
        pool.channels.remove("table")
        assert list(pool.channels.catalogue) == [b"first"]
    assert fuse > 30
    nothing_leaked(pool)


@pytest.mark.skipif(not COMPILED, reason="a pure build cannot flush cache lines")
def test_channels_are_made_in_memory_that_is_coherent_only_in_part(pools: Any) -> None:
    pool = pools(coherent=False, coherent_bytes="1MiB")
    assert pool.channels.open(AtomicVar, "count").faa(3) == 0
    big = pool.channels.open(OwnedVar, "big", size=100)
    big.store(b"b" * 100)
    big.push().wait()
    assert big.load() == b"b" * 100


def test_a_channel_on_a_lost_node_says_which(pools: Any) -> None:
    pool = pools(nodes=2)
    counts = [pool.channels.open(AtomicVar, f"c{i}", node=i % 2) for i in range(2)]
    pool.fail_node(1)
    with pytest.raises(limpet.NodeFailed) as lost:
        counts[1].faa(1)
    assert lost.value.node == 1


def test_a_channel_with_a_part_on_a_node_that_is_replaced_leaves_the_new_memory_alone(
    pools: Any,
) -> None:
    pool = pools(nodes=2)
    other = pools.again(pool)
    regions = [
        one.channels.open(SharedRegion, "shared", size=8, participants=2) for one in (pool, other)
    ]
    lost = 1 - (regions[0].mark_address >> 40)
    for region in regions:
        region.write(lost, 0, b"old word").wait()
    at = regions[0].part(lost)
    pool.fail_node(lost)
    pool.replace_node(lost)
    other.nodes()
    for region in regions:
        with pytest.raises(limpet.NodeFailed) as error:
            region.write(lost, 0, b"new word")
        assert error.value.node == lost
    assert pool.endpoint.load(at) == 0


def test_a_channel_that_is_opened_while_a_node_is_replaced_leaves_the_new_memory_alone(
    pools: Any,
) -> None:
    """It has found its part, and has not come round to noting so."""
    pool = pools(nodes=2)
    region = pool.channels.open(SharedRegion, "shared", size=8, participants=2)
    lost = 1 - (region.mark_address >> 40)
    manager = pool.channels

    def find(*arguments: Any, **options: Any) -> Any:
        found = type(manager).region(manager, *arguments, **options)
        if not any(node["generation"] for node in pool.nodes()):
            pool.fail_node(lost)
            pool.replace_node(lost)
        return found

    manager.region = find
    with pytest.raises(limpet.NodeFailed):
        region.write(lost, 0, b"new word")


def test_what_was_on_a_node_that_is_replaced_is_not_begun_anew(pools: Any) -> None:
    """Nor is what names it taken for what lies there now, and freed."""
    pool = pools(nodes=2)
    names = [f"shared{number}" for number in range(6)]
    for name in names:
        pool.channels.open(SharedRegion, name, size=8, participants=2).part(1)
    pool.fail_node(1)
    pool.replace_node(1)
    late = pools.again(pool)
    for manager in (pool.channels, late.channels):
        for name in names:
            with pytest.raises(limpet.NodeFailed):
                manager.open(SharedRegion, name, size=8, participants=2).read(1, 0, 8)
    for number in range(8):
        count = late.channels.open(AtomicVar, f"count{number}", node=1)
        assert count.faa(1) == 0
        assert count.address >> 40 == 1
    catalogue = pool.channels.catalogue
    assert all(pool.heap.used(int(one)) for one in pool.exclusively(catalogue.references))


# ---- participants -------------------------------------------------------------------------------


class Roll(Channel):
    """Notes the participants that came and went."""

    def __init__(self, manager: Any, name: str, participants: int = 3) -> None:
        self.notes: list[tuple[str, int]] = []
        super().__init__(manager, name, kind="roll")
        self.take_part(participants)

    def on_join(self, row: int, ident: int) -> None:
        self.notes.append(("join", row))

    def on_leave(self, row: int, ident: int) -> None:
        self.notes.append(("leave", row))


class Unready(Roll):
    """Its row cannot be made ready, as that of one whose node is lost."""

    def joined(self) -> None:
        raise limpet.NodeFailed(1, "is lost")


def test_who_cannot_make_a_row_ready_takes_no_other(pools: Any) -> None:
    manager = pools().channels
    for _ in range(4):
        with pytest.raises(limpet.NodeFailed):
            Unready(manager, "roll")
    assert Roll(manager, "roll").own_row == 0


class Ousted(Roll):
    """It is taken for dead while it joins, and another one has its row."""

    rival = 0

    def joined(self) -> None:
        rival, Ousted.rival = Ousted.rival, 0
        if rival:
            self.endpoint.store(self.seats + 8 * self.own_row, rival)


def test_who_was_taken_for_dead_while_it_joined_leaves_its_row_to_the_other(pools: Any) -> None:
    pool = pools()
    Ousted.rival = pools.again(pool).client_id
    roll = Ousted(pool.channels, "roll")
    assert roll.own_row == 1
    assert list(roll.refresh().values())[1:] == [pool.client_id]


def test_callbacks_tell_who_joins_and_leaves(pools: Any) -> None:
    pool = pools()
    other = pools.again(pool)
    roll = Roll(pool.channels, "roll")
    assert roll.notes == [("join", 0)]
    theirs = Roll(other.channels, "roll")
    assert theirs.own_row == 1
    roll.refresh()
    theirs.resign()
    roll.refresh()
    assert roll.notes == [("join", 0), ("join", 1), ("leave", 1)]


def test_the_row_of_a_dead_participant_is_taken_over(pools: Any) -> None:
    pool = pools()
    roll = Roll(pool.channels, "roll", 2)
    gather(lambda: Roll(pool.channels, "roll", 2).own_row)
    idents = roll.refresh()
    assert sorted(idents) == [0, 1]
    assert [roll.lives(ident) for ident in idents.values()] == [True, False]
    other = pools.again(pool)
    assert Roll(other.channels, "roll", 2).own_row == 1
    with pytest.raises(limpet.ChannelFull, match="2 participants"):
        Roll(pools.again(pool).channels, "roll", 2)
    roll.refresh()
    assert roll.notes == [("join", 0), ("join", 1), ("leave", 1), ("join", 1)]


def test_a_forked_child_is_a_participant_of_its_own(pools: Any) -> None:
    pool = pools()
    table = pool.channels.open(SST, "table", participants=4)
    table.store_mine(5)
    table.push_broadcast()

    def child() -> list[int]:
        table.store_mine(6)
        table.push_broadcast()
        return [var.load() for var in table]

    assert gather(child) == [[5, 6]]
    assert [var.load() for var in table] == [5, 6]
    assert table[1].name == "table/ov1"


def test_a_newcomer_does_not_have_the_value_of_who_had_its_row(pools: Any) -> None:
    pool = pools()

    def child() -> None:
        table = pool.channels.open(SST, "table", participants=1)
        table.store_mine(9)
        table.push_broadcast()

    gather(child)
    assert [var.load() for var in pool.channels.open(SST, "table", participants=1)] == [0]


# ---- variables ----------------------------------------------------------------------------------


def test_an_owner_killed_in_a_push_leaves_the_old_value_or_the_new(pools: Any) -> None:
    pool = pools()
    var = pool.channels.open(OwnedVar, "var", size=40)
    values = [bytes([n]) * 40 for n in range(200)]
    seen = set()
    for step in range(1, 200):
        before = var.load()
        var.store(values[step])
        running = dies_at(pool, step, lambda: var.push())
        now = var.load()
        assert now in (before, values[step])
        seen.add(now == before)
        if not running:
            break
    assert seen == {True, False}
    assert not running


def test_a_reader_never_sees_a_torn_value(pools: Any) -> None:
    pool = pools()
    var = pool.channels.open(OwnedVar, "var", size=256)
    rounds = 3000 if COMPILED else 100

    def owner() -> None:
        for n in range(rounds):
            var.store(n.to_bytes(8, "little") * 32)
            var.push()

    def reader() -> int:
        last = -1
        while last < rounds - 1:
            value = var.load()
            assert value == value[:8] * 32
            number = int.from_bytes(value[:8], "little")
            assert number >= last or not any(value)
            last = max(number, last)
        return last

    assert gather(owner, reader)[1] == rounds - 1


def test_a_reader_is_not_held_up_by_an_owner_who_pushes_again_and_again(pools: Any) -> None:
    pool = pools()
    owner = pool.channels.open(OwnedVar, "var", size=256)
    reader = pools.keep(WatchedPool.open(pool.url)).channels.open(OwnedVar, "var", size=256)
    pushed = [0]

    def push(verb: str, address: int) -> None:
        if verb == "read":
            assert pushed[0] < 50, "it does not come to an end"
            pushed[0] += 1
            owner.store(pushed[0].to_bytes(256, "little"))
            owner.push()

    reader.endpoint.after = push
    for _ in range(5):
        before = pushed[0]
        assert before <= int.from_bytes(reader.load(), "little") <= pushed[0]


def test_a_variable_takes_only_its_size(pools: Any) -> None:
    manager = pools().channels
    word, large = manager.open(OwnedVar, "word"), manager.open(OwnedVar, "large", size=20)
    bad: list[tuple[Any, Any]] = [(word, b"12345678"), (word, -1), (word, 2**64), (large, 1)]
    for var, value in (*bad, (large, b"short"), (large, "s" * 20)):
        with pytest.raises(limpet.ParameterError, match=var.name):
            var.store(value)


def test_a_table_has_no_rows_but_its_own(pools: Any) -> None:
    manager = pools().channels
    table = manager.open(SST, "table", participants=2)
    for row in (-1, 2):
        with pytest.raises(limpet.ParameterError, match=f"no row {row}"):
            table[row]
    with pytest.raises(limpet.ParameterError, match="-64 bytes"):
        manager.open(SST, "less", participants=-1)
    with pytest.raises(limpet.ParameterError, match="-16 bytes"):
        manager.open(SharedRegion, "less", size=8, participants=-2)


def test_an_atomic_variable_wraps_around(pools: Any) -> None:
    var = pools().channels.open(AtomicVar, "var")
    assert var.faa(-1) == 0
    assert var.load() == 2**64 - 1
    assert var.cas(-1, 5) == 2**64 - 1
    assert var.swap(6) == 5
    assert var.load() == 6


def test_each_participant_has_its_part_of_a_shared_region(pools: Any) -> None:
    pool = pools(nodes=2)
    region = pool.channels.open(SharedRegion, "shared", size=64, participants=3)
    region.write(0, 0, b"zero").wait()
    region.write(1, 60, b"last").wait()
    assert region.read(0, 0, 4) == b"zero"
    assert region.read(1, 60, 4) == b"last"
    assert region.part(0) >> 40 != region.part(1) >> 40
    for row, offset, size in ((0, -1, 4), (0, 61, 4), (3, 0, 4), (0, 8, -1)):
        with pytest.raises(limpet.ParameterError, match="shared"):
            region.read(row, offset, size)
    with pytest.raises(limpet.ParameterError, match="72 are not within its 64"):
        region.write(0, 0, memoryview(bytes(72)).cast("Q"))


# ---- completion ---------------------------------------------------------------------------------


def test_keys_tell_when_operations_are_complete(pools: Any) -> None:
    pool = pools()
    table = pool.channels.open(SST, "table", participants=2)
    other = pool.channels.open(OwnedVar, "other")
    keys = [table.push_broadcast(), other.push()]
    both = keys[0] | keys[1]
    assert not any(key.query() for key in (*keys, both))
    before = pool.endpoint.counters()["round_trips"]
    both.wait()
    assert all(key.query() for key in (*keys, both))
    both.wait()
    assert pool.endpoint.counters()["round_trips"] == before + 1
    late = other.push()
    assert not (keys[0] | late).query()


@pytest.mark.parametrize(("scope", "trips"), [(PAIR, 0), (THREAD, 1), (GLOBAL, 1)])
def test_a_fence_waits_for_what_was_issued(pools: Any, scope: str, trips: int) -> None:
    pool = pools()
    var = pool.channels.open(OwnedVar, "var")
    key = var.push()
    before = pool.endpoint.counters()["round_trips"]
    for _ in range(2):
        pool.channels.fence(scope)
    assert pool.endpoint.counters()["round_trips"] == before + trips
    assert key.query() == bool(trips)
    with pytest.raises(limpet.ParameterError, match="scope"):
        pool.channels.fence("nearly")


def test_the_store_of_channels_is_limpets_own(pools: Any) -> None:
    pool = pools()
    for _ in range(2):  # before there is a channel, and afterwards
        with pytest.raises(limpet.ParameterError, match="is the store of channels"):
            pool.store("race", name=".channels")
        pool.counter("c").add(1)
    pool.store("race", name="s").put(b"k", b"v")
    assert [one["name"] for one in pool.stores()] == ["s"]
    assert [(one["name"], one["keys"]) for one in pool.stores(count=True)] == [("s", 1)]
    with pytest.raises(limpet.StoreError, match="take another name"):
        pool.rename("s", ".channels")
    for refused in (lambda: pool.rename(".channels", "t"), lambda: pool.drop(".channels")):
        with pytest.raises(limpet.StoreError, match=r"has no store '\.channels'"):
            refused()
    assert pool.counter("c").value == 2


def test_a_repr_takes_no_lock_that_threads_hold_while_they_wait_for_an_operation(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that opens a channel holds `opening`, and waits for operations of others."""
    pool = pools()
    channels = [pool.queue("q"), pool.queue("j", acks=True), pool.rwlock("rw"), pool.lock("l")]
    given, idle = managers.opening, []

    def opening() -> Any:
        idle.append(pool.endpoint.begin_idle())
        if idle[-1]:
            pool.endpoint.end()
        return given()

    monkeypatch.setattr(managers, "opening", opening)
    assert all(map(repr, channels))
    assert idle
    assert all(idle)
