"""Signal handlers that raise, in small: `limpet drill cuts` does it for longer."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable

import pytest

import limpet
from limpet.cli import drill_cuts
from limpet.fault.drill import cuts
from limpet.fault.drill.cut_works import GROWN, SUBJECTS, growing_works, store_works
from limpet.fault.drill.cuts import CutParameters, CutPool
from limpet.shm import pool as pools
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.baselines.clover.server import LOOKUP
from limpet.stores.baselines.pdpm.store import Pdpm
from limpet.stores.cache.flight import Computation
from limpet.stores.registry import CACHES, KINDS

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

ALIKE = {"fusee-cr", "fusee-nc", "dm-abd"}
"""They run the same lines as another kind."""
SLOW = {"rtx-race", "dtx-race", "clover", "pdpm", "dtx-sherman", "swarm", "rtx-sherman", "pools"}
"""Left to `make soak` in the pure build, for their time."""
assert drill_cuts.cut.name == "cuts"


@pytest.mark.exhaustive(
    "every kind", quick=["race", "cache", "channels", "transactions", "computations"]
)
@pytest.mark.soak("baselines", cases=["clover", "dtx-*", "pdpm"])
@pytest.mark.parametrize(
    "subject",
    [each for each in SUBJECTS if each not in ALIKE and (BUILD == "compiled" or each not in SLOW)],
)
def test_nothing_is_left_of_what_a_signal_handler_cuts_off(subject: str) -> None:
    stride = 7 if BUILD == "compiled" else 41
    report = cuts.drill(CutParameters(subject, seconds=0.5, verbs_max=100, stride=stride))
    assert report.failures == []
    # How many cuts a storm has depends on the machine.
    assert report.at_verbs + report.at_calls > (20 if BUILD == "compiled" else 0)


def test_every_kind_that_is_registered_is_cut() -> None:
    assert {*KINDS, *CACHES} <= set(SUBJECTS)


def test_trap_table_that_does_not_grow_is_caught_by_the_drill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drill whose tables have room for all keys says so, instead of that it has found nothing."""
    grown = lambda pool, name: pool.store("race", name=name, capacity=GROWN)  # noqa: E731
    works = {"large": lambda pool, draw: growing_works(pool, "race", grown)}
    monkeypatch.setattr(cuts, "SUBJECTS", works)
    failures = cuts.drill(CutParameters("large", seconds=0, verbs_max=2)).failures
    assert failures == ["grow: it came by no splits"]


@pytest.mark.skipif(BUILD != "compiled", reason="the pure build finds such an operation by itself")
def test_trap_python_that_enters_by_a_call_is_caught_by_the_drill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between `enter` and the `try` after it a signal handler has raised."""

    def entering(self: Pdpm, place: object, once: object, *rest: object) -> object:
        self.client.enter()
        self.endpoint.load(self.client.slot)  # where a cut finds it
        try:
            return once()  # type: ignore[operator]
        finally:
            self.client.leave()

    monkeypatch.setattr(Pdpm, "_run", entering)
    report = cuts.drill(CutParameters("pdpm", seconds=0, verbs_max=12))
    assert any("ReentrantUse" in failure for failure in report.failures), report.failures


def test_trap_computation_that_forgets_its_flight_is_caught_by_the_drill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a call that is cut off as soon as it has begun, no caller knows that it has."""
    monkeypatch.setattr(Computation, "abandon", Computation.end)
    report = cuts.drill(CutParameters("computations", seconds=0, verbs_max=60, stride=3))
    assert any("left in a computation" in failure for failure in report.failures)


@pytest.mark.exhaustive("many runs")
def test_trap_drop_that_forgets_what_a_cut_left_is_caught_by_the_drill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a store whose objects were being freed, no client walks through the rest any more."""
    works = {"drops": lambda pool, draw: {"drop": store_works(pool, draw, "race")["drop"]}}
    monkeypatch.setattr(cuts, "SUBJECTS", works)

    def failures(stride: int) -> list[str]:
        given = CutParameters("drops", seconds=0, verbs_max=4000, stride=stride)
        return cuts.drill(given).failures

    assert failures(301) == []
    monkeypatch.setattr(CutPool, "free_unreachable", lambda self: 0)
    assert any("bytes" in failure for stride in (301, 101, 31) for failure in failures(stride))


def test_connection_to_a_metadata_process_that_is_closed_is_no_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cut off at each call of leaving one, or of reaching it, or another one, again."""

    def works(pool: CutPool, draw: object) -> object:
        store = pool.store("clover", capacity=64)
        store.put(b"key", b"value")

        def leave() -> None:
            store.remote.close()
            store.remote.state(LOOKUP, b"key")

        return {"leave": leave}

    monkeypatch.setattr(cuts, "SUBJECTS", {"leaving": works})
    report = cuts.drill(CutParameters("leaving", seconds=0))
    assert report.failures == []
    assert report.at_calls > 20


def test_what_is_cut_off_while_it_logs_leaves_no_lock_of_logging_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = logging.getLogger("limpet")

    def works(pool: CutPool, draw: object) -> object:
        def warn() -> None:
            log.setLevel(logging.WARNING)  # forgets which levels are on: the lock is taken again
            log.warning("a lock is taken")
            pool.nodes()

        return {"warn": warn}

    monkeypatch.setattr(cuts, "SUBJECTS", {"logging": works})
    try:
        report = cuts.drill(CutParameters("logging", seconds=0.3))
    finally:
        log.setLevel(logging.NOTSET)
    assert report.failures == []
    assert report.at_calls > 3
    other = threading.Thread(target=logging.getLogger, args=("limpet.other",), daemon=True)
    other.start()
    other.join(20)
    assert not other.is_alive()


@pytest.mark.parametrize("work", ["view", "memory", "reserve"])
@pytest.mark.parametrize("kind", ["race", "fusee"])
def test_block_that_is_cut_off_and_again_while_it_is_given_back_leaves_nothing(
    make_url: Callable[[], str], kind: str, work: str
) -> None:
    """The second handler raises at each side of a verb of what the first one has begun."""
    cut, sides = [], [0, 0]
    step = 1 if BUILD == "compiled" else 13

    def raising(number: int, frame: object) -> None:
        cut.append(number)
        pool.endpoint.cut_at = sides[1] if len(cut) == 1 else 0
        raise cuts.Cut

    before = signal.signal(cuts.SIGNAL, raising)
    try:
        with CutPool.create(make_url(), node_size="8MiB", clients=4) as pool:
            store = pool.store(kind, capacity=64)
            store.put(b"key", b"value")
            while True:
                sides = [sides[0] + step, 0]
                while len(cut) > 1 or not sides[1]:
                    sides[1] += 1
                    cut.clear()
                    pool.endpoint.cut_at = sides[0]
                    block = store.reserve(b"key", 5) if work == "reserve" else store.view(b"key")
                    with contextlib.suppress(cuts.Cut):
                        if work == "memory":
                            block.memory()
                        else:
                            with block:
                                pass
                    pool.endpoint.cut_at = 0
                    with store.view(b"none"):
                        assert pool.client.holds.count == 0, sides
                    assert pool.audit()["held"] == pool.audit()["leaked"] == 0, sides
                if not cut:
                    break
            assert sides[0] > 20
        destroy(pool.url)
    finally:
        signal.signal(cuts.SIGNAL, before)


# A handler may raise in the finalizer of a view, which Python only prints.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_keeper_that_is_cut_off_gives_back_with_the_next_view(
    make_url: Callable[[], str],
) -> None:
    """A handler raises at each side of a verb of the keeper's own client."""
    cut, side = [], 0

    def raising(number: int, frame: object) -> None:
        cut.append(number)
        raise cuts.Cut

    before = signal.signal(cuts.SIGNAL, raising)
    try:
        with CutPool.create(make_url(), node_size="8MiB", clients=4) as pool:
            store = pool.store("race", capacity=64)
            store.put(b"other", b"kept")
            store.view(b"other").memory()
            (keeper,) = pool.keepers.all
            while cut or not side:
                cut.clear()
                side += 1
                store.put(b"key", b"value")
                keeper.pool.endpoint.cut_at = side
                with contextlib.suppress(cuts.Cut):
                    store.view(b"key").memory()
                keeper.pool.endpoint.cut_at = 0
                store.update(b"key", b"anew")
                store.view(b"other").memory()
                assert keeper.records == {}, side
                assert pool.audit()["held"] == pool.audit()["leaked"] == 0, side
            assert side > 4
        destroy(pool.url)
    finally:
        signal.signal(cuts.SIGNAL, before)


def test_pool_that_was_cut_off_while_it_was_made_is_not_there(
    monkeypatch: pytest.MonkeyPatch, make_url: Callable[[], str]
) -> None:
    """Whole or not at all: the work goes on in a thread of its own, and is undone."""
    url = make_url()
    made = pools.create_segments

    def slow(*given: object) -> object:
        signal.raise_signal(cuts.SIGNAL)
        return made(*given)  # type: ignore[arg-type]

    def raising(number: int, frame: object) -> None:
        raise cuts.Cut

    monkeypatch.setattr(pools, "create_segments", slow)
    before = signal.signal(cuts.SIGNAL, raising)
    try:
        with pytest.raises(cuts.Cut):
            CutPool.create(url, node_size="1MiB", clients=4)
    finally:
        signal.signal(cuts.SIGNAL, before)
    with pytest.raises(limpet.PoolNotFound):
        limpet.open(url)
