"""`make rack-net` (fault/rack/network.py): a short run, which leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.either_build("no wheel has it")

TIMEOUT_S = 120


def run(*scenes: str) -> tuple[int, str]:
    """Status and output. Nothing is left of its pool."""
    with subprocess.Popen(
        [sys.executable, "-m", "limpet.fault.rack.network", *scenes],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as program:  # fmt: skip
        out, _ = program.communicate(timeout=TIMEOUT_S)
    assert not list(Path("/dev/shm").glob(f"limpet.rack-net-{program.pid}.*")), out
    return program.returncode, out


@pytest.mark.soak("servers and clients in network namespaces, for seconds")
@pytest.mark.parametrize("how", [(), ("apart",)])
def test_short_run_ends_well_and_leaves_nothing(how: tuple[str, ...]) -> None:
    status, out = run(*how, "all_is_well", "clients_are_lost")
    if out.startswith("rack-net skipped: "):
        assert (status, len(out.splitlines())) == (0, 1)
        pytest.skip(out.strip())
    assert status == 0, out
    assert out.endswith("all values right, nothing leaked\n")


def test_unknown_scene_is_told() -> None:
    status, out = run("all_is_lost")
    assert status == 2
    assert "there is no all_is_lost, only all_is_well, host_is_cut_off" in out
