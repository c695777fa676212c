"""Builds the compiled modules. `LIMPET_PURE=1` leaves them out: the same sources run uncompiled."""

import os
from multiprocessing import get_start_method
from pathlib import Path

from setuptools import Extension, setup

COMPILED = {
    "limpet.shm.verbs": "limpet/shm/verbs.pyx",
    "limpet.shm.mirrors": "limpet/shm/mirrors.py",
    "limpet.shm.heap": "limpet/shm/heap.py",
    "limpet.shm.client": "limpet/shm/client.py",
    "limpet.shm.clock": "limpet/shm/clock.py",
    "limpet.shm.tickets": "limpet/shm/tickets.py",
    "limpet.shm.allocator": "limpet/shm/allocator.py",
    "limpet.stores.contract": "limpet/stores/contract.py",
    "limpet.stores.codecs": "limpet/stores/codecs.py",
    "limpet.stores.objects": "limpet/stores/objects.py",
    "limpet.stores.inline": "limpet/stores/inline.py",
    "limpet.stores.vacant": "limpet/stores/vacant.py",
    "limpet.stores.race.index": "limpet/stores/race/index.py",
    "limpet.stores.race.hash_store": "limpet/stores/race/hash_store.py",
    "limpet.stores.race.table": "limpet/stores/race/table.py",
    "limpet.stores.race.directory": "limpet/stores/race/directory.py",
    "limpet.stores.race.growth": "limpet/stores/race/growth.py",
    "limpet.stores.rtx.lllock": "limpet/stores/rtx/lllock.py",
    "limpet.stores.race.transactional": "limpet/stores/race/transactional.py",
    "limpet.stores.race.rtx_growth": "limpet/stores/race/rtx_growth.py",
    "limpet.stores.race.locked_growth": "limpet/stores/race/locked_growth.py",
    "limpet.stores.race.logged_growth": "limpet/stores/race/logged_growth.py",
    "limpet.stores.rcuckoo.dependent_hash": "limpet/stores/rcuckoo/dependent_hash.py",
    "limpet.stores.rcuckoo.rows": "limpet/stores/rcuckoo/rows.py",
    "limpet.stores.rcuckoo.journal": "limpet/stores/rcuckoo/journal.py",
    "limpet.stores.rcuckoo.locks": "limpet/stores/rcuckoo/locks.py",
    "limpet.stores.rcuckoo.search": "limpet/stores/rcuckoo/search.py",
    "limpet.stores.rcuckoo.lookup": "limpet/stores/rcuckoo/lookup.py",
    "limpet.stores.rcuckoo.table": "limpet/stores/rcuckoo/table.py",
    "limpet.stores.loco.kvstore.tracker": "limpet/stores/loco/kvstore/tracker.py",
    "limpet.stores.loco.kvstore.data_array": "limpet/stores/loco/kvstore/data_array.py",
    "limpet.stores.loco.kvstore.local_index": "limpet/stores/loco/kvstore/local_index.py",
    "limpet.stores.loco.kvstore.journal": "limpet/stores/loco/kvstore/journal.py",
    "limpet.stores.loco.kvstore.key_locks": "limpet/stores/loco/kvstore/key_locks.py",
    "limpet.stores.loco.kvstore.lookup": "limpet/stores/loco/kvstore/lookup.py",
    "limpet.stores.loco.kvstore.table": "limpet/stores/loco/kvstore/table.py",
    "limpet.stores.sherman.page": "limpet/stores/sherman/page.py",
    "limpet.stores.sherman.routes": "limpet/stores/sherman/routes.py",
    "limpet.stores.sherman.lookup": "limpet/stores/sherman/lookup.py",
    "limpet.stores.sherman.scans": "limpet/stores/sherman/scans.py",
    "limpet.stores.sherman.table": "limpet/stores/sherman/table.py",
    "limpet.stores.raw.objects": "limpet/stores/raw/objects.py",
    "limpet.stores.raw.table": "limpet/stores/raw/table.py",
    "limpet.stores.fusee.log": "limpet/stores/fusee/log.py",
    "limpet.stores.fusee.cache": "limpet/stores/fusee/cache.py",
    "limpet.stores.fusee.tables": "limpet/stores/fusee/tables.py",
    "limpet.stores.fusee.restoring": "limpet/stores/fusee/restoring.py",
    "limpet.stores.fusee.survey": "limpet/stores/fusee/survey.py",
    "limpet.stores.fusee.snapshot": "limpet/stores/fusee/snapshot.py",
    "limpet.stores.fusee.growth": "limpet/stores/fusee/growth.py",
    "limpet.stores.fusee.table": "limpet/stores/fusee/table.py",
    "limpet.stores.swarm.words": "limpet/stores/swarm/words.py",
    "limpet.stores.swarm.in_n_out": "limpet/stores/swarm/in_n_out.py",
    "limpet.stores.swarm.recycling": "limpet/stores/swarm/recycling.py",
    "limpet.stores.swarm.max_register": "limpet/stores/swarm/max_register.py",
    "limpet.stores.swarm.write_back": "limpet/stores/swarm/write_back.py",
    "limpet.stores.swarm.timestamp_lock": "limpet/stores/swarm/timestamp_lock.py",
    "limpet.stores.swarm.safe_guess": "limpet/stores/swarm/safe_guess.py",
    "limpet.stores.swarm.abd": "limpet/stores/swarm/abd.py",
    "limpet.stores.swarm.registers": "limpet/stores/swarm/registers.py",
    "limpet.stores.swarm.cache": "limpet/stores/swarm/cache.py",
    "limpet.stores.swarm.table": "limpet/stores/swarm/table.py",
    "limpet.stores.loco.renewal": "limpet/stores/loco/renewal.py",
    "limpet.stores.loco.memory": "limpet/stores/loco/memory.py",
    "limpet.stores.loco.waiting": "limpet/stores/loco/waiting.py",
    "limpet.stores.loco.channel": "limpet/stores/loco/channel.py",
    "limpet.stores.loco.variables": "limpet/stores/loco/variables.py",
    "limpet.stores.loco.array": "limpet/stores/loco/array.py",
    "limpet.stores.loco.barrier": "limpet/stores/loco/barrier.py",
    "limpet.stores.loco.ticket_lock": "limpet/stores/loco/ticket_lock.py",
    "limpet.stores.loco.lock": "limpet/stores/loco/lock.py",
    "limpet.stores.loco.tasks": "limpet/stores/loco/tasks.py",
    "limpet.stores.loco.queue_kept": "limpet/stores/loco/queue_kept.py",
    "limpet.stores.loco.queue_places": "limpet/stores/loco/queue_places.py",
    "limpet.stores.loco.shared_queue": "limpet/stores/loco/shared_queue.py",
    "limpet.stores.loco.ring_buffer": "limpet/stores/loco/ring_buffer.py",
}

# What Cython would otherwise put into each of them again; it takes most of the time to compile.
SHARED = "limpet.shm._cyutility"

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

# All memoryviews have one; Cython wants one more. They are handed over by value, at 8, its default,
# with 208 bytes each. It has to be the same in all modules.
DIMENSIONS = 2

FLAGS = ["-g0", "-fno-strict-aliasing", "-Wall", "-Wno-unused-function", "-Wno-sign-compare"]
if "-O" not in os.environ.get("CFLAGS", ""):
    FLAGS.append("-O2")


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
            include_dirs=["limpet/shm"],
            extra_compile_args=FLAGS,
            depends=["setup.py", "limpet/shm/native.h"],
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
