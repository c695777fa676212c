"""Promises about every public call, over the registry of calls (limpet.fault.matrix.calls)."""

from __future__ import annotations

import contextlib
import os
import random
from typing import Any

import pytest

import limpet
from limpet.fault.inject.cut_off import CutOffPool, Gone
from limpet.fault.matrix.calls import KEY, KEYS, OBJECTS, Calls
from limpet.shm.backends.location import parse_url
from limpet.shm.catalogue.regions import WITNESS
from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.hooked import READS, HookedEndpoint
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.shm.endpoint.slots import PIN
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS, store_class

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower",
    quick=["race", "race-*", "queue*", "pool"],
)
MANY = [
    "race", "rcuckoo", "loco", "pdpm", "rtx-sherman", "fusee", "swarm", "cache", "dict", "array",
    "queue", "transaction",
]  # fmt: skip
VARIANTS = ["clover", "dm-abd", "dtx-*", "fusee-??", "race-locks", "sherman"]
PROFILE = {"nodes": 3, "node_size": 2 << 20, "clients": 16}
LOSING = {"nodes": 4, "node_size": "4MiB", "clients": 8}
GONE = ("StoreDropped", "ChannelRemoved")
DISTANT = 1 << 40


@pytest.fixture(params=sorted(OBJECTS))
def calls(request: pytest.FixtureRequest) -> Calls:
    return OBJECTS[request.param]


def test_every_public_call_has_a_row(pools: Any, calls: Calls) -> None:
    handle = calls.open(pools(**PROFILE))
    assert calls.missing_rows(handle) == set(), "a row in fault/matrix/calls.py, or `own` there"


def outcome(row: Any, handle: Any, key: bytes = KEY) -> tuple[str, str]:
    """The name of the error of a call, and its text; "" and the result if there is none."""
    try:
        return "", repr(row(handle, key))
    except Exception as error:
        return type(error).__name__, str(error)


SUPPORTED: dict[int, dict[str, Any]] = {}
"""What `supported` has found."""


def supported(pools: Any, calls: Calls) -> dict[str, Any]:
    """The rows that this kind of object has, and that look at shared memory."""
    if id(calls) not in SUPPORTED:
        found = {}
        refusals = ("StoreError", "ParameterError", "TypeError", "AttributeError")
        for name, row in calls.rows.items():
            if name not in calls.private:
                pool = pools(**PROFILE)
                if outcome(row, calls.open(pool))[0] not in refusals:
                    found[name] = row
                pools.destroy()
        SUPPORTED[id(calls)] = found
    return SUPPORTED[id(calls)]


class Reuse:
    """Another client, which gives an object back and has all free memory for regions of its own.

    Their contents look like nothing; `end` demands that no client has changed them.
    """

    def __init__(self, pools: Any, pool: Any, calls: Calls) -> None:
        self.other = pools.again(pool)
        self.calls = calls
        self.noise = random.Random(1).randbytes(PROFILE["node_size"])
        self.regions: list[tuple[int, str, int, int]] = []

    def fill(self) -> None:
        self.other.exclusively(self._fill)

    def _fill(self) -> None:
        pool, block = self.other, self.other.layout.block_size
        for node in range(pool.parameters.nodes):
            # One that cannot be: all that may be given back is, and the table shows what is free.
            with contextlib.suppress(limpet.StoreFull):
                self._obtain(node, PROFILE["node_size"])
            free = pool.blocks.claimable(pool.blocks.words(node), pool.grace.horizon(), True)
            runs = "".join("x" if is_free else " " for is_free in free).split()
            left = sum(map(len, runs)) - pool.blocks.reserve
            for run in runs:
                blocks = min(len(run), left)
                if blocks > 0:
                    self._obtain(node, blocks * block - WITNESS)
                    left -= blocks

    def _obtain(self, node: int, size: int) -> None:
        name = f"r{len(self.regions)}"
        at = self.other.regions.obtain(node, name, size).address
        self.other.endpoint.write(at, self.noise[:size])
        self.regions.append((node, name, at, size))

    def happen(self) -> None:
        self.calls.remove(self.other)
        self.fill()

    def end(self) -> None:
        """Demand that nothing was changed, and give the regions back."""
        self.other.exclusively(self._end)

    def _end(self) -> None:
        assert self.regions
        while self.regions:
            node, name, at, size = self.regions.pop()
            assert self.other.endpoint.read(at, size) == self.noise[:size]
            self.other.regions.discard(node, name)


@pytest.mark.parametrize("reused", [False, True], ids=["at once", "its memory in use again"])
def test_calls_of_an_object_that_was_given_back(pools: Any, calls: Calls, reused: bool) -> None:
    """Each is the first call after another client has dropped the store, or removed the channel."""
    if calls.remove is None:
        pytest.skip("it is not given back")
    rows = supported(pools, calls)
    pool = pools(**PROFILE)
    reuse = Reuse(pools, pool, calls)
    wrong = {}
    for name in rows.keys() - calls.lasting:
        handle = calls.open(pool)
        calls.remove(reuse.other)
        if reused:
            reuse.fill()
        found = outcome(rows[name], handle)
        if found[0] not in GONE:
            wrong[name] = found
        if reused:
            reuse.end()
    assert wrong == {}


class Between(HookedEndpoint, verbs=("store", *READS)):
    """Calls `act` at a moment of one's choice at which its client has no pin: number `left`."""

    def __init__(self) -> None:
        self.left = -1
        self.pin_at = 0
        self.act: Any = None

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if verb in READS and self.pin_at and addr >> NODE_SHIFT != CONTROL_NODE:
            self.count()
        return words

    def on_done(self, verb: str, addr: int, words: int, value: int) -> None:
        if verb == "store" and addr == self.pin_at and not value:
            self.count()

    def count(self) -> None:
        if self.left >= 0 and not Endpoint.load(self, self.pin_at):
            self.left -= 1
            if self.left < 0:
                self.act()


class BetweenPool(Pool):
    endpoint_class = Between
    endpoint: Between


@pytest.mark.exhaustive("every object", quick=MANY)
@pytest.mark.soak("their calls have the lines of others", cases=VARIANTS)
def test_calls_in_which_the_object_is_given_back(pools: Any, calls: Calls) -> None:
    """Between any two operations of a call, or amid what it reads without a pin, another client
    drops the store and uses its memory: the call has its result, or says that the store is gone."""
    if calls.remove is None:
        pytest.skip("it is not given back")
    rows = supported(pools, calls)
    pool = pools.keep(BetweenPool.create(pools.url(), **PROFILE))
    reuse = Reuse(pools, pool, calls)
    pool.endpoint.pin_at, pool.endpoint.act = pool.client.slot + PIN, reuse.happen
    wrong, happened = {}, 0
    for name in rows.keys() - calls.lasting:
        handle = calls.open(pool)
        pool.endpoint.left = DISTANT
        due = outcome(rows[name], handle)
        moments = DISTANT - pool.endpoint.left
        pool.endpoint.left = -1
        calls.remove(reuse.other)
        for moment in sorted({0, 1, moments // 3, moments // 2, moments - 2}):
            if not 0 <= moment < moments:
                continue
            handle = calls.open(pool)
            pool.endpoint.left = moment
            found = outcome(rows[name], handle)
            if pool.endpoint.left < 0:
                happened += 1
                reuse.end()
            else:
                calls.remove(reuse.other)
            pool.endpoint.left = -1
            # The other's regions have all memory, so a write may find none.
            if found[0] not in (*GONE, "StoreFull") and found != due:
                wrong[name, moment] = found, due
    assert wrong == {}
    assert happened


@pytest.mark.parametrize("kind", ["rcuckoo", "loco", "pdpm", "dtx-sherman"])
def test_a_drop_while_a_client_waits_for_the_lock_of_a_dead_one(pools: Any, kind: str) -> None:
    """The waiting client looks for the lock's owner in the store's memory, and repairs that: only
    as long as it is the store's."""
    calls = OBJECTS[kind]
    pool = pools.keep(BetweenPool.create(pools.url(), **PROFILE))
    dead = pools.keep(CutOffPool.open(pool.url))
    reuse = Reuse(pools, pool, calls)
    pool.endpoint.pin_at, pool.endpoint.act = pool.client.slot + PIN, reuse.happen
    row, wrong, waited, step, cut = calls.rows["update"], {}, 0, 0, True

    def die() -> Any:
        nonlocal cut
        if not dead.client.ident:
            dead.membership.join()
        handle = calls.open(pool)
        theirs = calls.open(dead)
        dead.endpoint.steps, cut = step, False
        try:
            calls.rows["update"](theirs, KEY)
        except Gone:
            cut = True
            dead.die()
        dead.endpoint.steps = 0
        return handle

    while cut:
        step += 1 + step // 4
        handle = die()
        before, pool.endpoint.left = handle.retries, DISTANT
        due = outcome(row, handle)
        moments, pool.endpoint.left = DISTANT - pool.endpoint.left, -1
        waits = handle.retries > before
        calls.remove(reuse.other)
        for moment in range(0, moments, 1 + moments // 25) if waits else ():
            handle = die()
            pool.endpoint.left = moment
            found = outcome(row, handle)
            if pool.endpoint.left < 0:
                waited += 1
                reuse.end()
            else:
                calls.remove(reuse.other)
            pool.endpoint.left = -1
            if found[0] not in GONE and found != due:
                wrong[step, moment] = found, due
    assert wrong == {}
    assert waited


@pytest.mark.soak("their calls have the lines of fusee's", cases=["fusee-??-*"])
@pytest.mark.parametrize("gone", [False, True], ids=["marked", "gone"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if store_class(kind).replicated])
def test_calls_that_are_the_first_to_meet_a_lost_node(pools: Any, kind: str, gone: bool) -> None:
    """By another client than the one that has filled the store, which survives the loss."""
    calls = OBJECTS[kind]
    wrong = {}
    rows = supported(pools, calls)
    for name, row in rows.items():
        for node in range(LOSING["nodes"]):
            pool = pools(**LOSING)
            assert calls.open(pool).losses_survived >= 1
            handle = calls.open(pools.again(pool))
            for key in KEYS:
                handle.get(key)
            if gone:
                os.truncate(parse_url(pool.url).path(node), 0)
            else:
                pool.fail_node(node)
            for key in KEYS[:: len(KEYS) // 5]:
                found = outcome(row, handle, key)
                if found[0] not in ("", "KeyError"):
                    wrong[name, node, key] = found
            pools.destroy()
    assert wrong == {}


def test_calls_of_a_closed_pool(pools: Any, calls: Calls) -> None:
    rows = supported(pools, calls)
    pool = pools(**PROFILE)
    found = {}
    for name, row in rows.items():
        again = pools.again(pool)
        handle = calls.open(again)
        again.close()
        found[name] = outcome(row, handle)
    assert {name: out for name, out in found.items() if out[0] != "PoolClosed"} == {}
