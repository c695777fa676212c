"""`pool.array`: dtypes, shapes, indices, changes in one step, stripes, and what a kill leaves."""

from __future__ import annotations

import enum
import gc
import itertools
import json
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest
from kit.processes import dies_at, gather
from kit.stores import accounted, nothing_leaked

import limpet
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.stores.channels.array.array import Array
from limpet.stores.channels.array.layout import dtype_form, form_of

COMPILED = limpet.build == "compiled"
POINT = [("x", "<f4"), ("y", "<f4", (2,)), ("name", "S3")]
PADDED = np.dtype([("a", "i1"), ("b", "i8"), ("c", "u2")], align=True)
VALUES: list[tuple[Any, Any]] = [
    *[(kind + size, 7) for kind in "iu" for size in "1248"],
    ("f2", 1.5), ("f4", 1.5), ("f8", 1.5), ("longdouble", 1.5),
    ("c8", 1 + 2j), ("c16", 1 + 2j), (">i4", 7), (">u2", 7), (">f8", 1.5), ("?", True),
    ("M8[ns]", np.datetime64("2026-11-26", "ns")), ("m8[s]", np.timedelta64(5, "s")),
    ("S5", b"five5"), ("U3", "drei"[:3]), ("S3", b"abc"), ("V6", b"abcdef"), ("V4", b"abcd"),
    (POINT, (1.5, [2.5, 3.5], b"abc")), (PADDED, (1, -(2**40), 3)),
]  # fmt: skip
IDS = [
    str(dtype) if isinstance(dtype, str) else f"fields{n}" for n, (dtype, _) in enumerate(VALUES)
]


# ---- dtypes and shapes --------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "value"), VALUES, ids=IDS)
def test_every_dtype_of_a_fixed_size_is_as_in_numpy(pools: Any, dtype: Any, value: Any) -> None:
    pool = pools()
    array = pool.array("a", (2, 3), dtype)
    like = np.zeros((2, 3), dtype)
    assert (array.shape, array.dtype, array.ndim, array.size) == ((2, 3), like.dtype, 2, 6)
    assert (array.itemsize, array.nbytes, len(array)) == (like.itemsize, like.nbytes, 2)
    array[1, 2] = like[1, 2] = value
    assert array[1, 2] == like[1, 2]
    assert array[0, 0] == like[0, 0]
    assert np.array_equal(array[...], like)
    array[0] = like[0] = like[1, 2]
    array[:, 1] = like[:, 1] = like[0, 0]
    assert np.array_equal(array[...], like)
    assert np.array_equal(array.numpy(), like)
    assert array[...].dtype == array.numpy().dtype == like.dtype
    other = pools.again(pool)
    assert other.array("a").dtype == like.dtype
    assert other.array("a", (2, 3), dtype)[1, 2] == like[1, 2]
    if array.itemsize in (1, 2, 4, 8):
        assert array.swap((0, 0), value) == like[0, 0]
        assert array.compare_and_swap((0, 0), value, value)
    else:
        with pytest.raises(limpet.ParameterError, match=r"lock"):
            array.swap((0, 0), value)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), 5, (1,), (2, 3, 4), (1, 1, 1), [2, 2]])
def test_every_shape_is_as_in_numpy(pools: Any, shape: Any) -> None:
    array = pools().array("a", shape, "i4")
    like = np.zeros(shape, "i4")
    assert array.shape == like.shape
    array[...] = like[...] = np.arange(like.size, dtype="i4").reshape(like.shape)
    assert np.array_equal(array[...], like)
    assert np.array_equal(array.numpy(), like)
    assert array.numpy().flags.c_contiguous
    assert [np.array_equal(part, like) for _, part in array.parts()] == [True]
    for place in np.ndindex(like.shape):
        assert array[place] == like[place]
        assert array.add(place, 2) == like[place] + 2
    if like.shape:
        assert len(array) == len(like)
        assert np.array_equal(list(array), list(like + 2))
    else:
        for wrong in (lambda: len(array), lambda: list(array)):
            with pytest.raises(TypeError, match="no axis"):
                wrong()
        array[()] = 5
        assert array[()] == 5


def test_a_dtype_with_a_shape_of_its_own_adds_axes(pools: Any) -> None:
    array = pools().array("a", 4, np.dtype(("f4", (2, 3))))
    assert (array.shape, array.dtype) == ((4, 2, 3), np.float32)


@pytest.mark.parametrize("dtype", [object, [("a", object)], "O", np.dtype("S"), "U", "V", "no"])
def test_a_dtype_without_a_fixed_size_is_refused(pools: Any, dtype: Any) -> None:
    with pytest.raises(limpet.ParameterError, match=r"fixed size|no bytes|one of numpy"):
        pools().array("a", 3, dtype)
    assert pools().channels.names() == []


def test_a_dtype_survives_json() -> None:
    for dtype, _ in VALUES:
        form = json.loads(json.dumps(dtype_form(np.dtype(dtype))))
        found = form_of((), form).dtype
        assert found == np.dtype(dtype)
        assert dtype_form(found) == form
    titled = np.dtype([(("a title", "a"), "i4"), ("b", [("c", "i2"), ("d", "f8", (2, 2))])])
    assert form_of((), json.loads(json.dumps(dtype_form(titled)))).dtype == titled
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]})
    with pytest.raises(limpet.ParameterError, match="side by side"):
        dtype_form(overlapping)


def test_another_shape_or_dtype_than_it_was_made_with_names_both(pools: Any) -> None:
    pool = pools()
    made = pool.array("a", (2, 3), "f4")
    for handle in (pool, pools.again(pool)):
        with pytest.raises(limpet.StoreMismatch) as caught:
            handle.array("a", (3, 2), "f4")
        assert "shape (2, 3) and dtype float32" in str(caught.value)
        assert "shape (3, 2) and dtype float32" in str(caught.value)
        with pytest.raises(limpet.StoreMismatch, match=r"float32, .* asked for .* and dtype int64"):
            handle.array("a", dtype="i8")
        with pytest.raises(limpet.StoreMismatch, match="array 'a' is there with 1 stripes"):
            handle.array("a", stripes=2)
        assert handle.array("a").shape == handle.array("a", (2, 3)).shape == (2, 3)
    assert pool.array("a", (2, 3), np.float32, stripes=1) is made
    pool.queue("q")
    with pytest.raises(limpet.StoreMismatch, match="queue"):
        pools.again(pool).array("q", 3)


def test_an_array_pickles_by_its_name(pools: Any) -> None:
    array = pools().array("a", (2, 2), POINT)
    array[1, 1] = (1, [2, 3], b"x")
    again = pickle.loads(pickle.dumps(array))
    try:
        assert again.shape == (2, 2)
        assert again[1, 1] == array[1, 1]
    finally:
        again.pool.close()


# ---- indices ------------------------------------------------------------------------------------

INDICES: list[Any] = [
    ..., (), 1, -1, np.int8(2), (1, 2), (slice(None), 2), slice(1, 3), slice(None, None, -1),
    (slice(None, None, 2), slice(None, None, -3)), (..., 0), (None, 1), (1, None, ..., 2),
    [0, 3], ([0, 3], [1, 1]), (slice(1, 3), [0, 0, 4]), np.array([[0, 1], [3, 3]]),
    np.array([True, False, True, False]), ([[0], [2]], [1, 3, 4]), slice(2, 2), ([], 1),
    (slice(None), [4, 0, 2, 2]), np.arange(20).reshape(4, 5) % 3 == 1, True, False,
]  # fmt: skip


@pytest.mark.parametrize("stripes", [1, 3])
def test_indices_mean_what_they_mean_in_numpy(pools: Any, stripes: int) -> None:
    pool = pools(nodes=2)
    array = pool.array("a", (4, 5), "i2", stripes=stripes)
    like = np.arange(20, dtype="i2").reshape(4, 5)
    array[...] = like
    for index in INDICES:
        found = array[index]
        assert np.array_equal(found, like[index]), index
        assert np.shape(found) == np.shape(like[index]), index
        array[index] = like[index] = (
            np.arange(np.size(like[index])).reshape(np.shape(like[index])) % 7
        )
        assert np.array_equal(array[...], like), index
        array[index] = like[index] = 9
        assert np.array_equal(array[...], like), index
    for wrong in (4, -5, (0, 5), (1, 2, 3), [4], "x", 1.5, (slice(None), 7)):
        with pytest.raises(IndexError):
            array[wrong]
        with pytest.raises(IndexError):
            array[wrong] = 1
    for wrong in (1, [1, 2], slice(1, 2), 1.5, (0, 1, 2)):
        with pytest.raises(IndexError, match="2 whole numbers"):
            array.add(wrong, 1)
    with pytest.raises(ValueError, match="6 elements are set"):
        array[:2, :3] = [1, 2]
    with pytest.raises(IndexError, match="no single fields"):
        array["x"] = 1


class Place(enum.IntEnum):
    SECOND = 1


class Tensor:
    """A whole number of another library, whose dtypes are not numpy's."""

    dtype = "int64"
    shape = ()

    def __index__(self) -> int:
        return 1


@pytest.mark.parametrize("index", [Place.SECOND, Tensor()])
def test_every_whole_number_is_an_index(pools: Any, index: Any) -> None:
    array = pools().array("a", (3, 2))
    array[index, index] = 7
    assert type(array[1, index]) is int
    assert array[index, 1] == 7
    assert array.add((index, 1)) == 8
    assert array[index].tolist() == [0, 8]


def test_a_large_array_is_read_and_written_in_pieces(pools: Any) -> None:
    pool = pools(nodes=2, node_size="8MiB")
    array = pool.array("a", (700, 1000), "f8", stripes=2)
    like = np.random.default_rng(1).normal(size=(700, 1000))
    array[...] = like
    assert np.array_equal(array[...], like)
    assert np.array_equal(array[:, 7], like[:, 7])
    array[:, ::250] = like[:, ::250] = like[:, 1:5]
    assert np.array_equal(array[340:360], like[340:360])
    array[...] = 0.5
    assert array[...].sum() == 350_000


def test_values_that_an_element_cannot_have_are_refused(pools: Any) -> None:
    pool = pools()
    cases: list[tuple[Any, list[Any]]] = [
        ("i1", [128, -129, 1.5, "1", None, [1, 2]]),
        ("u4", [-1, 2**32, 2.0]),
        ("u8", [-1, 2**64]),
        (">i2", [2**15, 1.5]),
        ("f4", ["1", None, 10**400]),
        ("S3", [b"four", "four", 1234, None]),
        ("U2", ["abc", 1.5]),
        ("M8[s]", ["no date"]),
        (POINT, [1.5j, (1, 2)]),
    ]
    for number, (dtype, values) in enumerate(cases):
        array = pool.array(f"a{number}", 3, dtype)
        for value in values:
            with pytest.raises(limpet.ParameterError):
                array[1] = value
        assert np.array_equal(array[...], np.zeros(3, dtype))
    with pytest.raises(limpet.ParameterError):
        pool.array("a0")[:] = [1, 2, 300]
    texts = pool.array("a5")
    with pytest.raises(limpet.ParameterError):
        texts[:] = ["a", "b", "four"]
    texts[:] = np.array(["a", "bc", "def"], "U9")
    assert texts[:].tolist() == [b"a", b"bc", b"def"]
    texts[0] = 12
    assert texts[0] == b"12"


# ---- changes in one step ------------------------------------------------------------------------

WHOLE = [kind + size for kind in ("i", "u") for size in "1248"]


@pytest.mark.parametrize("dtype", [*WHOLE, ">i4", ">u8"])
def test_whole_numbers_change_as_in_numpy(pools: Any, dtype: str) -> None:
    array = pools().array("a", 9, dtype)
    like = np.zeros(9, dtype)
    info = np.iinfo(dtype)
    with np.errstate(over="ignore"):
        for place, delta in itertools.product((0, 3, 8), (1, -1, 100, int(info.max), 5, -(2**63))):
            like[place] = np.array(int(like[place]) + delta & 2**64 - 1, "u8").astype(dtype)
            assert array.add(place, delta) == like[place]
    for place, bits in ((0, 0x5A), (3, 3), (8, 0x7F)):
        like[place] |= bits
        assert array.bit_or(place, bits) == like[place]
        like[place] &= bits ^ 1
        assert array.bit_and(place, bits ^ 1) == like[place]
        like[place] ^= 0x3C
        assert array.bit_xor(place, 0x3C) == like[place]
    assert array.swap(4, info.max) == 0
    assert not array.compare_and_swap(4, 0, 1)
    assert array.compare_and_swap(4, info.max, info.min)
    like[4] = info.min
    assert np.array_equal(array[...], like), "a neighbour has changed"
    for wrong in (0.5, "1", 2**64):
        with pytest.raises(limpet.ParameterError):
            array.add(0, wrong)


def test_a_bool_stays_a_bool(pools: Any) -> None:
    """Also in memory, where numpy has bytes of 0 and 1 only."""
    array = pools().array("a", 8, "?")
    for wrong in (2, -1, 256, "1", None):
        for change in (array.bit_or, array.bit_and, array.bit_xor):
            with pytest.raises(limpet.ParameterError):
                change(3, wrong)
    assert array.bit_or(3, True) is True
    assert array.bit_xor(4, np.True_) is True
    assert array.bit_and(4, 0) is False
    assert array.compare_and_swap(3, True, False)
    assert not array.numpy().view("u1").any()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", ">f4"])
def test_floats_are_added_to_and_have_no_bits(pools: Any, dtype: str) -> None:
    array = pools().array("a", 5, dtype)
    assert array.add(2, 0.5) == 0.5
    assert array.add(2, 1) == 1.5
    array.swap(1, -0.0)
    assert not array.compare_and_swap(1, 0.0, 1.0)
    assert array.compare_and_swap(1, -0.0, 1.0)
    array[3] = float("nan")
    assert array.compare_and_swap(3, float("nan"), 2)
    assert list(array) == [0, 1, 1.5, 2, 0]
    with pytest.raises(limpet.ParameterError, match="whole numbers"):
        array.bit_or(1, 1)


def test_what_is_no_number_is_not_added_to(pools: Any) -> None:
    pool = pools()
    for number, dtype in enumerate(("S4", "?", "V8")):
        with pytest.raises(limpet.ParameterError, match="only numbers"):
            pool.array(f"a{number}", 3, dtype).add(0, 1)
    for number, dtype in enumerate(("c16", "S3", POINT, "longdouble")):
        with pytest.raises(limpet.ParameterError, match="1, 2, 4 or 8 bytes"):
            pool.array(f"w{number}", 3, dtype).add(0, 1)
    flags = pool.array("flags", 3, "?")
    assert flags.bit_or(1, 1) is True
    assert flags.bit_xor(1, 1) is False
    dates = pool.array("dates", 2, "M8[s]")
    dates[0] = np.datetime64(5, "s")
    assert dates.add(0, np.timedelta64(2, "s")) == np.datetime64(7, "s")


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "i8", "f8"])
def test_changes_of_processes_to_neighbours_are_all_there(pools: Any, dtype: str) -> None:
    array = pools().array("a", 8, dtype)
    rounds = 100

    def adds() -> None:
        for number in range(rounds):
            array.add(number % 8, 1)

    gather(adds, adds)
    expected = [2 * len(range(place, rounds, 8)) for place in range(8)]
    assert list(array) == expected


@pytest.mark.parametrize("dtype", ["u1", "i4", "f8", "f2"])
def test_a_kill_in_a_change_leaves_it_done_or_not(pools: Any, dtype: str) -> None:
    array = pools().array("a", 3, dtype)
    array[...] = 1
    fuse, running, seen = 0, True, set()
    while running:
        fuse += 1
        array[1] = 1
        running = dies_at(array.pool, fuse, lambda: array.add(1, 4))
        assert array[0] == array[2] == 1
        seen.add(array[1])
    assert seen == {1, 5}


# ---- stripes ------------------------------------------------------------------------------------


def test_an_array_beyond_a_node_lies_on_all_of_them(pools: Any) -> None:
    pool = pools(nodes=3, node_size="2MiB")
    array = pool.array("a", (1000, 500))
    assert array.nbytes > 2 << 20
    assert array.stripes == 3
    assert [part.shape for _, part in array.parts()] == [(334, 500), (334, 500), (332, 500)]
    assert [int(base) >> NODE_SHIFT for base in array.bases] == [0, 1, 2]
    for rows, part in array.parts():
        part[:] = np.arange(rows.start, rows.stop)[:, None]
    assert array[333, 7] == 333
    assert array[334, 0] == 334
    assert array.add((999, 499), 5) == 1004
    assert array[332:336, 3].tolist() == [332, 333, 334, 335]
    with pytest.raises(limpet.ParameterError, match=r"lies in 3 stripes.*parts\(\).*a\[\.\.\.\]"):
        array.numpy()
    assert np.asarray(array).sum() == array[...].sum()
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(array, copy=False)
    again = pools.again(pool).array("a")
    assert (again.stripes, again[500, 1]) == (3, 500)
    one = pool.array("small", 10)
    assert one.stripes == 1


def test_stripes_are_those_that_are_asked_for_and_none_is_empty(pools: Any) -> None:
    pool = pools(nodes=2)
    for name, shape, asked, there in (
        ("a", (5, 2), 4, [2, 2, 1]), ("b", 3, 7, [1, 1, 1]), ("c", (0, 4), 3, [0]),
        ("d", (), 2, []), ("e", 8, 2, [4, 4]), ("f", (7, 3), 3, [3, 3, 1]),
    ):  # fmt: skip
        array = pool.array(name, shape, "i1", stripes=asked)
        assert [len(part) for _, part in array.parts() if part.shape] == there
        assert pool.array(name, shape, "i1", stripes=asked) is array
        array[...] = 1
        assert array[...].sum() == array.size
    for wrong in (0, -1, 2.5, "2"):
        with pytest.raises(limpet.ParameterError, match="stripes"):
            pool.array("w", 8, stripes=wrong)
    with pytest.raises(limpet.ParameterError, match="longer first axis"):
        pool.array("w", (1, 1 << 22))
    with pytest.raises(limpet.ParameterError, match="more `stripes`"):
        pool.array("w", 1 << 24)
    assert "w" not in pool.channels.names()


def test_the_audit_has_every_byte_of_the_stripes(pools: Any) -> None:
    pool = pools(nodes=3, node_size="2MiB")
    pool.array("a", (1000, 500))
    pool.channels.remove("a")  # so that the catalogue is there, and has grown
    before = accounted(pool)
    array = pool.array("a", (1000, 500))
    there = accounted(pool)
    assert there["reachable"] - before["reachable"] >= array.nbytes
    assert before["free"] - there["free"] >= array.nbytes
    listed = {one["name"]: one for one in pool.channels.list()}["a"]
    assert listed["parameters"] == {"shape": [1000, 500], "dtype": "<i8", "stripes": 3}
    assert array.nbytes <= listed["size"] <= array.nbytes + 3 * 64
    del array
    pool.channels.remove("a")
    assert accounted(pool)["reachable"] == before["reachable"]
    nothing_leaked(pool)


@pytest.mark.parametrize("lost", range(3))
@pytest.mark.parametrize("replaced", [False, True])
def test_the_stripes_that_are_left_stay_readable(pools: Any, lost: int, replaced: bool) -> None:
    pool = pools(nodes=3)
    array = pool.array("a", (6, 2), "i4", stripes=3)
    array[...] = np.arange(12).reshape(6, 2)
    own = int(array.address) >> NODE_SHIFT
    handles = [array, pools.again(pool).array("a")]
    pool.fail_node(lost)
    if replaced:
        pool.replace_node(lost)
    if own == lost:
        with pytest.raises(limpet.NodeFailed, match=f"node {lost}"):
            pools.again(pool).array("a")
    else:
        handles.append(pools.again(pool).array("a"))
        for _ in range(2):
            with pytest.raises(limpet.NodeFailed, match=f"node {lost}") as caught:
                handles[-1][2 * lost, 0]
            assert caught.value.node == lost
        assert handles[-1][(2 * lost + 2) % 6, 1] == (4 * lost + 5) % 12
    for handle in handles:
        with pytest.raises(limpet.NodeFailed, match=f"node {lost}") as caught:
            handle.parts()
        assert caught.value.node == lost
        left = list(handle.parts(skip_lost=True))
        assert [rows for rows, _ in left] == [
            slice(2 * k, 2 * k + 2) for k in range(3) if k != lost
        ]
        for rows, part in left:
            assert np.array_equal(part, np.arange(12).reshape(6, 2)[rows])
        for use in (
            lambda handle=handle: handle[...],
            lambda handle=handle: handle.add((2 * lost, 0)),
        ):
            with pytest.raises(limpet.NodeFailed):
                use()
    del left, part, caught  # they keep the memory of stripes
    pool.channels.remove("a")
    pool.recover()
    accounted(pool)
    if replaced:
        pool.channels.catalogue.check()
        assert pool.array("a", (6, 2), "i4", stripes=3)[...].sum() == 0


# ---- kills and full memory ----------------------------------------------------------------------


def states_of(pool: Any, name: str) -> list[str]:
    return [one["name"] for one in pool.channels.list() if one["name"] == name]


@pytest.mark.exhaustive("every step")
def test_a_kill_while_it_is_made_or_removed_leaves_nothing(pools: Any) -> None:
    pool = pools(nodes=2)
    pool.array("first", 1)
    before = accounted(pool)["reachable"]
    for fuse in itertools.count(1, 4 if COMPILED else 40):
        name = f"a{fuse}"
        ran = dies_at(pool, fuse, lambda name=name: pool.array(name, (4, 2), "i2", stripes=2))
        pool.recover()
        accounted(pool)
        found = pool.array(name, (4, 2), "i2", stripes=2)
        assert found[...].sum() == 0
        found[3, 1] = 7
        for again in itertools.count(1, 4 if COMPILED else 40):
            removed = dies_at(pool, again, lambda name=name: pool.channels.remove(name))
            pool.recover()
            accounted(pool)
            if not removed or fuse % 40 != 1:
                break
            found = pool.array(name, (4, 2), "i2", stripes=2)
            assert found[3, 1] in (0, 7)
            found[3, 1] = 7
        if name in pool.channels.names():
            pool.channels.remove(name)
        nothing_leaked(pool)
        assert accounted(pool)["reachable"] == before
        if not ran:
            break
    assert fuse > 10


def test_where_a_stripe_has_no_room_nothing_is_left(pools: Any) -> None:
    pool = pools(nodes=2, node_size="1MiB")
    pool.array("first", 1)
    filler = pool.channels.open(Array, "filler", shape=90_000, node=1)
    before = accounted(pool)["reachable"]
    with pytest.raises(limpet.StoreFull):
        pool.array("a", 150_000, "i4", stripes=2)
    assert "a" not in pool.channels.names()
    assert accounted(pool)["reachable"] == before
    pool.channels.remove(filler.name)
    del filler
    assert pool.array("a", 150_000, "i4", stripes=2).stripes == 2


def test_where_the_node_of_a_stripe_is_lost_nothing_is_left(pools: Any) -> None:
    pool = pools(nodes=3)
    name = next(
        f"a{number}"
        for number in itertools.count()
        if pool.channels.catalogue.node_of(f"a{number}".encode()) == 0
    )
    pool.array("first", 1)
    pool.fail_node(2)
    with pytest.raises(limpet.NodeFailed, match="node 2"):
        pool.array(name, 6, stripes=3)
    assert not [key for key in pool.channels.catalogue if key.startswith(name.encode())]
    accounted(pool)
    pool.replace_node(2)
    assert pool.array(name, 6, stripes=3)[...].sum() == 0


def race_for_room(pools: Any, cls: Any) -> tuple[Any, Any, list[Exception]]:
    """One client has no room for the second stripe; before it gives up, another one has."""
    pool = pools(nodes=2, node_size="1MiB")
    other = pools.again(pool)
    pool.array("first", 1)
    filler = pool.channels.open(Array, "filler", shape=90_000, node=1)
    given = {"shape": 150_000, "dtype": "i4", "stripes": 2}
    theirs: list[Any] = []
    errors: list[Exception] = []

    class Meets(cls):  # type: ignore[misc]
        def _stripe(self, stripe: int, size: int, node: int, ready: bool) -> int:
            try:
                return int(super()._stripe(stripe, size, node, ready))
            except limpet.StoreFull:
                other.channels.remove("filler")
                theirs.append(other.array("a", **given))
                theirs[0][149_999] = 5
                raise

    del filler
    try:
        mine = pool.channels.open(Meets, "a", **given)
    except limpet.LimpetError as error:
        errors.append(error)
        mine = None
    return mine, theirs[0], errors


def test_who_finds_no_room_and_who_finds_some_agree(pools: Any) -> None:
    mine, theirs, errors = race_for_room(pools, Array)
    assert errors == []
    assert mine[149_999] == theirs[149_999] == 5


def test_without_the_state_of_the_stripes_it_is_removed_under_its_users(pools: Any) -> None:
    class RemovesBlindly(Array):
        def _turn(self, expected: int, desired: int) -> int:
            return expected

    mine, theirs, errors = race_for_room(pools, RemovesBlindly)
    assert mine is None
    assert isinstance(errors[0], limpet.StoreFull)
    with pytest.raises(limpet.ChannelRemoved):
        theirs[149_999]


def test_what_was_given_up_is_begun_anew(pools: Any) -> None:
    """A client that is killed after it has given up, and before it has removed the array."""
    pool = pools(nodes=2)
    array = pool.array("a", 4, stripes=2)
    array[3] = 7
    array.endpoint.store(array.address, 2)
    assert pools.again(pool).array("a", 4, stripes=2)[3] == 0
    with pytest.raises(limpet.ChannelRemoved):
        array[3]
    nothing_leaked(pool)
    made = pool.array("b", 4, stripes=2)
    made.endpoint.store(made.address, 3)
    with pytest.raises(limpet.StoreCorrupt, match="state of its stripes is 3"):
        pools.again(pool).array("b")


def test_threads_that_make_an_array_at_once_have_the_same(pools: Any) -> None:
    pools_of = [pools(nodes=2)]
    pools_of += [pools.again(pools_of[0]) for _ in range(2)]
    start = threading.Barrier(3)
    found: list[Any] = []

    def make(pool: Any) -> None:
        start.wait()
        array = pool.array("a", 9, "u1", stripes=2)
        array.add(8, 1)
        found.append(array)

    threads = [threading.Thread(target=make, args=(pool,)) for pool in pools_of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [array[8] for array in found] == [3, 3, 3]


# ---- other libraries ----------------------------------------------------------------------------


def test_the_memory_itself_goes_to_other_libraries(pools: Any) -> None:
    pool = pools()
    array = pool.array("a", (2, 3), "f4")
    shared = [
        array.numpy(), np.asarray(array), np.from_dlpack(array), np.asarray(array.__buffer__()),
        np.asarray(array, copy=False),
    ]  # fmt: skip
    if sys.version_info >= (3, 12):
        shared.append(np.asarray(memoryview(array)))
    array[1, 2] = 7
    assert [one[1, 2] for one in shared] == [7] * len(shared)
    shared[2][0, 0] = 3
    assert array[0, 0] == 3
    assert array.__dlpack_device__() == (1, 0)
    copies = [np.array(array), np.asarray(array, "f8"), np.asarray(array, copy=True), array[...]]
    array[1, 2] = 8
    assert [one[1, 2] for one in copies] == [7] * len(copies)
    assert (array + 1)[0, 0] == 4 if hasattr(array, "__add__") else True
    assert np.add(array, 1)[0, 0] == 4
    pool.close()
    assert shared[0][1, 2] == 8
    del array
    assert [one[0, 0] for one in shared] == [3] * len(shared)


def test_views_of_stripes_outlive_the_pool(pools: Any) -> None:
    """Memory is not unmapped while an ndarray of it, or one made of that, is alive."""
    pool = pools(nodes=2)
    array = pool.array("a", (4, 3), POINT, stripes=2)
    array[3, 2] = (7, [1, 2], b"z")
    rows = [part[-1:] for _, part in array.parts()]
    fields = rows[1]["x"]
    pool.close()
    del array, pool
    gc.collect()
    assert rows[1][0, 2]["name"] == b"z"
    assert fields[0, 2] == 7
    fields[0, 2] = 8
    assert rows[1]["x"][0, 2] == 8
    assert rows[0]["x"].sum() == 0


def test_arrow_takes_it_without_a_copy(pools: Any) -> None:
    array = pools().array("a", 4, "i8")
    array[2] = 5
    pyarrow = pytest.importorskip("pyarrow")
    buffer = pyarrow.py_buffer(array.numpy())
    found = pyarrow.Array.from_buffers(pyarrow.int64(), 4, [None, buffer])
    array[3] = 6
    assert found.to_pylist() == [0, 0, 5, 6]


def test_torch_takes_it_without_a_copy(pools: Any) -> None:
    torch = pytest.importorskip("torch")
    array = pools().array("a", (2, 2), "f4")
    tensor = torch.from_dlpack(array)
    tensor[1, 1] = 2.5
    assert array[1, 1] == 2.5
