"""A durable pool of several hosts: when it is made whole, and by which of the processes that open
it. Hosts are names in LIMPET_HOST here, and a host that boots again has another name."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from kit.durable_hosts import LEASE_S, Host, durable_pool, mended
from kit.processes import Child, child

import limpet
from limpet.__main__ import main
from limpet.shm import mending
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import GATE
from limpet.shm.errors import ParameterError
from limpet.shm.mending import SEVERAL
from limpet.stores.registry import KINDS

pytestmark = pytest.mark.skipif(BUILD != "compiled", reason="a durable pool needs clwb")


class Opener(Host):
    """A process that stands still in the gate."""

    def take_gate(self, unguarded: bool = False) -> None:
        """Open the pool, and stand still as soon as the gate is taken."""

        def stand_still(members: Any) -> bool:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.1)  # another thread may have got the signal: until it stops this one, too
            if unguarded:
                members.endpoint.guard(0, 0)
            return False

        with mock.patch.object(mending, "_a_client_lives", stand_still):
            self.open()


def serving(url: str, name: str) -> contextlib.AbstractContextManager[Child]:
    host = Opener(url, name)
    return child(
        open=host.open, put=host.put, keys=host.keys, power=host.power, gate=host.take_gate,
        unguarded=lambda: host.take_gate(unguarded=True), close=lambda: host.pool.close(),
        gate_word=lambda: host.pool.endpoint.load(GATE),
    )  # fmt: skip


@pytest.fixture
def url() -> Iterator[str]:
    with durable_pool() as name:
        yield name


def test_pool_that_all_hosts_left_at_once_is_made_whole_by_the_first_to_come(url: str) -> None:
    with serving(url, "a2") as a, serving(url, "b2") as b:
        a.send("open")
        b.send("open")
        assert sorted([mended(a.answer()), mended(b.answer())]) == [False, True]
        a.do("put")
        b.do("put")
        assert a.do("keys") == b.do("keys") == [b"a2", b"b2", b"first"]
        assert a.do("power") == SEVERAL


def test_host_that_comes_while_another_works_changes_nothing(url: str) -> None:
    with serving(url, "first") as a, serving(url, "b") as b:
        assert not mended(a.do("open"))  # this host alone has used it, and its kernel runs
        alone = a.do("power")
        assert not mended(b.do("open"))
        assert alone != b.do("power") == SEVERAL
        a.kill()
        with serving(url, "a2") as again:
            assert not mended(again.do("open"))
            again.do("put")
            assert b.do("keys") == [b"a2", b"first"]


def test_pool_that_several_hosts_used_and_left_is_made_whole(url: str) -> None:
    """Any of them may have been switched off meanwhile, for all that the next one knows."""
    with serving(url, "first") as a, serving(url, "b") as b:
        a.do("open")
        b.do("open")
        b.do("put")
        a.do("close")
        b.do("close")
        assert mended(a.do("open"))
        assert a.do("keys") == [b"b", b"first"]
        a.do("close")
        assert not mended(a.do("open"))


def test_process_that_ends_while_it_opens_holds_others_for_a_lease(url: str) -> None:
    with serving(url, "a2") as a, serving(url, "b2") as b:
        a.send("gate")
        os.waitpid(a.pid, os.WUNTRACED)
        a.kill()
        assert mended(b.do("open"))
        assert b.do("keys") == [b"first"]


def test_process_that_stood_still_while_it_opened_makes_no_step(url: str) -> None:
    with serving(url, "a2") as a, serving(url, "b2") as b:
        a.send("gate")
        os.waitpid(a.pid, os.WUNTRACED)
        assert mended(b.do("open"))
        b.do("put")
        a.wake()
        with pytest.raises(RuntimeError, match="ClientError"):
            a.answer()
        assert b.do("keys") == [b"b2", b"first"]
        assert b.do("gate_word") == 0
        with serving(url, "c") as c:
            assert not mended(c.do("open"))


def test_without_the_guard_such_a_process_frees_the_slots_of_others(url: str) -> None:
    with serving(url, "a2") as a, serving(url, "b2") as b:
        a.send("unguarded")
        os.waitpid(a.pid, os.WUNTRACED)
        b.do("open")
        a.wake()
        a.answer()
        with pytest.raises(RuntimeError, match="declared dead"):
            b.do("put")


def test_gate_is_open_again_and_names_no_process(url: str) -> None:
    with serving(url, "a2") as a:
        a.do("open")
        with limpet.open(url) as pool:
            assert pool.endpoint.load(GATE) == 0


def test_child_that_is_forked_joins_and_is_not_to_make_the_pool_whole(url: str) -> None:
    def fork() -> int:
        host.put()
        pid = os.fork()
        if not pid:
            host.pool.store("race", name="s").put(b"of the child", b"value")
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    host = Host(url, "a2")
    with child(open=host.open, fork=fork, keys=host.keys) as a:
        a.do("open")
        assert a.do("fork") == 0
        assert a.do("keys") == [b"a2", b"first", b"of the child"]


def test_commands_show_that_it_is_durable_and_since_when_it_is_whole(url: str) -> None:
    with serving(url, "a2") as a:
        a.do("open")
        run = CliRunner()
        told = json.loads(run.invoke(main, ["hosts", url, "--json"]).stdout)
        text = " ".join(run.invoke(main, ["hosts", url]).stdout.split())
        shown = json.loads(run.invoke(main, ["inspect", url, "--json"]).stdout)
    assert told["terms"]["durable"] is told["terms"]["multi_host"] is True
    assert told["terms"]["lease_us"] == int(LEASE_S * 1e6)
    assert (
        told["whole_since"] == "several hosts use it: it is whole if a client of one of them lives"
    )
    assert "durable True" in text
    assert f"durable: {told['whole_since']}" in text
    assert {"a2"} < {row["host"] for row in shown["hosts"]}


def test_durable_pool_with_a_fence_command_is_refused(url: str) -> None:
    with pytest.raises(ParameterError, match="durable pool cannot have fence"):
        limpet.create("simulated://none", durable=True, multi_host=True, fence="command")


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"race"}))
def test_kind_that_a_power_cut_would_leave_in_pieces_is_refused(url: str, kind: str) -> None:
    with serving(url, "a2") as a:
        a.do("open")  # so that the pool is not made whole for each kind
        with (
            limpet.open(url) as pool,
            pytest.raises(
                ParameterError, match=rf"\ban? {kind} store would not survive a power cut"
            ),
        ):
            pool.store(kind, name="other")
