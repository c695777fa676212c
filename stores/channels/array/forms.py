"""Shapes and dtypes of arrays: as a caller gives them, as numpy has them, as JSON of the catalogue.

A dtype is kept as its text, `"<i8"`, or, with fields, as the list of them, `[["x", "<f4"], ["y",
"<f4", [3]]]`; both are those of numpy's .npy files. A shape is kept as a list.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from limpet.shm.errors import ParameterError

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
        f"an array's `shape` is a whole number from 0 on, or a tuple of some, not {given!r}"
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
