"""`net://HOST:PORT,HOST:PORT/NAME`: the pool NAME, whose memory nodes are behind these servers.

A pool is made and destroyed on the hosts of its memory (`limpet serve`); this location only opens
it. The first server has the control segment; each of the others some nodes. The secret that servers
and clients share is in the file that LIMPET_SECRET_FILE names.

`net+etcd://HOST:PORT,HOST:PORT/NAME`: the same, where these are members of etcd, which knows the
servers (etcd.py). A handle that has lost the control server looks for its successor.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from limpet.shm import uninterrupted as threads
from limpet.shm.backends.backend import Location
from limpet.shm.clients.fencing import Heart
from limpet.shm.endpoint.fabric import BUILD, Endpoint
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_LEDGERS, NODE_STATES
from limpet.shm.endpoint.states import IN_SERVICE, generation_of, node_word
from limpet.shm.errors import LimpetError, NodeFailed, ParameterError, PoolIncomplete, PoolNotFound
from limpet.shm.late import late
from limpet.shm.net.wire import read_secret

if BUILD == "compiled":
    from limpet.shm.net.link import CONNECT_S, Link, RemoteNode
    from limpet.shm.net.remote import RemoteEndpoint
else:
    RemoteEndpoint = Endpoint  # `require_compiled` refuses before one is used

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.shm.backends.backend import Plan, SegmentPlace, Usage
    from limpet.shm.backends.numa import NodeOptions

VARIABLE: Final = "LIMPET_SECRET_FILE"
FOLLOW_S: Final = 2.0
"""How long a server that may be the successor of a lost one may take for each step of an answer."""
_SERVER: Final = re.compile(r"([A-Za-z0-9_.-]+):([0-9]{1,5})")
_NAME: Final = re.compile(r"[A-Za-z0-9_.,-]{1,200}")


def require_compiled() -> None:
    """Raises ParameterError on the pure build, which has no libfabric."""
    if BUILD != "compiled":
        raise ParameterError(
            "memory nodes over a network need the compiled build of limpet, and this is the pure "
            "one (LIMPET_PURE): install it with a C compiler"
        )


def require_libfabric() -> None:
    """Raises LimpetError where pools cannot be used over a network: what is missing."""
    require_compiled()
    from limpet.shm.net import libfabric

    libfabric.library()


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT. Raises ParameterError."""
    if text.startswith("["):
        raise ParameterError(f"{text!r}: there is no IPv6 yet; give a name, or an IPv4 address")
    found = _SERVER.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise ParameterError(f"{text!r} is not the address of a server: HOST:PORT")
    return found[1], int(found[2])


class RemoteHeart(Heart):
    """The lease of a remote client: a thread that sends beats, and gives up a pin that is old."""

    endpoint: Any = None

    def start(self, membership: Any) -> None:
        self.endpoint = membership.endpoint
        self._running = running = threading.Lock()
        running.acquire()
        if threads.ending:
            return
        target = (weakref.ref(membership), running, membership.client.word)
        self._thread = threading.Thread(target=_beat, args=target, name="limpet-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """As of `Heart`; a last beat has what the client has counted since the one before."""
        if self.endpoint is not None:
            self.endpoint.beat()
        super().stop()


def _beat(client: weakref.ref[Any], running: threading.Lock, word: int) -> None:
    while True:
        membership = client()
        if membership is None or membership.client.word != word:
            return
        pause_s = membership.lease_s / 4
        try:
            membership.endpoint.beat()
            pause_s = _rest(membership)
        except NodeFailed as error:
            if error.node == CONTROL_NODE:
                return  # the client's next operation says so
        except LimpetError:
            return  # likewise
        del membership
        if running.acquire(timeout=pause_s):
            return


def _rest(membership: Any) -> float:
    """If no operation runs, give up a pin that is older than it may be. Seconds to the next look:
    others may wait for the pin, as they do for that of an operation."""
    endpoint, lasting = membership.endpoint, membership.client.lasting
    quarter_s: float = lasting.quarter_s
    left_s: float = lasting.since_s + quarter_s - membership.now()
    if left_s > 0:
        return min(left_s, quarter_s)
    if endpoint.begin_idle():
        try:
            lasting.give_up()
        finally:
            endpoint.end()
    return quarter_s


@dataclasses.dataclass(frozen=True)
class Servers(Location):
    """The pool `name` behind `servers`; or behind those that etcd knows, `members` of which are
    given."""

    scheme: ClassVar[str] = "net"
    example: ClassVar[str] = "net://HOST:PORT/NAME"
    endpoint_class: ClassVar[Any] = RemoteEndpoint
    heart_class: ClassVar[Any] = RemoteHeart

    servers: tuple[tuple[str, int], ...]
    name: str
    members: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, url: str, rest: str) -> Location:
        addresses, _, name = rest.partition("/")
        if _NAME.fullmatch(name) is None:
            example = cls.example.replace("net:", f"{url.partition(':')[0]}:")
            raise ParameterError(f"{url!r} does not name a pool; write {example}")
        servers = tuple(map(parse_address, addresses.split(",")))
        if len(set(servers)) < len(servers):
            raise ParameterError(f"{url!r} names a server twice")
        return cls((), name, servers) if url.startswith("net+etcd:") else cls(servers, name)

    @property
    def url(self) -> str:
        scheme = "net+etcd" if self.members else "net"
        given = ",".join(f"{host}:{port}" for host, port in self.members or self.servers)
        return f"{scheme}://{given}/{self.name}"

    def addresses(self) -> Sequence[tuple[str, int]]:
        """Of the servers, that of the control segment first. PoolNotFound: etcd knows none; also
        LimpetError: it does not answer."""
        if not self.members:
            return self.servers
        found: Sequence[tuple[str, int]] = late("limpet.shm.net.etcd").addresses(
            self.members, self.name
        )
        return found

    def open_remote(self) -> tuple[list[Any], Any, bytes]:
        require_compiled()
        path = os.environ.get(VARIABLE)
        if not path:
            raise ParameterError(
                f"{self}: {VARIABLE} has to name the file with the secret of its servers"
            )
        links = self._links(read_secret(path), CONNECT_S)
        try:
            return _opened(links)
        except BaseException:
            for link in links:
                link.close()
            raise

    def _links(self, secret: bytes, patience_s: float) -> list[Any]:
        """Connections to all servers."""
        links: list[Any] = []
        try:
            for host, port in self.addresses():
                links.append(Link(host, port, self.name, secret, patience_s))
        except BaseException as error:
            for link in links:
                link.close()
            if links and not self.members and isinstance(error, PoolNotFound):
                raise PoolNotFound(f"{error}; if it is lost, leave it out of the URL") from error
            raise
        if self.members:
            links[0].successors = functools.partial(self._links, secret, FOLLOW_S)
        return links

    def _elsewhere(self) -> NoReturn:
        raise ParameterError(
            f"{self} is a pool on other hosts: it is made, served, listed and destroyed there"
        )

    def usage(self) -> Usage | None:
        self._elsewhere()

    def path(self, index: int, generation: int = 0) -> Path:
        self._elsewhere()

    def place(self, index: int, generation: int = 0) -> SegmentPlace:
        self._elsewhere()

    def create(
        self, index: int, size: int, options: NodeOptions, generation: int = 0
    ) -> tuple[SegmentPlace, int]:
        self._elsewhere()

    def plan(self, nodes: Any, node_size: Any, control_size: Any) -> Plan:
        self._elsewhere()

    def removable(self, any_owner: bool) -> list[tuple[int, int]]:
        self._elsewhere()


def _opened(links: list[Any]) -> tuple[list[Any], Any, bytes]:
    """The nodes that are in service and the control segment, parameters, uuid."""
    block = links[0].superblock
    if CONTROL_NODE not in links[0].nodes:
        raise ParameterError(
            f"{links[0].where} has memory nodes only; the first server of a URL is one that has "
            "the control segment"
        )
    for link in links[1:]:
        if link.superblock.uuid != block.uuid:
            raise ParameterError(f"{link.where} has another pool than {links[0].where}")
    control = RemoteNode(links, CONTROL_NODE, block.size)
    count = block.parameters.nodes
    endpoint = RemoteEndpoint()
    endpoint.attach(CONTROL_NODE, control, control.size)
    words = memoryview(endpoint.read(NODE_STATES, 8 * count)).cast("Q")
    here = block.parameters.here
    ledgers = memoryview(endpoint.read(NODE_LEDGERS + 8 * here, 8 * (count - here))).cast("Q")
    for node, ledger in enumerate(ledgers, here):
        if not ledger:
            raise PoolIncomplete(
                f"{links[0].where}: node {node} has no memory yet; make it on its host: `limpet "
                f"serve --node {node} --control {links[0].where} ...`"
            )
    nodes = [
        control.sibling(index, block.parameters.node_size, generation_of(word))
        for index, word in enumerate(words)
        if word == node_word(generation_of(word), IN_SERVICE)
    ]
    return [*nodes, control], block.parameters, block.uuid
