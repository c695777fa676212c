"""A client of a host that stood still wakes up after others have given it up and worked on.

The client is stopped before each step of an operation in turn: before each verb that changes
memory, and between any two words of a write. Others recover it, a successor takes its slot, they
delete its key and use memory again. Then it goes on.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
from kit.stores import accounted, sound

import limpet
from limpet.fault.explore.greenlets import getcurrent, greenlet
from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.endpoint.hooked import MUTATING, HookedEndpoint
from limpet.shm.errors import LimpetError

KINDS = ("race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco")
TRANSACTIONAL = ("rtx-sherman", "rtx-race")
KEY = b"key"
OTHERS = [b"other %d" % number for number in range(12)]
OPERATIONS: dict[str, Callable[[Any], object]] = {
    "insert": lambda store: store.insert(b"new", b"inserted" * 6),
    "update": lambda store: store.update(KEY, b"updated" * 7),
    "delete": lambda store: store.delete(KEY),
}
STEPS_MAX = 400


def transfer(store: Any) -> None:
    """A transaction that reads one key, and writes it and another one."""

    def act(tx: Any) -> None:
        tx.put(store, KEY, (tx.get(store, KEY) or b"")[:9] + b"moved" * 7)
        tx.insert(store, b"new", b"inserted" * 6)

    store.pool.transaction(act)


class SleepyEndpoint(HookedEndpoint, verbs=MUTATING):
    """Switches to the parent greenlet before step `sleep_at` (0: never) from there on."""

    def __init__(self) -> None:
        self.sleep_at = 0

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        # A thread that renews a lease goes on.
        if not self.sleep_at or getcurrent().parent is None:
            return words
        if self.sleep_at == 1:
            self.sleep_at = 0
            getcurrent().parent.switch()
            return words
        done = min(words, self.sleep_at - 1)
        self.sleep_at -= done
        return done


class SleepyPool(limpet.Pool):
    endpoint_class = SleepyEndpoint
    endpoint: SleepyEndpoint


class UnguardedEndpoint(SleepyEndpoint, verbs=MUTATING):
    """The variant: a client checks only at its next operation whether it has its slot."""

    def guard(self, addr: int, word: int) -> int:
        return 0


class UnguardedPool(SleepyPool):
    endpoint_class = UnguardedEndpoint


class OneStepEndpoint(SleepyEndpoint, verbs=MUTATING):
    """The client was stopped between its look at its slot and the step: one step happens late."""

    def __init__(self) -> None:
        super().__init__()
        self.guarded = (0, 0)
        self.free = False

    def guard(self, addr: int, word: int) -> int:
        self.guarded = (addr, word)
        return super().guard(addr, word)

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if self.free:
            self.free = False
            super().guard(*self.guarded)
        if self.sleep_at == 1:
            super().on_verb(verb, addr, words)
            super().guard(0, 0)
            self.free = True
            return 1
        return super().on_verb(verb, addr, words)


class OneStepPool(SleepyPool):
    endpoint_class = OneStepEndpoint


class Night:
    """A pool in which one client falls asleep; a class for each thing that it works on."""

    nodes, node_size = 1, 1 << 20

    def __init__(self, pools: Any, kind: str, sleeper: type[SleepyPool]) -> None:
        self.pools = pools
        self.kind = kind
        self.pool = pools(nodes=self.nodes, node_size=self.node_size, multi_host=True, lease=60)
        self.sleeper = sleeper
        self.prepare()

    def prepare(self) -> None:
        """Make what the clients work on."""

    def evening(self) -> None:
        """Before the sleeper comes."""

    def open(self, pool: Any) -> Any:
        """The store or channel that the sleeper works on, in its pool."""

    def night(self, successor: Any) -> None:
        """The work of the others and of the sleeper's successor while it sleeps."""

    def wrong(self) -> str:
        """The part that is not as the others have left it; "" if all is."""
        raise NotImplementedError

    def clean(self) -> None:
        """Undo it, for the next night."""

    def spend(self, work: Callable[[Any], object], step: int) -> tuple[bool, str]:
        """Have a new client do `work` and sleep before that step; whether it did, and its error."""
        self.evening()
        ended: list[str] = []
        sleeper = self.sleeper.open(self.pool.url)
        try:
            handle = self.open(sleeper)

            def live() -> None:
                try:
                    work(handle)
                    ended.append("")
                except LimpetError as error:
                    ended.append(f"{type(error).__name__}: {error}")

            sleeper.endpoint.sleep_at = step
            client = greenlet(live)
            client.switch()
            slept = not ended
            if slept:
                self.pass_time(sleeper.client.ident)
                client.switch()
        finally:
            sleeper.endpoint.sleep_at = 0
            sleeper.close()
        return slept, ended[0]

    def pass_time(self, ident: int) -> None:
        """Others recover the client, and work until memory has been used again."""
        members = self.pool.membership
        self.pool.exclusively(lambda: members.recover(*members.place(ident)))
        successor = self.pools.again(self.pool)
        self.night(successor)
        successor.close()


class StoreNight(Night):
    """A store, whose keys the others delete and use again."""

    def __init__(self, pools: Any, kind: str, sleeper: type[SleepyPool]) -> None:
        profile = profile_of(kind)
        self.nodes, self.node_size = profile.matrix_nodes, profile.matrix_node_size
        super().__init__(pools, kind, sleeper)

    def prepare(self) -> None:
        parameters = profile_of(self.kind).matrix_parameters
        self.store = self.pool.store(self.kind, name="test", **parameters)

    def evening(self) -> None:
        self.store.put(KEY, b"first" * 9)

    def open(self, pool: Any) -> Any:
        store = pool.store(self.kind, name="test")
        store.get(KEY)
        return store

    def night(self, successor: Any) -> None:
        heir = successor.store(self.kind, name="test")
        for key in (KEY, b"new"):
            if self.store.get(key) is not None:
                heir.delete(key)
        for turn in range(3):
            for key in OTHERS:
                heir.put(key, b"%s %d " % (key, turn) * 3)
        self.pool.recover()

    def wrong(self) -> str:
        for key in (KEY, b"new"):
            if (found := self.store.get(key)) is not None:
                return f"{key!r} is back: {found!r}"
        for key in OTHERS:
            if self.store.get(key) != b"%s 2 " % key * 3:
                return f"{key!r} is {self.store.get(key)!r}"
        try:
            sound(self.store)
        except (LimpetError, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def clean(self) -> None:
        for key in (KEY, b"new", *OTHERS):
            if self.store.get(key) is not None:
                self.store.delete(key)


class LockNight(Night):
    """A lock, which others hold when the sleeper wakes up, and two numbers that it protects."""

    operations: ClassVar[dict[str, Callable[[Any], object]]] = {"turn": lambda turn: turn()}

    def prepare(self) -> None:
        self.lock, self.count = self.pool.lock("lock"), self.pool.array("count", 2)

    def open(self, pool: Any) -> Any:
        lock, count = pool.lock("lock"), pool.array("count", 2)

        def turn() -> None:
            assert lock.acquire(timeout=5)
            count[0] += 1
            count[1] = count[0]
            lock.release()

        return turn

    def night(self, successor: Any) -> None:
        heir = successor.lock("lock")
        assert heir.acquire(timeout=5)
        successor.array("count", 2)[:] = [100, 100]
        heir.release()
        assert self.lock.acquire(timeout=5)
        self.count[:] = [200, 200]

    def wrong(self) -> str:
        if list(self.count) != [200, 200]:
            return f"a client that has not the lock set the numbers to {list(self.count)}"
        third = self.pools.again(self.pool)
        other = third.lock("lock")
        if other.acquire(blocking=False):
            return "two clients have the lock"
        self.lock.release()
        had = other.acquire(timeout=5)
        if had:
            other.release()
        third.close()
        return "" if had else "the lock is not to be had"

    def clean(self) -> None:
        self.count[:] = [0, 0]


class QueueNight(Night):
    """A queue of four places; others fill all of them while the sleeper puts or gets."""

    operations: ClassVar[dict[str, Callable[[Any], object]]] = {
        "put": lambda shared: shared.put_nowait(b"late"),
        "put large": lambda shared: shared.put_nowait(b"late" * 50),
        "get": lambda shared: (shared.get_nowait(), shared.task_done()),
    }

    def prepare(self) -> None:
        self.queue = self.open(self.pool)

    def evening(self) -> None:
        self.queue.put_nowait(b"first" * 20)

    def open(self, pool: Any) -> Any:
        return pool.queue("queue", 4, item_size=24, codec="bytes")

    def night(self, successor: Any) -> None:
        heir = self.open(successor)
        for number in range(4 * 2 + 1):
            self.empty()
            heir.put_nowait(b"between %d" % number * (1 + number % 3))
        self.empty()
        self.left = [b"left %d" % number * (1 + 9 * (number % 2)) for number in range(4)]
        for element in self.left:
            heir.put_nowait(element)
        self.pool.recover()

    def empty(self) -> list[bytes]:
        """Get all there is."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self.queue.get_nowait())
                self.queue.task_done()
        return found

    def wrong(self) -> str:
        try:
            if self.queue.qsize() != 4:
                return f"it has {self.queue.qsize()} elements"
            if (found := self.empty()) != self.left:
                return f"it has {found}, and the others left {self.left}"
            self.queue.put_nowait(b"again")
            if (found := self.empty()) != [b"again"]:
                return f"it gives {found} for one element"
            accounted(self.pool)
        except (LimpetError, AssertionError, queue.Full) as error:
            return f"{type(error).__name__}: {error}"
        return ""


CHANNELS: dict[str, type[LockNight] | type[QueueNight]] = {"lock": LockNight, "queue": QueueNight}


def spend_nights(night: Night, operation: Callable[[Any], object]) -> None:
    """Have a client sleep before each step of an operation in turn: it must change nothing."""
    errors = set()
    for step in range(1, STEPS_MAX):
        slept, error = night.spend(operation, step)
        if not slept:
            break
        errors.add(error)
        assert night.wrong() == "", f"it slept before step {step}"
        night.clean()
    assert step > 3
    assert not slept
    assert all("ClientError" in error and "declared dead" in error for error in errors), errors


def is_harmful(night: Night, operations: Iterable[Callable[[Any], object]]) -> bool:
    """Whether a client that sleeps before some step of these operations does harm afterwards."""
    for operation in operations:
        for step in range(1, STEPS_MAX):
            slept, _ = night.spend(operation, step)
            if slept and night.wrong():
                return True
            if not slept:
                break
            night.clean()
    return False


@pytest.mark.exhaustive("every step", quick=["race-*", "rcuckoo-delete", "fusee-delete", "loco-*"])
@pytest.mark.exhaustive_in_pure("every step", quick=["race-delete"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_client_that_wakes_up_when_it_was_given_up_changes_nothing(
    pools: Any, kind: str, operation: str
) -> None:
    spend_nights(StoreNight(pools, kind, SleepyPool), OPERATIONS[operation])


@pytest.mark.exhaustive_in_pure("every step")
@pytest.mark.parametrize("kind", TRANSACTIONAL)
def test_transaction_that_wakes_up_when_it_was_given_up_changes_nothing(
    pools: Any, kind: str
) -> None:
    spend_nights(StoreNight(pools, kind, SleepyPool), transfer)


@pytest.mark.exhaustive_in_pure("every step", quick=["lock-turn"])
@pytest.mark.parametrize(
    ("kind", "operation"),
    [(kind, operation) for kind, night in CHANNELS.items() for operation in night.operations],
)
def test_client_of_a_channel_that_wakes_up_when_it_was_given_up_changes_nothing(
    pools: Any, kind: str, operation: str
) -> None:
    night = CHANNELS[kind]
    spend_nights(night(pools, kind, SleepyPool), night.operations[operation])


@pytest.mark.exhaustive_in_pure("many steps", quick=["rcuckoo", "loco"])
@pytest.mark.parametrize("kind", KINDS)
def test_client_that_wakes_up_unguarded_is_a_mutant_that_is_caught(pools: Any, kind: str) -> None:
    assert is_harmful(StoreNight(pools, kind, UnguardedPool), OPERATIONS.values())


@pytest.mark.exhaustive_in_pure("many steps")
@pytest.mark.parametrize("kind", TRANSACTIONAL)
def test_transaction_that_wakes_up_unguarded_is_a_mutant_that_is_caught(
    pools: Any, kind: str
) -> None:
    assert is_harmful(StoreNight(pools, kind, UnguardedPool), [transfer])


@pytest.mark.exhaustive_in_pure("many steps", quick=["lock"])
@pytest.mark.parametrize("kind", CHANNELS)
def test_client_of_a_channel_that_wakes_up_unguarded_is_a_mutant_that_is_caught(
    pools: Any, kind: str
) -> None:
    night = CHANNELS[kind]
    assert is_harmful(night(pools, kind, UnguardedPool), night.operations.values())


LATE: dict[tuple[str, str], int] = {
    ("race", "insert"): 2, ("race", "update"): 1, ("race", "delete"): 0,
    ("rtx-race", "insert"): 2, ("rtx-race", "update"): 1, ("rtx-race", "delete"): 0,
    ("fusee", "insert"): 1, ("fusee", "update"): 1, ("fusee", "delete"): 0,
    ("swarm", "insert"): 19, ("swarm", "update"): 1, ("swarm", "delete"): 1,
    ("rcuckoo", "insert"): 7, ("rcuckoo", "update"): 6, ("rcuckoo", "delete"): 6,
    ("rtx-sherman", "insert"): 2, ("rtx-sherman", "update"): 2, ("rtx-sherman", "delete"): 9,
    ("loco", "insert"): 6, ("loco", "update"): 3, ("loco", "delete"): 2,
    ("rtx-sherman", "transaction"): 3, ("rtx-race", "transaction"): 3,
    ("lock", "turn"): 2,
    ("queue", "put"): 2, ("queue", "put large"): 1, ("queue", "get"): 1,
}  # fmt: skip
"""How many steps of a call do harm if one of them lands late (docs/hosts.md)."""


def late_harm(
    night: Callable[[], Night], operation: Callable[[Any], object]
) -> tuple[int, list[str]]:
    """The number of steps of an operation, and the harm that some do when one lands late."""
    harm: list[str] = []
    tonight = night()
    for step in range(1, STEPS_MAX):
        try:
            slept, _ = tonight.spend(operation, step)
            if not slept:
                return step - 1, harm
            wrong = tonight.wrong()
        except (LimpetError, AssertionError) as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            harm.append(f"step {step}: {wrong}")
            tonight = night()
        else:
            tonight.clean()
    raise AssertionError(f"more than {STEPS_MAX} steps")


@pytest.mark.exhaustive("every step", quick=["lock-*", "queue-*", "race-delete"])
@pytest.mark.exhaustive_in_pure("every step", quick=["lock-turn"])
@pytest.mark.parametrize(("kind", "operation"), LATE)
def test_one_step_that_lands_late_does_no_more_harm_than_the_docs_say(
    pools: Any, kind: str, operation: str
) -> None:
    """No guard can help between the look at the slot and the step; the rest must not happen."""
    kind_of_night: type[Night] = StoreNight
    work = transfer if operation == "transaction" else OPERATIONS.get(operation)
    if kind in CHANNELS:
        kind_of_night = CHANNELS[kind]
        work = CHANNELS[kind].operations[operation]
    assert work is not None
    steps, harm = late_harm(lambda: kind_of_night(pools, kind, OneStepPool), work)
    print(f"{kind} {operation}: {steps} steps", *harm, sep="\n")
    assert len(harm) <= LATE[kind, operation], harm
