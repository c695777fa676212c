"""What the tests of the fabric share: both builds, endpoints over plain memory, forked children."""

import mmap
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from limpet.shm.endpoint import portable
from limpet.shm.endpoint.fabric import BUILD

if BUILD == "compiled":
    from limpet.shm.endpoint import verbs

    NATIVE: Any = verbs
    SKIP = ()
else:
    NATIVE = None
    SKIP = (pytest.mark.skip(reason="a pure build has no native fabric"),)

BOTH = [pytest.param(NATIVE, id="native", marks=SKIP), pytest.param(portable, id="portable")]
SIZE = 8192


def address(node: int, offset: int = 0) -> int:
    return node << 40 | offset


@contextmanager
def endpoint_on(fabric: Any, mapping: Any, node: int = 0, size: int = SIZE) -> Iterator[Any]:
    """An endpoint of `fabric` with one node; detached, and the mapping closed, at the end."""
    endpoint = fabric.Endpoint()
    endpoint.attach(node, mapping, size)
    try:
        yield endpoint
    finally:
        endpoint.detach()
        mapping.close()


@contextmanager
def file_mapping(size: int = SIZE) -> Iterator[tuple[int, mmap.mmap]]:
    """A descriptor of a nameless file in memory, and a mapping of it."""
    descriptor = os.memfd_create("limpet-test")
    try:
        os.truncate(descriptor, size)
        yield descriptor, mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def start_child(function: Callable[[], object]) -> int:
    """Run `function` in a forked child that ends itself after 30 s; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.alarm(30)
        function()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait_children(pids: list[int]) -> list[int]:
    """Exit codes of the children; what still runs when the test is interrupted is killed."""
    running = list(pids)
    codes = []
    try:
        while running:
            _, status = os.waitpid(running[0], 0)
            running.pop(0)
            codes.append(os.waitstatus_to_exitcode(status))
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return codes


def run_child(function: Callable[[], object]) -> int:
    return wait_children([start_child(function)])[0]
