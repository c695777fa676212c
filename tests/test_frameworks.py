"""The sites in examples/frameworks, under gunicorn and uvicorn on the loopback, with kills."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.either_build("examples are not compiled")

RUN = Path(__file__).resolve().parent.parent / "examples/frameworks/run.py"
NEEDED = {"django": ("django", "gunicorn"), "fastapi": ("fastapi", "uvicorn")}


@pytest.mark.exhaustive("seconds of web servers", quick=["django"])
@pytest.mark.parametrize("site", NEEDED)
def test_site_answers_while_its_workers_are_killed(site: str) -> None:
    for package in NEEDED[site]:
        pytest.importorskip(package, reason="limpet[examples] is not installed")
    done = subprocess.run(
        [sys.executable, str(RUN), site, "--seconds", "4"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* workers were killed", done.stdout)
    assert re.search(r"[1-9]\d* answers, 0 wrong", done.stdout)
    assert "; 0 bytes leaked" in done.stdout
