"""Trees whose nodes are changed in place, under locks, and linked by address; and their nodes.

A root stays where it is for ever, at the front of its tree's region; all other nodes are objects of
the heap. The remembered place of a key may lead to memory that is no node any more.

A node (`InPlaceNode`) is changed in place, under a lock, while clients read it (Sherman, SIGMOD
'22): a page (stores/sherman/page.py) of 16 bytes less than the node, with other first words, and
two more behind it:

Words
    0     lock      id of the client that holds it, or 0; if locks are in nodes (in_place_commit.py)
    1     version   how often it was written: the front version, DTX's sequence
    2..   the page from its word 2 on
    -2    checksum  two CRC-32C of the words from 1 on, mixed with where the node is
    -1    version   again: the rear version

A copy is whole if both versions are the same and the checksum is right, or if it is a root that has
never been written. A client rejects a torn node as a whole and reads it again (R8). Sherman
compares the versions only. But if a writer overtakes a reader in the middle of the node, the reader
sees both versions new and old words between them. The checksum covers all words but the lock. So an
accepted copy is all of one version, the one that was there when its version word was read.

Clients remember addresses from one operation to the next. So the memory at an address may not be a
node any more: another store or an extent may have it. Then its checksum is not right for a node at
that address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.fabric import crc_pair, hash64
from limpet.shm.errors import StoreCorrupt
from limpet.stores.core.records import Objects
from limpet.stores.core.status import AGAIN
from limpet.stores.sherman.in_place_parameters import LOCK, TRAILER, VERSION, InPlaceParameters
from limpet.stores.sherman.page import Page
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.trees import Leaf, Trees, leaf_of

if TYPE_CHECKING:
    from collections.abc import Sequence


MIX: Final = 0x9E37_79B9_7F4A_7C15
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class InPlaceNode(Page):
    """A copy of a node of a store's trees, of `size` bytes.

    `seed` of its checksum, `roots` of the trees; `idempotent`: as the store's parameter.
    """

    def __init__(
        self, endpoint: Any, size: int, seed: int, roots: Sequence[int], idempotent: bool
    ) -> None:
        Page.__init__(self, endpoint, size - TRAILER, more=TRAILER)
        self.seed = seed
        self.roots = roots
        self.idempotent = idempotent
        self.whole = False

    @property
    def version(self) -> int:
        """Its version, as it was read."""
        return int(self.words[VERSION])

    @property
    def lock(self) -> int:
        """Its lock word, as it was read."""
        return int(self.words[LOCK])

    def read(self, at: int) -> None:
        """A phase of its own: copy the node at this address; `is_whole` says whether it was one."""
        self.read_image(at, at)

    def read_image(self, image: int, at: int) -> None:
        """As `read`, of the node at `image`, which is meant for the address `at`."""
        self.post(image)
        self.endpoint.wait()
        self.arrived(at)

    def post(self, at: int) -> None:
        """Post a copy of the words at this address; `arrived` comes after the `wait`."""
        self.endpoint.post_read(at, self.words, (self.size + TRAILER) >> 3)

    def arrived(self, at: int) -> None:
        """Take in the words that were copied, of the node meant for the address `at`."""
        words = self.words
        count = (self.size + TRAILER) >> 3
        if words[VERSION] == words[count - 1] == words[count - 2] == 0 and self._is_root(at):
            self.whole = True
            self.reset(0, b"", None, 0)
        else:
            rear, sum_read = words[count - 1], words[count - 2]
            self.whole = words[VERSION] == rear and sum_read == self._checksum(at)
            if self.whole:
                self.parse(at)

    def advance(self, at: int, state: int) -> None:
        """Become the next version of the node there, with this lock word."""
        words = self.words
        count = (self.size + TRAILER) >> 3
        self.seal()
        words[LOCK] = state
        words[VERSION] += 1
        words[count - 1] = words[VERSION]
        words[count - 2] = self._checksum(at)

    def write(self, at: int, state: int) -> None:
        """Post its write to this address, as the next version, with this lock word."""
        self.advance(at, state)
        self.put(at)

    def put(self, at: int) -> None:
        """Post its write to this address, as it is."""
        words = self.words
        version = words[VERSION]
        if not self.idempotent or version == 1:
            self.put_image(at)
        else:
            words[VERSION] = version - 1
            self.put_image(at)
            words[VERSION] = version
            self.endpoint.post_cas(at + 8 * VERSION, version - 1, version)

    def put_image(self, at: int) -> None:
        """Post the write of all its words to this address, which need not be its own."""
        self.endpoint.post_write(at, self.words, (self.size + TRAILER) >> 3)

    def is_whole(self) -> bool:
        """Whether the copy is a node, and all of one version."""
        return self.whole

    def _is_root(self, at: int) -> bool:
        found = False
        for index in range(len(self.roots)):
            found = found or self.roots[index] == at
        return found

    def _checksum(self, at: int) -> int:
        mixed: int = (at ^ self.seed) * MIX & MASK
        mixed ^= crc_pair(self.words, VERSION, (self.size >> 3) - VERSION)
        return mixed


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
        return leaf_of(
            InPlaceNode(self.endpoint, self.node_size, self.link, self.roots, self.idempotent)
        )

    def read(self, leaf: Leaf, at: int, near: int) -> bool:
        """Read a node; False: it is torn, or is not a node; or is locked, in trees that stop."""
        node: Any = leaf.page
        node.post(at)
        self.endpoint.wait()
        node.arrived(at)
        leaf.at = at
        leaf.lock = node.words[LOCK]
        return bool(node.whole and not (self.stops and leaf.lock))

    def arrived(self, leaf: Leaf, at: int) -> bool:
        """As `read`, of a node that was posted, after the `wait`."""
        leaf.at = at
        node: Any = leaf.page
        node.arrived(at)
        leaf.lock = node.words[LOCK]
        return bool(node.whole and not (self.stops and leaf.lock))

    def find_leaf(self, leaf: Leaf, tree: int, hashed: int, key: bytes, known: int) -> int:
        """Read the leaf in whose range a key is. AGAIN: a node on the way is torn, or no node; or
        the tree is stopped."""
        if self.stops and self._is_stopped(tree):
            leaf.tree = tree
            leaf.at = self.roots[tree]
            return AGAIN
        outcome = Trees.find_leaf(self, leaf, tree, hashed, key, known)
        if outcome == AGAIN and not leaf.page.is_whole():
            # ORDER: the next attempt goes by links, which lead to nodes only.
            self.forget_route(tree, key)
        return outcome

    def find_leaf_below(self, leaf: Leaf, tree: int, end: bytes | None) -> int:
        """Read the leaf with the keys just below `end`, or the last one. AGAIN as for `look`."""
        if self.stops and self._is_stopped(tree):
            leaf.tree = tree
            leaf.at = self.roots[tree]
            return AGAIN
        outcome = Trees.find_leaf_below(self, leaf, tree, end)
        if outcome == AGAIN and not leaf.page.is_whole():
            # ORDER: as in `look`
            self.routes[tree].drop_below(end)
        return outcome

    def stop_word(self, tree: int) -> int:
        """Address of the word by which a tree is stopped (stores/baselines/dtx/recovery.py)."""
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
