"""Forked children of tests: each ends itself when it hangs, and is reaped whatever happens.

`gather` and `children` run functions to their end, `Child` does what it is told, `dies_at` is
killed at a step of its work.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any

LIFETIME_S = 100


def fork(function: Callable[[], object], lifetime_s: int = LIFETIME_S) -> int:
    """Run `function` in a forked child that ends itself when it hangs; its pid.

    Its exit code is 0, or 1 when the function raised.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(lifetime_s)
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    """Wait for the end of a child; its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def exit_codes(pids: list[int]) -> list[int]:
    """Of several children; those that still run when the test is interrupted are killed."""
    running = list(pids)
    codes = []
    try:
        while running:
            codes.append(exit_code(running[0]))
            running.pop(0)
    finally:
        for pid in running:
            end(pid)
    return codes


def end(pid: int) -> None:
    """Kill a child that still runs, and reap it."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def start(function: Callable[[], object], lifetime_s: int = LIFETIME_S) -> tuple[int, IO[bytes]]:
    """`fork`, and a pipe with the pickled result."""
    out, into = os.pipe()

    def answer() -> None:
        os.close(out)
        result = pickle.dumps(function())
        with open(into, "wb") as pipe:
            pipe.write(result)

    pid = fork(answer, lifetime_s)
    os.close(into)
    return pid, open(out, "rb")


@contextlib.contextmanager
def children(
    functions: list[Callable[[], object]], lifetime_s: int = LIFETIME_S
) -> Iterator[list[tuple[int, IO[bytes]]]]:
    """Started children, killed and reaped at the end if they still run."""
    started: list[tuple[int, IO[bytes]]] = []
    try:
        for function in functions:
            started.append(start(function, lifetime_s))
        yield started
    finally:
        for pid, out in started:
            out.close()
            end(pid)


def gather(*functions: Callable[[], object], lifetime_s: int = LIFETIME_S) -> list[Any]:
    """The result of each function, each run in a child; all must end well."""
    with children(list(functions), lifetime_s) as started:
        results = []
        for pid, out in started:
            data = out.read()
            code = exit_code(pid)
            assert code == 0, f"child {pid} ended with {code}"
            results.append(pickle.loads(data))
        return results


def dies_at(pool: Any, fuse: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that is killed at its `fuse`-th step; whether it came so far."""

    def doomed() -> None:
        assert pool.client_id
        pool.endpoint.fuse = fuse
        work()
        os.kill(os.getpid(), signal.SIGTERM)

    code = exit_code(fork(doomed))
    assert code in (-signal.SIGKILL, -signal.SIGTERM)
    return code == -signal.SIGKILL


class Child:
    """A forked child that runs what it is sent by name, one after the other, and answers."""

    def __init__(self, **actions: Callable[[], Any]) -> None:
        ask, answer = os.pipe(), os.pipe()

        def serve() -> None:
            os.close(ask[1])
            os.close(answer[0])
            self._serve(actions, ask[0], answer[1])

        self.pid = fork(serve)
        os.close(ask[0])
        os.close(answer[1])
        self._ask, self._answer = ask[1], answer[0]
        self.status: int | None = None

    @staticmethod
    def _serve(actions: dict[str, Callable[[], Any]], ask: int, answer: int) -> None:
        while name := os.read(ask, 100).decode():
            try:
                said = pickle.dumps((True, actions[name]()))
            except Exception as error:
                said = pickle.dumps((False, f"{error!r}\n{traceback.format_exc()}"))
            os.write(answer, said)

    def send(self, name: str) -> None:
        """Run the action in the child."""
        os.write(self._ask, name.encode())

    def answer(self) -> Any:
        """The result of the action; RuntimeError with its traceback when it raised."""
        data = os.read(self._answer, 65536)
        if not data:
            raise EOFError(f"child {self.pid} is gone")
        well, said = pickle.loads(data)
        if not well:
            raise RuntimeError(said)
        return said

    def do(self, name: str) -> Any:
        self.send(name)
        return self.answer()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL it and reap it."""
        os.kill(self.pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> int:
        """Wait for its end; exit code, or minus the signal."""
        if self.status is None:
            self.status = exit_code(self.pid)
        return self.status

    def end(self) -> None:
        os.close(self._ask)
        os.close(self._answer)
        if self.status is None:
            end(self.pid)


@contextlib.contextmanager
def child(**actions: Callable[[], Any]) -> Iterator[Child]:
    """A child; dead and reaped at the end."""
    made = Child(**actions)
    try:
        yield made
    finally:
        made.end()
