"""Trees whose nodes are the data of TXObjs, as transactions have them (rTX section 5, figure 6).

A get reads the lock and the pointer of the leaf's TXObj by one verb of 16 bytes, and then the node.
It needs no validation: a node is whole, and its pointer is that of a committed transaction. It
waits only for a transaction with a log that holds the leaf (stores/transactions/lllock.py says
why). Lock and pointer may be of two moments, the lock of the earlier one. That is enough: a pointer
that a log has installed is met under the log's lock, or after it.

That makes two round trips, as in the paper (section 4.3: "two READs"). A client remembers the
pointers that it has met (routes.py), so it can have one: it guesses the pointer, and reads object
and node in one phase. The node counts only if the object has the pointer that was guessed; else it
is read again. The object is read first. Then a node whose pointer was guessed is linked when its
object is read, and nothing is written to it from then on, as this client is pinned. A node that is
read before its object may be old memory that is written and linked in between.

A wrong guess reads a node in vain, and other clients' writes make guesses wrong. So a client
guesses only while nearly all of its guesses are right, or would be: `sure` goes up by one for a
right one, and down by DOUBT for a wrong one, and must be SURE.

    guess is            the client has read       it goes on with
    right               object, node              the node
    wrong, or none      object (and a node)       the node that the pointer leads to, a phase later
    locked by a log     object (and a node)       AGAIN

Clients look at nodes in place (`Image`): a node is not changed while it is linked, and its memory
is not used again while a client is pinned. So a node that was read is valid only in the operation
that read it.

A get without a pin (inline.py) reads the leaf in which it expects the key, by a hint or a route,
copies the value, and then reads the object again: lock, pointer, and the word DROPS.

    - DROPS is the same, so the object is one of this tree.
    - The lock is the same. A version does not come back once a transaction that locked the object
      has published, or a repairer has released its lock (stores/transactions/lllock.py); only a
      transaction that gives up before it is decided puts the version back, and it has left the
      pointer alone. So no transaction that was locked and unlocked in between has changed the
      pointer.
    - The pointer is the same. It changes under a lock only, and under one lock only once: from that
      node to another one, which has other memory, as the first one's is not free before.

So the object had this pointer from before the node was read until after the copy; and a node is
written before its object has the pointer, and keeps its memory as long. The values of other words
that were read are guesses for the next search, and count for nothing. A leaf that is not the key's,
a lock with a log, an extent or an error make the get begin again with a pin.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import DROPS
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreFull
from limpet.stores.core.names import LARGER
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import Objects, is_vacant
from limpet.stores.core.status import AGAIN, BATCH, DONE, MISSING
from limpet.stores.sherman.layout import (
    ENTRY_SIZE,
    EXTENT,
    GONE,
    LEAVES_MAX,
    PLACE_MASK,
    PLACE_SHIFT,
)
from limpet.stores.sherman.page import Page
from limpet.stores.sherman.parameters import TreeParameters
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.trees import Leaf, Trees
from limpet.stores.transactions.layout import LOCKED, LOGGED

DOUBT: Final = 16
"""A wrong guess of a pointer weighs as much as so many right ones."""
SURE: Final = 32
SURE_MAX: Final = 63
"""From when on a client guesses pointers, where it begins, and how sure it gets."""
EACH: Final = 16
"""About so many entries a leaf has, before any scan has met one."""
SMOOTHING: Final = 8
"""A leaf that is met counts for so small a part of the average."""


class TxTrees(Trees):
    """The trees of a store whose nodes are data of TXObjs."""

    def __init__(self, pool: Any, name: str, parameters: TreeParameters, objects: Objects) -> None:
        self.node_size = parameters.node_size
        super().__init__(pool, name, parameters, objects)
        self.client = pool.client
        self.object_count = parameters.objects
        self.capacity = parameters.capacity
        self.cursor = self.client.ident
        """Where to look for the next vacant object; clients begin at different ones."""
        self.spares: list[Leaf] = []
        """Leaves that transactions have used, for the next ones: within operations."""
        self.parents = [Routes(root, parameters.cache_size) for root in self.roots]
        self.reads_ahead = True
        self.words = array("Q", bytes(8 * 2 * BATCH))
        """Locks and pointers that were read, of one object after the other."""
        self.sure = SURE
        """How often guesses of pointers were right of late."""
        self.entries = EACH * SMOOTHING
        """The average number of entries of the leaves that scans have met, by SMOOTHING."""
        self.hints = array("Q", bytes(8 * BATCH))
        self.ats = array("Q", bytes(8 * BATCH))
        """Of each key of a batch: its hint, and the leaf it may be in; 0: not known."""
        self.pages: list[Page] = []
        """Of each key of a batch, the node that it may be in. Where verbs are done at once, the
        first is enough."""
        self.guesses = array("Q", bytes(8 * LEAVES_MAX))
        """Of each leaf that is read in one operation of a scan: the pointer that was guessed."""

    def reader(self) -> Leaf:
        return Leaf(Page(self.endpoint, self.node_size, in_place=True))

    def blank(self) -> Leaf:
        if self.spares:
            leaf: Leaf = self.spares.pop()
            return leaf
        leaf = Leaf(Page(self.endpoint, self.node_size, in_place=True))
        leaf.spares = self.spares
        return leaf

    def read(self, leaf: Leaf, at: int, near: int) -> bool:
        """Read an object and its node; False: it is locked, and its transaction may be decided.

        Round trips: 1 if the pointer was guessed right, else 2.
        """
        endpoint = self.endpoint
        page = leaf.page
        routes: Routes = self.routes[leaf.tree]
        guess = routes.pointer_seen(at)
        guessed = guess != 0 and self.sure >= SURE
        # ORDER: the object before the node, and its lock before its pointer.
        endpoint.post_read(at, self.words, 2)
        if guessed:
            self._prefetch(page, guess & ADDRESS_MASK, near)
            page.post(guess & ADDRESS_MASK)
        endpoint.wait()
        leaf.at = at
        leaf.lock = self.words[0]
        pointer = leaf.pointer = self.words[1]
        if leaf.lock & LOCKED and leaf.lock & LOGGED:
            return False
        if guess:
            self._learn(guess == pointer)
        if guessed and guess == pointer:
            page.parse(pointer & ADDRESS_MASK)
            return True
        if is_vacant(pointer):
            page.reset(0 if at == self.roots[leaf.tree] else GONE, b"", None, 0)
            return True
        self._prefetch(page, pointer & ADDRESS_MASK, near)
        page.read(pointer & ADDRESS_MASK)
        routes.note_seen(at, pointer, page.count)
        return True

    def glance(self, key: bytes) -> int:
        hashed = hash64(key)
        leaf, page = self.leaf, self.leaf.page
        leaf.tree = self.number_of(hashed)
        routes: Routes = self.routes[leaf.tree]
        hint = routes.hinted(hashed)
        at = routes.hinted_leaf(hint) if hint else routes.find(key)
        if not self.read(leaf, at, self.near(hint)) or page.level:
            return AGAIN
        if not hint or not page.is_at(hint >> PLACE_SHIFT & PLACE_MASK, key):
            leaf.index = page.find(key)
            if not page.exact:
                return MISSING if page.has_looked_for(key) else AGAIN
            self.note_place(leaf, routes, hashed)
        return AGAIN if page.slot & EXTENT else DONE

    def proves(self, endpoint: Any, drops: int) -> bool:
        at, lock = self.leaf.at, self.leaf.lock
        return endpoint.stands(at, lock, at + POINTER, self.leaf.pointer, at, lock, DROPS, drops)

    def _prefetch(self, page: Page, node: int, near: int) -> None:
        """Prefetch what is looked at first in a node, `near` that offset if that is known."""
        if near:
            self.endpoint.prefetch(node + near, ENTRY_SIZE)
        else:
            self.endpoint.prefetch(node, page.size)

    def _learn(self, right: bool) -> None:
        """A pointer was as it was remembered, or was not."""
        if right:
            if self.sure < SURE_MAX:
                self.sure += 1
        else:
            self.sure = self.sure - DOUBT if self.sure > DOUBT else 0

    def read_run(
        self, tree: int, known: int, hashed: int, start: bytes, high: bytes | None, wanted: int,
        most: int,
    ) -> int:  # fmt: skip
        """Read the leaf with `start`, as far as is known, and leaves after it; into `run`.

        As many as are likely to have `wanted` pairs (0: no number is known) and begin below `high`,
        by what is remembered of them; at most `most`. How many were read, from the first on: 0 if
        the first cannot be read now, or none is known. Round trips: 1 if all pointers were guessed
        right, else 2.
        """
        routes: Routes = self.routes[tree]
        hint = 0 if known else routes.hinted(hashed)
        first = known
        before = 0
        if hint:
            first = routes.hinted_leaf(hint)
            before = hint >> PLACE_SHIFT & PLACE_MASK
        elif not known:
            first = routes.find(start)
            before = self.entries // (2 * SMOOTHING)
        if first == routes.root:
            return 0
        self.ats[0] = first
        count = routes.leaves_after(start, high, self.ats, min(most, LEAVES_MAX))
        if wanted:
            count = self._enough(routes, count, before + wanted)
        while len(self.run) < count:
            self.run.append(self.reader())
        return self._read_all(tree, routes, count)

    def _enough(self, routes: Routes, count: int, wanted: int) -> int:
        """How many of the leaves in `ats` are likely to have so many pairs."""
        found = 0
        for row in range(count):
            entries = routes.count_seen(self.ats[row])
            found += entries if entries else self.entries // SMOOTHING
            if found >= wanted:
                return row + 1
        return count

    def _read_all(self, tree: int, routes: Routes, count: int) -> int:
        """Read the leaves in `ats` into `run`; how many could be read, from the first on."""
        endpoint = self.endpoint
        sure = self.sure >= SURE
        for row in range(count):
            leaf: Leaf = self.run[row]
            guess = routes.pointer_seen(self.ats[row])
            # ORDER: as in `read`
            endpoint.post_read(self.ats[row], self.words, 2, 2 * row)
            self.guesses[row] = guess
            if guess and sure:
                self._prefetch(leaf.page, guess & ADDRESS_MASK, 0)
                leaf.page.post(guess & ADDRESS_MASK)
        endpoint.wait()
        waits = False
        for row in range(count):
            leaf = self.run[row]
            leaf.tree = tree
            leaf.at = self.ats[row]
            leaf.lock = self.words[2 * row]
            pointer = leaf.pointer = self.words[2 * row + 1]
            if is_vacant(pointer) or (leaf.lock & LOCKED and leaf.lock & LOGGED):
                count = row
                break
            guess = self.guesses[row]
            if guess:
                self._learn(guess == pointer)
            if not sure or guess != pointer:
                self._prefetch(leaf.page, pointer & ADDRESS_MASK, 0)
                leaf.page.post(pointer & ADDRESS_MASK)
                waits = True
        if waits:
            endpoint.wait()
        for row in range(count):
            leaf = self.run[row]
            page = leaf.page
            page.parse(leaf.pointer & ADDRESS_MASK)
            routes.note_seen(leaf.at, leaf.pointer, page.count)
            if page.level == 0:
                self.entries += page.count - self.entries // SMOOTHING
        return count

    def forget(self) -> None:
        super().forget()
        self.cursor = self.client.ident
        self.sure = SURE
        self.entries = EACH * SMOOTHING

    def next_vacant(self) -> int:
        """Number of the next object that may be vacant."""
        self.cursor = (self.cursor + 1) % self.object_count
        return self.cursor

    def why_full(self, tree: int) -> StoreFull:
        """The error to raise when a tree has no vacant object."""
        return StoreFull(
            f"{self.name}: all {self.object_count} nodes of tree {tree} are in use; the store was "
            f"made with capacity {self.capacity}; {LARGER}"
        )

    def prefetch_node(self, at: int) -> None:
        self.endpoint.prefetch_target(at + POINTER, 0, self.node_size)

    def recall(self, leaf: Leaf, key: bytes) -> bool:
        """Read the node of an object, whose lock and pointer are known, and find a key in it;
        False: the key is not in its range.

        In the operation that read lock and pointer.
        """
        page = leaf.page
        if not is_vacant(leaf.pointer):
            page.read(leaf.pointer & ADDRESS_MASK)
        elif leaf.at == self.roots[leaf.tree]:
            page.reset(0, b"", None, 0)
        else:
            return False
        if page.level or not page.has(key):
            return False
        leaf.index = page.find(key)
        return True

    # ---- many keys ------------------------------------------------------------------------------

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys. For a key that is not where it was last met,
        append None, and return its place in `found`. The reads of a phase overlap.
        """
        missed: list[int] = []
        at_once = self.endpoint.hints
        while len(self.pages) < (1 if at_once else len(keys)):
            self.pages.append(Page(self.endpoint, self.node_size, in_place=True))
        page = self.pages[0]
        for row in range(len(keys)):
            self._prefetch_leaf(row, keys[row])
        for row in range(len(keys)):
            if self.ats[row]:
                # ORDER: the lock before the pointer.
                self.endpoint.post_read(self.ats[row], self.words, 2, 2 * row)
        self.endpoint.wait()
        for row in range(len(keys)):
            if self.ats[row]:
                self._approach(row)
        for row in range(len(keys)):
            if self.ats[row]:
                if not at_once:
                    page = self.pages[row]
                page.post(self.words[2 * row + 1] & ADDRESS_MASK)
            if at_once:
                self._take(row, keys[row], page, found, missed)
        self.endpoint.wait()
        if not at_once:
            for row in range(len(keys)):
                page = self.pages[row]
                self._take(row, keys[row], page, found, missed)
        return missed

    def _take(
        self, row: int, key: bytes, page: Page, found: list[bytes | None], missed: list[int]
    ) -> int:
        """Append the value of a key of a batch, whose leaf was read to this page, if it is
        there."""
        if self.ats[row]:
            page.parse(self.words[2 * row + 1] & ADDRESS_MASK)
            place = self.hints[row] >> PLACE_SHIFT & PLACE_MASK
            if page.level == 0 and page.is_at(place, key):
                found.append(self.value(page, page.slot))
                return 0
        missed.append(len(found))
        found.append(None)
        return 0

    def _prefetch_leaf(self, row: int, key: bytes) -> None:
        """Note in which leaf a key of a batch may be."""
        hashed = hash64(key)
        routes: Routes = self.routes[self.number_of(hashed)]
        hint = routes.hinted(hashed)
        self.hints[row] = hint
        self.ats[row] = routes.hinted_leaf(hint) if hint else 0
        self.endpoint.prefetch(self.ats[row], POINTER + 8)

    def _approach(self, row: int) -> None:
        """Prefetch the node in which a key of a batch may be. If its object, which was read, is
        vacant, or locked and may be decided, the leaf is not known."""
        lock = self.words[2 * row]
        pointer = self.words[2 * row + 1]
        node = pointer & ADDRESS_MASK
        if is_vacant(pointer) or (lock & LOCKED and lock & LOGGED):
            self.ats[row] = 0
        else:
            self.endpoint.prefetch(node, ENTRY_SIZE)
            self.endpoint.prefetch(node + self.near(self.hints[row]), ENTRY_SIZE)

    # ---- copies ---------------------------------------------------------------------------------

    def copy(self, old: int, new: int, state: int) -> None:
        """Write to `new` a copy of the data at `old` that begins with `state`."""
        page = Page(self.endpoint, self.node_size)
        if is_vacant(old):
            page.reset(0, b"", None, 0)
        else:
            page.read(old & ADDRESS_MASK)
        page.write(new & ADDRESS_MASK, state)
