"""Clients that go on when they are told to, and stop just before a verb of one's choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from endpoint_tools import WatchedEndpoint, WatchedPool

from limpet.fault.explore.greenlets import getcurrent, greenlet
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.shm.errors import StoreFull


class PuppetEndpoint(WatchedEndpoint):
    """Stores can be met, too, and swaps, by which a client pins."""

    def store(self, addr: int, value: int) -> int:
        return int(self._watched("store", addr, value))

    def swap(self, addr: int, value: int) -> int:
        return int(self._watched("swap", addr, value))

    def write_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        return int(self._watched("write_words", addr, words, count, start))


class PuppetPool(WatchedPool):
    endpoint_class = PuppetEndpoint


Where = Callable[[str, int], bool]


def verb_on(verb: str, node: int | None = None, number: int = 1) -> Where:
    """The verb of that number, from 1 on, on this memory node, or on any."""

    def there(address: int) -> bool:
        at = address >> NODE_SHIFT
        return at != CONTROL_NODE if node is None else at == node

    return _counted(verb, there, number)


def verb_on_address(verb: str, where: int, number: int = 1) -> Where:
    """The verb of that number, from 1 on, on this word."""
    return _counted(verb, lambda address: address == where, number)


def after(*steps: tuple[str, int], then: tuple[str, int]) -> Where:
    """The verb on an address `then`, when these have been met before in this order."""
    left = [*steps, then]

    def reached(verb: str, address: int) -> bool:
        if left and (verb, address) == left[0]:
            del left[0]
            return not left
        return False

    return reached


def _counted(verb: str, there: Callable[[int], bool], number: int) -> Where:
    left = [number]

    def reached(name: str, address: int) -> bool:
        if name == verb and there(address):
            left[0] -= 1
            return left[0] == 0
        return False

    return reached


class Puppet:
    """A client with a store of the pool, which does one operation at a time, step by step."""

    pool_class: type[PuppetPool] = PuppetPool

    def __init__(self, pools: Any, url: str, kind: str, name: str = "test") -> None:
        self.pool = pools.keep(self.pool_class.open(url))
        self.store = self.pool.store(kind, name=name)
        self.result: Any = None
        self._until: Where | None = None
        self._at: greenlet | None = None
        self.pool.endpoint.before = self._before

    def _before(self, verb: str, address: int) -> None:
        if self._until is not None and self._until(verb, address):
            self._until = None
            getcurrent().parent.switch()

    def begin(self, work: Callable[[], Any], until: Where | None = None) -> bool:
        """Begin an operation, and go on as `go` says."""

        def play() -> None:
            try:
                self.result = work()
            except (KeyError, StoreFull) as error:
                self.result = type(error)

        assert self._at is None, "it is in the midst of an operation"
        self._at = greenlet(play)
        return self.go(until)

    def abandon(self) -> None:
        """End the operation that it is in the midst of, as by an exception."""
        assert self._at is not None
        self._at.throw()
        self._at = None

    def go(self, until: Where | None = None) -> bool:
        """Go on to the end, or stop just before `until`; whether it is at its end."""
        assert self._at is not None
        self._until = until
        self._at.switch()
        self._until = None
        if self._at.dead:
            self._at = None
        return self._at is None
