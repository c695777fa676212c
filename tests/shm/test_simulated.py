"""The simulated endpoint: the same verbs, in steps that a scheduler decides; caches and lines."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.caches import COHERENT, SIZE, CachedClients, cached_clients

from limpet.shm.clients.simulated_processes import SimulatedProcesses
from limpet.shm.endpoint.fabric import BUILD, Endpoint, flush_features
from limpet.shm.endpoint.hooked import size_of, words_of
from limpet.shm.endpoint.simulated import (
    CAS,
    PAUSE,
    READ,
    STORE,
    WRITE,
    CachedEndpoint,
    Crashed,
    SimulatedEndpoint,
)
from limpet.shm.endpoint.simulated_memory import LINE


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    with mmap.mmap(-1, SIZE) as mapping:
        yield mapping


@pytest.fixture
def endpoint(memory: mmap.mmap) -> Iterator[SimulatedEndpoint]:
    made = SimulatedEndpoint()
    made.attach(0, memory, SIZE)
    made.trace = []
    yield made
    made.detach()


class Cutter:
    """A turn that lets a few words be done at a time, and notes what it was asked."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.asked: list[tuple[str, int, int]] = []

    def __call__(self, endpoint: Any, verb: str, addr: int, words: int) -> int:
        self.asked.append((verb, addr, words))
        return min(self.words, words)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_words_cover_exactly_the_bytes(addr: int, size: int) -> None:
    words = words_of(addr, size)
    touched = {(addr + i) // 8 for i in range(size)}
    assert words == max(1, len(touched))
    assert size_of(addr, words) >= size
    assert words == 1 or size_of(addr, words - 1) < size


@pytest.mark.parametrize("addr", [64, 67])
@pytest.mark.parametrize("size", [1, 8, 13, 40, 100])
@pytest.mark.parametrize("words", [1, 2, 3, 99])
def test_cut_verbs_do_what_whole_ones_do(
    endpoint: SimulatedEndpoint, memory: mmap.mmap, addr: int, size: int, words: int
) -> None:
    endpoint.turn = cutter = Cutter(words)
    data = bytes(range(1, size + 1))
    endpoint.write(addr, data)
    assert memory[addr : addr + size] == data
    assert memory[addr - 8 : addr] == bytes(8)
    assert memory[addr + size : addr + size + 8] == bytes(8)
    steps = -(-words_of(addr, size) // words)
    assert [verb for verb, _, _ in cutter.asked] == [WRITE] * steps
    assert endpoint.read(addr, size) == data
    buffer = bytearray(size)
    endpoint.read_into(addr, buffer)
    assert buffer == data
    assert [verb for verb, _, _ in cutter.asked] == [WRITE] * steps + [READ] * 2 * steps


@pytest.mark.parametrize("words", [1, 3, 99])
def test_cut_gathers_and_word_reads_do_what_whole_ones_do(
    endpoint: SimulatedEndpoint, memory: mmap.mmap, words: int
) -> None:
    plain = Endpoint()
    with mmap.mmap(-1, SIZE) as other:
        plain.attach(0, other, SIZE)
        endpoint.turn = Cutter(words)
        head = array("Q", [1, 2, 3])
        for one in (plain, endpoint):
            one.write_gather(128, head, 2, b"first", b"second one")
            one.write_words(256, head, 2, 1)
        assert memory[:] == other[:]
        found, expected = array("Q", bytes(64)), array("Q", bytes(64))
        endpoint.read_words(128, found, 5, 2)
        plain.read_words(128, expected, 5, 2)
        assert found == expected
        plain.detach()


def test_a_write_is_torn_where_it_is_cut(endpoint: SimulatedEndpoint, memory: mmap.mmap) -> None:
    seen = []

    def turn(endpoint: Any, verb: str, addr: int, words: int) -> int:
        seen.append(memory[0:32])
        return 2

    endpoint.turn = turn
    endpoint.write(0, b"x" * 32)
    assert seen == [bytes(32), b"x" * 16 + bytes(16)]


def test_word_verbs_return_what_those_of_the_fabric_do(endpoint: SimulatedEndpoint) -> None:
    assert endpoint.store(8, 5) == 0
    assert endpoint.swap(8, 6) == 5
    assert endpoint.cas(8, 6, 7) == 6
    assert endpoint.cas(8, 6, 9) == 7
    assert endpoint.faa(8, 3) == 7
    assert endpoint.fetch_or(8, 16) == 10
    assert endpoint.mcas(8, 2, 1, 2, 1) == 26
    assert endpoint.load(8) == 27
    outcomes = [(verb, outcome) for _, verb, _, outcome, _ in endpoint.trace]
    assert outcomes[:4] == [(STORE, 1), ("swap", 1), (CAS, True), (CAS, False)]
    assert endpoint.counters()["cas"] == 3


def test_a_crashed_client_changes_nothing_any_more(
    endpoint: SimulatedEndpoint, memory: mmap.mmap
) -> None:
    def turn(endpoint: Any, verb: str, addr: int, words: int) -> int:
        raise Crashed

    endpoint.turn = turn
    verbs = [
        lambda: endpoint.store(0, 1), lambda: endpoint.swap(0, 1), lambda: endpoint.cas(0, 0, 1),
        lambda: endpoint.faa(0, 1), lambda: endpoint.fetch_or(0, 1),
        lambda: endpoint.mcas(0, 0, 1, 0, 1), lambda: endpoint.write(0, b"1"),
        lambda: endpoint.write_gather(0, array("Q", [1]), 1, b"", b""),
        lambda: endpoint.load(0), lambda: endpoint.read(0, 8), lambda: endpoint.pause(0),
        lambda: endpoint.futex_wait(0, 0, 0),
    ]  # fmt: skip
    for verb in verbs:
        with pytest.raises(Crashed):
            verb()
    assert memory[:] == bytes(SIZE)
    assert not isinstance(Crashed(), Exception)


def test_pauses_take_no_time(endpoint: SimulatedEndpoint) -> None:
    for attempt in range(200):
        endpoint.pause(attempt)
    assert [step[1] for step in endpoint.trace] == [PAUSE] * 200


def test_a_sleep_is_a_pause_in_which_the_word_may_change(
    endpoint: SimulatedEndpoint, memory: mmap.mmap
) -> None:
    def turn(endpoint: Any, verb: str, addr: int, words: int) -> int:
        memory[8] = changes.pop()
        return words

    changes = [6, 5]
    endpoint.turn = turn
    assert endpoint.futex_wait(8, 5, 1 << 40) == 0
    assert endpoint.futex_wait(8, 5, 1 << 40) == 1
    assert endpoint.futex_wake(8, 1) == 0
    assert [step[1] for step in endpoint.trace] == [PAUSE] * 2


def test_processes_die_when_they_are_ended() -> None:
    ended: list[int] = []
    processes = SimulatedProcesses(ended.append)
    assert processes.alive(5, 0)
    assert processes.kill(5, 0)
    assert ended == [5]
    processes.gone.add(5)
    assert not processes.alive(5, 0)


# ---- caches --------------------------------------------------------------------------------------


class NeverWritesBack(CachedEndpoint):
    """clwb left out."""

    def write_back(self, addr: int, size: int) -> int:
        return 0


class NeverInvalidates(CachedEndpoint):
    """clflushopt left out."""

    def invalidate(self, addr: int, size: int) -> int:
        return 0


class KeepsItsEdges(CachedEndpoint):
    """The parts of a line that others wrote are not renewed before a write."""

    def invalidate(self, addr: int, size: int) -> int:
        return 0 if size == 1 else super().invalidate(addr, size)


@pytest.fixture
def caches() -> Iterator[CachedClients]:
    with cached_clients() as made:
        yield made


needs_flushes = pytest.mark.skipif(
    BUILD != "compiled" or "clflushopt" not in flush_features(),
    reason="this build or CPU refuses memory without coherence",
)


@needs_flushes
def test_flushed_writes_are_seen_and_unflushed_ones_are_not(caches: CachedClients) -> None:
    writer, reader = caches.client(), caches.client()
    hoarder, dreamer = caches.client(NeverWritesBack), caches.client(NeverInvalidates)
    at = COHERENT + 256
    writer.write(at, b"a" * 100)
    assert reader.read(at, 100) == b"a" * 100
    assert dreamer.read(at, 100) == bytes(100)
    hoarder.write(at, b"b" * 100)
    assert reader.read(at, 100) == b"a" * 100


@needs_flushes
def test_gathered_writes_and_word_reads_are_flushed_too(caches: CachedClients) -> None:
    writer, reader = caches.client(), caches.client()
    writer.write_gather(COHERENT + 128, array("Q", [1, 2]), 2, b"first", b"second")
    found = array("Q", bytes(32))
    reader.read_words(COHERENT + 128, found, 4)
    assert found.tobytes()[16:] == b"first\0\0\0second\0\0"
    buffer = bytearray(16)
    reader.read_into(COHERENT + 128, buffer)
    assert bytes(buffer) == found.tobytes()[:16]


@needs_flushes
def test_words_in_the_coherent_range_need_no_flush(caches: CachedClients) -> None:
    writer, reader = caches.client(NeverWritesBack), caches.client(NeverInvalidates)
    writer.store(64, 7)
    assert reader.load(64) == 7
    assert reader.cas(64, 7, 8) == 7
    assert writer.load(64) == 8


@needs_flushes
@pytest.mark.parametrize(("kind", "kept"), [(CachedEndpoint, True), (KeepsItsEdges, False)])
def test_a_line_that_two_clients_write_keeps_both_parts(
    caches: CachedClients, kind: type[CachedEndpoint], kept: bool
) -> None:
    one, two = caches.client(kind), caches.client(kind)
    at = COHERENT + LINE
    one.write(at, b"1" * 32)
    two.write(at + 32, b"2" * 32)
    assert (caches.memory[at : at + LINE] == b"1" * 32 + b"2" * 32) == kept


@needs_flushes
def test_a_dropped_line_that_was_written_goes_to_memory_first(caches: CachedClients) -> None:
    hoarder = caches.client(NeverWritesBack)
    at = COHERENT + 512
    hoarder.write(at, b"dirty...")
    assert caches.memory[at : at + 8] == bytes(8)
    assert hoarder.read(at, 8) == b"dirty..."
    assert caches.memory[at : at + 8] == b"dirty..."
