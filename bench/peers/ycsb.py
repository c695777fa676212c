"""YCSB's core workloads A, B and C, and W, as streams of operations made before anything is timed.

B. Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010: every operation is a
read or an update of an existing record; the record is chosen by a Zipfian distribution.

    mix     reads   updates
    A       50 %    50 %
    B       95 %     5 %
    C      100 %     0 %
    W        0 %   100 %
    R       90 %    10 %

W and R are not YCSB's: LOCO's figure 5 (read-only, mixed, write-only) is C, A and W; R is what
caches are measured with.
Each operation is drawn by itself with the mix's probability, as YCSB draws it.

The generator: rank r of n records has probability r**-theta / sum(i**-theta for i in 1..n), drawn
by inverting the cumulative distribution over exactly the n records. The hottest of 100,000 records
then gets 7.8 % of the operations (theta 0.99). YCSB's Java client instead draws from 10**10 ranks
and hashes them onto the records, which leaves its hottest key 3.8 %: figures of the two do not
compare. Ranks are scattered over the records by a seeded permutation, so hot keys are neighbours
neither in key order nor in load order.

A stream is determined by (seed, stream number): the same for every store. Keys and values of a
stream are new objects, each used once: a `bytes` object remembers its hash, so a dict asked with
its own key objects would skip the hashing that a program pays whose keys arrive from elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from limpet.shm.errors import ParameterError

Operation: TypeAlias = "tuple[bytes, bytes | None]"
"""(key, None) is a read, (key, value) an update."""

READ_SHARE: Final = {"A": 0.5, "B": 0.95, "C": 1.0, "W": 0.0, "R": 0.9}
YCSB_MIXES: Final = ("A", "B", "C")

KEY_PREFIX: Final = b"user"
_SCATTER: Final = 11400714819323198549  # odd, not a multiple of 5: one to one modulo a power of ten


@dataclasses.dataclass(frozen=True)
class Workload:
    """Parameters of the stored records and of the operations on them.

    `records`: how many keys. `key_bytes`, `value_bytes`: size of each. `theta`: skew, 0 is uniform.
    `operations`: the longest stream that one process runs. `seed`: of every random choice.
    """

    records: int = 100_000
    key_bytes: int = 24
    value_bytes: int = 64
    theta: float = 0.99
    operations: int = 200_000
    seed: int = 1

    def __post_init__(self) -> None:
        if self.records < 1:
            raise ParameterError(f"records must be at least 1, not {self.records}")
        if self.operations < 1:
            raise ParameterError(f"operations must be at least 1, not {self.operations}")
        if self.value_bytes < 1:
            raise ParameterError(f"value_bytes must be at least 1, not {self.value_bytes}")
        if not 0 <= self.theta < 10:
            raise ParameterError(f"theta must be from 0 to 10, not {self.theta}")
        if self.seed < 0:
            raise ParameterError(f"seed must not be negative: {self.seed}")
        if 10**self.digits < self.records:
            least = len(KEY_PREFIX) + len(str(self.records - 1))
            raise ParameterError(
                f"{self.records} records need keys of {least} bytes or more, not {self.key_bytes}"
            )

    @property
    def digits(self) -> int:
        """Decimal digits of a key after its prefix."""
        return max(self.key_bytes - len(KEY_PREFIX), 0)

    def key(self, index: int) -> bytes:
        """Key of a record: "user" and digits that scatter `index`, one to one."""
        modulus = 10**self.digits
        return KEY_PREFIX + b"%0*d" % (self.digits, index * _SCATTER % modulus)

    def keys(self) -> list[bytes]:
        """Every record's key, in load order."""
        return [self.key(index) for index in range(self.records)]

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Every record with its first value, in load order."""
        values = _slices(_bytes(self, "load"), self.value_bytes, self.records)
        return list(zip(self.keys(), values, strict=True))


def records_drawn(workload: Workload, stream: int, count: int) -> npt.NDArray[np.int64]:
    """Index of the record that each of `count` operations of a stream is about."""
    uniform = _generator(workload, "draw", stream).random(count)
    ranks = np.searchsorted(_cumulative(workload.records, workload.theta), uniform, side="right")
    scattered: npt.NDArray[np.int64] = _permutation(workload.records, workload.seed)[ranks]
    return scattered


def reads_drawn(workload: Workload, stream: int, count: int, share: float) -> npt.NDArray[np.bool_]:
    """Whether each of `count` operations of a stream is a read."""
    return _generator(workload, "mix", stream).random(count) < share


def gets(workload: Workload, stream: int, count: int) -> list[bytes]:
    """Keys to get, one new object each."""
    keys = b"".join(_key_table(workload)[records_drawn(workload, stream, count)].tolist())
    return _slices(keys, workload.key_bytes, count)


def updates(workload: Workload, stream: int, count: int) -> list[tuple[bytes, bytes]]:
    """Keys and their new values, one new object each."""
    values = _slices(_bytes(workload, "update"), workload.value_bytes, count)
    return list(zip(gets(workload, stream, count), values, strict=True))


def mixed(workload: Workload, mix: str, stream: int, count: int) -> list[Operation]:
    """Operations of a mix."""
    reads = reads_drawn(workload, stream, count, READ_SHARE[mix]).tolist()
    return [
        (key, None if read else value)
        for (key, value), read in zip(updates(workload, stream, count), reads, strict=True)
    ]


def _generator(workload: Workload, purpose: str, stream: int = 0) -> np.random.Generator:
    return np.random.default_rng([workload.seed, stream, *purpose.encode()])


@functools.lru_cache(maxsize=1)
def _cumulative(records: int, theta: float) -> npt.NDArray[np.float64]:
    weights = np.arange(1, records + 1, dtype=np.float64) ** -theta
    cumulative: npt.NDArray[np.float64] = np.cumsum(weights / weights.sum())
    cumulative[-1] = 1.0
    return cumulative


@functools.lru_cache(maxsize=1)
def _permutation(records: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, *b"scatter"]).permutation(records)


@functools.lru_cache(maxsize=1)
def _key_table(workload: Workload) -> npt.NDArray[np.bytes_]:
    return np.array(workload.keys(), dtype=f"S{workload.key_bytes}")


@functools.lru_cache(maxsize=2)
def _bytes(workload: Workload, purpose: str) -> bytes:
    return _generator(workload, purpose).bytes(max(1 << 20, 2 * workload.value_bytes))


def _slices(data: bytes, size: int, count: int) -> list[bytes]:
    """`count` new objects of `size` bytes cut from `data` one after another, again and again."""
    whole = len(data) // size
    return [data[at : at + size] for at in (index % whole * size for index in range(count))]
