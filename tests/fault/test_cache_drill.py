"""Short runs of the cache's drill, and that each verdict can fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from kit.mutants import cache as mutants
from kit.waiting import long_enough

from limpet.__main__ import main
from limpet.fault.drill import cache_drill
from limpet.fault.drill.cache_drill import (
    BOUNDS,
    CHECKS,
    DEADLINES,
    FLIGHTS,
    CacheDrillParameters,
    CacheDrillReport,
)
from limpet.stores.cache.cache import Cache

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")


class Quiet:
    """An observer that shows nothing."""

    def running(self, progress: Any) -> None:
        """Nothing to show."""

    def verifying(self, what: str) -> None:
        """Nothing to show."""

    def judging(self, done: int, total: int) -> None:
        """Nothing to show."""


def drilled(pools: Any, check: str, **given: Any) -> CacheDrillReport:
    """The report of a short drill with few keys, or of a longer one if it finds nothing wrong."""
    sizes = {"clients": 4, "kill_rate": 0.0, "keys": 30, "watch": False, **given}

    def run(seconds: float) -> CacheDrillReport:
        parameters = CacheDrillParameters(pools.url(), 1, seconds=seconds, **sizes)
        return cache_drill.run(parameters, Quiet())

    return long_enough(run, lambda report: report.checks[check], 4.5)


def test_drill_of_the_cache_holds() -> None:
    def run(seconds: float) -> dict[str, Any]:
        asked = ["drill", "cache", "--clients", "4", "--keys", "60", "--json"]
        done = CliRunner().invoke(main, [*asked, "--seconds", str(seconds)])
        found: dict[str, Any] = json.loads(done.stdout)
        # without a look at the bounds nothing was shown, and it is run for longer
        assert done.exit_code == 0 or not found["looks"], found["checks"]
        assert set(found["checks"]) == set(CHECKS)
        return found

    def has_all(found: dict[str, Any]) -> bool:
        done = [found["stats"][name] for name in ("evictions", "expirations", "computations")]
        return found["kills"] > 2 and min(found["looks"], *done) > 0

    found = long_enough(run, has_all, 3.0)
    assert has_all(found), found


def test_value_that_is_served_too_late_is_found(pools: Any, monkeypatch: Any) -> None:
    def get(self: Any, key: Any, default: Any = None) -> Any:
        return mutants.served_for_ever(self.store, self.codec.encode_key(key))

    monkeypatch.setattr(Cache, "get", get)
    sizes = {"max_items": 600, "max_bytes": 1 << 20}
    checks = drilled(pools, DEADLINES, keys=300, parameters=sizes).checks
    assert checks[DEADLINES]
    assert not checks[FLIGHTS]


def test_computation_by_all_is_found(pools: Any, monkeypatch: Any) -> None:
    def get_or_compute(self: Any, key: Any, compute: Any, **how: Any) -> Any:
        self.set(key, compute(), ttl=how["ttl"])

    monkeypatch.setattr(Cache, "get_or_compute", get_or_compute)
    assert drilled(pools, FLIGHTS).checks[FLIGHTS]


def test_cache_without_bounds_is_found(pools: Any, monkeypatch: Any) -> None:
    made = cache_drill.CacheDrill.__init__

    def wrong(self: Any, *given: Any) -> None:
        made(self, *given)
        mutants.with_ledger(self.cache.store, mutants.Unbounded)

    monkeypatch.setattr(cache_drill.CacheDrill, "__init__", wrong)
    assert drilled(pools, BOUNDS).checks[BOUNDS]
