"""The dimension of the crash matrix in which a memory node is lost in an operation.

The victim is forked as in the other dimensions, and loses the node for all clients at its k-th
step; or it dies there, and the node is lost then, before any recovery. The node is marked failed in
the control segment, or its memory is gone: the segment is truncated to nothing, and the next client
that touches it gets SIGBUS, which the fabric turns into NodeFailed.

In a store that survives the loss of a node, only the dead client may notice the loss. In other
stores an operation may raise NodeFailed for that node, and then happened or did not; keys on other
nodes are served, can be written, and pass the check, and no byte is leaked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.operations import KEY, OLD, Operation, demand
from limpet.fault.matrix.testbed import PATIENCE_S, StoreTestbed, look_away, short, within
from limpet.shm.backends.location import parse_url
from limpet.shm.endpoint.layout import NODE_STATES
from limpet.shm.errors import NodeFailed
from limpet.stores.pool import Pool


class Way(NamedTuple):
    """How a node is lost: `by_victim` or after it, its memory `gone`, with the victim `killed`."""

    by_victim: bool
    gone: bool
    killed: bool

    def __str__(self) -> str:
        how = "gone" if self.gone else "marked"
        if not self.by_victim:
            return f"{how} after the victim's death"
        return f"{how} by the victim, which {'dies' if self.killed else 'goes on'}"


WAYS: Final = (
    Way(True, False, False),
    Way(True, True, False),
    Way(True, False, True),
    Way(True, True, True),
    Way(False, False, True),
    Way(False, True, True),
)
CROWD: Final = tuple(b"bystander %d" % number for number in range(7))
"""Keys besides the bystander, so that some are on every node."""
ENDED, MISSED, LOST = 1, 2, 3
"""A victim's report of its operation: done, KeyError, or NodeFailed of the lost node."""


def crowded(operation: Operation) -> Operation:
    """The operation in a new pool each time, with the crowd in it."""

    def prepare(pool: Pool, store: Any) -> None:
        operation.prepare(pool, store)
        for key in CROWD:
            store.put(key, OLD)

    return dataclasses.replace(operation, fresh=True, prepare=prepare)


def one_run(testbed: StoreTestbed, operation: Operation, k: int, node: int, way: Way) -> bool:
    """Lose the node at step k of a crowded operation, and judge the result. Raises Broken.

    Returns whether the operation has that step.
    """
    testbed.bystanders = (*testbed.bystanders, *CROWD)
    with (
        within(PATIENCE_S, "the victim"),
        Workers(_victim(testbed, operation, k, node, way)) as workers,
    ):
        ended = workers.reap(workers.start(0))
    demand(ended.status in (0, -signal.SIGKILL), f"the victim failed: {ended.traceback}")
    died = ended.status != 0
    lost_by_victim = bool(testbed.told(3))
    if not lost_by_victim:
        _lose(testbed, node, way.gone)
    outcome = testbed.told(2)
    unclear = died or outcome == LOST
    possible = {operation.before, operation.after} if unclear else {operation.after}
    if testbed.store.losses_survived:
        demand(outcome != LOST, f"the operation raised NodeFailed for node {node}")
        testbed.aftermath(operation, possible, ("recover", "work")[k & 1])
    else:
        with within(PATIENCE_S, "the survivor"):
            _aftermath(testbed, operation, possible, node)
    return lost_by_victim if way.by_victim else died


def _lose(testbed: StoreTestbed, node: int, gone: bool) -> None:
    if gone:
        os.truncate(parse_url(testbed.url).path(node), 0)
    else:
        testbed.pool.mark_failed(node)


def _victim(
    testbed: StoreTestbed, operation: Operation, k: int, node: int, way: Way
) -> Callable[[int, int], None]:
    """As `StoreTestbed.victim`. Word 3 of `shared`: whether it lost the node."""
    pool, store = testbed.stopping
    testbed.shared[:] = bytes(64)

    def at_step() -> None:
        if way.by_victim:
            testbed.tell(3, 1)
            if way.gone:
                os.truncate(parse_url(testbed.url).path(node), 0)
            else:
                pool.endpoint.store(NODE_STATES + 8 * node, 1)
        if way.killed:
            os.kill(os.getpid(), signal.SIGKILL)

    def target(slot: int, incarnation: int) -> None:
        look_away(pool)
        operation.warm(pool, store)
        pool.endpoint.interrupt = at_step
        pool.endpoint.stop_at = k
        outcome = ENDED
        try:
            operation.run(pool, store)
        except KeyError:
            outcome = MISSED
        except NodeFailed as error:
            demand(error.node == node, f"node {node} is lost, not {error.node}: {error}")
            outcome = LOST
        pool.endpoint.stop_at = 0
        testbed.tell(2, outcome)
        os._exit(0)

    return target


def _aftermath(
    testbed: StoreTestbed, operation: Operation, possible: set[bytes | None], node: int
) -> None:
    """Demands on a store that does not survive the loss, and on the pool around it."""
    served = _served(testbed, possible, node)
    with _bearing(node):
        operation.finish(testbed.pool, testbed.store)
    testbed.pool.recover()
    again = _served(testbed, possible, node)
    demand(served == again, f"recovery changed what is served: {served} became {again}")
    demand(len(served.keys() - {KEY}) > 0, "no other key is served any more")
    for key in testbed.bystanders:
        if key in served:
            testbed.store.put(key, b"rewritten")
            demand(testbed.store.get(key) == b"rewritten", f"a put of {key!r} was lost")
    if KEY in served:
        testbed.work({served[KEY]})
    with _bearing(node):
        testbed.store.check()
    testbed.account(len(testbed.handles))


def _served(
    testbed: StoreTestbed, possible: set[bytes | None], node: int
) -> dict[bytes, bytes | None]:
    """The keys that are served, with their values; the others are on the lost node."""
    found = {}
    for key in (KEY, *testbed.bystanders):
        due: set[bytes | None] = possible if key == KEY else {OLD}
        with _bearing(node):
            value = testbed.store.get(key)
            demand(value in due, f"{key!r} has {short(value)}")
            found[key] = value
    return found


@contextlib.contextmanager
def _bearing(node: int) -> Iterator[None]:
    """Accept NodeFailed for this node."""
    try:
        yield
    except NodeFailed as error:
        demand(error.node == node, f"node {node} is lost, not {error.node}: {error}")
