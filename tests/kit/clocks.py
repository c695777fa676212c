"""A pool whose clock a test sets: nothing that expires has to be waited for."""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.fabric import Endpoint
from limpet.stores.pool import Pool


class ClockedEndpoint(Endpoint):
    """An Endpoint whose clock stands still until it is moved."""

    now_us = 1_800_000_000_000_000

    def microseconds(self) -> int:
        return self.now_us


class ClockedPool(Pool):
    """A pool handle with such an endpoint."""

    endpoint_class = ClockedEndpoint
    endpoint: ClockedEndpoint

    def sleep_ms(self, ms: float) -> None:
        """Move the clock of this handle."""
        self.endpoint.now_us += int(ms * 1000)


def clocked(pools: Any, **parameters: Any) -> ClockedPool:
    """A new pool with a clock of its own."""
    made: ClockedPool = pools.keep(ClockedPool.create(pools.url(), **parameters))
    return made
