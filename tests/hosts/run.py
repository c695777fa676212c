"""`make test-hosts`: cache tests of Django, aiocache and cachelib, from their sdists, on limpet.

Sdists of the versions that are installed, and plugins that their tests need, are put below the
directory that is the argument. Of each host one line is printed: how many tests have passed. The
exit status is 0 if all have.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
HANG_S = 900
PLUGINS = ("pytest-asyncio", "pytest-mock", "pytest-xprocess", "marshmallow")


def pip(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *words],
        check=True, timeout=HANG_S,
    )  # fmt: skip


def sources(host: str, folder: Path) -> Path:
    """The unpacked sdist of a host, in the version that is installed."""
    name = f"{host}-{version(host)}"
    if not (folder / name).exists():
        pip(
            "download", "--no-deps", "--no-binary", host, "-d", str(folder),
            f"{host}=={version(host)}",
        )  # fmt: skip
        with tarfile.open(folder / f"{name}.tar.gz") as tar:
            tar.extractall(folder, filter="data")
    return folder / name


def run(words: list[str], cwd: Path, path: Path) -> str:
    """What a run of tests has printed."""
    environment = {**os.environ, "PYTHONPATH": f"{path}:{HERE}", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, timeout=HANG_S, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.stdout


def of_django(folder: Path, path: Path) -> str:
    tests = sources("django", folder) / "tests"
    app = tests / "limpet_cache"
    app.mkdir(exist_ok=True)
    (app / "__init__.py").write_text("")
    (app / "tests.py").write_text((HERE / "django_cache.py").read_text())
    return run(
        ["runtests.py", "--parallel=1", "cache", "limpet_cache", "-k", "LimpetCacheTests"],
        tests,
        path,
    )


def of_pytest(host: str, folder: Path, path: Path, place: str, *words: str) -> str:
    tests = sources(host, folder) / "tests"
    (tests / place).write_text((HERE / f"{host}_cache.py").read_text())
    where = [str(tests / place)] if host == "cachelib" else [str(tests / "acceptance")]
    options = ["-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={tests.parent}", *words]
    return run([*options, *where], tests.parent, path)


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plugins"
    if not path.exists():
        pip("install", "--no-deps", "--target", str(path), *PLUGINS)
    found = {
        "django": of_django(folder, path),
        "aiocache": of_pytest(
            "aiocache", folder, path, "acceptance/conftest.py", "--asyncio-mode=auto",
            "-m", "not redis and not memcached",
        ),
        "cachelib": of_pytest("cachelib", folder, path, "test_limpet_cache.py"),
    }  # fmt: skip
    bad = 0
    for host, text in found.items():
        (folder / f"{host}.txt").write_text(text)
        if host == "django":
            ran = re.search(r"^Ran (\d+) tests", text, re.M)
            failed = re.findall(r"^(?:FAIL|ERROR): (\S+)", text, re.M)
            skipped = re.search(r"skipped=(\d+)", text)
            count = int(ran[1]) - int(skipped[1] if skipped else 0) if ran else 0
        else:
            passed = re.search(r"(\d+) passed", text)
            failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.M)
            count = (int(passed[1]) if passed else 0) + len(failed)
        ok = count and not failed
        bad += not ok
        print(f"{host} {version(host)}: {count - len(failed)} of {count} tests passed")
        if not ok:
            print("\n".join([*failed, f"all output: {folder / f'{host}.txt'}"]))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
