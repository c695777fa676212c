"""Processes that open a durable pool of several hosts when they are told to. Hosts are names in
LIMPET_HOST here, and a host that boots again has another name."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterator
from typing import Any

import limpet
from kit.processes import child
from limpet.fault.explore.sim_pools import SimulatedPmem
from limpet.shm.backends.location import register
from limpet.shm.clients import hosts, liveness
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.layout import POWER

LEASE_S = 0.3
_numbers = itertools.count()
register(SimulatedPmem)


class Host:
    """A process of a host of that name, which opens the pool when it is told to."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self.pool: Any = None
        self.said: list[str] = []
        self.handler = logging.Handler()
        self.handler.emit = self._note  # type: ignore[method-assign]

    def _note(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def open(self) -> list[str]:
        """Open the pool; what was logged."""
        os.environ[hosts.VARIABLE] = self.name
        liveness.forget_surroundings()
        self.said.clear()
        logging.getLogger("limpet").addHandler(self.handler)
        self.pool = limpet.open(self.url)
        return self.said

    def put(self) -> None:
        self.pool.store("race", name="s").put(self.name.encode(), b"value")

    def keys(self) -> list[bytes]:
        store = self.pool.store("race", name="s")
        store.check()
        self.pool.recover()
        assert self.pool.audit()["leaked"] == 0
        return sorted(store)

    def power(self) -> int:
        return int(self.pool.endpoint.load(POWER))


def mended(said: list[str]) -> bool:
    return any("it is whole again" in line for line in said)


@contextlib.contextmanager
def durable_pool() -> Iterator[str]:
    """A pool whose clients have all been killed; its name."""
    name = f"simulated://limpet-hosts-{os.getpid()}-{next(_numbers)}"
    with child(make=lambda: _make(name)) as maker:
        maker.do("make")
        maker.kill()
    try:
        yield name
    finally:
        destroy(name)


def _make(name: str) -> None:
    os.environ[hosts.VARIABLE] = "first"
    liveness.forget_surroundings()
    pool = limpet.create(
        name, nodes=2, node_size=4 << 20, clients=16, multi_host=True, durable=True,
        lease=LEASE_S,
    )  # fmt: skip
    pool.store("race", name="s").put(b"first", b"value")
