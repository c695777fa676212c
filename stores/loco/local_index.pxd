cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64, words_prefetch
from limpet.stores.loco.data_array cimport DataArray
from limpet.stores.loco.layout cimport *

cdef u64 POSITION_MAX
cdef u64 SPREAD
cdef u64 LOOKS

cdef class Tracker:
    cdef readonly Endpoint endpoint
    cdef readonly u64 size
    cdef int shift
    cdef readonly u64 at
    cdef readonly u64 ring

    cpdef int move(self, u64 base) except -1
    cpdef u64 position(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(word=u64)
    cpdef long long message(self, u64 number) except -2
    cdef u64 _lap(self, u64 number) noexcept
    @cython.locals(number='long long')
    cpdef long long append(self, u64 entry) except -2
    @cython.locals(endpoint=Endpoint, number=u64, slot=u64, there=u64, lap=u64)
    cdef long long _try(self, u64 entry) except -2
    cpdef object _damaged(self, u64 number, u64 there)

cdef class LocalIndex:
    cdef readonly DataArray entries
    cdef readonly Tracker tracker
    cdef readonly Endpoint endpoint
    cdef public u64 reaches
    cdef readonly u64 parts
    cdef readonly int shift
    cdef readonly u64 mask
    cdef readonly bint known
    cdef readonly u64 applied
    cdef u64[::1] words
    cdef u64[::1] link_addresses
    cdef u64[::1] states
    cdef readonly u64[::1] learned
    cdef u64[::1] reached
    cdef u64[::1] cursors
    cdef u64 at
    cdef u64 mark
    cdef u64 left
    cdef u64 steps
    cdef u64 home
    cdef u64 part
    cdef u64 first
    cdef u64 end
    cdef u64 searcher
    cdef u64 looks
    cdef object progress

    cpdef int forget(self) except -1
    @cython.locals(position=u64)
    cpdef int refresh(self, u64 hashed) except -1
    cdef bint is_current(self, u64 hashed) except -1
    @cython.locals(home=u64)
    cpdef int refresh_all(self) except -1
    cdef u64 _hash_of(self, u64 home) noexcept
    cpdef bint is_ready(self, u64 hashed) noexcept
    cpdef u64 home_of(self, u64 hashed) noexcept
    @cython.locals(position=u64)
    cpdef bint refresh_near(self, u64 limit) except -1
    cpdef int prefetch(self, u64 hashed) noexcept
    cpdef long long find(self, u64 hashed) noexcept
    @cython.locals(word=u64)
    cpdef long long find_next(self) noexcept
    @cython.locals(link_address=u64)
    cpdef bint has(self, u64 entry, u64 hashed) noexcept
    cdef u64 _word(self, u64 entry, u64 hashed) noexcept
    @cython.locals(entry='long long', scope=bint)
    cdef int _catch_up(self, u64 position, bint anew) except -1
    @cython.final
    cdef bint _is_overtaken(self, u64 position) noexcept
    cpdef object _damaged(self, u64 entry)
    cdef int _begin(self) except -1
    @cython.locals(reach=u64, step=u64, scope=bint)
    cdef int _learn_home(self, u64 home) except -1
    @cython.locals(entry=u64)
    cdef int _learn_part(self, u64 part) except -1
    cpdef u64 first_of(self, u64 part) noexcept
    cpdef object _too_far(self, u64 home, u64 reach)
    @cython.locals(state=u64)
    cpdef int read_entry(self, u64 entry) except -1
    cpdef int note_change(self, u64 entry, u64 hashed, u64 state, u64 number) except -1
    cpdef int see(self, u64 entry, u64 state) except -1
    @cython.locals(known=bint, place=u64)
    cdef int _put(self, u64 entry, u64 hashed) except -1
    @cython.locals(known=bint)
    cdef int _drop(self, u64 entry) except -1
    @cython.locals(place=u64, word=u64, first=u64)
    cdef int _empty(self, u64 hole) except -1
    cpdef int search(self, u64 ident, u64 hashed) except -1
    @cython.locals(share=u64)
    cdef int _search_part(self) except -1
    @cython.locals(entry=u64, following=u64)
    cpdef long long candidate(self) except -2
    @cython.locals(at=u64, reach=u64)
    cdef int _reach_out(self) except -1
