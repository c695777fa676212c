"""Builds the compiled modules. `LIMPET_PURE=1` leaves them out: the same sources run uncompiled."""

from __future__ import annotations  # so that those of `constants` are no names

import ast
import contextlib
import os
import re
import shutil
import sys
import sysconfig
from functools import cache
from multiprocessing import get_start_method
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

PURE = os.environ.get("LIMPET_PURE") == "1"
COMPILING = not PURE and bool({"bdist_wheel", "build", "build_ext", "editable_wheel"} & {*sys.argv})
IN_TREE = bool({"editable_wheel", "--inplace"} & {*sys.argv})
"""Whether the modules are for a checkout, and not for a wheel."""
PACKAGE = sorted(Path("limpet").glob("*/**/*.p[xy]*"))
TYPES = [path for path in PACKAGE if path.suffix == ".pxd"]
# A module with a .pxd beside it is compiled.
COMPILED = {
    path.with_suffix("").as_posix().replace("/", "."): path
    for path in PACKAGE
    if path.suffix in (".py", ".pyx") and path.with_suffix(".pxd") in TYPES
}
CONSTANTS = Path("build/constants")
"""Types of the constants of modules that are not compiled, as `write_constants` makes them."""

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
# A module says how it was made; benchmarks print it (bench/peers/machine.py).
FLAGS += ["-frecord-gcc-switches", *SANITIZERS]
if "-O" not in os.environ.get("CFLAGS", ""):
    # -O1 takes gcc a third less time than -O2.
    FLAGS.append("-O1" if IN_TREE else "-O2")

VERBS = "limpet.shm.endpoint.verbs"
INLINED = ["--param=max-inline-insns-single=2000", "--param=inline-unit-growth=400"]
"""For the verbs, whose bodies several methods share: none of them may become a call."""


def why_not() -> str:
    """Why limpet cannot be installed here, in a line; empty: it can."""
    if sys.platform != "linux":
        return (
            f"limpet runs on Linux only, and this is {sys.platform}: its processes share memory by "
            "Linux's /dev/shm, futexes and pidfds; on macOS and Windows use a container, a virtual "
            "machine, or WSL 2"
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            "limpet does not run on free-threaded builds of Python: its handles are kept whole by "
            "the global interpreter lock; take the ordinary build of this version"
        )
    other = "or set LIMPET_PURE=1 to install the pure build, which needs neither, and is slower"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if COMPILING and not shutil.which(compiler):
        return (
            f"no C compiler ({compiler}): limpet is compiled when it is installed from sources; "
            f"install one (Debian, Ubuntu: gcc and python3-dev; Fedora: gcc and "
            f"python3-devel; Alpine: gcc, musl-dev and python3-dev), {other}"
        )
    if COMPILING and not Path(sysconfig.get_path("include"), "Python.h").exists():
        return (
            "no header files of this Python: limpet is compiled when it is installed from sources; "
            f"install them (Debian, Ubuntu, Alpine: python3-dev; Fedora: python3-devel), "
            f"{other}"
        )
    return ""


@cache
def constants(module: str) -> tuple[dict[str, Any], set[str]]:
    """The values that names have at the top level of a module, and which of them it assigns itself.
    They are worked out from the sources: nothing can be imported before it is compiled."""
    values: dict[str, Any] = {}
    own: set[str] = set()
    for node in ast.parse(Path(module.replace(".", "/") + ".py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("limpet."):
            path = Path(f"{node.module}".replace(".", "/") + ".py")
            theirs = constants(f"{node.module}")[0] if path.exists() else {}
            values |= {n.asname or n.name: theirs[n.name] for n in node.names if n.name in theirs}
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.FunctionDef)):
            with contextlib.suppress(Exception):  # what needs more than numbers is none itself
                exec(compile(ast.Module([node], []), "", "exec"), values)
            if not isinstance(node, ast.FunctionDef):
                stored = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
                own |= {name.id for name in stored if isinstance(name.ctx, ast.Store)}
    return values, own & values.keys()


def types_of(module: str) -> str:
    """The .pxd of a module that is not compiled: its whole numbers, which C knows as such."""
    values, own = constants(module)
    text = "cdef extern from *:\n"
    for name in sorted(own):
        value = values[name]
        if type(value) is int and not name.startswith("_") and -(1 << 63) < value < 1 << 64:
            kind, end = ("long long", "LL") if value < 1 << 63 else ("unsigned long long", "ULL")
            text += f'    const {kind} {name} "({value}{end})"\n'
    return text


def types_of_constants() -> dict[str, str]:
    """The .pxd of each module that is not compiled and that another .pxd names."""
    cimported = (re.findall(r"^from (limpet\.\S+) cimport", p.read_text(), re.M) for p in TYPES)
    typed = {path.with_suffix("").as_posix().replace("/", ".") for path in TYPES}
    return {module: types_of(module) for module in set().union(*cimported) - typed}


def write_constants() -> None:
    """Files that stay as they are keep their times, so their users are not compiled again."""
    texts = {
        (CONSTANTS / module.replace(".", "/")).with_suffix(".pxd"): text
        for module, text in {"limpet.__init__": "", **types_of_constants()}.items()
    }
    for path in set(CONSTANTS.rglob("*.pxd")) - texts.keys():
        path.unlink()
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def extensions() -> list[Extension]:
    if PURE:
        return []
    write_constants()
    # ORDER: the option before what is imported next, which looks at it once.
    from Cython.Compiler import Options

    Options.buffer_max_dims = DIMENSIONS
    from Cython.Build import cythonize

    sources = {**COMPILED, SHARED: SHARED.replace(".", "/") + ".c"}
    modules = [
        Extension(
            name,
            [str(path)],
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
            include_path=[str(CONSTANTS)],
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
    made = [path.with_suffix(".c") for path in COMPILED.values()]
    return any(path.exists() and path.stat().st_mtime < here for path in made)


class BuildPy(build_py):
    """With the types of constants, so that a program can cimport from what is installed."""

    def run(self) -> None:
        super().run()
        if not PURE and not self.editable_mode:
            self.copy_tree(str(CONSTANTS), self.build_lib)


if why_not():
    sys.exit(why_not())
setup(
    ext_modules=extensions(),
    cmdclass={"build_py": BuildPy},
    options={
        "build_ext": {"parallel": len(os.sched_getaffinity(0))},
        # a wheel is not made of what was compiled for the tree
        "build": {"build_base": "build/in_tree" if IN_TREE else "build"},
    },
)
