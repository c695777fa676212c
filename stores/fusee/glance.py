"""Gets of replicated tables without a pin: `ReplicatedGlance`.

A get reads the slot's primary and one replica of the object, the first that is in service, as a
pinned client does. race/glance.py proves what was read of one slot, one object and one directory.
It holds here if these three stood for the value of the key: if the slot that was read was that of
the primary, and the replica of the object was whole. So one thing more is looked at again, the
view:

    1   before all: the word VIEW is as when this handle last looked, pinned, and found all states
        of nodes settled
    2   race/glance.py, on the primaries of that view and on one replica of the object
    3   after its last look: the word VIEW, again

Nothing of the backups is looked at: they have no value that a get could see (snapshot.py).

Why VIEW says where the primaries are. Let v be its number in step 1. The handle read v before the
states (tables.py), and they were settled. A leader that excludes a node, or puts one in service,
first marks the node FAILED or RESTORING, then counts VIEW up, then waits for all pinned clients of
the old view, and only then changes the node's state (shm/replicas/view.py).
    - A change that was counted before v was read had marked its node by then. The states that were
      found are settled, so they are those after it, and no client goes by older ones: its leader
      had waited for them.
    - A change that is counted later has not been counted at step 3. So its node's state is as it
      was, and until step 3 no client acts by another view.
So from step 1 to step 3 every client that changes something has the primaries of this view, and a
change of a slot takes effect when its primary changes. A node that is FAILED meanwhile, and not
excluded yet, changes no primary; if it is the primary's, the verb that reads there raises
NodeFailed. (A client that is not pinned when the leader waits may read a primary that has become a
backup by then, with a proposal that is not decided. Step 3 finds that.)

Why the entry may be read on the primary alone. Its words only go forward, all replicas have at
least the primary's word, and operations go by the primary's (tables.py). A glance goes by the
pointer that this handle has seen before, and looks for it in step 2 at the end; so it was there all
the while. If the entry has another word, a pinned search goes on from there: a glance remembers no
entry, since it may have read that of a backup, which can say "split" before the primary does.

Why one replica of the object will do. Its stamp and its value are read from the same one, and an
object is written to all replicas in service, stamp and all, before a slot's primary has it. A node
that comes into service is filled before; so with the view of step 1 the replica is whole as long
as the object is linked. A replica on a node that was not in service when the object was written is
not read before that node is filled, since verbs raise NodeFailed till then, and after it VIEW is
another. That the object was linked from before the copy until after it follows from slot and stamp,
as in `race`: stamp and copy are of the same memory, and the slot of the primary says what is
linked. (The stamp is in the word `birth` of the log entry, log.py, which stands still by then.)

A frozen word in the primary's slot has a pair as long as the primary's entry has the subtable.

The cache (cache.py) says in which slot a key is, and names its object: if it is trusted, its stamp
is read, then the slot. If the slot has that word, the rest is step 2. If it has another one with
the key's fingerprint, that one's object is read, and if this has another key, both buckets. Round
trips are those of `Fusee._search`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.core.status import UNPROVEN
from limpet.stores.fusee.links import EXPECTED_SIZE
from limpet.stores.race.glance import Glance
from limpet.stores.race.index import Index, Place, is_valid

if TYPE_CHECKING:
    from limpet.stores.fusee.cache import IndexCache
    from limpet.stores.fusee.tables import ReplicatedTables


class ReplicatedGlance(Glance):
    """Gets of one replicated store."""

    def __init__(self, index: Index, tables: ReplicatedTables, cache: IndexCache) -> None:
        super().__init__(index)
        self.tables = tables
        self.cache = cache

    def value(self, place: Place, key: bytes, drops: int) -> Any:
        if not self.index.post_unpinned(place, hash64(key)):
            return UNPROVEN
        found = self._guess(place, key, drops)
        if found is not None:
            return found
        return self.search(place, key, drops)

    def _guess(self, place: Place, key: bytes, drops: int) -> Any:
        """As `value_in`, of the slot that the cache knows; None: it knows none, or a wrong one."""
        cache = self.cache
        at = cache.find(place.hash)
        guess = cache.word(at) if at >= 0 else 0
        if not is_valid(guess):
            return None  # it knows no slot, or one that was vacant when this handle last looked
        slot = self.index.address(place, cache.index(at))
        trusted = cache.trusts(at)
        if trusted:
            self.endpoint.prefetch(guess & ADDRESS_MASK, EXPECTED_SIZE)
        ticket = self.endpoint.post_load(slot)
        if trusted:
            found = self.value_in(place, slot, guess, key, drops)
            if found is not UNPROVEN:
                cache.judge(at, guess)
                return found
        self.endpoint.wait()
        word = self.endpoint.result(ticket)
        if trusted and word == guess:
            return UNPROVEN
        cache.judge(at, word)
        if not is_valid(word) or word >> 56 != place.hash & 0xFF:
            return None
        return self.value_in(place, slot, word, key, drops)

    def note_found(self, place: Place, slot: int) -> None:
        cache = self.cache
        at = cache.find(place.hash)
        if at >= 0:
            cache.judge(at, place.word)
        cache.remember(place.hash, self.index.index_of(place, slot), place.word)

    def proves(
        self, place: Place, slot: int, word: int, stamp_at: int, stamp: int, drops: int
    ) -> bool:
        # ORDER: the view after all else.
        return (
            Glance.proves(self, place, slot, word, stamp_at, stamp, drops) and self.tables.stands()
        )
