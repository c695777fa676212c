"""Numpy parameters that processes share: a trainer writes them, readers take whole snapshots.

`pool.array` is an array of numpy in shared memory, and `numpy()` is that memory itself: nothing is
sent. Each double is whole, the array as such is not: a reader beside the trainer could see half of
a step. So there are two copies and a counter, the version. The trainer writes into the copy that
no client reads, and then counts the version up. A reader takes a snapshot of the copy of the
current version, and keeps it only if the version is still the same. When the trainer is killed in
the midst of writing, the version has not changed: readers go on with the weights from before, and
so does the next trainer.

There are a thousand weights, and each step brings them nearer to the best ones.

    python examples/shared_parameters.py --seconds 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

import limpet

if TYPE_CHECKING:
    from numpy.typing import NDArray

WEIGHTS = 1000
LENGTH = WEIGHTS + 1
"""Doubles of a copy; the last one is a checksum, to show that no snapshot is torn."""
READERS = 2
FIRST = 5
"""The version that the first trainer is killed in."""
SHARE = 0.01
"""The share of the way to the best weights, for each step."""
TRUTH = np.random.default_rng(1).normal(size=WEIGHTS)


ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal.

    The handler itself does not raise: Python drops exceptions of handlers while it forks.
    """
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


class Parameters:
    """Two copies of the weights; the version says which of them is valid."""

    def __init__(self, pool: limpet.Pool) -> None:
        self.version = pool.counter("version")
        self.copies: NDArray[Any] = pool.array("weights", (2, LENGTH), "float64").numpy()

    def snapshot(self) -> tuple[int, NDArray[Any]]:
        """Version and weights, all of them of that version."""
        while True:
            version = self.version.value
            found = self.copies[version % 2].copy()
            if self.version.value == version:
                return version, found

    def publish(self, version: int, weights: NDArray[Any]) -> None:
        """Publish the weights of a version, which is the last one + 1. By one process at a time."""
        self.copies[version % 2, :] = weights
        self.version.set(version)


def checksum(weights: NDArray[Any]) -> float:
    return float(zlib.crc32(weights[:WEIGHTS].tobytes()))


def loss(weights: NDArray[Any]) -> float:
    return float(np.mean((weights[:WEIGHTS] - TRUTH) ** 2))


def train(pool: limpet.Pool, deadline: float, dies_at: int) -> None:
    """Go on from the last version until the deadline, or be killed writing version `dies_at`.
    The first trainer is killed, also when it comes so far after the deadline only."""
    parameters = Parameters(pool)
    version, weights = parameters.snapshot()
    while time.monotonic() < deadline or dies_at == FIRST:
        version += 1
        weights[:WEIGHTS] -= SHARE * (weights[:WEIGHTS] - TRUTH)
        weights[WEIGHTS] = checksum(weights)
        if version == dies_at:
            parameters.copies[version % 2, : LENGTH // 2] = weights[: LENGTH // 2]
            os.kill(os.getpid(), signal.SIGKILL)  # half of them written
        parameters.publish(version, weights)
        time.sleep(0.001)


def read(pool: limpet.Pool, number: int, deadline: float) -> None:
    """Take snapshots until the deadline; count those that are whole, and those that are torn."""
    parameters = Parameters(pool)
    counts = pool.array("counts", (READERS, 2), "int64")
    while time.monotonic() < deadline:
        version, weights = parameters.snapshot()
        torn = version > 0 and weights[WEIGHTS] != checksum(weights)
        counts.add((number, int(torn)))


def run(pool: limpet.Pool, seconds: float) -> bool:
    parameters = Parameters(pool)
    counts = pool.array("counts", (READERS, 2), "int64")
    deadline = time.monotonic() + seconds
    first = loss(parameters.snapshot()[1])

    def start(work: Any, *arguments: Any) -> multiprocessing.Process:
        process = multiprocessing.Process(target=work, args=(pool, *arguments), daemon=True)
        process.start()
        return process

    kills = 0
    readers = [start(read, number, deadline) for number in range(READERS)]
    trainer = start(train, deadline, FIRST)
    try:
        while goes_on(deadline + 30) and trainer.is_alive():
            trainer.join(0.1)
            if trainer.exitcode == -signal.SIGKILL:
                kills += 1
                version = parameters.version.value
                print(f"a trainer was killed writing version {version + 1}; {version} is there")
                trainer = start(train, deadline, version + 50 * (kills + 1))
        for reader in readers:
            reader.join(30)
        well = all(one.exitcode == 0 for one in (trainer, *readers))
    finally:
        for one in (trainer, *readers):
            one.kill()
            one.join()
    version, weights = parameters.snapshot()
    last = loss(weights)
    whole, torn = counts[...].sum(axis=0)
    print(f"{version} versions; the loss went from {first:.3g} to {last:.3g}")
    print(f"{READERS} readers took {whole} snapshots, and {torn} torn ones")
    pool.recover()
    leaked = pool.audit()["leaked"]
    print(f"{leaked} bytes leaked")
    return kills > 0 and well and whole > 0 and torn == 0 and last < first and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Shared numpy parameters, and kills.")
    parser.add_argument("--seconds", type=float, default=5)
    seconds = parser.parse_args().seconds
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="4MiB") as pool:
        return 0 if run(pool, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
