"""Trap G9 put back: a sighting that is of a client and of a text, and that is never forgotten.

A client is met by chance, several times, each time in an operation of its own, as others meet it
that is stopped for a moment now and then. What ships takes it for one that works; the variant takes
two of its holds for one, and would have it killed. (Here all clients are of one process, which is
named instead.)
"""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.mutants.sightings import sightings_for_ever
from kit.puppets import Puppet, PuppetPool, verb_on, verb_on_address

import limpet
from limpet.stores.channels.lock.ticket_layout import HOLDER

pytestmark = pytest.mark.either_build("the same lines on either build")

MEETINGS: Final = 12
LEASES_BETWEEN: Final = 0.4
"""Between two meetings: all of them could be one wait."""
OLD: Final = b"o" * 8


class Meetings:
    """A pool, seen by its first client, which meets another one in an operation each time."""

    def __init__(self, pools: Any) -> None:
        self.pools = pools
        self.url = pools().url
        self.pool = pools.keep(PuppetPool.open(self.url))
        self.now = 0.0
        self.ident = 0
        """The other client's."""
        self.pool.membership.now = lambda: self.now

    def puppet(self, kind: str, **parameters: Any) -> Puppet:
        self.pool.store(kind, name="test", **parameters).put(b"k", OLD)
        busy = Puppet(self.pools, self.url, kind)
        self.ident = busy.pool.client_id
        return busy

    def pass_time(self, leases: float = LEASES_BETWEEN) -> None:
        self.now += leases * self.pool.membership.lease_s

    def suspects(self) -> list[int]:
        return [event["pid"] for event in self.pool.events() if event["kind"] != "recovered"]


def _meet_in_inserts_of_a_key_that_exists(meetings: Meetings) -> None:
    """Of `loco`: such an insert changes nothing but the lock."""
    busy = meetings.puppet("loco", capacity=100, locks=1)
    store = meetings.pool.store("loco", name="test")
    assert store.get(b"k") == OLD
    lock = store.locking.lock(0, 0)
    held_at = verb_on_address("cas", lock.address, 2)
    for _ in range(MEETINGS):
        assert not busy.begin(lambda: busy.store.insert(b"k", b"x"), held_at)
        assert meetings.pool.endpoint.load(lock.address) & HOLDER == meetings.ident
        look = functools.partial(store.locking.key_locks._look_after, lock, store.writer.journal.at)
        meetings.pool.exclusively(look)
        assert busy.go()
        assert busy.result is limpet.KeyExists
        held_at = verb_on_address("cas", lock.address, 2)
        meetings.pass_time()


def _meet_in_puts_to_all_places(meetings: Meetings) -> None:
    """Of a queue of two places; both producers are skipped by a consumer while they write."""
    producers = [meetings.puppet("race", capacity=64) for _ in range(2)]
    jobs = meetings.pool.queue("jobs", 2)
    theirs = [producer.pool.queue("jobs", 2) for producer in producers]
    for each in theirs:
        each.put("first")
        jobs.get()
    for _ in range(MEETINGS):
        for producer, each in zip(producers, theirs, strict=True):
            # Of a put, the write of the element: the slot is taken, and not READY.
            put = functools.partial(each.put, "slow")
            assert not producer.begin(put, verb_on("write_gather"))
        for _look in range(2):
            with pytest.raises(queue.Full):
                jobs.put("another", timeout=0.01)
            with pytest.raises(queue.Empty):
                jobs.get(timeout=0.01)
        with jobs.operation():
            laggard = jobs.ring.put(jobs.ready(), b"another").laggard
        assert laggard
        # As a put does that waits, however long this one had time for it.
        meetings.pool.membership.gone(laggard, f"all places of {jobs.title()}")
        for producer in producers:
            assert producer.go()
            jobs.get()
        meetings.pass_time()


Meet = Callable[[Meetings], None]
MEETS: Final[tuple[Meet, ...]] = (
    _meet_in_inserts_of_a_key_that_exists,
    _meet_in_puts_to_all_places,
)
every_meeting = pytest.mark.parametrize("meet", MEETS, ids=[one.__name__[1:] for one in MEETS])


@every_meeting
def test_trap_g9_two_holds_that_look_alike_are_not_one(meet: Meet, pools: Any) -> None:
    meetings = Meetings(pools)
    meet(meetings)
    assert meetings.suspects() == []


@every_meeting
def test_trap_g9_sighting_of_holder_and_text_is_caught(meet: Meet, pools: Any) -> None:
    meetings = Meetings(pools)
    with sightings_for_ever():
        meet(meetings)
    assert meetings.suspects()
