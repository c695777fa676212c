"""One virtual machine of the rack: a process of qemu that only emulates, and never asks for KVM.

Its NVDIMMs are files of the host that other machines have, too (`share=on`). It boots a kernel with
the initial file system of image.py. There is no network: the agent inside listens on a serial port,
which is a Unix socket here. A command is a line of JSON with a number, and so is its reply:

    {"number": 3, "do": "work", ...}        to the agent
    {"number": 3, "ok": true, ...}          its reply; `error` says why, if it is not ok
    {"event": "ended", "slot": 2, ...}      what it tells by itself; kept in `events`

A machine may have one processor, but is made for two or more (`maxcpus`). For one that can have no
second, qemu emulates a locked instruction by a plain load and a plain store, since nothing of that
machine could come in between; the other machine could. `Rack.prove_atomic` looks whether it does.

`kill` is a power cut: SIGKILL to qemu. `freeze` is SIGSTOP to qemu: every processor of the machine
stops between two instructions, and its clocks go on. `pause` asks qemu to stop the machine: its
clocks stop, too, so that a program in it cannot know how long it was away. The kernel ends qemu
when this process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from limpet.fault.inject.children import die_with_parent
from limpet.fault.rack.image import Needs, RackError

MEMORY_MB: Final = 640
BOOT_S: Final = 480.0
REPLY_S: Final = 120.0
LINE_MAX: Final = 1 << 20


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory that the machines of a rack share: files of the host, and sizes in bytes."""

    nvdimms: tuple[Path, ...]
    nvdimm_size: int
    record: Path
    record_size: int


SHARED: Final = "share=on,prealloc=off"


def arguments(
    needs: Needs, name: str, folder: Path, initial: Path, memory: Memory, processors: int
) -> list[str]:
    """The command line of qemu for a machine with NVDIMMs."""
    found = _basic(needs, name, folder, initial, memory, processors, "pc,nvdimm=on")
    for number, path in enumerate(memory.nvdimms):
        backend = f"memory-backend-file,id=pool{number},mem-path={path}"
        found += ["-object", f"{backend},size={memory.nvdimm_size},{SHARED}"]
        found += ["-device", f"nvdimm,id=nvdimm{number},memdev=pool{number}"]
    return found


def cxl_arguments(
    needs: Needs, name: str, folder: Path, initial: Path, memory: Memory, labels: Path
) -> list[str]:
    """The command line of qemu for a machine with a CXL type-3 device: the first of `memory`.

    The bridge has two root ports. With one, Linux takes the bridge for one that passes everything
    on, and programs no decoder of it; qemu 7.2 finds no device then: stores are dropped and loads
    give zeros, without an error. `labels`: the file of the device's label area.
    """
    device = f"memory-backend-file,id=pool,mem-path={memory.nvdimms[0]}"
    area = f"memory-backend-file,id=labels,mem-path={labels},size={labels.stat().st_size}"
    return [
        *_basic(needs, name, folder, initial, memory, 1, "q35,cxl=on"),
        "-object", f"{device},size={memory.nvdimm_size},{SHARED}",
        "-object", f"{area},{SHARED}",
        "-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=bridge",
        "-device", "cxl-rp,port=0,bus=bridge,id=port0,chassis=0,slot=2",
        "-device", "cxl-rp,port=1,bus=bridge,id=port1,chassis=0,slot=3",
        "-device", "cxl-type3,bus=port0,memdev=pool,lsa=labels,id=cxl0",
        "-M", "cxl-fmw.0.targets.0=bridge,cxl-fmw.0.size=4G",
    ]  # fmt: skip


def _basic(
    needs: Needs, name: str, folder: Path, initial: Path, memory: Memory, processors: int,
    machine: str,
) -> list[str]:  # fmt: skip
    """The parameters that all machines have."""
    return [
        str(needs.qemu), "-nodefaults", "-no-reboot", "-display", "none",
        "-accel", "tcg,thread=multi", "-machine", machine, "-cpu", "max",
        "-smp", f"{processors},maxcpus={max(2, processors)}",
        "-m", f"{MEMORY_MB}M,slots=8,maxmem=8G",
        "-kernel", str(needs.kernel), "-initrd", str(initial),
        "-append", f"console=ttyS0 quiet panic=1 tsc=reliable clocksource=tsc rack.name={name}",
        "-serial", f"file:{folder / name}.console",
        "-chardev", f"socket,id=agent,path={folder / name}.agent", "-serial", "chardev:agent",
        "-qmp", f"unix:{folder / name}.qmp,server=on,wait=off",
        "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
        "-object", f"memory-backend-file,id=record,mem-path={memory.record},"
        f"size={memory.record_size},{SHARED}",
        "-device", "ivshmem-plain,memdev=record",
    ]  # fmt: skip


class Machine:
    """A machine called `name`, which may be started again after it was killed."""

    start_s = 30.0
    """How long qemu may take to connect to the agent's socket."""
    progress_s = 10.0
    """How often there is a line while it boots."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        """`command`: how to start it, from `arguments`; `folder` has its sockets and console."""
        self.name = name
        self.command = command
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        """Events that the agent has sent by itself and `take` has not taken yet."""
        self.frozen = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._text = b""
        self._number = 0

    # ---- life ---------------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def console(self) -> str:
        """The text on the machine's console; after a restart, that of the last run."""
        path = self.folder / f"{self.name}.console"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Switch it on. `await_ready` waits for its agent."""
        assert not self.runs
        path = self.folder / f"{self.name}.agent"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen(1)
            server.settimeout(self.start_s)
            with (self.folder / f"{self.name}.qemu").open("wb") as output:
                self._process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    preexec_fn=die_with_parent, start_new_session=True,
                )  # fmt: skip
            try:
                self._socket, _ = server.accept()
            except TimeoutError as error:
                self.kill()
                raise RackError(f"qemu did not start machine {self.name}: {self.said()}") from error
        self._text = b""

    def await_ready(self, timeout_s: float = BOOT_S) -> dict[str, Any]:
        """Wait for the agent, and say so on stderr; what it says of its machine."""
        end, told_s = time.monotonic() + timeout_s, 0.0
        while True:
            found = next((one for one in self.events if one["event"] == "ready"), None)
            if found is not None:
                self.events.remove(found)
                return found
            while b"\n" not in self._text and self._socket is not None and time.monotonic() < end:
                if select.select([self._socket], [], [], self.progress_s)[0]:
                    break
                told_s += self.progress_s
                sys.stderr.write(f"machine {self.name} boots, for {told_s:.0f} s up to now\n")
            self._read_line(end, "start its agent")

    def kill(self) -> None:
        """Cut its power."""
        self._end(lambda process: process.kill())

    def cut(self) -> None:
        """Cut its power, without waiting until it is off; `kill` waits."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Let it shut down by itself; cut its power if it does not."""
        if self.runs and not self.frozen:
            with contextlib.suppress(RackError):
                self.ask("end", timeout_s=5)
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(10)
        self.kill()

    def _end(self, end: Any) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                end(self._process)
            self._process.wait(30)
            self._process = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.frozen = False

    # ---- standing still -----------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop every processor between two instructions. The machine's clocks go on."""
        self._signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self._signal(signal.SIGCONT)
        self.frozen = False

    def pause(self) -> None:
        """Stop the machine and its clocks."""
        self._command("stop")
        self.frozen = True

    def unpause(self) -> None:
        """Go on after `pause`."""
        self._command("cont")
        self.frozen = False

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _command(self, name: str) -> None:
        """Send qemu a command (QMP)."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(30)
            control.connect(str(self.folder / f"{self.name}.qmp"))
            with control.makefile("r") as file:
                file.readline()  # the greeting
                for execute in ("qmp_capabilities", name):
                    control.sendall(json.dumps({"execute": execute}).encode() + b"\n")
                    while not {"return", "error"} & (found := json.loads(file.readline())).keys():
                        pass  # what happened elsewhere
                    if "error" in found:
                        raise RackError(f"qemu refuses {execute} for {self.name}: {found['error']}")

    # ---- the agent ----------------------------------------------------------------------------

    def ask(self, do: str, timeout_s: float = REPLY_S, **arguments: Any) -> dict[str, Any]:
        """Send the agent a command; its reply. Raises RackError when it cannot, or is late."""
        self.tell(do, **arguments)
        return self.reply(do, timeout_s)

    def tell(self, do: str, **arguments: Any) -> None:
        """Send the agent a command; `reply` waits for its answer."""
        self._number += 1
        line = json.dumps({"number": self._number, "do": do, **arguments}) + "\n"
        if self._socket is None:
            raise RackError(f"machine {self.name} does not run")
        self._socket.sendall(line.encode())

    def reply(self, do: str, timeout_s: float = REPLY_S) -> dict[str, Any]:
        """The agent's reply to what it was told last, which was `do`."""
        end = time.monotonic() + timeout_s
        while True:
            found = self._read_line(end, do)
            if found is not None and found.get("number") == self._number:
                if not found["ok"]:
                    raise RackError(f"machine {self.name} cannot {do}: {found['error']}")
                return found

    def take(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of that name and with those fields that have come; they are forgotten here."""
        with contextlib.suppress(RackError):
            while True:
                self._read_line(time.monotonic(), "say more")
        wanted = {"event": event, **fields}
        found = [one for one in self.events if wanted.items() <= one.items()]
        self.events = [one for one in self.events if one not in found]
        return found

    def _read_line(self, end: float, what: str) -> dict[str, Any] | None:
        """The next line, if it is a reply; an event is kept. Raises RackError after `end`."""
        while b"\n" not in self._text:
            left = end - time.monotonic()
            if self._socket is None or not select.select([self._socket], [], [], max(0, left))[0]:
                raise RackError(f"machine {self.name} did not {what} in time: {self.said()}")
            try:
                got = self._socket.recv(65536)
            except ConnectionResetError:
                got = b""
            if not got or len(self._text) > LINE_MAX:
                raise RackError(f"machine {self.name} has ended: {self.said()}")
            self._text += got
        line, self._text = self._text.split(b"\n", 1)
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise RackError(f"machine {self.name} says {line[:200]!r}, which is no JSON") from error
        if "event" in found:
            found["at"] = time.monotonic()
            self.events.append(found)
            return None
        return found

    def said(self) -> str:
        """The last lines of its console and of qemu, for an error."""
        path = self.folder / f"{self.name}.qemu"
        said = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join([*said.splitlines()[-5:], *self.console.splitlines()[-15:]])
