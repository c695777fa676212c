"""The hooked fabric: verbs do what they do without hooks, whole or in parts; only what is named."""

from __future__ import annotations

import inspect
import mmap
from collections.abc import Iterator
from typing import Any

import pytest

from limpet.shm.endpoint import portable
from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.hooked import (
    ATOMICS,
    MUTATING,
    READS,
    WAITS,
    WRITES,
    HookedEndpoint,
    _Verbs,
    words_of,
)

SIZE = 4096
DATA = bytes(range(1, 44))
VERBS = (*READS, *MUTATING, *WAITS)


class PartsEndpoint(HookedEndpoint, verbs=VERBS):
    """Does `part` words at a time, and notes what was asked and what was done."""

    def __init__(self, part: int) -> None:
        self.part = part
        self.asked: list[tuple[str, int, int]] = []
        self.done: list[tuple[str, int, int, int]] = []

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        self.asked.append((verb, addr, words))
        return min(self.part, words)

    def on_done(self, verb: str, addr: int, words: int, value: int) -> None:
        self.done.append((verb, addr, words, value))


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    with mmap.mmap(-1, SIZE) as mapping:
        yield mapping


def attached(endpoint: Any, memory: mmap.mmap) -> Any:
    endpoint.attach(0, memory, SIZE)
    return endpoint


@pytest.mark.parametrize("verb", VERBS)
def test_hooked_verbs_have_the_signatures_of_the_fabric(verb: str) -> None:
    def face(thing: Any) -> list[tuple[str, Any]]:
        found = inspect.signature(getattr(thing, verb)).parameters.values()
        return [(parameter.name, parameter.default) for parameter in found]

    assert face(_Verbs) == face(portable.Endpoint) == face(Endpoint)


def test_only_the_verbs_that_are_named_are_overridden() -> None:
    class Some(HookedEndpoint, verbs=("cas",)):
        pass

    assert {name for name in VERBS if name in vars(Some)} == {"cas"}
    assert not {name for name in VERBS if name in vars(HookedEndpoint)}


def words_of_data() -> Any:
    return memoryview(bytearray(DATA[:40])).cast("Q")


WORKS: dict[str, Any] = {
    "store": lambda one: one.store(64, 5),
    "swap": lambda one: one.swap(64, 5),
    "cas": lambda one: one.cas(64, 0, 5),
    "faa": lambda one: one.faa(64, 5),
    "fetch_or": lambda one: one.fetch_or(64, 5),
    "mcas": lambda one: one.mcas(64, 0, 5, 0xF, 0xF),
    "write": lambda one: one.write(67, DATA),
    "write_words": lambda one: one.write_words(64, words_of_data(), 3, 1),
    "write_gather": lambda one: one.write_gather(
        64, words_of_data(), 3, DATA[:5], DATA
    ),
    "load": lambda one: one.load(64),
    "read": lambda one: one.read(67, 43),
    "read_into": lambda one: (buffer := bytearray(43), one.read_into(67, buffer)),
    "read_words": lambda one: (words := memoryview(bytearray(64)).cast("Q"), words.tolist(),
                               one.read_words(64, words, 6, 1), words.tolist()),
    "wait": lambda one: one.wait(),
    "futex_wait": lambda one: one.futex_wait(64, 7, 0),
    "futex_wake": lambda one: one.futex_wake(64, 1),
}  # fmt: skip


@pytest.mark.parametrize("part", [1, 2, 3, 100])
@pytest.mark.parametrize("verb", VERBS)
def test_hooked_verb_does_what_the_fabric_does(verb: str, part: int, memory: mmap.mmap) -> None:
    memory[:512] = bytes(64) + bytes(range(256)) + bytes(192)
    if verb in ATOMICS:
        memory[64:72] = bytes(8)
    before = memory[:512]
    plain = attached(Endpoint(), memory)
    found, changed = WORKS[verb](plain), memory[:512]
    plain.detach()
    memory[:512] = before
    hooked = attached(PartsEndpoint(part), memory)
    again = WORKS[verb](hooked)
    hooked.detach()
    assert memory[:512] == changed
    if verb == "read_words":
        assert found[1:] == again[1:]
    else:
        assert found == again
    asked = [words for _, _, words in hooked.asked]
    assert {name for name, *_ in hooked.asked + hooked.done} == {verb}
    assert len(hooked.asked) == len(hooked.done)
    assert sum(words for _, _, words, _ in hooked.done) == asked[0]
    if verb in WRITES or verb.startswith("read"):
        assert asked == list(range(asked[0], 0, -part))
        addresses = [addr for _, addr, _ in hooked.asked]
        assert all(addr % 8 == 0 for addr in addresses[1:])
    else:
        assert asked == [1]


def test_verb_is_not_done_when_its_hook_raises(memory: mmap.mmap) -> None:
    class Refusing(HookedEndpoint, verbs=MUTATING):
        def on_verb(self, verb: str, addr: int, words: int) -> int:
            if addr >= 80:
                raise InterruptedError
            return 2

    endpoint = attached(Refusing(), memory)
    with pytest.raises(InterruptedError):
        endpoint.write(64, DATA)  # two words of it are done
    assert memory[64:128] == DATA[:16] + bytes(48)
    with pytest.raises(InterruptedError):
        endpoint.store(80, 1)
    assert memory[80:88] == bytes(8)
    endpoint.detach()
    assert words_of(67, 43) == 6
