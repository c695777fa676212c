"""The programs in examples/: each does what it promises, says so when it does not, and leaves
nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet

pytestmark = pytest.mark.either_build("examples are not compiled")

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SHM = Path("/dev/shm")
PROGRAM_S = 120
"""An example takes some seconds; a busy machine may take its time."""
BRIEF = {
    "async_service": ["--requests", "200"],
    "bank": ["--seconds", "1"],
    "jobs": ["--jobs", "60"],
    "linked_list": ["--seconds", "1"],
    "own_channel": ["--seconds", "1"],
    "own_store": ["--seconds", "1"],
    "pipeline": ["--items", "40"],
    "shared_cache": ["--seconds", "1"],
    "shared_parameters": ["--seconds", "1"],
    "web_jobs": ["--jobs", "60"],
    "web_workers": ["--seconds", "0.5"],
    "work_queue": ["--jobs", "60"],
}
LONG = {
    name: [option, "100" if option == "--seconds" else "5000"]
    for name, (option, _) in BRIEF.items()
}
SAYS = {
    "async_service": r"[1-9]\d* workers were killed.*\n200 requests, 200 right answers\n",
    "bank": r"[1-9]\d* kills.*\nsums of all accounts.*\[1000\]\n",
    "jobs": r"[1-9]\d* workers were killed.*\n60 jobs; .*; 60 results\na dead letter: 'poison', ",
    "linked_list": r"[1-9]\d* kills.*\n[1-9]\d* looks at the list, 0 of them",
    "own_channel": r"[1-9]\d* loggers were killed.*\nit fell 0 times",
    "own_store": r"[1-9]\d* writers were killed.*\nvalues that are not .*: 0\ndropped",
    "pipeline": r"[1-9]\d* workers of 3 stages.*\n40 items; .*; 40 results\n0 bytes leaked",
    "shared_cache": r"[1-9]\d* workers were killed; [1-9].*, 0 wrong\n[1-9].*, 0 of them twice",
    "shared_parameters": r"a trainer was killed(.|\n)* [1-9]\d* snapshots, and 0 torn ones",
    "web_jobs": r"[1-9]\d* web workers and workers.*\n60 jobs, 60 right results; 0 dead",
    "web_workers": r"was killed, and replaced(.|\n)*\n[1-9]\d* answers, 0 wrong",
    "work_queue": r"[1-9]\d* workers were killed.*\n60 jobs; .*; 60 results\n",
}
"""The text that it prints when its promises have held."""
BROKEN = {
    "bank": """
def transfer(tx, store, source, target, amount):
    store.put(source, b"%d" % (int(store.get(source)) - 1))  # not by the transaction, and one side
    return True
module.transfer = transfer
""",
    "jobs": """
def setdefault(self, job, result):
    if job != 7:  # its result is forgotten
        self[job] = result
module.limpet.SharedDict.setdefault = setdefault
""",
    "async_service": """
module.Service.kill = lambda self: module.asyncio.sleep(module.LONGEST_S)  # none is killed
""",
    "linked_list": """
def remove(tx, nodes, value):
    at, found = module.place(tx, nodes, value)
    if found == value:  # its node is in neither list then
        gone, own = module.NODE.unpack(tx.read(nodes[at]))
        after, _ = module.NODE.unpack(tx.read(nodes[gone]))
        tx.write(nodes[at], module.NODE.pack(after, own))
    return found == value
module.remove = remove
""",
    "own_channel": """
def rise(self, level):
    with self.operation():
        self.endpoint.store(self.address, max(level - 10, 0))  # whatever is there
module.HighWater.rise = rise
""",
    "own_store": """
write = module.Tiny._write
module.Tiny._write = lambda self, key, value, mode: write(self, key, b"%d" % (int(value) + 5), mode)
""",
    "pipeline": """
def setdefault(self, number, result):
    if number != 7:  # its result is forgotten
        self[number] = result
module.limpet.SharedDict.setdefault = setdefault
""",
    "shared_cache": """
module.limpet.Cache.get_or_compute = lambda self, key, compute, **how: compute()  # all compute
""",
    "shared_parameters": """
def publish(self, version, weights):
    self.copies[version % 2, :500] = weights[:500]  # half of them
    self.version.set(version)
module.Parameters.publish = publish
""",
    "web_jobs": """
ask = module.Site.ask
def wrong(self, method, path):
    status, body = ask(self, method, path)
    return status, "7" if body == "49" else body  # an answer is another job's
module.Site.ask = wrong
""",
    "web_workers": """
module.render = lambda path: "<h1>another page</h1>"
""",
    "work_queue": """
def setdefault(self, job, result):
    if job != 7:  # its result is forgotten
        self[job] = result
module.limpet.SharedDict.setdefault = setdefault
""",
}
"""Lines that break each promise, run before the program."""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parent.parent)}


@contextlib.contextmanager
def started(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program that leads a group of processes, all of which end, whatever happens."""
    process = subprocess.Popen(
        [sys.executable, *command],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for name in {path.name.split(".")[1] for path in segments(process.pid)}:
            limpet.destroy(f"shm://{name}")


def segments(pid: int) -> list[Path]:
    return list(SHM.glob(f"limpet.temporary-{pid}-*"))


def has_left_nothing(process: subprocess.Popen[str]) -> bool:
    """Whether there is no segment and no process of a program that has ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return segments(process.pid) == []
        time.sleep(0.05)
    return False


def test_every_example_is_described_and_tried() -> None:
    there = {path.stem for path in EXAMPLES.glob("*.py")}
    assert there == set(BRIEF) == set(SAYS) == set(BROKEN)
    assert set(re.findall(r"^\| `(\w+)\.py`", (EXAMPLES / "README.md").read_text(), re.M)) == there
    for name in there:
        head = (EXAMPLES / f"{name}.py").read_text().partition('"""\n\n')[0]
        assert f"python examples/{name}.py {BRIEF[name][0]} " in head


@pytest.mark.exhaustive("every example", quick=["bank", "work_queue", "own_store"])
@pytest.mark.parametrize("name", sorted(BRIEF))
def test_example_holds_what_it_promises_and_leaves_nothing(name: str) -> None:
    with started(EXAMPLES / f"{name}.py", *BRIEF[name]) as process:
        out, err = process.communicate(timeout=PROGRAM_S)
        assert (process.returncode, err) == (0, ""), out
        assert re.search(SAYS[name], out), out
        assert re.search(r"\b0 bytes leaked", out), out
        assert has_left_nothing(process)


@pytest.mark.exhaustive("seconds of processes each")
@pytest.mark.parametrize("name", sorted(BRIEF))
def test_example_fails_when_its_promise_is_broken(name: str) -> None:
    program = f"""
import multiprocessing, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import {name} as module
multiprocessing.set_start_method("fork")  # so that its processes are as broken
{BROKEN[name]}
module.WAIT_S = module.LONGEST_S = 10
sys.argv[1:] = {BRIEF[name]!r}
sys.exit(module.main())
"""
    with started("-c", program) as process:
        out, err = process.communicate(timeout=PROGRAM_S)
        assert process.returncode == 1, out + err
        assert "Traceback" not in err, err
        assert has_left_nothing(process)


@pytest.mark.exhaustive("every example", quick=["bank-2", "own_channel-15"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", sorted(BRIEF))
def test_example_that_is_ended_leaves_nothing(name: str, how: signal.Signals) -> None:
    with started(EXAMPLES / f"{name}.py", *LONG[name]) as process:
        deadline = time.monotonic() + PROGRAM_S
        children: list[Any] = []
        while len(children) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            children = found.split()
        process.send_signal(how)
        _, err = process.communicate(timeout=PROGRAM_S)
        assert (process.returncode, err) == (1, f"ended by {how.name}\n")
        assert len(children) >= 2
        assert has_left_nothing(process)
