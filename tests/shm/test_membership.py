"""Clients: ids, death of every sort, fencing, leaving, leases between hosts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.clients import churn, ids, slot_of
from kit.processes import child, gather
from kit.waiting import until

import limpet
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import EVENT_COUNT, SLOTS_USED
from limpet.shm.endpoint.slots import INCARNATION_BITS


def dead_client(pool: limpet.Pool, store: Any = None) -> int:
    """The id of a client that has ended without leaving."""

    def work() -> int:
        if store is not None:
            store.put(b"of the dead", b"value")
        return pool.client_id

    return int(gather(work)[0])


def serving(pool: limpet.Pool, store: Any = None) -> Any:
    """A child that joins, pins, and works on request."""
    return child(
        join=lambda: pool.client_id,
        pin=lambda: pool.client.enter(),
        unpin=lambda: pool.client.leave(),
        put=lambda: store.put(b"of the child", b"value"),
        get=lambda: store.get(b"of the child"),
        close=lambda: pool.close(),
    )


def without_life_lock(pool: limpet.Pool, ident: int) -> None:
    """Have the others judge that client as where there are no life locks: by pid and start time."""
    pool.endpoint.store(slot_of(ident) + slots.LOCKED, 0)


# ---- identity ------------------------------------------------------------------------------------


def test_ids_never_repeat_although_slots_do(pools: Any) -> None:
    pool = pools()
    seen = [dead_client(pool) for _ in range(10)]
    for _ in range(10):
        with limpet.open(pool.url) as again:
            seen.append(again.client_id)
    assert len(set(seen)) == 20
    assert len({ident >> INCARNATION_BITS for ident in seen}) <= 3


def test_children_at_the_same_time_have_ids_of_their_own(pools: Any) -> None:
    pool = pools()
    found = gather(*[lambda: pool.client_id] * 12)
    assert len({*found, pool.client_id}) == 13


def test_reused_pid_does_not_look_alive(pools: Any) -> None:
    pool = pools()
    with serving(pool) as other:
        ident = other.do("join")
        without_life_lock(pool, ident)
        started = slot_of(ident) + slots.STARTED
        pool.endpoint.store(started, pool.endpoint.load(started) - 1)
        assert [c["state"] for c in pool.clients() if c["client"] == ident] == ["dead"]
        assert pool.recover()["clients"] == [ident]
        assert ident not in ids(pool)


def test_process_declared_dead_can_do_nothing_more(pools: Any) -> None:
    pool = pools(multi_host=True)
    store = pool.store("race", capacity=64)
    with serving(pool, store) as other:
        ident = other.do("join")
        without_life_lock(pool, ident)
        pool.endpoint.store(slot_of(ident) + slots.STARTED, 1)
        pool.recover()
        with pytest.raises(RuntimeError, match="no longer a client of the pool"):
            other.do("put")
    assert store.get(b"of the child") is None


def test_zombie_is_dead(pools: Any) -> None:
    pool = pools()
    with serving(pool) as other:
        ident = other.do("join")
        os.kill(other.pid, signal.SIGKILL)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert pool.recover()["clients"] == [ident]


# ---- noticing death ------------------------------------------------------------------------------


def test_dead_client_is_recovered_by_who_joins(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    ident = dead_client(pool, store)
    assert ident in ids(pool)
    pools.again(pool)
    assert ident not in ids(pool)
    assert [(e["kind"], e["subject"]) for e in pool.events()] == [("recovered", ident)]


def test_dead_client_is_recovered_by_who_needs_memory(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    ident = dead_client(pool, store)
    time.sleep(0.02)
    store.put(b"k", b"a first object of this client needs a block")
    assert ident not in ids(pool)
    assert pool.audit()["leaked"] == 0


def test_watch_finds_the_dead_within_milliseconds(pools: Any) -> None:
    pool = pools()

    def takes_s() -> float:
        with serving(pool) as other:
            other.do("join")
            watch = pool.watch()
            start = time.monotonic()
            os.kill(other.pid, signal.SIGKILL)
            next(watch)
            return time.monotonic() - start

    # 10 ms are promised; other programs of the machine may take more from us, but not each time
    assert any(takes_s() < 0.1 for _ in range(100))


def die_joining(pool: limpet.Pool, fuse: int) -> None:
    """Have a newcomer die at that step of its joining, or after it."""

    def join() -> None:
        pool.endpoint.fuse = fuse
        pool.client.begin()
        os._exit(0)

    with child(join=join) as other:
        other.send("join")
        assert other.reap() in (0, -signal.SIGKILL)


@pytest.mark.parametrize("fuse", [1, 2, 3, 30, 66, 67, 68, 69, 80])
def test_newcomer_that_dies_half_way_leaves_a_free_slot(pools: Any, fuse: int) -> None:
    pool = pools(clients=4)
    for _ in range(6):
        die_joining(pool, fuse)
    pool.recover()
    assert ids(pool) == {pool.client_id}
    with limpet.open(pool.url) as second, limpet.open(pool.url) as third:
        assert ids(pool) == {pool.client_id, second.client_id, third.client_id}


@pytest.mark.parametrize("fuse", [3, 30, 68, 69, 70, 80])
def test_pool_full_of_the_dead_can_be_joined(pools: Any, fuse: int) -> None:
    """Also when a recovering client died in the slot that is reserved for that."""
    pool = pools(clients=4)
    store = pool.store("race", capacity=64)
    with serving(pool, store) as one, serving(pool, store) as two:
        for other in (one, two):
            other.do("join")
            other.do("put")
            other.kill()
    for _ in range(6):
        die_joining(pool, fuse)
    gather(*[lambda: pool.client_id] * 2)
    pool.recover()
    assert ids(pool) == {pool.client_id}
    assert pool.audit()["leaked"] == 0


def test_slots_that_are_looked_at_include_every_one_taken(pools: Any) -> None:
    pool = pools(clients=8)
    die_joining(pool, 3)
    # The mark of used slots was raised, the slot was taken, and then the process was gone.
    assert pool.endpoint.load(SLOTS_USED) == 2
    assert [state for _, state in _states(pool)] == [slots.LIVE, slots.JOINING]
    pool.recover()
    assert [state for _, state in _states(pool)] == [slots.LIVE]


def _states(pool: limpet.Pool) -> list[tuple[int, int]]:
    return [(slot, word >> 60) for slot, word in pool.membership.occupied()]


# ---- room ----------------------------------------------------------------------------------------


def test_full_pool_says_so_and_room_is_found_when_clients_die_or_leave(pools: Any) -> None:
    pool = pools(clients=3)
    second = pools.again(pool)
    name = Path("/proc/self/comm").read_text().strip()
    told = rf"all 2 client slots .* pid {os.getpid()} \({re.escape(name)}\) with 2 of them \(it"
    with pytest.raises(limpet.ClientError, match=told):
        limpet.open(pool.url)
    second.close()
    with serving(pool) as other:
        other.do("join")
        with pytest.raises(limpet.ClientError, match=rf"\W{other.pid} \(.* more clients"):
            limpet.open(pool.url)
        other.kill()
        with limpet.open(pool.url) as third:
            assert ids(pool) == {pool.client_id, third.client_id}


def test_close_gives_back_slot_and_blocks(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    store.put(b"k", b"v")  # the subtable stays
    store.delete(b"k")
    free = pool.audit()["free"]
    with limpet.open(pool.url) as other:
        kv = other.store("race")
        kv.put(b"k", b"v")
        kv.delete(b"k")
        kv.put(b"large", bytes(3 * pool.layout.block_size))
        kv.delete(b"large")
        blocks = [c["blocks"] for c in pool.clients() if c["client"] == other.client_id]
        assert blocks[0] >= 2
    assert ids(pool) == {pool.client_id}
    audit = pool.audit()
    assert (audit["leaked"], audit["held"], audit["free"]) == (0, 0, free)
    assert store.get(b"k") is None


def test_others_work_on_while_clients_come_and_go(pools: Any) -> None:
    pool = pools(node_size="4MiB")
    store = pool.store("race", capacity=200)
    rounds = 30 if BUILD == "compiled" else 5

    def work(number: int) -> None:
        for turn in range(rounds):
            with limpet.open(pool.url) as mine:
                kv = mine.store("race")
                for key in range(20):
                    kv.put(b"%d-%d" % (number, key), b"%d" % turn)

    gather(*[lambda n=n: work(n) for n in range(3)])
    assert len(store) == 60
    assert store.get(b"2-19") == b"%d" % (rounds - 1)
    assert ids(pool) == {pool.client_id}
    store.check()
    assert pool.audit()["leaked"] == 0


# ---- fencing -------------------------------------------------------------------------------------


def test_stopped_client_is_killed_when_memory_runs_out(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=64)
    with serving(pool, store) as other:
        ident = other.do("join")
        other.do("pin")
        other.stop()
        churn(pool, store)
        assert other.reap() == -signal.SIGKILL
    kinds = [(event["kind"], event["subject"], event["pid"]) for event in pool.events()]
    assert ("fenced", ident, other.pid) in kinds
    assert ids(pool) == {pool.client_id}
    store.check()
    assert pool.audit()["leaked"] == 0


def test_stopped_client_is_left_alone_while_nobody_needs_what_it_holds(pools: Any) -> None:
    pool = pools(lease=0.001)
    store = pool.store("race", capacity=64)
    with serving(pool, store) as other:
        other.do("join")
        other.do("pin")
        other.stop()
        time.sleep(0.02)
        for number in range(100):
            store.put(b"k", b"%d" % number)
        pool.recover()
        pool.audit()
        other.wake()
        other.do("unpin")
        assert other.do("get") is None
    assert pool.events() == []


def test_wait_policy_names_the_stopped_client_and_kills_nobody(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=0.02, fence="wait")
    store = pool.store("race", capacity=64)
    store.put(b"k", b"v")
    with serving(pool, store) as other:
        ident = other.do("join")
        other.do("pin")
        other.stop()
        with pytest.raises(limpet.StoreFull, match=str(other.pid)):
            churn(pool, store)
        assert [(e["kind"], e["subject"]) for e in pool.events()] == [("suspended", ident)]
        assert store.get(b"k") == b"v"
        other.wake()
        other.do("unpin")
        churn(pool, store)
        assert other.do("get") is None
    pool.recover()
    store.check()
    audit = pool.audit()
    assert (audit["leaked"], audit["held"]) == (0, 0)


def test_own_second_handle_is_never_fenced(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=64)
    other = pools.again(pool)
    other.client.enter()
    try:
        with pytest.raises(limpet.StoreFull, match=str(os.getpid())):
            churn(pool, store)
    finally:
        other.client.leave()
    churn(pool, store)
    assert [event["kind"] for event in pool.events()] == ["suspended"]


def test_client_that_gets_on_between_judgement_and_kill_lives(
    pools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    membership = pool.membership
    with serving(pool, store) as other:
        slot, word = membership.place(other.do("join"))
        seen = membership.activity(slot)
        other.do("pin")
        assert not membership.end(slot, word, "what it had", seen)
        assert caplog.records == []
        other.do("unpin")
        assert other.do("get") is None
        assert pool.events() == []
        other.stop()
        assert membership.end(slot, word, "what it has", membership.activity(slot))
        assert other.reap() == -signal.SIGKILL
    assert ["killed process" in message for message in caplog.messages] == [True]
    assert [event["kind"] for event in pool.events()] == ["fenced"]


def test_client_that_works_is_not_fenced_however_slow(pools: Any) -> None:
    """Its pin moves: it never stands still for a lease."""

    def slow(pool: limpet.Pool) -> None:
        pool.client.leave()
        pool.client.enter()

    assert not_fenced_working(pools, slow)


def test_client_in_one_long_operation_is_not_fenced_while_it_shows_progress(pools: Any) -> None:
    """Like the leader that fills a large node."""
    assert not_fenced_working(pools, lambda pool: pool.membership.progress())


def not_fenced_working(pools: Any, turn: Callable[[limpet.Pool], None]) -> bool:
    """Whether a client that makes turns for five leases is left alone by one that needs what it
    holds. On a busy machine a process stands still for longer than a short lease."""
    return any(not fenced_working(pools, turn, lease_s) for lease_s in (0.2, 0.8, 3.2))


def fenced_working(
    pools: Any, turn: Callable[[limpet.Pool], None], lease_s: float
) -> list[dict[str, Any]]:
    pool = pools(node_size="512KiB", lease=lease_s)
    store = pool.store("race", capacity=64)

    def go_on() -> None:
        end = time.monotonic() + 5 * lease_s
        while time.monotonic() < end:
            time.sleep(lease_s / 20)
            turn(pool)
        pool.client.leave()

    with child(begin=lambda: pool.client.enter(), go_on=go_on) as other:
        other.do("begin")
        other.send("go_on")
        churn(pool, store)
        with contextlib.suppress(EOFError):
            other.answer()
    return [event for event in pool.events() if event["kind"] == "fenced"]


# ---- hosts ---------------------------------------------------------------------------------------


def rewrite_host(pool: limpet.Pool, ident: int, word: int, by: int = 1) -> None:
    """Let a client look as if it were on another host."""
    at = slot_of(ident) + word
    pool.endpoint.store(at, pool.endpoint.load(at) ^ by)


def test_second_pid_namespace_is_refused_without_multi_host(pools: Any) -> None:
    pool = pools()
    with serving(pool) as other:
        ident = other.do("join")
        rewrite_host(pool, ident, slots.NAMESPACE)
        with pytest.raises(limpet.ClientError, match=f"process {other.pid} of another container"):
            limpet.open(pool.url)
        assert ids(pool) == {pool.client_id, ident}


def test_client_from_before_a_reboot_is_dead(pools: Any) -> None:
    pool = pools()
    with serving(pool) as other:
        ident = other.do("join")
        rewrite_host(pool, ident, slots.BOOT)
        assert pool.recover()["clients"] == [ident]


LEASE_S = 0.2


@pytest.mark.parametrize("word", [slots.BOOT, slots.NAMESPACE])
def test_client_of_another_host_lives_while_its_lease_is_renewed(pools: Any, word: int) -> None:
    pool = pools(multi_host=True, lease=10 * LEASE_S)
    with serving(pool) as other:
        ident = other.do("join")
        rewrite_host(pool, ident, word)
        beat = slot_of(ident) + slots.BEAT
        for _ in range(8):  # it is renewed some times in a lease
            before = pool.endpoint.load(beat)
            until(lambda before=before: pool.endpoint.load(beat) != before)
            assert pool.recover()["clients"] == []
        hosts = {client["client"]: client["host"] for client in pool.clients()}
        assert hosts == {pool.client_id: "local", ident: "other"}
        assert other.do("close") is None
        assert ids(pool) == {pool.client_id}


def test_client_of_another_host_is_suspected_then_asked_for_then_recovered(pools: Any) -> None:
    pool = pools(multi_host=True, lease=LEASE_S)
    store = pool.store("race", capacity=64)
    with serving(pool, store) as other:
        ident = other.do("join")
        other.do("pin")
        rewrite_host(pool, ident, slots.BOOT)
        fence = slot_of(ident) + slots.FENCE
        other.stop()
        start = time.monotonic()
        asked = None
        while not (found := pool.recover()["clients"]):
            if asked is None and pool.endpoint.load(fence) == pool.client_id:
                asked = time.monotonic() - start
            time.sleep(LEASE_S / 50)
        recovered = time.monotonic() - start
        assert found == [ident]
        assert asked is not None
        assert asked >= LEASE_S * 0.9
        assert recovered >= asked + LEASE_S * 0.9
        beat = slot_of(ident) + slots.BEAT
        other.wake()
        for action in ("unpin", "put"):
            with pytest.raises(RuntimeError, match="no longer a client of the pool"):
                other.do(action)
        # Its slot may be another client's by now: it does not renew that one's lease.
        pool.endpoint.store(beat, 77)
        time.sleep(LEASE_S)
        assert pool.endpoint.load(beat) == 77
    assert store.get(b"of the child") is None


def test_host_ends_its_own_client_when_another_host_asks(pools: Any) -> None:
    pool = pools(multi_host=True, lease=LEASE_S)
    with serving(pool) as other:
        ident = other.do("join")
        other.stop()
        pool.endpoint.store(slot_of(ident) + slots.FENCE, 12345)
        assert other.reap() == -signal.SIGKILL
        assert pool.recover()["clients"] == [ident]


def test_heart_ends_with_the_pool(pools: Any) -> None:
    pool = pools(multi_host=True, lease=LEASE_S)
    assert [t.name for t in threading.enumerate()].count("limpet-lease") == 1
    pool.close()
    assert "limpet-lease" not in [t.name for t in threading.enumerate()]


# ---- the log -------------------------------------------------------------------------------------


def test_ring_of_events_keeps_the_last_ones_in_order(pools: Any) -> None:
    pool = pools()
    for number in range(300):
        pool.exclusively(lambda number=number: pool.membership.note(1, number, 5))
    events = pool.events()
    assert [event["subject"] for event in events] == list(range(172, 300))
    assert {(event["kind"], event["pid"], event["by"]) for event in events} == {
        ("recovered", 5, pool.client_id)
    }


def test_events_are_noted_however_many_there_were(pools: Any) -> None:
    pool = pools()
    for count in (2**64 - 2, 2**64 - 1):
        pool.endpoint.store(EVENT_COUNT, count)
        pool.mark_failed(0)
        assert pool.endpoint.load(EVENT_COUNT) == count + 1 & 2**64 - 1
        pool.replace_node(0)
        assert all(event["kind"] != "?" for event in pool.events())


def test_torn_event_is_passed_over(pools: Any) -> None:
    pool = pools()

    def write() -> None:
        pool.exclusively(lambda: pool.membership.note(1, 1))
        pool.endpoint.fuse = 5
        pool.exclusively(lambda: pool.membership.note(1, 2))

    with child(write=write, join=lambda: pool.client_id) as other:
        other.do("join")
        other.send("write")
        assert other.reap() == -signal.SIGKILL
    pool.exclusively(lambda: pool.membership.note(1, 3))
    assert [event["subject"] for event in pool.events()] == [1, 3]
