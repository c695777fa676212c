"""The documents: what they show runs, and what they name is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import limpet
from limpet.__main__ import COMMANDS
from limpet.bench.cli import bench
from limpet.cli.drill import drill
from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.stores.core.base import Store
from limpet.stores.registry import KINDS, UNPROVED, UNRECOVERED, store_class

pytestmark = pytest.mark.either_build("documents are the same")

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])
API = ROOT / "docs/api.md"
FOLDERS = "shm|stores|fault|bench|limpet|tests|docs|examples"
EACH = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as they are made of Markdown."""
    found = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_quick_start_of_the_readme_runs(tmp_path: Path) -> None:
    code = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert "limpet.temporary(" in code
    program = tmp_path / "quickstart.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for worker in range(4):
        assert f"{worker}: 999" in done.stdout
    assert "0 bytes leaked" in done.stdout


def test_example_of_a_pipeline_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, text = API.read_text().partition("```python\n")[2].partition("```\n")
    said = text.partition("It prints\n\n")[2].partition("\n\n")[0]
    exec(compile(code, str(API), "exec"), {})
    assert capsys.readouterr().out == textwrap.dedent(said) + "\n"


def test_calls_that_are_listed_exist() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "docs/api.md").read_text()
    for owner, thing in (("limpet", limpet), ("pool", limpet.Pool), ("store", Store)):
        named = set(re.findall(rf"\b{owner}\.([a-z_]+)\(", text))
        assert len(named) > 2, owner
        assert [name for name in sorted(named) if not hasattr(thing, name)] == []


def test_kinds_that_replace_a_value_in_one_step_are_named() -> None:
    line = re.search(r"setdefault in every kind, the others in\n.*\)  +(.*) \(", API.read_text())
    assert line is not None
    known = {**KINDS, **UNRECOVERED, **UNPROVED}
    assert set(line[1].split(", ")) == {kind for kind in known if store_class(kind).swaps}


def test_adapters_that_are_listed_are_named_beside_the_cache() -> None:
    listed = re.findall(r"^\| (\S+).*\| \[.*\]\(#", (ROOT / "docs/adapters.md").read_text(), re.M)
    assert len(listed) > 7
    text = (ROOT / "docs/cache.md").read_text().partition("## Adapters")[2].partition("\n## ")[0]
    assert [name for name in listed if name not in text] == []


@EACH
def test_commands_that_are_shown_exist(path: Path) -> None:
    text = path.read_text()
    lines = "\n".join(text.split("```")[1::2] + re.findall(r"^ {4,}limpet .*", text, re.M))
    shown = re.findall(r"`limpet ([a-z-]+)(?: ([a-z-]+))?", text)
    shown += re.findall(r"^ *(?:\$ )?limpet ([a-z-]+)(?: ([a-z-]+))?", lines, re.M)
    assert shown or path.name not in ("operations.md", "proof.md", "drills.md", "CHANGELOG.md")
    subjects = KINDS.keys() | UNRECOVERED.keys() | CHANNELS.keys()
    for command, word in shown:
        assert command in COMMANDS, command
        if command == "drill" and word:
            assert word in drill.commands or word in subjects, word
        if command == "bench" and word:
            assert word in bench.commands, word


@EACH
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        file, _, anchor = target.partition("#")
        assert not file.startswith("http"), "links out of the project need a look now and then"
        there = path.parent / file if file else path
        assert there.is_file(), target
        assert not anchor or anchor in anchors(there), target


@EACH
def test_files_that_are_named_exist(path: Path) -> None:
    text = path.read_text()
    for name in re.findall(rf"\b((?:{FOLDERS})/[\w/]*\w\.(?:md|txt|pyx|py|pxd|pyi|h))\b", text):
        # some commands are given in tests/
        assert (ROOT / name).is_file() or (ROOT / "tests" / name).is_file(), name
    for name in re.findall(rf"`((?:{FOLDERS})/[\w/]*/?)`", text):
        assert (ROOT / name).is_dir(), name


def named_in_files(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of a name and the file that the document says it is in: "`name`, `name` in `file`"."""
    for names, file in re.findall(
        r"((?:`[\w.]+`[,\s]*)+)\s(?:in\s)`([\w/]+\.pyx?)`", path.read_text()
    ):
        for name in re.findall(r"`([\w.]+)`", names):
            yield name, file


def test_map_names_what_is_in_the_files() -> None:
    pairs = list(named_in_files(ROOT / "docs/ARCHITECTURE.md"))
    assert len(pairs) > 25
    for name, file in pairs:
        source = (ROOT / file).read_text()
        for part in name.split("."):
            assert re.search(rf"^\s*(?:class|c?p?def)\b.*\b{part}\b|^{part}\b", source, re.M), name
