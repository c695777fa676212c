"""Clients with caches of their own before one memory, which is coherent up to COHERENT."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Any, Final

from limpet.shm.endpoint.simulated import CachedEndpoint

SIZE: Final = 16384
COHERENT: Final = 8192


class CachedClients:
    """The clients, each a `CachedEndpoint`, and the memory behind their caches."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("caches")
        os.ftruncate(self.fd, SIZE)
        self.memory = mmap.mmap(self.fd, SIZE)
        self.clients: list[Any] = []

    def client(self, kind: type[CachedEndpoint] = CachedEndpoint) -> Any:
        """One client more."""
        mapping = mmap.mmap(self.fd, SIZE)
        client = kind()
        client.attach(0, mapping, SIZE, COHERENT)
        client.cover(0, mapping, self.memory, COHERENT)
        self.clients.append(client)
        return client


@contextlib.contextmanager
def cached_clients() -> Iterator[CachedClients]:
    """No clients at first; all are gone at the end."""
    made = CachedClients()
    try:
        yield made
    finally:
        for client in made.clients:
            client.detach()
        made.memory.close()
        os.close(made.fd)
