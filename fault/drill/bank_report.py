"""What the bank is told, and what comes out of it."""

from __future__ import annotations

import dataclasses
from typing import Final

from limpet.fault.check.serializability import Report as Judged
from limpet.fault.drill.drill_report import AUDIT, MOVING, WORKERS, RunParameters, RunReport

TOTAL: Final = "the accounts have what they had at first, whenever all are read"
HISTORY: Final = "the history of transactions is strictly serializable"
INVARIANTS: Final = "check(), and the store gives what the last transaction read"
UNORDERED: Final = {"rtx-race": ("rtx-race",), "both": ("rtx-sherman", "rtx-race")}
"""The kinds of the stores that have the accounts, where these cannot be scanned."""
CHECKS: Final = (WORKERS, MOVING, TOTAL, HISTORY, INVARIANTS, AUDIT)


@dataclasses.dataclass(frozen=True)
class BankParameters(RunParameters):
    """What the bank does; `parameters` are the store's. `store`: a kind, or one of UNORDERED."""

    store: str = "rtx-sherman"
    kill_rate: float = 50.0
    nodes: int = 1
    node_size: int = 32 << 20
    accounts: int = 64


@dataclasses.dataclass(frozen=True)
class Counts:
    """Transactions of the run. totals: committed ones that read every account.

    aborted: attempts after which another was made, or none, as so many had failed (given_up, and
    where clients are stopped also for want of memory). unknown: the client was killed.
    """

    transfers: int
    reads: int
    totals: int
    aborted: int
    given_up: int
    unknown: int


@dataclasses.dataclass(frozen=True)
class BankReport(RunReport):
    """What came out."""

    parameters: BankParameters
    counts: Counts
    judged: Judged
