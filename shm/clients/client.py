"""One client of a pool: its slot in the control segment, its pin, and its journal.

The client journal names the objects of unfinished changes. An object is in it from before its used
bit is set until it is linked or freed, and from before it is unlinked until it is freed.
Invariants:
    - the client journal is not empty only while the pin is set;
    - an object that is in use is linked, or in some client journal, or both.
The verbs that empty the client journal, and then take back the pin, are sent in the background of
the operation, behind those that clear used bits (verbs.pyx). So a kill, also of a client whose
operation has returned, leaves every object of an unfinished change in the client journal.
`Heap.settle` is idempotent on each pair. The dead client's pin counts until its slot is FREE, and
keeps these objects from being reused.

Every operation on a store runs between `enter` and `leave`. The pin of a remote client may last
over many of them: lasting.py.

In a durable pool, `unpin` first has the noted lines persist (`Endpoint.persist`), and with them the
link of each pair of the client journal. So whatever an operation has linked, or has read and noted,
survives a power cut once the operation returns. It also keeps memory safe: an object is used again
only after a grace period for which its unlinking client's pin counts, so no object is used again
while a power cut could bring back a link to it. A client that loses a race for a link may free the
old object; the winner is still pinned until the link persists. The journal itself is not made
persistent: after a power cut, what is reachable says what is in use (mending.py).
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients.epoch import EPOCH_MAX
from limpet.shm.clients.holds import Holds
from limpet.shm.endpoint.layout import DROPS, EPOCH
from limpet.shm.endpoint.slots import (
    CLIENT_JOURNAL,
    CLIENT_JOURNAL_SIZE,
    EPOCH_MASK,
    ERA,
    ERA_SHIFT,
    FIGURES,
    INCARNATION_MASK,
    PIN,
    PIN_MASK,
    PIN_SHIFT,
    PIN_STEP,
)
from limpet.shm.endpoint.states import DISOWNED, LOSS_CUTS
from limpet.shm.endpoint.words import REPLICATED
from limpet.shm.errors import (
    AddressError,
    ClientError,
    LimpetError,
    NodeFailed,
    PoolClosed,
    PoolCorrupt,
    StoreCorrupt,
)

if TYPE_CHECKING:
    from collections.abc import Callable


DAMAGE: Final = (AddressError, PoolCorrupt, StoreCorrupt)
"""Errors of settling an object by which no later attempt will get on."""
RESIGNED: Final = (
    "an operation of this client cannot be ended, since memory was damaged or lost; the client has "
    "left the pool, and others recover what it had; close the pool, and open it again"
)


class Client:
    """This process's identity in a pool, and the bracket around each of its operations."""

    def __init__(
        self, endpoint: Any, heap: Any, rejoin: Callable[[], None], remotely_fenced: bool
    ) -> None:
        """`remotely_fenced`: other hosts may declare this client dead while it runs."""
        self.endpoint = endpoint
        self.heap = heap
        self.rejoin = rejoin
        self.remotely_fenced = remotely_fenced
        self.references = array("Q", [0] * CLIENT_JOURNAL_SIZE)
        self.link_addresses = array("Q", [0] * CLIENT_JOURNAL_SIZE)
        self.pairs = array("Q", [0] * 2 * CLIENT_JOURNAL_SIZE)
        """Words that are written to several places at once."""
        self.holds = Holds(self)
        """The objects that it keeps between its operations."""
        self.ident = 0
        self.slot = 0
        self.word = 0
        self.sequence = 1
        self.held = 0
        self.epoch = 0
        """The epoch of the last pin."""
        self.era = 0
        """The word `era` in our slot."""
        self.base = 0
        """The bits of the epoch in a pin."""
        self.drops = 0
        """The word DROPS at our last pin."""
        # The endpoint must not keep its client alive.
        unpin = weakref.WeakMethod(self.cut_off)
        endpoint.abandoned = lambda: (unpin() or _nothing)()
        self.lasting: Any = None
        """Of a remote client, its pin that lasts over operations (lasting.py); set by the pool."""
        self.await_copies: Callable[[], None] = lambda: None
        """Waits until no remote client has old copies of control words; set by the pool."""
        self.wait_stable: Callable[[], None] = lambda: None
        """Waits, pinned, until no node is being filled; set by the pool (view.py)."""
        self.know_nodes: Callable[[], Any] = lambda: None
        """Maps the nodes that were added to the pool; set by the pool."""
        self.resigned: Callable[[int], None] = lambda slot: None
        """Called when this client has given up its slot in an operation; set by the pool."""
        self.has_resigned = False

    def assume(self, ident: int, slot: int, word: int) -> None:
        """Take on the identity of client `ident`, with its slot's address and its state word."""
        self.ident = ident
        self.slot = slot
        self.word = word
        self.sequence = 1
        self.held = 0
        self.epoch = self.era = self.base = 0
        self.has_resigned = False
        self.holds.forget()
        self.endpoint.count_at(slot + FIGURES if ident else 0)
        if self.remotely_fenced:
            self.endpoint.guard(slot, word)
        if self.lasting is not None and ident:
            self.lasting.join()

    def forked(self, no_state: int) -> None:
        """In a forked child, until it has joined: leave to its parent what is its parent's, also
        when the child was forked in an operation (by a signal handler, say) and ends it.

        `no_state`: a word that no slot has as its state."""
        if self.ident:
            self.held = 0
            self.endpoint.count_at(0)
            # From now on no mutating verb has an effect.
            self.endpoint.guard(self.slot, no_state)

    def begin(self) -> None:
        """Keep the other threads of this process out; in a forked child, take a slot of our own.

        Raises ReentrantUse from inside an operation of the same thread.
        """
        while self.endpoint.begin():
            self.rejoin()
        if self.lasting is not None:
            done = False
            try:
                self.lasting.give_up()
                done = True
            finally:
                if not done:
                    self.endpoint.end()

    def end(self) -> None:
        """Let other threads in."""
        self.endpoint.end()

    def rest(self) -> None:
        """Wait until no other thread of this process is inside; in a forked child, do nothing.

        Raises ReentrantUse from inside an operation of the same thread.
        """
        if not self.endpoint.begin():
            with contextlib.suppress(NodeFailed):  # what was to be sent is of earlier operations
                self.endpoint.end()

    def idle(self) -> None:
        """This client has been in no operation for a while: give up a pin that lasts. Outside of
        operations. ClientError: the client was declared dead."""
        self.begin()
        self.endpoint.end()

    def pin(self) -> None:
        """Pin the epoch: memory that is linked from now on is not reused before `unpin`.

        Raises PoolClosed when the pool was closed, ClientError when this client was declared dead,
        PoolCorrupt when the word `epoch` is damaged.
        """
        endpoint = self.endpoint
        if not self.ident:
            self.disown()
        if self.held:
            # an earlier operation ended with an error before it could do this
            if endpoint.durable:
                self.persist_links()
            self.settle()
        self.sequence = (self.sequence + PIN_STEP) & PIN_MASK
        endpoint.met_loss = 0
        # ORDER: the pin is visible before any link is read, hence `swap`, a full barrier. DROPS
        # after the pin: a client that drops a store counts it up before it looks for pins, so
        # either it waits for us, or we see the new count.
        if self.remotely_fenced or not endpoint.pin(
            self.slot + PIN, self.base | self.sequence, EPOCH, self.epoch, DROPS, self.drops
        ):
            self._pin_anew()

    def _pin_anew(self) -> None:
        """Pin when the epoch may be another than that of the last pin, or stores were dropped."""
        endpoint = self.endpoint
        if self.lasting is not None:
            self.lasting.forget()
        if self.remotely_fenced and endpoint.load(self.slot) != self.word:
            self.disown()
        epoch = endpoint.load(EPOCH)
        if epoch != self.epoch:
            if epoch >= EPOCH_MAX:
                raise PoolCorrupt(f"the epoch is {epoch:#x}: memory was damaged; destroy the pool")
            if epoch >> ERA_SHIFT != self.era:
                # ORDER: before the pin: a pin with a later era than its own would not count.
                endpoint.store(self.slot + ERA, epoch >> ERA_SHIFT)
                self.era = epoch >> ERA_SHIFT
            self.base = (epoch & EPOCH_MASK) << PIN_SHIFT
            self.epoch = epoch
        # ORDER: as in `pin`
        endpoint.swap(self.slot + PIN, self.base | self.sequence)
        drops = endpoint.load(DROPS)
        if drops != self.drops:
            # ORDER: before any link is read, and noted only when it is done: nodes may have been
            # added (shm/growth.py).
            self.know_nodes()
            self.drops = drops
        if self.remotely_fenced and endpoint.load(self.slot) != self.word:
            self.disown()
        if self.lasting is not None:
            # ORDER: after the pin. A node may be lost whose server has not heard of it, nor of an
            # eviction; then what the evicted client had is reused under later pins only.
            endpoint.see_states()

    def pinned(self, work: Callable[[], Any]) -> Any:
        """Do `work` on replica sets outside of an operation: pinned, no node being filled."""
        try:
            self.pin()
            self.wait_stable()
            return work()
        finally:
            self.unpin()

    def within_pin(self, work: Callable[[], Any]) -> Any:
        """Do `work` under the pin that we have, or else under one of its own."""
        if self.endpoint.load(self.slot + PIN):
            return work()
        try:
            self.pin()
            return work()
        finally:
            self.unpin()

    def share_pin(self, pin: int, era: int) -> None:
        """Move our pin back to another client's, `pin` of `era`, if that one is older."""
        own = self.endpoint.load(self.slot + PIN)
        if pin and (era < self.era or (era == self.era and pin < own)):
            self.epoch = self.base = 0  # so that the next pin writes the era
            # ORDER: the era first: our pin is older than both for a moment.
            self.endpoint.store(self.slot + ERA, era)
            self.era = era
            self.endpoint.swap(self.slot + PIN, pin)

    def go_on(self) -> None:
        """If we are pinned, change the pin's counter to show progress; the epoch stays."""
        if self.lasting is not None:
            # ORDER: before the count changes, which shows that we have none (lasting.py).
            self.lasting.copies.clear()
        pin = self.endpoint.load(self.slot + PIN)
        if pin:
            counter = pin + PIN_STEP & PIN_MASK
            self.endpoint.store(self.slot + PIN, pin >> PIN_SHIFT << PIN_SHIFT | counter)

    def disown(self) -> None:
        if self.has_resigned:
            raise ClientError(RESIGNED)
        if self.ident:
            raise ClientError(DISOWNED)
        self.rejoin()  # PoolClosed with the pool's name, if its handle was closed
        if not self.ident:
            raise PoolClosed("this process has no place in the pool: it has not joined it")

    def unpin(self) -> None:
        """Settle the client journal, then unpin the epoch.

        If a signal handler or a lost node cuts this off, repeat it, as far as possible. Raises
        ClientError if damaged memory keeps the journal from being settled: the client has resigned.
        """
        done = False
        try:
            if self.held or self.remotely_fenced or self.endpoint.durable or self.endpoint.met_loss:
                self._resolve_journal()
            # ORDER: the client journal is empty before the pin goes.
            self.endpoint.send_store(self.slot + PIN, 0)
            done = True
        finally:
            if not done and self.ident:
                self._unpin_anyhow()

    def _unpin_anyhow(self) -> None:
        """Unpin after an error, which goes on."""
        try:
            self._resolve_journal()
            self.endpoint.store(self.slot + PIN, 0)
        except DAMAGE as error:
            self._resign()
            raise ClientError(f"{RESIGNED} ({error})") from error
        except LimpetError:
            pass  # the first error goes on

    def _resign(self) -> None:
        """Give up the slot, pinned, with the journal: the client that recovers it passes over what
        is damaged."""
        slot = self.slot
        self.endpoint.give_up(slot, self.word)
        # DYING, as any client that is being recovered; this process lives on.
        self.ident = 0
        self.held = 0
        self.holds.forget()  # they are let go with the slot; else the handle could not be closed
        self.has_resigned = True
        if self.remotely_fenced:
            self.endpoint.guard(0, 0)
        self.resigned(slot)

    def _resolve_journal(self) -> None:
        """Settle the client journal, unless it is no longer ours."""
        if self.lasting is not None:
            self.lasting.forget()
        if self.remotely_fenced and self.endpoint.load(self.slot) != self.word:
            self.held = 0  # the client that declared us dead has resolved the journal
            self.disown()
        if self.endpoint.met_loss:
            cut = self.held or self.endpoint.met_loss == LOSS_CUTS
            self.endpoint.met_loss = 0
            if cut and self.endpoint.our_loss() >= 0:
                # For others the lost pages may be whole: what this operation has left there is
                # theirs to recover, as if this client had been killed.
                self._resign()
                raise ClientError(RESIGNED)
        if self.endpoint.durable:
            # ORDER: before objects are freed, and before the pin goes.
            self.persist_links()
        if self.held:
            self.settle()

    def enter(self) -> None:
        """Begin an operation: `begin` and `pin`."""
        while self.endpoint.begin():
            self.rejoin()
        pinned = False
        try:
            if self.lasting is None:
                self.pin()
            else:
                self.lasting.begin()
            pinned = True
        finally:
            if not pinned:
                try:
                    if self.ident:
                        self.unpin()
                finally:
                    self.endpoint.end()

    def leave(self) -> None:
        """End an operation, however it went: `unpin` and `end`."""
        try:
            if self.lasting is None or not self.lasting.end():
                self.unpin()
        finally:
            self.endpoint.end()

    def __enter__(self) -> Client:
        """`with client:` is `enter` and `leave`, for Python that is not compiled: there, a signal
        handler can raise between a call of `enter` and the `try` that follows it (inside.py)."""
        self.enter()
        self.note_frame()
        return self

    def __exit__(self, *error: object) -> None:
        self.endpoint.frame = None
        self.leave()

    def note_frame(self) -> None:
        """Note the Python frame that has just entered: the operation is over when it is gone."""
        if self.endpoint.frame is None:
            self.endpoint.frame = sys._getframe()

    def cut_off(self) -> None:
        """End an operation that a signal handler has cut off in its thread."""
        self.unpin()

    def exclusively(self, work: Callable[[], Any]) -> Any:
        """Do `work`, which may pin, while the other threads of this process wait.

        In the background scope. Raises PoolClosed when this process has no client slot. If a signal
        handler cuts it off, the client is not pinned afterwards, even if its own `try` had not
        begun yet.
        """
        done = False
        self.begin()
        scope = self.endpoint.background(True)
        try:
            if not self.ident:
                self.disown()
            result = work()
            if self.endpoint.durable:
                self.endpoint.persist()
            done = True
            return result
        finally:
            try:
                self.endpoint.background(scope)
                if not done and self.ident:
                    with contextlib.suppress(LimpetError):  # the first error goes on
                        self.unpin()
            finally:
                self.endpoint.end()

    def persist_links(self) -> None:
        """Make all noted lines persist, and the links that the client journal names."""
        index = 0
        while index < self.held:
            if self.references[index] and not self.link_addresses[index] & REPLICATED:
                self.endpoint.dirty(self.link_addresses[index], 8)
            index += 1
        self.endpoint.persist()

    def settle(self) -> None:
        """Empty the client journal, in recovery's order: free its objects that are not linked."""
        index = 0
        while index < self.held:
            if self.references[index]:
                self.heap.settle(self.references[index], self.link_addresses[index])
                self.endpoint.send_store(self.slot + CLIENT_JOURNAL + 16 * index, 0)
                self.references[index] = 0
            index += 1
        self.held = 0

    def quit(self, complete: bool) -> None:
        """Give up the slot. Unless all our memory is given back (`complete`), we are recovered."""
        settled = False
        try:
            self.unpin()
            if self.lasting is not None:
                self.lasting.leave()
            settled = True
        except ClientError:
            if not self.has_resigned:
                raise
        finally:
            if complete and settled:
                self.endpoint.cas(self.slot, self.word, self.word & INCARNATION_MASK)
            else:
                self.endpoint.give_up(self.slot, self.word)
            self.ident = 0
            if self.remotely_fenced:
                self.endpoint.guard(0, 0)  # there may be another slot for this process

    def log(self, reference: int, link_address: int) -> int:
        """Add an object to the client journal, with the address of the word that links it or will
        link it, or 0; its place in the client journal."""
        index = self.held
        if index == CLIENT_JOURNAL_SIZE:
            raise ClientError(f"an operation cannot hold more than {CLIENT_JOURNAL_SIZE} objects")
        pair = self.slot + CLIENT_JOURNAL + 16 * index
        # ORDER: our notes first: what is in shared memory is settled, if a signal handler raises.
        self.references[index] = reference
        self.link_addresses[index] = link_address
        self.held = index + 1
        # ORDER: the link's address is there before the reference that makes the pair count.
        self.endpoint.store_two(pair + 8, link_address, pair, reference)
        # CRASH(held): the object is in the client journal, perhaps not yet in use; recovery frees
        # it.
        return index

    def log_all(self, references: Any, links: Any, count: int) -> None:
        """`log` for `count` objects, in adjacent places from `held` on: two writes in all."""
        first = self.held
        if count > CLIENT_JOURNAL_SIZE - first:
            raise ClientError(f"an operation cannot hold more than {CLIENT_JOURNAL_SIZE} objects")
        if count:
            for index in range(count):
                self.link_addresses[first + index] = links[index]
            # ORDER: all addresses of links are there before the references that make pairs count.
            self._gather_addresses(first, count)
            self.endpoint.write_words(
                self.slot + CLIENT_JOURNAL + 16 * first, self.pairs, 2 * count
            )
            for index in range(count):
                self.pairs[2 * index] = self.references[first + index] = references[index]
            self.held = first + count
            self.endpoint.write_words(
                self.slot + CLIENT_JOURNAL + 16 * first, self.pairs, 2 * count
            )
            # CRASH(held): some of the objects are in the client journal, perhaps none in use;
            # recovery frees them.

    def drop_all(self, first: int, count: int) -> None:
        """`drop` for the objects at `count` places from `first` on: one write."""
        if count:
            # The addresses stay: a kill may leave any of the references.
            self._gather_addresses(first, count)
            self.endpoint.send_words(self.slot + CLIENT_JOURNAL + 16 * first, self.pairs, 2 * count)
            for index in range(count):
                self.references[first + index] = 0
            while self.held and not self.references[self.held - 1]:
                self.held -= 1

    def _gather_addresses(self, first: int, count: int) -> None:
        """Have in `pairs` these places of the client journal, without references."""
        for index in range(count):
            self.pairs[2 * index] = 0
            self.pairs[2 * index + 1] = self.link_addresses[first + index]

    def retarget(self, index: int, link_address: int) -> None:
        """Note that the object at this place of the client journal is about to be linked at
        `link_address`, and nowhere else."""
        self.endpoint.store(self.slot + CLIENT_JOURNAL + 16 * index + 8, link_address)
        self.link_addresses[index] = link_address

    def drop(self, index: int) -> None:
        """Take the object at this place out of the client journal: it stays linked."""
        self.endpoint.send_store(self.slot + CLIENT_JOURNAL + 16 * index, 0)
        self.references[index] = 0
        while self.held and not self.references[self.held - 1]:
            self.held -= 1

    def drop_from(self, index: int) -> None:
        """Take all objects from this place on out of the client journal: they stay linked, or a log
        in the client journal names them."""
        while self.held > index:
            last = self.held - 1
            if self.references[last]:
                self.endpoint.send_store(self.slot + CLIENT_JOURNAL + 16 * last, 0)
                self.references[last] = 0
            self.held = last

    def exchange(self, new: int, old: int) -> None:
        """By our CAS, the object at place `new` of the client journal is linked where that at place
        `old` was: free this one, and take both out. In a durable pool `unpin` does it."""
        if not self.endpoint.durable:
            self.heap.free(self.references[old])
            journal = self.slot + CLIENT_JOURNAL
            self.endpoint.send_store_two(journal + 16 * new, 0, journal + 16 * old, 0)
            self.references[new] = self.references[old] = 0
            while self.held and not self.references[self.held - 1]:
                self.held -= 1

    def release(self, index: int) -> None:
        """Free the object at this place of the client journal now: it is not linked any more."""
        if self.endpoint.durable:
            self.persist_links()
        self.heap.free(self.references[index])
        self.drop(index)


def _nothing() -> None:
    """Do nothing: the client is closed."""
