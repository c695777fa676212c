"""The pin of a remote client, and its copies of control words: `LastingPin`.

Over a network each look at the control segment is a message. So a remote client looks only once in
a quarter of a lease. Remote clients are those of servers (shm/net/), and the simulator's.

Rules
    - The pin lasts over operations. An operation has no verb on it, except that the first one to
      begin a quarter of a lease after the client pinned gives the pin up and pins anew, with the
      epoch of then. An operation that ends later than that, or with an error, or leaves the client
      journal to be settled, ends as that of any other client: it gives the pin up.
    - The client gives it up, too, before whatever it does outside of operations (`Client.begin`),
      since it may wait there for pins, and when it is idle (`Client.idle`, which the simulator
      calls when a client has done its program; over a network the thread of its lease does that).
    - The words in COPIED (layout.py) are copies, as read by the operation that needed them
      first. They are good until the pin is given up. The client reads them again after each wait.

Why a copy is good while the pin lasts. A client that changes DROPS, VIEW or the pressure closes a
period then, and relies on its change only when no client is pinned in that period any more, or is
parked. A copy was read under a pin. So either that pin is of a later period, and the copy has the
change; or the client that made it waits for the pin, as it does for an operation. There is no other
lease on copies, and no other wait. EPOCH, too: nothing that was unlinked since the client pinned is
used again while the pin lasts, whatever the epoch is by now. Only HOLDS is relied upon at once. So
a client that sets its bit there waits for the remote clients (`await_copies`) until each has pinned
anew, has shown by the count in its pin that it has no copy (`Client.go_on`), is parked, or is dead.

A pin of one quarter of a lease looks like that of a client that stands still for so long. That is
no harm: others judge after a whole lease, and each new pin has another count. The age of a pin is
at most a quarter of a lease and one operation, unless its client stands still; so this bounds how
long memory waits for a remote client that is at work.

Words in the client's slot
    locked     REMOTE, from before it is LIVE: no client here sees a lock of it; so the clients for
               which `await_copies` waits are known
    changes    odd as long as it is a client: it does not count its changes, which would be two
               messages for each, so no client relies on the sum (stores/transactions/changes.py)

When others have declared the client dead, its pin does not count any more, and memory that it knows
is used again. The guard refuses what it changes (`Endpoint.guard`). For what it reads there are the
times: a client is declared dead when its pin and its progress have been seen to be the same for a
lease. It took the time before it pinned, and no look at its pin can be earlier. So within a quarter
of a lease from then no client has declared it dead. An operation that ends later looks at its state
word, and raises ClientError in place of its result if that is another one.

Crash states
    - A client that is killed between operations leaves a pin, with an empty client journal. As
      after a kill in an operation, the pin counts until the client is recovered.
    - A client that is paused beyond its lease, in an operation or between two, is declared dead and
      recovered when others wait for it. When it goes on it makes no step (guard). An operation that
      was begun before the pause does not return; the next one pins anew, and raises ClientError.
    - A client that changes DROPS or VIEW and dies while it waits: the drop is finished by the next
      client, which waits anew (stores/contents.py); so is the change of the view (view.py). One
      that sets its bit in HOLDS and dies has written no record yet: recovery finds none, and the
      bit costs those that free objects a look.
    - The epoch goes on while the client is idle: it gives its pin up unasked within a quarter of a
      lease. If its process stands still, so that it cannot, it is one that is paused.

The client journal is not covered: it lies in the control segment, and its writes are messages, for
which no client waits. A warm insert or update of `race` has them in two of its phases, and one in
its background (`python -m pytest tests/stores/test_remote_exchanges.py -k journal` has those of the
other kinds). They would cost no message of their own if each pair lay beside its object, on the
node with the object's used bit, in a row of 23 pairs for each client slot there:
    - A pair is posted before the used bit is, so that node's order is the one that recovery needs.
      It is emptied behind the used bit that it frees. Recovery reads the rows on all nodes.
    - A node that is lost takes pairs and objects away together. (If the pairs lay on the node that
      an operation changes first, they would be lost with other nodes' objects in use.)
That is enough where a link is on the node of its object: in a hash table without replicas, a tree,
a channel. It is not enough for two sorts of pairs, which would stay in the control segment:
    - A pair that has to outlast verbs on *other* nodes: the log of a transaction, for its locks;
      replicas. A word of the control segment is written when all completions are there, but the
      words of a node know nothing of the other nodes' completions.
    - One whose link is on another node than the object. It would have to be there a phase before
      the CAS of the link.
It is not built, as every node of every pool would need room for the rows, 368 bytes for each client
slot, for clients that few pools have; and a name of a link that is not an address
(REPLICATED) does not say whether all that it stands for is on one node.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from limpet.shm.clients.epoch import pins
from limpet.shm.endpoint.layout import DROPS, REMOTES, slot_address
from limpet.shm.endpoint.slots import CHANGES, LOCKED, PARKED, PIN, REMOTE

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.shm.clients.client import Client
    from limpet.shm.clients.epoch import Pinned
    from limpet.shm.clients.membership import Membership


class LastingPin:
    """The pin of one remote client. Its methods are called while other threads are kept out."""

    def __init__(self, client: Client, membership: Membership) -> None:
        self.client = client
        self.endpoint: Any = client.endpoint
        self.membership = membership
        self.quarter_s = membership.lease_s / 4
        self.since_s = 0.0
        """A time before the client pinned; inf: it has not since it has joined."""
        self.copies: dict[int, int] = {}
        """The copies of control words, by address."""
        self.lasts = False
        """Whether the client is pinned since then, and has not given the pin up."""
        self.tell_loss: Callable[[], None] = lambda: None
        """Raises ClientError, once to each thread, if this client follows one of this handle that
        was lost with its server, and may have held locks of that thread; set by the pool."""

    def join(self) -> None:
        """The client has a slot, which says already that it is remote (joining.py)."""
        self.forget()
        # The thread of the lease keeps off until the first operation: a client that joins looks at
        # others outside of operations.
        self.since_s = math.inf
        at = self.client.slot
        self.endpoint.store(at + CHANGES, self.endpoint.load(at + CHANGES) | 1)
        # ORDER: before it reads HOLDS (holds.py).
        self.endpoint.fetch_or(DROPS, REMOTES)

    def leave(self) -> None:
        """The client gives up its slot, in which it has changed nothing uncounted any more."""
        self.endpoint.faa(self.client.slot + CHANGES, 1)

    def begin(self) -> None:
        """Have a pin for the operation that begins: the one that lasts, or a new one."""
        self.tell_loss()
        if not self.lasts or not self._is_young():
            self.give_up()
            # ORDER: before the pin.
            since_s = self.membership.now()
            self.client.pin()
            self.since_s = since_s
            self.lasts = True
        self.endpoint.copies = self.copies

    def end(self) -> bool:
        """End the operation; whether the pin lasts. If not, the client unpins."""
        self.endpoint.copies = None
        if (
            self.client.held
            or self.endpoint.met_loss
            or self.endpoint.durable
            or sys.exc_info()[0] is not None
            # ORDER: last: all reads are done.
            or not self._is_young()
        ):
            self.lasts = False
        return self.lasts

    def give_up(self) -> None:
        """Unpin, outside of an operation. ClientError: the client was declared dead."""
        self.tell_loss()
        if self.since_s == math.inf:
            # The thread of the lease sends what this call may leave to be sent, as the pin's end.
            self.since_s = self.membership.now()
        if self.lasts:
            self.client.unpin()

    def forget(self) -> None:
        """The client pins or unpins, by itself."""
        self.lasts = False
        self.endpoint.copies = None
        self.copies.clear()

    def _is_young(self) -> bool:
        """Whether no other client can have declared this one dead since it pinned."""
        return self.membership.now() - self.since_s < self.quarter_s


def await_copies(membership: Membership) -> None:
    """Wait, in an operation, until no remote client has copies that it has read before."""
    endpoint = membership.endpoint
    left = [
        pinned
        for pinned in pins(endpoint)
        if endpoint.load(slot_address(pinned.slot) + LOCKED) == REMOTE
        and not membership.ours(pinned.slot)
    ]
    attempt = 0
    while left := [pinned for pinned in left if _may_have_copies(membership, pinned)]:
        attempt += 1
        membership.progress()
        endpoint.pause(attempt)


def _may_have_copies(membership: Membership, pinned: Pinned) -> bool:
    at = slot_address(pinned.slot)
    endpoint = membership.endpoint
    if endpoint.load(at + PIN) != pinned.pin or endpoint.load(at + PARKED):
        return False
    if membership.dead(pinned.slot, pinned.word):
        return False
    return not membership.end_if_still("copies", pinned, "copies of control words")
