"""Scenes of RCuckoo: its traps, which variants put back."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Final
from unittest import mock

import limpet
from kit.cuckoo import RING, Clients, path_scene, some
from kit.mutants.rcuckoo import (
    ANYBODYS_LOCK,
    BUSY_IS_SUSPECT,
    BY_THE_PAPER,
    LEASE_IS_SUSPECT,
    LOCKS_FIRST,
    MISSED,
    NO_SUM,
    NOT_READ_AGAIN,
    ONE_ROW,
    PATH_LOCKED,
    PATH_OF_BEFORE,
    PATH_WITHOUT_LOCKS,
    SPINS,
    TORN_IN_HEADER,
    TORN_ONCE,
    TWICE_ONCE,
    UNFENCED,
    UNPINNED,
    VERSION_WRAPS,
    places_of_variant,
)
from kit.puppets import Puppet, Where, verb_on, verb_on_address
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.fault_profile import FAULT_PROFILES, FaultProfile
from limpet.fault.matrix.operations import BYSTANDER, OLD, OPERATIONS
from limpet.shm.endpoint.fabric import hash64
from limpet.stores.rcuckoo.layout import HEAD_WORDS, SLOTS, TAGS

LEASES_BETWEEN = 0.6
"""Between two meetings: they could be of one wait."""
NEW, OTHER = b"new", b"other"

INSERT: Final = dataclasses.replace(
    OPERATIONS["insert"], warm=lambda pool, kv: kv.put(BYSTANDER, OLD)
)
UPDATE: Final = OPERATIONS["update, same size"]


def of_path() -> tuple[str, ...]:
    """The matrix's verdicts on an insert that moves two entries."""
    profile = FaultProfile(dict(RING), matrix_nodes=1, matrix_capacity=64)
    with mock.patch.dict(FAULT_PROFILES, rcuckoo=profile):
        return Matrix("rcuckoo", None, path_scene(2)).killed(INSERT).failures


def of_update() -> tuple[str, ...]:
    return Matrix("rcuckoo").killed(UPDATE).failures


def of_two_deaths() -> tuple[str, ...]:
    return Matrix("rcuckoo", 24).killed_twice(UPDATE).failures


def tired(clients: Clients) -> Where:
    """The second attempt of a client that was refused, or its tenth CAS on a lock."""
    again, tenth = clients.tries(2), clients.takes(10)

    def there(verb: str, address: int) -> bool:
        return any([again(verb, address), tenth(verb, address)])

    return there


def _keys_have_two_rows(pools: Any) -> None:
    """Nine keys with the same first row, for which the variant has no other one."""
    store = pools().store("rcuckoo", name="test", capacity=64)
    parameters = store.parameters
    places = places_of_variant(BY_THE_PAPER, parameters.rows, parameters.locality)

    def is_alike(key: bytes) -> bool:
        places.place(hash64(key))
        return bool(places.first == places.second == 3)

    keys = list(itertools.islice(filter(is_alike, (b"%d" % n for n in itertools.count())), 9))
    try:
        for key in keys:
            store.put(key, OLD)
    except limpet.StoreFull as error:
        raise AssertionError("nine keys in a store for 64") from error
    assert {store.get(key) for key in keys} == {OLD}
    store.check()


def _moved(pools: Any, writes: int, **parameters: Any) -> None:
    """A key moves from the row that is read later to the one that was read first.

    `writes` of others follow there.
    """
    clients = Clients(pools, 1, locality=0, capacity=64, **parameters)
    (reader,) = clients.puppets
    store = clients.store
    first, second, third = 2, 5, 10
    there = [clients.key(first, number=number) for number in range(SLOTS)]
    moving = clients.key(first, other=second)
    if moving in there:
        moving = next(key for key in some(store, 20, first, second) if key not in there)
        store.put(moving, OLD)
    for number in range(SLOTS - 1):
        clients.key(second, number=number)
    for number in range(SLOTS):
        clients.key(third, number=number)
    mover = next(key for key in some(store, 20, second, third) if key not in store)
    store.delete(there[0])
    reader.begin(lambda: reader.store.get(moving), verb_on("read_words", number=2))
    store.insert(mover, NEW)
    for _ in range(writes):
        store.update(there[1], NEW)
    assert reader.go()
    assert reader.result == OLD
    assert store.get(moving) == OLD
    clients.sound()


def _key_moves_under_a_reader(pools: Any) -> None:
    _moved(pools, 0)


def _key_moves_under_a_reader_of_copies(pools: Any) -> None:
    _moved(pools, 0, sums=True)


def _row_is_written_256_times(pools: Any) -> None:
    _moved(pools, 255)


def _row_is_written_after_its_header_line_was_read(pools: Any) -> None:
    """The reader knows sizes of the value from before, and then looks at the entry."""
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    key = clients.key(3)
    assert not reader.begin(lambda: reader.store.get(key), verb_on("read_words", number=3))
    clients.store.update(key, b"longer")
    assert reader.go()
    assert reader.result == b"longer", "it returns what nobody wrote"
    clients.sound()


def _row_is_read_as_a_whole_while_it_is_written(pools: Any) -> None:
    """The entry was written, and not the header, with the sizes of the value from before."""
    clients = Clients(pools, 2, sums=True)
    writer, reader = clients.puppets
    key = clients.key(3)
    assert not writer.begin(lambda: writer.store.update(key, b"longer"), clients.writes(2))
    # by then it has read the rows once, by one read or two
    if not reader.begin(lambda: reader.store.get(key), verb_on("read_words", number=3)):
        assert writer.go()
        assert reader.go()
    assert reader.result in (OLD, b"longer"), "it returns what nobody wrote"
    clients.sound()


def nobody_suspected(clients: Clients) -> None:
    kinds = {event["kind"] for event in clients.pool.events()}
    assert kinds <= {"recovered"}, "a client at work is taken for one that stands still"


def wait_for(clients: Clients, row: int) -> None:
    """Have the client of the testbed wait for the lock of a row."""
    clients.store.lookup.enter_table(clients.table)
    clients.store.lookup.locks.wait_for(row)


def _busy_client_is_met_twice(pools: Any) -> None:
    """A waiter finds it with a lock each time, and not the same operation."""
    clients = Clients(pools, 1)
    (busy,) = clients.puppets
    key = clients.key(3)
    now = [0.0]
    clients.pool.membership.now = lambda: now[0]
    for _ in range(3):
        assert not busy.begin(lambda: busy.store.update(key, NEW), clients.holds())
        wait_for(clients, 3)
        clients.store.recover_holder()
        assert busy.go()
        now[0] += LEASES_BETWEEN * clients.pool.membership.lease_s
    nobody_suspected(clients)
    clients.sound()


def _repairer_is_met_twice(pools: Any) -> None:
    """Each time with the lease, but not at the same repair."""
    clients = Clients(pools, 1)
    (repairer,) = clients.puppets
    key = clients.key(3)
    now = [0.0]
    clients.pool.membership.now = lambda: now[0]

    def refused(verb: str, address: int) -> None:
        if verb == "cas" and address < clients.locks.start:
            tries.append(address)
            if len(tries) == 3:
                clients.pool.endpoint.before = None
                assert repairer.go()

    for _ in range(3):
        clients.die(clients.holds(), lambda store: store.update(key, NEW))
        assert not repairer.begin(repairer.pool.recover, clients.takes())
        tries: list[int] = []
        wait_for(clients, 3)
        clients.pool.endpoint.before = refused
        clients.store.recover_holder()
        assert len(tries) == 3
        now[0] += LEASES_BETWEEN * clients.pool.membership.lease_s
    nobody_suspected(clients)
    clients.sound()


def _living_client_has_the_lock_of_the_dead(pools: Any) -> None:
    """One died just before it took a lock, which another client has by now."""
    clients = Clients(pools, 2)
    holder, other = clients.puppets
    key, beside = clients.key(3), clients.key(3, number=1)
    clients.die(clients.takes(), lambda store: store.update(key, NEW))
    assert not holder.begin(lambda: holder.store.update(key, NEW), clients.holds())
    clients.pool.recover()
    ended = other.begin(lambda: other.store.update(beside, NEW), clients.tries(2))
    assert holder.go()
    assert ended or other.go()
    assert not ended, "two clients have one lock"
    assert clients.store.get(key) == clients.store.get(beside) == NEW
    clients.sound()


def _dead_client_had_given_back_its_locks(pools: Any) -> None:
    """It has written its rows, which another client has written since."""
    clients = Clients(pools, 0)
    key = clients.key(3)
    given_back = []

    def there(verb: str, address: int) -> bool:
        given_back.append(verb == "cas" and address in clients.locks)
        return sum(given_back) == 4 and not given_back[-1]

    clients.die(there, lambda store: (store.update(key, NEW), store.get(key)))
    assert clients.locked() == 0
    clients.store.update(key, OTHER)
    clients.pool.recover()
    assert clients.store.get(key) == OTHER, "an update is lost"
    clients.sound()


def _dead_client_had_an_operation_before(pools: Any) -> None:
    """It has locked again the rows of that, which another client has written meanwhile."""
    clients = Clients(pools, 0)
    key = clients.key(3)

    def twice(store: Any) -> None:
        store.update(key, NEW)
        clients.store.update(key, OTHER)
        store.update(key, b"late")

    holds, noted = clients.holds(), []

    def there(verb: str, address: int) -> bool:
        noted.append(holds(verb, address))
        return sum(noted) == 2

    clients.die(there, twice)
    assert clients.locked() == 0b11 << 3
    clients.pool.recover()
    assert clients.store.get(key) == OTHER, "an update is lost"
    clients.sound()


class Backward:
    """A key, for which there is room if an entry moves from its first row to the one before.

    That entry, `moving`, has its first row there. Before `make_room`, there is room in the row
    after its second one only.
    """

    row = 6

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        before = [clients.key(self.row - 1, number=number) for number in range(SLOTS + 1)]
        *self.before, self.moving = before
        for number in range(SLOTS - 1):
            clients.key(self.row, number=number)
        for number in range(SLOTS):
            clients.key(self.row + 1, number=number)
        self.key = some(clients.store, SLOTS, self.row)[-1]

    def make_room(self) -> None:
        self.clients.store.delete(self.before[0])


def _both_copies_are_locked_while_one_is_cleared(pools: Any) -> None:
    """A client updates the copy that the repairing client is about to clear."""
    clients = Clients(pools, 2)
    repairer, other = clients.puppets
    made = Backward(clients)
    made.make_room()
    clients.die(clients.writes(4), lambda store: store.insert(made.key, NEW))
    assert not repairer.begin(repairer.pool.recover, clients.writes())
    ended = other.begin(lambda: other.store.update(made.moving, NEW), clients.tries(2))
    assert repairer.go()
    assert ended or other.go()
    assert clients.store.get(made.moving) == NEW
    assert clients.store.get(made.key) is None
    clients.sound()


def torn(store: Any, row: int) -> bool:
    """Whether a client says that the row is damaged."""
    with store.client:
        store.lookup.enter_table(store.lookup.tables[0])
        return bool(store.lookup.is_torn(row))


def _two_write_a_row_one_after_the_other(pools: Any) -> None:
    """A client that reads it meets both in the midst of it, and its lock in between."""
    clients = Clients(pools, 3, fence="wait")
    first, second, reader = clients.puppets
    key = clients.key(4)
    assert not first.begin(lambda: first.store.update(key, NEW), clients.writes(2))
    at_lock = verb_on_address("load", clients.locks[4])
    assert not reader.begin(lambda: torn(reader.store, 4), at_lock)
    assert first.go()
    assert not reader.go(verb_on("read_words"))
    assert not second.begin(lambda: second.store.update(key, OTHER), clients.writes(2))
    assert reader.go()
    assert reader.result is False, "a sound row is called damaged"
    assert second.go()
    clients.sound()


def _header_with_a_sum_is_half_written(pools: Any) -> None:
    """The writer stands between two words of the header: sequence and sum are the new ones. It ends
    after the row was read, and before its lock is looked at."""
    clients = Clients(pools, 1, sums=True)
    (reader,) = clients.puppets
    store, endpoint = clients.store, clients.pool.endpoint
    key = clients.key(3)
    reader.store.lookup.copies_of(reader.store.lookup.found, key)  # enters the table
    address = reader.store.lookup.rows.address(3)
    words = range(address + 8 * TAGS, address + 8 * HEAD_WORDS, 8)
    before = [endpoint.load(word) for word in words]
    store.update(key, b"longer")
    after = [endpoint.load(word) for word in words]
    assert before != after

    def write(values: list[int], holder: int) -> None:
        endpoint.store(clients.locks[3], holder)
        for word, value in zip(words, values, strict=True):
            endpoint.store(word, value)

    write(before, clients.pool.client.ident)
    assert not reader.begin(lambda: torn(reader.store, 3), clients.looks())
    write(after, 0)
    assert reader.go()
    assert reader.result is False, "a sound row is called damaged"
    clients.sound()


def _key_is_moved_while_its_copies_are_counted(pools: Any) -> None:
    """It is in both rows when they are read, and in one when their locks are."""
    clients = Clients(pools, 2)
    mover, reader = clients.puppets
    made = Backward(clients)
    made.make_room()
    assert not mover.begin(lambda: mover.store.insert(made.key, NEW), clients.writes(4))
    checker = reader.store.checker()
    assert not reader.begin(lambda: checker._twice(0, made.moving), clients.looks())
    assert mover.go()
    assert reader.go()
    assert reader.result is False, "a key that was moved is said to be there twice"
    clients.sound()


def with_a_plan(puppet: Puppet) -> Where:
    """The CAS that takes the first lock when a path was found in the cache."""
    search = puppet.store.writer.search(0)
    return lambda verb, address: verb == "cas" and search.searches > 1 and search.length > 0


def _two_insert_one_key_by_two_paths(pools: Any) -> None:
    """One path begins in the key's first row, the other in the second."""
    clients = Clients(pools, 2)
    by_first, by_second = clients.puppets
    made = Backward(clients)
    key = made.key
    assert not by_second.begin(lambda: by_second.store.put(key, b"second"), with_a_plan(by_second))
    made.make_room()
    assert not by_first.begin(lambda: by_first.store.put(key, b"first"), clients.holds())
    ended = by_second.go(clients.tries())
    assert by_first.go()
    assert ended or by_second.go()
    clients.sound()
    assert clients.store.get(key) == b"second"
    clients.store.delete(key)
    assert key not in clients.store


def _refused_client_keeps_no_others_waiting(pools: Any) -> None:
    """One client stands still; a client that waits for it has no lock that a third one needs."""
    clients = Clients(pools, 3, locks_per_message=1)
    still, waiting, third = clients.puppets
    held, needs, free = clients.key(5), clients.key(4), clients.key(3)
    still.begin(lambda: still.store.update(held, NEW), clients.holds())
    assert not waiting.begin(lambda: waiting.store.update(needs, NEW), tired(clients))
    ended = third.begin(lambda: third.store.update(free, NEW), tired(clients))
    assert still.go()
    assert waiting.go()
    assert ended or third.go()
    assert ended, "it waited for one that waits"
    clients.sound()


def _stopped_client_goes_on(pools: Any) -> None:
    """It has read the row and is about to write; another one has waited for long."""
    clients = Clients(pools, 2, fence="wait")
    still, other = clients.puppets
    key, beside = clients.key(3), clients.key(3, number=1)
    still.begin(lambda: still.store.update(key, NEW), clients.writes())
    looks = itertools.count(1)

    def patient(verb: str, address: int) -> bool:
        return clients.looks()(verb, address) and next(looks) == 30

    ended = other.begin(lambda: other.store.update(beside, NEW), patient)
    assert still.go()
    assert ended or other.go()
    clients.sound()
    assert clients.store.get(key) == clients.store.get(beside) == NEW


def _extent_is_used_again_under_a_reader(pools: Any) -> None:
    """By another key, while the reader is between the row and the extent."""
    clients = Clients(pools, 1, value_size=0)
    (reader,) = clients.puppets
    store = clients.store
    old, new, others = (word + bytes(3000) for word in (b"old", b"new", b"of another key"))
    key = clients.key(3, old)
    other = clients.key(9, others)
    store.delete(other)
    (linked,) = store.references().tolist()
    # both header lines and the entry were read
    reader.begin(lambda: reader.store.get(key), verb_on("read_words", number=4))
    store.update(key, new)
    for _ in range(150):
        store.put(other, others)
        if linked in store.references().tolist():
            break
    assert reader.go()
    assert reader.result in (old, new)
    clients.sound()


STEPS: Final = (
    (ONE_ROW, _keys_have_two_rows),
    (MISSED, _key_moves_under_a_reader),
    (MISSED, _key_moves_under_a_reader_of_copies),
    (NO_SUM, _row_is_read_as_a_whole_while_it_is_written),
    (VERSION_WRAPS, _row_is_written_256_times),
    (NOT_READ_AGAIN, _row_is_written_after_its_header_line_was_read),
    (BUSY_IS_SUSPECT, _busy_client_is_met_twice),
    (LEASE_IS_SUSPECT, _repairer_is_met_twice),
    (ANYBODYS_LOCK, _living_client_has_the_lock_of_the_dead),
    (PATH_WITHOUT_LOCKS, _dead_client_had_given_back_its_locks),
    (PATH_OF_BEFORE, _dead_client_had_an_operation_before),
    (UNFENCED, _stopped_client_goes_on),
    (LOCKS_FIRST, _both_copies_are_locked_while_one_is_cleared),
    (TORN_ONCE, _two_write_a_row_one_after_the_other),
    (TORN_IN_HEADER, _header_with_a_sum_is_half_written),
    (TWICE_ONCE, _key_is_moved_while_its_copies_are_counted),
    (PATH_LOCKED, _two_insert_one_key_by_two_paths),
    (SPINS, _refused_client_keeps_no_others_waiting),
    (UNPINNED, _extent_is_used_again_under_a_reader),
)
