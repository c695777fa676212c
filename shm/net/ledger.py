"""Memory nodes of several hosts without a shared device: their data servers, and evictions.

The last `away` nodes of such a pool (parameters.py) are memory of other hosts. A *data server*
(server.py) serves those of its host, and maps no control segment. The *control server* is one that
has the control segment mapped. All clients are remote (remote.pyx); each has a connection to every
server.

A data server cannot look at a client's slot before a change. So a fence is an eviction: it is told
which clients may change memory, and notes it in its ledger. The ledger is a segment beside its
nodes, which outlives the server as they do; one server at a time has its lock. It has the layout of
a control segment (layout.py), so that the guard and the check of node states are those of
verbs.pyx. Only these words of it are used:

    ledger            its id, which was drawn when it was made; 0: this is the control segment
    node states       the state words of nodes, as they were told last
    client slots      of each the word at 0, with incarnation n:
                      LIVE, pid, n   that client may change memory here, and no other of this slot
                      DYING, n       no client of this slot up to n may, for ever
                      0              no client of this slot was heard of

In the control segment there are, of each node that is away:
    node ledgers      the id of the ledger beside its memory; 0: no server has had it yet
    node places       the address of its server: bits 16-47 IPv4, bits 0-15 port

Messages
    WORDS    node states, node ledgers and the state words of the slots, in one message. The control
             server sends them to each data server when a client is to be evicted, and when a node
             state has changed; it answers a data server's ENROL with them
    ENROL    a data server names its ledger, nodes and address. It does so when it starts, when a
             client shows a state word that is not in the ledger (GUARD), and when one uses memory
             of a node by a state word that is not, or by a generation for the first time (ATTACH)

Invariants
    1. A word of the ledger only goes up: that of a slot by incarnation, and LIVE before DYING; that
       of a node by generation, then RESTORING, IN_SERVICE, FAILED, EXCLUDED. So it does not matter
       in which order WORDS arrive.
    2. A slot of the control segment becomes DYING only after each data server has noted that, or
       while the nodes of those that have not are FAILED or EXCLUDED.
    3. WORDS are read in one step of the control server, which has one thread and is the only one
       of the pool (evictions.py). A client whose eviction has begun is DYING in them already.
    4. A data server does ENROL between the moment when a generation of a node's memory may be
       named by a state word (RESTORING, or IN_SERVICE from the beginning) and its first use.

Why a client that is DYING changes nothing any more. A data server has one thread, and notes what it
is told between two phases. So it answers when no step of that client is under way, and its guard
refuses all later ones: they may be in the socket already, or come when the client goes on after a
stop. If the server has not answered, its nodes are out of service (2). They come back only with new
memory, of the next generation, which it lets nobody use before it has enrolled (4); by then the
client is DYING in WORDS (3). If it is another process by then, it has enrolled when it started.

Other clients may still use nodes whose server does not know that they are out of service, and where
the evicted client may still write. A client reads the node states whenever it pins, and then leaves
such a node alone (remote.pyx). The node was marked before the slot was DYING, and memory that the
evicted client had is used again under later pins only. So no client relies on memory there that is
used again; and what else is on such a node is lost with it.

Steps of an eviction, begun by the loss of a client's connection, or by another client (EVICT)
    1. note it (`Evictions.pending`, evictions.py)
    2. send WORDS to each data server of a node that is in service or being filled, in threads, and
       wait for TAKEN
    3. where there is no answer: IN_SERVICE -> FAILED, RESTORING -> EXCLUDED for the nodes of that
       address; not for the last node in service: then it is asked again
    4. LIVE -> DYING in the control segment. Others recover the client from here on

Crash states
    the control server, in 1-3    the slot is LIVE; some data servers refuse the client. Its lease
                                  ends, as its beats do, and another client has it evicted anew;
                                  or the server's successor has
    a data server, at any step    the ledger has the word or not; without its answer step 3 goes on
    it makes the ledger           as a half-created pool: the next start removes it
    it makes a node               an incomplete segment, or a whole one that was not enrolled. As
                                  no ledger is noted for the node, the next start goes on there
    its host's memory is lost     so is the ledger. The next start has another id, and is refused
                                  while the node is in service: `limpet fail-node`, and then
                                  `limpet replace-node`, give the node new memory there

Limits. Without the control server no client goes on, and none is evicted; another one takes its
place only with etcd, and while the memory of the control segment lives (etcd.py). A client that has
the secret is trusted; a word of a slot is never taken from a client, but asked for at the control
server, so one that is confused harms only itself. Incarnations do not wrap in a ledger: 2^36
clients of one slot.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Collection
from typing import Any, Final

from limpet.shm.backends import node as nodes
from limpet.shm.backends.inventory import remove_leftovers, unlink_generations
from limpet.shm.backends.name import held, release, require_ours
from limpet.shm.backends.node import MemoryNode, NodeOptions
from limpet.shm.endpoint.layout import (
    CLIENT_SLOTS,
    CONTROL_NODE,
    LEDGER,
    NODE_STATES,
    OFFSET_MASK,
    SLOT_SIZE,
    NodeLayout,
)
from limpet.shm.endpoint.slots import DYING, INCARNATION_MASK, JOINING, LIVE, STATE_SHIFT
from limpet.shm.endpoint.states import (
    EXCLUDED,
    FAILED,
    IN_SERVICE,
    RESTORING,
    generation_of,
    state_of,
)
from limpet.shm.errors import (
    LimpetError,
    ParameterError,
    PoolForeign,
    PoolIncomplete,
    PoolNotFound,
    StoreFull,
)
from limpet.shm.late import late
from limpet.shm.net import wire
from limpet.shm.net.backend import parse_address
from limpet.shm.parameters import PoolParameters

TELL_S: Final = 2.0
"""How long a server may take for each step of an answer until it counts as silent."""
ENROLMENT: Final = struct.Struct("<Q32s")
"""Id of the ledger, and nodes as bits; the address follows as text, once it listens."""
RANKS: Final = {RESTORING: 0, IN_SERVICE: 1, FAILED: 2, EXCLUDED: 3}
"""The order of a node's states within a generation."""


def later_slot(before: int, told: int) -> int:
    """The word of a slot in a ledger that has `before`, once the control segment has `told`."""
    state, number = told >> STATE_SHIFT, told & INCARNATION_MASK
    if state == JOINING:
        state, number = DYING, number - 1  # all before that client
    known = before & INCARNATION_MASK
    if state == LIVE:
        return told if number > known else before
    is_news = number > known or (number == known and before >> STATE_SHIFT == LIVE)
    return DYING << STATE_SHIFT | number if is_news else before


def later_node(before: int, told: int) -> int:
    """The later one of two state words of a node."""

    def age(word: int) -> tuple[int, int]:
        return generation_of(word), RANKS[state_of(word)]

    return max(before, told, key=age)


def words_of(body: bytes, count: int) -> tuple[list[int], list[int], list[int]]:
    """The words of a message: node states, node ledgers, states of slots. `count`: of nodes."""
    if len(body) % 8 or len(body) < 16 * count:
        raise wire.WireError("half of the words of a control segment")
    found = list(memoryview(body).cast("Q"))
    if any(state_of(word) not in RANKS for word in found[:count]):
        raise wire.WireError("no state of a node")
    return found[:count], found[count : 2 * count], found[2 * count :]


def id_of(segment: MemoryNode) -> int:
    """The id of a ledger; 0: it is a control segment."""
    at = LEDGER & OFFSET_MASK
    return int.from_bytes(segment.map[at : at + 8], "little")


def place_word(address: str) -> int:
    """The word of an address. ParameterError: no other host can reach it."""
    host, port = parse_address(address)
    try:
        found = socket.gethostbyname(host)
    except OSError as error:
        raise ParameterError(f"{address}: the name {host} is not known: {error}") from error
    number = int.from_bytes(socket.inet_aton(found), "big")
    if not number or not port:
        raise ParameterError(f"{address} is no address that the control server can reach")
    return number << 16 | port


def address_of(place: int) -> tuple[str, int]:
    return socket.inet_ntoa((place >> 16).to_bytes(4, "big")), place & 0xFFFF


# ---- at a data server ----------------------------------------------------------------------------


class Ledger:
    """The ledger of a data server, and what that has of the pool `control`, a net:// location whose
    first server is the control server."""

    def __init__(
        self, location: Any, control: Any, secret: bytes, served: Collection[int], options: Any
    ) -> None:
        """Open the ledger and the nodes, or make them. Raises as `limpet.open`, ParameterError for
        nodes that are not this host's, ClientError if the control server does not let us in."""
        if not served:
            raise ParameterError(f"{location}: --node names the memory nodes of this host")
        self.location = location
        self.control = control
        self.secret = secret
        self.served = frozenset(served)
        self.options = options
        self.address = ""
        self.last: tuple[str, int] | None = None
        """The address of the control server that it told last."""
        """Ours; empty: we do not serve yet."""
        self.known: set[tuple[int, int]] = set()
        """Nodes and generations that were enrolled."""
        self.segments: list[MemoryNode] = []
        self.endpoint: Any = None
        """Works on the ledger; set by the server."""
        block, body = self._ask(0, (), "")
        self.parameters: PoolParameters = block.parameters
        self.uuid: bytes = block.uuid
        self._require_away()
        states, ledgers, _ = words_of(body, self.parameters.nodes)
        found = self._found(block.size)
        try:
            if found is not None:
                self.segments.append(found)
            # ORDER: before anything is made.
            self._require_ours(states, ledgers, 0 if found is None else id_of(found))
            self.segment = self._made(block.size) if found is None else found
            self.segments = [self.segment]
            self.ident = id_of(self.segment)
            self._open_nodes(states, ledgers)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    def _require_away(self) -> None:
        away = range(self.parameters.here, self.parameters.nodes)
        if wrong := sorted(self.served - set(away)):
            which = f"nodes {away[0]} to {away[-1]} are" if away else "it was made without --away"
            raise ParameterError(
                f"{self.control} has no node {wrong[0]} that is away from its control segment: "
                f"{which}"
            )

    # ---- making and opening -----------------------------------------------------------------

    def _found(self, size: int) -> MemoryNode | None:
        """The ledger, if there is one. The remains of a start that was killed are removed."""
        location = self.location
        try:
            found, _ = nodes.open_(
                location, CONTROL_NODE, uuid=self.uuid, size=size, options=self.options
            )
        except PoolNotFound:
            return None
        except PoolIncomplete:
            if not remove_leftovers(location):
                raise
            return None
        except PoolForeign as error:
            raise PoolForeign(
                f"{location} has memory of another pool than {self.control}: destroy it first, "
                f"`limpet destroy {location}`, or take another name here ({error})"
            ) from error
        if not id_of(found):
            found.close()
            raise ParameterError(
                f"{location} is the control segment of {self.control}: its nodes that are away are "
                "those of other hosts"
            )
        return found

    def _made(self, size: int) -> MemoryNode:
        location = self.location
        if location.reuses_memory:
            raise ParameterError(f"{location}: nodes that are away are in shm:// or file://")
        made = nodes.create(location, CONTROL_NODE, size, options=self.options)
        try:
            nodes.back(made, size)
            at = LEDGER & OFFSET_MASK
            made.map[at : at + 8] = (secrets.randbits(63) | 1).to_bytes(8, "little")
            # ORDER: the id before the superblock: without one it would be a control segment.
            nodes.finish(made, self.parameters, self.uuid)
            release(made.fd)
        except BaseException:
            nodes.discard(made)
            raise
        return made

    def _require_ours(self, states: list[int], ledgers: list[int], ident: int) -> None:
        """Raise ParameterError if a node that counts is beside another ledger than this one."""
        for node in sorted(self.served):
            if ledgers[node] not in (0, ident) and state_of(states[node]) in (
                IN_SERVICE,
                RESTORING,
            ):
                raise ParameterError(
                    f"the memory of node {node} of {self.control} is not that of {self.location}: "
                    f"it is on another host, or was lost with this one's; "
                    f"{self._how_to_replace(node)}"
                )

    def _open_nodes(self, states: list[int], ledgers: list[int]) -> None:
        for node in sorted(self.served):
            generation = generation_of(states[node])
            if state_of(states[node]) != IN_SERVICE:
                continue
            if not ledgers[node]:
                self._make_first(node)
            try:
                self.segments.append(self._node(node, generation))
            except PoolNotFound as error:
                raise PoolIncomplete(
                    f"{error}: the memory of node {node} is gone; {self._how_to_replace(node)}"
                ) from error
            self.known.add((node, generation))

    def _how_to_replace(self, node: int) -> str:
        return (
            f"if it is lost: `limpet fail-node {self.control.name} {node}` on the host of the "
            "control segment, start this server, then `limpet replace-node` of the net:// URL "
            f"gives node {node} new memory here"
        )

    def _node(self, node: int, generation: int) -> MemoryNode:
        return nodes.open_(
            self.location, node, uuid=self.uuid, size=self.parameters.node_size,
            options=self.options, generation=generation,
        )[0]  # fmt: skip

    def _make_first(self, node: int) -> None:
        """Make the first memory of a node, unless that is there: it was not enrolled."""
        try:
            self._node(node, 0).close()
        except (PoolNotFound, PoolIncomplete):
            with held(self.location) as control:
                require_ours(self.location, control, self.uuid)
                make_node(self.location, node, 0, self.parameters, self.uuid, self.options).close()

    # ---- what it is told ----------------------------------------------------------------------

    def _ask(self, ident: int, served: Collection[int], address: str) -> tuple[Any, bytes]:
        """ENROL: the superblock of the control segment, and WORDS."""
        link = self._connected()
        try:
            body = ENROLMENT.pack(ident, wire.node_bits(set(served))) + address.encode()
            return link.superblock, link.ask(wire.ENROL, body, wire.WORDS)
        finally:
            link.close()

    def _connected(self) -> Any:
        """A connection to the control server: to that of the last time, or to its successor."""
        make = late("limpet.shm.net.link").Link
        own = self.control.name, self.secret, TELL_S, b"node"
        if self.last is not None:
            try:
                return make(*self.last, *own)
            except LimpetError:
                self.last = None
        found: tuple[str, int] = self.control.addresses()[0]
        link = make(*found, *own)
        self.last = found
        return link

    def enrol(self) -> None:
        """Tell the control server what we serve, and take what it says."""
        block, body = self._ask(self.ident, self.served, self.address)
        if block.uuid != self.uuid:
            raise PoolNotFound(f"{self.control} was destroyed, and is another pool by now")
        self.take(body)

    def take(self, body: bytes) -> None:
        """Note what WORDS say. Between two phases."""
        states, _, words = words_of(body, self.parameters.nodes)
        if len(words) > self.parameters.clients:
            raise wire.WireError("the words of more slots than there are")
        for base, step, told, later in (
            (NODE_STATES, 8, states, later_node),
            (CLIENT_SLOTS, SLOT_SIZE, words, later_slot),
        ):
            for number, word in enumerate(told):
                at = base + step * number
                before = self.endpoint.load(at)
                if (after := later(before, word)) != before:
                    self.endpoint.store(at, after)

    def look(self, addr: int, word: int) -> bool:
        """Whether the ledger has this state word, at least after the control server was asked."""
        if self.endpoint.load(addr) != word:
            self.enrol()
        return bool(self.endpoint.load(addr) == word)

    def look_at(self, node: int, state: int) -> None:
        """Enrol if this state word of a node is not known, or its generation was not used yet."""
        place = (node, generation_of(state))
        if place not in self.known or self.endpoint.load(NODE_STATES + 8 * node) != state:
            self.enrol()
            self.known.add(place)


def make_node(
    location: Any,
    node: int,
    generation: int,
    parameters: PoolParameters,
    uuid: bytes,
    options: NodeOptions,
) -> MemoryNode:
    """New, whole memory for a node whose pool's name is held. StoreFull: there is no room."""
    unlink_generations(location, node)
    made = nodes.create(
        location, node, parameters.node_size, options=options, generation=generation
    )
    try:
        if not made.back(0, NodeLayout.of(parameters).blocks):
            raise StoreFull(f"{made.name}: there is no room for its memory")
        nodes.finish(made, parameters, uuid)
    except BaseException:
        nodes.discard(made)
        raise
    return made
