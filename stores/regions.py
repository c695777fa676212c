"""One region on each memory node, for stores that are cut into a table on each of them.

Zeros are an empty table. A table on a lost node is lost; its address raises NodeFailed.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from limpet.shm.errors import NodeFailed, StoreMismatch


def make(pool: Any, name: str, tables: int, size: int) -> None:
    """Make the regions of a store's tables, of `size` bytes each."""
    _check(pool, name, tables)
    for node in range(tables):
        _obtain(pool, name, size, node)


def unmake(pool: Any, name: str, tables: int) -> None:
    """Give the regions back that `make` made."""
    for node in range(tables):
        with contextlib.suppress(NodeFailed):  # then its region is gone with the node
            pool.regions.discard(node, name)


def attach(pool: Any, name: str, tables: int, size: int) -> list[int]:
    """Addresses of the tables; that of a lost table raises NodeFailed."""
    _check(pool, name, tables)
    return [
        pool.regions.attach(node, name, functools.partial(_obtain, pool, name, size, node))
        for node in range(tables)
    ]


def _check(pool: Any, name: str, tables: int) -> None:
    if tables != pool.parameters.nodes:
        raise StoreMismatch(f"{name}: {tables} tables do not fit the nodes")


def _obtain(pool: Any, name: str, size: int, node: int) -> int:
    """Address of the table on a node, made if it is not there."""
    return int(pool.regions.obtain(node, name, size).address)
