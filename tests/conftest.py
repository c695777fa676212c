"""What all tests share: which build they run, pools that go away, no hang, no leftovers.

`LIMPET_EXPECT_BUILD=compiled` (or `pure`) makes the run fail at once on another build.
A test that takes longer than `HANG_S` fails; one that cannot even be interrupted ends the run with
the stacks of all threads. A run fails when it leaves a segment or a process behind; where others
use limpet on the same machine meanwhile, `LIMPET_TEST_SHARED=1` limits that to pools of tests.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import limpet

HANG_S = 150 if limpet.build == "compiled" else 300
AGAIN_S = 10
"""Python drops what is raised while a destructor runs."""
MERCY_S = 30
SHM = Path("/dev/shm")
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Of multiprocessing: they end with this process."""

_before: set[str] = set()
_first_seen: dict[str, str] = {}
_complaints: list[str] = []
_stderr = -1


def _segments() -> set[str]:
    mine = "limpet.test-*" if os.environ.get("LIMPET_TEST_SHARED") == "1" else "limpet.*"
    return {path.name for path in SHM.glob(mine)}


def pytest_configure(config: pytest.Config) -> None:
    global _stderr
    expected = os.environ.get("LIMPET_EXPECT_BUILD")
    if expected and expected != limpet.build:
        raise pytest.UsageError(
            f"LIMPET_EXPECT_BUILD is {expected!r}, but this is the {limpet.build} build"
        )
    _stderr = os.dup(2)
    _before.update(_segments())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As shells have it for what they start in the background; children would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


LONG = (
    "bench/test_timeline.py::test_victim_dies_holding_a_lock_and_the_survivors_go_on[insert-leaf-installed",
    "fault/test_explorer.py::test_race_holds_under_every_schedule_with_one_preemption[da",
    "fault/test_explorer.py::test_race_holds_under_every_schedule_with_one_preemption[ic|ic",
    "fault/test_growth.py::test_who_goes_on_splitting_may_be_killed_too[dtx-race",
    "fault/test_growth.py::test_who_goes_on_splitting_may_be_killed_too[fusee",
    "fault/test_kinds.py::test_matrix_of_a_replicated_kind",
    "fault/test_matrix.py::test_mutant_is_caught[pending-overlooked",
    "fault/test_matrix.py::test_mutant_is_caught[span-front-first",
    "fault/test_matrix.py::test_without_a_limit_every_step_is_taken[killed twice",
    "stores/test_clover.py::test_explorer[3400",
    "stores/test_conformance.py::test_any_sequence_of_operations_does_what_a_dict_does[dtx-race",
    "stores/test_conformance.py::test_any_sequence_of_operations_does_what_a_dict_does[fusee-",
    "stores/test_processes.py::test_processes_killed_at_any_time_leave_a_sound_store[dtx-race",
    "stores/test_processes.py::test_processes_killed_at_any_time_leave_a_sound_store[fusee-",
    "stores/test_rcuckoo_paths.py::test_path_insert_that_is_killed_loses_nothing[2",
    "stores/test_rcuckoo_paths.py::test_path_insert_that_is_killed_loses_nothing[3",
    "stores/test_rcuckoo_paths.py::test_path_insert_that_stands_still_is_killed_and_repaired[2",
    "stores/test_rcuckoo_paths.py::test_path_insert_that_stands_still_is_killed_and_repaired[3",
    "stores/test_rcuckoo_paths.py::test_path_insert_that_stands_still_is_waited_for[2",
    "stores/test_rcuckoo_paths.py::test_path_insert_that_stands_still_is_waited_for[3",
    "stores/test_rcuckoo_paths.py::test_who_repairs_a_path_may_be_killed_at_it[2",
    "stores/test_rcuckoo_paths.py::test_who_repairs_a_path_may_be_killed_at_it[3",
    "stores/test_sherman_nodes.py::test_points_of_logged_transactions_are_met",
    "stores/test_swarm_loss.py::test_a_write_cut_off_leaves_nothing_when_its_only_node_is_replaced[1",
    "stores/test_swarm_loss.py::test_a_write_cut_off_while_a_node_is_lost_outlives_its_return_and_another_loss[1-",
    "stores/test_swarm_loss.py::test_a_write_cut_off_while_a_node_is_lost_outlives_its_return_and_another_loss[3-",
)
"""What takes long in any build; for LIMPET_TEST_LONG=1, as in `make soak`."""

LONG_IN_PURE = (
    "bench/test_cuckoo.py::test_a_small_cache_of_rows_costs_round_trips_and_no_room",
    "bench/test_cuckoo.py::test_equal_arguments_give_equal_figures",
    "bench/test_expiry.py::",
    "bench/test_factors.py::test_steps_add_what_the_paper_says",
    "bench/test_overhead.py::test_every_design_runs_every_mix_that_it_can",
    "bench/test_overhead.py::test_figure_13_has_clients_in_between",
    "bench/test_overhead.py::test_the_mixes_are_those_of_the_paper",
    "bench/test_kills.py::",
    "bench/test_peers.py::test_failed_peer_makes_the_exit_status_1",
    "bench/test_peers.py::test_missing_peer_is_named_and_does_not_fail_the_run",
    "bench/test_peers.py::test_scans_are_measured_of_ordered_stores_and_peers",
    "bench/test_roundtrips.py::test_command_prints_the_tables",
    "bench/test_roundtrips.py::test_one_key_for_sixteen_clients",
    "bench/test_roundtrips.py::test_table_2_of_the_paper",
    "bench/test_timeline.py::",
    "fault/test_drill.py::test_drill_catches_a_broken_store",
    "fault/test_explorer.py::test_race_holds_under_every_schedule_with_one_preemption",
    "fault/test_matrix.py::test_mutant_is_caught",
    "fault/test_queue_schedules.py::",
    "fault/test_rtx_race_transactions.py::test_owner_may_stop_at_each_step",
    "fault/test_rtx_race_transactions.py::test_repairer_may_stop_at_each_step",
    "fault/test_rtx_race_transactions.py::test_transactions_hold_while_clients_die",
    "fault/test_swarm_explorer.py::test_gets_take_a_bounded_time",
    "fault/test_swarm_explorer.py::test_updates_take_a_bounded_time",
    "shm/test_allocator.py::test_full_node_says_so_and_goes_on_when_something_is_deleted",
    "shm/test_fuzz_pool.py::test_block_tables",
    "shm/test_groups.py::test_client_may_be_killed_at_any_step",
    "shm/test_groups.py::test_recoverer_may_be_killed_at_any_step",
    "shm/test_groups.py::test_who_takes_hoarded_groups_may_be_killed_at_any_step",
    "stores/test_conformance.py::test_a_full_index_loses_nothing_and_goes_on[r",
    "stores/test_fusee_rounds.py::test_conflicts_are_bounded_at_every_step",
    "stores/test_node_loss.py::test_a_client_with_objects_on_the_lost_node_dies_and_is_recovered",
    "stores/test_node_loss.py::test_a_node_that_is_not_there_cannot_fail",
    "stores/test_processes.py::test_memory_of_the_dead_is_used_again",
    "stores/test_queue_as_pythons.py::TestStandardSimple::test_many_threads",
    "stores/test_queue_lost.py::test_an_element_is_in_the_queue_or_lost_wherever",
    "stores/test_queue_lost.py::test_what_was_lost_survives_who_is_killed",
    "stores/test_queue_tasks.py::test_a_kill_at_any_step_of_get_and_task_done",
    "stores/test_replaced_nodes.py::test_every_node_is_replaced_in_turn",
    "stores/test_replaced_nodes.py::test_what_was_copied_outlives_the_rest",
    "stores/test_swarm_loss.py::test_any_two_nodes_of_five_may_be_lost",
    "stores/test_swarm_loss.py::test_clients_work_on_while_nodes_come_and_go",
    "stores/test_swarm_loss.py::test_every_node_is_replaced_in_turn_and_then_another_is_lost",
    "stores/test_swarm_loss.py::test_the_first_to_notice_may_do_anything",
    "stores/test_swarm_loss.py::test_two_lost_at_once",
    "stores/test_swarm_loss.py::test_two_of_five_are_replaced_and_then_two_others_are_lost",
    "stores/test_swarm_rounds.py::test_a_clock_that_is_behind",
    "stores/test_swarm_rounds.py::test_a_get_beside_a_write_that_stands_still",
    "stores/test_swarm_rounds.py::test_a_get_that_wrote_back_is_known_to_the_next_update[5",
    "stores/test_swarm_rounds.py::test_a_shared_metadata_word_costs_round_trips",
    "stores/test_swarm_rounds.py::test_an_update_beside_a_write_that_stands_still",
    "stores/test_transactions.py::test_keys_that_come_and_go_in_transactions",
    "test_cli.py::test_drill_matrix_",
)
"""What takes long where an atomic verb takes 20 us, and the compiled build does with the same lines
of the protocols. LIMPET_TEST_LONG=1 has the pure build do it, too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("LIMPET_TEST_LONG") == "1":
        return
    skip = pytest.mark.skip(reason="takes long: LIMPET_TEST_LONG=1")
    long = LONG if limpet.build == "compiled" else (*LONG, *LONG_IN_PURE)
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(long):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # thousands of tests, which no collection has to go through again


def pytest_report_header() -> str:
    return f"limpet {limpet.__version__}, {limpet.build} build"


def _ring(*_: object) -> None:
    faulthandler.dump_traceback(_stderr)
    pytest.fail("the test hangs: it is not over after the time that its module has for each")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fail a test that hangs; note which test new segments were first seen after.

    A module of tests that take long, since they compile, says so by a HANG_S of its own.
    """
    limit = getattr(getattr(item, "module", None), "HANG_S", HANG_S)
    previous = signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, limit, AGAIN_S)
    faulthandler.dump_traceback_later(limit + MERCY_S, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        for name in _segments() - _before - _first_seen.keys():
            _first_seen[name] = item.nodeid


def _used_by_others() -> set[str]:
    """Segments that processes which are not ours have mapped: other runs on this machine."""
    ours = {os.getpid()} | {child.pid for child in psutil.Process().children(recursive=True)}
    used: set[str] = set()
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            used.update(
                line.rpartition(f"{SHM}/")[2].split(" ")[0]
                for line in maps.splitlines()
                if f"{SHM}/limpet." in line
            )
    return used


def _left_segments() -> set[str]:
    """Segments of this run that are still there; those of other runs come and go."""
    left = _segments() & _first_seen.keys()
    deadline = time.monotonic() + 2
    while left and time.monotonic() < deadline:
        left = (left & _segments()) - _used_by_others()
        time.sleep(0.1)
    return left


def _left_processes() -> list[str]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            if child.status() != psutil.STATUS_ZOMBIE and not any(h in command for h in HELPERS):
                found.append(f"process {child.pid}: {command}")
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    _complaints.extend(
        f"segment {name}, first seen after {_first_seen[name]}" for name in sorted(_left_segments())
    )
    _complaints.extend(_left_processes())
    if _complaints:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _complaints:
        terminalreporter.section("left behind", red=True)
        for complaint in _complaints:
            terminalreporter.line(complaint)


class Pools:
    """Makes pools of unique names; `destroy` closes and removes all of them."""

    def __init__(self) -> None:
        self.made: list[limpet.Pool] = []

    @staticmethod
    def url() -> str:
        return f"shm://test-{os.getpid()}-{uuid.uuid4().hex[:12]}"

    def __call__(self, *, node_size: int | str = "2MiB", **parameters: Any) -> limpet.Pool:
        """A new pool, by default of one small node."""
        return self.keep(limpet.create(self.url(), node_size=node_size, **parameters))

    def again(self, pool: limpet.Pool, **options: Any) -> limpet.Pool:
        """The same pool, opened once more: another client."""
        return self.keep(limpet.open(pool.url, **options))

    def keep(self, pool: limpet.Pool) -> limpet.Pool:
        self.made.append(pool)
        return pool

    def destroy(self) -> None:
        for pool in reversed(self.made):
            with contextlib.suppress(limpet.LimpetError):
                pool.close()
        for url in {pool.url for pool in self.made}:
            with contextlib.suppress(limpet.PoolNotFound):
                limpet.destroy(url)
        self.made.clear()


@pytest.fixture
def pools() -> Iterator[Pools]:
    """Makes pools; all are closed and destroyed after the test."""
    maker = Pools()
    try:
        yield maker
    finally:
        maker.destroy()


@pytest.fixture
def make_url() -> Callable[[], str]:
    return Pools.url
