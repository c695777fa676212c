"""What tests of channels share: children that are killed at a given step, and notes of sleeps."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from process_tools import start

import limpet
from limpet.shm.endpoint.fabric import Endpoint


def dies_at(pool: Any, fuse: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that is killed at its `fuse`-th step; whether it came so far."""

    def doomed() -> None:
        assert pool.client_id
        pool.endpoint.fuse = fuse
        work()
        os.kill(os.getpid(), signal.SIGTERM)

    pid, out = start(doomed)
    out.close()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (-signal.SIGKILL, -signal.SIGTERM)
    return code == -signal.SIGKILL


def nothing_leaked(pool: Any) -> None:
    """After recovery, all memory is accounted for."""
    pool.recover()
    audit = pool.audit()
    assert audit["leaked"] == audit["held"] == 0, audit
    pool.channels.catalogue.check()


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
