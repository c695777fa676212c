"""The checker of strict serializability: anomalies it must name, and their legal neighbours."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.fault.check.history import HistoryError
from limpet.fault.check.linearizability import Verdict
from limpet.fault.check.serializability import check, check_file
from limpet.fault.check.transactions import Transaction, dump_line, parse_line, write_transactions

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")

START = {("s", name.encode()): b"0" for name in "xyz"}


def values(given: str) -> dict[tuple[str, bytes], bytes | None]:
    """`x0 y-`: x has 0, y is absent."""
    return {
        ("s", word[:1].encode()): None if word[1:] == "-" else word[1:].encode()
        for word in given.split()
    }


def tx(
    reads: str, writes: str, call: int, end: int | None, outcome: str = "committed"
) -> Transaction:
    """A transaction; `end` None: its outcome is unknown."""
    came = "unknown" if end is None else outcome
    return Transaction(call, came, values(reads), values(writes), call, end)


BAD = {
    "lost update": [tx("x0", "x1", 1, 10), tx("x0", "x2", 2, 9)],
    "lost update by many": [tx("x0", f"x{n}", n, 20) for n in range(1, 9)],
    "write skew": [tx("x0 y0", "x1", 1, 10), tx("x0 y0", "y1", 2, 9)],
    "write skew of three": [
        tx("x0 y0", "x1", 1, 10), tx("y0 z0", "y1", 1, 10), tx("z0 x0", "z1", 1, 10),
    ],
    "half seen": [tx("x0 y0", "x1 y1", 1, 10), tx("x1 y0", "", 2, 9)],
    "half seen, by two": [
        tx("x0 y0", "x1 y1", 1, 10), tx("x1", "", 2, 3), tx("y0", "", 4, 5),
    ],
    "half seen of an unknown one": [
        tx("x0 y0", "x1 y1", 1, None), tx("x1", "", 2, 3), tx("y0", "", 4, 5),
    ],
    "half repaired": [tx("x0 y0", "x1 y1", 1, None), tx("x1 y0", "y2", 2, 3)],
    "read from the future": [tx("x1", "", 1, 2), tx("x0", "x1", 3, 4)],
    "read from the future of an unknown one": [tx("x1", "", 1, 2), tx("x0", "x1", 3, None)],
    "read of an aborted value": [tx("x0", "x1", 1, 2, "aborted"), tx("x1", "", 3, 4)],
    "aborted value built upon": [
        tx("x0", "x1", 1, 2, "aborted"), tx("x1", "x2", 3, None), tx("x2", "", 4, 5),
    ],
    "stale read after a return": [tx("x0", "x1", 1, 2), tx("x0", "", 3, 4)],
    "read of what no client wrote": [tx("x7", "", 1, 2)],
    "read of what was there as absent": [tx("x-", "", 1, 2)],
    "read of its own write": [tx("x1", "x1", 1, 2)],
    "versions that name each other": [tx("x2", "x1", 1, 9), tx("x1", "x2", 1, 9)],
    "long fork": [
        tx("x0", "x1", 1, 9), tx("y0", "y1", 1, 9), tx("x1 y0", "", 1, 9), tx("x0 y1", "", 1, 9),
    ],
    "read that goes back": [tx("x0", "x1", 1, 9), tx("x1", "", 2, 3), tx("x0", "", 4, 5)],
    "order of return that reads deny": [
        tx("x0", "x1", 1, 2), tx("y0", "y1", 3, 4), tx("x0 y1", "", 1, 9),
    ],
    "seen after its delete": [tx("x0", "x-", 1, 2), tx("x0", "", 3, 4)],
    "unknown one undone": [
        tx("x0", "x1", 1, None), tx("x1", "", 2, 3), tx("x0", "x2", 4, 5),
    ],
}  # fmt: skip

GOOD = {
    "nothing": [],
    "updates in turn": [tx("x0", "x1", 1, 10), tx("x1", "x2", 2, 9)],
    "a lost update that was aborted": [tx("x0", "x1", 1, 10), tx("x0", "x2", 2, 9, "aborted")],
    "a lost update that is unknown": [tx("x0", "x1", 1, 10), tx("x0", "x2", 2, None)],
    "two writes of what the other does not read": [
        tx("x0 y0", "x1", 1, 10), tx("y0", "y1", 2, 9),
    ],
    "skew that one of them saw": [tx("x0 y0", "x1", 1, 10), tx("x1 y0", "y1", 2, 9)],
    "seen as a whole": [tx("x0 y0", "x1 y1", 1, 10), tx("x1 y1", "", 2, 9)],
    "not seen at all": [tx("x0 y0", "x1 y1", 1, 10), tx("x0 y0", "", 2, 9)],
    "not seen, then seen, by two": [
        tx("x0 y0", "x1 y1", 1, 10), tx("y0", "", 2, 3), tx("x1", "", 4, 5),
    ],
    "unknown one never": [tx("x0 y0", "x1 y1", 1, None), tx("x0 y0", "", 2, 3)],
    "unknown one late": [
        tx("x0 y0", "x1 y1", 1, None), tx("x0 y0", "", 2, 3), tx("x1 y1", "", 4, 5),
    ],
    "unknown one that built on an unknown one": [
        tx("x0", "x1", 1, None), tx("x1", "x2", 2, None), tx("x2", "", 3, 4),
    ],
    "unknown one that read what never was": [tx("x7", "x8", 1, None), tx("x0", "", 2, 3)],
    "aborted one that read half": [
        tx("x0 y0", "x1 y1", 1, 10), tx("x1 y0", "", 2, 9, "aborted"),
    ],
    "read of what is being written": [tx("x1", "", 1, 4), tx("x0", "x1", 3, 5)],
    "stale read, called in the nanosecond of the return": [
        tx("x0", "x1", 1, 2), tx("x0", "", 2, 4),
    ],
    "stale read of an earlier transaction": [tx("x0", "x1", 1, 3), tx("x0", "", 2, 4)],
    "delete": [tx("x0", "x-", 1, 2), tx("x-", "x1", 3, 4), tx("x1", "", 5, 6)],
    "order of return that reads confirm": [
        tx("x0", "x1", 1, 2), tx("y0", "y1", 3, 4), tx("x1 y0", "", 1, 9),
    ],
    "one key in two stores": [
        Transaction(1, "committed", {("a", b"x"): None}, {("a", b"x"): b"1"}, 1, 2),
        Transaction(2, "committed", {("b", b"x"): None}, {("b", b"x"): b"1"}, 3, 4),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_checker_refuses(name: str) -> None:
    for history in (BAD[name], BAD[name][::-1]):
        report = check(history, initial=START)
        assert report.verdict is Verdict.ILLEGAL
        assert report.exit_status == 1
        assert report.detail
        for edge, then in itertools.pairwise([*report.cycle, *report.cycle[:1]]):
            assert edge.after is then.before


@pytest.mark.parametrize("name", GOOD)
def test_checker_accepts(name: str) -> None:
    for history in (GOOD[name], GOOD[name][::-1]):
        report = check(history, initial=START)
        assert report.verdict is Verdict.OK, report.detail
        assert (report.exit_status, report.detail) == (0, "")


def test_checker_names_the_cycle_in_words() -> None:
    others = [tx(f"z{n or '0'}", f"z{n + 1}", 20 + 2 * n, 21 + 2 * n) for n in range(50)]
    report = check([*others, tx("x0 y0", "x1 y1", 1, 2), tx("x1 y0", "", 3, 4)], initial=START)
    assert report.detail.splitlines() == [
        "no order explains these 2 transactions:",
        "  T1 = client 1: read s[b'x'] b'0', s[b'y'] b'0'; wrote s[b'x'] b'1', s[b'y'] b'1' -> "
        "committed, called 1, returned 2",
        "  T2 = client 3: read s[b'x'] b'1', s[b'y'] b'0'; wrote nothing -> committed, "
        "called 3, returned 4",
        "each of them comes before the next, and the last before the first:",
        "  T1 wrote b'1' in s[b'x'], which T2 read",
        "  T2 read b'0' in s[b'y'], which T1 overwrote",
    ]
    stale = check(BAD["stale read after a return"], initial=START).detail.splitlines()
    assert "  T1 returned at 2, before T2 was called at 3" in stale
    assert "  T2 read b'0' in s[b'x'], which T1 overwrote" in stale


def test_checker_finds_a_short_cycle_across_much_time() -> None:
    """The real time between the two leads through a thousand returns."""
    others = [tx(f"z{n}", f"z{n + 1}", 20 + 2 * n, 21 + 2 * n) for n in range(1000)]
    report = check(
        [tx("x0", "x1", 1, 2), *others, tx("x0", "", 9000, 9001)], initial=START
    )  # fmt: skip
    assert {edge.kind for edge in report.cycle} == {"real time", "read-write"}
    assert len(report.cycle) == 2


def test_checker_says_whose_value_was_read() -> None:
    aborted = check(BAD["read of an aborted value"], initial=START)
    assert "which only an aborted transaction wrote (client 1: read" in aborted.detail
    nobody = check([tx("x7", "", 1, 2)] * 9, initial=START)
    assert len(nobody.unfounded) == 5
    assert "read b'7' in s[b'x'], which no transaction wrote" in nobody.detail


def test_report_counts_what_happened() -> None:
    report = check(
        [tx("x0", "x1", 1, None), tx("x1", "", 2, 3), tx("y0", "y1", 2, None),
         tx("z0", "z1", 4, 5, "aborted")],
        initial=START,
    )  # fmt: skip
    assert report.as_dict() == {
        "verdict": "ok", "transactions": 4, "aborted_transactions": 1, "unknown_transactions": 2,
        "unknown_that_happened": 1, "detail": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([tx("", "x1", 1, 2)], r"wrote s\[b'x'\] without having read it"),
        ([tx("", "x1", 1, None)], "without having read it"),
        ([tx("x0", "x1", 1, 2), tx("x1", "x1", 3, 4)], "and so did client 1: "),
        ([tx("x0", "x1", 1, 2, "aborted"), tx("x0", "x1", 3, 4)], "and so did client 1: "),
        ([tx("x0", "x1", 1, 2), tx("x1", "x0", 3, 4)], "and so did the first value"),
        ([tx("w-", "w1", 1, 2), tx("w1", "w-", 3, 4)], "wrote absent to .* the first value"),
        ([tx("x0", "x1", 2, 1)], "returned at 1 ns, before its call"),
        ([tx("x0", "x1", 1, 2, "perhaps")], "outcome is 'perhaps'"),
    ],
)
def test_checker_refuses_a_history_that_hides_the_order_of_versions(
    history: list[Transaction], words: str
) -> None:
    with pytest.raises(HistoryError, match=words):
        check(history, initial=START)


# ---- histories that are made -------------------------------------------------------------------


def serial(count: int, keys: int, clients: int, seed: int) -> list[Transaction]:
    """A history by one executor: transactions take effect one by one, each some time between its
    call and its return. Some are aborted, and some killed before or after they took effect."""
    source = random.Random(seed)
    state: dict[tuple[str, bytes], bytes | None] = {}
    free = [0] * clients
    effect = 0
    found: list[Transaction] = []
    for number in range(count):
        client = source.randrange(clients)
        effect = max(effect, free[client]) + source.randrange(10)
        call = max(free[client], effect - source.randrange(40))
        end = effect + source.randrange(40)
        free[client] = end
        chosen = [("s", b"%d" % key) for key in source.sample(range(keys), min(keys, 3))]
        reads = {item: state.get(item) for item in chosen}
        writes = dict.fromkeys(chosen[: source.randrange(4)], b"%d" % number)
        outcome = source.choices(("committed", "aborted", "unknown"), (8, 1, 1))[0]
        if outcome == "committed" or (outcome == "unknown" and source.random() < 0.5):
            state.update(writes)
        return_ns = None if outcome == "unknown" else end
        found.append(Transaction(client, outcome, reads, writes, call, return_ns))
    return found


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 30), st.integers(1, 8), st.integers(1, 6), st.integers(0, 60))
def test_checker_accepts_what_a_serial_executor_did(
    seed: int, keys: int, clients: int, count: int
) -> None:
    history = serial(count, keys, clients, seed)
    random.Random(seed).shuffle(history)
    report = check(history)
    assert report.ok, report.detail


def orders(history: Sequence[Transaction]) -> Iterator[tuple[Transaction, ...]]:
    """Every order of every choice of those that happened."""
    committed = [one for one in history if one.outcome == "committed"]
    unknown = [one for one in history if one.outcome == "unknown"]
    for count in range(len(unknown) + 1):
        for some in itertools.combinations(unknown, count):
            yield from itertools.permutations([*committed, *some])


def explains(order: Sequence[Transaction]) -> bool:
    """Whether each reads what the last before it wrote, and none was called after a later one."""
    state: dict[tuple[str, bytes], bytes | None] = dict(START)
    latest_call = 0
    for one in order:
        if one.return_ns is not None and one.return_ns < latest_call:
            return False
        if any(state.get(item) != value for item, value in one.reads.items()):
            return False
        latest_call = max(latest_call, one.call_ns)
        state.update(one.writes)
    return True


@st.composite
def small(draw: st.DrawFn) -> list[Transaction]:
    """Up to five transactions on two keys, whose reads are drawn from what is written."""
    found = []
    for number in range(1, draw(st.integers(1, 5)) + 1):
        items = draw(st.lists(st.sampled_from([("s", b"x"), ("s", b"y")]), unique=True, min_size=1))
        reads = {item: b"%d" % draw(st.integers(0, number)) for item in items}
        writes = {item: b"%d" % number for item in items if draw(st.booleans())}
        call = draw(st.integers(1, 20))
        outcome = draw(st.sampled_from(["committed"] * 4 + ["unknown", "aborted"]))
        end = None if outcome == "unknown" else call + draw(st.integers(0, 10))
        found.append(Transaction(number, outcome, reads, writes, call, end))
    return found


@settings(deadline=None, max_examples=400)
@given(small())
def test_checker_agrees_with_brute_force(history: list[Transaction]) -> None:
    assert check(history, initial=START).ok == any(map(explains, orders(history)))


def test_both_examples_agree_with_brute_force() -> None:
    for histories, expected in ((GOOD, True), (BAD, False)):
        for name, history in histories.items():
            if len(history) < 8:
                assert any(map(explains, orders(history))) == expected or "stores" in name, name


def test_checker_finds_one_fault_among_many() -> None:
    """One transaction of a long legal history read what was there long before."""
    history = serial(3000, 5, 4, 1)
    assert check(history).ok
    at, late = next(
        (index, one)
        for index, one in enumerate(history)
        if index > 2000 and one.outcome == "committed" and not one.writes
    )
    committed = [one for one in history[:500] if one.outcome == "committed"]
    old = {item: value for one in committed for item, value in one.writes.items()}
    history[at] = late._replace(reads={item: old[item] for item in late.reads})
    assert len(check(history).cycle) == 2


def test_checker_takes_a_hundred_thousand_edges_of_real_time() -> None:
    history = [tx(f"x{n}", f"x{n + 1}", 2 * n + 1, 2 * n + 2) for n in range(20_000)]
    assert check(history, initial=START).ok


# ---- the file ----------------------------------------------------------------------------------


def test_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "transactions.jsonl"
    history = serial(100, 4, 3, 2)
    assert write_transactions(path, history) == 100
    assert [parse_line(line) for line in path.read_bytes().splitlines()] == history
    assert check_file(path).ok


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"client": 1', '"clients": 1', "fields client, outcome"),
        ('"client": 1', '"client": true', "client is True, not int"),
        ('"reads": [["s", "78", "30"]]', '"reads": [["s", "78"]]', "reads has"),
        ('"reads": [["s", "78", "30"]]', '"reads": [["s", "7", "30"]]', "reads has"),
        ('["s", "78", "30"]', '["s", "78", "30"], ["s", "78", "31"]', "twice"),
        ('"return_ns": 2', '"return_ns": null', "has return_ns null"),
        ("{", "", "not a JSON object"),
    ],
)
def test_file_names_the_line_that_is_wrong(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "transactions.jsonl"
    line = dump_line(tx("x0", "x1", 1, 2))
    assert old in line
    path.write_text(line + line.replace(old, new, 1))
    with pytest.raises(HistoryError, match=f"line 2: .*{words}"):
        check_file(path)
