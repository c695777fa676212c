"""Making a durable pool whole after a power cut, by the first process that joins it: `join`.

A power cut ends all clients, and leaves of each cache line some version since it was last written
back. Clients keep an order only for what stores need (`Endpoint.persist`): contents before links,
links before an operation returns. Everything else is made anew here from what is reachable.

Word (control segment)
    power   the boot of a host (its kernel's boot id, as in client slots) since which the pool is
            whole, and which alone has used it; written by its creator, and as the last step below.
            SEVERAL: clients of several hosts have used it since. Any other number below
            UNMENDED_END: it is being made whole, or that was begun and not ended. It is persistent

A client that opens the pool compares `power` with its own boot. If they are equal, nothing was
lost: no power was cut since, though clients may have been killed. If not, in a pool of one host,
all clients are gone, whatever their slots say, and lines may be lost. Then, under a lock that the
kernel drops when the process ends (liveness.py), so that no other process joins meanwhile:

    0. `power` becomes a number below UNMENDED_END that it did not have, and persists
    1. client slots, event ring and the word `leader` become as in a new pool; slots keep the number
       of their last client
    2. no client is left in a directory: claims are given up, as are plans of regions; plans and
       drops of stores go on when their names are wanted next, or by `pool.recover()`
    3. join, as a client
    4. each store makes itself whole (`Store.mend`): it ends or takes back what was under way
    5. block tables and used bits are made anew: regions and reachable objects say all of it
    6. all of it persists; then `power`, unless another process has begun step 0 since

Why 5 holds: an object that a persistent link names has not been used again, since its unlinking
client's pin counts until the unlinking persists (client.py). So no two reachable objects overlap,
and all those of a block are of one class. It is checked, and PoolCorrupt says where it is not so.

A kill, or another power cut, in the midst of it leaves that number in `power`, and the next
process begins anew. Each step takes away what was under way, and adds nothing, so any part of it
may be done already.

In a pool of several hosts, a process that opens it has the gate meanwhile (`Gate`). If
`power` is not its boot, it looks at the clients in the slots. If one of them lives, power was not
cut: `power` becomes SEVERAL, and the process joins. If all are lost (by their leases, or because
they are of an earlier run of this host; clients/hosts.py), it makes the pool whole. That is needed
after a power cut of all hosts, and is harmless after anything else. A client that was only taken
for lost makes no step any more, since its slot is free (`Endpoint.guard`). From step 3 on the
process that makes the pool whole is in a slot, and no other is. So if it stands still, the next one
to have the gate asks for no living client: it frees that slot by step 1, and begins anew.

The gate lets one process at a time open a durable pool of several hosts. Locks of the kernel do not
reach another host, so the gate is two words of the control segment:

    gate        a random number of the process that has it, or 0
    gate_beat   goes up four times a lease while it has it

A process takes the gate by a CAS from 0, or from another's number when neither word has changed
for a lease. A process that lost the gate that way may only have stood still. When it goes on, its
next step in the pool raises ClientError (`Endpoint.guard`). The word that is guarded is `gate`
while the process has no client slot, and the slot's state word while it has one:

    before it joins, or after it gave   the word `gate` is another's from the moment in which the
    its slot up                         next process takes it
    with a slot, in a pool that is      the process is a client, as others are: it may go on, or its
    whole                               lease is over and it is recovered
    with a slot, while it makes the     the next process frees the slot: the word `power` is below
    pool whole                          UNMENDED_END, so it begins by making the pool whole anew

A kill leaves behind: the number of a dead process, for a lease. The words are not persistent; what
a power cut leaves of them is waited for likewise.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from limpet.shm.catalogue.directory import PLANNED
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import (
    EPOCH,
    EVENT_COUNT,
    EVENT_RING,
    EVENT_SIZE,
    EVENTS,
    GATE,
    GATE_BEAT,
    LEADER,
    NODE_SHIFT,
    OFFSET_MASK,
    PAGES,
    POWER,
    SLOT_SIZE,
    SLOTS_USED,
    catalogue_address,
    slot_address,
)
from limpet.shm.endpoint.states import DISOWNED
from limpet.shm.endpoint.words import LARGE, LARGE_CLASS, REGION, SLAB, block_word, tail_word
from limpet.shm.errors import AddressError, ClientError, NodeFailed, ParameterError, PoolCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.shm.alloc.heap import Heap
    from limpet.shm.arrays import Words
    from limpet.shm.endpoint.fabric import Endpoint
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters


log: Final = logging.getLogger("limpet")

TOLD_S: Final = 2.0


class Wait:
    """A wait that is logged, once, when it lasts."""

    def __init__(self, what: str, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._now = now
        self._began = now()
        self._told = False

    def tell(self) -> None:
        """Log it, when it has lasted for `TOLD_S`."""
        if not self._told and self._now() - self._began > TOLD_S:
            self._told = True
            log.warning("%s", self._what)


class Gate:
    """A context manager: inside, this process has the gate of `membership`'s pool."""

    def __init__(self, membership: Any) -> None:
        self.membership = membership
        self._number = secrets.randbits(63) | 1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="limpet-gate", daemon=True)

    def __enter__(self) -> Gate:
        members, endpoint = self.membership, self.membership.endpoint
        wait = Wait(f"{members.pool}: waiting for another process that opens it", members.now)
        attempt = 0
        while not self._take():
            wait.tell()
            attempt += 1
            endpoint.pause(attempt)
        members.guard_gate(self._number)
        try:
            self._thread.start()
        except BaseException:
            self._leave()
            raise
        return self

    def _take(self) -> bool:
        endpoint = self.membership.endpoint
        found = endpoint.load(GATE)
        if found and not self.membership.overdue("gate", (found, endpoint.load(GATE_BEAT))):
            return False
        # After a kill here the others wait for a lease, and one of them takes it.
        return bool(endpoint.cas(GATE, found, self._number) == found)

    def __exit__(self, kind: object, error: object, *trace: object) -> None:
        self._over.set()
        self._thread.join()
        self._leave()
        if isinstance(error, ClientError) and error.args == (DISOWNED,):
            raise ClientError(
                f"{self.membership.pool}: while this process opened it, it stood still for a lease "
                "(or was too busy), so another process opened it first; open it again"
            ) from error

    def _leave(self) -> None:
        with contextlib.suppress(ClientError, NodeFailed):  # another process has it by now
            self.membership.endpoint.cas(GATE, self._number, 0)
        self.membership.guard_gate(0)

    def _beat(self) -> None:
        members = self.membership
        while not self._over.wait(members.lease_s / 4):
            try:
                members.endpoint.faa(GATE_BEAT, 1)
            except (ClientError, NodeFailed, AddressError, ValueError):
                return  # the next step of the process that opens the pool raises it, too


MEND_LOCK: Final = 1 << 61
"""The byte of the control segment's file that is locked meanwhile."""
SEVERAL: Final = 1
"""The word `power`, in place of a boot (a hash of 64 bits), when several hosts use the pool."""
UNMENDED_END: Final = 1 << 32
"""Other words below this say that the pool is not whole."""
CHUNK: Final = 1 << 20


def note_changes(endpoint: Endpoint, layout: NodeLayout, parameters: PoolParameters) -> None:
    """Make an endpoint note what it changes, but for what is made anew. CoherenceError: it cannot
    write lines back."""
    control = catalogue_address(parameters.clients) & OFFSET_MASK
    endpoint.make_durable(layout.block_table, layout.blocks, EPOCH & OFFSET_MASK, control)


def join(pool: Any, forked: bool = False) -> None:
    """Join a durable pool; before, make it whole if power was cut since it was used last.

    `forked`: in a forked child, which has a handle from before, and is not to make it whole. Raises
    ClientError if that is needed.
    """
    if pool.parameters.multi_host:
        _join_among_hosts(pool, forked)
    elif not _made_whole_by_us(pool):
        pool.membership.join()


def _made_whole_by_us(pool: Any) -> bool:
    """See that a pool of one host is whole; whether we made it so, and joined."""
    locks = pool.membership.locks
    boot = pool.membership.here.boot
    wait = Wait(f"{pool.url}: waiting for a process that makes it whole")
    if not locks.own_file:
        raise ParameterError(
            f"{pool.url}: its file system has no locks of open file descriptions, which a durable "
            "pool needs"
        )
    while pool.endpoint.load(POWER) != boot:
        if not locks.take(MEND_LOCK):
            wait.tell()
            time.sleep(0.005)
            continue
        try:
            if pool.endpoint.load(POWER) != boot:
                _mend(pool, boot)
                return True
        finally:
            locks.drop(MEND_LOCK)
    return False


def _join_among_hosts(pool: Any, forked: bool) -> None:
    members, endpoint = pool.membership, pool.endpoint
    boot = members.here.boot
    with Gate(members):
        power = endpoint.load(POWER)
        if _is_unmended(power) or (power != boot and not _a_client_lives(members)):
            if forked:
                raise ClientError(f"{pool.url}: all other clients are lost; open the pool anew")
            _mend(pool, boot)
            return
        if power not in (boot, SEVERAL):
            # ORDER: before we join: from our first step on this host's lines may be lost, too.
            _set_power(pool, power, SEVERAL)
        members.join()


def whole_since(pool: Any) -> str:
    """The word `power`, in words for people."""
    word = pool.endpoint.load(POWER)
    if _is_unmended(word):
        return "it is being made whole, or the next process that opens it begins that anew"
    if word == SEVERAL:
        return "several hosts use it: it is whole if a client of one of them lives"
    return f"whole since boot {word:016x}" + (
        " of this host" if word == pool.membership.here.boot else ""
    )


def _a_client_lives(members: Any) -> bool:
    """Whether a client of a pool of several hosts lives. False, after up to two leases, if all are
    lost."""
    beats: dict[tuple[int, int], int] = {}
    wait = Wait(f"{members.pool}: waiting for the leases of clients of other hosts", members.now)
    attempt = 0
    stale: set[int] = set()
    while True:
        unknown = False
        for slot, word in members.occupied():
            if members.dead(slot, word):
                continue
            if word >> slots.STATE_SHIFT == slots.JOINING:
                # Newcomers have the gate, which is ours: it makes no step when it goes on.
                if word not in stale:
                    stale.add(word)
                    log.warning(
                        "%s: process %s stands still, or is stopped, since it opened the pool; it "
                        "is not waited for", members.pool, members.process(slot, word),
                    )  # fmt: skip
                continue
            here = members.is_provable(slot)
            beat = members.endpoint.load(slot_address(slot) + slots.BEAT)
            if word >> slots.STATE_SHIFT == slots.LIVE and (
                here or beats.setdefault((slot, word), beat) != beat
            ):
                return True
            unknown = True
        if not unknown:
            return False
        wait.tell()
        attempt += 1
        members.endpoint.pause(attempt)


def _is_unmended(power: int) -> bool:
    return power < UNMENDED_END and power != SEVERAL


def _set_power(pool: Any, expected: int, word: int) -> None:
    """Change the word `power`, and have it persist. Raises ClientError if it is not `expected`."""
    endpoint: Endpoint = pool.endpoint
    # ORDER: by CAS: a process that stood still within this very step changes nothing.
    if endpoint.cas(POWER, expected, word) not in (expected, word):
        raise ClientError(f"{pool.url}: another process has opened it meanwhile; open it again")
    endpoint.dirty(POWER, 8)
    endpoint.persist()


def _mend(pool: Any, boot: int) -> None:
    endpoint, began = pool.endpoint, time.monotonic()
    # ORDER: before any slot is taken: a process that opens the pool now makes it whole, too, before
    # it joins.
    power = endpoint.load(POWER)
    number = 1 + (max(power, SEVERAL) if _is_unmended(power) else SEVERAL)
    _set_power(pool, power, number)
    _forget_clients(endpoint, pool.parameters)
    pool.catalogue.calm(())
    for node, directory in enumerate(pool.regions.directories):
        try:
            directory.calm((PLANNED,))
        except NodeFailed:
            log.warning("%s: node %d is lost, and is not made whole", pool.url, node)
    pool.membership.join()
    try:
        counts = pool.exclusively(lambda: _mend_memory(pool))
        endpoint.persist()
        # ORDER: last: from here on the pool counts as whole.
        _set_power(pool, number, boot)
    except BaseException:
        pool.membership.depart()
        raise
    log.warning(
        "%s: power was cut, or may have been, while it was in use; it is whole again: %d objects "
        "on %d nodes, in %.0f ms", pool.url, *counts, 1e3 * (time.monotonic() - began),
    )  # fmt: skip


def _forget_clients(endpoint: Endpoint, parameters: PoolParameters) -> None:
    """All clients are gone. Their slots keep the incarnation, and the clock."""
    for slot in range(parameters.clients):
        at = slot_address(slot)
        words = [0] * (SLOT_SIZE // 8)
        words[0] = endpoint.load(at) & slots.INCARNATION_MASK
        words[slots.CLOCK // 8] = endpoint.load(at + slots.CLOCK)
        endpoint.write(at, struct.pack(f"<{len(words)}Q", *words))
    endpoint.write(EVENT_RING, bytes(EVENTS * EVENT_SIZE))
    for word in (EVENT_COUNT, SLOTS_USED, LEADER):
        endpoint.store(word, 0)


def _mend_memory(pool: Any) -> tuple[int, int]:
    """Steps 4 and 5; how many objects are in use, on how many nodes."""
    sizes: dict[int, int] = pool.contents.mend()
    references = np.unique(np.append(pool.contents.references(), pool.regions.references()))
    nodes = 0
    for node in range(pool.parameters.nodes):
        on_node = references >> np.uint64(NODE_SHIFT) & np.uint64(0xFF) == node
        tables = _Tables(pool, node, sizes)
        try:
            tables.fill(references[on_node])
            tables.write()
            nodes += 1
        except NodeFailed:
            continue
    return len(references), nodes


class _Tables:
    """The block table and the used bits of a node, as they have to be."""

    def __init__(self, pool: Any, node: int, sizes: dict[int, int]) -> None:
        self.pool = pool
        self.node = node
        self.sizes = sizes
        self.heap: Heap = pool.heap
        self.endpoint: Endpoint = pool.endpoint
        self.words: Words = np.zeros(self.heap.block_count, dtype="<u8")
        self.bits: dict[int, int] = {}
        """By block, its used bits."""

    def fill(self, references: Words) -> None:
        """Enter the regions, and these objects. Raises PoolCorrupt where they do not fit."""
        for first, count, mark in self.pool.regions.extents(self.node):
            for block in range(first, first + count):
                self._enter(block, block_word(REGION, mark))
        for reference in references.tolist():
            if not self.heap.plausible(reference) or self.heap.replicas(reference) > 1:
                raise self._corrupt(reference)
            block, size_class = self.heap.block_of(reference), reference >> 48 & 0xFF
            if size_class == LARGE_CLASS:
                self._enter_span(block, reference)
            elif self.heap.runs[size_class]:
                self._enter_run(block, reference)
                continue
            elif not self.words[block]:
                self._enter(block, block_word(SLAB, 0, size_class))
            elif int(self.words[block]) != block_word(SLAB, 0, size_class):
                raise self._corrupt(reference)
            self.bits[block] = self.bits.get(block, 0) | 1 << self.heap.index_of(reference)

    def _enter_run(self, block: int, reference: int) -> None:
        page, left = self.heap.index_of(reference), self.heap.runs[reference >> 48 & 0xFF]
        while left:
            word = block_word(SLAB, 0, self.heap.page_class)
            if not self.words[block]:
                self._enter(block, word)
            elif int(self.words[block]) != word:
                raise self._corrupt(reference)
            count = min(PAGES - page, left)
            self.bits[block] = self.bits.get(block, 0) | (1 << count) - 1 << page
            left -= count
            page = 0
            block += 1

    def _enter_span(self, first: int, reference: int) -> None:
        size = self.sizes.get(reference, 0)
        count = -(-size // self.heap.layout.block_size)
        if not 0 < count <= self.heap.block_count - first:
            raise self._corrupt(reference)
        self._enter(first, block_word(LARGE, 0, LARGE_CLASS))
        for block in range(first + 1, first + count):
            self._enter(block, tail_word(first, self.pool.client.ident))

    def _enter(self, block: int, word: int) -> None:
        if self.words[block]:
            raise PoolCorrupt(
                f"{self.pool.url}: two things lie in block {block} of node {self.node}; destroy "
                "the pool"
            )
        self.words[block] = word

    def _corrupt(self, reference: int) -> PoolCorrupt:
        return PoolCorrupt(
            f"{self.pool.url}: a store of it links to what cannot be an object of its own, "
            f"{reference:#x}, on node {self.node}; destroy the pool"
        )

    def write(self) -> None:
        """Write both."""
        layout = self.heap.layout
        self.endpoint.write(self.heap.table_word(self.node, 0), self.words.tobytes())
        start, size = self.heap.bitmap(self.node, 0), layout.block_count * layout.bitmap_size
        for done in range(0, size, CHUNK):
            self.endpoint.write(start + done, bytes(min(CHUNK, size - done)))
        for block, bits in self.bits.items():
            data = bits.to_bytes(layout.bitmap_size, "little")
            self.endpoint.write(self.heap.bitmap(self.node, block), data)
