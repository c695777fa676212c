"""`limpet bench expiry`: the runs that figure 18 takes, and tables beside the paper's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.table import Table

from limpet.bench.figures import expiry
from limpet.bench.figures.expiry import Expiry, Setting
from limpet.bench.peers.stops import Stops
from limpet.cli.common import table, time_text
from limpet.shm.errors import ParameterError
from limpet.stores.rtx.layout import DRIFT_US, EACH_US

CLIENTS_OF_MANY: Final = 16
"""Clients of transactions with several locks: more of them are in each other's way all the time."""
OBJECTS_OF_MANY: Final = 2000
PAPER_DRIFT: Final = {5: "less than 1%", 8: "none above"}
PAPER_LOCKS: Final = {20: "0.1%, -", 80: "47.5%, 0.4%"}
Advance = Callable[[str], None]


@dataclasses.dataclass
class Found:
    """`drifts`: one lock, for each drift and number of objects; `locks`: for each number of locks a
    lease that is fixed and one that grows with it; `dead`: the same drifts, and growing leases,
    when the owner is dead; `stops`: processes that stand still now and then."""

    drifts: list[Expiry] = dataclasses.field(default_factory=list)
    locks: list[Expiry] = dataclasses.field(default_factory=list)
    dead_drifts: list[Expiry] = dataclasses.field(default_factory=list)
    dead_locks: list[Expiry] = dataclasses.field(default_factory=list)
    stops: list[Stops] = dataclasses.field(default_factory=list)


def steps(drifts: Sequence[float], locks: Sequence[int], objects: Sequence[int]) -> int:
    """How often `run` will say that it gets on."""
    return len(drifts) * (len(objects) + 1) + 3 * len(locks)


def run(
    drifts: Sequence[float],
    locks: Sequence[int],
    objects: Sequence[int],
    advance: Advance,
    *,
    clients: int,
    transactions: int,
    skew_ms: float,
    late: float,
    late_ms: float,
    seed: int,
) -> Found:
    """Run each drift, in ms, with one lock, and each number of locks with the shipped drift."""
    if max(locks, default=0) > OBJECTS_OF_MANY:
        raise ParameterError(f"transactions take at most {OBJECTS_OF_MANY} locks here")
    found = Found()
    usual = Setting(
        DRIFT_US, clients=clients, transactions=transactions, skew_us=1000 * skew_ms, late=late,
        late_us=1000 * late_ms, seed=seed,
    )  # fmt: skip
    for drift in drifts:
        one = dataclasses.replace(usual, drift_us=round(1000 * drift))
        for number in objects:
            found.drifts.append(expiry.run(dataclasses.replace(one, objects=number)))
            advance(f"drift {drift:g} ms")
        found.dead_drifts.append(expiry.run(expiry.died(one)))
        advance(f"drift {drift:g} ms")
    few = min(clients, CLIENTS_OF_MANY)
    for number in locks:
        one = dataclasses.replace(
            usual, locks=number, clients=few, objects=OBJECTS_OF_MANY,
            transactions=max(1, transactions // 5),
        )  # fmt: skip
        for each in (0, EACH_US):
            found.locks.append(expiry.run(dataclasses.replace(one, each_us=each)))
            advance(f"{number} locks")
        found.dead_locks.append(expiry.run(expiry.died(one)))
        advance(f"{number} locks")
    return found


def as_json(found: Found) -> dict[str, Any]:
    """All of it."""
    return dataclasses.asdict(found)


def _percent(one: Expiry) -> str:
    return f"{one.rate:.2%}" if one.expired else "0"


def drifts_table(found: Found) -> Table:
    """Figure 18(a)."""
    objects = list(dict.fromkeys(one.setting.objects for one in found.drifts))
    numbers = (*(f"{count:,} objects" for count in objects), "dead owner: blocked", "paper")
    setting = found.drifts[0].setting
    shown = table(
        f"false expiries for each transaction, by drift; one lock, {setting.clients} clients "
        "(figure 18a)", "drift", *numbers, right=("drift", *numbers),
    )  # fmt: skip
    for index, dead in enumerate(found.dead_drifts):
        drift = dead.setting.drift_us / 1000
        row = found.drifts[index * len(objects) : (index + 1) * len(objects)]
        shown.add_row(
            f"{drift:g} ms", *(_percent(one) for one in row), time_text(dead.blocked_ns),
            PAPER_DRIFT.get(round(drift), "-"),
        )  # fmt: skip
    shown.caption = _conditions(setting)
    return shown


def locks_table(found: Found) -> Table:
    """Figure 18(b)."""
    numbers = ("fixed lease", "growing lease", "conflicts", "dead owner: blocked",
               "paper: fixed, growing")  # fmt: skip
    setting = found.locks[0].setting
    shown = table(
        f"false expiries for each transaction, by its locks; drift {setting.drift_us / 1000:g} ms, "
        f"{setting.clients} clients, {setting.objects:,} objects (figure 18b)",
        "locks", *numbers, right=("locks", *numbers),
    )  # fmt: skip
    pairs = zip(found.locks[::2], found.locks[1::2], found.dead_locks, strict=True)
    for fixed, growing, dead in pairs:
        locks = fixed.setting.locks
        shown.add_row(
            str(locks), _percent(fixed), _percent(growing),
            f"{growing.retries / growing.transactions:.1f}", time_text(dead.blocked_ns),
            PAPER_LOCKS.get(locks, "-"),
        )  # fmt: skip
    shown.caption = (
        f"growing: by {EACH_US / 1000:g} ms for each lock. conflicts: for each transaction. "
        f"{_conditions(setting)}"
    )
    return shown


def _conditions(setting: Setting) -> str:
    return (
        f"clocks differ by {setting.skew_us / 1000:g} ms (standard deviation); {setting.late:.1%} "
        f"of verbs are late, by {setting.late_us / 1000:g} ms on average. blocked: until the lock "
        "of a client that is gone is seen to, by its lease only."
    )


def stops_table(found: Found) -> Table:
    """Real processes, some of which stand still."""
    numbers = ("updates/s", "stops", "locks expired", "of updates", "of stops")
    first = found.stops[0]
    shown = table(
        f"false expiries of {first.processes} processes, stopped for {first.stop_ms:g} ms on "
        "average", "drift", *numbers, right=("drift", *numbers),
    )  # fmt: skip
    for one in found.stops:
        shown.add_row(
            f"{one.drift_us / 1000:g} ms", f"{one.updates_per_s:,.0f}", f"{one.stops:,}",
            f"{one.expired:,}", f"{one.expired / one.updates:.4%}",
            f"{one.expired / one.stops:.1%}" if one.stops else "-",
        )  # fmt: skip
    shown.caption = "Not repeatable: that is the machine's scheduler."
    return shown


def tables(found: Found) -> list[Table]:
    """A table for each part that there is."""
    return [
        *([drifts_table(found)] if found.drifts else []),
        *([locks_table(found)] if found.locks else []),
        *([stops_table(found)] if found.stops else []),
    ]
