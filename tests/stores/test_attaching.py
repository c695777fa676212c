"""Attaching to what is there: without repeating its parameters, and by what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from kit.processes import gather

import limpet
from limpet.shm.endpoint.fabric import flush_features
from limpet.stores.channels.manager import Manager
from limpet.stores.registry import KINDS

CHANNELS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "queue": ((2000,), {"codec": "json", "item_size": 40}),
    "ring": (("64KiB",), {"codec": "bytes", "overrun": "skip"}),
    "lock": ((), {"recursive": True, "places": 4, "overtaking": False}),
    "array": ((10,), {"dtype": "d"}),
}
OTHERS: dict[str, dict[str, Any]] = {
    "queue": {"codec": "pickle"},
    "ring": {"overrun": "block"},
    "lock": {"recursive": False},
    "array": {"dtype": "q"},
}


@pytest.mark.parametrize("what", CHANNELS)
def test_a_channel_that_is_there_is_attached_to_by_its_name(pools: Any, what: str) -> None:
    pool = pools()
    given, named = CHANNELS[what]
    made = getattr(pool, what)("x", *given, **named)
    assert getattr(pool, what)("x") is made
    again = pools.again(pool)
    found = getattr(again, what)("x")
    assert found.parameters == made.parameters
    assert getattr(again, what)("x", *given, **named) is found
    with pytest.raises(limpet.StoreMismatch):
        getattr(pools.again(pool), what)("x", **OTHERS[what])
    with pytest.raises(limpet.StoreMismatch):
        getattr(again, what)("x", **OTHERS[what])


def test_a_worker_attaches_to_the_queue_of_another_process(pools: Any) -> None:
    pool = pools()
    pool.queue("jobs", 2000, codec="json").put([1, 2])
    assert gather(lambda: limpet.open(pool.url).queue("jobs").get(timeout=5)) == [[1, 2]]


@pytest.mark.parametrize("what", ["queue", "ring", "lock"])
def test_a_channel_that_is_not_there_is_made_with_the_usual_parameters(
    pools: Any, what: str
) -> None:
    pool = pools()
    made = getattr(pool, what)("x")
    assert all(value is not None for value in made.parameters.values())


def test_an_array_that_is_not_there_needs_a_shape(pools: Any) -> None:
    pool = pools()
    with pytest.raises(limpet.ParameterError, match=r"no array 'x'.*shape"):
        pool.array("x")
    with pytest.raises(limpet.ParameterError, match=r"no array 'x'.*shape"):
        pool.array("x", dtype="d")
    assert list(pool.array("x", 3)) == [0, 0, 0]


def test_a_channel_that_another_process_makes_meanwhile_is_attached_to(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools()
    look, other = Manager.parameters_of, pools.again(pool)
    looks = []

    def before(self: Manager, cls: Any, name: str) -> dict[str, Any]:
        found = look(self, cls, name)
        if not looks:
            looks.append(name)
            other.channels.open(cls, name, maxsize=7, item_size=8, codec="json")
        return found

    monkeypatch.setattr(Manager, "parameters_of", before)
    assert pool.queue("x").maxsize == 7
    assert pool.queue("x", item_size=8).codec == "json"


@pytest.mark.parametrize("same", [1 << 16, "64KiB", "65536", "0.0625MiB"])
def test_a_size_is_what_it_means(pools: Any, same: Any) -> None:
    pool = pools()
    made = pool.ring("r", "64KiB")
    assert pool.ring("r", same) is made
    assert pools.again(pool).ring("r", same).size == 1 << 16
    with pytest.raises(limpet.StoreMismatch):
        pool.ring("r", "64KB")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_parameter_that_a_kind_does_not_have_is_named_with_those_that_it_has(
    pools: Any, kind: str
) -> None:
    if kind == "channels":
        pytest.skip("it is made by itself")
    with pytest.raises(limpet.ParameterError) as caught:
        pools(nodes=3).store(kind, capcity=5)
    said = str(caught.value)
    article = "an" if kind.startswith("rtx") else "a"
    assert f"{article} {kind} store has no parameter capcity; it has " in said
    assert "capacity" in said
    assert "for_pool" not in said
    assert not any(name in said for name in KINDS[kind].fixed)


@pytest.mark.skipif(
    limpet.build == "pure" or "clflushopt" not in flush_features(),
    reason="this build or CPU refuses memory without coherence",
)
@pytest.mark.parametrize("kind", ["race", "rtx-race", "rtx-sherman", "fusee", "loco", "cache"])
def test_forked_child_takes_no_memory_of_its_parents(kind: str, pools: Any) -> None:
    """Also where part of the memory is not coherent: then stores have an allocator of their own."""
    pool = pools(node_size="16MiB", coherent=False, coherent_bytes="8MiB")
    store = pool.store(kind, name="test", **({} if kind == "cache" else {"capacity": 1000}))
    store.put(b"before", bytes(40))
    keys = [b"child %d" % number for number in range(20)]

    def child() -> bool:
        for key in keys:
            store.put(key, key * 4)
        return True

    assert gather(child) == [True]
    for number in range(20):
        store.put(b"parent %d" % number, bytes(40))
    assert [store.get(key) for key in keys] == [key * 4 for key in keys]
    store.check()
    pool.recover()
    assert pool.audit()["leaked"] == 0
