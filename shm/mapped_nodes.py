"""The memory of a pool's nodes, as one process has it mapped: `MappedNodes`.

Nodes that were added to the pool (shm/growth.py) are mapped by `map_ring`.
A node whose memory is lost is given other memory (shm/replacement.py), of the next generation.
A verb compares the node's state word with the one of the mapping, and raises NodeFailed where they
differ; then `renew` maps the new memory, and every handle of a store is told.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from limpet.shm.backends import node as nodes
from limpet.shm.backends.inventory import unlink_generations
from limpet.shm.backends.name import held, require_ours
from limpet.shm.endpoint.layout import CONTROL_NODE, NodeLayout
from limpet.shm.endpoint.states import IN_SERVICE, generation_of, node_word, state_of
from limpet.shm.errors import ClientError, LimpetError, NodeFailed, PoolNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from limpet.shm.endpoint.fabric import Endpoint
    from limpet.shm.endpoint.states import Ring
    from limpet.shm.parameters import PoolParameters
    from limpet.shm.replicas.view import View


class MappedNodes:
    """The mapped `segments`, the control segment last, and `endpoint`, which works on them.

    `handles`: of stores; `replaced` of each is called when a node has other memory.
    """

    def __init__(
        self,
        url: str,
        uuid: bytes,
        parameters: PoolParameters,
        options: nodes.NodeOptions,
        endpoint: Endpoint,
        segments: list[nodes.MemoryNode],
        handles: Iterable[Any],
    ) -> None:
        self.url = url
        self.uuid = uuid
        self.parameters = parameters
        self.options = options
        self.endpoint = endpoint
        self.segments = segments
        self.handles = handles
        self.replaced: Callable[[int], None] = lambda node: None
        """Called when a node has new memory, before the handles are told; set by the pool."""

    def attach_all(self) -> None:
        """Attach all of them to the endpoint."""
        for segment in self.segments:
            self.attach(segment, node_word(segment.generation, IN_SERVICE))

    def attach(self, segment: nodes.MemoryNode, state: int) -> None:
        """Use the segment as long as its node has this state word."""
        parameters = self.parameters
        whole = parameters.coherent or segment.index == CONTROL_NODE
        coherent = None if whole else parameters.coherent_bytes
        fd = segment.watched_fd
        self.endpoint.attach(segment.index, segment.map, segment.size, coherent, state, fd)

    def renew(self, view: View) -> None:
        """Map the new memory of nodes that were replaced. Raises NodeFailed when it cannot be."""
        for node, word in enumerate(view.words()):
            while state_of(word) == IN_SERVICE and word != self.endpoint.expected(node):
                try:
                    segment = self.open(node, generation_of(word))
                except ClientError:
                    raise  # we have no descriptor for it, and it is well
                except LimpetError as error:
                    before, word = word, view.word(node)
                    if word != before:
                        continue  # it is lost again, or was replaced again
                    raise NodeFailed(node, f"its new memory cannot be used: {error}") from error
                self.use(segment, word)
                word = view.word(node)

    def map_ring(self, ring: Ring, view: View) -> None:
        """Map the nodes in service of a ring that was added, as far as they are not yet mapped.
        Raises NodeFailed when one cannot be."""
        for node in ring.nodes:
            word = view.word(node)
            if state_of(word) != IN_SERVICE or any(node == each.index for each in self.segments):
                continue
            try:
                segment = self.open(node, generation_of(word))
            except ClientError:
                raise
            except LimpetError as error:
                raise NodeFailed(node, f"its memory cannot be used: {error}") from error
            self.endpoint.release(node)
            self.attach(segment, word)
            # ORDER: last; a segment that is here is attached.
            self.segments.insert(0, segment)

    def open(self, node: int, generation: int) -> nodes.MemoryNode:
        """The memory of that generation that a node was given."""
        control: Any = self.segments[-1]
        if control.remote:
            found: nodes.MemoryNode = control.sibling(node, self.parameters.node_size, generation)
            return found
        segment, _ = nodes.open_(
            nodes.parse_url(self.url),
            node,
            uuid=self.uuid,
            size=self.parameters.node_size,
            options=self.options,
            generation=generation,
        )
        return segment

    def make(self, node: int, generation: int) -> nodes.MemoryNode:
        """New memory for a node, zero-filled where that matters; what it had is given up.

        PoolNotFound: the pool was destroyed. PoolIncomplete: another process is about to do that.
        """
        control: Any = self.segments[-1]
        if control.remote:
            remote: Any = self.open(node, generation)
            endpoint: Any = self.endpoint
            endpoint.make(remote)
            return remote  # type: ignore[no-any-return]
        location = nodes.parse_url(self.url)
        with held(location) as control:
            require_ours(location, control, self.uuid)
            unlink_generations(location, node)
            # CRASH(node-created): a segment that no state word names; the next replacement, or
            # addition of nodes, removes it.
            options = self.options
            if node >= self.parameters.nodes and isinstance(options.numa_node, tuple):
                options = dataclasses.replace(options, numa_node=None)
            made = nodes.create(
                location,
                node,
                self.parameters.node_size,
                options=options,
                generation=generation,
            )
            try:
                nodes.back(made, NodeLayout.of(self.parameters).blocks)
            except BaseException:
                nodes.discard(made)
                raise
            return made

    def finish(self, segment: nodes.MemoryNode) -> None:
        """Write the superblock of what `make` made. PoolNotFound, PoolIncomplete as of `make`."""
        if segment.remote:
            return  # it has one
        location = nodes.parse_url(self.url)
        with held(location) as control:
            # A device keeps what is written there after the pool is destroyed.
            require_ours(location, control, self.uuid)
            nodes.finish(segment, self.parameters, self.uuid)

    def discard(self, segment: nodes.MemoryNode) -> None:
        """Take back what `make` made, and no client has used."""
        if segment.remote:
            return  # the next replacement removes it
        location = nodes.parse_url(self.url)
        try:
            with held(location) as control:
                require_ours(location, control, self.uuid)
                nodes.discard(segment)
        except PoolNotFound:
            segment.close()  # it was destroyed with its pool

    def use(self, segment: nodes.MemoryNode, state: int) -> None:
        """Use this segment in place of the one that its node had."""
        self.unmap(segment.index)
        self.segments.insert(0, segment)
        self.attach(segment, state)
        self.replaced(segment.index)
        for handle in list(self.handles):
            handle.replaced(segment.index)

    def unmap(self, node: int) -> None:
        """Unmap what we have of a node."""
        self.endpoint.release(node)
        for segment in [segment for segment in self.segments if segment.index == node]:
            self.segments.remove(segment)
            segment.close()
