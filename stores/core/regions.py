"""One region on each memory node, for stores that are cut into a table on each of them.

Zeros are an empty table. A table on a lost node is lost; its address raises NodeFailed.
"""

from __future__ import annotations

import contextlib
from typing import Any

from limpet.shm.catalogue.directory import DROPPING, READY
from limpet.shm.clients.membership import log
from limpet.shm.endpoint.layout import address
from limpet.shm.endpoint.states import FORMER
from limpet.shm.errors import NodeFailed, PoolCorrupt, StoreMismatch


def make(pool: Any, name: str, tables: int, size: int) -> None:
    """Make the regions of a store's tables, of `size` bytes each."""
    _check(pool, name, tables)
    for node in range(tables):
        pool.regions.obtain(node, name, size)


def unmake(pool: Any, name: str, tables: int) -> None:
    """Give the regions back that `make` made."""
    for node in range(tables):
        with contextlib.suppress(NodeFailed):  # then its region is gone with the node
            pool.regions.discard(node, name)


def attach(pool: Any, name: str, tables: int, size: int) -> list[int]:
    """Addresses of the tables; that of a lost table raises NodeFailed. Makes nothing."""
    _check(pool, name, tables)
    return [_attached(pool, node, name, size) for node in range(tables)]


def _attached(pool: Any, node: int, name: str, size: int) -> int:
    try:
        return int(pool.regions.attach(node, name, size))
    except PoolCorrupt as error:
        # ORDER: pinned, the entry before the second look at the region: a store that is READY, or
        # that we drop, has all its regions. A later store of the name has one by now.
        entry = pool.catalogue.at_home(name.encode())
        is_ours = entry is not None and (
            entry.state == READY
            or (entry.state == DROPPING and entry.client == pool.membership.ident)
        )
        if not is_ours or pool.regions.find(node, name) is not None:
            raise  # a client has given it back
        if (node, name) not in pool.regions.told:
            pool.regions.told.add((node, name))
            log.warning("%s", error)
        return FORMER | address(node, 0)


def _check(pool: Any, name: str, tables: int) -> None:
    if tables != pool.parameters.nodes:
        raise StoreMismatch(f"{name}: {tables} tables do not fit the nodes")
