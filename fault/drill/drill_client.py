"""A client of the store drill: operations of all kinds, on self-check values."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from limpet.fault.check.recorder import Log, Operation, Result
from limpet.fault.check.self_check import TRAILER_SIZE, identity, seal, unseal
from limpet.fault.inject.counters import GETS, PUTS, Counter
from limpet.shm.errors import KeyExists, NodeFailed, StoreFull

WRITES: Final = frozenset({Operation.INSERT, Operation.UPDATE, Operation.PUT})
"""The operations that have a value."""


class Values:
    """The values of a run: unique, and visibly torn or whole; `sizes`: least and most bytes.

    Sizes are drawn evenly on a logarithmic scale; a value's content is a function of its writer.
    """

    def __init__(self, sizes: tuple[int, int], seed: int) -> None:
        low, high = sizes
        if not TRAILER_SIZE <= low <= high:
            raise ValueError(f"sizes of values go up from {TRAILER_SIZE}, not {low} to {high}")
        self._low = low
        self._octaves = math.log2((high + 1) / low)
        self._content = memoryview(np.random.default_rng(seed).bytes(2 * high))
        self._high = high

    def make(self, key: int, incarnation: int, sequence: int, share: float) -> bytes:
        """A value of `key`; `share`, from 0 to 1, sets its size."""
        size = min(int(self._low * 2 ** (share * self._octaves)), self._high) - TRAILER_SIZE
        start = (incarnation * 7919 + sequence) % self._high
        return seal(self._content[start : start + size], key, incarnation, sequence)


class DrillClient:
    """One incarnation at work on `store`, whose keys are `keys`.

    An operation that raises NodeFailed keeps its unknown outcome; a write that raises StoreFull is
    noted as such. Both must be among the `allowed` errors. Any other error ends the client; so does
    StoreFull from a get or delete, and NodeFailed for a node that is not lost by `lost`.
    """

    def __init__(
        self,
        store: Any,
        keys: Sequence[bytes],
        values: Values,
        incarnation: int,
        log: Log,
        counter: Counter,
        allowed: tuple[type[Exception], ...],
        lost: Callable[[int], bool],
    ) -> None:
        self._keys = keys
        self._values = values
        self._incarnation = incarnation
        self._log = log
        self._counter = counter
        self._allowed = allowed
        self._lost = lost
        self._calls: dict[Operation, Callable[..., Any]] = {
            Operation.INSERT: store.insert,
            Operation.UPDATE: store.update,
            Operation.PUT: store.put,
            Operation.GET: store.get,
            Operation.DELETE: store.delete,
        }

    def work(self, operations: Iterator[tuple[int, Operation]]) -> None:
        """One operation after the other until the parent says stop."""
        source = random.Random(self._incarnation)
        for sequence, (key, operation) in enumerate(operations, 1):
            if self._counter.stopped:
                break
            if operation in WRITES:
                value = self._values.make(key, self._incarnation, sequence, source.random())
                self._do(operation, key, identity(self._incarnation, sequence), value)
            else:
                self._do(operation, key, 0)

    def _do(self, operation: Operation, key: int, number: int, *value: bytes) -> None:
        call, name = self._calls[operation], self._keys[key]
        size = len(value[0]) if value else 0
        read = 0
        result = Result.OK
        self._log.call(operation, key, number)
        start = time.perf_counter_ns()
        try:
            got = call(name, *value)
        except KeyExists:
            result = Result.EXISTS
        except KeyError:
            result = Result.MISSING
        except (NodeFailed, StoreFull) as error:
            if not isinstance(error, self._allowed):
                raise
            if isinstance(error, StoreFull):
                if operation not in WRITES:
                    raise
                self._log.returned(Result.FULL)
            elif not self._lost(error.node):
                raise
            self._counter.refuse()
            return
        took = time.perf_counter_ns() - start
        if operation is Operation.GET:
            result, read, size = judge(got, key)
        self._log.returned(result, read)
        self._counter.add(GETS if operation is Operation.GET else PUTS, size, took)


def judge(value: bytes | None, key: int) -> tuple[Result, int, int]:
    """The record of a get of `key`: its result, the identity of the value, and its size."""
    if value is None:
        return Result.MISSING, 0, 0
    number = unseal(value, key)
    return (Result.TORN, 0, len(value)) if number is None else (Result.OK, number, len(value))
