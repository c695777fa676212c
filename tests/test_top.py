"""`limpet top`, `limpet metrics`, and the figures behind both; the state of channels."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit.processes import exit_code, fork, gather
from kit.waiting import long_enough
from rich.console import Console

import limpet
from limpet.__main__ import main
from limpet.cli.top import reports, screen
from limpet.shm.endpoint.slots import ROWS_COUNT
from limpet.stores.channels.states import state_of
from limpet.stores.figures import SCHEMA, Figures, rates

WAIT_S = 60


def work(store: Any) -> None:
    """150 operations, 50 of which are changes; of the gets 40 find nothing."""
    for number in range(50):
        store.put(b"%d" % number, b"value")
    for number in range(60):
        store.get(b"%d" % (number % 50))
    for _ in range(40):
        store.get(b"none")


def until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return value


# ---- figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["race", "swarm", "fusee", "rtx-sherman", "rcuckoo", "loco"])
def test_every_operation_of_a_store_is_counted(pools: Any, kind: str) -> None:
    pool = pools(nodes=3, node_size="8MiB")
    store, figures = pool.store(kind, name="s", capacity=200), Figures(limpet.open(pool.url))
    with figures.pool:
        before = figures.look()
        work(store)
        store.put_many([(b"%d" % number, b"other") for number in range(30)])
        store.get_many([b"1", b"2", b"none"])
        pool.exclusively(lambda: None)
        report = rates(before, figures.look())
        (row,) = report["stores"]
        assert row["operations"] == 150 + 30 + 3
        assert report["total"]["operations"] == 183
        assert row["hit_ratio"] == pytest.approx(62 / 103)
        seconds = report["seconds"]
        assert row["changes_per_s"] * seconds == pytest.approx(80)
        (client,) = [one for one in report["clients"] if not one["ours"]]
        assert client["pid"] == os.getpid()
        assert client["operations_per_s"] * seconds == pytest.approx(183)
        assert client["bytes_written_per_s"] * seconds >= 80 * len(b"value")


@pytest.mark.parametrize("kind", ["race", "fusee"])
def test_a_view_is_a_hit_or_a_miss(pools: Any, kind: str) -> None:
    pool = pools(nodes=2, node_size="8MiB")
    store, figures = pool.store(kind, name="s", capacity=200), Figures(pool)
    store.put(b"k", b"value")
    before = figures.look()
    for key in (b"k", b"k", b"k", b"none"):
        with store.view(key):
            pass
    pool.exclusively(lambda: None)
    (row,) = rates(before, figures.look())["stores"]
    assert row["hit_ratio"] == pytest.approx(3 / 4)


def test_counts_of_a_killed_client_stay_and_the_next_one_of_its_slot_goes_on(pools: Any) -> None:
    pool = pools()
    pool.store("race", name="s", capacity=100)
    figures = Figures(pool)

    def doomed() -> None:
        with limpet.open(pool.url) as own:
            work(own.store("race", name="s"))
            own.exclusively(lambda: None)
            os.kill(os.getpid(), signal.SIGKILL)

    for round_number in (1, 2, 3):
        assert exit_code(fork(doomed)) == -signal.SIGKILL
        pool.recover()
        assert figures.look()["stores"][0]["operations"] == 150 * round_number
    slots = [slot for slot in figures.look()["slots"] if slot["operations"]]
    assert len(slots) == 1


def test_a_forked_child_counts_in_its_own_slot(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", name="s", capacity=100)
    store.put(b"k", b"v")

    def child() -> dict[str, Any]:
        mine = store.endpoint.counters()
        store.get(b"k")
        store.get(b"k")
        assert store.endpoint.counters()["bytes_read"] >= mine["bytes_read"]
        pool.exclusively(lambda: None)
        return {slot["slot"]: slot["operations"] for slot in Figures(pool).look()["slots"]}

    (seen,) = gather(child)
    assert sorted(seen.values()) == [1, 2]
    assert pool.exclusively(lambda: store.stats()["ops"]) == 1


def test_counters_of_a_handle_begin_at_0_and_go_on_when_it_joins_again(pools: Any) -> None:
    pool = pools()
    work(pool.store("race", name="s", capacity=100))
    before = pool.endpoint.counters()
    assert before["writes"] > 0
    pool.client.assume(pool.client.ident, pool.client.slot, pool.client.word)
    assert pool.endpoint.counters() == before
    pool.close()
    again = pools.keep(limpet.open(pool.url))
    assert again.endpoint.counters()["writes"] == 0  # in the slot that the first one had
    again.endpoint.reset_counters()
    assert set(again.endpoint.counters("control").values()) == {0}


def test_more_stores_than_rows_share_them_and_say_so(pools: Any) -> None:
    pool = pools(node_size="8MiB")
    for number in range(ROWS_COUNT + 1):
        pool.store("race", name=f"s{number}", capacity=10)
    pool.store("race", name="s0").put(b"k", b"v")
    pool.exclusively(lambda: None)
    rows = {row["name"]: row for row in Figures(pool).look()["stores"]}
    last = f"s{ROWS_COUNT}"
    assert rows["s0"]["shared_with"] == [last]
    assert rows[last]["operations"] == rows["s0"]["operations"] == 1
    assert rows["s1"]["shared_with"] == []
    assert rows["s1"]["operations"] == 0


def test_a_cache_shows_its_own_hit_ratio_and_a_lost_part_is_left_out(pools: Any) -> None:
    pool = pools(nodes=2, node_size="4MiB")
    cache = pool.cache("c", codec="json")
    figures = Figures(pool)
    before = figures.look()
    cache["k"] = 1
    assert cache.get("k") == 1
    assert cache.get("none") is None
    (row,) = rates(before, figures.look())["stores"]
    assert row["cache"]["hits"] == 1
    assert row["hit_ratio"] == 0.5
    pool.fail_node(1)
    report = rates(figures.look(), figures.look())
    assert [node["state"] for node in report["nodes"]] == ["in service", "failed"]
    assert report["nodes"][1]["fill"] is None


def test_a_remote_client_has_no_figures_of_its_pin(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools(multi_host=True)
    remote = []
    for name in ("net7-0123456789abcdef", "net1234567-0123456789abcdef", "network-1", "net1", ""):
        monkeypatch.setenv("LIMPET_HOST", name)
        with limpet.open(pool.url) as named:
            figures = Figures(named)
            before = figures.look()
            figures.sample()
            rows = rates(before, figures.look())["clients"]
            (row,) = [row for row in rows if row["ours"]]
            remote.append(row["remote"])
            assert (row["busy"] is None) == row["remote"]
            assert (row["operations_per_s"], row["changes_per_s"]) == (0, 0)
    assert remote == [True, True, False, False, False]


def test_samples_tell_the_time_in_operations_that_pin(pools: Any) -> None:
    pool = pools()
    figures = Figures(pool)
    watched = limpet.open(pool.url)
    with watched:
        for _ in range(20):
            figures.sample()
        with watched.client:
            for _ in range(60):
                figures.sample()
        for _ in range(20):
            figures.sample()
        (slot,) = [row["slot"] for row in pool.clients() if not row["ours"]]
        seen = figures.look()["pins"][slot]
    assert seen["busy"] == 0.6
    assert seen["pinned_us"] is None  # one operation: its end was not seen


# ---- the state of channels ----------------------------------------------------------------------


def states(pool: limpet.Pool) -> dict[str, dict[str, Any]]:
    return {one["name"]: one["state"] for one in pool.channels.list(state=True)}


def test_states_of_locks_name_holder_and_waiters(pools: Any) -> None:
    pool = pools()
    lock, permits, table = pool.lock("l"), pool.semaphore("s", 3), pool.rwlock("t")
    me = os.getpid()
    assert states(pool)["l"] == {"holder": None, "held": False, "waiters": [], "inherited": False}
    with lock, permits, table.read():
        other = fork(lambda: limpet.open(pool.url).lock("l").acquire())
        until(lambda: states(pool)["l"]["waiters"])
        found = states(pool)
        assert found["l"] == {"holder": me, "held": True, "waiters": [other], "inherited": False}
        assert found["s"] == {"taken": 1, "free": 2, "holders": {str(me): 1}, "waiting": 0}
        assert found["t"]["readers"] == {str(me): 1}
        assert found["t"]["writer"] is None
    exit_code(other)
    with table.write():
        assert states(pool)["t"]["writer"] == me
    assert states(pool)["t"] == {
        "writer": None, "readers": {}, "waiting_readers": 0, "waiting_writers": 0,
    }  # fmt: skip
    assert states(pool)["s"]["free"] == 3


def test_states_of_queues_have_length_and_consumers_and_change_nothing(pools: Any) -> None:
    pool = pools(node_size="8MiB")
    queue, jobs, deque = pool.queue("q"), pool.queue("j", acks=True), pool.deque("d")
    event, barrier = pool.event("e"), pool.barrier("b", 2)
    for number in range(5):
        queue.put(number)
        jobs.put(number)
        deque.append(number)
    assert queue.get() == 0
    job = jobs.get()
    event.set()
    before = pool.audit()
    with limpet.open(pool.url) as looker:
        found = states(looker)
        assert looker.queue("q").qsize() == found["q"]["length"]
        assert states(looker)["q"]["participants"] == [os.getpid(), os.getpid()]
    me = os.getpid()
    assert found["q"] == {
        "length": 4, "puts": 5, "gets": 1, "consumers_wait": False, "participants": [me],
    }  # fmt: skip
    assert found["j"]["ready"] == 4
    assert found["j"]["held"] == 1
    assert found["j"]["holders"] == {str(me): 1}
    assert found["j"]["puts"] == 5
    job.ack()
    assert states(pool)["j"]["holders"] == {}
    assert found["d"] == {"length": 5}
    assert found["e"] == {"set": True}
    assert found["b"] == {"waiting": 0, "broken": False}
    assert barrier.n_waiting == 0
    assert pool.audit()["leaked"] == before["leaked"] == 0
    pool.channels.remove("q")
    assert state_of(pool, "q", "queue", {}) == {}


def test_inspect_shows_the_state_of_channels(pools: Any) -> None:
    pool = pools()
    with pool.lock("l"):
        found = json.loads(CliRunner().invoke(main, ["inspect", pool.url, "--json"]).output)
    assert found["schema"] == SCHEMA
    assert found["channels"][0]["state"]["holder"] == os.getpid()


# ---- commands -----------------------------------------------------------------------------------


def test_top_reports_as_json_and_looks_into_one_store(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", name="s", capacity=100)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            work(store)

    thread = threading.Thread(target=busy)
    thread.start()

    def looked(seconds: float) -> dict[str, Any]:
        words = ["top", pool.url, "--once", "--json", f"--interval={seconds}", "--store", "s"]
        shown = CliRunner().invoke(main, words)
        assert shown.exit_code == 0, shown.output
        found: dict[str, Any] = json.loads(shown.output)
        return found

    try:
        found = long_enough(looked, lambda found: found["total"]["operations_per_s"], 0.3)
    finally:
        stop.set()
        thread.join()
    assert found["schema"] == SCHEMA
    assert found["total"]["operations_per_s"] > 0
    assert found["total"]["clients"] == 1
    assert [one["pid"] for one in found["store"]["clients"]] == [os.getpid()]
    assert found["store"]["growth"]["pairs"] == 50
    refused = CliRunner().invoke(main, ["top", pool.url, "--store", "other"])
    assert refused.exit_code == 2
    assert "it has s" in refused.output


def test_top_sorts_processes(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", name="s", capacity=100)
    with limpet.open(pool.url) as looker, limpet.open(pool.url) as idle:
        assert idle.client_id
        shown = reports(looker, 0.2, "operations")
        over = threading.Event()

        def go_on() -> None:
            while not over.is_set():
                work(store)

        worker = threading.Thread(target=go_on)
        worker.start()
        try:
            # on a busy machine it may do nothing between two looks
            looks = (next(shown)["clients"] for _ in range(100))
            rows = next(rows for rows in looks if rows[0]["operations_per_s"] > 0)
        finally:
            over.set()
            worker.join()
        assert [row["operations_per_s"] for row in rows[1:]] == [0, 0]


def test_a_killed_top_harms_nothing(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", name="s", capacity=100)
    words = [sys.executable, "-m", "limpet", "top", pool.url, "--json", "--interval", "0.05"]
    for _ in range(3):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["schema"] == SCHEMA
        work(store)
        process.kill()
        process.wait()
        process.stdout.close()
        work(store)
    pool.recover()
    assert [row["ours"] for row in pool.clients()] == [True]
    store.check()
    assert pool.audit()["leaked"] == 0


@pytest.mark.parametrize("command", [["top", "--json", "--interval", "0.05"], ["metrics"]])
def test_a_destroyed_pool_ends_the_command(pools: Any, command: list[str]) -> None:
    pool = pools()
    words = [sys.executable, "-m", "limpet", *command, pool.url]
    if command == ["metrics"]:
        pytest.importorskip("prometheus_client", reason="limpet[metrics]")
        words += ["--listen", "127.0.0.1:0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        begun = process.stderr if command == ["metrics"] else process.stdout
        assert begun.readline()
        limpet.destroy(pool.url)
        _, said = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1
    assert said.startswith(f"Error: PoolNotFound: {pool.url} was destroyed"), said
    assert said.count("\n") == 1


def test_a_dropped_store_ends_a_look_at_it(pools: Any) -> None:
    pool = pools()
    pool.store("race", name="s", capacity=100)
    with limpet.open(pool.url) as looker:
        shown = reports(looker, 0.05, name="s")
        out = Console(width=100, record=True, file=io.StringIO())
        out.print(screen(next(shown)))
        text = out.export_text()
        assert len(re.findall(r"^│ kind ", text, re.MULTILINE)) == 1
        assert re.search(r"^│ pairs ", text, re.MULTILINE)
        pool.drop("s")
        with pytest.raises(limpet.StoreDropped, match="'s' was dropped"):
            next(shown)


def test_screen_has_a_row_for_each_process_store_and_queue(pools: Any) -> None:
    pool = pools()
    work(pool.store("race", name="pages", capacity=100))
    queue = pool.queue("work", acks=True)
    queue.put(1)
    out = Console(width=100, record=True, file=io.StringIO())
    with limpet.open(pool.url) as looker:
        out.print(screen(next(reports(looker, 0.05))))
    text = out.export_text()
    for part in ("1 processes", str(os.getpid()), "pages", "work", "1 + 0 held", "in service"):
        assert part in text


# ---- metrics ------------------------------------------------------------------------------------


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """By name of a sample, the values by those of their labels, in the order of labels' names."""
    prometheus = pytest.importorskip("prometheus_client.parser", reason="limpet[metrics]")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in prometheus.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_metrics_are_those_of_all_processes_and_parse(pools: Any) -> None:
    pytest.importorskip("prometheus_client", reason="limpet[metrics]")
    pool = pools(nodes=2, node_size="4MiB")
    work(pool.store("race", name="s", capacity=100))
    cache, jobs = pool.cache("c", codec="json"), pool.queue("j", acks=True)
    cache["k"] = 1
    jobs.put(1)
    pool.exclusively(lambda: None)
    words = [sys.executable, "-m", "limpet", "metrics", pool.url, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        where = process.stderr.readline().split()[1]
        with pool.lock("l"), urllib.request.urlopen(where, timeout=WAIT_S) as answer:
            text = answer.read().decode()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
        process.stderr.close()
    assert process.returncode == 0
    found = parsed(text)
    assert found["limpet_store_operations_total"]["race", "s"] == 150
    assert found["limpet_store_changes_total"]["race", "s"] == 50
    assert found["limpet_store_misses_total"]["race", "s"] == 40
    assert found["limpet_clients"]["live",] == 1
    assert found["limpet_cache_sets_total"]["c",] == 1
    assert found["limpet_jobs"]["j", "ready"] == 1
    assert found["limpet_lock_held"]["l",] == 1
    assert found["limpet_node_in_service"] == {("0",): 1, ("1",): 1}
    assert found["limpet_bytes_written_total"][()] > 0


def test_meters_of_opentelemetry_are_the_metrics_of_prometheus(pools: Any) -> None:
    pytest.importorskip("prometheus_client", reason="limpet[metrics]")
    metrics = pytest.importorskip("opentelemetry.sdk.metrics", reason="limpet[otel]")
    from limpet.adapters.opentelemetry import observe

    pool, other = pools(nodes=2, node_size="4MiB"), pools()
    work(pool.store("race", name="s", capacity=100))
    other.cache("c", codec="json")["k"] = 1
    pool.exclusively(lambda: None)
    reader = metrics.export.InMemoryMetricReader()
    provider = metrics.MeterProvider([reader], shutdown_on_exit=False)
    observe(limpet.open(pool.url), other, meter_provider=provider)

    def collected() -> dict[str, dict[Any, float]]:
        data = reader.get_metrics_data()
        found: dict[str, dict[Any, float]] = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            counter = isinstance(metric.data, metrics.export.Sum)
            assert metric.description
            assert not counter or metric.data.is_monotonic
            for point in metric.data.data_points:
                labels = dict(point.attributes)
                at = labels.pop("pool"), *(value for _, value in sorted(labels.items()))
                found.setdefault(metric.name + "_total" * counter, {})[at] = point.value
        return found

    found = collected()
    text = CliRunner().invoke(main, ["metrics", pool.url, "--once"]).output
    for name in ("limpet_store_operations_total", "limpet_node_bytes", "limpet_cas_total"):
        there = parsed(text)[name]
        assert {at[1:]: v for at, v in found[name].items() if at[0] == pool.url} == there
    assert found["limpet_cache_sets_total"] == {(other.url, "c"): 1}
    pool.store("race", name="s").put(b"k", b"v")
    pool.exclusively(lambda: None)
    until(lambda: collected()["limpet_store_operations_total"][pool.url, "race", "s"] == 151)
    other.close()
    assert "limpet_cache_sets_total" not in collected()


def test_the_dashboard_asks_for_metrics_that_there_are(pools: Any) -> None:
    pytest.importorskip("prometheus_client", reason="limpet[metrics]")
    pool = pools()
    pool.cache("c")
    pool.queue("q")
    pool.lock("l")
    text = CliRunner().invoke(main, ["metrics", pool.url, "--once"]).output
    there = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    dashboard = Path(__file__).parent.parent / "examples" / "grafana.json"
    panels = json.loads(dashboard.read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"limpet_\w+", target["expr"])
    }
    assert len(panels) >= 6
    assert asked <= there
    refused = CliRunner().invoke(main, ["metrics", pool.url, "--listen", "nowhere"])
    assert refused.exit_code == 2


def test_metrics_says_what_it_needs(pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pools()
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    lacking = CliRunner().invoke(main, ["metrics", pool.url])
    assert lacking.exit_code == 1
    assert "pip install 'limpet[metrics]'" in lacking.output
