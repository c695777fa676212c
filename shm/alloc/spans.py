"""The objects of a client that take whole blocks: `Span`, and all that it has, `Spans`.

A span is a run of adjacent blocks with one object. It is `ready` until the object is taken; when
its used bit is clear again, the period is closed (clients/epoch.py), and once that is over the span
is ready for another object of as many blocks, or the blocks are given back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.words import LARGE_CLASS, replica_bits
from limpet.shm.errors import NodeFailed

if TYPE_CHECKING:
    from limpet.shm.alloc.claims import Claims


class Span:
    """A run of whole blocks of this client's, for one object."""

    def __init__(self, node: int, first: int, blocks: int, replicas: int) -> None:
        self.node = node
        self.first = first
        self.blocks = blocks
        self.replicas = replicas
        self.ready = True
        self.pending_epoch = -1
        self._reference = 0

    def reference(self, heap: Any) -> int:
        """Reference to the object."""
        if not self._reference:
            bare: int = heap.reference(self.node, self.first, LARGE_CLASS, 0)
            self._reference = bare | replica_bits(self.replicas)
        return self._reference

    @property
    def shape(self) -> tuple[int, int, int]:
        """Its node, its number of blocks, and of replicas."""
        return self.node, self.blocks, self.replicas

    def serves(self, node: int, blocks: int, replicas: int) -> bool:
        """Whether its object is free, and has these parameters."""
        return self.ready and self.shape == (node, blocks, replicas)


class Spans:
    """The spans of a client."""

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self.client = claims.client
        self.heap = claims.heap
        self.grace = claims.grace
        self.owned: list[Span] = []

    def take(self, node: int, blocks: int, replicas: int) -> int:
        """A reference to the object of a span, in the client journal; 0: none is ready. Within an
        operation."""
        for span in self.owned:
            if span.serves(node, blocks, replicas):
                reference = span.reference(self.heap)
                # ORDER: first; a span that is ready is given back, or taken again.
                span.ready = False
                self.client.log(reference, 0)
                self.heap.take(reference)
                return reference
        return 0

    def make_ready(self, node: int, blocks: int, replicas: int, count: int, sparing: int) -> bool:
        """Make `count` such objects ready; False: there is no memory for all of them. `sparing`:
        leave so many free blocks of the node."""
        ready = sum(span.serves(node, blocks, replicas) for span in self.owned)
        for span in self._freed():
            if ready < count and span.shape == (node, blocks, replicas):
                # ORDER: the period is over: no client reads the object that was there.
                span.pending_epoch = -1
                span.ready = True
                ready += 1
        if ready >= count:
            return True
        self.release_freed()
        while ready < count:
            first = self.claims.span(node, blocks, replicas, sparing)
            if first is None:
                return False
            self.own(Span(node, first, blocks, replicas))
            self.claims.sight_laggard(min(self.pending(), default=0))
            ready += 1
        return True

    def own(self, new: Span) -> None:
        """Note a span as this client's, in place of its earlier notes on these blocks."""
        known = [s for s in self.owned if (s.node, s.first) != (new.node, new.first)]
        self.owned = [*known, new]

    def forget_taken(self) -> None:
        """Forget the spans that other clients have taken."""
        claims = self.claims
        self.owned = [
            span
            for span in self.owned
            if claims.owns(span.node, span.first, claims.span_word(span.replicas))
        ]

    def pending(self) -> list[int]:
        """The epochs for which spans with a freed object wait."""
        return [span.pending_epoch for span in self.owned if span.pending_epoch >= 0]

    def release_freed(self) -> bool:
        """Give back the blocks of spans whose object was freed, ours and dead clients'."""
        return self._release(self._freed())

    def _freed(self) -> list[Span]:
        """The spans whose object was freed, and is read by no client any more."""
        for span in self.owned:
            if not span.ready and span.pending_epoch < 0:
                try:
                    if not self.heap.used(span.reference(self.heap)):
                        span.pending_epoch = self.grace.close_period()
                except NodeFailed:
                    pass
        horizon = self.grace.horizon()
        return [span for span in self.owned if 0 <= span.pending_epoch < horizon]

    def release_ready(self) -> bool:
        """Give back the blocks of spans without an object."""
        return self._release([span for span in self.owned if span.ready])

    def _release(self, spans: list[Span]) -> bool:
        for span in spans:
            # ORDER: forget the span before it is free, as for a slab (relief.py).
            self.owned.remove(span)
            with contextlib.suppress(NodeFailed):  # then the blocks are gone with it
                self.claims.release(span.node, span.first, self.claims.span_word(span.replicas))
        return bool(spans)
