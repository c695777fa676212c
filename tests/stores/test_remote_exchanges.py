"""A warm operation of a remote client is no message to the control segment, but for its journal.

The pin and the control words are looked at once in a quarter of a lease (shm/clients/lasting.py).
The client journal and the words of a store's own protocol beside it (`slots.OWN`, the log of a
transaction) lie in the control segment still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from limpet.fault.explore.sim_cluster import LEASE_US, SimulatedCluster
from limpet.shm.endpoint.layout import CONTROL_NODE, DROPS, EPOCH, HOLDS, NODE_SHIFT, PRESSURE
from limpet.shm.endpoint.simulated import WAIT, at_once
from limpet.shm.endpoint.slots import (
    CLIENT_JOURNAL,
    CLIENT_JOURNAL_PAIRS,
    ERA,
    OWN,
    PIN,
)

pytestmark = pytest.mark.either_build("the same lines on either build")

QUARTER_S = LEASE_US / 4e6
VALUE = b"v" * 40


class Client:
    """The one client of a cluster, and the control words that it looks at and changes."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.pool = cluster.clients[0].pool
        self.store = cluster.clients[0].store
        self.endpoint = cluster.clients[0].endpoint

    def control(self, work: Callable[[], object]) -> list[int]:
        """The addresses of the verbs of `work` on control words, without those of a journal."""
        trace = self.endpoint.trace = []
        work()
        self.endpoint.trace = []
        slot = self.pool.client.slot
        journal = range(slot + CLIENT_JOURNAL, slot + CLIENT_JOURNAL + CLIENT_JOURNAL_PAIRS.size)
        own = range(slot + OWN, slot + OWN + 16)
        return [
            addr
            for _, _, addr, _, _ in trace
            if addr >> NODE_SHIFT == CONTROL_NODE and addr not in journal and addr not in own
        ]

    def journal(self, work: Callable[[], object]) -> tuple[int, bool]:
        """In how many phases `work` writes to the client journal, and whether it sends a message
        for it in the background."""
        start = self.pool.client.slot + CLIENT_JOURNAL
        journal = range(start, start + CLIENT_JOURNAL_PAIRS.size)
        phases, sent = [False], []

        def turn(endpoint: Any, verb: str, addr: int, words: int) -> int:
            if verb == WAIT:
                phases.append(False)
            elif addr in journal and endpoint.phase.sending:
                sent.append(addr)
            elif addr in journal:
                phases[-1] = True
            return words

        self.endpoint.turn = turn
        work()
        self.endpoint.turn = at_once
        return sum(phases), bool(sent)

    def pass_time(self) -> None:
        """A quarter of a lease is over."""
        self.cluster.clock += QUARTER_S


@contextmanager
def client_of(kind: str) -> Iterator[Client]:
    with SimulatedCluster(kind, 1, value_size=40, remote=True) as cluster:
        cluster.reset()
        yield Client(cluster)


def is_free(client: Client, work: Callable[[], object], before: Any = None) -> None:
    """A few of the operations need memory, for which a client gives up its pin."""
    free = 0
    for _ in range(8):
        if before is not None:
            before()
        free += not client.control(work)
    assert free >= 4


@pytest.mark.parametrize("kind", ["race", "rtx-race", "sherman", "rtx-sherman"])
def test_a_warm_operation_looks_at_no_control_word(kind: str) -> None:
    with client_of(kind) as client:
        store = client.store

        def away() -> None:
            store.delete(b"c")

        def there() -> None:
            store.put(b"c", VALUE)

        there()
        is_free(client, lambda: store.get(b"a"))
        is_free(client, lambda: store.get(b"none"))
        is_free(client, lambda: store.update(b"a", VALUE))
        is_free(client, lambda: store.put(b"a", VALUE))
        is_free(client, there, away)
        is_free(client, away, there)


JOURNAL = {
    "race": ((2, True), (2, True), (1, True)),
    "rtx-race": ((2, True), (2, True), (1, True)),
    "sherman": ((1, True), (1, True), (1, True)),
    "rtx-sherman": ((1, True), (1, True), (1, True)),
    "fusee": ((2, True), (2, True), (1, True)),
    "swarm": ((2, True), (1, True), (2, True)),
}
"""Of an insert, an update and a delete: the phases in which the client journal has a message of its
own, and whether it has one in the background. A get has none. The update of swarm is the first one
of its key, which allocates a buffer."""


@pytest.mark.parametrize("kind", JOURNAL)
def test_messages_of_the_client_journal(kind: str) -> None:
    with client_of(kind) as client:
        store = client.store
        found = []
        for _ in range(8):
            store.put(b"c", VALUE)
            store.delete(b"c")
            works = (
                lambda: store.insert(b"c", VALUE),
                lambda: store.update(b"c", VALUE),
                lambda: store.delete(b"c"),
            )
            found.append(tuple(client.journal(work) for work in works))
        assert client.journal(lambda: store.get(b"a")) == (0, False)
        assert min(found) == JOURNAL[kind]


@pytest.mark.parametrize("kind", ["rtx-race", "rtx-sherman"])
def test_a_warm_transaction_looks_at_no_control_word(kind: str) -> None:
    with client_of(kind) as client:
        store = client.store

        def transfer(tx: Any) -> None:
            values = [tx.get(store, key) for key in (b"a", b"b")]
            tx.put(store, b"a", values[1])
            tx.put(store, b"b", values[0])

        is_free(client, lambda: client.pool.transaction(lambda tx: tx.get(store, b"a")))
        is_free(client, lambda: client.pool.transaction(transfer))


def test_warm_operations_of_channels_look_at_no_control_word() -> None:
    with client_of("race") as client:
        pool = client.pool
        queue = pool.queue("q", maxsize=7, codec="bytes")
        ring = pool.ring("r", size=4096, codec="bytes")
        lock, counter = pool.lock("l"), pool.counter("c")
        ring.subscribe()
        for work in (
            lambda: (queue.put(b"element"), queue.get()),
            lambda: (ring.send(b"message"), ring.receive()),
            lambda: (lock.acquire(), lock.release()),
            counter.add,
            lambda: counter.value,
        ):
            is_free(client, work)


@pytest.mark.parametrize("kind", ["race", "rtx-race", "sherman", "rtx-sherman"])
def test_looks_are_once_in_a_quarter_of_a_lease(kind: str) -> None:
    """The state word of its slot before and after the pin, the epoch, the pin, the drops; then the
    words that the operation needs. The pin before is taken back."""
    with client_of(kind) as client:
        store = client.store
        slot = client.pool.client.slot
        store.update(b"a", VALUE)
        client.pass_time()
        looks = client.control(lambda: store.update(b"a", VALUE))
        pinning = [slot, slot + PIN, slot, EPOCH, slot + PIN, DROPS, slot]
        assert looks[:7] == pinning
        assert set(looks[7:]) <= {PRESSURE, HOLDS}
        assert len(looks) <= 9
        is_free(client, lambda: store.get(b"a"))


def test_epoch_of_the_pin_is_that_of_the_last_look() -> None:
    """Memory that is unlinked waits for a remote client no longer than a quarter of a lease."""
    with client_of("race") as client:
        grace = client.cluster.setup_client.grace
        client.store.get(b"a")
        closed = grace.close_period()
        client.store.get(b"a")
        assert [laggard.epoch for laggard in grace.laggards(closed)] == [closed]
        client.pass_time()
        client.store.get(b"a")
        assert grace.laggards(closed) == []
        assert [laggard.epoch for laggard in grace.pinned()] == [closed + 1]
        client.pool.client.idle()
        client.endpoint.phase.do_sent()
        assert grace.pinned() == []


def test_an_operation_that_ends_with_an_error_gives_up_the_pin() -> None:
    with client_of("race") as client:
        slot = client.pool.client.slot
        client.store.get(b"a")
        load = client.cluster.setup_client.endpoint.load
        assert load(slot + PIN)

        def stumble() -> None:
            with client.pool.client:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            stumble()
        client.endpoint.phase.do_sent()
        assert load(slot + PIN) == 0
        assert load(slot + ERA) == 0
        assert client.store.get(b"a") is not None
        assert load(slot + PIN)
