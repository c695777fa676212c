"""NUMA nodes by names: what a host's sysfs has decides, and every refusal says what there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.shm.backends import node, numa
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("files of a host")

Host = Callable[[dict[str, str]], None]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Make a host's sysfs of files: nodes/..., tiers/..., dax/..."""
    for name, folder in (("SYSTEM", "nodes"), ("TIERS", "tiers"), ("DAX", "dax")):
        monkeypatch.setattr(numa, name, tmp_path / folder)

    def make(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("->"):
                path.symlink_to(text.removeprefix("->"))
            else:
                path.write_text(text)

    return make


CXL = {"nodes/has_memory": "0-2\n", "nodes/has_cpu": "0-1\n"}


def test_memory_without_processors_is_found_by_name(host: Host) -> None:
    host(CXL)
    options = node.NodeOptions(numa_node=("memory-only", 1, "node0"))
    assert [options.numa_node_of(index) for index in range(3)] == [2, 1, 0]


def test_several_nodes_without_processors_are_to_be_told_apart(host: Host) -> None:
    host({**CXL, "nodes/has_memory": "0-3"})
    with pytest.raises(ParameterError, match=r"stands for the nodes 2, 3: name one of them"):
        numa.number_of("memory-only")


def test_host_without_such_memory_says_what_it_has(host: Host) -> None:
    host({**CXL, "nodes/has_memory": "0-1"})
    with pytest.raises(ParameterError, match=r"no such node; the NUMA nodes with memory are 0, 1"):
        numa.number_of("memory-only")
    with pytest.raises(ParameterError, match=r"'node2': this host has no such node"):
        numa.number_of("node2")


def test_kernel_without_numa_has_no_node(host: Host) -> None:
    with pytest.raises(ParameterError, match="with memory are none"):
        numa.number_of("memory-only")
    with pytest.raises(ParameterError, match="shows no tiers"):
        numa.number_of("memory_tier4")


def test_tier_of_one_node_is_a_name_of_it(host: Host) -> None:
    host({**CXL, "tiers/memory_tier4/nodelist": "0-1", "tiers/memory_tier22/nodelist": "2"})
    assert numa.number_of("memory_tier22") == 2
    with pytest.raises(ParameterError, match="stands for the nodes 0, 1"):
        numa.number_of("memory_tier4")
    with pytest.raises(ParameterError, match="this kernel shows memory_tier22, memory_tier4"):
        numa.number_of("memory_tier5")


def test_device_that_is_system_ram_is_a_name_of_its_node(host: Host) -> None:
    host({**CXL, "dax/dax0.0/target_node": "2\n", "dax/dax0.0/driver": "->../drivers/kmem",
          "dax/drivers/kmem": ""})  # fmt: skip
    assert numa.number_of("dax0.0") == 2
    with pytest.raises(ParameterError, match=r"no such DAX device; there are: dax0\.0"):
        numa.number_of("dax1.0")


def test_device_that_is_no_system_ram_says_how_to_make_it_so(host: Host) -> None:
    host({**CXL, "dax/dax0.0/target_node": "2\n", "dax/dax0.0/driver": "->../drivers/device_dax"})
    with pytest.raises(ParameterError, match=r"--mode=system-ram dax0\.0\), or put"):
        numa.number_of("dax0.0")


def test_device_whose_memory_is_offline_says_how_to_have_it(host: Host) -> None:
    host({**CXL, "dax/dax0.0/target_node": "5\n", "dax/dax0.0/driver": "->../drivers/kmem"})
    with pytest.raises(ParameterError, match=r"NUMA node 5, .* daxctl online-memory dax0\.0"):
        numa.number_of("dax0.0")


@pytest.mark.parametrize("name", ["cxl", "", "node", "dax0", "../node0", "memory_tier"])
def test_name_of_no_known_form_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ParameterError, match=r"'memory-only', 'memory_tierN', 'daxN.M', 'nodeN'"):
        node.NodeOptions(numa_node=name)


def test_command_takes_numbers_and_names(host: Host, make_url: Callable[[], str]) -> None:
    host(CXL)
    for given, words in (
        (["node9"], "'node9': this host has no such node; the NUMA nodes with memory are 0, 1, 2"),
        (["memory"], "'memory-only', 'memory_tierN'"),
        (["1024"], "a whole number from 0 to 1023"),
        (["0", "cxl"], "or a tuple of them, not (0, 'cxl')"),
    ):
        options = [word for one in given for word in ("--numa-node", one)]
        shown = CliRunner().invoke(main, ["create", make_url(), "--nodes", "2", *options])
        assert shown.exit_code == 2
        assert words in " ".join(shown.output.split())
        assert not list(Path("/dev/shm").glob(f"limpet.test-{os.getpid()}-*"))
