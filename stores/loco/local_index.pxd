cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64, words_prefetch
from limpet.stores.loco.data_array cimport DataArray
from limpet.stores.loco.layout cimport *

cdef u64 WORD
cdef u64 POSITION_MAX
cdef u64 SPREAD
cdef u64 STEP
cdef u64 TRIES
cdef u64 LOOKS

cdef class Trackers:
    cdef readonly Endpoint endpoint
    cdef public u64 base
    cdef readonly u64 stride
    cdef readonly u64 size
    cdef readonly u64 count
    cdef readonly u64[::1] words

    cpdef u64 at(self, u64 lock) noexcept
    cpdef u64 position(self, u64 lock) except? 0xFEEDFACEDEADBEA7
    @cython.locals(place=u64, count=u64, at=u64, ticket=u64)
    cpdef long long read(self, u64 lock, u64 number, u64 limit) except -2
    cpdef bint has(self, u64 number, u64 position) noexcept
    @cython.locals(at=u64)
    cpdef int append(self, u64 lock, u64 number, u64 message) except -1

cdef class LocalIndex:
    cdef readonly DataArray entries
    cdef readonly Trackers trackers
    cdef readonly Endpoint endpoint
    cdef public u64 reaches
    cdef readonly u64 parts
    cdef readonly u64 locks
    cdef readonly int shift
    cdef readonly u64 mask
    cdef readonly u64 most
    cdef readonly bint known
    cdef readonly u64[::1] applied
    cdef u64[::1] words
    cdef readonly u64 used
    cdef readonly u64[::1] states
    cdef readonly u64[::1] learned
    cdef u64[::1] reached
    cdef u64[::1] cursors
    cdef u64[::1] ahead
    cdef u64[::1] tickets
    cdef u64 at
    cdef u64 mark
    cdef u64 left
    cdef u64 steps
    cdef u64 home
    cdef u64 part
    cdef u64 first
    cdef u64 end
    cdef u64 searcher
    cdef u64 chance
    cdef u64 posted
    cdef u64 looks
    cdef object progress

    cpdef int forget(self) except -1
    cpdef u64 lock_of(self, u64 hashed) noexcept
    @cython.locals(ready=bint)
    cpdef int refresh(self, u64 hashed) except -1
    @cython.locals(ready=bint, home=u64)
    cpdef int refresh_lock(self, u64 lock) except -1
    @cython.locals(lock=u64)
    cpdef int refresh_all(self) except -1
    @cython.locals(position=u64)
    cdef int _bring(self, u64 lock) except -1
    cdef u64 post_position(self, u64 lock) except? 0xFEEDFACEDEADBEA7
    cdef bint is_current(self, u64 lock, u64 position) noexcept
    cpdef bint refresh_near(self, u64 lock, u64 position, u64 limit) except -1
    cpdef bint is_ready(self, u64 hashed) noexcept
    cpdef u64 home_of(self, u64 hashed) noexcept
    cpdef int prefetch(self, u64 hashed) noexcept
    cpdef long long find(self, u64 hashed) noexcept
    @cython.locals(word=u64)
    cpdef long long find_next(self) noexcept
    cpdef bint has(self, u64 entry, u64 hashed) noexcept
    cdef u64 _word(self, u64 entry, u64 hashed) noexcept
    @cython.locals(scope=bint)
    cdef int _catch_up(self, u64 lock, u64 position, bint anew) except -1
    @cython.locals(first=u64, count='long long', row='long long')
    cdef int _apply_some(self, u64 lock, u64 position) except -1
    @cython.locals(entry=u64)
    cdef int _apply(self, u64 lock, u64 message) except -1
    @cython.locals(start=u64, end=u64, lock=u64)
    cdef int _begin(self) except -1
    @cython.locals(reach=u64, step=u64, scope=bint)
    cdef int _learn_home(self, u64 home) except -1
    @cython.locals(entry=u64)
    cdef int _learn_part(self, u64 part) except -1
    cpdef u64 first_of(self, u64 part) noexcept
    cpdef object _too_far(self, u64 home, u64 reach)
    @cython.locals(entries=DataArray, state=u64)
    cpdef int read_entry(self, u64 entry) except -1
    @cython.locals(lock=u64, number=u64)
    cpdef int announce(self, u64 entry, u64 hashed, u64 gone) except -1
    @cython.locals(number=u64)
    cpdef u64 last_message(self, u64 lock) except? 0xFEEDFACEDEADBEA7
    cpdef int note_change(self, u64 entry, u64 hashed, u64 state) except -1
    cpdef int see(self, u64 entry, u64 state) except -1
    @cython.locals(place=u64)
    cdef u64 _place_of(self, u64 word) noexcept
    @cython.locals(known=bint, place=u64)
    cdef int _put(self, u64 word) except -1
    @cython.locals(known=bint, place=u64)
    cdef int _drop(self, u64 word) except -1
    @cython.locals(place=u64, word=u64, first=u64)
    cdef int _empty(self, u64 hole) except -1
    cpdef int search(self, u64 ident, u64 hashed) except -1
    @cython.locals(share=u64)
    cdef int _search_part(self) except -1
    @cython.locals(entry=u64, following=u64)
    cpdef long long candidate(self) except -2
    @cython.locals(entry=u64)
    cpdef int scatter(self) except -1
    @cython.locals(entry=u64)
    cpdef int post_ahead(self, u64 limit) except -1
    @cython.locals(row=u64)
    cpdef int see_ahead(self) except -1
    @cython.locals(at=u64, reach=u64)
    cdef int _reach_out(self) except -1
