"""Tools of the tests of adapters: processes that are killed, a look at the pool, coroutine tests.

The suites of hosts are classes and functions of the installed packages. `without_loop` makes their
coroutine tests ordinary ones, so that no plugin of pytest is needed for them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any, TypeVar

import limpet
from kit.processes import end, exit_code, fork

T = TypeVar("T")


def with_kills(work: Callable[[int], object], kills: int = 5, calls: int = 200) -> None:
    """Call `work(0)`, `work(1)`, ... in a process that ends well after so many `calls`, while
    others, which call it, too, are killed in the midst of it."""
    steady = fork(lambda: [work(number) for number in range(calls)])
    try:
        for _ in range(kills):
            _kill_one(work)
        assert exit_code(steady) == 0
    finally:
        end(steady)


def _kill_one(work: Callable[[int], object], calls: int = 10) -> None:
    into, out = os.pipe()

    def doomed() -> None:
        for number in itertools.count():
            work(number)
            os.write(out, b".")

    pid = fork(doomed)
    os.close(out)
    try:
        made = 0
        while made < calls:
            data = os.read(into, calls)
            assert data, "the process ended before it was killed"
            made += len(data)
        os.kill(pid, signal.SIGKILL)
        assert exit_code(pid) == -signal.SIGKILL
    finally:
        os.close(into)
        end(pid)


def assert_sound(url: str) -> None:
    """After recovery nothing is leaked, and every store and cache checks."""
    with limpet.open(url) as pool:
        pool.recover()
        assert pool.audit()["leaked"] == 0
        for found in pool.stores():
            pool.attached(found["kind"], found["name"])[0].check()


def without_loop(cls: type[T]) -> type[T]:
    """The class, with each coroutine test that it has or inherits run by `asyncio.run`."""
    for name in dir(cls):
        test = inspect.getattr_static(cls, name)
        if name.startswith("test_") and inspect.iscoroutinefunction(test):
            setattr(cls, name, _run(test))
    return cls


def _run(test: Any) -> Any:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
