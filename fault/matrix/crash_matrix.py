"""The crash matrix: every operation of a store, killed and stopped at its every step.

A victim, forked from a warm parent, runs one operation with its crash fuse set to k and dies at
its k-th step (verbs.pyx: every mutating verb is a step, and every 8-byte word of a write). The
parent is the survivor. For every k = 1, 2, ... until the operation survives, it demands:
    - before any recovery: the key can be read, written and deleted at once; it has the value from
      before the operation, or the one from after it, and every later read returns the same
    - after recovery the same, and the survivor's writes are not undone: the operation happened as a
      whole or not at all, and at most once
    - `check()` holds, no byte is leaked or held, and the victim has no place in the pool any more

Dimensions                                                                      runs for a step
    killed           as above; once with recovery first, once with the work     2
    killed twice     the victim at step k, then the client that recovers it     the recoverer's
                     at its step j; then a third client recovers both           steps, and 1
    stopped, wait    SIGSTOP at step k (stopping.py), work around it,           1
                     SIGCONT, and it goes on
    stopped, killed  SIGSTOP at step k, then fenced as the pool's policy does   1
    node lost        a memory node is lost at step k, or the victim and then    nodes times ways
                     a node (node_loss.py)
    succeeded        killed at step k, recovered; a new client of its slot      6
                     runs every operation (successor.py)

One more row has an insert that meets the traces of a killed insert of the same key, and is killed
itself. With a `limit`, each row takes as many steps of an operation as make no more runs than that:
the first, the last, and as many evenly in between, which are the words of one long write. Without a
limit it takes all steps. A `MatrixResult` has the number of steps, and of those taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from limpet.fault.inject.stopping import stops
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix import crash_evidence, crash_points, successor
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.matrix_result import MatrixResult, ResultCollector
from limpet.fault.matrix.node_loss import WAYS, crowded, one_run
from limpet.fault.matrix.operations import (
    KEY,
    NEW,
    OPERATIONS,
    RIVAL,
    Operation,
    demand,
    operations_of,
)
from limpet.fault.matrix.testbed import PATIENCE_S, StoreTestbed, in_new_pool, short, within
from limpet.shm.endpoint.layout import slot_address
from limpet.stores.registry import kind_named

DISTANT: Final = 1 << 60
LIMIT: Final = 400
LATE_MAX: Final = 500
"""Steps by which interference may lengthen an operation."""
DIMENSIONS: Final = (
    "killed", "killed twice", "stopped, wait", "stopped, killed", "node lost", "succeeded",
)  # fmt: skip
PAST: Final = "insert past the dead"
ONCE: Final[Mapping[str, Any]] = {"": None}
FIRST: Final[Mapping[str, Any]] = {", recovery first": "recover", ", work first": "work"}
"""The survivor's first action after a death."""


def chosen(steps: int, limit: int | None, cost: int = 1) -> list[int]:
    """The steps to take, of so many, when each of them costs `cost` of `limit` runs.

    All; or, of those that the limit allows, three at least, the first third, the last third, and
    the others evenly in between.
    """
    most = steps if limit is None else max(3, limit // cost)
    if steps <= most:
        return list(range(1, steps + 1))
    edge = max(1, most // 3)
    inner = steps - 2 * edge
    between = range(most - 2 * edge)
    return [
        *range(1, edge + 1),
        *(edge + 1 + (2 * i + 1) * inner // (2 * len(between)) for i in between),
        *range(steps + 1 - edge, steps + 1),
    ]


class Sweep:
    """Runs operations of one kind at their steps, in pools of their own. In the main thread only.

    `limit`: about so many runs of one dimension of one operation; None: every step. `step`: this
    one only. `testbed` makes the pools.
    """

    def __init__(
        self,
        kind: str,
        limit: int | None = LIMIT,
        testbed: Callable[[str, str, str], Any] = StoreTestbed,
        step: int | None = None,
    ) -> None:
        self.kind = kind
        self.limit = limit
        self.step = step
        self._make_testbed = testbed

    @contextlib.contextmanager
    def testbed(self, operation: Operation, fence: str = "kill") -> Iterator[Any]:
        """A new pool for this operation, gone afterwards."""
        with in_new_pool(lambda url: self._make_testbed(url, self.kind, fence)) as testbed:
            with within(PATIENCE_S, "the survivor, which prepares a pool"):
                operation.prepare(testbed.pool, testbed.store)
            yield testbed

    def steps(self, operation: Operation) -> int:
        """Steps of the operation without interference."""
        with self.testbed(operation) as testbed:
            testbed.reset(operation)
            demand(not testbed.run(testbed.victim(operation, DISTANT)), "the fuse was too short")
            return int(testbed.told(1))

    def chosen(self, steps: int, cost: int = 1) -> list[int]:
        """The steps to take, of so many, when each of them costs `cost` runs."""
        return chosen(steps, self.limit, cost)

    def _swept(self, steps: int, cost: int = 1) -> list[int]:
        """The steps to take, and one more, at which the operation should have ended."""
        return [*self.chosen(steps, cost), steps + 1] if self.step is None else [self.step]

    def _begin(self, operation: Operation, dimension: str) -> ResultCollector:
        """The result collector of a dimension, with the operation's steps counted."""
        found = ResultCollector(self.kind, operation.name, dimension)
        found.steps = found.counted("undisturbed", lambda: self.steps(operation)) or 0
        if not found.steps and not operation.reads and not found.failures:
            found.failures.append("undisturbed: it has no step to be killed at")
        return found

    def _sweep(
        self,
        found: ResultCollector,
        operation: Operation,
        at: str,
        ks: Sequence[int],
        one: Callable[[Any, int, Any], bool],
        variants: Mapping[str, Any] = ONCE,
        fence: str = "kill",
    ) -> set[int]:
        """Run `one(testbed, k, variant)` at each of `ks`, and on until a run ends before its fault.

        Only at the last of `ks` a run should end before its fault. `one` returns whether the fault
        took place; `_sweep` returns the steps at which it did. A new pool is taken after each
        failure, and when the fault did not take place, as the pool has changed since steps were
        counted.
        """
        struck: set[int] = set()
        runs = [(k, label) for k in ks for label in variants]
        done = 0
        while done < len(runs) and not found.full:
            first = done
            found.at = f"{at}{runs[done][0]}{runs[done][1]}"
            with found.judging(), self.testbed(operation, fence) as testbed:
                while done < len(runs):
                    k, label = runs[done]
                    found.at = f"{at}{k}{label}"
                    found.runs += 1
                    done += 1
                    with within(PATIENCE_S, "the survivor, which sets the key's value"):
                        testbed.reset(operation)
                    if one(testbed, k, variants[label]):
                        struck.add(k)
                    elif k < ks[-1] and done - 1 > first:
                        done -= 1
                        break
                    if k in struck and done == len(runs) and ks != [self.step]:
                        demand(k < ks[-1] + LATE_MAX, f"{operation.name} does not end")
                        runs += [(k + 1, label) for label in variants]
                    if operation.fresh:
                        break
            done = max(done, first + 1)
        return struck


class Matrix(Sweep):
    """Runs operations of one store kind through the dimensions."""

    def __init__(self, kind: str, *given: Any, **named: Any) -> None:
        kind_named(kind)  # raises if there is no such kind
        super().__init__(kind, *given, **named)

    def run(self, operation: Operation, dimension: str) -> MatrixResult:
        """One dimension of one operation."""
        if dimension.startswith("stopped"):
            return self.stopped(operation, "wait" if dimension == "stopped, wait" else "kill")
        rows = {
            "killed": self.killed,
            "killed twice": self.killed_twice,
            "node lost": self.node_lost,
            "succeeded": self.succeeded,
        }
        return rows[dimension](operation)

    def killed(self, operation: Operation) -> MatrixResult:
        """Kill the victim at its steps."""
        found = self._begin(operation, "killed")

        def one(testbed: StoreTestbed, k: int, first: str) -> bool:
            died = testbed.run(testbed.victim(operation, k))
            found.seen |= testbed.seen()
            testbed.aftermath(operation, _possible(operation, died), first)
            return died

        if not found.failures:
            ks = self._swept(found.steps, len(FIRST))
            found.tried = self._sweep(found, operation, "k=", ks, one, FIRST)
        return found.result()

    def killed_twice(self, operation: Operation) -> MatrixResult:
        """Kill the victim at some of its steps, and its recoverer at each of its own steps."""
        found = self._begin(operation, "killed twice")

        def second(testbed: StoreTestbed, j: int, died: bool) -> bool:
            again = testbed.run(testbed.recoverer(j))
            found.seen |= testbed.seen()
            testbed.aftermath(operation, _possible(operation, died), "recover")
            return again

        if not found.failures:
            # The last step leaves most to recover: its cost stands for that of all steps.
            ends = {found.steps, found.steps + 1} - {0} if self.step is None else {self.step}
            cost = max([self._then(found, operation, k, second, "kj") for k in sorted(ends)])
            more = set(self.chosen(found.steps, cost)) - ends if self.step is None else ()
            for k in sorted(more):
                self._then(found, operation, k, second, "kj")
        return found.result()

    def past_the_dead(self, steps_of_first: Sequence[int] = ()) -> MatrixResult:
        """An insert meets the traces of a killed insert of the same key, and is killed itself."""
        first = OPERATIONS["insert"]
        past = dataclasses.replace(first, run=lambda pool, kv: kv.insert(KEY, RIVAL))
        found = self._begin(first, "killed twice")
        found.operation = PAST

        def second(testbed: StoreTestbed, k: int, died: bool) -> bool:
            dead = testbed.dead()
            before = testbed.seen()
            again = testbed.run(testbed.victim(past, k))
            if "tentative-link" in before and crash_evidence.UNLINKED in testbed.seen(dead):
                found.seen.add("kicked")
            testbed.aftermath(first, {None, NEW, RIVAL}, ("recover", "work")[k & 1])
            return again

        if not found.failures:
            cost = self._then(found, first, found.steps + 1, second, "mk")
            for m in steps_of_first or self.chosen(found.steps, cost):
                self._then(found, first, m, second, "mk")
        return found.result()

    def _then(
        self,
        found: ResultCollector,
        operation: Operation,
        k: int,
        second: Callable[[StoreTestbed, int, bool], bool],
        letters: str,
    ) -> int:
        """Let a victim die at step k, and `second(testbed, j, died)` at each j of its own steps.

        Returns how many runs that takes.
        """

        def one(testbed: StoreTestbed, j: int, _: Any) -> bool:
            died = testbed.run(testbed.victim(operation, k))
            if died:
                found.tried.add(k)
            return second(testbed, j, died) and (died or k > found.steps)

        def count() -> int:
            with self.testbed(operation) as testbed:
                testbed.reset(operation)
                one(testbed, DISTANT, None)
                return int(testbed.told(1))

        at = f"{letters[0]}={k}, {letters[1]}="
        steps = None if found.full else found.counted(f"{at}never", count)
        if steps is None:
            return 1
        # There are two or three such rows: the limit is for all of them.
        js = [*self.chosen(steps, 3), steps + 1]
        struck = self._sweep(found, operation, at, js, one)
        found.next_steps += max(steps, *struck, 0)
        found.next_tried += len(struck)
        return len(js)

    def stopped(self, operation: Operation, fence: str) -> MatrixResult:
        """Stop the victim at its steps, work around it, then wake (`wait`) or fence (`kill`) it."""
        found = self._begin(operation, "stopped, wait" if fence == "wait" else "stopped, killed")

        def one(testbed: StoreTestbed, k: int, _: Any) -> bool:
            return self._stop_once(testbed, operation, k, fence, *testbed.stopping)

        if not found.failures:
            ks = self._swept(found.steps)
            with quiet():
                found.tried = self._sweep(found, operation, "k=", ks, one, fence=fence)
        return found.result()

    def node_lost(self, operation: Operation) -> MatrixResult:
        """Lose each memory node at its steps, in every way, with or without a death."""
        operation = crowded(operation)
        found = self._begin(operation, "node lost")
        profile = profile_of(self.kind)
        variants = {
            f", node {node}, {way}": (node, way)
            for node in range(profile.nodes_needed, profile.matrix_nodes)
            for way in WAYS
        }

        def one(testbed: StoreTestbed, k: int, how: Any) -> bool:
            return one_run(testbed, operation, k, *how)

        if not found.failures:
            ks = self._swept(found.steps, len(variants))
            found.tried = self._sweep(found, operation, "k=", ks, one, variants)
        return found.result()

    def succeeded(self, operation: Operation) -> MatrixResult:
        """Kill the victim at its steps, recover it, and have a new client take its slot."""
        found = self._begin(operation, "succeeded")
        if not found.failures:
            ks = self._swept(found.steps, len(successor.FIRST))
            found.tried = self._sweep(
                found, operation, "k=", ks,
                lambda testbed, k, first: successor.one_run(testbed, operation, k, first),
                successor.FIRST,
            )  # fmt: skip
        return found.result()

    def _stop_once(
        self, testbed: StoreTestbed, operation: Operation, k: int, fence: str, pool: Any, store: Any
    ) -> bool:
        """One run; whether the victim was stopped."""
        with Workers(testbed.victim(operation, k, pool, store)) as workers:
            pid = workers.start(0)
            with within(PATIENCE_S, "the victim"):
                stopped = stops(pid)
            first = operation.after
            waits = fence == "wait" and profile_of(self.kind).waits_for_stopped
            if stopped:
                with within(PATIENCE_S, "the survivor"):
                    if not waits:
                        first = testbed.work({operation.before, operation.after})
                    testbed.store.check()
                    recovered = testbed.pool.recover()["clients"]
                    demand(not recovered, f"a living client was recovered: {recovered}")
                    audit = testbed.pool.audit()
                    demand(not audit["leaked"], f"while it is stopped: {audit}")
                    if fence == "kill":
                        self._fence(testbed, pid)
                    else:
                        os.kill(pid, signal.SIGCONT)
            with within(PATIENCE_S, "the victim that was woken"):
                ended = workers.reap(pid)
        killed = stopped and fence == "kill"
        demand(
            ended.status == (-signal.SIGKILL if killed else 0),
            f"the victim ended with {ended.status}: {ended.traceback}",
        )
        if stopped and not killed:
            value = testbed.store.get(KEY)
            due: set[bytes | None] = {operation.after if waits else b"survivor 3"}
            if operation.before != operation.after and first == operation.before:
                # it had not taken effect when it was stopped, so it has by now, or was refused
                taken = {operation.after} if testbed.told(2) == 1 else due
                # an update that loses to another update has taken effect just before it
                due = taken | due if testbed.store.replicated else taken
            demand(value in due, f"after it was woken the key has {short(value)}")
        with within(PATIENCE_S, "the survivor"):
            operation.finish(testbed.pool, testbed.store)
            value = testbed.store.get(KEY)
            testbed.pool.recover()
            demand(testbed.store.get(KEY) == value, "recovery changed the key's value")
            testbed.inspect(len(testbed.handles))
        return stopped

    @staticmethod
    def _fence(testbed: StoreTestbed, pid: int) -> None:
        pool = testbed.pool
        slots = [c["slot"] for c in pool.clients() if c["pid"] == pid and c["state"] == "live"]
        if not slots:
            # It has not joined yet, or has left: no client waits for it.
            os.kill(pid, signal.SIGKILL)
            return
        word = pool.endpoint.load(slot_address(slots[0]))
        fenced = pool.exclusively(
            lambda: pool.membership.fence(slots[0], word, "what the crash matrix asks for")
        )
        demand(fenced, f"process {pid} could not be fenced")


def _possible(operation: Operation, died: bool) -> set[bytes | None]:
    """The values that the key may have after an operation in which the victim died, or did not."""
    return {operation.before, operation.after} if died else {operation.after}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log no kills while the body runs: here they are intended."""
    log = logging.getLogger("limpet")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def uncovered(results: Iterable[MatrixResult]) -> set[str]:
    """The crash points of these results' kinds that no victim showed."""
    kept = list(results)
    points = set().union(
        *(crash_points.defined(kind) for kind in {result.store for result in kept})
    )
    return points.difference(*(result.seen for result in kept))


def run(
    kind: str,
    operations: list[str] | None = None,
    limit: int | None = LIMIT,
    dimensions: Sequence[str] | None = None,
    step: int | None = None,
) -> Iterator[MatrixResult]:
    """Run every dimension of every operation of a store kind; a MatrixResult for each.

    `dimensions`: only these. `step`: only that one of each operation.
    """
    matrix = Matrix(kind, limit, step=step)
    chosen = DIMENSIONS if dimensions is None else dimensions
    known = operations_of(kind)
    for name in operations or list(known):
        for dimension in chosen:
            yield matrix.run(known[name], dimension)
    if (not operations or "insert" in operations) and "killed twice" in chosen and step is None:
        yield matrix.past_the_dead()
