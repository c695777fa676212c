"""Known-bad variants of the `race` store and of the memory below it, for the checkers to catch.

A variant of the store has another part, or a method of its own. A variant of the pool is a class in
place of one of the pool's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

from limpet.fault.explore.explorer import Exploration
from limpet.fault.explore.sim_pools import SimulatedPool
from limpet.fault.explore.sim_program import VALUE_SIZE
from limpet.shm import growth
from limpet.shm import pool as pool_module
from limpet.shm.alloc.allocator import Allocator
from limpet.shm.alloc.reclaim import end_limbo
from limpet.shm.clients.epoch import NEVER, Grace
from limpet.shm.endpoint.layout import RINGS, slot_address
from limpet.shm.endpoint.simulated import FETCH_OR, SimulatedEndpoint
from limpet.shm.endpoint.slots import CLIENT_JOURNAL, CLIENT_JOURNAL_SIZE
from limpet.shm.endpoint.words import REFERENCE_MASK, TENTATIVE
from limpet.shm.growth import Growth
from limpet.shm.recovery import recover_client
from limpet.stores import registry
from limpet.stores.core.status import AGAIN, DONE, FULL
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter
from limpet.stores.race.store import Race


def race_with(
    slots: type[Slots] = Slots, splitter: type[Splitter] = Splitter, **methods: Any
) -> type[Race]:
    """A `race` store with these parts, and these methods of its own."""

    class Made(Race):  # type: ignore[misc]
        def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
            super().__init__(pool, kind, name, parameters)
            index = self.index
            writer, splits = slots(index, pool.client), splitter(pool, index, parameters)
            self.hold_parts(index, writer, splits, self.checker)
            self.batches_puts()

    for name, method in methods.items():
        setattr(Made, name, method)
    return Made


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A variant of the store, `made`, or `by` in place of the `replaced` of a `module`, or of the
    clients' `endpoint`.

    `says`: the kind of failure. `program`, `value_size`, `scarce`, `add_nodes`: when not every one
    will do, or takes long.
    """

    name: str
    says: tuple[str, ...]
    made: Any = None
    module: Any = pool_module
    replaced: str = ""
    by: Any = None
    program: str = ""
    value_size: int = VALUE_SIZE
    scarce: bool = False
    add_nodes: bool = False
    endpoint: Any = SimulatedEndpoint

    def parameters(self, schedules: int) -> Exploration:
        """Of an exploration that shows it."""
        clients = self.program.count("|") + 1 if self.program else 3
        return Exploration(
            schedules=schedules, clients=clients, seed=1, program=self.program,
            value_size=self.value_size, scarce=self.scarce, add_nodes=self.add_nodes,
        )  # fmt: skip


# ---- writers of slots ----------------------------------------------------------------------------


class NoTentativeStep(Slots):  # type: ignore[misc]
    """As the paper has it: an insert is valid at once, and the later of two is removed."""

    def insert(self, place: Any, key: bytes, desired: int, attempt: int) -> int:
        number = self.index.room(place)
        if number < 0:
            return FULL
        slot, vacant = address(place, number), self.index.words[number]
        self.client.retarget(0, slot)
        if self.endpoint.cas(slot, vacant, desired) != vacant:
            self.endpoint.wait()
            return AGAIN
        self.index.look_up(place, key)
        for other in range(32):
            word, theirs = self.index.words[other], address(place, other)
            if not word or word >> 56 != place.hash & 0xFF or not other & 7 or theirs == slot:
                continue
            self.objects.load(word & REFERENCE_MASK)
            if self.objects.key_is(key):
                if theirs < slot:
                    self.endpoint.cas(slot, desired, 0)
                    return AGAIN
                self.endpoint.cas(theirs, word, 0)
        self.endpoint.wait()
        return DONE


class HoldsAfterCas(Slots):  # type: ignore[misc]
    def replace(self, place: Any, slot: int, desired: int) -> int:
        word = place.word
        if word & FROZEN:
            return FULL
        self.client.retarget(0, slot)
        lost = self.endpoint.cas(slot, word, desired) != word
        self.client.log(word & REFERENCE_MASK, slot)
        self.endpoint.wait()
        return AGAIN if lost else DONE


class DeleteDoesNotHold(Slots):  # type: ignore[misc]
    def remove(self, place: Any, slot: int) -> int:
        word = place.word
        if word & FROZEN:
            return FULL
        lost = self.endpoint.cas(slot, word, 0) != word
        self.endpoint.wait()
        return AGAIN if lost else DONE


class DoesNotReadAgain(Slots):  # type: ignore[misc]
    def goes_on(self, place: Any, key: bytes, slot: int, attempt: int) -> bool:
        return True


class KicksUnchecked(Slots):  # type: ignore[misc]
    def kick(self, slot: int, word: int) -> bool:
        self.endpoint.cas(slot, word, 0)
        return True


class KicksByStore(Slots):  # type: ignore[misc]
    def kick(self, slot: int, word: int) -> bool:
        self.endpoint.store(slot, 0)
        return True


class NeverKicks(Slots):  # type: ignore[misc]
    def goes_first(self, theirs: int, slot: int, attempt: int) -> bool:
        return True


class DecidesUnchecked(Slots):  # type: ignore[misc]
    """Takes it for granted that the last CAS of an insert succeeds."""

    def decide(self, slot: int, tentative: int, desired: int) -> bool:
        self.endpoint.cas(slot, tentative, desired)
        self.endpoint.wait()
        return True


class UpdatesByStore(Slots):  # type: ignore[misc]
    def replace(self, place: Any, slot: int, desired: int) -> int:
        word = place.word
        if word & FROZEN:
            return FULL
        self.client.retarget(0, slot)
        self.client.log(word & REFERENCE_MASK, slot)
        self.endpoint.store(slot, desired)
        self.endpoint.wait()
        return DONE


class UpdatesInPlace(Slots):  # type: ignore[misc]
    """Writes over the object, as if a write of several words were whole."""

    def replace(self, place: Any, slot: int, desired: int) -> int:
        self.objects.load(desired & OBJECT_MASK)
        key, value = self.objects.key(), self.objects.value()
        self.objects.write(place.word & OBJECT_MASK, key, value)
        return DONE


class InsertsInTheBackground(Slots):  # type: ignore[misc]
    """The step by which an insert takes effect is sent: the insert returns before it is done."""

    def decide(self, slot: int, tentative: int, desired: int) -> bool:
        self.endpoint.send_store(slot, desired)
        self.client.drop(0)
        return True


class FreesBeforeTheCas(Slots):  # type: ignore[misc]
    """The old object is freed by a verb that is sent before the CAS that unlinks it."""

    def replace(self, place: Any, slot: int, desired: int) -> int:
        if place.word & FROZEN:
            return FULL
        self.objects.heap.free(place.word & REFERENCE_MASK)
        return int(super().replace(place, slot, desired))


def address(place: Any, number: int) -> int:
    """Address of the slot at this place of a row."""
    return int((place.second if number & 16 else place.first) + (number & 15) * 8)


# ---- gets ----------------------------------------------------------------------------------------


def get_without_pin(self: Any, key: bytes, default: Any = None) -> Any:
    self.client.begin()
    try:
        self.require_there()
        return self.objects.value() if self.index.look_up(self.place, key) else default
    finally:
        self.client.end()


def get_any(self: Any, key: bytes, default: Any = None) -> Any:
    """A tentative word is read, too."""
    with self.client:
        self.require_there()
        self.index.look_up(self.place, key)
        for word in self.index.words[:32]:
            if word >> 56 == self.place.hash & 0xFF:
                self.objects.load(word & OBJECT_MASK & ~TENTATIVE)
                if self.objects.key_is(key):
                    return self.objects.value()
        return default


# ---- memory --------------------------------------------------------------------------------------


class ReusesAtOnce(Grace):
    """Freed memory is used again though a client may be reading it."""

    def horizon(self) -> int:
        return NEVER


class KeepsWhatWasTaken(Allocator):  # type: ignore[misc]
    """The client that had a block goes on allocating from it when others have taken it."""

    def _forget_taken(self) -> None:
        pass


class EndsLimboAtOnce(Allocator):  # type: ignore[misc]
    """A block that was taken is used while its last owner may be allocating from it."""

    def reclaim(self, attempt: int, shortage: Any, needed: Any = None) -> bool:
        found = end_limbo(self.table, 0, self.client.ident, ReusesAtOnce(self.grace.endpoint)) > 0
        return super().reclaim(attempt, shortage, needed) or found


def recover_freeing_the_linked(
    client: Any, blocks: Any, regions: Any, grace: Any, slot: int, word: int
) -> dict[str, int]:
    """Recovery frees what was in the dead client's journal, linked or not."""
    for index in range(CLIENT_JOURNAL_SIZE):
        reference = client.endpoint.load(slot_address(slot) + CLIENT_JOURNAL + 16 * index)
        if reference:
            client.heap.free(reference)
    return recover_client(client, blocks, regions, grace, slot, word)


class AnnouncesFirst(Growth):
    """A ring is announced before its nodes are there."""

    def _make(self, number: int, ring: Any) -> None:
        self.endpoint.cas(RINGS + 8 * (number - 1), 0, ring.word)
        super()._make(number, ring)


class OpensAtOnce(Growth):
    """Clients allocate on new nodes while others have not mapped them."""

    def _open(self, number: int) -> None:
        at = RINGS + 8 * (number - 1)
        ring = self.memory.heap.placement.look_again(number, self.endpoint.load(at))
        self.endpoint.cas(at, ring.word, ring.opened().word)
        super()._open(number)


class UsesInTheBackground(SimulatedEndpoint):
    """The used bit of a new object is set when its operation ends, and the object is linked."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[tuple[int, int]] = []

    def post_set(self, addr: int, bits: int) -> int:
        self.used.append((addr, bits))
        return 0

    def end(self) -> int:
        for addr, bits in self.used:
            self.phase.send(FETCH_OR, addr, functools.partial(self.fetch_or, addr, bits))
        self.used.clear()
        return super().end()


MUTANTS: Final = (
    Mutant(
        "insert-in-the-background", ("history",), race_with(InsertsInTheBackground),
        program="ic|gc gc gc gc|gc gc gc gc",
    ),
    Mutant("free-before-the-cas", ("history", "check", "leaked"), race_with(FreesBeforeTheCas)),
    Mutant(
        "used-bit-in-the-background", ("history", "check", "leaked"), endpoint=UsesInTheBackground
    ),
    Mutant(
        "no-tentative-step", ("history",), race_with(NoTentativeStep), program="da|ic gc|ic gc"
    ),
    Mutant(
        "reads-without-pin", ("history", "client 0", "client 1", "client 2"),
        race_with(get=get_without_pin), program="ua ub|ga ga|ga",
    ),
    Mutant(
        "no-grace-period", ("history", "check"), replaced="Grace", by=ReusesAtOnce,
        program="ua ub|ub ua|ua ub",
    ),
    Mutant(
        "old-object-held-after-cas", ("leaked",), race_with(HoldsAfterCas), program="ua|ub|ua"
    ),
    Mutant("delete-does-not-hold", ("leaked",), race_with(DeleteDoesNotHold)),
    Mutant("commit-without-rereading", ("history", "check"), race_with(DoesNotReadAgain)),
    Mutant(
        "kick-unchecked", ("history", "check"), race_with(KicksUnchecked), program="ia|ia|da ia"
    ),
    Mutant(
        "kick-by-store", ("history", "check", "leaked"), race_with(KicksByStore),
        program="ia|ia|da ia",
    ),
    Mutant(
        "waits-for-the-dead", ("no end",), race_with(NeverKicks), program="ic|pc|", value_size=16
    ),
    Mutant(
        "commit-unchecked", ("history",), race_with(DecidesUnchecked), program="ic gc|ic gc|"
    ),
    Mutant("update-by-store", ("history", "leaked", "check"), race_with(UpdatesByStore)),
    Mutant("tentative-is-visible", ("history",), race_with(get=get_any), program="ic|ic gc|gc gc"),
    Mutant(
        "recovery-frees-linked", ("check", "history"),
        replaced="recover_client", by=recover_freeing_the_linked, program="ua|ic gc|ga",
    ),
    Mutant(
        "keeps-what-was-taken", ("history", "check", "leaked"),
        replaced="Allocator", by=KeepsWhatWasTaken, scarce=True, program="ua ua|ic id|",
    ),
    Mutant(
        "no-limbo", ("history", "check", "leaked"),
        replaced="Allocator", by=EndsLimboAtOnce, scarce=True, program="ic id|ua ua|ua",
    ),
    Mutant(
        "ring-announced-first", ("check", "client", "node"), module=growth, replaced="Growth",
        by=AnnouncesFirst, add_nodes=True,
    ),
    Mutant(
        "ring-open-at-once", ("client", "check", "node"), module=growth, replaced="Growth",
        by=OpensAtOnce, scarce=True, add_nodes=True,
    ),
)  # fmt: skip

UNCHANGED: Final = Mutant("unchanged", (), race_with())


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Make the pools of this block the mutant's."""
    original = getattr(mutant.module, mutant.replaced, None)
    get_class: Callable[[str], Any] = registry.store_class
    from limpet.stores import pool as stores_pool

    try:
        if mutant.made is not None:
            stores_pool.store_class = lambda kind: mutant.made  # type: ignore[attr-defined]
        if mutant.replaced:
            setattr(mutant.module, mutant.replaced, mutant.by)
        SimulatedPool.endpoint_class = mutant.endpoint
        yield
    finally:
        SimulatedPool.endpoint_class = SimulatedEndpoint
        stores_pool.store_class = get_class  # type: ignore[attr-defined]
        if mutant.replaced:
            setattr(mutant.module, mutant.replaced, original)
