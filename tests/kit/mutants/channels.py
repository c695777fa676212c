"""Known-bad variants of channels, for the explorer to catch.

They are modules run uncompiled (uncompiled.py), with a step left out, or done otherwise, that looks
as if that were as good.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import pytest

from kit.mutants.uncompiled import Change, Mutant, never, nothing, replaced, uncompiled
from limpet.fault.explore.sim_subjects import CHANNELS
from limpet.stores.channels.condition import FREE, OWNER_SHIFT
from limpet.stores.channels.holders.layout import DIED, TAKEN
from limpet.stores.channels.jobs.layout import LEVELS, READY

HERE: Final = "stores/channels/"
MODULES: Final = {
    "deque": ("cells", "deque"),
    "topic": ("cells", "topic"),
    "semaphore": ("holders/holders", "holders/semaphore"),
    "rwlock": ("holders/holders", "holders/rwlock"),
    "condition": ("condition",),
    "jobs": ("jobs/table", "jobs/job_queue"),
}
"""The modules of each kind; the last has its class."""


@contextlib.contextmanager
def in_force(kind: str, mutant: Mutant) -> Iterator[None]:
    """Have the explorer explore the variant under the name of the kind."""
    made = uncompiled([HERE + module for module in MODULES[kind]], *mutant.changes)
    row = CHANNELS[kind]
    cls = getattr(made["channels/" + MODULES[kind][-1]], row.cls.__name__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CHANNELS, kind, dataclasses.replace(row, cls=cls))
        yield


def of(module: str, name: str, by: Any) -> Change:
    """A change that does without what it was."""
    return replaced("channels/" + module, name, by)


# ---- the deque, the topic ------------------------------------------------------------------------


def enters_only(self: Any) -> None:
    self.enter()


def leaves_only(self: Any) -> None:
    self.leave()


def copies_once(self: Any, index: Any) -> Any:
    first, count = self._ends()
    numbers = range(count) if index is None else [index % count]
    return [self._read((first + number) % self.count) for number in numbers]


def puts_first(put: Any) -> Any:
    """The deque's `_put`, with the ends before the element."""

    def run(self: Any, data: bytes, left: bool) -> Any:
        first, count = self._ends()
        if left or count == self.size:
            return put(self, data, left)
        self._count_up()
        self.endpoint.store(self.address, first << 32 | count + 1)
        cell = (first + count) % self.count
        if not self._write(cell, data):
            self.endpoint.store(self.address, first << 32 | count)
            return False
        self.endpoint.wait()
        self._written(cell, data)
        return True

    return run


NO_LOCK: Final = Mutant(
    "changes-without-the-lock",
    (of("cells", "Cells._begin", enters_only), of("cells", "Cells._finish", leaves_only)),
)
COPIES_ONCE: Final = Mutant("copies-once", (of("deque", "Deque._copy", copies_once),))
ENDS_FIRST: Final = Mutant(
    "ends-before-the-element", (Change("channels/deque", "Deque._put", puts_first),)
)


def reads_once(self: Any, reader: Any) -> Any:
    end = self._end()
    oldest = max(0, end - self.size)
    if reader.position < oldest:
        reader.lost += oldest - reader.position
        reader.position = oldest
    if reader.position >= end:
        return None
    data = self._read(reader.position % self.count)
    reader.position += 1
    return data


def misses_unsaid(self: Any, reader: Any) -> Any:
    end = self._end()
    while True:
        position = reader.position = max(reader.position, end - self.size, 0)
        if position >= end:
            return None
        data = self._read(position % self.count)
        end = self.endpoint.load(self.address)
        if end <= position + self.size:
            reader.position = position + 1
            return data


READS_ONCE: Final = Mutant("reads-once", (of("topic", "Topic._next", reads_once),))
MISSES_UNSAID: Final = Mutant("missed-and-not-told", (of("topic", "Topic._next", misses_unsaid),))


def reads_the_cell_first(self: Any, reader: Any) -> Any:
    """The cell is read in the phase of `end`, and before it."""
    position = reader.position
    self._post_cell(position % self.count)
    end = self.endpoint.post_load(self.address)
    self.endpoint.wait()
    end = self.endpoint.result(end)
    if position >= end:
        return None
    if position < end - self.size:
        reader.lost += end - self.size - position
        reader.position = end - self.size
        return reads_the_cell_first(self, reader)
    reader.position = position + 1
    return self._element(position % self.count)


CELL_FIRST: Final = Mutant(
    "cell-before-the-end", (of("topic", "Topic._next", reads_the_cell_first),)
)

# ---- holders -------------------------------------------------------------------------------------


def stores_the_word(commit: Any) -> Any:
    """A change by a store, after a look, in place of the CAS."""

    def run(self: Any, row: int, held: int, value: int, state: int) -> Any:
        if self.endpoint.load(self.address) != self.word:
            self.known = False
            return False
        self.word = self.endpoint.load(self.address)
        done = commit(self, row, held, value, state)
        if not done:
            self.endpoint.store(self.address, self.wanted)
            self.known = False
        return True

    return run


def tells_no_death(without: Any) -> Any:
    def run(self: Any, value: int) -> int:
        return int(without(self, value)) & ~DIED

    return run


def ignores_readers(fits: Any) -> Any:
    def run(self: Any, line: int) -> bool:
        before = self.state
        self.state = before & ~TAKEN if line else before
        try:
            return bool(fits(self, line))
        finally:
            self.state = before

    return run


BURIES_NONE: Final = Mutant(
    "holds-of-the-dead-stay", (of("holders/holders", "Holders.bury", never),)
)
BLIND: Final = Mutant(
    "change-by-a-store", (Change("channels/holders/holders", "Holders.commit", stores_the_word),)
)
UNTOLD: Final = Mutant(
    "death-is-not-told", (Change("channels/holders/holders", "Holders._without", tells_no_death),)
)
BESIDE: Final = Mutant(
    "writes-beside-readers",
    (Change("channels/holders/holders", "Holders._fits", ignores_readers),),
)

# ---- the condition -------------------------------------------------------------------------------


def one_more(notify: Any) -> Any:
    def run(self: Any, n: int = 1) -> None:
        notify(self, n + 1)

    return run


def frees_unseen(self: Any, at: int) -> bool:
    if self._look(at) >> OWNER_SHIFT == self.client.ident:
        self.endpoint.store(at, FREE)
    return False


ONE_MORE: Final = Mutant(
    "notifies-one-more", (Change("channels/condition", "Condition.notify", one_more),)
)
UNSEEN: Final = Mutant(
    "timeout-is-not-looked-at-again", (of("condition", "Condition._free", frees_unseen),)
)

# ---- jobs ----------------------------------------------------------------------------------------


def gives_none_back(self: Any, now: int, mine: Any) -> tuple[int, int]:
    return 0, 0


def takes_by_a_store(lock: Any) -> Any:
    """The lock by a look and a store."""

    def run(self: Any, place: int) -> Any:
        at = self.control
        if self.endpoint.load(at) == 0:
            self.endpoint.store(at, self.client.ident)
        return lock(self, place)

    return run


def delivers_for_ever(release: Any) -> Any:
    def run(self: Any, number: int, due: int, reason: bytes) -> Any:
        most, self.max_deliveries = self.max_deliveries, 1 << 12
        try:
            return release(self, number, due, reason)
        finally:
            self.max_deliveries = most

    return run


def finds_no_key(self: Any, key: int) -> int:
    return 0


def in_one_line(enlist: Any) -> Any:
    """Jobs that are ready in the order in which they became so, of whatever priority."""

    def run(self: Any, number: int, state: int) -> None:
        if state == READY:
            self._append(LEVELS, number)
        else:
            enlist(self, number, state)

    return run


def puts_at_once(put: Any) -> Any:
    return lambda self, data, level, due, key: put(self, data, level, 0, key)


def acks_uncounted(ack: Any) -> Any:
    def run(self: Any, number: int) -> None:
        ack(self, number)
        self._count(1)

    return run


LOST_WITH_THE_DEAD: Final = Mutant(
    "jobs-of-the-dead-stay", (of("jobs/table", "JobTable.give_back", gives_none_back),)
)
FOR_EVER: Final = Mutant(
    "no-dead-letters", (Change("channels/jobs/table", "JobTable.release", delivers_for_ever),)
)
TWICE: Final = Mutant("key-is-not-looked-for", (of("jobs/table", "JobTable._find", finds_no_key),))
ONE_LINE: Final = Mutant(
    "priorities-in-one-line", (Change("channels/jobs/table", "JobTable._enlist", in_one_line),)
)
TAKES_TOO: Final = Mutant(
    "two-take-the-lock", (Change("channels/jobs/table", "JobTable.lock", takes_by_a_store),)
)
INDEX_AS_IT_IS: Final = Mutant(
    "index-is-not-made-anew", (of("jobs/table", "JobTable.rebuild", nothing),)
)
NO_DELAY: Final = Mutant(
    "delay-is-not-kept", (Change("channels/jobs/table", "JobTable.put", puts_at_once),)
)
UNCOUNTED: Final = Mutant(
    "ack-is-not-counted", (Change("channels/jobs/table", "JobTable.ack", acks_uncounted),)
)
