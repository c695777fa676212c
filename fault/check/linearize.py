"""The search for an order of operations that their model and their times allow.

J. Wing and C. Gong, "Testing and verifying concurrent objects" (1993), with the memoisation of G.
Lowe, "Testing for linearizability" (2017), in its just-in-time form: it takes events in the order
of their times, and orders an operation no sooner than a return demands it.

A configuration is (state, taken, free): the state after the operations put in the order so far, and
two bitsets over the open operations, which were called and have not returned:

    taken   it is in the order
    free    it could have been ordered without any other change (it found its own result and changed
            nothing, or it was overwritten at once): it may count as taken or not
    neither it is yet to come

When an operation returns, each configuration in which it is neither is replaced by all those that
further open operations lead to, with the returning one as the last. No configuration left: illegal.
So at a quiescent point, with no open operation, only the set of possible states is kept.

An operation of unknown outcome never returns, so it stays open and no return demands it.

These make the search fast, and do not change the answer:
- of configurations with the same state, one with the same taken but more free operations replaces
  the other, and so does one that took fewer operations of unknown outcome;
- of equal operations, the one that returns first is put in the order first;
- an operation that returns before anything else happens is stepped, with no search;
- the hints of the model.

Two operations count as concurrent if one returns in the same nanosecond in which the other is
called.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple

from limpet.fault.check.models import Model, Op, State

NEVER: Final = 1 << 63
"""Later than every return."""
SCAN_MAX: Final = 64
"""A new configuration is compared with so many of its state; beyond, only an equal one is found."""

Config = tuple[State, int, int]


class Timed(NamedTuple, Generic[Op]):
    """An operation with its times; `return_ns` None: its outcome is unknown."""

    op: Op
    call_ns: int
    return_ns: int | None


class BudgetExceeded(Exception):
    """The search looked at as many configurations as it may."""


def events_of(history: Sequence[Timed[Op]]) -> list[int]:
    """The events in the order of their times: i for the call of operation i, ~i for its return.

    Calls come before returns of the same time.
    """
    keyed = [(timed.call_ns, 0, index) for index, timed in enumerate(history)]
    keyed += [
        (timed.return_ns, 1, ~index)
        for index, timed in enumerate(history)
        if timed.return_ns is not None
    ]
    keyed.sort()
    return [event for _, _, event in keyed]


class _Frontier(Generic[State]):
    """Configurations, without those that another one makes superfluous."""

    def __init__(self, lasting: int, lost: int) -> None:
        self._lasting = lasting
        self._lost = lost
        self._found: dict[State, dict[tuple[int, int], None]] = {}

    def add(self, state: State, taken: int, free: int) -> bool:
        """Whether this configuration is new and worth keeping; if so, it is kept."""
        same = self._found.get(state)
        if same is None:
            self._found[state] = {(taken, free): None}
            return True
        if (taken, free) in same:
            return False
        if len(same) <= SCAN_MAX:
            for other, its_free in same:
                if self._replaces(other, its_free, taken, free):
                    return False
            for old in [old for old in same if self._replaces(taken, free, *old)]:
                del same[old]
        same[taken, free] = None
        return True

    def _replaces(self, taken: int, free: int, other: int, its_free: int) -> bool:
        if taken & ~other & self._lost:
            return False
        return not ((taken ^ other) | its_free) & ~free & self._lasting

    def configs(self) -> list[Config[State]]:
        return [(state, *pair) for state, pairs in self._found.items() for pair in pairs]


class Search(Generic[State, Op]):
    """The configurations after some events of a history; `run` takes further ones.

    `budget` is how many configurations it may look at before it raises BudgetExceeded.
    """

    def __init__(self, model: Model[State, Op], budget: int) -> None:
        self.model = model
        self.budget = budget
        self.configs: list[Config[State]] = [(model.init(), 0, 0)]
        self.open: dict[int, int] = {}
        """The bit of each open operation, by its index in the history."""
        self.lasting = 0
        """The bits of open operations that will return."""
        self.lost = 0
        """The bits of open operations of unknown outcome."""
        self._op: dict[int, Op] = {}
        self._equals: dict[Op, list[tuple[int, int, int]]] = {}
        self._families: dict[int, int] = {}

    def run(
        self, history: Sequence[Timed[Op]] | Mapping[int, Timed[Op]], events: Sequence[int]
    ) -> int | None:
        """Take `events`; the position of the first return that nothing explains, or None.

        After it, the configurations are those before that return.
        """
        at, end = 0, len(events)
        while at < end:
            event = events[at]
            if event < 0:
                if not self._return(~event):
                    return at
            elif not self.lasting and at + 1 < end and events[at + 1] == ~event:
                if self._step(history[event].op):
                    at += 2
                    continue
                self.call(event, history[event])
            else:
                self.call(event, history[event])
            at += 1
        return None

    def call(self, index: int, timed: Timed[Op]) -> None:
        """Operation `index` of the history is called."""
        op, lost = timed.op, timed.return_ns is None
        if lost and self.model.pure(op):
            return
        used = self.lasting | self.lost
        bit = ~used & (used + 1)
        self.open[index] = bit
        self._op[bit] = op
        # In the order of events_of, also where equal operations return together.
        order = (NEVER, index) if timed.return_ns is None else (timed.return_ns, ~index)
        insort(self._equals.setdefault(op, []), (*order, bit))
        if lost:
            self.lost |= bit
            return
        self.lasting |= bit
        family = self.model.family(op)
        if family:
            self._families[family] = self._families.get(family, 0) | bit
        step = self.model.step
        self.configs = [
            (state, taken, free | bit if step(state, op) == state else free)
            for state, taken, free in self.configs
        ]

    def reachable(self) -> set[State]:
        """The states that open operations can lead to."""
        found = {state for state, _, _ in self.configs}
        for config in self.configs:
            found.update(state for state, _, _ in self._closure(config, 0))
        return found

    def _step(self, op: Op) -> bool:
        """Take an operation that was alone from its call to its return, if no search is needed."""
        pure = self.model.pure(op)
        if not pure and self.lost and not self.model.settles(op):
            return False
        step = self.model.step
        stepped = [(step(state, op), taken) for state, taken, _ in self.configs]
        allowed = [(state, taken) for state, taken in stepped if state is not None]
        if not allowed or (self.lost and len(allowed) < len(stepped)):
            return False
        if len(allowed) == 1:
            self.configs = [(*allowed[0], 0)]
        elif not pure or len(allowed) < len(stepped):
            frontier: _Frontier[State] = _Frontier(0, self.lost)
            for state, taken in allowed:
                frontier.add(state, taken, 0)
            self.configs = frontier.configs()
        return True

    def _return(self, index: int) -> bool:
        """Operation `index` returns. False, and nothing changed, if nothing explains it."""
        bit = self.open[index]
        pure = self.model.pure(self._op[bit])
        after: _Frontier[State] = _Frontier(self.lasting & ~bit, self.lost)
        for config in self.configs:
            state, taken, free = config
            if taken & bit:
                after.add(state, taken ^ bit, free)
            elif free & bit:
                after.add(state, taken, free ^ bit)
                if not pure:
                    self._explain((state, taken, free ^ bit), bit, after)
            else:
                self._explain(config, bit, after)
        configs = after.configs()
        if not configs:
            return False
        self.configs = configs
        self._forget(index, bit)
        if self.lost:
            self._forget_used()
        return True

    def _explain(self, config: Config[State], bit: int, after: _Frontier[State]) -> None:
        """Add to `after` the configurations that follow `config` when the operation of `bit` is
        ordered, now or after further open ones."""
        op = self._op[bit]
        step = self.model.step
        last = step(config[0], op)
        if last is not None:
            state, taken, free = self._taken(config, op, bit, last)
            after.add(state, taken ^ bit, free)
            others = self.lasting & ~(taken | free)
            if self.model.pure(op) or (not others and self.model.settles(op)):
                return
        for between in self._closure(config, bit):
            last = step(between[0], op)
            if last is not None:
                state, taken, free = self._taken(between, op, bit, last)
                after.add(state, taken ^ bit, free)

    def _closure(self, config: Config[State], without: int) -> Iterator[Config[State]]:
        """The configurations that open operations, but not that of `without`, lead to."""
        seen: _Frontier[State] = _Frontier(self.lasting & ~without, self.lost)
        seen.add(*config)
        step = self.model.step
        waiting = [config]
        for at in waiting:
            state, taken, free = at
            for op, bit in self._candidates(taken, free, without):
                self.budget -= 1
                after = step(state, op)
                if after is None or after == state:
                    continue
                reached = self._taken(at, op, bit, after)
                if seen.add(*reached):
                    waiting.append(reached)
                    yield reached
            if self.budget < 0:
                raise BudgetExceeded

    def _candidates(self, taken: int, free: int, without: int) -> Iterator[tuple[Op, int]]:
        """From each set of equal open operations, those that may be the next in the order."""
        for op, group in self._equals.items():
            for _, _, bit in group:
                if taken & bit or bit == without:
                    continue
                yield op, bit
                # A free operation may not need this place, so the next may be first.
                if not free & bit:
                    break

    def _taken(self, config: Config[State], op: Op, bit: int, after: State) -> Config[State]:
        """`config` with the operation of `bit` put in the order, which leads to state `after`."""
        state, taken, free = config
        taken |= bit
        if self.lasting & ~taken:
            for family in self.model.hidden(state, op):
                free |= self._families.get(family, 0)
            free &= ~taken
            rest = self.lasting & ~taken & ~free
            step = self.model.step
            while rest:
                other = rest & -rest
                rest ^= other
                if step(after, self._op[other]) == after:
                    free |= other
        else:
            free = 0
        return after, taken, free

    def _forget(self, index: int, bit: int) -> None:
        """Free the bit of an operation that every configuration has ordered."""
        op = self._op.pop(bit)
        del self.open[index]
        group = [entry for entry in self._equals[op] if entry[2] != bit]
        if group:
            self._equals[op] = group
        else:
            del self._equals[op]
        self.lasting &= ~bit
        self.lost &= ~bit
        family = self.model.family(op)
        if family and family in self._families:
            self._families[family] &= ~bit

    def _forget_used(self) -> None:
        """Drop the operations of unknown outcome that every configuration has taken."""
        used = self.lost
        for _, taken, _ in self.configs:
            used &= taken
        if used:
            self.configs = [(state, taken & ~used, free) for state, taken, free in self.configs]
            for index in [index for index, bit in self.open.items() if used & bit]:
                self._forget(index, self.open[index])
