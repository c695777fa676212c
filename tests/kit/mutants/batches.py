"""Known-bad variants of batches of puts, of `race` and of `fusee`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kit.mutants.fusee import Mutant as FuseeMutant
from kit.mutants.race import Mutant, race_with
from kit.mutants.uncompiled import always, nothing, replaced
from limpet.shm.endpoint.slots import CLIENT_JOURNAL
from limpet.shm.endpoint.words import REFERENCE_MASK, TENTATIVE
from limpet.stores.core.status import LEFT, MADE, READY
from limpet.stores.race.batch import Batch
from limpet.stores.race.batch_puts import BatchPuts
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.slots import Slots
from limpet.stores.race.store import Race


class NeverEnds(Batch):  # type: ignore[misc]
    """A batch does not end before a key that it has already."""

    def repeats(self, row: int) -> bool:
        return False


class EqualKeys(Race):  # type: ignore[misc]
    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.puts.batch = NeverEnds()


def batches_with(**phases: Any) -> Callable[[Any], int]:
    """A `batches_puts` with other phases."""
    made: Any = type("Puts", (BatchPuts,), phases)

    def batches_puts(self: Any) -> int:
        HashStore.batches_puts(self)
        own = self.puts
        self.puts = made(own.search, own.slots, own.allocator, own.client, own.replicas)
        return 0

    return batches_puts


def make_all(self: Any, batch: Any) -> int:
    """The client journal does not have the objects that are replaced."""
    self.allocator.begin_batch()
    count = 0
    for row in range(batch.count):
        if batch.states[row] == READY:
            reference = self.allocator.next_object(batch.nodes[row], batch.sizes[row], 1)
            if not reference:
                batch.states[row] = LEFT
                continue
            batch.places[row] = self.client.log(reference, batch.slots[row])
            batch.desired[row] = (batch.hashes[row] & 0xFF) << 56 | reference
            batch.references[count] = reference
            count += 1
    self.allocator.heap.take_all(batch.references, count)
    self.write_all(batch)
    return count


class FreesWithoutPlace(Slots):  # type: ignore[misc]
    """Frees what is replaced, and takes only the new object out of the client journal."""

    def _free_replaced(self, batch: Any) -> int:
        for row in range(batch.count):
            if batch.states[row] == MADE:
                if batch.updates[row]:
                    self.objects.heap.free(batch.words[row] & REFERENCE_MASK)
                self.client.drop(batch.places[row])
        return 0


class DecidesAtOnce(Slots):  # type: ignore[misc]
    """Inserts of a batch are decided without a look whether another slot has the key."""

    def _decide_all(self, search: Any, batch: Any) -> int:
        for row in range(batch.count):
            if batch.states[row] == READY:
                slot, desired = batch.slots[row], batch.desired[row]
                seen = self.endpoint.cas(slot, desired | TENTATIVE, desired)
                batch.states[row] = MADE if seen == desired | TENTATIVE else LEFT
        self.endpoint.wait()
        return 0


def log_all(self: Any, batch: Any) -> int:
    """The references of pairs are in the client journal before the addresses of their links."""
    journal = self.client.slot + CLIENT_JOURNAL + 16 * batch.first
    for index in range(batch.logged):
        self.endpoint.store(journal + 16 * index, batch.objects[index])
    return int(BatchPuts.log_all(self, batch))


class DropsAddressesFirst(Slots):  # type: ignore[misc]
    """The addresses of links leave the client journal before the references."""

    def _free_replaced(self, batch: Any) -> int:
        journal = self.client.slot + CLIENT_JOURNAL + 16 * batch.first
        for index in range(batch.logged):
            self.endpoint.store(journal + 16 * index + 8, 0)
        return int(Slots._free_replaced(self, batch))


BATCHES: Final = (
    Mutant("equal-keys", ("batch",), EqualKeys, program="pa mcc gc|pb pc|ga", value_size=40),
    Mutant(
        "old-object-not-in-journal", ("leaked",),
        race_with(FreesWithoutPlace, batches_puts=batches_with(make_all=make_all)),
        program="pa mab|pb mab|ga", value_size=40,
    ),
    Mutant(
        "decides-at-once", ("history", "check"), race_with(DecidesAtOnce),
        program="pa mcd|pb mdc|ub gc da", value_size=40,
    ),
    Mutant(
        "references-before-addresses", ("check",),
        race_with(batches_puts=batches_with(log_all=log_all)),
        program="pa pb mab|ga gb|gc", value_size=40,
    ),
    Mutant(
        "addresses-leave-first", ("check",), race_with(DropsAddressesFirst),

        program="pa pb mab|ga gb|gc", value_size=40,
    ),
)  # fmt: skip


BATCHED_ROUNDS: Final = "fusee/batch_rounds"
ROUNDS: Final = (
    FuseeMutant(
        "no-look-for-rivals", ("history", "check"),
        (replaced(BATCHED_ROUNDS, "BatchedSlots._find_rivals", nothing),),
        exploration={"program": "pa mcd gc|pb mdc gd|gc gd"},
    ),
    FuseeMutant(
        "goes-on-though-others-have-proposed", ("history", "check", "leaked"),
        (replaced(BATCHED_ROUNDS, "BatchedSlots._all_ours", always),),
        exploration={"program": "pa mab|pb mba gb|ga gb", "seed": 5},
    ),
)  # fmt: skip
