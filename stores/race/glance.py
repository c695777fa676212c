"""A get without a pin: `Glance`.

A pin costs a full barrier, and while a pinned client stands still no memory is used again. A glance
reads memory that may be given up and used again at any step, and proves afterwards that it was not.
A stopped reader keeps no memory from other clients.

Each object of a store with glances begins with a stamp, a word that no other object of the pool
ever has (stores/core/records.py). It never changes while the object is in use, and the memory's
next user writes another one there, if it is such an object.

    1   read the entry and the buckets, as a pinned client does
    2   for each valid slot with the key's fingerprint:
        read the stamp of the object to which the slot's word leads
        read the slot again: it has the same word
        compare the key, and copy the value if it is this key's
    3   read again, in this order: the slot (the same word), the stamp (the same), the entry (the
        same pointer), the word DROPS (as when this handle last found its store)

Why the copy is the value of the key at a moment of the operation:

    - DROPS is the same, so the store was not dropped: the directory's memory is a directory.
    - The entry has the same pointer. An entry never has the same subtable twice (index.py), so the
      subtable was in use from before the buckets were read until then, and each word that was read
      in a slot was that slot's word.
    - The slot's word is the same before the copy and after it; but the object may have been freed
      in between, and another one linked in its place at the same address. Let A be the object that
      was linked at the look before the copy, B at that after it. The stamp was read before the
      first look, so it is of A or of an earlier object. It was read again after the second one, so
      it is of B or of a later one. Both are equal, and stamps never come again: so A is B, and the
      object was linked, and complete, from before the copy until after it.

If the object's key is another one, the same proof says that this slot does not have the key. If no
slot is left, the key is missing: the buckets were read while the entry had its pointer, as a pinned
client reads them.

The rest of a large object is read after such a proof of its front, and then there is another.

Why a key that was not found is missing: it leaves a slot only by a delete or a split. So for each
slot that could have it there was a moment of the operation without it, and at one of these moments
no slot had it, as for a pinned client.

Whatever differs, or is damaged, or lost, or held, makes a glance unproven: the operation begins
again with a pin, and says why if there is an error. The words that are read meanwhile can be
anything: an address is checked before each access, a size before each copy. Each verb looks at its
node's state after the access, so what was read of a node that has been replaced does not count. A
client that was declared dead by another host looks at its slot last, as `unpin` does.

Pools whose memory is not hardware-coherent have no glances, nor have durable ones, where a client
that reads writes lines back. An object that was written when no unique id was left has no stamp,
and is read with a pin. The looks of step 2 and 3 are counted in the background, as a pin is; so are
those at the view in a replicated store.

stores/rtx/race.py says what transactions change about this, stores/fusee/glance.py what replicas
and a cache do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.fabric import hash64, lowest_bit
from limpet.shm.endpoint.layout import DROPS
from limpet.shm.endpoint.words import HELD, HELD_MASK
from limpet.stores.core.records import LEAST
from limpet.stores.core.status import UNPROVEN
from limpet.stores.race.index import is_valid
from limpet.stores.race.layout import OBJECT_MASK, SLOTS

if TYPE_CHECKING:
    from limpet.stores.core.records import Objects
    from limpet.stores.race.index import Index, Place


class Glance:
    """Gets of one store."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.objects: Objects = index.objects
        self.endpoint = index.endpoint

    def value(self, place: Place, key: bytes, drops: int) -> Any:
        """The value of `key`, None: it is missing, or UNPROVEN.

        `drops`: the word DROPS when this handle last found its store. The caller keeps the other
        threads out. A LimpetError means UNPROVEN, too.
        """
        if not self.index.post_unpinned(place, hash64(key)):
            return UNPROVEN
        return self.search(place, key, drops)

    def search(self, place: Place, key: bytes, drops: int) -> Any:
        """As `value`, with the place of the key."""
        index = self.index
        if not index.read_unpinned(place):
            return UNPROVEN
        left = index.tagged[0] & SLOTS
        while left:
            at = lowest_bit(left)
            left &= left - 1
            word = index.words[at]
            if not is_valid(word):
                continue
            slot = index.address(place, at)
            found = self.value_in(place, slot, word, key, drops)
            if found is not None:
                if found is not UNPROVEN:
                    place.word = word
                    self.note_found(place, slot)
                return found
        entry, pointer = place.entry, place.pointer
        # ORDER: after the buckets.
        if self.proves(place, entry, pointer, entry, pointer, drops):
            return None
        return UNPROVEN

    def value_in(self, place: Place, slot: int, word: int, key: bytes, drops: int) -> Any:
        """The value of `key` in the slot with this word, None: the slot has another key, or
        UNPROVEN."""
        if word & HELD_MASK == HELD:
            return UNPROVEN
        reference = word & OBJECT_MASK
        stamp_at = self.objects.replica_to_read(reference)
        # ORDER: the stamp, then the slot, then the object.
        stamp = self.endpoint.glance(stamp_at, slot, word) if stamp_at else 0
        if stamp < LEAST:
            return UNPROVEN
        value = self.objects.value_at(stamp_at, reference, key)
        more = value is None and not self.objects.complete and self.objects.key_is(key)
        # ORDER: after the copy.
        if not self.proves(place, slot, word, stamp_at, stamp, drops):
            return UNPROVEN
        if more:
            # The sizes that were read are the object's: read as much, and look once more.
            value = self.objects.value()
            if not self.proves(place, slot, word, stamp_at, stamp, drops):
                return UNPROVEN
        return value

    def note_found(self, place: Place, slot: int) -> None:
        """The key was found in that slot, with the word `place.word`."""

    def proves(
        self, place: Place, slot: int, word: int, stamp_at: int, stamp: int, drops: int
    ) -> bool:
        """Whether slot and stamp, and all that led there, are as they were. Call it after all
        reads."""
        return self.endpoint.stands(
            slot, word, stamp_at, stamp, place.entry, place.pointer, DROPS, drops
        )
