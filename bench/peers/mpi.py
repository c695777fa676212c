"""Open MPI as a contender of `bench channels`: each run starts an mpirun, and leaves nothing.

A run is an mpirun of its own, of `limpet.bench.peers.mpi_rank`, whose ranks share memory (the
transports self and vader, which Open MPI 5 calls sm) on this machine, unpinned as the other
contenders are. What Open MPI keeps in files, also those that it maps, is in a directory that goes
with the run. mpirun dies with us, and the ranks with mpirun.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from typing import Final

from limpet.bench.peers.drivers import Directory
from limpet.fault.inject.children import die_with_parent
from limpet.shm.errors import LimpetError

MPI: Final = "Open MPI"
"""Its name among the contenders."""
_MPIRUN: Final = ("mpirun", "--oversubscribe", "--bind-to", "none", "-n")
_RANK: Final = "limpet.bench.peers.mpi_rank"
_END_WAIT_S: Final = 5.0
"""How long mpirun gets to end its ranks."""
_TOLD: Final = 2000
"""Characters at the end of what it said that are told when it fails."""


def missing() -> str | None:
    """Why Open MPI cannot be run here and how to get it; None if it can."""
    command = shutil.which("mpirun")
    if command is None:
        return (
            "mpirun is not on the PATH: install the distribution's package "
            "(Debian, Ubuntu: apt-get install openmpi-bin)"
        )
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in said.stdout:
        return f"{command} is not Open MPI's"
    if importlib.util.find_spec("mpi4py") is None:
        return "the Python package mpi4py is not installed: pip install 'limpet[mpi]'"
    return None


def seconds_of(case: str, processes: int, count: int, wait_s: float) -> float:
    """How long the loops of so many ranks take. LimpetError when they fail, or take `wait_s`."""
    directory = Directory()
    try:
        run = subprocess.Popen(
            [*_MPIRUN, str(processes), sys.executable, "-m", _RANK, case, str(count)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | _settings(str(directory.path)),
            preexec_fn=die_with_parent,
        )
        try:
            out, error = run.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired as timeout:
            raise LimpetError(f"mpirun does not end within {wait_s:g} s") from timeout
        finally:
            _end(run)
    finally:
        directory.remove()
    if run.returncode != 0:
        raise LimpetError(f"mpirun ended with {run.returncode}: {(error or out)[-_TOLD:].strip()}")
    begin, end = json.loads(out)
    return float(end - begin) / 1e9


def _settings(directory: str) -> dict[str, str]:
    parameters = {
        "btl": "self,vader",
        "pml": "ob1",
        "plm": "isolated",
        "oob_tcp_if_include": "lo",
        "orte_tmpdir_base": directory,
        "btl_vader_backing_directory": directory,
        "btl_sm_backing_directory": directory,
        "osc_sm_backing_directory": directory,
        "osc_rdma_backing_directory": directory,
        # Else, of many ranks, those would die whose thread of mpirun has ended.
        "odls_base_num_threads": "0",
    }
    return {
        "TMPDIR": directory,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **{f"OMPI_MCA_{name}": value for name, value in parameters.items()},
    }


def _end(run: subprocess.Popen[str]) -> None:
    """Let mpirun end its ranks, if it still runs, and reap it."""
    if run.poll() is None:
        run.terminate()
        try:
            run.communicate(timeout=_END_WAIT_S)
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
