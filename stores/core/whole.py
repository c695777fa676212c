"""The common parts of the checks of several kinds of stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from limpet.shm.errors import NodeFailed


def check_each(tables: Iterable[int], check: Callable[[int], object]) -> None:
    """Check every table. NodeFailed, in the end: one is lost with its node, and nothing is wrong
    with the others."""
    lost = None
    for table in tables:
        try:
            check(table)
        except NodeFailed as error:
            lost = error
    if lost is not None:
        raise lost


def wrong_with_object(store: Any, reference: int, key: bytes, what: str) -> str:
    """The fault of an object that is linked for a key, or "" if it has none. `what`: its name in
    the message."""
    objects = store.objects
    if not store.heap.plausible(reference):
        return f"the {what} of {key!r} is no object in memory"
    if not store.heap.used(reference):
        return f"the {what} of {key!r} is not in use"
    objects.load(reference)
    if not objects.fits(reference) or not objects.intact() or objects.key() != key:
        return f"the {what} of {key!r} is not what was written"
    return ""
