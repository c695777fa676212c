"""Parts that are imported late: whole or not at all, for signal handlers, threads and forks."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.processes import exit_code, fork

from limpet.shm import late as of_late
from limpet.shm.late import late

PART = "part_that_is_imported_late"
act: Any = SimpleNamespace()
forking = threading.Event()
os.register_at_fork(before=forking.set)  # hooks run backwards: before that of late.py


@pytest.fixture(autouse=True)
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that calls `act.within` amid its import."""
    source = f"from {__name__} import act\nact.begun += 1\nact.within()\nWHOLE = True\n"
    (tmp_path / f"{PART}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    act.begun = 0
    handler = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, handler)
    sys.modules.pop(PART, None)
    of_late._imported.pop(PART, None)


def interrupt(handler: Callable[[], object]) -> None:
    """Have a signal handler of the main thread run amid the import."""
    handled = threading.Event()

    def handle(number: int, frame: Any) -> None:
        if not handled.is_set():
            handled.set()
            handler()

    def within() -> None:
        while not handled.is_set():  # one that comes as the wait begins does not end the wait
            os.kill(os.getpid(), signal.SIGUSR1)
            handled.wait(0.01)

    act.within = within
    signal.signal(signal.SIGUSR1, handle)


def test_a_handler_that_uses_the_part_finds_it_whole() -> None:
    found = []
    interrupt(lambda: found.append(late(PART).WHOLE))
    assert late(PART).WHOLE
    assert (found, act.begun) == ([True], 1)


def test_a_handler_that_raises_leaves_no_half_of_it() -> None:
    def cut() -> None:
        raise KeyboardInterrupt

    interrupt(cut)
    with pytest.raises(KeyboardInterrupt):
        late(PART)
    assert late(PART).WHOLE
    assert act.begun == 1


def test_a_fork_amid_the_import_has_it_whole() -> None:
    begun = threading.Event()

    def within() -> None:
        begun.set()
        assert forking.wait(60)
        sum(range(1 << 22))  # a fork that did not wait would be over before

    act.within = within
    forking.clear()
    importer = threading.Thread(target=late, args=(PART,))
    importer.start()
    assert begun.wait(60)
    child = fork(lambda: late(PART).WHOLE, lifetime_s=10)
    importer.join()
    assert exit_code(child) == 0
    assert act.begun == 1
