"""What simulated clients did, and whether some order of it explains what they saw.

A search for an order in which every operation takes effect at a moment between its call and its
return (Wing and Gong, "Testing and verifying concurrent objects", 1993, with memoised states). An
operation without a return may take effect at any time after its call, or never. For histories of a
dozen operations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

Value = bytes | None


@dataclasses.dataclass
class Event:
    """An operation on a key: called at `start`, returned at `end` (0: it did not)."""

    client: int
    kind: str
    key: bytes
    start: int
    value: Value = None
    end: int = 0
    result: str = "unknown"
    read: Value = None

    def __str__(self) -> str:
        written = "" if self.value is None else f" = {short(self.value)}"
        result = self.result if self.read is None else short(self.read)
        return (
            f"[{self.start:3}, {self.end or '...':>3}] client {self.client}: {self.kind} "
            f"{self.key.decode()}{written} -> {result}"
        )


def short(value: bytes) -> str:
    """A value without its filling; one that nobody can have written is shown as it is."""
    label = value.rstrip(b".")
    return label.decode() if len(label) < 20 and label.isascii() else repr(value)


def _effect(event: Event, state: Value) -> tuple[bool, Value]:
    """Whether the operation can come to its result in this state, and the state after it."""
    there = state is not None
    kind, result = event.kind, event.result
    if kind == "get":
        return result == "unknown" or event.read == state, state
    if kind == "put":
        return True, event.value
    if kind == "insert":
        possible = result == "unknown" or (result == "ok") != there
        return possible, state if there else event.value
    possible = result == "unknown" or (result == "ok") == there
    after = event.value if kind == "update" else None
    return possible, after if there else state


def explicable(events: Sequence[Event], state: Value) -> bool:
    """Whether operations on one key, which is in `state` at first, can be put in order."""
    seen: set[tuple[int, Value]] = set()
    open_ = [(((1 << len(events)) - 1), state)]
    while open_:
        left, state = open_.pop()
        if (left, state) in seen:
            continue
        seen.add((left, state))
        rest = [i for i in range(len(events)) if left >> i & 1]
        ends = [events[i].end for i in rest if events[i].end]
        if not ends:
            return True
        for i in rest:
            if events[i].start < min(ends):
                possible, after = _effect(events[i], state)
                if possible:
                    open_.append((left & ~(1 << i), after))
    return False


def illegal(events: Iterable[Event], initial: Mapping[bytes, bytes]) -> str:
    """What is wrong with a history, or ""."""
    by_key: dict[bytes, list[Event]] = {}
    for event in events:
        by_key.setdefault(event.key, []).append(event)
    for key, found in sorted(by_key.items()):
        if not explicable(found, initial.get(key)):
            lines = [f"history: no order explains what was seen of {key.decode()!r}, which "]
            lines[0] += "was initial at first" if key in initial else "was not there at first"
            return "\n    ".join(lines + [str(event) for event in found])
    return ""
