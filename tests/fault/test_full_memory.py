"""Full memory: the drill, in small; on a tmpfs that is really full; without what prevents it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import limpet
from limpet.__main__ import main
from limpet.fault.drill.full_memory import OF_CHANNELS, kinds, require_small, run
from limpet.fault.matrix.operations import Broken
from limpet.shm.errors import ParameterError
from limpet.shm.pages import BlockPages

RUNS = 6 if limpet.build == "compiled" else 2
ON_TMPFS = """
import sys
from pathlib import Path
from limpet.fault.drill.full_memory import require_small, run
folder = Path(sys.argv[1])
require_small(folder)
for kind in sys.argv[3:]:
    print(run(kind, f"file://{folder}/pool", folder=folder, step=int(sys.argv[2])))
"""
UNBACKED = """
from limpet.shm.pages import BlockPages
shipped = BlockPages.back
BlockPages.back = lambda *block: shipped(*block) or True
"""
"""Claims that ask for pages, and go on without them."""
A_VERB = """
import os, sys
from pathlib import Path
import limpet
folder = Path(sys.argv[1])
with limpet.create(f"file://{folder}/pool", nodes=2, node_size="1MiB", clients=4) as pool:
    before, after = 1 << 40 | 4096 + 8 * 2048, 1 << 40 | (1 << 20) - 4096
    pool.endpoint.store(before, 7)
    with open(folder / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
    for verb in (
        lambda: pool.endpoint.load(after),
        lambda: pool.endpoint.store(after, 8),
        lambda: pool.endpoint.write(after - 4096, bytes(8192)),
        lambda: pool.endpoint.cas(after, 0, 8),
    ):
        try:
            verb()
            print("went on")
        except limpet.StoreFull as error:
            print("full:", "no memory left" in str(error))
        print(pool.endpoint.load(before), {node["state"] for node in pool.nodes()})
    os.unlink(folder / "filler")
    print(pool.endpoint.load(after), pool.endpoint.cas(after, 0, 9), pool.endpoint.load(after))
    with limpet.open(pool.url) as other:
        print(other.endpoint.load(after), other.endpoint.load(before))
    os.truncate(folder / "pool" / "node.1", 0)
    try:
        pool.endpoint.load(after)
    except limpet.NodeFailed as error:
        print("lost:", error.node, pool.endpoint.lost(1), pool.endpoint.lost(0))
"""
MADE = """
import sys
from pathlib import Path
import limpet
try:
    limpet.create(f"file://{sys.argv[1]}/pool", nodes=2, node_size=sys.argv[2]).close()
    print("made")
except limpet.ParameterError as error:
    print(error)
print(sorted(path.name for path in Path(sys.argv[1]).rglob("node*")))
"""


@pytest.fixture
def url(make_url: Callable[[], str]) -> str:
    return make_url()


def requests(kind: str) -> int:
    if kind in ("swarm", "dm-abd"):
        return 110
    return 70 if kind == OF_CHANNELS else 50 if kind.startswith("fusee") else 16


@pytest.mark.exhaustive("every kind", quick=["race", "fusee", "swarm", "channels"])
@pytest.mark.parametrize("kind", kinds())
def test_full_memory_refuses_writes_and_nothing_else(kind: str, url: str) -> None:
    result = run(kind, url, step=max(1, requests(kind) // RUNS))
    assert result.refused >= 1
    assert result.reads > 0


def namespace(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script where `folder` is a tmpfs of 12 MiB of its own; skip if we may not."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare(1), to mount a tmpfs that no other process sees")
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a tmpfs that no other process sees")
    mount = 'mount -t tmpfs -o size=12m tmpfs "$1" && exec "${@:2}"'
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", mount, "mount"]
    probe = subprocess.run([*command, folder, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"this machine lets no process mount a tmpfs: {probe.stderr.strip()}")
    return subprocess.run(
        [*command, folder, sys.executable, "-c", script, folder, *arguments],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


@pytest.mark.exhaustive("every kind", quick=["race"])
@pytest.mark.parametrize("kind", ["race", "fusee", OF_CHANNELS])
def test_full_tmpfs_refuses_writes_and_nothing_else(kind: str, tmp_path: Path) -> None:
    """As above, with no page left in the file system: one that is not asked for is SIGBUS."""
    done = namespace(ON_TMPFS, tmp_path, str(requests(kind) // RUNS), kind)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "refused=" in done.stdout


@pytest.mark.skipif(limpet.build == "pure", reason="Python code cannot survive SIGBUS")
def test_page_that_cannot_be_had_is_full_memory_and_no_lost_node(tmp_path: Path) -> None:
    done = namespace(A_VERB, tmp_path)
    assert done.returncode == 0, done.stderr[-2_000:]
    each = ["full: True", "7 {'in service'}"]
    assert done.stdout.splitlines() == [*each * 4, "0 0 9", "9 7", "lost: 1 True False"]


@pytest.mark.exhaustive("every kind", quick=["race", "swarm"])
@pytest.mark.parametrize("kind", ["race", "fusee", "swarm"])
def test_trap_g13_blocks_without_pages(kind: str, tmp_path: Path) -> None:
    """A claim that goes on without pages kills the process, or is as good as refused by SIGBUS."""
    done = namespace(UNBACKED + ON_TMPFS, tmp_path, str(requests(kind) // RUNS), kind)
    if limpet.build == "pure":
        assert done.returncode == -signal.SIGBUS
    else:
        assert done.returncode == 0, done.stderr[-2_000:]


@pytest.mark.parametrize(
    ("size", "made", "warned"),
    [("4MiB", True, False), ("8MiB", True, True), ("16MiB", True, True), ("1GiB", False, False)],
)
def test_creator_is_told_when_all_segments_together_do_not_fit(
    size: str, made: bool, warned: bool, tmp_path: Path
) -> None:
    """Also a node alone may be larger than its file system."""
    done = namespace(MADE, tmp_path, size)
    assert done.returncode == 0, done.stderr
    first, left = done.stdout.splitlines()
    assert (first == "made") is made
    assert made or "no room for the" in first  # for the tables, which are used at once
    assert left == ("['node.0', 'node.1']" if made else "[]")
    assert ("has 12582912 free; when they are used up" in done.stderr) is warned


def test_trap_g13_a_claim_that_goes_on_without_pages_is_caught(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = BlockPages.back

    def regardless(self: BlockPages, *given: int) -> bool:
        shipped(self, *given)
        return True

    monkeypatch.setattr(BlockPages, "back", regardless)
    with pytest.raises(Broken, match="none has refused"):
        run("race", url, step=8)


def test_command_reports_what_was_refused() -> None:
    found = CliRunner().invoke(main, ["drill", "full", "race", "--every", "8"])
    assert found.exit_code == 0, found.output
    assert "Everything held" in found.output
    found = CliRunner().invoke(main, ["drill", "full", "nothing"])
    assert found.exit_code == 2
    assert "there is no kind 'nothing'" in found.output


def test_only_a_small_file_system_of_its_own_is_filled_up(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="a file system of its own"):
        require_small(tmp_path)
