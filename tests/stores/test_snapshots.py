"""Snapshots of whole pools: what they have, damage, kills, and pools in use."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from kit.processes import exit_code, fork
from kit.segments import NODE_SIZE, location_on

import limpet
from limpet.__main__ import main
from limpet.shm.endpoint.hooked import READS, HookedEndpoint
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.stores import snapshots
from limpet.stores.pool import Pool

KINDS = ("race", "rtx-race", "rtx-sherman", "fusee", "swarm", "rcuckoo", "loco")
PIECES = 300


@pytest.fixture
def restored(pools: Any) -> Any:
    def make(file: Path, **options: Any) -> limpet.Pool:
        made: limpet.Pool = pools.keep(limpet.restore(file, pools.url(), **options))
        return made

    return make


def is_gone(url: str) -> bool:
    """Whether nothing of a pool is left."""
    name = url.removeprefix("shm://")
    return not list(Path("/dev/shm").glob(f"limpet.{name}.*"))


@pytest.mark.parametrize("kind", KINDS)
def test_store_of_each_kind_is_restored_into_a_pool_of_another_size(
    pools: Any, restored: Any, tmp_path: Path, kind: str
) -> None:
    pool = pools(nodes=3, node_size="8MiB", clients=16)
    there = {b"key %d" % number: b"value %d" % number for number in range(PIECES)}
    given = {"capacity": 1000, **({"sums": True, "locality": 0} if kind == "rcuckoo" else {})}
    pool.store(kind, name="s", **given).put_many(list(there.items()))
    found = pool.snapshot(tmp_path / "pool")
    assert (found.stores, found.channels) == (1, 0)
    assert found.size == sum(len(key) + len(value) for key, value in there.items())
    other = restored(tmp_path / "pool", nodes=2, node_size="24MiB")
    assert (other.parameters.nodes, other.parameters.clients) == (2, 16)
    store = other.store(kind, name="s", **given)
    assert {key: store.get(key) for key in store} == there
    store.check()
    assert other.audit()["leaked"] == 0


def test_mappings_caches_and_objects_are_restored(
    pools: Any, restored: Any, tmp_path: Path
) -> None:
    pool = pools(node_size="8MiB", clients=16)
    pool.dict("d", codec="json")["a"] = [1, "x"]
    pool.dict("empty")
    cache = pool.cache("c", max_items=50, max_bytes="64KiB", ttl=600, policy="fifo")
    cache.resize(max_items=40)
    cache.set("tagged", 1, tags=["t"])
    cache.set("brief", 2, ttl=300, slide=True, stale=7)
    cache.set("for ever", 3, ttl=0)
    objects = pool.objects("o", 4, b"begin")
    named = pool.object("n")

    def write(tx: Any) -> None:
        tx.write(objects[2], b"written")
        tx.write(named, b"other")

    pool.transaction(write)
    pool.snapshot(tmp_path / "pool")
    other = restored(tmp_path / "pool")
    assert dict(other.dict("d", codec="json")) == {"a": [1, "x"]}
    assert {one["name"] for one in other.stores()} == {one["name"] for one in pool.stores()}
    again = other.cache("c", max_items=40, max_bytes="64KiB", ttl=600, policy="fifo")
    assert 290 < (again.expires_in("brief") or 0) <= 300
    assert 590 < (again.expires_in("tagged") or 0) <= 600
    assert again.expires_in("for ever") is None
    again.invalidate("t")
    assert dict(again) == {"brief": 2, "for ever": 3}
    held = other.objects("o")
    assert other.transaction(lambda tx: [tx.read(one) for one in held]) == [
        b"begin", b"begin", b"written", b"begin",
    ]  # fmt: skip
    assert other.transaction(lambda tx: tx.read(other.object("n"))) == b"other"


def test_expired_entries_are_left_out(pools: Any, restored: Any, tmp_path: Path) -> None:
    pool = pools()
    pool.cache("c").set("k", 1, ttl=3600)
    pool.snapshot(tmp_path / "pool")
    lines = (tmp_path / "pool").read_text().splitlines()
    entry = json.loads(lines[2])
    entry["deadline_ms"] -= 7_200_000
    write_lines(tmp_path / "old", [lines[0], lines[1], json.dumps(entry)], lines[-1])
    found = snapshots.restored(Pool, tmp_path / "old", pools.url(), {})
    pools.keep(found[0])
    assert found[1].expired == 1
    assert not found[0].cache("c")


def write_lines(file: Path, lines: list[str], end: str) -> None:
    """A snapshot with these lines and the sizes of another end."""
    import hashlib

    body = "".join(f"{line}\n" for line in lines)
    fields = {**json.loads(end), "lines": len(lines)}
    fields["sha256"] = hashlib.sha256(body.encode()).hexdigest()
    file.write_text(f"{body}{json.dumps(fields)}\n")


def test_channels_are_restored_with_what_they_keep(
    pools: Any, restored: Any, tmp_path: Path
) -> None:
    pool = pools(nodes=2, node_size="16MiB", clients=16)
    pool.counter("counter").set(-7)
    pool.event("set").set()
    pool.event("clear")
    line, table = pool.array("line", 100_000, "u4"), pool.array("table", (7, 5), "f8")
    line[:] = np.arange(100_000)
    table[3, 4] = 2.5
    pool.array("scalar", (), "i8")[()] = 9
    pool.array("rows", 3, [("a", "i4"), ("b", "f8")])[1] = (5, 0.5)
    elements = [number if number % 3 else "x" * 20_000 for number in range(20)]
    for element in elements:
        pool.queue("queue", 64).put(element)
        pool.deque("deque", maxlen=30).append(element)
    for _ in range(2):
        pool.queue("queue").get()
    pool.lock("lock").acquire()
    pool.semaphore("semaphore", 3).acquire()
    pool.rwlock("rwlock", prefer="readers")
    pool.barrier("barrier", parties=4)
    pool.condition("condition")
    pool.topic("topic").publish(1)
    pool.ring("ring").send(1)
    found = pool.snapshot(tmp_path / "pool")
    assert found.channels == 16
    assert found.left_out == ()
    other = restored(tmp_path / "pool", nodes=1, node_size="48MiB")
    listed = [(one["name"], one["kind"], one["parameters"]) for one in pool.channels.list()]
    assert listed == [
        (one["name"], one["kind"], one["parameters"]) for one in other.channels.list()
    ]
    assert other.counter("counter").value == -7
    assert [other.event(name).is_set() for name in ("set", "clear")] == [True, False]
    for name in ("line", "table", "scalar", "rows"):
        assert np.array_equal(other.array(name)[()], pool.array(name)[()])
    assert [other.queue("queue").get() for _ in range(18)] == elements[2:]
    assert other.queue("queue").empty()
    assert list(other.deque("deque", maxlen=30)) == elements
    assert other.lock("lock").acquire(False)
    assert sum(other.semaphore("semaphore", 3).acquire(False) for _ in range(4)) == 3
    assert other.audit()["leaked"] == 0
    pool.lock("lock").release()


def test_jobs_are_restored_and_those_that_are_held_wait_again(
    pools: Any, restored: Any, tmp_path: Path
) -> None:
    pool = pools(node_size="8MiB", clients=16)
    jobs = pool.queue("jobs", 64, acks=True, max_deliveries=2)
    for _ in range(2):
        jobs.put("letter", block=False, key="shared") if not jobs.qsize() else None
        jobs.get().nack(reason="why")
    for number in range(6):
        jobs.put(number, priority=number % 2)
    jobs.put("keyed", key="shared")
    jobs.put("large" * 2000)
    jobs.put("late", delay=3600)
    jobs.put("once")
    held = [jobs.get() for _ in range(3)]
    assert [one.value for one in held] == [1, 3, 5]
    held[1].nack()
    submitted = jobs.submit("submitted", keep_s=60)
    before = jobs.counts()
    pool.snapshot(tmp_path / "pool")
    assert jobs.counts() == before
    other = restored(tmp_path / "pool").queue("jobs", 64, acks=True, max_deliveries=2)
    counts = other.counts()
    assert (counts["held"], counts["delayed"], counts["dead"]) == (0, 1, 1)
    assert counts["ready"] == before["ready"] + 2
    assert not other.put("again", key="shared")
    found = []
    for _ in range(counts["ready"]):
        with other.get() as delivery:
            found.append((delivery.value, delivery.deliveries))
    assert found == [
        (1, 1), (3, 2), (5, 1), (0, 1), (2, 1), (4, 1), ("keyed", 1), ("large" * 2000, 1),
        ("once", 1), ("submitted", 1),
    ]  # fmt: skip
    letter = other.dead_letters.get()
    assert (letter.value, letter.reason) == ("letter", "why")
    letter.ack()
    assert other.qsize() == 0 or other.counts()["delayed"] == 1
    for one in (held[0], held[2]):
        one.ack()
    assert submitted.id
    other.pool.audit()


# ---- damage and kills ------------------------------------------------------------------------


def filled(pools: Any, entries: int = 40) -> Any:
    pool = pools(node_size="4MiB", clients=16)
    pool.dict("d").update({number: "v" * number for number in range(entries)})
    for number in range(5):
        pool.queue("q", acks=True).put(number)
    pool.counter("n").set(3)
    return pool


def test_damaged_or_cut_snapshot_is_refused_and_makes_nothing(pools: Any, tmp_path: Path) -> None:
    pool = filled(pools)
    pool.snapshot(tmp_path / "pool")
    whole = (tmp_path / "pool").read_bytes()
    bad = tmp_path / "bad"
    url = pools.url()
    for at in (0, 1, 20, len(whole) // 3, len(whole) // 2, len(whole) - 200, len(whole) - 3):
        data = bytearray(whole)
        data[at] ^= 1
        for text in (bytes(data), whole[:at]):
            bad.write_bytes(text)
            with pytest.raises(limpet.SnapshotDamaged, match="snapshot"):
                limpet.restore(bad, url)
            assert is_gone(url)
    lines = whole.splitlines(keepends=True)
    for some in (lines[:-1], lines[:3] + lines[4:], lines[1:], [*lines, lines[-2]]):
        bad.write_bytes(b"".join(some))
        with pytest.raises(limpet.SnapshotDamaged, match="snapshot"):
            limpet.restore(bad, url)
    newer = whole.replace(b'"limpet_snapshot": 1', b'"limpet_snapshot": 2')
    bad.write_bytes(newer)
    with pytest.raises(limpet.SnapshotDamaged, match="format 2"):
        limpet.restore(bad, url)
    assert is_gone(url)


@pytest.mark.parametrize("nodes", [1, 3])
def test_restore_into_a_pool_that_is_too_small_says_which_size_is_enough(
    pools: Any, tmp_path: Path, nodes: int
) -> None:
    pool = pools(node_size="16MiB", clients=16)
    pool.store("race", name="s").put_many([(b"%d" % n, bytes(20_000)) for n in range(400)])
    found = pool.snapshot(tmp_path / "pool")
    url = pools.url()
    with pytest.raises(limpet.StoreFull, match=rf"of {found.size} bytes of keys") as raised:
        limpet.restore(tmp_path / "pool", url, nodes=nodes, node_size="2MiB")
    assert is_gone(url)
    assert f"nodes=1 of node_size={16 << 20} " in str(raised.value)
    (needed,) = map(int, re.findall(r"about node_size='(\d+)MiB'", str(raised.value)))
    assert found.size < (needed << 20) * nodes <= 18 << 20
    pools.keep(limpet.restore(tmp_path / "pool", url, nodes=nodes, node_size=f"{needed}MiB"))


def test_restore_into_a_pool_with_room_for_nothing_names_the_size_of_the_pool_before(
    pools: Any, tmp_path: Path
) -> None:
    pool = pools(node_size="16MiB", clients=16)
    pool.store("race", name="s").put(b"k", bytes(6 << 20))
    pool.snapshot(tmp_path / "pool")
    with pytest.raises(limpet.StoreFull, match="about node_size='16MiB', "):
        limpet.restore(tmp_path / "pool", pools.url(), node_size="4MiB")


def test_pool_that_is_there_is_not_overwritten(pools: Any, tmp_path: Path) -> None:
    pool = filled(pools)
    pool.snapshot(tmp_path / "pool")
    with pytest.raises(limpet.PoolExists):
        limpet.restore(tmp_path / "pool", pool.url)
    assert len(pool.dict("d")) == 40
    with pytest.raises(limpet.ParameterError, match="ephemeral"):
        limpet.restore(tmp_path / "pool", pools.url(), ephemeral=True)


def test_restore_that_is_interrupted_leaves_nothing(
    pools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(pools).snapshot(tmp_path / "pool")
    url = pools.url()

    def interrupted(filling: Any) -> None:
        fill(filling)
        signal.raise_signal(signal.SIGINT)

    fill = snapshots._Filling.fill
    monkeypatch.setattr(snapshots._Filling, "fill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        limpet.restore(tmp_path / "pool", url)
    assert is_gone(url)
    assert limpet.prune(url) == []


def killed_restore(file: Path, url: str, line: int) -> None:
    """Restore in a process that is killed before it takes this line; -1: when all is filled."""

    def work() -> None:
        take = snapshots._Filling._take
        count = itertools.count()

        def counting(filling: Any, what: dict[str, Any]) -> None:
            if next(count) == line:
                os.kill(os.getpid(), signal.SIGKILL)
            take(filling, what)

        snapshots._Filling._take = counting  # type: ignore[method-assign]
        if line < 0:
            from limpet.shm import pool

            pool.complete_segments = lambda *given: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        limpet.restore(file, url)

    assert exit_code(fork(work)) == -signal.SIGKILL


@pytest.mark.parametrize("line", [0, 1, 20, 42, 48, -1])
def test_killed_restore_leaves_no_pool_that_opens(pools: Any, tmp_path: Path, line: int) -> None:
    filled(pools).snapshot(tmp_path / "pool")
    url = pools.url()
    killed_restore(tmp_path / "pool", url, line)
    with pytest.raises(limpet.PoolIncomplete):
        limpet.open(url, timeout_s=0.1)
    assert limpet.prune(url)[0]["what"] == "half-created"
    assert is_gone(url)
    killed_restore(tmp_path / "pool", url, line)
    pools.keep(limpet.restore(tmp_path / "pool", url)).dict("d")[41] = "x"
    assert len(limpet.open(url).dict("d")) == 41


@pytest.mark.parametrize("fuse", [1, 40, 400, 900, 1500])
def test_restore_that_is_killed_at_any_step_in_memory_leaves_no_pool(
    pools: Any, tmp_path: Path, fuse: int
) -> None:
    filled(pools).snapshot(tmp_path / "pool")
    url = pools.url()

    def work() -> None:
        fill = snapshots._Filling.fill

        def armed(filling: Any) -> Any:
            filling.pool.endpoint.fuse = fuse
            return fill(filling)

        snapshots._Filling.fill = armed  # type: ignore[method-assign]
        limpet.restore(tmp_path / "pool", url)

    assert exit_code(fork(work)) == -signal.SIGKILL
    with pytest.raises(limpet.PoolIncomplete):
        limpet.open(url, timeout_s=0)
    pools.keep(limpet.restore(tmp_path / "pool", url))
    assert len(limpet.open(url).dict("d")) == 40


def test_no_process_opens_a_pool_before_it_is_whole(
    pools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(pools).snapshot(tmp_path / "pool")
    url = pools.url()
    refused = []
    take = snapshots._Filling._take

    def look(filling: Any, what: dict[str, Any]) -> None:
        take(filling, what)
        if len(refused) < 3:
            for create in (False, True):
                with pytest.raises((limpet.PoolIncomplete, limpet.PoolExists)):
                    limpet.open(url, create=create, timeout_s=0)
            assert limpet.prune(url) == []
            refused.append(what)

    monkeypatch.setattr(snapshots._Filling, "_take", look)
    pools.keep(limpet.restore(tmp_path / "pool", url))
    assert len(refused) == 3
    with limpet.open(url) as opened:
        assert len(opened.dict("d")) == 40


def test_killed_snapshot_leaves_the_file_and_the_pool_as_they_were(
    pools: Any, restored: Any, tmp_path: Path
) -> None:
    pool = filled(pools)
    file = tmp_path / "pool"
    pool.snapshot(file)
    before = file.read_bytes()
    pool.dict("d").clear()
    for line in (0, 2, 30, 45, 50):

        def work(line: int = line) -> None:
            write = snapshots._Writer.write
            count = itertools.count()

            def counting(out: Any, *given: Any) -> None:
                if next(count) == line:
                    os.kill(os.getpid(), signal.SIGKILL)
                write(out, *given)

            snapshots._Writer.write = counting  # type: ignore[method-assign]
            with limpet.open(pool.url) as other:
                other.dict("d").update({number: number for number in range(60)})
                other.snapshot(file)

        assert exit_code(fork(work)) == -signal.SIGKILL
        assert file.read_bytes() == before
    pool.recover()
    assert pool.audit()["leaked"] == 0
    pool.snapshot(file)
    assert not (tmp_path / "pool.part").exists()
    assert len(restored(file).dict("d")) == 60


def test_two_snapshots_to_one_file_are_refused_and_an_error_leaves_the_file(
    pools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = filled(pools)
    file = tmp_path / "pool"
    with (
        snapshots._locked_part(tmp_path / "pool.part", file),
        pytest.raises(limpet.ParameterError, match="another process"),
    ):
        pool.snapshot(file)

    def fails(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    pool.snapshot(file)
    before = file.read_bytes()
    monkeypatch.setattr(snapshots._Writer, "end", fails)
    with pytest.raises(OSError, match="No space"):
        pool.snapshot(file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]


def test_snapshot_is_for_its_owner_and_replaces_regular_files_only(
    pools: Any, tmp_path: Path
) -> None:
    pool = filled(pools)
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    link.symlink_to(file)
    pool.snapshot(link)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    for other in (pipe, tmp_path, "/dev/null"):
        with pytest.raises(limpet.ParameterError, match="no regular file"):
            pool.snapshot(other)
    assert pipe.is_fifo()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "next.part").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        pool.snapshot(tmp_path / "next")
    assert victim.read_text() == "mine"
    result = CliRunner().invoke(main, ["snapshot", pool.url, str(tmp_path / "none" / "file")])
    assert result.exit_code == 1
    assert "cannot be written: No such file" in result.output


def test_snapshot_that_opened_its_file_as_another_one_ended_is_refused(
    pools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has opened is the file of the other one by now."""
    pool = filled(pools)
    file = tmp_path / "pool"
    flock = snapshots.fcntl.flock

    def after_the_other(opened: Any, flags: int) -> None:
        (tmp_path / "pool.part").replace(file)
        flock(opened, flags)

    pool.snapshot(file)
    monkeypatch.setattr(snapshots.fcntl, "flock", after_the_other)
    with pytest.raises(limpet.ParameterError, match="another process"):
        pool.snapshot(file)


@pytest.mark.parametrize(
    "line", ["not JSON", "[]", "{}", '{"key": "00", "value": "00"}', '{"store": 1}', "[" * 100_000]
)
def test_lines_of_other_programs_are_refused(pools: Any, tmp_path: Path, line: str) -> None:
    """Also with a checksum that holds."""
    file, url = tmp_path / "pool", pools.url()
    head = json.dumps({"limpet_snapshot": 1, "pool": "x", "parameters": {}}) + "\n"
    body = head + line + "\n"
    end = {"lines": 2, "bytes": 0, "sha256": hashlib.sha256(body.encode()).hexdigest()}
    file.write_text(body + json.dumps(end) + "\n")
    with pytest.raises(limpet.SnapshotDamaged, match="a line that no snapshot has"):
        limpet.restore(file, url, nodes=1, node_size=NODE_SIZE)
    assert is_gone(url)


# ---- in use ----------------------------------------------------------------------------------


@pytest.mark.exhaustive_in_pure("the same lines as compiled, and much slower")
def test_snapshot_of_a_pool_in_use_has_each_key_as_it_was_at_one_moment(
    pools: Any, restored: Any, tmp_path: Path
) -> None:
    pool = pools(nodes=2, node_size="16MiB", clients=16)
    stores = [pool.store(kind, name=kind) for kind in ("race", "rtx-sherman")]
    for store in stores:
        store.put_many([(b"stays %d" % number, b"%d" % number * 40) for number in range(200)])
    jobs = pool.queue("jobs", 256, acks=True, max_deliveries=4000)
    for number in range(40):
        jobs.put(("stays", number), priority=7)
    plain = pool.queue("plain", 256)
    for number in range(100):
        plain.put(number)
    ends = threading.Event()

    def work() -> None:
        with limpet.open(pool.url) as other:
            for number in itertools.count():
                if ends.is_set():
                    return
                for kind in ("race", "rtx-sherman"):
                    store = other.store(kind, name=kind)
                    store.put(b"changes %d" % (number % 50), b"%d," % number * (number % 400))
                    if number % 7 == 0:
                        store.delete(b"changes %d" % (number % 50))
                queue = other.queue("jobs", 256, acks=True, max_deliveries=4000)
                queue.put(("goes", number))
                if number % 2:
                    found = queue.get_many(60)
                    for delivery in found:
                        delivery.nack() if delivery.value[0] == "stays" else delivery.ack()
                moved = other.queue("plain", 256).get()
                other.queue("plain", 256).put(moved)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for number in range(5):
            pool.snapshot(tmp_path / f"{number}")
    finally:
        ends.set()
        worker.join()
    for number in range(5):
        other = restored(tmp_path / f"{number}")
        for kind in ("race", "rtx-sherman"):
            store = other.store(kind, name=kind)
            found = {key: value for key in store if (value := store.get(key))}
            assert all(found[b"stays %d" % at] == b"%d" % at * 40 for at in range(200))
            for key, value in found.items():
                if key.startswith(b"changes"):
                    assert len(set(value.rstrip(b",").split(b","))) == 1
        again = other.queue("jobs", 256, acks=True, max_deliveries=4000)
        held = [again.get_nowait() for _ in range(again.counts()["ready"])]
        values = [one.value for one in held]
        assert sorted(one[1] for one in values if one[0] == "stays") == list(range(40))
        kept = other.queue("plain", 256).qsize()
        elements = [other.queue("plain", 256).get() for _ in range(kept)]
        assert kept >= 90
        assert set(elements) <= set(range(100))


def test_stores_and_channels_that_are_dropped_meanwhile_are_left_out(
    pools: Any, restored: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = filled(pools)
    pool.dict("other")["k"] = 1
    write = snapshots._Writer.write

    def dropping(out: Any, what: dict[str, Any], size: int = 0) -> None:
        write(out, what, size)
        if out.lines == 10:
            pool.drop("d")
            pool.channels.remove("q")

    monkeypatch.setattr(snapshots._Writer, "write", dropping)
    pool.snapshot(tmp_path / "pool")
    other = restored(tmp_path / "pool")
    assert {one["name"] for one in other.stores()} == {"other"}
    assert other.channels.names() == ["n"]
    assert other.dict("other")["k"] == 1
    assert other.audit()["leaked"] == 0


def test_commands_write_and_restore(pools: Any, tmp_path: Path) -> None:
    pool = filled(pools)
    file = str(tmp_path / "pool")
    url = pools.url()
    done = CliRunner().invoke(main, ["snapshot", pool.url, file])
    assert done.exit_code == 0, done.output
    assert f"wrote {pool.url} to {file}: 1 stores, 2 channels" in done.output
    done = CliRunner().invoke(main, ["restore", file, url, "--node-size", "6MiB", "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    assert (shown["stores"], shown["bytes"]) == (1, shown["nodes"] * (6 << 20))
    with pools.keep(limpet.open(url)) as opened:
        assert opened.parameters.node_size == 6 << 20
        assert dict(opened.dict("d")) == dict(pool.dict("d"))
    (tmp_path / "pool").write_text("{}\n")
    done = CliRunner().invoke(main, ["restore", file, pools.url()])
    assert done.exit_code == 1
    assert "is no snapshot of a pool" in done.output


def test_pool_is_restored_on_device_dax_and_what_a_kill_leaves_there_is_removed(
    pools: Any, tmp_path: Path
) -> None:
    pool = pools(node_size="1MiB", clients=16)
    pool.dict("d").update({number: number for number in range(40)})
    file = tmp_path / "pool"
    pool.snapshot(file)
    with location_on("dax") as location:
        options = {"nodes": len(location.devices), "node_size": NODE_SIZE}
        with limpet.restore(file, location.url, **options) as made:
            assert made.parameters.multi_host
            assert len(made.dict("d")) == 40
        with limpet.open(location.url) as opened:
            assert len(opened.dict("d")) == 40
        limpet.destroy(location.url)

        def work() -> None:
            snapshots._Filling.fill = lambda filling: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment,return-value]
            limpet.restore(file, location.url, **options)

        assert exit_code(fork(work)) == -signal.SIGKILL
        with pytest.raises(limpet.PoolIncomplete):
            limpet.open(location.url, timeout_s=0)
        limpet.destroy(location.url)
        limpet.restore(file, location.url, **options).close()


class LookingEndpoint(HookedEndpoint, verbs=READS):
    """An endpoint that calls `watch`, if there is one, before each word that it reads on a node."""

    def __init__(self) -> None:
        self.watch: Any = None

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if self.watch is None or addr >> NODE_SHIFT == CONTROL_NODE:
            return words
        self.watch()
        return 1


class LookingPool(Pool):
    endpoint_class = LookingEndpoint
    endpoint: LookingEndpoint


def test_copies_of_a_queue_are_whole_while_its_places_are_used_again(pools: Any) -> None:
    pool = pools(clients=16)
    other = pool.queue("q", 2, codec="bytes")
    numbers = itertools.count(1)

    def renew() -> None:
        """Take all, and put elements of other sizes in the same places."""
        while not other.empty():
            other.get()
        for _ in range(2):
            number = next(numbers)
            other.put(bytes([number % 256]) * (number % 90 + 1))

    renew()
    looked = pools.keep(LookingPool.open(pool.url))
    copied = looked.queue("q", 2, codec="bytes")
    seen = 0
    for step in range(1, 60):
        steps = itertools.count(1)

        def look(step: int = step, steps: Any = steps) -> None:
            if next(steps) == step:
                renew()

        looked.endpoint.watch = look
        elements = copied.copies()
        looked.endpoint.watch = None
        for data in elements:
            assert len(set(data)) == 1
            assert len(data) in {
                number % 90 + 1 for number in range(1, 600) if number % 256 == data[0]
            }
            seen += 1
    assert seen > 40
