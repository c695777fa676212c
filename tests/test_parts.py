"""Markers divide the tests into parts, and an entry that fits no test fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import limpet

pytestmark = pytest.mark.either_build(
    "the same lines", but=["test_part_has*[quick]", "test_marker_that_is*"]
)
TESTS = Path(__file__).resolve().parent
SUITE = """
import pytest

def test_plain(): pass

@pytest.mark.exhaustive("every kind", quick=["race", "r*-2"])
@pytest.mark.parametrize("kind", ["race", "rcuckoo-2", "rcuckoo-3"])
def test_kinds(kind): pass

@pytest.mark.exhaustive_in_pure("slow there")
def test_slow_in_pure(): pass

@pytest.mark.either_build("the same lines", but=["a"])
@pytest.mark.parametrize("which", ["a", "b"])
def test_either(which): pass

@pytest.mark.soak("minutes")
def test_soak(): pass
"""
ALL = "plain kinds[race] kinds[rcuckoo-2] kinds[rcuckoo-3] slow_in_pure either[a] either[b] soak"
QUICK = "plain kinds[race] kinds[rcuckoo-2] either[a]"
PARTS = {
    "all": (ALL, ALL),
    "quick": (f"{QUICK} slow_in_pure either[b]", QUICK),
    "rest": ("kinds[rcuckoo-3]", ""),
}
"""The tests of each part in the compiled build, and in the pure one."""


def run(folder: Path, suite: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(suite)
    path = f"{TESTS}{os.pathsep}{Path(limpet.__file__).resolve().parent.parent}"
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-q"]
    return subprocess.run(
        [*command, "--strict-markers", "--rootdir=.", "-c", os.devnull, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("part", PARTS)
def test_part_has_the_tests_whose_markers_say_so(part: str, tmp_path: Path) -> None:
    result = run(tmp_path, SUITE, "--collect-only", "--part", part)
    found = {line.partition("::test_")[2] for line in result.stdout.splitlines() if "::" in line}
    assert found == set(PARTS[part][limpet.build == "pure"].split()), result.stdout + result.stderr


def test_soak_is_skipped_unless_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = "5 passed, 3 skipped" if limpet.build == "pure" else "7 passed, 1 skipped"
    for long, said in (("", short), ("1", "8 passed")):
        monkeypatch.setenv("LIMPET_TEST_LONG", long)
        result = run(tmp_path, SUITE)
        assert (result.returncode, said in result.stdout) == (0, True), result.stdout


WRONG = {
    'exhaustive("every kind", quick=["race", "fusee"])': "no test is 'fusee'",
    'exhaustive_in_pure("every kind", quick=["test_1*", "test_0"])': "no test is 'test_0'",
    'soak("minutes", cases=["swarm", "a*"])': "no test is 'a*'",
    "either_build()": "gives no reason",
    'exhaustive(" ", quick=["race"])': "gives no reason",
    'exhaustive("every kind", cases=["race"])': "wrong arguments",
    'exhaustive("every kind", quick="race")': "wrong arguments",
}


def test_marker_that_is_wrong_fails_the_run(tmp_path: Path) -> None:
    """One that names no test, on the build where it counts."""
    suite = ["import pytest"] + [
        f"""
@pytest.mark.{entry}
@pytest.mark.parametrize("kind", ["race", "swarm"])
def test_{number}(kind): pass
"""
        for number, entry in enumerate(WRONG)
    ]
    result = run(tmp_path, "\n".join(suite))
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    for number, (entry, says) in enumerate(WRONG.items()):
        looked_at = "no test" not in says or (limpet.build == "pure") == ("_in_pure" in entry)
        lines = [line for line in result.stderr.splitlines() if f"::test_{number}[" in line]
        assert any(says in line for line in lines) == looked_at, (entry, result.stderr)


def test_tests_that_are_named_one_by_one_need_not_be_all_that_a_marker_names(
    tmp_path: Path,
) -> None:
    result = run(tmp_path, SUITE, "test_it.py::test_kinds[race]")
    assert (result.returncode, "1 passed" in result.stdout) == (0, True), result.stdout


LEAVES = """
import os
from pathlib import Path

def test_leaves():
    for name in NAMES:
        (Path("/dev/shm") / name.format(mine=os.getpid(), other=os.getppid())).touch()
"""


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (["test-{mine}-a#.0", "demo-{mine}-a#.0", "limpet-matrix-{mine}-a#.0"], True),
        (["jobs-#.0", "test-#.0", "test-{other}-a#.0", "drill-{other}-a#.0"], False),
    ],
    ids=["own", "others"],
)
def test_run_fails_for_segments_of_its_own_and_for_no_others(
    tmp_path: Path, names: list[str], own: bool
) -> None:
    token = uuid.uuid4().hex
    names = ["limpet." + name.replace("#", token) for name in names]
    try:
        done = run(tmp_path, f"NAMES = {names}\n{LEAVES}")
    finally:
        for path in Path("/dev/shm").glob(f"limpet.*{token}.*"):
            path.unlink()
    assert done.stdout.count("first seen after") == own * len(names), done.stdout
    assert done.returncode == own
