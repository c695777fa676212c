"""A client that dies in the midst of an operation, while its process lives on as another client.

So the RCuckoo paper emulates failures: the verbs of an operation are cut off at a random one
(RCuckoo 5.4). It takes no new process, so far more clients can die in a second.

`MortalPool.endpoint.steps = k` cuts off before the k-th step from there on: as for `Endpoint.fuse`,
each mutating verb is a step, and so is each word of a write. `Gone` is raised then, and by every
later mutating verb: no `finally` of the dead client can touch memory. `reborn` makes its slot that
of a process which is provably dead, without a life lock and with a start time that no process has,
and joins again.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.clients.membership import slot_address
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.simulated import size_of, words_of
from limpet.stores.pool import Pool

NEVER_STARTED: Final = 1
"""A start time, in ticks since boot, that no process has but those of the kernel."""


class Gone(BaseException):
    """This client is dead. No handler of errors may take it for one."""


class MortalEndpoint(Endpoint):
    """An Endpoint that cuts off its client's verbs at step `steps` (0: never)."""

    def __init__(self) -> None:
        self.steps = 0
        self.gone = False

    def _step(self, words: int = 1) -> int:
        """How many of so many steps may be taken."""
        if self.gone:
            raise Gone
        if not self.steps or words < self.steps:
            self.steps -= min(words, self.steps)
            return words
        self.gone = True
        left, self.steps = self.steps - 1, 0
        return left

    def _one_step(self) -> None:
        if not self._step():
            raise Gone

    def store(self, addr: int, value: int) -> int:
        self._one_step()
        return super().store(addr, value)

    def swap(self, addr: int, value: int) -> int:
        self._one_step()
        return super().swap(addr, value)

    def cas(self, addr: int, expected: int, desired: int) -> int:
        self._one_step()
        return super().cas(addr, expected, desired)

    def faa(self, addr: int, delta: int) -> int:
        self._one_step()
        return super().faa(addr, delta)

    def fetch_or(self, addr: int, bits: int) -> int:
        self._one_step()
        return super().fetch_or(addr, bits)

    def mcas(self, addr: int, compare: int, swap: int, compare_mask: int, swap_mask: int) -> int:
        self._one_step()
        return super().mcas(addr, compare, swap, compare_mask, swap_mask)

    def write(self, addr: int, data: Any) -> int:
        whole = memoryview(data).cast("B")
        words = self._step(words_of(addr, len(whole)))
        if not self.gone:
            return super().write(addr, whole)
        if words:
            super().write(addr, whole[: size_of(addr, words)])
        raise Gone

    def write_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        done = self._step(count)
        if not self.gone:
            return super().write_words(addr, words, count, start)
        if done:
            super().write_words(addr, words, done, start)
        raise Gone

    def write_gather(self, addr: int, words: Any, count: int, first: bytes, second: bytes) -> int:
        head = b"".join(word.to_bytes(8, "little") for word in words[:count])
        return self.write(addr, head + first + bytes(-len(first) & 7) + second)


class MortalPool(Pool):
    """A pool handle whose client can die alone."""

    endpoint_class = MortalEndpoint
    endpoint: MortalEndpoint

    def reborn(self) -> None:
        """Make the client that has gone provably dead, and be another one."""
        endpoint = self.endpoint
        endpoint.gone = False
        slot = self.client.ident >> slots.INCARNATION_BITS
        endpoint.store(slot_address(slot) + slots.STARTED, NEVER_STARTED)
        if self.membership.locks is not None:
            self.membership.locks.drop(slot)
        self.allocator.forget()
        self.clock.forget()
        self.membership.forget()
        self.client.assume(0, 0, 0)
        endpoint.background(False)
        self.membership.join()
