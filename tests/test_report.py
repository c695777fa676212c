"""`limpet report`: one page of a drill or a benchmark, which needs nothing from outside of it."""

from __future__ import annotations

import json
import re
import signal
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import limpet
from limpet.__main__ import main
from limpet.bench.cli.report import page

VOID = {"meta", "path", "rect", "polyline"}


class Page(HTMLParser):
    """What a page has: its tags, which must nest, its text, and the attributes that name others."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.outside: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        named = dict(attributes)
        self.outside += [f"{one}" for name in ("src", "href", "data") if (one := named.get(name))]
        assert not any(name.startswith("on") for name in named)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def needs_nothing(self) -> bool:
        """Whether it loads nothing and runs nothing."""
        style = " ".join(self.words)
        return not (self.outside or {"script", "link", "iframe", "img"} & {*self.tags}) and not (
            re.search(r"url\(|@import|https?:", style)
        )


def report(*arguments: object, given: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)], input=given)


def test_a_benchmark_is_run_and_reported(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = report(file, "drill", "explore", "race", "--schedules", 3, "--seed", 12345)
    assert done.exit_code == 0, done.output
    found = Page(file.read_text())
    assert found.needs_nothing()
    text = "\n".join(found.words)
    for words in (
        "limpet drill explore race --schedules 3 --seed 12345", "12345", "exit status", "CPython",
        limpet.__version__, "kernel", "UTC",
    ):  # fmt: skip
        assert words in text
    assert list(tmp_path.iterdir()) == [file]


def test_a_command_that_fails_has_no_page_but_its_exit_status(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert report(file, "drill", "explore", "no-such-store").exit_code == 1
    assert report(file).exit_code == 2
    assert report("--of", "-", file, given=b"text").exit_code == 1
    assert not list(tmp_path.iterdir())


RESULT: dict[str, Any] = {
    "ok": False,
    "parameters": {"seed": 77, "keys": 5, "value_sizes": [40, 400]},
    "counts": {"gets": 1_234_567, "puts": 3},
    "delays_ns": {"dead": {"count": 6, "p50": 7.25}, "noticed": {"count": 3, "p50": 8.5}},
    "checks": {
        "nothing <b>is</b> lost": {"held": True, "failures": []},
        "audit": {"held": False, "failures": ["9 bytes & more"]},
    },
    "kills_in_a_second": [19, 20, 18],
    "stops_in_a_second": [7, 7, 7],
    "timeline": [
        {"clients": 4, "at_s": 0.0, "gets": 5, "puts": None},
        {"clients": 4, "at_s": 1.0, "gets": 7, "puts": 2},
        {"clients": 4, "at_s": 2.0, "gets": 7, "puts": 3},
    ],
    "costs": [
        {"subject": "race", "us": 1.5, "rounds": 9},
        {"subject": "</script><script>", "us": -2.5, "rounds": 9},
    ],
    "sizes": {"keys": 64, "values": 64},
    "losses": [],
}


def test_each_shape_of_a_result_has_its_table_and_its_chart() -> None:
    text = page(RESULT, ["drill", "a b"], 1)
    found = Page(text)
    assert found.needs_nothing()
    words = found.words
    assert "limpet drill 'a b'" in words
    assert "something did not hold" in words
    assert words[words.index("seed") + 1] == "77"
    assert "1,234,567" in words
    assert "nothing <b>is</b> lost" in words
    assert '["9 bytes & more"]' in words
    assert text.count('class="bad"') == 2
    # counts, the table of delays (2), kills, timeline, costs; not of what is always the same
    assert found.tags.count("svg") == 6
    assert found.tags.count("polyline") == 1 + 2
    assert "timeline by at s" in words
    assert "7, 3 times" in words


def test_a_command_removes_what_it_has_made_when_ctrl_c_ends_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it takes longer for that than `subprocess` waits before it kills."""
    code = """if 1:
        import os, pathlib, signal, sys, time
        try:
            os.kill(os.getppid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        finally:
            time.sleep(0.6)
            pathlib.Path(sys.argv[1]).unlink()
    """
    made, file = tmp_path / "made", tmp_path / "page.html"
    made.touch()
    monkeypatch.setattr("limpet.bench.cli.report.LIMPET", (sys.executable, "-S", "-c", code))
    done = report(file, made)
    assert done.exit_code == 128 + signal.SIGINT
    assert not list(tmp_path.iterdir())


def test_saved_results_and_lines_of_them_are_read(tmp_path: Path) -> None:
    saved, file = tmp_path / "saved.json", tmp_path / "page.html"
    saved.write_text(json.dumps(RESULT))
    assert report("--of", saved, file, "drill", "race").exit_code == 0
    assert "limpet drill race" in Page(file.read_text()).words
    lines = b'{"a": 1, "b": 2}\n{"a": 2, "b": 5}\n'
    assert report("--of", "-", file, given=lines).exit_code == 0
    assert "polyline" in Page(file.read_text()).tags
    for odd in (b"[]", b"3", b"null", b'["a", [1, [2, {"b": {}}]]]', b'{"a": [{}, {}]}'):
        assert report("--of", "-", file, given=odd).exit_code == 0, odd
        Page(file.read_text())


def test_a_page_that_cannot_be_written_is_said_first(tmp_path: Path) -> None:
    refused = report(tmp_path / "none" / "page.html", "drill", "explore", "race")
    assert refused.exit_code == 2
    assert "there is no directory" in refused.output
