"""The scenario of a file system without page cache: a durable pool in files of ext4 (-o dax).

One machine, by itself, mounts the file system on its NVDIMM, and its power is cut while clients
write. It boots, mounts it again, and clients work on.
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
from limpet.fault.rack.image import (
    FSDAX_MODULES,
    MODULES,
    Needs,
    RackError,
    agent_command,
    initial,
)
from limpet.fault.rack.machine import Machine, Memory, arguments
from limpet.fault.rack.record import SIZE, Record, made
from limpet.fault.rack.verdicts import Outcome
from limpet.fault.rack.works import work_of

SIZE_NVDIMM: Final = 256 << 20
KIND: Final = "race"
URL: Final = "file:///run/fsdax/pool"
POLL_S: Final = 0.02
JOINING_S: Final = 180.0
LEASE_MS: Final = 2000


def fsdax(needs: Needs, keys: int, work_s: float, tell: Callable[[str], None]) -> Outcome:
    """Run the scenario; `tell` is handed lines of text for the log."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="limpet-rack-", dir=shared if shared.is_dir() else None))
    try:
        image = folder / "initial"
        image.write_bytes(initial(needs, agent_command(), (*MODULES, *FSDAX_MODULES)))
        (folder / "nvdimm").touch(mode=0o600)
        os.truncate(folder / "nvdimm", SIZE_NVDIMM)
        memory = Memory((folder / "nvdimm",), SIZE_NVDIMM, folder / "record", SIZE)
        machine = Machine("f", arguments(needs, "f", folder, image, memory, 1), folder)
        with made(folder / "record") as record, contextlib.ExitStack() as stack:
            stack.callback(machine.stop)
            machine.start()
            found = machine.await_ready()
            tell(f"machine f: Linux {found['kernel']}, {found['build']} build, up after "
                 f"{found['uptime_s']:.0f} s by its own clock")  # fmt: skip
            return _run(machine, record, keys, work_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(machine: Machine, record: Record, keys: int, work_s: float) -> Outcome:
    work = work_of(KIND, keys)
    outcome = verdicts.outcome_of("the power of a durable pool on fsdax is cut", work, (
        verdicts.ENDED, verdicts.MENDED, verdicts.BACK, verdicts.LOOKED, verdicts.AUDIT,
    ))  # fmt: skip
    outcome.figures["mounted"] = machine.ask("use_fsdax", make=True)["mounted"]
    machine.ask("create", url=URL, kind=KIND, lease_ms=LEASE_MS, keys=keys, durable=True)
    machine.ask("watch")
    machine.ask("work", slots=[0, 1], incarnation=1)
    _at_work(record, (0, 1))
    time.sleep(work_s)
    deaths = dict.fromkeys((1, 2), record.ticket())
    machine.kill()
    machine.start()
    machine.await_ready()
    machine.ask("use_fsdax", make=False)
    machine.ask("use", url=URL, kind=KIND, keys=keys)
    machine.ask("work", slots=[2, 3], incarnation=10)
    _at_work(record, (2, 3))
    time.sleep(work_s)
    done = [record.count(slot) for slot in (2, 3)]
    outcome.figures["operations of those that came back"] = str(sum(done))
    if min(done) < 2:
        outcome.complain(verdicts.BACK, f"its clients made {done} operations")
    said = [line for line in machine.console.splitlines() if verdicts.WHOLE_AGAIN in line]
    verdicts.judge_mended(outcome, said)
    if late := machine.ask("finish")["late"]:
        outcome.complain(verdicts.ENDED, f"{late} were blocked")
    verdicts.judge_ends(outcome, machine.take("ended"))
    found = machine.ask("verify")
    verdicts.judge_look(outcome, found)
    verdicts.judge_work(outcome, work, record, deaths, found["found"])
    return outcome


def _at_work(record: Record, slots: tuple[int, ...]) -> None:
    """Wait until each of these clients has begun its second operation."""
    end = time.monotonic() + JOINING_S
    while min(record.count(slot) for slot in slots) < 2:
        if time.monotonic() > end:
            raise RackError("the clients of machine f did not begin to work")
        time.sleep(POLL_S)
