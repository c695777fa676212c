"""Where the metadata process of a store listens: a lock on a file shows it.

The metadata process holds a lock on bytes of the control segment's file (`fcntl`,
F_OFD_SETLK, as life locks are: shm/clients/liveness.py), far behind the segment's end:

    first byte    LOCKS + STRIDE * (32 bits of a hash of the store): the same for every metadata
                  process of the store, so only one at a time has the lock
    length        1 to STRIDE - 1: a number that this metadata process has drawn, part of the name
                  of its socket
    kind          a write lock while it reads the index from memory, a read lock from then on

So a process that may not open the pool cannot take the metadata process's place. Abstract sockets
have no owner: any user of the host can bind any name that is free. A metadata process therefore
draws names until one is free, and takes the lock when it listens there. As long as the lock is
held, the process that listens at that name is the metadata process. The kernel drops the lock when
the process ends, however it ends; then clients do not use that name any more, even if another
process binds it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from typing import Any, Final, NamedTuple

from limpet.shm.clients.liveness import IN_THE_WAY, describe, request
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import StoreError

LOCKS: Final = 1 << 62
STRIDE: Final = 1 << 30
NAMES_MAX: Final = 1000
"""How many names are drawn before a metadata process gives up."""


class VersionPlace:
    """The lock of one store's metadata process, and the name that goes with it."""

    def __init__(self, pool: Any, name: str, word: int) -> None:
        """`word`: of the store's entry in the catalogue; a store that is made anew has another."""
        self.url = pool.url
        self.control = pool.segments()[-1].descriptor
        self.store = f"{pool.uuid.hex()}.{hash64(name.encode()):x}.{word:x}"
        self.first = LOCKS + STRIDE * (hash64(self.store.encode()) >> 32)

    def address(self, number: int) -> str:
        """The name of the socket that goes with a number."""
        return f"\0limpet.clover.{self.store}.{number:x}"

    def holder(self) -> tuple[int, bool]:
        """Number of the metadata process, and whether it has read its index; 0: there is none."""
        kind, length = self.ask(self.control.number(), fcntl.F_OFD_GETLK, fcntl.F_WRLCK, STRIDE - 1)
        return (0, False) if kind == fcntl.F_UNLCK else (length, kind == fcntl.F_RDLCK)

    def listen(self) -> Held | None:
        """Start the metadata process in this process; it listens from now on. None: there is one
        already."""
        # ORDER: a description of our own, which a forked child of the client does not share; and
        # open before the socket is, so that it is closed before the socket is.
        own = describe(self.control.number())
        listener, number = self._bound()
        listener.listen(1024)
        try:
            # ORDER: a client that finds the lock held finds a process that listens.
            self.ask(own, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, number)
        except OSError as error:
            listener.close()
            os.close(own)
            if error.errno in IN_THE_WAY:
                return None
            raise
        return Held(self, own, listener, number)

    def _bound(self) -> tuple[socket.socket, int]:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for _ in range(NAMES_MAX):
            number = 1 + int.from_bytes(os.urandom(8), "little") % (STRIDE - 1)
            try:
                listener.bind(self.address(number))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return listener, number
        raise StoreError(
            f"{self.url}: other processes have bound {NAMES_MAX} names of sockets that the "
            "metadata process has drawn; /proc/net/unix lists them"
        )

    def ask(self, fd: int, command: int, kind: int, length: int) -> tuple[int, int]:
        """`request` (liveness.py) about the bytes of this store."""
        return request(fd, command, kind, self.first, length)


class Held(NamedTuple):
    """In the metadata process: the lock, held until this process ends, and the socket."""

    place: VersionPlace
    own: int
    listener: socket.socket
    number: int

    def ready(self) -> None:
        """Show to clients that the index has been read."""
        self.place.ask(self.own, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, self.number)
