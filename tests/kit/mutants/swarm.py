"""Known-bad variants of the `swarm` store, for the checkers to catch.

Each is the shipped store with some functions replaced, run uncompiled (uncompiled.py). Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from kit.mutants.uncompiled import SWARM, Change, replaced, store_in_force, uncompiled
from limpet.fault.explore.explorer import Exploration
from limpet.fault.matrix.fault_profile import FAULT_PROFILES
from limpet.shm import pool as pool_module
from limpet.stores.swarm.layout import (
    DELETED,
    DONE,
    GONE,
    HEADER_WORDS,
    IN_PLACE_WORDS,
    READ,
    STAMP_SHIFT,
    TIME_SHIFT,
    UNDECIDED,
    UNKNOWN,
    VERIFIED,
)
from limpet.stores.swarm.parameters import SwarmParameters
from limpet.stores.swarm.register import is_tombstone, rank_of, row_of, side_of, stamp_of, writer_of

NODE_SIZE: Final = 1 << 20
NUMBERS: Final = ("shm/clients/unique_ids", "shm/clients/writer_numbers")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`changes` of the store, and of the pool's writer numbers (`clock`).

    `says`: the kinds of failure that show it. `exploration`: what it is explored with.
    """

    name: str
    says: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    clock: tuple[Change, ...] = ()
    exploration: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def parameters(self, schedules: int) -> Exploration:
        """Of an exploration that shows it."""
        chosen = {"crashes": 0, "stalls": 0, "value_size": 40, "nodes": 3, **self.exploration}
        clients = chosen["program"].count("|") + 1
        return Exploration(store="swarm", schedules=schedules, seed=1, clients=clients, **chosen)


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Make the pools of this block the mutant's."""
    with (
        store_in_force(SWARM, ("swarm/store", "Swarm"), mutant.changes),
        crowded(),
        pytest.MonkeyPatch.context() as patch,
    ):
        if mutant.clock:
            numbers = uncompiled(NUMBERS, *mutant.clock)[NUMBERS[-1]].WriterNumbers
            patch.setattr(pool_module, "WriterNumbers", numbers)
        yield


@contextlib.contextmanager
def crowded() -> Iterator[None]:
    """Have new stores be one subtable, so that all keys meet; the explorer's nodes be larger."""
    for_pool = SwarmParameters.for_pool.__func__  # type: ignore[attr-defined]

    def one_subtable(cls: Any, *pool: Any, **parameters: Any) -> Any:
        made = for_pool(cls, *pool, **{"cache_size": 64, **parameters})
        return dataclasses.replace(made, subtables=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SwarmParameters, "for_pool", classmethod(one_subtable))
        sized = dataclasses.replace(FAULT_PROFILES["swarm"], explorer_node_size=NODE_SIZE)
        patch.setitem(FAULT_PROFILES, "swarm", sized)
        yield


# ---- write back ----------------------------------------------------------------------------------


def placed_without_writer(word: int, row: int, side: int) -> int:
    row_bits = row << STAMP_SHIFT | row << 1
    return word >> TIME_SHIFT << TIME_SHIFT | word & VERIFIED | row_bits | side


def puts_into_the_writers_row(self: Any, copy: int) -> bool:
    """A copy's pointer is the writer's, and its word of M is in our row."""
    register, row, buffer = self.quorum.register, self.row, self.buffer
    for n in range(self.quorum.read):
        replica = self.quorum.at(n)
        top, mine = self.quorum.tops[replica.k], self.quorum.mine[replica.k]
        if stamp_of(top) < stamp_of(copy) and rank_of(mine) < rank_of(copy):
            self.quorum.buffers.write(buffer, replica.k)
            at = register.pointer(replica.k, row_of(copy), side_of(copy))
            found = self.endpoint.cas(at, register.ident, buffer.reference)
            if found not in (register.ident, buffer.reference):
                return False
            buffer.published = True
            at = register.metadata(replica.k, row.writer)
            if self.endpoint.cas(at, mine, copy) != mine:
                return False
    return True


def read_without_write_back(self: Any) -> int:
    quorum = self.quorum
    outcome = quorum.gather(True, quorum.majority)
    self.endpoint.wait()
    if outcome == GONE:
        return GONE
    return int(DELETED if outcome == DELETED or is_tombstone(quorum.top) else DONE)


def remembers_copies(put_copy: Any) -> Any:
    def run(self: Any, copy: int) -> bool:
        done = bool(put_copy(self, copy))
        if not done:
            self.row.copied = copy
        return done

    return run


def recycles_what_is_remembered(read: Any) -> Any:
    def run(self: Any) -> int:
        outcome = int(read(self))
        if outcome == DONE and getattr(self.row, "copied", 0):
            self.row.make_room(self.row.copied)
        return outcome

    return run


# ---- the clock -----------------------------------------------------------------------------------


class Guessing:
    """A clock that does not mind what others have."""

    def __init__(self, clock: Any) -> None:
        self.guess = clock.guess

    def after(self, time: int) -> int:
        return int(self.guess())


def starts_anew(self: Any, word: int) -> None:
    self.owner, self.word, self.last = self.client.ident, word, 0
    self.ceiling = self.endpoint.load(word)


def trusts_its_number(self: Any) -> None:
    if self.owner != self.client.ident:
        self.forget()
    self.owner, self.drops = self.client.ident, self.client.drops


def awaits_nobody(self: Any, claim: Any) -> list[Any]:
    return []


def guesses(init: Any) -> Any:
    def run(self: Any, max_register: Any, quorum: Any, row: Any, clock: Any) -> None:
        init(self, max_register, quorum, row, Guessing(clock))

    return run


# ---- buffers and registers -----------------------------------------------------------------------


def gives_up_without_a_hand(self: Any, seen: int, row: int, reference: int) -> None:
    for k in range(self.count):
        for side in range(2):
            at = self.register.pointer((seen + k) % self.count, row, side)
            if self.endpoint.load(at) == reference:
                self.endpoint.cas(at, reference, self.register.ident)
    self.heap.free(reference)


def counts_alone(init: Any) -> Any:
    """A handle numbers what it remembers by itself."""

    def run(self: Any, client: Any, entry: int) -> None:
        init(self, client, entry)
        self.last = array("Q", [0])

    return run


def stays_on_its_side(end: Any) -> Any:
    """A row has one buffer, which each WRITE uses again."""

    def run(self: Any, w: int, held: int) -> None:
        end(self, w, held)
        self.side = side_of(w)

    return run


def reads_any_stamp(read_at: Any) -> Any:
    """A buffer's value is taken, whichever tuple it is of."""

    def run(self: Any, reference: int, address: int, stamp: int, length: int) -> Any:
        self.endpoint.read_words(address, self.image, HEADER_WORDS)
        there = self.image[0] >> STAMP_SHIFT
        return read_at(self, reference, address, there, UNKNOWN)

    return run


def disposes_with_its_ident(self: Any) -> None:
    for buffer in self.buffers_named():
        self.heap.free(buffer)


def reads_in_place_unchecked(self: Any, stamp: int) -> Any:
    at = self.register.width
    length = self.front[at + 1]
    if self.front[at] != stamp << STAMP_SHIFT or length > self.register.capacity:
        return None
    return self.front.tobytes()[8 * (at + IN_PLACE_WORDS) :][:length]


def takes_the_last(self: Any, replica: Any) -> None:
    self.order[self.read] = replica.k
    self.read += 1
    self.valid += replica.note_top()
    self.top = self.tops[replica.k]


def compares_whole_words(self: Any, word: int) -> int:
    return sum(self.tops[self.order[n]] == word for n in range(self.read))


def agrees_without_numbers(self: Any, side: int) -> int:
    named = {self.quorum.at(n).named(self.writer, side) for n in range(self.quorum.read)}
    return named.pop() if len(named) == 1 else UNDECIDED


# ---- Safe-Guess ----------------------------------------------------------------------------------


def reads_by_algorithm_3(self: Any) -> int:
    seen: dict[int, tuple[int, bytes]] = {}
    while True:
        outcome = self.max_register.read()
        if outcome != DONE:
            return int(outcome)
        m = self.quorum.top
        value = self.quorum.value_of(m)
        if value is None:
            continue
        self.result = value
        if m & VERIFIED:
            return DONE
        before = seen.get(writer_of(m))
        if before is not None and before[0] == stamp_of(m):
            if self.lock.try_lock(m, READ):
                self._verify_read(m, value)
                return DONE
            self.result = before[1]
            return DONE
        seen[writer_of(m)] = (stamp_of(m), value)


class Granted:
    """A timestamp lock that every client gets."""

    def try_lock(self, word: int, mode: int) -> bool:
        return True


def unlocked(slow_path: Any) -> Any:
    def run(self: Any, *arguments: Any) -> int:
        lock, self.lock = self.lock, Granted()
        try:
            return int(slow_path(self, *arguments))
        finally:
            self.lock = lock

    return run


def withdraws(confirmed: int = DONE, locks: bool = True) -> Any:
    """`SafeGuess._withdraw`, in which a tombstone is lost if it is found `confirmed`."""

    def run(self: Any, w: int, held: int) -> int:
        quorum, row = self.quorum, self.row
        if quorum.valid == quorum.read and quorum.count_at_least(quorum.top) < quorum.majority:
            row.make_room(w)
            if self.max_register.confirm() == confirmed:
                row.side = -1
                m = quorum.top
                if rank_of(m) > rank_of(w):
                    return int(self._slow_path(w, m, row.buffer.value, held))
                self._verify_own(w, held)
                return DONE
        return DELETED if not locks or self.lock.try_lock(w, 2) else DONE

    return run


class Hasty:
    """Takes every tombstone for one at a majority."""

    def __init__(self, max_register: Any) -> None:
        self.write = max_register.write

    def confirm(self) -> int:
        return DELETED


def insists_hastily(init: Any) -> Any:
    def run(self: Any, max_register: Any, quorum: Any, row: Any) -> None:
        init(self, Hasty(max_register), quorum, row)

    return run


# ---- the variants --------------------------------------------------------------------------------

NOTHING: Final = lambda self: None  # noqa: E731
STALE: Final = "ua ua ga|ua ga|ga ga"
ABD: Final = {"guess": False, "in_place": False, "buffers": 1}
ENDS: Final = ("client 0", "client 1", "client 2", "history", "check", "no end")
TURNS: Final = {"program": "ua ua|ua ua|ga ua", "parameters": {"writers": 1}}
EXPLORED: Final = (
    Mutant(
        "s9-copy-is-said-to-be-in-the-writers-row", ("client 0", "client 1", "history", "check"),
        (
            replaced("swarm/max_register", "WriteBack._copy_of", lambda self, word: word),
            replaced("swarm/max_register", "WriteBack._put_copy", puts_into_the_writers_row),
        ),
        exploration={"program": "ub ub gb|ub gb|gb gb"},
    ),
    Mutant(
        "s9-copy-does-not-carry-its-writer", ("client 0", "client 1", "history", "check", "no end"),
        (replaced("swarm/register", "placed", placed_without_writer),),
        exploration={"program": "ub gb|ub gb|gb gb|gb"},
    ),
    Mutant(
        "abd-timestamp-is-guessed", ("client 0", "client 1", "history", "check", "no end"),
        (Change("swarm/abd", "Abd.__init__", guesses),),
        exploration={"program": STALE, "parameters": ABD},
    ),
    Mutant(
        "buffer-is-given-up-without-a-journal", ("leaked",),
        (replaced("swarm/row", "Row.give_up", gives_up_without_a_hand),),
        exploration={"program": "ua ua da|ga", "crashes": 1},
    ),
    Mutant(
        "kept-without-a-look-at-the-ident", ("leaked",),
        (replaced("swarm/replica", "Replica.stands", lambda self: True),),
        exploration={"program": "ua|da|ga"},
    ),
    Mutant(
        "register-is-given-up-with-its-ident", ("leaked",),
        (replaced("swarm/key_register", "Recycling.dispose_current", disposes_with_its_ident),),
        exploration={"program": "ua ua|da ia|ga ga"},
    ),
    Mutant(
        "s12-holder-does-not-look-at-its-number", (*ENDS, "leaked"),
        clock=(replaced(NUMBERS[-1], "WriterNumbers._look_again", trusts_its_number),),
        exploration=TURNS,
    ),
    Mutant(
        "s12-number-is-taken-amid-an-operation", (*ENDS, "leaked"),
        clock=(replaced(NUMBERS[-1], "WriterNumbers._left", awaits_nobody),),
        exploration=TURNS,
    ),
)  # fmt: skip

LITERAL_ALGORITHM_3: Final = Mutant(
    "s1-literal-algorithm-3",
    (),
    (replaced("swarm/safe_guess", "SafeGuess.read", reads_by_algorithm_3),),
)
CLOCK_STARTS_ANEW: Final = Mutant(
    "s2-clock-is-not-that-of-the-number",
    (),
    clock=(replaced("shm/clients/unique_ids", "Clock.begin", starts_anew),),
)
WHOLE_WORDS: Final = Mutant(
    "s5-whole-words-are-compared",
    (),
    (replaced("swarm/replica", "Quorum.count_at_least", compares_whole_words),),
)
NOT_WRITTEN_BACK: Final = Mutant(
    "s8-reader-does-not-write-back",
    (),
    (replaced("swarm/max_register", "MaxRegister.read", read_without_write_back),),
)
TORN_IN_PLACE: Final = Mutant(
    "s8-torn-value-in-place-is-taken",
    (),
    (replaced("swarm/replica", "Replica.read_in_place", reads_in_place_unchecked),),
)
LAST_IS_TAKEN: Final = Mutant(
    "s3-what-is-read-last-is-taken",
    (),
    (replaced("swarm/replica", "Quorum._note", takes_the_last),),
)
REGISTER_IS_NOT_LOOKED_AT: Final = Mutant(
    "s6-remembered-register-is-not-looked-at",
    (),
    (replaced("swarm/replica", "Replica.is_taken_for_it", lambda self: self.register.ident != 0),),
)
NAMED_IN_PART: Final = Mutant(
    "buffer-is-linked-whose-used-bits-are-not-all-set",
    (),
    (replaced("swarm/key_register", "Recycling.names", lambda self, *pair: self._is_named(*pair)),),
)
TOMBSTONE_WITHOUT_LOCK: Final = Mutant(
    "s4-guess-is-withdrawn-without-a-lock",
    (),
    (replaced("swarm/safe_guess", "SafeGuess._withdraw", withdraws(locks=False)),),
)
WRITTEN_AGAIN_WITHOUT_LOCK: Final = Mutant(
    "guess-is-written-again-without-a-lock",
    (),
    (Change("swarm/safe_guess", "SafeGuess._slow_path", unlocked),),
)
GUESSED_AGAIN: Final = Mutant(
    "guess-is-guessed-again-when-its-tombstone-is-lost",
    (),
    (replaced("swarm/safe_guess", "SafeGuess._withdraw", withdraws(confirmed=GONE)),),
)
TOMBSTONE_AT_A_MINORITY: Final = Mutant(
    "tombstone-at-a-minority-is-taken-for-one-at-a-majority",
    (),
    (Change("swarm/max_register", "Insistence.__init__", insists_hastily),),
)
WRITTEN_WITHOUT_A_LOOK: Final = Mutant(
    "buffer-is-written-again-without-a-look-at-the-ident",
    (),
    (replaced("swarm/replica", "Quorum.stands_at", lambda self, k: True),),
)
HANDLES_DO_NOT_SHARE: Final = Mutant(
    "row-is-remembered-although-another-handle-has-written",
    (),
    (Change("swarm/row", "Turns.__init__", counts_alone),),
)
SIDE_STAYS: Final = Mutant(
    "buffer-of-the-last-tuple-is-written-again",
    (),
    (Change("swarm/row", "Row.end", stays_on_its_side),),
)
STAMP_IS_NOT_COMPARED: Final = Mutant(
    "buffer-that-was-written-again-is-read-as-the-old-value",
    (),
    (Change("swarm/replica", "Buffers._read_at", reads_any_stamp),),
)
TAKEN_FROM_THE_LIVING: Final = Mutant(
    "buffers-of-a-client-given-up-alive-are-written-again",
    (),
    (replaced("swarm/row", "Row._are_anothers", lambda self: False),),
)
NUMBER_IS_EMPTY: Final = Mutant(
    "s10-number-of-a-tombstone-is-taken-for-empty",
    (),
    (
        replaced("swarm/row", "Row._agreed", agrees_without_numbers),
        replaced("swarm/row", "Row._drop_numbers", NOTHING),
    ),
)
NUMBER_IS_LEFT: Final = Mutant(
    "s10-number-without-a-tombstone-is-left-where-it-is",
    (),
    (replaced("swarm/row", "Row._drop_numbers", NOTHING),),
)
COPY_IS_REMEMBERED: Final = Mutant(
    "s11-copy-that-was-not-written-back-is-remembered",
    (),
    (
        Change("swarm/max_register", "WriteBack._put_copy", remembers_copies),
        Change("swarm/max_register", "MaxRegister.read", recycles_what_is_remembered),
    ),
)
"""Those from LITERAL_ALGORITHM_3 on are shown step by step: it takes many schedules, or lost nodes,
to come by them."""

UNCHANGED: Final = Mutant("unchanged", ())
