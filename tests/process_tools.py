"""Forked children of tests: bounded, reaped whatever happens, with results and exit codes."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any

LIFETIME_S = 100


def start(function: Callable[[], object], lifetime_s: int = LIFETIME_S) -> tuple[int, IO[bytes]]:
    """Run `function` in a forked child that ends itself when it hangs; its pid, and a pipe with
    the pickled result."""
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, open(out, "rb")
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(lifetime_s)
        os.close(out)
        result = pickle.dumps(function())
        with open(into, "wb") as pipe:
            pipe.write(result)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextlib.contextmanager
def children(
    functions: list[Callable[[], object]], lifetime_s: int = LIFETIME_S
) -> Iterator[list[tuple[int, IO[bytes]]]]:
    """Forked children, killed and reaped at the end if they still run."""
    started: list[tuple[int, IO[bytes]]] = []
    try:
        for function in functions:
            started.append(start(function, lifetime_s))
        yield started
    finally:
        for pid, out in started:
            out.close()
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def gather(*functions: Callable[[], object], lifetime_s: int = LIFETIME_S) -> list[Any]:
    """What each function returned in a child of its own; all must end well."""
    with children(list(functions), lifetime_s) as started:
        results = []
        for pid, out in started:
            data = out.read()
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            assert code == 0, f"child {pid} ended with {code}"
            results.append(pickle.loads(data))
        return results
