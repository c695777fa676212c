"""Known-bad variants that scenarios show, step by step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import limpet


def require_caught(
    in_force: Callable[[Any], AbstractContextManager[Any]],
    unchanged: Any,
    mutant: Any,
    scenario: Callable[[Any], object],
    pools: Any,
) -> None:
    """The scenario holds with the shipped code, in the same form as the variant; not with that.

    `in_force` makes pools have a variant; `unchanged` is the one that changes nothing.
    """
    with in_force(unchanged):
        scenario(pools)
    with in_force(mutant), pytest.raises((AssertionError, limpet.StoreCorrupt)):
        scenario(pools)
