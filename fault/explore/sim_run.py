"""One run of a program by the simulated clients of a cluster, under a schedule, and its inspection.

Every client runs in a greenlet. Before each verb the running client calls `turn`, which takes the
schedule's departures; then this client goes on, or another one. Time is simulated: a verb takes
about a microsecond, a pause a sixteenth of a lease.

A remote client that others fence is not killed: it is declared dead, as one of another host is
whose lease is over. If it goes on later, its operation ends with ClientError, and has an unknown
outcome.

A memory node fails in one of two ways, as in practice: it is marked in the control segment, or its
memory is gone, and no client knows before a verb on it raises NodeFailed. If more nodes failed than
the store survives, an operation may raise NodeFailed, and has an unknown outcome; everything else
must hold. A client may give the node new memory; then it is in service again, and may fail again.
"""

from __future__ import annotations

import functools
import hashlib
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from limpet.fault.check.history import Record
from limpet.fault.check.linearizability import check
from limpet.fault.explore.greenlets import getcurrent, greenlet
from limpet.fault.explore.schedule import (
    CRASH,
    CUT,
    END,
    FAIL,
    GONE,
    LATE,
    POWER,
    STALL,
    WAKE,
    Actions,
    Chooser,
    Point,
    Replay,
    Schedule,
)
from limpet.fault.explore.sim_cluster import (
    INITIAL,
    LEASE_US,
    PAUSES_MAX,
    Endless,
    SimulatedClient,
    SimulatedCluster,
)
from limpet.fault.explore.sim_pools import SimulatedPool
from limpet.fault.explore.sim_power import look_after_cut
from limpet.fault.explore.sim_program import (
    ABSENT,
    ADD,
    DELETE_MANY,
    PRESENT,
    PUT_MANY,
    RECOVER,
    REPLACE,
    SWAP,
    TRANSACT,
    WINDOW,
    WRITES,
    Call,
    Program,
    window_steps,
)
from limpet.fault.explore.sim_transactions import TransactionHistory
from limpet.shm.endpoint.layout import EVENT_RING, NODE_SHIFT, RINGS
from limpet.shm.endpoint.simulated import (
    LOAD,
    PAUSE,
    READ,
    WAIT,
    Crashed,
    SimulatedEndpoint,
    Step,
    at_once,
)
from limpet.shm.endpoint.slots import DYING, STATE_BELOW, STATE_SHIFT
from limpet.shm.endpoint.states import IN_SERVICE, count_nodes, state_of
from limpet.shm.errors import ClientError, KeyExists, LimpetError, NodeFailed, ParameterError

VERB_S: Final = 2.0**-20
PAUSE_S: Final = 2.0**-14
STEPS_MAX: Final = 60_000
"""A run with more steps than this counts as one that does not end."""
Label = bytes | None


class Run:
    """One run of a program on a cluster. `go` runs it; `failure` then names the fault, or is "".

    `schedule`: the departures that were taken. `trace`: every step that was done.
    """

    def __init__(self, cluster: SimulatedCluster, program: Program, chooser: Chooser) -> None:
        self.cluster = cluster
        self.program = program
        self.chooser = chooser
        self.clients = cluster.clients[: len(program)]
        self.steps = 0
        self.schedule: Schedule = {}
        self.trace: list[Step] = []
        self.history: list[Any] = []
        """Records; of channels, the operations of their models with their times."""
        self.transactions = TransactionHistory(cluster, self._tick)
        self.failure = ""
        self.failed: set[int] = set()
        """The memory nodes that failed, once or more often."""
        self.cut: int | None = None
        """The seed of the power cut that ended the run."""
        self.replaced = 0
        """How often a node was given new memory."""
        self.added = 0
        """How often nodes were added."""
        self._gone = cluster.nodes_memory.gone
        self._too_many = False
        self._able: list[SimulatedClient] | None = None
        self._time = 0
        self._pauses = 0
        self._patience = 0.0
        self._next: SimulatedClient | None = None
        self._hub = getcurrent()

    # ---- the scheduler --------------------------------------------------------------------------

    def runnable(self) -> list[SimulatedClient]:
        """The clients that can go on."""
        if self._able is None:
            self._able = [p for p in self.clients if not (p.finished or p.dead or p.stalled)]
        return self._able

    def turn(self, endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
        """The scheduler: called by the running client before each verb."""
        client = self.clients[endpoint.number]
        if client.dead:
            raise Crashed
        if verb is WAIT:
            return words
        self.cluster.clock += VERB_S if verb is not PAUSE else PAUSE_S
        self.steps += 1
        client.step += 1
        if self.steps > STEPS_MAX and not self.failure:
            self.failure = f"no end: still at work after {STEPS_MAX} steps"
            self._hub.switch()
        actions = self.chooser.at(self, client, verb, addr, words)
        target = client
        if actions:
            target, words = self._depart(client, actions, words, endpoint.phase.posting)
        if verb is PAUSE and self._tired():
            self._rouse()
        if target is client and (verb is PAUSE or client.dead or client.stalled):
            target = self._after(client) or client
            if target is client and (client.dead or client.stalled):
                self._hub.switch()
        if target is not client:
            target.greenlet.switch()
        if client.dead:
            raise Crashed
        if verb in (READ, LOAD) and client.pid in self.cluster.processes.gone:
            client.read_late = True
        if self._gone and addr >> NODE_SHIFT in self._gone and verb is not PAUSE and words > 0:
            raise NodeFailed(addr >> NODE_SHIFT, "its memory is gone (simulated)")
        return words

    def _depart(
        self, client: SimulatedClient, actions: Actions, words: int, posted: bool = False
    ) -> tuple[SimulatedClient, int]:
        """Take a schedule's actions at a point; the client that goes on, and its number of words,
        or, negative, by how many verbs its posted verb is late.

        An action without effect (the death of a client that has ended) is left out of the schedule.
        """
        target = client
        self._able = None
        late = 0
        taken = []
        for action in actions:
            kind, number = action
            if kind == CUT:
                done = number < words
                words = min(words, max(1, number))
            elif kind == LATE:
                done = posted and number > 0
                late = number if done else late
            elif kind == POWER:
                done = self.cut is None and self.cluster.power is not None
                if done:
                    self._cut_power(number)
            elif kind in (FAIL, GONE):
                done = self._fail(number, kind == GONE)
            elif number < len(self.clients) and not self.clients[number].ended:
                other = self.clients[number]
                done = True
                if kind == CRASH:
                    self.crash(other)
                elif kind == STALL:
                    done = not other.stalled
                    if done:
                        other.stalled = True
                        self._patience = self.cluster.clock + 4e-6 * LEASE_US
                elif kind == WAKE:
                    done, other.stalled = other.stalled, False
                elif other.stalled:
                    done = False
                else:
                    done, target = other is not target, other
            else:
                done = False
            if done:
                taken.append(action)
        if taken:
            self.schedule[Point(client.number, client.op, client.step)] = tuple(taken)
        return target, -late or words

    def _after(self, client: SimulatedClient | None) -> SimulatedClient | None:
        """The client that goes on by default when `client` cannot: the next, or one that stalls."""
        start = -1 if client is None else client.number
        count = len(self.clients)
        tired = self._tired()
        order = [self.clients[(start + i) % count] for i in range(1, count + 1)]
        for other in order:
            if tired and other.stalled and not (other.finished or other.dead):
                other.stalled = False  # no client may kill it, so the others wait for it
                self._able = None
            if not (other.finished or other.dead or other.stalled) and other is not client:
                return other
        if client is not None and not (client.finished or client.dead or client.stalled):
            return client
        for other in order:
            if other.stalled and not (other.finished or other.dead):
                other.stalled = False
                self._able = None
                return other
        return None

    def _tired(self) -> bool:
        """Whether the fence policy is `wait` and stalled clients have been waited for too long."""
        return self.cluster.fence == "wait" and self.cluster.clock > self._patience

    def _rouse(self) -> None:
        """Wake the stalled clients, although a client that only spins could go on."""
        for client in self.clients:
            if client.stalled and not client.ended:
                client.stalled = False
                self._able = None

    def crash(self, client: SimulatedClient) -> None:
        """Kill the client: from now on it is resumed only to unwind, without a verb."""
        if not client.finished:
            client.dead = True
            self._able = None
            self.cluster.processes.gone.add(client.pid)

    def fenced(self, client: SimulatedClient) -> None:
        """Another client has ended this one. A remote one is declared dead, as by `Remote.lost`
        (shm/clients/hosts.py), and may go on later."""
        if not client.pool.remote:
            self.crash(client)
            return
        self.cluster.processes.gone.add(client.pid)
        slot, word = client.pool.client.slot, client.pool.client.word
        dying = DYING << STATE_SHIFT | word & STATE_BELOW
        lived = self.cluster.setup_client.endpoint.cas(slot, word, dying) == word
        if lived and client.finished and not client.dead and not self.failure:
            self.failure = f"pin: client {client.number} was fenced, and is in no operation"

    def _cut_power(self, seed: int) -> None:
        """End all clients at once."""
        self.cut = seed
        for client in self.clients:
            client.dead = True
        self._able = None

    def _fail(self, node: int, gone: bool) -> bool:
        """Fail a memory node in one way, unless it has failed or does not exist; whether it did."""
        view, count = self.cluster.setup_client.view, self._node_count()
        if node >= count or (gone and node in self._gone):
            return False
        if gone:
            self._gone.add(node)
        elif state_of(view.word(node)) == IN_SERVICE:
            self.cluster.setup_client.mark_failed(node)
        else:
            return False
        self.failed.add(node)
        marked = {n for n in range(count) if state_of(view.word(n)) != IN_SERVICE}
        self._too_many |= len(marked | self._gone) > self.cluster.store.losses_survived
        return True

    def _node_count(self) -> int:
        """How many nodes the pool has now."""
        load = self.cluster.setup_client.endpoint.load
        return count_nodes(self.cluster.nodes, map(load, range(RINGS, EVENT_RING, 8)))

    def _borne(self, what: str, error: NodeFailed) -> str:
        """ "" if this operation may raise this error; otherwise the reason why not."""
        if error.node not in self.failed:
            return f"node: {what} says of node {error.node}, which is in service: {error}"
        if not self._too_many:
            survived = self.cluster.store.losses_survived
            return f"node: {what} raised NodeFailed, though the store survives {survived}: {error}"
        return ""

    # ---- the clients ----------------------------------------------------------------------------

    def _life(self, client: SimulatedClient, calls: tuple[Call, ...]) -> None:
        try:
            for client.op, call in enumerate(calls):
                client.step = 0
                self._call(client, call)
                if client.read_late and call.key and not self.failure:
                    self.failure = f"lease: client {client.number} has ended its operation " + (
                        f"{client.op}, and was declared dead before it read the last words"
                    )
            client.op, client.step = len(calls), 0
            if client.pool.remote:
                client.pool.client.idle()
            client.endpoint.phase.do_sent()
        except Crashed:
            pass
        except Exception as error:
            declared = client.pid in self.cluster.processes.gone
            # a dead client only unwinds, and may meet what its cut operation has left
            if not client.dead and not (declared and isinstance(error, ClientError)):
                self.failure = self.failure or f"client {client.number}: {traceback.format_exc()}"
        finally:
            client.finished = True
            self._able = None
        if not client.dead and not self.failure:
            client.step += 1
            actions = self.chooser.at(self, client, END, 0, 1)
            if actions:
                target, _ = self._depart(client, actions, 1)
                self._next = None if target is client else target

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _call(self, client: SimulatedClient, call: Call) -> None:
        if call.kind == RECOVER:
            client.pool.recover()
            return
        if call.kind == REPLACE:
            for node in range(self._node_count()):
                self._replace(client.pool, node)
            return
        if call.kind == ADD:
            try:
                client.pool.add_node(count=self.cluster.ring)
                self.added += 1
            except NodeFailed as error:
                self.failure = self.failure or self._borne("adding nodes", error)
            return
        if call.kind == TRANSACT:
            name = b"%d.%d" % (client.number, client.op)
            try:
                self.transactions.run(client, call.key, name, PRESENT + ABSENT)
            except NodeFailed as error:
                self.failure = self.failure or self._borne(f"transaction {name!r}", error)
            return
        if call.kind == PUT_MANY:
            self._put_many(client, call.key)
            return
        if call.kind == DELETE_MANY:
            self._delete_many(client, call.key)
            return
        if call.kind == WINDOW:
            self._window(client, window_steps(call.key))
            return
        label = b"%d.%d" % (client.number, client.op) if call.kind in WRITES else None
        self.perform(client.store, client.number, call.kind, call.key, label)

    def _replace(self, pool: SimulatedPool, node: int) -> None:
        """Mark the node failed and give it memory, as an operator does after the loss of a node. A
        node that was added stays lost while others link to what only it had (growth.py)."""
        if node in self._gone:
            pool.mark_failed(node)
        if state_of(pool.view.word(node)) == IN_SERVICE:
            return
        try:
            pool.replace_node(node)
            self.replaced += 1
        except ParameterError:
            kept = node >= self.cluster.nodes and not self.cluster.store.losses_survived
            # Unless another client has replaced it.
            if state_of(pool.view.word(node)) != IN_SERVICE and not kept:
                raise
        except NodeFailed as error:
            self.failure = self.failure or self._borne(f"replacing node {node}", error)

    def perform(self, store: Any, client: int, kind: str, key: bytes, label: Label) -> None:
        """Do an operation, with its call noted before and its result after; it has a label if it
        writes."""
        if kind == SWAP:
            self._swap(store, client, key, label)
            return
        index = self._begin(client, kind, key, label)
        self._end(index, functools.partial(self._issue, store, kind, key, label))

    def _begin(self, client: int, kind: str, key: bytes, label: Label) -> int:
        """Note the call of an operation; its place in the history."""
        record = Record(client, kind, key, label, "unknown", None, self._tick(), None)
        self.history.append(record)
        return len(self.history) - 1

    def _issue(self, store: Any, kind: str, key: bytes, label: Label) -> Any:
        """Call an operation of a store, or of a pipeline."""
        given = () if label is None else (self.cluster.value_of(label),)
        return getattr(store, kind)(key, *given)

    def _end(self, index: int, result_of: Callable[[], Any]) -> None:
        """Note the result of an operation, which this call has."""
        called = self.history[index]
        read, result = called.read, "ok"
        try:
            value = result_of()
            if called.op == "get":
                read, result = (
                    (None, "missing") if value is None else (self.cluster.label_of(value), "ok")
                )
            elif called.op == SWAP and not value:
                result = "changed"
        except KeyExists:
            result = "exists"
        except KeyError:
            result = "missing"
        except NodeFailed as error:
            text = f"{called.op} of {called.key!r}"
            self.failure = self.failure or self._borne(text, error)
            return
        self.history[index] = called._replace(read=read, result=result, return_ns=self._tick())

    def _swap(self, store: Any, client: int, key: bytes, label: Label) -> None:
        """Get a key, and set it if it still has that value."""
        at = len(self.history)
        self.perform(store, client, "get", key, None)
        read = self.history[at].read
        if read is None or label is None:
            return
        index = self._begin(client, SWAP, key, label)
        self.history[index] = self.history[index]._replace(read=read)
        expected, value = self.cluster.value_of(read), self.cluster.value_of(label)
        self._end(index, lambda: store.swap(key, expected, value))

    def _window(self, client: SimulatedClient, steps: list[Call]) -> None:
        """Do several operations at once: to the history, at the same time."""
        pipeline = client.store.pipeline(len(steps))
        issued = []
        for number, (kind, key) in enumerate(steps):
            label = b"%d.%d.%d" % (client.number, client.op, number) if kind in WRITES else None
            index = self._begin(client.number, kind, key, label)
            issued.append((index, self._issue(pipeline, kind, key, label)))
        for index, operation in issued:
            self._end(index, operation.result)

    def _put_many(self, client: SimulatedClient, letters: bytes) -> None:
        """Put several keys in one call: to the history, as many puts at the same time."""
        first = len(self.history)
        pairs = []
        for number in range(len(letters)):
            key = letters[number : number + 1]
            label = b"%d.%d.%d" % (client.number, client.op, number)
            called = self._tick()
            record = Record(client.number, "put", key, label, "unknown", None, called, None)
            self.history.append(record)
            pairs.append((key, self.cluster.value_of(label)))
        try:
            client.store.put_many(pairs)
        except NodeFailed as error:
            self.failure = self.failure or self._borne(f"put_many of {letters!r}", error)
            return
        # Other clients have added records meanwhile.
        noted = {record.value: at for at, record in enumerate(self.history) if at >= first}
        for _, value in pairs:
            at = noted[self.cluster.label_of(value)]
            self.history[at] = self.history[at]._replace(result="ok", return_ns=self._tick())
        self._look_at_order(client, pairs)

    def _delete_many(self, client: SimulatedClient, letters: bytes) -> None:
        """Delete several keys in one call: to the history, as many deletes at the same time. Which
        of them were there is known if all were, or none; else they stay unknown."""
        first = len(self.history)
        keys = [letters[number : number + 1] for number in range(len(letters))]
        for key in keys:
            called = self._tick()
            self.history.append(
                Record(client.number, "delete", key, None, "unknown", None, called, None)
            )
        noted = {id(record): record for record in self.history[first:]}
        try:
            deleted = client.store.delete_many(keys)
        except NodeFailed as error:
            self.failure = self.failure or self._borne(f"delete_many of {letters!r}", error)
            return
        if deleted not in (0, len(keys)):
            return
        result = "ok" if deleted else "missing"
        for at in range(first, len(self.history)):
            if id(self.history[at]) in noted:
                self.history[at] = self.history[at]._replace(result=result, return_ns=self._tick())

    def _look_at_order(self, client: SimulatedClient, pairs: list[tuple[bytes, bytes]]) -> None:
        """Note a fault if a key that is there twice does not have its last value, or another
        client's: to the history the two puts are concurrent."""
        last = dict(pairs)
        for key in {key for key, value in pairs if last[key] != value}:
            at = len(self.history)
            self.perform(client.store, client.number, "get", key, None)
            read = self.history[at].read
            early = [self.cluster.label_of(value) for k, value in pairs if k == key][:-1]
            if read in early and not self.failure:
                self.failure = f"batch: {key!r} has {read!r}, and was put again after that"

    # ---- the run --------------------------------------------------------------------------------

    def go(self) -> Run:
        """Run the program from the cluster's image to its end, and inspect the state after it."""
        cluster = self.cluster
        cluster.reset()
        cluster.crash = self.fenced
        cluster.setup_client.endpoint.paused = self._survivor_paused
        try:
            try:
                self._play()
            finally:
                self._unwind()
            for client in self.clients:
                client.stalled = False
            if not self.failure and self.cut is not None:
                self.failure = look_after_cut(self, self.cut)
            elif not self.failure:
                self.failure = self._inspect()
        except Endless:
            self.failure = self.failure or f"no end: the survivor waits, {PAUSES_MAX} pauses long"
        finally:
            cluster.setup_client.endpoint.paused = None
        cluster.crash = None
        return self

    def _survivor_paused(self) -> None:
        self._pauses += 1
        if self._pauses > PAUSES_MAX:
            raise Endless
        self.cluster.clock += PAUSE_S

    def _play(self) -> None:
        for client, calls in zip(self.clients, self.program, strict=True):
            client.endpoint.turn = self.turn
            client.endpoint.gone = self._gone
            client.endpoint.trace = self.trace
            client.greenlet = greenlet(functools.partial(self._life, client, calls))
        last = self._after(None)
        while last is not None and not self.failure:
            self._next = None
            last.greenlet.switch()
            last = self._next or self._after(last)

    def _unwind(self) -> None:
        """Let clients that are dead, or never come to their end, leave their operations."""
        for client in self.clients:
            if client.greenlet:  # started, and not at its end
                client.dead = True
                client.greenlet.throw(Crashed)
            client.endpoint.phase.forget()
            client.endpoint.turn = at_once
            client.endpoint.gone = frozenset()
            client.endpoint.trace = deque(maxlen=0)

    def _inspect(self) -> str:
        setup_client, store = self.cluster.setup_client, self.cluster.store
        for node in self._gone:
            setup_client.mark_failed(node)  # it reads the memory directly, which is still there
        keys = sorted({record.key for record in self.history})
        if self.transactions.done:
            keys = [*PRESENT, *ABSENT]
        try:
            for look in ("before recovery", "after recovery"):
                for key in keys:
                    self.perform(store, len(self.clients), "get", key, None)
                if look == "before recovery":
                    setup_client.recover()
            wrong = self.wrong_history()
            if wrong:
                return f"history: {wrong}"
            self.failure = self.failure or self._checked(store)
            if self.failure:
                return self.failure
            audit = setup_client.audit()
        except LimpetError as error:
            return f"check: {type(error).__name__}: {error}"
        if audit["leaked"] and not self._left_for_good():
            return f"leaked: {audit['leaked']} bytes: {audit}"
        if audit["held"]:
            return f"held: {audit['held']} bytes by no living client: {audit}"
        return self._read_from_new_memory(keys) if self.replaced or self.added else ""

    def wrong_history(self) -> str:
        """The fault in the results of all operations, as text; "" if there is none."""
        initial = dict.fromkeys(PRESENT, INITIAL)
        if self.transactions.done:
            return self.transactions.wrong(self.history, initial)
        report = check(self.history, initial=initial, processes=1)
        return "" if report.ok else report.bad()[0].detail

    def _read_from_new_memory(self, keys: list[bytes]) -> str:
        """The fault in the contents of replaced and added nodes: lose other nodes, those that were
        added first, then read every key.

        As many other nodes as the store survives; if it survives none, "".
        """
        setup_client, store = self.cluster.setup_client, self.cluster.store
        lost = sum(state != IN_SERVICE for state in setup_client.view.states())
        left = 0 if self._too_many else max(store.losses_survived - lost, 0)
        nodes = reversed(range(self._node_count()))
        others = [node for node in nodes if node not in self.failed][:left]
        for node in others:
            setup_client.mark_failed(node)
        self.failed.update(others)
        for key in keys if others else ():
            self.perform(store, len(self.clients), "get", key, None)
        wrong = self.wrong_history()
        return f"new memory: {wrong}" if wrong else self.failure

    def _left_for_good(self) -> bool:
        """Whether objects may be in use whose links went with all replicas of their table."""
        return self._too_many and self.cluster.copies > 1

    def _checked(self, store: Any) -> str:
        try:
            store.check()
        except NodeFailed as error:
            return self._borne("check()", error)
        return ""

    def digest(self) -> str:
        """A hash of every step and of every operation's outcome: equal for equal runs."""
        found = hashlib.blake2b(digest_size=16)
        for client, verb, addr, outcome, _ in self.trace:
            found.update(b"%d %s %d %d;" % (client, verb.encode(), addr, outcome))
        for record in (*self.history, *self.transactions.done):
            found.update(repr(record).encode())
        return found.hexdigest()


def run_of(cluster: SimulatedCluster, program: Program, chooser: Chooser) -> Run:
    """A run, of the class that suits the cluster's store."""
    return (cluster.run_class or Run)(cluster, program, chooser)


def replay(cluster: SimulatedCluster, program: Program, schedule: Schedule) -> Run:
    """Run a program with the departures of a schedule."""
    return run_of(cluster, program, Replay(schedule)).go()
