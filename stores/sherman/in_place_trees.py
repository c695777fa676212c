"""Trees whose nodes are changed in place, under locks, and linked by address (in_place_node.py).

A root stays where it is for ever, at the front of its tree's region; all other nodes are objects of
the heap. The remembered place of a key may lead to memory that is no node any more.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import StoreCorrupt
from limpet.stores.records import Objects
from limpet.stores.sherman.in_place_layout import LOCK
from limpet.stores.sherman.in_place_node import Node
from limpet.stores.sherman.in_place_parameters import InPlaceParameters
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.trees import Leaf, Trees, leaf_of
from limpet.stores.status import AGAIN


class InPlaceTrees(Trees):
    """The trees of a store whose nodes are changed in place. `link` names the store in a client
    journal.

    `stops`: a recovery stops the trees, and the new contents of a locked node may be decided.
    """

    def __init__(
        self,
        pool: Any,
        name: str,
        parameters: InPlaceParameters,
        objects: Objects,
        link: int,
        stops: bool = False,
    ) -> None:
        self.link = link
        self.node_size = parameters.node_size
        self.size_class: int = pool.heap.size_class(parameters.node_size)
        self.idempotent = parameters.idempotent
        self.stops = stops
        Trees.__init__(self, pool, name, parameters, objects)

    def blank(self) -> Leaf:
        return leaf_of(Node(self.endpoint, self.node_size, self.link, self.roots, self.idempotent))

    def read(self, leaf: Leaf, at: int, near: int) -> bool:
        """Read a node; False: it is torn, or is not a node; or is locked, in trees that stop."""
        leaf.at = at
        node: Any = leaf.page
        node.read(at)
        self.endpoint.wait()
        leaf.lock = node.words[LOCK]
        return bool(node.whole and not (self.stops and leaf.lock))

    def look(self, leaf: Leaf, tree: int, hashed: int, key: bytes, known: int) -> int:
        """Read the leaf in whose range a key is. AGAIN: a node on the way is torn, or no node; or
        the tree is stopped."""
        if self.stops and self._is_stopped(tree):
            leaf.tree = tree
            leaf.at = self.roots[tree]
            return AGAIN
        outcome = Trees.look(self, leaf, tree, hashed, key, known)
        if outcome == AGAIN and not leaf.page.is_whole():
            # ORDER: the next attempt goes by links, which lead to nodes only.
            self.forget_route(tree, key)
        return outcome

    def look_below(self, leaf: Leaf, tree: int, end: bytes | None) -> int:
        """Read the leaf with the keys just below `end`, or the last one. AGAIN as for `look`."""
        if self.stops and self._is_stopped(tree):
            leaf.tree = tree
            leaf.at = self.roots[tree]
            return AGAIN
        outcome = Trees.look_below(self, leaf, tree, end)
        if outcome == AGAIN and not leaf.page.is_whole():
            # ORDER: as in `look`
            self.routes[tree].drop_below(end)
        return outcome

    def stop_word(self, tree: int) -> int:
        """Address of the word by which a tree is stopped (stores/baselines/dtx/stop.py)."""
        return self.roots[tree] + self.node_size

    def _is_stopped(self, tree: int) -> bool:
        scope = self.endpoint.background(True)
        try:
            return bool(self.endpoint.load(self.stop_word(tree)) != 0)
        finally:
            self.endpoint.background(scope)

    def remembered(self, tree: int, key: bytes) -> int:
        """The remembered leaf of the key; 0: none is remembered."""
        routes: Routes = self.routes[tree]
        hint = routes.hinted(hash64(key))
        if hint:
            return routes.hinted_leaf(hint)
        return 0 if routes.is_empty() else routes.find(key)

    def forget_route(self, tree: int, key: bytes) -> None:
        """Forget the leaf that `remembered` gives."""
        routes: Routes = self.routes[tree]
        routes.unhint(hash64(key))
        routes.drop(key)

    def reference(self, at: int) -> int:
        """The reference to the memory of a node at this address, which is not a root."""
        return self.size_class << 48 | at


def look_after_torn(store: Any, at: int) -> None:
    """Raise StoreCorrupt if a node is torn, and stays so."""
    node = store.trees.blank().page
    node.read(at)
    if not node.whole and store.pool.membership.overdue(("torn", at), node.version):
        raise StoreCorrupt(f"{store.name}: the node at {at:#x} is torn, and no client writes it")
