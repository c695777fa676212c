"""The commands on pools of other users, on pools that go away, and on stores that do not fit."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import limpet
from limpet.__main__ import main

pytestmark = pytest.mark.either_build("commands are not compiled")

OTHER_UID = 54_321
OF_POOLS = [
    ["inspect"], ["hosts"], ["keys", "--store", "s"], ["get", "k", "--store", "s"],
    ["put", "k", "v", "--store", "s"], ["dump", "--store", "s"], ["rename", "s", "t"],
    ["delete", "k", "--store", "t"], ["drop", "t"], ["replace-node", "0"], ["fail-node", "0"],
    ["destroy"],
]  # fmt: skip


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


@pytest.fixture
def pool(make_url: Callable[[], str]) -> Iterator[str]:
    """The name of a pool with a store `s` that has a key, and a cache `c`."""
    url = make_url()
    try:
        with limpet.create(url, nodes=2, node_size="4MiB") as made:
            made.store("race", name="s", capacity=100).put(b"k", b"v")
            made.cache("c", codec="json")["k"] = 1
        yield url.removeprefix("shm://")
    finally:
        with contextlib.suppress(limpet.PoolNotFound):
            limpet.destroy(url, any_owner=True)


def stores(pool: str) -> list[str]:
    with limpet.open(f"shm://{pool}") as opened:
        return sorted(entry["name"] for entry in opened.stores())


def give_away(pool: str) -> None:
    for path in Path("/dev/shm").glob(f"limpet.{pool}.*"):
        os.chown(path, OTHER_UID, -1)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_each_command_can_use_a_pool_of_another_user(pool: str) -> None:
    give_away(pool)
    for command, *rest in OF_POOLS:
        refused = run(command, pool, *rest)
        assert refused.exit_code == 1, (command, refused.output)
        assert refused.stderr.startswith("Error: PoolPermission"), command
        assert "--any-owner" in refused.stderr
        allowed = run(command, "--any-owner", pool, *rest)
        expected = 2 if command == "replace-node" else 0  # the node is in service
        assert allowed.exit_code == expected, (command, allowed.output)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_dumps_and_caches_of_another_user(pool: str) -> None:
    dumped = run("dump", pool, "--store", "s").stdout
    give_away(pool)
    assert run("load", pool, "--store", "new", stdin=dumped).exit_code == 1
    assert run("load", pool, "--any-owner", "--store", "new", stdin=dumped).exit_code == 0
    assert run("cache", pool, "c", "get", "k").exit_code == 1
    for rest in (["get", "k"], ["set", "k", "2"], ["stats"], ["clear"]):
        assert run("cache", "--any-owner", pool, "c", *rest).exit_code == 0, rest
    assert run("watch", pool).exit_code == 1


def test_watch_says_that_the_pool_was_destroyed_and_ends(pool: str) -> None:
    command = [sys.executable, "-m", "limpet", "watch", pool]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert watcher.stderr is not None
        assert b"watching" in watcher.stderr.readline()
        limpet.destroy(f"shm://{pool}")
        assert watcher.wait(20) == 1
        said = watcher.stderr.read().decode()
        assert said.startswith(f"Error: PoolNotFound: shm://{pool} was destroyed"), said
    finally:
        watcher.send_signal(signal.SIGKILL)
        watcher.communicate()


def test_watch_in_a_program_ends_also_when_another_pool_has_the_name(pool: str) -> None:
    with limpet.open(pool) as opened:
        limpet.destroy(opened.url)
        limpet.create(opened.url, node_size="1MiB").close()
        with pytest.raises(limpet.PoolNotFound, match="was destroyed"):
            next(opened.watch(0.001))


@pytest.mark.parametrize(
    "words",
    [
        ["[1]", "v", "--codec", "json"],
        ["k", "v", "--codec", "int"],
        ["k", "v", "--hex"],
        ["k", "v", "--codec", "nonsense"],
        ["k" * 65_536, "v"],
        ["k" * 40, "v", "--kind", "rcuckoo"],
    ],
)
def test_a_put_that_fails_makes_no_store(pool: str, words: list[str]) -> None:
    assert run("put", pool, *words, "--store", "left").exit_code in (1, 2)
    assert stores(pool) == ["c", "s"]


def test_a_put_or_load_with_another_kind_than_that_of_the_store_is_refused(pool: str) -> None:
    dumped = run("dump", pool, "--store", "s").stdout
    for command, *words in (["put", "k", "w"], ["load"]):
        refused = run(command, pool, *words, "--store", "s", "--kind", "fusee", stdin=dumped)
        assert refused.exit_code == 1, command
        assert refused.stderr.startswith("Error: StoreMismatch"), refused.stderr
        assert "is a race store, not a fusee store" in refused.stderr
    assert run("get", pool, "k", "--store", "s").stdout == "v"
    assert run("put", pool, "k", "w", "--store", "s", "--kind", "race").exit_code == 0


def test_ls_of_a_pool_that_is_missing_is_an_error(make_url: Callable[[], str]) -> None:
    url = make_url()
    for more in ([], ["--json"]):
        result = run("ls", url, *more)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"Error: PoolNotFound: {url}: there is no such pool")


def test_watch_waits_for_the_pool_and_for_the_next_one_of_its_name(pool: str) -> None:
    limpet.destroy(f"shm://{pool}")
    command = [sys.executable, "-m", "limpet", "watch", pool, "--wait"]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert watcher.stderr is not None
        for _ in range(2):
            assert any(b"waiting: shm" in line for line in watcher.stderr)
            limpet.create(f"shm://{pool}", node_size="2MiB").close()
            assert any(b"watching shm" in line for line in watcher.stderr)
            limpet.destroy(f"shm://{pool}")
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(20) == 0
    finally:
        watcher.send_signal(signal.SIGKILL)
        watcher.communicate()


def test_create_takes_what_create_of_a_program_takes(make_url: Callable[[], str]) -> None:
    name = make_url().removeprefix("shm://")
    made = run("create", name, "--node-size", "2MiB", "--mode", "660", "--group",
               str(os.getegid()), "--prefault", "--not-coherent", "--coherent-bytes", "1048576",
               "--json")  # fmt: skip
    assert made.exit_code == 0, made.output
    parameters = json.loads(made.stdout)["parameters"]
    assert (parameters["coherent"], parameters["coherent_bytes"]) == (False, 1 << 20)
    segments = Path("/dev/shm").glob(f"limpet.{name}.*")
    assert {path.stat().st_mode & 0o777 for path in segments} == {0o660}
    limpet.destroy(name)
    refused = run("create", f"{name}-other", "--mode", "rw")
    assert refused.exit_code == 2
    assert "--mode takes permissions" in refused.output


def test_create_makes_what_is_on_this_host(make_url: Callable[[], str]) -> None:
    name = make_url().removeprefix("shm://")
    made = run("create", name, "--nodes", "3", "--node-size", "2MiB", "--away", "2")
    assert made.exit_code == 0
    assert made.stdout.startswith(f"created shm://{name}: 3 nodes of 2.0 MiB; to be made by")
    there = sorted(path.name for path in Path("/dev/shm").glob(f"limpet.{name}.*"))
    assert there == [f"limpet.{name}.0", f"limpet.{name}.control"]
    assert "ok" in run("ls", name).output
    refused = run("get", name, "k")
    assert (refused.exit_code, "open net://" in refused.output) == (2, True)
    limpet.destroy(name)
    assert limpet.create_apart(name, 2, nodes=3, node_size="2MiB").here == 1
    assert sorted(path.name for path in Path("/dev/shm").glob(f"limpet.{name}.*")) == there
    with pytest.raises(limpet.PoolExists):
        limpet.create_apart(name, 2, nodes=3)
    limpet.destroy(name)
    for away in (0, 4):
        with pytest.raises(limpet.ParameterError, match="away must be"):
            limpet.create_apart(name, away, nodes=3)
    with pytest.raises(limpet.ParameterError, match=r"limpet\.create_apart"):
        limpet.create(name, away=1)  # type: ignore[call-arg]
    refused = run("create", name, "--away", "1", "--store", "race:s")
    assert (refused.exit_code, "--store" in refused.output) == (2, True)


def segment(pool: str, part: str) -> Path:
    return Path(f"/dev/shm/limpet.{pool}.{part}")


DAMAGE: dict[str, Callable[[str], object]] = {
    "node missing": lambda pool: segment(pool, "1").unlink(),
    "control missing": lambda pool: segment(pool, "control").unlink(),
    "node empty": lambda pool: os.truncate(segment(pool, "0"), 0),
    "control empty": lambda pool: os.truncate(segment(pool, "control"), 0),
    "node cut off": lambda pool: os.truncate(segment(pool, "0"), 1 << 20),
    "other node": lambda pool: segment(pool, "0").write_bytes(segment(pool, "1").read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_ls_names_the_error_that_opening_raises(pool: str, damage: Callable[[str], object]) -> None:
    damage(pool)
    with pytest.raises(limpet.LimpetError) as caught:
        limpet.open(pool)
    [listed] = json.loads(run("ls", pool, "--json").stdout)
    assert listed["status"] == type(caught.value).__name__


@pytest.mark.parametrize(
    "command",
    [["dump", "--store", "s"], ["get", "k", "--store", "s"], ["keys", "--store", "s"], ["ls"]],
    ids=lambda command: command[0],
)
def test_full_stdout_is_an_error_in_one_line(pool: str, command: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "limpet", command[0], pool, *command[1:]],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "Error: stdout cannot be written: No space left on device\n"
