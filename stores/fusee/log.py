"""Replicated objects with the embedded operation log (FUSEE section 4.5).

An object is its log entry and the pair (records.py), written to every replica together, in one
phase:

    0     birth   bits 0-1: 0; INSERTED: the insert is decided, but for the CAS of the primary slot;
                  UPDATED: proposed by an update of a key that is there
                  bits 2-63: of a stamp (records.py), in stores whose gets have no pin
                  (race/glance.py); else 0
    8     death   0, or the word that replaced the object in its slot
    16    sizes, checksum, key, value: as records.py says

`birth` is written before any slot has the object (UPDATED), or before the primary slot has it
(INSERTED). `death` is written before the primary slot is changed, by the client that is about to
change it; all clients that complete one round write the same word. Both are read only by clients
that are pinned since before the object was unlinked. The stamp is the same on all replicas, from
the first write on. So the word `birth` of a linked object stands still, and no other object has it;
and if its author is late to mark a replica, a get of that time is not proven, and has a pin.

Deviations. The paper's entry has the next and previous objects of a list, the old value, its CRC,
the operation and the used bit. Here the client journal (client.py) is the list of unfinished
changes, and used bits lie apart. The paper writes the old value into the new object's entry. We
write the new value into the old object's entry, in the same phase: so the old object tells all
participants of a round how it ended, also those whose own object is freed by then (traps F4, F5,
F8: a completed operation leaves a mark of its own, in memory that is not used again).
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import post_summed, write_summed
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.core.records import Objects, Stamps
from limpet.stores.fusee.links import BIRTH, BIRTH_MASK, DEATH, ENTRY_SIZE, STAMP_SHIFT

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class LoggedObjects(Objects):
    """Objects with `replicas` replicas and a log entry; with a stamp, if there are `stamps`."""

    def __init__(
        self, heap: Any, replicas: int, stamps: Stamps | None = None, in_place: bool = False
    ) -> None:
        """`in_place`: as of `Objects`. The bytes that follow the entry never change."""
        super().__init__(heap, replicas, in_place)
        self.stamps = stamps
        self.stamp = 0
        """Of the object that was written last."""
        self.prefix = ENTRY_SIZE
        self.whole = True
        self.header = array("Q", [0, 0, 0, 0])
        self.entry_word = array("Q", [0])
        self.birth = 0

    def reader(self) -> Objects:
        """Of objects that are linked, in operations with a pin."""
        return LoggedObjects(self.heap, 1, None, True)

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """Write entry and pair to every replica in service; one phase, not waited for."""
        sizes = len(key) | len(value) << 16
        self._begin(sizes)
        seed = (hashed + sizes) & MASK
        if self.posts:
            post_summed(self.endpoint, reference & ADDRESS_MASK, self.header, 4, key, value, seed)
        else:
            write_summed(self.endpoint, reference & ADDRESS_MASK, self.header, 4, key, value, seed)
        self._write_backups(reference, key, value)

    def _begin(self, sizes: int) -> None:
        """Begin the words before the key of a new object: all but the checksum."""
        if self.stamps is not None:
            self.stamp = self.stamps.take() << STAMP_SHIFT & MASK
        self.header[0] = self.stamp | self.birth
        self.header[2] = sizes

    def _write_backups(self, reference: int, key: bytes, value: bytes) -> None:
        """Write what the first replica has been given to the others that are in service."""
        replicas = self.heap.replicas(reference)
        row = self.heap.row(reference) if replicas > 1 else 0
        for k in range(1, replicas):
            address = (reference & ADDRESS_MASK) + self.heap.steps[row + k] & MASK
            try:
                if not self.endpoint.failed(address):
                    self.endpoint.post_gather(address, self.header, 4, key, value)
            except NodeFailed:
                continue

    def mark(self, reference: int, offset: int, word: int) -> None:
        """Write a word of the entry, on every replica in service; not waited for. BIRTH: of the
        object that was written last; its stamp stays.

        A plain write: objects need not be hardware-coherent.
        """
        self.entry_word[0] = self.stamp | word if offset == BIRTH else word
        replicas = self.heap.replicas(reference)
        row = self.heap.row(reference) if replicas > 1 else 0
        for k in range(replicas):
            address = (reference & ADDRESS_MASK) + self.heap.steps[row + k] + offset & MASK
            if not self.endpoint.failed(address):
                try:
                    self.endpoint.post_write(address, self.entry_word, 1)
                except NodeFailed:
                    continue

    def marked(self, reference: int, offset: int) -> int:
        """A word of the entry, without the stamp, from the first replica in service; a phase."""
        for k in range(self.heap.replicas(reference) - 1):
            if not self.endpoint.failed(self.heap.replica(reference, k)):
                try:
                    return self._read_mark(reference, offset, k)
                except NodeFailed:
                    continue
        return self._read_mark(reference, offset, self.heap.replicas(reference) - 1)

    def _read_mark(self, reference: int, offset: int, k: int) -> int:
        self.endpoint.post_read(self.heap.replica(reference, k) + offset, self.entry_word, 1)
        self.endpoint.wait()
        word = self.entry_word[0]
        return word & BIRTH_MASK if offset == BIRTH else word

    def death(self, reference: int) -> int:
        """The word that replaced the object, or 0."""
        return self.marked(reference, DEATH)

    def load(self, reference: int) -> None:
        """Read the object, or the front of a large one, into the image; from one replica."""
        # Look first: to raise and catch NodeFailed takes longer than all the rest (trap G15).
        if self.endpoint.failed(reference & ADDRESS_MASK):
            self._load_backup(reference)
        else:
            try:
                self._load_from(reference, reference & ADDRESS_MASK)
            except NodeFailed:
                self._load_backup(reference)

    def load_keyed(self, reference: int, key: bytes) -> bool:
        """`load`, then `key_is`."""
        if self.endpoint.failed(reference & ADDRESS_MASK):
            self._load_backup(reference)
        else:
            try:
                return Objects.load_keyed(self, reference, key)
            except NodeFailed:
                self._load_backup(reference)
        return self.key_is(key)

    def post(self, reference: int) -> None:
        """Post `load`. If the replica's node turns out to be lost, `wait` may raise NodeFailed."""
        if self.endpoint.failed(reference & ADDRESS_MASK):
            self._post_backup(reference)
        else:
            try:
                self._post_from(reference, reference & ADDRESS_MASK)
            except NodeFailed:
                self._post_backup(reference)

    def post_keyed(self, reference: int, key: bytes) -> None:
        """Post `load_keyed`, with the same exception as `post`."""
        if self.endpoint.failed(reference & ADDRESS_MASK):
            self._post_backup(reference)
        else:
            try:
                Objects.post_keyed(self, reference, key)
            except NodeFailed:
                self._post_backup(reference)

    def _post_backup(self, reference: int) -> None:
        if not self._posted_backup(reference):
            self.load_at(reference, 0)  # raises the reason

    def _posted_backup(self, reference: int) -> bool:
        for k in range(1, self.heap.replicas(reference)):
            if not self.endpoint.failed(self.heap.replica(reference, k)):
                try:
                    self._post_from(reference, self.heap.replica(reference, k))
                except NodeFailed:
                    continue
                return True
        return False

    def _load_backup(self, reference: int) -> None:
        if not self._found_backup(reference):
            self.load_at(reference, 0)  # raises the reason

    def _found_backup(self, reference: int) -> bool:
        for k in range(1, self.heap.replicas(reference)):
            if not self.endpoint.failed(self.heap.replica(reference, k)):
                try:
                    self.load_at(reference, k)
                except NodeFailed:
                    continue
                return True
        return False

    def replica_to_read(self, reference: int) -> int:
        """The address of the first replica in service; 0: there is none."""
        if not self.endpoint.failed(reference & ADDRESS_MASK):
            return reference & ADDRESS_MASK
        for k in range(1, self.heap.replicas(reference)):
            if not self.endpoint.failed(self.heap.replica(reference, k)):
                return self.heap.replica(reference, k)
        return 0

    def load_at(self, reference: int, k: int) -> None:
        """As `load`, from replica `k`."""
        self._load_from(reference, self.heap.replica(reference, k))
