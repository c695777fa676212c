"""What an operation is going to do to a tree that is changed in place (write_set.py).

The leaf is the one that the operation has read, and locked before that if the store is not
optimistic. New nodes are memory of their own, which nobody finds before the change is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.stores.sherman.write_set import Busy, Staging
from limpet.stores.status import AGAIN, DONE, MISSING, NO_MEMORY, PUT

if TYPE_CHECKING:
    from limpet.stores.sherman.in_place_commit import InPlaceCommit
    from limpet.stores.sherman.page import Page

LEAF_ATTEMPTS: Final = 64
"""So often the way to a leaf may be out of date before the operation begins anew."""


class Starved(Exception):
    """There is no memory ready for a new node."""


class InPlaceStaging(Staging):
    """The changes of one operation to one store."""

    commit: InPlaceCommit

    def stage(self, key: bytes, value: bytes | None, mode: int = PUT) -> int:
        """As for transactions; NO_MEMORY, too."""
        try:
            outcome = super().stage(key, value, mode)
        except Starved:
            outcome = NO_MEMORY
        if outcome != DONE:
            self.commit.give_up()
        return outcome

    def change(self, level: int, entry: tuple[bytes, bytes, int]) -> int:
        """Set an entry of the inner node of that level: DONE, AGAIN or NO_MEMORY."""
        try:
            at, page = self._locked(entry[0], level)
            return self._put(at, page, page.find(entry[0]), entry)
        except Busy:
            outcome = AGAIN
        except Starved:
            outcome = NO_MEMORY
        self.commit.give_up()
        return outcome

    def link_above(self, level: int, fence: bytes, right: int) -> int:
        """Link to a new node: at once, or later, by who is not optimistic (a B-link tree's way)."""
        if self.store.parameters.optimistic:
            return super().link_above(level, fence, right)
        self.commit.above.append((level, fence, right))
        return DONE

    def _vacant(self) -> int:
        return self.commit.new_node()

    def _vacate_root(self, page: Page) -> int:
        return MISSING

    # ---- finding --------------------------------------------------------------------------------

    def _leaf(self, key: bytes) -> tuple[int, Page]:
        store = self.store
        tree = store.tree_of(key)
        store.tree = tree
        if not store.parameters.optimistic and not self.commit.shrinks:
            return self._locked_leaf(tree, key)
        if store.find_leaf_of(tree, key) != DONE or store.lock:
            raise Busy
        self.commit.expect(store.at, store.page.version)
        return store.at, store.page

    def _locked_leaf(self, tree: int, key: bytes) -> tuple[int, Page]:
        """Lock the leaf where the key was last, and read it; look for it only if that is wrong."""
        store = self.store
        at = store.remembered(tree, key)
        for _ in range(LEAF_ATTEMPTS):
            if not at:
                if store.find_leaf_of(tree, key) != DONE:
                    raise Busy
                at = store.at
            if self._lock(at, key, 0, store.page):
                return at, store.page
            store.forget_route(tree, key)
            at = 0
        raise Busy

    def _locked(self, key: bytes, level: int) -> tuple[int, Any]:
        """Lock and read the node of that level in whose range the key is."""
        for _ in range(LEAF_ATTEMPTS):
            at, page = self._inner(key, level)
            if self._lock(at, key, level, page):
                return at, page
        raise Busy

    def _lock(self, at: int, key: bytes, level: int, page: Any) -> bool:
        """Lock a node and read it; False: it is not the one of that level with the key."""
        store, commit = self.store, self.commit
        store.at = at
        if not commit.lock(at):
            raise Busy
        if store.read_object(at, page) and page.level == level and page.has(key):
            commit.expect(at, page.version)
            return True
        commit.unlock_all()
        return False

    def _page(self, at: int) -> Any:
        page = self.commit.pages.get(at)
        if page is None:
            page = self.store.blank()
            if not self.store.read_object(at, page) or self.store.lock:
                raise Busy
            self.commit.expect(at, page.version)
        return page
