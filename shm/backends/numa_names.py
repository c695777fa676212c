"""NUMA nodes by names, for memory whose number is another one on each host.

    name            the NUMA node
    memory-only     the one that has memory and no processor, as Linux shows CXL memory, and an
                    NVDIMM or other device DAX that was made system RAM
    memory_tier4    the one of that memory tier (/sys/devices/virtual/memory_tiering, Linux 6.1)
    dax0.0          the one that has, or would have, the memory of that DAX device as system RAM
                    (`target_node` in sysfs, which `daxctl list` shows, too)
    node2           number 2

Numbers are looked up when they are needed, by the process that makes a segment. A name that stands
for no node, or for several, is a ParameterError that lists those that there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from limpet.shm.errors import ParameterError

SYSTEM: Path = Path("/sys/devices/system/node")
TIERS: Path = Path("/sys/devices/virtual/memory_tiering")
DAX: Path = Path("/sys/bus/dax/devices")

MEMORY_ONLY: Final = "memory-only"
_NODE: Final = re.compile(r"node(\d{1,4})")
_TIER: Final = re.compile(r"memory_tier\d+")
_DAX: Final = re.compile(r"dax\d+\.\d+")
NAMES: Final = f"{MEMORY_ONLY!r}, 'memory_tierN', 'daxN.M', 'nodeN'"


def is_name(text: str) -> bool:
    """Whether NUMA nodes can be named like this; there need not be one."""
    return text == MEMORY_ONLY or any(one.fullmatch(text) for one in (_NODE, _TIER, _DAX))


def number_of(name: str) -> int:
    """The number of the NUMA node of that name, which `is_name`. Raises ParameterError."""
    with_memory = _numbers(SYSTEM / "has_memory")
    if name == MEMORY_ONLY:
        found = with_memory - _numbers(SYSTEM / "has_cpu")
        return _only(name, found, lambda: f"the NUMA nodes with memory are {_text(with_memory)}")
    if _TIER.fullmatch(name):
        found = _numbers(TIERS / name / "nodelist") & with_memory
        tiers = sorted(path.name for path in TIERS.glob("memory_tier*"))
        return _only(name, found, lambda: f"this kernel shows {', '.join(tiers) or 'no tiers'}")
    if _DAX.fullmatch(name):
        return _of_device(name, with_memory)
    number = int(name.removeprefix("node"))
    found = {number} & with_memory
    return _only(name, found, lambda: f"the NUMA nodes with memory are {_text(with_memory)}")


def _of_device(name: str, with_memory: set[int]) -> int:
    path = DAX / name / "target_node"
    if not path.exists():
        there = ", ".join(sorted(one.name for one in DAX.glob("dax*")))
        raise ParameterError(
            f"numa_node={name!r}: there is no such DAX device; there are: {there or 'none'}"
        )
    number = int(path.read_text())
    driver = (DAX / name / "driver").resolve().name
    if driver != "kmem":
        raise ParameterError(
            f"numa_node={name!r}: the memory of that device is no NUMA node, it is bound to "
            f"{driver}; make it one (daxctl reconfigure-device --mode=system-ram {name}), or put "
            f"the pool on dax:///dev/{name}"
        )
    if number not in with_memory:
        raise ParameterError(
            f"numa_node={name!r}: NUMA node {number}, to which that device belongs, has no memory "
            f"that is online; see daxctl online-memory {name}"
        )
    return number


def _only(name: str, found: set[int], there: Callable[[], str]) -> int:
    if len(found) == 1:
        return found.pop()
    if not found:
        raise ParameterError(f"numa_node={name!r}: this host has no such node; {there()}")
    raise ParameterError(
        f"numa_node={name!r} stands for the nodes {_text(found)}: name one of them, or one for "
        "each memory node of the pool, as a tuple"
    )


def _numbers(path: Path) -> set[int]:
    """The numbers in a list of sysfs, such as `0,2-3`; none where there is no such file."""
    if not path.exists():
        return set()
    found: set[int] = set()
    for part in filter(None, path.read_text("ascii").strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _text(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
