"""An array of numbers of eight bytes, each of them atomic.

Element i is the word at byte 8 * i: as array.array's of the typecode "q" (signed), "Q" (unsigned)
or "d" (double). A slice is read or written element by element: each is whole, and others may
change them in between.

A kill leaves behind: each element as before or after; if it cut the write of a slice, some elements
are written and some are not.
"""

from __future__ import annotations

import array
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from limpet.shm.endpoint.fabric import Watched
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import CoherenceError, NodeFailed, ParameterError
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.checks import whole
from limpet.stores.channels.counter import (
    HALF,
    LARGEST,
    SMALLEST,
    signed_of,
    small_word,
    unsigned,
)
from limpet.stores.channels.layout import MASK, WORD

if TYPE_CHECKING:
    import numpy.typing as npt

LENGTH_MAX: Final = (1 << 40) // WORD
Number: TypeAlias = "int | float"


class Cell:
    """Eight bytes of this process, as a double and as a word."""

    def __init__(self) -> None:
        memory = memoryview(bytearray(WORD))
        self.doubles = memory.cast("d")
        self.words = memory.cast("Q")


CELL: Final = Cell()


def double_of(cell: Cell, word: int) -> float:
    """The double that a word stands for."""
    cell.words[0] = word
    return cell.doubles[0]


def word_of(cell: Cell, number: float) -> int:
    """The word that stands for a double."""
    cell.doubles[0] = number
    return cell.words[0]


def _from_double(number: Any) -> int:
    try:
        return word_of(CELL, number)
    except (TypeError, ValueError, OverflowError) as error:
        raise ParameterError(f"a number is needed that a double can be, not {number!r}") from error


TO_WORD: Final[dict[str, Callable[[Any], int]]] = {
    "q": unsigned,
    "Q": lambda number: unsigned(number, 0, 2 * HALF - 1),
    "d": _from_double,
}


class Array(Channel):
    """A shared array of a fixed length; zeros at first."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        length: int,
        typecode: str = "q",
        node: int | None = None,
    ) -> None:
        """`node`: the memory node for its memory."""
        if typecode not in TO_WORD:
            raise ParameterError(f"a typecode is one of {', '.join(TO_WORD)}, not {typecode!r}")
        length = whole("an array's `length`", length, 1, LENGTH_MAX)
        super().__init__(
            manager,
            name,
            parent,
            size=WORD * length,
            kind="array",
            node=node,
            length=length,
            typecode=typecode,
        )
        self.length = length
        self.typecode = typecode
        self.signs = typecode == "q"
        self.doubles = typecode == "d"

    def __len__(self) -> int:
        return self.length

    def _at(self, index: Any) -> int:
        place = index if type(index) is int else operator.index(index)
        if place < 0:
            place += self.length
        if not 0 <= place < self.length:
            raise IndexError(f"{self.name!r} has elements 0 to {self.length - 1}, not {index}")
        return self.address + WORD * place

    def __getitem__(self, index: Any) -> Any:
        """An element, or a list of some."""
        return self._slice(index) if isinstance(index, slice) else self._one(index)

    def _one(self, index: Any) -> Any:
        at = self._at(index)
        self.enter()
        try:
            word = self.endpoint.load(at)
            self.endpoint.wait()
        finally:
            self.leave()
        return self._number(word)

    def _number(self, word: int) -> Any:
        """The number that a word stands for."""
        if self.signs:
            return signed_of(word)
        return double_of(CELL, word) if self.doubles else word

    def _word(self, value: Any) -> int:
        """The word that stands for a number. Raises ParameterError."""
        if self.doubles:
            return word_of(CELL, value) if type(value) is float else _from_double(value)
        if self.signs and type(value) is int and SMALLEST < value < LARGEST:
            return small_word(value)
        return TO_WORD[self.typecode](value)

    def _slice(self, part: slice) -> list[Any]:
        places = range(self.length)[part]
        if not places:
            return []
        low, high = min(places), max(places)
        self.enter()
        try:
            data = self.endpoint.read(self.address + WORD * low, WORD * (high + 1 - low))
            self.endpoint.wait()
        finally:
            self.leave()
        found = array.array(self.typecode, data)
        return [found[place - low] for place in places]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set an element, or as many as the slice has."""
        if isinstance(index, slice):
            places = range(self.length)[index]
            values = list(value)
            if len(places) != len(values):
                raise ValueError(f"{len(places)} elements are set, with {len(values)} values")
            self._store([self._at(place) for place in places], values)
        else:
            self._put(index, value)

    def _put(self, index: Any, value: Any) -> None:
        at = self._at(index)
        word = self._word(value)
        self.enter()
        try:
            # LINEARIZES: the element has its value.
            self.endpoint.swap(at, word)
            self.endpoint.wait()
        finally:
            self.leave()

    def _store(self, spots: list[int], values: list[Any]) -> None:
        words = [self._word(value) for value in values]
        self.enter()
        try:
            for at, word in zip(spots, words, strict=True):
                # LINEARIZES: this element has its value.
                self.endpoint.swap(at, word)
            self.endpoint.wait()
        finally:
            self.leave()

    def __iter__(self) -> Iterator[Number]:
        """The elements; read at once."""
        return iter(self[:])

    def add(self, index: int, delta: Number = 1) -> Number:
        """Add to an element; its new value. Whole numbers wrap around."""
        at = self._at(index)
        self.enter()
        try:
            if self.doubles:
                return self._add_double(at, delta)
            if type(delta) is int and SMALLEST < delta < LARGEST:
                word = small_word(delta)
            else:
                word = unsigned(delta, -HALF, 2 * HALF - 1)  # type: ignore[arg-type]
            after = self.endpoint.faa(at, word) + word & MASK
            self.endpoint.wait()
            return self._number(after)
        finally:
            self.leave()

    def _add_double(self, at: int, delta: float) -> float:
        while True:
            before = self.endpoint.load(at)
            after = double_of(CELL, before) + delta
            if self.endpoint.cas(at, before, word_of(CELL, after)) == before:
                self.endpoint.wait()
                return after

    def numpy(self) -> npt.NDArray[Any]:
        """The elements as a numpy array: the shared memory itself, as long as that is there.

        Raises CoherenceError in a pool where plain loads and stores are not visible to all,
        NodeFailed. Reads and writes of it are not checked: when the node is lost, it becomes memory
        of this process alone, also after the pool was closed (in the pure build the process dies);
        and do not touch it any more when the array was removed.
        """
        if not self.pool.parameters.coherent:
            raise CoherenceError(f"{self.pool.url} has memory that is not coherent: use indices")
        self.enter()
        try:
            self.endpoint.load(self.address)
            node = self.address >> NODE_SHIFT
            segments = [one for one in self.pool.segments() if one.index == node]
            if not segments:
                raise NodeFailed(node, "its memory is not mapped")
            offset = self.address & (1 << NODE_SHIFT) - 1
            segment = segments[0]
            fd = segment.watched_fd
            buffer: Any = Watched(segment.map, segment.size, fd)
            return np.frombuffer(buffer, self.typecode, self.length, offset)
        finally:
            self.leave()
