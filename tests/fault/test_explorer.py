"""The explorer: equal seeds give equal runs, `race` holds, known-bad variants do not."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kit.mutants.race import MUTANTS, in_force
from kit.parts import is_fair

from limpet.__main__ import main
from limpet.fault.explore.explorer import Exploration, cluster_of, explore, numbered_run
from limpet.fault.explore.schedule import (
    CRASH,
    STALL,
    SWITCH,
    Action,
    Point,
    Replay,
    parse_schedule,
    schedule_text,
)
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_latency import PRESETS, LatencyModel
from limpet.fault.explore.sim_pools import CachedPool
from limpet.fault.explore.sim_program import (
    KEYLESS,
    KINDS,
    OF_CACHES,
    OF_NAMES,
    draw_program,
    parse_program,
    program_text,
)
from limpet.fault.explore.sim_run import Run, replay
from limpet.fault.explore.sim_shrink import kind_of, shrink
from limpet.fault.explore.sim_time import Workload, World, key_of, peopled, run_timed
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD, flush_features
from limpet.shm.endpoint.layout import PRESSURE
from limpet.shm.endpoint.simulated import CachedEndpoint
from limpet.shm.errors import ParameterError, StoreFull

pytestmark = pytest.mark.either_build(
    "the same lines on either build",
    but=["test_race_holds[pct]"],
)

COMPILED = BUILD == "compiled"
RUNS = 400 if COMPILED else 60
RUNS_OF_MUTANT = 30_000
needs_flushes = pytest.mark.skipif(
    not COMPILED or "clflushopt" not in flush_features(),
    reason="this build or CPU refuses memory without coherence",
)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = set(SHM_DIR.glob("limpet.limpet-*"))
    yield
    assert not {
        path
        for path in set(SHM_DIR.glob("limpet.limpet-*")) - before
        if f"-{os.getpid()}-" in path.name
    }


# ---- programs and schedules as text --------------------------------------------------------------

numbers = st.integers(0, 99)
points = st.builds(Point, numbers, numbers, numbers)
actions = st.builds(Action, st.sampled_from([SWITCH, CRASH, STALL, "w", "/"]), numbers)
schedules = st.dictionaries(points, st.lists(actions, min_size=1).map(tuple))


@given(schedules)
def test_schedules_survive_as_text(schedule: dict[Point, tuple[Action, ...]]) -> None:
    assert parse_schedule(schedule_text(schedule)) == schedule


@given(st.integers(), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_programs_survive_as_text(seed: int, clients: int, ops: int, recover: bool) -> None:
    program = draw_program(random.Random(seed), clients, ops, recover)
    assert parse_program(program_text(program)) == program
    assert [len(calls) for calls in program] == [ops] * clients


@pytest.mark.parametrize("text", ["x", "1.2>3", "1.2.3?4", "1.2.3>", "1.2.3>4,"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="is no departure"):
        parse_schedule(text)


@pytest.mark.parametrize("text", ["ux", "q", "u", "ra", "uaa"])
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="is no operation"):
        parse_program(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"strategy": "best"}, {"clients": 0}, {"ops": 0}, {"schedules": 0}, {"bound": 9},
        {"program": "ua|ga"}, {"processes": 0}, {"add_nodes": True, "store": "cache"},
        {"add_nodes": True, "names": True},
    ],
)  # fmt: skip
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        Exploration(**wrong)  # type: ignore[arg-type]


# ---- determinism ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stage() -> Iterator[SimulatedCluster]:
    with SimulatedCluster("race", 3) as made:
        yield made


@pytest.mark.parametrize("strategy", ["random", "pct"])
def test_every_schedule_replays_exactly(stage: SimulatedCluster, strategy: str) -> None:
    """Twice by number, on this stage and on another, and once from its departures."""
    parameters = Exploration(strategy=strategy, seed=3, crashes=2, stalls=2)
    with SimulatedCluster("race", 3) as other:
        for number in range(RUNS // 6):
            first = numbered_run(stage, parameters, number)
            again = numbered_run(other, parameters, number)
            from_text = replay(
                stage,
                parse_program(program_text(first.program)),
                parse_schedule(schedule_text(first.schedule)),
            )
            assert first.digest() == again.digest() == from_text.digest(), number
            assert first.failure == again.failure == from_text.failure == ""


def test_runs_are_the_same_in_another_process(stage: SimulatedCluster) -> None:
    code = (
        "from limpet.fault.explore.explorer import *\n"
        "p = Exploration(seed=5)\n"
        "with cluster_of(p) as s: print(*(numbered_run(s, p, n).digest() for n in range(20)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(p for p in sys.path if p)},
    )  # fmt: skip
    parameters = Exploration(seed=5)
    ours = [numbered_run(stage, parameters, n).digest() for n in range(20)]
    assert done.stdout.split() == ours
    assert len(set(ours)) == 20


def test_seeds_differ(stage: SimulatedCluster) -> None:
    one, two = (numbered_run(stage, Exploration(seed=s), 0) for s in (1, 2))
    assert one.digest() != two.digest()


def test_reports_do_not_depend_on_the_number_of_processes() -> None:
    reports = [explore(Exploration(schedules=60, seed=2, processes=n)) for n in (1, 2)]
    assert reports[0].steps == reports[1].steps > 60
    assert reports[0].crashes == reports[1].crashes > 0


# ---- race holds ----------------------------------------------------------------------------------


@pytest.mark.exhaustive("both strategies", quick=["pct"])
@pytest.mark.parametrize("strategy", ["random", "pct"])
def test_race_holds(strategy: str) -> None:
    report = explore(Exploration(schedules=RUNS, seed=11, strategy=strategy, crashes=2, stalls=1))
    assert report.failures == ()
    assert report.ok
    assert report.schedules == RUNS
    assert is_fair(report.crashes, report.schedules)
    assert is_fair(report.stalls, report.schedules)


def test_race_holds_where_memory_is_plentiful() -> None:
    assert explore(Exploration(schedules=RUNS, seed=15, value_size=40, crashes=2)).ok


def test_race_holds_where_nobody_may_be_fenced() -> None:
    assert explore(Exploration(schedules=RUNS // 2, seed=12, fence="wait", stalls=2)).ok


def test_race_holds_with_more_clients_and_longer_programs() -> None:
    assert explore(Exploration(schedules=RUNS // 6, seed=13, clients=5, ops=6, crashes=3)).ok


@pytest.mark.either_build("schedules of the same lines")
@pytest.mark.exhaustive("every schedule")
@pytest.mark.soak("thousands of schedules", cases=["da*", "ic|ic*"])
@pytest.mark.parametrize(("program", "crashes"), [("ic|ic", 0), ("ic|dc", 0), ("da|ua", 1)])
def test_race_holds_under_every_schedule_with_one_preemption(program: str, crashes: int) -> None:
    report = explore(
        Exploration(
            clients=2, program=program, strategy="exhaustive", bound=1, schedules=100_000,
            crashes=crashes if COMPILED else 0,
        )
    )  # fmt: skip
    assert report.failures == ()
    least = 50 if COMPILED and crashes else 10  # without a crash there are fewer orders to try
    assert least < report.schedules < 100_000, "it must come to its own end"


@pytest.mark.exhaustive("hundreds of runs")
def test_race_holds_where_clients_take_memory_from_each_other() -> None:
    parameters = Exploration(seed=16, ops=3, scarce=True, crashes=2)
    taken = 0
    with cluster_of(parameters) as stage:
        for number in range(RUNS):
            run = numbered_run(stage, parameters, number)
            assert run.failure == "", number
            taken += stage.setup_client.endpoint.load(PRESSURE) > 0
    assert taken > RUNS // 20


@needs_flushes
def test_race_holds_without_hardware_coherence() -> None:
    assert explore(Exploration(schedules=RUNS, seed=14, coherent=False)).ok


def test_the_dead_touch_nothing_while_they_unwind(stage: SimulatedCluster) -> None:
    """Memory between the last step and the unwinding, and after it."""

    class Watched(Run):
        def _unwind(self) -> None:
            before = stage.setup_client.image()
            assert [p for p in self.clients if p.dead and p.greenlet]
            super()._unwind()
            assert stage.setup_client.image() == before

    for step in range(1, 40):
        schedule = parse_schedule(f"0.0.{step}x0")
        run = Watched(stage, parse_program("ua||"), Replay(schedule))
        run.go()
        assert run.failure == ""
        if not any(p.dead for p in run.clients):
            break


def test_a_stalled_client_is_woken_and_goes_on(stage: SimulatedCluster) -> None:
    run = replay(stage, parse_program("ua|ga ga|"), parse_schedule("0.0.5s0,1.0.3w0"))
    assert run.failure == ""
    assert all(record.return_ns is not None for record in run.history)


# ---- known-bad variants --------------------------------------------------------------------------


@pytest.mark.skipif(not COMPILED, reason="the variants are caught by many runs")
@pytest.mark.parametrize("name", ["kick-unchecked", "recovery-frees-linked"])
def test_command_of_a_failure_repeats_it(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with in_force(mutant):
        report = explore(mutant.parameters(RUNS_OF_MUTANT))
        assert report.failures, f"{report.schedules} runs did not show it"
        failure = report.failures[0]
        assert kind_of(failure.what) in mutant.says, failure.what
        command = shlex.split(failure.command)
        assert command[0] == "limpet"
        result = CliRunner().invoke(main, [*command[1:], "--json"])
        assert result.exit_code == 1
        repeated = json.loads(result.output)
        assert repeated["digest"] == failure.digest
        assert repeated["failure"] == failure.what
    held = CliRunner().invoke(main, command[1:])
    assert held.exit_code == 0, "the store itself fails as the mutant does"
    assert "everything held" in held.output


def test_failures_are_shrunk(stage: SimulatedCluster) -> None:
    """As far as the run that was found first allows: no step of what is left can be left out."""
    mutant = next(m for m in MUTANTS if m.name == "update-by-store")
    calls, actions = [], []
    for seed in range(1, 4):
        parameters = Exploration(seed=seed, ops=4, crashes=2)
        with in_force(mutant), SimulatedCluster("race", 3) as bad:
            run = next(r for n in range(2000) if (r := numbered_run(bad, parameters, n)).failure)
            small = shrink(bad, run.program, run.schedule, run.failure)
        assert kind_of(small.failure) == kind_of(run.failure)
        assert sum(map(len, small.program)) < sum(map(len, run.program))
        assert 2 * len(small.schedule) <= len(run.schedule)
        calls.append(sum(map(len, small.program)))
        actions.append(sum(map(len, small.schedule.values())))
    assert min(calls) <= 3
    assert min(actions) <= 3


@needs_flushes
@pytest.mark.parametrize("verb", ["write_back", "invalidate"])
def test_trap_g4_missing_flush_is_caught(verb: str) -> None:
    def nothing(self: CachedEndpoint, addr: int, size: int) -> int:
        return 0

    class Forgetful(CachedPool):
        endpoint_class = type("Forgetful", (CachedEndpoint,), {verb: nothing})

    parameters = Exploration(coherent=False, seed=1)
    with SimulatedCluster("race", 3, coherent=False, pool_class=Forgetful) as bad:
        found = [numbered_run(bad, parameters, n).failure for n in range(50)]
    assert any(kind_of(failure) in ("history", "check") for failure in found)


def test_a_client_that_raises_is_a_failure(
    stage: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run: Run, *_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(Run, "_call", refuse)
    run = replay(stage, parse_program("ua||"), {})
    assert run.failure.startswith("client 0: ")
    assert "ValueError: no" in run.failure


# ---- the command ---------------------------------------------------------------------------------


def test_command_explores_and_says_that_everything_held() -> None:
    result = CliRunner().invoke(
        main, ["drill", "explore", "race", "--schedules", "40", "--seed", "9", "--processes", "1"]
    )
    assert result.exit_code == 0, result.output
    assert "seed 9" in result.output


def test_command_reports_as_json() -> None:
    result = CliRunner().invoke(
        main, ["drill", "explore", "--schedules", "20", "--processes", "1", "--json"]
    )
    report = json.loads(result.stdout)
    assert report["schedules"] == 20
    assert report["parameters"]["seed"] >= 0
    assert report["failures"] == []


def without_greenlet(code: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.modules['greenlet'] = None; {code}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )  # fmt: skip


def test_command_line_works_without_greenlet() -> None:
    done = without_greenlet("from limpet.__main__ import main; main(['drill', 'explore'])")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: simulated clients need the package greenlet")


def test_tests_say_what_they_need_without_greenlet() -> None:
    tests = Path(__file__).parent.parent
    modules = [
        str(tests / name)
        for name in (
            "stores/test_swarm_rounds.py",
            "stores/test_ticket_lock.py",
            "fault/test_explorer.py",
        )
    ]
    done = without_greenlet(
        "import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--collect-only', "
        f"*{modules!r}]))"
    )
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    needed = "simulated clients need the package greenlet: pip install 'limpet[simulate]'"
    assert done.stdout.count(f"E   ModuleNotFoundError: {needed}") == len(modules)


def test_command_prints_every_step_of_a_schedule() -> None:
    arguments = ["--program", "ua|ga", "--schedule", "0.0.9>1", "--trace"]
    result = CliRunner().invoke(main, ["drill", "explore", *arguments])
    assert result.exit_code == 0, result.output
    assert "client 0: pin := " in result.output
    assert "everything held" in result.output


@pytest.mark.parametrize(
    "arguments", [["--schedule", "0.0.1>1"], ["--program", "zz"], ["no-such-store"]]
)
def test_command_refuses_what_makes_no_sense(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["drill", "explore", "--processes", "1", *arguments])
    assert result.exit_code == 2, result.output


# ---- virtual time --------------------------------------------------------------------------------

SMALL = Workload(clients=8 if COMPILED else 3, ops=40 if COMPILED else 10, keys=50)


def test_virtual_time_is_repeatable() -> None:
    one, two = (run_timed(SMALL, PRESETS["rdma"]) for _ in range(2))
    assert one == two
    assert run_timed(dataclasses.replace(SMALL, seed=1), PRESETS["rdma"]) != one


@pytest.mark.parametrize("preset", PRESETS)
def test_one_client_waits_for_its_round_trips_and_nothing_else(preset: str) -> None:
    model = PRESETS[preset]
    report = run_timed(dataclasses.replace(SMALL, clients=1, write_share=0.0, warm_up=200), model)
    (get,) = report.kinds
    assert (get.kind, get.round_trips_max) == ("get", 2)
    assert get.round_trips == 2
    wire = 2 * 2 * model.one_way_ns
    assert wire < get.p50_ns < wire * 1.5
    assert report.throughput == pytest.approx(1e9 * SMALL.ops / report.virtual_ns)


def test_latencies_scale_with_the_model() -> None:
    slow = LatencyModel("slow", 10_000, 0, 0, 0, 0, 0, 0)
    report = run_timed(dataclasses.replace(SMALL, clients=1), slow)
    found = {kind.kind: kind for kind in report.kinds}
    assert found["get"].p50_ns == pytest.approx(2 * 20_000)
    assert found["update"].p50_ns == pytest.approx(3 * 20_000)


def test_clients_queue_at_a_node_that_is_slow_to_serve() -> None:
    busy = LatencyModel("busy", 100, 5_000, 0, 0, 0, 0, 0)
    reads = dataclasses.replace(SMALL, write_share=0.0)
    alone = run_timed(dataclasses.replace(reads, clients=1), busy).kinds[0]
    crowd = run_timed(reads, busy).kinds[0]
    assert crowd.p50_ns > alone.p50_ns * SMALL.clients / 2


def test_contended_words_cost_time() -> None:
    free = LatencyModel("free", 1_000, 10, 0, 0, 10, 0, 100)
    dear = dataclasses.replace(free, contended_ns=20_000.0)
    hot = dataclasses.replace(SMALL, keys=1, write_share=1.0)
    cheap, costly = (run_timed(hot, model) for model in (free, dear))
    assert costly.throughput < cheap.throughput / 2


@pytest.mark.exhaustive("hundreds of clients")
@pytest.mark.skipif(not COMPILED, reason="a pure build takes minutes for this")
def test_hundreds_of_clients_run() -> None:
    report = run_timed(Workload(clients=160, ops=4, nodes=3), PRESETS["rdma"])
    assert sum(kind.count for kind in report.kinds) == 160 * 4
    assert report.throughput > 5 * run_timed(SMALL, PRESETS["rdma"]).throughput / SMALL.clients


@pytest.mark.parametrize("error", [StoreFull("no room"), KeyboardInterrupt()])
def test_a_run_that_fails_in_the_midst_of_operations_says_why(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Clients that wait for their turn are inside a verb, so their handles cannot be closed."""
    turn = World.turn

    def failing(self: World, *args: Any) -> int:
        if self.verbs == 500:
            monkeypatch.undo()
            raise error
        return turn(self, *args)

    monkeypatch.setattr(World, "turn", failing)
    with pytest.raises(type(error)) as raised:
        run_timed(SMALL, PRESETS["rdma"])
    assert raised.value is error
    assert f"limpet-time-{os.getpid()}-" not in Path("/proc/self/maps").read_text()


class Noted:
    """A store, and its calls with their keys: inserts when they are over, others as they begin."""

    def __init__(self, store: Any, calls: list[tuple[str, bytes]]) -> None:
        self._store = store
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(key: bytes, *more: Any, **named: Any) -> Any:
            if name == "insert":
                self._store.insert(key, *more)
                self._calls.append((name, key))
                return None
            self._calls.append((name, key))
            found = getattr(self._store, name)(key, *more, **named)
            assert name != "get" or found is not None
            return found

        return call


def calls_of(workload: Workload) -> list[tuple[str, bytes]]:
    calls: list[tuple[str, bytes]] = []
    world = World(workload, PRESETS["rdma"])
    with peopled(world):
        for client in world.clients:
            client.store = Noted(client.store, calls)
        world.run()
    return calls


def test_gets_of_the_latest_go_by_what_was_inserted_by_anyone() -> None:
    latest = dataclasses.replace(SMALL, ops=40, fresh=True, latest=True, theta=10.0, warm_up=0)
    last = key_of(latest, latest.keys - 1)
    gets = hits = 0
    calls = calls_of(latest)
    for name, key in calls:
        if name == "insert":
            last = key
        else:
            gets += 1
            hits += key == last
    assert 0.3 * len(calls) < gets < 0.7 * len(calls)
    assert hits > 0.95 * gets
    uniform = calls_of(dataclasses.replace(latest, theta=0.0))
    assert len({key for name, key in uniform if name == "get"}) > latest.keys / 3


def test_scans_have_any_length_up_to_the_largest() -> None:
    scans = Workload("sherman", 1, 60, 200, warm_up=0, theta=0.0, write_share=0.0, scan_max=50)
    assert {name for name, _ in calls_of(scans)} == {"scan"}
    (scan,) = run_timed(scans, PRESETS["rdma"]).kinds
    (short,) = run_timed(dataclasses.replace(scans, scan_max=1), PRESETS["rdma"]).kinds
    assert (scan.kind, scan.count) == ("scan", 60)
    assert short.bytes_read < scan.bytes_read < 50 * short.bytes_read


def test_a_client_meets_as_many_keys_first_as_it_is_told() -> None:
    calls = calls_of(
        Workload(clients=2, ops=1, keys=40, warm_up=1, met_share=0.25, write_share=0.0)
    )
    assert len(calls) == 2 * (10 + 1 + 1)
    assert calls[:10] == [("get", key_of(SMALL, 4 * number)) for number in range(10)]


def test_throughput_with_all_at_work_leaves_out_who_is_late() -> None:
    one = run_timed(dataclasses.replace(SMALL, clients=1), PRESETS["rdma"])
    assert one.busy_throughput == pytest.approx(one.throughput)
    hot = dataclasses.replace(SMALL, keys=1, write_share=1.0)
    found = run_timed(hot, PRESETS["rdma"])
    assert found.busy_throughput > found.throughput


def test_command_shows_latencies() -> None:
    result = CliRunner().invoke(main, ["drill", "latency", "--clients", "2", "--ops", "10"])
    assert result.exit_code == 0, result.output
    assert "update" in result.output


@pytest.mark.parametrize("kind", sorted(set(KINDS.values()) - {"transact"} - OF_CACHES - OF_NAMES))
def test_every_operation_can_be_in_a_program(stage: SimulatedCluster, kind: str) -> None:
    letter = {name: letter for letter, name in KINDS.items()}[kind]
    text = letter if kind in KEYLESS else letter + ("uaga" if kind == "window" else "a")
    assert replay(stage, parse_program(f"{text}|{text}|ga"), {}).failure == ""
