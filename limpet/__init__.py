"""Crash-tolerant key-value stores in passive shared memory, for many Python processes.

    with limpet.temporary(nodes=3, node_size="64MiB") as pool:
        kv = pool.store("race", name="sessions", capacity=100_000)
        kv.put(b"k", b"v")

A pool that stays is made by `limpet.create("shm://NAME")`.

There is no server. Any process may be killed at any instruction; see the README.
"""

import sys
from typing import TYPE_CHECKING, Any

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "limpet does not run on free-threaded builds of Python: its handles are kept whole by the "
        "global interpreter lock; take the ordinary build of this version"
    )

from limpet.shm.backends.segments import create_apart
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.fabric import BUILD as build  # noqa: N811
from limpet.shm.ephemeral import prune
from limpet.shm.errors import (
    AddressError,
    BrokenBarrierError,
    ChannelFull,
    ChannelRemoved,
    ClientError,
    CoherenceError,
    DeliveryLost,
    DeviceNotEmpty,
    JobFailed,
    KeyExists,
    KeyTooLarge,
    LimpetError,
    NodeFailed,
    ParameterError,
    PoolClosed,
    PoolCorrupt,
    PoolError,
    PoolExists,
    PoolForeign,
    PoolIncomplete,
    PoolNotFound,
    PoolPermission,
    PoolTruncated,
    PoolVersion,
    ReentrantUse,
    ResultExpired,
    SnapshotDamaged,
    StoreCorrupt,
    StoreDropped,
    StoreError,
    StoreFull,
    StoreMismatch,
    StoreStuck,
    TasksLost,
    TransactionConflict,
    ValueTooLarge,
    WorkerDied,
)
from limpet.shm.late import late
from limpet.shm.release import RELEASE
from limpet.stores.core.codecs import Codec, msgspec_codec
from limpet.stores.dict import SharedDict
from limpet.stores.pool import Pool

if TYPE_CHECKING:
    from limpet.executor import Executor
    from limpet.stores.cache.cache import Cache
    from limpet.stores.rtx.execution import Transaction

create = Pool.create
restore = Pool.restored
temporary = Pool.temporary
open = Pool.open  # noqa: A001

__version__ = RELEASE

__all__ = [
    "AddressError",
    "BrokenBarrierError",
    "Cache",
    "ChannelFull",
    "ChannelRemoved",
    "ClientError",
    "Codec",
    "CoherenceError",
    "DeliveryLost",
    "DeviceNotEmpty",
    "Executor",
    "JobFailed",
    "KeyExists",
    "KeyTooLarge",
    "LimpetError",
    "NodeFailed",
    "ParameterError",
    "Pool",
    "PoolClosed",
    "PoolCorrupt",
    "PoolError",
    "PoolExists",
    "PoolForeign",
    "PoolIncomplete",
    "PoolNotFound",
    "PoolPermission",
    "PoolTruncated",
    "PoolVersion",
    "ReentrantUse",
    "ResultExpired",
    "SharedDict",
    "SnapshotDamaged",
    "StoreCorrupt",
    "StoreDropped",
    "StoreError",
    "StoreFull",
    "StoreMismatch",
    "StoreStuck",
    "TasksLost",
    "Transaction",
    "TransactionConflict",
    "ValueTooLarge",
    "WorkerDied",
    "build",
    "create",
    "create_apart",
    "destroy",
    "msgspec_codec",
    "open",
    "prune",
    "restore",
    "temporary",
]

_LATE = {
    "Cache": "limpet.stores.cache.cache",
    "Executor": "limpet.executor",
    "Transaction": "limpet.stores.rtx.execution",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(late(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
