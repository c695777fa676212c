"""A signal handler raises between two lines of what is not compiled: no half of a step stays."""

from __future__ import annotations

import itertools
import threading
import types
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.cuts import Lines

import limpet
from limpet.shm.endpoint.fabric import Endpoint
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.lock.ticket_lock import TicketLock, ticket_lock_size
from limpet.stores.race.layout import UNSET
from limpet.stores.race.parameters import GROUP_SIZE

FOLDER = Path(limpet.__file__).parent
IN_PLACE = """
def filled(self, number, word):
    if not len(self.blank):
        self.blank = array("Q", bytes(self.index.subtable_size))
    if self.blank[1] != word:
        for index in range(len(self.blank)):
            self.blank[index] = word
    for bucket in range(len(self.blank) // 8):
        self.blank[8 * bucket] = number << 32 | bucket // 3
    return self.blank
"""
COMPILED = limpet.build == "compiled"
PATIENCE_S = 60.0
SPINS = 20
"""So often a client looks, twice over, before it sleeps."""


# ---- the leaves that a client knows of a tree ----------------------------------------------------


SMALL_RUN = 8
FILES = ("sherman/routes.py", "sherman/fences.py")


def uncompiled_routes() -> Any:
    """The class as its source has it, with small runs; a compiled one is not cut off between two
    lines."""
    routes, fences = ({"__name__": "uncompiled"} for _ in FILES)
    for names, file in ((routes, FILES[0]), (fences, FILES[1])):
        source = FOLDER / "stores" / file
        exec(compile(source.read_text(), str(source), "exec"), names)
        names["RUN_MAX"] = SMALL_RUN
    routes.update({name: fences[name] for name in ("Fences", "Run")})
    return routes["Routes"]


def leaf_of(low: bytes) -> int:
    return 1024 * (1 + int(low))


def learned(routes: Any, lows: list[bytes]) -> None:
    for low in lows:
        routes.note_leaf(low, leaf_of(low))


LOWS = [b"%02d" % number for number in range(0, 60, 10)]
CHANGES = {
    "learn": lambda routes: routes.note_leaf(b"25", leaf_of(b"25")),
    "learn again": lambda routes: routes.note_leaf(b"20", leaf_of(b"20")),
    "learn in a full one": lambda routes: learned(routes, [b"05", b"15", b"35", b"45"]),
    "learn more": lambda routes: routes.note_leaves(
        [b"10", b"13", b"16", b"20"], [leaf_of(low) for low in (b"10", b"13", b"16", b"20")], b"30"
    ),
    "learn fewer": lambda routes: routes.note_leaves([b"10"], [leaf_of(b"10")], b"40"),
    "learn in a full run": lambda routes: learned(routes, [b"05", b"15"]),
    "drop": lambda routes: routes.drop(b"20"),
    "forget": lambda routes: routes.forget(),
}


def lead_somewhere(made: Any, change: str) -> bool:
    """Whether each key leads to a leaf or to the root, whatever line of a change is cut off; what
    is wrong is found out by a fence, and mended as a tree does, which forgets a leaf and learns
    another one."""
    for number in itertools.count(1):
        routes = made(0, SMALL_RUN + 1)
        learned(routes, LOWS)
        lines = Lines(FILES, number)
        with lines.watched():
            CHANGES[change](routes)
        for key in [b"%02d" % each for each in range(60)] * 2:
            leaf = routes.find(key)
            low = routes.low_at(key)
            if leaf and leaf != leaf_of(low):
                routes.drop(key)
                low = b"%02d" % (int(key) // 10 * 10)
                routes.note_leaf(low, leaf_of(low))
            leaf, low = routes.find(key), routes.low_at(key)
            if leaf and (leaf != leaf_of(low) or low > key):
                return False
        if not lines.cut:
            assert number > 2, "no line was met"
            return True
    return False


@pytest.mark.parametrize("change", CHANGES)
def test_routes_lead_somewhere_whatever_is_cut_off(change: str) -> None:
    assert lead_somewhere(uncompiled_routes(), change)


def test_routes_that_say_nothing_of_a_change_lead_astray() -> None:
    class Silent(uncompiled_routes()):  # type: ignore[misc]
        changing = property(lambda self: False, lambda self, value: None)

    assert not all(lead_somewhere(Silent, change) for change in CHANGES)


# ---- new subtables -------------------------------------------------------------------------------

SPLITTER = "race/splitter.py"


def uncompiled_splitter() -> Any:
    """The class as its source has it."""
    names = {"__name__": "uncompiled"}
    source = FOLDER / "stores" / SPLITTER
    exec(compile(source.read_text(), str(source), "exec"), names)
    return names["Splitter"]


def subtables_are_whole(made: Any) -> bool:
    """Whether a subtable has its word in each slot, whatever line was cut off when the one before
    it was composed."""
    for number in itertools.count(1):
        splitter = made.__new__(made)
        splitter.index = types.SimpleNamespace(subtable_size=2 * GROUP_SIZE)
        splitter.blank = array("Q")
        splitter.filled(1, 0)
        lines = Lines(SPLITTER, number)
        with lines.watched():
            splitter.filled(2, UNSET)
        words = splitter.filled(3, UNSET).tolist()
        if any(word != UNSET for index, word in enumerate(words) if index & 7):
            return False
        if words[::8] != [3 << 32 | group for group in (0, 0, 0, 1, 1, 1)]:
            return False
        if not lines.cut:
            assert number > 3, "no line was met"
            return True
    return False


def test_a_subtable_is_whole_whatever_was_cut_off_before() -> None:
    assert subtables_are_whole(uncompiled_splitter())


def test_a_subtable_that_is_composed_in_place_is_not_whole() -> None:
    names: dict[str, Any] = {"array": array}
    exec(compile(IN_PLACE, str(FOLDER / "stores" / SPLITTER), "exec"), names)
    made = type("InPlace", (uncompiled_splitter(),), {"filled": names["filled"]})
    assert not subtables_are_whole(made)


# ---- what a transaction writes -------------------------------------------------------------------

PENDING = "rtx/uses.py"
WRITES = 20
"""More than a few: their places are in a dict."""


def test_a_transaction_sees_its_writes_whatever_was_cut_off() -> None:
    names: dict[str, Any] = {"__name__": "uncompiled"}
    source = FOLDER / "stores" / PENDING
    exec(compile(source.read_text(), str(source), "exec"), names)
    for number in itertools.count(1):
        pending = names["PendingWrites"]()
        lines = Lines(PENDING, number)
        with lines.watched():
            for each in range(WRITES):
                pending.write(b"%d" % each, b"first")
        for each in range(WRITES):
            pending.write(b"%d" % each, b"second")
        keys = [write.key for write in pending.writes[: pending.count]]
        assert sorted(keys) == sorted(b"%d" % each for each in range(WRITES))
        for each in range(WRITES):
            assert pending.writes[pending.place_of(b"%d" % each)].value == b"second"
        if not lines.cut:
            assert number > WRITES, "no line was met"
            break


# ---- waiting for a lock --------------------------------------------------------------------------


class TellingEndpoint(Endpoint):
    """Calls `waits` each time before its client waits, with how often it has waited."""

    def __init__(self) -> None:
        self.waits: Callable[[int], None] = lambda times: None
        self.times = 0

    def pause(self, attempt: int) -> int:
        self.times += 1
        self.waits(self.times)
        return super().pause(attempt)

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        self.times += 1
        self.waits(self.times)
        return super().futex_wait(addr, expected, timeout_us)


class TellingPool(limpet.Pool):
    """A pool with such an endpoint."""

    endpoint_class = TellingEndpoint


def elsewhere(work: Callable[[], None]) -> None:
    """Do it in another thread, whose lines are not those that count."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def lock_of(pool: limpet.Pool) -> Any:
    channel = Channel(pool.channels, "lock", size=ticket_lock_size(8), kind="test")
    return TicketLock(channel, channel.address, 8)


@pytest.mark.skipif(COMPILED, reason="a compiled one is not cut off between two lines")
@pytest.mark.parametrize("waits", [0, 1, 2 * SPINS, 2 * SPINS + 1])
def test_lock_is_not_held_by_a_wait_that_was_cut_off(pools: Any, waits: int) -> None:
    """Whatever line it is, of a wait that ends after so many waits in vain: the others, and this
    client, get the lock afterwards."""
    pool = pools(clients=8)
    other = lock_of(pool)
    lock = lock_of(pools.keep(TellingPool.open(pool.url)))
    endpoint = lock.endpoint
    for number in itertools.count(1):
        if waits:
            assert other.acquire(PATIENCE_S)
        endpoint.times = 0
        endpoint.waits = lambda times: elsewhere(other.release) if times == waits else None
        lines = Lines("lock/ticket_lock.py", number)
        taken = False
        with lines.watched():
            taken = lock.acquire(PATIENCE_S)
        endpoint.waits = lambda times: None
        if endpoint.times < waits:
            other.release()
        assert taken != lines.cut
        if taken:
            lock.release()
        assert not lock.locked(), f"it is held after a cut at line {number}"
        for each in (other, lock):
            assert each.acquire(PATIENCE_S), f"line {number}"
            each.release()
        if not lines.cut:
            assert number > 10, "no line was met"
            break


@pytest.mark.skipif(COMPILED, reason="a compiled one is not cut off between two lines")
def test_wait_that_is_cut_off_leaves_the_lock_to_another_thread(pools: Any) -> None:
    """Another thread of the process has the lock: one that waits for it is cut off at any line."""
    lock = lock_of(pools())
    assert lock.acquire()
    for number in itertools.count(1):
        lines = Lines("lock/ticket_lock.py", number)
        with lines.watched():
            assert not lock.acquire(0.001)
        assert lock.holder() == lock.client.ident, f"it was given back after a cut at {number}"
        if not lines.cut:
            break
    lock.release()
