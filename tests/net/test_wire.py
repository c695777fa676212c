"""The messages of memory nodes over a network, and what is refused without a network."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.shm.backends.inventory import list_pools
from limpet.shm.endpoint.fabric import BUILD, Endpoint
from limpet.shm.net import wire

if BUILD == "pure":
    pytest.skip("the pure build has no libfabric", allow_module_level=True)

from limpet.shm.net.phases import Phases

from limpet.shm.net import codec, libfabric
from limpet.shm.net.server import Server

pytestmark = pytest.mark.either_build("neither has lines of its own")

SECRET = b"0123456789abcdef"
HEAD = struct.Struct("<BBHIQ")
PHASE = [
    codec.verb(wire.READ, 1 << 40 | 64, 13),
    codec.verb(wire.WRITE, 2 << 40 | 8, 11, data=b"hello world"),
    codec.verb(wire.CAS, 64, 0, 7, 8),
    codec.verb(wire.CAS_IF, 72, 0, 2, 7, 9, 10),
    codec.verb(wire.WRITE_IF, 80, 3, 2, 7, data=b"abc"),
    codec.verb(wire.FETCH_OR, 88, 0, 1 << 63, quiet=True),
    codec.verb(wire.MCAS, 96, 0, 1, 2, 3, 4),
]


class Memory(Endpoint):
    """An endpoint without nodes, which tells its verbs."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def read(self, addr: int, size: int) -> bytes:
        self.calls.append(("read", addr, size))
        if addr >> 40 == 3:
            raise limpet.NodeFailed(3, "it is gone")
        return b"r" * size

    def write(self, addr: int, data: Any) -> int:
        self.calls.append(("write", addr, bytes(data)))
        return 0

    def cas(self, addr: int, expected: int, desired: int) -> int:
        self.calls.append(("cas", addr, expected, desired))
        return expected

    def fetch_or(self, addr: int, bits: int) -> int:
        self.calls.append(("fetch_or", addr, bits))
        return 5

    def mcas(self, addr: int, *words: int) -> int:
        self.calls.append(("mcas", addr, *words))
        return 6

    def lost(self, node: int) -> bool:
        return True


def done(*verbs: bytes) -> tuple[list[tuple[Any, ...]], Any]:
    """The verbs that a server does of a phase, and its answer."""
    phases, memory = Phases(), Memory()
    phases.read(codec.message(wire.PHASE, 7, b"".join(verbs)))
    return memory.calls, codec.answered(phases.do(memory, None))


def test_phase_is_what_it_was() -> None:
    calls, answer = done(*PHASE)
    assert calls == [
        ("read", 1 << 40 | 64, 13),
        ("write", 2 << 40 | 8, b"hello world"),
        ("cas", 64, 7, 8),
        ("cas", 72, 9, 10),
        ("write", 80, b"abc"),
        ("fetch_or", 88, 1 << 63),
        ("mcas", 96, 1, 2, 3, 4),
    ]
    assert (answer.number, answer.status, answer.undone) == (7, wire.DONE, frozenset())
    words = struct.pack("<4Q", 7, 9, 5, 6)
    assert answer.results == b"r" * 13 + b"\0" * 3 + words


def test_verbs_that_depend_are_done_if_the_word_is_the_one() -> None:
    calls, answer = done(
        codec.verb(wire.CAS, 64, 0, 7, 8),
        codec.verb(wire.CAS_IF, 72, 0, 0, 6, 9, 10),
        codec.verb(wire.WRITE_IF, 80, 3, 0, 7, data=b"abc"),
    )
    assert calls == [("cas", 64, 7, 8), ("write", 80, b"abc")]
    assert answer.results == struct.pack("<2Q", 7, ~9 & (1 << 64) - 1)


def test_answer_tells_which_nodes_have_failed() -> None:
    calls, answer = done(
        codec.verb(wire.CAS, 64, 0, 7, 8),
        codec.verb(wire.READ, 3 << 40, 8),
        codec.verb(wire.CAS, 3 << 40, 0, 7, 8),
        codec.verb(wire.CAS, 72, 0, 1, 2),
    )
    assert [call[:2] for call in calls] == [("cas", 64), ("read", 3 << 40), ("cas", 72)]
    assert (answer.status, answer.lost, answer.node) == (wire.NODE_LOST, True, 3)
    assert answer.undone == {3}
    assert "it is gone" in answer.text
    assert answer.results == struct.pack("<4Q", 7, 0, 0, 1)


@pytest.mark.parametrize("cut", range(1, 16))
def test_half_of_a_message_is_refused(cut: int) -> None:
    whole = codec.message(wire.PHASE, 1, b"".join(PHASE))
    with pytest.raises(wire.WireError):
        codec.opened(whole[:-cut])
    with pytest.raises(wire.WireError):
        codec.opened(whole[:cut])


WRONG = {
    "unknown operation": HEAD.pack(99, 0, 0, 0, 64),
    "unknown flag": HEAD.pack(wire.LOAD, 2, 0, 0, 64),
    "reserved bits": HEAD.pack(wire.LOAD, 0, 1, 0, 64),
    "no arguments": HEAD.pack(wire.CAS, 0, 0, 0, 64),
    "data is short": HEAD.pack(wire.WRITE, 0, 0, 64, 64) + b"x" * 8,
    "data without end": HEAD.pack(wire.WRITE, 0, 0, 0xFFFF_FFFF, 64) + b"x" * 8,
    "too much to read": HEAD.pack(wire.READ, 0, 0, wire.MESSAGE_MAX, 64),
    "depends on itself": codec.verb(wire.CAS_IF, 64, 0, 0, 1, 2, 3),
    "depends on a write": codec.verb(wire.STORE, 64, 0, 1)
    + codec.verb(wire.CAS_IF, 64, 0, 0, 1, 2, 3),
    "depends on a read": codec.verb(wire.READ, 64, 8) + codec.verb(wire.WRITE_IF, 64, 0, 0, 1),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_verb_is_refused(what: str) -> None:
    with pytest.raises(wire.WireError):
        Phases().read(codec.message(wire.PHASE, 1, WRONG[what]))


def test_reads_of_a_phase_fit_into_its_answer() -> None:
    verb = codec.verb(wire.READ, 64, 1 << 15)
    failing = codec.verb(wire.READ, 3 << 40, 8)
    _, answer = done(verb * 3, failing)
    assert len(answer.results) == 3 * (1 << 15) + 8
    with pytest.raises(wire.WireError, match="results"):
        done(verb * 4)


def test_other_version_is_told() -> None:
    data = bytearray(codec.message(wire.BEAT, 0))
    data[1] += 1
    with pytest.raises(wire.WireError, match=f"version {wire.VERSION + 1}"):
        codec.opened(bytes(data))


def test_garbage_is_refused_or_a_message() -> None:
    source = random.Random(5)
    whole = codec.message(wire.PHASE, 1, b"".join(PHASE))
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(source.randint(1, 4)):
            data[source.randrange(len(data))] = source.randrange(256)
        try:
            kind = codec.kind_of(bytes(data))
            if kind == wire.PHASE:
                Phases().read(bytes(data))
            elif kind == wire.ANSWER:
                codec.answered(bytes(data))
        except wire.WireError:
            refused += 1
    assert refused


def test_proof_is_of_one_side_and_one_connection() -> None:
    one = wire.proof(SECRET, b"client", b"a" * 32, b"b" * 32, b"demo")
    assert wire.is_proof(one, wire.proof(SECRET, b"client", b"a" * 32, b"b" * 32, b"demo"))
    for other in (
        wire.proof(SECRET, b"server", b"a" * 32, b"b" * 32, b"demo"),
        wire.proof(SECRET, b"client", b"c" * 32, b"b" * 32, b"demo"),
        wire.proof(SECRET, b"client", b"a" * 32, b"b" * 32, b"other"),
        wire.proof(SECRET + b"!", b"client", b"a" * 32, b"b" * 32, b"demo"),
    ):
        assert not wire.is_proof(one, other)


def test_secret_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o640)
    with pytest.raises(limpet.ParameterError, match="chmod 600"):
        wire.read_secret(str(path))
    path.chmod(0o600)
    assert wire.read_secret(str(path)) == SECRET
    path.write_bytes(b"short")
    with pytest.raises(limpet.ParameterError, match="at least 16 bytes"):
        wire.read_secret(str(path))
    with pytest.raises(limpet.ParameterError, match="cannot be read"):
        wire.read_secret(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("version", "refused"),
    [("1.16.1", True), ("1.17.0", False), ("1.18.0", True), ("1.18.1", False), ("1.22.0rc1", False),
     ("2.5.1", False), ("1.18.0a", True), ("nonsense", True)],
)  # fmt: skip
def test_versions_of_libfabric(version: str, refused: bool) -> None:
    assert libfabric.refused_version(version) is refused


@pytest.mark.parametrize(
    ("name", "why"),
    [("/nowhere/libfabric.so.1", "libfabric1"), ("libc.so.6", "libc.so.6 is no libfabric")],
)
def test_missing_library_is_told(monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
    monkeypatch.setenv(libfabric.VARIABLE, name)
    libfabric.library.cache_clear()
    try:
        with pytest.raises(libfabric.NoLibfabric, match=why):
            libfabric.library()
    finally:
        libfabric.library.cache_clear()


@pytest.mark.parametrize(
    "url",
    ["net://", "net://host", "net://host/demo", "net://host:1", "net://host:99999/demo",
     "net://host:1/", "net://host:1,/demo", "net://host:1,host:1/demo", "net://host:1/a/b"],
)  # fmt: skip
def test_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(limpet.ParameterError):
        limpet.open(url)


def test_pool_on_other_hosts_is_made_and_destroyed_there() -> None:
    with pytest.raises(limpet.ParameterError, match="made, served, listed and destroyed"):
        limpet.create("net://127.0.0.1:7001/demo")
    with pytest.raises(limpet.ParameterError, match="made, served, listed and destroyed"):
        limpet.destroy("net://127.0.0.1:7001/demo")
    with pytest.raises(limpet.ParameterError, match="made, served, listed and destroyed"):
        list_pools("net://127.0.0.1:7001/demo")


def test_pool_on_other_hosts_is_served_there() -> None:
    with pytest.raises(limpet.ParameterError, match="made, served, listed and destroyed"):
        Server("net://127.0.0.1:7001/demo", "127.0.0.1", 0, SECRET)


def test_open_without_a_secret_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIMPET_SECRET_FILE", raising=False)
    with pytest.raises(limpet.ParameterError, match="LIMPET_SECRET_FILE"):
        limpet.open("net://127.0.0.1:7001/demo")


@pytest.mark.parametrize(
    ("parameters", "served", "why"),
    [
        ({}, (), "multi_host=True"),
        ({"multi_host": True, "ephemeral": True}, (), "ephemeral"),
        ({"multi_host": True}, (1,), "has no node 1"),
    ],
)
def test_pool_that_only_its_host_can_use_is_not_served(
    pools: Callable[..., Any], parameters: dict[str, bool], served: tuple[int, ...], why: str
) -> None:
    pool = pools(**parameters)
    with pytest.raises(limpet.ParameterError, match=why):
        Server(pool.url, "127.0.0.1", 0, SECRET, served=served)
