"""A benchmark that SIGTERM ends leaves no pool and no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil
import pytest
from kit.waiting import until

from limpet.bench import instructions
from limpet.bench.cli import bench
from limpet.bench.peers import net

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

LONG: Final = {
    "batches": ["--store", "race", "--rounds", "1000", "--no-counts"],
    "cache": [],
    "channels": ["--seconds", "60"],
    "coherence": ["--store", "race", "--rounds", "1000"],
    "figures": ["rtx"],
    "footprint": ["--store", "race", "--peers", "dict"],
    "instructions": ["--subjects", "race"],
    "jobs": ["--cases", "jobs", "--jobs", "1000000"],
    "kills": ["--seconds", "60"],
    "lines": ["--subjects", "race", "--ops", "1000000"],
    "net": ["--rounds", "1000"],
    "peers": ["--store", "race", "--peers", "", "--rounds", "1000"],
    "power": ["--live", "--ms", "1000"],
    "timeline": [],
    "transactions": ["--peers", "rtx-race", "--rounds", "1000"],
    "virtual": ["--ops", "100000"],
}
"""Options of each command with which it takes long."""
QUICK: Final = ("footprint", "figures")
OWN: Final = ("instructions", "kills", "net", "power")
"""Those with processes of another program, or of their own."""


def test_every_benchmark_is_in_this_test() -> None:
    assert set(LONG) == set(bench.commands)


@pytest.mark.soak("they end as others do", cases=[*{*LONG} - {*QUICK, *OWN}])
@pytest.mark.exhaustive("seconds of processes each", quick=[*QUICK])
@pytest.mark.parametrize("name", LONG)
def test_a_benchmark_that_is_ended_leaves_nothing(name: str) -> None:
    if name == "instructions" and (reason := instructions.missing()):
        pytest.skip(reason)
    if name == "net" and (reason := net.refused()):
        pytest.skip(reason)
    process = subprocess.Popen(
        [sys.executable, "-m", "limpet", "bench", name, *LONG[name]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def segments() -> list[Path]:
        return list(Path("/dev/shm").glob(f"limpet.*-{process.pid}[-.]*"))

    def has_a_pool() -> bool:
        """Some drop the names of what they have mapped at once."""
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        return bool(segments()) or "/dev/shm/limpet." in maps

    try:
        until(lambda: has_a_pool() or process.poll() is not None, "no pool was made")
        assert process.poll() is None
        time.sleep(0.5)  # in the midst of the work
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
        assert not segments()
        assert psutil.wait_procs(children, timeout=60)[1] == []
    finally:
        process.kill()
        process.wait()
        for left in segments():
            left.unlink()


def test_a_forked_child_leaves_the_clean_up_to_its_parent(tmp_path: Path) -> None:
    code = """if 1:
        import os, signal, sys
        from limpet.bench.cli.options import leaving_on_sigterm
        with leaving_on_sigterm():
            try:
                if not (child := os.fork()):
                    os.kill(os.getpid(), signal.SIGTERM)
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
            finally:
                open(sys.argv[1], "a").write("cleaned\\n")
    """
    made = tmp_path / "said"
    subprocess.run([sys.executable, "-c", code, os.fspath(made)], check=True)
    assert made.read_text() == "cleaned\n"


@pytest.mark.parametrize(("again_s", "seconds"), [(0.001, 60), (60, 0)])
def test_an_end_that_a_destructor_dropped_comes_again(again_s: float, seconds: int) -> None:
    """Also if the body is over before."""
    code = f"""if 1:
        import os, signal, time
        from limpet.bench.cli import options
        options.AGAIN_S = {again_s}
        class Ended:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
        try:
            with options.leaving_on_sigterm():
                Ended()
                time.sleep({seconds})
            print("went on")
        finally:
            print("cleaned", signal.getitimer(signal.ITIMER_REAL))
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert ended.returncode == 128 + signal.SIGTERM
    assert ended.stdout == b"cleaned (0.0, 0.0)\n"
    assert not ended.stderr
