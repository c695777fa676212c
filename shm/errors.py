"""limpet's own errors, which descend from `LimpetError`.

Calls with an interface of Python's raise Python's errors, too: KeyError, TypeError, ValueError,
IndexError, RuntimeError, queue.Empty and queue.Full (docs/operations.md).

A lost race inside a protocol is a return value, never one of these.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

CONTROL: Final = 255
"""The number of the control segment among the nodes (endpoint/layout.py)."""


class LimpetError(Exception):
    """Base of all errors raised by limpet."""


class ParameterError(LimpetError, ValueError):
    """A parameter is out of range or contradicts another one; nothing was created or changed."""


class PhaseError(LimpetError):
    """A protocol looked at the result of a posted verb before `wait`, or posted one that depends on
    a verb of another node or phase. Only the simulator can tell (shm/endpoint/simulated.py)."""


class PoolError(LimpetError):
    """Something is wrong with a pool as a whole; it was not changed."""


class PoolExists(PoolError):
    """A pool of this name is there already."""


class PoolNotFound(PoolError):
    """There is no pool of this name."""


class PoolForeign(PoolError):
    """The segment is not a limpet segment, or belongs to another pool or user."""


class DeviceNotEmpty(PoolError):
    """A pool is to be created on a device that holds something else; it was not touched."""


class PoolPermission(PoolForeign):
    """The segment is owned by another user, or may not be opened by this one."""


class PoolVersion(PoolError):
    """The segment has the protocol of another release, which this one does not speak."""


class PoolCorrupt(PoolError):
    """The segment is a limpet segment, but its contents contradict each other."""


class PoolIncomplete(PoolCorrupt):
    """The segment's creator has not finished, or died before it did."""


class PoolTruncated(PoolCorrupt):
    """The segment is shorter than its superblock says."""


class PoolClosed(PoolError):
    """The pool handle was closed."""


class SnapshotDamaged(LimpetError):
    """A file is no snapshot of a pool, or not a whole one."""


class NodeFailed(LimpetError):
    """A memory node is lost: SIGBUS on access, or marked failed in the control segment.

    `node` is its index; 255 is the control segment, without which the pool is lost. Its contents
    cannot be served; the other nodes are not concerned.
    """

    def __init__(self, node: int, reason: str = "") -> None:
        what = "the control segment" if node == CONTROL else f"memory node {node}"
        super().__init__(f"{what} has failed{': ' + reason if reason else ''}")
        self.node = node

    def __reduce__(self) -> tuple[object, ...]:
        return (_node_failed, (self.node, str(self)))


def _node_failed(node: int, text: str) -> NodeFailed:
    error = NodeFailed(node)
    error.args = (text,)
    return error


class AddressError(LimpetError):
    """An address is outside its node, misaligned, or on no node of this pool."""


class CoherenceError(LimpetError):
    """The memory or the CPU cannot give the coherence that was asked for."""


class ClientError(LimpetError):
    """This process cannot be, or stay, a client of the pool, such as for want of a slot or a
    descriptor, or as it was declared dead."""


class ReentrantUse(LimpetError):
    """A handle was used again, in the same thread, from inside one of its own operations."""


class StoreError(LimpetError):
    """Something is wrong with one store; the pool and its other stores are not affected."""


class StoreMismatch(StoreError):
    """A store of this name exists with another kind or other parameters."""


class StoreDropped(StoreError):
    """The store was dropped, with all its keys; the operation did nothing."""


class StoreFull(StoreError):
    """No room: the index, a node, or a table of the pool is full. Nothing changed."""


class StoreCorrupt(StoreError):
    """`check()` found a broken invariant, or an operation met damaged memory."""


class StoreStuck(StoreError):
    """A dead client holds a lock, and this kind of store recovers nothing. Nothing changed."""


class ChannelRemoved(StoreError):
    """The channel was removed by a client."""


class ChannelFull(StoreError):
    """A channel has as many participants as it was made for, and all of them live."""


class BrokenBarrierError(StoreError, threading.BrokenBarrierError):
    """A barrier is broken or was reset; `pids`: the processes that died, if that is why."""

    def __init__(self, text: str, pids: Sequence[int] = ()) -> None:
        super().__init__(text, pids)
        self.pids = list(pids)

    def __str__(self) -> str:
        return str(self.args[0])


class DeliveryLost(StoreError):
    """A delivery of a job is not this process's any more; the job is delivered again."""


class JobFailed(LimpetError):
    """A job that was submitted to a queue is a dead letter."""


class ResultExpired(LimpetError):
    """The result of a job is not kept any more."""


class WorkerDied(LimpetError):
    """The workers that had a call of an executor died, as often as it may be run."""


class TasksLost(StoreError):
    """Processes that had got elements of a queue have ended without `task_done` for them.

    `count`: an upper bound of these elements, as a process that was killed in the midst of `get`
    may have got none. `elements`: those that can be given back, in the order in which they were
    put; at most `count - len(elements)` others cannot. `forget_lost(error)` forgets all of them.
    """

    def __init__(self, text: str, count: int = 0) -> None:
        super().__init__(text, count)
        self.count = count
        self.elements: list[Any] = []
        self.until = 0
        """How many elements of the queue were ever lost."""
        self.noted: list[tuple[int, int, int]] = []
        """Where the elements are noted."""

    def __str__(self) -> str:
        return str(self.args[0])


class TransactionConflict(StoreError):
    """A transaction met a conflict in each of its attempts. Nothing changed."""


class KeyExists(StoreError, KeyError):
    """`insert` met a key that is there already."""

    __str__ = Exception.__str__


class KeyTooLarge(StoreError, ValueError):
    """The key is longer than the store takes."""


class ValueTooLarge(StoreError, ValueError):
    """The value is longer than the store takes."""
