"""Histories: the file format is strict, and records survive the client that made them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.processes import children, gather

from limpet.fault.check.history import (
    RESULTS,
    WRITES,
    HistoryError,
    Record,
    dump_line,
    merge,
    parse_line,
    read_history,
    write_history,
)
from limpet.fault.check.linearizability import Verdict, check
from limpet.fault.check.recorder import NOTES_PER_CHUNK, Operation, Result
from limpet.fault.check.recording import HistoryRecorder, Recorded, from_notes
from limpet.shm.errors import KeyExists, NodeFailed

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")

PUT = Record(3, "put", b"\x00k", b"\xff", "ok", None, 5, 9)
GET = Record(4, "get", b"\x00k", None, "ok", b"", 6, 8)
LOST = Record(5, "delete", b"\x00k", None, "unknown", None, 7, None)


@pytest.fixture
def recorder() -> Iterator[HistoryRecorder]:
    with HistoryRecorder(2) as made:
        yield made


# ---- the file ----------------------------------------------------------------------------------


def test_line_has_exactly_the_documented_form() -> None:
    assert dump_line(PUT) == (
        '{"client": 3, "op": "put", "key": "006b", "value": "ff", "result": "ok", "read": null, '
        '"call_ns": 5, "return_ns": 9}\n'
    )
    assert json.loads(dump_line(GET))["read"] == ""
    assert json.loads(dump_line(LOST))["return_ns"] is None


def test_file_comes_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert write_history(path, [PUT, GET, LOST]) == 3
    assert read_history(path) == [PUT, GET, LOST]
    assert write_history(path, []) == 0
    assert read_history(path) == []


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    op = draw(st.sampled_from(sorted(RESULTS)))
    result = draw(st.sampled_from(RESULTS[op]))
    call = draw(st.integers(0, 1 << 62))
    return Record(
        draw(st.integers(0, 1 << 32)),
        op,
        draw(st.binary(max_size=8)),
        draw(st.binary(max_size=8)) if op in WRITES else None,
        result,
        draw(st.binary(max_size=8)) if op == "swap" or (op, result) == ("get", "ok") else None,
        call,
        None if result == "unknown" else call + draw(st.integers(0, 1 << 40)),
    )


@given(any_record())
def test_every_record_survives_its_line(record: Record) -> None:
    assert parse_line(dump_line(record).encode()) == record


@given(st.binary(max_size=60))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(HistoryError):
        parse_line(data)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"op": "scan"}, "op is 'scan'"),
        ({"op": 3}, "op is 3, not a string"),
        ({"client": True}, "client is True, not an integer"),
        ({"client": 1.0}, "client is 1.0, not an integer"),
        ({"call_ns": None}, "call_ns is None, not an integer"),
        ({"key": "6"}, "key is '6', not a string of hexadecimal digits"),
        ({"key": "00 6b"}, "spaces"),
        ({"key": None}, "key is None"),
        ({"value": None}, "put needs a value"),
        ({"value": "zz"}, "value is 'zz'"),
        ({"result": "missing"}, "result of put is 'missing', not one of ok, unknown"),
        ({"read": "00"}, "read must be null"),
        ({"op": "get"}, "get has no value"),
        ({"op": "get", "value": None}, "needs what was read"),
        ({"return_ns": None}, "return_ns is None and the result 'ok'"),
        ({"result": "unknown"}, "return_ns is 9 and the result 'unknown'"),
        ({"return_ns": 4}, "returned at 4 ns, before its call at 5 ns"),
        ({"extra": 1}, "'extra' is unknown"),
    ],
)
def test_line_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    line = json.dumps({**json.loads(dump_line(PUT)), **changes})
    with pytest.raises(HistoryError) as caught:
        parse_line(line.encode())
    assert words in str(caught.value)


def test_line_with_missing_or_double_fields_is_refused() -> None:
    with pytest.raises(HistoryError, match="'read' is missing"):
        parse_line(dump_line(PUT).replace('"read": null, ', "").encode())
    with pytest.raises(HistoryError, match="a field is there twice"):
        parse_line(dump_line(PUT).replace('"read": null', '"read": null, "read": null').encode())
    with pytest.raises(HistoryError, match="not a JSON object but a list"):
        parse_line(b"[]")


def test_reader_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_history(path, [PUT, GET])
    path.write_bytes(path.read_bytes() + b'{"client": 1\n')
    with pytest.raises(HistoryError, match=r"history\.jsonl, line 3: not a JSON object"):
        read_history(path)
    path.write_bytes(dump_line(PUT).encode() + b"\n")
    with pytest.raises(HistoryError, match="line 2"):
        read_history(path)


def test_writer_refuses_what_no_reader_takes(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="delete has no value"):
        write_history(tmp_path / "h", [LOST._replace(value=b"x")])


def test_merge_is_in_order_of_calls() -> None:
    assert merge([GET], [LOST, PUT]) == [PUT, GET, LOST]
    assert merge() == []


# ---- recording ---------------------------------------------------------------------------------


class Shelf:
    """A store, as far as recording is concerned."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.held.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        if value == b"fail":
            raise NodeFailed(0)
        self.held[key] = value

    def insert(self, key: bytes, value: bytes) -> None:
        if key in self.held:
            raise KeyExists("it is there")
        self.held[key] = value

    def update(self, key: bytes, value: bytes) -> None:
        if key not in self.held:
            raise KeyError(key)
        self.held[key] = value

    def delete(self, key: bytes) -> None:
        del self.held[key]


def test_recorder_notes_every_operation_and_outcome(recorder: HistoryRecorder) -> None:
    kv = Recorded(Shelf(), recorder.log(0, client=7))
    assert kv.get(b"k") is None
    kv.insert(b"k", b"1")
    with pytest.raises(KeyExists):
        kv.insert(b"k", b"2")
    kv.update(b"k", b"")
    assert kv.get(b"k") == b""
    kv.put(b"k", b"long" * 100)
    kv.delete(b"k")
    with pytest.raises(KeyError):
        kv.update(b"k", b"3")
    with pytest.raises(KeyError):
        kv.delete(b"k")
    with pytest.raises(NodeFailed):
        kv.put(b"other", b"fail")
    kv.get(b"k")
    records = recorder.records()
    assert [(r.op, r.value, r.result, r.read) for r in records] == [
        ("get", None, "missing", None),
        ("insert", b"1", "ok", None),
        ("insert", b"2", "exists", None),
        ("update", b"", "ok", None),
        ("get", None, "ok", b""),
        ("put", b"long" * 100, "ok", None),
        ("delete", None, "ok", None),
        ("update", b"3", "missing", None),
        ("delete", None, "missing", None),
        ("put", b"fail", "unknown", None),
        ("get", None, "missing", None),
    ]
    assert {r.client for r in records} == {7}
    assert {r.key for r in records} == {b"k", b"other"}
    for record in records:
        assert parse_line(dump_line(record).encode()) == record
    assert check(records).verdict is Verdict.OK


def test_recorder_outlives_killed_clients(recorder: HistoryRecorder, tmp_path: Path) -> None:
    """Five incarnations of one slot, each killed inside its third operation."""
    for incarnation in range(1, 6):
        came, go = os.pipe()

        def client(incarnation: int = incarnation, go: int = go) -> None:
            log = recorder.log(1, incarnation)
            for number in range(3):
                log.call(Operation.PUT, b"key-%d" % number, b"%d by %d" % (number, incarnation))
                if number < 2:
                    log.returned(Result.OK)
            os.write(go, b"x")
            signal.pause()

        with children([client]) as started:
            os.read(came, 1)
            os.kill(started[0][0], signal.SIGKILL)
            os.waitpid(started[0][0], 0)
        os.close(came)
        os.close(go)
    records = recorder.records()
    assert [(r.client, r.key, r.value, r.result) for r in records] == [
        (incarnation, b"key-%d" % n, b"%d by %d" % (n, incarnation), "ok" if n < 2 else "unknown")
        for incarnation in range(1, 6)
        for n in range(3)
    ]
    assert [r.return_ns is None for r in records] == [False, False, True] * 5
    path = tmp_path / "history.jsonl"
    write_history(path, merge(records))
    assert read_history(path) == records, "one slot's calls are in order already"


def test_recorder_continues_after_a_string_that_was_cut(recorder: HistoryRecorder) -> None:
    recorder.log(0, 1).call(Operation.PUT, b"key", b"first")
    archive = recorder._archives[0]
    os.pwrite(archive, b"\xff\xff\xff", os.fstat(archive).st_size)
    log = recorder.log(0, 2)
    log.call(Operation.PUT, b"key", b"second")
    log.returned(Result.OK)
    assert [(r.client, r.key, r.value) for r in recorder.records()] == [
        (1, b"key", b"first"),
        (2, b"key", b"second"),
    ]


@pytest.mark.exhaustive("many operations")
def test_recorder_loses_nothing_of_many_operations(recorder: HistoryRecorder) -> None:
    count = NOTES_PER_CHUNK + 100

    def client(slot: int) -> None:
        log = recorder.log(slot, slot + 1)
        for number in range(count):
            log.call(Operation.PUT, b"%d" % (number % 10), b"%d-%d" % (slot, number))
            log.returned(Result.OK)

    gather(lambda: client(0), lambda: client(1))
    records = recorder.records()
    assert [r.value for r in records] == [b"%d-%d" % (s, n) for s in (0, 1) for n in range(count)]
    assert check(records, processes=1).verdict is Verdict.OK


def test_recorder_can_be_read_while_clients_write(recorder: HistoryRecorder) -> None:
    log = recorder.log(0, 1)
    log.call(Operation.GET, b"k")
    assert [(r.op, r.result) for r in recorder.records()] == [("get", "unknown")]
    log.returned(Result.OK, b"value")
    assert [(r.op, r.read) for r in recorder.records()] == [("get", b"value")]


def test_notes_of_numbers_become_records(recorder: HistoryRecorder) -> None:
    log = recorder._recorder.log(0, 9)
    log.call(Operation.PUT, 4, 17)
    log.returned(Result.OK)
    log.call(Operation.GET, 4)
    log.returned(Result.OK, 17)
    log.call(Operation.DELETE, 4)
    notes = recorder._recorder.notes()

    def key_of(number: int) -> bytes:
        return b"key-%d" % number

    def value_of(number: int) -> bytes:
        return b"value-%d" % number

    found = list(from_notes(notes, key_of, value_of))
    assert [(r.client, r.op, r.key, r.value, r.result, r.read) for r in found] == [
        (9, "put", b"key-4", b"value-17", "ok", None),
        (9, "get", b"key-4", None, "ok", b"value-17"),
        (9, "delete", b"key-4", None, "unknown", None),
    ]
    log.call(Operation.GET, 4)
    log.returned(Result.TORN)
    with pytest.raises(ValueError, match="client 9 read torn bytes"):
        list(from_notes(recorder._recorder.notes(), key_of, value_of))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=20))
def test_recorder_keeps_all_bytes(pairs: list[tuple[bytes, bytes]]) -> None:
    with HistoryRecorder(1) as recorder:
        kv = Recorded(Shelf(), recorder.log(0, 1))
        for key, value in pairs:
            if value != b"fail":
                kv.put(key, value)
        expected = [pair for pair in pairs if pair[1] != b"fail"]
        assert [(r.key, r.value) for r in recorder.records()] == expected
