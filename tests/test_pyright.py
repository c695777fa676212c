"""pyright finds the same types in tests/test_typed_use.py as mypy does.

By basedpyright, whose package brings pyright and Node; that of pyright fetches both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.either_build("types do not depend on the build")

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ROOT / "tests/test_typed_use.py"


def test_pyright_refuses_the_marked_lines_and_no_others() -> None:
    pytest.importorskip("basedpyright", reason="pip install 'limpet[pyright]'")
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error", str(CHECKED)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = CHECKED.read_text().splitlines()
    marked = {number for number, line in enumerate(lines) if "# type: ignore[" in line}
    assert {one["range"]["start"]["line"] for one in found} == marked, done.stdout
