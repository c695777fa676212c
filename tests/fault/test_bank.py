"""Short runs of the bank: what it finds in sound transactions, and that each verdict can fail."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from click.testing import CliRunner
from kit.variants import vary
from kit.waiting import long_enough

import limpet
from limpet.__main__ import main
from limpet.fault.check.serializability import check_file
from limpet.fault.check.transaction_recorder import TransactionRecorder
from limpet.fault.drill import bank
from limpet.fault.drill.bank import (
    CHECKS,
    HISTORY,
    INVARIANTS,
    TOTAL,
    BankParameters,
    BankReport,
)
from limpet.fault.drill.bank_worker import balance_of
from limpet.fault.drill.drill_base import AUDIT, MOVING, WORKERS
from limpet.fault.inject.interrupt import Interrupted
from limpet.fault.inject.supervisor import Progress
from limpet.stores.transactions.commit import Commit
from limpet.stores.transactions.reads import Reads

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

COMPILED = limpet.build == "compiled"
QUIET = {"kill_rate": 0.0, "stop_rate": 0.0, "watch": False, "seconds": 0.25}
FOR_LONG = {**QUIET, "seconds": 60.0}
"""For runs that a client ends."""
needs_speed = pytest.mark.skipif(not COMPILED, reason="a slow build does too little in the time")
KILL_RATE = 50.0 if COMPILED else 5.0


class Watcher:
    """Calls `running` with each progress, and `looking` with each step of the verification."""

    def __init__(
        self,
        running: Callable[[Progress], None] = lambda progress: None,
        looking: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.running = running
        self.verifying = looking

    def judging(self, done: int, total: int) -> None:
        """Nothing to note."""


def banked(
    url: str,
    *,
    history: str | None = None,
    watcher: Watcher | None = None,
    enough: Callable[[BankReport], object] = lambda report: True,
    **given: Any,
) -> BankReport:
    parameters: dict[str, Any] = {
        "seed": 1, "clients": 3, "accounts": 24, "kill_rate": 50.0, "seconds": 1.0,
        "blocked_s": 60.0, **given,
    }  # fmt: skip

    def run(seconds: float) -> BankReport:
        """With as many kills: on a busy machine, clients do little between two of them."""
        kill_rate = parameters["kill_rate"] * parameters["seconds"] / seconds
        made = BankParameters(url, **{**parameters, "seconds": seconds, "kill_rate": kill_rate})
        return bank.run(made, watcher or Watcher(), history)

    def has_transfers(report: BankReport) -> bool:
        counts = report.counts
        return counts.transfers + counts.aborted > 0 and bool(enough(report))

    return long_enough(run, has_transfers, parameters["seconds"])


def failed(report: BankReport) -> set[str]:
    """The checks that did not hold."""
    return {name for name, texts in report.checks.items() if texts}


def left(url: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"limpet.{url.removeprefix('shm://')}.*"))


# ---- transactions of the pool --------------------------------------------------------------------


@pytest.mark.exhaustive("seconds of processes each", quick=["rtx-race"])
@pytest.mark.parametrize("store", ["rtx-sherman", "rtx-race", "both"])
def test_bank_kills_and_everything_holds(
    make_url: Callable[[], str], tmp_path: Path, store: str
) -> None:
    url, path = make_url(), tmp_path / "transactions.jsonl"
    report = banked(
        url, store=store, history=str(path), kill_rate=KILL_RATE, stop_rate=0.0, seconds=0.8,
        enough=lambda report: report.kills and report.counts.transfers,
    )  # fmt: skip
    assert report.ok, report.checks
    assert list(report.checks) == list(CHECKS)
    assert report.kills
    assert report.kills == report.restarts
    counts = report.counts
    assert counts.transfers > 0
    assert counts.given_up == 0
    assert report.judged.unknown == counts.unknown <= report.kills
    assert report.audit["leaked"] == 0
    assert check_file(path).as_dict() == report.judged.as_dict()
    assert not left(url)


@pytest.mark.exhaustive("seconds of processes")
@pytest.mark.parametrize("store", ["rtx-sherman", "rtx-race"])
def test_bank_stops_clients_and_lets_them_go_on(make_url: Callable[[], str], store: str) -> None:
    """In a pool that never fences: their transactions are repaired around them."""
    report = banked(
        make_url(),
        store=store,
        kill_rate=4.0,
        stop_rate=40.0,
        lease_ms=40,
        fence="wait",
        seconds=0.8,
        enough=lambda report: report.last.stops,
    )
    assert report.ok, report.checks
    assert report.last.stops
    assert report.fenced == 0


@pytest.mark.exhaustive("seconds of processes each", quick=["Commit-*race"])
@needs_speed
@pytest.mark.parametrize("store", ["rtx-sherman", "rtx-race"])
@pytest.mark.parametrize(
    ("owner", "method", "broken"),
    [
        (Commit, "validate", lambda commit: True),
        (Reads, "hold_again", lambda reads: True),
    ],
)  # fmt: skip
def test_bank_catches_what_is_not_validated(
    make_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    broken: Callable[..., bool],
    store: str,
) -> None:
    """Without validation, transactions commit on what others have changed meanwhile."""
    vary(monkeypatch, owner, method, broken)
    given: dict[str, Any] = {**QUIET, "store": store, "clients": 4, "accounts": 64}
    reports = (  # on a busy machine, clients seldom meet
        banked(make_url(), **{**given, "seconds": 0.6 + seed / 10, "seed": seed})
        for seed in range(200)
    )
    report = next(report for report in reports if not report.ok)
    assert failed(report) <= {HISTORY, TOTAL, WORKERS}


# ---- transactions that break their promise -------------------------------------------------------


class Locked:
    """Transactions one at a time, under a lock that a dead client does not keep.

    A client that has broken a promise (`broke`) fails in its next transaction, which ends the run.
    """

    broke = False

    def __init__(self) -> None:
        self.parent = os.getpid()
        self.lock = os.memfd_create("limpet-test-lock")
        self.written: dict[bytes, bytes | None] = {}

    def transaction(self, pool: limpet.Pool, fn: Callable[[Any], Any], attempts: int = 1000) -> Any:
        if self.broke:
            raise RuntimeError("enough")
        with self.alone():
            self.written = {}
            result = fn(self)
            self.commit()
            return result

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        fcntl.lockf(self.lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.lock, fcntl.LOCK_UN)

    def commit(self) -> None:
        for key, value in self.written.items():
            self.write(key, value)

    def write(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.store.delete(key)
        else:
            self.store.put(key, value)

    def get(self, store: Any, key: bytes) -> bytes | None:
        self.store = store
        return self.written.get(key) or cast("bytes | None", store.get(key))

    def put(self, store: Any, key: bytes, value: bytes) -> None:
        self.store = store
        self.written[key] = value

    insert = put

    def delete(self, store: Any, key: bytes) -> None:
        self.written[key] = None

    def scan(self, store: Any, low: bytes, high: bytes) -> list[tuple[bytes, bytes]]:
        self.store = store
        return sorted((key, store.get(key)) for key in store if low <= key < high)


class HalfDone(Locked):
    """A client dies before its last write, which is of an account with another balance."""

    def commit(self) -> None:
        last = dict([self.written.popitem()] if self.written else [])
        super().commit()
        for key, value in last.items():
            if os.getpid() != self.parent and balance_of(value) != balance_of(self.store.get(key)):
                os.kill(os.getpid(), signal.SIGKILL)
            self.write(key, value)


class CommitsWhatItAborts(Locked):
    """A conflict is reported after everything was written."""

    def commit(self) -> None:
        super().commit()
        if len(self.written) == 6:
            self.broke = True
            raise limpet.TransactionConflict("so many attempts, and all in vain")


class LosesAnAccount(Locked):
    def commit(self) -> None:
        super().commit()
        if b"account-000003" in self.written:
            self.store.delete(b"account-000003")
            self.broke = os.getpid() != self.parent


class Hangs(Locked):
    def commit(self) -> None:
        if self.written:
            signal.pause()


class Raises(Locked):
    def commit(self) -> None:
        if self.written:
            raise RuntimeError("this store is unhappy")


class AlwaysConflicts(Locked):
    def commit(self) -> None:
        if self.written:
            raise limpet.TransactionConflict("a conflict in 1000 attempts")


def use(monkeypatch: pytest.MonkeyPatch, engine: Locked) -> None:
    """Have all transactions made by `engine`."""
    monkeypatch.setattr(
        limpet.Pool, "transaction", lambda *given, **named: engine.transaction(*given, **named),
        raising=False,
    )  # fmt: skip


@pytest.mark.exhaustive("seconds of processes each", quick=["HalfDone*", "LosesAnAccount*"])
@needs_speed
@pytest.mark.parametrize(
    ("engine", "given", "expected", "words"),
    [
        (HalfDone, FOR_LONG, {WORKERS, TOTAL, HISTORY}, "in all, not 24000"),
        (CommitsWhatItAborts, FOR_LONG, {WORKERS, HISTORY},
         "which only an aborted transaction wrote"),
        (LosesAnAccount, FOR_LONG, {WORKERS, TOTAL, HISTORY},
         "read absent in accounts[b'account-000003']"),
        (Hangs, {**FOR_LONG, "blocked_s": 0.3}, {MOVING}, "is blocked: none of"),
        (Raises, FOR_LONG, {WORKERS}, "RuntimeError: this store is unhappy"),
        (AlwaysConflicts, QUIET, {MOVING}, "no transfer was committed"),
    ],
)  # fmt: skip
def test_bank_catches_broken_transactions(
    make_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    engine: type[Locked],
    given: dict[str, Any],
    expected: set[str],
    words: str,
) -> None:
    use(monkeypatch, engine())
    url = make_url()
    report = banked(url, store="race", **given)
    assert failed(report) == expected, report.checks
    assert any(words in text for name in expected for text in report.checks[name]), report.checks
    assert not left(url)


def test_bank_holds_over_transactions_one_at_a_time(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Locked())
    path = tmp_path / "transactions.jsonl"
    report = banked(make_url(), store="race", history=str(path), **QUIET)
    assert report.ok, report.checks
    assert list(report.checks) == list(CHECKS)
    counts = report.counts
    assert counts.transfers > 0
    assert (counts.aborted, counts.given_up, counts.unknown) == (0, 0, 0)
    assert report.judged.transactions == counts.transfers + counts.reads + 3
    assert check_file(path).as_dict() == report.judged.as_dict()


def test_bank_catches_what_is_leaked_and_what_recovery_spoils(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def recover(pool: Any) -> dict[str, Any]:
        pool.store("race", name="accounts").delete(b"account-000007")
        return {}

    use(monkeypatch, Locked())
    monkeypatch.setattr(limpet.Pool, "recover", recover)
    monkeypatch.setattr(limpet.Pool, "audit", lambda pool: {"leaked": 4096})
    report = banked(make_url(), store="race", **QUIET)
    assert failed(report) == {TOTAL, HISTORY, AUDIT}
    assert report.checks[AUDIT] == ["4096 bytes are leaked: {'leaked': 4096}"]


def test_bank_catches_a_store_that_differs_from_its_transactions(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgets(Locked):
        def scan(self, store: Any, low: bytes, high: bytes) -> list[tuple[bytes, bytes]]:
            found = super().scan(store, low, high)
            if os.getpid() == parent:
                store.delete(b"account-000023")
            return found

    parent = os.getpid()
    use(monkeypatch, Forgets())
    report = banked(make_url(), store="race", **QUIET)
    assert failed(report) == {INVARIANTS}
    assert "1 differ, such as accounts[b'account-000023']" in report.checks[INVARIANTS][0]


@pytest.mark.parametrize("when", ["at work", "recovering", "judging"])
def test_bank_that_is_interrupted_leaves_nothing(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def press(what: object) -> None:
        if when == "at work" or str(what).startswith(when):
            os.kill(os.getpid(), signal.SIGINT)

    use(monkeypatch, Locked())
    url = make_url()
    watcher = Watcher(press) if when == "at work" else Watcher(looking=press)
    with pytest.raises(Interrupted, match="SIGINT"):
        banked(url, store="race", watcher=watcher, **{**QUIET, "seconds": 0.05})
    assert psutil.Process().children() == []
    assert not left(url)


def test_bank_needs_two_accounts(make_url: Callable[[], str]) -> None:
    with pytest.raises(limpet.ParameterError, match="with 1 accounts there is nothing"):
        banked(make_url(), accounts=1)


# ---- the command ---------------------------------------------------------------------------------


def command(*arguments: str, enough: Callable[[str], object]) -> tuple[int, str]:
    url = f"test-{os.getpid()}-cli-bank"

    def run(seconds: float) -> tuple[int, str]:
        rate = KILL_RATE / 5 / seconds
        shown = CliRunner().invoke(
            main, ["drill", "bank", f"--seconds={seconds}", "--accounts=12", "--clients=2",
                   f"--kill-rate={rate}", "--stop-rate=0", "--url", url, *arguments],
            catch_exceptions=False,
        )  # fmt: skip
        assert not left(url)
        return shown.exit_code, shown.stdout

    return long_enough(run, lambda found: enough(found[1]), 0.8)


@pytest.mark.exhaustive("seconds of processes")
def test_command_reports_as_json(tmp_path: Path) -> None:
    path = tmp_path / "transactions.jsonl"
    status, text = command(
        "--seed=5", "--history", str(path), "--json",
        enough=lambda text: json.loads(text)["counts"]["transfers"],
    )  # fmt: skip
    assert status == 0, text
    found = json.loads(text)
    assert found["ok"]
    assert list(found["checks"]) == list(CHECKS)
    assert found["parameters"]["seed"] == 5
    assert found["parameters"]["accounts"] == 12
    assert found["history"]["verdict"] == "ok"
    assert found["counts"]["transfers"] > 0
    assert set(found["latency_ns"]) >= {"read_p50", "transfer_p99"}
    judged = CliRunner().invoke(main, ["drill", "check", "--transactions", str(path)])
    assert judged.exit_code == 0
    assert judged.output.startswith(f"ok: {found['history']['transactions']} transactions, ")
    path.write_bytes(path.read_bytes().replace(b'"committed"', b'"aborted"', 1))
    judged = CliRunner().invoke(main, ["drill", "check", "--transactions", str(path)])
    assert judged.exit_code == 1
    assert judged.output.startswith("illegal: ")
    assert "which only an aborted transaction wrote (client 0: " in judged.output


@pytest.mark.exhaustive("seconds of processes")
def test_command_prints_a_summary_and_fails_when_something_did_not_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limpet.Pool, "audit", lambda pool: {"leaked": 4096})
    status, text = command(
        "--no-watch", enough=lambda text: text.count("held  ") == len(CHECKS) - 1
    )
    assert status == 1
    assert " transfers and " in text
    assert "transfer p99" in text
    assert "from SIGKILL until the client was" in text
    assert text.count("held  ") == len(CHECKS) - 1
    assert "4096 bytes are leaked" in text
    assert text.endswith("The drill failed.\n")


# ---- the parts -----------------------------------------------------------------------------------


def test_recorder_keeps_the_attempts_of_who_was_killed() -> None:
    item = ("s", b"x")
    with TransactionRecorder(1) as recorder:
        log = recorder.log(0, 7)
        log.aborted()
        log.attempt(1, {item: None}, {item: b"1"})
        log.aborted()
        log.attempt(2, {item: None}, {item: b"2"})
        log.committed()
        log.aborted()
        log.attempt(3, {item: b"2"}, {item: b"3"})
        recorder.log(0, 8).attempt(4, {item: b"2"}, {})
        found = recorder.transactions()
    assert [(one.client, one.outcome, one.call_ns) for one in found] == [
        (7, "aborted", 1), (7, "committed", 2), (7, "unknown", 3), (8, "unknown", 4),
    ]  # fmt: skip
    assert [one.writes.get(item) for one in found] == [b"1", b"2", b"3", None]
    assert [one.return_ns is None for one in found] == [False, False, True, True]
