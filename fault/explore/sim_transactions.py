"""Transactions in programs of simulated clients, and whether all of a run is serializable.

A transaction does the steps of its text (sim_steps.py). It notes a refused step (an insert of a key
that is there, an update or delete of one that is not), and goes on. Every value that is written is
a different one, in each attempt.

Two things are noted. The reads of each attempt whose function came to its end: they must be true at
one moment. And the reads and writes of each transaction's last attempt: they must happen at one
moment. All of these, and the operations on single keys, must have an order (transaction_model.py).

A transaction that ends by TransactionConflict, or where memory is scarce by StoreFull, changed
nothing: its last attempt has no writes and no reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.fault.check.linearize import Timed
from limpet.fault.check.transaction_model import (
    PRESENT,
    Found,
    Step,
    step_of,
    timed_of,
    wrong_order,
)
from limpet.fault.explore.sim_steps import steps_of
from limpet.shm.errors import KeyExists, StoreFull, TransactionConflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.fault.check.history import Record
    from limpet.fault.explore.sim_cluster import SimulatedClient, SimulatedCluster

ATTEMPTS: Final = 40
"""Attempts after which a transaction is given up: each has met a conflict."""


class Attempt:
    """One attempt of a transaction: the values that it has read and written so far by `tx`."""

    def __init__(
        self, tx: Any, client: SimulatedClient, cluster: SimulatedCluster, name: bytes
    ) -> None:
        self.tx = tx
        self.store = client.store
        self.cluster = cluster
        self.name = name
        self.reads: dict[bytes, Found] = {}
        self.writes: dict[bytes, bytes | None] = {}

    def do(self, steps: list[tuple[str, bytes]], keys: tuple[bytes, ...]) -> None:
        for number, (letter, key) in enumerate(steps):
            value = b"%s.%d" % (self.name, number)
            if letter == "s":
                self._scan(keys)
            elif letter == "g":
                self._found(key, self._label(self.tx.get(self.store, key)))
            elif letter in "px":
                self.tx.put(self.store, key, self.cluster.value_of(value))
                if letter == "x":
                    self.tx.delete(self.store, key)
                self.writes[key] = value if letter == "p" else None
            else:
                self._try(letter, key, value)

    def _try(self, letter: str, key: bytes, label: bytes) -> None:
        """Insert, update or delete; note whether the key was there."""
        try:
            if letter == "d":
                self.tx.delete(self.store, key)
            else:
                change = self.tx.insert if letter == "i" else self.tx.update
                change(self.store, key, self.cluster.value_of(label))
        except KeyExists:
            self._found(key, PRESENT)
        except KeyError:
            self._found(key, None)
        else:
            self._found(key, None if letter == "i" else PRESENT)
            self.writes[key] = None if letter == "d" else label

    def _scan(self, keys: tuple[bytes, ...]) -> None:
        if self.store.ordered:
            there = dict(self.tx.scan(self.store, keys[0], keys[-1] + b"\0"))
        else:
            there = {key: self.tx.get(self.store, key) for key in keys}
        for key in keys:
            self._found(key, self._label(there.get(key)))

    def _label(self, value: bytes | None) -> bytes | None:
        return None if value is None else self.cluster.label_of(value)

    def _found(self, key: bytes, found: Found) -> None:
        """Note the state in which a key was found, unless the transaction wrote it itself."""
        if key in self.writes:
            mine = self.writes[key]
            right = found == mine or (found == PRESENT and mine is not None)
        else:
            known = self.reads.setdefault(key, found)
            right = found == known or (PRESENT in (found, known) and None not in (found, known))
            if known == PRESENT and found is not None:
                self.reads[key] = found
        if not right:
            raise AssertionError(f"{self.name!r} finds {found!r} of {key!r}, and had found another")


class TransactionHistory:
    """The transactions of a run. `tick`: the time, which goes on with each look at it."""

    def __init__(self, cluster: SimulatedCluster, tick: Callable[[], int]) -> None:
        self.cluster = cluster
        self.tick = tick
        self.read: list[Timed[Step]] = []
        """The values that attempts read."""
        self.done: list[tuple[int, int | None, Step]] = []
        """The call and return of each transaction, and its effect."""

    def run(
        self, client: SimulatedClient, text: bytes, name: bytes, keys: tuple[bytes, ...]
    ) -> None:
        """Do a transaction."""
        called, number = self.tick(), len(self.done)
        self.done.append((called, None, step_of({}, {})))
        began = [called]
        steps = steps_of(text)

        def work(tx: Any) -> None:
            # Recalled values were read after the last attempt began, before the function is called.
            start, began[0] = began[0], self.tick()
            self.done[number] = called, None, step_of({}, {})  # the last attempt did nothing
            attempt = Attempt(tx, client, self.cluster, b"%s.%d" % (name, began[0]))
            attempt.do(steps, keys)
            since = start if tx.recalls() else began[0]
            self.read.append(Timed(step_of(attempt.reads, {}), since, self.tick()))
            self.done[number] = called, None, step_of(attempt.reads, attempt.writes)

        try:
            client.pool.transaction(work, attempts=ATTEMPTS)
        except (TransactionConflict, StoreFull) as error:
            if isinstance(error, StoreFull) and not self.cluster.scarce:
                raise
            self.done[number] = called, self.tick(), step_of({}, {})
        else:
            self.done[number] = called, self.tick(), self.done[number][2]

    def wrong(self, records: list[Record], initial: dict[bytes, bytes]) -> str:
        """The reason why these and the operations on single keys have no order, or ""."""
        history = [timed_of(record) for record in records] + self.read
        history += [Timed(step, called, returned) for called, returned, step in self.done]
        return wrong_order(history, initial)
