"""The leaves that a client knows of a tree: found as in one sorted list, noted in bounded steps."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from typing import Any

import pytest

from limpet.stores.sherman.layout import PART_MAX
from limpet.stores.sherman.routes import Routes

MANY = 20_000


class Model:
    """The same, in one sorted list."""

    def __init__(self) -> None:
        self.leaves: dict[bytes, int] = {}

    def last(self, key: bytes | None, with_it: bool) -> bytes | None:
        lows = sorted(self.leaves)
        if key is None:
            return lows[-1] if lows else None
        index = bisect_right(lows, key) if with_it else bisect_left(lows, key)
        return lows[index - 1] if index else None

    def learn_all(self, lows: list[bytes], leaves: list[int], high: bytes | None) -> None:
        for low in list(self.leaves):
            if low >= lows[0] and (high is None or low < high):
                del self.leaves[low]
        self.leaves.update(zip(lows, leaves, strict=True))


def key_of(number: int) -> bytes:
    return b"%06d" % number


def assert_bounded(routes: Any) -> None:
    """No list that a step moves is longer than a part; all parts but one have leaves."""
    assert len(routes.bounds) == len(routes.parts)
    for part in routes.parts:
        assert len(part.lows) == len(part.leaves) <= PART_MAX
    assert len(routes.parts) == 1 or all(part.lows for part in routes.parts)
    assert routes.count == sum(len(part.lows) for part in routes.parts)


@pytest.mark.parametrize("seed", range(6))
def test_routes_are_those_of_one_sorted_list(seed: int) -> None:
    draw = random.Random(seed)
    routes, model = Routes(0, 100_000), Model()
    span = 3000

    def number() -> int:
        return draw.randrange(span)

    for step in range(1500):
        choice = draw.random()
        if choice < 0.55:
            low = key_of(number())
            leaf = 1024 * (1 + step)
            routes.learn(low, leaf)
            model.leaves[low] = leaf
        elif choice < 0.7:
            first = number()
            count = draw.choice([1, 3, 40, 60])
            numbers = sorted({first, *(draw.randrange(first, first + 400) for _ in range(count))})
            lows = [key_of(each) for each in numbers]
            leaves = [1024 * (1 + step) + each for each in numbers]
            high = None if draw.random() < 0.03 else key_of(numbers[-1] + draw.randrange(1, 90))
            routes.learn_all(lows, leaves, high)
            model.learn_all(lows, leaves, high)
        else:
            for _ in range(draw.choice([1, 1, 60])):
                key = key_of(number())
                found = model.last(key, choice < 0.9)
                (routes.drop if choice < 0.9 else routes.drop_below)(key)
                if found is not None:
                    del model.leaves[found]
        assert routes.count == len(model.leaves)
        for _ in range(3):
            key = key_of(number())
            found = model.last(key, True)
            assert routes.low_at(key) == found
            assert routes.find(key) == (0 if found is None else model.leaves[found])
            for end in (key, None):
                found = model.last(end, False)
                assert routes.find_below(end) == (0 if found is None else model.leaves[found])
        assert_bounded(routes)


def test_step_moves_no_more_leaves_when_many_are_known() -> None:
    routes = Routes(0, 2 * MANY)
    numbers = random.Random(1).sample(range(10 * MANY), MANY)
    for number in numbers:
        routes.learn(key_of(number), 1024 * (1 + number))
    assert_bounded(routes)
    assert routes.count == MANY
    assert len(routes.parts) < 4 * MANY / PART_MAX
    for number in numbers[:500]:
        assert routes.find(key_of(number)) == 1024 * (1 + number)
    for number in sorted(numbers):
        routes.drop(key_of(number))
    assert_bounded(routes)
    assert routes.find(key_of(MANY)) == 0
    assert len(routes.parts) == 1


def test_routes_without_room_forget_the_others() -> None:
    routes = Routes(0, 600)
    for number in range(601):
        routes.learn(key_of(number), 1024 * (1 + number))
    assert routes.count == 1
    assert routes.find(key_of(700)) == 1024 * 601
    assert routes.find(key_of(100)) == 0
