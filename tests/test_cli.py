"""The commands, end to end: what they print, what they leave, their exit status."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import limpet
from limpet.__main__ import COMMANDS, main
from limpet.cli.common import size_text, time_text
from limpet.fault.inject.workers import Workers
from limpet.shm.backends import posix
from limpet.stores.channels.sst import SST

pytestmark = pytest.mark.either_build("commands are not compiled")


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def report(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def name(make_url: Callable[[], str]) -> Iterator[str]:
    """A name that no pool has; the pool that a test makes of it goes away."""
    chosen = make_url().removeprefix("shm://")
    try:
        yield chosen
    finally:
        with contextlib.suppress(limpet.PoolNotFound):
            limpet.destroy(f"shm://{chosen}")


@pytest.fixture
def pool(name: str) -> str:
    result = run("create", name, "--nodes", "2", "--node-size", "2MiB", "--store", "race:s:100")
    assert result.exit_code == 0, result.output
    return name


def test_every_command_has_help() -> None:
    assert list(COMMANDS) == [
        "add-node", "bench", "cache", "create", "delete", "demo", "destroy", "drill", "drop",
        "dump", "fail-node", "get", "hosts", "inspect", "keys", "load", "ls", "man", "metrics",
        "prune", "put", "rack", "rename", "replace-node", "report", "restore", "serve", "snapshot",
            "top", "watch", "worker",
    ]  # fmt: skip
    shown = run("--help").output
    for command, (_, text) in COMMANDS.items():
        assert re.search(rf"^  {command} +{re.escape(text)}$", shown, re.M)
        result = run(command, "--help")
        assert result.exit_code == 0
        assert "Usage: " in result.output


def test_rack_without_its_machines_says_how_to_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "limpet.cli.rack", raising=False)
    monkeypatch.setitem(sys.modules, "limpet.fault.rack", None)
    result = run("rack", "race")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "run `make rack` in a checkout" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_help_has_no_sentence_that_begins_as_a_question() -> None:
    texts = list(_help_of(main))
    assert len(texts) > 30
    assert [text for text in texts if re.search(r"(^|[.:;]\s+)(What|Who) [^?]*$", text)] == []


def _help_of(command: click.Command) -> Iterator[str]:
    yield (command.help or "").strip()
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            body = command.get_command(context, name)
            assert body is not None
            yield from _help_of(body)


def test_create_makes_what_was_asked_for(name: str) -> None:
    made = report(
        "create", name, "--nodes", "3", "--node-size", "1MiB", "--block-size", "32KiB",
        "--clients", "16", "--lease", "0.5", "--fence", "wait", "--multi-host",
        "--store", "race:one:50", "--store", "race:two",
    )  # fmt: skip
    assert made["url"] == f"shm://{name}"
    expected = {
        "nodes": 3, "node_size": 1 << 20, "block_size": 32768, "clients": 16,
        "lease_us": 500_000, "fence": "wait", "multi_host": True,
    }  # fmt: skip
    assert made["parameters"].items() >= expected.items()
    shown = report("inspect", name)
    assert shown["parameters"] == made["parameters"]
    assert {store["name"]: store["kind"] for store in shown["stores"]} == dict.fromkeys(
        ("one", "two"), "race"
    )


def test_create_refuses_a_second_pool_of_the_name(pool: str) -> None:
    result = run("create", pool)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "PoolExists" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "../escape"),
        ("create", "NAME", "--node-size", "12"),
        ("create", "NAME", "--nodes", "0"),
        ("create", "NAME", "--fence", "perhaps"),
        ("create", "NAME", "--store", "race"),
        ("create", "NAME", "--store", "race:s:many"),
        ("create", "NAME", "--store", "nonsense:s"),
        ("get", "NAME", "key", "--nonsense"),
        ("demo", "--clients", "0"),
        ("demo", "--seconds", "0"),
    ],
)
def test_usage_errors_exit_with_2_and_make_nothing(name: str, arguments: tuple[str, ...]) -> None:
    result = run(*(name if word == "NAME" else word for word in arguments))
    assert result.exit_code == 2, result.output
    assert "Error: " in result.stderr
    assert not list(Path("/dev/shm").glob(f"limpet.{name}.*"))


def test_put_get_delete_text(pool: str) -> None:
    assert run("put", pool, "grüße", "wörld", "--store", "s").exit_code == 0
    result = run("get", pool, "grüße", "--store", "s")
    assert result.stdout_bytes == "wörld".encode()
    assert run("delete", pool, "grüße", "--store", "s").exit_code == 0
    for command in ("get", "delete"):
        result = run(command, pool, "grüße", "--store", "s")
        assert (result.exit_code, result.stdout_bytes) == (1, b"")
        assert "no key 'grüße'" in result.stderr


@pytest.mark.parametrize("value", [(), ("-",)])
def test_put_reads_stdin_and_get_writes_bytes_as_they_are(
    pool: str, value: tuple[str, ...]
) -> None:
    data = bytes(range(256)) + b"\r\n\n"
    assert run("put", pool, "k", *value, "--store", "s", stdin=data).exit_code == 0
    assert run("get", pool, "k", "--store", "s").stdout_bytes == data


def test_hexadecimal_keys_and_values(pool: str) -> None:
    assert run("put", pool, "00ff", "c0 ffee", "--hex", "--store", "s").exit_code == 0
    assert run("get", pool, "00ff", "--hex", "--store", "s").stdout == "c0ffee\n"
    assert run("put", pool, "00ff", "--hex", "--store", "s", stdin=b"be ef\n").exit_code == 0
    with limpet.open(f"shm://{pool}") as opened:
        assert opened.store("race", name="s").get(b"\x00\xff") == b"\xbe\xef"
    assert run("put", pool, "xyz", "00", "--hex").exit_code == 2


def test_put_makes_a_store_and_get_does_not(pool: str) -> None:
    result = run("get", pool, "k", "--store", "new")
    assert result.exit_code == 1
    assert "no store 'new'" in result.stderr
    assert [store["name"] for store in report("inspect", pool)["stores"]] == ["s"]
    assert run("put", pool, "k", "v", "--store", "new").exit_code == 0
    assert run("get", pool, "k", "--store", "new").stdout == "v"


def test_get_and_put_read_and_write_as_the_codec_of_the_mapping_says(pool: str) -> None:
    for codec in ("pickle", "json", "msgpack"):
        put = ("put", pool, "k", '{"a": [1, null]}', "--store", codec, "--codec", codec)
        assert run(*put).exit_code == 0
        assert run("get", pool, "k", "--store", codec).stdout == '{"a": [1, null]}\n'
        assert run("put", pool, "17", "plain text", "--store", codec).exit_code == 0
        with limpet.open(f"shm://{pool}") as opened:
            mapping = opened.dict(codec)
            assert (mapping.codec.name, mapping["k"], mapping[17]) == (
                codec, {"a": [1, None]}, "plain text",
            )  # fmt: skip
        assert run("delete", pool, "17", "--store", codec).exit_code == 0
        assert run("get", pool, "17", "--store", codec).exit_code == 1
        assert run("put", pool, "00", "00", "--hex", "--store", codec).exit_code == 2
        result = run("put", pool, "k", "v", "--store", codec, "--codec", "bytes")
        assert result.exit_code == 1
        assert f"with the codec '{codec}', not 'bytes'" in result.stderr
    with limpet.open(f"shm://{pool}") as opened:
        opened.dict("pickle")["set"] = {1}
    assert run("get", pool, "set", "--store", "pickle").stdout == "{1}\n"


def test_drop_gives_a_store_back(pool: str) -> None:
    assert run("put", pool, "k", "v", "--store", "new").exit_code == 0
    assert run("drop", pool, "new").exit_code == 0
    assert [store["name"] for store in report("inspect", pool)["stores"]] == ["s"]
    result = run("drop", pool, "new")
    assert result.exit_code == 1
    assert "no store 'new'" in result.stderr


def test_ls_lists_sound_and_damaged_pools(pool: str) -> None:
    def row() -> Any:
        return next(one for one in report("ls") if one["url"] == f"shm://{pool}")

    assert (row()["nodes"], row()["status"]) == (2, "ok")
    assert pool in run("ls").stdout
    assert [one["url"] for one in report("ls", pool)] == [f"shm://{pool}"]
    os.truncate(f"/dev/shm/limpet.{pool}.1", 4096)
    assert row()["status"] == "PoolTruncated"


def test_ls_without_pools_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix, "SHM_DIR", tmp_path)
    result = run("ls")
    assert (result.exit_code, result.stdout) == (0, "no pools\n")
    assert report("ls") == []


def test_inspect_shows_everything(pool: str) -> None:
    def dies(slot: int, incarnation: int) -> None:
        kv = limpet.open(f"shm://{pool}").store("race", name="s")
        kv.put(b"k", b"v")
        os.kill(os.getpid(), signal.SIGKILL)

    with limpet.open(f"shm://{pool}") as opened, Workers(dies) as workers:
        pid = workers.start(0)
        workers.reap(pid)
        opened.recover()
        opened.channels.open(SST, "progress", participants=2)
        shown = report("inspect", pool)
        clients = shown["clients"]
        assert [client["pid"] for client in clients] == [os.getpid()] * 2
        assert [client["ours"] for client in clients] == [False, True]
        assert [host["clients"] for host in shown["hosts"]] == [[one["client"] for one in clients]]
        text = run("inspect", pool).stdout
    assert [node["state"] for node in shown["nodes"]] == ["in service"] * 2
    assert shown["stores"][0]["parameters"]["capacity"] == 100
    assert [(one["name"], one["kind"]) for one in shown["channels"]] == [("progress", "sst")]
    assert shown["audit"]["leaked"] == 0
    assert [(event["kind"], event["pid"]) for event in shown["events"]] == [("recovered", pid)]
    assert shown["errors"] == {}
    assert [(one["name"], one["pairs"], one["splits"]) for one in shown["growth"]] == [("s", 1, [])]
    for word in (
        "node_size",
        "subtables",
        "leaked",
        "in service",
        "race",
        "progress",
        "recovered",
        str(pid),
    ):
        assert word in text


def test_inspect_shows_dtype_shape_and_stripes_of_arrays(pool: str) -> None:
    with limpet.open(f"shm://{pool}") as opened:
        opened.array("points", (6, 2), [("x", "f4"), ("y", "i2")], stripes=2)
        shown = report("inspect", pool)
        text = run("inspect", pool).stdout
    (found,) = (one for one in shown["channels"] if one["name"] == "points")
    parameters = {"dtype": [["x", "<f4"], ["y", "<i2"]], "shape": [6, 2], "stripes": 2}
    assert (found["kind"], found["parameters"]) == ("array", parameters)
    for word in ("points", "shape=[6, 2]", "stripes=2", "'<f4'"):
        assert word in text


def test_names_have_no_effect_on_what_is_printed(pool: str) -> None:
    names = "[/x]", "[red]r", "\x1b[31mz"
    with limpet.open(f"shm://{pool}") as opened:
        for name in names:
            opened.store("race", name=name, capacity=64)
        opened.channels.open(SST, names[1], participants=2)
        result = run("inspect", pool)
    assert result.exit_code == 0
    for text in (names[0], names[1], r"\x1b[31mz", "participants=2"):
        assert text in result.stdout
    assert "\x1b" not in result.stdout


def test_inspect_names_what_cannot_be_read_and_shows_the_rest(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: limpet.Pool) -> None:
        raise limpet.NodeFailed(1)

    monkeypatch.setattr(limpet.Pool, "audit", fail)
    result = run("inspect", pool, "--json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown["audit"] is None
    assert shown["errors"] == {"audit": "NodeFailed: memory node 1 has failed"}
    assert len(shown["nodes"]) == 2
    result = run("inspect", pool)
    assert result.exit_code == 1
    assert "in service" in result.stdout
    assert result.stderr == "audit: NodeFailed: memory node 1 has failed\n"


def test_a_missing_pool_is_one_line_and_status_1(name: str) -> None:
    for command in (["inspect"], ["get"], ["put"], ["delete"], ["watch"], ["destroy"]):
        key = ["k"] if command[0] in ("get", "put", "delete") else []
        result = run(*command, name, *key, stdin=b"")
        assert (result.exit_code, result.stdout) == (1, ""), command
        assert result.stderr.startswith(f"Error: PoolNotFound: shm://{name}")
        assert result.stderr.count("\n") == 1


def test_add_node_says_what_it_did(pool: str) -> None:
    result = run("add-node", pool, "--size", "3MiB")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"added to shm://{pool} in ")
    assert result.stdout.endswith(": nodes 2, 3, 4.0 MiB in all\n")
    assert report("add-node", pool, "--count", "2")["nodes"] == [4, 5]
    assert "2, and 4 added" in run("inspect", pool).stdout
    assert report("ls", pool)[0]["nodes"] == 6
    shown = report("inspect", pool)
    assert [node["state"] for node in shown["nodes"]] == ["in service"] * 6
    assert shown["audit"]["total"] == 12 << 20
    result = run("add-node", pool, "--count", "255")
    assert result.exit_code == 2
    assert "255 nodes of 2097152 bytes are too many" in result.stderr
    result = run("add-node", pool, "--size", "0")
    assert result.stderr == "Error: size must be at least 1 byte, not '0'\n"


def test_add_node_names_the_stores_that_have_no_use_for_it(name: str) -> None:
    assert run("create", name, "--nodes", "2", "--store", "fusee:s:100").exit_code == 0
    result = run("add-node", name)
    assert "store s does not use them: it has 2 replicas, which takes --count 2" in result.stderr
    assert report("add-node", name)["unused_by"] == {"s": 2}
    assert report("add-node", name, "--count", "2")["unused_by"] == {}
    with limpet.open(name) as pool:
        pool.store("fusee", name="t", capacity=100, index_replicas=2, replicas=1)
    result = run("add-node", name)
    assert "store t does not use them for its index: it has 2 replicas" in result.stderr


def test_replace_node_says_what_it_did(name: str) -> None:
    made = ("--nodes", "3", "--node-size", "2MiB", "--store", "fusee:s:100")
    assert run("create", name, *made).exit_code == 0
    assert run("put", name, "k", "v", "--store", "s").exit_code == 0
    result = run("replace-node", name, "1")
    assert result.exit_code == 2
    assert f"shm://{name}: node 1 is in service" in result.stderr
    with limpet.open(f"shm://{name}") as pool:
        for node in range(3):
            pool.fail_node(node)
            done = report("replace-node", name, str(node))
            assert (done["node"], done["generation"], done["regions"]) == (node, 1, 2)
        pool.fail_node(2)
        said = run("replace-node", name, "2").stdout
        assert said.startswith(f"replaced node 2 of shm://{name} in ")
    assert run("get", name, "k", "--store", "s").stdout == "v"


def test_destroy_removes_sound_and_damaged_pools(pool: str) -> None:
    os.truncate(f"/dev/shm/limpet.{pool}.0", 100)
    assert len(report("destroy", pool)["removed"]) == 3
    assert not list(Path("/dev/shm").glob(f"limpet.{pool}.*"))


def test_pools_in_a_directory(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/pool"
    assert run("create", url, "--node-size", "1MiB").exit_code == 0
    assert run("put", url, "k", "v").exit_code == 0
    assert run("get", url, "k").stdout == "v"
    assert [one["status"] for one in report("ls", url)] == ["ok"]
    assert run("destroy", url).exit_code == 0
    assert not list(tmp_path.rglob("*.*"))


def test_watch_recovers_a_killed_client_and_ends_with_ctrl_c(pool: str) -> None:
    read_fd, write_fd = os.pipe()

    def client(slot: int, incarnation: int) -> None:
        opened = limpet.open(f"shm://{pool}")
        opened.store("race", name="s").put(b"k", b"v")
        os.write(write_fd, b"x")
        signal.pause()

    command = [sys.executable, "-m", "limpet", "watch", pool, "--json"]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watcher.stdout is not None
    assert watcher.stderr is not None
    try:
        with Workers(client) as workers:
            assert b"watching" in watcher.stderr.readline()
            pid = workers.start(0)
            assert os.read(read_fd, 1) == b"x"
            os.kill(pid, signal.SIGKILL)
            found = json.loads(watcher.stdout.readline())
        assert len(found["clients"]) == 1
        assert not any(one["pid"] == pid for one in report("inspect", pool)["clients"])
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(60) == 0
    finally:
        watcher.kill()
        watcher.communicate()
        os.close(read_fd)
        os.close(write_fd)


def test_sizes_and_times_read_well() -> None:
    assert [size_text(size) for size in (0, 1023, 1536, 5 << 30)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 GiB",
    ]  # fmt: skip
    assert [time_text(ns) for ns in (None, 5, 1234, 123_456, 9.87e9)] == [
        "-", "5 ns", "1.23 us", "123 us", "9.87 s",
    ]  # fmt: skip


@pytest.mark.exhaustive("hundreds of runs")
def test_drill_matrix_reports_every_dimension() -> None:
    shown = report("drill", "matrix", "race", "--op", "delete", "--limit", "4")
    assert {one["dimension"] for one in shown["results"]} >= {"killed", "killed twice"}
    assert all(one["verdict"] == "ok" and one["runs"] > 0 for one in shown["results"])
    assert shown["every_step"] is False


@pytest.mark.exhaustive("hundreds of runs")
def test_drill_matrix_says_how_many_of_the_steps_were_taken() -> None:
    some = run("drill", "matrix", "dtx-race", "--op", "get", "--limit", "4")
    assert some.exit_code == 0
    assert "2 of 2" in some.stdout
    assert re.search(r"killed twice +│ +2 of 2 │ +\d+ of \d\d │", some.stdout)
    assert "1 of 6 rows are of some of the steps only; --every takes them all" in some.stdout


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.skipif(limpet.build != "compiled", reason="every step takes too long")
def test_drill_matrix_takes_every_step() -> None:
    every = report("drill", "matrix", "rtx-race", "--op", "get", "--every")
    assert every["every_step"] is True
    for one in every["results"]:
        assert (one["tried"], one["next_tried"]) == (one["steps"], one["next_steps"])


def test_drill_matrix_refuses_what_it_does_not_know() -> None:
    assert run("drill", "matrix", "race", "--op", "nonsense").exit_code == 2
    assert run("drill", "matrix", "nonsense", "--op", "insert").exit_code == 2


def test_drill_check_of_nothing_proves_nothing(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    history.touch()
    for words in ([], ["--json"]):
        judged = run("drill", "check", str(history), *words)
        assert judged.exit_code == 1
        assert judged.stdout == ""
        assert "has no operation in it: there is nothing to judge" in judged.stderr


def test_drill_check_tells_a_stale_read(tmp_path: Path) -> None:
    lines = [
        {"client": 1, "op": "put", "key": "6b", "value": "01", "result": "ok", "read": None},
        {"client": 1, "op": "put", "key": "6b", "value": "02", "result": "ok", "read": None},
        {"client": 2, "op": "get", "key": "6b", "value": None, "result": "ok", "read": "02"},
    ]
    history = tmp_path / "history.jsonl"

    def write() -> None:
        for index, line in enumerate(lines):
            line.update(call_ns=10 * index + 1, return_ns=10 * index + 5)
        history.write_text("".join(json.dumps(line) + "\n" for line in lines))

    write()
    held = run("drill", "check", str(history))
    assert held.exit_code == 0
    assert held.stdout == "ok: 3 operations on 1 keys, 0 of unknown outcome\n"
    lines[2]["read"] = "01"
    write()
    judged = run("drill", "check", str(history))
    assert judged.exit_code == 1
    assert "illegal: key b'k': nothing explains client 2" in judged.stdout
    assert run("drill", "check", str(history), "--json").exit_code == 1
    history.write_text("{}\n")
    assert run("drill", "check", str(history)).exit_code == 1


def test_ctrl_c_is_exit_status_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(limpet, "destroy", interrupted)
    done = run("destroy", f"file://{tmp_path}/pool")
    assert done.exit_code == 130
    assert done.stderr == "ended by Ctrl-C before it was done\n"
