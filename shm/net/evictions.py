"""Evictions, at a server that has the control segment mapped: `Evictions`. Words, steps and crash
states: ledger.py.

In a pool of which no node is away there is nobody to tell, so a client that is to be evicted is
DYING at once: all servers look at its slot.

There is one such server of a pool with nodes that are away, since what it has begun is not in
shared memory (invariant 3). It has a lock (`claim`), which the kernel drops when it dies; or etcd
and a word choose it (etcd.py). A data server has one on its ledger: when it notes an eviction, no
other process is in a phase there.

The loop of the server calls `look`, and all else that changes what is here; threads send WORDS, and
leave their answers in a list. One thread at a time tells a data server. WORDS that it has begun to
send before an eviction do not count for that one.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients import events, liveness
from limpet.shm.clients.events import NODE_FAILED
from limpet.shm.endpoint.layout import (
    CLIENT_SLOTS,
    NODE_LEDGERS,
    NODE_PLACES,
    NODE_STATES,
    SLOT_SIZE,
    SLOTS_USED,
)
from limpet.shm.endpoint.slots import DYING, LIVE, LOCKED, REMOTE, STATE_BELOW, STATE_SHIFT
from limpet.shm.endpoint.states import (
    EXCLUDED,
    FAILED,
    IN_SERVICE,
    RESTORING,
    generation_of,
    is_last,
    node_word,
    state_of,
)
from limpet.shm.errors import LimpetError, NodeFailed, ParameterError
from limpet.shm.late import late
from limpet.shm.net import wire
from limpet.shm.net.ledger import ENROLMENT, TELL_S, address_of, place_word

if TYPE_CHECKING:
    from limpet.shm.endpoint.fabric import Endpoint
    from limpet.shm.parameters import PoolParameters

log = logging.getLogger("limpet")

AGAIN_S: Final = 1.0
"""After so long a data server is told again that was silent, and whose nodes cannot be given up."""
LOCK: Final = 1 << 61
"""The byte of the control segment's file on which the server has a lock (liveness.py)."""
Key = tuple[int, int]
"""The address of a client's slot, and its state word."""


def dying(word: int) -> int:
    return DYING << STATE_SHIFT | word & STATE_BELOW


def claim(control: Any, shared: bool = False) -> int:
    """A descriptor that holds the lock of the one server, as long as it is open. `control`: the
    control segment, or the ledger of a data server. `shared`: with those of which another word lets
    one work at a time (etcd.py). ParameterError: another one has it."""
    fd = liveness.describe(control.fd)
    try:
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        liveness.request(fd, fcntl.F_OFD_SETLK, kind, LOCK, 1)
    except OSError as error:
        os.close(fd)
        if error.errno not in liveness.IN_THE_WAY:
            raise
        raise ParameterError(
            f"{control.name} has a server already: a pool with nodes on other hosts has one on "
            "each host, for all nodes there"
        ) from error
    return fd


class Evictions:
    """Those that are under way, and the data servers that are told of them."""

    def __init__(
        self, endpoint: Endpoint, parameters: PoolParameters, name: str, secret: bytes
    ) -> None:
        """`endpoint`: works on the control segment."""
        self.endpoint = endpoint
        self.parameters = parameters
        self.name = name
        self.secret = secret
        self.pending: dict[Key, set[int]] = {}
        """For each eviction the data servers that have not answered, by their words in places."""
        self.due: dict[int, set[Key]] = {}
        """By data server, the evictions that it has to be told of yet; none: only node states."""
        self.told: dict[int, set[Key]] = {}
        """The same, of which a thread is telling it."""
        self.silent_until: dict[int, float] = {}
        self.answers: list[tuple[int, bool]] = []
        """Of threads: which data server has answered, or has not."""
        self.states = self._states()

    @property
    def tells(self) -> bool:
        """Whether there may be data servers."""
        return self.parameters.away > 0

    def _words(self, addr: int) -> list[int]:
        """A word of each node."""
        return [self.endpoint.load(addr + 8 * node) for node in range(self.parameters.nodes)]

    def _states(self) -> bytes:
        return bytes(self.endpoint.read(NODE_STATES, 8 * self.parameters.nodes))

    def places(self) -> dict[int, list[int]]:
        """By the words of their addresses, the data servers, with their nodes."""
        found: dict[int, list[int]] = {}
        if self.tells:
            for node, place in enumerate(self._words(NODE_PLACES)):
                if place:
                    found.setdefault(place, []).append(node)
        return found

    @property
    def waits(self) -> bool:
        """Whether `look` has to be called soon."""
        return bool(self.pending or self.told or self.due)

    # ---- one client -----------------------------------------------------------------------------

    def begin(self, slot: int, word: int) -> None:
        """Evict the client of this slot, which has this state word, if it is still there."""
        key = slot, word
        if key in self.pending or self.endpoint.load(slot) != word:
            return
        # ORDER: from here on WORDS say that it is evicted.
        self.pending[key] = {
            place for place, served in self.places().items() if self._count(served)
        }
        for place in self.pending[key]:
            self.due.setdefault(place, set()).add(key)
        self._end_if_told(key)
        self.look()

    def begin_all(self) -> None:
        """Evict all remote clients: their connections were those of another server.

        None is missed. A client writes REMOTE before its slot is LIVE (joining.py). So a slot that
        is LIVE here has the word already; and one that is not LIVE yet stays so, as this server has
        its number in SERVER, by which the other one refuses verbs of clients without a slot
        (etcd.py). The exception is a server that was stopped within that CAS, after it had looked
        at SERVER: then the lease of the client ends it."""
        used = self.endpoint.load(SLOTS_USED)
        for slot in range(CLIENT_SLOTS, CLIENT_SLOTS + SLOT_SIZE * used, SLOT_SIZE):
            word = self.endpoint.load(slot)
            if word >> STATE_SHIFT == LIVE and self.endpoint.load(slot + LOCKED) == REMOTE:
                self.begin(slot, word)

    def _end_if_told(self, key: Key) -> None:
        if key in self.pending and not self.pending[key]:
            slot, word = key
            with contextlib.suppress(NodeFailed):  # the control segment is lost, and the pool
                # A kill before it: the data servers refuse it; others have it evicted once more.
                self.endpoint.cas(slot, word, dying(word))
            del self.pending[key]

    # ---- data servers ---------------------------------------------------------------------------

    def words(self) -> bytes:
        """The words to send, as of now."""
        load, used = self.endpoint.load, self.endpoint.load(SLOTS_USED)
        found = [*self._words(NODE_STATES), *self._words(NODE_LEDGERS)]
        for slot in range(CLIENT_SLOTS, CLIENT_SLOTS + SLOT_SIZE * used, SLOT_SIZE):
            word = load(slot)
            found.append(dying(word) if (slot, word) in self.pending else word)
        return struct.pack(f"<{len(found)}Q", *found)

    def enrol(self, body: bytes) -> bytes:
        """Note the ledger, nodes and address of a data server; WORDS for it. ParameterError: these
        nodes are not its own."""
        if len(body) < ENROLMENT.size:
            raise wire.WireError("half of an ENROL")
        ident, bits = ENROLMENT.unpack_from(body)
        served, address = wire.nodes_of(bits), body[ENROLMENT.size :].decode(errors="replace")
        for node in served:
            if not self.parameters.here <= node < self.parameters.nodes:
                raise ParameterError(f"node {node} is not one of those that are away")
            known, state = self.endpoint.load(NODE_LEDGERS + 8 * node), self._state(node)
            if known not in (0, ident) and state in (IN_SERVICE, RESTORING):
                raise ParameterError(
                    f"node {node} is in service, with memory that is not this server's"
                )
        place = place_word(address) if address else 0
        for node in served:
            # ORDER: the place before WORDS are read: evictions that begin now are told to it.
            self.endpoint.store(NODE_PLACES + 8 * node, place)
            self.endpoint.store(NODE_LEDGERS + 8 * node, ident)
        return self.words()

    def _count(self, served: Sequence[int]) -> bool:
        """Whether one of these nodes is in service, or is being filled."""
        return any(self._state(node) in (IN_SERVICE, RESTORING) for node in served)

    def _state(self, node: int) -> int:
        return state_of(self.endpoint.load(NODE_STATES + 8 * node))

    def look(self) -> None:
        """Take the answers, and tell data servers what they have to be told."""
        while self.answers:
            place, answered = self.answers.pop()
            keys = self.told.pop(place)
            if not answered and keys:
                keys |= self.due.pop(place, set())
                if not self._give_up(place):
                    self.due[place] = keys
                    self.silent_until[place] = time.monotonic() + AGAIN_S
                    continue
            for key in keys:
                self.pending[key].discard(place)
                self._end_if_told(key)
        if (states := self._states()) != self.states:
            self.states = states
            for place in self.places():
                self.due.setdefault(place, set())
        now = time.monotonic()
        for place in [*self.due]:
            if place not in self.told and self.silent_until.get(place, 0) <= now:
                self.told[place] = self.due.pop(place)
                work = threading.Thread(target=self._tell, args=(place, self.words()), daemon=True)
                work.start()

    def _tell(self, place: int, words: bytes) -> None:
        """In a thread."""
        answered = False
        host, port = address_of(place)
        try:
            link = late("limpet.shm.net.link").Link(
                host, port, self.name, self.secret, TELL_S, b"control"
            )
            try:
                link.ask(wire.WORDS, words, wire.TAKEN)
                answered = True
            finally:
                link.close()
        except LimpetError as error:
            log.warning("%s: the data server at %s:%d is silent: %s", self.name, host, port, error)
        finally:
            self.answers.append((place, answered))

    def _give_up(self, place: int) -> bool:
        """The nodes of a silent data server are lost; False: one of them is the last one."""
        for node in self.places().get(place, ()):
            words: Sequence[int] = self._words(NODE_STATES)
            states = [state_of(word) for word in words]
            if is_last(node, states):
                return False
            word, at = words[node], NODE_STATES + 8 * node
            lost = node_word(generation_of(word), FAILED)
            if states[node] == RESTORING:
                lost = node_word(generation_of(word), EXCLUDED)
            elif states[node] != IN_SERVICE:
                continue
            if self.endpoint.cas(at, word, lost) != word:
                return False  # a client has changed it: look again
            log.warning("%s: node %d is lost: its server was silent", self.name, node)
            events.note(self.endpoint, NODE_FAILED, node, 0, 0, 0)
        return True
