"""Packaging: the list of compiled modules, what the archives hold, and installing from them.

A test that compiles everything takes minutes, so it is in the soak. In its place, a wheel is made
of an sdist where the modules are that this tree has compiled: the sources are the same, as another
test says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from kit.compiled_constants import compiled_modules

ROOT = Path(__file__).resolve().parent.parent
CONSTANTS = ROOT / "build" / "constants"
BUILD_S = 600
HANG_S = 2 * BUILD_S
"""Compiling everything takes minutes on a busy machine; a test does it twice at most."""

PROGRAM = """
import sys, limpet
assert limpet.build == sys.argv[1], limpet.build
assert limpet.__file__.startswith(sys.prefix), limpet.__file__
with limpet.create(sys.argv[2], node_size="1MiB") as pool:
    kv = pool.store("race", name="s", capacity=10)
    kv.put(b"k", b"v")
    assert kv.get(b"k") == b"v"
    assert pool.audit()["leaked"] == 0
limpet.destroy(sys.argv[2])
"""


def run(*command: str | Path, cwd: Path, pure: bool = False) -> str:
    """Standard output of a command that must succeed; it sees nothing of this tree's packages."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["LIMPET_PURE"] = "1" if pure else ""
    environment["CFLAGS"] = "-O0"  # what is compiled here need not be fast
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def sources(pattern: str) -> set[str]:
    """Paths below limpet/, as setup.py writes them."""
    folders = [ROOT / "limpet" / name for name in ("shm", "stores", "fault", "bench")]
    return {str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob(pattern)}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("sdist")
    # With egg_info elsewhere, so that nothing is written into the tree.
    run(
        sys.executable, "setup.py", "-q", "egg_info", "-e", folder, "sdist", "-d", folder,
        cwd=ROOT, pure=True,
    )  # fmt: skip
    (found,) = folder.glob("*.tar.gz")
    return found


def unpacked(archive: Path, folder: Path) -> Path:
    folder.mkdir()
    run("tar", "xzf", archive, cwd=folder)
    (top,) = folder.iterdir()
    return top


def hand_over(folder: Path) -> None:
    """Put what this tree has compiled where the build in a folder would put it."""
    copies = {ROOT / path: folder / path for path in sources("*.c")}
    copies |= {path: folder / path.relative_to(ROOT) for path in CONSTANTS.rglob("*.pxd")}
    platform = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    copies |= {ROOT / path: folder / f"build/lib.{platform}" / path for path in sources("*.so")}
    for source, target in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def wheel_of(sdist: Path, folder: Path, pure: bool, again: bool = False) -> Path:
    """The wheel of an sdist. `again`: it is compiled, also if the tree is."""
    source = unpacked(sdist, folder / "source")
    if not pure and not again:
        hand_over(source)
    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, source,
        cwd=folder, pure=pure,
    )  # fmt: skip
    (found,) = folder.glob("*.whl")
    return found


def try_out(wheel: Path, folder: Path, build: str) -> None:
    """Install the wheel where the tree is not on the path, and use it."""
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    python = environment / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    here = run(sys.executable, "-c", "import psutil; print(psutil.__path__[0])", cwd=folder)
    run(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install",
        "-q", "--no-deps", "--no-index", wheel, cwd=folder,
    )  # fmt: skip
    # The dependencies come from the environment of the tests, behind the wheel on the path.
    (Path(site.strip()) / "dependencies.pth").write_text(f"{Path(here.strip()).parent}\n")
    run(python, "-c", PROGRAM, build, f"shm://test-wheel-{os.getpid()}", cwd=folder)
    assert "destroy" in run(environment / "bin" / "limpet", "--help", cwd=folder)
    assert "0.1.0" in run(python, "-m", "limpet", "--version", cwd=folder)


def test_every_package_is_in_the_wheel_but_the_rack() -> None:
    listed = (
        (ROOT / "pyproject.toml").read_text().partition("\npackages = [\n")[2].partition("]")[0]
    )
    there = {str(Path(path).parent).replace("/", ".") for path in sources("__init__.py")}
    assert {package for package in there if f'"{package}",' not in listed} == {"limpet.fault.rack"}


def test_every_pxd_belongs_to_a_compiled_module_and_the_other_way_round() -> None:
    sourced = {str(Path(path).with_suffix(".pxd")) for path in sources("*.py") | sources("*.pyx")}
    assert sources("*.pxd") <= sourced
    assert {str(Path(path).with_suffix(".pxd")) for path in sources("*.pyx")} <= sources("*.pxd")


UNCOMPILED = """if True:
    import importlib, sys
    from limpet.shm.errors import ParameterError
    from limpet.shm.net import backend as network
    for name in sys.argv[1:]:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Pure builds refuse what needs libfabric before they import it.
            assert error.name.startswith(network.__package__ + ".")
            try:
                network.require_compiled()
            except ParameterError:
                continue
            raise
        assert module.__file__.endswith(".py")
"""


def test_compiled_modules_also_run_uncompiled(tmp_path: Path) -> None:
    for path in sources("*.py") | {"limpet/__init__.py"}:
        copy = tmp_path / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / path).read_bytes())
    run(sys.executable, "-c", UNCOMPILED, *compiled_modules(), cwd=tmp_path)


def test_nothing_that_is_built_is_tracked() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    tracked = run("git", "ls-files", cwd=ROOT).splitlines()
    assert tracked
    assert [name for name in tracked if name.endswith((".so", ".c", ".pyc", ".egg-info"))] == []


@pytest.mark.exhaustive("builds an sdist")
def test_sdist_holds_the_sources_and_no_links(sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        members = {name.partition("/")[2]: entry for name in tar.getnames()
                   if (entry := tar.getmember(name))}  # fmt: skip
    assert all(entry.isreg() or entry.isdir() for entry in members.values())
    expected = sources("*.py") | sources("*.pyx") | sources("*.pxi") | sources("*.pxd")
    expected |= sources("*.h") | {"limpet/py.typed", "limpet/cli/__init__.py", "README.md"}
    expected |= {"LICENSE", "CHANGELOG.md", "Makefile", "setup.py", "pyproject.toml"}
    expected |= {"CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"}
    expected |= {f"docs/{path.name}" for path in (ROOT / "docs").iterdir()}
    examples = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.*")}
    assert "examples/bank.py" in examples
    expected |= examples
    assert expected <= members.keys()
    assert not [name for name in members if name.endswith((".so", ".c"))]


@pytest.mark.exhaustive("builds a wheel")
def test_pure_wheel_works_and_says_that_it_is_pure(sdist: Path, tmp_path: Path) -> None:
    wheel = wheel_of(sdist, tmp_path, pure=True)
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith(".so") or "/rack/" in name]
    try_out(wheel, tmp_path, "pure")


@pytest.mark.soak("compiles everything", cases=["again"])
@pytest.mark.exhaustive("builds wheels")
@pytest.mark.parametrize("again", [False, True], ids=["handed over", "again"])
def test_compiled_wheel_works_and_a_compile_failure_is_an_error(
    again: bool, sdist: Path, tmp_path: Path
) -> None:
    if not again and not sources("*.so"):
        pytest.skip("this tree is not compiled")
    wheel = wheel_of(sdist, tmp_path, pure=False, again=again)
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"-{tag}-{tag}-linux" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for path in (path.removesuffix(".pxd") for path in sources("*.pxd")):
        assert [name for name in names if name.startswith(f"{path}.") and name.endswith(".so")]
        assert f"{path}.pxd" in names
    assert {
        "limpet/py.typed",
        "limpet/shm/endpoint/native.h",
        "limpet/stores/core/status.pxd",
    } <= set(names)
    assert not [name for name in names if name.endswith((".c", ".pyx", ".pxi"))]
    try_out(wheel, tmp_path, "compiled")
    wheel.unlink()
    _fails_without_a_compiler(tmp_path)


def _fails_without_a_compiler(folder: Path) -> None:
    """Build once more where C files are made already, which takes long."""
    (source,) = (folder / "source").iterdir()
    for made in source.glob("build/lib.*"):
        shutil.rmtree(made)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, source],
        cwd=folder,
        env={**os.environ, "LIMPET_PURE": "", "CC": "false"},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode != 0
    assert "'false'" in done.stdout + done.stderr or "/false'" in done.stdout + done.stderr
    assert not list(folder.glob("*.whl"))


@pytest.mark.parametrize(
    ("before", "words", "said"),
    [
        ("import os; os.environ['CC'] = 'nocc'", ["bdist_wheel"], "no C compiler (nocc): limpet"),
        ("sys.platform = 'darwin'", ["egg_info"], "Linux only, and this is darwin"),
        ("sys.platform = 'win32'", ["bdist_wheel"], "Linux only, and this is win32"),
        (
            "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1",
            ["egg_info"],
            "free-threaded builds",
        ),
    ],
)
def test_an_installation_that_cannot_be_says_why_in_a_line(
    before: str, words: list[str], said: str
) -> None:
    program = "import multiprocessing.connection, setuptools, sys\nsys.argv[0] = 'setup.py'\n"
    program += f"{before}\nexec(open('setup.py').read())"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT, env={**os.environ, "LIMPET_PURE": ""}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_free_threaded_python_is_refused_at_import() -> None:
    program = "import sys; sys.abiflags = 't'; import limpet"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ImportError: limpet does not run on free-threaded builds" in done.stderr
