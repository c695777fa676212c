"""The bank: clients make transfers in transactions while they are killed, and are judged.

Transactions move money between two or three accounts of a store, or read ten accounts, or all.
A client notes each attempt, before it can take effect, in memory that survives the client
(`transaction_recorder`). The supervisor kills and stops the clients at random and replaces them. In
the end it reads all accounts in one transaction, recovers the dead clients, and reads all accounts
again. It demands that
    - the money was all there, in every transaction that read all accounts
    - the whole history is strictly serializable
    - `check()` holds, and no memory is leaked
    - no client was blocked

A transaction may give up after many conflicts. It may also give up for want of memory where clients
are stopped, because a stopped client holds memory back. In both cases it must have changed nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import time
from typing import Final

import limpet
from limpet.fault.check.serializability import SerializabilityReport as Judged
from limpet.fault.check.serializability import check
from limpet.fault.check.transaction_recorder import TransactionRecorder
from limpet.fault.check.transactions import Transaction, write_transactions
from limpet.fault.check.verify import FINAL
from limpet.fault.drill.bank_books import LOADER, Books, items_of, totals, wrong_totals
from limpet.fault.drill.bank_worker import Act, BankWorker
from limpet.fault.drill.drill_base import (
    AUDIT,
    MOVING,
    WORKERS,
    DrillBase,
    Observer,
    RunParameters,
    RunReport,
    nameless_pool,
)
from limpet.fault.inject.counters import PUTS, Counters
from limpet.fault.inject.interrupt import Interrupt, ended_by_signals
from limpet.shm.errors import ParameterError, StoreFull, TransactionConflict

TOTAL: Final = "the accounts have what they had at first, whenever all are read"
HISTORY: Final = "the history of transactions is strictly serializable"
INVARIANTS: Final = "check(), and the store gives what the last transaction read"
CHECKS: Final = (WORKERS, MOVING, TOTAL, HISTORY, INVARIANTS, AUDIT)


@dataclasses.dataclass(frozen=True)
class BankParameters(RunParameters):
    """Parameters of the bank drill; `parameters` are the store's.

    `store`: a kind, or one of UNORDERED (bank_books.py).
    """

    store: str = "rtx-sherman"
    kill_rate: float = 50.0
    nodes: int = 1
    node_size: int = 32 << 20
    accounts: int = 64


@dataclasses.dataclass(frozen=True)
class Counts:
    """Transactions of the run. totals: committed ones that read every account.

    aborted: attempts that failed. given_up: transactions without a further attempt, after many that
    failed, or for want of memory where clients are stopped. unknown: the client was killed.
    """

    transfers: int
    reads: int
    totals: int
    aborted: int
    given_up: int
    unknown: int


@dataclasses.dataclass(frozen=True)
class BankReport(RunReport):
    """The result of the bank drill."""

    parameters: BankParameters
    counts: Counts
    judged: Judged


def run(parameters: BankParameters, observer: Observer, history: str | None = None) -> BankReport:
    """Run the bank, and write its history to the file `history`; call it from the main thread.

    Raises Interrupted on Ctrl-C, SIGTERM and SIGHUP, LimpetError when the pool cannot be made.
    Whatever ends it, the clients have ended then and the pool is gone.
    """
    if parameters.accounts < 2:
        raise ParameterError(
            f"with {parameters.accounts} accounts there is nothing to transfer: have two or more"
        )
    with contextlib.ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        pool = stack.enter_context(nameless_pool(parameters, parameters.node_size))
        recorder = stack.enter_context(TransactionRecorder(parameters.clients))
        books = Books(
            pool, parameters.store, parameters.accounts, parameters.parameters, time.monotonic_ns
        )
        bank = _Bank(parameters, observer, interrupt, pool, books, recorder)
        bank.load()
        bank.work()
        return bank.verify(history)


class _Bank(DrillBase[BankParameters]):
    def __init__(
        self,
        parameters: BankParameters,
        observer: Observer,
        interrupt: Interrupt,
        pool: limpet.Pool,
        books: Books,
        recorder: TransactionRecorder,
    ) -> None:
        super().__init__(parameters, observer, interrupt, pool, CHECKS)
        self.books = books
        self.recorder = recorder
        self.own: list[Transaction] = []
        """The load, and the reads after the run."""
        self.given_up = 0

    def load(self) -> None:
        """Open the accounts."""
        self.own.append(self.books.load())

    def work(self) -> None:
        """Let the clients work for the given time, kill and stop them meanwhile, then end them."""
        counters = Counters(self.parameters.clients)
        allowed: list[type[Exception]] = [TransactionConflict]
        if self.parameters.stop_rate:
            allowed.append(StoreFull)

        def client(slot: int, incarnation: int) -> None:
            counter = counters.counter(slot)
            counter.start(os.getpid(), self.pool.client_id)
            log = self.recorder.log(slot, incarnation)
            worker = BankWorker(
                self.pool, self.books.acts, incarnation, log, counter, tuple(allowed)
            )
            worker.work(random.Random(self.parameters.seed << 32 | incarnation))

        self.run_clients(client, counters)
        self.given_up = self.last.snapshot.refused()
        if not self.supervisor.failed and not self.last.snapshot.operations(PUTS):
            self.checks[MOVING].append("no transfer was committed in the whole run")

    def verify(self, history: str | None) -> BankReport:
        """Judge everything."""
        with self.timed("verify"), self.unblocked():
            self._read_all("reading every account", self.books.acts.read_all)
            self.recover()
            self._read_all("reading every account again", self.books.acts.scan_all)
            self.look("checking the store's invariants", INVARIANTS, self._check_store)
            self.account()
        self.interrupt.check()
        with self.timed("judge"), ended_by_signals():
            self.observer.verifying("judging the history")
            transactions = [*self.recorder.transactions(), *self.own]
            judged = self._judge(transactions)
            counts = self._count(transactions)
        if history is not None:
            with self.timed("write"):
                self.observer.verifying(f"writing the history to {history}")
                write_transactions(history, sorted(transactions, key=_call_ns))
        return BankReport(**self.outcome(), counts=counts, judged=judged)

    def _read_all(self, what: str, act: Act) -> None:
        """Read all accounts in a transaction of the parent, which belongs to the history."""

        self.look(what, TOTAL, lambda: self.own.append(self.books.read(act)))

    def _check_store(self) -> None:
        last = self.own[-1]
        self.books.compare(last.reads if last.client == FINAL else None)

    def _judge(self, transactions: list[Transaction]) -> Judged:
        judged = check(transactions)
        if not judged.ok:
            self.checks[HISTORY].append(judged.detail)
        self.checks[TOTAL] += wrong_totals(transactions, items_of(self.parameters.accounts))
        return judged

    def _count(self, transactions: list[Transaction]) -> Counts:
        """Counts of the clients' transactions."""
        made = [one for one in transactions if one.client not in (LOADER, FINAL)]
        committed = [one for one in made if one.outcome == "committed"]
        return Counts(
            transfers=sum(bool(one.writes) for one in committed),
            reads=sum(not one.writes for one in committed),
            totals=len(totals(made, items_of(self.parameters.accounts))),
            aborted=sum(one.outcome == "aborted" for one in made),
            given_up=self.given_up,
            unknown=sum(one.outcome == "unknown" for one in made),
        )


def _call_ns(transaction: Transaction) -> int:
    return transaction.call_ns
