"""The work of a run: what its clients do in a pool, and how the history of all is judged.

A kind of run is a kind of store (work_store.py), a channel (work_channels.py), or the transactions
of the bank drill (work_bank.py). The mixes and the checkers are those of the drills; only the
record (record.py) and the clock, which are the rack's, are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol

from limpet.fault.inject.counters import Counter
from limpet.fault.rack.record import SLOTS, Record

FINAL_SLOT: Final = SLOTS - 1
"""The slot of the client that looks at everything in the end."""
LOAD_SLOT: Final = SLOTS - 2
"""The slot of the client that makes the pool."""
WHOLE: Final = "every value read was whole"
HISTORY: Final = "the merged history is linearizable"

Deaths = Mapping[int, int]
"""The tickets at which clients were about to be killed or given up, by their incarnations."""
Wrong = Mapping[str, list[str]]
"""The reasons against each check, by the check."""


class Work(Protocol):
    """One kind of work, with its name. The first five run inside a machine."""

    kind: str
    checks: ClassVar[tuple[str, ...]]
    """The sentences that `judge` finds to hold or not."""

    def prepare(self, pool: Any, record: Record) -> None:
        """Make what the clients work on."""

    def work(
        self, pool: Any, record: Record, slot: int, incarnation: int, counter: Counter
    ) -> None:
        """Work as a client, until `counter` says stop or the record is full."""

    def read(self, pool: Any, record: Record, incarnation: int) -> list[str]:
        """Use everything, as a client of FINAL_SLOT; what is wrong, in words.

        It is called before the dead are recovered, and again afterwards.
        """

    def check(self, pool: Any) -> None:
        """Raise a LimpetError if an invariant does not hold."""

    def found(self, pool: Any) -> dict[str, Any]:
        """The facts about the pool in the end that `judge` needs, for JSON."""

    def judge(self, record: Record, deaths: Deaths, found: Mapping[str, Any]) -> Wrong:
        """The reasons against the checks, in words."""
