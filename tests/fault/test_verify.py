"""The verifier must refuse what cannot have happened. The histories here are made up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.fault.check.recorder import NOTE, Notes, Operation, Result
from limpet.fault.check.self_check import LOADED
from limpet.fault.check.verify import FINAL, verify

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")

NAMES = ["a", "b", "c"]
Row = tuple[int, int, int, int, int, int, int, int]


def write(value: int, call: int, end: int | None, key: int = 0) -> Row:
    result = Result.UNKNOWN if end is None else Result.OK
    return (1, Operation.PUT, result, key, value, 0, call, end or 0)


def read(value: int, call: int, end: int, key: int = 0) -> Row:
    return (2, Operation.GET, Result.OK, key, 0, value, call, end)


def final(value: int, key: int = 0) -> Row:
    return (FINAL, Operation.GET, Result.OK, key, 0, value, 1000, 1001)


def wrong(*rows: Row) -> dict[str, int]:
    return verify(np.array(list(rows), NOTE), NAMES).wrong


def test_verify_accepts_the_load_and_the_last_write() -> None:
    assert wrong(final(LOADED), final(LOADED, 1)) == {}
    assert wrong(write(5, 1, 2), write(6, 3, 4), final(6), final(LOADED, 1)) == {}


def test_verify_accepts_either_of_two_overlapping_writes() -> None:
    rows = write(5, 1, 4), write(6, 3, 6)
    assert wrong(*rows, final(5)) == wrong(*rows, final(6)) == {}


def test_verify_accepts_an_interrupted_write_or_its_absence() -> None:
    rows = write(5, 1, 2), write(6, 3, None)
    assert wrong(*rows, final(5)) == wrong(*rows, final(6)) == {}


def test_verify_refuses_a_stale_final_value() -> None:
    rows = write(5, 1, 2), write(6, 3, 4)
    assert wrong(*rows, final(5)) == wrong(*rows, final(LOADED)) == {"stale": 1}
    assert wrong(*rows, write(7, 4, None), final(5)) == {"stale": 1}


def test_verify_refuses_a_stale_read_during_the_run() -> None:
    rows = write(5, 1, 2), write(6, 3, 4)
    assert wrong(*rows, read(5, 5, 6), final(6)) == {"stale": 1}
    assert wrong(*rows, read(5, 4, 6), final(6)) == {}, "the read was called before the return"


def test_verify_keeps_keys_apart() -> None:
    rows = write(5, 1, 2, key=1), write(6, 3, 4, key=1), write(7, 5, 6, key=2)
    assert wrong(*rows, final(LOADED, 0), final(6, 1), final(7, 2)) == {}
    assert wrong(*rows, final(6, 1), final(LOADED, 2)) == {"stale": 1}
    assert wrong(*rows, final(6, 0)) == {"never written": 1}


def test_verify_refuses_values_that_nobody_wrote() -> None:
    assert wrong(final(5)) == {"never written": 1}
    assert wrong(write(4, 1, 2), final(5)) == {"never written": 1}
    assert wrong(write(6, 1, None), final(5)) == {"never written": 1}


def test_verify_refuses_a_read_before_its_write() -> None:
    assert wrong(write(5, 3, 4), read(5, 1, 2), final(5)) == {"not yet written": 1}
    assert wrong(write(5, 3, None), read(5, 1, 2), final(5)) == {"not yet written": 1}
    assert wrong(write(5, 2, 4), read(5, 1, 2), final(5)) == {}


def test_verify_refuses_missing_and_torn_values() -> None:
    missing = (2, Operation.GET, Result.MISSING, 0, 0, 0, 1, 2)
    torn = (2, Operation.GET, Result.TORN, 1, 0, 0, 1, 2)
    verdict = verify(np.array([missing, torn, torn, final(LOADED)], NOTE), NAMES)
    assert verdict.wrong == {"missing": 1, "torn": 2}
    assert not verdict.ok
    assert "'a'" in verdict.examples[0]
    assert "'b'" in verdict.examples[1]


def test_verify_passes_over_reads_that_never_returned() -> None:
    assert wrong((2, Operation.GET, Result.UNKNOWN, 0, 0, 0, 1, 0), final(LOADED)) == {}


def test_verify_counts_and_explains() -> None:
    rows = [write(5, 1, 2), write(6, 3, 4), write(7, 5, None), read(5, 7, 8), final(6)]
    verdict = verify(np.array(rows, NOTE), NAMES)
    assert (verdict.reads, verdict.writes, verdict.interrupted) == (2, 3, 1)
    assert verdict.wrong == {"stale": 1}
    assert verdict.examples == [
        "stale: 'a', read by incarnation 2 at 7 ns, gave write 5 of incarnation 0 "
        "(called 1 ns, returned 2 ns)"
    ]


def test_verify_refuses_a_history_that_it_cannot_judge() -> None:
    with pytest.raises(ValueError, match="same identity"):
        wrong(write(5, 1, 2), write(5, 3, 4))
    with pytest.raises(ValueError, match="only gets and puts"):
        wrong((1, Operation.DELETE, Result.OK, 0, 0, 0, 1, 2))


def slowly_wrong(notes: Notes) -> dict[str, int]:
    """The definition, read by read and write by write."""
    rows = [dict(zip(NOTE.names or (), note, strict=True)) for note in notes.tolist()]
    writes = [row for row in rows if row["op"] == Operation.PUT]
    counts: dict[str, int] = {}
    for row in writes:
        row["end"] = float("inf") if row["result"] == Result.UNKNOWN else row["return_ns"]
    load = {"value": LOADED, "call_ns": -1, "end": -1}
    for row in (row for row in rows if row["op"] == Operation.GET):
        mine = [load, *(one for one in writes if one["key"] == row["key"])]
        sources = [one for one in mine if one["value"] == row["read"]]
        if not sources:
            kinds = ["never written"]
        else:
            late = sources[0]["call_ns"] > row["return_ns"]
            stale = any(
                sources[0]["end"] < one["call_ns"] and one["end"] < row["call_ns"] for one in mine
            )
            kinds = ["not yet written"] * late + ["stale"] * stale
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
    return counts


times = st.tuples(st.integers(0, 12), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair)))
writes_drawn = st.lists(st.tuples(st.integers(0, 2), times, st.booleans()), max_size=8)
reads_drawn = st.lists(st.tuples(st.integers(0, 2), times, st.integers(0, 9)), max_size=8)


@settings(max_examples=300, deadline=None)
@given(writes_drawn, reads_drawn)
def test_verify_agrees_with_its_definition(
    some_writes: list[tuple[int, tuple[int, int], bool]],
    some_reads: list[tuple[int, tuple[int, int], int]],
) -> None:
    rows = [
        write(number + 1, call, end if done else None, key)
        for number, (key, (call, end), done) in enumerate(some_writes)
    ]
    rows += [read(value, call, end, key) for key, (call, end), value in some_reads]
    notes = np.array(rows, NOTE)
    assert verify(notes, NAMES).wrong == slowly_wrong(notes)
