"""The work on a store: the mix of the store drill, on keys of which some are hot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from limpet.fault.check.recorder import Operation, Result
from limpet.fault.drill import drill_history
from limpet.fault.drill.drill_client import DrillClient, Values, judge
from limpet.fault.drill.workload import ZipfWorkload
from limpet.fault.inject.counters import Counter
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.rack.record import NOTES_MAX, Record
from limpet.fault.rack.work import FINAL_SLOT, HISTORY, WHOLE, Deaths, Wrong
from limpet.shm.errors import LimpetError

NAME: Final = "rack"
SEED: Final = 7
SIZES: Final = (40, 400)
WRITERS: Final = 16
"""Of a store that limits them: also the clients of a lost machine have slots until a lease is over,
beside those that come in their place."""
MIX: Final = {
    Operation.GET: 30.0,
    Operation.PUT: 25.0,
    Operation.INSERT: 15.0,
    Operation.UPDATE: 15.0,
    Operation.DELETE: 15.0,
}


class StoreWork:
    """Gets and writes of all kinds of `keys` keys of a store."""

    checks: ClassVar[tuple[str, ...]] = (WHOLE, HISTORY)

    def __init__(self, kind: str, keys: int) -> None:
        self.kind = kind
        self.keys = [b"key-%06d" % number for number in range(keys)]

    def open(self, pool: Any) -> Any:
        """The store; it is made if it is not there."""
        parameters = dict(profile_of(self.kind).parameters)
        if "writers" in parameters:
            parameters["writers"] = WRITERS
        return pool.store(self.kind, name=NAME, capacity=2 * len(self.keys), **parameters)

    def prepare(self, pool: Any, record: Record) -> None:
        self.open(pool)

    def work(
        self, pool: Any, record: Record, slot: int, incarnation: int, counter: Counter
    ) -> None:
        log = record.log(slot, incarnation)
        mix = ZipfWorkload(len(self.keys), 0.99, MIX, SEED)
        store = self.open(pool)
        counter.start(os.getpid(), pool.client_id)
        client = DrillClient(
            store, self.keys, Values(SIZES, SEED), incarnation, log, counter, (), lambda node: False
        )  # fmt: skip
        left = NOTES_MAX - log.count
        drawn = mix.draw(incarnation)
        client.work(next(drawn) for _ in range(left))

    def read(self, pool: Any, record: Record, incarnation: int) -> list[str]:
        store, log = self.open(pool), record.log(FINAL_SLOT, incarnation)
        wrong: list[str] = []
        for number, name in enumerate(self.keys):
            log.call(Operation.GET, number)
            try:
                result, read, _ = judge(store.get(name), number)
            except LimpetError as error:
                wrong.append(f"get({name!r}): {type(error).__name__}: {error}")
                continue
            log.returned(result, read)
            if result is Result.TORN:
                wrong.append(f"get({name!r}) gives a value that no client wrote")
        return wrong

    def check(self, pool: Any) -> None:
        self.open(pool).check()

    def found(self, pool: Any) -> dict[str, Any]:
        return {}

    def judge(self, record: Record, deaths: Deaths, found: Mapping[str, Any]) -> Wrong:
        notes = record.notes()
        judged = drill_history.judge(notes, self.keys)
        bad = [f"{key.key!r} is {key.verdict.value}: {key.detail}" for key in judged.bad()]
        return {WHOLE: drill_history.torn(notes, self.keys), HISTORY: bad}
