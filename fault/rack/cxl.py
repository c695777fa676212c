"""The scenario of CXL memory: a machine that emulates a CXL type-3 device, by itself.

Linux makes a region of the device, and of that a device DAX, on which clients work; then it makes a
NUMA node without processors of it, to which pools are bound by name.

Only one machine has the device. qemu emulates an access to CXL memory as one to a device, in a
function of its own, so a locked instruction there need not be atomic to another machine. The
scenarios of two machines use NVDIMMs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from limpet.fault.rack import verdicts
from limpet.fault.rack.image import CXL_MODULES, MODULES, Needs, RackError, agent_command, initial
from limpet.fault.rack.machine import Machine, Memory, cxl_arguments
from limpet.fault.rack.record import SIZE, Record, made
from limpet.fault.rack.verdicts import Outcome
from limpet.fault.rack.works import work_of

SIZE_CXL: Final = 256 << 20
SIZE_LABELS: Final = 1 << 20
KIND: Final = "race"
MADE: Final = "Linux makes a device DAX of the CXL memory"
BOUND: Final = "a pool is bound to its NUMA node by each of its names"
REFUSED: Final = "a name that no NUMA node of the machine has is refused"
POLL_S: Final = 0.02
JOINING_S: Final = 180.0


def cxl(needs: Needs, keys: int, work_s: float, tell: Callable[[str], None]) -> Outcome:
    """Run the scenario; `tell` is handed lines of text for the log."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="limpet-rack-", dir=shared if shared.is_dir() else None))
    try:
        image = folder / "initial"
        image.write_bytes(initial(needs, agent_command(), (*MODULES, *CXL_MODULES)))
        for name, size in (("cxl", SIZE_CXL), ("labels", SIZE_LABELS)):
            (folder / name).touch(mode=0o600)
            os.truncate(folder / name, size)
        memory = Memory((folder / "cxl",), SIZE_CXL, folder / "record", SIZE)
        command = cxl_arguments(needs, "c", folder, image, memory, folder / "labels")
        machine = Machine("c", command, folder)
        with made(folder / "record") as record, contextlib.ExitStack() as stack:
            stack.callback(machine.stop)
            machine.start()
            found = machine.await_ready()
            tell(f"machine c: Linux {found['kernel']}, {found['build']} build, with CXL memory, up "
                 f"after {found['uptime_s']:.0f} s by its own clock")  # fmt: skip
            return _run(machine, record, keys, work_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(machine: Machine, record: Record, keys: int, work_s: float) -> Outcome:
    work = work_of(KIND, keys)
    outcome = verdicts.outcome_of("a machine with CXL memory", work, (
        MADE, verdicts.ENDED, verdicts.LOOKED, verdicts.AUDIT, BOUND, REFUSED,
    ))  # fmt: skip
    devices = machine.ask("use_cxl")["devices"]
    outcome.figures["device DAX"] = ", ".join(
        f"{name}, {size} bytes, aligned to {align}" for name, (size, align) in devices.items()
    )
    if len(devices) != 1:
        outcome.complain(MADE, f"it made {len(devices)}")
        return outcome
    (device,) = devices
    machine.ask("create", url=f"dax:///dev/{device}", kind=KIND, lease_ms=2000, keys=keys)
    machine.ask("watch")
    machine.ask("work", slots=[0, 1], incarnation=1)
    _await(record, 0, work_s)
    deaths = {1: record.ticket()}
    machine.ask("kill", slot=0)
    machine.ask("again", slot=0, incarnation=10)
    _await(record, record.count(0), work_s)
    if late := machine.ask("finish")["late"]:
        outcome.complain(verdicts.ENDED, f"{late} were blocked")
    verdicts.judge_ends(outcome, machine.take("ended"))
    found = machine.ask("verify")
    verdicts.judge_look(outcome, found)
    verdicts.judge_work(outcome, work, record, deaths, found["found"])
    _bind(machine, outcome, device)
    return outcome


def _await(record: Record, before: int, work_s: float) -> None:
    """Let the clients work, once the one of slot 0 has made more than `before` operations."""
    end = time.monotonic() + JOINING_S
    while record.count(0) <= before:
        if time.monotonic() > end:
            raise RackError("the clients of machine c did not begin to work")
        time.sleep(POLL_S)
    time.sleep(work_s)


def _bind(machine: Machine, outcome: Outcome, device: str) -> None:
    """Make system RAM of the device, and bind pools to it."""
    nodes = machine.ask("system_ram", device=device)
    number = nodes["has_memory"].split("-")[-1]
    outcome.figures["NUMA nodes"] = (
        f"with memory {nodes['has_memory']}, with processors {nodes['has_cpu']}"
    )
    names = ["memory-only", device, f"node{number}"]
    wrong = ["dax7.0", "node7", "memory_tier7"]
    bound = machine.ask("bind", names=[*names, *wrong])["found"]
    for name in names:
        outcome.figures[f"pages of a pool on {name}"] = bound[name]
        if bound[name] != f"N{number}":
            outcome.complain(BOUND, f"{name}: {bound[name]}")
    for name in wrong:
        if "ParameterError" not in bound[name]:
            outcome.complain(REFUSED, f"{name}: {bound[name]}")
