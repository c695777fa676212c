"""Arrays on paper: constants of their words, shapes and dtypes, stripes, and what an index selects.

Shapes and dtypes have three forms: a caller's, numpy's, and JSON of the catalogue. A dtype is kept
as its text, `"<i8"`, or, with fields, as the list of them, `[["x", "<f4"], ["y", "<f4", [3]]]`;
both are those of numpy's .npy files. A shape is kept as a list.

`Stripes` divides an array along its first axis.

`Selection` takes an index of numpy over an array that is no ndarray, and has the elements that it
selects, as runs. It has the shape of the result and, for each of its elements, the number of the
array's element, in C order: as the first of a run, or as an array of numbers where they are no run.
So an index means what it means in numpy, which evaluates it, and no element is touched meanwhile.

A basic index (whole numbers, slices, `...` and None) is applied to an array of the same shape whose
memory is not accessed: offset and strides of the view are the selection. Any other index (arrays,
lists, masks) is applied, for each axis, to the numbers along that axis, broadcast to the shape.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from limpet.shm.errors import ParameterError
from limpet.stores.channels.layout import WORD
from limpet.stores.channels.waiting import whole

SIGNED: Final = 0
UNSIGNED: Final = 1
DOUBLE: Final = 2
FLOAT: Final = 3
BOOL: Final = 4
OTHER: Final = 5
"""An element that is a word, or a part of one, and goes by way of numpy."""
WIDE: Final = 6
"""An element that is no part of one word."""

ADD: Final = 0
AND: Final = 1
OR: Final = 2
XOR: Final = 3
NATIVE: Final = {"i": SIGNED, "u": UNSIGNED, "b": BOOL, "f8": DOUBLE, "f4": FLOAT}

MAKING: Final = 0
READY: Final = 1
GIVEN_UP: Final = 2
"""States of the stripes (array.py)."""
STRIPES_MAX: Final = 4096
PIECE: Final = 1 << 20
"""Bytes that one operation reads or writes at most; other threads go on in between."""
DTYPE: Final = "<i8"
"""The dtype of an array that is made without one."""


KINDS: Final = "biufcmMSUV"
"""Kinds of dtypes whose elements have a fixed size and no pointers."""
AXES_MAX: Final = 32
BYTES_MAX: Final = 1 << 47


class Form(NamedTuple):
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"shape {self.shape} and dtype {self.dtype}"


def form_of(shape: Any, dtype: Any) -> Form:
    """Shape and dtype of what a caller gives, or the catalogue has; ParameterError."""
    found = dtype_of(dtype)
    inner: tuple[int, ...] = ()
    if found.subdtype is not None:
        found, inner = found.subdtype
    form = Form(shape_of(shape) + inner, found)
    if len(form.shape) > AXES_MAX:
        raise ParameterError(f"an array has at most {AXES_MAX} axes, not {len(form.shape)}")
    if form.size * found.itemsize > BYTES_MAX:
        raise ParameterError(f"an array has at most {BYTES_MAX} bytes, and not those of {form}")
    return form


def shape_of(given: Any) -> tuple[int, ...]:
    """A whole number, or some, as a shape; ParameterError."""
    try:
        found = tuple(operator.index(one) for one in given) if _is_many(given) else None
        found = (operator.index(given),) if found is None else found
        if min(found, default=0) >= 0:
            return found
    except TypeError:
        pass
    raise ParameterError(
        f"an array's `shape` is a whole number from 0 on, or a tuple of these, not {given!r}"
    )


def _is_many(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes))


def dtype_of(given: Any) -> np.dtype[Any]:
    """A dtype whose elements have a fixed size; ParameterError."""
    try:
        form = _of_json(given)
        found = np.lib.format.descr_to_dtype(form) if isinstance(form, list) else np.dtype(form)
    except (TypeError, ValueError, SyntaxError, KeyError, IndexError, RecursionError) as error:
        raise ParameterError(
            f"an array's `dtype` is one of numpy, not {given!r}: {error}"
        ) from error
    base = found if found.subdtype is None else found.subdtype[0]
    if found.hasobject or base.kind not in KINDS:
        raise ParameterError(
            f"an array's elements are of a fixed size; those of dtype {found} are objects in the "
            "memory of one process. pool.dict() and pool.queue() take Python objects"
        )
    if not base.itemsize:
        raise ParameterError(
            f"elements of dtype {found} have no bytes; give their length, as in 'S8' or 'U8'"
        )
    return found


def _of_json(form: Any) -> Any:
    """The fields of a dtype as numpy takes them: tuples in a list."""
    if not isinstance(form, list):
        return form
    return [
        (tuple(name) if isinstance(name, list) else name, _of_json(of), *map(tuple, rest))
        if isinstance(name, (str, list)) and all(isinstance(one, (list, tuple)) for one in rest)
        else (name, of, *rest)
        for name, of, *rest in form
    ]


def dtype_form(dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON; ParameterError: its fields overlap."""
    if dtype.names is None:
        return dtype.str
    try:
        return _to_json(dtype.descr)
    except ValueError as error:
        raise ParameterError(
            f"an array's `dtype` has its fields in order and side by side, not as {dtype}"
        ) from error


def _to_json(form: Any) -> Any:
    return [_to_json(one) for one in form] if isinstance(form, (list, tuple)) else form


class Stripes(NamedTuple):
    """Stripe k has the rows from `k * rows` on: `rows` of them, the last one the rest."""

    rows: int
    number: int
    per: int
    """Elements of a stripe; of the last one at most."""
    nbytes: int
    """Bytes of memory of a stripe; of the last one at most."""

    @classmethod
    def of(cls, form: Form, most: int) -> Stripes:
        """At most so many stripes, none of them empty; one, for an array without elements."""
        most = whole("an array's `stripes`", most, 1, STRIPES_MAX)
        length = form.shape[0] if form.shape else 1
        rows = -(-length // most) if form.size else length
        number = max(1, -(-length // rows)) if rows else 1
        per = rows * (form.size // length) if form.size else 0
        return cls(rows, number, max(1, per), memory_of(per, form))

    def nbytes_of(self, stripe: int, form: Form) -> int:
        """Bytes of memory of one stripe."""
        return memory_of(min(self.per, form.size - stripe * self.per), form)


def memory_of(elements: int, form: Form) -> int:
    """Bytes of memory of so many elements: whole words, so that no other memory is in a word with a
    part of an element."""
    return -(-elements * form.dtype.itemsize // WORD) * WORD


def fit(form: Form, most: int | None, room: int, nodes: int) -> Stripes:
    """The stripes of a new array. `room`: bytes that a node has for one at best.

    Without a number: one, if half of a node has room for it, else one for each node. Raises
    ParameterError when a node has no room for one.
    """
    if most is None:
        one = Stripes.of(form, 1)
        most = 1 if 2 * one.nbytes <= room else nodes
    found = Stripes.of(form, most)
    if found.nbytes <= room:
        return found
    if form.shape[0] > found.number:
        mend = "give it more `stripes`, or create the pool with larger nodes"
    else:
        mend = "give it a longer first axis, or create the pool with larger nodes"
    raise ParameterError(
        f"an array of {form} takes {found.nbytes} bytes in each of {found.number} stripes along "
        f"its first axis, and a memory node has room for {room}; {mend}"
    )


Numbers = npt.NDArray[np.int64]
GAP: Final = 256
"""Bytes between two elements up to which one read has both of them."""


class Selection(NamedTuple):
    """The elements of an index: `numbers`, or, if that is None, those from `first` on."""

    shape: tuple[int, ...]
    first: int
    numbers: Numbers | None

    @property
    def size(self) -> int:
        """How many elements it selects."""
        return math.prod(self.shape)


def select(shape: tuple[int, ...], index: Any) -> Selection:
    """The selection of an index. Raises IndexError as numpy does."""
    parts = index if isinstance(index, tuple) else (index,)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if all(_is_basic(part) for part in parts):
        whole = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), shape, strides)
        # With `...` the result is a view, and not the element of one.
        view = whole[parts if any(part is Ellipsis for part in parts) else (*parts, ...)]
        first = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        if view.flags.c_contiguous:
            return Selection(view.shape, first, None)
        numbers = np.full(view.shape, first, np.int64)
        for axis, (count, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
            numbers += _along(axis, view.ndim, np.arange(count, dtype=np.int64) * stride)
        return Selection(view.shape, 0, numbers)
    total: Any = np.broadcast_to(np.int64(0), shape)[index]
    for axis, (count, stride) in enumerate(zip(shape, strides, strict=True)):
        along = _along(axis, len(shape), np.arange(count, dtype=np.int64))
        total = total + np.broadcast_to(along, shape)[index] * stride
    numbers = np.asarray(total, np.int64)
    return Selection(numbers.shape, 0, numbers)


def _is_basic(part: Any) -> bool:
    if isinstance(part, (slice, int, np.integer)):
        return not isinstance(part, bool)
    return part is None or part is Ellipsis


def _along(axis: int, axes: int, numbers: Numbers) -> Numbers:
    """Numbers along an axis, which broadcast to all axes."""
    return numbers.reshape([-1 if one == axis else 1 for one in range(axes)])


class Reading(NamedTuple):
    """A run to read: `length` elements from `first` on; the result's elements at `into` are those
    at `at` in the run."""

    first: int
    length: int
    at: Numbers
    into: Numbers


def readings(numbers: Numbers, itemsize: int) -> Iterator[Reading]:
    """The runs to read for these elements: few, with gaps of at most GAP bytes in them."""
    flat = numbers.ravel()
    order = np.argsort(flat, kind="stable")
    flat = flat[order]
    cuts = np.flatnonzero(np.diff(flat) > max(1, GAP // itemsize)) + 1
    for at, into in zip(np.split(flat, cuts), np.split(order, cuts), strict=True):
        if len(at):
            first = int(at[0])
            yield Reading(first, int(at[-1]) + 1 - first, at - first, into)


def writings(numbers: Numbers) -> Iterator[tuple[int, int, int]]:
    """The runs to write, in the order of the index, so that of several values for one element the
    last one stays: first element, how many, and the place of the first in the values."""
    flat = numbers.ravel()
    ends = [*(np.flatnonzero(np.diff(flat) != 1) + 1).tolist(), len(flat)]
    begin = 0
    for end in ends:
        if end > begin:
            yield int(flat[begin]), end - begin, begin
        begin = end
