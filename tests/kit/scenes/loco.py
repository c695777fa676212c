"""Scenes of LOCO's kvstore: its traps, which variants put back."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Final

import limpet
from kit.mutants.loco import (
    ANEW_UNDER_LOCK,
    CLAIM_WITHOUT_LOCK,
    COUNTER_NOT_IN_CHECKSUM,
    COUNTER_WRAPS,
    KEY_TRUSTED,
    NOT_UP_TO_DATE,
    OTHER_TRACKER,
    OUT_OF_ORDER,
    SHORT_RING,
    TOLD_FIRST,
    VALID_FIRST,
)
from kit.puppets import Puppet, PuppetEndpoint, PuppetPool, Testbed, verb_on, verb_on_address
from limpet.shm.endpoint.fabric import hash64
from limpet.stores.loco.layout import LOCK_AT

OLD, NEW = b"old", b"new"


class HaltingEndpoint(PuppetEndpoint):
    """Its reads can be cut after the first word: `rest` is met there."""

    def read_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        super().read_words(addr, words, 1, start)
        if count > 1:
            if self.before is not None:
                self.before("rest", addr)
            super().read_words(addr + 8, words, count - 1, start + 1)
        return 0


class HaltingPool(PuppetPool):
    endpoint_class = HaltingEndpoint


class Halting(Puppet):
    """A puppet with such an endpoint."""

    pool_class = HaltingPool


class Clients(Testbed):
    """A store with few entries, puppets of it, and clients that die where they are told to."""

    kind = "loco"
    dies = True

    def __init__(self, pools: Any, puppets: int, **parameters: Any) -> None:
        super().__init__(pools, puppets, **{"capacity": 1, "locks": 1, "tracker": 64, **parameters})

    def keys(self, lock: int = 0) -> list[bytes]:
        """As many keys as there are entries, with that lock."""
        numbered = (b"%d" % number for number in itertools.count())
        locks = self.store.parameters.locks
        alike = (key for key in numbered if hash64(key) >> LOCK_AT & locks - 1 == lock)
        return list(itertools.islice(alike, self.store.parameters.entries))

    def fill(self, keys: list[bytes]) -> None:
        """Insert these keys."""
        for key in keys:
            self.store.insert(key, OLD)

    def tells(self, key: bytes) -> Any:
        """Where a change of this key is announced: the store that counts the message."""
        index = self.store.lookup.indexes[0]
        return verb_on_address("store", index.trackers.at(index.lock_of(hash64(key))))

    def address(self, key: bytes) -> int:
        """Address of the entry of a key that is there."""
        assert self.store.get(key) is not None
        return int(self.store.found.entries.address(self.store.found.entry))


CLAIMS: Final = 2
"""Of an insert without conflict, the CAS that claims an entry: after that of the lock."""


def _index_is_there_before(pools: Any) -> None:
    """A key was looked up in vain, and is inserted by another client."""
    clients = Clients(pools, 1, locks=2)
    (reader,) = clients.puppets
    assert reader.store.get(b"k") is None
    clients.store.insert(b"k", NEW)
    assert reader.store.get(b"k") == NEW


def _insert_stands_still_before_it_is_told(pools: Any) -> None:
    """A newcomer sees what is in the array; a client that has an index, what it was told."""
    clients = Clients(pools, 2)
    inserter, reader = clients.puppets
    assert reader.store.get(b"k") is None
    assert not inserter.begin(lambda: inserter.store.insert(b"k", NEW), clients.tells(b"k"))
    first = clients.newcomer().store.get(b"k")
    second = reader.store.get(b"k")
    assert inserter.go()
    assert first in (None, second), "a key was there, and then missing"
    clients.sound()


def _insert_stands_still_before_it_is_written(pools: Any) -> None:
    """A client whose index begins meanwhile finds nothing, and is told when there is one."""
    clients = Clients(pools, 2)
    inserter, reader = clients.puppets
    is_inserted = inserter.begin(
        lambda: inserter.store.insert(b"k", NEW), verb_on("write_words", 0)
    )
    assert not is_inserted
    assert reader.store.get(b"k") is None
    assert inserter.go()
    assert reader.store.get(b"k") == NEW
    clients.sound()


def _entry_gets_another_key_under_a_reader(pools: Any) -> None:
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    key, *others = clients.keys()
    clients.fill([key, *others])
    assert reader.store.get(key) == OLD
    entry = clients.address(key)
    reader.begin(lambda: reader.store.get(key), verb_on_address("read_words", entry))
    clients.store.delete(key)
    clients.store.insert(b"k", NEW)
    assert clients.address(b"k") == entry
    assert reader.go()
    assert reader.result is None, "the value is that of another key"
    clients.sound()


def _entry_begins_another_life_while_it_is_read(pools: Any) -> None:
    """It was valid, and has two lives more; in the second one it has the key again, not valid."""
    clients = Clients(pools, 1)
    (inserter,) = clients.puppets
    reader = Halting(pools, clients.url, "loco")
    key, *others = clients.keys()
    clients.fill([key, *others])
    assert reader.store.get(key) == OLD
    entry = clients.address(key)
    assert not reader.begin(lambda: reader.store.get(key), verb_on_address("rest", entry))
    clients.store.delete(key)
    clients.store.insert(b"k", NEW)
    assert clients.address(b"k") == entry
    clients.store.delete(b"k")
    is_inserted = inserter.begin(lambda: inserter.store.insert(key, NEW), clients.tells(key))
    assert not is_inserted
    assert reader.go()
    inserter.abandon()
    assert clients.store.get(key) is None
    assert reader.result is None, "the value is one that was never inserted"
    clients.sound()


def _two_mean_to_claim_one_entry(pools: Any) -> None:
    """A client dies before its claim; the repairing client must tell the other's claim from it."""
    clients = Clients(pools, 1, locks=2)
    (inserter,) = clients.puppets
    beside, *_ = clients.keys(1)
    first, second, *others = [*clients.keys(0), b"last of all"]
    clients.fill(others)
    clients.die(verb_on("cas", 0, CLAIMS), lambda store: store.insert(first, NEW))
    is_inserted = inserter.begin(lambda: inserter.store.insert(beside, NEW), clients.tells(beside))
    assert not is_inserted
    inserted = False
    with contextlib.suppress(limpet.StoreFull):
        clients.store.insert(second, NEW)
        inserted = True
    assert inserter.go()
    assert clients.store.get(beside) == NEW
    assert clients.store.get(second) == (NEW if inserted else None)
    clients.sound()


def _entry_gets_a_key_of_another_lock(pools: Any) -> None:
    """A client hears of the later key first."""
    clients = Clients(pools, 1, locks=2)
    (reader,) = clients.puppets
    first, *_ = clients.keys(0)
    *others, second = clients.keys(1)
    clients.fill(others)
    assert reader.store.get(others[0]) == OLD
    clients.fill([first])
    entry = clients.address(first)
    clients.store.delete(first)
    clients.fill([second])
    assert clients.address(second) == entry
    assert reader.store.get(second) == OLD
    assert reader.store.get(first) is None
    assert reader.store.get(second) == OLD, "an older message took the entry away"
    clients.sound()


def _a_client_comes_late(pools: Any) -> None:
    pool = pools(node_size="1MiB")
    store = pool.store("loco", name="test", capacity=400, value_size=8, locks=1)
    late = pools.again(pool).store("loco", name="test")
    assert late.get(b"k") is None
    before = late.stats()["background"]["reads"]
    for number in range(80):
        store.insert(b"%d" % number, NEW)
        store.delete(b"%d" % number)
    assert late.get(b"k") is None
    reads = late.stats()["background"]["reads"] - before
    assert reads <= 160 // 8 + 9, "it has looked at the whole table"


def _a_late_client_inserts(pools: Any) -> None:
    clients = Clients(pools, 1, tracker=4)
    (late,) = clients.puppets
    assert late.store.get(b"k") is None
    for key in clients.keys()[:4]:
        clients.store.insert(key, OLD)
        clients.store.delete(key)
    first = clients.store.found.entries.address(0)
    assert not late.begin(
        lambda: late.store.insert(b"k", NEW), verb_on_address("read_words", first)
    )
    assert not clients.store.locking.lock(0, 0).locked(), "others wait for a late client"
    assert late.go()
    assert clients.store.get(b"k") == NEW
    clients.sound()


STEPS: Final = (
    (SHORT_RING, _a_client_comes_late),
    (ANEW_UNDER_LOCK, _a_late_client_inserts),
    (NOT_UP_TO_DATE, _index_is_there_before),
    (OTHER_TRACKER, _index_is_there_before),
    (VALID_FIRST, _insert_stands_still_before_it_is_told),
    (TOLD_FIRST, _insert_stands_still_before_it_is_written),
    (KEY_TRUSTED, _entry_gets_another_key_under_a_reader),
    (OUT_OF_ORDER, _entry_gets_a_key_of_another_lock),
    (COUNTER_WRAPS, _entry_begins_another_life_while_it_is_read),
    (COUNTER_NOT_IN_CHECKSUM, _entry_begins_another_life_while_it_is_read),
    (CLAIM_WITHOUT_LOCK, _two_mean_to_claim_one_entry),
)
