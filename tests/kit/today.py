"""Exceptions from the rules of tests/test_architecture.py. The list only becomes shorter.

An entry that is not needed any more fails the tests: take it out. A new one says why here.
"""

from __future__ import annotations

from typing import Final

UNDECLARED: Final = {
    "limpet.shm.clients.unique_ids": """
        RANGE TICKETS_MAX
    """,
    "limpet.shm.replicas.replica_layout": """
        REGIONS_MAX REGION_SIZE
    """,
    "limpet.stores.baselines.dtx.race": """
        CLIENTS_MAX DOING DONE FROZEN_VACANT INCARNATION_BITS NODE_SHIFT NO_MEMORY SPLIT
    """,
    "limpet.stores.channels.numbers": """
        HALF
    """,
    "limpet.stores.channels.barrier.barrier": """
        LINE PARTIES_MAX PROCESSES_MIN
    """,
    "limpet.stores.channels.lock.lock": """
        YIELD
    """,
    "limpet.stores.channels.lock.ticket_queue": """
        POLL_US SLEEP_US
    """,
    "limpet.stores.channels.owned_var": """
        MASK WORD
    """,
    "limpet.stores.channels.queue.notes": """
        KEPT_MAX PART
    """,
    "limpet.stores.channels.queue.shared_queue": """
        CONTROL_SIZE DATA DESCRIPTION_MAX DONE_WITH FORGOTTEN LINE MAXSIZE_MAX NEWS
        PATIENCE ROOM SIZE_MAX
    """,
    "limpet.stores.channels.regions.table": """
        DIRECTORY_ENTRY FORMER NUMBER_MAX
    """,
    "limpet.stores.channels.ring.ring_buffer": """
        DATA HEAD NEWS ROOM SIZE_MAX
    """,
    "limpet.stores.codecs": """
        PROTOCOL
    """,
    "limpet.stores.fusee.check": """
        FROZEN GROUP_SIZE INCARNATION_BITS MASK NODE_SHIFT OBJECT_MASK OFFSET_BITS
        OFFSET_MASK PLACE_BITS REPLICAS_ROW
    """,
    "limpet.stores.fusee.tables": """
        EXCLUDED FORMER IN_SERVICE NODES OFFSET_MASK RESTORING
    """,
    "limpet.stores.loco.locking": """
        HOLDER
    """,
    "limpet.stores.race.check": """
        HELD_MASK
    """,
    "limpet.stores.race.locked": """
        INCARNATION_BITS PIN
    """,
    "limpet.stores.rtx.race": """
        SLOTS_PER_OBJECT
    """,
    "limpet.stores.rtx.transaction": """
        OPTIMISTIC
    """,
    "limpet.stores.sherman.transactional": """
        SPARED_BLOCKS
    """,
    "limpet.stores.swarm.store": """
        ATTEMPTS_MAX IN_PLACE_WORDS
    """,
}
"""Whole numbers at module level that functions of a compiled module look up in its dictionary. Some
have to be there for others to import, and are of use once in a while only."""
