"""The array: elements of a dtype in a shape, in shared memory, as a numpy user expects them.

Single elements are changed by verbs (elements.py), and so are slices, element by element. A
*view*, of `numpy()` or `parts()`, is the shared memory itself.

Stripes. An array that one memory node has no room for lies in stripes: stripe k has the rows (parts
of the first axis) from `k * ceil(rows / stripes)` on, and lies on node `k % nodes`. So each stripe
is an ndarray of its own, and a slice of the array along its first axis. Why rows, and not elements
in turn: a view of a stripe has the shape of the array but for its first axis, and needs no copy. No
ndarray can be a view of all stripes, as they lie in different mappings. So `numpy()` refuses an
array of several stripes, where a silent copy would lose what is written to it: `parts()` has views
of all stripes, and `a[...]` is a copy.

Memory
    own region "NAME", of one stripe      the elements
    own region "NAME", of several         byte 0: word, the state of the stripes
    "NAME.stripe0", "NAME.stripe1", ...   the elements of a stripe

State of the stripes
    MAKING      some may be missing; a client that opens the array makes them, all zeros
    READY       all were made; one that is missing was lost with its node
    GIVEN_UP    a client had no room for all of them; a client that opens the array removes it. A
                lost node has no room, either

    MAKING -> READY      by CAS, by each client that has found or made all stripes
    MAKING -> GIVEN_UP   by CAS, by a client that had no room for one; it removes the array

The CAS decides between two clients of which one has found room and the other has not: no client
uses an array that is then removed, and where a client has told its caller that there is no room,
nothing is left.

A kill leaves behind: no array, or one whose stripes are all there, or one in MAKING with some of
them, which is of zeros, or one in GIVEN_UP. All memory is that of a channel of its name: the next
client that opens it completes it or begins it anew, and `pool.channels.remove` gives it back. Of a
slice that is being written: each element before or after (elements.py); some are written.

Limits. A stripe is filled with zeros by way of a buffer of its size in the process that makes it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import former
from limpet.shm.errors import (
    ChannelRemoved,
    CoherenceError,
    NodeFailed,
    ParameterError,
    PoolCorrupt,
    StoreCorrupt,
    StoreFull,
    StoreMismatch,
    ValueTooLarge,
)
from limpet.stores.channels.array.element import as_array
from limpet.stores.channels.array.elements import Elements
from limpet.stores.channels.array.layout import (
    DTYPE,
    GIVEN_UP,
    MAKING,
    PIECE,
    READY,
    Stripes,
    dtype_form,
    fit,
    form_of,
    readings,
    select,
    writings,
)
from limpet.stores.channels.layout import LINE

if TYPE_CHECKING:
    import numpy.typing as npt

PIECES: Final = 1024
"""Pieces of elements, side by side in memory, that one operation reads or writes at most."""
_BESIDE: Final = 4096
"""Bytes of a node's largest object that are not for a stripe: its name, and its description."""


class Run(NamedTuple):
    """`length` elements from number `first` on, and their values.

    To read: `values` is for the run alone, and the result's elements at `into` are those at `at` in
    it; if `into` is None, `values` is the result. To write: `at` is the place of the first one in
    `values`.
    """

    first: int
    length: int
    values: Any
    at: Any = 0
    into: Any = None


class Piece(NamedTuple):
    """`length` elements of a run that lie side by side, behind `done` others; their address."""

    run: Run
    done: int
    at: int
    length: int


class Array(Elements):
    """A shared array; zeros at first."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        shape: Any,
        dtype: Any = DTYPE,
        stripes: int = 1,
        node: int | None = None,
    ) -> None:
        """`stripes`: at most so many. `node`: the memory node for its memory, or its first stripe.

        Raises ParameterError, StoreMismatch, StoreFull, NodeFailed; ChannelRemoved if another
        client had no room for all stripes: then nothing is left of it, and `manager.open` begins
        anew.
        """
        form = form_of(shape, dtype)
        layout = Stripes.of(form, stripes)
        self.lay_out(form, layout.per, layout.number)
        self.node = node
        self.stripe_rows = layout.rows
        """Rows of each stripe; of the last one, at most so many."""
        super().__init__(
            manager,
            name,
            parent,
            size=layout.nbytes if layout.number == 1 else LINE,
            kind="array",
            node=node,
            shape=list(form.shape),
            dtype=dtype_form(form.dtype),
            stripes=layout.number,
        )
        if layout.number == 1:
            self.bases[0] = self.address
        else:
            sizes = [layout.nbytes_of(stripe, form) for stripe in range(layout.number)]
            self._have_stripes(sizes, node or 0)

    # ---- stripes --------------------------------------------------------------------------------

    def _have_stripes(self, sizes: list[int], first: int) -> None:
        """Find the stripes, or make them."""
        while True:
            state = self._turn(MAKING, MAKING)
            if state == GIVEN_UP:
                self._remove()
                raise ChannelRemoved(f"no client had room for all stripes of {self.name!r}")
            if state not in (MAKING, READY):
                raise StoreCorrupt(f"{self.title()}: the state of its stripes is {state}")
            try:
                # CRASH(making): some stripes are missing; the next client that opens it makes them.
                for stripe, size in enumerate(sizes):
                    node = (first + stripe) % self.pool.parameters.nodes
                    self.bases[stripe] = self._stripe(stripe, size, node, state == READY)
            except (StoreFull, ValueTooLarge, NodeFailed):
                # LINEARIZES: the array will not be there, or another client had room for it.
                if self._turn(MAKING, GIVEN_UP) == READY:
                    continue
                # CRASH(given-up): no client uses it; the next one that opens it removes it.
                self._remove()
                raise
            # LINEARIZES: the array is there, or another client had no room for it.
            if state == READY or self._turn(MAKING, READY) != GIVEN_UP:
                return

    def _stripe(self, stripe: int, size: int, node: int, ready: bool) -> int:
        """Address of a stripe; if it was lost, one that says so."""
        try:
            return self.region(f"stripe{stripe}", size, node)
        except NodeFailed:
            if not ready:
                raise
            return former(node << NODE_SHIFT, node)

    def _turn(self, expected: int, desired: int) -> int:
        """Change the state of the stripes if it is `expected`; the old one."""
        with self.operation():
            found = self.endpoint.cas(self.address, expected, desired)
            self.endpoint.wait()
            return int(found)

    def _remove(self) -> None:
        if self.parent is None:
            self.manager.catalogue.take_back(self)

    def _rows_of(self, stripe: int) -> slice:
        first = stripe * self.stripe_rows
        return slice(first, min(first + self.stripe_rows, self.shape[0]))

    # ---- copies, by verbs -----------------------------------------------------------------------

    def copied(self, index: Any) -> npt.NDArray[Any]:
        """A copy of the elements that an index selects, as numpy selects them.

        Elements of 1, 2, 4 and 8 bytes are whole; others may change them in between. Reads gaps of
        up to 256 bytes with the elements around them. A round trip for each MiB, in an operation of
        its own.
        """
        self._refuse_fields(index)
        chosen = select(self.shape, index)
        found = np.empty(chosen.size, self.dtype)
        if chosen.numbers is None:
            runs = iter((Run(chosen.first, chosen.size, found),))
        else:
            runs = self._runs(chosen.numbers)
        for pieces in self._phases(runs):
            self._read(pieces)
            for run, done, _, length in pieces:
                if done + length == run.length and run.into is not None:
                    found[run.into] = run.values[run.at]
        return found.reshape(chosen.shape)

    def _runs(self, numbers: Any) -> Iterator[Run]:
        """The runs to read for these elements."""
        for first, length, at, into in readings(numbers, self.itemsize):
            yield Run(first, length, np.empty(length, self.dtype), at, into)

    def assign(self, index: Any, value: Any) -> None:
        """Set the elements that an index selects to values, which numpy converts and broadcasts.

        One after the other: a kill leaves some of them set. Elements of 1, 2, 4 and 8 bytes are
        whole. A round trip for each MiB, in an operation of its own. Raises ParameterError for
        values that do not convert, ValueError for their shape.
        """
        self._refuse_fields(index)
        chosen = select(self.shape, index)
        given = as_array(self.dtype, value)
        try:
            values = np.broadcast_to(given, chosen.shape)
        except ValueError as error:
            raise ValueError(
                f"{chosen.size} elements are set, of shape {chosen.shape}, with {given.size} "
                f"values of shape {given.shape}"
            ) from error
        flat = values.reshape(-1) if values.flags.c_contiguous else values.flat
        if chosen.numbers is None:
            runs = iter(((chosen.first, chosen.size, 0),))
        else:
            runs = writings(chosen.numbers)
        for pieces in self._phases(Run(first, count, flat, at) for first, count, at in runs):
            with self.operation():
                for run, done, at, length in pieces:
                    piece = flat[run.at + done : run.at + done + length]
                    self.endpoint.write(at, piece.view(np.uint8))
                self.endpoint.wait()

    def _refuse_fields(self, index: Any) -> None:
        if isinstance(index, str) or (
            isinstance(index, list) and any(isinstance(one, str) for one in index)
        ):
            raise IndexError(
                f"{self.name!r} has no single fields: numpy()[{index!r}] or parts() has them in "
                f"place, and a[...][{index!r}] a copy"
            )

    def _phases(self, runs: Iterable[Run]) -> Iterator[list[Piece]]:
        """The pieces of these runs, those of one phase together: PIECE bytes, or one element, at
        most, and PIECES pieces."""
        pieces: list[Piece] = []
        room = most = max(1, PIECE // self.itemsize)
        for run in runs:
            done = 0
            while done < run.length:
                number = run.first + done
                here = min(run.length - done, room, self.per - number % self.per)
                pieces.append(Piece(run, done, self.at_number(number), here))
                done += here
                room -= here
                if not room or len(pieces) == PIECES:
                    yield pieces
                    pieces, room = [], most
        if pieces:
            yield pieces

    def _read(self, pieces: list[Piece]) -> None:
        """A phase, in an operation of its own: read these pieces into the values of their runs."""
        apart = []
        with self.operation():
            for run, done, at, length in pieces:
                begin, size, before = done * self.itemsize, length * self.itemsize, at & 7
                raw = run.values.view(np.uint8)[begin : begin + size]
                if before or size & 7 or begin & 7:
                    words = np.empty(before + size + 7 >> 3, np.ulonglong)
                    apart.append((raw, words, before))
                else:
                    words = raw.view(np.ulonglong)
                self.endpoint.post_read(at - before, words, len(words))
            self.endpoint.wait()
        for raw, words, before in apart:
            raw[:] = words.view(np.uint8)[before : before + len(raw)]

    def __len__(self) -> int:
        """The length of the first axis."""
        if not self.shape:
            raise TypeError(f"{self.name!r} has no axis, and so no length")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        """The elements, or, with several axes, copies of the rows; read at once."""
        if not self.shape:
            raise TypeError(f"{self.name!r} has no axis to iterate over")
        found = self.copied(...)
        if self.ndim == 1 and self.dtype.kind in "biufc":
            return iter(found.tolist())
        return iter(found)

    # ---- views ----------------------------------------------------------------------------------

    def numpy(self) -> npt.NDArray[Any]:
        """The array as an ndarray without a copy: the shared memory itself.

        It stays the array's as long as the ndarray, or one made of it, in any process: also after
        the array was removed, the pool closed, and in forked children (core/keeper.py).
        Raises ParameterError for an array of several stripes, which no ndarray can be without a
        copy: `parts()` has each of them, and `a[...]` is a copy. Raises CoherenceError in a pool
        where plain loads and stores are not visible to all, NodeFailed, ChannelRemoved; and as
        `limpet.open` does, as the process has one more client for this.

        Reads and writes of it are not checked: when the node is lost, it becomes memory of this
        process alone (in the pure build the process dies).
        """
        if self.stripes > 1:
            raise ParameterError(
                f"{self.name!r} lies in {self.stripes} stripes, which no ndarray can be without a "
                "copy: parts() has an ndarray of each, and a[...] is a copy of all"
            )
        self._require_coherent()
        return self._view(0, False)

    def parts(
        self, skip_lost: bool = False
    ) -> Iterator[tuple[slice | EllipsisType, npt.NDArray[Any]]]:
        """For each stripe, its slice of the first axis, and an ndarray of it without a copy.

        As `numpy()`; of an array without axes the slice is `...`. With `skip_lost`, the stripes
        whose memory node is lost are left out, also if the array's name is lost with a node.
        """
        self._require_coherent()
        found = []
        for stripe in range(self.stripes):
            try:
                view = self._view(stripe, skip_lost)
            except NodeFailed:
                if not skip_lost:
                    raise
                continue
            found.append((self._rows_of(stripe) if self.shape else ..., view))
        return iter(found)

    def _require_coherent(self) -> None:
        if not self.pool.parameters.coherent:
            raise CoherenceError(f"{self.pool.url} has memory that is not coherent: use indices")
        if self.pool.remote:
            raise ParameterError(
                f"{self.pool.url}: a remote client has no memory in place: use indices, or a[...]"
            )

    def _view(self, stripe: int, anyhow: bool) -> npt.NDArray[Any]:
        """A stripe as an ndarray, which keeps its memory. `anyhow`: as of `operation`."""
        rows = self._rows_of(stripe) if self.shape else None
        shape = self.shape if rows is None else (rows.stop - rows.start, *self.shape[1:])
        if not self.size:
            with self.operation(anyhow):
                return np.empty(self.shape, self.dtype)
        with self.operation(anyhow):
            at = self.at_number(stripe * self.per)
            if at >> NODE_SHIFT in self.marked.gone:
                raise self.lost(stripe)
            self.endpoint.load(at)
            if self.endpoint.lost(at >> NODE_SHIFT):  # a page of it is poisoned
                raise self.lost(stripe)
            reference = self._reference_of(stripe)
        keeper = self.pool.keepers.keeper(self.pool, reference)
        raw = None
        with self.operation(anyhow):
            keeper.hold(reference)
            try:
                # ORDER: after the record: it was linked when we had that, or counts as removed.
                if self._reference_of(stripe) != reference:
                    raise ChannelRemoved(
                        f"the channel {self.name!r} of {self.pool.url} was removed"
                    )
                raw = self.pool.keepers.mapped(self.pool, at, math.prod(shape) * self.itemsize)
                weakref.finalize(raw, keeper.drop, reference).atexit = False
            finally:
                if raw is None:
                    keeper.drop(reference)
        return raw.view(self.dtype).reshape(shape)

    def _reference_of(self, stripe: int) -> int:
        """Reference to the object with the memory of a stripe. In an operation."""
        name, of, node = self.name, 0 if self.parent is None else self.mark, self.node
        if self.stripes > 1:
            name, of = f"{name}.stripe{stripe}", self.mark
            node = ((node or 0) + stripe) % self.pool.parameters.nodes
        found = int(self.manager.catalogue.reference_of(name, of, node))
        if not found:
            raise ChannelRemoved(f"the channel {self.name!r} of {self.pool.url} was removed")
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """For `numpy.asarray`: as `numpy()`, or a copy where there has to be one.

        Raises ValueError if there has to be, and `copy` is False.
        """
        shared = self.stripes == 1 and self.pool.parameters.coherent
        other = dtype is not None and np.dtype(dtype) != self.dtype
        if copy is False and (other or not shared):
            raise ValueError(f"{self.name!r} cannot be such an ndarray without a copy")
        found = self.numpy() if shared and not copy else self.copied(...)
        return found.astype(dtype) if other else found

    def __dlpack__(self, **options: Any) -> Any:
        """The memory of `numpy()`, for `from_dlpack` of torch, jax, cupy and numpy; no copy."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The memory is that of the CPU."""
        return 1, 0

    def __buffer__(self, flags: int = 0) -> memoryview:
        """The memory of `numpy()` as a buffer, from Python 3.12 on; no copy."""
        buffer: Any = self.numpy()
        return memoryview(buffer)


def open_array(
    manager: Any, name: str, shape: Any = None, dtype: Any = None, stripes: int | None = None
) -> Array:
    """The array of that name, made if it is not there; see `Pool.array`."""
    while True:
        there = manager.parameters_of(Array, name)
        try:
            if {"shape", "dtype", "stripes"} <= there.keys():
                chosen = _matching(manager, name, there, shape, dtype, stripes)
            elif shape is None:
                manager.require_not_lost(name)
                raise ParameterError(
                    f"{manager.pool.url} has no array {name!r}; to make one, say its shape"
                )
            else:
                chosen = _new(manager, name, shape, DTYPE if dtype is None else dtype, stripes)
            found: Array = manager.open(Array, name, **chosen)
            return found
        except StoreMismatch:
            # Another process may have made it, or one of another form, since we looked.
            if manager.parameters_of(Array, name) == there:
                raise
        except ChannelRemoved:
            # Another process has removed it since we looked, or had no room for it.
            manager.pool.endpoint.pause(8)


def _new(manager: Any, name: str, shape: Any, dtype: Any, stripes: int | None) -> dict[str, Any]:
    """Parameters of a new array. Raises ParameterError."""
    form = form_of(shape, dtype)
    room = manager.catalogue.race.objects.value_max - _BESIDE
    found = fit(form, stripes, room, manager.pool.parameters.nodes)
    return {"shape": list(form.shape), "dtype": dtype_form(form.dtype), "stripes": found.number}


def _matching(
    manager: Any, name: str, there: dict[str, Any], shape: Any, dtype: Any, stripes: int | None
) -> dict[str, Any]:
    """Parameters of an array that is there. Raises StoreMismatch: those given differ."""
    try:
        found = form_of(there["shape"], there["dtype"])
        Stripes.of(found, there["stripes"])
    except ParameterError as error:
        raise PoolCorrupt(
            f"{manager.pool.url}: the description of the array {name!r} is damaged; remove the "
            f"channel: {error}"
        ) from error
    given = form_of(
        found.shape if shape is None else shape, found.dtype if dtype is None else dtype
    )
    if given != found:
        raise StoreMismatch(
            f"{manager.pool.url}: the array {name!r} is there with {found}, and was asked for with "
            f"{given}; its name alone opens it, and pool.channels.remove({name!r}) removes it"
        )
    count = Stripes.of(given, there["stripes"] if stripes is None else stripes).number
    if count != there["stripes"]:
        raise StoreMismatch(
            f"{manager.pool.url}: the array {name!r} is there with {there['stripes']} stripes, and "
            f"was asked for with {count}"
        )
    return there
