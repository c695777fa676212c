"""The commit of a transaction with a log: optimistic concurrency control (rTX 4.3, figure 8).

The text of the paper that we have lacks the figure. It is rebuilt here from section 4.3, which
names lines 1, 2, 4, 5-6, 11-12, 14 and 17-24:

    TXEnd(tx)
     1    write the log of the transaction
     2    lease = now + time to lock and validate so many objects + DRIFT
     3    for obj in the write set:
     4        if CAS(obj.LLLock, the version that was read, lock state of tx) fails:
     5 *          if obj.LLLock is locked and its lease is over:
     6 *              repair(obj.LLLock)
     7            abort
     8    for obj in the read set:
     9        read obj.LLLock and obj.pointer
    10        if they are not as they were read:
    11 *          if obj.LLLock is locked and its lease is over:
    12 *              repair(obj.LLLock)
    13            abort
    14    TryCommit(log)
    17-24 until the log says that the transaction has committed, or was aborted

Here, with a participant (participant.py) in the place of each object:

    line 1        `_prepare`: the log, and the new data that it names (log.py)
    line 2        `Log.write_down` and `Log.publish`: with the lease, the log can be found
    lines 3-4     `_lock_all`: TXObjs in the order of addresses, then slots of hash indexes
    lines 8-10    `validate`, by reads.py: each object that was only read has the lock word and the
                  pointer that it had, so it is not locked, or without a log, when its pointer
                  counts (lllock.py); each key that was only read has the value that it had, or
                  none, and no client holds its slot. Before that, `_is_alone`: no other slot has a
                  key that is inserted (hash_keys.py)
    lines 5-6, 11-12
                  after the abort, when no lock is held: the client looks at what was in the way,
                  `busy`, before it tries the transaction again (repair.py)
    lines 7, 13   try_commit.py
    line 14       `Log.decide`, and `carry_out` (try_commit.py)
    lines 17-24   nothing is tried again: one CAS decides the log, and a client that finds it
                  aborted has aborted

So all that was read was true at one moment, after line 3 and before line 14, and what is written
follows from it; hence transactions are strictly serialisable, with gets (sherman/trees.py,
race/hash_store.py) among them: a get of what is written waits from line 3 until line 14.

A kill leaves behind, where the client journal names the log before what that names is in use:
    before line 3     nothing; or new data in the log, or in the client journal: freed
    lines 3-13        some objects are locked, some slots held, the log INIT: aborted by the client
                      that meets them when the lease is over, or recovers the dead one
    line 14           some objects and slots are new, others locked or held, the log DOING: carried
                      out likewise
    after DONE        the old data is given back, by the client that recovers the dead one

Conflicts never wait, so no client waits in a circle. All of it is one operation of the client.

Phases: each is an exchange with all memory nodes concerned, for all participants together.
    1    line 1: write the log, its parts and the new data
    2    lines 3-4: lock
    (3)  lines 8-10: read what was only read, and the buckets of keys that are inserted. Not in the
         phase of the locks: all has to be looked at when all is locked, and memory nodes do the
         verbs of a phase in any order
    4    line 14: decide
    5    TryCommit, lines 4-7: install and unlock
The paper has a round trip each for the log, the locks, the validation, the decision, the updates,
the unlocking, and DONE. Here updates and unlocking share one, and DONE is not needed
(try_commit.py).
So a transaction that has read the n keys that it writes takes the round trips of n reads, and 4.
Memory that comes late (log.py) takes a phase each after phase 1. Keys that were not read, or leaves
that have changed, take the phases of their look-up before it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant
from limpet.stores.core.status import AGAIN, DONE, NO_MEMORY
from limpet.stores.transactions.entry_log import log_size
from limpet.stores.transactions.layout import KEPT, LATE_SIZE, LOGGED, PART, SLOT
from limpet.stores.transactions.log import Log
from limpet.stores.transactions.participant import Extent, go_on
from limpet.stores.transactions.parts import part_at, part_size
from limpet.stores.transactions.reads import ReadPlace
from limpet.stores.transactions.slot_writes import SlotWrite, slot_of
from limpet.stores.transactions.staged import Staged
from limpet.stores.transactions.try_commit import abort, carry_out, give_back
from limpet.stores.transactions.tx_object import TXObj

if TYPE_CHECKING:
    from limpet.stores.transactions.lllock import LLLocks
    from limpet.stores.transactions.participant import Participant
    from limpet.stores.transactions.parts import Part
    from limpet.stores.transactions.reads import Staging
    from limpet.stores.transactions.staged import StagedNode

ALIGNED: Final = 15
"""A part begins at a multiple of 16, as an object does."""
IN_ORDER: Final = 16
"""So many objects are put in order as they come; more are sorted at the end."""
SLOTS_IN_ORDER: Final = 256
"""Likewise of writes of slots."""
SHIFTED: Final = 8
"""So many writes are moved by one to let another one in between them; more are moved at once."""


class Commit(Staged):
    """The write set of a transaction, and its commit. `begin` starts anew."""

    def __init__(self, pool: Any, locks: LLLocks) -> None:
        self.locks = locks
        self.effort = 0
        """By how many objects the lease is to be longer than for those written."""
        self.writes: list[SlotWrite] = []
        """The changes of slots, in the order of their addresses if they are few; those after the
        first `count` are of earlier transactions, to be used again."""
        self.count = 0
        self.inserts = 0
        """How many of them are of keys that were missing."""
        self.written_reads = 0
        """How many of them are of keys that were read before."""
        self.joined = 0
        """How many `participants` there are, while `run` puts them there."""
        self.parts: list[Part] = []
        self.objects: list[TXObj] = []
        """To be used again, likewise."""
        self.log: Log | None = None
        """To be used again."""
        self._rests = False
        """Whether nothing is staged since `rest`."""
        self._taken: set[int] | None = None
        self._staged: Any = None
        self._staging: Staging | None = None
        """The store whose changes were staged last, and what stages them."""
        self.met: ReadPlace | None = None
        """The key whose leaf could not be staged."""
        self.crowded: list[tuple[Any, bytes, int]] = []
        """For which key of which store there is no room, and in which subtable."""
        self.participants: list[Participant] = []
        """Extents, TXObjs in the order of addresses, parts in that of memory nodes; or those of an
        earlier transaction, until `run`."""
        super().__init__(pool)

    def begin(self, link: int) -> None:
        """Forget what is staged. `link`: how the client journal names a store that resolves the
        log."""
        if self._rests:
            self._rests = False
            self.link = link
            return
        if self.joined > KEPT or self.extents or self.dropped:
            self.participants = []
        if self.changed > KEPT:
            del self.objects[KEPT:]
        self.met = None
        Staged.begin(self, link)
        for index in range(self.count):
            write = self.writes[index]
            write.forget()
        # ORDER: before the list, as in `Reads.clear`.
        self.count = self.inserts = self.written_reads = 0
        if len(self.writes) > KEPT:
            del self.writes[KEPT:]
        self._taken = None
        self._epoch_known = self._same_epoch = False
        if self.crowded:
            self.crowded = []

    def serve(self, locks: LLLocks, reads: Any) -> None:
        """Begin the commit of a transaction with that read set. `locks`: of a store that it
        writes."""
        self.locks = locks
        self.reads = reads

    def rest(self) -> None:
        """Forget all of a transaction that is over."""
        self.begin(0)
        self.reads = None
        self._rests = True

    def place_of(self, busy: int) -> ReadPlace | None:
        """The key and store for which this transaction writes the object or slot that was in the
        way. None: it writes neither."""
        for index in range(self.count):
            write = self.writes[index]
            if write.slot | SLOT == busy:
                return ReadPlace(write.keys.store, write.key, busy)
        node = self.node_at(busy)
        if node is not None and node.store is not None:
            return ReadPlace(node.store, node.key, busy)
        return self.met if self.met is not None and self.met.at == busy else None

    def meet(self, store: Any, key: bytes, at: int) -> None:
        """The change of this key could not be staged, because of what is there."""
        self.busy = at
        self.met = ReadPlace(store, key, at)

    def go_on(self, count: int) -> None:
        """As `participant.go_on`."""
        go_on(self.membership, count)

    def write_slot(self, slot: int, inserts: bool, was_read: bool) -> SlotWrite:
        """The change of a slot, in its place among the others, for the caller to stage. `inserts`:
        it is of a key that was missing; `was_read`: of one that the transaction has read."""
        if self.count == len(self.writes):
            self.writes.append(SlotWrite())
        write = self.writes[self.count]
        write.slot = slot
        if self.count and self.count < SLOTS_IN_ORDER:
            place = self._place_in_order(slot)
            if place < self.count:
                self._move_to(place, write)
        self.count += 1
        self.inserts += inserts
        self.written_reads += was_read
        if self._taken is not None:
            self._taken.add(slot)
        return write

    def _move_to(self, place: int, write: SlotWrite) -> None:
        """Move the write that is to be staged to this place, before others."""
        last = self.count
        if last - place > SHIFTED:
            del self.writes[last]
            self.writes.insert(place, write)
        else:
            while last > place:
                self.writes[last] = self.writes[last - 1]
                last -= 1
            self.writes[place] = write

    def _place_in_order(self, slot: int) -> int:
        """Where a write of this slot belongs among those that are staged; there are some."""
        first, end = 0, self.count
        last = self.writes[end - 1]
        if last.slot < slot:
            return end
        while first < end:
            middle = (first + end) >> 1
            other = self.writes[middle]
            if other.slot < slot:
                first = middle + 1
            else:
                end = middle
        return first

    def taken(self) -> set[int]:
        """The slots that are written."""
        if self._taken is None:
            self._taken = {write.slot for write in self.writes[: self.count]}
        return self._taken

    def is_of_read_epoch(self) -> bool:
        """Whether nothing that was read can have been used again until the end of this
        operation."""
        # ORDER: once after our pin: nothing is used again from here on.
        if not self._epoch_known:
            reads = self.reads
            self._same_epoch = reads.is_of_this_epoch()
            self._epoch_known = True
        return self._same_epoch

    def staging_of(self, store: Any) -> Staging:
        """The part that stages the changes to a store in this commit."""
        if self._staged is not store or self._staging is None:
            self._staging, self._staged = store.staging(self), store
        return self._staging

    def complete(self) -> bool:
        """The last look before it is decided, when all locks are held. False: a client is in the
        way."""
        return True

    def carry_out(self, log: Log) -> None:
        """Carry out what is decided."""
        carry_out(log)

    # ---- committing -----------------------------------------------------------------------------

    def run(self) -> int:
        """Commit: DONE; AGAIN, if there is a conflict; NO_MEMORY. Nothing has happened then.

        Raises NodeFailed; nothing has happened then either, on the nodes that are left.
        """
        if not self._is_as_read():
            return AGAIN
        state = self.locks.draw(LOGGED)
        log = self._open(state, self._join())
        if log is None:
            return NO_MEMORY
        try:
            outcome = self._lock_and_validate(log, state)  # lines 1-13
            if outcome == DONE and not log.decide():  # line 14: TryCommit, lines 1-3
                outcome = AGAIN
            if outcome != DONE and not log.is_there:
                # Nothing names what was allocated but the client journal.
                self.client.settle()
                return outcome
            if outcome != DONE:
                abort(log, self.participants, state)
                log.close()
                return outcome
            # CRASH(decided): nothing is changed; a client that meets a lock, or recovers us,
            # carries it out.
            self.carry_out(log)  # line 14: TryCommit, lines 4-8
            # CRASH(over): all is changed; recovery gives back what was dropped.
            give_back(log, True)
        except NodeFailed:
            if not log.decided:
                if log.is_there and log.is_lost():  # else it is in the client journal, and says all
                    self._end_without(state, False)
                raise
            self._end_without(state, True)
        log.close()
        return DONE

    def is_single(self) -> bool:
        """Whether one object, or a slot with a key that was there, is all that it has read and
        writes: then it needs no log (section 4.5, Opt1)."""
        if self.count + self.changed != 1 or self.extents or self.dropped:
            return False
        reads = self.reads
        if reads is not None and reads.missing is not None:
            return False
        if self.count:
            write = self.writes[0]
            return not write.inserts and self._has_read_only(write)
        node = self._first_changed()
        if node.page is None or not node.store.parameters.opt1:
            return False
        return reads is None or (not reads.count and reads.has_no_object_but(node.at))

    def _first_changed(self) -> StagedNode:
        """The first object that is written; there is one."""
        index = 0
        while True:
            node = self.nodes[index]
            if node.written:
                return node
            index += 1

    def _has_read_only(self, write: SlotWrite) -> bool:
        """Whether nothing was read but the key of this write."""
        reads = self.reads
        if reads is None:
            return True
        if reads.objects_count:
            return False
        return not reads.count or (reads.count == 1 and reads.keys[0] is write.read)

    def run_alone(self) -> int:
        """Commit what `is_single` without a log: as `run`."""
        if not self._is_as_read():
            return AGAIN
        if self.count:
            write = self.writes[0]
            outcome = write.write_alone()
            if outcome == AGAIN:
                self.busy = write.slot | SLOT
            return outcome
        node = self._first_changed()
        if not self._is_linked(node):
            self.busy = node.at
            return AGAIN
        outcome = int(
            node.store.writer.change_alone(node.at, node.version, node.pointer, node.page)
        )
        if outcome == AGAIN:
            self.busy = node.at
        return outcome

    def _is_linked(self, node: StagedNode) -> bool:
        """Whether the pointer with which an object is staged is one that it has had since our pin:
        the client journal is to name what it leads to. One that an earlier operation has read may
        lead to memory that was used again; unless it is the epoch of that operation still."""
        reads = self.reads
        if reads is None or not reads.objects_count or self.is_of_read_epoch():
            return True
        ticket = self.endpoint.post_load(node.at + POINTER)
        self.endpoint.wait()
        return bool(self.endpoint.result(ticket) == node.pointer)

    def _is_as_read(self) -> bool:
        """Whether all objects that are written have been staged in the version that the transaction
        has read before, or in one with the same values of all that it has read."""
        reads = self.reads
        if reads is None or not reads.objects_count:
            return True
        for index in range(self.nodes_count):
            node = self.nodes[index]
            if node.written:
                read = reads.object_at(node.at)
                if read is None or read.lock == node.version:
                    continue
                if not reads.renew(node.at, node.version):
                    self.busy = node.at
                    return False
        return True

    def _lock_and_validate(self, log: Log, state: int) -> int:
        """Lines 1-13: DONE: all is locked, and as it was read; AGAIN or NO_MEMORY: abort."""
        if not self._prepare(log):  # line 1
            return NO_MEMORY
        log.publish(state, self.changed + self.count + self.effort)  # line 2
        # CRASH(published): nothing is locked; recovery aborts it.
        if not self._lock_all(state):  # lines 3-7
            return AGAIN
        if not (self._is_alone() and self.validate()):  # lines 8-13
            return AGAIN
        return DONE if self.complete() else AGAIN

    def _open(self, state: int, size: int) -> Log | None:
        """Begin to write the log, of `size` bytes; None: there is no memory ready."""
        coherent = self.allocator.coherent()
        coherent.begin_batch()
        in_journal = size > LATE_SIZE
        if in_journal:
            reference = coherent.allocate(self._log_node(), size, 1)
        else:
            reference = coherent.next_object(self._log_node(), size, 1)
        if not reference:
            return None
        if self.log is None:
            self.log = Log(self.locks, reference)
        else:
            self.log.attach(self.locks, reference)
        self.log.begin(state, self.link, in_journal, self.participants)
        return self.log

    def _prepare(self, log: Log) -> bool:
        """Line 1, a phase of its own: write the log, and all new data; False: there is no memory
        ready."""
        allocator = self.allocator
        if not allocator.is_coherent:
            allocator.begin_batch()  # else `_open` has done it
        for index in range(self.joined):
            participant = self.participants[index]
            go_on(self.membership, index + 1)
            if not participant.reserve(log, allocator):
                return False
        log.write_down(self.changed + self.count + self.effort)
        if not self.extents:
            self._write_new(log)
        self.endpoint.wait()
        log.name()
        for index in range(self.joined):
            participant = self.participants[index]
            go_on(self.membership, index + 1)
            if not participant.prepare(log, allocator):
                log.give_up()
                return False
        if self.extents:
            # The nodes name their extents by now. They are written in the phase of the locks.
            self._write_new(log)
        return True

    def _write_new(self, log: Log) -> None:
        """Post the writes of all new data, but for what comes late."""
        for index in range(self.joined):
            participant = self.participants[index]
            participant.write_new(log)

    def _lock_all(self, state: int) -> bool:
        """Lines 3-7, a phase of its own: lock all that is written; False: one is in the way."""
        for index in range(self.joined):  # line 3
            participant = self.participants[index]
            go_on(self.membership, index + 1)
            participant.post_lock(state)  # line 4
        self.endpoint.wait()
        locked = True
        for index in range(self.joined):
            participant = self.participants[index]
            if not participant.has_locked():
                if locked:
                    self.busy = participant.busy
                locked = False
        return locked

    def validate(self) -> bool:
        """Lines 8-13: whether all that was only read is as it was."""
        reads = self.reads
        if reads is None:
            return True
        if reads.count:
            all_held = self.written_reads == reads.count
            if all_held and not reads.objects_count and reads.missing is None:
                return True  # it holds the slots of all keys
            for index in range(reads.count):
                read = reads.keys[index]
                read.held = False
            for index in range(self.count):
                write = self.writes[index]
                if write.read is not None:
                    write.read.held = True
        if reads.objects_count:
            for index in range(self.nodes_count):
                node = self.nodes[index]
                if node.written:
                    other = reads.object_at(node.at)
                    if other is not None:
                        other.held = True
        if reads.hold():
            return True
        self.busy = reads.changed.at
        return False

    def _is_alone(self) -> bool:
        """Whether no other slot has a key that is inserted, now that all slots are held."""
        if not self.inserts:
            return True
        for participant in self.participants:
            if not participant.validate():
                self.busy = participant.busy
                return False
        return True

    def _end_without(self, state: int, committed: bool) -> None:
        """Carry out what is decided, or undo all, when the log was lost with its memory node.

        A client that waited for us may have let go of what we held, as it was, and others have
        changed it since (repair.py). So of what was, and what should be, all stays that is linked.
        """
        left: list[tuple[int, int]] = []
        for participant in self.participants:
            with contextlib.suppress(NodeFailed):
                if committed:
                    participant.publish()
                participant.release(state, committed)
            left += participant.named(committed)
        with contextlib.suppress(NodeFailed):
            self.endpoint.wait()
        for word, link_address in left:
            reference = word & REFERENCE_MASK
            if not is_vacant(reference):
                self.heap.settle(reference, link_address)

    # ---- the write set --------------------------------------------------------------------------

    def _join(self) -> int:
        """Make the participants of what is staged; bytes of the log, and of each part."""
        self.joined = 0
        if self.extents or self.dropped:
            self._join_extents()
        if self.changed:
            self._join_objects()
        if not self.count:
            self._leave_out()
            return self._usual_size(log_size(self.joined))
        if self.count > SLOTS_IN_ORDER:
            self.writes[: self.count] = sorted(self.writes[: self.count], key=slot_of)
        parts = begin = most = inside = 0
        log_node = self._log_node()
        while begin < self.count:
            write = self.writes[begin]
            node = _node_of(write.slot)
            end = self._end_of_part(begin, node)
            if node == log_node:
                inside = end - begin
            else:
                most = max(most, end - begin)
            if parts == len(self.parts):
                self.parts.append(self.new_part())
            part = self.parts[parts]
            part.stage(node, self.writes, begin, end, self.membership)
            self._add(part)
            parts += 1
            begin = end
        self._leave_out()
        size = log_size(self.joined)
        offset = size + ALIGNED & ~ALIGNED
        if inside:
            size = offset + part_size(inside)
        size = self._usual_size(max(size, part_size(most)))
        for index in range(parts):
            part = self.parts[index]
            part.place_at(size, offset if part.memory_node == log_node else 0)
        return size

    def _join_extents(self) -> None:
        for staging, leaf, key, value in self.extents:
            pair = (key, value)
            self._add(Extent(0, 0, staging.store.link, staging, leaf, pair))
        for reference, link_address in self.dropped.items():
            self._add(Extent(reference, 0, link_address))

    def _add(self, participant: Participant) -> None:
        """Add a participant, in the place of one of an earlier transaction if there is one."""
        if self.joined < len(self.participants):
            self.participants[self.joined] = participant
        else:
            self.participants.append(participant)
        self.joined += 1

    def _leave_out(self) -> None:
        """Drop the participants of an earlier transaction that are behind those of this one."""
        while len(self.participants) > self.joined:
            self.participants.pop()

    def _join_objects(self) -> None:
        """Make participants of the objects that are written, in the order of addresses."""
        used = 0
        first = self.joined
        for index in range(self.nodes_count):
            node = self.nodes[index]
            if not node.written:
                continue
            if used == len(self.objects):
                self.objects.append(TXObj.__new__(TXObj))
            made = self.objects[used]
            made.stage(self.locks, node.at, node.version, node.pointer, node.page, node.size)
            self._add(made)
            used += 1
            place = self.joined - 1
            if used <= IN_ORDER:
                while place > first:
                    other = self.participants[place - 1]
                    if other.at < node.at:
                        break
                    self.participants[place] = other
                    place -= 1
                self.participants[place] = made
        if used > IN_ORDER:
            objects = sorted(self.participants[first : self.joined], key=address_of)
            self.participants[first : self.joined] = objects

    def _end_of_part(self, begin: int, node: int) -> int:
        """Where the writes end that are on this memory node, as the one at `begin` is; slots in the
        order of addresses are in that of memory nodes."""
        end = begin + 1
        while end < self.count:
            write = self.writes[end]
            if _node_of(write.slot) != node:
                break
            end += 1
        return end

    def _usual_size(self, size: int) -> int:
        """The size of some new data that is as large, for which there is memory; that of another
        size may be missing."""
        best = 0
        for index in range(self.nodes_count):
            node = self.nodes[index]
            if node.page is not None:
                each = node.size
                if size <= each and (not best or each < best):
                    best = each
        for index in range(self.count):
            write = self.writes[index]
            each = write.size
            if size <= each and (not best or each < best):
                best = each
        return best or size

    def new_part(self) -> Part:
        """One more part."""
        return part_at(self.endpoint, 0)

    def _log_node(self) -> int:
        """The memory node of the log: that of its first object."""
        if not self.changed:
            write = self.writes[0]
            return _node_of(write.slot)
        first = 0
        for index in range(self.nodes_count):
            node = self.nodes[index]
            if node.written and (not first or node.at < first):
                first = node.at
        return _node_of(first)

    def replenish(self, sparing: int = 0, update: bool = False) -> None:
        """Have memory ready for all of it, as `have_ready` does."""
        size, coherent = self._join(), self.allocator.coherent()
        wanted = [(coherent, self._log_node(), size)]
        late: list[tuple[Any, int, int]] = []
        # ORDER: as `_prepare` takes them: runs of pages that fit in one order may not in another.
        for participant in self.participants:
            node = participant.node()
            comes_late = type(participant) is Extent
            if participant.at == PART and node != self._log_node():
                comes_late = size > LATE_SIZE
                (late if comes_late else wanted).append((coherent, node, size))
            for each in sorted(participant.sizes(), key=is_late):
                place = late if comes_late or is_late(each) else wanted
                place.append((self.allocator, node, each))
        wanted += late
        self.have_ready(wanted, sparing, update)


def is_late(size: int) -> bool:
    """Whether an object of this size comes late (log.py)."""
    return size > LATE_SIZE


def address_of(participant: Participant) -> int:
    """The address of an object that is written, by which they are sorted."""
    return participant.at


def _node_of(address: int) -> int:
    """The memory node of an address."""
    return address >> NODE_SHIFT & 0xFF
