"""`Endpoint.guard`: no step of a mutating verb once the word that is guarded has changed."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.fabrics import BOTH, SIZE, address, endpoint_on

from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.hooked import WRITES, HookedEndpoint
from limpet.shm.errors import ClientError

GUARDED = address(0, 512)
TARGET = address(0, 64)
WORDS = array("Q", [11, 12, 13, 14])

MUTATE: dict[str, Callable[[Any], object]] = {
    "store": lambda e: e.store(TARGET, 5),
    "swap": lambda e: e.swap(TARGET, 5),
    "cas": lambda e: e.cas(TARGET, 7, 5),
    "faa": lambda e: e.faa(TARGET, 5),
    "fetch_or": lambda e: e.fetch_or(TARGET, 8),
    "mcas": lambda e: e.mcas(TARGET, 7, 5, 0xFF, 0xFF),
    "write": lambda e: e.write(TARGET, b"x" * 32),
    "write_words": lambda e: e.write_words(TARGET, memoryview(WORDS), 4),
    "write_gather": lambda e: e.write_gather(TARGET, memoryview(WORDS), 1, b"abc", b"defg"),
}


@pytest.fixture(params=BOTH)
def endpoint(request: pytest.FixtureRequest) -> Iterator[Any]:
    with endpoint_on(request.param, mmap.mmap(-1, SIZE)) as made:
        made.store(GUARDED, 1)
        made.store(TARGET, 7)
        yield made


@pytest.mark.parametrize("verb", MUTATE)
def test_guarded_verb_works_while_the_word_stands(endpoint: Any, verb: str) -> None:
    endpoint.guard(GUARDED, 1)
    MUTATE[verb](endpoint)
    assert endpoint.read(TARGET, 8) != (7).to_bytes(8, "little")


@pytest.mark.parametrize("verb", MUTATE)
def test_guarded_verb_changes_nothing_when_the_word_has_changed(endpoint: Any, verb: str) -> None:
    endpoint.guard(GUARDED, 1)
    endpoint.store(GUARDED, 2)
    before = endpoint.read(address(0), SIZE)
    with pytest.raises(ClientError, match="declared dead"):
        MUTATE[verb](endpoint)
    assert endpoint.read(address(0), SIZE) == before
    assert endpoint.load(TARGET) == 7
    endpoint.guard(0, 0)
    MUTATE[verb](endpoint)
    assert endpoint.read(address(0), SIZE) != before


def test_guard_and_fuse_are_independent(endpoint: Any) -> None:
    endpoint.guard(GUARDED, 1)
    endpoint.fuse = 100
    endpoint.store(TARGET, 1)
    assert endpoint.fuse == 99
    endpoint.fuse = 0
    endpoint.store(GUARDED, 2)
    with pytest.raises(ClientError):
        endpoint.store(TARGET, 2)
    endpoint.fuse = 100
    with pytest.raises(ClientError):
        endpoint.store(TARGET, 2)
    assert endpoint.fuse == 100
    endpoint.guard(0, 0)
    endpoint.store(TARGET, 2)
    assert endpoint.fuse == 99


class CutEndpoint(HookedEndpoint, verbs=WRITES):
    """Does two words of a write, then the word that is guarded changes, then the rest."""

    raw: Any = None

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if addr == TARGET:
            return 2
        self.raw[512] = 2
        return words


def test_write_is_cut_between_two_words_when_the_word_changes() -> None:
    raw = mmap.mmap(-1, SIZE)
    endpoint = CutEndpoint()
    endpoint.raw = raw
    endpoint.attach(0, raw, SIZE)
    try:
        endpoint.store(GUARDED, 1)
        endpoint.guard(GUARDED, 1)
        with pytest.raises(ClientError):
            endpoint.write_words(TARGET, memoryview(WORDS), 4)
        assert array("Q", endpoint.read(TARGET, 32)) == array("Q", [11, 12, 0, 0])
    finally:
        endpoint.detach()


def test_detached_endpoint_is_guarded_no_more() -> None:
    endpoint = Endpoint()
    first = mmap.mmap(-1, SIZE)
    endpoint.attach(0, first, SIZE)
    endpoint.guard(GUARDED, 1)
    endpoint.detach()
    first.close()
    endpoint.attach(0, mmap.mmap(-1, SIZE), SIZE)
    endpoint.store(TARGET, 3)
    assert endpoint.load(TARGET) == 3
    endpoint.detach()
