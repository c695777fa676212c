"""`make rack-net`: three hosts on one bridge, and links between them that are cut.

The hosts are network namespaces of this machine, without names, so they end with their processes,
however this program ends. Each has an address, a server of one memory node, and a client that maps
nothing and puts and gets keys of a `swarm` store. The servers share this machine's memory, as hosts
do that share a device; the first one has the control segment. So links, servers and clients fail as
those of three hosts do, and kernels and memory do not.

With the name `apart` each host has memory of its own, too: a mount namespace with its own /dev/shm.
The first one has the control segment and node 0; the nodes of the others are away (net/ledger.py),
so their servers could not map the control segment if they wanted to.

A client puts ever higher numbers under a key of its own, and reads those of the others. It checks
that no number goes back, and after each loss of its handle that its own key has a number that it
had put, and none before the last that was answered. At the end so does this program, and it checks
the store and audits the pool.

Run as root; `apart` and the names of scenes may be given. Where namespaces cannot be made, it says
so in one line, and ends with status 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import operator
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import limpet
from limpet.fault.inject.children import end_with_parent
from limpet.shm.errors import LimpetError
from limpet.shm.net.backend import VARIABLE, require_libfabric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOSTS: Final = 3
PORT: Final = 7474
LEASE_S: Final = 2.0
PATIENCE_S: Final = 40.0
"""A server that is silent counts as lost after some 16 s (docs/network.md)."""
MOMENT_S: Final = 1.0
CLONE_NEWNET: Final = 0x40000000
CLONE_NEWNS: Final = 0x00020000
MS_PRIVATE: Final = 1 << 14 | 1 << 18
"""With all that is below."""
APART: Final = "apart"
OURS: Final = "10.77.0.100/24"
"""The address of this program on the bridge."""
SECRET: Final = b"of three hosts on one bridge"

# Words of a client in the shared array
TRIED, ANSWERED, OPERATIONS, OPENED, WORDS = range(5)

_libc: Final = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A promise does not hold."""


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _done(what: str, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _new_network() -> None:
    """Move this process into a network namespace of its own."""
    _done("unshare", _libc.unshare(CLONE_NEWNET))


def _new_memory() -> None:
    """Give this process, and those that join it, a /dev/shm of their own."""
    _done("unshare", _libc.unshare(CLONE_NEWNS))
    _done("mount", _libc.mount(None, b"/", None, MS_PRIVATE, None))
    _done("mount", _libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=512m"))


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


class Rack:
    """The hosts, the pool, and what runs on them; all of it ends with `ends`, also if it cannot be
    begun."""

    def __init__(self, ends: contextlib.ExitStack, apart: bool = False) -> None:
        self.ends = ends
        self.apart = apart
        self.url = f"shm://rack-net-{os.getpid()}"
        self.name = self.url.rpartition("/")[2]
        self.holders: list[int] = []
        """By host, the process that keeps its namespace."""
        self.servers: dict[int, int] = {}
        """Their pids, by host."""
        self.clients: dict[int, int] = {}
        shared = mmap.mmap(-1, mmap.PAGESIZE)
        self.words = memoryview(shared).cast("Q")
        """WORDS of each client; behind them, whether they are to end, and a bit of each host whose
        server is in the URL."""

        for host in range(HOSTS):
            self.holders.append(self._start(functools.partial(_hold, apart)))
            self.wait(lambda: _is_apart(self.holders[-1], apart), "a namespace")
            peer = ("peer", "name", "eth0", "netns", str(self.holders[-1]))
            _ip("link", "add", f"host{host}", "type", "veth", *peer)
            _ip("link", "set", f"host{host}", "master", "rack", "up")
            self.start(host, functools.partial(_configure, host), wait=True)
        directory = Path(self.ends.enter_context(tempfile.TemporaryDirectory(prefix="limpet-")))
        secret = directory / "secret"
        secret.touch(0o600)
        secret.write_bytes(SECRET)
        os.environ[VARIABLE] = str(secret)
        self.ends.callback(self._end_all)
        self._make()
        for host in range(HOSTS):
            self.serve(host)
        self.look(lambda pool: pool.store("swarm", "s", capacity=100))
        for host in range(HOSTS):
            self.begin_client(host)

    def _make(self) -> None:
        given: dict[str, Any] = {"multi_host": True, "lease": LEASE_S}
        if self.apart:
            given["away"] = HOSTS - 1

            def make() -> None:
                limpet.create_apart(self.url, nodes=HOSTS, node_size="16MiB", **given)

            self.start(0, make, wait=True)
            return
        limpet.create(self.url, nodes=HOSTS, node_size="16MiB", **given).close()
        self.ends.callback(limpet.destroy, self.url)
        self.mapped = limpet.open(self.url)
        self.ends.callback(self.mapped.close)
        self.ends.callback(self._end_all)  # before the pool is destroyed

    def look(self, work: Callable[[Any], Any]) -> Any:
        """Do `work` with the pool: mapped, or if the hosts are apart, opened for it."""
        if not self.apart:
            return work(self.mapped)
        with limpet.open(self.net()) as pool:
            return work(pool)

    # ---- processes ------------------------------------------------------------------------------

    def _start(self, work: Callable[[], None]) -> int:
        """A child process that ends with this one."""
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                end_with_parent(parent)
                work()
                status = 0
            except BaseException as error:
                print(f"{work}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        return pid

    def start(self, host: int, work: Callable[[], None], wait: bool = False) -> int:
        """A process on that host."""

        def inside() -> None:
            kinds = {"net": CLONE_NEWNET} | ({"mnt": CLONE_NEWNS} if self.apart else {})
            for kind, flag in kinds.items():
                with open(f"/proc/{self.holders[host]}/ns/{kind}") as namespace:
                    _done("setns", _libc.setns(namespace.fileno(), flag))
            work()

        pid = self._start(inside)
        if wait and os.waitpid(pid, 0)[1]:
            raise OSError(f"host {host} could not be set up")
        return pid

    def serve(self, host: int) -> None:
        """Start the server of that host."""
        out, into = os.pipe()

        def run() -> None:
            from limpet.shm.net.server import Server

            away = self.apart and host > 0
            server = Server(
                self.url, address(host), PORT, SECRET, served=[host],
                control=f"net://{address(0)}:{PORT}/{self.name}" if away else "",
            )  # fmt: skip
            os.write(into, b".")
            server.run()

        self.servers[host] = self.start(host, run)
        os.close(into)
        with open(out, "rb") as told:
            if told.read(1) != b".":
                raise Failed(f"the server of host {host} does not start")
        self.words[HOSTS * WORDS + 1] |= 1 << host

    def begin_client(self, host: int) -> None:
        self.clients[host] = self.start(host, lambda: self._work(host))

    @staticmethod
    def kill(processes: dict[int, int], host: int) -> None:
        pid = processes.pop(host)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def _end_all(self) -> None:
        for pid in (*self.clients.values(), *self.servers.values(), *self.holders):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.clients.clear()
        self.servers.clear()
        self.holders.clear()

    # ---- a client -------------------------------------------------------------------------------

    def _work(self, host: int) -> None:
        """Put and get, and open the pool again when the handle is over."""
        seen = [0] * HOSTS
        while not self.words[HOSTS * WORDS]:
            try:
                with limpet.open(self.net()) as pool:
                    self._use(pool.store("swarm", "s"), host, seen)
            except LimpetError:
                time.sleep(0.1)

    def _use(self, store: Any, host: int, seen: list[int]) -> None:
        own = self.own(host)
        own[OPENED] += 1
        found = int(store.get(b"%d" % host, b"0"))
        if not own[ANSWERED] <= found <= own[TRIED]:
            self._report(f"client {host} has {found}, not {own[ANSWERED]} to {own[TRIED]}")
        while not self.words[HOSTS * WORDS]:
            own[TRIED] += 1
            number = own[TRIED]
            store.put(b"%d" % host, b"%d" % number)
            own[ANSWERED] = number
            for other in range(HOSTS):
                found = int(store.get(b"%d" % other, b"0"))
                if found < seen[other]:
                    self._report(f"client {host}: key {other} went from {seen[other]} to {found}")
                seen[other] = found
            own[OPERATIONS] += 1

    def _report(self, what: str) -> None:
        """Say what is wrong, so that the whole run ends."""
        print(what, file=sys.stderr, flush=True)
        self.words[HOSTS * WORDS] = 2
        os._exit(1)

    def own(self, host: int) -> memoryview:
        return self.words[host * WORDS : (host + 1) * WORDS]

    def net(self) -> str:
        """The pool's URL, without the servers that are left out."""
        there = self.words[HOSTS * WORDS + 1]
        places = [f"{address(host)}:{PORT}" for host in range(HOSTS) if there >> host & 1]
        return f"net://{','.join(places)}/{self.name}"

    # ---- what is looked at ----------------------------------------------------------------------

    def wait(self, holds: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> float:
        """Wait until it holds; how long."""
        start = time.monotonic()
        while not holds():
            if time.monotonic() > start + limit_s:
                raise Failed(f"not in {limit_s:g} s: {what}")
            if self.words[HOSTS * WORDS] > 1:
                raise Failed("a client has found a wrong value")
            time.sleep(0.02)
        return time.monotonic() - start

    def go_on(self, *hosts: int, what: str) -> None:
        """Wait until these clients have done more; say when."""
        before = {host: self.own(host)[OPERATIONS] for host in hosts}
        took_s = self.wait(
            lambda: all(self.own(host)[OPERATIONS] >= before[host] + 5 for host in hosts),
            f"clients {hosts} go on: {what}",
        )
        print(f"{what}: clients {hosts} go on after {took_s:.1f} s", flush=True)

    def failed(self) -> list[int]:
        """The nodes that are not in service."""
        states = [node["state"] for node in self.look(lambda pool: pool.nodes())]
        return [node for node, state in enumerate(states) if state != "in service"]

    def live(self) -> int:
        """How many of the clients are such of the pool, now."""
        clients = self.look(lambda pool: pool.clients())
        return sum(client["state"] == "live" and not client["ours"] for client in clients)

    def leave_out(self, host: int) -> None:
        """From now on the pool is opened without this server."""
        self.words[HOSTS * WORDS + 1] &= ~(1 << host)

    def repair(self) -> None:
        """Give the nodes new memory that were lost, and start the servers that are not there."""
        if not self.apart:
            self._replace()
        for host in set(range(HOSTS)) - set(self.servers):
            self.serve(host)
        self.words[HOSTS * WORDS + 1] = (1 << HOSTS) - 1
        if self.apart:
            self._replace()  # its server makes the memory

    def _replace(self) -> None:
        for node in self.failed():
            self.look(operator.methodcaller("replace_node", node))

    @contextlib.contextmanager
    def cut(self, host: int, peer: int | None = None) -> Iterator[None]:
        """Within it, no message passes between the two hosts; with one, none from or to it."""
        if peer is None:
            _ip("link", "set", f"host{host}", "down")
        else:
            self.start(host, lambda: _ip("route", "add", "blackhole", address(peer)), wait=True)
        try:
            yield
        finally:
            if peer is None:
                _ip("link", "set", f"host{host}", "up")
            else:
                self.start(host, lambda: _ip("route", "del", "blackhole", address(peer)), wait=True)

    @contextlib.contextmanager
    def stopped(self, pid: int) -> Iterator[None]:
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def _hold(apart: bool) -> None:
    if apart:
        _new_memory()
    _new_network()
    signal.pause()


def _is_apart(pid: int, memory: bool) -> bool:
    kinds = ("net", "mnt") if memory else ("net",)
    return not any(
        Path(f"/proc/{pid}/ns/{kind}").samefile(f"/proc/self/ns/{kind}") for kind in kinds
    )


def _configure(host: int) -> None:
    _ip("link", "set", "lo", "up")
    _ip("addr", "add", f"{address(host)}/24", "dev", "eth0")
    _ip("link", "set", "eth0", "up")


# ---- what happens -------------------------------------------------------------------------------


def _expect_failed(rack: Rack, *nodes: int) -> None:
    if (found := rack.failed()) != list(nodes):
        raise Failed(f"nodes {found} are failed, and not {list(nodes)}")


def all_is_well(rack: Rack) -> None:
    rack.go_on(0, 1, 2, what="all is well")
    time.sleep(MOMENT_S)
    _expect_failed(rack)


def host_is_cut_off(rack: Rack) -> None:
    """The others go on without its node; it does nothing, and comes back."""
    with rack.cut(2):
        rack.leave_out(2)

        def is_lost() -> bool:
            if rack.apart:  # it cannot be opened without that server before
                with contextlib.suppress(LimpetError):
                    return rack.failed() == [2]
                return False
            # It must not take clients for dead that wait for that server.
            rack.look(lambda pool: pool.recover())
            return rack.failed() == [2]

        rack.wait(is_lost, "node 2 counts as lost")
        rack.go_on(0, 1, what="host 2 is cut off")
        before = rack.own(2)[ANSWERED]
        time.sleep(MOMENT_S)
        if rack.own(2)[ANSWERED] > before:
            raise Failed("the client that is cut off got answers")
    rack.repair()
    rack.go_on(0, 1, 2, what="host 2 is back, its node has new memory")
    _expect_failed(rack)


def one_link_is_cut(rack: Rack) -> None:
    """Two clients do not reach the server of each other: they leave, and neither server is lost."""
    with rack.cut(1, 2):
        took_s = rack.wait(lambda: rack.live() == 1, "clients 1 and 2 leave")
        print(f"hosts 1 and 2 are cut off from each other: left after {took_s:.1f} s", flush=True)
        rack.go_on(0, what="hosts 1 and 2 are cut off from each other")
        _expect_failed(rack)
    rack.go_on(0, 1, 2, what="hosts 1 and 2 reach each other again")
    _expect_failed(rack)


def servers_are_killed(rack: Rack) -> None:
    """One with a node only, then that of the control segment."""
    for host in (1, 0):
        rack.kill(rack.servers, host)
        rack.serve(host)
        time.sleep(MOMENT_S)
        rack.repair()
        rack.go_on(0, 1, 2, what=f"the server of host {host} was killed")
        _expect_failed(rack)


def server_stands_still(rack: Rack) -> None:
    for host in (2, 0):
        with rack.stopped(rack.servers[host]):
            time.sleep(MOMENT_S)
        rack.go_on(0, 1, 2, what=f"the server of host {host} stood still")
        _expect_failed(rack)


def clients_are_lost(rack: Rack) -> None:
    """One is killed; one stands still for more than two leases, while others recover."""
    rack.kill(rack.clients, 0)
    rack.begin_client(0)
    rack.go_on(0, 1, 2, what="the client of host 0 was killed")
    with rack.stopped(rack.clients[1]):
        time.sleep(2 * LEASE_S + MOMENT_S)
        rack.go_on(0, 2, what="the client of host 1 stands still")
    rack.go_on(0, 1, 2, what="the client of host 1 goes on")
    _expect_failed(rack)


def end(rack: Rack) -> None:
    """End the clients, and check all that is there."""
    rack.words[HOSTS * WORDS] = max(1, rack.words[HOSTS * WORDS])
    for host, pid in rack.clients.items():
        if os.waitpid(pid, 0)[1]:
            raise Failed(f"the client of host {host} has failed")
    rack.clients.clear()
    audit = rack.look(lambda pool: _checked(rack, pool))
    if audit["leaked"] or audit["held"]:
        raise Failed(f"the audit: {audit}")
    puts = sum(rack.own(host)[ANSWERED] for host in range(HOSTS))
    opened = sum(rack.own(host)[OPENED] for host in range(HOSTS))
    print(f"{puts} puts, the pool opened {opened} times: all values right, nothing leaked")


def _checked(rack: Rack, pool: Any) -> dict[str, int]:
    """Check the store; the audit."""
    store = pool.store("swarm", "s")
    store.recover()
    for host in range(HOSTS):
        own, found = rack.own(host), int(store.get(b"%d" % host))
        if not own[ANSWERED] <= found <= own[TRIED]:
            raise Failed(f"key {host} has {found}, not {own[ANSWERED]} to {own[TRIED]}")
    store.check()
    return dict(pool.audit())


SCENES: Final = {
    scene.__name__: scene
    for scene in (
        all_is_well, host_is_cut_off, one_link_is_cut, servers_are_killed, server_stands_still,
        clients_are_lost,
    )
}  # fmt: skip


def missing() -> str:
    """Why this cannot run here; empty: it can, and this process is in a namespace of its own that
    has the bridge."""
    try:
        require_libfabric()
        _new_network()
        _ip("link", "add", "rack", "type", "bridge")
        _ip("link", "set", "rack", "up")
        _ip("addr", "add", OURS, "dev", "rack")
        _ip("link", "add", "one", "type", "veth", "peer", "name", "other")
        _ip("link", "del", "one")
    except (LimpetError, OSError) as error:
        return str(error)
    return ""


def main(names: list[str]) -> int:
    """Run these scenes, after `all_is_well`, or all of them."""
    apart = APART in names
    names = [name for name in names if name != APART]
    if unknown := set(names) - set(SCENES):
        print(f"rack-net: there is no {', '.join(sorted(unknown))}, only {', '.join(SCENES)}")
        return 2
    if reason := missing():
        print(f"rack-net skipped: {reason}")
        return 0
    # An exception, so that all ends in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.ExitStack() as ends:
        rack = Rack(ends, apart)
        for name in dict.fromkeys(["all_is_well", *(names or SCENES)]):
            SCENES[name](rack)
        end(rack)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
