"""Promises about every public call, over the registry of calls (limpet.fault.matrix.calls)."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.fault.matrix.calls import KEY, OBJECTS, Calls

PROFILE = {"nodes": 3, "node_size": "16MiB", "clients": 16}


@pytest.fixture(params=sorted(OBJECTS))
def calls(request: pytest.FixtureRequest) -> Calls:
    return OBJECTS[request.param]


def test_every_public_call_has_a_row(pools: Any, calls: Calls) -> None:
    handle = calls.open(pools(**PROFILE))
    assert calls.missing_rows(handle) == set(), "a row in fault/matrix/calls.py, or `own` there"


def outcome(row: Any, handle: Any) -> tuple[str, str]:
    """The name of the error of a call, and its text; "" and the result if there is none."""
    try:
        return "", repr(row(handle, KEY))
    except Exception as error:
        return type(error).__name__, str(error)


def unsupported(calls: Calls, name: str, handle: Any) -> bool:
    """Whether this kind of object has no such call, or the call is not concerned."""
    refusals = ("StoreError", "ParameterError", "TypeError", "AttributeError")
    return name in calls.private or outcome(calls.rows[name], handle)[0] in refusals


@pytest.mark.parametrize("reused", [False, True], ids=["at once", "its memory in use again"])
def test_calls_of_an_object_that_was_given_back(pools: Any, calls: Calls, reused: bool) -> None:
    """Each is the first call after another client has dropped the store, or removed the channel."""
    if calls.remove is None:
        pytest.skip("it is not given back")
    wrong = {}
    for name, row in calls.rows.items():
        pool = pools(**PROFILE)
        other = pools.again(pool)
        handle = calls.open(pool)
        if name in calls.lasting or unsupported(calls, name, handle):
            pools.destroy()
            continue
        calls.remove(other)
        handle = calls.open(pool)
        calls.remove(other)
        if reused:
            later = other.store("race", name="later")
            for number in range(400):
                later.put(b"%d" % number, b"w" * 300)
        found = outcome(row, handle)
        if found[0] not in ("StoreDropped", "ChannelRemoved"):
            wrong[name] = found
        if reused:
            later.check()
            assert dict(later.items()) == {b"%d" % n: b"w" * 300 for n in range(400)}, name
        pools.destroy()
    assert wrong == {}


def test_calls_of_a_closed_pool(pools: Any, calls: Calls) -> None:
    wrong = {}
    for name, row in calls.rows.items():
        pool = pools(**PROFILE)
        handle = calls.open(pool)
        if not unsupported(calls, name, handle):
            pools.destroy()
            pool = pools(**PROFILE)
            handle = calls.open(pool)
            pool.close()
            found = outcome(row, handle)
            if found[0] != "PoolClosed":
                wrong[name] = found
        pools.destroy()
    assert wrong == {}
