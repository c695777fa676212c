"""The registry of crash points: the named steps of each module at which a death leaves traces.

A module's comment `# CRASH(name):` at the step says what a survivor sees there and which client
repairs it. Here each name is registered with its module; tests/fault/test_crash_points.py fails for
a name that is only in one of the two. `defined` returns the crash points that clients of a kind can
come by: those of the memory layer, of code that all stores share, and of the kind's own modules.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from limpet.fault.matrix.fault_profile import profile_of
from limpet.stores.registry import kind_named

CRASH_POINTS: Final[dict[str, frozenset[str]]] = {
    "shm/alloc/blocks.py": frozenset({"pending-run", "span-shortened", "tails-first"}),
    "shm/alloc/heap.py": frozenset({"tentative-link", "used-in-part"}),
    "shm/alloc/reclaim.py": frozenset({"taken"}),
    "shm/backends/file.py": frozenset({"unlocked"}),
    "shm/backends/name.py": frozenset({"half-removed"}),
    "shm/catalogue/directory.py": frozenset({"claimed-entry", "planned-entry"}),
    "shm/catalogue/regions.py": frozenset({"discarded-region"}),
    "shm/clients/client.py": frozenset({"held"}),
    "shm/clients/joining.py": frozenset({"joining"}),
    "shm/clients/writer_numbers.py": frozenset({"number-claimed"}),
    "shm/recovery.py": frozenset({"blocks-returned", "dying", "leaving", "settled"}),
    "shm/growth.py": frozenset({"nodes-made", "ring-closed", "ring-open"}),
    "shm/mapped_nodes.py": frozenset({"node-created"}),
    "shm/replacement.py": frozenset({"node-filled", "node-restoring"}),
    "shm/replicas/replica_sets.py": frozenset({"set-claimed", "set-in-part", "stray"}),
    "shm/replicas/view.py": frozenset({"parked", "reconciled"}),
    "stores/baselines/clover/store.py": frozenset({"appended", "retired"}),
    "stores/baselines/dtx/log.py": frozenset({"noted"}),
    "stores/baselines/dtx/race.py": frozenset(
        {"entry-locked", "half-written", "split-decided", "split-locked", "split-unlocked"}
    ),
    "stores/baselines/dtx/sherman_commit.py": frozenset({"decided", "node-locked", "unlocked"}),
    "stores/baselines/dtx/recovery.py": frozenset({"stopped"}),
    "stores/baselines/pdpm/store.py": frozenset({"committed", "deleted", "locked", "updated"}),
    "stores/channels/array/array.py": frozenset({"given-up", "making"}),
    "stores/channels/barrier/barrier.py": frozenset(
        {"acting", "broken", "came", "register-taken", "regrouped", "reset-noted", "resetting"}
    ),
    "stores/channels/changes.py": frozenset({"made"}),
    "stores/channels/channel.py": frozenset({"joined"}),
    "stores/channels/condition.py": frozenset({"notifying"}),
    "stores/channels/cells.py": frozenset({"linked"}),
    "stores/channels/deque.py": frozenset({"popped"}),
    "stores/channels/event.py": frozenset({"set"}),
    "stores/channels/holders/holders.py": frozenset({"held"}),
    "stores/channels/jobs/table.py": frozenset(
        {
            "acked",
            "given-back",
            "kept",
            "linked",
            "locked",
            "put",
            "rebuilding",
            "result-linked",
            "taken",
        }
    ),
    "stores/channels/lock/ticket_lock.py": frozenset({"buried", "holding", "released", "unserved"}),
    "stores/channels/lock/ticket_queue.py": frozenset({"given-back", "queued"}),
    "stores/channels/owned_var.py": frozenset({"pushing"}),
    "stores/channels/queue/completion.py": frozenset({"forgetting"}),
    "stores/channels/queue/cyclic_ring.py": frozenset({"begun", "claimed", "stale-link", "taken"}),
    "stores/channels/queue/notes.py": frozenset(
        {"closed", "done", "emptied", "lost", "named", "swapped"}
    ),
    "stores/channels/queue/tasks.py": frozenset({"folding"}),
    "stores/channels/regions/catalogue.py": frozenset({"given-up-channel", "unmarked"}),
    "stores/channels/regions/table.py": frozenset({"renewed"}),
    "stores/channels/regions/links.py": frozenset({"unlinking"}),
    "stores/channels/ring/messages.py": frozenset({"sending", "writer"}),
    "stores/channels/topic.py": frozenset({"published"}),
    "stores/channels/waiting.py": frozenset({"waking", "woken"}),
    "stores/core/feed.py": frozenset({"announced", "kept", "noted", "settled"}),
    "stores/fusee/batch_rounds.py": frozenset({"inserting", "proposed", "replaced"}),
    "stores/fusee/growth.py": frozenset(
        {"freezing", "slot-freezing", "slot-frozen", "split", "subtable-made"}
    ),
    "stores/fusee/restoring.py": frozenset({"levelling", "reconciling"}),
    "stores/fusee/slots.py": frozenset({"evicting", "inserting"}),
    "stores/fusee/snapshot.py": frozenset({"helped", "proposed", "replaced", "voided", "won"}),
    "stores/fusee/tables.py": frozenset({"announced", "entry-decided"}),
    "stores/loco/data_array.py": frozenset({"torn"}),
    "stores/loco/locking.py": frozenset({"locked"}),
    "stores/loco/repair.py": frozenset({"repairing"}),
    "stores/loco/writer.py": frozenset({"claimed", "committed", "deleted", "inserted"}),
    "stores/race/locked.py": frozenset({"growing"}),
    "stores/race/slots.py": frozenset({"deleted", "inserting", "kicked", "updated"}),
    "stores/race/splitter.py": frozenset({"freezing", "split", "subtable-made"}),
    "stores/rcuckoo/locks.py": frozenset({"locked", "unlocking"}),
    "stores/rcuckoo/repair.py": frozenset({"repairing"}),
    "stores/rcuckoo/rows.py": frozenset({"torn"}),
    "stores/rcuckoo/writer.py": frozenset({"committed", "moving", "written"}),
    "stores/transactions/try_commit.py": frozenset({"aborted"}),
    "stores/transactions/commit.py": frozenset({"decided", "over", "published"}),
    "stores/rtx/cut.py": frozenset({"published"}),
    "stores/transactions/hash_keys.py": frozenset({"kicked"}),
    "stores/transactions/log.py": frozenset({"noted", "written"}),
    "stores/transactions/parts.py": frozenset({"locked", "releasing"}),
    "stores/rtx/race.py": frozenset({"split-decided"}),
    "stores/transactions/repair.py": frozenset({"copied", "taken-over"}),
    "stores/transactions/tx_object.py": frozenset({"installing", "locked", "releasing"}),
    "stores/sherman/in_place_commit.py": frozenset({"node-locked", "node-written"}),
    "stores/sherman/leaf_writer.py": frozenset(
        {"leaf-installed", "leaf-locked", "leaf-locked-early"}
    ),
    "stores/swarm/replica.py": frozenset({"pointer", "put", "turned"}),
    "stores/swarm/row.py": frozenset({"emptied"}),
    "stores/swarm/safe_guess.py": frozenset({"verified"}),
    "stores/swarm/key_register.py": frozenset({"entombed", "register-given-up"}),
}
"""By module, as a path from the root of the source tree."""
SHARED: Final = ("shm", "stores")
"""Folders whose modules every kind uses: all below the first, and those in the second itself."""


def defined(kind: str) -> dict[str, str]:
    """Every crash point that a client of this kind can come by, and its module."""
    profile = profile_of(kind)
    package = "/".join(kind_named(kind).module.split(".")[2:-1])
    own = [f"stores/{pattern}" for pattern in profile.sources or (f"{package}/*.py",)]
    return {
        name: module
        for module, names in sorted(CRASH_POINTS.items())
        if is_shared(module) or any(PurePosixPath(module).match(pattern) for pattern in own)
        for name in names - profile.not_met
    }


def is_shared(module: str) -> bool:
    """Whether clients of all kinds use a module."""
    memory, stores = SHARED
    path = PurePosixPath(module)
    return path.parts[0] == memory or str(path.parent) == stores
