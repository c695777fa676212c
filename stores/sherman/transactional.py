"""The `rtx-sherman` store: a B-link tree whose operations are transactions (rTX section 5).

After Sherman (Wang et al., SIGMOD '22). Every tree node is the data of a TXObj
(stores/rtx/lllock.py), so it is written anew and not in place, and its pointer swung. The TXObjs of
a tree are a region, the paper's meta pool (figure 6): the first is the root, for ever; one whose
pointer stands for nothing (stores/vacant.py) is vacant. On each memory node there is a tree of its
own, and a key's hash chooses: so what is on a lost node is lost with all that leads there. A scan
merges the trees.

A write that changes one leaf and nothing else is a transaction without a log (Opt1):
    1. read the leaf's lock and pointer, and the node
    2. write the new node; CAS the lock from the version that was read
    3. CAS the pointer; CAS the lock to a new version
It locks from what it has read, so it needs no validation, and never gives up once it has the lock.

An update, put or delete of a key that the client has met in a leaf locks that before it is read
(Opt2), so nobody changes it in between:
    1. read the leaf's lock and pointer
    2. CAS the lock; read the node
    3. write the new node; CAS the pointer; CAS the lock to a new version
If the key is not there any more, or the change takes a log, a copy of the node is put there: a lock
must not be released with the pointer as it was (lllock.py).

A value that is too long for the node is in an extent; it is in the hand, too.

All others, those that split or merge nodes, are transactions with a log (stores/rtx/commit.py) of
all that they write. A split changes the node, its new sibling and the parent at once, or a root
and its two halves; so the tree is never seen half split. The siblings are there for clients whose
cached route (routes.py) is out of date, and for scans.

A kill leaves behind, without a log: in the hand, the new node, or its first word, with the
object that it is meant for, the old one, and extents. Recovery releases the lock
(stores/rtx/repair.py). In a pool of several hosts, where the dead may still write, the new node has
to be whole before it is in the hand; so leaves are not locked early there, nor for an extent.

Sherman's nodes are never merged. Here a delete that leaves a leaf empty, or less than a quarter
full, merges it with a neighbour, if there is room, by a transaction after its own; so a tree whose
keys are deleted takes no memory. Deletes write a node to free one, so some blocks are left to them.

Deviations, besides: slotted pages with entries of any size in place of sorted arrays of one; a hash
puts keys on trees; a client that meets a lock waits for the lease, as in the paper, but not if its
owner is known to be dead. Limits: keys have at most `key_size` bytes; nothing is replicated.

Round trips without conflict: get 2, update and delete 3, insert 4; with a leaf that is not locked
early, 4.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.rtx.commit import Commit
from limpet.stores.rtx.layout import EXTENT_PAIR, LOCKED, POINTER
from limpet.stores.rtx.lllock import is_vacant
from limpet.stores.sherman.layout import (
    ELSEWHERE,
    EXTENT,
    LOGGED_WRITE,
    PLACE_MASK,
    PLACE_SHIFT,
    SHRINK,
    SPARED_BLOCKS,
    SPARSE,
)
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.scans import Scans
from limpet.stores.sherman.write_set import Staging
from limpet.stores.status import (
    AGAIN,
    DELETE,
    DONE,
    EXISTS,
    INSERT,
    MISSING,
    NO_MEMORY,
    PUT,
    UPDATE,
)

SHRINKS_MAX: Final = 32
"""How often a merge is tried while others are in the way; a later one takes in what it left."""


class Sherman(Scans):
    """The `rtx-sherman` store. `ShermanParameters`."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        self.opt2 = False
        """A leaf is locked before it is read; `equip` decides, and trees in place never do."""
        super().__init__(pool, kind, name, parameters)
        self.cursor = self.client.ident
        """Where to look for the next vacant object; clients begin at different ones."""

    def forget(self) -> None:
        super().forget()
        self.forget_tickets()
        self.cursor = self.client.ident

    def forget_tickets(self) -> None:
        """Forget the numbers of vacant words that this handle has taken."""
        self.locks.forget()

    def equip(self, parameters: Any) -> None:
        super().equip(parameters)
        self.opt1 = parameters.opt1
        self.opt2 = parameters.opt2 and not self.client.mortal
        self.new = 0
        """Memory for the data of the leaf that is locked early."""
        self.state = 0

    def refuse(self, key: bytes, value: bytes) -> None:
        """Raise KeyTooLarge or ValueTooLarge if the pair is."""
        self.object_size(key, value)

    def _change(self, key: bytes, value: bytes, size: int, mode: int) -> int:
        self.operations += 1
        attempt = 0
        early = self.opt2 and not size and mode != INSERT
        while True:
            self.client.enter()
            try:
                self.require_there()
                outcome = self._change_once(key, value, size, mode, early)
            finally:
                self.client.leave()
            if outcome == LOGGED_WRITE:
                early = False  # it would be in the way of those who split the leaf
                outcome = self._with_log(key, value, mode)
                if outcome == DONE and mode == DELETE:
                    self.tidy(key)
            if outcome == NO_MEMORY:
                try:
                    self.have_memory(key, mode, key, size, mode, None)
                except StoreFull:
                    if not early:
                        raise
                    early = False  # nothing has been read: the key may be gone, and need none
            elif outcome == AGAIN:
                attempt += 1
                self.stay(attempt, True)
            elif outcome == SPARSE:
                self._shrink(key)
                return DONE
            else:
                return outcome

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """`wanted`: key, bytes of its extent, mode, and the transaction to have memory for, or None
        for a write without a log."""
        key, size, mode, commit = wanted
        sizes = [self.page.size, size] if size else [self.page.size]
        sparing = 0 if mode == DELETE else SPARED_BLOCKS
        if commit is not None:
            return commit.replenish(sparing, update)
        return self.allocator.replenish_all(self.node_of(key), sizes, 1, sparing, 0, update)

    def _change_once(self, key: bytes, value: bytes, size: int, mode: int, early: bool) -> int:
        if not self.opt1:
            return LOGGED_WRITE
        if early:
            outcome = self._lock_early(key)
            if outcome == DONE:
                outcome = self._change_locked(key, value, mode)
            if outcome != ELSEWHERE:
                return outcome
        if self._find_leaf(key) == AGAIN:
            return AGAIN
        page, index = self.page, self.index
        if page.exact:
            if mode == INSERT:
                return EXISTS
        elif mode in (UPDATE, DELETE):
            return MISSING
        if self.lock & LOCKED:
            return AGAIN
        dropped = page.link(index) if page.exact and page.has_extent(index) else 0
        if mode == DELETE:
            page.remove(index)
        elif not self._set(index, key, bytes(8) if size else value, EXTENT if size else 0):
            return LOGGED_WRITE
        new = self.allocator.allocate(self.at >> NODE_SHIFT & 0xFF, page.size, 1)
        if not new:
            return NO_MEMORY
        if size:
            extent = self.allocator.allocate(self.at >> NODE_SHIFT & 0xFF, size, 1)
            if not extent:
                return NO_MEMORY
            self.objects.write(extent, key, value)
            # ORDER: written before the hand says where it belongs.
            self.client.aim(1, self.link | EXTENT_PAIR)
            page.set_value(index, extent.to_bytes(8, "little"), EXTENT)
        outcome = self._commit_leaf(new, 2 if size else 1, dropped)
        return SPARSE if outcome == DONE and mode == DELETE and self._is_sparse() else outcome

    def _set(self, index: int, key: bytes, value: bytes, flags: int) -> bool:
        """Set the entry of a key in the page; False: there is no room."""
        page = self.page
        if page.exact:
            return page.set_value(index, value, flags)
        if not page.fits(key, len(value)):
            return False
        page.insert(index, key, value, flags)
        return True

    def _commit_leaf(self, new: int, news: int, dropped: int) -> int:
        """Have the page be the data of the object that was read last, without a log.

        `new`: memory for it. Of the hand, the first `news` are linked then; `dropped`, an extent,
        is not any more.
        """
        state = self.locks.draw(0)
        self.page.write(new & ADDRESS_MASK, state)
        done = self._lock_leaf(state, dropped)
        self.endpoint.wait()
        if done:
            # CRASH(leaf-locked): recovery puts a copy of the old node there.
            # LINEARIZES: put, insert, update and delete that change one leaf
            done = self._install(new, state)
        return self._settle_hand(news, done)

    def _lock_leaf(self, state: int, dropped: int) -> bool:
        """Lock the object that was read last. What it is to be has been written, and is the first
        in the hand."""
        client, at, old = self.client, self.at, self.pointer
        # ORDER: written before the hand says what it is for.
        client.aim(0, self.link | at)
        if not is_vacant(old):
            client.hold(old, at + POINTER)
        if dropped:
            client.hold(dropped, self.link | EXTENT_PAIR)
        return self.locks.acquire(at, self.lock, state)

    def _install(self, new: int, state: int) -> bool:
        """Swing the pointer, and unlock. False: our lease was over, and a copy of what was there is
        there now."""
        done = self.locks.install(self.at, self.pointer, new)
        # CRASH(leaf-installed): done; recovery frees the old node, and releases the lock.
        self.locks.release(self.at, state)
        self.endpoint.wait()
        return done

    def _settle_hand(self, news: int, done: bool) -> int:
        """Keep in the store what is linked: the first `news`, or else the others. DONE or AGAIN."""
        client = self.client
        for index in range(client.held - 1, -1, -1):
            if (index < news) == done:
                client.keep(index)
            else:
                client.release(index)
        return DONE if done else AGAIN

    # ---- a leaf that is locked before it is read ------------------------------------------------

    def _lock_early(self, key: bytes) -> int:
        """Lock the leaf in which a key was met, then read it. DONE; AGAIN: somebody was faster;
        NO_MEMORY; ELSEWHERE: it was met in none, or that is locked.
        """
        hashed = hash64(key)
        self.tree = self._tree_of(hashed)
        routes: Routes = self.routes[self.tree]
        hint = routes.hinted(hashed)
        if not hint:
            return ELSEWHERE
        at = routes.hinted_leaf(hint)
        # ORDER: the lock before the pointer.
        lock = self.endpoint.load(at)
        pointer = self.endpoint.load(at + POINTER)
        self.endpoint.wait()
        if lock & LOCKED or is_vacant(pointer):
            return ELSEWHERE
        self.endpoint.prefetch(pointer & ADDRESS_MASK, self.page.size)
        self.new = self.allocator.allocate(at >> NODE_SHIFT & 0xFF, self.page.size, 1)
        if not self.new:
            return NO_MEMORY
        self.at = at
        self.lock = lock
        self.pointer = pointer
        self.state = self.locks.draw(0)
        self.page.begin(self.new & ADDRESS_MASK, self.state)
        done = self._lock_leaf(self.state, 0)
        if done:
            # CRASH(leaf-locked-early): recovery puts a copy of the old node there.
            self._read_locked(key, hint)
            if self.page.level or not self.page.exact:
                routes.unhint(hashed)
        self.endpoint.wait()
        return DONE if done else self._settle_hand(1, False)

    def _read_locked(self, key: bytes, hint: int) -> None:
        """Read the node of the object that we have locked, and find the key's entry."""
        page, node = self.page, self.pointer & ADDRESS_MASK
        place = hint >> PLACE_SHIFT & PLACE_MASK
        page.read(node)
        if page.level == 0 and page.is_at(place, key):
            self.index = place
        else:
            self.index = page.find(key)

    def _change_locked(self, key: bytes, value: bytes, mode: int) -> int:
        """Change the leaf that is locked, and read; or have a copy of it there. ELSEWHERE: it is
        not the key's."""
        page, index = self.page, self.index
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
            self.client.hold(dropped, self.link | EXTENT_PAIR)
        page.write(self.new & ADDRESS_MASK, self.state)
        # LINEARIZES: as in `_commit_leaf`
        done = self._settle_hand(1, self._install(self.new, self.state))
        if outcome == DONE:
            outcome = done
        return SPARSE if outcome == DONE and mode == DELETE and self._is_sparse() else outcome

    # ---- with a log -----------------------------------------------------------------------------

    def _with_log(self, key: bytes, value: bytes, mode: int) -> int:
        """The same as a transaction with a log. DONE, EXISTS, MISSING or AGAIN."""
        commit = self.commit()
        while True:
            outcome = self._logged_once(commit, key, value, mode)
            if outcome != NO_MEMORY:
                return outcome
            self.have_memory(key, mode, key, 0, mode, commit)

    def _logged_once(self, commit: Commit, key: bytes, value: bytes, mode: int) -> int:
        self.client.enter()
        try:
            self.require_there()
            commit.begin(self.link)
            staging = self.staging(commit)
            if mode == SHRINK:
                outcome = staging.shrink(key)
            else:
                outcome = staging.stage(key, None if mode == DELETE else value, mode)
            return commit.run() if outcome == DONE else outcome
        except BaseException:
            commit.abandon()
            raise
        finally:
            self.client.leave()

    def commit(self) -> Commit:
        """A transaction of this store's client."""
        return Commit(self.pool, self.locks)

    def busy_at(self) -> int:
        """The object that was in the way."""
        return int(self.at)

    def staging(self, commit: Commit) -> Staging:
        """What the transaction of a commit changes here."""
        return Staging(self, commit)

    def _is_sparse(self) -> bool:
        """Whether the leaf that was changed is to be merged; one that is not empty now and then."""
        page = self.page
        return not page.count or (page.used() < page.size // 4 and not page.count & 3)

    def tidy(self, key: bytes) -> None:
        """After a transaction has deleted a key: merge its leaf, if that is sparse."""
        lane = self.endpoint.background(True)
        try:
            self.client.enter()
            try:
                self.require_there()
                sparse = self._find_leaf(key) == DONE and self._is_sparse()
            finally:
                self.client.leave()
            if sparse:
                self._shrink(key)
        except NodeFailed:
            pass  # the key is deleted; the rest can wait
        finally:
            self.endpoint.background(lane)

    def _shrink(self, key: bytes) -> None:
        """Merge the leaf with a neighbour, as long as that can be done.

        If others are always in the way, or memory is full, it stays as it is; a later merge takes
        it in.
        """
        lane = self.endpoint.background(True)
        try:
            commit = self.commit()
            attempt = 0
            while attempt < SHRINKS_MAX:
                outcome = self._logged_once(commit, key, b"", SHRINK)
                if outcome == MISSING:
                    break
                if outcome == NO_MEMORY:
                    commit.replenish(0, True)
                if outcome != DONE:
                    attempt += 1
                    self.endpoint.pause(attempt)
        except (StoreFull, NodeFailed):
            pass  # the key is deleted; the rest can wait
        finally:
            self.endpoint.background(lane)

    def next_vacant(self) -> int:
        """Number of the next object that may be vacant."""
        self.cursor = (self.cursor + 1) % self.parameters.objects
        return self.cursor

    def why_full(self, tree: int) -> StoreFull:
        """What to raise when a tree has no vacant object."""
        return StoreFull(
            f"{self.name}: all {self.parameters.objects} nodes of tree {tree} are in use; the "
            f"store was made with capacity {self.parameters.capacity}"
        )
