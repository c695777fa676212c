"""Latency models: the charges of a simulated clock for each step, and the sources of the figures.

Charges
    a verb on a memory node   it arrives `one_way_ns` later, waits until the node has served those
                              before it, is served for `verb_ns` and `byte_ns` a byte, and its
                              answer takes `one_way_ns`
    the first verb of a phase to a node, in the foreground and in the background
                              `series_ns` to the client, for the series of all its verbs there
    an atomic                 besides, waits until the word is free, and keeps it for `contended_ns`
    a read                    if `reads_wait`: waits likewise for the atomics on words that it reads
    `wait()`                  the client goes on when the last answer of the phase is there
    a verb in the background  as above, but no client waits for its answer; likewise what an
                              operation sends when it ends, and a verb of the foreground that no
                              `wait()` follows
    the control segment       `local_ns`: it stands for state that the papers keep in the client, or
                              in a service beside the data path. Of remote clients: as of a memory
                              node, and a client waits at once for each answer; but the client
                              journal, which would lie on memory nodes, `local_ns`
    `pause()`                 `pause_ns`, doubled with each attempt up to 128 times that
    sleeping on a word        nothing until the wake, which takes `one_way_ns`, or the timeout
    the metadata process      (of `clover`) serves a request for `metadata_ns`, one after another;
                              the request is a series, and takes `one_way_ns` each way
Computing costs nothing. A node is one queue: no scopes, no reordering, no loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_number


@dataclasses.dataclass(frozen=True)
class LatencyModel:
    """Times in ns; the module docstring lists the charges."""

    name: str
    one_way_ns: float
    verb_ns: float
    byte_ns: float
    contended_ns: float
    series_ns: float
    local_ns: float
    pause_ns: float
    metadata_ns: float = 0.0
    reads_wait: bool = True

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self)[1:]:
            if not getattr(self, field.name) >= 0:
                raise ParameterError(f"{field.name} must not be negative")


PRESETS: Final = {
    model.name: model
    for model in (
        LatencyModel(
            "cxl", one_way_ns=200, verb_ns=2, byte_ns=1 / 32, contended_ns=400, series_ns=5,
            local_ns=5, pause_ns=100, metadata_ns=125,
        ),
        LatencyModel(
            "rdma", one_way_ns=800, verb_ns=1e3 / 75, byte_ns=0.08, contended_ns=1e3 / 3,
            series_ns=200, local_ns=5, pause_ns=500, metadata_ns=125,
        ),
    )
}  # fmt: skip
_METADATA: Final = "eight cores of 1 us a request: FUSEE 6.2 has eight; 1 us is an assumption"
SOURCES: Final[dict[str, dict[str, str]]] = {
    "cxl": {
        "one_way_ns": "half a round trip of the latency profile cxl (shm/parameters.py)",
        "verb_ns": "a 64-byte line on a link of eight lanes of PCIe 5.0",
        "byte_ns": "32 GB/s, that link's rate each way",
        "contended_ns": "assumption: a word moves to the next host in one round trip",
        "series_ns": "assumption",
        "local_ns": "assumption",
        "pause_ns": "assumption: a quarter of a round trip",
        "metadata_ns": _METADATA,
        "reads_wait": "assumption: as for atomics",
    },
    "rdma": {
        "one_way_ns": "a write takes 1.6 us, a read 1.9 us: RAW in SWARM 7.1",
        "verb_ns": "75 million packets a second: RCuckoo 2.2, of a ConnectX-3",
        "byte_ns": "100 Gb/s: the testbeds of SWARM, RCuckoo and rTX; FUSEE's has 56 Gb/s",
        "contended_ns": "3 million atomics a second on one address: RCuckoo figure 1c",
        "series_ns": "200+ ns to issue a series of operations to a memory node: SWARM 7.2",
        "local_ns": "assumption",
        "pause_ns": "assumption: a third of a round trip",
        "metadata_ns": _METADATA,
        "reads_wait": "CAS blocks reads, by the NIC's internal locking: rTX 6.2; for how long, is "
        "contended_ns: an assumption",
    },
}
"""Where the figures come from, by model and field."""


def model_with(name: str, changes: Mapping[str, Any]) -> LatencyModel:
    """The preset, with changes. Raises ParameterError."""
    fields = {field.name for field in dataclasses.fields(LatencyModel)} - {"name"}
    if wrong := set(changes) - fields:
        raise ParameterError(f"a model has no {min(wrong)}; it has {', '.join(sorted(fields))}")
    for field, value in changes.items():
        check_number(field, value)
    return dataclasses.replace(PRESETS[name], **changes)


def model_lines(model: LatencyModel) -> list[str]:
    """A line for each field: its value, and the source, or that it was given."""
    preset = PRESETS.get(model.name)
    lines = []
    for field, source in SOURCES.get(model.name, {}).items():
        value = getattr(model, field)
        text = source if value == getattr(preset, field) else "given"
        lines.append(f"{field} {value:.4g}: {text}")
    return lines
