"""Phases under the explorer: an order that nobody ordered is found, and one on a node is none."""

from __future__ import annotations

import itertools
import mmap
from typing import Any

import pytest
from kit.known_bad import LateVerbs
from kit.mutants.fusee import RACE_IN_ONE_PHASE
from kit.mutants.uncompiled import store_in_force

from limpet.fault.explore.explorer import Exploration, explore
from limpet.fault.explore.schedule import IN_WAIT
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.simulated import WAIT, SimulatedEndpoint

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
RACE = (
    "stores/core/records",
    *(
        f"stores/race/{name}"
        for name in (
            "index",
            "glance",
            "batch",
            "slots",
            "batch_puts",
            "splitter",
            "check",
            "hash_store",
            "store",
        )
    ),
)


def test_object_and_link_may_be_of_one_phase_on_one_node() -> None:
    """On two nodes that is found: `object-and-proposals-in-one-phase` (kit/mutants/fusee.py)."""
    parameters = Exploration(
        store="race", program="ua|ua ga|ic gc", schedules=300 if COMPILED else 20, seed=1,
        crashes=1, stalls=1,
    )  # fmt: skip
    with store_in_force(RACE, ("race/store", "Race"), RACE_IN_ONE_PHASE):
        assert explore(parameters).failures == ()


def test_every_posted_verb_may_be_the_last_or_never_done() -> None:
    """Each step of an update in turn is late, and then its client dies at each of the next steps;
    those posted later on other nodes are done by then."""
    search = LateVerbs("fusee", "ua|ga", 3, {"replicas": 3}, 1 if COMPILED else 7)
    runs = list(search.runs())
    assert [run.failure for run in runs if run.failure] == []
    assert len(runs) > (30 if COMPILED else 0)


LOCK, OWNER = 8, 16


class Turns:
    """A turn: which posted verbs are late."""

    def __init__(self, late: tuple[bool, ...]) -> None:
        self.late = list(late)

    def __call__(self, endpoint: Any, verb: str, addr: int, words: int) -> int:
        if verb is WAIT or not endpoint.phase.posting or not self.late:
            return words
        return -IN_WAIT if self.late.pop(0) else words


@pytest.mark.parametrize("depends", [True, False])
def test_a_dependent_verb_that_is_done_although_the_cas_has_lost_is_found(depends: bool) -> None:
    """Two clients take a lock and note themselves in a phase, in every order of their phases."""
    agreed = set()
    for first, *late in itertools.product((0, 1), *[(False, True)] * 4):
        with mmap.mmap(-1, 4096) as memory:
            clients = [SimulatedEndpoint(), SimulatedEndpoint()]
            tickets = []
            for number in (first, 1 - first):
                client = clients[number]
                client.attach(0, memory, 4096)
                client.turn = Turns((late[2 * number], late[2 * number + 1]))
                won = client.post_cas(LOCK, 0, number + 1)
                if depends:
                    client.post_cas_if(won, 0, OWNER, 0, number + 1)
                else:
                    client.post_swap(OWNER, number + 1)
                tickets.append((client, won))
            for client, won in tickets:
                client.wait()
                client.result(won)
            agreed.add(clients[0].load(LOCK) == clients[0].load(OWNER))
            for client in clients:
                client.detach()
    assert agreed == ({True} if depends else {True, False})
