"""The commit of a change of a tree by way of a log (DrTM+H; sherman.py has the steps)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.baselines.dtx.sherman_log import NodeLog
from limpet.stores.entry_log import Entry, log_size
from limpet.stores.sherman.in_place_commit import InPlaceCommit
from limpet.stores.sherman.in_place_node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator


class LoggedCommit(InPlaceCommit):
    """The write set of one change, and its commit by way of a log."""

    def begin(self, link: int) -> None:
        super().begin(link)
        self.log: NodeLog | None = None

    def _sizes(self) -> Iterator[tuple[int, int]]:
        size = max(self.trees.node_size, log_size(self._entry_count()))
        yield self.memory_node(), size
        for _ in range(len(self._changed()) or 1):
            yield self.memory_node(), self.trees.node_size
        yield from super()._sizes()

    def _changed(self) -> list[int]:
        return [node.at for node in self.all_written() if node.at not in self.fresh]

    def _entry_count(self) -> int:
        return self.changed + len(self.extents) + len(self.dropped)

    def _prepare(self) -> bool:
        """Have all memory in the client journal, and then in the log."""
        news = [*self.fresh.values(), *self.new_extents()]
        sizes = self._sizes()
        reference = self.allocator.allocate(*next(sizes), 1)
        place = self.client.held - 1
        images = [self.allocator.allocate(*next(sizes), 1) for _ in self._changed()]
        if not all([*news, reference, *images]):
            return False
        log = NodeLog(self.store, reference)
        log.take_up(place, self.link)
        self.log = log
        for index, new in enumerate(news):
            log.add(Entry(0, 0, new), index)
        for old in self.dropped:
            log.add(Entry(0, old, 0))
        changed = [pair for pair in self._in_order() if pair[0] not in self.fresh]
        for index, (at, _) in enumerate(changed):
            old = self.trees.reference(at) if at in self._going() else 0
            log.add(Entry(at, old, images[index]), place + 1 + index)
        self.changes = [(*pair, image) for pair, image in zip(changed, images, strict=True)]
        return True

    def _lock_rest(self) -> bool:
        locked = super()._lock_rest()
        self.store.pool.membership.progress()
        return locked

    def _decide(self) -> list[tuple[int, Node]]:
        assert self.log is not None
        # CRASH(node-locked): not decided; recovery unlocks.
        for at in self.fresh:
            node: Any = self.page_at(at)
            node.put(at)
        for _, changed, image in self.changes:
            changed.put_image(image & ADDRESS_MASK)
        self.log.decide()
        # CRASH(decided): recovery writes the nodes in place.
        self.endpoint.wait()
        return [(at, node) for at, node, _ in self.changes]

    def _finish(self) -> None:
        assert self.log is not None
        # CRASH(unlocked): all is changed; recovery frees the dropped memory.
        self.log.close(True)

    def give_up(self) -> None:
        """End the change before it takes effect; it leaves nothing behind."""
        if self.log is None:
            super().give_up()
            return
        self.unlock_all()
        self.log.close(False)

    def abandon(self) -> None:
        # ORDER: a log in the client journal is carried out or undone first, as the operation ends;
        # that step reads the locks, and gives them back.
        if self.log is None:
            super().abandon()
