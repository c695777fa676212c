"""Latency models: the charges of a simulated clock for each step, and the sources of the figures.

Charges
    a verb on a memory node   `issue_ns` to the client; it arrives `one_way_ns` later, waits until
                              the node has served those before it, is served for `verb_ns` and
                              `byte_ns` a byte, and its answer takes `one_way_ns`
    an atomic                 besides, waits until the word is free, and keeps it for `contended_ns`
    `wait()`                  the client goes on when the last answer of the phase is there
    a verb in the background  as above, but no client waits for its answer; likewise a verb of the
                              foreground that no `wait()` follows
    the control segment       `local_ns`: it stands for state that the papers keep in the client, or
                              in a service beside the data path
    `pause()`                 `pause_ns`, doubled with each attempt up to 128 times that
Computing costs nothing. A node is one queue: no scopes, no reordering, no loss.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from limpet.shm.errors import ParameterError


@dataclasses.dataclass(frozen=True)
class LatencyModel:
    """Times in ns; the module docstring lists the charges."""

    name: str
    one_way_ns: float
    verb_ns: float
    byte_ns: float
    contended_ns: float
    issue_ns: float
    local_ns: float
    pause_ns: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self)[1:]:
            if not getattr(self, field.name) >= 0:
                raise ParameterError(f"{field.name} must not be negative")


PRESETS: Final = {
    model.name: model
    for model in (
        LatencyModel(
            "cxl", one_way_ns=200, verb_ns=2, byte_ns=1 / 32, contended_ns=400, issue_ns=5,
            local_ns=5, pause_ns=100,
        ),
        LatencyModel(
            "rdma", one_way_ns=800, verb_ns=1e3 / 75, byte_ns=0.08, contended_ns=1e3 / 3,
            issue_ns=100, local_ns=5, pause_ns=500,
        ),
    )
}  # fmt: skip
"""Sources of the figures.

rdma: a read takes 1.9 us and a write 1.6 us (SWARM section 7, RAW), hence `one_way_ns` and
`issue_ns`; a NIC processes 75 million packets a second, 100 Gb/s are 0.08 ns a byte, and atomics on
one address reach 3 million a second (RCuckoo section 2.2 and figure 1).

cxl: a round trip is that of the `cxl` latency profile (parameters.py); a link of eight scopes of
PCIe 5.0 carries 32 GB/s each way, and a 64-byte line takes 2 ns of it. Assumptions: a contended
word moves to the next host in one round trip, and a local step takes 5 ns.
"""
