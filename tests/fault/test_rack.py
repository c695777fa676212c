"""The virtual rack without its machines: what they boot from, how they are asked, the verdicts.

`make rack` runs the machines; it needs qemu, and minutes.
"""

from __future__ import annotations

import gzip
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from kit.processes import gather

pytest.importorskip("limpet.fault.rack", reason="no wheel has it")

from limpet.__main__ import main
from limpet.fault.check.recorder import NOTE, Operation, Result
from limpet.fault.check.self_check import identity
from limpet.fault.rack import agent, image, rack, record, scenarios, verdicts
from limpet.fault.rack.image import Needs, RackError
from limpet.fault.rack.machine import Machine, Memory, arguments, cxl_arguments
from limpet.fault.rack.rack import Rack, RackParameters
from limpet.fault.rack.verdicts import Outcome
from limpet.fault.rack.work import HISTORY, WHOLE
from limpet.fault.rack.work_store import StoreWork
from limpet.shm.release import PROTOCOL

pytestmark = pytest.mark.either_build("processes and files", but=["test_tickets*", "test_log*"])
GUEST = Path(__file__).parent / "fake_guest.py"
WORK = StoreWork("race", 2)


# ---- what a machine boots from -------------------------------------------------------------------


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A kernel's modules, each with what it says that it needs."""
    needs = {
        "fs/9p/9p": "9pnet", "net/9p/9pnet": "", "net/9p/9pnet_virtio": "virtio,9pnet",
        "drivers/virtio/virtio": "", "drivers/virtio/virtio_pci": "virtio,virtio-ring",
        "drivers/virtio/virtio-ring": "", "drivers/nvdimm/libnvdimm": "",
        "drivers/acpi/nfit": "libnvdimm", "drivers/nvdimm/nd_pmem": "libnvdimm,dax",
        "drivers/dax/device_dax": "dax", "drivers/dax/dax_pmem": "dax,libnvdimm",
    }  # fmt: skip
    for name, depends in needs.items():
        path = tmp_path / "kernel" / f"{name}.ko"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x7fELF\0license=GPL\0depends=%s\0name=x\0" % depends.encode())
    (tmp_path / "modules.builtin").write_text("kernel/drivers/dax/dax.ko\n")
    return tmp_path


def test_modules_come_after_what_they_need_and_once(modules: Path) -> None:
    order = [path.name for path in image.module_order(modules, image.MODULES)]
    assert order == [
        "virtio.ko", "virtio-ring.ko", "virtio_pci.ko", "9pnet.ko", "9p.ko", "9pnet_virtio.ko",
        "libnvdimm.ko", "nfit.ko", "nd_pmem.ko", "device_dax.ko", "dax_pmem.ko",
    ]  # fmt: skip


def test_module_that_the_kernel_lacks_is_named(modules: Path) -> None:
    next(modules.rglob("9pnet.ko")).unlink()
    with pytest.raises(RackError, match="no kernel module 9pnet, which the rack needs"):
        image.module_order(modules, image.MODULES)


def test_modules_in_a_circle_are_an_error(modules: Path) -> None:
    next(modules.rglob("virtio.ko")).write_bytes(b"\0depends=virtio_pci\0")
    with pytest.raises(RackError, match="virtio_pci -> virtio -> virtio_pci"):
        image.module_order(modules, ("virtio_pci",))


def entries(data: bytes) -> dict[str, tuple[int, bytes]]:
    """The entries of an archive "newc": mode and content by path. After the format's text."""
    found, at = {}, 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, size, length = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + length - 1].decode()
        at = -(-(at + 110 + length) // 4) * 4
        if name == "TRAILER!!!":
            return found
        found[name] = mode, data[at : at + size]
        at = -(-(at + size) // 4) * 4


def test_initial_file_system_loads_modules_in_order_and_runs_the_agent(
    modules: Path, tmp_path: Path
) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"a static program")
    needs = Needs(Path("/qemu"), busybox, Path("/vmlinuz"), modules)
    found = entries(gzip.decompress(image.initial(needs, ["/bin/agent", "an argument"])))
    assert found["bin/busybox"] == (0o100755, b"a static program")
    assert found["proc"][0] == found["host"][0] == 0o40755
    script = found["init"][1].decode()
    loaded = [line.removeprefix("insmod /") for line in script.splitlines() if "insmod" in line]
    assert [name for name in found if name.startswith("modules/")] == loaded
    assert found[loaded[0]][1].endswith(b"name=x\0")
    assert "mount -t tmpfs shm /host/dev/shm" in script
    assert "trans=virtio,version=9p2000.L,ro," in script
    assert '[ "$name" = a ]' in script  # only one machine formats what both have
    assert "/bin/agent 'an argument' /dev/ttyS1" in script


def test_client_of_another_release_is_this_limpet_but_for_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import limpet; print(limpet.__version__, limpet.shm.release.PROTOCOL, limpet.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(agent._linked("0.0.9", 1))},
    )  # fmt: skip
    version, protocol, path = done.stdout.split()
    assert (version, int(protocol)) == ("0.0.9", PROTOCOL + 1)
    assert path.startswith(str(tmp_path))


def test_what_the_rack_lacks_is_named_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = CliRunner().invoke(main, ["rack", "--build", str(tmp_path / "none")])
    assert shown.exit_code == 1
    assert "apt-get install --no-install-recommends qemu-system-x86 ndctl busybox-s" in shown.output
    assert "static daxctl e2fsprogs\n" in shown.output
    assert f"mkdir -p {tmp_path / 'none'}" in shown.output
    assert "apt-get download" in shown.output


def test_machine_only_emulates_and_shares_its_memory(tmp_path: Path) -> None:
    needs = Needs(Path("/qemu"), Path("/busybox"), Path("/vmlinuz"), tmp_path)
    memory = Memory((Path("/m/0"), Path("/m/1")), 64 << 20, Path("/m/r"), 1 << 20)
    command = arguments(needs, "b", tmp_path, Path("/initial"), memory, 1)
    text = " ".join(command)
    assert "kvm" not in text
    assert command[command.index("-accel") + 1] == "tcg,thread=multi"
    assert text.count("share=on") == 3
    assert text.count("-device nvdimm,") == 2
    assert "readonly=on" in command[command.index("-fsdev") + 1]
    assert "rack.name=b" in text
    # With one processor at most, atomics of the machine would be none to the other one.
    assert command[command.index("-smp") + 1] == "1,maxcpus=2"


def test_machine_with_cxl_memory_has_a_bridge_with_two_ports(tmp_path: Path) -> None:
    """With one port qemu 7.2 drops every store to the memory, and nothing says so."""
    needs = Needs(Path("/qemu"), Path("/busybox"), Path("/vmlinuz"), tmp_path)
    memory = Memory((Path("/m/cxl"),), 256 << 20, Path("/m/r"), 1 << 20)
    (tmp_path / "labels").write_bytes(bytes(4096))
    command = cxl_arguments(needs, "c", tmp_path, Path("/initial"), memory, tmp_path / "labels")
    text = " ".join(command)
    assert "kvm" not in text
    assert "-machine q35,cxl=on" in text
    assert text.count("-device cxl-rp,") == 2
    assert "id=labels,mem-path=" in text
    assert "size=4096" in text


class AskedMachine:
    """Is asked in place of a machine, and knows what it was asked."""

    name = "a"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        self.asked.append(do)
        return {"late": 2}

    def take(self, event: str) -> list[dict[str, Any]]:
        return [{"slot": 1, "error": "NodeFailed: node 1"}]


def test_clients_that_end_otherwise_or_not_at_all_are_complained_of(
    tmp_path: Path, outcome: Outcome
) -> None:
    machines: Any = (AskedMachine(), AskedMachine())
    with record.made(tmp_path / "record") as made:
        Rack(RackParameters(), machines, made, (), print).finish(outcome)
    assert failed(outcome) == {verdicts.ENDED}
    assert len(outcome.checks[verdicts.ENDED]) == 4
    assert machines[0].asked == ["finish"]


def test_memory_that_changes_while_no_machine_runs_is_seen(tmp_path: Path) -> None:
    nodes = (tmp_path / "0", tmp_path / "1")
    for path in nodes:
        path.write_bytes(bytes(100))
    with record.made(tmp_path / "record") as made:
        machines: Any = (None, None)
        both = Rack(RackParameters(), machines, made, nodes, print)
        before = both.pool_state()
        assert both.pool_state() == before
        nodes[1].write_bytes(bytes(99) + b"x")
        assert both.pool_state() != before


def test_pool_that_none_or_two_made_whole_is_complained_of(outcome: Outcome) -> None:
    outcome.checks[verdicts.MENDED] = []
    verdicts.judge_mended(outcome, ["dax: power was cut; it is whole again: 3 objects"])
    assert failed(outcome) == set()
    assert outcome.figures["made whole"] == "it is whole again: 3 objects"
    for said in ([], ["one", "another"]):
        outcome.checks[verdicts.MENDED] = []
        verdicts.judge_mended(outcome, said)
        assert failed(outcome) == {verdicts.MENDED}


# ---- a machine -----------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine("a", [sys.executable, str(GUEST), str(tmp_path / "a.agent")], tmp_path)
    try:
        yield made
    finally:
        made.kill()


def test_machine_is_asked_and_told_and_starts_again(machine: Machine) -> None:
    for _ in range(2):
        machine.start()
        assert machine.await_ready()["event"] == "ready"
        assert machine.runs
        assert machine.ask("work", slot=3)["asked"] == {"slot": 3}
        assert machine.ask("work", slot=4)["asked"] == {"slot": 4}
        assert [one["slot"] for one in machine.take("ended")] == [3, 4]
        assert machine.take("ended") == []
        machine.kill()
        assert not machine.runs


def test_machine_that_boots_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "progress_s", 0.02)
    made = Machine("a", [sys.executable, str(GUEST), str(tmp_path / "a.agent"), "0.5"], tmp_path)
    try:
        made.start()
        assert made.await_ready()["event"] == "ready"
    finally:
        made.kill()
    assert "machine a boots, for 0 s up to now\n" in capfd.readouterr().err


def test_report_of_some_scenarios_does_not_replace_that_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    monkeypatch.setattr(image, "look", lambda build: Needs(build, build, build, build))
    monkeypatch.setattr(scenarios, "run", lambda *_: [outcome])
    for some in ([], ["race"], ["--scenario", "killed"]):
        report = tmp_path / "_".join(["report", *some])
        asked = ["rack", "--report", str(report), *some]
        assert CliRunner().invoke(main, asked, catch_exceptions=False).exit_code == 0
        part = report.with_name(report.name + ".part")
        assert (report.exists(), part.exists()) == (not some, bool(some))


def test_machine_that_refuses_says_why(machine: Machine) -> None:
    machine.start()
    with pytest.raises(RackError, match="machine a cannot refuse: StoreFull: there is no room"):
        machine.ask("refuse")
    with pytest.raises(RackError, match="says b'no json'"):
        machine.ask("mumble")


def test_machine_that_is_late_or_has_ended_is_an_error(machine: Machine) -> None:
    machine.start()
    (machine.folder / "a.console").write_text("Kernel panic\n")
    with pytest.raises(RackError, match=r"a did not sleep in time: (.|\n)*Kernel panic"):
        machine.ask("sleep", timeout_s=0.05)
    with pytest.raises(RackError, match="machine a has ended"):
        machine.ask("end")
    machine.kill()
    with pytest.raises(RackError, match="machine a does not run"):
        machine.ask("work")


def test_machine_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    made = Machine("a", ["sh", "-c", "echo no such device >&2; exec sleep 20"], tmp_path)
    made.start_s = 0.2
    with pytest.raises(RackError, match="qemu did not start machine a: no such device"):
        made.start()
    assert not made.runs


def test_frozen_machine_stands_still_until_it_is_thawed(machine: Machine) -> None:
    machine.start()
    pid = machine.await_ready()["pid"]
    machine.freeze()
    end = time.monotonic() + 10
    while (state := Path(f"/proc/{pid}/stat").read_text().split()[2]) != "T":
        assert time.monotonic() < end, state
    with pytest.raises(RackError, match="in time"):
        machine.ask("work", timeout_s=0.05)
    machine.thaw()
    assert machine.ask("work", slot=1)["ok"]
    machine.freeze()
    machine.kill()  # also one that is frozen
    assert not Path(f"/proc/{pid}").exists()


# ---- the record ----------------------------------------------------------------------------------


def test_tickets_of_several_processes_are_in_real_order(tmp_path: Path) -> None:
    with record.made(tmp_path / "record") as made:

        def client() -> list[int]:
            mine = record.Record(tmp_path / "record")
            return [mine.ticket() for _ in range(100)]

        found = gather(*[client] * 3)
        assert all(one == sorted(one) for one in found)
        assert sorted(itertools.chain(*found)) == list(range(1, 301))
        assert made.ticket() == 301


class FakeMachine:
    """Counts up in place of a machine, `lost` fewer times than it is told."""

    def __init__(self, made: record.Record, lost: int) -> None:
        self.record, self.lost = made, lost

    def tell(self, do: str, times: int) -> None:
        self.record.count_up(times - self.lost)

    def reply(self, do: str) -> None:
        pass


@pytest.mark.parametrize("lost", [0, 1])
def test_machines_whose_atomics_are_none_are_refused(
    tmp_path: Path, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rack, "COUNT", 100)
    said: list[str] = []
    with record.made(tmp_path / "record") as made:
        machines: Any = (FakeMachine(made, 0), FakeMachine(made, lost))
        both = Rack(RackParameters(), machines, made, (), said.append)
        if lost:
            with pytest.raises(RackError, match=r"of 200 atomic additions .* only 199 count"):
                both.prove_atomic()
        else:
            both.prove_atomic()
            assert "200 atomic additions" in said[0]


class LateMachine:
    """A machine on which a thread was late by so many ms."""

    def __init__(self, late_ms: float) -> None:
        self.late_ms = late_ms

    def tell(self, do: str, seconds: float, others: int) -> None:
        assert do == "lateness"

    def reply(self, do: str) -> dict[str, Any]:
        return {"worst_ms": self.late_ms}


@pytest.mark.parametrize(("late_ms", "lease_ms"), [(20.0, 2000), (1234.5, 12345)])
def test_lease_is_longer_where_machines_are_late(
    tmp_path: Path, late_ms: float, lease_ms: int
) -> None:
    said: list[str] = []
    with record.made(tmp_path / "record") as made:
        machines: Any = (LateMachine(1.0), LateMachine(late_ms))
        both = Rack(RackParameters(), machines, made, (), said.append)
        both.measure()
        assert both.lease_s == lease_ms / 1000
        assert f"leases of {lease_ms} ms" in said[0]


def test_log_outlives_its_writer_and_is_stamped_with_tickets(tmp_path: Path) -> None:
    with record.made(tmp_path / "record") as made:

        def client() -> None:
            log = record.Record(tmp_path / "record").log(3, 9)
            log.call(Operation.PUT, 1, identity(9, 1))
            log.returned(Result.OK)
            log.call(Operation.GET, 0)
            os._exit(0)  # its machine is switched off

        pid = os.fork()
        if not pid:
            client()
        os.waitpid(pid, 0)
        assert made.count(3) == 2
        notes = made.notes()
        assert notes["client"].tolist() == [9, 9]
        assert notes["result"].tolist() == [Result.OK, Result.UNKNOWN]
        assert notes["call_ns"].tolist() == [1, 3]
        assert notes["return_ns"].tolist() == [2, 0]
        made.clear()
        assert made.count(3) == len(made.notes()) == 0


def test_archive_outlives_its_writer_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with record.made(tmp_path / "record") as made:
        for client in (7, 8):

            def write(client: int = client) -> None:
                log = record.Record(tmp_path / "record").strings(2, client)
                log.call(Operation.PUT, b"key", b"value of %d" % client)
                if client == 7:
                    log.returned(Result.OK)

            gather(write)
        found = made.records((1, 2))
        assert [(one.client, one.value, one.result) for one in found] == [
            (7, b"value of 7", "ok"), (8, b"value of 8", "unknown"),
        ]  # fmt: skip
        made.clear()
        assert made.records((2,)) == []


def test_client_ends_when_its_archive_is_full(tmp_path: Path) -> None:
    with record.made(tmp_path / "record") as made:
        log = made.strings(0, 1)
        many = record.ARCHIVE_SIZE // (1 << 20) - 1
        for _ in range(many):
            log.call(Operation.PUT, b"key", bytes(1 << 20))
        with pytest.raises(record.RecordFull):
            log.call(Operation.PUT, b"key", bytes(1 << 20))
        assert len(made.records((0,))) == many


def test_record_has_so_many_slots() -> None:
    with pytest.raises(ValueError, match="no slot 16"):
        record.part(16)


def test_device_of_the_record_is_found_by_its_numbers(tmp_path: Path) -> None:
    for name, numbers in {"1": ("0x1234", "0x1110"), "2": (record.VENDOR, record.DEVICE)}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(numbers[0] + "\n")
        (tmp_path / name / "device").write_text(numbers[1] + "\n")
    assert record.device(tmp_path) == tmp_path / "2" / "resource2"
    (tmp_path / "2" / "device").write_text("0x1\n")
    with pytest.raises(FileNotFoundError, match="not in a rack"):
        record.device(tmp_path)


# ---- verdicts ------------------------------------------------------------------------------------


@pytest.fixture
def outcome() -> Outcome:
    checks = (
        verdicts.ENDED, verdicts.WHY, verdicts.MOVED, verdicts.RECOVERED, verdicts.BACK,
        verdicts.LOOKED, verdicts.AUDIT,
    )  # fmt: skip
    return verdicts.outcome_of("a machine is lost", WORK, checks)


class Noted:
    """A record in which these notes are."""

    def __init__(self, *notes: Any) -> None:
        self._notes = np.array(list(notes), NOTE)

    def notes(self) -> Any:
        return self._notes


def judge(outcome: Outcome, *notes: Any) -> None:
    made: Any = Noted(*notes)
    verdicts.judge_work(outcome, WORK, made, {}, {})


def failed(outcome: Outcome) -> set[str]:
    return {check for check, wrong in outcome.checks.items() if wrong}


def note(client: int, op: Operation, result: Result, key: int, value: int, read: int,
         call: int, back: int) -> Any:  # fmt: skip
    return (client, op, result, key, value, read, call, back)


OLD, NEW = identity(1, 1), identity(2, 1)
LATE = [
    note(1, Operation.PUT, Result.OK, 0, OLD, 0, 1, 2),
    note(2, Operation.UPDATE, Result.UNKNOWN, 0, NEW, 0, 3, 0),  # its machine was frozen in it
    note(1, Operation.DELETE, Result.OK, 0, 0, 0, 4, 5),
    note(1, Operation.GET, Result.MISSING, 0, 0, 0, 6, 7),
]


def test_write_that_lands_after_its_client_was_given_up_is_caught(outcome: Outcome) -> None:
    """The rack found it: an update of a key, deleted meanwhile, brought the key back."""
    back = note(1, Operation.GET, Result.OK, 0, 0, NEW, 8, 9)
    judge(outcome, *LATE, back)
    assert failed(outcome) == {HISTORY}
    assert "b'key-000000' is illegal" in outcome.checks[HISTORY][0]


def test_write_of_no_known_outcome_is_allowed(outcome: Outcome) -> None:
    judge(outcome, *LATE)
    assert outcome.ok
    assert outcome.figures["operations"] == "4, of which 1 have no known outcome"


def test_torn_value_is_caught(outcome: Outcome) -> None:
    torn = note(1, Operation.GET, Result.TORN, 1, 0, 0, 8, 9)
    judge(outcome, *LATE, torn)
    assert WHOLE in failed(outcome)


@pytest.mark.parametrize(
    ("error", "right"),
    [
        ("ClientError: this process is no longer a client: it was declared dead", True),
        ("", False),
        ("StoreCorrupt: a node is damaged", False),
        ("ClientError: all slots are taken", False),
    ],
)
def test_frozen_client_ends_with_an_error_that_says_why(
    outcome: Outcome, error: str, right: bool
) -> None:
    ended = [{"slot": 2, "error": error}]
    verdicts.judge_errors(outcome, verdicts.WHY, (2,), ended, verdicts.SAYS_WHY)
    assert outcome.ok == right
    outcome.checks[verdicts.WHY] = []
    verdicts.judge_errors(outcome, verdicts.WHY, (2,), ended, ("Client",), never="declared")
    assert outcome.ok == ("slots" in error)


def test_frozen_client_that_does_not_end_is_caught(outcome: Outcome) -> None:
    verdicts.judge_errors(outcome, verdicts.WHY, (2, 3), [], verdicts.SAYS_WHY)
    assert outcome.checks[verdicts.WHY] == [
        "the client of slot 2 has not ended", "the client of slot 3 has not ended",
    ]  # fmt: skip


def test_other_failures_are_caught_each_by_its_check(outcome: Outcome) -> None:
    verdicts.judge_gap(outcome, "then", 2.5, 1.0, 0.6)
    verdicts.judge_recovered(outcome, [7, 8, 9], [], 3)
    verdicts.judge_ends(outcome, [{"slot": 1, "error": ""}])
    audit = {"total": 100, "leaked": 0}
    verdicts.judge_look(outcome, {"wrong": [], "audit": audit})
    assert outcome.ok
    verdicts.judge_gap(outcome, "then", 2.7, 1.0, 0.6)
    verdicts.judge_recovered(outcome, [7, 8, 9], [8], 3)
    verdicts.judge_ends(outcome, [{"slot": 1, "error": "NodeFailed: node 0"}])
    verdicts.judge_look(outcome, {"wrong": ["check(): x"], "audit": {**audit, "leaked": 64}})
    assert failed(outcome) == {
        verdicts.MOVED, verdicts.RECOVERED, verdicts.ENDED, verdicts.LOOKED, verdicts.AUDIT,
    }  # fmt: skip
    text = "\n".join(verdicts.text_of(outcome))
    assert text.count("FAILED") == 5
    assert "64 bytes are leaked" in text
    assert "not recovered: clients 8" in text


def test_machine_that_had_no_clients_to_lose_proves_nothing(outcome: Outcome) -> None:
    verdicts.judge_recovered(outcome, [7], [], 3)
    assert outcome.checks[verdicts.RECOVERED] == ["only 1 of 3 clients were there to be lost"]
