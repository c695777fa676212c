"""pDPM-Direct: values in place, locks that name their holder, and what becomes of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from kit.endpoints import Interrupted, WatchedPool
from kit.known_bad import first_failure
from kit.parts import runs_of
from kit.processes import children, gather
from kit.stores import sound
from kit.waiting import until

import limpet
from limpet.fault.explore.explorer import Exploration, explore
from limpet.fault.inject.stopping import StoppingPool
from limpet.fault.matrix import crash_matrix as matrix
from limpet.fault.matrix import matrix_result, testbed
from limpet.fault.matrix.operations import OPERATIONS
from limpet.stores.baselines.pdpm.buckets import REDO, BucketPair
from limpet.stores.baselines.pdpm.store import Change, Pdpm
from limpet.stores.core.status import AGAIN, DONE, MISSING

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

COMPILED = limpet.build == "compiled"
LEASE_US = 20_000
OLD, NEW = b"o" * 40, b"n" * 40


@pytest.fixture
def pool(pools: Any) -> Any:
    return pools(lease=LEASE_US / 1e6)


@pytest.fixture
def store(pool: Any) -> Any:
    store = pool.store("pdpm", name="test", capacity=64)
    store.put(b"k", OLD)
    return store


def other_home(store: Any, key: bytes) -> bytes:
    """A key with another lock than this one."""
    keys = (b"other %d" % number for number in range(100))
    return next(other for other in keys if store._place(other).home != store._place(key).home)


def lock_and_redo(store: Any, key: bytes = b"k") -> tuple[int, int]:
    home = store._place(key).home
    return store.endpoint.load(home), store.endpoint.load(home + REDO)


# ---- what an operation does ----------------------------------------------------------------------


def cost(store: Any, work: Callable[[], object]) -> int:
    before = store.stats()["round_trips"]
    work()
    return int(store.stats()["round_trips"] - before)


def test_update_with_a_value_of_the_same_size_is_in_place(store: Any) -> None:
    (before,) = store.references().tolist()
    store.update(b"k", NEW)
    assert store.references().tolist() == [before]
    assert store.get(b"k") == NEW
    assert cost(store, lambda: store.update(b"k", OLD)) == 4
    assert lock_and_redo(store) == (0, 0)


@pytest.mark.parametrize("size", [1, 400, 3000, 5000, 20_000])
def test_update_with_a_value_of_another_size_moves_the_pair(store: Any, size: int) -> None:
    (before,) = store.references().tolist()
    store.update(b"k", bytes(size))  # memory of that size is at hand
    store.update(b"k", OLD)
    trips = cost(store, lambda: store.update(b"k", bytes(size)))
    assert trips == (3 if size < 16_000 else 6)  # of whole blocks it has to be asked for
    assert store.references().tolist() != [before]
    assert store.get(b"k") == bytes(size)
    assert lock_and_redo(store) == (0, 0)


def test_pairs_of_more_than_one_read_are_never_written_in_place(store: Any) -> None:
    store.put(b"large", b"1" * 6000)
    before = set(store.references().tolist())
    store.update(b"large", b"2" * 6000)
    assert set(store.references().tolist()) != before


def test_redo_copies_are_given_back(store: Any) -> None:
    reachable = sound(store)["reachable"]
    for number in range(200):
        store.update(b"k", b"%d" % (number % 10) * 40)
    assert sound(store)["reachable"] == reachable


# ---- readers and writers that meet ---------------------------------------------------------------


def met_half_written(pools: Any, store: Any) -> bytes:
    """The value that a reader returns whose first look falls into the midst of a write."""
    watching = pools.keep(WatchedPool.open(store.pool.url))
    reading = watching.store(store.kind, name="test")
    (reference,) = store.references().tolist()
    at = reference & (1 << 48) - 1
    whole = store.endpoint.read(at + 32, 8)

    def tear(verb: str, address: int) -> None:
        if verb == "read_words" and address == at:
            store.endpoint.write(at + 32, b"nnnnnnnn")
            watching.endpoint.before = heal

    def heal(verb: str, address: int) -> None:
        if verb == "read_words":
            store.endpoint.write(at + 32, whole)
            watching.endpoint.before = None

    watching.endpoint.before = tear
    return bytes(reading.get(b"k"))


def test_a_reader_that_meets_half_a_value_reads_again(pools: Any, store: Any) -> None:
    assert met_half_written(pools, store) == OLD


def test_writers_of_one_key_take_turns(pools: Any) -> None:
    store = pools().store("pdpm", name="test", capacity=64)
    store.put(b"k", b"0" * 40)
    written = {b"%d" % number * 40 for number in range(4)}
    count = 300 if COMPILED else 30

    def work(number: int) -> int:
        for _ in range(count):
            store.put(b"k", b"%d" % number * 40)
            assert store.get(b"k") in written
        return count

    assert gather(*[lambda n=n: work(n) for n in range(4)]) == [count] * 4
    assert store.get(b"k") in written
    assert lock_and_redo(store) == (0, 0)
    sound(store)


def test_an_operation_that_is_interrupted_leaves_no_lock(pools: Any, pool: Any, store: Any) -> None:
    """By a signal handler's exception, at each verb in turn: the old value or the new one."""
    watching = pools.keep(WatchedPool.open(pool.url))
    working = watching.store("pdpm", name="test")
    working.put(b"k", OLD)
    working.put(b"k", OLD)
    for step in range(1, 60):
        left = [step]

        def count(verb: str, address: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Interrupted

        watching.endpoint.before = count
        try:
            working.update(b"k", NEW)
        except Interrupted:
            pass
        finally:
            watching.endpoint.before = None
        assert store.get(b"k") in (OLD, NEW)
        store.update(b"k", OLD)
        assert working.get(b"k") == OLD
        sound(store)
        if left[0] > 0:
            assert step > 7
            assert store.pool.events() == []  # no client was killed for a lock
            return
    pytest.fail("the operation does not end")


# ---- holders that die or stand still -------------------------------------------------------------


def in_child(store: Any, at_step: int, then: Callable[[], None]) -> Callable[[], None]:
    """A child that updates k and does `then` at a step of it."""

    def work() -> None:
        pool = StoppingPool.open(store.pool.url)
        mine = pool.store(store.kind, name="test")
        mine.put(b"k", OLD)
        mine.put(b"k", OLD)
        pool.endpoint.interrupt = then
        pool.endpoint.stop_at = at_step
        mine.update(b"k", NEW)
        os._exit(3)

    return work


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def until_redo(store: Any, then: Callable[[], None]) -> Iterator[int]:
    """Pids of children that came to an end, or a stop, with a redo copy linked; each step."""
    for step in range(1, 80):
        with children([in_child(store, step, then)]) as running:
            pid = running[0][0]
            state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert state is not None
            if state.si_code == os.CLD_EXITED:
                return
            if lock_and_redo(store)[1]:
                yield pid
            os.kill(pid, signal.SIGKILL)
        store.recover()


@pytest.mark.exhaustive("every step")
def test_recover_finishes_and_unlocks_what_the_dead_left(store: Any) -> None:
    met = 0
    for _ in until_redo(store, die):
        met += 1
        assert lock_and_redo(store)[0]
        store.recover()
        assert lock_and_redo(store) == (0, 0)
        assert store.get(b"k") == NEW
        sound(store)
    assert met


def test_a_redo_copy_that_was_damaged_is_given_up(store: Any) -> None:
    """Written in place, it would get a checksum of its own."""
    found_then = {OLD: 0, None: 0, NEW: 0}
    for _ in until_redo(store, die):
        store.endpoint.write((lock_and_redo(store)[1] & (1 << 48) - 1) + 32, b"damaged!")
        store.recover()
        assert lock_and_redo(store) == (0, 0)
        assert store.pool.audit()["leaked"] == 0
        found = None
        with contextlib.suppress(limpet.StoreCorrupt):
            found = store.get(b"k")
        found_then[found] += 1
        store.put(b"k", OLD)
        sound(store)
    assert all(found_then.values())  # killed before, while and after it was written in place


@pytest.mark.exhaustive("every step")
def test_a_reader_finishes_for_a_dead_writer(store: Any) -> None:
    for _ in until_redo(store, die):
        assert store.get(b"k") == NEW
        assert lock_and_redo(store) == (0, 0)


@pytest.mark.exhaustive("every step")
def test_the_dead_may_be_recovered_before_anybody_wants_the_lock(store: Any) -> None:
    """The lock then names a client that there is no more."""
    met = 0
    for pid in until_redo(store, die):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert len(store.pool.recover()["clients"]) == 1
        assert lock_and_redo(store)[1]
        assert store.pool.audit()["leaked"] == 0
        store.check()
        met += 1
        if met % 2:
            store.put(b"k", b"after")
            assert store.get(b"k") == b"after"
        else:
            assert store.get(b"k") == NEW
        sound(store)
    assert met


@pytest.mark.exhaustive("every step of two clients")
def test_who_finishes_may_be_killed_at_it(store: Any) -> None:
    def finish(at_step: int) -> None:
        pool = StoppingPool.open(store.pool.url)
        mine = pool.store("pdpm", name="test")
        pool.endpoint.interrupt = die
        pool.endpoint.stop_at = at_step
        mine.recover()
        os._exit(3)

    step = 1
    killed = 0
    for _ in until_redo(store, die):
        with children([lambda s=step: finish(s)]) as running:
            status = os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1])
        killed += status == -signal.SIGKILL
        step += 3
        assert store.get(b"k") == NEW
        assert lock_and_redo(store)[1] == 0
        store.recover()
        assert lock_and_redo(store) == (0, 0)
        sound(store)
    assert killed


def test_a_holder_that_stands_still_is_killed_when_its_lease_is_over(store: Any) -> None:
    pid = next(found := until_redo(store, stop))
    other = other_home(store, b"k")
    store.put(other, b"v")
    assert store.get(other) == b"v"
    assert lock_and_redo(store)[1]
    assert store.get(b"k") == NEW
    assert lock_and_redo(store) == (0, 0)
    kinds = [event["kind"] for event in store.pool.events() if event["pid"] == pid]
    assert "fenced" in kinds
    found.close()
    sound(store)


def test_with_fence_wait_everybody_waits_for_a_holder_that_stands_still(pools: Any) -> None:
    store = pools(lease=LEASE_US / 1e6, fence="wait").store("pdpm", name="test", capacity=64)
    store.put(b"k", OLD)
    pid = next(found := until_redo(store, stop))
    other = other_home(store, b"k")
    store.put(other, b"v")
    assert store.get(other) == b"v"

    def wait() -> Any:
        mine = limpet.open(store.pool.url).store("pdpm", name="test")
        return mine.get(b"k")

    with children([wait]) as running:
        waiting, out = running[0]
        until(lambda: any(e["kind"] == "suspended" for e in store.pool.events()))
        assert os.waitpid(waiting, os.WNOHANG) == (0, 0)
        os.kill(pid, signal.SIGCONT)
        assert NEW in out.read()
        assert os.waitstatus_to_exitcode(os.waitpid(waiting, 0)[1]) == 0
    with contextlib.suppress(ProcessLookupError):
        found.close()
    assert store.get(b"k") == NEW
    sound(store)


@pytest.mark.exhaustive("more faults", quick=["200-{}"])
@pytest.mark.parametrize("changes", [{}, {"fence": "wait"}, {"node_failures": 1}], ids=str)
@pytest.mark.parametrize("value_size", [200, 3400])
def test_explorer(changes: dict[str, Any], value_size: int) -> None:
    explored = Exploration(
        store="pdpm", schedules=runs_of(400), seed=7, crashes=2, value_size=value_size, **changes
    )
    assert explore(explored).failures == ()


# ---- check() -------------------------------------------------------------------------------------


def test_check_sees_a_torn_pair_without_a_redo_copy(store: Any) -> None:
    store.check()
    (reference,) = store.references().tolist()
    store.endpoint.write((reference & (1 << 48) - 1) + 32, b"damaged!")
    with pytest.raises(limpet.StoreCorrupt, match="checksum"):
        store.check()


@pytest.mark.parametrize("what", ["pair", "redo"])
def test_a_get_of_damaged_memory_ends(store: Any, what: str) -> None:
    """It would wait for ever for a writer that is not there."""
    (reference,) = store.pool.exclusively(store.references).tolist()
    if what == "pair":
        store.endpoint.write((reference & (1 << 48) - 1) + 32, b"damaged!")
    else:
        store.endpoint.store(store._place(b"k").home + REDO, reference)
    for call in (lambda: store.get(b"k"), lambda: store.get_many([b"k"])):
        with pytest.raises(limpet.StoreCorrupt):
            call()
    store.put(b"k", OLD)
    assert store.get(b"k") == OLD


def test_check_sees_a_key_in_a_bucket_that_is_not_its_own(store: Any) -> None:
    place = store._place(b"k")
    store._read(place)
    slot, word = store._match(place, b"k")
    strange = next(b for b in store._buckets() if b not in (place.home, place.other))
    store.endpoint.store(slot, 0)
    store.endpoint.store(strange + 16, word)
    with pytest.raises(limpet.StoreCorrupt, match="does not belong"):
        store.check()
    store.endpoint.store(strange + 16, word & (1 << 56) - 1 | (word >> 56 ^ 1) << 56)
    with pytest.raises(limpet.StoreCorrupt, match="fingerprint"):
        store.check()


def test_check_sees_a_key_twice_and_a_strange_redo_copy(store: Any) -> None:
    place = store._place(b"k")
    store._read(place)
    _, word = store._match(place, b"k")
    store.endpoint.store(store._vacant(place), word)
    with pytest.raises(limpet.StoreCorrupt, match="also in the slot"):
        store.check()
    strange = next(b for b in store._buckets() if b != place.home)
    store.endpoint.store(strange + REDO, word & (1 << 56) - 1)
    with pytest.raises(limpet.StoreCorrupt, match=r"another home|also in the slot"):
        store.check()


# ---- known-bad variants --------------------------------------------------------------------------


def locks_whatever_is_there(self: Pdpm, place: BucketPair, work: Any) -> int:
    self.endpoint.cas(place.home, 0, 1)
    self._read(place)
    change = work()
    self.endpoint.store(place.home, 0)
    self.endpoint.wait()
    lost = change.ticket and self.endpoint.result(change.ticket[0]) != change.expected
    return AGAIN if lost else int(change.outcome)


def commits_nothing(self: Pdpm, redo: int, reference: int) -> None:
    self.client.retarget(0, redo)


def commits_without_aim(self: Pdpm, redo: int, reference: int) -> None:
    self.endpoint.store(redo, reference)


def gives_the_copy_up_first(self: Pdpm, redo: int, old: int, key: bytes, value: bytes) -> None:
    self.endpoint.store(redo, 0)
    self.objects.write(old, key, value)


def finishes_nothing(self: Pdpm, home: int) -> None:
    reference = self.endpoint.load(home + REDO)
    if reference:
        self.client.log(reference, home + REDO)
        self.endpoint.store(home + REDO, 0)
    FINISH(self, home)


def removes_without_the_journal(self: Pdpm, place: BucketPair, key: bytes) -> Change:
    slot, word = self._match(place, key)
    if not slot:
        return Change(MISSING)
    return Change(DONE if self.endpoint.cas(slot, word, 0) == word else AGAIN)


def yes(self: Pdpm, holder: int) -> bool:
    return True


def no(self: Pdpm, word: int) -> bool:
    return False


FINISH: Final = Pdpm._finish
UPDATE: Final = "update, same size"
KILLED: Final = {
    "no-redo-copy": ("_commit", commits_nothing, UPDATE),
    "redo-copy-given-up-first": ("_put_in_place", gives_the_copy_up_first, UPDATE),
    "lock-of-the-dead-not-broken": ("_is_gone", no, UPDATE),
    "dead-holders-update-dropped": ("_finish", finishes_nothing, UPDATE),
    "old-object-not-held": ("_remove", removes_without_the_journal, "delete"),
}
"""A method, what is there instead, and the operation that is killed."""


@pytest.mark.exhaustive("many runs", quick=["old*", "lock-of*"])
@pytest.mark.skipif(not COMPILED, reason="caught by many runs")
@pytest.mark.parametrize("mutant", KILLED)
def test_mutant_is_caught_by_the_matrix(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, method, operation = KILLED[mutant]
    monkeypatch.setattr(Pdpm, name, method)
    for module in (testbed, matrix):
        monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    monkeypatch.setattr(matrix_result, "FAILURES_MAX", 1)
    result = matrix.Matrix("pdpm").killed(OPERATIONS[operation])
    assert result.verdict == "FAILED"


@pytest.mark.skipif(not COMPILED, reason="caught by many runs")
def test_mutant_without_locks_is_caught_by_the_explorer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pdpm, "_locked", locks_whatever_is_there)
    assert first_failure(Exploration(store="pdpm", schedules=30_000, value_size=200))


def test_mutant_without_checksums_returns_half_a_value(
    pools: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pdpm, "_is_torn", no)
    assert met_half_written(pools, store) not in (OLD, NEW)


def test_mutant_that_breaks_locks_of_the_living_loses_what_is_written_then(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped holder wakes up and writes its value over a later one (trap G1)."""
    monkeypatch.setattr(Pdpm, "_is_gone", yes)
    store = pools(fence="wait").store("pdpm", name="test", capacity=64)
    store.put(b"k", OLD)
    found = []
    for pid in until_redo(store, stop):
        assert store.get(b"k") == NEW
        store.update(b"k", b"l" * 40)
        os.kill(pid, signal.SIGCONT)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        (reference,) = store.references().tolist()
        found.append(store.endpoint.read((reference & (1 << 48) - 1) + 24, 40))
    assert set(found) - {b"l" * 40}


def test_mutant_whose_redo_copy_is_not_aimed_has_it_freed_by_recovery(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pdpm, "_commit", commits_without_aim)
    pid = next(found := until_redo(store, die))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    store.pool.recover()
    with pytest.raises(limpet.StoreCorrupt, match="not in use"):
        store.check()
    found.close()
