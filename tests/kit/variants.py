"""Variants of a class that transactions use, for tests: one method is another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import limpet.stores.rtx.execution
import limpet.stores.rtx.transaction
from limpet.stores.transactions.commit import Commit
from limpet.stores.transactions.parts import Part

USED: Final = (limpet.stores.rtx.transaction, limpet.stores.rtx.execution)


def vary(patch: pytest.MonkeyPatch, cls: type, method: str, wrong: Callable[..., Any]) -> None:
    """Make transactions of users use the class with this method.

    A compiled class cannot be changed, so the name by which they make objects of it gets a class
    that derives from it; one that is not made there is changed itself. The parts that a commit
    makes are of a class that derives from Part; those of a client that repairs it are not.
    """
    if cls is Part:
        made = type("Part", (Part,), {method: wrong})

        def new_part(commit: Commit) -> Part:
            part: Part = made(commit.endpoint, 0)
            return part

        vary(patch, Commit, "new_part", new_part)
        return
    for module in USED:
        now = vars(module).get(cls.__name__)
        if isinstance(now, type) and issubclass(now, cls) and cls.__module__ != module.__name__:
            patch.setattr(module, cls.__name__, type(cls.__name__, (now,), {method: wrong}))
            return
    patch.setattr(cls, method, wrong)
