"""`store.pipeline`: the same as single operations, in the round trips of one."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from kit.stores import key_of, sound

import limpet
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.shm.endpoint.simulated import at_once
from limpet.stores.core.status import BATCH
from limpet.stores.figures import Figures

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["race", "fusee", "swarm", "loco", "test_a_*"]
)
CHANGES = ("put", "insert", "update", "delete")
KEYS = [b"key %02d" % number for number in range(40)]


def outcome(work: Callable[[], Any]) -> Any:
    """Its result, or its error's type."""
    try:
        return work()
    except limpet.LimpetError as error:
        return type(error)
    except KeyError:
        return KeyError


def filled(store: Any, count: int = len(KEYS)) -> Any:
    """A store with keys, whose places it remembers."""
    for value in (b"0", b"1"):
        for key in KEYS[:count]:
            store.put(key, value)
    return store


def trips(store: Any, work: Callable[[], object]) -> tuple[int, int]:
    """Round trips and exchanges."""
    before = store.stats()
    work()
    after = store.stats()
    found = [int(after[name] - before[name]) for name in ("round_trips", "exchanges")]
    return found[0], found[1]


# ---- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 5, 16, 100])
def test_results_are_those_of_single_operations(store: Any, window: int) -> None:
    """Any calls, on few keys, in any order: each result, each error, and what is there then."""
    dice = random.Random(window)
    expected: dict[bytes, bytes] = {}
    calls: list[tuple[Any, Any]] = []
    with store.pipeline(window) as pipeline:
        for number in range(400):
            key, value = dice.choice(KEYS[:12]), b"%d" % number
            call = dice.choice(["get", "get", *CHANGES])
            there = key in expected
            result: Any = None
            if call == "get":
                result = expected.get(key)
                calls.append((pipeline.get(key), result))
                continue
            if call == "insert" and there:
                result = limpet.KeyExists
            elif call in ("update", "delete") and not there:
                result = KeyError
            elif call == "delete":
                del expected[key]
            else:
                expected[key] = value
            given = (key,) if call == "delete" else (key, value)
            calls.append((getattr(pipeline, call)(*given), result))
        for operation, result in calls:
            assert outcome(operation.result) == result, operation
    assert dict(store.items()) == expected
    sound(store)


def test_results_come_in_the_order_of_issue_or_of_completion(store: Any) -> None:
    filled(store)
    with store.pipeline(8) as pipeline:
        issued = []
        for number, key in enumerate(KEYS[:20]):
            issued.append(pipeline.get(key))
            if number % 3 == 0:
                pipeline.put(key, b"2")  # it has no result
        assert [operation.done() for operation in (issued[0], issued[-1])] == [True, False]
        assert list(pipeline) == issued
        assert [operation.result() for operation in issued] == [b"1"] * 20
        assert list(pipeline) == []
        again = [pipeline.get(key) for key in KEYS[:20]]
        completed = list(pipeline.as_completed())
        assert sorted(map(id, completed)) == sorted(map(id, again))
        assert {operation.key for operation in completed} == set(KEYS[:20])
        assert pipeline.get(b"none", 7).result() == 7
        assert repr(pipeline.get(b"none")) == "<get of b'none': waits>"


def test_operations_may_be_issued_while_results_are_taken(store: Any) -> None:
    """The values are numbers of other keys: a walk, several steps at a time."""
    for number, key in enumerate(KEYS):
        store.put(key, b"%d" % ((number + 7) % len(KEYS)))
    seen = 0
    with store.pipeline(4) as pipeline:
        for number in range(4):
            pipeline.get(KEYS[number])
        for operation in pipeline:
            seen += 1
            if seen < 100:
                pipeline.get(KEYS[int(operation.result())])
    assert seen == 103


def test_an_error_is_that_of_its_operation(store: Any) -> None:
    filled(store, 4)
    with store.pipeline() as pipeline:
        wrong = [
            (pipeline.insert(KEYS[0], b"x"), limpet.KeyExists),
            (pipeline.update(b"none", b"x"), KeyError),
            (pipeline.delete(b"none, too"), KeyError),
            (pipeline.put(b"k" * 70_000, b"x"), limpet.KeyTooLarge),
        ]
        right = [pipeline.get(KEYS[1]), pipeline.put(KEYS[2], b"y"), pipeline.insert(b"new", b"z")]
        for value in ("text", 3, None):
            with pytest.raises(TypeError):
                pipeline.put(KEYS[3], value)
            with pytest.raises(TypeError):
                pipeline.get(value)
        assert [operation.call for operation in pipeline] == [
            "insert", "update", "delete", "put", "get",
        ]  # fmt: skip
        for operation, error in wrong:
            assert isinstance(operation.exception(), error)
            with pytest.raises(error):
                operation.result()
        assert [operation.result() for operation in right] == [b"1", None, None]
    assert store.get_many([KEYS[0], KEYS[2], KEYS[3], b"new"]) == [b"1", b"y", b"1", b"z"]
    sound(store)


def test_a_result_that_was_asked_for_is_not_kept(store: Any) -> None:
    filled(store, 4)
    with store.pipeline() as pipeline:
        assert [pipeline.get(key).result() for key in KEYS[:4]] == [b"1"] * 4
        assert list(pipeline) == []
        first, second = pipeline.get(KEYS[0]), pipeline.get(KEYS[1])
        assert first.result() == b"1"
        assert list(pipeline.as_completed()) == [second]
        assert pipeline.get(KEYS[0]).result() == b"1"
        third = pipeline.get(KEYS[1])
        assert list(pipeline) == [third]


def test_an_error_that_was_given_and_not_asked_for_is_raised_in_the_end(store: Any) -> None:
    filled(store, 1)

    def work() -> None:
        with store.pipeline() as pipeline:
            pipeline.insert(KEYS[0], b"x")
            pipeline.get(KEYS[0])
            for operation in pipeline:
                if operation.call == "get":
                    assert operation.result() == b"1"

    with pytest.raises(limpet.KeyExists):
        work()


def test_misses_of_a_window_are_counted_as_those_of_gets(store: Any) -> None:
    def missed() -> int:
        store.put(KEYS[0], b"1")  # the pure build shows counts when an operation ends
        rows = Figures(store.pool).look()["stores"]
        return int(next(row["misses"] for row in rows if row["name"] == store.name))

    start = missed()
    for number in range(8):
        assert store.get(b"none %d" % number) is None
    before = missed()
    with store.pipeline(8) as pipeline:
        assert [pipeline.get(b"none %d" % number).result() for number in range(8)] == [None] * 8
        for number in range(8):
            pipeline.get(b"none %d" % number)
        assert [operation.result() for operation in pipeline] == [None] * 8
    assert missed() - before == 2 * (before - start)


def test_the_end_of_a_block_raises_what_no_one_has_asked_for(store: Any) -> None:
    filled(store, 2)

    def work() -> None:
        with store.pipeline() as pipeline:
            pipeline.insert(KEYS[0], b"2")
            pipeline.put(KEYS[1], b"2")

    with pytest.raises(limpet.KeyExists, match="key 00"):
        work()
    assert store.get(KEYS[1]) == b"2"
    with store.pipeline() as pipeline:
        assert isinstance(pipeline.insert(KEYS[0], b"2").exception(), limpet.KeyExists)
    with pytest.raises(limpet.StoreError, match="closed"):
        pipeline.get(KEYS[0])


def test_a_block_that_raises_does_not_do_what_waits(store: Any) -> None:
    filled(store, 1)
    issued = []

    def work() -> None:
        with store.pipeline() as pipeline:
            issued.append(pipeline.put(KEYS[0], b"2"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with pytest.raises(limpet.StoreError, match="was not done"):
        issued[0].result()
    assert store.get(KEYS[0]) == b"1"


@pytest.mark.parametrize("window", [0, -1, True, 2.0, "8", None, 1 << 20])
def test_a_window_that_cannot_be_is_refused(pools: Any, window: Any) -> None:
    with pytest.raises(limpet.ParameterError, match="window"):
        pools().store("race").pipeline(window)


# ---- what is cut off -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["race", "fusee", "swarm", "dm-abd", "loco", "rtx-sherman"])
def test_a_window_that_is_interrupted_leaves_no_operation_open(kind: str) -> None:
    """Ctrl-C at each of its verbs; each operation was done, or says that this is not known."""
    with SimulatedCluster(kind, 1, value_size=40) as cluster:
        cluster.reset()
        client = cluster.clients[0]
        store = filled(client.store, 6)
        for step in range(1, 1000, 1 if limpet.build == "compiled" else 9):
            left = [step]

            def interrupt(endpoint: Any, verb: str, addr: int, words: int, left: Any = left) -> int:
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt
                return words

            issued = []
            client.endpoint.turn = interrupt
            with contextlib.suppress(KeyboardInterrupt), store.pipeline(6) as pipeline:
                for number, key in enumerate(KEYS[:6]):
                    other = number % 2
                    issued.append(pipeline.get(key) if other else pipeline.put(key, b"1"))
            client.endpoint.turn = at_once
            assert all(operation.done() for operation in issued)
            for operation in issued:
                assert outcome(operation.result) in (b"1", None, limpet.StoreError)
            if left[0] > 0:
                break
        assert step > 5
        assert store.get_many(KEYS[:6]) == [b"1"] * 6
        store.check()


def test_a_child_does_not_do_what_its_parent_has_issued(pools: Any) -> None:
    store = filled(pools().store("race"), 1)
    with store.pipeline() as pipeline:
        operation = pipeline.put(KEYS[0], b"2")
        child = os.fork()
        if not child:
            with contextlib.suppress(limpet.StoreError):
                operation.result()
                os._exit(1)
            os._exit(0 if store.get(KEYS[0]) == b"1" else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get(KEYS[0]) == b"2"


def test_keys_of_a_lost_node_fail_and_no_others(pools: Any) -> None:
    pool = pools(nodes=2)
    store = pool.store("race", name="test", capacity=300)
    lost, there = key_of(0), key_of(1)
    for key in (lost, there, there + b"!"):
        store.put(key, b"1")
    pool.fail_node(0)
    with store.pipeline() as pipeline:
        failed = [pipeline.get(lost), pipeline.put(lost, b"2")]
        done = [pipeline.get(there), pipeline.put(there, b"2"), pipeline.get(there)]
        assert all(isinstance(one.exception(), limpet.NodeFailed) for one in failed)
        assert [operation.result() for operation in done] == [b"1", None, b"2"]


@pytest.mark.parametrize("kind", ["swarm", "dm-abd", "fusee"])
def test_windows_go_on_without_one_of_three_nodes(pools: Any, kind: str) -> None:
    pool = pools(nodes=3)
    store = filled(pool.store(kind, name="test", capacity=300))
    pool.fail_node(1)
    for number in range(4):
        with store.pipeline() as pipeline:
            for key in KEYS:
                pipeline.put(key, b"%d" % number)
                pipeline.get(key)
            found = [operation.result() for operation in pipeline]
        assert found == [b"%d" % number] * len(KEYS)
    pool.replace_node(1)
    pool.fail_node(2)
    assert store.get_many(KEYS) == [b"3"] * len(KEYS)
    sound(store)


def test_a_watched_store_tells_of_the_changes_of_a_window(pools: Any) -> None:
    store = filled(pools().store("race"), 2)
    changes = store.changes()
    with store.pipeline() as pipeline:
        pipeline.put(KEYS[0], b"2")
        pipeline.update(KEYS[1], b"2")
        pipeline.get(KEYS[0])
    told = [changes.get(timeout=60) for _ in range(2)]
    assert sorted(change.key for change in told) == KEYS[:2]


# ---- round trips ---------------------------------------------------------------------------------

WIDTH = 8
"""Operations of a window: of each kind in the table as many are one batch."""
COSTS = {
    "race": (2, 3, 3),
    "rtx-race": (2, 3, 3),
    "fusee": (2, 6, 6),
    "swarm": (1, 1, 1),
    "dm-abd": (2, 2, 2),
}
"""Round trips of a window of gets, of one of updates, and of one of both."""


def window_of(store: Any, gets: int, updates: int) -> None:
    with store.pipeline(gets + updates) as pipeline:
        for number in range(gets + updates):
            if number < gets:
                pipeline.get(KEYS[number])
            else:
                pipeline.update(KEYS[number], b"2")


def is_one_window(store: Any, costs: tuple[int, int, int]) -> None:
    for _ in range(3):  # the first ones fetch memory
        window_of(store, 0, WIDTH)
        window_of(store, WIDTH // 2, WIDTH // 2)
    gets, updates, both = costs
    assert trips(store, lambda: window_of(store, WIDTH, 0)) == (gets, gets)
    assert trips(store, lambda: window_of(store, 0, WIDTH)) == (updates, updates)
    assert trips(store, lambda: window_of(store, WIDTH // 2, WIDTH // 2)) == (both, both)
    assert trips(store, lambda: window_of(store, WIDTH - 1, 1)) == (both, both)


@pytest.mark.parametrize("kind", COSTS)
def test_a_window_is_the_round_trips_of_one_operation(pools: Any, kind: str) -> None:
    store = filled(pools(nodes=3).store(kind, name="test", capacity=300))
    is_one_window(store, COSTS[kind])
    sound(store)


@pytest.mark.parametrize("kind", COSTS)
def test_a_window_of_a_remote_client_is_the_round_trips_of_one_operation(kind: str) -> None:
    with SimulatedCluster(kind, 1, value_size=40, remote=True) as cluster:
        cluster.reset()
        store = filled(cluster.clients[0].store)
        is_one_window(store, COSTS[kind])


@pytest.mark.parametrize("kind", ["rcuckoo", "loco", "rtx-sherman"])
def test_gets_of_a_window_are_those_of_get_many(pools: Any, kind: str) -> None:
    store = filled(pools(nodes=2).store(kind, name="test", capacity=300))
    for _ in range(2):  # a tree learns where keys are
        many = trips(store, lambda: store.get_many(KEYS[:WIDTH]))
    assert trips(store, lambda: window_of(store, WIDTH, 0)) == many
    singly = trips(store, lambda: [store.get(key) for key in KEYS[:WIDTH]])
    assert many[0] < singly[0]


@pytest.mark.parametrize("size", [100, 2000, 4000])
@pytest.mark.parametrize("parameters", [{"in_place": False}, {"guess": False, "in_place": False}])
def test_values_out_of_place_are_one_round_trip_more(
    pools: Any, size: int, parameters: dict[str, bool]
) -> None:
    store = pools(nodes=3).store("swarm", name="test", capacity=300, **parameters)
    for value in (bytes(size), b"v" * size):
        for key in KEYS[:BATCH]:
            store.put(key, value)
    found: list[Any] = []
    assert trips(store, lambda: found.extend(store.get_many(KEYS[:BATCH])))[0] == 2
    assert found == [b"v" * size] * BATCH
