"""Giving a store back: `pool.drop`. All its memory is freed, also when clients use the store, and
when the client that drops it is killed.

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

from typing import Any

import numpy as np

from limpet.shm.catalogue.directory import DROPPING, EMPTYING, READY, Entry
from limpet.shm.endpoint.layout import DROPS
from limpet.shm.errors import StoreError
from limpet.stores.registry import INTERNAL, store_class


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
            _await_operations(pool)
            mine = _free_all(pool, mine)
        else:
            pool.free_unreachable()
        # A kill from here on leaves regions, which the next client gives back.
        cls.unmake(pool, mine.home.decode(), pool.parameters_of(stored))
        catalogue.give_up(mine)
    finally:
        # After an exception, the next client goes on.
        catalogue.let_go(entry.number, me)
    return True


def _stored(pool: Any, entry: Entry) -> dict[str, Any]:
    return pool.stored(entry.payload, entry.name.decode(errors="replace"))


def _await_operations(pool: Any) -> None:
    """Wait for all operations that may not know that a store is dropped."""
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
