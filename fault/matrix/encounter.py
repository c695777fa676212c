"""Encounters of two clients on a key: one is stopped, one is killed, and nodes are lost.

The crash matrix has one victim, and at most one lost node. Here two clients work on one key of a
replicated store: one is stopped at its step j, the other is killed at its step k, `failures` memory
nodes are lost, as many as the store survives, and the stopped client goes on. Either may be first:
the second client meets the traces of the first. Both have written the key before, so their rows,
buffers and caches are in use, and each remembers where the key is.

A get that has no pin writes nothing: it is stopped at each word that it reads.

A survivor demands that the clients end as the test ended them; that the history of the key is
linearizable (linearizability.py), with the survivor's operations before and after recovery, and
those of a successor, a new client in the killed one's slot; that `check()` holds; that no byte is
leaked or held; that other keys have their values. While the client is stopped, and the nodes are
lost, the other keys must be served: by a store with majorities all of them; by another store those
that it reads on no lost node, also while a third client waits for the change of the view.

Every registered kind with replicas goes through it (`kinds`), with 2f + 1 memory nodes, and as many
replicas as survive the loss of f. With a `limit`, each meeting is run about so often: at first,
last and evenly spaced steps of both, for the first client only at steps that are not in the midst
of a write, with the choices of lost nodes by turns. Without a limit, all steps of both are taken,
with every choice. Every other run also loses the memory, and not only the node's state.
"""

from __future__ import annotations

import functools
import itertools
import math
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from limpet.fault.check.history import Record
from limpet.fault.check.linearizability import check
from limpet.fault.inject.stopping import StoppingEndpoint, StoppingPool, stop, stops
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.crash_matrix import chosen, quiet
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.matrix_result import MatrixResult, ResultCollector
from limpet.fault.matrix.operations import BYSTANDER, KEY, OLD, demand
from limpet.fault.matrix.testbed import PATIENCE_S, StoreTestbed, in_new_pool, look_away, within
from limpet.shm.backends.location import parse_url
from limpet.shm.endpoint.hooked import READS, size_of
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import KeyExists
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS, store_class

SIZE: Final = 40
FIRST, OF_STOPPED, OF_KILLED, OF_SURVIVOR, OF_HEIR = VALUES = tuple(
    what.ljust(SIZE, b".") for what in (b"before", b"stopped", b"killed", b"survivor", b"heir")
)
"""Values of one size, so that each client has memory ready for a copy of another's."""
RESULTS: Final = ("ok", "missing", "exists")
STOPPED, KILLED, SURVIVOR, HEIR = 0, 1, 2, 3
WAITING: Final = 2
"""Number of the third client."""
CROWD: Final = (BYSTANDER, *(b"bystander %d" % number for number in range(7)))
"""Keys that no operation may touch, on every node."""
DISTANT: Final = 1 << 40
CALLED, RETURNED, RESULT, READ, STEPS, SLOT = range(6)
"""The words of `shared` that a client writes: result and value by number, from 1 on."""
LATER: Final = 1 << 14
"""Where it tells, times its number and 1, of each step whether it is a later word of a write."""


class Meeting(NamedTuple):
    """Operations of two clients on a key, present or absent before; which client is `first`."""

    stopped: str
    killed: str
    present: bool
    first: int

    def __str__(self) -> str:
        names = (f"stopped {self.stopped}", f"killed {self.killed}")
        return " meets ".join((names[1 - self.first], names[self.first]))


MEETINGS: Final = tuple(
    Meeting(stopped, killed, killed != "insert", first)
    for killed in ("update", "delete", "insert")
    for stopped in ("get", "put", "delete")
    for first in (KILLED, STOPPED)
    # a get without traces to repair has no step; a delete needs a value
    if first == KILLED or (stopped != "get" and (stopped != "delete" or killed != "insert"))
)


def kinds() -> list[str]:
    """The registered kinds with replicas."""
    return [kind for kind in KINDS if store_class(kind).replicated]


def run(kind: str, failures: int, limit: int | None) -> Iterator[MatrixResult]:
    """Every meeting of a kind, with that many lost memory nodes; a MatrixResult for each."""
    for meeting in MEETINGS:
        yield Encounter(kind, failures, limit).meet(meeting)


class CountingEndpoint(StoppingEndpoint, verbs=("load", "read_words")):
    """Notes of each step, while it is to stop somewhere, whether it is a later word of a write."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[bool] = []
        self._rest = -1
        """Where a write goes on of which a part is done."""
        self.nodes: set[int] = set()
        """The words that were read since the last `clear`."""
        self.stops_at_reads = False
        """Whether the words that it reads are steps, too: for a get that writes nothing."""

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if verb in READS:
            self.nodes.add(addr >> NODE_SHIFT)
            if not self.stops_at_reads:
                return words
        armed = self.stop_at
        part = super().on_verb(verb, addr, words)
        if armed:
            self.later += [addr == self._rest] + [True] * (part - 1)
            self._rest = addr + size_of(addr, part) if part < words else -1
        return part


class CountingPool(StoppingPool):
    endpoint_class = CountingEndpoint
    endpoint: CountingEndpoint


class EncounterTestbed(StoreTestbed):
    """A pool with a store that survives the loss of `failures` nodes, the survivor and its keys.

    No client is fenced: a stopped client goes on.
    """

    def __init__(self, url: str, kind: str, failures: int) -> None:
        self.kind = kind
        self.url = url
        profile = profile_of(kind)
        self.pool = Pool.create(
            url, nodes=2 * failures + 1, node_size=profile.matrix_node_size, clients=8,
            lease=0.001, fence="wait",
        )  # fmt: skip
        self.handles = [self.pool]
        self.shared = mmap.mmap(-1, 1 << 16)
        self.wanted = BYSTANDER
        """The key that the third client asks for."""
        self.majorities = bool(store_class(kind).majorities)
        replicas = 2 * failures + 1 if self.majorities else failures + 1
        parameters = {**profile.matrix_parameters, "replicas": replicas}
        self.store = self.pool.store(kind, name="store", **parameters)
        survived = self.store.losses_survived
        demand(survived >= failures, f"{replicas} replicas survive {survived} lost nodes")
        self.bystanders = CROWD
        for key in CROWD:
            self.store.put(key, OLD)
            self.store.get(key)
        self.read_on = {key: self._nodes_of(key) for key in CROWD}
        """The memory nodes where a get of the key reads, whose place is known."""

    def _nodes_of(self, key: bytes) -> set[int]:
        pool, store = self.stopping
        store.get(key)
        pool.endpoint.nodes.clear()
        store.get(key)
        return pool.endpoint.nodes - {CONTROL_NODE}

    @functools.cached_property
    def stopping(self) -> tuple[CountingPool, Any]:
        pool = CountingPool.open(self.url)
        self.handles.append(pool)
        return pool, pool.store(self.kind, name="store")

    # ---- the two clients ------------------------------------------------------------------------

    def clients(self, meeting: Meeting, steps: Sequence[int]) -> Callable[[int, int], None]:
        """The body of the client of each number, with the step that it is stopped or killed at.

        One that is to be killed beyond all of its steps notes what they are.
        """
        stopping = self.stopping

        def target(number: int, incarnation: int) -> None:
            if number == WAITING:
                look_away(self.pool)
                self.store.get(self.wanted)
                os._exit(0)
            counts = number == STOPPED or steps[number] == DISTANT
            pool, store = stopping if counts else (self.pool, self.store)
            endpoint: Any = pool.endpoint
            look_away(pool)
            for value in (VALUES[number + 1], FIRST, FIRST):
                store.put(KEY, value)
                store.get(KEY)
            stop()
            self.note(number, SLOT, pool.client.ident >> INCARNATION_BITS)
            fault = "stop_at" if counts else "fuse"
            setattr(endpoint, fault, steps[number])
            op = (meeting.stopped, meeting.killed)[number]
            if counts:
                endpoint.stops_at_reads = op == "get" and getattr(store, "glance", None) is not None
            self.note(number, CALLED, time.monotonic_ns())
            result, read = perform(store, op, (OF_STOPPED, OF_KILLED)[number])
            self.note(number, RETURNED, time.monotonic_ns())
            left = getattr(endpoint, fault)
            setattr(endpoint, fault, 0)
            self.note(number, STEPS, steps[number] - left if left else 0)
            if counts:
                at = LATER * (1 + number)
                self.shared[at : at + len(endpoint.later)] = bytes(endpoint.later)
            self.note(number, RESULT, RESULTS.index(result) + 1)
            if read is not None:
                self.note(number, READ, VALUES.index(read) + 1)
            os._exit(0)

        return target

    def serve(self, workers: Workers, nodes: Sequence[int]) -> None:
        """Demand that the right keys are served while the client is stopped and these are lost."""
        served = [key for key in CROWD if self.majorities or not self.read_on[key] & set(nodes)]
        others = [key for key in CROWD if key not in served]
        if others:
            self.wanted = others[0]
            before = self.pool.view.number()
            workers.start(WAITING)
            attempt = 0
            while self.pool.view.number() == before:
                attempt += 1
                self.pool.endpoint.pause(attempt)
        for key in served:
            demand(self.store.get(key) == OLD, f"{key!r} has lost its value")

    def note(self, number: int, what: int, value: int) -> None:
        self.tell(8 * number + what, value)

    def noted(self, number: int, what: int) -> int:
        return self.told(8 * number + what)

    def record(self, number: int, op: str, died: bool) -> Record:
        """A client's operation, for the history."""
        read = self.noted(number, READ)
        return Record(
            number,
            op,
            KEY,
            _value_of(op, (OF_STOPPED, OF_KILLED)[number]),
            "unknown" if died else RESULTS[self.noted(number, RESULT) - 1],
            VALUES[read - 1] if read and not died else None,
            self.noted(number, CALLED),
            None if died else self.noted(number, RETURNED),
        )

    # ---- the survivor ---------------------------------------------------------------------------

    def lose(self, nodes: Sequence[int], gone: bool) -> None:
        for node in nodes:
            if gone:
                os.truncate(parse_url(self.url).path(node), 0)
            self.pool.mark_failed(node)

    def did(self, number: int, store: Any, *ops: str) -> list[Record]:
        """Run these operations on the key, by the survivor or the successor."""
        done = []
        for op in ops:
            called = time.monotonic_ns()
            result, read = perform(store, op, VALUES[number + 1])
            value = _value_of(op, VALUES[number + 1])
            done.append(Record(number, op, KEY, value, result, read, called, time.monotonic_ns()))
        return done

    def inherit(self) -> list[Record]:
        """The operations of a successor of the killed client on the key."""
        slot = self.noted(KILLED, SLOT)
        heir = Pool.open(self.url)
        try:
            now = heir.client.ident >> INCARNATION_BITS
            demand(now == slot, f"the successor has slot {now}, not {slot}")
            store = heir.store(self.kind, name="store")
            ops = ("get", "put", "get", "delete", "get", "put", "get")
            return self.did(HEIR, store, *ops)
        finally:
            heir.close()

    def survive(self, history: list[Record], present: bool) -> None:
        """The demands at the end."""
        whole = [*history, *self.did(SURVIVOR, self.store, "get", "get")]
        self.pool.recover()
        whole += self.inherit()
        after = ("get", "put", "get", "delete", "get", "insert", "update", "get")
        whole += self.did(SURVIVOR, self.store, *after)
        report = check(whole, initial={KEY: FIRST} if present else None, processes=1)
        demand(report.ok, f"it is not linearizable: {'; '.join(map(str, whole))}")
        self.inspect(len(self.handles))


def perform(store: Any, op: str, value: bytes) -> tuple[str, bytes | None]:
    """Run an operation on the key: its result, as in a history, and the value that it read."""
    try:
        read = getattr(store, op)(KEY, *([] if _value_of(op, value) is None else [value]))
    except KeyExists:
        return "exists", None
    except KeyError:
        return "missing", None
    return ("missing" if op == "get" and read is None else "ok"), read


def _value_of(op: str, value: bytes) -> bytes | None:
    return None if op in ("get", "delete") else value


class Encounter:
    """Runs meetings of one store kind. In the main thread only."""

    def __init__(self, kind: str, failures: int, limit: int | None = None) -> None:
        self.kind = kind
        self.failures = failures
        self.limit = limit
        self.choices = list(itertools.combinations(range(2 * failures + 1), failures))
        """The nodes that may be lost."""

    def _cluster(self) -> AbstractContextManager[EncounterTestbed]:
        return in_new_pool(lambda url: EncounterTestbed(url, self.kind, self.failures))

    def chosen(self, steps: int, later: bytes = b"") -> list[int]:
        """The steps of one client that are taken, and the one that it does not come to.

        `later`: which steps are in the midst of a write; with a limit, they are left out.
        """
        if self.limit is None:
            return list(range(1, steps + 2))
        telling = [k for k in range(1, steps + 1) if not any(later[k - 1 : k])]
        places = chosen(len(telling), self.limit, math.isqrt(self.limit))
        return [*(telling[place - 1] for place in places), steps + 1]

    def meet(
        self, meeting: Meeting, ks: Sequence[int] = (), js: Sequence[int] = ()
    ) -> MatrixResult:
        """Run the meeting at each of the chosen steps of both clients; or at `ks` of the first, and
        at `js` of the second."""
        what = f"{self.failures} node{'s' * (self.failures > 1)} lost"
        found = ResultCollector(self.kind, str(meeting), what)
        undisturbed = found.counted("undisturbed", lambda: self.steps(meeting))
        found.steps, _, later = undisturbed or (0, 0, b"")
        if not found.steps and not found.failures:
            found.failures.append("undisturbed: it has no step to be stopped or killed at")
        for k in ks or (self.chosen(found.steps, later) if found.steps else ()):
            count = functools.partial(self.steps, meeting, k)
            counted = None if found.full else found.counted(f"the first at {k}", count)
            if counted is None:
                continue
            steps = counted[1]
            found.next_steps += steps
            for j in js or self.chosen(steps):
                struck = [self._run(found, meeting, k, j, *how) for how in self._ways(found)]
                found.next_tried += j <= steps and all(second for _, second in struck)
                if k <= found.steps and all(first for first, _ in struck):
                    found.tried.add(k)
        return found.result()

    def _ways(self, found: ResultCollector) -> list[tuple[tuple[int, ...], bool]]:
        """The nodes to lose in the next runs, and whether to lose their memory."""
        count = len(self.choices)
        if self.limit is not None:
            return [(self.choices[found.runs % count], bool(found.runs // count & 1))]
        return [(nodes, bool(index & 1)) for index, nodes in enumerate(self.choices)]

    def steps(self, meeting: Meeting, k: int = DISTANT) -> tuple[int, int, bytes]:
        """How many steps both have, when the first one ends at step k, and no node is lost.

        And which of the first one's are in the midst of a write, if it does not end.
        """
        with self._cluster() as cluster:
            self._once(cluster, meeting, k, DISTANT, (), False)
            first = meeting.first
            steps = cluster.noted(first, STEPS)
            at = LATER * (1 + first)
            return steps, cluster.noted(1 - first, STEPS), cluster.shared[at : at + steps]

    def _run(
        self,
        found: ResultCollector,
        meeting: Meeting,
        k: int,
        j: int,
        nodes: tuple[int, ...],
        gone: bool,
    ) -> tuple[bool, bool]:
        """One run, noted; whether the fault struck the first and the second client."""
        how = "gone" if gone else "marked"
        found.at = f"the first at {k}, the second at {j}, nodes {nodes} {how}"
        found.runs += 1
        struck = (False, False)
        if not found.full:
            with quiet(), found.judging(), self._cluster() as cluster:
                struck = self._once(cluster, meeting, k, j, nodes, gone)
        return struck

    def _once(
        self,
        cluster: EncounterTestbed,
        meeting: Meeting,
        k: int,
        j: int,
        nodes: tuple[int, ...],
        gone: bool,
    ) -> tuple[bool, bool]:
        steps = (k, j) if meeting.first == STOPPED else (j, k)
        struck = [False, False]
        order = (meeting.first, 1 - meeting.first)
        with Workers(cluster.clients(meeting, steps)) as workers:
            pids = {}
            with within(PATIENCE_S, "a client, before they meet"):
                for number in (KILLED, STOPPED):
                    pids[number] = workers.start(number)
                    demand(stops(pids[number]), f"client {number} did not get so far")
                if not meeting.present:
                    cluster.store.delete(KEY)
            with within(PATIENCE_S, "a client, as they meet"):
                for number in order:
                    os.kill(pids[number], signal.SIGCONT)
                    if number == STOPPED:
                        struck[number] = stops(pids[number])
                    else:
                        struck[number] = self._end(workers, pids[number], (0, -signal.SIGKILL))
            cluster.lose(nodes, gone)
            with within(PATIENCE_S, "the survivor, while the client is stopped"):
                cluster.serve(workers, nodes)
            with within(PATIENCE_S, "the client that was stopped"):
                os.kill(pids[STOPPED], signal.SIGCONT)
                self._end(workers, pids[STOPPED], (0,))
                for pid in list(workers.pids.values()):
                    self._end(workers, pid, (0,))
        with within(PATIENCE_S, "the survivor"):
            history = [
                cluster.record(STOPPED, meeting.stopped, False),
                cluster.record(KILLED, meeting.killed, struck[KILLED]),
            ]
            cluster.survive(history, meeting.present)
        return struck[order[0]], struck[order[1]]

    @staticmethod
    def _end(workers: Workers, pid: int, due: tuple[int, ...]) -> bool:
        """Wait for a client to end as it must; whether it was killed."""
        ended = workers.reap(pid)
        demand(ended.status in due, f"a client ended with {ended.status}: {ended.traceback}")
        return ended.status != 0
