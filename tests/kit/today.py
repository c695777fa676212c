"""Exceptions from the rules of tests/test_architecture.py. The list only becomes shorter.

An entry that is not needed any more fails the tests: take it out. A new one says why here.
"""

from __future__ import annotations

from typing import Final

UNDECLARED: Final = {
    "limpet.shm.clients.unique_ids": "RANGE TICKETS_MAX",
    "limpet.shm.replicas.replica_layout": "REGIONS_MAX REGION_SIZE",
    "limpet.stores.channels.numbers": "HALF",
    "limpet.stores.channels.queue.shared_queue": "MAXSIZE_MAX SIZE_MAX",
    "limpet.stores.channels.regions.table": "NUMBER_MAX",
    "limpet.stores.core.codecs": "PROTOCOL",
    "limpet.stores.fusee.tables": "NODES",
    "limpet.stores.rtx.race": "SLOTS_PER_OBJECT",
    "limpet.stores.rtx.transaction": "OPTIMISTIC",
}
"""Whole numbers at module level that functions of a compiled module look up in its dictionary. Some
have to be there for others to import, and are of use once in a while only."""
