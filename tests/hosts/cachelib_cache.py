"""cachelib's tests of SimpleCache, on limpet's cache."""

from __future__ import annotations

import os

import pytest
from test_simple_cache import TestSimpleCache

import limpet
from limpet.adapters.cachelib import LimpetCache

POOL = f"shm://test-{os.getpid()}-hosts"
OWN = (
    "test_threshold",
    "test_prune_old_entries",
    "test_threshold_zero_defaults_to_500",
    "test_concurrent_set_no_data_corruption",
    "test_concurrent_inc_is_consistent",
    "test_concurrent_get_set_preserves_valid_shared_values",
)
"""They look into SimpleCache's dict, or replace its serializer."""


@pytest.fixture(autouse=True)
def cache_factory(request):
    made = []

    def factory(self, *args, **kwargs):
        cache = LimpetCache(f"{POOL}/c", *args, **kwargs)
        cache.clear()
        made.append(cache)
        return cache

    request.cls.cache_factory = factory


@pytest.fixture(scope="session", autouse=True)
def pool():
    yield
    limpet.destroy(POOL)


class TestLimpetCache(TestSimpleCache):
    pass


for name in (name for name in dir(TestLimpetCache) if name in OWN):
    setattr(TestLimpetCache, name, None)
del TestSimpleCache
