"""The server of a pool's memory nodes: `Server`. It does the phases of remote clients on the memory
that this host has mapped, with the verbs that mapped clients have: `Endpoint`, one for each
connection. So bounds, lost memory, atomics and the guard are those of verbs.pyx.

The memory outlives the server, and mapped clients work beside remote ones on the same words. The
server is no client of the pool: it has no slot, and keeps nothing that recovery would need.

A connection
    1. The server sends a challenge. Whatever comes back that is no proof of the secret ends the
       connection; so does silence, after PROOF_S. At most STRANGERS_MAX connections are at that
       point at a time; more are rejected. At most `clients` get beyond it; more are refused. A
       server that judges (below) shows the secret as such, and never gets beyond it.
    2. Phases are done one after another, each in one go: the server has one thread. A message that
       is wrong (wire.py), or one too many, ends the connection, as its client is not to be trusted.
       A verb that is wrong has an error as its result, as for a mapped client.
    3. GUARD names the client's slot. From then on every changing verb first looks whether the slot
       still has that state word. When the connection ends, for whatever reason, and the slot still
       has it, the server sets it to DYING, or in its ledger if it is a data server: nothing of that
       client can change memory any more, so others need not wait for its lease, and recover it. So
       when the client ends its guard.

BEAT renews the client's lease by the rules of mapped clients (fencing.py): a client that others ask
to end, and that stands still in one operation, is not renewed. The server never does it unasked, so
a client that is stopped loses its lease though its connection stays.

Several servers may have one pool: each has some of its nodes. Those on hosts that have the control
segment have it mapped, so that the guard holds on each. A client uses that of the first one in its
URL. A server of memory on another host, a data server, has a ledger in the place of the control
segment, and its guard is what that says (ledger.py). Where a pool has such nodes, a client of which
the connection has ended is evicted before its slot is DYING (evictions.py).

A client that has lost the connection to one of them asks the server of the control segment whether
that one lives (JUDGE). A thread connects to it as a client does: it lives if it has the secret, and
the same pool. If it is another process than before, its memory is the same, so it was unreachable,
and not lost.

With `membership` one server of several has the control segment, and others stand by: etcd.py. One
without it ends, too, when such a server takes the control segment over.

Answers never wait for a peer: a client that does not take them is cut off when it has more phases
under way than it may.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, Final

from limpet.shm.net.codec import kind_of, message
from limpet.shm.net.libfabric import FabricError, Listener
from limpet.shm.net.link import Link
from limpet.shm.net.phases import Phases

from limpet.shm.backends import node as nodes
from limpet.shm.backends.name import held, is_there, require_ours
from limpet.shm.backends.node import NodeOptions
from limpet.shm.backends.segments import canonical, open_segments
from limpet.shm.clients import fencing
from limpet.shm.clients.fencing import Sightings
from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.layout import (
    CLIENT_SLOTS,
    CONTROL_NODE,
    NODE_STATES,
    SLOT_SIZE,
    SUPERBLOCK_SIZE,
)
from limpet.shm.endpoint.slots import FIGURES, FIGURES_COUNT, LIVE, STATE_SHIFT
from limpet.shm.endpoint.states import (
    DISOWNED,
    EXCLUDED,
    generation_of,
    state_of,
)
from limpet.shm.errors import (
    AddressError,
    ClientError,
    LimpetError,
    NodeFailed,
    ParameterError,
    PoolNotFound,
)
from limpet.shm.late import late
from limpet.shm.net import wire
from limpet.shm.net.backend import Servers, parse_address
from limpet.shm.net.evictions import Evictions, claim, dying
from limpet.shm.net.ledger import Ledger, make_node, place_word
from limpet.shm.parameters import check_whole

log = logging.getLogger("limpet")

PROOF_S: Final = 5.0
JUDGE_S: Final = 2.0
"""How long another server may take for each step of an answer until it counts as lost; the three
steps take less time than a client waits."""
JUDGE_LOOK_S: Final = 0.005
LOOK_S: Final = 1.0
"""How often the server looks whether the pool is still there."""


def pool_name(url: str) -> str:
    """The name of a pool in a net:// URL: the last part of its own URL."""
    return canonical(url).rpartition("/")[2]


class Session:
    """One connection. `side`: as what it has shown the secret (wire.py); empty: not yet.
    `endpoint`: of a client."""

    def __init__(self, server: Server, connection: Any) -> None:
        self.server = server
        self.connection = connection
        self.challenge = secrets.token_bytes(wire.NONCE_SIZE)
        self.since_s = time.monotonic()
        self.side = b""
        self.endpoint: Any = None
        self.guarded = (0, 0)
        """Address and state word of the client's slot."""
        self.sightings = Sightings()

    def guard(self, addr: int, word: int) -> None:
        """Let the verbs of this client change nothing unless the word of its slot is this."""
        self.server.guard(self, addr, word)

    def attach(self, node: int, state: int) -> None:
        """Let it use the memory of that generation of a node."""
        self.server.attach(self, node, state)

    def back(self, addr: int, size: int) -> int:
        """Have pages for these bytes; whether there was room."""
        return self.server.back(self, addr, size)

    def evict(self, slot: int, word: int) -> int:
        """Have the client of that slot and state word evicted; whether it is done."""
        return self.server.evict(self, slot, word)

    def make(self, node: int, generation: int) -> None:
        """Make new memory for a node."""
        self.server.make(self, node, generation)


class Server:
    """Serves the nodes of the pool at `url`, or only those in `served`, at an address of this host;
    port 0: any. `control`: the net:// URL of a pool of which these nodes are away from the control
    segment; their memory is made if they have none yet. `membership`: the etcd:// URL by which one
    of several servers becomes the control server. Raises as `limpet.open` does, and
    ParameterError for a pool that only mapped clients can use."""

    def __init__(
        self,
        url: str,
        host: str,
        port: int,
        secret: bytes,
        *,
        clients: int = wire.CLIENTS,
        served: Collection[int] = (),
        any_owner: bool = False,
        control: str = "",
        membership: str = "",
    ) -> None:
        check_whole("clients", clients, 1, wire.CLIENTS_MAX)
        self.url = canonical(url)
        self.name = pool_name(url)
        self.host = host
        self.secret = secret
        self.clients = clients
        self.location = nodes.parse_url(self.url)
        self.location.path(CONTROL_NODE)  # a pool on other hosts has none, and says so
        self.options = NodeOptions(any_owner=any_owner)
        self.ledger: Any = None
        self.evictions: Any = None
        """Of a data server; and of one that has the control segment."""
        self.claimed = -1
        """The descriptor with the lock of the one server on a control segment, or ledger."""
        self.tells = False
        """Whether it has data servers to tell of evictions."""
        self.entry: Any = None
        """Its key in etcd, if it has one."""
        self.own = (0, 0)
        """The guard of its own steps: SERVER and its number, once it has taken that; without
        membership the number that it has found (etcd.py)."""
        self._open(control, served)
        self.sessions: dict[int, Session] = {}
        self.phases = Phases()
        self.asking: dict[tuple[str, int], list[Session]] = {}
        """By the address of another server: the clients that ask whether it lives."""
        self.verdicts: list[tuple[tuple[str, int], bool]] = []
        """Answers for them, of threads."""
        self._stopped = False
        self.endpoint = Endpoint()
        try:
            self._require_servable(served)
            self.served = frozenset(served or range(self.parameters.here))
            self.endpoint.attach(CONTROL_NODE, self.control.map, self.control.size)
            self.listener = Listener(host, port)
            self.port = self.listener.port
            self._begin(membership)
        except FabricError as error:
            self._unmap()
            raise ParameterError(f"no server can listen at {host}:{port}: {error}") from error
        except BaseException:
            self._unmap()
            raise

    def _open(self, control: str, served: Collection[int]) -> None:
        if control:
            at: Any = nodes.parse_url(control)
            if not isinstance(at, Servers):
                raise ParameterError(f"{control!r}: write {Servers.example}")
            self.ledger = Ledger(self.location, at, self.secret, served, self.options)
            segments, self.parameters = self.ledger.segments, self.ledger.parameters
            self.control, self.uuid, self.name = self.ledger.segment, self.ledger.uuid, at.name
        else:
            opened, self.parameters, self.uuid = open_segments(self.url, self.options)
            self.control = opened[len(opened) - 1]
            segments = opened
        self.segments = {(one.index, one.generation): one for one in segments}

    def _begin(self, membership: str) -> None:
        """Be ready to serve, or to take the control segment over."""
        if membership:
            self._enter(late("limpet.shm.net.etcd").parse_endpoints(membership), True)
            self.claimed = claim(self.control, shared=True)
            return
        if self.ledger is None:
            at = late("limpet.shm.net.etcd").SERVER
            self.own = at, self.endpoint.load(at)
            self.endpoint.guard(*self.own)
            self._begin_evictions()
            if self.tells:
                self.claimed = claim(self.control)
            return
        self.claimed = claim(self.control)
        self.phases.last = max(self.served)
        self.ledger.endpoint = self.endpoint
        self.ledger.address = f"{self.host}:{self.port}"
        place_word(self.ledger.address)
        # ORDER: we listen, so from here on the control server can tell us of evictions.
        self.ledger.enrol()
        if self.ledger.control.members:
            self._enter(self.ledger.control.members, False)
            self.entry.take()
            self.entry.keep()

    def _begin_evictions(self) -> None:
        self.evictions = Evictions(self.endpoint, self.parameters, self.name, self.secret)
        self.tells = self.evictions.tells

    def _enter(self, members: Any, control: bool) -> None:
        """Have a key in etcd, which is not made yet."""
        address = f"{self.host}:{self.port}"
        place_word(address)  # other hosts can reach it
        self.entry = late("limpet.shm.net.etcd").Entry(
            members, self.name, address, self.uuid, control
        )

    # ---- the control server, of several ---------------------------------------------------------

    def stand_by(self) -> bool:
        """Become the control server, as soon as there is no other one; False: `stop` came first.
        Raises PoolNotFound when the pool is destroyed."""
        if not self._waits_for_control():
            return True
        etcd, wait_s = late("limpet.shm.net.etcd"), 0.0
        while not self._stopped:
            for event in self.listener.domain.wait(wait_s):
                if event.kind == wire.REQUEST:
                    self.listener.reject(event.info)
            self.listener.domain.let_handlers_run()
            self._look()
            with contextlib.suppress(etcd.NoEtcd):
                if self._take(etcd.SERVER):
                    return True
            wait_s = etcd.STAND_BY_S
        return False

    def _waits_for_control(self) -> bool:
        return self.entry is not None and self.ledger is None and not self.own[0]

    def _take(self, at: int) -> bool:
        """Become the control server, if there is none. `at`: the address of SERVER."""
        # ORDER: before the key is made, so that the CAS fails if another server took over since.
        before = self.endpoint.load(at)
        if not self.entry.take():
            return False
        # A kill from here on: the key ends with its lease.
        if self.endpoint.cas(at, before, before + 1) != before:
            self.entry.drop()
            return False
        self.own = at, before + 1
        self.endpoint.guard(*self.own)
        self._begin_evictions()
        self.evictions.begin_all()
        self.entry.keep()
        return True

    def _is_replaced(self) -> bool:
        """Whether another server has taken the control segment over."""
        return self.own[0] > 0 and self.endpoint.load(self.own[0]) != self.own[1]

    def _require_control(self) -> None:
        if self._is_replaced():
            raise ClientError(f"{self.url}: another server has taken over its control segment")

    def _require_servable(self, served: Collection[int]) -> None:
        parameters = self.parameters
        if not parameters.multi_host:
            raise ParameterError(
                f"{self.url} was made for the processes of one host; make it with multi_host=True "
                "(`limpet create --multi-host`), so that clients of others can join"
            )
        for name in ("durable", "ephemeral"):
            if getattr(parameters, name):
                raise ParameterError(f"{self.url} is {name}: such a pool is used on its own host")
        if unknown := sorted(set(served) - set(range(parameters.nodes))):
            raise ParameterError(f"{self.url} has no node {unknown[0]}")
        if self.ledger is None and (elsewhere := sorted(set(served) - set(range(parameters.here)))):
            raise ParameterError(
                f"node {elsewhere[0]} of {self.url} is memory of another host: serve it there, "
                "with --control"
            )

    # ---- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `stop`. Raises PoolNotFound when the pool is destroyed, ClientError when
        another server has taken its control segment over."""
        look = time.monotonic() + LOOK_S
        domain = self.listener.domain
        try:
            self.stand_by()
            while not self._stopped:
                self._require_control()
                for event in domain.wait(JUDGE_LOOK_S if self._waits() else LOOK_S / 4):
                    self._handle(event)
                while self.verdicts:
                    self._tell(*self.verdicts.pop())
                if self.tells:
                    self.evictions.look()
                domain.let_handlers_run()
                if time.monotonic() >= look:
                    self._look()
                    look = time.monotonic() + LOOK_S
        finally:
            self.close()

    def _waits(self) -> bool:
        """Whether a thread's answer is waited for."""
        return bool(self.asking) or (self.tells and self.evictions.waits)

    def stop(self) -> None:
        """End `run` within a quarter of a second. For a signal handler, too."""
        self._stopped = True

    def close(self) -> None:
        """End all connections, and unmap. The clients are dead for others: they cannot go on."""
        for session in list(self.sessions.values()):
            self._end(session)
        self.listener.close()
        self._unmap()
        if self.entry is not None:
            # ORDER: last: from here on another server may take over.
            self.entry.drop()

    def _unmap(self) -> None:
        self.endpoint.detach()
        if self.claimed >= 0:
            os.close(self.claimed)
            self.claimed = -1
        for segment in self.segments.values():
            segment.close()

    def _look(self) -> None:
        if not is_there(self.location, self.control.fd, self.uuid):
            raise PoolNotFound(f"{self.url} was destroyed while it was served")
        now = time.monotonic()
        for session in list(self.sessions.values()):
            if session.endpoint is None and now - session.since_s > PROOF_S:
                self._end(session)

    def _handle(self, event: Any) -> None:
        self._require_control()
        if event.kind == wire.REQUEST:
            self._request(event.info)
        elif event.connection is not None:
            session = self.sessions.get(event.connection.number)
            if session is not None:
                self._serve(session, event)

    def _serve(self, session: Session, event: Any) -> None:
        if event.kind == wire.MESSAGE:
            try:
                self._message(session, event.data)
            except LimpetError as error:
                self._refuse(session, str(error))
        elif event.kind == wire.CONNECTED:
            self._send(session, message(wire.CHALLENGE, 0, session.challenge))
        else:
            self._end(session)

    def _request(self, info: int) -> None:
        if sum(not session.side for session in self.sessions.values()) >= wire.STRANGERS_MAX:
            self.listener.reject(info)
            return
        try:
            connection = self.listener.accept(info)
        except FabricError as error:
            log.warning("%s: a client was not let in: %s", self.url, error)
            return
        self.sessions[connection.number] = Session(self, connection)

    def _members(self) -> int:
        """Connections of clients."""
        return sum(session.endpoint is not None for session in self.sessions.values())

    def _send(self, session: Session, data: bytes) -> None:
        if not session.connection.send(data):
            self._end(session)

    def _refuse(self, session: Session, why: str) -> None:
        done = "cut off" if session.side else "refused"
        log.warning("%s: a client was %s: %s", self.url, done, why)
        session.connection.send(message(wire.REFUSAL, 0, why.encode()[:1024]))
        self._end(session)

    def _end(self, session: Session) -> None:
        """End a connection: its client is dead, unless it has left."""
        if self.sessions.pop(session.connection.number, None) is None:
            return
        session.connection.close()
        if session.endpoint is not None:
            session.endpoint.detach()
        self._give_up(session)

    def _give_up(self, session: Session) -> None:
        """The client of this slot changes nothing any more. Unless it has left, others recover it,
        as after a kill of a mapped client."""
        slot, word = session.guarded
        with contextlib.suppress(NodeFailed):  # the control segment is lost, and the pool
            if slot and not self._is_replaced():
                if self.ledger is not None:
                    self.endpoint.cas(slot, word, dying(word))
                else:
                    self.evictions.begin(slot, word)

    def _message(self, session: Session, data: bytes) -> None:
        kind = kind_of(data)
        if session.endpoint is None:
            self._answer(session, kind, data[wire.HEADER_SIZE :])
        elif kind == wire.PHASE:
            self.phases.read(data)
            self._send(session, self.phases.do(session.endpoint, session))
        elif kind == wire.BEAT:
            self._beat(session, data[wire.HEADER_SIZE :])
        elif kind == wire.JUDGE:
            self._judge(session, data[wire.HEADER_SIZE :])
        else:
            raise wire.WireError("a message that only a server sends")

    def _answer(self, session: Session, kind: int, body: bytes) -> None:
        """A message of a connection that is no client's, or not yet."""
        if not session.side and kind == wire.PROOF:
            self._welcome(session, body)
        elif kind == wire.ENROL and session.side == b"node" and self.evictions is not None:
            words = self.evictions.enrol(body)
            # ORDER: after the words are read: they are those of the one control server.
            self._require_control()
            self._send(session, message(wire.WORDS, 0, words))
        elif kind == wire.WORDS and session.side == b"control" and self.ledger is not None:
            self.ledger.take(body)
            self._send(session, message(wire.TAKEN, 0))
        else:
            raise wire.WireError("a message before the proof, or of another side")

    def _welcome(self, session: Session, body: bytes) -> None:
        nonce, found, name = wire.split_proof(body)
        given = (session.challenge, nonce, name)
        for side in (b"client", b"judge", b"node", b"control"):
            if wire.is_proof(found, wire.proof(self.secret, side, *given)):
                break
        else:
            self._refuse(session, f"it does not have the secret of this server ({wire.IN_FILE})")
            return
        if name.decode(errors="replace") != self.name:
            asked = name.decode(errors="replace")
            self._refuse(session, f"it asked for the pool {asked}; this server has {self.name}")
            return
        control = self.control
        if side == b"client":
            if self._members() >= self.clients:
                self._refuse(
                    session, f"this server has {self.clients} clients, and no room for more"
                )
                return
            session.endpoint = endpoint = Endpoint()
            endpoint.attach(CONTROL_NODE, control.map, control.size, None, 0, control.watched_fd)
            endpoint.watch_states(NODE_STATES)
            endpoint.guard(*self.own)
        session.side = side
        ours = wire.proof(self.secret, b"server", *given)
        block = control.place.read(control.fd, SUPERBLOCK_SIZE)
        served = wire.node_bits(
            self.served | {CONTROL_NODE} if self.ledger is None else self.served
        )
        self._send(session, message(wire.WELCOME, 0, ours + served + block))

    def _beat(self, session: Session, figures: bytes) -> None:
        """Renew the lease of the client, if it has one, and put its counts into its slot."""
        if len(figures) not in (0, 8 * FIGURES_COUNT):
            raise wire.WireError(f"{len(figures)} bytes are no counts of a client")
        slot, word = session.guarded
        if slot and self.endpoint.load(slot) == word:
            lease_s = self.parameters.lease_us / 1e6
            membership: Any = SimpleNamespace(endpoint=self.endpoint, lease_s=lease_s)
            fencing.renew(membership, session.sightings, slot)
            if figures:
                # By the client's endpoint: its guard looks at the slot before each word.
                with contextlib.suppress(ClientError):  # others have given the client up meanwhile
                    session.endpoint.write(slot + FIGURES, figures)

    def _judge(self, session: Session, body: bytes) -> None:
        address = parse_address(body.decode(errors="replace"))
        asking = self.asking.setdefault(address, [])
        asking.append(session)
        if len(asking) == 1:
            work = threading.Thread(target=self._reach, args=(address,), daemon=True)
            work.start()

    def _reach(self, address: tuple[str, int]) -> None:
        """In a thread: find out whether a server of this pool answers there."""
        lives = False
        try:
            link = Link(*address, self.name, self.secret, JUDGE_S, b"judge")
            lives = link.superblock.uuid == self.uuid
            link.close()
        except LimpetError as error:
            log.warning("%s: %s:%d is lost: %s", self.url, *address, error)
        finally:
            self.verdicts.append((address, lives))

    def _tell(self, address: tuple[str, int], lives: bool) -> None:
        for session in self.asking.pop(address):
            if self.sessions.get(session.connection.number) is session:
                self._send(session, message(wire.VERDICT, 0, bytes([lives])))

    # ---- what verbs of a phase ask of the server ------------------------------------------------

    def guard(self, session: Session, addr: int, word: int) -> None:
        slots = range(CLIENT_SLOTS, CLIENT_SLOTS + SLOT_SIZE * self.parameters.clients, SLOT_SIZE)
        if word and addr not in slots:
            raise AddressError(f"{addr:#x} is no client slot")
        guarded = (addr, word) if word >> STATE_SHIFT == LIVE else (0, 0)
        if guarded != session.guarded:
            # It could not give up its slot, as the connection to another server is lost.
            self._give_up(session)
        session.endpoint.guard(*((addr, word) if word else self.own))
        session.guarded = guarded
        if self.ledger is not None and guarded[0]:
            # If it has another word afterwards, or this raises, the guard refuses all changes.
            self.ledger.look(*guarded)
        session.sightings.clear()

    def attach(self, session: Session, node: int, state: int) -> None:
        if node not in self.served:
            raise AddressError(f"this server does not have node {node}")
        generation = generation_of(state)
        if self.ledger is not None:
            self.ledger.look_at(node, state)
        segment = self.segments.get((node, generation))
        if segment is None:
            try:
                segment, _ = nodes.open_(
                    self.location, node, uuid=self.uuid, size=self.parameters.node_size,
                    options=self.options, generation=generation,
                )  # fmt: skip
            except LimpetError as error:
                raise NodeFailed(node, f"its memory cannot be used: {error}") from error
            self.segments[node, generation] = segment
        parameters = self.parameters
        coherent = None if parameters.coherent else parameters.coherent_bytes
        session.endpoint.release(node)
        session.endpoint.attach(
            node, segment.map, segment.size, coherent, state, segment.watched_fd
        )

    def _require_live(self, session: Session) -> None:
        """Raise ClientError if the client of this connection was given up."""
        slot, word = session.guarded
        if slot and self.endpoint.load(slot) != word:
            raise ClientError(DISOWNED)

    def evict(self, session: Session, slot: int, word: int) -> int:
        slots = range(CLIENT_SLOTS, CLIENT_SLOTS + SLOT_SIZE * self.parameters.clients, SLOT_SIZE)
        if self.evictions is None or slot not in slots or word >> STATE_SHIFT != LIVE:
            raise AddressError(f"{slot:#x} with {word:#x} is no client that this server can evict")
        self._require_live(session)
        self.evictions.begin(slot, word)
        return int(self.endpoint.load(slot) != word)

    def make(self, session: Session, node: int, generation: int) -> None:
        if node not in self.served:
            raise AddressError(f"this server does not have node {node}")
        self._require_live(session)
        if self.ledger is not None:
            self.ledger.enrol()
        with held(self.location) as control:
            require_ours(self.location, control, self.uuid)
            # ORDER: once we have the name: without it, a server that stood still would make memory
            # in the place of what its successor has made.
            self._require_control()
            word = self.endpoint.load(NODE_STATES + 8 * node)
            if generation != generation_of(word) + 1 or state_of(word) != EXCLUDED:
                raise NodeFailed(node, "its state is another one by now, so it gets no new memory")
            self.segments[node, generation] = make_node(
                self.location, node, generation, self.parameters, self.uuid, self.options
            )

    def back(self, session: Session, addr: int, size: int) -> int:
        node = addr >> 40
        session.endpoint.read(addr, 0)  # it is attached, and the bytes are within it
        generation = generation_of(session.endpoint.expected(node))
        segment = self.segments.get((node, generation))
        if segment is None or size > segment.size - (addr & (1 << 40) - 1):
            raise AddressError(f"{size} bytes at {addr:#x} reach beyond the end of the node")
        return int(segment.back(addr & (1 << 40) - 1, size))
