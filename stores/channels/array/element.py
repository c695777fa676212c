"""Elements of 1, 2, 4 or 8 bytes as words, and what is done to one in a word.

A word's lowest bytes are those of the element; the others are 0. Native whole numbers, doubles,
floats of four bytes and bool are turned into Python's numbers and back here. All others (halves,
complex numbers, other orders of bytes, dates, short texts, small structures) go by way of numpy,
which takes some thousands of instructions more.

A value for one element that the dtype cannot have is refused, and none is cut: a number out of
bounds, a fraction for a whole number, a text that is too long. Only the fields of a structure are
converted as numpy does it, which cuts texts.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

import numpy as np

from limpet.shm.errors import ParameterError
from limpet.stores.channels.array.layout import (
    ADD,
    AND,
    BOOL,
    DOUBLE,
    FLOAT,
    NATIVE,
    OR,
    OTHER,
    SIGNED,
    UNSIGNED,
    WIDE,
)
from limpet.stores.channels.layout import MASK, WORD
from limpet.stores.channels.numbers import delta_word, signed_of, signed_word, word_within


def kind_of(dtype: np.dtype[Any]) -> int:
    """How elements of a dtype become words."""
    if dtype.itemsize not in (1, 2, 4, WORD):
        return WIDE
    if not dtype.isnative:
        return OTHER
    return NATIVE.get(dtype.kind, NATIVE.get(f"{dtype.kind}{dtype.itemsize}", OTHER))


class Cell:
    """Eight bytes of this process, as a word, a double, and floats. Used in operations only."""

    def __init__(self) -> None:
        memory = memoryview(bytearray(WORD))
        self.doubles = memory.cast("d")
        self.floats = memory.cast("f")
        self.words = memory.cast("Q")


class Element:
    """How the elements of one array become words. Its methods are called in an operation, which no
    other thread is in: they share a `Cell`."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.size = dtype.itemsize
        self.kind = kind_of(dtype)
        bits = 8 * min(self.size, WORD)
        self.mask = (1 << bits) - 1
        self.sign = bits - 1
        self.span = 1 << bits if bits < 64 else 0
        self.low = -(1 << bits - 1) if self.kind == SIGNED else 0
        self.high = self.low + (1 << bits) - 1
        self.cell = Cell()

    # ---- an element as a word -------------------------------------------------------------------

    def decode(self, word: int) -> Any:
        """The element that a word stands for: a number of Python's, or a scalar of numpy."""
        if self.kind == SIGNED:
            if self.size == WORD:
                return signed_of(word)
            number = word
            if word >> self.sign:
                number -= self.span
            return number
        if self.kind == UNSIGNED:
            return word
        if self.kind == DOUBLE:
            self.cell.words[0] = word
            return self.cell.doubles[0]
        if self.kind == FLOAT:
            self.cell.words[0] = word
            return self.cell.floats[0]
        if self.kind == BOOL:
            return word != 0
        return scalar_of(self.dtype, word_bytes(word))

    def encode(self, value: Any) -> int:
        """The word that stands for a value. Raises ParameterError."""
        if self.kind == SIGNED or self.kind == UNSIGNED:
            if self.kind == SIGNED and self.size == WORD:
                return signed_word(value)
            return word_within(value, self.low, self.high) & self.mask
        if self.kind == DOUBLE:
            self.cell.doubles[0] = value if type(value) is float else real(value)
            return self.cell.words[0]
        if self.kind == FLOAT:
            self.cell.words[0] = 0
            self.cell.floats[0] = value if type(value) is float else real(value)
            return self.cell.words[0]
        if self.kind == BOOL and type(value) is bool:
            return 1 if value else 0
        return bytes_word(element_bytes(self.dtype, value))

    # ---- changes --------------------------------------------------------------------------------

    def operand(self, how: int, value: Any) -> Any:
        """The argument of `after` for a change by `value`. Raises ParameterError."""
        kind = self.dtype.kind
        if how != ADD:
            if kind not in "iub":
                raise ParameterError(f"bits are changed of whole numbers, not of {self.dtype}")
        elif kind not in "iufcmM":
            raise ParameterError(f"only numbers are added to, not elements of {self.dtype}")
        if self.kind == SIGNED or self.kind == UNSIGNED:
            return delta_word(value) & self.mask
        if self.kind == BOOL and how != ADD:
            return word_within(bool(value) if isinstance(value, np.bool_) else value, 0, 1)
        if self.kind == DOUBLE or self.kind == FLOAT:
            return real(value)
        return value

    def after(self, how: int, word: int, operand: Any) -> int:
        """The word of an element after a change; whole numbers wrap around."""
        if self.kind == DOUBLE:
            self.cell.words[0] = word
            self.cell.doubles[0] = self.cell.doubles[0] + operand
            return self.cell.words[0]
        if self.kind == FLOAT:
            self.cell.words[0] = word
            self.cell.floats[0] = self.cell.floats[0] + operand
            return self.cell.words[0]
        if self.kind == OTHER:
            return bytes_word(changed(self.dtype, word_bytes(word), how, operand))
        bits = operand
        if how == ADD:
            return word + bits & self.mask
        if how == AND:
            return word & bits
        return word | bits if how == OR else word ^ bits


# ---- by way of numpy ----------------------------------------------------------------------------


def real(value: Any) -> float:
    """A value as a float; ParameterError if it is none."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError("it is text")
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ParameterError(f"a number that fits a double is needed, not {value!r}") from error


def word_bytes(word: int) -> bytes:
    """The eight bytes of a word."""
    return word.to_bytes(WORD, "little")


def bytes_word(data: bytes) -> int:
    """The word of at most eight bytes."""
    return int.from_bytes(data, "little") & MASK


def scalar_of(dtype: np.dtype[Any], data: bytes) -> Any:
    """The element that begins `data`: a number of Python's, or a scalar of numpy."""
    found = np.frombuffer(data[: dtype.itemsize], dtype)[0]
    if dtype.kind in "biufc":
        return found.item()
    return found.copy() if dtype.kind == "V" else found


def element_bytes(dtype: np.dtype[Any], value: Any) -> bytes:
    """The bytes of a value as an element. Raises ParameterError."""
    made = as_array(dtype, value)
    if made.shape:
        raise ParameterError(f"an element of {dtype} is set with one value, not with {value!r}")
    return made.tobytes()


def as_array(dtype: np.dtype[Any], value: Any) -> np.ndarray[Any, Any]:
    """Values as elements, as numpy converts them. Raises ParameterError."""
    try:
        if dtype.kind in "SU":
            given = np.asarray(value).astype(dtype.kind)
            if _length(given.dtype) > _length(dtype) and np.any(
                np.char.str_len(given) > _length(dtype)
            ):
                raise ValueError("it is too long")
        if dtype.kind in "iu" and np.ndim(value) == 0:
            return np.array(operator.index(value), dtype)
        return np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ParameterError(f"elements of {dtype} cannot be {value!r}: {error}") from error


def _length(dtype: np.dtype[Any]) -> int:
    """The most characters of a text of a dtype."""
    return dtype.itemsize // (4 if dtype.kind == "U" else 1)


def changed(dtype: np.dtype[Any], data: bytes, how: int, operand: Any) -> bytes:
    """The bytes of an element after a change; of what is no whole number, an addition."""
    before = np.frombuffer(data[: dtype.itemsize], dtype)
    if dtype.kind in "iu":
        number = int(before[0])
        bits = delta_word(operand)
        number = (number + bits, number & bits, number | bits, number ^ bits)[how]
        order: Literal["little", "big"] = "big" if dtype.byteorder == ">" else "little"
        return (number & (1 << 8 * dtype.itemsize) - 1).to_bytes(dtype.itemsize, order)
    try:
        with np.errstate(all="ignore"):
            return np.add(before, operand).astype(dtype).tobytes()
    except (TypeError, ValueError, OverflowError) as error:
        raise ParameterError(
            f"an element of {dtype} cannot change by {operand!r}: {error}"
        ) from error
