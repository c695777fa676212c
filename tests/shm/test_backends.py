"""The suite that every backend passes: posix, file and dax, and a toy that is one file of tests.

`CHECKS` are functions of a location where nothing is yet. A new backend gets them, and a pool that
works on it, by a row of `PLACES`. Backends that break a promise are caught by the same functions.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kit.segments import SCHEMES, location_on, make_device, packed
from toy_backend import MemfdPlace, Memfds, _pools

import limpet
from limpet.shm.backends import dax, inventory, node, segments
from limpet.shm.backends.backend import Location
from limpet.shm.backends.location import parse_url, register, unregister
from limpet.shm.backends.superblock import ABSENT, CREATING, MAGIC
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import (
    ParameterError,
    PoolError,
    PoolExists,
    PoolIncomplete,
    PoolNotFound,
    PoolPermission,
)

CONTROL_SIZE = 64 << 10
NODE_SIZE = 256 << 10
INDICES = (CONTROL_NODE, 0, 1)


@contextlib.contextmanager
def toy(kind: type[Memfds] = Memfds) -> Iterator[Location]:
    register(kind)
    name = f"test_{uuid.uuid4().hex}"
    try:
        yield parse_url(f"toy://{name}")
    finally:
        unregister(kind)
        for fd in _pools.pop(name, {}).values():
            os.close(fd)


PLACES: dict[str, Callable[[], Any]] = {
    **{scheme: lambda scheme=scheme: location_on(scheme) for scheme in SCHEMES},
    "toy": toy,
}


@pytest.fixture(params=PLACES)
def location(request: pytest.FixtureRequest) -> Iterator[Location]:
    with PLACES[request.param]() as place:
        yield place


def made(location: Location) -> dict[int, node.MemoryNode]:
    """The segments of a new pool, without their superblocks."""
    sizes = {CONTROL_NODE: CONTROL_SIZE, 0: NODE_SIZE, 1: NODE_SIZE}
    return {index: node.create(location, index, size) for index, size in sizes.items()}


def published(location: Location) -> bytes:
    """A pool of two nodes that is complete, and that no client has open; its uuid."""
    pool = uuid.uuid4().bytes
    segments = made(location)
    for index in (1, 0, CONTROL_NODE):
        segment = segments[index]
        segment.map[4096:] = bytes(segment.size - 4096)
        node.publish(segment, packed(segment, pool))
        segment.close()
    return pool


def close(*segments: node.MemoryNode) -> None:
    for segment in segments:
        segment.close()


# ---- what every backend does ------------------------------------------------------------------


def check_url_gives_the_location_again(location: Location) -> None:
    assert location.url.startswith(f"{location.scheme}://")
    assert parse_url(location.url) == location
    assert str(location) == location.url
    assert parse_url(location.url).segment(1) == f"{location.url} node 1"
    assert location.path(0) is not None


def check_nothing_is_there_at_first(location: Location) -> None:
    with pytest.raises(PoolNotFound):
        node.unlink_all(location)
    assert location.generations(0) == []
    assert location.usage() is None


def check_plan_fits(location: Location) -> None:
    plan = location.plan(2, NODE_SIZE, lambda memory: CONTROL_SIZE - 100)
    assert (plan.nodes, plan.node_size, plan.control_size) == (2, NODE_SIZE, CONTROL_SIZE)
    with pytest.raises(ParameterError):
        location.plan(2, NODE_SIZE + 1, lambda memory: CONTROL_SIZE)


def check_a_new_segment_is_not_complete(location: Location) -> None:
    segments = made(location)
    for index, segment in segments.items():
        assert segment.map[:8] in (ABSENT, CREATING)
        assert not segment.zeroed or not any(segment.map[8:])
        assert segment.stat_size() >= segment.size
        with pytest.raises(PoolIncomplete):
            node.open_(location, index)
    close(*segments.values())


def check_create_is_exclusive(location: Location) -> None:
    close(*made(location).values())
    with pytest.raises(PoolExists):
        node.create(location, CONTROL_NODE, CONTROL_SIZE)
    node.unlink_all(location)
    published(location)
    with pytest.raises(PoolExists):
        node.create(location, CONTROL_NODE, CONTROL_SIZE)


def check_one_of_many_creators_wins(location: Location) -> None:
    start, won, lost, broken = threading.Barrier(4), [], [], []

    def claim() -> None:
        start.wait()
        try:
            won.append(node.create(location, CONTROL_NODE, CONTROL_SIZE))
        except PoolExists as error:
            lost.append(error)
        except PoolError as error:
            broken.append(error)  # another creator took away the segment meanwhile

    racers = [threading.Thread(target=claim) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    close(*won)
    assert (len(won), len(lost), broken) == (1, 3, [])


def check_an_opened_segment_cannot_be_written(location: Location) -> None:
    pool = published(location)
    for index in INDICES:
        at = location.place(index)
        fd = at.open()
        try:
            with pytest.raises(PermissionError):
                mmap.mmap(fd, mmap.ALLOCATIONGRANULARITY, offset=at.offset)
            assert at.read(fd, 8) == MAGIC
            assert at.size(fd) >= (CONTROL_SIZE if index == CONTROL_NODE else NODE_SIZE)
            assert at.owner(fd, "here") in (os.geteuid(), None)
        finally:
            os.close(fd)
        assert node.probe(location, index, uuid=pool).index == index


def check_two_mappings_share_memory(location: Location) -> None:
    pool = published(location)
    for index in INDICES:
        one, _ = node.open_(location, index, uuid=pool)
        two, _ = node.open_(location, index, uuid=pool)
        one.map[one.size - 8 :] = b"%8d" % index
        assert two.map[two.size - 8 :] == b"%8d" % index
        assert one.place.read(one.fd, 8, one.size - 8) == b"%8d" % index
        assert two.back(0, two.size)
        close(one, two)
    for index in INDICES:  # and they are not each other's
        one, _ = node.open_(location, index, uuid=pool)
        assert one.map[one.size - 8 :] == b"%8d" % index
        close(one)


def check_segments_are_removed_with_the_control_segment_last(location: Location) -> None:
    published(location)
    held, _ = node.open_(location, 1)
    assert [index for index, _ in location.removable(False)] == [0, 1, CONTROL_NODE]
    assert node.unlink_all(location) == [location.segment(index) for index in (0, 1, CONTROL_NODE)]
    assert location.usage() is None
    held.map[8192:8200] = b"still ok"  # a mapping stays
    close(held)
    for index in INDICES:
        with pytest.raises(PoolNotFound):
            node.open_(location, index)
    with pytest.raises(PoolNotFound):
        location.removable(False)
    published(location)


def check_what_is_left_of_a_creation_is_removed(location: Location) -> None:
    control = node.create(location, CONTROL_NODE, CONTROL_SIZE)
    close(control, node.create(location, 0, NODE_SIZE))
    assert [index for index, _ in location.removable(False)] == [0, CONTROL_NODE]
    node.unlink_all(location)
    for segment in made(location).values():
        node.discard(segment)
    close(*made(location).values())


def check_another_users_pool_is_left_alone(location: Location) -> None:
    published(location)
    another = os.geteuid() + 1
    with mock.patch.object(os, "geteuid", return_value=another):
        for refused in (
            lambda: node.open_(location, CONTROL_NODE),
            lambda: node.unlink_all(location),
        ):
            with pytest.raises(PoolPermission):
                refused()
        options = node.NodeOptions(any_owner=True)
        close(node.open_(location, CONTROL_NODE, options=options)[0])
        assert len(node.unlink_all(location, any_owner=True)) == 3


def check_a_node_gets_new_memory(location: Location) -> None:
    pool = published(location)
    old, _ = node.open_(location, 1)
    new = node.create(location, 1, NODE_SIZE, generation=1)
    assert location.generations(1) == ([] if location.reuses_memory else [0, 1])
    node.publish(new, packed(new, pool))
    new.map[8192:8200] = b"new life"
    again, _ = node.open_(location, 1, generation=1)
    assert again.map[8192:8200] == b"new life"
    assert (old.map[8192:8200] == b"new life") == location.reuses_memory
    close(old, new, again)
    removed = node.unlink_all(location)
    assert removed == [location.segment(index) for index in (0, 1, CONTROL_NODE)]


def check_a_pool_is_listed(location: Location) -> None:
    published(location)
    row = {"url": location.url, "nodes": 2, "uid": os.geteuid(), "status": "ok"}
    assert node.list_pools(location.url) == [{**row, "bytes": CONTROL_SIZE + 2 * NODE_SIZE}]
    found = [place.url for place in type(location).everywhere()]
    assert not found or location.url in found
    assert all(one["status"] == "ok" for one in node.list_pools() if one["url"] == location.url)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_backend(location: Location, check: Callable[[Location], None]) -> None:
    check(location)


# ---- a pool on it -----------------------------------------------------------------------------


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[str]:
    """Where a pool of three nodes of 2 MiB fits."""
    if request.param != "dax":
        with PLACES[request.param]() as place:
            yield place.url
        return
    devices = [make_device(tmp_path, f"dax{number}.0", 4 << 20) for number in range(3)]
    with mock.patch.object(dax, "SYSFS", tmp_path / "sys"):
        yield "dax://" + ",".join(map(str, devices))


def test_pool_works_on_every_backend(url: str) -> None:
    values = {b"%d" % number: b"value" * number for number in range(50)}
    with limpet.create(url, nodes=3, node_size=2 << 20, clients=8) as pool:
        with pytest.raises(PoolExists):
            limpet.create(url, nodes=3, node_size=2 << 20)
        store = pool.store("fusee", replicas=2, capacity=100)
        store.put_many(values)
        pool.fail_node(1)
        assert pool.replace_node(1)["generation"] == 1
        with limpet.open(url) as other:
            assert dict(other.store("fusee").items()) == values
        store.check()
        assert pool.audit()["leaked"] == 0
    (row,) = node.list_pools(url)
    assert (row["url"], row["nodes"], row["status"]) == (url, 3, "ok")
    assert len(limpet.destroy(url)) == 4
    assert [row for row in node.list_pools() if row["url"] == url] == []
    with pytest.raises(PoolNotFound):
        limpet.open(url)


# ---- the registry -----------------------------------------------------------------------------


def test_scheme_has_one_backend() -> None:
    class Another(Memfds):
        pass

    with toy() as place:
        register(Memfds)
        with pytest.raises(ParameterError, match="toy:// is the scheme of another"):
            register(Another)
        assert type(parse_url(place.url)) is Memfds
    with pytest.raises(ParameterError, match="is not a pool's URL; write shm://NAME, file:///DIR"):
        parse_url(place.url)


# ---- backends that break a promise are caught ---------------------------------------------------


class NotExclusive(Memfds):
    """Each creator of a segment gets one, in the place of the one that was there."""

    turn = threading.Lock()
    """Held from the removal to the creation: no other creator comes in between and loses."""

    def create(self, index: int, size: int, options: Any, generation: int = 0) -> Any:
        with self.turn:
            inventory._remove(self, index, generation)
            return super().create(index, size, options, generation)


class WritableToReaders(Memfds):
    """Descriptors for looks can write."""

    def place(self, index: int, generation: int = 0) -> Any:
        class Writable(MemfdPlace):
            def open(self) -> int:
                return os.dup(_pools[self.key[0]][self.key[1]])

        return Writable(self.name, index, generation)


class ControlFirst(Memfds):
    """The lock on the name goes before the nodes do."""

    def removable(self, any_owner: bool) -> list[tuple[int, int]]:
        return super().removable(any_owner)[::-1]


class Shared(Memfds):
    """Nodes 0 and 1 are the same memory."""

    def place(self, index: int, generation: int = 0) -> Any:
        return super().place(0 if index == 1 and len(_pools[self.name]) > 2 else index, generation)


class Anybodys(Memfds):
    """Pools of other users are removed, too."""

    def removable(self, any_owner: bool) -> list[tuple[int, int]]:
        return super().removable(True)


class OldMemory(Memfds):
    """A node that is replaced gets the memory that it had."""

    def place(self, index: int, generation: int = 0) -> Any:
        return super().place(index, 0)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (NotExclusive, check_one_of_many_creators_wins),
        (WritableToReaders, check_an_opened_segment_cannot_be_written),
        (ControlFirst, check_segments_are_removed_with_the_control_segment_last),
        (Shared, check_two_mappings_share_memory),
        (Anybodys, check_another_users_pool_is_left_alone),
        (OldMemory, check_a_node_gets_new_memory),
    ],
)
def test_trap_backend_that_breaks_a_promise_is_caught(
    kind: type[Memfds], check: Callable[[Location], None]
) -> None:
    with toy() as place:
        check(place)
    with (
        toy(kind) as place,
        pytest.raises((AssertionError, pytest.fail.Exception, limpet.LimpetError)),
    ):
        check(place)


@pytest.mark.parametrize("kept", [False, True])
def test_a_pool_that_is_refused_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """As a durable pool where memory does not survive a power cut. Folders of others stay."""

    def refused(*arguments: Any) -> None:
        raise limpet.ParameterError("refused")

    monkeypatch.setattr(segments, "_format", refused)
    if kept:
        (tmp_path / "outer").mkdir()
    with pytest.raises(limpet.ParameterError, match="refused"):
        limpet.create(f"file://{tmp_path}/outer/inner/pool", node_size="2MiB")
    assert [path.name for path in tmp_path.rglob("*")] == (["outer"] if kept else [])
