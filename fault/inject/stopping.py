"""A pool handle that stops its own process at a chosen step, or does something else there.

The twin of the crash fuse.

The steps are those of `Endpoint.fuse`: every mutating verb is one, and so is every 8-byte word of
a write. So `stop_at = k` stops where `fuse = k` kills, in place of the k-th step, and the process
goes on from there when somebody sends SIGCONT.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from limpet.shm.endpoint.fabric import Endpoint
from limpet.stores.pool import Pool


def stop() -> None:
    """Stop this process until somebody wakes it."""
    os.kill(os.getpid(), signal.SIGSTOP)


class StoppingEndpoint(Endpoint):
    """An Endpoint that counts steps, and is interrupted at step `stop_at` (0: never)."""

    def __init__(self) -> None:
        self.stop_at = 0
        self.interrupt: Callable[[], object] = stop

    def _step(self) -> None:
        if self.stop_at:
            self.stop_at -= 1
            if self.stop_at == 0:
                self.interrupt()

    def store(self, addr: int, value: int) -> int:
        self._step()
        return super().store(addr, value)

    def swap(self, addr: int, value: int) -> int:
        self._step()
        return super().swap(addr, value)

    def cas(self, addr: int, expected: int, desired: int) -> int:
        self._step()
        return super().cas(addr, expected, desired)

    def faa(self, addr: int, delta: int) -> int:
        self._step()
        return super().faa(addr, delta)

    def fetch_or(self, addr: int, bits: int) -> int:
        self._step()
        return super().fetch_or(addr, bits)

    def mcas(self, addr: int, compare: int, swap: int, compare_mask: int, swap_mask: int) -> int:
        self._step()
        return super().mcas(addr, compare, swap, compare_mask, swap_mask)

    def write(self, addr: int, data: Any) -> int:
        if not self.stop_at:
            return super().write(addr, data)
        whole = memoryview(data).cast("B")
        done = 0
        while done < len(whole):
            self._step()
            size = 8 - (addr + done & 7)
            super().write(addr + done, whole[done : done + size])
            done += size
        return 0

    def write_gather(self, addr: int, words: Any, count: int, first: bytes, second: bytes) -> int:
        if not self.stop_at:
            return super().write_gather(addr, words, count, first, second)
        head = b"".join(word.to_bytes(8, "little") for word in words[:count])
        return self.write(addr, head + first + bytes(-len(first) & 7) + second)

    def write_words(self, addr: int, words: Any, count: int, start: int = 0) -> int:
        if not self.stop_at:
            return super().write_words(addr, words, count, start)
        some = words[start : start + count]
        return self.write(addr, b"".join(word.to_bytes(8, "little") for word in some))


class StoppingPool(Pool):
    """A pool whose endpoint can stop this process."""

    endpoint_class = StoppingEndpoint
    endpoint: StoppingEndpoint
