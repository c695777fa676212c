"""Sequential specifications, with which histories are compared.

A model is init, step and equal: the state before the first operation; the state after an operation
took effect in a state, or None if its result is impossible there; and equality, which is `==` and
`hash` of the states. A state is never None.

An operation whose outcome is unknown is stepped as one that took effect: where it would have had no
effect (an insert of a key that is there), `step` gives None or the same state.

The hints shorten the search. Without them the search is right, and slower.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from limpet.fault.check.history import Record

State = TypeVar("State", bound=Hashable)
Op = TypeVar("Op", bound=Hashable)


class Model(Generic[State, Op]):
    """Base of models. Equal operations are interchangeable: same call, same result."""

    def init(self) -> State:
        """The state before the first operation."""
        raise NotImplementedError

    def step(self, state: State, op: Op) -> State | None:
        """The state after `op` in `state`; None if the result of `op` is impossible there."""
        raise NotImplementedError

    def pure(self, op: Op) -> bool:
        """Hint: `op` never changes a state."""
        return False

    def settles(self, op: Op) -> bool:
        """Hint: the state after `op` is the same from every state that allows `op`."""
        return False

    def family(self, op: Op) -> int:
        """Hint: a number for `hidden` to name operations by; 0 for those that it never names."""
        return 0

    def hidden(self, state: State, by: Op) -> tuple[int, ...]:
        """Hint: families of operations, any number of which, in any order, can take effect in
        `state` right before `by` (which `state` allows) and leave the same state after it."""
        return ()


# ---- one key of a key-value store --------------------------------------------------------------

ANY: Final = -1
PRESENT: Final = -2
ABSENT: Final = 0
UNREAD: Final = 1
"""Stands for every value that no get returns; the others count from 2."""
KEEP: Final = -1

_PUTS: Final = 1
_UPDATES: Final = 2


class KeyOp(NamedTuple):
    """An operation on one key: the states that allow it and the state that it leaves.

    needs: ANY, PRESENT, ABSENT, or exactly this value; leaves: KEEP, ABSENT, or this value.
    """

    needs: int
    leaves: int


class KeyModel(Model[int, KeyOp]):
    """One key: its state is ABSENT or the number of its value."""

    def __init__(self, initial: int = ABSENT) -> None:
        self._initial = initial

    def init(self) -> int:
        return self._initial

    def step(self, state: int, op: KeyOp) -> int | None:
        needs, leaves = op
        if needs in (state, ANY) or (needs == PRESENT and state != ABSENT):
            return state if leaves == KEEP else leaves
        return None

    def pure(self, op: KeyOp) -> bool:
        return op.leaves == KEEP

    def settles(self, op: KeyOp) -> bool:
        return op.leaves != KEEP

    def family(self, op: KeyOp) -> int:
        if op.leaves > ABSENT:
            return {ANY: _PUTS, PRESENT: _UPDATES}.get(op.needs, 0)
        return 0

    def hidden(self, state: int, by: KeyOp) -> tuple[int, ...]:
        # A put is always allowed; an update is, where the key is present, and keeps it so.
        if by.leaves == KEEP or by.needs >= ABSENT:
            return ()
        return (_PUTS, _UPDATES) if state != ABSENT else (_PUTS,)


class Values:
    """Numbers for the values of one key: those in `named` get their own, all others UNREAD."""

    def __init__(self, named: Iterable[bytes]) -> None:
        self._numbers = {value: number for number, value in enumerate(dict.fromkeys(named), 2)}
        self._values = list(self._numbers)

    def number(self, value: bytes | None) -> int:
        """The state in which the key has `value`; None: is absent."""
        return ABSENT if value is None else self._numbers.get(value, UNREAD)

    def value(self, state: int) -> bytes | None:
        """The value of a numbered state that is not UNREAD."""
        return None if state == ABSENT else self._values[state - 2]

    def renumber(self, other: Values, state: int) -> int:
        """The number here of the state that `other` numbers `state`."""
        return state if state in (ABSENT, UNREAD) else self.number(other.value(state))

    def key_op(self, record: Record) -> KeyOp:
        """`record` for a KeyModel; every value that gets return, or swaps expect, must be named. A
        swap that found another value says nothing of the state."""
        if record.op == "get":
            return KeyOp(self.number(record.read), KEEP)
        if record.op == "swap" and record.result != "changed":
            return KeyOp(self.number(record.read), self.number(record.value))
        needs, leaves = _EFFECTS[record.op, record.result]
        return KeyOp(needs, self.number(record.value) if leaves == UNREAD else leaves)


_EFFECTS: Final[Mapping[tuple[str, str], tuple[int, int]]] = {
    ("insert", "ok"): (ABSENT, UNREAD),
    ("insert", "exists"): (PRESENT, KEEP),
    ("insert", "unknown"): (ABSENT, UNREAD),
    ("update", "ok"): (PRESENT, UNREAD),
    ("update", "missing"): (ABSENT, KEEP),
    ("update", "unknown"): (PRESENT, UNREAD),
    ("put", "ok"): (ANY, UNREAD),
    ("put", "unknown"): (ANY, UNREAD),
    ("delete", "ok"): (PRESENT, ABSENT),
    ("delete", "missing"): (ABSENT, KEEP),
    ("delete", "unknown"): (PRESENT, ABSENT),
    ("swap", "changed"): (ANY, KEEP),
}
"""The state that each operation needs, and the state after it; UNREAD stands for its value."""


# ---- a queue -----------------------------------------------------------------------------------


class QueueOp(NamedTuple):
    """An operation on a queue: "put" of a value; "get" of a value; "lost", a get whose value is not
    known; "empty", a get that found no element."""

    kind: str
    value: bytes = b""


class QueueModel(Model[tuple[bytes, ...], QueueOp]):
    """First in, first out; its state is the values in their order."""

    def init(self) -> tuple[bytes, ...]:
        return ()

    def step(self, state: tuple[bytes, ...], op: QueueOp) -> tuple[bytes, ...] | None:
        if op.kind == "put":
            return (*state, op.value)
        if op.kind == "empty":
            return None if state else state
        if not state or (op.kind == "get" and state[0] != op.value):
            return None
        return state[1:]

    def pure(self, op: QueueOp) -> bool:
        return op.kind == "empty"


# ---- a lock ------------------------------------------------------------------------------------

FREE: Final = 0
LEFT: Final = -1
"""Free, since its last holder has died; every other state is the holder's number, from 1."""


class LockOp(NamedTuple):
    """An operation on a lock by `client`: "take", `inherited` or not (None: not reported);
    "release"; "die", which frees what it holds."""

    kind: str
    client: int
    inherited: bool | None = None


class LockModel(Model[int, LockOp]):
    """One client at a time holds it."""

    def init(self) -> int:
        return FREE

    def step(self, state: int, op: LockOp) -> int | None:
        if op.kind == "die":
            return LEFT if state == op.client else state
        if op.kind == "release":
            return FREE if state == op.client else None
        if state not in (FREE, LEFT) or op.inherited not in (None, state == LEFT):
            return None
        return op.client
