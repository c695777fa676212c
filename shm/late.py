"""Parts of limpet that are imported when they are first used, so that `import limpet` is quick.

Such an import happens within a call of a user's, so a signal handler, a fork or another thread may
come in between. For all of them it is whole, or has not begun:

- It runs in a thread in which no signal handler runs (uninterrupted.py). An exception of a handler
  goes on when the import is over; a handler that uses the same part waits, and does not find half
  of a module.
- A fork waits for it. Else the child would have half of a module, and the module's lock, held by a
  thread that the child has not.

Callers import before an operation begins: it takes milliseconds, or with a slow disk seconds, and
others may wait for what an operation holds.
"""

from __future__ import annotations

import functools
import logging  # noqa: F401  ORDER: a fork takes its lock after ours, as the hook of `late` is later
import os
import sys
import threading
from importlib import import_module
from typing import Any, Final

from limpet.shm.uninterrupted import uninterrupted

_imported: Final[dict[str, Any]] = {}
_importing = threading.RLock()


def late(module: str) -> Any:
    """That module of limpet, imported now if it was not."""
    found = _imported.get(module)
    if found is None or sys.modules.get(module) is not found:
        found = uninterrupted(functools.partial(_import, module))
    return found


def _import(module: str) -> Any:
    with _importing:
        found = _imported[module] = import_module(module)
    return found


def _renew() -> None:
    global _importing
    _importing = threading.RLock()


os.register_at_fork(
    before=lambda: _importing.acquire(),
    after_in_parent=lambda: _importing.release(),
    after_in_child=_renew,
)
