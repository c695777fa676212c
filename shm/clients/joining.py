"""How a process becomes a client: it takes a client slot, for its `Membership` (membership.py).

Steps of a slot's state word, each a CAS from the whole word (state, pid, incarnation):
    FREE(n) -> JOINING(n+1)   by the newcomer, which then clears pin and client journal and writes
                              its identity
    JOINING -> LIVE           by the newcomer
    LIVE -> DYING             by a client that begins to recover it, or by itself when it leaves; by
                              the server of a remote client; with nodes on other hosts by the server
                              alone, once theirs have noted it (net/ledger.py)
    DYING -> FREE             by the client that first finishes recovery.py
    JOINING -> FREE           by a client that sees that the newcomer is dead

The last slot is kept for a newcomer that finds all other slots taken: it must be a client to
recover the dead clients of these slots.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Final

from limpet.shm.clients import hosts
from limpet.shm.clients.liveness import start_time
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import SLOTS_USED, slot_address
from limpet.shm.endpoint.slots import DYING, FREE, JOINING, LIVE, client_id, state_word
from limpet.shm.errors import ClientError
from limpet.shm.release import RELEASE, text_word

NAMED_MAX: Final = 20
"""The most processes that the message about a full pool names."""


def join(membership: Any) -> None:
    """Take a slot. Raises ClientError when every slot is a living client's."""
    if membership.parameters.multi_host:
        membership.remote.refuse_name()
    else:
        _refuse_second_namespace(membership)
    capacity = membership.parameters.clients - 1
    attempt = 0
    while not _take(membership, range(capacity)):
        _refuse_barred(membership, capacity)
        # The last slot is kept for this: a process must be a client to recover dead clients.
        word = _vacate(membership, capacity)
        hopeless = _all_live(membership, capacity)
        swept = not hopeless and _take(membership, range(capacity, capacity + 1))
        if swept:
            try:
                membership.sweep()
            finally:
                membership.depart()
        if (
            hopeless
            or (swept and not _take(membership, range(capacity)))
            or membership.overdue("last slot", word)
        ):
            raise ClientError(
                f"{membership.pool}: all {capacity} client slots are taken by living processes, "
                f"{_named(membership, capacity)} (it was made with clients={capacity + 1}, of "
                "which one is kept for recovery); end some, or create the pool with more clients"
            )
        if swept:
            break
        # Another newcomer has the last slot, and recovers dead clients; or a client is leaving.
        attempt += 1
        membership.endpoint.pause(attempt)
    try:
        if not membership.parameters.multi_host:
            _refuse_second_namespace(membership)
        else:
            membership.heart.start(membership)
        membership.sweep()
    except BaseException:
        membership.depart()
        raise


def _refuse_barred(membership: Any, capacity: int) -> None:
    """Raise ClientError if a process that is no client keeps newcomers out of all free slots."""
    taken = {slot for slot, _ in membership.occupied()}
    free = [slot for slot in range(capacity) if slot not in taken]
    locks = membership.locks if membership.watcher.locks_tell else None
    if free and locks is not None and all(map(locks.barred, free)):
        raise ClientError(
            f"{membership.pool}: a process that is no client has locked the {len(free)} free "
            "client slots for reading; `lslocks` or /proc/locks names it: READ locks of the "
            "control segment. If it may only read that, take the right from it (chmod go-r), and "
            "end it"
        )


def _all_live(membership: Any, capacity: int) -> bool:
    """Whether each of the first slots belongs to a living client, so none can be recovered."""
    taken = [(slot, word) for slot, word in membership.occupied() if slot < capacity]
    return len(taken) == capacity and not any(
        word >> 60 == DYING or membership.dead(slot, word) for slot, word in taken
    )


def _named(membership: Any, capacity: int) -> str:
    """The processes that have the first slots, as these tell it: pids, names, hosts."""
    found: Counter[str] = Counter()
    for slot, word in membership.occupied():
        if slot >= capacity:
            continue
        found[membership.process(slot, word)] += 1
    shown = [
        text if count == 1 else f"{text} with {count} of them"
        for text, count in found.most_common(NAMED_MAX)
    ]
    more = [f"{len(found) - NAMED_MAX} more"] if len(found) > NAMED_MAX else []
    return f"pid {', '.join(shown + more)}"


def _take(membership: Any, candidates: range) -> bool:
    for slot in candidates:
        at = slot_address(slot)
        word = membership.endpoint.load(at)
        if word >> 60 != FREE:
            continue
        # ORDER: the lock before the state word: a slot that is not FREE, and not locked, is
        # that of a dead client.
        locks = membership.locks if membership.watcher.locks_tell else None
        if locks is not None and not locks.take(slot):
            continue  # its last client is leaving, or another newcomer has it
        taken = None
        try:
            taken = _take_locked(membership, slot, at, word)
        finally:
            if taken is None and locks is not None and locks.own_file:
                # ORDER: cut off; before it is unlocked, as others see that this process lives.
                for state in (JOINING, LIVE):
                    own = state_word(state, os.getpid(), _next_incarnation(word))
                    membership.endpoint.cas(at, own, own & slots.INCARNATION_MASK)
            if not taken and locks is not None:
                locks.drop(slot)
        if taken:
            return True
    return False


def _take_locked(membership: Any, slot: int, at: int, word: int) -> bool:
    endpoint = membership.endpoint
    host, pid = membership.here, os.getpid()
    incarnation = _next_incarnation(word)
    joining = state_word(JOINING, pid, incarnation)
    # ORDER: no client looks at a slot above this mark, so it is raised before one is taken.
    while (used := endpoint.load(SLOTS_USED)) <= slot:
        endpoint.cas(SLOTS_USED, used, slot + 1)
    if endpoint.cas(at, word, joining) != word:
        return False
    for offset in range(slots.STARTED, slots.FIGURES, 8):
        if offset not in (slots.CLOCK, slots.CHANGES):
            endpoint.store(at + offset, 0)
    endpoint.store(at + slots.STARTED, start_time(pid) or 0)
    endpoint.store(at + slots.BOOT, host.boot)
    endpoint.store(at + slots.NAMESPACE, host.namespace)
    endpoint.store(at + slots.MACHINE, hosts.this_machine(membership.host_name))
    endpoint.store(at + slots.NAME, hosts.name_word(membership.host_name))
    endpoint.store(at + slots.RELEASE, text_word(RELEASE))
    locked = membership.locks.own_file if membership.locks is not None else 0
    if membership.client.lasting is not None:
        locked = slots.REMOTE
    # ORDER: before LIVE: a server that evicts all remote clients finds this one (net/evictions.py).
    endpoint.store(at + slots.LOCKED, locked)
    # CRASH(joining): the client has no memory; the slot is free again once the process is gone.
    live = state_word(LIVE, pid, incarnation)
    if endpoint.cas(at, joining, live) != joining:
        return False
    membership.client.assume(client_id(slot, live), at, live)
    return True


def _next_incarnation(word: int) -> int:
    return (word & slots.INCARNATION_MASK) % slots.INCARNATION_MASK + 1


def _vacate(membership: Any, slot: int) -> int:
    """Free the last slot if the client that took it is dead; the state word that it had.

    That client had no memory: it only recovered others, and the next one goes on with that.
    """
    at = slot_address(slot)
    word: int = membership.endpoint.load(at)
    if word >> 60 != FREE and membership.dead(slot, word):
        membership.endpoint.cas(at, word, word & slots.INCARNATION_MASK)
    return word


def _refuse_second_namespace(membership: Any) -> None:
    here = membership.here
    for slot, word in membership.occupied():
        host = membership.host_of(slot)
        if (
            word >> 60 == LIVE
            and host.boot == here.boot
            and host.namespace != here.namespace
            and not membership.dead(slot, word)
            # ORDER: the state word after the slot's other words: these may be its next client's.
            and membership.endpoint.load(slot_address(slot)) == word
        ):
            raise ClientError(
                f"{membership.pool}: process {membership.process(slot, word)} uses it; "
                "create the pool with multi_host=True to share it between them"
            )
