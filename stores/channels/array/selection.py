"""Indices of numpy over an array that is no ndarray: the elements that they select, as runs.

`Selection` has the shape of the result and, for each of its elements, the number of the array's
element, in C order: as the first of a run, or as an array of numbers where they are no run. So an
index means what it means in numpy, which evaluates it, and no element is touched meanwhile.

A basic index (whole numbers, slices, `...` and None) is applied to an array of the same shape whose
memory nobody accesses: offset and strides of the view are the selection. Any other index (arrays,
lists, masks) is applied, for each axis, to the numbers along that axis, broadcast to the shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
