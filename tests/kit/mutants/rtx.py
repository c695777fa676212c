"""Known-bad variants of the `rtx-sherman` store and of transactions, for the checkers to catch.

Each is the shipped code with some functions replaced, run uncompiled (uncompiled.py). Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from kit.mutants import uncompiled
from kit.mutants.race import ReusesAtOnce
from kit.mutants.uncompiled import Change, Instead, always, never, nothing, replaced, with_part
from limpet.shm import pool as shm_pool
from limpet.shm.endpoint.slots import INCARNATION_BITS, START_US
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant
from limpet.stores.core.status import AGAIN, MISSING, PUT
from limpet.stores.rtx import transaction
from limpet.stores.sherman.layout import ELSEWHERE, GONE, SLOTS
from limpet.stores.transactions.layout import (
    COMMITTED,
    LOCKED,
    LOG_DONE,
    LOGGED,
    SLOT_SHIFT,
    STATE_MASK,
    TIME_MASK,
    TX_LOG,
    TX_TIME,
)
from limpet.stores.transactions.lllock import slot_at


@dataclasses.dataclass(frozen=True)
class Mutant(uncompiled.Mutant):
    """`no_grace`: memory is used again at once."""

    no_grace: bool = False


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Make the pools of this block the mutant's."""
    store = ("sherman/transactional", "RtxSherman")
    with (
        uncompiled.store_in_force(uncompiled.TRANSACTIONS, store, mutant.changes) as made,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(transaction, "run", made["rtx/transaction"].run)
        if mutant.no_grace:
            patch.setattr(shm_pool, "Grace", ReusesAtOnce)
        yield


# ---- lock states ---------------------------------------------------------------------------------


def takes_the_leaf_that_is_hinted_at(is_its_leaf: Any) -> Any:
    def run(self: Any, page: Any, key: bytes, hinted: bool) -> bool:
        return bool((hinted and page.level == 0) or is_its_leaf(self, page, key, hinted))

    return run


def draws(time: Callable[[Any], int], owned: bool = True) -> Change:
    """`LLLocks.draw` with the time of another clock; `owned`: also without a log, of a slot."""

    def draw(self: Any, logged: int) -> int:
        slot = self.client.ident >> INCARNATION_BITS
        return LOCKED | logged | (slot if owned or logged else 0) << SLOT_SHIFT | time(self)

    return replaced("transactions/lllock", "LLLocks.draw", draw)


def in_milliseconds(locks: Any) -> int:
    return (int(locks.endpoint.microseconds()) - START_US) // 1000 * 1000


def by_its_own_count(locks: Any) -> int:
    """It is not kept for the slot."""
    locks.last = max(int(locks.now()), vars(locks).get("last", 0) + 1)
    return int(locks.last)


# ---- logs ----------------------------------------------------------------------------------------


def leaves_locks_of_what_is_done(logged: Any) -> Any:
    def run(self: Any, at: int, state: int, log: Any) -> int:
        return AGAIN if log.state() & STATE_MASK == LOG_DONE else int(logged(self, at, state, log))

    return run


def carries_out_nothing_that_is_done(carry_out: Any) -> Any:
    def run(log: Any) -> bool:
        word = log.state()
        return bool(word & COMMITTED if word & STATE_MASK == LOG_DONE else carry_out(log))

    return run


def looks_at_the_header_again(carry_out: Any) -> Any:
    """After the entries, which are read once; those of another transaction are left alone."""
    participants_of = carry_out.__globals__["participants_of"]

    def run(log: Any) -> bool:
        state, commits = log.owner(), bool(log.commits())
        log.noted = participants_of(log)
        return bool(carry_out(log)) if log.owner() == state else commits

    return run


def current_whosever(current: Any) -> Any:
    """`Log.current` of whatever transaction."""
    log_of = current.__func__.__globals__

    def run(locks: Any, state: int) -> Any:
        slot, time = slot_at(state), state & TIME_MASK
        if locks.endpoint.load(slot + TX_TIME) != time:
            return None
        log = log_of["Log"](locks, locks.endpoint.load(slot + TX_LOG))
        return log if locks.endpoint.load(slot + TX_TIME) == time else None

    return staticmethod(run)


def applies_first(decide: Any) -> Any:
    def run(self: Any) -> bool:
        for participant in self.noted:
            participant.publish()
        return bool(decide(self))

    return run


def gives_back_only_what_is_new(give_back: Any) -> Any:
    def run(log: Any, committed: bool) -> None:
        if not committed:
            give_back(log, committed)

    return run


def names_it_first(write_down: Any) -> Any:
    """The client journal says that it is a log before it is written."""

    def run(self: Any, objects: int) -> None:
        if not self.in_journal:
            self.client.log(self.reference, self.link)
            self.use(self.reference)
            self.in_journal = True
        write_down(self, objects)

    return run


def forgets_first(note_late: Any) -> Any:
    """An object that comes late leaves the client journal before the log names it."""

    def run(self: Any, entry: Any) -> None:
        self.client.drop_from(1)
        note_late(self, entry)

    return run


def uses_at_once(reserve: Any) -> Any:
    """New data is in use before the client journal names the log."""

    def run(self: Any, log: Any, allocator: Any) -> bool:
        done = bool(reserve(self, log, allocator))
        if self.new and self.data is not None:
            log.client.heap.take(self.new)
        return done

    return run


def counts_after_the_first(note_object: Any) -> Any:
    """The changes are added up when the first object has been read, and not before."""
    changes = note_object.__globals__["changes"]

    def run(self: Any, *read: Any) -> bool:
        first = not self.objects_count
        noted = bool(note_object(self, *read))
        if first:
            self.counted = changes(self.client, 4)
        return noted

    return run


def renews_unseen(self: Any, read: Any, lock: int, pointer: int) -> bool:
    """The new state of a leaf is noted, and no key of it is looked at."""
    if lock & LOCKED and lock & LOGGED:
        return False
    read.lock, read.pointer = lock, pointer
    return True


# ---- one buffer for all logs ---------------------------------------------------------------------


class OwnBuffer:
    """Allocators that give out one buffer again and again, for one client's logs."""

    def __init__(self, commit: Any) -> None:
        self.commit = commit

    def coherent(self) -> OwnBuffer:
        return self

    def begin_batch(self) -> None:
        self.commit.allocator.other.coherent().begin_batch()

    def next_object(self, node: int, size: int, replicas: int) -> int:
        commit = self.commit
        buffer = int(vars(commit.locks).get("buffer", 0))
        if not buffer:
            buffer = int(commit.allocator.other.coherent().next_object(node, size, replicas))
            commit.locks.buffer = buffer
        return buffer


def opens_its_buffer(open_log: Any) -> Any:
    def run(self: Any, state: int, size: int) -> Any:
        allocator = self.allocator
        buffer = OwnBuffer(self)
        self.allocator = Instead(allocator, coherent=buffer.coherent)
        try:
            return open_log(self, state, size)
        finally:
            self.allocator = allocator

    return run


def keeps_its_buffer(log: Any) -> None:
    """A client gives back no log."""
    log.free_left()
    log.client.drop(0)


# ---- repair --------------------------------------------------------------------------------------


def copies_for_no_lock(copy_for: Any) -> Any:
    def run(self: Any, at: int, old: int, state: int) -> int:
        return int(copy_for(self, at, old, 0))

    return run


def reads_the_lock_first(self: Any, at: int, state: int) -> int | None:
    return self.endpoint.load(at + POINTER) if self.endpoint.load(at) == state else None


def says_that_nothing_commits(carry_out: Any) -> Any:
    def run(self: Any, log: Any) -> bool:
        carry_out(self, log)
        return False

    return run


# ---- trees ---------------------------------------------------------------------------------------


def reads_what_may_be_decided(self: Any, leaf: Any, at: int, near: int) -> bool:
    leaf.lock, leaf.at = self.endpoint.load(at), at
    leaf.pointer = self.endpoint.load(at + POINTER)
    self.endpoint.wait()
    if is_vacant(leaf.pointer):
        leaf.page.reset(0 if at == self.roots[leaf.tree] else GONE, b"", None, 0)
    else:
        leaf.page.read(leaf.pointer & ADDRESS_MASK)
        self.endpoint.wait()
    return True


def reads_what_is_gone_as_empty(read: Any) -> Any:
    def run(self: Any, leaf: Any, at: int, near: int) -> bool:
        there = bool(read(self, leaf, at, near))
        if there and leaf.page.level == GONE:
            leaf.page.reset(0, b"", None, 0)
        return there

    return run


def takes_any_guess(read: Any) -> Any:
    """The node whose pointer was guessed counts, whatever pointer its object has."""

    def run(self: Any, leaf: Any, at: int, near: int) -> bool:
        guess = self.routes[leaf.tree].pointer_seen(at)
        there = bool(read(self, leaf, at, near))
        if there and guess:
            leaf.page.read(guess & ADDRESS_MASK)
        return there

    return run


def reads_the_node_first(read: Any) -> Any:
    """The node whose pointer was guessed is read before its object."""

    def run(self: Any, leaf: Any, at: int, near: int) -> bool:
        guess = self.routes[leaf.tree].pointer_seen(at)
        early = self.blank().page
        if guess:
            early.read(guess & ADDRESS_MASK)
            early.image.own()
        there = bool(read(self, leaf, at, near))
        if there and guess and leaf.pointer == guess:
            page = leaf.page
            page.image.own()
            page.words[:] = early.words
            page.parse(guess & ADDRESS_MASK)
        return there

    return run


def locks_nothing(lock: Any) -> Any:
    """A lock that is posted is a look at the version."""

    def run(self: Any, *arguments: Any) -> bool:
        def look(at: int, version: int, state: int) -> int:
            return int(self.endpoint.post_load(at))

        return bool(with_part("locks", post_acquire=look)(lock)(self, *arguments))

    return run


def moves_nothing_empty(remove: Any) -> Any:
    """Entries that begin where the removed one does stay there."""

    def run(self: Any, index: int) -> None:
        offset, heap = self.offset(index), self.heap
        others = [other for other in range(self.count) if other != index]
        beside = [other for other in others if self.offset(other) == offset]
        remove(self, index)
        for other in beside:
            self.words[SLOTS + other - (other > index)] -= self.heap - heap

    return run


def releases_as_it_was(change: Any) -> Any:
    def run(self: Any, key: bytes, value: bytes, mode: int, new: int, state: int) -> int:
        page = self.leaf.page
        is_keys = not page.level and (page.exact or page.has(key))
        if is_keys and (page.exact or mode == PUT):
            return int(change(self, key, value, mode, new, state))
        self.locks.release(self.leaf.at, state)
        self._settle_hand(1, False)
        return MISSING if is_keys else ELSEWHERE

    return run


# ---- transactions --------------------------------------------------------------------------------


# ---- the variants --------------------------------------------------------------------------------

LOG: Final = "transactions/log"
TRY_COMMIT: Final = "transactions/try_commit"
REPAIR: Final = "transactions/repair"
MILLISECOND: Final = Mutant("r1-time-is-in-milliseconds", (draws(in_milliseconds),))
NOT_PERSISTED: Final = Mutant("r1-time-is-not-kept-for-the-slot", (draws(by_its_own_count),))
LOCK_OF_DONE: Final = Mutant(
    "r2-lock-of-a-log-that-is-done-stands",
    (Change(REPAIR, "Repair._logged", leaves_locks_of_what_is_done),),
)
LOCKED_BY_DEAD: Final = Mutant(
    "r2-recovery-of-a-log-that-is-done-releases-nothing",
    (
        Change(TRY_COMMIT, "carry_out", carries_out_nothing_that_is_done),
        replaced(LOG, "Log.hide", nothing),
        Change(LOG, "Log.current", current_whosever),
    ),
)
ONE_BUFFER: Final = Mutant(
    "r3-one-buffer-for-all-logs-of-a-client",
    (
        Change("transactions/commit", "Commit._open", opens_its_buffer),
        replaced(LOG, "Log.close", keeps_its_buffer),
    ),
)
SAME_STATE_WORD: Final = Mutant(
    "r4-one-state-word-for-all-logs-of-a-client",
    (*ONE_BUFFER.changes, Change(TRY_COMMIT, "carry_out", looks_at_the_header_again)),
)
ANYBODYS: Final = Mutant(
    "r5-lock-without-a-log-is-nobodys", (draws(lambda locks: locks.now(), owned=False),)
)
NO_GRACE: Final = Mutant("r6-memory-is-used-again-at-once", no_grace=True)
NOT_MOVED: Final = Mutant(
    "r6-released-with-the-pointer-as-it-was",
    (Change(REPAIR, "Repair._unlogged", with_part("locks", post_install=never)),),
)
COPIED_TWICE: Final = Mutant(
    "r6-copy-does-not-say-for-which-lock-it-was-made",
    (Change("sherman/transactional", "RtxSherman.copy_for", copies_for_no_lock),),
)
POINTER_AFTER_LOCK: Final = Mutant(
    "r6-pointer-is-read-after-the-lock",
    (replaced(REPAIR, "Repair._pointer_under", reads_the_lock_first),),
)
READS_DECIDED: Final = Mutant(
    "r8-reader-takes-what-may-be-decided",
    (replaced("sherman/tx_trees", "TxTrees.read", reads_what_may_be_decided),),
)
ANY_GUESS: Final = Mutant(
    "node-counts-though-its-object-has-another-pointer",
    (Change("sherman/tx_trees", "TxTrees.read", takes_any_guess),),
)
NODE_FIRST: Final = Mutant(
    "node-is-read-before-its-object",
    (Change("sherman/tx_trees", "TxTrees.read", reads_the_node_first),),
)
NO_FENCES: Final = Mutant(
    "r8-fences-are-not-looked-at",
    (Change("sherman/trees", "Trees._is_its_leaf", takes_the_leaf_that_is_hinted_at),),
)
GONE_IS_EMPTY: Final = Mutant(
    "r8-vacated-node-is-an-empty-one",
    (Change("sherman/tx_trees", "TxTrees.read", reads_what_is_gone_as_empty),),
)
BLIND_DELETE: Final = Mutant(
    "r10-absence-found-at-staging-is-not-noted",
    (replaced("sherman/write_set", "WriteSet._read_as_absent", always),),
)
AT_ONCE: Final = replaced("rtx/transaction", "OPTIMISTIC", 0)
"""After the first conflict, what was read is read again under locks."""
CUTS_AT_ONCE: Final = Mutant("cuts-at-once", (AT_ONCE,))
CUT_WHATEVER_BECAME_OF_IT: Final = Mutant(
    "r11-cut-whose-locks-may-have-been-released",
    (AT_ONCE, replaced("rtx/cut", "Cut._stands", always)),
)
CUT_WITHOUT_LOCKS: Final = Mutant(
    "r11-cut-that-locks-nothing",
    (AT_ONCE, Change("rtx/cut", "Cut._lock", locks_nothing)),
)
STARTS_AGAIN: Final = Mutant(
    "r11-reader-starts-again-whenever-anything-changed",
    (replaced("rtx/transaction", "OPTIMISTIC", 1 << 62),),
)
MOVES_NOTHING_EMPTY: Final = Mutant(
    "r12-entry-without-bytes-stays-behind-the-heap",
    (Change("sherman/page", "Page.remove", moves_nothing_empty),),
)
SIBLINGS_ONLY: Final = Mutant(
    "scan-takes-what-follows-for-the-next-leaf",
    (replaced("sherman/page", "Page.begins_at", always),),
)
NOT_VALIDATED: Final = Mutant(
    "reads-are-not-validated", (replaced("transactions/commit", "Commit.validate", always),)
)
READS_TORN: Final = Mutant(
    "what-was-read-is-not-looked-at-again",
    (replaced("transactions/reads", "Reads.hold_again", always),),
)
RENEWED_UNSEEN: Final = Mutant(
    "leaf-with-other-values-is-taken-for-the-same",
    (replaced("transactions/reads", "Reads._renew", renews_unseen),),
)
NOT_COUNTED: Final = Mutant(
    "changes-are-not-counted",
    (
        replaced(LOG, "begin_change", nothing),
        replaced("sherman/leaf_writer", "begin_change", nothing),
    ),
)
COUNTED_LATE: Final = Mutant(
    "changes-are-added-up-after-the-first-look-up",
    (Change("transactions/reads", "Reads.note_object", counts_after_the_first),),
)
NAMED_FIRST: Final = Mutant(
    "log-is-named-as-one-before-it-is-written",
    (Change(LOG, "Log.write_down", names_it_first),),
)
ALL_LATE: Final = Mutant(
    "all-new-data-comes-late",
    tuple(
        replaced(f"transactions/{each}", "LATE_SIZE", 64)
        for each in ("tx_object", "parts", "commit")
    ),
)
"""As large objects do; nothing is bad about it."""
FORGETS_FIRST: Final = Mutant(
    "what-comes-late-leaves-the-journal-before-the-log-names-it",
    (*ALL_LATE.changes, Change(LOG, "Log.note_late", forgets_first)),
)
USED_FIRST: Final = Mutant(
    "what-a-log-is-to-name-is-in-use-before-the-journal-has-the-log",
    (Change("transactions/tx_object", "TXObj.reserve", uses_at_once),),
)
APPLIES_FIRST: Final = Mutant(
    "applies-before-it-is-decided", (Change(LOG, "Log.decide", applies_first),)
)
FREES_NEW: Final = Mutant(
    "recovery-frees-what-was-committed",
    (Change("sherman/transactional", "RtxSherman.carry_out", says_that_nothing_commits),),
)
KEEPS_OLD: Final = Mutant(
    "old-data-is-not-given-back",
    (Change("transactions/try_commit", "give_back", gives_back_only_what_is_new),),
)
NOTHING_TO_CHANGE: Final = Mutant(
    "leaf-with-nothing-to-change-is-released-as-it-was",
    (Change("sherman/leaf_writer", "LeafWriter._change_locked", releases_as_it_was),),
)
NOT_BEGUN: Final = Mutant(
    "leaf-is-locked-before-the-journal-says-with-what",
    (replaced("sherman/page", "Page.begin", nothing),),
)
UNCHANGED: Final = Mutant("unchanged")
