"""`limpet.adapters.dogpile`: dogpile.cache's own suites, and what processes share.

The suites are those of `dogpile.testing.fixtures`, which the package has for authors of backends.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from typing import Any

import pytest
from kit.adapters import assert_sound, with_kills
from kit.processes import Child, child, gather

import limpet
from limpet.adapters.pools import close_pool

pytest.importorskip(
    "dogpile.cache", reason="dogpile.cache is not installed: pip install 'limpet[dogpile]'"
)
from dogpile.cache import make_region
from dogpile.testing import fixtures

import limpet.adapters.dogpile

pytestmark = [
    pytest.mark.exhaustive_in_pure("the adapter is not compiled", quick=[]),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:dogpile"),
]


class OnLimpet:
    """For a suite: its backend, with a pool of the class."""

    backend = "limpet"
    url = ""

    @classmethod
    def setup_class(cls) -> None:
        cls.url = f"shm://test-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        cls.config_args = {
            "arguments": {"location": f"{cls.url}/region", "node_size": "4MiB", "clients": 16}
        }
        super().setup_class()  # type: ignore[misc]

    @classmethod
    def teardown_class(cls) -> None:
        close_pool(cls.url)
        with contextlib.suppress(limpet.PoolNotFound):
            limpet.destroy(cls.url)


class TestBackend(OnLimpet, fixtures._GenericBackendTestSuite):
    pass


class TestMutex(OnLimpet, fixtures._GenericMutexTestSuite):
    pass


class TestSerializer(
    OnLimpet, fixtures._GenericSerializerTestSuite, fixtures._GenericBackendTestSuite
):
    pass


@pytest.fixture
def arguments(location: str) -> dict[str, Any]:
    return {"location": f"{location}/region", "node_size": "4MiB", "clients": 16}


def test_location_is_asked_for() -> None:
    with pytest.raises(limpet.ParameterError, match="needs arguments"):
        make_region().configure("limpet")


def test_one_process_creates(arguments: dict[str, Any]) -> None:
    region = make_region().configure("limpet", expiration_time=60, arguments=arguments)
    region.get("opened")

    def create() -> int:
        time.sleep(0.3)
        return os.getpid()

    def use() -> Any:
        return region.get_or_create("k", create)

    assert len(set(gather(use, use, use, use))) == 1


def test_creator_that_is_killed_is_followed_at_once(arguments: dict[str, Any]) -> None:
    region = make_region().configure("limpet", expiration_time=60, arguments=arguments)
    mutex = region.backend.get_mutex("k")

    def hold() -> bool:
        return bool(region.backend.get_mutex("k").acquire())

    with child(hold=hold) as other:
        assert isinstance(other, Child)
        assert other.do("hold")
        assert mutex.locked()
        assert not mutex.acquire(False)
        other.kill()
        assert not mutex.locked()
        assert region.get_or_create("k", lambda: "mine") == "mine"


def test_mutex_of_a_parent_is_not_released_by_a_forked_child(arguments: dict[str, Any]) -> None:
    region = make_region().configure("limpet", expiration_time=60, arguments=arguments)
    mutex, other = region.backend.get_mutex("k"), region.backend.get_mutex("k")
    assert mutex.acquire()
    assert gather(mutex.release) == [None]
    assert not other.acquire(False)
    mutex.release()
    assert other.acquire(False)
    other.release()


def test_lock_of_each_process_is_dogpiles_own(arguments: dict[str, Any]) -> None:
    region = make_region().configure("limpet", arguments={**arguments, "distributed_lock": False})
    assert region.backend.get_mutex("k") is None
    assert region.get_or_create("k", lambda: 1) == 1


def test_lock_whose_time_is_over_is_taken_over(arguments: dict[str, Any]) -> None:
    region = make_region().configure("limpet", arguments={**arguments, "lock_timeout": 0.05})
    first, second = region.backend.get_mutex("k"), region.backend.get_mutex("k")
    assert first.acquire()
    assert second.acquire()
    second.release()
    first.release()
    assert not first.locked()


def test_entry_is_gone_after_its_ttl(arguments: dict[str, Any]) -> None:
    region = make_region().configure("limpet", arguments={**arguments, "ttl": 0.05})
    region.set("k", 1)
    time.sleep(0.06)
    assert not region.get("k")


def test_killed_processes_leave_whole_values(arguments: dict[str, Any], location: str) -> None:
    region = make_region().configure("limpet", expiration_time=60, arguments=arguments)

    def work(number: int) -> None:
        found = region.get_or_create(f"k{number % 20}", lambda: [number] * 200)
        assert found == [found[0]] * 200
        region.delete(f"k{(number + 3) % 20}")

    region.get("opened")
    with_kills(work)
    assert_sound(location)
