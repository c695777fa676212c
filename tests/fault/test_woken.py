"""A client of a host that stood still wakes up after others have given it up and worked on.

The client is stopped before each step of an operation in turn: before each verb that changes
memory, and between any two words of a write. Others recover it, a successor takes its slot, they
delete its key and use memory again. Then it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.stores import sound

import limpet
from limpet.fault.explore.greenlets import getcurrent, greenlet
from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.endpoint.hooked import MUTATING, HookedEndpoint
from limpet.shm.errors import LimpetError

KINDS = ("race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco")
KEY = b"key"
OTHERS = [b"other %d" % number for number in range(12)]
OPERATIONS: dict[str, Callable[[Any], object]] = {
    "insert": lambda store: store.insert(b"new", b"inserted" * 6),
    "update": lambda store: store.update(KEY, b"updated" * 7),
    "delete": lambda store: store.delete(KEY),
}
STEPS_MAX = 400


class SleepyEndpoint(HookedEndpoint, verbs=MUTATING):
    """Switches to the parent greenlet before step `sleep_at` (0: never) from there on."""

    def __init__(self) -> None:
        self.sleep_at = 0

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if not self.sleep_at:
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


class Night:
    """A pool with a store, and one client in it that falls asleep."""

    def __init__(self, pools: Any, kind: str, sleeper: type[SleepyPool]) -> None:
        profile = profile_of(kind)
        pool = pools(
            nodes=profile.matrix_nodes, node_size=profile.matrix_node_size, multi_host=True,
            lease_us=60_000_000,
        )  # fmt: skip
        self.pools = pools
        self.store = pool.store(kind, name="test", **profile.matrix_parameters)
        self.pool = pool
        self.sleeper = sleeper

    def spend(self, work: Callable[[Any], object], step: int) -> tuple[bool, str]:
        """Have a new client do `work` and sleep before that step; whether it did, and its error."""
        self.store.put(KEY, b"first" * 9)
        ended: list[str] = []
        sleeper = self.sleeper.open(self.pool.url)
        try:
            store = sleeper.store(self.store.kind, name="test")
            store.get(KEY)

            def live() -> None:
                try:
                    work(store)
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
        heir = successor.store(self.store.kind, name="test")
        for key in (KEY, b"new"):
            if self.store.get(key) is not None:
                heir.delete(key)
        for turn in range(3):
            for key in OTHERS:
                heir.put(key, b"%s %d " % (key, turn) * 3)
        self.pool.recover()
        successor.close()

    def wrong(self) -> str:
        """The keys that are not as the others have left them."""
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
        """Delete what there is, for the next night."""
        for key in (KEY, b"new", *OTHERS):
            if self.store.get(key) is not None:
                self.store.delete(key)


@pytest.mark.exhaustive("every step", quick=["race-*", "rcuckoo-delete", "fusee-delete", "loco-*"])
@pytest.mark.exhaustive_in_pure("every step", quick=["race-delete"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_client_that_wakes_up_when_it_was_given_up_changes_nothing(
    pools: Any, kind: str, operation: str
) -> None:
    night = Night(pools, kind, SleepyPool)
    errors = set()
    for step in range(1, STEPS_MAX):
        slept, error = night.spend(OPERATIONS[operation], step)
        if not slept:
            break
        errors.add(error)
        assert night.wrong() == "", f"it slept before step {step}"
        night.clean()
    assert step > 3
    assert not slept
    assert all("ClientError" in error and "declared dead" in error for error in errors)


@pytest.mark.exhaustive_in_pure("many steps", quick=["rcuckoo", "loco"])
@pytest.mark.parametrize("kind", KINDS)
def test_client_that_wakes_up_unguarded_is_a_mutant_that_is_caught(pools: Any, kind: str) -> None:
    night = Night(pools, kind, UnguardedPool)
    for operation in OPERATIONS.values():
        for step in range(1, STEPS_MAX):
            slept, _ = night.spend(operation, step)
            if slept and night.wrong():
                return
            if not slept:
                break
            night.clean()
    pytest.fail("no step of it does any harm")
