"""Several verbs in one call: the memory, results, counts, errors and steps that they have apart."""

from __future__ import annotations

import mmap
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
from kit.fabrics import BOTH, SIZE, address, endpoint_on, file_mapping
from kit.processes import exit_code, fork

from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.hooked import MUTATING, READS, HookedEndpoint
from limpet.shm.errors import AddressError, NodeFailed

RANDOM = random.Random(4)
WORDS = [RANDOM.getrandbits(56) | RANDOM.choice((0, 4, 5, 5, 255)) << 56 for _ in range(80)]


def read_tagged(one: Any, first: int, second: int, tag: int = 5, start: int = 1) -> Any:
    words = memoryview(bytearray(8 * 33)).cast("Q")
    return one.read_tagged(first, second, words, start, tag), words.tolist()


def read_apart(one: Any, first: int, second: int, tag: int = 5) -> Any:
    words = memoryview(bytearray(8 * 33)).cast("Q")
    one.read_words(first, words, 16, 1)
    one.read_words(second, words, 16, 17)
    found = [index for index in range(32) if words[index + 1] >> 56 == tag & 0xFF]
    return sum(1 << index for index in found), words.tolist()


def store_apart(one: Any, addr: int, value: int, then_addr: int, then_value: int) -> int:
    one.store(addr, value)
    return int(one.store(then_addr, then_value))


def pin_apart(
    one: Any, pin_at: int, pin: int, epoch_at: int, epoch: int, drops_at: int, drops: int
) -> bool:
    if one.load(epoch_at) != epoch:
        return False
    one.swap(pin_at, pin)
    return bool(one.load(drops_at) == drops)


def glance_apart(one: Any, stamp_at: int, slot: int, word: int) -> int:
    one.background(True)
    stamp = one.load(stamp_at)
    same = one.load(slot) == word
    one.background(False)
    return int(stamp) if same else 0


def stands_apart(one: Any, *pairs: int) -> bool:
    one.background(True)
    same = all(one.load(at) == word for at, word in zip(pairs[::2], pairs[1::2], strict=True))
    one.background(False)
    return same


TOGETHER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "read_tagged": (read_tagged, read_apart),
    "store_two": (lambda one, *rest: one.store_two(*rest), store_apart),
    "pin": (lambda one, *rest: one.pin(*rest), pin_apart),
    "glance": (lambda one, *rest: one.glance(*rest), glance_apart),
    "stands": (lambda one, *rest: one.stands(*rest), stands_apart),
}
CASES: dict[str, list[tuple[int, ...]]] = {
    "read_tagged": [(64, 264), (64, 264, 0), (264, 64, 0x105), (64, 64), (address(1, 8), 8)],
    "store_two": [(64, 1, 72, 2), (72, 3, 64, 4), (8, 5, 8, 6), (64, 7, address(1, 64), 8)],
    "pin": [
        (64, 9, 80, 20, 88, 22), (64, 9, 80, 21, 88, 22), (64, 9, 80, 20, 88, 23),
        (64, 9, 80, 20, 64, 9), (64, 9, address(1, 80), 20, 88, 22),
    ],
    "glance": [(64, 80, 20), (80, 88, 22), (80, 88, 23), (address(1, 80), 80, 20)],
    "stands": [
        (80, 20, 88, 22, 80, 20, 88, 22), (80, 21, 88, 22, 80, 20, 88, 22),
        (80, 20, 88, 23, 80, 20, 88, 22), (80, 20, 88, 22, 80, 21, 88, 22),
        (80, 20, 88, 22, 80, 20, 88, 23), (80, 20, address(1, 88), 0, 80, 20, 88, 22),
        (80, 20, 88, 22, address(1, 80), 0, address(1, 8), 0),
    ],
}  # fmt: skip
HOSTILE: dict[str, list[tuple[int, ...]]] = {
    "read_tagged": [
        (address(3), 8), (8, address(3)), (SIZE - 64, 8), (8, SIZE - 64), (8, 8, 5, 2),
        (8, 8, 5, -1),
    ],
    "store_two": [(3, 1, 8, 2), (8, 1, 12, 2), (address(3), 1, 8, 2), (8, 1, SIZE, 2)],
    "pin": [
        (4, 9, 80, 20, 88, 22), (64, 9, 84, 20, 88, 22), (64, 9, 80, 20, 89, 22),
        (64, 9, SIZE, 20, 88, 22), (64, 9, 80, 20, SIZE, 22), (SIZE, 9, 80, 20, 88, 22),
    ],
    "glance": [(81, 88, 22), (80, 87, 22), (SIZE, 88, 22), (80, SIZE, 22), (address(3), 88, 22)],
    "stands": [
        (81, 20, 88, 22, 80, 20, 88, 22), (80, 20, 89, 22, 80, 20, 88, 22),
        (80, 20, 88, 22, 81, 20, 88, 22), (80, 20, 88, 22, 80, 20, 89, 22),
        (SIZE, 20, 88, 22, 80, 20, 88, 22), (80, 20, SIZE, 22, 80, 20, 88, 22),
        (80, 20, 88, 22, SIZE, 20, 88, 22), (80, 20, 88, 22, 80, 20, SIZE, 22),
    ],
}  # fmt: skip


@pytest.fixture(params=BOTH)
def fabric(request: pytest.FixtureRequest) -> Any:
    return request.param


def outcome(endpoint: Any, mapping: mmap.mmap, work: Callable[..., Any], case: Any) -> Any:
    """The result or error of a call, what memory is after it, and what was counted."""
    memory = b"".join(word.to_bytes(8, "little") for word in WORDS)
    mapping[: len(memory)] = memory
    mapping[80:96] = (20).to_bytes(8, "little") + (22).to_bytes(8, "little")
    endpoint.reset_counters()
    try:
        result = work(endpoint, *case)
    except AddressError:
        return AddressError, mapping[: len(memory)]
    counted = endpoint.counters()
    del counted["exchanges"]  # verbs in one call are sent at once
    return result, mapping[: len(memory)], counted


@pytest.mark.parametrize("name", TOGETHER)
def test_verbs_together_are_what_they_are_apart(fabric: Any, name: str) -> None:
    together, apart = TOGETHER[name]
    with (
        mmap.mmap(-1, SIZE) as other,
        mmap.mmap(-1, SIZE) as mapping,
        endpoint_on(fabric, mapping) as endpoint,
    ):
        endpoint.attach(1, other, SIZE)
        for case in CASES[name]:
            expected = outcome(endpoint, mapping, apart, case)
            assert outcome(endpoint, mapping, together, case) == expected, case
        for case in HOSTILE[name]:
            assert outcome(endpoint, mapping, together, case)[0] is AddressError, case
        endpoint.release(1)


@pytest.mark.parametrize("name", TOGETHER)
def test_each_of_several_verbs_is_hooked(name: str) -> None:
    class Noting(HookedEndpoint, verbs=(*READS, *MUTATING)):
        def __init__(self) -> None:
            self.asked: list[tuple[str, int, int]] = []

        def on_verb(self, verb: str, addr: int, words: int) -> int:
            self.asked.append((verb, addr, words))
            return words

    asked = []
    for work in TOGETHER[name]:
        with mmap.mmap(-1, SIZE) as mapping:
            endpoint: Any = Noting()
            endpoint.attach(0, mapping, SIZE)
            outcome(endpoint, mapping, work, CASES[name][0])
            endpoint.detach()
            asked.append(endpoint.asked)
    assert len(asked[0]) > 1
    assert asked[0] == asked[1]


@pytest.mark.parametrize("name", TOGETHER)
def test_several_verbs_on_a_truncated_node_fail_and_are_not_counted(fabric: Any, name: str) -> None:
    with file_mapping() as (descriptor, mapping), endpoint_on(fabric, mapping) as endpoint:
        os.truncate(descriptor, 0)
        endpoint.reset_counters()
        for _ in range(2):
            with pytest.raises(NodeFailed):
                TOGETHER[name][0](endpoint, *CASES[name][0])
        assert not any(endpoint.counters().values())


@pytest.mark.parametrize(("name", "steps"), [("read_tagged", 0), ("store_two", 2), ("pin", 1)])
def test_each_of_several_verbs_is_a_step(fabric: Any, name: str, steps: int) -> None:
    """A kill in place of a step leaves what the steps before it have done."""
    together, apart = TOGETHER[name]
    with mmap.mmap(-1, SIZE) as mapping, endpoint_on(fabric, mapping) as endpoint:
        for fuse in range(1, steps + 2):
            found = []
            for work in (together, apart):

                def armed(one: Any, *case: Any, work: Any = work, fuse: int = fuse) -> None:
                    one.fuse = fuse
                    work(one, *case)

                code = exit_code(
                    fork(lambda armed=armed: outcome(endpoint, mapping, armed, CASES[name][0]))
                )
                found.append((code, mapping[:640]))
            assert found[0] == found[1]
            assert found[0][0] == (-signal.SIGKILL if fuse <= steps else 0)


def test_the_fabric_of_this_build_has_them() -> None:
    assert all(hasattr(Endpoint, name) for name in TOGETHER)
