"""The commit of a change of a tree by way of a log (DrTM+H; sherman.py has the steps)."""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.baselines.dtx.log import NodeLog
from limpet.stores.sherman.in_place_commit import InPlaceCommit
from limpet.stores.sherman.in_place_trees import InPlaceNode
from limpet.stores.transactions.entry_log import LogEntry, log_size


class LoggedCommit(InPlaceCommit):
    """The write set of one change, and its commit by way of a log."""

    def __init__(self, store: Any) -> None:
        self.entries_wanted = 0
        """For how many entries the log is to have room, as far as is known."""
        InPlaceCommit.__init__(self, store)

    def begin(self, link: int) -> None:
        InPlaceCommit.begin(self, link)
        self.opened: NodeLog | None = None
        """The log, before the client journal names it as one."""
        self.log: NodeLog | None = None

    def open(self) -> None:
        """Take memory for the log, and post its header with what is read next. In the operation,
        which has taken no memory yet."""
        reference: int = self.allocator.allocate(self.memory_node(), self._log_size(), 1)
        if reference:
            self.opened = NodeLog(self.store, reference)
            self.opened.open(self.client.ident)

    def _sizes(self) -> list[int]:
        images = [self.trees.node_size] * (self._changed() or 1)
        return [self._log_size(), *images, *InPlaceCommit._sizes(self)]

    def _changed(self) -> int:
        """How many nodes that are there already are changed."""
        count = 0
        for node in self.all_written():
            if node.at not in self.fresh:
                count += 1
        return count

    def _log_size(self) -> int:
        """Bytes of the log."""
        return max(self.trees.node_size, log_size(self.entries_wanted))

    def _prepare(self) -> bool:
        """Allocate all memory, which the client journal names, and post the log's entries."""
        news = list(self.fresh.values())
        if self.extents:
            news += self.new_extents()
        node = self.memory_node()
        images: list[int] = []
        for _ in range(self._changed()):
            images.append(self.allocator.allocate(node, self.trees.node_size, 1))
        entries = self.changed + len(self.extents) + len(self.dropped)
        room = self._log_size()
        self.entries_wanted = max(self.entries_wanted, entries)
        log = self.opened
        if log is None or 0 in images or 0 in news or log_size(entries) > room:
            return False
        log.take_up(0, self.link)
        self.log = log
        for index in range(len(news)):
            log.note(LogEntry(0, 0, news[index]))
        if self.dropped:
            for dropped in self.dropped:
                log.note(LogEntry(0, dropped, 0))
        going = self._going()
        changes: list[tuple[int, InPlaceNode, int]] = []
        for at, changed in self._in_order():
            if at in self.fresh:
                continue
            image = images[len(changes)]
            old = self.trees.reference(at) if at in going else 0
            log.note(LogEntry(at, old, image))
            changes.append((at, changed, image))
        self.changes = changes
        return True

    def _lock_rest(self) -> bool:
        assert self.log is not None
        locked = InPlaceCommit._lock_rest(self)
        self.log.named()
        self.membership.progress()
        return locked

    def _decide(self) -> list[tuple[int, InPlaceNode]]:
        assert self.log is not None
        # CRASH(node-locked): not decided; recovery unlocks.
        if self.fresh:
            for at in self.fresh:
                node: Any = self.page_at(at)
                node.put(at)
        nodes: list[tuple[int, InPlaceNode]] = []
        changed: InPlaceNode
        for at, changed, image in self.changes:
            changed.put_image(image & ADDRESS_MASK)
            nodes.append((at, changed))
        self.log.decide()
        # CRASH(decided): recovery writes the nodes in place.
        self.endpoint.wait()
        return nodes

    def _finish(self) -> None:
        assert self.log is not None
        # CRASH(unlocked): all is changed; recovery frees the dropped memory.
        self.log.close(True)

    def give_up(self) -> None:
        """End the change before it takes effect; it leaves nothing behind."""
        if self.log is None:
            InPlaceCommit.give_up(self)
        else:
            self.unlock_all()
            self.log.close(False)

    def abandon(self) -> None:
        # ORDER: a log in the client journal is carried out or undone first, as the operation ends;
        # that step reads the locks, and gives them back.
        if self.log is None:
            InPlaceCommit.abandon(self)
