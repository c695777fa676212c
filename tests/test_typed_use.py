"""The public types as a program sees them: `make lint` has mypy check this file, too.

`assert_type` fails in mypy when an expression has another type; here the same lines run.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

import pytest

import limpet

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: object, kind: object) -> object:
        return value


pytestmark = pytest.mark.exhaustive_in_pure("types do not depend on the build", quick=[])


@dataclasses.dataclass
class Config:
    host: str
    port: int = 80


@pytest.fixture
def pool(pools: Any) -> limpet.Pool:
    made: limpet.Pool = pools(node_size="4MiB")
    return made


def test_types_of_a_mapping(pool: limpet.Pool) -> None:
    configs: limpet.SharedDict[str, Config] = pool.dict("configs")
    configs["a"] = Config("one")
    assert_type(configs["a"], Config)
    assert_type(configs.get("a"), Config | None)
    assert_type(configs.get("b", 0), Config | int)
    assert_type(list(configs), list[str])
    assert_type(configs.setdefault("a", Config("two")), Config)
    assert_type(configs.update_with("a", lambda found: dataclasses.replace(found, port=81)), Config)
    assert_type(configs.compare_and_set("a", Config("one", 81), Config("three")), bool)
    assert_type(configs.copy(), dict[str, Config])
    assert_type(configs.pop("a"), Config)
    assert_type(configs.pop("a", None), Config | None)
    configs["b"] = Config("four")
    assert_type(configs.popitem(), tuple[str, Config])
    assert len(configs) == 0


def test_types_of_a_cache(pool: limpet.Pool) -> None:
    pages: limpet.Cache[int, str] = pool.cache("pages", max_items=10)
    pages.set(1, "one", ttl=1, tags=["t"])
    assert_type(pages[1], str)
    assert_type(pages.get(2), str | None)
    assert_type(pages.gets(1), tuple[str | None, int])
    assert_type(pages.get_many([1, 2]), dict[int, str])
    assert_type(pages.get_or_compute(3, lambda: "three"), str)
    pages.set(2, "two", ttl=datetime.timedelta(minutes=1), stale=0.5)
    assert_type(pages.expires_in(2), float | None)
    assert_type(pages.pop(1, None), str | None)
    with pages.lock(1) as lock:
        assert_type(lock.locked(), bool)

    @pages.memoize(key=lambda number: number + 10)
    def page(number: int) -> str:
        return str(number)

    assert_type(page(5), str)
    assert pages[15] == "5"


def test_types_of_a_pool(pool: limpet.Pool) -> None:
    with limpet.open(pool.url, create=True, node_size="4MiB", clients=16) as again:
        assert_type(again, limpet.Pool)
        assert_type(again.transaction(lambda tx: 7), int)
        assert_type(again.counter("n").add(2), int)
        assert_type(again.parameters.lease, float)
    with limpet.temporary(node_size="1MiB", lease=1) as short:
        assert_type(short, limpet.Pool)


if TYPE_CHECKING:

    def refused(pool: limpet.Pool) -> None:
        """Lines that mypy must refuse: an ignore that is not needed is an error."""
        configs: limpet.SharedDict[str, Config] = pool.dict("configs")
        configs["a"] = 1  # type: ignore[assignment]
        configs[1]  # type: ignore[index]
        pages: limpet.Cache[int, str] = pool.cache("pages")
        pages.set(1, b"one")  # type: ignore[arg-type]
        pages.set(1, "one", ttl="1s")  # type: ignore[arg-type]
        limpet.create("shm://site", lease="1s")  # type: ignore[arg-type]
        limpet.create("shm://site", lease_us=1)  # type: ignore[call-arg]
        limpet.temporary(durable=True)  # type: ignore[call-arg]
        limpet.open("shm://site", create=1)  # type: ignore[arg-type]
