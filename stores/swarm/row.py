"""Our row of a register: its pointers, the buffers that they name, and its repair.

The row of a client is its word of M and two pointers on each replica (registers.py). A store has
rows for the clients in the first slots of the pool. SWARM sections 4.5 and 5.4 leave the recycling
of out-of-place buffers open; the authors have not done it.

Invariant: a buffer that is in use is named by a pointer of its register on some node in service, or
in a client journal, or both; and a pointer names nothing that was freed.

    written   in the client journal, with the register as its link_address, before the first pointer
              names it
    given up  in the client journal, seen to be named under the pin; its pointers emptied on every
              replica in service; then freed. Any number of clients may do that at the same time

A buffer is given up when a greater write is known to be at a majority. Its writer does so with its
next write. Another writer does so when it finds the buffer's tuple older than its own, on all
replicas of a majority, and VERIFIED. (Not before: the buffer's writer may be about to name it on
one more replica, or to write the value again with another timestamp.) So a key that no client
changes any more has few buffers. A client that reads a buffer is pinned, and the memory is not used
again before that pin ends (shm/clients/epoch.py).

A pointer is empty when it has the register's ident. A client that was killed between the two CAS of
a tombstone leaves a pointer with the tombstone's number, to which no word of M leads on that
replica: such a pointer is emptied by the next client of the row (trap S10, `repair`).

A kill leaves every buffer in the client journal. It is linked when its register is in use, has its
ident, and names it (unmapping.py).
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import ClientError, NodeFailed
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.fusee.links import OLD
from limpet.stores.swarm.layout import AGAIN, FIXED, HEADER, UNKNOWN, VERIFIED
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.replica import Buffer, Replica
from limpet.stores.swarm.words import is_tombstone, placed, rank_of, row_of, side_of, stamp_of

UNDECIDED: Final = 1
"""Instead of a reference: a tuple of our own row may be needed, and is not at a majority."""


class Wanted:
    """Memory that was missing on this node: `size` bytes, and `also` more, or 0."""

    def __init__(self) -> None:
        self.node = 0
        self.size = 0
        self.also = 0


class Row:
    """Our row of the current register."""

    def __init__(self, pool: Any, quorum: Quorum) -> None:
        self.client = pool.client
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
        """Our number as a writer, which is also the row's number."""
        self.side = 0
        """The side whose pointer is empty; -1: not known."""
        self.known = False
        """Whether each replica's `mine` and `side` are as we left them."""
        self.wrote = False
        """Whether a tuple was written back since the register was selected."""
        self.swept = False
        """Whether our last write has given up all that was useless then."""
        self.buffer = Buffer()
        """The buffer of our WRITE."""
        self.spare = Buffer()
        self.wanted = Wanted()

    def forget(self) -> None:
        """Another register has been selected, and nothing is known of our row."""
        self.known = False
        self.wrote = False
        self.swept = False
        self.buffer.reference = 0
        for k in range(self.count):
            self.mine[k] = 0
        self._ask()

    # ---- the writer -----------------------------------------------------------------------------

    def is_writer(self) -> bool:
        """Whether the store has a row for us; its number is that of our client slot."""
        self.writer = self.client.ident >> INCARNATION_BITS
        writes = self.writer < self.register.writers
        self.register.own = self.writer if writes else -1
        return writes

    def identify(self) -> int:
        """Our number as a writer. Raises ClientError when the store has no row for us."""
        if not self.is_writer():
            writers = self.register.writers
            raise ClientError(
                f"this process has client slot {self.writer} of the pool, and the store was made "
                f"for {writers} writers at one time, those in slots 0 to {writers - 1}; "
                "make the store with more `writers`, or close the pool in other processes"
            )
        return self.writer

    # ---- the remembered state of the row --------------------------------------------------------

    def take_metadata(self) -> bool:
        """Take our words of M and the empty side from the words read; False: neither is empty.

        False also when `repair` must first handle tuples that other clients have not seen.
        """
        self.quorum.need_row(self.writer)
        self.take_words()
        left = right = True
        for n in range(self.quorum.read):
            replica = self.replicas[self.quorum.order[n]]
            left = left and replica.pointer(self.writer, 0) == self.register.ident
            right = right and replica.pointer(self.writer, 1) == self.register.ident
        self.side = 0 if left else 1
        return left or right

    def take_words(self) -> None:
        """Take our words of M from the words read."""
        for n in range(self.quorum.read):
            replica = self.replicas[self.quorum.order[n]]
            self.mine[replica.k] = replica.metadata(self.writer)

    def infer(self) -> bool:
        """Take our words of M, and infer from them which side is empty; whether they agree.

        The row has a word of M for itself. A pointer whose word has not been changed yet is not
        seen; then a WRITE finds the side in use, and puts the row in order.
        """
        self.take_words()
        sides = 0
        for n in range(self.quorum.read):
            word = self.mine[self.quorum.order[n]]
            sides |= 1 << (1 - side_of(word) if row_of(word) == self.writer else 0)
        self.side = sides >> 1
        self.known = sides < 3
        return self.known

    def is_new(self, word: int) -> None:
        """The current register is new, and has our tuple `word` everywhere."""
        self.swept = True
        for k in range(self.count):
            self.mine[k] = word
        self.side = 1 - side_of(word)
        self.known = True

    def recall(self, words: Any, at: int) -> None:
        """Another register has been selected: take our words of M and the empty side from its entry
        of the cache, if it has them.

        An entry from before a fork, or of a client id that was given up, is not taken.
        """
        self.known = words[at + 4] >> 2 == self.client.ident
        self.swept = self.known and words[at + 4] & 2 != 0
        self.side = words[at + 4] & 1
        self.wrote = False
        self.buffer.reference = 0
        for k in range(self.count):
            self.mine[k] = words[at + FIXED + k]
        self._ask()

    def _ask(self) -> None:
        """Have a READ read our row, if a WRITE would have to: where clients share a word of M, it
        does not show which side of our row is empty."""
        register = self.register
        shared = register.buffers < register.writers and register.locks > 0
        register.asks = shared and not self.known and self.is_writer()

    def note(self, words: Any, at: int) -> None:
        """Note our words of M and the empty side, if they are known, in an entry of the cache."""
        state = self.client.ident << 2 | self.swept << 1 | self.side
        words[at + 4] = state if self.known else 0
        for k in range(self.count):
            words[at + FIXED + k] = self.mine[k]

    # ---- the buffer of a write ------------------------------------------------------------------

    def acquire(self, buffer: Buffer, size: int) -> int:
        """A buffer for a value of that many bytes; its place in the client journal, or -1: no
        memory is ready, and `wanted` says which.

        Its primary is on the first of the register's nodes that is in service.
        """
        wanted, nodes = self.wanted, self.register.nodes
        wanted.size = HEADER + size
        wanted.also = 0
        wanted.node = self.register.node
        for _ in range(self.count):
            if self.endpoint.failed(wanted.node << NODE_SHIFT):
                wanted.node = wanted.node + 1 if wanted.node + 1 < nodes else 0
                continue
            try:
                buffer.reference = self.allocator.allocate(wanted.node, wanted.size, self.count)
                buffer.published = False
                buffer.doubtful = False
                if buffer.reference:
                    return self.client.held - 1
                # Can this node have memory at all?
                self.endpoint.load(self.heap.table_word(wanted.node, 0))
                return -1
            except NodeFailed as error:
                self.view.fail_if_lost(error.node)
                wanted.node = wanted.node + 1 if wanted.node + 1 < nodes else 0
        raise NodeFailed(self.register.node, "all nodes of the key's replicas are lost")

    def take(self, reference: int) -> None:
        """Use the buffer at `reference` for this WRITE. The client journal already names it."""
        self.buffer.reference = reference
        self.buffer.published = False
        self.buffer.doubtful = False

    def prefetch(self, size: int) -> None:
        """Prefetch the memory that a WRITE of so many bytes touches besides the words it reads."""
        k = self.register.first
        for n in range(self.count):
            if n < self.quorum.majority:
                address = self.register.beside(self.buffer.reference, k)
                self.endpoint.prefetch(address, HEADER + size)
            else:
                self.endpoint.prefetch(self.register.pointer(k, self.writer, 0), 16)
            k = k + 1 if k + 1 < self.count else 0

    def retarget(self, held: int) -> None:
        """From now on the register may name the buffer that is at that place of the client
        journal."""
        # ORDER: before the first pointer.
        self.client.retarget(held, self.register.link_address())

    def keep(self, held: int, buffer: Buffer) -> None:
        """Take the buffer out of the client journal, as the register names it; it stays there if
        the register is being given up, or if it is in doubt whether a pointer names it, and is
        freed if no pointer ever named it."""
        stands = not buffer.doubtful
        for n in range(self.quorum.read):
            replica = self.replicas[self.quorum.order[n]]
            if not replica.stands():
                stands = False  # the buffer is resolved with the client journal
        if not buffer.published and not buffer.doubtful:
            self.client.release(held)  # there was a greater tuple wherever it would have been
        elif stands:
            self.client.drop(held)

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

    def recycle(self, word: int, buffer: Buffer) -> None:
        """Free the buffers that `word`, ours and at a majority, makes useless; not `buffer`.

        M is as it was read before `word` was written. Of other rows, our write before has given up
        what was useless then, so only later tuples are looked at.
        """
        own = row_of(word)
        self._recycle_own(own, buffer)
        replica = self.quorum.at(0)
        before = replica.metadata(own)
        since = stamp_of(before) if self.swept and row_of(before) == own else 0
        self.swept = True
        for row in range(self.register.writers):
            there = replica.metadata(row)
            if row == own or row_of(there) != row or not since < stamp_of(there) < stamp_of(word):
                continue
            if not self._is_settled(there):
                self.swept = False
                continue
            reference = replica.named(row, side_of(there))
            # The tuple's own buffer may be gone, and the pointer set for the next one already.
            if reference not in (0, buffer.reference) and self.buffers.is_of(
                reference, replica.k, stamp_of(there)
            ):
                self.give_up(replica.k, row, reference)

    def _recycle_own(self, own: int, buffer: Buffer) -> None:
        for side in range(2):
            first = 0
            for n in range(self.quorum.read):
                replica = self.quorum.at(n)
                reference = replica.named(own, side)
                if reference not in (0, buffer.reference, first):
                    first = first or reference
                    self.give_up(replica.k, own, reference)

    def _is_settled(self, first: int) -> bool:
        """Whether all replicas of a majority had another writer's tuple when they were read, and it
        is VERIFIED: its writer sets no further pointer to its buffer."""
        verified = 0
        for n in range(self.quorum.read):
            there = self.quorum.at(n).metadata(row_of(first))
            verified |= there & VERIFIED
            if there | VERIFIED != first | VERIFIED:
                return False
        return verified != 0

    # ---- repair ---------------------------------------------------------------------------------

    def repair(self) -> int:
        """Empty a pointer of our row, both of which are in use. AGAIN: read once more.

        A client of our slot was killed between two steps, or a copy was put beside our own buffer.
        The client gives up each buffer, or number of a tombstone, to which no word of M leads.
        Then, unless a greater tuple is at a majority, it writes the greatest of our row to a
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
