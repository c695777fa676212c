"""Pools whose verbs can be met on the way: what happens in between two steps of a client."""

from __future__ import annotations

from collections.abc import Callable

import limpet
from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.hooked import HookedEndpoint


class Interrupted(Exception):
    """An exception of a signal handler in the midst of an operation."""


class WatchedEndpoint(HookedEndpoint, verbs=("load", "cas", "mcas", "read", "read_words")):
    """Calls `before(verb, address)` before, and `after(verb, address)` after, these verbs.

    A read of two words is met as two loads, as others may change them in between.
    """

    before: Callable[[str, int], None] | None = None
    after: Callable[[str, int], None] | None = None

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if verb == "read_words" and words <= 2:
            verb, words = "load", 1
        if self.before is not None:
            self.before(verb, addr)
        return words

    def on_done(self, verb: str, addr: int, words: int, value: int) -> None:
        if self.after is not None:
            self.after("load" if verb == "read_words" and words == 1 else verb, addr)


class WatchedPool(limpet.Pool):
    """A pool with such an endpoint."""

    endpoint_class = WatchedEndpoint


class NappingEndpoint(Endpoint):
    """Notes for how long, at most, each sleep in the kernel is, in us."""

    def __init__(self) -> None:
        self.naps: list[int] = []

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        self.naps.append(timeout_us)
        return super().futex_wait(addr, expected, timeout_us)


class NappingPool(limpet.Pool):
    """A pool with such an endpoint."""

    endpoint_class = NappingEndpoint
