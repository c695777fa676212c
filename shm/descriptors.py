"""A process that has no descriptor left gets a `ClientError` that says so, and no OSError.

A handle needs descriptors when it is opened (probe.py), becomes a client in a forked child
(life_locks.py), maps a node that was replaced, or, of a `clover` store, connects. The step that
needed one is undone, and can be done again when there are descriptors.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

from limpet.shm.errors import ClientError

NONE_LEFT: Final = (
    "this process has no descriptor left; close some, or raise its limit (`ulimit -n`)"
)


@contextlib.contextmanager
def descriptors_needed(url: str) -> Iterator[None]:
    """Raise ClientError where the body fails since there is no descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise ClientError(f"{url}: {NONE_LEFT} ({error})") from error
