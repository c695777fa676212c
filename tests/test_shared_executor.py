"""`limpet.Executor` with a name: several programs, which end in any way, on one queue of calls."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import waiting
from kit.processes import child, children, exit_code

import limpet
from limpet.executor import worker
from limpet.executor.crew import FEW
from limpet.executor.worker import jobs_of

pytestmark = pytest.mark.either_build(
    "the executor is not compiled", but=["test_workers_of_each_program*", "test_parameters*"]
)
PATIENCE_S = 60.0 if limpet.build == "compiled" else 200.0
until = functools.partial(waiting.until, within_s=PATIENCE_S)
FORK = multiprocessing.get_context("fork")
NAME = "render"


def square(number: int) -> int:
    return number * number


def begin_and_wait(folder: str) -> int:
    """Note that this process has begun, and wait until it may go on; the pid of its program."""
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            Path(folder, f"{number}-{os.getpid()}").touch(exist_ok=False)
            break
    while not Path(folder, "go").exists():
        time.sleep(0.002)
    return os.getppid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def runs(folder: Path) -> list[int]:
    """The pids of the workers that have begun calls of `begin_and_wait`."""
    return [int(path.name.partition("-")[2]) for path in folder.glob("*-*")]


def executor(pool: limpet.Pool, workers: int = 0, **given: Any) -> limpet.Executor:
    return limpet.Executor(workers, FORK, pool=pool, name=NAME, **given)


@contextlib.contextmanager
def program(pool: limpet.Pool, workers: int, setup: Callable[[], None] = lambda: None) -> Iterator:
    """A program with an executor of its own, in a child: `begin` was done, and answers its pid."""
    here: list[limpet.Executor] = []
    futures: list[Any] = []

    def begin() -> int:
        setup()
        here.append(executor(pool, workers))
        return os.getpid()

    def submit() -> None:
        futures.extend(here[0].submit(square, number) for number in range(3 * FEW))

    def results() -> list[int]:
        return [future.result(PATIENCE_S) for future in futures]

    def cancel() -> int:
        here[0].shutdown(wait=False, cancel_futures=True)
        return sum(future.cancelled() for future in futures)

    def end() -> dict[str, int]:
        here[0].shutdown()
        return here[0].counts()

    with child(begin=begin, submit=submit, results=results, cancel=cancel, end=end) as made:
        made.send("begin")
        assert made.answer() == made.pid
        yield made


def names(pool: limpet.Pool) -> list[str]:
    return [name for name in pool.channels.names() if name.startswith("executor-")]


def require_nothing_left(pool: limpet.Pool) -> None:
    """All programs have ended: the queue of jobs is there, empty, and no byte is leaked."""
    until(lambda: pool.recover() and len(pool.clients()) == 1, "workers are left")
    assert names(pool) == [jobs_of(NAME)]
    counts = pool.queue(jobs_of(NAME), acks=True).counts()
    assert counts == {**dict.fromkeys(counts, 0), "free": counts["free"]}
    assert pool.audit()["leaked"] == 0


@pytest.fixture
def pool(pools: Any) -> limpet.Pool:
    made: limpet.Pool = pools(node_size="16MiB", clients=32)
    return made


def test_workers_of_each_program_run_calls_of_all(pool: limpet.Pool, tmp_path: Path) -> None:
    with executor(pool) as ours:
        with program(pool, 1) as one, program(pool, 1) as two:
            meet = [ours.submit(begin_and_wait, str(tmp_path)) for _ in range(2)]
            until(lambda: len(runs(tmp_path)) == 2)
            (tmp_path / "go").touch()
            assert {future.result(PATIENCE_S) for future in meet} == {one.pid, two.pid}
            with pytest.raises(ZeroDivisionError):
                ours.submit(divmod, 1, 0).result(PATIENCE_S)
            two.do("submit")
            assert two.do("results") == [number**2 for number in range(3 * FEW)]
            assert list(ours.map(square, range(99), chunksize=7)) == [n**2 for n in range(99)]
            assert len(names(pool)) == 4
            ends = [one.do("end"), two.do("end")]
        assert [found["calls"] for found in ends] == [0, 3 * FEW]
        counts = ours.counts()
        assert (counts["calls"], counts["done"], counts["queued"]) == (18, 18, 0)
    require_nothing_left(pool)


@pytest.mark.parametrize("how", ["worker killed", "program killed", "program ends"])
def test_a_program_that_ends_leaves_its_calls_to_others(
    pool: limpet.Pool, tmp_path: Path, how: str
) -> None:
    with executor(pool) as ours, program(pool, 1) as one:
        future = ours.submit(begin_and_wait, str(tmp_path))
        until(lambda: runs(tmp_path))
        with program(pool, 1) as two:
            if how == "program killed":
                one.kill()
            else:
                one.send("end")
                # Then it waits for its worker, and starts no other.
                until(lambda: len(names(pool)) == 3)
            if how == "worker killed":
                os.kill(runs(tmp_path)[0], signal.SIGKILL)
            if how == "program ends":
                assert ours.submit(square, 3).result(PATIENCE_S) == 9
            else:
                until(lambda: len(runs(tmp_path)) == 2)
            (tmp_path / "go").touch()
            by = one if how == "program ends" else two
            assert future.result(PATIENCE_S) == by.pid
            two.do("end")
            if how != "program killed":
                one.answer()
    require_nothing_left(pool)


def test_the_result_for_a_killed_program_is_dropped(pool: limpet.Pool, tmp_path: Path) -> None:
    with program(pool, 1) as works:
        with program(pool, 0) as submits:
            submits.do("submit")
            assert submits.do("results")[2] == 4
            with executor(pool) as ours:
                future = ours.submit(begin_and_wait, str(tmp_path))
                until(lambda: runs(tmp_path))
                submits.do("submit")
                assert len(names(pool)) == 4
                submits.kill()
                (tmp_path / "go").touch()
                assert future.result(PATIENCE_S) == works.pid
                # The worker meets a call of the dead program.
                until(lambda: len(names(pool)) == 3, "its results are there")
                assert ours.submit(square, 3).result(PATIENCE_S) == 9
        works.do("end")
    require_nothing_left(pool)


def test_a_call_that_no_other_program_can_import_fails_and_says_so(
    pool: limpet.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = sys.modules["__main__"]

    def elsewhere() -> None:
        main.__file__ = str(tmp_path / "other.py")

    (tmp_path / "only_here.py").write_text("def work(): return 1\n")
    with executor(pool) as ours, program(pool, 1) as before, program(pool, 0) as after:
        monkeypatch.syspath_prepend(tmp_path)
        import only_here

        of_main = type(square)(square.__code__, {"__name__": "__main__"}, "of_main")
        of_main.__qualname__ = "of_main"
        monkeypatch.setattr(main, "of_main", of_main, raising=False)
        with pytest.raises(ImportError, match="'work' of the module 'only_here' cannot be import"):
            ours.submit(only_here.work).result(PATIENCE_S)
        with pytest.raises(ImportError, match="'of_main' of the module '__main__' cannot be imp"):
            ours.submit(of_main, 3).result(PATIENCE_S)
        before.do("end")
        with program(pool, 1, elsewhere) as other:
            with pytest.raises(ImportError, match="'of_main' is of the module '__main__' of the"):
                ours.submit(of_main, 3).result(PATIENCE_S)
            assert ours.submit(only_here.work).result(PATIENCE_S) == 1
            other.do("end")
        with program(pool, 1) as same:
            assert ours.submit(of_main, 3).result(PATIENCE_S) == 9
            same.do("end")
        after.do("end")


def test_shutdown_cancels_calls_of_its_own_program_only(pool: limpet.Pool) -> None:
    with program(pool, 0) as other, executor(pool) as ours:
        futures = [ours.submit(square, number) for number in range(3 * FEW)]
        other.do("submit")
        assert other.do("cancel") == 2 * FEW
        assert not any(future.cancelled() for future in futures)
        with program(pool, 1) as works:
            assert [future.result(PATIENCE_S) for future in futures][-1] == (3 * FEW - 1) ** 2
            assert other.do("end")["done"] == 3 * FEW
            works.do("end")
    require_nothing_left(pool)


def test_a_stopped_program_is_in_nobodys_way(pool: limpet.Pool, tmp_path: Path) -> None:
    with executor(pool) as ours, program(pool, 1) as stopped:
        held = ours.submit(begin_and_wait, str(tmp_path))
        until(lambda: runs(tmp_path))
        stopped.do("submit")
        os.kill(runs(tmp_path)[0], signal.SIGSTOP)
        stopped.stop()
        with program(pool, 1) as works:
            assert list(ours.map(square, range(50))) == [number**2 for number in range(50)]
            works.do("end")
        assert not held.done()
        (tmp_path / "go").touch()
        os.kill(runs(tmp_path)[0], signal.SIGCONT)
        stopped.wake()
        assert held.result(PATIENCE_S) == stopped.pid
        assert stopped.do("results")[-1] == (3 * FEW - 1) ** 2
        stopped.do("end")
    require_nothing_left(pool)


def test_ctrl_c_gives_calls_of_other_programs_back(pool: limpet.Pool, tmp_path: Path) -> None:
    with executor(pool) as ours, program(pool, 1) as one:
        future = ours.submit(begin_and_wait, str(tmp_path))
        until(lambda: runs(tmp_path))
        os.kill(runs(tmp_path)[0], signal.SIGINT)
        until(lambda: len(runs(tmp_path)) == 2)
        (tmp_path / "go").touch()
        assert future.result(PATIENCE_S) == one.pid
        one.do("end")


def test_a_call_that_kills_workers_of_all_programs_fails(pool: limpet.Pool) -> None:
    with executor(pool, retries=2) as ours, program(pool, 1) as one, program(pool, 1) as two:
        with pytest.raises(limpet.WorkerDied, match=r"each of the 3 workers.*retries=2"):
            ours.submit(die).result(PATIENCE_S)
        assert one.do("end")["died"] + two.do("end")["died"] == 3
    require_nothing_left(pool)


def test_a_result_without_room_fails_its_future_in_a_full_pool(
    pool: limpet.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ticks in ("EMPTY_TICKS", "OTHERS_TICKS"):
        monkeypatch.setattr(worker, ticks, 2)
    with executor(pool, 1) as ours, executor(pool) as other:
        full = pool.deque("full", 1000)
        for size in (1 << 20, 1 << 14, 1 << 8):
            with contextlib.suppress(limpet.StoreFull):
                while True:
                    full.append(bytes(size))
        for program in (ours, other):
            with pytest.raises(limpet.StoreFull, match="no room for a result of"):
                program.submit(bytes, 5000).result(PATIENCE_S)
        full.clear()
        assert other.submit(bytes, 5000).result(PATIENCE_S) == bytes(5000)
    require_nothing_left(pool)


def test_parameters_of_a_named_executor(pool: limpet.Pool) -> None:
    for wrong in (
        {"name": NAME}, {"pool": pool}, {"max_workers": 0}, {"max_workers": -1, "name": NAME},
        {"pool": pool, "name": NAME, "memory": "16MiB"}, {"pool": pool, "name": "a/b"},
    ):  # fmt: skip
        with pytest.raises(limpet.ParameterError):
            limpet.Executor(**wrong)  # type: ignore[arg-type]
    with pytest.raises(limpet.PoolNotFound):
        limpet.Executor(0, pool=f"{pool.url}-away", name=NAME)
    with executor(pool, retries=1), pytest.raises(limpet.StoreMismatch, match="retries=1, not 2"):
        executor(pool, retries=2)
    with executor(pool) as again:
        assert again._crew is not None
        assert again._crew.retries == 1
    require_nothing_left(pool)


def test_the_command_works_for_programs(pool: limpet.Pool, tmp_path: Path) -> None:
    (tmp_path / "in_this_folder.py").write_text("def work(): return 1\n")
    command = [sys.executable, "-m", "limpet", "worker", pool.url, NAME, "--workers", "1"]
    path = os.pathsep.join(sys.path)
    with executor(pool) as ours, subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE
    ) as process:  # fmt: skip
        sys.path.append(str(tmp_path))
        try:
            import in_this_folder

            assert ours.submit(in_this_folder.work).result(PATIENCE_S) == 1
        finally:
            sys.path.remove(str(tmp_path))
            process.terminate()
        assert process.stderr is not None
        assert process.stderr.read().endswith(b"\nended\n")
        assert process.wait() == 0
    require_nothing_left(pool)


def note_run(path: str, number: str) -> str:
    note(path, number)
    time.sleep(random.random() / 200)
    return number


def note(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(f"{line}\n")


def noted(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_futures_of_living_programs_are_resolved_whatever_is_killed(
    pool: limpet.Pool, tmp_path: Path
) -> None:
    ran, resolved, stop, over = (tmp_path / name for name in ("ran", "resolved", "stop", "over"))

    def submit(workers: int) -> dict[str, int]:
        with executor(pool, workers, retries=100) as here:
            while not stop.exists():
                start = here.counts()["calls"]
                calls = [f"{os.getpid()}-{start + number}" for number in range(30)]
                assert list(here.map(note_run, itertools.repeat(str(ran)), calls)) == calls
                note(str(resolved), " ".join(calls))
            return here.counts()

    def work() -> None:
        with executor(pool, 2, retries=100) as here:
            until(over.exists, within_s=10 * PATIENCE_S)
            here.shutdown()

    roles: list[Callable[[], object]] = [lambda: submit(0), lambda: submit(1), work, work, work]
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(children([role]))[0] for role in roles]
        for kills in range(1, 9):
            until(lambda: len(noted(resolved)) > 40 * kills, "no progress")  # noqa: B023
            victim = random.randrange(len(roles))
            os.kill(programs[victim][0], signal.SIGKILL)
            programs[victim] = stack.enter_context(children([roles[victim]]))[0]
        stop.touch()
        counts = [pickle.loads(out.read()) for _, out in programs[:2]]
        # ORDER: after the programs that submit, of which one has no workers.
        over.touch()
        assert [exit_code(pid) for pid, _ in programs] == [0] * len(roles)
    for found in counts:
        assert (found["calls"], found["queued"]) == (found["done"], 0)
    done = noted(resolved)
    assert len(done) == len({*done})
    assert {*done} <= {*noted(ran)}
    with executor(pool, 1) as last:  # for calls of dead programs
        assert last._crew is not None
        until(lambda: last._crew.jobs.join(0))
    require_nothing_left(pool)
