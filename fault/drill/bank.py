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
from collections.abc import Iterable
from typing import Any, Final

import limpet
from limpet.fault.check.serializability import SerializabilityReport as Judged
from limpet.fault.check.serializability import check
from limpet.fault.check.transaction_recorder import TransactionRecorder
from limpet.fault.check.transactions import Transaction, name_of, write_transactions
from limpet.fault.check.verify import FINAL
from limpet.fault.drill.bank_worker import (
    LOAD,
    START,
    STORE,
    Act,
    Acts,
    BankWorker,
    account,
    balance_of,
    items,
    value_of,
)
from limpet.fault.drill.counters import PUTS, Counters
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
from limpet.fault.inject.interrupt import Interrupt, ended_by_signals
from limpet.shm.errors import ParameterError, StoreCorrupt, StoreFull, TransactionConflict

TOTAL: Final = "the accounts have what they had at first, whenever all are read"
HISTORY: Final = "the history of transactions is strictly serializable"
INVARIANTS: Final = "check(), and the store gives what the last transaction read"
UNORDERED: Final = {"rtx-race": ("rtx-race",), "both": ("rtx-sherman", "rtx-race")}
"""The kinds of the stores that have the accounts, where these cannot be scanned."""
CHECKS: Final = (WORKERS, MOVING, TOTAL, HISTORY, INVARIANTS, AUDIT)


@dataclasses.dataclass(frozen=True)
class BankParameters(RunParameters):
    """Parameters of the bank drill; `parameters` are the store's.

    `store`: a kind, or one of UNORDERED.
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


EXAMPLES_MAX: Final = 5
LOADER: Final = 0
"""The client of the load in the history."""


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
        stores = [
            pool.store(kind, name=f"{STORE} {number}" if number else STORE, **parameters.parameters)
            for number, kind in enumerate(UNORDERED.get(parameters.store, (parameters.store,)))
        ]
        bank = _Bank(parameters, observer, interrupt, pool, stores, recorder)
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
        stores: list[Any],
        recorder: TransactionRecorder,
    ) -> None:
        super().__init__(parameters, observer, interrupt, pool, CHECKS)
        self.stores = stores
        self.recorder = recorder
        self.accounts = [account(number) for number in range(parameters.accounts)]
        self.items = items(dict.fromkeys(self.accounts)).keys()
        self.acts = Acts(stores, self.accounts, parameters.store not in UNORDERED)
        self.own: list[Transaction] = []
        """The load, and the reads after the run."""
        self.given_up = 0

    def load(self) -> None:
        """Open the accounts."""
        call_ns = time.monotonic_ns()
        for name in self.accounts:
            self.acts.store_of(name).insert(name, value_of(START, LOAD))
        reads = items(dict.fromkeys(self.accounts))
        writes = items(dict.fromkeys(self.accounts, value_of(START, LOAD)))
        end_ns = time.monotonic_ns()
        self.own.append(Transaction(LOADER, "committed", reads, writes, call_ns, end_ns))

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
            worker = BankWorker(self.pool, self.acts, incarnation, log, counter, tuple(allowed))
            worker.work(random.Random(self.parameters.seed << 32 | incarnation))

        self.run_clients(client, counters)
        self.given_up = self.last.snapshot.refused()
        if not self.supervisor.failed and not self.last.snapshot.operations(PUTS):
            self.checks[MOVING].append("no transfer was committed in the whole run")

    def verify(self, history: str | None) -> BankReport:
        """Judge everything."""
        with self.timed("verify"), self.unblocked():
            self._read_all("reading every account", self.acts.read_all)
            self.recover()
            self._read_all("reading every account again", self.acts.scan_all)
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

        def look() -> None:
            call_ns = time.monotonic_ns()
            seen = self.pool.transaction(lambda tx: act(tx, LOAD))
            end_ns = time.monotonic_ns()
            self.own.append(Transaction(FINAL, "committed", items(seen.reads), {}, call_ns, end_ns))

        self.look(what, TOTAL, look)

    def _check_store(self) -> None:
        for store in self.stores:
            store.check()
        found = items({name: store.get(name) for store in self.stores for name in store})
        last = self.own[-1].reads if self.own[-1].client == FINAL else found
        differ = [item for item in {**found, **last} if found.get(item) != last.get(item)]
        if differ:
            raise StoreCorrupt(
                f"the store gives {len(found)} keys, the last transaction read {len(last)}; "
                f"{len(differ)} differ, such as {name_of(differ[0])}"
            )

    def _judge(self, transactions: list[Transaction]) -> Judged:
        judged = check(transactions)
        if not judged.ok:
            self.checks[HISTORY].append(judged.detail)
        total = START * len(self.accounts)
        sums = [(one, self._sum(one)) for one in self._totals(transactions)]
        wrong = [
            f"{one}: that is {found} in all, not {total}" for one, found in sums if found != total
        ]
        self.checks[TOTAL] += wrong[:EXAMPLES_MAX]
        if len(wrong) > EXAMPLES_MAX:
            self.checks[TOTAL].append(f"and {len(wrong) - EXAMPLES_MAX} more wrong totals")
        return judged

    def _totals(self, transactions: Iterable[Transaction]) -> list[Transaction]:
        """Committed transactions that read every account."""
        every = self.items
        return [
            one
            for one in transactions
            if one.outcome == "committed" and one.client != LOADER and every <= one.reads.keys()
        ]

    def _sum(self, transaction: Transaction) -> int:
        return sum(balance_of(transaction.reads[item]) for item in self.items)

    def _count(self, transactions: list[Transaction]) -> Counts:
        """Counts of the clients' transactions."""
        made = [one for one in transactions if one.client not in (LOADER, FINAL)]
        committed = [one for one in made if one.outcome == "committed"]
        return Counts(
            transfers=sum(bool(one.writes) for one in committed),
            reads=sum(not one.writes for one in committed),
            totals=len(self._totals(made)),
            aborted=sum(one.outcome == "aborted" for one in made),
            given_up=self.given_up,
            unknown=sum(one.outcome == "unknown" for one in made),
        )


def _call_ns(transaction: Transaction) -> int:
    return transaction.call_ns
