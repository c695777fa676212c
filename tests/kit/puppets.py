"""Clients that go on when they are told to, and stop just before a verb of one's choice.

A `Puppet` is such a client. `dies_before` kills a real one there. A `Testbed` has a pool and a
store with puppets, and a client that dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kit.endpoints import WatchedEndpoint, WatchedPool
from kit.processes import gather
from kit.stores import sound
from limpet.fault.explore.greenlets import getcurrent, greenlet
from limpet.fault.matrix.testbed import look_away
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.shm.errors import StoreFull


class PuppetEndpoint(WatchedEndpoint, verbs=("store", "swap", "write_words", "write_gather")):
    """Stores can be met, too, swaps, by which a client pins, and writes of values."""


class PuppetPool(WatchedPool):
    endpoint_class = PuppetEndpoint


class ShiftedEndpoint(PuppetEndpoint):
    """Of a host whose clock is ahead by `shift` us; below 0, behind."""

    shift = 0

    def microseconds(self) -> int:
        return super().microseconds() + self.shift


class ShiftedPool(PuppetPool):
    endpoint_class = ShiftedEndpoint
    endpoint: ShiftedEndpoint


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


def kills_at(where: Where) -> Callable[[str, int], None]:
    """For `endpoint.before`: kills the process just before that verb."""

    def before(verb: str, address: int) -> None:
        if where(verb, address):
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def dies_before(
    pool: PuppetPool,
    where: Where,
    work: Callable[[], object],
    prepare: Callable[[], object] = lambda: None,
) -> None:
    """A forked client of the pool prepares, works, and is killed just before that verb."""

    def client() -> None:
        prepare()
        pool.endpoint.before = kills_at(where)
        work()

    with pytest.raises(AssertionError, match="ended with -9"):
        gather(client)


class Testbed:
    """A store of a kind in a new pool, puppets of it and, if `dies`, a client to die.

    `of_pool`: parameters of the pool; the others are the store's.
    """

    __test__ = False
    kind = ""
    dies = False
    puppet_class: type[Puppet] = Puppet

    def __init__(
        self,
        pools: Any,
        puppets: int = 0,
        of_pool: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> None:
        self.pools = pools
        self.url = pools(**(of_pool or {})).url
        self.pool = pools.keep(self.puppet_class.pool_class.open(self.url))
        self.store = self.pool.store(self.kind, name="test", **parameters)
        if self.dies:
            self.remotely_fenced = self.newcomer()
        self.prepare()
        self.puppets = [self.newcomer() for _ in range(puppets)]

    def prepare(self) -> None:
        """Put what is to be there before the puppets come."""

    def newcomer(self) -> Puppet:
        """A client that has read nothing yet."""
        return self.puppet_class(self.pools, self.url, self.kind)

    def die(
        self,
        where: Where,
        work: Callable[[Any], object],
        warm: Callable[[Any], object] = lambda store: store.get(b"x"),
        recovers: bool = False,
    ) -> None:
        """A client that is warm begins an operation on the store, and dies just before that verb.

        It leaves alone the dead that it meets, unless it `recovers`.
        """
        door, store = self.remotely_fenced.pool, self.remotely_fenced.store

        def prepare() -> None:
            sweep = door.membership.sweep
            look_away(door)
            warm(store)
            if recovers:
                door.membership.sweep = sweep

        dies_before(door, where, lambda: work(store), prepare)

    def dead(self) -> list[int]:
        """The slots of dead clients."""

        def look() -> list[int]:
            membership = self.pool.membership
            return [slot for slot, word in membership.occupied() if membership.dead(slot, word)]

        return list(self.pool.exclusively(look))

    def load(self, at: int) -> int:
        return int(self.store.endpoint.load(at))

    def sound(self) -> None:
        """Nothing is wrong or leaked."""
        sound(self.store)
