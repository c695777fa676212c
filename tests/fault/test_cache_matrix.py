"""The crash matrix of the cache: its own operations at their steps; wrong caches are caught."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from kit.mutants import cache as mutants
from kit.parts import IS_LONG

from limpet.__main__ import main
from limpet.fault.matrix.cache_matrix import (
    CACHE_OPERATIONS,
    FULL,
    OWN,
    CacheTestbed,
    FullTestbed,
    run,
)
from limpet.fault.matrix.crash_matrix import DIMENSIONS, Matrix

pytestmark = pytest.mark.either_build(
    "the same lines on either build", but=["test_cache_keeps_its_promises[compute-killed]"]
)
LIMIT = 4 if IS_LONG else 2
COSTLY = {"killed twice", "stopped, killed", "node lost", "succeeded"}
"""Those of some operations will do; `make soak` has all of the cache's own."""
THOROUGH = {"compute", "hand", "incr", "take", "evict", "update"}
ROWS = [
    (name, dimension)
    for name in CACHE_OPERATIONS
    for dimension in DIMENSIONS
    if name not in FULL or dimension not in ("succeeded", "node lost")
    if dimension not in COSTLY or name in THOROUGH or (IS_LONG and name in {*OWN, *FULL})
]


@pytest.mark.exhaustive(
    "every operation in every dimension",
    quick=["compute-killed", "evict-killed", "evict-stopped, wait", "hand-killed"],
)
@pytest.mark.parametrize(("name", "dimension"), ROWS)
def test_cache_keeps_its_promises(name: str, dimension: str) -> None:
    (result,) = (one for one in run("cache", [name], LIMIT, [dimension]) if one.operation == name)
    assert result.failures == ()
    assert result.tried >= min(result.steps, 2)


def wrong_ledger(base: type[CacheTestbed], kind: Any) -> Any:
    class Testbed(base):  # type: ignore[misc, valid-type]
        def __init__(self, *given: str) -> None:
            super().__init__(*given)
            mutants.with_ledger(self.store, kind)

    return Testbed


def wrong_method(method: str, wrong: Any) -> Any:
    class Testbed(CacheTestbed):
        def __init__(self, *given: str) -> None:
            super().__init__(*given)
            self.store = mutants.Wrong(self.store, method, wrong)

    return Testbed


@pytest.mark.parametrize("kind", mutants.LEDGERS)
def test_wrong_ledger_is_caught(kind: Any) -> None:
    result = Matrix("cache", LIMIT, wrong_ledger(FullTestbed, kind)).run(FULL["evict"], "killed")
    assert result.verdict == "FAILED"


def test_flight_that_is_not_taken_over_is_caught() -> None:
    testbed = wrong_method("begin_flight", mutants.not_taken_over)
    result = Matrix("cache", LIMIT, testbed).run(OWN["compute"], "killed")
    assert any("stuck" in failure for failure in result.failures)


def test_command_accepts_the_cache_and_its_operations() -> None:
    asked = ["drill", "matrix", "cache", "--op", "evict", "--only", "killed", "--limit", "4"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    assert "evict" in done.output
    done = CliRunner().invoke(main, ["drill", "matrix", "race", "--op", "evict"])
    assert done.exit_code == 2
