"""READs on the fast path of `swarm`, while what they read is changed, given up and used again
(stores/swarm/fast_reads.py)."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.mutants.swarm import Mutant, in_force
from kit.mutants.uncompiled import always, replaced
from kit.puppets import Puppet, verb_on
from kit.reading import (
    CAPACITY,
    KEY,
    DropsAreNotRead,
    KeyTable,
    ReadingEndpoint,
    is_told_that_it_was_declared_dead,
)

from limpet.shm.endpoint.fabric import words_bytes
from limpet.shm.endpoint.layout import CONTROL_NODE, DROPS, NODE_SHIFT, VIEW
from limpet.shm.endpoint.slots import PIN
from limpet.shm.errors import StoreDropped
from limpet.stores.swarm.layout import IN_PLACE_WORDS, STAMP_SHIFT

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower", quick=["3"])

GARBAGE: Final = b"\xff" * 8
LONG: Final = 900
"""Bytes of a value in place that is read in several steps."""


def unhashed(words: Any, at: int, count: int, stamp: int, ident: int) -> Any:
    """`value_in_place`, without the hash."""
    length = words[at + 1]
    if words[at] != stamp << STAMP_SHIFT or length > 8 * (count - IN_PLACE_WORDS):
        return None
    return words_bytes(words, 8 * (at + IN_PLACE_WORDS), length)


def of_any_register(words: Any, at: int, ident: int, width: int) -> int:
    """`greatest`, without a look at the ident."""
    return max(words[at + 2 : at + width])


NOT_LOOKED_AT_AGAIN: Final = Mutant(
    "not-looked-at-again", (), (replaced("swarm/fast_reads", "FastReads._stands", always),)
)
NOT_HASHED: Final = Mutant(
    "not-hashed", (), (replaced("swarm/register", "value_in_place", unhashed),)
)
ANY_IDENT: Final = Mutant(
    "any-ident",
    (),
    (
        replaced("swarm/register", "greatest", of_any_register),
        replaced("swarm/fast_reads", "FastReads._stands", always),
    ),
)


@pytest.fixture(params=[1, 3, 5])
def replicas(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Table(KeyTable):
    """A key whose place and row the reader knows: its gets are on the fast path."""

    def __init__(
        self, pools: Any, replicas: int = 3, endpoint: type[ReadingEndpoint] = ReadingEndpoint
    ) -> None:
        writing = pools(nodes=max(3, replicas), node_size="2MiB")
        writing.store("swarm", name="s", capacity=CAPACITY, replicas=replicas)
        super().__init__(writing, "swarm", pools, endpoint)
        for _ in range(2):  # the value has a buffer, too
            self.put()
        self.warm()

    def warm(self) -> None:
        for _ in range(3):
            assert self.reader.get(KEY) == self.value()

    def value(self) -> bytes:
        return b"%08d" % self.number * 5

    def pins(self) -> int:
        """The pins of a get."""
        endpoint = self.reading.endpoint
        before = endpoint.counters("control")["atomics"]
        self.reader.get(KEY)
        return int(endpoint.counters("control")["atomics"] - before)

    def steps(self) -> int:
        self.disturbed(0, lambda: None)
        return int(self.reading.endpoint.steps)

    # ---- disturbances ---------------------------------------------------------------------------

    def recycle(self) -> None:
        """Delete; other keys get the memory of the key's register, until one has its place."""
        place = self.place(KEY)
        self.delete()
        for number in itertools.count():
            key = b"%d" % number
            self.writer.put(key, b"another!" * 5)
            if self.place(key) == place:
                break
        self.put()

    def place(self, key: bytes) -> int:
        """The reference to the key's register."""
        cache = self.writer.cache
        return int(cache.words[cache.locate(key) + 1])

    def idents(self) -> list[int]:
        """The addresses of the idents that a get reads."""
        register = self.register()
        majority = register.replicas // 2 + 1
        return [register.address((register.first + n) % register.replicas) for n in range(majority)]

    def register(self) -> Any:
        """The key's register, selected by the reader."""
        at = self.reader.cache.locate(KEY)
        assert self.reader.finder.recall(self.reader.register, KEY, at)
        return self.reader.register.place

    def shorten(self) -> None:
        self.writer.put(KEY, b"short")
        self.had.add(b"short")

    def lengthen(self) -> None:
        """Have the value be out of place, and in place again."""
        self.writer.put(KEY, bytes(900))
        self.had.add(bytes(900))
        self.put()

    def drop(self) -> None:
        """Drop the store, and have its memory be that of values of another one."""
        self.writing.drop("s")
        other = self.writing.store("swarm", name="t", capacity=CAPACITY)
        for number in range(50):
            other.put(b"%d" % number, b"another!" * 5)

    def tear(self) -> None:
        """Overwrite a word of the value in place, as a write that was cut there does."""
        register = self.register()
        value = register.address(register.first) + 8 * (register.width + IN_PLACE_WORDS)
        self.writing.endpoint.write(value + 8, GARBAGE)


DISTURBANCES: Final = {
    "put": Table.put,
    "delete": Table.delete,
    "insert anew": Table.insert_anew,
    "shorten": Table.shorten,
    "lengthen": Table.lengthen,
    "tear": Table.tear,
}


def wrong_steps(table: Table, disturb: Callable[[Table], None]) -> list[int]:
    """The steps in which a get that was disturbed has a value that the key did not have."""
    found = []
    for step in range(1, table.steps() + 1):
        if table.disturbed(step, lambda: disturb(table)) not in table.had:
            found.append(step)
        table.put()
        table.warm()
        assert table.pins() == 0
    return found


def test_a_get_has_no_pin_and_looks_again_at_what_it_has_read(pools: Any, replicas: int) -> None:
    table = Table(pools, replicas)
    endpoint = table.reading.endpoint
    seen: list[int] = []
    pins: list[int] = []
    pin = table.reading.client.slot + PIN

    def visit(addr: int) -> None:
        seen.append(addr)
        pins.append(endpoint.load(pin))

    endpoint.visit = visit
    try:
        assert table.reader.get(KEY) == table.value()
    finally:
        endpoint.visit = None
    assert set(pins) == {0}
    majority = replicas // 2 + 1
    read = seen[: -4 * max(1, majority - 1)]
    assert len({addr >> NODE_SHIFT for addr in read}) == majority
    again = seen[len(read) :]
    assert {addr for addr in again if addr >> NODE_SHIFT != CONTROL_NODE} == set(read)
    assert again[2:4] == again[-2:] == [VIEW, DROPS]
    assert table.pins() == 0


def test_a_get_is_one_round_trip_and_reads_a_majority(pools: Any, replicas: int) -> None:
    table = Table(pools, replicas)
    before = table.reader.stats()
    table.reader.get(KEY)
    after = table.reader.stats()
    assert after["round_trips"] - before["round_trips"] == 1
    assert after["reads"] - before["reads"] == replicas // 2 + 1


@pytest.mark.parametrize("how", DISTURBANCES)
def test_a_disturbed_get_has_a_value_that_the_key_had(pools: Any, replicas: int, how: str) -> None:
    assert wrong_steps(Table(pools, replicas), DISTURBANCES[how]) == []


def test_a_get_whose_memory_is_used_again_has_a_value_that_the_key_had(pools: Any) -> None:
    assert wrong_steps(Table(pools), Table.recycle) == []


class LongTable(Table):
    """The value is in place, and read in several steps."""

    def value(self) -> bytes:
        return b"%09d" % self.number * (LONG // 9)


@pytest.mark.parametrize("how", DISTURBANCES)
def test_a_disturbed_get_of_a_long_value_in_place(pools: Any, how: str) -> None:
    table = LongTable(pools)
    assert table.steps() > Table(pools).steps()
    assert wrong_steps(table, DISTURBANCES[how]) == []


# ---- what each rule is for -----------------------------------------------------------------------


def torn_values(pools: Any) -> list[int]:
    table = Table(pools)
    found = []
    for step in range(1, table.steps() + 1):
        if table.disturbed(step, table.tear) not in table.had:
            found.append(step)
        table.put()
        table.warm()
    return found


def gets_after_a_drop(pools: Any, endpoint: type[ReadingEndpoint]) -> list[Any]:
    """The results, but for StoreDropped, of gets in whose steps the store is dropped."""
    found = []
    for step in range(1, Table(pools).steps() + 1):
        table = Table(pools, endpoint=endpoint)
        with contextlib.suppress(StoreDropped):
            found.append(table.disturbed(step, table.drop))
    return found


def gets_of_a_register_that_is_given_up(pools: Any, step: int) -> list[int]:
    """The addresses of idents that were cleared before this step of a get, although it has a value
    without a pin. The register's words stay as they were: nothing else says that it is given up."""
    table = Table(pools)
    endpoint = table.reading.endpoint
    found = []
    for ident in table.idents():
        was = table.writing.endpoint.load(ident)
        endpoint.steps = 0

        def clear(addr: int, ident: int = ident) -> None:
            if endpoint.steps == step:
                table.writing.endpoint.store(ident, 0)

        endpoint.visit = clear
        try:
            if table.reader.glanced(KEY) == table.value():
                found.append(ident)
        finally:
            endpoint.visit = None
            table.writing.endpoint.store(ident, was)
        table.writer.get(KEY)
        for _ in range(3):
            table.reader.get(KEY)
    return found


FIRST_LOOK: Final = 1
SECOND_LOOK: Final = 3
"""The step after both replicas were read."""


def test_a_torn_value_is_not_returned_and_without_a_hash_it_is(pools: Any) -> None:
    assert torn_values(pools) == []
    with in_force(NOT_HASHED):
        assert torn_values(pools)


@pytest.mark.parametrize(
    ("step", "mutant"), [(FIRST_LOOK, ANY_IDENT), (SECOND_LOOK, NOT_LOOKED_AT_AGAIN)]
)
def test_a_register_that_is_given_up_is_not_read_without_a_pin(
    pools: Any, step: int, mutant: Mutant
) -> None:
    assert gets_of_a_register_that_is_given_up(pools, step) == []
    with in_force(mutant):
        assert gets_of_a_register_that_is_given_up(pools, step)


def test_a_store_is_dropped_in_a_get(pools: Any) -> None:
    assert gets_after_a_drop(pools, ReadingEndpoint) == []


def test_known_bad_variant_reads_a_store_that_is_no_more(pools: Any) -> None:
    assert gets_after_a_drop(pools, DropsAreNotRead)


def test_a_node_is_lost_in_a_get(pools: Any) -> None:
    for step in range(1, Table(pools).steps() + 1):
        for n in range(2):
            table = Table(pools)
            node = table.idents()[n] >> NODE_SHIFT
            lose = functools.partial(table.writing.fail_node, node)
            assert table.disturbed(step, lose) == table.value()
            table.put()
            table.warm()
            assert table.pins() == 0  # of the nodes that are left


def test_a_client_that_was_declared_dead_is_told_so(pools: Any) -> None:
    is_told_that_it_was_declared_dead(pools, "swarm")


# ---- stopped writers -----------------------------------------------------------------------------


def values_beside_a_stopped_writer(pools: Any, verb: str) -> list[list[bytes]]:
    """For each verb of an update before which its writer stands still: what gets of a reader on the
    fast path have, and those of one that comes to it, and the first after the writer went on."""
    found: list[list[bytes]] = []
    while True:
        table = Table(pools)
        writer = Puppet(pools, table.writing.url, "swarm", "s")
        for value in (b"1" * 40, b"2" * 40):
            writer.store.update(KEY, value)
            table.reader.get(KEY)
        table.reader.get(KEY)
        assert table.pins() == 0
        update = functools.partial(writer.store.update, KEY, b"3" * 40)
        if writer.begin(update, verb_on(verb, None, len(found) + 1)):
            return found
        gets = [table.reader.get(KEY) for _ in range(3)]
        gets.append(table.writer.get(KEY))
        assert writer.go()
        found.append([*gets, table.reader.get(KEY)])


@pytest.mark.parametrize("verb", ["cas", "write_gather"])
def test_gets_beside_a_stopped_writer_never_go_back(pools: Any, verb: str) -> None:
    found = values_beside_a_stopped_writer(pools, verb)
    assert found
    for gets in found:
        assert gets == sorted(gets)
        assert gets[-1] == b"3" * 40
