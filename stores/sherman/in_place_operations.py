"""The operations of a store whose trees are changed in place: what its kinds have in common.

`sherman` and `dtx-sherman` hold the same parts: trees (in_place_trees.py), scans (scans.py) and a
writer (in_place_writer.py). They differ in the commit that the writer makes, in the client that
they wait for, and in recovery. These are the steps that go from an operation to one of the parts.
"""

from __future__ import annotations

from typing import Any

from limpet.stores import regions
from limpet.stores.base import Store
from limpet.stores.rtx.repair import PATIENCE
from limpet.stores.sherman.in_place_check import InPlaceCheck
from limpet.stores.sherman.in_place_commit import InPlaceCommit
from limpet.stores.sherman.in_place_write_set import InPlaceStaging


class InPlaceOperations:
    """Stands before `InlineStore` among the bases of a store with `trees`, `scans`, `writer`."""

    trees: Any
    leaf: Any
    scans: Any
    writer: Any
    pool: Any
    endpoint: Any
    retries: int

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        regions.unmake(pool, name, parameters.trees)

    def replaced(self, node: int) -> None:
        self.trees.replaced(node)

    def forget(self) -> None:
        self.trees.forget()

    # ---- steps of operations --------------------------------------------------------------------

    def get_many(self, keys: Any) -> list[bytes | None]:
        store: Any = self
        return Store.get_many(store, keys)

    def _first_way(self) -> Any:
        return self.writer.first_way()

    def _change_once(
        self,
        key: bytes,
        value: bytes,
        size: int,
        mode: int,
        attempt: int,
        way: Any,
        expected: bytes | None = None,
    ) -> int:
        return int(self.writer.change_once(way, key, value, mode))

    def _go_on(self, outcome: int, way: Any, key: bytes, value: bytes, size: int, mode: int) -> Any:
        return self.writer.go_on(outcome, way, key, mode)

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        return self.writer.find_memory(update, *wanted)

    def commit(self) -> InPlaceCommit:
        """The write set of a change."""
        made: InPlaceCommit = self.writer.commit(self)
        return made

    def staging(self, commit: InPlaceCommit) -> InPlaceStaging:
        """The part of this write set that changes this store."""
        return InPlaceStaging(self, commit)

    def stay(self, attempt: int, writes: bool) -> Any:
        """Wait a little for the node that was met last; check its lock's holder now and then."""
        self.retries += 1
        self.endpoint.pause(attempt)
        if attempt % PATIENCE == 0:
            tree, at = self.leaf.tree, self.leaf.at
            self.pool.exclusively(lambda: self.look_for(tree, at))
        return 0

    def look_for(self, tree: int, at: int) -> None:
        """Check the client that we wait for, at this node of a tree. Outside of operations."""
        raise NotImplementedError

    # ---- in order -------------------------------------------------------------------------------

    def scan(
        self,
        low: Any = None,
        high: Any = None,
        *,
        prefix: Any = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Any:
        return self.scans.scan(low, high, prefix, reverse, limit)

    def keys(self) -> Any:
        """Every key, in order; as weakly consistent as `scan`."""
        return self.scans.keys()

    def items(self) -> Any:
        return self.scan()

    def checker(self) -> InPlaceCheck:
        return InPlaceCheck(self)
