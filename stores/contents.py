"""The answers of a pool's stores to the memory layer (shm/contents.py).

A client journal has a link that only a store can judge by the store's own name of it
(fusee/links.py), which has the number of the store's entry in the catalogue.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limpet.shm.catalogue.directory import EMPTYING, NAMED
from limpet.shm.contents import Contents
from limpet.shm.errors import PoolClosed
from limpet.stores.fusee.links import Link
from limpet.stores.rtx.parts import concerns

if TYPE_CHECKING:
    from limpet.shm.arrays import Words


class StoreContents(Contents):
    """The stores of a pool; it does not keep the pool alive."""

    def __init__(self, pool: Any) -> None:
        self._pool = weakref.ref(pool)
        self._shared: dict[int, Any] | None = None
        """In a recovery, the handles that resolve links, by the number of the store's entry."""

    @property
    def pool(self) -> Any:
        pool = self._pool()
        if pool is None:
            raise PoolClosed("the pool's handle is gone")
        return pool

    def linked(self, reference: int, link_address: int) -> bool:
        number = Link.of(link_address).entry
        shared = self._shared
        # No other client has it: to resolve may change the view, which resolves again.
        store = shared.pop(number, None) if shared is not None else None
        if store is None:
            store = self._store_of(number)
        if store is None:
            return True
        linked = bool(store.resolved(reference, link_address))
        if shared is not None:
            shared[number] = store
        return linked

    def concerned(self, word: int, link_address: int, reference: int) -> bool:
        return concerns(self.pool.endpoint, word, link_address, reference)

    def listed(self, reference: int, link_address: int) -> list[int]:
        def look() -> list[int]:
            store = self._store_of(Link.of(link_address).entry)
            return [] if store is None else list(store.listed(reference, link_address))

        found: list[int] = self.pool.client.within_pin(look)
        return found

    def references(self) -> Words:
        found: Words = self.pool.references()
        return found

    def mend(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for mended in self.pool.of_stores(lambda store: store.mend()):
            found.update(mended)
        return found

    def homes(self) -> set[bytes]:
        return {entry.home for entry in self.pool.catalogue if entry.state in NAMED}

    def emptying(self) -> bool:
        """Whether a store is being dropped whose objects are free in part."""
        return any(entry.state == EMPTYING for entry in self.pool.catalogue)

    def reconcile(self, failed: list[int]) -> None:
        for number, some in self._named_links().items():
            store = self._store_of(number)
            if store is not None and store.replicated:
                store.reconcile(some, failed)

    def refill(self, node: int) -> dict[str, int]:
        pairs = self._named_links()
        found = super().refill(node)
        for entry in self.pool.linking():
            store = self._store_of(entry.number)
            if store is not None and store.replicated:
                for what, count in store.refill(node, pairs.get(entry.number, [])).items():
                    found[what] += count
        return found

    @contextlib.contextmanager
    def recovering(self) -> Iterator[None]:
        """Within it, one handle of each store resolves all links."""
        before, self._shared = self._shared, {}
        try:
            yield
        finally:
            # No handle is kept beyond that, as handles keep the pool alive.
            self._shared = before

    def _named_links(self) -> dict[int, list[tuple[int, int]]]:
        """The pairs of client journals with names of links, by the number of the store's entry."""
        pairs: dict[int, list[tuple[int, int]]] = {}
        for reference, link_address in self.pool.view.journals():
            pairs.setdefault(Link.of(link_address).entry, []).append((reference, link_address))
        return pairs

    def _store_of(self, number: int) -> Any:
        """A handle of the store with that entry in the catalogue, if it `resolves`; else None.
        Pinned.

        It is a new handle, as those in use are in the midst of an operation. It has no cache:
        resolving needs none, and a cache takes longer to make than the rest.
        """
        return self.pool.handle_at(number, lambda cls: cls.resolves, False)
