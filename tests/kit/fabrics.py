"""Shared parts of the tests of the fabric: both builds, endpoints over plain memory."""

import mmap
import os
from collections.abc import Iterator
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
