"""A pool's part in its stores: it answers the memory layer for them, and drops them.

The answers (`StoreContents`, shm/contents.py). A client journal has a link that only a store can
judge by the store's own name of it (fusee/links.py), which has the number of the store's entry in
the catalogue.

Giving a store back (`drop`, for `pool.drop`). All its memory is freed, also when clients use the
store, and when the client that drops it is killed.

The entry of the store in the catalogue has the step (directory.py):

    READY     -> DROPPING   from now on no client attaches to the store. DROPS is counted up, and
                            then the epoch. An operation looks at DROPS once it is pinned, and at
                            its store's entry when DROPS has changed; it raises StoreDropped. So
                            once all operations that were pinned when DROPS changed have ended,
                            none touches the store again. A client that stands still in one is
                            fenced by the pool's policy; a dead one is recovered.
    DROPPING  -> EMPTYING   from now on no client walks through the store. Its objects are freed, in
                            any order: they link to each other, but no client follows that.
    EMPTYING  -> VOID       its regions are given back.

The client that drops is pinned from before it reads the store's links until all objects are free.
So no object is used again meanwhile, and freeing one twice does no harm. The client shows progress
all the time.

A drop that a kill cut off is finished by the next client that wants the name, by `pool.recover()`
and so by `limpet watch`. A DROPPING store is unchanged: the next client begins anew. Some objects
of an EMPTYING store may have another use already, so its links mean nothing. The next client frees
the objects that no other store links to and no client journal names (audit.py): those are the rest
of it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from limpet.shm.catalogue.directory import DROPPING, EMPTYING, NAMED, READY, Entry
from limpet.shm.contents import Contents
from limpet.shm.endpoint.layout import DROPS
from limpet.shm.errors import NodeFailed, PoolClosed, StoreError
from limpet.shm.late import late
from limpet.stores.core.feed_layout import NAME as FEED
from limpet.stores.core.feed_layout import NODE as FEED_NODE
from limpet.stores.fusee.links import Link
from limpet.stores.registry import INTERNAL, store_class

if TYPE_CHECKING:
    from limpet.shm.arrays import Words


class StoreContents(Contents):
    """The stores of a pool; it does not keep the pool alive."""

    def __init__(self, pool: Any) -> None:
        self._pool = weakref.ref(pool)
        self._parts = late("limpet.stores.transactions.parts")  # not first amid a recovery
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
        return bool(self._parts.concerns(self.pool.endpoint, word, link_address, reference))

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


def drop(pool: Any, name: str) -> None:
    """Give back the store of that name; within `exclusively`. StoreError: there is none."""
    attempt = 0
    met = False
    while True:
        entries = pool.catalogue.named(name.encode())
        found = [entry for entry in entries if entry.state in (READY, DROPPING, EMPTYING)]
        if not found and met:
            return  # another client has done it
        if not found or _stored(pool, found[0])["kind"] in INTERNAL:
            raise StoreError(
                f"{pool.url} has no store {name!r} to drop; `limpet inspect` lists them"
            )
        entry = found[0]
        waits = entry.state != READY and entry.client != 0
        if waits and not pool.membership.gone(entry.client, f"the end of store {name!r}"):
            met = True
            attempt += 1
            pool.endpoint.pause(attempt)
        elif finish(pool, entry):
            return


def finish_all(pool: Any) -> int:
    """Finish the drops of dead clients, and those that were given up; how many stores."""
    lives = pool.membership.lives
    return sum(
        finish(pool, entry)
        for entry in pool.catalogue
        if entry.state in (DROPPING, EMPTYING) and not (entry.client and lives(entry.client))
    )


def finish(pool: Any, entry: Entry) -> bool:
    """Drop the store of an entry that no client is dropping; False: another client was faster."""
    catalogue, me = pool.catalogue, pool.membership.ident
    state = EMPTYING if entry.state == EMPTYING else DROPPING
    # ORDER: before any change: a process that does not know the kind leaves the store as it is.
    stored = _stored(pool, entry)
    cls = store_class(stored["kind"])
    # ORDER: before the entry is ours, so that this hold is not taken for an earlier one of ours.
    pool.membership.progress()
    try:
        mine = catalogue.take(entry, state, me)
        if mine is None:
            return False
        if state == DROPPING:
            await_operations(pool)
            mine = _free_all(pool, mine)
        else:
            pool.free_unreachable()
        # A kill from here on leaves regions, which the next client gives back.
        if cls.watchable:
            with contextlib.suppress(NodeFailed):
                pool.regions.discard(FEED_NODE, mine.home.decode() + FEED)
        cls.unmake(pool, mine.home.decode(), pool.parameters_of(stored))
        catalogue.give_up(mine)
    finally:
        # After an exception, the next client goes on.
        catalogue.let_go(entry.number, me)
    return True


def _stored(pool: Any, entry: Entry) -> dict[str, Any]:
    return pool.stored(entry.payload, entry.name.decode(errors="replace"))


def await_operations(pool: Any) -> None:
    """Wait for all operations that may not know that a store is dropped, or watched. Within
    `exclusively`."""
    pool.client.unpin()  # we are in no operation: a pin of ours would be damage, and no end
    pool.endpoint.faa(DROPS, 1)
    # ORDER: pins are looked at after DROPS has changed: a client pins before it looks at DROPS.
    epoch = pool.grace.close_period()
    attempt = 0
    while laggards := pool.grace.laggards(epoch):
        pool.membership.progress()
        left = [laggard for laggard in laggards if not pool.membership.hurry(laggard)]
        if left:
            attempt += 1
            pool.endpoint.pause(attempt)


def _free_all(pool: Any, entry: Entry) -> Entry:
    """Free all objects of a DROPPING store, which is EMPTYING now."""
    pool.client.pin()
    try:
        # ORDER: pinned, and no node is being filled, before we look; as for a recovery.
        pool.client.wait_stable()
        store = pool.handle_of(entry)
        references = np.unique(store.references())
        emptying = pool.catalogue.take(entry, EMPTYING, pool.membership.ident)
        assert emptying is not None, "only its own client changes the entry"
        for count, reference in enumerate(references.tolist()):
            store.show_progress(count)
            if pool.heap.plausible(reference):
                pool.heap.free(reference)
        return emptying
    finally:
        pool.client.unpin()
