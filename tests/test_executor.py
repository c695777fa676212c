"""`limpet.Executor`: the contract of concurrent.futures, and workers that are killed."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, wait
from pathlib import Path
from typing import Any

import pytest
from kit.processes import gather
from kit.waiting import until
from rich.console import Console

import limpet
from limpet.executor.worker import Place, Worker, jobs_of
from limpet.shm.backends.location import SHM_DIR

PATIENCE_S = 60.0 if limpet.build == "compiled" else 200.0
NODES = {"memory": "16MiB"}
METHODS = ("fork", "spawn", "forkserver")
initialized: list[object] = []


def left_behind() -> list[str]:
    """Segments of executors."""
    return [path.name for path in Path(SHM_DIR).glob(f"*executor-{os.getpid()}-*")]


def square(number: int) -> int:
    return number * number


def slow_square(number: int) -> int:
    time.sleep(0.005)
    return number * number


def fail(text: str) -> None:
    raise KeyError(text)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path: str) -> str:
    """Die the first time."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "done"
    die()
    return ""


def wait_for(path: str) -> int:
    while not Path(path).exists():
        time.sleep(0.002)
    return os.getpid()


def leave(code: int) -> None:
    sys.exit(code)


def initialize(value: object) -> None:
    initialized.append(value)


def initial() -> tuple[list[object], int]:
    return initialized, os.getpid()


class Unsendable(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Wordless(Unsendable):
    """Has no text either."""

    def __str__(self) -> str:
        raise ValueError


class Ending(Exception):
    """Ends the process that reads it."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def raise_unsendable(cls: Any = Unsendable) -> None:
    raise cls(1, 2)


def unsendable_result() -> Any:
    return lambda: 1


@pytest.mark.parametrize("method", METHODS)
def test_results_and_errors_come_by_futures(method: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context(method)
    with limpet.Executor(2, context, initialize, ("given",), **NODES) as executor:
        assert list(executor.map(square, range(20))) == [square(number) for number in range(20)]
        with pytest.raises(KeyError, match="reason") as caught:
            executor.submit(fail, "reason").result(PATIENCE_S)
        assert "in fail" in str(caught.value.__cause__)
        assert executor.submit(initial).result(PATIENCE_S)[0][-1:] == ["given"]
        assert executor.submit(die_once, str(tmp_path / "once")).result(PATIENCE_S) == "done"
    assert left_behind() == []
    assert multiprocessing.active_children() == []
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(square, 1)


def test_calls_that_cannot_be_sent_are_their_futures_errors() -> None:
    with limpet.Executor(1, **NODES) as executor:
        with pytest.raises(Exception, match="pickle"):
            executor.submit(lambda: 1).result(PATIENCE_S)
        with pytest.raises(Exception, match="pickle"):
            executor.submit(unsendable_result).result(PATIENCE_S)
        with pytest.raises(RuntimeError, match="Unsendable: 1 and 2"):
            executor.submit(raise_unsendable).result(PATIENCE_S)
        for cls in (Wordless, Ending):
            with pytest.raises(RuntimeError, match=cls.__name__):
                executor.submit(raise_unsendable, cls).result(PATIENCE_S)
        with pytest.raises(SystemExit):
            executor.submit(leave, 3).result(PATIENCE_S)
        data = os.urandom(3 << 20)
        assert executor.submit(bytes, data).result(PATIENCE_S) == data
        with pytest.raises(limpet.ValueTooLarge):
            executor.submit(len, bytes(32 << 20)).result(PATIENCE_S)
        with pytest.raises(limpet.ValueTooLarge):
            executor.submit(bytes, 32 << 20).result(PATIENCE_S)
        assert executor.submit(square, 3).result(PATIENCE_S) == 9


def test_map_takes_several_iterables_in_chunks() -> None:
    with limpet.Executor(2, **NODES) as executor:
        assert list(executor.map(pow, range(10), range(12), chunksize=4)) == [
            number**number for number in range(10)
        ]
        with pytest.raises(ValueError, match="chunksize"):
            executor.map(square, [1], chunksize=0)
        with pytest.raises(KeyError):
            list(executor.map(fail, "ab"))


def test_a_call_that_kills_each_worker_fails_and_the_executor_goes_on() -> None:
    with limpet.Executor(2, retries=1, **NODES) as executor:
        bad = executor.submit(die)
        good = [executor.submit(square, number) for number in range(10)]
        with pytest.raises(limpet.WorkerDied, match="each of the 2 workers"):
            bad.result(PATIENCE_S)
        assert [future.result(PATIENCE_S) for future in good] == [n * n for n in range(10)]


def test_every_call_is_done_while_workers_are_killed() -> None:
    count, kills = 400, 8
    with limpet.Executor(4, retries=100, **NODES) as executor:
        futures = [executor.submit(slow_square, number) for number in range(count)]
        for number in range(kills):
            futures[(number + 1) * count // (2 * kills)].result(PATIENCE_S)
            assert executor._crew is not None
            process = random.choice(list(executor._crew.processes))
            os.kill(process.pid, signal.SIGKILL)
        found = [future.result(PATIENCE_S) for future in futures]
    assert found == [number * number for number in range(count)]
    assert left_behind() == []


def test_a_worker_ends_after_its_tasks() -> None:
    with limpet.Executor(1, max_tasks_per_child=3, **NODES) as executor:
        pids = [executor.submit(os.getpid).result(PATIENCE_S) for _ in range(7)]
    assert [len(set(pids[start : start + 3])) for start in (0, 3)] == [1, 1]
    assert len(set(pids)) == 3


def test_an_initializer_that_raises_breaks_the_executor() -> None:
    with limpet.Executor(1, initializer=fail, initargs=("never",), **NODES) as executor:
        with pytest.raises(BrokenExecutor) as caught:
            executor.submit(square, 1).result(PATIENCE_S)
        assert isinstance(caught.value.__cause__, KeyError)
        with pytest.raises(BrokenExecutor):
            executor.submit(square, 1)
    with limpet.Executor(1, initializer=die, **NODES) as executor, pytest.raises(BrokenExecutor):
        executor.submit(square, 1).result(PATIENCE_S)
    assert left_behind() == []


def test_shutdown_cancels_what_no_worker_has(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    executor = limpet.Executor(1, **NODES)
    futures = [executor.submit(wait_for, str(go_on)) for _ in range(20)]
    executor.shutdown(wait=False, cancel_futures=True)
    cancelled = [future for future in futures if future.cancelled()]
    assert 0 < len(cancelled) < len(futures)
    with pytest.raises(CancelledError):
        cancelled[0].result()
    go_on.touch()
    executor.shutdown()
    done = wait(futures, PATIENCE_S).done
    assert len(done) == len(futures)
    assert left_behind() == []


def test_a_worker_looks_at_its_parent_no_more_when_it_leaves_the_pool(pools: Any) -> None:
    """Its thread would find the pool closed, and say so on stderr."""
    pool = pools()
    pool.queue(jobs_of(""), acks=True)
    ident = pool.membership.ident

    def life() -> bool:
        worker = Worker(Place(pool.url, "", ident, b"", None))
        looked = worker.watcher.is_alive()
        worker.leave()
        return looked and not worker.watcher.is_alive() and worker.pool.closed

    assert gather(life) == [True]


def test_parameters_are_checked() -> None:
    for wrong in ({"max_workers": 0}, {"retries": -1}, {"max_tasks_per_child": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            limpet.Executor(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        limpet.Executor(initializer=3)  # type: ignore[arg-type]


PROGRAM = """
    import os, signal, sys, time
    import limpet

    def job(number):
        if not number:
            os.write(1, b"begun\\n")
        time.sleep(0.01 if number < 7 else 0.3)
        if not number:
            time.sleep(1000)
        return number

    if __name__ == "__main__":
        executor = limpet.Executor(2, memory="16MiB")
        assert list(executor.map(job, range(1, 5))) == [1, 2, 3, 4]
        print(executor._crew.url, *(p.pid for p in executor._crew.processes), flush=True)
        {end}
"""
SLEEPS = "executor.submit(job, 0).result()"


def program(tmp_path: Path, end: str) -> subprocess.Popen[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM).format(end=end))
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def is_gone(url: str, pids: list[int]) -> bool:
    """Whether the pool is removed and all these processes have ended."""
    if list(Path(SHM_DIR).glob(f"*{url.removeprefix('shm://')}*")):
        return False
    return not any(runs(pid) for pid in pids)


def runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def soon(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["killed", "Ctrl-C", "forgotten", "raises"])
def test_nothing_is_left_when_the_parent_ends(tmp_path: Path, how: str) -> None:
    ends = {
        "killed": SLEEPS,
        "Ctrl-C": f"with executor: {SLEEPS}",
        "forgotten": "print(executor.submit(job, 7))  # 0.3 s: longer than a look",
        "raises": "raise SystemExit(5)",
    }
    with program(tmp_path, ends[how]) as process:
        try:
            assert process.stdout is not None
            url, *pids = process.stdout.readline().split()
            if how in ("killed", "Ctrl-C"):
                assert process.stdout.readline() == "begun\n"
            if how == "killed":
                process.kill()
            elif how == "Ctrl-C":
                os.killpg(process.pid, signal.SIGINT)
            process.wait(PATIENCE_S)
            soon(lambda: is_gone(url, [int(pid) for pid in pids]))
            assert process.stderr is not None
            text = process.stderr.read()
        finally:
            process.kill()
    assert (text == "") == (how != "Ctrl-C"), text
    if how != "Ctrl-C":
        assert process.returncode == {"killed": -signal.SIGKILL, "forgotten": 0, "raises": 5}[how]


def inherited() -> list[object]:
    return initialized


def test_workers_inherit_nothing_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a lock that another thread holds."""
    monkeypatch.setattr(sys.modules[__name__], "initialized", ["here"])
    with limpet.Executor(1, **NODES) as executor:
        assert executor.submit(inherited).result(PATIENCE_S) == []


def test_callbacks_may_submit_and_wait_for_other_threads_that_submit() -> None:
    more: list[Any] = []
    with limpet.Executor(2, **NODES) as executor:

        def follow(done: Any) -> None:
            def submit() -> None:
                more.append(executor.submit(square, done.result()))

            other = threading.Thread(target=submit)
            other.start()
            other.join(PATIENCE_S)

        for number in range(20):
            executor.submit(square, number).add_done_callback(follow)
        while len(more) < 20:
            time.sleep(0.01)
        found = sorted(future.result(PATIENCE_S) for future in more)
    assert found == [number**4 for number in range(20)]


def test_a_result_waits_for_the_memory_of_others() -> None:
    with limpet.Executor(4, **NODES) as executor:
        assert [len(data) for data in executor.map(bytes, [5 << 20] * 16)] == [5 << 20] * 16


def test_a_forked_child_is_told_that_the_executor_is_its_parents() -> None:
    with limpet.Executor(1, **NODES) as executor:
        assert executor.submit(square, 2).result(PATIENCE_S) == 4

        def child() -> str:
            executor.shutdown()
            with pytest.raises(RuntimeError) as caught:
                executor.submit(square, 3)
            return str(caught.value)

        with executor._lock:
            assert "belongs to the process" in gather(child)[0]


@pytest.mark.parametrize("sent", [False, True])
def test_a_submit_that_is_cut_off_is_done_or_dropped(
    monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    with limpet.Executor(1, **NODES) as executor:
        assert executor.submit(square, 2).result(PATIENCE_S) == 4
        jobs = executor._crew.jobs
        real = jobs.put

        class Cut:
            def put(self, *given: Any) -> bool:
                monkeypatch.undo()
                if sent:
                    real(*given)
                raise KeyboardInterrupt

            def __getattr__(self, name: str) -> Any:
                return getattr(jobs, name)

        monkeypatch.setattr(executor._crew, "jobs", Cut())
        with executor._crew.lock, pytest.raises(KeyboardInterrupt):
            executor._crew.submit((square, (3,), {}))
        assert executor.submit(square, 4).result(PATIENCE_S) == 16
    assert left_behind() == []


def test_a_worker_that_cannot_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []
    with limpet.Executor(2, **NODES) as executor:
        assert executor.submit(square, 2).result(PATIENCE_S) == 4
        context = executor._crew.context

        class Short:
            def Process(self, *given: Any, **named: Any) -> Any:  # noqa: N802
                process = context.Process(*given, **named)
                if len(refused) < 3:
                    refused.append(1)

                    def start() -> None:
                        raise BlockingIOError("no process can be made now")

                    process.start = start
                return process

        monkeypatch.setattr(executor._crew, "context", Short())
        assert list(executor.map(slow_square, range(50))) == [n * n for n in range(50)]
    assert refused


def forks() -> str:
    if os.fork() == 0:
        raise RuntimeError("in the child of a call")
    os.wait()
    return "of the call"


def test_a_child_that_a_call_forks_is_not_the_call() -> None:
    with limpet.Executor(1, **NODES) as executor:
        assert executor.submit(forks).result(PATIENCE_S) == "of the call"


def test_a_context_is_no_name() -> None:
    with pytest.raises(TypeError, match="get_context"):
        limpet.Executor(1, "spawn")  # type: ignore[arg-type]


def test_progress_shows_calls_that_are_done_and_workers_that_died(tmp_path: Path) -> None:
    out = io.StringIO()
    with limpet.Executor(2, **NODES) as executor:
        with executor.progress(Console(file=out, width=100)):
            list(executor.map(square, range(20)))
            assert executor.submit(die_once, str(tmp_path / "once")).result(PATIENCE_S) == "done"
            # Another worker may be done before the executor has looked at the dead one.
            until(lambda: executor.counts()["died"])
        counts = executor.counts()
        assert (counts["calls"], counts["done"], counts["died"]) == (21, 21, 1)
    assert re.search(r"21/21 +\d workers, 1 died", out.getvalue())
