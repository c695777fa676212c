"""The commit of a change in place: lock the other nodes, validate them, write, unlock.

    1. lock each node that is changed; a node that another client has locked is a conflict
    2. validate: each of these nodes still has the version in which it was read. A node that was
       locked before it was read, as Sherman does it, needs neither step
    3. write the nodes in place; the same round trip gives back the locks

The order of the writes lets a reader find, at each moment, every key that stays:
    first, new nodes    no client finds them before the others are written
    then, the others    leaves first, so no client changes a new node while an old one still has the
                        same keys
    last, dropped ones  only old routes lead there by then

After a conflict a client waits for no lock while it holds another, so no clients wait in a circle.

A kill leaves behind: locked nodes, perhaps one of them torn; and in the client journal, memory for
new nodes and extents, and unlinked memory. Recovery cannot tell whether these are linked, and keeps
them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.rtx.layout import EXTENT_PAIR
from limpet.stores.sherman.in_place_layout import META_SIZE, NODE_PAIR, VERSION
from limpet.stores.sherman.layout import GONE
from limpet.stores.staged import Staged
from limpet.stores.status import AGAIN, DONE, NO_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.stores.sherman.in_place_locks import NodeLocks
    from limpet.stores.sherman.in_place_node import Node
    from limpet.stores.sherman.in_place_trees import InPlaceTrees


class Starved(Exception):
    """There is no memory ready for a new node."""


class InPlaceCommit(Staged):
    """The write set of one change, and its commit."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.trees: InPlaceTrees = store.trees
        self.wanted = 0
        """The number of new nodes that it takes, as far as is known."""
        self.tree = 0
        """Number of the tree that is changed."""
        self.node_locks: NodeLocks = store.node_locks
        super().__init__(store.pool)

    def begin(self, link: int) -> None:
        """Forget the staged changes."""
        super().begin(link)
        self.held: list[int] = []
        """Nodes that are locked."""
        self.read_under_lock: set[int] = set()
        self.fresh: dict[int, int] = {}
        """References to new nodes, by address."""
        self.pairs: list[int] = []
        """New memory in the client journal: NODE_PAIR, EXTENT_PAIR."""
        self.above: list[tuple[int, bytes, int]] = []
        """Level, low fence and address of new nodes to which nodes above are to link later."""

    def memory_node(self) -> int:
        """The memory node of the tree that is changed."""
        return int(self.trees.roots[self.tree] >> NODE_SHIFT & 0xFF)

    def new_node(self) -> int:
        """Memory for a new node, in the client journal; its address. Raises Starved."""
        reference = self.allocator.allocate(self.memory_node(), self.trees.node_size, 1)
        self.wanted = max(self.wanted, len(self.fresh) + 1)
        if not reference:
            raise Starved
        self.fresh[reference & ADDRESS_MASK] = reference
        self.pairs.append(NODE_PAIR)
        return int(reference & ADDRESS_MASK)

    def new_extents(self) -> list[int]:
        """Write the extents, in the client journal; 0 for one for which no memory is ready."""
        return [staging.new_extent(self.allocator, *pair) for staging, *pair in self.extents]

    # ---- locks ----------------------------------------------------------------------------------

    def lock(self, at: int) -> bool:
        """Lock a node before it is read; False: another client has locked it."""
        locked = bool(self.node_locks.acquire(at))
        self.endpoint.wait()
        if locked:
            # CRASH(node-locked): a client that wants the lock finds its holder dead, and says so.
            self.held.append(at)
            self.read_under_lock.add(at)
        return locked

    def unlock_all(self) -> None:
        """Give back all locks."""
        if self.held:
            self._unlock()
            self.endpoint.wait()

    def abandon(self) -> None:
        """Give back the locks that are ours, because an error ends the operation. Within the
        operation, so no other thread of this client can have locked one of these nodes again."""
        with contextlib.suppress(NodeFailed):
            for at in self.held:
                self.endpoint.cas(self.node_locks.word(at), self.client.ident, 0)
        self.held = []

    def _unlock(self) -> None:
        for at in self.held:
            self.node_locks.release(at)
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
        self._unlock()
        self.endpoint.wait()
        self._finish()
        return DONE

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Node and size of all memory that is needed."""
        for _ in range(self.wanted):
            yield self.memory_node(), self.trees.node_size
        for staging, _, key, value in self.extents:
            yield self.memory_node(), staging.store.objects.size_of(key, value)

    def replenish(self, sparing: int = 0, update: bool = False) -> None:
        """Have memory ready for all of it, as `have_ready` does."""
        self.have_ready([(self.allocator, *each) for each in self._sizes()], sparing, update)

    def _prepare(self) -> bool:
        """Have all memory in the client journal; False: it is not ready."""
        if not all(self.new_extents()):
            return False
        self.pairs += [EXTENT_PAIR] * len(self.extents)
        for index, pair in enumerate(self.pairs):
            self.client.retarget(index, self.link | pair)
        return True

    def _lock_rest(self) -> bool:
        """Lock and validate the nodes that are not locked yet; False: there is a conflict."""
        changed = {node.at for node in self.all_written()}
        rest = sorted(changed - self.fresh.keys() - self.read_under_lock)
        for at in rest:
            if not self.node_locks.acquire(at):
                self.busy = self.store.leaf.at = at
                self.endpoint.wait()
                return False
            self.held.append(at)
        valid = all(self._is_valid(at) for at in rest)
        if rest:
            self.endpoint.wait()
        return valid

    def _is_valid(self, at: int) -> bool:
        """Whether a node that we have locked is as it was read."""
        meta = self.endpoint.read(at, META_SIZE)
        return int.from_bytes(meta[8 * VERSION :], "little") == self.version_of(at)

    def _decide(self) -> list[tuple[int, Node]]:
        """Begin to take effect. The nodes, in the order in which they are to be written."""
        for reference in self.dropped:
            self.client.log(reference, self.link | EXTENT_PAIR)
        for at in self._going():
            self.client.log(self.trees.reference(at), self.link | NODE_PAIR)
        return self._in_order()

    def _write_back(self, nodes: list[tuple[int, Node]]) -> None:
        """Write nodes in place."""
        for at, node in nodes:
            # LINEARIZES: put, insert, update and delete, by the last word of the leaf
            node.put(at)
            # CRASH(node-written): locked; other nodes of the same change may be as before.

    def _going(self) -> list[int]:
        """The nodes that are given up."""
        return [node.at for node in self.all_written() if node.page is None]

    def _in_order(self) -> list[tuple[int, Node]]:
        """All nodes with their new contents, in the order in which they are to be written."""
        staying = [(node.at, node.page) for node in self.all_written() if node.page is not None]
        staying.sort(key=lambda pair: (pair[0] not in self.fresh, pair[1].level))
        nodes: list[tuple[int, Any]] = [*staying]
        for at in self._going():
            node: Any = self.trees.blank().page
            node.reset(GONE, b"", None, 0)
            nodes.append((at, node))
        for at, node in nodes:
            node.words[VERSION] = self.version_of(at)
            locked = self.node_locks.in_nodes and at not in self.fresh
            node.advance(at, self.client.ident if locked else 0)
        return nodes

    def _finish(self) -> None:
        """Take linked memory out of the client journal, and free unlinked memory."""
        for index in range(self.client.held - 1, -1, -1):
            if index < len(self.pairs):
                self.client.drop(index)
            else:
                self.client.release(index)
