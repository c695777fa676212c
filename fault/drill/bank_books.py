"""The books of a bank: its accounts are opened, read as a whole, and compared with a history.

The bank drill (bank.py) and the rack use them. `now` is the clock of the history: that of the
drill's processes, or the rack's tickets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from limpet.fault.check.transactions import Item, Transaction, Values, name_of
from limpet.fault.check.verify import FINAL
from limpet.fault.drill.bank_worker import (
    LOAD,
    START,
    STORE,
    Act,
    Acts,
    account,
    balance_of,
    items,
    value_of,
)
from limpet.shm.errors import StoreCorrupt

UNORDERED: Final = {"rtx-race": ("rtx-race",), "both": ("rtx-sherman", "rtx-race")}
"""The kinds of the stores that have the accounts, where these cannot be scanned."""
LOADER: Final = 0
"""The client of the load in the history."""
EXAMPLES_MAX: Final = 5


class Books:
    """The accounts of the stores of `kind` (a kind, or one of UNORDERED) in `pool`."""

    def __init__(
        self, pool: Any, kind: str, accounts: int, parameters: Mapping[str, Any],
        now: Callable[[], int],
    ) -> None:  # fmt: skip
        self.pool = pool
        self.accounts: Sequence[bytes] = [account(number) for number in range(accounts)]
        self.stores = [
            pool.store(one, name=f"{STORE} {number}" if number else STORE, **parameters)
            for number, one in enumerate(UNORDERED.get(kind, (kind,)))
        ]
        self.acts = Acts(self.stores, self.accounts, kind not in UNORDERED)
        self._now = now

    def load(self) -> Transaction:
        """Open the accounts; the load as it stands in the history."""
        call_ns = self._now()
        for name in self.accounts:
            self.acts.store_of(name).insert(name, value_of(START, LOAD))
        reads = items(dict.fromkeys(self.accounts))
        writes = items(dict.fromkeys(self.accounts, value_of(START, LOAD)))
        return Transaction(LOADER, "committed", reads, writes, call_ns, self._now())

    def read(self, act: Act) -> Transaction:
        """Read all accounts in one transaction, as it stands in the history."""
        call_ns = self._now()
        seen = self.pool.transaction(lambda tx: act(tx, LOAD))
        return Transaction(FINAL, "committed", items(seen.reads), {}, call_ns, self._now())

    def compare(self, last: Values | None) -> None:
        """`check()` of each store, and whether it gives what the last transaction read.

        Raises StoreCorrupt if it does not.
        """
        for store in self.stores:
            store.check()
        found = items({name: store.get(name) for store in self.stores for name in store})
        last = found if last is None else last
        differ = [item for item in {**found, **last} if found.get(item) != last.get(item)]
        if differ:
            raise StoreCorrupt(
                f"the store gives {len(found)} keys, the last transaction read {len(last)}; "
                f"{len(differ)} differ, such as {name_of(differ[0])}"
            )


def items_of(accounts: int) -> frozenset[Item]:
    """The accounts, as a history names them."""
    return frozenset(items({account(number): None for number in range(accounts)}))


def totals(transactions: Iterable[Transaction], every: frozenset[Item]) -> list[Transaction]:
    """Committed transactions that read every account."""
    return [
        one
        for one in transactions
        if one.outcome == "committed" and one.client != LOADER and every <= one.reads.keys()
    ]


def wrong_totals(transactions: Iterable[Transaction], every: frozenset[Item]) -> list[str]:
    """The transactions that read another sum than that of the load, in words."""
    total = START * len(every)
    sums = [
        (one, sum(balance_of(one.reads[item]) for item in every))
        for one in totals(transactions, every)
    ]
    wrong = [f"{one}: that is {found} in all, not {total}" for one, found in sums if found != total]
    more = [f"and {len(wrong) - EXAMPLES_MAX} more wrong totals"]
    return wrong[:EXAMPLES_MAX] + more * (len(wrong) > EXAMPLES_MAX)
