"""False expiries of locks in virtual time: more drift makes fewer, and the dead are met later."""

from __future__ import annotations

import dataclasses

import pytest

from limpet.bench.figures import expiry
from limpet.bench.figures.expiry import Setting

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

HOT = Setting(0, 0, objects=1, clients=8, transactions=15, late=0.1, skew_us=2000, seed=2)
MANY = dataclasses.replace(HOT, drift_us=1000, locks=12, objects=24, clients=5, transactions=5)


def test_equal_settings_give_equal_results_and_other_seeds_others() -> None:
    found = expiry.run_setting(HOT)
    assert found == expiry.run_setting(HOT)
    assert found != expiry.run_setting(dataclasses.replace(HOT, seed=1))
    assert found.transactions == 8 * 15
    assert found.blocked_ns is None


def test_locks_of_the_living_expire_unless_the_lease_allows_for_skew_and_lateness() -> None:
    assert expiry.run_setting(HOT).expired >= 3
    assert expiry.run_setting(dataclasses.replace(HOT, drift_us=100_000)).expired == 0


def test_clocks_that_differ_make_locks_expire() -> None:
    alike = dataclasses.replace(HOT, drift_us=8000, skew_us=0.0, late=0.02)
    assert expiry.run_setting(alike).expired == 0
    assert expiry.run_setting(dataclasses.replace(alike, skew_us=20_000.0)).expired > 0


def test_a_lease_that_grows_with_the_locks_expires_less() -> None:
    fixed, growing = (
        expiry.run_setting(dataclasses.replace(MANY, each_us=each)) for each in (0, 5000)
    )
    assert fixed.transactions == growing.transactions == 25
    assert fixed.expired > 3 * growing.expired


@pytest.mark.parametrize("locks", [1, 6])
@pytest.mark.parametrize("drift_us", [0, 3000])
def test_lock_of_the_dead_is_in_the_way_for_its_lease(drift_us: int, locks: int) -> None:
    found = expiry.run_setting(expiry.died(Setting(drift_us, 100, locks)))
    assert found.blocked_ns is not None
    lease_ns = 1000 * (drift_us + 100 * locks)
    assert 0.9 * lease_ns <= found.blocked_ns < lease_ns + 500_000
    assert found.expired == 1
    assert found.transactions == 4 * 20
