"""Processes that fork while something is theirs; `limpet drill forks` has more."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from limpet.cli import drill_ends
from limpet.fault.drill import forks
from limpet.fault.drill.forks import USES, WAYS, Forks, Inside, Use

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled", quick=["barrier-*"])

assert drill_ends.fork.name == "forks"
QUICK = ["lock-*", "barrier-*", "*transaction-*", "cache, a *", "dict, *", "race, *", "*reader-*"]


@pytest.mark.exhaustive("every kind", quick=QUICK)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", list(USES))
def test_what_a_process_has_is_not_its_forked_childs(
    use: str, way: str, make_url: Callable[[], str]
) -> None:
    result = Forks(use, make_url()).run(way)
    assert result.ok, result.failure


def test_trap_lock_that_does_not_name_its_client_is_caught_by_the_drill(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token is private memory, of which a forked child has a copy."""

    def hold(pool: Any, inside: Inside) -> None:
        numbers, token = pool.dict("locks"), os.urandom(8)
        assert numbers.setdefault("lock", token) == token
        try:
            inside()
        finally:
            if numbers.get("lock") == token:
                del numbers["lock"]

    naive = Use(hold, lambda other: "lock" in other.dict("locks"))
    monkeypatch.setattr(forks, "USES", {"naive": naive})
    assert Forks("naive", make_url()).run("exits").ok
    for way in ("unwinds", "goes on"):
        assert "another client gets it" in Forks("naive", make_url()).run(way).failure
