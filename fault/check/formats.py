"""Histories of other programs: those that Porcupine, Knossos and Jepsen's checkers judge.

    format      file                                        objects
    porcupine   lines of a Jepsen log, or a map a line      a register; or keys with texts
    knossos     EDN: maps, or a vector of them              a register
    jepsen      EDN, as knossos                             a register; or transactions on keys

A map has `:process`, `:type` (`:invoke`, then `:ok`, `:fail` or `:info`), `:f`, `:value`, and,
where there are keys, `:key`. A line of a log has process, type, f and value behind a hyphen.
Entries are in the order of time; those of a process that is no number (the nemesis) are left out.

    :f                  effect
    :read, :get         gives the value
    :write, :put        leaves the value
    :cas                `[old new]`: leaves `new` where the value is `old`
    :append             puts the text behind that of the key
    :txn                all at once: `[:append key element]` to a list, `[:r key list]`,
                        `[:w key value]`

`:info`, or no second entry: it may have happened at any time after its call, or never. `:fail`: it
did not happen; in porcupine's, a `:cas` that failed found another value than `old`. In knossos' and
jepsen's, a `:read` that gives `nil` says nothing. The first value is `nil`; of a key with texts,
the empty text; of a list, the empty list.

Keys that no transaction has together are judged alone, each by the search in linearize.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from limpet.fault.check.history import HistoryError
from limpet.fault.check.linearizability import (
    BUDGET,
    BUDGET_PER_OPERATION,
    KeyReport,
    LinearizabilityReport,
    Verdict,
)
from limpet.fault.check.linearize import BudgetExceeded, Search, Timed, events_of
from limpet.fault.check.models import Model

FORMATS: Final = ("porcupine", "knossos", "jepsen")
_TOKEN: Final = re.compile(
    r'(?:[\s,]|;[^\n]*)*(?:("(?:\\.|[^"\\])*")|(#\{|[()\[\]{}])|(#[^\s()\[\]{}"]+)|([^\s,()\[\]{}"]+))?'
)
_LINE: Final = re.compile(r"- *(\S+)\s+(:invoke|:ok|:fail|:info)\s+(:\S+)\s+(.*)$")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}", "#{": "}"}
_WORDS: Final[dict[str, Any]] = {"nil": None, "true": True, "false": False}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


# ---- EDN ---------------------------------------------------------------------------------------


def parse_edn(text: str) -> list[Any]:
    """The forms of a text: maps are dicts; vectors and lists tuples; keywords texts with a colon.

    A tag before a form is left out. HistoryError: it is no such text.
    """
    whole: list[Any] = []
    open_: list[tuple[str, list[Any]]] = [("", whole)]
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # the empty text matches, too
        string, bracket, tag, atom = match.groups()
        if match.end() == at:
            raise HistoryError(f"not EDN at character {at}: {text[at : at + 20]!r}")
        at = match.end()
        if string is not None:
            open_[-1][1].append(re.sub(r"\\(.)", _unescaped, string[1:-1], flags=re.DOTALL))
        elif atom is not None:
            open_[-1][1].append(_atom(atom))
        elif bracket in _CLOSING:
            open_.append((bracket, []))
        elif bracket is not None:
            opened, forms = open_.pop()
            if _CLOSING.get(opened) != bracket:
                raise HistoryError(f"not EDN: {bracket!r} at character {at} closes {opened!r}")
            open_[-1][1].append(_collection(opened, forms))
        assert tag is None or tag
    if len(open_) > 1:
        raise HistoryError(f"not EDN: {open_[-1][0]!r} is not closed")
    return whole


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])


def _atom(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text.rstrip("N"))
        except ValueError:
            pass
    return text


def _collection(opened: str, forms: list[Any]) -> Any:
    if opened != "{":
        return tuple(forms)
    if len(forms) % 2:
        raise HistoryError("not EDN: a map has a key without a value")
    try:
        return dict(zip(forms[::2], forms[1::2], strict=True))
    except TypeError:
        raise HistoryError("a map has a map as a key") from None


# ---- operations --------------------------------------------------------------------------------


class Effect(NamedTuple):
    """The effect of an operation on one key. `kind`: read, any (a read that says nothing), write,
    cas, refused (a cas that found another value), text, element."""

    kind: str
    key: Hashable
    value: Hashable
    new: Hashable = None


class Call(NamedTuple):
    """An operation: its effects, in their order, and the numbers of its entries, from 1."""

    process: int
    effects: tuple[Effect, ...]
    called: int
    returned: int | None

    def __str__(self) -> str:
        did = ", ".join(
            " ".join(str(part) for part in effect if part is not None) for effect in self.effects
        )
        end = "never returned" if self.returned is None else f"returned in entry {self.returned}"
        return f"process {self.process}: {did}; called in entry {self.called}, {end}"


def read_calls(path: str | os.PathLike[str], form: str) -> list[Call]:
    """The operations in a file, without those that did not happen. HistoryError names the fault."""
    entries = _entries(Path(path).read_text("utf-8"))
    calls: list[Call] = []
    pending: dict[int, tuple[int, dict[str, Any]]] = {}
    for number, entry in enumerate(entries, 1):
        process, kind = entry.get(":process"), entry.get(":type")
        if type(process) is not int:
            continue
        if kind == ":invoke":
            if process in pending:
                raise HistoryError(f"entry {number}: process {process} has not returned yet")
            pending[process] = number, entry
        elif process not in pending:
            raise HistoryError(f"entry {number}: process {process} has called nothing")
        else:
            called, invoked = pending.pop(process)
            ended = None if kind == ":info" else number
            calls += _calls(form, process, called, ended, invoked, entry)
    for process, (called, invoked) in pending.items():
        calls += _calls(form, process, called, None, invoked, {":type": ":info"})
    return sorted(calls, key=lambda call: call.called)


def _entries(text: str) -> list[dict[str, Any]]:
    if text.lstrip()[:1] in ("{", "[", "(", "#", ";"):
        forms = parse_edn(text)
        if len(forms) == 1 and isinstance(forms[0], tuple):
            forms = list(forms[0])
    else:
        found = [match for line in text.splitlines() if (match := _LINE.search(line))]
        if text.strip() and not found:
            raise HistoryError("it is neither EDN nor a log of Jepsen: no line has an entry")
        names = (":process", ":type", ":f", ":value")
        forms = [dict(zip(names, _line(match), strict=True)) for match in found]
    if wrong := [form for form in forms if not isinstance(form, dict)]:
        raise HistoryError(f"{wrong[0]!r} is no entry of a history: it is not a map")
    return forms


def _line(match: re.Match[str]) -> tuple[Any, ...]:
    process, kind, f, value = match.groups()
    parsed = parse_edn(value)
    return _atom(process), kind, f, parsed[0] if parsed else None


def _calls(
    form: str,
    process: int,
    called: int,
    returned: int | None,
    invoked: dict[str, Any],
    ended: dict[str, Any],
) -> Iterator[Call]:
    try:
        effects = tuple(_effects(form, returned is None, invoked, ended))
        hash(effects)
    except (TypeError, ValueError, KeyError) as error:
        raise HistoryError(f"entry {called}: {invoked} is not known here ({error})") from error
    if effects:
        yield Call(process, effects, called, returned)


def _effects(
    form: str, unknown: bool, invoked: dict[str, Any], ended: dict[str, Any]
) -> Iterator[Effect]:
    f, key = invoked[":f"], invoked.get(":key")
    value: Any = invoked.get(":value")
    failed = ended[":type"] == ":fail"
    if f == ":txn":
        if not failed:
            for name, where, what in value if unknown else ended[":value"]:
                yield _of_transaction(name, where, what, unknown)
    elif f in (":read", ":get"):
        if not (unknown or failed):
            found = ended.get(":value")
            says_nothing = found is None and form != "porcupine"
            yield Effect("any" if says_nothing else "read", key, found)
    elif f == ":cas":
        old, new = value
        if not failed:
            yield Effect("cas", key, old, new)
        elif form == "porcupine":
            yield Effect("refused", key, old)
    elif failed:
        return
    elif f in (":write", ":put"):
        yield Effect("write", key, value)
    elif f == ":append":
        yield Effect("text", key, value)
    else:
        raise ValueError(f"{f} is no operation of {form}")


def _of_transaction(name: str, key: Hashable, value: Any, unknown: bool) -> Effect:
    if name == ":r":
        return Effect("any" if unknown else "read", key, value)
    return Effect({":append": "element", ":w": "write"}[name], key, value)


# ---- verdicts ----------------------------------------------------------------------------------

States = tuple[Hashable, ...]
Effects = tuple[tuple[str, int, Any, Hashable], ...]


EMPTY: Final = (None, "", ())
"""A key without a value, as different programs show it."""


class KeysModel(Model[States, Effects]):
    """Several keys that change together: their values, in the order of their numbers."""

    def __init__(self, first: States) -> None:
        self.first = first

    def init(self) -> States:
        return self.first

    def step(self, state: States, op: Effects) -> States | None:
        values: list[Any] = list(state)
        for kind, at, value, new in op:
            found = values[at]
            if kind == "read":
                if found != value and not (found in EMPTY and value in EMPTY):
                    return None
            elif kind == "write":
                values[at] = value
            elif kind == "cas":
                if found != value:
                    return None
                values[at] = new
            elif kind == "refused":
                if found == value:
                    return None
            elif kind == "text":
                values[at] = (found or "") + value
            elif kind == "element":
                values[at] = (*(found or ()), value)
        return tuple(values)

    def pure(self, op: Effects) -> bool:
        return all(kind in ("read", "any", "refused") for kind, *_ in op)

    def settles(self, op: Effects) -> bool:
        return len(self.first) == len(op) == 1 and op[0][0] in ("write", "cas")


def check_file(
    path: str | os.PathLike[str], form: str, *, initial: str = "nil", budget: int | None = None
) -> LinearizabilityReport:
    """Judge the history in a file; `initial`: the first value of every key, as EDN."""
    (first,) = parse_edn(initial)
    reports = [_judge(calls, first, budget) for calls in _apart(read_calls(path, form))]
    severity = [Verdict.ILLEGAL, Verdict.UNKNOWN, Verdict.OK]
    return LinearizabilityReport(
        tuple(sorted(reports, key=lambda report: (severity.index(report.verdict), report.key)))
    )


def _apart(calls: list[Call]) -> list[list[Call]]:
    """The calls, divided so that those of keys that a call has together are together."""
    leader: dict[Hashable, Hashable] = {}

    def find(key: Hashable) -> Hashable:
        while leader.setdefault(key, key) != key:
            leader[key] = key = leader[leader[key]]
        return key

    for call in calls:
        for effect in call.effects[1:]:
            leader[find(effect.key)] = find(call.effects[0].key)
    parts: dict[Hashable, list[Call]] = {}
    for call in calls:
        parts.setdefault(find(call.effects[0].key), []).append(call)
    return list(parts.values())


def _judge(calls: list[Call], first: Hashable, budget: int | None) -> KeyReport:
    numbers: dict[Hashable, int] = {}
    timed: list[Timed[Effects]] = []
    for call in calls:
        op = tuple(
            (kind, numbers.setdefault(key, len(numbers)), value, new)
            for kind, key, value, new in call.effects
        )
        timed.append(Timed(op, call.called, call.returned))
    name = ", ".join(map(str, numbers)).encode()
    unknown = sum(call.returned is None for call in calls)
    if budget is None:
        budget = BUDGET + BUDGET_PER_OPERATION * len(calls)
    events = events_of(timed)
    try:
        failed = Search(KeysModel((first,) * len(numbers)), budget).run(timed, events)
    except BudgetExceeded:
        detail = f"gave up: {budget:,} configurations were looked at; a larger budget may decide it"
        return KeyReport(name, Verdict.UNKNOWN, len(calls), unknown, detail)
    if failed is None:
        return KeyReport(name, Verdict.OK, len(calls), unknown)
    detail = f"nothing explains {calls[~events[failed]]}"
    return KeyReport(name, Verdict.ILLEGAL, len(calls), unknown, detail)
