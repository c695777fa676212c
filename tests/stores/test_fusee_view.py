"""Changes of the view step by step: nobody acts on a new one while others are in the old one."""

from __future__ import annotations

from typing import Any

import pytest
from endpoint_tools import Interrupted, WatchedEndpoint, WatchedPool

from limpet.shm.layout import CONTROL_NODE, NODE_SHIFT


class Impatient(WatchedEndpoint):
    """Whoever waits for others is interrupted."""

    def pause(self, attempt: int) -> int:
        raise Interrupted


class ImpatientPool(WatchedPool):
    endpoint_class = Impatient


@pytest.mark.parametrize("fresh", ["new handle", "after len", "after an audit", "after recover"])
def test_nobody_reads_by_a_view_that_others_have_not_left(pools: Any, fresh: str) -> None:
    """A value that is on the backup only was served by a handle that found the primary lost."""
    writing = pools.keep(WatchedPool.open(pools(nodes=3).url))
    writer = writing.store("fusee", name="test", capacity=300, replicas=2)
    for number in range(3):  # so that it has memory at hand
        writer.put(b"%d" % number, b"v")
        writer.delete(b"%d" % number)
    reading = pools.keep(ImpatientPool.open(writing.url))
    reader = reading.store("fusee", name="test")
    assert reader.get(b"k") is None
    seen: list[object] = []
    cases: list[int] = []

    def lose(verb: str, address: int) -> None:
        if verb != "cas" or address >> NODE_SHIFT == CONTROL_NODE:
            return
        cases.append(address >> NODE_SHIFT)
        if len(cases) == 2:  # the backup has the object, the primary not yet
            reading.fail_node(cases[1])
            found = reader
            if fresh == "new handle":
                found = reading.store("fusee", name="test")
            elif fresh == "after len":
                seen.append(_interrupted(lambda: len(found)))
            elif fresh == "after an audit":
                reading.audit()
            else:
                reading.recover()
            seen.append(_interrupted(lambda: found.get(b"k")))

    writing.endpoint.before = lose
    writer.insert(b"k", b"v")
    assert seen
    assert set(seen) == {"waits"}
    assert writer.get(b"k") == reader.get(b"k") == b"v"
    writer.check()


def _interrupted(work: Any) -> object:
    try:
        return work()
    except Interrupted:
        return "waits"
