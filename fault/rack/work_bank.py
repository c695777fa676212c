"""The work of transactions: the transfers of the bank drill between the accounts of a store."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from limpet.fault.check.serializability import check
from limpet.fault.check.transaction_recorder import TransactionLog, transactions_of
from limpet.fault.check.transactions import Transaction
from limpet.fault.drill.bank import HISTORY, TOTAL
from limpet.fault.drill.bank_books import LOADER, Books, items_of, wrong_totals
from limpet.fault.drill.bank_worker import BankWorker
from limpet.fault.inject.counters import Counter
from limpet.fault.rack.record import SLOTS, Record
from limpet.fault.rack.work import FINAL_SLOT, LOAD_SLOT, Deaths, Wrong
from limpet.shm.errors import TransactionConflict

PREFIX: Final = "transactions-"
ACCOUNTS: Final = 24
SEED: Final = 7


class BankWork:
    """Transfers, and reads of some or all of the accounts, in a store named in `kind`."""

    checks: ClassVar[tuple[str, ...]] = (TOTAL, HISTORY)

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.store = kind.removeprefix(PREFIX)

    def _books(self, pool: Any, record: Record) -> Books:
        return Books(pool, self.store, ACCOUNTS, {}, record.ticket)

    def prepare(self, pool: Any, record: Record) -> None:
        loaded = self._books(pool, record).load()
        self._note(record, LOAD_SLOT, LOADER, loaded)

    def work(
        self, pool: Any, record: Record, slot: int, incarnation: int, counter: Counter
    ) -> None:
        books = self._books(pool, record)
        log = TransactionLog(record.strings(slot, incarnation), incarnation)
        counter.start(os.getpid(), pool.client_id)
        allowed = (TransactionConflict,)
        worker = BankWorker(pool, books.acts, incarnation, log, counter, allowed, record.ticket)
        worker.work(random.Random(SEED << 32 | incarnation))

    def read(self, pool: Any, record: Record, incarnation: int) -> list[str]:
        books = self._books(pool, record)
        for act in (books.acts.read_all, books.acts.scan_all):
            found = books.read(act)
            self._note(record, FINAL_SLOT, incarnation, found)
        books.compare(found.reads)
        return []

    def check(self, pool: Any) -> None:
        pool.store(self.store, name="accounts").check()

    def found(self, pool: Any) -> dict[str, Any]:
        return {}

    def judge(self, record: Record, deaths: Deaths, found: Mapping[str, Any]) -> Wrong:
        transactions = transactions_of(record.records(range(SLOTS)))
        judged = check(transactions)
        wrong = wrong_totals(transactions, items_of(ACCOUNTS))
        return {TOTAL: wrong, HISTORY: [] if judged.ok else [judged.detail]}

    def _note(self, record: Record, slot: int, client: int, one: Transaction) -> None:
        """Note a transaction that was made outside of a worker; its note returns later."""
        log = TransactionLog(record.strings(slot, client), client)
        log.attempt(one.call_ns, one.reads, one.writes)
        log.committed()
