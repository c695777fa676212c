"""Pools whose verbs can be met on the way: what happens in between two steps of a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import limpet
from limpet.shm.endpoint.fabric import Endpoint


class Interrupted(Exception):
    """What a signal handler raised in the midst of an operation."""


class WatchedEndpoint(Endpoint):
    """Calls `before(verb, address)` before, and `after(verb, address)` after, the verbs below."""

    before: Callable[[str, int], None] | None = None
    after: Callable[[str, int], None] | None = None

    def _watched(self, verb: str, address: int, *arguments: Any) -> Any:
        if self.before is not None:
            self.before(verb, address)
        result = getattr(super(), verb)(address, *arguments)
        if self.after is not None:
            self.after(verb, address)
        return result

    def load(self, addr: int) -> int:
        return int(self._watched("load", addr))

    def cas(self, addr: int, expected: int, desired: int) -> int:
        return int(self._watched("cas", addr, expected, desired))

    def mcas(self, addr: int, *words: int) -> int:
        return int(self._watched("mcas", addr, *words))

    def read(self, addr: int, size: int) -> bytes:
        return bytes(self._watched("read", addr, size))

    def read_words(self, addr: int, words: Any, count: int, start: int = 0) -> Any:
        return self._watched("read_words", addr, words, count, start)


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
