"""How an array is divided into stripes along its first axis. Plain arithmetic."""

from __future__ import annotations

from typing import NamedTuple

from limpet.shm.errors import ParameterError
from limpet.stores.channels.array.forms import Form
from limpet.stores.channels.array.layout import STRIPES_MAX
from limpet.stores.channels.checks import whole
from limpet.stores.channels.layout import WORD


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
