"""`Channel`, the base of all shared objects, and its participants (LOCO section 4).

A channel is named, and made of memory regions and sub-channels. Each process that uses it makes an
endpoint with the same name; a sub-channel's name is its parent's, `/` and its own, and a region's
that of its channel, `.` and its own: "start/sst/ov0", "start/sst.participants". The first process
to come makes a region; the others find it.

Participants. In the paper an endpoint sends a join message to its peers, and is answered by a
connect message. Here memory is passive: a region `.participants` has a word for each participant,
its client id, 0 when it is free. To join is to write the own id into one, by CAS: its number is the
participant's *row*. CLAIMED is set beside the id until `joined` has prepared the row. To leave is
to clear the word. A participant that looks (`refresh`) runs the callbacks `on_join` and `on_leave`
for the changes since its last look. A client that joins takes the row of a dead client over when no
other row is free; until then the row names the dead client.

An operation on a channel runs between `enter` and `leave`: pinned, so that the channel's memory is
not used again if the channel is removed, and alone in its process. It never waits in there: it
looks, leaves, sleeps (waiting.py), and looks again.

A channel without parent has one part more, `..name`, on the next memory node. When the channel's
own node is lost, that part shows that there was a channel of this name (regions/catalogue.py).

A channel and its parts have one `Mark`, which knows the nodes that any of them has memory on. When
such a node has been replaced, other objects are at our addresses, and the mark raises NodeFailed
from then on.

`enter` costs no round trip. The pin reads the word DROPS, which a client that removes a region
counts up after it has cleared the mark, and before it unlinks the region (regions/table.py). So if
DROPS is as it was when this handle last saw the mark, no region of the channel was used again
before this operation has pinned. Only after another removal the handle looks at the mark.
"""

from __future__ import annotations

import contextlib
from typing import Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import former
from limpet.shm.errors import ChannelFull, ChannelRemoved, NodeFailed
from limpet.shm.late import late
from limpet.stores.channels.layout import CLAIMED, MASK
from limpet.stores.channels.regions.region import Links


class Mark:
    """The address of a channel's mark, and its value as long as the channel is there."""

    def __init__(self) -> None:
        self.address = 0
        self.number = 0
        self.drops = MASK
        """The word DROPS when this handle last saw the mark; at first, no such word."""
        self.nodes: set[int] = set()
        self.gone: set[int] = set()
        """Those that have been replaced since."""

    def replaced(self, node: int) -> None:
        """`node` has new memory."""
        if node in self.nodes:
            self.gone.add(node)
            self.address = former(node << NODE_SHIFT, node)
            self.doubt()

    def doubt(self) -> None:
        """Look at the mark when the next operation begins."""
        self.drops = MASK


class Operation:
    """One operation of a channel, as a context manager: see `Client.__enter__`."""

    def __init__(self, channel: Channel, anyhow: bool = False) -> None:
        """`anyhow`: also if the channel's name is lost with its node."""
        self.channel = channel
        self.anyhow = anyhow

    def __enter__(self) -> None:
        try:
            self.channel.enter()
        except NodeFailed:
            if not self.anyhow:
                raise
            self.channel.client.enter()
        self.channel.client.note_frame()

    def __exit__(self, *error: object) -> None:
        self.channel.endpoint.frame = None
        self.channel.leave()


class Channel:
    """This process's endpoint of a shared object. May be used by several threads."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        size: int = 0,
        kind: str = "",
        node: int | None = None,
        of: int | None = None,
        **parameters: Any,
    ) -> None:
        """`size`: bytes of memory of its own, at `address`. `node`: the memory node for them.

        A channel without parent gives its `kind` and its `parameters`; `of` is the one that users
        call its `size`. Raises StoreMismatch when there is another one of that name, StoreFull,
        NodeFailed.
        """
        self.manager = manager
        self.parameters: dict[str, Any] = {}
        """The parameters that `manager.open` was given."""
        self.pool = manager.pool
        self.client = manager.pool.client
        self.endpoint = manager.pool.endpoint
        self.membership = manager.pool.membership
        self.parent = parent
        self.name = name if parent is None else f"{parent.name}/{name}"
        self.address = 0
        self.rows = 0
        self.seats = 0
        """Address of the participants' words; 0: there are none."""
        self.own_row = 0
        self.joined_as = 0
        self.seen: dict[int, int] = {}
        self.marked = Mark() if parent is None else parent.marked
        if parent is None:
            manager.follow(self.marked)
            if of is not None:
                parameters["size"] = of
            self.address = self._obtain(
                self.name, size, node=node, kind=kind, parameters=parameters
            )
            self._attest()
        elif size:
            self.address = self._obtain(self.name, size, node=node, of=self.mark)

    def region(
        self, name: str, size: int, node: int | None = None, links: Links | None = None
    ) -> int:
        """Address of a region of this channel, zeros at first. Not within an operation.

        `links`: the places in it of links to objects (regions/catalogue.py).
        """
        return self._obtain(f"{self.name}.{name}", size, node=node, of=self.mark, links=links)

    def _obtain(self, name: str, size: int, **options: Any) -> int:
        """Address of a region; from then on the mark watches its node."""
        while True:
            replacements = self.manager.replacements
            found = self.manager.region(name, size, **options)
            self.marked.nodes.update(
                (found.address >> NODE_SHIFT, found.mark_address >> NODE_SHIFT)
            )
            if not self.marked.number:
                self.marked.address, self.marked.number = found.mark_address, found.mark
            # ORDER: a node that is replaced from now on is found among those of the mark.
            if self.manager.replacements == replacements:
                break
        self._still_there()
        return int(found.address)

    def _attest(self) -> None:
        """Make the part `..name`; not while its node is lost."""
        nodes = self.pool.parameters.nodes
        if nodes > 1:
            beside = ((self.mark_address >> NODE_SHIFT) + 1) % nodes
            with contextlib.suppress(NodeFailed):
                self.manager.region(f"{self.name}..name", 0, of=self.mark, node=beside, anew=True)
            self._still_there()

    def _still_there(self) -> None:
        """Raise ChannelRemoved if the channel was removed before a part was made."""
        # The client that removes it may have listed its parts, and not unlinked any of them yet.
        self.marked.doubt()
        try:
            self.enter()
        except ChannelRemoved:
            # The process that removed it may not have met this part.
            self.manager.clear(self.name)
            raise
        self.leave()

    @property
    def mark_address(self) -> int:
        """Address of the mark."""
        return int(self.marked.address)

    @property
    def mark(self) -> int:
        """The mark as long as the channel is there."""
        return int(self.marked.number)

    def enter(self) -> None:
        """Begin an operation. Raises ChannelRemoved."""
        self.client.enter()
        if self.client.drops != self.marked.drops or self.endpoint.failed(self.marked.address):
            self._find_mark()

    def _find_mark(self) -> None:
        """Look whether the channel is there; if it is not, end the operation."""
        marked = self.marked
        there = False
        try:
            there = self.endpoint.load(marked.address) == marked.number
        finally:
            if not there:
                self.client.leave()
        if not there:
            raise ChannelRemoved(f"the channel {self.name!r} of {self.pool.url} was removed")
        # ORDER: the word DROPS was read by the pin, before the mark.
        marked.drops = self.client.drops

    def removed(self) -> bool:
        """Whether this channel was removed, or a part of it is lost; there may be another channel
        of its name by now."""
        self.client.enter()
        try:
            return self.endpoint.load(self.marked.address) != self.marked.number
        except NodeFailed:
            return True
        finally:
            self.client.leave()

    def leave(self) -> None:
        """End an operation, however it went."""
        self.client.leave()

    def operation(self, anyhow: bool = False) -> Operation:
        """`with channel.operation():` is `enter` and `leave`, for Python that is not compiled.
        `anyhow`: also if the channel's name is lost with its node."""
        return Operation(self, anyhow)

    # ---- participants -----------------------------------------------------------------------

    def take_part(self, participants: int) -> None:
        """Become a participant, one of at most so many at a time. Raises ChannelFull."""
        self.open_rows(participants)
        self.enter()
        try:
            self.row()
        finally:
            self.leave()
        self.refresh()

    def open_rows(self, participants: int) -> None:
        """Make rows for so many participants, without taking one."""
        if not self.seats:
            self.rows = participants
            self.seats = self.region("participants", 8 * participants)

    def row(self) -> int:
        """Our row. In an operation; a forked child joins again, as does a client declared dead."""
        mine = self.client.ident
        while self.joined_as != mine:
            self.own_row = self._claim()
            self.joined()
            # ORDER: by CAS: if we were declared dead meanwhile, another client may have the row.
            seen = self.endpoint.cas(self.seats + 8 * self.own_row, mine | CLAIMED, mine)
            if seen & ~CLAIMED == mine:
                self.joined_as = mine
        return self.own_row

    def joined(self) -> None:
        """Called in an operation when `own_row` is ours, before we are a participant; once more, if
        the row is as a forgotten endpoint of this process has left it."""

    def vacates(self, row: int, last: bool) -> bool:
        """Whether the row of a dead participant may be taken over; `last`: else there is none.

        For derived classes; in an operation. It may free the row itself.
        """
        return True

    def suits(self, row: int, level: int) -> bool:
        """Whether a free row is good enough: first only the best ones (`level` 0), at last any (2).
        For derived classes; in an operation."""
        return True

    def _claim(self) -> int:
        endpoint, mine = self.endpoint, self.client.ident
        for row in range(self.rows):
            seat = self.seats + 8 * row
            if endpoint.load(seat) & ~CLAIMED == mine:
                return row  # of a forgotten endpoint, or one whose `joined` has failed
        for level in range(3):
            for row in range(self.rows):
                seat = self.seats + 8 * row
                if endpoint.load(seat) or not self.suits(row, level):
                    continue
                # CRASH(joined): a row with the id of a dead client; the next one takes it over.
                if endpoint.cas(seat, 0, mine | CLAIMED) == 0:
                    return row
            for row in range(self.rows):
                if self._take_over(row, level == 2):
                    return row
        raise ChannelFull(
            f"{self.name!r} of {self.pool.url} has {self.rows} participants, as many as it was "
            "made for; make it with more, or close some"
        )

    def _take_over(self, row: int, last: bool) -> bool:
        """Take a row that is free, or that of a dead participant; False: it cannot be taken."""
        endpoint, mine = self.endpoint, self.client.ident
        seat = self.seats + 8 * row
        ident = endpoint.load(seat)
        if self.lives(ident & ~CLAIMED):
            return False
        # A claimed row was vacated before.
        if ident and not ident & CLAIMED and not self.vacates(row, last):
            return False
        there = endpoint.load(seat)
        return there in (0, ident) and endpoint.cas(seat, there, mine | CLAIMED) == there

    def resign(self) -> None:
        """Stop being a participant."""
        self.enter()
        try:
            if self.joined_as == self.client.ident:
                self.endpoint.cas(self.seats + 8 * self.own_row, self.joined_as, 0)
            self.joined_as = 0
        finally:
            self.leave()

    def participants(self) -> dict[int, int]:
        """The client ids in the rows that are taken; some clients may be dead. In an operation."""
        found = {}
        for row in range(self.rows):
            ident = self.endpoint.load(self.seats + 8 * row)
            if ident and not ident & CLAIMED:
                found[row] = ident
        return found

    def refresh(self) -> dict[int, int]:
        """`participants`; runs the callbacks for those that came or went since the last time."""
        self.enter()
        try:
            now = self.participants()
        finally:
            self.leave()
        before, self.seen = self.seen, now
        for row, ident in before.items():
            if now.get(row) != ident:
                self.on_leave(row, ident)
        for row, ident in now.items():
            if before.get(row) != ident:
                self.on_join(row, ident)
        return now

    def on_join(self, row: int, ident: int) -> None:
        """A participant has joined; for derived classes."""

    def on_leave(self, row: int, ident: int) -> None:
        """A participant has left, or its row was taken over; for derived classes."""

    def lives(self, ident: int) -> bool:
        """Whether that client lives, as far as this process knows. In an operation or not."""
        return ident == self.client.ident or bool(ident and self.membership.lives(ident))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name; the process that unpickles it opens it with the same parameters."""
        if self.parent is not None:
            raise TypeError(f"{self.name!r} is a part of a channel; pickle {self.parent.name!r}")
        return _reopened, (self.pool, type(self), self.name, self.parameters)

    def title(self) -> str:
        """The channel in messages."""
        return f"<{type(self).__name__} {self.name!r} of {self.pool.url}>"

    def __repr__(self) -> str:
        """The title, and the state (states.py), if it can be looked at now."""
        state = ""
        if self.parent is None:
            state = late("limpet.stores.channels.states").described(self.pool, self.name)
        return self.title().removesuffix(">") + (f": {state}>" if state else ">")


def _reopened(pool: Any, cls: Any, name: str, parameters: dict[str, Any]) -> Any:
    """Unpickle a channel."""
    return pool.channels.open(cls, name, **parameters)
