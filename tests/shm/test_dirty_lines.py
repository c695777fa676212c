"""The lines that the endpoint of a durable pool notes, and writes back where it is told to."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import pytest
from kit.fabrics import BOTH, SIZE, address, endpoint_on

from limpet.shm.endpoint import portable
from limpet.shm.errors import CoherenceError

VOLATILE = (4096, 4160)
CONTROL = address(255)


@pytest.fixture(params=BOTH)
def endpoint(request: Any) -> Iterator[Any]:
    """An endpoint that tells which lines it writes back; `flushed` has them."""

    class Telling(request.param.Endpoint):  # type: ignore[misc,name-defined]
        __slots__ = ("flushed",)

        def flush(self, addr: int, size: int) -> int:
            self.flushed.extend(range(addr, addr + size, 64))
            return 0

    class Fabric:
        Endpoint = Telling

    with endpoint_on(Fabric, mmap.mmap(-1, SIZE)) as made:
        made.flushed = []
        made.make_durable(*VOLATILE, *VOLATILE)
        yield made


def test_every_mutating_verb_notes_its_lines(endpoint: Any) -> None:
    steps = (
        lambda at: endpoint.store(at, 1),
        lambda at: endpoint.swap(at, 1),
        lambda at: endpoint.cas(at, 1, 2),
        lambda at: endpoint.faa(at, 1),
        lambda at: endpoint.fetch_or(at, 1),
        lambda at: endpoint.mcas(at, 0, 1, 0, 1),
        lambda at: endpoint.write(at, b"12345678"),
    )
    for number, step in enumerate(steps):
        endpoint.flushed.clear()
        step(128 * number + 8)
        assert endpoint.noted
        endpoint.persist()
        assert endpoint.flushed == [128 * number], number
        assert not endpoint.noted


def test_write_notes_each_line_that_it_touches(endpoint: Any) -> None:
    endpoint.write(60, bytes(70))
    endpoint.persist()
    assert sorted(endpoint.flushed) == [0, 64, 128]


def test_lines_are_written_back_once_with_one_fence(endpoint: Any) -> None:
    for _ in range(3):
        endpoint.store(8, 1)
        endpoint.store(16, 1)
        endpoint.store(512, 1)
    endpoint.persist()
    assert sorted(endpoint.flushed) == [0, 512]
    assert endpoint.counters()["fences"] == 1
    endpoint.persist()
    assert len(endpoint.flushed) == 2
    assert endpoint.counters()["fences"] == 1


def test_what_is_made_anew_after_a_cut_is_not_noted_unless_asked_for(endpoint: Any) -> None:
    endpoint.store(VOLATILE[0], 1)
    assert not endpoint.noted
    endpoint.dirty(VOLATILE[0], 8)
    endpoint.persist()
    assert endpoint.flushed == [VOLATILE[0]]


def test_more_lines_than_are_noted_are_written_back_early(endpoint: Any) -> None:
    for number in range(50):
        endpoint.store(128 * (number % 31) + 128 * 33 * (number // 31), 1)
    wanted = {128 * (n % 31) + 128 * 33 * (n // 31) for n in range(50)}
    endpoint.persist()
    assert set(endpoint.flushed) >= wanted - set(range(*VOLATILE))


def test_reader_notes_what_it_goes_by(endpoint: Any) -> None:
    endpoint.load(256)
    assert not endpoint.noted
    endpoint.dirty(256, 8)
    endpoint.persist()
    assert endpoint.flushed == [256]


def test_address_that_is_nowhere_is_not_noted(endpoint: Any) -> None:
    for addr in (address(7), SIZE, CONTROL):
        endpoint.dirty(addr, 8)
    assert not endpoint.noted


def test_pure_python_refuses_to_make_memory_persistent() -> None:
    with pytest.raises(CoherenceError, match="pure Python"):
        portable.Endpoint().make_durable(0, 0, 0, 0)
    with pytest.raises(CoherenceError, match="pure Python"):
        portable.flush_mapping(bytearray(64), 64)
