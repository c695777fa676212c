"""Safe-Guess: wait-free replicated registers, one round trip (SWARM section 3, algorithm 10).

The text's algorithm 3 has an `elif` at the wrong depth, and its READ returns values whose lock was
refused; algorithm 10 has it right (trap S1). With its lines, w being meant in line 6:

    4  def WRITE(v):
    5    w = (guessTs(), GUESSED, v)
    6    in parallel {m = M.READ(), M.WRITE(w)}
    7    if m <= w:                                  fast path
    8      in bg: M.WRITE(w with VERIFIED)
    9    else:                                       slow path: the timestamp may have been stale
    10     if TSL[tid].TRYLOCK(w.ts, WRITE):
    11       M.WRITE(((m.ts.i + 1, tid), VERIFIED, v))
    13 def READ():
    14   seen = {}
    15   while True:
    16     m = M.READ()
    17     if m is VERIFIED: return m.v              fast path
    18     if m in seen.values:                      fresh timestamp
    19       if TSL[m.ts.tid].TRYLOCK(m.ts, READ):
    20         in bg: M.WRITE(m with VERIFIED)
    21         return m.v
    22     elif m.ts.tid in seen.keys:               wait-free path
    23       return seen[m.ts.tid].v
    24     seen[m.ts.tid] = m

The functions below name these lines. Points that the paper leaves open, and our choices:
    - the M.READ of a WRITE need not make its maximum known to a majority (appendix A.2), but before
      TRYLOCK a majority must have greater tuples than the guess. Otherwise, if the writer stops, a
      reader could find a guess whose lock is refused, and nothing greater. If fewer than a majority
      of all replicas have greater tuples, no complete write is greater, and the guess was not stale
    - a WRITE guesses once. A second guess would look like the next WRITE of the same writer, and
      readers would take the first one for completed. So the writer takes its memory before it
      guesses
    - a tombstone is greater than all (trap S4). A WRITE that meets one withdraws its guess by the
      lock; if a reader has confirmed the guess, the WRITE took effect before the tombstone

A kill leaves behind: a tuple at a minority or, GUESSED, at a majority, which readers resolve (trap
S8); its buffer, in the client journal, or named by a pointer, or both.

Timestamp locks TSL (`TimestampLock`; SWARM section 3.3 and appendix B, algorithm 9). Each replica
of a register has a word for each writer, a fallible CAS object. TRYLOCK(ts, mode) races for a
majority of the words of the writer of `ts`; READ and WRITE of the same timestamp never both
succeed. Locks are never unlocked, and locked again at higher timestamps.

A lock with a higher timestamp than its writer's would make the writer believe that a reader has
confirmed its guess (trap S2). So the timestamps of a writer's number only ever rise, even when
another client takes the number over: shm/clients/unique_ids.py.
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import NodeFailed
from limpet.stores.swarm.layout import (
    AGAIN,
    ATTEMPTS_MAX,
    DELETED,
    DONE,
    GONE,
    GUESSED,
    NAMED,
    NO_MEMORY,
    READ,
    REFUSED,
    REPLICAS_ROW,
    ROW,
    STAMP_SHIFT,
    VERIFIED,
    WORDS,
    WRITE,
)
from limpet.stores.swarm.max_register import Insistence, MaxRegister, Protocol
from limpet.stores.swarm.register import (
    is_tombstone,
    rank_of,
    side_of,
    stamp_of,
    time_of,
    tuple_word,
    writer_of,
)
from limpet.stores.swarm.replica import Quorum
from limpet.stores.swarm.row import Row


class TimestampLock:
    """The timestamp locks of the current register."""

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.register = self.quorum.register
        self.endpoint = self.quorum.endpoint
        self.found = array("Q", bytes(8 * REPLICAS_ROW))
        """`read` of the algorithm."""

    def try_lock(self, word: int, mode: int) -> bool:
        """TRYLOCK the timestamp of the tuple `word`. Raises NodeFailed without a majority."""
        quorum = self.quorum
        if writer_of(word) >= self.register.writers:
            quorum.wait_again(ATTEMPTS_MAX + 1, word, "is of a writer that there is not")
        locked = stamp_of(word) << STAMP_SHIFT | mode
        completed = 0
        for k in range(quorum.count):
            self.found[k] = 0  # line 4
        refused = False
        k = self.register.first
        rounds = 0
        lost = -1
        for _ in range(quorum.count):  # line 5
            if self.endpoint.failed(self.register.bases[k]):
                lost = self.register.bases[k] >> NODE_SHIFT
                k = k + 1 if k + 1 < quorum.count else 0
                continue
            try:
                rounds = max(rounds, self._race(k, writer_of(word), locked))
            except NodeFailed as error:
                lost = error.node
                quorum.view.fail_if_lost(lost)
            else:
                completed += 1
                if stamp_of(self.found[k]) > stamp_of(locked):  # line 11
                    refused = True
                if self.found[k] & (READ | WRITE) & ~mode:  # line 12
                    refused = True
            if completed == quorum.majority:  # line 10
                break
            k = k + 1 if k + 1 < quorum.count else 0
        for _ in range(rounds):
            self.endpoint.wait()
        if completed < quorum.majority:
            raise NodeFailed(lost, "a majority of the replicas of the key is lost")
        return not refused

    def _race(self, k: int, writer: int, locked: int) -> int:
        """Lines 6 to 9, on one replica; how many iterations. All replicas run at the same time."""
        at = self.register.lock(k, writer)
        iterations = 0
        while stamp_of(self.found[k]) < stamp_of(locked):
            expected = self.found[k]
            self.found[k] = self.endpoint.cas(at, expected, locked)
            iterations += 1
            if self.found[k] == expected:
                self.found[k] = locked
        return iterations


class SafeGuess(Protocol):
    """WRITE and READ of the current register."""

    def __init__(self, max_register: MaxRegister, quorum: Quorum, row: Row, clock: Any) -> None:
        Protocol.__init__(self, max_register, quorum, row, clock)
        self.lock = TimestampLock(quorum)
        self.insistence = Insistence(max_register, quorum, row)

    # ---- WRITE ----------------------------------------------------------------------------------

    def write(self, value: bytes) -> int:
        """WRITE; 1 round trip if the row is `known`.

        DONE; or nothing was done: GONE, DELETED, NO_MEMORY, AGAIN.
        """
        quorum, row = self.quorum, self.row
        writer = row.writer
        if not (row.known and row.suits(len(value))):
            row.known = False
            outcome = self._read_row()
            if outcome != DONE:
                return outcome
        held = row.take_turn(row.buffer, len(value))
        if held < 0:
            return NO_MEMORY
        row.prefetch(len(value))
        row.known = False
        w = tuple_word(self.clock.guess(), writer, GUESSED, writer, row.side)  # line 5
        row.buffer.prepare(self.register.ident, w, value)
        if held != NAMED:
            row.retarget(held)
        outcome = quorum.gather(WORDS, quorum.majority)  # line 6
        wrote = self.max_register.write(w, row.buffer)
        self.endpoint.wait()
        return self._conclude(w, held, outcome, wrote)

    def _conclude(self, w: int, held: int, outcome: int, wrote: int) -> int:
        """WRITE after line 6, of which there are the outcomes of M.READ and of M.WRITE."""
        quorum, row = self.quorum, self.row
        m = quorum.top
        if outcome == GONE:
            row.refuse(held)  # no client looks where it may be named
            return GONE
        if wrote == REFUSED:
            outcome = self.insistence.write(w, outcome)
            m = quorum.top
        if outcome != DONE or is_tombstone(m):
            return self._withdraw(w, held)
        if rank_of(m) <= rank_of(w):  # line 7
            self._verify_own(w, held)
            return DONE
        return self._slow_path(w, m, row.buffer.value, held)

    # ---- WRITE beside those to other registers (batches.py) --------------------------------

    def begin(self, value: bytes) -> int:
        row = self.row
        row.known = False
        w = tuple_word(self.clock.guess(), row.writer, GUESSED, row.writer, row.side)  # line 5
        row.buffer.prepare(self.register.ident, w, value)
        return w

    def post(self, w: int) -> None:
        """Post line 6."""
        self.quorum.post(WORDS)
        self.max_register.post_write(w, self.row.buffer)

    def finish(self, w: int, held: int, doubtful: bool) -> int:
        quorum, row = self.quorum, self.row
        if doubtful:
            row.buffer.doubtful = True
            outcome = quorum.gather(WORDS, quorum.majority)
            self.endpoint.wait()
            return self._conclude(w, held, outcome, REFUSED)
        outcome = quorum.arrived()
        wrote = self.max_register.written(w, row.buffer)
        return self._conclude(w, held, outcome, wrote)

    def _read_row(self) -> int:
        """Read our row before a WRITE. DONE; or nothing is to be written: AGAIN, GONE, DELETED."""
        quorum = self.quorum
        outcome = quorum.gather(ROW, quorum.majority)
        self.endpoint.wait()
        if outcome != DONE:
            return outcome
        if is_tombstone(quorum.top):
            outcome = self.max_register.confirm()
            return AGAIN if outcome == DONE else outcome
        return DONE if self.row.take_metadata() else self.row.repair()

    def _verify_own(self, w: int, held: int) -> None:
        """Line 8, and the steps after any WRITE. In the background."""
        quorum, row = self.quorum, self.row
        scope = self.endpoint.background(True)
        for n in range(quorum.read):
            replica = quorum.replicas[quorum.order[n]]
            word = replica.mine[replica.k]
            if stamp_of(word) == stamp_of(w) and not word & VERIFIED and replica.verify(word):
                # CRASH(verified): at a minority; the others learn it from reads.
                replica.mine[replica.k] = word | VERIFIED
        quorum.write_in_place(row.buffer)
        row.end(w, held)
        self.endpoint.background(scope)

    def _slow_path(self, w: int, m: int, value: bytes, held: int) -> int:
        """Lines 9 to 11: the guess may have been stale."""
        quorum, row = self.quorum, self.row
        if quorum.count_above(w) < quorum.majority:
            outcome = quorum.gather(WORDS, quorum.count)
            self.endpoint.wait()
            m = quorum.top
            if outcome == GONE:
                row.keep(held, row.buffer)
                return DONE  # the DELETE comes second
            if outcome == DELETED or is_tombstone(m):
                return self._withdraw(w, held)
            if quorum.count_above(w) + quorum.count - quorum.read < quorum.majority:
                self._verify_own(w, held)
                return DONE
        if self.lock.try_lock(w, WRITE):  # line 10
            writer = row.writer
            fresh = tuple_word(self.clock.after(time_of(m)), writer, VERIFIED, writer, side_of(w))
            row.buffer.prepare(self.register.ident, fresh, value)
            wrote = self.max_register.write(fresh, row.buffer)  # line 11
            self.endpoint.wait()
            if wrote == REFUSED and self.insistence.write(fresh, DONE) != DONE:
                return DONE  # the register is being given up: the key was deleted meanwhile
            self._verify_own(fresh, held)
        else:
            self.clock.after(time_of(m))
            row.keep(held, row.buffer)
        return DONE

    def _withdraw(self, w: int, held: int) -> int:
        """Our guess has met a tombstone: DELETED, or DONE when a reader has confirmed the guess.

        If the tombstone is lost, the guess is treated as any other: verified, or written again.
        """
        quorum, row = self.quorum, self.row
        if quorum.valid == quorum.read and quorum.count_at_least(quorum.top) < quorum.majority:
            row.make_room(w)
            if self.max_register.confirm() == DONE:
                row.side = -1
                m = quorum.top
                if rank_of(m) > rank_of(w):
                    return self._slow_path(w, m, row.buffer.value, held)
                self._verify_own(w, held)
                return DONE
        return DELETED if self.lock.try_lock(w, WRITE) else DONE

    # ---- READ -----------------------------------------------------------------------------------

    def read(self) -> int:
        """READ; 1 round trip if the value is in place and VERIFIED.

        DONE: `result` is the value; DELETED; GONE.
        """
        quorum = self.quorum
        seen: dict[int, tuple[int, bytes]] | None = None  # line 14
        attempt = missed = refused = 0
        while True:  # line 15
            outcome = self.max_register.read()  # line 16
            if outcome != DONE:
                return outcome
            m = quorum.top
            before = None if seen is None else seen.get(writer_of(m))
            again = before is not None and before[0] == stamp_of(m)
            value = before[1] if before is not None and again else quorum.value_of(m)
            if value is None:
                attempt = attempt + 1 if m == missed else 0
                missed = m
                quorum.look_again(m, attempt)
                continue  # there is a greater one
            self.result = value
            if m & VERIFIED:  # line 17
                self.mend(m, value)
                return DONE
            if seen is None:
                seen = {}
            if again:  # line 18
                if self.lock.try_lock(m, READ):  # line 19
                    self._verify_read(m, value)  # line 20
                    return DONE  # line 21
                # Its lock was refused, so a majority has greater ones.
                quorum.wait_again(refused, m, "is the greatest, although its lock is taken")
                refused += 1
            elif before is not None:  # line 22
                self.result = before[1]
                return DONE  # line 23
            seen[writer_of(m)] = (stamp_of(m), value)  # line 24
            quorum.retries += 1

    def _verify_read(self, m: int, value: bytes) -> None:
        """Line 20: the next reads are faster. In the background."""
        quorum = self.quorum
        scope = self.endpoint.background(True)
        for n in range(quorum.read):
            replica = quorum.replicas[quorum.order[n]]
            if (
                stamp_of(replica.tops[replica.k]) == stamp_of(m)
                and not replica.tops[replica.k] & VERIFIED
            ):
                replica.verify(replica.tops[replica.k])
        self.mend(m, value)
        self.endpoint.background(scope)
