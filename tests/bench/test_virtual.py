"""`limpet bench virtual`: the simulator of the drills, run with YCSB's mixes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.fault.explore.sim_latency import PRESETS, LatencyModel
from limpet.fault.explore.sim_testbeds import TESTBEDS
from limpet.fault.explore.sim_time import (
    KindResult,
    TimedClient,
    Workload,
    World,
    peopled,
    run_timed,
)
from limpet.stores.registry import KINDS, UNPROVED, UNRECOVERED

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

SMALL = ["--clients", "1,3", "--ops", "8", "--keys", "20"]


def figures(*arguments: str) -> Any:
    done = CliRunner().invoke(main, ["bench", "virtual", *SMALL, *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_equal_arguments_give_equal_figures() -> None:
    found = figures("--mix", "A,C")
    assert found == figures("--mix", "A,C")
    assert [(cell["mix"], cell["clients"]) for cell in found] == [
        ("A", 1), ("A", 3), ("C", 1), ("C", 3),
    ]  # fmt: skip
    assert found != figures("--mix", "A,C", "--seed", "1")


def test_figures_are_those_of_the_mix_and_of_the_drill() -> None:
    (cell,) = (cell for cell in figures("--mix", "C") if cell["clients"] == 3)
    (get,) = cell["report"]["kinds"]
    assert (get["kind"], get["count"], get["round_trips"]) == ("get", 3 * 8, 2)
    drill = ["--clients", "3", "--ops", "8", "--keys", "20", "--write-share", "0", "--json"]
    latency = CliRunner().invoke(main, ["drill", "latency", "race", *drill])
    assert json.loads(latency.stdout)["kinds"] == [get]


def test_parameters_reach_the_store() -> None:
    given = ("--parameter", "race.capacity=999", "--parameter", "limit=9000")
    found = figures("--mix", "C", "--store", "race,rtx-race", *given)
    assert [cell["report"]["workload"]["parameters"] for cell in found[::2]] == [
        {"capacity": 999, "limit": 9000}, {"limit": 9000},
    ]  # fmt: skip
    failed = CliRunner().invoke(main, ["bench", "virtual", *SMALL, "--parameter", "hat=1"])
    assert failed.exit_code == 2
    assert "hat" in failed.output


WRONG: list[list[str]] = [
    ["--mix", "Q"], ["--clients", "x"], ["--store", "nonesuch"], ["--model", "hat=1"],
    ["--model", "verb_ns=x"], ["--parameter", "loco.locks=4"],
    ["--store", "swarm", "--clients", "65"],
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_makes_no_sense_is_refused(wrong: list[str]) -> None:
    assert CliRunner().invoke(main, ["bench", "virtual", *SMALL, *wrong]).exit_code == 2


# ---- the clock -----------------------------------------------------------------------------------

RDMA = PRESETS["rdma"]
FREE = LatencyModel("free", 1_000, 0, 0, 0, 0, 0, 0)
FIGURE_5 = {
    "raw": (1.84, 1.86), "swarm": (2.05, 2.73), "dm-abd": (3.87, 4.76), "fusee": (1.88, 8.17),
}  # fmt: skip
"""Medians of gets and updates, in us. The paper's: 1.9 and 1.6; 2.4 and 3.1; 4.3 and 4.9; 2.9 and
8.5."""


def times(workload: Workload, model: LatencyModel = RDMA) -> dict[str, KindResult]:
    report = run_timed(workload, model)
    assert report == run_timed(workload, model)
    return {kind.kind: kind for kind in report.kinds}


@pytest.mark.parametrize("store", FIGURE_5)
def test_medians_are_those_of_figure_5_of_swarm(store: str) -> None:
    report = run_timed(Workload(store, 4, 200, 300, write_share=0.05, nodes=4), RDMA)
    found = {kind.kind: kind for kind in report.kinds}
    medians = (found["get"].p50_ns / 1000, found["update"].p50_ns / 1000)
    assert medians == pytest.approx(FIGURE_5[store], rel=0.01)


@pytest.mark.parametrize("store", sorted({*KINDS, *UNRECOVERED, *UNPROVED}))
def test_every_kind_runs_on_its_testbed_and_is_repeatable(store: str) -> None:
    workload = Workload(store, 3, 6, 20)
    report = run_timed(workload, RDMA)
    assert report == run_timed(workload, RDMA)
    assert sum(kind.count for kind in report.kinds) == 18
    assert report.workload.nodes == (TESTBEDS[store].nodes if store in TESTBEDS else 1)


NOT_IN_PHASES = {"swarm", "dm-abd", "loco"}


@pytest.mark.parametrize("store", sorted({*KINDS, *UNRECOVERED, *UNPROVED} - NOT_IN_PHASES))
def test_clients_that_meet_wait_for_their_round_trips_only(store: str) -> None:
    """Also those that have lost a race: what they have to free, they free without a look."""
    report = run_timed(Workload(store, 8, 6, 2), RDMA)
    for kind in report.kinds:
        assert kind.exchanges == pytest.approx(kind.round_trips)


def test_many_clients_have_no_deeper_stack_of_python() -> None:
    """Of a kind that is not compiled: their calls together are deeper than Python's limit."""
    report = run_timed(Workload("pdpm", 256, 1, 4, warm_up=0), RDMA)
    assert sum(kind.count for kind in report.kinds) == 256


def test_more_clients_read_a_kind_than_may_write_to_it() -> None:
    report = run_timed(Workload("swarm", 66, 1, 4, write_share=0.0, warm_up=0), RDMA)
    assert [kind.count for kind in report.kinds] == [66]


def test_a_series_of_verbs_to_a_node_is_charged_once() -> None:
    model = dataclasses.replace(FREE, series_ns=100.0)
    for store, nodes, trips in (("race", 1, 2), ("swarm", 2, 1)):
        report = run_timed(Workload(store, 1, 20, 20, write_share=0.0), model)
        assert report.verbs > 20 * nodes * trips
        assert report.kinds[0].max_ns == pytest.approx(trips * (2_000 + 100 * nodes))


def test_blocks_and_caches_are_warm() -> None:
    """A cold client reads a part of the block table for its first write to a node."""
    warm = Workload("fusee", 1, 10, 30, write_share=1.0, theta=0.0)
    cold = dataclasses.replace(warm, warm_up=0)
    hot, first = times(warm)["update"], times(cold)["update"]
    assert hot.round_trips < 4.5 < first.round_trips
    assert hot.bytes_read * 3 < first.bytes_read


def test_a_client_that_met_the_keys_that_it_draws_is_as_warm_as_one_that_met_all() -> None:
    workload = Workload("fusee", 3, 10, 200, write_share=0.0, theta=0.5, warm_up=5)
    drawn = times(dataclasses.replace(workload, met_drawn=True))
    assert drawn == times(workload)
    assert drawn["get"].round_trips == 1


def test_deletes_are_of_keys_that_are_there() -> None:
    found = times(Workload("fusee", 3, 10, 20, write_share=1.0, warm_up=2, deletes=True))
    assert [(kind, one.count, one.round_trips) for kind, one in found.items()] == [
        ("delete", 30, 4.0)
    ]


def test_a_lost_node_leaves_all_its_reads_to_the_other() -> None:
    workload = Workload("fusee", 48, 8, 100, value_size=1000, write_share=0.0, met_drawn=True)
    before, after = (
        run_timed(dataclasses.replace(workload, lost=lost), RDMA).busy_throughput for lost in (0, 1)
    )
    assert before / 2 < after < 0.7 * before


def test_reads_wait_for_atomics_of_their_words() -> None:
    """Of a hot key, on which every read of the slot meets an update's CAS."""
    hot = Workload("race", 8, 20, 1)
    model = dataclasses.replace(RDMA, contended_ns=5_000.0)
    apart = dataclasses.replace(model, reads_wait=False)
    assert times(hot, model)["get"].mean_ns > 1.5 * times(hot, apart)["get"].mean_ns


def test_the_metadata_process_serves_one_request_after_another() -> None:
    """Clients of clover whose cached versions are old, and who ask it."""
    cold = Workload("clover", 4, 10, 100, write_share=0.0, theta=0.0, warm_up=0)
    slow = dataclasses.replace(FREE, metadata_ns=50_000.0)
    cheap, dear = (run_timed(cold, model).throughput for model in (FREE, slow))
    assert dear < 1.3e9 / 50_000 < cheap


class Sleepers(World):
    """Client 0 sleeps on a word; the last one wakes it, and the others too, late if at all."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.word = 0
        self.notes: list[tuple[int, int, float]] = []

    def _call(self, client: TimedClient, count: int, drawn: Any) -> Any:
        return "sleep", lambda: self.rest(client)

    def rest(self, client: TimedClient) -> None:
        start = client.now
        if client.number == len(self.clients) - 1:
            client.endpoint.pause(7)
            found = client.endpoint.futex_wake(self.word, 2)
        else:
            found = client.endpoint.futex_wait(self.word, 0, 1_000 if client.number else 100_000)
        self.notes.append((client.number, found, client.now - start))


def test_a_sleeping_client_goes_on_at_its_wake_or_after_its_time() -> None:
    """Two of the three sleepers are woken, in the order in which they went to sleep."""
    runs = []
    for _ in range(2):
        world = Sleepers(Workload("race", 4, 1, 1, warm_up=0), RDMA)
        with peopled(world):
            world.word = world.clients[0].pool.parameters.node_size - 8
            world.run()
        runs.append(world.notes)
    assert runs[0] == runs[1]
    found = {number: (woken, time) for number, woken, time in runs[0]}
    assert found[3] == (2, RDMA.pause_ns * 128)
    woken = [number for number in range(3) if found[number][0]]
    assert len(woken) == 2
    for number in woken:
        assert RDMA.pause_ns * 100 < found[number][1] < RDMA.pause_ns * 140
    (late,) = {0, 1, 2} - set(woken)
    assert found[late][1] == pytest.approx(1e6 if late else 1e8)


def test_waiting_clients_do_not_flood_a_node() -> None:
    """One key, whose ticket lock all want: the verbs of an update do not grow with the clients."""
    few, many = (
        run_timed(Workload("loco", clients, 6, 1, write_share=1.0), RDMA).verbs / clients
        for clients in (4, 24)
    )
    assert many < 3 * few


def test_warm_operations_of_remote_clients_take_no_longer() -> None:
    """They look at control words once in a quarter of a lease, and each look takes a round trip."""
    mapped, remote = (
        {
            kind.kind: kind
            for kind in run_timed(
                Workload("race", clients=2, ops=60, keys=50, remote=is_remote), PRESETS["rdma"]
            ).kinds
        }
        for is_remote in (False, True)
    )
    one_way_ns = PRESETS["rdma"].one_way_ns
    for kind in ("get", "update"):
        assert abs(remote[kind].p50_ns - mapped[kind].p50_ns) < one_way_ns / 4
        assert remote[kind].round_trips_p50 == mapped[kind].round_trips_p50
    assert remote["update"].max_ns > mapped["update"].max_ns + one_way_ns
