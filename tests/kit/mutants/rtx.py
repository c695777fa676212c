"""Known-bad variants of the `rtx-sherman` store and of transactions, for the checkers to catch.

Each is the shipped source, run uncompiled (source.py), with some functions, or some lines,
replaced. Those named
after a trap put back what the paper says, or leaves open; the others are steps of our own that look
as if they could be left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from kit.mutants.race import ReusesAtOnce
from kit.mutants.source import from_source
from limpet.shm import pool as shm_pool
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores import pool as stores_pool
from limpet.stores.rtx.layout import POINTER
from limpet.stores.sherman.layout import ELSEWHERE, GONE
from limpet.stores.status import MISSING, PUT
from limpet.stores.vacant import is_vacant

SOURCES: Final = (
    "stores/records.py", "stores/inline.py", "stores/rtx/lllock.py", "stores/entry_log.py",
    "stores/rtx/log.py", "stores/rtx/participant.py", "stores/rtx/tx_object.py",
    "stores/rtx/extents.py", "stores/rtx/parts.py", "stores/rtx/participants.py",
    "stores/rtx/try_commit.py", "stores/rtx/abort.py", "stores/rtx/reads.py",
    "stores/rtx/repair.py", "stores/staged.py", "stores/sherman/page.py",
    "stores/sherman/routes.py", "stores/sherman/check.py", "stores/sherman/trees.py",
    "stores/sherman/tx_trees.py", "stores/sherman/scans.py", "stores/sherman/leaf_writer.py",
    "stores/sherman/write_set.py", "stores/rtx/commit.py", "stores/sherman/tree_keys.py",
    "stores/sherman/transactional.py", "stores/rtx/cut.py", "stores/rtx/execution.py",
    "stores/rtx/transaction.py",
)  # fmt: skip
Change = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`changes` of the source; `replace` is given the names of the modules, and changes classes.
    `no_grace`: memory is used again at once."""

    name: str
    changes: tuple[Change, ...] = ()
    replace: Callable[[dict[str, Any]], None] | None = None
    no_grace: bool = False


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Have pools made meanwhile be the mutant's."""
    run: Any = from_source(SOURCES, "run", *mutant.changes)
    if mutant.replace is not None:
        mutant.replace(run.__globals__)
    made = run.__globals__["RtxSherman"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores_pool, "store_class", lambda kind: made)
        patch.setattr(stores_pool, "run", run)
        if mutant.no_grace:
            patch.setattr(shm_pool, "Grace", ReusesAtOnce)
        yield


DRAW: Final = "return LOCKED | logged | slot << SLOT_SHIFT | self.clock.guess()"
MILLISECONDS: Final = "(self.endpoint.microseconds() - START_US) // 1000 * 1000"
NOT_KEPT: Final = "max(self.now(), self.last + 1)"
NOW: Final = """        self.drift_us = drift_us
"""
DONE_LOG: Final = """            if at:
                self.locks.release(at, state)
            else:
                carry_out(log)
            return DONE
"""
NOT_RELEASED: Final = """            return AGAIN
"""
OPEN: Final = """        reference = self.allocator.coherent().allocate(self._log_node(), size, 1)
        if not reference:
            return None
        log = Log"""
OWN_BUFFER: Final = """        reference = vars(self.locks).get("buffer", 0)
        if reference:
            self.client.log(reference, 0)
        else:
            reference = self.allocator.coherent().allocate(self._log_node(), size, 1)
        if not reference:
            return None
        self.locks.buffer = reference
        log = Log"""
GIVEN_BACK: Final = """            self._end_without(state, True)
        self.client.release(0)
"""
COMMITTED: Final = "            give_back(log, True)\n"
NOT_COMMITTED: Final = """                abort(log, self.participants, state)
                self.client.release(0)
"""
ENTRIES: Final = "    participants = participants_of(log)\n    if word"
HEADER_AGAIN: Final = (
    "    participants = participants_of(log)\n"
    "    if log.owner() != state:\n        return commits\n    if word"
)
UNLOGGED: Final = """        old = self.endpoint.load(at + POINTER)
        # ORDER: the pointer before the lock: it is one that it had under this lock.
        if self.endpoint.load(at) != state:
            return DONE
"""
LOCK_FIRST: Final = """        if self.endpoint.load(at) != state:
            return DONE
        old = self.endpoint.load(at + POINTER)
"""
COPIED: Final = """        self.locks.install(at, old, new)
        # CRASH(copied)"""
NOT_COPIED: Final = """        # CRASH(copied)"""
BEGINS_WITH: Final = """            self.copy(old, reference, state)
        return reference
"""
LEAF: Final = "            if page.level == 0 and (page.exact or page.has(key)):\n"
ANY_LEAF: Final = "            if page.level == 0:\n"
ROUTED: Final = "            if hinted:\n                hinted = False\n"
VALIDATED: Final = "self._is_alone() and self.validate()"
BEGIN: Final = "        self.decided = self.endpoint.cas(self.at + STATE, INIT, DOING) == INIT\n"
APPLIED: Final = """        for participant in self.noted:
            participant.publish()
"""
HELD: Final = "        self._at_cut = False\n        return self._reads.hold()\n"
COMMITS: Final = "    commits = word & STATE_MASK == DOING or word & COMMITTED != 0\n"
NO_MORE: Final = """    if word & STATE_MASK == STATE_MASK:  # DONE
        return commits
"""
NOT_FOUND: Final = "        self.endpoint.cas(slot_at(state) + TX_TIME, state & TIME_MASK, 0)\n"
OWNED: Final = " or log.owner() != state"
SETTLE: Final = """        old = self.endpoint.load(at + POINTER)
        # ORDER: the pointer before the lock: it is one that it had under this lock.
        if self.endpoint.load(at) == state:
"""
SETTLE_LOCK_FIRST: Final = """        if self.endpoint.load(at) == state:
            old = self.endpoint.load(at + POINTER)
"""
MILLISECOND: Final = Mutant(
    "r1-time-is-in-milliseconds", ((DRAW, DRAW.replace("self.clock.guess()", MILLISECONDS)),)
)
NOT_PERSISTED: Final = Mutant(
    "r1-time-is-not-kept-for-the-slot",
    (
        (NOW, NOW + "        self.last = 0\n"),
        (
            f"        {DRAW}\n",
            f"        self.last = {NOT_KEPT}\n        "
            + DRAW.replace("self.clock.guess()", "self.last")
            + "\n",
        ),
    ),
)
LOCK_OF_DONE: Final = Mutant("r2-lock-of-a-log-that-is-done-stands", ((DONE_LOG, NOT_RELEASED),))
ONE_BUFFER: Final = Mutant(
    "r3-one-buffer-for-all-logs-of-a-client",
    (
        (OPEN, OWN_BUFFER),
        (GIVEN_BACK, GIVEN_BACK.replace("release", "drop")),
        (NOT_COMMITTED, NOT_COMMITTED.replace("release", "drop")),
    ),
)
SAME_STATE_WORD: Final = Mutant(
    "r4-one-state-word-for-all-logs-of-a-client", (*ONE_BUFFER.changes, (ENTRIES, HEADER_AGAIN))
)
ANYBODYS: Final = Mutant(
    "r5-lock-without-a-log-is-nobodys",
    (
        (
            DRAW,
            DRAW.replace("slot <<", "(slot if logged else 0) <<").replace(
                "self.clock.guess()", "self.now()"
            ),
        ),
    ),
)
NO_GRACE: Final = Mutant("r6-memory-is-used-again-at-once", no_grace=True)
NOT_MOVED: Final = Mutant("r6-released-with-the-pointer-as-it-was", ((COPIED, NOT_COPIED),))
COPIED_TWICE: Final = Mutant(
    "r6-copy-does-not-say-for-which-lock-it-was-made",
    ((BEGINS_WITH, BEGINS_WITH.replace("state)", "0)")),),
)
POINTER_AFTER_LOCK: Final = Mutant("r6-pointer-is-read-after-the-lock", ((UNLOGGED, LOCK_FIRST),))


def _read_what_may_be_decided(names: dict[str, Any]) -> None:
    def read(trees: Any, leaf: Any, at: int, near: int) -> bool:
        leaf.lock, leaf.at = trees.endpoint.load(at), at
        leaf.pointer = trees.endpoint.load(at + POINTER)
        trees.endpoint.wait()
        if is_vacant(leaf.pointer):
            leaf.page.reset(0 if at == trees.roots[leaf.tree] else GONE, b"", None, 0)
        else:
            leaf.page.read(leaf.pointer & ADDRESS_MASK)
            trees.endpoint.wait()
        return True

    names["TxTrees"].read = read


READS_DECIDED: Final = Mutant(
    "r8-reader-takes-what-may-be-decided", replace=_read_what_may_be_decided
)
NO_FENCES: Final = Mutant("r8-fences-are-not-looked-at", ((LEAF, ANY_LEAF),))
GONE_IS_EMPTY: Final = Mutant(
    "r8-vacated-node-is-an-empty-one",
    ((ROUTED, "            if page.level == GONE:\n                return DONE\n" + ROUTED),),
)


def _take_any_fence(names: dict[str, Any]) -> None:
    names["Page"].begins_at = lambda page, key: True


SIBLINGS_ONLY: Final = Mutant("scan-takes-what-follows-for-the-next-leaf", replace=_take_any_fence)
NOT_VALIDATED: Final = Mutant(
    "reads-are-not-validated", ((VALIDATED, VALIDATED.replace(" and self.validate()", "")),)
)
READS_TORN: Final = Mutant(
    "what-was-read-is-not-looked-at-again", ((HELD, "        return True\n"),)
)
APPLIES_FIRST: Final = Mutant("applies-before-it-is-decided", ((BEGIN, APPLIED + BEGIN),))
FREES_NEW: Final = Mutant(
    "recovery-frees-what-was-committed",
    (
        (
            "give_back(log, self.store.carry_out(log))",
            "give_back(log, self.store.carry_out(log) and False)",
        ),
    ),
)
KEEPS_OLD: Final = Mutant("old-data-is-not-given-back", ((COMMITTED, ""),))
LOCKED_BY_DEAD: Final = Mutant(
    "r2-recovery-of-a-log-that-is-done-releases-nothing",
    ((COMMITS, COMMITS + NO_MORE), (NOT_FOUND, ""), (OWNED, "")),
)
RECOVERED_LATE: Final = Mutant(
    "r6-recoverer-reads-the-pointer-after-the-lock", ((SETTLE, SETTLE_LOCK_FIRST),)
)


def _release_as_it_was(names: dict[str, Any]) -> None:
    writer = names["LeafWriter"]
    change = writer._change_locked

    def change_locked(self: Any, key: bytes, value: bytes, mode: int, new: int, state: int) -> int:
        page = self.leaf.page
        is_keys = not page.level and (page.exact or page.has(key))
        if is_keys and (page.exact or mode == PUT):
            return int(change(self, key, value, mode, new, state))
        self.locks.release(self.leaf.at, state)
        self._settle_hand(1, False)
        return MISSING if is_keys else ELSEWHERE

    writer._change_locked = change_locked


NOTHING_TO_CHANGE: Final = Mutant(
    "leaf-with-nothing-to-change-is-released-as-it-was", replace=_release_as_it_was
)


def _begin_nothing(names: dict[str, Any]) -> None:
    names["Page"].begin = lambda page, at, state: None


NOT_BEGUN: Final = Mutant(
    "leaf-is-locked-before-the-journal-says-with-what", replace=_begin_nothing
)
AT_ONCE: Final = ("OPTIMISTIC: Final = 4", "OPTIMISTIC: Final = 0")
"""After the first conflict, what was read is read again under locks."""
CUT_WHATEVER_BECAME_OF_IT: Final = Mutant(
    "r11-cut-whose-locks-may-have-been-released",
    (AT_ONCE, ("not self.busy and log.state() & STATE_MASK == INIT", "not self.busy")),
)
CUT_WITHOUT_LOCKS: Final = Mutant(
    "r11-cut-that-locks-nothing",
    (AT_ONCE, ("and leaf.lock(state):", "and True:")),
)
STARTS_AGAIN: Final = Mutant(
    "r11-reader-starts-again-whenever-anything-changed",
    (("if reading and counted >= OPTIMISTIC else {}", "if False else {}"),),
)
MOVES_NOTHING_EMPTY: Final = Mutant(
    "r12-entry-without-bytes-stays-behind-the-heap",
    (("if words[place] & LENGTH_MASK <= offset:", "if words[place] & LENGTH_MASK < offset:"),),
)


def _note_no_absence(names: dict[str, Any]) -> None:
    names["WriteSet"]._read_as_absent = lambda staging, leaf, key: True


BLIND_DELETE: Final = Mutant("r10-absence-found-at-staging-is-not-noted", replace=_note_no_absence)
UNCHANGED: Final = Mutant("unchanged")
