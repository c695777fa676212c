"""The leaves of a tree that a client notes: found as in a sorted list of all of them."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable

import pytest

from limpet.stores.sherman.layout import RUN_MAX
from limpet.stores.sherman.routes import Routes

ROOT = 0
KEYS: dict[str, Callable[[random.Random], bytes]] = {
    "numbers": lambda chance: b"user%012d" % chance.randrange(10**9),
    "two prefixes": lambda chance: (
        b"%s %09d" % (chance.choice([b"key", b"new"]), chance.getrandbits(20))
    ),
    "long prefix": lambda chance: b"x" * 40 + chance.randbytes(2),
    "few letters": lambda chance: bytes(chance.choices(b"ab\0\xff", k=chance.randrange(12))),
    "any bytes": lambda chance: chance.randbytes(chance.randrange(9)),
}


class Noted:
    """The same in a sorted list."""

    def __init__(self) -> None:
        self.lows: list[bytes] = []
        self.leaves: dict[bytes, int] = {}

    def before(self, key: bytes, with_it: bool) -> bytes | None:
        index = (bisect_right if with_it else bisect_left)(self.lows, key)
        return self.lows[index - 1] if index else None

    def leaf(self, low: bytes | None) -> int:
        return ROOT if low is None else self.leaves[low]

    def note_leaf(self, low: bytes, leaf: int) -> None:
        if low not in self.leaves:
            self.lows.insert(bisect_left(self.lows, low), low)
        self.leaves[low] = leaf

    def drop(self, low: bytes | None) -> None:
        if low is not None:
            self.lows.remove(low)
            del self.leaves[low]


@pytest.mark.parametrize("kind", KEYS)
def test_routes_lead_where_a_sorted_list_does(kind: str) -> None:
    chance, made = random.Random(1), KEYS[kind]
    routes, noted = Routes(ROOT, 1 << 20), Noted()
    for _ in range(6 * RUN_MAX):
        for _ in range(6):
            low, leaf = made(chance), chance.randrange(1, 1 << 40)
            routes.note_leaf(low, leaf)
            noted.note_leaf(low, leaf)
        key = made(chance)
        step = chance.randrange(4)
        if step == 0:
            routes.drop(key)
            noted.drop(noted.before(key, True))
        elif step == 1:
            routes.drop_below(key)
            noted.drop(noted.before(key, False))
        elif step == 2:
            first = bisect_left(noted.lows, key)
            end = first + chance.randrange(4)
            high = noted.lows[end] if end < len(noted.lows) and noted.lows[end] > key else None
            routes.note_range(key, 1, high)
            for low in [low for low in noted.lows[first:] if high is None or low < high]:
                noted.drop(low)
            noted.note_leaf(key, 1)
        else:
            first = bisect_left(noted.lows, key)
            lows = sorted({key, *(low + b"\1" for low in noted.lows[first : first + 5])})
            high = lows[-1] + b"\1"
            leaves = [chance.randrange(1, 1 << 40) for _ in lows]
            routes.note_leaves(lows, leaves, high)
            for low in [low for low in noted.lows[first:] if low < high]:
                noted.drop(low)
            for low, leaf in zip(lows, leaves, strict=True):
                noted.note_leaf(low, leaf)
        key = made(chance)
        assert routes.find(key) == noted.leaf(noted.before(key, True))
        assert routes.low_at(key) == noted.before(key, True)
        assert routes.find_below(key) == noted.leaf(noted.before(key, False))
        assert routes.find_below(None) == noted.leaf(noted.lows[-1] if noted.lows else None)
        assert routes.count == len(noted.lows)
    assert routes.find(b"") == noted.leaf(noted.before(b"", True))


def test_routes_in_ascending_order_fill_their_runs() -> None:
    routes, count = Routes(ROOT, 1 << 20), 20 * RUN_MAX
    for number in range(count):
        routes.note_leaf(b"%08d" % number, number + 1)
    assert [routes.find(b"%08d" % number) for number in range(count)] == list(range(1, count + 1))
    routes.note_leaves([b"%08d" % 0], [7], None)
    assert routes.count == 1
    assert routes.find(b"%08d" % count) == 7


def test_routes_that_are_full_forget_the_others() -> None:
    routes = Routes(ROOT, 8)
    for number in range(9):
        routes.note_leaf(b"%02d" % number, number + 1)
    assert routes.count == 1
    assert routes.find(b"99") == 9
    assert routes.find(b"00") == ROOT
