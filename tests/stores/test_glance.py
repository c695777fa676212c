"""Gets without a pin, while what they read is given up and used again (stores/race/glance.py)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.reading import (
    KEY,
    DropsAreNotRead,
    KeyTable,
    ReadingEndpoint,
    has_pins_without_coherence,
    is_told_that_it_was_declared_dead,
)

import limpet
from limpet.fault.inject.stopping import StoppingEndpoint, StoppingPool
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.hooked import MUTATING
from limpet.shm.endpoint.layout import DROPS, NODE_SHIFT, VIEW
from limpet.shm.endpoint.slots import INCARNATION_BITS, PIN
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreDropped

greenlet = pytest.importorskip("greenlet").greenlet
pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["race", "race-*", "fusee", "fusee-use"]
)

SIZE: Final = 900
"""Bytes of a value: the key's object is read in several steps."""
ROUNDS_MAX: Final = 2000
LARGE: Final = 9000
"""Bytes of a value that takes two reads."""
STEPS_LARGE: Final = 60
"""More steps than a get of it has."""
STEPS: Final = {"race": 13, "rtx-race": 13, "fusee": 14, "fusee-nc": 15}
"""Of a get: the entry, two buckets, the stamp and the slot, the object in four, and four again;
with replicas, the view before all that and after it; if the cache knows the slot, no buckets."""
KINDS: Final = tuple(STEPS)
REPLICATED: Final = ("fusee", "fusee-nc")
STEPS_TRANSACTION: Final = range(255, 290)
"""Of one that writes two keys, after it has written the objects: in some of them it holds slots."""
HALF_WRITTEN: Final = 60
"""A step of an update in the midst of writing the object."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class WritingEndpoint(StoppingEndpoint, verbs=MUTATING):
    """Interrupted before a CAS of the word at `before`, too (0: never)."""

    def __init__(self) -> None:
        super().__init__()
        self.before = 0

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if verb == "cas" and addr == self.before:
            self.before = 0
            self.interrupt()
        return super().on_verb(verb, addr, words)


class WritingPool(StoppingPool):
    endpoint_class = WritingEndpoint
    endpoint: WritingEndpoint


class SlotIsNotReadBefore(ReadingEndpoint):
    """Known-bad: the slot is not read again between the stamp and the object."""

    def glance(self, stamp_at: int, slot: int, word: int) -> int:
        return self.load(stamp_at)


class SlotIsNotReadAfter(ReadingEndpoint):
    """Known-bad: the slot is not read again after the object."""

    def stands(self, slot: int, word: int, *rest: int) -> bool:
        return super().stands(rest[2], rest[3], *rest)


class StampIsNotReadAfter(ReadingEndpoint):
    """Known-bad: the stamp is not read again."""

    def stands(self, slot: int, word: int, stamp_at: int, stamp: int, *rest: int) -> bool:
        return super().stands(slot, word, slot, word, *rest)


class EntryIsNotReadAfter(ReadingEndpoint):
    """Known-bad: the entry is not read again."""

    def stands(self, *rest: int) -> bool:
        slot, word, stamp_at, stamp, _, _, drops_at, drops = rest
        if slot == rest[4]:
            slot, word, stamp_at, stamp = drops_at, drops, drops_at, drops
        return super().stands(slot, word, stamp_at, stamp, slot, word, drops_at, drops)


class RestIsNotProven(ReadingEndpoint):
    """Known-bad: nobody looks again after the rest of a large object."""

    def stands(self, *rest: int) -> bool:
        self.looks += 1
        return self.looks == 2 or super().stands(*rest)


class ViewIsNotReadAfter(ReadingEndpoint):
    """Known-bad: nobody looks at the view after all else."""

    def __init__(self) -> None:
        super().__init__()
        self.stood = False
        self.view = 0

    def stands(self, *rest: int) -> bool:
        self.stood = super().stands(*rest)
        return self.stood

    def load(self, addr: int) -> int:
        word = super().load(addr)
        if addr == VIEW:
            self.view = word = self.view if self.stood else word
        self.stood = False
        return word


def value(number: int, size: int = SIZE) -> bytes:
    """A value that is whole if all of its pieces are the same."""
    return b"%08d" % number * (size // 8)


class Table(KeyTable):
    """The key has a value that is in an object."""

    def __init__(
        self,
        pools: Any,
        kind: str,
        endpoint: type[ReadingEndpoint] = ReadingEndpoint,
        size: int = SIZE,
    ) -> None:
        self.size = size
        self.steps = STEPS[kind] if size == SIZE else STEPS_LARGE
        first = pools(
            nodes=2 if kind in REPLICATED else 1, node_size="512KiB" if size == SIZE else "2MiB"
        )
        super().__init__(pools.keep(WritingPool.open(first.url)), kind, pools, endpoint)
        table_of = self.reader.index.table_of
        others = (b"other%d" % number for number in itertools.count())
        self.other = next(key for key in others if table_of(key) == table_of(KEY))
        """Another key, on the same node."""
        for _ in range(3):  # the first objects are perhaps larger than those that follow
            self.put()
        for _ in range(2):
            assert self.reader.get(KEY) == self.value()

    def value(self) -> bytes:
        return value(self.number, self.size)

    def update(self) -> None:
        """As `put`; the object has its stamp and its mark at once."""
        self.number += 1
        self.writer.update(KEY, self.value())
        self.had.add(self.value())

    def put_two(self, tx: Any) -> None:
        """In a transaction; it holds both slots."""
        tx.put(self.writer, KEY, self.value())
        tx.put(self.writer, b"too", self.value())

    def word(self) -> int:
        """The word of the key's slot."""
        self.slot()
        return int(self.writer.place.word)

    def slot(self) -> int:
        """The address of the key's slot; on the primary, if it has replicas."""
        return int(self.writer.within(self.writer.index.look_up, self.writer.place, KEY))

    # ---- disturbances ---------------------------------------------------------------------------

    def again(self) -> None:
        """Update until the slot has the word that it has now."""
        self.until(self.word())

    def until(self, word: int) -> int:
        """Update until the slot has this word; the word that it had before."""
        for _ in range(ROUNDS_MAX):
            before = self.word()
            self.put()
            if self.word() == word:
                return before
        raise AssertionError(f"the memory of {word:#x} does not come again")

    def another(self) -> None:
        """Update; then another key has the old object's memory."""
        old = self.word() & ADDRESS_MASK
        self.put()
        for _ in range(ROUNDS_MAX):
            self.writer.put(self.other, b"\xff" * len(self.value()))
            index, place = self.writer.index, self.writer.place
            self.writer.within(index.look_up, place, self.other)
            if place.word & ADDRESS_MASK == old:
                return
        raise AssertionError(f"the memory at {old:#x} is not used again")

    def use(self) -> None:
        """Update; then something without a stamp has a part of the old object's memory."""
        old = self.word() & ADDRESS_MASK
        self.put()
        self.writing.endpoint.write(old + 64, b"\xff" * (self.size - 64))

    def split(self) -> None:
        """Let the key's subtable be split, and something else have its memory."""
        index, place = self.writer.index, self.writer.place
        self.writer.within(index.look_up, place, KEY)
        base, depth = place.base, place.depth
        for number in range(ROUNDS_MAX):
            self.writer.put(b"more %d" % number, b"")
            self.writer.within(index.look_up, place, KEY)
            if place.depth > depth:
                self.writing.endpoint.write(base, bytes(self.writer.index.subtable_size))
                return
        raise AssertionError("the subtable is not split")

    def drop(self) -> None:
        """Drop the store, and have something else in its directory's memory."""
        index = self.writer.index
        self.writing.drop("s")
        self.had = {None}
        for table in index.tables:
            self.writing.endpoint.write(table, bytes(index.directory_size))

    def drop_all(self) -> None:
        """Drop the store, and have something else in the memory of the key's subtable."""
        index, place = self.writer.index, self.writer.place
        self.writer.within(index.look_up, place, KEY)
        base = place.base
        self.writing.drop("s")
        self.had = {None}
        self.writing.endpoint.write(base, bytes(index.subtable_size))


DISTURBANCES: Final = {
    "again": Table.again,
    "another": Table.another,
    "use": Table.use,
    "delete": Table.delete,
    "insert anew": Table.insert_anew,
}


def wrong_gets(table: Table, disturb: Callable[[Table], None]) -> list[Any]:
    """Results that the key did not have, of gets that are disturbed at each step."""
    wrong = []
    for step in range(1, table.steps + 1):
        found = table.disturbed(step, lambda: disturb(table))
        if found not in table.had:
            wrong.append((step, found))
        table.put()
        table.reader.get(KEY)
    return wrong


def wrong_last_gets(
    pools: Any, kind: str, endpoint: type[ReadingEndpoint], disturb: Callable[[Table], None]
) -> list[Any]:
    """The same, of disturbances after which there is no other; StoreDropped counts as None."""
    wrong: list[Any] = []
    # The last look, at the view, is after that at DROPS.
    drops = disturb in (Table.drop, Table.drop_all)
    last = STEPS[kind] - (kind in REPLICATED and drops)
    for step in range(1, last + 1):
        table = Table(pools, kind, endpoint)
        try:
            found = table.disturbed(step, lambda table=table: disturb(table))
        except StoreDropped:
            continue
        if drops or found not in table.had:
            wrong.append((step, found))
    return wrong


def has_no_pin(table: Table) -> Any:
    """The result of a get that has none."""
    endpoint = table.reading.endpoint
    before = endpoint.counters("control")["atomics"]
    found = table.reader.get(KEY)
    assert endpoint.counters("control")["atomics"] == before
    return found


def half_written(table: Table) -> list[Any]:
    """Wrong results of gets that go on while an object is half written, in the memory and later in
    the slot of the one of which they have read the slot."""
    wrong: list[Any] = []
    half = 0
    for first in range(1, table.steps + 1):
        for second in range(first + 1, table.steps + 1):
            word = table.word()
            last = table.until(word)
            found = _interleaved(table, last, first, second)
            if found not in table.had:
                wrong.append((first, second, found))
            half += table.word() == word
    assert half > table.steps
    return wrong


def undecided(pools: Any, kind: str, endpoint: type[ReadingEndpoint]) -> list[Any]:
    """Results of gets that are of an update which is not decided, as another get has shown since.

    Its primary is on a node that has come back since the get began.
    """
    wrong: list[Any] = []
    for step in range(1, STEPS[kind] + 1):
        table = Table(pools, kind, endpoint)
        found, later = _beside_an_update(table, pools.again(table.writing), step)
        assert later == value(table.number - 1)
        if found not in table.had or found == table.value():
            wrong.append((step, found))
    return wrong


def _beside_an_update(table: Table, third: Any, step: int) -> list[Any]:
    """The results of a get that comes to its step `step` before the primary is on another node, and
    goes on from there when an update has proposed its value, but not changed the primary; and of
    a third client's get after that."""
    store = third.store(table.reader.kind, name="s")
    first = table.reader.index.tables[table.reader.index.table_of(KEY)] >> NODE_SHIFT
    table.writing.fail_node(first)
    table.put()
    for _ in range(2):
        assert table.reader.get(KEY) == table.value()
    endpoint, writing = table.reading.endpoint, table.writing.endpoint
    endpoint.steps = 0
    table.had = {table.value()}
    main = greenlet.getcurrent()
    found: list[Any] = []
    reader = greenlet(lambda: found.append(table.reader.get(KEY)))

    def visit(addr: int) -> None:
        if endpoint.steps == step:
            main.switch()

    def read_on() -> None:
        while reader:
            reader.switch()
        found.append(store.get(KEY))

    endpoint.visit = visit
    reader.switch()
    try:
        table.writing.replace_node(first)
        table.put()
        assert store.get(KEY) == table.value()
        writing.interrupt = read_on
        writing.before = table.slot()
        assert writing.before >> NODE_SHIFT == first
        table.put()
    finally:
        endpoint.visit = None
    return found


def held(table: Table) -> list[Any]:
    """Wrong results of gets that go on while a transaction stands still that writes the key."""
    wrong: list[Any] = []
    for step in range(1, table.steps + 1, 2):
        for stop_at in STEPS_TRANSACTION:
            found = _beside_a_transaction(table, step, stop_at)
            if found not in table.had:
                wrong.append((step, stop_at, found))
    assert table.reader.stats()["repairs"]
    return wrong


def _beside_a_transaction(table: Table, step: int, stop_at: int) -> Any:
    """The result of a get that comes to its step `step`, and goes on from there when a transaction
    that writes the key has come to its step `stop_at`."""
    endpoint, writing = table.reading.endpoint, table.writing.endpoint
    endpoint.steps = 0
    table.had = {table.value(), value(table.number + 1)}
    table.number += 1
    main = greenlet.getcurrent()
    found: list[Any] = []
    reader = greenlet(lambda: found.append(table.reader.get(KEY)))

    def visit(addr: int) -> None:
        if endpoint.steps == step:
            main.switch()

    endpoint.visit = visit
    reader.switch()
    try:
        writing.interrupt = reader.switch
        writing.stop_at = stop_at
        table.writing.transaction(table.put_two)
        writing.stop_at = 0
        while reader:
            reader.switch()
    finally:
        endpoint.visit, writing.stop_at = None, 0
    assert table.reader.get(KEY) == table.value()
    return found[0]


def _interleaved(table: Table, last: int, first: int, second: int) -> Any:
    """The result of a get that comes to its step `first` before the slot changes, to `second` while
    the object is half written that follows the one of the word `last`, and to its end afterwards.
    """
    endpoint, writing = table.reading.endpoint, table.writing.endpoint
    endpoint.steps = 0
    table.had = {table.value()}
    main = greenlet.getcurrent()
    found: list[Any] = []
    reader = greenlet(lambda: found.append(table.reader.get(KEY)))

    def visit(addr: int) -> None:
        if endpoint.steps in (first, second):
            main.switch()

    def read_on() -> None:
        if reader:
            reader.switch()

    endpoint.visit = visit
    reader.switch()
    try:
        table.until(last)
        writing.interrupt = read_on
        writing.stop_at = HALF_WRITTEN
        table.update()
        writing.stop_at = 0
        while reader:
            reader.switch()
    finally:
        endpoint.visit, writing.stop_at = None, 0
    return found[0]


def test_a_get_has_no_pin_and_reads_the_same_twice(pools: Any, kind: str) -> None:
    table = Table(pools, kind)
    pin = table.reading.client.slot + PIN
    seen: list[int] = []
    pins: list[int] = []
    endpoint = table.reading.endpoint
    before = endpoint.counters("control")["atomics"]

    def visit(addr: int) -> None:
        seen.append(addr)
        pins.append(endpoint.load(pin))

    endpoint.visit = visit
    try:
        assert table.reader.get(KEY) == table.value()
        hits = len(seen)
        assert table.reader.get(table.other, b"-") == b"-"
    finally:
        endpoint.visit = None
    assert set(pins) == {0}
    assert endpoint.counters("control")["atomics"] == before
    assert hits == STEPS[kind]
    view = [VIEW] if kind in REPLICATED else []
    assert seen[: len(view)] == view
    entry = seen[len(view)]
    last = seen[:hits] if not view else seen[: hits - 1]
    slot, stamp = last[-4:-2]
    assert last[-2:] == [entry, DROPS]
    # the stamp and the slot before the object, which is read in four steps
    assert last[-10:-8] == [stamp, slot]
    assert seen[hits - len(view) : hits] == view
    assert seen[-1 - len(view) :] == [DROPS, *view]


@pytest.mark.parametrize("how", DISTURBANCES)
def test_a_disturbed_get_has_a_value_that_the_key_had(pools: Any, kind: str, how: str) -> None:
    assert wrong_gets(Table(pools, kind), DISTURBANCES[how]) == []


@pytest.mark.exhaustive_in_pure("the same lines, and slower", quick=["race-use", "fusee-use"])
@pytest.mark.parametrize("how", DISTURBANCES)
def test_a_disturbed_get_of_a_large_value(pools: Any, kind: str, how: str) -> None:
    table = Table(pools, kind, size=LARGE)
    assert wrong_gets(table, DISTURBANCES[how]) == []
    table.disturbed(0, lambda: None)
    assert STEPS[kind] < table.reading.endpoint.steps < STEPS_LARGE


@pytest.mark.parametrize("disturb", [Table.split, Table.drop, Table.drop_all])
def test_a_get_outlives_the_memory_of_its_index(
    pools: Any, kind: str, disturb: Callable[[Table], None]
) -> None:
    assert wrong_last_gets(pools, kind, ReadingEndpoint, disturb) == []


def test_a_get_goes_on_while_an_object_is_half_written(pools: Any, kind: str) -> None:
    assert half_written(Table(pools, kind)) == []


@pytest.mark.parametrize("kind", REPLICATED)
def test_a_get_goes_on_while_the_primary_moves(pools: Any, kind: str) -> None:
    assert undecided(pools, kind, ReadingEndpoint) == []


@pytest.mark.parametrize("kind", REPLICATED)
def test_known_bad_variant_reads_what_is_not_decided(pools: Any, kind: str) -> None:
    assert undecided(pools, kind, ViewIsNotReadAfter)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("kind", REPLICATED)
def test_a_node_is_lost_in_a_get(pools: Any, kind: str, lost: int) -> None:
    """That of the primary, or of the backup; before the next get, which has no pin, of the same
    object, and of a new one."""
    for step in range(1, STEPS[kind] + 1):
        table = Table(pools, kind)

        def lose(table: Table = table) -> None:
            table.writing.fail_node(lost)
            table.put()

        assert table.disturbed(step, lose) in table.had
        table.reader.get(KEY)
        for _ in range(2):
            assert has_no_pin(table) == table.value()
            table.put()
            table.reader.get(KEY)


@pytest.mark.parametrize("kind", REPLICATED)
@pytest.mark.parametrize("how", ["again", "another", "use", "insert anew"])
def test_a_disturbed_get_of_what_has_one_replica_left(pools: Any, kind: str, how: str) -> None:
    table = Table(pools, kind)
    table.writing.fail_node(table.slot() >> NODE_SHIFT)
    for _ in range(3):  # what was put before has memory that is not used again now
        table.put()
    for _ in range(2):
        assert table.reader.get(KEY) == table.value()
    assert wrong_gets(table, DISTURBANCES[how]) == []


def test_a_get_goes_on_while_a_transaction_stands_still(pools: Any) -> None:
    assert held(Table(pools, "rtx-race")) == []


def test_a_client_that_was_declared_dead_is_told_so(pools: Any, kind: str) -> None:
    is_told_that_it_was_declared_dead(pools, kind)


def test_a_transaction_of_a_client_that_was_declared_dead_is_told_so(pools: Any) -> None:
    pool = pools(multi_host=True)
    other = pools.again(pool)
    store = other.store("rtx-race", name="s")
    store.put(KEY, b"v")
    assert other.transaction(lambda tx: tx.get(store, KEY)) == b"v"
    pool.membership.recover(other.client_id >> INCARNATION_BITS, other.client.word)
    for key in (KEY, b"none"):
        with pytest.raises(limpet.ClientError):
            other.transaction(lambda tx, key=key: tx.get(store, key))


@pytest.mark.parametrize(
    ("endpoint", "how", "size"),
    [
        (StampIsNotReadAfter, "again", SIZE),
        (SlotIsNotReadAfter, "use", SIZE),
        (RestIsNotProven, "use", LARGE),
    ],
    ids=lambda found: getattr(found, "__name__", found),
)
def test_known_bad_variant_reads_what_the_key_never_had(
    pools: Any, kind: str, endpoint: type[ReadingEndpoint], how: str, size: int
) -> None:
    assert wrong_gets(Table(pools, kind, endpoint, size), DISTURBANCES[how])


@pytest.mark.parametrize(
    ("endpoint", "disturb"),
    [(EntryIsNotReadAfter, Table.split), (DropsAreNotRead, Table.drop_all)],
    ids=lambda found: found.__name__,
)
def test_known_bad_variant_reads_an_index_that_is_no_more(
    pools: Any, kind: str, endpoint: type[ReadingEndpoint], disturb: Callable[[Table], None]
) -> None:
    assert wrong_last_gets(pools, kind, endpoint, disturb)


def test_known_bad_variant_reads_what_is_half_written(pools: Any, kind: str) -> None:
    assert half_written(Table(pools, kind, SlotIsNotReadBefore))


@pytest.mark.skipif(BUILD != "compiled", reason="the pure build opens only memory that is coherent")
def test_gets_have_pins_where_memory_is_not_coherent(pools: Any, kind: str) -> None:
    has_pins_without_coherence(pools, kind)


@pytest.mark.exhaustive_in_pure("the same lines, and slower")
def test_writer_never_waits_for_a_reader_that_is_stopped(pools: Any, kind: str) -> None:
    """In a glance, at any of its steps; and the reader goes on where it was."""
    table = Table(pools, kind)

    def write() -> None:
        for _ in range(ROUNDS_MAX):
            table.put()

    for step in range(1, table.steps + 1, 3):
        assert table.stopped(step, write) in table.had
