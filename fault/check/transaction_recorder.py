"""Noting transactions in memory that survives their client, before others can see them.

An attempt at a transaction takes effect as a whole when its function has returned, so one note is
enough: the attempt's reads and writes, noted at the end of the function. A client that is killed
before has changed nothing, and one that is killed later has an attempt of unknown outcome.

The notes are those of recording.py. An attempt is noted as an update of one key whose value is its
line in a history file; the result is "ok" for committed, "missing" (nothing changed) for aborted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from limpet.fault.check.history import Record
from limpet.fault.check.recorder import Operation, Result
from limpet.fault.check.recording import ClientLog, HistoryRecorder
from limpet.fault.check.transactions import Transaction, Values, dump_line, parse_line

_KEY: Final = b"transaction"
_OUTCOMES: Final = {"ok": "committed", "missing": "aborted", "unknown": "unknown"}


class TransactionLog:
    """The writing end of one slot, in the process that makes the transactions."""

    def __init__(self, log: ClientLog, client: int) -> None:
        self._log = log
        self._client = client
        self._open = False

    def attempt(self, call_ns: int, reads: Values, writes: Values) -> None:
        """Note an attempt that began at `call_ns`, at the end of its function."""
        line = dump_line(Transaction(self._client, "unknown", reads, writes, call_ns, None))
        self._log.call(Operation.UPDATE, _KEY, line.encode("ascii"))
        self._open = True

    def committed(self) -> None:
        """Note that the last attempt was committed."""
        self._log.returned(Result.OK)
        self._open = False

    def aborted(self) -> None:
        """Note that the last attempt, if it is not complete, was aborted."""
        if self._open:
            self._log.returned(Result.MISSING)
        self._open = False


def transactions_of(records: Iterable[Record]) -> list[Transaction]:
    """The attempts that `TransactionLog` has noted, in their order."""
    return [
        parse_line(record.value or b"")._replace(
            outcome=_OUTCOMES[record.result], return_ns=record.return_ns
        )
        for record in records
    ]


class TransactionRecorder:
    """The logs of a run. Make it before the fork; it is also a context manager."""

    def __init__(self, slots: int) -> None:
        self._recorder = HistoryRecorder(slots)

    def log(self, slot: int, client: int) -> TransactionLog:
        """The log of `slot`, to be continued by `client`. The slot's last writer must be dead."""
        return TransactionLog(self._recorder.log(slot, client), client)

    def transactions(self) -> list[Transaction]:
        """All attempts so far, slot after slot, each in their order."""
        return transactions_of(self._recorder.records())

    def __enter__(self) -> TransactionRecorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self._recorder.close()
