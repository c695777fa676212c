"""Known-bad variants of the `race` store and of the memory below it, for the checkers to catch.

A variant of the store is its source with some lines replaced, run uncompiled. A variant of the pool
is a class in place of one of the pool's.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

from kit.mutants.source import from_source
from limpet.fault.explore.sim_program import VALUE_SIZE
from limpet.fault.matrix.fault_profile import FAULT_PROFILES, FaultProfile
from limpet.shm import pool as pool_module
from limpet.shm.alloc.allocator import Allocator
from limpet.shm.alloc.reclaim import end_limbo
from limpet.shm.clients.epoch import NEVER, Grace
from limpet.shm.clients.membership import slot_address
from limpet.shm.clients.recovery import recover_client
from limpet.shm.endpoint.slots import HAND, HAND_SIZE
from limpet.stores import registry

SOURCES: Final = ("stores/race/index.py", "stores/race/hash_store.py", "stores/race/table.py")
"""What a `race` store of fixed size is made of; each is derived from the one before."""
GROWING: Final = (*SOURCES, "stores/race/directory.py", "stores/race/store.py")
"""And of one that grows."""
FIXED: Final = FaultProfile(capacity_never=2600, matrix_spare=1)


def race_from_source(*changes: tuple[str, str]) -> Any:
    """The class Race of the store's source with each text replaced, which must be there once."""
    return from_source(SOURCES, "Race", *changes)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`changes` of the store's source, or `by` in place of the pool's `replaced`.

    `says`: the kind of failure. `program`, `value_size`, `scarce`: when not every one will do.
    """

    name: str
    says: tuple[str, ...]
    changes: tuple[tuple[str, str], ...] = ()
    replaced: str = ""
    by: Any = None
    program: str = ""
    value_size: int = VALUE_SIZE
    scarce: bool = False


HOLD: Final = "        self.client.hold(word & REFERENCE_MASK, slot)\n"
UPDATE: Final = """        self.client.aim(0, slot)
        self.client.hold(word & REFERENCE_MASK, slot)
        # LINEARIZES: update
        lost = self.endpoint.cas(slot, word, desired) != word
"""
INSERT: Final = """        if self.endpoint.cas(slot, vacant, tentative) != vacant:
            self.endpoint.wait()
            return AGAIN
"""
REREAD: Final = """        self._read_buckets()
        if self._match(key, 0, True) or self._rival(key, slot, attempt):
            return AGAIN
"""
COMMIT: Final = """        # LINEARIZES: insert
        lost = self.endpoint.cas(slot, tentative, desired) != tentative
"""
KICK: Final = """            if self.endpoint.cas(theirs, word, 0) != word:
                return True
"""
GET: Final = """        self.client.enter()
        try:
            self.require_there()
            self._choose(key)
            if self._find(key):
                return self.objects.value()
            return default
        finally:
            self.client.leave()
"""
DELETE: Final = (
    "        self.client.hold(word & REFERENCE_MASK, slot)\n        # LINEARIZES: delete\n"
)
FIND_ANY: Final = """
    def _find_any(self, key):
        self._read_buckets()
        for word in self.slots[:32]:
            if word >> 56 == self.hash & 0xFF:
                self.objects.load(word & OBJECT_MASK & ~TENTATIVE)
                if self.objects.key_is(key):
                    return True
        return False
"""


class ReusesAtOnce(Grace):
    """What is freed is used again though somebody may be reading it."""

    def horizon(self) -> int:
        return NEVER


class KeepsWhatWasTaken(Allocator):  # type: ignore[misc]
    """The client that had a block goes on allocating from it when others have taken it."""

    def _forget_taken(self) -> None:
        pass


class EndsLimboAtOnce(Allocator):  # type: ignore[misc]
    """A block that was taken is used while its last owner may be allocating from it."""

    def _make_room(self, attempt: int, node: int) -> bool:
        found = end_limbo(self.table, 0, self.client.ident, ReusesAtOnce(self.grace.endpoint)) > 0
        return super()._make_room(attempt, node) or found


def recover_freeing_the_linked(
    client: Any, blocks: Any, regions: Any, grace: Any, slot: int, word: int
) -> dict[str, int]:
    """Recovery frees what was in the dead client's hand, linked or not."""
    for index in range(HAND_SIZE):
        reference = client.endpoint.load(slot_address(slot) + HAND + 16 * index)
        if reference:
            client.heap.free(reference)
    return recover_client(client, blocks, regions, grace, slot, word)


MUTANTS: Final = (
    Mutant(
        "no-tentative-step", ("history",), program="da|ic gc|ic gc", changes=
        (
            (INSERT, INSERT.replace("tentative", "desired")),
            (
                REREAD + COMMIT,
                """        self._read_buckets()
        for other in range(32):
            word = self.slots[other]
            theirs = self._address(other)
            if not word or word >> 56 != self.hash & 0xFF or not other & 7 or theirs == slot:
                continue
            self.objects.load(word & REFERENCE_MASK)
            if self.objects.key_is(key):
                if theirs < slot:
                    self.endpoint.cas(slot, desired, 0)
                    return AGAIN
                self.endpoint.cas(theirs, word, 0)
        lost = False
""",
            ),
        ),
    ),
    Mutant(
        "reads-without-pin", ("history", "client 0", "client 1", "client 2"),
        program="ua ub|ga ga|ga", changes=
        (
            (
                GET,
                GET.replace("self.client.enter()", "self.client.begin()").replace(
                    "self.client.leave()", "self.client.end()"
                ),
            ),
        ),
    ),
    Mutant("no-grace-period", ("history", "check"), replaced="Grace", by=ReusesAtOnce),
    Mutant(
        "old-object-held-after-cas", ("leaked",),
        (
            (
                UPDATE,
                UPDATE.replace(HOLD, "") + HOLD,
            ),
        ),
    ),
    Mutant("delete-does-not-hold", ("leaked",), ((DELETE, ""),)),
    Mutant("commit-without-rereading", ("history", "check"), ((REREAD, ""),)),
    Mutant(
        "kick-unchecked", ("history", "check"),
        ((KICK, "            self.endpoint.cas(theirs, word, 0)\n"),),
    ),
    Mutant(
        "kick-by-store", ("history", "check", "leaked"),
        ((KICK, "            self.endpoint.store(theirs, 0)\n"),),
    ),
    Mutant(
        "waits-for-the-dead", ("no end",), value_size=16,
        changes=(("if theirs < slot and attempt < PATIENCE:", "if theirs != slot:"),),
    ),
    Mutant("commit-unchecked", ("history",), ((COMMIT, COMMIT + "        lost = False\n"),)),
    Mutant(
        "update-by-store", ("history", "leaked", "check"),
        ((UPDATE, UPDATE.replace(
            "lost = self.endpoint.cas(slot, word, desired) != word",
            "lost = self.endpoint.store(slot, desired)",
        )),),
    ),
    Mutant(
        "tentative-is-visible", ("history",),
        ((GET, GET.replace("_find(key)", "_find_any(key)") + FIND_ANY),),
    ),
    Mutant(
        "recovery-frees-linked", ("check", "history"),
        replaced="recover_client", by=recover_freeing_the_linked,
    ),
    Mutant(
        "keeps-what-was-taken", ("history", "check", "leaked"),
        replaced="Allocator", by=KeepsWhatWasTaken, scarce=True, program="ua ua|ic id|",
    ),
    Mutant(
        "no-limbo", ("history", "check", "leaked"),
        replaced="Allocator", by=EndsLimboAtOnce, scarce=True, program="ua ua|ic id|",
    ),
)  # fmt: skip


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Have pools made meanwhile be the mutant's; a `race` store has a fixed size then."""
    kinds = dict(registry.KINDS)
    get_class: Callable[[str], Any] = registry.store_class
    original = getattr(pool_module, mutant.replaced, None)
    made = race_from_source(*mutant.changes) if mutant.changes else None
    from limpet.stores import pool as stores_pool

    profile = FAULT_PROFILES["race"]
    try:
        if made is not None:
            FAULT_PROFILES["race"] = FIXED
            stores_pool.store_class = lambda kind: made  # type: ignore[attr-defined]
        if mutant.replaced:
            setattr(pool_module, mutant.replaced, mutant.by)
        yield
    finally:
        stores_pool.store_class = get_class  # type: ignore[attr-defined]
        if mutant.replaced:
            setattr(pool_module, mutant.replaced, original)
        FAULT_PROFILES["race"] = profile
        registry.KINDS.clear()
        registry.KINDS.update(kinds)
