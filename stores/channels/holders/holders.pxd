cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.holders.layout cimport *
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.waiting cimport Waiting

cdef class Holders(Channel):
    cdef readonly u64 limit
    cdef readonly int first
    cdef readonly Waiting shared
    cdef readonly Waiting exclusive
    cdef public bint known
    cdef readonly u64 word
    cdef readonly u64 state
    cdef u64 before
    cdef u64 after
    cdef readonly u64 mine
    cdef u64 wanted
    cdef u64 wanted_mine
    cdef bint taking
    cdef u64[::1] record
    cdef u64[::1] all_seats
    cdef u64[::1] lined
    cdef readonly set heirs
    cdef public object whose

    @cython.locals(
        endpoint=Endpoint, ticket=u64, word=u64, index=u64, row=u64, at=u64, held=u64, own=u64,
        seen=u64,
    )
    cpdef int read_table(self) except -1
    cdef u64 _at(self, u64 row) noexcept
    cpdef u64 value(self, u64 row) except? 0xFEEDFACEDEADBEA7
    @cython.locals(
        endpoint=Endpoint, own=u64, index=u64, number=u64, after=u64, word=u64, ticket=u64
    )
    cpdef bint commit(self, u64 row, u64 held, u64 value, u64 state) except -1
    @cython.locals(seat=u64, held=u64, value=u64)
    cpdef bint give_back(self, u64 row) except -1
    @cython.locals(state=u64, taken=u64, back=u64, died=u64, line=int)
    cdef u64 _without(self, u64 value) except? 0xFEEDFACEDEADBEA7
    @cython.locals(endpoint=Endpoint, row=u64, seat=u64, found=bint)
    cpdef bint bury(self) except -1
    @cython.locals(looked=bint, flag=u64, other=u64, state=u64)
    cdef bint _look(self, int line, bint again, bint lines_up) except -1
    @cython.locals(taken=u64)
    cdef bint _fits(self, int line) noexcept
    @cython.locals(state=u64, value=u64, died=u64)
    cdef bint _take(self, int line) except -1
    @cython.locals(state=u64, shared=u64, exclusive=u64)
    cdef int _call(self) except -1
    @cython.locals(
        waiting=Waiting, taken=bint, lined=bint, sleepy=bint, done=bint, free=bint, looks=int,
        token=u64, free_s=double, now=double, still=u64,
    )
    cpdef bint obtain(self, int line, bint again, deadline) except -1
    cdef bint _was_taken(self) except -1
    cdef int _undo(self, int line, bint lined, bint taken) except -1
    cpdef int enter_line(self, int line) except -1
    @cython.locals(taken=bint, whole=bint, free=bint)
    cpdef int look_in_line(self, int line, bint again) except? -1
    cpdef int leave_line(self, int line) except -1
    @cython.locals(flag=u64, held=u64, state=u64, done=bint)
    cdef int _unline(self, u64 row, int line) except -1
    @cython.locals(row=u64)
    cpdef int pass_over(self, int line) except -1
    @cython.locals(looked=bint, has=bint, state=u64, value=u64)
    cpdef bint give(self, int line, u64 count) except -1
    @cython.locals(held=u64, done=bint, has=bint)
    cpdef bint give_surely(self, int line, u64 count) except -1
