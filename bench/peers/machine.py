"""Facts about the machine and the build that belong to every result."""

from __future__ import annotations

import os
import pathlib
import platform
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
        "limpet_build": limpet.build,
    }


def _cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
