"""Safe-Guess: wait-free replicated registers, one round trip (SWARM section 3, algorithm 10).

The text's algorithm 3 has an `elif` at the wrong depth, and its READ returns values whose lock was
refused; algorithm 10 has it right (trap S1).

    WRITE(v)                                      READ()
      w = (guessTs(), GUESSED, v)                   loop:
      in parallel m = M.READ(), M.WRITE(w)            m = M.READ()
      m <= w: in the background VERIFIED              m VERIFIED: return its value
      else, if TSL[tid].TRYLOCK(w.ts, WRITE):         m seen before:
        M.WRITE((m.ts.i + 1, tid), VERIFIED, v)         if TSL[m.tid].TRYLOCK(m.ts, READ):
                                                          in the background VERIFIED; return it
                                                      elif the writer was seen with another tuple:
                                                        return the value of that
                                                      note m as seen

What it leaves open, and how it is here:
    - the M.READ of a WRITE need not make its maximum known to a majority (appendix A.2), but before
      TRYLOCK a majority must have greater tuples than the guess: else a reader could be left with a
      guess whose lock is refused, and nothing greater, if the writer stands still. If fewer
      replicas of all have greater ones, no complete write is greater, and the guess was not stale
    - a WRITE guesses once. A second guess would look like the next WRITE of the same writer, and
      readers would take the first one for completed. So it takes its memory before it guesses
    - a tombstone is greater than all (trap S4). A WRITE that meets one withdraws its guess by the
      lock; if a reader has confirmed it, it took effect before

A kill leaves behind: a tuple at a minority or, GUESSED, at a majority, which readers deal with
(trap S8); its buffer, in hand, or named, or both.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import NodeFailed
from limpet.stores.swarm.layout import (
    AGAIN,
    DELETED,
    DONE,
    GONE,
    GUESSED,
    NO_MEMORY,
    READ,
    REFUSED,
    TIME_MAX,
    VERIFIED,
    WRITE,
)
from limpet.stores.swarm.timestamp_lock import TimestampLock
from limpet.stores.swarm.words import (
    is_tombstone,
    placed,
    rank_of,
    side_of,
    stamp_of,
    time_of,
    tuple_word,
    writer_of,
)


class SafeGuess(TimestampLock):
    """WRITE and READ of the current register, and its end."""

    def __init__(self, pool: Any, entry: int, replicas: int, writers: int, buffers: int) -> None:
        super().__init__(pool, entry, replicas, writers, buffers)
        self.clock = pool.clock
        self.result = b""

    # ---- WRITE ----------------------------------------------------------------------------------

    def put_value(self, value: bytes) -> int:
        """WRITE; 1 round trip if `known`: if our row is as remembered.

        DONE; or nothing was done: GONE, DELETED, NO_MEMORY, AGAIN.
        """
        writer = self.identify()
        if not self.known:
            outcome = self.gather(False, self.majority)
            self.endpoint.wait()
            if outcome != DONE:
                return outcome
            if is_tombstone(self.top):
                outcome = self._confirm()
                return AGAIN if outcome == DONE else outcome
            if not self.learn():
                return self.clear_row()
        held = self.acquire(len(value))
        if held < 0:
            return NO_MEMORY
        self.expect(len(value))
        self.known = False
        w = tuple_word(self.clock.guess(), writer, GUESSED, writer, self.side)
        self.prepare(w, value)
        self.aim(held)
        outcome = self.gather(False, self.majority)
        m = self.top
        wrote = self.write(w)
        self.endpoint.wait()
        if outcome == GONE:
            self.client.release(held)  # nobody looks where it may be named
            return GONE
        if wrote == REFUSED:
            outcome = self._insist(w, outcome)
            m = self.top
        if outcome != DONE or is_tombstone(m):
            return self._withdraw_guess(w, value, held)
        if rank_of(m) <= rank_of(w):
            self._verify_own(w, held)
            return DONE
        return self._write_again(w, m, value, held)

    def _insist(self, w: int, outcome: int) -> int:
        """WRITE the tuple although our row is not in order. DONE, DELETED, or GONE.

        Raises StoreCorrupt when the row cannot be put in order.
        """
        value = self.value
        attempt = 0
        while outcome == DONE:
            self.clear_row()
            outcome = self.gather(False, self.majority)
            self.endpoint.wait()
            if is_tombstone(self.top):
                outcome = self._confirm()
            elif outcome == DONE and self.learn():
                self.prepare(w, value)
                if self.write(placed(w, self.writer, self.side)) == DONE:
                    break
            if outcome == DONE:
                self.wait_again(attempt, w, "cannot be written, as the row is not in order")
                attempt += 1
        self.side = -1
        return outcome

    def _verify_own(self, w: int, held: int) -> None:
        """Line 8, and what is to be done after any WRITE. In the background."""
        lane = self.endpoint.background(True)
        for n in range(self.read):
            k = self.order[n]
            word = self.mine[k]
            if stamp_of(word) == stamp_of(w) and not word & VERIFIED and self._try_verify(k, word):
                # CRASH(verified): at a minority; the others learn it from reads.
                self.mine[k] = word | VERIFIED
        self._try_in_place()
        self.recycle(w | VERIFIED)
        self.keep(held)
        self.known = self.side >= 0
        self.side = 1 - side_of(w)
        self.endpoint.background(lane)

    def _try_verify(self, k: int, word: int) -> bool:
        try:
            return self.verify(k, word)
        except NodeFailed:
            return False  # a majority has it, and does without the bit

    def _try_in_place(self) -> bool:
        try:
            self.write_in_place()
        except NodeFailed:
            return False  # the next reads take the buffer
        return True

    def _write_again(self, w: int, m: int, value: bytes, held: int) -> int:
        """Lines 9 to 11: the guess may have been stale."""
        if self.above(w) < self.majority:
            outcome = self.gather(False, self.replicas)
            self.endpoint.wait()
            m = self.top
            if outcome == GONE:
                self.keep(held)
                return DONE  # the DELETE comes second
            if outcome == DELETED or is_tombstone(m):
                return self._withdraw_guess(w, value, held)
            if self.above(w) + self.replicas - self.read < self.majority:
                self._verify_own(w, held)
                return DONE
        if self.try_lock(w, WRITE):
            fresh = tuple_word(
                self.clock.after(time_of(m)), self.writer, VERIFIED, self.writer, side_of(w)
            )
            self.prepare(fresh, value)
            wrote = self.write(fresh)
            self.endpoint.wait()
            if wrote == REFUSED and self._insist(fresh, DONE) != DONE:
                return DONE  # the register is being given up: the key was deleted meanwhile
            self._verify_own(fresh, held)
        else:
            self.clock.after(time_of(m))
            self.keep(held)
        return DONE

    def _confirm(self) -> int:
        """A tombstone was read: DELETED or GONE, once it is at a majority.

        DONE, and nothing is prepared: it was lost with its node before that, and the key is there.
        """
        return self.presence() if self.count(self.top) < self.majority else DELETED

    def _withdraw_guess(self, w: int, value: bytes, held: int) -> int:
        """Our guess has met a tombstone: DELETED, or DONE when a reader has confirmed it.

        If the tombstone is lost, the guess is as any other: verified, or written again.
        """
        if self.valid == self.read and self.count(self.top) < self.majority:
            self.recycle(w)
            if self._confirm() == DONE:
                self.prepare(w, value)
                self.side = -1
                if rank_of(self.top) > rank_of(w):
                    return self._write_again(w, self.top, value, held)
                self._verify_own(w, held)
                return DONE
        return DELETED if self.try_lock(w, WRITE) else DONE

    # ---- READ -----------------------------------------------------------------------------------

    def get_value(self) -> int:
        """READ; 1 round trip if the value is in place and VERIFIED.

        DONE: `result` is the value; DELETED; GONE.
        """
        seen: dict[int, tuple[int, bytes]] | None = None
        attempt = missed = refused = 0
        while True:
            outcome = self.maximum()
            if outcome != DONE:
                return outcome
            m = self.top
            value = self.value_of(m)
            if value is None:
                attempt = attempt + 1 if m == missed else 0
                missed = m
                self.look_again(m, attempt)
                continue  # there is a greater one
            self.result = value
            if m & VERIFIED:
                return DONE
            if seen is None:
                seen = {}
            before = seen.get(writer_of(m))
            if before is not None and before[0] == stamp_of(m):
                if self.try_lock(m, READ):
                    self._verify_read(m, value)
                    return DONE
                # Its lock was refused, so a majority has greater ones.
                self.wait_again(refused, m, "is the greatest, although its lock is taken")
                refused += 1
            elif before is not None:
                self.result = before[1]
                return DONE
            seen[writer_of(m)] = (stamp_of(m), value)
            self.retries += 1

    def _verify_read(self, m: int, value: bytes) -> None:
        """Line 20: the next reads are faster. In the background."""
        lane = self.endpoint.background(True)
        for n in range(self.read):
            k = self.order[n]
            if stamp_of(self.tops[k]) == stamp_of(m) and not self.tops[k] & VERIFIED:
                self._try_verify(k, self.tops[k])
        self.prepare(m, value)
        self._try_in_place()
        self.endpoint.background(lane)

    # ---- the end --------------------------------------------------------------------------------

    def entomb(self, ticket: int) -> int:
        """WRITE a tombstone that has this number; none was at a majority when we last read.

        DONE: one is at a majority, this one or another; or AGAIN.
        """
        self.identify()
        self.buffer = 0
        outcome = self.gather(False, self.majority)
        self.endpoint.wait()
        if outcome != DONE or is_tombstone(self.top):
            # Another's, or one that was left in our row, where there may be no room for a second.
            return AGAIN if self.presence() == DONE else DONE
        if not self.learn():
            return self.clear_row()
        self.buffer = ticket
        word = tuple_word(TIME_MAX, self.writer, VERIFIED, self.writer, self.side)
        wrote = self.write(word)
        # CRASH(entombed): at a minority or a majority; whoever meets it unmaps the key.
        self.endpoint.wait()
        self.buffer = 0
        return self.clear_row() if wrote == REFUSED else DONE
