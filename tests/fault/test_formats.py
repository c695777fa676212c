"""Histories of other programs, in their formats, with verdicts that are known."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from limpet.cli.matrix import check
from limpet.fault.check.formats import check_file, parse_edn
from limpet.fault.check.history import HistoryError
from limpet.fault.check.linearizability import Verdict


def log(*rows: str) -> str:
    return "".join(f"INFO  jepsen.util - {row}\n" for row in rows)


def edn(*rows: str) -> str:
    """Of `process type f value [key]`."""
    lines = []
    for row in rows:
        process, kind, f, rest = row.split(" ", 3)
        value, _, key = rest.partition(" @")
        of_key = f", :key {key}" if key else ""
        lines.append(f"{{:process {process}, :type {kind}, :f {f}{of_key}, :value {value}}}\n")
    return "".join(lines)


REGISTER = ("0 :invoke :write 1", "0 :ok :write 1", "1 :invoke :cas [1 2]", "1 :ok :cas [1 2]")
TEXTS = (
    '0 :invoke :append "x" @"k"', '1 :invoke :append "y" @"k"', '0 :ok :append "x" @"k"',
    '1 :ok :append "y" @"k"', '0 :invoke :get nil @"k"',
)  # fmt: skip
LISTS = (
    "0 :invoke :txn [[:append 1 1] [:append 2 1]]", "0 :ok :txn [[:append 1 1] [:append 2 1]]",
    "1 :invoke :txn [[:r 1 nil] [:append 1 2]]", "2 :invoke :txn [[:r 1 nil] [:r 2 nil]]",
)  # fmt: skip
HISTORIES = {
    "a cas that took effect": (
        "porcupine", log(*REGISTER, "0 :invoke :read nil", "0 :ok :read 2"), True,
    ),
    "a cas that is not seen": (
        "porcupine", log(*REGISTER, "0 :invoke :read nil", "0 :ok :read 1"), False,
    ),
    "a cas that is refused where it fits": (
        "porcupine", log(*REGISTER, "2 :invoke :cas [2 3]", "2 :fail :cas [2 3]"), False,
    ),
    "the same, where it may have failed": (
        "knossos", edn(*REGISTER, "2 :invoke :cas [2 3]", "2 :fail :cas [2 3]"), True,
    ),
    "a cas of unknown outcome, seen later": (
        "porcupine",
        log(*REGISTER, "2 :invoke :cas [2 3]", "2 :info :cas :timed-out", "0 :invoke :read nil",
            "0 :ok :read 2", "0 :invoke :read nil", "0 :ok :read 3"),
        True,
    ),
    "and undone": (
        "porcupine",
        log(*REGISTER, "2 :invoke :cas [2 3]", "2 :info :cas :timed-out", "0 :invoke :read nil",
            "0 :ok :read 3", "0 :invoke :read nil", "0 :ok :read 2"),
        False,
    ),
    "a read that says nothing": (
        "knossos", "[" + edn(*REGISTER, "0 :invoke :read nil", "0 :ok :read nil") + "]", True,
    ),
    "a read of nothing": (
        "porcupine", log(*REGISTER, "0 :invoke :read nil", "0 :ok :read nil"), False,
    ),
    "the nemesis, and a call that never returns": (
        "knossos",
        edn(*REGISTER, ":nemesis :info :start nil", "3 :invoke :write 9", "0 :invoke :read nil",
            "0 :ok :read 9"),
        True,
    ),
    "appended texts, in either order": ("porcupine", edn(*TEXTS, '0 :ok :get "yx" @"k"'), True),
    "an appended text that is lost": ("porcupine", edn(*TEXTS, '0 :ok :get "y" @"k"'), False),
    "a transaction that is seen whole": (
        "jepsen",
        edn(*LISTS, "2 :ok :txn [[:r 1 [1 2]] [:r 2 [1]]]",
            "1 :ok :txn [[:r 1 [1]] [:append 1 2]]"),
        True,
    ),
    "a transaction that is seen in part": (
        "jepsen",
        edn(*LISTS, "2 :ok :txn [[:r 1 [1]] [:r 2 nil]]", "1 :ok :txn [[:r 1 [1]] [:append 1 2]]"),
        False,
    ),
    "a lost update": (
        "jepsen",
        edn(*LISTS, "2 :ok :txn [[:r 1 [1]] [:r 2 [1]]]", "1 :ok :txn [[:r 1 nil] [:append 1 2]]"),
        False,
    ),
    "a transaction of unknown outcome": (
        "jepsen",
        edn(*LISTS, "2 :ok :txn [[:r 1 [1 2]] [:r 2 [1]]]", "1 :info :txn nil"),
        True,
    ),
    "a transaction that failed, and is seen": (
        "jepsen",
        edn(*LISTS, "2 :ok :txn [[:r 1 [1 2]] [:r 2 [1]]]", "1 :fail :txn nil"),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_history_of_another_program_has_the_verdict_that_is_known(
    name: str, tmp_path: Path
) -> None:
    form, text, sound = HISTORIES[name]
    file = tmp_path / "history"
    file.write_text(text)
    report = check_file(file, form)
    assert report.ok is sound, report.bad()
    done = CliRunner().invoke(check, [str(file), "--format", form])
    assert done.exit_code == (0 if sound else 1), done.output
    assert sound or "nothing explains process" in done.output


def test_initial_value_is_given(tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_text(edn("0 :invoke :cas [0 1]", "0 :ok :cas [0 1]"))
    assert not check_file(file, "knossos").ok
    assert check_file(file, "knossos", initial="0").ok


@pytest.mark.parametrize(
    "text",
    ["{:process 0", "[1 2]", "{:process}", '{:process 0, :type :ok, :f :read}', "]", '"',
     "{:process 0, :type :invoke, :f :enqueue, :value 1} {:process 0, :type :ok}",
     "{:process 0, :type :invoke, :f :read} {:process 0, :type :invoke, :f :read}",
     "[" * 100_000],
)  # fmt: skip
def test_file_that_is_no_such_history_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_text(text)
    with pytest.raises(HistoryError):
        check_file(file, "knossos")


def test_edn_is_read() -> None:
    text = '#tag {:a [1 -2 1.5 3N nil true], "b\\"c\\n" #{:x}} ; a comment\n(a/b)'
    assert parse_edn(text) == [
        {":a": (1, -2, 1.5, 3, None, True), 'b"c\n': (":x",)},
        ("a/b",),
    ]


def test_verdicts_on_small_histories_are_those_of_all_orders(tmp_path: Path) -> None:
    """Random calls on a register, with random results, against all orders of them."""
    found = {True: 0, False: 0}
    for seed in range(400):
        draw = random.Random(seed)
        rows, calls = _random_register(draw)
        file = tmp_path / "history"
        file.write_text(edn(*rows))
        sound = _some_order(calls)
        found[sound] += 1
        assert (check_file(file, "porcupine").verdict is Verdict.OK) is sound, (seed, rows)
    assert min(found.values()) > 40, found


Call = tuple[str, tuple[int, ...], int | None, int, int]
"""f, arguments, result, number of the call, number of the return."""


def _random_register(draw: random.Random) -> tuple[list[str], list[Call]]:
    rows: list[str] = []
    calls: list[Call] = []
    open_: dict[int, tuple[str, tuple[int, ...], int]] = {}
    left = 5
    while left or open_:
        process = draw.randrange(3)
        if process in open_:
            f, given, called = open_.pop(process)
            result: int | None = draw.randrange(3) if f == "read" else draw.randrange(2)
            kind = ":fail" if f == "cas" and not result else ":ok"
            value = str(result) if f == "read" else _shown(f, given)
            rows.append(f"{process} {kind} :{f} {value}")
            calls.append((f, given, result, called, len(rows)))
        elif left:
            left -= 1
            f = draw.choice(("read", "write", "cas", "cas"))
            given = tuple(draw.randrange(3) for _ in range({"read": 0, "write": 1, "cas": 2}[f]))
            rows.append(f"{process} :invoke :{f} {_shown(f, given)}")
            open_[process] = f, given, len(rows)
    return rows, calls


def _shown(f: str, given: tuple[int, ...]) -> str:
    return {"read": "nil", "write": str(*given[:1]), "cas": f"[{' '.join(map(str, given))}]"}[f]


def _some_order(calls: list[Call]) -> bool:
    for order in itertools.permutations(calls):
        if any(late[4] < early[3] for early, late in itertools.combinations(order, 2)):
            continue
        state: int | None = None
        for f, given, result, _, _ in order:
            if f == "write":
                state = given[0]
            elif f == "read":
                if state != result:
                    break
            elif (state == given[0]) != bool(result):
                break
            elif result:
                state = given[1]
        else:
            return True
    return False
