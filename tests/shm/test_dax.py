"""Device DAX, with a made-up sysfs and files standing in for devices."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kit.clients import slot_of
from kit.processes import child
from kit.segments import (
    ALIGN,
    CONTROL_SIZE,
    DEVICE_SIZE,
    NODE_SIZE,
    empty_device,
    location_on,
    make,
    make_device,
    packed,
    patch,
)

import limpet
from limpet.shm.backends import dax, node, superblock
from limpet.shm.backends.inventory import list_pools
from limpet.shm.backends.location import Location
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import (
    LimpetError,
    ParameterError,
    PoolCorrupt,
    PoolExists,
    PoolForeign,
    PoolIncomplete,
    PoolNotFound,
    PoolTruncated,
)
from limpet.stores.pool import Pool


@pytest.fixture
def location() -> Iterator[Location]:
    with location_on("dax") as place:
        yield place


def second_device(location: Location) -> Location:
    """A pool that would have its control segment on the other pool's device 1."""
    return node.parse_url(f"dax://{location.devices[1]}")


@pytest.mark.parametrize(("text", "number"), [("2097152\n", 2 << 20), ("0x200000", 2 << 20)])
def test_device_is_read_from_sysfs(location: Location, text: str, number: int) -> None:
    path = location.devices[0]
    (dax.SYSFS / path.name / "size").write_text(text)
    (dax.SYSFS / path.name / "target_node").write_text("3\n")
    assert dax.device(path) == dax.Device(path, size=number, align=ALIGN, numa_node=3)


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ("align", "0"),
        ("align", "-4096"),
        ("align", "2048"),
        ("align", "12288"),
        ("align", "big"),
        ("align", "\udcff"),
        ("size", ""),
        ("size", "-1"),
        ("size", str(ALIGN)),
    ],
)
def test_sysfs_that_makes_no_sense_is_refused(
    location: Location, attribute: str, text: str
) -> None:
    path = location.devices[0]
    (dax.SYSFS / path.name / attribute).write_text(text, errors="surrogateescape")
    with pytest.raises(PoolForeign, match=path.name):
        dax.device(path)
    with pytest.raises(PoolForeign):
        node.open_(location, CONTROL_NODE)


def test_missing_attribute_is_refused(location: Location) -> None:
    (dax.SYSFS / "dax0.0" / "align").unlink()
    with pytest.raises(PoolForeign, match="align cannot be read"):
        dax.device(location.devices[0])


def test_device_that_sysfs_does_not_know_is_not_found() -> None:
    for url in ("dax:///dev/dax77.0", "dax:///nowhere/dax0.77"):
        location = node.parse_url(url)
        with pytest.raises(PoolNotFound, match="there is no DAX device"):
            node.open_(location, CONTROL_NODE)
        with pytest.raises(PoolNotFound):
            node.create(location, CONTROL_NODE, CONTROL_SIZE)
        with pytest.raises(PoolNotFound):
            node.unlink_all(location)
        assert node.list_pools(url) == []


def test_character_device_must_have_the_number_that_sysfs_gives(location: Location) -> None:
    device = dax.device(location.devices[0])
    number = dax.SYSFS / "dax0.0" / "dev"
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        number.write_text("1:3\n")
        dax.check_identity(device, fd)
        number.write_text("252:7\n")
        with pytest.raises(PoolForeign, match="device number 1:3, sysfs says 252:7"):
            dax.check_identity(device, fd)
    finally:
        os.close(fd)


def test_what_is_neither_device_nor_file_is_refused(location: Location) -> None:
    path = location.devices[0]
    (dax.SYSFS / path.name / "dev").write_text("252:7\n")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(PoolForeign):
        node.open_(location, CONTROL_NODE)
    with pytest.raises(PoolForeign):
        node.create(location, CONTROL_NODE, CONTROL_SIZE)


def test_stand_in_that_is_too_short_is_refused(location: Location) -> None:
    os.truncate(location.devices[0], ALIGN)
    for refuse in (node.open_, node.probe):
        with pytest.raises(PoolTruncated, match=f"has only {ALIGN}"):
            refuse(location, CONTROL_NODE)


def test_device_that_disappears_has_no_bytes_left(location: Location) -> None:
    device = location.devices[0]
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        assert dax.size_now(device, fd) == DEVICE_SIZE
        (dax.SYSFS / device.name).rename(dax.SYSFS / "gone")
        assert dax.size_now(device, fd) == 0
    finally:
        os.close(fd)


def test_segments_lie_where_the_module_says(location: Location) -> None:
    pool = make(location)
    places = [(0, CONTROL_NODE, 0), (0, 0, CONTROL_SIZE), (1, 1, 0)]
    for device, index, offset in places:
        opened, _ = node.open_(location, index, uuid=pool)
        opened.map[4096:4104] = b"found it"
        opened.close()
        stored = location.devices[device].read_bytes()
        assert stored[offset : offset + 8] == superblock.MAGIC
        assert stored[offset + 4096 : offset + 4104] == b"found it"


def test_plan_shares_out_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dax, "SYSFS", tmp_path / "sys")
    large = make_device(tmp_path, "dax0.0", 8 << 20, 1 << 20)
    small = make_device(tmp_path, "dax1.0", 5 << 20, 64 << 10)

    def planned(*devices: Path, **kwargs: int | None) -> node.Plan:
        location = node.parse_url("dax://" + ",".join(map(str, devices)))
        defaults = {"nodes": None, "node_size": None, "control_size": lambda memory: 300_000}
        return node.plan(location, **{**defaults, **kwargs})  # type: ignore[arg-type]

    assert planned(large) == node.Plan(1, 7 << 20, 1 << 20)
    assert planned(large, small) == node.Plan(2, 5 << 20, 1 << 20)
    assert planned(small, large) == node.Plan(2, 4 << 20, 5 << 16)
    assert planned(large, small, nodes=2, node_size=2 << 20).node_size == 2 << 20
    for wrong in ({"nodes": 1}, {"nodes": 3}, {"node_size": 6 << 20}, {"node_size": 3 << 19}):
        with pytest.raises(ParameterError):
            planned(large, small, **wrong)
    with pytest.raises(ParameterError, match="does not fit"):
        planned(small, control_size=lambda memory: 5 << 20)


def test_create_refuses_what_does_not_fit_or_is_not_aligned(location: Location) -> None:
    for size in (ALIGN + 4096, DEVICE_SIZE + ALIGN):
        with pytest.raises(ParameterError):
            node.create(location, CONTROL_NODE, size)
    node.create(location, CONTROL_NODE, CONTROL_SIZE).close()
    with pytest.raises(ParameterError, match=f"do not fit behind the first {CONTROL_SIZE}"):
        node.create(location, 0, DEVICE_SIZE)


def test_node_0_waits_for_the_control_segment(location: Location) -> None:
    with pytest.raises(PoolNotFound):
        node.create(location, 0, NODE_SIZE)
    location.devices[0].write_bytes(b"\xa5" * DEVICE_SIZE)
    with pytest.raises(PoolForeign):
        node.create(location, 0, NODE_SIZE)
    location.devices[0].write_bytes(empty_device())
    make(location)
    with pytest.raises(PoolIncomplete, match="must be created first"):
        node.create(location, 0, NODE_SIZE)


def test_stale_superblock_of_an_earlier_life_is_not_taken_for_a_node(location: Location) -> None:
    make(location)
    old = location.devices[0].read_bytes()
    node.unlink_all(location)
    control = node.create(location, CONTROL_NODE, CONTROL_SIZE)
    with open(location.devices[0], "r+b") as file:
        file.seek(CONTROL_SIZE)
        file.write(old[CONTROL_SIZE:])
    created = node.create(location, 0, NODE_SIZE)
    with pytest.raises(PoolIncomplete):
        node.open_(location, 0)
    assert not created.zeroed
    created.close()
    control.close()


@pytest.mark.parametrize("believed", [False, True])
def test_trap_g3_stale_bytes_are_not_taken_for_zeros(
    location: Location, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool on devices full of an earlier life works, unless they are believed to be zero."""
    create = node.create

    def trusting(*args: Any, **options: Any) -> node.MemoryNode:
        made = create(*args, **options)
        made.zeroed = True
        return made

    if believed:
        monkeypatch.setattr(node, "create", trusting)
        with pytest.raises(LimpetError):
            _use(location)
        return
    _use(location)


def _use(location: Location) -> None:
    with Pool.create(location.url, clients=4) as pool:
        store = pool.store("race", name="s", capacity=16)
        assert len(store) == 0
        store.put(b"k", b"v")
        assert store.get(b"k") == b"v"
        store.check()
        assert pool.audit()["leaked"] == 0


def test_compare_and_swap_decides_between_two_creators(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dax.Devices, "_refuse_used", lambda location, overwrite: None)
    winner = node.create(location, CONTROL_NODE, CONTROL_SIZE)
    with pytest.raises(PoolExists, match="one is being created"):
        node.create(location, CONTROL_NODE, 2 * CONTROL_SIZE)
    node.create(location, 0, NODE_SIZE).close()
    node.publish(winner, packed(winner, bytes(range(16))))
    winner.close()
    assert node.probe(location, CONTROL_NODE).size == CONTROL_SIZE


def test_pool_is_not_created_over_a_device_of_another(location: Location) -> None:
    make(location)
    before = [device.read_bytes() for device in location.devices]
    other = second_device(location)
    with pytest.raises(PoolExists, match=r"dax1\.0 holds a pool already"):
        node.create(other, CONTROL_NODE, CONTROL_SIZE)
    with pytest.raises(PoolForeign, match="says that it is node 1"):
        node.open_(other, CONTROL_NODE)
    with pytest.raises(PoolForeign, match="is node 1 of another pool"):
        node.unlink_all(other)
    assert [device.read_bytes() for device in location.devices] == before


def test_nothing_is_claimed_if_a_later_device_is_taken(location: Location) -> None:
    other = second_device(location)
    control = node.create(other, CONTROL_NODE, CONTROL_SIZE)
    before = location.devices[0].read_bytes()
    with pytest.raises(PoolExists):
        node.create(location, CONTROL_NODE, CONTROL_SIZE)
    assert location.devices[0].read_bytes() == before
    control.close()


def test_unlink_all_leaves_a_device_of_another_pool(location: Location) -> None:
    first = node.parse_url(f"dax://{location.devices[0]}")
    control = node.create(first, CONTROL_NODE, CONTROL_SIZE)
    control.close()
    other = second_device(location)
    control = node.create(other, CONTROL_NODE, CONTROL_SIZE)
    node.publish(control, packed(control, bytes(range(16))))
    control.close()
    assert node.unlink_all(location) == [location.segment(CONTROL_NODE)]
    assert node.probe(other, CONTROL_NODE).uuid == bytes(range(16))


def test_unlink_all_changes_word_0_only(location: Location) -> None:
    make(location)
    before = [device.read_bytes() for device in location.devices]
    node.unlink_all(location)
    after = [device.read_bytes() for device in location.devices]
    assert after[0][:8] == after[1][:8] == after[0][CONTROL_SIZE : CONTROL_SIZE + 8] == bytes(8)
    assert after[0][8:CONTROL_SIZE] == before[0][8:CONTROL_SIZE]
    assert after[0][CONTROL_SIZE + 8 :] == before[0][CONTROL_SIZE + 8 :]
    assert after[1][8:] == before[1][8:]


@pytest.mark.parametrize("size", [0, 1, ALIGN - 1, DEVICE_SIZE, 2**64 - 1])
def test_nonsense_for_the_control_size_is_corrupt_and_can_be_destroyed(
    location: Location, size: int
) -> None:
    make(location)
    patch(location, CONTROL_NODE, superblock.SIZE_OFFSET, size.to_bytes(8, "little"))
    with pytest.raises(PoolCorrupt):
        node.open_(location, 0)
    assert node.unlink_all(location) == [location.segment(1), location.segment(CONTROL_NODE)]


def test_unused_device_is_left_alone(location: Location) -> None:
    with pytest.raises(PoolNotFound):
        node.unlink_all(location)
    for device in location.devices:
        assert device.read_bytes() == empty_device()


def test_numa_node_must_be_the_devices_own(location: Location) -> None:
    (dax.SYSFS / "dax0.0" / "target_node").write_text("1")
    with pytest.raises(ParameterError, match="is on NUMA node 1 and cannot be bound to 0"):
        node.create(location, CONTROL_NODE, CONTROL_SIZE, options=node.NodeOptions(numa_node=0))
    options = node.NodeOptions(numa_node=1)
    node.create(location, CONTROL_NODE, CONTROL_SIZE, options=options).close()


def test_a_device_is_used_again_by_a_client_that_is_alone(tmp_path: Path) -> None:
    size = 2 << 20
    devices = [make_device(tmp_path, f"dax{number}.0", 2 * size) for number in range(3)]
    url = "dax://" + ",".join(map(str, devices))
    values = {b"%d" % number: b"value" * number for number in range(50)}
    with mock.patch.object(dax, "SYSFS", tmp_path / "sys"):
        with limpet.create(url, node_size=size, clients=16) as pool:
            store = pool.store("fusee", replicas=2, capacity=100)
            store.put_many(values)
            pool.fail_node(0)
            with (
                limpet.open(url),
                pytest.raises(
                    limpet.ParameterError, match=rf"close it in {os.getpid()} \(.*\) first"
                ),
            ):
                pool.replace_node(0)
            for node in range(3):
                pool.fail_node(node)
                assert pool.replace_node(node)["generation"] == 1
                store.check()
                assert pool.audit()["leaked"] == 0
        with limpet.open(url) as pool:
            assert dict(pool.store("fusee").items()) == values
        (row,) = list_pools(url)
        assert (row["nodes"], row["status"]) == (3, "ok")
        assert len(limpet.destroy(url)) == 4


def test_pool_on_a_device_is_for_several_hosts_unless_it_is_said(tmp_path: Path) -> None:
    """For one host alone, a client of another is one from before a reboot, and dead."""
    url = f"dax://{make_device(tmp_path, 'dax0.0', 4 << 20)}"
    with mock.patch.object(dax, "SYSFS", tmp_path / "sys"):
        for given, found in (({}, True), ({"multi_host": False}, False)):
            with limpet.create(url, node_size=2 << 20, clients=16, **given) as pool:
                assert pool.parameters.multi_host is found
                with limpet.open(url) as other:
                    at = slot_of(other.client_id) + slots.BOOT
                    pool.endpoint.store(at, pool.endpoint.load(at) ^ 1)
                    dead = [] if found else [other.client_id]
                    assert pool.recover()["clients"] == dead
            limpet.destroy(url)


# ---- memory that is used again under living clients ----------------------------------------------


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a pool on two stand-ins that a test makes."""
    devices = [make_device(tmp_path, f"dax{number}.0", 4 << 20) for number in range(2)]
    with mock.patch.object(dax, "SYSFS", tmp_path / "sys"):
        yield "dax://" + ",".join(map(str, devices))


def new_pool(url: str, **given: Any) -> limpet.Pool:
    return limpet.create(url, node_size=2 << 20, clients=16, lease=0.1, **given)


@pytest.mark.parametrize("multi_host", [False, True])
def test_pool_whose_memory_is_used_again_is_not_destroyed_under_a_living_client(
    url: str, multi_host: bool
) -> None:
    """Old clients wrote into the next pool: most of its keys were wrong or missing."""
    new_pool(url, multi_host=multi_host).close()
    held: list[Any] = []

    def use() -> int:
        held.append(limpet.open(url).store("race", name="s", capacity=100))
        held[0].put(b"k", b"v")
        return os.getpid()

    with child(use=use, put=lambda: held[0].put(b"k", b"w")) as old:
        pid = old.do("use")
        with pytest.raises(limpet.ClientError, match=rf"end process {pid} .*--force"):
            limpet.destroy(url)
        old.do("put")
        with limpet.open(url) as pool:
            assert pool.store("race", name="s").get(b"k") == b"w"
        with pytest.raises(PoolExists):
            new_pool(url)
        assert len(limpet.destroy(url, force=True)) == 3
        assert old.reap() == -signal.SIGKILL
    with new_pool(url) as pool:
        assert pool.stores() == []
        assert pool.audit()["leaked"] == 0
    limpet.destroy(url)


def test_own_handle_of_a_pool_whose_memory_is_used_again_keeps_it(url: str) -> None:
    with new_pool(url), pytest.raises(limpet.ClientError, match=f"end process {os.getpid()} "):
        limpet.destroy(url, force=True)
    limpet.destroy(url)


def test_forked_child_becomes_no_client_of_the_next_pool(url: str) -> None:
    """It has the old handle, and took a client slot in the memory of the next pool."""
    old = new_pool(url)

    def use() -> str:
        with pytest.raises(PoolNotFound) as raised:
            old.stores()
        return str(raised.value)

    with child(use=use) as forked:
        old.close()
        limpet.destroy(url)
        with new_pool(url) as pool:
            assert "was destroyed" in forked.do("use")
            assert len(pool.clients()) == 1
    limpet.destroy(url)


def test_memory_with_a_living_client_of_an_earlier_pool_gets_no_new_one(url: str) -> None:
    """The earlier pool is gone by another hand, which cleared the device."""
    with new_pool(url):
        for path in url.removeprefix("dax://").split(","):
            with open(path, "r+b") as device:
                device.write(bytes(4096))
        with pytest.raises(PoolExists, match="still has an earlier pool"):
            new_pool(url)
    new_pool(url).close()
    limpet.destroy(url)
