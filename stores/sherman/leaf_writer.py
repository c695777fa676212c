"""Changes of one leaf and nothing else: transactions without a log (rTX section 4.5, Opt1, Opt2).

transactional.py describes them. A leaf, its object and its extents are on one memory node, which
does the verbs of a phase in the order in which they were posted. So new data is written before the
lock is taken, in the same phase; a node is read after it was locked; and it is written before its
pointer is swung, and unlocked after that. An object in the client journal may not be written yet
when this client is killed: then it holds no lock either, and the first word there is no state of
one. (States of locks never come again, and memory that begins with one is not free before the lock
is.)

A change is made in one operation of the store, which goes on by
the outcome: DONE, EXISTS, MISSING; AGAIN: another client was faster; NO_MEMORY; LOGGED_WRITE: it
takes a transaction with a log; SPARSE: it is done, and the leaf is to be merged; ELSEWHERE: the
leaf must be searched for.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant
from limpet.stores.core.status import (
    AGAIN,
    ATTEMPTS_PER_CHECK,
    DELETE,
    DONE,
    EXISTS,
    INSERT,
    LOGGED_WRITE,
    MISSING,
    NO_MEMORY,
    PUT,
    UPDATE,
)
from limpet.stores.sherman.layout import (
    ELSEWHERE,
    EXTENT,
    PLACE_MASK,
    PLACE_SHIFT,
    SPARSE,
)
from limpet.stores.sherman.page import Page
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.tx_trees import TxTrees
from limpet.stores.transactions.changes import begin_change, end_change
from limpet.stores.transactions.layout import EXTENT_PAIR, LOCKED
from limpet.stores.transactions.lllock import LLLocks


def is_sparse(page: Page) -> bool:
    """Whether to merge a leaf that was changed: always if it is empty, now and then if not."""
    return not page.count or (page.used() < page.size // 4 and not page.count & 3)


class LeafWriter:
    """Changes of single leaves by one handle of a store. `link` names the store in the client
    journal."""

    def __init__(self, pool: Any, trees: TxTrees, leaf: Any, locks: LLLocks, link: int) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.allocator = pool.allocator
        self.trees = trees
        self.leaf = leaf
        self.locks = locks
        self.link = link
        self.ended = 0
        """Which key of a run comes next (`change_run`)."""

    def change(self, key: bytes, value: bytes, size: int, mode: int) -> int:
        """Read and change the leaf of a key. `size`: bytes of the value's extent, or 0."""
        leaf, page = self.leaf, self.leaf.page
        if self.trees.find(leaf, key) == AGAIN:
            return AGAIN
        if page.exact:
            if mode == INSERT:
                return EXISTS
        elif mode in (UPDATE, DELETE):
            return MISSING
        if leaf.lock & LOCKED:
            return AGAIN
        index = leaf.index
        dropped = page.link(index) if page.exact and page.has_extent(index) else 0
        if mode == DELETE:
            page.remove(index)
        elif not self._set(index, key, bytes(8) if size else value, EXTENT if size else 0):
            return LOGGED_WRITE
        new = self.allocator.allocate(leaf.at >> NODE_SHIFT & 0xFF, page.size, 1)
        if not new:
            return NO_MEMORY
        if size:
            extent = self.allocator.allocate(leaf.at >> NODE_SHIFT & 0xFF, size, 1)
            if not extent:
                return NO_MEMORY
            self.trees.objects.write(extent, key, value)
            # ORDER: written before the client journal says where it belongs.
            self.client.retarget(1, self.link | EXTENT_PAIR)
            page.set_value(index, extent.to_bytes(8, "little"), EXTENT)
        outcome = self._commit(new, 2 if size else 1, dropped)
        return SPARSE if outcome == DONE and mode == DELETE and is_sparse(page) else outcome

    def change_run(self, keys: list[bytes], values: list[bytes], first: int) -> int:
        """Put the values of keys in ascending order, of one tree, from the `first` on: as many as
        are in its leaf's range, and concern no extent; those from `ended` on are left.

        LOGGED_WRITE: they do not all fit there, or the first one has an extent. Nothing is put yet,
        but those before `ended` are in the leaf's page, to be written by a transaction.
        """
        leaf, page = self.leaf, self.leaf.page
        key = keys[first]
        self.ended = first
        if self.trees.find(leaf, key) == AGAIN or leaf.lock & LOCKED:
            return AGAIN
        index = leaf.index
        while not (page.exact and page.has_extent(index)):
            at_end = index == page.count
            if not self._set(index, key, values[self.ended], 0):
                return LOGGED_WRITE
            self.ended += 1
            if self.ended == len(keys) or len(values[self.ended]) > self.trees.value_size:
                break
            key = keys[self.ended]
            if page.is_below(key):
                break
            # Above all entries is above those that are put, too.
            index = page.count if at_end else page.find(key)
        if self.ended == first:
            return LOGGED_WRITE
        new = self.allocator.allocate(leaf.at >> NODE_SHIFT & 0xFF, page.size, 1)
        return self._commit(new, 1, 0) if new else NO_MEMORY

    def _set(self, index: int, key: bytes, value: bytes, flags: int) -> bool:
        """Set the entry of a key in the page; False: there is no room."""
        page = self.leaf.page
        if page.exact:
            return page.set_value(index, value, flags)
        if not page.fits(key, len(value)):
            return False
        page.insert(index, key, value, flags)
        return True

    def _commit(self, new: int, news: int, dropped: int) -> int:
        """Make the page the data of the object that was read.

        `new`: memory for it. The first `news` entries of the client journal are linked then;
        `dropped`, an extent, is no longer linked.
        """
        done = self._put_there(self.leaf.page, new, news, dropped)
        if done == DONE:
            self._note(new)
        return done

    def _note(self, new: int) -> None:
        """The leaf's object has this pointer now."""
        leaf = self.leaf
        routes: Routes = self.trees.routes[leaf.tree]
        routes.note_seen(leaf.at, new, leaf.page.count)

    def _put_there(self, page: Page, new: int, news: int, dropped: int) -> int:
        """Install this page as the leaf's new node."""
        state = self.locks.draw(0)
        page.write(new & ADDRESS_MASK, state)
        ticket = self._post_lock(state, dropped)
        self.endpoint.wait()
        done = self.endpoint.result(ticket) == self.leaf.lock
        if done:
            # CRASH(leaf-locked): recovery puts a copy of the old node there.
            # LINEARIZES: put, insert, update and delete that change one leaf
            done = self._install(new, state)
        return self._settle_hand(news, done)

    def _post_lock(self, state: int, dropped: int) -> int:
        """Post the lock of the object that was read; the ticket of its result. The new data, or its
        first word, is posted, and is the first entry of the client journal."""
        client, at, old = self.client, self.leaf.at, self.leaf.pointer
        # ORDER: in the client journal before the lock; the lock after the new data, on one node.
        client.retarget(0, self.link | at)
        if not is_vacant(old):
            client.log(old, at + POINTER)
        if dropped:
            client.log(dropped, self.link | EXTENT_PAIR)
        return self.locks.post_acquire(at, self.leaf.lock, state)

    def _install(self, new: int, state: int) -> bool:
        """A phase of its own: swing the pointer, and unlock. False: our lease was over, and a copy
        of the old data is there now."""
        begin_change(self.client)
        ticket = self.locks.post_install(self.leaf.at, self.leaf.pointer, new)
        # CRASH(leaf-installed): done; recovery frees the old node, and releases the lock.
        # ORDER: the pointer before the lock.
        self.locks.post_release(self.leaf.at, state)
        self.endpoint.wait()
        end_change(self.client)
        return self.endpoint.result(ticket) == self.leaf.pointer

    def change_alone(self, at: int, version: int, pointer: int, page: Page) -> int:
        """Make a page, staged by a transaction that has read and writes nothing but this object in
        this version, with that pointer, the data of the object: DONE, AGAIN or NO_MEMORY (Opt1)."""
        leaf = self.leaf
        new = self.allocator.allocate(at >> NODE_SHIFT & 0xFF, page.size, 1)
        if not new:
            return NO_MEMORY
        leaf.at = at
        leaf.lock = version
        leaf.pointer = pointer
        return self._put_there(page, new, 1, 0)

    def _settle_hand(self, news: int, done: bool) -> int:
        """Drop linked objects from the client journal: the first `news` if done, otherwise the
        others; free the rest. DONE or AGAIN."""
        client = self.client
        for index in range(client.held - 1, -1, -1):
            if (index < news) == done:
                client.drop(index)
            else:
                client.release(index)
        return DONE if done else AGAIN

    # ---- a leaf that is locked before it is read ------------------------------------------------

    def change_early(self, key: bytes, value: bytes, mode: int, attempt: int) -> int:
        """Lock the leaf in which a key was met, then read and change it. ELSEWHERE: the key was met
        in no leaf, or that leaf is not the key's any more, or is locked and this is the first
        attempt, or the one before a look at the client that has it. AGAIN: also if it is locked at
        another attempt."""
        leaf, page = self.leaf, self.leaf.page
        hashed = hash64(key)
        leaf.tree = self.trees.number_of(hashed)
        routes: Routes = self.trees.routes[leaf.tree]
        hint = routes.hinted(hashed)
        if not hint:
            return ELSEWHERE
        at = routes.hinted_leaf(hint)
        # ORDER: the lock before the pointer.
        self.endpoint.post_read(at, self.trees.words, 2)
        self.endpoint.wait()
        lock, pointer = self.trees.words[0], self.trees.words[1]
        if is_vacant(pointer):
            return ELSEWHERE
        leaf.at = at
        if lock & LOCKED:
            # Later on, its node would most likely be read in vain. But the key may be in another
            # leaf since a split, so it is read now and then.
            return AGAIN if attempt and (attempt + 1) % ATTEMPTS_PER_CHECK else ELSEWHERE
        self.endpoint.prefetch(pointer & ADDRESS_MASK, page.size)
        new = self.allocator.allocate(at >> NODE_SHIFT & 0xFF, page.size, 1)
        if not new:
            return NO_MEMORY
        leaf.lock = lock
        leaf.pointer = pointer
        state = self.locks.draw(0)
        page.begin(new & ADDRESS_MASK, state)
        ticket = self._post_lock(state, 0)
        # ORDER: the node after the lock.
        page.post(pointer & ADDRESS_MASK)
        self.endpoint.wait()
        if self.endpoint.result(ticket) != lock:
            return self._settle_hand(1, False)
        # CRASH(leaf-locked-early): recovery puts a copy of the old node there.
        self._look_up(key, hint)
        if page.level or not page.exact:
            routes.unhint(hashed)
        return self._change_locked(key, value, mode, new, state)

    def _look_up(self, key: bytes, hint: int) -> None:
        """Find the key's entry in the node that was read under our lock."""
        page = self.leaf.page
        place = hint >> PLACE_SHIFT & PLACE_MASK
        page.parse(self.leaf.pointer & ADDRESS_MASK)
        if page.level == 0 and page.is_at(place, key):
            self.leaf.index = place
        else:
            self.leaf.index = page.find(key)

    def _change_locked(self, key: bytes, value: bytes, mode: int, new: int, state: int) -> int:
        """Write the changed leaf, which is locked and was read, to the memory `new`; or a copy of
        it."""
        page, index = self.leaf.page, self.leaf.index
        outcome, dropped = DONE, 0
        if page.level or not (page.exact or page.has(key)):
            outcome = ELSEWHERE
        elif not page.exact and mode != PUT:
            outcome = MISSING
        else:
            dropped = page.link(index) if page.exact and page.has_extent(index) else 0
            if mode == DELETE:
                page.remove(index)
            elif not self._set(index, key, value, 0):
                outcome, dropped = LOGGED_WRITE, 0
        if dropped:
            self.client.log(dropped, self.link | EXTENT_PAIR)
        page.write(new & ADDRESS_MASK, state)
        # LINEARIZES: as in `_commit`
        done = self._settle_hand(1, self._install(new, state))
        if done == DONE:
            self._note(new)
        if outcome == DONE:
            outcome = done
        return SPARSE if outcome == DONE and mode == DELETE and is_sparse(page) else outcome
