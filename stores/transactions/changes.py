"""Whether anything was changed that transactions can read: a count of each client.

A transaction sees values of one moment only, at every point of its function. To look at all that it
has read with every read would take n * n / 2 looks for n reads. So each client that changes what
transactions can read counts its changes, in a word of its own slot (slots.py), beside its journal,
which it writes then anyhow: no other client writes that line of memory, and no new one is shared.

    changes     odd    the client is about to make a change, or has just made it
                even   it is not
    It only ever goes up, by one at a time; the next client of the slot goes on from there.

A change takes effect by one CAS of one client. It is counted to odd before that CAS, and to even
after it. Let a reader add the words up, find none odd, look at some memory, and add them up again
to the same sum. Each word only goes up, so each was the same, and even, at both times. A change
whose CAS came between the two sums would have been counted to odd after the first sum read its
word, and so the second sum would differ; or before, and then to even before the first sum, after
its CAS. So nothing has changed in between.

Counted are: puts and deletes of single keys of `rtx-race` (hash_keys.py), changes of one leaf of a
tree (sherman/leaf_writer.py), and decisions of transactions (log.py). Not counted is what changes
no value: locks, splits, copies of a leaf by a repairer, and what carries out a decided log.

The word of a remote client is odd as long as it is a client (shm/clients/lasting.py). It counts and
adds up nothing, since each word would be a message; so beside it all others look at everything.

A kill leaves behind: an odd word, so readers look at everything. The client that recovers the dead
one counts on to even, by a CAS (shm/recovery.py), when all that it left is decided.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import CLIENT_SLOTS, SLOT_SIZE, SLOTS_USED
from limpet.shm.endpoint.slots import CHANGES
from limpet.stores.transactions.layout import UNKNOWN


def begin_change(client: Any) -> None:
    """Count that this client is about to make a change. Within an operation."""
    if client.lasting is None:
        endpoint = client.endpoint
        at = client.slot + CHANGES
        count = endpoint.load(at)
        # ORDER: before the change; the CAS that makes it is a full barrier.
        if not count & 1:
            endpoint.store(at, count + 1)


def end_change(client: Any) -> None:
    """Count that the change is made, or will not be made."""
    if client.lasting is None:
        endpoint = client.endpoint
        at = client.slot + CHANGES
        count = endpoint.load(at)
        if count & 1:
            endpoint.store(at, count + 1)


def changes(client: Any, most: int) -> int:
    """The sum of all clients' changes, or UNKNOWN; also if there are more than `most` words to add
    up."""
    if client.lasting is not None:
        return UNKNOWN
    endpoint = client.endpoint
    used = endpoint.load(SLOTS_USED)
    if used > most:
        return UNKNOWN
    total, odd = used, 0
    at = CLIENT_SLOTS + CHANGES
    for _ in range(used):
        count = endpoint.load(at)
        odd |= count & 1
        total += count
        at += SLOT_SIZE
    return UNKNOWN if odd else total
