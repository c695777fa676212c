"""Gets without a pin, while what they read is given up and used again (stores/race/glance.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.processes import child

import limpet
from limpet.fault.inject.stopping import StoppingPool
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.hooked import READS, HookedEndpoint
from limpet.shm.endpoint.layout import DROPS
from limpet.shm.endpoint.slots import INCARNATION_BITS, PIN
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreDropped

greenlet = pytest.importorskip("greenlet").greenlet

KEY: Final = b"k"
SIZE: Final = 900
"""Bytes of a value: the key's object is read in several steps."""
PIECE: Final = 40
"""Words of a read that are one step."""
ROUNDS_MAX: Final = 2000
LARGE: Final = 9000
"""Bytes of a value that takes two reads."""
STEPS_LARGE: Final = 60
"""More steps than a get of it has."""
STEPS: Final = 12
"""Of a get: the entry, two buckets, the stamp and the slot, the object in three, and four again."""
HALF_WRITTEN: Final = 60
"""A step of an update in the midst of writing the object."""


class ReadingEndpoint(HookedEndpoint, verbs=READS):
    """Calls `visit` before each step of a get."""

    def __init__(self) -> None:
        self.visit: Callable[[int], object] | None = None
        self.steps = 0
        self.looks = 0

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if self.visit is not None:
            visit, self.visit = self.visit, None
            self.steps += 1
            visit(addr)
            self.visit = visit
        return min(words, PIECE)


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


class DropsAreNotRead(ReadingEndpoint):
    """Known-bad: nobody looks whether the store was dropped."""

    def stands(self, *rest: int) -> bool:
        return super().stands(*rest[:6], *rest[4:6])


def value(number: int, size: int = SIZE) -> bytes:
    """A value that is whole if all of its pieces are the same."""
    return b"%08d" % number * (size // 8)


class Table:
    """A store with a key, a reader, and a writer that is another client."""

    def __init__(
        self, pools: Any, endpoint: type[ReadingEndpoint] = ReadingEndpoint, size: int = SIZE
    ) -> None:
        self.size = size
        first = pools(node_size="512KiB" if size == SIZE else "2MiB")
        self.writing = pools.keep(StoppingPool.open(first.url))
        self.pool_class: Any = type("ReadingPool", (limpet.Pool,), {"endpoint_class": endpoint})
        self.reading = pools.keep(self.pool_class.open(first.url))
        self.writer = self.writing.store("race", name="s", capacity=16)
        self.reader = self.reading.store("race", name="s")
        self.number = 0
        self.had: set[bytes | None] = set()
        """The values of the key since the get began."""
        self.put()
        for _ in range(2):
            assert self.reader.get(KEY) == self.value()

    def value(self) -> bytes:
        """The value that the key has now."""
        return value(self.number, self.size)

    def put(self) -> None:
        self.number += 1
        self.writer.put(KEY, self.value())
        self.had.add(self.value())

    def word(self) -> int:
        """The word of the key's slot."""
        index, place = self.writer.index, self.writer.place

        def look() -> int:
            index.look_up(place, KEY)
            return int(place.word)

        return int(self.writer.within(look))

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
            self.writer.put(b"other", b"\xff" * self.size)
            index, place = self.writer.index, self.writer.place
            self.writer.within(index.look_up, place, b"other")
            if place.word & ADDRESS_MASK == old:
                return
        raise AssertionError(f"the memory at {old:#x} is not used again")

    def delete(self) -> None:
        self.writer.delete(KEY)
        self.had.add(None)

    def insert_anew(self) -> None:
        self.delete()
        self.put()

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
        self.writing.endpoint.write(index.tables[0], bytes(index.directory_size))

    # ---- a get ----------------------------------------------------------------------------------

    def disturbed(self, step: int, disturb: Callable[[], object]) -> Any:
        """The result of a get that is disturbed before this step."""
        endpoint = self.reading.endpoint
        endpoint.steps = endpoint.looks = 0
        self.had = {self.value()}

        def visit(addr: int) -> None:
            if endpoint.steps == step:
                disturb()

        endpoint.visit = visit
        try:
            return self.reader.get(KEY)
        finally:
            endpoint.visit = None


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
    for step in range(1, (STEPS if table.size == SIZE else STEPS_LARGE) + 1):
        found = table.disturbed(step, lambda: disturb(table))
        if found not in table.had:
            wrong.append((step, found))
        table.put()
        table.reader.get(KEY)
    return wrong


def wrong_last_gets(
    pools: Any, endpoint: type[ReadingEndpoint], disturb: Callable[[Table], None]
) -> list[Any]:
    """The same, of disturbances after which there is no other; StoreDropped counts as None."""
    wrong: list[Any] = []
    for step in range(1, STEPS + 1):
        table = Table(pools, endpoint)
        try:
            found = table.disturbed(step, lambda table=table: disturb(table))
        except StoreDropped:
            continue
        if disturb is Table.drop or found not in table.had:
            wrong.append((step, found))
    return wrong


def half_written(table: Table) -> list[Any]:
    """Wrong results of gets that go on while an object is half written, in the memory and later in
    the slot of the one of which they have read the slot."""
    wrong: list[Any] = []
    half = 0
    for first in range(1, STEPS + 1):
        for second in range(first + 1, STEPS + 1):
            word = table.word()
            last = table.until(word)
            found = _interleaved(table, last, first, second)
            if found not in table.had:
                wrong.append((first, second, found))
            half += table.word() == word
    assert half > STEPS
    return wrong


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
        table.put()
        writing.stop_at = 0
        while reader:
            reader.switch()
    finally:
        endpoint.visit, writing.stop_at = None, 0
    return found[0]


def test_a_get_has_no_pin_and_reads_the_same_twice(pools: Any) -> None:
    table = Table(pools)
    pin = table.reading.client.slot + PIN
    seen: list[int] = []
    pins: list[int] = []
    endpoint = table.reading.endpoint
    before = endpoint.counters("background")["atomics"]

    def visit(addr: int) -> None:
        seen.append(addr)
        pins.append(endpoint.load(pin))

    endpoint.visit = visit
    try:
        assert table.reader.get(KEY) == value(1)
        hits = len(seen)
        assert table.reader.get(b"none", b"-") == b"-"
    finally:
        endpoint.visit = None
    assert set(pins) == {0}
    assert endpoint.counters("background")["atomics"] == before
    place = table.reader.place
    slot, stamp = seen[4], seen[3]
    assert hits == STEPS
    assert seen[0] == place.entry
    assert seen[hits - 4 : hits] == [slot, stamp, place.entry, DROPS]
    assert seen[-2:] == [place.entry, DROPS]


@pytest.mark.parametrize("how", DISTURBANCES)
def test_a_disturbed_get_has_a_value_that_the_key_had(pools: Any, how: str) -> None:
    assert wrong_gets(Table(pools), DISTURBANCES[how]) == []


@pytest.mark.exhaustive_in_pure("the same lines, and slower", quick=["use"])
@pytest.mark.parametrize("how", DISTURBANCES)
def test_a_disturbed_get_of_a_large_value(pools: Any, how: str) -> None:
    table = Table(pools, size=LARGE)
    assert wrong_gets(table, DISTURBANCES[how]) == []
    table.disturbed(0, lambda: None)
    assert STEPS < table.reading.endpoint.steps < STEPS_LARGE


@pytest.mark.parametrize("disturb", [Table.split, Table.drop])
def test_a_get_outlives_the_memory_of_its_index(
    pools: Any, disturb: Callable[[Table], None]
) -> None:
    assert wrong_last_gets(pools, ReadingEndpoint, disturb) == []


def test_a_get_goes_on_while_an_object_is_half_written(pools: Any) -> None:
    assert half_written(Table(pools)) == []


def test_a_client_that_was_declared_dead_is_told_so(pools: Any) -> None:
    pool = pools(multi_host=True)
    other = pools.again(pool)
    store = other.store("race", name="s")
    store.put(KEY, b"v")
    assert store.get(KEY) == b"v"
    pool.membership.recover(other.client_id >> INCARNATION_BITS, other.client.word)
    for key in (KEY, b"none"):
        with pytest.raises(limpet.ClientError):
            store.get(key)


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
    pools: Any, endpoint: type[ReadingEndpoint], how: str, size: int
) -> None:
    assert wrong_gets(Table(pools, endpoint, size), DISTURBANCES[how])


@pytest.mark.parametrize(
    ("endpoint", "disturb"),
    [(EntryIsNotReadAfter, Table.split), (DropsAreNotRead, Table.drop)],
    ids=lambda found: found.__name__,
)
def test_known_bad_variant_reads_an_index_that_is_no_more(
    pools: Any, endpoint: type[ReadingEndpoint], disturb: Callable[[Table], None]
) -> None:
    assert wrong_last_gets(pools, endpoint, disturb)


def test_known_bad_variant_reads_what_is_half_written(pools: Any) -> None:
    assert half_written(Table(pools, SlotIsNotReadBefore))


@pytest.mark.skipif(BUILD != "compiled", reason="the pure build opens only memory that is coherent")
def test_gets_have_pins_where_memory_is_not_coherent(pools: Any) -> None:
    store = pools(coherent=False, coherent_bytes=1 << 20).store("race", name="s")
    store.put(KEY, b"v")
    before = store.endpoint.counters("background")["atomics"]
    assert store.get(KEY) == b"v"
    assert store.endpoint.counters("background")["atomics"] > before


def test_writer_never_waits_for_a_reader_that_is_stopped(pools: Any) -> None:
    """In a glance, at any of its steps; and the reader goes on where it was."""
    table = Table(pools)
    for step in range(1, STEPS + 1, 3):

        def read(step: int = step) -> bytes:
            pool = table.pool_class.open(table.writing.url)
            store = pool.store("race", name="s")
            endpoint = pool.endpoint
            endpoint.visit = lambda addr: (
                endpoint.steps == step and os.kill(os.getpid(), signal.SIGSTOP)
            )
            found = bytes(store.get(KEY))
            endpoint.visit = None
            pool.close()
            return found

        with child(read=read) as reader:
            reader.send("read")
            assert os.WIFSTOPPED(os.waitpid(reader.pid, os.WUNTRACED)[1])
            for _ in range(ROUNDS_MAX):
                table.put()
            os.kill(reader.pid, signal.SIGCONT)
            assert reader.answer() in table.had
