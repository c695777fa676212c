"""Our row of a register: its pointers, the buffers that they name, and its repair.

The row of a client is its word of M and two pointers on each replica (layout.py). It is that of the
client's writer number, which it may lose between two operations (shm/clients/writer_numbers.py): a
store has fewer rows than the pool may have clients. SWARM sections 4.5 and 5.4 leave the recycling
of out-of-place buffers open; the authors have not done it.

The first value has no buffer. An INSERT writes it in place, on all replicas, before the index has
the register (register.py). A value that does not fit there has a buffer, and so has every value in
a pool of several hosts, as said below. A kill at any step leaves a register that no slot links to,
torn or whole, which recovery frees, or one that is linked and whole. A client that is stopped
before it has linked its register finds, when it wakes up, its round void or another register in the
index, and frees its own. So a tuple may be *in place only*: no buffer has its value. Of such a
tuple t it is true that

    P1  every replica in service has t in M, and its value in place, until a greater tuple is at a
        majority, with its value beside each replica of it. A lost replica comes back with the
        greatest tuple of all, and what another one has in place (check.py)
    P2  no operation writes in place what is older than t

P1 holds of a first value, and P2, as no operation on the register began before. A client writes in
place only after its tuple is at a majority. So after P1 was made true of t, what is in place on a
replica is overwritten only when t is not needed any more. A READ that does not find the value of
the greatest tuple in place takes it from any other replica, and mends it; if it is on none, the
READ finds a greater tuple in M. t is never written back, as it is at every replica. r - f replicas
in service suffice for all that, also when f are lost.

Two buffers by turns. The first WRITE to a side of a row allocates a buffer, and a pointer names it
from then on. A WRITE puts its value into the buffer of the side that holds our last tuple but one,
so it allocates and frees nothing, and changes no pointer. Only the owner of a row uses its buffers
again. It gives one up when a value does not fit, or is much smaller; when the value is larger than
a block; when memory is short; for a tombstone, whose number takes a pointer; and in `repair`. The
next client of the number takes the row over, with its buffers. They are freed with the register
(key_register.py). So a key has at most two buffers for each writer that has written it.

Memory is short (`is_short`) when no more blocks of a node are free than are reserved (`reserve`),
one of twenty (shm/alloc/allocator.py), or one. Inserts are refused then. As keys that were inserted
have no buffers, all updates share what is reserved: a new buffer is only lent (`lend`), and
returned when the value is in place only (`settle`). A handle lends at most IDLE_MAX buffers
(store.py), then it waits for the clients that keep it from returning them. The steps, each in an
operation of its own:

    1  put the value of our greatest tuple t in place on every replica in service, and then t in M
       where it is missing. t is VERIFIED, and no replica has a greater tuple
    2  when no operation runs that ran at step 1 (shm/clients/epoch.py): look on every replica in
       service whether P1 is true of t, and t is still our greatest. If so, give up the buffers of
       our row. If not, do 1 again, with what is our greatest by then

P2: an operation that writes an older tuple in place began before t was at a majority, so before
step 1, and has ended by step 2: an operation that began later has read t or a greater one. If a
greater tuple is at a majority, our buffers are given up at once; if one is at a minority, a later
operation tries again, as that one may still be lost.

Lent buffers of all sizes up to an eighth of a block are runs of pages of one length (`acquire`), so
they come from the same blocks, and a buffer that is returned serves each of these sizes. A buffer
of the value's own size is lent if one is free in a block that has such ones, or if the free memory
is in blocks of other clients only, and none of these can be had for pages.

Buffers of the dead. What a kill leaves before step 2 is a row with buffers that are in use; in step
2, what `give_up` leaves. An update that would be refused returns those of rows whose number's
holder is gone, and of its own row, which may have been a dead client's (store.py, `_find_idle`). It
takes the steps 1 and 2 in the place of the row's client, each under a pin, while it keeps others
from the number (`WriterNumbers.keep`). So for each step:
    - the row has no other client, from before its pointers are read until its buffers are free. The
      next client of the number finds the row as after a kill, or empty
    - a guess that its client has left is `repair`ed, as that client's successor would do it, and
      then READ. So it is VERIFIED, or a greater tuple is at a majority
    - nothing of a step is kept but in the row itself, and the buffer in the client journal of the
      client that does the step. If that one is killed, its slot and journal are recovered, the
      number is its own no more, and another client begins with step 1
    - a buffer that was named is not used again before that client unpins. Until then, a recoverer
      of the dead client that was stopped may still look at it (`Recycling.names`)

So an update goes on for ever, where no more clients write than there are rows: a buffer that it
needs is free, or lent by a client that returns it in its next operation, or left by a client that
is gone. A client that is stopped keeps IDLE_MAX + 1. So does a client that does not write for those
that had its number before. If more are kept than are reserved, or values are larger than there is
room in place, an update is refused, too.

Several hosts. There a client may have been given up while it was stopped between the look at its
slot and one plain store (docs/hosts.md), and that store lands whenever its host goes on. In a
buffer that the next client of the number uses, it would tear a value that is in use: with a node
lost, too, that value is gone. So there a client writes again only to buffers that it remembers,
which are its own; what is in place only could be torn in the same way, so nothing is in place only,
and nothing is lent. A buffer that it has found named (`found`) is left as it is until a tuple of
ours leads elsewhere, and is given up then. An update that remembers its row pays nothing for that.

Invariants:
    - a buffer that is in use is named by a pointer of its register on some node in service, or in a
      client journal, or both; and a pointer names nothing that was freed
    - a buffer is written again only on a replica whose greatest tuple leads to the other side, or
      to another row. So each replica keeps the value of its greatest tuple, as algorithm 5 does
      with a new buffer for each value; no client looks for the value of a smaller one (replica.py)

A reader needs no pin to be safe from that. It knows which tuple it looks for. The header of a
buffer has the stamp of one tuple, which never comes again (unique_ids.py), and a hash that is
seeded with stamp, ident and length. So a buffer that was written again, or that is being written,
is not the tuple's: by its stamp, or by its hash if the reader meets both values. The reader reads
M again, and finds a greater tuple there. (It is pinned for the memory that is freed all the same.)

The owner writes plainly, so it must know that memory and register are still its own:
    - the register may be given up, with our buffers, by another client that deletes the key. That
      client clears the ident on every replica before it frees a buffer. So a WRITE is done on a
      replica only after it has read the ident there, under the same pin: what is freed later is not
      used again before the pin ends
    - the row may have changed since we noted it: another handle of this client has written, or an
      operation was cut off. `Turns` numbers what a handle remembers. A WRITE forgets its entry of
      the cache before it begins, and notes it again when it has ended; a READ that writes back
      forgets it when it ends, or all entries if it does not end
    - of replicas that were not read when the row was (after a lost node), nothing is known. There a
      WRITE to a named buffer is REFUSED, and the row is repaired first

A new buffer, which no pointer names yet:
    written   in the client journal, with the register as its link_address, before the first pointer
              names it
    given up  in the client journal, seen to be named under the pin; its pointers emptied on every
              replica in service; then freed

What a kill leaves behind. With the value written in part, or whole, and M unchanged (`turned`): a
buffer to which no word of M leads; the next client of the row writes it again. With M changed on a
minority: two sides are led to, which `repair` brings to one. A stopped writer that wakes up is
still pinned, so its buffers are its own, or freed and not used yet; if it was fenced instead, it
does not wake up, and the next client of its number finds one of these states. With a lost node: the
buffer beside each replica left has the value of that replica's tuple, as before.

A pointer is empty when it has the register's ident. A client that was killed between the two CAS of
a tombstone leaves a pointer with the tombstone's number, to which no word of M leads on that
replica: such a pointer is emptied by the next client of the row (trap S10, `repair`).

A kill leaves every new buffer in the client journal. It is linked when its register is in use, has
its ident, and names it (key_register.py).
"""

from __future__ import annotations

import contextlib
import weakref
from array import array
from collections import deque
from typing import Any, Final

from limpet.shm.endpoint.layout import EXACTLY, NODE_SHIFT
from limpet.shm.endpoint.words import LARGE_CLASS
from limpet.shm.errors import NodeFailed
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.fusee.links import OLD
from limpet.stores.swarm.layout import (
    AGAIN,
    DONE,
    FIXED,
    HEADER,
    NAMED,
    UNDECIDED,
    UNKNOWN,
    UNVERIFIED,
    VERIFIED,
    WORDS,
)
from limpet.stores.swarm.register import is_tombstone, placed, rank_of, row_of, side_of, stamp_of
from limpet.stores.swarm.replica import Buffer, Quorum, Replica

ROOMY: Final = 4
"""A buffer is used again for a value that takes at least a quarter of it,"""
SMALL: Final = 256
"""or if it has no more bytes than this."""
LOOKS: Final = 16
"""While memory is short, a client looks again after so many new buffers or registers."""
RESERVING: Final = 8
"""In a node with so many blocks, inserts leave one for updates."""

_lasts: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
"""Of each client and store (its entry of the catalogue): the number given last (`Turns`)."""


class Turns:
    """The number under which a handle of a store remembers the rows of its client.

    A client may have several handles of one store, and each writes to the same rows. So what one of
    them remembers is true until another one takes a number.
    """

    def __init__(self, pool: Any, entry: int) -> None:
        self.numbers = pool.numbers
        self.takes = 0
        """`WriterNumbers.takes` of then."""
        self.number = 0
        self.unnoted = False
        """Whether a row has been written to, and that is not noted yet."""
        self.looks = array("Q", bytes(8 * 256))  # as a reference has 8 bits for them
        """Of each node: 0, or memory is short there, until the look after so many buffers."""
        self.idle: deque[tuple[int, int, int, int, int]] = deque()
        """Rows whose buffers are to be returned: reference and ident of the register, number of the
        row, the epoch that has to be over before the next step, and what the last step has returned
        (`Row.settle`)."""
        self.last = _lasts.setdefault(pool.client, {}).setdefault(entry, array("Q", [0]))

    def current(self) -> int:
        """Our number; a new one, if this client has taken another writer number, if another handle
        has come in between, or if a READ was cut off. Then nothing that is remembered is true."""
        if self.number != self.last[0] or self.takes != self.numbers.takes or self.unnoted:
            if self.takes != self.numbers.takes:
                self.idle.clear()  # of a row that is not ours any more
            self.takes = self.numbers.takes
            self.unnoted = False
            self.number = self.last[0] = self.last[0] + 1
        return self.number

    def renew(self) -> None:
        """From now on, nothing that any handle of this client remembers is true."""
        self.last[0] = self.last[0] + 1

    def doubt(self, node: int) -> None:
        """An operation had to ask for memory on this node: look whether it is short, unless it was
        at one of the last LOOKS new buffers or registers."""
        if not self.looks[node]:
            self.looks[node] = 1

    def knows(self, word: int) -> bool:
        """Whether an entry of the cache with this word (`Row.note`) has what is true of our row."""
        return (
            word >> 1 == self.number == self.last[0]
            and self.takes == self.numbers.takes
            and not self.unnoted
        )


class Wanted:
    """Memory that was missing on this node: `size` bytes, and `also` more, or 0; or better `lent`
    bytes, unless that is 0."""

    def __init__(self) -> None:
        self.node = 0
        self.size = 0
        self.also = 0
        self.lent = 0
        self.exactly = False
        """Whether no other node will do."""


class Row:
    """Our row of the current register."""

    def __init__(self, pool: Any, quorum: Quorum, turns: Turns) -> None:
        self.client = pool.client
        self.numbers = pool.numbers
        self.turns = turns
        self.endpoint = pool.endpoint
        self.heap = pool.heap
        self.allocator = pool.allocator
        self.view = pool.view
        self.quorum = quorum
        self.register = self.quorum.register
        self.replicas = self.quorum.replicas
        self.mine = self.quorum.mine
        self.buffers = self.quorum.buffers
        self.count = self.quorum.count
        self.writer = 0
        """Our number as a writer, which is also the row's number; -1: we have none."""
        self.side = 0
        """The side of the next WRITE; -1: not known."""
        self.names = array("Q", [0, 0])
        """The buffer that each pointer names, on all replicas whose `mine` was seen; 0: none."""
        self.unused = 0
        """Bits: the sides to which no greatest tuple led when the row was read."""
        self.found = False
        """Whether `names` has buffers that may be those of a client that was given up alive."""
        self.known = False
        """Whether each replica's `mine`, `side` and `names` are as we left them."""
        self.wrote = False
        """Whether a tuple was written back since the register was selected."""
        self.buffer = Buffer()
        """The buffer of our WRITE."""
        self.spare = Buffer()
        self.wanted = Wanted()

    def forget(self) -> None:
        """Another register has been selected, and nothing is known of our row."""
        self.is_writer()
        self.turns.current()
        self.known = False
        self.wrote = False
        self.found = False
        self.buffer.reference = 0
        self.names[0] = self.names[1] = 0
        for k in range(self.count):
            self.mine[k] = 0
        self._ask()

    # ---- the writer -----------------------------------------------------------------------------

    def is_writer(self) -> bool:
        """Whether we have a row, that of our writer number. In an operation."""
        number = self.numbers.held()
        self.writer = number if number < self.register.writers else -1
        self.register.own = self.writer
        return self.writer >= 0

    # ---- the remembered state of the row --------------------------------------------------------

    def take_metadata(self) -> bool:
        """Take our words of M, the buffers that we have and the side of the next WRITE from the
        words read; False: neither side can be written to, and `repair` comes first.

        A side can be written to if no replica's greatest tuple leads there, and the replicas agree
        on its buffer.
        """
        self.quorum.need_row(self.writer)
        self.take_words()
        used = 0
        for n in range(self.quorum.read):
            k = self.quorum.order[n]
            word = self.mine[k]
            if row_of(word) == self.writer and stamp_of(word) == stamp_of(self.quorum.tops[k]):
                used |= 1 << side_of(word)
        for side in range(2):
            self.names[side] = self._agreed(side)
        self.found = self._are_anothers()
        self.unused = 3 - used
        self.side = 0
        if used & 1 or (not used and self.names[0] in (0, UNDECIDED)):
            self.side = 1
        return used < 3 and self.names[self.side] != UNDECIDED

    def _are_anothers(self) -> bool:
        """Whether a client that was given up alive may still write to buffers that we name."""
        return self.client.remotely_fenced and (self.names[0] != 0 or self.names[1] != 0)

    def _agreed(self, side: int) -> int:
        """The buffer that this pointer names on all replicas that were read; 0: it is empty there.

        UNDECIDED: they differ, or there is the number of a tombstone. The buffer of a WRITE that is
        under way may be named on some of them.
        """
        agreed = 0
        ident = self.register.ident
        for n in range(self.quorum.read):
            replica = self.replicas[self.quorum.order[n]]
            there = replica.pointer(self.writer, side)
            if there == ident:
                there = 0
            elif there >> 48 & 0xFF == VACANT_CLASS:
                return UNDECIDED
            if n and there != agreed:
                if there + agreed != self.buffer.reference or (there and agreed):
                    return UNDECIDED
                there = self.buffer.reference
            agreed = there
        return agreed

    def take_words(self) -> None:
        """Take our words of M from the words read; of other replicas nothing is known."""
        for k in range(self.count):
            self.mine[k] = 0
        for n in range(self.quorum.read):
            replica = self.replicas[self.quorum.order[n]]
            self.mine[replica.k] = replica.metadata(self.writer)

    def renew_words(self) -> None:
        """Take our words of M from the words read, of replicas where we have seen them before."""
        for n in range(self.quorum.read):
            replica = self.replicas[self.quorum.order[n]]
            if self.mine[replica.k]:
                self.mine[replica.k] = replica.metadata(self.writer)

    def infer(self) -> bool:
        """Take our words of M from the words read; whether they show that our row is empty.

        The row has a word of M for itself. A pointer whose word has not been changed yet is not
        seen; then a WRITE finds the side in use, and puts the row in order.
        """
        self.take_words()
        for n in range(self.quorum.read):
            if row_of(self.mine[self.quorum.order[n]]) == self.writer:
                return False
        self.names[0] = self.names[1] = 0
        self.side = 0
        self.known = True
        return True

    def is_new(self, word: int) -> None:
        """The current register is new, and has our tuple `word` everywhere, in our buffer."""
        for k in range(self.count):
            self.mine[k] = word
        self.names[side_of(word)] = self.buffer.reference
        self.names[1 - side_of(word)] = 0
        self.side = 1 - side_of(word)
        self.known = True

    def recall(self, words: Any, at: int) -> None:
        """Another register has been selected: take our words of M, our buffers, and the side of the
        next WRITE from its entry of the cache, if it has them.

        An entry from before a fork, of a client id that was given up, or from before another handle
        of this client has written, is not taken.
        """
        self.is_writer()
        self.known = words[at + 4] >> 1 == self.turns.current()
        self.found = False  # such a row is not noted
        self.side = words[at + 4] & 1
        self.names[0] = words[at + 5]
        self.names[1] = words[at + 6]
        self.wrote = False
        self.buffer.reference = 0
        for k in range(self.count):
            self.mine[k] = words[at + FIXED + k]
        self._ask()

    def _ask(self) -> None:
        """Have a READ read our row, if a WRITE would have to: where clients share a word of M, it
        does not show which side of our row is led to."""
        register = self.register
        shared = register.buffers < register.writers and register.locks > 0
        register.asks = shared and not self.known and self.writer >= 0

    def note(self, words: Any, at: int) -> None:
        """Note in an entry of the cache what is known of our row."""
        known = self.known and not self.found
        words[at + 4] = self.turns.number << 1 | self.side if known else 0
        words[at + 5] = self.names[0]
        words[at + 6] = self.names[1]
        for k in range(self.count):
            words[at + FIXED + k] = self.mine[k]

    # ---- the buffer of a write ------------------------------------------------------------------

    def suits(self, size: int) -> bool:
        """Whether a value of so many bytes can go to the side of the next WRITE as it is: to the
        buffer there, or to a new one."""
        reference = self.names[self.side]
        return reference == 0 or self._fits(reference, HEADER + size)

    def _fits(self, reference: int, size: int) -> bool:
        size_class = reference >> 48 & 0xFF
        if self.found:
            return False
        if size_class == LARGE_CLASS or reference >> NODE_SHIFT & 0xFF != self.register.node:
            return False  # of a span the size is not known; or not beside each replica
        room = self.heap.sizes[size_class]
        return size <= room and (room <= SMALL or room <= ROOMY * size)

    def is_named(self) -> bool:
        """Whether our pointers name a buffer on the side of the next WRITE."""
        return self.names[self.side] != 0

    def take_turn(self, buffer: Buffer, size: int) -> int:
        """A buffer for a value of so many bytes, for the side of the next WRITE: NAMED, the one
        that is there; or as of `acquire`.

        One that does not suit is given up first, so the register must have been read in this
        operation.
        """
        reference = self.names[self.side]
        if reference:
            if self._fits(reference, HEADER + size):
                buffer.use(reference, True)
                return NAMED
            self.clear_side()
        return self.acquire(buffer, size)

    def clear_side(self) -> None:
        """Have the side of the next WRITE be one with an empty pointer: give up the buffer there,
        in the background, if neither is."""
        if self.unused == 3 and not self.names[1 - self.side]:
            self.side = 1 - self.side
        reference = self.names[self.side]
        if reference and reference != self.buffer.reference:
            scope = self.endpoint.background(True)
            self.give_up(self.quorum.order[0], self.writer, reference)
            self.endpoint.background(scope)
            self.names[self.side] = 0

    def acquire(self, buffer: Buffer, size: int) -> int:
        """A buffer for a value of that many bytes; its place in the client journal, or -1: no
        memory is ready, and `wanted` says which.

        Its primary is on the first of the register's nodes that is in service.
        """
        wanted, placement = self.wanted, self.heap.placement
        wanted.size = HEADER + size
        wanted.also = wanted.lent = 0
        wanted.node = self.register.node
        wanted.exactly = True  # beside the register's replicas: with them it is lost, or there
        for _ in range(self.count):
            if self.endpoint.failed(wanted.node << NODE_SHIFT):
                wanted.node = placement.beside(wanted.node, 1)
                continue
            try:
                reference = self.allocator.allocate(wanted.node | EXACTLY, wanted.size, self.count)
                if not reference and self._is_loan(size):
                    wanted.lent = max(wanted.size, self.heap.sizes[self.heap.paged])
                    reference = self.allocator.allocate(
                        wanted.node | EXACTLY, wanted.lent, self.count
                    )
                buffer.use(reference, False)
                if reference:
                    return self.client.held - 1
                # Can this node have memory at all?
                self.endpoint.load(self.heap.table_word(wanted.node, 0))
                return -1
            except NodeFailed as error:
                self.view.fail_if_lost(error.node)
                wanted.node = placement.beside(wanted.node, 1)
        raise NodeFailed(self.register.node, "all nodes of the key's replicas are lost")

    def _is_loan(self, size: int) -> bool:
        """Whether a new buffer for a value of so many bytes, of which none is ready, is to be
        lent."""
        self.turns.doubt(self.wanted.node)
        return self.may_lend(size) and self.is_short(self.wanted.node)

    def prefetch(self, size: int) -> None:
        """Prefetch the memory that a WRITE of so many bytes touches besides the words it reads."""
        k = self.register.first
        for _ in range(self.quorum.majority):
            address = self.register.beside(self.buffer.reference, k)
            self.endpoint.prefetch(address, HEADER + size)
            if not self.buffer.named:
                self.endpoint.prefetch(self.register.pointer(k, self.writer, 0), 16)
            k = k + 1 if k + 1 < self.count else 0

    def retarget(self, held: int) -> None:
        """From now on the register may name the buffer that is at that place of the client
        journal."""
        # ORDER: before the first pointer.
        self.client.retarget(held, self.register.link_address())

    def keep(self, held: int, buffer: Buffer) -> bool:
        """Take the buffer out of the client journal, as the register names it; whether it does.

        It stays in the journal if the register is being given up, or if it is in doubt whether a
        pointer names it, and is freed if no pointer ever named it.
        """
        if held == NAMED:
            return not buffer.doubtful
        stands = not buffer.doubtful
        for n in range(self.quorum.read):
            replica = self.replicas[self.quorum.order[n]]
            if not replica.stands():
                stands = False  # the buffer is resolved with the client journal
        if not buffer.published and not buffer.doubtful:
            self.client.release(held)  # there was a greater tuple wherever it would have been
            return False
        if stands:
            self.client.drop(held)
        return stands

    def refuse(self, held: int) -> None:
        """Nothing was written to the register: free the buffer, if it is a new one."""
        if held != NAMED:
            self.client.release(held)

    def end(self, w: int, held: int) -> None:
        """Our WRITE of the tuple `w` has ended: remember our row for the next one. In the
        background."""
        buffer = self.buffer
        side = side_of(w)
        other = self.names[1 - side]
        stands = self.keep(held, buffer)
        written = 0
        for k in range(self.count):
            if stamp_of(self.mine[k]) == stamp_of(w):
                written += 1
            else:
                self.mine[k] = 0
        self.known = (
            stands
            and self.side >= 0
            and not buffer.strayed
            and written >= self.quorum.majority
            and other != UNDECIDED
        )
        if self.known:
            if held != NAMED:
                self.names[side] = buffer.reference
            short = held != NAMED and self.is_short(buffer.reference >> NODE_SHIFT & 0xFF)
            if other and (short or self.found or other >> 48 & 0xFF == LARGE_CLASS):
                self.give_up(self.quorum.order[0], self.writer, other)
                self.names[1 - side] = 0
            self.found = False
            self.known = not (short and self.lend(buffer))
        self.side = 1 - side

    def reserve(self) -> int:
        """How many free blocks of a node inserts leave for updates: one at least, unless the node
        has few blocks."""
        least = 1 if self.allocator.table.count >= RESERVING else 0
        return int(max(least, self.allocator.reserve_of(self.count)))

    def is_short(self, node: int) -> bool:
        """Whether, as far as is known, no more blocks of a node are free than are reserved."""
        looks = self.turns.looks
        if not looks[node]:
            return False
        looks[node] -= 1
        if not looks[node]:
            count = self.reserve() + 1
            horizon = self.allocator.grace.horizon()
            try:
                free = self.allocator.table.has_free(node, count, self.count, horizon)
            except NodeFailed:
                free = False
            if not free:
                looks[node] = LOOKS
        return looks[node] != 0

    def lend(self, buffer: Buffer) -> bool:
        """Have a new buffer, which is in use by now, returned (`settle`), as memory is short.
        False: it stays, since its value cannot be in place only."""
        lent = self.may_lend(len(buffer.value))
        if lent:
            register = self.register
            self.turns.idle.append((register.reference, register.ident, self.writer, -1, 0))
        return lent

    def may_lend(self, size: int) -> bool:
        """Whether a value of so many bytes can be in place only."""
        return size <= self.register.capacity and not self.client.remotely_fenced

    # ---- giving up buffers ----------------------------------------------------------------------

    def give_up(self, seen: int, row: int, reference: int) -> None:
        """Free a buffer that this row was seen to name on replica `seen`, under our pin."""
        held = self.client.log(reference, self.register.link_address() | OLD)
        k = seen
        for _ in range(self.count):
            try:
                for side in range(0 if self.endpoint.failed(self.register.bases[k]) else 2):
                    at = self.register.pointer(k, row, side)
                    if self.endpoint.load(at) == reference:
                        # CRASH(emptied): recovery of the client journal finds no pointer to it.
                        self.endpoint.cas(at, reference, self.register.ident)
            except NodeFailed:
                pass  # the pointer went with its node
            k = k + 1 if k + 1 < self.count else 0
        self.client.release(held)

    def make_room(self, w: int) -> None:
        """Give up the buffer of the other side than that of `w`, ours, which is at a majority."""
        self.side = 1 - side_of(w)
        self.names[self.side] = 0
        for n in range(self.quorum.read):
            replica = self.quorum.at(n)
            reference = replica.named(self.writer, self.side)
            if reference not in (0, self.buffer.reference, self.names[self.side]):
                self.names[self.side] = reference
                self.give_up(replica.k, self.writer, reference)
        self.names[self.side] = 0

    # ---- repair ---------------------------------------------------------------------------------

    def repair(self) -> int:
        """Empty a pointer of our row, both of which are in use. AGAIN: read once more.

        A client with our number was killed between two steps, or a copy was put beside our own
        buffer. The client gives up each buffer, or number of a tombstone, to which no word of M
        leads. Then, unless a greater tuple is at a majority, it writes the greatest of our row to a
        majority, and gives up the buffers that this makes useless.
        """
        scope = self.endpoint.background(True)
        try:
            self.quorum.read_all()
            self._drop_numbers()
            self._give_up_junk(UNDECIDED)
            own = 0
            for k in range(self.count):
                replica = self.replicas[k]
                word = replica.metadata(self.writer)
                if row_of(word) == self.writer and not is_tombstone(word):
                    own = max(own, word)
            if own:
                stands = self._needed(own)
                if stands != UNDECIDED:
                    self.quorum.read_all()
                    self._give_up_junk(stands)
                    self._name_once(own, stands)
        finally:
            self.endpoint.background(scope)
        return AGAIN

    def settle(self, writer: int, before: int) -> int:
        """Return the buffers of a row of the current register by the steps of "Memory is short"
        above: ours, which is not known, or that of a client that is gone. Outside of a
        WRITE, and in the background. 0: they are returned, or stay. UNVERIFIED: a READ comes first.
        Otherwise the next step is due when an epoch closed now is over, with this number as
        `before`; that is 0 at first."""
        scope = self.endpoint.background(True)
        try:
            self.writer = writer
            quorum = self.quorum
            if quorum.gather(WORDS, quorum.count) != DONE or is_tombstone(quorum.top):
                return 0  # they go with the register
            quorum.read_pointers()
            own = 0
            for n in range(quorum.read):
                word = quorum.at(n).metadata(writer)
                if row_of(word) == writer:
                    own = max(own, word)
            if stamp_of(quorum.top) > stamp_of(own):
                if quorum.count_at_least(quorum.top) < quorum.majority:
                    return UNDECIDED  # a node may be lost that has the greater one
            elif self.client.remotely_fenced:
                return 0
            elif not own & VERIFIED:
                self.repair()  # at a majority, so that a READ needs no memory
                return UNVERIFIED
            else:
                missing = self._missing_in_place(own)
                if missing or before != stamp_of(own):
                    return stamp_of(own) if self._put_in_place(own, missing) else 0
            # ORDER: before a buffer is freed: what a handle remembers may name it.
            self.turns.renew()
            self._give_up_junk(0)
            return 0
        finally:
            self.is_writer()  # from now on, our row is meant again
            self.endpoint.background(scope)

    def _missing_in_place(self, own: int) -> int:
        """Bits: the replicas in service that have not this tuple, or not its value in place."""
        missing = 0
        for n in range(self.quorum.read):
            replica = self.quorum.at(n)
            there = stamp_of(self.quorum.tops[replica.k]) == stamp_of(own)
            if not there or replica.fetch_in_place(stamp_of(own)) is None:
                missing |= 1 << replica.k
        return missing

    def _put_in_place(self, own: int, missing: int) -> bool:
        """Give these replicas our greatest tuple, and its value in place; False: there is no room
        for it."""
        value = self.quorum.value_of(own)
        if value is None:
            return True  # there is a greater one
        if len(value) > self.register.capacity:
            return False
        self.spare.reference = 0
        self.spare.prepare(self.register.ident, own, value)
        for n in range(self.quorum.read):
            replica = self.quorum.at(n)
            if missing >> replica.k & 1 and replica.write_in_place(self.spare):
                before = replica.metadata(self.writer)
                if stamp_of(self.quorum.tops[replica.k]) < stamp_of(own):
                    # ORDER: the value before the tuple, as no buffer is named here.
                    at = self.register.metadata(replica.k, self.writer)
                    with contextlib.suppress(NodeFailed):
                        self.endpoint.cas(at, before, own)
        return True

    def _needed(self, own: int) -> int:
        """The buffer of our greatest tuple, once no other of ours is needed; 0: not even that one.

        UNDECIDED: it could not be written to a majority.
        """
        top = self.quorum.top
        if self.quorum.count_at_least(top) >= self.quorum.majority and stamp_of(top) > stamp_of(
            own
        ):
            return 0
        return self._spread(own)

    def _name_once(self, own: int, stands: int) -> None:
        """Empty the pointers of the other side that also name the buffer of our tuple."""
        for k in range(self.count):
            replica = self.replicas[k]
            try:
                if replica.metadata(self.writer) == own:
                    at = self.register.pointer(k, self.writer, 1 - side_of(own))
                    self.endpoint.cas(at, stands, self.register.ident)
            except NodeFailed:
                continue

    def _drop_numbers(self) -> None:
        """Empty the pointers of our row that have the number of a tombstone which is not there.

        A client, the author or one that wrote it back, was killed before it changed the word of M.
        """
        for k in range(self.count):
            replica = self.replicas[k]
            word = replica.metadata(self.writer)
            leads = is_tombstone(word) and row_of(word) == self.writer
            for side in range(2):
                there = replica.pointer(self.writer, side)
                if (
                    there in (0, self.register.ident)  # its node is lost; it is empty
                    or replica.word(0) != self.register.ident
                    or there >> 48 & 0xFF != VACANT_CLASS
                    or (leads and side_of(word) == side)
                ):
                    continue
                try:
                    at = self.register.pointer(k, self.writer, side)
                    self.endpoint.cas(at, there, self.register.ident)
                except NodeFailed:
                    continue  # it went with its node

    def _give_up_junk(self, stands: int) -> None:
        """Free the buffers our row names, except `stands`; UNDECIDED: those no word of M leads to.

        The buffer of a WRITE that is under way stays.
        """
        for k in range(self.count):
            replica = self.replicas[k]
            for side in range(2):
                reference = replica.named(self.writer, side)
                if reference in (0, self.buffer.reference, stands):
                    continue
                if stands != UNDECIDED or not self._is_led_to(reference):
                    self.give_up(k, self.writer, reference)

    def _is_led_to(self, reference: int) -> bool:
        for k in range(self.count):
            replica = self.replicas[k]
            word = replica.metadata(self.writer)
            if (
                row_of(word) == self.writer
                and replica.named(self.writer, side_of(word)) == reference
            ):
                return True
        return False

    def _spread(self, own: int) -> int:
        """Write a tuple of our own row, whose buffer is ours, to a majority; that buffer.

        0 when it has no value any more: it was given up after a later write, or it was a guess
        about to be written again. UNDECIDED: it is not at a majority yet.
        """
        reference = 0
        first = 0
        for k in range(self.count):
            replica = self.replicas[k]
            if not reference and replica.metadata(self.writer) == own:
                reference = replica.named(self.writer, side_of(own))
                first = k
        value = self.buffers.read(reference, stamp_of(own), first, UNKNOWN) if reference else None
        if value is None:
            return 0
        self.spare.reference = reference
        self.spare.prepare(self.register.ident, own, value)
        done = 0
        k = self.register.first
        for _ in range(self.count):
            replica = self.replicas[k]
            word = replica.metadata(self.writer)
            if word and done < self.quorum.majority:
                moved = rank_of(word) > rank_of(own) or word == own
                done += moved or self.move(replica, word, own, self.spare)
            k = k + 1 if k + 1 < self.count else 0
        return reference if done >= self.quorum.majority else UNDECIDED

    def move(self, replica: Replica, before: int, own: int, buffer: Buffer) -> bool:
        """Change our word of M on a replica from `before` to `own`, with the value prepared in
        `buffer`, which is ours; whether it is `own` then."""
        try:
            self.buffers.write(buffer, replica.k)
            for turn in range(2):
                side = side_of(own) ^ turn
                at = self.register.pointer(replica.k, self.writer, side)
                found = self.endpoint.cas(at, self.register.ident, buffer.reference)
                if found in (self.register.ident, buffer.reference):
                    word = placed(own, self.writer, side)
                    at = self.register.metadata(replica.k, self.writer)
                    return self.endpoint.cas(at, before, word) == before
        except NodeFailed as error:
            self.view.fail_if_lost(error.node)
        return False
