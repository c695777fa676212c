"""A device that holds data of other programs is not overwritten without a word."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner
from kit.segments import empty_device, make_device

import limpet
from limpet.__main__ import main
from limpet.shm.backends import dax
from limpet.shm.backends.device_contents import SIGNATURES, contents_of

SIZE = 4 << 20


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[list[Path]]:
    made = [make_device(tmp_path, f"dax{number}.0", SIZE) for number in range(2)]
    with mock.patch.object(dax, "SYSFS", tmp_path / "sys"):
        yield made


def url_of(devices: list[Path]) -> str:
    return "dax://" + ",".join(map(str, devices))


def put(device: Path, offset: int, data: bytes) -> None:
    with device.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(("offset", "magic", "name"), SIGNATURES)
def test_device_with_a_signature_is_refused_and_left_alone(
    devices: list[Path], number: int, offset: int, magic: bytes, name: str
) -> None:
    put(devices[number], offset, magic)
    before = [device.read_bytes() for device in devices]
    says = rf"dax{number}\.0 holds {re.escape(name)}; .*--overwrite"
    with pytest.raises(limpet.DeviceNotEmpty, match=says):
        limpet.create(url_of(devices), clients=8)
    assert [device.read_bytes() for device in devices] == before


@pytest.mark.parametrize("offset", [0, 8, 16, 2000, 4095])
def test_any_byte_of_the_first_page_counts(devices: list[Path], offset: int) -> None:
    put(devices[0], offset, b"\1")
    if offset == 16:
        put(devices[0], 40, b"\1")  # alone, it is the size that a creator writes first
    with pytest.raises(limpet.DeviceNotEmpty, match="first 4 KiB"):
        limpet.create(url_of(devices), clients=8)


def test_device_is_overwritten_on_demand_but_never_a_pool(devices: list[Path]) -> None:
    url = url_of(devices)
    for device in devices:
        device.write_bytes(b"\xa5" * SIZE)
    with pytest.raises(limpet.PoolForeign):
        limpet.open(url, create=True, clients=8)
    with pytest.raises(limpet.DeviceNotEmpty):
        limpet.create(url, clients=8)
    run = CliRunner().invoke(main, ["create", url])
    assert run.exit_code == 1
    assert "--overwrite" in run.output
    assert CliRunner().invoke(main, ["create", url, "--overwrite"]).exit_code == 0
    with limpet.open(url) as pool:
        pool.store("race", name="s").put(b"k", b"v")
    with pytest.raises(limpet.PoolExists):
        limpet.create(url, overwrite=True)


def test_devices_of_a_destroyed_pool_are_used_again(devices: list[Path]) -> None:
    url = url_of(devices)
    for _ in range(2):
        limpet.create(url, clients=8).close()
        limpet.destroy(url)
    limpet.create(url_of(devices[1:]), clients=8).close()


def test_device_on_which_a_creator_was_killed_is_used_again(devices: list[Path]) -> None:
    put(devices[0], 16, (2 << 20).to_bytes(8, "little"))
    limpet.create(url_of(devices), clients=8).close()


@pytest.mark.parametrize(
    ("command", "name"),
    [(["mkfs.ext4", "-q"], "ext4"), (["mkfs.ext2", "-q"], "ext2"), (["mkswap"], "swap")],
)
def test_what_the_tools_write_is_found(tmp_path: Path, command: list[str], name: str) -> None:
    tool = shutil.which(command[0], path="/usr/sbin:/sbin:/usr/bin:/bin")
    if tool is None:
        pytest.skip(f"there is no {command[0]}")
    image = tmp_path / "image"
    image.write_bytes(bytes(8 << 20))
    image.chmod(0o600)
    assert contents_of(image.read_bytes()) == ""
    subprocess.run([tool, *command[1:], str(image)], check=True, capture_output=True)
    assert name in contents_of(image.read_bytes())


def test_empty_device_is_empty() -> None:
    assert contents_of(empty_device(SIZE)) == ""
