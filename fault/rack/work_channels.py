"""The work on channels: a lock and what it protects, a queue, a counter, a barrier.

Notes of a lock have INSERT for a turn's take and DELETE for its release. The value of a take's
`read` is HAD or INHERITED; that of a release is the count that the turn has made.
"""

from __future__ import annotations

import abc
import itertools
import os
import queue
import random
import time
from collections import Counter as Multiset
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from limpet.fault.check.channel_history import judge_lock, judge_queue
from limpet.fault.check.linearize import Timed
from limpet.fault.check.models import LockOp
from limpet.fault.check.recorder import Notes, Operation, Result
from limpet.fault.check.recording import from_notes
from limpet.fault.check.self_check import identity
from limpet.fault.drill.drill_client import Values, judge
from limpet.fault.drill.drill_history import torn, value_bytes
from limpet.fault.inject.counters import PUTS, Counter
from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.fault.rack.record import NOTES_MAX, Record
from limpet.fault.rack.work import FINAL_SLOT, HISTORY, WHOLE, Deaths, Wrong
from limpet.stores.channels.barrier.layout import AGAIN_SHIFT, ROUND_SHIFT

NAME: Final = "rack"
SEED: Final = 7
BUDGET: Final = 5_000_000
"""Configurations that a verdict may take: the clients stay close together, so it is seldom many."""
PATIENCE_S: Final = 30.0
"""How long the last client waits for a lock that a dead client may hold."""
EXCLUDED: Final = "no two turns of the lock had the protected count at one time"
COUNTED: Final = "every addition that returned is counted, and none twice"
GIVEN: Final = "every element was got, or is among those that lost() gives back"
TOGETHER: Final = "no client left a round of the barrier before all of that round had come"
EVERY: Final = "no client that lived was left out of a round, and the barrier never broke"


class ChannelWork(abc.ABC):
    """Turns of a channel, one after the other, until the client is to stop.

    `turn(pool, log, incarnation)` gives the work of one turn, which notes it in the log. The
    channel is opened as its row says (channel_kinds.py), unless clients need another one.
    """

    checks: ClassVar[tuple[str, ...]]
    size: ClassVar[int] = 8
    """Bytes that a turn is said to move."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, pool: Any) -> Any:
        """The channel; it is made if it is not there."""
        return CHANNELS[self.kind].open(pool, NAME)

    @abc.abstractmethod
    def turn(self, pool: Any, log: Any, incarnation: int) -> Callable[[], object]:
        """The work of one turn of a client."""

    @abc.abstractmethod
    def found(self, pool: Any) -> dict[str, Any]: ...

    @abc.abstractmethod
    def judge(self, record: Record, deaths: Deaths, found: Mapping[str, Any]) -> Wrong: ...

    def prepare(self, pool: Any, record: Record) -> None:
        self.open(pool)

    def work(
        self, pool: Any, record: Record, slot: int, incarnation: int, counter: Counter
    ) -> None:
        log = record.log(slot, incarnation)
        turn = self.turn(pool, log, incarnation)
        counter.start(os.getpid(), pool.client_id)
        while not counter.stopped and log.count + 2 <= NOTES_MAX:
            start_ns = time.perf_counter_ns()
            turn()
            counter.add(PUTS, self.size, time.perf_counter_ns() - start_ns)

    def read(self, pool: Any, record: Record, incarnation: int) -> list[str]:
        return []

    def check(self, pool: Any) -> None:  # noqa: B027
        """Nothing: a channel has no check()."""


# ---- a lock ------------------------------------------------------------------------------------

HAD, INHERITED = 1, 2
TIMEOUTS: Final = (-1.0, 0.0005, 0.0)


class LockWork(ChannelWork):
    """Take a lock, count up what it protects by two plain stores, and release it.

    The count is in two elements of an array. A turn sets the first and then the second, so they
    differ only when a holder has died in between, and the next holder is told that it inherits.
    """

    checks = (EXCLUDED, HISTORY)

    def open(self, pool: Any) -> tuple[Any, Any]:
        return super().open(pool), pool.array(NAME + "-count", 2)

    def turn(self, pool: Any, log: Any, incarnation: int) -> Callable[[], object]:
        shared, source = self.open(pool), random.Random(SEED << 32 | incarnation)
        return lambda: _take(
            *shared, log, source.choice(TIMEOUTS), 0.001 * (source.random() < 0.3)
        )  # fmt: skip

    def read(self, pool: Any, record: Record, incarnation: int) -> list[str]:
        had = _take(*self.open(pool), record.log(FINAL_SLOT, incarnation), PATIENCE_S, 0.0)
        return [] if had else [f"the lock was not to be had in {PATIENCE_S:.0f} s"]

    def found(self, pool: Any) -> dict[str, Any]:
        return {"count": list(pool.array(NAME + "-count", 2))}

    def judge(self, record: Record, deaths: Deaths, found: Mapping[str, Any]) -> Wrong:
        notes = record.notes()
        counts = Multiset(notes["value"][notes["op"] == Operation.DELETE].tolist())
        wrong = [f"{number} turns counted to {count}" for count, number in counts.items()
                 if number > 1]  # fmt: skip
        first, second = found["count"]
        if first != second or first < max(counts, default=0):
            wrong.append(f"the count is {first}, {second}, and turns counted to {max(counts)}")
        fault = judge_lock([*_lock_operations(notes), *_deaths(deaths)], BUDGET)
        return {EXCLUDED: wrong, HISTORY: [fault] if fault else []}


def _take(lock: Any, count: Any, log: Any, timeout_s: float, dwell_s: float) -> bool:
    """Make a turn, and note it, if the lock is to be had in that time (-1: wait for it)."""
    log.call(Operation.INSERT, 0)
    if not lock.acquire(timeout_s != 0, timeout_s or -1):
        log.returned(Result.MISSING)
        return False
    inherited = lock.inherited
    log.returned(Result.OK, INHERITED if inherited else HAD)
    first, second = count[0], count[1]
    if first != second and not inherited:
        raise AssertionError(f"the count is {first}, {second}, and no holder has died")
    count[0] = first + 1
    time.sleep(dwell_s)
    count[1] = first + 1
    log.call(Operation.DELETE, 0, first + 1)
    lock.release()
    log.returned(Result.OK)
    return True


def _lock_operations(notes: Notes) -> Iterator[Timed[LockOp]]:
    for client, op, result, _, _, read, call, back in notes.tolist():
        until = back if result else None
        if op == Operation.DELETE:
            yield Timed(LockOp("release", client), call, until)
        elif result != Result.MISSING:
            inherited = read == INHERITED if result else None
            yield Timed(LockOp("take", client, inherited), call, until)


def _deaths(deaths: Deaths) -> Iterator[Timed[LockOp]]:
    for client, ticket in deaths.items():
        yield Timed(LockOp("die", client), ticket, None)


# ---- a queue -----------------------------------------------------------------------------------

ITEM_SIZE: Final = 64
SIZES: Final = (40, 400)
"""Elements of up to ITEM_SIZE bytes lie in the ring, larger ones in objects."""
MAXSIZE: Final = 8
GETS: Final = 0.6


class QueueWork(ChannelWork):
    """Put elements of many sizes and get them, without waiting."""

    checks = (WHOLE, GIVEN, HISTORY)
    size = 0

    def open(self, pool: Any) -> Any:
        return pool.queue(NAME, MAXSIZE, item_size=ITEM_SIZE, codec="bytes")

    def turn(self, pool: Any, log: Any, incarnation: int) -> Callable[[], object]:
        shared, sequences = self.open(pool), itertools.count(1)
        values, source = Values(SIZES, SEED), random.Random(SEED << 32 | incarnation)

        def turn() -> None:
            if source.random() < GETS:
                self._get(shared, log)
                return
            sequence = next(sequences)
            value = values.make(0, incarnation, sequence, source.random())
            log.call(Operation.PUT, 0, identity(incarnation, sequence))
            try:
                shared.put_nowait(value)
                log.returned(Result.OK)
            except queue.Full:
                log.returned(Result.FULL)

        return turn

    def _get(self, shared: Any, log: Any) -> bool:
        """Get an element, and be done with it; False if there is none."""
        log.call(Operation.GET, 0)
        try:
            value = shared.get_nowait()
        except queue.Empty:
            log.returned(Result.MISSING)
            return False
        result, read, _ = judge(value, 0)
        log.returned(result, read)
        shared.task_done()
        return True

    def read(self, pool: Any, record: Record, incarnation: int) -> list[str]:
        shared, log = self.open(pool), record.log(FINAL_SLOT, incarnation)
        while self._get(shared, log):
            pass
        return []

    def found(self, pool: Any) -> dict[str, Any]:
        return {"lost": [judge(value, 0)[1] for value in self.open(pool).lost()]}

    def judge(self, record: Record, deaths: Deaths, found: Mapping[str, Any]) -> Wrong:
        notes = record.notes()
        keys = [b"queue"]
        whole = notes[notes["result"] != Result.TORN]
        got = set(whole["read"].tolist())
        put = whole[(whole["op"] == Operation.PUT) & (whole["result"] == Result.OK)]
        gone = set(put["value"].tolist()) - got - set(found["lost"])
        wrong = [f"neither got nor given back: {number:#x}" for number in sorted(gone)]
        fault = judge_queue(list(from_notes(whole, keys.__getitem__, value_bytes)), BUDGET)
        return {WHOLE: torn(notes, keys), GIVEN: wrong, HISTORY: [fault] if fault else []}


# ---- a counter ---------------------------------------------------------------------------------


class CounterWork(ChannelWork):
    """Add ones to a counter."""

    checks = (COUNTED,)

    def turn(self, pool: Any, log: Any, incarnation: int) -> Callable[[], object]:
        shared = self.open(pool)

        def turn() -> None:
            log.call(Operation.UPDATE, 0)
            log.returned(Result.OK, shared.add(1))

        return turn

    def found(self, pool: Any) -> dict[str, Any]:
        return {"count": self.open(pool).value}

    def judge(self, record: Record, deaths: Deaths, found: Mapping[str, Any]) -> Wrong:
        notes = record.notes()
        returned = notes[notes["result"] == Result.OK]
        least, most = len(returned), len(notes)
        wrong = []
        if not least <= found["count"] <= most:
            wrong.append(f"it counts {found['count']}, of {least} to {most} additions")
        if len(set(returned["read"].tolist())) != least:
            wrong.append("two additions gave the same number")
        return {COUNTED: wrong}


# ---- a barrier -----------------------------------------------------------------------------------

PARTIES: Final = 4
"""The clients of both machines that work at one time."""


class BarrierWork(ChannelWork):
    """Wait at a barrier, again and again; the living go on without a client that died.

    The `read` of a note is the number of the round that the client has passed.
    """

    checks = (TOGETHER, EVERY)

    def open(self, pool: Any) -> Any:
        return pool.barrier(NAME, PARTIES, on_death="continue")

    def turn(self, pool: Any, log: Any, incarnation: int) -> Callable[[], object]:
        shared = self.open(pool)

        def turn() -> None:
            log.call(Operation.UPDATE, 0)
            shared.wait()
            log.returned(Result.OK, shared.came_in >> ROUND_SHIFT - AGAIN_SHIFT)

        return turn

    def found(self, pool: Any) -> dict[str, Any]:
        return {"broken": self.open(pool).broken}

    def judge(self, record: Record, deaths: Deaths, found: Mapping[str, Any]) -> Wrong:
        notes = record.notes()
        passed = notes[notes["result"] == Result.OK]
        early = []
        for number in sorted(set(passed["read"].tolist())):
            of = passed[passed["read"] == number]
            if of["call_ns"].max() > of["return_ns"].min():
                early.append(f"round {number} was left before client "
                             f"{of['client'][of['call_ns'].argmax()]} had come")  # fmt: skip
        wrong = ["the barrier is broken"] if found["broken"] else []
        for client in sorted(set(passed["client"].tolist())):
            rounds = sorted(passed["read"][passed["client"] == client].tolist())
            if rounds != list(range(rounds[0], rounds[0] + len(rounds))):
                wrong.append(f"client {client} was not in each round from {rounds[0]} to "
                             f"{rounds[-1]}, or in one of them twice")  # fmt: skip
        return {TOGETHER: early, EVERY: wrong}


WORKS: Final[Mapping[str, Callable[[str], ChannelWork]]] = {
    "lock": LockWork, "queue": QueueWork, "counter": CounterWork, "barrier": BarrierWork,
}  # fmt: skip
"""Of channels whose histories are judged."""
