"""Memory nodes on every backend: created once, published whole, refused without a write."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.segments import (
    CONTROL_SIZE,
    NODE_SIZE,
    SCHEMES,
    location_on,
    make,
    open_fds,
    packed,
    patch,
)

import limpet
from limpet.shm.backends import node, superblock
from limpet.shm.backends import numa as placement
from limpet.shm.backends.location import SHM_DIR, Location
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import (
    LimpetError,
    ParameterError,
    PoolCorrupt,
    PoolExists,
    PoolForeign,
    PoolIncomplete,
    PoolNotFound,
    PoolPermission,
    PoolTruncated,
    PoolVersion,
)

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


@pytest.fixture(params=SCHEMES)
def location(request: pytest.FixtureRequest) -> Iterator[Location]:
    with location_on(request.param) as place:
        yield place


@pytest.fixture(params=["shm", "file"])
def files(request: pytest.FixtureRequest) -> Iterator[Location]:
    """A location whose segments are files of their own."""
    with location_on(request.param) as place:
        yield place


def snapshot(location: Location) -> dict[str, tuple[bytes, int, int]]:
    paths = {location.path(index) for index in (CONTROL_NODE, 0, 1)}
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ctime_ns)
        for path in paths
        if path.is_file()
    }


def refused(location: Location, index: int, error: type[LimpetError], **kwargs: Any) -> str:
    """Opening raises exactly `error`, changes nothing and keeps nothing open; the message."""
    before, fds = snapshot(location), open_fds()
    with pytest.raises(error) as caught:
        node.open_(location, index, **kwargs)
    assert type(caught.value) is error
    assert snapshot(location) == before
    assert open_fds() == fds
    message = str(caught.value)
    assert location.url in message
    return message


# --- locations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "shm://demo",
        "shm://a.b-c_9.",
        "shm://" + "x" * 200,
        "file:///tmp/pool",
        "file:///with space/%41",
        "dax:///dev/dax0.0",
        "dax:///dev/dax1.0,/dev/dax0.1",
    ],
)
def test_url_names_a_location_and_is_canonical(url: str) -> None:
    assert node.parse_url(url).url == url


def test_url_is_made_canonical() -> None:
    assert node.parse_url("file:////tmp//pool/.//").url == "file:///tmp/pool"


@pytest.mark.parametrize(
    "url",
    [
        "", "demo", "shm:demo", "http://demo", "shm://", "shm://.hidden", "shm://..", "shm://a/b",
        "shm:///a", "shm://a\n", "shm://a\0b", "shm://\u00e9", "shm://" + "x" * 201,
        "file://", "file:///", "file://host/dir", "file:///a/../b", "file:///a\0b", "file:///a\nb",
        "dax://", "dax:///dev/null", "dax:///dev/dax0.0,", "dax:///dev/dax0.0,/dev/dax0.0",
        "dax://dax0.0", "dax:///dev/../dev/dax0.0", 7, None, b"shm://demo",
    ],
)  # fmt: skip
def test_url_that_names_no_pool_is_refused(url: Any) -> None:
    with pytest.raises(ParameterError):
        node.parse_url(url)


def test_pools_with_dots_in_their_names_do_not_share_segments() -> None:
    with location_on("shm") as short:
        long = node.parse_url(f"{short.url}.0")
        make(short)
        make(long)
        assert node.unlink_all(short) == [short.segment(index) for index in (0, 1, CONTROL_NODE)]
        assert node.probe(long, 1).index == 1
        node.unlink_all(long)


# --- create, publish, open ---------------------------------------------------------------------


def test_two_openings_share_memory(location: Location) -> None:
    pool = make(location)
    for index, size in ((CONTROL_NODE, CONTROL_SIZE), (0, NODE_SIZE), (1, NODE_SIZE)):
        one, found = node.open_(location, index, uuid=pool)
        two, _ = node.open_(location, index, uuid=pool, size=size)
        assert found.index == one.index == index
        assert found.size == one.size == len(one.map) == size
        assert one.address % 4096 == 0
        assert one.stat_size() >= size
        one.map[size - 8 :] = b"written!"
        assert two.map[size - 8 :] == b"written!"
        one.close()
        two.close()


def test_new_segments_are_zero_only_where_they_say_so(location: Location) -> None:
    created = node.create(location, CONTROL_NODE, CONTROL_SIZE)
    assert created.zeroed == (location.scheme != "dax")
    assert (created.map[4096:] == bytes(CONTROL_SIZE - 4096)) == created.zeroed
    created.close()


def test_files_are_private_to_their_owner(files: Location) -> None:
    mask = os.umask(0)
    try:
        make(files)
    finally:
        os.umask(mask)
    for index in (CONTROL_NODE, 0, 1):
        assert files.path(index).stat().st_mode & 0o777 == 0o600
    if files.scheme == "file":
        assert files.folder.stat().st_mode & 0o777 == 0o700


def test_create_is_exclusive_in_every_state(location: Location) -> None:
    control = node.create(location, CONTROL_NODE, CONTROL_SIZE)
    with pytest.raises(PoolExists):
        node.create(location, CONTROL_NODE, CONTROL_SIZE)
    node.publish(control, packed(control, bytes(range(16))))
    with pytest.raises(PoolExists):
        node.create(location, CONTROL_NODE, CONTROL_SIZE)
    control.close()
    assert node.probe(location, CONTROL_NODE).uuid == bytes(range(16))


def claim(location: Location, start: Any, wins: Any) -> None:
    start.wait()
    try:
        node.create(location, CONTROL_NODE, CONTROL_SIZE).close()
    except PoolExists:
        return
    with wins.get_lock():
        wins.value += 1


def test_one_of_many_creators_wins(location: Location) -> None:
    context = multiprocessing.get_context("fork")
    start, wins = context.Barrier(4), context.Value("i", 0)
    racers = [context.Process(target=claim, args=(location, start, wins)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * 4
    for racer in racers:
        racer.close()
    assert wins.value == 1


def create_and_die(location: Location, steps: int) -> None:
    """Make a pool as `limpet.create` does, and end with SIGKILL after so many steps."""

    def step() -> None:
        nonlocal steps
        steps -= 1
        if steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    segments = []
    for index, size in ((CONTROL_NODE, CONTROL_SIZE), (0, NODE_SIZE), (1, NODE_SIZE)):
        segments.append(node.create(location, index, size))
        step()
    for segment in reversed(segments):
        data = packed(segment, bytes(range(16)))
        segment.map[8:4096] = data[8:]
        step()
        node.publish(segment, data)


@pytest.mark.parametrize("steps", range(1, 7))
def test_killed_creator_leaves_what_is_incomplete_and_can_be_destroyed(
    location: Location, steps: int
) -> None:
    context = multiprocessing.get_context("fork")
    creator = context.Process(target=create_and_die, args=(location, steps))
    creator.start()
    creator.join()
    assert creator.exitcode == -signal.SIGKILL
    creator.close()
    assert "has not finished, or died" in refused(location, CONTROL_NODE, PoolIncomplete)
    with pytest.raises(PoolExists):
        node.create(location, CONTROL_NODE, CONTROL_SIZE)
    removed = node.unlink_all(location)
    assert removed[-1] == location.segment(CONTROL_NODE)
    assert len(removed) == min(steps, 3)
    refused(location, CONTROL_NODE, PoolNotFound)


def test_discard_takes_back_what_was_created(location: Location) -> None:
    for _ in range(2):
        control = node.create(location, CONTROL_NODE, CONTROL_SIZE)
        first = node.create(location, 0, NODE_SIZE)
        node.discard(first)
        node.discard(control)
        refused(location, CONTROL_NODE, PoolNotFound)


@pytest.mark.parametrize("data", [b"", bytes(4096), superblock.MAGIC])
def test_publish_takes_superblocks_only(files: Location, data: bytes) -> None:
    control = node.create(files, CONTROL_NODE, CONTROL_SIZE)
    with pytest.raises(ParameterError):
        node.publish(control, data)
    control.close()


@pytest.mark.parametrize("size", [-4096, 0, 100, 4097, 2**40 + 4096, 2**63])
def test_create_refuses_sizes_that_cannot_be(location: Location, size: int) -> None:
    with pytest.raises(ParameterError):
        node.create(location, CONTROL_NODE, size)
    refused(location, CONTROL_NODE, PoolNotFound)


def test_file_pool_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("file", "file/below"):
        location = node.parse_url(f"file://{tmp_path}/{name}")
        with pytest.raises(ParameterError, match="is not a folder"):
            node.create(location, CONTROL_NODE, CONTROL_SIZE)
        with pytest.raises(PoolNotFound):
            node.open_(location, CONTROL_NODE)


def test_plan_gives_the_defaults_and_rounds_the_control_segment(files: Location) -> None:
    planned = node.plan(files, nodes=None, node_size=None, control_size=lambda memory: 5000)
    assert planned == node.Plan(nodes=1, node_size=64 << 20, control_size=8192)
    with pytest.raises(ParameterError, match="node_size must be a multiple of 4096"):
        node.plan(files, nodes=2, node_size=(1 << 20) + 1, control_size=lambda memory: 5000)
    assert not files.folder.exists() or files.scheme == "shm"


# --- what open refuses -------------------------------------------------------------------------


def test_open_says_what_is_not_there(files: Location) -> None:
    refused(files, CONTROL_NODE, PoolNotFound)
    make(files)
    assert "node 2" in refused(files, 2, PoolNotFound)


@pytest.mark.parametrize("index", [CONTROL_NODE, 0, 1])
def test_open_refuses_damage_without_a_write(location: Location, index: int) -> None:
    make(location)
    patch(location, index, 100, b"\xff")
    assert "checksum" in refused(location, index, PoolCorrupt)
    patch(location, index, 8, struct.pack("<I", 9))
    assert "protocol 9" in refused(location, index, PoolVersion)
    patch(location, index, 0, superblock.CREATING)
    refused(location, index, PoolIncomplete)
    patch(location, index, 0, b"a text.\n")
    assert "a text." in refused(location, index, PoolForeign)


def test_open_of_what_is_refused_could_not_have_written(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(location)
    patch(location, 1, 100, b"\xff")
    real, modes = os.open, []

    def watched(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        modes.append(flags & os.O_ACCMODE)
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", watched)
    refused(location, 1, PoolCorrupt)
    assert modes == [os.O_RDONLY]
    node.open_(location, 0)[0].close()
    assert modes[-1] == os.O_RDWR


def test_open_refuses_a_segment_of_another_pool(location: Location) -> None:
    make(location)
    assert "another pool" in refused(location, 1, PoolForeign, uuid=bytes(16))


def test_open_refuses_a_segment_in_anothers_place(files: Location) -> None:
    make(files)
    files.path(1).rename(files.path(0))
    assert "says that it is node 1" in refused(files, 0, PoolForeign)
    files.path(0).rename(files.path(CONTROL_NODE))
    assert "says that it is node 1" in refused(files, CONTROL_NODE, PoolForeign)


def test_open_refuses_another_size_than_the_pools(location: Location) -> None:
    make(location)
    message = refused(location, 1, PoolCorrupt, size=2 * NODE_SIZE)
    assert f"has {NODE_SIZE} bytes, its pool expects {2 * NODE_SIZE}" in message


@pytest.mark.parametrize("size", [1, 7, 8, 4095, 4096, NODE_SIZE - 1])
def test_open_refuses_truncation(files: Location, size: int) -> None:
    make(files)
    os.truncate(files.path(0), size)
    expected = PoolForeign if size < 8 else PoolTruncated
    refused(files, 0, expected)


def test_open_refuses_an_empty_file(files: Location) -> None:
    make(files)
    os.truncate(files.path(0), 0)
    refused(files, 0, PoolIncomplete)


def test_open_refuses_a_longer_segment(files: Location) -> None:
    make(files)
    os.truncate(files.path(0), NODE_SIZE + 1)
    refused(files, 0, PoolCorrupt)


def test_truncation_of_an_open_segment_shows(files: Location) -> None:
    make(files)
    opened, _ = node.open_(files, 0)
    os.truncate(files.path(0), 8192)
    assert opened.stat_size() == 8192
    opened.close()


def as_folder(path: Path) -> None:
    path.mkdir()


def as_fifo(path: Path) -> None:
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def as_symlink(path: Path) -> None:
    path.symlink_to("/dev/null")


def as_dangling_symlink(path: Path) -> None:
    path.symlink_to(path.with_name("limpet.nothing"))


@pytest.mark.parametrize("become", [as_folder, as_fifo, as_socket, as_symlink, as_dangling_symlink])
def test_what_is_no_plain_file_is_refused_and_left_alone(
    files: Location, become: Callable[[Path], None]
) -> None:
    if files.scheme == "file":
        files.folder.mkdir()
    become(files.path(CONTROL_NODE))
    refused(files, CONTROL_NODE, PoolForeign)
    with pytest.raises(PoolExists):
        node.create(files, CONTROL_NODE, CONTROL_SIZE)
    with pytest.raises(PoolForeign):
        node.unlink_all(files)
    assert os.path.lexists(files.path(CONTROL_NODE))
    url = "" if files.scheme == "shm" else files.url
    row = next(row for row in node.list_pools(url) if row["url"] == files.url)
    assert row["status"] == "PoolForeign"


def test_another_users_segment_is_refused_unless_asked_for(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(location)
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert f"this process runs as {another}" in refused(location, CONTROL_NODE, PoolPermission)
    with pytest.raises(PoolPermission):
        node.unlink_all(location)
    options = node.NodeOptions(any_owner=True)
    opened, _ = node.open_(location, CONTROL_NODE, options=options)
    opened.close()
    assert len(node.unlink_all(location, any_owner=True)) == 3


@as_root
def test_what_the_kernel_forbids_is_a_permission_error(files: Location) -> None:
    make(files)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(PoolPermission, match="may not be opened by this user"):
            node.open_(files, CONTROL_NODE, options=node.NodeOptions(any_owner=True))
    finally:
        os.seteuid(0)


@as_root
@pytest.mark.parametrize("theirs", ["folder", "link", "link to their folder"])
def test_folder_of_another_user_is_refused_unless_asked_for(tmp_path: Path, theirs: str) -> None:
    folder = tmp_path / "pool"
    target = tmp_path / "target" if "link" in theirs else folder
    target.mkdir()
    if "link" in theirs:
        folder.symlink_to(target)
        os.chown(folder, NOBODY, NOBODY, follow_symlinks=False)
    if "folder" in theirs:
        os.chown(target, NOBODY, NOBODY)
    location = node.parse_url(f"file://{folder}")
    with pytest.raises(PoolPermission, match="the folder is owned by uid"):
        node.create(location, CONTROL_NODE, CONTROL_SIZE)
    assert not list(target.iterdir())
    asked = node.NodeOptions(any_owner=True)
    make(location, options=asked)
    with pytest.raises(PoolPermission, match="the folder is owned by uid"):
        node.open_(location, CONTROL_NODE)
    node.open_(location, CONTROL_NODE, options=asked)[0].close()


def test_segment_of_the_last_generation_is_destroyed_with_its_pool(files: Location) -> None:
    make(files)
    last = (1 << 56) - 1
    assert files.named(files.path(0, last).name) == (files.name, 0, last)
    files.path(0).rename(files.path(0, last))
    node.unlink_all(files)
    assert not files.path(0, last).exists()


@as_root
def test_read_only_permission_is_a_permission_error(files: Location) -> None:
    make(files)
    if files.scheme == "file":
        files.folder.chmod(0o755)
        files.folder.parent.chmod(0o755)
    files.path(CONTROL_NODE).chmod(0o644)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(PoolPermission, match="may not be opened by this user"):
            node.open_(files, CONTROL_NODE, options=node.NodeOptions(any_owner=True))
    finally:
        os.seteuid(0)


# --- closing -----------------------------------------------------------------------------------


def test_close_gives_everything_back_and_may_be_repeated(location: Location) -> None:
    make(location)
    before = open_fds()
    opened, _ = node.open_(location, 0)
    assert open_fds() > before
    opened.close()
    opened.close()
    assert open_fds() == before
    with pytest.raises(ValueError, match=r"closed|released"):
        opened.map[:1]


def test_close_leaves_the_mapping_to_buffers_in_use(location: Location) -> None:
    make(location)
    opened, _ = node.open_(location, 0)
    view = memoryview(opened.map)
    opened.close()
    view[8192:8200] = b"still ok"
    assert bytes(view[8192:8200]) == b"still ok"
    view.release()
    opened.close()
    with pytest.raises(ValueError, match=r"closed|released"):
        opened.map[:1]


PROGRAM = """
import multiprocessing.shared_memory, sys
from limpet.shm.backends import node
opened, _ = node.open_(node.parse_url(sys.argv[1]), 0)
view = memoryview(opened.map)
tracked = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
tracked.close(); tracked.unlink()
"""


def test_process_that_exits_says_nothing_and_unlinks_nothing(files: Location) -> None:
    pool = make(files)
    path = str(Path(limpet.__file__).absolute().parents[1])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "default"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, files.url],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert node.probe(files, 0, uuid=pool).index == 0


# --- removing and listing ----------------------------------------------------------------------


def test_unlink_all_removes_every_segment(location: Location) -> None:
    make(location)
    assert node.unlink_all(location) == [
        location.segment(0),
        location.segment(1),
        location.segment(CONTROL_NODE),
    ]
    refused(location, CONTROL_NODE, PoolNotFound)
    with pytest.raises(PoolNotFound):
        node.unlink_all(location)
    make(location)


def test_unlink_all_removes_nodes_without_a_control_segment(files: Location) -> None:
    make(files)
    files.path(CONTROL_NODE).unlink()
    files.path(0).unlink()
    assert node.unlink_all(files) == [files.segment(1)]


def test_unlink_all_removes_damaged_segments(location: Location) -> None:
    make(location)
    patch(location, CONTROL_NODE, 1000, b"\xff")
    patch(location, 0, 8, b"\xff" * 8)
    patch(location, 1, 4090, b"\xff")
    assert len(node.unlink_all(location)) == 3


def test_unlink_all_removes_truncated_segments(files: Location) -> None:
    make(files)
    os.truncate(files.path(0), 0)
    os.truncate(files.path(1), 5)
    os.truncate(files.path(CONTROL_NODE), 100)
    assert len(node.unlink_all(files)) == 3


def test_unlink_all_leaves_all_if_one_segment_is_not_limpets(files: Location) -> None:
    make(files)
    files.path(1).write_bytes(b"my thesis")
    before = snapshot(files)
    with pytest.raises(PoolForeign, match="left alone"):
        node.unlink_all(files)
    assert snapshot(files) == before


def test_unlink_all_leaves_other_files_alone(files: Location) -> None:
    make(files)
    names = ["node.00", "node.255", "node.x", "control.bak"]
    if files.scheme == "shm":
        names = [f"limpet.{files.name}.{suffix}" for suffix in ("00", "255", "x", "control.bak")]
    for name in names:
        (files.folder / name).write_bytes(b"x")
    node.unlink_all(files)
    assert all((files.folder / name).exists() for name in names)


def status_of(location: Location) -> Any:
    return [row["status"] for row in node.list_pools(location.url)]


def test_list_pools_says_what_is_wrong_with_each(location: Location) -> None:
    assert status_of(location) == []
    make(location)
    assert node.list_pools(location.url) == [
        {
            "url": location.url,
            "nodes": 2,
            "bytes": CONTROL_SIZE + 2 * NODE_SIZE,
            "uid": os.geteuid(),
            "status": "ok",
        }
    ]
    patch(location, 1, 50, b"\xff")
    assert status_of(location) == ["PoolCorrupt"]
    patch(location, CONTROL_NODE, 0, superblock.CREATING)
    assert status_of(location) == ["PoolIncomplete"]
    node.unlink_all(location)
    assert status_of(location) == []


def test_list_pools_finds_every_pool_in_shared_memory() -> None:
    with location_on("shm") as one, location_on("shm") as two:
        make(one)
        make(two)
        two.path(1).unlink()
        rows = {row["url"]: row for row in node.list_pools()}
        assert rows[one.url]["status"] == "ok"
        assert rows[two.url]["status"] == "PoolIncomplete"
        assert rows[two.url]["nodes"] == 1


# --- options -----------------------------------------------------------------------------------


def nothing_left(location: Location) -> bool:
    return not any(location.path(index).exists() for index in (CONTROL_NODE, 0, 1))


@pytest.mark.parametrize(
    "fields",
    [
        {"numa_node": -1},
        {"numa_node": 1024},
        {"numa_node": True},
        {"numa_node": ()},
        {"numa_node": (0, None)},
        {"numa_node": "0"},
        {"prefault": 1},
        {"huge_pages": "yes"},
        {"any_owner": None},
    ],
)
def test_options_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        node.NodeOptions(**fields)


def test_a_numa_node_can_be_given_for_each_memory_node() -> None:
    options = node.NodeOptions(numa_node=(1, 0))
    assert [options.numa_node_of(index) for index in range(2)] == [1, 0]
    with pytest.raises(ParameterError, match="memory node 2"):
        options.numa_node_of(2)


def test_binding_to_a_numa_node_places_the_pages_there() -> None:
    with location_on("shm") as location:
        options = node.NodeOptions(numa_node=0, prefault=True)
        try:
            created = node.create(location, CONTROL_NODE, CONTROL_SIZE, options=options)
        except ParameterError as error:
            pytest.skip(str(error))
        pages = Path("/proc/self/numa_maps").read_text().splitlines()
        mapped = next(line for line in pages if line.startswith(f"{created.address:x} "))
        assert "bind:0" in mapped
        assert f"N0={CONTROL_SIZE // os.sysconf('SC_PAGE_SIZE')}" in mapped
        created.close()


def test_binding_to_a_numa_node_that_does_not_exist_is_refused_and_leaves_nothing() -> None:
    with location_on("shm") as location:
        with pytest.raises(ParameterError, match="cannot bind to NUMA node 1023"):
            node.create(
                location, CONTROL_NODE, CONTROL_SIZE, options=node.NodeOptions(numa_node=1023)
            )
        assert nothing_left(location)


def test_prefault_takes_every_page_at_once(files: Location) -> None:
    lazy = node.create(files, CONTROL_NODE, CONTROL_SIZE)
    eager = node.create(files, 0, NODE_SIZE, options=node.NodeOptions(prefault=True))
    assert os.fstat(lazy.fd).st_blocks == 0
    assert os.fstat(eager.fd).st_blocks * 512 >= NODE_SIZE
    lazy.close()
    eager.close()


MOUNT = "25 24 {device} / /dev/shm rw,relatime - {kind} none rw,size=1k{huge}\n"


@pytest.mark.parametrize(
    ("kind", "huge", "setting", "says"),
    [
        ("tmpfs", "", "always [never]", "mounted without huge pages"),
        ("tmpfs", ",huge=never", "[never]", "mounted without huge pages"),
        ("tmpfs", ",huge=advise", "[deny]", "denies huge pages"),
        ("tmpfs", ",huge=advise", None, "denies huge pages"),
        ("ext4", "", "[never]", "need hugetlbfs or tmpfs, this is ext4"),
        ("tmpfs", ",huge=advise", "[never]", None),
        ("tmpfs", "", "[force]", None),
    ],
)
def test_huge_pages_are_given_or_refused(
    kind: str,
    huge: str,
    setting: str | None,
    says: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number = SHM_DIR.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    (tmp_path / "mounts").write_text(MOUNT.format(device=device, kind=kind, huge=huge))
    monkeypatch.setattr(placement, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(placement, "HUGEPAGE_SETTINGS", tmp_path / "setting")
    if setting is not None:
        (tmp_path / "setting").write_text(setting)
    options = node.NodeOptions(huge_pages=True)
    with location_on("shm") as location:
        if says is None:
            node.create(location, CONTROL_NODE, CONTROL_SIZE, options=options).close()
            return
        with pytest.raises(ParameterError, match=says):
            node.create(location, CONTROL_NODE, CONTROL_SIZE, options=options)
        assert nothing_left(location)


def test_sizes_on_hugetlbfs_are_whole_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    hugetlbfs = placement.FileSystem("hugetlbfs", "", 2 << 20)
    monkeypatch.setattr(placement, "file_system", lambda path: hugetlbfs)
    with location_on("file") as location:
        planned = node.plan(location, nodes=1, node_size=4 << 20, control_size=lambda memory: 5000)
        assert planned == node.Plan(nodes=1, node_size=4 << 20, control_size=2 << 20)
        for size in (4096, 1 << 20, 3 << 20):
            with pytest.raises(ParameterError, match="multiple of 2097152"):
                node.create(location, CONTROL_NODE, size)


# --- RemoveIPC ---------------------------------------------------------------------------------


def logind(root: Path, **files: str) -> Path:
    (root / "run/systemd/seats").mkdir(parents=True)
    for name, text in files.items():
        path = root / "etc/systemd" / ("logind.conf" if name == "main" else f"logind.conf.d/{name}")
        path = path if name == "main" else path.with_suffix(".conf")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "warns"),
    [
        ({}, True),
        ({"main": "[Login]\n#RemoveIPC=no\n"}, True),
        ({"main": "[Login]\nRemoveIPC=no\n"}, False),
        ({"main": "[Login]\nRemoveIPC = yes\n"}, True),
        ({"main": "[Other]\nRemoveIPC=no\n"}, True),
        ({"main": "[Login]\nRemoveIPC=no\n", "10-site": "[Login]\nRemoveIPC=yes\n"}, True),
        ({"10-a": "[Login]\nRemoveIPC=yes\n", "20-b": "[Login]\nRemoveIPC=off\n"}, False),
    ],
)
def test_remove_ipc_is_detected(tmp_path: Path, files: dict[str, str], warns: bool) -> None:
    root = logind(tmp_path, **files)
    warning = node.remove_ipc_warning(root, uid=4_000_000)
    assert (warning is not None) == warns
    assert warning is None or "RemoveIPC=no" in warning


def test_remove_ipc_does_not_concern_system_users_or_hosts_without_logind(tmp_path: Path) -> None:
    assert node.remove_ipc_warning(tmp_path, uid=1000) is None
    root = logind(tmp_path)
    assert node.remove_ipc_warning(root, uid=0) is None
    assert node.remove_ipc_warning(root, uid=999) is None
    assert node.remove_ipc_warning(root, uid=1000) is not None


def test_remove_ipc_does_not_concern_users_who_linger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = pwd.struct_passwd(("ada", "x", NOBODY, NOBODY, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    root = logind(tmp_path)
    linger = root / "var/lib/systemd/linger"
    linger.mkdir(parents=True)
    assert node.remove_ipc_warning(root, uid=NOBODY) is not None
    (linger / "ada").touch()
    assert node.remove_ipc_warning(root, uid=NOBODY) is None
