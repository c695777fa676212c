"""Builds the compiled modules. `LIMPET_PURE=1` leaves them out: the same sources run uncompiled."""

import os
from multiprocessing import get_start_method
from pathlib import Path

from setuptools import Extension, setup

COMPILED = {
    "limpet.shm.endpoint.verbs": "limpet/shm/endpoint/verbs.pyx",
    "limpet.shm.replicas.replica_layout": "limpet/shm/replicas/replica_layout.py",
    "limpet.shm.alloc.heap": "limpet/shm/alloc/heap.py",
    "limpet.shm.clients.client": "limpet/shm/clients/client.py",
    "limpet.shm.clients.holds": "limpet/shm/clients/holds.py",
    "limpet.shm.clients.epoch": "limpet/shm/clients/epoch.py",
    "limpet.shm.clients.unique_ids": "limpet/shm/clients/unique_ids.py",
    "limpet.shm.alloc.claims": "limpet/shm/alloc/claims.py",
    "limpet.shm.alloc.slabs": "limpet/shm/alloc/slabs.py",
    "limpet.shm.alloc.allocator": "limpet/shm/alloc/allocator.py",
    "limpet.stores.views": "limpet/stores/views.py",
    "limpet.stores.base": "limpet/stores/base.py",
    "limpet.stores.codecs": "limpet/stores/codecs.py",
    "limpet.stores.records": "limpet/stores/records.py",
    "limpet.stores.inline": "limpet/stores/inline.py",
    "limpet.stores.entry_log": "limpet/stores/entry_log.py",
    "limpet.stores.staged": "limpet/stores/staged.py",
    "limpet.stores.race.index": "limpet/stores/race/index.py",
    "limpet.stores.race.glance": "limpet/stores/race/glance.py",
    "limpet.stores.race.batch": "limpet/stores/race/batch.py",
    "limpet.stores.race.batch_puts": "limpet/stores/race/batch_puts.py",
    "limpet.stores.race.slots": "limpet/stores/race/slots.py",
    "limpet.stores.race.splitter": "limpet/stores/race/splitter.py",
    "limpet.stores.race.check": "limpet/stores/race/check.py",
    "limpet.stores.race.hash_store": "limpet/stores/race/hash_store.py",
    "limpet.stores.race.store": "limpet/stores/race/store.py",
    "limpet.stores.cache.ledger": "limpet/stores/cache/ledger.py",
    "limpet.stores.cache.validity": "limpet/stores/cache/validity.py",
    "limpet.stores.cache.entries": "limpet/stores/cache/entries.py",
    "limpet.stores.cache.room": "limpet/stores/cache/room.py",
    "limpet.stores.cache.store": "limpet/stores/cache/store.py",
    "limpet.stores.cache.lock": "limpet/stores/cache/lock.py",
    "limpet.stores.rtx.lllock": "limpet/stores/rtx/lllock.py",
    "limpet.stores.rtx.changes": "limpet/stores/rtx/changes.py",
    "limpet.stores.rtx.slot_writes": "limpet/stores/rtx/slot_writes.py",
    "limpet.stores.rtx.parts": "limpet/stores/rtx/parts.py",
    "limpet.stores.rtx.log": "limpet/stores/rtx/log.py",
    "limpet.stores.rtx.participant": "limpet/stores/rtx/participant.py",
    "limpet.stores.rtx.tx_object": "limpet/stores/rtx/tx_object.py",
    "limpet.stores.rtx.try_commit": "limpet/stores/rtx/try_commit.py",
    "limpet.stores.rtx.hash_keys": "limpet/stores/rtx/hash_keys.py",
    "limpet.stores.rtx.reads": "limpet/stores/rtx/reads.py",
    "limpet.stores.rtx.commit": "limpet/stores/rtx/commit.py",
    "limpet.stores.rtx.uses": "limpet/stores/rtx/uses.py",
    "limpet.stores.rtx.execution": "limpet/stores/rtx/execution.py",
    "limpet.stores.rtx.transaction": "limpet/stores/rtx/transaction.py",
    "limpet.stores.rtx.race": "limpet/stores/rtx/race.py",
    "limpet.stores.race.locked": "limpet/stores/race/locked.py",
    "limpet.stores.baselines.dtx.race": "limpet/stores/baselines/dtx/race.py",
    "limpet.stores.rcuckoo.rows": "limpet/stores/rcuckoo/rows.py",
    "limpet.stores.rcuckoo.locks": "limpet/stores/rcuckoo/locks.py",
    "limpet.stores.rcuckoo.search": "limpet/stores/rcuckoo/search.py",
    "limpet.stores.rcuckoo.lookup": "limpet/stores/rcuckoo/lookup.py",
    "limpet.stores.rcuckoo.writer": "limpet/stores/rcuckoo/writer.py",
    "limpet.stores.rcuckoo.store": "limpet/stores/rcuckoo/store.py",
    "limpet.stores.loco.data_array": "limpet/stores/loco/data_array.py",
    "limpet.stores.loco.local_index": "limpet/stores/loco/local_index.py",
    "limpet.stores.loco.lookup": "limpet/stores/loco/lookup.py",
    "limpet.stores.loco.writer": "limpet/stores/loco/writer.py",
    "limpet.stores.loco.locking": "limpet/stores/loco/locking.py",
    "limpet.stores.loco.batch_updates": "limpet/stores/loco/batch_updates.py",
    "limpet.stores.loco.store": "limpet/stores/loco/store.py",
    "limpet.stores.sherman.page": "limpet/stores/sherman/page.py",
    "limpet.stores.sherman.fences": "limpet/stores/sherman/fences.py",
    "limpet.stores.sherman.routes": "limpet/stores/sherman/routes.py",
    "limpet.stores.sherman.trees": "limpet/stores/sherman/trees.py",
    "limpet.stores.sherman.tx_trees": "limpet/stores/sherman/tx_trees.py",
    "limpet.stores.sherman.scans": "limpet/stores/sherman/scans.py",
    "limpet.stores.sherman.write_set": "limpet/stores/sherman/write_set.py",
    "limpet.stores.sherman.leaf_writer": "limpet/stores/sherman/leaf_writer.py",
    "limpet.stores.sherman.tree_keys": "limpet/stores/sherman/tree_keys.py",
    "limpet.stores.sherman.transactional": "limpet/stores/sherman/transactional.py",
    "limpet.stores.baselines.dtx.locks": "limpet/stores/baselines/dtx/locks.py",
    "limpet.stores.baselines.dtx.log": "limpet/stores/baselines/dtx/log.py",
    "limpet.stores.sherman.in_place_trees": "limpet/stores/sherman/in_place_trees.py",
    "limpet.stores.sherman.in_place_commit": "limpet/stores/sherman/in_place_commit.py",
    "limpet.stores.sherman.in_place_write_set": "limpet/stores/sherman/in_place_write_set.py",
    "limpet.stores.sherman.plain": "limpet/stores/sherman/plain.py",
    "limpet.stores.baselines.dtx.sherman_commit": "limpet/stores/baselines/dtx/sherman_commit.py",
    "limpet.stores.baselines.dtx.sherman": "limpet/stores/baselines/dtx/sherman.py",
    "limpet.stores.baselines.raw.store": "limpet/stores/baselines/raw/store.py",
    "limpet.stores.fusee.log": "limpet/stores/fusee/log.py",
    "limpet.stores.fusee.cache": "limpet/stores/fusee/cache.py",
    "limpet.stores.fusee.tables": "limpet/stores/fusee/tables.py",
    "limpet.stores.fusee.index": "limpet/stores/fusee/index.py",
    "limpet.stores.fusee.slots": "limpet/stores/fusee/slots.py",
    "limpet.stores.fusee.check": "limpet/stores/fusee/check.py",
    "limpet.stores.fusee.snapshot": "limpet/stores/fusee/snapshot.py",
    "limpet.stores.fusee.glance": "limpet/stores/fusee/glance.py",
    "limpet.stores.fusee.growth": "limpet/stores/fusee/growth.py",
    "limpet.stores.fusee.batch_rounds": "limpet/stores/fusee/batch_rounds.py",
    "limpet.stores.fusee.store": "limpet/stores/fusee/store.py",
    "limpet.stores.swarm.words": "limpet/stores/swarm/words.py",
    "limpet.stores.swarm.replica": "limpet/stores/swarm/replica.py",
    "limpet.stores.swarm.quorum": "limpet/stores/swarm/quorum.py",
    "limpet.stores.swarm.row": "limpet/stores/swarm/row.py",
    "limpet.stores.swarm.write_back": "limpet/stores/swarm/write_back.py",
    "limpet.stores.swarm.max_register": "limpet/stores/swarm/max_register.py",
    "limpet.stores.swarm.safe_guess": "limpet/stores/swarm/safe_guess.py",
    "limpet.stores.swarm.abd": "limpet/stores/swarm/abd.py",
    "limpet.stores.swarm.unmapping": "limpet/stores/swarm/unmapping.py",
    "limpet.stores.swarm.key_register": "limpet/stores/swarm/key_register.py",
    "limpet.stores.swarm.registers": "limpet/stores/swarm/registers.py",
    "limpet.stores.swarm.cache": "limpet/stores/swarm/cache.py",
    "limpet.stores.swarm.finder": "limpet/stores/swarm/finder.py",
    "limpet.stores.swarm.write_steps": "limpet/stores/swarm/write_steps.py",
    "limpet.stores.swarm.batch_reads": "limpet/stores/swarm/batch_reads.py",
    "limpet.stores.swarm.batch_writes": "limpet/stores/swarm/batch_writes.py",
    "limpet.stores.swarm.store": "limpet/stores/swarm/store.py",
    "limpet.stores.channels.regions.links": "limpet/stores/channels/regions/links.py",
    "limpet.stores.channels.regions.table": "limpet/stores/channels/regions/table.py",
    "limpet.stores.channels.waiting": "limpet/stores/channels/waiting.py",
    "limpet.stores.channels.channel": "limpet/stores/channels/channel.py",
    "limpet.stores.channels.owned_var": "limpet/stores/channels/owned_var.py",
    "limpet.stores.channels.numbers": "limpet/stores/channels/numbers.py",
    "limpet.stores.channels.atomic_var": "limpet/stores/channels/atomic_var.py",
    "limpet.stores.channels.shared_region": "limpet/stores/channels/shared_region.py",
    "limpet.stores.channels.counter": "limpet/stores/channels/counter.py",
    "limpet.stores.channels.array.element": "limpet/stores/channels/array/element.py",
    "limpet.stores.channels.array.elements": "limpet/stores/channels/array/elements.py",
    "limpet.stores.channels.barrier.barrier": "limpet/stores/channels/barrier/barrier.py",
    "limpet.stores.channels.lock.ticket_queue": "limpet/stores/channels/lock/ticket_queue.py",
    "limpet.stores.channels.lock.ticket_lock": "limpet/stores/channels/lock/ticket_lock.py",
    "limpet.stores.channels.lock.lock": "limpet/stores/channels/lock/lock.py",
    "limpet.stores.channels.participants": "limpet/stores/channels/participants.py",
    "limpet.stores.channels.queue.tasks": "limpet/stores/channels/queue/tasks.py",
    "limpet.stores.channels.queue.notes": "limpet/stores/channels/queue/notes.py",
    "limpet.stores.channels.queue.cyclic_ring": "limpet/stores/channels/queue/cyclic_ring.py",
    "limpet.stores.channels.queue.completion": "limpet/stores/channels/queue/completion.py",
    "limpet.stores.channels.queue.shared_queue": "limpet/stores/channels/queue/shared_queue.py",
    "limpet.stores.channels.ring.messages": "limpet/stores/channels/ring/messages.py",
    "limpet.stores.channels.ring.ring_buffer": "limpet/stores/channels/ring/ring_buffer.py",
}

# Code that Cython would otherwise put into each of them; it takes most of the time to compile.
SHARED = "limpet.shm.endpoint._cyutility"

DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "binding": True,
    "embedsignature": True,
    "auto_pickle": False,
    "show_performance_hints": False,
}

# LIMPET_CHECKED=1: an index that is out of bounds raises IndexError, and an attribute of None
# AttributeError, as where nothing is compiled. LIMPET_CHECKED=sanitize: gcc's sanitizers besides.
# Such a build has a directory of its own (`make sanitize`).
CHECKED = os.environ.get("LIMPET_CHECKED", "")
if CHECKED:
    DIRECTIVES |= {"boundscheck": True, "nonecheck": True}
SANITIZERS = ["-fsanitize=address,undefined"] if CHECKED == "sanitize" else []

# All memoryviews have one; Cython wants one more. They are handed over by value, at 8, its default,
# with 208 bytes each. It has to be the same in all modules.
DIMENSIONS = 2

FLAGS = ["-g0", "-fno-strict-aliasing", "-Wall", "-Wno-unused-function", "-Wno-sign-compare"]
FLAGS += SANITIZERS
if "-O" not in os.environ.get("CFLAGS", ""):
    FLAGS.append("-O2")

VERBS = "limpet.shm.endpoint.verbs"
INLINED = ["--param=max-inline-insns-single=2000", "--param=inline-unit-growth=400"]
"""For the verbs, whose bodies several methods share: none of them may become a call."""


def extensions() -> list[Extension]:
    if os.environ.get("LIMPET_PURE") == "1":
        return []
    # ORDER: the option before what is imported next, which looks at it once.
    from Cython.Compiler import Options

    Options.buffer_max_dims = DIMENSIONS
    from Cython.Build import cythonize

    sources = {**COMPILED, SHARED: SHARED.replace(".", "/") + ".c"}
    modules = [
        Extension(
            name,
            [path],
            include_dirs=["limpet/shm/endpoint"],
            extra_compile_args=FLAGS + INLINED if name == VERBS else FLAGS,
            extra_link_args=SANITIZERS,
            depends=["setup.py", "limpet/shm/endpoint/native.h"],
        )
        for name, path in sources.items()
    ]
    return list(
        cythonize(
            modules,
            compiler_directives=DIRECTIVES,
            shared_utility_qualified_name=SHARED,
            force=_outdated(),
            # other ways to start processes than by fork would not hand on the option
            nthreads=len(os.sched_getaffinity(0)) if get_start_method() == "fork" else 0,
        )
    )


def _outdated() -> bool:
    """Whether C files are there that an earlier version of this file made."""
    here = Path(__file__).stat().st_mtime
    made = [Path(path).with_suffix(".c") for path in COMPILED.values()]
    return any(path.exists() and path.stat().st_mtime < here for path in made)


setup(
    ext_modules=extensions(),
    options={"build_ext": {"parallel": len(os.sched_getaffinity(0))}},
)
