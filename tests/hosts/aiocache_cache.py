"""Fixtures of aiocache's acceptance tests: limpet's cache in place of the one in memory."""

from __future__ import annotations

import asyncio
import os

import pytest
from aiocache import caches

import limpet
from limpet.adapters.aiocache import LimpetCache

from ..utils import KEY_LOCK, Keys

POOL = f"shm://test-{os.getpid()}-hosts"
OTHERS = (
    "TestMemoryCache",
    "test_from_url",
    "_get_types",
    "hit_miss_ratio",
    "TestMemoryOptimisticLock::test_acquire_key_builder",
)
"""Tests of SimpleMemoryCache's own arguments, attributes and URLs, of its dict, and of values that
are the same objects."""


def pytest_collection_modifyitems(config, items):
    dropped = [item for item in items if any(name in item.nodeid for name in OTHERS)]
    items[:] = [item for item in items if item not in dropped]
    config.hook.pytest_deselected(items=dropped)


@pytest.fixture(autouse=True)
def reset_caches():
    caches._caches = {}
    caches.set_config(
        {"default": {"cache": "limpet.adapters.aiocache.LimpetCache", "location": f"{POOL}/d"}}
    )


@pytest.fixture(scope="session", autouse=True)
def pool():
    yield
    limpet.destroy(POOL)


@pytest.fixture
async def memory_cache():
    async with LimpetCache(f"{POOL}/c", namespace="test") as cache:
        yield cache
        await asyncio.gather(*(cache.delete(k) for k in (*Keys, KEY_LOCK)))


@pytest.fixture
def cache(memory_cache):
    return memory_cache
