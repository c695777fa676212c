"""From a drill's notes to a verdict: what is left out before judging changes nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from limpet.fault.check.history import read_history
from limpet.fault.check.linearizability import Verdict, check
from limpet.fault.check.recorder import NOTE, Notes, Operation, Result
from limpet.fault.check.recording import from_notes
from limpet.fault.check.self_check import TRAILER_SIZE, identity, unseal
from limpet.fault.drill.drill_client import Values
from limpet.fault.drill.drill_history import judge, torn, write

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")

KEYS = [b"a", b"b"]
PUT, GET, OK, UNKNOWN = Operation.PUT, Operation.GET, Result.OK, Result.UNKNOWN


def notes(*rows: tuple[Any, ...]) -> Notes:
    """Rows of (client, op, result, key, value, read, call_ns, return_ns)."""
    return np.array(list(rows), NOTE)


def test_judge_finds_a_stale_read() -> None:
    first = (1, PUT, OK, 0, 11, 0, 1, 2)
    second = (1, PUT, OK, 0, 12, 0, 3, 4)
    assert judge(notes(first, second, (2, GET, OK, 0, 0, 12, 5, 6)), KEYS).ok
    report = judge(notes(first, second, (2, GET, OK, 0, 0, 11, 5, 6)), KEYS)
    assert report.verdict is Verdict.ILLEGAL
    assert [key.key for key in report.bad()] == [b"a"]


def test_judge_keeps_unknown_writes_that_can_have_been_seen() -> None:
    unknown = (1, PUT, UNKNOWN, 0, 11, 0, 1, 0)
    assert judge(notes(unknown, (2, GET, OK, 0, 0, 11, 5, 6)), KEYS).ok
    report = judge(notes(unknown, (2, GET, OK, 0, 0, 11, 5, 6)), KEYS)
    assert report.operations == 2


def test_judge_leaves_out_what_nobody_can_have_seen() -> None:
    told: list[tuple[int, int]] = []
    report = judge(
        notes(
            (1, PUT, OK, 0, 11, 0, 1, 2),
            (1, GET, UNKNOWN, 0, 0, 0, 3, 0),
            (3, PUT, UNKNOWN, 0, 12, 0, 4, 0),
            (4, PUT, UNKNOWN, 1, 13, 0, 4, 0),
            (5, PUT, Result.FULL, 0, 14, 0, 5, 6),
        ),
        KEYS,
        lambda done, total: told.append((done, total)),
    )
    assert report.ok
    assert [(key.key, key.operations, key.unknown) for key in report.keys] == [(b"a", 2, 1)]
    assert told == [(2, 2)]


def test_a_write_that_found_no_room_but_was_seen_is_illegal() -> None:
    full = (1, PUT, Result.FULL, 0, 11, 0, 1, 2)
    assert judge(notes(full, (2, GET, Result.MISSING, 0, 0, 0, 3, 4)), KEYS).ok
    assert not judge(notes(full, (2, GET, OK, 0, 0, 11, 3, 4)), KEYS).ok


@pytest.mark.parametrize("seed", range(4))
def test_judge_agrees_with_a_check_of_everything(seed: int) -> None:
    """Of random histories, most of which are illegal: nothing is lost by what is left out."""
    rng = random.Random(seed)
    verdicts = set()
    for _ in range(300):
        rows = []
        for number in range(1, 9):
            op = rng.choice([PUT, GET])
            result = rng.choice([OK, OK, UNKNOWN])
            call = rng.randrange(12)
            back = call + 1 + rng.randrange(6) if result else 0
            read = rng.randrange(1, 9) if op is GET and result else 0
            value = number if op is PUT else 0
            rows.append((number, op, result, rng.randrange(2), value, read, call, back))
        made = notes(*rows)
        whole = check(from_notes(made, KEYS.__getitem__, lambda number: number.to_bytes(8, "big")))
        assert judge(made, KEYS).ok == whole.ok
        verdicts.add(whole.ok)
    assert verdicts == {True, False}


def test_written_history_leaves_out_torn_reads_which_are_told_apart(tmp_path: Path) -> None:
    made = notes(
        (2, GET, Result.TORN, 0, 0, 0, 5, 6),
        (2, GET, OK, 1, 0, 7, 3, 4),
        (1, PUT, UNKNOWN, 1, 7, 0, 1, 0),
    )
    path = tmp_path / "history.jsonl"
    assert write(path, made, KEYS) == 2
    records = read_history(path)
    assert [(record.op, record.call_ns) for record in records] == [("put", 1), ("get", 3)]
    assert records[0].value == records[1].read == (7).to_bytes(8, "big")
    assert torn(made, KEYS) == ["client 2 read a torn value of b'a', called 5"]
    many = np.concatenate([made[:1]] * 9)
    assert torn(many, KEYS)[-1] == "and 4 more torn reads"


def test_values_are_of_all_sizes_and_prove_themselves() -> None:
    values = Values((40, 400), seed=1)
    made = [values.make(3, 1, number, number / 1000) for number in range(1, 1001)]
    sizes = [len(value) for value in made]
    assert (sizes[0], sizes[-1]) == (40, 400)
    assert sizes == sorted(sizes)
    assert len(set(made)) == len(made)
    assert [unseal(value, 3) for value in made] == [identity(1, n) for n in range(1, 1001)]
    with pytest.raises(ValueError, match=f"from {TRAILER_SIZE}"):
        Values((TRAILER_SIZE - 1, 400), seed=1)
