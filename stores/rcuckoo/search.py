"""The client's cache of rows, and the search for a cuckoo path in it (RCuckoo section 3.2.3).

For each entry of a row, the cache has the other row to which it could move, or that there is no
entry. A row's number gives its place in the cache; a later row replaces it there. Rows that a
search has asked for are also kept beside the cache, until the next search begins anew, so that two
rows of one place, which a search needs both, do not replace each other. The cache may be out of
date: that costs an attempt, and nothing else, since a path is taken only if it is found again among
rows that were locked and then read.

The search is breadth first, from both of the key's rows, so the path is as short as can be. It ends
at a row with an empty entry, within `depth` moves. It expands rows in the cache; rows that it meets
and does not find there are `unknown`, for the caller to read. The paper begins at the primary row
alone; with both, fewer inserts need a path at all.

Only rows that a search visits are hashed: those under the locks are read whole, and looked at one
by one.

The cache is filled, once an insert of its handle has needed a path, with the rows that a search
visits among the locked ones, with those that a search has missed, and with what the handle writes;
rows that are read as a whole (rows.py) fill it, too, as in the paper: those of every write, and
those of the gets of a remote client. Deviation: other gets must be fast, and do not touch it.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.stores.rcuckoo.layout import EMPTY, FOUND, LACKING, NO_PATH, PATH_MAX, SLOTS

if TYPE_CHECKING:
    from limpet.stores.rcuckoo.parameters import RcuckooParameters
    from limpet.stores.rcuckoo.rows import DependentHash, LockedRows, Row

NODES_MAX: Final = 2048
"""Rows that one search looks at, at most."""
MET_SIZE: Final = 2 * NODES_MAX
SEARCH_SHIFT: Final = 32
SEARCHES_MAX: Final = 0xFFFF_FFFF
"""After so many searches the rows that were met are forgotten, and the count begins anew."""
UNKNOWN_MAX: Final = 16
"""Rows that a search asks for at one time."""


class PathSearch:
    """The cached rows of one table, and the path that was found last."""

    def __init__(self, parameters: RcuckooParameters, places: DependentHash) -> None:
        self.places = places
        self.depth = parameters.depth
        self.size = parameters.cache_rows
        self.others = array("Q", bytes(8 * SLOTS * self.size))
        self.tags = array("Q", bytes(8 * self.size))
        self.beside: dict[int, int] = {}
        """Rows that the present search has asked for, and their second places in `others`."""
        self.fresh = array("Q", bytes(64 * SLOTS))
        """As `others`, of the rows that are locked, which lie in runs; 0 for the first entry of a
        row that no search has visited yet, and else one more than there."""
        self.begins = array("Q", bytes(8 * (PATH_MAX + 2)))
        self.counts = array("Q", bytes(8 * (PATH_MAX + 2)))
        self.places_of = array("Q", bytes(8 * (PATH_MAX + 2)))
        self.runs = 0
        self.held = 0
        self.queue = array("Q", bytes(8 * NODES_MAX))
        self.parents = array("q", bytes(8 * NODES_MAX))
        self.slots = array("q", bytes(8 * NODES_MAX))
        self.depths = array("q", bytes(8 * NODES_MAX))
        self.met = array("Q", bytes(8 * MET_SIZE))
        """For each place, the row that a search has met there last, and the search's number."""
        self.searches = 0
        self.count = 0
        self.path_rows = array("Q", bytes(8 * PATH_MAX))
        self.path_slots = array("Q", bytes(8 * PATH_MAX))
        self.length = 0
        self.unknown = array("Q", bytes(8 * UNKNOWN_MAX))
        self.lacking = 0

    def forget(self) -> None:
        """Forget all rows."""
        for index in range(self.size):
            self.tags[index] = 0

    def cache_row(self, found: Row, row: int) -> int:
        """Cache a row as it was read; its place in the cache."""
        at = row % self.size
        self.tags[at] = row + 1
        for slot in range(SLOTS):
            other = EMPTY
            if found.size(slot):
                other = self.places.other(hash64(found.key(slot)), row)
            self.others[at * SLOTS + slot] = other
        return at

    def note(self, row: int, slot: int, other: int) -> None:
        """Note that an entry with this other row was written, or none (EMPTY)."""
        at = row % self.size
        if self.tags[at] == row + 1:
            self.others[at * SLOTS + slot] = other

    def knows(self, row: int) -> bool:
        """Whether a row is cached."""
        return self._cached(row) >= 0

    def begin(self) -> None:
        """Begin a new search: no rows are kept beside the cache."""
        self.beside = {}

    def keep(self, at: int, row: int) -> None:
        """Keep the row that is cached there beside the cache, too."""
        place = self.size + len(self.beside)
        if (place + 1) * SLOTS > len(self.others):
            more = array("Q", bytes(8 * SLOTS * (place + 1)))
            self.others = array("Q", bytes(memoryview(self.others))) + more
        self.beside[row] = place
        for slot in range(SLOTS):
            self.others[place * SLOTS + slot] = self.others[at * SLOTS + slot]

    def _cached(self, row: int) -> int:
        """The place of a row in `others`; or -1."""
        at = row % self.size
        if self.tags[at] == row + 1:
            return at
        return self.beside.get(row, -1)

    # ---- rows that are locked -------------------------------------------------------------------

    def release(self) -> None:
        """From now on, no row is locked."""
        self.runs = self.held = 0

    def run_of(self, row: int) -> int:
        """The run with a locked row; or -1."""
        for index in range(self.runs):
            if self.begins[index] <= row < self.begins[index] + self.counts[index]:
                return index
        return -1

    def hold(self, row: int, count: int) -> None:
        """Add a run of `count` rows from `row` on, which are locked and will be read."""
        place = self.held
        more = (place + count) * SLOTS - len(self.fresh)
        if more > 0:
            # ORDER: before the rows count.
            self.fresh = array("Q", bytes(memoryview(self.fresh))) + array("Q", bytes(8 * more))
        self.begins[self.runs] = row
        self.counts[self.runs] = count
        self.places_of[self.runs] = place
        self.runs += 1
        self.held = place + count
        for held in range(place, self.held):
            self.fresh[held * SLOTS] = 0

    def _visit_locked(self, locked: LockedRows, row: int) -> int:
        """Know a row, and cache it, if it is locked; its place among all that are, or -1."""
        run = self.run_of(row)
        if run < 0:
            return -1
        offset = row - self.begins[run]
        held = self.places_of[run] + offset
        if not self.fresh[held * SLOTS]:
            at = self.cache_row(locked.row(run, offset), row)
            for slot in range(SLOTS):
                self.fresh[held * SLOTS + slot] = self.others[at * SLOTS + slot] + 1
        return held

    # ---- searching ------------------------------------------------------------------------------

    def search(self, first: int, second: int, found: LockedRows | None) -> int:
        """Find a path for a key with these rows, through cached rows; with `found`, only through
        those that are locked and were read there.

        FOUND: `path_rows` and `path_slots` have `length` steps, where the new entry goes first.
        LACKING: `unknown` has `lacking` rows that were met and are not cached. NO_PATH.
        """
        self.count = self.lacking = self.length = 0
        if self.searches == SEARCHES_MAX:
            self.searches = 0
            self.met = array("Q", bytes(8 * MET_SIZE))
        self.searches += 1
        self._meet(first, -1, 0, 0)
        self._meet(second, -1, 0, 0)
        index = 0
        locked = found is not None
        others = self.fresh if locked else self.others
        while index < self.count:
            row = self.queue[index]
            at = self._cached(row) if found is None else self._visit_locked(found, row)
            if at >= 0:
                for slot in range(SLOTS):
                    if others[at * SLOTS + slot] == EMPTY + locked:
                        self._found(index, slot)
                        return FOUND
                if self.depths[index] < self.depth:
                    for slot in range(SLOTS):
                        other = others[at * SLOTS + slot] - locked
                        self._meet(other, index, slot, self.depths[index] + 1)
            elif not locked:
                self._lack(row)
            index += 1
        return LACKING if self.lacking else NO_PATH

    def _meet(self, row: int, parent: int, slot: int, depth: int) -> bool:
        """Queue a row that an entry of the row at `parent` could move to, unless it is met there.

        The rows of a path all differ: each is written once.
        """
        at = row % MET_SIZE
        mark = self.searches << SEARCH_SHIFT | row
        if self.count >= NODES_MAX or self.met[at] == mark:
            return False
        self.met[at] = mark
        above = parent
        while above >= 0:
            if self.queue[above] == row:
                return False
            above = self.parents[above]
        index = self.count
        self.queue[index] = row
        self.parents[index] = parent
        self.slots[index] = slot
        self.depths[index] = depth
        self.count = index + 1
        return True

    def _lack(self, row: int) -> None:
        known = False
        for index in range(self.lacking):
            known = known or self.unknown[index] == row
        if not known and self.lacking < UNKNOWN_MAX:
            self.unknown[self.lacking] = row
            self.lacking += 1

    def _found(self, last: int, empty: int) -> None:
        self.length = self.depths[last] + 1
        step = self.length
        index = last
        slot = empty
        while index >= 0:
            step -= 1
            self.path_rows[step] = self.queue[index]
            self.path_slots[step] = slot
            slot = self.slots[index]
            index = self.parents[index]
