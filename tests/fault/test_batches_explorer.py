"""`put_many`, and windows of pipelines, in the explorer, beside single operations, and in steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from kit.mutants.batches import batches_with
from kit.mutants.race import Mutant, in_force, race_with
from kit.parts import is_fair, runs_of

import limpet
from limpet.fault.explore.explorer import Exploration, explore
from limpet.shm.backends.location import SHM_DIR
from limpet.stores.race.batch_puts import BatchPuts

pytestmark = pytest.mark.either_build(
    "the same lines on either build", but=["test_batches_hold[race-pa mabcd|pb mcad|gb gc-40]"]
)

RUNS = runs_of(200)
PROGRAMS = (
    "pa mabcd|pb mcad|gb gc",
    "pb mdc|pa mcd dc|ic da",
    "pa mcc mcd|mdc mcd|gc",
    "pa mab xabc|ga gb pb|xab ma",
)
"""The first put of a client has memory ready for its batch."""
VALUE = b"v" * 40


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not list(SHM_DIR.glob(f"limpet.limpet-*{os.getpid()}*"))


@pytest.mark.exhaustive("all programs", quick=["race-*-40"])
@pytest.mark.parametrize("value_size", [40, 3400])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", ["race", "rtx-race"])
def test_batches_hold(kind: str, program: str, value_size: int) -> None:
    """With values of 3400 bytes memory is scarce: most keys of a batch are put singly."""
    runs = RUNS if kind == "race" else RUNS // 4
    report = explore(
        Exploration(
            store=kind, program=program, value_size=value_size, schedules=runs, seed=5, crashes=2
        )
    )
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)


@pytest.mark.exhaustive("a kind", quick=["race"])
@pytest.mark.parametrize("kind", ["race"])
def test_batches_hold_over_power_cuts(kind: str) -> None:
    parameters = Exploration(
        store=kind, program=PROGRAMS[0], value_size=40, schedules=RUNS // 2, seed=6,
        durable=True,
    )  # fmt: skip
    assert explore(parameters).failures == ()


@pytest.mark.exhaustive("all kinds and programs", quick=["fusee-pa*"])
@pytest.mark.parametrize(
    ("kind", "program"),
    [
        *(("fusee", program) for program in PROGRAMS),
        ("fusee-cr", PROGRAMS[1]),
        ("fusee-nc", PROGRAMS[3]),
    ],
)
def test_batches_of_rounds_hold(kind: str, program: str) -> None:
    runs = RUNS // 2
    parameters = Exploration(
        store=kind, program=program, value_size=40, schedules=runs, seed=5, crashes=2,
    )  # fmt: skip
    report = explore(parameters)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)


@pytest.mark.exhaustive("all programs", quick=["pa *gc-False"])
@pytest.mark.parametrize(
    ("program", "replace"), [(program, bool(n & 1)) for n, program in enumerate(PROGRAMS)]
)
def test_batches_of_rounds_hold_when_nodes_are_lost(program: str, replace: bool) -> None:
    parameters = Exploration(
        store="fusee", program=program + " n" * replace, value_size=40, schedules=RUNS // 2, seed=6,
        node_failures=1, replace=replace,
    )  # fmt: skip
    assert explore(parameters).failures == ()


WINDOWS = ("pa wgaubpc ga|wpagbuc ga|dc ga", "wgaicpb wuadb|wubga pa|gb ga")


@pytest.mark.exhaustive("all kinds and programs", quick=["race-0-pa*", "swarm-1-pa*"])
@pytest.mark.parametrize("program", WINDOWS)
@pytest.mark.parametrize(
    ("kind", "failures"),
    [
        ("race", 0),
        ("rtx-race", 0),
        ("loco", 0),
        ("fusee", 0),
        ("fusee", 1),
        ("swarm", 0),
        ("swarm", 1),
        ("dm-abd", 0),
        ("dm-abd", 1),
    ],
)
def test_windows_of_pipelines_hold(kind: str, failures: int, program: str) -> None:
    """Gets and changes share their phases, and clients die or stall amid them."""
    parameters = Exploration(
        store=kind, program=program, value_size=40, schedules=RUNS // 2, seed=8, crashes=1,
        stalls=1, nodes=3 if kind in ("swarm", "dm-abd") else 2, node_failures=failures,
    )  # fmt: skip
    report = explore(parameters)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)


@pytest.mark.exhaustive("transactions")
def test_batches_hold_beside_transactions() -> None:
    parameters = Exploration(
        store="rtx-race", program="pa mabcd|pb mdcba|tgaxbs gc", value_size=40, schedules=RUNS // 2,
        seed=7,
    )  # fmt: skip
    assert explore(parameters).failures == ()


@pytest.mark.parametrize("lets_go", [False, True])
def test_a_batch_is_pinned_from_its_first_phase_to_its_last(lets_go: bool) -> None:
    """Between two phases another client replaces a key's object, and wants memory for many more.
    The batch has noted the old object; if that is used again, the batch frees another key's."""

    def find_all(self: Any, batch: Any, window: Any) -> int:
        BatchPuts.find_all(self, batch, window)
        if lets_go:
            self.client.unpin()
        beside(self.client)
        if lets_go:
            self.client.pin()
        return 0

    def beside(client: Any) -> None:
        if client is pool.client and not done:
            done.append(True)
            other.put(b"a", VALUE)
            for number in range(2000):
                other.put(b"more %d" % number, VALUE)

    done: list[bool] = []
    mutant = Mutant(
        "not-pinned-between-phases", (), race_with(batches_puts=batches_with(find_all=find_all))
    )
    url = f"shm://limpet-batch-{os.getpid()}"
    with in_force(mutant), limpet.create(url, node_size="4MiB", block_size="16KiB") as pool:
        try:
            store = pool.store("race", name="store")
            with limpet.open(url) as beside_it:
                other = beside_it.store("race", name="store")
                for key in (b"a", b"b"):
                    other.put(key, VALUE)
                store.put(b"c", VALUE)
                store.put_many([(b"a", VALUE), (b"b", VALUE)])
                assert done
                if lets_go:
                    with pytest.raises(limpet.StoreCorrupt):
                        store.check()
                else:
                    store.check()
                    assert pool.audit()["leaked"] == 0
        finally:
            limpet.destroy(url)


def test_a_node_that_is_lost_in_a_phase_fails_its_own_keys_only() -> None:
    """It is lost when all slots are found and all objects written. The keys of the other node are
    put, once; then the first key of the lost one raises."""

    def write_all(self: Any, batch: Any) -> int:
        BatchPuts.write_all(self, batch)
        if batch.values[0] == VALUE:
            beside.fail_node(1)
        return 0

    mutant = Mutant("loses-a-node", (), race_with(batches_puts=batches_with(write_all=write_all)))
    url = f"shm://limpet-batch-{os.getpid()}"
    with in_force(mutant), limpet.create(url, nodes=2, node_size="4MiB") as pool:
        try:
            store = pool.store("race", name="store")
            keys = [b"%d" % number for number in range(8)]
            store.put_many([(key, bytes(40)) for key in keys])
            nodes = [store.index.node_of(store.index.table_of(key)) for key in keys]
            assert set(nodes) == {0, 1}
            with limpet.open(url) as beside, pytest.raises(limpet.NodeFailed):
                store.put_many([(key, VALUE) for key in keys])
            served = [key for key, node in zip(keys, nodes, strict=True) if node == 0]
            assert [store.get(key) for key in served] == [VALUE] * len(served)
            with pytest.raises(limpet.NodeFailed):
                store.get(keys[nodes.index(1)])
        finally:
            limpet.destroy(url)
