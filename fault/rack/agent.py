"""The program inside a machine of the rack: it makes pools and starts clients.

    python -m limpet.fault.rack.agent TTY

A command is a line of JSON on TTY (machine.py). Clients are forked children, so that they start at
once; each reports its end by a line on a pipe, which the agent hands on. A child ends with the
agent, and the agent with the machine.

    count       many atomic additions, while the other machine makes them, too
    lateness    how late a thread gets to run, while others compute
    create      a pool on this machine's devices, and what clients work on in it
    work        clients on the slots of the record that are named
    kill        SIGKILL to one of them
    watch       a process that recovers the dead, as `limpet watch` does
    finish      clients end after their operation; how each ended
    verify      use everything, recover the dead, use everything again, check, audit
    withdraw    a DAX device, while it is mapped; `give_back` undoes it
    poison      a page of a node, as a client that has it mapped; `poison_values` one in a pool in
                the machine's own memory
    nodes       their states; `replace` gives one of them its device again
    attempt     to open the pool, or to destroy it: the error
    other_release   run a client of another release, or of another protocol
    use_cxl     make a device DAX of CXL memory; `system_ram` makes a NUMA node of that
    use_fsdax   mount a file system on the NVDIMM without page cache
    bind        pools on NUMA nodes by their names
    look        the clients of the pool, and its last events
    end         end the agent
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import limpet
from limpet.fault.check.verify import FINAL
from limpet.fault.inject.children import end_with_parent
from limpet.fault.inject.counters import Counters
from limpet.fault.rack import record
from limpet.fault.rack.work import Work
from limpet.fault.rack.works import work_of
from limpet.shm.clients.liveness import this_host
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.slots import LIVE, STATE_SHIFT, client_id
from limpet.shm.errors import LimpetError

WATCH_S: Final = 0.05
NAP_S: Final = 0.05
BOUND: Final = "shm://bound"
PRIVATE: Final = "shm://private"
VALUES: Final = 300
MADV_HWPOISON: Final = 100
FSDAX: Final = Path("/run/fsdax")
DRIVER: Final = Path("/sys/bus/dax/drivers/device_dax")


class Agent:
    """The commands of a machine. Each method is a command; its arguments are those of the line."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self.tell = tell
        """Hands an event on; also from a child."""
        self.record = record.Record(record.device())
        self.children: dict[int, int | None] = {}
        """Pids of the children, each with its slot of the record (None: it watches)."""
        self.counters = Counters(record.SLOTS)
        self.use("", "race", 1)

    # ---- commands -----------------------------------------------------------------------------

    def create(
        self, url: str, kind: str, lease_ms: int, keys: int, durable: bool = False,
        one_host: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Make a pool, in place of the one that is there, and all that is worked on in it."""
        with contextlib.suppress(limpet.PoolNotFound):
            limpet.destroy(url)
        self.use(url, kind, keys)
        with limpet.create(
            url,
            multi_host=not one_host,
            durable=durable,
            lease=lease_ms / 1000,
            clients=64,
            block_size=16 << 10,
        ) as pool:
            self.doing.prepare(pool, self.record)
        return {"uuid": pool.uuid.hex()}

    def count(self, times: int) -> dict[str, Any]:
        """Add so many ones to a word of the record."""
        self.record.count_up(times)
        return {}

    def lateness(self, seconds: float, others: int) -> dict[str, Any]:
        """The most ms by which a sleep was too long in that time, beside so many busy children."""
        pids = [self._fork(None, _compute) for _ in range(others)]
        worst, end = 0.0, time.monotonic() + seconds
        while (before := time.monotonic()) < end:
            time.sleep(NAP_S)
            worst = max(worst, time.monotonic() - before - NAP_S)
        for pid in pids:
            self._end(pid)
        return {"worst_ms": 1000 * worst}

    def use(self, url: str, kind: str, keys: int) -> dict[str, Any]:
        """Take that pool and kind of work for the commands that follow."""
        self.url = url
        self.keys = keys
        self.doing: Work = work_of(kind, keys)
        return {}

    def work(self, slots: list[int], incarnation: int) -> dict[str, Any]:
        """Start a client on each of these slots; the first one has that incarnation."""
        self.counters = Counters(record.SLOTS)
        return {"pids": [self._work(slot, incarnation + n) for n, slot in enumerate(slots)]}

    def again(self, slot: int, incarnation: int) -> dict[str, Any]:
        """Start another client on a slot whose client has ended."""
        return {"pid": self._work(slot, incarnation)}

    def kill(self, slot: int) -> dict[str, Any]:
        """Kill the client of a slot, in whatever it does; its pid."""
        pid = next(pid for pid, its in self.children.items() if its == slot)
        self._end(pid)
        return {"pid": pid}

    def _end(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self.children[pid]

    def watch(self) -> dict[str, Any]:
        """Start a process that recovers dead clients."""
        return {"pid": self._fork(None, self._watch)}

    def finish(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """End all children; how many had to be killed for it."""
        self.counters.stop()
        for pid, slot in self.children.items():
            if slot is None:
                os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + timeout_s
        late = 0
        while self.children:
            for pid in list(self.children):
                if time.monotonic() > end:
                    self._end(pid)
                    late += 1
                elif os.waitpid(pid, os.WNOHANG)[0]:
                    del self.children[pid]
            time.sleep(0.02)
        return {"late": late}

    def verify(self) -> dict[str, Any]:
        """Use everything, recover, use everything again, in the record's last slot; then look."""
        wrong: list[str] = []
        with limpet.open(self.url) as pool:

            def see(what: str, act: Callable[[], Any]) -> Any:
                try:
                    return act()
                except LimpetError as error:
                    wrong.append(f"{what}: {type(error).__name__}: {error}")
                    return None

            def read() -> None:
                wrong.extend(self.doing.read(pool, self.record, FINAL))

            see("before recover()", read)
            recovered = pool.recover()
            see("after recover()", read)
            see("check()", lambda: self.doing.check(pool))
            found = see("at the end", lambda: self.doing.found(pool))
            audit = pool.audit()
            events = pool.events()
        return {"wrong": wrong, "recovered": len(recovered["clients"]), "audit": audit,
                "found": found, "events": events}  # fmt: skip

    def withdraw(self, device: str) -> dict[str, Any]:
        """Take a DAX device from this machine, whatever maps it."""
        (DRIVER / "unbind").write_text(device)
        return {}

    def give_back(self, device: str) -> dict[str, Any]:
        """Have it again."""
        (DRIVER / "bind").write_text(device)
        return {}

    def poison(self, node: int, slot: int, incarnation: int, operations: int) -> dict[str, Any]:
        """Let the kernel poison a page with a key of a store on a node, by a client that makes
        about so many operations then. Raises RuntimeError when that fails."""
        pid = self._fork(None, lambda: self._poison(node, slot, incarnation, operations))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        del self.children[pid]
        if status:
            raise RuntimeError(f"the client that poisoned a page ended with status {status}")
        return {}

    def _poison(self, node: int, slot: int, incarnation: int, operations: int) -> None:
        with limpet.open(self.url) as pool:
            mapping = pool.segments()[node].map
            _poison_page(mapping, bytes(mapping).index(b"key-") // mmap.PAGESIZE * mmap.PAGESIZE)
            counters = Counters(record.SLOTS)  # the other clients of this machine have theirs
            _stop_after(counters, slot, operations)
            counter = counters.counter(slot)
            with contextlib.suppress(record.RecordFull):
                self.doing.work(pool, self.record, slot, incarnation, counter)

    def poison_values(self) -> dict[str, Any]:
        """Poison a page with values of a store without replicas, in a pool in this machine's own
        memory: how many keys were on its node, and what a handle and a later one find of them."""
        keys = [b"%d" % number for number in range(VALUES)]
        with limpet.create(PRIVATE, nodes=3, node_size="4MiB", block_size=16 << 10) as pool:
            try:
                store = pool.store("race", name="poisoned", capacity=VALUES)
                store.put_many((key, b"value of " + key) for key in keys)
                mapping = pool.segments()[1].map
                content = bytes(mapping)
                _poison_page(mapping, content.index(b"value of ") // mmap.PAGESIZE * mmap.PAGESIZE)
                found = {"on_node": len(set(re.findall(rb"value of ([0-9]+)", content))),
                         "state": "", "first": _found(store, keys)}  # fmt: skip
                with limpet.open(PRIVATE) as again:
                    found["later"] = _found(again.store("race", name="poisoned"), keys)
                return {**found, "state": pool.nodes()[1]["state"], "audit": pool.audit()}
            finally:
                limpet.destroy(PRIVATE)

    def attempt(self, call: str, **given: Any) -> dict[str, Any]:
        """Call `open` or `destroy` of this pool; the error, "" for none."""
        try:
            found = getattr(limpet, call)(self.url, **given)
            if call == "open":
                found.close()
        except LimpetError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"error": ""}

    def other_release(
        self, release: str, newer: int, slot: int, incarnation: int, operations: int
    ) -> dict[str, Any]:
        """Run a client of another release, whose protocol has a number that is so much higher, to
        its end: the releases in the pool, as it saw them, and its error."""
        folder = _linked(release, newer)
        work = [self.url, self.doing.kind, self.keys, slot, incarnation, operations]
        command = (sys.executable, "-m", "limpet.fault.rack.agent", json.dumps(work))
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=100, check=True,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def nodes(self) -> dict[str, Any]:
        """The states of the pool's memory nodes."""
        with limpet.open(self.url) as pool:
            return {"states": [one["state"] for one in pool.nodes()]}

    def replace(self, node: int) -> dict[str, Any]:
        """Replace a lost memory node, on the device on which it was."""
        with limpet.open(self.url) as pool:
            pool.replace_node(node)
            return {"states": [one["state"] for one in pool.nodes()]}

    def use_cxl(self) -> dict[str, Any]:
        """Make a device DAX of the machine's CXL memory; the programs' output, and its NUMA node.

        The file system is read-only to the programs, but for /run.
        """
        region = ("cxl", "create-region", "-m", "-t", "pmem", "-d", "decoder0.0", "-w", "1", "mem0")
        said = _output(*region)
        said += _output("ndctl", "create-namespace", "-f", "-m", "devdax", "-M", "mem")
        return {"said": said, "devices": ready()["devices"]}

    def use_fsdax(self, make: bool) -> dict[str, Any]:
        """Mount an ext4 on the machine's NVDIMM without page cache; `make`: make it before."""
        if make:
            _output("ndctl", "create-namespace", "-f", "-e", "namespace0.0", "-m", "fsdax", "-M",
                    "mem")  # fmt: skip
            _output("mkfs.ext4", "-q", "-b", "4096", "/dev/pmem0")
        FSDAX.mkdir()
        _output("mount", "-t", "ext4", "-o", "dax", "/dev/pmem0", str(FSDAX))
        mounts = Path("/proc/mounts").read_text().splitlines()
        return {"mounted": next(line for line in mounts if str(FSDAX) in line)}

    def system_ram(self, device: str) -> dict[str, Any]:
        """Make a NUMA node of a DAX device, that no process uses; the kernel's NUMA nodes then."""
        said = _output("daxctl", "reconfigure-device", "--mode=system-ram", device)
        folder = Path("/sys/devices/system/node")
        names = ("has_memory", "has_cpu")
        return {"said": said, **{name: (folder / name).read_text().strip() for name in names}}

    def bind(self, names: list[str]) -> dict[str, Any]:
        """Make a pool on the NUMA node of each name: the nodes of its pages, or the error."""
        return {"found": {name: _bound_to(name) for name in names}}

    def look(self) -> dict[str, Any]:
        """The clients of the pool and its last events."""
        with limpet.open(self.url) as pool:
            return {"clients": pool.clients(), "events": pool.events()}

    # ---- children -----------------------------------------------------------------------------

    def _work(self, slot: int, incarnation: int) -> int:
        return self._fork(slot, lambda: self._client(slot, incarnation))

    def _client(self, slot: int, incarnation: int) -> None:
        counter = self.counters.counter(slot)
        with limpet.open(self.url) as pool, contextlib.suppress(record.RecordFull):
            self.doing.work(pool, self.record, slot, incarnation, counter)

    def _watch(self) -> None:
        """Recover the dead, as `limpet watch` does, and tell of the clients of other machines."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with limpet.open(self.url) as pool:
            members, told = pool.membership, None
            while True:
                pool.recover()
                others = [
                    client_id(slot, word)
                    for slot, word in members.occupied()
                    if word >> STATE_SHIFT == LIVE and not members.is_local(slot)
                ]
                if others != told:
                    self.tell({"event": "others", "clients": others})
                    told = others
                time.sleep(WATCH_S)

    def _fork(self, slot: int | None, work: Callable[[], None]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self.children[pid] = slot
            return pid
        status, error = 1, ""
        try:
            end_with_parent(parent)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            work()
            status = 0
        except SystemExit:
            status = 0
        except BaseException as found:
            error = f"{type(found).__name__}: {found}"
            if not isinstance(found, LimpetError):
                traceback.print_exc()
        self.tell({"event": "ended", "slot": slot, "pid": os.getpid(), "error": error})
        os._exit(status)

    def end(self) -> dict[str, Any]:
        """End the agent, and with it the machine."""
        raise SystemExit(0)


def _compute() -> None:
    while True:
        pass


def _output(*command: str) -> str:
    """The output of a program. Raises RuntimeError with that if it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with status {done.returncode}: {done.stdout}")
    return done.stdout


def _bound_to(name: str) -> str:
    """The NUMA nodes of the pages of a pool that is bound to that name; or the error."""
    try:
        with limpet.create(BOUND, numa_node=name, node_size="4MiB", prefault=True):
            maps = Path("/proc/self/numa_maps").read_text().splitlines()
            words = {word for line in maps if "/limpet.bound." in line for word in line.split()}
            return " ".join(sorted({word.split("=")[0] for word in words if word[:1] == "N"}))
    except LimpetError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        with contextlib.suppress(limpet.PoolNotFound):
            limpet.destroy(BOUND)


def _stop_after(counters: Counters, slot: int, operations: int) -> None:
    """Stop the client of a slot when it has made so many operations."""

    def stop() -> None:
        while counters.read().progress(slot) < operations:
            time.sleep(WATCH_S)
        counters.stop()

    threading.Thread(target=stop, daemon=True).start()


def _poison_page(mapping: Any, offset: int) -> None:
    """Let the kernel poison the page at this offset of a mapping."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + offset
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), mmap.PAGESIZE, MADV_HWPOISON):
        raise OSError(ctypes.get_errno(), "madvise(MADV_HWPOISON)")


def _found(store: Any, keys: list[bytes]) -> dict[str, int]:
    """How many of the keys have their values, are lost with node 1, or neither."""
    found = {"served": 0, "lost": 0, "wrong": 0}
    for key in keys:
        try:
            found["served" if store.get(key) == b"value of " + key else "wrong"] += 1
        except limpet.NodeFailed as error:
            found["lost" if error.node == 1 else "wrong"] += 1
    return found


def _linked(release: str, newer: int) -> Path:
    """A folder with this limpet, by links, but for the text of its release and the number of its
    protocol."""
    ours = Path(limpet.__file__).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="release-"))
    for path in ours.iterdir():
        if path.name != "shm":
            _link(folder / "limpet" / path.name, path)
    for path in (ours / "shm").iterdir():
        if path.name not in ("release.py", "__pycache__"):
            _link(folder / "limpet/shm" / path.name, path)
    text = (ours / "shm/release.py").read_text()
    text += f"RELEASE = {release!r}\nPROTOCOL += {newer}\n"
    (folder / "limpet/shm/release.py").write_text(text)
    return folder


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target.resolve())


def _other_client(
    url: str, kind: str, keys: int, slot: int, incarnation: int, operations: int
) -> dict[str, Any]:
    """Work as a client for about so many operations, in a process of another release."""
    agent = Agent(print)
    agent.use(url, kind, keys)
    said = ""
    try:
        with limpet.open(url) as pool:
            said = ", ".join(sorted({client["release"] for client in pool.clients()}))
        _stop_after(agent.counters, slot, operations)
        agent._client(slot, incarnation)
    except LimpetError as error:
        return {"said": said, "error": f"{type(error).__name__}: {error}"}
    return {"said": said, "error": ""}


def ready() -> dict[str, Any]:
    """The agent's report of its machine when it is ready."""
    sizes = {}
    for folder in sorted(Path("/sys/bus/dax/devices").glob("dax*")):
        sizes[folder.name] = [int((folder / name).read_text()) for name in ("size", "align")]
    return {
        "event": "ready",
        "kernel": os.uname().release,
        "uptime_s": float(Path("/proc/uptime").read_text().split()[0]),
        "devices": sizes,
        "host": list(this_host()),
        "build": BUILD,
    }


class Told:
    """The events that the children have written to a pipe."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._text = b""

    def take(self) -> Iterator[dict[str, Any]]:
        """The events that have come."""
        with contextlib.suppress(BlockingIOError):
            while got := os.read(self._pipe, 65536):
                self._text += got
        while b"\n" in self._text:
            line, self._text = self._text.split(b"\n", 1)
            yield json.loads(line)


def serve(terminal: int) -> None:
    """Do what is asked on `terminal`, until it says to end."""
    events, telling = os.pipe()

    def tell(event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        os.write(telling, line[: select.PIPE_BUF])

    def say(found: dict[str, Any]) -> None:
        data = json.dumps(found).encode() + b"\n"
        while data:
            data = data[os.write(terminal, data) :]

    agent = Agent(tell)
    say(ready())
    text, told = b"", Told(events)
    while True:
        readable = select.select([terminal, events], [], [])[0]
        for event in told.take():
            say(event)
        if terminal in readable:
            text += os.read(terminal, 65536)
        while b"\n" in text:
            line, text = text.split(b"\n", 1)
            answer = _answer(agent, json.loads(line))
            # ORDER: what children told before they ended goes before the answer that they have.
            for event in told.take():
                say(event)
            say(answer)


def _answer(agent: Agent, asked: dict[str, Any]) -> dict[str, Any]:
    number, do = asked.pop("number"), asked.pop("do")
    try:
        return {"number": number, "ok": True, **getattr(agent, do)(**asked)}
    except Exception as error:
        traceback.print_exc()
        return {"number": number, "ok": False, "error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Serve on the terminal that is named on the command line; or be a client of another release,
    whose work is given in its place."""
    if sys.argv[1].startswith("["):
        print(json.dumps(_other_client(*json.loads(sys.argv[1]))))
        return
    terminal = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
    tty.setraw(terminal, termios.TCSANOW)
    serve(terminal)


if __name__ == "__main__":
    main()
