"""The barrier (LOCO figure 1 and section 5.4), for threads and for processes that may die.

The paper's own, a dozen lines over an SST, is rendezvous.py: a client that arrives fences, raises
its count, publishes it in its register, and waits until no count is lower. This barrier does more.
Parties are processes or threads, in any number, so they are counted in one word beside the SST; the
CAS of the last party on that word lets all pass at once. It can be broken and reset as that of
threading. The registers name the processes that take part, for the case that one dies.

Words of the barrier, in bytes from its start
    0     round
              bits 0-7      how many have come
              bits 8-15     the dead parties, for which it does not wait
              bits 16-31    regroupings of this round: all living parties arrive again
              bit  32       broken
              bits 33-63    how many rounds have passed
    8     resets
              bits 0-32     bit n: whether the round n + 1 before that in bits 33-63 was reset
              bits 33-63    the round up to which resets are noted
    64    where parties sleep (waiting.py)
Register of a process in the SST, "NAME/sst": the process, and its last round
    bits 0-30     its last round
    bits 32-39    most threads of it that came in one round
    bits 40-63    pid; 0: it has never come
Rounds wrap after 2^31: the sign of their difference says which of two is the later one. So that
`resets` is not taken for later than it is, parties that arrive in every 2^28th round bring it up to
date, and clients give back registers of processes whose last round was 2^29 rounds ago. A party
that was stopped for a multiple of 2^31 rounds, exactly, takes the round for its own. If a party was
stopped for a multiple of 2^16 regroupings of its round, it and the others wait for each other until
the next regrouping.

Round trips without a death: 2 to arrive, as the CAS is of the word that was read, and 1 for each
look of a party that waits.

Death. A process that has arrived once is a participant, until it resigns, or gets
BrokenBarrierError (and arrives again). If a participant of this round or the last one dies, a
waiting party that was there with it gets BrokenBarrierError with the dead one's pid, until `reset`
(which forgets the dead). It does not matter whether the dead one had arrived in this round. With
on_death="continue" the round is regrouped instead: from then on the barrier waits for all living
processes that have ever arrived, for as many threads of each as ever arrived in one round; the dead
are no participants any more. A participant that arrives for the first time, or with one more
thread, looks for dead ones before it is counted: it may arrive in place of a dead one, and only one
of the two must count. The last party to arrive does not look for deaths: if a process that had
arrived is dead then, the others learn it in the next round.

When all registers are taken, a newcomer takes that of a dead process, and first breaks or regroups
the round because of that death. With on_death="break" it prefers a register of a process that no
party waits for. If there is none, it breaks the barrier, and then no party learns that pid.

Invariant: one CAS of its word ends a round: that which counts the last party (or, if it has an
action to run, one after that). A party that sees a later round has passed, if its own round was not
reset. A process that checks 33 or more rounds late may see the reset of a later round and report
its own round as reset.

A kill leaves behind: a register, by which the others notice the death. A kill between two CASes of
`reset`: a broken barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.shm.errors import BrokenBarrierError, ParameterError
from limpet.shm.times import Seconds, seconds_of
from limpet.stores.channels.barrier.layout import (
    AGAIN_MASK,
    AGAIN_SHIFT,
    ANCIENT,
    BROKEN,
    COME,
    LATER,
    LOST_SHIFT,
    NOWHERE,
    ON_DEATH,
    PARTIES_MAX,
    PID_SHIFT,
    PROCESSES_MIN,
    RENEWAL,
    RESET,
    RESETS,
    ROUND_MASK,
    ROUND_SHIFT,
    THREADS_SHIFT,
    WORD_MASK,
)
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE
from limpet.stores.channels.phases import cas_alone
from limpet.stores.channels.sst import SST
from limpet.stores.channels.waiting import Wait, Waiting, deadline_after, whole


class BarrierRegisters(SST):
    """The registers of a barrier."""

    def vacates(self, row: int, last: bool) -> bool:
        there: bool = self.parent.vacates_register(row, last)
        return there


WAITS, PASSED, AGAIN = range(3)


class Party:
    """One wait: the round in which it was counted, as the word was then, and by which client;
    `token`: to sleep with (waiting.py)."""

    def __init__(self) -> None:
        self.place = NOWHERE
        self.ident = 0
        self.token = 0


class Barrier(Channel):
    """threading.Barrier for the threads of many processes."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        parties: int,
        action: Callable[[], object] | None = None,
        timeout: Seconds | None = None,
        on_death: str = "break",
    ) -> None:
        """`on_death`: "break" or "continue", for the others when a participant dies."""
        parties = whole("`parties`", parties, 1, PARTIES_MAX)
        if on_death not in ON_DEATH:
            raise ParameterError(f"on_death is one of {', '.join(ON_DEATH)}, not {on_death!r}")
        super().__init__(
            manager, name, parent, size=2 * LINE, kind="barrier", parties=parties, on_death=on_death
        )
        self.of = parties
        self.action = action
        self.timeout = None if timeout is None else seconds_of("timeout", timeout)
        self.goes_on = on_death == "continue"
        processes = max(PROCESSES_MIN, 2 * parties)
        self.sst = BarrierRegisters(manager, "sst", self, participants=processes, join=False)
        remote = self.pool.parameters.multi_host
        self.waiting = Waiting(self.endpoint, self.address + LINE, remote, parties)
        self.came = 0
        self.came_in = NOWHERE
        """How many threads of this process were counted in which round."""
        self.threads = 0
        self.first = 0
        """The round in which this process first came."""
        self.sst.take_part(processes)

    # ---- to come, and to wait ------------------------------------------------------------------

    def wait(self, timeout: Seconds | None = None) -> int:
        """Wait until all parties have arrived; our number among them, from 0 on.

        The last to arrive runs the action first. Raises BrokenBarrierError: a participant died
        (`pids`), the `timeout` of a party is over, or a party called `abort` or `reset`; or this
        process was forked in the wait or action of a party, which goes on as if it had not.
        """
        self.manager.fence()
        limit = self.timeout if timeout is None else timeout
        wait = Wait(self.waiting, deadline_after(limit))
        party = Party()
        try:
            while not self.look(party, wait.sleepy):
                wait.token = party.token
                if not wait.pause():
                    self.expire(party)
        except BaseException:
            self.give_up(party)
            raise
        return self.came_as(party)

    @staticmethod
    def came_as(party: Party) -> int:
        """The number of a party that has passed, from 0 on."""
        return party.place & COME

    def look(self, party: Party, sleepy: bool) -> bool:
        """Arrive, if that is not done, and look; whether the party has passed.

        `sleepy`: it sleeps next, with its `token`, if the result is False.
        """
        while True:
            self.enter()
            try:
                if party.place == NOWHERE:
                    party.place = self._come()
                    party.ident = self.client.ident
                else:
                    self._require_party(party.ident)
                found = self._found(party.place)
                if found == WAITS and sleepy and not self._acts(party.place):
                    if party.token:
                        self.check_participants(party.place)
                    party.token = self.waiting.prepare()
                    found = self._found(party.place)
            finally:
                self.leave()
            if found == PASSED:
                return True
            if found == AGAIN:
                party.place = NOWHERE
            elif self._acts(party.place):
                self._act(party.place, party.ident)
            else:
                return False

    def expire(self, party: Party) -> None:
        """The time of a party is over: break its round, or the full one before it. Then `look` once
        more, as the round may have passed, or been regrouped."""
        self._break(party.place, party.ident)

    def give_up(self, party: Party) -> None:
        """A party goes away before it has passed: break its round."""
        if party.place != NOWHERE:
            self._break(party.place, party.ident)

    def _require_party(self, ident: int) -> None:
        """Raise BrokenBarrierError in a child that was forked after its parent was counted."""
        if ident != self.client.ident:
            raise BrokenBarrierError(
                f"{self.name!r}: this process was forked while its parent waited, and is no party"
            )

    def _come(self) -> int:
        """Count this party; the round as before, or NOWHERE: the last round is still full."""
        new = looked = room = False
        while True:
            state = self._look()
            if state & BROKEN:
                raise self._error(state >> ROUND_SHIFT)
            if not self._left(state):
                return NOWHERE
            new = self.announce(state) or new
            if new and self.goes_on and not room and state >> LOST_SHIFT & COME:
                room = self._make_room(state)
                continue
            if new and not looked:
                # ORDER: our register says that we arrive before we count the dead, or the others.
                looked = self.check_participants(state)
                continue
            last = self._left(state) == 1 and self.action is None
            # LINEARIZES: our arrival; for the last party: all pass, if it has no action to run.
            # CRASH(came): counted, with a register that says so; or not counted.
            if self.change(state, _next(state) if last else state + 1):
                self._note(state)
                if last:
                    self.waiting.wake()
                return state

    def _make_room(self, state: int) -> bool:
        """Make the round wait for us, too, since we are new. False: another change came first.

        A party that had not seen our register may have regrouped it. So it first waits for one
        party more, by one CAS, since others may pass round after round while we look at the
        registers. Then none passes before we come, and we see whether a party that had seen our
        register was faster, so that the round waits for one too many.
        """
        lost = (state >> LOST_SHIFT & COME) - 1
        made = self.regrouped(state) | lost << LOST_SHIFT
        # ORDER: after our register: a party that regroups the round from now on counts us.
        if not self.change(state, made):
            return False
        state = made
        # Another regrouping, or a reset, is right without us.
        while state >> AGAIN_SHIFT == made >> AGAIN_SHIFT:
            fewer = self._fewer(self._gone())
            if fewer == state >> LOST_SHIFT & COME or self.change(
                state, self.regrouped(state) | fewer << LOST_SHIFT
            ):
                break
            state = self._look()
        self.waiting.wake()
        return True

    def change(self, state: int, after: int) -> bool:
        """Change the round from `state` to `after`, 1 round trip; False: another client was
        faster."""
        ticket = self.endpoint.post_cas(self.address, state, after)
        self.endpoint.wait()
        return self.endpoint.result(ticket) == state

    def _look(self) -> int:
        """The round. In an operation; 1 round trip."""
        ticket = self.endpoint.post_load(self.address)
        self.endpoint.wait()
        return self.endpoint.result(ticket)

    def announce(self, state: int) -> bool:
        """Publish our arrival in our register; whether with more threads than ever before."""
        number = self.sst.row()
        register = self.sst[number]
        if not register.value:
            self.threads, self.first, self.came_in = 0, state >> ROUND_SHIFT, NOWHERE
        coming = 1 + (self.came if self.came_in == state >> AGAIN_SHIFT else 0)
        more = coming > self.threads
        if more:
            self.threads = coming
        value = (state >> ROUND_SHIFT & ROUND_MASK) | self.threads << THREADS_SHIFT
        value |= self.membership.pid(self.client.word) << PID_SHIFT
        if value != register.value:
            register.store(value)
            register.place()
        return more

    def _note(self, state: int) -> None:
        if self.came_in != state >> AGAIN_SHIFT:
            self.came_in, self.came = state >> AGAIN_SHIFT, 0
        self.came += 1
        if not state >> ROUND_SHIFT & RENEWAL:
            # Resets of rounds before this one were noted before those rounds ended.
            self._note_reset(state >> ROUND_SHIFT, 0)

    def _left(self, state: int) -> int:
        """How many parties have yet to arrive."""
        return self.of - (state >> LOST_SHIFT & COME) - (state & COME)

    def _found(self, place: int) -> int:
        """WAITS, PASSED or AGAIN: the state of a party that was counted there. 1 round trip."""
        if place == NOWHERE:
            return WAITS
        ticket = self.endpoint.post_load(self.address)
        # ORDER: the resets after the round, on one node: a reset is noted before its round ends.
        resets_ticket = self.endpoint.post_load(self.address + RESET)
        self.endpoint.wait()
        state = self.endpoint.result(ticket)
        if place >> ROUND_SHIFT == state >> ROUND_SHIFT:
            if state & BROKEN:
                raise self._error(state >> ROUND_SHIFT)
            return WAITS if place >> AGAIN_SHIFT == state >> AGAIN_SHIFT else AGAIN
        if self._was_reset(place >> ROUND_SHIFT, self.endpoint.result(resets_ticket)):
            raise self._error(place >> ROUND_SHIFT)
        return PASSED

    def _was_reset(self, number: int, resets: int) -> bool:
        """Whether that round was reset, as far as is noted in `resets`."""
        ago = (resets >> ROUND_SHIFT) - number - 1 & ROUND_MASK
        return ago < LATER and (ago >= ROUND_SHIFT or resets >> ago & 1 != 0)

    # ---- the last one -------------------------------------------------------------------------

    def _acts(self, place: int) -> bool:
        """Whether the party that was counted there is to run the action."""
        return place != NOWHERE and self.action is not None and self._left(place) == 1

    def _act(self, place: int, ident: int) -> None:
        assert self.action is not None
        self.action()
        self.enter()
        try:
            self._require_party(ident)
            # LINEARIZES: all parties pass.
            # CRASH(acting): a round that is full, and a register of a dead process.
            self.change(place + 1, _next(place))
            self.waiting.wake()
        finally:
            self.leave()

    # ---- waiting and breaking -------------------------------------------------------------------

    def _break(self, place: int, ident: int) -> None:
        """Break the round in which the client `ident` was counted, if that is ours, or the full one
        before it."""
        self.enter()
        try:
            ours = ident == self.client.ident
            state = self._look()
            while not state & BROKEN and (
                place == NOWHERE or (ours and place >> AGAIN_SHIFT == state >> AGAIN_SHIFT)
            ):
                # CRASH(broken): the barrier is broken; sleepers look after a while.
                self.change(state, state | BROKEN)
                state = self._look()
            self.waiting.wake()
        finally:
            self.leave()

    def abort(self) -> None:
        """Break the barrier: until `reset`, waiting and new parties get BrokenBarrierError."""
        self._break(NOWHERE, 0)

    def reset(self) -> None:
        """Make it as it was at first; waiting parties get BrokenBarrierError. Forgets the dead."""
        self.enter()
        try:
            while not self._begin_anew(self._look()):
                pass
            self.waiting.wake()
        finally:
            self.leave()

    def _begin_anew(self, state: int) -> bool:
        if state & COME and not state & BROKEN:
            # CRASH(resetting): a broken barrier.
            self.change(state, state | BROKEN)
            return False
        self._forget(self._gone())
        number = (state >> ROUND_SHIFT) + 1 & ROUND_MASK
        if state & BROKEN:
            self._note_reset(number, 1)
        # LINEARIZES: the barrier is as at first.
        return cas_alone(self.endpoint, self.address, state, number << ROUND_SHIFT) == state

    def _note_reset(self, number: int, reset: int) -> None:
        """Note whether (1) the round before that one was reset, if there is no note of it yet."""
        at = self.address + RESET
        there = self.endpoint.load(at)
        later = number - (there >> ROUND_SHIFT) & ROUND_MASK
        while 0 < later < LATER:
            before = (there & RESETS) << later & RESETS if later < ROUND_SHIFT else 0
            # CRASH(reset-noted): the note is of a broken round, which is reset, or will be.
            self.endpoint.cas(at, there, number << ROUND_SHIFT | before | reset)
            there = self.endpoint.load(at)
            later = number - (there >> ROUND_SHIFT) & ROUND_MASK

    # ---- death ----------------------------------------------------------------------------------

    def check_participants(self, place: int) -> bool:
        """Look for dead participants, and break or regroup the round; False: it is over.

        `place`: the round as we have seen it. We do not break a later one: in that, we have not
        arrived, and no party misses a process that has ended since.
        """
        if self.goes_on:
            self.regroup()
            return True
        state = self._look()
        number = state >> ROUND_SHIFT
        if place != NOWHERE and place >> ROUND_SHIFT != number:
            return False
        self._forget(
            {
                row: one
                for row, one in self._gone().items()
                if number - one[1] & ROUND_MASK in ANCIENT
            }
        )
        if not state & BROKEN and self.missed(number, min(1, number - self.first & ROUND_MASK)):
            self.change(state, state | BROKEN)
            self.waiting.wake()
        return True

    def vacates_register(self, row: int, last: bool) -> bool:
        """As `vacates`, for the register in that row."""
        if self.goes_on:
            while not self.regroup():
                pass
            return True
        while True:
            state = self._look()
            register = int(self.sst[row].peek())
            ago = (state >> ROUND_SHIFT) - register & ROUND_MASK
            if not register or ago > 1:
                return True
            if not last:
                return False
            if state & BROKEN or (ago == 1 and not self._others_live()):
                return True
            # CRASH(register-taken): the barrier is broken, as by a party that noticed the death.
            self.change(state, state | BROKEN)
            self.waiting.wake()

    def _others_live(self) -> bool:
        """Whether a process that has come lives."""
        return any(
            self.sst[row].peek() and self.lives(ident)
            for row, ident in self.sst.participants().items()
        )

    def _gone(self) -> dict[int, tuple[int, Any]]:
        """Client ids and registers of dead participants, by their rows."""
        found = {}
        for row, ident in self.sst.participants().items():
            register = self.sst[row].peek()
            if register and not self.lives(ident):
                found[row] = (ident, register)
        return found

    def _forget(self, gone: dict[int, tuple[int, Any]]) -> None:
        """Remove the dead from the participants."""
        for row, (ident, _) in gone.items():
            self.endpoint.cas(self.sst.seats + 8 * row, ident, 0)

    def missed(self, number: int, since: int) -> list[int]:
        """Pids of the dead participants of this round, or of one up to `since` rounds before."""
        return [
            register >> PID_SHIFT
            for _, register in self._gone().values()
            if (number - register & ROUND_MASK) <= since
        ]

    def regroup(self) -> bool:
        """Make the round wait for the living only. False: another change came first."""
        # ORDER: the round before the registers: if a new party comes meanwhile, our CAS fails, or
        # it finds the round as we have changed it.
        state = self._look()
        lost = state >> LOST_SHIFT & COME
        gone = self._gone()
        if state & BROKEN or not (gone or lost):
            return True
        done = True
        fewer = self._fewer(gone)
        counted = state & COME > 0 and self._came_here(gone, state >> ROUND_SHIFT & ROUND_MASK)
        if fewer != lost or counted:
            # CRASH(regrouped): the parties that had arrived find that they must arrive again.
            done = self.change(state, self.regrouped(state) | fewer << LOST_SHIFT)
            if done:
                self._forget(gone)
            self.waiting.wake()
        return done

    def _fewer(self, gone: dict[int, tuple[int, Any]]) -> int:
        """By how many the living participants are fewer than the parties."""
        living = 0
        for row in self.sst.participants():
            if row not in gone:
                living += int(self.sst[row].peek()) >> THREADS_SHIFT & COME
        return self.of - min(self.of, max(1, living))

    def regrouped(self, state: int) -> int:
        """The round with its next regrouping: no party is counted in it."""
        again = (state >> AGAIN_SHIFT) + 1 & AGAIN_MASK
        return (state >> ROUND_SHIFT << ROUND_SHIFT) | again << AGAIN_SHIFT

    @staticmethod
    def _came_here(gone: dict[int, tuple[int, Any]], number: int) -> bool:
        """Whether one of the dead may be counted in this round."""
        return any(register & ROUND_MASK == number for _, register in gone.values())

    def _error(self, number: int) -> BrokenBarrierError:
        """The error for a party of this round; we are no participant until we arrive again."""
        missed = [] if self.goes_on else self.missed(number, 1)
        register = self.sst[self.sst.row()]
        # Another thread of ours may have arrived again by now.
        if (number - int(register.value) & ROUND_MASK) <= ROUND_MASK >> 1:
            register.clear()
        if missed:
            names = ", ".join(str(pid) for pid in missed)
            return BrokenBarrierError(f"{self.name!r}: process {names} has died", missed)
        return BrokenBarrierError(f"{self.name!r} was aborted or reset, or a wait timed out", [])

    # ---- properties -----------------------------------------------------------------------------

    def _state(self) -> int:
        self.enter()
        try:
            return self._look()
        finally:
            self.leave()

    @property
    def parties(self) -> int:
        """How many must arrive; after deaths, with on_death="continue", fewer than at first."""
        return self.of - (self._state() >> LOST_SHIFT & COME)

    @property
    def n_waiting(self) -> int:
        """How many have arrived."""
        state = self._state()
        return 0 if state & BROKEN else state & COME

    @property
    def broken(self) -> bool:
        """Whether it is broken."""
        return bool(self._state() & BROKEN)

    def resign(self) -> None:
        """Stop being a participant: the barrier does not wait for us any more."""
        self.sst.resign()


def _next(state: int) -> int:
    """The beginning of the next round."""
    number = (state >> ROUND_SHIFT) + 1
    return (number << ROUND_SHIFT & WORD_MASK) | (state & COME << LOST_SHIFT)
