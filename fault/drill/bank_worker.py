"""A client of the bank drill: transfers between accounts, and reads of some or all of them.

    key                     value
    account-000003          `1000 7.12`: the balance, which is never negative, and its writer,
                            here incarnation 7 in its 12th attempt
    account-000003/7.12     `1000`: a receipt, from the transfer that wrote the account like that

So no two values of an account are equal, no two receipts have one key, and a client that has read
an account knows a receipt that must be there. When an account has RECEIPTS_MAX of them, the next
transfer deletes them all: the store grows and shrinks.

In an ordered store a client finds receipts by a scan, and several accounts, too. In another store,
or in several stores, a receipt's value is `1000 7.11`, with the writer of the receipt before it, or
of the load. So each receipt leads to the one before it, and a client reads accounts one by one.

A deleted receipt stands in the history as a value of its own, which no transaction can read. It is
not "absent", as it was before it was made, because no transaction looks for it afterwards.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from limpet.fault.check.transaction_recorder import TransactionLog
from limpet.fault.check.transactions import Item
from limpet.fault.inject.counters import GETS, PUTS, Counter

STORE: Final = "accounts"
"""The name of the store that has the accounts."""
START: Final = 1000
"""The initial balance of each account."""
AMOUNT_MAX: Final = 100
SCANNED: Final = 10
"""Accounts that a scan reads."""
HOT: Final = 4
"""Half of the transfers are from one of this many accounts or their witnesses."""
DWELL_S: Final = 0.0004
"""How long some transfers take from their last read to their end, at most."""
RECEIPTS_MAX: Final = 6
LOAD: Final = (0, 0)
"""The writer of the first values."""
NOBODY: Final = b"%d.%d" % LOAD


def account(number: int) -> bytes:
    """The key of an account; in the order of their numbers."""
    return b"account-%06d" % number


def value_of(balance: int, writer: tuple[int, int]) -> bytes:
    """The value of an account, written by this incarnation in this attempt."""
    return b"%d %d.%d" % (balance, *writer)


def balance_of(value: bytes | None) -> int:
    """The balance in a value; 0 if the account is absent."""
    return 0 if value is None else int(value.split()[0])


def receipt_of(name: bytes, value: bytes) -> bytes:
    """The key of the receipt of an account with this value; there is none after the load."""
    return name + b"/" + value.split()[1]


def end_of(name: bytes) -> bytes:
    """The first key after those of an account's receipts."""
    return name + b"0"


class Seen(NamedTuple):
    """Keys and values that one attempt read and wrote."""

    reads: dict[bytes, bytes | None]
    writes: dict[bytes, bytes]


Act = Callable[[Any, tuple[int, int]], Seen]
"""A transaction's body, given its handle and its writer: incarnation and attempt."""


class Transfer(NamedTuple):
    """Move up to `amounts` from the payer to the payees, or back if they are negative.

    `witness` is only read. It is the payer of other transactions, which read this payer. If objects
    that are only read were not validated, both of two such transfers would commit (write skew).
    `dwell_s`: the time from its last read to its end, so that other transactions come in between.
    """

    payer: bytes
    payees: Sequence[bytes]
    amounts: Sequence[int]
    witness: bytes
    dwell_s: float


class Acts:
    """Transactions on the accounts in `stores`, whose keys are `accounts`; `scans`: whether
    these are in one store that can be scanned."""

    def __init__(self, stores: Sequence[Any], accounts: Sequence[bytes], scans: bool) -> None:
        self._stores = stores
        self._accounts = accounts
        self._scans = scans

    def store_of(self, key: bytes) -> Any:
        """The store that has this key."""
        return self._stores[sum(key) % len(self._stores)]

    def draw(self, source: random.Random) -> Act:
        """A random transaction; each attempt of it does the same."""
        chance = source.random()
        if chance < 0.04:
            return self.read_all if source.random() < 0.5 else self.scan_all
        if chance < 0.14:
            first = source.randrange(len(self._accounts))
            return lambda tx, writer: self._scan(tx, first, first + SCANNED)
        count = len(self._accounts)
        payer = source.randrange(count if source.random() < 0.5 else min(HOT, count))
        payer = (payer + source.randrange(2) * (count // 2)) % count
        others = [
            number for number in source.sample(range(count), min(count, 3)) if number != payer
        ]
        plan = Transfer(
            payer=self._accounts[payer],
            payees=[self._accounts[number] for number in others[: 1 + (chance > 0.8)]],
            amounts=[source.randint(-AMOUNT_MAX, AMOUNT_MAX) for _ in others],
            witness=self._accounts[(payer + count // 2) % count],
            dwell_s=DWELL_S * source.random() if source.random() < 0.25 else 0.0,
        )
        return lambda tx, writer: self._transfer(tx, writer, plan)

    def read_all(self, tx: Any, writer: tuple[int, int] = LOAD) -> Seen:
        """Get every account."""
        return self._get(tx, self._accounts)

    def scan_all(self, tx: Any, writer: tuple[int, int] = LOAD) -> Seen:
        """Read every account with its receipts; by one scan, if it can be."""
        if self._scans:
            return self._scan(tx, 0, len(self._accounts))
        seen = Seen({}, {})
        for name in self._accounts:
            self._read_receipts(tx, seen, name)
        return seen

    def _get(self, tx: Any, names: Sequence[bytes]) -> Seen:
        return Seen({name: tx.get(self.store_of(name), name) for name in names}, {})

    def _scan(self, tx: Any, first: int, end: int) -> Seen:
        if not self._scans:
            return self._get(tx, self._accounts[first:end])
        reads: dict[bytes, bytes | None] = dict.fromkeys(self._accounts[first:end])
        reads.update(tx.scan(self._stores[0], account(first), account(end)))
        for name in self._accounts[first:end]:
            _expect(reads, name)
        return Seen(reads, {})

    def _transfer(self, tx: Any, writer: tuple[int, int], plan: Transfer) -> Seen:
        parties = (plan.payer, *plan.payees)
        seen = Seen(dict.fromkeys(parties), {})
        for name in parties:
            self._read_receipts(tx, seen, name)
        seen.reads[plan.witness] = tx.get(self.store_of(plan.witness), plan.witness)
        if plan.dwell_s:
            time.sleep(plan.dwell_s)
        balances = {name: balance_of(seen.reads[name]) for name in parties}
        for payee, wanted in zip(plan.payees, plan.amounts, strict=False):
            amount = max(min(wanted, balances[plan.payer]), -balances[payee])
            balances[plan.payer] -= amount
            balances[payee] += amount
        for name, balance in balances.items():
            self._write(tx, seen, name, value_of(balance, writer))
        return seen

    def _read_receipts(self, tx: Any, seen: Seen, name: bytes) -> None:
        """Read an account with all its receipts."""
        if self._scans:
            seen.reads.update(tx.scan(self._stores[0], name, end_of(name)))
            _expect(seen.reads, name)
            return
        value = seen.reads[name] = tx.get(self.store_of(name), name)
        while value is not None and value.split()[1] != NOBODY:
            receipt = receipt_of(name, value)
            value = seen.reads[receipt] = tx.get(self.store_of(receipt), receipt)

    def _write(self, tx: Any, seen: Seen, name: bytes, value: bytes) -> None:
        """Write the value of an account and a receipt; if there are many, delete the others."""
        receipts = [key for key in seen.reads if key.startswith(name + b"/") and seen.reads[key]]
        if len(receipts) < RECEIPTS_MAX:
            before = (seen.reads[name] or NOBODY).split()[-1]
        else:
            before = NOBODY
            for key in receipts:
                tx.delete(self.store_of(key), key)
                seen.writes[key] = b"deleted by " + value.split()[1]
        receipt, text = receipt_of(name, value), b"%d" % balance_of(value)
        if not self._scans:
            text += b" " + before
        tx.insert(self.store_of(receipt), receipt, text)
        tx.put(self.store_of(name), name, value)
        seen.reads[receipt] = None
        seen.writes.update({receipt: text, name: value})


def _expect(reads: dict[bytes, bytes | None], name: bytes) -> None:
    """Note as read absent the receipt that an account must have, if a scan did not find it."""
    value = reads[name]
    if value is not None and value.split()[1] != NOBODY:
        reads.setdefault(receipt_of(name, value), None)


def items(values: dict[bytes, Any]) -> dict[Item, Any]:
    """Keys and values of accounts as they stand in a history."""
    return {(STORE, name): value for name, value in values.items()}


class BankWorker:
    """One incarnation at work. A transaction that raises one of `allowed` has changed nothing."""

    def __init__(
        self,
        pool: Any,
        acts: Acts,
        incarnation: int,
        log: TransactionLog,
        counter: Counter,
        allowed: tuple[type[Exception], ...],
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`now`: the clock of calls; that of `log` must be the same one."""
        self._pool = pool
        self._acts = acts
        self._incarnation = incarnation
        self._log = log
        self._counter = counter
        self._allowed = allowed
        self._now = now
        self._attempts = 0

    def work(self, source: random.Random) -> None:
        """One transaction after the other until the parent says stop."""
        while not self._counter.stopped:
            self._do(self._acts.draw(source))

    def _do(self, act: Act) -> None:
        start_ns = time.perf_counter_ns()
        try:
            seen = self._pool.transaction(lambda tx: self._attempt(tx, act))
        except self._allowed:
            self._log.aborted()
            self._counter.refuse()
            return
        self._log.committed()
        took_ns = time.perf_counter_ns() - start_ns
        kind, moved = (PUTS, seen.writes) if seen.writes else (GETS, seen.reads)
        self._counter.add(kind, sum(len(value or b"") for value in moved.values()), took_ns)

    def _attempt(self, tx: Any, act: Act) -> Seen:
        self._log.aborted()
        self._attempts += 1
        call_ns = self._now()
        seen = act(tx, (self._incarnation, self._attempts))
        self._log.attempt(call_ns, items(seen.reads), items(seen.writes))
        return seen
