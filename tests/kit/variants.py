"""Variants of a class that transactions use, for tests: one method is another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import limpet.stores.rtx.transaction

USED: Final = limpet.stores.rtx.transaction


def vary(patch: pytest.MonkeyPatch, cls: type, method: str, wrong: Callable[..., Any]) -> None:
    """Have transactions of users use the class with this method.

    A compiled class cannot be changed, so the name by which they make objects of it gets a class
    that derives from it; one that is not made there is changed itself.
    """
    if vars(USED).get(cls.__name__) is cls and cls.__module__ != USED.__name__:
        patch.setattr(USED, cls.__name__, type(cls.__name__, (cls,), {method: wrong}))
    else:
        patch.setattr(cls, method, wrong)
