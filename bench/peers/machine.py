"""Facts about the machine and the build that belong to every result."""

from __future__ import annotations

import os
import pathlib
import platform
import re
from typing import Any


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def facts() -> dict[str, Any]:
    """CPU model, usable cores, memory, kernel, Python, and how limpet was built."""
    import limpet

    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "limpet_build": " ".join([limpet.build, *_optimisations(limpet.__path__[0])]),
    }


def _optimisations(package: str) -> list[str]:
    """How gcc has optimised the compiled modules, as it has noted in each of them: one level, or
    several where they were not made at once; "?": it has noted nothing."""
    levels = set()
    for path in pathlib.Path(package).glob("*/**/*.so"):
        noted = re.search(rb"GNU C\d+ [^\0]*", path.read_bytes())
        given = re.findall(rb"-O\S*", noted[0]) if noted else [b"?"]
        levels.add((given or [b"-O0"])[-1].decode())
    return sorted(levels)


def _cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
