"""`Array.numpy()`: what a view of the memory itself outlives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import limpet

SCRIPT = """
import gc, os, sys
import limpet
how, folder = sys.argv[1:]
pool = limpet.create(f"file://{folder}/pool", nodes=2, node_size="1MiB")
array = pool.array("a", 8)
view = array.numpy()
view[0] = 5
if "closed" in how:
    pool.close()
    del array, pool
    gc.collect()
if "cut" in how:
    for number in range(2):
        os.truncate(f"{folder}/pool/node.{number}", 0)
view[1] = 7
print(view[:2].tolist())
if how == "cut":
    print(sorted(node["state"] for node in pool.nodes()))
"""


@pytest.mark.parametrize("how", ["used", "closed", "cut", "closed, cut"])
def test_view_of_an_array_outlives_the_pool_and_the_memory(how: str, tmp_path: Path) -> None:
    if limpet.build == "pure" and "cut" in how:
        pytest.skip("Python code cannot survive SIGBUS")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how, tmp_path],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == ("[0, 7]" if "cut" in how else "[5, 7]")
    assert rest == (["['in service', 'lost']"] if how == "cut" else [])


@pytest.mark.skipif(limpet.build == "pure", reason="nothing is watched there")
def test_views_that_are_gone_are_watched_no_more(tmp_path: Path) -> None:
    """A process can watch so many mappings and no more, and each has a descriptor."""
    with limpet.create(f"file://{tmp_path}/pool", node_size="1MiB") as pool:
        array = pool.array("a", 8)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(5_000):
            array.numpy()[0] = number
        assert array[0] == 4_999
        assert len(list(Path("/proc/self/fd").iterdir())) == before
