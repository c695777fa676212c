"""The commit of a change in place: lock the other nodes, validate them, write, unlock.

    1. lock each node that is changed; a node that another client has locked is a conflict
    2. validate: each of these nodes still has the version in which it was read. A node that was
       locked before it was read, as Sherman does it, needs neither step
    3. write the nodes in place; the same round trip gives back the locks

Steps 1 and 2 are one phase, and step 3 is one. All nodes of a tree, and its locks, are on one
memory node, which does the verbs of a phase in the order in which they were posted: so a node is
validated, or read, after it was locked, and unlocked after it was written.

The order of the writes lets a reader find, at each moment, every key that stays:
    first, new nodes    no client finds them before the others are written
    then, the others    leaves first, so no client changes a new node while an old one still has the
                        same keys
    last, dropped ones  only old routes lead there by then

After a conflict a client waits for no lock while it holds another, so no clients wait in a circle.

A kill leaves behind: locked nodes, perhaps one of them torn; and in the client journal, memory for
new nodes and extents, and unlinked memory. Recovery cannot tell whether these are linked, and keeps
them.

Locks (`NodeLocks`, as in transactions/locks.py). Where the words are:

    table      one word for each `node_size` bytes of a memory node's blocks, in the tree's region,
               and one for the root (Sherman's lock table). So a client can lock a node before it
               reads it, even if the address it remembers may be out of date
    in nodes   the first word of the node (DrTM+H). A client locks a node only if it has read it in
               the same operation: until that is over, the memory has no other use

The unlocking verb goes in the same round trip as the write of the node.
"""

from __future__ import annotations

import contextlib
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from limpet.shm.endpoint.layout import EXACTLY, NODE_SHIFT, OFFSET_MASK
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.core.status import AGAIN, DONE, NO_MEMORY
from limpet.stores.sherman.in_place_parameters import META_WORDS, NODE_PAIR, VERSION
from limpet.stores.sherman.in_place_trees import InPlaceNode
from limpet.stores.sherman.layout import GONE
from limpet.stores.transactions.layout import EXTENT_PAIR
from limpet.stores.transactions.locks import ObjectLocks
from limpet.stores.transactions.staged import Staged

if TYPE_CHECKING:
    from limpet.stores.sherman.in_place_trees import InPlaceTrees
    from limpet.stores.sherman.trees import Leaf


class NodeLocks(ObjectLocks):
    """The locks of a store's trees, for one client."""

    def __init__(self, store: Any) -> None:
        ObjectLocks.__init__(self, store)
        self.roots = store.trees.roots
        self.blocks = store.heap.blocks
        self.node_size = store.parameters.node_size
        self.table_size = store.parameters.table_size - self.node_size
        self.in_nodes = store.parameters.optimistic
        self.idempotent = store.parameters.idempotent

    def word(self, at: int) -> int:
        if self.in_nodes:
            return at
        root = self.roots[at >> NODE_SHIFT & 0xFF]
        first = root + self.node_size
        if at == root:
            return first
        return first + 8 + ((at & OFFSET_MASK) - self.blocks) // self.node_size * 8

    def any_held(self, ident: int) -> bool:
        """Whether this client holds the lock of some node, as the tables say, read at once."""
        for root in self.roots:
            with contextlib.suppress(NodeFailed):
                table = self.endpoint.read(int(root) + self.node_size, self.table_size)
                if (np.frombuffer(table, np.uint64) == ident).any():
                    return True
        return False

    def post_release(self, at: int) -> None:
        if self.idempotent:
            self.endpoint.post_cas(self.word(at), self.client.ident, 0)
        else:
            ObjectLocks.post_release(self, at)


class Starved(Exception):
    """There is no memory ready for a new node."""


class InPlaceCommit(Staged):
    """The write set of one change, and its commit."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.trees: InPlaceTrees = store.trees
        self.leaf = store.leaf
        self.wanted = 0
        """The number of new nodes that it takes, as far as is known."""
        self.tree = 0
        """Number of the tree that is changed."""
        self.node_locks: NodeLocks = store.node_locks
        self.metas = array("Q", bytes(8 * META_WORDS))
        """Lock and version of each node that is validated."""
        Staged.__init__(self, store.pool)

    def begin(self, link: int) -> None:
        """Forget the staged changes."""
        Staged.begin(self, link)
        self.held: list[int] = []
        """Nodes that are locked, or, until a phase has ended, that may be."""
        self.read_under_lock: set[int] = set()
        self.fresh: dict[int, int] = {}
        """References to new nodes, by address."""
        self.pairs: list[int] = []
        """New memory in the client journal: NODE_PAIR, EXTENT_PAIR."""
        self.above: list[tuple[int, bytes, int]] = []
        """Level, low fence and address of new nodes to which nodes above are to link later."""

    def open(self) -> None:
        """Begin what a commit needs besides; before the first leaf is read."""

    def memory_node(self) -> int:
        """The memory node of the tree that is changed. All of its nodes are there, and their locks
        beside them, and what recovery finds by that node."""
        return self.trees.roots[self.tree] >> NODE_SHIFT & 0xFF | EXACTLY

    def new_node(self) -> int:
        """Memory for a new node, in the client journal; its address. Raises Starved."""
        reference: int = self.allocator.allocate(self.memory_node(), self.trees.node_size, 1)
        self.wanted = max(self.wanted, len(self.fresh) + 1)
        if not reference:
            raise Starved
        at = reference & ADDRESS_MASK
        self.fresh[at] = reference
        self.pairs.append(NODE_PAIR)
        return at

    def new_extents(self) -> list[int]:
        """Write the extents, in the client journal; 0 for one for which no memory is ready."""
        found = []
        for staging, at, key, value in self.extents:
            found.append(staging.new_extent(self.allocator, at, key, value))
        return found

    # ---- locks ----------------------------------------------------------------------------------

    def lock_and_read(self, leaf: Leaf, at: int) -> bool:
        """A phase of its own: lock a node, and read it; False: another client has locked it."""
        node: Any = leaf.page
        # ORDER: before the lock, so that `abandon` gives it back after an error.
        self.held.append(at)
        ticket = self.node_locks.post_acquire(at)
        # ORDER: the node after its lock.
        node.post(at)
        self.endpoint.wait()
        if self.endpoint.result(ticket):
            self.held.pop()
            return False
        # CRASH(node-locked): a client that wants the lock finds its holder dead, and says so.
        self.read_under_lock.add(at)
        return True

    def unlock_all(self) -> None:
        """Give back all locks. No client of ours waits for that."""
        for at in self.held:
            self.node_locks.post_release(at)
        self.held = []

    def abandon(self) -> None:
        """Give back the locks that are ours, because an error ends the operation. Within the
        operation, so no other thread of this client can have locked one of these nodes again."""
        with contextlib.suppress(NodeFailed):
            for at in self.held:
                self.endpoint.cas(self.node_locks.word(at), self.client.ident, 0)
        self.held = []

    def give_up(self) -> None:
        """End the change before it takes effect; it leaves nothing behind."""
        self.unlock_all()
        for index in range(self.client.held - 1, -1, -1):
            self.client.release(index)

    # ---- committing -----------------------------------------------------------------------------

    def run(self) -> int:
        """Commit: DONE; AGAIN, if there is a conflict; NO_MEMORY. Nothing has happened then."""
        if not self._prepare():
            self.give_up()
            return NO_MEMORY
        if not self._lock_rest():
            self.give_up()
            return AGAIN
        self._write_back(self._decide())
        # ORDER: the nodes before their locks.
        self.unlock_all()
        self.endpoint.wait()
        self._finish()
        return DONE

    def _sizes(self) -> list[int]:
        """The size of each object that is needed, of the memory node of the tree."""
        found = [self.trees.node_size] * self.wanted
        for staging, _, key, value in self.extents:
            found.append(staging.store.objects.size_of(key, value))
        return found

    def replenish(self, sparing: int = 0, update: bool = False) -> None:
        """Have memory ready for all of it, as `have_ready` does."""
        node = self.memory_node()
        self.have_ready([(self.allocator, node, size) for size in self._sizes()], sparing, update)

    def _prepare(self) -> bool:
        """Allocate all memory, which the client journal then names. False: some is not ready."""
        if self.extents:
            if 0 in self.new_extents():
                return False
            self.pairs += [EXTENT_PAIR] * len(self.extents)
        for index in range(len(self.pairs)):
            pair: int = self.pairs[index]
            self.client.retarget(index, self.link | pair)
        return True

    def _lock_rest(self) -> bool:
        """A phase of its own: lock and validate the nodes that are not locked yet; False: there is
        a conflict."""
        rest: list[int] = []
        for node in self.all_written():
            if node.at not in self.fresh and node.at not in self.read_under_lock:
                rest.append(node.at)
        if not rest:
            return True
        rest.sort()
        if len(self.metas) < META_WORDS * len(rest):
            self.metas = array("Q", bytes(8 * META_WORDS * len(rest)))
        self.held += rest  # as in `lock_and_read`
        tickets = [self.node_locks.post_acquire(at) for at in rest]
        for index in range(len(rest)):
            # ORDER: all versions after all locks.
            self.endpoint.post_read(rest[index], self.metas, META_WORDS, META_WORDS * index)
        self.endpoint.wait()
        valid = True
        for index in range(len(rest)):
            at = rest[index]
            if self.endpoint.result(tickets[index]):
                self.busy = self.leaf.at = at
                self.held.remove(at)
            else:
                valid = valid and self._is_as_read(at, self.metas[META_WORDS * index + VERSION])
        return valid and not self.busy

    def _is_as_read(self, at: int, version: int) -> bool:
        """Whether a node with this version is as it was read."""
        return version == self.version_of(at)

    def _decide(self) -> list[tuple[int, InPlaceNode]]:
        """Begin to take effect. The nodes, in the order in which they are to be written."""
        if self.dropped:
            for reference in self.dropped:
                self.client.log(reference, self.link | EXTENT_PAIR)
        for at in self._going():
            self.client.log(self.trees.reference(at), self.link | NODE_PAIR)
        return self._in_order()

    def _write_back(self, nodes: list[tuple[int, InPlaceNode]]) -> None:
        """Write nodes in place."""
        node: InPlaceNode
        for at, node in nodes:
            # LINEARIZES: put, insert, update and delete, by the last word of the leaf
            node.put(at)
            # CRASH(node-written): locked; other nodes of the same change may be as before.

    def _going(self) -> list[int]:
        """The nodes that are given up."""
        found: list[int] = []
        for node in self.all_written():
            if node.page is None:
                found.append(node.at)
        return found

    def _in_order(self) -> list[tuple[int, InPlaceNode]]:
        """All nodes with their new contents, in the order in which they are to be written."""
        nodes: list[tuple[int, Any]] = []
        for written in self.all_written():
            if written.page is not None:
                nodes.append((written.at, written.page))
        if len(nodes) > 1:
            nodes.sort(key=self._place)
        for at in self._going():
            blank: Any = self.trees.blank().page
            blank.reset(GONE, b"", None, 0)
            nodes.append((at, blank))
        node: InPlaceNode
        for at, node in nodes:
            words: Any = node.words
            words[VERSION] = self.version_of(at)
            locked = self.node_locks.in_nodes and at not in self.fresh
            node.advance(at, self.client.ident if locked else 0)
        return nodes

    def _place(self, pair: tuple[int, InPlaceNode]) -> tuple[bool, int]:
        """Where the node comes among those that stay."""
        at, node = pair
        return at not in self.fresh, node.level

    def _finish(self) -> None:
        """Take linked memory out of the client journal, and free unlinked memory."""
        for index in range(self.client.held - 1, -1, -1):
            if index < len(self.pairs):
                self.client.drop(index)
            else:
                self.client.release(index)
