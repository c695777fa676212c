"""`limpet.Executor` under CPython's tests of concurrent.futures, where they are installed.

Those that are not here do not apply; docs/jobs.md has the reasons. CPython 3.12 and newer have a
package in place of the module.
"""

from __future__ import annotations

import importlib
import multiprocessing
from typing import Any

import pytest

import limpet

standard = pytest.importorskip("test.test_concurrent_futures")

pytestmark = [
    pytest.mark.either_build("the executor is not compiled"),
    pytest.mark.exhaustive("all of them", quick=["test_map_chunksize", "test_cancel_futures"]),
]


def part(module: str, name: str) -> Any:
    """A class: of the module, or, in newer versions, of a part of the package."""
    if not hasattr(standard, "__path__"):
        return getattr(standard, name)
    return getattr(importlib.import_module(f"test.test_concurrent_futures.{module}"), name)


class OnLimpet(part("util", "ExecutorMixin")):  # type: ignore[misc]
    executor_type = limpet.Executor
    ctx = "forkserver"
    executor_kwargs = {"memory": "16MiB"}

    def get_context(self) -> Any:
        return multiprocessing.get_context(self.ctx)


BASE = part("util", "BaseTestCase")


class TestWait(OnLimpet, part("test_wait", "WaitTests"), BASE):  # type: ignore[misc]
    pass


class TestAsCompleted(  # type: ignore[misc]
    OnLimpet, part("test_as_completed", "AsCompletedTests"), BASE
):
    pass


class TestShutdown(  # type: ignore[misc]
    OnLimpet, part("test_shutdown", "ExecutorShutdownTest"), BASE
):
    # They import the class from concurrent.futures by its name.
    test_hang_gh83386 = test_interpreter_shutdown = test_submit_after_interpreter_shutdown = None


class TestExecutor(  # type: ignore[misc]
    OnLimpet, part("test_process_pool", "ProcessPoolExecutorTest"), BASE
):
    # They look at private attributes, or for a private class.
    test_idle_process_reuse_one = test_idle_process_reuse_multiple = test_saturation = None
    test_max_tasks_per_child = test_max_tasks_per_child_defaults_to_spawn_context = None
    test_traceback = None
    # A worker that is killed breaks nothing.
    test_killed_child = None


class TestErrors(  # type: ignore[misc]
    OnLimpet, part("test_deadlock", "ExecutorDeadlockTest"), BASE
):
    # The call is run again, and has WorkerDied, or the error itself, in place of BrokenProcessPool.
    test_crash_at_task_unpickle = test_crash_during_func_exec_on_worker = None
    test_crash_during_result_pickle_on_worker = test_error_at_task_unpickle = None
    test_error_during_result_unpickle_in_result_handler = test_exit_at_task_unpickle = None
    test_exit_during_result_unpickle_in_result_handler = None
    # They look at private attributes.
    test_shutdown_deadlock = test_shutdown_deadlock_pickle = None
