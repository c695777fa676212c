"""Where the elements of an array are, and what is done to a single one.

Elements lie one after the other in C order, as numpy has them, in one stripe or in several. Stripe
k has the elements from `k * per` on, from byte `bases[k]` on, a multiple of 64.

An element of 1, 2, 4 or 8 bytes lies within one word, and is read, set and changed by one verb on
that word, or by a loop of CAS:

    element of      8 bytes                       1, 2, 4 bytes
    get             load                          load of the word with it
    set, swap       swap                          mcas: no condition, changes its bits only
    compare_and_    cas                           mcas: if its bits are those expected
      swap
    add             faa; of floats: CAS loop      CAS loop over the word
    bit_and, ...    CAS loop                      CAS loop over the word

A change of a part of a word is a CAS of the whole word, so it fails, and is done again, when a
neighbour in the word has changed meanwhile; no neighbour's change is lost. A client whose CAS fails
has lost to one that went on, so some client always does.

An element of any other size is read and written as bytes: a reader can see a part of a write.

A kill leaves behind: an element as before or after; of another size, any of its words.

Methods of the base are called by the name of their class: `Array` is not compiled, and so a call by
`self` looks each time, for some 45 instructions, whether it has a method of that name.
"""

from __future__ import annotations

import operator
from array import array
from typing import Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import FORMER
from limpet.shm.errors import NodeFailed, ParameterError
from limpet.stores.channels.array.element import Element, element_bytes, scalar_of
from limpet.stores.channels.array.layout import ADD, AND, OR, SIGNED, UNSIGNED, WIDE, XOR, Form
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import MASK, WORD
from limpet.stores.channels.numbers import delta_word


class Elements(Channel):
    """Elements of a fixed size, in shared memory. `Array` gives them shape, and makes them."""

    def lay_out(self, form: Form, per: int, count: int) -> None:
        """Say what there is: `count` stripes of at most `per` elements each."""
        self.shape = form.shape
        self.dtype = form.dtype
        self.ndim = len(form.shape)
        self.size = form.size
        self.itemsize = form.dtype.itemsize
        self.nbytes = self.size * self.itemsize
        self.stripes = count
        self.per = per
        self.element = Element(form.dtype)
        self.atomic = self.element.kind != WIDE
        self.adds_at_once = self.itemsize == WORD and self.element.kind in (SIGNED, UNSIGNED)
        self.is_line = self.ndim == 1
        self.bases = array("Q", bytes(8 * count))

    # ---- where an element is --------------------------------------------------------------------

    def _at(self, index: Any) -> int:
        """Address of the element of an index. Raises IndexError, NodeFailed."""
        if self.is_line and type(index) is int:
            return self._at_place(index)
        return Elements.at_number(self, Elements.number_of(self, index))

    def _at_place(self, place: int) -> int:
        """The same, of an array of one axis."""
        number = place + self.size if place < 0 else place
        if not 0 <= number < self.size:
            raise IndexError(f"{self.name!r} has elements 0 to {self.size - 1}, not {place}")
        if self.stripes == 1:
            return self.address + number * self.itemsize
        return Elements.at_number(self, number)

    def at_number(self, number: int) -> int:
        """Address of an element by its number in C order. Raises NodeFailed."""
        stripe = number // self.per
        base = self.bases[stripe]
        if base & FORMER:
            raise self.lost(stripe)
        return base + (number - stripe * self.per) * self.itemsize

    def lost(self, stripe: int) -> NodeFailed:
        """The error for a stripe whose memory is gone."""
        return NodeFailed(
            self.bases[stripe] >> NODE_SHIFT & 0xFF,
            f"stripe {stripe} of {self.name!r} was on it; parts(skip_lost=True) has the others",
        )

    def number_of(self, index: Any) -> int:
        """The number in C order of the element of an index: a whole number for each axis.

        Raises IndexError if it is out of bounds, or selects more than one element.
        """
        parts = index if isinstance(index, tuple) else (index,)
        number = 0
        try:
            if len(parts) != self.ndim:
                raise TypeError(f"it has {len(parts)} parts")
            for part, length in zip(parts, self.shape, strict=True):
                place = operator.index(part)
                if not -length <= place < length:
                    raise IndexError(
                        f"index {index} is out of bounds for {self.name!r} of shape {self.shape}"
                    )
                number = number * length + place % length
        except TypeError as error:
            raise IndexError(
                f"an element of {self.name!r} of shape {self.shape} has an index of {self.ndim} "
                f"whole numbers, not {index!r}"
            ) from error
        return number

    def _is_one(self, index: Any) -> bool:
        """Whether an index is that of one element."""
        if type(index) is not tuple:
            return self.is_line and is_number(index)
        if len(index) != self.ndim:
            return False
        for part in index:  # noqa: SIM110
            if not is_number(part):
                return False
        return True

    # ---- a single element -----------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """An element, or a copy of some as an ndarray; as numpy selects them.

        Of an element of 1, 2, 4 or 8 bytes, one round trip. Raises IndexError, NodeFailed,
        ChannelRemoved.
        """
        if self.is_line and type(index) is int:
            return self._one(self._at_place(index))
        if self._is_one(index):
            return self._one(Elements.at_number(self, Elements.number_of(self, index)))
        return self.copied(index)

    def _one(self, at: int) -> Any:
        """The element at an address."""
        Channel.enter(self)
        try:
            if not self.atomic:
                return scalar_of(self.dtype, self.endpoint.fetch(at, self.itemsize))
            ticket = self.endpoint.post_load(at & ~7)
            self.endpoint.wait()
            word = self.endpoint.result(ticket)
            if self.itemsize != WORD:
                word = word >> 8 * (at & 7) & self.element.mask
            return self.element.decode(word)
        finally:
            Channel.leave(self)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set an element, or some, with one value or as many as numpy would take.

        Of an element of 1, 2, 4 or 8 bytes, one round trip, one step. Raises IndexError,
        ParameterError (the dtype cannot have the value), NodeFailed, ChannelRemoved.
        """
        if self.is_line and type(index) is int:
            self._put(self._at_place(index), value)
        elif self._is_one(index):
            self._put(Elements.at_number(self, Elements.number_of(self, index)), value)
        else:
            self.assign(index, value)

    def _put(self, at: int, value: Any) -> None:
        """Set the element at an address."""
        Channel.enter(self)
        try:
            if self.itemsize == WORD:
                # LINEARIZES: the element has its value.
                self.endpoint.post_swap(at, self.element.encode(value))
            elif self.atomic:
                self._post_part(at, self.element.encode(value))
            else:
                self.endpoint.write(at, element_bytes(self.dtype, value))
            self.endpoint.wait()
        finally:
            Channel.leave(self)

    def _post_part(self, at: int, value: int) -> int:
        """Post the verb that sets an element that is a part of a word; its ticket."""
        shift = 8 * (at & 7)
        # LINEARIZES: the element has its value.
        return self.endpoint.post_mcas(at & ~7, 0, value << shift, 0, self.element.mask << shift)

    def swap(self, index: Any, value: Any) -> Any:
        """Set an element; the one that was there. One step, one round trip."""
        at = self._atomic_at(index)
        Channel.enter(self)
        try:
            word = self.element.encode(value)
            if self.itemsize == WORD:
                # LINEARIZES: the element has its value.
                ticket = self.endpoint.post_swap(at, word)
            else:
                ticket = self._post_part(at, word)
            self.endpoint.wait()
            before = self.endpoint.result(ticket) >> 8 * (at & 7) & self.element.mask
            return self.element.decode(before)
        finally:
            Channel.leave(self)

    def compare_and_swap(self, index: Any, expected: Any, desired: Any) -> bool:
        """Set an element to `desired` if it is `expected`; whether it was. One step.

        One round trip. Bytes are compared: of floats, -0.0 is not 0.0, and a NaN is the same NaN.
        """
        at = self._atomic_at(index)
        Channel.enter(self)
        try:
            before = self.element.encode(expected)
            after = self.element.encode(desired)
            shift = 8 * (at & 7)
            bits = self.element.mask << shift
            # LINEARIZES: the element has its value, or it was another one.
            if self.itemsize == WORD:
                ticket = self.endpoint.post_cas(at, before, after)
            else:
                ticket = self.endpoint.post_mcas(
                    at & ~7, before << shift, after << shift, bits, bits
                )
            self.endpoint.wait()
            return self.endpoint.result(ticket) & bits == before << shift
        finally:
            Channel.leave(self)

    def add(self, index: Any, delta: Any = 1) -> Any:
        """Add to an element; its new value. One step. Whole numbers wrap around.

        One round trip for whole numbers of 8 bytes; else two, and one more for each change by
        another client that comes between. Raises ParameterError for what is no number.
        """
        return self._change(index, ADD, delta)

    def bit_and(self, index: Any, bits: int) -> Any:
        """Clear the bits of a whole number that are not in `bits`; its new value. One step."""
        return self._change(index, AND, bits)

    def bit_or(self, index: Any, bits: int) -> Any:
        """Set bits of a whole number; its new value. One step."""
        return self._change(index, OR, bits)

    def bit_xor(self, index: Any, bits: int) -> Any:
        """Turn bits of a whole number over; its new value. One step."""
        return self._change(index, XOR, bits)

    def _change(self, index: Any, how: int, value: Any) -> Any:
        at = self._atomic_at(index)
        Channel.enter(self)
        try:
            if self.adds_at_once and how == ADD:
                word = delta_word(value)
                # LINEARIZES: the element has its value.
                ticket = self.endpoint.post_faa(at, word)
                self.endpoint.wait()
                return self.element.decode(self.endpoint.result(ticket) + word & MASK)
            operand = self.element.operand(how, value)
            return self.element.decode(self._change_by_cas(at, how, operand))
        finally:
            Channel.leave(self)

    def _change_by_cas(self, at: int, how: int, operand: Any) -> int:
        """Change an element by a loop of CAS over the word with it; the element's new word."""
        shift = 8 * (at & 7)
        mask = self.element.mask
        at &= ~7
        ticket = self.endpoint.post_load(at)
        self.endpoint.wait()
        seen = self.endpoint.result(ticket)
        while True:
            word = seen
            after = self.element.after(how, word >> shift & mask, operand)
            # LINEARIZES: the element has its value, and no other part of the word has changed.
            ticket = self.endpoint.post_cas(
                at, word, word & ~(mask << shift) & MASK | after << shift
            )
            self.endpoint.wait()
            seen = self.endpoint.result(ticket)
            if seen == word:
                return after

    def _atomic_at(self, index: Any) -> int:
        """Address of an element that one step can change. Raises ParameterError."""
        if not self.atomic:
            raise ParameterError(
                f"{self.name!r} has elements of {self.itemsize} bytes; those of 1, 2, 4 or 8 bytes "
                "are changed in one step. Hold a pool.lock() around a change of others"
            )
        return self._at(index)

    # ---- what `Array` does ----------------------------------------------------------------------

    def copied(self, index: Any) -> Any:
        """A copy of the elements that an index selects."""
        raise NotImplementedError

    def assign(self, index: Any, value: Any) -> None:
        """Set the elements that an index selects."""
        raise NotImplementedError


def is_number(part: Any) -> bool:
    """Whether a part of an index is a whole number, as numpy takes it."""
    if type(part) is int:
        return True
    if type(part) is bool:
        return False
    try:
        operator.index(part)
    except TypeError:
        return False
    return True
