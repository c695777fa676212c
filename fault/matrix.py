"""The crash matrix: every operation of a store, killed and stopped at its every step.

A victim, forked from a warm parent, runs one operation with its crash fuse set to k and dies at
its k-th step (verbs.pyx: every mutating verb is a step, and every 8-byte word of a write). The
parent is the survivor. For every k = 1, 2, ... until the operation survives, it demands:
    - before any recovery: the key can be read, written and deleted at once; it has the value from
      before the operation, or the one from after it, and what is read once stays so
    - after recovery the same, and what the survivor wrote meanwhile is not undone: the operation
      happened as a whole or not at all, and at most once
    - `check()` holds, no byte is leaked or held, and the victim has no place in the pool any more

Dimensions
    killed           as above; once with recovery first, once with the survivor's work first
    killed twice     the victim at step k, then whoever recovers it at its step j, then a third one
                     recovers both
    stopped, wait    SIGSTOP at step k (stopping.py), work around it, SIGCONT, and it goes on
    stopped, killed  SIGSTOP at step k, then fenced as the pool's policy does
    node lost        a memory node is lost at step k, or the victim and then a node (node_loss.py)

Where an operation has more steps than `limit`, the first and last of them are taken, and some
evenly in between: those are the words of one long write.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from limpet.fault import remains
from limpet.fault.kinds import proof_of
from limpet.fault.node_loss import WAYS, one_run
from limpet.fault.operations import KEY, NEW, OPERATIONS, RIVAL, Broken, Operation, demand
from limpet.fault.scene import PATIENCE_S, Scene, short, within
from limpet.fault.workers import Workers
from limpet.shm.errors import LimpetError
from limpet.shm.membership import slot_address
from limpet.shm.pool import destroy

DISTANT: Final = 1 << 60
FAILURES_MAX: Final = 20
DIMENSIONS: Final = ("killed", "killed twice", "stopped, wait", "stopped, killed", "node lost")


@dataclasses.dataclass(frozen=True)
class Result:
    """What one dimension of the matrix found for one operation of one store.

    `steps` of the operation, `runs` that were made, `seen` crash points, `failures`: one line for
    each run that broke a promise, with the k (and j) that repeats it.
    """

    store: str
    operation: str
    dimension: str
    steps: int
    runs: int
    seen: frozenset[str]
    failures: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """ "ok", or "FAILED"."""
        return "FAILED" if self.failures or not self.steps else "ok"


class Matrix:
    """Runs operations of one store kind through the dimensions. In the main thread only.

    `limit`: steps of an operation at which it is killed, at most. `scene` makes the pools.
    """

    def __init__(
        self, kind: str, limit: int = 400, scene: Callable[[str, str, str], Scene] = Scene
    ) -> None:
        self.kind = kind
        self.limit = limit
        self._make_scene = scene
        self._count = 0

    @contextlib.contextmanager
    def scene(self, operation: Operation, fence: str = "kill") -> Iterator[Scene]:
        """A new pool for this operation, gone afterwards."""
        self._count += 1
        url = f"shm://limpet-matrix-{os.getpid()}-{self._count}"
        scene = None
        try:
            scene = self._make_scene(url, self.kind, fence)
            operation.prepare(scene.pool, scene.store)
            yield scene
        finally:
            if scene is not None:
                scene.close()
            with contextlib.suppress(LimpetError):
                destroy(url)

    def steps(self, operation: Operation) -> int:
        """How many steps the operation takes when nobody disturbs it."""
        with self.scene(operation) as scene:
            scene.reset(operation)
            demand(not scene.run(scene.victim(operation, DISTANT)), "the fuse was too short")
            return scene.told(1)

    def chosen(self, steps: int, limit: int | None = None) -> list[int]:
        """The steps at which it is killed: all, or the first, the last and some in between."""
        limit = self.limit if limit is None else limit
        if steps + 1 <= limit:
            return list(range(1, steps + 2))
        third = max(1, limit // 3)
        middle = range(third, steps - third, max(1, -(-(steps - 2 * third) // third)))
        return sorted({*range(1, third + 1), *middle, *range(steps + 2 - third, steps + 2)})

    def _each(
        self,
        operation: Operation,
        dimension: str,
        runs: Sequence[tuple[int, ...]],
        one: Callable[..., set[str]],
        steps: int,
        fence: str = "kill",
    ) -> Result:
        """Run `one(scene, *run)` for each of `runs`, to which it may append.

        On a new pool after each failure.
        """
        failures: list[str] = []
        seen: set[str] = set()
        done = 0
        while done < len(runs) and len(failures) < FAILURES_MAX:
            with self.scene(operation, fence) as scene:
                while done < len(runs):
                    run = runs[done]
                    done += 1
                    try:
                        scene.reset(operation)
                        seen |= one(scene, *run)
                    except (Broken, LimpetError) as error:
                        at = ", ".join(f"{name}={k}" for name, k in zip("kji", run, strict=False))
                        failures.append(f"{at}: {type(error).__name__}: {error}")
                        break
                    if operation.fresh:
                        break
        if remains.UNLINKED in seen:
            seen.remove(remains.UNLINKED)
            if operation.name == "delete":
                seen.add("deleted")
        return Result(
            self.kind, operation.name, dimension, steps, done,
            frozenset(seen), tuple(failures),
        )  # fmt: skip

    def killed(self, operation: Operation) -> Result:
        """Killed at each step."""
        steps = self.steps(operation)
        runs = [(k, first) for k in self.chosen(steps) for first in (0, 1)]

        def one(scene: Scene, k: int, first: int) -> set[str]:
            died = scene.run(scene.victim(operation, k))
            if died and (k, first) == runs[-1]:
                # it takes more steps here than it did in an empty pool
                demand(k < 2 * steps + 100, f"{operation.name} does not end")
                runs.extend((k + 1, first) for first in (0, 1))
            seen = scene.seen()
            possible = {operation.before, operation.after} if died else {operation.after}
            scene.aftermath(operation, possible, ("recover", "work")[first])
            return seen

        return self._each(operation, "killed", runs, one, steps)

    def killed_twice(self, operation: Operation, ks: int = 12) -> Result:
        """Killed at some steps, and who recovers it at each of its own."""
        steps = self.steps(operation)
        taken = self.chosen(steps, ks)
        recovery = [0]

        def one(scene: Scene, k: int, j: int) -> set[str]:
            died = scene.run(scene.victim(operation, k))
            scene.run(scene.recoverer(j))
            recovery[0] = scene.told(1)
            seen = scene.seen()
            possible = {operation.before, operation.after} if died else {operation.after}
            scene.aftermath(operation, possible, "recover")
            return seen

        results = []
        for k in taken:
            results.append(self._each(operation, "killed twice", [(k, DISTANT)], one, steps))
            js = self.chosen(recovery[0], 60)
            results.append(self._each(operation, "killed twice", [(k, j) for j in js], one, steps))
        return _merged(results)

    def stopped(self, operation: Operation, fence: str, limit: int = 60) -> Result:
        """Stopped at some steps, worked around, then woken (`wait`) or fenced (`kill`)."""
        steps = self.steps(operation)
        runs = [(k,) for k in self.chosen(steps, limit)]

        def one(scene: Scene, k: int) -> set[str]:
            self._stop_once(scene, operation, k, fence, *scene.stopping)
            return set()

        dimension = "stopped, wait" if fence == "wait" else "stopped, killed"
        with _quiet():
            return self._each(operation, dimension, runs, one, steps, fence)

    def node_lost(self, operation: Operation, limit: int = 12) -> Result:
        """A memory node is lost at some steps, each in several ways, with or without a death."""
        steps = self.steps(operation)
        operation = dataclasses.replace(operation, fresh=True)
        nodes = range(proof_of(self.kind).matrix_nodes)
        ways = range(len(WAYS))
        runs = [(k, n, w) for k in self.chosen(steps, limit) for n in nodes for w in ways]

        def one(scene: Scene, k: int, node: int, way: int) -> set[str]:
            one_run(scene, operation, k, node, WAYS[way])
            return set()

        return self._each(operation, "node lost", runs, one, steps)

    def _stop_once(
        self, scene: Scene, operation: Operation, k: int, fence: str, pool: Any, store: Any
    ) -> None:
        with Workers(scene.victim(operation, k, pool, store)) as workers:
            pid = workers.start(0)
            with within(PATIENCE_S, "the victim"):
                state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            stopped = state is not None and state.si_code == os.CLD_STOPPED
            first = operation.after
            waits = fence == "wait" and proof_of(self.kind).waits_for_stopped
            if stopped:
                with within(PATIENCE_S, "the survivor"):
                    if not waits:
                        first = scene.work({operation.before, operation.after})
                    scene.store.check()
                    recovered = scene.pool.recover()["clients"]
                    demand(not recovered, f"a living client was recovered: {recovered}")
                    audit = scene.pool.audit()
                    demand(not audit["leaked"], f"while it is stopped: {audit}")
                    if fence == "kill":
                        self._fence(scene, pid)
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
            value = scene.store.get(KEY)
            due: set[bytes | None] = {operation.after if waits else b"survivor 3"}
            if operation.before != operation.after and first == operation.before:
                # it had not taken effect when it was stopped, so now it has, or was refused
                due = {operation.after} if scene.told(2) == 1 else due
            demand(value in due, f"after it was woken the key has {short(value)}")
        with within(PATIENCE_S, "the survivor"):
            operation.finish(scene.pool, scene.store)
            value = scene.store.get(KEY)
            scene.pool.recover()
            demand(scene.store.get(KEY) == value, "recovery changed the key's value")
            scene.inspect(len(scene.doors))

    @staticmethod
    def _fence(scene: Scene, pid: int) -> None:
        pool = scene.pool
        slots = [c["slot"] for c in pool.clients() if c["pid"] == pid and c["state"] == "live"]
        if not slots:
            # It has not joined yet, or has left: nobody waits for it.
            os.kill(pid, signal.SIGKILL)
            return
        word = pool.endpoint.load(slot_address(slots[0]))
        fenced = pool.exclusively(
            lambda: pool.membership.fence(slots[0], word, "what the crash matrix asks for")
        )
        demand(fenced, f"process {pid} could not be fenced")

    def past_the_dead(self, steps_of_rival: list[int]) -> Result:
        """An insert meets the remains of another one of the same key, and is killed itself."""
        rival = OPERATIONS["insert"]
        operation = dataclasses.replace(
            rival, name="insert past the dead", run=lambda pool, kv: kv.insert(KEY, RIVAL)
        )
        steps = self.steps(operation) + 12

        def one(scene: Scene, m: int, k: int) -> set[str]:
            scene.run(scene.victim(rival, m))
            rivals = scene.dead()
            before = scene.seen()
            scene.run(scene.victim(operation, k))
            after = scene.seen(rivals)
            scene.aftermath(rival, {None, NEW, RIVAL}, ("recover", "work")[k & 1])
            kicked = "tentative-link" in before and remains.UNLINKED in after
            return {"kicked"} if kicked else set()

        runs = [(m, k) for m in steps_of_rival for k in range(1, steps + 2)]
        return self._each(operation, "killed", runs, one, steps)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Have no kill logged while the body runs: here they are the purpose."""
    log = logging.getLogger("limpet")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def uncovered(results: Iterable[Result]) -> set[str]:
    """The crash points of these results' kinds that no victim showed."""
    kept = list(results)
    points = set().union(*(remains.defined(kind) for kind in {result.store for result in kept}))
    return points.difference(*(result.seen for result in kept))


def _merged(results: list[Result]) -> Result:
    return dataclasses.replace(
        results[0],
        runs=sum(result.runs for result in results),
        seen=frozenset().union(*(result.seen for result in results)),
        failures=tuple(failure for result in results for failure in result.failures),
    )


def run(kind: str, operations: list[str] | None = None, limit: int = 400) -> Iterator[Result]:
    """Every dimension of every operation of a store kind; a Result for each."""
    matrix = Matrix(kind, limit)
    for name in operations or list(OPERATIONS):
        operation = OPERATIONS[name]
        yield matrix.killed(operation)
        yield matrix.killed_twice(operation)
        for fence in ("wait", "kill"):
            yield matrix.stopped(operation, fence)
        yield matrix.node_lost(operation)
    if not operations or "insert" in operations:
        steps = matrix.steps(OPERATIONS["insert"])
        yield matrix.past_the_dead(list(range(max(1, steps - 12), steps + 1)))
