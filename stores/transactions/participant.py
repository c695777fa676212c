"""A participant of a transaction: one entry of its log, and how it goes through the commit.

The write set of a transaction is a list of participants. Figures 8 to 10 say for the objects of a
write set what is done to each; here each kind of participant says for itself what that is:

    TXObj    a wrapped object: a tree node, an entry of a directory   tx_object.py
    Part     slots of a hash index that are written on a memory node  parts.py
    Extent   memory that is linked from another participant           below

    step         figure           TXObj               Part                   Extent
    reserve      7, line 8        take memory for the new data, and have the log name it (log.py)
    write_new    7, line 8        write the new data  write the new pairs    -
    prepare      7, line 8        take it into use; what comes late is written now
    post_lock,   8, lines 3-6     lock the LLLock     hold each slot         -
    has_locked
    validate     8, lines 7-13    -                   no other slot has the  -
                                                      keys that are inserted
    publish      9, lines 4-5     swing the pointer   -                      -
    release      9, lines 6-7     unlock the LLLock   let go of each slot    -
    undo         8, abort         unlock, to the      -                      -
                                  version from before

All of them but `validate` post their verbs, and the caller ends the phase, for all participants
together.
    unlinked     after DONE       the other data      the other pairs        the other extent

The client whose transaction it is calls all of them. A client that repairs it (repair.py) reads
the participants from the log (try_commit.py), and calls `publish`, `release` and `unlinked`. Each
of these is made of CASes that expect words which never come again, so any number of clients may be
at it.

An `Extent` is memory that another participant links, or does not link any more. A value that is too
long for its tree node is in an object of its own, which the node names. So the extent is there, or
is not, as the node is: it has no lock, and nothing is done to it but freed. An entry of the log
with object 0. A kill leaves behind: an extent in the log, which frees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.stores.transactions.entry_log import LogEntry
from limpet.stores.transactions.layout import EXTENT_PAIR

if TYPE_CHECKING:
    from limpet.stores.transactions.log import Log


STRIDE: Final = 64
"""A power of two: after so many keys or objects a client shows again that it does not stand
still."""


def go_on(membership: Any, count: int) -> None:
    """Show now and then, as `count` goes up, that this client is at work: a client that needs
    memory which our pin keeps from being used again would have us ended."""
    if not count & STRIDE - 1:
        membership.progress()


class Participant(LogEntry):
    """One entry of a log: `at` is the paper's mptr, `old` dptr, and `new` ndptr.

    A kind of participant leaves the steps that it does not need as they are here.
    """

    def describe(self, at: int, old: int, new: int) -> None:
        LogEntry.describe(self, at, old, new)
        self.busy = 0
        """The object or slot in the way of the lock, or of `validate`, as `Repair.repair_if_held`
        takes it."""

    def node(self) -> int:
        """The memory node on which it takes memory."""
        raise NotImplementedError

    def sizes(self) -> list[int]:
        """Bytes of each object that `reserve` and `prepare` take."""
        return []

    def reserve(self, log: Log, allocator: Any) -> bool:
        """Take memory for what is new, and note it in the log, unless it comes late (log.py);
        False: there is no memory ready."""
        raise NotImplementedError

    def write_new(self, log: Log) -> None:
        """Post the writes of what is new, but for what comes late."""

    def prepare(self, log: Log, allocator: Any) -> bool:
        """When the log is there: have what is new be taken into use, and write what comes late;
        False: there is no memory ready."""
        raise NotImplementedError

    def post_lock(self, state: int) -> None:
        """Post the lock of it in the version that was read."""

    def has_locked(self) -> bool:
        """After the `wait` of `post_lock`; False: it has another version, or is locked."""
        return True

    def validate(self) -> bool:
        """Whether it can be written, now that all participants are locked."""
        return True

    def publish(self) -> None:
        """Install what is new, under the lock. Does nothing if another client has done it."""

    def release(self, state: int, committed: bool) -> None:
        """Release what is locked with this state. Does nothing if another client has done it."""

    def has_applied(self) -> bool:
        """After the `wait` of `publish` and `release`, by the client whose transaction it is:
        whether no other client has done a part of them. False, too, if its node is lost."""
        return True

    def undo(self, state: int) -> None:
        """Release it as it was before this client has locked it."""

    def unlinked(self, committed: bool, found: list[int]) -> None:
        """Append references to the objects that nothing names once this decision is carried out."""
        raise NotImplementedError

    def free_unlinked(self, log: Log, committed: bool) -> None:
        """Free what `unlinked` finds. For the client whose transaction it is: the log reads nothing
        for that."""
        found: list[int] = []
        self.unlinked(committed, found)
        for reference in found:
            log.free(reference)

    def named(self, committed: bool) -> list[tuple[int, int]]:
        """Words that name objects of which some are linked, and where: what is left to the owner if
        the log is lost (commit.py). Earlier objects only if it is decided: else they may have been
        another client's all the while."""
        raise NotImplementedError


class Extent(Participant):
    """An extent that becomes linked, `new`, or is not linked any more, `old`."""

    def __init__(
        self,
        old: int,
        new: int,
        link_address: int = 0,
        staging: Any = None,
        leaf: int = 0,
        pair: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        """`link_address`: how a client journal names it. `staging`: of a new one, what writes it
        with this pair, for a key in that leaf."""
        self.describe(0, old, new)
        self.link_address = link_address
        self.staging = staging
        self.leaf = leaf
        self.pair = pair

    def node(self) -> int:
        return self.leaf >> NODE_SHIFT & 0xFF

    def sizes(self) -> list[int]:
        return [] if self.old else [self.staging.store.objects.size_of(*self.pair)]

    def reserve(self, log: Log, allocator: Any) -> bool:
        if self.old:
            log.note(self)
        return True  # a new one comes late

    def prepare(self, log: Log, allocator: Any) -> bool:
        if self.old:
            return True
        reference: int = self.staging.new_extent(allocator, self.leaf, *self.pair)
        if not reference:
            return False
        self.new = reference
        log.note_late(self)
        return True

    def unlinked(self, committed: bool, found: list[int]) -> None:
        reference = (self.old if committed else self.new) & REFERENCE_MASK
        if reference:
            found.append(reference)

    def named(self, committed: bool) -> list[tuple[int, int]]:
        word = self.new | (self.old if committed else 0)
        return [(word, self.link_address | EXTENT_PAIR)]
