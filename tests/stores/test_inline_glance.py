"""Gets without a pin of stores with pairs in their own table (stores/core/inline.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.reading import (
    CAPACITY,
    KEY,
    KeyTable,
    ReadingEndpoint,
    has_pins_without_coherence,
    is_told_that_it_was_declared_dead,
)

from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import DROPS
from limpet.shm.endpoint.slots import PIN
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreDropped, StoreFull
from limpet.stores.core.object_layout import POINTER

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["rcuckoo", "rcuckoo-*"]
)
KINDS: Final = ("rcuckoo", "loco", "rtx-sherman")
TREE: Final = "rtx-sherman"
LONG: Final = bytes(900)
"""A value that is in an object."""
STEPS_MAX: Final = 30
ROUNDS: Final = 2000
"""More long values than a node has room for."""
LOWER: Final = 60
"""Keys below the key, more than a leaf holds."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class NothingIsReadAfter(ReadingEndpoint):
    """Known-bad: the word DROPS, and the object of a leaf, are not looked at."""

    def stands(self, *rest: int) -> bool:
        return True


class Table(KeyTable):
    """The key has a value that is in the table itself."""

    def __init__(
        self, pools: Any, kind: str, endpoint: type[ReadingEndpoint] = ReadingEndpoint
    ) -> None:
        super().__init__(pools(nodes=1, node_size="512KiB"), kind, pools, endpoint)
        self.put()
        for _ in range(2):
            assert self.reader.get(KEY) == self.value()

    def value(self) -> bytes:
        return b"%08d" % self.number * 5

    def get(self, key: bytes = KEY) -> Any:
        return self.reader.get(key)

    # ---- disturbances ---------------------------------------------------------------------------

    def crowd(self) -> None:
        """Delete; then other keys have the entry, and all entries around it."""
        self.delete()
        others = []
        for number in range(1000):
            try:
                self.writer.insert(b"other%d" % number, b"\xff" * len(self.value()))
            except StoreFull:
                break
            others.append(b"other%d" % number)
        assert len(others) >= CAPACITY
        for key in others:
            self.writer.delete(key)

    def lengthen(self) -> None:
        """Have the value be in an object, and not be there any more."""
        self.writer.put(KEY, LONG)
        self.had.add(LONG)
        self.put()

    def move(self) -> None:
        """Have the key be in other leaves, and the leaves merged again."""
        lower = [b"a%03d" % number for number in range(LOWER)]
        for key in lower:
            self.writer.insert(key, self.value())
        self.put()
        for key in lower:
            self.writer.delete(key)
        self.put()

    def recycle(self) -> None:
        """Put; then the memory that the leaf's node had is that of a node of another tree, in which
        the key has a value that it never has in this one."""
        endpoint = self.writing.endpoint
        node = endpoint.load(self.writer.trees.roots[0] + POINTER) & ADDRESS_MASK
        self.put()
        other = self.writing.store(self.kind, name="t", capacity=CAPACITY)
        for _ in range(ROUNDS):
            other.put(KEY, b"another!" * 5)
            if endpoint.load(other.trees.roots[0] + POINTER) & ADDRESS_MASK == node:
                return
        raise AssertionError("the memory was not used again")

    def tables(self) -> list[int]:
        """The addresses of the store's tables."""
        return list(self.writer.trees.roots if self.kind == TREE else self.writer.lookup.tables)

    def drop(self, filling: bytes = b"\0") -> None:
        """Drop the store, and have something else in its table's memory."""
        tables = self.tables()
        size = self.writer.parameters.table_size
        if callable(size):
            size = size(self.writing.parameters.clients)
        self.writing.drop("s")
        for base in tables:
            self.writing.endpoint.write(base, filling * size)

    # ---- a get ----------------------------------------------------------------------------------

    def steps(self) -> int:
        """The steps of a get that nothing disturbs."""
        self.disturbed(0, lambda: None)
        assert 4 < self.reading.endpoint.steps < STEPS_MAX
        return int(self.reading.endpoint.steps)

    def pins(self, key: bytes = KEY) -> int:
        """The pins of a get."""
        endpoint = self.reading.endpoint
        before = endpoint.counters("control")["atomics"]
        self.get(key)
        return int(endpoint.counters("control")["atomics"] - before)


DISTURBANCES: Final = {
    "put": Table.put,
    "delete": Table.delete,
    "insert anew": Table.insert_anew,
    "crowd": Table.crowd,
    "lengthen": Table.lengthen,
}
OF_TREES: Final = {"move": Table.move, "recycle": Table.recycle}


def gets_after_a_drop(
    pools: Any, kind: str, endpoint: type[ReadingEndpoint], filling: bytes = b"\0"
) -> list[tuple[int, Any]]:
    """The results, but for StoreDropped, of gets in whose steps the store is dropped, and its
    memory filled."""
    found: list[tuple[int, Any]] = []
    for step in range(1, Table(pools, kind).steps() + 1):
        table = Table(pools, kind, endpoint)
        try:
            found.append((step, table.disturbed(step, lambda table=table: table.drop(filling))))
        except StoreDropped:
            continue
    return found


def test_a_get_has_no_pin(pools: Any, kind: str) -> None:
    table = Table(pools, kind)
    endpoint = table.reading.endpoint
    pin = table.reading.client.slot + PIN
    seen: list[int] = []
    pins: list[int] = []

    def visit(addr: int) -> None:
        seen.append(addr)
        pins.append(endpoint.load(pin))

    for key, there in ((KEY, True), (b"none", False)):
        table.get(key)  # with `loco`, the first one learns the entries of the key's home
        endpoint.visit = visit
        try:
            assert (table.get(key) is not None) == there
        finally:
            endpoint.visit = None
        if kind == TREE:
            at = table.reader.trees.leaf.at
            assert seen[-4:] == [at, at + POINTER, at, DROPS]
        elif kind == "rcuckoo":
            found, rows = table.reader.found, table.reader.lookup.rows
            assert {rows.address(found.first), rows.address(found.second)} >= set(seen[-4:-1])
            assert seen[-1] == DROPS
        else:
            assert seen[-4:] == [DROPS] * 4
        assert table.pins(key) == 0
    assert set(pins) == {0}


def test_a_get_is_one_round_trip(pools: Any, kind: str) -> None:
    table = Table(pools, kind)
    before = table.reader.stats()["round_trips"]
    table.get()
    assert table.reader.stats()["round_trips"] - before == 1


def test_a_long_value_is_read_with_a_pin(pools: Any, kind: str) -> None:
    """The first one after a short value takes one round trip more; of a tree two, as its guess of
    the node is wrong, and it makes none after that for a while."""
    table = Table(pools, kind)
    table.writer.put(KEY, LONG)
    trips, pins = [], []
    for _ in range(3):
        before = table.reader.stats()["round_trips"]
        pins.append(table.pins())
        trips.append(table.reader.stats()["round_trips"] - before)
    assert table.get() == LONG
    assert all(pins)
    assert trips == ([5, 3, 3] if kind == TREE else [3, 2, 2])
    table.put()
    assert [table.pins() > 0 for _ in range(3)] == [True, False, False]


def wrong_steps(table: Table, disturb: Callable[[Table], None]) -> list[int]:
    """The steps in which a get that was disturbed has a value that the key did not have."""
    found = []
    for step in range(1, table.steps() + 1):
        if table.disturbed(step, lambda: disturb(table)) not in table.had:
            found.append(step)
        table.put()
        for _ in range(3):
            table.get()
        assert table.pins() == 0
    return found


@pytest.mark.parametrize("how", DISTURBANCES)
def test_a_disturbed_get_has_a_value_that_the_key_had(pools: Any, kind: str, how: str) -> None:
    assert wrong_steps(Table(pools, kind), DISTURBANCES[how]) == []


@pytest.mark.parametrize("how", OF_TREES)
def test_a_disturbed_get_of_a_tree_has_a_value_that_the_key_had(pools: Any, how: str) -> None:
    assert wrong_steps(Table(pools, TREE), OF_TREES[how]) == []


def test_known_bad_variant_reads_a_node_that_is_used_again(pools: Any) -> None:
    assert wrong_steps(Table(pools, TREE, NothingIsReadAfter), Table.recycle)


@pytest.mark.parametrize("filling", [b"\0", b"\xff", b"\x02"])
def test_a_store_is_dropped_in_a_get(pools: Any, kind: str, filling: bytes) -> None:
    assert gets_after_a_drop(pools, kind, ReadingEndpoint, filling) == []


def test_known_bad_variant_reads_a_store_that_is_no_more(pools: Any, kind: str) -> None:
    assert gets_after_a_drop(pools, kind, NothingIsReadAfter)


def test_a_client_that_was_declared_dead_is_told_so(pools: Any, kind: str) -> None:
    is_told_that_it_was_declared_dead(pools, kind)


@pytest.mark.skipif(BUILD != "compiled", reason="the pure build opens only memory that is coherent")
def test_gets_have_pins_where_memory_is_not_coherent(pools: Any) -> None:
    has_pins_without_coherence(pools, "rcuckoo")


@pytest.mark.exhaustive_in_pure("the same lines, and slower")
def test_a_reader_that_is_stopped_keeps_no_memory(pools: Any, kind: str) -> None:
    """In a get of a short value, at any of its steps; and the reader goes on where it was."""
    table = Table(pools, kind)

    def write() -> None:
        for _ in range(ROUNDS):
            table.writer.put(b"long", LONG)

    for step in range(1, table.steps() + 1, 3):
        assert table.stopped(step, write) == table.value()
