"""Exit handlers and destructors that use a pool after limpet's own, and before.

A destructor of a module's global runs when nothing can be imported any more: so its store is open.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable

import pytest

import limpet

PROGRAMS = {
    "handler before the import": """
import atexit
atexit.register(lambda: use("a"))
import limpet
pool = limpet.open(URL)
""",
    "handler between import and open": """
import atexit, limpet
atexit.register(lambda: use("a"))
pool = limpet.open(URL)
""",
    "handler after open": """
import atexit, limpet
pool = limpet.open(URL)
atexit.register(lambda: use("a"))
""",
    "finalizer before the import": """
import weakref
class Owner: pass
owner = Owner()
weakref.finalize(owner, lambda: use("a"))
import limpet
pool = limpet.open(URL)
""",
    "finalizer of multiprocessing before the import": """
import multiprocessing.util
multiprocessing.util.Finalize(None, lambda: use("a"), exitpriority=-100)
import limpet
pool = limpet.open(URL)
""",
    "end of the threads": """
import threading
threading._register_atexit(lambda: use("a"))
import limpet
pool = limpet.open(URL)
""",
    "thread that goes on": """
import limpet, threading, time
pool = limpet.open(URL)
def go_on():
    threading.main_thread().join()
    use("a")
threading.Thread(target=go_on).start()
""",
    "destructor": """
import limpet
class Owner:
    def __init__(self):
        self.entries = limpet.open(URL).dict("d")
    def __del__(self, use=use):
        use("a", self.entries)
owner = Owner()
""",
    "destructor, in a cycle": """
import limpet
class Owner:
    def __init__(self):
        self.entries, self.itself = limpet.open(URL).dict("d"), self
    def __del__(self, use=use):
        use("a", self.entries)
owner = Owner()
""",
    "child of multiprocessing": """
import limpet, multiprocessing.util
pool = limpet.open(URL)
def target():
    multiprocessing.util.Finalize(None, lambda: use("a"), exitpriority=-100)
child = multiprocessing.get_context("fork").Process(target=target)
child.start()
child.join()
assert child.exitcode == 0
""",
}


@pytest.mark.parametrize(
    ("order", "multi_host"),
    [
        *((order, False) for order in PROGRAMS),
        ("handler before the import", True),
        ("destructor, in a cycle", True),
    ],
)
def test_pool_can_be_used_until_the_end_of_the_interpreter(
    order: str, multi_host: bool, make_url: Callable[[], str]
) -> None:
    url = make_url()
    use = """
def use(key, d=None):
    d = pool.dict("d") if d is None else d
    d[key] = d.get(key, 0) + 1
    d.update_with(key, lambda value: value + 1)
"""
    with limpet.create(url, node_size="2MiB", clients=8, multi_host=multi_host) as pool:
        program = f"URL = {url!r}\n{use}{PROGRAMS[order]}"
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert dict(pool.dict("d")) == {"a": 2}
        pool.recover()
        assert [client["ours"] for client in pool.clients()] == [True]
        assert pool.audit()["leaked"] == 0
    limpet.destroy(url)


def test_process_that_uses_nothing_at_exit_leaves_nothing_to_recover(
    make_url: Callable[[], str],
) -> None:
    url = make_url()
    with limpet.create(url, node_size="2MiB", clients=8) as pool:
        program = f"import limpet; pool = limpet.open({url!r}); pool.dict('d')['a'] = 1"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
        assert [client["ours"] for client in pool.clients()] == [True]
        assert pool.events() == []
    limpet.destroy(url)


LATE = {
    "writes": """
def use():
    try:
        for number in range(500):
            mine.put(b"late %d" % number, b"m" * 400)
    except limpet.StoreFull:
        pass
""",
    "has values in place": """
def use():
    assert bytes(viewed) == b"m" * 400
    reserved[:] = b"r" * 400
""",
}


@pytest.mark.parametrize("how", LATE)
def test_memory_that_is_used_at_exit_is_not_others(how: str, make_url: Callable[[], str]) -> None:
    """Another client has all memory that the process gave back when its handle left."""
    url = make_url()
    program = f"""
import atexit
def late():
    print("left", flush=True)
    input()
    use()
atexit.register(late)
import limpet
mine = limpet.open({url!r}).store("race", "mine")
for number in range(20):
    mine.put(b"%d" % number, b"m" * 400)
viewed = reserved = None
if {how!r} == "has values in place":
    view, reservation = mine.view(b"1"), mine.reserve(b"new", 400)
    viewed, reserved = view.__enter__(), reservation.__enter__()
{LATE[how]}
"""
    with limpet.create(url, node_size="1MiB", clients=8) as pool:
        others = pool.store("race", "others")
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == "left\n"
            pool.store("race", "mine").delete(b"1")
            count = 0
            with contextlib.suppress(limpet.StoreFull):
                while True:
                    others.put(b"%d" % count, b"o" * 400)
                    count += 1
            _, errors = process.communicate("\n", timeout=60)
        assert (process.returncode, errors) == (0, "")
        assert dict(others.items()) == {b"%d" % n: b"o" * 400 for n in range(count)}
        others.check()
        pool.recover()
        found = pool.audit()
        assert (found["leaked"], found["held"]) == (0, 0)
    limpet.destroy(url)


def test_close_at_exit_ends_though_a_thread_was_inside(make_url: Callable[[], str]) -> None:
    url = make_url()
    program = f"""
import atexit, threading, time
atexit.register(lambda: pool.close())
import limpet
pool = limpet.open({url!r})
inside = threading.Event()
def work():
    with pool.client:
        inside.set()
        time.sleep(0.5)
threading.Thread(target=work, daemon=True).start()
inside.wait()
"""
    with limpet.create(url, node_size="2MiB", clients=8, multi_host=True):
        done = subprocess.run([sys.executable, "-c", program], check=False, timeout=30)
        assert done.returncode == 0
    limpet.destroy(url)
