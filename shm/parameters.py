"""Parameters of a pool: checked when made, stored in every superblock, printed with results."""

from __future__ import annotations

import dataclasses
import fractions
import json
import re
from typing import Any, Final, TypedDict

from limpet.shm.errors import ParameterError, PoolCorrupt
from limpet.shm.times import NS, US, Seconds, units_of

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

NODES_MAX: Final = 255
NODE_SIZE_MIN: Final = 256 * KIB
NODE_SIZE_MAX: Final = 1 << 40
BLOCK_SIZE_MIN: Final = 16 * KIB
BLOCK_SIZE_MAX: Final = 1 * GIB
CLIENTS_MAX: Final = 4096
LEASE_MIN_US: Final = 1_000
LEASE_MAX_US: Final = 3_600_000_000

LOCAL_POLICIES: Final = ("kill", "wait")
FENCE_POLICIES: Final = (*LOCAL_POLICIES, "command")
LATENCY_PROFILES: Final = {"local": 0, "cxl": 400, "rdma": 2000}
"""Round-trip times in ns that `Endpoint.wait` spins for.

`cxl`: a load from a CXL 2.0 device behind a switch is a few hundred ns; `rdma`: a one-sided verb
on a 100 Gb/s network takes about 2 us (the papers' testbeds report 1.6 to 2.4 us).
"""


Latency = str | Seconds
"""A profile, or a time."""


def latency_ns(latency: Latency) -> int:
    """The round-trip time of a profile, or that time itself. Raises ParameterError."""
    if not isinstance(latency, str):
        return units_of("latency", latency, NS, NS)
    if latency not in LATENCY_PROFILES:
        raise ParameterError(
            f"latency is one of {', '.join(LATENCY_PROFILES)}, or a time in seconds, not "
            f"{latency!r}"
        )
    return LATENCY_PROFILES[latency]


_UNITS: Final = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9,
    "t": 10**12, "tb": 10**12, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40,
}  # fmt: skip


def parse_size(size: int | str) -> int:
    """Bytes in `size`: an int, or text such as `"64MiB"`, `"1.5 GiB"`, `"4096"`.

    Raises ParameterError for anything else, for negative sizes and for fractions of a byte.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise ParameterError(f"a size is an int or text such as '64MiB', not {size!r}")
    if isinstance(size, int):
        if size < 0:
            raise ParameterError(f"a size cannot be negative: {size}")
        return size
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)\s*", size, re.ASCII)
    if match is None or match[2].lower() not in _UNITS:
        raise ParameterError(f"cannot read the size {size!r}; write 4096, '64MiB' or '1.5GiB'")
    bytes_ = fractions.Fraction(match[1]) * _UNITS[match[2].lower()]
    if bytes_.denominator != 1:
        raise ParameterError(f"the size {size!r} is not a whole number of bytes")
    return int(bytes_)


def default_block_size(node_size: int) -> int:
    """A power of two near 1/256 of the node, from 16 KiB to 1 MiB; on nodes of 16 GiB or more near
    1/8192, up to 16 MiB. The larger a block, the longer it takes to allocate its pages."""
    block = BLOCK_SIZE_MIN
    while block * 512 <= node_size and block < MIB:
        block *= 2
    while block * 16384 <= node_size and block < 16 * MIB:
        block *= 2
    return block


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raise ParameterError if it is not a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParameterError(f"{name} must be a whole number from {low} to {high}, not {value!r}")


def check_number(name: str, value: object) -> None:
    """Raise ParameterError if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ParameterError(f"{name} must be a number, not {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise ParameterError if it is neither True nor False."""
    if not isinstance(value, bool):
        raise ParameterError(f"{name} must be True or False, not {value!r}")


def check_fields(parameters: object, **limits: tuple[int, int]) -> None:
    """Raise ParameterError if one of these fields is not a whole number within its limits."""
    for name, (low, high) in limits.items():
        check_whole(name, getattr(parameters, name), low, high)


def lease_us_of(lease: Any) -> int:
    """A lease as `PoolParameters.lease_us`. Raises ParameterError."""
    return units_of("lease", lease, US, LEASE_MAX_US, LEASE_MIN_US)


class PoolOptions(TypedDict, total=False):
    """Arguments of `limpet.create`: fields of `PoolParameters`; sizes also as text. `lease`:
    `lease_us` in seconds."""

    block_size: int | str
    clients: int
    lease: Seconds
    fence: str
    multi_host: bool
    durable: bool
    ephemeral: bool
    coherent: bool
    coherent_bytes: int | str


class TemporaryOptions(TypedDict, total=False):
    """Arguments of `limpet.temporary`: those of `limpet.create` that suit such a pool."""

    latency: Latency
    numa_node: int | str | tuple[int | str, ...] | None
    prefault: bool
    huge_pages: bool
    mode: int
    group: int | str | None
    block_size: int | str
    clients: int
    lease: Seconds
    fence: str
    multi_host: bool


@dataclasses.dataclass(frozen=True)
class PoolParameters:
    """The parameters of a pool. Every field has the same value in every superblock of the pool.

    `nodes`: memory nodes, 1 to 255. `node_size`: bytes each. `block_size`: bytes of a coarse block,
    a power of two. `clients`: slots for processes; one fewer can have the pool open at one time, as
    the last is kept for a newcomer that recovers dead clients when all others are taken.
    `lease_us`: for so long a client that others wait for may stand still before it is suspected.
    `fence`: `kill` ends a suspect, `wait` names it and waits; `command` is `kill`, but clients of
    another host are taken for dead only when the command of `limpet watch` has switched that host
    off. `multi_host`: clients of other hosts (or containers) may join, and every client renews a
    lease. `coherent`: plain loads and stores of all clients see each other; if not, only the first
    `coherent_bytes` of a node are hardware-coherent. `durable`: what an operation has returned
    survives a power cut, where the memory itself does (docs/durable.md). `ephemeral`: the pool goes
    away with its last client (ephemeral.py). `away`: so many nodes, the last ones, are memory of
    other hosts, which no host but their own can map (shm/net/ledger.py).
    """

    nodes: int = 1
    node_size: int = 64 * MIB
    block_size: int = 0
    clients: int = 512
    lease_us: int = 2_000_000
    fence: str = "kill"
    multi_host: bool = False
    coherent: bool = True
    coherent_bytes: int = 0
    durable: bool = False
    ephemeral: bool = False
    away: int = 0

    def __post_init__(self) -> None:
        check_fields(self, nodes=(1, NODES_MAX), node_size=(NODE_SIZE_MIN, NODE_SIZE_MAX))
        if self.node_size % 4096:
            raise ParameterError(f"node_size must be a multiple of 4096, not {self.node_size}")
        if self.block_size == 0:
            object.__setattr__(self, "block_size", default_block_size(self.node_size))
        check_fields(self, block_size=(BLOCK_SIZE_MIN, BLOCK_SIZE_MAX))
        if self.block_size & (self.block_size - 1):
            raise ParameterError(f"block_size must be a power of two, not {self.block_size}")
        if self.block_size * 8 > self.node_size:
            raise ParameterError(
                f"a node of {self.node_size} bytes has no room for 8 blocks of {self.block_size}; "
                "make the node larger or the blocks smaller"
            )
        check_fields(self, clients=(2, CLIENTS_MAX), lease_us=(LEASE_MIN_US, LEASE_MAX_US))
        if self.fence not in FENCE_POLICIES:
            raise ParameterError(f"fence must be one of {FENCE_POLICIES}, not {self.fence!r}")
        for name in ("multi_host", "coherent", "durable", "ephemeral"):
            check_flag(name, getattr(self, name))
        if self.fence == "command" and not self.multi_host:
            raise ParameterError('fence="command" is for a pool of several hosts: multi_host=True')
        if self.durable and not self.coherent:
            raise ParameterError("a durable pool has coherent memory: coherent=True")
        if self.durable and self.fence == "command":
            raise ParameterError(
                'a durable pool cannot have fence="command": after a power cut, the first process '
                "that opens it would wait for the command of a client"
            )
        if self.durable and self.ephemeral:
            raise ParameterError("a durable pool is there to stay: ephemeral=True contradicts that")
        check_fields(self, away=(0, self.nodes))
        if self.away and (not self.multi_host or not self.coherent or self.durable):
            raise ParameterError(
                "a pool with nodes on other hosts has multi_host=True and coherent=True, and is "
                "not durable"
            )
        if self.away and self.ephemeral:
            raise ParameterError("a pool with nodes on other hosts cannot be ephemeral")
        if self.coherent:
            if self.coherent_bytes:
                raise ParameterError("coherent_bytes is for pools with coherent=False")
        else:
            check_fields(self, coherent_bytes=(NODE_SIZE_MIN // 2, self.node_size))

    @property
    def lease(self) -> float:
        """`lease_us` in seconds, as `limpet.create` takes it."""
        return self.lease_us / US

    @property
    def here(self) -> int:
        """How many nodes, the first ones, are memory of the control segment's host."""
        return self.nodes - self.away

    @property
    def memory(self) -> int:
        """Bytes of all memory nodes."""
        return self.nodes * self.node_size

    def to_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes, where: str) -> PoolParameters:
        """Parameters from a superblock; PoolCorrupt, naming `where`, if they cannot be."""
        try:
            fields: Any = json.loads(text)
            return cls(**fields)
        except (ValueError, TypeError, RecursionError) as error:
            raise PoolCorrupt(f"{where}: the pool parameters are damaged ({error})") from error
