"""The checker of linearizability: histories it must refuse, and hard ones it must accept."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.histories import KEY, delete, get, insert, possible, put, update

from limpet.fault.check.history import HistoryError, Record, write_history
from limpet.fault.check.linearizability import Verdict, check, check_file, check_key
from limpet.fault.check.linearize import Search, Timed, events_of
from limpet.fault.check.models import Model
from limpet.fault.check.synthetic import Shape, main, synthesize

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")

A, B, C = b"a", b"b", b"c"

BAD = {
    "stale read": [put(A, 1, 2), put(B, 3, 4), get(A, 5, 6)],
    "stale read of an absent key": [insert(A, 1, 2), get(None, 3, 4)],
    "lost put": [put(A, 1, 2), get(None, 3, 4)],
    "lost update": [insert(A, 1, 2), update(B, 3, 4), get(A, 5, 6)],
    "read of a value that no client wrote": [put(A, 1, 2), get(B, 3, 4)],
    "read before the write was called": [get(A, 1, 2), put(A, 3, 4)],
    "two inserts of one key": [insert(A, 1, 5), insert(B, 2, 6)],
    "value of an insert that failed": [put(A, 1, 2), insert(B, 3, 4, "exists"), get(B, 5, 6)],
    "value of an update that failed": [update(A, 1, 2, "missing"), get(A, 3, 4)],
    "insert that failed on an absent key": [insert(A, 1, 2, "exists")],
    "update of an absent key": [update(A, 1, 2)],
    "update that missed a key": [put(A, 1, 2), update(B, 3, 4, "missing")],
    "delete of an absent key": [delete(1, 2)],
    "delete that missed a key": [put(A, 1, 2), delete(3, 4, "missing")],
    "two deletes of one insert": [insert(A, 1, 2), delete(3, 6), delete(4, 7)],
    "read after delete": [put(A, 1, 2), delete(3, 4), get(A, 5, 6)],
    "resurrected after delete": [
        put(A, 1, 2), delete(3, 4), get(None, 5, 6), get(A, 7, 8),
    ],
    "reads that disagree on the order of two puts": [
        put(A, 1, 10), put(B, 1, 10), get(A, 11, 12), get(B, 13, 14),
    ],
    "read inversion during a put": [put(A, 1, 2), put(B, 3, 10), get(B, 4, 5), get(A, 6, 7)],
    "unknown put that took effect before its call": [get(A, 1, 2), put(A, 3, None)],
    "unknown put that took effect twice": [
        put(A, 1, None), get(A, 2, 3), put(B, 4, 5), get(B, 6, 7), get(A, 8, 9),
    ],
    "unknown put undone": [put(A, 1, 2), put(B, 3, None), get(B, 4, 5), get(A, 6, 7)],
    "unknown delete undone": [put(A, 1, 2), delete(3, None), get(None, 4, 5), get(A, 6, 7)],
    "unknown insert that overwrote": [insert(A, 1, 2), insert(B, 3, None), get(B, 4, 5)],
    "unknown update that inserted": [update(A, 1, None), get(A, 2, 3)],
    "update before the put that it needs": [put(B, 2, 3), update(A, 1, 10), get(B, 11, 12)],
    "put before an insert that succeeded": [put(A, 1, 10), insert(B, 2, 3), get(B, 11, 12)],
    "one unknown delete for two": [
        insert(A, 1, 2), delete(3, None), insert(B, 4, 5), insert(C, 6, 7),
    ],
}  # fmt: skip

GOOD = {
    "nothing": [],
    "either of two concurrent puts": [put(A, 1, 10), put(B, 1, 10), get(A, 11, 12)],
    "the other of two concurrent puts": [put(A, 1, 10), put(B, 1, 10), get(B, 11, 12)],
    "both during the puts": [put(A, 1, 10), put(B, 1, 10), get(A, 2, 3), get(B, 4, 5)],
    "read of a put in progress": [put(A, 1, 10), get(A, 2, 3)],
    "a call in the nanosecond of a return": [put(A, 1, 2), put(B, 2, 3), get(A, 4, 5)],
    "unknown put never": [put(A, 1, 2), put(B, 3, None), get(A, 4, 5)],
    "unknown put late": [put(A, 1, 2), put(B, 3, None), get(A, 4, 5), get(B, 6, 7)],
    "unknown put between others": [
        put(A, 1, None), put(B, 2, 3), get(B, 4, 5), get(A, 6, 7), put(C, 8, 9), get(C, 10, 11),
    ],
    "unknown insert explains exists": [insert(A, 1, None), insert(B, 2, 3, "exists")],
    "unknown delete explains insert": [
        insert(A, 1, 2), delete(3, None), insert(B, 4, 5), get(B, 6, 7),
    ],
    "insert and delete by turns at once": [
        insert(A, 1, 20), insert(B, 1, 20), delete(1, 20), delete(1, 20), get(None, 21, 22),
    ],
    "update between concurrent deletes": [
        put(A, 1, 2), update(B, 3, 10), delete(3, 10), get(None, 11, 12),
    ],
    "hidden delete": [put(A, 1, 2), delete(3, 10), put(B, 3, 10), get(B, 11, 12)],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_check_refuses(name: str) -> None:
    report = check(BAD[name])
    assert report.verdict is Verdict.ILLEGAL
    assert report.exit_status == 1
    assert "nothing explains" in report.bad()[0].detail
    assert not possible(BAD[name])


@pytest.mark.parametrize("name", GOOD)
def test_check_accepts(name: str) -> None:
    report = check(GOOD[name])
    assert report.verdict is Verdict.OK, report.bad()[0].detail
    assert report.exit_status == 0
    assert possible(GOOD[name])


def test_check_begins_with_what_the_store_held() -> None:
    assert check([get(A, 1, 2)], initial={KEY: A}).ok
    assert not check([get(None, 1, 2)], initial={KEY: A}).ok
    assert check([get(None, 1, 2)], initial={b"other": A}).ok


def test_check_keeps_keys_apart() -> None:
    other = [record._replace(key=b"other") for record in BAD["stale read"]]
    report = check([*GOOD["read of a put in progress"], *other])
    assert report.verdict is Verdict.ILLEGAL
    assert [(key.key, key.verdict) for key in report.keys] == [
        (b"other", Verdict.ILLEGAL),
        (KEY, Verdict.OK),
    ]
    assert [key["key"] for key in report.as_dict()["bad_keys"]] == [b"other".hex()]


# ---- hard ones ---------------------------------------------------------------------------------


def wide(writers: int, unknown: int) -> list[Record]:
    """Rounds of concurrent puts on one key, with puts of unknown outcome that never end, and a few
    reads during each round and after it."""
    rng = random.Random(writers)
    history = []
    for turn in range(20):
        start = turn * 1000
        values = [b"%d-%d" % (turn, number) for number in range(writers)]
        history += [
            put(value, start + number, None if number < unknown else start + 500 + number)
            for number, value in enumerate(values)
        ]
        seen = rng.sample(values, 5)
        history += [get(value, start + 100 + at, start + 101 + at) for at, value in enumerate(seen)]
        history += [get(seen[-1], start + 900 + at, start + 901 + at) for at in range(3)]
    return history


@pytest.mark.parametrize(("writers", "unknown"), [(12, 0), (16, 4), (24, 12)])
def test_check_decides_many_concurrent_writers(writers: int, unknown: int) -> None:
    history = wide(writers, unknown)
    assert check(history).verdict is Verdict.OK
    last = history[-1]
    stale = next(record for record in history if record.op == "get" and record.read != last.read)
    bad = [*history[:-1], last._replace(read=stale.read)]
    assert check(bad).verdict is Verdict.ILLEGAL


@pytest.mark.parametrize(
    "shape",
    [
        Shape(1500, keys=1, clients=12, kill_share=0.02),
        Shape(3000, keys=1, clients=8, kill_share=0.1, shares={"get": 0.5, "put": 0.5}),
        Shape(3000, keys=2, clients=6, idle_ns=1, kill_share=0.05),
        Shape(3000, keys=3, clients=4, values=3),
        Shape(3000, keys=50, clients=8, kill_share=0.05, shares={"insert": 0.5, "delete": 0.5}),
    ],
)
def test_check_accepts_what_happened(shape: Shape) -> None:
    report = check(synthesize(shape))
    assert report.verdict is Verdict.OK, report.bad()[0].detail


@pytest.mark.parametrize("seed", range(5))
def test_check_finds_one_wrong_read_in_many(seed: int) -> None:
    history = synthesize(Shape(5000, keys=20, seed=seed))
    rng = random.Random(seed)
    reads = [index for index, record in enumerate(history) if record.read is not None]
    at = rng.choice(reads[len(reads) // 2 :])
    key = history[at].key
    oldest = next(record.read for record in history if record.key == key and record.read)
    history[at] = history[at]._replace(read=oldest)
    report = check(history)
    assert report.verdict is Verdict.ILLEGAL
    (bad,) = report.bad()
    assert bad.key == key
    assert bad.explanation is not None
    assert bad.explanation.failing.key == key
    assert len(bad.explanation.evidence) <= 4, bad.detail


def test_check_agrees_with_itself_over_processes() -> None:
    good = synthesize(Shape(8000, keys=100))
    bad = [record._replace(key=b"bad") for record in BAD["lost update"]]
    assert check([*good, *bad], processes=2) == check([*good, *bad], processes=1)


def test_check_gives_up_when_its_budget_is_spent() -> None:
    history = [insert(b"%d" % n, 1, 100) for n in range(12)] + [delete(1, 100) for _ in range(12)]
    history += [get(b"%d" % n, 2, 101 + n) for n in range(12)]
    report = check(history, budget=1000)
    assert report.verdict is Verdict.UNKNOWN
    assert report.exit_status == 1
    assert "1,000 configurations" in report.bad()[0].detail
    assert "budget" in report.bad()[0].detail


# ---- the explanation ---------------------------------------------------------------------------


def test_explanation_shows_what_matters_and_nothing_else() -> None:
    noise = [put(b"%d" % n, 10 * n, 10 * n + 5) for n in range(200)]
    noise += [get(b"%d" % n, 10 * n + 6, 10 * n + 7) for n in range(200)]
    wrong = [put(A, 5000, 5001), put(B, 5002, 5003), put(C, 5003, None), get(A, 5005, 5010)]
    after = [put(C, 5006, 5020), get(C, 6000, 6001)]
    (report,) = check([*after, *wrong, *noise]).bad()
    why = report.explanation
    assert why is not None
    assert why.failing == wrong[-1]
    assert why.evidence == (wrong[0], wrong[1], wrong[3])
    assert set(why.possible) | {None} == {None, B, C}
    assert set(why.concurrent) == {wrong[2], after[0]}
    assert why.prefix == len(noise) + len(wrong) + 1
    text = str(why)
    assert str(wrong[-1]) in text
    assert "b'b'" in text
    assert "150" not in text


def test_explanation_says_that_nobody_wrote_the_value() -> None:
    (report,) = check(BAD["read before the write was called"]).bad()
    assert "no client had called a write of the value" in report.detail
    (report,) = check(BAD["stale read"]).bad()
    assert "no client" not in report.detail


def test_explanation_survives_pickling_through_processes() -> None:
    report = check(BAD["stale read"], processes=2)
    assert report.keys[0].explanation == check(BAD["stale read"]).keys[0].explanation
    assert dataclasses.asdict(report.keys[0])["operations"] == 3


# ---- against the definition --------------------------------------------------------------------


def times(call: int, took: int) -> tuple[int, int]:
    return call, call + took


spans = st.builds(times, st.integers(0, 12), st.integers(0, 8))
values = st.sampled_from([A, B, C])
records = st.one_of(
    st.builds(lambda span, value: get(value, *span), spans, st.none() | values),
    st.builds(lambda span, value: put(value, *span), spans, values),
    st.builds(lambda span, value, r: insert(value, *span, r), spans, values,
              st.sampled_from(["ok", "exists"])),
    st.builds(lambda span, value, r: update(value, *span, r), spans, values,
              st.sampled_from(["ok", "missing"])),
    st.builds(lambda span, r: delete(*span, r), spans, st.sampled_from(["ok", "missing"])),
    st.builds(lambda call, value: put(value, call, None), st.integers(0, 12), values),
    st.builds(lambda call, value: insert(value, call, None), st.integers(0, 12), values),
    st.builds(lambda call, value: update(value, call, None), st.integers(0, 12), values),
    st.builds(lambda call: delete(call, None), st.integers(0, 12)),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(records, max_size=7), st.sampled_from([None, A]))
def test_check_agrees_with_the_definition(history: list[Record], initial: bytes | None) -> None:
    report = check_key(KEY, history, initial)
    assert report.verdict is (Verdict.OK if possible(history, initial) else Verdict.ILLEGAL)
    if report.explanation is not None:
        assert not possible(relax(history, report.explanation.evidence), initial)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 6), st.data())
def test_check_agrees_with_the_definition_near_the_edge(
    seed: int, clients: int, data: st.DataObject
) -> None:
    shares = {"get": 0.3, "put": 0.2, "update": 0.15, "insert": 0.15, "delete": 0.2}
    shape = Shape(7, 1, clients, values=3, kill_share=0.1, idle_ns=1, shares=shares, seed=seed)
    history = synthesize(shape)
    at = data.draw(st.integers(0, len(history) - 1))
    record = history[at]
    if record.op == "get" and record.result != "unknown":
        read = data.draw(st.sampled_from([None, b"0", b"1", b"2"]))
        history[at] = record._replace(result="missing" if read is None else "ok", read=read)
    elif record.result != "unknown" and record.op != "put":
        other = "exists" if record.op == "insert" else "missing"
        history[at] = record._replace(result="ok" if record.result == other else other)
    expected = Verdict.OK if possible(history) else Verdict.ILLEGAL
    assert check_key(history[0].key, history).verdict is expected


def relax(history: Sequence[Record], evidence: Sequence[Record]) -> list[Record]:
    """`history` with all that is not evidence dropped, or of unknown outcome."""
    return [
        record
        if record in evidence
        else record._replace(result="unknown", read=None, return_ns=None)
        for record in history
        if record in evidence or (record.op != "get" and record.result in ("ok", "unknown"))
    ]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2))
def test_check_accepts_synthetic_histories(seed: int, clients: int, keys: int, vals: int) -> None:
    shape = Shape(60, keys=keys, clients=clients, values=vals, kill_share=0.1, seed=seed)
    assert check(synthesize(shape)).verdict is Verdict.OK


# ---- other models ------------------------------------------------------------------------------


class QueueModel(Model[tuple[int, ...], tuple[str, int]]):
    """A FIFO queue, without hints."""

    def init(self) -> tuple[int, ...]:
        return ()

    def step(self, state: tuple[int, ...], op: tuple[str, int]) -> tuple[int, ...] | None:
        what, value = op
        if what == "push":
            return (*state, value)
        return state[1:] if state and state[0] == value else None


def queue(*operations: tuple[str, int, int, int | None]) -> bool:
    history = [Timed((what, value), call, end) for what, value, call, end in operations]
    search = Search(QueueModel(), 100_000)
    return search.run(history, events_of(history)) is None


def test_search_takes_other_models() -> None:
    pushes = ("push", 1, 1, 2), ("push", 2, 3, 4)
    assert queue(*pushes, ("pop", 1, 5, 6), ("pop", 2, 7, 8))
    assert not queue(*pushes, ("pop", 2, 5, 6), ("pop", 1, 7, 8))
    assert queue(("push", 1, 1, 9), ("push", 2, 1, 9), ("pop", 2, 10, 11), ("pop", 1, 12, 13))
    assert queue(("push", 1, 1, None), ("push", 2, 2, 3), ("pop", 1, 4, 5), ("pop", 2, 6, 7))
    assert not queue(("push", 1, 1, None), ("pop", 1, 2, 3), ("pop", 1, 4, 5))


# ---- files and the program ---------------------------------------------------------------------


def test_check_file_judges_what_was_written(tmp_path: object) -> None:
    path = f"{tmp_path}/history.jsonl"
    write_history(path, BAD["stale read"])
    assert check_file(path).verdict is Verdict.ILLEGAL
    write_history(path, GOOD["unknown put late"])
    assert check_file(path, processes=1).exit_status == 0
    with open(path, "a") as file:
        file.write("{}\n")
    with pytest.raises(HistoryError, match="line 5"):
        check_file(path)


def test_synthetic_program_times_the_checker(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/history.jsonl"
    assert main(["--operations", "500", "--keys", "10", "--processes", "1", "--file", path]) == 0
    assert "checked 10 keys: ok" in capsys.readouterr().out
