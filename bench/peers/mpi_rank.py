"""One of Open MPI's processes in `bench channels`: runs a case's loop over windows of MPI's.

    mpirun -n RANKS python -m limpet.bench.peers.mpi_rank CASE COUNT

Accounts are in the memory of all ranks, as in section 7.1 of LOCO: account a is that of rank
a % RANKS in window a // RANKS. A window has a lock for each rank, so each account has one of its
own, as it has with the other contenders. A lock is MPI_Win_lock (exclusive) and MPI_Win_unlock; to
add is one MPI_Accumulate, which costs less than MPI_Get, MPI_Win_flush and MPI_Put.

Rank 0 prints when the first began and the last ended, in ns of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from limpet.bench.peers.channels import ACCOUNTS, CASES
from limpet.fault.inject.children import die_with_parent


class _Lock:
    """The lock of one account."""

    def __init__(self, window: Any, rank: int) -> None:
        self.acquire = functools.partial(window.Lock, rank, MPI.LOCK_EXCLUSIVE)
        self.release = functools.partial(window.Unlock, rank)


class _Accounts:
    """The holder of an account's lock adds to it."""

    def __init__(self) -> None:
        world: Any = MPI.COMM_WORLD
        bytes_each = np.dtype(np.int64).itemsize
        count = -(-ACCOUNTS // world.size)
        windows: list[Any] = [
            MPI.Win.Allocate(bytes_each, bytes_each, comm=world) for _ in range(count)
        ]
        self.own = [np.frombuffer(window.tomemory(), np.int64) for window in windows]
        for memory in self.own:
            memory[0] = 0
        self.places = [(windows[a // world.size], a % world.size) for a in range(ACCOUNTS)]
        self.locks = [_Lock(window, rank) for window, rank in self.places]
        self.deltas = {delta: np.array([delta], np.int64) for delta in (-1, 1)}

    def add(self, index: int, delta: int) -> None:
        window, rank = self.places[index]
        window.Accumulate(self.deltas[delta], rank)

    def total(self) -> int:
        """The sum of this rank's accounts."""
        return sum(int(memory[0]) for memory in self.own)


def main() -> None:
    die_with_parent()
    case, count = CASES[sys.argv[1]], int(sys.argv[2])
    world: Any = MPI.COMM_WORLD
    accounts = _Accounts()
    world.Barrier()
    begin = time.monotonic_ns()
    case.body((accounts.locks, accounts), world.rank, world.size, count)
    end = time.monotonic_ns()
    world.Barrier()
    total = world.allreduce(accounts.total())
    first, last = world.reduce(begin, MPI.MIN), world.reduce(end, MPI.MAX)
    expected = 0 if case.total is None else case.total(world.size, count)
    if total != expected:
        raise SystemExit(f"the accounts have {total}, not {expected}")
    if world.rank == 0:
        print(json.dumps([first, last]))


if __name__ == "__main__":
    main()
