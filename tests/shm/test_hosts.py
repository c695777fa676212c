"""Hosts: what they are called, when one is lost, the command that switches one off."""

from __future__ import annotations

import ctypes
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit.clients import ids, slot_of
from kit.processes import child
from kit.waiting import until

import limpet
from limpet.__main__ import main
from limpet.shm.clients import hosts, liveness
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import OFFSET_MASK
from limpet.shm.errors import ClientError, ParameterError
from limpet.shm.release import RELEASE, text_of, text_word

LEASE_S = 0.2
LEASE_US = int(LEASE_S * 1e6)
LONG_US = 1_500_000
"""A lease that a busy machine leaves a thread to renew."""


@pytest.fixture(autouse=True)
def _nameless(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv(hosts.VARIABLE, raising=False)
    yield
    liveness.forget_surroundings()


class Away:
    """A client, in this process, that looks as if it were of another host."""

    def __init__(self, pool: limpet.Pool, boot: int = 1, machine: int = 0, name: str = "") -> None:
        self.pool = limpet.open(pool.url)
        self.ident = self.pool.client_id
        at = slot_of(self.ident)
        endpoint = pool.endpoint
        endpoint.store(at + slots.BOOT, endpoint.load(at + slots.BOOT) ^ boot)
        endpoint.store(at + slots.MACHINE, machine)
        if name:
            endpoint.store(at + slots.NAME, hosts.name_word(name))

    def stand_still(self) -> None:
        """Renew no lease any more, as on a host that was switched off."""
        self.pool.membership.heart.stop()
        self.pool.membership.heart.join()

    def __enter__(self) -> Away:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.close()


def recovered_after(pool: limpet.Pool, ident: int, limit_s: float = 60.0) -> float:
    """How long it takes others to find the client dead."""
    start = time.monotonic()
    while ident in ids(pool):
        pool.recover()
        assert time.monotonic() < start + limit_s, "it is not given up"
        time.sleep(LEASE_S / 50)
    return time.monotonic() - start


# ---- names ---------------------------------------------------------------------------------------


def test_name_is_kept_over_boots_and_differs_from_others() -> None:
    assert hosts.this_machine("a") == hosts.this_machine("a") != hosts.this_machine("b")
    assert hosts.this_machine("a") & hosts.NAMED
    assert not hosts.this_machine("") & hosts.NAMED
    assert text_of(hosts.name_word("rack-a")) == "rack-a"
    assert text_of(hosts.name_word("a name that is long")) == "a name t"
    assert text_of(int.from_bytes(b"a\x1b[2J\n", "little")) == "a?[2J?"


def test_machines_of_one_image_differ_by_their_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the same /etc/machine-id, which proves nothing, so nothing is concluded from it."""
    image = hosts.this_machine("")
    assert image & hosts.NAMED == 0
    # Copies of a running machine have one boot id, too: only a name tells them apart.
    assert liveness.this_host() == liveness.this_host("")
    assert liveness.this_host("a").boot != liveness.this_host("b").boot


def test_host_without_machine_id_has_no_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hosts, "MACHINE_ID", tmp_path / "none")
    hosts.this_machine.cache_clear()
    assert hosts.this_machine("") == 0
    hosts.this_machine.cache_clear()


def test_name_means_nothing_in_a_pool_of_one_host(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that lacks the variable must not take its neighbours for another host's."""
    pool = pools()
    monkeypatch.setenv(hosts.VARIABLE, "rack-a")
    with limpet.open(pool.url) as other:
        assert pool.recover()["clients"] == other.recover()["clients"] == []
        assert {client["host"] for client in pool.clients()} == {"local"}


def test_another_host_that_runs_and_has_this_name_is_refused(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hosts.VARIABLE, "rack-a")
    pool = pools(multi_host=True, lease=LONG_US / 1e6)
    with Away(pool, machine=hosts.this_machine("rack-a")):
        with pytest.raises(ClientError, match="called 'rack-a', too; give each host a LIMPET_HOST"):
            limpet.open(pool.url)
        assert len(ids(pool)) == 2


def test_host_that_booted_again_recovers_its_earlier_run_after_one_lease(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hosts.VARIABLE, "rack-a")
    pool = pools(multi_host=True, lease=LEASE_US / 1e6)
    with Away(pool, machine=hosts.this_machine("rack-a")) as earlier:
        earlier.stand_still()
        start = time.monotonic()
        with limpet.open(pool.url) as again:
            took = time.monotonic() - start
            assert earlier.ident not in ids(again)
        assert took >= LEASE_S * 0.9  # it was looked at for so long
        assert pool.endpoint.load(slot_of(earlier.ident) + slots.FENCE) == 0  # no host was asked


def test_client_with_the_same_machine_id_is_given_two_leases(pools: Any) -> None:
    """It may be another machine of the same image."""
    pool = pools(multi_host=True, lease=LEASE_US / 1e6)
    with Away(pool, machine=hosts.this_machine("")) as other:
        other.stand_still()
        assert recovered_after(pool, other.ident) >= 2 * LEASE_S * 0.9


# ---- switching off -------------------------------------------------------------------------------


def test_host_is_given_up_only_when_the_command_has_switched_it_off(
    pools: Any, tmp_path: Path
) -> None:
    pool = pools(multi_host=True, lease=LEASE_US / 1e6, fence="command")
    switch, told = tmp_path / "off", tmp_path / "told"
    program = tmp_path / "fence"
    program.write_text(f'#!/bin/sh\necho "$@" >> {told}\ntest -e {switch}\n')
    program.chmod(0o700)
    with Away(pool, boot=1, name="rack-b") as other:
        other.stand_still()
        end = time.monotonic() + 4 * LEASE_S
        while time.monotonic() < end:  # a client without a command waits, and names the other
            assert pool.recover()["clients"] == []
            time.sleep(LEASE_S / 10)
        assert "suspended" in {event["kind"] for event in pool.events()}
        watch = pool.watch(LEASE_S / 20, [str(program)])
        pool.membership.remote.fencer = hosts.fencer_of([str(program)])
        assert pool.recover()["clients"] == []  # the command says that it could not
        assert other.ident in ids(pool)
        name, machine, boot = told.read_text().split("\n")[0].split()
        assert (name, machine) == ("rack-b", f"{0:016x}")
        assert int(boot, 16) == pool.membership.here.boot ^ 1
        switch.touch()
        assert next(watch)["clients"] == [other.ident]
        assert ids(pool) == {pool.client_id}


def test_command_that_hangs_or_is_not_there_switches_nothing_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = hosts.LostHost("rack-b", "0", "1")
    assert not hosts.fencer_of(["/nonexistent/program"])(lost)
    assert not hosts.fencer_of(["false"])(lost)
    assert hosts.fencer_of(["true"])(lost)
    monkeypatch.setattr(hosts, "COMMAND_S", 0.05)
    assert not hosts.fencer_of(["sh", "-c", "exec sleep 20"])(lost)


def test_container_of_this_host_is_never_switched_off(pools: Any) -> None:
    """The command would switch off the host that it runs on."""
    pool = pools(multi_host=True, lease=LEASE_US / 1e6, fence="command")
    asked: list[hosts.LostHost] = []
    pool.membership.remote.fencer = lambda lost: not asked.append(lost)
    with Away(pool, boot=0) as other:
        at = slot_of(other.ident)
        pool.endpoint.store(at + slots.NAMESPACE, pool.endpoint.load(at + slots.NAMESPACE) ^ 1)
        pool.endpoint.store(at + slots.LOCKED, 0)  # its lock is on another device node
        other.stand_still()
        end = time.monotonic() + 4 * LEASE_S
        while time.monotonic() < end:
            assert pool.recover()["clients"] == []
            time.sleep(LEASE_S / 10)
    assert asked == []


def test_command_is_refused_where_it_would_not_be_waited_for(pools: Any) -> None:
    with pytest.raises(ParameterError, match="multi_host=True"):
        pools(fence="command")
    pool = pools(multi_host=True)
    with pytest.raises(ParameterError, match='create the pool with fence="command"'):
        next(pool.watch(0.01, ["true"]))


# ---- clients that keep nothing, and clients that go on -------------------------------------------


def remote(pool: limpet.Pool, store: Any) -> Any:
    """A child that works on request."""
    return child(
        join=lambda: pool.client_id,
        pin=lambda: pool.client.enter(),
        unpin=lambda: pool.client.leave(),
        put=lambda: store.put(b"of the child", b"value"),
        hold_the_gil=lambda: ctypes.PyDLL(None).usleep(3 * LONG_US),
    )


def away(pool: limpet.Pool, ident: int) -> int:
    """Have a child look as if it were of another host; the address of its slot."""
    at = slot_of(ident)
    pool.endpoint.store(at + slots.BOOT, pool.endpoint.load(at + slots.BOOT) ^ 1)
    return at


def look_for(pool: limpet.Pool, seconds: float) -> list[int]:
    """Look for the dead for so long; those found."""
    found: list[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found += pool.recover()["clients"]
        time.sleep(LEASE_S / 50)
    return found


def test_client_that_holds_the_gil_for_long_is_asked_for_nothing(pools: Any) -> None:
    """In the compiled build its lease goes on; in the pure one it ends, and nobody is killed."""
    pool = pools(multi_host=True, lease=LONG_US / 1e6)
    with remote(pool, pool.store("race", capacity=64)) as client:
        at = away(pool, client.do("join"))
        client.send("hold_the_gil")
        found = look_for(pool, 3e-6 * LONG_US)
        assert pool.endpoint.load(at + slots.FENCE) == 0
        client.answer()
        if limpet.build == "compiled":
            assert found == []
            client.do("put")
        else:
            with pytest.raises(RuntimeError, match="no longer a client of the pool"):
                client.do("put")


@pytest.mark.parametrize("fence", ["kill", "wait"])
def test_client_that_was_frozen_and_keeps_nothing_is_not_killed(pools: Any, fence: str) -> None:
    pool = pools(multi_host=True, lease=LEASE_US / 1e6, fence=fence)
    with remote(pool, pool.store("race", capacity=64)) as client:
        at = away(pool, client.do("join"))
        client.stop()
        found: list[int] = []
        while not found:
            found = pool.recover()["clients"]
            assert pool.endpoint.load(at + slots.FENCE) == 0
            time.sleep(LEASE_S / 50)
        client.wake()
        with pytest.raises(RuntimeError, match="no longer a client of the pool"):
            client.do("put")
        assert "fenced" not in {event["kind"] for event in pool.events()}


def test_request_to_end_a_client_is_taken_back_when_it_goes_on(pools: Any) -> None:
    pool = pools(multi_host=True, lease=LEASE_US / 1e6)
    with remote(pool, pool.store("race", capacity=64)) as client:
        at = slot_of(client.do("join"))
        pool.endpoint.store(at + slots.FENCE, 12345)
        end = time.monotonic() + 60
        while pool.endpoint.load(at + slots.FENCE):
            assert time.monotonic() < end
            time.sleep(LEASE_S / 50)
        client.do("put")


def test_client_is_not_killed_for_another_host_where_the_policy_is_to_wait(pools: Any) -> None:
    pool = pools(multi_host=True, lease=LEASE_US / 1e6, fence="wait")
    with remote(pool, pool.store("race", capacity=64)) as client:
        ident = client.do("join")
        client.do("pin")
        client.stop()
        pool.endpoint.store(slot_of(ident) + slots.FENCE, 12345)
        end = time.monotonic() + 60
        while ("suspended", ident) not in [(e["kind"], e["subject"]) for e in pool.events()]:
            assert time.monotonic() < end
            time.sleep(LEASE_S / 50)
        client.wake()
        client.do("unpin")


def test_client_that_stands_still_in_one_operation_is_given_up_only_if_it_is_in_the_way(
    pools: Any,
) -> None:
    """Its process lives, and it keeps memory from all others."""
    pool = pools(multi_host=True, lease=LONG_US / 1e6)
    with remote(pool, pool.store("race", capacity=64)) as client:
        ident = client.do("join")
        away(pool, ident)
        client.do("pin")
        assert look_for(pool, 2e-6 * LONG_US) == []
        found: list[int] = []
        end = time.monotonic() + 60
        while not found and time.monotonic() < end:
            pool.membership.remote.ask(ident >> slots.INCARNATION_BITS)
            found = look_for(pool, LEASE_S)
        assert found == [ident]


# ---- limpet hosts --------------------------------------------------------------------------------


def test_hosts_tells_who_renews_and_whose_clock_is_ahead(pools: Any) -> None:
    pool = pools(multi_host=True, lease=LONG_US / 1e6)
    with Away(pool, boot=1, name="rack-b") as renews, Away(pool, boot=2, name="rack-c") as silent:
        silent.stand_still()
        renews.stand_still()
        beat = slot_of(renews.ident) + slots.BEAT
        with child(beats=lambda: beat_for(pool, beat, 10_000_000)) as clock:
            clock.send("beats")
            found = {row["host"]: row for row in pool.hosts()}
            clock.kill()
    here = found.pop(text_of(hosts.name_word("")))
    assert here["here"]
    assert here["lease"] == "renewed"
    assert abs(here["clock_s"]) < 1
    assert here["pids"] == [os.getpid()]
    assert set(found) == {"rack-b", "rack-c"}
    assert found["rack-b"]["lease"] == "renewed"
    assert found["rack-b"]["clients"] == [renews.ident]
    assert 9 < found["rack-b"]["clock_s"] < 11
    assert 0 <= found["rack-b"]["renewed_s"] < LONG_US / 1e6
    assert found["rack-c"]["lease"] == "silent"
    assert found["rack-c"]["renewed_s"] is found["rack-c"]["clock_s"] is None


def beat_for(pool: limpet.Pool, beat: int, ahead_us: int) -> None:
    """Renew a lease by a clock that is ahead; in a forked child, which is no client."""
    control = Path(f"/dev/shm/limpet.{pool.url.removeprefix('shm://')}.control")
    end = time.monotonic() + 60
    with control.open("r+b", buffering=0) as file:
        while time.monotonic() < end:
            word = (time.time_ns() // 1000 + ahead_us).to_bytes(8, "little")
            os.pwrite(file.fileno(), word, beat & OFFSET_MASK)
            time.sleep(LEASE_S / 20)


def test_hosts_of_a_pool_of_one_host_have_no_lease(pools: Any) -> None:
    (row,) = pools().hosts()
    assert row["here"]
    assert row["lease"] == "none"
    assert row["renewed_s"] is row["clock_s"] is None


def test_command_shows_hosts_and_devices(pools: Any) -> None:
    pool = pools(nodes=2, multi_host=True, lease=LEASE_US / 1e6)
    with Away(pool, boot=1, name="rack-b"):
        shown = CliRunner().invoke(main, ["hosts", pool.url])
        said = CliRunner().invoke(main, ["hosts", pool.url, "--json"])
    assert shown.exit_code == said.exit_code == 0, shown.output + said.output
    assert "rack-b" in shown.output
    assert "(here)" in shown.output
    found = json.loads(said.output)
    assert {row["host"] for row in found["hosts"]} >= {"rack-b"}
    assert [node["node"] for node in found["nodes"]] == [0, 1]


def test_beat_goes_up_although_the_clock_does_not(pools: Any) -> None:
    pool = pools(multi_host=True, lease=LEASE_US / 1e6)
    beat = slot_of(pool.client_id) + slots.BEAT
    ahead = time.time_ns() // 1000 + 3_600_000_000
    pool.endpoint.store(beat, ahead)
    until(lambda: pool.endpoint.load(beat) != ahead)
    if pool.endpoint.load(beat) < ahead:  # a beat that had begun before has replaced ours
        pool.endpoint.store(beat, ahead)
        until(lambda: pool.endpoint.load(beat) != ahead)
    assert ahead < pool.endpoint.load(beat) < ahead + 100


def test_hosts_and_clients_name_the_release_of_each_client(pools: Any) -> None:
    pool = pools()
    older = limpet.open(pool.url)
    pool.endpoint.store(slot_of(older.client_id) + slots.RELEASE, text_word("0.0.9"))
    assert [row["release"] for row in pool.clients()] == [RELEASE, "0.0.9"]
    (row,) = pool.hosts()
    assert row["releases"] == [RELEASE, "0.0.9"]
    shown = CliRunner().invoke(
        main, ["hosts", pool.url], terminal_width=200, env={"COLUMNS": "200"}
    )
    assert "0.0.9" in shown.output
    assert row["namespace"][:6] in shown.output
    older.close()
