"""Kinds of stores from outside of limpet: registered by a program, or named by a package."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.processes import gather, start

import limpet
from limpet.stores import registry
from limpet.stores.core.base import Store
from limpet.stores.registry import KINDS, kind_named, register, store_class

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HOME = Path(limpet.__file__).parent.parent
CAPACITY = 20
STRANGER = """
import sys, limpet
with limpet.open(sys.argv[1]) as pool:
    pool.store("race", name="other").put(b"k", b"v")
    pool.recover()
    for work in (lambda: pool.store("tiny", name="test"), lambda: pool.drop("test"), pool.audit):
        try:
            work()
        except limpet.ParameterError as error:
            print(error)
"""
"""A program that has never heard of the kind `tiny`."""


class Known(Store):
    """Has all that a kind provides, and does nothing."""

    Parameters: Any = object
    make = unmake = get = _write = delete = keys = references = check = lambda *_: None  # type: ignore[assignment]

    def __len__(self) -> int:
        return 0


class Lacking(Known):
    """Has no `check` and no `make`."""

    check = Store.check  # type: ignore[assignment]
    make = None


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the kind `tiny`, which a program has registered."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "own_store", raising=False)
    return importlib.import_module("own_store").Tiny


def run(*command: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(HOME)]))},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


# ---- by a program ------------------------------------------------------------------------------


def test_a_kind_from_outside_does_what_a_dict_does(pools: Any, tiny: type) -> None:
    pool = pools(nodes=2)
    store = pool.store("tiny", name="test", capacity=CAPACITY)
    assert type(store) is tiny
    handles = [store, pools.again(pool).store("tiny", name="test", capacity=CAPACITY)]
    handles.append(pickle.loads(pickle.dumps(store)))
    source, model = random.Random(1), dict[bytes, bytes]()
    for step in range(500):
        handle, key = source.choice(handles), b"%d" % source.randrange(CAPACITY)
        value = b"%d" % step
        what = source.choice(["put", "insert", "update", "delete", "get"])
        if what == "put":
            handle.put(key, value)
            model[key] = value
        elif what == "get":
            assert handle.get(key) == model.get(key)
        elif (what == "insert") == (key in model):
            with pytest.raises((limpet.KeyExists, KeyError)):
                handle.delete(key) if what == "delete" else getattr(handle, what)(key, value)
        elif what == "delete":
            handle.delete(key)
            del model[key]
        else:
            getattr(handle, what)(key, value)
            model[key] = value
        assert len(handle) == len(model)
    assert dict(store.items()) == model
    store.check()
    assert gather(lambda: dict(store.items())) == [model]
    assert {"name": "test", "kind": "tiny", "codec": "bytes", "parameters": {"capacity": 20}} in (
        pool.stores()
    )
    assert pool.audit()["leaked"] == 0


def test_a_kind_from_outside_refuses_what_it_cannot_have(pools: Any, tiny: type) -> None:
    pool = pools()
    store = pool.store("tiny", name="test", capacity=3)
    for number in range(3):
        store.put(b"%d" % number, b"")
    with pytest.raises(limpet.StoreFull):
        store.put(b"3", b"")
    with pytest.raises(limpet.KeyTooLarge):
        store.put(b"12345678", b"")
    with pytest.raises(limpet.ValueTooLarge):
        store.put(b"0", b"12345678")
    with pytest.raises(limpet.StoreMismatch, match="capacity=3"):
        pool.store("tiny", name="test", capacity=4)
    with pytest.raises(limpet.ParameterError, match="no parameter size"):
        pool.store("tiny", name="more", size=4)
    assert dict(store.items()) == dict.fromkeys([b"0", b"1", b"2"], b"")
    assert pool.dict("test", store="tiny", codec="bytes")[b"1"] == b""


def test_a_kind_from_outside_is_dropped_and_its_memory_is_free(pools: Any, tiny: type) -> None:
    pool = pools()
    store = pool.store("tiny", name="test")
    other = pools.again(pool).store("tiny", name="test")
    other.put(b"k", b"v")
    pool.drop("test")
    for handle in (store, other):
        with pytest.raises(limpet.StoreDropped):
            handle.get(b"k")
    assert pool.store("tiny", name="test").get(b"k") is None
    assert pool.audit()["leaked"] == 0


def test_a_kind_from_outside_is_lost_with_its_node(pools: Any, tiny: type) -> None:
    pool = pools(nodes=2)
    store = pool.store("tiny", name="test")
    store.put(b"k", b"v")
    pool.fail_node(0)
    with pytest.raises(limpet.NodeFailed):
        store.get(b"k")
    pool.replace_node(0)
    for handle in (store, pools.again(pool).store("tiny", name="test")):
        with pytest.raises(limpet.NodeFailed):
            handle.get(b"k")
    pool.drop("test")
    assert len(pool.store("tiny", name="test")) == 0


@pytest.mark.parametrize("what", ["insert", "update", "delete"])
def test_a_kill_at_any_step_of_a_kind_from_outside(pools: Any, tiny: type, what: str) -> None:
    pool = pools()
    store = pool.store("tiny", name="test")
    after = None if what == "delete" else b"after"
    steps, killed = 0, True
    while killed:
        steps += 1
        key = b"k%d" % steps
        before = None if what == "insert" else b"before"
        if before is not None:
            store.put(key, before)

        def victim(key: bytes = key, fuse: int = steps) -> None:
            store.get(key)  # now it is a client
            store.endpoint.fuse = fuse
            store.delete(key) if what == "delete" else getattr(store, what)(key, b"after")
            store.endpoint.fuse = 0

        pid, out = start(victim)
        killed = os.waitpid(pid, 0)[1] != 0
        out.close()
        assert store.get(key) in ((before, after) if killed else (after,))
        pool.recover()
        store.check()
        assert pool.audit()["leaked"] == 0
    assert steps > 2


# ---- registering -------------------------------------------------------------------------------


def test_a_kind_is_registered_once_or_again_as_the_same(tiny: type) -> None:
    register("tiny", tiny)
    assert store_class("tiny") is tiny
    assert kind_named("tiny").fixed == {}
    assert "tiny" not in KINDS  # it goes through no test run of limpet's
    register("tiny-5", tiny, capacity=5)
    assert kind_named("tiny-5").fixed == {"capacity": 5}
    with pytest.raises(limpet.ParameterError, match="is there already"):
        register("tiny-5", tiny, capacity=6)


def test_a_fixed_parameter_is_not_to_be_given(pools: Any, tiny: type) -> None:
    register("tiny-5", tiny, capacity=5)
    assert pools().store("tiny-5").parameters.capacity == 5
    with pytest.raises(limpet.ParameterError):
        pools().store("tiny-5", capacity=5)


@pytest.mark.parametrize("name", ["race", "raw", "sherman", "channels"])
def test_a_name_of_limpet_is_not_to_be_had(name: str, tiny: type) -> None:
    with pytest.raises(limpet.ParameterError, match=f"{name!r} is there already"):
        register(name, tiny)


def test_a_class_that_can_be_no_store_is_refused(tiny: type) -> None:
    with pytest.raises(limpet.ParameterError, match="provides make, check"):
        register("lacking", Lacking)
    with pytest.raises(limpet.ParameterError, match=r"derives from limpet\.stores"):
        register("text", str)  # type: ignore[arg-type]

    class Local(Known):
        """No other client finds it."""

    with pytest.raises(limpet.ParameterError, match="at the top level"):
        register("local", Local)
    register("known", Known)
    assert store_class("known") is Known


def test_a_process_that_does_not_know_a_kind_changes_nothing(pools: Any, tiny: type) -> None:
    pool = pools()
    store = pool.store("tiny", name="test")
    store.put(b"k", b"v")

    def die() -> None:
        store.endpoint.fuse = 3
        pool.store("race", name="other").put(b"k", b"v")

    pid, out = start(die)
    assert os.waitpid(pid, 0)[1] != 0
    out.close()
    done = run("-c", STRANGER, pool.url)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 3
    for line in said:
        assert "there is no store kind 'tiny'" in line
        assert "the module that registers it" in line
    assert store.get(b"k") == b"v"
    assert pools.again(pool).store("tiny", name="test").get(b"k") == b"v"
    assert pool.audit()["leaked"] == 0


def test_a_module_uses_its_kind_while_it_is_imported(pools: Any, tmp_path: Path) -> None:
    source = (EXAMPLES / "own_store.py").read_text()
    use = f'limpet.open({pools().url!r}).store("tiny", name="test").put(b"k", b"v")'
    (tmp_path / "app.py").write_text(f"{source.partition('if __name__')[0]}\n{use}\n")
    done = run("-c", "import app", path=str(tmp_path))
    assert done.returncode == 0, done.stderr


# ---- by a package ------------------------------------------------------------------------------


@pytest.mark.exhaustive("every command")
def test_commands_know_the_kinds_of_installed_packages(
    pools: Any, tiny: type, tmp_path: Path
) -> None:
    pool = pools()
    pool.store("tiny", name="test").put(b"k", b"v")
    (tmp_path / "tiny_package.py").write_text((EXAMPLES / "own_store.py").read_text())
    folder = tmp_path / "tiny_package-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-package\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[limpet.stores]\ntiny = tiny_package:Tiny\n")
    unknown = run("-m", "limpet", "inspect", pool.url, "--json")
    assert unknown.returncode == 1
    assert "there is no store kind" in unknown.stderr + unknown.stdout
    known = run("-m", "limpet", "inspect", pool.url, "--json", path=str(tmp_path))
    assert known.returncode == 0, known.stderr
    assert [store["kind"] for store in json.loads(known.stdout)["stores"]] == ["tiny"]
    got = run("-m", "limpet", "get", pool.url, "k", "--store", "test", path=str(tmp_path))
    assert (got.returncode, got.stdout) == (0, "v"), got.stderr
    assert run("-m", "limpet", "drop", pool.url, "test", path=str(tmp_path)).returncode == 0
    assert pool.stores() == []
