"""`pool.dict()`: the standard library's own mapping tests, with every codec that takes their keys.

Tests that are overridden, for every codec, and the reasons:

| test | reason |
| --- | --- |
| constructor, `type2test(x=1)`; fromkeys | a pool makes a shared dict, its class does not |
| copy gives the same class | a copy is a plain dict: it is not shared |
| setdefault(k, []).append(x) | a value read is a copy; changing it changes nothing shared |
| keys of any class (getitem, pop, setdefault, eq) | keys are compared as bytes, without __eq__ |
| error when changed while iterated | others may write at any time: iteration goes on |
| repr: itself inside, cannot be shown, too deep | a value is a copy and has what the codec takes |

With msgpack and json a tuple comes back as a list, so their reference has a list.
"""

from __future__ import annotations

import decimal
import fractions
import math
import pickle
import random
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.processes import gather
from kit.stores import linked, sound

import limpet
from limpet.stores.core.codecs import Codec
from limpet.stores.core.names import shown
from limpet.stores.dict import SharedDict

mapping_tests: Any = pytest.importorskip(
    "test.mapping_tests",
    reason="this Python has no test package (python3-test or libpython3-testsuite)",
)

PURE = limpet.build == "pure"
CODECS = ("pickle", "msgpack", "json")
LISTS = ("msgpack", "json")
"""Codecs that give tuples back as lists."""


def protocol_case(make: Callable[[], SharedDict], third: Any) -> Any:
    """The standard library's tests on what `make` makes; a local class, so not collected."""

    class OnAPool(mapping_tests.TestHashMappingProtocol):  # type: ignore[misc]
        def _reference(self) -> dict[Any, Any]:
            return {"1": "2", "key1": "value1", "key2": third}

        def _empty_mapping(self) -> SharedDict:
            return make()

        def test_constructor(self) -> None:
            mapping_tests.BasicTestMappingProtocol.test_constructor(self)
            assert self._empty_mapping() is not self._empty_mapping()

        def test_fromkeys(self) -> None:
            assert not hasattr(SharedDict, "fromkeys")

        def test_copy(self) -> None:
            d = self._full_mapping({1: 1, 2: 2, 3: 3})
            copied = d.copy()
            assert copied == {1: 1, 2: 2, 3: 3}
            assert type(copied) is dict
            copied[4] = 4
            assert 4 not in d
            assert self._empty_mapping().copy() == {}
            with pytest.raises(TypeError):
                d.copy(None)  # type: ignore[call-arg]

        def test_setdefault(self) -> None:
            mapping_tests.BasicTestMappingProtocol.test_setdefault(self)
            d = self._empty_mapping()
            assert d.setdefault("key0") is None
            assert d.setdefault("key0", []) is None
            d.setdefault("key", []).append(3)
            assert d["key"] == []
            assert d.setdefault("key", [4]) == []

        if PURE:  # popitem looks for an entry from the start of the table each time

            def test_popitem(self) -> None:
                mapping_tests.BasicTestMappingProtocol.test_popitem(self)
                d = self._full_mapping({repr(number): number for number in range(64)})
                assert {d.popitem() for _ in range(64)} == {(repr(n), n) for n in range(64)}
                assert not d

        def test_getitem(self) -> None:
            mapping_tests.TestMappingProtocol.test_getitem(self)

        def test_pop(self) -> None:
            mapping_tests.TestMappingProtocol.test_pop(self)

        def test_mutatingiteration(self) -> None:
            d = self._empty_mapping()
            d[1] = 1
            for count, _ in enumerate(d):
                d[count + 2] = 1
                if count == 20:
                    break
            assert d[1] == 1

        def test_repr(self) -> None:
            d = self._empty_mapping()
            assert repr(d) == "SharedDict({})"
            d[1] = 2
            assert repr(d) == "SharedDict({1: 2})"

        def test_repr_deep(self) -> None:
            nested: Any = 1
            for _ in range(20):
                nested = [nested]
            assert repr(self._full_mapping({1: nested})) == f"SharedDict({ {1: nested}!r})"

        def test_eq(self) -> None:
            assert self._empty_mapping() == self._empty_mapping()
            assert self._full_mapping({1: 2}) == self._full_mapping({1: 2})
            assert self._full_mapping({1: 2}) == {1: 2}
            assert self._full_mapping({1: 2}) != self._full_mapping({1: 3})
            assert self._full_mapping({1: 2}) != 5

    return OnAPool


NAMES = sorted(
    name for name in dir(mapping_tests.TestHashMappingProtocol) if name.startswith("test_")
)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", NAMES)
def test_mapping_protocol(pools: Any, name: str, codec: str) -> None:
    pool = pools(node_size="4MiB")
    made = iter(range(1000))

    capacity = (64 if PURE else 2048) if name == "test_popitem" else 3

    def make() -> SharedDict:
        d: SharedDict = pool.dict(f"dict {next(made)}", codec=codec, capacity=capacity)
        return d

    third = [1, 2, 3] if codec in LISTS else (1, 2, 3)
    protocol_case(make, third)(name).debug()


def test_the_standard_library_has_no_other_mapping_tests() -> None:
    """A test that a later Python adds must be looked at, not passed over."""
    assert {"test_read", "test_write", "test_update", "test_popitem", "test_len"} <= set(NAMES)
    assert len(NAMES) >= 20


# ---- keys ---------------------------------------------------------------------------------------


@pytest.fixture(params=[*CODECS, "bytes"])
def shared(request: pytest.FixtureRequest, pools: Any) -> SharedDict:
    d: SharedDict = pools().dict("d", codec=request.param, capacity=1000)
    return d


@pytest.mark.parametrize("codec", CODECS)
def test_equal_numbers_are_one_key(pools: Any, codec: str) -> None:
    d = pools().dict("d", codec=codec, capacity=100)
    for key in (1, 1.0, True):
        d[key] = repr(key)
    assert dict(d) == {1: "True"}
    assert [type(key) for key in d] == [int]
    d.update([(0, ""), (False, "no"), (-0.0, "minus")])
    assert d[0] == "minus"
    assert len(d) == 2
    d[2.5] = 1
    assert d[2.5] == 1
    assert 2 not in d
    d["1"] = "text"
    assert d[1] == "True"
    d[None] = 0
    assert d[None] == 0
    assert set(d) == {1, 0, 2.5, "1", None}


@pytest.mark.parametrize("codec", ["pickle", "msgpack"])
def test_tuples_with_shared_parts_are_one_key(pools: Any, codec: str) -> None:
    d = pools().dict("d", codec=codec, capacity=100)
    part = "".join(["long ", "text"])
    twin = "".join(["long ", "text"])
    assert part is not twin
    once, twice = (part, part, (part, b"x")), (part, twin, (twin, b"x"))
    assert Codec.named(codec).encode_key(once) == Codec.named(codec).encode_key(twice)
    d[once] = 1
    d[twice] += 1
    assert dict(d) == {twice: 2}
    d[(1, (True, 1.0))] = 3
    assert d[(1.0, (1, True))] == 3
    assert (1, (2, 1)) not in d
    d[()] = 4
    assert d[()] == 4


def is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize(
    "key",
    [[1], {1: 2}, {1}, frozenset(), object(), 1j, decimal.Decimal("0.1"),
     fractions.Fraction(1, 3), bytearray(b"k"), (1, [2]), ("k", object())],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("codec", CODECS)
def test_keys_of_other_types_are_refused(pools: Any, codec: str, key: Any) -> None:
    if codec == "pickle" and isinstance(key, (frozenset, decimal.Decimal)):
        pytest.skip("pickle takes these: test_dict_keys.py")
    d = pools().dict("d", codec=codec, capacity=100)
    calls: list[Callable[[], object]] = [
        lambda: d[key],
        lambda: d.__setitem__(key, 1),
        lambda: d.__delitem__(key),
        lambda: d.get(key),
        lambda: d.pop(key, None),
        lambda: d.setdefault(key, 1),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"equal keys must have equal bytes"):
            call()
    if is_hashable(key):
        assert key not in d
    else:
        with pytest.raises(TypeError, match=r"equal keys must have equal bytes"):
            key in d  # noqa: B015
    assert len(d) == 0


@pytest.mark.parametrize("key", [b"k", (1,), ("a", "b")], ids=repr)
def test_json_keys_are_not_bytes_or_tuples(pools: Any, key: Any) -> None:
    with pytest.raises(TypeError, match="json"):
        pools().dict("d", codec="json", capacity=100)[key] = 1


@pytest.mark.parametrize("key", ["k", 1, None, (1,)], ids=repr)
def test_bytes_keys_are_bytes(pools: Any, key: Any) -> None:
    d = pools().dict("d", codec="bytes", capacity=100)
    with pytest.raises(TypeError, match="bytes"):
        d[key] = b"v"
    with pytest.raises(TypeError, match="bytes"):
        d[b"k"] = key
    d[bytearray(b"k")] = memoryview(b"v")
    assert dict(d) == {b"k": b"v"}


def test_infinities_are_keys(pools: Any) -> None:
    for codec in CODECS:
        d = pools().dict("d", codec=codec, capacity=100)
        d[math.inf] = 1
        d[-math.inf] = 2
        assert d[math.inf] == 1
        assert set(d) == {math.inf, -math.inf}


ATOMS = st.one_of(
    st.text(max_size=6), st.integers(-(2**63), 2**64 - 1), st.booleans(), st.none(),
    st.floats(allow_nan=False),
)  # fmt: skip
KEYS = {
    "json": ATOMS,
    "msgpack": st.recursive(
        ATOMS | st.binary(max_size=6), lambda inner: st.lists(inner, max_size=3).map(tuple)
    ),
}
KEYS["pickle"] = st.one_of(KEYS["msgpack"], st.integers())


@pytest.mark.parametrize("codec", CODECS)
def test_keys_come_back_equal_and_stay_apart(pools: Any, codec: str) -> None:
    """Any set of keys, through the codec, is as a dict has it."""
    d = pools(node_size="4MiB").dict("d", codec=codec, capacity=20)

    @settings(
        max_examples=10 if PURE else 100, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(KEYS[codec], max_size=12))
    def check(keys: list[Any]) -> None:
        d.clear()
        model: dict[Any, int] = {}
        for number, key in enumerate(keys):
            d[key] = model[key] = number
        assert dict(d) == model

    check()
    sound(d.store)


# ---- values, and the rest -----------------------------------------------------------------------


def test_a_value_is_a_copy(pools: Any) -> None:
    d = pools().dict("d", capacity=100)
    value = [1]
    d["k"] = value
    value.append(2)
    d["k"].append(3)
    assert d["k"] == [1]
    assert d["k"] is not d["k"]


def test_a_default_that_is_not_stored_raises(pools: Any) -> None:
    for codec in LISTS:
        d = pools().dict("d", codec=codec, capacity=100)
        with pytest.raises(TypeError):
            d["k"] = object()
        with pytest.raises(TypeError):
            d.setdefault("k", object())
        assert "k" not in d


def test_setdefault_returns_what_everybody_reads(pools: Any) -> None:
    for codec in CODECS:
        d = pools().dict("d", codec=codec, capacity=100)
        assert d.setdefault("k", (1, 2)) == d["k"] == d.setdefault("k", 5)


def test_missing_keys_are_named(shared: SharedDict) -> None:
    key: Any = b"nonesuch" if shared.codec.name == "bytes" else "nonesuch"
    for call in (lambda: shared[key], lambda: shared.__delitem__(key), lambda: shared.pop(key)):
        with pytest.raises(KeyError) as caught:
            call()
        assert caught.value.args == (key,)
    assert shared.get(key) is None
    assert shared.get(key, 7) == shared.pop(key, 7) == 7


def test_it_is_a_mutable_mapping(shared: SharedDict) -> None:
    assert isinstance(shared, MutableMapping)
    key, value = (b"k", b"v") if shared.codec.name == "bytes" else ("k", "v")
    assert shared | {key: value} == {key: value}
    assert {key: value} | shared == {key: value}
    same = shared
    same |= {key: value}
    assert same is shared
    assert dict(shared) == {key: value}
    assert list(shared.items()) == [(key, value)]
    assert shared.popitem() == (key, value)
    assert len(shared) == 0
    shared.clear()


@pytest.mark.parametrize("codec", ["", "xml", 5], ids=repr)
def test_an_unknown_codec_names_those_that_there_are(pools: Any, codec: Any) -> None:
    with pytest.raises(limpet.ParameterError, match=r"pickle, msgpack, json, bytes"):
        pools().dict("d", codec=codec)


@pytest.mark.parametrize("codec", ["pickle", "msgpack", "json", "bytes"])
def test_codec_is_kept_with_the_store_and_no_other_one_reads_it(pools: Any, codec: str) -> None:
    pool = pools()
    key, value = (b"k", b"v") if codec == "bytes" else ("k", [1, "v"])
    pool.dict("d", codec=codec, capacity=100)[key] = value
    assert pool.stores()[0]["codec"] == codec
    others = {"pickle", "msgpack", "json", "bytes"} - {codec}
    for other in sorted(others):
        with pytest.raises(limpet.StoreMismatch, match=f"with the codec '{codec}', not '{other}'"):
            pool.dict("d", codec=other)
    if codec != "bytes":
        with pytest.raises(
            limpet.StoreMismatch, match=r"open it with pool.dict\('d', store='race'\)"
        ):
            pool.store("race", name="d")
    # No client has to say it again, in any process.
    for mapping in (pool.dict("d"), pools.again(pool).dict("d")):
        assert mapping.codec.name == codec
        assert mapping[key] == value
    assert pickle.loads(pickle.dumps(pool.dict("d")))[key] == value


def test_store_of_bytes_is_a_mapping_of_bytes(pools: Any) -> None:
    pool = pools()
    pool.store("race", name="s", capacity=100).put(b"k", b"v")
    assert dict(pool.dict("s")) == {b"k": b"v"}
    with pytest.raises(limpet.StoreMismatch, match=r"open it with pool.store\('race', 's'\)"):
        pool.dict("s", codec="pickle")


def test_wrong_kind_is_refused_with_the_call_that_opens_the_store(pools: Any) -> None:
    pool = pools()
    pool.dict("d", store="loco")["k"] = 1
    pool.store("rtx-race", "s")
    pool.cache("c")
    for wrong, call in (
        (lambda: pool.cache("d"), "pool.dict('d', store='loco')"),
        (lambda: pool.dict("s", store="race"), "pool.store('rtx-race', 's')"),
        (lambda: pool.dict("c"), "pool.cache('c')"),
        (lambda: pool.cache("c", codec="json"), "pool.cache('c')"),
    ):
        with pytest.raises(limpet.StoreMismatch) as caught:
            wrong()
        assert f"open it with {call}, or take another name" in str(caught.value)
    # A call without a kind opens the store that is there; with a parameter, of its kind.
    for opened in (pool, pools.again(pool)):
        assert opened.dict("d") == {"k": 1}
        assert opened.dict("s").store.kind == "rtx-race"
    with pytest.raises(limpet.StoreMismatch, match="locks"):
        pool.dict("d", locks=1)


# ---- between processes --------------------------------------------------------------------------


def test_setdefault_is_atomic_between_processes(pools: Any) -> None:
    d = pools().dict("d", capacity=1000)
    keys = list(range(100 if PURE else 400))

    def child(number: int) -> list[Any]:
        return [d.setdefault(key, (number, key)) for key in keys]

    found = gather(*[lambda n=n: child(n) for n in range(4)])
    assert found[0] == found[1] == found[2] == found[3] == [d[key] for key in keys]
    sound(d.store)


def test_popitem_gives_each_item_to_one_process(pools: Any) -> None:
    d = pools().dict("d", capacity=1000)
    count = 100 if PURE else 500
    d.update((key, str(key)) for key in range(count))

    def child() -> list[Any]:
        taken = []
        while True:
            try:
                taken.append(d.popitem())
            except KeyError:
                assert len(d) == 0
                return taken

    found = sorted(item for items in gather(*[child] * 4) for item in items)
    assert found == [(key, str(key)) for key in range(count)]
    assert linked(d.store) == 0


def test_pop_gives_a_key_to_one_process(pools: Any) -> None:
    d = pools().dict("d", capacity=1000)
    keys = list(range(100 if PURE else 500))
    d.update((key, str(key)) for key in keys)

    def child(seed: int) -> list[Any]:
        order = random.Random(seed).sample(keys, len(keys))
        return [key for key in order if d.pop(key, None) is not None]

    found = sorted(key for taken in gather(*[lambda s=s: child(s // 2) for s in range(4)])
                   for key in taken)  # fmt: skip
    assert found == keys


# ---- clear --------------------------------------------------------------------------------------


def verbs(store: Any) -> int:
    counted = store.stats()
    return sum(
        scope[verb]
        for scope in (counted, counted["background"])
        for verb in ("reads", "writes", "cas", "atomics")
    )


def test_clear_takes_one_pass_over_the_keys_of_any_kind(pools: Any, kind: str) -> None:
    """Not one for each entry: that was quadratic."""
    d = SharedDict(pools(nodes=3).store(kind, name="d", capacity=1000), Codec.named("bytes"))
    keys = [b"%04d" % number for number in range(60 if PURE else 300)]
    d.update(dict.fromkeys(keys, b"v"))
    start = verbs(d.store)
    for key in keys:
        del d[key]
    deletes = verbs(d.store) - start
    d.update(dict.fromkeys(keys, b"v"))
    start = verbs(d.store)
    assert len(list(d)) == len(keys)
    one_pass = verbs(d.store) - start
    start = verbs(d.store)
    d.clear()
    assert verbs(d.store) - start <= 2 * (deletes + one_pass)
    assert len(d) == 0
    assert list(d) == []
    sound(d.store)


def test_clear_leaves_no_entry_that_was_there_while_others_set_some(pools: Any) -> None:
    d = pools().dict("d", capacity=1000)
    count = 100 if PURE else 400
    d.update(dict.fromkeys(range(count), "old"))

    def other(number: int) -> None:
        for step in range(count // 4):
            d[number, step] = "new"

    def clear() -> None:
        d.clear()
        assert not any(key in d for key in range(count))

    gather(clear, clear, lambda: other(0), lambda: other(1))
    assert all(value == "new" for value in d.values())
    sound(d.store)


def test_a_mapping_of_a_closed_pool_can_be_shown(pools: Any) -> None:
    pool = pools()
    d = pool.dict("d")
    d["k"] = 1
    assert repr(d) == "SharedDict({'k': 1})"
    pool.close()
    assert repr(d) == f"<SharedDict over {d.store!r}>"


KEY = ("user", 7)


def test_errors_show_the_python_key(pools: Any) -> None:
    pool = pools(nodes=1, node_size="4MiB")
    with pytest.raises(limpet.ValueTooLarge, match=r"the key \('user', 7\);"):
        pool.dict("d")[KEY] = bytes(5 << 20)
    with pytest.raises(limpet.KeyTooLarge, match=r"the key 'xxxxx.*\.\.\. has"):
        pool.dict("d")["x" * 70_000] = 1
    with pytest.raises(limpet.ValueTooLarge, match=r"the entry of \('user', 7\) takes"):
        pool.cache("c", max_bytes="64KiB")[KEY] = bytes(70_000)
    assert repr(pool.cache("c").lock(KEY)).startswith("<lock ('user', 7) of")
    tight = pool.dict("r", store="rcuckoo", capacity=8)
    with pytest.raises(limpet.StoreFull, match=r"no room for the key \d+, by"):
        tight.update(dict.fromkeys(range(1000), 0))


def test_key_of_bytes_is_shown_as_bytes() -> None:
    assert shown(b"\x80\x04") == r"b'\x80\x04'"
    assert shown(b"k" * 30) == f"b'{'k' * 24}'..."
