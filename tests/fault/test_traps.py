"""The general traps of the field, put back in: each variant fails, what ships does not.

Those of memory without hardware coherence (G4), of stale device memory (G3) and of the Zipfian (G7)
are in test_explorer.py, test_dax.py and test_ycsb.py; `pytest -k trap` runs all of them.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from kit.known_bad import first_failure
from kit.mutants.race import MUTANTS, Mutant, UpdatesInPlace, in_force, race_with
from kit.processes import gather

from limpet.fault.explore.explorer import Exploration, explore, explore_one
from limpet.fault.explore.schedule import STALL, parse_schedule
from limpet.fault.explore.sim_shrink import kind_of
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.operations import OLD, OPERATIONS, Operation
from limpet.shm import pool as pool_core
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.clients.liveness import exists
from limpet.shm.clients.membership import Membership
from limpet.shm.clients.simulated_processes import SimulatedProcesses
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import INCARNATION_BITS, LOCKED, NAMESPACE, STARTED
from limpet.shm.pool import PoolCore
from limpet.stores.pool import Pool

pytestmark = pytest.mark.either_build("the same lines on either build")

compiled_only = pytest.mark.skipif(BUILD != "compiled", reason="caught by many runs")

IN_PLACE = Mutant("update-in-place", ("history", "check"), race_with(UpdatesInPlace))
BY_STORE = next(mutant for mutant in MUTANTS if mutant.name == "update-by-store")
"""An update that looks at the slot, and then writes it whatever has become of it."""


# ---- G1: a plain write after a check, by a process that was stopped ------------------------------


@compiled_only
def test_trap_g1_plain_write_of_a_stopped_client_is_caught_by_the_matrix() -> None:
    with in_force(BY_STORE):
        result = Matrix("race").stopped(OPERATIONS["update"], "wait")
    assert any("leaked" in failure for failure in result.failures), result.failures
    assert Matrix("race").stopped(OPERATIONS["update"], "wait").failures == ()


@compiled_only
def test_trap_g1_suspect_that_is_taken_for_dead_is_caught_by_the_explorer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease is over, so it is recovered, and no client makes sure that it is dead."""
    parameters = Exploration(seed=1, schedules=30_000, crashes=0, stalls=2, scarce=True)

    def believe(self: Any, pid: int, started: int, timeout_ms: int = 0, sure: Any = None) -> bool:
        return True

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedProcesses, "kill", believe)
        (failure,) = explore(parameters).failures
    assert kind_of(failure.what) in ("history", "check", "leaked", "held"), failure.what
    replayed = dataclasses.replace(parameters, program=failure.program)
    run, _ = explore_one(replayed, parse_schedule(failure.schedule))
    assert run.failure == ""
    assert any(action.kind == STALL for actions in run.schedule.values() for action in actions)


# ---- G2: only eight aligned bytes are whole ------------------------------------------------------


@compiled_only
def test_trap_g2_torn_write_is_caught_by_the_matrix() -> None:
    same_size = Operation(
        "update", lambda pool, kv: kv.update(b"key", OLD[::-1]), OLD, OLD[::-1],
        OPERATIONS["update"].warm,
    )  # fmt: skip
    with in_force(IN_PLACE):
        result = Matrix("race").killed(same_size)
    assert any("the key has" in failure for failure in result.failures), result.failures
    assert Matrix("race").killed(same_size).failures == ()


@pytest.mark.exhaustive("thousands of runs")
@compiled_only
def test_trap_g2_torn_read_is_caught_by_the_explorer() -> None:
    parameters = Exploration(seed=6, schedules=30_000, crashes=0, stalls=0, value_size=200)
    with in_force(IN_PLACE):
        assert first_failure(parameters, IN_PLACE.says).startswith(IN_PLACE.says)


# ---- G5: pids are reused, fork clones the identity -----------------------------------------------


@pytest.fixture
def client_of_a_reused_pid(pools: Any) -> Iterator[tuple[Any, int]]:
    """A pool, and a client id in it whose pid another process has by now: this one.

    Without a life lock: there, pid and start time must do.
    """
    pool = pools()
    (ident,) = gather(lambda: pool.client_id)  # it ends without leaving
    at = slot_address(ident >> INCARNATION_BITS)
    word = pool.endpoint.load(at)
    reused = word & ~(0xFFFFFF << 36) | os.getppid() << 36
    pool.endpoint.store(at, reused)
    pool.endpoint.store(at + STARTED, 1)
    pool.endpoint.store(at + LOCKED, 0)
    yield pool, ident
    pool.endpoint.store(at, word)


def _states(pool: Any, ident: int) -> list[str]:
    return [client["state"] for client in pool.clients() if client["client"] == ident]


def test_trap_g5_pid_alone_does_not_name_a_process(
    client_of_a_reused_pid: tuple[Any, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, ident = client_of_a_reused_pid
    assert _states(pool, ident) == ["dead"]
    monkeypatch.setattr(Membership, "_uses", lambda self, pid, started: exists(pid))
    assert _states(pool, ident) == ["live"], "a dead client would never be recovered"


def test_trap_g5_fork_does_not_clone_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a killed child had its parent's place, no client recovers that."""

    def cloned(self: PoolCore) -> None:
        self.endpoint.adopted()
        self._adopted = os.getpid()

    assert Matrix("race", 9).killed(OPERATIONS["update"]).failures == ()
    monkeypatch.setattr(PoolCore, "_rejoin", cloned)

    # Nor is a child told that it is no client yet.
    class Untold(weakref.WeakSet[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    monkeypatch.setattr(pool_core, "_handles", Untold())
    result = Matrix("race", 9).killed(OPERATIONS["update"])
    assert any("are held" in failure for failure in result.failures), result.failures


# ---- G14: nothing here can ask about a process of another PID namespace --------------------------


def test_trap_g14_life_lock_tells_of_a_process_in_another_pid_namespace(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools()
    (ident,) = gather(lambda: pool.client_id)  # it ends without leaving
    namespace = slot_address(ident >> INCARNATION_BITS) + NAMESPACE
    pool.endpoint.store(namespace, pool.endpoint.load(namespace) ^ 1)
    assert _states(pool, ident) == ["dead"]
    with monkeypatch.context() as patched:
        patched.setattr(Membership, "_is_locked_here", lambda self, slot: False)
        assert _states(pool, ident) == ["live"], "it would keep every client out for ever"
    Pool.open(pool.url).close()


# ---- G6: multiprocessing unlinks what others still use -------------------------------------------


def _in_another_process(code: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, timeout=60, capture_output=True
    )


def test_trap_g6_segments_outlive_the_processes_that_open_them(pools: Any) -> None:
    pool = pools()
    name = f"limpet.{pool.url.removeprefix('shm://')}.0"
    _in_another_process(f"import limpet; limpet.open({pool.url!r}).store('race').put(b'k', b'v')")
    assert (SHM_DIR / name).exists()
    assert pool.store("race").get(b"k") == b"v"
    with Pool.open(pool.url) as other:
        assert other.store("race").get(b"k") == b"v"
    # by way of multiprocessing the same is the end of the segment
    _in_another_process(
        f"from multiprocessing import shared_memory as m; m.SharedMemory({name!r}).close()"
    )
    assert not (SHM_DIR / name).exists()
