"""Transactions for users: `pool.transaction(fn)`, the paper's RTRANSACTION block (rTX section 3).

The function is called with a transaction (execution.py), which is then committed (commit.py).
After a conflict it is called again, and after a few, what it has read is read before it is called
(cut.py).

A kill leaves behind what commit.py and cut.py say.
"""

from __future__ import annotations

from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, TypeVar

from limpet.shm.errors import ParameterError, StoreFull, TransactionConflict
from limpet.stores.core.status import AGAIN, NO_MEMORY
from limpet.stores.rtx.cut import Cut, Item, Recalled, Recheck
from limpet.stores.rtx.execution import Conflict, Transaction
from limpet.stores.transactions.layout import SPARED_BLOCKS

Result = TypeVar("Result")
UNSTARTED: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)
OPTIMISTIC: Final = 4
"""After so many conflicts, what was read is read before the function is called again."""


def run(pool: Any, work: Callable[[Transaction], Result], attempts: int) -> Result:
    """Call `work` with a transaction until it commits; what it returned.

    An exception of it ends the transaction, and nothing has happened. Raises TransactionConflict
    after so many attempts, StoreFull, NodeFailed.
    """
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ParameterError(f"attempts must be a whole number above 0, not {attempts!r}")
    looks: dict[Item, Recheck] | None = None
    counted = reach = 0
    reading = False
    while counted < attempts:
        recalled = None
        if looks and reading and counted >= OPTIMISTIC:
            recalled = _recall(pool, looks, counted)
        transaction = Transaction(pool, recalled)
        try:
            result = work(transaction)
            if result is not None and type(result) in UNSTARTED:
                _refuse_unstarted(pool, result)
            transaction.returned = True
            if transaction.commit():
                return result
        except Conflict as conflict:
            if conflict.args[0] is not transaction:
                raise  # that of another one, around this one
        except Exception:
            if not transaction.is_doomed():
                raise
        finally:
            transaction.end()
        # One that has got further than all before, by what was recalled, does not count: as often
        # as there is something to be read, at most.
        counted += not (transaction.recalls() and transaction.reach > reach)
        reach = max(reach, transaction.reach)
        looks = {**looks, **transaction.looks()} if looks else transaction.looks()
        reading = transaction.met_while_reading()
        transaction.await_holder(max(1, counted))
    raise TransactionConflict(
        f"{pool.url}: a transaction met conflicts in all of its {attempts} attempts, the last one "
        f"over {transaction.conflict()}; make it smaller, or allow more attempts"
    )


def _refuse_unstarted(pool: Any, result: Any) -> None:
    """Raise TypeError for what the call of an `async def` or generator function returns: it has not
    begun."""
    if not isinstance(result, AsyncGeneratorType):
        result.close()  # so Python does not warn that it was never awaited
    raise TypeError(
        f"{pool.url}: the function of a transaction returned a {type(result).__name__}, which "
        "would run after the transaction; pass a plain function"
    )


def _recall(pool: Any, looks: dict[Item, Recheck], attempt: int) -> dict[Item, Recalled]:
    """The reads that an attempt is to find done already (cut.py); none if other clients have locked
    leaves, or there is no memory."""
    cut = Cut(pool, looks)
    try:
        while True:
            with pool.client:
                outcome, found = cut.take()
            if outcome != NO_MEMORY:
                break
            cut.replenish(SPARED_BLOCKS)
    except StoreFull:
        return {}  # it can do without
    if outcome == AGAIN:
        cut.store.repair.await_holder(cut.busy, attempt, True)
    return found
