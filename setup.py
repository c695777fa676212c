"""Builds the compiled modules. `LIMPET_PURE=1` leaves them out: the same sources run uncompiled."""

import os

from setuptools import Extension, setup

COMPILED = {
    "limpet.shm.verbs": "limpet/shm/verbs.pyx",
    "limpet.shm.heap": "limpet/shm/heap.py",
    "limpet.shm.client": "limpet/shm/client.py",
    "limpet.shm.allocator": "limpet/shm/allocator.py",
    "limpet.stores.contract": "limpet/stores/contract.py",
    "limpet.stores.objects": "limpet/stores/objects.py",
    "limpet.stores.race.table": "limpet/stores/race/table.py",
}

DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,
    "boundscheck": True,
    "wraparound": False,
    "cdivision": True,
    "binding": True,
    "embedsignature": True,
    "auto_pickle": False,
}


def extensions() -> list[Extension]:
    if os.environ.get("LIMPET_PURE") == "1":
        return []
    from Cython.Build import cythonize

    flags = ["-O3", "-fno-strict-aliasing", "-Wall", "-Wno-unused-function"]
    modules = [
        Extension(name, [path], include_dirs=["limpet/shm"], extra_compile_args=flags)
        for name, path in COMPILED.items()
    ]
    return list(cythonize(modules, compiler_directives=DIRECTIVES, nthreads=0))


setup(ext_modules=extensions())
